//! Losses that are no numbers: every command that looks at them reports them at once, and they influence no bits.

use std::path::Path;

use serde_json::Value;

use crate::common::{edit::edit, gpt_job, logistic_job};
use crate::{output, path};

/// The job file with a replacement.
fn with(job: &Path, changes: &[(&str, &str)]) -> String {
    edit(job, changes);
    job.to_str().unwrap().to_string()
}

fn told(args: &[&str], wanted: i32, said: &[&str]) -> String {
    let (code, stdout, stderr) = output(args);
    assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
    said.iter()
        .for_each(|said| assert!(format!("{stdout}{stderr}").contains(said), "{said}: {stdout}{stderr}"));
    stdout
}

fn json(args: &[&str], wanted: i32) -> Value {
    serde_json::from_str(&told(&[args, &["--json"]].concat(), wanted, &[])).unwrap()
}

fn file(run: &str, name: &str) -> Vec<u8> {
    std::fs::read(Path::new(run).join(name)).unwrap()
}

/// Elements of an array file that [`logistic_job`] wrote, changed.
fn change_inputs(folder: &Path, change: impl Fn(usize, f32) -> f32) {
    let path = folder.join("inputs.npy");
    let mut bytes = std::fs::read(&path).unwrap();
    for (i, element) in bytes[128..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *element = change(i, f32::from_le_bytes(*element)).to_le_bytes();
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn training_stops_where_the_loss_is_no_number_and_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let job = with(
        &job,
        &[("peak = 1e-2", "peak = 1e38"), ("warmup = 3", "warmup = 0"), ("floor = 1e-3", "floor = 1e38")],
    );
    let [run, whole, ranks, reference, logged] =
        ["run", "whole", "ranks", "reference", "logged"].map(|name| path(folder.path(), name));
    let train = |out: &str, more: &[&str]| json(&[&["train", &job, "--out", out], more].concat(), 3);
    let stopped = train(&run, &[]);
    let step = stopped["step"].as_u64().unwrap();
    assert!(step > 1 && step < 8 && stopped["stopped"] == "not_finite", "{stopped}");
    let first = &stopped["not_finite"]["first"];
    assert!(
        first["kind"] == "output" && first["element"].is_u64() && first["operator"].is_string(),
        "{first}"
    );
    // Every engine and any number of ranks names the same place.
    assert_eq!(train(&ranks, &["--ranks", "2"])["not_finite"], stopped["not_finite"]);
    assert_eq!(train(&reference, &["--engine", "reference"])["not_finite"], stopped["not_finite"]);
    for other in [&ranks, &reference] {
        assert!(file(&run, "transcript") == file(other, "transcript"));
    }
    let next: Vec<&str> =
        stopped["next"].as_array().unwrap().iter().map(|next| next["command"].as_str().unwrap()).collect();
    assert!(next[0].starts_with("tiebreak audit ") && next[0].ends_with(" --prefix"), "{stopped}");
    assert_eq!(next[1..], [stopped["resume"].as_str().unwrap()]);
    // The last good checkpoint stays, though one was due at the step.
    assert!(stopped["checkpoint_step"].as_u64().unwrap() < step, "{stopped}");

    let since = format!("the loss is NaN at step {step}");
    told(&["audit", &run, "--prefix"], 0, &["MATCHES", "NOT FINITE", &since]);
    assert_eq!(json(&["audit", &run, "--prefix"], 0)["not_finite"]["first"], step);
    told(&["audit", &run], 3, &["INCOMPLETE", &since]);
    told(&["verify", &run, "--prefix"], 0, &["NOT FINITE", &since]);
    told(&["inspect", &run], 0, &["NOT FINITE", &since]);
    assert_eq!(json(&["inspect", &run], 0)["not_finite"]["first"], step);
    let picture = path(folder.path(), "loss.svg");
    told(&["plot", &run, "-o", &picture], 0, &[&format!("not finite at step {step}")]);

    let resume = ["train", "--out", &run, "--resume"];
    told(&resume, 3, &[&format!("STOPPED at step {step} of 8: {since}")[..24], "--stop-on-nan false"]);
    told(&[&resume[..], &["--stop-on-nan", "false"]].concat(), 0, &["trained "]);
    told(
        &["train", &job, "--out", &whole, "--stop-on-nan", "false"],
        0,
        &["warning: step", "the loss is NaN"],
    );
    assert!(file(&run, "transcript") == file(&whole, "transcript"), "the bits depend on the stop");
    told(&["audit", &run], 0, &["MATCHES", &since]);
    told(&["eval", &run], 0, &["NOT FINITE: the loss is NaN, since the model is not: param/"]);
    // A run that is complete needs nothing.
    told(&resume, 0, &["complete already"]);

    // A log has no such values: training ends there before the step's record.
    let ended = ["train", &job, "--out", &logged, "--profile", "logged"];
    told(&ended, 3, &["element 0 of a native product is not finite"]);
}

#[test]
fn data_that_are_no_numbers_are_named_by_file_sample_and_element() {
    let folder = tempfile::tempdir().unwrap();
    let job = logistic_job(folder.path(), [12, 5], [3, 2], "microbatch");
    let job = job.to_str().unwrap();
    let run = path(folder.path(), "run");
    assert_eq!(json(&["job", "check", job], 0)["not_finite"], serde_json::json!([]));
    change_inputs(folder.path(), |i, x| if i % 5 == 3 && i > 10 { f32::NAN } else { x });
    let found = &json(&["job", "check", job], 0)["not_finite"];
    let expected = serde_json::json!([{ "file": "inputs.npy", "sample": 2, "element": 3, "value": "NaN", "samples": 10 }]);
    assert_eq!(*found, expected);
    told(&["job", "check", job], 0, &["warning: inputs.npy: element 3 of sample 2 is NaN; 10 samples"]);
    let stopped = json(&["train", job, "--out", &run], 3);
    let first = &stopped["not_finite"]["first"];
    assert!(first["kind"] == "batch" && first["tensor"] == "values" && first["value"] == "NaN", "{first}");
    let [file, sample] = [&first["drawn_from"][0], &first["drawn_from"][1]];
    assert!(file == "inputs.npy" && (2..12).contains(&sample.as_u64().unwrap()), "{first}");
    assert_eq!(first["element"].as_u64().unwrap() % 5, 3);
    told(&["inspect", &run], 0, &["NOT FINITE: the loss is NaN at step 1"]);
    // Metrics are JSON, whatever the values are.
    let text = std::fs::read_to_string(format!("{run}/metrics.jsonl")).unwrap();
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(line["loss"].is_null() && line["not_finite"]["loss"] == "NaN", "{line}");
    told(&["train", "--out", &run, "--resume", "--stop-on-nan", "false"], 0, &[]);
    let text = std::fs::read_to_string(format!("{run}/metrics.jsonl")).unwrap();
    assert!(
        text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()) && text.lines().count() == 2
    );
}

#[test]
fn a_model_that_the_last_step_spoils_is_not_released_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let job = logistic_job(folder.path(), [12, 5], [3, 2], "step");
    let job =
        with(&job, &[("clip_norm = 0.5\n", ""), ("steps = 2", "steps = 1"), ("peak = 0.5", "peak = 3e38")]);
    change_inputs(folder.path(), |_, x| x * 1e3);
    let run = path(folder.path(), "run");
    let stopped = json(&["train", &job, "--out", &run], 3);
    assert_eq!(stopped["not_finite"]["first"]["kind"], "state", "{stopped}");
    assert!(!Path::new(&run).join("model.safetensors").exists());
    told(&["train", "--out", &run, "--resume"], 3, &["STOPPED after the last step, 1", "param/"]);
    told(&["train", "--out", &run, "--resume", "--stop-on-nan", "false"], 0, &[]);
    told(&["audit", &run], 0, &["MATCHES"]);
}

/// Attention writes minus infinity where no token looks; the report does not name it.
#[test]
fn masks_are_not_taken_for_what_went_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let (first, run) = (path(folder.path(), "first"), path(folder.path(), "run"));
    assert_eq!(output(&["train", job.to_str().unwrap(), "--out", &first, "-q"]).0, 0);
    let mut model = file(&first, "model.safetensors");
    let len = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&model[8..8 + len]).unwrap();
    let (name, entry) = header
        .as_object()
        .unwrap()
        .iter()
        .find(|(name, _)| name.contains("final") && name.contains("gain"))
        .unwrap();
    let from = 8 + len + entry["data_offsets"][0].as_u64().unwrap() as usize;
    model[from + 4..from + 8].copy_from_slice(&f32::MAX.to_le_bytes());
    std::fs::write(folder.path().join("spoiled.safetensors"), &model).unwrap();
    let job = with(&job, &[("[checkpoint]", "[init]\nweights = [\"spoiled.safetensors\"]\n\n[checkpoint]")]);
    let stopped = json(&["train", &job, "--out", &run], 3);
    let first = &stopped["not_finite"]["first"];
    let operator = first["operator"].as_str().unwrap();
    assert!(first["kind"] == "output" && !operator.contains("attention"), "{first}");
    assert_eq!(json(&["job", "check", &job], 0)["not_finite"], serde_json::json!([]));
    model[from + 4..from + 8].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    std::fs::write(folder.path().join("spoiled.safetensors"), &model).unwrap();
    let found = &json(&["job", "check", &job], 0)["not_finite"];
    assert!(
        found[0]["tensor"] == name.as_str() && found[0]["element"] == 1 && found[0]["value"] == "-inf",
        "{found}"
    );
}

//! `tiebreak eval`, evaluations while training, and a run's reports: metrics, curves, samples from checkpoints.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{edit, edited, gpt_job, masked_job, output, path};

fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}")))
}

fn lines(run: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("{run}/metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The binary32 number that JSON holds.
fn number(value: &Value) -> f32 {
    value.as_f64().unwrap_or_else(|| panic!("{value}")) as f32
}

#[test]
fn a_run_evaluates_itself_and_anybody_else_finds_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (at, valid) = (folder.path(), path(folder.path(), "valid.txt"));
    let evaluation = "[evaluation]\nevery = 3\nfiles = \"valid.txt\"\n";
    let job = gpt_job(at, "step", evaluation);
    // Three windows of 12 tokens, the last with its last label.
    fs::write(&valid, "abcdefghijklmnopqrstuvwxyzabcdefghijk").unwrap();
    let (job, run, report) = (job.to_str().unwrap().to_string(), path(at, "run"), path(at, "report.json"));
    let (code, _, stderr) = output(&["train", &job, "--out", &run]);
    assert_eq!(code, 0, "{stderr}");
    fs::remove_file(&valid).unwrap();

    let metrics = lines(&run);
    let steps: Vec<u64> = metrics.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8]);
    assert!(
        metrics[0]["norm"].as_f64().unwrap() > 0.0 && metrics[0]["learning_rate"].as_f64().unwrap() > 0.0
    );

    let (code, found) = json(&["eval", &run, "--report", &report]);
    assert_eq!((code, &found["labels"], &found["samples"]), (0, &36.into(), &3.into()), "{found}");
    assert_eq!(
        number(&found["found"]["loss"]),
        number(&metrics[10]["evaluation_loss"]),
        "the run's own evaluation"
    );
    // Another engine, in batches that three samples do not fill.
    let replay = ["eval", &run, "--expect", &report, "--engine", "reference", "--batch", "2"];
    let (code, replayed) = json(&replay);
    assert_eq!((code, &replayed["result"]), (0, &"matches".into()), "{replayed}");
    // Another state, and another number.
    let (code, other) = json(&["eval", &run, "--expect", &report, "--step", "6"]);
    assert_eq!((code, &other["differs"][0]), (1, &"parameters".into()), "{other}");
    assert_eq!(number(&other["found"]["loss"]), number(&metrics[7]["evaluation_loss"]), "that of step 6");
    let text = fs::read_to_string(&report).unwrap();
    let hits = found["hits"].as_u64().unwrap();
    edit(&report, &[(&format!("\"hits\": {hits}"), &format!("\"hits\": {}", hits + 1))]);
    let (code, other) = json(&["eval", &run, "--expect", &report]);
    assert_eq!((code, &other["differs"]), (1, &serde_json::json!(["hits"])), "{other}");
    fs::write(&report, &text[..text.len() / 2]).unwrap();
    assert_eq!(output(&["eval", &run, "--expect", &report]).0, 4);

    seen(at, &run);
}

/// Curves of two runs in a picture, text from a checkpoint, and an audit that all this does not disturb.
fn seen(at: &Path, run: &str) {
    let picture = path(at, "loss.svg");
    let (code, _, stderr) = output(&["plot", run, run, "--output", &picture]);
    assert_eq!(code, 0, "{stderr}");
    let svg = fs::read_to_string(&picture).unwrap();
    assert_eq!((svg.matches("<polyline").count(), svg.matches(">run, evaluation<").count()), (4, 2), "{svg}");
    let write =
        |more: &[&str]| output(&[&["generate", run, "--prompt", "ab", "--length", "8"], more].concat());
    let (code, first, stderr) = write(&["--step", "4"]);
    let seed = stderr.split_whitespace().nth(1).unwrap().to_string();
    assert_eq!((code, write(&["--step", "4", "--seed", &seed]).1), (0, first), "{stderr}");
    let (code, _, stderr) = write(&["--step", "5"]);
    assert!(code == 2 && stderr.contains("--step 4, --step 6"), "{stderr}");
    let (code, stdout, stderr) = output(&["verify", run]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

/// A logistic regression of four pixels with known logits: those of class c are pixel c.
#[test]
fn accuracy_is_that_of_a_hand_count() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let job = r#"steps = 1
model = { kind = "mlp", inputs = 4, hidden = [], classes = 3 }
data = { kind = "idx", images = "images", labels = "labels" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 4 }
"#;
    fs::write(at.join("job.toml"), job).unwrap();
    // (pixels, label, true if the label is the first class with the greatest logit)
    let samples: [([u8; 4], u8, bool); 6] = [
        ([255, 0, 0, 0], 0, true),
        ([0, 255, 0, 0], 0, false),
        ([0, 0, 200, 9], 2, true),
        ([7, 7, 0, 0], 1, false),
        ([7, 7, 0, 0], 0, true),
        ([0, 0, 0, 0], 0, true),
    ];
    let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    let pixels = samples.iter().flat_map(|sample| sample.0).collect();
    fs::write(at.join("images"), [header(&[0x803, 6, 2, 2]), pixels].concat()).unwrap();
    let labels = samples.iter().map(|sample| sample.1).collect();
    fs::write(at.join("labels"), [header(&[0x801, 6]), labels].concat()).unwrap();
    let weights: Vec<u8> = (0..12).flat_map(|i| f32::from(u8::from(i / 4 == i % 4)).to_le_bytes()).collect();
    let names = r#"{"layer0.weight":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]},"layer0.bias":{"dtype":"F32","shape":[3],"data_offsets":[48,60]}}"#;
    let length = (names.len() as u64).to_le_bytes().to_vec();
    let file = [length, names.as_bytes().to_vec(), weights, vec![0; 12]].concat();
    fs::write(at.join("model.safetensors"), file).unwrap();
    let (model, job_path) = (path(at, "model.safetensors"), path(at, "job.toml"));
    let (code, found) = json(&["eval", &model, "--job", &job_path]);
    let hits = samples.iter().filter(|sample| sample.2).count();
    assert_eq!((code, &found["hits"], &found["labels"]), (0, &hits.into(), &6.into()), "{found}");
    let (code, found) = json(&["eval", &model, "--job", &job_path, "--samples", "2"]);
    assert_eq!((code, &found["hits"], &found["labels"]), (0, &1.into(), &2.into()), "{found}");
    // The last half of the samples, which the job reserves.
    fs::write(
        at.join("job.toml"),
        edited(job, &[("labels = \"labels\"", "labels = \"labels\", validation_split = 0.5")]),
    )
    .unwrap();
    let (code, kept) = json(&["eval", &model, "--job", &job_path]);
    assert_eq!(
        (code, &kept["hits"], &kept["labels"], &kept["first_sample"]),
        (0, &2.into(), &3.into(), &3.into()),
        "{kept}"
    );
    let (code, _, stderr) = output(&["eval", &model]);
    assert!(code == 2 && stderr.contains("--job"), "{stderr}");
}

/// A job with masks by the command alone: what `job check` counts, and an evaluation of files that are named with their masks.
#[test]
fn masks_are_counted_and_named_with_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let job = masked_job(folder.path(), "step", "separate", "");
    let job = job.to_str().unwrap();
    let (code, checked) = json(&["job", "check", job]);
    let counts = |i: &usize| !i.is_multiple_of(13) && i % 3 != 1 && !(26..65).contains(i);
    let due = (0..299).filter(counts).count();
    assert_eq!((code, &checked["targets"]), (0, &serde_json::json!({ "counted": due, "all": 276 })));
    let (code, text, _) = output(&["job", "check", job]);
    assert!(code == 0 && text.contains(&format!("{due} of 276 targets count")), "{text}");
    assert_eq!(output(&["train", job, "--out", &at("run")]).0, 0);
    let (code, own) = json(&["eval", &at("run")]);
    assert_eq!((code, own["labels"].as_u64()), (0, Some(due as u64)));
    let (code, named) = json(&["eval", &at("run"), "--data", &at("ids.npy"), "--data", &at("mask.bin")]);
    assert_eq!((code, &named["losses"], &named["labels"]), (0, &own["losses"], &own["labels"]));
    let (code, _, error) = output(&["eval", &at("run"), "--data", &at("ids.npy")]);
    assert!(code == 2 && error.contains("2 are wanted"), "{code} {error}");
    // A mask under which nothing counts evaluates nothing.
    fs::write(at("none.bin"), vec![0; fs::read(at("mask.bin")).unwrap().len()]).unwrap();
    let (code, _, error) = output(&["eval", &at("run"), "--data", &at("ids.npy"), "--data", &at("none.bin")]);
    assert!(
        code == 2 && error.contains("has a loss: the job's loss.ignore, mask or masking leaves none"),
        "{code} {error}"
    );
    // Without a mask the program is the same, and the run another.
    let text = fs::read_to_string(job).unwrap();
    edit(job, &[("mask = \"mask.bin\"\n", "")]);
    let (_, unmasked) = json(&["job", "check", job]);
    assert_eq!((&unmasked["program"], &unmasked["targets"]), (&checked["program"], &Value::Null));
    assert!(unmasked["job"] != checked["job"] && unmasked["data"] != checked["data"]);
    fs::write(job, text.replace("ignore = 127", "ignore = 128")).unwrap();
    let (code, _, error) = output(&["job", "check", job]);
    assert!(code == 2 && error.contains("loss.ignore: must be a label of the model"), "{code} {error}");
}

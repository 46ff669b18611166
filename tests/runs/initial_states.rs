//! Runs that begin from somebody's weights, or from another run's final state.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::{self, begin_run, edit::edited, files, gpt_job, key, trained};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Report, Silent as Quiet, audit};
use tiebreak_dispute::fact::{Fact, Wrong};
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::state::{state_digest, tensor_digests};
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{Contents, Held, Store, Stored, checkpoint, initial};
use tiebreak_train::{Silent, train};

/// The tiny GPT's job with an `[init]` table.
fn job_with(folder: &Path, name: &str, init: &str) -> PathBuf {
    let job = gpt_job(folder, "operator", "");
    let text = edited(&fs::read_to_string(&job).unwrap(), &[("steps = 8", "steps = 4")]);
    let path = folder.join(name);
    fs::write(&path, format!("{text}\n[init]\n{init}\n")).unwrap();
    path
}

fn checked(run: &Run) -> Checked {
    checks::always(&Run::open(&run.layout.root).unwrap(), Some(&key().public())).unwrap()
}

fn audited(run: &Run, checked: Checked) -> (Report, Option<Verdict>) {
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    audit(run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut Quiet).unwrap()
}

fn error_of(job: &Path, out: &Path) -> String {
    let error = begin_run(&Disk::default(), job, out).map(|run| run.id).unwrap_err();
    error.to_string()
}

#[test]
fn a_run_from_weights_audits_clean_and_swapped_weights_convict() {
    let folder = tempfile::tempdir().unwrap();
    let first = trained(&gpt_job(folder.path(), "operator", ""), &folder.path().join("first"), None);
    let weights = folder.path().join("weights.safetensors");
    fs::copy(first.layout.model(), &weights).unwrap();
    let job = job_with(folder.path(), "tuned.toml", r#"weights = ["weights.safetensors"]"#);
    let tuned = trained(&job, &folder.path().join("tuned"), None);

    // The parameters are the file's, the slots are zeros, and the seed makes no difference to them.
    let state = checkpoint::read(&tuned.layout.checkpoint(0), &tuned.program().state()).unwrap();
    let count = tuned.program().parameters.len();
    let theirs = checkpoint::read(&weights, &tuned.program().state()[..count]).unwrap();
    assert!(state[..count] == theirs && state[count..].iter().flatten().all(|byte| *byte == 0));

    let mut with_weights = checked(&tuned);
    assert!(with_weights.not_checked.iter().any(|note| note.contains("--weights")));
    checks::weights(&tuned, &mut with_weights, std::slice::from_ref(&weights)).unwrap();
    assert!(!with_weights.not_checked.iter().any(|note| note.contains("--weights")));
    let (report, verdict) = audited(&tuned, with_weights);
    assert!(report.is_complete() && verdict.is_none(), "{:?}", report.outcome);

    // Another file is not the one that the run names.
    let other = folder.path().join("other.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 0x10;
    fs::write(&other, &bytes).unwrap();
    let error = checks::weights(&tuned, &mut checked(&tuned), std::slice::from_ref(&other)).unwrap_err();
    assert!(error.to_string().contains("it is not the file of weights that the run names"), "{error}");

    // A trainer names the public weights and begins from others.
    let job = job_with(folder.path(), "swapped.toml", r#"weights = ["other.safetensors"]"#);
    let swapped = begin_run(&Disk::default(), &job, &folder.path().join("swapped")).unwrap();
    let file = RunFile { origin: tuned.file.origin.clone(), ..swapped.file.clone() };
    fs::write(swapped.layout.run_json(), file.text()).unwrap();
    let swapped = Run::open(&swapped.layout.root).unwrap();
    train(&swapped, &mut Cpu::new(1).unwrap(), Some(&key()), &mut Silent).unwrap();
    let mut found = checked(&swapped);
    checks::weights(&swapped, &mut found, std::slice::from_ref(&weights)).unwrap();
    let (report, verdict) = audited(&swapped, found);
    let Outcome::Inconsistent { step: 0, what } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert_eq!(*what, Ground::Weights);
    let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
    assert_eq!(verdict.claim.kind(), "weights");
    println!("weights verdict: {} bytes", verdict.to_bytes().len());
    let outcome = verdict.check(Some(&key().public())).unwrap();
    let Ruling::Convicts(finding) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(finding.what, Wrong(Fact::InitialElement { drawn: false, .. })), "{:?}", finding.what);
    let mut bytes = verdict.to_bytes();
    for at in (0..bytes.len()).step_by(bytes.len() / 300 + 1) {
        bytes[at] ^= 1;
        let outcome = Verdict::from_bytes(&bytes).and_then(|verdict| verdict.check(Some(&key().public())));
        assert!(!matches!(outcome, Ok(Ruling::Convicts(_))), "byte {at}");
        bytes[at] ^= 1;
    }
    // The same claim about an honest run does not hold together: state and file are others.
    let honest = checked(&tuned).verdict(&tuned, 0, verdict.claim.clone());
    assert!(!matches!(honest.check(Some(&key().public())), Ok(Ruling::Convicts(_))));

    // A trainer who withholds the state gains nothing, but a checker of the verdict needs the weights.
    fs::remove_file(swapped.layout.checkpoint(0)).unwrap();
    let mut found = checked(&swapped);
    checks::weights(&swapped, &mut found, std::slice::from_ref(&weights)).unwrap();
    let verdict = found.inconsistent.unwrap().verdict.unwrap();
    assert_eq!(verdict.claim.kind(), "initial");
    let outcome = verdict.check(Some(&key().public())).unwrap();
    assert!(matches!(outcome, Ruling::NeedsReplay { step: 0, run } if run == swapped.id));
    assert_ne!(initial::of_weights(&swapped, std::slice::from_ref(&weights)).unwrap(), swapped.file.initial);
    assert_eq!(initial::of_weights(&tuned, &[weights]).unwrap(), tuned.file.initial);
}

#[test]
fn a_run_goes_on_from_anothers_final_state() {
    let folder = tempfile::tempdir().unwrap();
    let first = trained(&gpt_job(folder.path(), "operator", ""), &folder.path().join("first"), None);
    let last = checkpoint::read(&first.layout.checkpoint(8), &first.program().state()).unwrap();
    let count = first.program().parameters.len();
    for (name, extra) in [("without", ""), ("with", "\noptimizer_state = true")] {
        let job = job_with(folder.path(), &format!("{name}.toml"), &format!("run = \"first\"{extra}"));
        let run = trained(&job, &folder.path().join(name), None);
        let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
        assert!(state[..count] == last[..count]);
        assert_eq!(state[count..] == last[count..], name == "with");
        let InitialOrigin::Run(earlier) = &run.file.origin else { panic!("{:?}", run.file.origin) };
        let (id, computation, _) = earlier.finish().unwrap();
        assert_eq!((id, computation), (first.id, first.computation.id));
        let found = checked(&run);
        assert!(found.passed.iter().any(|note| note.contains("the earlier run's final state")));
        assert!(found.not_checked.iter().any(|note| note.contains(&first.id.to_string())));
        let (report, verdict) = audited(&run, found);
        assert!(report.is_complete() && verdict.is_none(), "{:?}", report.outcome);

        // The file alone convicts a trainer who begins from another state than the named one.
        let cheat = trained(&job, &folder.path().join(format!("cheat-{name}")), Some("init@0"));
        let (report, verdict) = audited(&cheat, checked(&cheat));
        assert!(matches!(report.outcome, Outcome::Inconsistent { step: 0, .. }), "{:?}", report.outcome);
        let outcome = verdict.unwrap().check(Some(&key().public())).unwrap();
        assert!(matches!(outcome, Ruling::Convicts(finding) if finding.step == 0));
    }
    // A trainer names an earlier run, and an initial state that is not that run's last.
    let job = job_with(folder.path(), "false.toml", "run = \"first\"");
    let begun = begin_run(&Disk::default(), &job, &folder.path().join("false")).unwrap();
    let other = job_with(folder.path(), "seeded.toml", "");
    let seeded = begin_run(&Disk::default(), &other, &folder.path().join("seeded")).unwrap();
    let state = initial::state(&seeded).unwrap();
    let table = begun.program().state();
    checkpoint::write::<tiebreak_run::run::RunError>(&begun.layout.checkpoint(0), &table, |show| {
        state.iter().for_each(|tensor| show(tensor));
        Ok(())
    })
    .unwrap();
    let file = RunFile { initial: seeded.file.initial, ..begun.file.clone() };
    fs::write(begun.layout.run_json(), file.text()).unwrap();
    let begun = Run::open(&begun.layout.root).unwrap();
    train(&begun, &mut Cpu::new(1).unwrap(), Some(&key()), &mut Silent).unwrap();
    let (_, verdict) = audited(&begun, checked(&begun));
    let outcome = verdict.unwrap().check(Some(&key().public())).unwrap();
    let Ruling::Convicts(finding) = outcome else { panic!("{outcome:?}") };
    assert_eq!(finding.what, Wrong(Fact::InitialState { source: "the earlier run's final state" }));
}

/// Files of weights are copied in pieces of 65,536 elements.
#[test]
fn weights_of_more_elements_than_a_piece_are_copied_whole() {
    let folder = tempfile::tempdir().unwrap();
    let job = job_with(folder.path(), "wide.toml", r#"weights = ["weights.safetensors"]"#);
    let text = edited(
        &fs::read_to_string(&job).unwrap(),
        &[("width = 16", "width = 160"), ("steps = 4", "steps = 1")],
    );
    fs::write(&job, &text).unwrap();
    let seeds = folder.path().join("seeds.toml");
    fs::write(&seeds, edited(&text, &[("weights = [\"weights.safetensors\"]", "")])).unwrap();
    let run = begin_run(&Disk::default(), &seeds, &folder.path().join("seeds")).unwrap();
    let (table, count) = (run.program().state(), run.program().parameters.len());
    assert!(table[..count].iter().any(|tensor| tensor.ty().len() > 1 << 16));
    // Of bfloat16, as released weights are.
    let halves: Vec<Vec<u8>> = (1u32..)
        .zip(&table[..count])
        .map(|(seed, tensor)| {
            let word = |i: u32| (0x3c00 + i.wrapping_mul(seed).wrapping_mul(2_654_435_761) % 512) as u16;
            (0..tensor.ty().len() as u32).flat_map(|i| word(i).to_le_bytes()).collect()
        })
        .collect();
    let views = table[..count].iter().zip(&halves).map(|(tensor, bytes)| {
        let shape = tensor.shape.iter().map(|&d| d as usize).collect();
        (
            tensor.name.clone(),
            safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape, bytes).unwrap(),
        )
    });
    fs::write(folder.path().join("weights.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
    let run = trained(&job, &folder.path().join("run"), None);
    let state = checkpoint::read(&run.layout.checkpoint(0), &table).unwrap();
    for ((tensor, bytes), halves) in table.iter().zip(&state).zip(&halves) {
        let wide: Vec<u8> =
            halves.as_chunks::<2>().0.iter().flat_map(|half| [0, 0, half[0], half[1]]).collect();
        assert!(*bytes == wide, "{}", tensor.name);
    }
}

/// A perceptron of twelve classes that begins from one of ten: its head is drawn.
fn job_with_a_new_head(folder: &Path, init: &str) -> PathBuf {
    let job = common::mlp_job(folder, "operator", 2, 1);
    let text = edited(&fs::read_to_string(&job).unwrap(), &[("classes = 10", "classes = 12")]);
    let path = folder.join("head.toml");
    fs::write(&path, format!("{text}\n[init]\nweights = [\"weights.safetensors\"]\n{init}\n")).unwrap();
    path
}

fn weights_of_ten_classes(folder: &Path) -> PathBuf {
    let first = trained(&common::mlp_job(folder, "step", 2, 1), &folder.join("first"), None);
    let weights = folder.join("weights.safetensors");
    fs::copy(first.layout.model(), &weights).unwrap();
    weights
}

#[test]
fn a_new_head_is_the_seeds_and_the_rest_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let weights = weights_of_ten_classes(folder);
    let job = job_with_a_new_head(folder, r#"reinitialize = ["layer2.*"]"#);
    let run = trained(&job, &folder.join("run"), None);
    let (table, first) = (run.program().state(), Run::open(&folder.join("first")).unwrap());
    let state = checkpoint::read(&run.layout.checkpoint(0), &table).unwrap();
    let theirs = checkpoint::read(&first.layout.checkpoint(2), &first.program().state()).unwrap();
    assert!(state[..4] == theirs[..4]);
    assert_eq!((&*table[4].name, &table[4].shape[..]), ("param/layer2.weight", &[12, 20][..]));
    for index in [4, 5] {
        let drawn = tiebreak_contract::program::init::state_tensor(run.program(), run.key(), index);
        assert!(state[index] == tiebreak_contract::arith::words::bytes_of(&drawn));
    }
    assert!(state[4].iter().any(|byte| *byte != 0) && state[6..].iter().flatten().all(|byte| *byte == 0));

    let mut found = checked(&run);
    checks::weights(&run, &mut found, std::slice::from_ref(&weights)).unwrap();
    assert!(found.inconsistent.is_none());
    let (report, verdict) = audited(&run, found);
    assert!(report.is_complete() && verdict.is_none(), "{:?}", report.outcome);
    // The same tensors by other patterns are the same computation; other tensors are another one.
    let again = |init: &str| {
        let run = begin_run(&Disk::default(), &job_with_a_new_head(folder, init), &folder.join("again"));
        let computation = run.unwrap().computation.id;
        fs::remove_dir_all(folder.join("again")).unwrap();
        computation
    };
    assert_eq!(again(r#"reinitialize = ["layer2.bias", "*2.weight"]"#), run.computation.id);
    assert_ne!(again(r#"reinitialize = ["layer2.*", "layer0.bias"]"#), run.computation.id);
}

/// A run whose trainer changes element 37 of tensor `index` of the initial state that the job gives.
fn lied(folder: &Path, job: &Path, name: &str, index: usize) -> Run {
    let begun = begin_run(&Disk::default(), job, &folder.join(name)).unwrap();
    let (table, path) = (begun.program().state(), begun.layout.checkpoint(0));
    let mut state = initial::state(&begun).unwrap();
    state[index][4 * 37 + 1] ^= 1;
    checkpoint::write::<tiebreak_run::run::RunError>(&path, &table, |show| {
        state.iter().for_each(|tensor| show(tensor));
        Ok(())
    })
    .unwrap();
    let initial = state_digest(&table, &tensor_digests(&table, &state));
    let file = RunFile { initial, ..begun.file.clone() };
    fs::write(begun.layout.run_json(), file.text()).unwrap();
    let run = Run::open(&begun.layout.root).unwrap();
    train(&run, &mut Cpu::new(1).unwrap(), Some(&key()), &mut Silent).unwrap();
    run
}

#[test]
fn a_false_new_head_convicts_without_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let weights = weights_of_ten_classes(folder);
    let job = job_with_a_new_head(folder, r#"reinitialize = ["layer2.*"]"#);
    let honest = trained(&job, &folder.join("honest"), None);
    let liar = lied(folder, &job, "liar", 4);
    let table = liar.program().state();
    // Nobody needs the files of weights to see it.
    let (report, verdict) = audited(&liar, checked(&liar));
    assert!(matches!(report.outcome, Outcome::Inconsistent { step: 0, .. }), "{:?}", report.outcome);
    let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
    let outcome = verdict.check(Some(&key().public())).unwrap();
    let Ruling::Convicts(finding) = outcome else { panic!("{outcome:?}") };
    let Wrong(Fact::InitialElement { tensor, element: 37, drawn: true, .. }) = &finding.what else {
        panic!("{:?}", finding.what)
    };
    assert_eq!(tensor, "param/layer2.weight");

    // The same claim about an honest run, and claims that take the element from a file, or from none.
    let convicts = |run: &Run, claim: Claim| {
        let verdict = checked(run).verdict(run, 0, claim);
        matches!(verdict.check(Some(&key().public())), Ok(Ruling::Convicts(_)))
    };
    assert!(convicts(&liar, verdict.claim.clone()) && !convicts(&honest, verdict.claim.clone()));
    let Claim::Weights(mut claim) = verdict.claim else { panic!("{}", verdict.claim.kind()) };
    assert!(claim.file.is_none());
    let files = std::slice::from_ref(&weights);
    claim.file = tiebreak_audit::weights::slices(&liar, files, &table[0], 0).unwrap();
    assert!(claim.file.is_some() && !convicts(&liar, Claim::Weights(claim)));

    // An auditor with the files sees a false body, and needs the files.
    let liar = lied(folder, &job, "body", 0);
    assert!(checked(&liar).inconsistent.is_none());
    let mut found = checked(&liar);
    checks::weights(&liar, &mut found, files).unwrap();
    let verdict = found.inconsistent.unwrap().verdict.unwrap();
    assert!(convicts(&liar, verdict.claim.clone()));
    let Claim::Weights(mut claim) = verdict.claim else { panic!("{}", verdict.claim.kind()) };
    claim.file = None;
    assert!(!convicts(&liar, Claim::Weights(claim)));
}

#[test]
fn names_of_a_new_head_that_are_wrong_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    weights_of_ten_classes(folder);
    for (init, wanted) in [
        ("", "layer2.weight is F32 [10, 20], the program has F32 [12, 20]"),
        (r#"reinitialize = ["layer2.weight"]"#, "layer2.bias is F32 [10], the program has F32 [12]"),
        (
            r#"reinitialize = ["fc.*"]"#,
            "init.reinitialize: no parameter is named \"fc.*\"; the model has layer0.w",
        ),
        // With dropout every third module of torch.nn.Sequential has parameters.
        (r#"reinitialize = ["3.weight"]"#, "the files' 3.weight is layer1.weight here"),
        (r#"reinitialize = ["*"]"#, "init.reinitialize: every parameter is named"),
        (r#"fresh = ["layer2.*"]"#, "there is no such key; did you mean `reinitialize`?"),
    ] {
        let error = error_of(&job_with_a_new_head(folder, init), &folder.join("run"));
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    let job = common::mlp_job(folder, "step", 2, 1);
    let text = fs::read_to_string(&job).unwrap() + "\n[init]\nreinitialize = [\"layer2.*\"]\n";
    fs::write(&job, text).unwrap();
    assert!(error_of(&job, &folder.join("run")).contains("what no file of weights gives is drawn anyway"));
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mlp = common::mlp_job(folder.path(), "step", 2, 1);
    trained(&mlp, &folder.path().join("mlp"), None);
    let job = job_with(folder.path(), "job.toml", r#"weights = ["mlp/model.safetensors"]"#);
    let error = error_of(&job, &folder.path().join("run"));
    assert!(
        error.contains("no file has the parameters token_embedding, ") && error.contains(" more"),
        "{error}"
    );
    let job = job_with(folder.path(), "job.toml", r#"run = "mlp""#);
    assert!(error_of(&job, &folder.path().join("run")).contains("the run has other parameters"));
    let whole = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("gpt"), None);
    fs::copy(whole.layout.checkpoint(8), folder.path().join("state.safetensors")).unwrap();
    let job =
        job_with(folder.path(), "job.toml", r#"weights = ["state.safetensors", "gpt/model.safetensors"]"#);
    assert!(error_of(&job, &folder.path().join("run")).contains("is there twice"));
    for (init, wanted) in [
        (
            r#"weights = ["x"]
run = "y""#,
            "init.weights: it cannot be together with `run`; leave one of them out",
        ),
        ("optimizer_state = true", "init.optimizer_state: only a run has an optimizer state"),
        (r#"run = "nowhere""#, "is not a run"),
        (r#"weights = ["nowhere.safetensors"]"#, "nowhere.safetensors"),
    ] {
        let error = error_of(&job_with(folder.path(), "job.toml", init), &folder.path().join("run"));
        assert!(error.contains(wanted), "{error}");
    }
}

/// The remains of an interrupted beginning are no run, and no obstacle.
#[test]
fn a_beginning_from_weights_that_is_killed_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let first = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("first"), None);
    fs::copy(first.layout.model(), folder.path().join("weights.safetensors")).unwrap();
    let job = job_with(folder.path(), "tuned.toml", r#"weights = ["weights.safetensors"]"#);
    let whole = folder.path().join("whole");
    trained(&job, &whole, None);
    let expected = files(&whole);
    let mut crashes = 0;
    for operations in 0.. {
        let out = folder.path().join("crashed");
        let _ = fs::remove_dir_all(&out);
        let failing = Disk::failing_after(operations);
        if begin_run(&failing, &job, &out).is_ok() {
            break;
        }
        crashes += 1;
        // A crash before run.json was there leaves no run: the trainer begins again.
        let run = Run::open(&out).unwrap_or_else(|_| begin_run(&Disk::default(), &job, &out).unwrap());
        train(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent).unwrap();
        let mut found = files(&out);
        found.retain(|(name, _)| !name.to_string_lossy().ends_with(".partial"));
        assert!(found == expected, "files differ after a crash at operation {operations}");
    }
    assert!(crashes > 10, "only {crashes} crash points were passed");
}

/// `job check` reads the weights or the run as training would, and names the state's origin.
#[test]
fn job_check_opens_what_a_run_begins_from() {
    let folder = tempfile::tempdir().unwrap();
    let first = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("first"), None);
    fs::copy(first.layout.model(), folder.path().join("weights.safetensors")).unwrap();
    let check = |init: &str, arguments: &[&str]| {
        let job = job_with(folder.path(), "checked.toml", init);
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_tiebreak"))
            .args(["job", "check"])
            .arg(&job)
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (run.status.code(), text(run.stdout), text(run.stderr))
    };
    let bytes = fs::metadata(first.layout.model()).unwrap().len();
    let run = serde_json::json!(first.id);
    for (init, said, json) in [
        ("", "initial state: made from the seed".to_string(), serde_json::json!({ "kind": "seed" })),
        (
            r#"weights = ["weights.safetensors"]"#,
            "initial state: the weights in weights.safetensors (".into(),
            serde_json::json!({ "kind": "weights", "paths": ["weights.safetensors"] }),
        ),
        (
            r#"run = "first""#,
            format!("initial state: the final state of the run {} in first; optimizer slots begin", first.id),
            serde_json::json!({ "kind": "run", "path": "first", "run": run, "optimizer_state": false }),
        ),
        (
            "run = \"first\"\noptimizer_state = true",
            "optimizer slots are taken too".into(),
            serde_json::json!({ "kind": "run", "path": "first", "run": run, "optimizer_state": true }),
        ),
    ] {
        let (code, stdout, stderr) = check(init, &[]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.contains(&said), "{stdout}");
        let mut found = serde_json::from_str::<serde_json::Value>(&check(init, &["--json"]).1).unwrap();
        let found = found["initial"].as_object_mut().unwrap();
        if let Some(files) = found.remove("files") {
            assert_eq!((files.as_array().unwrap().len(), &files[0]["bytes"]), (1, &bytes.into()));
        }
        assert_eq!(&serde_json::Value::from(found.clone()), &json);
    }
    fs::write(folder.path().join("weights.safetensors"), b"no weights").unwrap();
    for (init, wanted) in [
        (r#"weights = ["weights.safetensors"]"#, "weights.safetensors"),
        (r#"weights = ["nowhere.safetensors"]"#, "nowhere.safetensors"),
        (r#"run = "nowhere""#, "is not a run"),
    ] {
        let (code, stdout, stderr) = check(init, &[]);
        assert!(code != Some(0) && stdout.is_empty() && stderr.contains(wanted), "{code:?} {stderr}");
    }
}

/// A server of one file that gives other bytes once the file was read.
struct Turncoat(Vec<u8>, AtomicU64);

impl Store for Turncoat {
    fn place(&self) -> String {
        "turncoat".into()
    }
    fn length(&self, _: &str) -> std::io::Result<u64> {
        Ok(self.0.len() as u64)
    }
    fn read(&self, _: &str, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        let mut bytes = self.0[range.start as usize..range.end as usize].to_vec();
        if self.1.fetch_add(bytes.len() as u64, Relaxed) >= self.0.len() as u64
            && range.end == self.0.len() as u64
        {
            *bytes.last_mut().unwrap() ^= 0x10;
        }
        Ok(bytes)
    }
    fn list(&self, _: &str) -> std::io::Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn replace(&self, _: &str, _: &mut Contents) -> std::io::Result<()> {
        unreachable!("nothing is written")
    }
    fn append(&self, _: &str, _: &[u8]) -> std::io::Result<()> {
        unreachable!("nothing is written")
    }
    fn truncate(&self, _: &str, _: u64) -> std::io::Result<()> {
        unreachable!("nothing is written")
    }
    fn sync(&self, _: &str) -> std::io::Result<()> {
        unreachable!("nothing is written")
    }
    fn remove(&self, _: &str) -> std::io::Result<()> {
        unreachable!("nothing is written")
    }
    fn lock(&self, _: &str) -> std::io::Result<Box<dyn Held>> {
        unreachable!("nothing is written")
    }
}

/// The auditor reads weights twice: a server whose second answer differs convicts nobody.
#[test]
fn weights_that_change_between_two_reads_accuse_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let seeded = trained(&job, &folder.path().join("seeded"), None);
    fs::copy(seeded.layout.model(), folder.path().join("weights.safetensors")).unwrap();
    let text =
        format!("{}\n[init]\nweights = [\"weights.safetensors\"]\n", fs::read_to_string(&job).unwrap());
    fs::write(folder.path().join("tuned.toml"), text).unwrap();
    let tuned = trained(&folder.path().join("tuned.toml"), &folder.path().join("tuned"), None);
    let bytes = fs::read(folder.path().join("weights.safetensors")).unwrap();
    assert!(bytes.len() > 1 << 10);
    let store: Arc<dyn Store> = Arc::new(Turncoat(bytes, AtomicU64::new(0)));
    let file = Stored::new(&store, Path::new("turncoat"), "weights.safetensors");
    let mut found = checked(&tuned);
    let why = checks::weights(&tuned, &mut found, &[file]).unwrap_err().to_string();
    assert!(why.contains("are others than before"), "{why}");
    assert!(found.inconsistent.is_none());
}

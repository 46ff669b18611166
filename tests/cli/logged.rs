//! The commands of the logged profile: a run on native kernels, its audit, its log, and thresholds for a job.

use std::path::Path;
use std::process::Command;

use crate::common::edit::{edit, edited};
use crate::common::{gpt_job, mlp_job, trained, trained_on};
use tiebreak_audit::{checks, reference_step};
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;

fn output(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_string()
}

#[test]
fn a_logged_run_from_its_job_to_its_audit() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "").to_str().unwrap().to_string();
    let run = path(folder.path(), "run");
    let train = ["train", &job, "--out", &run, "--profile", "logged", "--native", "interleaved", "-q"];
    let (code, _, stderr) = output(&train);
    assert_eq!(code, 0, "{stderr}");

    let report = path(folder.path(), "report.json");
    let (code, stdout, _) = output(&["audit", &run, "--report", &report]);
    assert_eq!(code, 0, "{stdout}");
    assert!(
        stdout.contains("rounding log: ") && stdout.contains("largest bias that they could hide"),
        "{stdout}"
    );
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["rounding"]["illegal"], 0);
    let products = report["rounding"]["products"].as_array().unwrap();
    let sum = |name: &str| products.iter().map(|product| product[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("elements"), report["rounding"]["elements"].as_u64().unwrap());
    assert_eq!(sum("decisions"), report["rounding"]["decisions"].as_u64().unwrap());
    assert!(report["rounding"]["hidden"]["bias"].as_f64().unwrap() > 0.0);
    assert_eq!(output(&["replay", &run, "--step", "5"]).0, 0);
    assert_eq!(output(&["replay", &run, "--step", "5", "--microbatch", "2"]).0, 0);
    assert_eq!(output(&["verify", &run]).0, 0);

    let picture = path(folder.path(), "margins.svg");
    let (code, stdout, _) = output(&["log", "inspect", &run, "--step", "3", "--margins", &picture]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("linear_dw") && stdout.contains("distance of the exact product"), "{stdout}");
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
    let (code, stdout, _) = output(&["log", "inspect", &run, "--json"]);
    let inspected: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &inspected["committed"]), (0, &true.into()));

    // One product of one micro-batch.
    let part = ["log", "inspect", &run, "--step", "3", "--operator", "block0.query", "--micro-batch", "1"];
    let (code, stdout, stderr) = output(&part);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("block0.query (linear) of micro-batch 1"), "{stdout}");
    let (code, _, stderr) = output(&["log", "inspect", &run, "--operator", "block7.query"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("it logs") && stderr.contains("block0.query"), "{stderr}");

    // Another step's log is not the committed one: both commands say so, and neither accepts it.
    std::fs::copy(
        path(folder.path(), "run/logs/step-000000004"),
        path(folder.path(), "run/logs/step-000000003"),
    )
    .unwrap();
    let (code, stdout, _) = output(&["verify", &run]);
    assert_eq!(code, 4, "{stdout}");
    assert!(
        stdout.contains("DAMAGED: rounding logs of step 3: ") && !stdout.contains("of step 4"),
        "{stdout}"
    );
    // A log that changes between an audit's check and its replay is a damaged file as well, and no divergence.
    let opened = Run::open(Path::new(&run)).unwrap();
    let theirs = checks::structure(&opened, None).unwrap().step(3).unwrap().clone();
    let before = checkpoint::read(&opened.layout.checkpoint(2), &opened.program().state()).unwrap();
    let Err(error) = reference_step(&opened, &before, &theirs) else {
        panic!("another step's log was taken")
    };
    assert!(error.to_string().contains("not the rounding log that the record commits"), "{error}");
    let (code, stdout, _) = output(&["log", "inspect", &run, "--step", "3"]);
    assert_eq!(code, 4);
    assert!(stdout.contains("NOT the log"), "{stdout}");
    let (code, _, stderr) = output(&["audit", &run, "--verdict", &path(folder.path(), "v.json")]);
    assert_eq!(code, 4);
    assert!(stderr.contains("not the rounding log that the record commits"), "{stderr}");
}

#[test]
fn a_replay_judges_a_step_as_an_audit_does() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "[rounding]\n");
    for (cheat, code) in [("decision-far@3", 1), ("decision-hidden@3", 3), ("skip@3", 1)] {
        let run = folder.path().join(cheat);
        trained(&job, &run, Some(cheat));
        let run = run.to_str().unwrap();
        let verdict = path(folder.path(), &format!("{cheat}.json"));
        let (audited, stdout, _) = output(&["audit", run, "--steps", "3..3", "--verdict", &verdict]);
        assert_eq!(audited, code, "{cheat}: {stdout}");
        let (replayed, stdout, _) = output(&["replay", run, "--step", "3"]);
        assert_eq!(replayed, code, "{cheat}: {stdout}");
    }
    let far = path(folder.path(), "decision-far@3");
    let parts =
        [0, 1, 2].map(|part| output(&["replay", &far, "--step", "3", "--microbatch", &part.to_string()]).0);
    assert_eq!(parts.iter().filter(|code| **code == 1).count(), 1, "{parts:?}");
}

/// Behind ReLU and dropout many gradients of weights are sums whose terms are all zero. On a grid without a floor no decision can
/// name such a zero, and none is needed.
#[test]
fn zeros_between_zeros_stop_no_training() {
    let folder = tempfile::tempdir().unwrap();
    for bits in [32, 28] {
        let job = mlp_job(folder.path(), "microbatch", 2, 2);
        let text = std::fs::read_to_string(&job).unwrap();
        std::fs::write(&job, format!("{text}\n[rounding]\nbits = {bits}\n")).unwrap();
        let run = path(folder.path(), &format!("run{bits}"));
        trained(&job, Path::new(&run), None);
        let (code, stdout, stderr) = output(&["audit", &run]);
        assert_eq!(code, 0, "{bits}: {stdout}{stderr}");
    }
}

#[test]
fn wrong_uses_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let run = path(folder.path(), "run");
    let blocks = "\n[digits.class.linear]\ndigits_a = 3\ndigits_b = 3\nblock = 64\n";
    let job = gpt_job(folder.path(), "operator", blocks).to_str().unwrap().to_string();
    let (code, _, stderr) = output(&["train", &job, "--out", &run, "--profile", "logged"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("not cut along K"), "{stderr}");
    assert!(!Path::new(&run).exists(), "nothing was begun");
    for (table, why) in [
        ("bits = 31", "26 to 30"),
        ("bits = 32\nfloor = 3", "only the bfloat16 grid"),
        ("threshold = 0", "must be 1 to"),
        ("floor = 99", "must be 0 to 40"),
        ("floor = 3", "4 to 40"),
    ] {
        let job = gpt_job(folder.path(), "microbatch", &format!("[rounding]\n{table}\n"));
        let (code, _, stderr) = output(&["job", "check", job.to_str().unwrap()]);
        assert_eq!(code, 2, "{table}");
        assert!(stderr.contains("rounding.") && stderr.contains(why), "{table}: {stderr}");
    }
    let job = gpt_job(folder.path(), "microbatch", "[rounding]\n").to_str().unwrap().to_string();
    let (code, _, stderr) = output(&["train", &job, "--out", &run, "--engine", "reference"]);
    assert_eq!(code, 3);
    assert!(stderr.contains("no native products"), "{stderr}");
}

/// The author of the job sets the thresholds. Thresholds beyond the kernels' needs are refused, and a match of a run that has
/// them anyway would say nothing.
#[test]
fn thresholds_beyond_what_kernels_need_bind_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let job = |rounding: &str, micro_batch: u32| {
        let path = gpt_job(folder.path(), "microbatch", &format!("[rounding]\n{rounding}\n"));
        let batch = format!("micro_batch = {micro_batch}\n");
        edit(&path, &[("micro_batch = 2\n", &batch), ("steps = 8", "steps = 2")]);
        path.to_str().unwrap().to_string()
    };
    let run = path(folder.path(), "run");
    for (rounding, micro_batch, says) in [
        ("class = { linear_dw = 16777216 }", 1 << 13, "rounding.class.linear_dw is 16777216"),
        ("class = { linear_dw = 16777216 }", 1 << 13, "K = 98304 terms"),
        ("threshold = 16777216", 2, "rounding.threshold is 16777216"),
        ("bits = 32\nclass = { scores = 100000 }", 2, "rounding.class.scores is 100000"),
        ("threshold = 63", 2, "no kernel less than 64"),
        // K u is a half: no bound is proved, whatever the thresholds are.
        ("", 349_526, "K = 4194312 terms, so many that no bound"),
    ] {
        let job = job(rounding, micro_batch);
        for args in [vec!["job", "check", &job], vec!["train", &job, "--out", &run]] {
            let (code, _, stderr) = output(&args);
            assert_eq!(code, 2, "{rounding}: {stderr}");
            assert!(stderr.contains(says), "{rounding}: {stderr}");
        }
        assert!(!Path::new(&run).exists(), "nothing was begun");
    }
    let job = job("class = { linear_dw = 16777216 }\nfloor = 4", 2);
    trained_on(&mut Cpu::new(2).unwrap(), Path::new(&job), Path::new(&run), None);
    let (code, stdout, stderr) = output(&["audit", &run]);
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(stdout.starts_with("UNBOUNDED FREEDOM: rounding.class.linear_dw is 16777216"), "{stdout}");
}

/// A trainer steers the weights' gradients by legal roundings within the thresholds, while the decisions about all other
/// products, many more of them, are honest.
#[test]
fn steered_weight_gradients_do_not_match() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "[rounding]\n");
    edit(&job, &[("steps = 8", "steps = 3"), ("context = 12", "context = 32"), ("width = 16", "width = 64")]);
    let audited = |cheat: &str| {
        let run = path(folder.path(), cheat);
        let engine = &mut Cpu::new(2).unwrap();
        trained_on(engine, &job, Path::new(&run), Some(cheat));
        let (code, stdout, stderr) = output(&["audit", &run]);
        (code, format!("{stdout}{stderr}"))
    };
    let (code, said) = audited("skip@99");
    assert!(code == 0 && said.contains("of an honest kernel's at most"), "{said}");
    let (code, said) = audited("weight-decisions-biased@2");
    assert_eq!(code, 3, "{said}");
    assert!(
        said.starts_with("COULD NOT DECIDE: ") && said.contains("_dw of ") && said.contains("step 2"),
        "{said}"
    );
}

#[test]
fn calibration_prints_a_table_that_a_job_takes() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "\n[rounding]\n");
    // Adapters compile shaders for a while; the CPU's kernels are enough here.
    let calibrate = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
        .args(["log", "calibrate", job.to_str().unwrap(), "--steps", "2"])
        .env("VK_DRIVER_FILES", "/nonexistent")
        .output()
        .unwrap();
    let table = String::from_utf8(calibrate.stdout).unwrap();
    assert!(table.contains("[rounding.class]") && table.contains("linear_dw = "), "{table}");
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, format!("{text}\n{table}")).unwrap();
    let (code, _, stderr) = output(&["job", "check", job.to_str().unwrap()]);
    assert_eq!(code, 0, "{stderr}");
    // The command replaces existing thresholds, on every call, and writes into an inline table.
    let inline =
        edited(&text, &[("\n[rounding]\n", ""), ("steps = 8", "steps = 8\nrounding = { bits = 16 }")]);
    for before in [format!("{text}\n{table}"), inline] {
        std::fs::write(&job, before).unwrap();
        let mut calibrate = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        calibrate.args(["log", "calibrate", job.to_str().unwrap(), "--steps", "1", "--write", "-q"]);
        let output = calibrate.env("VK_DRIVER_FILES", "/nonexistent").output().unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        let text = std::fs::read_to_string(&job).unwrap();
        assert!(output.status.success() && text.ends_with(&format!("\n{table}")), "{text}");
        assert_eq!(text.matches("rounding.class").count(), 1, "{text}");
    }
}

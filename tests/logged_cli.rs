//! The commands of the logged profile: a run on native kernels, its audit, its log, and thresholds for a job.

#![cfg(feature = "cli")]

mod common;

use std::path::Path;
use std::process::Command;

use common::gpt_job;

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
        stdout.contains("rounding log: ") && stdout.contains("freedom that the proved bound leaves"),
        "{stdout}"
    );
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["rounding"]["illegal"], 0);
    assert!(!report["rounding"]["freedom"].as_array().unwrap().is_empty());
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

    // Another step's log is not the committed one: said by both commands, and never accepted.
    std::fs::copy(
        path(folder.path(), "run/logs/step-000000004"),
        path(folder.path(), "run/logs/step-000000003"),
    )
    .unwrap();
    let (code, stdout, _) = output(&["log", "inspect", &run, "--step", "3"]);
    assert_eq!(code, 4);
    assert!(stdout.contains("NOT the log"), "{stdout}");
    let (code, _, stderr) = output(&["audit", &run, "--verdict", &path(folder.path(), "v.json")]);
    assert_eq!(code, 4);
    assert!(stderr.contains("not the rounding log that the record commits"), "{stderr}");
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
    // Written in place of what is there, as often as it is asked for, and into an inline table.
    let inline =
        text.replace("\n[rounding]\n", "").replace("steps = 8", "steps = 8\nrounding = { bits = 16 }");
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

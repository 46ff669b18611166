//! The line `help:` below an error: there for what people meet first, one line, and in `--json` a field beside the error.

use std::fs;
use std::path::Path;

use tiebreak_run::run::dir::Run;

use crate::common::edit::{edit, edited};
use crate::common::{gpt_job, trained};
use crate::{output, path};

/// Runs a command that fails: its exit code, error and help, which `--json` gives as well.
fn failed(args: &[&str]) -> (i32, String, String) {
    let (code, _, stderr) = output(args);
    let lines: Vec<&str> = stderr.lines().collect();
    let helps: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("help: ")).collect();
    assert_eq!(helps.len(), 1, "{args:?}: {stderr}");
    assert_eq!(lines.last(), Some(&format!("help: {}", helps[0]).as_str()), "{args:?}: {stderr}");
    let (again, _, json) = output(&[args, &["--json"]].concat());
    let last = json.lines().last().unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{args:?}: {json}"));
    assert_eq!((again, &value["exit"], &value["help"]), (code, &code.into(), &helps[0].into()), "{value}");
    (code, value["error"].as_str().unwrap().to_string(), helps[0].to_string())
}

#[track_caller]
fn says(args: &[&str], wanted: i32, error: &str, help: &str) {
    let (code, said, helped) = failed(args);
    assert_eq!(code, wanted, "{args:?}: {said}");
    assert!(said.contains(error), "{args:?}: {said}");
    assert!(helped.contains(help), "{args:?}: {helped}");
}

#[test]
fn what_is_not_there_is_told_with_a_way_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let [nowhere, verdict] = ["no-run", "verdict.json"].map(|name| path(folder.path(), name));
    let here = folder.path().to_str().unwrap();
    let makes = format!("`tiebreak train JOB --out {nowhere}`");
    for args in [
        &["verify", &nowhere][..],
        &["audit", &nowhere],
        &["inspect", &nowhere],
        &["export", &nowhere, "--output", &verdict],
    ] {
        says(args, 2, "is not a run: it has no run.json", &makes);
    }
    says(
        &["job", "check", &nowhere],
        2,
        "there is no such job file",
        &format!("`tiebreak job new gpt --output {nowhere}`"),
    );
    says(&["verdict", "check", &verdict], 2, "verdict.json", &format!("`ls {here}`"));
    says(&["train", "--out", &nowhere, &verdict, "--engine", "tpu"], 2, "tpu", "`tiebreak adapters`");
    says(&["adapters", "--adapter", "no such GPU"], 2, "\"no such GPU\"", "`tiebreak adapters`");
}

#[cfg(feature = "gpu")]
#[test]
fn a_gpu_that_is_not_here_is_told_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let run = path(folder.path(), "run");
    let args =
        ["train", job.to_str().unwrap(), "--out", &run, "--engine", "wgpu", "--adapter", "no such GPU"];
    says(&args, 3, "wgpu finds no adapter \"no such GPU\"; adapters here: ", "`tiebreak adapters`");
    assert!(!Path::new(&run).exists());
}

#[test]
fn a_key_of_a_job_that_is_misspelt_is_told_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    edit(&job, &[("steps = 8", "stepz = 8")]);
    says(&["job", "check", job.to_str().unwrap()], 2, "steps", "`tiebreak job reference`");
}

#[test]
fn keys_that_do_not_fit_a_run_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let job = job.to_str().unwrap();
    let [signed, unsigned, key, other] =
        ["signed", "unsigned", "key", "other"].map(|name| path(folder.path(), name));
    for key in [&key, &other] {
        assert_eq!(output(&["key", "new", key, "--name", "trainer.example"]).0, 0);
    }
    assert_eq!(output(&["train", job, "--out", &signed, "--key", &key]).0, 0);
    assert_eq!(output(&["train", job, "--out", &unsigned]).0, 0);
    let (other, public) = (format!("{other}.pub"), format!("{key}.pub"));
    for command in ["verify", "audit"] {
        let args = [command, &unsigned, "--trainer-key", &public];
        says(&args, 4, "the run is unsigned", &format!("`tiebreak sign {unsigned} --key FILE`"));
        let (code, said, help) = failed(&[command, &signed, "--trainer-key", &other]);
        let text = |file: &str| fs::read_to_string(file).unwrap().trim().to_string();
        assert_eq!(code, 4);
        let both =
            format!("names the trainer key {}; the one that is given is {}", text(&public), text(&other));
        assert!(said.contains(&both), "{said}");
        assert!(help.starts_with("ask the trainer"), "{help}");
    }
    // The help was right: signed afterwards, the key fits.
    assert_eq!(output(&["sign", &unsigned, "--key", &key]).0, 0);
    assert_eq!(output(&["verify", &unsigned, "--trainer-key", &public]).0, 0);
}

#[test]
fn limits_locks_and_profiles_are_told_with_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let out = path(folder.path(), "run");
    let run = trained(&job, Path::new(&out), None);
    let (_, said, help) = failed(&["audit", &out, "--max-memory", "1"]);
    assert!(said.contains("memory") && help.starts_with("raise --max-memory"), "{said} {help}");
    says(&["log", "inspect", &out], 2, "exact profile", "--profile logged");
    let fresh = path(folder.path(), "fresh");
    let native = ["train", job.to_str().unwrap(), "--out", &fresh, "--native", "gemm"];
    says(&native, 2, "--native is for the logged profile", "add --profile logged");
    says(&["audit", &out, "--adapter", "llvmpipe"], 2, "--adapter names a GPU", "--engine wgpu");
    let held = run.lock().unwrap();
    let resume = ["train", "--out", &out, "--key", &path(folder.path(), "key"), "--resume"];
    fs::write(path(folder.path(), "key"), crate::common::key().to_text()).unwrap();
    says(&resume, 2, "is being written by another process", "--prefix");
    drop(held);
    assert_eq!(output(&resume).0, 0);
}

#[test]
fn another_contract_is_told_with_the_program_that_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let out = path(folder.path(), "run");
    trained(&job, Path::new(&out), Some("operator@5"));
    let verdict = path(folder.path(), "verdict.json");
    assert_eq!(output(&["audit", &out, "--verdict", &verdict]).0, 1);
    let text = fs::read_to_string(&verdict).unwrap();
    for (contract, help) in
        [("tiebreak-contract-9", "tiebreak --version"), ("tiebreak-contract-1", "train again")]
    {
        fs::write(&verdict, edited(&text, &[("tiebreak-contract-2", contract)])).unwrap();
        says(&["verdict", "check", &verdict], 4, &format!("it follows {contract:?}"), help);
        let json = fs::read_to_string(format!("{out}/run.json")).unwrap();
        fs::write(format!("{out}/run.json"), edited(&json, &[("tiebreak-contract-2", contract)])).unwrap();
        says(&["verify", &out], 4, &format!("it follows {contract:?}"), help);
        fs::write(format!("{out}/run.json"), json).unwrap();
    }
    assert!(Run::open(Path::new(&out)).is_ok());
}

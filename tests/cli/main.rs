//! The command: exit codes, and a trainer that is killed at any moment.

mod addressed_jobs;
mod addressed_models;
mod addresses;
mod answers;
mod attacks;
mod audits;
mod beacons;
mod bounds;
#[cfg(feature = "tokenizer")]
mod chats;
mod chips;
mod command_line;
#[path = "../common/mod.rs"]
mod common;
mod corrections;
mod damage;
mod demo;
mod disclosures;
mod evaluations;
mod exposition;
mod foreign;
mod help;
mod hidden;
mod hidden_verdicts;
mod hostile;
mod job_reference;
mod jobs;
mod launchers;
mod logged;
mod matches;
mod monitor_agent;
mod monitor_demo;
mod monitor_draw;
mod monitor_inspect;
mod network_answers;
mod network_files;
mod networks;
mod next;
mod not_finite;
mod options;
mod outputs;
mod pages;
mod predictions;
mod progress;
mod promises;
mod properties;
mod ranks;
mod ranks_in_buckets;
mod receipts;
mod recompute;
mod released;
mod released_answers;
mod released_decoders;
mod released_encoders;
mod released_sequences;
mod released_vision;
mod reveals;
mod rules;
mod salted;
mod screens;
mod sealed;
mod served_models;
mod shard_openings;
mod signals;
mod statements;
#[cfg(feature = "tokenizer")]
mod tokenized_answers;
#[cfg(unix)]
mod tutorials;
mod watch;
mod witness;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::edit::{edit, edited};
use common::{files, gpt_job, masked_job, program_job, sign_again, step_mut, trained};

fn tiebreak(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = tiebreak(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_string()
}

#[test]
fn two_histories_of_one_run_convict_wherever_they_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let [one, other] = ["one", "other"].map(|name| path(folder.path(), name));
    trained(&job, Path::new(&one), None);
    let second = trained(&job, Path::new(&other), None);
    let verdict = path(folder.path(), "verdict.json");
    let found = |args: &[&str]| {
        assert_eq!(output(&[args, &["--verdict", &verdict]].concat()).0, 1, "{args:?}");
        let (code, stdout, stderr) = output(&["verdict", "check", &verdict]);
        assert!(code == 1 && stdout.starts_with("fork verdict, "), "{stdout}{stderr}");
    };
    assert_eq!(output(&["compare", &one, &other]).0, 0);
    sign_again(&second, |records| step_mut(records, 5).cursor += 1);
    found(&["compare", &one, &other]);
    let head = second.layout.head(10).to_str().unwrap().to_string();
    found(&["audit", &one, "--head", &head]);
    // An auditor who is shown only a beginning of the first history, but has the head of the other, decides nothing.
    let beginning = path(folder.path(), "beginning");
    let shown = trained(&job, Path::new(&beginning), None);
    for size in [7, 10] {
        std::fs::remove_file(shown.layout.head(size)).unwrap();
    }
    let ended = |args: &[&str]| output(&[&["audit", &beginning, "--engine", "cpu"], args].concat());
    let (code, stdout, _) = ended(&["--prefix", "--head", &head]);
    assert!(
        code == 3 && stdout.starts_with("INCOMPLETE: the trainer signed a head over 10 records"),
        "{stdout}"
    );
    let (code, stdout, _) = ended(&["--prefix"]);
    assert!(
        code == 0 && stdout.starts_with("MATCHES: 3 of 8 steps") && stdout.contains("not its end"),
        "{stdout}"
    );
    assert_eq!(ended(&[]).0, 3);
    let (code, _, stderr) =
        output(&["verdict", "narrow", &verdict, "--tile", &head, "--out", &path(folder.path(), "small")]);
    assert_eq!(code, 4);
    assert!(stderr.contains("only a tile verdict can be narrowed"), "{stderr}");
    let (code, _, stderr) =
        output(&["verdict", "disclose", &verdict, "--run", &one, "--out", &path(folder.path(), "tile")]);
    assert_eq!(code, 2);
    assert!(stderr.contains("only a tile verdict that convicts"), "{stderr}");
}

#[test]
fn a_run_that_was_trained_without_a_key_is_signed_afterwards_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let [run, key, other] = ["run", "key", "other"].map(|name| path(folder.path(), name));
    assert_eq!(output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu", "-q"]).0, 0);
    for (key, name) in [(&key, "late.example"), (&other, "late.example")] {
        assert_eq!(output(&["key", "new", key, "--name", name]).0, 0);
    }
    let (public, others) = (format!("{key}.pub"), format!("{other}.pub"));
    let verify = |public: &str| output(&["verify", &run, "--trainer-key", public]);
    assert_eq!(verify(&public).0, 4);
    let (code, stdout, stderr) = output(&["sign", &run, "--key", &key]);
    assert!(code == 0 && stdout.contains("signed by late.example at 20"), "{stdout}{stderr}");
    assert!(stdout.contains("after it was trained"), "{stdout}");
    let (code, stdout, _) = verify(&public);
    assert!(
        code == 0 && stdout.contains("signed by late.example, key ") && stdout.contains(" afterwards, at 20"),
        "{stdout}"
    );
    assert!(stdout.contains("nothing binds its trainer to one history"), "{stdout}");
    assert_eq!(verify(&others).0, 4);
    assert_eq!(output(&["verify", &run]).0, 0);
    let (code, _, stderr) = output(&["sign", &run, "--key", &key]);
    assert!(code == 2 && stderr.contains("signed the run already"), "{stderr}");
    // A run that names a key has its signatures.
    let named = path(folder.path(), "named");
    trained(&job, Path::new(&named), None);
    let (code, _, stderr) = output(&["sign", &named, "--key", &key]);
    assert!(code == 2 && stderr.contains("names its trainer's key"), "{stderr}");
}

#[test]
fn a_job_error_names_key_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let job = job.to_str().unwrap();
    assert_eq!(output(&["job", "check", job]).0, 0);
    edit(job, &[("heads = 2", "heads = 3")]);
    let (code, _, stderr) = output(&["job", "check", job]);
    assert_eq!(code, 2);
    assert!(stderr.contains("job.toml:10: model.width: must be a multiple of heads (3)"), "{stderr}");
}

/// Kills trainers (SIGKILL) at moments spread over their runs, resuming each time: `TIEBREAK_KILLS` times, 30 without it.
#[test]
fn a_killed_trainer_resumes_to_the_same_run() {
    let most = std::env::var("TIEBREAK_KILLS").map_or(30, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    edit(&job, &[("steps = 8", "steps = 60")]);
    let key = path(folder.path(), "key");
    assert_eq!(output(&["key", "new", &key, "--name", "trainer.example"]).0, 0);
    let mut kills = 0;
    for number in 0.. {
        let out = path(folder.path(), &format!("run-{number}"));
        kills = trained_between_kills(job.to_str().unwrap(), &out, &key, kills, most);
        same_as_without_interruption(&out, &key, &path(folder.path(), &format!("whole-{number}")));
        if kills >= most {
            break;
        }
    }
}

/// Trains a run to its end, killing the trainer until it ends by itself or `most` kills are reached. Returns the kills.
fn trained_between_kills(job: &str, out: &str, key: &str, mut kills: u64, most: u64) -> u64 {
    while kills < most {
        let mut args = vec!["train", "--out", out, "--key", key, "--threads", "1", "--quiet"];
        if Path::new(out).join("run.json").exists() {
            args.push("--resume");
        } else {
            args.push(job);
        }
        let mut child = tiebreak(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(30 + kills * 71 % 190));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "a resumed trainer failed");
            return kills;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let (code, _, stderr) = output(&["train", "--out", out, "--key", key, "--resume"]);
    assert_eq!(code, 0, "{stderr}");
    kills
}

/// The same identity trained without interruption writes the same files.
fn same_as_without_interruption(out: &str, key: &str, whole: &str) {
    for name in ["", "data", "heads", "checkpoints", "traces"] {
        std::fs::create_dir_all(Path::new(whole).join(name)).unwrap();
    }
    for name in ["run.json", "job.toml", "program.bin", "data/data-0.bin", "data/data-0.tree"] {
        std::fs::copy(Path::new(out).join(name), Path::new(whole).join(name)).unwrap();
    }
    assert_eq!(output(&["train", "--out", whole, "--key", key, "--resume"]).0, 0);
    let clean = |name: &str| {
        let mut found = files(Path::new(name));
        found.retain(|(file, _)| !file.to_string_lossy().ends_with(".partial"));
        found
    };
    assert!(clean(out) == clean(whole), "the interrupted run differs");
    let public = format!("{key}.pub");
    assert_eq!(output(&["audit", out, "--trainer-key", &public, "--sample", "0.2"]).0, 0);
}

#[test]
fn a_program_is_exported_shown_drawn_and_trained() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let (file, picture) = (path(folder.path(), "gpt.program"), path(folder.path(), "gpt.svg"));
    let (code, stdout, stderr) =
        output(&["program", "export", job.to_str().unwrap(), "--out", &file, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let exported: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let (code, stdout, stderr) = output(&["program", "show", &file, "--json", "--svg", &picture]);
    assert_eq!(code, 0, "{stderr}");
    let shown: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&shown["program"], &shown["bytes"]), (&exported["program"], &exported["bytes"]));
    assert_eq!((&shown["micro_batch"], &shown["micro_batches"]), (&2.into(), &3.into()));
    // 24 rows of 16 numbers by a weight of [64, 16], three digits each, exact.
    let product = serde_json::json!({
        "operator": "block0.mlp_in", "class": null, "digits": [3, 3], "block": 0, "batch": 1, "m": 24, "n": 64, "k": 16,
        "grid": null
    });
    assert!(shown["products"].as_array().unwrap().contains(&product), "{}", shown["products"]);
    let (code, text, _) = output(&["program", "show", &file]);
    assert_eq!(code, 0);
    for said in
        ["parameter  token_embedding", "normal, std 0.02", "slots m, v", "batch      tokens", "operations"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(
        drawn.starts_with("<svg ") && drawn.contains("block0.mlp_in.backward") && drawn.ends_with("</svg>\n")
    );
    std::fs::write(&file, b"no program").unwrap();
    let (code, _, stderr) = output(&["program", "show", &file]);
    assert_eq!(code, 4, "{stderr}");

    // The program of a job, read as a file: trained, audited, distinguished from a model kind, and not sampled.
    let job = program_job(folder.path(), "microbatch", "");
    let run = path(folder.path(), "run");
    let (code, _, stderr) = output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(output(&["audit", &run, "--engine", "cpu"]).0, 0);
    let (code, stdout, _) = output(&["inspect", &run]);
    assert!(code == 0 && stdout.contains("program read from a file"), "{stdout}");
    let (code, _, stderr) = output(&["generate", &run, "--prompt", "a", "--engine", "cpu"]);
    assert!(code == 2 && stderr.contains("name the network file that gave the program"), "{stderr}");
    assert_eq!(output(&["job", "check", job.to_str().unwrap()]).0, 0);
    std::fs::write(folder.path().join("gpt.program"), b"no program").unwrap();
    let (code, _, stderr) = output(&["job", "check", job.to_str().unwrap()]);
    assert!(code == 2 && stderr.contains("it has version"), "{stderr}");
}

#[test]
fn a_command_line_is_meant_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let text = edit(&job, &[("steps = 8", "steps = 2")]);
    let other = path(folder.path(), "other.toml");
    std::fs::write(&other, edited(&text, &[("\nevery = 2", "\nevery = 1")])).unwrap();
    let (job, run, key) = (job.to_str().unwrap(), path(folder.path(), "run"), path(folder.path(), "key"));
    assert_eq!(output(&["key", "new", &key, "--name", "trainer.example"]).0, 0);
    let public = format!("{key}.pub");
    let refused = |args: &[&str], says: &str| {
        let (code, _, stderr) = output(args);
        assert!(code == 2 && stderr.contains(says), "{args:?}: {code} {stderr}");
        let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
        let error: serde_json::Value = serde_json::from_str(&stderr).expect(&stderr);
        assert!(code == 2 && error["exit"] == 2 && stdout.is_empty(), "{error}");
        let said =
            format!("{} {}", error["error"].as_str().unwrap(), error["help"].as_str().unwrap_or_default());
        assert!(said.contains(says), "{error}");
    };
    // An option that would be ignored is refused.
    refused(&["train", job, "--out", &run, "--native", "gemm"], "--native is for the logged profile");
    refused(&["train", job, "--out", &run, "--adapter", "llvmpipe"], "--adapter names a GPU");
    refused(&["train", job, "--out", &run, "--threads", "99999"], "cores; give no more");
    refused(&["train", job, "--out", &run, "--engine", "reference", "--threads", "1"], "--threads is for");
    refused(&["train", "nowhere.toml", "--out", &run], "there is no such job file");
    refused(&["job", "check", "nowhere.toml"], "there is no such job file");
    refused(&["train", job, "--out", &run, "--key", "nowhere"], "nowhere");
    refused(&["train", job, "--out", &run, "--key", &public], "is the public key");
    refused(&["train", job, "--out", &run, "--no-such-option"], "--no-such-option");
    assert!(!Path::new(&run).exists());
    assert_eq!(output(&["train", job, "--out", &run, "--key", &key]).0, 0);
    let resume = ["train", "--out", &run, "--key", &key, "--resume"];
    refused(&[&resume[..], &[&other]].concat(), "is not the job that the run was begun with");
    refused(
        &[&resume[..], &[&other]].concat(),
        &format!("[init] run = \"{run}\" and optimizer_state = true"),
    );
    refused(&["verify", "no run's"], r"tiebreak train JOB --out 'no run'\''s'");
    refused(&[&resume[..], &["--challenge", &"0".repeat(64)]].concat(), "another --challenge");
    refused(&[&resume[..], &["--profile", "logged"]].concat(), "the exact profile");
    assert_eq!(output(&[&resume[..], &[job]].concat()).0, 0);
    refused(&["audit", &run, "--adapter", "llvmpipe"], "--adapter names a GPU");
    refused(&["replay", &run, "--step", "1", "--native", "gemm"], "--native is for training");
    let secret = std::fs::read_to_string(&key).unwrap();
    for given in [&key, secret.trim()] {
        refused(&["verify", &run, "--trainer-key", given], "private key");
        let (_, _, stderr) = output(&["verify", &run, "--trainer-key", given]);
        assert!(!stderr.contains(secret.trim()), "a private key is printed");
    }
    refused(&["verify", &run, "--trainer-key", &key], &format!("give {public}"));
    // One line with -q, and an error if it cannot be written.
    for (args, first) in [
        (&["verify", &run][..], "CONSISTENT: run "),
        (&["audit", &run], "MATCHES"),
        (&["compare", &run, &run], "no difference"),
    ] {
        let (code, stdout, stderr) = output(&[args, &["-q"]].concat());
        assert!(code == 0 && stdout.starts_with(first) && stderr.is_empty(), "{stdout}{stderr}");
        assert_eq!(stdout.matches('\n').count(), 1, "{stdout}");
    }
    #[cfg(target_os = "linux")]
    for args in
        [&["inspect", &run][..], &["compare", &run, &run], &["verify", &run, "--json"], &["job", "reference"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = tiebreak(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{args:?}: {stderr}");
        assert!(stderr.contains("could not be written to standard output"), "{stderr}");
    }
}

/// Engines are listed at once; on request they are tested and measured, in one report.
#[test]
fn engines_are_listed_tested_and_measured() {
    let report = |args: &[&str]| -> serde_json::Value {
        let output =
            tiebreak(&[&["adapters", "--json", "--adapter", "cpu"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let cpu = |report: &serde_json::Value| {
        let rows = report["engines"].as_array().unwrap();
        rows.iter().find(|row| row["engine"] == "cpu").unwrap().clone()
    };
    let listed = cpu(&report(&[]));
    assert!(listed["fingerprint"].is_null() && listed["gmacs"].is_null(), "{listed}");
    let all = report(&["--test", "--bench"]);
    let measured = cpu(&all);
    assert_eq!(measured["fingerprint"], all["expected"]);
    assert_eq!(measured["matches"], true);
    assert!(measured["gmacs"].as_f64().unwrap() > 0.0 && measured["step_seconds"].as_f64().unwrap() > 0.0);
    let text = tiebreak(&["adapters"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains(all["expected"].as_str().unwrap()) && text.contains("| scalar reference |"),
        "{text}"
    );
    let size = |key: &str| measured[key].as_u64().unwrap();
    assert!(size("side") >= 128 && [128, 1024].contains(&size("tokens")), "{measured}");
    let nothing = tiebreak(&["adapters", "--adapter", "no such thing"]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("see `tiebreak adapters`"));
}

/// The last inputs of one function, all of which are NaN.
#[test]
fn one_function_is_checked_from_an_input_on() {
    let (code, stdout, stderr) =
        output(&["selftest", "--exhaustive", "--function", "exp", "--from", "ffff0000", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let rows: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let expected = serde_json::json!([
        { "function": "exp", "from": "ffff0000", "inputs": 65536, "wrong": 0, "first_wrong": null }
    ]);
    assert_eq!(rows, expected);
    let (code, _, stderr) =
        output(&["selftest", "--exhaustive", "--function", "exp", "--from", "0xffff0000"]);
    assert!(code == 0 && stderr.contains("exp: 65536 inputs, 0 wrong"), "{stderr}");
    for wrong in [
        &["--exhaustive", "--function", "sin"][..],
        &["--function", "exp"],
        &["--exhaustive", "--from", "0"],
        &["--exhaustive", "--function", "exp", "--from", "100000000"],
    ] {
        assert_eq!(output(&[&["selftest"], wrong].concat()).0, 2, "{wrong:?}");
    }
}

/// An option that a recording cannot be combined with is refused before anything is recorded.
#[cfg(feature = "gpu")]
#[test]
fn shaders_are_asked_for_in_one_way() {
    let folder = tempfile::tempdir().unwrap();
    let (out, page) = (path(folder.path(), "out"), path(folder.path(), "page.html"));
    for (wrong, says) in [
        (&["--dump", &out][..], "JOB"),
        (&["--launches"], "--dump"),
        (&["--dump", &out, "--page", &page], "--launches"),
        (&["--page", &page, "--limits", "all"], "--limits all"),
        (&["job.toml", "--dump", &out, "--adapter", "any"], "--page"),
    ] {
        let (code, _, stderr) = output(&[&["shaders"], wrong].concat());
        assert!(code == 2 && stderr.contains(says), "{wrong:?}: {code} {stderr}");
    }
    let job = gpt_job(folder.path(), "step", "").to_str().unwrap().to_string();
    let (code, stdout, stderr) = output(&["shaders", &job, "--dump", &out]);
    assert!(code == 0 && stdout.contains("0 lint errors"), "{stdout} {stderr}");
    let names: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let text = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".wgsl");
    assert!(names.len() > 20 && names.iter().all(text), "{names:?}");
}

//! Ctrl-C and SIGTERM: a checkpoint, a line that names its place, and a resume to the same bits.

#![cfg(unix)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{edit::edit, gpt_job};
use crate::{output, path, same_as_without_interruption, tiebreak};

/// Waits until a run has lines of metrics, then signals a process of it.
fn signalled_after(run: &str, lines: usize, process: impl Fn() -> Option<u32>, signal: &str) {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "{run}: no step is done");
        let text = std::fs::read_to_string(format!("{run}/metrics.jsonl")).unwrap_or_default();
        if let (true, Some(id)) = (text.lines().count() >= lines, process()) {
            let killed = Command::new("kill").args([signal, &id.to_string()]).status().unwrap();
            assert!(killed.success());
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn started(args: &[&str]) -> Child {
    tiebreak(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A process that `parent` started.
#[cfg(target_os = "linux")]
fn child_of(parent: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[test]
fn a_trainer_that_is_asked_to_stop_leaves_a_checkpoint_and_resumes_to_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    edit(&job, &[("steps = 8", "steps = 150"), ("\nevery = 2", "\nevery = 140")]);
    let key = path(folder.path(), "my key");
    assert_eq!(output(&["key", "new", &key, "--name", "trainer.example"]).0, 0);
    for (name, signal, ranks) in
        [("a run", "-INT", "1"), ("term", "-TERM", "1"), ("ranks", "-INT", "2"), ("rank", "-TERM", "2")]
    {
        let out = path(folder.path(), name);
        let args = ["train", job.to_str().unwrap(), "--out", &out, "--key", &key, "--ranks", ranks, "--json"];
        let child = started(&args);
        let id = child.id();
        #[cfg(target_os = "linux")]
        let target = || if name == "rank" { child_of(id) } else { Some(id) };
        #[cfg(not(target_os = "linux"))]
        let target = || Some(id);
        signalled_after(&out, 3, target, signal);
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let stdout = String::from_utf8(stdout).unwrap();
        assert_eq!(status.code(), Some(3), "{name}: {stdout}{}", String::from_utf8_lossy(&stderr));
        let stopped: Value = serde_json::from_str(&stdout).unwrap();
        let step = stopped["step"].as_u64().unwrap();
        assert!((3..140).contains(&step) && stopped["stopped"] == "asked", "{stopped}");
        assert_eq!(stopped["checkpoint_step"], step);
        assert!(Path::new(stopped["checkpoint"].as_str().unwrap()).exists());
        // The printed command continues the run, whatever blanks its paths have.
        let resume =
            stopped["resume"].as_str().unwrap().replacen("tiebreak", env!("CARGO_BIN_EXE_tiebreak"), 1);
        let resumed = Command::new("sh").args(["-c", &resume]).output().unwrap();
        assert_eq!(resumed.status.code(), Some(0), "{resume}: {}", String::from_utf8_lossy(&resumed.stderr));
        let trained = String::from_utf8(resumed.stdout).unwrap();
        assert!(trained.starts_with(&format!("trained {} steps", 150 - step)), "{trained}");
        same_as_without_interruption(&out, &key, &path(folder.path(), &format!("{name}-whole")));
    }
}

/// The time may end while files are read, before anything began, or between two steps, which counts as a request to stop.
#[test]
fn a_trainer_whose_time_is_up_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    edit(&job, &[("steps = 8", "steps = 90000"), ("\nevery = 2", "\nevery = 90000")]);
    let (job, out) = (job.to_str().unwrap(), path(folder.path(), "run"));
    assert_eq!(output(&["train", job, "--out", &out, "--max-time", "0"]).0, 3);
    let (code, _, stderr) = output(&["train", job, "--out", &out, "--max-memory", "1"]);
    assert!(code == 3 && stderr.contains("--max-memory"), "{stderr}");
    assert!(!Path::new(&out).exists());
    let mut before = 0;
    for (more, ranks) in [(&[job][..], "1"), (&["--resume"], "1"), (&["--resume"], "2")] {
        let args = [&["train", "--out", &out, "--max-time", "4", "--ranks", ranks, "--json"], more].concat();
        let (code, stdout, stderr) = output(&args);
        let stopped: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
        let step = stopped["step"].as_u64().unwrap();
        assert!(code == 3 && stopped["stopped"] == "limit" && step > before, "{stopped}");
        assert!(stopped["why"].as_str().unwrap().contains("--max-time was reached"), "{stopped}");
        assert_eq!(stopped["checkpoint_step"], step);
        assert!(Path::new(stopped["checkpoint"].as_str().unwrap()).exists());
        before = step;
    }
    // A head covers three steps, and no head covers the last ones yet.
    let last = format!("{0}..{0}", before - 3);
    let (code, stdout, stderr) = output(&["audit", &out, "--prefix", "--steps", &last, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

#[test]
fn asking_twice_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    // Steps of the reference that take longer than the time between the two signals.
    edit(
        &job,
        &[("context = 12", "context = 96"), ("layers = 1", "layers = 4"), ("width = 16", "width = 64")],
    );
    let out = path(folder.path(), "run");
    let mut child = started(&["train", job.to_str().unwrap(), "--out", &out, "--engine", "reference"]);
    let id = child.id();
    signalled_after(
        &out,
        0,
        || Path::new(&out).join("checkpoints/step-000000000.safetensors").exists().then_some(id),
        "-INT",
    );
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "it did not wait for the step's end");
    signalled_after(&out, 0, || Some(id), "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

//! Declarations: a witness says when a run's first head was there, keeps that over a kill, and never cosigns a second history.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::common::gpt_job;
use crate::{output, path, tiebreak};

/// A witness that serves at a port of its own; dropping it kills it without a word.
pub struct Witness {
    child: Child,
    pub address: String,
    pub said: Value,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub fn witness(key: &str, state: &str, more: &[&str]) -> Witness {
    let args = ["witness", "serve", "--key", key, "--state", state, "--listen", "127.0.0.1:0", "--json"];
    let mut child =
        tiebreak(&[&args[..], more].concat()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut text = String::new();
    let report: Value = loop {
        text += &lines.next().expect("the witness ended").unwrap();
        if let Ok(report) = serde_json::from_str(&text) {
            break report;
        }
    };
    Witness { child, address: report["address"].as_str().unwrap().to_string(), said: report }
}

/// Keys of a trainer and a witness, a run, and the witness's folder.
struct Files {
    _folder: tempfile::TempDir,
    run: String,
    trainer: String,
    witness: String,
    state: String,
}

fn files() -> Files {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (trainer, witness, run, state) = (at("trainer.key"), at("witness.key"), at("run"), at("state"));
    for key in [&trainer, &witness] {
        let name = Path::new(key).file_stem().unwrap().to_str().unwrap();
        assert_eq!(output(&["key", "new", key, "--name", &format!("{name}.example")]).0, 0);
    }
    let job = gpt_job(folder.path(), "step", "");
    let (code, _, stderr) =
        output(&["train", job.to_str().unwrap(), "--out", &run, "--key", &trainer, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    std::fs::create_dir(&state).unwrap();
    Files { _folder: folder, run, trainer, witness, state }
}

fn declare(files: &Files, address: &str, more: &[&str]) -> (i32, Value, String) {
    let key = format!("{}.pub", files.witness);
    let args = ["monitor", "declare", &files.run, "--witness", address, "--witness-key", &key, "--json"];
    let (code, stdout, stderr) = output(&[&args[..], more].concat());
    (code, serde_json::from_str(&stdout).unwrap_or_default(), stderr)
}

#[test]
fn a_declared_run_says_when_and_verifies_and_the_witness_remembers_over_a_kill() {
    let files = files();
    let trainer = format!("{}.pub", files.trainer);
    let served = ["--trainer-key", &trainer];
    let first = witness(&files.witness, &files.state, &served);
    let (code, declared, stderr) = declare(&files, &first.address, &[]);
    assert_eq!(
        (code, &declared["head_size"], &declared["was_there"]),
        (0, &1.into(), &false.into()),
        "{stderr}"
    );
    let again = declare(&files, "http://127.0.0.1:1", &[]);
    assert_eq!(
        (again.0, &again.1["time"], &again.1["was_there"]),
        (0, &declared["time"], &true.into()),
        "{}",
        again.2
    );
    assert_eq!(output(&["verify", &files.run, "--trainer-key", &trainer]).0, 0);
    drop(first);

    // A second witness over one folder is refused, and one that was killed knows what it saw: it wants a proof from there.
    let second = witness(&files.witness, &files.state, &served);
    let args =
        ["witness", "serve", "--key", &files.witness, "--state", &files.state, "--trainer-key", &trainer];
    let (code, _, stderr) = output(&[&args[..], &["--listen", "127.0.0.1:0"]].concat());
    assert!(code == 3 && stderr.contains("is used by another process"), "{code} {stderr}");
    let (code, declared, stderr) = declare(&files, &second.address, &["--head", "last"]);
    assert_eq!((code, &declared["was_there"]), (0, &false.into()), "{stderr}");
    assert!(declared["head_size"].as_u64() > Some(1), "{declared}");
    assert_eq!(output(&["verify", &files.run, "--trainer-key", &trainer]).0, 0);

    // The witness saw more records now: an older head gets no second cosignature.
    let head = format!("{}/heads/000000000001", files.run);
    let note = std::fs::read_to_string(&head).unwrap();
    let lines: Vec<&str> = note.lines().collect();
    std::fs::write(&head, format!("{}\n", lines[..lines.len() - 1].join("\n"))).unwrap();
    let (code, _, stderr) = declare(&files, &second.address, &[]);
    assert!(code == 3 && stderr.contains("--head last"), "{code} {stderr}");
}

#[test]
fn a_witness_that_does_not_know_the_trainer_or_is_another_one_declares_nothing() {
    let files = files();
    let other = format!("{}.pub", files.witness);
    let head = format!("{}/heads/000000000001", files.run);
    let before = std::fs::read(&head).unwrap();
    {
        let serves_others = witness(&files.witness, &files.state, &["--trainer-key", &other]);
        let (code, _, stderr) = declare(&files, &serves_others.address, &[]);
        assert!(code == 3 && stderr.contains("403"), "{code} {stderr}");
    }
    {
        let serves_another_log =
            witness(&files.witness, &files.state, &["--log", &format!("example.com/log={other}")]);
        let (code, _, stderr) = declare(&files, &serves_another_log.address, &[]);
        assert!(code == 3 && stderr.contains("404"), "{code} {stderr}");
    }
    // The witness cosigns, with another key than the command is told.
    let trainer = format!("{}.pub", files.trainer);
    let impostor = witness(&files.trainer, &files.state, &["--trainer-key", &trainer]);
    let (code, _, stderr) = declare(&files, &impostor.address, &[]);
    assert!(code == 3 && stderr.contains("no cosignature of witness.example"), "{code} {stderr}");
    assert_eq!(std::fs::read(&head).unwrap(), before);

    let missing = path(Path::new(&files.state), "missing");
    let args = ["witness", "serve", "--key", &files.witness, "--state", &missing, "--trainer-key", &trainer];
    let (code, _, stderr) = output(&args);
    assert!(code == 2 && stderr.contains("mkdir"), "{code} {stderr}");
}

#[test]
fn requests_of_strangers_get_the_status_of_the_specification() {
    use std::io::{Read, Write};
    let files = files();
    let trainer = format!("{}.pub", files.trainer);
    let served = witness(&files.witness, &files.state, &["--trainer-key", &trainer]);
    let address = served.address.strip_prefix("http://").unwrap();
    let note = std::fs::read_to_string(format!("{}/heads/000000000001", files.run)).unwrap();
    let ask = |body: &[u8]| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let head =
            format!("POST /add-checkpoint HTTP/1.1\r\nhost: w\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        (text.split(' ').nth(1).unwrap().parse::<u16>().unwrap(), text)
    };
    assert_eq!(ask(b"").0, 400);
    assert_eq!(ask(&[0xff; 100]).0, 400);
    assert_eq!(ask(format!("old 2\n\n{note}").as_bytes()).0, 400);
    assert_eq!(ask(format!("old 0\n{}\n\n{note}", "A".repeat(43) + "=").as_bytes()).0, 422);
    // The answer comes before the end of the body, so the connection may end while the body is sent, and the answer be lost.
    let too_long = || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let head = "POST /add-checkpoint HTTP/1.1\r\nhost: w\r\ncontent-length: 1048576\r\n\r\n";
        let _ = stream.write_all(&[head.as_bytes(), &[b'a'; 1 << 20]].concat());
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text.split(' ').nth(1).map(|status| status.parse::<u16>().unwrap())
    };
    assert_eq!((0..20).find_map(|_| too_long()), Some(413));
    let (status, text) = ask(format!("old 0\n\n{note}").as_bytes());
    assert!(status == 200 && text.contains("\u{2014} witness.example "), "{text}");
    let (status, text) = ask(format!("old 0\n\n{note}").as_bytes());
    assert!(status == 409 && text.contains("text/x.tlog.size") && text.ends_with("\r\n\r\n1\n"), "{text}");
}

/// A trainer with a known key cannot fill a witness's disk with runs, also not over a restart; its old logs go on.
#[test]
fn a_key_has_only_so_many_logs() {
    let files = files();
    let trainer = format!("{}.pub", files.trainer);
    let served = ["--trainer-key", trainer.as_str(), "--logs-at-most", "2"];
    let second = format!("{}-second", files.run);
    let third = format!("{}-third", files.run);
    let job = format!("{}/job.toml", Path::new(&files.run).parent().unwrap().display());
    for run in [&second, &third] {
        let (code, _, stderr) =
            output(&["train", &job, "--out", run, "--key", &files.trainer, "--engine", "cpu"]);
        assert_eq!(code, 0, "{stderr}");
    }
    let key = format!("{}.pub", files.witness);
    let ask = |run: &str, address: &str, head: &str| {
        let args = ["monitor", "declare", run, "--witness", address, "--witness-key", &key, "--head", head];
        let (code, _, stderr) = output(&args);
        (code, stderr)
    };
    {
        let first = witness(&files.witness, &files.state, &served);
        assert_eq!(ask(&files.run, &first.address, "first").0, 0);
        assert_eq!(ask(&second, &first.address, "first").0, 0);
        let (code, stderr) = ask(&third, &first.address, "first");
        assert!(code == 3 && stderr.contains("507") && stderr.contains("keeps 2 logs of a key"), "{stderr}");
    }
    let again = witness(&files.witness, &files.state, &served);
    assert_eq!(ask(&third, &again.address, "first").0, 3);
    assert_eq!(ask(&second, &again.address, "last").0, 0);
    let logs = std::fs::read_dir(&files.state).unwrap();
    let logs = logs.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("log-"));
    assert_eq!(logs.count(), 2);
}

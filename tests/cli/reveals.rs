//! `tiebreak monitor reveals`: the list is of what is in the files, and a guess confirms what it says that a guess confirms.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use tiebreak_job::data::batch_digest;
use tiebreak_monitor::register::file::to_text;
use tiebreak_record::commit::digest::Digest;

use crate::common::edit::edit;
use crate::common::{gpt_job, key, trained};
use crate::{chips, output, path};

/// The kinds of things that each file reveals, with their visibility.
type Told = BTreeMap<String, BTreeMap<String, String>>;

#[track_caller]
fn reveals(target: &str) -> (Told, Value) {
    let (code, stdout, stderr) = output(&["monitor", "reveals", target, "--json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let json: Value = serde_json::from_str(&stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let told = json["files"].as_array().unwrap().iter().map(|file| {
        let all = file["reveals"].as_array().unwrap().iter();
        let kinds = all.map(|one| (text(&one["kind"]), text(&one["visibility"])));
        (text(&file["file"]), kinds.collect())
    });
    (told.collect(), json)
}

/// A reveal of a file.
#[track_caller]
fn visible(told: &Told, file: &str, kind: &str) -> String {
    told.get(file)
        .and_then(|kinds| kinds.get(kind))
        .unwrap_or_else(|| panic!("{file} {kind}: {told:#?}"))
        .clone()
}

#[test]
fn a_runs_list_is_of_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    edit(&job, &[("path = \"text.txt\"", "path = \"text.txt\"\ncopy = false")]);
    let run = trained(&job, &folder.path().join("run"), None);
    fs::write(run.layout.root.join("metrics.jsonl"), "").unwrap();
    let (told, json) = reveals(&path(folder.path(), "run"));
    assert_eq!(json["scheme"], 0);
    for (file, kind, visibility) in [
        ("run.json", "data_lengths", "clear"),
        ("run.json", "data_digests", "by_guess"),
        ("run.json", "initial_state", "by_guess"),
        ("run.json", "trainer", "clear"),
        ("job.toml", "settings", "clear"),
        ("program.bin", "architecture", "clear"),
        ("transcript", "curve", "clear"),
        ("transcript", "batches", "by_guess"),
        ("transcript", "states", "not_guessable"),
        ("transcript", "operators", "by_guess"),
        ("gradients", "gradients", "by_guess"),
        ("heads/", "progress", "clear"),
        ("heads/", "signers", "clear"),
        ("traces/", "operators", "by_guess"),
        ("checkpoints/", "checkpoints", "clear"),
        ("model.safetensors", "model", "clear"),
        ("data/data-0.tree", "data_pieces", "by_guess"),
        ("metrics.jsonl", "metrics", "clear"),
    ] {
        assert_eq!(visible(&told, file, kind), visibility, "{file} {kind}");
    }
    assert!(!told.contains_key("data/data-0.bin") && !told.contains_key("logs/"), "{told:#?}");
    let named = json.to_string();
    for said in ["text.txt", "trainer.example", "8 steps", "sum of 2 updates", "4000 bytes together"] {
        assert!(named.contains(said), "{said}: {named}");
    }
    // A guess of the data confirms itself, by run.json and by each record.
    let guess = fs::read(folder.path().join("text.txt")).unwrap();
    assert_eq!(run.file.data[0].root, Digest(*blake3::hash(&guess).as_bytes()));
    let data = tiebreak_run::run::dir::Run::open(&run.layout.root).unwrap().with_data([folder.path().into()]);
    let batch = data.batch(&mut data.dataset().unwrap(), 3).unwrap();
    let transcript = tiebreak_run::run::transcript::read(&run.layout.transcript()).unwrap().0;
    let tiebreak_record::commit::record::Record::Step { step, .. } = &transcript.records[3] else { panic!() };
    assert_eq!(step.batch, batch_digest(data.program(), &batch));

    // Another run holds its data, promises less, and has a file too many.
    let coarse = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(coarse.path(), "step", ""), &coarse.path().join("run"), None);
    fs::write(run.layout.root.join("notes.txt"), "secret").unwrap();
    let (told, _) = reveals(&path(coarse.path(), "run"));
    assert_eq!(visible(&told, "data/data-0.bin", "data"), "clear");
    assert_eq!(visible(&told, "notes.txt", "unknown"), "clear");
    assert!(!told.contains_key("gradients") && !told.contains_key("traces/"), "{told:#?}");
    assert!(!told["transcript"].contains_key("operators"), "{told:#?}");
    // The logged profile publishes roundings.
    let logged = tempfile::tempdir().unwrap();
    trained(&gpt_job(logged.path(), "step", "[rounding]"), &logged.path().join("run"), None);
    let (told, _) = reveals(&path(logged.path(), "run"));
    assert_eq!(visible(&told, "logs/", "roundings"), "clear");
}

#[test]
fn a_run_that_hides_tells_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    edit(
        &job,
        &[
            ("path = \"text.txt\"", "path = \"text.txt\"\ncopy = false"),
            ("head_every = 3", "head_every = 3\nscheme = 1"),
        ],
    );
    let run = path(folder.path(), "run");
    let (code, stdout, stderr) = output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let (told, json) = reveals(&run);
    assert_eq!(json["scheme"], 1);
    for (file, kind, visibility) in [
        ("run.json", "data_digests", "hidden"),
        ("run.json", "initial_state", "hidden"),
        ("job.toml", "settings", "clear"),
        ("transcript", "curve", "hidden"),
        ("transcript", "batches", "hidden"),
        ("transcript", "states", "hidden"),
        ("gradients", "gradients", "hidden"),
        ("data/data-0.tree", "data_pieces", "hidden"),
        ("data/data-0.tree", "hidden_length", "clear"),
        ("checkpoints/", "checkpoints", "clear"),
        ("metrics.jsonl", "metrics", "clear"),
    ] {
        assert_eq!(visible(&told, file, kind), visibility, "{file} {kind}");
    }
    assert!(!told["run.json"].contains_key("data_lengths"));
    // What the list says of the length.
    let published: Value =
        serde_json::from_slice(&fs::read(Path::new(&run).join("run.json")).unwrap()).unwrap();
    assert_eq!(published["data"][0]["bytes"], 0);
    // A pack has no salt key, and `pack` says so.
    let pack = path(folder.path(), "pack");
    let identity = path(folder.path(), "identity");
    assert_eq!(output(&["monitor", "box", "--new-identity", &identity]).0, 0);
    let to = format!("{identity}.pub");
    let (code, _, stderr) = output(&["monitor", "pack", &run, "--to", &to, "--out", &pack]);
    assert!(code == 2 && stderr.contains("the run's commitments hide"), "{code}: {stderr}");
}

#[test]
fn other_files_tell_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let done = |args: &[&str], wanted: i32| {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
    };
    let run = trained(&gpt_job(folder.path(), "operator", ""), Path::new(&at("run")), Some("operator@5"));
    done(&["key", "new", &at("key"), "--name", "box.example"], 0);
    let (verdict, report, statement) = (at("verdict.json"), at("report.json"), at("statement.json"));
    done(&["audit", &at("run"), "--verdict", &verdict, "--report", &report, "--key", &at("key")], 1);
    done(&["monitor", "statement", "--report", &report, "--key", &at("key"), "--out", &statement], 0);
    done(&["monitor", "box", "--new-identity", &at("identity")], 0);
    let pack = at("run.pack");
    done(&["monitor", "pack", &at("run"), "--to", &at("identity.pub"), "--out", &pack], 0);
    let log = at("chip.log");
    fs::write(&log, chips::bytes(&chips::honest())).unwrap();
    for (file, kind, visibility) in [
        (&verdict, "claim", "clear"),
        (&verdict, "tensor_parts", "clear"),
        (&verdict, "settings", "clear"),
        (&report, "result", "clear"),
        (&report, "data_digests", "by_guess"),
        (&statement, "result", "clear"),
        (&log, "chips", "clear"),
        (&log, "chip_times", "clear"),
        (&log, "snapshots", "not_guessable"),
        (&pack, "sealed", "hidden"),
        (&pack, "sealed_length", "clear"),
    ] {
        assert_eq!(visible(&reveals(file).0, file, kind), visibility, "{kind}");
    }
    let (_, json) = reveals(&pack);
    let sealed = json["files"][0]["reveals"].as_array().unwrap();
    assert!(sealed.iter().any(|one| one["recipients"] == serde_json::json!(["X25519"])), "{json}");
    // A verdict about a batch carries samples; the text says how many bytes.
    let other = tempfile::tempdir().unwrap();
    trained(&gpt_job(other.path(), "step", ""), &other.path().join("run"), Some("reorder@5"));
    let batch = at("batch.json");
    done(&["audit", &path(other.path(), "run"), "--verdict", &batch], 1);
    let (_, json) = reveals(&batch);
    let claim =
        json["files"][0]["reveals"].as_array().unwrap().iter().find(|one| one["kind"] == "claim").unwrap();
    assert!(claim["data_bytes"].as_u64().unwrap() > 0, "{json}");
    // No other file is taken for one of these.
    for (name, bytes, wanted) in
        [("text", &b"hello"[..], 2), ("empty", b"", 2), ("json", b"{\"a\": 1}", 4), ("half", b"{", 4)]
    {
        fs::write(at(name), bytes).unwrap();
        done(&["monitor", "reveals", &at(name)], wanted);
    }
    done(&["monitor", "reveals", &at("nothing")], 2);
    done(&["monitor", "reveals", run.layout.root.to_str().unwrap(), "-q"], 0);
}

/// Files that trainers, users and inspectors hand to others beside a run.
#[test]
fn files_of_an_exchange_are_told_by_their_kind() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let [register, heads, seen, log, draw] = ["register", "heads", "seen", "log", "draw.json"].map(at);
    fs::write(&register, to_text(&chips::register(), &key())).unwrap();
    fs::write(&heads, chips::closed(&chips::honest()).to_text()).unwrap();
    fs::write(&log, chips::bytes(&chips::honest())).unwrap();
    let done = |args: &[&str]| {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
    };
    done(&[
        "monitor",
        "inspect",
        &log,
        "--register",
        &register,
        "--until",
        "2025-04-01",
        "--seen-out",
        &seen,
    ]);
    let asked = ["--chips", "2", "--date", "2025-03-01", "--beacon", "000102030405060708090a0b0c0d0e0f"];
    let inputs =
        ["monitor", "draw", "--register", &register, "--closed", &heads, "--round", "7", "--out", &draw];
    done(&[&inputs[..], &asked].concat());
    let job = gpt_job(folder.path(), "step", "");
    let [nonce, promises, run] = ["nonce", "promises", "run"].map(at);
    fs::write(at("me.key"), key().to_text()).unwrap();
    done(&["monitor", "nonce", &nonce]);
    let promised = ["monitor", "promise", "add", &promises, job.to_str().unwrap(), "--nonce", &nonce];
    done(&[&promised[..], &["--round", "drand 7", "--key", &at("me.key")]].concat());
    trained(&job, Path::new(&run), None);
    let [receipt, salted, opening, predictions] = ["receipt", "salted", "opening", "predictions"].map(at);
    let ask = ["generate", &run, "--prompt", "ab", "--length", "3", "--receipt"];
    done(&[&ask[..], &[&receipt]].concat());
    done(&[&ask[..], &[&salted, "--opening", &opening]].concat());
    done(&["predict", &run, "--samples", "0..2", "--receipt", &predictions]);
    for (file, kind, visibility) in [
        (&register, "register", "clear"),
        (&heads, "chips", "clear"),
        (&heads, "log_links", "not_guessable"),
        (&seen, "log_links", "not_guessable"),
        (&draw, "drawn", "clear"),
        (&promises, "promises", "clear"),
        (&promises, "data_digests", "by_guess"),
        (&receipt, "answer", "clear"),
        (&receipt, "which_model", "by_guess"),
        (&opening, "answer", "clear"),
        (&salted, "salted_receipt", "hidden"),
        (&predictions, "predicted_samples", "by_guess"),
    ] {
        let (told, json) = reveals(file);
        assert_eq!(visible(&told, file, kind), visibility, "{json}");
    }
    let (told, _) = reveals(&salted);
    assert!(!told[&salted].contains_key("answer"), "{told:?}");
    // A file that was edited is malformed, and says so.
    let text = fs::read_to_string(&register).unwrap().replace("Alice", "Alica");
    fs::write(&register, text).unwrap();
    assert_eq!(output(&["monitor", "reveals", &register]).0, 4);
}

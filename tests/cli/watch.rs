//! A run that is audited while it grows.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::Run;

use crate::common::served::{Manner, Served};
use crate::common::{files, gpt_job, sign, sign_again, step_mut, trained};
use crate::{output, path, tiebreak};

/// The files of a run whose latest head is over `size` records, heads last, as a trainer writes them.
fn shown(whole: &Run, size: u64) -> Vec<(String, Vec<u8>)> {
    let last = u64::from(whole.job().steps) + 2;
    let number = |name: &str, folder: &str| -> Option<u64> {
        let digits = name.strip_prefix(folder)?.trim_start_matches("step-");
        digits.split('.').next()?.parse().ok()
    };
    let is_shown = |name: &str| {
        let of_steps = ["checkpoints/", "traces/", "logs/"];
        (name != "model.safetensors" || size == last)
            && number(name, "heads/").is_none_or(|head| head <= size)
            && of_steps.iter().all(|folder| number(name, folder).is_none_or(|step| step < size))
    };
    let found = files(&whole.layout.root).into_iter();
    let mut found: Vec<_> =
        found.map(|(file, bytes)| (file.to_str().unwrap().replace('\\', "/"), bytes)).collect();
    found.retain(|(name, _)| is_shown(name));
    found.sort_by_key(|(name, _)| name.starts_with("heads/"));
    found
}

/// Writes what a trainer has published by then into the folder `out`, which may hold an earlier beginning.
fn publish(whole: &Run, size: u64, out: &Path) {
    for (name, bytes) in shown(whole, size) {
        let (path, partial) = (out.join(name), out.with_extension("partial"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&partial, bytes).unwrap();
        fs::rename(partial, path).unwrap();
    }
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Waits until the report in this file names replayed steps, and has these.
fn replayed(report: &str, steps: &Value, child: &mut Child) {
    let start = Instant::now();
    loop {
        if fs::read(report)
            .is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap()["replayed"] == *steps)
        {
            return;
        }
        assert_eq!(child.try_wait().unwrap(), None, "the watch ended before it replayed {steps}");
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{steps} are not replayed in time");
        }
        sleep(Duration::from_millis(50));
    }
}

/// A report without what differs between two audits of one auditor that find the same.
fn timeless(path: &str) -> Value {
    let mut report = read(path);
    for field in ["seconds", "signature"] {
        report.as_object_mut().unwrap().remove(field);
    }
    report
}

/// A watch that begins before the run is there ends with the report that an audit of the whole run writes, be the run exact or logged.
#[test]
fn a_watch_of_a_growing_run_ends_with_the_report_of_an_audit() {
    for rounding in ["", "[rounding]\n"] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| path(folder.path(), name);
        let granularity = if rounding.is_empty() { "microbatch" } else { "operator" };
        let whole = trained(&gpt_job(folder.path(), granularity, rounding), Path::new(&at("whole")), None);
        let (run, report, key, trainer) = (at("run"), at("watch.json"), at("auditor"), at("trainer.pub"));
        fs::write(&trainer, crate::common::key().public().to_text()).unwrap();
        assert_eq!(output(&["key", "new", &key, "--name", "auditor.example"]).0, 0);
        let base = ["--trainer-key", &trainer, "--engine", "cpu", "--key", &key, "--report"];
        let args = [&["watch", &run, "--every", "1", "--idle", "60"][..], &base, &[&report]].concat();
        let mut watch = tiebreak(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        sleep(Duration::from_millis(300));
        publish(&whole, 1, Path::new(&run));
        publish(&whole, 4, Path::new(&run));
        replayed(&report, &json!([[1, 2]]), &mut watch);
        publish(&whole, 7, Path::new(&run));
        replayed(&report, &json!([[1, 2], [3, 4], [5, 6]]), &mut watch);
        let head = whole.layout.head(7).to_str().unwrap().to_string();
        assert_eq!(fs::read(format!("{report}.head")).unwrap(), fs::read(&head).unwrap());
        publish(&whole, 10, Path::new(&run));
        let ended = watch.wait_with_output().unwrap();
        let [out, err] = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(ended.status.success() && out.starts_with("MATCHES: run "), "{out}{err}");
        assert!(
            err.contains("waits: ") && err.contains("head over 7 records: steps 1..6 match, 6 of 8 "),
            "{err}"
        );
        let audit = at("audit.json");
        assert_eq!(output(&[&["audit", &run, "--head", &head][..], &base, &[&audit]].concat()).0, 0);
        assert_eq!(timeless(&report), timeless(&audit));
    }
}

/// A cheat is convicted by the head that covers its segment, long before the run ends.
#[test]
fn a_cheat_is_convicted_while_the_run_grows() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "operator", "");
    let whole = trained(&job, Path::new(&at("whole")), Some("operator@4"));
    let (run, verdict) = (at("run"), at("verdict.json"));
    publish(&whole, 7, Path::new(&run));
    let (code, out, err) = output(&["watch", &run, "--engine", "cpu", "--verdict", &verdict, "--idle", "1"]);
    assert!(code == 1 && out.starts_with("DIVERGES at step 4"), "{code} {out}{err}");
    assert_eq!(output(&["verdict", "check", &verdict]).0, 1);
}

/// A watch that was interrupted replays no segment again.
#[test]
fn a_watch_goes_on_from_its_own_report() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let whole = trained(&gpt_job(folder.path(), "operator", ""), Path::new(&at("whole")), None);
    let (run, report, key) = (at("run"), at("watch.json"), at("auditor"));
    assert_eq!(output(&["key", "new", &key, "--name", "auditor.example"]).0, 0);
    publish(&whole, 7, Path::new(&run));
    let base = ["--engine", "cpu", "--key", &key, "--report", &report, "--idle", "1", "--every", "1"];
    let (code, out, err) = output(&[&["watch", &run][..], &base].concat());
    assert!(code == 3 && err.contains("--idle was reached before the run's end"), "{code} {err}");
    assert!(out.contains("not checked: what comes behind this head: --idle was reached"), "{out}");
    let mut served = shown(&whole, 10);
    let index = served.iter().map(|(name, bytes)| format!("{} {name}\n", bytes.len())).collect::<String>();
    served.push(("index".into(), index.into_bytes()));
    let server = Served::new(shown(&whole, 10), Manner::default());
    let (code, out, err) = output(&[&["watch", &server.address, "--only-part"][..], &base].concat());
    assert!(code == 0 && out.starts_with("MATCHES: 8 of 8 steps"), "{code} {out}{err}");
    assert!(err.contains("goes on: steps 1..6 match, as "), "{err}");
    let sent = server.sent();
    let traces: Vec<&String> = sent.keys().filter(|name| name.starts_with("traces/")).collect();
    assert_eq!(traces, ["traces/step-000000007", "traces/step-000000008"]);
    publish(&whole, 10, Path::new(&run));
    // Reports that say nothing about this watch.
    let (other, part) = (at("other"), at("part.json"));
    assert_eq!(output(&["key", "new", &other, "--name", "auditor.example"]).0, 0);
    let args = ["audit", &run, "--steps", "1..4", "--engine", "cpu", "--key", &key, "--report", &part];
    assert_eq!(output(&args).0, 0);
    for (args, why) in [
        (vec!["--key", &other, "--report", &report], "signed it, and --key is "),
        (vec!["--key", &key, "--report", &part], "it is of some segments, and not of all"),
        (vec!["--key", &key, "--report", &report, "--engine", "reference"], "its engine was cpu"),
    ] {
        let (code, _, err) = output(&[&["watch", &run, "--idle", "1"][..], &args].concat());
        assert!(
            code == 2 && err.contains(why) && err.contains("help: name another --report"),
            "{code} {err}"
        );
    }
}

/// The head that a watch saw convicts a trainer who shows another history later, and a shorter one decides nothing.
#[test]
fn a_history_that_changes_under_a_watch_convicts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "microbatch", "");
    let [one, other] = ["one", "other"].map(|name| trained(&job, Path::new(&at(name)), None));
    sign_again(&other, |records| step_mut(records, 3).loss = 0x3f80_0000);
    let (run, report, verdict) = (at("run"), at("watch.json"), at("verdict.json"));
    let watch = |run: &str| {
        let args = ["--engine", "cpu", "--report", &report, "--verdict", &verdict, "--idle", "1"];
        output(&[&["watch", run][..], &args].concat())
    };
    publish(&one, 7, Path::new(&run));
    assert_eq!(watch(&run).0, 3);
    let shorter = at("shorter");
    publish(&one, 4, Path::new(&shorter));
    let (code, _, err) = watch(&shorter);
    assert!(code == 3 && err.contains("waits: the trainer signed a head over 7 records"), "{code} {err}");
    let (code, out, err) = watch(other.layout.root.to_str().unwrap());
    assert!(code == 1 && out.contains("without a replay"), "{code} {out}{err}");
    let (code, out, _) = output(&["verdict", "check", &verdict]);
    assert!(code == 1 && out.starts_with("fork verdict, "), "{out}");
}

/// Errors that no time mends end a watch at once; others end it when its patience does.
#[test]
fn a_watch_waits_only_for_what_time_mends() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let whole = trained(&gpt_job(folder.path(), "microbatch", ""), Path::new(&at("whole")), None);
    let key = at("other");
    assert_eq!(output(&["key", "new", &key, "--name", "other.example"]).0, 0);
    let (run, public) = (at("run"), format!("{key}.pub"));
    let (code, _, err) = output(&["watch", &run, "--idle", "1"]);
    assert!(
        code == 3 && err.contains("is not a run") && err.contains("--idle was reached before"),
        "{code} {err}"
    );
    publish(&whole, 7, Path::new(&run));
    let (code, _, err) = output(&["watch", &run, "--idle", "1", "--trainer-key", &public]);
    assert!(code == 4 && err.contains("the run names the trainer key"), "{code} {err}");
    let (code, _, err) = output(&["watch", &run, "--idle", "1", "--max-memory", "1"]);
    assert!(code == 3 && err.contains("the limit is"), "{code} {err}");
    // Files with the names of later heads are no heads, so that they neither end a watch nor keep it going.
    for size in ["000000000010", "000000000099"] {
        fs::write(Path::new(&run).join("heads").join(size), "tiebreak").unwrap();
        let (code, _, err) = output(&["watch", &run, "--engine", "cpu", "--idle", "1", "--max-time", "60"]);
        assert!(code == 3 && err.contains("--idle was reached before the run's end"), "{code} {err}");
    }
    // The last head is there, and the model is still copied: half of it, then nothing.
    publish(&whole, 10, Path::new(&run));
    let model = Path::new(&run).join("model.safetensors");
    let bytes = fs::read(&model).unwrap();
    fs::write(&model, &bytes[..bytes.len() / 2]).unwrap();
    let watched = ["watch", &run, "--engine", "cpu", "--every", "1"];
    let (code, out, err) = output(&[&watched[..], &["--idle", "2"]].concat());
    assert!(
        code == 3 && out.starts_with("INCOMPLETE: the released model cannot be checked"),
        "{code} {out}{err}"
    );
    assert!(err.contains("--idle was reached") && err.matches("steps 1..8 match").count() == 1, "{out}{err}");
    let mut child = tiebreak(&[&watched[..], &["--idle", "60"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("waits: the run has ended")));
    fs::write(&model, bytes).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    fs::remove_file(model).unwrap();
    let (code, _, err) = output(&["watch", &run, "--idle", "1"]);
    assert!(code == 3 && err.contains("its released model is not there yet"), "{code} {err}");
    let (code, out, err) = output(&["watch", &run, "--only-part", "--max-time", "100"]);
    assert!(code == 0 && out.starts_with("MATCHES: 8 of 8 steps"), "{code} {out}{err}");
}

/// A head convicts a trainer who shows another history later, also if the run that it belongs to could not be audited.
#[test]
fn a_head_that_was_seen_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "microbatch", "");
    let [one, other] = ["one", "other"].map(|name| trained(&job, Path::new(&at(name)), None));
    sign_again(&other, |records| step_mut(records, 3).loss = 0x3f80_0000);
    let (run, report, verdict, key) = (at("run"), at("watch.json"), at("verdict.json"), at("auditor"));
    assert_eq!(output(&["key", "new", &key, "--name", "auditor.example"]).0, 0);
    let base = ["--engine", "cpu", "--report", &report, "--verdict", &verdict, "--every", "1"];
    publish(&other, 10, Path::new(&run));
    fs::remove_file(Path::new(&run).join("model.safetensors")).unwrap();
    let (code, _, err) = output(&[&["watch", &run, "--idle", "1"][..], &base].concat());
    assert!(code == 3 && err.contains("its released model is not there yet"), "{code} {err}");
    let (code, out, err) = output(&[&["watch", &at("one"), "--idle", "1"][..], &base].concat());
    assert!(code == 1 && out.contains("without a replay"), "{code} {out}{err}");

    // Steps that a report has count for its history alone, also behind a look that failed, and without the head beside it.
    let (grows, report) = (at("grows"), at("signed.json"));
    let base = ["--engine", "cpu", "--report", &report, "--verdict", &verdict, "--key", &key];
    publish(&one, 7, Path::new(&grows));
    assert_eq!(output(&[&["watch", &grows, "--idle", "1"][..], &base].concat()).0, 3);
    publish(&one, 10, Path::new(&grows));
    for step in [6, 8] {
        fs::write(Path::new(&grows).join(format!("checkpoints/step-{step:09}.safetensors")), "none").unwrap();
    }
    fs::remove_file(Path::new(&grows).join("model.safetensors")).unwrap();
    let args = [&["watch", &grows, "--every", "1", "--idle", "30"][..], &base].concat();
    let watch = tiebreak(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_secs(3));
    fs::remove_file(format!("{report}.head")).unwrap();
    fs::rename(&grows, at("before")).unwrap();
    fs::rename(other.layout.root.clone(), &grows).unwrap();
    let ended = watch.wait_with_output().unwrap();
    let [out, err] = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(ended.status.code() == Some(1) && out.contains("without a replay"), "{out}{err}");
}

/// A signed head that no audit has confirmed yet is held to what comes later, behind a restart and beside a confirmed one, and also
/// if it is over as many records as that one.
#[test]
fn a_second_head_beside_a_confirmed_one_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "microbatch", "");
    let [one, other] = ["one", "other"].map(|name| trained(&job, Path::new(&at(name)), None));
    for size in [4, 7] {
        sign(&other, size, Digest([5; 32]));
    }
    let note = |whole: &Run, size: u64| fs::read(whole.layout.head(size)).unwrap();
    let head_of = |run: &str, size: u64| format!("{run}/heads/{size:012}");
    let (run, report, verdict, key) = (at("run"), at("watch.json"), at("verdict.json"), at("auditor"));
    assert_eq!(output(&["key", "new", &key, "--name", "auditor.example"]).0, 0);
    let base = ["--engine", "cpu", "--report", &report, "--verdict", &verdict, "--key", &key, "--every", "1"];
    let restarted = |run: &str| output(&[&["watch", run, "--idle", "1"][..], &base].concat());
    publish(&one, 4, Path::new(&run));
    assert_eq!(restarted(&run).0, 3);
    // The other history's head comes without its records, and the watch ends before they do.
    fs::write(head_of(&run, 7), note(&other, 7)).unwrap();
    let (code, _, err) = restarted(&run);
    assert!(code == 3 && err.contains("waits: "), "{code} {err}");
    assert_eq!(fs::read(format!("{report}.head")).unwrap(), note(&one, 4));
    assert_eq!(fs::read(format!("{report}.new-head")).unwrap(), note(&other, 7));
    let honest = at("honest");
    publish(&one, 10, Path::new(&honest));
    let (code, out, err) = restarted(&honest);
    assert!(code == 1 && out.contains("without a replay"), "{code} {out}{err}");
    let (code, out, _) = output(&["verdict", "check", &verdict]);
    assert!(code == 1 && out.starts_with("fork verdict, "), "{out}");

    // Heads over equally many records, in one watch, which another run of the trainer does not end.
    let (grows, report, verdict) = (at("grows"), at("again.json"), at("again.verdict"));
    let base = ["--engine", "cpu", "--report", &report, "--verdict", &verdict, "--key", &key, "--every", "1"];
    publish(&one, 4, Path::new(&grows));
    let args = [&["watch", &grows, "--idle", "30"][..], &base].concat();
    let mut watch = tiebreak(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    replayed(&report, &json!([[1, 2]]), &mut watch);
    let stranger = trained(&gpt_job(folder.path(), "operator", ""), Path::new(&at("stranger")), None);
    fs::rename(&grows, at("away")).unwrap();
    fs::rename(stranger.layout.root, &grows).unwrap();
    sleep(Duration::from_secs(2));
    fs::rename(&grows, at("stranger")).unwrap();
    fs::rename(at("away"), &grows).unwrap();
    fs::write(head_of(&grows, 4), note(&other, 4)).unwrap();
    let new = format!("{report}.new-head");
    let start = Instant::now();
    while !Path::new(&new).exists() && start.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(50));
    }
    publish(&one, 10, Path::new(&grows));
    let ended = watch.wait_with_output().unwrap();
    let [out, err] = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(ended.status.code() == Some(1) && out.contains("without a replay"), "{out}{err}");
    assert!(
        err.contains("another head over 4 records") && err.contains(", and this watch is of run "),
        "{err}"
    );
}

/// A checkpoint that is damaged is passed over, and one that is lost is replaced by an earlier one.
#[test]
fn a_watch_passes_over_damaged_and_lost_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let whole = trained(&gpt_job(folder.path(), "operator", ""), Path::new(&at("whole")), None);
    let (run, report, key) = (at("run"), at("watch.json"), at("auditor"));
    assert_eq!(output(&["key", "new", &key, "--name", "auditor.example"]).0, 0);
    let base = ["--engine", "cpu", "--key", &key, "--report", &report, "--idle", "1", "--every", "1"];
    let checkpoint = |step: u32| Path::new(&run).join(format!("checkpoints/step-{step:09}.safetensors"));
    publish(&whole, 7, Path::new(&run));
    fs::write(checkpoint(2), [&fs::read(checkpoint(2)).unwrap()[..], b"x"].concat()).unwrap();
    let (code, out, err) = output(&[&["watch", &run][..], &base].concat());
    assert!(code == 3 && err.contains("steps 1..6 match"), "{code} {out}{err}");
    assert_eq!(read(&report)["replayed"], json!([[1, 4], [5, 6]]), "{out}{err}");
    publish(&whole, 10, Path::new(&run));
    fs::remove_file(checkpoint(6)).unwrap();
    let (code, out, err) = output(&[&["watch", &run][..], &base].concat());
    assert!(code == 0 && out.starts_with("MATCHES: "), "{code} {out}{err}");
    // The seed gives the first state, if no checkpoint is left.
    let (gone, report) = (at("gone"), at("gone.json"));
    let base = ["--engine", "cpu", "--key", &key, "--report", &report, "--idle", "1"];
    publish(&whole, 4, Path::new(&gone));
    assert_eq!(output(&[&["watch", &gone][..], &base].concat()).0, 3);
    publish(&whole, 10, Path::new(&gone));
    fs::remove_dir_all(Path::new(&gone).join("checkpoints")).unwrap();
    let (code, out, err) = output(&[&["watch", &gone][..], &base].concat());
    assert!(code == 0 && out.starts_with("MATCHES: "), "{code} {out}{err}");
}

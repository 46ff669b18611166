//! A chip's agent beside a training, as two processes: snapshots, kills of either, and refusals.

#![cfg(unix)]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tiebreak_monitor::chip::chain::Chain;
use tiebreak_monitor::chip::times::{Poisson, Times};
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::{Event, Serial, SignedRecord};
use tiebreak_monitor::snapshot::shard_map::{ShardMap, Slice};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{checkpoint, names, transcript};

use crate::common::edit::edit;
use crate::common::gpt_job;
use crate::{output, path, same_as_without_interruption, tiebreak};

/// A day's most snapshots: one in 86 milliseconds, on average.
const FAST: &str = "1000000";
const LIMIT: Duration = Duration::from_secs(120);

/// Waits until something is there.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An agent in a folder, which is killed when this is dropped.
struct Agent {
    child: Child,
    said: String,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn agent_args(folder: &Path, more: &[&str]) -> Vec<String> {
    let at = |name: &str| path(folder, name);
    let all = [
        "monitor",
        "agent",
        "--socket",
        &at("chip.sock"),
        "--log",
        &at("chip.log"),
        "--key",
        &at("chip key"),
        "--serial",
        "chip-1",
        "--json",
    ];
    all.iter().chain(more).map(|word| word.to_string()).collect()
}

impl Agent {
    /// Starts an agent and waits until it listens.
    fn start(folder: &Path, more: &[&str]) -> Agent {
        let said = path(folder, "said");
        let args = agent_args(folder, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let child =
            tiebreak(&args).stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        let agent = Agent { child, said };
        until("no agent listens", || agent.said().first().map(|said| assert_eq!(said["event"], "listening")));
        agent
    }

    /// The lines that the agent has said so far.
    fn said(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.said).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until so many records with this event are said.
    fn until_said(&self, event: &str, count: usize) {
        let said = || self.said().iter().filter(|said| said["event"] == event).count();
        until(event, || (said() >= count).then_some(()));
    }

    /// Stops the agent as a user does; every line that it said is a record of the log.
    fn stop(mut self, folder: &Path) -> Vec<SignedRecord> {
        signal(&self.child, "-TERM");
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
        assert!(!folder.join("chip.sock").exists());
        let records = log(folder);
        for said in &self.said()[1..] {
            let signed = &records[said["record"].as_u64().unwrap() as usize];
            assert_eq!(said["event"], signed.record.event.name());
            assert_eq!(said["time"], signed.record.time);
            if let Event::Snapshot { step, digest, .. } = signed.record.event {
                assert_eq!((&said["step"], &said["digest"]), (&step.into(), &digest.to_string().into()));
            }
        }
        records
    }
}

fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// The log, every rule of which is checked.
fn log(folder: &Path) -> Vec<SignedRecord> {
    let log = ChipLog::read(&fs::read(folder.join("chip.log")).unwrap()).unwrap();
    assert_eq!(log.torn, 0);
    let key = PublicKey::from_text(&fs::read_to_string(folder.join("chip key.pub")).unwrap()).unwrap();
    let mut chain = Chain::new(Serial::new("chip-1").unwrap(), key);
    log.records.iter().for_each(|signed| chain.check(signed).unwrap());
    log.records
}

/// A folder with a job of so many steps, the trainer's key and the chip's.
fn prepared(steps: u32, every: u32) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    edit(&job, &[("steps = 8", &format!("steps = {steps}")), ("\nevery = 2", &format!("\nevery = {every}"))]);
    for (key, name) in [("chip key", "chip.example"), ("key", "trainer.example")] {
        assert_eq!(output(&["key", "new", &path(folder.path(), key), "--name", name]).0, 0);
    }
    (folder, job.to_str().unwrap().to_string())
}

/// Starts a training beside the agent.
fn training(folder: &Path, more: &[&str]) -> Child {
    let at = |name: &str| path(folder, name);
    let (run, key, socket) = (at("run"), at("key"), at("chip.sock"));
    let args =
        ["train", "--out", &run, "--key", &key, "--agent", &socket, "--engine", "cpu", "--threads", "1"];
    tiebreak(&[&args[..], more].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8(text).unwrap())
}

/// Waits until a run has so many lines of metrics.
fn until_steps(folder: &Path, lines: usize) {
    let metrics = folder.join("run/metrics.jsonl");
    let count = || fs::read_to_string(&metrics).unwrap_or_default().lines().count();
    until("no step is done", || (count() >= lines).then_some(()));
}

/// Checks each snapshot of the whole state against the run's record of its step. Returns the steps, in the log's order.
fn snapshots_are_records(folder: &Path, records: &[SignedRecord]) -> Vec<u32> {
    let run = Run::open(&folder.join("run")).unwrap();
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT)).unwrap();
    let code = *blake3::hash(&fs::read(env!("CARGO_BIN_EXE_tiebreak")).unwrap()).as_bytes();
    let mut steps = Vec::new();
    for signed in records {
        match signed.record.event {
            Event::Attach { shard, computation } => {
                assert_eq!((shard.map, shard.code.0), (ShardMap::Whole.digest(), code));
                assert_eq!(computation, run.computation.id);
            }
            Event::Snapshot { step, digest, .. } => {
                let state = match &transcript.records[step as usize] {
                    Record::Initial { state, .. } => *state,
                    Record::Step { step, .. } => step.state,
                    Record::Final { .. } => panic!("no step {step}"),
                };
                assert_eq!(digest, state, "step {step}");
                steps.push(step);
            }
            Event::Begin | Event::Clock | Event::Idle | Event::Unanswered(_) => {}
        }
    }
    steps
}

fn count(records: &[SignedRecord], name: &str) -> usize {
    records.iter().filter(|signed| signed.record.event.name() == name).count()
}

#[test]
fn a_watched_training_has_the_bits_of_an_unwatched_one_and_its_snapshots_are_its_records() {
    let (folder, job) = prepared(400, 200);
    let folder = folder.path();
    let seed = "5a".repeat(32);
    let agent = Agent::start(folder, &["--rate", FAST, "--seed", &seed, "--patience", "60"]);
    let listening = agent.said().remove(0);
    assert_eq!((&listening["rate"], &listening["patience"]), (&FAST.into(), &60.into()), "{listening}");
    let (code, said) = ended(training(folder, &[&job]));
    assert!(code == 0 && said.contains("chip chip-1 logs this training: record "), "{said}");
    let records = agent.stop(folder);
    let steps = snapshots_are_records(folder, &records);
    assert!(steps.len() >= 3 && steps.is_sorted() && steps.first() < steps.last(), "{steps:?}");
    assert_eq!(count(&records, "attach"), 1);
    // Each due time of the seed has one record, which does not come before it.
    let serial = Serial::new("chip-1").unwrap();
    let mut times = Poisson::new(FAST.parse().unwrap(), &[0x5a; 32], &serial, 0);
    let begin = records[0].record.time;
    let mut due = 1000 * begin;
    for signed in records.iter().filter(|signed| signed.record.event.is_due()) {
        due += times.gap();
        // Records have whole milliseconds.
        assert!(signed.record.time + 2 >= due / 1000, "record {}", signed.record.counter);
    }
    let last = records.last().unwrap().record.time;
    assert!(due + times.gap() + 2000 * 1000 > 1000 * last, "a due time has no record");
    let key = path(folder, "key");
    same_as_without_interruption(&path(folder, "run"), &key, &path(folder, "whole"));
}

#[test]
fn each_rank_has_a_chip_of_its_own() {
    // Long enough for three snapshots of each rank on a machine that has much else to do.
    let (folder, job) = prepared(240, 240);
    let folder = folder.path();
    let agents = [0, 1].map(|rank| {
        let own = folder.join(format!("rank-{rank}"));
        fs::create_dir(&own).unwrap();
        for name in ["chip key", "chip key.pub"] {
            fs::copy(folder.join(name), own.join(name)).unwrap();
        }
        (Agent::start(&own, &["--rate", FAST]), own)
    });
    let (run, socket) = (path(folder, "run"), path(folder, "rank-{rank}/chip.sock"));
    let args = ["train", &job, "--out", &run, "--ranks", "2", "--agent", &socket];
    let (code, _, said) = output(&[&args[..], &["--engine", "cpu", "--threads", "1"]].concat());
    assert_eq!(code, 0, "{said}");
    for (agent, own) in agents {
        let records = agent.stop(&own);
        let steps = snapshots_are_records(folder, &records);
        assert!(steps.len() >= 3 && steps.first() < steps.last(), "{}: {steps:?}", own.display());
        assert_eq!(count(&records, "attach"), 1);
    }
    // A rank whose agent is gone stops the training, which says so.
    let run = path(folder, "unwatched");
    let _first = Agent::start(&folder.join("rank-0"), &["--rate", FAST]);
    let args = ["train", &job, "--out", &run, "--ranks", "2", "--agent", &socket];
    let (code, _, said) = output(&[&args[..], &["--engine", "cpu", "--threads", "1"]].concat());
    assert!(code == 3 && said.contains("rank 1 reports: no agent listens at "), "{code}: {said}");
}

#[test]
fn a_shard_of_a_state_has_the_digest_of_its_slices_in_the_checkpoint() {
    let (folder, job) = prepared(100, 1);
    let folder = folder.path();
    let map = "tiebreak shard map 1\n3 20 param/token_embedding\n40 7 param/token_embedding\n0 16 param/block0.norm1.gain\n5 9 v/token_embedding\n";
    let shards = path(folder, "shards");
    // A map that is not one of this state is refused before anything is begun.
    let agent = Agent::start(folder, &["--rate", FAST]);
    fs::write(&shards, map.replace("norm1", "no_norm")).unwrap();
    let (code, said) = ended(training(folder, &[&job, "--shards", &shards]));
    assert!(code == 4 && said.contains("line 4 names \"param/block0.no_norm.gain\""), "{said}");
    assert!(!folder.join("run").exists());
    fs::write(&shards, map).unwrap();
    let (code, said) = ended(training(folder, &[&job, "--shards", &shards]));
    assert_eq!(code, 0, "{said}");
    let records = agent.stop(folder);
    let map = ShardMap::from_text(map).unwrap();
    let run = Run::open(&folder.join("run")).unwrap();
    let table = run.program().state();
    let mut checked = 0;
    for signed in &records {
        let Event::Snapshot { shard, step, digest } = signed.record.event else { continue };
        assert_eq!(shard.map, map.digest());
        let state = checkpoint::read(run.at(names::checkpoint(step)), &table).unwrap();
        let bytes = |slice: &Slice| {
            let tensor = table.iter().position(|tensor| tensor.name == slice.tensor).unwrap();
            let first = 4 * slice.first as usize;
            Ok::<_, ()>(state[tensor][first..first + 4 * slice.count as usize].to_vec())
        };
        assert_eq!(Some(digest), map.shard_digest(bytes).unwrap(), "step {step}");
        checked += 1;
    }
    assert!(checked >= 3, "{checked} snapshots");
}

#[test]
fn agent_and_trainer_are_killed_and_go_on() {
    let (folder, job) = prepared(1000, 20);
    let folder = folder.path();
    let agent = Agent::start(folder, &["--rate", FAST]);
    let first = training(folder, &[&job]);
    agent.until_said("snapshot", 3);
    // A training does not go on without its agent.
    drop(agent);
    let (code, said) = ended(first);
    assert!(code == 3 && said.contains("the chip's agent: ") && said.contains("--resume"), "{said}");
    // The socket of the dead agent is still there.
    assert!(folder.join("chip.sock").exists());
    let agent = Agent::start(folder, &["--rate", FAST]);
    let mut second = training(folder, &["--resume"]);
    agent.until_said("snapshot", 2);
    second.kill().unwrap();
    assert_eq!(second.wait().unwrap().signal(), Some(9));
    let third = training(folder, &["--resume", "--max-time", "3"]);
    agent.until_said("attach", 2);
    let (code, said) = ended(third);
    assert!([0, 3].contains(&code), "{said}");
    if code == 3 {
        assert!(said.contains("STOPPED") && said.contains(" --agent "), "{said}");
        let (code, said) = ended(training(folder, &["--resume"]));
        assert_eq!(code, 0, "{said}");
    }
    let records = agent.stop(folder);
    assert_eq!(count(&records, "begin"), 2);
    assert!(count(&records, "attach") >= 3);
    assert!(snapshots_are_records(folder, &records).len() >= 5);
    same_as_without_interruption(&path(folder, "run"), &path(folder, "key"), &path(folder, "whole"));
}

#[test]
fn a_training_that_does_not_answer_is_unanswered_and_goes_on() {
    let (folder, job) = prepared(3000, 3000);
    let folder = folder.path();
    let agent = Agent::start(folder, &["--rate", FAST, "--patience", "1"]);
    let training = training(folder, &[&job]);
    agent.until_said("snapshot", 1);
    signal(&training, "-STOP");
    agent.until_said("unanswered", 2);
    signal(&training, "-CONT");
    let before = agent.said().iter().filter(|said| said["event"] == "snapshot").count();
    agent.until_said("snapshot", before + 1);
    signal(&training, "-TERM");
    let (code, said) = ended(training);
    assert!(code == 3 && said.contains("STOPPED"), "{said}");
    snapshots_are_records(folder, &agent.stop(folder));
}

#[test]
fn agents_and_trainings_that_do_not_fit_are_refused() {
    let (folder, job) = prepared(3000, 3000);
    let folder = folder.path();
    let (code, said) = ended(training(folder, &[&job]));
    assert!(
        code == 2 && said.contains("no agent listens at") && said.contains("`tiebreak monitor agent"),
        "{said}"
    );
    let agent = Agent::start(folder, &[]);
    let refused = |more: &[&str], exit: i32, says: &str| {
        let args = agent_args(folder, more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = tiebreak(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begin.elapsed() > LIMIT {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (code, said) = ended(child);
        assert!(code == exit && said.contains(says), "{more:?}: {code} {said}");
    };
    // An option that is given twice is the last one's.
    refused(&[], 2, "another agent listens there");
    let (code, said) = ended(training(folder, &[&job, "--ranks", "2"]));
    assert!(code == 2 && said.contains("is of one chip, and several ranks train"), "{said}");
    assert!(!folder.join("run").exists());
    let first = training(folder, &[&job]);
    agent.until_said("attach", 1);
    let key = path(folder, "key");
    let other = path(folder, "other");
    let socket = path(folder, "chip.sock");
    let (code, _, stderr) = output(&["train", &job, "--out", &other, "--key", &key, "--agent", &socket]);
    assert!(code == 2 && stderr.contains("another training is attached to this chip"), "{stderr}");
    until_steps(folder, 2);
    signal(&first, "-TERM");
    assert_eq!(ended(first).0, 3);
    // Two agents with one log, on two sockets.
    let second = |log: &str, key: &str, serial: &str, exit: i32, says: &str| {
        let args = [
            "monitor",
            "agent",
            "--socket",
            &path(folder, "second.sock"),
            "--log",
            &path(folder, log),
            "--key",
            &path(folder, key),
            "--serial",
            serial,
            "--max-time",
            "60",
        ];
        let (code, _, stderr) = output(&args);
        assert!(code == exit && stderr.contains(says), "{code} {stderr}");
    };
    second("chip.log", "chip key", "chip-1", 2, "another agent writes this log");
    agent.stop(folder);
    second("chip.log", "key", "chip-1", 4, "record 0 of the log: chip record: the key trainer.example+");
    second("chip.log", "chip key", "chip-2", 4, "record 0 of the log: chip record: it is of the chip chip-1");
    let mut bytes = fs::read(folder.join("chip.log")).unwrap();
    bytes[244 + 100] ^= 1;
    fs::write(folder.join("chip.log"), &bytes).unwrap();
    second("chip.log", "chip key", "chip-1", 4, "record 1 of the log");
    assert_eq!(fs::read(folder.join("chip.log")).unwrap(), bytes);
    second("run", "chip key", "chip-1", 2, "a plain file is wanted");
}

#[test]
#[cfg(not(feature = "collector"))]
fn a_build_without_a_collector_says_how_to_make_one() {
    for args in [
        &["serve", "--database", "d", "--key", "k", "--register", "r"][..],
        &["export", "--database", "d", "--serial", "chip-1", "-o", "l"],
        &["heads", "--database", "d", "-o", "h"],
    ] {
        let (code, stdout, stderr) = output(&[&["monitor", "collector"], args].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(
            stderr.contains("this build has no collector") && stderr.contains("--features collector"),
            "{stderr}"
        );
    }
}

/// An agent whose collector does not answer waits before it lets a training in, and ends at its limit or at a signal.
#[test]
fn an_agent_without_an_answer_from_its_collector_waits_and_ends_as_it_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    assert_eq!(output(&["key", "new", &at("key"), "--name", "chip.example"]).0, 0);
    let (socket, key, public) = (at("chip.sock"), at("key"), at("key.pub"));
    let args = [
        "monitor",
        "agent",
        "--socket",
        &socket,
        "--key",
        &key,
        "--serial",
        "chip-1",
        "--collector",
        "http://127.0.0.1:1",
        "--collector-key",
        &public,
    ];
    let (code, stdout, stderr) = output(&[&args[..], &["--hold", "1"]].concat());
    assert_eq!((code, stdout.as_str()), (3, ""));
    for says in
        ["a training has to wait: http://127.0.0.1:1: ", "the limit of 1 s is over", "start the collector"]
    {
        assert!(stderr.contains(says), "{stderr}");
    }
    assert!(!folder.path().join("chip.sock").exists());
    let said = folder.path().join("said");
    let waiting = tiebreak(&args).stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    until("it does not wait", || fs::read_to_string(&said).unwrap().contains("has to wait").then_some(()));
    signal(&waiting, "-TERM");
    assert_eq!(ended(waiting).0, 3);
    assert!(fs::read_to_string(&said).unwrap().contains("the agent was asked to stop"));
}

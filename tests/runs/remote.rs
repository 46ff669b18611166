//! Runs at addresses: the same findings as in a folder, no more bytes than a part needs, and no use of what a server makes up.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tiebreak_audit::corrections::Corrections;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::work::Work;
use tiebreak_audit::{Outcome, Report, attachments, audit, checks, part, watched};
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_remote::{Patience, open_with};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::index::Index;
use tiebreak_run::run::{Memory, Store, names};
use tiebreak_train::{Beginning, Silent, begin_with_any_thresholds, train};

use crate::common::served::{HELD, Lie, Manner, Served};
use crate::common::{edit::edited, gpt_job, key};

/// Little, since the server is on this machine.
const PATIENCE: Patience = Patience {
    tries: 3,
    pause: Duration::from_millis(1),
    connect: Duration::from_millis(300),
    answer: Duration::from_millis(300),
    rate: 1 << 30,
};

/// A finished run of eight steps, in memory.
pub fn trained() -> Memory {
    let folder = tempfile::tempdir().unwrap();
    let (memory, run) = begun(&gpt_job(folder.path(), "operator", ""));
    train(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent).unwrap();
    memory
}

/// A run of a job in memory, before its first step.
fn begun(job: &Path) -> (Memory, Run) {
    let memory = Memory::default();
    let (key, nonce, out) = (key(), [9; 16], Arc::new(memory.clone()));
    let (key, data_root) = (Some(&key), None);
    let beginning = Beginning { job, data_root, out, key, challenge: None, logged: false, nonce };
    let run = begin_with_any_thresholds(&beginning).unwrap();
    (memory, run)
}

/// The files of a run, with its index.
pub fn indexed(run: &Memory) -> Vec<(String, Vec<u8>)> {
    let index = Index::of(run, |_| true).unwrap().text().as_bytes().to_vec();
    run.files().into_iter().chain([(names::INDEX.to_string(), index)]).collect()
}

pub fn at(server: &Served) -> Arc<dyn Store> {
    open_with(&server.address, PATIENCE).unwrap()
}

/// The report of an audit of all steps, with every check.
pub fn whole(store: Arc<dyn Store>) -> Report {
    let run = Run::of(store).unwrap();
    let mut checked = checks::always(&run, Some(&key().public())).unwrap();
    let beside = attachments::attachments(&run, &checked);
    attachments::note(&mut checked, beside);
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    audit(&run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut tiebreak_audit::Silent).unwrap().0
}

#[test]
fn a_run_at_an_address_is_the_run_in_its_folder() {
    let memory = trained();
    let here = whole(Arc::new(memory.clone()));
    assert_eq!(here.outcome, Outcome::Matches);
    let (index, bare) = (indexed(&memory), memory.files());
    for (files, manner) in [
        (index.clone(), Manner::default()),
        (bare, Manner::default()),
        (index.clone(), Manner { no_ranges: true, ..Manner::default() }),
        (index, Manner { refuses: 2, ..Manner::default() }),
    ] {
        let server = Served::new(files.clone(), manner);
        let there = whole(at(&server));
        assert_eq!((&there.outcome, &there.checked), (&here.outcome, &here.checked), "{manner:?}");
        assert_eq!((&there.replayed, there.damaged.len()), (&here.replayed, 0), "{manner:?}");
        // A server without an index hides what no job promises, and the report says so.
        let unlisted = |report: &Report| report.not_checked.iter().any(|line| line.contains("has no index"));
        assert_eq!(unlisted(&there), !files.iter().any(|(name, _)| name == names::INDEX), "{manner:?}");
        let store = at(&server);
        for (name, bytes) in memory.files() {
            let length = bytes.len() as u64;
            assert_eq!(store.length(&name).unwrap(), length, "{name}");
            for range in [0..length, 1..2, length - 1..length + 9, length + 1..length + 2, 5..5] {
                assert_eq!(
                    store.read(&name, range.clone()).unwrap(),
                    memory.read(&name, range).unwrap(),
                    "{name}"
                );
            }
        }
        assert_eq!(store.length("no").unwrap_err().kind(), ErrorKind::NotFound);
        for refused in [
            store.replace("job.toml", &mut |_| Ok(())),
            store.append("job.toml", b"x"),
            store.truncate("job.toml", 0),
            store.sync("job.toml"),
            store.remove("job.toml"),
            store.lock("lock").map(drop),
            store.prepare("heads"),
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}

#[test]
fn an_audit_of_a_segment_reads_the_records_and_that_segment() {
    let memory = trained();
    let server = Served::new(indexed(&memory), Manner::default());
    let run = Run::of(at(&server)).unwrap();
    let mut nobody = |_, _| {};
    let mut work = Work::of_part(&mut nobody);
    let mut checked =
        watched::corrected(&run, Some(&key().public()), &Corrections::default(), &mut work).unwrap();
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::Range(5, 6));
    assert_eq!(plan.segments, [(5, 6)]);
    let beside = part::attachments(&run, &checked, &plan);
    attachments::note(&mut checked, beside);
    assert!(checked.damaged.is_empty(), "{:?}", checked.damaged);
    let (report, _) =
        audit(&run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut tiebreak_audit::Silent).unwrap();
    assert_eq!(report.outcome, Outcome::Matches);
    assert!(report.not_checked.iter().any(|line| line.contains("and the released model: only the files")));
    assert!(!report.end_checked);
    let sent = server.sent();
    // Every byte counts once, but those of heads, which are read when they are compared, and the data that a batch draws.
    let record = ["index", "run.json", "job.toml", "program.bin", "transcript", "gradients"];
    let segment = [names::checkpoint(4), names::trace(5), names::trace(6)];
    for (name, (requests, bytes)) in &sent {
        let length = match name.as_str() {
            "index" => *bytes,
            name => memory.length(name).unwrap(),
        };
        let times = if name.starts_with("heads/") || name.starts_with("data/") { 3 } else { 1 };
        let known = record.contains(&name.as_str()) || segment.contains(name) || times == 3;
        let header = 8; // its length is read first
        let fine = known && *bytes <= times * length + header && *requests <= 5;
        assert!(fine, "{name}: {bytes} of {length} bytes in {requests} requests");
    }
    assert!(segment.iter().all(|name| sent.contains_key(name)), "{sent:?}");
    let bytes: u64 = sent.values().map(|(_, bytes)| bytes).sum();
    let all: u64 = memory.files().iter().map(|(_, bytes)| bytes.len() as u64).sum();
    assert!(3 * bytes < all, "{bytes} of {all} bytes were read: {sent:?}");
}

/// The errors and findings of all checks without a replay.
fn found(server: &Served) -> Vec<String> {
    let run = match Run::of(at(server)) {
        Ok(run) => run,
        Err(error) => return vec![error.to_string()],
    };
    match checks::always(&run, Some(&key().public())) {
        Err(error) => vec![error.to_string()],
        Ok(mut checked) => {
            let beside = attachments::attachments(&run, &checked);
            attachments::note(&mut checked, beside);
            checked.damaged.iter().map(|error| error.to_string()).collect()
        }
    }
}

#[test]
fn nothing_that_a_server_makes_up_is_used() {
    let memory = trained();
    let server = Served::new(indexed(&memory), Manner::default());
    assert_eq!(found(&server), Vec::<String>::new());
    let head = names::head(10);
    let state = names::checkpoint(4);
    let tree = names::data_tree(0);
    let quick = [
        (Lie::Shifted, "the answer says that it has"),
        (Lie::OtherTotal, "changed between two reads"),
        (Lie::Huge, "changed between two reads"),
        (Lie::Cut, "were due, "),
        (Lie::Twice, "more than one header \"content-range\""),
        (Lie::Long, "the answer says that it has"),
        (Lie::Backwards, ""),
        (Lie::Zeros, ""),
        (Lie::OtherPlace, ""),
        (Lie::Unavailable, "status 503"),
        (Lie::Redirects, "redirects are not followed"),
        (Lie::Compressed, "encoded as \"gzip\""),
        (Lie::NoHttp, ""),
        (Lie::Closes, ""),
        (Lie::Forbidden, "status 403"),
    ];
    for (lie, why) in quick {
        for file in [names::RUN_JSON, names::TRANSCRIPT, &head, &state, &tree] {
            server.lie(file, lie);
            let found = found(&server);
            // Files that grow may be longer than they were: what was there first is read, and is right.
            let grown = file == names::TRANSCRIPT && [Lie::OtherTotal, Lie::Huge].contains(&lie);
            assert_eq!(found.is_empty(), grown, "{lie:?}, {file}: {found:?}");
            let named = found.iter().any(|line| line.contains(file) && line.contains(why));
            let after = found.iter().any(|line| line.contains("did not answer before"));
            assert!(grown || named || after, "{lie:?}, {file}: {found:?}");
        }
    }
    for lie in [Lie::Shifted, Lie::Zeros, Lie::Huge, Lie::NoLength, Lie::Cut, Lie::Unavailable, Lie::NoHttp] {
        server.lie(names::INDEX, lie);
        let found = found(&server);
        let shifted = lie == Lie::Shifted; // an index comes without a range
        assert_eq!(found.iter().any(|line| line.contains("index")), !shifted, "{lie:?}: {found:?}");
    }
    for (lie, file, why) in [
        (Lie::Slow, names::TRANSCRIPT, "timeout"),
        (Lie::Trickles, &*state, "were due, "),
        (Lie::Changes, &*state, "changed between two reads"),
    ] {
        server.lie(file, lie);
        let found = found(&server);
        assert!(found.iter().any(|line| line.contains(file) && line.contains(why)), "{lie:?}: {found:?}");
    }
}

#[test]
fn a_server_that_says_no_length_or_does_not_answer_is_an_error_soon() {
    let memory = trained();
    let server = Served::new(memory.files(), Manner::default());
    server.lie(names::RUN_JSON, Lie::NoLength);
    let why = Run::of(at(&server)).err().unwrap().to_string();
    assert!(why.contains("run.json: the server does not say how long the file is"), "{why}");
    server.lie(names::JOB, Lie::Huge);
    let why = Run::of(at(&server)).err().unwrap().to_string();
    assert!(why.contains("job.toml: ") && why.contains("1048576"), "{why}");
    // Once the whole server is silent, nothing else is asked.
    server.lie(names::RUN_JSON, Lie::Slow);
    let (store, begin) = (at(&server), Instant::now());
    let first = store.length(names::RUN_JSON).unwrap_err();
    let (asked, took) = (server.requests(), begin.elapsed());
    assert!(first.kind() == ErrorKind::TimedOut && took < Duration::from_secs(5), "{first} after {took:?}");
    let next = store.length(names::JOB).unwrap_err();
    assert!(next.to_string().contains("did not answer before") && server.requests() == asked, "{next}");
    // The same holds after headers came, and bytes that come too slowly. A file that breaks off at once says nothing about others.
    let trace = names::trace(5);
    for (lie, is_gone) in [(Lie::Trickles, true), (Lie::Cut, false)] {
        server.lie(&trace, lie);
        let (store, before) = (at(&server), server.requests());
        let length = store.length(&trace).unwrap();
        let first = store.read(&trace, 0..length).unwrap_err().to_string();
        let asked = server.requests() - before;
        assert!(first.contains("3 tries failed") && first.contains("were due, ") && asked == 5, "{first}");
        let next = store.length(names::JOB);
        let gone = next.as_ref().is_err_and(|why| why.to_string().contains("did not answer before"));
        let more = server.requests() - before - asked;
        assert_eq!((gone, next.is_ok(), more), (is_gone, !is_gone, u64::from(!is_gone)), "{lie:?}: {next:?}");
    }
    for (address, why) in [
        ("ftp://host/run", "http:// or https://"),
        ("http://", "names no host"),
        ("http:///run", "names no host"),
        ("http://[::1/run", "is no URL"),
        ("http://user@host/run", "without a user"),
        ("http://host/run?x", "without a user, a query"),
    ] {
        let refused = open_with(address, PATIENCE).err().unwrap().to_string();
        assert!(refused.contains(why) && refused.starts_with(address), "{refused}");
    }
}

/// A file that nobody gave and nobody called absent leaves an audit undecided: nobody is blamed for it, and nothing matches.
#[test]
fn what_a_server_does_not_answer_is_undecided() {
    let memory = trained();
    let server = Served::new(indexed(&memory), Manner::default());
    for lie in [Lie::Unavailable, Lie::Forbidden, Lie::Redirects, Lie::Cut, Lie::NoHttp] {
        for file in [names::checkpoint(4), names::data_tree(0), names::MODEL.to_string()] {
            server.lie(&file, lie);
            let run = Run::of(at(&server)).unwrap();
            let error = checks::always(&run, Some(&key().public())).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|why| why.contains(&file)), "{lie:?} {file}: {error:?}");
        }
    }
    // A file of a step alone is asked for by its replay.
    server.lie(&names::trace(5), Lie::Forbidden);
    let run = Run::of(at(&server)).unwrap();
    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let beside = attachments::attachments(&run, &checked);
    assert_eq!(beside.damaged.len(), 1);
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::Range(5, 5));
    let ended = audit(&run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut tiebreak_audit::Silent);
    assert!(ended.err().unwrap().to_string().contains("status 403"));
    // The absence of a file is an answer.
    let files = indexed(&memory).into_iter().filter(|(name, _)| *name != names::checkpoint(4));
    let server = Served::new(files.filter(|(name, _)| name != names::INDEX), Manner::default());
    let checked = checks::always(&Run::of(at(&server)).unwrap(), Some(&key().public())).unwrap();
    assert!(checked.not_checked.iter().any(|line| line.contains("checkpoints that the job promises")));
}

#[test]
fn nobody_waits_for_bytes_behind_those_that_were_asked_for() {
    let memory = trained();
    let server = Served::new(indexed(&memory), Manner::default());
    let patient = Patience { answer: HELD, ..PATIENCE };
    let due = memory.read(names::TRANSCRIPT, 3..90).unwrap();
    server.lie(names::TRANSCRIPT, Lie::HoldsChunk);
    let begin = Instant::now();
    assert_eq!(open_with(&server.address, patient).unwrap().read(names::TRANSCRIPT, 3..90).unwrap(), due);
    server.lie(names::TRANSCRIPT, Lie::Holds);
    let why = open_with(&server.address, patient).unwrap().read(names::TRANSCRIPT, 3..90).unwrap_err();
    assert!(why.to_string().contains("87 bytes were due, and the answer says that it has 89"), "{why}");
    assert!(begin.elapsed() < HELD, "{:?}", begin.elapsed());
}

#[test]
fn a_server_without_an_index_is_not_asked_for_millions_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, edited(&text, &[("steps = 8", "steps = 3000000"), ("\nevery = 2", "\nevery = 1")]))
        .unwrap();
    let server = Served::new(begun(&job).0.files(), Manner::default());
    let run = Run::of(at(&server)).unwrap();
    let before = server.requests();
    let why = run.checkpoint_steps().unwrap_err().to_string();
    assert!(why.contains("the job promises 3000000 checkpoints, and at most 1048576 are asked for"), "{why}");
    assert!(server.requests() <= before + 1);
}

#[test]
fn heads_that_no_job_has_cost_few_requests() {
    let memory = trained();
    let honest = whole(Arc::new(memory.clone()));
    let mut files: BTreeMap<String, Vec<u8>> = memory.files().into_iter().collect();
    files.extend((0..500).map(|number| (names::head(1000 + number), b"no head".to_vec())));
    let server = Served::new(indexed(&Memory::holding(files.clone())), Manner::default());
    let found = whole(at(&server));
    assert_eq!((&found.outcome, found.head_size), (&honest.outcome, honest.head_size));
    assert_eq!(found.damaged.len(), 16, "{:?}", found.damaged);
    let invented = server.sent().into_keys().filter(|file| file.starts_with("heads/000000001"));
    assert_eq!(invented.count(), 16);
    // A head of another history, over records that the job has, is still found among them.
    let run = Run::of(Arc::new(memory)).unwrap();
    let fork = Head { run: run.id, size: 6, root: Digest([7; 32]) };
    files.insert(names::head(6), fork.to_note(Some(&key())).into_bytes());
    let server = Served::new(indexed(&Memory::holding(files)), Manner::default());
    let outcome = whole(at(&server)).outcome;
    let is_fork = matches!(outcome, Outcome::Inconsistent { what: Ground::Fork { records: 6 }, .. });
    assert!(is_fork, "{outcome:?}");
}

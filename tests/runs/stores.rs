//! A run is the same in any store: trained, interrupted, resumed and audited; and a store's fault is an error.

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, attachments, audit, checks};
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{Contents, Folder, Held, Memory, RunError, Store};
use tiebreak_train::{Beginning, Silent, begin_with_any_thresholds, train};

use crate::common::{files, gpt_job, key, trained};

/// A store's fault with the reads of one file.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The read is refused.
    Refuses,
    /// The second half is missing.
    Short,
    /// One more byte comes.
    Long,
    /// No byte comes, and no error.
    Empty,
}

/// A store whose writes end after a while, and whose reads of one file are wrong.
#[derive(Default)]
struct Faulty {
    inner: Memory,
    /// The number of writes that still succeed; all if there is none.
    writes: Option<AtomicU64>,
    reads: Mutex<Option<(String, Fault)>>,
}

impl Faulty {
    fn write(&self) -> io::Result<()> {
        let Some(writes) = &self.writes else { return Ok(()) };
        let passed = writes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        passed.map(drop).map_err(|_| io::Error::other("the store is gone"))
    }
}

impl Store for Faulty {
    fn place(&self) -> String {
        "faulty".into()
    }
    fn length(&self, name: &str) -> io::Result<u64> {
        self.inner.length(name)
    }
    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = self.inner.read(name, range)?;
        match &*self.reads.lock().unwrap() {
            Some((of, fault)) if of == name => match fault {
                Fault::Refuses => return Err(io::Error::other("the store is gone")),
                Fault::Short => bytes.truncate(bytes.len() / 2),
                Fault::Long => bytes.push(0),
                Fault::Empty => bytes.clear(),
            },
            _ => {}
        }
        Ok(bytes)
    }
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.inner.list(folder)
    }
    fn replace(&self, name: &str, contents: &mut Contents) -> io::Result<()> {
        self.write()?;
        self.inner.replace(name, contents)
    }
    fn append(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if let Err(gone) = self.write() {
            self.inner.append(name, &bytes[..bytes.len() / 2])?; // a torn tail
            return Err(gone);
        }
        self.inner.append(name, bytes)
    }
    fn truncate(&self, name: &str, length: u64) -> io::Result<()> {
        self.write()?;
        self.inner.truncate(name, length)
    }
    fn sync(&self, name: &str) -> io::Result<()> {
        self.write()?;
        self.inner.sync(name)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.write()?;
        self.inner.remove(name)
    }
    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>> {
        self.inner.lock(name)
    }
}

/// The run that [`common::begin_run`](crate::common::begin_run) begins, in another store.
fn begun(out: Arc<dyn Store>, job: &Path) -> Result<Run, RunError> {
    let (key, nonce) = (Some(&key()), [9; 16]);
    let beginning = Beginning { job, data_root: None, out, key, challenge: None, logged: false, nonce };
    begin_with_any_thresholds(&beginning)
}

/// The files of a run in a folder, without the lock, which memory keeps beside them.
fn on_disk(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let named =
        |(name, bytes): (std::path::PathBuf, Vec<u8>)| (name.to_str().unwrap().replace('\\', "/"), bytes);
    files(folder).into_iter().map(named).filter(|(name, _)| name != "lock").collect()
}

fn same(found: &[(String, Vec<u8>)], expected: &[(String, Vec<u8>)], when: &str) {
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(names(found)), sorted(names(expected)), "{when}");
    for (name, bytes) in expected {
        assert!(
            found.iter().any(|(other, theirs)| other == name && theirs == bytes),
            "{when}: {name} differs"
        );
    }
}

/// Audits every step.
fn audited(run: &Run) -> Outcome {
    let mut checked = checks::always(run, Some(&key().public())).unwrap();
    let beside = attachments::attachments(run, &checked);
    attachments::note(&mut checked, beside);
    assert!(checked.damaged.is_empty(), "{:?}", checked.damaged);
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (report, verdict) =
        audit(run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut tiebreak_audit::Silent).unwrap();
    assert!(
        verdict.is_none() && report.steps_replayed() == u64::from(run.job().steps),
        "{:?}",
        report.outcome
    );
    report.outcome
}

#[test]
fn a_run_in_memory_is_the_run_on_disk() {
    for (granularity, extra) in [("operator", "keep = 2"), ("microbatch", "")] {
        let folder = tempfile::tempdir().unwrap();
        let job = gpt_job(folder.path(), granularity, extra);
        let out = folder.path().join("run");
        trained(&job, &out, None);
        let expected = on_disk(&out);
        assert!(expected.len() > 15, "{}", expected.len());
        let memory = Memory::default();
        begun(Arc::new(memory.clone()), &job).unwrap();
        drop(folder); // from here on there is no folder at all
        let mut kills = 0;
        loop {
            // The number of writes that succeed grows, so that the trainer is stopped at ever later ones, with a torn tail.
            let writes = Some(AtomicU64::new(5 + kills));
            let store = Faulty { inner: memory.clone(), writes, ..Faulty::default() };
            let run = Run::of(Arc::new(store)).unwrap();
            match train(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent) {
                Ok(_) => break,
                Err(error) => assert!(error.to_string().contains("the store is gone"), "{error}"),
            }
            kills += 1;
        }
        assert!(kills > 5, "{granularity}: {kills} kills");
        same(&memory.files(), &expected, granularity);
        let run = Run::of(Arc::new(memory)).unwrap();
        assert_eq!(run.unexpected_files().unwrap(), Vec::<String>::new());
        assert_eq!(audited(&run), Outcome::Matches);
    }
}

/// All results of opening and auditing a run, without a replay.
fn said(store: Arc<dyn Store>) -> Vec<String> {
    let run = match Run::of(store) {
        Ok(run) => run,
        Err(error) => return vec![error.to_string()],
    };
    match checks::always(&run, Some(&key().public())) {
        Ok(mut checked) => {
            let beside = attachments::attachments(&run, &checked);
            attachments::note(&mut checked, beside);
            assert!(!checked.damaged.is_empty() || checked.incomplete.is_none());
            checked.damaged.iter().map(|error| error.to_string()).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn reads_that_fail_or_are_of_another_length_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::default();
    let run = begun(Arc::new(memory.clone()), &gpt_job(folder.path(), "operator", "")).unwrap();
    train(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent).unwrap();
    assert_eq!(said(Arc::new(memory.clone())), Vec::<String>::new());
    let mut wrong = 0;
    for (name, bytes) in memory.files() {
        assert!(!bytes.is_empty(), "{name}");
        for fault in [Fault::Refuses, Fault::Short, Fault::Long, Fault::Empty] {
            let reads = Mutex::new(Some((name.clone(), fault)));
            let store = Arc::new(Faulty { inner: memory.clone(), reads, writes: None });
            let said = said(store.clone());
            let about = |line: &String| line.contains(&format!("faulty/{name}: "));
            let why = |line: &String| {
                let what =
                    if matches!(fault, Fault::Refuses) { "the store is gone" } else { "were asked for, " };
                line.contains(what) || line.contains("are needed and not there")
            };
            assert!(said.iter().any(|line| about(line) && why(line)), "{name}, {fault:?}: {said:?}");
            wrong += 1;
            // A trainer who resumes reads the last checkpoint and the records.
            if ["transcript", "checkpoints/step-000000008.safetensors"].contains(&name.as_str()) {
                let run = Run::of(store).unwrap();
                let error = train(&run, &mut Cpu::new(1).unwrap(), Some(&key()), &mut Silent).unwrap_err();
                assert!(about(&error.to_string()) && why(&error.to_string()), "{name}, {fault:?}: {error}");
            }
        }
    }
    assert!(wrong > 80, "{wrong}");
}

/// Both stores treat a name in the same way.
#[test]
fn stores_mean_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let stores: [Arc<dyn Store>; 2] =
        [Folder::at(&folder.path().join("below/run")), Arc::new(Memory::default())];
    let seen = stores.map(|store| {
        let mut seen: Vec<String> = Vec::new();
        let kind = |error: io::Error| error.kind();
        let mut note = |what: &dyn std::fmt::Debug| seen.push(format!("{what:?}"));
        let contents = |bytes: &'static [u8]| {
            move |file: &mut dyn Write| bytes.chunks(2).try_for_each(|two| file.write_all(two))
        };
        let list = |folder: &str| {
            let mut names = store.list(folder).map_err(kind)?;
            names.sort();
            Ok::<_, io::ErrorKind>(names)
        };
        note(&[list(""), list("heads")]);
        note(&[store.length("heads/1").map_err(kind), store.length("job").map_err(kind)]);
        note(&store.read("job", 0..1).map_err(kind));
        note(
            &[store.truncate("job", 0), store.sync("job"), store.remove("job")]
                .map(|done| done.map_err(kind)),
        );
        store.replace("heads/1", &mut contents(b"a head")).unwrap();
        store.replace("job", &mut contents(b"a job")).unwrap();
        store.replace("job", &mut contents(b"another")).unwrap();
        note(&[list(""), list("heads")]);
        for range in [0..7, 0..9, 3..5, 5..100, 7..9, 20..30, 4..4] {
            note(&store.read("job", range).map_err(kind));
        }
        // Contents that fail leave the old ones, and nothing else.
        let fails = &mut |file: &mut dyn Write| file.write_all(b"half").and(Err(io::Error::other("no more")));
        note(&store.replace("job", fails).map_err(|error| error.to_string()));
        note(&store.replace("heads/2", fails).map_err(|error| error.to_string()));
        note(&[list(""), list("heads")]);
        note(&store.read("job", 0..7).map_err(kind));
        store.append("log", b"one, ").unwrap();
        store.append("log", b"two").unwrap();
        store.sync("log").unwrap();
        store.truncate("log", 100).unwrap();
        note(&store.length("log").map_err(kind));
        store.truncate("log", 4).unwrap();
        store.append("log", b"!").unwrap();
        note(&store.read("log", 0..store.length("log").unwrap()).map_err(kind));
        store.remove("log").unwrap();
        note(&store.length("log").map_err(kind));
        let held = store.lock("lock").unwrap();
        note(&store.lock("lock").map(drop).map_err(kind));
        drop(held);
        note(&store.lock("lock").map(drop).map_err(kind));
        seen
    });
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].len() > 15, "{seen:?}");
}

/// A name that is a link or a folder on disk is no file, whoever asks.
#[cfg(unix)]
#[test]
fn what_is_no_plain_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::write(&outside, "kept").unwrap();
    let root = folder.path().join("run");
    std::fs::create_dir_all(root.join("folder")).unwrap();
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    let store = Folder::at(&root);
    for name in ["link", "folder"] {
        let refused = [
            store.length(name).map(drop),
            store.read(name, 0..1).map(drop),
            store.append(name, b"x"),
            store.truncate(name, 0),
            store.sync(name),
            store.lock(name).map(drop),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("links and folders are not followed"), "{name}, {number}: {why}");
        }
    }
    for name in ["link", "folder"] {
        let why = store.replace(name, &mut |file| file.write_all(b"a file")).unwrap_err().to_string();
        assert!(why.contains("is no plain file"), "{name}: {why}");
    }
    assert!(root.join("link").is_symlink());
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
}

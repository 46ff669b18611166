//! A cache of runs at addresses: nothing that a digest decides is read twice, and no block of it is believed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, SystemTime};

use tiebreak_audit::{AuditError, Outcome, Report};
use tiebreak_engine::EngineError;
use tiebreak_record::commit::digest::Digest;
use tiebreak_remote::cache::{Cache, Told};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{Memory, Promise, RunError, Store, names, states, transcript};

use crate::common::forged::forge;
use crate::common::served::{Lie, Manner, Served};
use crate::common::{gpt_job, trained};
use crate::remote::{at, indexed, whole};

/// No test fills so much.
const MOST: u64 = 1 << 30;

/// The report of a whole audit through a cache in this folder, and what the cache did.
fn audited(server: &Served, folder: &Path) -> (Report, Told) {
    let cache = Cache::at(folder, MOST).unwrap();
    (whole(cache.around(at(server))), cache.told())
}

/// The blocks in a folder.
fn blocks(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

/// The file of a block, by the digest in the block's name.
fn file_of(block: &Path) -> String {
    block.file_name().unwrap().to_str().unwrap()[..64].to_string()
}

/// True of files that a digest decides.
fn is_promised(name: &str) -> bool {
    ["data/", "checkpoints/", "traces/"].iter().any(|folder| name.starts_with(folder)) || name == names::MODEL
}

/// The bytes of such files that a server sent.
fn promised_bytes(server: &Served) -> u64 {
    server.sent().iter().filter(|(name, _)| is_promised(name)).map(|(_, (_, bytes))| bytes).sum()
}

fn same(one: &Report, other: &Report) {
    assert_eq!((&one.outcome, &one.checked), (&other.outcome, &other.checked));
    assert_eq!((&one.replayed, &one.not_checked), (&other.replayed, &other.not_checked));
    assert_eq!((one.end_checked, one.damaged.len()), (other.end_checked, other.damaged.len()));
}

#[test]
fn a_second_audit_reads_nothing_again_that_a_digest_decides() {
    let (memory, folder) = (crate::remote::trained(), tempfile::tempdir().unwrap());
    let server = Served::new(indexed(&memory), Manner::default());
    let plain = whole(at(&server));
    let without = promised_bytes(&server);
    let (first, told) = audited(&server, folder.path());
    same(&first, &plain);
    let files = memory.files().into_iter().filter(|(name, _)| is_promised(name));
    let due: u64 = files.map(|(_, bytes)| bytes.len() as u64).sum();
    // Checkpoint 0 is drawn again from the seed by some checks, and read by others: no byte comes twice.
    assert_eq!((promised_bytes(&server), told.fetched), (due, due), "{told:?}");
    assert!(without > due, "without a cache, checkpoints are read twice: {without} and {due}");
    assert_eq!(told.unasked, 0, "what was fetched and read again was asked for");
    let (second, told) = audited(&server, folder.path());
    assert_eq!(told.unasked, 16, "a tree, data, five checkpoints, eight traces and a model");
    same(&second, &plain);
    let sent = server.sent();
    assert!(!sent.keys().any(|name| is_promised(name)), "{sent:?}");
    assert_eq!((told.fetched, told.damaged, told.wrong, told.refused), (0, 0, 0, None));
    assert!(told.read >= due, "{} of {due} bytes", told.read);
    // Nothing else is in the cache: the head, the list of files and the records come from the server each time.
    for name in
        [names::INDEX, names::RUN_JSON, names::JOB, names::TRANSCRIPT, names::GRADIENTS, &names::head(10)]
    {
        assert!(sent.contains_key(name), "{name}: {sent:?}");
    }
    // The same files at another address are the same files.
    let other = Served::new(indexed(&memory), Manner { no_ranges: true, ..Manner::default() });
    assert_eq!((audited(&other, folder.path()).1.fetched, promised_bytes(&other)), (0, 0));
}

#[test]
fn damaged_blocks_are_fetched_again() {
    let (memory, folder) = (crate::remote::trained(), tempfile::tempdir().unwrap());
    let server = Served::new(indexed(&memory), Manner::default());
    let (plain, _) = audited(&server, folder.path());
    let all = blocks(folder.path());
    for (number, block) in all.iter().enumerate() {
        let mut bytes = fs::read(block).unwrap();
        match number % 3 {
            0 => {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            }
            1 => bytes.truncate(bytes.len() / 2),
            _ => bytes.clear(),
        }
        fs::write(block, bytes).unwrap();
    }
    let (again, told) = audited(&server, folder.path());
    same(&again, &plain);
    assert!(told.damaged >= all.len() as u64 && told.wrong == 0, "{told:?}");
    let (_, told) = audited(&server, folder.path());
    assert_eq!((told.damaged, told.fetched), (0, 0), "the blocks are whole again");
    // Folders and links have no bytes.
    let all = blocks(folder.path());
    for block in &all {
        fs::remove_file(block).unwrap();
        fs::create_dir(block).unwrap();
    }
    let (again, told) = audited(&server, folder.path());
    same(&again, &plain);
    assert!(told.damaged >= all.len() as u64 && told.refused.is_none(), "{told:?}");
    #[cfg(unix)]
    {
        let secret = folder.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        for block in &all {
            fs::remove_dir(block).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(block).status().unwrap().success());
        }
        let (again, told) = audited(&server, folder.path());
        same(&again, &plain);
        assert!(told.damaged >= all.len() as u64 && told.refused.is_none(), "{told:?}");
        for block in &all {
            let _ = fs::remove_file(block);
            std::os::unix::fs::symlink(&secret, block).unwrap();
        }
        let (again, told) = audited(&server, folder.path());
        same(&again, &plain);
        assert!(told.damaged >= all.len() as u64 && told.refused.is_none(), "{told:?}");
        assert_eq!(fs::read(&secret).unwrap(), b"secret", "nothing is written through a link");
        assert!(blocks(folder.path()).iter().all(|block| block.symlink_metadata().unwrap().is_file()));
    }
}

/// Each block in turn lies, with a right checksum: the audit finds what it found before, and says nothing against the trainer.
#[test]
fn a_block_that_lies_is_found_by_the_digests_and_is_nobodys_fault() {
    let (memory, folder) = (crate::remote::trained(), tempfile::tempdir().unwrap());
    let server = Served::new(indexed(&memory), Manner::default());
    let (plain, _) = audited(&server, folder.path());
    // By file: the size of a file's blocks depends on the order in which threads read it.
    let mut files: Vec<String> = blocks(folder.path()).iter().map(|block| file_of(block)).collect();
    files.dedup();
    assert_eq!(files.len(), 16, "a tree, data, five checkpoints, eight traces and a model");
    let changes = [
        |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1,
        |bytes: &mut Vec<u8>| bytes.fill(0xff),
        |bytes: &mut Vec<u8>| bytes[0] ^= 1,
    ];
    let blocks_of = |file: &String| -> Vec<PathBuf> {
        blocks(folder.path()).into_iter().filter(|block| file_of(block) == *file).collect()
    };
    for (file, change) in files.iter().zip(changes.iter().cycle()) {
        let all = blocks_of(file);
        assert!(!all.is_empty(), "{file}");
        forge(&all[0], change);
        let (found, told) = audited(&server, folder.path());
        same(&found, &plain);
        assert_eq!((told.wrong, told.damaged), (1, 0), "{file}");
        assert!(blocks_of(file).is_empty(), "{file} stays");
    }
    // All of them at once, once the last one is there again.
    assert_eq!(audited(&server, folder.path()).1.wrong, 0);
    blocks(folder.path()).iter().for_each(|block| forge(block, |bytes| bytes.reverse()));
    same(&audited(&server, folder.path()).0, &plain);
}

#[test]
fn a_cache_hides_no_fault_of_a_server_and_keeps_none() {
    let (memory, folder) = (crate::remote::trained(), tempfile::tempdir().unwrap());
    for file in [names::checkpoint(4), names::trace(5), names::MODEL.to_string()] {
        let server = Served::new(indexed(&memory), Manner::default());
        let cache = folder.path().join(file.replace('/', "-"));
        server.lie(&file, Lie::Zeros);
        let (found, _) = audited(&server, &cache);
        assert!(found.damaged.iter().any(|damaged| damaged.file == file), "{file}: {:?}", found.damaged);
        let honest = Served::new(indexed(&memory), Manner::default());
        let (found, told) = audited(&honest, &cache);
        assert_eq!((found.outcome, found.damaged.len(), told.wrong), (Outcome::Matches, 0, 0), "{file}");
    }
}

/// An error of a server, of a store or of an engine is no word about bytes: what the cache has stays, and nothing is called wrong.
#[test]
fn only_wrong_bytes_are_doubted() {
    let (run, server, folder) = with_frozen();
    let records = transcript::read(run.at(names::TRANSCRIPT)).unwrap().0.records;
    let cache = folder.path().join("cache");
    let made = Cache::at(&cache, MOST).unwrap();
    let there = Run::of(made.around(at(&server))).unwrap();
    states::after(&there, &records, 4).unwrap();
    let all = blocks(&cache);
    let io = |kind: ErrorKind| RunError::io(Path::new("there"))(kind.into());
    let fails = [AuditError::Engine(EngineError::OutOfTime), AuditError::Limit("enough".into())];
    let kinds =
        [ErrorKind::PermissionDenied, ErrorKind::TimedOut, ErrorKind::InvalidData, ErrorKind::NotFound];
    let errors = fails.into_iter().chain(kinds.map(|kind| AuditError::Run(io(kind))));
    for error in errors {
        let (text, mut error, mut reads) = (error.to_string(), Some(error), 0);
        let found = states::settled(&there, &records, 4, || {
            reads += 1;
            Err::<(), _>(error.take().unwrap_or_else(|| AuditError::Limit("a second read".into())))
        });
        assert_eq!((found.unwrap_err().to_string(), reads), (text, 1));
        assert!(made.told().wrong == 0 && blocks(&cache) == all);
    }
    let file = there.promised(names::checkpoint(4), "state", records[4].state());
    assert!(file.settled(|_| Err::<(), _>(io(ErrorKind::TimedOut))).is_err());
    assert!(made.told().wrong == 0 && blocks(&cache) == all);
    assert!(file.settled(|file| Err::<(), _>(RunError::invalid(file.path(), "it is wrong"))).is_err());
    assert!(made.told().wrong == 1 && blocks(&cache).len() < all.len());
}

/// A run whose frozen parameters lie in checkpoint 0, a server of it, and its folder.
fn with_frozen() -> (Run, Served, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let at_folder = |name: &str| folder.path().join(name);
    let text = fs::read_to_string(gpt_job(folder.path(), "operator", "")).unwrap();
    let run = trained(&at_folder("job.toml"), &at_folder("seeded"), None);
    fs::copy(run.layout.model(), at_folder("weights.safetensors")).unwrap();
    let end = "[init]\nweights = [\"weights.safetensors\"]\n";
    let tuned = format!("frozen = [\"token_embedding\"]\n{text}\n{end}");
    fs::write(at_folder("tuned.toml"), tuned).unwrap();
    let run = trained(&at_folder("tuned.toml"), &at_folder("tuned"), None);
    let files = crate::common::files(&run.layout.root);
    let files = files.into_iter().map(|(name, bytes)| (name.to_str().unwrap().replace('\\', "/"), bytes));
    let memory = Memory::holding(files.collect::<BTreeMap<_, _>>());
    let server = Served::new(indexed(&memory), Manner::default());
    (run, server, folder)
}

/// Checkpoint 0 has no record of its own in a replay of a later step.
#[test]
fn lies_about_the_frozen_parameters_of_checkpoint_0_are_the_caches() {
    let (run, server, folder) = with_frozen();
    let at_folder = |name: &str| folder.path().join(name);
    let records = transcript::read(run.at(names::TRANSCRIPT)).unwrap().0.records;
    let due = states::after(&run, &records, 4).unwrap();
    for all_checks in [false, true] {
        let cache = at_folder("cache");
        let through = || {
            let made = Cache::at(&cache, MOST).unwrap();
            (Run::of(made.around(at(&server))).unwrap(), made)
        };
        let read = |run: &Run| match all_checks {
            true => states::Checkpoints::of(run).check(&records, 4).map(|()| due.clone()),
            false => states::after(run, &records, 4),
        };
        assert!(read(&through().0).unwrap() == due);
        let all = blocks(&cache);
        assert!(all.len() >= 2, "two files");
        for block in all {
            forge(&block, |bytes| bytes.fill(0xff));
            let (there, made) = through();
            assert!(read(&there).unwrap() == due, "{block:?}");
            assert!((1..=2).contains(&made.told().wrong), "{block:?}");
            assert!(read(&through().0).unwrap() == due);
        }
        fs::remove_dir_all(cache).unwrap();
    }
}

/// The part of a store that nobody uses here.
macro_rules! nothing_is_written {
    () => {
        fn replace(&self, _: &str, _: &mut tiebreak_run::run::Contents) -> io::Result<()> {
            unreachable!("nothing is written")
        }
        fn append(&self, _: &str, _: &[u8]) -> io::Result<()> {
            unreachable!("nothing is written")
        }
        fn truncate(&self, _: &str, _: u64) -> io::Result<()> {
            unreachable!("nothing is written")
        }
        fn sync(&self, _: &str) -> io::Result<()> {
            unreachable!("nothing is written")
        }
        fn remove(&self, _: &str) -> io::Result<()> {
            unreachable!("nothing is written")
        }
        fn lock(&self, _: &str) -> io::Result<Box<dyn tiebreak_run::run::Held>> {
            unreachable!("nothing is written")
        }
    };
}

/// A store of one file of so many bytes, that counts what is read of it.
struct Counted(Memory, Arc<AtomicU64>);

impl Store for Counted {
    fn place(&self) -> String {
        "counted".into()
    }
    fn length(&self, name: &str) -> io::Result<u64> {
        self.0.length(name)
    }
    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let bytes = self.0.read(name, range)?;
        self.1.fetch_add(bytes.len() as u64, Relaxed);
        Ok(bytes)
    }
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.0.list(folder)
    }
    nothing_is_written!();
}

/// A store whose two readers doubt at the same time: each has read before either doubts.
struct Together(Arc<dyn Store>, Barrier);

impl Store for Together {
    fn place(&self) -> String {
        self.0.place()
    }
    fn length(&self, name: &str) -> io::Result<u64> {
        self.0.length(name)
    }
    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.0.read(name, range)
    }
    fn read_promised(&self, name: &str, range: Range<u64>, promise: &Promise) -> io::Result<Vec<u8>> {
        self.0.read_promised(name, range, promise)
    }
    fn doubt(&self, promise: &Promise) -> bool {
        self.1.wait();
        self.0.doubt(promise)
    }
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.0.list(folder)
    }
    nothing_is_written!();
}

/// Two checkpoints come from the server alone, and the block of checkpoint 0 that both need lies.
#[test]
fn two_checkpoints_that_share_a_lie_are_both_read_again() {
    let (run, server, folder) = with_frozen();
    let records = transcript::read(run.at(names::TRANSCRIPT)).unwrap().0.records;
    let cache = folder.path().join("cache");
    let through = |most| Cache::at(&cache, most).unwrap().around(at(&server));
    let seen = states::visit(&Run::of(through(MOST)).unwrap(), &records, 0, |_, _| Ok::<_, RunError>(()));
    seen.unwrap();
    blocks(&cache).iter().for_each(|block| forge(block, |bytes| bytes.fill(0xff)));
    // A cache that takes no block gives those that it has.
    let store = Arc::new(Together(through(1000), Barrier::new(2)));
    let steps: Vec<u32> = run.checkpoint_steps().unwrap().into_iter().filter(|&step| step > 0).collect();
    thread::scope(|scope| {
        for &step in &steps[..2] {
            let (there, run, records) = (Run::of(store.clone()).unwrap(), &run, &records);
            scope.spawn(move || {
                let due = states::after(run, records, step).unwrap();
                assert!(states::after(&there, records, step).unwrap() == due, "step {step}");
            });
        }
    });
}

/// A file of `bytes` bytes, the store that has it, and the count of what is read of that.
fn counted(bytes: usize) -> (Vec<u8>, Arc<dyn Store>, Arc<AtomicU64>) {
    let contents: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
    let memory = Memory::holding([("file".to_string(), contents.clone())].into());
    let count = Arc::new(AtomicU64::new(0));
    (contents, Arc::new(Counted(memory, count.clone())), count)
}

fn promise(number: u8) -> Promise {
    Promise { kind: "data", digest: Digest([number; 32]) }
}

/// Two readers get the same wrong block before either says so: both may read again.
#[test]
fn both_readers_of_a_wrong_block_may_read_again() {
    const BYTES: u64 = 70_000;
    let folder = tempfile::tempdir().unwrap();
    let (right, store, _) = counted(BYTES as usize);
    let lies = Memory::holding([("file".to_string(), vec![0xff; BYTES as usize])].into());
    let lies = Arc::new(Counted(lies, Arc::default()));
    let made = Cache::at(folder.path(), MOST).unwrap();
    made.around(lies).read_promised("file", 0..BYTES, &promise(1)).unwrap();
    let made = Cache::at(folder.path(), MOST).unwrap();
    let (store, both) = (made.around(store), Barrier::new(2));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let read = || store.read_promised("file", 0..BYTES, &promise(1)).unwrap();
                let first = read();
                both.wait();
                assert!(first != right && store.doubt(&promise(1)) && read() == right);
                both.wait();
            });
        }
    });
    let told = made.told();
    assert_eq!((told.wrong, told.fetched, told.unasked), (1, 2 * BYTES, 0), "{told:?}");
    assert!(blocks(folder.path()).is_empty());
    assert!(!store.doubt(&promise(2)), "nobody read it");
}

#[test]
fn ranges_come_from_blocks_of_both_sizes() {
    const MIB: u64 = 1 << 20;
    let length = 3 * MIB + 70_001;
    let (contents, store, count) = counted(length as usize);
    let folder = tempfile::tempdir().unwrap();
    let store = Cache::at(folder.path(), MOST).unwrap().around(store);
    let read = |range: Range<u64>, fetched: u64| {
        let bytes = store.read_promised("file", range.clone(), &promise(1)).unwrap();
        let [first, end] = [range.start, range.end].map(|at| at.min(length) as usize);
        assert!(bytes == contents[first..end.max(first)], "{range:?}");
        assert_eq!(count.swap(0, Relaxed), fetched, "{range:?}");
    };
    // Small blocks begin and end at 64 KiB, and the last one at the file's end.
    read(0..8, 65_536);
    read(3..65_536, 0);
    read(65_535..65_537, 65_536);
    read(length - 1..length + 9, 70_001 - 65_536);
    read(length + 1..length + 2, 0);
    read(5..5, 0);
    // All between what is there comes in one piece, and large blocks where it has a whole one.
    read(100..2 * MIB + 5, 2 * MIB + 65_536 - 2 * 65_536);
    read(0..2 * MIB, 0);
    let kinds = |kind: &str| {
        blocks(folder.path()).iter().filter(|block| block.to_str().unwrap().contains(kind)).count()
    };
    assert_eq!((kinds("-l"), kinds("-s")), (1, 2 + 1 + 14 + 1));
    read(0..length, MIB);
    read(0..length, 0);
}

#[test]
fn the_bound_is_kept_and_what_was_read_last_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (most, block) = (10 * 65_568, 65_536);
    fs::write(folder.path().join("mine.txt"), vec![0; 1 << 20]).unwrap();
    let (_, store, count) = counted(100 * block as usize);
    let cache = Cache::at(folder.path(), most).unwrap();
    let store = cache.around(store);
    let read = |number: u64| {
        count.store(0, Relaxed);
        store.read_promised("file", number * block..number * block + 1, &promise(1)).unwrap();
        count.load(Relaxed) == 0
    };
    let size = || {
        let all = blocks(folder.path()).into_iter().filter(|path| !path.ends_with("mine.txt"));
        all.map(|path| path.metadata().unwrap().len()).sum::<u64>()
    };
    let aged = |number: u64, seconds: u64| {
        let name = format!("-s{number:010x}");
        let found = blocks(folder.path()).into_iter().find(|path| path.to_str().unwrap().ends_with(&name));
        let file = File::options().write(true).open(found.unwrap()).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    for number in 0..10 {
        assert!(!read(number));
        aged(number, 1000 - number);
    }
    assert_eq!(size(), most);
    // The oldest one is read, and so it is none of the oldest.
    assert!(read(0));
    assert!(!read(10));
    let there: Vec<u64> = (0..11)
        .filter(|number| {
            let name = format!("-s{number:010x}");
            blocks(folder.path()).iter().any(|path| path.to_str().unwrap().ends_with(&name))
        })
        .collect();
    assert_eq!(there, [0, 3, 4, 5, 6, 7, 8, 9, 10]);
    for number in 11..60 {
        read(number);
        assert!(size() <= most, "{}", size());
    }
    // Another process has a larger bound. The next write of this one finds what that one wrote.
    let other = Cache::at(folder.path(), MOST).unwrap().around(counted(100 * block as usize).1);
    other.read_promised("file", 0..100 * block, &promise(2)).unwrap();
    assert!(size() > 2 * most);
    read(98);
    assert!(size() <= most, "{}", size());
    assert!(folder.path().join("mine.txt").exists(), "no other file is touched");
    // What has no room is read all the same.
    let small = tempfile::tempdir().unwrap();
    let (contents, store, _) = counted(block as usize);
    let store = Cache::at(small.path(), 1000).unwrap().around(store);
    assert!(store.read_promised("file", 0..block, &promise(1)).unwrap() == contents);
    assert!(blocks(small.path()).is_empty());
}

/// A folder that is gone stands for a full disk.
#[test]
fn where_nothing_is_kept_no_more_is_read_than_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (contents, store, count) = counted(200_000);
    let cache = Cache::at(&folder.path().join("cache"), MOST).unwrap();
    let store = cache.around(store);
    let read = |range: Range<u64>| {
        let bytes = store.read_promised("file", range.clone(), &promise(1)).unwrap();
        assert!(bytes == contents[range.start as usize..range.end as usize], "{range:?}");
        count.swap(0, Relaxed)
    };
    assert_eq!((read(0..8), cache.told().refused), (65_536, None));
    fs::remove_dir_all(folder.path().join("cache")).unwrap();
    read(0..8);
    assert!(cache.told().refused.is_some());
    assert_eq!((read(3..11), read(65_530..65_540), read(131_071..199_000)), (8, 10, 67_929));
}

/// A time that has yet to come is nobody's: a block that has one goes first, or gets the time of its next read.
#[test]
fn blocks_of_the_future_go_first() {
    let folder = tempfile::tempdir().unwrap();
    let block = 65_536;
    let (_, store, count) = counted(20 * block as usize);
    let store = Cache::at(folder.path(), 8 * 65_568).unwrap().around(store);
    let read = |number: u64| {
        store.read_promised("file", number * block..number * block + 1, &promise(1)).unwrap();
        count.swap(0, Relaxed) == 0
    };
    let file = |number: u64| {
        let name = format!("-s{number:010x}");
        blocks(folder.path()).into_iter().find(|path| path.to_str().unwrap().ends_with(&name))
    };
    let later = SystemTime::now() + Duration::from_secs(1_000_000);
    for number in 0..8 {
        assert!(!read(number));
        let time = if number < 4 { later } else { SystemTime::now() - Duration::from_secs(100) };
        File::options().write(true).open(file(number).unwrap()).unwrap().set_modified(time).unwrap();
    }
    assert!(read(0), "it is there");
    assert!(file(0).unwrap().metadata().unwrap().modified().unwrap() < later);
    assert!(!read(8));
    let there = [0, 1, 4, 5, 6, 7, 8].map(|number| file(number).is_some());
    assert_eq!(there, [true, false, true, true, true, true, true]);
}

/// Several processes with one folder, which has room for a part of what they read: each gets the right bytes.
#[test]
fn caches_that_share_a_folder_give_whole_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let most = 1_500_000;
    let jobs: Vec<_> = (0..6u64)
        .map(|job| {
            let folder = folder.path().to_path_buf();
            thread::spawn(move || {
                let (contents, store, _) = counted(2_500_000);
                let cache = Cache::at(&folder, most).unwrap();
                let store = cache.around(store);
                for turn in 0..60u64 {
                    let first = (job * 7 + turn * 13) % 30 * 80_000;
                    let range = first..(first + 1 + turn * 20_000 % 300_000).min(2_500_000);
                    let bytes = store.read_promised("file", range.clone(), &promise(1)).unwrap();
                    assert!(bytes == contents[range.start as usize..range.end as usize], "{range:?}");
                }
                cache.told()
            })
        })
        .collect();
    for job in jobs {
        let told = job.join().unwrap();
        assert_eq!((told.damaged, told.wrong, told.refused), (0, 0, None));
    }
    let left = blocks(folder.path());
    assert!(left.iter().all(|path| !path.to_str().unwrap().ends_with(".partial")), "{left:?}");
    let size: u64 = left.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(size <= most + 6 * (most / 32 + 65_568), "{size}");
}

#[test]
fn a_store_on_disk_has_no_cache() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("run"), None);
    let cache = Cache::at(&folder.path().join("cache"), MOST).unwrap();
    let run = Run::open(&run.layout.root).unwrap().through(|store| cache.around(store));
    run.dataset().map(drop).unwrap();
    assert!(run.is_on_disk() && blocks(&folder.path().join("cache")).is_empty());
}

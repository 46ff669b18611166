//! `tiebreak monitor match`: each way in which a chip's snapshot is of a declared run, or not.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Command;

use serde_json::Value;
use tiebreak_monitor::matching::run_index::{self, Entry, IndexedRun};
use tiebreak_monitor::register::file::to_text;
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{Event, NO_LINK, Record, Serial, Shard};
use tiebreak_monitor::snapshot::shard_map::{ShardMap, Slice};
use tiebreak_record::commit::cosignature::cosigned;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{checkpoint, transcript};

use crate::common::edit::edit;
use crate::common::{gpt_job, key, trained};
use crate::{chips, output, path};

/// The chip's clock at a record: a second each.
pub fn time(counter: u64) -> u64 {
    1_700_000_000_000 + 1000 * counter
}

/// Writes the log of a chip to which this happened, after it began.
pub fn write_log(file: &Path, serial: &str, events: &[Event]) {
    let key = PrivateKey::generate("chip", [1; 32]).unwrap();
    let (mut previous, mut bytes) = (NO_LINK, Vec::new());
    for (counter, event) in (0..).zip([&[Event::Begin], events].concat()) {
        let serial = Serial::new(serial).unwrap();
        let signed = Record { serial, counter, time: time(counter), previous, event }.sign(&key);
        previous = signed.link();
        bytes.extend(signed.encode());
    }
    fs::write(file, bytes).unwrap();
}

fn shard(map: &ShardMap) -> Shard {
    Shard { map: map.digest(), code: Digest([9; 32]) }
}

pub fn attach(map: &ShardMap, computation: Digest) -> Event {
    Event::Attach { shard: shard(map), computation }
}

pub fn snapshot(map: &ShardMap, step: u32, digest: Digest) -> Event {
    Event::Snapshot { shard: shard(map), step, digest }
}

/// The state digests of a run's records.
pub fn states(run: &Run) -> Vec<Digest> {
    let (transcript, _) = transcript::read(&run.layout.transcript()).unwrap();
    transcript.records.iter().map(|record| record.state()).collect()
}

/// The digest of a shard of the state in a checkpoint.
pub fn shard_digest(run: &Run, step: u32, map: &ShardMap) -> Digest {
    let table = run.program().state();
    let state = checkpoint::read(&run.layout.checkpoint(step), &table).unwrap();
    let bytes = |slice: &Slice| {
        let tensor = table.iter().position(|tensor| tensor.name == slice.tensor).unwrap();
        let (first, end) = (slice.first as usize, slice.first as usize + slice.count as usize);
        Ok::<_, ()>(state[tensor][4 * first..4 * end].to_vec())
    };
    map.shard_digest(bytes).unwrap().unwrap()
}

/// A rank's map of two slices that every GPT of these tests has.
pub fn rank(run: &Run) -> ShardMap {
    let table = run.program().state();
    let slice = |index: usize, first, count| Slice { tensor: table[index].name.clone(), first, count };
    ShardMap::Slices(vec![slice(0, 16, 100), slice(table.len() - 1, 0, 8)])
}

struct World {
    folder: tempfile::TempDir,
    run: Run,
    other: Run,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let job = gpt_job(folder.path(), "step", "");
        let run = trained(&job, &folder.path().join("run"), None);
        edit(&job, &[("peak = 1e-2", "peak = 2e-2")]);
        let other = trained(&job, &folder.path().join("other"), None);
        World { folder, run, other }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Matches one log of these events with run `run`: exit code and result.
    fn matched(&self, events: &[Event], more: &[&str]) -> (i32, Value) {
        let log = path(self.folder.path(), "chip.log");
        write_log(Path::new(&log), "chip-7", events);
        let run = path(self.folder.path(), "run");
        let (code, stdout, stderr) =
            output(&[&["monitor", "match", &log, "--run", &run, "--json"], more].concat());
        let result = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code} {stdout} {stderr}"));
        (code, result)
    }

    /// The kinds of all snapshots, in order, which the exit code has to follow.
    #[track_caller]
    fn kinds(&self, events: &[Event], more: &[&str], code: i32, kinds: &[&str]) -> Value {
        let (found, result) = self.matched(events, more);
        let told: Vec<&str> =
            result["snapshots"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
        assert_eq!((found, &told[..]), (code, kinds), "{result:#}");
        let wanted = ["matches", "differs", "", "undecided"][code as usize];
        assert_eq!(result["result"], wanted);
        result
    }
}

#[test]
fn whole_states_are_matched_by_records_and_every_other_one_is_told() {
    let world = World::new();
    let whole = ShardMap::Whole;
    let (mine, theirs) = (states(&world.run), states(&world.other));
    let told = world.run.computation.id;
    let of = |told: Digest, snapshots: &[(u32, Digest)]| -> Vec<Event> {
        let snapshots = snapshots.iter().map(|(step, digest)| snapshot(&whole, *step, *digest));
        [attach(&whole, told)].into_iter().chain(snapshots).collect()
    };
    let honest = of(told, &[(0, mine[0]), (3, mine[3]), (3, mine[3]), (8, mine[8])]);
    let result = world.kinds(&honest, &[], 0, &["matched"; 4]);
    assert_eq!(result["snapshots"][1]["by"], "record");
    // Nothing ran, and a log that is no chip's.
    world.kinds(&[Event::Idle], &[], 0, &[]);
    let empty = path(world.folder.path(), "empty.log");
    fs::write(&empty, []).unwrap();
    world.kinds(&honest, &[&empty], 3, &["matched"; 4]);

    let mut flipped = mine[3];
    flipped.0[31] ^= 1;
    let result = world.kinds(&of(told, &[(3, flipped)]), &[], 1, &["other_state"]);
    let one = &result["snapshots"][0];
    assert_eq!((&one["shown"], &one["declared"]), (&flipped.to_string().into(), &mine[3].to_string().into()));
    world.kinds(&of(told, &[(3, mine[4])]), &[], 1, &["other_step"]);
    world.kinds(
        &of(told, &[(5, mine[5]), (4, mine[4]), (6, mine[6])]),
        &[],
        1,
        &["matched", "out_of_order", "matched"],
    );
    // A training that goes on from a checkpoint attaches itself again.
    let resumed = [of(told, &[(5, mine[5])]), of(told, &[(4, mine[4])])].concat();
    world.kinds(&resumed, &[], 0, &["matched"; 2]);
    // Another run's states, which nobody declared; then declared, but the chip was told something else.
    let hidden = of(world.other.computation.id, &[(3, theirs[3])]);
    world.kinds(&hidden, &[], 1, &["undeclared"]);
    let other = path(world.folder.path(), "other");
    world.kinds(&hidden, &["--run", &other], 0, &["matched"]);
    world.kinds(&of(told, &[(3, theirs[3])]), &["--run", &other], 1, &["other_computation"]);
    world.kinds(&[snapshot(&whole, 3, mine[3])], &[], 1, &["unattached"]);
    // A training that shows nothing: nobody declared it, or it did not answer.
    let silent = |events: &[Event], code: i32, kind: &str| {
        let (found, result) = world.matched(events, &[]);
        assert_eq!((found, result["silent"][0]["kind"].as_str()), (code, Some(kind)), "{result:#}");
        assert_eq!(result["silent"].as_array().unwrap().len(), 1);
    };
    let missed = Event::Unanswered(shard(&whole));
    silent(&[attach(&whole, world.other.computation.id)], 1, "undeclared_training");
    silent(&[attach(&whole, world.other.computation.id), missed], 1, "undeclared_training");
    silent(&[attach(&whole, told), snapshot(&whole, 3, mine[3]), missed, missed], 3, "unanswered");
    silent(&[missed], 3, "unanswered");
    world.kinds(&of(told, &[]), &[], 0, &[]);
    // A head that does not cover the step yet.
    fs::remove_file(world.run.layout.head(10)).unwrap();
    fs::remove_file(world.run.layout.head(7)).unwrap();
    world.kinds(&of(told, &[(3, mine[3]), (8, mine[8])]), &[], 3, &["matched", "uncovered"]);
}

#[test]
fn slices_are_matched_by_checkpoints_and_replays() {
    let world = World::new();
    let map = rank(&world.run);
    let (told, file) = (world.run.computation.id, path(world.folder.path(), "rank.map"));
    fs::write(&file, map.to_text()).unwrap();
    let digests = [2, 4].map(|step| shard_digest(&world.run, step, &map));
    let events = |told, digests: [Digest; 2]| {
        [attach(&map, told), snapshot(&map, 2, digests[0]), snapshot(&map, 4, digests[1])]
    };
    let honest = events(told, digests);
    world.kinds(&honest, &[], 3, &["unknown_map"; 2]);
    let given = ["--shards", &file];
    let by = |result: &Value| [0, 1].map(|i| result["snapshots"][i]["by"].as_str().unwrap().to_string());
    let result = world.kinds(&honest, &given, 0, &["matched"; 2]);
    assert_eq!(by(&result), ["checkpoint", "checkpoint"]);
    // Without its checkpoint the state of step 4 is replayed.
    fs::remove_file(world.run.layout.checkpoint(4)).unwrap();
    let result = world.kinds(&honest, &given, 0, &["matched"; 2]);
    assert_eq!(by(&result), ["checkpoint", "replay"]);
    let mut flipped = digests;
    flipped[1].0[0] ^= 1;
    let result = world.kinds(&events(told, flipped), &given, 1, &["matched", "other_state"]);
    assert_eq!(result["snapshots"][1]["declared"], digests[1].to_string());
    world.kinds(&events(Digest([3; 32]), digests), &given, 1, &["other_computation"; 2]);
    world.kinds(&events(Digest([3; 32]), flipped), &given, 1, &["other_computation", "undeclared"]);
    let large = ShardMap::Slices(vec![Slice { tensor: "param/none".into(), first: 0, count: 1 }]);
    fs::write(&file, large.to_text()).unwrap();
    let events = [attach(&large, told), snapshot(&large, 2, digests[0])];
    world.kinds(&events, &given, 1, &["unfit_map"]);
    let (code, stdout, _) = output(&["monitor", "match", &file, "--run", &path(world.folder.path(), "run")]);
    assert!(code == 3 && stdout.contains("has no record"), "a map is no log: {stdout}");
}

#[test]
fn a_run_that_deviates_or_lacks_its_data_decides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let cheat = trained(&job, &folder.path().join("cheat"), Some("weight-before@5"));
    edit(&job, &[("\"text.txt\"", "\"text.txt\"\ncopy = false")]);
    let run = trained(&job, &folder.path().join("run"), None);
    let map = rank(&run);
    let file = path(folder.path(), "rank.map");
    fs::write(&file, map.to_text()).unwrap();
    let log = path(folder.path(), "chip.log");
    let matched = |run: &Run, step: u32, more: &[&str]| {
        let digest = shard_digest(run, step, &map);
        let hidden = fs::read(run.layout.checkpoint(step)).unwrap();
        write_log(
            Path::new(&log),
            "chip-7",
            &[attach(&map, run.computation.id), snapshot(&map, step, digest)],
        );
        fs::remove_file(run.layout.checkpoint(step)).unwrap();
        let folder = run.layout.root.to_str().unwrap();
        let base = ["monitor", "match", &log, "--run", folder, "--shards", &file, "--json"];
        let (code, stdout, stderr) = output(&[&base, more].concat());
        fs::write(run.layout.checkpoint(step), hidden).unwrap();
        let result: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stderr}"));
        (code, result["snapshots"][0].clone())
    };
    let (code, one) = matched(&cheat, 6, &[]);
    assert_eq!((code, &one["kind"], &one["step"]), (3, &"deviates".into(), &5.into()), "{one}");
    assert!(one["what"].as_str().unwrap().contains("`tiebreak audit`"), "{one}");
    assert_eq!(matched(&cheat, 4, &[]).1["kind"], "matched");
    let (code, one) = matched(&run, 6, &[]);
    assert_eq!((code, &one["kind"]), (3, &"unreached".into()), "{one}");
    let data = folder.path().to_str().unwrap();
    assert_eq!(matched(&run, 6, &["--data", data]).0, 0);
}

#[test]
fn a_run_that_was_declared_after_a_chip_saw_it_is_told() {
    let world = World::new();
    let whole = ShardMap::Whole;
    let events = [attach(&whole, world.run.computation.id), snapshot(&whole, 3, states(&world.run)[3])];
    let witness = PrivateKey::generate("witness.example", [4; 32]).unwrap();
    let (public, other) = (witness.public().to_text(), PrivateKey::generate("other", [5; 32]).unwrap());
    let asked = ["--witness", &public];
    let head = world.run.layout.head(1);
    let note = fs::read_to_string(&head).unwrap();
    world.kinds(&events, &asked, 3, &["unwitnessed"]);
    // The chip's record 1 is the attachment.
    let attached = time(1) / 1000;
    fs::write(&head, cosigned(&note, &witness, attached - 5).unwrap()).unwrap();
    let result = world.kinds(&events, &asked, 0, &["matched"]);
    assert_eq!(result["runs"][0]["cosigned"], attached - 5);
    world.kinds(&events, &["--witness", &other.public().to_text()], 3, &["unwitnessed"]);
    fs::write(&head, cosigned(&note, &witness, attached + 5).unwrap()).unwrap();
    let result = world.kinds(&events, &asked, 1, &["late"]);
    assert!(result["snapshots"][0]["what"].as_str().unwrap().contains(" 5 s after"), "{result}");
    world.kinds(&events, &["--witness", &public, "--clock-skew", "5"], 0, &["matched"]);
    // A cosignature whose time somebody changed is no signature.
    let forged =
        cosigned(&note, &other, attached).unwrap().replace("\u{2014} other", "\u{2014} witness.example");
    fs::write(&head, forged).unwrap();
    world.kinds(&events, &asked, 3, &["unwitnessed"]);
    assert!(world.at("run").is_dir());
}

#[test]
fn a_register_tells_who_wrote_a_log_and_a_key_who_signed_a_run() {
    let world = World::new();
    let whole = ShardMap::Whole;
    let events = [attach(&whole, world.run.computation.id), snapshot(&whole, 3, states(&world.run)[3])];
    let result = world.kinds(&events, &[], 0, &["matched"]);
    assert_eq!(
        (&result["logs"][0]["defects"], &result["runs"][0]["signature_checked"]),
        (&Value::Null, &false.into())
    );
    // The chip of this log has the key 1; another one has it in the second register.
    let registered = |seed: u8, name: &str| {
        let mut register = Register::new("example").unwrap();
        let mut entry = chips::enter("chip-7", seed, 0, None);
        entry.time = time(0) / 1000 - 100;
        register.append(entry).unwrap();
        fs::write(world.at(name), to_text(&register, &key())).unwrap();
        path(world.folder.path(), name)
    };
    let (right, wrong) = (registered(1, "right.register"), registered(2, "wrong.register"));
    let registrar = key().public().to_text();
    let result = world.kinds(&events, &["--register", &right, "--registrar", &registrar], 0, &["matched"]);
    assert_eq!(
        (&result["logs"][0]["defects"]["all"], &result["register_checked"]),
        (&0.into(), &true.into())
    );
    let result = world.kinds(&events, &["--register", &wrong], 1, &["matched"]);
    let defects = &result["logs"][0]["defects"];
    assert_eq!(
        (&defects["all"], &defects["first"][0]["kind"]),
        (&3.into(), &"signature".into()),
        "{result:#}"
    );
    assert_eq!((&result["counts"]["defects"], &result["register_checked"]), (&3.into(), &false.into()));

    let result = world.kinds(&events, &["--trainer-key", &registrar], 0, &["matched"]);
    assert_eq!(result["runs"][0]["signature_checked"], true);
    let other = PrivateKey::generate("other", [3; 32]).unwrap().public().to_text();
    world.kinds(&events, &["--trainer-key", &other, "--trainer-key", &registrar], 0, &["matched"]);
    let log = path(world.folder.path(), "chip.log");
    let run = path(world.folder.path(), "run");
    let (code, _, said) = output(&["monitor", "match", &log, "--run", &run, "--trainer-key", &other]);
    assert!(code == 4 && said.contains("names the trainer key"), "{code}: {said}");
}

#[test]
fn an_index_leads_to_the_runs_that_a_log_is_about() {
    let world = World::new();
    let whole = ShardMap::Whole;
    let (index, log) = (path(world.folder.path(), "index"), path(world.folder.path(), "chip.log"));
    let all = path(world.folder.path(), "");
    let (code, stdout, stderr) = output(&["monitor", "index", &all, "--out", &index, "--json"]);
    let made: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code}: {stderr}"));
    // The initial state and eight steps of each run.
    assert_eq!((&made["runs"], &made["states"]), (&2.into(), &18.into()));
    let matched = |told: Digest, step: u32, digest: Digest| -> (i32, Value) {
        write_log(Path::new(&log), "chip-7", &[attach(&whole, told), snapshot(&whole, step, digest)]);
        let (code, stdout, stderr) = output(&["monitor", "match", &log, "--index", &index, "--json"]);
        (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code}: {stderr}")))
    };
    let kind = |(code, result): (i32, Value)| {
        let kind = result["snapshots"][0]["kind"].as_str().unwrap().to_string();
        (code, kind, result["index"]["opened"].as_u64().unwrap())
    };
    let (mine, theirs) = (states(&world.run), states(&world.other));
    let [told, nobody] = [world.run.computation.id, Digest([9; 32])];
    assert_eq!(kind(matched(told, 3, mine[3])), (0, "matched".into(), 1));
    assert_eq!(kind(matched(told, 3, nobody)), (1, "other_state".into(), 1));
    // The run of another computation is found by its state.
    assert_eq!(kind(matched(nobody, 3, theirs[3])), (1, "other_computation".into(), 1));
    assert_eq!(kind(matched(told, 3, theirs[3])), (1, "other_computation".into(), 2));
    assert_eq!(kind(matched(nobody, 3, nobody)), (1, "undeclared".into(), 0));

    let failed = |code: i32, words: &str| {
        let (found, _, said) = output(&["monitor", "match", &log, "--index", &index]);
        assert!(found == code && said.contains(words), "{found}: {said}");
    };
    write_log(Path::new(&log), "chip-7", &[attach(&whole, told), snapshot(&whole, 3, mine[3])]);
    // Another run is in the folder since.
    let moved = world.at("moved");
    fs::rename(world.at("run"), &moved).unwrap();
    fs::rename(world.at("other"), world.at("run")).unwrap();
    failed(2, "make the index again");
    fs::rename(world.at("run"), world.at("other")).unwrap();
    fs::rename(&moved, world.at("run")).unwrap();
    let mut bytes = fs::read(&index).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&index, bytes).unwrap();
    failed(4, "block 0 was edited");
    // Counts that the file cannot hold, an address in place of a folder, and no file.
    let mut bytes = fs::read(&index).unwrap();
    let counts = run_index::HEADER.len() + 1;
    bytes[counts + 8..counts + 16].copy_from_slice(&run_index::ENTRIES_MAX.to_le_bytes());
    fs::write(&index, bytes).unwrap();
    failed(4, "take at least");
    let mut far = Vec::new();
    let (run, address) = (world.run.id, "http://127.0.0.1:9/run".to_string());
    let indexed = IndexedRun { path: address, run, computation: told, records: 10 };
    run_index::write(&mut far, &[indexed], vec![Entry::new(&mine[3], 0)]).unwrap();
    fs::write(&index, far).unwrap();
    failed(4, "the whole path of a folder is wanted");
    #[cfg(unix)]
    {
        fs::remove_file(&index).unwrap();
        assert!(Command::new("mkfifo").arg(&index).status().unwrap().success());
        failed(4, "a plain file is wanted");
        fs::remove_file(&index).unwrap();
    }
    let none = path(world.folder.path(), "none");
    fs::create_dir(&none).unwrap();
    let (code, _, said) = output(&["monitor", "index", &none, "--out", &index]);
    assert!(code == 2 && said.contains("is not a run"), "{code}: {said}");
}

/// A chip writes one log: two that differ are evidence, and one that begins with the other adds nothing.
#[test]
fn two_logs_of_a_chip_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let logs = ["first.log", "forked.log", "shorter.log"].map(|name| path(folder.path(), name));
    let map = Digest([3; 32]);
    let events = |digest: u8| {
        let shard = Shard { map, code: Digest([9; 32]) };
        let computation = Digest([4; 32]);
        let digest = Digest([digest; 32]);
        [Event::Attach { shard, computation }, Event::Snapshot { shard, step: 1, digest }]
    };
    write_log(Path::new(&logs[0]), "A-1", &events(1));
    write_log(Path::new(&logs[1]), "A-1", &events(2));
    write_log(Path::new(&logs[2]), "A-1", &events(1)[..1]);
    let matched = |other: &str| output(&["monitor", "match", &logs[0], other, "--run", "none"]);
    let (code, _, stderr) = matched(&logs[1]);
    assert!(code == 1 && stderr.contains("are both of chip A-1, and their records 2 differ"), "{stderr}");
    for same in [&logs[0], &logs[2]] {
        let (code, _, stderr) = matched(same);
        assert!(code == 2 && stderr.contains("one begins with the other"), "{stderr}");
    }
}

//! The agent with a clock, random times and a memory that the tests command: no test waits.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

use super::{Agent, Chip};
use crate::chip::chain::Chain;
use crate::chip::clock::Clock;
use crate::chip::keeper::{self, Keeper, KeeperError, LogFile, Resumed};
use crate::chip::times::Times;
use crate::snapshot::log::ChipLog;
use crate::snapshot::record::{Event, RECORD_BYTES, Serial, Shard, SignedRecord};

const SECOND: u64 = 1_000_000;

/// Clocks that only a test moves: milliseconds of the day, and microseconds that elapse.
#[derive(Clone, Default)]
struct Hands(Rc<Cell<(u64, u64)>>);

impl Hands {
    fn pass(&self, seconds: u64) {
        let (wall, elapsed) = self.0.get();
        self.0.set((wall + 1000 * seconds, elapsed + SECOND * seconds));
    }

    fn set(&self, wall: u64) {
        self.0.set((wall, self.0.get().1));
    }
}

impl Clock for Hands {
    fn wall(&self) -> u64 {
        self.0.get().0
    }

    fn elapsed(&self) -> u64 {
        self.0.get().1
    }
}

/// A log in memory, whose power fails after so many more bytes.
#[derive(Clone, Default)]
struct Memory {
    bytes: Rc<RefCell<Vec<u8>>>,
    power: Option<usize>,
}

impl keeper::Memory for Memory {
    fn length(&mut self) -> io::Result<u64> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.bytes.borrow()[at as usize..][..bytes.len()]);
        Ok(())
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.bytes.borrow_mut().truncate(length as usize);
        Ok(())
    }

    fn extend(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.power.map_or(bytes.len(), |power| power.min(bytes.len()));
        self.bytes.borrow_mut().extend(&bytes[..written]);
        self.power = self.power.map(|power| power - written);
        if written < bytes.len() { Err(io::Error::other("the power failed")) } else { Ok(()) }
    }
}

/// The same gap again and again.
struct Every(u64);

impl Times for Every {
    fn gap(&mut self) -> u64 {
        self.0 * SECOND
    }
}

fn key(seed: u8) -> PrivateKey {
    PrivateKey::generate("chip.example", [seed; 32]).unwrap()
}

fn chip() -> Chip {
    Chip { serial: Serial::new("chip-1").unwrap(), key: key(1), patience: Duration::from_secs(4) }
}

type Tested = Agent<Hands, Memory, Every>;

/// An agent with a snapshot due every ten seconds, and a patience of four.
fn begun(hands: &Hands, log: &Memory) -> Result<Tested, KeeperError> {
    Agent::begin(chip(), hands.clone(), log.clone(), |_| Every(10))
}

fn started() -> (Hands, Memory, Tested) {
    let (hands, log) = (Hands::default(), Memory::default());
    hands.set(1_000_000);
    let agent = begun(&hands, &log).unwrap();
    (hands, log, agent)
}

/// The events of a log that every rule of the chain holds for.
fn events(log: &Memory) -> Vec<Event> {
    let log = ChipLog::read(&log.bytes.borrow()).unwrap();
    let mut chain = Chain::new(chip().serial, key(1).public());
    let event = |signed| {
        chain.check(signed).unwrap();
        signed.record.event
    };
    log.records.iter().map(event).collect()
}

fn shard(byte: u8) -> Shard {
    Shard { map: Digest([byte; 32]), code: Digest([2; 32]) }
}

fn attached(byte: u8) -> Event {
    Event::Attach { shard: shard(byte), computation: Digest([3; 32]) }
}

fn snapshot(step: u32) -> Event {
    Event::Snapshot { shard: shard(1), step, digest: Digest([9; 32]) }
}

#[test]
fn each_due_time_has_one_record_whatever_the_training_does() {
    let (hands, log, mut agent) = started();
    let mut expected = vec![Event::Begin];
    assert_eq!(agent.wakes_in(), Duration::from_secs(10));
    hands.pass(25); // due at 10 and 20
    agent.poll().unwrap();
    expected.extend([Event::Idle, Event::Idle]);
    assert_eq!(agent.attach(shard(1), Digest([3; 32])).unwrap(), 3);
    expected.push(attached(1));
    // A training that is asked for nothing has nothing to say.
    assert_eq!(agent.snapshot(4, Digest([9; 32])).unwrap(), None);
    hands.pass(6); // due at 30
    agent.poll().unwrap();
    assert!(agent.asks());
    assert_eq!(agent.wakes_in(), Duration::from_secs(3));
    assert_eq!(agent.snapshot(5, Digest([9; 32])).unwrap(), Some(4));
    expected.push(snapshot(5));
    hands.pass(13); // due at 40, patience ends at 44
    agent.poll().unwrap();
    expected.push(Event::Unanswered(shard(1)));
    assert_eq!(agent.snapshot(6, Digest([9; 32])).unwrap(), None);
    // Two that are due are answered by one state, and one that is due when the training goes is unanswered.
    agent.chip.patience = Duration::from_secs(40);
    hands.pass(17); // due at 50 and 60
    assert_eq!(agent.snapshot(7, Digest([9; 32])).unwrap(), Some(7));
    expected.extend([snapshot(7), snapshot(7)]);
    hands.pass(10); // due at 70
    agent.detach().unwrap();
    expected.push(Event::Unanswered(shard(1)));
    assert!(!agent.asks() && !agent.is_attached());
    hands.pass(10); // due at 80
    agent.poll().unwrap();
    expected.push(Event::Idle);
    assert_eq!(events(&log), expected);
    assert_eq!(agent.take_appended().len(), expected.len());
    assert!(agent.take_appended().is_empty());
}

/// An agent that did not run for a while writes what was due meanwhile, in order.
#[test]
fn a_stopped_agent_catches_up_in_order() {
    let (hands, log, mut agent) = started();
    agent.attach(shard(1), Digest([3; 32])).unwrap();
    hands.pass(33); // due at 10, 20 and 30; patience ends at 14 and 24
    assert_eq!(agent.snapshot(1, Digest([9; 32])).unwrap(), Some(4));
    let unanswered = Event::Unanswered(shard(1));
    assert_eq!(events(&log), [Event::Begin, attached(1), unanswered, unanswered, snapshot(1)]);
}

/// A keeper that takes so many seconds for each record.
struct Slow(Memory, Hands, Rc<Cell<u64>>);

impl Keeper for Slow {
    fn resume(&mut self, serial: &Serial, key: &PublicKey) -> Result<Resumed, KeeperError> {
        self.0.resume(serial, key)
    }

    fn append(&mut self, record: &SignedRecord) -> Result<(), KeeperError> {
        self.1.pass(self.2.get());
        self.0.append(record)
    }
}

#[test]
fn no_patience_runs_while_the_keeper_holds_the_training_up() {
    let (hands, log, seconds) = (Hands::default(), Memory::default(), Rc::new(Cell::new(0)));
    let keeper = Slow(log.clone(), hands.clone(), seconds.clone());
    let mut agent = Agent::begin(chip(), hands.clone(), keeper, |_| Every(10)).unwrap();
    agent.attach(shard(1), Digest([3; 32])).unwrap();
    hands.pass(10);
    agent.poll().unwrap();
    // The record of the snapshot that was due at 10 is kept at 75; snapshots were due at 20 to 70.
    seconds.set(65);
    assert_eq!(agent.snapshot(1, Digest([9; 32])).unwrap(), Some(2));
    agent.poll().unwrap();
    assert!(agent.asks());
    assert_eq!(agent.wakes_in(), Duration::from_secs(4));
    // The first of the six is held up again: the patience for the others does not run.
    hands.pass(2);
    seconds.set(3);
    assert_eq!(agent.snapshot(2, Digest([9; 32])).unwrap(), Some(8));
    assert_eq!(events(&log)[2..], [[snapshot(1)].as_slice(), &[snapshot(2); 6]].concat());
    // The time after a hold counts: at 95 one was due at 80, whose patience ended at 89 (84, and 5 s more in holds), and one at 90.
    seconds.set(0);
    agent.poll().unwrap();
    assert_eq!(hands.0.get().1, 95 * SECOND);
    agent.detach().unwrap();
}

#[test]
fn a_second_attachment_takes_the_place_of_the_first() {
    let (hands, log, mut agent) = started();
    agent.attach(shard(1), Digest([3; 32])).unwrap();
    hands.pass(11);
    agent.attach(shard(5), Digest([3; 32])).unwrap();
    hands.pass(10);
    agent.detach().unwrap();
    let expected =
        [Event::Begin, attached(1), Event::Unanswered(shard(1)), attached(5), Event::Unanswered(shard(5))];
    assert_eq!(events(&log), expected);
}

#[test]
fn a_clock_that_is_set_back_is_recorded_and_due_times_do_not_follow_it() {
    let (hands, log, mut agent) = started();
    hands.pass(10);
    agent.poll().unwrap();
    hands.set(5);
    agent.attach(shard(1), Digest([3; 32])).unwrap();
    assert_eq!(agent.wakes_in(), Duration::from_secs(10));
    assert_eq!(events(&log), [Event::Begin, Event::Idle, Event::Clock, attached(1)]);
    let times: Vec<u64> =
        ChipLog::read(&log.bytes.borrow()).unwrap().records.iter().map(|signed| signed.record.time).collect();
    assert_eq!(times, [1_000_000, 1_010_000, 5, 5]);
    // Set back while no agent runs: the begin record comes first.
    hands.set(2);
    let agent = begun(&hands, &log).unwrap();
    assert_eq!(events(&log)[4..], [Event::Begin, Event::Clock]);
    assert_eq!(agent.records(), 6);
}

#[test]
fn a_restart_goes_on_with_the_log_and_forgets_the_training() {
    let (hands, log, mut agent) = started();
    agent.attach(shard(1), Digest([3; 32])).unwrap();
    hands.pass(12);
    agent.poll().unwrap();
    drop(agent);
    let mut counter = None;
    let restarted = Agent::begin(chip(), hands.clone(), log.clone(), |begin| {
        counter = Some(begin);
        Every(10)
    });
    let mut agent = restarted.unwrap();
    assert_eq!(counter, Some(2));
    hands.pass(10);
    agent.poll().unwrap();
    assert_eq!(events(&log), [Event::Begin, attached(1), Event::Begin, Event::Idle]);
}

/// A kill after every byte of two writes: the log that is left is a beginning of the whole one, and goes on.
#[test]
fn a_kill_at_any_byte_of_a_write_leaves_a_log_that_goes_on() {
    for power in 0..=2 * RECORD_BYTES {
        let (hands, log, agent) = started();
        drop(agent);
        let failing = Memory { power: Some(power), ..log.clone() };
        let died = begun(&hands, &failing).and_then(|mut agent| agent.attach(shard(1), Digest([3; 32])));
        assert_eq!(died.is_ok(), power == 2 * RECORD_BYTES, "{power} bytes");
        let agent = begun(&hands, &log).unwrap();
        assert_eq!(agent.torn(), (power % RECORD_BYTES) as u64);
        let mut expected = vec![Event::Begin, Event::Begin, attached(1)];
        expected.truncate(1 + power / RECORD_BYTES);
        expected.push(Event::Begin);
        assert_eq!(events(&log), expected, "{power} bytes");
    }
}

/// Each fault of a log that is there has its own words, with the record's number.
#[test]
fn a_log_that_this_chip_did_not_write_is_refused() {
    let (hands, log, mut agent) = started();
    hands.pass(10);
    agent.poll().unwrap();
    agent.attach(shard(1), Digest([3; 32])).unwrap();
    hands.pass(10);
    agent.snapshot(1, Digest([9; 32])).unwrap();
    let whole = log.bytes.borrow().clone();
    let error = |chip: Chip, bytes: Vec<u8>| {
        let log = Memory { bytes: Rc::new(RefCell::new(bytes.clone())), power: None };
        let Err(error) = Agent::begin(chip, hands.clone(), log.clone(), |_| Every(10)) else {
            panic!("the log is accepted")
        };
        assert_eq!(*log.bytes.borrow(), bytes, "a log that is refused is changed");
        error.to_string()
    };
    let refused = |bytes: Vec<u8>, says: &str| {
        let error = error(chip(), bytes);
        assert!(error.contains(says), "{error}");
    };
    let serial = Serial::new("chip-2").unwrap();
    assert!(
        error(Chip { serial, ..chip() }, whole.clone())
            .contains("record 0 of the log: chip record: it is of the chip chip-1")
    );
    let other = Chip { key: key(2), ..chip() };
    assert!(error(other, whole.clone()).contains("record 0 of the log: chip record: the key chip.example+"));
    let record = |index: usize| whole[index * RECORD_BYTES..][..RECORD_BYTES].to_vec();
    refused(
        [record(0), record(2)].concat(),
        "record 1 of the log: chip record: its counter is 2, and 1 comes next",
    );
    refused([record(0), record(0)].concat(), "record 1 of the log: chip record: its counter is 0");
    refused(record(1), "record 0 of the log: chip record: its counter is 1");
    refused([record(0), vec![7; RECORD_BYTES]].concat(), "record 1 of the log");
    let mut flipped = whole.clone();
    flipped[3 * RECORD_BYTES - 1] ^= 1;
    refused(flipped, "record 2 of the log: chip record: the key chip.example+");
    // Records that the key signed, but that no agent wrote.
    let signed = |change: &dyn Fn(&mut Vec<crate::snapshot::record::Record>)| {
        let mut records: Vec<_> =
            ChipLog::read(&whole).unwrap().records.into_iter().map(|signed| signed.record).collect();
        change(&mut records);
        records.into_iter().flat_map(|record| record.sign(&key(1)).encode()).collect::<Vec<u8>>()
    };
    assert_eq!(signed(&|_| {}), whole);
    refused(
        signed(&|records| records[1].previous = Digest([0; 32])),
        "record 1 of the log: chip record: its link",
    );
    refused(
        signed(&|records| records[0].event = Event::Idle),
        "record 0 of the log: chip record: a log starts with a begin",
    );
    refused(signed(&|records| records[2].time += 1), "record 3 of the log: chip record: its link");
    let last = |change: &dyn Fn(&mut crate::snapshot::record::Record)| {
        signed(&|records| change(records.last_mut().unwrap()))
    };
    refused(
        last(&|record| record.time = 7),
        "record 3 of the log: chip record: its time is 7, before the 1010000",
    );
    let moved = |record: &mut crate::snapshot::record::Record| record.event = Event::Unanswered(shard(5));
    refused(last(&moved), "record 3 of the log: chip record: it has map");
}

#[test]
fn two_agents_on_one_file_are_refused_and_the_file_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chip.log");
    let begun = || {
        let keeper = LogFile::open(&path)?;
        Agent::begin(chip(), Hands::default(), keeper, |_| Every(10))
    };
    let mut first = begun().unwrap();
    let Err(error) = begun() else { panic!("two agents have one log") };
    assert!(error.to_string().contains("another agent writes this log"), "{error}");
    first.attach(shard(1), Digest([3; 32])).unwrap();
    drop(first);
    // A crash of the machine left half a record.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], &whole[..100]].concat()).unwrap();
    let second = begun().unwrap();
    assert_eq!((second.torn(), second.records()), (100, 3));
    drop(second);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(
        events(&Memory { bytes: Rc::new(RefCell::new(bytes)), power: None }),
        [Event::Begin, attached(1), Event::Begin]
    );
    #[cfg(unix)]
    {
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(LogFile::open(&link).unwrap_err().to_string().contains("a plain file is wanted"));
    }
}

//! Records that a collector takes, and a refusal of each kind.

use tiebreak_monitor::register::entry::Change;
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{Event, Record, SignedRecord};
use tiebreak_record::commit::digest::Digest;

use super::{NEW, Refusal, State, admit, attribute};
use crate::made::{BEGIN, Chip, entry, key, register, serial, shard};

/// Some time after all records, in milliseconds.
const NOW: u64 = (BEGIN + 1_000_000) * 1000;

fn taken(register: &Register, state: &State, signed: &SignedRecord) -> Result<State, Refusal> {
    admit(register, state, &attribute(register, signed.clone())?, NOW)
}

/// The state after the first records of a log.
fn after(register: &Register, log: &[SignedRecord]) -> State {
    log.iter().fold(NEW, |state, signed| taken(register, &state, signed).unwrap())
}

#[track_caller]
fn refused(found: Result<State, Refusal>, kind: &str, status: u16, says: &str) {
    let refusal = found.unwrap_err();
    assert_eq!((refusal.kind(), refusal.status()), (kind, status), "{refusal}");
    assert!(refusal.to_string().contains(says), "{refusal}");
}

#[test]
fn an_honest_log_is_taken_record_by_record() {
    let (register, chip) = (register(2), Chip::with(1, 6));
    let state = after(&register, &chip.log);
    assert_eq!(state.end.records, 6);
    assert_eq!((state.end.link, state.end.shard), (chip.log[5].link(), Some(shard(1))));
    assert_eq!((state.end.time, state.latest), ((BEGIN + 5) * 1000, (BEGIN + 5) * 1000));
}

#[test]
fn strangers_and_false_signatures_are_refused() {
    let register = register(2);
    refused(
        taken(&register, &NEW, &Chip::with(7, 1).log[0]),
        "unknown_chip",
        403,
        "never had the chip chip-7",
    );
    let mut chip = Chip::new(1);
    chip.key = key(0);
    refused(
        taken(&register, &NEW, &chip.next(Event::Begin)),
        "signature",
        403,
        "for the chip chip-1 signed record 0",
    );
    let honest = Chip::with(1, 1).log.remove(0);
    for byte in [0, 63] {
        let mut forged = honest.clone();
        forged.signature[byte] ^= 1;
        refused(taken(&register, &NEW, &forged), "signature", 403, "signed record 0");
    }
}

#[test]
fn the_key_has_to_be_that_of_the_time() {
    let mut register = register(2);
    let change = Change::Key { key: key(20).public().to_text(), why: "repair".into() };
    register.append(entry(3, 1, change)).unwrap();
    // The old key signs up to the replacement, and no longer.
    let mut chip = Chip::with(1, 3);
    let state = after(&register, &chip.log);
    refused(
        taken(&register, &state, &chip.next(Event::Begin)),
        "replaced_key",
        403,
        "key 0 of the chip chip-1 signed record 3",
    );
    chip.key = key(20);
    chip.write(Event::Begin);
    let state = after(&register, &chip.log);
    // A clock that is set back brings the old key back neither.
    let early = |key: u8| {
        let event = Event::Clock;
        let previous = state.end.link;
        Record { serial: serial(1), counter: 4, time: BEGIN * 1000, previous, event }
            .sign(&crate::made::key(key))
    };
    refused(taken(&register, &state, &early(1)), "replaced_key", 403, "its key is number 1");
    assert!(taken(&register, &state, &early(20)).is_ok());
    // The new key did not sign earlier.
    let mut other = Chip::new(1);
    other.key = key(20);
    refused(taken(&register, &NEW, &other.next(Event::Begin)), "replaced_key", 403, "key 1 of the chip");
    // A chip that left is no chip.
    register.append(entry(4, 1, Change::Leave { why: "broken".into() })).unwrap();
    refused(taken(&register, &state, &chip.next(Event::Idle)), "not_registered", 403, "at 1700000004000 ms");
    let early = Record { time: BEGIN * 1000 - 1, ..chip.log[0].record.clone() }.sign(&key(1));
    refused(taken(&register, &NEW, &early), "not_registered", 403, "at 1699999999999 ms");
}

#[test]
fn a_record_has_to_continue_its_log() {
    let (register, chip) = (register(2), Chip::with(1, 4));
    let state = after(&register, &chip.log[..3]);
    assert!(taken(&register, &state, &chip.log[3]).is_ok());
    refused(
        taken(&register, &NEW, &chip.log[3]),
        "gap",
        409,
        "gap: 0 records of the chip chip-1 are kept, and this is record 3",
    );
    let changed = |change: &dyn Fn(&mut Record)| {
        let mut record = chip.log[3].record.clone();
        change(&mut record);
        taken(&register, &state, &record.sign(&key(1)))
    };
    refused(
        changed(&|record| record.previous = Digest([1; 32])),
        "malformed",
        400,
        "its link to the record before is 01010101",
    );
    refused(
        changed(&|record| record.time -= 2000),
        "malformed",
        400,
        "its time is 1700000001000, before the 1700000002000",
    );
    refused(
        changed(&|record| record.event = Event::Unanswered(shard(9))),
        "malformed",
        400,
        "it has map 09090909",
    );
    refused(changed(&|record| record.time = NOW + 600_001), "future", 400, "set the chip's clock");
    assert!(changed(&|record| record.time = NOW + 600_000).is_ok());
    let first = Chip::new(1).next(Event::Idle);
    refused(taken(&register, &NEW, &first), "malformed", 400, "a log starts with a begin record");
}

#[test]
fn a_log_has_an_end() {
    let register = register(2);
    let mut state = after(&register, &Chip::with(1, 1).log);
    state.end.records = 1 << 20;
    let record = Record { counter: 1 << 20, ..Chip::with(1, 1).next(Event::Idle).record }.sign(&key(1));
    refused(taken(&register, &state, &record), "full", 409, "1048576 records");
}

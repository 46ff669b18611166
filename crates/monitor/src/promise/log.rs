//! A trainer's log of promises: each with a signed head over it and all before, to which witnesses add their cosignatures.

use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::cosignature::cosigned_at;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::merkle::Frontier;
use tiebreak_record::commit::named_head::NamedHead;
use tiebreak_record::commit::{Malformed, beginning};

use super::entry::{Begin, Promise};
use crate::header;
use crate::randomness::{Randomness, commitment};

/// The most promises of a log.
pub const PROMISES_MAX: usize = 1 << 12;
/// The most bytes of a log's file.
pub const FILE_MAX: u64 = 1 << 27;
/// The first line of a log's file.
pub const HEADER: &str = "tiebreak promises 1";
const ORIGIN: &str = "tiebreak/promises/";
const WHAT: &str = "log of promises";

/// A promise, and the note of the head over it and all promises before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Headed {
    promise: Promise,
    note: String,
}

/// A trainer's log of promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promises {
    key: PublicKey,
    all: Vec<Headed>,
    leaves: Vec<Digest>,
    tree: Frontier,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid(WHAT, why)
}

/// The origin of a trainer's log. A key has one log, so that nobody keeps a second one for seeds that were not kind.
pub fn origin(key: &PublicKey) -> String {
    format!("{ORIGIN}{}", Digest(key.bytes()))
}

impl Promises {
    /// A log without promises.
    pub fn new(key: PublicKey) -> Promises {
        Promises { key, all: Vec::new(), leaves: Vec::new(), tree: Frontier::default() }
    }

    /// The trainer's key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// The promises, oldest first.
    pub fn promises(&self) -> impl ExactSizeIterator<Item = &Promise> {
        self.all.iter().map(|headed| &headed.promise)
    }

    /// The leaves of the log's tree.
    pub fn leaves(&self) -> &[Digest] {
        &self.leaves
    }

    /// The newest head's note; `None` if there are no promises.
    pub fn newest(&self) -> Option<&str> {
        self.all.last().map(|headed| headed.note.as_str())
    }

    /// The number that the next promise has as an amendment; `None` if it goes on from no other run.
    pub fn amendment(&self, begin: &Begin) -> Option<u32> {
        let Begin::Run { run, .. } = begin else { return None };
        let same =
            |promise: &&Promise| matches!(promise.begin, Begin::Run { run: other, .. } if other == *run);
        Some(self.promises().filter(same).count() as u32 + 1)
    }

    fn admit(&mut self, promise: &Promise) -> Result<NamedHead, Malformed> {
        let number = self.all.len();
        if number >= PROMISES_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: PROMISES_MAX as u64 });
        }
        promise.check()?;
        if let Some(same) = self.promises().position(|other| other.nonce == promise.nonce) {
            return Err(wrong(format!(
                "promise {number} has the nonce of promise {same}: a nonce is used once"
            )));
        }
        let due = self.amendment(&promise.begin);
        if promise.amendment != due {
            let [found, due] =
                [promise.amendment, due].map(|number| number.map_or("none".into(), |n| n.to_string()));
            return Err(wrong(format!("promise {number} has the amendment's number {found}, and not {due}")));
        }
        self.leaves.push(promise.leaf());
        self.tree.push(promise.leaf());
        let (size, root) = (self.tree.size(), self.tree.root());
        Ok(NamedHead { origin: origin(&self.key), size, root })
    }

    /// Adds a promise, signed with the log's key.
    ///
    /// # Errors
    /// If the key is another one, the log is full, or the promise contradicts itself or those before it.
    pub fn append(&mut self, promise: Promise, key: &PrivateKey) -> Result<(), Malformed> {
        if key.public() != self.key {
            let found = key.public().to_text();
            return Err(wrong(format!("the log is of the key {}, and not of {found}", self.key.to_text())));
        }
        let head = self.admit(&promise)?;
        self.all.push(Headed { promise, note: head.to_note(Some(key)) });
        Ok(())
    }

    /// Replaces the newest head's note by the same head with more signature lines.
    ///
    /// # Errors
    /// If the note is of another head, or not signed by the log's key.
    pub fn cosign(&mut self, note: String) -> Result<(), Malformed> {
        let (head, _) = NamedHead::from_note(&note, Some(&self.key), "trainer")?;
        let last = self.all.last_mut().ok_or_else(|| wrong("there is no promise yet"))?;
        let (due, _) = NamedHead::from_note(&last.note, None, "trainer")?;
        if head != due {
            return Err(wrong(format!(
                "the note is of a head of size {}, and not of {}",
                head.size, due.size
            )));
        }
        last.note = note;
        Ok(())
    }

    /// The earliest time at which a witness cosigned a head that covers promise `number`, in seconds since 1970.
    ///
    /// # Errors
    /// If a cosignature of the witness does not verify.
    pub fn witnessed(&self, number: usize, witness: &PublicKey) -> Result<Option<u64>, Malformed> {
        let covering = self.all.iter().skip(number).map(|headed| cosigned_at(&headed.note, witness));
        Ok(covering.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().min())
    }

    /// The number of the promise that a nonce is of.
    pub fn of_nonce(&self, nonce: &Digest) -> Option<usize> {
        let commitment = commitment(nonce);
        self.promises().position(|promise| promise.nonce == commitment)
    }

    /// The challenge of the run of promise `number`: H("tiebreak 2 promised-challenge", origin, number, promise, beacon, nonce).
    ///
    /// # Errors
    /// If there is no such promise, the nonce is not the promised one, or the value is none of a beacon.
    pub fn challenge(&self, number: usize, value: &str, nonce: &Digest) -> Result<Digest, Malformed> {
        let count = self.all.len();
        let headed = self
            .all
            .get(number)
            .ok_or_else(|| wrong(format!("it has {count} promises, and none is number {number}")))?;
        let promise = &headed.promise;
        if commitment(nonce) != promise.nonce {
            let found = commitment(nonce);
            return Err(wrong(format!(
                "the nonce has the commitment {found}, and promise {number} {}",
                promise.nonce
            )));
        }
        let beacon = Randomness::Beacon { round: promise.round.clone(), value: value.to_string() };
        beacon.check()?;
        let mut e = Encoder::default();
        e.bytes(origin(&self.key).as_bytes()).u64(number as u64).bytes(promise.line().as_bytes());
        beacon.encode(&mut e);
        e.digest(nonce);
        Ok(hash("tiebreak 2 promised-challenge", &e.0))
    }

    /// The one text of the log.
    pub fn to_text(&self) -> String {
        let all = self.all.iter().map(|headed| format!("{}\n{}", headed.promise.line(), headed.note));
        format!("{HEADER}\n{}\n{}", self.key.to_text(), all.collect::<String>())
    }

    /// Reads [`Promises::to_text`], and checks every head and its signature.
    ///
    /// # Errors
    /// If the text has another form, a promise contradicts those before it, or a head is another one.
    pub fn from_text(text: &str) -> Result<Promises, Malformed> {
        if text.len() as u64 > FILE_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: FILE_MAX });
        }
        let body = header::after(text, HEADER, WHAT)?;
        let (key, mut rest) =
            body.split_once('\n').ok_or_else(|| wrong("there is no line with the trainer's key"))?;
        let mut log = Promises::new(PublicKey::from_text(key)?);
        if log.key.to_text() != key {
            return Err(wrong(format!(
                "the key's line is {:?}; {:?} is wanted",
                beginning(key),
                log.key.to_text()
            )));
        }
        while !rest.is_empty() {
            let (line, after) = rest.split_once('\n').ok_or_else(|| wrong("the last line has no end"))?;
            let number = log.all.len();
            let named = |error: Malformed| wrong(format!("promise {number}: {error}"));
            let promise = Promise::from_line(line).map_err(named)?;
            // Only a promise's line begins with a brace, and a head ends where the next promise begins.
            let end = after.find("\n{").map_or(after.len(), |at| at + 1);
            let (note, next) = after.split_at(end);
            let (head, _) = NamedHead::from_note(note, Some(&log.key), "trainer").map_err(named)?;
            let due = log.admit(&promise)?;
            if head != due {
                let (root, due_root) = (head.root, due.root);
                return Err(wrong(format!(
                    "promise {number} has a head of size {} of {:?} with root {}; size {} of {:?} is due",
                    head.size,
                    beginning(&head.origin),
                    root.not(&due_root),
                    due.size,
                    due.origin
                )));
            }
            log.all.push(Headed { promise, note: note.to_string() });
            rest = next;
        }
        Ok(log)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tiebreak_record::commit::cosignature::cosigned;

    pub(in crate::promise) fn key(seed: u8) -> PrivateKey {
        PrivateKey::generate("trainer.example", [seed; 32]).unwrap()
    }

    pub(in crate::promise) fn promise(number: u8) -> Promise {
        let digest = |byte| Digest([byte; 32]);
        let nonce = commitment(&digest(number));
        let (job, program, data) = (digest(101), digest(102), digest(103));
        Promise { job, program, data, begin: Begin::Seed, amendment: None, nonce, round: "drand 4711".into() }
    }

    pub(in crate::promise) fn log(promises: u8) -> Promises {
        let mut log = Promises::new(key(1).public());
        for number in 0..promises {
            log.append(promise(number), &key(1)).unwrap();
        }
        log
    }

    #[test]
    fn a_log_has_one_text_and_every_bit_of_it_counts() {
        for promises in 0..4 {
            let mut log = log(promises);
            let text = log.to_text();
            assert_eq!(Promises::from_text(&text).unwrap(), log);
            for at in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1;
                let changed = String::from_utf8(bytes).map(|text| Promises::from_text(&text));
                assert!(!matches!(changed, Ok(Ok(_))), "byte {at} of {text}");
            }
            assert!(Promises::from_text(&text.replace('\n', "\r\n")).is_err());
            assert!(Promises::from_text(&format!("{text}\n")).is_err());
            assert!(Promises::from_text(text.trim_end()).is_err());
            if let Some(note) = log.newest().map(str::to_string) {
                let witness = PrivateKey::generate("witness.example", [9; 32]).unwrap();
                log.cosign(cosigned(&note, &witness, 77).unwrap()).unwrap();
                assert_eq!(Promises::from_text(&log.to_text()).unwrap(), log);
                assert!(
                    log.cosign(cosigned(&super::tests::log(4).all[3].note, &witness, 1).unwrap()).is_err()
                        || promises == 4
                );
            }
        }
    }

    #[test]
    fn promises_that_contradict_earlier_ones_are_refused() {
        let mut log = log(2);
        let before = log.to_text();
        assert!(log.append(promise(0), &key(1)).unwrap_err().to_string().contains("nonce of promise 0"));
        let run = |run: u8, amendment| {
            let begin = Begin::Run { run: Digest([run; 32]), after: 8, optimizer_state: false };
            Promise { begin, amendment, ..promise(50 + run) }
        };
        assert!(
            log.append(run(1, Some(2)), &key(1)).unwrap_err().to_string().contains("number 2, and not 1")
        );
        assert!(log.append(promise(9), &key(2)).is_err());
        assert_eq!(log.to_text(), before);
        log.append(run(1, Some(1)), &key(1)).unwrap();
        log.append(run(2, Some(1)), &key(1)).unwrap();
        let again = Promise { nonce: Digest([3; 32]), ..run(1, Some(2)) };
        assert!(log.append(Promise { amendment: Some(1), ..again.clone() }, &key(1)).is_err());
        log.append(again, &key(1)).unwrap();
        assert_eq!(Promises::from_text(&log.to_text()).unwrap(), log);
        // Another trainer's log with the same promises is another log.
        assert_ne!(origin(&key(1).public()), origin(&key(2).public()));
        let other = before.replace(&key(1).public().to_text(), &key(2).public().to_text());
        assert!(Promises::from_text(&other).is_err());
    }

    #[test]
    fn a_promise_has_the_time_of_the_first_head_over_it() {
        let witness = |seed| PrivateKey::generate("witness.example", [seed; 32]).unwrap();
        let mut log = log(1);
        let cosign = |log: &mut Promises, by: &PrivateKey, time| {
            let note = log.newest().unwrap().to_string();
            log.cosign(cosigned(&note, by, time).unwrap()).unwrap();
        };
        log.append(promise(1), &key(1)).unwrap();
        cosign(&mut log, &witness(8), 100);
        log.append(promise(2), &key(1)).unwrap();
        cosign(&mut log, &witness(8), 50);
        cosign(&mut log, &witness(9), 70);
        let times = |by: u8| [0, 1, 2].map(|number| log.witnessed(number, &witness(by).public()).unwrap());
        assert_eq!(times(8), [Some(50); 3]);
        assert_eq!(times(9), [Some(70); 3]);
        assert_eq!(times(7), [None; 3]);
    }

    /// The challenge depends on everything that was promised, on the beacon and on the nonce.
    #[test]
    fn nobody_moves_the_challenge() {
        let (log, value) = (log(2), "5f".repeat(32));
        let nonce = |number| Digest([number; 32]);
        let challenge =
            |log: &Promises, number: usize, value: &str| log.challenge(number, value, &nonce(number as u8));
        let first = challenge(&log, 0, &value).unwrap();
        assert_eq!((log.of_nonce(&nonce(1)), log.of_nonce(&nonce(9))), (Some(1), None));
        let mut other = Promises::new(key(1).public());
        other.append(Promise { data: Digest([9; 32]), ..promise(0) }, &key(1)).unwrap();
        let mut theirs = Promises::new(key(2).public());
        theirs.append(promise(0), &key(2)).unwrap();
        let all = [
            first,
            challenge(&log, 1, &value).unwrap(),
            challenge(&log, 0, &"5e".repeat(32)).unwrap(),
            challenge(&other, 0, &value).unwrap(),
            challenge(&theirs, 0, &value).unwrap(),
        ];
        assert_eq!(std::collections::BTreeSet::from(all).len(), all.len());
        assert!(log.challenge(0, &value, &nonce(1)).unwrap_err().to_string().contains("commitment"));
        assert!(log.challenge(2, &value, &nonce(2)).is_err());
        for value in ["", "00", &"A".repeat(64)] {
            assert!(log.challenge(0, value, &nonce(0)).is_err(), "{value}");
        }
    }
}

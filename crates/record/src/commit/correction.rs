//! Corrections: a trainer takes a published record back, and names the run that has the right one. Layout: `docs/RUN-FORMAT.md`.

use super::codec::{Decoder, Encoder};
use super::digest::{Digest, hash};
use super::keys::{PrivateKey, PublicKey};
use super::record::{RECORD_BYTES_MAX, Record, StepRecord};
use super::tree_head::{Head, NOTE_MAX};
use super::{Malformed, merkle};

/// The most bytes of a correction.
pub const CORRECTION_MAX: u64 = 1 << 16;
/// The most bytes of the text that says why.
pub const TEXT_MAX: usize = 1024;
/// The most hashes of a proof.
const PROOF_MAX: usize = 64;
/// The beginning of a correction.
const MAGIC: &[u8] = b"tiebreak correction 1\n";
/// The prefix of the bytes that the trainer signs.
const DOMAIN: &[u8] = b"tiebreak 2 correction\n";

/// The reason for a correction, as its trainer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A device computed wrongly.
    Device,
    /// A program computed wrongly.
    Software,
    /// Anything else.
    Other,
}

impl Reason {
    /// All reasons, in the order of their codes, from 1.
    pub const ALL: [Reason; 3] = [Reason::Device, Reason::Software, Reason::Other];

    /// The reason's name.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Device => "device",
            Reason::Software => "software",
            Reason::Other => "other",
        }
    }
}

/// One of the two histories: its head, and the record of the step in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The head's note, as text.
    pub note: String,
    /// The head.
    pub head: Head,
    /// The record.
    pub record: StepRecord,
    /// The computation that the record names.
    pub computation: Digest,
    /// The record's bytes.
    bytes: Vec<u8>,
    /// The inclusion proof of the record.
    proof: Vec<Digest>,
    /// The proof of the records before it ([`merkle::prove_prefix`]).
    prefix: Vec<Digest>,
}

impl History {
    /// A history with this head, and with these leaves, which the head covers.
    ///
    /// # Errors
    /// If `key` did not sign the note, or the head covers no record of that step.
    pub fn new(
        note: &str,
        key: &PublicKey,
        leaves: &[Digest],
        (step, record): (u32, &Record),
    ) -> Result<History, Malformed> {
        let (head, _) = Head::from_note(note, Some(key))?;
        let covered = usize::try_from(head.size).ok().and_then(|size| leaves.get(..size));
        let leaves = covered.filter(|leaves| (step as usize) < leaves.len()).ok_or_else(|| {
            wrong(format!("the head covers {} records, and none of step {step}", head.size))
        })?;
        History::of(
            note.to_string(),
            head,
            record.encode(),
            merkle::prove(leaves, step as usize),
            merkle::prove_prefix(leaves, step as usize),
        )
    }

    fn of(
        note: String,
        head: Head,
        bytes: Vec<u8>,
        proof: Vec<Digest>,
        prefix: Vec<Digest>,
    ) -> Result<History, Malformed> {
        match Record::decode(&bytes)? {
            Record::Step { computation, step: record } => {
                Ok(History { note, head, record, computation, bytes, proof, prefix })
            }
            other => Err(wrong(format!("{} stands where the record of a step is due", other.name()))),
        }
    }

    fn encode(&self, e: &mut Encoder) {
        e.bytes(self.note.as_bytes()).bytes(&self.bytes);
        for proof in [&self.proof, &self.prefix] {
            e.list(proof, |e, digest| {
                e.digest(digest);
            });
        }
    }

    fn decode(d: &mut Decoder, key: &PublicKey) -> Result<History, Malformed> {
        let note = d.text(NOTE_MAX)?.to_string();
        let bytes = d.bytes(RECORD_BYTES_MAX)?.to_vec();
        let (proof, prefix) = (d.list(PROOF_MAX, Decoder::digest)?, d.list(PROOF_MAX, Decoder::digest)?);
        let (head, _) = Head::from_note(&note, Some(key))?;
        History::of(note, head, bytes, proof, prefix)
    }

    /// Checks that the head covers the record. Returns the root over the records before it.
    fn check(&self, whose: &str, step: u32) -> Result<Digest, Malformed> {
        let (size, due) = (self.head.size, self.head.root);
        if self.record.step != step {
            return Err(wrong(format!(
                "the {whose} record is of step {}, and the correction of step {step}",
                self.record.step
            )));
        }
        let found = merkle::root_from_proof(merkle::leaf(&self.bytes), u64::from(step), size, &self.proof)?;
        if found != due {
            return Err(wrong(format!("the {whose} head does not cover the record: {}", found.not(&due))));
        }
        let (before, found) = merkle::roots_from_prefix_proof(u64::from(step), size, &self.prefix)?;
        if found != due {
            let why = format!("the {whose} head does not cover the records before it: {}", found.not(&due));
            return Err(wrong(why));
        }
        Ok(before)
    }
}

/// The signed statement that a run's records from a step on are wrong, and that another run has the right ones.
///
/// Both runs are of one computation, and their records before the step are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// The first wrong step.
    pub step: u32,
    /// The last record that both runs share: that of the step before.
    pub last: Record,
    /// The inclusion proof of that record, among the records that both runs share.
    last_proof: Vec<Digest>,
    /// The run that is corrected.
    pub old: History,
    /// The corrected run.
    pub new: History,
    /// The reason.
    pub reason: Reason,
    /// The reason in the trainer's words.
    pub text: String,
}

/// The error about a correction.
fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("correction", why)
}

impl Correction {
    /// A correction of two histories, after all checks that need no run. `before`: the last record that both share, and the leaves
    /// that both share.
    ///
    /// # Errors
    /// If the histories do not fit each other, or the text is too long.
    pub fn new(
        [old, new]: [History; 2],
        (last, shared): (&Record, &[Digest]),
        (reason, text): (Reason, &str),
    ) -> Result<Correction, Malformed> {
        let step = old.record.step;
        if shared.is_empty() || shared.len() != step as usize {
            return Err(wrong(format!("{} records are shared, and {step} are due", shared.len())));
        }
        let last_proof = merkle::prove(shared, shared.len() - 1);
        let (last, text) = (last.clone(), text.to_string());
        let correction = Correction { step, last, last_proof, old, new, reason, text };
        correction.check()?;
        Ok(correction)
    }

    /// The bytes that the signature is over, without the domain.
    fn body(&self) -> Vec<u8> {
        let mut e = Encoder(MAGIC.to_vec());
        e.u32(self.step).bytes(&self.last.encode()).list(&self.last_proof, |e, digest| {
            e.digest(digest);
        });
        self.old.encode(&mut e);
        self.new.encode(&mut e);
        let code = Reason::ALL.iter().position(|reason| *reason == self.reason).unwrap_or(0) + 1;
        e.u8(code as u8).bytes(self.text.as_bytes());
        e.0
    }

    /// The digest by which others name the correction.
    pub fn digest(&self) -> Digest {
        hash("tiebreak 2 correction-file", &self.body())
    }

    /// The file of the correction, signed.
    pub fn to_bytes(&self, key: &PrivateKey) -> Vec<u8> {
        let body = self.body();
        let signature = key.sign(&[DOMAIN, &body].concat());
        [&body[..], &signature].concat()
    }

    /// Reads a correction, and checks everything that needs no run: both heads and the whole are signed by `key`.
    ///
    /// # Errors
    /// If the bytes are no correction, `key` did not sign them or a head, or a proof does not hold.
    pub fn from_bytes(bytes: &[u8], key: &PublicKey) -> Result<Correction, Malformed> {
        if bytes.len() as u64 > CORRECTION_MAX {
            return Err(Malformed::TooLarge { what: "correction", limit: CORRECTION_MAX });
        }
        if !bytes.starts_with(MAGIC) {
            let found = String::from_utf8_lossy(&bytes[..bytes.len().min(MAGIC.len())]).into_owned();
            return Err(wrong(format!(
                "it begins with {found:?}, and a correction with `tiebreak correction 1`"
            )));
        }
        let mut d = Decoder::new("correction", &bytes[MAGIC.len()..]);
        let step = d.u32()?;
        let last = Record::decode(d.bytes(RECORD_BYTES_MAX)?)?;
        let last_proof = d.list(PROOF_MAX, Decoder::digest)?;
        let (old, new) = (History::decode(&mut d, key)?, History::decode(&mut d, key)?);
        let code = d.u8()?;
        let reason = usize::from(code).checked_sub(1).and_then(|place| Reason::ALL.get(place));
        let reason = *reason.ok_or_else(|| wrong(format!("the reason has the code {code}, of 1 to 3")))?;
        let text = d.text(TEXT_MAX)?.to_string();
        let signature = d.take(64)?.try_into().expect("as many bytes as were asked for");
        d.finish()?;
        let correction = Correction { step, last, last_proof, old, new, reason, text };
        if !key.verifies(&[DOMAIN, &bytes[..bytes.len() - 64]].concat(), signature) {
            return Err(wrong(format!("the signature does not verify by {}", key.to_text())));
        }
        correction.check()?;
        Ok(correction)
    }

    /// Checks that the parts fit each other.
    fn check(&self) -> Result<(), Malformed> {
        let (old, new) = (self.old.check("old", self.step)?, self.new.check("new", self.step)?);
        if old != new {
            let step = self.step;
            return Err(wrong(format!(
                "the runs do not share their first {step} records: {}",
                new.not(&old)
            )));
        }
        if self.old.head.run == self.new.head.run {
            return Err(wrong(format!("both heads are of one run, {}", self.old.head.run)));
        }
        if let Some(other) =
            [&self.old, &self.new].into_iter().find(|side| side.computation != *self.last.computation())
        {
            let found = other.computation.not(self.last.computation());
            return Err(wrong(format!("a record of step {} is of another computation, {found}", self.step)));
        }
        if self.old.record == self.new.record {
            return Err(wrong(format!("both runs have the same record of step {}", self.step)));
        }
        let place = u64::from(self.step) - 1;
        let leaf = merkle::leaf(&self.last.encode());
        let found = merkle::root_from_proof(leaf, place, u64::from(self.step), &self.last_proof)?;
        if found != old {
            return Err(wrong(format!("the last good record is not record {place}: {}", found.not(&old))));
        }
        if self.text.len() > TEXT_MAX {
            return Err(Malformed::TooLarge { what: "text of a correction", limit: TEXT_MAX as u64 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> PrivateKey {
        PrivateKey::generate("trainer.example", [5; 32]).unwrap()
    }

    fn record(step: u32, state: u8) -> Record {
        let computation = Digest([1; 32]);
        if step == 0 {
            return Record::Initial { computation, state: Digest([state; 32]) };
        }
        let [state, batch] = [state, 9].map(|byte| Digest([byte; 32]));
        let step = StepRecord {
            step,
            state,
            batch,
            gradients: None,
            trace: None,
            log: None,
            learning_rate: 0,
            clip: 0,
            loss: 0,
            cursor: u64::from(step),
        };
        Record::Step { computation, step }
    }

    /// A history of `size` records that is `other` from step `from` on.
    fn history(run: u8, size: u32, from: u32, other: u8, step: u32) -> (History, Vec<Digest>) {
        let records: Vec<Record> = (0..size).map(|n| record(n, if n < from { 2 } else { other })).collect();
        let leaves: Vec<Digest> = records.iter().map(|record| merkle::leaf(&record.encode())).collect();
        let head = Head { run: Digest([run; 32]), size: u64::from(size), root: merkle::root(&leaves) };
        let note = head.to_note(Some(&key()));
        let made = History::new(&note, &key().public(), &leaves, (step, &records[step as usize]));
        (made.unwrap(), leaves)
    }

    fn made(step: u32) -> Correction {
        let (old, leaves) = history(3, 9, step, 7, step);
        let (new, _) = history(4, 7, step, 8, step);
        let shared = &leaves[..step as usize];
        Correction::new([old, new], (&record(step - 1, 2), shared), (Reason::Device, "a bit")).unwrap()
    }

    #[test]
    fn a_correction_round_trips_and_every_changed_byte_is_seen() {
        let public = key().public();
        for step in 1..7 {
            let correction = made(step);
            let bytes = correction.to_bytes(&key());
            assert_eq!(Correction::from_bytes(&bytes, &public), Ok(correction), "step {step}");
        }
        let bytes = made(5).to_bytes(&key());
        for cut in 0..bytes.len() {
            assert!(Correction::from_bytes(&bytes[..cut], &public).is_err(), "{cut} bytes");
        }
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert!(Correction::from_bytes(&changed, &public).is_err(), "byte {place}");
        }
        let other = PrivateKey::generate("trainer.example", [6; 32]).unwrap();
        let error = Correction::from_bytes(&bytes, &other.public()).unwrap_err().to_string();
        assert!(error.contains("not signed by the trainer's key"), "{error}");
        assert!(Correction::from_bytes(&made(5).to_bytes(&other), &public).is_err());
    }

    #[test]
    fn histories_that_do_not_fit_are_refused() {
        let refused = |old: History, new: History, last: &Record, shared: &[Digest]| {
            let made = Correction::new([old, new], (last, shared), (Reason::Other, ""));
            made.unwrap_err().to_string()
        };
        let ((old, leaves), (new, _)) = (history(3, 9, 5, 7, 5), history(4, 7, 5, 8, 5));
        let good = record(4, 2);
        let forked = history(4, 7, 3, 8, 5).0;
        let said = refused(old.clone(), forked, &good, &leaves[..5]);
        assert!(said.contains("the runs do not share their first 5 records"), "{said}");
        let said = refused(old.clone(), history(3, 7, 5, 8, 5).0, &good, &leaves[..5]);
        assert!(said.contains("both heads are of one run"), "{said}");
        let said = refused(old.clone(), history(4, 7, 5, 7, 5).0, &good, &leaves[..5]);
        assert!(said.contains("the same record of step 5"), "{said}");
        let said = refused(old.clone(), history(4, 7, 5, 8, 6).0, &good, &leaves[..5]);
        assert!(said.contains("the new record is of step 6, and the correction of step 5"), "{said}");
        let said = refused(old.clone(), new.clone(), &record(4, 3), &leaves[..5]);
        assert!(said.contains("the last good record is not record 4"), "{said}");
        let said = refused(old, new, &good, &leaves[..4]);
        assert!(said.contains("4 records are shared, and 5 are due"), "{said}");
    }
}

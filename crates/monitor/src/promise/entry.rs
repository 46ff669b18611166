//! A promise: everything about a run but the randomness of its seed, as a line of JSON.

use serde::{Deserialize, Serialize};
use tiebreak_job::identity::RunSummary;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::commit::{Malformed, other_encoding};

use crate::randomness::BEACON_MAX;

/// The most bytes of a promise's line.
pub const LINE_MAX: usize = 4096;
const WHAT: &str = "promise";

/// The origin of a promised run's initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Begin {
    /// The seed.
    Seed,
    /// Files of weights.
    Weights {
        /// [`InitialOrigin::digest`] of the files.
        files: Digest,
    },
    /// The final state of another run.
    Run {
        /// The id of the other run.
        run: Digest,
        /// The steps of the other run: the promise is about later ones only.
        after: u32,
        /// True if the optimizer's slots are taken too.
        optimizer_state: bool,
    },
}

/// The inputs of a computation that a trainer commits to; the challenge is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// The digest of the canonical job.
    pub job: Digest,
    /// The program digest.
    pub program: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// The origin of the initial state.
    pub begin: Begin,
}

/// A promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// The digest of the canonical job.
    pub job: Digest,
    /// The program digest.
    pub program: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// The origin of the initial state.
    pub begin: Begin,
    /// The number of the amendment, if the run goes on from another one: so many promises of this log go on from that run, with this one.
    pub amendment: Option<u32>,
    /// [`crate::randomness::commitment`] of the trainer's nonce.
    pub nonce: Digest,
    /// The beacon and its round, whose value nobody knows yet.
    pub round: String,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid(WHAT, why)
}

impl Begin {
    /// The origin that a run names.
    ///
    /// # Errors
    /// If the proof of an earlier run's record does not hold.
    pub fn of(origin: &InitialOrigin) -> Result<Begin, Malformed> {
        Ok(match origin {
            InitialOrigin::Seed => Begin::Seed,
            InitialOrigin::Weights { .. } => Begin::Weights { files: origin.digest() },
            InitialOrigin::Run(earlier) => {
                let (head, _) = Head::from_note(&earlier.head, None)?;
                let after = match earlier.record.under(&head)? {
                    Record::Final { steps, .. } => steps,
                    other => {
                        let why = format!("it names {}; the final record is expected", other.name());
                        return Err(Malformed::invalid("earlier run", why));
                    }
                };
                Begin::Run { run: head.run, after, optimizer_state: earlier.optimizer_state }
            }
        })
    }
}

impl Inputs {
    /// The inputs of a run, whose job has the digest `job`.
    ///
    /// # Errors
    /// As [`Begin::of`].
    pub fn of(job: Digest, run: &RunSummary) -> Result<Inputs, Malformed> {
        Ok(Inputs { job, program: run.program, data: run.data, begin: Begin::of(&run.origin)? })
    }
}

impl Promise {
    /// The inputs that are promised.
    pub fn inputs(&self) -> Inputs {
        Inputs { job: self.job, program: self.program, data: self.data, begin: self.begin }
    }

    /// The one line of the promise, without a line end.
    ///
    /// # Panics
    /// Never: a promise has no value that JSON lacks.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a promise has texts and numbers only")
    }

    /// Parses [`Promise::line`].
    ///
    /// # Errors
    /// If the line is too long, is not the one encoding of a promise, or contradicts itself.
    pub fn from_line(line: &str) -> Result<Promise, Malformed> {
        if line.len() > LINE_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: LINE_MAX as u64 });
        }
        let promise: Promise = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let right = promise.line();
        if right != line {
            return Err(wrong(other_encoding(line.as_bytes(), right.as_bytes())));
        }
        promise.check()?;
        Ok(promise)
    }

    pub(super) fn check(&self) -> Result<(), Malformed> {
        let round = &self.round;
        if round.is_empty() || round.len() > BEACON_MAX || round.chars().any(char::is_control) {
            let why =
                format!("the round's name has {} bytes; 1 to {BEACON_MAX} of text are wanted", round.len());
            return Err(wrong(why));
        }
        if matches!(self.begin, Begin::Run { .. }) != self.amendment.is_some() {
            let found = self.amendment.map_or("none".into(), |number| number.to_string());
            let why = format!(
                "its amendment's number is {found}; the promises of runs that go on from a run have one"
            );
            return Err(wrong(why));
        }
        Ok(())
    }

    /// The promise's leaf in the log's tree.
    pub fn leaf(&self) -> Digest {
        merkle::leaf(self.line().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_has_one_line() {
        let digest = |byte| Digest([byte; 32]);
        let promise = Promise {
            job: digest(1),
            program: digest(2),
            data: digest(3),
            begin: Begin::Run { run: digest(4), after: 8, optimizer_state: true },
            amendment: Some(1),
            nonce: digest(5),
            round: "drand quicknet 4711".into(),
        };
        let line = promise.line();
        assert_eq!(Promise::from_line(&line).unwrap(), promise);
        let seeded = Promise { begin: Begin::Seed, amendment: None, ..promise.clone() };
        assert_eq!(Promise::from_line(&seeded.line()).unwrap(), seeded);
        assert!(seeded.line().contains("\"begin\":\"seed\",\"amendment\":null,"), "{}", seeded.line());
        for other in [
            line.replace("\"after\":8", "\"after\": 8"),
            line.replace("\"after\":8", "\"after\":08"),
            line.replace("\"amendment\":1", "\"amendment\":null"),
            line.replace("drand quicknet 4711", ""),
            line.replace("drand quicknet 4711", &"x".repeat(BEACON_MAX + 1)),
            line.replace("drand quicknet 4711", "a\\u0007b"),
            line.replace("\"data\"", "\"date\""),
            line.replace("\"round\"", "\"more\":1,\"round\""),
            seeded.line().replace("null", "1"),
            format!("{line} "),
            String::new(),
        ] {
            assert!(Promise::from_line(&other).is_err(), "{other}");
        }
        for changed in [
            Promise { job: digest(9), ..promise.clone() },
            Promise { nonce: digest(9), ..promise.clone() },
            Promise { amendment: Some(2), ..promise.clone() },
        ] {
            assert_ne!(changed.leaf(), promise.leaf());
        }
    }
}

//! A witness's decision about a request, without clock, disk or network.

use std::fmt;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle::verify_consistency;

use super::checkpoint::Checkpoint;
use super::request::AddCheckpoint;

/// The logs that a witness serves, with the keys that may sign their checkpoints.
#[derive(Clone, Debug)]
pub struct Logs(Vec<Log>);

/// One log, or all logs whose origins have a prefix.
#[derive(Clone, Debug)]
pub struct Log {
    /// The origin, or its prefix if it ends with `/`: `tiebreak/run/` stands for all runs.
    pub origin: String,
    /// A key that may sign its checkpoints.
    pub key: PublicKey,
}

/// The last checkpoint of a log that the witness cosigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of leaves.
    pub size: u64,
    /// The root over them.
    pub root: Digest,
}

/// A log before its first checkpoint: no leaves, and the root that an empty tree has.
pub const NOTHING_SEEN: Seen = Seen {
    size: 0,
    root: Digest([
        0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
        0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
    ]),
};

/// A reason for which a witness does not cosign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The witness does not serve this log.
    UnknownOrigin,
    /// No key of the log signed the checkpoint.
    Unsigned,
    /// The old size is above the checkpoint's.
    Shrinks {
        /// The old size of the request.
        old: u64,
        /// The checkpoint's size.
        size: u64,
    },
    /// The witness cosigned another size of the log last.
    OtherSize(u64),
    /// The checkpoint has the size that the witness knows, and another root: somebody signed two histories.
    OtherRoot(u64),
    /// The proof does not show that the log only grew.
    Inconsistent(String),
    /// The key has as many logs as the witness keeps for one.
    Full(u64),
}

impl Refusal {
    /// The HTTP status of C2SP tlog-witness.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::UnknownOrigin => 404,
            Refusal::Unsigned => 403,
            Refusal::Shrinks { .. } => 400,
            Refusal::OtherSize(_) | Refusal::OtherRoot(_) => 409,
            Refusal::Inconsistent(_) => 422,
            // The specification has no status for this one.
            Refusal::Full(_) => 507,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::UnknownOrigin => write!(f, "this witness does not serve a log of this origin"),
            Refusal::Unsigned => {
                write!(f, "no key that this witness knows for the log signed the checkpoint")
            }
            Refusal::Shrinks { old, size } => {
                write!(f, "the old size is {old}, above the checkpoint's {size}")
            }
            Refusal::OtherSize(size) => write!(f, "this witness cosigned {size} leaves of the log last"),
            Refusal::OtherRoot(size) => {
                write!(
                    f,
                    "this witness cosigned another root over {size} leaves of the log: it has two histories"
                )
            }
            Refusal::Inconsistent(why) => write!(f, "{why}"),
            Refusal::Full(most) => {
                write!(
                    f,
                    "this witness keeps {most} logs of a key, and has as many of this one: it takes no new log of it"
                )
            }
        }
    }
}

impl Logs {
    /// The logs that a witness serves.
    pub fn new(logs: Vec<Log>) -> Logs {
        Logs(logs)
    }

    fn of<'a>(&'a self, origin: &'a str) -> impl Iterator<Item = &'a Log> {
        self.0.iter().filter(move |log| match log.origin.ends_with('/') {
            true => origin.starts_with(&log.origin),
            false => origin == log.origin,
        })
    }

    /// The key of the log that signed a checkpoint; `None` if this is no checkpoint of a log that the witness serves.
    pub fn signer<'a>(&'a self, checkpoint: &'a Checkpoint) -> Option<&'a PublicKey> {
        let mut logs = self.of(&checkpoint.origin);
        logs.find(|log| checkpoint.is_signed_by(&log.key)).map(|log| &log.key)
    }

    /// Decides about a request, in the order of C2SP tlog-witness. `seen` gives what the witness cosigned last of an origin; nobody
    /// is asked about an origin that no known key signed, so strangers reach no file.
    ///
    /// # Errors
    /// The reason, if the checkpoint is not to be cosigned, or an error of `seen`.
    pub fn decide<E>(
        &self,
        request: &AddCheckpoint,
        seen: impl FnOnce(&str) -> Result<Seen, E>,
    ) -> Result<Result<Seen, Refusal>, E> {
        let AddCheckpoint { old, proof, checkpoint } = request;
        if self.of(&checkpoint.origin).next().is_none() {
            return Ok(Err(Refusal::UnknownOrigin));
        }
        if self.signer(checkpoint).is_none() {
            return Ok(Err(Refusal::Unsigned));
        }
        let size = checkpoint.size;
        if *old > size {
            return Ok(Err(Refusal::Shrinks { old: *old, size }));
        }
        let seen = seen(&checkpoint.origin)?;
        if *old != seen.size {
            return Ok(Err(Refusal::OtherSize(seen.size)));
        }
        if size == seen.size && checkpoint.root != seen.root {
            return Ok(Err(Refusal::OtherRoot(size)));
        }
        let new = Seen { size, root: checkpoint.root };
        let shown = verify_consistency((seen.size, seen.root), (new.size, new.root), proof);
        Ok(shown.map(|()| new).map_err(|error| Refusal::Inconsistent(error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_record::commit::keys::PrivateKey;
    use tiebreak_record::commit::merkle::{leaf, prove_consistency, root};
    use tiebreak_record::commit::tree_head::Head;

    fn trainer() -> PrivateKey {
        PrivateKey::generate("trainer.example", [7; 32]).unwrap()
    }

    fn request(leaves: &[Digest], old: usize, key: &PrivateKey) -> AddCheckpoint {
        let head = Head { run: Digest([1; 32]), size: leaves.len() as u64, root: root(leaves) };
        let checkpoint = Checkpoint::read(&head.to_note(Some(key))).unwrap();
        AddCheckpoint { old: old as u64, proof: prove_consistency(leaves, old), checkpoint }
    }

    fn decide(request: &AddCheckpoint, seen: Seen) -> Result<Seen, Refusal> {
        let logs = Logs::new(vec![Log { origin: "tiebreak/run/".into(), key: trainer().public() }]);
        logs.decide(request, |_| Ok::<_, ()>(seen)).unwrap()
    }

    #[test]
    fn a_log_that_grows_is_cosigned_and_any_other_is_refused_by_its_reason() {
        let leaves: Vec<Digest> = (0..9u8).map(|byte| leaf(&[byte])).collect();
        let seen = |size: usize| Seen { size: size as u64, root: root(&leaves[..size]) };
        assert_eq!(seen(0), NOTHING_SEEN);
        let honest = |old, size| request(&leaves[..size], old, &trainer());
        for (old, size) in [(0, 1), (1, 1), (1, 9), (4, 9), (9, 9)] {
            assert_eq!(decide(&honest(old, size), seen(old)), Ok(seen(size)), "{old} to {size}");
        }
        assert_eq!(decide(&honest(0, 9), seen(4)), Err(Refusal::OtherSize(4)));
        let stranger = PrivateKey::generate("trainer.example", [8; 32]).unwrap();
        assert_eq!(decide(&request(&leaves, 0, &stranger), seen(0)), Err(Refusal::Unsigned));
        let shrunk = AddCheckpoint { old: 9, proof: Vec::new(), ..honest(0, 4) };
        assert_eq!(decide(&shrunk, seen(9)), Err(Refusal::Shrinks { old: 9, size: 4 }));

        let mut other = leaves.clone();
        other[2] = leaf(b"another record");
        assert_eq!(decide(&request(&other[..4], 4, &trainer()), seen(4)), Err(Refusal::OtherRoot(4)));
        let forked = decide(&request(&other, 4, &trainer()), seen(4));
        assert!(matches!(forked, Err(Refusal::Inconsistent(_))), "{forked:?}");
        let unproven = AddCheckpoint { proof: Vec::new(), ..honest(4, 9) };
        assert!(matches!(decide(&unproven, seen(4)), Err(Refusal::Inconsistent(_))));
    }

    #[test]
    fn strangers_reach_no_state() {
        let leaves = [leaf(b"a")];
        let logs = Logs::new(vec![Log { origin: "another.example/log".into(), key: trainer().public() }]);
        let asked = logs.decide(&request(&leaves, 0, &trainer()), |_| Err("asked"));
        assert_eq!(asked, Ok(Err(Refusal::UnknownOrigin)));
    }
}

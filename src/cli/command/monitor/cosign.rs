//! Asking a witness for its cosignature of a note, from whatever size the witness knows.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::args::key;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_game::net::witness::client::{Answer, ask};
use tiebreak_monitor::witness::checkpoint::Checkpoint;
use tiebreak_monitor::witness::request::AddCheckpoint;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::cosignature::{cosigned_at, utc};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle::prove_consistency;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::{RunError, disk};

/// The most seconds between the time of a witness or a beacon and this machine's that pass without a warning.
pub const CLOCKS_MAY_DIFFER: u64 = 300;

/// The most bytes of a file of certificates.
const ROOTS_MAX: u64 = 1 << 20;

/// The witness that a command asks.
#[derive(clap::Args)]
pub struct WitnessArgs {
    /// Witness's address: the submission prefix of C2SP tlog-witness.
    #[arg(long, value_name = "URL")]
    witness: String,
    /// Witness's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    witness_key: String,
    /// Certificates, in PEM, of the authorities that vouch for an https:// address; by default those of the web count.
    ///
    /// A build with `--features tls` knows https://.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// The size of a log that a witness knows, by asking it to cosign this note once more. Its yes has to be signed now by one of these
/// keys. A smaller or larger size is its word alone.
///
/// # Errors
/// If the note is malformed, or the witness cannot be asked, refuses, or does not sign.
pub fn known_size(
    witness: &str,
    ca: Option<&Path>,
    note: &str,
    keys: &[PublicKey],
    malformed: impl Fn(Malformed) -> Failure,
) -> Result<u64, Failure> {
    let roots = ca.map(|path| disk::read(path, ROOTS_MAX)).transpose()?;
    let checkpoint = Checkpoint::read(note).map_err(malformed)?;
    let size = checkpoint.size;
    let wrong = |why: String| Failure::new(Exit::Undecided, format!("{witness}: {why}"));
    let request = AddCheckpoint { old: size, proof: Vec::new(), checkpoint };
    let lines = match asked(witness, roots.as_deref(), &request)? {
        Answer::Lines(lines) => lines,
        Answer::KnowsSize(known) if known != size => return Ok(known),
        Answer::KnowsSize(known) => {
            return Err(wrong(format!("it knows size {known}, and cosigns no head of it")));
        }
        Answer::Refused(status, why) => {
            return Err(wrong(format!("it does not answer: status {status}: {why:?}")));
        }
    };
    // Without the lines that the note has: an old cosignature says nothing of today.
    let text = note.find("\n\n").map_or(note, |end| &note[..end + 2]);
    let now = now();
    let signed = |line: &str, key: &PublicKey| {
        cosigned_at(&format!("{text}{line}\n"), key)
            .is_ok_and(|time| time.is_some_and(|time| now.abs_diff(time) <= CLOCKS_MAY_DIFFER))
    };
    match lines.lines().any(|line| keys.iter().any(|key| signed(line, key))) {
        true => Ok(size),
        false => Err(wrong("its answer has no cosignature of now by a key of --witness".into())),
    }
}

/// Asks a witness. One that is down, or speaks no HTTP, decides nothing.
fn asked(witness: &str, roots: Option<&[u8]>, request: &AddCheckpoint) -> Result<Answer, Failure> {
    ask(witness, roots, request).map_err(|error| match error {
        RunError::Io { .. } => Failure::new(Exit::Undecided, error)
            .help("ask again when the witness answers at this address, or ask another witness"),
        other => other.into(),
    })
}

/// The time by this machine's clock, in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// A cosignature on a head.
pub struct Cosigned {
    /// The time that the witness gives, in seconds since 1970.
    pub time: u64,
    /// The note with the witness's line; `None` if the line was there before.
    pub note: Option<String>,
}

impl Cosigned {
    /// A warning if the witness's clock and this machine's differ.
    pub fn warning(&self) -> Option<String> {
        let now = now();
        let differ = self.note.is_some() && now.abs_diff(self.time) > CLOCKS_MAY_DIFFER;
        differ.then(|| format!("the witness's clock and this one differ: here it is {}", utc(now)))
    }
}

impl WitnessArgs {
    /// The witness's key.
    pub fn key(&self) -> Result<PublicKey, Failure> {
        key::read_witness(&self.witness_key)
    }

    /// Asks for the cosignature of a note, and returns the signature lines. `leaves` gives the leaves under the note's head, and `newer`
    /// the help for a note that is older than what the witness knows.
    fn lines(
        &self,
        checkpoint: &Checkpoint,
        leaves: impl Fn() -> Result<Vec<Digest>, Failure>,
        newer: &str,
    ) -> Result<String, Failure> {
        let roots = self.ca.as_deref().map(|path| disk::read(path, ROOTS_MAX)).transpose()?;
        let mut request = AddCheckpoint { old: 0, proof: Vec::new(), checkpoint: checkpoint.clone() };
        for _ in 0..2 {
            match asked(&self.witness, roots.as_deref(), &request)? {
                Answer::Lines(lines) => return Ok(lines),
                Answer::KnowsSize(size) if size == request.old && size < checkpoint.size => {
                    let why = format!("{} refuses size {size}, which it names itself", self.witness);
                    return Err(Failure::new(Exit::Undecided, why));
                }
                Answer::KnowsSize(size) if size == request.old || size > checkpoint.size => {
                    let why = format!(
                        "the witness cosigned size {size} of this log, and this head covers {}",
                        checkpoint.size
                    );
                    return Err(Failure::new(Exit::Undecided, why).help(newer));
                }
                Answer::KnowsSize(size) => {
                    let proof = prove_consistency(&leaves()?, size as usize);
                    request = AddCheckpoint { old: size, proof, checkpoint: checkpoint.clone() };
                }
                Answer::Refused(status, why) => {
                    let why = format!("{} does not cosign: status {status}: {why:?}", self.witness);
                    return Err(Failure::new(Exit::Undecided, why));
                }
            }
        }
        Err(Failure::new(Exit::Undecided, format!("{} names another size at every request", self.witness)))
    }

    /// The witness's cosignature of a note, unless the note has one. `malformed` names the note's file in errors.
    pub fn cosign(
        &self,
        note: &str,
        leaves: impl Fn() -> Result<Vec<Digest>, Failure>,
        malformed: impl Fn(Malformed) -> Failure,
        newer: &str,
    ) -> Result<Cosigned, Failure> {
        let witness = self.key()?;
        if let Some(time) = cosigned_at(note, &witness).map_err(&malformed)? {
            return Ok(Cosigned { time, note: None });
        }
        let checkpoint = Checkpoint::read(note).map_err(&malformed)?;
        let lines = self.lines(&checkpoint, leaves, newer)?;
        let wrong = |why: &str| Failure::new(Exit::Undecided, format!("{}: {why}", self.witness));
        for line in lines.lines() {
            // Lines of other keys are not the business of this command, and a line that is malformed is nobody's.
            let candidate = format!("{note}{line}\n");
            let Ok(Some(time)) = cosigned_at(&candidate, &witness) else { continue };
            if candidate.len() > NOTE_MAX {
                return Err(wrong(&format!(
                    "with another signature the head has {} bytes; {NOTE_MAX} are possible",
                    candidate.len()
                )));
            }
            return Ok(Cosigned { time, note: Some(candidate) });
        }
        Err(wrong(&format!("its answer has no cosignature of {} on this head", witness.identified())))
    }
}

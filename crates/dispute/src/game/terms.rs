//! The terms of a game, fixed and known to all before its first question.

use serde::{Deserialize, Serialize};

use super::message::{from_bytes, to_bytes};
use tiebreak_job::Job;
use tiebreak_job::identity::{ComputationSummary, RunSummary};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::tree_head::{Head, NOTE_MAX};

/// The most bytes of terms: a job and, for a job that names one, a program file.
pub const TERMS_MAX: u64 = 1 << 28;
/// The most parties of a game.
pub(crate) const PARTIES_MAX: usize = 64;
/// The version of terms, and so of a game's messages.
pub const FORMAT: u32 = 2;

/// The shortest clock of moves, in milliseconds, with which an honest party plays: the time that a network needs to recover from
/// a flood.
pub const MOVES_MIN: u64 = 5_000;
/// The shortest increment, in milliseconds, for the same reason.
pub const INCREMENT_MIN: u64 = 1_000;

/// The time that parties have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Milliseconds that a party has for all its moves of a game that need no replay.
    pub moves: u64,
    /// Milliseconds that each such move adds before it is made, so that nobody is left without time to answer.
    pub increment: u64,
    /// Milliseconds that a party has for all its replays of a game.
    pub replay: u64,
}

/// Milliseconds that a party has for all its replays of a game, if the job fixes them. The time is four times the duration of the
/// steps from a checkpoint to the disputed step.
pub fn replay_clock(job: &Job) -> Option<u64> {
    Some(replay_of_steps(job, u64::from(job.dispute?.step_seconds) * 1000))
}

/// The clock of replays for steps of this number of milliseconds.
pub fn replay_of_steps(job: &Job, step: u64) -> u64 {
    let steps = u64::from(job.checkpoint.every.min(job.steps)) + 1;
    steps.saturating_mul(step).saturating_mul(4)
}

/// Milliseconds that a challenger of the logged profile has to replay the whole run: the time of one step, as the clock of
/// replays implies it, times all steps.
pub(crate) fn run_clock(job: &Job, replay: u64) -> u64 {
    let steps = u64::from(job.checkpoint.every.min(job.steps)) + 1;
    replay.div_ceil(steps).saturating_mul(u64::from(job.steps))
}

/// The run of the computation that a trainer claims: the inputs of the run id beside the computation and the job file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimedRun {
    /// The trainer's public key, if the run is signed.
    pub trainer_key: Option<String>,
    /// The nonce, 32 hexadecimal digits.
    pub nonce: String,
    /// The origin of the initial state.
    pub origin: InitialOrigin,
}

impl ClaimedRun {
    /// The claimed form of a run.
    #[doc(hidden)] // for the layers above
    pub fn of(run: RunSummary) -> ClaimedRun {
        let RunSummary { trainer_key, nonce, origin, .. } = run;
        ClaimedRun { trainer_key, nonce, origin }
    }
}

/// The disputed claim of the trainer of a logged run: the root over its records. The log roots follow from that root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The run.
    pub run: ClaimedRun,
    /// The root over all records of the trainer's run.
    pub root: Digest,
    /// The run's head with this root, if the trainer signed it with its key of the game. Another root then contradicts the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
}

/// The receipt whose traces a game is about. The signer of the receipt is the game's first party.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisputedReceipt {
    /// The text of the receipt's file.
    pub text: String,
    /// The text of its opening, if it is salted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<String>,
}

/// The terms of a game.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The version of the format, 2.
    pub format: u32,
    /// The computation that the parties claim to have carried out. Each party derives all of it from its own run. A game about a
    /// receipt has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computation: Option<ComputationSummary>,
    /// The receipt that a game is about, in place of a computation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<DisputedReceipt>,
    /// The job file's text. A receipt's job has the receipt's model, and nothing else in it counts.
    pub job: String,
    /// The bytes of the program file, for a job that names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Base64>,
    /// The public keys of the parties. In the logged profile the first key is the trainer's, and the others are challengers'. In a
    /// game about a receipt the first key is the signer's.
    pub parties: Vec<String>,
    /// The referee's public key.
    pub referee: String,
    /// The time that parties have.
    pub clocks: Clocks,
    /// 32 bytes that no other game has.
    pub nonce: Digest,
    /// The trainer's claim, in the logged profile only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

impl Terms {
    /// Terms in the current format. The terms are not checked.
    pub fn new(
        computation: ComputationSummary,
        (job, program): (String, Option<Vec<u8>>),
        parties: &[PublicKey],
        referee: &PublicKey,
        clocks: Clocks,
        nonce: Digest,
    ) -> Terms {
        let parties = parties.iter().map(PublicKey::to_text).collect();
        let (program, referee) = (program.map(Base64), referee.to_text());
        let computation = Some(computation);
        let (format, receipt, claim) = (FORMAT, None, None);
        Terms { format, computation, receipt, job, program, parties, referee, clocks, nonce, claim }
    }

    /// Terms of a game about the traces of a signed receipt, whose model `job` has. The first party is the receipt's signer. The
    /// terms are not checked.
    pub fn about_receipt(
        receipt: DisputedReceipt,
        job: String,
        parties: &[PublicKey],
        referee: &PublicKey,
        clocks: Clocks,
        nonce: Digest,
    ) -> Terms {
        let parties = parties.iter().map(PublicKey::to_text).collect();
        let (receipt, referee) = (Some(receipt), referee.to_text());
        let (format, computation, program, claim) = (FORMAT, None, None, None);
        Terms { format, computation, receipt, job, program, parties, referee, clocks, nonce, claim }
    }

    /// The terms of a game about a trainer's claim on a logged run.
    pub fn claiming(self, claim: Claim) -> Terms {
        Terms { claim: Some(claim), ..self }
    }

    /// The game's name, which every message carries.
    pub fn game(&self) -> Digest {
        hash("tiebreak 2 game", &to_bytes(self))
    }

    /// The terms' only encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Parses the only encoding.
    ///
    /// # Errors
    /// If the bytes are another encoding, too many, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Terms, Malformed> {
        let terms: Terms = from_bytes("terms", bytes, TERMS_MAX)?;
        if terms.format != FORMAT {
            return Err(Malformed::invalid("terms", format!("format {} is not {FORMAT}", terms.format)));
        }
        Ok(terms)
    }

    /// The keys of the parties and of the referee.
    ///
    /// # Errors
    /// If a key is malformed, a key occurs twice, or there are fewer than two parties or too many.
    #[doc(hidden)] // for the layers above
    pub fn keys(&self) -> Result<(Vec<PublicKey>, PublicKey), Malformed> {
        let count = self.parties.len();
        if !(2..=PARTIES_MAX).contains(&count) {
            return Err(wrong(format!("they name {count} parties; a game has 2 to {PARTIES_MAX}")));
        }
        let parties: Vec<PublicKey> =
            self.parties.iter().map(|key| PublicKey::from_text(key)).collect::<Result<_, _>>()?;
        let same = |i: usize| parties[..i].iter().position(|other| other.bytes() == parties[i].bytes());
        if let Some((first, second)) = (1..count).find_map(|i| Some((same(i)?, i))) {
            return Err(wrong(format!("a key stands twice among the parties, at {first} and at {second}")));
        }
        Ok((parties, PublicKey::from_text(&self.referee)?))
    }

    /// The run that a claim is about; `None` if the terms are about no computation.
    #[doc(hidden)] // for the layers above
    pub fn claimed(&self, claim: &Claim) -> Option<RunSummary> {
        let ComputationSummary { contract, challenge, program, data, initial } = self.computation.clone()?;
        let ClaimedRun { trainer_key, nonce, origin } = claim.run.clone();
        Some(RunSummary { contract, trainer_key, challenge, nonce, program, data, initial, origin })
    }

    /// The trainer's claim; `None` in the exact profile.
    ///
    /// # Errors
    /// If a claim is missing in the logged profile or present in the exact one, or its run has another origin than the job gives.
    /// Also if its head is not the trainer's head of this run, size and root.
    pub(crate) fn claim_about(&self, job: &Job) -> Result<Option<&Claim>, Malformed> {
        let claim = match (&self.claim, &job.rounding) {
            (Some(claim), Some(_)) => claim,
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                return Err(wrong("a logged run is disputed without the trainer's root"));
            }
            (Some(_), None) => return Err(wrong("a claim stands in the exact profile")),
        };
        claim.run.origin.check(job)?;
        let none = || wrong("a claim stands without a computation");
        let (_, computation) = self.computation.as_ref().ok_or_else(none)?.identity(job)?;
        let run = self.claimed(claim).ok_or_else(none)?.run_id(&computation, &self.job).map_err(wrong)?;
        if let Some(note) = &claim.head {
            if note.len() > NOTE_MAX {
                return Err(Malformed::TooLarge { what: "head", limit: NOTE_MAX as u64 });
            }
            let (parties, _) = self.keys()?;
            let (head, _) = Head::from_note(note, parties.first())
                .map_err(|why| wrong(format!("the claim's head is not the trainer's: {why}")))?;
            let due = Head { run, size: u64::from(job.steps) + 2, root: claim.root };
            if head != due {
                let [found, due] = [head, due].map(|head| head.in_short());
                return Err(wrong(format!("the claim's head is {found}; {due} is expected")));
            }
        }
        Ok(Some(claim))
    }
}

/// The error of terms that contradict themselves.
pub(super) fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("terms", why)
}

//! The identity of a computation and of a run.
//!
//! A *computation* follows from the contract, the canonical job, the program, the data, the initial state and the challenge,
//! whoever computes it. A *run* is a computation with a trainer's key, a nonce and the job file as it was written. Layouts:
//! `docs/RUN-FORMAT.md`.

use serde::{Deserialize, Serialize};

use super::Job;
use super::canonical::Setting;
use super::initial::InitialOrigin;
use super::spec::Sampling;
use tiebreak_contract::program::encoding;
use tiebreak_contract::program::step::Program;
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::{Malformed, beginning};

/// The contract that this version of the program implements. An auditor replays runs of this contract only.
pub const CONTRACT: &str = "tiebreak-contract-2";

/// The error for a run or a verdict (`what`) of another contract.
pub fn other_contract(what: &'static str, contract: &str) -> Option<Malformed> {
    (contract != CONTRACT).then(|| Malformed::OtherContract {
        what,
        found: contract.to_string(),
        expected: CONTRACT,
    })
}

/// The digest of a program.
pub fn program_digest(program: &Program) -> Digest {
    hash("tiebreak 2 program", &encoding::encode(program))
}

/// The inputs that name a computation beside its job: none of them depends on who computes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputationSummary {
    /// The contract's name.
    pub contract: String,
    /// The challenge that the seed depends on, if one was given.
    pub challenge: Option<Digest>,
    /// The program digest.
    pub program: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// The digest of the initial state.
    pub initial: Digest,
}

impl ComputationSummary {
    /// The seed and the name of the computation of `job`.
    ///
    /// # Errors
    /// If the contract is another one.
    pub fn identity(&self, job: &Job) -> Result<(Digest, Digest), Malformed> {
        if let Some(other) = other_contract("computation", &self.contract) {
            return Err(other);
        }
        let mut e = Encoder::default();
        e.bytes(self.contract.as_bytes()).digest(&job.digest()).digest(&self.program).digest(&self.data);
        e.digest(&self.initial).option(self.challenge.as_ref());
        let computation = hash("tiebreak 2 computation", &e.0);
        Ok((seed(job, &self.program, &self.data, self.challenge.as_ref()), computation))
    }
}

/// The contents of `run.json`, with the data's root in place of its files: enough to derive computation and run id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSummary {
    /// The contract's name.
    pub contract: String,
    /// The trainer's public key in the form of a C2SP signed note; absent for an unsigned run.
    pub trainer_key: Option<String>,
    /// The challenge that the seed depends on, if one was given.
    pub challenge: Option<Digest>,
    /// The nonce, 32 hexadecimal digits.
    pub nonce: String,
    /// The program digest.
    pub program: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// The digest of the initial state.
    pub initial: Digest,
    /// The origin of the initial state.
    pub origin: InitialOrigin,
}

impl RunSummary {
    /// The inputs among these that name the computation.
    pub fn computation(&self) -> ComputationSummary {
        ComputationSummary {
            contract: self.contract.clone(),
            challenge: self.challenge,
            program: self.program,
            data: self.data,
            initial: self.initial,
        }
    }

    /// The trainer's key that the run names, if the run is signed.
    ///
    /// # Errors
    /// If the key is malformed.
    #[doc(hidden)] // for the layers above
    pub fn named_key(&self) -> Result<Option<PublicKey>, Malformed> {
        self.trainer_key.as_deref().map(PublicKey::from_text).transpose()
    }

    /// The run id: H(computation, job file, origin of the initial state, trainer's key, nonce). `job` is the job file's text.
    ///
    /// # Errors
    /// If the key or the nonce is malformed.
    pub fn run_id(&self, computation: &Digest, job: &str) -> Result<Digest, String> {
        let key = self.named_key().map_err(|error| error.to_string())?;
        let nonce = nonce_bytes(&self.nonce).ok_or_else(|| {
            let found = beginning(&self.nonce);
            format!("the nonce is {found:?}; 32 lower-case hexadecimal digits are wanted")
        })?;
        let mut e = Encoder::default();
        e.digest(computation).digest(&hash("tiebreak 2 job-file", job.as_bytes()));
        e.digest(&self.origin.digest());
        e.digest(&Digest(key.map_or([0; 32], |key| key.bytes())));
        e.0.extend(nonce);
        Ok(hash("tiebreak 2 run-id", &e.0))
    }
}

/// The settings that a computation is made of, in words.
pub fn computation_settings(job: &Job, summary: &ComputationSummary) -> Vec<Setting> {
    let ComputationSummary { contract, challenge, program, data, initial } = summary;
    let challenge = challenge.map_or("none".into(), |challenge| challenge.to_string());
    let mut settings = job.settings();
    settings.extend([
        ("contract".into(), contract.clone()),
        ("program".into(), program.to_string()),
        ("data".into(), data.to_string()),
        ("initial state".into(), initial.to_string()),
        ("challenge".into(), challenge),
    ]);
    settings
}

/// The bytes of a nonce.
fn nonce_bytes(text: &str) -> Option<[u8; 16]> {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() != 32 || !text.bytes().all(digit) {
        return None;
    }
    Some(u128::from_str_radix(text, 16).ok()?.to_be_bytes())
}

/// The seed of a computation, which its initial state may depend on. The first eight bytes are the Philox key.
pub fn seed(job: &Job, program: &Digest, data: &Digest, challenge: Option<&Digest>) -> Digest {
    seed_of(job, program, &sown(job, data), challenge)
}

/// The root that a seed has of the data: none in order, since the seed of a recording is there before its data are.
pub(super) fn sown(job: &Job, data: &Digest) -> Digest {
    if job.data.sampling == Sampling::InOrder { Digest([0; 32]) } else { *data }
}

/// The seed with `data` as it is.
pub(super) fn seed_of(job: &Job, program: &Digest, data: &Digest, challenge: Option<&Digest>) -> Digest {
    let mut e = Encoder::default();
    e.digest(&job.digest()).digest(program).digest(data).option(challenge);
    hash("tiebreak 2 seed", &e.0)
}

/// The root of the data of a run whose commitments hide: over its files, and over the commitment to its salt key.
#[doc(hidden)] // for the layers above
pub fn hidden_data(salts: &Digest, files: &Digest) -> Digest {
    hash("tiebreak 2 hidden-data", &[salts.0, files.0].concat())
}

/// The Philox key of a seed.
pub fn philox_key(seed: &Digest) -> [u32; 2] {
    [0, 4].map(|i| u32::from_le_bytes(seed.0[i..i + 4].try_into().expect("a digest has 32 bytes")))
}

//! Who a run is: its id and seed, derived from the job's text, the program, the data, the trainer's key and a nonce.
//! Layouts: `docs/RUN-FORMAT.md`.

use serde::{Deserialize, Serialize};

use crate::commit::Malformed;
use crate::commit::digest::{Digest, hash};
use crate::commit::keys::PublicKey;
use crate::commit::record::RunIdentity;
use crate::program::encoding;
use crate::program::step::Program;

/// The contract that this version of the program implements. An auditor replays runs of this contract only.
pub const CONTRACT: &str = "tiebreak-contract-1";
/// The digest of a program.
pub fn program_digest(program: &Program) -> Digest {
    hash("tiebreak 1 program", &encoding::encode(program))
}

/// What `run.json` says, with the data's digest in place of its manifest: enough for the run id.
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
    /// The digest of the data's manifest.
    pub data: Digest,
}

impl RunSummary {
    /// The key that the run names as its trainer's, if it is signed.
    ///
    /// # Errors
    /// If the key is malformed.
    pub fn named_key(&self) -> Result<Option<PublicKey>, Malformed> {
        self.trainer_key.as_deref().map(PublicKey::from_text).transpose()
    }

    /// The identity of the run of `job_text`. The seed's challenge is part of the nonce's digest.
    ///
    /// # Errors
    /// If the key or the nonce is malformed.
    pub fn identity(&self, job_text: &str) -> Result<RunIdentity, String> {
        let key = self.named_key().map_err(|error| error.to_string())?;
        if self.nonce.len() != 32 || !self.nonce.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err("the nonce has 32 hexadecimal digits".into());
        }
        let salted = [self.nonce.as_bytes(), &self.challenge.map_or([0; 32], |c| c.0)].concat();
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&hash("tiebreak 1 nonce", &salted).0[..16]);
        Ok(RunIdentity {
            contract: self.contract.clone(),
            job: job_digest(job_text),
            program: self.program,
            data: self.data,
            trainer_key: key.map_or([0; 32], |key| key.bytes()),
            nonce,
        })
    }
}

/// The digest of a job file's text.
pub fn job_digest(text: &str) -> Digest {
    hash("tiebreak 1 job", text.as_bytes())
}

/// The run's seed: H(job, challenge). The first eight bytes are the Philox key. `file`: the program digest, for a job that names a
/// program file: H(job, challenge, program), since the text alone does not fix what is trained.
pub fn seed(text: &str, challenge: Option<&Digest>, file: Option<&Digest>) -> Digest {
    let mut bytes = job_digest(text).0.to_vec();
    bytes.extend(challenge.map_or([0; 32], |c| c.0));
    bytes.extend(file.into_iter().flat_map(|program| program.0));
    hash("tiebreak 1 seed", &bytes)
}

/// The Philox key of a seed.
pub fn philox_key(seed: &Digest) -> [u32; 2] {
    [0, 4].map(|i| u32::from_le_bytes(seed.0[i..i + 4].try_into().expect("a digest has 32 bytes")))
}

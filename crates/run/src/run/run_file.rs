//! `run.json`: what identifies a run, and its one encoding.

use serde::{Deserialize, Serialize};

use tiebreak_job::identity::{RunSummary, hidden_data};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::{FileManifest, files_root};
use tiebreak_record::commit::digest::Digest;

/// `run.json`: the contents that identify a run. The run id is derived from them, never read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFile {
    /// The contract's name.
    pub contract: String,
    /// The trainer's public key (C2SP note form), if the run is signed.
    pub trainer_key: Option<String>,
    /// A digest that a client or a beacon gave after the job was fixed; without it the trainer chose the seed.
    pub challenge: Option<Digest>,
    /// 32 hexadecimal digits from the system's randomness, so that no two runs share an id.
    pub nonce: String,
    /// The program digest that the trainer derived.
    pub program: Digest,
    /// The digest of the initial state.
    pub initial: Digest,
    /// The origin of the initial state.
    pub origin: InitialOrigin,
    /// A manifest for each data file, in order.
    pub data: Vec<FileManifest>,
    /// The commitment to the salt key, of a run whose commitments hide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salts: Option<Digest>,
}

impl RunFile {
    /// The only encoding: JSON with an indentation of two blanks, without a line end at the end.
    #[doc(hidden)] // for the layers above
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a run file has no maps with keys that are no text")
    }

    /// The root of the data, which names the computation.
    #[doc(hidden)] // for the layers above
    pub fn data_root(&self) -> Digest {
        let files = files_root(&self.data);
        self.salts.as_ref().map_or(files, |salts| hidden_data(salts, &files))
    }

    /// The same contents with the root of the data's manifest in place of the files.
    pub fn summary(&self) -> RunSummary {
        RunSummary {
            contract: self.contract.clone(),
            trainer_key: self.trainer_key.clone(),
            challenge: self.challenge,
            nonce: self.nonce.clone(),
            program: self.program,
            data: self.data_root(),
            initial: self.initial,
            origin: self.origin.clone(),
        }
    }
}

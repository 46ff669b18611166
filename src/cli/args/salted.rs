//! `--opening` of commands that write a receipt.

use std::path::{Path, PathBuf};

use crate::cli::args::random::random;
use crate::cli::view::report::Failure;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::salted_receipt::{AnyReceipt, salted_texts};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, shell};

/// Salts a receipt.
#[derive(clap::Args, Clone, Default)]
pub struct SaltedArgs {
    /// Salt the receipt, and write its opening to this file.
    ///
    /// A salted receipt shows the model and the signer alone. People who have the opening check it.
    #[arg(long, value_name = "FILE", requires = "receipt")]
    pub opening: Option<PathBuf>,
}

impl SaltedArgs {
    /// Writes a receipt to a file, signed if there is a key, and its opening if the receipt is to be salted.
    ///
    /// # Errors
    /// If a file cannot be written, or the system has no randomness.
    pub fn write(&self, path: &Path, receipt: &AnyReceipt, key: Option<&PrivateKey>) -> Result<(), Failure> {
        let replace = |path: &Path, text: &str| -> Result<(), Failure> {
            let at = std::path::absolute(path).map_err(RunError::io(path))?;
            Ok(Disk::default().replace(&at, text.as_bytes())?)
        };
        let Some(opening) = &self.opening else {
            return replace(
                path,
                &match receipt {
                    AnyReceipt::Answer(receipt) => receipt.to_text(key),
                    AnyReceipt::Predictions(receipt) => receipt.to_text(key),
                },
            );
        };
        let [text, opened] = salted_texts(receipt, random()?, key);
        // The opening comes first: a receipt without one is of no use.
        replace(opening, &opened)?;
        replace(path, &text)
    }

    /// The option of `tiebreak receipt check`.
    pub fn words(&self) -> Option<String> {
        self.opening.as_ref().map(|path| format!("--opening {}", shell::path(path)))
    }
}

//! `--opening` of commands that write a receipt.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cli::args::key::refuse_in_run;
use crate::cli::args::random::random;
use crate::cli::view::report::Failure;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::salted_receipt::{AnyReceipt, salted_texts};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, shell};

/// Lets the owner alone read a file that has nothing in it yet.
fn private(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

/// Salts a receipt.
#[derive(clap::Args, Clone, Default)]
pub struct SaltedArgs {
    /// Salt the receipt, and write its opening to this file.
    ///
    /// A salted receipt shows the model and the signer alone. The opening has the text and the salt: give it to those alone who may see
    /// the text, since nobody checks the receipt without it.
    #[arg(long, value_name = "FILE", requires = "receipt")]
    pub opening: Option<PathBuf>,
}

impl SaltedArgs {
    /// Writes a receipt to a file, signed if there is a key, and its opening if the receipt is to be salted.
    ///
    /// # Errors
    /// If a file cannot be written, the opening would be published with a run, or the system has no randomness.
    pub fn write(&self, path: &Path, receipt: &AnyReceipt, key: Option<&PrivateKey>) -> Result<(), Failure> {
        let absolute = |path: &Path| std::path::absolute(path).map_err(RunError::io(path));
        let (disk, at) = (Disk::default(), absolute(path)?);
        let text = match (&self.opening, receipt) {
            (None, AnyReceipt::Answer(receipt)) => receipt.to_text(key),
            (None, AnyReceipt::Predictions(receipt)) => receipt.to_text(key),
            (Some(opening), _) => {
                let opening = absolute(opening)?;
                refuse_in_run(&opening)?;
                let [text, opened] = salted_texts(receipt, random()?, key);
                // The opening comes first: a receipt without one is of no use.
                disk.replace_by(&opening, |file| {
                    private(file)?;
                    file.write_all(opened.as_bytes())
                })?;
                text
            }
        };
        Ok(disk.replace(&at, text.as_bytes())?)
    }

    /// The option of `tiebreak receipt check`.
    pub fn words(&self) -> Option<String> {
        self.opening.as_ref().map(|path| format!("--opening {}", shell::path(path)))
    }
}

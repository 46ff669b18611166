//! `tiebreak key`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use super::report::named;
use super::{CommandResult, Exit, Failure, Printer, random};
use crate::commit::keys::{PrivateKey, PublicKey};
use crate::run::{RunError, disk};

/// The most bytes of a key file.
const KEY_MAX: u64 = 4096;

/// Make keys that sign a run's heads.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key pair: the private key in FILE (readable by you alone), the public one in FILE.pub and on stdout.
    #[command(after_help = "Example: tiebreak key new trainer.key --name trainer.example.org")]
    New {
        file: PathBuf,
        /// The key's name, such as a host name; it is part of every signature.
        #[arg(long)]
        name: String,
    },
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let Command::New { file, name } = args.command;
    let key = PrivateKey::generate(&name, random()?).map_err(|error| Failure::new(Exit::Usage, error))?;
    if file.parent().is_some_and(|folder| folder.join("run.json").exists()) {
        return Err(Failure::new(
            Exit::Usage,
            "a private key does not belong in a run's folder, which is published",
        ));
    }
    let public = key.public().to_text();
    write_new(&file, &format!("{}\n", key.to_text()), true)?;
    write_new(&public_path(&file), &format!("{public}\n"), false)?;
    printer.result(&public, &json!({ "public": public }));
    Ok(Exit::Match)
}

fn public_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// Writes a file that is not there yet, with mode 0600 if it is private.
fn write_new(path: &Path, text: &str, private: bool) -> Result<(), RunError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = private;
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(RunError::io(path))
}

/// Reads a private key file.
pub fn read_private(path: &Path) -> Result<PrivateKey, Failure> {
    let text = disk::read_text(path, KEY_MAX).map_err(named)?;
    if !is_private(&text) && PublicKey::from_text(&text).is_ok() {
        let why = "is the public key, which signs nothing: give the private one of the pair";
        return Err(Failure::new(Exit::Usage, format!("{} {why}", path.display())));
    }
    PrivateKey::from_text(&text).map_err(|error| RunError::malformed(path, error).into())
}

/// Whether a key file's text says that it is private.
fn is_private(text: &str) -> bool {
    text.trim_start().starts_with("PRIVATE+KEY+")
}

/// A public key: a file, or the text itself.
pub fn read_public(argument: &str) -> Result<PublicKey, Failure> {
    let path = Path::new(argument);
    // A private key that is quoted in an error is one that is told to everybody who reads the error.
    let private = |named: &str, public: &str| {
        let why = format!("{named} is a private key, which is for nobody but its owner: give {public}");
        Err(Failure::new(Exit::Usage, why))
    };
    if is_private(argument) {
        return private("this", "the public one of the pair");
    }
    if path.exists() {
        let text = disk::read_text(path, KEY_MAX)?;
        if is_private(&text) {
            return private(argument, &public_path(path).display().to_string());
        }
        return PublicKey::from_text(&text).map_err(|error| RunError::malformed(path, error).into());
    }
    PublicKey::from_text(argument).map_err(|error| {
        Failure::new(Exit::Usage, format!("{argument:?} is no key file and no key: {error}"))
    })
}

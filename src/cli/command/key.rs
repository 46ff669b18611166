//! `tiebreak key`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use crate::cli::args::key::public_path;
use crate::cli::args::random::random;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::RunError;

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

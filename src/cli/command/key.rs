//! `tiebreak key`.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use crate::cli::args::key::{public_path, refuse_in_run, write_new};
use crate::cli::args::random::random;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::shell;

/// Make keys that sign a run's heads, an auditor's reports or a party's answers.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak key new new.key --name trainer.example.org")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key pair: the private key in FILE, the public one in FILE.pub and on stdout.
    ///
    /// Only you can read the private key's file.
    #[command(after_help = "Example:\n  tiebreak key new new.key --name trainer.example.org")]
    New {
        /// File for the private key.
        file: PathBuf,
        /// Name of the key, such as a host name, which is part of every signature.
        #[arg(long)]
        name: String,
    },
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let Command::New { file, name } = args.command;
    let key = PrivateKey::generate(&name, random()?).map_err(|error| Failure::new(Exit::Usage, error))?;
    refuse_in_run(&file)?;
    let public = key.public().to_text();
    write_new(&file, &format!("{}\n", key.to_text()), true)?;
    write_new(&public_path(&file), &format!("{public}\n"), false)?;
    let train = format!("tiebreak train job.toml --out runs/mine --key {}", shell::path(&file));
    let audit = format!("tiebreak audit runs/mine --report report.json --key {}", shell::path(&file));
    let audit = Next::new("sign an audit's report with it", audit).note("runs/mine is the run to audit");
    let next = [Next::new("sign a run with it", train), audit];
    printer.result(&public, &json!({ "public": public, "next": next }));
    next.iter().for_each(|next| printer.say(next.line()));
    Ok(Exit::Match)
}

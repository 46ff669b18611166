//! `tiebreak completions`.

use clap_complete::{Shell, generate};
use serde_json::json;

use crate::cli::view::escape::Lines;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};

/// Print a script by which a shell completes commands and options.
///
/// For bash, write it to ~/.local/share/bash-completion/completions/tiebreak. For zsh, write it as _tiebreak to a folder of $fpath. For
/// fish, write it to ~/.config/fish/completions/tiebreak.fish. For PowerShell and elvish, run it in the profile.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak completions bash")]
pub struct Args {
    /// Shell that completes.
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(printer: Printer, args: &Args, mut command: clap::Command) -> CommandResult {
    let mut script = Vec::new();
    generate(args.shell, &mut command, "tiebreak", &mut script);
    let script = String::from_utf8(script).map_err(|error| Failure::new(Exit::Undecided, error))?;
    printer.document(
        Lines::split(script.trim_end()),
        &json!({ "shell": args.shell.to_string(), "script": script }),
    );
    Ok(Exit::Match)
}

//! `tiebreak monitor reveals`: what each file tells that a run or an inspection publishes.

mod finding;
mod of_exchange;
mod of_file;
mod of_run;

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::args::place::run_at;
use crate::cli::view::report::{CommandResult, Exit, Printer};
use finding::{Told, Visibility};
use tiebreak_run::run::reader::Salts;

/// List what each file of a run, or another published file, tells to whoever has it.
///
/// The command looks into the files: whether data are there, how many states, which digests. The list says what is in the clear, what a
/// guess can confirm, and what nobody guesses. Other files are packs, verdicts, receipts, openings, reports, statements, chips' logs,
/// registers, promises and draws.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor reveals runs/mine
  tiebreak monitor reveals verdict.json --json")]
pub struct Args {
    /// Folder of a run, or a file.
    path: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

/// The number of things that are visible in this way.
fn count(all: &[Told], visibility: Visibility) -> usize {
    all.iter().flat_map(|told| &told.reveals).filter(|(found, _)| *found == visibility).count()
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let (of, scheme, all) = if args.path.is_file() {
        (args.path.display().to_string(), None, vec![of_file::told(&args.path)?])
    } else {
        // What a run that hides tells others, who have no salt key.
        let run = run_at(&args.path, Salts::Closed)?.with_memory(args.limits.memory());
        (format!("run {}", run.id), Some(run.job().commit.scheme), of_run::told(&run)?)
    };
    let [clear, by_guess] =
        [Visibility::Clear, Visibility::ByGuess].map(|visibility| count(&all, visibility));
    let first = format!("{of}: {clear} things are in the clear, a guess confirms {by_guess} more");
    let lines = [first].into_iter().chain(all.iter().flat_map(Told::lines)).collect::<Vec<_>>();
    let files: Vec<_> = all.iter().map(Told::json).collect();
    printer.result(
        lines,
        &json!({ "of": of, "scheme": scheme, "in_the_clear": clear, "by_guess": by_guess, "files": files }),
    );
    Ok(Exit::Match)
}

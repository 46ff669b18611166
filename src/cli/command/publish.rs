//! `tiebreak publish`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::args::place::run_at;
use crate::cli::view::report::{CommandResult, Exit, Printer, bytes_text};
use tiebreak_run::run::hidden::PUBLISHED;
use tiebreak_run::run::index::Index;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{RunError, names};

/// Write the index of a run's files, for auditors who read the run over HTTP.
///
/// While a run is trained, the index has the files that are there now. A server that hands out files does not list them. The index does, so that a copy of the run's folder on any such server is read by its
/// address. The index of a run whose commitments hide has the files that show nothing of what is hidden.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak publish runs/mine")]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    // The index shows nothing that the salt key opens.
    let run = run_at(&args.run, Salts::Closed)?.with_memory(args.limits.memory());
    let hides = run.job().hides();
    let index = Index::of(&*run.store, |top| !hides || PUBLISHED.contains(&top));
    let index = index.map_err(RunError::io(&run.layout.root))?;
    let file = run.at(names::INDEX);
    file.replace(index.text().as_bytes())?;
    let (files, bytes) = index.size();
    let path = file.path().display();
    let line = format!("{path} lists {files} files of {} together", bytes_text(bytes));
    printer.result(vec![line], &json!({ "index": file.path(), "files": files, "bytes": bytes }));
    Ok(Exit::Match)
}

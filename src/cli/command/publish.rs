//! `tiebreak publish`.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::args::place::run_at;
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use tiebreak_remote::{Patience, is_address, publish, target};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::index::Index;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{RunError, names, shell};

/// Publish a run for auditors: upload its files, or write the index of its files.
///
/// With TO, the files that are not there yet are brought to an object store or a folder, each file before whatever covers it, and the index last. Run the command again whenever the run has grown, or if it was interrupted. Nothing newer is replaced by something older, and no file of another run.
///
/// Without TO, the file `index` is written in the run's folder, for a server to which you copy the folder yourself. While a run is trained, the index has the files that are there now.
///
/// Files that are no run's are refused, such as keys. If a run's commitments hide, only the files that show nothing of what is hidden are published.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak publish runs/mine
  tiebreak publish runs/mine www/mine
  tiebreak publish runs/mine s3://BUCKET/runs/mine")]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    /// Where the files go: a folder, or s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.
    #[arg(value_name = "TO")]
    to: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    // Nothing that is published shows what the salt key opens.
    let run = run_at(&args.run, Salts::Closed)?.with_memory(args.limits.memory());
    match &args.to {
        Some(to) => upload(printer, &run, to),
        None => write_index(printer, &run),
    }
}

/// True if a path is a folder's, or in it, as far as it exists.
fn within(path: &Path, folder: &Path) -> bool {
    let (Ok(path), Ok(folder)) = (std::path::absolute(path), folder.canonicalize()) else { return false };
    path.ancestors().any(|there| there.canonicalize().is_ok_and(|there| there.starts_with(&folder)))
}

/// Brings the run's files to where others read them.
fn upload(printer: Printer, run: &Run, to: &Path) -> CommandResult {
    if !is_address(to) && within(to, &run.layout.root) {
        let why = format!("{} is in the folder of the run itself", shell::path(to));
        return Err(Failure::new(Exit::Usage, why)
            .help("name a folder outside of the run's, or leave TO out for the index alone"));
    }
    let target = target(to, Patience::default())?;
    let counting = printer.counting("publishing", Unit::Of("files"));
    let done = publish::publish(run, &*target, &mut counting.watch());
    drop(counting);
    let done = done?;
    let head =
        done.head.map_or("no head yet".to_string(), |head| format!("the newest head covers {head} records"));
    let lines = vec![
        format!(
            "{}: {} files of {} were sent, {} were there; {head}",
            target.place(),
            done.sent,
            bytes_text(done.sent_bytes),
            done.there
        ),
        format!("its index lists {} files of {} together", done.files, bytes_text(done.bytes)),
    ];
    let value = json!({
        "to": target.place(),
        "sent": done.sent,
        "sent_bytes": done.sent_bytes,
        "there": done.there,
        "files": done.files,
        "bytes": done.bytes,
        "head": done.head,
    });
    printer.result(lines, &value);
    Ok(Exit::Match)
}

/// Writes the index beside the files.
fn write_index(printer: Printer, run: &Run) -> CommandResult {
    let index = Index::of(&*run.store, |top| run.may_publish(top));
    let index = index.map_err(RunError::io(&run.layout.root))?;
    let file = run.at(names::INDEX);
    file.replace(index.text().as_bytes())?;
    let (files, bytes) = index.size();
    let path = file.path().display();
    let line = format!("{path} lists {files} files of {} together", bytes_text(bytes));
    printer.result(vec![line], &json!({ "index": file.path(), "files": files, "bytes": bytes }));
    Ok(Exit::Match)
}

//! `tiebreak sign`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use tiebreak_audit::checks::Checked;
use tiebreak_audit::watched;
use tiebreak_audit::work::Work;

use crate::cli::args::decided::Decided;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::{Next, lines};
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::cosignature::{cosigned, cosigned_at, utc};
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, names, shell};

/// Sign a finished run that was trained without --key.
///
/// The signature says when it was made, and that is later than the run. A run that names its key from the beginning binds the trainer to
/// one history; a run that is signed later never will. Others see who vouches for it, and since when.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak sign runs/unsigned --key trainer.key")]
pub struct Args {
    /// Folder of the run.
    run: PathBuf,
    /// Private key that signs.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(signed(printer, args))
}

/// Checks the records, and shows how far that is.
fn looked_at(printer: Printer, run: &Run) -> Result<Checked, RunError> {
    let counting = printer.counting("checking the run", Unit::Bytes);
    watched::always(run, None, &mut Work::of_records(&mut counting.watch()))
}

fn signed(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let private = key::read_private(&args.key)?;
    let run = args.limits.open(&args.run)?;
    let refused = |why: &str| Err(Failure::new(Exit::Usage, format!("{}: {why}", args.run.display())));
    if run.file.trainer_key.is_some() {
        return refused("the run names its trainer's key, which signed every head while it was trained");
    }
    let checked = looked_at(printer, &run)?;
    if let Some(found) = &checked.inconsistent {
        return Err(Failure::new(Exit::Diverges, format!("step {}: {}", found.step, found.what)));
    }
    if !checked.end_checked {
        return refused("only a finished run is signed afterwards: train it to its end first (--resume)");
    }
    if cosigned_at(&checked.note, &private.public())?.is_some() {
        return refused(&format!("{} has signed the run already", private.public().identified()));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_err(|_| Failure::new(Exit::Undecided, "the clock is before 1970"))?.as_secs();
    let note = cosigned(&checked.note, &private, now)?;
    if note.len() > NOTE_MAX {
        return refused("its head has no room for one more signature");
    }
    let path = run.layout.head(checked.head.size);
    let absolute = std::path::absolute(&path).map_err(RunError::io(&path))?;
    Disk::default().replace(&absolute, note.as_bytes())?;
    let name = private.public().name().to_string();
    let option = key::trainer_option(Some(&args.key), Some(&private.public().to_text()));
    let shell_run = shell::path(&args.run);
    let mut next = vec![Next::new("check it with", format!("tiebreak verify {shell_run}{option}"))];
    if run.at(names::INDEX).is_here() {
        // The index has the head's length from before.
        next.push(Next::new(
            "the index is older than the signature: write it again with",
            format!("tiebreak publish {shell_run}"),
        ));
    }
    let first = format!("run {}: signed by {name} at {}, after it was trained", run.id, utc(now));
    printer.result(
        [first].into_iter().chain(lines(&next)).collect::<Vec<_>>(),
        &json!({
            "run": run.id,
            "signer": private.public().to_text(),
            "time": now,
            "head_size": checked.head.size,
            "next": next,
        }),
    );
    Ok(Exit::Match)
}

//! `tiebreak monitor declare`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;

use super::cosign::{Cosigned, WitnessArgs};
use super::promise::log::{read_log, write_log};
use super::registry::exclusive;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, names, shell, transcript};

/// Declare a run, or promises of runs: have a witness vouch for when the head was there.
///
/// The head of size 1 binds job, program, data and initial state before the first step. A witness's cosignature says when others saw that
/// head, so that nobody can declare a run after a chip logged its weights. The cosignature is added to the head's file in the run. In a
/// log of promises (`tiebreak monitor promise`) the witness cosigns the newest head.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak monitor declare runs/first --witness http://witness.example:8701 --witness-key witness.key.pub",
    after_long_help = "Run the command once for each witness. With --head last the witness sees the newest head, and that the run only grew.\n\n\
Examples:\n  tiebreak monitor declare runs/first --witness http://witness.example:8701 --witness-key witness.key.pub\n  \
tiebreak monitor declare trainer.promises --witness http://witness.example:8701 --witness-key witness.key.pub"
)]
pub struct Args {
    /// Folder of the run, which names its trainer's key; or a file of promises.
    run: PathBuf,
    #[command(flatten)]
    witness: WitnessArgs,
    /// Head that the witness cosigns.
    #[arg(long, value_enum, default_value_t)]
    head: Which,
    #[command(flatten)]
    limits: Limits,
}

/// A head of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Which {
    /// The head of size 1, which declares the run before its first step.
    #[default]
    First,
    /// The newest head.
    Last,
}

/// Adds the witness's line to the head's file, unless it is there.
fn cosign(args: &Args, run: &Run, size: u64) -> Result<Cosigned, Failure> {
    let path = run.layout.head(size);
    let _lock = exclusive(&path);
    let note = run.at(names::head(size)).read_text(NOTE_MAX as u64)?;
    let leaves = || {
        let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
        let count = transcript.leaves.len();
        let leaves = transcript.leaves.get(..size as usize).ok_or_else(|| {
            let why = format!("it has {count} records; its head covers {size}");
            RunError::invalid(&run.layout.transcript(), why)
        })?;
        Ok(leaves.to_vec())
    };
    let malformed = |error| RunError::malformed(&path, error).into();
    let newer = "give --head last, or a newer copy of the run";
    let cosigned = args.witness.cosign(&note, leaves, malformed, newer)?;
    if let Some(note) = &cosigned.note {
        let absolute = std::path::absolute(&path).map_err(RunError::io(&path))?;
        Disk::default().replace(&absolute, note.as_bytes())?;
    }
    Ok(cosigned)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    if args.run.is_file() {
        return declare_promises(printer, &args, &args.run);
    }
    let witness = args.witness.key()?;
    let run = args.limits.open(&args.run)?;
    let refused = |why: &str| Failure::new(Exit::Usage, format!("{}: {why}", args.run.display()));
    let Some(trainer) = &run.file.trainer_key else {
        let why = "the run names no trainer's key, and a witness cosigns signed heads only";
        return Err(refused(why).help("train runs that are declared with --key"));
    };
    let trainer =
        PublicKey::from_text(trainer).map_err(|error| RunError::malformed(&run.layout.run_json(), error))?;
    let size = match args.head {
        Which::First => 1,
        Which::Last => run.head_sizes()?.last().copied().ok_or_else(|| refused("the run has no head yet"))?,
    };
    let (head, _) = run.head(size, Some(&trainer))?;
    let found = cosign(&args, &run, size)?;
    let mut lines = vec![format!(
        "run {}: {} cosigned its head of size {} at {}{}",
        run.id,
        witness.name(),
        head.size,
        utc(found.time),
        if found.note.is_none() { ", before" } else { "" }
    )];
    lines.extend(found.warning());
    let option = key::trainer_option(None, run.file.trainer_key.as_deref());
    let next = Next::new("check the run with", format!("tiebreak verify {}{option}", shell::path(&args.run)));
    lines.push(next.line());
    printer.result(
        lines,
        &json!({
            "run": run.id,
            "witness": witness.to_text(),
            "time": found.time,
            "head_size": head.size,
            "was_there": found.note.is_none(),
            "next": [next],
        }),
    );
    Ok(Exit::Match)
}

/// Has a witness cosign the newest head of a log of promises.
fn declare_promises(printer: Printer, args: &Args, path: &Path) -> CommandResult {
    let witness = args.witness.key()?;
    let _lock = exclusive(path);
    let mut log = read_log(path)?;
    let Some(note) = log.newest().map(str::to_string) else {
        return Err(Failure::new(Exit::Usage, format!("{}: there is no promise yet", path.display())));
    };
    let malformed = |error| RunError::malformed(path, error).into();
    let newer = "give a newer copy of the log";
    let found = args.witness.cosign(&note, || Ok(log.leaves().to_vec()), malformed, newer)?;
    if let Some(note) = found.note.clone() {
        log.cosign(note).map_err(|error| RunError::malformed(path, error))?;
        write_log(path, &log)?;
    }
    let count = log.promises().len();
    let mut lines = vec![format!(
        "{} cosigned the head over {count} promises at {}{}",
        witness.name(),
        utc(found.time),
        if found.note.is_none() { ", before" } else { "" }
    )];
    lines.extend(found.warning());
    let command =
        format!("tiebreak monitor promise challenge {} --nonce NONCE --beacon HEX", shell::path(path));
    let next = Next::new("when the round has come, get the challenge with", command)
        .note("NONCE is the promise's nonce, HEX the round's value");
    lines.push(next.line());
    let witness = witness.to_text();
    printer.result(
        lines,
        &json!({
            "promises": count, "witness": witness, "time": found.time, "was_there": found.note.is_none(),
            "next": [next],
        }),
    );
    Ok(Exit::Match)
}

//! `tiebreak verdict`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use serde_json::json;

use super::{CommandResult, Exit, Failure, Printer, bytes_text, key};
use crate::audit::{checks, differences, reference_step, replay_to};
use crate::commit::checkpoint::Signed;
use crate::commit::record::Record;
use crate::dispute::verdict::{Outcome, VERDICT_MAX, Verdict};
use crate::engine::cpu::Cpu;
use crate::engine::session::Session;
use crate::run::RunError;
use crate::run::dir::Run;
use crate::run::disk;

/// Check verdicts.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Re-derive a verdict with the scalar reference, from the file alone (step verdicts need the run).
    #[command(after_help = "Example: tiebreak verdict check verdict.json --trainer-key trainer.key.pub\n\
Exit code 1 when it convicts, 0 when it does not, 4 when the file does not hold together.")]
    Check {
        file: PathBuf,
        /// The trainer's public key: a file or its text.
        #[arg(long)]
        trainer_key: Option<String>,
        /// The run's folder, for a verdict that names a whole step.
        #[arg(long)]
        run: Option<PathBuf>,
    },
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let Command::Check { file, trainer_key, run } = args.command;
    let public = trainer_key.as_deref().map(key::read_public).transpose()?;
    let bytes = disk::read(&file, VERDICT_MAX)?;
    let malformed = |error| Failure::from(RunError::malformed(&file, error));
    let verdict = Verdict::from_bytes(&bytes).map_err(malformed)?;
    let (convicts, text) = match verdict.check(public.as_ref()).map_err(malformed)? {
        Outcome::Convicts(finding) => {
            let signed = match finding.signed {
                Signed::By => "signed by the trainer's key",
                Signed::Unknown => "signer unknown: give --trainer-key",
            };
            let size = bytes_text(bytes.len() as u64);
            (
                true,
                format!(
                    "CONVICTS run {} ({signed}) from this file alone ({size})\nstep {}: {}",
                    finding.run, finding.step, finding.what
                ),
            )
        }
        Outcome::DoesNotConvict(why) => (false, format!("does not convict: {why}")),
        Outcome::NeedsReplay { step, run: id } => {
            let path = run.ok_or_else(|| {
                Failure::new(
                    Exit::Usage,
                    format!("this verdict names step {step} as a whole: give --run FOLDER"),
                )
            })?;
            let run = Run::open(&path)?;
            if run.id != id {
                return Err(Failure::new(Exit::Usage, format!("{} is another run", path.display())));
            }
            step_verdict(printer, &run, &verdict, step, public.as_ref())?
        }
    };
    printer.result(&text, &json!({ "convicts": convicts, "text": text }));
    Ok(if convicts { Exit::Diverges } else { Exit::Match })
}

/// Replays a step with the scalar reference. The way there from the last checkpoint runs on the CPU engine and is
/// compared record by record.
fn step_verdict(
    printer: Printer,
    run: &Run,
    verdict: &Verdict,
    step: u32,
    key: Option<&crate::commit::keys::PublicKey>,
) -> Result<(bool, String), Failure> {
    let checked = checks::structure(run, key)?;
    // Two heads of one run may be over different records: the verdict is about the one that it carries.
    let theirs = checked.transcript.records.get(step as usize).map(Record::encode);
    if theirs.as_ref() != verdict.record.as_ref().map(|record| &record.record.0) {
        let why = format!("{}: its record of step {step} is not the verdict's", run.layout.root.display());
        return Err(Failure::new(Exit::Undecided, why));
    }
    let mut cpu = Cpu::new(0)?;
    let mut session = Session::new(&mut cpu, Arc::new(run.program.clone()))?;
    if let Some((before, what)) = replay_to(run, &checked, &mut session, step)? {
        let why = format!("step {before} before it differs already: {what}");
        return Err(Failure::new(Exit::Undecided, why));
    }
    let state = session.download_state()?;
    printer.say(format!("replaying step {step} with the scalar reference ..."));
    let mine = reference_step(run, step, &state)?;
    let different = differences(&mine, checked.step(step));
    Ok(if different.is_empty() {
        (false, format!("does not convict: step {step} is what the scalar reference computes"))
    } else {
        (true, format!("step {step} DIVERGES from the scalar reference: {}", different.join(", ")))
    })
}

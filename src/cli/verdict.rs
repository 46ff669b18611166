//! `tiebreak verdict`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use serde_json::json;

use super::{CommandResult, Exit, Failure, Printer, bytes_text, key};
use crate::audit::{checks, differences, reference_step};
use crate::commit::checkpoint::Signed;
use crate::dispute::verdict::{Outcome, VERDICT_MAX, Verdict};
use crate::engine::cpu::Cpu;
use crate::engine::session::Session;
use crate::run::RunError;
use crate::run::checkpoint;
use crate::run::dir::Run;
use crate::run::disk;
use crate::run::job::philox_key;
use crate::train::committed_step::{committed_step, scalars};

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
            step_verdict(printer, &run, step, public.as_ref())?
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
    step: u32,
    key: Option<&crate::commit::keys::PublicKey>,
) -> Result<(bool, String), Failure> {
    let checked = checks::structure(run, key)?;
    let from = run.checkpoint_steps()?.into_iter().rfind(|&s| s < step);
    let from =
        from.ok_or_else(|| Failure::new(Exit::Undecided, "there is no checkpoint before this step"))?;
    let mut state = checkpoint::read(&run.layout.checkpoint(from), &run.program.state())?;
    if from + 1 < step {
        let mut cpu = Cpu::new(0)?;
        let mut session = Session::new(&mut cpu, Arc::new(run.program.clone()))?;
        session.load(&state)?;
        let mut dataset = run.dataset()?;
        for s in from + 1..step {
            let batch = dataset.batch(&run.program, philox_key(&run.seed), s)?;
            let mine = committed_step(run, &mut session, scalars(run, s), &batch, None)?;
            if mine.record != *checked.step(s) {
                return Err(Failure::new(Exit::Undecided, format!("step {s} before it differs already")));
            }
        }
        state = session.download_state()?;
    }
    printer.say(format!("replaying step {step} with the scalar reference ..."));
    let mine = reference_step(run, step, &state)?;
    let different = differences(&mine, checked.step(step));
    Ok(if different.is_empty() {
        (false, format!("does not convict: step {step} is what the scalar reference computes"))
    } else {
        (true, format!("step {step} DIVERGES from the scalar reference: {}", different.join(", ")))
    })
}

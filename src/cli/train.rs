//! `tiebreak train`.

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use indicatif::ProgressBar;
use serde_json::json;

use super::engine::{EngineArgs, open};
use super::{CommandResult, Exit, Failure, Printer, bytes_text, key, random};
use crate::commit::digest::Digest;
use crate::commit::record::StepRecord;
use crate::engine::plan::step_bytes;
use crate::program::models::Model;
use crate::run::dir::Run;
use crate::run::disk::Disk;
use crate::train::{Beginning, Progress, begin, disk_needed, train};

/// Train a job and commit to every step.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak train assets/jobs/shakespeare.toml --out runs/shakespeare --key trainer.key\n\
After an interruption: tiebreak train --out runs/shakespeare --key trainer.key --resume"
)]
pub struct Args {
    /// The job file; not needed with --resume.
    job: Option<PathBuf>,
    /// The folder of the run.
    #[arg(long)]
    out: PathBuf,
    /// The trainer's private key (see `tiebreak key new`); without it heads are not signed.
    #[arg(long)]
    key: Option<PathBuf>,
    /// 64 hexadecimal digits from the client or a beacon, given after the job was fixed.
    #[arg(long)]
    challenge: Option<Digest>,
    /// `logged`: products by native kernels, with a rounding log, at the job's thresholds or the default ones.
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Go on where the run stopped, to the same bits.
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What a trainer's kernels may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// The contract's own products; no log.
    Exact,
    Logged,
}

/// Shows steps as they are done.
pub struct Bar {
    pub bar: ProgressBar,
    pub start: Instant,
    /// Tokens, or samples, of a step.
    pub per_step: u64,
    pub done: u64,
}

impl Progress for Bar {
    fn step(&mut self, record: &StepRecord, _: u32) {
        self.done += 1;
        self.bar.set_position(u64::from(record.step));
        let rate = (self.done * self.per_step) as f64 / self.start.elapsed().as_secs_f64();
        self.bar.set_message(format!("{rate:.0} tokens/s  loss {:.4}", f32::from_bits(record.loss)));
    }
}

impl Bar {
    pub fn new(printer: Printer, run: &Run) -> Bar {
        let per_sample = match &run.job.model {
            Model::Gpt(gpt) => u64::from(gpt.context),
            Model::Mlp(_) => 1,
        };
        Bar {
            bar: printer.bar(u64::from(run.job.steps), "steps"),
            start: Instant::now(),
            per_step: per_sample * u64::from(run.program.batch()),
            done: 0,
        }
    }
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let disk = Disk::default();
    let private = args.key.as_deref().map(key::read_private).transpose()?;
    // First, so that nothing is begun that cannot go on here.
    let mut engine = open(&args.engine)?;
    let run = match (&args.job, args.resume) {
        (_, true) => Run::open(&args.out)?,
        (Some(job), false) => {
            let nonce = random()?;
            let logged = args.profile == Some(Profile::Logged);
            let beginning = Beginning {
                job,
                out: &args.out,
                key: private.as_ref(),
                challenge: args.challenge,
                logged,
                nonce,
            };
            begin(&disk, &beginning)?
        }
        (None, false) => return Err(Failure::new(Exit::Usage, "a job file is needed, or --resume")),
    };
    if args.profile == Some(Profile::Exact) && run.job.rounding.is_some() {
        let why = "the job has a [rounding] table: it is of the logged profile; remove the table or --profile exact";
        return Err(Failure::new(Exit::Usage, why));
    }
    printer.say(format!(
        "run {}: {} parameters, {} steps on {}; tensors of a step take {}, the run about {} on disk",
        run.id.short(),
        run.program.parameter_count(),
        run.job.steps,
        engine.describe(),
        bytes_text(step_bytes(&run.program)),
        bytes_text(disk_needed(&run)),
    ));
    let mut bar = Bar::new(printer, &run);
    let state = train(&disk, &run, engine.as_mut(), private.as_ref(), None, &mut bar)?;
    bar.bar.finish_and_clear();
    let seconds = bar.start.elapsed().as_secs_f64();
    printer.result(
        format!(
            "{} in {seconds:.1} s\nrun    {}\nstate  {state}\naudit it with: tiebreak audit {}",
            if bar.done == 0 {
                "the run was complete already".into()
            } else {
                format!("trained {} steps", bar.done)
            },
            run.id,
            args.out.display()
        ),
        &json!({ "run": run.id, "state": state, "steps": run.job.steps, "seconds": seconds }),
    );
    Ok(Exit::Match)
}

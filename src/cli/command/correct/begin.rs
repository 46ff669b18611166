//! `tiebreak correct begin`.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::random::random;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Printer};
use tiebreak_run::run::{Folder, shell};
use tiebreak_train::{Again, again};

/// Begin a corrected run from the records of a run before its first wrong step.
///
/// The new run is of the same computation: it takes over job, data, and the records before the step with everything that belongs to them,
/// under heads of its own. Train it with `--resume`. The old run stays as it is. If the command is stopped, the same command line ends its
/// work.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak correct begin runs/mine --step 17 --out runs/mine-2 --key trainer.key"
)]
pub struct Args {
    /// Folder of the run whose records are wrong.
    run: PathBuf,
    /// First wrong step.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u32).range(1..))]
    step: u32,
    /// Folder of the corrected run.
    #[arg(long, value_name = "NEW")]
    out: PathBuf,
    /// Private key that signed the run's heads.
    #[arg(long, value_name = "KEY")]
    key: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let private = args.key.as_deref().map(key::read_private).transpose()?;
    let old = args.limits.open(&args.run)?;
    let beginning = Again {
        run: &old,
        step: args.step,
        out: Folder::at(&args.out),
        key: private.as_ref(),
        nonce: random()?,
    };
    let new = printer.during("taking over the records", || again(&beginning))?;
    let [run, out] = [&args.run, &args.out].map(|path| shell::path(path));
    let key = args.key.as_deref().map_or(String::new(), |key| format!(" --key {}", shell::path(key)));
    let train = format!("tiebreak train --out {out} --resume{key} --engine cpu");
    let train = match new.holds_data() {
        true => Next::new("train it, on an engine that is right", train),
        false => Next::new("train it, on an engine that is right", format!("{train} --data FOLDER"))
            .note("where its data files are"),
    };
    let step = args.step;
    let sign = format!("tiebreak correct sign {run} --new {out} --step {step}{key} --reason device");
    let next = [train, Next::new("then sign the correction", sign)];
    let mut lines =
        vec![format!("run {}: begun with the records of run {} before step {step}", new.id, old.id.short())];
    lines.extend(next::lines(&next));
    printer.result(lines, &json!({ "run": new.id, "old": old.id, "step": step, "next": next }));
    Ok(Exit::Match)
}

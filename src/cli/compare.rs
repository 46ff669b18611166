//! `tiebreak compare`.

use std::path::PathBuf;

use serde_json::json;

use super::{CommandResult, Exit, Printer};
use crate::audit::checks::{self, Checked};
use crate::commit::state::tensor_digests;
use crate::dispute::verdict::{Claim, Fork, Outcome, Verdict};
use crate::run::dir::Run;
use crate::run::disk::Disk;
use crate::run::{RunError, checkpoint};

/// Find the first step, and tensor, in which two runs differ.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak compare runs/on-cpu runs/on-gpu")]
pub struct Args {
    first: PathBuf,
    second: PathBuf,
    /// Write the verdict here, if these are two signed histories of one run.
    #[arg(long, default_value = "verdict.json")]
    verdict: PathBuf,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let runs = [Run::open(&args.first)?, Run::open(&args.second)?];
    let [a, b] = [checks::structure(&runs[0], None)?, checks::structure(&runs[1], None)?];
    let same_program = runs[0].file.program == runs[1].file.program;
    let pairs = a.transcript.records.iter().zip(&b.transcript.records);
    let step = pairs.into_iter().position(|(x, y)| x.state() != y.state());
    let mut tensor = None;
    if let (Some(step), true) = (step, same_program) {
        let table = runs[0].program.state();
        let path = |run: &Run| run.layout.checkpoint(step as u32);
        if path(&runs[0]).exists() && path(&runs[1]).exists() {
            let [x, y] = [&runs[0], &runs[1]].map(|run| checkpoint::read(&path(run), &table));
            let (x, y) = (tensor_digests(&table, &x?), tensor_digests(&table, &y?));
            tensor =
                table.iter().zip(x.iter().zip(&y)).find(|(_, (x, y))| x != y).map(|(t, _)| t.name.clone());
        }
    }
    let text = match (&step, &tensor) {
        (None, _) => {
            format!("no difference in {} states", a.transcript.records.len().min(b.transcript.records.len()))
        }
        (Some(step), Some(tensor)) => format!("step {step} differs first, in {tensor}"),
        (Some(step), None) => {
            format!("step {step} differs first (no checkpoint of both runs to name the tensor)")
        }
    };
    let fork = fork(&runs, &a, &b);
    let text = match &fork {
        Some(verdict) => {
            let out = std::path::absolute(&args.verdict).map_err(RunError::io(&args.verdict))?;
            Disk::default().replace(&out, &verdict.to_bytes())?;
            format!(
                "{text}\nthe trainer signed two histories of one run; verdict: {}",
                args.verdict.display()
            )
        }
        None => text,
    };
    let forked = fork.is_some();
    printer.result(
        &text,
        &json!({ "step": step, "tensor": tensor, "same_program": same_program, "fork": forked }),
    );
    if forked {
        return Ok(Exit::Diverges);
    }
    Ok(if step.is_none() { Exit::Match } else { Exit::Diverges })
}

/// The verdict on two signed histories of one run.
fn fork(runs: &[Run; 2], a: &Checked, b: &Checked) -> Option<Verdict> {
    let mut pairs = a.transcript.leaves.iter().zip(&b.transcript.leaves);
    let index = pairs.position(|(x, y)| x != y)? as u32;
    let evidence = Fork::Record { record: b.proven(index) };
    let verdict = a.verdict(&runs[0], index, Claim::Fork { other: b.note.clone(), evidence });
    // Not if the runs are two, or nobody's.
    matches!(verdict.check(None), Ok(Outcome::Convicts(_))).then_some(verdict)
}

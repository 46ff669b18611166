//! `tiebreak compare`.

use std::path::PathBuf;

use serde_json::json;

use super::{CommandResult, Exit, Printer};
use crate::audit::checks;
use crate::run::checkpoint::{self, tensor_digests};
use crate::run::dir::Run;

/// Find the first step, and tensor, in which two runs differ.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak compare runs/on-cpu runs/on-gpu")]
pub struct Args {
    first: PathBuf,
    second: PathBuf,
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
    printer.result(&text, &json!({ "step": step, "tensor": tensor, "same_program": same_program }));
    Ok(if step.is_none() { Exit::Match } else { Exit::Diverges })
}

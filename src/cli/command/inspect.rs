//! `tiebreak inspect`.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::view::chart::{Curve, over_steps};
use crate::cli::view::escape::{Lines, one_line};
use crate::cli::view::report::{CommandResult, Exit, Printer};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::transcript::{self, Transcript};
use tiebreak_run::run::{RunError, names};
use tiebreak_run::step::finite::{self, LossesNotFinite};

/// Columns and rows of the curve on a terminal.
const COLUMNS: usize = 72;
const ROWS: usize = 12;

/// Summarise a run and draw its loss curve.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak inspect runs/mine --svg loss.svg")]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Also write the curve as an SVG picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    // Listed first: a trainer may publish heads meanwhile, over records that are not read here.
    let heads = run.head_sizes()?;
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let mut losses = Vec::new();
    for record in &transcript.records {
        if let Record::Step { step, .. } = record {
            losses.push(f32::from_bits(step.loss));
        }
    }
    let not_finite = finite::of_records(&transcript.records);
    if let Some(path) = &args.svg {
        draw(path, &run, &losses)?;
    }
    let covered = covered(&run, heads.last().copied(), &transcript)?;
    let complete = matches!(transcript.records[..covered].last(), Some(Record::Final { .. }));
    let data = run.file.summary().data;
    let signer = match &run.file.trainer_key {
        None => "by nobody: the run names no key".to_string(),
        Some(key) => {
            format!("names {}, signature not verified (tiebreak verify --trainer-key)", one_line(key))
        }
    };
    let text = format!(
        "run      {}\ncomputation {}\njob      {}\ndata     {data}\nseed     {}\ninitial  {} ({})\nsigned   {signer}\nprogram  {} ({} parameters; {})\nsteps    {} of {}{}\nheads    {}, the last over {covered} of {} records\ncheckpoints {}\n\n{}",
        run.id,
        run.computation.id,
        run.job().digest(),
        run.computation.seed,
        run.file.initial,
        one_line(&origin_text(&run.file.origin)),
        run.file.program,
        run.program().parameter_count(),
        run.program_source(),
        losses.len(),
        run.job().steps,
        if complete { ", complete" } else { "" },
        heads.len(),
        transcript.records.len(),
        run.checkpoint_steps()?.len(),
        curve(&losses, not_finite.as_ref()),
    );
    printer.result(
        Lines::split(&text),
        &json!({
            "run": run.id,
            "computation": run.computation.id,
            "job": run.job().digest(),
            "data": data,
            "seed": run.computation.seed,
            "initial": run.file.initial,
            "origin": run.file.origin,
            "trainer_key": run.file.trainer_key,
            "program": run.file.program,
            "program_file": run.program_file.is_some(),
            "parameters": run.program().parameter_count(),
            "steps": losses.len(),
            "of": run.job().steps,
            "complete": complete,
            "records": transcript.records.len(),
            "records_under_head": covered,
            "signature_verified": false,
            "losses": losses,
            "not_finite": not_finite,
        }),
    );
    Ok(Exit::Match)
}

/// Writes the loss curve as a picture.
fn draw(path: &Path, run: &Run, losses: &[f32]) -> Result<(), RunError> {
    let points = (1u32..).zip(losses).map(|(step, loss)| (f64::from(step), f64::from(*loss))).collect();
    let curve = Curve { name: run.id.short().to_string(), points, colour: 0, dashed: false };
    let path = std::path::absolute(path).map_err(RunError::io(path))?;
    Disk::default().replace(&path, over_steps("loss", "loss", vec![curve]).as_bytes())
}

/// Records that the last head covers; 0 without one. Whoever signed it is not looked at.
fn covered(run: &Run, size: Option<u64>, transcript: &Transcript) -> Result<usize, RunError> {
    let Some(size) = size else { return Ok(0) };
    let (head, _) = run.head(size, None)?;
    let leaves = usize::try_from(size).ok().and_then(|size| transcript.leaves.get(..size));
    let wrong = |why: String| Err(RunError::invalid(&run.layout.head(size), why));
    match leaves.map(|leaves| (leaves.len(), merkle::root(leaves))) {
        Some((count, root)) if root == head.root => Ok(count),
        Some((_, root)) => {
            wrong(format!("it is not over the records that are here: their root is {}", root.not(&head.root)))
        }
        None => {
            let found = transcript.leaves.len();
            wrong(format!("it is over {size} records, and {found} are here"))
        }
    }
}

/// The origin of an initial state, in words.
fn origin_text(origin: &InitialOrigin) -> String {
    match origin {
        InitialOrigin::Seed => "from the seed".into(),
        InitialOrigin::Weights { files } => {
            let roots: Vec<String> = files.iter().map(|file| file.root.short().to_string()).collect();
            format!("from weights: BLAKE3 {}", roots.join(", "))
        }
        InitialOrigin::Run(earlier) => match earlier.finish() {
            Ok((run, computation, _)) => {
                let slots = if earlier.optimizer_state { "with" } else { "without" };
                format!("from the end of run {run}, computation {computation}, {slots} its optimizer state")
            }
            Err(why) => format!("from an earlier run that does not hold together: {why}"),
        },
    }
}

/// The mean loss of each of `columns` equal parts, of the losses in it that are finite.
fn columns(losses: &[f32], columns: usize) -> Vec<f32> {
    let count = columns.min(losses.len());
    let part = |i: usize| &losses[i * losses.len() / count..(i + 1) * losses.len() / count];
    let mean = |part: &[f32]| {
        let finite: Vec<f32> = part.iter().copied().filter(|x| x.is_finite()).collect();
        finite.iter().sum::<f32>() / finite.len() as f32
    };
    (0..count).map(|i| mean(part(i))).collect()
}

fn range(values: &[f32]) -> Option<(f32, f32)> {
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let (low, high) = (finite().reduce(f32::min)?, finite().reduce(f32::max)?);
    Some((low, if high > low { high } else { low + 1.0 }))
}

/// The loss curve as text, and which losses are not finite.
fn curve(losses: &[f32], not_finite: Option<&LossesNotFinite>) -> String {
    let values = columns(losses, COLUMNS);
    let said = not_finite.map(|found| format!("NOT FINITE: {found}"));
    let Some((low, high)) = range(&values) else { return said.unwrap_or_else(|| "no losses yet".into()) };
    let mut lines = vec![vec![' '; values.len()]; ROWS];
    for (x, value) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
        let y = ((high - value) / (high - low) * (ROWS - 1) as f32).round() as usize;
        lines[y.min(ROWS - 1)][x] = '*';
    }
    let label = |row: usize| high - (high - low) * row as f32 / (ROWS - 1) as f32;
    let rows = lines.iter().enumerate();
    let text: Vec<String> =
        rows.map(|(row, line)| format!("{:8.4} |{}", label(row), String::from_iter(line))).collect();
    format!(
        "{}{}\n{:>9}+{}\n{:>10}1{:>width$}",
        said.map_or(String::new(), |said| format!("{said}\n\n")),
        text.join("\n"),
        "",
        "-".repeat(values.len()),
        "",
        losses.len(),
        width = values.len() - 1
    )
}

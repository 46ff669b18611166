//! `tiebreak log`: the decisions in a rounding log, and the thresholds that a job's log needs.

mod calibrated;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;

use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use tiebreak_audit::{checks, replay_to};
use tiebreak_contract::program::graph::LoggedProduct;
use tiebreak_contract::program::init;
use tiebreak_contract::program::products::ProductClass;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::identity::{philox_key, program_digest, seed};
use tiebreak_job::manifest::files_root;
use tiebreak_record::rounding::codec::{decode, entropy_bits};
use tiebreak_record::rounding::log::Log;
use tiebreak_run::observers::calibrate::{Calibrator, Kernels};
use tiebreak_run::observers::tally::{MARGIN_BINS, Tally};
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, read_job, read_logged_job, read_program};
use tiebreak_run::step::replayed_step;

/// Look into rounding logs of the logged profile, and measure thresholds.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak log inspect runs/logged --step 2")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Inspect(Inspect),
    Calibrate(Calibrate),
}

/// Show sizes and entries of a step's log, by class of product.
///
/// With --operator the command shows the decisions of one product. With --margins it shows how near the decisions are to their boundaries.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak log inspect runs/logged --step 2 --margins margins.svg")]
#[command(mut_group("EngineArgs", |group| group.requires("margins")))]
struct Inspect {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Step; by default the last one.
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    /// Show one product alone, by its operator, such as block0.query.
    #[arg(long, value_name = "NAME", conflicts_with = "margins")]
    operator: Option<String>,
    /// With --operator: micro-batch of the product.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "operator")]
    micro_batch: u32,
    /// Replay the step and draw the distances of decisions from their boundaries.
    #[arg(long, value_name = "FILE")]
    margins: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

/// Measure thresholds for a job: every native kernel at hand against the exact product.
///
/// The command measures the products of the job's first steps.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak log calibrate logged.toml --steps 2 --write")]
struct Calibrate {
    #[command(flatten)]
    job: JobArgs,
    /// Training steps whose first micro-batch is measured.
    #[arg(long, value_name = "N", default_value_t = 3)]
    steps: u32,
    /// Factor by which measured distances are multiplied.
    #[arg(long, value_name = "FACTOR", default_value_t = 3.0)]
    safety: f64,
    /// Write the thresholds into the job file, in place of those that it has.
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Inspect(args) => args.decided.applied(inspect(printer, &args)),
        Command::Calibrate(args) => calibrate(printer, &args),
    }
}

#[derive(Default, Serialize)]
struct Row {
    products: u64,
    elements: u64,
    decisions: u64,
    wide: u64,
    bytes: u64,
    entropy_bytes: f64,
}

fn no_such_step(step: u32, last: u32) -> Failure {
    let why = format!("--step {step}: the head covers steps 1 to {last}");
    Failure::new(Exit::Usage, why).help(format!("give a step from 1 to {last}"))
}

fn inspect(printer: Printer, args: &Inspect) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    if run.job().rounding.is_none() {
        let why = format!("{} is of the exact profile: it has no rounding log", args.run.display());
        let help = "train with `tiebreak train JOB --out RUN --profile logged` to write one";
        return Err(Failure::new(Exit::Usage, why).help(help));
    }
    let checked = checks::always(&run, None)?;
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
    let step = args.step.unwrap_or(last);
    if step == 0 || step > last {
        return Err(no_such_step(step, last));
    }
    let log = run.rounding_log(step)?;
    let committed = checked.step(step)?.log == Some(log.root());
    if let Some(operator) = &args.operator {
        let part = Part { step, micro_batch: args.micro_batch };
        return inspect_part(printer, &run, part, &log, operator, committed);
    }
    let products = &run.program().micro.logged;
    let mut rows: BTreeMap<ProductClass, Row> = BTreeMap::new();
    for part in 0..products.len() * run.program().micro_batches as usize {
        let product = &products[part % products.len()];
        let elements = product.elements() as u64;
        let decisions = decode(log.part(part), elements)?;
        let row = rows.entry(product.class).or_default();
        row.products += 1;
        row.elements += elements;
        row.decisions += decisions.len() as u64;
        row.wide += decisions.iter().filter(|decision| decision.bits > 1).count() as u64;
        row.bytes += log.part(part).len() as u64;
        row.entropy_bytes += entropy_bits(&decisions, elements) / 8.0;
    }
    let mut lines = vec![format!(
        "step {step}: {} in {} products{}",
        bytes_text(log.bytes().len() as u64),
        rows.values().map(|row| row.products).sum::<u64>(),
        said(committed)
    )];
    lines.push(format!(
        "{:<10}  {:>12}  {:>10}  {:>8}  {:>6}  {:>10}  {:>8}",
        "class", "elements", "decisions", "share", "wide", "bytes", "/entropy"
    ));
    for (class, row) in &rows {
        lines.push(format!(
            "{:<10}  {:>12}  {:>10}  {:>7.4}%  {:>6}  {:>10}  {:>8.3}",
            class.name(),
            row.elements,
            row.decisions,
            100.0 * row.decisions as f64 / row.elements.max(1) as f64,
            row.wide,
            row.bytes,
            if row.decisions == 0 { 1.0 } else { row.bytes as f64 / row.entropy_bytes },
        ));
    }
    let mut tally = None;
    if let Some(path) = &args.margins {
        let seen = replayed(printer, &run, &checked, step, args)?;
        lines.extend(histogram(&seen));
        Disk::default().replace(
            &std::path::absolute(path).map_err(tiebreak_run::run::RunError::io(path))?,
            svg(&seen).as_bytes(),
        )?;
        lines.push(format!("picture: {}", path.display()));
        tally = Some(seen);
    }
    printer.result(lines, &json!({ "step": step, "committed": committed, "bytes": log.bytes().len(), "classes": rows, "replay": tally }));
    Ok(if committed { Exit::Match } else { Exit::Malformed })
}

fn said(committed: bool) -> &'static str {
    if committed { "" } else { "; NOT the log that the record commits" }
}

/// The decisions that are printed of a part.
const SHOWN_MAX: usize = 20;

/// A micro-batch of a step.
#[derive(Clone, Copy)]
struct Part {
    step: u32,
    micro_batch: u32,
}

/// One product's part of the log, found by the index; the others are not decoded.
fn inspect_part(
    printer: Printer,
    run: &Run,
    part: Part,
    log: &Log,
    operator: &str,
    committed: bool,
) -> CommandResult {
    let Part { step, micro_batch } = part;
    let graph = &run.program().micro;
    let operator_of = |product: &LoggedProduct| {
        let node = graph.nodes.iter().find(|node| node.output == product.product);
        node.map_or("", |node| node.operator.as_str())
    };
    let names: Vec<&str> = graph.logged.iter().map(operator_of).collect();
    let numbers: Vec<usize> = (0..names.len()).filter(|&number| names[number] == operator).collect();
    let usage = |why: String| Err(Failure::new(Exit::Usage, why));
    if numbers.is_empty() {
        return usage(format!("the program logs no product of {operator}; it logs {}", names.join(", ")));
    }
    if micro_batch >= run.program().micro_batches {
        let last = run.program().micro_batches - 1;
        return usage(format!("--micro-batch {micro_batch}: a step has micro-batches 0 to {last}"));
    }
    let mut lines = Vec::new();
    let mut parts = Vec::new();
    // The two gradients of a product carry one name.
    for number in numbers {
        let part = micro_batch as usize * graph.logged.len() + number;
        let product = &graph.logged[number];
        let decisions = decode(log.part(part), product.elements() as u64)?;
        let bytes = log.part(part).len();
        let first = log.prove(part, product.elements() as u64, 0);
        lines.push(format!(
            "step {step}, {operator} ({}) of micro-batch {micro_batch}: {} decisions about {} values in {}; {} prove the first{}",
            product.class.name(),
            decisions.len(),
            product.elements(),
            bytes_text(bytes as u64),
            bytes_text(first.bytes.len() as u64),
            said(committed)
        ));
        let [_, m, n, _] = product.dims();
        for decision in decisions.iter().take(SHOWN_MAX) {
            let place = decision.place as usize;
            lines.push(format!(
                "  element {place} (sample {}, row {}, column {}): index = {} modulo {}",
                place / (m * n),
                place / n % m,
                place % n,
                decision.residue,
                1u64 << decision.bits
            ));
        }
        if decisions.len() > SHOWN_MAX {
            lines.push(format!("  and {} more (--json lists all)", decisions.len() - SHOWN_MAX));
        }
        let listed: Vec<_> = decisions.iter().map(|d| (d.place, d.bits, d.residue)).collect();
        parts.push(json!({ "class": product.class, "part": part, "bytes": bytes, "elements": product.elements(), "decisions": listed }));
    }
    printer.result(
        lines,
        &json!({ "step": step, "committed": committed, "operator": operator, "micro_batch": micro_batch, "products": parts }),
    );
    Ok(if committed { Exit::Match } else { Exit::Malformed })
}

/// The tally of a replay of the step.
fn replayed(
    printer: Printer,
    run: &Run,
    checked: &checks::Checked,
    step: u32,
    args: &Inspect,
) -> Result<Tally, Failure> {
    let _working = printer.working(&format!("replaying to step {step}"), None);
    let mut engine = open_exact(&args.engine)?;
    let mut session = Session::new(engine.as_mut(), Arc::new(run.program().clone()))?;
    if let Some((step, what)) = replay_to(run, checked, &mut session, step)? {
        return Err(Failure::new(Exit::Diverges, format!("step {step} before it differs already: {what}")));
    }
    let batch = run.batch(&mut run.dataset()?, step)?;
    Ok(replayed_step(run, &mut session, step, &batch, true)?.1)
}

/// Counts by margin, two bins a line.
fn histogram(tally: &Tally) -> Vec<String> {
    let largest = tally.margins.0.iter().copied().max().unwrap_or(0).max(1);
    let mut lines = vec![
        "distance of the exact product from the boundary, in thresholds (#: taken against it)".to_string(),
    ];
    for (bin, (&all, &taken)) in tally.margins.0.iter().zip(&tally.margins_taken.0).enumerate() {
        if all == 0 {
            continue;
        }
        let width = |count: u64| (count * 50).div_ceil(largest) as usize;
        let label = if bin + 1 == MARGIN_BINS { ">2".into() } else { format!("{:.2}", bin as f64 / 20.0) };
        lines.push(format!(
            "{label:>5} |{}{} {all} ({taken})",
            "#".repeat(width(taken)),
            "*".repeat(width(all) - width(taken).min(width(all)))
        ));
    }
    lines
}

/// The histogram as a picture: all decisions, and those that are not the nearest value.
fn svg(tally: &Tally) -> String {
    let (width, height, margin) = (800.0, 400.0, 50.0);
    let largest = tally.margins.0.iter().copied().max().unwrap_or(0).max(1) as f64;
    let step = (width - 2.0 * margin) / MARGIN_BINS as f64;
    let bars = |counts: &[u64], colour: &str| -> String {
        let bar = |(bin, &count): (usize, &u64)| {
            let tall = (height - 2.0 * margin) * count as f64 / largest;
            let (x, y) = (margin + step * bin as f64, height - margin - tall);
            format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{colour}\"/>",
                step - 1.0
            )
        };
        counts.iter().enumerate().map(bar).collect()
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"14\">\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>{}{}<text x=\"{margin}\" y=\"25\">logged decisions (blue) and those that \
         are not the nearest value (red)</text><text x=\"{margin}\" y=\"{}\">0</text><text x=\"{}\" y=\"{}\" text-anchor=\"end\">2 \
         thresholds from the boundary</text></svg>\n",
        bars(&tally.margins.0, "#1f5fa8"),
        bars(&tally.margins_taken.0, "#b3261e"),
        height - 25.0,
        width - margin,
        height - 25.0,
    )
}

/// Every native kernel of this machine that can compute the job's products.
fn kernels(printer: Printer, wide: bool) -> Result<Kernels, Failure> {
    let mut all: Kernels = Vec::new();
    for native in Native::ALL {
        all.push((format!("cpu {}", native.name()), Box::new(Cpu::new(0)?.with_native(native))));
    }
    #[cfg(feature = "gpu")]
    if !wide {
        for adapter in tiebreak_gpu::adapters().into_iter().filter(|a| a.refused.is_none()) {
            all.push((adapter.name.clone(), Box::new(tiebreak_gpu::Gpu::open(Some(&adapter.name))?)));
        }
    }
    #[cfg(feature = "cuda")]
    for device in tiebreak_gpu::cuda_devices()? {
        use tiebreak_engine::EngineError;
        use tiebreak_gpu::{Cublas, Cuda};
        let number = device.index.to_string();
        if !wide {
            all.push((device.name.clone(), Box::new(Cuda::open(Some(&number))?)));
        }
        for kernels in Cublas::ALL.into_iter().filter(|kernels| !wide || *kernels.parts().end() == 2) {
            match Cuda::open_with_cublas(Some(&number), kernels) {
                Ok(engine) => all.push((format!("{} {}", device.name, kernels.name()), Box::new(engine))),
                Err(EngineError::Unsupported { reason, .. }) => {
                    printer.say(format!("left out: {} on {}: {reason}", kernels.name(), device.name));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let _ = (printer, wide);
    Ok(all)
}

fn calibrate(printer: Printer, args: &Calibrate) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let (_, job) = read_logged_job(&args.job.job)?;
    let files = args.job.files()?;
    let rounding = job.rounding.clone().unwrap_or_default();
    let program = Arc::new(read_program(&files, &job)?.0);
    let JobData { mut dataset, manifest, .. } = JobData::open(&files, &job, &program)?;
    let key = philox_key(&seed(&job, &program_digest(&program), &files_root(&manifest), None));
    let kernels = kernels(printer, rounding.rule().is_wide())?;
    let names: Vec<String> = kernels.iter().map(|(name, _)| name.clone()).collect();
    printer.say(format!("measuring {}", names.join(", ")));
    let mut calibrator = Calibrator::new(&rounding, &program.micro, kernels)?;
    let mut cpu = Cpu::new(0)?;
    let mut session = Session::native(&mut cpu, program.clone())?;
    session.load_each(|i| {
        let words = init::state_tensor(&program, key, i);
        tiebreak_contract::arith::words::bytes_from_words(tiebreak_contract::arith::DType::F32, &words)
    })?;
    let bar = printer.bar(u64::from(args.steps), "steps");
    for step in 1..=args.steps.min(job.steps) {
        let batch = dataset.batch(&program, key, step).map_err(RunError::from)?;
        let learning_rate = job.schedule.learning_rate(step, job.steps);
        let scalars = StepScalars { step, seed: key, learning_rate };
        session.step(scalars, &batch, &mut calibrator, |_, _, _| Ok(()))?;
        bar.set_position(u64::from(step));
        bar.set_message("measured");
    }
    bar.finish_and_clear();
    let thresholds = calibrator.thresholds(args.safety);
    let mut lines = vec!["[rounding.class]".to_string(), calibrated::MEASURED.to_string()];
    for (class, m) in &calibrator.measured {
        lines.push(format!(
            "# {:<10} {} products, {} elements, {} flips without a log; at most {:.3e} of the {} ({})",
            class.name(),
            m.products,
            m.elements,
            m.flips,
            m.largest,
            if rounding.is_paper() { "step" } else { "norms" },
            m.kernel
        ));
    }
    lines.extend(thresholds.iter().map(|(class, units)| format!("{} = {units}", class.name())));
    if args.write {
        let path = &args.job.job;
        let text = calibrated::with_thresholds(&read_job(path)?.0, &lines, &thresholds)
            .map_err(|why| Failure::new(Exit::Usage, format!("{}: {why}", path.display())))?;
        Disk::default().replace(&std::path::absolute(path).map_err(RunError::io(path))?, text.as_bytes())?;
        printer.say(format!("wrote the thresholds into {}", path.display()));
    }
    printer.document(
        lines,
        &json!({ "kernels": names, "measured": calibrator.measured, "thresholds": thresholds }),
    );
    Ok(Exit::Match)
}

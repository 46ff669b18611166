//! `tiebreak audit`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use super::engine::{EngineArgs, open};
use super::{CommandResult, Exit, Failure, Printer, bytes_text, key, random};
use crate::audit::plan::{Choice, ReplayPlan, plan};
use crate::audit::{
    Outcome, Progress, REPORT_FORMAT, Report, audit, audit_natively, checks, estimated_seconds,
};
use crate::commit::tree_head::NOTE_MAX;
use crate::dispute::verdict::Verdict;
use crate::observers::tally::{Freedom, Tally};
use crate::rounding::thresholds::Rounding;
use crate::run::RunError;
use crate::run::dir::Run;
use crate::run::disk::{self, Disk};

/// Replay a run, or a part of it, and stop at the first difference.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  tiebreak audit runs/shakespeare --trainer-key trainer.key.pub\n  \
tiebreak audit runs/shakespeare --sample 0.05 --engine wgpu\n  tiebreak audit runs/shakespeare --steps 100..200 --plan"
)]
pub struct Args {
    run: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Put the reports of several auditors of one run together.
    Merge { reports: Vec<PathBuf> },
}

#[derive(clap::Args)]
struct Options {
    /// The trainer's public key: a file or its text.
    #[arg(long)]
    trainer_key: Option<String>,
    /// A head of this run that somebody else has (a witness, an earlier download): one that is of another history
    /// convicts the trainer of two.
    #[arg(long)]
    head: Vec<PathBuf>,
    /// The files of weights that the run begins from, in the job's order: whether its initial state is theirs.
    #[arg(long)]
    weights: Vec<PathBuf>,
    /// Where data files are that the run does not hold (`data.copy = false`): only the parts that are needed have to be there.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Only these steps, as FIRST..LAST (both included); replay begins at the checkpoint before.
    #[arg(long, value_parser = parse_range, conflicts_with = "sample")]
    steps: Option<(u32, u32)>,
    /// A random part of the checkpoint segments, at least one.
    #[arg(long)]
    sample: Option<f64>,
    /// Reproduce the sample of an earlier report.
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// Print what would be replayed and what it costs, and stop.
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    limits: Limits,
    /// Write the report here, for `audit merge`.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Write the verdict here if there is one.
    #[arg(long, default_value = "verdict.json")]
    verdict: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
}

impl Options {
    /// Which steps to replay.
    fn choice(&self) -> Result<Choice, Failure> {
        match (self.steps, self.sample) {
            (Some((first, last)), _) => Ok(Choice::Range(first, last)),
            (None, Some(fraction)) if (0.0..=1.0).contains(&fraction) => {
                let seed = self.seed.map_or_else(|| random().map(u64::from_le_bytes), Ok)?;
                Ok(Choice::Sample { fraction, seed })
            }
            (None, Some(_)) => Err(Failure::new(Exit::Usage, "--sample takes a fraction between 0 and 1")),
            (None, None) => Ok(Choice::All),
        }
    }
}

/// What a replay may take.
#[derive(clap::Args)]
pub(super) struct Limits {
    /// Refuse to start if more memory is needed, in MiB.
    #[arg(long)]
    max_memory: Option<u64>,
    /// Stop after this many seconds and say what was not replayed.
    #[arg(long)]
    pub max_time: Option<u64>,
}

impl Limits {
    /// Refuses a plan that needs too much memory.
    pub fn check(&self, plan: &ReplayPlan) -> Result<(), Failure> {
        if self.max_memory.is_none_or(|limit| plan.memory <= limit << 20) {
            return Ok(());
        }
        let why = format!("a replay needs about {} of memory; raise --max-memory", bytes_text(plan.memory));
        Err(Failure::new(Exit::Undecided, why))
    }
}

fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "the form is FIRST..LAST with 1 <= FIRST <= LAST".to_string();
    let (first, last) = text.split_once("..").ok_or_else(wrong)?;
    let pair = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if pair.0 == 0 || pair.0 > pair.1 { Err(wrong()) } else { Ok(pair) }
}

struct Bar(super::report::ProgressBar);

impl Progress for Bar {
    fn step(&mut self, step: u32, done: u64, _: u64) {
        self.0.set_position(done);
        self.0.set_message(format!("step {step}"));
    }
}

/// The plan in words, with the seconds it will take on an engine.
fn plan_text(plan: &ReplayPlan, run: &Run, seconds: f64, engine: &str) -> super::Lines {
    let [one, ten, hundred] = plan.detection.map(|p| 100.0 * p);
    let seed = plan.seed.map_or(String::new(), |seed| format!(", sampling seed {seed}"));
    super::Lines::split(&format!(
        "{} of {} segments, {} of {} steps{seed}: reads {}, needs about {} of memory \
         and {seconds:.0} s on {}\n\
         probability to replay at least one of 1, 10, 100 bad steps: {one:.1} %, {ten:.1} %, {hundred:.1} %",
        plan.segments.len(),
        plan.of,
        plan.steps(),
        run.job.steps,
        bytes_text(plan.bytes),
        bytes_text(plan.memory),
        super::one_line(engine),
    ))
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    if let Some(Command::Merge { reports }) = args.command {
        return merge(printer, &reports);
    }
    let Some(path) = args.run else { return Err(Failure::new(Exit::Usage, "a run's folder is needed")) };
    let options = args.options;
    let public = options.trainer_key.as_deref().map(key::read_public).transpose()?;
    let run = Run::open(&path)?.with_data(options.data.clone());
    let mut checked = checks::always(&run, public.as_ref())?;
    if !options.weights.is_empty() {
        checks::weights(&run, &mut checked, &options.weights)?;
    }
    for path in &options.head {
        checked.other_head(&run, &disk::read_text(path, NOTE_MAX as u64)?)?;
    }
    // The seed is drawn now, after the head is fixed: the trainer cannot have known it.
    let choice = options.choice()?;
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job.steps);
    if options.steps.is_some_and(|(_, end)| end > last) {
        return Err(Failure::new(Exit::Usage, format!("the head covers steps 1 to {last}")));
    }
    let plan = plan(&run, &checked.checkpoints, last, &choice);
    options.limits.check(&plan)?;
    let native = options.engine.native.is_some();
    if native && !run.job.rounding.as_ref().is_some_and(Rounding::is_paper) {
        let why = "--native is for runs whose job has rounding.preset = \"paper\"; every other run is audited exactly";
        return Err(Failure::new(Exit::Usage, why));
    }
    let mut engine = open(&options.engine)?;
    // What is wrong already needs no replay.
    if checked.inconsistent.is_none() {
        let seconds = estimated_seconds(&run, engine.as_mut(), native, &checked, &plan)?;
        let text = plan_text(&plan, &run, seconds, &engine.describe());
        if options.plan {
            printer.result(text, &json!({ "plan": plan, "seconds": seconds }));
            return Ok(Exit::Match);
        }
        printer.say(text);
    }
    let mut bar = Bar(printer.bar(plan.steps(), "steps"));
    let limit = options.limits.max_time.map(Duration::from_secs);
    let audit = if native { audit_natively } else { audit };
    let (report, verdict) = audit(&run, engine.as_mut(), checked, plan, limit, &mut bar)?;
    bar.0.finish_and_clear();
    let disk = Disk::default();
    if let Some(path) = &options.report {
        write_json(&disk, path, &report)?;
    }
    if let Some(verdict) = &verdict {
        disk.replace(&absolute(&options.verdict)?, &verdict.to_bytes())?;
    }
    printer.result(report_text(&report, verdict.as_ref(), &options.verdict), &report);
    Ok(exit(&report))
}

/// The exit code of a report.
fn exit(report: &Report) -> Exit {
    match report.outcome {
        Outcome::Matches if report.is_complete() => Exit::Match,
        Outcome::Diverges { .. } | Outcome::Inconsistent { .. } => Exit::Diverges,
        // --max-time may have cut the plan short.
        _ => Exit::Undecided,
    }
}

/// A path with a folder, so that a file can be replaced in it.
fn absolute(path: &Path) -> Result<PathBuf, RunError> {
    std::path::absolute(path).map_err(RunError::io(path))
}

fn write_json(disk: &Disk, path: &Path, value: &impl serde::Serialize) -> Result<(), Failure> {
    let json = serde_json::to_vec_pretty(value).map_err(|error| Failure::new(Exit::Undecided, error))?;
    Ok(disk.replace(&absolute(path)?, &json)?)
}

/// A report in words.
pub fn report_text(report: &Report, verdict: Option<&Verdict>, file: &Path) -> Vec<String> {
    let mut lines = vec![match &report.outcome {
        Outcome::Matches if report.is_complete() => {
            let how = if report.native { " with native products (replication only)" } else { "" };
            format!("MATCHES: run {} on {}{how}", report.run.short(), report.engine)
        }
        Outcome::Matches => format!(
            "NOT FINISHED: {} of {} planned steps of run {} match on {}",
            report.steps_replayed(),
            report.plan.steps(),
            report.run.short(),
            report.engine
        ),
        Outcome::Diverges { step, what } => format!("DIVERGES at step {step}: {what}"),
        Outcome::Inconsistent { step, what } => format!("DIVERGES at step {step}, without a replay: {what}"),
        Outcome::MissingDecision { step, what } => format!("COULD NOT DECIDE at step {step}: {what}"),
        Outcome::Incomplete { what } => format!("INCOMPLETE: {what}"),
        Outcome::UnboundedFreedom { what } => format!("UNBOUNDED FREEDOM: {what}"),
        Outcome::UnexplainedDecisions { what } => format!("COULD NOT DECIDE: {what}"),
        Outcome::Unconfirmed { step, what } => format!("NOT CONFIRMED at step {step}: {what}"),
        Outcome::EngineFaulty { step, engine, what } => {
            format!(
                "NOBODY IS ACCUSED: at step {step} {engine} differs from the scalar reference, which agrees with the trainer ({what})"
            )
        }
    }];
    lines.push(format!("  {}", report.signed));
    lines.extend(report.checked.iter().map(|line| format!("  ok: {line}")));
    let ranges: Vec<String> =
        report.replayed.iter().filter(|(a, b)| a <= b).map(|(a, b)| format!("{a}..{b}")).collect();
    if !ranges.is_empty() {
        lines.push(format!("  ok: replayed steps {} in {:.1} s", ranges.join(", "), report.seconds));
    }
    lines.extend(report.rounding.iter().flat_map(rounding_lines));
    lines.extend(report.not_checked.iter().map(|line| format!("  not checked: {line}")));
    if let Some(verdict) = verdict {
        let size = bytes_text(verdict.to_bytes().len() as u64);
        lines.push(format!("  verdict ({size}): {}", file.display()));
        lines.push(format!("  anybody can check it: tiebreak verdict check {}", file.display()));
    }
    lines
}

/// What a logged run's trainer chose, and could have chosen.
fn rounding_lines(tally: &Tally) -> Vec<String> {
    let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let mut lines = vec![format!(
        "  rounding log: {} decisions about {} values ({:.3} %), {} bits in {}; {} were not the nearest value ({} up, {} down)",
        tally.decisions,
        tally.elements,
        share(tally.decisions, tally.elements),
        tally.bits,
        bytes_text(tally.bytes),
        tally.taken(),
        tally.taken_up,
        tally.taken_down,
    )];
    let all = tally.unusual().map(|why| format!("all steps: {why}"));
    for why in tally.remarks.iter().chain(&all) {
        lines.push(format!("  UNUSUAL ROUNDING, legal but not what honest kernels do: {why}"));
    }
    let sum = |f: fn(&Freedom) -> f64| tally.freedom.iter().map(f).sum::<f64>();
    if let Some(most) = tally.freedom.iter().max_by(|a, b| a.bias.total_cmp(&b.bias)) {
        lines.push(format!(
            "  freedom that the proved bound leaves in a step: {:.1} % of the values, {:.0} bits; the largest hidden shift of a \
             tensor's mean is {:.2e} of its size ({})",
            100.0 * sum(|f| f.free as f64) / sum(|f| f.elements as f64).max(1.0),
            sum(|f| f.bits),
            most.bias,
            most.operator,
        ));
    }
    lines
}

fn merge(printer: Printer, paths: &[PathBuf]) -> CommandResult {
    let mut run = None;
    let mut covered = std::collections::BTreeSet::new();
    let mut results = Vec::new();
    for path in paths {
        let text = disk::read_text(path, 1 << 26)?;
        let report: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| RunError::invalid(path, error.to_string()))?;
        let field = |name: &str| report.get(name).cloned().unwrap_or_default();
        if field("format") != REPORT_FORMAT {
            let why =
                format!("it is no report of format {REPORT_FORMAT}: audit the run again with this program");
            return Err(RunError::invalid(path, why).into());
        }
        if run.get_or_insert_with(|| field("run")) != &field("run") {
            return Err(Failure::new(Exit::Usage, format!("{} is about another run", path.display())));
        }
        if field("native") == true {
            let why = "is of a native auditor, who judges no rounding: it has no place beside exact ones";
            return Err(Failure::new(Exit::Usage, format!("{} {why}", path.display())));
        }
        let ranges: Vec<(u32, u32)> = serde_json::from_value(field("replayed"))
            .map_err(|error| Failure::from(RunError::invalid(path, error.to_string())))?;
        ranges
            .into_iter()
            .filter(|(a, b)| a <= b && b - a < 1 << 25)
            .for_each(|(a, b)| covered.extend(a..=b));
        results.push(field("outcome"));
    }
    let has = |names: &[&str]| {
        let named = |r: &serde_json::Value| {
            r.get("result").and_then(|n| n.as_str()).is_some_and(|n| names.contains(&n))
        };
        results.iter().any(named)
    };
    let (word, exit) = if has(&["diverges", "inconsistent"]) {
        ("DIVERGES", Exit::Diverges)
    } else if !results.is_empty() && !has(&["engine_faulty", "missing_decision"]) {
        ("MATCHES", Exit::Match)
    } else {
        ("UNDECIDED", Exit::Undecided)
    };
    printer.result(
        format!("{word}: {} reports, {} steps replayed by somebody", paths.len(), covered.len()),
        &json!({
            "run": run,
            "matches": exit == Exit::Match,
            "steps_replayed": covered.len(),
            "outcomes": results,
        }),
    );
    Ok(exit)
}

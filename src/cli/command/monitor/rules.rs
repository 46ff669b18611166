//! `tiebreak monitor rules`: whether declared runs keep to an inspector's rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;
use tiebreak_audit::checks;
use tiebreak_monitor::rules::decision::{Decision, Ruling, decide};
use tiebreak_monitor::rules::facts::{Begin, Evaluated, Facts, Span, total};
use tiebreak_monitor::rules::file::{RULES_MAX, Rules};
use tiebreak_monitor::rules::flop;
use tiebreak_record::commit::beginning;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::job::identity::program_digest;
use tiebreak_record::job::initial::InitialOrigin;
use tiebreak_run::evaluate::Report;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk};

use crate::cli::args::decided::Decided;
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};

/// The most bytes of a report of an evaluation.
const REPORT_MAX: u64 = 1 << 16;

/// Hold declared runs to rules: limits on FLOP, settings, kinds of models, and results.
///
/// The command ends with 0 if every rule holds, with 1 if one is violated, and with 3 if one cannot be decided. FLOP are counted from the
/// program and the records, which `tiebreak audit` checks.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor rules runs/mine rules.toml
  tiebreak monitor rules runs/mine runs/other rules.toml --evaluation eval.json")]
pub struct Args {
    /// Folders of the runs; a run that begins from another one needs that one, too.
    #[arg(required = true, num_args = 1.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File of the rules.
    rules: PathBuf,
    /// Report of `tiebreak eval` for rules about results; once for each.
    #[arg(long, value_name = "REPORT")]
    evaluation: Vec<PathBuf>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

fn read_rules(path: &Path) -> Result<Rules, Failure> {
    let text = disk::read_text(path, RULES_MAX as u64).map_err(named)?;
    Rules::read(&text).map_err(|error| Failure::new(Exit::Usage, format!("{}: {error}", path.display())))
}

fn read_evaluation(path: &Path) -> Result<Evaluated, Failure> {
    let text = disk::read_text(path, REPORT_MAX).map_err(named)?;
    let report = Report::parse(&text).map_err(|error| RunError::malformed(path, error))?;
    let bits = u32::from_str_radix(&report.loss, 16).ok().filter(|_| report.loss.len() == 8);
    let bits = bits.ok_or_else(|| {
        RunError::invalid(
            path,
            format!("the loss is {:?}; eight hexadecimal digits are wanted", beginning(&report.loss)),
        )
    })?;
    if report.labels == 0 || report.hits > report.labels {
        let why = format!("it has {} hits, and {} labels", report.hits, report.labels);
        return Err(RunError::invalid(path, why).into());
    }
    Ok(Evaluated {
        file: path.display().to_string(),
        of: (report.program, report.model),
        data: report.data,
        samples: report.samples,
        loss: Some(f64::from(f32::from_bits(bits))).filter(|loss| loss.is_finite()),
        accuracy: f64::from(report.hits) / f64::from(report.labels),
    })
}

/// The origin of a run's initial state. A parent is the run that its head names.
fn begin(run: &Run) -> Result<Begin, RunError> {
    Ok(match &run.file.origin {
        InitialOrigin::Seed => Begin::Seed,
        InitialOrigin::Weights { .. } => Begin::Weights,
        InitialOrigin::Run(earlier) => {
            let head = Head::from_note(&earlier.head, None);
            Begin::Run(head.map_err(|error| RunError::malformed(&run.layout.run_json(), error))?.0.run)
        }
    })
}

/// The name that a tagged value has in a job.
fn kind(value: &impl serde::Serialize) -> Option<String> {
    Some(serde_json::to_value(value).ok()?.get("kind")?.as_str()?.to_string())
}

fn facts(run: &Run) -> Result<Facts, RunError> {
    let checked = checks::structure(run, None)?;
    let records = &checked.transcript.records;
    let rates = records.iter().filter_map(|record| match record {
        // A rate that is no number is within no range.
        Record::Step { step, .. } => Some(f64::from(f32::from_bits(step.learning_rate)))
            .map(|rate| if rate.is_nan() { f64::INFINITY } else { rate }),
        _ => None,
    });
    let span = |span: Option<Span>, rate: f64| {
        let Span { least, most } = span.unwrap_or(Span { least: rate, most: rate });
        Some(Span { least: least.min(rate), most: most.max(rate) })
    };
    let program = program_digest(run.program());
    let model = records.iter().find_map(|record| match record {
        Record::Final { roots, .. } => Some((program, [roots.0[0], roots.0[1]])),
        _ => None,
    });
    let done = records.iter().filter(|record| matches!(record, Record::Step { .. })).count() as u32;
    let kinds = run.job().model().and_then(|job| kind(&job.model).zip(kind(&job.optimizer.optimizer)));
    Ok(Facts {
        run: run.id,
        begin: begin(run)?,
        step_flop: flop::of_step(run.program()),
        done,
        steps: run.job().steps,
        samples: run.program().samples(),
        learning_rate: rates.fold(None, span),
        kinds,
        model,
    })
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(ruled(printer, &args))
}

fn ruled(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let rules = read_rules(&args.rules)?;
    let evaluated =
        args.evaluation.iter().map(|path| read_evaluation(path)).collect::<Result<Vec<_>, _>>()?;
    let mut all: BTreeMap<Digest, Facts> = BTreeMap::new();
    let mut names = BTreeMap::new();
    let working = printer.working("reading the runs", None);
    for path in &args.runs {
        let facts = facts(&args.limits.open(path)?)?;
        names.insert(facts.run, path.display().to_string());
        all.insert(facts.run, facts);
    }
    drop(working);
    let decisions = decide(&rules, &all, &evaluated);
    let of = |ruling| decisions.iter().filter(|decision| decision.ruling == ruling).count();
    let [holds, undecided, violated] = [Ruling::Holds, Ruling::Undecided, Ruling::Violated].map(of);
    let (word, result, exit) = match (violated, undecided) {
        (0, 0) => ("MATCHES", "holds", Exit::Match),
        (0, _) => ("UNDECIDED", "undecided", Exit::Undecided),
        _ => ("DIFFERS", "violated", Exit::Diverges),
    };
    let mut lines = vec![format!(
        "{word}: of {} rules for {} runs {holds} hold, {violated} are violated, {undecided} cannot be decided",
        decisions.len(),
        all.len()
    )];
    lines.extend(decisions.iter().map(|decision| line(decision, &names)));
    let runs = all.values().map(|facts| {
        let total = total(facts, &all);
        json!({
            "folder": names[&facts.run], "run": facts.run, "steps": facts.done, "complete": facts.is_complete(),
            "step_flop": facts.step_flop as f64, "flop": facts.done_flop() as f64, "total_flop": total.flop as f64,
            "summed": total.runs, "unknown": total.unknown.map(|unknown| unknown.to_string()),
        })
    });
    printer.result(
        lines,
        &json!({
            "result": result,
            "counts": { "rules": decisions.len(), "holds": holds, "violated": violated, "undecided": undecided },
            "runs": runs.collect::<Vec<_>>(),
            "rules": decisions,
        }),
    );
    Ok(exit)
}

/// A decision in words.
fn line(decision: &Decision, names: &BTreeMap<Digest, String>) -> String {
    let word = match decision.ruling {
        Ruling::Holds => "holds",
        Ruling::Undecided => "undecided",
        Ruling::Violated => "violated",
    };
    let name = names.get(&decision.run).map_or("", |name| name);
    format!("  {word}: {} of {} ({name}): {}", decision.rule, decision.run.short(), decision.evidence)
}

//! `tiebreak monitor rules`: whether declared runs keep to an inspector's rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;
use tiebreak_audit::checks::{self, Checked};
use tiebreak_job::ModelJob;
use tiebreak_job::identity::program_digest;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_monitor::rules::decision::{Decision, Ruling, decide};
use tiebreak_monitor::rules::facts::{Begin, Evaluated, Facts, Span, total};
use tiebreak_monitor::rules::file::{RULES_MAX, Rules};
use tiebreak_monitor::rules::flop;
use tiebreak_monitor::rules::share::Population;
use tiebreak_record::commit::beginning;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::evaluate::Report;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk, shell};

use super::drawn::{DrawArgs, Drawn};
use super::properties::{Asked, Tested, decide as decide_data, tested};
use crate::cli::args::decided::Decided;
use crate::cli::args::limits::Limits;
use crate::cli::args::place::with_data;
use crate::cli::args::random::random;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};

/// The most bytes of a report of an evaluation.
const REPORT_MAX: u64 = 1 << 16;

/// Hold declared runs to rules on FLOP, settings, kinds of models, results and data.
///
/// The command ends with 0 if every rule holds, with 1 if one is violated, and with 3 if one cannot be decided. FLOP are counted from the
/// program and the records, which `tiebreak audit` checks. Rules about data open samples that a seed draws from those that training read.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor rules runs/mine rules.toml
  tiebreak monitor rules runs/mine runs/other results.toml --evaluation eval.json
  tiebreak monitor rules runs/mine data.toml --draw drawn.json --register chips.register --closed heads.txt")]
pub struct Args {
    /// Folders of the runs; a run that begins from another one needs that one, too.
    #[arg(required = true, num_args = 1.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File of the rules.
    rules: PathBuf,
    /// Report of `tiebreak eval` for rules about results; once for each.
    #[arg(long, value_name = "REPORT")]
    evaluation: Vec<PathBuf>,
    /// Folder or address of the data files that a run does not hold.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Tokenizer by which samples of tokens are text: a file or a folder.
    ///
    /// The one that a run keeps is its operator's, and is not taken.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Seed of the opened samples, 64 hexadecimal digits; by default the system's randomness.
    ///
    /// The same seed opens the same samples. An operator who knows the seed before the declaration knows the samples, too.
    #[arg(long, value_name = "DIGEST", conflicts_with = "draw")]
    seed: Option<Digest>,
    #[command(flatten)]
    draw: DrawArgs,
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
        first_sample: report.first_sample.unwrap_or(0),
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

fn facts(run: &Run, checked: &Checked) -> Result<Facts, RunError> {
    let records = &checked.transcript.records;
    // A group of parameters takes its own factor of the record's rate; who decides knows that a program file may scale rates in any way.
    let factors = run.job().model().map_or(vec![1.0], ModelJob::rate_factors);
    let rates = records.iter().filter_map(|record| match record {
        Record::Step { step, .. } => Some(f32::from_bits(step.learning_rate)),
        _ => None,
    });
    let rates = rates.flat_map(|rate| factors.iter().map(move |factor| f64::from(rate * factor)));
    let span = |span: Option<Span>, rate: f64| {
        // A rate that is no number is within no range.
        let rate = if rate.is_nan() { f64::INFINITY } else { rate };
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

/// The draw of samples: a draw that was given, or a seed alone.
struct Seeded {
    drawn: Option<Drawn>,
    seed: Digest,
}

impl Seeded {
    fn of(args: &Args, rules: &Rules) -> Result<Seeded, Failure> {
        let options = [
            ("--data", args.data.is_some()),
            ("--tokenizer", args.tokenizer.is_some()),
            ("--seed", args.seed.is_some()),
            ("--draw", args.draw.draw.is_some()),
        ];
        if let Some((option, _)) = options.iter().find(|(_, given)| *given && rules.data.is_empty()) {
            let why = format!("{option} is for rules about data, and {} has none", args.rules.display());
            return Err(Failure::new(Exit::Usage, why));
        }
        let drawn = args.draw.read()?;
        let seed = match (&drawn, args.seed) {
            (Some(drawn), _) => drawn.draw.seed,
            (None, Some(seed)) => seed,
            (None, None) => Digest(random()?),
        };
        Ok(Seeded { drawn, seed })
    }

    /// The samples to draw from: with a draw, those of the steps under the head that it names. Later ones were read by somebody
    /// who knew the seed.
    fn population(&self, run: &Run, checked: &Checked, done: u32) -> Result<Population, Failure> {
        let steps = match self.drawn.as_ref().map(|drawn| drawn.head(&run.id)) {
            None => done,
            Some(None) => {
                let why = format!("the draw is of {} other runs, and not of run {}", self.runs(), run.id);
                return Err(Failure::new(Exit::Usage, why).help("tiebreak monitor draw --run RUN"));
            }
            Some(Some(head)) => {
                let known =
                    usize::try_from(head.size).ok().filter(|&size| size <= checked.transcript.leaves.len());
                let root = known.map(|size| checked.transcript.root(size));
                if root != Some(head.root) {
                    let why = format!(
                        "{}: the draw is over the root {} of {} records, and these are {} records of root {}",
                        run.layout.root.display(),
                        head.root,
                        head.size,
                        checked.transcript.leaves.len(),
                        root.unwrap_or(checked.head.root)
                    );
                    return Err(Failure::new(Exit::Diverges, why));
                }
                head.size.saturating_sub(1).min(u64::from(done)) as u32
            }
        };
        let samples = u64::from(run.program().samples());
        let of = |steps: u32| u64::from(steps) * samples;
        Ok(Population { read: of(steps), all: of(run.job().steps) })
    }

    fn runs(&self) -> usize {
        self.drawn.as_ref().map_or(0, |drawn| drawn.draw.question.runs.len())
    }
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(ruled(printer, &args))
}

/// The facts of all runs, their folders, and the decisions of the rules about data.
#[derive(Default)]
struct Read {
    facts: BTreeMap<Digest, Facts>,
    names: BTreeMap<Digest, String>,
    of_data: Vec<Decision>,
}

fn read_runs(printer: Printer, args: &Args, rules: &[Tested], seeded: &Seeded) -> Result<Read, Failure> {
    let (mut read, mut lacking) = (Read::default(), false);
    let folder = args.rules.parent().unwrap_or(Path::new(""));
    for path in &args.runs {
        let run = with_data(args.limits.open(path)?, &args.data)?;
        lacking |= !run.holds_data();
        let checked = printer.during("reading the runs", || checks::structure(&run, None))?;
        let facts = facts(&run, &checked)?;
        if !rules.is_empty() && !read.facts.contains_key(&run.id) {
            let population = seeded.population(&run, &checked, facts.done)?;
            let (seed, tokenizer) = (seeded.seed, args.tokenizer.as_ref());
            let asked = Asked { run: &run, checked: &checked, population, seed, tokenizer, folder };
            read.of_data.extend(decide_data(printer, &asked, rules)?);
        }
        read.names.insert(facts.run, path.display().to_string());
        read.facts.insert(facts.run, facts);
    }
    if let Some(folder) = args.data.as_ref().filter(|_| !lacking) {
        let why = format!("all runs hold their data files, and --data names {} for them", folder.display());
        return Err(Failure::new(Exit::Usage, why).help("leave --data out"));
    }
    Ok(read)
}

fn ruled(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let rules = read_rules(&args.rules)?;
    if !args.evaluation.is_empty() && rules.loss.is_none() && rules.accuracy.is_none() {
        let why = format!("{} has no rule about a result, which --evaluation is for", args.rules.display());
        return Err(
            Failure::new(Exit::Usage, why).help("leave --evaluation out, or add [loss] or [accuracy]")
        );
    }
    let evaluated =
        args.evaluation.iter().map(|path| read_evaluation(path)).collect::<Result<Vec<_>, _>>()?;
    let tests = tested(&rules.data, args.rules.parent().unwrap_or(Path::new("")))?;
    let seeded = Seeded::of(args, &rules)?;
    let Read { facts: all, names, of_data } = read_runs(printer, args, &tests, &seeded)?;
    let mut decisions = decide(&rules, &all, &evaluated);
    decisions.extend(of_data);
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
    let by = match (&seeded.drawn, args.seed) {
        _ if tests.is_empty() => None,
        (Some(_), _) => Some("draw"),
        (None, Some(_)) => Some("given"),
        (None, None) => Some("system"),
    };
    lines.extend(by.map(|by| format!("samples drawn by the seed {} ({by})", seeded.seed)));
    let next: Vec<Next> = args.runs.iter().map(|run| audit(args, run)).collect();
    lines.extend(next::lines(&next));
    printer.result(
        lines,
        &json!({
            "result": result,
            "counts": { "rules": decisions.len(), "holds": holds, "violated": violated, "undecided": undecided },
            "runs": runs.collect::<Vec<_>>(),
            "rules": decisions,
            "samples": by.map(|by| json!({
                "seed": seeded.seed, "by": by,
                "register_checked": seeded.drawn.as_ref().map(|drawn| drawn.registered),
                "beacon": seeded.drawn.as_ref().and_then(|drawn| drawn.beacon.as_ref()),
            })),
            "next": next,
        }),
    );
    Ok(exit)
}

/// The command that checks what the rules rest on.
fn audit(args: &Args, run: &Path) -> Next {
    let data = args.data.as_ref().map_or(String::new(), |data| format!(" --data {}", shell::path(data)));
    Next::new("check the records with", format!("tiebreak audit {}{data}", shell::path(run)))
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

//! `tiebreak audit`.

mod jobs;
mod keeper;
mod merge;
mod page;
mod shards;
pub mod watch;

use crate::cli::args::around::{AroundArgs, Engines};
use crate::cli::args::cache::CacheArgs;
use crate::cli::args::corrections::{self, CorrectionArgs};
use crate::cli::args::decided::Decided;
use crate::cli::args::device_check::{self, Check};
use crate::cli::args::engine::EngineArgs;
use crate::cli::args::expect::{Expectations, Expected};
use crate::cli::args::limits::{Limits, left};
use crate::cli::args::metrics::MetricsArgs;
use crate::cli::args::part::PartArgs;
use crate::cli::args::place::files_at;
use crate::cli::args::salts::SaltArgs;
use crate::cli::args::{key, verdict_file};
use crate::cli::view::escape::Lines;
use crate::cli::view::exposition::replay::ReplayMetrics;
use crate::cli::view::next::Next;
use crate::cli::view::outcome::{engine_text, exit, headline, ranges_text, report_json, seconds_text};
use crate::cli::view::page::audit::About;
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};
use crate::cli::view::traces::Traces;
use clap::Subcommand;
use keeper::{Keeper, Kept};
use serde_json::json;
use shards::ShardArgs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tiebreak_audit::attachments::note;
use tiebreak_audit::checks::Checked;
use tiebreak_audit::corrections::Corrections;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::merge::union;
use tiebreak_audit::part as audit_part;
use tiebreak_audit::plan::{Choice, ReplayPlan, memory_to_confirm, plan};
use tiebreak_audit::resume::{Resumable, can_resume};
use tiebreak_audit::watched;
use tiebreak_audit::work::Work;
use tiebreak_audit::{
    Outcome, Report, audit_in_jobs, checks, estimated_seconds, report_file, worth_estimating,
};
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::Engine;
use tiebreak_engine::reference::Reference;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_record::rounding::thresholds::Rounding;
use tiebreak_run::observers::choices::Choices;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

/// Replay a run, or a part of it, and stop at the first difference.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: tiebreak audit runs/mine --trainer-key trainer.key.pub --report mine.json",
    after_long_help = "Examples:
  tiebreak audit runs/mine --trainer-key trainer.key.pub
  tiebreak audit runs/mine --sample 0.05 --engine wgpu
  tiebreak audit runs/mine --jobs 0 --max-memory 8000
  tiebreak audit runs/mine --steps 1..2 --plan
  tiebreak audit runs/mine --report mine.json --key auditor.key"
)]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Merge(merge::Args),
}

#[derive(clap::Args, Default)]
struct Options {
    /// Trainer's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    trainer_key: Option<String>,
    #[command(flatten)]
    part: PartArgs,
    #[command(flatten)]
    divided: ShardArgs,
    /// Read the records and the files of the replayed steps, and no others.
    ///
    /// The option is for a run at an address, or for one of many auditors. The audit names the files that it leaves out as not checked.
    #[arg(long, hide_short_help = true, conflicts_with = "weights")]
    only_part: bool,
    /// Print which steps would be replayed and at which cost, and stop.
    #[arg(long, conflicts_with_all = ["report", "key", "verdict", "page", "metrics"])]
    plan: bool,
    /// File for the verdict, if there is one.
    ///
    /// If another file has this name, the verdict gets a number beside it.
    #[arg(long, value_name = "FILE", default_value = "verdict.json")]
    verdict: PathBuf,
    /// File for the report, which `audit merge` reads.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Auditor's private key, which signs the report.
    ///
    /// Others know by the signature who vouches for the report.
    #[arg(long, value_name = "KEY", requires = "report")]
    key: Option<PathBuf>,
    /// File for the audit as one HTML page for people.
    ///
    /// The page shows the steps that were replayed, those that were not, and who signed.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Folder or address of the data files that the run does not hold.
    ///
    /// A run holds no data files if its job says `data.copy = false`. Only the parts that are needed have to be there.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Audit the records that the head covers, and nothing more.
    ///
    /// The option is for a run that is still trained, or whose released model you do not have.
    #[arg(long)]
    prefix: bool,
    /// Head of this run that somebody else has, such as a witness.
    ///
    /// A head of another history convicts the trainer of two histories. Give the option once for each head.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    head: Vec<PathBuf>,
    /// Weights that the run begins from: one file or address each, in the job's order.
    ///
    /// The audit then checks that the initial state is theirs. Each file is held to the digest that the run names.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    weights: Vec<PathBuf>,
    /// Segments that are replayed at once, each on an engine of its own.
    ///
    /// The engines share the cores, or the --threads of one. Each takes the memory of a replay. 0 is as many as the cores and the
    /// memory allow. The number changes nothing that is found.
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    #[command(flatten)]
    corrected: CorrectionArgs,
    #[command(flatten)]
    expect: Expectations,
    #[command(flatten)]
    salts: SaltArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    around: AroundArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    decided: Decided,
}

/// The plan in words, with the seconds that it will take in so many jobs if they were estimated.
fn plan_text(plan: &ReplayPlan, run: &Run, jobs: usize, seconds: Option<f64>, engine: &dyn Engine) -> String {
    let [one, ten, hundred] = plan.detection.map(|p| 100.0 * p);
    let seconds = seconds_text(seconds);
    let jobs_text = if jobs == 1 { String::new() } else { format!("{jobs} x ") };
    let seed = plan.seed.map_or(String::new(), |seed| format!(", sampling seed {seed}"));
    let confirmed = jobs::memory_to_confirm(jobs, plan, memory_to_confirm(run, engine.recomputes()));
    format!(
        "{} of {} segments, {} of {} steps{seed}: reads {}, needs about {} of memory{seconds} on {jobs_text}{}\n\
         if a step differs, the scalar reference needs about {} to confirm it\n\
         probability to replay at least one of 1, 10, 100 bad steps: {one:.1} %, {ten:.1} %, {hundred:.1} %",
        plan.segments.len(),
        plan.of,
        plan.steps(),
        run.job().steps,
        bytes_text(plan.bytes),
        bytes_text(jobs::memory(jobs, plan)),
        engine_text(engine),
        bytes_text(confirmed),
    )
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    if let Some(Command::Merge(args)) = args.command {
        return merge::run(printer, &args);
    }
    let Some(path) = args.run else {
        let help = "tiebreak audit RUN --trainer-key KEY";
        return Err(Failure::new(Exit::Usage, "the folder of a run is missing").help(help));
    };
    let traces = Traces::of(printer, "audit");
    let result = audited(printer, &path, &args.options, &traces);
    args.options.cache.say(printer);
    traces.around(args.options.decided.applied(result))
}

fn audited(printer: Printer, path: &Path, options: &Options, traces: &Traces) -> CommandResult {
    let (start, watch) = (Instant::now(), options.limits.watch(printer));
    let public = options.trainer_key.as_deref().map(key::read_public).transpose()?;
    // Read now: a key that cannot be read must not cost a replay.
    let signer = options.key.as_deref().map(key::read_private).transpose()?;
    options.engine.check()?;
    let exposed = options.metrics.served(printer, ReplayMetrics::registered)?;
    let run = options.opened(path)?;
    run.opened()?; // an audit without the salt key would compare nothing
    options.around.check(&options.engine, run.job())?;
    let expected = options.expect.check(&run)?;
    let (drawn, corrections) = options.corrected.read(&run)?;
    let plan_file = options.divided.read()?;
    let mut checked = checked(printer, &run, public.as_ref(), options, expected, &corrections)?;
    // The seed is drawn now, after the head is fixed: the trainer cannot have known it.
    let (choice, last) = options.corrected.part(drawn.as_ref(), &run, &checked, &options.part)?;
    options.check_part(&choice)?;
    let mut plan = plan(&run, &checked.checkpoints, last, &choice);
    let native = options.check_native(&run)?;
    // A contradiction that needs no replay is every shard's to report.
    if checked.inconsistent.is_none() {
        plan = options.divided.part_of(&run, &checked, (plan, last), plan_file.as_ref(), &options.part)?;
        plan.memory = options.around.ways(&options.engine).replay_memory(&run);
        options.note_part(&run, &mut checked, &plan);
        // A report does not say whether the device was checked.
        let report = options.report.as_deref().filter(|_| !options.plan && !options.around.check.is_asked());
        let done = |path| shards::done(path, &checked, &plan, native, signer.as_ref());
        if let Some(done) = report.and_then(done) {
            return Ok(done.told(printer));
        }
    }
    // What is wrong already needs no replay, and so neither the engines nor the memory.
    let wrong = checked.inconsistent.is_some();
    let jobs = if wrong { 1 } else { options.jobs(&run, &plan)? };
    let (mut engines, check) = match wrong {
        true => (vec![Box::new(Reference) as Box<dyn Engine>], None),
        false => options.engines(jobs)?,
    };
    let keeper = options.keeper(printer, &run, &checked, (&mut plan, &engines), signer.as_ref())?;
    if !wrong {
        // A short plan's seconds are seen soon, on the progress bar.
        let seconds = (options.plan || worth_estimating(&run, &plan))
            .then(|| estimated_seconds(&run, engines[0].as_mut(), native, &checked, &plan))
            .transpose()?;
        let seconds = seconds.map(|seconds| seconds / jobs as f64);
        let text = plan_text(&plan, &run, jobs, seconds, engines[0].as_ref());
        if options.plan {
            let mut json = json!({ "plan": plan, "jobs": jobs, "seconds": seconds, "memory_to_confirm": jobs::memory_to_confirm(jobs, &plan, options.confirming(&run)) });
            let again = options.key_option() + &options.around.saving.less_memory();
            let text = text + &options.divided.write(&run, &checked, &plan, (path, &again), &mut json)?;
            printer.result(Lines::split(&text), &json);
            return Ok(Exit::Match);
        }
        printer.say(Lines::split(&text));
    }
    let metrics = exposed.as_ref().map(|exposed| exposed.metrics.clone());
    metrics.iter().for_each(|metrics| metrics.begin(&run, plan.steps(), &engines[0].describe()));
    let mut bar = Kept::new(printer, &plan, keeper, (metrics, traces.begun(&run, &engines[0].describe())));
    // From here on the audit itself stops, with a report.
    drop(watch);
    let limit = left(options.limits.time(), start);
    let about = page::about(&run, &checked, path, public.as_ref());
    let mut engines: Vec<&mut dyn Engine> = engines.iter_mut().map(|engine| engine.as_mut() as _).collect();
    let (report, verdict) = audit_in_jobs(&run, &mut engines, native, checked, plan, limit, &mut bar)?;
    bar.end().iter().for_each(|problem| printer.problem(problem));
    say_no_verdict(printer, &run, &report, verdict.as_ref());
    Ok(publish(printer, report, verdict.as_ref(), options, (signer.as_ref(), &about), check.as_ref()))
}

impl Options {
    /// Opens the run, with the data that are elsewhere and the cache of what is read.
    fn opened(&self, path: &Path) -> Result<Run, Failure> {
        let run = self.salts.open(&self.limits, path)?;
        self.cache.around(Limits::with_data(run, self.data.as_ref())?)
    }

    /// So many engines, with what is around them.
    fn engines(&self, jobs: usize) -> Result<Engines, Failure> {
        self.around.around_all(jobs::engines(jobs, &self.engine)?, device_check::OF_AUDITS)
    }

    /// True if native kernels audit, which the run has to allow.
    fn check_native(&self, run: &Run) -> Result<bool, Failure> {
        let native = self.engine.native.is_some();
        if native && !run.job().rounding.as_ref().is_some_and(Rounding::is_paper) {
            let why = "--native is for runs whose job has rounding.preset = \"paper\"; every other run is audited exactly";
            return Err(Failure::new(Exit::Usage, why));
        }
        Ok(native)
    }

    /// The number of replays at once.
    fn jobs(&self, run: &Run, plan: &ReplayPlan) -> Result<usize, Failure> {
        let ways = self.around.ways(&self.engine);
        ways.check_memory(&self.limits, "a replay", run, &|ways| ways.replay_memory(run))?;
        jobs::number(self.jobs, (plan, self.confirming(run)), &self.limits, &self.engine)
    }

    /// The bytes that it takes to confirm a difference.
    fn confirming(&self, run: &Run) -> u64 {
        memory_to_confirm(run, self.around.saving.recompute.is_asked)
    }

    /// Refuses `--only-part` of all steps.
    fn check_part(&self, choice: &Choice) -> Result<(), Failure> {
        if self.only_part && *choice == Choice::All && !self.divided.is_one() {
            let why = "--only-part is for a part of the run, and every step is to be replayed";
            return Err(Failure::new(Exit::Usage, why).help("name a part by --steps, --sample or --shard"));
        }
        Ok(())
    }

    /// Checks the files of the steps that will be replayed, if no others were.
    fn note_part(&self, run: &Run, checked: &mut Checked, plan: &ReplayPlan) {
        if self.only_part && !self.plan {
            note(checked, audit_part::attachments(run, checked, plan));
        }
    }

    /// The trainer's key as an option of another command.
    fn key_option(&self) -> String {
        let key = self.trainer_key.as_deref();
        key.map_or(String::new(), |key| format!(" --trainer-key {}", shell::word(key)))
    }

    /// The keeper of a shard's report, which says what is done already. An audit that checks its device has none, since a report does not
    /// say whether that was checked.
    fn keeper<'a>(
        &self,
        printer: Printer,
        run: &Run,
        checked: &Checked,
        (plan, engines): (&mut ReplayPlan, &[Box<dyn Engine>]),
        signer: Option<&'a PrivateKey>,
    ) -> Result<Option<Keeper<'a>>, Failure> {
        let (Some(path), Some(signer), Some(_)) = (&self.report, signer, plan.shard) else { return Ok(None) };
        if self.around.check.is_asked() || !can_resume(run, checked) {
            return Ok(None);
        }
        let (engine, auditor) = (&jobs::described(engines), &signer.public());
        let native = self.engine.native.is_some();
        let resumable = Resumable { checked, plan, engine, native, auditor };
        let (keeper, done) = Keeper::resumed(printer, path, signer, &resumable)?;
        plan.done = done;
        Ok(keeper)
    }
}

/// The checks of a run that need no replay.
fn checked(
    printer: Printer,
    run: &Run,
    public: Option<&PublicKey>,
    options: &Options,
    expected: Expected,
    corrections: &Corrections,
) -> Result<Checked, Failure> {
    let counting = printer.counting("checking the run", Unit::Bytes);
    let mut counted = counting.watch();
    let mut work = match options.only_part {
        true => Work::of_part(&mut counted),
        false => Work::of_all_files(&mut counted),
    };
    let mut checked = watched::corrected(run, public, corrections, &mut work)?;
    expected.note(&mut checked);
    if checked.inconsistent.is_none() && !options.only_part {
        let beside = watched::attachments(run, &checked, &mut work);
        note(&mut checked, beside);
    }
    if !options.weights.is_empty() {
        checks::weights(run, &mut checked, &files_at(&options.weights)?)?;
    }
    drop(counting);
    for path in &options.head {
        checked.other_head(run, path, &disk::read_text(path, NOTE_MAX as u64).map_err(named)?)?;
    }
    if options.prefix {
        checked.allow_prefix();
    }
    Ok(checked)
}

/// Says why there is no verdict about a run that hides, if the audit found a cheat.
fn say_no_verdict(printer: Printer, run: &Run, report: &Report, verdict: Option<&Verdict>) {
    if verdict.is_none() && run.job().hides() && exit(report) == Exit::Diverges {
        let why = "evidence would show what the run's commitments hide (commit.scheme 1), and nobody could check it without the \
                   salt key";
        printer.say(format!(
            "no verdict is written: {why}; the report, signed with --key, is what this audit gives"
        ));
    }
}

/// Prints the result and writes report and verdict. A file that cannot be written changes neither what was found nor, of a divergence,
/// the exit code.
fn publish(
    printer: Printer,
    mut report: Report,
    verdict: Option<&Verdict>,
    options: &Options,
    (signer, about): (Option<&PrivateKey>, &About),
    check: Option<&Check>,
) -> Exit {
    report.not_checked.extend(options.cache.not_checked());
    let report = &report;
    let written = verdict.map(|verdict| verdict_file::save_anywhere(&options.verdict, verdict));
    let mut problems: Vec<String> = written.iter().filter_map(|written| written.problem.clone()).collect();
    if let Some(path) = &options.report {
        let bytes = report_file::encode(report.clone(), signer);
        let done = std::path::absolute(path)
            .map_err(RunError::io(path))
            .and_then(|path| Disk::default().replace(&path, &bytes));
        problems.extend(done.err().map(|error| format!("the report could not be written ({error})")));
    }
    let file = written.as_ref().and_then(|written| written.file.as_deref());
    if let Some(path) = &options.page {
        let auditor = signer.map(|key| key.public().to_text());
        problems.extend(page::write(path, report, auditor, about, file));
    }
    let mut json = report_json(report);
    json["verdict_file"] = json!(file);
    json["not_written"] = json!(problems);
    if let Some(check) = check {
        json["device_check"] = check.json();
    }
    if let (Some(verdict), None) = (verdict, file) {
        json["verdict"] = json!(verdict_file::text(verdict));
    }
    let key = options.key_option();
    let checking = |file: &Path| {
        Next::new("anybody can check it", format!("tiebreak verdict check {}{key}", shell::path(file)))
    };
    let next = file.map(checking).or_else(|| corrected_next(report, &key));
    json["next"] = json!(next.iter().collect::<Vec<_>>());
    let mut text = report_text(report, verdict.zip(file), next.as_ref());
    text.extend(check.map(|check| format!("  ok: {}", check.line())));
    printer.result(text, &json);
    for problem in &problems {
        printer.problem(problem);
    }
    match exit(report) {
        Exit::Match if !problems.is_empty() => Exit::Undecided,
        exit => exit,
    }
}

/// The command that audits the run in which a corrected one goes on.
fn corrected_next(report: &Report, key: &str) -> Option<Next> {
    let Outcome::Corrected { what: Ground::Corrected { by, .. }, .. } = &report.outcome else { return None };
    let next = Next::new("audit the corrected run with", format!("tiebreak audit NEW{key}"));
    Some(next.note(format!("NEW is the folder of run {by}")))
}

/// A report in words. `verdict`: with the file that it is in. `next`: the command that goes on.
fn report_text(report: &Report, verdict: Option<(&Verdict, &Path)>, next: Option<&Next>) -> Vec<String> {
    let mut lines = vec![headline(report)];
    lines.push(format!("  {}", report.signed));
    lines.push(format!("  computation {}, job {}, data {}", report.computation, report.job, report.data));
    lines.extend(report.checked.iter().map(|line| format!("  ok: {line}")));
    let ranges = union(report.replayed.clone());
    if !ranges.is_empty() {
        let ranges = ranges_text(&ranges, ", ");
        lines.push(format!("  ok: replayed steps {ranges} in {:.1} s", report.seconds));
    }
    lines.extend(report.rounding.iter().flat_map(rounding_lines));
    lines
        .extend(report.not_finite.iter().map(|losses| format!("  NOT FINITE, as the records say: {losses}")));
    lines.extend(report.not_checked.iter().map(|line| format!("  not checked: {line}")));
    lines.extend(corrections::lines(&report.corrections));
    if let Some((verdict, file)) = verdict {
        let size = bytes_text(verdict.to_bytes().len() as u64);
        lines.push(format!("  verdict ({size}): {}", file.display()));
    }
    lines.extend(next.map(|next| format!("  {}", next.line())));
    lines
}

/// The choices of a logged run's trainer, and those that were open.
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
    let free = |product: &&Choices| product.free as f64 / product.elements.max(1) as f64;
    if let Some(freest) = tally.products.iter().max_by(|a, b| free(a).total_cmp(&free(b))) {
        lines.push(format!(
            "  the trainer's to choose: at most {:.2} % of a product's values ({} of {})",
            100.0 * free(&freest),
            freest.class.name(),
            freest.operator,
        ));
    }
    if let Some(hidden) = &tally.hidden {
        lines.push(format!(
            "  {} decisions are not the nearest value, of an honest kernel's at most {}; the largest bias that they could hide is {:.2e} of \
             a product's size ({} of {})",
            tally.taken(),
            hidden.taken_max,
            hidden.bias,
            hidden.class.name(),
            hidden.operator,
        ));
    }
    lines
}

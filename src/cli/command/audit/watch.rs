//! `tiebreak watch`: audits a run while it is trained.

use super::keeper::{Keeper, Kept};
use super::{Options, checked, jobs, page, publish, say_no_verdict};
use crate::cli::args::around::{AroundArgs, SavingArgs};
use crate::cli::args::cache::CacheArgs;
use crate::cli::args::decided::Decided;
use crate::cli::args::engine::EngineArgs;
use crate::cli::args::expect::Expectations;
use crate::cli::args::key;
use crate::cli::args::limits::{Limits, left};
use crate::cli::args::metrics::{MetricsArgs, Served};
use crate::cli::args::place::run_at;
use crate::cli::args::salts::SaltArgs;
use crate::cli::args::terms::beside;
use crate::cli::view::exposition::replay::WatchMetrics;
use crate::cli::view::outcome::{exit, ranges_text};
use crate::cli::view::page::audit::About;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use crate::cli::view::traces::Traces;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tiebreak_audit::checks::Checked;
use tiebreak_audit::corrections::Corrections;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::growing::{pass_over_damaged, plan_so_far, steps_covered};
use tiebreak_audit::merge::union;
use tiebreak_audit::report_file::{REPORT_MAX, encode};
use tiebreak_audit::resume::{Resumable, can_resume};
use tiebreak_audit::{AuditError, Outcome, Report, audit_in_jobs};
use tiebreak_contract::program::step::state_bytes;
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::Engine;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::tree_head::{Head, NOTE_MAX};
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{RunError, names, shell};

/// Audit a run while it is trained.
///
/// The command looks for a new head every few seconds, and replays the checkpoint segments that the head covers. The first difference ends
/// it with a verdict. At the run's end it makes the checks of a whole audit. With --report and --key a watch that was interrupted goes on
/// where it was.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak watch http://HOST/runs/mine --report mine.json --key auditor.key",
    after_long_help = "Examples:
  tiebreak watch runs/mine --trainer-key trainer.key.pub
  tiebreak watch http://HOST/runs/mine --trainer-key trainer.key.pub --report mine.json --key auditor.key
  tiebreak watch runs/mine --every 60 --idle 7200"
)]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH). It need not be there yet.
    run: PathBuf,
    /// Trainer's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    trainer_key: Option<String>,
    /// Seconds between two looks for a new head.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// End, with exit code 3, if no new head comes for so many seconds; 0 waits for ever.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    idle: u64,
    /// Read the records and the files of the replayed steps, and no others, also at the end.
    #[arg(long, hide_short_help = true, conflicts_with = "weights")]
    only_part: bool,
    /// File for the verdict, if there is one.
    ///
    /// If another file has this name, the verdict gets a number beside it.
    #[arg(long, value_name = "FILE", default_value = "verdict.json")]
    verdict: PathBuf,
    /// File for the report, which is written after each segment.
    ///
    /// The head that the report is under stands beside it, in FILE.head. Together they convict a trainer who shows another history later.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Auditor's private key, which signs the report. A watch goes on from a report that this key signed.
    #[arg(long, value_name = "KEY", requires = "report")]
    key: Option<PathBuf>,
    /// File for the audit as one HTML page for people, written at the end.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    page: Option<PathBuf>,
    /// Folder or address of the data files that the run does not hold.
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    data: Option<PathBuf>,
    /// Weights that the run begins from, which are compared at the end: one file or address each, in the job's order.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    weights: Vec<PathBuf>,
    #[command(flatten)]
    expect: Expectations,
    #[command(flatten)]
    salts: SaltArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    saving: SavingArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    decided: Decided,
}

/// The end of a look at the run that is none of the watch.
enum Stopped {
    /// A later look may do better: the reason.
    Later(Failure),
    Now(Failure),
}

impl From<Failure> for Stopped {
    /// An error of files that somebody else writes may go away by itself.
    fn from(failure: Failure) -> Stopped {
        match failure.exit {
            Exit::Undecided | Exit::Malformed => Stopped::Later(failure),
            _ => Stopped::Now(failure),
        }
    }
}

impl From<RunError> for Stopped {
    fn from(error: RunError) -> Stopped {
        match error {
            RunError::NoRun { .. } => Stopped::Later(error.into()),
            RunError::Memory { .. } | RunError::OtherKey { .. } | RunError::Unsigned { .. } => {
                Stopped::Now(error.into())
            }
            error => Failure::from(error).into(),
        }
    }
}

impl From<AuditError> for Stopped {
    fn from(error: AuditError) -> Stopped {
        match error {
            AuditError::Run(error) => error.into(),
            error => Stopped::Now(error.into()),
        }
    }
}

/// A reason to look again later.
fn later<T>(why: impl ToString) -> Result<T, Stopped> {
    Err(Stopped::Later(Failure::new(Exit::Undecided, why)))
}

/// The most heads that are remembered before the run can be held to them.
const SEEN_MAX: usize = 64;

/// The file beside a report of the latest head whose segments match, or else of the first head that was seen.
const HEAD: &str = ".head";
/// The file beside it of the first head that was seen since and that no audit has confirmed yet.
const NEW_HEAD: &str = ".new-head";

/// The result of a look at the run.
enum Look {
    /// The head is the one of the look before, or its segments match.
    Fine,
    /// The end of the watch, with its exit code.
    Ended(Exit),
}

/// The findings under one head.
struct Found {
    report: Report,
    verdict: Option<Verdict>,
    about: About,
}

/// A watch, with what it found so far.
struct Watch {
    printer: Printer,
    run: PathBuf,
    options: Options,
    /// True if the end is checked as in a whole audit.
    whole: bool,
    weights: Vec<PathBuf>,
    public: Option<PublicKey>,
    signer: Option<PrivateKey>,
    start: Instant,
    /// The note of the latest head whose segments were replayed, and the number of its records.
    head: Option<(String, u64)>,
    /// Notes of signed heads that were seen and not yet held to each other: that of the head file, that of the file of a new head, then others.
    seen: Vec<String>,
    /// The run whose heads this process saw.
    id: Option<Digest>,
    /// The records of the greatest head that was seen, and when it came.
    newest: u64,
    news: Instant,
    /// True if the released model of that head could not be read, as one that is still written.
    torn: bool,
    /// The segments that match, ascending, with the counts of a logged run.
    replayed: Vec<(u32, u32)>,
    counted: Option<Tally>,
    /// True once the auditor's own earlier report was looked at.
    resumed: bool,
    exposed: Option<Served<WatchMetrics>>,
    traces: Traces,
    /// The findings under the latest head.
    found: Option<Found>,
}

/// Watches a run to its end.
pub fn run(printer: Printer, args: Args) -> CommandResult {
    let (decided, traces) = (args.decided, Traces::of(printer, "watch"));
    let cache = args.cache.clone();
    let result = watched(printer, args, &traces);
    cache.say(printer);
    traces.around(decided.applied(result))
}

fn watched(printer: Printer, args: Args, traces: &Traces) -> CommandResult {
    let seconds = Duration::from_secs;
    let (every, idle) = (seconds(args.every), (args.idle > 0).then(|| seconds(args.idle)));
    let mut watch = Watch::begun(printer, args)?;
    watch.traces = traces.clone();
    let mut waits = String::new();
    loop {
        let look = watch.look();
        let failed = matches!(look, Err(Stopped::Later(_)));
        watch.exposed.iter().for_each(|exposed| exposed.metrics.looked(failed));
        match look {
            Ok(Look::Ended(exit)) => return Ok(exit),
            Ok(Look::Fine) => waits.clear(),
            Err(Stopped::Now(failure)) => return Err(failure),
            Err(Stopped::Later(failure)) if failure.message == waits => {}
            Err(Stopped::Later(failure)) => {
                waits = failure.message;
                printer.say(format!("waits: {waits}"));
            }
        }
        let idle = left(idle, watch.news).map(|rest| (rest, "--idle"));
        let time = left(watch.options.limits.time(), watch.start).map(|rest| (rest, "--max-time"));
        let (rest, option) = [idle, time].into_iter().flatten().min().unwrap_or((every, ""));
        if rest.is_zero() {
            return watch.given_up(option, &waits);
        }
        sleep(every.min(rest));
    }
}

impl Watch {
    fn begun(printer: Printer, args: Args) -> Result<Watch, Failure> {
        let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
        let signer = args.key.as_deref().map(key::read_private).transpose()?;
        args.engine.check()?;
        let options = Options {
            trainer_key: args.trainer_key,
            prefix: true,
            verdict: args.verdict,
            report: args.report,
            key: args.key,
            page: args.page,
            data: args.data,
            jobs: 1,
            expect: args.expect,
            salts: args.salts,
            engine: args.engine,
            around: AroundArgs { saving: args.saving, ..AroundArgs::default() },
            limits: args.limits,
            cache: args.cache,
            ..Options::default()
        };
        let mut watch = Watch {
            printer,
            run: args.run,
            options,
            whole: !args.only_part,
            weights: args.weights,
            public,
            signer,
            start: Instant::now(),
            head: None,
            seen: Vec::new(),
            id: None,
            newest: 0,
            news: Instant::now(),
            torn: false,
            replayed: Vec::new(),
            counted: None,
            resumed: false,
            exposed: args.metrics.served(printer, WatchMetrics::registered)?,
            traces: Traces::default(),
            found: None,
        };
        for file in [HEAD, NEW_HEAD] {
            if let Some(path) = watch.beside_report(file).filter(|path| path.exists()) {
                watch.seen.push(disk::read_text(&path, NOTE_MAX as u64)?);
            }
        }
        Ok(watch)
    }

    /// A file beside the report, if there is one.
    fn beside_report(&self, extension: &str) -> Option<PathBuf> {
        self.options.report.as_deref().map(|report| beside(report, extension))
    }

    /// Looks for a new head, and replays what it covers.
    fn look(&mut self) -> Result<Look, Stopped> {
        let run = run_at(&self.run, Salts::Closed)?;
        self.check_key(&run)?;
        self.options.around.check(&self.options.engine, run.job()).map_err(Stopped::Now)?;
        run.within_memory(
            "a replay of one step",
            state_bytes(&run.program().state()).saturating_add(run.batch_memory()),
        )?;
        // A file that only has a later head's name is no news.
        let sizes = run.head_sizes()?;
        let size = match sizes.into_iter().rfind(|&size| run.head(size, self.public.as_ref()).is_ok()) {
            None => return later(format!("{} has no head yet", self.run.display())),
            Some(size) => size,
        };
        if self.id.is_some_and(|id| id != run.id) {
            let (path, id) = (self.run.display(), self.id.unwrap_or(run.id).short());
            return later(format!("{path} is run {} now, and this watch is of run {id}", run.id.short()));
        }
        let is_other = self.remember(&run, size)?;
        match &self.head {
            Some((_, before)) if *before == size && is_other => {
                return later(format!(
                    "the trainer signed another head over {size} records than the one that matched"
                ));
            }
            Some((_, before)) if *before == size && !self.torn => return Ok(Look::Fine),
            _ => {}
        }
        let is_last = size == u64::from(run.job().steps) + 2;
        if is_last && self.whole && !run.at(names::MODEL).is_here() {
            return later("the run has ended, and its released model is not there yet");
        }
        let limits = self.options.limits.watch(self.printer);
        let run = self.options.opened(&self.run)?;
        run.opened()?;
        let checked = self.checked(&run, is_last)?;
        drop(limits);
        if checked.inconsistent.is_none() && checked.head.size != size {
            return later("the run grew while it was read");
        }
        let ended = is_last || checked.corrections.first().is_some();
        let grown = self.replay(&run, checked, ended);
        // Steps of an earlier report count under its head alone, to which no later look would be held.
        if grown.is_err() && self.head.is_none() {
            self.resumed = false;
            self.replayed.clear();
        }
        if !grown? || ended {
            return Ok(Look::Ended(self.published()));
        }
        Ok(Look::Fine)
    }

    /// Remembers a signed head before anything else is known of it: what the trainer shows later is held to it. Returns true for a head
    /// that was not seen yet, or not since a head was held to those that were.
    fn remember(&mut self, run: &Run, size: u64) -> Result<bool, Stopped> {
        self.id = Some(run.id);
        if size > self.newest {
            (self.newest, self.news) = (size, Instant::now());
            self.exposed.iter().for_each(|exposed| exposed.metrics.head(size));
        }
        let path = run.layout.run_json();
        let named = run.file.summary().named_key().map_err(|why| RunError::malformed(&path, why))?;
        let Some(key) = named else { return Ok(false) };
        let note = run.at(names::head(size)).read_text(NOTE_MAX as u64)?;
        let head = match Head::from_note(&note, Some(&key)) {
            Ok((head, _)) if head.run == run.id && head.size == size && size > 0 => head,
            _ => return Ok(false),
        };
        // Cosignatures may come to a head later.
        let is = |seen: &str| Head::from_note(seen, None).is_ok_and(|(seen, _)| seen == head);
        match self.seen.iter().position(|seen| is(seen)) {
            Some(at) => return Ok(at > 0),
            None if self.seen.len() >= SEEN_MAX => return Ok(true),
            None => {}
        }
        match self.seen.len() {
            0 => self.keep_head(HEAD, &note)?,
            1 => self.keep_head(NEW_HEAD, &note)?,
            _ => {}
        }
        self.seen.push(note);
        Ok(self.seen.len() > 1)
    }

    /// Refuses a run that is not of the trainer who was named.
    fn check_key(&self, run: &Run) -> Result<(), RunError> {
        let Some(given) = &self.public else { return Ok(()) };
        let (path, given) = (run.layout.run_json(), given.to_text());
        match run.file.trainer_key.clone() {
            None => {
                let why = format!(
                    "{}: the run names no trainer's key, so nobody signs its heads while it grows",
                    path.display()
                );
                Err(RunError::Refused(why))
            }
            Some(named) if named != given => Err(RunError::OtherKey { path, named, given }),
            Some(_) => Ok(()),
        }
    }

    /// The checks without a replay; of the whole run with its files, if `whole`.
    fn checked(&mut self, run: &Run, is_last: bool) -> Result<Checked, Stopped> {
        let corrections = Corrections::read(run, &[])?;
        let expected = self.options.expect.check(run).map_err(Stopped::Now)?;
        self.options.only_part = !(is_last && self.whole);
        self.options.prefix = !is_last;
        if is_last {
            self.options.weights.clone_from(&self.weights);
        }
        let mut checked =
            checked(self.printer, run, self.public.as_ref(), &self.options, expected, &corrections)?;
        let file = self.beside_report(HEAD).unwrap_or("head".into());
        let newest = checked.note.clone();
        for note in self.seen.iter().filter(|note| **note != newest) {
            checked.other_head(run, &file, note).map_err(|error| Stopped::Now(error.into()))?;
            if checked.inconsistent.is_some() {
                break;
            }
        }
        match checked.unreached.as_ref().filter(|_| checked.inconsistent.is_none()) {
            Some(why) => later(why),
            None => Ok(checked),
        }
    }

    /// Replays the segments that the head covers and that were not replayed yet. Returns false if the watch is to end here.
    fn replay(&mut self, run: &Run, mut checked: Checked, ended: bool) -> Result<bool, Stopped> {
        let head = (checked.note.clone(), checked.head.size);
        let wrong = checked.inconsistent.is_some();
        if !self.resumed && !wrong {
            self.resume(run, &checked)?;
        }
        let were_read = ended && self.whole;
        if !wrong && !were_read {
            pass_over_damaged(run, &mut checked, &self.replayed);
        }
        let mut plan = plan_so_far(run, &checked, &self.replayed, ended);
        if plan.done == self.replayed.len() {
            plan.counted.clone_from(&self.counted);
        } else if run.job().rounding.is_some() {
            plan.done = 0;
        }
        // Before a report names it.
        if !wrong {
            self.keep_head(HEAD, &head.0)?;
        }
        if !ended && !wrong && plan.segments.len() == plan.done {
            self.reached(head);
            return Ok(true);
        }
        self.options.note_part(run, &mut checked, &plan);
        plan.memory = self.options.around.ways(&self.options.engine).replay_memory(run);
        let jobs = self.options.jobs(run, &plan).map_err(Stopped::Now)?;
        let (mut engines, _) = self.options.engines(jobs).map_err(Stopped::Now)?;
        let keeper = match (&self.options.report, &self.signer) {
            (Some(path), Some(signer)) if can_resume(run, &checked) && !wrong => {
                Some(Keeper::of(path, signer)?)
            }
            _ => None,
        };
        let exposed = self.exposed.as_ref().map(|exposed| exposed.metrics.replay.clone());
        exposed.iter().for_each(|exposed| exposed.begin(run, plan.steps(), &jobs::described(&engines)));
        let traces = self.traces.begun(run, &jobs::described(&engines));
        let mut bar = Kept::new(self.printer, &plan, keeper, (exposed, traces));
        let covered = steps_covered(run, &checked);
        let about = page::about(run, &checked, &self.run, self.public.as_ref());
        let limit = left(self.options.limits.time(), self.start);
        let mut engines: Vec<&mut dyn Engine> =
            engines.iter_mut().map(|engine| engine.as_mut() as _).collect();
        let native = self.options.check_native(run).map_err(Stopped::Now)?;
        let torn = checked.incomplete.clone().filter(|why| matches!(why, Ground::Model(_)));
        let (report, verdict) = audit_in_jobs(run, &mut engines, native, checked, plan, limit, &mut bar)?;
        bar.end().iter().for_each(|problem| self.printer.problem(problem));
        let matches = exit(&report) == Exit::Match;
        // The model that cannot be read may be one that somebody still copies, so the next look reads it again.
        let torn = torn.filter(|what| ended && report.outcome == Outcome::Incomplete { what: what.clone() });
        let again = std::mem::replace(&mut self.torn, torn.is_some());
        if matches || (self.torn && !again) {
            self.replayed.clone_from(&report.plan.segments);
            self.counted.clone_from(&report.rounding);
            let steps = ranges_text(&union(self.replayed.clone()), ", ");
            let all = run.job().steps;
            let told =
                format!("head over {} records: steps {steps} match, {covered} of {all} are trained", head.1);
            self.printer.say(told);
        } else if !self.torn && verdict.is_none() {
            say_no_verdict(self.printer, run, &report, None);
        }
        self.found = Some(Found { report, verdict, about });
        self.keep_report();
        self.reached(head);
        match torn {
            Some(why) => later(format!("the run has ended, and {why}")),
            None => Ok(matches),
        }
    }

    /// Holds later looks to this head, which extends those that were seen before.
    fn reached(&mut self, head: (String, u64)) {
        // Where it stays, later heads are held to it too, which it allows.
        self.beside_report(NEW_HEAD).into_iter().for_each(|path| drop(fs::remove_file(path)));
        self.seen = vec![head.0.clone()];
        self.head = Some(head);
    }

    /// Goes on from this auditor's earlier report, if there is one.
    fn resume(&mut self, run: &Run, checked: &Checked) -> Result<(), Stopped> {
        self.resumed = true;
        let (Some(path), Some(signer)) = (&self.options.report, &self.signer) else { return Ok(()) };
        let bytes = match disk::read(path, REPORT_MAX) {
            Err(RunError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
            bytes => bytes.map_err(|error| Stopped::Now(error.into()))?,
        };
        let name = shell::path(path);
        if !can_resume(run, checked) {
            self.printer
                .say(format!("begins with the first step: {name} lacks counts of a logged run, or the step that a correction takes back"));
            return Ok(());
        }
        let engines = jobs::engines(1, &self.options.engine).map_err(Stopped::Now)?;
        let (engine, plan) = (jobs::described(&engines), plan_so_far(run, checked, &[], false));
        let native = self.options.engine.native.is_some();
        let resumable =
            Resumable { checked, plan: &plan, engine: &engine, native, auditor: &signer.public() };
        match resumable.done_earlier(&bytes) {
            Ok(replayed) => {
                let steps = ranges_text(&union(replayed.clone()), ", ");
                self.printer.say(format!("goes on: steps {steps} match, as {name} says"));
                self.replayed = replayed;
            }
            Err(why) => {
                let why = format!("this watch cannot go on from {name}: {why}");
                let help = "name another --report, or move that file away";
                return Err(Stopped::Now(Failure::new(Exit::Usage, why).help(help)));
            }
        }
        Ok(())
    }

    /// Writes the report under the latest head.
    fn keep_report(&self) {
        let (Some(path), Some(found)) = (&self.options.report, &self.found) else { return };
        let bytes = encode(found.report.clone(), self.signer.as_ref());
        let written = std::path::absolute(path).map_err(RunError::io(path));
        if let Err(error) = written.and_then(|path| Disk::default().replace(&path, &bytes)) {
            self.printer.problem(&format!("the report could not be written ({error})"));
        }
    }

    /// Keeps a head in its file, to which later ones are held.
    fn keep_head(&self, file: &str, note: &str) -> Result<(), Stopped> {
        let Some(path) = self.beside_report(file) else { return Ok(()) };
        let path = std::path::absolute(&path).map_err(RunError::io(&path))?;
        Disk::default().replace(&path, note.as_bytes()).map_err(|error| Stopped::Now(error.into()))
    }

    /// Prints and writes what was found under the latest head.
    fn published(&self) -> Exit {
        let Some(Found { report, verdict, about }) = &self.found else { return Exit::Undecided };
        publish(
            self.printer,
            report.clone(),
            verdict.as_ref(),
            &self.options,
            (self.signer.as_ref(), about),
            None,
        )
    }

    /// The end of a watch whose time is up.
    fn given_up(mut self, option: &str, waits: &str) -> CommandResult {
        let again = "the same command goes on later, with --report and --key from where it is";
        let Some(found) = &mut self.found else {
            let last = if waits.is_empty() { String::new() } else { format!(": {waits}") };
            let why = format!("{option} was reached before a segment could be replayed{last}");
            return Err(Failure::new(Exit::Undecided, why).help(again));
        };
        found.report.not_checked.push(format!("what comes behind this head: {option} was reached"));
        if !waits.is_empty() {
            found.report.not_checked.push(format!("the last look at the run: {waits}"));
        }
        self.published();
        self.printer.say(format!("{option} was reached before the run's end; {again}"));
        Ok(Exit::Undecided)
    }
}

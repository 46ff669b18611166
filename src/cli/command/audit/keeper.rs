//! The report of a shard, which is written after each segment, so that an audit that is interrupted goes on from there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cli::view::exposition::replay::ReplayMetrics;
use crate::cli::view::outcome::ReplayBar;
use crate::cli::view::report::Printer;
use crate::cli::view::traces::{About, Traces};
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::report_file::{REPORT_MAX, encode};
use tiebreak_audit::resume::Resumable;
use tiebreak_audit::{Progress, Report};
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

/// The file of an unfinished report, and the key that signs it.
pub struct Keeper<'a> {
    file: PathBuf,
    signer: &'a PrivateKey,
}

impl<'a> Keeper<'a> {
    /// The keeper of a report in this file.
    ///
    /// # Errors
    /// If there is no working directory.
    pub fn of(path: &Path, signer: &'a PrivateKey) -> Result<Keeper<'a>, RunError> {
        Ok(Keeper { file: std::path::absolute(path).map_err(RunError::io(path))?, signer })
    }

    /// Goes on from the report in the file, if it is this auditor's unfinished one of this audit: then its segments are done. Any other
    /// file stays until the audit ends, since it may say more than an unfinished report would; then nothing is kept.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn resumed(
        printer: Printer,
        path: &Path,
        signer: &'a PrivateKey,
        resumable: &Resumable,
    ) -> Result<(Option<Keeper<'a>>, usize), RunError> {
        let keeper = Keeper::of(path, signer)?;
        let bytes = match disk::read(path, REPORT_MAX) {
            Err(RunError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok((Some(keeper), 0));
            }
            bytes => bytes?,
        };
        let name = shell::path(path);
        match resumable.done(&bytes) {
            Ok(done) => {
                let segments = resumable.plan.segments.len();
                printer.say(format!("goes on: {done} of {segments} segments match, as {name} says"));
                Ok((Some(keeper), done))
            }
            Err(why) => {
                let text = "The audit begins with its first segment, and replaces that file at its end.";
                printer.say(format!("this audit cannot go on from {name}: {why}. {text}"));
                Ok((None, 0))
            }
        }
    }
}

/// The progress of an audit, for people and in a report's file.
pub struct Kept<'a> {
    bar: ReplayBar,
    exposed: Option<ReplayMetrics>,
    traces: Traces,
    /// When the last step was done.
    last: Instant,
    keeper: Option<Keeper<'a>>,
    problem: Option<String>,
}

impl<'a> Kept<'a> {
    /// The progress of a replay of this plan.
    pub fn new(
        printer: Printer,
        plan: &ReplayPlan,
        keeper: Option<Keeper<'a>>,
        (exposed, traces): (Option<ReplayMetrics>, Traces),
    ) -> Kept<'a> {
        let (bar, last) = (ReplayBar::new(printer, plan), Instant::now());
        Kept { bar, exposed, traces, last, keeper, problem: None }
    }

    /// The reason why a report could not be written, if one could not.
    pub fn end(self) -> Option<String> {
        self.problem
    }
}

impl Progress for Kept<'_> {
    fn step(&mut self, step: u32, done: u64, planned: u64) {
        self.bar.step(step, done, planned);
        self.exposed.iter().for_each(|exposed| exposed.step(step));
        let told = [("tiebreak.step", About::Count(step.into()))];
        self.traces.did("replay", self.last.elapsed().as_secs_f64(), &told);
        self.last = Instant::now();
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.bar.is_asked_to_stop()
    }

    fn segment(&mut self, report: &mut dyn FnMut() -> Report) {
        let Some(Keeper { file, signer }) = &self.keeper else { return };
        if let Err(error) = Disk::default().replace(file, &encode(report(), Some(*signer))) {
            self.problem = Some(format!("the report could not be written after each segment ({error})"));
            self.keeper = None;
        }
    }
}

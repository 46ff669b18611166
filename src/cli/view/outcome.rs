//! The costs of a replay and its end, in words and as an exit code, whichever command asks for it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::view::escape::one_line;
use crate::cli::view::heard::{self, Heard};
use crate::cli::view::progress::ProgressBar;
use crate::cli::view::report::{Exit, Printer};
use tiebreak_audit::merge::Range;
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::{Outcome, Progress, Report};
use tiebreak_engine::Engine;
use tiebreak_record::commit::keys::PublicKey;

/// A progress bar of a replay, which goes away when it is dropped.
pub struct ReplayBar {
    bar: ProgressBar,
    caller: Option<Arc<Heard>>,
}

impl ReplayBar {
    /// A bar over the steps of a plan.
    pub fn new(printer: Printer, plan: &ReplayPlan) -> ReplayBar {
        ReplayBar { bar: printer.bar(plan.steps(), "steps"), caller: heard::caller() }
    }
}

impl Progress for ReplayBar {
    fn step(&mut self, step: u32, done: u64, _: u64) {
        self.bar.set_position(done);
        self.bar.set_message(format!("step {step}"));
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.caller.as_ref().is_some_and(|caller| caller.is_asked_to_stop())
    }
}

impl Drop for ReplayBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The engine of a plan, and whether it computes tensors again.
pub fn engine_text(engine: &dyn Engine) -> String {
    let again = if engine.recomputes() { ", which computes tensors again" } else { "" };
    format!("{}{again}", one_line(&engine.describe()))
}

/// Seconds behind the memory that a plan needs, if they were estimated.
pub fn seconds_text(seconds: Option<f64>) -> String {
    seconds.map_or(String::new(), |seconds| format!(" and {seconds:.0} s"))
}

/// An outcome for programs: as a report holds it, with the kind of its ground.
pub fn outcome_json(outcome: &Outcome) -> Value {
    let mut value = json!(outcome);
    if let Some(what) = outcome.what() {
        value["kind"] = json!(what.kind());
    }
    value
}

/// A report for programs: as its file holds it, with the kind of its outcome's ground.
pub fn report_json(report: &Report) -> Value {
    let mut value = json!(report);
    value["outcome"] = outcome_json(&report.outcome);
    value
}

/// The most ranges of steps that a line lists.
const RANGES_SHOWN: usize = 16;

/// Ranges in the form of --steps, with this between them.
pub fn ranges_text(ranges: &[Range], between: &str) -> String {
    let shown: Vec<String> = ranges.iter().take(RANGES_SHOWN).map(|(a, b)| format!("{a}..{b}")).collect();
    let more = match ranges.len().saturating_sub(RANGES_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more ranges"),
    };
    format!("{}{more}", shown.join(between))
}

/// The exit code of a report.
pub fn exit(report: &Report) -> Exit {
    // --max-time may have cut the plan short.
    let cut = report.outcome == Outcome::Matches && !report.is_complete();
    if cut { Exit::Undecided } else { outcome_exit(&report.outcome) }
}

/// The exit code of an outcome.
pub fn outcome_exit(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Matches => Exit::Match,
        Outcome::Diverges { .. } | Outcome::Inconsistent { .. } => Exit::Diverges,
        _ => Exit::Undecided,
    }
}

/// The end of an audit, in a line.
pub fn headline(report: &Report) -> String {
    match &report.outcome {
        Outcome::Matches if report.is_complete() => {
            let how = if report.native { " with native products (replication only)" } else { "" };
            let (run, engine, steps) = (report.run.short(), &report.engine, report.steps_replayed());
            match report.end_checked {
                true if steps == u64::from(report.steps) => format!("MATCHES: run {run} on {engine}{how}"),
                true => format!("MATCHES: {steps} of {} steps of run {run} on {engine}{how}", report.steps),
                false => format!(
                    "MATCHES: {steps} of {} steps of run {run}, not its end, on {engine}{how}",
                    report.steps
                ),
            }
        }
        Outcome::Matches => format!(
            "NOT FINISHED: {} of {} planned steps of run {} match on {}",
            report.steps_replayed(),
            report.plan.steps(),
            report.run.short(),
            report.engine
        ),
        other => outcome_text(other),
    }
}

/// The end of an audit, or of a replay of a part of a step.
pub fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Matches => "MATCHES".into(),
        Outcome::Diverges { step, what } => format!("DIVERGES at step {step}: {what}"),
        Outcome::Inconsistent { step, what } => format!("DIVERGES at step {step}, without a replay: {what}"),
        Outcome::MissingDecision { step, what } => format!("COULD NOT DECIDE at step {step}: {what}"),
        Outcome::Corrected { what, .. } => format!("CORRECTED: {what}"),
        Outcome::Incomplete { what } => format!("INCOMPLETE: {what}"),
        Outcome::UnboundedFreedom { what } => format!("UNBOUNDED FREEDOM: {what}"),
        Outcome::UnexplainedDecisions { what } => format!("COULD NOT DECIDE: {what}"),
        Outcome::Unconfirmed { step, what } => format!("NOT CONFIRMED at step {step}: {what}"),
        Outcome::EngineFaulty { step, engine, what } => {
            format!(
                "NOBODY IS ACCUSED: at step {step} {engine} differs from the scalar reference, which agrees with the trainer ({what})"
            )
        }
    }
}

/// The signer of a receipt in words.
pub fn signed_by(signer: Option<&PublicKey>) -> String {
    signer.map_or("nobody signed it".into(), |signer| format!("signed by {}", signer.identified()))
}

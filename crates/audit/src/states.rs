//! The states after given steps of a run, from checkpoints or by a replay that is held to the run's records.

use std::time::Instant;

use super::checks::{self, Checked};
use super::ground::differences;
use super::replay::{nearest_state, same_log, session};
use super::report::AuditError;
use tiebreak_engine::session::Session;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states::State;
use tiebreak_run::step::replayed_step;

/// The way to a state, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// By a checkpoint, or from the seed. The state has the digest of the step's record.
    Checkpoint,
    /// By a replay from the state before. Each replayed step gave its record.
    Replay,
    /// Not at all: the replay of this step differs from its record in the fields that the text names. Nobody is accused, since
    /// the scalar reference did not confirm the difference.
    Deviates(u32, String),
    /// Not at all: the time was up.
    OutOfTime,
}

/// Receives states, and the number of replayed steps.
pub trait Visitor {
    /// Receives the end of the way to the state after `step`; the state is there if it was reached.
    fn state(&mut self, step: u32, reached: Reached, state: Option<&State>);
    /// Called after a step was replayed.
    fn replayed(&mut self, step: u32);
}

/// Visits the states after `steps`, which are ascending and covered by the head.
///
/// # Errors
/// If the engine fails, or a file that a replay needs cannot be read or is malformed.
pub fn visit(
    run: &Run,
    engine: &mut dyn Engine,
    checked: &Checked,
    steps: &[u32],
    end: Option<Instant>,
    visitor: &mut dyn Visitor,
) -> Result<(), AuditError> {
    let mut session = session(run, engine, false)?;
    session.stop_at(end);
    let kept = run.checkpoint_steps()?;
    let mut way = Way { run, checked, session, kept, at: None, deviates: None };
    for &step in steps {
        let kept = step == 0 || way.kept.binary_search(&step).is_ok();
        if let Some(state) = kept.then(|| checks::state_after(run, checked, step).ok()).flatten() {
            visitor.state(step, Reached::Checkpoint, Some(&state));
            continue;
        }
        let reached = match way.to(step, visitor) {
            Err(AuditError::Engine(EngineError::OutOfTime)) => Reached::OutOfTime,
            reached => reached?,
        };
        let state = (reached == Reached::Replay).then(|| way.session.download_state()).transpose()?;
        visitor.state(step, reached, state.as_ref());
    }
    Ok(())
}

/// A session on its way through a run.
struct Way<'r, 'e> {
    run: &'r Run,
    checked: &'r Checked,
    session: Session<'e>,
    /// The steps of the checkpoints that are there.
    kept: Vec<u32>,
    /// The last step that the session reached.
    at: Option<u32>,
    /// The step after it, if its replay differs: nothing between it and the next checkpoint can be reached.
    deviates: Option<(u32, String)>,
}

impl Way<'_, '_> {
    /// Goes on to the state after a step, from the nearest state before it.
    fn to(&mut self, step: u32, visitor: &mut dyn Visitor) -> Result<Reached, AuditError> {
        let (run, checked) = (self.run, self.checked);
        if self.at.is_none_or(|at| self.kept.iter().any(|kept| (at + 1..step).contains(kept))) {
            let (from, state) = nearest_state(run, checked, step)?;
            if self.at.is_none_or(|at| from > at) {
                self.session.load(&state)?;
                (self.at, self.deviates) = (Some(from), None);
            }
        }
        if let Some((bad, what)) = self.deviates.clone() {
            return Ok(Reached::Deviates(bad, what));
        }
        let mut dataset = run.dataset()?;
        let from = self.at.expect("a state was loaded above");
        for next in from + 1..=step {
            let batch = run.batch(&mut dataset, next)?;
            let theirs = checked.step(next)?;
            // Until the step is done, the session is at no step.
            let before = self.at.take();
            let mine = replayed_step(run, &mut self.session, next, &batch, false)?.0.record;
            self.at = before;
            same_log(run, &mine, theirs)?;
            visitor.replayed(next);
            let different = differences(&mine, theirs).to_string();
            if !different.is_empty() {
                self.deviates = Some((next, different.clone()));
                return Ok(Reached::Deviates(next, different));
            }
            self.at = Some(next);
        }
        Ok(Reached::Replay)
    }
}

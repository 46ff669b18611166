//! What an audit concludes from rounding decisions: one that no honest kernel takes, confirmed by the scalar reference; and a
//! difference that a missing one would explain. With operator traces [`super::localise`] tells more.

use super::ground::{Explicable, Ground, differences};
use super::replay::{other_log, reference_step};
use super::report::{AuditError, Outcome};
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;

/// Checks, before a step is replayed, that its log is the one that its record commits. Another one says nothing about the trainer: whoever keeps the run
/// may have changed it, or shows this auditor another.
///
/// # Errors
/// If it is not, or cannot be read.
pub(crate) fn check_log(run: &Run, step: u32, theirs: &StepRecord) -> Result<(), AuditError> {
    if run.job().rounding.is_some() && Some(run.rounding_log(step)?.root()) != theirs.log {
        return Err(other_log(run, step));
    }
    Ok(())
}

/// Why a match says nothing, if the trainer had too much freedom or used it as no honest kernel does. It is asked where nothing
/// differs: a divergence goes first.
pub(crate) fn without_meaning(run: &Run, tally: Option<&Tally>) -> Option<Outcome> {
    let rounding = run.job().rounding.as_ref()?;
    if let Some((key, why)) = rounding.excess(&run.program().micro.logged) {
        return Some(Outcome::UnboundedFreedom { what: Ground::Freedom { key, why } });
    }
    let what = tally?.unexplained(rounding.accumulation())?;
    Some(Outcome::UnexplainedDecisions { what: Ground::Decisions(what) })
}

/// Whether a difference could come from a rounding that the log lacks: gradients differ, and nothing but what follows from
/// them. Without them (`granularity = "step"`), the loss and the state.
pub(crate) fn may_lack_a_decision(mine: &StepRecord, theirs: &StepRecord) -> bool {
    let same_inputs = mine.batch == theirs.batch
        && mine.learning_rate == theirs.learning_rate
        && mine.cursor == theirs.cursor
        && mine.log == theirs.log
        && mine.gradients.is_some() == theirs.gradients.is_some();
    let gradients = mine.gradients != theirs.gradients;
    let unknown = mine.gradients.is_none() && mine != theirs;
    same_inputs && (gradients || unknown)
}

/// The outcome for such a difference.
pub(crate) fn missing(step: u32, mine: &StepRecord, theirs: &StepRecord) -> Outcome {
    let what = Ground::Explicable(Explicable::Fields(differences(mine, theirs)));
    Outcome::MissingDecision { step, what }
}

/// The outcome where a native auditor's step differs.
pub(crate) fn not_replicated(step: u32, mine: &StepRecord, theirs: &StepRecord) -> Outcome {
    Outcome::MissingDecision { step, what: Ground::NotReplicated(differences(mine, theirs)) }
}

/// What the scalar reference says of a step, whatever an engine saw: a match, a divergence, or that a missing decision would
/// explain the difference.
///
/// # Errors
/// If the run's data or log cannot be read, or is not what it should be.
pub fn reference_outcome(
    run: &Run,
    step: u32,
    before: &[Vec<u8>],
    theirs: &StepRecord,
) -> Result<Outcome, AuditError> {
    check_log(run, step, theirs)?;
    let (done, tally) = reference_step(run, before, theirs)?;
    let mine = done.record;
    Ok(match tally.first_illegal {
        Some(illegal) if mine == *theirs => Outcome::Diverges { step, what: Ground::Decision(illegal) },
        _ if mine == *theirs => Outcome::Matches,
        _ if run.job().rounding.is_some() && may_lack_a_decision(&mine, theirs) => {
            missing(step, &mine, theirs)
        }
        _ => {
            let fields = differences(&mine, theirs);
            let what = Ground::Step { fields, micro_batches: Vec::new(), tensors: Vec::new() };
            Outcome::Diverges { step, what }
        }
    })
}

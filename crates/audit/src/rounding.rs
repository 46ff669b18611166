//! An audit's conclusions from rounding decisions: a decision that no honest kernel takes, confirmed by the scalar reference, and
//! a difference that a missing decision would explain. With operator traces, [`super::localise`] tells more.

use super::ground::{Explicable, Ground, differences};
use super::replay::{StepWatch, other_log, reference_step_watched};
use super::report::{AuditError, Outcome};
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;

/// Checks, before a step is replayed, that its log is the one that its record commits. Another log says nothing about the
/// trainer: the keeper of the run may have changed it, or may show this auditor another one.
///
/// # Errors
/// If the log is another one, or cannot be read.
pub(crate) fn check_log(run: &Run, step: u32, theirs: &StepRecord) -> Result<(), AuditError> {
    if run.job().rounding.is_none() {
        return Ok(());
    }
    let found = Some(run.rounding_log(step)?.root());
    if found == theirs.log { Ok(()) } else { Err(other_log(run, step, found, theirs.log)) }
}

/// The reason why a match says nothing, if the trainer had too much freedom or used it as no honest kernel does. Call this only
/// where nothing differs: a divergence takes precedence.
pub(crate) fn without_meaning(run: &Run, tally: Option<&Tally>) -> Option<Outcome> {
    let rounding = run.job().rounding.as_ref()?;
    if let Some((key, why)) = rounding.excess(&run.program().micro.logged) {
        return Some(Outcome::UnboundedFreedom { what: Ground::Freedom { key, why } });
    }
    let what = tally?.unexplained(rounding.accumulation())?;
    Some(Outcome::UnexplainedDecisions { what: Ground::Decisions(what) })
}

/// True if a rounding that the log lacks could explain a difference: the gradients differ, and otherwise only values that follow
/// from them. Without gradients (`granularity = "step"`), the loss and the state.
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

/// The outcome if a native auditor's step differs.
pub(crate) fn not_replicated(step: u32, mine: &StepRecord, theirs: &StepRecord) -> Outcome {
    Outcome::MissingDecision { step, what: Ground::NotReplicated(differences(mine, theirs)) }
}

/// The scalar reference's judgement on a step, whatever an engine found: a match, a divergence, or a difference that a missing
/// decision would explain.
///
/// # Errors
/// If the run's data or log cannot be read, or is not what it should be.
pub fn reference_outcome(
    run: &Run,
    step: u32,
    before: &[Vec<u8>],
    theirs: &StepRecord,
) -> Result<Outcome, AuditError> {
    reference_outcome_watched(run, step, before, theirs, &mut |_, _| {})
}

/// [`reference_outcome`], with its progress: arithmetic operations done, and their total.
///
/// # Errors
/// As [`reference_outcome`].
pub fn reference_outcome_watched(
    run: &Run,
    step: u32,
    before: &[Vec<u8>],
    theirs: &StepRecord,
    watch: StepWatch,
) -> Result<Outcome, AuditError> {
    check_log(run, step, theirs)?;
    let (done, tally) = reference_step_watched(run, before, theirs, watch)?;
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

//! What an audit concludes from rounding decisions: one that no honest kernel takes, confirmed by the scalar reference; and a
//! difference that a missing one would explain.

use std::sync::Arc;

use super::{AuditError, Outcome, differences};
use crate::commit::record::StepRecord;
use crate::engine::reference::Reference;
use crate::engine::session::Session;
use crate::rounding::replay::Illegal;
use crate::run::dir::Run;
use crate::run::job::philox_key;
use crate::train::committed_step::{replayed_step, scalars};

/// What is wrong if a step's log is not the one that its record commits: made later, or shown to this auditor only.
pub fn foreign_log(run: &Run, step: u32, theirs: &StepRecord) -> Result<Option<String>, AuditError> {
    let what = match (&run.job.rounding, theirs.log) {
        (None, None) => None,
        (None, Some(_)) => Some("the record commits a rounding log, but the job's products are exact"),
        (Some(_), None) => Some("the record commits no rounding log"),
        (Some(_), Some(root)) => (run.rounding_log(step)?.root() != root)
            .then_some("the rounding log is not the one that the record commits"),
    };
    Ok(what.map(str::to_string))
}

/// A decision that is outside the proved bound. The step is replayed by the scalar reference before anybody is accused.
pub fn illegal(
    run: &Run,
    step: u32,
    before: &[Vec<u8>],
    found: &Illegal,
    engine: &str,
) -> Result<Outcome, AuditError> {
    let mut reference = Reference;
    let mut session = Session::new(&mut reference, Arc::new(run.program.clone()))?;
    session.load(before)?;
    let batch = run.dataset()?.batch(&run.program, philox_key(&run.seed), step)?;
    let (_, tally) = replayed_step(run, &mut session, scalars(run, step), &batch, false)?;
    let what = describe(found);
    Ok(match tally.first_illegal {
        Some(confirmed) if confirmed == *found => Outcome::Diverges { step, what },
        _ => Outcome::EngineFaulty { step, engine: engine.to_string(), what },
    })
}

fn describe(found: &Illegal) -> String {
    let Illegal { micro_batch, operator, element, exact, bound, logged, legal } = found;
    format!(
        "the rounding log gives {operator} of micro-batch {micro_batch}, element {element}, the value {logged:e}; the exact product \
         is {exact:e}, and no kernel that is within {bound:e} of it rounds outside {:e} to {:e}",
        legal[0], legal[1]
    )
}

/// Whether a difference could come from a rounding that the log lacks: gradients differ, and nothing but what follows from
/// them. Without them (`granularity = "step"`), the loss and the state.
pub fn may_lack_a_decision(mine: &StepRecord, theirs: &StepRecord) -> bool {
    let same_inputs = mine.batch == theirs.batch
        && mine.learning_rate == theirs.learning_rate
        && mine.cursor == theirs.cursor
        && mine.log == theirs.log
        && mine.micro_batches.len() == theirs.micro_batches.len();
    let gradients = mine.micro_batches != theirs.micro_batches;
    let unknown = mine.micro_batches.is_empty() && mine != theirs;
    same_inputs && (gradients || unknown)
}

/// The outcome for such a difference.
pub fn missing(step: u32, mine: &StepRecord, theirs: &StepRecord) -> Outcome {
    let what = format!(
        "{} differ; a missing decision explains that as well as a trainer that computed something else",
        differences(mine, theirs).join(", ")
    );
    Outcome::MissingDecision { step, what }
}

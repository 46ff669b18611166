//! Judges the gradients of one micro-batch, by the rules of a whole audit.

use std::sync::Arc;

use super::checks::Checked;
use super::ground::{Explicable, Ground};
use super::plan::memory_with;
use super::replay::replay_to_gradients;
use super::report::{AuditError, Outcome};
use super::rounding::check_log;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::Engine;
use tiebreak_engine::recompute;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::Session;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::rounding::legal::Illegal;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{gradient_root, replayed_micro_batch};

/// Replays micro-batch `index` (from 0) of `step` (from 1) on `engine` and compares the root of its gradients with the committed
/// one. The scalar reference confirms a difference, or a rounding that no honest kernel takes. The run must commit to gradients
/// (`granularity` is not `step`).
///
/// # Errors
/// If an engine fails, a file cannot be read or is malformed, or an earlier step since the last checkpoint differs.
pub fn micro_batch(
    run: &Run,
    engine: &mut dyn Engine,
    checked: &Checked,
    step: u32,
    index: u32,
) -> Result<Outcome, AuditError> {
    let theirs = checked.step(step)?;
    check_log(run, step, theirs)?;
    let name = engine.describe();
    let mut session = Session::new(engine, Arc::new(run.program().clone()))?;
    if let Some((before, what)) = replay_to_gradients(run, checked, &mut session, step)? {
        let why = format!(
            "step {before} before it differs already ({what}): `tiebreak replay --step {before}` judges that"
        );
        return Err(AuditError::Limit(why));
    }
    let batch = run.micro_batch(&mut run.dataset()?, step, index)?;
    let committed = run.gradient_roots(theirs)?.get(index as usize).copied();
    let (mine, illegal) = gradients(run, &mut session, step, index, &batch)?;
    let same = Some(mine) == committed;
    if same && illegal.is_none() {
        return Ok(Outcome::Matches);
    }
    let recomputes = session.engine().recomputes();
    let needed = memory_with(run, recompute::micro_batch_bytes(run.program(), recomputes));
    let what = format!(
        "micro-batch {index} of step {step}, which differs, and its confirmation by the scalar reference"
    );
    run.within_memory(&what, needed)?;
    session.engine_mut().release();
    let reference = recompute::engine(Reference, recomputes);
    let mut confirming = Session::new(reference, Arc::new(run.program().clone()))?;
    confirming.load_from(&mut session)?;
    session.engine_mut().release();
    let mut session = confirming;
    let (confirmed, illegal) = gradients(run, &mut session, step, index, &batch)?;
    let what = Ground::MicroBatch(index);
    Ok(match illegal {
        _ if Some(confirmed) == committed && !same => Outcome::EngineFaulty { step, engine: name, what },
        Some(illegal) if same => Outcome::Diverges { step, what: Ground::Decision(illegal) },
        None if same => Outcome::EngineFaulty { step, engine: name, what },
        _ if run.job().rounding.is_some() => {
            let what = Ground::Explicable(Explicable::MicroBatch(index));
            Outcome::MissingDecision { step, what }
        }
        _ => Outcome::Diverges { step, what },
    })
}

/// The root of a micro-batch's gradients, and its first logged rounding that no honest kernel takes.
fn gradients(
    run: &Run,
    session: &mut Session,
    step: u32,
    index: u32,
    batch: &MicroBatch,
) -> Result<(Digest, Option<Illegal>), AuditError> {
    let (gradients, tally) = replayed_micro_batch(run, session, step, index, batch)?;
    let plain = gradient_root(session, &gradients)?;
    Ok((run.computation.gradient_root(step, index, plain), tally.first_illegal))
}

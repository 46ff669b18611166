//! Steps of a run, as auditors and parties replay them: rounding decisions, if there are any, come from the run's log.

use super::{CommittedStep, Roundings, StepError, StepRequest, Tracer, Watch, scalars};
use crate::observers::record::Rounder;
use crate::observers::replay::Replayer;
use crate::observers::tally::Tally;
use crate::run::RunError;
use crate::run::dir::Run;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::EngineError;
use tiebreak_engine::session::{Gradients, Session};
use tiebreak_record::commit::Malformed;

fn request<'a>(run: &'a Run, step: u32, batch: &'a [MicroBatch]) -> StepRequest<'a> {
    StepRequest::new(&run.computation, scalars(&run.computation, step), batch)
}

/// The replayer of a step's log; `None` unless the job is of the logged profile.
///
/// # Errors
/// If the log cannot be read, or is malformed.
pub fn replayer(run: &Run, step: u32) -> Result<Option<Replayer>, RunError> {
    let Some(rounding) = &run.job().rounding else { return Ok(None) };
    let log = run.rounding_log(step)?;
    Ok(Some(Replayer::new(rounding, &run.program().micro, log)))
}

/// The replayer of a step's log for an auditor's session. A native session's products are judged through a filter, but for those
/// of the paper's preset, which nobody judges there.
fn replayer_for(run: &Run, session: &Session, step: u32) -> Result<Option<Replayer>, StepError> {
    let mut replayer = replayer(run, step)?;
    if let (Some(replayer), Some(rounding)) = (&mut replayer, &run.job().rounding)
        && session.is_native()
        && !rounding.is_paper()
    {
        let roundings = |k| session.engine().binary64_roundings(k);
        if !replayer.filtering(&run.program().micro, &roundings) {
            let why = "this engine's native products have no known bound";
            return Err(EngineError::Stopped(why.into()).into());
        }
    }
    Ok(replayer)
}

/// Runs step `step` on the session's state and commits to it, as an auditor: rounding decisions, if there are any, come from the
/// run's log. A native session gives the same, or fails where its products decide too little: then
/// [`Session::compute_exactly`] helps. With `choices`, the replay also counts how each product's decisions were chosen, and what could have been chosen.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read or is malformed.
pub fn replayed_step(
    run: &Run,
    session: &mut Session,
    step: u32,
    batch: &[MicroBatch],
    choices: bool,
) -> Result<(CommittedStep, Tally), StepError> {
    let (request, watch) = (request(run, step, batch), Watch::default());
    let Some(mut replayer) = replayer_for(run, session, step)? else {
        return Ok((request.run(session, Roundings::Logged, &watch)?, Tally::default()));
    };
    if choices {
        replayer.count_choices(&run.program().micro);
    }
    let done = request.run(session, Roundings::Replayed(&mut replayer), &watch);
    sound_log(run, step, &replayer)?;
    Ok((done?, replayer.tally().clone()))
}

/// [`replayed_step`] by a party of a dispute. A decision about a value that is not finite changes nothing, as the referee takes
/// it (`docs/DISPUTE.md`, section 7). So only a log that cannot be read stops a party.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read.
pub fn disputed_step(
    run: &Run,
    session: &mut Session,
    step: u32,
    batch: &[MicroBatch],
) -> Result<CommittedStep, StepError> {
    let mut replayer = replayer(run, step)?;
    let roundings = replayer.as_mut().map_or(Roundings::Logged, Roundings::Replayed);
    let done = request(run, step, batch).run(session, roundings, &Watch::default());
    if let Some(replayer) = &replayer {
        readable_log(run, step, replayer)?;
    }
    Ok(done?)
}

/// Checks that a replayed log could be read to its end, and that each of its decisions is about a finite value.
///
/// # Errors
/// If it is malformed.
fn sound_log(run: &Run, step: u32, replayer: &Replayer) -> Result<(), RunError> {
    readable_log(run, step, replayer)?;
    replayer.void().map_or(Ok(()), |why| Err(RunError::malformed(&run.layout.log(step), why.clone())))
}

/// Checks that a replayed log could be read to its end.
///
/// # Errors
/// If the log could not be read.
pub fn readable_log(run: &Run, step: u32, replayer: &Replayer) -> Result<(), RunError> {
    let malformed = |why: &Malformed| Err(RunError::malformed(&run.layout.log(step), why.clone()));
    replayer.malformed().map_or(Ok(()), malformed)
}

/// The gradient and loss share of one micro-batch, as an auditor.
///
/// # Errors
/// If the engine fails, or the run's log cannot be read or is malformed.
pub fn replayed_micro_batch(
    run: &Run,
    session: &mut Session,
    step: u32,
    index: u32,
    batch: &MicroBatch,
) -> Result<(Gradients, Tally), StepError> {
    let mut replayer = replayer_for(run, session, step)?;
    let rounder = replayer.as_mut().map(|replayer| replayer as &mut dyn Rounder);
    let mut tracer = Tracer::new(false, None, rounder);
    let gradients = session.micro_batch(scalars(&run.computation, step), index, batch, &mut tracer);
    if let Some(replayer) = &replayer {
        sound_log(run, step, replayer)?;
    }
    Ok((gradients?, replayer.map(|replayer| replayer.tally().clone()).unwrap_or_default()))
}

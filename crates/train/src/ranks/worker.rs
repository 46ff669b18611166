//! Every rank but 0: computes the work it receives. The rank reads and writes no file.

use std::path::PathBuf;
use std::sync::Arc;

use super::collective::{Collective, MessageKind};
use super::plan::ShardPlan;
use super::protocol::{END, NO_CHECK, SLOT, WAIT, go_on};
use super::share::{Division, Reducer, Work, bucket_bytes_over, compute};
use crate::error::RankError;
use crate::error::TrainError;
use tiebreak_contract::program::encoding::PROGRAM_MAX;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_engine::session::Session;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_job::JOB_MAX;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::{Decoder, Encoder};
use tiebreak_record::commit::state::state_digest;
use tiebreak_run::run::dir::{RUN_JSON_MAX, Run};
use tiebreak_run::run::paths::RunPaths;
use tiebreak_run::step::{StepError, scalars, state_digests};

/// Bytes of [`super::protocol::step_message`].
const STEP_BYTES: usize = 8;

/// Somebody on this rank's machine who sees the states between its steps, as the agent of the rank's chip does.
pub trait Watch {
    /// The run is known, and no state yet. `divided`: true if ranks hold shares of the state.
    ///
    /// # Errors
    /// If this rank cannot be watched; it stops then.
    fn began(&mut self, run: &Run, divided: bool) -> Result<(), TrainError>;

    /// The state after a step. Rank 0 may not have written the step's record yet.
    ///
    /// # Errors
    /// If the state cannot be read, or the watcher is gone; this rank stops then.
    fn state(&mut self, step: u32, session: &mut Session) -> Result<(), StepError>;
}

/// Nobody watches.
impl Watch for () {
    fn began(&mut self, _: &Run, _: bool) -> Result<(), TrainError> {
        Ok(())
    }

    fn state(&mut self, _: u32, _: &mut Session) -> Result<(), StepError> {
        Ok(())
    }
}

/// Works for rank 0 until the run is complete, or rank 0 ends it. When `asked` returns true, rank 0 is told that this rank is to
/// stop.
///
/// # Errors
/// If the engine fails, rank 0 or another rank is lost, this version cannot work on the run, or `watch` fails.
pub fn work(
    engine: &mut dyn Engine,
    collective: &mut dyn Collective,
    asked: &dyn Fn() -> bool,
    watch: &mut dyn Watch,
) -> Result<(), TrainError> {
    let malformed = |source: Malformed| RankError::Malformed { rank: 0, source };
    let (run, divided, bucket_bytes) = welcomed(collective)?;
    watch.began(&run, divided)?;
    let bucket_bytes = bucket_bytes_over(collective, bucket_bytes);
    let plan = ShardPlan::in_buckets(run.program(), collective.ranks(), bucket_bytes)?;
    let mut division = Division::new(run.program(), plan, divided)?;
    let program = Arc::new(run.program().clone());
    let mut session = match run.job().rounding {
        Some(_) => Session::native(engine, program)?,
        None => Session::new(engine, program)?,
    };
    let rank = collective.rank();
    division.hold(&mut session, rank)?;
    let mut reducer = Reducer::new(&run, &mut session, collective, &division.plan)?;
    let table = run.program().state();
    session.try_load_each(|place| match division.holder(place) {
        Some(other) if other != rank => Ok(Vec::new()),
        _ => loaded(collective, table[place].ty().bytes(), divided),
    })?;
    let state = state_digest(&session.held(), &state_digests(&mut session)?);
    let mut e = Encoder::default();
    e.digest(&run.id).digest(&run.file.program).digest(&state);
    collective.send(0, MessageKind::Ready, &e.0)?;
    if divided {
        go_on(collective)?;
    }
    collective.connect(session.engine_mut())?;
    loop {
        let message = exactly(collective, MessageKind::Step, STEP_BYTES)?;
        let mut d = Decoder::new("step", &message);
        let (step, check) = d.u32().and_then(|step| Ok((step, d.u32()?))).map_err(malformed)?;
        match step {
            END => return Ok(()),
            WAIT => continue,
            SLOT => {
                send_slot(&mut session, collective, &division, check)?;
                continue;
            }
            _ => {}
        }
        let check = Some(check).filter(|check| *check != NO_CHECK);
        if step > run.job().steps || check.is_some_and(|check| check >= run.program().micro_batches) {
            let (steps, micro_batches) = (run.job().steps, run.program().micro_batches);
            let check = check.map_or("none".into(), |check| check.to_string());
            let why = format!(
                "step {step} is named, and micro-batch {check} to check; the run has {steps} steps of {micro_batches}"
            );
            return Err(malformed(Malformed::invalid("step", why)).into());
        }
        let own = division.plan.micro_batches(rank).len();
        let batches = receive_batches(collective, run.program(), own + usize::from(check.is_some()))?;
        let check = check.map(|index| (index, &batches[own]));
        let work = Work {
            scalars: scalars(&run.computation, step),
            batches: &batches[..own],
            check,
            searched: None,
            asked: asked(),
        };
        let computed = compute(&run, &mut session, collective, &division, &mut reducer, &work)?;
        collective.send(0, MessageKind::Share, &computed.share.encode())?;
        watch.state(step, &mut session)?;
    }
}

/// The run that rank 0 trains; true if ranks hold shares of the state; the least bytes of a bucket.
fn welcomed(collective: &mut dyn Collective) -> Result<(Run, bool, u64), TrainError> {
    let malformed = |source: Malformed| RankError::Malformed { rank: 0, source };
    let welcome = collective.receive(0, MessageKind::Welcome, RUN_JSON_MAX + JOB_MAX + PROGRAM_MAX + 24)?;
    let mut d = Decoder::new("welcome", &welcome);
    let texts = || {
        let json = d.text(RUN_JSON_MAX as usize)?;
        let (job, program_file) = (d.text(JOB_MAX as usize)?, d.bytes(PROGRAM_MAX as usize)?);
        let divided = match d.u32()? {
            0 => false,
            1 => true,
            other => return Err(Malformed::invalid("welcome", format!("{other} where 0 or 1 is due"))),
        };
        let bucket_bytes = d.u64()?;
        d.finish()?;
        Ok((json, job, program_file, divided, bucket_bytes))
    };
    let (json, job, program_file, divided, bucket_bytes) = texts().map_err(malformed)?;
    // The folder only names the texts in errors: nothing is opened there.
    let layout = RunPaths { root: PathBuf::from("run of rank 0") };
    let program_file = (!program_file.is_empty()).then(|| program_file.to_vec());
    let run = Run::from_texts(layout, json, job, program_file)?;
    Ok((run, divided, bucket_bytes))
}

/// Sends rank 0 the slot at a place of the state, for a checkpoint.
fn send_slot(
    session: &mut Session,
    collective: &mut dyn Collective,
    division: &Division,
    place: u32,
) -> Result<(), TrainError> {
    let place = place as usize;
    if place >= session.program().state().len() || division.holder(place) != Some(collective.rank()) {
        let source = Malformed::invalid("step", "it asks for a slot that this rank does not hold");
        return Err(RankError::Malformed { rank: 0, source }.into());
    }
    let mut sent = Ok(());
    session.read_at(place, &mut |bytes| sent = collective.send(0, MessageKind::State, bytes))?;
    sent
}

/// A tensor of the state. Where slots are divided, one without bytes says that rank 0 is alive.
fn loaded(collective: &mut dyn Collective, len: usize, divided: bool) -> Result<Vec<u8>, TrainError> {
    loop {
        let bytes = exactly_or_none(collective, MessageKind::State, len)?;
        match bytes {
            Some(bytes) => return Ok(bytes),
            None if divided => {}
            None => return Err(other_length(0, len)),
        }
    }
}

/// A message from rank 0 with exactly `len` bytes; `None` for one without any.
fn exactly_or_none(
    collective: &mut dyn Collective,
    kind: MessageKind,
    len: usize,
) -> Result<Option<Vec<u8>>, TrainError> {
    let bytes = collective.receive(0, kind, len as u64)?;
    match bytes.len() {
        found if found == len => Ok(Some(bytes)),
        0 => Ok(None),
        found => Err(other_length(found, len)),
    }
}

fn other_length(found: usize, due: usize) -> TrainError {
    let why = format!("{found} bytes where {due} are due");
    RankError::Malformed { rank: 0, source: Malformed::invalid("message", why) }.into()
}

/// A message from rank 0 with exactly `len` bytes.
fn exactly(collective: &mut dyn Collective, kind: MessageKind, len: usize) -> Result<Vec<u8>, TrainError> {
    exactly_or_none(collective, kind, len)?.ok_or_else(|| other_length(0, len))
}

/// This rank's micro-batches of a step.
fn receive_batches(
    collective: &mut dyn Collective,
    program: &Program,
    count: usize,
) -> Result<Vec<MicroBatch>, TrainError> {
    let types = &program.batch;
    let lens: Vec<usize> = types
        .iter()
        .map(|ty| ty.shape.iter().map(|&d| d as usize).product::<usize>() * ty.dtype.size())
        .collect();
    let bytes = exactly(collective, MessageKind::Batch, count * lens.iter().sum::<usize>())?;
    let mut rest = bytes.as_slice();
    let mut take = |len| {
        let (tensor, after) = rest.split_at(len);
        rest = after;
        tensor.to_vec()
    };
    Ok((0..count).map(|_| MicroBatch { tensors: lens.iter().map(|&len| take(len)).collect() }).collect())
}

/// [`work`] on an engine that is opened only when the other ranks can be told of a failure.
///
/// # Errors
/// As [`work`]; also if the engine cannot be opened.
pub fn work_on(
    open: impl FnOnce() -> Result<Box<dyn Engine>, EngineError>,
    collective: &mut dyn Collective,
    asked: &dyn Fn() -> bool,
    watch: &mut dyn Watch,
) -> Result<(), TrainError> {
    work(open()?.as_mut(), collective, asked, watch)
}

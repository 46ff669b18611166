//! Every rank but 0: computes what it is given. It reads and writes no file.

use std::path::PathBuf;
use std::sync::Arc;

use super::super::TrainError;
use super::super::committed_step::{scalars, state_digests, state_root};
use super::collective::{Collective, Kind};
use super::plan::Plan;
use super::reduce::Adder;
use super::share::compute;
use super::{END, RankError};
use crate::commit::Malformed;
use crate::commit::codec::{Decoder, Encoder};
use crate::engine::session::{MicroBatch, Session};
use crate::engine::{Engine, EngineError};
use crate::program::step::Program;
use crate::run::checkpoint::state_type;
use crate::run::dir::{Layout, RUN_JSON_MAX, Run};
use crate::run::job::JOB_MAX;

/// Works for rank 0 until the run is complete.
pub fn work(engine: &mut dyn Engine, collective: &mut dyn Collective) -> Result<(), TrainError> {
    let malformed = |source: Malformed| RankError::Malformed { rank: 0, source };
    let welcome = collective.receive(0, Kind::Welcome, RUN_JSON_MAX + JOB_MAX + 8)?;
    let mut d = Decoder::new("welcome", &welcome);
    let mut texts = || {
        let json = d.text(RUN_JSON_MAX as usize)?;
        Ok((json, d.text(JOB_MAX as usize)?))
    };
    let (json, job) = texts().map_err(malformed)?;
    // The folder only names the texts in errors: nothing is opened there.
    let layout = Layout { root: PathBuf::from("run of rank 0") };
    let run = Run::from_texts(layout, json, job)?;
    let plan = Plan::new(&run.program, collective.ranks())?;
    let program = Arc::new(run.program.clone());
    let mut session = match run.job.rounding {
        Some(_) => Session::native(engine, program)?,
        None => Session::new(engine, program)?,
    };
    let rank = collective.rank();
    let adder = Adder::new(&mut session, &plan, rank)?;
    let table = run.program.state();
    session.try_load_each(|i| exactly(collective, Kind::State, state_type(&table[i]).bytes()))?;
    let state = state_root(&run.program, &state_digests(&mut session)?);
    let mut e = Encoder::default();
    e.digest(&run.id).digest(&run.file.program).digest(&state);
    collective.send(0, Kind::Ready, &e.0)?;
    loop {
        let step = exactly(collective, Kind::Step, 4)?;
        let step = u32::from_le_bytes(step.try_into().expect("four bytes were asked for"));
        if step == END {
            return Ok(());
        }
        if step > run.job.steps {
            return Err(malformed(Malformed::invalid("step", "the run has no such step")).into());
        }
        let batches = receive_batches(collective, &run.program, plan.micro_batches(rank).len())?;
        let computed = compute(&run, &mut session, collective, &plan, &adder, scalars(&run, step), &batches)?;
        collective.send(0, Kind::Share, &computed.share.encode())?;
    }
}

/// A message of rank 0 of `len` bytes.
fn exactly(collective: &mut dyn Collective, kind: Kind, len: usize) -> Result<Vec<u8>, TrainError> {
    let bytes = collective.receive(0, kind, len as u64)?;
    if bytes.len() != len {
        let why = format!("{} bytes where {len} are due", bytes.len());
        return Err(RankError::Malformed { rank: 0, source: Malformed::invalid("message", why) }.into());
    }
    Ok(bytes)
}

/// This rank's micro-batches of a step.
fn receive_batches(
    collective: &mut dyn Collective,
    program: &Program,
    count: usize,
) -> Result<Vec<MicroBatch>, TrainError> {
    let types = program.spec.model.batch(program.spec.micro_batch);
    let lens: Vec<usize> = types
        .iter()
        .map(|ty| ty.shape.iter().map(|&d| d as usize).product::<usize>() * ty.dtype.size())
        .collect();
    let bytes = exactly(collective, Kind::Batch, count * lens.iter().sum::<usize>())?;
    let mut rest = bytes.as_slice();
    let mut take = |len| {
        let (tensor, after) = rest.split_at(len);
        rest = after;
        tensor.to_vec()
    };
    Ok((0..count).map(|_| MicroBatch { tensors: lens.iter().map(|&len| take(len)).collect() }).collect())
}

/// [`work`], on an engine that is opened when the others can be told that it could not be.
pub fn work_on(
    open: impl FnOnce() -> Result<Box<dyn Engine>, EngineError>,
    collective: &mut dyn Collective,
) -> Result<(), TrainError> {
    work(open()?.as_mut(), collective)
}

//! The conduct of a trainer. Only the honest one ships in a trainer; the tests and the demo bring others.

use super::error::TrainError;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::data::Dataset;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest};

/// A trainer's conduct: each method is honest unless it is replaced.
pub trait Conduct: Send {
    /// The program that is really executed.
    fn program(&mut self, run: &Run) -> Program {
        run.program().clone()
    }

    /// Sees tensor `index` of the initial state, canonical bytes, before it is loaded.
    ///
    /// # Errors
    /// If another state cannot be computed.
    fn initial(&mut self, _run: &Run, _index: usize, _tensor: &mut Vec<u8>) -> Result<(), TrainError> {
        Ok(())
    }

    /// True if the trainer's replays use its own native kernels, because its log lacks decisions that it took.
    fn hides_decisions(&self) -> bool {
        false
    }

    /// Runs a step on the session's state, and returns the commitments to it. `dataset` gives other batches; `run_step` runs a
    /// step.
    ///
    /// # Errors
    /// If the engine fails, or the data cannot be read.
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: Vec<MicroBatch>,
        _dataset: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        Ok(run_step(session, StepRequest::new(&run.computation, scalars, &batch))?)
    }
}

/// Follows the job.
pub struct Honest;

impl Conduct for Honest {}

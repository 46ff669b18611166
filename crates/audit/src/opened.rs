//! Samples that training read, opened one by one: each is checked against the run's data and its step's batch before it counts.

use tiebreak_job::data::{Dataset, InFile, Place};
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;

use super::checks::Checked;

/// The reason why a sample does not count.
#[derive(Debug, thiserror::Error)]
pub enum Unopened {
    /// The data are not here, are damaged or do not fit the model.
    #[error("{0}")]
    Data(RunError),
    /// The record commits another batch than seed and data draw.
    #[error(
        "the record of step {step} commits another batch than seed and data draw; `tiebreak audit RUN --steps {step}..{step}` says more"
    )]
    OtherBatch {
        /// The step.
        step: u32,
    },
}

/// Opens the samples at these places, (step, place in the step's batch) by ascending step, and passes each on with its place. All
/// samples of a batch are read, since its record commits the whole of it.
///
/// # Errors
/// If a batch takes too much memory, or `each` fails.
pub fn open<E: From<RunError>>(
    run: &Run,
    checked: &Checked,
    places: &[(u32, u32)],
    mut each: impl FnMut((u32, u32), Result<InFile, &Unopened>) -> Result<(), E>,
) -> Result<(), E> {
    run.within_memory("the opened samples", run.batch_memory().saturating_mul(2))?;
    let mut dataset = match run.dataset() {
        Ok(dataset) => dataset,
        Err(error @ RunError::Memory { .. }) => return Err(error.into()),
        Err(error) => {
            let why = Unopened::Data(error);
            return places.iter().try_for_each(|&at| each(at, Err(&why)));
        }
    };
    for of_step in places.chunk_by(|a, b| a.0 == b.0) {
        match samples(run, checked, &mut dataset, of_step) {
            Ok(samples) => of_step.iter().zip(samples).try_for_each(|(&at, sample)| each(at, Ok(sample)))?,
            Err(Unopened::Data(error @ RunError::Memory { .. })) => return Err(error.into()),
            Err(why) => of_step.iter().try_for_each(|&at| each(at, Err(&why)))?,
        }
    }
    Ok(())
}

/// The samples at places of one step.
fn samples(
    run: &Run,
    checked: &Checked,
    dataset: &mut Dataset,
    places: &[(u32, u32)],
) -> Result<Vec<InFile>, Unopened> {
    let step = places[0].0;
    let batch = run.batch(dataset, step).map_err(Unopened::Data)?;
    let committed = checked.step(step).map_err(Unopened::Data)?.batch;
    if run.computation.batch_digest(step, &batch) != committed {
        return Err(Unopened::OtherBatch { step });
    }
    drop(batch);
    let batch = run.program().samples();
    let sample = |&(step, place): &(u32, u32)| {
        let sample = dataset.in_file(run.key(), Place { step, batch, place });
        sample.map_err(|error| Unopened::Data(error.into()))
    };
    places.iter().map(sample).collect()
}

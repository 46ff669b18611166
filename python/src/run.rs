//! The contents of a run's folder, as Python's own values. Checks are those of the command: bounds come before allocation.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tiebreak_contract::program::models::released::{Part, Released};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::transcript;
use tiebreak_run::run::weights::Elements;
use tiebreak_run::run::{RunError, state_files};

use crate::panics::detached;

pyo3::create_exception!(_native, Failed, pyo3::exceptions::PyException, "(exit code, message, help)");

/// Opens a run, does work on it without the interpreter's lock, and turns an error into `Failed`.
fn of_run<T: Send>(
    py: Python<'_>,
    path: PathBuf,
    work: impl FnOnce(&Run) -> Result<T, RunError> + Send,
) -> PyResult<T> {
    let done = detached(py, || Run::open_by(&path, Salts::Closed).and_then(|run| work(&run)))?;
    done.map_err(|error| {
        let (exit, message, help) = tiebreak::cli::explained(error);
        Failed::new_err((exit, message, help))
    })
}

/// The run id, the steps of the job, the job's text, the steps whose state the run holds, and the trainer's key.
type Facts = (String, u32, String, Vec<u32>, Option<String>);

/// Reads what a run declares.
#[pyfunction]
pub fn read(py: Python<'_>, path: PathBuf) -> PyResult<Facts> {
    of_run(py, path, |run| {
        let key = run.file.trainer_key.clone();
        Ok((run.id.to_string(), run.job().steps, run.job_text.clone(), run.checkpoint_steps()?, key))
    })
}

/// Kind, step, computation, state; then batch, gradients, trace and log; then learning rate, clip factor, loss and cursor of a step.
type Told = (&'static str, u32, String, String, [Option<String>; 4], Option<(f32, f32, f32, u64)>);

fn told(record: &Record) -> Told {
    let (computation, state) = (record.computation().to_string(), record.state().to_string());
    let none = [None, None, None, None];
    match record {
        Record::Initial { .. } => ("initial", 0, computation, state, none, None),
        Record::Final { steps, .. } => ("final", *steps, computation, state, none, None),
        Record::Step { step, .. } => {
            let StepRecord { batch, gradients, trace, log, learning_rate, clip, loss, cursor, .. } = step;
            let digests = [Some(batch), gradients.as_ref(), trace.as_ref(), log.as_ref()];
            let digests = digests.map(|digest| digest.map(Digest::to_string));
            let [rate, clip, loss] = [*learning_rate, *clip, *loss].map(f32::from_bits);
            ("step", step.step, computation, state, digests, Some((rate, clip, loss, *cursor)))
        }
    }
}

/// The records from number `first` on, at most `most` of them.
#[pyfunction]
pub fn records(py: Python<'_>, path: PathBuf, first: usize, most: usize) -> PyResult<Vec<Told>> {
    of_run(py, path, |run| {
        let (transcript, _) = transcript::read(&run.layout.transcript())?;
        Ok(transcript.records.iter().skip(first).take(most).map(told).collect())
    })
}

/// The losses of all steps, as binary32 in the machine's order.
#[pyfunction]
pub fn losses<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = of_run(py, path, |run| {
        let (transcript, _) = transcript::read(&run.layout.transcript())?;
        let loss = |record: &Record| match record {
            Record::Step { step, .. } => Some(step.loss.to_ne_bytes()),
            Record::Initial { .. } | Record::Final { .. } => None,
        };
        Ok(transcript.records.iter().filter_map(loss).flatten().collect::<Vec<u8>>())
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// Dimensions, strides in elements of the whole tensor, the first element, and where the elements are: a file and a byte in it, or bytes.
type Piece<'py> = ([u32; 4], [u64; 4], u64, Option<(PathBuf, u64)>, Option<Bound<'py, PyBytes>>);

/// Name, shape, and the pieces of a tensor.
type Tensor<'py> = (String, Vec<u32>, Vec<Piece<'py>>);

/// The step, and the tensors of an export of the state after it. The state is the one that the step's record commits.
#[pyfunction]
pub fn tensors<'py>(
    py: Python<'py>,
    path: PathBuf,
    step: Option<u32>,
    own: bool,
) -> PyResult<(u32, Vec<Tensor<'py>>)> {
    let (step, tensors) = of_run(py, path, |run| state_files::exported(run, step, own))?;
    let piece = |part: &Part, elements: Elements| match elements {
        Elements::InFile(file, byte) => (part.dims, part.strides, part.first, Some((file, byte)), None),
        Elements::Here(bytes) => (part.dims, part.strides, part.first, None, Some(PyBytes::new(py, &bytes))),
    };
    let tensor = |(released, elements): (Released, Vec<Elements>)| {
        let pieces = released.parts().iter().zip(elements).map(|(part, elements)| piece(part, elements));
        let pieces = pieces.collect();
        (released.name, released.shape, pieces)
    };
    Ok((step, tensors.into_iter().map(tensor).collect()))
}

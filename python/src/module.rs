//! A pass over a module of PyTorch: tensors come as bytes, and an engine of this process computes the outputs.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tiebreak::cli;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::graph::{Graph, Port, TensorType};
use tiebreak_contract::program::network::{Asked, pass};
use tiebreak_engine::{Compiled, Engine, EngineError};

use crate::panics::detached;
use crate::run::Failed;

/// An engine that several passes share; one of them computes at a time.
type Shared = Arc<Mutex<Box<dyn Engine>>>;

/// The engines that were opened, by kind and threads.
static ENGINES: Mutex<Vec<(String, usize, Shared)>> = Mutex::new(Vec::new());

/// Exit code, message and help.
type Failure = (u8, String, Option<String>);

/// A name, and the dimensions.
type Sizes = (String, Vec<u32>);

/// A graph that an engine has compiled.
#[pyclass(frozen)]
pub struct Pass {
    graph: Arc<Graph>,
    /// The bound of token ids.
    below: u32,
    compiled: Compiled,
    engine: Shared,
}

#[pymethods]
impl Pass {
    /// Compiles the pass of a network file: `outputs` are its nodes, `activations` the parameters that have rows of samples, and
    /// `gradients`, if they are given, the parameters whose gradients are computed in place of outputs.
    #[new]
    fn new(
        py: Python<'_>,
        text: &str,
        outputs: Vec<String>,
        activations: Vec<String>,
        gradients: Option<Vec<String>>,
        engine: (String, usize),
    ) -> PyResult<Pass> {
        let made = detached(py, || {
            let asked =
                Asked { outputs: &outputs, activations: &activations, gradients: gradients.as_deref() };
            let (graph, below) = pass(text, &asked).map_err(|error| (4, error.to_string(), None))?;
            let (graph, engine) = (Arc::new(graph), opened(&engine.0, engine.1)?);
            let compiled = locked(&engine, |engine| engine.compile(graph.clone()))?;
            Ok(Pass { graph, below, compiled, engine })
        })?;
        made.map_err(Failed::new_err::<Failure>)
    }

    /// The inputs, and the outputs, in their order.
    fn ports(&self) -> [Vec<Sizes>; 2] {
        let sizes = |ports: &[Port]| {
            let size = |port: &Port| (port.name.clone(), self.graph.tensor(port.tensor).shape.clone());
            ports.iter().map(size).collect()
        };
        [sizes(&self.graph.inputs), sizes(&self.graph.outputs)]
    }

    /// Computes the outputs of inputs, each as little-endian bytes of its elements.
    fn run<'py>(&self, py: Python<'py>, tensors: Vec<PyBackedBytes>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let outputs = detached(py, || self.outputs(&tensors))?.map_err(Failed::new_err::<Failure>)?;
        Ok(outputs.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }
}

impl Pass {
    fn outputs(&self, tensors: &[PyBackedBytes]) -> Result<Vec<Vec<u8>>, Failure> {
        let ports = &self.graph.inputs;
        if tensors.len() != ports.len() {
            return Err(usage(format!("a pass takes {} tensors, and {} came", ports.len(), tensors.len())));
        }
        let checked = ports.iter().zip(tensors).map(|(port, bytes)| {
            let ty = self.graph.tensor(port.tensor);
            Ok((ty, checked(&port.name, ty, self.below, bytes)?))
        });
        let checked = checked.collect::<Result<Vec<_>, Failure>>()?;
        locked(&self.engine, |engine| {
            let uploaded = checked.iter().map(|(ty, bytes)| engine.upload(ty, bytes));
            let inputs = uploaded.collect::<Result<Vec<_>, EngineError>>()?;
            let outputs = engine.run_owning(&self.compiled, inputs, None)?;
            outputs.iter().map(|output| engine.download(output)).collect()
        })
    }
}

/// The bytes of an input as the contract has them: as many as the tensor has, one NaN, and ids below their bound.
fn checked<'a>(name: &str, ty: &TensorType, below: u32, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, Failure> {
    if bytes.len() != ty.bytes() {
        let (found, shape, due) = (bytes.len(), &ty.shape, ty.bytes());
        return Err(usage(format!("{name} has {found} bytes; {shape:?} has {due}")));
    }
    let words = words_from_bytes(ty.dtype, bytes);
    if ty.dtype == DType::U32 {
        return match words.iter().find(|&&word| word >= below) {
            Some(word) => Err((
                2,
                format!("the inputs hold the id {word}, and the model takes ids below {below}"),
                Some("give ids that the embedding has".into()),
            )),
            None => Ok(Cow::Borrowed(bytes)),
        };
    }
    let canonical = words.iter().map(|&word| float::canonical(f32::from_bits(word))).collect::<Vec<_>>();
    Ok(if canonical == words { Cow::Borrowed(bytes) } else { Cow::Owned(bytes_of(&canonical)) })
}

fn usage(why: String) -> Failure {
    (2, why, None)
}

/// The engine of this kind with so many threads, 0 for one a core.
fn opened(kind: &str, threads: usize) -> Result<Shared, Failure> {
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., engine)) = engines.iter().find(|(name, count, _)| name == kind && *count == threads) {
        return Ok(engine.clone());
    }
    let engine = Arc::new(Mutex::new(cli::engine(kind, threads)?));
    engines.push((kind.into(), threads, engine.clone()));
    Ok(engine)
}

/// Uses an engine alone.
fn locked<R>(
    engine: &Shared,
    work: impl FnOnce(&mut dyn Engine) -> Result<R, EngineError>,
) -> Result<R, Failure> {
    // An engine that panicked in an earlier call may be in any state, so nothing trusts its bits.
    let mut engine = engine.lock().map_err(|_| {
        (3, "the engine failed in an earlier call".to_string(), Some("start Python again".to_string()))
    })?;
    work(&mut **engine).map_err(cli::engine_error)
}

//! Finds the first value of a step that is not finite, in execution order, for the error about a loss that is not finite. Nothing
//! here is committed. A step whose values are finite costs one scalar that is read before the update instead of after it.

use std::collections::HashSet;
use std::fmt;

use serde::Serialize;

use tiebreak_contract::arith::{DType, float, tree};
use tiebreak_contract::program::expr::Instr;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, TensorType};
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::session::{Gradients, Session, StepObserver, StepScalars};
use tiebreak_engine::{EngineError, Inputs, Observer, Want};
use tiebreak_record::commit::record::Record;

/// A step whose loss is not finite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotFinite {
    /// The loss in words: `NaN`, `inf` or `-inf`.
    pub loss: &'static str,
    /// The first value that is not finite, if one was found: it may be that only the mean of the loss overflows.
    pub first: Option<FirstValue>,
    /// The reason why the search did not end, if it did not.
    pub unknown: Option<String>,
}

/// A value that is not finite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstValue {
    /// The tensor.
    #[serde(flatten)]
    pub place: Place,
    /// The tensor's dimensions.
    pub shape: Vec<u32>,
    /// The element's index, in row-major order.
    pub element: u64,
    /// The value in words.
    pub value: &'static str,
}

/// A tensor of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Place {
    /// A tensor of the state before the step, or of the last state.
    State {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor of the data.
    Batch {
        /// The micro-batch, from 0.
        micro_batch: u32,
        /// The tensor's name.
        tensor: String,
        /// The sample's index in the whole batch.
        place: u32,
        /// The data file that the job names, and the sample's number in that file, if somebody looked it up.
        drawn_from: Option<(String, u64)>,
    },
    /// The output of an operator.
    Output {
        /// The phase of the step.
        part: String,
        /// The operator.
        operator: String,
        /// The operator's primitive.
        primitive: String,
    },
}

impl fmt::Display for FirstValue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let FirstValue { place, shape, element, value } = self;
        match place {
            Place::State { tensor } => write!(f, "{tensor} of the state")?,
            Place::Batch { micro_batch, tensor, drawn_from, .. } => {
                write!(f, "the {tensor} of micro-batch {micro_batch}")?;
                if let Some((file, sample)) = drawn_from {
                    write!(f, " (sample {sample} of {file})")?;
                }
            }
            Place::Output { part, operator, primitive } => {
                write!(f, "the output of operator {operator} ({primitive}) in {part}")?;
            }
        }
        write!(f, ", {shape:?}: element {element} is {value}")
    }
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the loss is {}", self.loss)?;
        if let Some(first) = &self.first {
            write!(f, "; the first value that is not finite, in execution order: {first}")?;
            if matches!(first.place, Place::State { .. }) {
                write!(f, ", which the update of the step before made")?;
            }
        }
        self.unknown.iter().try_for_each(|why| write!(f, "; where it begins is not known: {why}"))
    }
}

impl NotFinite {
    /// The finding for a step of which only the loss is known.
    #[doc(hidden)] // for the layers above
    pub fn recorded(loss: &'static str) -> NotFinite {
        NotFinite { loss, first: None, unknown: None }
    }
}

/// The losses in a run's records that are not finite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossesNotFinite {
    /// The first step with such a loss.
    pub first: u32,
    /// The loss of that step in words.
    pub loss: &'static str,
    /// Steps with such a loss.
    pub count: u32,
    /// The number of recorded steps from the first such step on.
    pub of: u32,
}

impl fmt::Display for LossesNotFinite {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let LossesNotFinite { first, loss, count, of } = self;
        match count == of {
            true => write!(f, "the loss is {loss} at step {first}, and not finite since then"),
            false => write!(
                f,
                "the loss is {loss} at step {first}, and not finite in {count} of {of} steps since then"
            ),
        }
    }
}

/// The losses in these records that are not finite, if there are any.
pub fn of_records(records: &[Record]) -> Option<LossesNotFinite> {
    let mut found: Option<LossesNotFinite> = None;
    for record in records {
        let Record::Step { step, .. } = record else { continue };
        let is_finite = float::is_finite(step.loss);
        if let Some(found) = &mut found {
            found.of += 1;
            found.count += u32::from(!is_finite);
        } else if !is_finite {
            found = Some(LossesNotFinite { first: step.step, loss: in_words(step.loss), count: 1, of: 1 });
        }
    }
    found
}

/// The first value that is not finite among these tensors, each with its name, shape and canonical bytes.
pub fn of_tensors<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a [u32], &'a [u8])>,
) -> Option<FirstValue> {
    tensors.into_iter().find_map(|(name, shape, bytes)| {
        let place = || Place::State { tensor: name.to_string() };
        first_in(bytes, |_| true).map(|found| value(place(), shape, found))
    })
}

/// The word for a pattern that is not a finite number.
pub fn in_words(word: u32) -> &'static str {
    match word {
        float::INFINITY => "inf",
        float::NEG_INFINITY => "-inf",
        _ => "NaN",
    }
}

/// An element's index, and its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    element: u64,
    word: u32,
}

/// The first of these canonical binary32 elements that is not finite and that `counts` accepts.
fn first_in(bytes: &[u8], counts: impl Fn(u32) -> bool) -> Option<Element> {
    let words = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let mut elements = (0..).zip(words).map(|(element, word)| Element { element, word });
    elements.find(|found| !float::is_finite(found.word) && counts(found.word))
}

fn value(place: Place, shape: &[u32], found: Element) -> FirstValue {
    FirstValue { place, shape: shape.to_vec(), element: found.element, value: in_words(found.word) }
}

/// Looks for the first value of a step that is not finite if the loss in the summed gradient is not: the state is still the one
/// before the step. `waiting` is called again and again during a long search.
///
/// # Errors
/// If the engine cannot read the loss.
pub fn of_step(
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    total: &Gradients,
    waiting: &mut (dyn FnMut() + Send),
) -> Result<Option<NotFinite>, EngineError> {
    let loss = session.loss(total)?;
    if float::is_finite(loss) {
        return Ok(None);
    }
    let searched = search(session, scalars, batch, waiting);
    let unknown = searched.as_ref().err().map(ToString::to_string);
    Ok(Some(NotFinite { loss: in_words(loss), first: searched.unwrap_or(None), unknown }))
}

/// The first value of the parameters and buffers on a session that is not finite.
///
/// # Errors
/// If the engine cannot read the state.
pub fn of_state(session: &mut Session) -> Result<Option<FirstValue>, EngineError> {
    let program = session.program().clone();
    let table = program.state();
    let mut first = None;
    session.visit_state(|i, bytes| {
        if first.is_none() && i < program.released() {
            first = of_tensors([(table[i].name.as_str(), &table[i].shape[..], bytes)]);
        }
    })?;
    Ok(first)
}

fn search(
    session: &mut Session,
    scalars: StepScalars,
    batch: &[MicroBatch],
    waiting: &mut (dyn FnMut() + Send),
) -> Result<Option<FirstValue>, EngineError> {
    if let Some(first) = of_state(session)? {
        return Ok(Some(first));
    }
    let program = session.program().clone();
    let mut finder = Finder {
        batch,
        tensors: &program.batch,
        samples: program.micro_batch,
        phase: Phase::Micro(0),
        types: Vec::new(),
        masked: HashSet::new(),
        first: None,
        waiting,
    };
    let mut sums: Vec<Gradients> = Vec::new();
    for operation in tree::operations(batch.len() as u32) {
        let sum = match operation {
            tree::Operation::Term(i) => session.micro_batch(scalars, i, &batch[i as usize], &mut finder)?,
            tree::Operation::Add(i) => {
                let right = sums.pop().expect("an addition has two operands");
                let left = sums.pop().expect("an addition has two operands");
                session.accumulate(i, left, right, &mut finder)?
            }
        };
        // Stops the computation after the first value.
        if finder.first.is_some() {
            break;
        }
        sums.push(sum);
    }
    Ok(finder.first)
}

/// Observes a step until a value is not finite.
struct Finder<'a> {
    batch: &'a [MicroBatch],
    tensors: &'a [BatchTensor],
    /// The number of samples of a micro-batch.
    samples: u32,
    phase: Phase,
    /// The types of the outputs of the running graph's nodes.
    types: Vec<TensorType>,
    /// Tensors in which minus infinity means "not this one": attention and pooling write it.
    masked: HashSet<TensorId>,
    first: Option<FirstValue>,
    waiting: &'a mut (dyn FnMut() + Send),
}

impl Finder<'_> {
    /// Examines the data of a micro-batch.
    fn look_at_batch(&mut self, index: u32) {
        let tensors = self.tensors.iter().zip(&self.batch[index as usize].tensors);
        for (tensor, bytes) in tensors.filter(|(tensor, _)| tensor.dtype == DType::F32) {
            let Some(found) = first_in(bytes, |_| true).filter(|_| self.first.is_none()) else { continue };
            let of_sample = (tensor.ty().len() as u64 / u64::from(self.samples)).max(1);
            let place = index * self.samples + (found.element / of_sample) as u32;
            let (tensor, shape) = (tensor.name.clone(), &tensor.shape);
            let place = Place::Batch { micro_batch: index, tensor, place, drawn_from: None };
            self.first = Some(value(place, shape, found));
        }
    }

    fn part(&self) -> String {
        match self.phase {
            Phase::Micro(i) => format!("micro-batch {i}"),
            Phase::Accumulate(i) => format!("addition {i} of micro-batches"),
            Phase::Update => "the update".into(),
        }
    }
}

impl StepObserver for Finder<'_> {
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        self.phase = phase;
        if let Phase::Micro(index) = phase {
            self.look_at_batch(index);
        }
        if self.first.is_some() {
            return None;
        }
        self.types = graph.nodes.iter().map(|node| graph.tensor(node.output).clone()).collect();
        self.masked.clear();
        Some(self)
    }
}

impl Observer for Finder<'_> {
    fn want(&self, index: usize, _: &Node) -> Want {
        if self.types[index].dtype == DType::F32 { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        (self.waiting)();
        if self.first.is_some() {
            return Ok(None);
        }
        let masks = masks(&node.primitive) || node.primitive.inputs().iter().any(|t| self.masked.contains(t));
        let counts = |word| word != float::NEG_INFINITY || !masks;
        if let Some(found) = first_in(bytes, counts) {
            let (operator, primitive) = (node.operator.clone(), node.primitive.name().to_string());
            let place = Place::Output { part: self.part(), operator, primitive };
            self.first = Some(value(place, &self.types[index].shape, found));
        } else if first_in(bytes, |_| true).is_some() {
            self.masked.insert(node.output);
        }
        Ok(None)
    }
}

/// True if an elementwise operator gives minus infinity by design.
fn masks(primitive: &Primitive) -> bool {
    matches!(primitive, Primitive::Map { body, .. } if body.code.contains(&Instr::Const(float::NEG_INFINITY)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::words::bytes_of;

    #[test]
    fn patterns_that_are_not_finite_are_told_from_large_ones() {
        let large = [f32::MAX, f32::MIN, 0.0, -0.0, 1e-45].map(f32::to_bits);
        assert!(large.iter().all(|&word| float::is_finite(word)));
        let words = [f32::INFINITY.to_bits(), f32::NEG_INFINITY.to_bits(), float::NAN, 0x7f80_0001];
        assert_eq!(words.map(in_words), ["inf", "-inf", "NaN", "NaN"]);
        let bytes = bytes_of(&[large[0], words[1], words[2]]);
        assert_eq!(first_in(&bytes, |_| true), Some(Element { element: 1, word: words[1] }));
        let other = first_in(&bytes, |word| word != float::NEG_INFINITY);
        assert_eq!(other, Some(Element { element: 2, word: words[2] }));
    }
}

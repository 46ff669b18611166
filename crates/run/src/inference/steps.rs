//! Steps of a language model on an engine: new tokens of several texts over their caches, and caches that move to other seats.

use std::collections::BTreeMap;
use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::inference::{
    Writer, caches, inference_step, moved_caches, moved_places, places,
};
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_engine::{Compiled, Engine, EngineError, Tensor};

use super::kept::{Kept, Rest};

/// The most tokens of a step that reads a prompt.
const CHUNK: u32 = 32;

/// A model with its weights on an engine, and the graphs that were compiled so far.
pub(super) struct Steps<'a> {
    engine: &'a mut dyn Engine,
    model: Writer<'a>,
    weights: Kept,
    /// The types of one text's caches.
    types: Vec<TensorType>,
    /// Positions of the context.
    context: u32,
    /// Steps, by the number of texts and of each text's new tokens.
    steps: BTreeMap<[u32; 2], Rest>,
    /// Moves, by the number of seats before and behind, and whether a text joins.
    moves: BTreeMap<([u32; 2], bool), Compiled>,
}

/// Tokens of a step that reads a prompt of this model.
fn chunk(model: Writer) -> u32 {
    CHUNK.min(model.context())
}

/// Bytes of the tensors that live at once in the steps of so many texts, the parameters included; 0 if the model is no decoder.
pub(super) fn memory(model: Writer, texts: u32) -> u64 {
    let peak = |shape| inference_step(model, shape).as_ref().map_or(0, peak_bytes);
    let one: u64 = caches(model, 1).unwrap_or_default().iter().map(|(_, ty)| ty.bytes() as u64).sum();
    // A text that is being read has caches of its own beside those of the batch.
    peak([texts, 1]).max(peak([1, chunk(model)]) + u64::from(texts) * one) + one
}

impl<'a> Steps<'a> {
    /// `None` if the model is no decoder. Steps of one text, and of `texts`, are compiled now, so that a device which cannot run them
    /// says so before anybody waits.
    pub fn new(
        engine: &'a mut dyn Engine,
        model: Writer<'a>,
        parameters: Vec<Tensor>,
        texts: u32,
    ) -> Result<Option<Self>, EngineError> {
        let Some(types) = caches(model, 1) else { return Ok(None) };
        let types = types.into_iter().map(|(_, ty)| ty).collect();
        let (context, steps, moves) = (model.context(), BTreeMap::new(), BTreeMap::new());
        let shaped = |shape: &[u32]| TensorType { dtype: DType::F32, shape: shape.to_vec() };
        let weights = Kept::new(model.parameters().iter().map(|p| shaped(&p.shape)).collect(), parameters);
        let mut made = Self { engine, model, weights, types, context, steps, moves };
        for shape in [[1, 1], [1, chunk(model)], [texts, 1]] {
            made.divide(shape)?;
        }
        made.weights.make(made.engine, made.steps.values())?;
        Ok(Some(made))
    }

    /// Positions of the context.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Tokens of a step that reads a prompt.
    pub fn chunk(&self) -> usize {
        chunk(self.model) as usize
    }

    fn divide(&mut self, shape: [u32; 2]) -> Result<(), EngineError> {
        if !self.steps.contains_key(&shape) {
            let graph = inference_step(self.model, shape).expect("the model is a decoder");
            self.steps.insert(shape, self.weights.divide(self.engine, graph)?);
        }
        Ok(())
    }

    fn prepare(&mut self, shape: [u32; 2]) -> Result<(), EngineError> {
        if !self.steps.contains_key(&shape) {
            self.divide(shape)?;
            self.weights.make(self.engine, self.steps.values())?;
        }
        Ok(())
    }

    /// Empty caches of so many texts.
    pub fn empty(&mut self, texts: usize) -> Result<Vec<Tensor>, EngineError> {
        let types = self.types.iter().map(|ty| {
            let shape = vec![ty.shape[0] * texts as u32, ty.shape[1]];
            TensorType { dtype: ty.dtype, shape }
        });
        types.map(|ty| self.engine.upload(&ty, &vec![0; ty.bytes()])).collect()
    }

    /// Reads new tokens of each text, as many of one as of another, from these positions on. Returns the logits behind the last token
    /// of each text, [V] words, and the caches with the new positions.
    pub fn step(
        &mut self,
        starts: &[u32],
        tokens: &[u32],
        caches: Vec<Tensor>,
    ) -> Result<(Vec<Vec<u32>>, Vec<Tensor>), EngineError> {
        let (texts, new) = (starts.len() as u32, (tokens.len() / starts.len()) as u32);
        self.prepare([texts, new])?;
        let [positions, rows] = places(starts, new, self.context).expect("windows are within the context");
        let step = &self.steps[&[texts, new]];
        let mut inputs = self.weights.inputs(self.engine, step)?;
        for list in [tokens, &positions, &rows] {
            inputs.push(upload(self.engine, list)?);
        }
        inputs.extend(caches);
        let mut outputs = self.engine.run_owning(&step.compiled, inputs, None)?;
        let caches = outputs.split_off(1);
        let logits = words_from_bytes(DType::F32, &self.engine.download(&outputs[0])?);
        let row = logits.len() / tokens.len();
        let last = logits.chunks_exact(row * new as usize).map(|rows| rows[rows.len() - row..].to_vec());
        Ok((last.collect(), caches))
    }

    /// The caches of a batch whose seat i has those of seat `from[i]` of the batch before. A text that joins brings its caches, and
    /// takes the seat of this number.
    pub fn moved(
        &mut self,
        before: usize,
        from: &[u32],
        caches: Vec<Tensor>,
        joins: Option<(u32, Vec<Tensor>)>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let sizes = [before as u32, from.len() as u32];
        let key = (sizes, joins.is_some());
        if !self.moves.contains_key(&key) {
            let graph: Graph =
                moved_caches(self.model, sizes, joins.is_some()).expect("the model is a decoder");
            self.moves.insert(key, self.engine.compile(Arc::new(graph))?);
        }
        let mut inputs = vec![upload(self.engine, &moved_places(from, self.context))?];
        let (seat, joining) = joins.unzip();
        if let Some(seat) = seat {
            inputs.push(upload(self.engine, &[seat])?);
        }
        inputs.extend(caches);
        inputs.extend(joining.into_iter().flatten());
        self.engine.run_owning(&self.moves[&key], inputs, None)
    }
}

fn upload(engine: &mut dyn Engine, list: &[u32]) -> Result<Tensor, EngineError> {
    let ty = TensorType { dtype: DType::U32, shape: vec![list.len() as u32] };
    engine.upload(&ty, &bytes_of(list))
}

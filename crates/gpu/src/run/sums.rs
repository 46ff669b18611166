//! Exact sums of a product, which a device hands out for a test of it on the host.

use super::engine::GpuEngine;
use super::executable::scratch;
use super::memory::{Storage, computed};
use crate::device::{Device, Dispatch};
use crate::plan;
use crate::plan::unit::Slot;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::Graph;
use tiebreak_engine::{EngineError, Tensor};

/// Dispatches of one submission.
const BATCH: usize = 128;

impl<D: Device> GpuEngine<D> {
    /// The lowest `words` words of the exact sums of the product at `index`, each with the product's shape, from the operands that
    /// the product read. `None` if shaders do not compute this product here.
    pub(super) fn sums_of(
        &mut self,
        graph: &Graph,
        index: usize,
        words: u8,
        values: &[Option<Tensor>],
    ) -> Result<Option<Vec<Vec<u32>>>, EngineError> {
        let mut sums = Vec::new();
        for word in 0..words {
            let Some(sum) = self.sum_word(graph, index, word, values)? else { return Ok(None) };
            sums.push(sum);
        }
        Ok(Some(sums))
    }

    fn sum_word(
        &mut self,
        graph: &Graph,
        index: usize,
        word: u8,
        values: &[Option<Tensor>],
    ) -> Result<Option<Vec<u32>>, EngineError> {
        let Some(candidate) = plan::sums(graph, &self.target(), index, word) else { return Ok(None) };
        let mut data = Vec::new();
        let Some(unit) = self.unit(&candidate, &mut data)? else { return Ok(None) };
        self.device.check()?;
        // The same products recur with every micro-batch.
        self.keep_uniforms(&data)?;
        let take = |bytes: u64| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
        let units = [unit];
        let scratch = scratch(&units).into_iter().map(take).collect::<Result<Vec<_>, _>>()?;
        let [unit] = units;
        let sums = self.blank_of(graph, graph.nodes[index].output)?;
        let uniforms = self.kept(&data);
        let memory = |slot: &Slot| match *slot {
            Slot::Tensor { number, piece } if number == unit.reads.len() => sums.pieces[piece].memory(),
            Slot::Tensor { number, piece } => {
                computed(values, unit.reads[number]).storage::<Storage<D::Memory>>().pieces[piece].memory()
            }
            Slot::Scratch(number) => scratch[number].memory(),
        };
        let dispatches = unit.dispatches.iter().map(|(ready, buffers)| Dispatch {
            pipeline: &ready.pipeline,
            uniform: (uniforms, ready.uniform.0, ready.uniform.1),
            buffers: buffers.iter().map(|(slot, bytes)| (memory(slot), *bytes)).collect(),
            groups: ready.groups,
        });
        let dispatches: Vec<Dispatch<D>> = dispatches.collect();
        dispatches.chunks(BATCH).try_for_each(|batch| self.device.submit(batch))?;
        let mut words = Vec::with_capacity(sums.ty.len());
        self.show_pieces(&sums, &mut |bytes| words.extend(words_from_bytes(DType::U32, bytes)))?;
        Ok(Some(words))
    }
}

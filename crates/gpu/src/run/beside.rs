//! Summaries of nodes, computed where the nodes' tensors are. The host copies and reads their values while the device continues,
//! if the device can do both. The graph alone decides which memory is kept for that, and for how long. So a step finds the same
//! memory free as the step before.

use std::collections::VecDeque;

use super::engine::{GpuEngine, Ready};
use super::memory::{Shown, Storage};
use super::pool::Buffer;
use crate::device::{Device, Dispatch, layout};
use crate::logged::Trial;
use crate::plan::beside::{Beside, Launch, Part, Reading};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_engine::{EngineError, Observer, Tensor, Value};

/// Bytes of tensors that summaries may keep alive before their values are read.
const HELD_MAX: u64 = 512 << 20;
/// Summaries by which a device that copies beside its work may be ahead of the host.
const AHEAD_MAX: usize = 4;

/// A tensor that a summary reads, kept for it.
struct Held {
    id: TensorId,
    tensor: Tensor,
}

/// The memory of a summary.
struct Taken<'t, M> {
    held: &'t [Held],
    /// The output of the node that the summary computes.
    computed: Option<&'t Storage<M>>,
    /// The kernels' own memory, and its bytes.
    own: &'t [Buffer<M>],
    bytes: &'t [u64],
}

impl<'t, M: Send + Sync + 'static> Taken<'t, M> {
    /// A part of the memory, with the bytes that a kernel accesses. For a tensor, `layout` gives the bytes.
    fn part(&self, part: Part, layout: impl Fn(&Storage<M>) -> u64) -> (&'t M, u64) {
        let whole = |storage: &'t Storage<M>| (storage.whole(), layout(storage));
        match part {
            Part::Read(number) => whole(self.held[number].tensor.storage()),
            Part::Own(number) => (self.own[number].memory(), self.bytes[number]),
            Part::Computed => whole(self.computed.expect("a summary that computes a node has its output")),
        }
    }
}

/// A summary that was started.
struct Started<D: Device> {
    index: usize,
    /// The copy of the values that are read first; `None` if they are read on demand. The field comes before the memory that the
    /// copy reads, so that it is dropped first: nobody else may have the memory before the copy has ended.
    copying: Option<D::Copying>,
    first: Vec<Part>,
    reading: Box<dyn Reading>,
    /// The node's output and the other inputs of the kernels, in case the observer needs all of it.
    held: Vec<Held>,
    held_bytes: u64,
    own: Vec<Buffer<D::Memory>>,
    bytes: Vec<u64>,
}

/// Summaries of a graph's nodes that are in progress, in order.
pub(crate) struct Underway<D: Device> {
    started: VecDeque<Started<D>>,
    held: u64,
}

impl<D: Device> Default for Underway<D> {
    fn default() -> Underway<D> {
        Underway { started: VecDeque::new(), held: 0 }
    }
}

impl<D: Device> Underway<D> {
    /// The next summary to be finished, if enough are in progress. If each summary waits for the whole device, all are finished
    /// together.
    fn due(&mut self, all: &mut bool) -> Option<Started<D>> {
        let first = self.started.front()?;
        let many = first.copying.is_some() && self.started.len() > AHEAD_MAX;
        if !(*all || many || self.held > HELD_MAX) {
            return None;
        }
        *all |= first.copying.is_none();
        self.held -= first.held_bytes;
        self.started.pop_front()
    }
}

impl<D: Device> GpuEngine<D> {
    /// Bytes of a whole tensor.
    fn whole_bytes(&self, storage: &Storage<D::Memory>) -> u64 {
        layout::bytes(&storage.ty, self.variant)
    }

    /// Starts to compute a summary of the output of node `index`, if the device has its kernels; all inputs of the node still
    /// exist.
    pub(super) fn start_beside(
        &mut self,
        graph: &Graph,
        index: usize,
        beside: Beside,
        values: &mut [Option<Tensor>],
        underway: &mut Underway<D>,
    ) -> Result<bool, EngineError> {
        let Beside { reads, memory: bytes, computes, launches, first, reading } = beside;
        let tensor =
            |id: TensorId| values[id.0 as usize].clone().expect("a node's inputs are there after it");
        let held: Vec<Held> = reads.into_iter().map(|id| Held { id, tensor: tensor(id) }).collect();
        if held.iter().any(|held| held.tensor.storage::<Storage<D::Memory>>().pieces.len() > 1) {
            return Ok(false); // a summary's kernels access whole tensors
        }
        let mut data = Vec::new();
        let Some(kernels) = self.kernels_beside(&launches, &mut data)? else { return Ok(false) };
        // The same nodes recur with every micro-batch.
        self.keep_uniforms(&data)?;
        let take = |bytes: &u64| self.pool.take(*bytes, false, |bytes| self.device.allocate(bytes));
        let own = bytes.iter().map(take).collect::<Result<Vec<_>, _>>()?;
        let computed = computes.map(|node| graph.nodes[node].output);
        let storage = computed.map(|id| self.blank_of(graph, id)).transpose()?;
        let taken = Taken { held: &held, computed: storage.as_ref(), own: &own, bytes: &bytes };
        let part = |part: &Part| taken.part(*part, |storage| self.whole_bytes(storage));
        let uniforms = self.kept(&data);
        let dispatches = kernels.iter().zip(&launches).map(|(ready, launch)| {
            let (offset, bytes) = ready.uniform;
            Dispatch {
                pipeline: &ready.pipeline,
                uniform: (uniforms, offset, bytes),
                buffers: launch.parts.iter().map(part).collect(),
                groups: ready.groups,
            }
        });
        self.device.submit(&dispatches.collect::<Vec<_>>())?;
        let copying = self.device.begin_read(&first.iter().map(part).collect::<Vec<_>>())?;
        let held_bytes = held.iter().map(|held| self.whole_bytes(held.tensor.storage())).sum();
        underway.held += held_bytes;
        if let (Some(id), Some(storage)) = (computed, storage) {
            values[id.0 as usize] = Some(Tensor::new(storage));
            self.computed_beside += 1;
        }
        let started = Started { index, copying, first, reading, held, held_bytes, own, bytes };
        underway.started.push_back(started);
        Ok(true)
    }

    /// The prepared kernels of a summary, one dispatch each; `None` if the device has no such kernels.
    fn kernels_beside(
        &mut self,
        launches: &[Launch],
        data: &mut Vec<u8>,
    ) -> Result<Option<Vec<Ready<D::Pipeline>>>, EngineError> {
        let mut made = Vec::new();
        for launch in launches {
            let Some(ready) = self.ready(&launch.kernel, data)? else { return Ok(None) };
            made.extend(ready);
        }
        Ok(Some(made))
    }

    /// Gives the observer the values of summaries: the first ones, if many are in progress or they hold much memory, or `all`.
    pub(super) fn finish_beside(
        &mut self,
        graph: &Graph,
        underway: &mut Underway<D>,
        mut all: bool,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        while let Some(mut started) = underway.due(&mut all) {
            let node = &graph.nodes[started.index];
            if let Some(value) = self.value_of(&mut started)? {
                observer.summary(started.index, node, value)?;
                continue;
            }
            // There was no room for the whole result, so the observer gets the tensors themselves.
            let mut values = vec![None; graph.tensors.len()];
            let output = started.held[0].tensor.clone();
            for Held { id, tensor } in started.held {
                values[id.0 as usize] = Some(tensor);
            }
            let mut shown = Ok(None);
            let mut inputs = Shown { engine: self, values: &values };
            self.show(output.storage(), &mut |bytes| {
                shown = observer.node(started.index, node, bytes, &mut inputs);
            })?;
            if shown?.is_some() {
                let reason = format!("{}: an observer changed what it asked a summary of", node.operator);
                return Err(self.fault(reason));
            }
        }
        Ok(())
    }

    /// The value of a summary; `None` if there was no room for the whole result.
    fn value_of(&self, started: &mut Started<D>) -> Result<Option<Value>, EngineError> {
        let copying = started.copying.take();
        let Started { first, reading, held, own, bytes, .. } = started;
        let words = |into: &mut Vec<u32>, bytes: &[u8]| into.extend(words_from_bytes(DType::U32, bytes));
        let (mut there, mut rest) = (Vec::new(), Vec::new());
        match copying {
            Some(copying) => self.device.end_read(copying, &mut |bytes| words(&mut there, bytes))?,
            None => {
                let taken = Taken { held, computed: None, own, bytes };
                for part in first.iter() {
                    let (memory, bytes) = taken.part(*part, |storage| self.whole_bytes(storage));
                    self.device.read(memory, bytes, &mut |bytes| words(&mut there, bytes))?;
                }
            }
        }
        let Some(wanted) = reading.rest(&there) else { return Ok(None) };
        if wanted.bytes != 0 {
            // The end of the copy shows that the kernels have ended.
            let memory = own[wanted.memory].memory();
            self.device.read_beside(memory, wanted.bytes, &mut |bytes| words(&mut rest, bytes))?;
        }
        Ok(Some(reading.value(there, rest)))
    }

    /// Compares a summary's result for a node with the result of the node's own kernel, if the device has both and has not passed
    /// this trial before.
    ///
    /// # Errors
    /// If the results differ.
    pub(super) fn check_beside(&mut self, trial: Trial) -> Result<(), EngineError> {
        if self.device.make(&trial.kernel())?.is_none() || !self.tried.insert(trial) {
            return Ok(());
        }
        let (summarises, computed) = (std::mem::replace(&mut self.summarises, true), self.computed_beside);
        let passed = trial.is_passed(self);
        (self.summarises, self.computed_beside) = (summarises, computed);
        if matches!(passed, Ok(true)) {
            return Ok(());
        }
        self.tried.remove(&trial);
        passed.and(Err(self.untrusted(Trial::FAILED)))
    }
}

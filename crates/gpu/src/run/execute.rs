//! Compiles and runs graphs. Recorded dispatches are submitted many at once, or before somebody reads a tensor.

use std::any::Any;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

use super::beside::Underway;
use super::engine::GpuEngine;
use super::executable::{Executable, Unit, schedule, scratch};
use super::memory::{Shown, Storage, computed};
use super::pool::Buffer;
use crate::device::{Device, Dispatch};
use crate::logged::Logged;
use crate::plan;
use crate::plan::unit::{Candidate, Slot};
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId, TensorType};
use tiebreak_engine::device_check::{ExactSums, Sums};
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor, Value, Want};

/// Dispatches of one submission.
const BATCH: usize = 128;

/// Batch tensors on the host.
struct HostWords<'a, M>(&'a [Option<Tensor>], PhantomData<M>);

impl<M: Send + Sync + 'static> Source for HostWords<'_, M> {
    type Error = std::convert::Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Self::Error> {
        let storage = computed(self.0, tensor).storage::<Storage<M>>();
        Ok(storage.host.as_ref().expect("groupings read batch tensors only")[index])
    }
}

/// A run in progress.
struct Execution<'a, D: Device> {
    graph: &'a Graph,
    executable: &'a Executable<D>,
    /// The tensors that exist so far.
    values: Vec<Option<Tensor>>,
    /// Memory beside the tensors. Launches run one after another, so all can use the same memory.
    scratch: Vec<Buffer<D::Memory>>,
    /// The units that were not submitted yet, with the tensors that they touch, which are kept until then.
    recorded: Vec<(&'a Unit<D::Pipeline>, Vec<Tensor>)>,
    /// Nodes that run by themselves.
    alone: HashSet<usize>,
    underway: Underway<D>,
}

impl<D: Device> Engine for GpuEngine<D> {
    fn describe(&self) -> String {
        format!("{}: {}, {:?} products", D::API, self.device.name(), self.variant)
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        self.check_size("an input", ty)?;
        Ok(Tensor::new(self.upload_words(ty, bytes, true)?))
    }

    fn roots(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        if self.hashes { self.roots_of(tensors) } else { Ok(None) }
    }

    fn roots_later(&mut self, tensors: &[Tensor]) -> Result<Option<Tensor>, EngineError> {
        if self.hashes { self.roots_unread(tensors) } else { Ok(None) }
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        self.show(tensor.storage(), visit)
    }

    fn read_each(
        &mut self,
        tensors: &[Tensor],
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        self.show_each(tensors, visit)
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        self.device.finish()
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        let candidates = plan::candidates(&graph, &self.target());
        let mut data = Vec::new();
        let units = self.units(&graph, &candidates, &mut data)?;
        self.device.check()?;
        let uniforms = self.device.uniforms(&data)?;
        let logged = Logged::of(&graph);
        if let Some(trial) = logged.trial(&graph) {
            self.check_beside(trial)?;
        }
        let scratch = scratch(&units);
        Ok(Compiled::new(graph, Executable::<D> { units, logged, uniforms, scratch }))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph: &Graph = &compiled.graph;
        let executable = compiled.of::<Executable<D>>();
        let schedule = schedule(&executable.units, graph, observer.as_deref());
        let mut run = self.begin(graph, executable, inputs)?;
        if executable.logged.computes() {
            let alone = schedule.iter().filter(|(unit, _)| !unit.is_fused());
            run.alone = alone.map(|(unit, _)| unit.at).collect();
        }
        let end = schedule.len();
        for (number, (unit, dying)) in (1..).zip(schedule) {
            self.record(&mut run, unit)?;
            let wanted = self.is_wanted(graph, unit, observer.as_deref())?;
            if wanted || run.recorded.len() >= BATCH || number == end {
                self.submit(&mut run)?;
            }
            if let Some(observer) = observer.as_deref_mut() {
                if wanted {
                    self.answer(&mut run, unit.at, observer)?;
                }
                self.finish_beside(graph, &mut run.underway, number == end, observer)?;
            }
            for id in dying {
                run.values[id.0 as usize] = None;
            }
        }
        let outputs = graph.outputs.iter().map(|port| computed(&run.values, port.tensor).clone()).collect();
        self.pool.trim();
        Ok(outputs)
    }
}

impl<D: Device> GpuEngine<D> {
    /// Has the device make candidates' kernels, for the same nodes those of the first candidate that it can make. The uniform
    /// data is appended to `data`.
    ///
    /// # Errors
    /// If the device fails, or can make no kernel for a node.
    fn units(
        &mut self,
        graph: &Graph,
        candidates: &[Candidate],
        data: &mut Vec<u8>,
    ) -> Result<Vec<Unit<D::Pipeline>>, EngineError> {
        let mut made: Vec<Option<Unit<D::Pipeline>>> = candidates.iter().map(|_| None).collect();
        let mut nodes: HashSet<&[usize]> = HashSet::new();
        // The device's own kernels come first, so that no shader is compiled where there is one.
        for (candidate, place) in candidates.iter().zip(&mut made) {
            if !candidate.has_shaders() && !nodes.contains(&candidate.nodes[..]) {
                *place = self.unit(candidate, data)?;
                nodes.extend(place.is_some().then_some(&candidate.nodes[..]));
            }
        }
        let left = |candidate: &Candidate| candidate.has_shaders() && !nodes.contains(&candidate.nodes[..]);
        let shaders: Vec<&Candidate> = candidates.iter().filter(|candidate| left(candidate)).collect();
        let mut runs = vec![false; graph.nodes.len()];
        shaders.iter().map(|candidate| &candidate.nodes[..]).chain(nodes.iter().copied()).for_each(|nodes| {
            if let [node] = nodes {
                runs[*node] = true;
            }
        });
        if let Some(index) = runs.iter().position(|runs| !runs) {
            let reason = plan::refusal(graph, &self.target(), index);
            let none = || format!("{}: there is no kernel for it", graph.nodes[index].operator);
            return Err(self.unsupported(reason.unwrap_or_else(none)));
        }
        let kernels = shaders.iter().flat_map(|candidate| &candidate.launches).map(|launch| &launch.kernel);
        self.device.make_all(&kernels.collect::<Vec<_>>())?;
        for (candidate, place) in candidates.iter().zip(&mut made).filter(|(candidate, _)| left(candidate)) {
            *place = self.unit(candidate, data)?;
        }
        Ok(made.into_iter().flatten().collect())
    }

    /// A candidate with its kernels made; `None` if the device lacks one of them.
    pub(super) fn unit(
        &mut self,
        candidate: &Candidate,
        data: &mut Vec<u8>,
    ) -> Result<Option<Unit<D::Pipeline>>, EngineError> {
        let mut dispatches = Vec::new();
        for launch in &candidate.launches {
            let Some(ready) = self.ready(&launch.kernel, data)? else { return Ok(None) };
            dispatches.extend(ready.into_iter().map(|ready| (ready, launch.buffers.clone())));
        }
        let Candidate { nodes, at, reads, writes, .. } = candidate.clone();
        Ok(Some(Unit { nodes, at, reads, writes, dispatches }))
    }

    fn begin<'a>(
        &self,
        graph: &'a Graph,
        executable: &'a Executable<D>,
        inputs: &[Tensor],
    ) -> Result<Execution<'a, D>, EngineError> {
        let mut values: Vec<Option<Tensor>> = vec![None; graph.tensors.len()];
        for (port, tensor) in graph.inputs.iter().zip(inputs) {
            values[port.tensor.0 as usize] = Some(tensor.clone());
        }
        let take = |bytes| self.pool.take(bytes, false, |bytes| self.device.allocate(bytes));
        let scratch = executable.scratch.iter().map(|bytes| take(*bytes)).collect::<Result<Vec<_>, _>>()?;
        let (recorded, alone, underway) = (Vec::new(), HashSet::new(), Underway::default());
        Ok(Execution { graph, executable, values, scratch, recorded, alone, underway })
    }

    /// True if an observer wants the node in whose place a unit runs.
    fn is_wanted(
        &self,
        graph: &Graph,
        unit: &Unit<D::Pipeline>,
        observer: Option<&dyn Observer>,
    ) -> Result<bool, EngineError> {
        let wants = |index: usize| observer.is_some_and(|o| o.want(index, &graph.nodes[index]).is_any());
        if unit.is_fused() && unit.nodes.iter().any(|&index| wants(index)) {
            let operator = &graph.nodes[unit.at].operator;
            return Err(self.fault(format!("{operator}: an observer changed its mind")));
        }
        Ok(wants(unit.at))
    }

    /// Allocates a unit's outputs and records its dispatches, or computes a grouping on the host.
    fn record<'a>(&self, run: &mut Execution<'a, D>, unit: &'a Unit<D::Pipeline>) -> Result<(), EngineError> {
        let (graph, values) = (run.graph, &mut run.values);
        let node = &graph.nodes[unit.at];
        if values[node.output.0 as usize].is_some() {
            return Ok(()); // computed beside another node
        }
        if matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. }) {
            let ty = graph.tensor(node.output);
            let Ok(words) =
                element::range(graph, node, 0..ty.len(), &mut HostWords::<D::Memory>(values, PhantomData));
            let bytes = bytes_from_words(ty.dtype, &words);
            // The bytes are written before the submission that reads them: the recorded dispatches do not touch this buffer.
            values[node.output.0 as usize] = Some(Tensor::new(self.upload_words(ty, &bytes, false)?));
            return Ok(());
        }
        for id in &unit.writes {
            values[id.0 as usize] = Some(Tensor::new(self.blank_of(graph, *id)?));
        }
        if !unit.dispatches.is_empty() {
            let touched = unit.reads.iter().chain(&unit.writes);
            run.recorded.push((unit, touched.map(|id| computed(values, *id).clone()).collect()));
        }
        Ok(())
    }

    fn submit(&self, run: &mut Execution<D>) -> Result<(), EngineError> {
        let recorded = std::mem::take(&mut run.recorded);
        let mut dispatches: Vec<Dispatch<D>> = Vec::new();
        for (unit, tensors) in &recorded {
            let memory = |slot: &Slot| match *slot {
                Slot::Tensor { number, piece } => {
                    tensors[number].storage::<Storage<D::Memory>>().pieces[piece].memory()
                }
                Slot::Scratch(number) => run.scratch[number].memory(),
            };
            dispatches.extend(unit.dispatches.iter().map(|(ready, buffers)| Dispatch {
                pipeline: &ready.pipeline,
                uniform: (&run.executable.uniforms, ready.uniform.0, ready.uniform.1),
                buffers: buffers.iter().map(|(slot, bytes)| (memory(slot), *bytes)).collect(),
                groups: ready.groups,
            }));
        }
        self.device.announce(&mut recorded.iter().flat_map(|(unit, _)| unit.names(run.graph)));
        // A node of many windows takes more than one submission.
        dispatches.chunks(BATCH).try_for_each(|batch| self.device.submit(batch))
    }

    /// Gives an observer the information that it wants about a node whose output is computed: a summary, its tiles, or its bytes.
    fn answer(
        &mut self,
        run: &mut Execution<D>,
        index: usize,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let (graph, node) = (run.graph, &run.graph.nodes[index]);
        let want = observer.want(index, node);
        if let Want::Summary(summary) = &want
            && let Some(ExactSums { words }) = summary.of()
            && let Some(sums) = self.sums_of(graph, index, *words, &run.values)?
        {
            observer.summary(index, node, Value::new(Sums(sums)))?;
        }
        match want {
            Want::Summary(summary) if self.summarises => {
                // Nodes that are computed with others are not taken from them.
                let whole = |node: usize| self.cut(graph.tensor(graph.nodes[node].output)).is_whole();
                let is_free = |node| run.alone.contains(&node) && whole(node);
                if let Some(beside) = run.executable.logged.beside(graph, index, &summary, is_free)
                    && self.start_beside(graph, index, beside, &mut run.values, &mut run.underway)?
                {
                    return Ok(());
                }
            }
            Want::Tiles if self.hashes => {
                if let Some(tiles) = self.tiles_there(computed(&run.values, node.output))? {
                    return observer.tiles(index, node, tiles);
                }
            }
            Want::Summary(_) | Want::Tiles | Want::Bytes | Want::No => {}
        }
        let mut shown = Ok(None);
        let mut inputs = Shown { engine: self, values: &run.values };
        self.show(computed(&run.values, node.output).storage(), &mut |bytes| {
            shown = observer.node(index, node, bytes, &mut inputs);
        })?;
        if let Some(bytes) = shown? {
            let storage = self.upload_any(graph.tensor(node.output), &bytes)?;
            run.values[node.output.0 as usize] = Some(Tensor::new(storage));
        }
        Ok(())
    }
}

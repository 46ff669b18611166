//! The CPU engine: portable Rust on all cores, wider vectors where the machine has them.

mod im2col;
pub mod kernel;
mod library;
mod map;
mod moved;
pub mod native;
mod pool;
pub mod product;
mod reduce;
mod rounding_grid;

use std::sync::{Arc, Weak};

use super::outside::{Held, Outside};
use super::{Compiled, Engine, EngineError, Inputs, Observer, QuantisedTensor, Tensor};
use kernel::{Kernel, Numbers};
use moved::Lifetimes;
use native::Native;
use pool::{Pool, Words};
use product::{Axis, Operand, StridedView};
use rayon::prelude::*;
use reduce::Blocks;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, TensorType, View};

/// Words that a thread copies at a time.
const COPIED: usize = 1 << 16;

/// A quantised tensor whose memory goes back to its pool.
struct Quantised {
    operand: Operand,
    pool: Weak<Pool>,
}

impl Drop for Quantised {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            self.operand.take_memory().into_iter().for_each(|memory| pool.give(bytemuck::cast_vec(memory)));
        }
    }
}

/// The storage of a tensor of this engine.
enum Storage {
    Words(Words),
    Bytes(Vec<u8>),
    Quantised(Quantised),
    /// So many words outside of memory.
    Outside(Box<dyn Held>, usize),
}

impl Storage {
    fn words(&self) -> &[u32] {
        match self {
            Storage::Words(words) => words,
            _ => unreachable!("the graph says this tensor holds words"),
        }
    }

    fn operand(&self) -> &Operand {
        match self {
            Storage::Quantised(quantised) => &quantised.operand,
            _ => unreachable!("the graph says this tensor is quantised"),
        }
    }
}

/// The engine: a pool of threads and a pool of buffers.
pub struct Cpu {
    threads: rayon::ThreadPool,
    pool: Arc<Pool>,
    native: Native,
    /// The kernel of native products in place of `native`.
    kernel: Option<Arc<dyn Kernel>>,
    outside: Option<Arc<dyn Outside>>,
}

impl Cpu {
    /// An engine with `threads` threads (0 = one for each core).
    ///
    /// # Errors
    /// If the environment names a path that this machine lacks, the threads cannot be started, or a thread does not round to
    /// nearest or flushes subnormals.
    pub fn new(threads: usize) -> Result<Cpu, EngineError> {
        let unsupported = |reason: String| EngineError::Unsupported { device: "cpu".into(), reason };
        product::Path::chosen().map_err(unsupported)?;
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|error| unsupported(format!("cannot start threads: {error}")))?;
        if !threads.broadcast(|_| environment_is_ieee()).into_iter().all(|fine| fine) {
            let device = "cpu".into();
            let check = "rounding mode and subnormals".into();
            return Err(EngineError::SelfTest { device, check, fingerprint: None });
        }
        Ok(Cpu { threads, pool: Arc::default(), native: Native::default(), kernel: None, outside: None })
    }

    /// The engine with another order of summation in native products. No other result changes.
    pub fn with_native(self, native: Native) -> Cpu {
        Cpu { native, ..self }
    }

    /// The engine with somebody else's kernel in native products. No other result changes.
    #[doc(hidden)] // for the layers above
    pub fn with_kernel(self, kernel: Arc<dyn Kernel>) -> Cpu {
        Cpu { kernel: Some(kernel), ..self }
    }

    fn compute(&self, graph: &Graph, node: &Node, values: &[Option<Tensor>]) -> Result<Storage, EngineError> {
        let value =
            |id: TensorId| values[id.0 as usize].as_ref().expect("nodes run in order").storage::<Storage>();
        let words = |id: TensorId| value(id).words();
        let ty = graph.tensor(node.output);
        if let Primitive::Quantise { input, absmaxes, digits, block } = &node.primitive {
            let (view, absmaxes) = (strided(words(input.tensor), input), words(*absmaxes).to_vec());
            let digits = u32::from(*digits);
            let memory = bytemuck::cast_vec(self.pool.memory(product::memory_of(view.shape(), digits)));
            let operand = product::quantise_into(memory, view, absmaxes, digits, *block as usize);
            return Ok(self.quantised(operand));
        }
        if let Primitive::DigitPatches { input, patches } = &node.primitive {
            let memory = |len| bytemuck::cast_vec(self.pool.memory(len));
            return Ok(self.quantised(value(*input).operand().patches(*patches, memory)));
        }
        let mut output = self.pool.take(ty.len());
        let out = &mut output[..];
        match &node.primitive {
            Primitive::Map { .. } if rounding_grid::run(graph, node, words, out) => {}
            Primitive::Map { body, dims, inputs } => {
                let sources: Vec<&[u32]> = inputs.iter().map(|v| words(v.tensor)).collect();
                map::run(body, *dims, &sources, inputs, out);
            }
            Primitive::Im2col { input, geometry } => {
                let shape = &graph.tensor(*input).shape;
                im2col::run(words(*input), [shape[1], shape[2], shape[3]], geometry, out);
            }
            Primitive::RowMax { input, block } => {
                let len = graph.tensor(*input).shape.last().map_or(1, |&d| d as usize);
                reduce::row_max(words(*input), Blocks::new(len, *block), out);
            }
            Primitive::TreeSum { input, len, inner, block, .. } => {
                let blocks = Blocks::new(*len as usize, *block);
                reduce::tree_sum(words(*input), blocks, *inner as usize, out);
            }
            Primitive::SegmentSum { input, order, offsets } => {
                let width = ty.shape.last().map_or(1, |&d| d as usize);
                reduce::segment_sum(words(*input), words(*order), words(*offsets), width, out);
            }
            Primitive::Absmax { input, block } => {
                let view = strided(words(input.tensor), input);
                out.copy_from_slice(&product::absmaxes(view, *block as usize));
            }
            Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, part } => {
                let [a, b] = [(a, absmaxes_a), (b, absmaxes_b)].map(|(side, absmaxes)| {
                    value(*side).operand().with_absmaxes(words(*absmaxes), *block as usize)
                });
                product::product_part(*part, &a, &b, out)
            }
            Primitive::Native { a, b } => {
                self.native(node, [a, b].map(|view| (words(view.tensor), view)), out)?;
            }
            Primitive::Gather { table, indices, stride_index, stride_row, stride_column, .. } => {
                let strides = [*stride_index, *stride_row, *stride_column];
                let width = ty.shape.last().map_or(1, |&d| d as usize);
                reduce::gather(words(*table), words(*indices), strides, width, out);
            }
            Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. } => {
                // These primitives are cheap beside all others, so the scalar reference computes them.
                let Ok(all) = element::range(graph, node, 0..ty.len(), &mut Values(values));
                out.copy_from_slice(&all);
            }
            Primitive::Quantise { .. } | Primitive::DigitPatches { .. } => unreachable!("handled above"),
        }
        Ok(Storage::Words(output))
    }

    /// A native product of two views.
    fn native(&self, node: &Node, sides: [(&[u32], &View); 2], out: &mut [u32]) -> Result<(), EngineError> {
        let [a, b] = sides.map(|(words, view)| strided(words, view));
        let Some(kernel) = &self.kernel else {
            native::product(self.native, &a, &b, out);
            return Ok(());
        };
        kernel::product(&**kernel, &node.operator, sides.map(|(words, view)| numbers(words, view)), out)
    }

    /// A node's output, or what the observer puts in its place.
    fn observed(
        &self,
        graph: &Graph,
        (index, node): (usize, &Node),
        values: &[Option<Tensor>],
        observer: &mut dyn Observer,
    ) -> Result<Storage, EngineError> {
        let output = self.compute(graph, node, values)?;
        if !observer.want(index, node).is_any() {
            return Ok(output);
        }
        let mut shown = Ok(None);
        let inputs = &mut Values(values);
        show(&output, &mut |bytes| shown = observer.node(index, node, bytes, inputs));
        let replaced = shown?.map(|bytes| self.replacement(graph, node, values, &bytes));
        Ok(replaced.unwrap_or(output))
    }

    fn quantised(&self, operand: Operand) -> Storage {
        Storage::Quantised(Quantised { operand, pool: Arc::downgrade(&self.pool) })
    }

    /// A node's output from canonical bytes.
    fn replacement(&self, graph: &Graph, node: &Node, values: &[Option<Tensor>], bytes: &[u8]) -> Storage {
        let ty = graph.tensor(node.output);
        let DType::Q(digits) = ty.dtype else { return self.storage(ty, bytes) };
        let shape = [0, 1, 2].map(|i| ty.shape[i] as usize);
        let (absmaxes, block) = match &node.primitive {
            Primitive::Quantise { absmaxes, block, .. } => {
                let absmaxes = values[absmaxes.0 as usize].as_ref().expect("nodes run in order");
                (absmaxes.storage::<Storage>().words().to_vec(), *block as usize)
            }
            // A product has the absmaxes of its operands as inputs of its own.
            _ => (vec![0; shape[0] * shape[1]], 0),
        };
        self.quantised(Operand::from_canonical(u32::from(digits), shape, block, absmaxes, bytes))
    }

    fn storage(&self, ty: &TensorType, bytes: &[u8]) -> Storage {
        match ty.dtype {
            DType::F32 | DType::U32 => {
                let mut words = self.pool.take(ty.len());
                let copy = |(words, bytes): (&mut [u32], &[u8])| {
                    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                        *word = u32::from_le_bytes(chunk.try_into().expect("chunks of four"));
                    }
                };
                // The system gives new memory to the thread that first writes to it, which takes longer than the copy.
                self.threads.install(|| {
                    words.par_chunks_mut(COPIED).zip(bytes.par_chunks(4 * COPIED)).for_each(copy);
                });
                Storage::Words(words)
            }
            DType::Q(_) | DType::U8 | DType::Bf16 => Storage::Bytes(bytes.to_vec()),
        }
    }
}

impl Cpu {
    /// The tensor outside of memory, if it is of words and the engine has such a place.
    fn moved_out(&self, tensor: Tensor) -> Result<Tensor, EngineError> {
        let (Some(outside), Storage::Words(words)) = (&self.outside, tensor.storage()) else {
            return Ok(tensor);
        };
        let held = outside.put(words).map_err(EngineError::Outside)?;
        Ok(tensor.again(Storage::Outside(held, words.len())))
    }

    /// Brings what a node reads into memory.
    fn move_in(&self, node: &Node, values: &mut [Option<Tensor>]) -> Result<(), EngineError> {
        for id in node.primitive.inputs() {
            let value = &mut values[id.0 as usize];
            let Some(tensor) = value else { continue };
            if let Some(words) = self.brought_in(tensor.storage())? {
                *value = Some(tensor.again(Storage::Words(words)));
            }
        }
        Ok(())
    }

    /// The words of a tensor that is outside of memory.
    fn brought_in(&self, storage: &Storage) -> Result<Option<Words>, EngineError> {
        let Storage::Outside(held, len) = storage else { return Ok(None) };
        let mut words = self.pool.take(*len);
        held.get(&mut words).map_err(EngineError::Outside)?;
        Ok(Some(words))
    }
}

/// True if this thread rounds to nearest even and keeps subnormals.
fn environment_is_ieee() -> bool {
    let opaque = std::hint::black_box::<f32>;
    let ulp = f32::EPSILON;
    let up = opaque(1.0) + opaque(ulp * 0.75) == 1.0 + ulp;
    let tie_to_even = opaque(1.0) + opaque(ulp * 0.5) == 1.0;
    let tie_away = opaque(1.0 + ulp) + opaque(ulp * 0.5) == 1.0 + 2.0 * ulp;
    let subnormal_out = (opaque(f32::MIN_POSITIVE) * opaque(0.5)).to_bits() == 0x0040_0000;
    let subnormal_in = (opaque(f32::from_bits(1)) + opaque(0.0)).to_bits() == 1;
    up && tie_to_even && tie_away && subnormal_out && subnormal_in
}

/// A product operand's view over the words of its tensor.
fn strided<'a>(words: &'a [u32], view: &View) -> StridedView<'a> {
    let axis = |d: usize| Axis { len: view.dims[d] as usize, stride: view.strides[d] as usize };
    StridedView::new(words, view.offset as usize, [axis(0), axis(1)], axis(2), axis(3))
}

/// A product operand's numbers for a kernel. The view was checked by [`strided`].
fn numbers<'a>(words: &'a [u32], view: &View) -> Numbers<'a> {
    Numbers {
        words: bytemuck::cast_slice(words),
        offset: view.offset as usize,
        dims: view.dims.map(|dim| dim as usize),
        strides: view.strides.map(|stride| stride as usize),
    }
}

struct Values<'a>(&'a [Option<Tensor>]);

impl Inputs for Values<'_> {
    fn visit(&mut self, tensor: TensorId, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        show(self.0[tensor.0 as usize].as_ref().expect("nodes run in order").storage(), visit);
        Ok(())
    }

    fn visit_rows(
        &mut self,
        tensor: QuantisedTensor,
        rows: &[usize],
        visit: &(dyn Fn(usize, &[i32]) + Sync),
    ) -> Result<(), EngineError> {
        let value = self.0[tensor.id.0 as usize].as_ref().expect("nodes run in order");
        match value.storage::<Storage>() {
            Storage::Quantised(quantised) => quantised.operand.visit_rows(rows, visit),
            _ => unreachable!("the graph says this tensor is quantised"),
        }
        Ok(())
    }
}

impl Source for Values<'_> {
    type Error = std::convert::Infallible;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Self::Error> {
        let value = self.0[tensor.0 as usize].as_ref().expect("nodes run in order");
        Ok(value.storage::<Storage>().words()[index])
    }
}

fn show(storage: &Storage, visit: &mut dyn FnMut(&[u8])) {
    match storage {
        // Canonical bytes are little-endian.
        Storage::Words(w) if cfg!(target_endian = "little") => visit(bytemuck::cast_slice(w)),
        Storage::Words(w) => visit(&bytes_of(w)),
        Storage::Bytes(bytes) => visit(bytes),
        Storage::Quantised(quantised) => visit(&product::to_canonical(&quantised.operand)),
        Storage::Outside(..) => unreachable!("a tensor is brought into memory before it is read"),
    }
}

impl Engine for Cpu {
    fn describe(&self) -> String {
        let threads = match self.threads.current_num_threads() {
            1 => "1 thread".into(),
            threads => format!("{threads} threads"),
        };
        match &self.kernel {
            None => format!("cpu ({threads})"),
            Some(kernel) => format!("cpu ({threads}, native products by {})", kernel.name()),
        }
    }

    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        Ok(Tensor::new(self.storage(ty, bytes)))
    }

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        match self.brought_in(tensor.storage())? {
            Some(words) => show(&Storage::Words(words), visit),
            None => show(tensor.storage(), visit),
        }
        Ok(())
    }

    fn binary64_roundings(&self, k: usize) -> Option<usize> {
        match &self.kernel {
            None => Some(self.native.binary64_roundings(k)),
            Some(kernel) => kernel.binary64_roundings(k),
        }
    }

    fn is_on_host(&self) -> bool {
        true
    }

    fn takes_integers(&self) -> bool {
        true
    }

    fn packed(&mut self, tensor: Tensor) -> Tensor {
        let Storage::Quantised(quantised) = tensor.storage() else { return tensor };
        let packed = self.threads.install(|| product::packed(&quantised.operand));
        packed.map_or(tensor.clone(), |operand| tensor.again(self.quantised(operand)))
    }

    fn put_outside(&mut self, tensor: Tensor) -> Result<Tensor, EngineError> {
        self.moved_out(tensor)
    }

    fn use_outside(&mut self, outside: Arc<dyn Outside>) -> bool {
        self.outside = Some(outside);
        true
    }

    fn keeps_outside(&self) -> bool {
        self.outside.is_some()
    }

    fn release(&mut self) {
        self.pool.clear();
    }

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        let lifetimes = Lifetimes::of(&graph);
        Ok(Compiled::new(graph, lifetimes))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.run_owning(compiled, inputs.to_vec(), observer)
    }

    fn run_owning(
        &mut self,
        compiled: &Compiled,
        inputs: Vec<Tensor>,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph: &Graph = &compiled.graph;
        let Lifetimes { dying, replaced } = compiled.of::<Lifetimes>();
        let mut values: Vec<Option<Tensor>> = vec![None; graph.tensors.len()];
        for (port, tensor) in graph.inputs.iter().zip(inputs) {
            values[port.tensor.0 as usize] = Some(tensor);
        }
        let moves =
            moved::are_outside(replaced, &values, |tensor| matches!(tensor.storage(), Storage::Outside(..)));
        let engine = &*self;
        // All nodes are one job of the threads, and the observer is called there: to hand over each node, or what the observer hashes,
        // costs more than to compute a small one.
        self.threads.install(|| {
            for (index, node) in graph.nodes.iter().enumerate() {
                engine.move_in(node, &mut values)?;
                let output = match &mut observer {
                    None => engine.compute(graph, node, &values)?,
                    Some(observer) => engine.observed(graph, (index, node), &values, &mut **observer)?,
                };
                values[node.output.0 as usize] = Some(Tensor::new(output));
                dying[index].iter().for_each(|id| values[id.0 as usize] = None);
                for &output in moves.get(&index).into_iter().flatten() {
                    let value = values[output.0 as usize].take().expect("no later node makes it");
                    values[output.0 as usize] = Some(engine.moved_out(value)?);
                }
            }
            Ok::<(), EngineError>(())
        })?;
        let output = |id: TensorId| values[id.0 as usize].clone().expect("outputs are computed");
        Ok(graph.outputs.iter().map(|port| output(port.tensor)).collect())
    }
}

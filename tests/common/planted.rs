//! A device with one planted fault: an engine that flips one bit of one node's output, or of a sum that it hands out.

use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId};
use tiebreak_engine::device_check::{ExactSums, Sums};
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Summary, Tensor, Value, Want};

/// The fault of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// One bit of one word of an output: of the first node of this operator and primitive.
    Output {
        operator: &'static str,
        primitive: &'static str,
        word: usize,
        bit: u32,
    },
    /// One bit of a sum beside the right product.
    Sum {
        operator: &'static str,
        word: usize,
        bit: u32,
    },
    /// The sum of a product is one too large, and everything that the device says follows from that.
    Consistent {
        operator: &'static str,
        word: usize,
    },
    /// One bit of the first root that the device computes.
    Root,
}

/// An engine with a fault. The engine inside may hand out sums by itself; otherwise they are computed here, from its operands.
pub struct Planted<E> {
    pub engine: E,
    pub fault: Fault,
    pub computes_sums: bool,
}

struct Device<'a, 'o> {
    inner: Option<&'a mut (dyn Observer + 'o)>,
    graph: Arc<Graph>,
    fault: Fault,
    computes_sums: bool,
}

/// The operands of a product, as words.
struct Read(Vec<(TensorId, Vec<u32>)>);

impl Read {
    fn of(&self, tensor: TensorId) -> &[u32] {
        &self.0.iter().find(|(id, _)| *id == tensor).unwrap().1
    }
}

impl Device<'_, '_> {
    fn hits(&self, index: usize, node: &Node) -> bool {
        let (operator, primitive) = match self.fault {
            Fault::Output { operator, primitive, .. } => (operator, primitive),
            Fault::Sum { operator, .. } | Fault::Consistent { operator, .. } => (operator, "product.v1"),
            Fault::None | Fault::Root => return false,
        };
        let of = |node: &Node| node.operator == operator && node.primitive.name() == primitive;
        of(node) && self.graph.nodes.iter().position(of) == Some(index)
    }

    fn operands(&self, node: &Node, inputs: &mut dyn Inputs) -> Result<Read, EngineError> {
        let mut read = Vec::new();
        for id in node.primitive.inputs() {
            let dtype = self.graph.tensor(id).dtype;
            let mut words = Vec::new();
            inputs.visit(id, &mut |bytes| words = words_from_bytes(dtype, bytes))?;
            read.push((id, words));
        }
        Ok(Read(read))
    }

    /// The exact sums of a product of one block, by plain loops.
    fn sums(&self, node: &Node, read: &Read) -> Vec<i128> {
        let Primitive::Product { a, b, block: 0, .. } = &node.primitive else { panic!("blocks: {node:?}") };
        let (left, right) = (read.of(*a), read.of(*b));
        let ([batch, m, k], n) = (dims(&self.graph, *a), dims(&self.graph, *b)[1]);
        let mut sums = Vec::new();
        for sample in 0..batch {
            for row in &left[sample * m * k..][..m * k].chunks(k).collect::<Vec<_>>() {
                sums.extend(right[sample * n * k..][..n * k].chunks(k).map(|column| {
                    let terms = row.iter().zip(column);
                    terms.map(|(x, y)| i128::from(*x as i32) * i128::from(*y as i32)).sum::<i128>()
                }));
            }
        }
        sums
    }

    /// The sums in words, with the fault.
    fn handed_out(&self, index: usize, node: &Node, sums: Vec<i128>, words: u8) -> Sums {
        let word =
            |sums: &[i128], number: u8| sums.iter().map(|sum| (*sum >> (32 * number)) as u32).collect();
        let mut words: Vec<Vec<u32>> = (0..words).map(|number| word(&sums, number)).collect();
        if let (true, Fault::Sum { word, bit, .. }) = (self.hits(index, node), self.fault) {
            words[0][word] ^= 1 << bit;
        }
        Sums(words)
    }
}

fn dims(graph: &Graph, tensor: TensorId) -> [usize; 3] {
    let shape = &graph.tensor(tensor).shape;
    [shape[0] as usize, shape[1] as usize, shape[2] as usize]
}

impl Observer for Device<'_, '_> {
    fn want(&self, index: usize, node: &Node) -> Want {
        let inner = self.inner.as_ref().map_or(Want::No, |inner| inner.want(index, node));
        if self.hits(index, node) && !matches!(inner, Want::Summary(_)) { Want::Bytes } else { inner }
    }

    fn summary(&mut self, index: usize, node: &Node, value: Value) -> Result<(), EngineError> {
        self.inner.as_mut().unwrap().summary(index, node, value)
    }

    fn tiles(&mut self, index: usize, node: &Node, tiles: Vec<[u8; 32]>) -> Result<(), EngineError> {
        self.inner.as_mut().unwrap().tiles(index, node, tiles)
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let mut bytes = bytes.to_vec();
        let hits = self.hits(index, node);
        if let (true, Fault::Output { word, bit, .. }) = (hits, self.fault) {
            let size = self.graph.tensor(node.output).dtype.size();
            bytes[word * size + bit as usize / 8] ^= 1 << (bit % 8);
        }
        let wants = self.inner.as_ref().map_or(Want::No, |inner| inner.want(index, node));
        let asked = |summary: &Summary| summary.of::<ExactSums>().copied();
        if let Want::Summary(summary) = &wants
            && let (Some(ExactSums { words }), true) = (asked(summary), self.computes_sums)
        {
            let read = self.operands(node, inputs)?;
            let mut sums = self.sums(node, &read);
            if let (true, Fault::Consistent { word, .. }) = (hits, self.fault) {
                sums[word] += 1 << 30;
                let Primitive::Product { a, absmaxes_a, b, absmaxes_b, .. } = &node.primitive else {
                    unreachable!()
                };
                let [n, m] = [dims(&self.graph, *b)[1], dims(&self.graph, *a)[1]];
                let (row, sample) = (word / n, word / (m * n));
                let absmaxes = [read.of(*absmaxes_a)[row], read.of(*absmaxes_b)[sample * n + word % n]];
                let digits = [a, b].map(|id| match self.graph.tensor(*id).dtype {
                    DType::Q(d) => u32::from(d),
                    _ => unreachable!(),
                });
                let [left, right] = absmaxes;
                let rounded = tiebreak_contract::arith::digits::scale_back(
                    sums[word], left, right, digits[0], digits[1],
                );
                bytes[4 * word..4 * word + 4].copy_from_slice(&rounded.to_le_bytes());
            }
            let sums = self.handed_out(index, node, sums, words);
            self.inner.as_mut().unwrap().summary(index, node, Value::new(sums))?;
        }
        let changed = match wants.is_any() {
            true => self.inner.as_mut().unwrap().node(index, node, &bytes, inputs)?,
            false => None,
        };
        Ok(Some(changed.unwrap_or(bytes)))
    }
}

impl<E: Engine> Planted<E> {
    fn observed<T>(
        &mut self,
        compiled: &Compiled,
        inner: Option<&mut dyn Observer>,
        run: impl FnOnce(&mut E, &mut dyn Observer) -> T,
    ) -> T {
        let (graph, fault, computes_sums) = (compiled.graph.clone(), self.fault, self.computes_sums);
        run(&mut self.engine, &mut Device { inner, graph, fault, computes_sums })
    }
}

impl<E: Engine> Engine for Planted<E> {
    tiebreak_engine::forward!(self => self.engine; upload, read, compile, finish);

    fn describe(&self) -> String {
        format!("planted: {}", self.engine.describe())
    }

    fn roots(&mut self, tensors: &[Tensor]) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        if self.fault != Fault::Root {
            return self.engine.roots(tensors);
        }
        let mut roots = Vec::new();
        for tensor in tensors {
            roots.push(*blake3::hash(&self.engine.download(tensor)?).as_bytes());
        }
        roots[0][1] ^= 4;
        Ok(Some(roots))
    }

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.observed(compiled, observer, |engine, observer| engine.run(compiled, inputs, Some(observer)))
    }
}

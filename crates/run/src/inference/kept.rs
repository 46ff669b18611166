//! What steps compute of the weights alone: the integers of products, which are made once and kept for all steps.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tiebreak_contract::program::graph::{Graph, Node, Port, Primitive, TensorId, TensorType};
use tiebreak_engine::{Compiled, Engine, EngineError, Tensor};

/// A value by its number: a weight, then what was found to be computed of weights, in an order in which it can be computed.
type Number = usize;

/// The weights on an engine, and what is kept in place of them.
pub(super) struct Kept {
    /// The types of the weights.
    weights: Vec<TensorType>,
    /// How each value behind the weights is computed, with numbers in place of tensors.
    made: Vec<(Primitive, TensorType)>,
    numbers: HashMap<(Primitive, TensorType), Number>,
    /// The values that are on the engine.
    values: HashMap<Number, Tensor>,
}

/// A graph without what is kept, compiled; its first inputs are these values.
pub(super) struct Rest {
    pub compiled: Compiled,
    reads: Vec<Number>,
}

/// True if the output is worth keeping: integers, and the absmaxes that belong to them.
fn is_kept(primitive: &Primitive) -> bool {
    matches!(primitive, Primitive::Absmax { .. } | Primitive::RowMax { .. } | Primitive::Quantise { .. })
}

impl Kept {
    /// The weights, of these types.
    pub fn new(weights: Vec<TensorType>, tensors: Vec<Tensor>) -> Kept {
        let values = tensors.into_iter().enumerate().collect();
        Kept { weights, made: Vec::new(), numbers: HashMap::new(), values }
    }

    /// Divides a graph, whose first inputs are the weights, and compiles what is not kept. What it reads is made by [`Kept::make`].
    ///
    /// # Errors
    /// If the engine fails.
    pub fn divide(&mut self, engine: &mut dyn Engine, graph: Graph) -> Result<Rest, EngineError> {
        if !engine.takes_integers() || !graph.logged.is_empty() {
            let reads = (0..self.weights.len()).collect();
            return Ok(Rest { compiled: engine.compile(Arc::new(graph))?, reads });
        }
        let mut number_of: HashMap<TensorId, Number> =
            graph.inputs[..self.weights.len()].iter().map(|port| port.tensor).zip(0..).collect();
        let (mut nodes, mut reads) = (Vec::new(), BTreeSet::new());
        for node in graph.nodes {
            let inputs = node.primitive.inputs();
            if is_kept(&node.primitive) && inputs.iter().all(|id| number_of.contains_key(id)) {
                let primitive = node.primitive.map_inputs(|id| TensorId(number_of[&id] as u32));
                let ty = graph.tensors[node.output.0 as usize].clone();
                number_of.insert(node.output, self.number(primitive, ty));
                continue;
            }
            reads.extend(inputs.iter().filter_map(|id| Some((*number_of.get(id)?, *id))));
            nodes.push(node);
        }
        let of = |id: TensorId| Port { name: format!("kept/{}", id.0), tensor: id };
        let others = graph.inputs[self.weights.len()..].iter().cloned();
        let inputs = reads.iter().map(|(_, id)| of(*id)).chain(others).collect();
        let reads = reads.into_iter().map(|(number, _)| number).collect();
        let rest = Graph { inputs, nodes, ..graph };
        Ok(Rest { compiled: engine.compile(Arc::new(rest))?, reads })
    }

    fn number(&mut self, primitive: Primitive, ty: TensorType) -> Number {
        let next = self.weights.len() + self.made.len();
        let key = (primitive, ty);
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.made.push(key.clone());
            next
        })
    }

    /// Makes what these graphs read, and keeps nothing else: steps of other sizes read the same values of the weights.
    ///
    /// # Errors
    /// If the engine fails, or if a graph reads what was not kept.
    pub fn make<'r>(
        &mut self,
        engine: &mut dyn Engine,
        rests: impl Iterator<Item = &'r Rest>,
    ) -> Result<(), EngineError> {
        let read: BTreeSet<Number> = rests.flat_map(|rest| rest.reads.iter().copied()).collect();
        let weights = self.weights.len();
        let mut missing: BTreeSet<Number> =
            read.iter().copied().filter(|number| !self.values.contains_key(number)).collect();
        for number in (weights..weights + self.made.len()).rev() {
            if missing.contains(&number) {
                let inputs = self.inputs_of(number);
                missing.extend(inputs.into_iter().filter(|input| !self.values.contains_key(input)));
            }
        }
        // A value that nothing else is made of leaves its memory to the next ones.
        let mut last: HashMap<Number, Number> = HashMap::new();
        for number in missing.range(weights..) {
            last.extend(self.inputs_of(*number).into_iter().map(|input| (input, *number)));
        }
        for number in missing.into_iter().filter(|number| *number >= weights) {
            let value = self.computed(engine, number)?;
            let value = if read.contains(&number) { engine.packed(value) } else { value };
            self.values.insert(number, value);
            for input in self.inputs_of(number) {
                if last[&input] == number && !read.contains(&input) {
                    self.values.remove(&input);
                }
            }
        }
        self.values.retain(|number, _| read.contains(number));
        Ok(())
    }

    /// The values that one behind the weights is made of.
    fn inputs_of(&self, number: Number) -> BTreeSet<Number> {
        let (primitive, _) = &self.made[number - self.weights.len()];
        primitive.inputs().into_iter().map(|id| id.0 as usize).collect()
    }

    /// A value that is made of others, by a graph of one node.
    fn computed(&self, engine: &mut dyn Engine, number: Number) -> Result<Tensor, EngineError> {
        let weights = self.weights.len();
        let ((primitive, ty), ids) = (&self.made[number - weights], self.inputs_of(number));
        let place =
            |id: Number| TensorId(ids.iter().position(|of| *of == id).expect("it is an input") as u32);
        let port = |id: Number, tensor| Port { name: format!("kept/{id}"), tensor };
        let type_of = |id: Number| self.weights.get(id).unwrap_or_else(|| &self.made[id - weights].1).clone();
        let output = TensorId(ids.len() as u32);
        let primitive = primitive.map_inputs(|id| place(id.0 as usize));
        let graph = Graph {
            tensors: ids.iter().map(|id| type_of(*id)).chain([ty.clone()]).collect(),
            inputs: ids.iter().map(|id| port(*id, place(*id))).collect(),
            nodes: vec![Node { operator: "kept".into(), primitive, output }],
            outputs: vec![port(number, output)],
            logged: Vec::new(),
        };
        let inputs = ids.iter().map(|id| self.value(engine, *id)).collect::<Result<Vec<_>, _>>()?;
        let compiled = engine.compile(Arc::new(graph))?;
        let mut outputs = engine.run_owning(&compiled, inputs, None)?;
        Ok(outputs.remove(0))
    }

    fn value(&self, engine: &dyn Engine, number: Number) -> Result<Tensor, EngineError> {
        let reason = "steps of two sizes read other values of the weights";
        let lacks = || EngineError::Unsupported { device: engine.describe(), reason: reason.into() };
        self.values.get(&number).cloned().ok_or_else(lacks)
    }

    /// What a graph reads of the weights, in the order of its first inputs.
    ///
    /// # Errors
    /// If the graph reads what was not kept.
    pub fn inputs(&self, engine: &dyn Engine, rest: &Rest) -> Result<Vec<Tensor>, EngineError> {
        rest.reads.iter().map(|number| self.value(engine, *number)).collect()
    }
}

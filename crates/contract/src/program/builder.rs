//! Builds a graph: appends primitives, shares equal ones, and derives gradients from the forward operators.
//!
//! Each operator's forward function records a closure that appends its gradient; [`Builder::backward`] runs these in reverse.
//! Gradients that meet in one tensor are added in that order, with one contract addition each.

use std::collections::{HashMap, HashSet};

use super::expr::{Body, BodyWriter, Reg};
use super::graph::{
    Graph, LoggedProduct, Node, Port, Primitive, TensorId, TensorType, View, block_count, leaf_block,
    pad_shape,
};
use super::products::ProductTable;
use crate::arith::DType;

/// Appends an operator's gradient: given d(loss)/d(output), returns d(loss)/d(input) for the inputs that have one.
type Gradient = Box<dyn FnOnce(&mut Builder, TensorId) -> Vec<(TensorId, TensorId)>>;

struct TapeEntry {
    operator: String,
    output: TensorId,
    gradient: Gradient,
}

/// A graph under construction.
///
/// ```
/// use tiebreak_contract::arith::DType;
/// use tiebreak_contract::program::builder::Builder;
/// use tiebreak_contract::program::operators::{LinearClasses, linear, relu};
/// use tiebreak_contract::program::products::ProductTable;
///
/// let mut b = Builder::new(ProductTable::preset());
/// let x = b.input("x", DType::F32, &[4, 8]);
/// let w = b.input("w", DType::F32, &[16, 8]);
/// let dy = b.input("dy", DType::F32, &[4, 16]);
/// let hidden = linear(&mut b, LinearClasses::HIDDEN, x, w, None);
/// let y = relu(&mut b, hidden);
/// // Every operator said how its gradient is made.
/// let gradients = b.backward(y, dy);
/// b.output("y", y);
/// b.output("dw", gradients[&w]);
/// let graph = b.finish();
/// let dw = graph.output("dw").expect("it is an output");
/// assert_eq!(graph.tensor(dw).shape, [16, 8]);
/// ```
pub struct Builder {
    graph: Graph,
    products: ProductTable,
    scope: Vec<String>,
    tape: Vec<TapeEntry>,
    /// The outputs on the tape.
    derived: HashSet<TensorId>,
    shared: HashMap<Primitive, TensorId>,
}

impl Builder {
    /// An empty graph whose products take their digits from `products`.
    pub fn new(products: ProductTable) -> Builder {
        Builder {
            graph: Graph::default(),
            products,
            scope: Vec::new(),
            tape: Vec::new(),
            derived: HashSet::new(),
            shared: HashMap::new(),
        }
    }

    /// The finished graph, without the nodes that no output needs (such as the gradient of the data).
    pub fn finish(self) -> Graph {
        let mut graph = self.graph;
        graph.remove_dead_nodes();
        graph
    }

    /// The graph with every node that was appended.
    pub(super) fn into_graph(self) -> Graph {
        self.graph
    }

    /// Runs `build` with `label` appended to the operator names of the nodes it makes.
    pub fn scoped<R>(&mut self, label: &str, build: impl FnOnce(&mut Builder) -> R) -> R {
        self.scope.push(label.to_string());
        let result = build(self);
        self.scope.pop();
        result
    }

    fn operator(&self) -> String {
        self.scope.join(".")
    }

    /// The element type and shape of a tensor of this graph.
    pub fn tensor(&self, id: TensorId) -> &TensorType {
        self.graph.tensor(id)
    }

    /// Shape of a tensor of this graph.
    pub fn shape(&self, id: TensorId) -> Vec<u32> {
        self.tensor(id).shape.clone()
    }

    fn new_tensor(&mut self, dtype: DType, shape: &[u32]) -> TensorId {
        assert!((1..=4).contains(&shape.len()), "tensors have rank 1 to 4");
        self.graph.tensors.push(TensorType { dtype, shape: shape.to_vec() });
        TensorId(self.graph.tensors.len() as u32 - 1)
    }

    /// A named input of the graph.
    pub fn input(&mut self, name: impl Into<String>, dtype: DType, shape: &[u32]) -> TensorId {
        let tensor = self.new_tensor(dtype, shape);
        self.graph.inputs.push(Port { name: name.into(), tensor });
        tensor
    }

    /// Names a tensor as an output of the graph.
    pub fn output(&mut self, name: impl Into<String>, tensor: TensorId) {
        self.graph.outputs.push(Port { name: name.into(), tensor });
    }

    /// Appends a primitive, or returns the output of an equal node that exists already.
    pub fn node(&mut self, primitive: Primitive, dtype: DType, shape: &[u32]) -> TensorId {
        if let Some(&have) = self.shared.get(&primitive)
            && self.tensor(have).shape == shape
        {
            return have;
        }
        let output = self.new_tensor(dtype, shape);
        self.shared.insert(primitive.clone(), output);
        self.graph.nodes.push(Node { operator: self.operator(), primitive, output });
        output
    }

    /// A new tensor with the elements of this one, for a second port: no two ports name one tensor.
    pub(crate) fn duplicate(&mut self, tensor: TensorId) -> TensorId {
        let (view, ty) = (self.whole(tensor), self.tensor(tensor).clone());
        let body = Body::new("copy.v1", |w| w.input(0));
        let primitive = Primitive::Map { body, dims: view.dims, inputs: vec![view] };
        let output = self.new_tensor(ty.dtype, &ty.shape);
        self.graph.nodes.push(Node { operator: self.operator(), primitive, output });
        output
    }

    /// A number, f32 [1], by a body that reads nothing. The tensor is always new, even where an equal one exists: no two ports
    /// name one tensor.
    pub fn constant(&mut self, name: &'static str, value: f32) -> TensorId {
        let body = Body::new(name, |w| w.f(value));
        let output = self.new_tensor(DType::F32, &[1]);
        let primitive = Primitive::Map { body, dims: [1; 4], inputs: Vec::new() };
        self.graph.nodes.push(Node { operator: self.operator(), primitive, output });
        output
    }

    /// A contiguous view of a whole tensor, dimensions padded with leading ones.
    pub fn whole(&self, tensor: TensorId) -> View {
        self.broadcast(tensor, &self.shape(tensor))
    }

    /// A view that broadcasts `tensor` to `shape`: trailing dimensions align, a dimension of 1 is repeated.
    pub fn broadcast(&self, tensor: TensorId, shape: &[u32]) -> View {
        let dims = pad_shape(shape);
        let own = pad_shape(&self.tensor(tensor).shape);
        let mut strides = [0; 4];
        let mut stride = 1;
        for d in (0..4).rev() {
            assert!(own[d] == dims[d] || own[d] == 1, "cannot broadcast {own:?} to {dims:?}");
            if own[d] == dims[d] && own[d] != 1 {
                strides[d] = stride;
            }
            stride *= own[d];
        }
        View { tensor, offset: 0, dims, strides }
    }

    /// The elements of a whole tensor, in its order, as a tensor of `shape`, which has as many of them.
    pub(super) fn reshaped(&self, tensor: TensorId, shape: &[u32]) -> View {
        let dims = pad_shape(shape);
        let (mut strides, mut stride) = ([0; 4], 1);
        for d in (0..4).rev().filter(|&d| dims[d] != 1) {
            strides[d] = stride;
            stride *= dims[d];
        }
        View { tensor, offset: 0, dims, strides }
    }

    /// An elementwise binary32 operator over tensors that broadcast to `shape`.
    pub fn map(&mut self, body: Body, inputs: &[TensorId], shape: &[u32]) -> TensorId {
        let views = inputs.iter().map(|&t| self.broadcast(t, shape)).collect();
        self.map_views(body, pad_shape(shape), views, DType::F32, shape)
    }

    /// An elementwise operator over explicit views of the index space `dims`; the output, of as many elements, gets
    /// `shape`.
    pub fn map_views(
        &mut self,
        body: Body,
        dims: [u32; 4],
        inputs: Vec<View>,
        dtype: DType,
        shape: &[u32],
    ) -> TensorId {
        assert_eq!(body.inputs(), inputs.len(), "{} reads all of its inputs", body.name);
        assert_eq!(
            dims.iter().product::<u32>(),
            shape.iter().product::<u32>(),
            "output elements of {}",
            body.name
        );
        for view in &inputs {
            assert_eq!(view.dims, dims, "an input of {} has other dims than its output", body.name);
            assert!(
                view.reach() <= self.tensor(view.tensor).len(),
                "a view of {} leaves its tensor",
                body.name
            );
        }
        self.node(Primitive::Map { body, dims, inputs }, dtype, shape)
    }

    /// The one element of `tensor` at `offset`, repeated over `dims`.
    pub fn scalar(&self, tensor: TensorId, offset: u32, dims: [u32; 4]) -> View {
        View { tensor, offset, dims, strides: [0; 4] }
    }

    /// `a` and `b` of one shape through a two-input body.
    pub fn zip(
        &mut self,
        name: &'static str,
        a: TensorId,
        b: TensorId,
        f: fn(&mut BodyWriter, Reg, Reg) -> Reg,
    ) -> TensorId {
        let shape = self.shape(a);
        let body = Body::new(name, |w| {
            let (x, y) = (w.input(0), w.input(1));
            f(w, x, y)
        });
        self.map(body, &[a, b], &shape)
    }

    /// a + b, one shape.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> TensorId {
        self.zip("add.v1", a, b, BodyWriter::add)
    }

    /// Adds tensors of one shape by the fixed tree: pair neighbours, promote an odd last one, repeat.
    pub(crate) fn add_tree(&mut self, terms: &[TensorId]) -> TensorId {
        assert!(!terms.is_empty(), "a tree of tensors has at least one");
        let mut level = terms.to_vec();
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| if let [a, b] = pair { self.add(*a, *b) } else { pair[0] })
                .collect();
        }
        level[0]
    }

    /// Copies a view to a contiguous tensor of `shape` (a transposition, a merge of heads).
    pub fn copy(&mut self, view: View, shape: &[u32]) -> TensorId {
        let dtype = self.tensor(view.tensor).dtype;
        self.map_views(Body::new("copy.v1", |w| w.input(0)), view.dims, vec![view], dtype, shape)
    }

    /// The tree sum over the last dimension; [.., len] -> [.., 1].
    pub fn sum_last(&mut self, input: TensorId) -> TensorId {
        let mut shape = self.shape(input);
        let len = shape.pop().expect("tensors have rank 1 or more");
        let outer = shape.iter().product();
        shape.push(1);
        self.tree_sum(input, [outer, len, 1], &shape)
    }

    /// The tree sum over all but the last dimension; [.., n] -> [n].
    pub fn sum_leading(&mut self, input: TensorId) -> TensorId {
        let shape = self.shape(input);
        let (&inner, leading) = shape.split_last().expect("tensors have rank 1 or more");
        let len = leading.iter().product();
        self.tree_sum(input, [1, len, inner], &[inner])
    }

    /// The tree sum over the middle of [outer, len, inner], by way of partial sums if it is long; the result, of outer *
    /// inner elements, gets `shape`.
    pub fn tree_sum(&mut self, mut input: TensorId, dims: [u32; 3], shape: &[u32]) -> TensorId {
        let [outer, mut len, inner] = dims;
        let block = leaf_block(inner);
        while len > block {
            let blocks = len.div_ceil(block);
            let partial = Primitive::TreeSum { input, outer, len, inner, block };
            (input, len) = (self.node(partial, DType::F32, &[outer, blocks, inner]), blocks);
        }
        self.node(Primitive::TreeSum { input, outer, len, inner, block: 0 }, DType::F32, shape)
    }

    /// The maximum over the last dimension, by way of partial maxima if it is long; [.., len] -> [.., 1].
    pub fn max_last(&mut self, mut input: TensorId) -> TensorId {
        let mut shape = self.shape(input);
        let last = shape.len() - 1;
        let block = leaf_block(1);
        while shape[last] > block {
            shape[last] = shape[last].div_ceil(block);
            input = self.node(Primitive::RowMax { input, block }, DType::F32, &shape);
        }
        shape[last] = 1;
        self.node(Primitive::RowMax { input, block: 0 }, DType::F32, &shape)
    }

    /// The digits, block and grid of each class of products.
    pub(super) fn products(&self) -> &ProductTable {
        &self.products
    }

    /// Notes a product that native kernels may compute.
    pub(super) fn logged(&mut self, logged: LoggedProduct) {
        // An equal product shares its nodes.
        if !self.graph.logged.iter().any(|have| have.output == logged.output) {
            self.graph.logged.push(logged);
        }
    }

    /// The integers of a product's operand, which is a view, and the absmaxes of its scale groups.
    pub(super) fn quantise(&mut self, input: View, digits: u8, block: u32) -> (TensorId, TensorId) {
        assert!(input.reach() <= self.tensor(input.tensor).len(), "a product's view leaves its tensor");
        let [b0, b1, rows, k] = input.dims;
        let absmaxes = self.absmaxes(input.clone(), block);
        let quantise = Primitive::Quantise { input, absmaxes, digits, block };
        (self.node(quantise, DType::Q(digits), &[b0 * b1, rows, k]), absmaxes)
    }

    /// The absmaxes of a view's scale groups. Long groups are reduced by way of the absmaxes of shorter groups.
    pub(super) fn absmaxes(&mut self, mut view: View, mut block: u32) -> TensorId {
        let [b0, b1, rows, k] = view.dims;
        let leaf = leaf_block(view.strides[3]);
        if leaf < if block == 0 { k } else { block } {
            let blocks = block_count(k, leaf);
            let partial = Primitive::Absmax { input: view, block: leaf };
            let tensor = self.node(partial, DType::U32, &[b0 * b1, rows, blocks]);
            let strides = [b1 * rows * blocks, rows * blocks, blocks, 1];
            view = View { tensor, offset: 0, dims: [b0, b1, rows, blocks], strides };
            block /= leaf;
        }
        let blocks = block_count(view.dims[3], block);
        self.node(Primitive::Absmax { input: view, block }, DType::U32, &[b0 * b1, rows, blocks])
    }

    /// Records how to derive the gradient of the operator that made `output`. An operator that another one computed before shares its
    /// nodes, so the gradients of both meet in one output, and pass through it once.
    pub fn differentiable(
        &mut self,
        output: TensorId,
        gradient: impl FnOnce(&mut Builder, TensorId) -> Vec<(TensorId, TensorId)> + 'static,
    ) {
        if !self.derived.insert(output) {
            return;
        }
        self.tape.push(TapeEntry { operator: self.operator(), output, gradient: Box::new(gradient) });
    }

    /// Appends the gradients of everything on the tape, from d(loss)/d(`output`) = `seed` down. Returns the
    /// gradient of each tensor that has one.
    pub fn backward(&mut self, output: TensorId, seed: TensorId) -> HashMap<TensorId, TensorId> {
        self.backward_of(&[(output, seed)])
    }

    /// [`Builder::backward`] from several outputs, each with its seed. Seeds of one tensor are added in their order.
    pub(super) fn backward_of(&mut self, seeds: &[(TensorId, TensorId)]) -> HashMap<TensorId, TensorId> {
        let mut gradients = HashMap::new();
        for &(output, seed) in seeds {
            let total = match gradients.get(&output) {
                Some(&have) => self.add(have, seed),
                None => seed,
            };
            gradients.insert(output, total);
        }
        for entry in std::mem::take(&mut self.tape).into_iter().rev() {
            let Some(&incoming) = gradients.get(&entry.output) else { continue };
            let scope = std::mem::replace(&mut self.scope, vec![entry.operator, "backward".into()]);
            for (tensor, gradient) in (entry.gradient)(self, incoming) {
                let total = match gradients.get(&tensor) {
                    Some(&have) => self.add(have, gradient),
                    None => gradient,
                };
                gradients.insert(tensor, total);
            }
            self.scope = scope;
        }
        gradients
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::operators::{relu, residual};

    #[test]
    fn an_operator_that_is_computed_twice_has_one_gradient() {
        let gradient = |twice: bool| {
            let mut b = Builder::new(ProductTable::preset());
            let [x, dy] = ["x", "dy"].map(|name| b.input(name, DType::F32, &[3, 5]));
            let first = relu(&mut b, x);
            let second = if twice { relu(&mut b, x) } else { first };
            let sum = residual(&mut b, first, second);
            let dx = b.backward(sum, dy)[&x];
            b.output("dx", dx);
            b.finish()
        };
        let (once, twice) = (gradient(false), gradient(true));
        assert_eq!(once.nodes, twice.nodes);
        let last = |graph: &Graph| match &graph.nodes.last().unwrap().primitive {
            Primitive::Map { body, .. } => body.name.to_string(),
            other => panic!("{other:?}"),
        };
        // Not a sum of two gradients.
        assert_eq!(last(&twice), "relu_backward.v1");
    }
}

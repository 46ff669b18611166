//! The rules that every program keeps, so that no engine meets a node that it cannot run (`docs/ARITHMETIC.md`, section 9).
//!
//! Programs that this crate builds keep them by construction (the builder asserts some); programs from files are checked here.
//! Every number is compared as a u64 before anything is computed from it.

use std::collections::HashSet;

use super::declared;
use super::graph::{Graph, Node, Port, Primitive, TensorId, TensorType, View, block_count, leaf_block};
use super::im2col::{ConvGeometry, DigitPatches};
use super::known_bodies;
use super::logged;
use super::models::Init;
use super::scale_groups;
use super::step::{Program, StateTensor, port, state_bytes};
use crate::arith::DType;
use crate::program::expr::Body;

/// The most samples of a batch.
pub(crate) const SAMPLES_MAX: u64 = 1 << 24;
/// The most micro-batches of a step.
pub(crate) const MICRO_BATCHES_MAX: u32 = 1 << 16;
/// The most elements of a tensor.
pub(crate) const TENSOR_MAX: u64 = 1 << 31;
/// The most bytes of a training state.
pub(crate) const STATE_MAX: u64 = 1 << 40;
/// The most bytes of all tensors of a graph together.
pub(crate) const GRAPH_MAX: u64 = 1 << 46;
/// The most input views of a map: with the output they use the eight buffers that every GPU can bind at once.
pub(crate) const MAP_INPUTS_MAX: usize = 7;
/// The bound that a convolution's numbers stay below, so that no index of a pixel wraps around.
const GEOMETRY_MAX: u64 = 1 << 15;
/// The most tensors of a batch, and the most slots.
const NAMES_MAX: usize = 64;

type Check = Result<(), String>;

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(why()) }
}

/// Checks that engines can run a program.
///
/// # Errors
/// If the program breaks a rule; the message names the rule, the graph and the node.
pub(crate) fn program(program: &Program) -> Check {
    numbers(program)?;
    tables(program)?;
    for (name, graph) in
        [("micro", &program.micro), ("accumulate", &program.accumulate), ("update", &program.update)]
    {
        self::graph(program, graph).map_err(|why| format!("{name} graph: {why}"))?;
    }
    // The micro graph is checked before it determines the accumulate graph.
    micro_ports(program).map_err(|why| format!("micro graph: {why}"))?;
    ensure(program.accumulate == program.due_accumulate(), || {
        "accumulate graph: it is not the sums of the gradients, the labels if they are counted, and the loss, with moments pooled between"
            .into()
    })?;
    update_ports(program).map_err(|why| format!("update graph: {why}"))?;
    ensure(program.update.logged.is_empty(), || "update graph: it has logged products".into())
}

/// The numbers of the step.
fn numbers(program: &Program) -> Check {
    let Program { micro_batch, micro_batches, labels_per_sample, corrections, .. } = program;
    ensure((1..=MICRO_BATCHES_MAX).contains(micro_batches), || {
        format!("a step has 1 to {MICRO_BATCHES_MAX} micro-batches, not {micro_batches}")
    })?;
    let samples = u64::from(*micro_batch) * u64::from(*micro_batches);
    ensure((1..=SAMPLES_MAX).contains(&samples), || {
        format!("a batch has 1 to {SAMPLES_MAX} samples, not {samples}")
    })?;
    let labels = samples * u64::from(*labels_per_sample);
    ensure((1..=u64::from(u32::MAX)).contains(&labels), || {
        format!("a batch has 1 to {} labels, not {labels}", u32::MAX)
    })?;
    let betas = corrections.iter().all(|&beta| (0.0..1.0).contains(&f32::from_bits(beta)));
    ensure([0, 2].contains(&corrections.len()) && betas, || {
        "the bias corrections are none, or two of at least 0 and below 1".into()
    })
}

/// The number of elements of a shape of 1 to 4 dimensions of at least 1.
fn elements(shape: &[u32]) -> Result<u64, String> {
    let count = shape.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)));
    ensure((1..=4).contains(&shape.len()) && (1..=TENSOR_MAX).contains(&count), || {
        format!("the shape {shape:?} is not of 1 to 4 dimensions and 1 to {TENSOR_MAX} elements")
    })?;
    Ok(count)
}

fn init_error(init: Init) -> bool {
    matches!(init, Init::Normal { std: size } | Init::Uniform { bound: size } if !(size >= 0.0 && size.is_finite()))
}

/// The tables of the batch and the state.
fn tables(program: &Program) -> Check {
    ensure(program.batch.len() <= NAMES_MAX && program.slots.len() <= NAMES_MAX, || {
        format!("a program has at most {NAMES_MAX} batch tensors and {NAMES_MAX} slots")
    })?;
    let mut names = HashSet::new();
    let unique = |names: &mut HashSet<String>, name: String| {
        ensure(names.insert(name.clone()), || format!("two tensors are named {name}"))
    };
    for tensor in &program.batch {
        let named = |why: String| format!("batch tensor {}: {why}", tensor.name);
        unique(&mut names, port::batch(&tensor.name))?;
        elements(&tensor.shape).map_err(named)?;
        ensure(tensor.shape[0].is_multiple_of(program.micro_batch), || {
            named("its first dimension is not of so many rows for each sample of the micro-batch".into())
        })?;
        let bounded = match tensor.dtype {
            DType::U32 => tensor.below > 0,
            DType::F32 => tensor.below == 0,
            _ => false,
        };
        ensure(bounded, || named("it is neither U32 with a bound above 0 nor F32 with the bound 0".into()))?;
    }
    let reserved = ["param", "buffer", "batch", "scalar", "grad", "left", "right"];
    for slot in &program.slots {
        ensure(!slot.contains('/') && !reserved.contains(&slot.as_str()), || {
            format!("{slot} cannot be the name of a slot")
        })?;
    }
    ensure(program.parameters.iter().any(|p| !p.frozen), || "no parameter is trained".into())?;
    declared::state_is_read(program)?;
    let state = program.state_with_init();
    for (tensor, init) in &state {
        unique(&mut names, tensor.name.clone())?;
        elements(&tensor.shape).map_err(|why| format!("{}: {why}", tensor.name))?;
        ensure(!init_error(*init), || {
            format!("{}: its standard deviation is no finite number of at least 0", tensor.name)
        })?;
    }
    let state: Vec<StateTensor> = state.into_iter().map(|(tensor, _)| tensor).collect();
    let bytes = state_bytes(&state);
    ensure(bytes <= STATE_MAX, || format!("the state has {bytes} bytes, more than {STATE_MAX}"))
}

/// The maker of a tensor of a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// No maker so far.
    None,
    /// The input port with this number.
    Input(usize),
    /// The node with this number.
    Node(usize),
}

/// A graph whose nodes are checked one after another.
struct Checker<'a> {
    program: &'a Program,
    graph: &'a Graph,
    makers: Vec<Maker>,
}

/// The sizes of a graph's tensors.
pub(crate) fn sizes(graph: &Graph) -> Check {
    let mut bytes = 0u64;
    for (number, ty) in graph.tensors.iter().enumerate() {
        let count = elements(&ty.shape).map_err(|why| format!("tensor {number}: {why}"))?;
        bytes = bytes.saturating_add(count * ty.dtype.size() as u64);
    }
    ensure(bytes <= GRAPH_MAX, || format!("its tensors have {bytes} bytes, more than {GRAPH_MAX}"))
}

/// One graph by itself: types, ports that exist, nodes in order, and each node's own rules.
fn graph(program: &Program, graph: &Graph) -> Check {
    sizes(graph)?;
    let mut checker = Checker { program, graph, makers: vec![Maker::None; graph.tensors.len()] };
    for (number, port) in graph.inputs.iter().enumerate() {
        checker
            .make(port.tensor, Maker::Input(number))
            .map_err(|why| format!("input {}: {why}", port.name))?;
    }
    for (number, node) in graph.nodes.iter().enumerate() {
        let named = |why| format!("node {number} ({}, {}): {why}", node.operator, node.primitive.name());
        for input in node.primitive.inputs() {
            checker.made(input).map_err(named)?;
        }
        checker.tensor_exists(node.output).map_err(named)?;
        checker.node(node).map_err(named)?;
        checker.make(node.output, Maker::Node(number)).map_err(named)?;
    }
    let mut returned = HashSet::new();
    for port in &graph.outputs {
        let named = |why| format!("output {}: {why}", port.name);
        checker.made(port.tensor).map_err(named)?;
        let by_node = matches!(checker.makers[port.tensor.0 as usize], Maker::Node(_));
        ensure(by_node && returned.insert(port.tensor), || {
            named("no node makes it, or it is another output as well".into())
        })?;
    }
    let mut needed = graph.clone();
    needed.remove_dead_nodes();
    if let Some(dead) = graph.nodes.iter().zip(&needed.nodes).find(|(all, kept)| all != kept) {
        return Err(format!("no output needs the node of {}", dead.0.operator));
    }
    ensure(graph.nodes.len() == needed.nodes.len(), || "no output needs its last node".into())?;
    checker.logged()
}

impl<'a> Checker<'a> {
    fn tensor_exists(&self, id: TensorId) -> Check {
        ensure((id.0 as usize) < self.makers.len(), || format!("there is no tensor {}", id.0))
    }

    /// Notes the maker of a tensor.
    fn make(&mut self, id: TensorId, maker: Maker) -> Check {
        self.tensor_exists(id)?;
        let place = &mut self.makers[id.0 as usize];
        ensure(*place == Maker::None, || format!("tensor {} is made twice", id.0))?;
        *place = maker;
        Ok(())
    }

    /// Checks that a tensor exists, and was made before.
    fn made(&self, id: TensorId) -> Check {
        self.tensor_exists(id)?;
        ensure(self.makers[id.0 as usize] != Maker::None, || {
            format!("tensor {} is read before it is made", id.0)
        })
    }

    /// The node that makes a tensor.
    fn maker(&self, id: TensorId) -> Option<&'a Node> {
        match self.makers.get(id.0 as usize)? {
            Maker::Node(number) => self.graph.nodes.get(*number),
            _ => None,
        }
    }

    fn ty(&self, id: TensorId) -> &'a TensorType {
        &self.graph.tensors[id.0 as usize]
    }

    fn len(&self, id: TensorId) -> u64 {
        self.ty(id).shape.iter().map(|&d| u64::from(d)).product()
    }

    fn is(&self, id: TensorId, dtype: DType) -> Check {
        let found = self.ty(id).dtype;
        ensure(found == dtype, || format!("tensor {} is {found:?}, {dtype:?} is wanted", id.0))
    }

    fn has_len(&self, id: TensorId, len: u64) -> Check {
        let found = self.len(id);
        ensure(found == len, || format!("tensor {} has {found} elements, {len} are wanted", id.0))
    }

    fn has_shape(&self, id: TensorId, shape: &[u64]) -> Check {
        let found = &self.ty(id).shape;
        let same = found.len() == shape.len() && found.iter().zip(shape).all(|(&a, &b)| u64::from(a) == b);
        ensure(same, || format!("tensor {} has shape {found:?}, {shape:?} is wanted", id.0))
    }

    /// Checks that a view has elements and stays in its tensor.
    fn view(&self, view: &View) -> Check {
        ensure(!view.dims.contains(&0), || "a view has no elements".into())?;
        let steps = view.dims.iter().zip(view.strides);
        // Each product is below 2^64. So is the sum, if no partial sum is above the tensor's length.
        let mut last = u64::from(view.offset);
        for (&dim, stride) in steps {
            last = last.saturating_add(u64::from(dim - 1) * u64::from(stride));
        }
        ensure(last < self.len(view.tensor), || format!("a view of tensor {} leaves it", view.tensor.0))
    }

    fn node(&self, node: &Node) -> Check {
        match &node.primitive {
            Primitive::Map { body, dims, inputs } => self.map(node.output, body, *dims, inputs),
            Primitive::Gather { .. } => self.gather(node),
            Primitive::Im2col { input, geometry } => self.im2col(node.output, *input, geometry),
            Primitive::DigitPatches { input, patches } => self.digit_patches(node.output, *input, patches),
            Primitive::RowMax { input, block } => self.row_max(node.output, *input, *block),
            Primitive::TreeSum { input, outer, len, inner, block } => {
                self.tree_sum(node.output, *input, [*outer, *len, *inner], *block)
            }
            Primitive::SegmentSum { input, order, offsets } => {
                self.segment_sum(node.output, [*input, *order, *offsets])
            }
            Primitive::GroupOrder { classes, bound } => {
                self.is(node.output, DType::U32)?;
                self.below(*classes, *bound)?;
                self.has_shape(node.output, &[self.len(*classes)])
            }
            Primitive::GroupOffsets { classes, bound } => {
                self.is(node.output, DType::U32)?;
                self.below(*classes, *bound)?;
                self.has_shape(node.output, &[u64::from(*bound) + 1])
            }
            Primitive::Absmax { input, block } => self.absmax(node.output, input, *block),
            Primitive::Quantise { input, absmaxes, digits, block } => {
                self.quantise(node.output, input, *absmaxes, *digits, *block)
            }
            Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, .. } => {
                self.product(node.output, [*a, *b], [*absmaxes_a, *absmaxes_b], *block)
            }
            Primitive::Native { .. } => Err("a program has no native products".into()),
        }
    }

    fn map(&self, output: TensorId, body: &Body, dims: [u32; 4], inputs: &[View]) -> Check {
        let versioned = body.name.rsplit_once(".v").is_some_and(|(name, version)| {
            let digits = version.bytes().all(|b| b.is_ascii_digit());
            let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            !name.is_empty() && !version.is_empty() && digits && name.bytes().all(letters)
        });
        ensure(versioned, || {
            "a body's name is of small letters, digits and _, and ends in a version, such as .v1".into()
        })?;
        ensure(inputs.len() <= MAP_INPUTS_MAX, || format!("a map has at most {MAP_INPUTS_MAX} inputs"))?;
        body.error(inputs.len()).map_or(Ok(()), Err)?;
        known_bodies::error(body).map_or(Ok(()), Err)?;
        for view in inputs {
            ensure(view.dims == dims, || "an input has other dimensions than the index space".into())?;
            ensure(matches!(self.ty(view.tensor).dtype, DType::F32 | DType::U32), || {
                format!("tensor {} is neither F32 nor U32", view.tensor.0)
            })?;
            self.view(view)?;
        }
        ensure(matches!(self.ty(output).dtype, DType::F32 | DType::U32), || {
            "the output is neither F32 nor U32".into()
        })?;
        self.has_len(output, dims.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d))))
    }

    /// Checks that every number of a tensor is below `bound`; only the batch's bounds can show it.
    fn below(&self, id: TensorId, bound: u32) -> Check {
        self.is(id, DType::U32)?;
        let Maker::Input(number) = self.makers[id.0 as usize] else {
            return Err("its indices or classes are no tensor of the batch".into());
        };
        let name = &self.graph.inputs[number].name;
        let Some(tensor) = self.program.batch.iter().find(|t| port::batch(&t.name) == *name) else {
            return Err(format!("its indices or classes are {name}, which is no tensor of the batch"));
        };
        ensure((1..=bound).contains(&tensor.below) && u64::from(bound) < TENSOR_MAX, || {
            format!("{name} has numbers below {}, but the node allows only those below {bound}", tensor.below)
        })
    }

    fn gather(&self, node: &Node) -> Check {
        let Primitive::Gather { table, indices, bound, stride_index, stride_row, stride_column } =
            node.primitive
        else {
            return Ok(());
        };
        self.is(table, DType::F32)?;
        self.is(node.output, DType::F32)?;
        self.below(indices, bound)?;
        let (rows, width) =
            (self.len(indices), u64::from(self.ty(node.output).shape.last().copied().unwrap_or(1)));
        self.has_len(node.output, rows * width)?;
        let reach = [(u64::from(bound), stride_index), (rows, stride_row), (width, stride_column)];
        let last = reach.iter().fold(0u64, |n, &(count, stride)| {
            n.saturating_add((count - 1).saturating_mul(u64::from(stride)))
        });
        ensure(last < self.len(table), || "it reads beyond the end of its table".into())
    }

    fn im2col(&self, output: TensorId, input: TensorId, geometry: &ConvGeometry) -> Check {
        self.is(input, DType::F32)?;
        self.is(output, DType::F32)?;
        let [samples, height, width, channels] = self.ty(input).shape[..] else {
            return Err("patches are of images [samples, rows, columns, channels]".into());
        };
        let matrix = Checker::patches(geometry, [height, width], [samples, channels])?;
        self.has_shape(output, &matrix)
    }

    /// Rows and columns of the matrix of patches of images of `image` pixels.
    fn patches(
        geometry: &ConvGeometry,
        image: [u32; 2],
        [samples, channels]: [u32; 2],
    ) -> Result<[u64; 2], String> {
        let ConvGeometry { size, kernel, stride, padding, .. } = geometry;
        let numbers = image.into_iter().chain([*stride, *padding]).chain(*size).chain(*kernel);
        ensure(numbers.into_iter().all(|n| u64::from(n) < GEOMETRY_MAX) && *stride > 0, || {
            format!("its stride is 0, or one of its numbers is not below {GEOMETRY_MAX}")
        })?;
        let rows = [samples, size[0], size[1]].map(u64::from).iter().product();
        let columns = [kernel[0], kernel[1], channels].map(u64::from).iter().product();
        Ok([rows, columns])
    }

    fn digit_patches(&self, output: TensorId, input: TensorId, patches: &DigitPatches) -> Check {
        let made = self.maker(input).map(|node| &node.primitive);
        ensure(matches!(made, Some(Primitive::Quantise { block: 0, .. })), || {
            format!("tensor {} is not quantised in whole rows", input.0)
        })?;
        self.is(output, self.ty(input).dtype)?;
        let [1, rows, k] = self.ty(input).shape[..] else {
            return Err("patches of digits are of integers [1, rows, K]".into());
        };
        let images =
            patches.images(rows, k).ok_or("a row of its integers is no whole number of images or pixels")?;
        let [mut rows, mut k] = Checker::patches(&patches.geometry, patches.image, images)?;
        if patches.by_channel {
            (rows, k) = (k, rows);
        }
        self.has_shape(output, &[1, rows, k])
    }

    /// Checks that a sum or maximum of `terms`, `stride` elements apart and cut in blocks, is small enough to be shown in a
    /// verdict.
    fn leaf(terms: u32, block: u32, stride: u32) -> Check {
        ensure(block == 0 || block.is_power_of_two(), || "its block is neither 0 nor a power of two".into())?;
        let (read, most) = (if block == 0 { terms } else { block.min(terms) }, leaf_block(stride));
        ensure(read <= most, || format!("one output reads {read} elements, at most {most} are allowed"))
    }

    fn row_max(&self, output: TensorId, input: TensorId, block: u32) -> Check {
        self.is(input, DType::F32)?;
        self.is(output, DType::F32)?;
        let mut shape: Vec<u64> = self.ty(input).shape.iter().map(|&d| u64::from(d)).collect();
        let Some(last) = shape.last_mut() else { return Err("its input has no dimensions".into()) };
        let len = *last as u32;
        Checker::leaf(len, block, 1)?;
        *last = u64::from(block_count(len, block));
        self.has_shape(output, &shape)
    }

    fn tree_sum(&self, output: TensorId, input: TensorId, dims: [u32; 3], block: u32) -> Check {
        self.is(input, DType::F32)?;
        self.is(output, DType::F32)?;
        let [outer, len, inner] = dims.map(u64::from);
        // The tensor's length bounds each of the three dimensions, none of which is 0.
        self.has_len(input, outer.saturating_mul(len).saturating_mul(inner))?;
        Checker::leaf(dims[1], block, dims[2])?;
        self.has_len(output, outer * u64::from(block_count(dims[1], block)) * inner)
    }

    fn segment_sum(&self, output: TensorId, [input, order, offsets]: [TensorId; 3]) -> Check {
        self.is(input, DType::F32)?;
        self.is(output, DType::F32)?;
        let [order_of, offsets_of] = [order, offsets].map(|id| self.maker(id).map(|node| &node.primitive));
        let (
            Some(Primitive::GroupOrder { classes, bound }),
            Some(Primitive::GroupOffsets { classes: same, bound: as_many }),
        ) = (order_of, offsets_of)
        else {
            return Err("its order and offsets are not those of a grouping".into());
        };
        ensure((classes, bound) == (same, as_many), || "its order and offsets are of two groupings".into())?;
        let rows = self.len(*classes);
        let width = u64::from(self.ty(output).shape.last().copied().unwrap_or(1));
        self.has_shape(input, &[rows, width])?;
        self.has_shape(output, &[u64::from(*bound), width])
    }

    /// [batch0 * batch1, rows, last] of a product's view.
    fn rows(view: &View, last: u32) -> [u64; 3] {
        let [b0, b1, rows, _] = view.dims.map(u64::from);
        [b0.saturating_mul(b1), rows, u64::from(last)]
    }

    fn absmax(&self, output: TensorId, input: &View, block: u32) -> Check {
        self.view(input)?;
        self.is(output, DType::U32)?;
        // The input holds values, or the absmaxes of shorter groups.
        let partial =
            matches!(self.maker(input.tensor).map(|n| &n.primitive), Some(Primitive::Absmax { .. }));
        self.is(input.tensor, if partial { DType::U32 } else { DType::F32 })?;
        Checker::leaf(input.dims[3], block, input.strides[3])?;
        self.has_shape(output, &Checker::rows(input, block_count(input.dims[3], block)))
    }

    fn quantise(&self, output: TensorId, input: &View, absmaxes: TensorId, digits: u8, block: u32) -> Check {
        self.view(input)?;
        self.is(input.tensor, DType::F32)?;
        ensure((1..=4).contains(&digits), || format!("a product has 1 to 4 digits, not {digits}"))?;
        ensure(block == 0 || (block >= 64 && block.is_power_of_two()), || {
            "its block is neither 0 nor a power of two of at least 64".into()
        })?;
        self.is(output, DType::Q(digits))?;
        self.has_shape(output, &Checker::rows(input, input.dims[3]))?;
        ensure(scale_groups::are_of_view(input, block, absmaxes, &|id| self.maker(id)), || {
            "its absmaxes are not those of its own scale groups".into()
        })
    }

    fn product(
        &self,
        output: TensorId,
        operands: [TensorId; 2],
        absmaxes: [TensorId; 2],
        block: u32,
    ) -> Check {
        self.is(output, DType::F32)?;
        for (operand, absmaxes) in operands.into_iter().zip(absmaxes) {
            let block_is_known = block == 0 || (block >= 64 && block.is_power_of_two());
            ensure(
                block_is_known
                    && scale_groups::are_of_operand(self.graph, operand, block, absmaxes, &|id| {
                        self.maker(id)
                    }),
                || format!("tensor {} is not quantised with these absmaxes and this block", operand.0),
            )?;
        }
        let [a, b] = operands.map(|id| &self.ty(id).shape);
        ensure(a[0] == b[0] && a[2] == b[2], || format!("operands of {a:?} and {b:?} have no product"))?;
        let factors = [block_count(a[2], block), a[0], a[1], b[1]];
        self.has_len(output, factors.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d))))
    }

    /// Checks the products that native kernels may compute, and that nothing else is rounded to a grid.
    fn logged(&self) -> Check {
        let mut last = None;
        for (number, product) in self.graph.logged.iter().enumerate() {
            let named = |why: &str| format!("logged product {number} ({}): {why}", product.class.name());
            let ids = [product.a.tensor, product.b.tensor, product.absmaxes_a, product.absmaxes_b];
            for id in ids.into_iter().chain([product.product, product.output]).chain(product.exact.clone()) {
                self.made(id).map_err(|why| named(&why))?;
            }
            for view in [&product.a, &product.b] {
                self.view(view).map_err(|why| named(&why))?;
            }
            let Maker::Node(place) = self.makers[product.output.0 as usize] else {
                return Err(named("no node makes its output"));
            };
            ensure(last < Some(place), || named("it is not in the order of the nodes"))?;
            last = Some(place);
            let wrong = logged::error(self.graph, product, &|id| self.maker(id));
            wrong.map_or(Ok(()), |why| Err(named(why)))?;
        }
        let outputs: HashSet<TensorId> = self.graph.logged.iter().map(|l| l.output).collect();
        let stray =
            self.graph.nodes.iter().find(|node| {
                node.primitive.name() == logged::ROUND_TO_GRID && !outputs.contains(&node.output)
            });
        stray.map_or(Ok(()), |node| Err(format!("{} rounds what is no logged product", node.operator)))
    }
}

/// Compares the ports of a graph with those that step.rs gives engines, in order.
fn ports(graph: &Graph, found: &[Port], wanted: &[(String, TensorType)]) -> Check {
    for (port, (name, ty)) in found.iter().zip(wanted) {
        ensure(port.name == *name, || format!("port {} is where {name} is due", port.name))?;
        let own = graph.tensor(port.tensor);
        ensure(own == ty, || {
            format!("port {name} is {:?} {:?}, {:?} {:?} is due", own.dtype, own.shape, ty.dtype, ty.shape)
        })?;
    }
    ensure(found.len() == wanted.len(), || format!("{} ports, {} are due", found.len(), wanted.len()))
}

fn scalar(name: &str, dtype: DType, words: u32) -> (String, TensorType) {
    (name.to_string(), TensorType { dtype, shape: vec![words] })
}

fn named(tensors: Vec<super::step::StateTensor>) -> impl Iterator<Item = (String, TensorType)> {
    tensors.into_iter().map(|t| (t.name.clone(), t.ty()))
}

fn micro_ports(program: &Program) -> Check {
    let mut state = program.state();
    state.truncate(program.released());
    let mut inputs: Vec<_> = named(state).collect();
    inputs.extend(program.batch.iter().map(|t| (port::batch(&t.name), t.ty())));
    inputs.push(scalar(port::FACTOR, DType::F32, 1));
    inputs.push(scalar(port::SEED, DType::U32, 2));
    inputs.extend([port::STEP, port::FIRST_SAMPLE].map(|name| scalar(name, DType::U32, 1)));
    ports(&program.micro, &program.micro.inputs, &inputs)?;
    let gradients = program.gradients();
    // A moment has a buffer's prefix, and its name decides where an input of the update comes from.
    let mut names: HashSet<String> = program.state().into_iter().map(|tensor| tensor.name).collect();
    for tensor in &gradients {
        ensure(names.insert(tensor.name.clone()), || {
            format!("output {}: another output or a tensor of the state has that name", tensor.name)
        })?;
    }
    ports(&program.micro, &program.micro.outputs, &named(gradients).collect::<Vec<_>>())
}

fn update_ports(program: &Program) -> Check {
    let state: Vec<_> = named(program.state()).collect();
    let mut gradients = program.gradients();
    gradients.truncate(program.updated_from());
    let rates = [port::LEARNING_RATE, port::CORRECTION1, port::CORRECTION2];
    let rates = rates.map(|name| scalar(name, DType::F32, 1));
    let inputs: Vec<_> = state.iter().cloned().chain(named(gradients)).chain(rates).collect();
    ports(&program.update, &program.update.inputs, &inputs)?;
    let made = state.into_iter().zip(program.kept()).filter(|(_, kept)| !kept).map(|(tensor, _)| tensor);
    let loss = program.counts_labels().then_some(port::LOSS);
    let scalars = loss.into_iter().chain([port::CLIP, port::NORM]).map(|name| scalar(name, DType::F32, 1));
    ports(&program.update, &program.update.outputs, &made.chain(scalars).collect::<Vec<_>>())
}

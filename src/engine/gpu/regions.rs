//! Regions: nodes over the same rows that one kernel computes, a workgroup a row, so that what only they read never gets memory.
//!
//! A softmax is a chain of maps, a maximum and a sum over rows of [rows, len]; computed node by node, each writes what the next one
//! reads. Here the nodes that can be computed together are found; `row_kernel` writes their shader.
//!
//! Rows have 64 to 4096 elements: shorter ones leave invocations of the workgroup without work, and longer ones are summed by way of
//! partial sums, which are rows of their own.

use super::map::{Access, GROUP, access, is_indexed};
use super::row_layout::{Layout, Place, place};
use super::schedule::Uses;
use crate::program::graph::{Graph, Node, Primitive, TensorId, View};

/// What a kernel of a region may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Buffers, beside uniform data.
    pub buffers: u32,
    /// Bytes of workgroup memory.
    pub bytes: u32,
    /// Rounds of all loops of an invocation.
    pub rounds: u32,
}

impl Limits {
    /// What every adapter has.
    pub const WEBGPU: Limits = Limits { buffers: 8, bytes: 16 << 10, rounds: 65_535 };
    /// What CUDA has.
    pub const CUDA: Limits = Limits { buffers: BUFFERS_MAX, bytes: 48 << 10, rounds: u32::MAX };
}

/// The most buffers that are of use: the largest regions of a GPT take 13. CUDA's and many adapters' limits are above.
pub const BUFFERS_MAX: u32 = 16;

/// The least and the greatest length of a region's rows.
const LEN_MIN: u32 = GROUP;
const LEN_MAX: u32 = 4096;

/// How many nodes before its own place a node may run: what it computes lives that much longer.
const EARLY_MAX: usize = 32;

/// What a node is to a region's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A map with an output for every element.
    Wide,
    /// A map with an output for every row.
    Narrow,
    /// The maximum of every row.
    Max,
    /// The tree sum of every row.
    Sum,
}

impl Role {
    /// Whether it needs a whole row for its one output.
    pub fn reduces(self) -> bool {
        matches!(self, Role::Max | Role::Sum)
    }
}

/// A node of a region.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub node: usize,
    pub role: Role,
}

/// Nodes that one kernel computes.
#[derive(Clone, Debug)]
pub struct Region {
    /// In the graph's order.
    pub members: Vec<Member>,
    pub rows: u32,
    pub len: u32,
    /// Tensors of other nodes, each once.
    pub reads: Vec<TensorId>,
    /// Outputs of members that other nodes read, or that are the graph's.
    pub writes: Vec<TensorId>,
    /// The member in whose place the kernel runs: what the region reads is there before, and what it writes is read after it.
    pub at: usize,
    /// Whether a node after `at` has read what it writes, so that `at` stays.
    closed: bool,
}

/// The regions of a graph for a device with these limits. `runs_at` says in which node's place each node runs otherwise, and `may` which
/// nodes may be members.
pub fn regions(
    graph: &Graph,
    uses: &Uses,
    runs_at: &[usize],
    limits: &Limits,
    may: &dyn Fn(&Node) -> bool,
) -> Vec<Region> {
    let region_of = vec![None; graph.nodes.len()];
    let mut finder = Finder { graph, uses, runs_at, limits, regions: Vec::new(), region_of };
    for (index, node) in graph.nodes.iter().enumerate() {
        finder.visit(index, may(node));
    }
    finder.regions.retain(|region| region.members.len() > 1);
    finder.regions
}

/// Rows and their length where a node can begin a region.
fn rows_of(graph: &Graph, node: &Node) -> Option<[u32; 2]> {
    let (len, elements) = match &node.primitive {
        Primitive::Map { .. } => {
            let ty = graph.tensor(node.output);
            (*ty.shape.last()?, ty.len() as u32)
        }
        Primitive::RowMax { input, block: 0 } => {
            let ty = graph.tensor(*input);
            (*ty.shape.last()?, ty.len() as u32)
        }
        Primitive::TreeSum { outer, len, inner: 1, block: 0, .. } => (*len, outer * len),
        _ => return None,
    };
    ((LEN_MIN..=LEN_MAX).contains(&len) && elements > 0).then(|| [elements / len, len])
}

/// What a node is to rows of this length, if it can be computed with them.
fn role_of(graph: &Graph, node: &Node, [rows, len]: [u32; 2]) -> Option<Role> {
    let Primitive::Map { body, dims, inputs } = &node.primitive else {
        let role = if matches!(node.primitive, Primitive::RowMax { .. }) { Role::Max } else { Role::Sum };
        return (rows_of(graph, node)? == [rows, len]).then_some(role);
    };
    if rows_of(graph, node) == Some([rows, len]) {
        // Indices are those of the row but for the last, which may go on over several rows.
        let runs = !is_indexed(body, inputs) || dims[3].is_multiple_of(len);
        return runs.then_some(Role::Wide);
    }
    (graph.tensor(node.output).len() as u32 == rows).then_some(Role::Narrow)
}

/// Whether a view is of the value that a member computes for the same element, or row.
fn is_own(view: &View, reader: Role, member: Role, [rows, len]: [u32; 2]) -> bool {
    let one_row = rows == 1 && access(view) == Access::Uniform;
    view.offset == 0
        && match (reader, member) {
            (Role::Wide, Role::Wide) => place(view, len) == Place::Element,
            (Role::Wide, _) => place(view, len) == Place::Row || one_row,
            (Role::Narrow, Role::Wide) => false,
            _ => access(view) == Access::Contiguous || one_row,
        }
}

struct Finder<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
    runs_at: &'a [usize],
    limits: &'a Limits,
    regions: Vec<Region>,
    region_of: Vec<Option<usize>>,
}

impl Finder<'_> {
    /// Puts a node into a region, a new one, or none. Regions that it reads from and is no part of run before it.
    fn visit(&mut self, index: usize, may: bool) {
        let node = &self.graph.nodes[index];
        let candidates = if may { self.candidates(index) } else { Vec::new() };
        let grown = candidates.into_iter().find_map(|number| Some((number, self.with(number, index)?)));
        let home = grown.map(|(number, region)| {
            self.regions[number] = region;
            number
        });
        for tensor in node.primitive.inputs() {
            if let Some(number) = self.region_of_tensor(tensor).filter(|number| home != Some(*number)) {
                self.regions[number].closed = true;
            }
        }
        self.region_of[index] = home.or_else(|| {
            let rows = rows_of(self.graph, node).filter(|_| may)?;
            let role = role_of(self.graph, node, rows)?;
            let region = self.region(vec![Member { node: index, role }], rows, index, false);
            Layout::of(self.graph, &region, self.limits)?;
            self.regions.push(region);
            Some(self.regions.len() - 1)
        });
    }

    fn region_of_tensor(&self, tensor: TensorId) -> Option<usize> {
        self.uses.writer[tensor.0 as usize].and_then(|writer| self.region_of[writer])
    }

    /// Regions that compute what a node reads, or that read whole rows which it reads too, the last one first.
    fn candidates(&self, index: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for tensor in self.graph.nodes[index].primitive.inputs() {
            found.extend(self.region_of_tensor(tensor));
            let beside = self.uses.readers[tensor.0 as usize].iter().take_while(|&&reader| reader < index);
            let elements = self.graph.tensor(tensor).len() as u64;
            found.extend(beside.filter_map(|&reader| self.region_of[reader]).filter(|&number| {
                let Region { rows, len, .. } = self.regions[number];
                elements == u64::from(rows) * u64::from(len)
            }));
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        found
    }

    /// A region with one more node, if that can be computed with it.
    fn with(&self, number: usize, index: usize) -> Option<Region> {
        let (region, node) = (&self.regions[number], &self.graph.nodes[index]);
        let rows = [region.rows, region.len];
        let role = role_of(self.graph, node, rows)?;
        let member_of = |tensor: TensorId| {
            let writer = self.uses.writer[tensor.0 as usize]?;
            region.members.iter().find(|member| member.node == writer)
        };
        let own = match &node.primitive {
            Primitive::Map { inputs, .. } => inputs.iter().all(|view| {
                member_of(view.tensor).is_none_or(|member| is_own(view, role, member.role, rows))
            }),
            primitive => {
                primitive.inputs().into_iter().all(|t| member_of(t).is_none_or(|m| m.role == Role::Wide))
            }
        };
        let inputs = || node.primitive.inputs().into_iter();
        let follows = role != Role::Narrow || inputs().any(|tensor| member_of(tensor).is_some());
        if !own || !follows {
            return None;
        }
        if region.closed {
            // It runs in another place than its own, where everything it reads has to be there.
            let ready = |tensor: TensorId| {
                let Some(writer) = self.uses.writer[tensor.0 as usize] else { return true };
                let settled = self.region_of[writer].is_none_or(|other| self.regions[other].closed);
                let at = self.region_of[writer].map_or(self.runs_at[writer], |other| self.regions[other].at);
                settled && at.max(writer) < region.at
            };
            if index - region.at > EARLY_MAX || !inputs().all(|t| member_of(t).is_some() || ready(t)) {
                return None;
            }
        }
        let members = [&region.members[..], &[Member { node: index, role }]].concat();
        let at = if region.closed { region.at } else { index };
        let grown = self.region(members, rows, at, region.closed);
        Layout::of(self.graph, &grown, self.limits).map(|_| grown)
    }

    /// The region of these members: what it reads and writes follows from the graph.
    fn region(&self, members: Vec<Member>, [rows, len]: [u32; 2], at: usize, closed: bool) -> Region {
        let inside = |node: usize| members.iter().any(|member| member.node == node);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for member in &members {
            let node = &self.graph.nodes[member.node];
            for tensor in node.primitive.inputs() {
                if !self.uses.writer[tensor.0 as usize].is_some_and(inside) && !reads.contains(&tensor) {
                    reads.push(tensor);
                }
            }
            let readers = &self.uses.readers[node.output.0 as usize];
            let is_output = self.graph.outputs.iter().any(|port| port.tensor == node.output);
            if is_output || readers.iter().any(|&reader| !inside(reader)) {
                writes.push(node.output);
            }
        }
        Region { members, rows, len, reads, writes, at, closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::DType;
    use crate::program::builder::Builder;
    use crate::program::expr::{Body, Writer};
    use crate::program::models::{Gelu, Gpt, Model};
    use crate::program::optimizer::Optimizer;
    use crate::program::products::ProductTable;
    use crate::program::step::{Program, StepSpec};

    fn gpt(width: u32, context: u32, dropout: f32) -> Program {
        let gpt = Gpt { width, context, dropout, ..GPT };
        Program::new(StepSpec {
            model: Model::Gpt(gpt),
            optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
            clip_norm: Some(1.0),
            micro_batch: 2,
            micro_batches: 2,
            products: ProductTable::preset(),
        })
    }

    const GPT: Gpt = Gpt {
        vocabulary: 96,
        context: 0,
        layers: 1,
        heads: 2,
        width: 0,
        gelu: Gelu::Tanh,
        dropout: 0.0,
        tied: true,
        init_std: 0.02,
    };

    /// What each unit of a graph reads and writes, if these regions run at once.
    fn units(graph: &Graph, regions: &[Region]) -> Vec<(Vec<TensorId>, Vec<TensorId>)> {
        let alone = |node: &Node| Some((node.primitive.inputs(), vec![node.output]));
        let mut units: Vec<_> = graph.nodes.iter().map(alone).collect();
        for member in regions.iter().flat_map(|region| &region.members) {
            assert!(units[member.node].take().is_some(), "a node is in one region");
        }
        for region in regions {
            units[region.at] = Some((region.reads.clone(), region.writes.clone()));
        }
        units.into_iter().flatten().collect()
    }

    fn found(graph: &Graph, limits: &Limits) -> Vec<Region> {
        let places: Vec<usize> = (0..graph.nodes.len()).collect();
        regions(graph, &Uses::of(graph), &places, limits, &|_| true)
    }

    /// The members of the region that has a node of this operator, which is written if it has a star.
    fn members(graph: &Graph, regions: &[Region], operator: &str) -> Vec<String> {
        let node = |member: &Member| &graph.nodes[member.node];
        let has = |region: &&Region| region.members.iter().any(|member| node(member).operator == operator);
        let [region] = regions.iter().filter(has).collect::<Vec<_>>()[..] else {
            panic!("{operator} is not in one region")
        };
        let written = |member: &Member| if region.writes.contains(&node(member).output) { "*" } else { "" };
        let name =
            |member| node(member).primitive.name().trim_end_matches(".v1").to_string() + written(member);
        region.members.iter().map(name).collect()
    }

    #[test]
    fn attention_and_layer_norm_keep_what_only_they_read() {
        let program = gpt(64, 80, 0.1);
        let regions = found(&program.micro, &Limits::CUDA);
        let of = |operator: &str| members(&program.micro, &regions, operator).join(" ");
        // The gradient reads the probabilities before and, of the products, after dropout.
        let softmax = of("block0.attention.softmax");
        assert_eq!(softmax, "causal_scale_mask row_max exp_sub tree_sum div* dropout*");
        let backward = of("block0.attention.softmax.backward");
        assert_eq!(backward, "dropout mul tree_sum causal_softmax_backward*");
        let norm = of("block0.norm2");
        let before = "add dropout add* ";
        let own = "tree_sum centre square tree_sum layer_norm_rstd* mul* layer_norm_affine*";
        assert_eq!(norm, before.to_string() + own);
        // The first product is for the gain, whose gradient is summed before the rest's place; what follows is the residual's.
        let backward = of("block0.norm2.backward");
        assert_eq!(backward, "mul* mul mul tree_sum tree_sum layer_norm_backward add* dropout*");
        let loss = of("loss");
        assert_eq!(loss, "row_max exp_sub tree_sum cross_entropy* cross_entropy_backward*");
        assert_eq!(of("block0.gelu"), "add* gelu_tanh_inner* gelu*");
        let update = found(&program.update, &Limits::CUDA);
        let weight = members(&program.update, &update, "update.block0.mlp_in.weight");
        assert_eq!(weight.join(" "), "mul adamw_m* adamw_v* adamw_w*");
    }

    /// Whatever the limits, a region has what it reads before it runs, and what it writes is read after that.
    #[test]
    fn regions_run_in_order() {
        for limits in [Limits::WEBGPU, Limits::CUDA, Limits { bytes: 1000, ..Limits::WEBGPU }] {
            for program in [gpt(64, 80, 0.1), gpt(66, 65, 0.0), gpt(130, 12, 0.1)] {
                for graph in [&program.micro, &program.update] {
                    let regions = found(graph, &limits);
                    assert!(!regions.is_empty());
                    let buffers = |region: &Region| (region.reads.len() + region.writes.len()) as u32;
                    assert!(regions.iter().all(|region| buffers(region) <= limits.buffers));
                    let mut there: Vec<TensorId> = graph.inputs.iter().map(|port| port.tensor).collect();
                    for (reads, writes) in units(graph, &regions) {
                        assert!(reads.iter().all(|tensor| there.contains(tensor)));
                        there.extend(writes);
                    }
                    assert!(graph.outputs.iter().all(|port| there.contains(&port.tensor)));
                }
            }
        }
        let micro = gpt(64, 80, 0.1).micro;
        let alone = found(&micro, &Limits { bytes: 0, ..Limits::CUDA });
        assert!(alone.iter().all(|region| !region.members.iter().any(|member| member.role.reduces())));
    }

    #[test]
    fn regions_touch_less_memory() {
        let touched = |graph: &Graph, regions: &[Region]| -> u64 {
            let bytes = |(reads, writes): (Vec<TensorId>, Vec<TensorId>)| -> u64 {
                let mut tensors = [reads, writes].concat();
                tensors.sort();
                tensors.dedup();
                tensors.iter().map(|id| graph.tensor(*id).bytes() as u64).sum()
            };
            units(graph, regions).into_iter().map(bytes).sum()
        };
        // A micro-batch of GPT-2 124M, 8 texts of 1024 tokens, two digits.
        let gpt_2 = Gpt { vocabulary: 50_257, context: 1024, layers: 12, heads: 12, width: 768, ..GPT };
        let spec = gpt(64, 64, 0.0).spec;
        let products = ProductTable::uniform(2);
        let spec = StepSpec { model: Model::Gpt(gpt_2), micro_batch: 8, products, ..spec };
        let Program { micro, update, .. } = Program::new(spec);
        for (graph, limits, share) in [
            (&micro, Limits::WEBGPU, 75),
            (&micro, Limits::CUDA, 75),
            (&update, Limits::WEBGPU, 67),
            (&update, Limits::CUDA, 54),
        ] {
            let [before, now] = [&[][..], &found(graph, &limits)].map(|regions| touched(graph, regions));
            println!("{} nodes, {limits:?}: {before} bytes touched, now {now}", graph.nodes.len());
            assert!(now * 100 <= before * share);
        }
    }

    /// The regions of a chain over rows, by the names of their members with a star for what is written.
    fn chain(rows: u32, len: u32, more: impl FnOnce(&mut Builder, [TensorId; 3])) -> Vec<String> {
        let mut b = Builder::new(ProductTable::preset());
        let x = b.input("x", DType::F32, &[rows, len]);
        let square = b.zip("square.v1", x, x, Writer::mul);
        let sum = b.sum_last(square);
        let ratio = Body::new("ratio.v1", |w| {
            let (x, sum) = (w.input(0), w.input(1));
            w.div(x, sum)
        });
        let ratio = b.map(ratio, &[square, sum], &[rows, len]);
        b.output("ratio", ratio);
        more(&mut b, [x, square, sum]);
        let graph = b.finish();
        let regions = found(&graph, &Limits::CUDA);
        let first = |region: &Region| graph.nodes[region.members[0].node].operator.clone();
        let of = |region: &Region| members(&graph, std::slice::from_ref(region), &first(region)).join(" ");
        regions.iter().map(of).collect()
    }

    #[test]
    fn what_others_read_is_written() {
        assert_eq!(chain(3, 64, |_, _| ()), ["square tree_sum ratio*"]);
        assert_eq!(chain(3, 4096, |_, _| ()), ["square tree_sum ratio*"]);
        // Rows that are too short or, but for their parts, too long.
        assert_eq!(chain(3, 63, |_, _| ()), [""; 0]);
        assert_eq!(chain(3, 4097, |_, _| ()), [""; 0]);
        let output = chain(3, 64, |b, [_, square, sum]| {
            b.output("square", square);
            b.output("sum", sum);
        });
        assert_eq!(output, ["square* tree_sum* ratio*"]);
        // Read across rows, and by rows of another length.
        let turned = chain(64, 64, |b, [_, square, _]| {
            let view = View { tensor: square, offset: 0, dims: [1, 1, 64, 64], strides: [0, 0, 1, 64] };
            let copy = b.copy(view, &[64, 64]);
            b.output("turned", copy);
        });
        assert_eq!(turned, ["square* tree_sum ratio*"]);
        let halves = chain(3, 128, |b, [_, square, _]| {
            let view = View { tensor: square, offset: 0, dims: [1, 1, 6, 64], strides: [0, 0, 64, 1] };
            let copy = b.copy(view, &[6, 64]);
            b.output("halves", copy);
        });
        assert_eq!(halves, ["square* tree_sum ratio*"]);
    }

    /// What depends on a node that reads what the region writes cannot run in its place.
    #[test]
    fn what_follows_from_a_reader_is_not_joined() {
        let later = chain(64, 64, |b, [x, square, sum]| {
            let columns = b.sum_leading(square);
            let mixed = b.map(Body::new("mixed.v1", |w| w.input(0)), &[columns], &[64, 64]);
            let both = b.zip("both.v1", square, mixed, Writer::add);
            b.output("both", both);
            // This does not, though it comes later still.
            let early = b.map(
                Body::new("early.v1", |w| {
                    let (x, sum) = (w.input(0), w.input(1));
                    w.add(x, sum)
                }),
                &[x, sum],
                &[64, 64],
            );
            b.output("early", early);
        });
        assert_eq!(later, ["square* tree_sum ratio* early*", "mixed both*"]);
    }

    #[test]
    fn the_trial_is_computed_at_once() {
        let names = |len: u32| {
            let (graph, _) = super::super::row_kernel::trial(len);
            let regions = found(&graph, &Limits::CUDA);
            regions.iter().map(|region| region.members.len()).collect::<Vec<_>>()
        };
        // All but the loss, which takes each label's logit from what is written.
        assert_eq!(names(65), [16]);
        assert!(names(63).is_empty());
    }
}

//! Finds row fusions: nodes over the same rows that one kernel computes, with a workgroup for each row. Tensors that are read
//! only inside the fusion never get memory.
//!
//! A softmax is a chain of maps, a maximum and a sum over rows of [rows, len]. Computed node by node, each node writes the input
//! of the next one.
//!
//! Rows have 64 to 4096 elements. Shorter rows leave invocations of the workgroup without work. Longer rows are summed by way of
//! partial sums, which are rows of their own.

use super::unit::{Candidate, Target};
use super::uses::Uses;
use crate::device::kernel::{GROUP, Kernel, Limits};
use crate::rows::access::{Access, RowAccess, access, is_indexed, row_access};
use crate::rows::fusion::{Member, Role, RowFusion, has_words};
use crate::rows::layout::RowLayout;
use crate::wgsl;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, View};

/// The least and the greatest length of a row fusion's rows.
const LEN_MIN: u32 = GROUP;
const LEN_MAX: u32 = 4096;

/// The most nodes before its own place that a node may run: its output is kept that much longer.
const EARLY_MAX: usize = 32;

/// The row fusions of a graph for a target. `runs_at` gives the node in whose place each node runs otherwise.
pub(crate) fn row_fusions(graph: &Graph, uses: &Uses, runs_at: &[usize], target: &Target) -> Vec<RowFusion> {
    if !target.fuses_rows {
        return Vec::new();
    }
    let may = |node: &Node| has_words(graph, node) && target.is_whole(graph, node);
    find(graph, uses, runs_at, &target.limits, &may)
}

/// The candidate that computes a row fusion; `None` beyond the limits.
pub(crate) fn candidate(graph: &Graph, target: &Target, fusion: &RowFusion) -> Option<Candidate> {
    let layout = RowLayout::of(graph, fusion, &target.limits)?;
    let kernel = Kernel::Wgsl(wgsl::rows::shader(graph, fusion, &layout));
    let tensors = [fusion.reads.clone(), fusion.writes.clone()];
    Some(Candidate::fused(graph, target, fusion.nodes(), fusion.at, tensors, kernel))
}

/// The limits that texts keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLimits {
    /// WebGPU's default limits, and larger limits in texts of their own.
    All,
    /// WebGPU's default limits alone.
    Webgpu,
}

/// The texts of a graph's row fusions, for dumps and the lint's tests.
pub(crate) fn texts(graph: &Graph, limits: TextLimits) -> Vec<String> {
    let (uses, runs_at) = (Uses::of(graph), (0..graph.nodes.len()).collect::<Vec<_>>());
    let of = |limits: Limits| {
        let found = find(graph, &uses, &runs_at, &limits, &|node| has_words(graph, node));
        let shaders = found.into_iter().filter_map(move |fusion| {
            let layout = RowLayout::of(graph, &fusion, &limits)?;
            Some(wgsl::rows::shader(graph, &fusion, &layout).text.into_owned())
        });
        shaders.collect::<Vec<_>>()
    };
    let all = [Limits::WEBGPU, Limits::CUDA];
    all.into_iter().take(if limits == TextLimits::All { 2 } else { 1 }).flat_map(of).collect()
}

/// The row fusions of a graph for a device with these limits, of nodes that `may` be members.
pub(crate) fn find(
    graph: &Graph,
    uses: &Uses,
    runs_at: &[usize],
    limits: &Limits,
    may: &dyn Fn(&Node) -> bool,
) -> Vec<RowFusion> {
    let grown_of = vec![None; graph.nodes.len()];
    let mut finder = Finder { graph, uses, runs_at, limits, grown: Vec::new(), grown_of };
    for (index, node) in graph.nodes.iter().enumerate() {
        finder.visit(index, may(node));
    }
    let fusions = finder.grown.into_iter().map(|grown| grown.fusion);
    fusions.filter(|fusion| fusion.members.len() > 1).collect()
}

/// The number of rows and their length where a node can begin a row fusion.
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

/// The role of a node for rows of this length, if it can be computed with them.
fn role_of(graph: &Graph, node: &Node, [rows, len]: [u32; 2]) -> Option<Role> {
    let Primitive::Map { body, dims, inputs } = &node.primitive else {
        let role = if matches!(node.primitive, Primitive::RowMax { .. }) { Role::Max } else { Role::Sum };
        return (rows_of(graph, node)? == [rows, len]).then_some(role);
    };
    if rows_of(graph, node) == Some([rows, len]) {
        // Indices are those of the row, except for the last index, which may run over several rows.
        let runs = !is_indexed(body, inputs) || dims[3].is_multiple_of(len);
        return runs.then_some(Role::Wide);
    }
    (graph.tensor(node.output).len() as u32 == rows).then_some(Role::Narrow)
}

/// True if a view reads exactly the value that a member computes for the same element, or row.
fn is_own(view: &View, reader: Role, member: Role, [rows, len]: [u32; 2]) -> bool {
    let one_row = rows == 1 && access(view) == Access::Uniform;
    view.offset == 0
        && match (reader, member) {
            (Role::Wide, Role::Wide) => row_access(view, len) == RowAccess::Element,
            (Role::Wide, _) => row_access(view, len) == RowAccess::PerRow || one_row,
            (Role::Narrow, Role::Wide) => false,
            _ => access(view) == Access::Contiguous || one_row,
        }
}

/// A fusion that may still grow.
#[derive(Clone)]
struct Growing {
    fusion: RowFusion,
    /// True if a node after `at` has read an output of the fusion, so that `at` is fixed.
    closed: bool,
}

struct Finder<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
    runs_at: &'a [usize],
    limits: &'a Limits,
    grown: Vec<Growing>,
    /// The fusion of each node, by number.
    grown_of: Vec<Option<usize>>,
}

impl Finder<'_> {
    /// Puts a node into a fusion, a new one, or none. A fusion that the node reads from, but does not join, runs before it.
    fn visit(&mut self, index: usize, may: bool) {
        let node = &self.graph.nodes[index];
        let near = if may { self.near(index) } else { Vec::new() };
        let joined = near.into_iter().find_map(|number| Some((number, self.with(number, index)?)));
        let home = joined.map(|(number, fusion)| {
            self.grown[number].fusion = fusion;
            number
        });
        for tensor in node.primitive.inputs() {
            if let Some(number) = self.writer_of(tensor).filter(|number| home != Some(*number)) {
                self.grown[number].closed = true;
            }
        }
        self.grown_of[index] = home.or_else(|| {
            let rows = rows_of(self.graph, node).filter(|_| may)?;
            let role = role_of(self.graph, node, rows)?;
            let fusion = self.fusion(vec![Member { node: index, role }], rows, index);
            RowLayout::of(self.graph, &fusion, self.limits)?;
            self.grown.push(Growing { fusion, closed: false });
            Some(self.grown.len() - 1)
        });
    }

    /// The fusion that computes a tensor, by number.
    fn writer_of(&self, tensor: TensorId) -> Option<usize> {
        self.uses.writer(tensor).and_then(|writer| self.grown_of[writer])
    }

    /// Fusions that compute an input of a node, or that read whole rows which the node reads too; the last one first.
    fn near(&self, index: usize) -> Vec<usize> {
        let mut found = Vec::new();
        for tensor in self.graph.nodes[index].primitive.inputs() {
            found.extend(self.writer_of(tensor));
            let beside = self.uses.readers(tensor).iter().take_while(|&&reader| reader < index);
            let elements = self.graph.tensor(tensor).len() as u64;
            found.extend(beside.filter_map(|&reader| self.grown_of[reader]).filter(|&number| {
                let RowFusion { rows, len, .. } = self.grown[number].fusion;
                elements == u64::from(rows) * u64::from(len)
            }));
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        found
    }

    /// A fusion with one more node, if the node can be computed with it.
    fn with(&self, number: usize, index: usize) -> Option<RowFusion> {
        let (Growing { fusion, closed }, node) = (&self.grown[number], &self.graph.nodes[index]);
        let rows = [fusion.rows, fusion.len];
        let role = role_of(self.graph, node, rows)?;
        let member_of = |tensor: TensorId| {
            let writer = self.uses.writer(tensor)?;
            fusion.members.iter().find(|member| member.node == writer)
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
        if *closed {
            // The node runs in another node's place, where all its inputs have to be computed.
            let ready = |tensor: TensorId| {
                let Some(writer) = self.uses.writer(tensor) else { return true };
                let other = self.grown_of[writer].map(|other| &self.grown[other]);
                let at = other.map_or(self.runs_at[writer], |other| other.fusion.at);
                other.is_none_or(|other| other.closed) && at.max(writer) < fusion.at
            };
            if index - fusion.at > EARLY_MAX || !inputs().all(|t| member_of(t).is_some() || ready(t)) {
                return None;
            }
        }
        let members = [&fusion.members[..], &[Member { node: index, role }]].concat();
        let joined = self.fusion(members, rows, if *closed { fusion.at } else { index });
        RowLayout::of(self.graph, &joined, self.limits).map(|_| joined)
    }

    /// The fusion of these members; the graph determines its inputs and outputs.
    fn fusion(&self, members: Vec<Member>, [rows, len]: [u32; 2], at: usize) -> RowFusion {
        let inside = |node: usize| members.iter().any(|member| member.node == node);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for member in &members {
            let node = &self.graph.nodes[member.node];
            for tensor in node.primitive.inputs() {
                if !self.uses.writer(tensor).is_some_and(inside) && !reads.contains(&tensor) {
                    reads.push(tensor);
                }
            }
            let readers = self.uses.readers(node.output);
            if self.uses.is_output(node.output) || readers.iter().any(|&reader| !inside(reader)) {
                writes.push(node.output);
            }
        }
        RowFusion { members, rows, len, reads, writes, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::DType;
    use tiebreak_contract::program::builder::Builder;
    use tiebreak_contract::program::expr::{Body, BodyWriter};
    use tiebreak_contract::program::models::{Gpt, Model};
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::{Program, StepSpec};

    fn gpt(width: u32, context: u32, dropout: f32) -> Program {
        Program::new(spec(Gpt { vocabulary: 96, heads: 2, width, context, dropout, ..Gpt::default() }))
    }

    fn spec(gpt: Gpt) -> StepSpec {
        StepSpec {
            loss: Default::default(),
            model: Model::Gpt(gpt),
            optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
            clip_norm: Some(1.0),
            micro_batch: 2,
            micro_batches: 2,
            products: ProductTable::two_and_three(),
        }
    }

    /// The inputs and outputs of each unit of a graph, if these fusions run at once.
    fn units(graph: &Graph, fusions: &[RowFusion]) -> Vec<(Vec<TensorId>, Vec<TensorId>)> {
        let alone = |node: &Node| Some((node.primitive.inputs(), vec![node.output]));
        let mut units: Vec<_> = graph.nodes.iter().map(alone).collect();
        for member in fusions.iter().flat_map(|fusion| &fusion.members) {
            assert!(units[member.node].take().is_some(), "a node is in one fusion");
        }
        for fusion in fusions {
            units[fusion.at] = Some((fusion.reads.clone(), fusion.writes.clone()));
        }
        units.into_iter().flatten().collect()
    }

    fn found(graph: &Graph, limits: &Limits) -> Vec<RowFusion> {
        let runs_at: Vec<usize> = (0..graph.nodes.len()).collect();
        find(graph, &Uses::of(graph), &runs_at, limits, &|_| true)
    }

    /// The members of the fusion that contains a node of this operator; a star marks a member that is written.
    fn members(graph: &Graph, fusions: &[RowFusion], operator: &str) -> Vec<String> {
        let node = |member: &Member| &graph.nodes[member.node];
        let has = |fusion: &&RowFusion| fusion.members.iter().any(|member| node(member).operator == operator);
        let [fusion] = fusions.iter().filter(has).collect::<Vec<_>>()[..] else {
            panic!("{operator} is not in one fusion")
        };
        let written = |member: &Member| if fusion.writes.contains(&node(member).output) { "*" } else { "" };
        let name =
            |member| node(member).primitive.name().trim_end_matches(".v1").to_string() + written(member);
        fusion.members.iter().map(name).collect()
    }

    #[test]
    fn attention_and_layer_norm_keep_what_only_they_read() {
        let program = gpt(64, 80, 0.1);
        let fusions = found(&program.micro, &Limits::CUDA);
        let of = |operator: &str| members(&program.micro, &fusions, operator).join(" ");
        // The gradient reads the probabilities before dropout and, for the products, after it.
        let softmax = of("block0.attention.softmax");
        assert_eq!(softmax, "causal_scale_mask row_max exp_sub tree_sum div* dropout*");
        let backward = of("block0.attention.softmax.backward");
        assert_eq!(backward, "dropout mul tree_sum causal_softmax_backward*");
        let norm = of("block0.norm2");
        let before = "add dropout add* ";
        let own = "tree_sum centre square tree_sum layer_norm_rstd* mul* layer_norm_affine*";
        assert_eq!(norm, before.to_string() + own);
        // The first product is for the gain, whose gradient is summed before the place of the others. The last nodes are the
        // residual's.
        let backward = of("block0.norm2.backward");
        assert_eq!(backward, "mul* mul mul tree_sum tree_sum layer_norm_backward add* dropout*");
        let loss = of("loss");
        assert_eq!(loss, "row_max exp_sub tree_sum cross_entropy* cross_entropy_backward*");
        assert_eq!(of("block0.gelu"), "add* gelu_tanh_inner* gelu*");
        let update = found(&program.update, &Limits::CUDA);
        let weight = members(&program.update, &update, "update.block0.mlp_in.weight");
        assert_eq!(weight.join(" "), "mul adamw_m* adamw_v* adamw_w*");
    }

    /// With any limits, the inputs of a fusion are computed before it runs, and its outputs are read after that.
    #[test]
    fn fusions_run_in_order() {
        for limits in [Limits::WEBGPU, Limits::CUDA, Limits { bytes: 1000, ..Limits::WEBGPU }] {
            for program in [gpt(64, 80, 0.1), gpt(66, 65, 0.0), gpt(130, 12, 0.1)] {
                for graph in [&program.micro, &program.update] {
                    let fusions = found(graph, &limits);
                    assert!(!fusions.is_empty());
                    let buffers = |fusion: &RowFusion| (fusion.reads.len() + fusion.writes.len()) as u32;
                    assert!(fusions.iter().all(|fusion| buffers(fusion) <= limits.buffers));
                    let mut there: Vec<TensorId> = graph.inputs.iter().map(|port| port.tensor).collect();
                    for (reads, writes) in units(graph, &fusions) {
                        assert!(reads.iter().all(|tensor| there.contains(tensor)));
                        there.extend(writes);
                    }
                    assert!(graph.outputs.iter().all(|port| there.contains(&port.tensor)));
                }
            }
        }
        let micro = gpt(64, 80, 0.1).micro;
        let alone = found(&micro, &Limits { bytes: 0, ..Limits::CUDA });
        assert!(alone.iter().all(|fusion| !fusion.members.iter().any(|member| member.role.reduces())));
    }

    #[test]
    fn row_fusions_touch_less_memory() {
        let touched = |graph: &Graph, fusions: &[RowFusion]| -> u64 {
            let bytes = |(reads, writes): (Vec<TensorId>, Vec<TensorId>)| -> u64 {
                let mut tensors = [reads, writes].concat();
                tensors.sort();
                tensors.dedup();
                tensors.iter().map(|id| graph.tensor(*id).bytes() as u64).sum()
            };
            units(graph, fusions).into_iter().map(bytes).sum()
        };
        // The graph is a micro-batch of GPT-2 124M with 8 texts of 1024 tokens and two digits.
        let gpt_2 =
            Gpt { vocabulary: 50_257, context: 1024, layers: 12, heads: 12, width: 768, ..Gpt::default() };
        let products = ProductTable::uniform(2);
        let spec = StepSpec { micro_batch: 8, products, ..spec(gpt_2) };
        let Program { micro, update, .. } = Program::new(spec);
        for (graph, limits, share) in [
            (&micro, Limits::WEBGPU, 75),
            (&micro, Limits::CUDA, 75),
            (&update, Limits::WEBGPU, 67),
            (&update, Limits::CUDA, 54),
        ] {
            let [before, now] = [&[][..], &found(graph, &limits)].map(|fusions| touched(graph, fusions));
            println!("{} nodes, {limits:?}: {before} bytes touched, now {now}", graph.nodes.len());
            assert!(now * 100 <= before * share);
        }
    }

    /// The fusions of a chain over rows, by the names of their members; a star marks a member that is written.
    fn chain(rows: u32, len: u32, more: impl FnOnce(&mut Builder, [TensorId; 3])) -> Vec<String> {
        let mut b = Builder::new(ProductTable::two_and_three());
        let x = b.input("x", DType::F32, &[rows, len]);
        let square = b.zip("square.v1", x, x, BodyWriter::mul);
        let sum = b.sum_last(square);
        let ratio = Body::new("ratio.v1", |w| {
            let (x, sum) = (w.input(0), w.input(1));
            w.div(x, sum)
        });
        let ratio = b.map(ratio, &[square, sum], &[rows, len]);
        b.output("ratio", ratio);
        more(&mut b, [x, square, sum]);
        let graph = b.finish();
        let fusions = found(&graph, &Limits::CUDA);
        let first = |fusion: &RowFusion| graph.nodes[fusion.members[0].node].operator.clone();
        let of = |fusion: &RowFusion| members(&graph, std::slice::from_ref(fusion), &first(fusion)).join(" ");
        fusions.iter().map(of).collect()
    }

    #[test]
    fn what_others_read_is_written() {
        assert_eq!(chain(3, 64, |_, _| ()), ["square tree_sum ratio*"]);
        assert_eq!(chain(3, 4096, |_, _| ()), ["square tree_sum ratio*"]);
        // Rows are too short or, except for their partial sums, too long.
        assert_eq!(chain(3, 63, |_, _| ()), [""; 0]);
        assert_eq!(chain(3, 4097, |_, _| ()), [""; 0]);
        let output = chain(3, 64, |b, [_, square, sum]| {
            b.output("square", square);
            b.output("sum", sum);
        });
        assert_eq!(output, ["square* tree_sum* ratio*"]);
        // The readers go across rows, or by rows of another length.
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

    /// A node that depends on a reader of the fusion's output cannot run in the fusion's place.
    #[test]
    fn what_follows_from_a_reader_is_not_joined() {
        let later = chain(64, 64, |b, [x, square, sum]| {
            let columns = b.sum_leading(square);
            let mixed = b.map(Body::new("mixed.v1", |w| w.input(0)), &[columns], &[64, 64]);
            let both = b.zip("both.v1", square, mixed, BodyWriter::add);
            b.output("both", both);
            // This map does not depend on a reader, though it comes later still.
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
            let (graph, _) = crate::selftest::rows(len);
            let fusions = found(&graph, &Limits::CUDA);
            fusions.iter().map(|fusion| fusion.members.len()).collect::<Vec<_>>()
        };
        // The fusion has all nodes but the loss, which takes each label's logit from a written tensor.
        assert_eq!(names(65), [16]);
        assert!(names(63).is_empty());
    }
}

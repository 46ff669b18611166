//! Finds rows between two products that a device computes at once with both. The search follows reads and writes of tensors; it
//! does not know `causal_attention`.

use cuda_bridge::translate::Options;
use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::fuse_rows;
use super::unit::{Candidate, Target};
use super::uses::{Uses, product_operands};
use crate::device::kernel::{Kernel, Limits};
use crate::rows::attention::AttentionFusion;
use crate::rows::fusion::{Role, RowFusion, has_words};
use crate::rows::layout::{RowLayout, RowOperand};
use crate::wgsl;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId};
use tiebreak_shaders::product::Variant;

/// The candidates that compute a row fusion with the products around it, where all tensors are whole in memory.
pub(crate) fn candidates(
    graph: &Graph,
    uses: &Uses,
    target: &Target,
    runs_at: &[usize],
    fusions: &[RowFusion],
) -> Vec<Candidate> {
    if target.variant != Variant::Dot {
        return Vec::new();
    }
    let candidate = |found: AttentionFusion| {
        let nodes = found.nodes();
        let whole = |&node: &usize| target.is_whole(graph, &graph.nodes[node]);
        let words = found.rows.members.iter().all(|member| has_words(graph, &graph.nodes[member.node]));
        if !words || !nodes.iter().all(whole) {
            return None;
        }
        let kernel = wgsl::attention::kernel(graph, &found, &target.limits)?;
        let [first, [_, _, values, absmaxes]] = found.operands;
        let reads = [&first[..], &[values, absmaxes], &found.reads].concat();
        let writes = [&found.writes[..], &[graph.nodes[found.second].output]].concat();
        Some(Candidate::fused(graph, target, nodes, found.second, [reads, writes], kernel))
    };
    find(graph, uses, runs_at, fusions, &target.limits).into_iter().filter_map(candidate).collect()
}

/// The kernels for a graph's rows between products on a GPU with `shared` bytes of shared memory, for the bridge's tests.
pub fn kernels(graph: &Graph, shared: u32) -> Vec<cuda_bridge::translate::Kernel> {
    let (uses, runs_at) = (Uses::of(graph), (0..graph.nodes.len()).collect::<Vec<_>>());
    let limits = Limits::CUDA;
    let fusions = fuse_rows::find(graph, &uses, &runs_at, &limits, &|node| has_words(graph, node));
    let kernel = |found| {
        let Kernel::Attention { kernel, text } = wgsl::attention::kernel(graph, &found, &limits)? else {
            unreachable!("it describes attention")
        };
        let module = naga::front::wgsl::parse_str(&text).expect("the text is WGSL");
        let info = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
        let options = Options { native: true };
        kernel.kernel(&module, &info.expect("the text is valid"), options, shared).expect("it is translated")
    };
    find(graph, &uses, &runs_at, &fusions, &limits).into_iter().filter_map(kernel).collect()
}

/// The fusions around each of these row fusions. `runs_at` gives the node in whose place each other node runs.
fn find(
    graph: &Graph,
    uses: &Uses,
    runs_at: &[usize],
    fusions: &[RowFusion],
    limits: &Limits,
) -> Vec<AttentionFusion> {
    let around = |rows: &RowFusion| {
        let finder =
            Finder { graph, uses, runs_at, fusions, rows, layout: RowLayout::of(graph, rows, limits)? };
        finder.around()
    };
    fusions.iter().filter_map(around).collect()
}

fn is_member(fusion: &RowFusion, node: usize) -> bool {
    fusion.members.iter().any(|member| member.node == node)
}

/// A member whose output is digitised by rows for a product.
struct Digitised {
    result: usize,
    absmax: usize,
    quantise: usize,
    second: usize,
    /// Digits and absmaxes of the product's operands.
    operands: [TensorId; 4],
}

struct Finder<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
    runs_at: &'a [usize],
    fusions: &'a [RowFusion],
    rows: &'a RowFusion,
    layout: RowLayout,
}

impl<'a> Finder<'a> {
    fn node(&self, number: usize) -> &'a Node {
        &self.graph.nodes[self.rows.members[number].node]
    }

    fn around(&self) -> Option<AttentionFusion> {
        let (first, of_first) = self.rows.reads.iter().find_map(|tensor| self.first(*tensor))?;
        let scores = self.graph.nodes[first].output;
        let samples_and_rows = &self.graph.tensor(of_first[0]).shape[..2];
        let numbers = 0..self.rows.members.len();
        let digitised = numbers.clone().find_map(|number| self.digitised(number, samples_and_rows))?;
        let Digitised { result, absmax, quantise, second, operands } = digitised;
        let inside =
            |node: usize| is_member(self.rows, node) || [first, absmax, quantise, second].contains(&node);
        let writes = self.writes(second, &inside)?;
        let causal = numbers.clone().all(|number| {
            let masked = self.is_masked(number, samples_and_rows[1]);
            masked || !self.node(number).primitive.inputs().contains(&scores)
        });
        let reads = self.rows.reads.iter().copied().filter(|tensor| *tensor != scores).collect();
        let (rows, operands) = (self.rows.clone(), [of_first, operands]);
        Some(AttentionFusion {
            first,
            rows,
            result,
            absmax,
            quantise,
            second,
            operands,
            causal,
            reads,
            writes,
        })
    }

    /// The product that makes a tensor, with its operands, if only the fusion reads the product, and reads its rows element by
    /// element.
    fn first(&self, tensor: TensorId) -> Option<(usize, [TensorId; 4])> {
        let node = self.uses.writer(tensor)?;
        let operands = product_operands(&self.graph.nodes[node])?;
        let [a, _, b, _] = operands;
        let shapes = [&self.graph.tensor(a).shape, &self.graph.tensor(b).shape];
        let fits = shapes[0][0] * shapes[0][1] == self.rows.rows && shapes[1][1] == self.rows.len;
        let readers = self.uses.readers(tensor);
        let alone =
            !self.uses.is_output(tensor) && readers.iter().all(|&reader| is_member(self.rows, reader));
        (fits && alone && self.is_taken_whole(tensor)).then_some((node, operands))
    }

    /// True if members read a tensor only by the row's own elements, from its beginning.
    fn is_taken_whole(&self, tensor: TensorId) -> bool {
        let loads = self.layout.loads.iter().filter(|load| load.tensor == tensor);
        let mut operands = (0..self.rows.members.len())
            .flat_map(|number| self.layout.operands[number].iter().map(move |operand| (number, operand)));
        let elsewhere = operands.any(|(number, operand)| match (operand, &self.node(number).primitive) {
            (RowOperand::Outside { input, .. }, Primitive::Map { inputs, .. }) => {
                inputs[*input].tensor == tensor
            }
            _ => false,
        });
        !elsewhere && loads.map(|load| load.offset).eq([0])
    }

    /// A member's output, if it is digitised by rows for a product with as many samples and rows.
    fn digitised(&self, result: usize, samples_and_rows: &[u32]) -> Option<Digitised> {
        let (graph, uses) = (self.graph, self.uses);
        let (member, output) = (self.rows.members[result], self.node(result).output);
        let absmax = *uses.readers(output).iter().find(|&&reader| {
            matches!(&graph.nodes[reader].primitive, Primitive::Absmax { input, block: 0 }
                if input.is_contiguous() && input.offset == 0 && input.dims[3] == self.rows.len)
        })?;
        let Primitive::Absmax { input: view, .. } = &graph.nodes[absmax].primitive else { return None };
        let of_absmax = graph.nodes[absmax].output;
        let quantise = *uses.readers(of_absmax).first()?;
        let Primitive::Quantise { input, block: 0, .. } = &graph.nodes[quantise].primitive else {
            return None;
        };
        let digits = graph.nodes[quantise].output;
        let [second] = *uses.readers(digits) else { return None };
        let operands = product_operands(&graph.nodes[second])?;
        let [a, absmaxes_a, b, absmaxes_b] = operands;
        let left = (a, absmaxes_a) == (digits, of_absmax) && ![b, absmaxes_b].contains(&of_absmax) && b != a;
        let alone = uses.readers(of_absmax) == [quantise, second]
            && ![digits, of_absmax].into_iter().any(|tensor| uses.is_output(tensor));
        let same = input == view && graph.tensor(a).shape[..2] == *samples_and_rows;
        let found = Digitised { result, absmax, quantise, second, operands };
        (member.role == Role::Wide && left && alone && same).then_some(found)
    }

    /// The members' outputs that others read; `None` if somebody reads one before the second product, in whose place everything
    /// runs.
    fn writes(&self, second: usize, inside: &dyn Fn(usize) -> bool) -> Option<Vec<TensorId>> {
        let runs_at = |node: usize| {
            let other = self.fusions.iter().find(|other| is_member(other, node));
            other.map_or(self.runs_at[node], |fusion| fusion.at)
        };
        let mut writes = Vec::new();
        for node in self.rows.nodes() {
            let output = self.graph.nodes[node].output;
            let others = || self.uses.readers(output).iter().filter(|&&reader| !inside(reader));
            if self.uses.is_output(output) || others().next().is_some() {
                writes.push(output);
            }
            if !others().all(|&reader| reader.min(runs_at(reader)) > second) {
                return None;
            }
        }
        Some(writes)
    }

    /// True if a member masks everything beyond the diagonal of samples with `rows` rows.
    fn is_masked(&self, number: usize, rows: u32) -> bool {
        match &self.node(number).primitive {
            Primitive::Map { body, dims, .. } => {
                body.name == "causal_scale_mask.v1" && dims[2..] == [rows, self.rows.len]
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::plan::fuse_digits::{absmaxes_of, on_the_way};
    use crate::selftest::attention;
    use tiebreak_contract::program::models::{Gpt, Model};
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::{Program, StepSpec};

    /// The fusions of a graph: whether each is causal, how many tensors it writes beside the second product, and its nodes.
    fn found(graph: &Graph) -> Vec<(bool, usize, String)> {
        let (uses, runs_at) = (Uses::of(graph), (0..graph.nodes.len()).collect::<Vec<_>>());
        let fusions = fuse_rows::find(graph, &uses, &runs_at, &Limits::CUDA, &|_| true);
        let name = |&node: &usize| graph.nodes[node].primitive.name().trim_end_matches(".v1").to_string();
        let all = find(graph, &uses, &runs_at, &fusions, &Limits::CUDA).into_iter();
        let of = |found: AttentionFusion| {
            let names: Vec<String> = found.nodes().iter().map(name).collect();
            (found.causal, found.writes.len(), names.join(" "))
        };
        all.map(of).collect()
    }

    #[test]
    fn attention_and_its_gradient_are_found() {
        let forward = "product causal_scale_mask row_max exp_sub tree_sum div scale quantise product";
        let backward = "product mul tree_sum causal_softmax_backward scale quantise product";
        let both = [(true, 1, forward.to_string()), (false, 1, backward.to_string())];
        assert_eq!(found(&attention(65).0), both);
        assert!(found(&attention(63).0).is_empty());
    }

    #[test]
    fn scores_that_others_read_are_not_left_out() {
        let (mut graph, _) = attention(65);
        let product = graph.nodes.iter().find(|node| product_operands(node).is_some()).unwrap().output;
        graph
            .outputs
            .push(tiebreak_contract::program::graph::Port { name: "scores".into(), tensor: product });
        assert_eq!(found(&graph).len(), 1, "the gradient's alone");
    }

    /// A node that reads the probabilities before the second product needs them before it.
    #[test]
    fn what_is_read_early_is_not_left_for_later() {
        let (mut graph, _) = attention(65);
        let at = graph
            .nodes
            .iter()
            .rposition(|node| product_operands(node).is_some() && node.operator.contains("values"));
        let second = graph.nodes.iter().position(|node| {
            product_operands(node).is_some_and(|[a, ..]| {
                graph.nodes.iter().any(|n| n.output == a && n.operator.contains("values"))
            })
        });
        let (at, second) = (at.unwrap(), second.unwrap());
        assert!(second < at);
        // The test adds a reader of the probabilities that comes before the product of the values.
        let p = graph.nodes[..second].iter().rfind(|node| node.primitive.name() == "div.v1").unwrap().output;
        let reader = graph
            .nodes
            .iter()
            .position(|node| node.primitive.name() == "mul.v1" && node.primitive.inputs().contains(&p));
        let mut early = graph.nodes[reader.unwrap()].clone();
        let Primitive::Map { inputs, .. } = &mut early.primitive else { unreachable!() };
        inputs.iter_mut().for_each(|view| view.tensor = p);
        graph.tensors.push(graph.tensor(p).clone());
        early.output = TensorId(graph.tensors.len() as u32 - 1);
        // The reader is not part of the fusion: its rows are transposed.
        let Primitive::Map { inputs, .. } = &mut early.primitive else { unreachable!() };
        inputs.iter_mut().for_each(|view| view.strides.swap(2, 3));
        let output = early.output;
        graph.nodes.insert(second, early);
        graph.outputs.push(tiebreak_contract::program::graph::Port { name: "early".into(), tensor: output });
        assert_eq!(found(&graph).len(), 1, "the gradient's alone");
    }

    /// A micro-batch of GPT-2 124M: 8 texts of 1024 tokens.
    fn gpt_2() -> Graph {
        let gpt =
            Gpt { vocabulary: 50_257, context: 1024, layers: 12, heads: 12, width: 768, ..Gpt::default() };
        let spec = StepSpec {
            loss: Default::default(),
            model: Model::Gpt(gpt),
            optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
            clip_norm: None,
            micro_batch: 8,
            micro_batches: 1,
            products: ProductTable::two_and_three(),
        };
        Program::new(spec).micro
    }

    /// The memory that GPT-2's units touch: node by node, with rows and digits computed at once, and with attention and products
    /// of columns.
    #[test]
    fn attention_touches_less_memory() {
        let graph = gpt_2();
        let (uses, runs_at) = (Uses::of(&graph), (0..graph.nodes.len()).collect::<Vec<_>>());
        let fusions = fuse_rows::find(&graph, &uses, &runs_at, &Limits::CUDA, &|_| true);
        // The bridge's kernel is for a short K of the first product, and few columns of the second.
        let mut attention = find(&graph, &uses, &runs_at, &fusions, &Limits::CUDA);
        let product = |node: usize| product_operands(&graph.nodes[node]).unwrap();
        attention.retain(|found| {
            let ([a, ..], [_, _, b, _]) = (product(found.first), product(found.second));
            graph.tensor(a).shape[2].max(graph.tensor(b).shape[1]) <= 128
        });
        assert_eq!(attention.len(), 24);

        type Touched = (Vec<usize>, usize, Vec<TensorId>);
        let node = |at: usize| (graph.nodes[at].primitive.inputs(), graph.nodes[at].output);
        let digitised: Vec<Touched> = (0..graph.nodes.len())
            .filter_map(|at| {
                let Primitive::Quantise { input, absmaxes, .. } = &graph.nodes[at].primitive else {
                    return None;
                };
                let nodes = [absmaxes_of(&graph, &uses, at)?, vec![at]].concat();
                (input.strides[3] == 1)
                    .then(|| (nodes, at, vec![input.tensor, *absmaxes, graph.nodes[at].output]))
            })
            .collect();
        let of_rows =
            |fusion: &RowFusion| (fusion.nodes(), fusion.at, [&fusion.reads[..], &fusion.writes].concat());
        let rows: Vec<Touched> = fusions.iter().map(of_rows).collect();
        let of_attention = attention.iter().map(|found| {
            let ([a, _, b, _], [_, _, c, _]) = (product(found.first), product(found.second));
            let own = vec![a, b, c, graph.nodes[found.second].output];
            (found.nodes(), found.second, [&found.reads[..], &found.writes, &own].concat())
        });
        let of_columns = (0..graph.nodes.len()).filter_map(|at| {
            let (view, nodes) = on_the_way(&graph, &uses, at)?;
            let [_, _, b, _] = product(at);
            let few = view.strides[2] == 1 && view.strides[3] != 1 && graph.tensor(b).shape[1] <= 128;
            // The kernel reads the view twice; L2 may answer the second time.
            few.then(|| (nodes, at, vec![view.tensor, view.tensor, b, graph.nodes[at].output]))
        });
        let last: Vec<Touched> = of_attention.chain(of_columns).collect();
        assert_eq!(last.len(), 48);

        let bytes = |fused: &[&[Touched]]| -> u64 {
            let mut units: Vec<Option<Vec<TensorId>>> =
                (0..graph.nodes.len()).map(|at| Some([node(at).0, vec![node(at).1]].concat())).collect();
            for (nodes, at, touched) in fused.iter().copied().flatten() {
                nodes.iter().for_each(|&node| units[node] = None);
                units[*at] = Some(touched.clone());
            }
            units.into_iter().flatten().flatten().map(|id| graph.tensor(id).bytes() as u64).sum()
        };
        let counted = [bytes(&[]), bytes(&[&digitised, &rows]), bytes(&[&digitised, &rows, &last])];
        println!("bytes touched node by node, with rows and digits at once, with attention: {counted:?}");
        assert!(counted[2] * 100 <= counted[0] * 47);
    }
}

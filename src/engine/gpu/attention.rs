//! Rows between two products, for a device that computes all of it at once: q k^T, softmax and p v of attention, or dout v^T, the
//! softmax's gradient and ds k. Found in the graph by what reads what; `causal_attention` is not known here.

use super::Accelerated;
use super::device::Device;
use super::launch::Shared;
use super::regions::{Limits, Region, Role};
use super::row_kernel::has_words;
use super::row_layout::{Layout, Operand};
use super::schedule::{Unit, Uses};
use super::windows::Cut;
use crate::arith::DType;
use crate::arith::digits::Part;
use crate::arith::philox::philox4x32_10;
use crate::arith::words::bytes_from_words;
use crate::engine::EngineError;
use crate::program::builder::Builder;
use crate::program::graph::{Graph, Node, Primitive, TensorId};
use crate::program::operators::causal_attention;
use crate::program::products::ProductTable;
use crate::shaders::product::Variant;

/// A product, a region over the rows of its result, and the product of what one of the region's nodes gives, digitised by rows.
pub struct Attention {
    /// The product that the region takes.
    pub first: usize,
    pub region: Region,
    /// The member whose output is digitised.
    pub result: usize,
    /// The nodes that digitise it, and the product that takes that as its left operand.
    pub magnitude: usize,
    pub quantise: usize,
    pub second: usize,
    /// Whether nothing depends on the first product's places beyond the diagonal.
    pub causal: bool,
    /// What the region reads, but for the first product, and what of its outputs others read.
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
}

/// The digits and magnitudes of a product's operands, if it is one whole sum, rounded.
pub fn operands(node: &Node) -> Option<[TensorId; 4]> {
    match &node.primitive {
        Primitive::Product { a, magnitudes_a, b, magnitudes_b, block: 0, part: Part::Rounded } => {
            Some([*a, *magnitudes_a, *b, *magnitudes_b])
        }
        _ => None,
    }
}

impl Attention {
    /// All of its nodes, in order.
    fn nodes(&self) -> Vec<usize> {
        let members = self.region.members.iter().map(|member| member.node);
        let mut nodes: Vec<usize> =
            members.chain([self.first, self.magnitude, self.quantise, self.second]).collect();
        nodes.sort_unstable();
        nodes
    }
}

/// Where nodes run: in whose place each does, if units run at once, and in which region it is.
pub struct Places<'a> {
    pub runs_at: &'a [usize],
    pub regions: &'a [Region],
}

/// What can be computed at once around each region of a graph.
pub fn attention(graph: &Graph, uses: &Uses, places: &Places, limits: &Limits) -> Vec<Attention> {
    places.regions.iter().filter_map(|region| around(graph, uses, places, limits, region)).collect()
}

fn around(
    graph: &Graph,
    uses: &Uses,
    places: &Places,
    limits: &Limits,
    region: &Region,
) -> Option<Attention> {
    let readers = |tensor: TensorId| &uses.readers[tensor.0 as usize][..];
    let is_output = |tensor: TensorId| graph.outputs.iter().any(|port| port.tensor == tensor);
    let is_member = |node: usize| region.members.iter().any(|member| member.node == node);
    let (rows, len) = (region.rows, region.len);

    // The product whose rows the region takes, place by place, and nobody else.
    let layout = Layout::of(graph, region, limits)?;
    let is_whole = |tensor: TensorId| {
        let loads = layout.loads.iter().filter(|load| load.tensor == tensor);
        let mut views = region.members.iter().zip(&layout.operands).flat_map(|(member, operands)| {
            let node = &graph.nodes[member.node];
            operands.iter().map(move |operand| (node, operand))
        });
        let elsewhere = views.any(|(node, operand)| match (operand, &node.primitive) {
            (Operand::Outside { input, .. }, Primitive::Map { inputs, .. }) => {
                inputs[*input].tensor == tensor
            }
            _ => false,
        });
        !elsewhere && loads.map(|load| load.offset).eq([0])
    };
    let product = |tensor: &TensorId| {
        let node = uses.writer[tensor.0 as usize]?;
        let [a, _, b, _] = operands(&graph.nodes[node])?;
        let shapes = [&graph.tensor(a).shape, &graph.tensor(b).shape];
        let fits = shapes[0][0] * shapes[0][1] == rows && shapes[1][1] == len;
        let alone = !is_output(*tensor) && readers(*tensor).iter().all(|&reader| is_member(reader));
        (fits && alone && is_whole(*tensor)).then_some(node)
    };
    let first = region.reads.iter().find_map(product)?;
    let scores = graph.nodes[first].output;
    let samples_and_rows = &graph.tensor(operands(&graph.nodes[first])?[0]).shape[..2];

    // A member's output that is digitised by rows for a product of as many samples and rows.
    let digitised = |number: usize| {
        let member = region.members[number];
        let output = graph.nodes[member.node].output;
        let magnitude = *readers(output).iter().find(|&&reader| {
            matches!(&graph.nodes[reader].primitive, Primitive::Magnitude { input, block: 0 }
                if input.is_contiguous() && input.offset == 0 && input.dims[3] == len)
        })?;
        let Primitive::Magnitude { input: view, .. } = &graph.nodes[magnitude].primitive else { return None };
        let of_magnitude = graph.nodes[magnitude].output;
        let quantise = *readers(of_magnitude).first()?;
        let Primitive::Quantise { input, block: 0, .. } = &graph.nodes[quantise].primitive else {
            return None;
        };
        let digits = graph.nodes[quantise].output;
        let [second] = readers(digits)[..] else { return None };
        let [a, magnitudes_a, b, magnitudes_b] = operands(&graph.nodes[second])?;
        let left = (a, magnitudes_a) == (digits, of_magnitude)
            && ![b, magnitudes_b].contains(&of_magnitude)
            && b != a;
        let alone =
            readers(of_magnitude) == [quantise, second] && ![digits, of_magnitude].into_iter().any(is_output);
        let same = input == view && graph.tensor(a).shape[..2] == *samples_and_rows;
        (member.role == Role::Wide && left && alone && same).then_some([number, magnitude, quantise, second])
    };
    let [result, magnitude, quantise, second] = (0..region.members.len()).find_map(digitised)?;

    // Everything runs in the second product's place: what others read, they read after that.
    let inside = |node: usize| is_member(node) || [first, magnitude, quantise, second].contains(&node);
    let place = |node: usize| {
        let of_region =
            places.regions.iter().find(|other| other.members.iter().any(|member| member.node == node));
        of_region.map_or(places.runs_at[node], |region| region.at)
    };
    let (mut writes, mut in_time) = (Vec::new(), true);
    for member in &region.members {
        let output = graph.nodes[member.node].output;
        let others = || readers(output).iter().filter(|&&reader| !inside(reader));
        if is_output(output) || others().next().is_some() {
            writes.push(output);
        }
        in_time &= others().all(|&reader| reader.min(place(reader)) > second);
    }
    let causal = region.members.iter().all(|member| {
        let node = &graph.nodes[member.node];
        let masks = match &node.primitive {
            Primitive::Map { body, dims, .. } => {
                body.name == "causal_scale_mask.v1" && dims[2..] == [samples_and_rows[1], len]
            }
            _ => false,
        };
        masks || !node.primitive.inputs().contains(&scores)
    });
    let reads = region.reads.iter().copied().filter(|tensor| *tensor != scores).collect();
    let region = region.clone();
    in_time.then_some(Attention { first, region, result, magnitude, quantise, second, causal, reads, writes })
}

impl<D: Device> Accelerated<D> {
    /// Every product, region and product of a graph that one kernel of the device's computes.
    pub(super) fn attention(
        &mut self,
        graph: &Graph,
        uses: &Uses,
        fused: &[Unit<D::Pipeline>],
        regions: &[Region],
        shared: &mut Shared,
    ) -> Result<Vec<Unit<D::Pipeline>>, EngineError> {
        if self.variant != Variant::Dot || !self.regions {
            return Ok(Vec::new());
        }
        let mut runs_at: Vec<usize> = (0..graph.nodes.len()).collect();
        fused.iter().for_each(|unit| unit.nodes.iter().for_each(|&node| runs_at[node] = unit.at));
        let places = Places { runs_at: &runs_at, regions };
        let mut units = Vec::new();
        for found in attention(graph, uses, &places, &self.device.row_limits()) {
            let nodes = found.nodes();
            let whole = |&node: &usize| self.cuts(graph, &graph.nodes[node]).iter().all(Cut::is_whole);
            let words = found.region.members.iter().all(|member| has_words(graph, &graph.nodes[member.node]));
            if !words || !nodes.iter().all(whole) {
                continue;
            }
            let Some(kernel) = self.device.attention(graph, &found)? else { continue };
            let [a, magnitudes_a, b, magnitudes_b] = operands(&graph.nodes[found.first]).expect("a product");
            let [_, _, values, magnitudes] = operands(&graph.nodes[found.second]).expect("a product");
            let mut reads = vec![a, magnitudes_a, b, magnitudes_b, values, magnitudes];
            reads.extend(found.reads);
            let writes = [found.writes, vec![graph.nodes[found.second].output]].concat();
            units.push(self.unit(graph, nodes, found.second, [reads, writes], kernel, shared));
        }
        Ok(units)
    }
}

/// Attention over so many positions with its gradients, and inputs: ordinary numbers, and for the second of two heads a few large ones, a
/// subnormal one and a NaN.
pub fn trial(positions: u32) -> (Graph, Vec<Vec<u8>>) {
    const WIDTH: u32 = 6;
    let mut b = Builder::new(ProductTable::preset());
    let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|name| b.input(name, DType::F32, &[positions, WIDTH]));
    let y = causal_attention(&mut b, [q, k, v], 1, 2, None);
    let gradients = b.backward(y, dy);
    b.output("y", y);
    for (name, input) in [("dq", q), ("dk", k), ("dv", v)] {
        b.output(name, gradients[&input]);
    }
    let word = |i: u32, stream: u32| {
        let [bits, spread, ..] = philox4x32_10([stream, positions], [i, 0, 0, 0]);
        match (stream, i / WIDTH, i % WIDTH) {
            (0, 9, 3) => 0x7fc0_0000,
            (1, 20, 4) => 7,
            (_, 30, 3..) => (bits & 0x807f_ffff) | 190 << 23,
            _ => (bits & 0x807f_ffff) | (122 + spread % 6) << 23,
        }
    };
    let words = |stream: u32| (0..positions * WIDTH).map(|i| word(i, stream)).collect::<Vec<u32>>();
    (b.finish(), (0..4).map(|stream| bytes_from_words(DType::F32, &words(stream))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gpu::digitise::on_the_way;
    use crate::engine::gpu::regions::regions;
    use crate::program::models::{Gelu, Gpt, Model};
    use crate::program::optimizer::Optimizer;
    use crate::program::step::{Program, StepSpec};

    /// What is found in a graph: whether it is causal, how many tensors it writes beside the second product, and its nodes.
    fn found(graph: &Graph) -> Vec<(bool, usize, String)> {
        let (uses, runs_at) = (Uses::of(graph), (0..graph.nodes.len()).collect::<Vec<_>>());
        let regions = regions(graph, &uses, &runs_at, &Limits::CUDA, &|_| true);
        let places = Places { runs_at: &runs_at, regions: &regions };
        let name = |&node: &usize| graph.nodes[node].primitive.name().trim_end_matches(".v1").to_string();
        let all = attention(graph, &uses, &places, &Limits::CUDA).into_iter();
        let of = |found: Attention| {
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
        assert_eq!(found(&trial(65).0), both);
        assert!(found(&trial(63).0).is_empty());
    }

    #[test]
    fn scores_that_others_read_are_not_left_out() {
        let (mut graph, _) = trial(65);
        let product = graph.nodes.iter().find(|node| operands(node).is_some()).unwrap().output;
        graph.outputs.push(crate::program::graph::Port { name: "scores".into(), tensor: product });
        assert_eq!(found(&graph).len(), 1, "the gradient's alone");
    }

    /// What reads the probabilities before the second product needs them before that.
    #[test]
    fn what_is_read_early_is_not_left_for_later() {
        let (mut graph, _) = trial(65);
        let at =
            graph.nodes.iter().rposition(|node| operands(node).is_some() && node.operator.contains("values"));
        let second = graph.nodes.iter().position(|node| {
            operands(node).is_some_and(|[a, ..]| {
                graph.nodes.iter().any(|n| n.output == a && n.operator.contains("values"))
            })
        });
        let (at, second) = (at.unwrap(), second.unwrap());
        assert!(second < at);
        // A reader of the probabilities that comes before the product of the values.
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
        // Not of the same region: its rows are turned.
        let Primitive::Map { inputs, .. } = &mut early.primitive else { unreachable!() };
        inputs.iter_mut().for_each(|view| view.strides.swap(2, 3));
        let output = early.output;
        graph.nodes.insert(second, early);
        graph.outputs.push(crate::program::graph::Port { name: "early".into(), tensor: output });
        assert_eq!(found(&graph).len(), 1, "the gradient's alone");
    }

    /// What GPT-2's units touch: node by node, with rows and digits computed at once, and with attention and products of columns.
    #[test]
    fn attention_touches_less_memory() {
        let gpt = Gpt {
            vocabulary: 50_257,
            context: 1024,
            layers: 12,
            heads: 12,
            width: 768,
            gelu: Gelu::Tanh,
            dropout: 0.0,
            tied: true,
            init_std: 0.02,
        };
        let graph = Program::new(StepSpec {
            model: Model::Gpt(gpt),
            optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
            clip_norm: None,
            micro_batch: 8,
            micro_batches: 1,
            products: ProductTable::preset(),
        })
        .micro;
        let (uses, runs_at) = (Uses::of(&graph), (0..graph.nodes.len()).collect::<Vec<_>>());
        let regions = regions(&graph, &uses, &runs_at, &Limits::CUDA, &|_| true);
        let places = Places { runs_at: &runs_at, regions: &regions };
        // The bridge's kernel is for few places of the first product, and few columns of the second.
        let mut attention = attention(&graph, &uses, &places, &Limits::CUDA);
        let product = |node: usize| operands(&graph.nodes[node]).unwrap();
        attention.retain(|found| {
            let ([a, ..], [_, _, b, _]) = (product(found.first), product(found.second));
            graph.tensor(a).shape[2].max(graph.tensor(b).shape[1]) <= 128
        });
        assert_eq!(attention.len(), 24);

        type Touched = (Vec<usize>, usize, Vec<TensorId>);
        let node = |at: usize| (graph.nodes[at].primitive.inputs(), graph.nodes[at].output);
        let digitised: Vec<Touched> = (0..graph.nodes.len())
            .filter_map(|at| {
                let Primitive::Quantise { input, magnitudes, .. } = &graph.nodes[at].primitive else {
                    return None;
                };
                let nodes = [uses.magnitudes_of(&graph, at)?, vec![at]].concat();
                (input.strides[3] == 1)
                    .then(|| (nodes, at, vec![input.tensor, *magnitudes, graph.nodes[at].output]))
            })
            .collect();
        let rows: Vec<Touched> = (regions.iter())
            .map(|region| {
                let nodes = region.members.iter().map(|member| member.node).collect();
                (nodes, region.at, [&region.reads[..], &region.writes].concat())
            })
            .collect();
        let of_attention = attention.iter().map(|found| {
            let ([a, _, b, _], [_, _, c, _]) = (product(found.first), product(found.second));
            let own = vec![a, b, c, graph.nodes[found.second].output];
            (found.nodes(), found.second, [&found.reads[..], &found.writes, &own].concat())
        });
        let of_columns = (0..graph.nodes.len()).filter_map(|at| {
            let (view, nodes) = on_the_way(&graph, &uses, at)?;
            let [_, _, b, _] = product(at);
            let few = view.strides[2] == 1 && view.strides[3] != 1 && graph.tensor(b).shape[1] <= 128;
            // It reads the view twice; L2 may answer the second time.
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

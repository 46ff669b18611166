//! The plan of a graph: nodes that are computed at once, windows, and kernels.
//!
//! No device is asked. The engine has a device make the kernels of the candidates, and takes the next candidate where the device
//! makes none.

pub mod beside;
mod copies;
mod dispatch;
#[cfg(feature = "cuda")]
mod fuse_attention;
mod fuse_digits;
mod fuse_rows;
mod split;
pub(crate) mod unit;
mod uses;
pub(crate) mod windows;

use self::copies::NodePart;
pub use self::dispatch::shader;
#[cfg(feature = "cuda")]
pub use self::fuse_attention::kernels as attention_kernels;
use self::unit::{Candidate, Target};
use self::uses::Uses;
use self::windows::Window;
use crate::device::layout;
pub use fuse_rows::TextLimits;
use tiebreak_contract::program::graph::{Graph, Node, Primitive};
use tiebreak_shaders::product::Variant;

/// Every way to compute nodes of a graph, the preferred first. A candidate of more nodes comes before candidates of some of them.
/// Single nodes come last, in order, with a device's own kernels before shaders. A node without a candidate cannot run (see
/// [`refusal`]).
pub(crate) fn candidates(graph: &Graph, target: &Target) -> Vec<Candidate> {
    let uses = Uses::of(graph);
    let digits = fuse_digits::digits(graph, &uses, target);
    let mut runs_at: Vec<usize> = (0..graph.nodes.len()).collect();
    digits.iter().for_each(|unit| unit.nodes.iter().for_each(|&node| runs_at[node] = unit.at));
    let rows = fuse_rows::row_fusions(graph, &uses, &runs_at, target);
    let mut found = Vec::new();
    #[cfg(feature = "cuda")]
    found.extend(fuse_attention::candidates(graph, &uses, target, &runs_at, &rows));
    found.extend(fuse_digits::columns(graph, &uses, target));
    found.extend(rows.iter().filter_map(|fusion| fuse_rows::candidate(graph, target, fusion)));
    found.extend(digits);
    found.extend((0..graph.nodes.len()).flat_map(|index| of_node(graph, target, index)));
    found
}

/// The reason why no shader computes a node, if there is one.
pub(crate) fn refusal(graph: &Graph, target: &Target, index: usize) -> Option<String> {
    let node = &graph.nodes[index];
    match windows_of(graph, target, node) {
        Ok(windows) => refused(&NodePart::of(graph, node, &windows), target),
        Err(reason) => Some(reason),
    }
}

/// Every shader text of a graph, for dumps and tests. A text has the name of a node that uses it (of a product with its variant),
/// or of rows computed at once.
pub fn texts(graph: &Graph, limits: TextLimits) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let nodes = graph.nodes.iter().flat_map(|node| Variant::ALL.map(|variant| (node, variant)));
    let of_nodes = nodes.filter_map(|(node, variant)| {
        let mut name = node.primitive.name().to_string();
        if matches!(node.primitive, Primitive::Product { .. }) {
            name += &format!("-{}", variant.name());
        }
        Some((name, shader(graph, node, variant)?.text.into_owned()))
    });
    let of_rows = fuse_rows::texts(graph, limits).into_iter().map(|text| ("rows".to_string(), text));
    for (name, text) in of_nodes.chain(of_rows) {
        if !found.iter().any(|(_, t)| *t == text) {
            found.push((name, text));
        }
    }
    found
}

/// The ways to compute a node by itself.
fn of_node(graph: &Graph, target: &Target, index: usize) -> Vec<Candidate> {
    let node = &graph.nodes[index];
    let Ok(windows) = windows_of(graph, target, node) else { return Vec::new() };
    if matches!(node.primitive, Primitive::GroupOrder { .. } | Primitive::GroupOffsets { .. }) {
        return vec![Candidate::node(graph, index, Vec::new())];
    }
    let parts = NodePart::of(graph, node, &windows);
    let own = |part: &NodePart| dispatch::own_kernel(part.graph, part.node, target.variant);
    let own: Option<Vec<_>> = parts.iter().map(own).collect();
    let shaders: Option<Vec<_>> = match refused(&parts, target) {
        None => parts.iter().map(|part| dispatch::shader_kernel(part, target.variant)).collect(),
        Some(_) => None,
    };
    let launches = |kernels| copies::launches(graph, target, node, &parts, kernels);
    let candidate = |kernels| Candidate::node(graph, index, launches(kernels));
    [own, shaders].into_iter().flatten().map(candidate).collect()
}

/// The launches that compute a word of a product's exact sums, in the layout of the product; `None` if shaders do not compute
/// the product. The product's own memory takes the word.
pub(crate) fn sums(graph: &Graph, target: &Target, index: usize, word: u8) -> Option<Candidate> {
    let node = &graph.nodes[index];
    let windows = windows_of(graph, target, node).ok()?;
    let parts = NodePart::of(graph, node, &windows);
    if refused(&parts, target).is_some() {
        return None;
    }
    let kernels = parts.iter().map(|part| dispatch::sums_kernel(part, target.variant, word));
    let kernels = kernels.collect::<Option<Vec<_>>>()?;
    Some(Candidate::node(graph, index, copies::launches(graph, target, node, &parts, kernels)))
}

/// The windows that a node runs as; none if it runs as a whole.
fn windows_of(graph: &Graph, target: &Target, node: &Node) -> Result<Vec<Window>, String> {
    let uncountable = layout::uncountable(&node.operator, graph.tensor(node.output), target.variant);
    uncountable.map_or(Ok(()), Err)?;
    split::windows_of(graph, node, target.variant, target.buffer).map_err(|large| {
        let (shape, limit) = (&graph.tensor(large.tensor).shape, target.buffer);
        format!(
            "{}: the least part of {shape:?} that it takes at once has {} bytes, a shader can see {limit}",
            node.operator, large.bytes
        )
    })
}

/// The reason why shaders cannot compute all of these parts, if there is one.
fn refused(parts: &[NodePart], target: &Target) -> Option<String> {
    let refusal =
        |part: &NodePart| dispatch::refusal(part.graph, part.node, target.variant, target.limits.rounds);
    parts.iter().find_map(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::kernel::{Kernel, Limits};
    use crate::selftest;
    use tiebreak_contract::arith::DType;
    use tiebreak_contract::program::builder::Builder;
    use tiebreak_contract::program::graph::View;
    use tiebreak_contract::program::products::ProductTable;

    const CUDA: Target =
        Target { limits: Limits::CUDA, variant: Variant::Dot, buffer: 1 << 30, fuses_rows: true };

    /// Attention of two heads with its gradients, and a layer norm with a loss over its rows.
    fn graphs() -> [Graph; 2] {
        [selftest::attention(65).0, selftest::rows(65).0]
    }

    /// The kinds of candidates, in order: the kind of a candidate with several nodes; for a single node, if shaders compute it.
    fn kinds(candidates: &[Candidate]) -> Vec<&'static str> {
        let kind = |candidate: &Candidate| match (&candidate.nodes[..], candidate.launches.first()) {
            ([_], _) if candidate.has_shaders() => "node by shaders",
            ([_], _) => "node",
            (_, Some(launch)) => match &launch.kernel {
                #[cfg(feature = "cuda")]
                Kernel::Attention { .. } => "attention",
                Kernel::Columns { .. } => "columns",
                Kernel::Digitise { .. } => "digits",
                _ => "rows",
            },
            _ => unreachable!("several nodes have a kernel"),
        };
        candidates.iter().map(kind).collect()
    }

    fn fused(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
        candidates.iter().filter(|candidate| candidate.nodes.len() > 1)
    }

    #[test]
    fn the_preferred_come_first() {
        for graph in graphs() {
            let found = candidates(&graph, &CUDA);
            for (i, first) in found.iter().enumerate() {
                let inside = |later: &Candidate| first.nodes.iter().all(|node| later.nodes.contains(node));
                let more = |later: &Candidate| inside(later) && later.nodes.len() > first.nodes.len();
                assert!(!found[i + 1..].iter().any(more), "{:?} hide what has more nodes", first.nodes);
            }
            let mut kinds = kinds(&found);
            let single = kinds.iter().position(|kind| kind.starts_with("node")).unwrap();
            assert!(kinds[single..].iter().all(|kind| kind.starts_with("node")), "nodes come last");
            kinds.truncate(single);
            kinds.dedup();
            let order: &[_] = match kinds.len() {
                1 => &["rows"],
                3 => &["columns", "rows", "digits"],
                _ => &["attention", "columns", "rows", "digits"],
            };
            assert_eq!(kinds, order);
        }
        #[cfg(feature = "cuda")]
        assert_eq!(kinds(&candidates(&graphs()[0], &CUDA))[..2], ["attention"; 2], "forward and backward");
    }

    /// A device's own kernel for a node comes before its shader, which is always a candidate.
    #[test]
    fn every_node_may_run_by_itself() {
        for graph in graphs() {
            let found = candidates(&graph, &CUDA);
            for (index, node) in graph.nodes.iter().enumerate() {
                let own: Vec<Candidate> =
                    found.iter().filter(|candidate| candidate.nodes == [index]).cloned().collect();
                let digitises =
                    matches!(node.primitive, Primitive::Absmax { .. } | Primitive::Quantise { .. });
                let expected: &[_] =
                    if digitises { &["node", "node by shaders"] } else { &["node by shaders"] };
                assert_eq!(kinds(&own), expected, "{}", node.operator);
                assert_eq!(refusal(&graph, &CUDA, index), None);
            }
        }
    }

    #[test]
    fn nothing_that_touches_a_split_tensor_is_fused() {
        for graph in graphs() {
            // A row fits, but no tensor of rows does.
            let target = Target { buffer: 1024, ..CUDA };
            let found = candidates(&graph, &target);
            let is_split = |node: usize| !target.is_whole(&graph, &graph.nodes[node]);
            assert!(fused(&found).all(|candidate| !candidate.nodes.iter().any(|&node| is_split(node))));
            assert!(fused(&found).count() < fused(&candidates(&graph, &CUDA)).count());
            for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| is_split(*index)) {
                let own: Vec<_> = found.iter().filter(|candidate| candidate.nodes == [index]).collect();
                assert!(!own.is_empty(), "{} runs over windows", node.operator);
                let buffers = own.iter().flat_map(|c| &c.launches).flat_map(|launch| &launch.buffers);
                assert!(buffers.map(|(_, bytes)| *bytes).all(|bytes| bytes <= target.buffer));
            }
        }
    }

    #[test]
    fn limits_are_respected() {
        let [_, graph] = graphs();
        let rows = |limits: Limits| {
            let found = candidates(&graph, &Target { limits, ..CUDA });
            let rows = kinds(&found).into_iter().zip(&found).filter(|(kind, _)| *kind == "rows");
            rows.map(|(_, candidate)| candidate.launches[0].buffers.len()).collect::<Vec<_>>()
        };
        let most = |limits: Limits| rows(limits).into_iter().max().unwrap_or(0);
        assert!(most(Limits::CUDA) > 4);
        assert!((1..=4).contains(&most(Limits { buffers: 4, ..Limits::CUDA })));
        // Without workgroup memory, rows cannot have sums.
        assert_ne!(rows(Limits { bytes: 0, ..Limits::CUDA }), rows(Limits::CUDA));
        assert!(rows(Limits { rounds: 1, ..Limits::CUDA }).is_empty());
    }

    #[test]
    fn what_is_switched_off_is_no_candidate() {
        let [graph, _] = graphs();
        let alone = candidates(&graph, &Target { fuses_rows: false, ..CUDA });
        assert!(kinds(&alone).iter().all(|kind| !["attention", "rows"].contains(kind)));
        let words = candidates(&graph, &Target { variant: Variant::Words, ..CUDA });
        assert!(fused(&words).all(|candidate| candidate.has_shaders()), "digits are planes in their kernels");
        let products = words.iter().flat_map(|candidate| &candidate.launches);
        assert!(
            !products.map(|launch| &launch.kernel).any(|kernel| matches!(kernel, Kernel::Product { .. }))
        );
    }

    /// Nodes that no shader computes have a library's kernel, or no candidate and a reason.
    #[test]
    fn refusals_have_reasons() {
        let mut b = Builder::new(ProductTable::uniform(2));
        let x = b.input("x", DType::F32, &[8, 8]);
        let view = View { tensor: x, offset: 0, dims: [1, 1, 8, 8], strides: [0, 0, 8, 1] };
        let native = Primitive::Native { a: view.clone(), b: view };
        let wide = b.node(native, DType::F32, &[2, 1, 8, 8]);
        b.output("wide", wide);
        let graph = b.finish();
        assert_eq!(kinds(&candidates(&graph, &CUDA)), ["node"]);
        assert!(refusal(&graph, &CUDA, 0).unwrap().contains("WGSL has no binary64"));

        let [graph, _] = graphs();
        let target = Target { limits: Limits { rounds: 0, ..Limits::CUDA }, ..CUDA };
        let found = candidates(&graph, &target);
        let mut refused = 0;
        for index in 0..graph.nodes.len() {
            let shaders = found.iter().any(|candidate| candidate.nodes == [index] && candidate.has_shaders());
            assert_eq!(refusal(&graph, &target, index).is_none(), shaders);
            refused += usize::from(!shaders);
        }
        assert!((1..graph.nodes.len()).contains(&refused), "what has loops is refused");
        // No buffer holds a row.
        let reason = (0..graph.nodes.len()).find_map(|i| refusal(&graph, &Target { buffer: 256, ..CUDA }, i));
        assert!(reason.unwrap().contains("a shader can see 256"));
    }
}

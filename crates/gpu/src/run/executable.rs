//! A prepared graph: the units that run for its nodes, and their order for an observer.

use super::engine::Ready;
use crate::device::Device;
use crate::logged::Logged;
use crate::plan::unit::{Buffers, Slot};
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_engine::Observer;
use tiebreak_engine::liveness::last_touches;

/// A candidate whose kernels the device made.
pub(crate) struct Unit<P> {
    /// The nodes, in order.
    pub nodes: Vec<usize>,
    /// The node in whose place the unit runs.
    pub at: usize,
    /// The tensors that slots number: the inputs, then the outputs.
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
    pub dispatches: Vec<(Ready<P>, Buffers)>,
}

impl<P> Unit<P> {
    /// For each dispatch, the operator of the node in whose place it runs, and the number of nodes that run with it.
    pub(crate) fn names(&self, graph: &Graph) -> impl Iterator<Item = String> {
        let nodes = if self.is_fused() { format!(" (of {} nodes)", self.nodes.len()) } else { String::new() };
        let name = format!("{}{nodes}", graph.nodes[self.at].operator);
        std::iter::repeat_n(name, self.dispatches.len())
    }

    /// True if the unit computes more than one node.
    pub(crate) fn is_fused(&self) -> bool {
        self.nodes.len() > 1
    }
}

/// A graph prepared for one device.
pub(crate) struct Executable<D: Device> {
    /// The units, the preferred first; every node has a unit of its own.
    pub units: Vec<Unit<D::Pipeline>>,
    /// The roundings that summaries may compute as well.
    pub logged: Logged,
    pub uniforms: D::Uniforms,
    /// Bytes of the memory beside the tensors, by number; units share it.
    pub scratch: Vec<u64>,
}

/// Bytes of the memory beside the tensors that units take, by number.
pub(crate) fn scratch<P>(units: &[Unit<P>]) -> Vec<u64> {
    let mut scratch = Vec::new();
    for (slot, bytes) in units.iter().flat_map(|unit| &unit.dispatches).flat_map(|(_, buffers)| buffers) {
        if let Slot::Scratch(number) = *slot {
            scratch.resize(scratch.len().max(number + 1), 0);
            scratch[number] = scratch[number].max(*bytes);
        }
    }
    scratch
}

/// The units that run with this observer, in order, each with the tensors that no later unit touches. Nodes run at once where the
/// observer wants none of them.
pub(crate) fn schedule<'u, P>(
    units: &'u [Unit<P>],
    graph: &Graph,
    observer: Option<&dyn Observer>,
) -> Vec<(&'u Unit<P>, Vec<TensorId>)> {
    let wanted =
        |&node: &usize| observer.is_some_and(|observer| observer.want(node, &graph.nodes[node]).is_any());
    let mut taken = vec![false; graph.nodes.len()];
    let mut places: Vec<Option<&Unit<P>>> = vec![None; graph.nodes.len()];
    for unit in units {
        let free = !unit.nodes.iter().any(|&node| taken[node]);
        if free && !(unit.is_fused() && unit.nodes.iter().any(wanted)) {
            unit.nodes.iter().for_each(|&node| taken[node] = true);
            places[unit.at] = Some(unit);
        }
    }
    let units: Vec<&Unit<P>> = places.into_iter().flatten().collect();
    let touched = |unit: &&Unit<P>| [&unit.reads[..], &unit.writes].concat();
    let dying = last_touches(graph, units.iter().map(touched).collect());
    units.into_iter().zip(dying).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::kernel::Limits;
    use crate::plan;
    use crate::plan::unit::Target;
    use crate::selftest;
    use tiebreak_contract::program::graph::Node;
    use tiebreak_engine::{EngineError, Inputs, Want};
    use tiebreak_shaders::product::Variant;

    /// An observer that wants one node.
    struct Sees(usize);

    impl Observer for Sees {
        fn want(&self, index: usize, _node: &Node) -> Want {
            if index == self.0 { Want::Bytes } else { Want::No }
        }

        fn node(
            &mut self,
            _index: usize,
            _node: &Node,
            _bytes: &[u8],
            _inputs: &mut dyn Inputs,
        ) -> Result<Option<Vec<u8>>, EngineError> {
            Ok(None)
        }
    }

    /// Every candidate of a graph, as if a device made all kernels.
    fn units(graph: &Graph) -> Vec<Unit<()>> {
        let target =
            Target { limits: Limits::CUDA, variant: Variant::Dot, buffer: 1 << 30, fuses_rows: true };
        let candidates = plan::candidates(graph, &target).into_iter();
        candidates
            .map(|c| Unit { nodes: c.nodes, at: c.at, reads: c.reads, writes: c.writes, dispatches: vec![] })
            .collect()
    }

    /// With any observer, every node runs once and finds its inputs, and no tensor is freed that is read later.
    #[test]
    fn what_an_observer_sees_runs_by_itself() {
        let (graph, _) = selftest::attention(65);
        let units = units(&graph);
        let all = schedule(&units, &graph, None).len();
        for seen in 0..graph.nodes.len() {
            let scheduled = schedule(&units, &graph, Some(&Sees(seen)));
            let unit = scheduled.iter().find(|(unit, _)| unit.nodes.contains(&seen));
            let unit = unit.map(|(unit, _)| &unit.nodes[..]);
            assert_eq!(unit, Some(&[seen][..]));
            let mut nodes: Vec<usize> = scheduled.iter().flat_map(|(unit, _)| unit.nodes.clone()).collect();
            nodes.sort_unstable();
            assert!(nodes.into_iter().eq(0..graph.nodes.len()));
            let mut there: Vec<TensorId> = graph.inputs.iter().map(|port| port.tensor).collect();
            for (unit, dying) in &scheduled {
                assert!(unit.reads.iter().all(|tensor| there.contains(tensor)));
                there.extend(&unit.writes);
                there.retain(|tensor| !dying.contains(tensor));
            }
            assert!(graph.outputs.iter().all(|port| there.contains(&port.tensor)));
            assert!((all..graph.nodes.len()).contains(&scheduled.len()), "the others still run at once");
        }
    }
}

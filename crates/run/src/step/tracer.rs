//! Observes a committed step: hashes every operator's output, and lets roundings be logged or taken from a log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::observers::record::Rounder;
use tiebreak_contract::program::graph::{Graph, Node, TensorType};
use tiebreak_contract::program::logged::traced;
use tiebreak_contract::program::phase::Phase;
use tiebreak_engine::session::StepObserver;
use tiebreak_engine::{EngineError, Inputs, Observer, Value, Want};
use tiebreak_record::commit::tensor::{self, Hash};
use tiebreak_record::commit::trace::TracedNode;

/// Changes an operator's output as it is computed; an honest one changes nothing.
pub type Tamper<'a> = Option<&'a mut (dyn FnMut(Phase, usize, &Node, &[u8]) -> Option<Vec<u8>> + Send)>;

/// The values to watch in a step beside those that its record promises. Nodes are those of the program's own graphs, not of a
/// native trainer's.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// True to hash every operator's output, whatever the job commits.
    pub trace: bool,
    /// The nodes whose outputs are kept.
    pub outputs: BTreeSet<(Phase, usize)>,
    /// True to look for the first value that is not finite if the loss is not.
    pub finite: bool,
}

/// Outputs of nodes, canonical bytes.
pub type Outputs = BTreeMap<(Phase, usize), Vec<u8>>;

/// Hashes every node's output that it sees, keeps some, and lets roundings be logged or taken from a log.
pub struct Tracer<'t, 'r> {
    /// The outputs that were hashed, in execution order.
    pub nodes: Vec<TracedNode>,
    /// True if digests are wanted at all; then, for each node of the running graph, true if the trace holds it.
    hashing: bool,
    traced: Vec<bool>,
    /// The nodes whose outputs are to be kept.
    wanted: BTreeSet<(Phase, usize)>,
    /// The outputs that were kept.
    pub kept: Outputs,
    tamper: Tamper<'t>,
    rounder: Option<&'r mut (dyn Rounder + 'r)>,
    phase: Phase,
    graph: Option<Arc<Vec<TensorType>>>,
}

impl StepObserver for Tracer<'_, '_> {
    fn phase(&mut self, phase: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        let keeping = self.wanted.iter().any(|(of, _)| *of == phase);
        if !self.hashing && !keeping && self.tamper.is_none() && self.rounder.is_none() {
            return None;
        }
        if let Some(rounder) = &mut self.rounder {
            rounder.begin(phase, graph);
        }
        self.phase = phase;
        self.graph = Some(Arc::new(graph.nodes.iter().map(|n| graph.tensor(n.output).clone()).collect()));
        self.traced = if self.hashing { traced(graph) } else { Vec::new() };
        Some(self)
    }
}

impl<'t, 'r> Tracer<'t, 'r> {
    /// A tracer, which hashes if `hashing`.
    pub fn new(
        hashing: bool,
        tamper: Tamper<'t>,
        rounder: Option<&'r mut (dyn Rounder + 'r)>,
    ) -> Tracer<'t, 'r> {
        Tracer {
            nodes: Vec::new(),
            hashing,
            traced: Vec::new(),
            wanted: BTreeSet::new(),
            kept: Outputs::new(),
            tamper,
            rounder,
            phase: Phase::Update,
            graph: None,
        }
    }

    /// The same tracer, which also keeps the outputs of these nodes.
    pub fn keeping(mut self, wanted: BTreeSet<(Phase, usize)>) -> Self {
        self.wanted = wanted;
        self
    }

    /// True if a node's output is kept.
    fn keeps(&self, index: usize) -> bool {
        self.wanted.contains(&(self.phase, index))
    }

    /// True if the trace holds a node.
    fn hashes(&self, index: usize) -> bool {
        self.hashing && self.traced[index]
    }

    /// The output that the rounder wants of a node.
    fn rounder_wants(&self, index: usize, node: &Node) -> Want {
        self.rounder.as_ref().map_or(Want::No, |rounder| rounder.want(index, node))
    }
}

impl Observer for Tracer<'_, '_> {
    fn want(&self, index: usize, node: &Node) -> Want {
        if self.tamper.is_some() || self.keeps(index) {
            return Want::Bytes;
        }
        match (self.hashes(index), self.rounder_wants(index, node)) {
            (false, want) => want,
            (true, Want::No) => Want::Tiles,
            (true, _) => Want::Bytes,
        }
    }

    fn summary(&mut self, index: usize, node: &Node, value: Value) -> Result<(), EngineError> {
        match &mut self.rounder {
            Some(rounder) => rounder.summary(index, node, value),
            None => Ok(()),
        }
    }

    fn tiles(&mut self, index: usize, _node: &Node, tiles: Vec<Hash>) -> Result<(), EngineError> {
        let types = self.graph.as_ref().expect("a phase was begun");
        self.nodes.push(TracedNode::new(&types[index], tiles));
        Ok(())
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let mut changed = None;
        if self.rounder_wants(index, node).is_any()
            && let Some(rounder) = &mut self.rounder
        {
            changed = rounder.node(index, node, bytes, inputs)?;
        }
        if let Some(tamper) = &mut self.tamper {
            let shown = changed.as_deref().unwrap_or(bytes);
            changed = tamper(self.phase, index, node, shown).or(changed);
        }
        if self.keeps(index) {
            self.kept.insert((self.phase, index), changed.as_deref().unwrap_or(bytes).to_vec());
        }
        if self.hashes(index) {
            let types = self.graph.as_ref().expect("a phase was begun");
            let tiles = tensor::tile_values(changed.as_deref().unwrap_or(bytes));
            self.nodes.push(TracedNode::new(&types[index], tiles));
        }
        Ok(changed)
    }
}

//! A step's trace: for every node of every phase, in execution order, the digest of its output and the hash of each tile in
//! BLAKE3's tree. Jobs with `commit = "operator"` publish one file for each step.

use std::collections::HashMap;

use super::codec::{Decoder, Encoder};
use super::digest::Digest;
use super::{Malformed, merkle, table, tensor};
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::logged::traced;
use tiebreak_contract::program::phase::{Phase, graph_of, phases};
use tiebreak_contract::program::step::Program;

/// The committed output of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedNode {
    /// The output's tensor digest.
    pub digest: Digest,
    /// One value for each tile of the output.
    pub tiles: Vec<[u8; 32]>,
}

impl TracedNode {
    /// The node whose output, of type `ty`, has these tiles.
    #[doc(hidden)] // for the layers above
    pub fn new(ty: &TensorType, tiles: Vec<[u8; 32]>) -> TracedNode {
        let digest = tensor::digest_from_root(ty, &tensor::root_from_tiles(&tiles));
        TracedNode { digest, tiles }
    }

    /// Appends the digest and the tiles.
    #[doc(hidden)] // for the layers above
    pub fn encode(&self, e: &mut Encoder) {
        e.digest(&self.digest).list(&self.tiles, |e, value| e.0.extend(value));
    }

    /// The most bytes that an output of type `ty` takes.
    #[doc(hidden)] // for the layers above
    pub fn bytes(ty: &TensorType) -> u64 {
        36 + 32 * tensor::tile_count(ty.bytes()) as u64
    }

    /// Decodes an output of type `ty`. The number of tiles must be the type's, and the tiles must give the digest.
    ///
    /// # Errors
    /// If the bytes end too early, or tiles and digest do not fit the type or each other.
    #[doc(hidden)] // for the layers above
    pub fn decode(d: &mut Decoder, ty: &TensorType) -> Result<TracedNode, Malformed> {
        let what = "trace";
        let digest = d.digest()?;
        let count = tensor::tile_count(ty.bytes());
        let tiles = d.list(count, |d| Ok(d.digest()?.0))?;
        if tiles.len() != count {
            let why = format!("a node has {} tiles; its tensor has {count}", tiles.len());
            return Err(Malformed::invalid(what, why));
        }
        let node = TracedNode::new(ty, tiles);
        if node.digest != digest {
            let [found, own] = [node.digest, digest].map(|digest| digest.short());
            return Err(Malformed::invalid(
                what,
                format!("a node's tiles give {found}; its digest is {own}"),
            ));
        }
        Ok(node)
    }
}

/// The committed outputs of a step, in the order of [`phases`] and, within a phase, of the graph's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// One entry for each node that traces hold.
    pub nodes: Vec<TracedNode>,
}

/// The nodes of each graph that traces hold, by number.
struct Traced {
    micro: Vec<usize>,
    accumulate: Vec<usize>,
    update: Vec<usize>,
}

impl Traced {
    fn of(program: &Program) -> Traced {
        let places = |graph: &Graph| -> Vec<usize> {
            traced(graph).into_iter().enumerate().filter_map(|(node, held)| held.then_some(node)).collect()
        };
        Traced {
            micro: places(&program.micro),
            accumulate: places(&program.accumulate),
            update: places(&program.update),
        }
    }

    fn nodes(&self, phase: Phase) -> &[usize] {
        match phase {
            Phase::Micro(_) => &self.micro,
            Phase::Accumulate(_) => &self.accumulate,
            Phase::Update => &self.update,
        }
    }
}

/// The indices of all leaves of a program's traces. Callers that ask for more than one index build this table once, because
/// listing the traced nodes takes time.
pub struct Places {
    traced: Traced,
    /// The number of leaves before each phase's leaves.
    before: HashMap<Phase, usize>,
    count: usize,
}

impl Places {
    /// The table of a program.
    pub fn of(program: &Program) -> Places {
        let (traced, mut before, mut count) = (Traced::of(program), HashMap::new(), 0);
        for phase in phases(program.micro_batches) {
            before.insert(phase, count);
            count += traced.nodes(phase).len();
        }
        Places { traced, before, count }
    }

    /// The number of leaves of a trace.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The index of a node's leaf, if a step has the node and traces hold it.
    pub fn place(&self, phase: Phase, node: usize) -> Option<usize> {
        let before = self.before.get(&phase)?;
        self.traced.nodes(phase).binary_search(&node).ok().map(|place| before + place)
    }
}

/// Every traced node of a step: (phase, node of that phase's graph), in the trace's order.
pub fn positions(program: &Program) -> Vec<(Phase, usize)> {
    let traced = Traced::of(program);
    let phases = phases(program.micro_batches).into_iter();
    phases.flat_map(|phase| traced.nodes(phase).iter().map(move |&node| (phase, node))).collect()
}

/// The number of leaves of a step's trace, without a list of them.
pub fn leaf_count(program: &Program) -> usize {
    Places::of(program).count()
}

/// The index of a node's leaf in its step's trace, if the step has the node and traces hold it.
pub fn leaf_place(program: &Program, phase: Phase, node: usize) -> Option<usize> {
    Places::of(program).place(phase, node)
}

/// The name of a node's leaf, made of phase and number, so that no two leaves of a trace have the same name.
pub fn leaf_name(phase: Phase, node: usize) -> String {
    match phase {
        Phase::Micro(i) => format!("micro{i}/{node}"),
        Phase::Accumulate(i) => format!("accumulate{i}/{node}"),
        Phase::Update => format!("update/{node}"),
    }
}

/// The name of a batch tensor's leaf under a record's batch digest.
pub fn batch_leaf_name(micro_batch: u32, tensor: &str) -> String {
    format!("micro{micro_batch}/{tensor}")
}

impl Trace {
    /// The Merkle leaves, in order.
    #[doc(hidden)] // for the layers above
    pub fn leaves(&self, program: &Program) -> Vec<Digest> {
        let positions = positions(program).into_iter();
        positions
            .zip(&self.nodes)
            .map(|((phase, node), traced)| table::leaf(&leaf_name(phase, node), &traced.digest))
            .collect()
    }

    /// The trace root of a step's record.
    pub fn root(&self, program: &Program) -> Digest {
        merkle::root(&self.leaves(program))
    }

    /// The trace's canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.list(&self.nodes, |e, node| node.encode(e));
        e.0
    }

    /// Decodes a trace of `program`. The numbers of nodes and tiles must be the program's, and the tiles must give the
    /// digests.
    ///
    /// # Errors
    /// If the bytes are not the canonical bytes of a trace of `program`.
    pub fn decode(program: &Program, bytes: &[u8]) -> Result<Trace, Malformed> {
        let what = "trace";
        let positions = positions(program);
        let mut d = Decoder::new(what, bytes);
        let mut place = positions.iter();
        let nodes = d.list(positions.len(), |d| {
            let more = || Malformed::TooLarge { what, limit: positions.len() as u64 };
            let (phase, node) = place.next().ok_or_else(more)?;
            let graph = graph_of(program, *phase);
            TracedNode::decode(d, graph.tensor(graph.nodes[*node].output))
        })?;
        d.finish()?;
        if nodes.len() != positions.len() {
            let why = format!("it has {} nodes; a step has {}", nodes.len(), positions.len());
            return Err(Malformed::invalid(what, why));
        }
        Ok(Trace { nodes })
    }

    /// The most bytes that a trace of `program` takes.
    #[doc(hidden)] // for the layers above
    pub fn bytes_max(program: &Program) -> u64 {
        let node_bytes = |(phase, node): (Phase, usize)| {
            let graph = graph_of(program, phase);
            TracedNode::bytes(graph.tensor(graph.nodes[node].output))
        };
        4 + positions(program).into_iter().map(node_bytes).sum::<u64>()
    }
}

//! The trace of an answer: the digest of each row of logits, and for each window each operator's output with its tiles. The signer
//! of a receipt of format 2 answers for them. Layout: `docs/INFERENCE.md`, Traces of answers.

use std::borrow::Borrow;

use super::codec::{Decoder, Encoder};
use super::digest::Digest;
use super::trace::TracedNode;
use super::{Malformed, merkle, table};
use tiebreak_contract::program::graph::{Graph, Node};

/// The trace of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerTrace {
    /// The digest of the row of each token.
    pub rows: Vec<Digest>,
    /// The windows in order: each node of the window's graph.
    pub windows: Vec<Vec<TracedNode>>,
}

/// The leaf of a node under the root of its window.
pub fn node_leaf(node: usize, output: &Digest) -> Digest {
    table::leaf(&format!("step/{node}"), output)
}

/// The leaf of a window under a receipt's root over traces: the number of its first token in the text, the number of its tokens, and
/// the root over its nodes.
pub fn window_leaf(first: u32, tokens: u32, root: &Digest) -> Digest {
    let mut e = Encoder::default();
    e.u32(first).u32(tokens).digest(root);
    merkle::leaf(&e.0)
}

/// What a party of a dispute game claims about a receipt: the root over its two roots, that over traces first.
pub fn claimed_root(traces: &Digest, rows: &Digest) -> Digest {
    merkle::root(&[*traces, *rows])
}

/// The leaves of a window's nodes.
pub fn node_leaves(nodes: &[TracedNode]) -> Vec<Digest> {
    nodes.iter().enumerate().map(|(node, traced)| node_leaf(node, &traced.digest)).collect()
}

impl AnswerTrace {
    /// The leaves of the windows, each of which has a first token and a number of tokens.
    pub fn window_leaves(&self, windows: &[[u32; 2]]) -> Vec<Digest> {
        let of = |(&[first, tokens], nodes): (&[u32; 2], &Vec<TracedNode>)| {
            window_leaf(first, tokens, &merkle::root(&node_leaves(nodes)))
        };
        windows.iter().zip(&self.windows).map(of).collect()
    }

    /// The trace's canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.list(&self.rows, |e, row| {
            e.digest(row);
        });
        e.list(&self.windows, |e, nodes| {
            e.list(nodes, |e, node| node.encode(e));
        });
        e.0
    }

    /// Decodes the trace of an answer of so many tokens, whose windows have these graphs.
    ///
    /// # Errors
    /// If the bytes are not the canonical bytes of such a trace.
    pub fn decode(
        bytes: &[u8],
        rows: usize,
        graphs: &[impl Borrow<Graph>],
    ) -> Result<AnswerTrace, Malformed> {
        let what = "trace";
        let mut d = Decoder::new(what, bytes);
        let found = d.list(rows, Decoder::digest)?;
        let mut graphs_left = graphs.iter();
        let windows = d.list(graphs.len(), |d| {
            let graph = graphs_left.next().map(Borrow::borrow);
            let nodes = graph.map_or(&[][..], |graph| &graph.nodes);
            let mut left = nodes.iter();
            let node = |d: &mut Decoder| {
                let too_many = || Malformed::TooLarge { what, limit: nodes.len() as u64 };
                let (graph, node): (&Graph, &Node) = graph.zip(left.next()).ok_or_else(too_many)?;
                TracedNode::decode(d, graph.tensor(node.output))
            };
            let found = d.list(nodes.len(), node)?;
            if found.len() == nodes.len() {
                return Ok(found);
            }
            let why = format!("a window has {} nodes; its graph has {}", found.len(), nodes.len());
            Err(Malformed::invalid(what, why))
        })?;
        d.finish()?;
        if found.len() != rows || windows.len() != graphs.len() {
            let (count, passes) = (found.len(), windows.len());
            let why = format!(
                "it has {count} rows and {passes} windows; the answer has {rows} and {}",
                graphs.len()
            );
            return Err(Malformed::invalid(what, why));
        }
        Ok(AnswerTrace { rows: found, windows })
    }

    /// The most bytes of such a trace.
    pub fn bytes_max(rows: usize, graphs: &[impl Borrow<Graph>]) -> u64 {
        let node = |graph: &Graph, node: &Node| TracedNode::bytes(graph.tensor(node.output));
        let of = |graph: &Graph| 4 + graph.nodes.iter().map(|each| node(graph, each)).sum::<u64>();
        8 + 32 * rows as u64 + graphs.iter().map(|graph| of(graph.borrow())).sum::<u64>()
    }
}

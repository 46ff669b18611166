//! The sizes of verdicts, from the program alone: the bytes that one element of each operator's output takes at worst.

use super::evidence::leaf::{LeafError, worst_touched};
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::Program;
use tiebreak_job::data::layout::is_npy;
use tiebreak_job::data::safetensors::DATA_HEADER_MAX;
use tiebreak_job::manifest::FILE_MAX;
use tiebreak_job::spec::DataFiles;
use tiebreak_record::commit::multiproof;
use tiebreak_record::commit::tensor::{SLICE_BYTES, TILE_BYTES, piece_count, piece_range, tile_count};
use tiebreak_record::commit::trace::leaf_count;

/// Elements that are tried for each output: enough to include rows that begin and end inside a slice.
const TRIED: usize = 24;
/// JSON's names and punctuation of an input, at most.
const INPUT_FRAME: usize = 256;
/// A digest as JSON: 64 digits, quotes and a comma.
const DIGEST: usize = 67;

/// A hash of a proof, as JSON: 43 digits of a longer text.
const SIBLING: usize = 43;
/// The most levels of the tree over a file's slices.
const FILE_LEVELS: usize = (FILE_MAX / SLICE_BYTES as u64).ilog2() as usize;

/// The most bytes of the evidence about an element of a batch, in an answer of a dispute game. The evidence is the manifest of
/// each file, the header of each file that has one, and the element.
pub fn samples_bytes(data: &DataFiles) -> u64 {
    let slices = |count: usize, ends: usize| {
        base64(count * SLICE_BYTES) + count * 11 + ends * FILE_LEVELS * SIBLING + INPUT_FRAME
    };
    let file = |path: &&str| match data {
        _ if is_npy(path) => slices(1, 1),
        DataFiles::Arrays(_) => slices(DATA_HEADER_MAX / SLICE_BYTES, 1),
        DataFiles::Idx { .. } => slices(1, 1),
        _ => 0,
    };
    let paths = data.paths();
    // `{"bytes":1099511627776,"root":"..."},`
    let manifests = paths.len() * (32 + DIGEST);
    // A byte of a mask is in one slice. An element may begin in one slice and end in the next.
    let of_mask =
        if matches!(data, DataFiles::Tokens { masks, .. } if !masks.is_empty()) { slices(1, 1) } else { 0 };
    (manifests + paths.iter().map(file).sum::<usize>() + of_mask + slices(2, 2)) as u64
}

/// Bytes as base64 text.
fn base64(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// The bytes of the file that a verdict on one element of a node's output takes for the operator: the disclosed tile and the
/// proven slices of every input. Job, records and head take a few KiB more.
///
/// # Errors
/// If the element can read more than [`super::evidence::leaf::READS_MAX`] elements.
pub(crate) fn leaf_bytes(
    program: &Program,
    phase: Phase,
    node: usize,
    element: usize,
) -> Result<usize, LeafError> {
    let graph = graph_of(program, phase);
    // A tensor of the batch, the state or the trace has at most this many siblings.
    let proof = DIGEST * (leaf_count(program).max(program.state().len()).ilog2() as usize + 1);
    let output = graph.tensor(graph.nodes[node].output).bytes();
    let siblings = multiproof::proof_len(tile_count(output), &[0]);
    let mut bytes = base64(TILE_BYTES.min(output)) + base64(32 * siblings) + proof + INPUT_FRAME;
    let touched = worst_touched(graph, node, element)?;
    let mut tensors: Vec<TensorId> = touched.iter().map(|(tensor, _)| *tensor).collect();
    tensors.dedup();
    for id in tensors {
        let len = graph.tensor(id).bytes();
        let slices: Vec<usize> = touched.iter().filter(|(t, _)| *t == id).map(|(_, slice)| *slice).collect();
        let places: usize = slices.iter().map(|slice| slice.checked_ilog10().unwrap_or(0) as usize + 2).sum();
        let content: usize = slices.iter().map(|&slice| piece_range(len, SLICE_BYTES, slice).len()).sum();
        let siblings = multiproof::proof_len(piece_count(len, SLICE_BYTES), &slices);
        bytes += base64(content) + base64(32 * siblings) + places + proof + INPUT_FRAME;
    }
    Ok(bytes)
}

/// The greatest `leaf_bytes` among some elements that are spread over a node's output.
///
/// # Errors
/// If an element can read more than [`super::evidence::leaf::READS_MAX`] elements.
pub fn worst_leaf_bytes(program: &Program, phase: Phase, node: usize) -> Result<usize, LeafError> {
    let graph = graph_of(program, phase);
    let len = graph.tensor(graph.nodes[node].output).len();
    let mut worst = 0;
    for i in 0..TRIED.min(len) {
        // The elements are both ends, and indices that no power of two divides evenly.
        let element = if i + 1 == TRIED { len - 1 } else { len / TRIED * i + i };
        worst = worst.max(leaf_bytes(program, phase, node, element.min(len - 1))?);
    }
    Ok(worst)
}

//! A liar whose terms give its element: it lies about one addend of the sum, so that the game has to search the terms.

use std::collections::BTreeMap;

use tiebreak_contract::arith::words::word_from_bytes;
use tiebreak_contract::program::element::Source;
use tiebreak_contract::program::graph::{Graph, Primitive, TensorId};
use tiebreak_dispute::evidence::leaf::LeafError;
use tiebreak_dispute::game::element::{self, fold_of};
use tiebreak_dispute::game::message::{Answer, Fold, Question, Tree};
use tiebreak_dispute::game::search::{Join, parent};

/// Whole tensors, canonical bytes.
pub type Tensors = BTreeMap<TensorId, Vec<u8>>;

struct Whole<'a> {
    graph: &'a Graph,
    tensors: &'a Tensors,
}

impl Source for Whole<'_> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        let dtype = self.graph.tensor(tensor).dtype;
        let at = index * dtype.size();
        let bytes = self.tensors.get(&tensor).and_then(|bytes| bytes.get(at..at + dtype.size()));
        Ok(word_from_bytes(dtype, bytes.ok_or(LeafError::Outside { tensor })?))
    }
}

/// An integer sum, and the sum raised by an eighth.
fn raised(value: &[u8]) -> Option<[i128; 2]> {
    let sum = i128::from_le_bytes(value.try_into().ok()?);
    Some([sum, sum + sum / 8])
}

/// The element of a product's output that follows from a sum raised by an eighth; `None` if the game does not search its terms.
pub fn raised_element(graph: &Graph, node: usize, element: usize, tensors: &Tensors) -> Option<u32> {
    let fold = fold_of(graph, node, element, 0).filter(|fold| *fold == Fold::Product)?;
    let frame = element::frame(graph, node, element, fold, &mut Whole { graph, tensors }).ok()?;
    let total = element::total(graph, node, element, fold, tensors).ok()?;
    element::total_word(graph, node, element, &frame, &raised(&total)?[1].to_le_bytes())
}

/// The elements of the longest segment of a sum over segments; all elements for another operator.
pub fn longest(graph: &Graph, node: usize, tensors: &Tensors) -> std::ops::Range<usize> {
    let output = graph.tensor(graph.nodes[node].output);
    let Primitive::SegmentSum { offsets, .. } = graph.nodes[node].primitive else { return 0..output.len() };
    let width = *output.shape.last().unwrap_or(&1) as usize;
    let ends = tensors.get(&offsets).map_or(&[][..], Vec::as_slice).as_chunks::<4>().0;
    let ends: Vec<u32> = ends.iter().map(|end| u32::from_le_bytes(*end)).collect();
    let rows = ends.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    let row = rows.enumerate().max_by_key(|(_, rows)| *rows).map_or(0, |(row, _)| row);
    row * width..(row + 1) * width
}

/// The liar's changes to the answers that its operands give.
#[derive(Default)]
pub struct Skew {
    /// The last slice that was shown, with the element.
    slice: Vec<u8>,
    /// The amount by which an integer sum is raised.
    by: i128,
    /// The claimed value of the node of a segment's tree that is opened next.
    claimed: Option<[u8; 4]>,
}

impl Skew {
    /// The liar's answer: the first of a node's children is always wrong, so that the referee asks for that child next.
    pub fn answer(&mut self, question: &Question, answer: Answer) -> Answer {
        match (question, answer) {
            (Question::Slice { .. }, Answer::Slice { bytes }) => {
                self.slice.clone_from(&bytes.0);
                Answer::Slice { bytes }
            }
            (Question::Total { .. }, Answer::Total { mut value }) => {
                if let Some([sum, more]) = raised(&value.0) {
                    self.by = more - sum;
                    value.0 = more.to_le_bytes().to_vec();
                }
                Answer::Total { value }
            }
            (
                Question::Children { tree: Tree::Terms { fold, element, .. }, first: 0, count },
                Answer::Children { mut values },
            ) => {
                let size = Join::Terms(*fold).bytes();
                let mut all: Vec<Vec<u8>> = values.0.chunks(size).map(<[u8]>::to_vec).collect();
                match fold {
                    Fold::Product => {
                        let sum = i128::from_le_bytes(all[0].as_slice().try_into().unwrap_or_default());
                        all[0] = (sum + self.by).to_le_bytes().to_vec();
                    }
                    _ => self.segment(*fold, *element as usize, *count, &mut all),
                }
                values.0 = all.concat();
                Answer::Children { values }
            }
            (_, answer) => answer,
        }
    }

    /// Changes the first value so that all together give the claimed one: a binary32 number nearby does.
    fn segment(&mut self, fold: Fold, element: usize, count: u64, values: &mut [Vec<u8>]) {
        let top = self.claimed.is_none();
        let at = element * 4 % 1024;
        let of_slice =
            || self.slice.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or_default();
        let wanted: [u8; 4] = self.claimed.unwrap_or_else(of_slice);
        let given = |values: &[Vec<u8>]| parent(Join::Terms(fold), count, fold.terms_max(), values, top);
        let float = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap_or_default());
        let near = float(&values[0]) + (float(&wanted) - float(&given(values)));
        let honest = values[0].clone();
        for step in 0..4096u32 {
            let word = if step % 2 == 0 { near.to_bits() + step / 2 } else { near.to_bits() - step / 2 };
            values[0] = word.to_le_bytes().to_vec();
            if given(values) == wanted {
                self.claimed = Some(word.to_le_bytes());
                return;
            }
        }
        values[0] = honest;
    }
}

//! The work of a referee that computes the whole disputed operator: bytes of its operands and output, and time of the scalar
//! reference.

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tiebreak_contract::arith::words::word_from_bytes;
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::step::Program;

use crate::liar::Taken;

/// The time for which elements are computed; the remaining time is estimated.
const ENOUGH: Duration = Duration::from_millis(1500);

/// Whole tensors.
struct Whole<'a> {
    graph: &'a Graph,
    tensors: &'a BTreeMap<TensorId, Vec<u8>>,
}

impl Source for Whole<'_> {
    type Error = String;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, String> {
        let dtype = self.graph.tensor(tensor).dtype;
        let bytes = self.tensors.get(&tensor).ok_or("an operand was not taken")?;
        let at = index * dtype.size();
        let bytes = bytes.get(at..at + dtype.size()).ok_or("an operand is too short")?;
        Ok(word_from_bytes(dtype, bytes))
    }
}

/// Prints the node's bytes and time as a whole.
pub fn print(program: &Program, node: usize, taken: &Taken) -> Result<(), Box<dyn Error>> {
    let graph = &program.micro;
    let node = &graph.nodes[node];
    let tensors = taken.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes: usize = tensors.values().map(Vec::len).sum();
    let count = graph.tensor(node.output).len();
    let mut source = Whole { graph, tensors: &tensors };
    // Elements spread over the whole output: the stride shares no factor with its length.
    let stride = (count / 1009).max(1) | 1;
    let (began, mut done, mut place) = (Instant::now(), 0usize, 0usize);
    while done < count && began.elapsed() < ENOUGH {
        for _ in 0..16.min(count - done) {
            black_box(element::range(graph, node, place..place + 1, &mut source)?);
            place = (place + stride) % count;
            done += 1;
        }
    }
    let seconds = began.elapsed().as_secs_f64() * count as f64 / done as f64;
    let how = if done < count { format!(", from {done} elements") } else { String::new() };
    println!(
        "    the operator whole: {bytes} bytes of operands and output; {count} elements in {seconds:.3} s by the scalar reference{how}"
    );
    Ok(())
}

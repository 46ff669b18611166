//! The test of a library of native products: products of integers whose sums are exact in every precision and every order.

use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, Primitive, View};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::{Engine, EngineError, outputs_of};

/// True if an engine's native products in `parts` parts are right for integers.
pub(crate) fn multiplies_integers_well(engine: &mut dyn Engine, parts: u32) -> Result<bool, EngineError> {
    let (graph, inputs) = trial(parts);
    let graph = Arc::new(graph);
    Ok(outputs_of(engine, &graph, &inputs)? == outputs_of(&mut Cpu::new(1)?, &graph, &inputs)?)
}

/// Views of a tensor of [`LEN`] elements: views of linear layers and of attention, and some that have to be copied.
const VIEWS: [[([u32; 4], [u32; 4]); 2]; 6] = [
    // The views are rows by rows, as in a linear layer; columns by columns, as in its weights' gradient; and one of each.
    [([1, 1, 21, 40], [0, 0, 40, 1]), ([1, 1, 9, 40], [0, 0, 40, 1])],
    [([1, 1, 21, 40], [0, 0, 1, 21]), ([1, 1, 9, 40], [0, 0, 1, 9])],
    [([1, 1, 21, 40], [0, 0, 40, 1]), ([1, 1, 9, 40], [0, 0, 1, 9])],
    // The views have two samples of three heads side by side.
    [([2, 3, 8, 5], [120, 5, 15, 1]), ([2, 3, 8, 5], [120, 5, 15, 1])],
    [([2, 3, 8, 8], [192, 64, 8, 1]), ([2, 3, 5, 8], [120, 5, 1, 15])],
    // All samples share an operand, with every second element of a row.
    [([4, 1, 7, 20], [0, 0, 40, 2]), ([4, 1, 3, 20], [60, 0, 20, 1])],
];
const LEN: u32 = 900;

/// Native products in `parts` parts of every kind of view, and the tensors for them. The tensors hold integers whose sums are
/// exact in every precision and every order, so that a result is right or wrong.
fn trial(parts: u32) -> (Graph, Vec<Vec<u8>>) {
    let mut builder = Builder::new(ProductTable::uniform(2));
    let inputs = ["left", "right"].map(|name| builder.input(name, DType::F32, &[LEN]));
    for views in VIEWS {
        let view = |i: usize| {
            let (dims, strides) = views[i];
            View { tensor: inputs[i], offset: 7 * i as u32, dims, strides }
        };
        let ([b0, b1, m, _], n) = (views[0].0, views[1].0[2]);
        let output = builder.node(
            Primitive::Native { a: view(0), b: view(1) },
            DType::F32,
            &[parts, b0 * b1, m, n][if parts == 1 { 1.. } else { 0.. }],
        );
        builder.output("product", output);
    }
    let integers = |i: u32| {
        let word = |j: u32| (((j + i).wrapping_mul(0x9e37_79b1) >> 28) as f32 + 1.0).to_bits();
        bytes_from_words(DType::F32, &(0..LEN).map(word).collect::<Vec<u32>>())
    };
    (builder.finish(), vec![integers(0), integers(3)])
}

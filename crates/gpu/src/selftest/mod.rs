//! The self-test of an engine before a program runs on it, beside the fingerprint of all operators.
//!
//! Small graphs, with ordinary and extreme inputs, reach everything that an engine computes in a way of its own. This folder
//! knows engines, not their parts.

#[cfg(feature = "cuda")]
mod native;

use std::sync::Arc;

#[cfg(feature = "cuda")]
pub(crate) use native::multiplies_integers_well;

use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::Graph;
use tiebreak_contract::program::operators::{causal_attention, cross_entropy, layer_norm};
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Engine, EngineError, outputs_of};

/// A product of two digits that takes a measurable time, and the bytes of either operand.
pub(crate) fn product() -> (Graph, Vec<u8>) {
    const SIDE: u32 = 512;
    let mut builder = Builder::new(ProductTable::uniform(2));
    let a = builder.input("a", DType::F32, &[SIDE, SIDE]);
    let b = builder.input("b", DType::F32, &[SIDE, SIDE]);
    let (view_a, view_b) = (builder.whole(a), builder.whole(b));
    let output = builder.product(ProductClass::Linear, view_a, view_b, &[SIDE, SIDE]);
    builder.output("product", output);
    let words: Vec<u32> =
        (0..u64::from(SIDE * SIDE)).map(|i| ((i * i % 1009) as f32 - 504.0).to_bits()).collect();
    (builder.finish(), bytes_from_words(DType::F32, &words))
}

/// True if an engine computes nodes over the same rows, and rows between two products, with the scalar reference's bits.
pub(crate) fn computes_rows_well(engine: &mut dyn Engine) -> Result<bool, EngineError> {
    for (graph, inputs) in [rows(ROW_LEN), attention(ROW_LEN)] {
        let graph = Arc::new(graph);
        if outputs_of(engine, &graph, &inputs)? != outputs_of(&mut Reference, &graph, &inputs)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A length of rows with a last round of one element, and an odd node on every level of its tree.
const ROW_LEN: u32 = 65;

/// A layer norm, a loss over its rows and both gradients, with inputs: rows of ordinary, subnormal and large numbers, and rows
/// with a NaN and with infinities.
pub(crate) fn rows(len: u32) -> (Graph, Vec<Vec<u8>>) {
    const ROWS: u32 = 5;
    let mut b = Builder::new(ProductTable::two_and_three());
    let x = b.input("x", DType::F32, &[ROWS, len]);
    let [gain, bias] = ["gain", "bias"].map(|name| b.input(name, DType::F32, &[len]));
    let labels = b.input("labels", DType::U32, &[ROWS]);
    let factor = b.input("factor", DType::F32, &[1]);
    let y = layer_norm(&mut b, x, gain, bias, 1e-5);
    let (loss, dy) = cross_entropy(&mut b, y, labels, factor);
    let dx = b.backward(y, dy)[&x];
    for (name, tensor) in [("y", y), ("loss", loss), ("dy", dy), ("dx", dx)] {
        b.output(name, tensor);
    }

    let word = |i: u32, stream: u32| match (stream, i / len, i % len) {
        (0, 1, _) => philox4x32_10([stream, len], [i, 0, 0, 0])[0] & 0x807f_ffff,
        (0, 3, 7) => float::NAN,
        (0, 4, 60 | 61) => 0x7f80_0000 | (i % 2) << 31,
        (_, row, _) => {
            let [bits, spread, ..] = philox4x32_10([stream, len], [i, 0, 0, 0]);
            (bits & 0x807f_ffff) | ((if row == 2 { 250 } else { 120 }) + spread % 5) << 23
        }
    };
    let words = |len: u32, stream: u32| (0..len).map(|i| word(i, stream)).collect::<Vec<u32>>();
    let labels = (0..ROWS).map(|row| row * (len - 1) / (ROWS - 1)).collect();
    let inputs = [
        words(ROWS * len, 0),
        words(len, 1),
        words(len, 2),
        labels,
        vec![float::div(float::ONE, 0x40a0_0000)],
    ];
    (b.finish(), inputs.iter().map(|words| bytes_from_words(DType::F32, words)).collect())
}

/// Attention over `positions` positions with its gradients, and inputs: ordinary numbers, and for the second of two heads a few
/// large ones, a subnormal one and a NaN.
pub(crate) fn attention(positions: u32) -> (Graph, Vec<Vec<u8>>) {
    const WIDTH: u32 = 6;
    let mut b = Builder::new(ProductTable::two_and_three());
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

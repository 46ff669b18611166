//! The scalar reference and the CPU engine's building blocks against golden vectors that a script made from the
//! contract's text (`assets/vectors/contract.py`: Python integers and fractions, no code of ours).

#![cfg(feature = "engine")]

use std::sync::Arc;

use serde::Deserialize;
use tiebreak::arith::words::bytes_from_words;
use tiebreak::arith::{DType, digits, float, philox, tree};
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::outputs_of;
use tiebreak::engine::reference::Reference;
use tiebreak::program::builder::Builder;
use tiebreak::program::graph::block_count;
use tiebreak::program::init;
use tiebreak::program::models::Init;
use tiebreak::program::operators::conv2d;
use tiebreak::program::products::ProductTable;

#[derive(Deserialize)]
#[expect(clippy::type_complexity, reason = "rows as they stand in the file")]
struct Vectors {
    scalar: Vec<[u32; 8]>,
    tree: Vec<(Vec<u32>, u32)>,
    product: Vec<(Vec<u32>, Vec<u32>, u32, u32, u32, u32)>,
    convolution: Vec<([u32; 4], [u32; 4], [u32; 4], [u32; 3], [Vec<u32>; 6])>,
    philox: Vec<([u32; 2], [u32; 4], [u32; 4])>,
    init: Vec<([u32; 2], u32, u64, u32, u32)>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../assets/vectors/contract.json")).expect("the vectors are JSON")
}

#[test]
fn scalars() {
    for [a, b, sum, difference, product, quotient, root, less] in vectors().scalar {
        let have = [
            float::add(a, b),
            float::sub(a, b),
            float::mul(a, b),
            float::div(a, b),
            float::sqrt(a),
            float::lt(a, b),
        ];
        assert_eq!(have, [sum, difference, product, quotient, root, less], "{a:08x} and {b:08x}");
    }
}

#[test]
fn trees() {
    for (terms, sum) in vectors().tree {
        assert_eq!(tree::sum(terms.iter().copied()), sum, "{} terms", terms.len());
        // Padding with -0 to any length changes nothing, unless there was nothing.
        if !terms.is_empty() {
            let padding = std::iter::repeat_n(float::NEG_ZERO, 11);
            assert_eq!(tree::sum(terms.iter().copied().chain(padding)), sum);
        }
    }
}

#[test]
fn products() {
    for (a, b, digits_a, digits_b, block, want) in vectors().product {
        let step = if block == 0 { a.len().max(1) } else { block as usize };
        let parts = (0..block_count(a.len() as u32, block) as usize).map(|i| {
            let range = i * step..((i + 1) * step).min(a.len());
            let quantised = |row: &[u32], d| {
                let absmax = digits::group_absmax(row.iter().copied());
                (absmax, row.iter().map(|&x| digits::quantise(x, absmax, d)).collect::<Vec<_>>())
            };
            let (absmax_a, qa) = quantised(&a[range.clone()], digits_a);
            let (absmax_b, qb) = quantised(&b[range], digits_b);
            digits::dot(&qa, &qb, absmax_a, absmax_b, digits_a, digits_b)
        });
        let parts: Vec<u32> = parts.collect();
        let have = if parts.len() == 1 { parts[0] } else { tree::sum(parts) };
        assert_eq!(have, want, "K = {}, digits {digits_a} and {digits_b}, block {block}", a.len());
    }
}

#[test]
fn convolutions() {
    for (x, weight, dy, [stride, padding, digits], [xs, weights, dys, y, dx, dw]) in vectors().convolution {
        let mut b = Builder::new(ProductTable::uniform(digits as u8));
        let [x_id, weight_id] =
            [("x", x), ("weight", weight)].map(|(name, shape)| b.input(name, DType::F32, &shape));
        let y_id = conv2d(&mut b, x_id, weight_id, stride, padding).unwrap();
        assert_eq!(b.shape(y_id), dy);
        let dy_id = b.input("dy", DType::F32, &dy);
        let gradients = b.backward(y_id, dy_id);
        let wanted = [(y_id, y), (gradients[&x_id], dx), (gradients[&weight_id], dw)];
        wanted.iter().for_each(|(id, _)| b.output(format!("{id:?}"), *id));
        let graph = Arc::new(b.finish());
        let inputs = [xs, weights, dys].map(|words| bytes_from_words(DType::F32, &words));
        let wanted: Vec<Vec<u8>> =
            wanted.iter().map(|(_, words)| bytes_from_words(DType::F32, words)).collect();
        assert_eq!(outputs_of(&mut Reference, &graph, &inputs).unwrap(), wanted, "reference, {x:?}");
        assert_eq!(outputs_of(&mut Cpu::new(2).unwrap(), &graph, &inputs).unwrap(), wanted, "CPU, {x:?}");
    }
}

#[test]
fn random_words_and_initial_weights() {
    for (key, counter, words) in vectors().philox {
        assert_eq!(philox::philox4x32_10(key, counter), words);
    }
    for (seed, parameter, element, std, weight) in vectors().init {
        let init = Init::Normal { std: f32::from_bits(std) };
        assert_eq!(
            init::element(seed, parameter, element, init),
            weight,
            "parameter {parameter}, element {element}"
        );
    }
}

//! The scalar reference and the CPU engine's building blocks against golden vectors that a script made from the
//! contract's text (`assets/vectors/contract.py`: Python integers and fractions, no code of ours).

use serde::Deserialize;
use tiebreak::arith::{digits, float, philox, tree};
use tiebreak::program::graph::block_count;
use tiebreak::program::init;
use tiebreak::program::models::Init;

#[derive(Deserialize)]
#[expect(clippy::type_complexity, reason = "rows as they stand in the file")]
struct Vectors {
    scalar: Vec<[u32; 8]>,
    tree: Vec<(Vec<u32>, u32)>,
    product: Vec<(Vec<u32>, Vec<u32>, u32, u32, u32, u32)>,
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
                let magnitude = digits::group_magnitude(row.iter().copied());
                (magnitude, row.iter().map(|&x| digits::quantise(x, magnitude, d)).collect::<Vec<_>>())
            };
            let (magnitude_a, qa) = quantised(&a[range.clone()], digits_a);
            let (magnitude_b, qb) = quantised(&b[range], digits_b);
            digits::dot(&qa, &qb, magnitude_a, magnitude_b, digits_a, digits_b)
        });
        let parts: Vec<u32> = parts.collect();
        let have = if parts.len() == 1 { parts[0] } else { tree::sum(parts) };
        assert_eq!(have, want, "K = {}, digits {digits_a} and {digits_b}, block {block}", a.len());
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

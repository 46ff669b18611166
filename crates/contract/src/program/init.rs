//! Initial state: parameters from Philox (`init.v1`, `uniform.v1`), optimizer slots at +0. Contract: section 6.

use std::array::from_fn;

use super::models::Init;
use super::step::Program;
use crate::arith::{float, philox};
use crate::parallel;

/// The counter word that keeps initial weights apart from every other use of the generator.
const DOMAIN: u32 = 0xffff_fffe;

/// Element `i` of the `parameter`-th entry of a table, as a binary32 pattern.
///
/// `Normal`: one Philox block gives eight 16-bit halves. n = 2 * (their sum) - 8 * 65535 is an integer of mean 0 and
/// variance 4 * 8 * (65536^2 - 1)/12. The weight is n * c with c = std * sqrt(1.5) / 131072, each operation rounded
/// to binary32 in that order.
///
/// `Uniform`: n = 2 * floor(w / 256) - (2^24 - 1) of the block's first word w, and c = bound / 2^24.
pub fn element(seed: [u32; 2], parameter: u32, i: u64, init: Init) -> u32 {
    match init {
        Init::Zeros => 0,
        Init::Ones => float::ONE,
        Init::Normal { .. } | Init::Uniform { .. } => drawn::<1>(seed, parameter, i, init)[0],
    }
}

/// The factor c of drawn weights.
fn factor(init: Init) -> u32 {
    match init {
        Init::Zeros | Init::Ones => 0,
        Init::Normal { std } => {
            float::div(float::mul(std.to_bits(), float::sqrt(1.5f32.to_bits())), 131_072f32.to_bits())
        }
        Init::Uniform { bound } => float::div(bound.to_bits(), 16_777_216f32.to_bits()),
    }
}

/// Elements of a parameter's drawn weights from `first` on.
fn drawn<const N: usize>(seed: [u32; 2], parameter: u32, first: u64, init: Init) -> [u32; N] {
    let c = factor(init);
    let index = |i: usize| first + i as u64;
    let counters =
        [from_fn(|i| index(i) as u32), from_fn(|i| (index(i) >> 32) as u32), [parameter; N], [DOMAIN; N]];
    let words = philox::blocks(seed, counters);
    from_fn(|i| {
        // |n| is below 2^24, and exact in binary32.
        let n = match init {
            Init::Uniform { .. } => 2 * (words[0][i] >> 8) as i32 - 0xff_ffff,
            _ => 2 * words.iter().map(|w| (w[i] & 0xffff) + (w[i] >> 16)).sum::<u32>() as i32 - 8 * 65535,
        };
        float::mul((n as f32).to_bits(), c)
    })
}

/// Weights that are drawn at once.
const AT_ONCE: usize = 16;

/// Tensor `index` of the initial state, in the order of [`Program::state`]: binary32 patterns, row-major.
pub fn state_tensor(program: &Program, seed: [u32; 2], index: usize) -> Vec<u32> {
    let (tensor, init) = program.state_with_init().swap_remove(index);
    elements(seed, index as u32, [0, tensor.ty().len()], init)
}

/// The elements of the `parameter`-th entry of a table from `first` on, `count` of them.
pub fn elements(seed: [u32; 2], parameter: u32, [first, count]: [usize; 2], init: Init) -> Vec<u32> {
    match init {
        Init::Zeros => vec![0; count],
        Init::Ones => vec![float::ONE; count],
        Init::Normal { .. } | Init::Uniform { .. } => {
            let drawn = parallel::map(count.div_ceil(AT_ONCE), |i| {
                drawn::<AT_ONCE>(seed, parameter, (first + i * AT_ONCE) as u64, init)
            });
            let mut drawn = drawn.into_flattened();
            drawn.truncate(count);
            drawn
        }
    }
}

/// The initial training state.
pub fn state(program: &Program, seed: [u32; 2]) -> Vec<Vec<u32>> {
    (0..program.state().len()).map(|index| state_tensor(program, seed, index)).collect()
}

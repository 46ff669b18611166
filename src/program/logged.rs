//! Products whose results native kernels may compute, each rounded to a grid: the logged profile.
//!
//! In a program such a product is the contract's own, followed by a rounding to the grid: that is what an auditor runs, with the
//! trainer's logged decisions in place of single roundings. What the trainer runs is [`native_graph`]: the same graph with a
//! native kernel in place of each digitised product. Contract: `docs/ROUNDING.md`.

use std::collections::HashMap;

use super::expr::{Body, Reg, Writer};
use super::graph::{Graph, Node, Primitive, TensorId, View};
use super::products::ProductClass;
use crate::arith::float;
use crate::arith::grid::GridRule;

/// A product of a graph that native kernels may compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedProduct {
    pub class: ProductClass,
    /// The operands, in the kernels' input format: [batch0, batch1, M, K] and [batch0, batch1, N, K].
    pub a: View,
    pub b: View,
    /// u32 [batch, M, 1] and [batch, N, 1]: magnitudes of the operands' rows.
    pub magnitudes_a: TensorId,
    pub magnitudes_b: TensorId,
    pub rule: GridRule,
    /// The product before it is rounded to the grid, and after.
    pub product: TensorId,
    pub output: TensorId,
}

impl LoggedProduct {
    /// [batch, M, N, K].
    pub fn dims(&self) -> [usize; 4] {
        let (a, b) = (&self.a.dims, &self.b.dims);
        [a[0] * a[1], a[2], b[2], a[3]].map(|d| d as usize)
    }

    /// Elements of the output.
    pub fn elements(&self) -> usize {
        let [batch, m, n, _] = self.dims();
        batch * m * n
    }
}

/// |x|'s bits with everything below the first `bits` bits rounded away, to nearest, ties to even. Carries into the exponent.
fn cut(w: &mut Writer, magnitude: Reg, bits: u8) -> Reg {
    let dropped = 32 - u32::from(bits);
    if dropped == 0 {
        return magnitude;
    }
    let (one, shift) = (w.word(1), w.word(dropped));
    let last = w.ushr(magnitude, shift);
    let odd = w.uand(last, one);
    let below_half = w.word((1 << (dropped - 1)) - 1);
    let raised = w.uadd(magnitude, below_half);
    let raised = w.uadd(raised, odd);
    let mask = w.word(!((1 << dropped) - 1));
    w.uand(raised, mask)
}

/// `to_bf16.v1`: the nearest bfloat16, as binary32; ties to even, signed zeros and infinities kept.
pub fn bf16_body() -> Body {
    Body::new("to_bf16.v1", |w| {
        let (x, mask, sign, nan, infinity) = (
            w.input(0),
            w.word(!float::SIGN),
            w.word(float::SIGN),
            w.word(float::NAN),
            w.word(float::INFINITY),
        );
        let magnitude = w.uand(x, mask);
        let sign = w.uand(x, sign);
        let rounded = cut(w, magnitude, 16);
        let signed = w.uadd(rounded, sign);
        let is_nan = w.ult(infinity, magnitude);
        w.select(is_nan, nan, signed)
    })
}

/// `round_to_grid.v1` of a dot product of K terms: inputs x and its row's and column's magnitudes. The scalar meaning is
/// [`crate::arith::grid::Grid::round`].
pub fn round_body(rule: GridRule, k: u32) -> Body {
    Body::new("round_to_grid.v1", |w| {
        let (mask, sign_bit, zero, one) = (w.word(!float::SIGN), w.word(float::SIGN), w.word(0), w.word(1));
        let x = w.input(0);
        let magnitude = w.uand(x, mask);
        let mut rounded = cut(w, magnitude, rule.bits);
        let shift = w.word(23);
        if rule.floor != 0 {
            let field = |w: &mut Writer, input| {
                let group = w.input(input);
                let field = w.ushr(group, shift);
                let small = w.ult(field, one);
                w.select(small, one, field)
            };
            let (a, b) = (field(w, 1), field(w, 2));
            // The field of 2^(floor + 23), above by BIAS so that it stays positive, then clamped: (F + 150).
            const BIAS: i32 = 1024;
            let offset = w.word((rule.floor_offset(k) + 150 + BIAS) as u32);
            let sum = w.uadd(a, b);
            let biased = w.uadd(sum, offset);
            let (least, most) = (w.word((rule.floor_min() + 150 + BIAS) as u32), w.word((254 + BIAS) as u32));
            let below = w.ult(biased, least);
            let biased = w.select(below, least, biased);
            let above = w.ult(most, biased);
            let biased = w.select(above, most, biased);
            let unbias = w.word((-BIAS) as u32);
            let field_of_c = w.uadd(biased, unbias);
            // Adding 2^(floor + 23) and taking it off again rounds |x| to a multiple of 2^floor, if it is smaller.
            let place = w.word(1 << 23);
            let c = w.umul(field_of_c, place);
            let raised = w.add(magnitude, c);
            let coarse = w.sub(raised, c);
            // The floor counts where it is above the quantum of x: max(field(x), 1) + 32 - bits < F + 150.
            let field_of_x = w.ushr(magnitude, shift);
            let small = w.ult(field_of_x, one);
            let field_of_x = w.select(small, one, field_of_x);
            let dropped = w.word(32 - u32::from(rule.bits));
            let own = w.uadd(field_of_x, dropped);
            let floored = w.ult(own, field_of_c);
            rounded = w.select(floored, coarse, rounded);
        }
        let sign = w.uand(x, sign_bit);
        let signed = w.uadd(rounded, sign);
        // A NaN's bits survive the cut; a zero is +0.
        let is_zero = w.ueq(rounded, zero);
        w.select(is_zero, zero, signed)
    })
}

/// The graph that a trainer runs: native kernels instead of the logged products' digitised ones. Tensors keep their ids.
pub fn native_graph(graph: &Graph) -> Graph {
    let logged: HashMap<TensorId, &LoggedProduct> = graph.logged.iter().map(|l| (l.product, l)).collect();
    let mut nodes: Vec<Node> = graph
        .nodes
        .iter()
        .map(|node| match logged.get(&node.output) {
            Some(l) => {
                Node { primitive: Primitive::Native { a: l.a.clone(), b: l.b.clone() }, ..node.clone() }
            }
            None => node.clone(),
        })
        .collect();
    // The quantised operands have no reader left; magnitudes are read where grids have floors.
    let mut needed: Vec<bool> = vec![false; graph.tensors.len()];
    for port in &graph.outputs {
        needed[port.tensor.0 as usize] = true;
    }
    for node in nodes.iter().rev() {
        if needed[node.output.0 as usize] {
            node.primitive.inputs().into_iter().for_each(|input| needed[input.0 as usize] = true);
        }
    }
    nodes.retain(|node| needed[node.output.0 as usize]);
    Graph { nodes, ..graph.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn the_body_is_the_grid(x: u32, a in 0u32..0x7f80_0000, b in 0u32..0x7f80_0000, k in 1u32..5000,
                                bits in 10u8..=32, floor in 0u8..40, near in any::<bool>()) {
            let rule = GridRule { bits, floor };
            // Half of the cases near the floor, where both roundings meet.
            let grid = rule.grid(k, a, b);
            let x = if float::is_nan(x) { float::NAN } else { x };
            let x = if near && floor != 0 {
                let scaled = grid.value(1 << 8) as f32 * (1.0 + (x >> 9) as f32 / 3e6);
                if scaled.is_finite() { scaled.to_bits() | (x & float::SIGN) } else { x }
            } else { x };
            prop_assert_eq!(round_body(rule, k).eval(&[x, a, b], [0; 4]), grid.round(x));
        }

        #[test]
        fn the_cast_is_bfloat16(x: u32) {
            let expected = half::bf16::from_f32(f32::from_bits(x)).to_f32();
            let expected = if expected.is_nan() { float::NAN } else { expected.to_bits() };
            prop_assert_eq!(bf16_body().eval(&[x], [0; 4]), expected);
        }
    }
}

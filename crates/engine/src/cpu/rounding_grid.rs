//! The casts and roundings of logged products as single loops. The bodies in [`tiebreak_contract::program::logged`] define them,
//! and other engines run the bodies directly. The loops here only save the CPU engine from running thirty instructions block by
//! block.

use rayon::prelude::*;

use super::product::simd::{Path, vectorised};
use tiebreak_contract::arith::float;
use tiebreak_contract::arith::rounding_grid::{FLOOR_MAX, field};
use tiebreak_contract::program::expr::Body;
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Node, Primitive, TensorId};
use tiebreak_contract::program::logged::{bf16_body, round_body};

/// Elements of a task, approximately.
const TASK: usize = 1 << 15;

/// Runs a node that is a cast or a rounding with a floor; returns false for other nodes.
pub(crate) fn run<'a>(
    graph: &Graph,
    node: &Node,
    words: impl Fn(TensorId) -> &'a [u32],
    out: &mut [u32],
) -> bool {
    let Primitive::Map { body, inputs, .. } = &node.primitive else { return false };
    match &*body.name {
        "to_bf16.v1"
            if *body == bf16_body()
                && inputs[0].offset == 0
                && words(inputs[0].tensor).len() == out.len() =>
        {
            let input = words(inputs[0].tensor);
            out.par_chunks_mut(TASK)
                .zip(input.par_chunks(TASK))
                .for_each(|(out, input)| cast(Path::fastest(), input, out));
            true
        }
        "round_to_grid.v1" => {
            let Some(logged) = graph.logged.iter().find(|l| l.output == node.output) else { return false };
            let fits = logged.rule.floor != 0 && is_body_of(logged, body);
            if fits {
                round(
                    logged,
                    words(logged.product),
                    [words(logged.absmaxes_a), words(logged.absmaxes_b)],
                    out,
                );
            }
            fits
        }
        _ => false,
    }
}

/// True if the node's body is the one that the loop here computes.
fn is_body_of(logged: &LoggedProduct, body: &Body) -> bool {
    *body == round_body(logged.rule, logged.dims()[3] as u32)
}

fn round(logged: &LoggedProduct, x: &[u32], [absmaxes_a, absmaxes_b]: [&[u32]; 2], out: &mut [u32]) {
    let [_, m, n, k] = logged.dims();
    let rule = logged.rule;
    let (offset, least) = (rule.floor_offset(k as u32), rule.floor_min());
    let rows = TASK.div_ceil(n);
    out.par_chunks_mut(rows * n).zip(x.par_chunks(rows * n)).enumerate().for_each(|(task, (out, x))| {
        for (i, (out, x)) in out.chunks_mut(n).zip(x.chunks(n)).enumerate() {
            let row = task * rows + i;
            let columns = &absmaxes_b[row / m * n..][..n];
            let scan = Row { offset: field(absmaxes_a[row]) + offset, least, bits: i32::from(rule.bits) };
            round_row(Path::fastest(), x, columns, scan, out);
        }
    });
}

#[derive(Clone, Copy)]
struct Row {
    offset: i32,
    least: i32,
    bits: i32,
}

/// The absmax's bits rounded to nearest even above `dropped` bits.
#[inline(always)]
fn cut(absmax: u32, dropped: u32) -> u32 {
    let odd = absmax >> dropped & 1;
    (absmax + ((1 << dropped >> 1) - 1) + odd) & !((1 << dropped) - 1)
}

vectorised! {
    fn cast(input: &[u32], out: &mut [u32]) {
        for (out, &x) in out.iter_mut().zip(input) {
            let absmax = x & !float::SIGN;
            let rounded = cut(absmax, 16) + (x & float::SIGN);
            *out = if absmax > float::INFINITY { float::NAN } else { rounded };
        }
    }
}

vectorised! {
    fn round_row(x: &[u32], columns: &[u32], row: Row, out: &mut [u32]) {
        let dropped = (32 - row.bits) as u32;
        for ((out, &x), &column) in out.iter_mut().zip(x).zip(columns) {
            let absmax = x & !float::SIGN;
            let floor = (field(column) + row.offset).clamp(row.least, FLOOR_MAX);
            let c = f32::from_bits(((floor + 150) as u32) << 23);
            let coarse = ((f32::from_bits(absmax) + c) - c).to_bits();
            let floored = field(absmax) + dropped as i32 <= floor + 149;
            let rounded = if floored { coarse } else { cut(absmax, dropped) };
            *out = if rounded == 0 { 0 } else { rounded + (x & float::SIGN) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::rounding_grid::GridRule;
    use tiebreak_contract::program::graph::View;
    use tiebreak_contract::program::products::ProductClass;

    fn words(mut state: u64, len: usize) -> Vec<u32> {
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        (0..len)
            .map(|_| {
                let x = next();
                if float::is_nan(x) { float::NAN } else { x }
            })
            .collect()
    }

    #[test]
    fn the_loops_are_the_bodies() {
        let input = words(1, 100_000);
        let mut out = vec![0; input.len()];
        cast(Path::fastest(), &input, &mut out);
        for (&x, &y) in input.iter().zip(&out) {
            assert_eq!(y, bf16_body().eval(&[x], [0; 4]), "{x:#x}");
        }
        let (batch, m, n, k) = (2u32, 40, 300, 100);
        let view = |dims| View { tensor: TensorId(0), offset: 0, dims, strides: [0; 4] };
        for floor in [4, 14, 40] {
            let logged = LoggedProduct {
                class: ProductClass::Linear,
                a: view([1, batch, m, k]),
                b: view([1, batch, n, k]),
                absmaxes_a: TensorId(0),
                absmaxes_b: TensorId(0),
                rule: GridRule { bits: 16, floor },
                product: TensorId(0),
                output: TensorId(0),
                exact: Vec::new(),
            };
            // Absmaxes are of finite rows; results are from all of binary32 and from near the floor.
            let absmaxes = |seed, len| -> Vec<u32> {
                words(seed, len).iter().map(|x| (x & 0x0fff_ffff) + 0x3800_0000).collect()
            };
            let (a, b) = (absmaxes(2, (batch * m) as usize), absmaxes(3, (batch * n) as usize));
            let mut x = words(4, (batch * m * n) as usize);
            for (i, x) in x.iter_mut().enumerate().filter(|(i, _)| i % 2 == 0) {
                let (row, column) = (i / n as usize, i / (m * n) as usize * n as usize + i % n as usize);
                let near = logged.rule.grid(k, a[row], b[column]).value(1 + (i % 700) as i64) as f32;
                let nudged = (near * (1.0 + (*x >> 10) as f32 * 1e-9)).to_bits() | (*x & float::SIGN);
                *x = if float::is_nan(nudged) { float::NAN } else { nudged };
            }
            let mut out = vec![0; x.len()];
            round(&logged, &x, [&a, &b], &mut out);
            let body = round_body(logged.rule, k);
            for (i, (&x, &y)) in x.iter().zip(&out).enumerate() {
                let (row, column) = (i / n as usize, i / (m * n) as usize * n as usize + i % n as usize);
                assert_eq!(
                    y,
                    body.eval(&[x, a[row], b[column]], [0; 4]),
                    "{x:#x} {:#x} {:#x}",
                    a[row],
                    b[column]
                );
            }
        }
    }
}

//! Products whose results native kernels may compute, each rounded to a grid: the logged profile.
//!
//! In a program, a logged product is the contract's own product, followed by a rounding to the grid. An auditor runs that
//! program, with the trainer's logged decisions in place of single roundings. The trainer runs [`native_graph`]: the same graph
//! with a native kernel in place of each digitised product. Contract: `docs/ROUNDING.md`.

use std::collections::{HashMap, HashSet};

use super::builder::Builder;
use super::expr::{Body, BodyWriter, Reg};
use super::graph::{Graph, LoggedProduct, Node, Primitive, TensorId, View};
use super::products::{ProductClass, ProductDigits, ProductTable};
use crate::arith::digits::{ProductPart, magnitude_bits};
use crate::arith::rounding_grid::GridRule;
use crate::arith::{DType, float};

/// The name of the body that rounds a logged product to its grid.
pub const ROUND_TO_GRID: &str = "round_to_grid.v1";

/// The primitive that rounds the product to its grid.
fn rounding(logged: &LoggedProduct) -> Primitive {
    let ([b0, b1, m, k], n) = (logged.a.dims, logged.b.dims[2]);
    let dims = [b0, b1, m, n];
    let view = |tensor, offset, strides| View { tensor, offset, dims, strides };
    let part = |offset| view(logged.product, offset, [b1 * m * n, m * n, n, 1]);
    let mut inputs = vec![part(0)];
    if logged.rule.floor != 0 {
        inputs.push(view(logged.absmaxes_a, 0, [b1 * m, m, 1, 0]));
        inputs.push(view(logged.absmaxes_b, 0, [b1 * n, n, 0, 1]));
    } else if logged.rule.is_wide() && logged.rule.bits < 32 {
        inputs.push(part(b0 * b1 * m * n));
    }
    Primitive::Map { body: round_body(logged.rule, k), dims, inputs }
}

/// A product of `operands` [batch0, batch1, M, K] and [batch0, batch1, N, K] on a grid, as an auditor computes it.
pub fn logged_product(
    b: &mut Builder,
    class: ProductClass,
    rule: GridRule,
    operands: [View; 2],
    shape: &[u32],
) -> TensorId {
    let operands = operands.map(|view| native_input(b, rule, view));
    product_on_grid(b, class, rule, operands, shape)
}

/// [`logged_product`] of operands in the input format of the kernels.
fn product_on_grid(
    b: &mut Builder,
    class: ProductClass,
    rule: GridRule,
    operands: [View; 2],
    shape: &[u32],
) -> TensorId {
    let [va, vb] = &operands;
    let (b0, b1, m, n) = (va.dims[0], va.dims[1], va.dims[2], vb.dims[2]);
    let dims = [b0, b1, m, n];
    let absmaxes = operands.clone().map(|view| b.absmaxes(view, 0));
    let (product, exact) = if rule.is_wide() {
        two_part_product(b, class, &operands, absmaxes, dims)
    } else {
        let digits = b.products().get(class);
        let product =
            exact_product(b, &operands, [digits.digits_a, digits.digits_b], ProductPart::Rounded, shape);
        (product, vec![product])
    };
    let ([a, right], [absmaxes_a, absmaxes_b]) = (operands, absmaxes);
    // The output's id is known once its node is made.
    let output = product;
    let mut logged =
        LoggedProduct { class, a, b: right, absmaxes_a, absmaxes_b, rule, product, output, exact };
    logged.output = b.node(rounding(&logged), DType::F32, shape);
    let output = logged.output;
    b.logged(logged);
    output
}

/// The product table that gives a graph's logged product its digits and grid. `maker` gives the node that makes a tensor.
pub fn product_table<'g>(
    graph: &Graph,
    logged: &LoggedProduct,
    maker: &impl Fn(TensorId) -> Option<&'g Node>,
) -> ProductTable {
    let mut table = ProductTable::logged_preset();
    table.set_logged(logged.class, logged.rule);
    let exact = logged.exact.first().and_then(|id| maker(*id));
    if let Some(Primitive::Product { a, b, .. }) = exact.map(|node| &node.primitive)
        && let (DType::Q(digits_a), DType::Q(digits_b)) = (graph.tensor(*a).dtype, graph.tensor(*b).dtype)
    {
        table.set(logged.class, ProductDigits { digits_a, digits_b, block: 0 });
    }
    table
}

/// The error in an entry of [`Graph::logged`], if there is one. The graph's nodes must be right by themselves. The entry's nodes
/// have to be those that [`logged_product`] makes. `maker` gives the node that makes a tensor.
pub(super) fn error<'g>(
    graph: &Graph,
    logged: &LoggedProduct,
    maker: &impl Fn(TensorId) -> Option<&'g Node>,
) -> Option<&'static str> {
    let LoggedProduct { a, b, rule, .. } = logged;
    if !rule.is_allowed() {
        return Some("its grid is none of docs/ROUNDING.md");
    }
    if (a.dims[0], a.dims[1], a.dims[3]) != (b.dims[0], b.dims[1], b.dims[3]) {
        return Some("its operands do not fit each other");
    }
    // Both parts of a product, and operands that are split, have to be allowed tensors.
    let elements = |dims: [u32; 4]| dims.into_iter().fold(1u64, |n, d| n.saturating_mul(u64::from(d)));
    let output = elements([a.dims[0], a.dims[1], a.dims[2], b.dims[2]]).saturating_mul(2);
    if output.max(elements(a.dims)).max(elements(b.dims)) > 1 << 31 {
        return Some("its operands or both parts of it are too large");
    }
    let is_cast = |view: &View| match maker(view.tensor).map(|node| &node.primitive) {
        Some(Primitive::Map { body, .. }) => *body == bf16_body(),
        _ => false,
    };
    if !(rule.is_wide() || is_cast(a) && is_cast(b)) {
        return Some("an operand is not made by to_bf16.v1");
    }
    let mut builder = Builder::new(product_table(graph, logged, maker));
    let mut same = HashMap::new();
    let mut operand = |builder: &mut Builder, view: &View| {
        let ty = graph.tensor(view.tensor);
        let known = same.iter().find(|(_, actual)| **actual == view.tensor).map(|(expected, _)| *expected);
        let tensor = known.unwrap_or_else(|| builder.input("operand", ty.dtype, &ty.shape));
        same.insert(tensor, view.tensor);
        View { tensor, ..view.clone() }
    };
    let operands = [operand(&mut builder, a), operand(&mut builder, b)];
    let shape = &graph.tensor(logged.output).shape;
    product_on_grid(&mut builder, logged.class, *rule, operands, shape);
    let expected = builder.into_graph();
    let [wanted] = &expected.logged[..] else { return Some("it is no product of two operands") };
    // The walk goes from the output to the operands: it compares each pair of nodes, then their inputs.
    let mut waiting = vec![(wanted.output, logged.output)];
    waiting.extend([(wanted.absmaxes_a, logged.absmaxes_a), (wanted.absmaxes_b, logged.absmaxes_b)]);
    waiting.push((wanted.product, logged.product));
    if wanted.exact.len() != logged.exact.len() {
        return Some("it has another number of digitised products");
    }
    waiting.extend(wanted.exact.iter().copied().zip(logged.exact.iter().copied()));
    while let Some((expected_id, actual)) = waiting.pop() {
        match same.get(&expected_id) {
            Some(known) if *known == actual => continue,
            Some(_) => return Some("two of its nodes are exchanged"),
            None => same.insert(expected_id, actual),
        };
        let node = expected.nodes.iter().find(|node| node.output == expected_id);
        let (Some(node), Some(found)) = (node, maker(actual)) else { return Some("a node of it is missing") };
        let (theirs, ours) = (found.primitive.inputs(), node.primitive.inputs());
        let mut places = theirs.iter().copied();
        if theirs.len() != ours.len()
            || node.primitive.map_inputs(|id| places.next().unwrap_or(id)) != found.primitive
            || expected.tensor(expected_id) != graph.tensor(actual)
        {
            return Some("its nodes are not those of a logged product");
        }
        waiting.extend(ours.into_iter().zip(theirs));
    }
    None
}

/// A product's operand in the input format of the kernels: a bfloat16 grid takes bfloat16 operands.
fn native_input(b: &mut Builder, rule: GridRule, view: View) -> View {
    if rule.is_wide() {
        return view;
    }
    let shape = b.shape(view.tensor);
    View { tensor: b.map(bf16_body(), &[view.tensor], &shape), ..view }
}

/// The digitised product of two operands: the nearest binary32, or its rounding error.
fn exact_product(
    b: &mut Builder,
    [va, vb]: &[View; 2],
    digits: [u8; 2],
    part: ProductPart,
    shape: &[u32],
) -> TensorId {
    let (qa, absmaxes_a) = b.quantise(va.clone(), digits[0], 0);
    let (qb, absmaxes_b) = b.quantise(vb.clone(), digits[1], 0);
    let product = Primitive::Product { a: qa, absmaxes_a, b: qb, absmaxes_b, block: 0, part };
    b.node(product, DType::F32, shape)
}

/// Digits of the rest of an operand after its high part: the greatest number, so that the auditor errs less than binary64 kernels
/// do.
pub const LOW_DIGITS: u8 = 4;
/// The most digits of a high part: three hold every high part that [`split`] makes.
pub(super) const HIGH_DIGITS_MAX: u8 = 3;

/// The product to about 48 bits, [2, batch0 * batch1, M, N]. Each operand is split in a high part, which its digits hold exactly,
/// and the rest. The larger three of the four exact products are taken in two parts each. The additions keep the rounding errors
/// of the sums.
fn two_part_product(
    b: &mut Builder,
    class: ProductClass,
    operands: &[View; 2],
    absmaxes: [TensorId; 2],
    [b0, b1, m, n]: [u32; 4],
) -> (TensorId, Vec<TensorId>) {
    let shape = [b0, b1, m, n];
    let digits = b.products().get(class);
    let high = [digits.digits_a, digits.digits_b].map(|digits| digits.min(HIGH_DIGITS_MAX));
    let [a, b_parts] = [0, 1].map(|i| {
        let [above, rest] = split(b, &operands[i], absmaxes[i], high[i]);
        [(above, high[i]), (rest, LOW_DIGITS)]
    });
    // 0 names the high part of an operand, 1 the rest.
    let mut product = |[x, y]: [usize; 2], part| {
        let ((left, digits_a), (right, digits_b)) = (&a[x], &b_parts[y]);
        exact_product(b, &[left.clone(), right.clone()], [*digits_a, *digits_b], part, &shape)
    };
    let larger = [[0, 0], [0, 1], [1, 0]];
    let [rounded, left, right] = larger.map(|parts| product(parts, ProductPart::Rounded));
    let rests = larger.map(|parts| product(parts, ProductPart::RoundingError));
    let least = product([1, 1], ProductPart::Rounded);
    let (batch, all) = (b0 * b1, b0 * b1 * m * n);
    let dims = [2, batch, m, n];
    let view = |tensor| View { tensor, offset: 0, dims, strides: [0, m * n, n, 1] };
    debug_assert_eq!(dims.iter().product::<u32>(), 2 * all);
    let [rest, rest_left, rest_right] = rests;
    let parts = [rounded, left, right, least, rest, rest_left, rest_right].map(view).to_vec();
    (b.map_views(two_parts_body(), dims, parts, DType::F32, &dims), vec![rounded, least])
}

/// `two_parts.v1`: the sum of the four products and of three rounding errors, as the nearest binary32 and the rest.
pub(super) fn two_parts_body() -> Body {
    // Sums of large terms keep their rounding errors; only the small terms are added plainly.
    Body::new("two_parts.v1", |w| {
        let [rounded, left, right, least, rest, rest_left, rest_right] =
            [0, 1, 2, 3, 4, 5, 6].map(|i| w.input(i));
        let (cross, cross_rest) = two_sum(w, left, right);
        let (sum, sum_rest) = two_sum(w, rounded, cross);
        let mut small = w.add(rest_left, rest_right);
        for term in [least, cross_rest, rest, sum_rest] {
            small = w.add(small, term);
        }
        let high = w.add(sum, small);
        let without = w.sub(sum, high);
        let low = w.add(without, small);
        let second = w.index(0);
        w.select(second, low, high)
    })
}

/// x + y and its rounding error (Knuth's TwoSum: exact without a condition on their order).
fn two_sum(w: &mut BodyWriter, x: Reg, y: Reg) -> (Reg, Reg) {
    let sum = w.add(x, y);
    let of_y = w.sub(sum, x);
    let of_x = w.sub(sum, of_y);
    let (rest_x, rest_y) = (w.sub(x, of_x), w.sub(y, of_y));
    (sum, w.add(rest_x, rest_y))
}

/// An operand's high part and the rest. The high part is a multiple of 2^(e + 1 - m), for digits of m bits and a row below 2^e.
fn split(b: &mut Builder, view: &View, absmaxes: TensorId, digits: u8) -> [View; 2] {
    let [b0, b1, rows, k] = view.dims;
    let rows_of_row = View { tensor: absmaxes, offset: 0, dims: view.dims, strides: [b1 * rows, rows, 1, 0] };
    let contiguous =
        |tensor| View { tensor, offset: 0, dims: view.dims, strides: [b1 * rows * k, rows * k, k, 1] };
    let above = split_above(digits);
    let [high, low] = [("split_high.v1", false), ("split_low.v1", true)].map(|(name, rest)| {
        let body = Body::new(name, |w| {
            let (x, absmax) = (w.input(0), w.input(1));
            let (shift, one) = (w.word(23), w.word(1));
            let field = w.ushr(absmax, shift);
            let small = w.ult(field, one);
            let field = w.select(small, one, field);
            // The field of 2^e is one more than the field of the greatest member.
            let offset = w.word((above + 1) as u32);
            let field = w.uadd(field, offset);
            let most = w.word(254);
            let too_large = w.ult(most, field);
            let field = w.select(too_large, most, field);
            let place = w.word(1 << 23);
            let power = w.umul(field, place);
            let half = w.word(1 << 22);
            let c = w.uadd(power, half);
            let raised = w.add(x, c);
            let high = w.sub(raised, c);
            if rest { w.sub(x, high) } else { high }
        });
        let views = vec![view.clone(), rows_of_row.clone()];
        contiguous(b.map_views(body, view.dims, views, DType::F32, &[b0, b1, rows, k]))
    });
    [high, low]
}

/// The exponent above the row's of the constant of a split, 1.5 * 2^(e + 24 - m). Adding the constant to |x| < 2^e and subtracting
/// it again leaves multiples of 2^(e + 1 - m). The constant must exceed |x|.
pub(super) fn split_above(digits: u8) -> i32 {
    (24 - magnitude_bits(u32::from(digits)) as i32).max(2)
}

/// |x|'s bits with everything below the first `bits` bits rounded away, to nearest, ties to even. A carry goes into the
/// exponent.
fn cut(w: &mut BodyWriter, absmax: Reg, bits: u8) -> Reg {
    let dropped = 32 - u32::from(bits);
    if dropped == 0 {
        return absmax;
    }
    let (one, shift) = (w.word(1), w.word(dropped));
    let last = w.ushr(absmax, shift);
    let odd = w.uand(last, one);
    let below_half = w.word((1 << (dropped - 1)) - 1);
    let raised = w.uadd(absmax, below_half);
    let raised = w.uadd(raised, odd);
    let mask = w.word(!((1 << dropped) - 1));
    w.uand(raised, mask)
}

/// |x| rounded to odd, where input 1 is the rest of x. If the rest says that x was rounded away from zero, |x| moves one unit
/// towards zero. If there is any rest, the last bit becomes 1. Rounding the result to two bits less is then rounding once.
fn to_odd(w: &mut BodyWriter, x: Reg, absmax: Reg) -> Reg {
    let (mask, zero, one, shift) = (w.word(!float::SIGN), w.word(0), w.word(1), w.word(31));
    let rest = w.input(1);
    let left = w.uand(rest, mask);
    let nothing = w.ueq(left, zero);
    let (sign, sign_of_rest) = (w.ushr(x, shift), w.ushr(rest, shift));
    let outward = w.ueq(sign, sign_of_rest);
    let minus_one = w.word(u32::MAX);
    let inward = w.uadd(absmax, minus_one);
    let truncated = w.select(outward, absmax, inward);
    let last = w.uand(truncated, one);
    let raised = w.uadd(truncated, one);
    let odd = w.select(last, truncated, raised);
    // The rest of infinity and of NaN does not count.
    let infinity = w.word(float::INFINITY);
    let finite = w.ult(absmax, infinity);
    let odd = w.select(finite, odd, absmax);
    w.select(nothing, absmax, odd)
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
        let absmax = w.uand(x, mask);
        let sign = w.uand(x, sign);
        let rounded = cut(w, absmax, 16);
        let signed = w.uadd(rounded, sign);
        let is_nan = w.ult(infinity, absmax);
        w.select(is_nan, nan, signed)
    })
}

/// `round_to_grid.v1` of a dot product of K terms. The inputs are x and, for grids with a floor, the absmaxes of x's row and
/// column. Grids of 26 to 30 bits also take the rest of x. The scalar meaning is
/// [`crate::arith::rounding_grid::RoundingGrid::round`].
pub fn round_body(rule: GridRule, k: u32) -> Body {
    Body::new(ROUND_TO_GRID, |w| {
        let (mask, sign_bit, zero, one) = (w.word(!float::SIGN), w.word(float::SIGN), w.word(0), w.word(1));
        let x = w.input(0);
        let mut absmax = w.uand(x, mask);
        if rule.is_wide() && rule.bits < 32 {
            absmax = to_odd(w, x, absmax);
        }
        let mut rounded = cut(w, absmax, rule.bits);
        let shift = w.word(23);
        if rule.floor != 0 {
            let field = |w: &mut BodyWriter, input| {
                let group = w.input(input);
                let field = w.ushr(group, shift);
                let small = w.ult(field, one);
                w.select(small, one, field)
            };
            let (a, b) = (field(w, 1), field(w, 2));
            // The field of 2^(floor + 23), which is F + 150, raised by BIAS so that it stays positive, then clamped.
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
            // Adding and subtracting 2^(floor + 23) rounds |x| to a multiple of 2^floor, if |x| is smaller.
            let place = w.word(1 << 23);
            let c = w.umul(field_of_c, place);
            let raised = w.add(absmax, c);
            let coarse = w.sub(raised, c);
            // The floor counts where it is above the quantum of x: max(field(x), 1) + 32 - bits < F + 150.
            let field_of_x = w.ushr(absmax, shift);
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
    let mut native = graph.clone();
    for node in &mut native.nodes {
        if let Some(l) = logged.get(&node.output) {
            node.primitive = Primitive::Native { a: l.a.clone(), b: l.b.clone() };
        }
    }
    // Nothing reads the quantised operands any more; absmaxes are read where grids have floors.
    native.remove_dead_nodes();
    native
}

/// A node of a trainer's graph that rounds a native product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundedProduct {
    /// The product's number among [`Graph::logged`].
    pub number: usize,
    /// The node that rounds the product to its grid.
    pub node: usize,
}

/// The roundings of a trainer's graph, keyed by the node that computes the native product.
pub fn roundings(graph: &Graph) -> HashMap<usize, RoundedProduct> {
    let nodes = graph.nodes.iter().enumerate();
    let writer: HashMap<TensorId, usize> = nodes.map(|(index, node)| (node.output, index)).collect();
    let found = graph.logged.iter().enumerate().filter_map(|(number, logged)| {
        let (product, node) = (*writer.get(&logged.product)?, *writer.get(&logged.output)?);
        let native = Primitive::Native { a: logged.a.clone(), b: logged.b.clone() };
        let known =
            graph.nodes[product].primitive == native && graph.nodes[node].primitive == rounding(logged);
        known.then_some((product, RoundedProduct { number, node }))
    });
    found.collect()
}

/// For each node of a graph, true if trainer and auditor both know its output, so that a trace can hold it. In a trainer's graph
/// all nodes but native products qualify. In a program's graph those qualify that the trainer's graph has as well.
pub fn traced(graph: &Graph) -> Vec<bool> {
    let is_native = |node: &Node| matches!(node.primitive, Primitive::Native { .. });
    if graph.logged.is_empty() || graph.nodes.iter().any(is_native) {
        return graph.nodes.iter().map(|node| !is_native(node)).collect();
    }
    let native = native_graph(graph);
    let shared: HashSet<TensorId> =
        native.nodes.iter().filter(|node| !is_native(node)).map(|node| node.output).collect();
    graph.nodes.iter().map(|node| shared.contains(&node.output)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn the_body_is_the_grid(x: u32, a in 0u32..0x7f80_0000, b in 0u32..0x7f80_0000, k in 1u32..5000,
                                bits in 10u8..=16, floor in 0u8..40, near in any::<bool>()) {
            let rule = GridRule { bits, floor };
            // Half of the cases are near the floor, where both roundings meet.
            let grid = rule.grid(k, a, b);
            let x = if float::is_nan(x) { float::NAN } else { x };
            let x = if near && floor != 0 {
                let scaled = grid.value(1 << 8) as f32 * (1.0 + (x >> 9) as f32 / 3e6);
                if scaled.is_finite() { scaled.to_bits() | (x & float::SIGN) } else { x }
            } else { x };
            prop_assert_eq!(round_body(rule, k).eval(&[x, a, b], [0; 4]), grid.round(x));
        }

        #[test]
        fn two_parts_round_once(fraction in 0u32..1 << 23, field in 40u32..254, sign: bool, tail in -1.0f64..1.0, bits in 26u8..=30) {
            let x = fraction | field << 23 | u32::from(sign) << 31;
            let high = f32::from_bits(x);
            // The rest is at most half a unit, as in a sum of two parts; often it is zero, often that of a tie.
            let unit = f64::from(f32::from_bits((x & 0x7fff_ffff) + 1)) - f64::from(high.abs());
            let low = (tail * tail * tail * unit * 0.24) as f32;
            let whole = f64::from(high) + f64::from(low);
            prop_assume!(low == 0.0 || whole != f64::from(high));
            let grid = GridRule { bits, floor: 0 }.grid(64, 0, 0);
            let expected = grid.pattern(grid.index(whole));
            let body = round_body(GridRule { bits, floor: 0 }, 64);
            prop_assert_eq!(body.eval(&[x, low.to_bits()], [0; 4]), expected);
        }

        #[test]
        fn the_cast_is_bfloat16(x: u32) {
            let expected = half::bf16::from_f32(f32::from_bits(x)).to_f32();
            let expected = if expected.is_nan() { float::NAN } else { expected.to_bits() };
            prop_assert_eq!(bf16_body().eval(&[x], [0; 4]), expected);
        }
    }
}

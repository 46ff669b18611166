//! rotary.v1: positions as rotations of pairs of channels (Su et al., 2021), in the form that Llama has: channel j of a head is
//! paired with channel j + D/2.
//!
//! The tables of cosines and sines are nodes of the program, which read nothing but the index of their elements. So no library's
//! cosine decides a bit, and no state, checkpoint or verdict knows of tables.

use super::embedding::token_embedding;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::{TensorId, View};

/// The most positions of a sample: their products with 16 bits fit a word.
const POSITIONS_MAX: u32 = 1 << 16;
/// The most channels of a head.
const CHANNELS_MAX: u32 = 256;
/// Words that one body holds as constants.
pub(crate) const WORDS: u32 = 32;

/// The cosines and sines of every row of a batch, f32 [N, D/2] each.
#[derive(Clone, Copy)]
pub struct Rotary {
    cos: TensorId,
    sin: TensorId,
}

/// The error in sizes that have no tables, if there is one.
pub(crate) fn rotary_error(positions: u32, channels: u32) -> Option<String> {
    if positions > POSITIONS_MAX {
        return Some(format!("a sample has at most {POSITIONS_MAX} positions"));
    }
    let wrong = channels == 0 || channels > CHANNELS_MAX || !channels.is_multiple_of(2);
    wrong.then(|| format!("a head has an even number of channels, at most {CHANNELS_MAX}"))
}

/// The tables of `samples` of `positions`, for heads of 2 `pairs` channels: `turns` has the turns of each pair from one position
/// to the next, in parts of 2^-64, and goes on without an end: the last body of words is full.
pub fn rotary_tables(
    b: &mut Builder,
    [samples, positions, pairs]: [u32; 3],
    turns: impl Iterator<Item = u64>,
) -> Rotary {
    tables(b, [positions, pairs], turns, |b, of_position| {
        let dims = [1, samples, positions, pairs];
        let of_row = View { tensor: of_position, offset: 0, dims, strides: [0, 0, pairs, 1] };
        b.copy(of_row, &[samples * positions, pairs])
    })
}

/// The tables of rows at positions u32 [N], each below `context`.
pub(in crate::program) fn rotary_tables_at(
    b: &mut Builder,
    positions: TensorId,
    [context, pairs]: [u32; 2],
    turns: impl Iterator<Item = u64>,
) -> Rotary {
    tables(b, [context, pairs], turns, |b, of_position| token_embedding(b, of_position, positions))
}

/// Tables whose rows `of_rows` makes from those of the positions.
fn tables(
    b: &mut Builder,
    [positions, pairs]: [u32; 2],
    turns: impl Iterator<Item = u64>,
    of_rows: impl Fn(&mut Builder, TensorId) -> TensorId,
) -> Rotary {
    assert_eq!(rotary_error(positions, 2 * pairs), None);
    let mut turns = turns.flat_map(|turn| [(turn >> 32) as u32, turn as u32]);
    let count = 2 * pairs;
    let mut words = None;
    for first in (0..count).step_by(WORDS as usize) {
        let constants: Vec<u32> = turns.by_ref().take(WORDS as usize).collect();
        let body = words_body(words.is_some(), first / WORDS, &constants);
        let dims = [1, 1, 1, count];
        let views = words.iter().map(|&before| b.whole(before)).collect();
        words = Some(b.map_views(body, dims, views, DType::U32, &[count]));
    }
    let words = words.expect("a head has at least one pair");
    let dims = [1, 1, positions, pairs];
    let half = |offset| View { tensor: words, offset, dims, strides: [0, 0, 0, 2] };
    let phases = b.map_views(phase_body(), dims, vec![half(0), half(1)], DType::U32, &[positions, pairs]);
    let mut table = |name, first_quadrant| {
        let of_position = b.map(wave_body(name, first_quadrant), &[phases], &[positions, pairs]);
        of_rows(b, of_position)
    };
    Rotary { cos: table("rotary_cos.v1", 0), sin: table("rotary_sin.v1", 3) }
}

/// The `chunk`-th 32 of a list of words, by the last index. Elements of other chunks are those of input 0, if there is one.
pub(crate) fn words_body(has_input: bool, chunk: u32, constants: &[u32]) -> Body {
    let tree = |w: &mut BodyWriter, index: Reg| {
        let mut level: Vec<Reg> = constants.iter().map(|&word| w.word(word)).collect();
        let mut bit = 1;
        while level.len() > 1 {
            let mask = w.word(bit);
            let odd = w.uand(index, mask);
            level = level.chunks(2).map(|pair| w.select(odd, pair[1], pair[0])).collect();
            bit *= 2;
        }
        level[0]
    };
    if !has_input {
        return Body::new("rotary_words.v1", |w| {
            let index = w.index(3);
            tree(w, index)
        });
    }
    Body::new("rotary_next_words.v1", |w| {
        let (before, index) = (w.input(0), w.index(3));
        let (shift, chunk) = (w.word(WORDS.trailing_zeros()), w.word(chunk));
        let of = w.ushr(index, shift);
        let is_here = w.ueq(of, chunk);
        let word = tree(w, index);
        w.select(is_here, word, before)
    })
}

/// floor(t (2^32 high + low) / 2^32) mod 2^32 of position t, which is below 2^16.
fn phase_body() -> Body {
    Body::new("rotary_phase.v1", |w| {
        let (high, low, t) = (w.input(0), w.input(1), w.index(2));
        let (sixteen, mask) = (w.word(16), w.word(0xffff));
        let (upper, lower) = (w.ushr(low, sixteen), w.uand(low, mask));
        let (upper, lower) = (w.umul(t, upper), w.umul(t, lower));
        let lower = w.ushr(lower, sixteen);
        let sum = w.uadd(upper, lower);
        let carry = w.ushr(sum, sixteen);
        let whole = w.umul(t, high);
        w.uadd(whole, carry)
    })
}

/// 1 - s * (c0 - s * (c1 - ..)), from the last coefficient up.
fn one_minus(w: &mut BodyWriter, s: Reg, coefficients: &[f32]) -> Reg {
    let (&last, others) = coefficients.split_last().expect("there are coefficients");
    let last = w.f(last);
    let mut sum = w.mul(s, last);
    for &c in others.iter().rev() {
        let c = w.f(c);
        let rest = w.sub(c, sum);
        sum = w.mul(s, rest);
    }
    let one = w.f(1.0);
    w.sub(one, sum)
}

/// The cosine of a phase w, which is w / 2^32 turns, moved on by `quadrants` quarters of a turn: 0 gives the cosine, 3 the sine.
fn wave_body(name: &'static str, quadrants: u32) -> Body {
    Body::new(name, |w| {
        // The nearest quarter q, and the distance from it: at most an eighth of a turn.
        let (phase, eighth) = (w.input(0), w.word(1 << 29));
        let moved = w.uadd(phase, eighth);
        let (thirty, rest_mask) = (w.word(30), w.word((1 << 30) - 1));
        let (quarter, rest) = (w.ushr(moved, thirty), w.uand(moved, rest_mask));
        let is_before = w.ult(rest, eighth);
        let (minus_one, minus_eighth) = (w.word(u32::MAX), w.word(7 << 29));
        let turned = w.umul(rest, minus_one);
        let (before, after) = (w.uadd(turned, eighth), w.uadd(rest, minus_eighth));
        let distance = w.select(is_before, before, after);
        let (distance, unit) = (w.from_u(distance), w.f(RADIANS));
        let x = w.mul(distance, unit);
        let s = w.mul(x, x);
        let cos = one_minus(w, s, &COS);
        let sin = one_minus(w, s, &SIN);
        let sin = w.mul(x, sin);
        let (cos_less, sin_less) = (w.neg(cos), w.neg(sin));
        // The sine of a distance before the quarter is negative.
        let signed = [w.select(is_before, sin_less, sin), w.select(is_before, sin, sin_less)];
        let (of_turn, last) = (w.word(quadrants), w.word(3));
        let quarter = w.uadd(quarter, of_turn);
        let quarter = w.uand(quarter, last);
        let (one, two) = (w.word(1), w.word(2));
        let (is_odd, is_second) = (w.uand(quarter, one), w.uand(quarter, two));
        let even = w.select(is_second, cos_less, cos);
        let odd = w.select(is_second, signed[0], signed[1]);
        w.select(is_odd, odd, even)
    })
}

/// 2 pi / 2^32.
const RADIANS: f32 = std::f32::consts::TAU / 4_294_967_296.0;
/// 1 / n! of n = 2, 4, .. 10.
const COS: [f32; 5] = [1.0 / 2.0, 1.0 / 24.0, 1.0 / 720.0, 1.0 / 40_320.0, 1.0 / 3_628_800.0];
/// 1 / n! of n = 3, 5, 7, 9.
const SIN: [f32; 4] = [1.0 / 6.0, 1.0 / 120.0, 1.0 / 5_040.0, 1.0 / 362_880.0];

/// x [N, H D] -> [N, H D]: channel j < D/2 of a head becomes x_j cos - x_{j+D/2} sin, channel j + D/2 becomes x_{j+D/2} cos +
/// x_j sin. The gradient is rotated back.
pub fn rotary(b: &mut Builder, tables: Rotary, x: TensorId) -> TensorId {
    let output = rotated(b, tables, x, false);
    b.differentiable(output, move |b, dy| vec![(x, rotated(b, tables, dy, true))]);
    output
}

fn rotated(b: &mut Builder, tables: Rotary, x: TensorId, back: bool) -> TensorId {
    let [n, c] = b.shape(x)[..] else { panic!("a rotation takes a matrix") };
    let pairs = b.shape(tables.cos)[1];
    let dims = [n, c / (2 * pairs), 2, pairs];
    let half = |offset| View { tensor: x, offset, dims, strides: [c, 2 * pairs, 0, 1] };
    let table = |tensor| View { tensor, offset: 0, dims, strides: [pairs, 0, 0, 1] };
    let name = if back { "rotary_backward.v1" } else { "rotary.v1" };
    let body = Body::new(name, |w| {
        let (x, y, cos, sin, is_second) = (w.input(0), w.input(1), w.input(2), w.input(3), w.index(2));
        let (x_cos, y_cos, x_sin, y_sin) = (w.mul(x, cos), w.mul(y, cos), w.mul(x, sin), w.mul(y, sin));
        let (first, second) = if back {
            (w.add(x_cos, y_sin), w.sub(y_cos, x_sin))
        } else {
            (w.sub(x_cos, y_sin), w.add(y_cos, x_sin))
        };
        w.select(is_second, second, first)
    });
    let views = vec![half(0), half(pairs), table(tables.cos), table(tables.sin)];
    b.map_views(body, dims, views, DType::F32, &[n, c])
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::arith::turns::{scaled, turns};

    #[derive(Deserialize)]
    struct Vectors {
        rotary_tables: Vec<Table>,
    }

    /// The patterns of the low and the high factor, and the original context.
    type Bands = ([u32; 2], u32);

    /// Tables that a script made from the text (`assets/vectors/decoders.py`), which holds each entry against the true cosine and
    /// sine.
    #[derive(Deserialize)]
    struct Table {
        theta: u32,
        channels: u32,
        scaling: Option<(u32, Option<Bands>)>,
        frequencies: Vec<String>,
        entries: Vec<[u32; 4]>,
    }

    #[test]
    fn tables_are_those_of_the_text() {
        let text = include_str!("../../../../../assets/vectors/catalogue.json");
        let Vectors { rotary_tables } = serde_json::from_str(text).unwrap();
        assert!(rotary_tables.len() > 5);
        assert!(rotary_tables.iter().filter(|table| table.scaling.is_some()).count() > 3);
        for Table { theta, channels, scaling, frequencies, entries } in rotary_tables {
            let of_scaling = |turn| match scaling {
                Some((factor, bands)) => {
                    let bands = bands.map(|(bands, positions)| (bands.map(f32::from_bits), positions));
                    scaled(turn, f32::from_bits(factor), bands)
                }
                None => turn,
            };
            let turns = turns(f32::from_bits(theta), channels / 2).take(channels as usize / 2);
            let turns: Vec<u64> = turns.map(of_scaling).collect();
            let text: Vec<String> = turns.iter().map(|turn| format!("{turn:016x}")).collect();
            assert_eq!(text, frequencies, "{theta:x}, {channels}");
            for [t, i, cos, sin] in entries {
                let turn = turns[i as usize];
                let phase = phase_body().eval(&[(turn >> 32) as u32, turn as u32], [0, 0, t, i]);
                assert_eq!(phase, ((u128::from(t) * u128::from(turn)) >> 32) as u32);
                let [have_cos, have_sin] =
                    [0, 3].map(|quarters| wave_body("wave", quarters).eval(&[phase], [0; 4]));
                assert_eq!([have_cos, have_sin], [cos, sin], "{theta:x}, {channels}, {t}, {i}");
            }
        }
    }

    #[test]
    fn words_of_a_list_lie_in_their_places() {
        for count in [2u32, 32, 34, 128, 256] {
            let mut words = vec![u32::MAX; count as usize];
            for chunk in 0..count.div_ceil(WORDS) {
                let constants: Vec<u32> = (0..WORDS).map(|i| 3 * (chunk * WORDS + i) % 61).collect();
                let body = words_body(chunk > 0, chunk, &constants);
                let at = |i: usize| body.eval(&[words[i]], [0, 0, 0, i as u32]);
                words = (0..count as usize).map(at).collect();
            }
            assert!(words.iter().zip(0..).all(|(&word, i)| word == 3 * i % 61), "{words:?}");
        }
    }
}

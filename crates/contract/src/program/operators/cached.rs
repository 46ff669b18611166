//! cached_attention.v1: causal attention of new positions over a cache of keys and values. Each row of the result depends on
//! positions up to its own alone. Contract: `docs/INFERENCE.md`.
//!
//! A sequence has S = T + 1 places in a cache. The last place is never attended to. There every channel of the values is 1, so that
//! each channel's scale group has one exponent, whatever later positions hold.

use super::attention::{causal_scale_mask, head_scale, merge_heads, repeat_heads, softmax_of_masked};
use super::embedding::token_embedding;
use crate::arith::{DType, float};
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::{TensorId, View};
use crate::program::products::ProductClass::{Scores, Values};

/// The absmax from which a scale group is marked.
const MARKED: u32 = 0x7f80_0000;
/// The least normal number, 2^-126.
const LEAST: u32 = 0x0080_0000;

/// The places of new positions in the caches of B sequences.
#[derive(Clone, Copy)]
pub(in crate::program) struct Places {
    /// u32 [B n]: the position of each new row. Positions of a sequence follow one another.
    pub positions: TensorId,
    /// u32 [B S]: the new row that each place of a cache takes, if it takes one.
    pub rows: TensorId,
    /// Sequences (B).
    pub sequences: u32,
    /// New positions of each sequence (n).
    pub new: u32,
    /// Positions of a sequence (T).
    pub context: u32,
}

/// The keys [B S, K D], the values [B S, K D] divided by their units, and the units [B S, K] of one attention's K heads.
pub(in crate::program) type Cache = [TensorId; 3];

impl Places {
    /// Places of a sequence in a cache (S).
    pub fn all(&self) -> u32 {
        self.context + 1
    }

    /// The cache with new rows in their places. Rows before them stay, and rows behind them become +0.
    fn placed(&self, b: &mut Builder, new: TensorId, old: TensorId, is_values: bool) -> TensorId {
        let columns = b.shape(old)[1];
        let (count, last) = (self.new, self.context);
        let name = if is_values { "cached_values.v1" } else { "cached_rows.v1" };
        let body = Body::new(name, |w| {
            let (new, old, start, place) = (w.input(0), w.input(1), w.input(2), w.index(2));
            let (count, zero) = (w.word(count), w.f(0.0));
            let end = w.uadd(start, count);
            let (is_before, is_within) = (w.ult(place, start), w.ult(place, end));
            let row = w.select(is_within, new, zero);
            let row = w.select(is_before, old, row);
            if !is_values {
                return row;
            }
            let (last, one) = (w.word(last), w.f(1.0));
            let is_last = w.ueq(place, last);
            w.select(is_last, one, row)
        });
        let spread = token_embedding(b, new, self.rows);
        let dims = [1, self.sequences, self.all(), columns];
        let start = View { tensor: self.positions, offset: 0, dims, strides: [0, self.new, 0, 0] };
        let views = vec![b.reshaped(spread, &dims), b.reshaped(old, &dims), start];
        b.map_views(body, dims, views, DType::F32, &[self.sequences * self.all(), columns])
    }
}

/// v [N, K D] -> units [N, K] and v divided by them [N, K D]. The unit of a row's head is the power of two at or below its absmax.
fn by_units(b: &mut Builder, v: TensorId, heads: u32) -> [TensorId; 2] {
    let [n, c] = b.shape(v)[..] else { panic!("values are a matrix") };
    let d = c / heads;
    let groups = View { tensor: v, offset: 0, dims: [1, 1, n * heads, d], strides: [0, 0, d, 1] };
    let absmaxes = b.absmaxes(groups, 0);
    let unit = Body::new("cached_unit.v1", |w| {
        let (absmax, marked, least) = (w.input(0), w.word(MARKED), w.word(LEAST));
        let (nan, exponent) = (w.word(float::NAN), w.uand(absmax, marked));
        let is_small = w.ult(exponent, least);
        let unit = w.select(is_small, least, exponent);
        let is_number = w.ult(absmax, marked);
        w.select(is_number, unit, nan)
    });
    let dims = [1, 1, n, heads];
    let view = b.reshaped(absmaxes, &dims);
    let units = b.map_views(unit, dims, vec![view], DType::F32, &[n, heads]);
    let divided = Body::new("cached_value.v1", |w| {
        let (x, unit, nan, zero) = (w.input(0), w.input(1), w.word(float::NAN), w.f(0.0));
        let quotient = w.div(x, unit);
        let is_marked = w.ueq(unit, nan);
        w.select(is_marked, zero, quotient)
    });
    let dims = [1, n, heads, d];
    let of_head = View { tensor: units, offset: 0, dims, strides: [0, heads, 1, 0] };
    let views = vec![b.reshaped(v, &dims), of_head];
    [units, b.map_views(divided, dims, views, DType::F32, &[n, c])]
}

/// 1 if a row at `position` does not see the `place`, which comes after it or before the last `window` places up to it.
fn is_hidden(w: &mut BodyWriter, window: Option<u32>, position: Reg, place: Reg) -> Reg {
    let is_later = w.ult(position, place);
    let Some(window) = window else { return is_later };
    let (window, one) = (w.word(window), w.word(1));
    let (end, behind) = (w.uadd(place, window), w.uadd(position, one));
    let is_before = w.ult(end, behind);
    w.select(is_later, one, is_before)
}

/// A score, input 0, by 1/sqrt(D); -inf at places that the row's position, input 1, does not see.
fn scale_mask(channels: u32, window: Option<u32>) -> Body {
    if window.is_none() {
        return causal_scale_mask("cached_scale_mask.v1", channels, |w| w.input(1));
    }
    Body::new("cached_window_scale_mask.v1", |w| {
        let (x, position, place) = (w.input(0), w.input(1), w.index(3));
        let (scale, minus_infinity) = (w.f(head_scale(channels)), w.f(f32::NEG_INFINITY));
        let hidden = is_hidden(w, window, position, place);
        let scaled = w.mul(x, scale);
        w.select(hidden, minus_infinity, scaled)
    })
}

/// q [B n, H D], k and v [B n, K D] -> [B n, H D], and the cache with the new rows. `heads` are H and K. With a `window` a row
/// sees that many of the last places up to its own.
pub(in crate::program) fn cached_attention(
    b: &mut Builder,
    places: Places,
    [q, k, v]: [TensorId; 3],
    [heads, own]: [u32; 2],
    window: Option<u32>,
    cache: Cache,
) -> (TensorId, Cache) {
    let (sequences, new, all) = (places.sequences, places.new, places.all());
    let [units, values] = b.scoped("units", |b| by_units(b, v, own));
    let cache = b.scoped("cache", |b| {
        let [old_keys, old_values, old_units] = cache;
        let keys = places.placed(b, k, old_keys, false);
        [keys, places.placed(b, values, old_values, true), places.placed(b, units, old_units, false)]
    });
    let [keys, values, units] = b.scoped("heads", |b| cache.map(|x| repeat_heads(b, x, own, heads / own)));
    let c = b.shape(q)[1];
    let d = c / heads;
    let by_row = |tensor, rows| View {
        tensor,
        offset: 0,
        dims: [sequences, heads, rows, d],
        strides: [rows * c, d, c, 1],
    };
    let dims = [sequences, heads, new, all];
    let scores = b.scoped("scores", |b| b.product(Scores, by_row(q, new), by_row(keys, all), &dims));
    let position = View { tensor: places.positions, offset: 0, dims, strides: [new, 0, 1, 0] };
    let p = b.scoped("softmax", |b| {
        let views = vec![b.whole(scores), position.clone()];
        let masked = b.map_views(scale_mask(d, window), dims, views, DType::F32, &dims);
        softmax_of_masked(b, masked)
    });
    let output = b.scoped("values", |b| {
        let name = if window.is_some() { "cached_window_weights.v1" } else { "cached_weights.v1" };
        let weights = Body::new(name, |w: &mut BodyWriter| {
            let (p, unit, position, place) = (w.input(0), w.input(1), w.input(2), w.index(3));
            let (weight, zero): (Reg, Reg) = (w.mul(p, unit), w.f(0.0));
            let hidden = is_hidden(w, window, position, place);
            w.select(hidden, zero, weight)
        });
        let units = View { tensor: units, offset: 0, dims, strides: [all * heads, 1, 0, heads] };
        let views = vec![b.whole(p), units, position];
        let weights = b.map_views(weights, dims, views, DType::F32, &dims);
        let by_channel =
            View { tensor: values, offset: 0, dims: [sequences, heads, d, all], strides: [all * c, d, 1, c] };
        let product = b.product(Values, b.whole(weights), by_channel, &[sequences, heads, new, d]);
        merge_heads(b, product)
    });
    (output, cache)
}

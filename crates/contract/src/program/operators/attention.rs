//! causal_attention.v1, bidirectional_attention.v1, padded_attention.v1, document_attention.v1 and window_attention.v1:
//! softmax(q k^T / sqrt(D)) v per head, over the positions seen.
//! And repeat_heads.v1, for queries in groups that share a head of keys and values (Ainslie et al., 2023).
//!
//! Every sum runs over all T positions, with +0 at masked ones, so its tree depends on T alone.

use super::activation::tanh;
use super::dropout::{Dropout, dropout};
use super::scaled;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::{TensorId, View};
use crate::program::products::ProductClass::{Scores, ScoresDk, ScoresDq, Values, ValuesDp, ValuesDv};

/// The positions that a position attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Those up to its own.
    Earlier,
    /// All of its sample.
    All,
    /// Those of its sample whose id is not that of padding.
    Unpadded {
        /// The ids of all positions, u32, as many as there are rows.
        ids: TensorId,
        /// The id of padding.
        padding: u32,
    },
    /// Those from a first one up to its own.
    Since {
        /// The first one of each position: `document_starts`, `window_starts`.
        starts: TensorId,
    },
}

/// The first position of the document that each position is in, f32 [B, 1, T, 1]. A position whose id is `end` is the last one
/// of its document; a sample begins with a document.
pub(crate) fn document_starts(b: &mut Builder, ids: TensorId, samples: u32, end: u32) -> TensorId {
    let t = b.tensor(ids).len() as u32 / samples;
    let dims = [samples, 1, t, t];
    let body = Body::new("document_bound.v1", |w| {
        let (id, i, j, end) = (w.input(0), w.index(2), w.index(3), w.word(end));
        let (zero, one) = (w.f(0.0), w.f(1.0));
        let (ends, earlier) = (w.ueq(id, end), w.ult(j, i));
        let place = w.from_u(j);
        let next = w.add(place, one);
        let bound = w.select(ends, next, zero);
        w.select(earlier, bound, zero)
    });
    let of_column = View { tensor: ids, offset: 0, dims, strides: [t, 0, 0, 1] };
    let bounds = b.map_views(body, dims, vec![of_column], DType::F32, &dims);
    b.max_last(bounds)
}

/// The first of the last `window` positions up to each position, its own included, f32 [B, 1, T, 1]; not before the first position of
/// its document, if there are `documents`.
pub(crate) fn window_starts(
    b: &mut Builder,
    documents: Option<TensorId>,
    [samples, t]: [u32; 2],
    window: u32,
) -> TensorId {
    let dims = [samples, 1, t, 1];
    let name = if documents.is_some() { "document_window_start.v1" } else { "window_start.v1" };
    let body = Body::new(name, |w| {
        let (i, window, before) = (w.index(2), w.word(window), w.f(window as f32 - 1.0));
        let (is_whole, zero, place) = (w.ult(i, window), w.f(0.0), w.from_u(i));
        let first = w.sub(place, before);
        let first = w.select(is_whole, zero, first);
        if documents.is_none() {
            return first;
        }
        let start = w.input(0);
        let is_later = w.lt(first, start);
        w.select(is_later, start, first)
    });
    let views = documents.into_iter().map(|starts| b.whole(starts)).collect();
    b.map_views(body, dims, views, DType::F32, &dims)
}

/// The sizes of one attention: B samples of T positions, H heads of D channels.
#[derive(Clone, Copy)]
struct Heads {
    b: u32,
    t: u32,
    h: u32,
    d: u32,
}

impl Heads {
    /// [B, H, T, D] out of a [B*T, H*D] tensor: rows are positions.
    fn by_position(self, tensor: TensorId) -> View {
        let c = self.h * self.d;
        View {
            tensor,
            offset: 0,
            dims: [self.b, self.h, self.t, self.d],
            strides: [self.t * c, self.d, c, 1],
        }
    }

    /// [B, H, D, T] out of a [B*T, H*D] tensor: rows are channels.
    fn by_channel(self, tensor: TensorId) -> View {
        let c = self.h * self.d;
        View {
            tensor,
            offset: 0,
            dims: [self.b, self.h, self.d, self.t],
            strides: [self.t * c, self.d, 1, c],
        }
    }

    /// [B, H, T, T] rows of a [B, H, T, T] tensor.
    fn rows(self, tensor: TensorId) -> View {
        let t = self.t;
        View { tensor, offset: 0, dims: [self.b, self.h, t, t], strides: [self.h * t * t, t * t, t, 1] }
    }

    /// [B, H, T, T] columns of a [B, H, T, T] tensor.
    fn columns(self, tensor: TensorId) -> View {
        let t = self.t;
        View { tensor, offset: 0, dims: [self.b, self.h, t, t], strides: [self.h * t * t, t * t, 1, t] }
    }

    fn scores(self) -> [u32; 4] {
        [self.b, self.h, self.t, self.t]
    }

    /// A [B, H, T, D] tensor copied to [B*T, H*D].
    fn merge(self, b: &mut Builder, tensor: TensorId) -> TensorId {
        debug_assert_eq!(b.shape(tensor), [self.b, self.h, self.t, self.d]);
        merge_heads(b, tensor)
    }
}

/// A [B, H, T, D] tensor copied to [B*T, H*D].
pub(super) fn merge_heads(b: &mut Builder, tensor: TensorId) -> TensorId {
    let [batch, h, t, d] = b.shape(tensor)[..] else { panic!("heads have four dimensions") };
    let view = View { tensor, offset: 0, dims: [batch, t, h, d], strides: [h * t * d, d, t * d, 1] };
    b.copy(view, &[batch * t, h * d])
}

/// [`attention`] over earlier positions.
pub fn causal_attention(
    b: &mut Builder,
    qkv: [TensorId; 3],
    samples: u32,
    heads: u32,
    drop: Option<(Dropout, u32)>,
) -> TensorId {
    attention(b, Seen::Earlier, qkv, [samples, heads], drop)
}

/// q, k, v [B*T, H*D] -> [B*T, H*D]. `drop` applies to the probabilities.
pub fn attention(
    b: &mut Builder,
    seen: Seen,
    qkv: [TensorId; 3],
    cut: [u32; 2],
    drop: Option<(Dropout, u32)>,
) -> TensorId {
    attention_with(b, seen, qkv, Changed::Nothing, cut, drop)
}

/// What is done with the products of queries and keys before they are scaled and masked.
#[derive(Clone, Copy)]
enum Changed {
    Nothing,
    /// An addend [H, T T].
    Bias(TensorId),
    /// A bound of the scaled products, which the hyperbolic tangent approaches.
    Cap(f32),
}

/// [`attention`] whose products of queries and keys are changed.
fn attention_with(
    b: &mut Builder,
    seen: Seen,
    [q, k, v]: [TensorId; 3],
    changed: Changed,
    [samples, heads]: [u32; 2],
    drop: Option<(Dropout, u32)>,
) -> TensorId {
    let [n, c] = b.shape(q)[..] else { panic!("attention takes matrices") };
    let s = Heads { b: samples, t: n / samples, h: heads, d: c / heads };
    // The rows of padding would move the scale of a channel of v, and so the bits of other rows.
    let v = match seen {
        Seen::Unpadded { ids, padding } => b.scoped("padding", |b| zero_padding(b, [ids, v], padding)),
        _ => v,
    };
    let scores = b.scoped("scores", |b| scores(b, s, q, k));
    let scores = match changed {
        Changed::Nothing => scores,
        Changed::Bias(bias) => b.scoped("bias", |b| biased(b, s, scores, bias)),
        Changed::Cap(cap) => b.scoped("cap", |b| capped(b, s, scores, cap)),
    };
    let p = b.scoped("softmax", |b| softmax(b, seen, s, scores));
    let p = match drop {
        Some((d, operator)) => b.scoped("dropout", |b| dropout(b, d, samples, operator, p)),
        None => p,
    };
    b.scoped("values", |b| values(b, s, p, v))
}

/// x [N, C] with +0 in the rows of padding.
fn zero_padding(b: &mut Builder, [ids, x]: [TensorId; 2], padding: u32) -> TensorId {
    let [n, c] = b.shape(x)[..] else { panic!("attention takes matrices") };
    let zeroed = move |b: &mut Builder, x: TensorId| {
        let body = Body::new("zero_padding.v1", |w| {
            let (x, id, padding, zero) = (w.input(0), w.input(1), w.word(padding), w.f(0.0));
            let hidden = w.ueq(id, padding);
            w.select(hidden, zero, x)
        });
        let dims = [1, 1, n, c];
        let of_row = View { tensor: ids, offset: 0, dims, strides: [0, 0, 1, 0] };
        let views = vec![b.whole(x), of_row];
        b.map_views(body, dims, views, DType::F32, &[n, c])
    };
    let output = zeroed(b, x);
    b.differentiable(output, move |b, dy| vec![(x, zeroed(b, dy))]);
    output
}

/// q k^T of every head: [B, H, T, T], masked positions included.
fn scores(b: &mut Builder, s: Heads, q: TensorId, k: TensorId) -> TensorId {
    let output = b.product(Scores, s.by_position(q), s.by_position(k), &s.scores());
    b.differentiable(output, move |b, ds| {
        let head_shape = [s.b, s.h, s.t, s.d];
        let dq = b.product(ScoresDq, s.rows(ds), s.by_channel(k), &head_shape);
        let dk = b.product(ScoresDk, s.columns(ds), s.by_channel(q), &head_shape);
        vec![(q, s.merge(b, dq)), (k, s.merge(b, dk))]
    });
    output
}

/// Scores [B, H, T, T] + bias [H, T T]. The gradient of the bias adds over samples by the tree.
fn biased(b: &mut Builder, s: Heads, scores: TensorId, bias: TensorId) -> TensorId {
    let (shape, square) = (s.scores(), s.t * s.t);
    let of_scores = View { tensor: bias, offset: 0, dims: shape, strides: [0, square, s.t, 1] };
    let body = Body::new("add.v1", |w: &mut BodyWriter| {
        let (x, y) = (w.input(0), w.input(1));
        w.add(x, y)
    });
    let output = b.map_views(body, shape, vec![b.whole(scores), of_scores], DType::F32, &shape);
    b.differentiable(output, move |b, dy| {
        vec![(scores, dy), (bias, b.tree_sum(dy, [1, s.b, s.h * square], &[s.h, square]))]
    });
    output
}

/// Scores whose products with 1/sqrt(D) are cap tanh(x / cap): the product with `1/sqrt(D) / cap`, its hyperbolic tangent, and the product with
/// `cap sqrt(D)`.
fn capped(b: &mut Builder, s: Heads, scores: TensorId, cap: f32) -> TensorId {
    let of_cap = scaled(b, scores, head_scale(s.d) / cap);
    let bounded = tanh(b, of_cap);
    scaled(b, bounded, cap * (s.d as f32).sqrt())
}

/// p v of every head, heads merged: [B*T, H*D].
fn values(b: &mut Builder, s: Heads, p: TensorId, v: TensorId) -> TensorId {
    let head_shape = [s.b, s.h, s.t, s.d];
    let product = b.product(Values, s.rows(p), s.by_channel(v), &head_shape);
    let output = s.merge(b, product);
    b.differentiable(output, move |b, dy| {
        let dp = b.product(ValuesDp, s.by_position(dy), s.by_position(v), &s.scores());
        let dv = b.product(ValuesDv, s.columns(p), s.by_channel(dy), &head_shape);
        vec![(p, dp), (v, s.merge(b, dv))]
    });
    output
}

/// 1/sqrt(D) by two contract operations.
pub(super) fn head_scale(channels: u32) -> f32 {
    1.0 / (channels as f32).sqrt()
}

/// A score, input 0, by 1/sqrt(D); -inf at places, the last index, that come after the row's `position`.
pub(super) fn causal_scale_mask(
    name: &'static str,
    channels: u32,
    position: fn(&mut BodyWriter) -> Reg,
) -> Body {
    Body::new(name, |w| {
        let (x, scale, minus_infinity) = (w.input(0), w.f(head_scale(channels)), w.f(f32::NEG_INFINITY));
        let (i, j) = (position(w), w.index(3));
        let later = w.ult(i, j);
        let scaled = w.mul(x, scale);
        w.select(later, minus_infinity, scaled)
    })
}

/// exp(x - max) / sum(exp(x - max)) along the last dimension.
pub(super) fn softmax_of_masked(b: &mut Builder, masked: TensorId) -> TensorId {
    let shape = b.shape(masked);
    let max = b.max_last(masked);
    let exponential = Body::new("exp_sub.v1", |w| {
        let (x, max) = (w.input(0), w.input(1));
        let shifted = w.sub(x, max);
        w.exp(shifted)
    });
    let e = b.map(exponential, &[masked, max], &shape);
    let sum = b.sum_last(e);
    let quotient = Body::new("div.v1", |w: &mut BodyWriter| {
        let (x, y) = (w.input(0), w.input(1));
        w.div(x, y)
    });
    b.map(quotient, &[e, sum], &shape)
}

/// The scores by 1/sqrt(D); -inf at those of positions that are not seen.
fn scale_mask(seen: Seen, channels: u32) -> Body {
    match seen {
        Seen::Earlier => causal_scale_mask("causal_scale_mask.v1", channels, |w| w.index(2)),
        Seen::All => Body::new("attention_scale.v1", |w| {
            let (x, scale) = (w.input(0), w.f(head_scale(channels)));
            w.mul(x, scale)
        }),
        Seen::Since { .. } => Body::new("document_scale_mask.v1", |w| {
            let (x, start, scale) = (w.input(0), w.input(1), w.f(head_scale(channels)));
            let (i, j, minus_infinity) = (w.index(2), w.index(3), w.f(f32::NEG_INFINITY));
            let (later, place) = (w.ult(i, j), w.from_u(j));
            let before = w.lt(place, start);
            let scaled = w.mul(x, scale);
            let masked = w.select(before, minus_infinity, scaled);
            w.select(later, minus_infinity, masked)
        }),
        // The least finite number, so that a sample of padding alone has no NaN.
        Seen::Unpadded { padding, .. } => Body::new("padding_scale_mask.v1", |w| {
            let (x, id, scale) = (w.input(0), w.input(1), w.f(head_scale(channels)));
            let (padding, least) = (w.word(padding), w.f(f32::MIN));
            let hidden = w.ueq(id, padding);
            let scaled = w.mul(x, scale);
            w.select(hidden, least, scaled)
        }),
    }
}

/// The number that decides whether a score is hidden, for each of the scores: the id of the position that is attended to, or the
/// first position that the one that attends sees. Nothing if places alone decide.
fn hiding(seen: Seen, s: Heads) -> Option<View> {
    let (tensor, strides) = match seen {
        Seen::Earlier | Seen::All => return None,
        Seen::Unpadded { ids, .. } => (ids, [s.t, 0, 0, 1]),
        Seen::Since { starts } => (starts, [s.t, 0, 1, 0]),
    };
    Some(View { tensor, offset: 0, dims: s.scores(), strides })
}

/// softmax(scores / sqrt(D)) over the positions that row i sees; +0 elsewhere.
fn softmax(b: &mut Builder, seen: Seen, s: Heads, scores: TensorId) -> TensorId {
    let shape = s.scores();
    let scale = head_scale(s.d);
    let views = [b.whole(scores)].into_iter().chain(hiding(seen, s)).collect();
    let masked = b.map_views(scale_mask(seen, s.d), shape, views, DType::F32, &shape);
    let p = softmax_of_masked(b, masked);
    b.differentiable(p, move |b, dp| {
        let weighted = b.zip("mul.v1", p, dp, BodyWriter::mul);
        let sum = b.sum_last(weighted);
        // dscores = p (dp - sum(p dp)) / sqrt(D), +0 at masked positions.
        let name = match seen {
            Seen::Earlier => "causal_softmax_backward.v1",
            Seen::All => "softmax_backward.v1",
            Seen::Unpadded { .. } => "padding_softmax_backward.v1",
            Seen::Since { .. } => "document_softmax_backward.v1",
        };
        let body = Body::new(name, |w| {
            let (p, dp, sum, scale) = (w.input(0), w.input(1), w.input(2), w.f(scale));
            let mask = match seen {
                Seen::Earlier => {
                    let (zero, i, j) = (w.f(0.0), w.index(2), w.index(3));
                    Some((w.ult(i, j), zero))
                }
                Seen::All => None,
                Seen::Unpadded { padding, .. } => {
                    let (zero, id, padding) = (w.f(0.0), w.input(3), w.word(padding));
                    Some((w.ueq(id, padding), zero))
                }
                Seen::Since { .. } => {
                    let (zero, one, start) = (w.f(0.0), w.word(1), w.input(3));
                    let (i, j) = (w.index(2), w.index(3));
                    let (later, place) = (w.ult(i, j), w.from_u(j));
                    let before = w.lt(place, start);
                    Some((w.select(later, one, before), zero))
                }
            };
            let centred = w.sub(dp, sum);
            let scaled = w.mul(p, centred);
            let scaled = w.mul(scaled, scale);
            mask.map_or(scaled, |(hidden, zero)| w.select(hidden, zero, scaled))
        });
        let dims = shape;
        let own = [b.whole(p), b.whole(dp), b.broadcast(sum, &shape)];
        let views = own.into_iter().chain(hiding(seen, s)).collect();
        vec![(scores, b.map_views(body, dims, views, DType::F32, &shape))]
    });
    p
}

/// x [N, K D] -> [N, K G D]: every one of K heads G times, one behind the other. The gradient of a head is the tree over its
/// group. Where G is 1 there is nothing to repeat, and x is the result.
pub(crate) fn repeat_heads(b: &mut Builder, x: TensorId, heads: u32, group: u32) -> TensorId {
    if group == 1 {
        return x;
    }
    let [n, c] = b.shape(x)[..] else { panic!("heads lie in a matrix") };
    let d = c / heads;
    let view = View { tensor: x, offset: 0, dims: [n, heads, group, d], strides: [c, d, 0, 1] };
    let output = b.copy(view, &[n, group * c]);
    b.differentiable(output, move |b, dy| vec![(x, b.tree_sum(dy, [n * heads, group, d], &[n, c]))]);
    output
}

/// The positions of a sample and the channels of a head of an [N, C] tensor.
pub(crate) fn cut_into_heads(
    b: &Builder,
    x: TensorId,
    [samples, heads]: [u32; 2],
) -> Result<[u32; 2], String> {
    let shape = b.shape(x);
    if !shape[0].is_multiple_of(samples) || !shape[1].is_multiple_of(heads) {
        let [n, c] = [shape[0], shape[1]];
        return Err(format!("the samples ({samples}) must divide N = {n}, and the heads ({heads}) C = {c}"));
    }
    Ok([shape[0] / samples, shape[1] / heads])
}

/// The heads of `channels` channels of k [N, X], each of which serves as many of the queries' `heads`.
///
/// # Errors
/// If X is not a number of such heads that divides `heads`.
pub(crate) fn own_heads(b: &Builder, k: TensorId, [channels, heads]: [u32; 2]) -> Result<u32, String> {
    let c = b.shape(k)[1];
    let own = c / channels;
    if !c.is_multiple_of(channels) || !heads.is_multiple_of(own) {
        return Err(format!(
            "heads of {channels} channels must cut X = {c} into a number that divides the heads ({heads})"
        ));
    }
    Ok(own)
}

/// The positions of a sample, and q, k and v with as many heads of keys and values as of queries.
fn repeated(
    b: &mut Builder,
    [q, k, v]: [TensorId; 3],
    [samples, heads]: [u32; 2],
) -> Result<(u32, [TensorId; 3]), String> {
    let [positions, channels] = cut_into_heads(b, q, [samples, heads])?;
    let own = own_heads(b, k, [channels, heads])?;
    let [k, v] = [k, v].map(|x| repeat_heads(b, x, own, heads / own));
    Ok((positions, [q, k, v]))
}

/// Attention of q [N, C] over k and v [N, X], whose heads serve several heads of queries.
pub(crate) fn grouped_attention(
    b: &mut Builder,
    seen: Seen,
    [q, k, v]: [TensorId; 3],
    [samples, heads]: [u32; 2],
    drop: Option<(Dropout, u32)>,
) -> Result<TensorId, String> {
    if let Seen::Unpadded { ids, .. } = seen {
        let (found, due) = (b.tensor(ids).len(), b.shape(q)[0]);
        if found != due as usize {
            return Err(format!("the ids ({found}) must be as many as N = {due} rows"));
        }
    }
    let (_, q_k_v) = repeated(b, [q, k, v], [samples, heads])?;
    Ok(attention(b, seen, q_k_v, [samples, heads], drop))
}

/// [`grouped_attention`] over all positions, with an addend [H, T T] of each head's products of queries and keys.
///
/// # Errors
/// If shapes do not fit.
pub(crate) fn biased_attention(
    b: &mut Builder,
    [q, k, v]: [TensorId; 3],
    bias: TensorId,
    [samples, heads]: [u32; 2],
    drop: Option<(Dropout, u32)>,
) -> Result<TensorId, String> {
    let (positions, q_k_v) = repeated(b, [q, k, v], [samples, heads])?;
    let found = b.shape(bias);
    if positions.checked_mul(positions).is_none_or(|square| found != [heads, square]) {
        return Err(format!(
            "the bias is {found:?}, and {heads} heads of {positions} positions need [{heads}, {positions} * {positions}]"
        ));
    }
    Ok(attention_with(b, Seen::All, q_k_v, Changed::Bias(bias), [samples, heads], drop))
}

/// [`grouped_attention`] whose scaled products are bounded: cap tanh(q k^T / sqrt(D) / cap), before the mask.
///
/// # Errors
/// If shapes do not fit.
pub(crate) fn capped_attention(
    b: &mut Builder,
    seen: Seen,
    [q, k, v]: [TensorId; 3],
    cap: f32,
    [samples, heads]: [u32; 2],
    drop: Option<(Dropout, u32)>,
) -> Result<TensorId, String> {
    let (_, q_k_v) = repeated(b, [q, k, v], [samples, heads])?;
    Ok(attention_with(b, seen, q_k_v, Changed::Cap(cap), [samples, heads], drop))
}

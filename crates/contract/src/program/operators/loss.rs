//! cross_entropy.v1 over classes, scaled by a factor from the whole batch's labels; and weighted_cross_entropy.v1, with smoothed
//! targets or ignored labels.

use serde::Deserialize;

use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter};
use crate::program::graph::{Primitive, TensorId, View};

/// The rule for a loss's targets, and for the labels that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossRule {
    /// The share s of a target that all V classes divide among them, below 1: a label's class has 1 - s + s/V, every other class
    /// s/V (Szegedy et al., 2016).
    #[serde(default)]
    pub smoothing: f32,
    /// The label whose rows have no loss; it is below V.
    #[serde(default)]
    pub ignore: Option<u32>,
}

/// The loss by `rule`: [`cross_entropy`] where the rule changes nothing. With labels to ignore, the mean is over the rows whose
/// labels count. Each such row's factor is factor * (N / count); with a count of 0, loss and gradient are +0. So the rows must be
/// a whole batch; a part of a batch takes [`cross_entropy_of_part`].
pub fn cross_entropy_by(
    b: &mut Builder,
    rule: LossRule,
    logits: TensorId,
    labels: TensorId,
    factor: TensorId,
) -> (TensorId, TensorId) {
    if rule == LossRule::default() {
        return cross_entropy(b, logits, labels, factor);
    }
    let weights = match rule.ignore {
        Some(ignored) => label_weights(b, ignored, labels, factor),
        None => factor,
    };
    weighted_cross_entropy(b, rule.smoothing, logits, labels, weights)
}

/// [`cross_entropy_by`] of some rows of a batch: loss, gradient and the number of rows whose label counts, f32 [1]. The rows that
/// count have the factor unchanged; [`means_of_counted`] turns the sums over the whole batch into means.
pub fn cross_entropy_of_part(
    b: &mut Builder,
    smoothing: f32,
    ignored: u32,
    [logits, labels, factor]: [TensorId; 3],
) -> [TensorId; 3] {
    let [counted, count] = counted_labels(b, ignored, labels);
    let weight = Body::new("counted_factor.v1", |w| {
        let (counts, factor, zero) = (w.input(0), w.input(1), w.f(0.0));
        w.select(counts, factor, zero)
    });
    let n = b.shape(counted)[0];
    let dims = [1, 1, n, 1];
    let views = vec![of_rows(counted, n), b.scalar(factor, 0, dims)];
    let weights = b.map_views(weight, dims, views, DType::F32, &[n, 1]);
    let (loss, dlogits) = weighted_cross_entropy(b, smoothing, logits, labels, weights);
    [loss, dlogits, count]
}

/// Turns sums over a batch of `labels` labels, with each row times 1 / labels, into means over the `count` labels that count. A
/// mean is x * (labels / count), and x * 0 where no label counts.
pub fn means_of_counted(b: &mut Builder, labels: u32, count: TensorId, sums: &[TensorId]) -> Vec<TensorId> {
    let share = Body::new("counted_share.v1", |w| {
        let (count, labels, zero) = (w.input(0), w.f(labels as f32), w.f(0.0));
        let share = w.div(labels, count);
        w.select(count, share, zero)
    });
    let share = b.map(share, &[count], &[1]);
    sums.iter().map(|&sum| b.zip("mul.v1", sum, share, BodyWriter::mul)).collect()
}

/// Indicators of the labels, u32 [N]: 1 where a label is not the ignored one, [N]; and their sum, [1].
fn counted_labels(b: &mut Builder, ignored: u32, labels: TensorId) -> [TensorId; 2] {
    let [n] = b.shape(labels)[..] else { panic!("labels are a vector") };
    let counted = Body::new("label_counts.v1", |w| {
        let (label, ignored, one, zero) = (w.input(0), w.word(ignored), w.f(1.0), w.f(0.0));
        let is_ignored = w.ueq(label, ignored);
        w.select(is_ignored, zero, one)
    });
    let counted = b.map(counted, &[labels], &[n]);
    let count = b.tree_sum(counted, [1, n, 1], &[1]);
    [counted, count]
}

/// The elements of a vector [N] as a column.
fn of_rows(tensor: TensorId, n: u32) -> View {
    View { tensor, offset: 0, dims: [1, 1, n, 1], strides: [0, 0, 1, 0] }
}

/// The factor of every row, [N, 1]: +0 where the label is the ignored one.
fn label_weights(b: &mut Builder, ignored: u32, labels: TensorId, factor: TensorId) -> TensorId {
    let [counted, count] = counted_labels(b, ignored, labels);
    let n = b.shape(counted)[0];
    let weight = Body::new("label_weight.v1", |w| {
        let (counts, factor, count, n) = (w.input(0), w.input(1), w.input(2), w.f(n as f32));
        let share = w.div(n, count);
        let weight = w.mul(factor, share);
        let zero = w.f(0.0);
        w.select(counts, weight, zero)
    });
    let dims = [1, 1, n, 1];
    let views = vec![of_rows(counted, n), b.scalar(factor, 0, dims), b.scalar(count, 0, dims)];
    b.map_views(weight, dims, views, DType::F32, &[n, 1])
}

/// logits [N, V] -> the greatest of each row [N, 1], exp(x - greatest) [N, V], and the sum of these [N, 1].
pub(super) fn exponentials(b: &mut Builder, logits: TensorId) -> [TensorId; 3] {
    let shape = b.shape(logits);
    let max = b.max_last(logits);
    let exponential = Body::new("exp_sub.v1", |w| {
        let (x, max) = (w.input(0), w.input(1));
        let shifted = w.sub(x, max);
        w.exp(shifted)
    });
    let e = b.map(exponential, &[logits, max], &shape);
    let sum = b.sum_last(e);
    [max, e, sum]
}

/// One element of each row of a table [N, V], picked by the row's label, u32 [N] and below V: [N, 1].
pub(super) fn of_labels(b: &mut Builder, table: TensorId, labels: TensorId) -> TensorId {
    let [n, classes] = b.shape(table)[..] else { panic!("labels name elements of the rows of a matrix") };
    let pick = Primitive::Gather {
        table,
        indices: labels,
        bound: classes,
        stride_index: 1,
        stride_row: classes,
        stride_column: 0,
    };
    b.node(pick, DType::F32, &[n, 1])
}

/// The loss and its gradient for targets smoothed by `smoothing`. `weights` [N, 1] or [1] multiply the rows; a row has no loss
/// unless its weight is above 0.
fn weighted_cross_entropy(
    b: &mut Builder,
    smoothing: f32,
    logits: TensorId,
    labels: TensorId,
    weights: TensorId,
) -> (TensorId, TensorId) {
    let [n, classes] = b.shape(logits)[..] else { panic!("cross entropy takes a matrix of logits") };
    let (shape, column) = ([n, classes], [n, 1]);
    let max = b.max_last(logits);
    let shifted = b.zip("sub.v1", logits, max, BodyWriter::sub);
    let exponential = Body::new("exp.v1", |w| {
        let x = w.input(0);
        w.exp(x)
    });
    let e = b.map(exponential, &[shifted], &shape);
    let (sum, shifted_sum) = (b.sum_last(e), b.sum_last(shifted));
    let picked = of_labels(b, shifted, labels);
    let (sharp, even) = (1.0 - smoothing, smoothing / classes as f32);
    let forward = Body::new("weighted_cross_entropy.v1", |w| {
        let (sum, picked, shifted_sum, weight) = (w.input(0), w.input(1), w.input(2), w.input(3));
        let (sharp, even, zero) = (w.f(sharp), w.f(smoothing), w.f(0.0));
        let classes = w.f(classes as f32);
        let log = w.log(sum);
        let own = w.sub(log, picked);
        let mean = w.div(shifted_sum, classes);
        let all = w.sub(log, mean);
        let (own, all) = (w.mul(sharp, own), w.mul(even, all));
        let loss = w.add(own, all);
        let weighted = w.mul(loss, weight);
        let counts = w.lt(zero, weight);
        w.select(counts, weighted, zero)
    });
    let losses = b.map(forward, &[sum, picked, shifted_sum, weights], &column);
    let loss = b.tree_sum(losses, [1, n, 1], &[1]);
    let backward = Body::new("weighted_cross_entropy_backward.v1", |w| {
        let (e, sum, label, weight) = (w.input(0), w.input(1), w.input(2), w.input(3));
        let (class, zero, own, other) = (w.index(3), w.f(0.0), w.f(sharp + even), w.f(even));
        let p = w.div(e, sum);
        let hit = w.ueq(class, label);
        let target = w.select(hit, own, other);
        let difference = w.sub(p, target);
        let weighted = w.mul(difference, weight);
        let counts = w.lt(zero, weight);
        w.select(counts, weighted, zero)
    });
    let labels = View { tensor: labels, offset: 0, dims: [1, 1, n, classes], strides: [0, 0, 1, 0] };
    let views = vec![b.whole(e), b.broadcast(sum, &shape), labels, b.broadcast(weights, &shape)];
    let dlogits =
        b.scoped("backward", |b| b.map_views(backward, [1, 1, n, classes], views, DType::F32, &shape));
    (loss, dlogits)
}

/// logits [N, V], labels u32 [N] (each below V), factor [1] (1 / the batch's label count) -> loss [1]. The loss is the tree sum
/// of (log(sum exp(x - max)) - (x[label] - max)) * factor.
///
/// Returns the loss and d(loss)/d(logits) = (softmax - onehot) * factor, so the chain starts here.
pub fn cross_entropy(
    b: &mut Builder,
    logits: TensorId,
    labels: TensorId,
    factor: TensorId,
) -> (TensorId, TensorId) {
    let [n, classes] = b.shape(logits)[..] else { panic!("cross entropy takes a matrix of logits") };
    let (shape, column) = ([n, classes], [n, 1]);
    let [max, e, sum] = exponentials(b, logits);
    let picked = of_labels(b, logits, labels);
    let negative_log = Body::new("cross_entropy.v1", |w| {
        let (sum, picked, max, factor) = (w.input(0), w.input(1), w.input(2), w.input(3));
        let log = w.log(sum);
        let shifted = w.sub(picked, max);
        let loss = w.sub(log, shifted);
        w.mul(loss, factor)
    });
    let losses = b.map(negative_log, &[sum, picked, max, factor], &column);
    let loss = b.tree_sum(losses, [1, n, 1], &[1]);
    let labels_column = View { tensor: labels, offset: 0, dims: [1, 1, n, classes], strides: [0, 0, 1, 0] };
    let backward = Body::new("cross_entropy_backward.v1", |w: &mut BodyWriter| {
        let (e, sum, label, factor) = (w.input(0), w.input(1), w.input(2), w.input(3));
        let (class, zero, one) = (w.index(3), w.f(0.0), w.f(1.0));
        let p = w.div(e, sum);
        let hit = w.ueq(class, label);
        let onehot = w.select(hit, one, zero);
        let difference = w.sub(p, onehot);
        w.mul(difference, factor)
    });
    let dims = labels_column.dims;
    let views = vec![b.whole(e), b.broadcast(sum, &shape), labels_column, b.broadcast(factor, &shape)];
    let dlogits = b.scoped("backward", |b| b.map_views(backward, dims, views, DType::F32, &shape));
    (loss, dlogits)
}

//! Moments of columns: the pooling of the moments of two sets of rows, and the running averages of a batch normalisation.

use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter};
use crate::program::graph::TensorId;

/// The moments of the C columns of some rows: the number of rows, the mean of each column, and the sum of its squared distances
/// from the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    /// f32 [1]: the number of rows; exact up to 2^24.
    pub count: TensorId,
    /// f32 [C]: the means.
    pub mean: TensorId,
    /// f32 [C]: the sums of squared distances from the means.
    pub m2: TensorId,
}

/// The moments of the rows of both sets (Chan, Golub and LeVeque, 1979): n = nA + nB, delta = meanB - meanA,
/// mean = meanA + delta * (nB / n), M2 = (M2A + M2B) + (delta * delta) * ((nA * nB) / n).
pub fn pool(b: &mut Builder, left: Moments, right: Moments) -> Moments {
    let shape = b.shape(left.mean);
    let count = b.add(left.count, right.count);
    let delta = b.zip("sub.v1", right.mean, left.mean, BodyWriter::sub);
    let body = Body::new("pooled_mean.v1", |w| {
        let (mean, delta, right, count) = (w.input(0), w.input(1), w.input(2), w.input(3));
        let part = w.div(right, count);
        let moved = w.mul(delta, part);
        w.add(mean, moved)
    });
    let mean = b.map(body, &[left.mean, delta, right.count, count], &shape);
    let body = Body::new("pooled_m2.v1", |w| {
        let (left, right, delta) = (w.input(0), w.input(1), w.input(2));
        let (left_count, right_count, count) = (w.input(3), w.input(4), w.input(5));
        let within = w.add(left, right);
        let squared = w.mul(delta, delta);
        let pairs = w.mul(left_count, right_count);
        let weight = w.div(pairs, count);
        let between = w.mul(squared, weight);
        w.add(within, between)
    });
    let m2 = b.map(body, &[left.m2, right.m2, delta, left.count, right.count, count], &shape);
    Moments { count, mean, m2 }
}

/// The running averages of mean and variance, each [C], after a step whose rows have these moments: old + momentum * (new - old).
/// The new variance is M2 / (n - 1), or M2 / 1 for one row.
pub fn running(b: &mut Builder, averages: [TensorId; 2], moments: Moments, momentum: f32) -> [TensorId; 2] {
    let [mean, variance] = averages;
    let shape = b.shape(mean);
    let body = Body::new("running_mean.v1", |w| {
        let (old, new, momentum) = (w.input(0), w.input(1), w.f(momentum));
        let step = w.sub(new, old);
        let moved = w.mul(momentum, step);
        w.add(old, moved)
    });
    let mean = b.map(body, &[mean, moments.mean], &shape);
    let body = Body::new("running_var.v1", |w| {
        let (old, m2, count, one) = (w.input(0), w.input(1), w.input(2), w.f(1.0));
        let less = w.sub(count, one);
        let several = w.lt(one, count);
        let divisor = w.select(several, less, one);
        let new = w.div(m2, divisor);
        let step = w.sub(new, old);
        let momentum = w.f(momentum);
        let moved = w.mul(momentum, step);
        w.add(old, moved)
    });
    let variance = b.map(body, &[variance, moments.m2, moments.count], &shape);
    [mean, variance]
}

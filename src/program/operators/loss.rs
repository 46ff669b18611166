//! cross_entropy.v1 over classes, scaled by a factor that comes from the whole batch's labels.

use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter};
use crate::program::graph::{Primitive, TensorId, View};

/// logits [N, V], labels u32 [N] (each below V), factor [1] (1 / the batch's label count) -> loss [1]:
/// the tree sum of (log(sum exp(x - max)) - (x[label] - max)) * factor.
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
    let max = b.max_last(logits);
    let exponential = Body::new("exp_sub.v1", |w| {
        let (x, max) = (w.input(0), w.input(1));
        let shifted = w.sub(x, max);
        w.exp(shifted)
    });
    let e = b.map(exponential, &[logits, max], &shape);
    let sum = b.sum_last(e);
    let pick = Primitive::Gather {
        table: logits,
        indices: labels,
        bound: classes,
        stride_index: 1,
        stride_row: classes,
        stride_column: 0,
    };
    let picked = b.node(pick, DType::F32, &column);
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

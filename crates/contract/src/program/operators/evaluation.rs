//! evaluation.v1: the loss of every label in an evaluation, and a hit if the model finds the label most likely.

use super::loss::{exponentials, of_labels};
use crate::arith::DType;
use crate::arith::float::NAN;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};

/// logits [N, V], labels u32 [N] (each below V) -> losses [N, 1] and hits [N, 1], row by row.
///
/// A loss is log(sum exp(x - max)) - (x[label] - max). A hit is 1 if no class has a greater logit and no class before the label
/// has the same logit; else +0.
pub fn evaluation(b: &mut Builder, logits: TensorId, labels: TensorId) -> (TensorId, TensorId) {
    let [n, classes] = b.shape(logits)[..] else { panic!("an evaluation takes a matrix of logits") };
    let (shape, column) = ([n, classes], [n, 1]);
    let [max, _, sum] = exponentials(b, logits);
    let picked = of_labels(b, logits, labels);
    let loss = Body::new("evaluation_loss.v1", |w| {
        let (sum, picked, max) = (w.input(0), w.input(1), w.input(2));
        let log = w.log(sum);
        let shifted = w.sub(picked, max);
        w.sub(log, shifted)
    });
    let losses = b.map(loss, &[sum, picked, max], &column);
    // 1 where a class comes before the label. Adding +0 makes the two zeros one number.
    let before = Body::new("evaluation_before.v1", |w| {
        let (x, picked, label) = (w.input(0), w.input(1), w.input(2));
        let (class, zero, one, nan) = (w.index(3), w.f(0.0), w.f(1.0), w.word(NAN));
        let (x, picked) = (w.add(x, zero), w.add(picked, zero));
        let (less, same, later) = (w.lt(x, picked), w.ueq(x, picked), w.ult(label, class));
        let no_number = w.ueq(picked, nan);
        let (behind, itself) = (w.uand(same, later), w.ueq(class, label));
        let among_others = w.select(behind, zero, one);
        let greater = w.select(less, zero, among_others);
        let of_others = w.select(itself, zero, greater);
        // A label whose logit is NaN is no hit, whatever the other logits are.
        w.select(no_number, one, of_others)
    });
    let labels = View { tensor: labels, offset: 0, dims: [1, 1, n, classes], strides: [0, 0, 1, 0] };
    let (dims, picked) = (labels.dims, b.broadcast(picked, &shape));
    let views = vec![b.whole(logits), picked, labels];
    let before = b.map_views(before, dims, views, DType::F32, &shape);
    let any = b.max_last(before);
    let hit = Body::new("evaluation_hit.v1", |w| {
        let (one, any) = (w.f(1.0), w.input(0));
        w.sub(one, any)
    });
    let hits = b.map(hit, &[any], &column);
    (losses, hits)
}

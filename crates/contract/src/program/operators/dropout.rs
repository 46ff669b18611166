//! dropout.v1: keeps an element with probability 1 - p, and scales kept elements by 1/(1 - p). Masks come from
//! Philox and are never stored: the gradient draws the same words again.

use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};

/// The inputs that every dropout of a graph shares: they decide the random words that it draws.
#[derive(Clone, Copy)]
pub struct Dropout {
    /// u32 [2]: the run's Philox key.
    pub seed: TensorId,
    /// u32 [1]: the step.
    pub step: TensorId,
    /// u32 [1]: the first sample of this micro-batch in the whole batch.
    pub first_sample: TensorId,
    /// An element is kept if its word is below this threshold.
    pub threshold: u32,
    /// 1/(1 - p), rounded to binary32.
    pub scale: f32,
}

impl Dropout {
    /// The integer threshold RNE(2^32 * (1 - p)) and the scale for a drop probability 0 <= p < 1 (binary32).
    pub fn rates(p: f32) -> (u32, f32) {
        let keep = 1.0 - f64::from(p); // exact: p has 24 bits and is below 1
        let threshold = (keep * 4_294_967_296.0).round_ties_even();
        // With p = 0 every word but the last is kept; models leave dropout out in that case.
        (threshold.min(4_294_967_295.0) as u32, (1.0 / keep) as f32)
    }
}

/// Dropout of x, which has `samples` equal parts (the leading dimension is a multiple of `samples`). `operator`
/// numbers the dropouts of a model. Element i of a sample draws word i mod 4 of the block i / 4.
pub fn dropout(b: &mut Builder, d: Dropout, samples: u32, operator: u32, x: TensorId) -> TensorId {
    let y = draw(b, d, samples, operator, x);
    b.differentiable(y, move |b, dy| vec![(x, draw(b, d, samples, operator, dy))]);
    y
}

/// [`dropout`] of whole samples: each draws the word of its first element.
pub(crate) fn sample_dropout(
    b: &mut Builder,
    d: Dropout,
    samples: u32,
    operator: u32,
    x: TensorId,
) -> TensorId {
    let y = draw_of_samples(b, d, samples, operator, x);
    b.differentiable(y, move |b, dy| vec![(x, draw_of_samples(b, d, samples, operator, dy))]);
    y
}

fn draw_of_samples(b: &mut Builder, d: Dropout, samples: u32, operator: u32, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let per_sample = shape.iter().product::<u32>() / samples;
    // The last index is that of an element of a sample: each has one element here, and the others lie before it.
    let dims = [1, per_sample, samples, 1];
    let of_element = View { tensor: x, offset: 0, dims, strides: [0, 1, per_sample, 0] };
    let drawn = drawn(b, d, operator, of_element, &[per_sample, samples]);
    let dims = [1, 1, samples, per_sample];
    b.copy(View { tensor: drawn, offset: 0, dims, strides: [0, 0, 1, samples] }, &shape)
}

fn draw(b: &mut Builder, d: Dropout, samples: u32, operator: u32, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let per_sample = shape.iter().product::<u32>() / samples;
    let dims = [1, 1, samples, per_sample];
    let elements = View { tensor: x, offset: 0, dims, strides: [0, 0, per_sample, 1] };
    drawn(b, d, operator, elements, &shape)
}

/// The elements of a view by their draws: its third index is the sample, and its last one the element.
fn drawn(b: &mut Builder, d: Dropout, operator: u32, x: View, shape: &[u32]) -> TensorId {
    let body = Body::new("dropout.v1", |w| {
        let (x, key0, key1, step, first) = (w.input(0), w.input(1), w.input(2), w.input(3), w.input(4));
        let (sample, element) = (w.index(2), w.index(3));
        let (two, operator) = (w.word(2), w.word(operator));
        let sample = w.uadd(first, sample);
        let block = w.ushr(element, two);
        let word = w.philox([key0, key1], [step, sample, operator, block], element);
        let (threshold, zero, scale) = (w.word(d.threshold), w.f(0.0), w.f(d.scale));
        let keep = w.ult(word, threshold);
        let scaled = w.mul(x, scale);
        w.select(keep, scaled, zero)
    });
    let dims = x.dims;
    let views = vec![
        x,
        b.scalar(d.seed, 0, dims),
        b.scalar(d.seed, 1, dims),
        b.scalar(d.step, 0, dims),
        b.scalar(d.first_sample, 0, dims),
    ];
    b.map_views(body, dims, views, DType::F32, shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::operators::evaluated::run;
    use crate::program::products::ProductTable;

    /// A sample is dropped as a tensor of one element a sample is, and so is its gradient.
    #[test]
    fn all_elements_of_a_sample_have_its_draw() {
        let (samples, each) = (16, 6);
        let mut b = Builder::new(ProductTable::preset());
        let [x, one, dy] = [("x", 3 * samples), ("one", samples), ("dy", 3 * samples)]
            .map(|(name, rows)| b.input(name, DType::F32, &[rows, if name == "one" { 1 } else { 2 }]));
        let [seed, step, first_sample] =
            [("seed", 2), ("step", 1), ("first", 1)].map(|(name, count)| b.input(name, DType::U32, &[count]));
        let (threshold, scale) = Dropout::rates(0.25);
        let drop = Dropout { seed, step, first_sample, threshold, scale };
        let y = sample_dropout(&mut b, drop, samples, 5, x);
        let mask = dropout(&mut b, drop, samples, 5, one);
        let gradients = b.backward(y, dy);
        let ports = [("y", y), ("mask", mask), ("dx", gradients[&x])];
        ports.iter().for_each(|(name, tensor)| b.output(*name, *tensor));
        let graph = b.into_graph();
        let numbers =
            |from: u32| (from..from + samples * each).map(|n| (n as f32).to_bits()).collect::<Vec<_>>();
        let (x, dy, ones) = (numbers(1), numbers(500), vec![1f32.to_bits(); samples as usize]);
        let inputs =
            [("x", &x[..]), ("dy", &dy), ("one", &ones), ("seed", &[3, 4]), ("step", &[7]), ("first", &[9])];
        let found = run(&graph, &inputs);
        let dropped = found["mask"].iter().filter(|&&word| word == 0).count();
        assert!((1..8).contains(&dropped), "{dropped}");
        for (name, from) in [("y", &x), ("dx", &dy)] {
            let due = from.iter().enumerate().map(|(i, &word)| {
                let factor = f32::from_bits(found["mask"][i / each as usize]);
                if factor == 0.0 { 0 } else { (f32::from_bits(word) * factor).to_bits() }
            });
            assert_eq!(found[name], due.collect::<Vec<_>>(), "{name}");
        }
    }
}

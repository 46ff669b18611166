//! The sizes of a model's tensors and products, from its numbers alone. The sizes are computed before anything is
//! allocated, so nothing wraps around.

use crate::program::products::ProductClass;

/// The sizes of a micro-batch that must be small enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Elements of the largest tensor.
    pub largest: u64,
    /// The most rows that a batch normalisation sees; 0 if there is none.
    pub normalised_rows: u64,
    /// The products, or at least the largest ones of each class.
    pub products: Vec<ProductSize>,
}

/// A product of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductSize {
    /// The product's position in the model, as a class.
    pub class: ProductClass,
    /// Elements of the product's output.
    pub outputs: u64,
    /// Terms of each output element.
    pub k: u64,
}

impl ProductSize {
    /// The products of a linear layer within a model, over `rows`: forward, and the gradients of input and weight.
    pub(super) fn linear(rows: u64, inputs: u64, outputs: u64) -> [ProductSize; 3] {
        use ProductClass::{Linear, LinearDw, LinearDx};
        three([Linear, LinearDx, LinearDw], rows, inputs, outputs)
    }

    /// [`ProductSize::linear`] of a model's last layer.
    pub(super) fn head(rows: u64, inputs: u64, outputs: u64) -> [ProductSize; 3] {
        use ProductClass::{Head, HeadDw, HeadDx};
        three([Head, HeadDx, HeadDw], rows, inputs, outputs)
    }

    /// The products of causal attention, forward and backward, over `positions` of every sample: `rows` in all, of `width`
    /// channels in `heads`.
    pub(super) fn attention(rows: u64, positions: u64, width: u64, heads: u64) -> [ProductSize; 6] {
        use ProductClass::{Scores, ScoresDk, ScoresDq, Values, ValuesDp, ValuesDv};
        let (scores, hidden) = (times(&[rows, heads, positions]), times(&[rows, width]));
        let channels = width / heads;
        [
            (Scores, scores, channels),
            (ScoresDq, hidden, positions),
            (ScoresDk, hidden, positions),
            (Values, hidden, positions),
            (ValuesDp, scores, channels),
            (ValuesDv, hidden, positions),
        ]
        .map(|(class, outputs, k)| ProductSize { class, outputs, k })
    }
}

fn three(classes: [ProductClass; 3], rows: u64, inputs: u64, outputs: u64) -> [ProductSize; 3] {
    let [forward, dx, dw] = classes;
    [(forward, [rows, outputs], inputs), (dx, [rows, inputs], outputs), (dw, [inputs, outputs], rows)]
        .map(|(class, outputs, k)| ProductSize { class, outputs: times(&outputs), k })
}

/// The product of all numbers; `u64::MAX` where it is larger.
pub(super) fn times(numbers: &[u64]) -> u64 {
    numbers.iter().fold(1, |product, &n| product.saturating_mul(n))
}

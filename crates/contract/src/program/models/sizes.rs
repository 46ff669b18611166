//! How large a model's tensors and products are, from its numbers alone: asked before anything is allocated, so nothing wraps around.

use crate::program::products::ProductClass;

/// What of a micro-batch has to be small enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Elements of the largest tensor.
    pub largest: u64,
    /// The most rows that a batch normalisation sees; 0 if there is none.
    pub normalised_rows: u64,
    /// The products; of each class the largest ones at least.
    pub products: Vec<ProductSize>,
}

/// A product of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductSize {
    /// Where it stands in the model.
    pub class: ProductClass,
    /// Elements of its output.
    pub outputs: u64,
    /// Terms of each.
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

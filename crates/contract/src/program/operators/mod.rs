//! The operators of the contract: each file gives an operator's forward primitives and its gradient.
//!
//! Shape letters: B samples, T positions, N = B*T rows, C channels, H heads, D = C/H, V classes; of images, H and W pixels down and across.
//! Every tensor is binary32 unless a line says otherwise.

mod activation;
mod attention;
mod convolution;
mod dropout;
mod embedding;
mod evaluation;
mod grouped;
mod linear;
mod loss;
mod moments;
mod norm;
mod operand;
mod pool;
mod product;

pub use activation::relu;
pub use attention::causal_attention;
pub use convolution::{ConvVersion, conv2d};
pub use dropout::Dropout;
pub use linear::{LinearClasses, linear};
pub use loss::{LossRule, cross_entropy};
pub use moments::Moments;
pub use norm::layer_norm;
pub use pool::Window;

pub(crate) use activation::{gelu_erf, gelu_tanh};
pub(crate) use convolution::mean_pool;
pub(crate) use dropout::dropout;
pub(crate) use embedding::{position_embedding, token_embedding};
pub(crate) use evaluation::evaluation;
pub(crate) use grouped::{add_bias, flatten, grouped_conv2d};
pub(crate) use loss::{cross_entropy_by, cross_entropy_of_part, means_of_counted};
pub(crate) use moments::{pool, running};
pub(crate) use norm::{batch_norm, batch_norm_eval};
pub(crate) use pool::{adaptive_avg_pool, avg_pool, max_pool};

use super::builder::Builder;
use super::graph::TensorId;

/// x + y, one shape; the gradient passes to both unchanged.
pub(crate) fn residual(b: &mut Builder, x: TensorId, y: TensorId) -> TensorId {
    let output = b.add(x, y);
    b.differentiable(output, move |_, dy| vec![(x, dy), (y, dy)]);
    output
}

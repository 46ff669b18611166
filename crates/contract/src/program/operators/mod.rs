//! The operators of the contract: each file gives an operator's forward primitives and its gradient.
//!
//! Shape letters: B samples, T positions, N = B*T rows, C channels, H heads, D = C/H, V classes. For images, H and W are pixels
//! down and across. Every tensor is binary32 unless a line says otherwise.

mod activation;
mod attention;
mod cached;
mod chosen;
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
pub(super) mod rotary;
mod sample_rows;

pub(crate) use activation::{gain, mul, sigmoid, silu, swiglu, tanh};
pub use activation::{gelu_erf, gelu_tanh, relu};
pub use attention::{Seen, attention, causal_attention};
pub(crate) use attention::{
    biased_attention, capped_attention, cut_into_heads, document_starts, grouped_attention, own_heads,
    repeat_heads, window_starts,
};
pub(super) use cached::{Cache, Places, cached_attention};
pub(crate) use chosen::{Axis, Progression, place, slice};
pub(crate) use convolution::mean_pool;
pub use convolution::{ConvVersion, conv2d};
pub(crate) use dropout::sample_dropout;
pub use dropout::{Dropout, dropout};
pub(crate) use embedding::{add_first_rows, padded_embedding, position_embedding, token_embedding};
pub use evaluation::evaluation;
pub use grouped::{add_bias, flatten, grouped_conv2d};
pub use linear::{LinearClasses, linear};
pub use loss::{LossRule, cross_entropy, cross_entropy_by, cross_entropy_of_part, means_of_counted};
pub use moments::{Moments, pool, running};
pub use norm::{batch_norm, layer_norm, rms_norm};
pub(crate) use norm::{batch_norm_eval, group_norm};
pub use operand::ProductOperand;
pub(crate) use operand::im2col;
pub(crate) use pool::adaptive_avg_pool;
pub use pool::{Window, avg_pool, max_pool};
pub use rotary::{Rotary, rotary, rotary_tables};
pub(super) use rotary::{rotary_error, rotary_tables_at};
pub(crate) use sample_rows::{
    as_image, class_token, exchange, first_position, last_position, mean_positions, rows, rows_of,
};

use super::builder::Builder;
use super::expr::Body;
use super::graph::TensorId;

/// x * c; the gradient is multiplied by c too.
pub(super) fn scaled(b: &mut Builder, x: TensorId, c: f32) -> TensorId {
    let times = move |b: &mut Builder, x: TensorId| {
        let body = Body::new("times.v1", |w| {
            let (x, c) = (w.input(0), w.f(c));
            w.mul(x, c)
        });
        let shape = b.shape(x);
        b.map(body, &[x], &shape)
    };
    let y = times(b, x);
    b.differentiable(y, move |b, dy| vec![(x, times(b, dy))]);
    y
}

/// x + y, one shape; the gradient passes to both unchanged.
pub fn residual(b: &mut Builder, x: TensorId, y: TensorId) -> TensorId {
    let output = b.add(x, y);
    b.differentiable(output, move |_, dy| vec![(x, dy), (y, dy)]);
    output
}

/// Graphs of operators' tests, by the scalar reference.
#[cfg(test)]
mod evaluated {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use super::TensorId;
    use crate::program::element::{Source, range};
    use crate::program::graph::Graph;

    struct Made(HashMap<TensorId, Vec<u32>>);

    impl Source for Made {
        type Error = Infallible;

        fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, Infallible> {
            Ok(self.0[&tensor][index])
        }
    }

    /// The words of a graph's outputs, from words of its inputs by name.
    pub fn run<'a>(graph: &'a Graph, inputs: &[(&str, &[u32])]) -> HashMap<&'a str, Vec<u32>> {
        let inputs = inputs.iter().map(|(name, words)| (graph.input(name).unwrap(), words.to_vec()));
        let mut made = Made(inputs.collect());
        for node in &graph.nodes {
            let Ok(words) = range(graph, node, 0..graph.tensor(node.output).len(), &mut made);
            made.0.insert(node.output, words);
        }
        graph.outputs.iter().map(|port| (&*port.name, made.0[&port.tensor].clone())).collect()
    }
}

//! The graph of an evaluation: a forward pass in evaluation mode, and the loss and hit of every label. Contract:
//! `docs/ARITHMETIC.md`, section 8.6.

use super::graph::Graph;
use super::models::{Mode, Network};
use super::operators::{LossRule, evaluation};
use super::products::ProductTable;
use super::step::forward;

/// The losses and hits of a batch of `samples`. The inputs are params, buffers, `batch/*` and the scalars of a micro-batch, whose
/// values do not matter. The outputs are `losses` and `hits`, f32 [labels, 1].
pub fn evaluation_graph(model: &dyn Network, products: &ProductTable, samples: u32) -> Graph {
    let pass = forward(Mode::Evaluation, model, LossRule::default(), products, [samples, 1]);
    let (mut b, logits, labels) = (pass.builder, pass.loss.logits, pass.batch[1]);
    let (losses, hits) = b.scoped("evaluation", |b| evaluation(b, logits, labels));
    b.output("losses", losses);
    b.output("hits", hits);
    b.finish()
}

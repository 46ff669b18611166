//! FLOP of a training step, counted from the graphs of its program: the matrix products alone.

use tiebreak_contract::arith::digits::ProductPart;
use tiebreak_contract::program::graph::{Graph, Primitive};
use tiebreak_contract::program::step::Program;

/// FLOP of the matrix products of a graph: 2 M N K for each of a batch. A product whose rounding error is computed too is one
/// product.
pub fn of_graph(graph: &Graph) -> u128 {
    let products = graph.nodes.iter().map(|node| match &node.primitive {
        Primitive::Product { a, absmaxes_a, part: ProductPart::Rounded, .. } => {
            let last = |id| graph.tensor(id).shape.last().map_or(0, |&dim| u128::from(dim));
            // Every block of the K terms has a result of its own, so that the results share the terms.
            let (terms, blocks) = (last(*a), last(*absmaxes_a).max(1));
            2 * terms * graph.tensor(node.output).len() as u128 / blocks
        }
        _ => 0,
    });
    products.sum()
}

/// FLOP of one step: forward and backward of every micro-batch, the sums of their gradients, and the update.
///
/// ```
/// use tiebreak_contract::program::models::Model;
/// use tiebreak_contract::program::operators::LossRule;
/// use tiebreak_contract::program::optimizer::Optimizer;
/// use tiebreak_contract::program::products::ProductTable;
/// use tiebreak_contract::program::step::{Program, StepSpec};
///
/// let model: Model = serde_json::from_str(r#"{"kind": "mlp", "inputs": 6, "hidden": [4], "classes": 3}"#)?;
/// let program = Program::new(StepSpec {
///     model,
///     optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
///     clip_norm: None,
///     loss: LossRule::default(),
///     micro_batch: 2,
///     micro_batches: 5,
///     products: ProductTable::preset(),
/// });
/// // Two samples through weights of 6 x 4 and 4 x 3. Each layer multiplies forward, for its weights' gradient, and
/// // for its inputs' gradient, which the first layer does not need.
/// let micro = 2 * 2 * (2 * 6 * 4 + 3 * 4 * 3);
/// assert_eq!(tiebreak_monitor::rules::flop::of_step(&program), 5 * micro);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn of_step(program: &Program) -> u128 {
    let sums = program.micro_batches.saturating_sub(1);
    u128::from(program.micro_batches) * of_graph(&program.micro)
        + u128::from(sums) * of_graph(&program.accumulate)
        + of_graph(&program.update)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::models::Model;
    use tiebreak_contract::program::operators::LossRule;
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::StepSpec;

    fn program(model: &str, [micro_batch, micro_batches]: [u32; 2], products: ProductTable) -> Program {
        let model: Model = serde_json::from_str(model).unwrap();
        let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
        let loss = LossRule::default();
        Program::new(StepSpec {
            model,
            optimizer,
            clip_norm: None,
            loss,
            micro_batch,
            micro_batches,
            products,
        })
    }

    #[test]
    fn a_perceptron_is_counted_by_hand() {
        let model = r#"{"kind": "mlp", "inputs": 7, "hidden": [5, 4], "classes": 3}"#;
        // Per sample: forward 7*5 + 5*4 + 4*3, weights' gradients the same, inputs' gradients of the last two layers.
        let micro = |samples: u128| 2 * samples * (2 * (35 + 20 + 12) + 20 + 12);
        let preset = ProductTable::preset();
        assert_eq!(of_step(&program(model, [6, 1], preset.clone())), micro(6));
        assert_eq!(of_step(&program(model, [2, 3], preset)), 3 * micro(2));
        // The number of digits changes how a product is computed, and not which one.
        for products in
            [ProductTable::uniform(1), ProductTable::two_and_three(), ProductTable::logged_preset()]
        {
            assert_eq!(of_step(&program(model, [2, 3], products)), 3 * micro(2));
        }
    }

    #[test]
    fn a_gpt_has_six_flop_for_a_weight_and_token_beside_attention() {
        let (width, layers, context, vocabulary, samples) = (64u128, 3, 32, 50, 4);
        let model =
            r#"{"kind": "gpt", "vocabulary": 50, "context": 32, "layers": 3, "heads": 4, "width": 64}"#;
        let counted = of_step(&program(model, [4, 1], ProductTable::preset()));
        // Weights that are multiplied: attention 4 w^2 and the feed-forward part 8 w^2 of each layer, and the head.
        let weights = layers * 12 * width * width + width * vocabulary;
        let tokens = samples * context;
        // Scores and their sums of values: two products over the context, forward and twice backward.
        let attention = 6 * tokens * layers * 2 * context * width;
        assert_eq!(counted, 6 * weights * tokens + attention);
    }
}

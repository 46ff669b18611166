//! Networks that write text: which do, and their pass over new positions with caches. Contract: `docs/INFERENCE.md`, Network files.

use super::Nodes;
use super::kinds::Pass;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::models::{Network, Text};
use crate::program::operators::Cache;
use crate::program::products::ProductTable;

/// The most positions of a context.
const CONTEXT_MAX: u32 = 1 << 16;

/// Why a network with a node of this kind writes no text, and what to do. `None` of kinds whose rows depend on rows of the same
/// position and, by causal attention, of earlier ones.
fn refusal(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "linear" | "matmul" | "bias" | "relu" | "gelu" | "gelu_erf" | "sigmoid" | "silu" | "tanh"
        | "swiglu" | "residual" | "mul" | "gain" | "layer_norm" | "rms_norm" | "head_rms_norm"
        | "dropout" | "sample_dropout" | "embedding" | "padded_embedding" | "position_embedding"
        | "first_row" | "rows" | "attention" | "grouped_attention" | "window_attention" | "rotary"
        | "slice_channels" | "place_channels" | "slice_rows" | "place_rows" => return None,
        "bidirectional_attention" | "padded_attention" => {
            "its positions attend to those behind them, which nobody has written yet; use attention or grouped_attention"
        }
        "batch_norm" => "its running averages are no parameters; use layer_norm or rms_norm",
        "first_position" | "last_position" | "mean_positions" => {
            "it leaves one row of each text; end with the logits of each position"
        }
        "biased_attention" => {
            "its bias is for all positions of a sample, and a text has fewer while it is written; use attention or grouped_attention"
        }
        "capped_attention" => {
            "the products over caches have no bound; use attention, grouped_attention or window_attention"
        }
        "rows_of" => "its rows are no positions, of which each token has one; keep rows of positions",
        "slice_positions" | "place_positions" => {
            "it puts positions in other places, which nobody has written yet; keep all positions in their places"
        }
        "exchange" => {
            "it makes the positions of a text its channels, which nobody has written yet; keep rows of positions"
        }
        "class_token" => "it puts a row before each text, which is no token; leave it out",
        _ => "it is for images and numbers, and a text is ids of tokens; use embedding",
    })
}

impl Nodes {
    /// The channels of the keys, and the heads of these, of each attention of a network that writes text, in the order of the nodes.
    ///
    /// # Errors
    /// If the network writes no text. The message names the node.
    pub(crate) fn attentions(&self) -> Result<Vec<[u32; 2]>, String> {
        if let Some((node, why)) = self.nodes.iter().find_map(|node| Some((node, refusal(node.kind.name)?))) {
            return Err(node.named(why));
        }
        let (tokens, context) = (&self.batch(1)[0], self.labels_per_sample());
        let (ids, below) = (tokens.ty().len(), tokens.below);
        if tokens.dtype != DType::U32 {
            return Err("its inputs are binary32, and a text is ids of tokens; give inputs `below`".into());
        }
        if ids != context as usize || context > CONTEXT_MAX {
            return Err(format!(
                "a sample has {ids} ids and {context} labels; a text needs a label for each id, and at most {CONTEXT_MAX}"
            ));
        }
        let mut b = Builder::new(ProductTable::preset());
        let parameters = self.inputs(&mut b);
        let tokens = b.input("tokens", DType::U32, &[context]);
        let mut pass = Pass::of_logits(tokens, 1, None);
        let (logits, last) = self.logits(&mut b, &mut pass, &parameters)?;
        let classes = b.shape(logits)[1];
        if classes != below {
            return Err(last.named(&format!(
                "it makes logits of {classes} classes, and the inputs are below {below}; make both numbers equal, since each token of \
                 an answer is read again"
            )));
        }
        Ok(pass.attended)
    }

    /// The parameters as inputs of a graph.
    fn inputs(&self, b: &mut Builder) -> Vec<TensorId> {
        self.parameters.iter().map(|p| b.input(&*p.name, DType::F32, &p.shape)).collect()
    }

    /// Appends the pass over new positions of texts. Returns the logits, and the caches with the new rows.
    ///
    /// # Errors
    /// If the network writes no text, or a tensor has too many elements.
    pub(in crate::program) fn step(
        &self,
        b: &mut Builder,
        text: Text,
        parameters: &[TensorId],
        tokens: TensorId,
    ) -> Result<(TensorId, Vec<Cache>), String> {
        let mut pass = Pass::of_logits(tokens, text.samples(), Some(text));
        let (logits, _) = self.logits(b, &mut pass, parameters)?;
        match pass.text {
            Some(Text::Cached { filled, .. }) => Ok((logits, filled)),
            _ => Err("a text without caches is no text that is written".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::program::models::nodes::NODE_KINDS;

    /// Every kind is known, and a new one is refused until somebody says that its rows depend on no later position.
    #[test]
    fn kinds_that_write_text_are_named() {
        let writing: Vec<&str> =
            NODE_KINDS.iter().map(|kind| kind.name).filter(|name| refusal(name).is_none()).collect();
        assert_eq!(
            writing.into_iter().collect::<BTreeSet<_>>(),
            BTreeSet::from([
                "attention",
                "bias",
                "dropout",
                "embedding",
                "first_row",
                "gain",
                "gelu",
                "gelu_erf",
                "grouped_attention",
                "head_rms_norm",
                "layer_norm",
                "linear",
                "matmul",
                "mul",
                "padded_embedding",
                "place_channels",
                "place_rows",
                "position_embedding",
                "relu",
                "residual",
                "rms_norm",
                "rotary",
                "rows",
                "sample_dropout",
                "sigmoid",
                "silu",
                "slice_channels",
                "slice_rows",
                "swiglu",
                "tanh",
                "window_attention",
            ])
        );
        assert!(refusal("a new kind").is_some());
    }
}

//! The model of a network file as evaluations, predictions and answers use it. Contract: `docs/NETWORKS.md`, Evaluation, and
//! `docs/INFERENCE.md`, Network files.

use crate::arith::rounding_grid::GridRule;
use crate::program::evaluation::evaluation_graph;
use crate::program::models::nodes::Nodes;
use crate::program::models::{Mode, Network};
use crate::program::operators::LossRule;
use crate::program::products::ProductTable;
use crate::program::validate;

/// The digits of [`ProductTable::preset`].
const DIGITS: u8 = 3;

/// The model of a network file, in evaluation mode.
pub struct NetworkModel {
    pub(in crate::program) nodes: Nodes,
    /// Digits of the products.
    pub products: ProductTable,
    pub(super) digits: Option<u8>,
    pub(super) grid: Option<GridRule>,
    /// The label that the loss ignores, if there is one.
    pub ignored: Option<u32>,
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// The channels of the keys and the heads of these of each attention, or the reason why the network writes no text.
    pub(super) attentions: Result<Vec<[u32; 2]>, String>,
}

impl NetworkModel {
    /// The network. Its forward pass in evaluation mode needs a number of samples without an [`NetworkModel::error`].
    pub fn network(&self) -> &dyn Network {
        &self.nodes
    }

    /// The error in an evaluation of so many samples at once, if there is one.
    pub fn error(&self, samples: u32) -> Option<String> {
        let error = self.nodes.error(Mode::Evaluation, LossRule::default(), samples);
        error.or_else(|| validate::sizes(&evaluation_graph(&self.nodes, &self.products, samples)).err())
    }

    /// The channels of the keys and the heads of these of each attention of a network that writes text.
    ///
    /// # Errors
    /// If the network writes no text: the reason, which names the node.
    pub fn attentions(&self) -> Result<&[[u32; 2]], &str> {
        self.attentions.as_deref().map_err(String::as_str)
    }

    /// The keys and products that decide the logits, beside parameters and buffers, by ascending key. Layout: `docs/INFERENCE.md`,
    /// Receipts of predictions.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = self.nodes.settings();
        let digits = match (self.digits, self.grid) {
            (None, Some(_)) => "logged".to_string(),
            (digits, _) => digits.unwrap_or(DIGITS).to_string(),
        };
        settings.push(("network.digits".into(), digits));
        if let Some(GridRule { bits, floor }) = self.grid {
            settings.push(("network.grid".into(), format!("{bits} {floor}")));
        }
        settings.sort_unstable();
        settings
    }
}

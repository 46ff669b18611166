//! Models that evaluations and predictions take: those of a job's kinds, and those of network files.

use super::sizes;
use super::spec::{BatchSpec, Job, ModelJob};
use tiebreak_contract::program::inference::evaluation_settings;
use tiebreak_contract::program::models::Network;
use tiebreak_contract::program::network::NetworkModel;
use tiebreak_contract::program::products::ProductTable;

/// A model that can be evaluated. Its methods are for the layers above: models of jobs and network files implement them.
pub trait Evaluable {
    /// The network.
    #[doc(hidden)]
    fn network(&self) -> &dyn Network;

    /// Digits and grids of the products.
    #[doc(hidden)]
    fn products(&self) -> &ProductTable;

    /// The label that the loss ignores, if there is one.
    #[doc(hidden)]
    fn ignored(&self) -> Option<u32>;

    /// Samples of a micro-batch.
    #[doc(hidden)]
    fn micro_batch(&self) -> u32;

    /// The keys and products that decide the logits, beside parameters and buffers, by ascending key. Layout: `docs/INFERENCE.md`,
    /// Receipts of predictions.
    #[doc(hidden)]
    fn settings(&self) -> Vec<(String, String)>;

    /// Why so many samples cannot be computed at once by the model of a job, if they cannot.
    #[doc(hidden)]
    fn batch_error(&self, job: &Job, samples: u32) -> Option<String>;
}

impl Evaluable for ModelJob {
    fn network(&self) -> &dyn Network {
        &*self.model
    }

    fn products(&self) -> &ProductTable {
        &self.products
    }

    fn ignored(&self) -> Option<u32> {
        self.loss.ignore
    }

    fn micro_batch(&self) -> u32 {
        self.batch.micro_batch
    }

    fn settings(&self) -> Vec<(String, String)> {
        evaluation_settings(&self.model, &self.products)
    }

    fn batch_error(&self, job: &Job, samples: u32) -> Option<String> {
        let batch = BatchSpec { micro_batch: samples, micro_batches: 1 };
        sizes::error(job, &ModelJob { batch, ..self.clone() }).map(|(_, why)| why)
    }
}

impl Evaluable for NetworkModel {
    fn network(&self) -> &dyn Network {
        NetworkModel::network(self)
    }

    fn products(&self) -> &ProductTable {
        &self.products
    }

    fn ignored(&self) -> Option<u32> {
        self.ignored
    }

    fn micro_batch(&self) -> u32 {
        self.micro_batch
    }

    fn settings(&self) -> Vec<(String, String)> {
        NetworkModel::settings(self)
    }

    fn batch_error(&self, _: &Job, samples: u32) -> Option<String> {
        self.error(samples)
    }
}

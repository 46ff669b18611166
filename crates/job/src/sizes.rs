//! Limits on the sizes of a job, checked from its numbers alone, before anything is allocated.

use super::spec::{Job, ModelJob};
use tiebreak_contract::program::graph::block_count;
use tiebreak_contract::program::models::ProductSize;

/// The most bytes of a training state that a job may ask for.
const STATE_MAX: u64 = 1 << 40;
/// The most elements of a tensor.
const TENSOR_MAX: u64 = (1 << 31) - 1;
/// The greatest number up to which binary32 counts exactly.
const COUNT_MAX: u64 = 1 << 24;

/// The first tensor or state that would be too large: (dotted key, why).
pub fn error(job: &Job, of_model: &ModelJob) -> Option<(String, String)> {
    let (parameters, batch) = (of_model.model.parameter_count(), &of_model.batch);
    let sizes = of_model.model.sizes(batch.micro_batch.into());
    if parameters.saturating_mul(12) > STATE_MAX {
        return Some(("model".into(), format!("its training state is larger than {STATE_MAX} bytes")));
    }
    if sizes.largest > TENSOR_MAX || parameters > TENSOR_MAX {
        let why = format!("a tensor would have more than {TENSOR_MAX} elements; use smaller micro-batches");
        return Some(("batch.micro_batch".into(), why));
    }
    if sizes.normalised_rows.saturating_mul(batch.micro_batches.into()) > COUNT_MAX {
        let why = format!(
            "a step has more than {COUNT_MAX} pixels, which a batch normalisation cannot count exactly"
        );
        return Some(("batch.micro_batch".into(), why));
    }
    // A product that is cut along K has an output for every block until the blocks are added. A product on a fine grid has
    // two parts.
    let parts = if job.rounding.as_ref().is_some_and(|rounding| rounding.rule().is_wide()) { 2 } else { 1 };
    sizes.products.into_iter().find_map(|ProductSize { class, outputs, k }| {
        let blocks = block_count(u32::try_from(k).unwrap_or(u32::MAX), of_model.products.get(class).block);
        let why = format!("the products of all blocks, or both parts, have more than {TENSOR_MAX} elements");
        let key = format!("digits.class.{}", class.name());
        (outputs.saturating_mul(parts * u64::from(blocks)) > TENSOR_MAX).then_some((key, why))
    })
}

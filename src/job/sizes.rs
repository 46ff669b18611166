//! Whether what a job asks for fits: found from its numbers alone, before anything is allocated.

use super::spec::{Job, ModelJob};
use crate::program::graph::block_count;
use crate::program::models::{Convolution, Model, Norm};
use crate::program::products::ProductClass;

/// The most bytes of a training state that a job may ask for.
const STATE_MAX: u64 = 1 << 40;
/// The most elements of a tensor.
const TENSOR_MAX: u64 = 1 << 31;
/// The greatest number up to which binary32 counts exactly.
const COUNT_MAX: u64 = 1 << 24;

/// Whether a tensor or the state would be too large: (dotted key, why).
pub fn error(job: &Job, of_model: &ModelJob) -> Option<(String, String)> {
    let (parameters, largest) = (of_model.model.parameter_count(), largest(of_model));
    if parameters.saturating_mul(12) > STATE_MAX {
        return Some(("model".into(), format!("its training state is larger than {STATE_MAX} bytes")));
    }
    if largest > TENSOR_MAX || parameters > TENSOR_MAX {
        let why = format!("a tensor would have more than {TENSOR_MAX} elements; use smaller micro-batches");
        return Some(("batch.micro_batch".into(), why));
    }
    if counted(of_model) > COUNT_MAX {
        let why = format!(
            "a step has more than {COUNT_MAX} pixels, which a batch normalisation cannot count exactly"
        );
        return Some(("batch.micro_batch".into(), why));
    }
    // A product that is cut along K has an output for every block, until they are added; one on a fine grid has two parts.
    let parts = if job.rounding.as_ref().is_some_and(|rounding| rounding.rule().is_wide()) { 2 } else { 1 };
    products(of_model).into_iter().find_map(|Product { class, outputs, k }| {
        let blocks = block_count(u32::try_from(k).unwrap_or(u32::MAX), of_model.products.get(class).block);
        let why = format!("the products of all blocks, or both parts, have more than {TENSOR_MAX} elements");
        let key = format!("digits.class.{}", class.name());
        (outputs.saturating_mul(parts * u64::from(blocks)) > TENSOR_MAX).then_some((key, why))
    })
}

/// The most rows of a step that a batch normalisation sees: all pixels of the first one.
fn counted(job: &ModelJob) -> u64 {
    match &job.model {
        Model::Resnet(r) if r.norm == Norm::Batch => {
            let samples = u64::from(job.batch.micro_batch) * u64::from(job.batch.micro_batches);
            samples.saturating_mul(u64::from(r.height) * u64::from(r.width))
        }
        _ => 0,
    }
}

/// The elements of a micro-batch's largest tensor.
fn largest(job: &ModelJob) -> u64 {
    let micro = u64::from(job.batch.micro_batch);
    match &job.model {
        Model::Gpt(g) => {
            let [v, t, c, h] = [g.vocabulary, g.context, g.width, g.heads].map(u64::from);
            let rows = micro.saturating_mul(t);
            rows.saturating_mul(v.max(4 * c)).max(rows.saturating_mul(t).saturating_mul(h))
        }
        Model::Mlp(m) => micro.saturating_mul(u64::from(m.widths().into_iter().max().unwrap_or(0))),
        Model::Resnet(r) => {
            // The patches of the image and those of the output's gradient.
            let patches = r.convolutions().into_iter().flat_map(|c| {
                let [inputs, outputs] = [c.inputs, c.outputs].map(u64::from);
                [c.outputs_per_channel() * inputs, c.image_pixels() * outputs].map(|n| n * c.taps())
            });
            micro.saturating_mul(patches.chain([u64::from(r.classes)]).max().unwrap_or(0))
        }
    }
}

/// A product of a micro-batch: elements of its output, and K.
struct Product {
    class: ProductClass,
    outputs: u64,
    k: u64,
}

/// A linear layer's products, or a convolution's: over `rows`, forward and the gradients of input and weight.
fn linear(classes: [ProductClass; 3], rows: u64, inputs: u64, outputs: u64) -> [Product; 3] {
    let sizes = [(rows * outputs, inputs), (rows * inputs, outputs), (inputs * outputs, rows)];
    let mut sizes = sizes.into_iter().zip(classes).map(|((outputs, k), class)| Product { class, outputs, k });
    std::array::from_fn(|_| sizes.next().expect("three of each"))
}

/// The products of a micro-batch, each class with its largest ones. The job's numbers are bounded before.
fn products(job: &ModelJob) -> Vec<Product> {
    use ProductClass::*;
    let micro = u64::from(job.batch.micro_batch);
    let (hidden, head) = ([Linear, LinearDx, LinearDw], [Head, HeadDx, HeadDw]);
    match &job.model {
        Model::Gpt(g) => {
            let [v, t, c, h] = [g.vocabulary, g.context, g.width, g.heads].map(u64::from);
            let (rows, scores) = (micro * t, micro * h * t * t);
            let layers =
                [linear(hidden, rows, c, 4 * c), linear(hidden, rows, 4 * c, c), linear(head, rows, c, v)];
            let attention = [
                (Scores, scores, c / h),
                (ScoresDq, rows * c, t),
                (ScoresDk, rows * c, t),
                (Values, rows * c, t),
                (ValuesDp, scores, c / h),
                (ValuesDv, rows * c, t),
            ];
            let attention = attention.map(|(class, outputs, k)| Product { class, outputs, k });
            layers.into_iter().flatten().chain(attention).collect()
        }
        Model::Mlp(m) => {
            let widths = m.widths();
            let layers = widths.windows(2).enumerate();
            let classes = |layer| if layer == m.hidden.len() { head } else { hidden };
            layers
                .flat_map(|(layer, w)| linear(classes(layer), micro, u64::from(w[0]), u64::from(w[1])))
                .collect()
        }
        Model::Resnet(r) => {
            let of_convolution = |c: Convolution| {
                let taps = c.taps();
                let [inputs, outputs] = [c.inputs, c.outputs].map(u64::from);
                let [image, rows] = [c.image_pixels(), c.outputs_per_channel()].map(|n| micro * n);
                [
                    Product { class: Conv, outputs: rows * outputs, k: taps * inputs },
                    Product { class: ConvDx, outputs: image * inputs, k: taps * outputs },
                    Product { class: ConvDw, outputs: taps * inputs * outputs, k: rows },
                ]
            };
            let last = u64::from(*r.stages.last().unwrap_or(&0));
            let of_head = linear(head, micro, last, u64::from(r.classes));
            r.convolutions().into_iter().flat_map(of_convolution).chain(of_head).collect()
        }
    }
}

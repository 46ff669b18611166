//! What a job's samples are: the shape that data must have to fill a program's batch.

use super::spec::DataSpec;
use crate::arith::DType;
use crate::program::models::{Images, Model};
use crate::program::step::Program;

/// Planes, rows and columns of CIFAR-10's images.
pub const CIFAR: [u32; 3] = [3, 32, 32];

/// The samples that a program's batch takes.
pub enum Samples {
    /// Windows of tokens, and for each token the next one as its label.
    Tokens {
        /// Tokens of a sample.
        context: u32,
        /// Tokens are below it.
        vocabulary: u32,
    },
    /// Byte images with one label each.
    Images(Images),
}

impl Samples {
    /// The samples of a model kind.
    pub fn of_model(model: &Model) -> Samples {
        match (model, model.images()) {
            (_, Some(images)) => Samples::Images(images),
            (Model::Gpt(gpt), None) => Samples::Tokens { context: gpt.context, vocabulary: gpt.vocabulary },
            (Model::Mlp(_) | Model::Resnet(_), None) => unreachable!("these models classify images"),
        }
    }

    /// The samples of a program file, for data of this kind: the batch is two U32 tensors, the input and the labels.
    /// `None` if the program's batch is of another form.
    pub fn of_program(program: &Program, data: &DataSpec) -> Option<Samples> {
        let [input, labels] = &program.batch[..] else { return None };
        if [input, labels].into_iter().any(|tensor| tensor.dtype != DType::U32) {
            return None;
        }
        let per_sample = |shape: &[u32]| {
            let elements = shape.iter().try_fold(1u32, |n, &d| n.checked_mul(d))?;
            elements.is_multiple_of(program.micro_batch).then(|| elements / program.micro_batch)
        };
        let (inputs, targets) = (per_sample(&input.shape)?, per_sample(&labels.shape)?);
        if targets != program.labels_per_sample {
            return None;
        }
        match data {
            DataSpec::Bytes { .. } if inputs == targets && input.below == labels.below => {
                Some(Samples::Tokens { context: inputs, vocabulary: input.below })
            }
            DataSpec::Idx { .. } | DataSpec::Cifar10 { .. } if targets == 1 && input.below == 256 => {
                Some(Samples::Images(Images { bytes: inputs, shape: None, classes: labels.below }))
            }
            _ => None,
        }
    }

    /// Whether data of this kind holds such samples.
    pub fn are_in(&self, data: &DataSpec) -> bool {
        match (data, self) {
            (DataSpec::Bytes { .. }, Samples::Tokens { .. }) => true,
            // IDX files of bytes have one plane.
            (DataSpec::Idx { .. }, Samples::Images(images)) => {
                images.shape.is_none_or(|[planes, ..]| planes == 1)
            }
            (DataSpec::Cifar10 { .. }, Samples::Images(images)) => images.are(CIFAR),
            _ => false,
        }
    }
}

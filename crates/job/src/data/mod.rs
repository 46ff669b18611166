//! Data: the layout of samples in a job's files, the drawing of samples, and the batch of a step.

mod augment;
mod batch;
mod finite;
pub mod layout;
mod mask;
mod masking;
pub mod npy;
mod part;
pub mod safetensors;
mod sampling;
mod scan;

pub(crate) use batch::rooted;
pub use batch::{Dataset, InFile, Vocabulary, Within, batch_digest, batch_leaves};
pub use finite::FileNotFinite;
pub use mask::targets;
pub(super) use masking::threshold;
pub use sampling::{Place, Sampler};

//! Jobs whose commitments hide: the scheme, and what such a job leaves out.

use super::spec::{Granularity, Job};

/// The scheme whose leaves are salted.
pub const HIDING: u32 = 1;

impl Job {
    /// True if the commitments of the job's runs hide what they are of.
    #[doc(hidden)] // for the layers above
    pub fn hides(&self) -> bool {
        self.commit.scheme == HIDING
    }
}

/// The reason why the commitments of a job cannot hide, if they are to.
pub(super) fn error(job: &Job) -> Option<&'static str> {
    if !job.hides() {
        return None;
    }
    if job.data.copy {
        return Some("a run that holds its data hides nothing: add copy = false to [data]");
    }
    if job.commit.granularity == Granularity::Operator {
        return Some(
            "traces show the hashes of all tiles: set commit.granularity to \"microbatch\" or \"step\"",
        );
    }
    if job.rounding.is_some() {
        return Some(
            "a rounding log shows decisions about the data: leave [rounding] and --profile logged out",
        );
    }
    job.init
        .run
        .is_some()
        .then_some("the end of an earlier run would show: begin from init.weights, or the seed")
}

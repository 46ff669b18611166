//! Sums of gradients that leave the session, tensor by tensor.

use super::handed::Give;
use super::{Gradients, Session, StepObserver, StepScalars};
use crate::EngineError;
use tiebreak_contract::arith::tree::Operation;
use tiebreak_contract::program::step::MicroBatch;

impl Session<'_> {
    /// [`Session::partial_sums`], whose sums leave the session: `give` takes each tensor of each sum once. Sums are numbered from 0, in
    /// the order of the final stack. An engine in the host's memory hands a tensor out while it computes the further ones, so in the order
    /// of its graph's nodes. Any other engine hands out all tensors of a sum when the sum is finished, since it would have to stop for each.
    ///
    /// # Errors
    /// As [`Session::partial_sums`], and the errors of `give`.
    ///
    /// # Panics
    /// As [`Session::partial_sums`].
    #[doc(hidden)] // for the layers above
    pub fn hand_out_sums(
        &mut self,
        scalars: StepScalars,
        operations: &[Operation],
        batches: &[MicroBatch],
        observer: &mut dyn StepObserver,
        micro_root: impl FnMut(&mut Self, u32, &Gradients) -> Result<(), EngineError>,
        give: &mut Give,
    ) -> Result<(), EngineError> {
        self.evaluate(scalars, operations, batches, observer, micro_root, Some(give)).map(drop)
    }
}

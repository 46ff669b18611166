//! A session that holds a share of the optimizer's slots, and updates the share's parameters alone.

use super::Session;
use super::held::Held;
use crate::update_share::UpdateShare;
use crate::{EngineError, Tensor};
use tiebreak_contract::program::step::StateTensor;

impl Session<'_> {
    /// Holds and updates a share of the state from now on. A state is loaded after this.
    ///
    /// # Errors
    /// If the engine cannot compile the share's update.
    ///
    /// # Panics
    /// If the share lacks a parameter or a buffer.
    #[doc(hidden)] // for the layers above
    pub fn hold(&mut self, share: UpdateShare) -> Result<(), EngineError> {
        assert!(share.held.iter().copied().take(self.program.released()).eq(0..self.program.released()));
        self.state.clear();
        self.held = Held::of(share, &mut *self.engine)?;
        Ok(())
    }

    /// The entries of [`Program::state`] that the session holds, in order.
    #[doc(hidden)] // for the layers above
    pub fn held(&self) -> Vec<StateTensor> {
        let table = self.program.state();
        self.held.places.iter().map(|&place| table[place].clone()).collect()
    }

    /// The index, among the tensors that the session holds, of the one at a place of the state.
    fn index_of(&self, place: usize) -> usize {
        self.held.places.binary_search(&place).expect("the session holds this tensor of the state")
    }

    /// The tensor at a place of the state.
    ///
    /// # Panics
    /// If the session does not hold it.
    #[doc(hidden)] // for the layers above
    pub fn tensor_at(&self, place: usize) -> &Tensor {
        &self.state[self.index_of(place)]
    }

    /// Replaces the tensor at a place of the state by one of the session's engine.
    ///
    /// # Panics
    /// If the session does not hold such a tensor.
    #[doc(hidden)] // for the layers above
    pub fn put(&mut self, place: usize, tensor: Tensor) {
        let index = self.index_of(place);
        self.state[index] = tensor;
    }

    /// Passes the canonical bytes of the tensor at a place of the state to `visit`.
    ///
    /// # Errors
    /// If the engine cannot read the tensor.
    ///
    /// # Panics
    /// If the session does not hold it.
    #[doc(hidden)] // for the layers above
    pub fn read_at(&mut self, place: usize, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let index = self.index_of(place);
        self.engine.read(&self.state[index], visit)
    }
}

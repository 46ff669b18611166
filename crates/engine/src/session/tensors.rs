//! The tensors of a session, read and replaced one by one.

use super::{Gradients, Session};
use crate::{Engine, EngineError, Tensor};

#[doc(hidden)] // for the layers above
impl Session<'_> {
    /// The engine and the state's tensors on it, for callers that run other graphs on the state.
    pub fn engine_and_state(&mut self) -> (&mut dyn Engine, &[Tensor]) {
        (&mut *self.engine, &self.state)
    }

    /// Passes every state tensor's canonical bytes to `visit`, in order, with its place in [`Program::state`].
    ///
    /// # Errors
    /// If the engine cannot read a tensor.
    pub fn visit_state(&mut self, mut visit: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        for (&place, tensor) in self.held.places.iter().zip(&self.state) {
            self.engine.read(tensor, &mut |bytes| visit(place, bytes))?;
        }
        Ok(())
    }

    /// The BLAKE3 roots of the state's tensors, in order, if the engine hashes them in its own memory.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn state_roots(&mut self) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        self.engine.roots(&self.state)
    }

    /// The BLAKE3 roots of the gradients and the loss, in order, if the engine hashes them in its own memory.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn gradient_roots(&mut self, gradients: &Gradients) -> Result<Option<Vec<[u8; 32]>>, EngineError> {
        self.engine.roots(&gradients.0)
    }

    /// Replaces one tensor of the state.
    ///
    /// # Errors
    /// If the engine cannot hold the tensor.
    ///
    /// # Panics
    /// If the state has no tensor `index`.
    pub fn replace_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), EngineError> {
        let tensor = self.engine.upload(&self.program.state()[index].ty(), bytes)?;
        self.put(index, tensor);
        Ok(())
    }

    /// Passes every gradient's canonical bytes to `visit`, in the table's order, then the loss's bytes.
    ///
    /// # Errors
    /// If the engine cannot read a tensor.
    pub fn visit_gradients(
        &mut self,
        gradients: &Gradients,
        mut visit: impl FnMut(usize, &[u8]),
    ) -> Result<(), EngineError> {
        for (i, tensor) in gradients.0.iter().enumerate() {
            self.engine.read(tensor, &mut |bytes| visit(i, bytes))?;
        }
        Ok(())
    }

    /// Gradients from canonical bytes: of every gradient, in the table's order, then of the loss, without gaps.
    ///
    /// # Errors
    /// If the engine cannot hold the gradients.
    ///
    /// # Panics
    /// If there are too few bytes.
    pub fn upload_gradients(&mut self, mut bytes: &[u8]) -> Result<Gradients, EngineError> {
        let mut tensors = Vec::new();
        for entry in self.program.gradients() {
            let (own, rest) = bytes.split_at(entry.ty().bytes());
            tensors.push(self.engine.upload(&entry.ty(), own)?);
            bytes = rest;
        }
        Ok(Gradients(tensors))
    }
}

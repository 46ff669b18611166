//! The state before a step, which an auditor's session keeps while the step runs.

use super::Session;
use crate::{EngineError, Tensor};

/// A state that a session keeps while it goes on ([`Session::keep_state`]).
pub struct KeptState(Kept);

enum Kept {
    Tensors(Vec<Tensor>),
    Bytes(Vec<Vec<u8>>),
}

impl Session<'_> {
    /// Keeps the present state, for [`Session::kept_bytes`]: the engine's own tensors if they are in the host's memory, else a copy.
    ///
    /// # Errors
    /// If the engine cannot read a tensor.
    #[doc(hidden)] // for the layers above
    pub fn keep_state(&mut self) -> Result<KeptState, EngineError> {
        Ok(KeptState(match self.engine.is_on_host() {
            true => Kept::Tensors(self.state.clone()),
            false => Kept::Bytes(self.download_state()?),
        }))
    }

    /// Goes back to a state that this session kept.
    ///
    /// # Errors
    /// If the engine cannot hold the state.
    #[doc(hidden)] // for the layers above
    pub fn restore(&mut self, kept: &KeptState) -> Result<(), EngineError> {
        match &kept.0 {
            Kept::Tensors(tensors) => self.state.clone_from(tensors),
            Kept::Bytes(bytes) => self.load(bytes)?,
        }
        Ok(())
    }

    /// Takes over the parameters and buffers of another session's state, on another engine, one tensor at a time. The other session has
    /// no state then, and this one computes gradients alone.
    ///
    /// # Errors
    /// If an engine fails.
    #[doc(hidden)] // for the layers above
    pub fn load_from(&mut self, other: &mut Session) -> Result<(), EngineError> {
        self.state.clear();
        let read = self.program.released();
        let table = self.program.state();
        for (tensor, entry) in std::mem::take(&mut other.state).into_iter().zip(&table[..read]) {
            let bytes = other.engine.download(&tensor)?;
            self.state.push(self.engine.upload(&entry.ty(), &bytes)?);
        }
        Ok(())
    }

    /// The canonical bytes of a state that this session kept, in order. The session's own state is given up first, and each tensor
    /// is freed as soon as it is copied: one of the three states is in memory at a time.
    ///
    /// # Errors
    /// If the engine cannot read a tensor.
    #[doc(hidden)] // for the layers above
    pub fn kept_bytes(&mut self, kept: KeptState) -> Result<Vec<Vec<u8>>, EngineError> {
        self.state.clear();
        self.engine.release();
        match kept.0 {
            Kept::Tensors(tensors) => {
                let copy = |tensor: Tensor| {
                    let bytes = self.engine.download(&tensor);
                    drop(tensor);
                    self.engine.release();
                    bytes
                };
                tensors.into_iter().map(copy).collect()
            }
            Kept::Bytes(bytes) => Ok(bytes),
        }
    }
}

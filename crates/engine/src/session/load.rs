//! How a state comes into a session.

use super::Session;
use crate::EngineError;

impl Session<'_> {
    /// Replaces the state by the canonical bytes of every tensor of [`Program::state`].
    ///
    /// # Errors
    /// If the engine cannot hold the state.
    ///
    /// # Panics
    /// If `state` has not as many tensors as the program's.
    pub fn load(&mut self, state: &[Vec<u8>]) -> Result<(), EngineError> {
        self.load_visited(|load| state.iter().enumerate().try_for_each(|(i, bytes)| load(i, bytes)))
    }

    /// [`Session::load`], one tensor at a time, so that a large state need not be in host memory as a whole.
    ///
    /// # Errors
    /// If the engine cannot hold the state.
    pub fn load_each<B: AsRef<[u8]>>(
        &mut self,
        mut tensor: impl FnMut(usize) -> B,
    ) -> Result<(), EngineError> {
        self.try_load_each(|i| Ok(tensor(i)))
    }

    /// [`Session::load_each`], for tensors that may fail to come.
    ///
    /// # Errors
    /// If `tensor` fails, or the engine cannot hold the state.
    #[doc(hidden)] // for the layers above
    pub fn try_load_each<B: AsRef<[u8]>, E: From<EngineError>>(
        &mut self,
        mut tensor: impl FnMut(usize) -> Result<B, E>,
    ) -> Result<(), E> {
        let count = self.program.state().len();
        self.load_visited(|load| (0..count).try_for_each(|i| load(i, tensor(i)?.as_ref())))
    }

    /// Loads a state whose tensors `state` passes on one after another: each with its index, in the table's order. A session that
    /// holds a share leaves the others' tensors out.
    ///
    /// # Errors
    /// If `state` fails, or the engine cannot hold the state. Then no state is loaded.
    ///
    /// # Panics
    /// If it passes other tensors than those of the table.
    #[doc(hidden)] // for the layers above
    pub fn load_visited<E: From<EngineError>>(
        &mut self,
        state: impl FnOnce(&mut dyn FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.load_first(self.program.state().len(), state)
    }

    /// [`Session::load_visited`] of what micro-batches read alone: without the optimizer's slots the state cannot be updated.
    ///
    /// # Errors
    /// As [`Session::load_visited`].
    ///
    /// # Panics
    /// As [`Session::load_visited`].
    #[doc(hidden)] // for the layers above
    pub fn load_read<E: From<EngineError>>(
        &mut self,
        state: impl FnOnce(&mut dyn FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.load_first(self.program.released(), state)
    }

    /// Loads the first `count` tensors of those that `state` passes on.
    fn load_first<E: From<EngineError>>(
        &mut self,
        count: usize,
        state: impl FnOnce(&mut dyn FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.state.clear();
        let (table, read, mut passed) = (self.program.state(), self.program.released(), 0);
        let held = &self.held.places;
        let (engine, mut loaded) = (&mut self.engine, Vec::with_capacity(count));
        state(&mut |index, bytes| {
            assert_eq!(index, passed, "tensors come in the table's order");
            passed += 1;
            if index < count && held.binary_search(&index).is_ok() {
                let tensor = engine.upload(&table[index].ty(), bytes)?;
                loaded.push(if index < read { tensor } else { engine.put_outside(tensor)? });
            }
            Ok(())
        })?;
        assert_eq!(passed, table.len(), "a state has every tensor of its table");
        self.state = loaded;
        Ok(())
    }
}

//! Places outside of memory, for tensors that nobody reads for a while: the optimizer's slots, and gradients that wait for their sum.
//!
//! The CPU engine uses such a place. It reads a tensor back before the first node that reads it, and puts what replaces the tensor
//! there as soon as no later node reads that, so that few of them are in memory at a time. No bit changes. This crate opens no file:
//! whoever makes an engine gives it the place ([`Engine::use_outside`](super::Engine::use_outside)).

use std::io;

/// A place outside of memory.
pub trait Outside: Send + Sync {
    /// Keeps words until the value that comes back is dropped.
    ///
    /// # Errors
    /// If the place has no room for them, or fails.
    fn put(&self, words: &[u32]) -> io::Result<Box<dyn Held>>;
}

/// Words in a place outside of memory.
pub trait Held: Send + Sync {
    /// Copies the words into `words`, which are as many.
    ///
    /// # Errors
    /// If the place fails.
    fn get(&self, words: &mut [u32]) -> io::Result<()>;
}

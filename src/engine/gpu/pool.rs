//! Memory that is used again: what a tensor leaves goes to the next of the same size.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Free memory by size in bytes.
struct Free<M> {
    by_size: HashMap<u64, Vec<(u64, M)>>,
    /// How often the pool was trimmed; kept with each piece from when it was last in use.
    age: u64,
}

/// Trims that a free piece survives: a step runs a handful of graphs, each of which trims once.
const AGE_MAX: u64 = 16;

/// A device's memory that nothing uses.
pub struct Pool<M>(Arc<Mutex<Free<M>>>);

/// Memory that goes back to its pool.
pub struct Buffer<M> {
    memory: Option<M>,
    size: u64,
    pool: Weak<Mutex<Free<M>>>,
}

fn lock<M>(free: &Mutex<Free<M>>) -> MutexGuard<'_, Free<M>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M> Default for Pool<M> {
    fn default() -> Pool<M> {
        Pool(Arc::new(Mutex::new(Free { by_size: HashMap::new(), age: 0 })))
    }
}

impl<M> Pool<M> {
    /// Memory of at least `bytes`, with any contents: a free piece, or a new one. What is free is given up if a device says that
    /// there is no room for a new one otherwise (wgpu says so only later).
    pub fn take<E>(&self, bytes: u64, allocate: impl Fn(u64) -> Result<M, E>) -> Result<Buffer<M>, E> {
        let size = bytes.next_multiple_of(256).max(256);
        let pooled = lock(&self.0).by_size.get_mut(&size).and_then(Vec::pop).map(|(_, memory)| memory);
        let memory = match pooled {
            Some(memory) => memory,
            None => allocate(size).or_else(|_| {
                lock(&self.0).by_size.clear();
                allocate(size)
            })?,
        };
        Ok(Buffer { memory: Some(memory), size, pool: Arc::downgrade(&self.0) })
    }

    /// Frees what nothing has used for a while.
    pub fn trim(&self) {
        let mut pool = lock(&self.0);
        pool.age += 1;
        let age = pool.age;
        pool.by_size.values_mut().for_each(|free| free.retain(|(used, _)| age - used <= AGE_MAX));
        pool.by_size.retain(|_, free| !free.is_empty());
    }
}

impl<M> Buffer<M> {
    pub fn memory(&self) -> &M {
        self.memory.as_ref().expect("memory is there until it is dropped")
    }
}

impl<M> Drop for Buffer<M> {
    fn drop(&mut self) {
        if let (Some(pool), Some(memory)) = (self.pool.upgrade(), self.memory.take()) {
            let mut pool = lock(&pool);
            let age = pool.age;
            pool.by_size.entry(self.size).or_default().push((age, memory));
        }
    }
}

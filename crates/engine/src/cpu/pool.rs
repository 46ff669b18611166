//! Freed memory, so that a step does not return it to the system after every node.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Freed memory by length. A freed buffer serves lengths down to half its own, so the graphs of a step share memory and little of it
/// is idle.
#[derive(Default)]
pub(super) struct Pool(Mutex<Buffers>);

/// Of the most words in use, the share that may be idle beside them: one in so many.
const IDLE: usize = 64;

#[derive(Default)]
struct Buffers {
    free: BTreeMap<usize, Vec<Vec<u32>>>,
    /// Words in `free`.
    idle: usize,
    /// Words that were handed out, and the most of them at once so far.
    used: usize,
    most: usize,
}

impl Buffers {
    /// A free buffer with a length from this range: the smallest.
    fn take(&mut self, lengths: std::ops::RangeInclusive<usize>) -> Option<Vec<u32>> {
        let length = self.free.range(lengths).next().map(|(length, _)| *length)?;
        self.remove(length)
    }

    fn remove(&mut self, length: usize) -> Option<Vec<u32>> {
        let same = self.free.get_mut(&length)?;
        let buffer = same.pop();
        if same.is_empty() {
            self.free.remove(&length);
        }
        self.idle -= length;
        buffer
    }

    /// Returns idle memory to the system that would make all memory more than what a step needs at its fullest.
    fn give_back(&mut self) {
        let most = self.most + self.most / IDLE;
        while let Some(excess) = (self.used + self.idle).checked_sub(most + 1) {
            let fitting = self.free.range(..=excess + 1).next_back().or_else(|| self.free.iter().next());
            let Some(length) = fitting.map(|(length, _)| *length) else { return };
            drop(self.remove(length));
        }
    }
}

impl Pool {
    fn locked(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least `len` words with any contents.
    pub(super) fn memory(&self, len: usize) -> Vec<u32> {
        let mut buffers = self.locked();
        let fitting = buffers.take(len..=len.saturating_mul(2));
        buffers.used += fitting.as_ref().map_or(len, Vec::len);
        buffers.most = buffers.most.max(buffers.used);
        if fitting.is_none() {
            buffers.give_back();
        }
        drop(buffers);
        // New memory is zeroed by the system, page by page, for the thread that first writes to it.
        fitting.unwrap_or_else(|| vec![0; len])
    }

    /// Takes memory back.
    pub(super) fn give(&self, memory: Vec<u32>) {
        let mut buffers = self.locked();
        buffers.used = buffers.used.saturating_sub(memory.len());
        buffers.idle += memory.len();
        buffers.free.entry(memory.len()).or_default().push(memory);
    }

    /// `len` words with any contents.
    pub(super) fn take(self: &Arc<Pool>, len: usize) -> Words {
        Words { memory: self.memory(len), len, pool: Arc::downgrade(self) }
    }

    /// Returns all idle memory to the system.
    pub(super) fn clear(&self) {
        let mut buffers = self.locked();
        buffers.free.clear();
        buffers.idle = 0;
    }
}

/// Words that go back to their pool.
pub(super) struct Words {
    /// `len` words of the tensor, and maybe further words.
    memory: Vec<u32>,
    len: usize,
    pool: Weak<Pool>,
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut self.memory[..self.len]
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of one size that becomes idle makes room for memory of another size.
    #[test]
    fn idle_memory_is_no_more_than_a_small_share() {
        let pool: Arc<Pool> = Arc::default();
        for len in [100, 1000, 10_000, 3_000, 300] {
            let all: Vec<Words> = (0..60_000 / len).map(|_| pool.take(len)).collect();
            let held = |buffers: &Buffers| buffers.used + buffers.idle;
            let buffers = pool.locked();
            assert!(held(&buffers) <= 60_000 + 60_000 / IDLE + 10_000, "{len}: {}", held(&buffers));
            drop(buffers);
            drop(all);
        }
        let buffers = pool.locked();
        let listed: usize = buffers.free.iter().map(|(length, all)| length * all.len()).sum();
        assert_eq!((buffers.used, buffers.idle), (0, listed));
        drop(buffers);
        pool.clear();
        assert_eq!(pool.locked().idle, 0);
    }
}

//! Memory that is used again: a tensor's memory goes to the next tensor of the same size.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Free memory by size in bytes, and by number. The choice of a piece depends on which pieces are free, not on the order in which
/// they came free. Tensors that outlive a graph have memory of their own. So a graph finds all of its other memory free whenever
/// it begins, and takes the same pieces again. Lasting tensors return to the same pieces every other step, and a device may
/// recognise its dispatches.
struct Free<M> {
    by_kind: HashMap<PieceKind, Pieces<M>>,
    /// The number of trims of the pool. Each piece keeps the number of its last use.
    age: u64,
    /// The number of pieces so far, which is the next piece's number.
    count: u64,
}

/// The kind of tensors that use a piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PieceKind {
    /// The size in bytes.
    size: u64,
    /// True if they outlive the graph that computes them.
    lasts: bool,
}

/// Trims that a free piece survives. A step runs two graphs for each micro-batch, and each graph trims once.
const AGE_MAX: u64 = 1024;

/// By number: the age of each piece's last use, and the piece.
type Pieces<M> = BTreeMap<u64, (u64, M)>;

/// A device's unused memory.
pub(crate) struct Pool<M>(Arc<Mutex<Free<M>>>);

/// Memory that returns to its pool.
pub(crate) struct Buffer<M> {
    memory: Option<M>,
    kind: PieceKind,
    number: u64,
    pool: Weak<Mutex<Free<M>>>,
}

fn lock<M>(free: &Mutex<Free<M>>) -> MutexGuard<'_, Free<M>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M> Default for Pool<M> {
    fn default() -> Pool<M> {
        Pool(Arc::new(Mutex::new(Free { by_kind: HashMap::new(), age: 0, count: 0 })))
    }
}

impl<M> Pool<M> {
    /// Memory of at least `bytes`, with any contents: a free piece, or a new one; `lasts` says that the tensor outlives the graph
    /// that computes it. If a device reports that there is no room for a new piece, all free pieces are freed (wgpu reports it
    /// only later).
    pub(crate) fn take<E>(
        &self,
        bytes: u64,
        lasts: bool,
        allocate: impl Fn(u64) -> Result<M, E>,
    ) -> Result<Buffer<M>, E> {
        let size = bytes.next_multiple_of(256).max(256);
        let kind = PieceKind { size, lasts };
        let pooled = lock(&self.0).by_kind.get_mut(&kind).and_then(BTreeMap::pop_first);
        let (number, memory) = match pooled {
            Some((number, (_, memory))) => (number, memory),
            None => {
                let memory = allocate(size).or_else(|_| {
                    lock(&self.0).by_kind.clear();
                    allocate(size)
                })?;
                let mut pool = lock(&self.0);
                pool.count += 1;
                (pool.count, memory)
            }
        };
        Ok(Buffer { memory: Some(memory), kind, number, pool: Arc::downgrade(&self.0) })
    }

    /// Bytes of free pieces: of those for a graph's own tensors, and of those that outlive graphs.
    pub(crate) fn free_bytes(&self) -> [u64; 2] {
        let pool = lock(&self.0);
        [false, true].map(|lasts| {
            let kinds = pool.by_kind.iter().filter(|(kind, _)| kind.lasts == lasts);
            kinds.map(|(kind, pieces)| kind.size * pieces.len() as u64).sum()
        })
    }

    /// Frees pieces that nothing has used for a while.
    pub(crate) fn trim(&self) {
        let mut pool = lock(&self.0);
        pool.age += 1;
        let age = pool.age;
        pool.by_kind.values_mut().for_each(|free| free.retain(|_, (used, _)| age - *used <= AGE_MAX));
        pool.by_kind.retain(|_, free| !free.is_empty());
    }
}

impl<M> Buffer<M> {
    pub(crate) fn memory(&self) -> &M {
        self.memory.as_ref().expect("memory is there until it is dropped")
    }
}

impl<M> Drop for Buffer<M> {
    fn drop(&mut self) {
        if let (Some(pool), Some(memory)) = (self.pool.upgrade(), self.memory.take()) {
            let mut pool = lock(&pool);
            let age = pool.age;
            pool.by_kind.entry(self.kind).or_default().insert(self.number, (age, memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_taken_does_not_depend_on_the_order_in_which_it_came_free() {
        let (pool, made) = (Pool::default(), Cell::new(0));
        let take = || {
            let piece = pool.take(1000, false, |_| Ok::<u32, ()>(made.replace(made.get() + 1)));
            piece.expect("there is always room")
        };
        let of = |pieces: &[Buffer<u32>]| pieces.iter().map(|piece| *piece.memory()).collect::<Vec<_>>();
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let pieces = [take(), take(), take()];
            assert_eq!(of(&pieces), [0, 1, 2]);
            let mut pieces = pieces.map(Some);
            for i in order {
                pieces[i] = None;
            }
        }
        assert_eq!(made.get(), 3);
        // Pieces that stay in use are passed over.
        let (first, second) = (take(), take());
        drop(first);
        assert_eq!(of(&[take(), second]), [0, 1]);
        // Lasting tensors have memory of their own.
        let lasting = pool.take(1000, true, |_| Ok::<u32, ()>(9));
        assert_eq!(of(&[lasting.expect("there is always room"), take()]), [9, 0]);
    }
}

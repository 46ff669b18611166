//! Operands packed in the words that a [`Form`] cuts, in the order in which register tiles read them.

use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::form::{Form, Layout, PLANES_MAX};
use super::isa::{Isa, LANES};
use super::runs::{Runs, WORD, Words};
#[cfg(target_arch = "x86_64")]
use crate::cpu::product::kept::{self, Kept};
use crate::cpu::product::operand::Operand;

/// Memory in which rows are gathered that are not contiguous: new memory costs as much as gathering them.
type Scratch = [Vec<i32>; LANES];

/// Rows of a as tiles: `[tile][word of K][plane][row of the tile]`.
#[derive(Default)]
pub(super) struct Rows {
    words: Vec<u32>,
    tiles: usize,
    /// Words of a tile, and words of a tile for one word of K.
    of_tile: usize,
    together: usize,
    scratch: Scratch,
}

impl Rows {
    /// Packs rows and indices of a, in the memory of the rows before.
    pub(super) fn pack<F: Form>(&mut self, a: &Operand, batch: usize, rows: Range<usize>, k: Range<usize>) {
        let words_of_k = k.len().div_ceil(F::PLACES);
        self.tiles = rows.len().div_ceil(F::ROWS);
        self.together = F::PLANES[0] * F::ROWS;
        self.of_tile = words_of_k * self.together;
        // All words are written below.
        self.words.resize(self.tiles * self.of_tile, 0);
        let (of_tile, together, scratch) = (self.of_tile, self.together, &mut self.scratch);
        let of_sixteen = self.words.chunks_mut(of_tile * (LANES / F::ROWS));
        for (first, to) in rows.clone().step_by(LANES).zip(of_sixteen) {
            let some = first..rows.end.min(first + LANES);
            for_each_word::<F, 0>(a, batch, some, k.clone(), scratch, |word, plane, lanes| {
                let to = to.chunks_exact_mut(of_tile);
                for (to, lanes) in to.zip(lanes.chunks_exact(F::ROWS)) {
                    to[word * together + plane * F::ROWS..][..F::ROWS].copy_from_slice(lanes);
                }
            });
        }
    }

    pub(super) fn tiles(&self) -> usize {
        self.tiles
    }

    pub(super) fn words<F: Form>(&self) -> Words<'_> {
        let bytes = bytemuck::cast_slice(&self.words);
        Words { bytes, step: self.together * WORD, plane: F::ROWS * WORD }
    }

    /// The words of a tile: one run.
    pub(super) fn runs<F: Form>(&self, tile: usize, words: Range<usize>, runs: &mut Runs) {
        let first = tile * self.of_tile + words.start * self.together;
        let starts: [usize; LANES] = std::array::from_fn(|row| (first + row) * WORD);
        runs.push(0..words.len(), &starts[..F::ROWS], self.together * WORD);
    }
}

/// The memory of panels, with any contents. Large memory serves the next panels: the system would clear new memory page by page, which
/// takes as long as packing.
struct Memory(Vec<u32>);

/// Memory that no panels have, and the least and the most words of such memory.
static SPARE: Mutex<Option<Vec<u32>>> = Mutex::new(None);
const LARGE: RangeInclusive<usize> = 1 << 18..=1 << 26;

impl Memory {
    /// At least `len` words.
    fn take(len: usize) -> Memory {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        match spare.take_if(|spare| LARGE.contains(&len) && spare.len() >= len) {
            Some(spare) => Memory(spare),
            None => Memory(vec![0; len]),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if LARGE.contains(&self.0.len()) && spare.as_ref().is_none_or(|spare| spare.len() < self.0.len()) {
            *spare = Some(std::mem::take(&mut self.0));
        }
    }
}

/// The words of panels: their own, or those of kept rows.
enum Stored {
    Own(Memory),
    #[cfg(target_arch = "x86_64")]
    Kept(Arc<Vec<u32>>),
}

impl Stored {
    fn words(&self) -> &[u32] {
        match self {
            Stored::Own(memory) => &memory.0,
            #[cfg(target_arch = "x86_64")]
            Stored::Kept(words) => words,
        }
    }
}

/// All rows of b as panels of columns of the product: `[panel][word of K][plane][vector][lane]`.
pub(super) struct Panels<F> {
    words: Stored,
    n: usize,
    words_of_k: usize,
    /// [`Layout::SURPLUS`] times the sum of each column's integers.
    surplus: Arc<Vec<i64>>,
    form: PhantomData<F>,
}

impl<F: Layout> Panels<F> {
    /// Words of a panel that hold the same indices of K.
    const TOGETHER: usize = F::PLANES[1] * F::WIDTH;

    /// The rows of b for one product; kept rows are not packed again if their words lie in the order of this layout.
    pub(super) fn pack(b: &Operand, batch: usize, k: Range<usize>) -> Self {
        #[cfg(target_arch = "x86_64")]
        if F::AS_KEPT
            && let Some(kept) = b.kept().filter(|_| k.len() == b.k())
        {
            let (words, surplus, words_of_k) = kept.parts();
            let words = Stored::Kept(words.clone());
            return Panels { words, n: b.rows(), words_of_k, surplus: surplus.clone(), form: PhantomData };
        }
        Self::pack_in(Memory::take, b, batch, k)
    }

    /// All indices of the rows of b, for many products: the memory has no more words than these.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn keep(b: &Operand) -> Kept {
        let packed = Self::pack_in(|len| Memory(vec![0; len]), b, 0, 0..b.k());
        let words = match packed.words {
            Stored::Own(mut memory) => Arc::new(std::mem::take(&mut memory.0)),
            Stored::Kept(words) => words,
        };
        Kept::new(words, b.rows(), packed.words_of_k, packed.surplus)
    }

    fn pack_in(memory: impl FnOnce(usize) -> Memory, b: &Operand, batch: usize, k: Range<usize>) -> Self {
        let (n, words_of_k) = (b.rows(), k.len().div_ceil(F::PLACES).next_multiple_of(F::MULTIPLE));
        let panels = n.div_ceil(F::WIDTH);
        let of_panel = words_of_k * Self::TOGETHER;
        // All words are written below.
        let mut words = memory(panels * of_panel);
        let mut surplus = vec![0; panels * F::WIDTH];
        let written = k.len().div_ceil(F::PLACES) * Self::TOGETHER;
        let of_panels = words.0[..panels * of_panel].par_chunks_mut(of_panel.max(1));
        let of_panels = of_panels.zip(surplus.par_chunks_mut(F::WIDTH)).enumerate();
        of_panels.for_each_init(Scratch::default, |scratch, (panel, (to, surplus))| {
            to[written..].fill(0);
            for (vector, surplus) in surplus.chunks_exact_mut(LANES).enumerate() {
                let first = panel * F::WIDTH + vector * LANES;
                let some = first.min(n)..n.min(first + LANES);
                if F::SURPLUS != 0 {
                    for (surplus, row) in surplus.iter_mut().zip(some.clone()) {
                        let q = b.row(batch, row, k.clone(), &mut scratch[0]);
                        *surplus = F::SURPLUS * q.iter().map(|&q| i64::from(q)).sum::<i64>();
                    }
                }
                let put = |word: usize, plane: usize, lanes: &[u32; LANES]| {
                    let at = word * Self::TOGETHER + plane * F::WIDTH + vector * LANES;
                    to[at..at + LANES].copy_from_slice(lanes);
                };
                for_each_word::<F, 1>(b, batch, some, k.clone(), scratch, put);
            }
        });
        Panels { words: Stored::Own(words), n, words_of_k, surplus: Arc::new(surplus), form: PhantomData }
    }

    /// The number of columns of a panel that the product has.
    pub(super) fn columns(&self, panel: usize) -> usize {
        F::WIDTH.min(self.n - panel * F::WIDTH)
    }

    pub(super) fn words_of_k(&self) -> usize {
        self.words_of_k
    }

    pub(super) fn words(&self, panel: usize, words: Range<usize>) -> &[u32] {
        let of_panel = &self.words.words()[panel * self.words_of_k * Self::TOGETHER..];
        &of_panel[words.start * Self::TOGETHER..words.end * Self::TOGETHER]
    }

    pub(super) fn surplus(&self, panel: usize) -> &[i64] {
        &self.surplus[panel * F::WIDTH..][..F::WIDTH]
    }
}

/// Passes all words of sixteen kept rows for `len` indices of K: (word of K, plane, a word of each row).
#[cfg(target_arch = "x86_64")]
fn for_each_kept<F: Layout, const SIDE: usize>(
    kept: &Kept,
    panel: usize,
    len: usize,
    mut put: impl FnMut(usize, usize, &[u32; LANES]),
) {
    // SAFETY: products run here where the form's instructions were detected.
    unsafe {
        F::Isa::run(
            #[inline(always)]
            || {
                for (i, words) in kept.panel(panel, 0..len.div_ceil(kept::PLACES)).iter().enumerate() {
                    let count = (len - i * kept::PLACES).min(kept::PLACES).next_multiple_of(F::PLACES);
                    cut_places::<F, SIDE>(
                        &kept::integers(words)[..count],
                        i * kept::PLACES / F::PLACES,
                        &mut put,
                    );
                }
            },
        );
    }
}

/// Passes all words of up to sixteen rows of an operand: (word of K, plane, a word of each row). Missing rows and indices are 0. Fewer rows
/// than sixteen are the last ones.
fn for_each_word<F: Layout, const SIDE: usize>(
    operand: &Operand,
    batch: usize,
    rows: Range<usize>,
    k: Range<usize>,
    scratch: &mut Scratch,
    put: impl FnMut(usize, usize, &[u32; LANES]),
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(kept) = operand.kept()
        && k.len() == operand.k()
        && rows.start.is_multiple_of(LANES)
        && !rows.is_empty()
    {
        return for_each_kept::<F, SIDE>(kept, rows.start / LANES, k.len(), put);
    }
    let mut of_rows: [&[i32]; LANES] = [&[]; LANES];
    for ((row, of_row), scratch) in rows.zip(&mut of_rows).zip(scratch) {
        *of_row = operand.row(batch, row, k.clone(), scratch);
    }
    // SAFETY: products run here where the form's instructions were detected.
    unsafe {
        F::Isa::run(
            #[inline(always)]
            || turn_and_cut::<F, SIDE>(&of_rows, k.len(), put),
        );
    }
}

#[inline(always)]
fn turn_and_cut<F: Layout, const SIDE: usize>(
    rows: &[&[i32]; LANES],
    len: usize,
    mut put: impl FnMut(usize, usize, &[u32; LANES]),
) {
    for first in (0..len).step_by(LANES) {
        let count = LANES.min(len - first);
        let mut places: [&[i32]; LANES] = [&[]; LANES];
        for (places, row) in places.iter_mut().zip(rows) {
            *places = row.get(first..first + count).unwrap_or_default();
        }
        // SAFETY: products run here where the form's instructions were detected.
        let turned = unsafe { F::Isa::turned(&places) };
        cut_places::<F, SIDE>(&turned[..count.next_multiple_of(F::PLACES)], first / F::PLACES, &mut put);
    }
}

/// Passes the words of integers `[place][row]`; the first word has number `first`.
#[inline(always)]
fn cut_places<F: Layout, const SIDE: usize>(
    places: &[[i32; LANES]],
    first: usize,
    put: &mut impl FnMut(usize, usize, &[u32; LANES]),
) {
    for (word, places) in places.chunks_exact(F::PLACES).enumerate() {
        let mut planes = [[0; LANES]; PLANES_MAX];
        F::cut::<SIDE>(places, &mut planes[..F::PLANES[SIDE]]);
        for (plane, lanes) in planes[..F::PLANES[SIDE]].iter().enumerate() {
            put(first + word, plane, lanes);
        }
    }
}

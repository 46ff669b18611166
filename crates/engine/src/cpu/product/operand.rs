//! Digitising an operand: strided binary32 tensors to rows of integers, K contiguous, with the absmax of every
//! scale group. Contract: `docs/ARITHMETIC.md`, section 4.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::bands::Piece;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::gather::Gather;
#[cfg(target_arch = "x86_64")]
use super::kept::Kept;
use super::patches::Patches;
use super::simd::{Path, vectorised};
#[cfg(target_arch = "x86_64")]
use super::strips::{self, Pair};
use super::view::{
    DEPTH, INTEGERS, ROWS, StridedView, blocks, for_each_strip, group_len, power_of_two, units_of_task,
};
use tiebreak_contract::arith::{digits, float};
use tiebreak_contract::program::im2col::DigitPatches;

/// Rows whose absmaxes are found side by side where rows, not K, are contiguous.
const COLUMNS: usize = 128;

/// The integers of one side of a product, `[batch, rows, K]`, and its absmaxes, `[batch, rows, blocks]`.
#[derive(Clone, Debug)]
pub struct Operand {
    digits: u32,
    batch: usize,
    rows: usize,
    k: usize,
    block: usize,
    integers: Integers,
    absmaxes: Vec<u32>,
}

/// The integers of an operand, maybe in more memory than they need.
#[derive(Clone, Debug)]
enum Integers {
    /// Rows, one after another.
    Rows(Arc<Vec<i32>>),
    /// Strips of rows.
    #[cfg(target_arch = "x86_64")]
    Strips(Arc<Vec<i32>>),
    /// Images, from which rows are gathered.
    Patches(Arc<Patches>),
    /// Rows that are packed for products.
    #[cfg(target_arch = "x86_64")]
    Kept(Kept),
}

impl Operand {
    /// An operand from its committed form (see [`to_canonical`]) and its absmaxes.
    ///
    /// # Panics
    /// If a length does not fit `[batch, rows, k]`.
    pub(crate) fn from_canonical(
        digits: u32,
        [batch, rows, k]: [usize; 3],
        block: usize,
        absmaxes: Vec<u32>,
        bytes: &[u8],
    ) -> Operand {
        let width = digits as usize;
        assert_eq!(bytes.len(), batch * rows * k * width, "the bytes of the integers");
        assert_eq!(absmaxes.len(), batch * rows * blocks(k, block), "absmaxes are [batch, rows, blocks]");
        let extend = |bytes: &[u8]| {
            let mut le = [if bytes[width - 1] & 0x80 != 0 { 0xff } else { 0 }; 4];
            le[..width].copy_from_slice(bytes);
            i32::from_le_bytes(le)
        };
        let integers = Integers::Rows(Arc::new(bytes.chunks_exact(width).map(extend).collect()));
        Operand { digits, batch, rows, k, block, integers, absmaxes }
    }

    /// The patches of this operand's integers, gathered as products read them. The caller sets the absmaxes
    /// (`Operand::with_absmaxes`). `memory(len)` gives at least `len` words with any contents.
    ///
    /// # Panics
    /// If the rows are no whole numbers of images or pixels.
    pub(crate) fn patches(&self, patches: DigitPatches, memory: impl FnOnce(usize) -> Vec<i32>) -> Operand {
        let images = patches.images(self.rows as u32, self.k as u32).expect("rows are whole images");
        let [rows, k] = patches.shape(images).map(|n| n as usize);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = memory;
        let gathered = match &self.integers {
            Integers::Rows(q) => Patches::of_rows(patches, images, q.clone()),
            #[cfg(target_arch = "x86_64")]
            Integers::Strips(q) => {
                Patches::of_strips(patches, images, q, || self.integers().into_owned(), memory)
            }
            _ => Patches::of_rows(patches, images, Arc::new(self.integers().into_owned())),
        };
        let integers = Integers::Patches(Arc::new(gathered));
        Operand { digits: self.digits, batch: 1, rows, k, block: 0, integers, absmaxes: vec![0; rows] }
    }

    /// The same integers in scale groups of `block` with these absmaxes.
    ///
    /// # Panics
    /// If the absmaxes are not `[batch, rows, blocks]`.
    pub(crate) fn with_absmaxes(&self, absmaxes: &[u32], block: usize) -> Operand {
        assert_eq!(
            absmaxes.len(),
            self.batch * self.rows * blocks(self.k, block),
            "absmaxes are [batch, rows, blocks]"
        );
        Operand { integers: self.integers.clone(), absmaxes: absmaxes.to_vec(), block, ..*self }
    }

    pub(crate) fn digits(&self) -> u32 {
        self.digits
    }

    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// The length of a scale group along K; 0 if it is the whole of K.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    /// The number of scale groups along K, at least 1.
    pub(crate) fn blocks(&self) -> usize {
        blocks(self.k, self.block)
    }

    /// The absmaxes, `[batch, rows, blocks]`.
    #[cfg(test)]
    pub(crate) fn absmaxes(&self) -> &[u32] {
        &self.absmaxes
    }

    /// The integers, `[batch, rows, K]`.
    pub(crate) fn integers(&self) -> Cow<'_, [i32]> {
        if let Integers::Rows(q) = &self.integers {
            return Cow::Borrowed(&q[..self.batch * self.rows * self.k]);
        }
        let mut all = vec![0; self.batch * self.rows * self.k];
        let rows = all.par_chunks_mut(self.k.max(1)).enumerate();
        rows.for_each(|(row, to)| self.copy_row([row / self.rows, row % self.rows], 0, to));
        Cow::Owned(all)
    }

    /// Passes rows, counted over all batches, to `visit`.
    pub(crate) fn visit_rows(&self, rows: &[usize], visit: &(dyn Fn(usize, &[i32]) + Sync)) {
        rows.par_iter().for_each_init(Vec::new, |scratch, &row| {
            visit(row, self.row(row / self.rows, row % self.rows, 0..self.k, scratch));
        });
    }

    /// Takes the memory of the integers, for another operand, if nothing else is gathered from it. This operand keeps none.
    pub fn take_memory(&mut self) -> Option<Vec<i32>> {
        (self.batch, self.rows) = (0, 0);
        match std::mem::replace(&mut self.integers, Integers::Rows(Arc::default())) {
            Integers::Rows(q) => Arc::into_inner(q),
            #[cfg(target_arch = "x86_64")]
            Integers::Strips(q) => Arc::into_inner(q),
            Integers::Patches(patches) => Arc::into_inner(patches)?.into_memory(),
            #[cfg(target_arch = "x86_64")]
            Integers::Kept(_) => None,
        }
    }

    /// The same operand with packed rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn with_kept(&self, kept: Kept) -> Operand {
        Operand { integers: Integers::Kept(kept), absmaxes: self.absmaxes.clone(), ..*self }
    }

    /// The packed rows, if they are so.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn kept(&self) -> Option<&Kept> {
        let Integers::Kept(kept) = &self.integers else { return None };
        Some(kept)
    }

    /// The indices of K of block `block`, as (first, length).
    pub(super) fn block_range(&self, block: usize) -> (usize, usize) {
        let step = group_len(self.k, self.block);
        (block * step, step.min(self.k - block * step))
    }

    /// The integers `k` of row `row` of batch `batch`, in `scratch` if they are gathered. An operand of one batch serves every
    /// batch.
    pub(super) fn row<'r>(
        &'r self,
        batch: usize,
        row: usize,
        k: Range<usize>,
        scratch: &'r mut Vec<i32>,
    ) -> &'r [i32] {
        if let Integers::Rows(q) = &self.integers {
            return &q[self.row_index(batch, row) * self.k..][k];
        }
        scratch.resize(k.len(), 0);
        self.copy_row([batch, row], k.start, scratch);
        scratch
    }

    /// All rows of a batch, one after another, if the integers are so.
    pub(super) fn contiguous(&self, batch: usize) -> Option<&[i32]> {
        let Integers::Rows(q) = &self.integers else { return None };
        Some(&q[self.row_index(batch, 0) * self.k..][..self.rows * self.k])
    }

    /// Copies the integers of a row from index `first` on, as many as `to` holds, where they are not contiguous.
    fn copy_row(&self, [batch, row]: [usize; 2], first: usize, to: &mut [i32]) {
        match &self.integers {
            Integers::Rows(q) => {
                to.copy_from_slice(&q[self.row_index(batch, row) * self.k + first..][..to.len()])
            }
            #[cfg(target_arch = "x86_64")]
            Integers::Strips(_) => {
                let strips = self.strips(batch).expect("it has strips");
                strips::read_row(strips, strips::pairs(self.k), row, first..first + to.len(), to);
            }
            Integers::Patches(patches) => patches.row(row, first, to),
            #[cfg(target_arch = "x86_64")]
            Integers::Kept(kept) => kept.copy_row(row, first, to),
        }
    }

    /// The strips of a batch, if the integers are in strips.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn strips(&self, batch: usize) -> Option<&[i32]> {
        let Integers::Strips(q) = &self.integers else { return None };
        let batch = if self.batch == 1 { 0 } else { batch };
        let len = strips::words([1, self.rows, self.k]);
        Some(&q[batch * len..][..len])
    }

    /// The images that rows are gathered from and all their integers, if the integers are contiguous.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn images(&self) -> Option<(&Gather, &[i32])> {
        let Integers::Patches(patches) = &self.integers else { return None };
        patches.images()
    }

    /// Writes the integers `k` of a strip of rows as pairs, with zeros behind them; false if the operand cannot be read in this
    /// form.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn gather_strip(&self, rows: Range<usize>, k: Range<usize>, to: &mut [Pair]) -> bool {
        matches!(&self.integers, Integers::Patches(patches) if patches.strip(rows, k, to))
    }

    /// Writes a piece of each of the integers `k` of a row, which has 16 bits, with zeros behind them.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn halves(
        &self,
        [batch, row]: [usize; 2],
        k: Range<usize>,
        path: Path,
        piece: Piece,
        to: &mut [i16],
        scratch: &mut Vec<i32>,
    ) {
        let (of_row, after) = to.split_at_mut(k.len());
        after.fill(0);
        if let (Integers::Patches(patches), Piece::Whole) = (&self.integers, piece)
            && patches.halves(row, k.start, of_row)
        {
            return;
        }
        narrowed(path, self.row(batch, row, k, scratch), piece, of_row);
    }

    /// The absmaxes of all rows of a batch.
    pub(super) fn absmaxes_of(&self, batch: usize, block: usize) -> impl Iterator<Item = u32> {
        let (first, blocks) = (self.row_index(batch, 0) * self.blocks() + block, self.blocks());
        self.absmaxes[first..].iter().step_by(blocks).take(self.rows).copied()
    }

    pub(super) fn absmax(&self, batch: usize, row: usize, block: usize) -> u32 {
        self.absmaxes[self.row_index(batch, row) * self.blocks() + block]
    }

    fn row_index(&self, batch: usize, row: usize) -> usize {
        let batch = if self.batch == 1 { 0 } else { batch };
        batch * self.rows + row
    }
}

#[cfg(target_arch = "x86_64")]
vectorised! {
    /// Writes a piece of each integer, which has 16 bits.
    fn narrowed(q: &[i32], piece: Piece, to: &mut [i16]) {
        for (to, &q) in to.iter_mut().zip(q) {
            *to = piece.of(q) as i16;
        }
    }
}

fn check_block(block: usize) {
    assert!(block == 0 || (block >= 64 && block.is_power_of_two()), "block {block}: neither 0 nor 2^n >= 64");
}

/// The absmax of every scale group of a view: `[batch, rows, blocks]`, `blocks` = 1 if `block` is 0, else
/// `ceil(K / block)`, at least 1.
///
/// # Panics
/// If `block` is neither 0 nor a power of two.
pub fn absmaxes(view: StridedView<'_>, block: usize) -> Vec<u32> {
    assert!(block == 0 || block.is_power_of_two(), "block {block}: neither 0 nor 2^n");
    let (k, rows) = (view.k.len, view.rows.len);
    let (group, groups) = (group_len(k, block), blocks(k, block));
    let mut out = vec![0u32; view.batches() * rows * groups];
    if k == 0 || out.is_empty() {
        return out;
    }
    let path = Path::fastest();
    let across = view.rows.stride == 1 && view.k.stride != 1;
    if across {
        columns_absmaxes(path, view, [group, groups], &mut out);
        return out;
    }
    let strips = rows.div_ceil(ROWS);
    for_each_strip(&mut out, [rows * groups, ROWS * groups], ROWS * k, |batch, strip, out| {
        if groups == 1 && view.k.stride == 1 {
            let (data, stride, _) = view.tail_of_row(batch, strip * ROWS);
            return rows_absmaxes(path, data, stride, k, out);
        }
        // Short groups are gathered together.
        view.strip(batch * strips + strip).for_each_piece(group.max(DEPTH), 0..k, |row, first, elements| {
            let out = &mut out[row * groups + first / group..];
            for (absmax, elements) in out.iter_mut().zip(elements.chunks(group)) {
                *absmax = greatest_absmax(path, elements).max(*absmax);
            }
        });
    });
    out
}

/// The absmaxes where rows, not K, are contiguous: `groups` groups of `group` indices of each row.
fn columns_absmaxes(path: Path, view: StridedView<'_>, [group, groups]: [usize; 2], out: &mut [u32]) {
    let (k, rows) = (view.k.len, view.rows.len);
    let strips = rows.div_ceil(COLUMNS);
    let each = units_of_task(view.batches() * strips, groups, 1);
    let parts = groups.div_ceil(each);
    let found = (0..view.batches() * strips * parts).into_par_iter().map(|task| {
        let (strip, part) = (task / parts, task % parts);
        let (batch, row) = (strip / strips, strip % strips * COLUMNS);
        let (start, len) = (view.start(batch, row), COLUMNS.min(rows - row));
        let mut greatest = vec![0; (each.min(groups - part * each)) * len];
        for (number, greatest) in greatest.chunks_mut(len).enumerate() {
            let first = (part * each + number) * group;
            for place in first..k.min(first + group) {
                keep_greater(path, &view.data[start + place * view.k.stride..][..len], greatest);
            }
        }
        ((batch * rows + row) * groups + part * each, len, greatest)
    });
    for (at, len, greatest) in found.collect::<Vec<_>>() {
        for (number, greatest) in greatest.chunks(len).enumerate() {
            out[at + number..].iter_mut().step_by(groups).zip(greatest).for_each(|(out, &x)| *out = x);
        }
    }
}

vectorised! {
    fn greatest_absmax(elements: &[u32]) -> u32 {
        elements.iter().fold(0, |greatest, &x| greatest.max(x & !float::SIGN))
    }
}

vectorised! {
    /// The absmaxes of rows of `k` contiguous elements; the rows begin `stride` elements apart.
    fn rows_absmaxes(data: &[u32], stride: usize, k: usize, out: &mut [u32]) {
        for (row, out) in out.iter_mut().enumerate() {
            *out = data[row * stride..][..k].iter().fold(0, |greatest, &x| greatest.max(x & !float::SIGN));
        }
    }
}

vectorised! {
    /// Keeps the greater absmax for one element of each of several rows.
    fn keep_greater(elements: &[u32], greatest: &mut [u32]) {
        for (greatest, &x) in greatest.iter_mut().zip(elements) {
            *greatest = (*greatest).max(x & !float::SIGN);
        }
    }
}

/// Words that the integers of an operand `[batch, rows, K]` of `digits` digits take on this machine.
pub fn memory_of(shape: [usize; 3], digits: u32) -> usize {
    #[cfg(target_arch = "x86_64")]
    if strips::serve(digits) {
        return strips::words(shape);
    }
    // Rows take one word for each integer, for any number of digits.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = digits;
    shape.iter().product()
}

/// Digitises a view whose absmaxes are known. The memory `q` may have any contents, and has at least [`memory_of`] words of the
/// shape.
///
/// # Panics
/// If `digits` is not in 1..=4, `block` is neither 0 nor a power of two >= 64, `absmaxes` has another shape than [`absmaxes`]
/// gives, or the memory is too short. An absmax below its group's true one gives meaningless integers.
pub fn quantise_into(
    mut q: Vec<i32>,
    view: StridedView<'_>,
    absmaxes: Vec<u32>,
    digits: u32,
    block: usize,
) -> Operand {
    assert!((1..=digits::DIGITS_MAX).contains(&digits), "a product has 1 to 4 digits, not {digits}");
    check_block(block);
    let (batch, rows, k) = (view.batches(), view.rows.len, view.k.len);
    let (group, groups) = (group_len(k, block), blocks(k, block));
    assert_eq!(absmaxes.len(), batch * rows * groups, "absmaxes are [batch, rows, blocks]");
    #[cfg(target_arch = "x86_64")]
    if strips::serve(digits) {
        strips::quantise(&mut q, view, &absmaxes, digits, block);
        let integers = Integers::Strips(Arc::new(q));
        return Operand { digits, batch, rows, k, block, integers, absmaxes };
    }
    quantise_rows(&mut q[..batch * rows * k], view, &absmaxes, digits, [group, groups]);
    let integers = Integers::Rows(Arc::new(q));
    Operand { digits, batch, rows, k, block, integers, absmaxes }
}

/// Digitises a view into rows, with `groups` scale groups of `group` indices each.
fn quantise_rows(
    q: &mut [i32],
    view: StridedView<'_>,
    absmaxes: &[u32],
    digits: u32,
    [group, groups]: [usize; 2],
) {
    let [batch, rows, k] = view.shape();
    if q.is_empty() {
        return;
    }
    let path = Path::fastest();
    let strips = rows.div_ceil(ROWS);
    let each = units_of_task(batch * strips, k, DEPTH);
    let digitise = |[batch, strip]: [usize; 2], part: Range<usize>, rows_of: &mut [&mut [i32]]| {
        view.strip(batch * strips + strip).for_each_piece(group, part.clone(), |row, first, elements| {
            let absmax = absmaxes[(batch * rows + strip * ROWS + row) * groups + first / group];
            let q = &mut rows_of[row][first - part.start..][..elements.len()];
            if digits::is_marked(absmax) {
                return q.fill(0);
            }
            let scale = power_of_two(digits::magnitude_bits(digits) as i32 - digits::exponent(absmax));
            if digits < digits::DIGITS_MAX && scale <= f64::from(f32::MAX) {
                quantise_short(path, elements, scale as f32, q);
            } else {
                quantise_group(path, elements, scale, q);
            }
        });
    };
    if each >= k {
        for_each_strip(q, [rows * k, ROWS * k], ROWS * k, |batch, strip, q| {
            let mut rows = q.chunks_mut(k);
            let mut rows: [&mut [i32]; ROWS] = std::array::from_fn(|_| rows.next().unwrap_or_default());
            digitise([batch, strip], 0..k, &mut rows);
        });
        return;
    }
    let of_strips = q.chunks_mut(rows * k).flat_map(|batch| batch.chunks_mut(ROWS * k));
    let parts = of_strips.enumerate().flat_map(|(i, q)| {
        let mut rows: Vec<_> = q.chunks_mut(k).map(|row| row.chunks_mut(each)).collect();
        (0..k).step_by(each).map(move |first| {
            let rows = rows.iter_mut().map(|parts| parts.next().expect("rows have one K"));
            ([i / strips, i % strips], first..k.min(first + each), rows.collect::<Vec<_>>())
        })
    });
    let parts = parts.collect::<Vec<_>>().into_par_iter();
    parts.for_each(|(at, part, mut rows)| digitise(at, part, &mut rows));
}

vectorised! {
    /// q = RNE(x * scale), |q| <= 2^30, scale a power of two. The computation is exact in binary64: a binary32 value times a
    /// power of two is a double. Adding 1.5 * 2^52, where doubles are the integers, rounds to nearest even and leaves q in two's
    /// complement in the low bits.
    fn quantise_group(elements: &[u32], scale: f64, q: &mut [i32]) {
        const INTEGERS: f64 = 6_755_399_441_055_744.0;
        for (q, &x) in q.iter_mut().zip(elements) {
            *q = (f64::from(f32::from_bits(x)) * scale + INTEGERS).to_bits() as i32;
        }
    }
}

vectorised! {
    /// The same digitising in binary32, for |q| <= 2^22. A multiplication by a power of two is exact in binary32, except for
    /// subnormal results, for which q is 0.
    fn quantise_short(elements: &[u32], scale: f32, q: &mut [i32]) {
        for (q, &x) in q.iter_mut().zip(elements) {
            *q = (f32::from_bits(x) * scale + INTEGERS).to_bits() as i32 - INTEGERS.to_bits() as i32;
        }
    }
}

/// The committed form of the integers: `digits`-byte little-endian two's complement, `[batch, rows, K]`.
pub(crate) fn to_canonical(operand: &Operand) -> Vec<u8> {
    let width = operand.digits as usize;
    let integers = operand.integers();
    let mut out = vec![0u8; integers.len() * width];
    out.par_chunks_mut(4096 * width).zip(integers.par_chunks(4096)).for_each(|(out, q)| {
        for (bytes, q) in out.chunks_exact_mut(width).zip(q) {
            bytes.copy_from_slice(&q.to_le_bytes()[..width]);
        }
    });
    out
}

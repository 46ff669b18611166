//! Products of digits by AMX's tile registers: an instruction adds 16 x 16 dot products of 64 bytes.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
//!
//! Digits d of a and e of b have weight 256^(d + e), and the pairs of one weight share an accumulator, as in [`super::bytes`]. Both
//! operands have signed digits. Sums of integers of four digits take more than 64 bits, and are kept as high * 2^32 + low.
//!
//! A core multiplies 1024 pairs of bytes in a cycle. So a cycle has 113 products of integers of three digits, or 64 of four, where two
//! AVX-512 units have 32 of binary32.
//!
//! Four of the eight registers stay zero. If both hardware threads of a core work, an instruction takes 30 ns with eight registers in
//! use, and 17 ns with four (an Intel Xeon of model 207): it seems that a thread then has few registers to rename these to, and none
//! for those that are zero. If one thread works, both take 8 ns. So a loop has one accumulator for each of two strips of a, and one
//! weight follows the other, although digits are then loaded more often.

use std::arch::asm;
use std::ops::Range;

use rayon::prelude::*;

use super::bytes::{cut, offset};
use super::form::Layout;
use super::images::Images;
use super::isa::{Isa, LANES};
use super::packed::Panels;
use super::runs::{Runs, WORD};
use super::x86::Avx512Vnni;
use crate::cpu::product::bands::{Band, band_height, bands};
use crate::cpu::product::kept::DIGITS;
use crate::cpu::product::operand::Operand;
use crate::cpu::product::scale_back::{Panel, Scale};
use crate::cpu::product::simd::Path;
use tiebreak_contract::arith::digits::ProductPart;

/// Rows and columns of a tile of the output.
const SIDE: usize = LANES;
/// Indices of K that an instruction adds up, and bytes of a row in a register.
const DEPTH: usize = 64;
/// Bytes of a register.
const REGISTER: usize = SIDE * DEPTH;
/// Rows of a band: panels of b are read from memory once a band, and the band's bytes stay in the second-level cache.
const BAND_ROWS: usize = 128;
/// Rows of a that are computed together.
const STRIPS: usize = 2;
/// The most indices of K, in registers, that are added up at a time: the bytes of two strips and of a panel stay in the first-level
/// cache while weights pass.
const CHUNK: usize = 5;
/// The most registers of a strip that are one chunk all the same: loading the accumulators again would cost more.
const SHORT: usize = 27;
/// The most indices of K, in registers, that accumulators add up before they are flushed to sums of 64 bits: whole chunks.
const SPAN: usize = 100 * CHUNK;
/// Panels whose accumulators stay in the second-level cache while chunks of K pass.
const GROUP: usize = 8;
/// The most weights that pairs of digits have: those of four digits on both sides.
const WEIGHTS: usize = 7;
// An accumulator adds at most four pairs of digits for each index of K.
const _: () = assert!(SPAN * DEPTH * 4 * 128 * 128 < 1 << 31);

/// Digits as bytes, four indices of K in a word. Registers take the words of b as panels have them.
struct Tiles<const DA: usize, const DB: usize>;

impl<const DA: usize, const DB: usize> Layout for Tiles<DA, DB> {
    type Isa = Avx512Vnni;
    const PLANES: [usize; 2] = [DA, DB];
    const ROWS: usize = SIDE;
    const VECTORS: usize = 1;
    const PLACES: usize = WORD;
    const MULTIPLE: usize = DEPTH / WORD;
    const AS_KEPT: bool = DB == DIGITS;

    #[inline(always)]
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]) {
        cut(places, planes, true);
    }
}

/// The memory for computing a band, with any contents.
#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    sums: Vec<i64>,
    factors: Vec<f64>,
    scratch: Vec<i32>,
    runs: Runs,
    acc: Vec<[Accumulators; STRIPS]>,
}

/// One block of one sample of the batch, for operands of `DA` and `DB` digits.
pub(super) fn matrix_product<const DA: usize, const DB: usize>(
    path: Path,
    part: ProductPart,
    [a, b]: [&Operand; 2],
    [block, batch]: [usize; 2],
    out: &mut [u32],
) {
    let (first, len) = a.block_range(block);
    let (m, n) = (a.rows(), b.rows());
    let places = first..first + len;
    let matrix = Matrix::<DA, DB> {
        scale: Scale::new(path, part, a, b, batch, block),
        panels: Panels::pack(b, batch, places.clone()),
        images: a.images().and_then(|(gather, q)| Images::cut(gather, q)),
        a,
        batch,
        places,
        steps: len.div_ceil(DEPTH),
        n,
    };
    let height = band_height(2, 1, m, STRIPS * SIDE, BAND_ROWS);
    bands(out, 1, m, n, height)
        .into_par_iter()
        .for_each_init(Memory::default, |memory, Band { row, out, .. }| matrix.band(row, out, memory));
}

/// A product, and the indices of K that it sums over.
struct Matrix<'o, const DA: usize, const DB: usize> {
    scale: Scale<'o>,
    panels: Panels<Tiles<DA, DB>>,
    /// Of a, if its rows are patches.
    images: Option<Images<'o, Tiles<DA, DB>>>,
    a: &'o Operand,
    batch: usize,
    places: Range<usize>,
    /// The registers that hold a digit of `places`.
    steps: usize,
    n: usize,
}

impl<const DA: usize, const DB: usize> Matrix<'_, DA, DB> {
    /// Computes some rows of the output.
    fn band(&self, row: usize, out: &mut [u32], memory: &mut Memory) {
        let rows = row..row + out.len() / self.n;
        let panels = self.n.div_ceil(SIDE);
        memory.factors.clear();
        memory.factors.extend(rows.clone().map(|row| self.scale.row(row)));
        self.cut_strips(rows, memory);
        let _registers = Configured::new();
        // Accumulators that nobody loads again stay in the first-level cache until they are flushed.
        let in_group = if self.of_chunk() == self.steps { 1 } else { GROUP };
        for group in (0..panels).step_by(in_group) {
            let group = group..panels.min(group + in_group);
            self.add_up(group.clone(), memory);
            self.round(group, row, memory, out);
        }
    }

    /// Indices of K, in registers, that are added up at a time.
    fn of_chunk(&self) -> usize {
        if self.steps * DA <= SHORT { self.steps } else { CHUNK }
    }

    /// Bytes of a strip.
    fn of_strip(&self) -> usize {
        self.steps * DA * REGISTER
    }

    /// Cuts rows of a in strips of bytes: `[strip][64 indices of K][digit][row][index]`.
    fn cut_strips(&self, rows: Range<usize>, Memory { bytes, scratch, runs, .. }: &mut Memory) {
        // All bytes are written below.
        bytes.resize(rows.len().div_ceil(SIDE) * self.of_strip(), 0);
        for (strip, to) in bytes.chunks_exact_mut(self.of_strip()).enumerate() {
            let some = rows.start + strip * SIDE..rows.end.min(rows.start + (strip + 1) * SIDE);
            match &self.images {
                Some(images) => copy_patches(images, some, self.places.clone(), to, runs),
                None => cut_rows::<DA>(self.a, self.batch, some, self.places.clone(), to, scratch),
            }
        }
    }

    /// The sums of a group of panels, `[panel][strip]` of tiles.
    fn add_up(&self, group: Range<usize>, Memory { bytes, sums, acc, .. }: &mut Memory) {
        let strips = bytes.len() / self.of_strip();
        let (pairs, of_panel) = (strips.div_ceil(STRIPS), strips * of_tile::<DA>());
        // All accumulators and sums are written below.
        acc.resize_with(group.len() * pairs, Default::default);
        sums.resize(group.len() * of_panel, 0);
        for chunk in (0..self.steps).step_by(self.of_chunk()) {
            let chunk = chunk..self.steps.min(chunk + self.of_chunk());
            let of_panels = acc.chunks_exact_mut(pairs).zip(sums.chunks_exact_mut(of_panel));
            for (panel, (acc, sums)) in group.clone().zip(of_panels) {
                let b = self.panels.words(panel, chunk.start * SIDE..chunk.end * SIDE);
                let sums = sums.chunks_mut(STRIPS * of_tile::<DA>());
                for ((pair, acc), sums) in bytes.chunks(STRIPS * self.of_strip()).zip(acc).zip(sums) {
                    // A strip that is alone is computed twice.
                    let a = [0, pair.len() - self.of_strip()].map(|strip| {
                        &pair[strip + chunk.start * DA * REGISTER..strip + chunk.end * DA * REGISTER]
                    });
                    let more = chunk.start % SPAN != 0;
                    add_weights::<DA, DB>(&mut Run { a, b, steps: chunk.len(), more, acc });
                    if chunk.end == self.steps || chunk.end % SPAN == 0 {
                        for (acc, sums) in acc.iter().zip(sums.chunks_exact_mut(of_tile::<DA>())) {
                            flush::<DA, DB>(acc, chunk.end > SPAN, sums);
                        }
                    }
                }
            }
        }
    }

    /// Rounds the sums of a group of panels into the rows of the output that begin with `row`.
    fn round(&self, group: Range<usize>, row: usize, Memory { sums, factors, .. }: &Memory, out: &mut [u32]) {
        for (panel, sums) in group.clone().zip(sums.chunks_exact(sums.len() / group.len())) {
            let (column, columns) = (panel * SIDE, self.panels.columns(panel));
            if DA < 4 {
                self.scale.panel(&Panel { sums, width: SIDE, column, columns }, row, factors, out);
                continue;
            }
            for (strip, sums) in sums.chunks_exact(of_tile::<DA>()).enumerate() {
                let rows = strip * SIDE..factors.len().min((strip + 1) * SIDE);
                let of_rows = &mut out[rows.start * self.n..rows.end * self.n];
                let panel = Panel { sums, width: SIDE, column, columns };
                self.scale.wide_panel(&panel, row + rows.start, &factors[rows], of_rows);
            }
        }
    }
}

/// Sums of a tile in memory: `[row][column]`, or `[low, high][row][column]`.
const fn of_tile<const DA: usize>() -> usize {
    if DA < 4 { SIDE * SIDE } else { 2 * SIDE * SIDE }
}

/// Packs the digits of up to sixteen rows of a: `[64 indices of K][digit][row][index]`. Missing rows and indices are 0.
fn cut_rows<const DA: usize>(
    a: &Operand,
    batch: usize,
    rows: Range<usize>,
    k: Range<usize>,
    to: &mut [u8],
    scratch: &mut Vec<i32>,
) {
    for r in 0..SIDE {
        let row = rows.start + r;
        let q = if row < rows.end { a.row(batch, row, k.clone(), scratch) } else { &[] };
        // SAFETY: products run here where AVX-512 was detected.
        unsafe {
            Avx512Vnni::run(
                #[inline(always)]
                || cut_row::<DA>(q, &mut to[r * DEPTH..]),
            );
        }
    }
}

/// The same of patches, whose words exist already. Missing rows repeat the last one, and nobody reads their sums.
fn copy_patches<const DA: usize, const DB: usize>(
    images: &Images<'_, Tiles<DA, DB>>,
    rows: Range<usize>,
    k: Range<usize>,
    to: &mut [u8],
    runs: &mut Runs,
) {
    runs.clear();
    images.runs(rows, k.start, 0..k.len().div_ceil(WORD), runs);
    let words = images.words();
    to.fill(0);
    for (run, starts) in runs.iter::<SIDE>() {
        for (r, &start) in starts.iter().enumerate() {
            for d in 0..DA {
                let mut from = &words.bytes[start + d * words.plane..][..run.len() * WORD];
                let mut at = run.start * WORD;
                while !from.is_empty() {
                    let (some, rest) = from.split_at(from.len().min(DEPTH - at % DEPTH));
                    to[(at / DEPTH * DA + d) * REGISTER + r * DEPTH + at % DEPTH..][..some.len()]
                        .copy_from_slice(some);
                    (from, at) = (rest, at + some.len());
                }
            }
        }
    }
}

/// Writes the digits of a row, each 64 of them in a register.
#[inline(always)]
fn cut_row<const DA: usize>(q: &[i32], to: &mut [u8]) {
    let mut q = q.chunks(DEPTH);
    for to in to.chunks_mut(DA * REGISTER) {
        let q = q.next().unwrap_or_default();
        let mut whole = [0; DEPTH];
        let q = q.first_chunk().unwrap_or_else(|| {
            whole[..q.len()].copy_from_slice(q);
            &whole
        });
        for d in 0..DA {
            let to: &mut [u8; DEPTH] =
                to[d * REGISTER..].first_chunk_mut().expect("a register has sixteen rows");
            for (to, &q) in to.iter_mut().zip(q) {
                *to = (q.wrapping_add(const { offset(DA) } as i32) >> (8 * d)) as u8 ^ 0x80;
            }
        }
    }
}

/// The configuration of the registers: sixteen rows of 64 bytes in each of eight.
struct Configured;

impl Configured {
    /// Configures the registers of this thread, until the value is dropped.
    fn new() -> Configured {
        #[repr(C, align(64))]
        struct Configuration([u8; 64]);
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1;
        for register in 0..8 {
            configuration.0[16 + 2 * register] = DEPTH as u8;
            configuration.0[48 + register] = SIDE as u8;
        }
        // SAFETY: products run here where AMX was detected, and the system allowed the registers.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, preserves_flags, readonly))
        };
        Configured
    }
}

impl Drop for Configured {
    /// Frees the registers, so that the system does not save them.
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// The accumulators of a tile, `[weight][row][column]`.
#[repr(C, align(64))]
struct Accumulators([[i32; SIDE * SIDE]; WEIGHTS]);

impl Default for Accumulators {
    fn default() -> Accumulators {
        Accumulators([[0; SIDE * SIDE]; WEIGHTS])
    }
}

/// A loop over registers of K: adds the products of these pairs of digits of a and b, which have one weight, to the accumulators of
/// both strips, or sets these if there are no `more`. The registers of `a` hold one digit each; a word of b has its digits one
/// after another.
macro_rules! weight {
    ($da:literal, $db:literal, $run:expr, $weight:literal: $([$d:literal, $e:literal])*) => {{
        let Run { a: [a, other], b, steps, more, ref mut acc } = *$run;
        let bytes = steps * $da * REGISTER;
        assert!(steps > 0 && a.len() == bytes && other.len() == bytes && b.len() * WORD == steps * $db * REGISTER);
        let [acc, acc_other] = acc.each_mut().map(|acc| &raw mut acc.0[$weight]);
        // SAFETY: all operands have `steps` registers of each digit, an accumulator has a register, and a `Configured` of this thread
        // exists.
        unsafe {
            asm!(
                "test {more}, {more}",
                "jnz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{acc} + {row}]",
                "tileloadd tmm1, [{acc_other} + {row}]",
                "2:",
                $(
                    concat!("tileloadd tmm3, [{b} + {word} + 64 * ", $e, "]"),
                    concat!("tileloadd tmm2, [{a} + {row} + 1024 * ", $d, "]"),
                    "tdpbssd tmm0, tmm2, tmm3",
                    concat!("tileloadd tmm2, [{other} + {row} + 1024 * ", $d, "]"),
                    "tdpbssd tmm1, tmm2, tmm3",
                )*
                concat!("add {a}, 1024 * ", $da),
                concat!("add {other}, 1024 * ", $da),
                concat!("add {b}, 1024 * ", $db),
                "dec {steps}",
                "jnz 2b",
                "tilestored [{acc} + {row}], tmm0",
                "tilestored [{acc_other} + {row}], tmm1",
                a = inout(reg) a.as_ptr() => _,
                other = inout(reg) other.as_ptr() => _,
                b = inout(reg) b.as_ptr() => _,
                steps = inout(reg) steps => _,
                more = in(reg) usize::from(more),
                acc = in(reg) acc,
                acc_other = in(reg) acc_other,
                row = in(reg) DEPTH,
                word = in(reg) $db * DEPTH,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack),
            );
        }
    }};
}

/// What a loop over registers of K adds up.
struct Run<'r> {
    a: [&'r [u8]; STRIPS],
    b: &'r [u32],
    steps: usize,
    /// If the accumulators hold sums already.
    more: bool,
    acc: &'r mut [Accumulators; STRIPS],
}

/// The dot products of a run, by its digits.
fn add_weights<const DA: usize, const DB: usize>(run: &mut Run<'_>) {
    match (DA, DB) {
        (2, 2) => {
            weight!(2, 2, run, 0: [0, 0]);
            weight!(2, 2, run, 1: [0, 1] [1, 0]);
            weight!(2, 2, run, 2: [1, 1]);
        }
        (3, 2) => {
            weight!(3, 2, run, 0: [0, 0]);
            weight!(3, 2, run, 1: [0, 1] [1, 0]);
            weight!(3, 2, run, 2: [1, 1] [2, 0]);
            weight!(3, 2, run, 3: [2, 1]);
        }
        (2, 3) => {
            weight!(2, 3, run, 0: [0, 0]);
            weight!(2, 3, run, 1: [0, 1] [1, 0]);
            weight!(2, 3, run, 2: [0, 2] [1, 1]);
            weight!(2, 3, run, 3: [1, 2]);
        }
        (3, 3) => {
            weight!(3, 3, run, 0: [0, 0]);
            weight!(3, 3, run, 1: [0, 1] [1, 0]);
            weight!(3, 3, run, 2: [0, 2] [1, 1] [2, 0]);
            weight!(3, 3, run, 3: [1, 2] [2, 1]);
            weight!(3, 3, run, 4: [2, 2]);
        }
        (4, 4) => {
            weight!(4, 4, run, 0: [0, 0]);
            weight!(4, 4, run, 1: [0, 1] [1, 0]);
            weight!(4, 4, run, 2: [0, 2] [1, 1] [2, 0]);
            weight!(4, 4, run, 3: [0, 3] [1, 2] [2, 1] [3, 0]);
            weight!(4, 4, run, 4: [1, 3] [2, 2] [3, 1]);
            weight!(4, 4, run, 5: [2, 3] [3, 2]);
            weight!(4, 4, run, 6: [3, 3]);
        }
        _ => unreachable!("`by_form` names these digits"),
    }
}

/// Adds the accumulators of a tile to its sums, or sets the sums if there are no `more`.
fn flush<const DA: usize, const DB: usize>(Accumulators(acc): &Accumulators, more: bool, sums: &mut [i64]) {
    // SAFETY: products run here where AVX-512 was detected.
    unsafe {
        Avx512Vnni::run(
            #[inline(always)]
            || match sums.as_chunks_mut::<{ SIDE * SIDE }>().0 {
                [sums] => {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let before = if more { *sum } else { 0 };
                        *sum = before + weighted(acc, 0..DA + DB - 1, i);
                    }
                }
                [lows, highs] => {
                    for (i, (low, high)) in lows.iter_mut().zip(highs).enumerate() {
                        let before = if more { [*low, *high] } else { [0, 0] };
                        let sum = before[0] + weighted(acc, 0..4, i);
                        *low = sum & 0xffff_ffff;
                        *high = before[1] + weighted(acc, 4..WEIGHTS, i) + (sum >> 32);
                    }
                }
                _ => unreachable!("a tile has 256 sums of a word or two"),
            },
        );
    }
}

/// The sum of accumulators `weights` of an element. The first of them has weight 1.
#[inline(always)]
fn weighted(acc: &[[i32; SIDE * SIDE]; WEIGHTS], weights: Range<usize>, element: usize) -> i64 {
    let first = weights.start;
    weights.map(|weight| i64::from(acc[weight][element]) << (8 * (weight - first))).sum()
}

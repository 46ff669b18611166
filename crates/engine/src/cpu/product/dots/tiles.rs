//! Products of digits by AMX's tile registers: an instruction adds 16 x 16 dot products of 64 bytes.
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
//!
//! Digits d of a and e of b have weight 256^(d + e), and pairs of one weight share an accumulator, as in [`super::bytes`]. Both
//! operands have signed digits. There are eight registers: accumulators take up to five, so digits pass through the others.
//!
//! A core multiplies 1024 pairs of bytes in a cycle. So a cycle has 113 products of integers of three digits, or 64 of four, where two
//! AVX-512 units have 32 of binary32. Sums of integers of four digits take more than 64 bits, and are kept as high * 2^32 + low.

use std::arch::asm;
use std::mem::MaybeUninit;
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
/// Indices of K, in registers, that a panel's columns add up at a time: their bytes stay in the first-level cache while rows pass.
const CHUNK: usize = 8;
/// Panels whose sums stay in the second-level cache while chunks of K pass.
const GROUP: usize = 16;
// An accumulator adds at most three pairs of digits for each index of K.
const _: () = assert!(CHUNK * DEPTH * 3 * 128 * 128 < 1 << 31);

/// Digits as bytes, four indices of K in a word. Registers take the words of b as panels have them.
struct Tiles<const DA: usize, const DB: usize>;

impl<const DA: usize, const DB: usize> Layout for Tiles<DA, DB> {
    type Isa = Avx512Vnni;
    const PLANES: [usize; 2] = [DA, DB];
    const ROWS: usize = SIDE;
    const VECTORS: usize = 1;
    const PLACES: usize = WORD;
    const MULTIPLE: usize = DEPTH / WORD;

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
    let scale = Scale::new(path, part, a, b, batch, block);
    let places = first..first + len;
    let panels = Panels::<Tiles<DA, DB>>::pack(b, batch, places.clone());
    let images = a.images().and_then(|(gather, q)| Images::<Tiles<DA, DB>>::cut(gather, q));
    let steps = len.div_ceil(DEPTH);
    let of_strip = steps * DA * REGISTER;
    let height = band_height(4, 1, m, SIDE, BAND_ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each_init(Memory::default, |memory, band| {
        let Memory { bytes, sums, factors, scratch, runs } = memory;
        let Band { row, out, .. } = band;
        let rows = row..row + out.len() / n;
        factors.clear();
        factors.extend(rows.clone().map(|row| scale.row(row)));
        // All bytes are written below.
        bytes.resize(rows.len().div_ceil(SIDE) * of_strip, 0);
        for (strip, to) in bytes.chunks_exact_mut(of_strip).enumerate() {
            let some = rows.start + strip * SIDE..rows.end.min(rows.start + (strip + 1) * SIDE);
            match &images {
                Some(images) => copy_patches(images, some, places.clone(), to, runs),
                None => cut_rows::<DA>(a, batch, some, places.clone(), to, scratch),
            }
        }
        let _registers = Configured::new();
        let of_panel = rows.len().div_ceil(SIDE) * of_tile::<DA>();
        let in_group = if steps <= CHUNK { 1 } else { GROUP };
        for group in (0..n.div_ceil(SIDE)).step_by(in_group) {
            let group = group..n.div_ceil(SIDE).min(group + in_group);
            sums.clear();
            sums.resize(group.len() * of_panel, 0);
            for chunk in (0..steps).step_by(CHUNK) {
                let chunk = chunk..steps.min(chunk + CHUNK);
                for (panel, sums) in group.clone().zip(sums.chunks_exact_mut(of_panel)) {
                    let words = chunk.start * SIDE..chunk.end * SIDE;
                    let b = panels.words(panel, words);
                    for (a, sums) in bytes.chunks_exact(of_strip).zip(sums.chunks_exact_mut(of_tile::<DA>()))
                    {
                        let a = &a[chunk.start * DA * REGISTER..chunk.end * DA * REGISTER];
                        add::<DA, DB>(a, b, chunk.len(), sums);
                    }
                }
            }
            for (panel, sums) in group.zip(sums.chunks_exact(of_panel)) {
                let (column, columns) = (panel * SIDE, panels.columns(panel));
                if DA < 4 {
                    scale.panel(&Panel { sums, width: SIDE, column, columns }, row, factors, out);
                    continue;
                }
                for (strip, sums) in sums.chunks_exact(of_tile::<DA>()).enumerate() {
                    let rows = strip * SIDE..factors.len().min((strip + 1) * SIDE);
                    let of_rows = &mut out[rows.start * n..rows.end * n];
                    let panel = Panel { sums, width: SIDE, column, columns };
                    scale.wide_panel(&panel, row + rows.start, &factors[rows], of_rows);
                }
            }
        }
    });
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

/// The accumulators of a tile, `[accumulator][row][column]`.
#[repr(C, align(64))]
struct Accumulators<const SUMS: usize>([[i32; SIDE * SIDE]; SUMS]);

/// A loop over registers of K: zeroes accumulators, runs the instructions for each 64 indices, and stores the accumulators.
/// `a` has its digits one register after another; a word of b has its digits one after another.
macro_rules! kernel {
    ($da:literal, $db:literal, $a:expr, $b:expr, $steps:expr, [$($sum:literal),*], $($instruction:literal)*) => {{
        assert!($steps > 0 && $a.len() == $steps * $da * REGISTER && $b.len() * WORD == $steps * $db * REGISTER);
        let mut acc = MaybeUninit::<Accumulators<{ [$($sum),*].len() }>>::uninit();
        // SAFETY: both operands have `steps` registers of each digit, and a `Configured` of this thread exists. All accumulators are
        // stored.
        unsafe {
            asm!(
                $(concat!("tilezero tmm", $sum),)*
                "2:",
                $($instruction,)*
                concat!("add {a}, ", $da, " * 1024"),
                concat!("add {b}, ", $db, " * 1024"),
                "dec {steps}",
                "jnz 2b",
                $(concat!("tilestored [{acc} + {row} + ", $sum, " * 1024], tmm", $sum),)*
                a = inout(reg) $a.as_ptr() => _,
                b = inout(reg) $b.as_ptr() => _,
                steps = inout(reg) $steps => _,
                acc = in(reg) acc.as_mut_ptr(),
                row = in(reg) DEPTH,
                word = in(reg) $db * DEPTH,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
            acc.assume_init()
        }
    }};
}

/// Adds the dot products of `steps` times 64 indices of a tile to its sums. No accumulator is added to before its last addition has
/// ended, three instructions later, or nearly so.
fn add<const DA: usize, const DB: usize>(a: &[u8], b: &[u32], steps: usize, sums: &mut [i64]) {
    match (DA, DB) {
        (2, 2) => two_two(a, b, steps, sums),
        (3, 2) => three_two(a, b, steps, sums),
        (2, 3) => two_three(a, b, steps, sums),
        (3, 3) => three_three(a, b, steps, sums),
        (4, 4) => four_four(a, b, steps, sums),
        _ => unreachable!("`by_form` names these digits"),
    }
}

fn two_two(a: &[u8], b: &[u32], steps: usize, sums: &mut [i64]) {
    let acc = kernel!(2, 2, a, b, steps, [0, 1, 2, 3],
        "tileloadd tmm4, [{a} + {row}]"
        "tileloadd tmm5, [{b} + {word}]"
        "tdpbssd tmm0, tmm4, tmm5"
        "tileloadd tmm6, [{b} + {word} + 64]"
        "tdpbssd tmm1, tmm4, tmm6"
        "tileloadd tmm7, [{a} + {row} + 1024]"
        "tdpbssd tmm2, tmm7, tmm6"
        "tdpbssd tmm3, tmm7, tmm5"
    );
    flush(&acc, [0, 1, 2, 1], sums);
}

fn three_two(a: &[u8], b: &[u32], steps: usize, sums: &mut [i64]) {
    let acc = kernel!(3, 2, a, b, steps, [0, 1, 2, 3],
        "tileloadd tmm4, [{a} + {row}]"
        "tileloadd tmm5, [{b} + {word}]"
        "tdpbssd tmm0, tmm4, tmm5"
        "tileloadd tmm6, [{b} + {word} + 64]"
        "tdpbssd tmm1, tmm4, tmm6"
        "tileloadd tmm7, [{a} + {row} + 1024]"
        "tdpbssd tmm2, tmm7, tmm6"
        "tileloadd tmm4, [{a} + {row} + 2048]"
        "tdpbssd tmm3, tmm4, tmm6"
        "tdpbssd tmm1, tmm7, tmm5"
        "tdpbssd tmm2, tmm4, tmm5"
    );
    flush(&acc, [0, 1, 2, 3], sums);
}

fn two_three(a: &[u8], b: &[u32], steps: usize, sums: &mut [i64]) {
    let acc = kernel!(2, 3, a, b, steps, [0, 1, 2, 3],
        "tileloadd tmm4, [{b} + {word}]"
        "tileloadd tmm5, [{a} + {row}]"
        "tdpbssd tmm0, tmm5, tmm4"
        "tileloadd tmm6, [{a} + {row} + 1024]"
        "tdpbssd tmm1, tmm6, tmm4"
        "tileloadd tmm7, [{b} + {word} + 64]"
        "tdpbssd tmm2, tmm6, tmm7"
        "tileloadd tmm4, [{b} + {word} + 128]"
        "tdpbssd tmm3, tmm6, tmm4"
        "tdpbssd tmm1, tmm5, tmm7"
        "tdpbssd tmm2, tmm5, tmm4"
    );
    flush(&acc, [0, 1, 2, 3], sums);
}

fn three_three(a: &[u8], b: &[u32], steps: usize, sums: &mut [i64]) {
    let acc = kernel!(3, 3, a, b, steps, [0, 1, 2, 3, 4],
        "tileloadd tmm5, [{a} + {row}]"
        "tileloadd tmm6, [{b} + {word} + 128]"
        "tdpbssd tmm2, tmm5, tmm6"
        "tileloadd tmm7, [{b} + {word}]"
        "tdpbssd tmm0, tmm5, tmm7"
        "tileloadd tmm7, [{b} + {word} + 64]"
        "tdpbssd tmm1, tmm5, tmm7"
        "tileloadd tmm5, [{a} + {row} + 1024]"
        "tdpbssd tmm2, tmm5, tmm7"
        "tdpbssd tmm3, tmm5, tmm6"
        "tileloadd tmm5, [{a} + {row} + 2048]"
        "tdpbssd tmm4, tmm5, tmm6"
        "tileloadd tmm6, [{b} + {word}]"
        "tdpbssd tmm2, tmm5, tmm6"
        "tileloadd tmm6, [{a} + {row} + 1024]"
        "tdpbssd tmm3, tmm5, tmm7"
        "tileloadd tmm7, [{b} + {word}]"
        "tdpbssd tmm1, tmm6, tmm7"
    );
    flush(&acc, [0, 1, 2, 3, 4], sums);
}

fn four_four(a: &[u8], b: &[u32], steps: usize, sums: &mut [i64]) {
    let low = kernel!(4, 4, a, b, steps, [0, 1, 2, 3],
        "tileloadd tmm4, [{a} + {row}]"
        "tileloadd tmm5, [{b} + {word} + 192]"
        "tdpbssd tmm3, tmm4, tmm5"
        "tileloadd tmm6, [{b} + {word} + 128]"
        "tdpbssd tmm2, tmm4, tmm6"
        "tileloadd tmm7, [{b} + {word} + 64]"
        "tdpbssd tmm1, tmm4, tmm7"
        "tileloadd tmm5, [{a} + {row} + 1024]"
        "tdpbssd tmm3, tmm5, tmm6"
        "tdpbssd tmm2, tmm5, tmm7"
        "tileloadd tmm6, [{b} + {word}]"
        "tdpbssd tmm0, tmm4, tmm6"
        "tileloadd tmm4, [{a} + {row} + 2048]"
        "tdpbssd tmm3, tmm4, tmm7"
        "tdpbssd tmm2, tmm4, tmm6"
        "tdpbssd tmm1, tmm5, tmm6"
    );
    // The product of digits 3 and 0 is here, since the other pairs of its weight fill the registers there.
    let high = kernel!(4, 4, a, b, steps, [0, 1, 2, 3, 4],
        "tileloadd tmm5, [{b} + {word} + 192]"
        "tileloadd tmm6, [{a} + {row} + 1024]"
        "tdpbssd tmm1, tmm6, tmm5"
        "tileloadd tmm6, [{a} + {row} + 2048]"
        "tdpbssd tmm2, tmm6, tmm5"
        "tileloadd tmm7, [{a} + {row} + 3072]"
        "tdpbssd tmm3, tmm7, tmm5"
        "tileloadd tmm5, [{b} + {word} + 128]"
        "tdpbssd tmm1, tmm6, tmm5"
        "tdpbssd tmm2, tmm7, tmm5"
        "tileloadd tmm6, [{b} + {word} + 64]"
        "tdpbssd tmm4, tmm7, tmm6"
        "tileloadd tmm5, [{b} + {word}]"
        "tdpbssd tmm0, tmm7, tmm5"
    );
    flush_wide(&low, &high, sums);
}

/// Adds accumulators of these powers of 256 to the sums.
fn flush<const SUMS: usize>(acc: &Accumulators<SUMS>, powers: [u32; SUMS], sums: &mut [i64]) {
    let sums: &mut [i64; SIDE * SIDE] = sums.first_chunk_mut().expect("a tile has 256 sums");
    // SAFETY: products run here where AVX-512 was detected.
    unsafe {
        Avx512Vnni::run(
            #[inline(always)]
            || {
                for (i, sum) in sums.iter_mut().enumerate() {
                    for (acc, power) in acc.0.iter().zip(powers) {
                        *sum += i64::from(acc[i]) << (8 * power);
                    }
                }
            },
        );
    }
}

/// Adds the accumulators of integers of four digits to sums in two words. Weights of `low` are 0 to 3. Weights of `high` are 3, 4, 5, 6
/// and 4.
fn flush_wide(low: &Accumulators<4>, high: &Accumulators<5>, sums: &mut [i64]) {
    let halves = sums.as_chunks_mut::<{ SIDE * SIDE }>().0;
    let [lows, highs] = halves else { unreachable!("a tile has 256 sums of two words") };
    let (low, high) = (&low.0, &high.0);
    // SAFETY: products run here where AVX-512 was detected.
    unsafe {
        Avx512Vnni::run(
            #[inline(always)]
            || {
                for i in 0..SIDE * SIDE {
                    let [low, high] = [
                        i64::from(low[0][i])
                            + (i64::from(low[1][i]) << 8)
                            + (i64::from(low[2][i]) << 16)
                            + ((i64::from(low[3][i]) + i64::from(high[0][i])) << 24),
                        i64::from(high[1][i])
                            + i64::from(high[4][i])
                            + (i64::from(high[2][i]) << 8)
                            + (i64::from(high[3][i]) << 16),
                    ];
                    let low = lows[i] + low;
                    lows[i] = low & 0xffff_ffff;
                    highs[i] += high + (low >> 32);
                }
            },
        );
    }
}

//! Products of integers that are packed once and serve many products ([`crate::cpu::product::kept`]).
//!
//! The bytes of an integer take three quarters of its memory as a word, and few rows of a take as long as memory gives these bytes. AMX
//! reads the panels in place. Where other forms are faster for many rows, they cut their words from these, and transpose nothing.

use rayon::prelude::*;

use super::bytes::{cut, offset};
use super::form::Layout;
use super::isa::{DotBytes, Isa, LANES, lanes};
use super::packed::Panels;
use super::x86::Avx512Vnni;
use crate::cpu::product::few;
use crate::cpu::product::kept::{self, DIGITS, Kept, PLACES};
use crate::cpu::product::operand::Operand;
use crate::cpu::product::scale_back::{Scale, Sum, fits_i64, product_bits};
use crate::cpu::product::simd::Path;
use tiebreak_contract::arith::digits::ProductPart;

/// Weights of pairs of digits.
const WEIGHTS: usize = 2 * DIGITS - 1;
/// The most rows of a that are multiplied one by one. From there on, other forms are faster although they cut the words of b first; AMX
/// cuts nothing.
const ROWS: usize = 32;
const ROWS_BESIDE_AMX: usize = 8;
/// Panels that are read side by side. They are streams of memory, and their accumulators lie in registers.
const TOGETHER: usize = 4;
/// Rows of b that a task takes.
const COLUMNS: usize = TOGETHER * LANES;
/// The most words of K between two flushes: an accumulator adds at most 3 pairs of 255 * 128 for each index of K.
const FLUSH: usize = 4096;
/// Words of K whose bytes in all panels stay in the first-level cache.
const NEAR: usize = 48;
const _: () = assert!(kept::LANES == LANES);
const _: () = assert!(FLUSH * PLACES * DIGITS * 255 * 128 < 1 << 31);

/// The words of kept integers, as AMX's registers take them.
struct Bytes;

impl Layout for Bytes {
    type Isa = Avx512Vnni;
    const PLANES: [usize; 2] = [DIGITS; 2];
    const ROWS: usize = LANES;
    const VECTORS: usize = 1;
    const PLACES: usize = PLACES;
    const MULTIPLE: usize = 16;
    const SURPLUS: i64 = -offset(DIGITS);

    #[inline(always)]
    fn cut<const SIDE: usize>(places: &[[i32; LANES]], planes: &mut [[u32; LANES]]) {
        cut(places, planes, true);
    }
}

/// Packs an operand of three digits, if products of this path read it so.
pub(in crate::cpu::product) fn pack(path: Path, operand: &Operand) -> Option<Kept> {
    let serves = path >= Path::Avx512Vnni && operand.digits() as usize == DIGITS && operand.batch() == 1;
    let large = operand.rows() >= COLUMNS && operand.k() >= LANES;
    (serves && large).then(|| Panels::<Bytes>::keep(operand))
}

/// True if few rows of a meet kept rows of b here.
pub(in crate::cpu::product) fn computes(path: Path, a: &Operand, b: &Operand) -> bool {
    let most = if path == Path::AmxInt8 { ROWS_BESIDE_AMX } else { ROWS };
    let whole = a.rows() <= most && a.digits() as usize == DIGITS && b.kept().is_some() && b.blocks() == 1;
    // Partial sums of digits are larger than those of integers.
    whole && path >= Path::Avx512Vnni && fits_i64(product_bits(a, b) + 3, a.k())
}

/// `out[batch, m, n]`, not empty, for operands that [`computes`] accepts.
pub(in crate::cpu::product) fn product(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    out: &mut [u32],
) {
    let kept = b.kept().expect("rows of b are kept");
    let (m, n) = (a.rows(), b.rows());
    out.par_chunks_mut(m * n).enumerate().for_each(|(batch, out)| {
        let scale = Scale::new(path, part, a, b, batch, 0);
        let mut scratch = Vec::new();
        let of_a: Vec<_> = (0..m).map(|row| bytes(a.row(batch, row, 0..a.k(), &mut scratch))).collect();
        few::tasks(out, n, COLUMNS).into_par_iter().enumerate().for_each_init(
            Vec::new,
            |sums, (task, outs)| {
                dots(kept, &of_a, task * TOGETHER, sums);
                for ((row, out), sums) in outs.into_iter().enumerate().zip(sums) {
                    i64::scale_back(&scale, row, task * COLUMNS, &sums.as_flattened()[..out.len()], out);
                }
            },
        );
    });
}

/// The digits of a row with 128 added, in words of four indices of K.
fn bytes(row: &[i32]) -> Vec<[u32; DIGITS]> {
    let word = |places: &[i32]| {
        let mut words = [offset(DIGITS) as u32 & 0xff; DIGITS].map(|zero| zero * 0x0101_0101);
        for (place, &q) in places.iter().enumerate() {
            let bytes = (q + offset(DIGITS) as i32).to_le_bytes();
            for (word, byte) in words.iter_mut().zip(bytes) {
                *word = *word & !(0xff << (8 * place)) | u32::from(byte) << (8 * place);
            }
        }
        words
    };
    row.chunks(PLACES).map(word).collect()
}

/// The sums of a row of a and the rows of b in some panels.
type Sums = [[i64; LANES]; TOGETHER];

/// The dot products of rows, as [`bytes`] gives them, and the rows of b in [`TOGETHER`] panels from `first` on. Sums of panels behind
/// the last one are those of the first.
fn dots(kept: &Kept, a: &[Vec<[u32; DIGITS]>], first: usize, sums: &mut Vec<Sums>) {
    let panels = kept.panels();
    let numbers: [usize; TOGETHER] =
        std::array::from_fn(|i| if first + i < panels { first + i } else { first });
    let surplus = numbers.map(|panel| *kept.surplus(panel));
    sums.clear();
    sums.resize(a.len(), surplus);
    // Few rows of a read words of b from memory once. For more of them, words stay in the first-level cache meanwhile.
    let chunk = if a.len() > 2 { NEAR } else { FLUSH };
    let len = a.first().map_or(0, Vec::len);
    for start in (0..len).step_by(chunk) {
        let words = start..len.min(start + chunk);
        let b = numbers.map(|panel| kept.panel(panel, words.clone()));
        for (a, sums) in a.iter().zip(&mut *sums) {
            // SAFETY: integers are kept where AVX-512 VNNI was detected.
            unsafe {
                Avx512Vnni::run(
                    #[inline(always)]
                    || add::<Avx512Vnni>(&a[words.clone()], b, sums),
                );
            }
        }
    }
}

/// Adds the dot products of some words.
///
/// # Safety
/// The machine has the instructions `I`.
#[inline(always)]
unsafe fn add<I: DotBytes>(a: &[[u32; DIGITS]], b: [&[[[u32; LANES]; DIGITS]]; TOGETHER], sums: &mut Sums) {
    // SAFETY: the caller's promise.
    let zero = unsafe { I::zero() };
    let mut acc = [[zero; WEIGHTS]; TOGETHER];
    let b = b.map(|b| &b[..a.len()]);
    for (word, a) in a.iter().enumerate() {
        let mut va = [zero; DIGITS];
        for (va, &a) in va.iter_mut().zip(a) {
            // SAFETY: the caller's promise.
            *va = unsafe { I::splat(a as i32) };
        }
        for (acc, b) in acc.iter_mut().zip(b) {
            for (e, b) in b[word].iter().enumerate() {
                // SAFETY: the caller's promise.
                let vb = unsafe { I::load(b) };
                for (d, &va) in va.iter().enumerate() {
                    // SAFETY: the caller's promise.
                    acc[d + e] = unsafe { I::dot_bytes(acc[d + e], va, vb) };
                }
            }
        }
    }
    // The flush takes a copy, since accumulators whose address is taken would be kept in memory.
    let done = acc;
    flush::<I>(&done, sums);
}

/// Adds the accumulators to the sums. The function is not inlined: together with its registers, the compiler would keep
/// accumulators in memory.
#[inline(never)]
fn flush<I: Isa>(acc: &[[I::Vector; WEIGHTS]; TOGETHER], sums: &mut Sums) {
    for (acc, sums) in acc.iter().zip(sums) {
        for (weight, acc) in acc.iter().enumerate() {
            for (sum, &lane) in sums.iter_mut().zip(lanes::<I>(acc)) {
                *sum += i64::from(lane) << (8 * weight);
            }
        }
    }
}

//! The instructions of x86-64: AVX-512 with VNNI and without it, and AVX2 with VNNI.
//!
//! VNNI multiplies and adds in one instruction. Without it, `vpmaddwd` multiplies and another instruction adds. On AVX2 these two
//! would take as long as binary64, which multiplies and adds in one instruction, so there is no form for AVX2 alone.

use std::arch::x86_64::*;

use super::isa::{DotBytes, DotHalves, Isa, LANES};
use crate::cpu::product::simd;

/// AVX-512 with VNNI.
pub(super) struct Avx512Vnni;
/// AVX-512 without VNNI.
pub(super) struct Avx512;
/// AVX2 with VNNI in its own encoding.
pub(super) struct AvxVnni;

/// Two registers of AVX2.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Two(__m256i, __m256i);

/// Defines the methods of instructions over one register of 512 bits, or over two of 256 bits.
macro_rules! isa {
    ($name:ident, $features:literal, $vector:ty, $zero:ident, $load:ident, $splat:ident, $turned:ident) => {
        // SAFETY: the registers have sixteen lanes of 32 bits, in order.
        unsafe impl Isa for $name {
            type Vector = $vector;

            #[inline(always)]
            unsafe fn run<R>(work: impl FnOnce() -> R) -> R {
                #[target_feature(enable = $features)]
                fn compiled<R>(work: impl FnOnce() -> R) -> R {
                    work()
                }
                // SAFETY: the caller's promise.
                unsafe { compiled(work) }
            }

            #[inline(always)]
            unsafe fn zero() -> $vector {
                // SAFETY: the caller's promise.
                unsafe { $zero() }
            }

            #[inline(always)]
            unsafe fn load(words: &[u32; LANES]) -> $vector {
                // SAFETY: the caller's promise, and the array has a vector's words.
                unsafe { $load(words.as_ptr().cast()) }
            }

            #[inline(always)]
            unsafe fn splat(word: i32) -> $vector {
                // SAFETY: the caller's promise.
                unsafe { $splat(word) }
            }

            #[inline(always)]
            unsafe fn turned(rows: &[&[i32]; LANES]) -> [[i32; LANES]; LANES] {
                // SAFETY: the caller's promise.
                unsafe { $turned(rows) }
            }
        }
    };
}

isa!(
    Avx512Vnni,
    "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    __m512i,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_set1_epi32,
    turned
);
isa!(
    Avx512,
    "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl",
    __m512i,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_set1_epi32,
    turned
);
isa!(AvxVnni, "avx2,fma,avxvnni", Two, two_zeros, load_two, splat_two, turned_by_eight);

/// Implements an operation on three vectors by a function on registers: of one register, or of each of two.
macro_rules! operation {
    ($method:ident, one $function:path) => {
        #[inline(always)]
        unsafe fn $method(sum: __m512i, left: __m512i, right: __m512i) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe { $function(sum, left, right) }
        }
    };
    ($method:ident, two $function:path) => {
        #[inline(always)]
        unsafe fn $method(sum: Two, left: Two, right: Two) -> Two {
            // SAFETY: the caller's promise.
            unsafe { Two($function(sum.0, left.0, right.0), $function(sum.1, left.1, right.1)) }
        }
    };
}

impl DotBytes for Avx512Vnni {
    const UNSIGNED: bool = true;
    operation!(dot_bytes, one _mm512_dpbusd_epi32);
}

impl DotBytes for AvxVnni {
    const UNSIGNED: bool = true;
    operation!(dot_bytes, two _mm256_dpbusd_avx_epi32);
}

impl DotHalves for Avx512Vnni {
    const REGISTERS: usize = 1;
    operation!(dot_halves, one _mm512_dpwssd_epi32);
}

impl DotHalves for Avx512 {
    const REGISTERS: usize = 1;
    operation!(dot_halves, one multiply_and_add);
}

impl DotHalves for AvxVnni {
    const REGISTERS: usize = 2;
    operation!(dot_halves, two _mm256_dpwssd_avx_epi32);
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn multiply_and_add(sum: __m512i, left: __m512i, right: __m512i) -> __m512i {
    _mm512_add_epi32(sum, _mm512_madd_epi16(left, right))
}

#[target_feature(enable = "avx2")]
#[inline]
fn two_zeros() -> Two {
    Two(_mm256_setzero_si256(), _mm256_setzero_si256())
}

/// # Safety
/// There are sixteen words.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load_two(words: *const __m256i) -> Two {
    // SAFETY: the caller's promise.
    unsafe { Two(_mm256_loadu_si256(words), _mm256_loadu_si256(words.add(1))) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn splat_two(word: i32) -> Two {
    let all = _mm256_set1_epi32(word);
    Two(all, all)
}

/// [`Isa::turned`] as four transposes of 8 x 8.
#[target_feature(enable = "avx2")]
#[inline]
fn turned_by_eight(rows: &[&[i32]; LANES]) -> [[i32; LANES]; LANES] {
    const HALF: usize = LANES / 2;
    let mut all = [[0u32; LANES]; LANES];
    for (all, row) in all.iter_mut().zip(rows) {
        match row.first_chunk::<LANES>() {
            Some(row) => *all = bytemuck::cast(*row),
            None => all[..row.len()].copy_from_slice(bytemuck::cast_slice(row)),
        }
    }
    let mut to = [[0u32; LANES]; LANES];
    for (down, across) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut part = [_mm256_setzero_si256(); HALF];
        for (part, row) in part.iter_mut().zip(&all[down * HALF..]) {
            *part = simd::load(&row.as_chunks().0[across]);
        }
        for (to, part) in to[across * HALF..].iter_mut().zip(simd::turned(part)) {
            simd::store(&mut to.as_chunks_mut().0[down], part);
        }
    }
    bytemuck::cast(to)
}

/// [`Isa::turned`] in registers of 512 bits.
#[target_feature(enable = "avx512f")]
#[inline]
fn turned(rows: &[&[i32]; LANES]) -> [[i32; LANES]; LANES] {
    let mut loaded = [_mm512_setzero_si512(); LANES];
    // `map` would not be inlined into a function that has wider vectors than itself, so this is a loop.
    for (loaded, row) in loaded.iter_mut().zip(rows) {
        if !row.is_empty() {
            *loaded = load(row);
        }
    }
    let mut turned = [[0; LANES]; LANES];
    let words = |a, b| [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
    let pairs = |a, b| [_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)];
    // Four rows are joined: index 4 q + i is in quarter q of vector i.
    let four = |r: usize| {
        let [[ab, ab_high], [cd, cd_high]] =
            [words(loaded[r], loaded[r + 1]), words(loaded[r + 2], loaded[r + 3])];
        let [[a, b], [c, d]] = [pairs(ab, cd), pairs(ab_high, cd_high)];
        [a, b, c, d]
    };
    let of_rows = [four(0), four(4), four(8), four(12)];
    for i in 0..4 {
        let [a, b, c, d] = [of_rows[0][i], of_rows[1][i], of_rows[2][i], of_rows[3][i]];
        // The first shuffle takes quarters 0 and 2 of both vectors, the second takes quarters 1 and 3.
        let [ab, ab_odd] = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)];
        let [cd, cd_odd] = [_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d)];
        let quarters = [
            _mm512_shuffle_i32x4::<0x88>(ab, cd),
            _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd),
            _mm512_shuffle_i32x4::<0xdd>(ab, cd),
            _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd),
        ];
        for (q, places) in quarters.into_iter().enumerate() {
            // SAFETY: the array holds one vector.
            unsafe { _mm512_storeu_si512(turned[4 * q + i].as_mut_ptr().cast(), places) };
        }
    }
    turned
}

/// Loads up to sixteen integers, with zeros behind them.
#[target_feature(enable = "avx512f")]
#[inline]
fn load(places: &[i32]) -> __m512i {
    assert!(places.len() <= LANES);
    // SAFETY: the mask has as many lanes as there are places.
    unsafe { _mm512_maskz_loadu_epi32(((1u32 << places.len()) - 1) as u16, places.as_ptr()) }
}

//! Loops compiled once for each vector width.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

pub use super::path::Path;

/// Defines `fn name(path, args..)`, whose body is compiled once for each vector width and chosen by `path`. The body may call
/// only `#[inline(always)]` functions: other functions would keep the narrowest width.
#[macro_export]
macro_rules! vectorised {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name(path: $crate::cpu::product::simd::Path, $($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                use $crate::cpu::product::simd::Path;
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $type),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $type),*) $(-> $ret)? { body($($arg),*) }
                match path.supported() {
                    // SAFETY: `supported` returns only paths whose instructions were detected.
                    Path::Avx2 | Path::AvxVnni => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above; these paths have these AVX-512 features.
                    Path::Avx512 | Path::Avx512Vnni | Path::AmxInt8 => return unsafe { avx512($($arg),*) },
                    _ => {}
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = path;
            body($($arg),*)
        }
    };
}
pub use crate::vectorised;

/// Words of a vector.
#[cfg(target_arch = "x86_64")]
const LANES: usize = 8;

/// Transposes the first columns of sixteen rows that are `stride` words apart, where the machine has AVX2. Returns the number of
/// columns that it transposed.
pub(super) fn turn<const DEPTH: usize>(
    data: &[u32],
    stride: usize,
    len: usize,
    to: &mut [[u32; DEPTH]; 16],
) -> usize {
    #[cfg(target_arch = "x86_64")]
    if Path::fastest() >= Path::Avx2 {
        // SAFETY: AVX2 was detected.
        return unsafe { turn_by_eight(data, stride, len, to) };
    }
    let _ = (data, stride, len, to);
    0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn turn_by_eight<const DEPTH: usize>(
    data: &[u32],
    stride: usize,
    len: usize,
    to: &mut [[u32; DEPTH]; 16],
) -> usize {
    let whole = len / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let mut halves = [[load(&[0; LANES]); LANES]; 2];
        for place in 0..LANES {
            let line = &data[(first + place) * stride..][..2 * LANES];
            let (left, right) = line.as_chunks::<LANES>().0.split_at(1);
            (halves[0][place], halves[1][place]) = (load(&left[0]), load(&right[0]));
        }
        for (half, to) in halves.into_iter().zip(to.as_chunks_mut::<LANES>().0) {
            for (row, to) in turned(half).into_iter().zip(to) {
                store(to[first..].first_chunk_mut().expect("a row has len places"), row);
            }
        }
    }
    whole
}

/// The transpose of an 8 x 8 matrix of words.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn turned(rows: [__m256i; LANES]) -> [__m256i; LANES] {
    let [a, b, c, d, e, f, g, h] = rows;
    let words = |a, b| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
    let pairs = |a, b| [_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)];
    let four = |[a, b, c, d]: [__m256i; 4]| {
        let ([ab, ab_high], [cd, cd_high]) = (words(a, b), words(c, d));
        [pairs(ab, cd), pairs(ab_high, cd_high)]
    };
    let ([[a, b], [c, d]], [[e, f], [g, h]]) = (four([a, b, c, d]), four([e, f, g, h]));
    let low = |x, y| _mm256_permute2x128_si256::<0x20>(x, y);
    let high = |x, y| _mm256_permute2x128_si256::<0x31>(x, y);
    [low(a, e), low(b, f), low(c, g), low(d, h), high(a, e), high(b, f), high(c, g), high(d, h)]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(words: &[u32; LANES]) -> __m256i {
    // SAFETY: the array has eight words.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store(to: &mut [u32; LANES], words: __m256i) {
    // SAFETY: the array has eight words.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), words) }
}

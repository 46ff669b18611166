//! Patches written directly into the strips that products by `vpmaddwd` read ([`super::strips`]), without rows in between.
//!
//! For one tap and channel, eight neighbouring patches read eight pixels. The pixels are neighbours once the line is arranged for
//! the convolution: [`Lines`]. The kernel's gradient reads eight neighbouring channels instead, which are the lanes of the strips
//! that the channels were digitised into ([`channel_strip`]).

use std::arch::x86_64::_mm256_setzero_si256;
use std::ops::Range;

use rayon::prelude::*;

use super::gather::{Gather, OUTSIDE};
use super::simd::{load, store, turned};
use super::strips::{Pair, ROWS, pairs};

/// Images as words of two channels, `[8 samples together][row][sample][pair of channels][entry of the line]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    words: Vec<i32>,
    /// Entries of a line.
    len: usize,
    /// The first entry of each tap across, patch after patch.
    taps: Vec<usize>,
}

impl Lines {
    /// The lines of images in strips of samples. `memory(len)` gives at least `len` words with any contents. `None` if a pair
    /// would have channels of two pixels, or there are no lines.
    pub(crate) fn new(
        gather: &Gather,
        strips: &[i32],
        memory: impl FnOnce(usize) -> Vec<i32>,
    ) -> Option<Lines> {
        if gather.by_channel || !gather.channels.is_multiple_of(2) {
            return None;
        }
        let (columns, taps) = gather.arranged_line()?;
        let len = columns.len();
        let ([height, width], half) = (gather.image, gather.channels / 2);
        let of_row = width * half;
        let (strips, _) = bytemuck::cast_slice::<i32, u32>(strips).as_chunks::<ROWS>();
        let each = pairs(height * width * gather.channels);
        let lines = gather.samples().div_ceil(ROWS) * height;
        let count = lines * ROWS * half * len;
        let mut words = memory(count);
        words[..count].par_chunks_exact_mut(ROWS * half * len).enumerate().for_each(|(i, to)| {
            let pixels = &strips[i / height * each + i % height * of_row..][..of_row];
            // SAFETY: operands are in strips where AVX2 was detected.
            unsafe { turn_line(pixels, half, &columns, bytemuck::cast_slice_mut(to)) };
        });
        Some(Lines { words, len, taps })
    }

    pub(crate) fn into_memory(self) -> Vec<i32> {
        self.words
    }

    /// Writes the pairs `k` of the strip of these patches, with zeros behind them.
    #[target_feature(enable = "avx2")]
    pub(crate) fn strip(&self, gather: &Gather, patches: Range<usize>, k: Range<usize>, to: &mut [Pair]) {
        let half = gather.channels / 2;
        let [taps_down, taps_across] = gather.geometry.kernel.map(|n| n as usize);
        let words: &[u32] = bytemuck::cast_slice(&self.words);
        let (mut rest, behind) = to.split_at_mut(k.len() / 2);
        behind.fill([0; ROWS]);
        let mut places = [None; ROWS];
        places
            .iter_mut()
            .zip(patches.clone())
            .for_each(|(place, patch)| *place = Some(gather.patch_at(patch)));
        let [_, _, x] = gather.patch_at(patches.start);
        let neighbours = patches.len() == ROWS && x + ROWS <= gather.geometry.size[1] as usize;
        let mut pair = k.start / 2;
        while !rest.is_empty() {
            let (tap, first) = (pair / half, pair % half);
            let (part, after) = rest.split_at_mut((half - first).min(rest.len()));
            (rest, pair) = (after, pair + part.len());
            let (ky, kx) = (tap / taps_across, tap % taps_across);
            let source = |place: Option<[usize; 3]>| {
                let [sample, y, x] = place?;
                let row = gather.sources[0][y * taps_down + ky];
                if row == OUTSIDE {
                    return None;
                }
                let line = (sample / ROWS * gather.image[0] + row) * ROWS + sample % ROWS;
                Some((line * half + first) * self.len + self.taps[kx] + x)
            };
            if neighbours {
                match source(places[0]) {
                    None => part.fill([0; ROWS]),
                    Some(at) => {
                        for (to, line) in part.iter_mut().zip(words[at..].chunks(self.len)) {
                            store(to, load(line.first_chunk().expect("a line has all patches")));
                        }
                    }
                }
                continue;
            }
            let sources = places.map(source);
            for (i, to) in part.iter_mut().enumerate() {
                *to = sources.map(|at| at.map_or(0, |at| words[at + i * self.len]));
            }
        }
    }
}

/// Turns a row of eight samples' images, `[pixel][pair of channels][sample]`, to lines: `[sample][pair of channels][entry]`.
#[target_feature(enable = "avx2")]
fn turn_line(pixels: &[Pair], half: usize, columns: &[usize], to: &mut [u32]) {
    let len = columns.len();
    for (first, columns) in (0..).step_by(ROWS).zip(columns.as_chunks::<ROWS>().0) {
        for pair in 0..half {
            let mut words = [_mm256_setzero_si256(); ROWS];
            for (words, &column) in words.iter_mut().zip(columns) {
                if column != OUTSIDE {
                    *words = load(&pixels[column * half + pair]);
                }
            }
            for (sample, words) in turned(words).into_iter().enumerate() {
                let at = (sample * half + pair) * len + first;
                store(to[at..].first_chunk_mut().expect("lines are whole"), words);
            }
        }
    }
}

/// True if rows of channels can be read from strips of the images' channels: a strip has one tap.
pub(super) fn channels_serve(gather: &Gather) -> bool {
    gather.by_channel && gather.channels.is_multiple_of(ROWS) && !gather.geometry.transposed
}

/// Writes the pairs of patches `k` of a strip, with zeros behind them, from strips of channels. The strip's rows (tap, channel)
/// begin with `place`.
#[target_feature(enable = "avx2")]
pub(super) fn channel_strip(gather: &Gather, strips: &[i32], place: usize, k: Range<usize>, to: &mut [Pair]) {
    let (channels, [height, width]) = (gather.channels, gather.image);
    let [taps_down, taps_across] = gather.geometry.kernel.map(|n| n as usize);
    let [down, across] = gather.geometry.size.map(|n| n as usize);
    let (tap, channel) = (place / channels, place % channels);
    let (ky, kx) = (tap / taps_across, tap % taps_across);
    let (strips, _) = bytemuck::cast_slice::<i32, u32>(strips).as_chunks::<ROWS>();
    let each = pairs(gather.samples() * height * width);
    let pixels = &strips[channel / ROWS * each..][..each];
    let stride = gather.geometry.stride as usize;
    to.fill([0; ROWS]);
    let [mut sample, mut y, mut x] = gather.patch_at(k.start);
    let mut at = 0;
    while at < k.len() {
        let count = (across - x).min(k.len() - at);
        let row = gather.sources[0][y * taps_down + ky];
        let [from, until] = gather.inside[kx].map(|place| place.clamp(x, x + count));
        if row != OUTSIDE && from < until {
            let pixel = (sample * height + row) * width + gather.sources[1][from * taps_across + kx];
            place_pixels(pixels, [pixel, stride], at + from - x..at + until - x, to);
        }
        at += count;
        (x, y) = (0, y + 1);
        if y == down {
            (sample, y) = (sample + 1, 0);
        }
    }
}

/// Writes pixels, `stride` from one to the next, at positions `at` of a strip that has zeros there.
#[target_feature(enable = "avx2")]
#[inline]
fn place_pixels(pixels: &[Pair], [mut pixel, stride]: [usize; 2], mut at: Range<usize>, to: &mut [Pair]) {
    if at.start % 2 == 1 {
        place_pixel(pixels, pixel, at.start, to);
        (pixel, at.start) = (pixel + stride, at.start + 1);
    }
    let count = at.len() / 2;
    let whole = &mut to[at.start / 2..][..count];
    if stride == 1 && pixel.is_multiple_of(2) {
        whole.copy_from_slice(&pixels[pixel / 2..][..count]);
    } else {
        let shifts = [pixel, pixel + stride].map(|pixel| pixel % 2 * 16);
        for (i, to) in whole.iter_mut().enumerate() {
            let first = pixel + 2 * i * stride;
            let (even, odd) = (&pixels[first / 2], &pixels[(first + stride) / 2]);
            for ((to, even), odd) in to.iter_mut().zip(even).zip(odd) {
                *to = even >> shifts[0] & 0xffff | odd >> shifts[1] << 16;
            }
        }
    }
    if at.len() % 2 == 1 {
        place_pixel(pixels, pixel + 2 * count * stride, at.end - 1, to);
    }
}

/// Writes one pixel in its half of a pair, which is zero before.
#[inline]
fn place_pixel(pixels: &[Pair], pixel: usize, at: usize, to: &mut [Pair]) {
    for (to, word) in to[at / 2].iter_mut().zip(&pixels[pixel / 2]) {
        *to |= (word >> (pixel % 2 * 16) & 0xffff) << (at % 2 * 16);
    }
}

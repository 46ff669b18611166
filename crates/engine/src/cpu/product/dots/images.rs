//! Patches that register tiles read in place from images. The images are cut into words once, not once for each tap of the
//! kernel.
//!
//! For each tap, a patch reads the words of a pixel; neighbouring taps that read neighbouring pixels are one run. In a kernel's
//! gradient, rows are channels at a tap. There a row reads pixels of lines, which are arranged so that neighbouring patches read
//! neighbours.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

use super::form::{Layout, PLANES_MAX};
use super::isa::{Isa, LANES};
use super::runs::{Runs, WORD, Words};
use crate::cpu::product::gather::{Gather, OUTSIDE};

/// Images of an operand's patches in the words that a [`Layout`] has: `[sample][plane][pixel][word of channels]`, or, for a
/// kernel's gradient, `[channel][plane][sample][row][entry of the line]`. A pixel or line of zeros follows the last one of a
/// plane.
pub(super) struct Images<'g, F> {
    gather: &'g Gather,
    bytes: Vec<u8>,
    /// Bytes of a plane, zeros included, and bytes of the zeros.
    plane: usize,
    zeros: usize,
    /// The first entry of each tap across in a line.
    taps: Vec<usize>,
    form: PhantomData<F>,
}

/// Elements that are cut at once.
const CHUNK: usize = LANES * 4;

impl<'g, F: Layout> Images<'g, F> {
    /// Cuts images, all of whose integers are in `q`. `None` if a word would contain integers of two pixels or of two lines, or
    /// there are no lines. Images of eight pixels and more take at most six times the memory of their integers.
    pub(crate) fn cut(gather: &'g Gather, q: &[i32]) -> Option<Self> {
        if gather.by_channel { Self::cut_lines(gather, q) } else { Self::cut_pixels(gather, q) }
    }

    fn cut_pixels(gather: &'g Gather, q: &[i32]) -> Option<Self> {
        let [height, width] = gather.image;
        let of_sample = height * width * gather.channels;
        if of_sample == 0 || !gather.channels.is_multiple_of(F::PLACES) {
            return None;
        }
        let [of_sample_bytes, zeros] = [of_sample, gather.channels].map(|places| places / F::PLACES * WORD);
        let plane = of_sample_bytes + zeros;
        let mut bytes = vec![0; gather.samples() * F::PLANES[0] * plane];
        bytes.par_chunks_exact_mut(F::PLANES[0] * plane).zip(q.par_chunks_exact(of_sample)).for_each(
            |(to, q)| {
                cut::<F>(q, to, plane);
                cut::<F>(&vec![0; gather.channels], &mut to[of_sample_bytes..], plane);
            },
        );
        Some(Images { gather, bytes, plane, zeros, taps: Vec::new(), form: PhantomData })
    }

    fn cut_lines(gather: &'g Gather, q: &[i32]) -> Option<Self> {
        let [height, width] = gather.image;
        let (columns, taps) = gather.arranged_line()?;
        let lines = gather.samples() * height;
        let across = gather.geometry.size[1] as usize;
        if lines * width == 0 || !across.is_multiple_of(F::PLACES) {
            return None;
        }
        // A line has a multiple of eight entries, which are whole words.
        let zeros = columns.len() / F::PLACES * WORD;
        let plane = (lines + 1) * zeros;
        let mut bytes = vec![0; gather.channels * F::PLANES[0] * plane];
        let of_channels = bytes.par_chunks_exact_mut(F::PLANES[0] * plane);
        of_channels.zip(q.par_chunks_exact(lines * width)).for_each(|(to, q)| {
            let mut line = vec![0; columns.len()];
            for (i, pixels) in q.chunks_exact(width).enumerate() {
                for (to, &column) in line.iter_mut().zip(&columns) {
                    *to = pixels.get(column).copied().unwrap_or_default();
                }
                cut::<F>(&line, &mut to[i * zeros..], plane);
            }
            cut::<F>(&vec![0; columns.len()], &mut to[lines * zeros..], plane);
        });
        Some(Images { gather, bytes, plane, zeros, taps, form: PhantomData })
    }

    pub(crate) fn words(&self) -> Words<'_> {
        Words { bytes: &self.bytes, step: WORD, plane: self.plane }
    }

    /// The words of a tile with these rows of the operand, from index `first` of K on.
    pub(crate) fn runs(&self, rows: Range<usize>, first: usize, words: Range<usize>, runs: &mut Runs) {
        let first = first / F::PLACES;
        let words = first + words.start..first + words.end;
        if self.gather.by_channel {
            self.runs_of_lines(rows, words, runs);
        } else {
            self.runs_of_patches(rows, words, runs);
        }
    }

    /// The runs where rows are patches: K goes through the pixels that the taps read.
    fn runs_of_patches(&self, rows: Range<usize>, words: Range<usize>, runs: &mut Runs) {
        let gather = self.gather;
        let of_pixel = gather.channels / F::PLACES;
        let [taps_down, taps_across] = gather.geometry.kernel.map(|n| n as usize);
        let patches = tile::<F, _>(rows, |row| gather.patch_at(row));
        push_parts::<F, _>(runs, words, of_pixel, &patches, |tap, [sample, y, x]| {
            let source = [y * taps_down + tap / taps_across, x * taps_across + tap % taps_across];
            let [row, column] = [0, 1].map(|d| gather.sources[d][source[d]]);
            let inside = row != OUTSIDE && column != OUTSIDE;
            let pixel = if inside {
                (row * gather.image[1] + column) * of_pixel * WORD
            } else {
                self.plane - self.zeros
            };
            (inside, sample * F::PLANES[0] * self.plane + pixel)
        });
    }

    /// The runs where rows are channels at a tap: K goes through the patches, in lines.
    fn runs_of_lines(&self, rows: Range<usize>, words: Range<usize>, runs: &mut Runs) {
        let gather = self.gather;
        let [taps_down, taps_across] = gather.geometry.kernel.map(|n| n as usize);
        let [down, across] = gather.geometry.size.map(|n| n as usize);
        let element = WORD / F::PLACES;
        // Each row has its tap down, and the first byte of channel and tap across.
        let rows = tile::<F, _>(rows, |place| {
            let (tap, channel) = (place / gather.channels, place % gather.channels);
            let begin = channel * F::PLANES[0] * self.plane + self.taps[tap % taps_across] * element;
            [tap / taps_across, begin]
        });
        push_parts::<F, _>(runs, words, across / F::PLACES, &rows, |line, [ky, begin]| {
            let row = gather.sources[0][line % down * taps_down + ky];
            let inside = row != OUTSIDE;
            let images = if inside { line / down } else { gather.samples() };
            let row = if inside { row } else { 0 };
            (inside, begin + (images * gather.image[0] + row) * self.zeros)
        });
    }
}

/// A value for each row of a tile. Rows past the last one repeat the last row, and nobody reads their sums.
fn tile<F: Layout, R: Copy + Default>(rows: Range<usize>, of_row: impl Fn(usize) -> R) -> [R; LANES] {
    let mut tile = [R::default(); LANES];
    for (row, of) in tile.iter_mut().take(F::ROWS).enumerate() {
        *of = of_row((rows.start + row).min(rows.end - 1));
    }
    tile
}

/// Adds words of K in parts of `of_part` words, which are a pixel or a line. `start(part, row)` gives the begin of a row's part,
/// if the part is inside of the image. Parts that are zeros for all rows are left out, unless the layout needs them.
fn push_parts<F: Layout, R: Copy>(
    runs: &mut Runs,
    words: Range<usize>,
    of_part: usize,
    rows: &[R; LANES],
    start: impl Fn(usize, R) -> (bool, usize),
) {
    let mut word = words.start;
    while word < words.end {
        let (part, at) = (word / of_part, word % of_part);
        let end = words.end.min(word + of_part - at);
        let mut starts = [0; LANES];
        let mut any_inside = false;
        for (to, &row) in starts.iter_mut().zip(rows).take(F::ROWS) {
            let (inside, begin) = start(part, row);
            any_inside |= inside;
            *to = begin + at * WORD;
        }
        if any_inside || F::SURPLUS != 0 {
            runs.push(word - words.start..end - words.start, &starts[..F::ROWS], WORD);
        }
        word = end;
    }
}

/// Cuts integers, in whole words, into planes of bytes; each plane is `plane` bytes behind the one before.
fn cut<F: Layout>(q: &[i32], to: &mut [u8], plane: usize) {
    const { assert!(F::PLACES * LANES <= CHUNK) };
    // SAFETY: products run here where the form's instructions were detected.
    unsafe {
        F::Isa::run(
            #[inline(always)]
            || {
                for (i, q) in q.chunks(F::PLACES * LANES).enumerate() {
                    let mut all = [0; CHUNK];
                    all[..q.len()].copy_from_slice(q);
                    let mut places = [[0; LANES]; CHUNK / LANES];
                    for word in 0..LANES {
                        for place in 0..F::PLACES {
                            places[place][word] = all[word * F::PLACES + place];
                        }
                    }
                    let mut planes = [[0; LANES]; PLANES_MAX];
                    F::cut::<0>(&places[..F::PLACES], &mut planes[..F::PLANES[0]]);
                    let at = i * LANES * WORD;
                    let words = q.len() / F::PLACES;
                    for (p, of_plane) in planes[..F::PLANES[0]].iter().enumerate() {
                        to[p * plane + at..][..words * WORD]
                            .copy_from_slice(bytemuck::cast_slice(&of_plane[..words]));
                    }
                }
            },
        );
    }
}

//! The patches of a convolution as an operand: the images in the form that serves its rows, and the reads from them.

use std::sync::Arc;

use super::gather::Gather;
#[cfg(target_arch = "x86_64")]
use super::patch_strips::{Lines, channel_strip, channels_serve};
use tiebreak_contract::program::im2col::DigitPatches;

/// Patches of images, whose integers are kept once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Patches {
    gather: Gather,
    images: Images,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Images {
    /// Rows, image after image or channel after channel.
    Rows(Arc<Vec<i32>>),
    /// Rows of 16-bit integers, where these suffice.
    #[cfg(target_arch = "x86_64")]
    Halves(Vec<i16>),
    /// Strips of images, turned into lines of pixels.
    #[cfg(target_arch = "x86_64")]
    Lines(Lines),
    /// Strips of channels, as they were digitised.
    #[cfg(target_arch = "x86_64")]
    Channels(Arc<Vec<i32>>),
}

impl Patches {
    /// Patches of images with these numbers of samples and channels, whose integers are in rows.
    pub(crate) fn of_rows(patches: DigitPatches, images: [u32; 2], q: Arc<Vec<i32>>) -> Patches {
        Patches { gather: Gather::new(patches, images), images: Images::Rows(q) }
    }

    /// Patches of images whose integers are in strips. `memory(len)` gives at least `len` words with any contents, and
    /// `integers` gives all integers in rows.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of_strips(
        patches: DigitPatches,
        images: [u32; 2],
        strips: &Arc<Vec<i32>>,
        integers: impl FnOnce() -> Vec<i32>,
        memory: impl FnOnce(usize) -> Vec<i32>,
    ) -> Patches {
        let gather = Gather::new(patches, images);
        let images = if channels_serve(&gather) {
            Images::Channels(strips.clone())
        } else if let Some(lines) = Lines::new(&gather, strips, memory) {
            Images::Lines(lines)
        } else {
            Images::Halves(integers().into_iter().map(|q| q as i16).collect())
        };
        Patches { gather, images }
    }

    /// The images, if their integers are contiguous.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn images(&self) -> Option<(&Gather, &[i32])> {
        match &self.images {
            Images::Rows(q) => Some((&self.gather, q)),
            #[cfg(target_arch = "x86_64")]
            _ => None,
        }
    }

    /// The integers of row `row` from index `first` on, as many as `to` holds.
    pub(crate) fn row(&self, row: usize, first: usize, to: &mut [i32]) {
        match &self.images {
            Images::Rows(q) => self.gather.row(q, row, first, to),
            #[cfg(target_arch = "x86_64")]
            Images::Halves(q) => {
                let mut halves = vec![0i16; to.len()];
                self.gather.row(q, row, first, &mut halves);
                to.iter_mut().zip(halves).for_each(|(to, q)| *to = q.into());
            }
            // A strip contains the row; fast callers ask for strips.
            #[cfg(target_arch = "x86_64")]
            Images::Lines(_) | Images::Channels(_) => {
                use super::strips::{ROWS, pairs, read_row};
                let ([rows, places], lane) = (self.gather.shape(), row % ROWS);
                let (start, end) = (first / 2 * 2, (first + to.len()).next_multiple_of(2).min(places));
                let mut strip = vec![[0; ROWS]; pairs(end - start)];
                let of = row - lane..(row - lane + ROWS).min(rows);
                assert!(self.strip(of, start..end, &mut strip), "these images have strips");
                let words: &[i32] = bytemuck::cast_slice(strip.as_flattened());
                read_row(words, strip.len(), lane, first - start..first - start + to.len(), to);
            }
        }
    }

    /// The integers of a row as 16-bit integers; false if the images are not of 16 bits.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn halves(&self, row: usize, first: usize, to: &mut [i16]) -> bool {
        let Images::Halves(q) = &self.images else { return false };
        self.gather.row(q, row, first, to);
        true
    }

    /// Writes the pairs `k`, from an even index on, of the strip of these rows, with zeros behind them; false if the operand
    /// has rows only.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn strip(
        &self,
        rows: std::ops::Range<usize>,
        k: std::ops::Range<usize>,
        to: &mut [super::strips::Pair],
    ) -> bool {
        match &self.images {
            // SAFETY: strips are made where AVX2 was detected.
            Images::Lines(lines) => unsafe { lines.strip(&self.gather, rows, k, to) },
            // SAFETY: as above.
            Images::Channels(strips) => unsafe { channel_strip(&self.gather, strips, rows.start, k, to) },
            _ => return false,
        }
        true
    }

    /// The memory of the images, if nothing else uses it.
    pub(crate) fn into_memory(self) -> Option<Vec<i32>> {
        match self.images {
            Images::Rows(q) => Arc::into_inner(q),
            #[cfg(target_arch = "x86_64")]
            Images::Channels(q) => Arc::into_inner(q),
            #[cfg(target_arch = "x86_64")]
            Images::Lines(lines) => Some(lines.into_memory()),
            #[cfg(target_arch = "x86_64")]
            Images::Halves(_) => None,
        }
    }
}

//! Rows of patches from the integers of images: the operand of `digit_patches.v1`, read directly from the images.

use tiebreak_contract::program::im2col::{ConvGeometry, DigitPatches};

/// The table entry for a position outside of the image.
pub(super) const OUTSIDE: usize = usize::MAX;

/// Patches of images, an operand of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gather {
    pub geometry: ConvGeometry,
    pub by_channel: bool,
    pub channels: usize,
    /// Pixels of an image, down and across.
    pub image: [usize; 2],
    /// Integers of all images.
    len: usize,
    /// The row that each tap of each patch reads, `[patch][tap]`, down; and the column, across.
    pub sources: [Vec<usize>; 2],
    /// For each tap across, in the forward direction: the range of patches whose pixel is in the image.
    pub inside: Vec<[usize; 2]>,
}

impl Gather {
    /// The patches of this number of samples and channels.
    pub(crate) fn new(patches: DigitPatches, [samples, channels]: [u32; 2]) -> Gather {
        let DigitPatches { image, geometry, by_channel } = patches;
        let source = |d: usize| {
            let places =
                (0..geometry.size[d]).flat_map(|at| (0..geometry.kernel[d]).map(move |tap| (at, tap)));
            let of = |(at, tap)| geometry.source(at, tap, image[d]).map_or(OUTSIDE, |place| place as usize);
            places.map(of).collect::<Vec<_>>()
        };
        let inside = (0..geometry.kernel[1]).map(|tap| {
            let is = |x: &u32| geometry.source(*x, tap, image[1]).is_some();
            let across = geometry.size[1];
            let from = (0..across).find(is).unwrap_or(across);
            [from, (from..across).find(|x| !is(x)).unwrap_or(across)].map(|x| x as usize)
        });
        Gather {
            geometry,
            by_channel,
            channels: channels as usize,
            image: image.map(|n| n as usize),
            len: [samples, image[0], image[1], channels].iter().map(|&n| n as usize).product(),
            sources: [source(0), source(1)],
            inside: inside.collect(),
        }
    }

    /// The number of samples of the images.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn samples(&self) -> usize {
        self.len / (self.image[0] * self.image[1] * self.channels).max(1)
    }

    /// Rows and K of the operand.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn shape(&self) -> [usize; 2] {
        let [patches, places] = self.geometry.shape(self.samples() as u32, self.channels as u32);
        let shape = if self.by_channel { [places, patches] } else { [patches, places] };
        shape.map(|n| n as usize)
    }

    /// The elements of row `row` from index `first` on, as many as `to` holds, from the images' integers.
    pub(crate) fn row<T: Copy + Default>(&self, q: &[T], row: usize, first: usize, to: &mut [T]) {
        if self.by_channel {
            self.place_of_patches(q, row, first, to);
        } else {
            self.patch(q, row, first, to);
        }
    }

    /// A line of pixels arranged so that neighbouring patches read neighbouring entries. The result is the column of each entry,
    /// a multiple of eight of them, and the first entry of each tap across, patch after patch. A stride puts pixels of one
    /// remainder side by side; transposed patches have zeros between pixels. `None` if the line would be much longer than the
    /// images' lines.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn arranged_line(&self) -> Option<(Vec<usize>, Vec<usize>)> {
        let (across, taps) = (self.geometry.size[1] as usize, self.geometry.kernel[1] as usize);
        let stride = (self.geometry.stride as usize).max(1);
        let (len, begins): (_, Vec<_>) = if self.geometry.transposed {
            ((across + taps).saturating_sub(1), (0..taps).rev().collect())
        } else {
            let of_remainder = across + taps.saturating_sub(1) / stride;
            let begin = |tap: usize| tap % stride * of_remainder + tap / stride;
            (stride.min(taps) * of_remainder, (0..taps).map(begin).collect())
        };
        let len = len.next_multiple_of(8);
        if len > 4 * self.image[1].max(8) {
            return None;
        }
        let mut columns = vec![OUTSIDE; len];
        for (i, &column) in self.sources[1].iter().enumerate() {
            columns[begins[i % taps] + i / taps] = column;
        }
        Some((columns, begins))
    }

    /// Sample, row and column of a patch.
    pub(crate) fn patch_at(&self, patch: usize) -> [usize; 3] {
        let [down, across] = self.geometry.size.map(|n| n as usize);
        [patch / (down * across), patch / across % down, patch % across]
    }

    /// A patch: its taps, one after another, each with `channels` integers.
    fn patch<T: Copy + Default>(&self, q: &[T], patch: usize, first: usize, to: &mut [T]) {
        let (channels, [height, width]) = (self.channels, self.image);
        let [taps_down, taps_across] = self.geometry.kernel.map(|n| n as usize);
        let [sample, y, x] = self.patch_at(patch);
        let rows = &self.sources[0][y * taps_down..][..taps_down];
        let columns = &self.sources[1][x * taps_across..][..taps_across];
        let image = &q[sample * height * width * channels..];
        let line = taps_across * channels;
        let mut at = first;
        let mut rest = to;
        while !rest.is_empty() {
            let (row, begin) = (rows[at / line], at % line);
            let (part, after) = rest.split_at_mut((line - begin).min(rest.len()));
            at += part.len();
            rest = after;
            if row == OUTSIDE {
                part.fill(T::default());
                continue;
            }
            let pixels = &image[row * width * channels..][..width * channels];
            let mut tap = begin / channels;
            let mut channel = begin % channels;
            let mut part = part;
            while !part.is_empty() {
                // Neighbouring taps whose pixels are neighbours are copied at once.
                let column = columns[tap];
                let mut end = tap + 1;
                while column != OUTSIDE && end < taps_across && columns[end] == column + (end - tap) {
                    end += 1;
                }
                let (run, after) = part.split_at_mut(((end - tap) * channels - channel).min(part.len()));
                if column == OUTSIDE {
                    run.fill(T::default());
                } else {
                    run.copy_from_slice(&pixels[column * channels + channel..][..run.len()]);
                }
                part = after;
                (tap, channel) = (end, 0);
            }
        }
    }

    /// A tap and channel of all patches: lines of `across` integers, one after another.
    fn place_of_patches<T: Copy + Default>(&self, q: &[T], place: usize, first: usize, to: &mut [T]) {
        let (channels, [height, width]) = (self.channels, self.image);
        let [taps_down, taps_across] = self.geometry.kernel.map(|n| n as usize);
        let [down, across] = self.geometry.size.map(|n| n as usize);
        let (tap, channel) = (place / channels, place % channels);
        let (ky, kx) = (tap / taps_across, tap % taps_across);
        let images = &q[channel * (self.len / channels)..][..self.len / channels];
        let [mut sample, mut y, mut x] = self.patch_at(first);
        let mut rest = to;
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut((across - x).min(rest.len()));
            rest = after;
            match self.sources[0][y * taps_down + ky] {
                OUTSIDE => part.fill(T::default()),
                row => self.line(&images[(sample * height + row) * width..][..width], kx, x, part),
            }
            (x, y) = (0, y + 1);
            if y == down {
                (sample, y) = (sample + 1, 0);
            }
        }
    }

    /// The pixels of a line that tap `kx` of the patches from `x` on reads.
    fn line<T: Copy + Default>(&self, pixels: &[T], kx: usize, x: usize, to: &mut [T]) {
        let taps_across = self.geometry.kernel[1] as usize;
        let source = |x: usize| self.sources[1][x * taps_across + kx];
        if self.geometry.transposed {
            for (to, x) in to.iter_mut().zip(x..) {
                *to = pixels.get(source(x)).copied().unwrap_or_default();
            }
            return;
        }
        let [from, until] = self.inside[kx].map(|place| place.clamp(x, x + to.len()) - x);
        to[..from].fill(T::default());
        to[until..].fill(T::default());
        if from == until {
            return;
        }
        let (run, pixels) = (&mut to[from..until], &pixels[source(x + from)..]);
        match self.geometry.stride as usize {
            1 => run.copy_from_slice(&pixels[..run.len()]),
            step => run.iter_mut().zip(pixels.iter().step_by(step)).for_each(|(to, q)| *to = *q),
        }
    }
}

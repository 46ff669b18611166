//! The geometry of a convolution's patches, for `patches.v1` and `digit_patches.v1`.

/// A convolution's kernel, and its positions on an image. Sizes are (rows, columns), in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvGeometry {
    /// Patches of an image.
    pub size: [u32; 2],
    /// Pixels of a patch.
    pub kernel: [u32; 2],
    /// Pixels from one patch to the next. If `transposed`, the number belongs to the convolution whose input gradient the
    /// geometry computes.
    pub stride: u32,
    /// Zeros around the image. If `transposed`, the number belongs to the image of the forward convolution.
    pub padding: u32,
    /// True if patch p takes the pixels that read p in the forward direction, as the gradient of a convolution's input does.
    pub transposed: bool,
}

impl ConvGeometry {
    /// The patches of a convolution over images of `image` pixels; `None` if the kernel does not fit in them.
    #[doc(hidden)] // for the layers above
    pub fn of_image(image: [u32; 2], kernel: [u32; 2], stride: u32, padding: u32) -> Option<ConvGeometry> {
        let fits = |d: usize| {
            let places = padding.checked_mul(2)?.checked_add(image[d])?.checked_sub(kernel[d])?;
            Some(places.checked_div(stride)? + 1)
        };
        Some(ConvGeometry { size: [fits(0)?, fits(1)?], kernel, stride, padding, transposed: false })
    }

    /// The patches of the output's gradient whose product with the kernel is the gradient of an input of `image` pixels.
    #[doc(hidden)] // for the layers above
    pub fn transposed(self, image: [u32; 2]) -> ConvGeometry {
        ConvGeometry { size: image, transposed: true, ..self }
    }

    /// The row (or column), of `len`, that tap `tap` of patch `at` reads; `None` outside of the image. Indices are computed
    /// modulo 2^32, so an index before the image becomes one far behind it.
    pub fn source(&self, at: u32, tap: u32, len: u32) -> Option<u32> {
        if !self.transposed {
            let place = at.wrapping_mul(self.stride).wrapping_add(tap).wrapping_sub(self.padding);
            return (place < len).then_some(place);
        }
        let place = at.wrapping_add(self.padding).wrapping_sub(tap);
        let (place, between) = (place / self.stride, place % self.stride);
        (between == 0 && place < len).then_some(place)
    }

    /// Rows and columns of the matrix of patches of `samples` images of `channels` channels.
    pub fn shape(&self, samples: u32, channels: u32) -> [u32; 2] {
        [samples * self.size[0] * self.size[1], self.kernel[0] * self.kernel[1] * channels]
    }
}

/// Patches of quantised images, as an operand of a product: the digits of `patches.v1`, without binary32 patches.
///
/// The images are integers [1, B, H W C], a scale group for each sample, or by channel [1, C, B H W], a scale group for each channel. The
/// patches are [1, B P Q, R S C], or by channel [1, R S C, B P Q].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DigitPatches {
    /// Pixels of an image, down and across.
    pub image: [u32; 2],
    /// The pixels that a patch takes.
    pub geometry: ConvGeometry,
    /// True if channels are rows, as in the operand of a kernel's gradient.
    pub by_channel: bool,
}

impl DigitPatches {
    /// Samples and channels of images of `rows` rows of `k` integers; `None` if a row is no whole number of images or pixels.
    #[doc(hidden)] // for the layers above
    pub fn images(&self, rows: u32, k: u32) -> Option<[u32; 2]> {
        let pixels = self.image[0].checked_mul(self.image[1]).filter(|&n| n > 0)?;
        let others = k.is_multiple_of(pixels).then_some(k / pixels)?;
        Some(if self.by_channel { [others, rows] } else { [rows, others] })
    }

    /// Rows and K of the operand.
    pub fn shape(&self, [samples, channels]: [u32; 2]) -> [u32; 2] {
        let [rows, k] = self.geometry.shape(samples, channels);
        if self.by_channel { [k, rows] } else { [rows, k] }
    }

    /// The index among the images' integers of element `i` of the operand; `None` outside of an image.
    pub fn source(&self, [samples, channels]: [u32; 2], i: usize) -> Option<usize> {
        let ([_, k], [height, width]) = (self.shape([samples, channels]), self.image);
        let (row, column) = (i / k as usize, i % k as usize);
        let (patch, place) = if self.by_channel { (column, row) } else { (row, column) };
        let (tap, channel) = (place / channels as usize, place % channels as usize);
        let ([down, across], [_, taps_across]) = (self.geometry.size, self.geometry.kernel);
        let (sample, patch) = (patch / (down * across) as usize, (patch % (down * across) as usize) as u32);
        let y = self.geometry.source(patch / across, tap as u32 / taps_across, height)?;
        let x = self.geometry.source(patch % across, tap as u32 % taps_across, width)?;
        let pixel = (sample * height as usize + y as usize) * width as usize + x as usize;
        let pixels = samples as usize * (height * width) as usize;
        Some(if self.by_channel { channel * pixels + pixel } else { pixel * channels as usize + channel })
    }

    /// The view that reads the operand's absmaxes [1, rows, blocks] from the absmaxes of the images' rows: dimensions and
    /// strides.
    pub(crate) fn absmaxes(&self, [samples, channels]: [u32; 2], blocks: u32) -> [[u32; 4]; 2] {
        let ConvGeometry { size, kernel, .. } = self.geometry;
        if self.by_channel {
            [[1, kernel[0] * kernel[1], channels, blocks], [0, 0, 1, 0]]
        } else {
            [[1, samples, size[0] * size[1], blocks], [0, 1, 0, 0]]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each (patch, tap, pixel) of the forward direction is one (pixel, tap, patch) of the other, and there are no more.
    #[test]
    fn the_transposed_geometry_turns_the_arrows() {
        for (len, kernel, stride, padding) in
            [(7, 3, 1, 1), (8, 3, 2, 1), (8, 1, 2, 0), (5, 5, 1, 2), (9, 4, 3, 2), (4, 7, 5, 3), (1, 1, 1, 0)]
        {
            let forward = ConvGeometry::of_image([len; 2], [kernel; 2], stride, padding).unwrap();
            let back = forward.transposed([len; 2]);
            let patches = forward.size[0];
            let triples = |geometry: &ConvGeometry, places: u32, len: u32| {
                let all = (0..places).flat_map(|at| (0..kernel).map(move |tap| (at, tap)));
                all.filter_map(|(at, tap)| Some((at, tap, geometry.source(at, tap, len)?)))
                    .collect::<Vec<_>>()
            };
            let there = triples(&forward, patches, len);
            let mut turned: Vec<_> =
                triples(&back, len, patches).into_iter().map(|(x, tap, at)| (at, tap, x)).collect();
            turned.sort();
            assert_eq!(there, turned, "{len} {kernel} {stride} {padding}");
            assert!(!there.is_empty());
        }
        assert_eq!(ConvGeometry::of_image([3; 2], [6; 2], 1, 1), None);
    }
}

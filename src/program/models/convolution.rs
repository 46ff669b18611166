//! The convolutions of networks over images: their parameters, and how large they are.

use super::sizes::{ProductSize, times};
use super::{Init, ModelParameter};
use crate::program::products::ProductClass;

/// A square convolution with its input's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Pixels of its input, down and across.
    pub image: [u32; 2],
    /// Channels of its input.
    pub inputs: u32,
    /// Channels of its output.
    pub outputs: u32,
    /// Pixels of the kernel, down and across: an odd number.
    pub kernel: u32,
    /// Pixels from one patch to the next, down and across.
    pub stride: u32,
}

impl Convolution {
    /// Zeros around the image: as many as keep its size at a stride of 1.
    pub(super) fn padding(&self) -> u32 {
        self.kernel / 2
    }

    /// Pixels of the output, down and across.
    pub(super) fn to(&self) -> [u32; 2] {
        // Kernels are odd, so n + 2 * padding - kernel is n - 1.
        self.image.map(|n| (n - 1) / self.stride + 1)
    }

    pub(super) fn parameter(&self, name: String) -> ModelParameter {
        let &Convolution { inputs, outputs, kernel, .. } = self;
        // He initialisation (He et al., 2015).
        let init = Init::Normal { std: (2.0 / (kernel * kernel * inputs) as f32).sqrt() };
        ModelParameter { name, shape: vec![outputs, kernel, kernel, inputs], init, decayed: true }
    }

    /// Elements of the larger one of its matrices of patches, of the image and of the output's gradient, for `samples`.
    pub(super) fn patches(&self, samples: u64) -> u64 {
        let [image, rows] = self.pixels(samples);
        let [inputs, outputs, taps] = self.numbers();
        times(&[rows, inputs, taps]).max(times(&[image, outputs, taps]))
    }

    /// Its products for `samples`: forward, and the gradients of image and kernel.
    pub(super) fn products(&self, samples: u64) -> [ProductSize; 3] {
        use ProductClass::{Conv, ConvDw, ConvDx};
        let [image, rows] = self.pixels(samples);
        let [inputs, outputs, taps] = self.numbers();
        [
            ProductSize { class: Conv, outputs: times(&[rows, outputs]), k: taps * inputs },
            ProductSize { class: ConvDx, outputs: times(&[image, inputs]), k: taps * outputs },
            ProductSize { class: ConvDw, outputs: times(&[taps, inputs, outputs]), k: rows },
        ]
    }

    /// Pixels of all inputs, and of all outputs.
    fn pixels(&self, samples: u64) -> [u64; 2] {
        [self.image, self.to()].map(|size| times(&[samples, size[0].into(), size[1].into()]))
    }

    /// Channels of input and output, and places of the kernel.
    fn numbers(&self) -> [u64; 3] {
        [self.inputs, self.outputs, self.kernel * self.kernel].map(u64::from)
    }
}

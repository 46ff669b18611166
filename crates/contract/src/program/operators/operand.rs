//! The operands of products: views, and patches of images.

use super::linear::{columns, rows};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::graph::{Primitive, TensorId, View, block_count};
use crate::program::im2col::{ConvGeometry, DigitPatches};

/// A side of a product, [batch0, batch1, rows, K].
pub enum ProductOperand {
    /// Binary32, with a scale group for each row (or block of it).
    View(View),
    /// Patches of f32 images [B, H, W, C], with a scale group for each sample, or by channel for each
    /// channel.
    Patches(TensorId, DigitPatches),
}

impl From<View> for ProductOperand {
    fn from(view: View) -> ProductOperand {
        ProductOperand::View(view)
    }
}

/// The matrix of patches of f32 images, with a row for each patch.
pub(crate) fn im2col(b: &mut Builder, input: TensorId, geometry: ConvGeometry) -> TensorId {
    let [samples, _, _, channels] = b.shape(input)[..] else { panic!("patches are of [B, H, W, C]") };
    let dtype = b.tensor(input).dtype;
    b.node(Primitive::Im2col { input, geometry }, dtype, &geometry.shape(samples, channels))
}

impl Builder {
    /// The dimensions [batch0, batch1, rows, K] of a side.
    pub(super) fn operand_dims(&self, operand: &ProductOperand) -> [u32; 4] {
        match operand {
            ProductOperand::View(view) => view.dims,
            ProductOperand::Patches(input, patches) => {
                let [samples, _, _, channels] = self.shape(*input)[..] else {
                    panic!("images are [B, H, W, C]")
                };
                let [rows, k] = patches.shape([samples, channels]);
                [1, 1, rows, k]
            }
        }
    }

    /// A side as native kernels read it, with patches in binary32.
    pub(super) fn native_operand(&mut self, operand: ProductOperand) -> View {
        let [_, _, m, k] = self.operand_dims(&operand);
        match operand {
            ProductOperand::View(view) => view,
            ProductOperand::Patches(input, DigitPatches { geometry, by_channel, .. }) => {
                let patches = im2col(self, input, geometry);
                if by_channel { columns(patches, k, m) } else { rows(patches, m, k) }
            }
        }
    }

    /// The integers of a side and their absmaxes.
    pub(super) fn digitised(
        &mut self,
        operand: ProductOperand,
        digits: u8,
        block: u32,
    ) -> (TensorId, TensorId) {
        let [_, _, m, k] = self.operand_dims(&operand);
        let (input, patches) = match operand {
            ProductOperand::View(view) => return self.quantise(view, digits, block),
            ProductOperand::Patches(input, patches) => (input, patches),
        };
        let [samples, height, width, channels] = self.shape(input)[..] else { unreachable!() };
        let pixels = height * width;
        let images = if patches.by_channel {
            columns(input, samples * pixels, channels)
        } else {
            rows(input, samples, pixels * channels)
        };
        let (integers, absmaxes) = self.quantise(images, digits, 0);
        let gathered = Primitive::DigitPatches { input: integers, patches };
        let gathered = self.node(gathered, DType::Q(digits), &[1, m, k]);
        let blocks = block_count(k, block);
        let [dims, strides] = patches.absmaxes([samples, channels], blocks);
        let of_rows = View { tensor: absmaxes, offset: 0, dims, strides };
        (gathered, self.copy(of_rows, &[1, m, blocks]))
    }
}

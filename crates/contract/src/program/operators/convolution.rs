//! conv2d.v1, conv2d.v2 and mean_pool.v1.
//!
//! The convolutions are y [B, P, Q, M] = x [B, H, W, C] convolved with weight [M, R, S, C], as the product of x's patches and the
//! kernels.

use serde::{Deserialize, Serialize};

use super::linear::{columns, rows};
use super::operand::{ProductOperand, im2col};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::im2col::{ConvGeometry, DigitPatches};
use crate::program::products::ProductClass;

/// The version of conv2d, which decides the scale groups of patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum ConvVersion {
    /// A scale group for each patch, and in the kernel's gradient for each tap of the kernel. Every pixel is quantised once for
    /// each patch that has it.
    #[default]
    V1,
    /// A scale group for each sample, and in the kernel's gradient for each channel. Every pixel is quantised once.
    V2,
}

impl TryFrom<u8> for ConvVersion {
    type Error = String;

    fn try_from(number: u8) -> Result<ConvVersion, String> {
        match number {
            1 => Ok(ConvVersion::V1),
            2 => Ok(ConvVersion::V2),
            _ => Err(format!("convolutions have version 1 or 2, not {number}")),
        }
    }
}

impl From<ConvVersion> for u8 {
    fn from(version: ConvVersion) -> u8 {
        version as u8 + 1
    }
}

/// The patches of images [B, H, W, C] as a product's operand, by rows or by columns.
fn patches(
    b: &mut Builder,
    version: ConvVersion,
    input: TensorId,
    geometry: ConvGeometry,
    by_channel: bool,
) -> ProductOperand {
    let [samples, height, width, channels] = b.shape(input)[..] else { panic!("images are [B, H, W, C]") };
    if version == ConvVersion::V2 {
        let patches = DigitPatches { image: [height, width], geometry, by_channel };
        return ProductOperand::Patches(input, patches);
    }
    let ([count, k], taken) = (geometry.shape(samples, channels), im2col(b, input, geometry));
    if by_channel { columns(taken, count, k) } else { rows(taken, count, k) }.into()
}

/// The most elements of a matrix of patches.
pub(super) const PATCHES_MAX: u64 = 1 << 31;

/// x [B, H, W, C], weight [M, R, S, C] -> [B, P, Q, M], with `padding` zeros around each image.
///
/// # Errors
/// If a kernel does not fit in an image, or the patches forward or backward have too many elements.
pub fn conv2d(
    b: &mut Builder,
    x: TensorId,
    weight: TensorId,
    version: ConvVersion,
    stride: u32,
    padding: u32,
) -> Result<TensorId, String> {
    let [samples, height, width, channels] = b.shape(x)[..] else {
        panic!("a convolution takes [B, H, W, C]")
    };
    let [outputs, r, s, of_weight] = b.shape(weight)[..] else { panic!("kernels are [M, R, S, C]") };
    assert_eq!(channels, of_weight, "channels of a convolution");
    let geometry = ConvGeometry::of_image([height, width], [r, s], stride, padding)
        .ok_or_else(|| {
            format!(
                "a kernel of {r} x {s} pixels with stride {stride} does not fit images of {height} x {width} with padding {padding}"
            )
        })?;
    let elements = |images: [u32; 2], channels: u32| {
        let sizes = [samples, images[0], images[1], r, s, channels];
        sizes.iter().fold(1u64, |product, &n| product.saturating_mul(u64::from(n)))
    };
    let most = elements(geometry.size, channels).max(elements([height, width], outputs));
    if most > PATCHES_MAX {
        return Err(format!("the patches of a convolution have {most} elements, more than {PATCHES_MAX}"));
    }
    let shape = [samples, geometry.size[0], geometry.size[1], outputs];
    let [count, k] = geometry.shape(samples, channels);
    let taken = patches(b, version, x, geometry, false);
    let y = b.product(ProductClass::Conv, taken, rows(weight, outputs, k), &shape);
    b.differentiable(y, move |b, dy| {
        let back = geometry.transposed([height, width]);
        let taken_back = patches(b, version, dy, back, false);
        let [_, k_back] = back.shape(samples, outputs);
        // The kernels are ordered by input channel: [C, R S M].
        let dims = [1, channels, r * s, outputs];
        let by_channel = View { tensor: weight, offset: 0, dims, strides: [0, 1, channels, k] };
        let turned = b.copy(by_channel, &[channels, k_back]);
        let kernels = rows(turned, channels, k_back);
        let dx = b.product(ProductClass::ConvDx, taken_back, kernels, &[samples, height, width, channels]);
        let of_x = patches(b, version, x, geometry, true);
        let dw =
            b.product(ProductClass::ConvDw, columns(dy, count, outputs), of_x, &[outputs, r, s, channels]);
        vec![(x, dx), (weight, dw)]
    });
    Ok(y)
}

/// The mean over the pixels of each channel: x [B, H, W, C] -> [B, C], the tree sum divided by H W.
pub(crate) fn mean_pool(b: &mut Builder, x: TensorId) -> TensorId {
    let [samples, height, width, channels] = b.shape(x)[..] else { panic!("pooling takes [B, H, W, C]") };
    mean_of_rows(b, x, [samples, height * width, channels])
}

/// The means of samples of so many rows, [B, C], of x whose last dimension is C.
pub(super) fn mean_of_rows(b: &mut Builder, x: TensorId, [samples, pixels, channels]: [u32; 3]) -> TensorId {
    let shape_x = b.shape(x);
    let mean = move || {
        Body::new("mean_pool.v1", |w| {
            let (sum, count) = (w.input(0), w.f(pixels as f32));
            w.div(sum, count)
        })
    };
    let shape = [samples, channels];
    let sum = b.tree_sum(x, [samples, pixels, channels], &shape);
    let y = b.map(mean(), &[sum], &shape);
    b.differentiable(y, move |b, dy| {
        let dims = [1, samples, pixels, channels];
        let each = View { tensor: dy, offset: 0, dims, strides: [0, channels, 0, 1] };
        let dx = b.map_views(mean(), dims, vec![each], DType::F32, &shape_x);
        vec![(x, dx)]
    });
    y
}

//! Operators that networks over images have beside conv2d.
//!
//! grouped_conv2d.v1 is a convolution whose channels are in groups that do not see each other, as one product over groups
//! (Krizhevsky et al., 2012). Biases follow convolutions without a normalisation. A flattening leads to linear layers.

use super::convolution::{ConvVersion, PATCHES_MAX, conv2d};
use super::operand::im2col;
use crate::program::builder::Builder;
use crate::program::expr::BodyWriter;
use crate::program::graph::{TensorId, View};
use crate::program::im2col::ConvGeometry;
use crate::program::products::ProductClass;

/// x [.., C] + bias [C]. The gradient of the bias is the sum of dy over rows.
pub fn add_bias(b: &mut Builder, x: TensorId, bias: TensorId) -> TensorId {
    let y = b.zip("add.v1", x, bias, BodyWriter::add);
    b.differentiable(y, move |b, dy| vec![(x, dy), (bias, b.sum_leading(dy))]);
    y
}

/// x [B, H, W, C] -> [B, C H W]: the numbers of a sample in a row, the pixels of a channel together, as PyTorch orders them.
pub fn flatten(b: &mut Builder, x: TensorId) -> TensorId {
    let [samples, height, width, channels] = b.shape(x)[..] else { panic!("flattened are [B, H, W, C]") };
    let (pixels, shape) = (height * width, [samples, height, width, channels]);
    let dims = [1, samples, channels, pixels];
    let turned = View { tensor: x, offset: 0, dims, strides: [0, pixels * channels, 1, channels] };
    let y = b.copy(turned, &[samples, channels * pixels]);
    b.differentiable(y, move |b, dy| {
        let back = View {
            tensor: dy,
            offset: 0,
            dims: [1, samples, pixels, channels],
            strides: [0, pixels * channels, 1, pixels],
        };
        vec![(x, b.copy(back, &shape))]
    });
    y
}

/// `tensor` [samples, pixels, groups, channels] to [groups, samples, pixels, channels], of this shape.
fn groups_first(b: &mut Builder, tensor: TensorId, dims: [u32; 4], shape: &[u32]) -> TensorId {
    let [samples, pixels, groups, channels] = dims;
    let row = groups * channels;
    let strides = [channels, pixels * row, row, 1];
    b.copy(View { tensor, offset: 0, dims: [groups, samples, pixels, channels], strides }, shape)
}

/// `tensor` [groups, rows, channels] to [rows, groups, channels], of this shape.
fn groups_last(b: &mut Builder, tensor: TensorId, dims: [u32; 3], shape: &[u32]) -> TensorId {
    let [groups, rows, channels] = dims;
    let dims = [1, rows, groups, channels];
    b.copy(View { tensor, offset: 0, dims, strides: [0, channels, rows * channels, 1] }, shape)
}

/// `tensor` [groups, rows, k] as a product's operand.
fn rows(tensor: TensorId, [groups, rows, k]: [u32; 3]) -> View {
    View { tensor, offset: 0, dims: [1, groups, rows, k], strides: [0, rows * k, k, 1] }
}

/// `tensor` [groups, k, rows] as a product's operand of [groups, rows, k].
fn columns(tensor: TensorId, [groups, k, rows]: [u32; 3]) -> View {
    View { tensor, offset: 0, dims: [1, groups, rows, k], strides: [0, rows * k, 1, rows] }
}

/// x [B, H, W, C], weight [M, R, S, C / G] -> [B, P, Q, M]. The output channels g M / G to (g + 1) M / G - 1 are [`conv2d`] of
/// the input channels g C / G to (g + 1) C / G - 1 alone. With one group it is conv2d.
///
/// # Errors
/// If `groups` does not divide C and M, the weight has other channels, a kernel does not fit in an image, or the patches have too many elements.
pub fn grouped_conv2d(
    b: &mut Builder,
    x: TensorId,
    weight: TensorId,
    groups: u32,
    stride: u32,
    padding: u32,
) -> Result<TensorId, String> {
    let [samples, height, width, inputs] = b.shape(x)[..] else { panic!("a convolution takes [B, H, W, C]") };
    let [outputs, r, s, channels] = b.shape(weight)[..] else { panic!("kernels are [M, R, S, C / G]") };
    let divides = groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups);
    if !divides || channels != inputs / groups {
        return Err(format!(
            "the groups ({groups}) must divide C = {inputs} and M = {outputs}, and a kernel has C / groups channels, not {channels}"
        ));
    }
    if groups == 1 {
        return conv2d(b, x, weight, ConvVersion::V1, stride, padding);
    }
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
    let most = elements(geometry.size, inputs).max(elements([height, width], outputs));
    if most > PATCHES_MAX {
        return Err(format!("the patches of a convolution have {most} elements, more than {PATCHES_MAX}"));
    }
    let [down, across] = geometry.size;
    let (count, k, made) = (samples * down * across, r * s * channels, outputs / groups);
    let images = groups_first(
        b,
        x,
        [samples, height * width, groups, channels],
        &[groups * samples, height, width, channels],
    );
    let patches = im2col(b, images, geometry);
    let (a, kernels) = (rows(patches, [groups, count, k]), rows(weight, [groups, made, k]));
    let by_group = b.product(ProductClass::Conv, a, kernels, &[groups, count, made]);
    let y = groups_last(b, by_group, [groups, count, made], &[samples, down, across, outputs]);
    b.differentiable(y, move |b, dy| {
        let dims = [samples, down * across, groups, made];
        let dy = groups_first(b, dy, dims, &[groups * samples, down, across, made]);
        let back = geometry.transposed([height, width]);
        let taken_back = im2col(b, dy, back);
        let (pixels, k_back) = (samples * height * width, r * s * made);
        // The kernels of each group are ordered by input channel: [G, C / G, R S M / G].
        let dims = [groups, channels, r * s, made];
        let by_channel = View { tensor: weight, offset: 0, dims, strides: [made * k, 1, channels, k] };
        let turned = b.copy(by_channel, &[groups, channels, k_back]);
        let (a, kernels) =
            (rows(taken_back, [groups, pixels, k_back]), rows(turned, [groups, channels, k_back]));
        let dx = b.product(ProductClass::ConvDx, a, kernels, &[groups, pixels, channels]);
        let dx = groups_last(b, dx, [groups, pixels, channels], &[samples, height, width, inputs]);
        let (a, of_x) = (columns(dy, [groups, count, made]), columns(patches, [groups, count, k]));
        let dw = b.product(ProductClass::ConvDw, a, of_x, &[outputs, r, s, channels]);
        vec![(x, dx), (weight, dw)]
    });
    Ok(y)
}

//! class_token.v1, first_position.v1, last_position.v1, the means of positions, the exchange of positions and channels, and
//! positions as pixels: rows that are put before the positions of each sample, or made of them.

use super::convolution::mean_of_rows;
use super::operand::im2col;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::im2col::ConvGeometry;

/// The bound of a sample's rows and of its channels: the greatest sizes of a convolution's image.
const SIZE_MAX: u32 = 1 << 15;

/// The rows of a sample, and its channels, of x [.., C].
///
/// # Errors
/// If `samples` does not divide the rows.
fn cut(b: &Builder, x: TensorId, samples: u32) -> Result<[u32; 2], String> {
    let shape = b.shape(x);
    let channels = shape[shape.len() - 1];
    let rows = shape[..shape.len() - 1].iter().product::<u32>();
    if samples == 0 || !rows.is_multiple_of(samples) {
        return Err(format!("the samples ({samples}) must divide the rows, {rows}"));
    }
    Ok([rows / samples, channels])
}

/// x [.., C] of B samples of T rows, token [C] -> [B (T + 1), C]: the token, then the sample's rows. The token's gradient adds over
/// samples by the tree.
///
/// # Errors
/// If the samples do not divide the rows, or a size is too large.
pub(crate) fn class_token(
    b: &mut Builder,
    x: TensorId,
    token: TensorId,
    samples: u32,
) -> Result<TensorId, String> {
    let [rows, channels] = cut(b, x, samples)?;
    if rows.max(channels) >= SIZE_MAX - 1 {
        return Err(format!(
            "a sample has {rows} rows of {channels} channels; each is at most {}",
            SIZE_MAX - 2
        ));
    }
    let elements = [samples, rows + 1, channels + 1].iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
    if elements >= 1 << 31 {
        return Err(format!("a tensor has {elements} elements, and at most 2^31 - 1 are possible"));
    }
    let (shape_x, after) = (b.shape(x), rows + 1);
    let dims = [1, samples, after, channels];
    // A sample is an image of one channel, whose padding moves it down by a row and by a column to the right.
    let flat = b.reshaped(x, &[samples, rows, channels, 1]);
    let image = b.copy(flat, &[samples, rows, channels, 1]);
    let geometry = ConvGeometry {
        size: [after, channels + 1],
        kernel: [1, 1],
        stride: 1,
        padding: 1,
        transposed: false,
    };
    let (moved, wide) = (im2col(b, image, geometry), channels + 1);
    let body = Body::new("class_token.v1", |w| {
        let (token, x, row, zero) = (w.input(0), w.input(1), w.index(2), w.word(0));
        let is_first = w.ueq(row, zero);
        w.select(is_first, token, x)
    });
    let views = vec![
        View { tensor: token, offset: 0, dims, strides: [0, 0, 0, 1] },
        View { tensor: moved, offset: 1, dims, strides: [0, after * wide, wide, 1] },
    ];
    let y = b.map_views(body, dims, views, DType::F32, &[samples * after, channels]);
    b.differentiable(y, move |b, dy| {
        let strides = [0, after * channels, channels, 1];
        let dx = View { tensor: dy, offset: channels, dims: [1, samples, rows, channels], strides };
        let dx = b.copy(dx, &shape_x);
        let firsts = b.copy(firsts(dy, [samples, after, channels]), &[samples, channels]);
        vec![(x, dx), (token, b.tree_sum(firsts, [1, samples, channels], &[channels]))]
    });
    Ok(y)
}

/// The first row of each sample of a tensor [samples, rows, channels].
fn firsts(tensor: TensorId, [samples, rows, channels]: [u32; 3]) -> View {
    View { tensor, offset: 0, dims: [1, 1, samples, channels], strides: [0, 0, rows * channels, 1] }
}

/// x [N, C] of B samples -> [B, C]: the first row of each sample.
///
/// # Errors
/// If the samples do not divide the rows.
pub(crate) fn first_position(b: &mut Builder, x: TensorId, samples: u32) -> Result<TensorId, String> {
    let [rows, channels] = cut(b, x, samples)?;
    let y = b.copy(firsts(x, [samples, rows, channels]), &[samples, channels]);
    b.differentiable(y, move |b, dy| {
        let dims = [1, samples, rows, channels];
        let body = Body::new("first_position_backward.v1", |w| {
            let (dy, row, first, zero) = (w.input(0), w.index(2), w.word(0), w.f(0.0));
            let is_first = w.ueq(row, first);
            w.select(is_first, dy, zero)
        });
        let view = View { tensor: dy, offset: 0, dims, strides: [0, channels, 0, 1] };
        vec![(x, b.map_views(body, dims, vec![view], DType::F32, &[samples * rows, channels]))]
    });
    Ok(y)
}

/// x [N, C] of B samples -> [B, C]: the last row of each sample.
///
/// # Errors
/// If the samples do not divide the rows.
pub(crate) fn last_position(b: &mut Builder, x: TensorId, samples: u32) -> Result<TensorId, String> {
    let [rows, channels] = cut(b, x, samples)?;
    let strides = [0, 0, rows * channels, 1];
    let offset = (rows - 1) * channels;
    let lasts = View { tensor: x, offset, dims: [1, 1, samples, channels], strides };
    let y = b.copy(lasts, &[samples, channels]);
    b.differentiable(y, move |b, dy| {
        let dims = [1, samples, rows, channels];
        let body = Body::new("last_position_backward.v1", |w| {
            let (dy, row, last, zero) = (w.input(0), w.index(2), w.word(rows - 1), w.f(0.0));
            let is_last = w.ueq(row, last);
            w.select(is_last, dy, zero)
        });
        let view = View { tensor: dy, offset: 0, dims, strides: [0, channels, 0, 1] };
        vec![(x, b.map_views(body, dims, vec![view], DType::F32, &[samples * rows, channels]))]
    });
    Ok(y)
}

/// x [N, C] of B samples -> [B, C]: the mean of each sample's rows.
///
/// # Errors
/// If the samples do not divide the rows.
pub(crate) fn mean_positions(b: &mut Builder, x: TensorId, samples: u32) -> Result<TensorId, String> {
    let [rows, channels] = cut(b, x, samples)?;
    Ok(mean_of_rows(b, x, [samples, rows, channels]))
}

/// x [N, C] of B samples of T rows -> [B C, T]: row b C + c is channel c of sample b, at all of its positions.
///
/// # Errors
/// If the samples do not divide the rows.
pub(crate) fn exchange(b: &mut Builder, x: TensorId, samples: u32) -> Result<TensorId, String> {
    let [rows, channels] = cut(b, x, samples)?;
    let y = exchanged(b, x, [samples, rows, channels]);
    b.differentiable(y, move |b, dy| vec![(x, exchanged(b, dy, [samples, channels, rows]))]);
    Ok(y)
}

/// A tensor [samples, rows, columns] copied to [samples columns, rows].
fn exchanged(b: &mut Builder, tensor: TensorId, [samples, rows, columns]: [u32; 3]) -> TensorId {
    let dims = [1, samples, columns, rows];
    let view = View { tensor, offset: 0, dims, strides: [0, rows * columns, 1, columns] };
    b.copy(view, &[samples * columns, rows])
}

/// x [N, C] of B samples -> [B, H, W, C]: the positions of a sample as pixels, row by row.
///
/// # Errors
/// If a sample has not H W rows.
pub(crate) fn as_image(
    b: &mut Builder,
    x: TensorId,
    samples: u32,
    [height, width]: [u32; 2],
) -> Result<TensorId, String> {
    let [rows, channels] = cut(b, x, samples)?;
    if u64::from(height) * u64::from(width) != u64::from(rows) {
        return Err(format!("a sample has {rows} rows, which are not {height} times {width} pixels"));
    }
    let (shape_x, shape) = (b.shape(x), [samples, height, width, channels]);
    let y = b.copy(b.reshaped(x, &shape), &shape);
    b.differentiable(y, move |b, dy| vec![(x, b.copy(b.reshaped(dy, &shape_x), &shape_x))]);
    Ok(y)
}

/// x [*] of B samples as rows [N, K] of its elements in their order.
///
/// # Errors
/// If a sample has no whole number of such rows.
pub(crate) fn rows_of(b: &mut Builder, x: TensorId, samples: u32, channels: u32) -> Result<TensorId, String> {
    let shape = b.shape(x);
    let elements = shape.iter().product::<u32>();
    let each = elements / samples.max(1);
    if channels == 0 || !each.is_multiple_of(channels) || each * samples != elements {
        return Err(format!("{elements} elements of {samples} samples are no rows of {channels} channels"));
    }
    let rows = [elements / channels, channels];
    let y = b.copy(b.reshaped(x, &rows), &rows);
    b.differentiable(y, move |b, dy| vec![(x, b.copy(b.reshaped(dy, &shape), &shape))]);
    Ok(y)
}

/// x [.., C] as rows [N, C] of its last dimension.
pub(crate) fn rows(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let (channels, leading) = shape.split_last().expect("tensors have rank 1 or more");
    let flat = [leading.iter().product(), *channels];
    let y = b.copy(b.reshaped(x, &flat), &flat);
    b.differentiable(y, move |b, dy| vec![(x, b.copy(b.reshaped(dy, &shape), &shape))]);
    y
}

//! max_pool.v1, avg_pool.v1 and adaptive_avg_pool.v1, over the pixels of each channel: x [B, H, W, C] -> [B, P, Q, C].

use super::convolution::PATCHES_MAX;
use super::operand::im2col;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::{TensorId, View};
use crate::program::im2col::ConvGeometry;

/// The windows of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Pixels of a window, down and across.
    pub kernel: u32,
    /// Pixels from one window to the next.
    pub stride: u32,
    /// Rows and columns of padding around each image; at most half of `kernel`.
    pub padding: u32,
}

impl Window {
    /// The positions of the windows on images like x.
    fn geometry(self, b: &Builder, x: TensorId) -> Result<ConvGeometry, String> {
        let [samples, height, width, channels] = b.shape(x)[..] else { panic!("pooling takes [B, H, W, C]") };
        let Window { kernel, stride, padding } = self;
        if kernel == 0 || padding > kernel / 2 {
            return Err(format!(
                "a window has at least one pixel, and padding is at most half of it: {self:?}"
            ));
        }
        let geometry = ConvGeometry::of_image([height, width], [kernel; 2], stride, padding)
            .ok_or_else(|| {
                format!(
                    "a window of {kernel} pixels with stride {stride} does not fit images of {height} x {width} with padding {padding}"
                )
            })?;
        let elements = |places: [u32; 2]| {
            let sizes = [samples, places[0], places[1], kernel, kernel, channels];
            sizes.iter().fold(1u64, |product, &n| product.saturating_mul(u64::from(n)))
        };
        let most = elements(geometry.size).max(elements([height, width]));
        if most > PATCHES_MAX {
            return Err(format!("the windows of a pool have {most} places, more than {PATCHES_MAX}"));
        }
        Ok(geometry)
    }
}

/// The rank that a window gives to the tap `tap` if that tap's pixel is the greatest. Earlier taps rank higher.
fn rank(w: &mut BodyWriter, tap: u8, taps: u32) -> Reg {
    let (tap, taps) = (w.index(tap), w.f(taps as f32));
    let tap = w.from_u(tap);
    w.sub(taps, tap)
}

/// The greatest pixel of each window, by the order of row_max.v1. The gradient goes to the first pixel of the window, in row-major order, that is not
/// less than the maximum.
///
/// # Errors
/// If windows do not fit, or have too many elements.
pub fn max_pool(b: &mut Builder, x: TensorId, window: Window) -> Result<TensorId, String> {
    let geometry = window.geometry(b, x)?;
    let [samples, height, width, channels] = b.shape(x)[..] else { panic!("pooling takes [B, H, W, C]") };
    let ([down, across], taps) = (geometry.size, window.kernel * window.kernel);
    let (places, shape) = (down * across, [samples, down, across, channels]);
    // 1 where an element of a window is a pixel, and 0 where it is padding, for every sample and channel.
    let one = Body::new("max_pool_one.v1", |w| w.f(1.0));
    let ones = b.map_views(one, [1, 1, height, width], Vec::new(), DType::F32, &[1, height, width, 1]);
    let pixels = im2col(b, ones, geometry);
    let patches = im2col(b, x, geometry);
    // The windows' taps become the last dimension.
    let (dims, by_tap) = ([samples, places, channels, taps], [samples * places, channels, taps]);
    let row = taps * channels;
    let taken = View { tensor: patches, offset: 0, dims, strides: [places * row, row, 1, channels] };
    let is_pixel = View { tensor: pixels, offset: 0, dims, strides: [0, taps, 0, 1] };
    let body = Body::new("max_pool.v1", |w| {
        let (x, is_pixel, padding) = (w.input(0), w.input(1), w.f(f32::NEG_INFINITY));
        w.select(is_pixel, x, padding)
    });
    let window_values = b.map_views(body, dims, vec![taken, is_pixel.clone()], DType::F32, &by_tap);
    let greatest = b.max_last(window_values);
    let y = b.copy(b.whole(greatest), &shape);
    b.differentiable(y, move |b, dy| {
        let body = Body::new("max_pool_rank.v1", |w| {
            let (x, greatest, is_pixel, zero) = (w.input(0), w.input(1), w.input(2), w.f(0.0));
            let rank = rank(w, 3, taps);
            let less = w.lt(x, greatest);
            let rank = w.select(less, zero, rank);
            w.select(is_pixel, rank, zero)
        });
        let values = View {
            tensor: window_values,
            offset: 0,
            dims,
            strides: [places * channels * taps, channels * taps, taps, 1],
        };
        let of_window =
            View { tensor: greatest, offset: 0, dims, strides: [places * channels, channels, 1, 0] };
        let ranks = b.map_views(body, dims, vec![values, of_window, is_pixel], DType::F32, &by_tap);
        let first = b.max_last(ranks);
        let first = b.copy(b.whole(first), &shape);
        // Every pixel checks each window that contains it: did the window choose the pixel's tap?
        let back = geometry.transposed([height, width]);
        let (windows_dy, windows_first) = (im2col(b, dy, back), im2col(b, first, back));
        let body = Body::new("max_pool_backward.v1", |w| {
            let (dy, first, zero) = (w.input(0), w.input(1), w.f(0.0));
            let rank = rank(w, 2, taps);
            let chosen = w.ueq(rank, first);
            w.select(chosen, dy, zero)
        });
        let pixels = samples * height * width;
        let dims = [1, pixels, taps, channels];
        let views = [windows_dy, windows_first].map(|tensor| View {
            tensor,
            offset: 0,
            dims,
            strides: [0, row, channels, 1],
        });
        let parts = b.map_views(body, dims, views.to_vec(), DType::F32, &dims[1..]);
        vec![(x, b.tree_sum(parts, [pixels, taps, channels], &[samples, height, width, channels]))]
    });
    Ok(y)
}

/// The mean of each window, padding counted as zeros: the tree sum over its elements in row-major order, divided by their number.
///
/// # Errors
/// If windows do not fit, or have too many elements.
pub fn avg_pool(b: &mut Builder, x: TensorId, window: Window) -> Result<TensorId, String> {
    let geometry = window.geometry(b, x)?;
    let [samples, height, width, channels] = b.shape(x)[..] else { panic!("pooling takes [B, H, W, C]") };
    let ([down, across], taps) = (geometry.size, window.kernel * window.kernel);
    let shape = [samples, down, across, channels];
    let mean = move || {
        Body::new("avg_pool.v1", |w| {
            let (sum, count) = (w.input(0), w.f(taps as f32));
            w.div(sum, count)
        })
    };
    let patches = im2col(b, x, geometry);
    let sum = b.tree_sum(patches, [samples * down * across, taps, channels], &shape);
    let y = b.map(mean(), &[sum], &shape);
    b.differentiable(y, move |b, dy| {
        let each = b.map(mean(), &[dy], &shape);
        let parts = im2col(b, each, geometry.transposed([height, width]));
        let dims = [samples * height * width, taps, channels];
        vec![(x, b.tree_sum(parts, dims, &[samples, height, width, channels]))]
    });
    Ok(y)
}

/// The greatest size of an adaptive pool's output, so that no product of sizes wraps around.
const ADAPTIVE_MAX: u32 = 1 << 15;

/// The means of `size` = [P, Q] windows that cover the image. The rows of window p are floor(p H / P) to ceil((p + 1) H / P) - 1,
/// and columns follow the same rule. Rows are averaged first, then columns; each mean is the tree sum over the whole axis, with
/// +0 outside of the window, divided by the window's length.
///
/// # Errors
/// If a size is 0 or too large, or an intermediate tensor is.
pub(crate) fn adaptive_avg_pool(b: &mut Builder, x: TensorId, size: [u32; 2]) -> Result<TensorId, String> {
    let [samples, height, width, channels] = b.shape(x)[..] else { panic!("pooling takes [B, H, W, C]") };
    let [down, across] = size;
    if [height, width, down, across].iter().any(|n| !(1..=ADAPTIVE_MAX).contains(n)) {
        return Err(format!(
            "an adaptive pool makes {down} x {across} pixels of {height} x {width}; 1 to {ADAPTIVE_MAX} are possible"
        ));
    }
    let elements = |sizes: [u32; 5]| sizes.iter().fold(1u64, |n, &by| n.saturating_mul(u64::from(by)));
    let rows = elements([samples, down, height, width, channels]);
    let most = rows.max(elements([samples, down, across, width, channels]));
    if most > PATCHES_MAX {
        return Err(format!("an adaptive pool looks at {most} places, more than {PATCHES_MAX}"));
    }
    let rows =
        window_means(b, x, [samples, height, width * channels], down, &[samples, down, width, channels]);
    let columns = [samples * down, width, channels];
    Ok(window_means(b, rows, columns, across, &[samples, down, across, channels]))
}

/// 1 if index `at` of `len` is in window `window` of `windows`, else 0: floor(window len / windows) <= at < ceil((window + 1) len
/// / windows).
fn is_in_window(w: &mut BodyWriter, [window, at]: [Reg; 2], windows: u32, len: u32) -> Reg {
    let (windows, len, one) = (w.word(windows), w.word(len), w.word(1));
    let (next, after) = (w.uadd(window, one), w.uadd(at, one));
    let (start, behind) = (w.umul(window, len), w.umul(after, windows));
    let (place, end) = (w.umul(at, windows), w.umul(next, len));
    let (begun, not_over) = (w.ult(start, behind), w.ult(place, end));
    w.uand(begun, not_over)
}

/// x [outer, len, inner] -> [outer, windows, inner]: the mean of each window of the middle dimension. The output gets `shape`.
fn window_means(b: &mut Builder, x: TensorId, dims: [u32; 3], windows: u32, shape: &[u32]) -> TensorId {
    let [outer, len, inner] = dims;
    let shape_x = b.shape(x);
    let one = Body::new("window_one.v1", |w| {
        let places = [w.index(2), w.index(3)];
        let hit = is_in_window(w, places, windows, len);
        let (one, zero) = (w.f(1.0), w.f(0.0));
        w.select(hit, one, zero)
    });
    let ones = b.map_views(one, [1, 1, windows, len], Vec::new(), DType::F32, &[windows, len]);
    let count = b.sum_last(ones);
    let place = Body::new("window_place.v1", |w| {
        let (x, places) = (w.input(0), [w.index(1), w.index(2)]);
        let hit = is_in_window(w, places, windows, len);
        let zero = w.f(0.0);
        w.select(hit, x, zero)
    });
    let wide = [outer, windows, len, inner];
    let each = View { tensor: x, offset: 0, dims: wide, strides: [len * inner, 0, inner, 1] };
    let places = b.map_views(place, wide, vec![each], DType::F32, &wide);
    let sum = b.tree_sum(places, [outer * windows, len, inner], shape);
    let means = move |b: &mut Builder, sum: TensorId, shape: &[u32]| {
        let dims = [1, outer, windows, inner];
        let body = Body::new("window_mean.v1", |w| {
            let (sum, count) = (w.input(0), w.input(1));
            w.div(sum, count)
        });
        let sum = View { tensor: sum, offset: 0, dims, strides: [0, windows * inner, inner, 1] };
        let count = View { tensor: count, offset: 0, dims, strides: [0, 0, 1, 0] };
        b.map_views(body, dims, vec![sum, count], DType::F32, shape)
    };
    let y = means(b, sum, shape);
    let shape = shape.to_vec();
    b.differentiable(y, move |b, dy| {
        let share = means(b, dy, &shape);
        let body = Body::new("window_place_backward.v1", |w| {
            let (dy, places) = (w.input(0), [w.index(2), w.index(1)]);
            let hit = is_in_window(w, places, windows, len);
            let zero = w.f(0.0);
            w.select(hit, dy, zero)
        });
        let wide = [outer, len, windows, inner];
        let each = View { tensor: share, offset: 0, dims: wide, strides: [windows * inner, 0, inner, 1] };
        let parts = b.map_views(body, wide, vec![each], DType::F32, &wide);
        vec![(x, b.tree_sum(parts, [outer * len, windows, inner], &shape_x))]
    });
    y
}

//! Elements that are taken out along an axis, and elements that are put between zeros: copies, which round nothing. Each is the
//! gradient of the other.

use super::operand::im2col;
use crate::program::builder::Builder;
use crate::program::graph::{TensorId, View};
use crate::program::im2col::ConvGeometry;

/// The bound of the sizes of a convolution's image.
const SIZE_MAX: u64 = 1 << 15;
/// The bound of a tensor's elements.
const ELEMENTS_MAX: u64 = 1 << 31;
/// How many numbers of images are tried.
const TRIED: u64 = 1 << 12;

/// The numbers of elements along an axis: `first`, `first + step`, and so on. `count` is the result's length along the axis.
#[derive(Clone, Copy)]
pub(crate) struct Progression {
    pub first: u32,
    pub step: u32,
    pub count: u32,
}

impl Progression {
    /// An error if `taken` elements leave an axis of `len`.
    fn fit(self, taken: u32, len: u32) -> Result<(), String> {
        let last = u64::from(self.first) + u64::from(self.step) * u64::from(taken.saturating_sub(1));
        if self.step > 0 && self.count > 0 && last < u64::from(len) {
            return Ok(());
        }
        Err(format!(
            "first ({}) and step ({}) lead to number {last}, and there are {len}",
            self.first, self.step
        ))
    }
}

/// What the places are numbers of.
#[derive(Clone, Copy)]
pub(crate) enum Axis {
    /// The channels of x [.., C].
    Channels,
    /// The positions of each of so many samples of x [N, C].
    Positions(u32),
    /// The rows of x [N, C].
    Rows,
}

impl Axis {
    /// x as [outer, length of the axis, inner].
    fn dims(self, b: &Builder, x: TensorId) -> Result<[u32; 3], String> {
        let shape = b.shape(x);
        let (&channels, leading) = shape.split_last().expect("tensors have rank 1 or more");
        let rows = leading.iter().product::<u32>();
        match self {
            Axis::Channels => Ok([rows, channels, 1]),
            Axis::Rows => Ok([1, rows, channels]),
            Axis::Positions(samples) if samples > 0 && rows.is_multiple_of(samples) => {
                Ok([samples, rows / samples, channels])
            }
            Axis::Positions(samples) => Err(format!("the samples ({samples}) must divide the rows, {rows}")),
        }
    }

    /// The shape of x with `count` elements along the axis.
    fn shape(self, b: &Builder, x: TensorId, count: u32) -> Vec<u32> {
        let mut shape = b.shape(x);
        let last = shape.len() - 1;
        match self {
            Axis::Channels => shape[last] = count,
            Axis::Rows => shape[0] = count,
            Axis::Positions(samples) => shape[0] = samples * count,
        }
        shape
    }
}

/// `count` elements of an axis: number i of the result is number first + i step of x.
///
/// # Errors
/// If there are too few elements, or a size is too large.
pub(crate) fn slice(
    b: &mut Builder,
    x: TensorId,
    axis: Axis,
    places: Progression,
) -> Result<TensorId, String> {
    let [outer, len, inner] = axis.dims(b, x)?;
    let (count, shape_x) = (places.count, b.shape(x));
    places.fit(count, len)?;
    // The gradient has zeros between the elements.
    let back = Progression { count: len, ..places };
    let padded = Padded::new([outer, count, inner], back)?;
    let shape = axis.shape(b, x, count);
    let y = sliced(b, x, [outer, len, inner], places, &shape);
    b.differentiable(y, move |b, dy| vec![(x, padded.placed(b, dy, &shape_x))]);
    Ok(y)
}

/// `count` elements along an axis: number i of x at first + i step, and +0 elsewhere.
///
/// # Errors
/// If there is too little place, or a size is too large.
pub(crate) fn place(
    b: &mut Builder,
    x: TensorId,
    axis: Axis,
    places: Progression,
) -> Result<TensorId, String> {
    let [outer, len, inner] = axis.dims(b, x)?;
    let (count, shape_x) = (places.count, b.shape(x));
    places.fit(len, count)?;
    let padded = Padded::new([outer, len, inner], places)?;
    let shape = axis.shape(b, x, count);
    let y = padded.placed(b, x, &shape);
    let back = Progression { count: len, ..places };
    b.differentiable(y, move |b, dy| vec![(x, sliced(b, dy, [outer, count, inner], back, &shape_x))]);
    Ok(y)
}

fn sliced(
    b: &mut Builder,
    tensor: TensorId,
    [outer, len, inner]: [u32; 3],
    places: Progression,
    shape: &[u32],
) -> TensorId {
    let dims = [1, outer, places.count, inner];
    // One element needs no step, which could reach beyond a word.
    let step = if places.count > 1 { places.step * inner } else { 0 };
    let view = View { tensor, offset: places.first * inner, dims, strides: [0, len * inner, step, 1] };
    b.copy(view, shape)
}

/// How elements get zeros around them: as rows of images with padding of one, which have so many zeros behind them that a view may
/// begin before a row.
#[derive(Clone, Copy)]
struct Padded {
    dims: [u32; 3],
    places: Progression,
    /// The images, and the rows of each, which are `outer` together.
    images: [u32; 2],
    /// Elements of a row with a zero after each `step - 1`.
    wide: u32,
    /// Elements of a row with all of its zeros.
    columns: u32,
}

impl Padded {
    /// # Errors
    /// If a size is too large.
    fn new(dims: [u32; 3], mut places: Progression) -> Result<Padded, String> {
        let [outer, len, inner] = dims.map(u64::from);
        if len == 1 {
            places.step = 1;
        }
        let [first, step, count] = [places.first, places.step, places.count].map(u64::from);
        let wide = len * step;
        let columns = (wide + first).max(count - first + 1);
        let least = outer.div_ceil(SIZE_MAX - 2);
        let images = (least..least + TRIED).find(|&n| outer.is_multiple_of(n)).unwrap_or(outer);
        let rows = outer / images;
        let elements =
            [images, rows + 1, columns, inner].iter().fold(1u64, |all, &size| all.saturating_mul(size));
        if columns >= SIZE_MAX || rows + 1 >= SIZE_MAX || elements >= ELEMENTS_MAX {
            return Err(format!(
                "{outer} times {columns} places of {inner} elements are too many: there are at most {} places and 2^31 - 1 elements",
                SIZE_MAX - 1
            ));
        }
        let word = |size: u64| size as u32; // each is below 2^31
        Ok(Padded {
            dims,
            places,
            images: [images, rows].map(word),
            wide: word(wide),
            columns: word(columns),
        })
    }

    fn placed(self, b: &mut Builder, x: TensorId, shape: &[u32]) -> TensorId {
        let Padded { dims: [outer, len, inner], places, images: [images, rows], wide, columns } = self;
        let geometry =
            |size, padding| ConvGeometry { size, kernel: [1, 1], stride: 1, padding, transposed: false };
        let mut spread = x;
        if places.step > 1 {
            // Each element is an image of one pixel: pixels behind it are zeros.
            let pixel = [outer * len, 1, 1, inner];
            let image = b.copy(b.reshaped(x, &pixel), &pixel);
            spread = im2col(b, image, geometry([1, places.step], 0));
        }
        let image = [images, rows, wide, inner];
        let image = b.copy(b.reshaped(spread, &image), &image);
        let tensor = im2col(b, image, geometry([rows + 1, columns], 1));
        let row = columns * inner;
        let view = View {
            tensor,
            offset: (columns + 1 - places.first) * inner,
            dims: [images, rows, places.count, inner],
            strides: [(rows + 1) * row, row, inner, 1],
        };
        b.copy(view, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::DType;
    use crate::program::operators::evaluated::run;
    use crate::program::products::ProductTable;

    /// Numbers, a NaN, an infinity and a negative zero: a copy changes none of them.
    fn words(count: u32, seed: u32) -> Vec<u32> {
        let special = [f32::NAN, f32::INFINITY, -0.0, 1e-40].map(f32::to_bits);
        let word = |i: u32| match i.wrapping_mul(7).wrapping_add(seed) % 11 {
            n if n < 4 => special[n as usize],
            _ => ((i * 31 + seed) as f32).to_bits(),
        };
        (0..count).map(word).collect()
    }

    #[test]
    fn elements_keep_their_bits_and_their_gradients() {
        let samples = 3;
        let cases = [
            (Axis::Channels, &[2, 7][..], 7),
            (Axis::Channels, &[2, 3, 2, 5], 5),
            (Axis::Channels, &[6], 6),
            (Axis::Positions(samples), &[12, 2], 4),
            (Axis::Positions(samples), &[3, 5], 1),
            (Axis::Rows, &[5, 3], 5),
        ];
        for (axis, shape, len) in cases {
            let whole = shape.iter().product::<u32>();
            let inner = if matches!(axis, Axis::Channels) { 1 } else { shape[shape.len() - 1] };
            let outer = whole / len / inner;
            for (is_slice, first, step, count) in (0..2).flat_map(|is_slice| {
                let numbers = move |first| {
                    (1..5).flat_map(move |step| (1..20).map(move |count| (is_slice == 1, first, step, count)))
                };
                (0..5).flat_map(numbers)
            }) {
                let mut b = Builder::new(ProductTable::preset());
                let x = b.input("x", DType::F32, shape);
                let of = if is_slice { slice } else { place };
                let made = of(&mut b, x, axis, Progression { first, step, count });
                let (taken, of) = if is_slice { (count, len) } else { (len, count) };
                let fits = first + step * (taken - 1) < of;
                assert_eq!(made.is_ok(), fits, "{shape:?}, {first}, {step}, {count}");
                let Ok(y) = made else { continue };
                let dy = b.input("dy", DType::F32, &b.shape(y));
                let gradients = b.backward(y, dy);
                b.output("y", y);
                b.output("dx", gradients[&x]);
                let (from, to) = (words(whole, 3), words(outer * count * inner, 5));
                let graph = b.into_graph();
                let made = run(&graph, &[("x", &from), ("dy", &to)]);
                let [found, back] = ["y", "dx"].map(|name| made[name].clone());
                // Which element of the shorter tensor is which of the longer one.
                let pairs = (0..outer).flat_map(|o| (0..taken).map(move |i| (o, i))).flat_map(|(o, i)| {
                    let at = move |each, number| (((o * each) + number) * inner) as usize;
                    (0..inner as usize).map(move |c| (at(taken, i) + c, at(of, first + i * step) + c))
                });
                let short = |long: &[u32]| pairs.clone().map(|(_, place)| long[place]).collect::<Vec<_>>();
                let long = |short: &[u32]| {
                    let mut long = vec![0; (outer * of * inner) as usize];
                    pairs.clone().for_each(|(number, place)| long[place] = short[number]);
                    long
                };
                let due = if is_slice { [short(&from), long(&to)] } else { [long(&from), short(&to)] };
                assert_eq!([found, back], due, "{shape:?}, {is_slice}, {first}, {step}, {count}");
            }
        }
    }

    /// Rows of more places than a convolution's image has rows are several images. What is too large is refused before a tensor is made.
    #[test]
    fn sizes_are_bounded() {
        let progression = |first, step, count| Progression { first, step, count };
        for (rows, images) in [(1, 1), (32_766, 1), (32_767, 7), (100_352, 4), (100_003, 100_003)] {
            let padded = Padded::new([rows, 4, 1], progression(3, 2, 12)).unwrap();
            assert_eq!([images, rows / images], padded.images, "{rows}");
        }
        let wrong = |dims, numbers| Padded::new(dims, numbers).is_err();
        assert!(wrong([1, 4, 1], progression(0, 1, 32_767)) && !wrong([1, 4, 1], progression(0, 1, 32_766)));
        assert!(wrong([1, 2, 1], progression(0, 16_384, 16_385)));
        assert!(wrong([1 << 20, 4, 1 << 8], progression(0, 1, 8)));
        let mut b = Builder::new(ProductTable::preset());
        let x = b.input("x", DType::F32, &[7, 2]);
        let error = slice(&mut b, x, Axis::Positions(2), progression(0, 1, 1)).unwrap_err();
        assert_eq!(error, "the samples (2) must divide the rows, 7");
        let error = place(&mut b, x, Axis::Rows, progression(2, 3, 20)).unwrap_err();
        assert_eq!(error, "first (2) and step (3) lead to number 20, and there are 20");
    }
}

//! Resizes pictures by integers alone, so that every machine makes the same pixels.
//!
//! The largest rectangle of the wanted shape is cut from the middle, and each pixel of the result is the mean of the area that it
//! covers there. The cut has h x w pixels and the result H x W. Pixel (Y, X) covers the rows from Y h / H to (Y + 1) h / H, and
//! the columns in the same way. The sum of the pixels there, each times the covered fraction of its area, is divided by the whole
//! area and rounded to the nearest integer, a half upwards.

/// Rows and columns.
pub type Size = [u32; 2];

/// The pixels of one dimension that each pixel of the result covers: (first pixel, weights in units of 1 / the result's length).
fn covered(from: u32, first: u32, to: u32) -> Vec<(usize, Vec<u64>)> {
    let (from, to) = (u64::from(from), u64::from(to));
    let place = |place: u64| {
        let (begin, end) = (place * from, (place + 1) * from);
        let pixels = begin / to..end.div_ceil(to);
        let weights = pixels.clone().map(|pixel| end.min((pixel + 1) * to) - begin.max(pixel * to));
        ((u64::from(first) + pixels.start) as usize, weights.collect())
    };
    (0..to).map(place).collect()
}

/// The rectangle of the shape of `to` in the middle of a picture of size `of`: its first row and column, and its size.
fn middle([rows, columns]: Size, to: Size) -> (Size, Size) {
    let scaled = |a: u32, b: u32, c: u32| (u64::from(a) * u64::from(b) / u64::from(c)).max(1) as u32;
    let wide = u64::from(columns) * u64::from(to[0]) > u64::from(rows) * u64::from(to[1]);
    let size = match wide {
        true => [rows, scaled(rows, to[1], to[0])],
        false => [scaled(columns, to[0], to[1]), columns],
    };
    ([(rows - size[0]) / 2, (columns - size[1]) / 2], size)
}

/// One plane of a picture of size `of` as one of size `to`. All sizes are 1 to 2^16.
pub fn resized(plane: &[u8], of: Size, to: Size) -> Vec<u8> {
    let (first, size) = middle(of, to);
    let [rows, columns] = [0, 1].map(|i| covered(size[i], first[i], to[i]));
    let area = u64::from(size[0]) * u64::from(size[1]);
    let mut out = Vec::with_capacity(rows.len() * columns.len());
    for (row, row_weights) in &rows {
        for (column, column_weights) in &columns {
            let mut sum = 0;
            for (y, row_weight) in (*row..).zip(row_weights) {
                let pixels = &plane[y * of[1] as usize + column..];
                sum += row_weight
                    * pixels.iter().zip(column_weights).map(|(&p, w)| u64::from(p) * w).sum::<u64>();
            }
            out.push(((2 * sum + area) / (2 * area)) as u8);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_are_means_of_areas() {
        assert_eq!(resized(&[1, 2, 3, 4, 5, 6], [2, 3], [2, 3]), [1, 2, 3, 4, 5, 6]);
        // A half is rounded upwards: 2.5 and 4.5.
        assert_eq!(resized(&[1, 4, 4, 5].repeat(2), [2, 4], [1, 2]), [3, 5]);
        // Each half of three columns covers one and a half.
        assert_eq!(resized(&[0, 30, 90].repeat(3), [3, 3], [2, 2]), [10, 70, 10, 70]);
        assert_eq!(
            resized(&[10, 20], [2, 1], [4, 2]),
            [10; 4].iter().chain(&[20; 4]).copied().collect::<Vec<u8>>()
        );
    }

    #[test]
    fn the_middle_is_cut() {
        assert_eq!(middle([4, 10], [2, 2]), ([0, 3], [4, 4]));
        assert_eq!(middle([10, 5], [1, 1]), ([2, 0], [5, 5]));
        assert_eq!(middle([1, 1 << 16], [1 << 16, 1]), ([0, (1 << 15) - 1], [1, 1]));
    }
}

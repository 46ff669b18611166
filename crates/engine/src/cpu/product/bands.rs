//! The division of a product's work: bands of output rows, and pieces of integers.

/// The piece of an integer that one multiplication takes: `q = high * 2^shift + low`, with low in `-2^(shift-1)..2^(shift-1)`.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    Whole,
    Low(u32),
    High(u32),
}

impl Piece {
    pub(super) fn shift(self) -> u32 {
        if let Piece::High(shift) = self { shift } else { 0 }
    }

    #[inline(always)]
    pub(super) fn of(self, q: i32) -> i32 {
        match self {
            Piece::Whole => q,
            Piece::Low(shift) => q << (32 - shift) >> (32 - shift),
            Piece::High(shift) => (q - (q << (32 - shift) >> (32 - shift))) >> shift,
        }
    }
}

/// A band of output rows, which one task computes.
pub(super) struct Band<'o> {
    pub(super) block: usize,
    pub(super) batch: usize,
    /// The first row of the band.
    pub(super) row: usize,
    /// The output of the band, `[rows, N]`.
    pub(super) out: &'o mut [u32],
}

/// Cuts `[block, batch, m, n]` into bands of at most `height` rows.
pub(super) fn bands(out: &mut [u32], batches: usize, m: usize, n: usize, height: usize) -> Vec<Band<'_>> {
    let matrices = out.chunks_exact_mut(m * n).enumerate();
    matrices
        .flat_map(|(matrix, out)| {
            let (block, batch) = (matrix / batches, matrix % batches);
            let bands = out.chunks_mut(height * n).enumerate();
            bands.map(move |(band, out)| Band { block, batch, row: band * height, out })
        })
        .collect()
}

/// The height of a band: a multiple of `multiple`, which is a power of two. Every thread gets at least `bands` bands where there
/// are enough rows.
pub(super) fn band_height(bands: usize, matrices: usize, m: usize, multiple: usize, most: usize) -> usize {
    let rows_per_band = (matrices * m).div_ceil(bands * rayon::current_num_threads());
    rows_per_band.next_multiple_of(multiple).min(most).min(m.next_multiple_of(multiple))
}

//! Integer products by instructions that multiply short integers and add neighbouring products in lanes of 32 bits.
//!
//! An [`isa`] is the instructions of a processor, and a [`Form`] is a way to use them. The form defines the cut of integers in words: digits as [`bytes`], or [`halves`] of integers of three digits. The words of
//! b are [`packed`]. The words of a are packed too, except for patches, which are read in place from their [`images`].

#[cfg(target_arch = "aarch64")]
mod arm;
mod bytes;
mod form;
#[cfg(target_arch = "x86_64")]
mod halves;
mod images;
mod isa;
#[cfg(target_arch = "x86_64")]
pub(super) mod kept;
mod packed;
mod runs;
#[cfg(target_arch = "aarch64")]
mod squares;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use rayon::prelude::*;

use super::bands::{Band, band_height, bands};
use super::operand::Operand;
use super::scale_back::{Panel, Scale, fits_i64, product_bits};
use super::simd::Path;
#[cfg(target_arch = "aarch64")]
use arm::NeonDotprod;
use bytes::Bytes;
use form::Form;
#[cfg(target_arch = "x86_64")]
use halves::Halves;
use images::Images;
use isa::LANES;
use packed::{Panels, Rows};
use runs::{Runs, Words};
#[cfg(target_arch = "aarch64")]
use squares::Squares;
use tiebreak_contract::arith::digits::ProductPart;
#[cfg(target_arch = "x86_64")]
use x86::{Avx512, Avx512Vnni, AvxVnni};

/// Rows of a band: their packed words stay in the second-level cache while panels of b pass.
const BAND_ROWS: usize = 64;
/// Columns that a band of rows adds up together. Their sums stay in the second-level cache while words of K pass.
const GROUP_COLUMNS: usize = 512;
/// The K below which AVX-VNNI takes as long for products of three digits as binary64, or longer: packing has its share.
const SHORT: usize = 256;
/// The K from which sums of integers of four digits may leave their two words.
const WIDE: usize = 1 << 23;
/// The least K, in rows of a, and the least rows of b, in rows of a, for which the sides change: to transpose an output takes longer the
/// shorter K is, and packing b has its share in a product of few rows of a.
const TURNS_FROM: usize = 8;
const WIDE_FROM: usize = 4;
/// Rows of an output that are transposed together: a cache line of it.
const TURNED: usize = 16;

/// The product of one block of one sample of the batch: [`matrix_product`] by a form.
type Compute = fn(Path, ProductPart, [&Operand; 2], [usize; 2], &mut [u32]);

/// The product of these digits by a path, with this number of columns.
#[cfg(target_arch = "x86_64")]
fn by_form(path: Path, digits: [u32; 2], n: usize) -> Option<Compute> {
    let few = n <= LANES;
    #[cfg(target_os = "linux")]
    if path == Path::AmxInt8 {
        match digits {
            [2, 2] => return Some(tiles::matrix_product::<2, 2>),
            [3, 2] => return Some(tiles::matrix_product::<3, 2>),
            [2, 3] => return Some(tiles::matrix_product::<2, 3>),
            [3, 3] => return Some(tiles::matrix_product::<3, 3>),
            [4, 4] => return Some(tiles::matrix_product::<4, 4>),
            _ => {}
        }
    }
    // Whoever has AMX has VNNI.
    let path = path.min(Path::Avx512Vnni);
    Some(match (path, digits) {
        (Path::Avx512Vnni, [1, 1]) => matrix_product::<Bytes<Avx512Vnni, 1, 1, 1, 4, 4>>,
        (Path::Avx512Vnni, [2, 2]) => matrix_product::<Bytes<Avx512Vnni, 2, 2, 3, 4, 2>>,
        (Path::Avx512Vnni, [3, 2]) => matrix_product::<Bytes<Avx512Vnni, 3, 2, 4, 4, 1>>,
        (Path::Avx512Vnni, [2, 3]) => matrix_product::<Bytes<Avx512Vnni, 2, 3, 4, 4, 1>>,
        (Path::Avx512Vnni, [3, 3]) if few => matrix_product::<Halves<Avx512Vnni, 8, 1>>,
        (Path::Avx512Vnni, [3, 3]) => matrix_product::<Halves<Avx512Vnni, 4, 2>>,
        (Path::Avx512, [3, 3]) if few => matrix_product::<Halves<Avx512, 8, 1>>,
        (Path::Avx512, [3, 3]) => matrix_product::<Halves<Avx512, 4, 2>>,
        (Path::AvxVnni, [1, 1]) => matrix_product::<Bytes<AvxVnni, 1, 1, 1, 4, 1>>,
        (Path::AvxVnni, [3, 3]) => matrix_product::<Halves<AvxVnni, 2, 1>>,
        _ => return None,
    })
}

#[cfg(target_arch = "aarch64")]
fn by_form(path: Path, digits: [u32; 2], _: usize) -> Option<Compute> {
    Some(match (path, digits) {
        (Path::NeonDotprod, [1, 1]) => matrix_product::<Bytes<NeonDotprod, 1, 1, 1, 4, 1>>,
        (Path::NeonDotprod, [2, 2]) => matrix_product::<Bytes<NeonDotprod, 2, 2, 3, 2, 1>>,
        (Path::NeonDotprod, [3, 2]) => matrix_product::<Bytes<NeonDotprod, 3, 2, 4, 1, 1>>,
        (Path::NeonDotprod, [2, 3]) => matrix_product::<Bytes<NeonDotprod, 2, 3, 4, 1, 1>>,
        (Path::NeonDotprod, [3, 3]) => matrix_product::<Bytes<NeonDotprod, 3, 3, 5, 1, 1>>,
        (Path::NeonI8mm, [1, 1]) => matrix_product::<Squares<1, 1, 1>>,
        (Path::NeonI8mm, [2, 2]) => matrix_product::<Squares<2, 2, 3>>,
        (Path::NeonI8mm, [3, 2]) => matrix_product::<Squares<3, 2, 4>>,
        (Path::NeonI8mm, [2, 3]) => matrix_product::<Squares<2, 3, 4>>,
        (Path::NeonI8mm, [3, 3]) => matrix_product::<Squares<3, 3, 5>>,
        _ => return None,
    })
}

/// True if these kernels compute products of these digits and this length.
pub(super) fn computes(path: Path, a: &Operand, b: &Operand) -> bool {
    // Partial sums of digits are larger than those of integers: with signs up to twice, without signs up to four times on each side.
    let of_halves = cfg!(target_arch = "x86_64") && a.digits() == 3 && b.digits() == 3;
    let more = if of_halves { 0 } else { 3 };
    let len = a.block_range(0).1;
    let short = path == Path::AvxVnni && of_halves && len < SHORT;
    // Forms of four digits on both sides keep sums in two words.
    let fits = match [a.digits(), b.digits()] {
        [4, 4] => len < WIDE,
        _ => fits_i64(product_bits(a, b) + more, len),
    };
    !short && a.k() > 0 && fits && by_form(path, [a.digits(), b.digits()], b.rows()).is_some()
}

/// `out[block, batch, m, n]`, not empty, for operands that [`computes`] accepts.
pub(super) fn product(
    path: Path,
    part: ProductPart,
    a: &Operand,
    b: &Operand,
    batch: usize,
    out: &mut [u32],
) {
    let matrix = a.rows() * b.rows();
    // Images are read in place on the left side only.
    let has_images = [a, b].map(|side| side.images().is_some());
    let sides_change = has_images == [false, true] || has_images == [false; 2] && is_wide(path, a, b);
    if batch > 1 || !sides_change {
        return in_order(path, part, [a, b], batch, out);
    }
    let mut turned = vec![0; out.len()];
    in_order(path, part, [b, a], batch, &mut turned);
    let matrices = out.chunks_exact_mut(matrix).zip(turned.chunks_exact(matrix));
    matrices.for_each(|(out, q)| turn(q, b.rows(), out));
}

/// True if b is so much larger than a that its rows are better packed in bands, in memory that stays in the second-level cache, than as
/// panels, which each band of a reads anew from memory. AMX is not among these paths: its bands have up to all rows of a, and nobody has
/// measured it.
fn is_wide(path: Path, a: &Operand, b: &Operand) -> bool {
    path != Path::AmxInt8 && a.block_range(0).1 >= TURNS_FROM * a.rows() && b.rows() >= WIDE_FROM * a.rows()
}

/// [`product`] with the panels of b, whichever side is larger.
fn in_order(path: Path, part: ProductPart, [a, b]: [&Operand; 2], batch: usize, out: &mut [u32]) {
    let compute = by_form(path, [a.digits(), b.digits()], b.rows()).expect("it computes these digits");
    out.par_chunks_mut(a.rows() * b.rows()).enumerate().for_each(|(matrix, out)| {
        compute(path, part, [a, b], [matrix / batch, matrix % batch], out);
    });
}

/// Transposes a matrix `[n, m]` to `[m, n]`.
fn turn(from: &[u32], n: usize, to: &mut [u32]) {
    let m = from.len() / n;
    to.par_chunks_mut(TURNED * n).enumerate().for_each(|(i, to)| {
        for (column, from) in from.chunks_exact(m).enumerate() {
            for (to, &x) in to[column..].iter_mut().step_by(n).zip(&from[i * TURNED..]) {
                *to = x;
            }
        }
    });
}

/// The rows of a band as tiles.
enum Tiles<'t, F> {
    Packed(&'t Rows),
    /// Rows of patches, and the first index of K.
    Images(&'t Images<'t, F>, Range<usize>, usize),
}

impl<F: Form> Tiles<'_, F> {
    fn count(&self) -> usize {
        match self {
            Tiles::Packed(rows) => rows.tiles(),
            Tiles::Images(_, rows, _) => rows.len().div_ceil(F::ROWS),
        }
    }

    fn words(&self) -> Words<'_> {
        match self {
            Tiles::Packed(rows) => rows.words::<F>(),
            Tiles::Images(images, ..) => images.words(),
        }
    }

    /// Fills in the runs of a tile's rows for these words of K.
    fn runs(&self, tile: usize, words: Range<usize>, runs: &mut Runs) {
        match self {
            Tiles::Packed(rows) => rows.runs::<F>(tile, words, runs),
            Tiles::Images(images, rows, first) => {
                let of_tile = rows.start + tile * F::ROWS..rows.end.min(rows.start + (tile + 1) * F::ROWS);
                images.runs(of_tile, *first, words, runs);
            }
        }
    }
}

/// The memory for computing a band, with any contents.
#[derive(Default)]
struct Memory {
    packed: Rows,
    sums: Vec<i64>,
    /// The runs of each tile.
    runs: Vec<Runs>,
    /// The scale of each row.
    factors: Vec<f64>,
}

/// One block of one sample of the batch.
fn matrix_product<F: Form>(
    path: Path,
    part: ProductPart,
    [a, b]: [&Operand; 2],
    [block, batch]: [usize; 2],
    out: &mut [u32],
) {
    let (first, len) = a.block_range(block);
    let (m, n) = (a.rows(), b.rows());
    let scale = Scale::new(path, part, a, b, batch, block);
    let places = first..first + len;
    let panels = Panels::<F>::pack(b, batch, places.clone());
    let images = a.images().and_then(|(gather, q)| Images::<F>::cut(gather, q));
    // Rows are packed sixteen at a time.
    let multiple = if images.is_some() { F::ROWS } else { LANES };
    let height = band_height(4, 1, m, multiple, BAND_ROWS);
    bands(out, 1, m, n, height).into_par_iter().for_each_init(Memory::default, |memory, band| {
        let Memory { packed, sums, runs, factors } = memory;
        let Band { row, out, .. } = band;
        let rows = row..row + out.len() / n;
        factors.clear();
        factors.extend(rows.clone().map(|row| scale.row(row)));
        let tiles = match &images {
            Some(images) => Tiles::Images(images, rows, first),
            None => {
                packed.pack::<F>(a, batch, rows, places.clone());
                Tiles::Packed(packed)
            }
        };
        // Sums that are added to once stay in the first-level cache if the sums of a panel are rounded before those of the next
        // panel are made.
        let panels_of_group = if panels.words_of_k() <= F::FLUSH { 1 } else { GROUP_COLUMNS / F::WIDTH };
        for group in (0..n.div_ceil(F::WIDTH)).step_by(panels_of_group) {
            let group = group..n.div_ceil(F::WIDTH).min(group + panels_of_group);
            add_up(&tiles, &panels, group.clone(), sums, runs);
            let of_panels = sums.chunks_exact(tiles.count() * F::ROWS * F::WIDTH);
            for (column, sums) in group.map(|panel| panel * F::WIDTH).zip(of_panels) {
                let columns = panels.columns(column / F::WIDTH);
                let panel = Panel { sums, width: F::WIDTH, column, columns };
                scale.panel(&panel, row, factors, out);
            }
        }
    });
}

/// The sums of a band's rows and some panels, `[panel][row][column]`. Words of K are the outer loop: the words of a panel stay in
/// the first caches while tiles pass, and the words of the rows while panels pass.
fn add_up<F: Form>(
    tiles: &Tiles<'_, F>,
    panels: &Panels<F>,
    group: Range<usize>,
    sums: &mut Vec<i64>,
    runs: &mut Vec<Runs>,
) {
    sums.clear();
    for panel in group.clone() {
        for _ in 0..tiles.count() * F::ROWS {
            sums.extend_from_slice(panels.surplus(panel));
        }
    }
    runs.resize_with(tiles.count(), Runs::default);
    for start in (0..panels.words_of_k()).step_by(F::FLUSH) {
        let words = start..panels.words_of_k().min(start + F::FLUSH);
        for (tile, runs) in runs.iter_mut().enumerate() {
            runs.clear();
            tiles.runs(tile, words.clone(), runs);
        }
        for (panel, sums) in group.clone().zip(sums.chunks_exact_mut(tiles.count() * F::ROWS * F::WIDTH)) {
            let b = panels.words(panel, words.clone());
            for (runs, sums) in runs.iter().zip(sums.chunks_exact_mut(F::ROWS * F::WIDTH)) {
                // SAFETY: `compute` runs on a path whose instructions were detected.
                unsafe { F::add(&tiles.words(), runs, b, panels.columns(panel), sums) };
            }
        }
    }
}

//! The digit product on int8 tensor cores: `kernels/product.cuh`, completed for a pair of digit counts.
//!
//! The kernel replaces the translated `shaders/product.wgsl` (on digit planes): the same buffers in the same order, the same
//! uniform words, the same bits. The caller exchanges the text, and divides rows and columns by [`Shape::tile`]. Only the
//! multiplication is written by hand. The way back from exact sums to binary32 is the WGSL's own, translated from the caller's
//! module; that module also defines the parameters.

use std::fmt::Write;

use naga::Module;
use naga::valid::ModuleInfo;

use crate::translate::{
    Functions, Kernel, Options, Parameter, ParameterKind, TranslateError, functions, translate,
};

/// The text of a warp's instructions, which the kernel uses.
pub(crate) const WARP: &str = include_str!("../kernels/warp.cuh");
/// The text that converts exact sums to binary32.
pub(crate) const SCALE_BACK: &str = include_str!("../kernels/scale_back.cuh");
/// The text of products of fragments from memory.
pub(crate) const FRAGMENTS: &str = include_str!("../kernels/fragments.cuh");
const PRODUCT: &str = include_str!("../kernels/product.cuh");

/// Functions of the WGSL that the kernel calls: `wgsl_NAME` in its text.
const CALLED: [&str; 4] = ["finish", "u128_add", "digits_exponent", "digits_marked"];

/// The most shared memory that a block has without a request at its launch.
const SHARED_MAX: u32 = 48 << 10;

/// The translated kernel handles blocks of K of at least this length. The word for carries out of the highest sum has room for K a
/// few times as long, and nobody has longer rows.
const PLACES_MAX: u32 = 1 << 25;

/// The reasons why there is no kernel for a module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProductError {
    /// The module lacks a function of the way back to binary32, or has something that is not translated.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// The entry point's buffers are not those of `shaders/product.wgsl`.
    #[error("the module is no completion of product.wgsl: {reason}")]
    NotAProduct {
        /// The buffers of the module, in words.
        reason: String,
    },
    /// A digit count has no kernel.
    #[error("{digits_a} and {digits_b} digits: there are 1 to 4")]
    Digits {
        /// The requested digits of the left operand.
        digits_a: u32,
        /// The requested digits of the right operand.
        digits_b: u32,
    },
}

/// The parameters of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Digits of an element of the left operand, 1..=4.
    pub digits_a: u32,
    /// Digits of an element of the right operand, 1..=4.
    pub digits_b: u32,
    /// True if exact sums may need more than 64 bits.
    pub wide: bool,
    /// True if sums of digit products may overflow 32 bits, so that they are carried on the way.
    pub long: bool,
    /// True for a quarter of the tile by half of the warps: for outputs that do not give every SM a large tile.
    pub small: bool,
}

/// The division of a block's tile.
struct Tile {
    /// Warps along rows and columns of the block.
    warps: [u32; 2],
    /// Fragments of 16 rows and of 8 columns, for each warp.
    fragments: [u32; 2],
}

impl Shape {
    /// The completion for blocks of `k` places; `None` if K is too long for it.
    pub fn new(digits_a: u32, digits_b: u32, k: u32) -> Option<Shape> {
        let bits = 8 * (digits_a + digits_b) - 4;
        // The number of pairs of digits with the same weight.
        let pairs = u64::from(digits_a.min(digits_b));
        let wide = u128::from(k) << bits >= 1 << 63;
        let long = u64::from(k) * pairs * (1 << 14) >= 1 << 31;
        (k < PLACES_MAX).then_some(Shape { digits_a, digits_b, wide, long, small: false })
    }

    /// Every completion that [`Shape::new`] gives for some K, with large and with small tiles.
    pub fn all() -> impl Iterator<Item = Shape> {
        let pairs = (1..=4).flat_map(|digits_a| (1..=4).map(move |digits_b| (digits_a, digits_b)));
        pairs
            .flat_map(|(digits_a, digits_b)| {
                // Both conditions hold from some K on, so the powers of two and the numbers just below them cover every case.
                let mut found: Vec<Shape> = Vec::new();
                for k in (0..25).flat_map(|i| [1 << i, (2 << i) - 1]) {
                    let shape = Shape::new(digits_a, digits_b, k);
                    found.extend(shape.filter(|shape| !found.contains(shape)));
                }
                found
            })
            .flat_map(|shape| [shape, Shape { small: true, ..shape }])
    }

    /// The same completion with large or small tiles: those that take less time on a GPU of so many SMs, counting only rounds of
    /// blocks. The work is `products` outputs of this many rows and columns. An SM runs one large tile at a time, or two small
    /// ones, which together are half of the work. Small tiles read twice the bytes for the same work, so they have to win by a
    /// fifth.
    pub fn for_output(self, rows: u32, columns: u32, products: u32, processors: u32) -> Shape {
        let rounds = |shape: Shape, at_once: u32| {
            let [tile_rows, tile_columns] = shape.tile();
            let blocks = u64::from(rows.div_ceil(tile_rows)) * u64::from(columns.div_ceil(tile_columns));
            (blocks * u64::from(products)).div_ceil(u64::from(at_once.max(1)))
        };
        let (large, small) = (Shape { small: false, ..self }, Shape { small: true, ..self });
        let time_of_large = 2 * rounds(large, processors);
        let time_of_small = rounds(small, processors.saturating_mul(2));
        if 5 * time_of_small <= 4 * time_of_large { small } else { large }
    }

    /// Rows and columns of the output that a block computes.
    pub fn tile(self) -> [u32; 2] {
        let Tile { warps, fragments } = self.division();
        [warps[0] * fragments[0] * 16, warps[1] * fragments[1] * 8]
    }

    /// The division of a tile. A thread has 255 registers at most. The warp's sums, SUMS for each output, may take some 190 of
    /// them: fragments in use, addresses and counters need the others. Within that limit, a warp's part is as square as possible,
    /// and the block is longer along the operand with fewer digits, since that costs fewer bytes a step. Eight warps of 255
    /// registers fill an SM's whole file, so a block has an SM to itself; of small blocks, with four warps, an SM runs two or
    /// three.
    fn division(self) -> Tile {
        let planes = self.digits_a + self.digits_b - 1 + u32::from(self.long);
        let fragments = match planes {
            1 => [4, 8],
            2 | 3 => [4, 4],
            // B's fragments stay for a whole step, so with more digits of B the warp's part is longer along A.
            6 if self.digits_b > self.digits_a => [4, 2],
            4..=6 => [2, 4],
            _ => [2, 2],
        };
        if self.small {
            return Tile { warps: [2, 2], fragments: [fragments[0] / 2, fragments[1]] };
        }
        let along_a = self.digits_b > self.digits_a && (4..6).contains(&planes);
        let warps = if along_a { [4, 2] } else { [2, 4] };
        Tile { warps, fragments }
    }

    /// The stages of the pipeline: as many as shared memory holds, including the one in use. More than four would hide no further
    /// latency.
    fn stages(self) -> u32 {
        let [rows, columns] = self.tile();
        (SHARED_MAX / (32 * (self.digits_a * rows + self.digits_b * columns))).clamp(2, 4)
    }
}

/// The kernel for a module whose entry point is `main` and which is `shaders/product.wgsl` completed. The completion may be for
/// digit planes and for any digit counts: only functions that do not depend on them are taken from it.
///
/// # Errors
/// If the module is another one, or the digit counts are out of range.
pub fn product(
    module: &Module,
    info: &ModuleInfo,
    shape: Shape,
    options: Options,
) -> Result<Kernel, ProductError> {
    let Shape { digits_a, digits_b, .. } = shape;
    if !(1..=4).contains(&digits_a) || !(1..=4).contains(&digits_b) {
        return Err(ProductError::Digits { digits_a, digits_b });
    }
    let parameters = translate(module, info, "main", options)?.parameters;
    check(&parameters)?;
    let Functions { mut source, names } = functions(module, info, &CALLED, options)?;
    let Tile { warps, fragments } = shape.division();
    let name = format!("k_product_{digits_a}x{digits_b}");
    // Writing to a string cannot fail.
    for (name, given) in CALLED.iter().zip(names) {
        let _ = writeln!(source, "#define wgsl_{name} {given}");
    }
    for (name, value) in [
        ("WIDE", u32::from(shape.wide)),
        ("LONG", u32::from(shape.long)),
        ("NATIVE", u32::from(options.native)),
    ] {
        let _ = writeln!(source, "#define {name} {value}");
    }
    let _ = writeln!(source, "#define KERNEL {name}");
    for (name, value) in [
        ("DIGITS_A", digits_a),
        ("DIGITS_B", digits_b),
        ("WARPS_M", warps[0]),
        ("WARPS_N", warps[1]),
        ("TILES_M", fragments[0]),
        ("TILES_N", fragments[1]),
        ("STAGES", shape.stages()),
    ] {
        let _ = writeln!(source, "constexpr u32 {name} = {value};");
    }
    source.extend([WARP, SCALE_BACK, PRODUCT]);
    let block = [32 * warps[0] * warps[1], 1, 1];
    Ok(Kernel { name, source, parameters, block, barriers: true, dynamic_shared: 0 })
}

/// Checks that a module's entry point has the parameters of `kernels/product.cuh`.
fn check(parameters: &[Parameter]) -> Result<(), ProductError> {
    let words = ParameterKind::Elements { stride: 4 };
    let expected = [
        ("p", ParameterKind::Sized { bytes: 32 }, false),
        ("a", words, false),
        ("absmaxes_a", words, false),
        ("b", words, false),
        ("absmaxes_b", words, false),
        ("output", words, true),
    ];
    let have = || parameters.iter().map(|p| (p.name.as_str(), p.kind, p.writable));
    if have().eq(expected) {
        return Ok(());
    }
    Err(ProductError::NotAProduct { reason: format!("its buffers are {:?}", have().collect::<Vec<_>>()) })
}

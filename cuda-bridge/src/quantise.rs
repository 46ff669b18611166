//! Digitising operands: `kernels/quantise.cuh`, completed for a view. There are kernels for views whose rows or columns are
//! contiguous, which products consist of. The translated `shaders/scale.wgsl` and `shaders/quantise.wgsl` handle other views.
//!
//! Buffers are the shaders', in the shaders' order, and the bits are the same; uniform words and blocks are these kernels' own.

use crate::tensor_core::WARP;
use crate::translate::{Kernel, PRELUDE, Parameter};

/// The text of the digits of an element.
pub(crate) const DIGITS: &str = include_str!("../kernels/digits.cuh");
const TEXT: &str = include_str!("../kernels/quantise.cuh");

/// Threads of a block, except for the longest rows.
const THREADS: u32 = 256;
/// The least number of threads that share a scale group of a row.
const TEAM_MIN: u32 = 8;
const TEAM_MAX: u32 = 512;
/// Places of a scale group that a thread keeps: `HELD` times four.
const PLACES_HELD: u32 = 32;
/// The rows of a block's tile of a column view, its places, and its scale groups along K in the search for absmaxes.
const TILE_ROWS: u32 = 32;
const TILE_PLACES: u32 = 128;
const TILE_GROUPS: u32 = 8;
/// CUDA's limit on blocks along the second and third dimension.
const GROUPS_MAX: u32 = 65_535;

/// A strided view [batch0, batch1, rows, K] of binary32 words, whose rows are divided into scale groups along K.
#[derive(Clone, Copy, Debug)]
pub struct QuantiseOperand {
    /// The number of elements along each dimension.
    pub dims: [u32; 4],
    /// The distance in words from one element to the next along each dimension; 0 where all are the same.
    pub strides: [u32; 4],
    /// The offset of the view's first element in words.
    pub offset: u32,
    /// Places of a scale group: 0 (all of K), or a multiple of 16.
    pub block: u32,
}

/// A kernel with the uniform words and the blocks of one launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel. Views of other sizes may share it, since sizes are in `words`.
    pub kernel: Kernel,
    /// The contents of the first parameter, `p`, in this launch.
    pub words: Vec<u32>,
    /// Blocks along each dimension.
    pub groups: [u32; 3],
}

impl QuantiseOperand {
    fn rows(&self) -> u32 {
        self.dims[0] * self.dims[1] * self.dims[2]
    }

    fn step(&self) -> u32 {
        if self.block == 0 { self.dims[3] } else { self.block }
    }

    /// Scale groups of a row.
    fn blocks(&self) -> u32 {
        self.dims[3].div_ceil(self.step().max(1)).max(1)
    }

    /// Words of a row of digits.
    fn words(&self) -> u32 {
        self.dims[3].div_ceil(16) * 4
    }

    fn is_empty(&self) -> bool {
        self.dims.contains(&0)
    }

    fn has_rows(&self) -> bool {
        !self.is_empty() && self.strides[3] == 1 && self.block.is_multiple_of(16)
    }

    fn has_columns(&self) -> bool {
        !self.is_empty() && self.strides[3] != 1 && self.strides[2] == 1
    }

    /// The view's fields that the kernels need: dims\[1\], strides except K's, offset.
    fn view(&self) -> [u32; 5] {
        let [first, second, row, _] = self.strides;
        [self.dims[1], first, second, row, self.offset]
    }

    /// Computes absmaxes and digits of rows at once. Buffers are the operand, the absmaxes and the digits; the last two are
    /// written. `None` if rows are not contiguous.
    pub fn scale_and_quantise(&self, digits: u32) -> Option<Launch> {
        self.has_rows().then(|| self.of_rows(digits, false))
    }

    /// Computes digits by given absmaxes. Buffers are the operand, the absmaxes and the digits. `None` if neither rows nor
    /// columns are contiguous.
    pub fn quantise(&self, digits: u32) -> Option<Launch> {
        if self.has_rows() {
            return Some(self.of_rows(digits, true));
        }
        let words = self.words();
        let plane = self.rows() * words;
        let mut uniform = vec![self.dims[2], self.dims[3], self.step(), self.blocks(), self.strides[3]];
        uniform.extend([words, plane]);
        let defines = format!("#define COLUMNS\n#define DIGITS {digits}u\n");
        let buffers = [("input", false), ("absmaxes", false), ("output", true)];
        let name = format!("quantise_columns_{digits}");
        let tiles = self.dims[3].div_ceil(TILE_PLACES);
        (self.block.is_multiple_of(16))
            .then(|| self.of_columns(&name, &defines, uniform, &buffers, tiles))
            .flatten()
    }

    /// Computes absmaxes of columns. Buffers are the operand and the absmaxes. `None` if columns are not contiguous.
    pub fn scale(&self) -> Option<Launch> {
        let uniform = vec![self.dims[2], self.dims[3], self.step(), self.blocks(), self.strides[3]];
        let buffers = [("input", false), ("output", true)];
        let tiles = self.blocks().div_ceil(TILE_GROUPS);
        self.of_columns("scale_columns", "#define SCALE_COLUMNS\n", uniform, &buffers, tiles)
    }

    fn of_rows(&self, digits: u32, given: bool) -> Launch {
        let (groups, words) = (self.rows() * self.blocks(), self.words());
        let team = team(self.step());
        let name = format!("quantise_rows_{digits}_{team}{}", if given { "_given" } else { "" });
        let defines = format!(
            "#define ROWS\n#define DIGITS {digits}u\n#define TEAM {team}u\n#define GIVEN {}\n",
            u32::from(given)
        );
        let mut uniform = vec![groups, self.blocks(), self.step(), self.dims[3], words, self.rows() * words];
        uniform.push(self.dims[2]);
        uniform.extend(self.view());
        let buffers = [("input", false), ("absmaxes", !given), ("output", true)];
        let threads = THREADS.max(team);
        let kernel = kernel(&name, &defines, uniform.len(), &buffers, threads);
        Launch { kernel, words: uniform, groups: [groups.div_ceil(threads / team), 1, 1] }
    }

    fn of_columns(
        &self,
        name: &str,
        defines: &str,
        mut uniform: Vec<u32>,
        buffers: &[(&str, bool)],
        tiles: u32,
    ) -> Option<Launch> {
        let samples = self.dims[0] * self.dims[1];
        if !self.has_columns() || tiles.max(samples) > GROUPS_MAX {
            return None;
        }
        uniform.extend(self.view());
        let kernel = kernel(name, defines, uniform.len(), buffers, THREADS);
        Some(Launch { kernel, words: uniform, groups: [self.dims[2].div_ceil(TILE_ROWS), tiles, samples] })
    }
}

/// The number of threads that share a scale group of so many places: as many as can hold it, within bounds.
fn team(places: u32) -> u32 {
    places.div_ceil(PLACES_HELD).clamp(TEAM_MIN, TEAM_MAX).next_power_of_two()
}

fn kernel(name: &str, defines: &str, words: usize, buffers: &[(&str, bool)], threads: u32) -> Kernel {
    let arrays: Vec<_> = buffers.iter().map(|&(name, writable)| (name, 4, writable)).collect();
    let digits = if defines.contains("DIGITS") { DIGITS } else { "" };
    Kernel {
        name: name.into(),
        source: format!("{PRELUDE}\n{defines}#define KERNEL {name}\n{WARP}{digits}{TEXT}"),
        parameters: Parameter::by_hand(words as u32, &arrays),
        block: [threads, 1, 1],
        barriers: true,
        dynamic_shared: 0,
    }
}

/// Every kernel that some operand needs.
pub fn all() -> Vec<Kernel> {
    let of = |strides, places| QuantiseOperand { dims: [1, 1, 1, places], strides, offset: 0, block: 0 };
    let (rows, columns) = ([0, 0, 1, 1], [0, 0, 1, 2]);
    let teams = (0..).map(|i| TEAM_MIN << i).take_while(|&team| team <= TEAM_MAX);
    let mut kernels: Vec<Kernel> = of(columns, 1).scale().into_iter().map(|launch| launch.kernel).collect();
    for digits in 1..=4 {
        let of_rows = teams.clone().map(|team| of(rows, team * PLACES_HELD));
        let launches =
            of_rows.flat_map(|operand| [operand.scale_and_quantise(digits), operand.quantise(digits)]);
        kernels
            .extend(launches.chain([of(columns, 1).quantise(digits)]).flatten().map(|launch| launch.kernel));
    }
    kernels
}

//! Products whose left operand is a view of columns that is digitised on its way to the tensor cores: `kernels/columns.cuh`,
//! completed for digit counts. The kernels serve products of few columns, which read the operand once.

use std::fmt::Write;

use naga::Module;
use naga::valid::ModuleInfo;

use crate::quantise::{DIGITS, Launch, QuantiseOperand};
use crate::tensor_core::{FRAGMENTS, SCALE_BACK, WARP};
use crate::translate::{Functions, Kernel, Options, Parameter, TranslateError, functions};

const TEXT: &str = include_str!("../kernels/columns.cuh");

/// Functions of the module that the kernel calls: `wgsl_NAME` in its text.
const CALLED: [&str; 3] = ["finish", "digits_exponent", "digits_marked"];

/// Warps of a block, each of which takes 16 columns of the operand.
const WARPS: u32 = 4;
/// The most columns; with more, the operand is read too often.
const COLUMNS_MAX: u32 = 128;
/// CUDA's limit on blocks along the second dimension.
const GROUPS_MAX: u32 = 65_535;

/// The product of a view, digitised by rows in one scale group each, and an operand of digits.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// The view's rows are columns of memory: neighbours in memory are rows at the same place of K.
    pub operand: QuantiseOperand,
    /// Columns of the product.
    pub columns: u32,
    /// Digits of the view, and of the other operand.
    pub digits: [u32; 2],
}

impl Columns {
    /// The kernel and its launch, for supported sizes. The module has the WGSL's way back from exact sums. Buffers: the uniform
    /// words, the view's tensor, digits and absmaxes of the other operand, the product.
    ///
    /// # Errors
    /// If the module lacks a function, or has something that is not translated.
    pub fn launch(
        &self,
        module: &Module,
        info: &ModuleInfo,
        options: Options,
    ) -> Result<Option<Launch>, TranslateError> {
        let Columns { operand: QuantiseOperand { dims, strides, offset, block }, columns, digits: [a, b] } =
            *self;
        let [first, second, rows, k] = dims;
        let samples = first * second;
        let bits = 8 * (a + b) - 4;
        // Digit sums stay below 2^31, and sums of all weights below 2^63.
        let exact = (u64::from(k) * u64::from(a.min(b))) << 14 < 1 << 31 && u128::from(k) << bits < 1 << 63;
        let is_columns = strides[3] != 1 && strides[2] == 1 && block == 0;
        let fits = (1..=COLUMNS_MAX).contains(&columns) && (1..=GROUPS_MAX).contains(&samples) && rows > 0;
        if !exact || !is_columns || !fits || k == 0 {
            return Ok(None);
        }
        // Sums take four registers for each weight and eight columns of a warp; the warps of a block share the columns.
        let tiles = if a + b - 1 <= 5 { 4 } else { 2 };
        let sharing = columns.div_ceil(8 * tiles).next_power_of_two();
        if sharing > WARPS {
            return Ok(None);
        }
        let name = format!("columns_{a}{b}");
        let kernel = kernel(&name, [a, b], tiles, module, info, options)?;
        let mut words = vec![rows, k, columns, k.div_ceil(16) * 4, strides[3]];
        words.extend([second, strides[0], strides[1], offset, sharing]);
        let groups = [rows.div_ceil(16 * WARPS / sharing), samples, 1];
        Ok(Some(Launch { kernel, words, groups }))
    }
}

fn kernel(
    name: &str,
    [a, b]: [u32; 2],
    tiles: u32,
    module: &Module,
    info: &ModuleInfo,
    options: Options,
) -> Result<Kernel, TranslateError> {
    let Functions { mut source, names } = functions(module, info, &CALLED, options)?;
    // Writing to a string cannot fail.
    for (function, given) in CALLED.iter().zip(names) {
        let _ = writeln!(source, "#define wgsl_{function} {given}");
    }
    let _ = writeln!(
        source,
        "#define KERNEL {name}\n#define WIDE 0\n#define NATIVE {}",
        u32::from(options.native)
    );
    for (name, value) in [("DIGITS", a), ("DIGITS_B", b), ("TILES", tiles)] {
        let _ = writeln!(source, "constexpr u32 {name} = {value}u;");
    }
    source.extend([WARP, SCALE_BACK, DIGITS, FRAGMENTS, TEXT]);
    let buffers = [("input", 4, false), ("b", 4, false), ("absmaxes_b", 4, false), ("output", 4, true)];
    Ok(Kernel {
        name: name.into(),
        source,
        parameters: Parameter::by_hand(10, &buffers),
        block: [32 * WARPS, 1, 1],
        barriers: true,
        dynamic_shared: 0,
    })
}

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

/// Columns of the operand that a block takes, and places of a step along K.
const WIDTH: u32 = 64;
const STEP: u32 = 64;
/// The most warps that take the same columns of the operand.
const SHARING_MAX: u32 = 4;
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
    /// The kernel and its launch, for supported sizes, if it takes at most `shared` bytes of shared memory. The module has the
    /// WGSL's way back from exact sums. Buffers: the uniform words, the view's tensor, digits and absmaxes of the other operand,
    /// the product.
    ///
    /// # Errors
    /// If the module lacks a function, or has something that is not translated.
    pub fn launch(
        &self,
        module: &Module,
        info: &ModuleInfo,
        options: Options,
        shared: u32,
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
        // Sums take four registers for each weight and eight columns of a warp; the warps that share columns of the operand
        // divide the product's among them.
        let tiles = match a + b - 1 {
            ..=3 => 8,
            4 | 5 => 4,
            _ => 2,
        };
        let sharing = columns.div_ceil(8 * tiles).next_power_of_two();
        if sharing > SHARING_MAX {
            return Ok(None);
        }
        let aligned =
            [rows, offset, strides[0], strides[1], strides[3]].iter().all(|words| words.is_multiple_of(4));
        let form = Form { digits: [a, b], tiles, sharing, stages: 3, aligned };
        let forms = [form, Form { stages: 2, ..form }];
        let Some(form) = forms.into_iter().find(|form| form.shared_bytes() <= shared) else {
            return Ok(None);
        };
        let kernel = form.kernel(module, info, options)?;
        let words =
            vec![rows, k, columns, k.div_ceil(16) * 4, strides[3], second, strides[0], strides[1], offset];
        Ok(Some(Launch { kernel, words, groups: [rows.div_ceil(WIDTH), samples, 1] }))
    }
}

/// What the kernel's text is completed with: its constants, which `kernels/columns.cuh` explains.
#[derive(Clone, Copy, Debug)]
struct Form {
    digits: [u32; 2],
    tiles: u32,
    sharing: u32,
    stages: u32,
    aligned: bool,
}

impl Form {
    fn threads(&self) -> u32 {
        32 * 4 * self.sharing
    }

    /// Bytes of `struct Shared` in the text.
    fn shared_bytes(&self) -> u32 {
        let stage = 4 * STEP * WIDTH + self.digits[1] * 8 * self.tiles * self.sharing * STEP;
        let along = if self.aligned { WIDTH / 4 } else { WIDTH };
        let absmaxes = 4 * WIDTH * self.threads() / along;
        self.stages * stage + absmaxes + 2 * 4 * self.threads() / 32
    }

    fn kernel(&self, module: &Module, info: &ModuleInfo, options: Options) -> Result<Kernel, TranslateError> {
        let Functions { mut source, names } = functions(module, info, &CALLED, options)?;
        // Writing to a string cannot fail.
        for (function, given) in CALLED.iter().zip(names) {
            let _ = writeln!(source, "#define wgsl_{function} {given}");
        }
        let ([a, b], bytes) = (self.digits, self.shared_bytes());
        let name = format!("columns_{a}{b}");
        let _ = writeln!(source, "#define KERNEL {name}\n#define TB_DYNAMIC_BYTES {bytes}u\n#define WIDE 0");
        let _ = writeln!(source, "#define NATIVE {}", u32::from(options.native));
        for (name, value) in [
            ("DIGITS", a),
            ("DIGITS_B", b),
            ("TILES", self.tiles),
            ("SHARING", self.sharing),
            ("STAGES", self.stages),
        ] {
            let _ = writeln!(source, "constexpr u32 {name} = {value}u;");
        }
        let _ = writeln!(source, "constexpr bool ALIGNED = {};", self.aligned);
        source.extend([WARP, SCALE_BACK, DIGITS, FRAGMENTS, TEXT]);
        let buffers = [("input", 4, false), ("b", 4, false), ("absmaxes_b", 4, false), ("output", 4, true)];
        Ok(Kernel {
            name,
            source,
            parameters: Parameter::by_hand(9, &buffers),
            block: [self.threads(), 1, 1],
            barriers: true,
            dynamic_shared: bytes,
        })
    }
}

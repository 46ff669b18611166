//! The kernel for the rows between two products: `kernels/attention.cuh`, completed for the nodes that are computed over the
//! rows. The computations on an element are functions of a WGSL module, translated. This file writes when each is computed, and
//! where its values are stored.
//!
//! A pass loops over a row's places. The pass computes the maps whose operands are available, and ends with the maxima and sums
//! of its values. Values that later passes need, the first product among them, are stored in stretches of shared memory.
//!
//! Beyond the diagonal, a causal mask gives all places of a row one number, and so do steps that depend on nothing else. Such
//! numbers are computed once a row, and passes end at the diagonal if no sum changes by that.

mod plan;
mod rows;
mod steps;

pub use steps::{Attention, Operand, Operation, Step};

use std::fmt::Write;

use naga::Module;
use naga::valid::ModuleInfo;
use plan::Plan;

use crate::quantise::DIGITS;
use crate::tensor_core::{FRAGMENTS, SCALE_BACK, WARP};
use crate::translate::{Functions, Kernel, Options, Parameter, TranslateError, functions};

const TEXT: &str = include_str!("../kernels/attention.cuh");
/// The mark in the text that the rows replace.
const MARK: &str = "\n//@rows\n";

/// Functions of the module that the kernel calls: `wgsl_NAME` in its text.
const CALLED: [&str; 6] =
    ["finish", "digits_exponent", "digits_marked", "f_add", "f_order_key", "f_from_order_key"];

/// Rows of a block.
const ROWS: u32 = 16;
const THREADS: u32 = 256;
/// The longest rows: 32 blocks of 128 places, one for each lane.
const LEN_MAX: u32 = 4096;
/// The most places of the first product's K, whose left operand stays in registers, and columns of the second.
const PLACES_MAX: u32 = 128;
const COLUMNS_MAX: u32 = 128;
/// Shared memory that CUDA reserves for each block, and the most blocks of an SM that help: with more, registers are too few.
const RESERVED: u32 = 1 << 10;
const AT_ONCE_MAX: u32 = 2;
/// CUDA's limit on blocks along the second dimension.
const SAMPLES_MAX: u32 = 65_535;

impl Attention {
    /// Blocks of a launch.
    pub fn groups(&self) -> [u32; 3] {
        [self.rows.div_ceil(ROWS), self.samples, 1]
    }

    /// The kernel, if one exists for such sizes that takes at most `shared` bytes of shared memory. The buffers are
    /// [`Attention::words`]; digits and absmaxes of the first product's operands; digits and absmaxes of the second's right one;
    /// the tensors that the steps read; those that they write; the second product.
    ///
    /// # Errors
    /// If the module lacks a function, or has something that is not translated.
    ///
    /// # Panics
    /// If a step reads a value that does not exist: a fault of the caller's own.
    pub fn kernel(
        &self,
        module: &Module,
        info: &ModuleInfo,
        options: Options,
        shared: u32,
    ) -> Result<Option<Kernel>, TranslateError> {
        if !self.fits() {
            return Ok(None);
        }
        let plan = self.plan();
        let bytes = self.shared_bytes(&plan);
        if bytes > shared {
            return Ok(None);
        }
        let called = self.called();
        let Functions { source, names } = functions(module, info, &called, options)?;
        let name_of = |function: &str| -> &str {
            let at = called.iter().position(|name| *name == function);
            &names[at.expect("every function was asked for")]
        };
        let digits = self.digits;
        let name = format!("attention_{}{}_{}{}", digits[0][0], digits[0][1], digits[1][0], digits[1][1]);
        let mut text = source;
        // Writing to a string cannot fail.
        for function in CALLED {
            let _ = writeln!(text, "#define wgsl_{function} {}", name_of(function));
        }
        let _ = writeln!(text, "#define KERNEL {name}\n#define TB_DYNAMIC_BYTES {bytes}u\n#define WIDE 0");
        let _ = writeln!(text, "#define NATIVE {}", u32::from(options.native));
        let at_once = (shared / (bytes + RESERVED)).clamp(1, AT_ONCE_MAX);
        text.push_str(&self.constants(&plan, at_once));
        let parameters = self.parameters();
        text.push_str(&self.buffers(&parameters));
        let (head, tail) = TEXT.split_once(MARK).expect("the text has a place for the rows");
        let source =
            [&text, WARP, SCALE_BACK, DIGITS, FRAGMENTS, head, &rows::text(self, &plan, name_of), tail]
                .concat();
        let block = [THREADS, 1, 1];
        Ok(Some(Kernel { name, source, parameters, block, barriers: true, dynamic_shared: bytes }))
    }

    /// True if there is a kernel for such sizes, whatever shared memory it needs.
    fn fits(&self) -> bool {
        let bits = |digits: [u32; 2]| 8 * (digits[0] + digits[1]) - 4;
        // Digit sums stay below 2^31, and sums of all weights below 2^63.
        let exact = |k: u32, digits: [u32; 2]| {
            let pairs = u64::from(digits[0].min(digits[1]));
            (u64::from(k) * pairs) << 14 < 1 << 31 && u128::from(k) << bits(digits) < 1 << 63
        };
        let Attention { samples, rows, len, places, columns, digits, .. } = *self;
        let sizes = [
            (samples, SAMPLES_MAX),
            (rows, u32::MAX),
            (len, LEN_MAX),
            (places, PLACES_MAX),
            (columns, COLUMNS_MAX),
        ];
        let fits = sizes.iter().all(|(size, most)| (1..=*most).contains(size));
        fits && len >= 2 && exact(places, digits[0]) && exact(len, digits[1])
    }

    /// The module's functions that the kernel and the maps call, each once.
    fn called(&self) -> Vec<&str> {
        let mut called = CALLED.to_vec();
        for step in &self.steps {
            if let Operation::Map { function, .. } = &step.operation
                && !called.contains(&&function[..])
            {
                called.push(function);
            }
        }
        called
    }

    /// The text's constants.
    fn constants(&self, plan: &Plan, at_once: u32) -> String {
        let Attention { rows, len, places, columns, digits, causal, .. } = *self;
        let mut text = String::new();
        for (name, value) in [
            ("DIGITS_A1", digits[0][0]),
            ("DIGITS_B1", digits[0][1]),
            ("DIGITS_A2", digits[1][0]),
            ("DIGITS_B2", digits[1][1]),
            ("DIGITS", digits[1][0]),
            ("SAMPLE_ROWS", rows),
            ("LEN", len),
            ("PLACES1", places),
            ("COLUMNS2", columns),
            ("AT_ONCE", at_once),
            ("STRETCHES", plan.stretches as u32),
            ("RESULT", plan.homes[self.result].expect("the result waits") as u32),
        ] {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "constexpr u32 {name} = {value}u;");
        }
        let _ = writeln!(text, "constexpr bool CAUSAL = {causal};");
        text
    }

    fn parameters(&self) -> Vec<Parameter> {
        let names =
            |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
        let (reads, writes) = (names("in", self.reads), names("out", self.writes));
        let mut arrays: Vec<(&str, u32, bool)> =
            ["a1", "absmaxes_a1", "b1", "absmaxes_b1", "b2", "absmaxes_b2"]
                .map(|name| (name, 4, false))
                .into();
        arrays.extend(reads.iter().map(|name| (&name[..], 4, false)));
        arrays.extend(writes.iter().map(|name| (&name[..], 4, true)));
        arrays.push(("output", 4, true));
        Parameter::by_hand(self.words().len() as u32, &arrays)
    }

    /// The entry point's parameters, with those of the steps as a struct.
    fn buffers(&self, parameters: &[Parameter]) -> String {
        let declared = |parameter: &Parameter, qualifier: &str| {
            let constant = if parameter.writable { "" } else { "const " };
            format!("{constant}u32*{qualifier} {}", parameter.name)
        };
        let all =
            parameters[1..].iter().map(|p| format!("{}, u32 {}_n", declared(p, " __restrict__"), p.name));
        let all: Vec<String> = std::iter::once("const u32* __restrict__ p".to_string()).chain(all).collect();
        let own = || {
            parameters
                .iter()
                .filter(|p| p.name.starts_with("in") || p.name.starts_with("out") && p.name != "output")
        };
        let members: String = std::iter::once(" const u32* p;".to_string())
            .chain(own().map(|p| format!(" {}; u32 {}_n;", declared(p, " __restrict__"), p.name)))
            .collect();
        let values = own().map(|p| format!("{0}, {0}_n", p.name));
        let values: Vec<String> = std::iter::once("p".to_string()).chain(values).collect();
        format!(
            "#define PARAMETERS {}\n#define TENSORS{members}\n#define TENSORS_OF {}\n",
            all.join(", "),
            values.join(", ")
        )
    }

    /// Bytes of `struct Shared` in the text.
    fn shared_bytes(&self, plan: &Plan) -> u32 {
        let stride = self.len.div_ceil(64) * 64 + 16;
        4 * (plan.stretches as u32 * ROWS * stride + 2 * ROWS)
    }
}

//! Rows between two products: `kernels/attention.cuh`, completed for the nodes that are computed over the rows. What they compute of an
//! element is functions of a WGSL module, translated; what is written here is when each is computed, and where values wait.
//!
//! A pass goes over a row's places; maps whose operands are there are computed in it, and the maxima and sums of what it computed end
//! it. Values that later passes take, the first product among them, wait in stretches of shared memory.
//!
//! Beyond the diagonal a causal mask makes one number of a row's places, and so does what depends on nothing else; such numbers are computed
//! once a row, and passes end at the diagonal where that leaves every sum what it is.

mod rows;

use std::fmt::Write;

use naga::Module;
use naga::valid::ModuleInfo;

use crate::quantise::DIGITS;
use crate::tensor_core::{FRAGMENTS, SCALE_BACK, WARP};
use crate::translate::{Functions, Kernel, Options, Parameter, TranslateError, functions};

const TEXT: &str = include_str!("../kernels/attention.cuh");
/// Where the text of the rows goes.
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
/// Shared memory that CUDA takes for each block, and the most blocks of an SM that are of use: with more, registers are too few.
const RESERVED: u32 = 1 << 10;
const AT_ONCE_MAX: u32 = 2;
/// CUDA's limit on blocks along the second dimension.
const SAMPLES_MAX: u32 = 65_535;

/// What a step takes for a place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The first product.
    Product,
    /// What an earlier step computed, by number: for the place, or for the row.
    Step(usize),
    /// The place's own element of a tensor of [rows, LEN] that begins at word `offset`.
    Element { tensor: usize, offset: u32 },
    /// Element j of a vector, for place j of every row.
    OfPlace { tensor: usize, offset: u32 },
    /// An element for each row.
    OfRow { tensor: usize, offset: u32 },
    /// One element for all.
    One { tensor: usize, offset: u32 },
}

/// What a step computes.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A function of the module of the operands, the four indices of the element, and constants: for every place, or once a row. The indices
    /// are those of the element's number (that of the row, once a row) in an index space of these dimensions.
    /// `by_place` says whether the result depends on the last index itself; a causal mask's does not, beyond the diagonal.
    Map {
        function: String,
        each_place: bool,
        by_place: bool,
        dims: [u32; 4],
        constants: Vec<u32>,
    },
    /// The maximum of the row by WGSL's `f_order_key`, and its sum by the fixed tree, of one operand that has a number for every place.
    Max,
    Sum,
}

/// A node over the rows.
#[derive(Clone, Debug)]
pub struct Step {
    pub operation: Operation,
    pub operands: Vec<Operand>,
    /// The tensor that its results are written to, if any: by number among those written.
    pub write: Option<usize>,
}

/// Two products with what is computed between them.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Samples, and the rows of each.
    pub samples: u32,
    pub rows: u32,
    /// Places of a row: columns of the first product, and K of the second.
    pub len: u32,
    /// K of the first product, and columns of the second.
    pub places: u32,
    pub columns: u32,
    /// Digits of both products' operands, 1..=4 each.
    pub digits: [[u32; 2]; 2],
    /// Whether nothing depends on places of the first product beyond the diagonal.
    pub causal: bool,
    pub steps: Vec<Step>,
    /// The step whose rows the second product takes.
    pub result: usize,
    /// Tensors of 32-bit words that steps take, and that they write.
    pub reads: usize,
    pub writes: usize,
}

/// Where values wait between passes.
struct Plan {
    /// The pass that computes each step; of what a row has one of, the pass before which it is computed; of a maximum or a sum, the pass
    /// that it ends.
    pass: Vec<usize>,
    /// The stretches of steps that later passes take. The first product begins in the first of them.
    homes: Vec<Option<usize>>,
    stretches: usize,
    /// Whether a step's numbers beyond the diagonal are one.
    beyond: Vec<bool>,
}

impl Operation {
    fn has_places(&self) -> bool {
        matches!(self, Operation::Map { each_place: true, .. })
    }

    fn reduces(&self) -> bool {
        matches!(self, Operation::Max | Operation::Sum)
    }
}

impl Attention {
    /// Blocks of a launch.
    pub fn groups(&self) -> [u32; 3] {
        [self.rows.div_ceil(ROWS), self.samples, 1]
    }

    /// A launch's uniform words: the steps' constants, so that layers which differ in these alone share a kernel.
    pub fn words(&self) -> Vec<u32> {
        let all = self.steps.iter().flat_map(|step| match &step.operation {
            Operation::Map { constants, .. } => &constants[..],
            _ => &[],
        });
        // No buffer is empty.
        all.copied().chain([0]).collect()
    }

    /// The kernel, if there is one for such sizes that takes at most `shared` bytes of shared memory. Its buffers: [`Attention::words`],
    /// digits and magnitudes of the first product's operands, digits and magnitudes of the second's right one, what the steps take, what
    /// they write, the second product.
    ///
    /// # Errors
    /// If the module lacks a function, or has something that is not translated.
    ///
    /// # Panics
    /// If a step takes what is not there: a fault of the caller's own.
    pub fn kernel(
        &self,
        module: &Module,
        info: &ModuleInfo,
        options: Options,
        shared: u32,
    ) -> Result<Option<Kernel>, TranslateError> {
        let bits = |digits: [u32; 2]| 8 * (digits[0] + digits[1]) - 4;
        // Digit sums stay below 2^31, and sums of all weights below 2^63.
        let exact = |k: u32, digits: [u32; 2]| {
            let pairs = u64::from(digits[0].min(digits[1]));
            (u64::from(k) * pairs) << 14 < 1 << 31 && u128::from(k) << bits(digits) < 1 << 63
        };
        let Attention { samples, rows, len, places, columns, digits, .. } = *self;
        let sizes = [(samples, SAMPLES_MAX), (rows, u32::MAX), (len, LEN_MAX), (places, PLACES_MAX)];
        let fits =
            sizes.iter().chain(&[(columns, COLUMNS_MAX)]).all(|(size, most)| (1..=*most).contains(size));
        if !fits || len < 2 || !exact(places, digits[0]) || !exact(len, digits[1]) {
            return Ok(None);
        }
        let plan = self.plan();
        let bytes = self.shared_bytes(&plan);
        if bytes > shared {
            return Ok(None);
        }
        let mut called: Vec<&str> = CALLED.to_vec();
        for step in &self.steps {
            if let Operation::Map { function, .. } = &step.operation
                && !called.contains(&&function[..])
            {
                called.push(function);
            }
        }
        let Functions { source, names } = functions(module, info, &called, options)?;
        let name_of = |function: &str| -> &str {
            let at = called.iter().position(|name| *name == function);
            &names[at.expect("every function was asked for")]
        };
        let parameters = self.parameters();
        let name = format!("attention_{}{}_{}{}", digits[0][0], digits[0][1], digits[1][0], digits[1][1]);
        let mut text = source;
        // Writing to a string cannot fail.
        for function in CALLED {
            let _ = writeln!(text, "#define wgsl_{function} {}", name_of(function));
        }
        let _ = writeln!(text, "#define KERNEL {name}\n#define TB_DYNAMIC_BYTES {bytes}u\n#define WIDE 0");
        let _ = writeln!(text, "#define NATIVE {}", u32::from(options.native));
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
            ("AT_ONCE", (shared / (bytes + RESERVED)).clamp(1, AT_ONCE_MAX)),
            ("STRETCHES", plan.stretches as u32),
            ("RESULT", plan.homes[self.result].expect("the result waits") as u32),
        ] {
            let _ = writeln!(text, "constexpr u32 {name} = {value}u;");
        }
        let _ = writeln!(text, "constexpr bool CAUSAL = {};", self.causal);
        text.push_str(&self.buffers(&parameters));
        let (head, tail) = TEXT.split_once(MARK).expect("the text has a place for the rows");
        let source =
            [&text, WARP, SCALE_BACK, DIGITS, FRAGMENTS, head, &rows::text(self, &plan, name_of), tail]
                .concat();
        let block = [THREADS, 1, 1];
        Ok(Some(Kernel { name, source, parameters, block, barriers: true, dynamic_shared: bytes }))
    }

    fn parameters(&self) -> Vec<Parameter> {
        let names =
            |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
        let (reads, writes) = (names("in", self.reads), names("out", self.writes));
        let mut arrays: Vec<(&str, u32, bool)> =
            ["a1", "magnitudes_a1", "b1", "magnitudes_b1", "b2", "magnitudes_b2"]
                .map(|name| (name, 4, false))
                .into();
        arrays.extend(reads.iter().map(|name| (&name[..], 4, false)));
        arrays.extend(writes.iter().map(|name| (&name[..], 4, true)));
        arrays.push(("output", 4, true));
        Parameter::by_hand(self.words().len() as u32, &arrays)
    }

    /// The entry point's parameters, and those of the steps as a struct.
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

    fn plan(&self) -> Plan {
        let mut pass: Vec<usize> = Vec::new();
        for step in &self.steps {
            let ready = |operand: &Operand| match *operand {
                Operand::Step(of) => pass[of] + usize::from(self.steps[of].operation.reduces()),
                _ => 0,
            };
            pass.push(step.operands.iter().map(ready).max().unwrap_or(0));
        }
        let passes = pass.iter().max().map_or(0, |last| last + 1);
        let last_of = |wanted: Operand| {
            let takes = |(i, step): (usize, &Step)| step.operands.contains(&wanted).then_some(pass[i]);
            self.steps.iter().enumerate().filter_map(takes).max().unwrap_or(0)
        };
        // The last pass that takes what waits in each stretch, the first product in the first of them. What a pass takes for the last time
        // leaves its place to what the same pass computes: a lane takes its group before it keeps what it made of it.
        let mut until = vec![last_of(Operand::Product)];
        let mut homes = vec![None; self.steps.len()];
        for now in 0..passes {
            for (i, step) in self.steps.iter().enumerate() {
                let last = if i == self.result { passes } else { last_of(Operand::Step(i)) };
                if pass[i] != now || !step.operation.has_places() || last <= now {
                    continue;
                }
                let home = until.iter().position(|until| *until <= now).unwrap_or_else(|| {
                    until.push(0);
                    until.len() - 1
                });
                until[home] = last;
                homes[i] = Some(home);
            }
        }
        let mut beyond: Vec<bool> = Vec::new();
        for step in &self.steps {
            let is_one = |operand: &Operand| match *operand {
                Operand::Product | Operand::OfRow { .. } | Operand::One { .. } => true,
                Operand::Step(of) => beyond[of] || !self.steps[of].operation.has_places(),
                Operand::Element { .. } | Operand::OfPlace { .. } => false,
            };
            let free = matches!(step.operation, Operation::Map { each_place: true, by_place: false, .. });
            let one = self.causal && free && step.operands.iter().all(is_one);
            beyond.push(one);
        }
        Plan { pass, homes, stretches: until.len(), beyond }
    }
}

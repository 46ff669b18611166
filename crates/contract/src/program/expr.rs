//! The bodies of elementwise operators: straight-line programs over the contract's scalar operations.
//!
//! A body is data. The scalar reference interprets it, the CPU engine runs it over blocks, and the GPU engines translate it
//! to shader text. The program's digest covers every instruction. So an elementwise operator has one meaning, and no engine
//! restates it. Each instruction rounds once, in the order written. Contract: `docs/ARITHMETIC.md`, sections 2, 3 and 6.

use std::borrow::Cow;

use crate::arith::{elementary, float, philox};

/// The most instructions a body may have; registers are numbered by instruction.
pub(crate) const INSTRUCTIONS_MAX: usize = 128;

/// A register: the result of the instruction with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reg(pub u8);

/// One instruction. All registers hold 32-bit words; `f` operations read them as binary32, the others as `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instr {
    /// The element of the k-th input view.
    Input(u8),
    /// A constant word (a binary32 pattern or an integer).
    Const(u32),
    /// The output index along dimension 0..=3 of the padded output shape.
    Index(u8),
    /// a + b.
    FAdd(Reg, Reg),
    /// a - b.
    FSub(Reg, Reg),
    /// a * b.
    FMul(Reg, Reg),
    /// a / b.
    FDiv(Reg, Reg),
    /// The square root.
    FSqrt(Reg),
    /// -a: the sign bit flipped, NaN to the one NaN.
    FNeg(Reg),
    /// e^x, correctly rounded.
    FExp(Reg),
    /// The natural logarithm, correctly rounded.
    FLog(Reg),
    /// The hyperbolic tangent, correctly rounded.
    FTanh(Reg),
    /// The error function, correctly rounded.
    FErf(Reg),
    /// 1 if a < b as binary32, else 0.
    FLt(Reg, Reg),
    /// An unsigned integer rounded to binary32.
    FFromU(Reg),
    /// a + b modulo 2^32.
    UAdd(Reg, Reg),
    /// a * b modulo 2^32.
    UMul(Reg, Reg),
    /// a and b, bit by bit.
    UAnd(Reg, Reg),
    /// Logical shift right; only the low five bits of the amount count.
    UShr(Reg, Reg),
    /// 1 if a < b as unsigned integers, else 0.
    ULt(Reg, Reg),
    /// 1 if a == b, else 0.
    UEq(Reg, Reg),
    /// a if the condition is not 0, else b.
    Select(Reg, Reg, Reg),
    /// Word `word & 3` of Philox4x32-10 with `key` and `counter` in registers.
    Philox {
        /// The key's two words.
        key: [Reg; 2],
        /// The counter's four words.
        counter: [Reg; 4],
        /// The number of the word in the block.
        word: Reg,
    },
}

/// A named body. The body's value is the last instruction's.
///
/// ```
/// use tiebreak_contract::program::expr::Body;
///
/// // x * x + 1, each operation rounded once.
/// let body = Body::new("square_plus_one.v1", |w| {
///     let (x, one) = (w.input(0), w.f(1.0));
///     let square = w.mul(x, x);
///     w.add(square, one)
/// });
/// assert_eq!(body.error(1), None);
/// assert_eq!(f32::from_bits(body.eval(&[3.0f32.to_bits()], [0; 4])), 10.0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    /// The versioned name that traces and verdicts print, such as `gelu_tanh.v1`.
    pub name: Cow<'static, str>,
    /// The instructions; register i is the result of instruction i.
    pub code: Vec<Instr>,
}

impl Instr {
    /// The registers this instruction reads.
    pub fn operands(&self) -> Vec<Reg> {
        use Instr::*;
        match *self {
            Input(_) | Const(_) | Index(_) => vec![],
            FSqrt(a) | FNeg(a) | FExp(a) | FLog(a) | FTanh(a) | FErf(a) | FFromU(a) => vec![a],
            FAdd(a, b)
            | FSub(a, b)
            | FMul(a, b)
            | FDiv(a, b)
            | FLt(a, b)
            | UAdd(a, b)
            | UMul(a, b)
            | UAnd(a, b)
            | UShr(a, b)
            | ULt(a, b)
            | UEq(a, b) => vec![a, b],
            Select(c, a, b) => vec![c, a, b],
            Philox { key, counter, word } => key.into_iter().chain(counter).chain([word]).collect(),
        }
    }

    /// The instruction's code in canonical encodings.
    #[doc(hidden)] // for the layers above
    pub fn opcode(&self) -> u8 {
        use Instr::*;
        match self {
            Input(_) => 0,
            Const(_) => 1,
            Index(_) => 2,
            FAdd(..) => 3,
            FSub(..) => 4,
            FMul(..) => 5,
            FDiv(..) => 6,
            FSqrt(_) => 7,
            FNeg(_) => 8,
            FExp(_) => 9,
            FLog(_) => 10,
            FTanh(_) => 11,
            FErf(_) => 12,
            FLt(..) => 13,
            FFromU(_) => 14,
            UAdd(..) => 15,
            UMul(..) => 16,
            UAnd(..) => 17,
            UShr(..) => 18,
            ULt(..) => 19,
            UEq(..) => 20,
            Select(..) => 21,
            Philox { .. } => 22,
        }
    }

    /// The instruction's value by the scalar reference.
    /// `register` gives earlier results, `inputs` the input elements, `index` the output index.
    pub fn eval(&self, register: impl Fn(Reg) -> u32, inputs: &[u32], index: [u32; 4]) -> u32 {
        use Instr::*;
        let r = register;
        match *self {
            Input(k) => inputs[k as usize],
            Const(word) => word,
            Index(dim) => index[dim as usize],
            FAdd(a, b) => float::add(r(a), r(b)),
            FSub(a, b) => float::sub(r(a), r(b)),
            FMul(a, b) => float::mul(r(a), r(b)),
            FDiv(a, b) => float::div(r(a), r(b)),
            FSqrt(a) => float::sqrt(r(a)),
            FNeg(a) => float::neg(r(a)),
            FExp(a) => elementary::exp(r(a)),
            FLog(a) => elementary::log(r(a)),
            FTanh(a) => elementary::tanh(r(a)),
            FErf(a) => elementary::erf(r(a)),
            FLt(a, b) => float::lt(r(a), r(b)),
            FFromU(a) => float::from_u32(r(a)),
            UAdd(a, b) => r(a).wrapping_add(r(b)),
            UMul(a, b) => r(a).wrapping_mul(r(b)),
            UAnd(a, b) => r(a) & r(b),
            UShr(a, b) => r(a) >> (r(b) & 31),
            ULt(a, b) => u32::from(r(a) < r(b)),
            UEq(a, b) => u32::from(r(a) == r(b)),
            Select(c, a, b) => {
                if r(c) != 0 {
                    r(a)
                } else {
                    r(b)
                }
            }
            Philox { key, counter, word } => {
                philox::philox4x32_10(key.map(&r), counter.map(&r))[(r(word) & 3) as usize]
            }
        }
    }
}

impl Body {
    /// Writes a body with a closure. The register that the closure returns is the last instruction's, and is the body's
    /// value.
    ///
    /// # Panics
    /// If the body is empty, too long, or its value is not the last instruction: faults of this crate's tables.
    pub fn new(name: &'static str, write: impl FnOnce(&mut BodyWriter) -> Reg) -> Body {
        let mut writer = BodyWriter { code: Vec::new() };
        let value = write(&mut writer);
        assert!(writer.code.len() <= INSTRUCTIONS_MAX, "body {name} is too long");
        assert_eq!(
            value.0 as usize + 1,
            writer.code.len(),
            "the value of body {name} is its last instruction"
        );
        Body { name: Cow::Borrowed(name), code: writer.code }
    }

    /// The number of inputs that the body reads (the greatest input number plus one).
    pub fn inputs(&self) -> usize {
        self.code.iter().map(|i| if let Instr::Input(k) = i { *k as usize + 1 } else { 0 }).max().unwrap_or(0)
    }

    /// The error that keeps the body from being a straight-line program over `inputs` input views, if there is one. Registers
    /// must be earlier ones, and numbers of inputs and dimensions must be in range.
    pub fn error(&self, inputs: usize) -> Option<String> {
        if self.code.is_empty() || self.code.len() > INSTRUCTIONS_MAX {
            return Some(format!("a body has 1 to {INSTRUCTIONS_MAX} instructions, not {}", self.code.len()));
        }
        for (at, instr) in self.code.iter().enumerate() {
            if instr.operands().iter().any(|reg| usize::from(reg.0) >= at) {
                return Some(format!("instruction {at} reads a register that is not there yet"));
            }
            match instr {
                Instr::Input(k) if usize::from(*k) >= inputs => {
                    return Some(format!("instruction {at} reads input {k} of {inputs}"));
                }
                Instr::Index(dim) if *dim > 3 => {
                    return Some(format!("instruction {at} reads dimension {dim}"));
                }
                _ => {}
            }
        }
        (self.inputs() != inputs).then(|| format!("the body reads {} of {inputs} inputs", self.inputs()))
    }

    /// The value for one element.
    pub fn eval(&self, inputs: &[u32], index: [u32; 4]) -> u32 {
        let mut registers = [0u32; INSTRUCTIONS_MAX];
        let mut value = 0;
        for (i, instr) in self.code.iter().enumerate() {
            value = instr.eval(|r| registers[r.0 as usize], inputs, index);
            registers[i] = value;
        }
        value
    }
}

/// Appends instructions to a body; equal instructions are shared.
pub struct BodyWriter {
    code: Vec<Instr>,
}

macro_rules! binary {
    ($($name:ident => $instr:ident),*) => {
        $(
/// Appends the instruction on two registers.
pub fn $name(&mut self, a: Reg, b: Reg) -> Reg { self.push(Instr::$instr(a, b)) })*
    };
}
macro_rules! unary {
    ($($name:ident => $instr:ident),*) => {
        impl BodyWriter {
            $(/// Appends the instruction on one register.
            pub fn $name(&mut self, a: Reg) -> Reg { self.push(Instr::$instr(a)) })*
        }

        /// Every instruction on one register: its name, and the function that appends it. Tests check each on all 2^32 words.
        pub const UNARY: &[(&str, fn(&mut BodyWriter, Reg) -> Reg)] = &[$((stringify!($name), BodyWriter::$name)),*];
    };
}

unary!(sqrt => FSqrt, neg => FNeg, exp => FExp, log => FLog, tanh => FTanh, erf => FErf, from_u => FFromU);

impl BodyWriter {
    fn push(&mut self, instr: Instr) -> Reg {
        if let Some(i) = self.code.iter().position(|have| *have == instr) {
            return Reg(i as u8);
        }
        self.code.push(instr);
        Reg((self.code.len() - 1) as u8)
    }

    /// Appends [`Instr::Input`]: the element of input view `k`.
    pub fn input(&mut self, k: u8) -> Reg {
        self.push(Instr::Input(k))
    }

    /// A binary32 constant, given as the nearest Rust literal.
    pub fn f(&mut self, value: f32) -> Reg {
        self.push(Instr::Const(value.to_bits()))
    }

    /// A constant word.
    pub fn word(&mut self, word: u32) -> Reg {
        self.push(Instr::Const(word))
    }

    /// Appends [`Instr::Index`]: the output index along dimension `dim`.
    pub fn index(&mut self, dim: u8) -> Reg {
        self.push(Instr::Index(dim))
    }

    binary!(add => FAdd, sub => FSub, mul => FMul, div => FDiv, lt => FLt, uadd => UAdd, umul => UMul,
            uand => UAnd, ushr => UShr, ult => ULt, ueq => UEq);
    /// Appends [`Instr::Select`]: `yes` if the condition is not 0, else `no`.
    pub fn select(&mut self, condition: Reg, yes: Reg, no: Reg) -> Reg {
        self.push(Instr::Select(condition, yes, no))
    }

    /// Appends [`Instr::Philox`].
    pub fn philox(&mut self, key: [Reg; 2], counter: [Reg; 4], word: Reg) -> Reg {
        self.push(Instr::Philox { key, counter, word })
    }
}

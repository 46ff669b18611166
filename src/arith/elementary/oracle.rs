//! An independent judge of the elementary functions: the platform's (or the `libm` crate's) binary64 functions with a
//! generous error bound where that decides, double-double where it does not. `tiebreak selftest --exhaustive` walks all
//! inputs with it; the inputs that need double-double most are also in the vectors that mpmath made.

use std::ops::Range;

use rayon::prelude::*;

use super::super::float::{canonical, is_nan};
use super::dd::Dd;
use super::slow;

/// A function of the contract that the oracle judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// e^x.
    Exp,
    /// The natural logarithm.
    Log,
    /// The hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
}

/// What a stretch of inputs came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Inputs that were judged.
    pub inputs: u64,
    /// Inputs whose result lies so near a middle that binary64 does not decide.
    pub hard: u64,
    /// Inputs whose result is not the correctly rounded one.
    pub wrong: u64,
    /// The binary32 pattern of the first such input.
    pub first_wrong: Option<u32>,
}

impl Tally {
    /// Adds the counts of a stretch that comes after this one.
    pub fn add(&mut self, other: Tally) {
        self.inputs += other.inputs;
        self.hard += other.hard;
        self.wrong += other.wrong;
        self.first_wrong = self.first_wrong.or(other.first_wrong);
    }
}

/// Error allowed to the binary64 functions: four units in the last place.
const ERROR: f64 = 1.0 / (1u64 << 50) as f64;

impl Function {
    fn binary64(self, x: f64) -> f64 {
        match self {
            Function::Exp => x.exp(),
            Function::Log => x.ln(),
            Function::Tanh => x.tanh(),
            Function::Erf => libm::erf(x),
        }
    }

    fn double_double(self, x: f64) -> Dd {
        let odd = |f: fn(f64) -> Dd| if x < 0.0 { f(-x).neg() } else { f(x) };
        match self {
            Function::Exp => slow::exp(x),
            Function::Log => slow::log(x),
            Function::Tanh => odd(slow::tanh),
            Function::Erf => odd(slow::erf),
        }
    }
}

/// The correctly rounded result, and whether binary64 did not decide it.
pub fn judge(function: Function, x: u32) -> (u32, bool) {
    let v = f64::from(f32::from_bits(x));
    let y = function.binary64(v);
    if is_nan(x) || y.is_nan() || y.is_infinite() || y == 0.0 {
        return (canonical(y as f32), false);
    }
    let slack = y * ERROR;
    let (low, high) = ((y - slack) as f32, (y + slack) as f32);
    if low.to_bits() == high.to_bits() {
        return (low.to_bits(), false);
    }
    // Results next to 1 or to x itself come from inputs so large or small that double-double cannot tell them from a
    // middle; there the exact result lies on the side of the middle that the mathematics says.
    let tiny = v.abs() < 2f64.powi(-20);
    match function {
        Function::Exp if tiny => (((1.0 + v) as f32).to_bits(), true),
        Function::Tanh if tiny => (x, true),
        Function::Tanh | Function::Erf if v.abs() > 3.9 && y.abs() > 1.0 - 2f64.powi(-40) => {
            (1f32.copysign(v as f32).to_bits(), true)
        }
        _ => (function.double_double(v).to_f32().to_bits(), true),
    }
}

/// Judges `compute` over a stretch of input patterns, on all threads.
pub fn check_range(function: Function, compute: fn(u32) -> u32, inputs: Range<u64>) -> Tally {
    let one = |x: u64| {
        let x = x as u32;
        let (right, hard) = judge(function, x);
        let wrong = compute(x) != right;
        Tally { inputs: 1, hard: hard.into(), wrong: wrong.into(), first_wrong: wrong.then_some(x) }
    };
    let sum = |mut a: Tally, b: Tally| {
        a.add(b);
        a
    };
    inputs.into_par_iter().map(one).reduce(Tally::default, sum)
}

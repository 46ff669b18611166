//! Digits and block of every product, by operator class: part of the job, so part of the program.

use serde::{Deserialize, Serialize};

use crate::arith::digits::DIGITS_MAX;
use crate::arith::rounding_grid::GridRule;

/// The position of a product in a model: forward products, and the two gradients of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProductClass {
    /// x W^T of a linear layer.
    Linear,
    /// dy W of a linear layer.
    LinearDx,
    /// dy^T x of a linear layer.
    LinearDw,
    /// A convolution: patches of its input times its kernels.
    Conv,
    /// The gradient of a convolution's input.
    ConvDx,
    /// The gradient of a convolution's kernels.
    ConvDw,
    /// The last linear layer before the loss: hidden W^T.
    Head,
    /// dlogits W.
    HeadDx,
    /// dlogits^T hidden.
    HeadDw,
    /// Attention scores q k^T.
    Scores,
    /// dscores k, the gradient of q.
    ScoresDq,
    /// dscores^T q, the gradient of k.
    ScoresDk,
    /// Attention values p v.
    Values,
    /// dout v^T, the gradient of p.
    ValuesDp,
    /// p^T dout, the gradient of v.
    ValuesDv,
}

impl ProductClass {
    /// Every class, in the order of their numbers.
    pub const ALL: [ProductClass; 15] = {
        use ProductClass::*;
        [
            Linear, LinearDx, LinearDw, Conv, ConvDx, ConvDw, Head, HeadDx, HeadDw, Scores, ScoresDq,
            ScoresDk, Values, ValuesDp, ValuesDv,
        ]
    };

    /// The name in job files.
    pub fn name(self) -> &'static str {
        use ProductClass::*;
        match self {
            Linear => "linear",
            LinearDx => "linear_dx",
            LinearDw => "linear_dw",
            Conv => "conv",
            ConvDx => "conv_dx",
            ConvDw => "conv_dw",
            Head => "head",
            HeadDx => "head_dx",
            HeadDw => "head_dw",
            Scores => "scores",
            ScoresDq => "scores_dq",
            ScoresDk => "scores_dk",
            Values => "values",
            ValuesDp => "values_dp",
            ValuesDv => "values_dv",
        }
    }
}

/// Digits of the two operands (a is the activation or incoming gradient) and the terms of a scale group along K (0 = all of K).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductDigits {
    /// Digits of the left operand, 1..=4.
    pub digits_a: u8,
    /// Digits of the right operand, 1..=4.
    pub digits_b: u8,
    /// Terms of a scale group along K; 0 = all of K.
    #[serde(default)]
    pub block: u32,
}

impl ProductDigits {
    /// The same digits for both operands, one scale group for all of K.
    pub fn uniform(digits: u8) -> ProductDigits {
        ProductDigits { digits_a: digits, digits_b: digits, block: 0 }
    }

    /// The error in these numbers, if there is one.
    #[doc(hidden)] // for the layers above
    pub fn error(&self) -> Option<String> {
        let fits = |d: u8| (1..=DIGITS_MAX as u8).contains(&d);
        if !fits(self.digits_a) || !fits(self.digits_b) {
            return Some(format!("digits must be 1 to {DIGITS_MAX}"));
        }
        if self.block != 0 && (self.block < 64 || !self.block.is_power_of_two()) {
            return Some("block must be 0 (all of K) or a power of two of at least 64".into());
        }
        None
    }
}

/// Products whose first operand's rows are wide in range: the loss's gradient, attention probabilities and their gradients.
const WIDE: [ProductClass; 6] = {
    use ProductClass::*;
    [HeadDx, HeadDw, ScoresDq, ScoresDk, Values, ValuesDv]
};

const CLASSES: usize = ProductClass::ALL.len();

/// The digits of every class, and the grids of the classes that native kernels may compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductTable {
    digits: [ProductDigits; CLASSES],
    logged: [Option<GridRule>; CLASSES],
}

impl ProductTable {
    /// Every product with the same digits.
    pub fn uniform(digits: u8) -> ProductTable {
        ProductTable { digits: [ProductDigits::uniform(digits); CLASSES], logged: [None; CLASSES] }
    }

    /// The default of the exact profile: three digits. Fewer digits leave binary32's loss curves while those are certain
    /// (`docs/LOSS-CURVES.md`).
    pub fn preset() -> ProductTable {
        ProductTable::uniform(3)
    }

    /// Two digits, and three for the operands whose rows are wide in range: the loss's gradient, attention probabilities and
    /// their gradients.
    #[doc(hidden)] // for the layers above
    pub fn two_and_three() -> ProductTable {
        let mut table = ProductTable::uniform(2);
        for class in WIDE {
            table.set(class, ProductDigits { digits_a: 3, digits_b: 2, block: 0 });
        }
        table
    }

    /// The default of the logged profile: three digits, and four for the operands whose rows are wide in range. A product must be
    /// known well below the steps that it is rounded to.
    pub fn logged_preset() -> ProductTable {
        let mut table = ProductTable::uniform(3);
        for class in WIDE {
            table.set(class, ProductDigits { digits_a: 4, digits_b: 3, block: 0 });
        }
        table
    }

    /// The table that inference has: attention values with one scale group along K, and without a grid. Groups of positions, and
    /// parts that are cut by an absmax, would make a row depend on later positions.
    pub(crate) fn of_inference(&self) -> ProductTable {
        let mut table = self.clone();
        table.digits[ProductClass::Values as usize].block = 0;
        table.logged[ProductClass::Values as usize] = None;
        table
    }

    /// The digits of a class.
    pub fn get(&self, class: ProductClass) -> ProductDigits {
        self.digits[class as usize]
    }

    /// Sets the digits of a class.
    pub fn set(&mut self, class: ProductClass, digits: ProductDigits) {
        self.digits[class as usize] = digits;
    }

    /// The grid that this class is rounded to, if native kernels may compute it.
    pub(crate) fn logged(&self, class: ProductClass) -> Option<GridRule> {
        self.logged[class as usize]
    }

    /// Rounds a class to a grid, so that native kernels may compute it.
    #[doc(hidden)] // for the layers above
    pub fn set_logged(&mut self, class: ProductClass, rule: GridRule) {
        self.logged[class as usize] = Some(rule);
    }
}

//! Intervals of numbers, and the results of operations on them. A result that may leave the range in which the operation is exact
//! is an error.

use naga::{BinaryOperator, ScalarKind};

use crate::refusal::Refusal;

/// Every number from the first to the second, of this kind. Truth values are 0 and 1; floats are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The least number.
    pub low: i128,
    /// The greatest number.
    pub high: i128,
    /// The kind of scalar.
    pub kind: ScalarKind,
}

/// The greatest integer up to which binary32 holds all.
const FLOAT_EXACT: i128 = 1 << 24;

impl Interval {
    /// One number.
    pub fn one(value: i128, kind: ScalarKind) -> Interval {
        Interval { low: value, high: value, kind }
    }

    /// Numbers up to this magnitude.
    pub fn within(magnitude: i128, kind: ScalarKind) -> Interval {
        Interval { low: -magnitude, high: magnitude, kind }
    }

    /// Every number of a kind.
    ///
    /// # Errors
    /// For floats, which have to be integers of known size.
    pub fn any(kind: ScalarKind) -> Result<Interval, Refusal> {
        let (low, high) = range(kind)?;
        Ok(Interval { low, high, kind })
    }

    /// The interval's number, if it has only one.
    pub fn only(self) -> Option<i128> {
        (self.low == self.high).then_some(self.low)
    }

    /// The greatest magnitude.
    pub fn magnitude(self) -> i128 {
        self.low.abs().max(self.high.abs())
    }

    /// The smallest interval that contains both.
    pub fn join(self, other: Interval) -> Interval {
        Interval { low: self.low.min(other.low), high: self.high.max(other.high), kind: self.kind }
    }

    /// The result in the kind's arithmetic.
    ///
    /// # Errors
    /// If a signed integer may overflow or a float may be rounded. Unsigned integers wrap.
    pub fn checked(self) -> Result<Interval, Refusal> {
        let (low, high) = match self.kind {
            ScalarKind::Float => (-FLOAT_EXACT, FLOAT_EXACT),
            kind => range(kind)?,
        };
        if self.low >= low && self.high <= high {
            return Ok(self);
        }
        match self.kind {
            ScalarKind::Uint => Interval::any(ScalarKind::Uint),
            ScalarKind::Float => Err(Refusal(format!("a float may be {} and rounded", self.magnitude()))),
            _ => Err(Refusal(format!("a signed sum may reach {} and overflow", self.magnitude()))),
        }
    }

    /// The same numbers in another kind.
    ///
    /// # Errors
    /// If some numbers do not fit that kind, and a float is involved.
    pub fn convert(self, kind: ScalarKind) -> Result<Interval, Refusal> {
        let converted = Interval { kind, ..self };
        match (self.kind, kind) {
            (ScalarKind::Uint, ScalarKind::Sint) | (ScalarKind::Sint, ScalarKind::Uint) => {
                let (low, high) = range(kind)?;
                if self.low >= low && self.high <= high { Ok(converted) } else { Interval::any(kind) }
            }
            _ => converted.checked(),
        }
    }
}

fn range(kind: ScalarKind) -> Result<(i128, i128), Refusal> {
    match kind {
        ScalarKind::Sint => Ok((i32::MIN.into(), i32::MAX.into())),
        ScalarKind::Uint => Ok((0, u32::MAX.into())),
        ScalarKind::Bool => Ok((0, 1)),
        other => Err(Refusal(format!("any number of kind {other:?}"))),
    }
}

/// All products of a number of each: the extremes are at the ends.
pub fn product(a: Interval, b: Interval) -> Interval {
    let ends = [a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high];
    let (low, high) = ends.iter().fold((ends[0], ends[0]), |(l, h), e| (l.min(*e), h.max(*e)));
    Interval { low, high, kind: a.kind }
}

/// All sums of a number of each.
pub fn sum(a: Interval, b: Interval) -> Interval {
    Interval { low: a.low + b.low, high: a.high + b.high, kind: a.kind }
}

/// The result of an operator on two scalars.
///
/// # Errors
/// If a signed integer may overflow, a float may be rounded, or the operator is not accepted.
pub fn binary(op: BinaryOperator, a: Interval, b: Interval) -> Result<Interval, Refusal> {
    use BinaryOperator as B;
    let truth = |always: bool, never: bool| Interval {
        low: i128::from(always),
        high: i128::from(!never),
        kind: ScalarKind::Bool,
    };
    match op {
        B::Add => sum(a, b).checked(),
        B::Subtract => sum(a, Interval { low: -b.high, high: -b.low, ..b }).checked(),
        B::Multiply => product(a, b).checked(),
        B::Divide if a.kind == ScalarKind::Uint && b.low > 0 => {
            Ok(Interval { low: a.low / b.high, high: a.high / b.low, ..a })
        }
        B::Modulo if a.kind == ScalarKind::Uint && b.low > 0 => match (a.only(), b.only()) {
            (Some(a_only), Some(b_only)) => Ok(Interval::one(a_only % b_only, a.kind)),
            _ => Ok(Interval { low: 0, high: b.high - 1, ..a }),
        },
        B::Less => Ok(truth(a.high < b.low, a.low >= b.high)),
        B::LessEqual => Ok(truth(a.high <= b.low, a.low > b.high)),
        B::Greater => Ok(truth(a.low > b.high, a.high <= b.low)),
        B::GreaterEqual => Ok(truth(a.low >= b.high, a.high < b.low)),
        B::Equal => Ok(truth(a.only().is_some() && a.only() == b.only(), a.high < b.low || a.low > b.high)),
        B::LogicalAnd | B::And if a.kind == ScalarKind::Bool => {
            Ok(Interval { low: a.low.min(b.low), high: a.high.min(b.high), ..a })
        }
        // A mask clears the sign.
        B::And if b.only().is_some_and(|mask| mask >= 0) => Ok(Interval { low: 0, high: b.high, ..a }),
        B::And | B::InclusiveOr | B::ExclusiveOr if a.kind != ScalarKind::Bool => Interval::any(a.kind),
        B::ShiftLeft => match b.only() {
            // Bits that are shifted out at the top are lost; splitting a q relies on that.
            Some(n @ 0..32) => {
                let shifted = Interval { low: a.low << n, high: a.high << n, ..a };
                shifted.checked().or_else(|_| Interval::any(a.kind))
            }
            _ => Interval::any(a.kind),
        },
        B::ShiftRight => match b.only() {
            Some(n @ 0..32) => Ok(Interval { low: a.low >> n, high: a.high >> n, ..a }),
            _ => Interval::any(a.kind),
        },
        other => Err(Refusal(format!("an operator is {other:?}"))),
    }
}

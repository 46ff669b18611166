//! Operators, built-in functions and conversions, by their names in the prelude.

use naga::{
    BinaryOperator, Expression, Handle, MathFunction, RelationalFunction, ScalarKind, TypeInner,
    UnaryOperator,
};

use super::error::{Group, Refusal, refuse};
use super::statements::Body;

const NOT_DEFINED: &str = "its bits are not defined, or it has no counterpart here";

/// The kind of a scalar or of a vector's components.
fn kind(inner: &TypeInner) -> Option<ScalarKind> {
    match inner {
        TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => Some(scalar.kind),
        _ => None,
    }
}

impl Body<'_, '_> {
    fn kind(&self, handle: Handle<Expression>) -> Result<ScalarKind, Refusal> {
        let inner = self.inner(handle);
        match kind(inner) {
            Some(kind) => Ok(kind),
            None => refuse(Group::Type, inner, "operators take scalars and vectors"),
        }
    }

    pub fn unary(&mut self, op: UnaryOperator, operand: Handle<Expression>) -> Result<String, Refusal> {
        self.kind(operand)?;
        let name = match op {
            UnaryOperator::Negate => "neg",
            UnaryOperator::LogicalNot => "logical_not",
            UnaryOperator::BitwiseNot => "bit_not",
        };
        Ok(format!("tb::{name}({})", self.value(operand)?))
    }

    pub fn binary(
        &mut self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<String, Refusal> {
        let float = self.kind(left)? == ScalarKind::Float;
        self.kind(right)?;
        let name = match op {
            BinaryOperator::Add => "add",
            BinaryOperator::Subtract => "sub",
            BinaryOperator::Multiply => "mul",
            BinaryOperator::Divide => "div",
            BinaryOperator::Modulo if float => return refuse(Group::Expression, op, NOT_DEFINED),
            BinaryOperator::Modulo => "mod",
            BinaryOperator::Equal => "eq",
            BinaryOperator::NotEqual => "ne",
            BinaryOperator::Less => "lt",
            BinaryOperator::LessEqual => "le",
            BinaryOperator::Greater => "gt",
            BinaryOperator::GreaterEqual => "ge",
            BinaryOperator::And | BinaryOperator::LogicalAnd => "bit_and",
            BinaryOperator::ExclusiveOr => "bit_xor",
            BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => "bit_or",
            BinaryOperator::ShiftLeft => "shl",
            BinaryOperator::ShiftRight => "shr",
        };
        let (left, right) = (self.value(left)?, self.value(right)?);
        Ok(format!("tb::{name}({left}, {right})"))
    }

    pub fn relational(
        &mut self,
        function: RelationalFunction,
        argument: Handle<Expression>,
    ) -> Result<String, Refusal> {
        match function {
            RelationalFunction::All => Ok(format!("tb::all({})", self.value(argument)?)),
            RelationalFunction::Any => Ok(format!("tb::any({})", self.value(argument)?)),
            other => refuse(Group::Function, other, NOT_DEFINED),
        }
    }

    pub fn math(
        &mut self,
        function: MathFunction,
        arguments: &[Handle<Expression>],
    ) -> Result<String, Refusal> {
        use MathFunction as F;
        let kind = match arguments {
            [first, ..] => self.kind(*first)?,
            [] => return refuse(Group::Function, function, "it has no arguments"),
        };
        let float = kind == ScalarKind::Float;
        let name = match function {
            F::Abs => "abs",
            F::Min => "min",
            F::Max => "max",
            F::Clamp => "clamp",
            F::Sign if !float => "sign",
            F::Fma => "fma",
            F::Sqrt => "sqrt",
            F::Floor => "floor",
            F::Ceil => "ceil",
            F::Trunc => "trunc",
            F::Round => "round",
            F::Dot if float => {
                return refuse(Group::Function, function, "the order of a float sum is not defined");
            }
            F::Dot => "dot",
            F::Dot4I8Packed => "dot_4x_i8",
            F::Dot4U8Packed => "dot_4x_u8",
            F::CountTrailingZeros => "count_trailing_zeros",
            F::CountLeadingZeros => "count_leading_zeros",
            F::CountOneBits => "count_one_bits",
            F::ReverseBits => "reverse_bits",
            F::ExtractBits => "extract_bits",
            F::InsertBits => "insert_bits",
            F::FirstTrailingBit => "first_trailing_bit",
            F::FirstLeadingBit => "first_leading_bit",
            F::Pack4xI8 | F::Pack4xU8 => "pack_4x_8",
            F::Pack4xI8Clamp => "pack_4x_i8_clamp",
            F::Pack4xU8Clamp => "pack_4x_u8_clamp",
            F::Unpack4xI8 => "unpack_4x_i8",
            F::Unpack4xU8 => "unpack_4x_u8",
            other => return refuse(Group::Function, other, NOT_DEFINED),
        };
        let arguments: Vec<String> =
            arguments.iter().map(|a| self.value(*a)).collect::<Result<_, Refusal>>()?;
        Ok(format!("tb::{name}({})", arguments.join(", ")))
    }

    pub fn conversion(
        &mut self,
        operand: Handle<Expression>,
        to: ScalarKind,
        convert: Option<u8>,
    ) -> Result<String, Refusal> {
        self.kind(operand)?;
        let wide = convert.is_some_and(|width| width != 4) && to != ScalarKind::Bool;
        let name = match (convert, to) {
            (_, _) if wide => return refuse(Group::Conversion, to, "scalars have 32 bits"),
            (Some(_), ScalarKind::Uint) => "to_u32",
            (Some(_), ScalarKind::Sint) => "to_i32",
            (Some(_), ScalarKind::Float) => "to_f32",
            (Some(_), ScalarKind::Bool) => "to_bool",
            (None, ScalarKind::Uint) => "as_u32",
            (None, ScalarKind::Sint) => "as_i32",
            (None, ScalarKind::Float) => "as_f32",
            (_, other) => return refuse(Group::Conversion, other, NOT_DEFINED),
        };
        Ok(format!("tb::{name}({})", self.value(operand)?))
    }
}

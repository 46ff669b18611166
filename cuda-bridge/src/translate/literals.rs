//! Literals.

use naga::Literal;

use super::error::{Group, Refusal, refuse};

/// A literal in C++, with the type that overloads are resolved by.
pub fn literal(literal: Literal) -> Result<String, Refusal> {
    Ok(match literal {
        Literal::U32(value) => format!("{value}u"),
        Literal::I32(i32::MIN) => "(-2147483647 - 1)".into(),
        Literal::I32(value) if value < 0 => format!("({value})"),
        Literal::I32(value) => value.to_string(),
        Literal::Bool(value) => value.to_string(),
        Literal::F32(value) if value.is_finite() => hexadecimal(value),
        other => return refuse(Group::Type, other, "literals are u32, i32, f32 and bool"),
    })
}

/// A finite float, exact to the bit.
fn hexadecimal(value: f32) -> String {
    let bits = value.to_bits();
    let sign = if bits >> 31 == 1 { "-" } else { "" };
    let (field, fraction) = (bits >> 23 & 0xff, (bits & 0x7f_ffff) << 1);
    match (field, fraction) {
        (0, 0) => format!("({sign}0.0f)"),
        (0, _) => format!("({sign}0x0.{fraction:06x}p-126f)"),
        _ => format!("({sign}0x1.{fraction:06x}p{}f)", field as i32 - 127),
    }
}

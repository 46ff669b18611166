//! WGSL's types as lists of scalars: words (u32, i32, f32 as its bits) and truth values.

use naga::{ArraySize, Function, Handle, Module, ScalarKind, Type, TypeInner};

use crate::refusal::Refusal;
use crate::term::{Sort, WORD};

/// The scalars of a type, in order of memory.
///
/// # Errors
/// If the type holds anything but 32-bit scalars and truth values.
pub fn scalars(module: &Module, inner: &TypeInner) -> Result<Vec<Sort>, Refusal> {
    let of = |ty: Handle<Type>| scalars(module, &module.types[ty].inner);
    let scalar = |scalar: &naga::Scalar| match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => Ok(Sort::Bool),
        (ScalarKind::Uint | ScalarKind::Sint | ScalarKind::Float, 4) => Ok(WORD),
        _ => Err(Refusal(format!("a scalar is {scalar:?}"))),
    };
    match inner {
        TypeInner::Scalar(s) => Ok(vec![scalar(s)?]),
        TypeInner::Vector { size, scalar: s } => Ok(vec![scalar(s)?; *size as usize]),
        TypeInner::Array { base, size: ArraySize::Constant(size), .. } => {
            let element = of(*base)?;
            Ok((0..size.get()).flat_map(|_| element.clone()).collect())
        }
        TypeInner::Struct { members, .. } => {
            let members: Result<Vec<_>, Refusal> = members.iter().map(|m| of(m.ty)).collect();
            Ok(members?.concat())
        }
        other => Err(Refusal(format!("a type is {other:?}"))),
    }
}

/// The offset of part `index` of a composite among its scalars, and the number of the part's scalars.
///
/// # Errors
/// If the type has no parts.
pub fn part(module: &Module, inner: &TypeInner, index: usize) -> Result<(usize, usize), Refusal> {
    let count = |ty: Handle<Type>| Ok(scalars(module, &module.types[ty].inner)?.len());
    match inner {
        TypeInner::Vector { size, .. } if index < *size as usize => Ok((index, 1)),
        TypeInner::Array { base, size: ArraySize::Constant(size), .. } if index < size.get() as usize => {
            let element = count(*base)?;
            Ok((index * element, element))
        }
        TypeInner::Struct { members, .. } if index < members.len() => {
            let before: Result<Vec<usize>, Refusal> = members[..index].iter().map(|m| count(m.ty)).collect();
            Ok((before?.iter().sum(), count(members[index].ty)?))
        }
        other => Err(Refusal(format!("there is no part {index} of {other:?}"))),
    }
}

/// The kind of a type's scalars.
///
/// # Errors
/// If the type is no scalar or vector.
pub fn kind(inner: &TypeInner) -> Result<ScalarKind, Refusal> {
    match inner {
        TypeInner::Scalar(s) | TypeInner::Vector { scalar: s, .. } => Ok(s.kind),
        other => Err(Refusal(format!("an operand is {other:?}"))),
    }
}

/// The name of a parameter.
pub fn parameter(function: &Function, index: usize) -> String {
    function.arguments[index].name.clone().unwrap_or_else(|| format!("argument{index}"))
}

//! The arithmetic library's functions that the processor has as instructions, and those that are computed in binary64.

use naga::{Function, Handle, Module, Scalar, Type, TypeInner, VectorSize};

/// A function that `natives.cuh` has too.
pub struct Native {
    pub name: &'static str,
    /// The number of arguments, all u32.
    arguments: usize,
    /// True if the result is a vec2<u32>, false for a u32.
    pair: bool,
}

const fn native(name: &'static str, arguments: usize, pair: bool) -> Native {
    Native { name, arguments, pair }
}

pub const NATIVES: [Native; 8] = [
    native("f_add", 2, false),
    native("f_sub", 2, false),
    native("f_mul", 2, false),
    native("f_div", 2, false),
    native("f_sqrt", 1, false),
    native("f_lt", 2, false),
    native("f_from_u32", 1, false),
    native("u32_mul", 2, true),
];

/// Functions that `binary64.cuh` computes, each of one u32, with their names there. Their own text decides if binary64 does not.
const BINARY64: [(&str, &str); 4] =
    [("f_exp", "exp"), ("f_log", "log"), ("f_tanh", "tanh"), ("f_erf", "erf")];

/// The text of `binary64.cuh`, for sources with any of its functions.
pub const BINARY64_TEXT: &str = include_str!("binary64.cuh");

/// The binary64 counterpart of a function whose name and signature are among these.
pub fn in_binary64(module: &Module, function: &Function) -> Option<&'static str> {
    let (_, name) = BINARY64.iter().find(|(name, _)| function.name.as_deref() == Some(*name))?;
    let is_word = |ty: Handle<Type>| module.types[ty].inner == TypeInner::Scalar(Scalar::U32);
    let same = matches!(&function.arguments[..], [x] if is_word(x.ty))
        && function.result.as_ref().is_some_and(|result| is_word(result.ty));
    same.then_some(*name)
}

/// The native counterpart of a function with the name and signature of one.
pub fn of(module: &Module, function: &Function) -> Option<&'static Native> {
    let native = NATIVES.iter().find(|native| function.name.as_deref() == Some(native.name))?;
    let inner = |ty: Handle<Type>| &module.types[ty].inner;
    let words = function.arguments.iter().all(|a| *inner(a.ty) == TypeInner::Scalar(Scalar::U32));
    let result = match native.pair {
        false => TypeInner::Scalar(Scalar::U32),
        true => TypeInner::Vector { size: VectorSize::Bi, scalar: Scalar::U32 },
    };
    let same = words
        && function.arguments.len() == native.arguments
        && function.result.as_ref().is_some_and(|r| *inner(r.ty) == result);
    same.then_some(native)
}

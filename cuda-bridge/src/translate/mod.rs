//! Translates a validated naga module to CUDA C++, with the bits that WGSL defines.
//!
//! The text is the same for NVRTC and for a host's compiler with `shim/shim.h`. Cases that WGSL defines and C++ does not
//! (overflow of signed integers, long shifts, division by zero, places out of bounds, variables without a value) are written out.
//! Integers wrap and shifts are masked. A quotient that does not exist is the dividend, and an index out of bounds becomes the
//! last one. Variables and workgroup memory begin as zeros. Operations on f32 are IEEE 754's, rounded once each and never
//! contracted, which is one of the results that WGSL allows. Constructs without defined bits (`sin`, derivatives) or without a
//! counterpart here (atomics, textures, subgroups) give a [`TranslateError`].

mod error;
mod expressions;
mod functions;
mod kernel;
mod literals;
mod natives;
mod operators;
mod places;
mod statements;
mod types;
mod writer;

pub use error::{Group, TranslateError};
pub use functions::{Functions, functions};
pub use kernel::{Kernel, Parameter, ParameterKind};
pub use writer::{Options, PRELUDE};

use naga::Module;
use naga::valid::ModuleInfo;

/// The names of the functions that [`Options::native`] replaces.
pub fn native_functions() -> impl Iterator<Item = &'static str> {
    natives::NATIVES.iter().map(|native| native.name)
}

/// Translates one entry point.
///
/// # Errors
/// If there is no such entry point, or it uses a construct that is not accepted; the error names it.
pub fn translate(
    module: &Module,
    info: &ModuleInfo,
    entry: &str,
    options: Options,
) -> Result<Kernel, TranslateError> {
    let index = module.entry_points.iter().position(|point| point.name == entry);
    let index = index.ok_or_else(|| TranslateError::NoEntryPoint { entry: entry.into() })?;
    kernel::translate(module, info, index, options)
}

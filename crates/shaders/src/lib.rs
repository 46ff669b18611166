//! The verifier's shaders, composed by the build script, and the lint that each must pass.
//!
//! The crate talks to no device and only gives texts. No float instruction that can round passes [`lint`]. Engines lint each text
//! before a driver gets it.
//!
//! Start with [`source`], a shader by its name, and [`lint::check`]. [`product`] completes the templates of the matrix product.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

pub mod compose;
pub mod lint;
pub mod product;

include!(concat!(env!("OUT_DIR"), "/shaders.rs"));

/// The text of the shader `shaders/NAME.wgsl`, includes expanded.
pub fn source(name: &str) -> Option<&'static str> {
    SHADERS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// Every shader, sorted by name.
pub fn all() -> &'static [(&'static str, &'static str)] {
    SHADERS
}

/// The shaders of `shaders/native`, sorted by name. They stand in for a trainer's own kernels, so they are not linted.
pub fn native() -> &'static [(&'static str, &'static str)] {
    NATIVE
}

/// The shader `shaders/native/NAME.wgsl`.
pub fn native_source(name: &str) -> Option<&'static str> {
    NATIVE.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// True if a text is, to the letter, a shader of `shaders/native`.
pub fn is_native(text: &str) -> bool {
    NATIVE.iter().any(|(_, native)| *native == text)
}

/// Expands the includes of a shader that is written at run time.
///
/// # Errors
/// If an included file does not exist.
pub fn compose_text(name: &str, text: &str) -> Result<String, compose::ComposeError> {
    compose::compose(name, text, &|file| SHARED.iter().find(|(n, _)| *n == file).map(|(_, text)| *text))
}

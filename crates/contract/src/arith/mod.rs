//! The arithmetic contract in plain scalar Rust: the reference that every engine is held to.
//!
//! Values are binary32 *bit patterns* (`u32`), so that nothing between here and a hash can change a bit. The
//! contract itself is `docs/ARITHMETIC.md`. This module imports nothing else of the crate.

pub mod digits;
pub mod elementary;
pub mod float;
pub mod philox;
pub mod rounding_grid;
pub mod tree;
pub(crate) mod turns;
pub mod words;

/// The type of a tensor's elements. The discriminants are part of every tensor's commitment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// binary32 bit patterns; a NaN is always [`float::NAN`].
    F32,
    /// 32-bit unsigned integers: indices, counters, masks, group absmaxes.
    U32,
    /// 8-bit unsigned integers: bytes of text, pixels.
    U8,
    /// bfloat16 bit patterns (storage only).
    Bf16,
    /// Quantised integers of `d` base-256 digits (1..=4): `d`-byte little-endian two's complement.
    Q(u8),
}

impl DType {
    /// Bytes of one element in the canonical (committed) layout.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::U8 => 1,
            DType::Bf16 => 2,
            DType::Q(d) => d as usize,
        }
    }

    /// The code that stands for this type in canonical encodings.
    pub fn code(self) -> u8 {
        match self {
            DType::F32 => 1,
            DType::U32 => 2,
            DType::U8 => 3,
            DType::Bf16 => 4,
            DType::Q(d) => 16 + d,
        }
    }
}

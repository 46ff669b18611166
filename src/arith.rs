//! Numbers: compute one as the contract has it, as binary32 bit patterns.
//!
//! A sum of binary32 numbers is a sum of their bit patterns:
//!
//! ```
//! use tiebreak::arith::float;
//!
//! assert_eq!(float::add(1.5f32.to_bits(), 2.0f32.to_bits()), 3.5f32.to_bits());
//! assert_eq!(float::sub(float::INFINITY, float::INFINITY), float::NAN); // there is one NaN
//! ```
//!
//! Many terms are added in the order of one fixed tree:
//!
//! ```
//! use tiebreak::arith::tree;
//!
//! let terms = [1e8f32, 1.0, -1e8, 1.0].map(f32::to_bits);
//! assert_eq!(tree::sum(terms), 0.0f32.to_bits()); // (1e8 + 1) + (-1e8 + 1)
//! ```
//!
//! A product is exact over the integers of its operands, and rounds once:
//!
//! ```
//! use tiebreak::arith::digits::{dot, group_absmax, quantise};
//!
//! let (a, b) = ([1.0f32, 2.0].map(f32::to_bits), [3.0f32, 4.0].map(f32::to_bits));
//! let [absmax_a, absmax_b] = [group_absmax(a), group_absmax(b)];
//! let integers = |words: [u32; 2], absmax| words.map(|word| quantise(word, absmax, 3));
//! let sum = dot(&integers(a, absmax_a), &integers(b, absmax_b), absmax_a, absmax_b, 3, 3);
//! assert_eq!(f32::from_bits(sum), 11.0);
//! ```
//!
//! Functions round correctly:
//!
//! ```
//! use tiebreak::arith::{elementary, float};
//!
//! assert_eq!(elementary::exp(0.0f32.to_bits()), float::ONE);
//! assert_eq!(f32::from_bits(elementary::log(2.0f32.to_bits())), std::f32::consts::LN_2);
//! ```
//!
//! Randomness is Philox4x32-10, so that anybody draws the same words:
//!
//! ```
//! use tiebreak::arith::philox::philox4x32_10;
//!
//! assert_eq!(philox4x32_10([0; 2], [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
//! ```
//!
//! Tensors travel as little-endian bytes:
//!
//! ```
//! use tiebreak::arith::DType;
//! use tiebreak::arith::words::{bytes_of, words_from_bytes};
//!
//! let words = [1.0f32.to_bits(), 2.0f32.to_bits()];
//! assert_eq!(bytes_of(&words), [0, 0, 128, 63, 0, 0, 0, 64]);
//! assert_eq!(words_from_bytes(DType::F32, &bytes_of(&words)), words);
//! ```

#[doc(inline)]
pub use tiebreak_contract::arith::{DType, elementary, philox};

/// The matrix product: digits, exact integer sums, one rounding.
pub mod digits {
    #[doc(inline)]
    pub use tiebreak_contract::arith::digits::{
        ProductPart, dot, exponent, group_absmax, quantise, scale_back,
    };
}

/// Operations on binary32 bit patterns, each of which rounds once.
pub mod float {
    #[doc(inline)]
    pub use tiebreak_contract::arith::float::{
        INFINITY, NAN, NEG_INFINITY, ONE, add, canonical, div, from_u32, lt, mul, neg, sqrt, sub,
    };
}

/// The numbers that a logged product may be rounded to.
pub mod rounding_grid {
    #[doc(inline)]
    pub use tiebreak_contract::arith::rounding_grid::GridRule;
}

/// Sums in the order of one fixed tree.
pub mod tree {
    #[doc(inline)]
    pub use tiebreak_contract::arith::tree::sum;
}

/// Tensors as little-endian bytes.
pub mod words {
    #[doc(inline)]
    pub use tiebreak_contract::arith::words::{bytes_from_words, bytes_of, words_from_bytes};
}

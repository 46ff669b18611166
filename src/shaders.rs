//! The verifier's WGSL, composed and linted.
//!
//! Every shader of the verifier passes the lint:
//!
//! ```
//! use tiebreak::shaders::{all, lint::check};
//!
//! let (name, text) = all()[0];
//! assert!(check(name, text).is_ok());
//! ```

#[doc(inline)]
pub use tiebreak_shaders::{all, source};

/// The rules of shaders that give the same bits everywhere.
pub mod lint {
    #[doc(inline)]
    pub use tiebreak_shaders::lint::{Rule, Violation, check};
}

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
pub use tiebreak_shaders::{all, compose_text, source};

/// The rules of shaders that give the same bits everywhere.
pub mod lint {
    #[doc(inline)]
    pub use tiebreak_shaders::lint::{Rule, Violation, check};
}

/// Shaders from texts with includes.
pub mod compose {
    #[doc(inline)]
    pub use tiebreak_shaders::compose::{ComposeError, compose};
}

//! The dispute game between machines, over HTTP and by files.
//!
//! A party knows its referee by a header that nobody else can make:
//!
//! ```
//! use tiebreak::commit::digest::Digest;
//! use tiebreak::commit::keys::PrivateKey;
//! use tiebreak::net::pass::Pass;
//!
//! let party = PrivateKey::generate("party.example", [1; 32])?;
//! let referee = PrivateKey::generate("referee.example", [2; 32])?;
//! let game = Digest([3; 32]);
//! let made = Pass::new(&referee, &party.public(), &game).header(b"a question");
//! assert_eq!(made, Pass::new(&party, &referee.public(), &game).header(b"a question"));
//! # Ok::<(), tiebreak::commit::Malformed>(())
//! ```

/// The desk of a party, which keeps each answer before it gives it.
pub mod desk {
    #[doc(inline)]
    pub use tiebreak_game::net::desk::{Desk, Refused, Respond};
}

/// The journal of a referee, from which it continues a game.
pub mod journal {
    #[doc(inline)]
    pub use tiebreak_game::net::journal::{Entry, Journal};
}

/// A referee's connection to a party.
pub mod link {
    #[doc(inline)]
    pub use tiebreak_game::net::link::Link;
}

/// The header by which a party knows its referee's requests.
pub mod pass {
    #[doc(inline)]
    pub use tiebreak_game::net::pass::Pass;
}

/// The referee's loop.
pub mod referee {
    #[doc(inline)]
    pub use tiebreak_game::net::referee::{Machine, Said, play};
}

/// A party over HTTP.
pub mod server {
    #[doc(inline)]
    pub use tiebreak_game::net::server::{Server, ServerLimits};
}

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

#[doc(inline)]
pub use tiebreak_game::net::{clock, desk, journal, link, pass, referee, server, stop};

//! Disputes: verdicts that stand alone, and the referee of a game.
//!
//! A verdict is checked from its bytes alone, without a run or an engine:
//!
//! ```
//! use tiebreak::dispute::verdict::{Ruling, Verdict};
//!
//! let file = std::fs::read("assets/verdicts/operator.json")?;
//! match Verdict::from_bytes(&file)?.check(None)? {
//!     Ruling::Convicts(finding) => assert_eq!(finding.step, 17),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Bytes that are no verdict are an error:
//!
//! ```
//! use tiebreak::dispute::game::verdict::GameVerdict;
//! use tiebreak::dispute::verdict::Verdict;
//!
//! assert!(Verdict::from_bytes(b"{}").is_err());
//! assert!(GameVerdict::from_bytes(b"{}").is_err());
//! ```
//!
//! A message that nobody signed has no effect:
//!
//! ```
//! use tiebreak::commit::digest::Digest;
//! use tiebreak::commit::keys::PrivateKey;
//! use tiebreak::dispute::game::message::{Asked, Question, Sealed};
//!
//! let referee = PrivateKey::generate("referee.example", [9; 32])?;
//! let game = Digest([1; 32]);
//! let sealed = Sealed::new(Asked::new(game, 0, Question::Record { index: 1 }), &referee).to_bytes();
//! assert!(Asked::read(&sealed, 1 << 10, &referee.public(), &game).is_ok());
//! assert!(Asked::read(&sealed, 1 << 10, &referee.public(), &Digest([2; 32])).is_err());
//! # Ok::<(), tiebreak::commit::Malformed>(())
//! ```

#[doc(inline)]
pub use tiebreak_dispute::{check, fact, verdict};

/// The checker of single elements.
pub mod evidence {
    #[doc(inline)]
    pub use tiebreak_dispute::evidence::proven;
}

/// The dispute game: messages, terms, the referee as a pure state machine.
pub mod game {
    #[doc(inline)]
    pub use tiebreak_dispute::game::{breach, message, reason, referee, result, terms, tried, verdict};

    /// The rules that follow from a game's terms.
    pub mod rules {
        #[doc(inline)]
        pub use tiebreak_dispute::game::rules::{Fault, Rules};
    }

    /// The way of a search through a tree.
    pub mod search {
        #[doc(inline)]
        pub use tiebreak_dispute::game::search::Join;
    }

    /// The questions of a game, and the most that each costs.
    pub mod moves {
        #[doc(inline)]
        pub use tiebreak_dispute::game::moves::{Bound, QuestionKind, SupplyBound};
    }
}

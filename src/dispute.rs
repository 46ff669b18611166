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

/// The check of a verdict, step by step.
pub mod check {
    #[doc(inline)]
    pub use tiebreak_dispute::check::Examination;
}

/// The facts that evidence decides, as values and as sentences.
pub mod fact {
    #[doc(inline)]
    pub use tiebreak_dispute::fact::{Fact, OutputPart, Right, Wrong};
}

/// The dispute game: messages, terms, the referee as a pure state machine.
pub mod game {
    /// The breaches by which a party loses, as values and as sentences.
    pub mod breach {
        #[doc(inline)]
        pub use tiebreak_dispute::game::breach::{
            Basis, BlockOfLog, Breach, Leeway, LegalRange, RecordFault, Unsettled,
        };
    }

    /// The questions of a referee and the answers of parties, sealed by their authors.
    pub mod message {
        #[doc(inline)]
        pub use tiebreak_dispute::game::message::{
            Answer, Answered, Asked, Field, Fold, LogBlock, LogPlace, Need, Question, Seal, Sealed,
            Statement, Subject, Supplied, Tree,
        };
    }

    /// The questions of a game, and the most that a game costs.
    pub mod moves {
        #[doc(inline)]
        pub use tiebreak_dispute::game::moves::{Bound, QuestionKind, SupplyBound};
    }

    /// The reasons of losses, and which of them convict.
    pub mod reason {
        #[doc(inline)]
        pub use tiebreak_dispute::game::reason::Reason;
    }

    /// The referee, a state machine that takes messages and the time.
    pub mod referee {
        #[doc(inline)]
        pub use tiebreak_dispute::game::referee::{Ask, Referee, Taken};
    }

    /// The result of a game.
    pub mod result {
        #[doc(inline)]
        pub use tiebreak_dispute::game::result::{GameResult, Loss, Played, Told};
    }

    /// The terms of a game, which all parties know before its first question.
    pub mod terms {
        #[doc(inline)]
        pub use tiebreak_dispute::game::terms::{
            Claim, ClaimedRun, Clocks, DisputedReceipt, INCREMENT_MIN, MOVES_MIN, Terms,
        };
    }

    /// The attempts to reach a party that lost by the clock.
    pub mod tried {
        #[doc(inline)]
        pub use tiebreak_dispute::game::tried::{End, Tried};
    }

    /// The file of a finished game, which anybody plays again.
    pub mod verdict {
        #[doc(inline)]
        pub use tiebreak_dispute::game::verdict::{Event, GameVerdict};
    }
}

/// Verdicts: the files, and what a check of one says.
pub mod verdict {
    #[doc(inline)]
    pub use tiebreak_dispute::verdict::{
        Claim, DataSlices, Disclosed, Finding, Fork, LogSlices, PhaseName, ProvenInput, ProvenTensor,
        Rounded, RoundingClaim, Ruling, Scalar, TileClaim, Verdict, WeightsClaim,
    };
}

//! Verdicts: random bytes never convict.
#![no_main]

use tiebreak_dispute::answer::{AnswerRuling, AnswerVerdict};
use tiebreak_dispute::verdict::{Ruling, Verdict};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(verdict) = Verdict::from_bytes(bytes) {
        assert!(!matches!(verdict.check(None), Ok(Ruling::Convicts(_))));
    }
    if let Ok(verdict) = AnswerVerdict::from_bytes(bytes) {
        assert!(!matches!(verdict.examine(None).outcome, Ok(AnswerRuling::Convicts(_))));
    }
});

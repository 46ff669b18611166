//! What a check of a verdict on a receipt comes to.

use tiebreak_record::commit::digest::Digest;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerRuling {
    /// The evidence shows the fault, in words, whoever wrote the file.
    Convicts(String),
    /// The evidence is consistent with an honest signer.
    DoesNotConvict(String),
    /// The candidates follow from the tokenizer with this digest, which the check was not given.
    NeedsTokenizer(Digest),
}

/// A fact that holds for an honest signer, or that another one signed.
pub(super) fn ruling(holds: bool, right: impl Into<String>, wrong: impl Into<String>) -> AnswerRuling {
    if holds { AnswerRuling::DoesNotConvict(right.into()) } else { AnswerRuling::Convicts(wrong.into()) }
}

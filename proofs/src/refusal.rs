//! The reason why something has no translation or no bound.

/// The construct that is not accepted, in words.
#[derive(Debug)]
pub struct Refusal(pub String);

//! Why something has no translation or no bound.

/// What is not accepted, in words.
#[derive(Debug)]
pub struct Refusal(pub String);

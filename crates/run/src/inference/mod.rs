//! Answers of language models: the logits behind a text ([`decoder`]) or several ([`batch`]), an answer with its receipt ([`answer`]),
//! and the replay of a receipt ([`replay`]). Contract: `docs/INFERENCE.md`.

pub mod answer;
pub mod batch;
pub mod decoder;
mod kept;
pub mod replay;
mod steps;
pub mod traced;

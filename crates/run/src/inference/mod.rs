//! Answers of language models: the logits behind a text ([`decoder`]), and the replay of a receipt ([`replay`]). Contract:
//! `docs/INFERENCE.md`.

pub mod decoder;
pub mod replay;

//! Answers of language models: the logits behind a text ([`decoder`]). Contract: `docs/INFERENCE.md`.

pub mod decoder;

//! Recognises files that somebody names as token ids by mistake: other formats by their first and last bytes, other widths by
//! their zeros.
//!
//! A raw file has no header, so any bytes could be ids. A format is recognised by four fixed bytes or more and by its
//! specification's rules for the bytes after them. A file of random ids begins like that with a chance of less than 2^-32.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

mod formats;
mod llm_c;
mod look;
mod plain;
mod stand_in;
mod width;

pub use formats::Format;
pub use llm_c::LlmC;
pub use look::{Look, Looking};
pub use plain::open_plain;
pub use stand_in::StandIn;
pub use width::{Width, other_width};

/// The files of a tokenizer, and the files that are used with it: a run keeps files with these names, and no others.
pub const TOKENIZER_FILES: [&str; 13] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
];
/// The suffix that turns the name of a file of token ids into the name of its tokenizer's folder.
pub const OF_TOKENS: &str = ".tokenizer";

//! What a file really is that somebody names as token ids: other formats are known by their first and last bytes, other widths by their zeros.
//!
//! A raw file has no header, so any bytes could be ids. A format is found by four fixed bytes or more and by what its specification says of the bytes
//! after them. A file of ids begins so with a chance of less than 2^-32 if its ids are random.

mod formats;
mod llm_c;
mod look;
mod stand_in;
mod width;

pub use formats::Format;
pub use llm_c::LlmC;
pub use look::{Look, Looking};
pub use stand_in::StandIn;
pub use width::{Width, other_width};

/// The files that a tokenizer is made of, and what is used with it: a run keeps those of these names, and no others.
pub const TOKENIZER_FILES: [&str; 12] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
];
/// What follows the name of a file of token ids in the name of the folder where its tokenizer is.
pub const OF_TOKENS: &str = ".tokenizer";

//! Tokenizers in the forms that people have on disk: a tokenizer.json, the two files of GPT-2 under either names, or a folder
//! with one of these. Also the positions where a text may be cut for them.
//!
//! A tokenizer is a stranger's file. [`Loaded`] runs it in a process of its own, with bounds on time and memory: whatever it makes the
//! library do ends that process alone.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

pub mod chat;
mod files;
mod loaded;
mod local;
pub mod process;
mod serve;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use files::{FILE_MAX, FILES_MAX};
pub use loaded::{Bounds, Loaded};
pub use serve::serve_if_asked;
pub use worker::MEMORY;

/// The number that every id is below: the largest that a job's `model.vocabulary` may be.
pub const VOCABULARY_MAX: u32 = 1 << 20;
/// The most bytes of a tokenizer's settings, of which a program makes values in its own memory.
pub const SETTINGS_MAX: usize = 1 << 24;

/// The patterns by which GPT-4, Llama 3 and Qwen 2 split a text before merges, except for the digits that they take together. In
/// each a blank begins a match. So no match crosses the position before a blank that follows a character that is no white space.
/// Lookaheads work inside of white space only.
pub const SPLITS: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
];

/// The positions where a text may be cut so that the tokens of the parts are the tokens of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Before white space that follows another character.
    WhiteSpace,
    /// Before a blank that follows a character that is no white space.
    Blank,
    /// No position is known.
    Nowhere,
}

/// The reasons why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine could not read a file.
    #[error("{0:?}: {1}")]
    Io(PathBuf, io::Error),
    /// A file or folder is not what it should be.
    #[error("{0:?}: {1}")]
    Malformed(PathBuf, String),
}

impl Error {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        |why| match why.kind() {
            io::ErrorKind::InvalidData => Error::malformed(path, why),
            _ => Error::Io(path.into(), why),
        }
    }

    fn malformed(path: &Path, why: impl std::fmt::Display) -> Error {
        Error::Malformed(path.into(), why.to_string())
    }
}

/// The positions where texts may be cut for the tokenizer that a tokenizer.json describes.
pub fn cuts(description: &Value) -> Cuts {
    let kind = |value: &Value| value["type"].as_str().map(str::to_string);
    // NFC joins nothing across white space; other normalizers could look at a text's ends.
    let normalizer = &description["normalizer"];
    let normal = normalizer.is_null() || kind(normalizer).as_deref() == Some("NFC");
    // An added token that has white space or strips its surroundings could lie across a cut.
    let none = Vec::new();
    let added = description["added_tokens"].as_array().unwrap_or(&none);
    let crosses = |token: &Value| {
        let is = |key: &str| token[key].as_bool().unwrap_or(false);
        let blank = token["content"].as_str().is_none_or(|text| text.contains(char::is_whitespace));
        blank || is("lstrip") || is("rstrip") || is("single_word")
    };
    if !normal || added.iter().any(crosses) {
        return Cuts::Nowhere;
    }
    let byte_level = |value: &Value, regex: bool| {
        kind(value).as_deref() == Some("ByteLevel")
            && value["add_prefix_space"] == json!(false)
            && value["use_regex"].as_bool().unwrap_or(true) == regex
    };
    let before = &description["pre_tokenizer"];
    if byte_level(before, true) {
        return Cuts::WhiteSpace;
    }
    match before["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([split, bytes]) if byte_level(bytes, false) => {
            let pattern = split["pattern"]["Regex"].as_str().unwrap_or("");
            let known = SPLITS.contains(&pattern)
                && split["behavior"] == "Isolated"
                && split["invert"] == json!(false);
            if known { Cuts::Blank } else { Cuts::Nowhere }
        }
        _ => Cuts::Nowhere,
    }
}

//! Tokens as a tokenizer's library has them. A run's tokenizer is somebody else's file, and so works in a process of its own: what makes
//! the library fail is an error, not an end.

use std::fmt::Display;
use std::path::Path;

use serde_json::Value;
use tiebreak_tokenizer::chat::Template;
use tiebreak_tokenizer::{Bounds, Loaded, SETTINGS_MAX};

use crate::cli::view::report::{Exit, Failure};
use tiebreak_dispute::answer::TokenizerParts;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::root;
use tiebreak_remote::is_address;
use tiebreak_run::run::companions::{CONFIG, Companions, FILE_MAX, GENERATION};
use tiebreak_run::run::disk;

/// The token that ends texts of GPT-2 and many others, where no file says which does.
const END: &str = "<|endoftext|>";

/// A tokenizer with what ends its texts.
pub struct Tokens {
    loaded: Loaded,
    /// The tokenizer's files by their digests, and the tokens with which a text ends.
    pub parts: TokenizerParts,
    /// The chat template, or why there is none.
    pub template: Result<Template, String>,
}

/// The bounds of a tokenizer: it makes tokens of one text at a time.
const BOUNDS: Bounds = Bounds { seconds: 60, threads: 1, help: "shorten the text" };

/// The failure of a tokenizer.
fn failed(why: impl Display) -> Failure {
    Failure::new(Exit::Malformed, format!("{why}; --tokenizer PATH names another tokenizer"))
}

impl Tokens {
    /// The tokenizer at a path, or at an address. `beside`: the files that are there with it, at an address all of them.
    pub fn open(path: &Path, beside: &Companions) -> Result<Tokens, Failure> {
        let elsewhere = is_address(path);
        let loaded = match elsewhere {
            true => Loaded::of_memory(path, |name| beside.get(name), BOUNDS).map_err(failed)?,
            false => Loaded::open(path, BOUNDS).map_err(failed)?,
        };
        let ends = ends(|name| beside.get(name), |token| loaded.id(token)).map_err(failed)?;
        let mut files: Vec<(String, Digest)> =
            beside.of_tokenizer().map(|(name, bytes)| (name.into(), Digest(root(bytes)))).collect();
        if !elsewhere && !path.is_dir() {
            files.push(("tokenizer.json".into(), Digest(root(&disk::read(path, FILE_MAX)?))));
        }
        let template = Template::of(|name| beside.get(name));
        Ok(Tokens { loaded, parts: TokenizerParts { files, ends }, template })
    }

    /// The tokens of a text.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, Failure> {
        self.loaded.ids(text).map_err(failed)
    }

    /// True if a token has this id.
    pub fn has(&self, id: u32) -> bool {
        self.loaded.has(id)
    }

    /// The text of tokens that follow the first `given`: it may begin otherwise than theirs alone.
    pub fn after(&self, ids: &[u32], given: usize) -> Result<String, Failure> {
        let text = |ids: &[u32]| self.loaded.text(ids).map_err(failed);
        match text(ids)?.strip_prefix(&text(&ids[..given])?) {
            Some(rest) => Ok(rest.into()),
            None => text(&ids[given..]),
        }
    }
}

/// The tokens that end a text: what the model's files say of generation, else its configuration, else its tokenizer's settings.
fn ends<'a>(
    get: impl Fn(&str) -> Option<&'a [u8]>,
    id: impl Fn(&str) -> Result<Option<u32>, String>,
) -> Result<Vec<u32>, String> {
    let settings = |name: &str| get(name).filter(|bytes| bytes.len() <= SETTINGS_MAX);
    let json = |name: &str| settings(name).and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    for name in [GENERATION, CONFIG] {
        let said = json(name).map(|settings| settings["eos_token_id"].clone()).unwrap_or_default();
        let ids: Vec<u32> = match &said {
            Value::Array(all) => all.iter().filter_map(number).collect(),
            one => number(one).into_iter().collect(),
        };
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    for name in ["tokenizer_config.json", "special_tokens_map.json"] {
        let said = json(name).map(|settings| settings["eos_token"].clone()).unwrap_or_default();
        let token = said.as_str().or_else(|| said["content"].as_str());
        if let Some(id) = token.map(&id).transpose()?.flatten() {
            return Ok(vec![id]);
        }
    }
    Ok(id(END)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_what_the_nearest_file_says() {
        let of = |files: &[(&str, &'static str)]| {
            let get =
                |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.as_bytes());
            let id = |token: &str| ["<s>", "</s>", END].iter().position(|known| *known == token);
            ends(get, |token| Ok(id(token).map(|id| id as u32))).unwrap()
        };
        let generation = ("generation_config.json", r#"{"eos_token_id":[7,9]}"#);
        let config = ("config.json", r#"{"eos_token_id":5}"#);
        let settings = ("tokenizer_config.json", r#"{"eos_token":{"content":"</s>"}}"#);
        let map = ("special_tokens_map.json", r#"{"eos_token":"<s>"}"#);
        assert_eq!(of(&[map, settings, config, generation]), [7, 9]);
        assert_eq!(of(&[map, settings, config]), [5]);
        assert_eq!(of(&[map, settings]), [1]);
        assert_eq!(of(&[map, ("generation_config.json", r#"{"eos_token_id":null}"#)]), [0]);
        assert_eq!(of(&[("config.json", r#"{"eos_token_id":-1}"#)]), [2]);
    }
}

//! Tokens as a tokenizer's library has them. A run's tokenizer is somebody else's file: what makes the library fail is an error, not an end.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use serde_json::Value;
use tiebreak_tokenizer::Loaded;
use tiebreak_tokenizer::chat::Template;

use crate::cli::view::report::{Exit, Failure};
use tiebreak_dispute::answer::TokenizerParts;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::root;
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

/// Runs what could panic. The panic's own message could quote foreign text, so it is not printed.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, Failure> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    panic::set_hook(hook);
    let done = done.unwrap_or_else(|_| Err("the tokenizer's library fails with this tokenizer".into()));
    done.map_err(|why| {
        Failure::new(Exit::Malformed, format!("{why}; --tokenizer PATH names another tokenizer"))
    })
}

impl Tokens {
    /// The tokenizer at a path. `beside`: the files that are there with it.
    pub fn open(path: &Path, beside: &Companions) -> Result<Tokens, Failure> {
        let loaded = guarded(|| Loaded::open(path).map_err(|why| why.to_string()))?;
        let ends = ends(|name| beside.get(name), |token| loaded.id(token));
        let mut files: Vec<(String, Digest)> =
            beside.of_tokenizer().map(|(name, bytes)| (name.into(), Digest(root(bytes)))).collect();
        if !path.is_dir() {
            files.push(("tokenizer.json".into(), Digest(root(&disk::read(path, FILE_MAX)?))));
        }
        let template = Template::of(|name| beside.get(name));
        Ok(Tokens { loaded, parts: TokenizerParts { files, ends }, template })
    }

    /// The tokens of a text.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, Failure> {
        guarded(|| self.loaded.ids(text))
    }

    /// True if a token has this id.
    pub fn has(&self, id: u32) -> bool {
        self.loaded.has(id)
    }

    /// The text of tokens that follow the first `given`: it may begin otherwise than theirs alone.
    pub fn after(&self, ids: &[u32], given: usize) -> Result<String, Failure> {
        let text = |ids: &[u32]| guarded(|| self.loaded.text(ids));
        match text(ids)?.strip_prefix(&text(&ids[..given])?) {
            Some(rest) => Ok(rest.into()),
            None => text(&ids[given..]),
        }
    }
}

/// The tokens that end a text: what the model's files say of generation, else its configuration, else its tokenizer's settings.
fn ends<'a>(get: impl Fn(&str) -> Option<&'a [u8]>, id: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let json = |name: &str| get(name).and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    for name in [GENERATION, CONFIG] {
        let said = json(name).map(|settings| settings["eos_token_id"].clone()).unwrap_or_default();
        let ids: Vec<u32> = match &said {
            Value::Array(all) => all.iter().filter_map(number).collect(),
            one => number(one).into_iter().collect(),
        };
        if !ids.is_empty() {
            return ids;
        }
    }
    for name in ["tokenizer_config.json", "special_tokens_map.json"] {
        let said = json(name).map(|settings| settings["eos_token"].clone()).unwrap_or_default();
        let token = said.as_str().or_else(|| said["content"].as_str());
        if let Some(id) = token.and_then(&id) {
            return vec![id];
        }
    }
    id(END).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_what_the_nearest_file_says() {
        let of = |files: &[(&str, &'static str)]| {
            let get =
                |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.as_bytes());
            ends(get, |token| {
                ["<s>", "</s>", END].iter().position(|known| *known == token).map(|id| id as u32)
            })
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

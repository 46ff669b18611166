//! Reads from a tokenizer's files which ids the tokenizer has. Sources: the `tokenizers` library, and the tokenizers of
//! transformers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The files that may hold the vocabulary; the first that exists counts.
const VOCABULARIES: [&str; 4] = ["tokenizer.json", "vocab.json", "encoder.json", LINES];
/// A vocabulary of one token a line, as BERT's.
pub(crate) const LINES: &str = "vocab.txt";
/// The settings that name special tokens, with the tokens that BERT's tokenizers have where no file names others.
const SPECIAL: [(&str, &str); 5] = [
    (MASK, "[MASK]"),
    ("cls_token", "[CLS]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("unk_token", "[UNK]"),
];
const MASK: &str = "mask_token";

/// True if a file of this name holds a vocabulary.
pub(crate) fn is_vocabulary(name: &str) -> bool {
    VOCABULARIES.contains(&name)
}

/// The least number above every id; `None` if no file tells it. `get`: the file of a name.
pub(crate) fn below<'a>(get: impl Fn(&str) -> Option<&'a [u8]>) -> Option<u32> {
    let (name, bytes) = VOCABULARIES.iter().find_map(|name| Some((*name, get(name)?)))?;
    let own = match name {
        "tokenizer.json" => {
            let Described { model, added_tokens } = serde_json::from_slice(bytes).ok()?;
            added_tokens.into_iter().map(|token| token.id.into()).chain(model.vocab.0).max()?
        }
        LINES => (lines(bytes).count() as u64).checked_sub(1)?,
        _ => serde_json::from_slice::<Greatest>(bytes).ok()?.0?,
    };
    // Added tokens are named in one of these files too, or only there.
    let added = get("added_tokens.json").and_then(|bytes| serde_json::from_slice::<Greatest>(bytes).ok()?.0);
    let settings =
        get("tokenizer_config.json").and_then(|bytes| serde_json::from_slice::<Settings>(bytes).ok());
    let decoder = settings.map(|settings| settings.added_tokens_decoder).unwrap_or_default();
    let decoder = decoder.keys().filter_map(|id| id.parse().ok()).max();
    let greatest = [Some(own), added, decoder].into_iter().flatten().max()?;
    u32::try_from(greatest.checked_add(1)?).ok()
}

/// The tokens of a vocabulary of lines.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let tokens = whole.split(|&byte| byte == b'\n').filter(|_| !bytes.is_empty());
    tokens.map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// The ids of a tokenizer's special tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The token that stands for a masked one, if a file tells it.
    pub mask: Option<u32>,
    /// All of them that a file tells, ascending.
    pub all: Vec<u32>,
}

/// The special tokens of an encoder's tokenizer, as far as the files tell them. `get`: the file of a name.
pub(crate) fn special<'a>(get: impl Fn(&str) -> Option<&'a [u8]>) -> SpecialTokens {
    let json = |name: &str| get(name).and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let settings = json("tokenizer_config.json").unwrap_or_default();
    let map = json("special_tokens_map.json").unwrap_or_default();
    let described = get("tokenizer.json")
        .and_then(|bytes| serde_json::from_slice::<Described>(bytes).ok())
        .map_or(Vec::new(), |described| described.added_tokens);
    let added = json("added_tokens.json").unwrap_or_default();
    let number = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let id = |token: &str| {
        let decoder = || {
            let mut all = settings["added_tokens_decoder"].as_object()?.iter();
            all.find(|(_, entry)| entry["content"] == token)?.0.parse().ok()
        };
        let line = || {
            let place = lines(get(LINES)?).position(|line| line == token.as_bytes())?;
            u32::try_from(place).ok()
        };
        let of_file = described.iter().find(|added| added.content == token).map(|added| added.id);
        of_file.or_else(decoder).or_else(|| number(&added[token])).or_else(line)
    };
    let named = |key: &str| {
        [&settings[key], &map[key]]
            .into_iter()
            .find_map(|said| said.as_str().or_else(|| said["content"].as_str()))
            .map(str::to_string)
    };
    let mut found = SpecialTokens::default();
    for (key, usual) in SPECIAL {
        let id = id(named(key).as_deref().unwrap_or(usual));
        if key == MASK {
            found.mask = id;
        }
        found.all.extend(id);
    }
    found.all.sort_unstable();
    found.all.dedup();
    found
}

/// The keys of tokenizer.json that matter here.
#[derive(Deserialize)]
struct Described {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Greatest,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    #[serde(default)]
    content: String,
}

/// The keys of tokenizer_config.json that matter here.
#[derive(Deserialize)]
struct Settings {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, IgnoredAny>,
}

/// The greatest id: of an object from tokens to ids, or of a list of tokens in the order of their ids.
struct Greatest(Option<u64>);

impl<'de> Deserialize<'de> for Greatest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Greatest, D::Error> {
        deserializer.deserialize_any(Ids)
    }
}

struct Ids;

impl<'de> Visitor<'de> for Ids {
    type Value = Greatest;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("tokens and their ids")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Greatest, M::Error> {
        let mut greatest = None;
        while let Some((IgnoredAny, id)) = map.next_entry::<IgnoredAny, u32>()? {
            greatest = greatest.max(Some(u64::from(id)));
        }
        Ok(Greatest(greatest))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Greatest, S::Error> {
        let mut count = 0u64;
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Greatest(count.checked_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &'static str)]) -> Option<u32> {
        below(|name| files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.as_bytes()))
    }

    #[test]
    fn every_file_of_a_tokenizer_counts() {
        let bpe =
            r#"{"model":{"type":"BPE","vocab":{"a":0,"b":7}},"added_tokens":[{"id":9,"content":"<|end|>"}]}"#;
        let unigram = r#"{"model":{"type":"Unigram","vocab":[["a",0.5],["b",-1.0],["c",-2.0]]}}"#;
        let added = ("added_tokens.json", r#"{"<|x|>":11}"#);
        let settings = (
            "tokenizer_config.json",
            r#"{"model_max_length":4,"added_tokens_decoder":{"20":{"content":"<|y|>"}}}"#,
        );
        assert_eq!(of(&[("tokenizer.json", bpe)]), Some(10));
        assert_eq!(of(&[("tokenizer.json", unigram)]), Some(3));
        assert_eq!(of(&[("tokenizer.json", bpe), added]), Some(12));
        assert_eq!(of(&[("vocab.json", r#"{"a":3,"b":1}"#)]), Some(4));
        assert_eq!(of(&[("encoder.json", r#"{"a":3}"#), added, settings]), Some(21));
        let lines = [of(&[("vocab.txt", "[PAD]\na\n")]), of(&[("vocab.txt", "\r\na")])];
        assert_eq!(lines, [Some(2), Some(2)]);
        assert_eq!(of(&[("vocab.txt", "")]), None);
        let greatest = [r#"{"a":4294967295}"#, r#"{"a":18446744073709551615}"#];
        for text in
            ["", "[]", "{}", r#"{"a":-1}"#, r#"{"a":"b"}"#, r#"{"a":0.5}"#].into_iter().chain(greatest)
        {
            assert_eq!(of(&[("vocab.json", text)]), None, "{text}");
        }
        assert_eq!([of(&[]), of(&[added]), of(&[("tokenizer.json", "{}")])], [None; 3]);
    }

    #[test]
    fn special_tokens_are_found_wherever_a_file_tells_them() {
        let of = |files: &[(&str, &'static str)]| {
            let found =
                special(|name| files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.as_bytes()));
            (found.mask, found.all)
        };
        let tokenizer = (
            "tokenizer.json",
            r#"{"model":{"vocab":{}},"added_tokens":[{"id":4,"content":"[MASK]"},{"id":0,"content":"[PAD]"}]}"#,
        );
        let own = r#"{"mask_token":{"content":"<m>"},"added_tokens_decoder":{"7":{"content":"<m>"},"x":{}}}"#;
        let own = ("tokenizer_config.json", own);
        let map = ("special_tokens_map.json", r#"{"mask_token":"<k>","cls_token":"<s>"}"#);
        let added = ("added_tokens.json", r#"{"<k>":9,"<s>":5}"#);
        let lines = ("vocab.txt", "[PAD]\r\na\n[MASK]\n[CLS]\n[SEP]\n[UNK]\n");
        assert_eq!(of(&[]), (None, vec![]));
        assert_eq!(of(&[tokenizer]), (Some(4), vec![0, 4]));
        assert_eq!(of(&[tokenizer, own]), (Some(7), vec![0, 7]));
        assert_eq!(of(&[map, added]), (Some(9), vec![5, 9]));
        assert_eq!(of(&[lines]), (Some(2), vec![0, 2, 3, 4, 5]));
        assert_eq!(of(&[lines, map]), (None, vec![0, 4, 5]));
        let wrong = [("tokenizer.json", "[]"), ("added_tokens.json", "3"), ("tokenizer_config.json", "[")];
        assert_eq!(of(&wrong), (None, vec![]));
    }
}

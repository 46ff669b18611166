//! Reads from a tokenizer's files which ids the tokenizer has. Sources: the `tokenizers` library, and the tokenizers of
//! transformers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The files that may hold the vocabulary; the first that exists counts.
const VOCABULARIES: [&str; 3] = ["tokenizer.json", "vocab.json", "encoder.json"];

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
        _ => serde_json::from_slice::<Greatest>(bytes).ok()?.0?,
    };
    // Added tokens are named in one of these files too, or only there.
    let added = get("added_tokens.json").and_then(|bytes| serde_json::from_slice::<Greatest>(bytes).ok()?.0);
    let settings =
        get("tokenizer_config.json").and_then(|bytes| serde_json::from_slice::<Settings>(bytes).ok());
    let decoder = settings.map(|settings| settings.added_tokens_decoder).unwrap_or_default();
    let decoder = decoder.keys().filter_map(|id| id.parse().ok()).max();
    u32::try_from([Some(own), added, decoder].into_iter().flatten().max()? + 1).ok()
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
        for text in ["", "[]", "{}", r#"{"a":-1}"#, r#"{"a":4294967295}"#, r#"{"a":"b"}"#, r#"{"a":0.5}"#] {
            assert_eq!(of(&[("vocab.json", text)]), None, "{text}");
        }
        assert_eq!([of(&[]), of(&[added]), of(&[("tokenizer.json", "{}")])], [None; 3]);
    }
}

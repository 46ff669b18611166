//! Tokenizers, from a tokenizer.json or the two files of GPT-2, and where a text may be cut for them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::error::Error;

/// The most bytes of a tokenizer's file.
const FILE_MAX: u64 = 1 << 28;
/// The token that GPT-2 has between documents.
const GPT2_END: &str = "<|endoftext|>";

/// The patterns of GPT-4, Llama 3 and Qwen 2 by which they split a text before merges, but for the digits that they take together. In each a blank begins a match,
/// so none crosses a place before a blank that follows a character that is no white space; and what looks ahead does so inside of white space alone.
pub const SPLITS: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
];

/// Where a text may be cut so that the tokens of the parts are the tokens of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Before white space that follows another character.
    WhiteSpace,
    /// Before a blank that follows a character that is no white space.
    Blank,
    /// Nowhere that is known.
    Nowhere,
}

/// A tokenizer that gives a text the same tokens each time.
pub struct Loaded {
    /// The tokenizer, without truncation and padding.
    pub tokenizer: Tokenizer,
    /// Where texts may be cut for it.
    pub cuts: Cuts,
    /// Name, length and BLAKE3 of each of its files.
    pub files: Vec<Value>,
    /// The greatest id of a token.
    pub greatest: u32,
}

impl Loaded {
    /// Reads a tokenizer.json, or a folder with GPT-2's encoder.json and vocab.bpe.
    pub fn open(path: &Path) -> Result<Loaded, Error> {
        let mut files = Vec::new();
        let (tokenizer, cuts) = if path.is_dir() {
            let [vocabulary, merges] = ["encoder.json", "vocab.bpe"].map(|name| path.join(name));
            gpt2(&vocabulary, &merges, &mut files)?
        } else {
            described(path, &read(path, &mut files)?)?
        };
        let greatest = tokenizer.get_vocab(true).into_values().max();
        let greatest = greatest.ok_or_else(|| Error::malformed(path, "the tokenizer has no token"))?;
        Ok(Loaded { tokenizer, cuts, files, greatest })
    }

    /// The tokens of a text. Special tokens are taken where the text names them; none is added around it.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding =
            encoding.map_err(|why| Error::Malformed(format!("the tokenizer refuses a text: {why}")))?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// The bytes of one of a tokenizer's files, which is added to `files`.
fn read(path: &Path, files: &mut Vec<Value>) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io(path))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Error::malformed(path, format!("a tokenizer's file has at most {FILE_MAX} bytes")));
    }
    let name = path.file_name().map(|name| name.to_string_lossy());
    files.push(
        json!({ "name": name, "bytes": bytes.len(), "blake3": blake3::hash(&bytes).to_hex().as_str() }),
    );
    Ok(bytes)
}

/// GPT-2's tokenizer. Source: encoder.py of openai/gpt-2.
fn gpt2(vocabulary: &Path, merges: &Path, files: &mut Vec<Value>) -> Result<(Tokenizer, Cuts), Error> {
    let ids: tokenizers::models::bpe::Vocab =
        serde_json::from_slice(&read(vocabulary, files)?).map_err(|why| Error::malformed(vocabulary, why))?;
    let text = String::from_utf8(read(merges, files)?).map_err(|why| Error::malformed(merges, why))?;
    let mut pairs = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with("#version")) {
        let pair = line.split_once(' ').map(|(left, right)| (left.to_string(), right.to_string()));
        pairs.push(
            pair.ok_or_else(|| Error::malformed(merges, format!("line {} has not two parts", number + 1)))?,
        );
    }
    let has_end = ids.contains_key(GPT2_END);
    let model = BPE::builder().vocab_and_merges(ids, pairs).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|why| Error::malformed(merges, why))?);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    if has_end {
        tokenizer.add_special_tokens(&[AddedToken::from(GPT2_END, true)]);
    }
    Ok((tokenizer, Cuts::WhiteSpace))
}

/// The tokenizer that a tokenizer.json describes.
fn described(path: &Path, bytes: &[u8]) -> Result<(Tokenizer, Cuts), Error> {
    let description: Value = serde_json::from_slice(bytes).map_err(|why| Error::malformed(path, why))?;
    if description["model"]["dropout"].as_f64().is_some_and(|dropout| dropout > 0.0) {
        return Err(Error::malformed(
            path,
            "its merges are left out at random (dropout), so no tokens could be made again",
        ));
    }
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|why| Error::malformed(path, why))?;
    let _ = tokenizer.with_truncation(None).map_err(|why| Error::malformed(path, why))?;
    tokenizer.with_padding(None);
    Ok((tokenizer, cuts(&description)))
}

/// Where texts may be cut for the tokenizer that a tokenizer.json describes.
pub fn cuts(description: &Value) -> Cuts {
    let kind = |value: &Value| value["type"].as_str().map(str::to_string);
    // NFC joins nothing across white space; other normalizers could look at a text's ends.
    let normalizer = &description["normalizer"];
    let normal = normalizer.is_null() || kind(normalizer).as_deref() == Some("NFC");
    // A token that was added has white space or takes what is around it: then a cut could be inside of it.
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

//! Tokenizers in the forms that people have on disk: a tokenizer.json, the two files of GPT-2 under either names, or a folder
//! with one of these. Also the positions where a text may be cut for them.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

pub mod chat;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tiebreak_token_files::{Format, Look};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// The most bytes of a tokenizer's file.
const FILE_MAX: u64 = 1 << 28;
/// The token that GPT-2 puts between documents.
const GPT2_END: &str = "<|endoftext|>";

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
        |why| Error::Io(path.into(), why)
    }

    fn malformed(path: &Path, why: impl std::fmt::Display) -> Error {
        Error::Malformed(path.into(), why.to_string())
    }
}

/// A tokenizer that gives a text the same tokens each time.
pub struct Loaded {
    /// The tokenizer, without truncation and padding.
    tokenizer: Tokenizer,
    /// The positions where texts may be cut for it.
    pub cuts: Cuts,
    /// The files that make up the tokenizer, with their bytes.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The greatest id of a token.
    pub greatest: u32,
}

impl Loaded {
    /// Reads a tokenizer.json, or a folder that has one, or vocab.json and merges.txt, or GPT-2's encoder.json and vocab.bpe.
    ///
    /// # Errors
    /// If a file cannot be read or is not understood, or a folder has none of them.
    pub fn open(path: &Path) -> Result<Loaded, Error> {
        let mut files = Vec::new();
        let (tokenizer, cuts) = match path.is_dir() {
            true => in_folder(path, &mut files)?,
            false => described(path, read(path, &mut files)?)?,
        };
        let greatest = tokenizer.get_vocab(true).into_values().max();
        let greatest = greatest.ok_or_else(|| Error::malformed(path, "the tokenizer has no token"))?;
        Ok(Loaded { tokenizer, cuts, files, greatest })
    }

    /// The tokens of a text. Special tokens are used if the text names them; none is added around it.
    ///
    /// # Errors
    /// If the tokenizer refuses the text, in words.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.tokenizer.encode_fast(text, false);
        let encoding = encoding.map_err(|why| format!("the tokenizer refuses a text: {why}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of a text, and which of them overlap one of its parts, which are in order, in bytes. A token's place is that of
    /// its characters, as transformers has it.
    ///
    /// # Errors
    /// If the tokenizer refuses the text, in words.
    pub fn ids_and_parts(&self, text: &str, parts: &[[usize; 2]]) -> Result<(Vec<u32>, Vec<bool>), String> {
        let encoding = self.tokenizer.encode_char_offsets(text, false);
        let encoding = encoding.map_err(|why| format!("the tokenizer refuses a text: {why}"))?;
        // The number of characters before each end of a part.
        let (mut characters, mut read) = (0, 0);
        let mut number = |at: usize| {
            characters += text[read..at].chars().count();
            read = at;
            characters
        };
        let parts: Vec<[usize; 2]> = parts.iter().map(|part| part.map(&mut number)).collect();
        let mut next = 0;
        let inside = encoding.get_offsets().iter().map(|&(begin, end)| {
            while parts.get(next).is_some_and(|part| begin >= part[1]) {
                next += 1;
            }
            parts.get(next).is_some_and(|part| end > part[0])
        });
        Ok((encoding.get_ids().to_vec(), inside.collect()))
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// True if a token has this id.
    pub fn has(&self, id: u32) -> bool {
        self.tokenizer.id_to_token(id).is_some()
    }

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    /// If the tokenizer refuses the tokens, in words.
    pub fn text(&self, ids: &[u32]) -> Result<String, String> {
        self.tokenizer.decode(ids, false).map_err(|why| format!("the tokenizer refuses tokens: {why}"))
    }
}

/// The bytes of one of a tokenizer's files, which is added to `files`.
fn read<'a>(path: &Path, files: &'a mut Vec<(PathBuf, Vec<u8>)>) -> Result<&'a [u8], Error> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io(path))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Error::malformed(path, format!("a tokenizer's file has at most {FILE_MAX} bytes")));
    }
    if let Some(format @ Format::StandIn(_)) = Format::of(&Look::at(&bytes)) {
        return Err(Error::malformed(path, format.why()));
    }
    files.push((path.into(), bytes));
    Ok(files.last().map_or(&[], |(_, bytes)| bytes))
}

/// The tokenizer in a folder.
fn in_folder(folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<(Tokenizer, Cuts), Error> {
    let at = |name: &str| folder.join(name);
    if at("tokenizer.json").exists() {
        return described(&at("tokenizer.json"), read(&at("tokenizer.json"), files)?);
    }
    for [vocabulary, merges] in [["vocab.json", "merges.txt"], ["encoder.json", "vocab.bpe"]] {
        if at(vocabulary).exists() && at(merges).exists() {
            return gpt2(folder, &at(vocabulary), &at(merges), files);
        }
    }
    if at("tokenizer.model").exists() {
        return Err(Error::malformed(&at("tokenizer.model"), SENTENCE_PIECE));
    }
    let why = "the folder has no tokenizer: tokenizer.json is wanted, or vocab.json with merges.txt, or encoder.json with vocab.bpe";
    Err(Error::malformed(folder, why))
}

/// The error about a SentencePiece model.
const SENTENCE_PIECE: &str = "this is no tokenizer.json; convert SentencePiece models first, in Python: \
    transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) writes a tokenizer.json";

/// GPT-2's tokenizer, under the names of openai/gpt-2 or of transformers. Sources: encoder.py of openai/gpt-2, `GPT2Tokenizer` of transformers.
fn gpt2(
    folder: &Path,
    vocabulary: &Path,
    merges: &Path,
    files: &mut Vec<(PathBuf, Vec<u8>)>,
) -> Result<(Tokenizer, Cuts), Error> {
    let object = |path: &Path, bytes: &[u8]| -> Result<tokenizers::models::bpe::Vocab, Error> {
        let wrong =
            |why| Error::malformed(path, format!("it is no object of tokens and their numbers: {why}"));
        serde_json::from_slice(bytes).map_err(wrong)
    };
    let ids = object(vocabulary, read(vocabulary, files)?)?;
    // A byte without a token would silently vanish from a text; CLIP's vocabulary marks the ends of words in a way of its own.
    let missing = ByteLevel::alphabet().into_iter().find(|letter| !ids.contains_key(&letter.to_string()));
    let other = match missing {
        Some(missing) => Some(format!("it has no token {missing:?}")),
        None => ids
            .keys()
            .find(|token| token.ends_with("</w>"))
            .map(|token| format!("it has the token {token:?}")),
    };
    if let Some(why) = other {
        let why =
            format!("{why}, so it is no vocabulary over bytes as GPT-2's is: a tokenizer.json is wanted");
        return Err(Error::malformed(vocabulary, why));
    }
    let text = std::str::from_utf8(read(merges, files)?).map_err(|why| Error::malformed(merges, why))?;
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
    let prefixed = settings(&folder.join("tokenizer_config.json"), files)?;
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefixed, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    if has_end {
        tokenizer.add_special_tokens(&[AddedToken::from(GPT2_END, true)]);
    }
    let path = folder.join("added_tokens.json");
    if path.exists() {
        let mut added: Vec<(String, u32)> = object(&path, read(&path, files)?)?.into_iter().collect();
        added.sort_by_key(|(_, id)| *id);
        for (token, id) in added {
            tokenizer.add_special_tokens(&[AddedToken::from(token.as_str(), true)]);
            if tokenizer.token_to_id(&token) != Some(id) {
                return Err(Error::malformed(
                    &path,
                    format!("the token {token:?} cannot have the number {id}"),
                ));
            }
        }
        // Added tokens may hold white space.
        return Ok((tokenizer, Cuts::Nowhere));
    }
    Ok((tokenizer, if prefixed { Cuts::Nowhere } else { Cuts::WhiteSpace }))
}

/// True if the tokenizer with these settings begins a text with a blank. Other kinds of tokenizers have files of the same names
/// too.
fn settings(path: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<bool, Error> {
    if !path.exists() {
        return Ok(false);
    }
    let settings: Value =
        serde_json::from_slice(read(path, files)?).map_err(|why| Error::malformed(path, why))?;
    match settings["tokenizer_class"].as_str() {
        None
        | Some(
            "GPT2Tokenizer"
            | "GPT2TokenizerFast"
            | "RobertaTokenizer"
            | "RobertaTokenizerFast"
            | "TokenizersBackend",
        ) => Ok(settings["add_prefix_space"] == json!(true)),
        Some(other) => Err(Error::malformed(
            path,
            format!(
                "its vocab.json and merges.txt are of a {other}, which splits texts in another way than GPT-2's: a tokenizer.json is wanted"
            ),
        )),
    }
}

/// The tokenizer that a tokenizer.json describes.
fn described(path: &Path, bytes: &[u8]) -> Result<(Tokenizer, Cuts), Error> {
    let other = |why: &str| Err(Error::malformed(path, format!("this is no tokenizer.json: {why}")));
    // A SentencePiece model is a protocol buffer, whose first field is its pieces.
    let is_model = path.extension().is_some_and(|extension| extension == "model");
    let description: Value = match serde_json::from_slice(bytes) {
        Ok(description) => description,
        Err(_) if is_model || bytes.starts_with(b"\n") && bytes.contains(&0) => {
            return Err(Error::malformed(path, SENTENCE_PIECE));
        }
        Err(why) => return other(&format!("{why}; a tokenizer.json is wanted, or the folder that has it")),
    };
    if !description["model"].is_object() {
        return other("it has no model; of vocab.json and merges.txt name the folder");
    }
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
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A vocabulary over bytes, with two merges and an end of text.
    fn vocabulary() -> (String, &'static str) {
        let mut tokens: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
        tokens.sort();
        tokens.extend(["he", "\u{120}he", GPT2_END].map(String::from));
        let ids: serde_json::Map<String, Value> = tokens.into_iter().zip((0..).map(Value::from)).collect();
        (Value::from(ids).to_string(), "#version: 0.2\nh e\n\u{120} he\n")
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    #[test]
    fn every_form_of_one_tokenizer_gives_the_same_tokens() {
        let (ids, merges) = vocabulary();
        let text = "he, he said\u{e9} <|endoftext|>\n 12";
        let released = folder(&[("encoder.json", &ids), ("vocab.bpe", merges)]);
        let released = Loaded::open(released.path()).unwrap();
        let expected = released.ids(text).unwrap();
        assert!(expected.starts_with(&[256]) && expected.contains(&257) && expected.contains(&258));
        let transformers = folder(&[("vocab.json", &ids), ("merges.txt", merges)]);
        let described = released.tokenizer.to_string(false).unwrap();
        let json = folder(&[("tokenizer.json", &described), ("vocab.json", "not looked at")]);
        let file = json.path().join("tokenizer.json");
        for (path, cuts) in [
            (transformers.path(), Cuts::WhiteSpace),
            (json.path(), Cuts::WhiteSpace),
            (&file, Cuts::WhiteSpace),
        ] {
            let loaded = Loaded::open(path).unwrap();
            assert_eq!(
                (loaded.ids(text).unwrap(), loaded.cuts, loaded.greatest),
                (expected.clone(), cuts, 258)
            );
            assert_eq!(loaded.text(&expected).unwrap(), text);
            assert_eq!((loaded.id(GPT2_END), loaded.has(258), loaded.has(259)), (Some(258), true, false));
        }
        let added = folder(&[
            ("vocab.json", &ids),
            ("merges.txt", merges),
            ("added_tokens.json", r#"{"<|x|>":259}"#),
        ]);
        let added = Loaded::open(added.path()).unwrap();
        assert_eq!(
            (added.ids("<|x|>").unwrap(), added.cuts, added.greatest),
            (vec![259], Cuts::Nowhere, 259)
        );
        let prefixed = [
            ("vocab.json", &ids[..]),
            ("merges.txt", merges),
            ("tokenizer_config.json", r#"{"add_prefix_space":true}"#),
        ];
        assert_eq!(Loaded::open(folder(&prefixed).path()).unwrap().ids("he").unwrap(), [257]);
    }

    #[test]
    fn what_is_no_tokenizer_is_named() {
        let (ids, merges) = vocabulary();
        let gpt2 = [("vocab.json", &ids[..]), ("merges.txt", merges)];
        let piece = "\n\u{e}\n\u{5}<unk>\u{15}\0\0\0\0\u{18}\u{2}";
        for (files, name, why) in [
            (&[][..], "", "tokenizer.json is wanted"),
            (&[("vocab.json", &ids[..])], "", "vocab.json with merges.txt"),
            (&[("tokenizer.model", piece)], "", "convert SentencePiece models first"),
            (
                &[("tokenizer.model", piece)],
                "tokenizer.model",
                "this is no tokenizer.json; convert SentencePiece models first",
            ),
            (&[("tokenizer.model", "")], "tokenizer.model", "convert SentencePiece models first"),
            (&[("vocab.json", &ids)], "vocab.json", "name the folder"),
            (&[("t.json", "to be")], "t.json", "this is no tokenizer.json"),
            (&[("t.json", "<!DOCTYPE html>")], "t.json", "a web page (HTML)"),
            (&[("t.json", "version https://git-lfs.github.com/spec/v1\n")], "t.json", "git lfs pull"),
            (&[("vocab.json", r#"{"a":0}"#), ("merges.txt", merges)], "", "no vocabulary over bytes"),
            (&[gpt2[0], ("merges.txt", "h\n")], "", "line 1 has not two parts"),
            (
                &[gpt2[0], gpt2[1], ("tokenizer_config.json", r#"{"tokenizer_class":"Qwen2Tokenizer"}"#)],
                "",
                "Qwen2Tokenizer",
            ),
            (
                &[gpt2[0], gpt2[1], ("added_tokens.json", r#"{"<|x|>":300}"#)],
                "",
                "cannot have the number 300",
            ),
        ] {
            let folder = folder(files);
            let error = Loaded::open(&folder.path().join(name)).err().unwrap().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}

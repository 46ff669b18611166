//! A tokenizer in this process: the worker's part, which another process bounds.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::files::{GPT2_END, SENTENCE_PIECE};
use crate::{Cuts, Error, VOCABULARY_MAX, cuts};

/// The ids of tokens, and for each whether it is of an answer.
pub type Parts = (Vec<u32>, Vec<bool>);

/// A tokenizer that gives a text the same tokens each time.
pub struct Local {
    /// The tokenizer, without truncation and padding.
    pub tokenizer: Tokenizer,
    /// The positions where texts may be cut for it.
    pub cuts: Cuts,
    /// The ids of its tokens, ascending: one or more, below [`VOCABULARY_MAX`].
    pub ids: Vec<u32>,
}

impl Local {
    /// The tokenizer of these files, in the order in which [`crate::files`] reads them.
    ///
    /// # Errors
    /// If they are not understood, or an id is too large.
    pub fn of(path: &Path, files: &[(PathBuf, Vec<u8>)]) -> Result<Local, Error> {
        let (tokenizer, cuts) = match files {
            [(file, bytes)] => described(file, bytes)?,
            _ => gpt2(files)?,
        };
        let vocabulary = tokenizer.get_vocab(true);
        if let Some((token, id)) = vocabulary.iter().find(|(_, id)| **id >= VOCABULARY_MAX) {
            let token: String = token.chars().take(40).collect();
            let why = format!(
                "the token {token:?} has the id {id}; ids are below {VOCABULARY_MAX}, as those of a job's model are"
            );
            return Err(Error::malformed(path, why));
        }
        let mut ids: Vec<u32> = vocabulary.into_values().collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Err(Error::malformed(path, "the tokenizer has no token"));
        }
        Ok(Local { tokenizer, cuts, ids })
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
    pub fn ids_and_parts(&self, text: &str, parts: &[[usize; 2]]) -> Result<Parts, String> {
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

    /// The tokens of a text, and which of them are of its answers: the parts between two prefixes of the text, in bytes.
    ///
    /// # Errors
    /// If the tokens of the text do not begin with those of each prefix, or the tokenizer refuses one, in words.
    pub fn ids_and_answers(&self, text: &str, parts: &[[usize; 2]]) -> Result<Parts, String> {
        let all = self.ids(text)?;
        let mut counted = vec![false; all.len()];
        for &[begin, end] in parts {
            let (before, behind) = (self.ids(&text[..begin])?, self.ids(&text[..end])?);
            if !all.starts_with(&before) || !all.starts_with(&behind) || before.len() > behind.len() {
                return Err("a token holds an end of an answer and the text beside it, so the answer's tokens cannot be told; a template with {% generation %} blocks says them".into());
            }
            counted[before.len()..behind.len()].fill(true);
        }
        Ok((all, counted))
    }

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    /// If the tokenizer refuses the tokens, in words.
    pub fn text(&self, ids: &[u32]) -> Result<String, String> {
        self.tokenizer.decode(ids, false).map_err(|why| format!("the tokenizer refuses tokens: {why}"))
    }
}

/// GPT-2's tokenizer, under the names of openai/gpt-2 or of transformers. Sources: encoder.py of openai/gpt-2, `GPT2Tokenizer` of transformers.
fn gpt2(files: &[(PathBuf, Vec<u8>)]) -> Result<(Tokenizer, Cuts), Error> {
    let [(vocabulary, tokens), (merges, lines), others @ ..] = files else {
        return Err(Error::malformed(Path::new("vocab.json"), "it has no merges.txt beside it"));
    };
    let other = |name: &str| others.iter().find(|(path, _)| path.file_name().is_some_and(|own| own == name));
    let object = |path: &Path, bytes: &[u8]| -> Result<tokenizers::models::bpe::Vocab, Error> {
        let wrong =
            |why| Error::malformed(path, format!("it is no object of tokens and their numbers: {why}"));
        serde_json::from_slice(bytes).map_err(wrong)
    };
    let ids = object(vocabulary, tokens)?;
    // A byte without a token would silently vanish from a text; CLIP's vocabulary marks the ends of words in a way of its own.
    let missing = ByteLevel::alphabet().into_iter().find(|letter| !ids.contains_key(&letter.to_string()));
    let wrong = match missing {
        Some(missing) => Some(format!("it has no token {missing:?}")),
        None => ids
            .keys()
            .find(|token| token.ends_with("</w>"))
            .map(|token| format!("it has the token {token:?}")),
    };
    if let Some(why) = wrong {
        let why =
            format!("{why}, so it is no vocabulary over bytes as GPT-2's is: a tokenizer.json is wanted");
        return Err(Error::malformed(vocabulary, why));
    }
    let text = std::str::from_utf8(lines).map_err(|why| Error::malformed(merges, why))?;
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
    let prefixed = other("tokenizer_config.json").map_or(Ok(false), |(path, bytes)| settings(path, bytes))?;
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefixed, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    if has_end {
        tokenizer.add_special_tokens(&[AddedToken::from(GPT2_END, true)]);
    }
    if let Some((path, bytes)) = other("added_tokens.json") {
        let mut added: Vec<(String, u32)> = object(path, bytes)?.into_iter().collect();
        added.sort_by_key(|(_, id)| *id);
        for (token, id) in added {
            tokenizer.add_special_tokens(&[AddedToken::from(token.as_str(), true)]);
            if tokenizer.token_to_id(&token) != Some(id) {
                return Err(Error::malformed(
                    path,
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
fn settings(path: &Path, bytes: &[u8]) -> Result<bool, Error> {
    let settings: Value = serde_json::from_slice(bytes).map_err(|why| Error::malformed(path, why))?;
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
    let cuts = cuts(&description);
    drop(description);
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|why| Error::malformed(path, why))?;
    let _ = tokenizer.with_truncation(None).map_err(|why| Error::malformed(path, why))?;
    tokenizer.with_padding(None);
    Ok((tokenizer, cuts))
}

//! The files of a tokenizer, read within bounds.

use std::io::Read;
use std::path::{Path, PathBuf};

use tiebreak_token_files::{Format, Look, open_plain};

use crate::Error;

/// The most bytes of a tokenizer's file; the largest released ones have a quarter of that.
pub const FILE_MAX: u64 = 1 << 27;
/// The most bytes of all files of a tokenizer.
pub const FILES_MAX: u64 = 1 << 28;
/// The token that GPT-2 puts between documents.
pub const GPT2_END: &str = "<|endoftext|>";

/// The error about a SentencePiece model.
pub const SENTENCE_PIECE: &str = "this is no tokenizer.json; convert SentencePiece models first, in Python: \
    transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW) writes a tokenizer.json";

/// Reads the files that make up the tokenizer at a path: the file there, or in a folder tokenizer.json, else vocabulary, merges,
/// settings and added tokens of GPT-2's kind.
///
/// # Errors
/// If a file is no plain file, is too large or cannot be read, or a folder has none of them.
pub fn read(path: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let named = |paths: Vec<PathBuf>| {
        paths.into_iter().map(|path| Ok((path.clone(), contents(&path)?))).collect::<Result<Vec<_>, Error>>()
    };
    if !path.is_dir() {
        return named(vec![path.into()]);
    }
    named(names(path, |name| path.join(name).exists())?.into_iter().map(|name| path.join(name)).collect())
}

/// [`read`] of a folder whose files are in memory: `get` gives the bytes of one by its name.
///
/// # Errors
/// As [`read`].
pub fn of_memory<'a>(
    folder: &Path,
    get: impl Fn(&str) -> Option<&'a [u8]>,
) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let names = names(folder, |name| get(name).is_some())?;
    Ok(names.into_iter().filter_map(|name| Some((folder.join(name), get(name)?.to_vec()))).collect())
}

/// The names of the files of a folder that make up its tokenizer.
fn names(folder: &Path, is_there: impl Fn(&str) -> bool) -> Result<Vec<&'static str>, Error> {
    if is_there("tokenizer.json") {
        return Ok(vec!["tokenizer.json"]);
    }
    for [vocabulary, merges] in [["vocab.json", "merges.txt"], ["encoder.json", "vocab.bpe"]] {
        if is_there(vocabulary) && is_there(merges) {
            let others = ["tokenizer_config.json", "added_tokens.json"].into_iter();
            return Ok([vocabulary, merges]
                .into_iter()
                .chain(others.filter(|name| is_there(name)))
                .collect());
        }
    }
    if is_there("tokenizer.model") {
        return Err(Error::malformed(&folder.join("tokenizer.model"), SENTENCE_PIECE));
    }
    let why = "the folder has no tokenizer: tokenizer.json is wanted, or vocab.json with merges.txt, or encoder.json with vocab.bpe";
    Err(Error::malformed(folder, why))
}

/// The bytes of one of a tokenizer's files.
fn contents(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let file = open_plain(path).map_err(Error::io(path))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Error::malformed(path, format!("a tokenizer's file has at most {FILE_MAX} bytes")));
    }
    if let Some(format @ Format::StandIn(_)) = Format::of(&Look::at(&bytes)) {
        return Err(Error::malformed(path, format.why()));
    }
    Ok(bytes)
}

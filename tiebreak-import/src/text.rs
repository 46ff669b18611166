//! `tiebreak-import text`: texts as a file of token ids.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::{Value, json};

use crate::error::Error;
use crate::output::{NpyFile, beside, digest, is_free, is_npy, partial, publish, write};
use crate::pieces::{PIECE, Pieces};
use crate::progress;
use crate::tokenizer::Loaded;

/// Pieces that are encoded at once, for each thread.
const PIECES: usize = 2;

/// What is imported, and to where.
pub struct Texts<'a> {
    /// A tokenizer.json, or a folder with GPT-2's files.
    pub tokenizer: &'a Path,
    /// The .npy file.
    pub output: &'a Path,
    /// The texts, in order.
    pub files: &'a [PathBuf],
    /// The token that is written after each text.
    pub end_of_text: Option<&'a str>,
}

/// Writes the token ids of texts as one row of u16, or of u32 if the tokenizer has ids that need it, and beside it, under the same name with `.json` after it,
/// what it was made from. Returns that.
pub fn import(texts: &Texts) -> Result<Value, Error> {
    let about = beside(texts.output, ".json");
    is_npy(texts.output)?;
    is_free(texts.output)?;
    is_free(&about)?;
    let loaded = Loaded::open(texts.tokenizer)?;
    let end = texts.end_of_text.map(|token| {
        let id = loaded.tokenizer.token_to_id(token);
        id.ok_or_else(|| Error::Usage(format!("--end-of-text: the tokenizer has no token {token:?}")))
    });
    let end = end.transpose()?;
    let small = loaded.greatest <= u32::from(u16::MAX);
    let unfinished = partial(texts.output)?;
    let mut npy = NpyFile::create(unfinished.clone(), if small { "<u2" } else { "<u4" }, Vec::new())?;
    let encoded = encode(texts, &loaded, end, small, &mut npy).and_then(|(tokens, sources)| {
        npy.finish(tokens)?;
        let (bytes, blake3) = digest(&unfinished)?;
        Ok(json!({
            "made_by": concat!("tiebreak-import ", env!("CARGO_PKG_VERSION")),
            "kind": "tokens",
            "dtype": if small { "u16" } else { "u32" },
            "tokens": tokens,
            "vocabulary": loaded.greatest + 1,
            "end_of_text": texts.end_of_text,
            "tokenizer": loaded.files,
            "tokenizers_version": TOKENIZERS,
            "texts": sources,
            "output": { "bytes": bytes, "blake3": blake3 },
        }))
    });
    let made = encoded.inspect_err(|_| drop(std::fs::remove_file(&unfinished)))?;
    let text = serde_json::to_vec_pretty(&made).expect("JSON values can be written");
    write(&partial(&about)?, &text)?;
    publish(&partial(&about)?, &about)?;
    publish(&unfinished, texts.output)?;
    Ok(made)
}

/// The version of the crate that makes the tokens, as Cargo.lock has it; a test holds it to that.
pub const TOKENIZERS: &str = "0.22.2";

/// Appends the tokens of all texts. Returns their number, and what the texts are.
fn encode(
    texts: &Texts,
    loaded: &Loaded,
    end: Option<u32>,
    small: bool,
    npy: &mut NpyFile,
) -> Result<(u64, Vec<Value>), Error> {
    let sizes = texts.files.iter().map(|path| std::fs::metadata(path).map_or(0, |data| data.len()));
    let bar = progress::bytes(sizes.sum());
    let mut pieces = Pieces::new(texts.files, loaded.cuts, PIECE);
    let most = PIECES * rayon::current_num_threads();
    let mut tokens = 0;
    loop {
        let mut batch = Vec::with_capacity(most);
        // Of pieces that are larger than usual, fewer are at hand.
        while batch.len() < most
            && batch.iter().map(|(text, _): &(String, bool)| text.len()).sum::<usize>() < most * PIECE
        {
            let Some(piece) = pieces.next()? else { break };
            batch.push((piece.text, piece.last));
        }
        if batch.is_empty() {
            break;
        }
        let ids: Vec<Vec<u32>> =
            batch.par_iter().map(|(text, _)| loaded.ids(text)).collect::<Result<_, _>>()?;
        for ((text, last), ids) in batch.iter().zip(ids) {
            let ids: Vec<u32> = ids.into_iter().chain(end.filter(|_| *last)).collect();
            tokens += ids.len() as u64;
            // `small`: every id is below 2^16.
            let bytes: Vec<u8> = match small {
                true => ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect(),
                false => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            };
            npy.append(&bytes)?;
            bar.inc(text.len() as u64);
        }
    }
    bar.finish_and_clear();
    if tokens == 0 {
        return Err(Error::Malformed("the texts have no token".into()));
    }
    Ok((tokens, pieces.sources))
}

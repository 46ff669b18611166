//! Texts in pieces; the tokens of the pieces are the tokens of the whole texts.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tiebreak_token_files::open_plain;
use tiebreak_tokenizer::Cuts;

use crate::error::Error;

/// The number of bytes after which a piece ends, at the next position where it may.
pub const PIECE: usize = 1 << 18;
/// The most bytes of a piece.
pub const PIECE_MAX: usize = 1 << 24;

/// A piece of a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// The piece's text.
    pub text: String,
    /// True if the text ends with this piece.
    pub last: bool,
}

/// The pieces of files, one file after another. Only one piece of a text is in memory at a time.
pub struct Pieces<'a> {
    waiting: std::slice::Iter<'a, PathBuf>,
    current: Option<Current<'a>>,
    cuts: Cuts,
    size: usize,
    /// Name, length and BLAKE3 of each file that was read to its end.
    pub sources: Vec<Value>,
}

struct Current<'a> {
    path: &'a Path,
    file: File,
    hasher: blake3::Hasher,
    /// Bytes that were read and are in no piece yet.
    rest: Vec<u8>,
}

impl<'a> Pieces<'a> {
    /// The pieces of these files: of `size` bytes ([`PIECE`]), extended to the next position where a cut is allowed.
    pub fn new(files: &'a [PathBuf], cuts: Cuts, size: usize) -> Pieces<'a> {
        Pieces { waiting: files.iter(), current: None, cuts, size, sources: Vec::new() }
    }

    /// The next piece; `None` after the last piece of the last file.
    pub fn next(&mut self) -> Result<Option<Piece>, Error> {
        if self.current.is_none() {
            let Some(path) = self.waiting.next() else { return Ok(None) };
            let file = open_plain(path).map_err(Error::io(path))?;
            self.current = Some(Current { path, file, hasher: blake3::Hasher::new(), rest: Vec::new() });
        }
        let current = self.current.as_mut().expect("a file is open");
        if let Some(text) = current.piece(self.cuts, self.size)? {
            return Ok(Some(Piece { text, last: false }));
        }
        let Current { path, hasher, rest, .. } = self.current.take().expect("a file is open");
        let name = path.file_name().map(|name| name.to_string_lossy());
        let hash = hasher.finalize().to_hex();
        self.sources.push(json!({ "name": name, "bytes": hasher.count(), "blake3": hash.as_str() }));
        let before = hasher.count() - rest.len() as u64;
        let text = String::from_utf8(rest)
            .map_err(|why| not_text(path, before + why.utf8_error().valid_up_to() as u64))?;
        Ok(Some(Piece { text, last: true }))
    }
}

fn not_text(path: &Path, at: u64) -> Error {
    Error::malformed(path, format!("byte {at} is not UTF-8; tokens are made of text"))
}

impl Current<'_> {
    /// The next piece, if it is not the last; `None` if `rest` holds all remaining text.
    fn piece(&mut self, cuts: Cuts, size: usize) -> Result<Option<String>, Error> {
        let mut wanted = if cuts == Cuts::Nowhere { PIECE_MAX } else { size };
        loop {
            let missing = wanted.saturating_sub(self.rest.len()) as u64 + 1;
            let before = self.rest.len();
            Read::by_ref(&mut self.file)
                .take(missing)
                .read_to_end(&mut self.rest)
                .map_err(Error::io(self.path))?;
            self.hasher.update(&self.rest[before..]);
            if self.rest.len() <= wanted {
                return Ok(None);
            }
            let text = match std::str::from_utf8(&self.rest) {
                Ok(text) => text,
                Err(why) if why.error_len().is_none() => {
                    std::str::from_utf8(&self.rest[..why.valid_up_to()]).unwrap_or_default()
                }
                Err(why) => {
                    let first = self.hasher.count() - self.rest.len() as u64;
                    return Err(not_text(self.path, first + why.valid_up_to() as u64));
                }
            };
            if let Some(at) = last_cut(text, cuts) {
                let rest = self.rest.split_off(at);
                let piece = std::mem::replace(&mut self.rest, rest);
                return Ok(Some(String::from_utf8(piece).expect("it was read as text")));
            }
            if wanted >= PIECE_MAX {
                let why = format!(
                    "nothing shows where its text can be cut for this tokenizer in {PIECE_MAX} bytes; split the file where tokens may end"
                );
                return Err(Error::malformed(self.path, why));
            }
            wanted = (2 * wanted).min(PIECE_MAX);
        }
    }
}

/// The last position inside of a text where a cut is allowed.
fn last_cut(text: &str, cuts: Cuts) -> Option<usize> {
    let mut after: Option<(usize, char)> = None;
    for (at, c) in text.char_indices().rev() {
        let ends = after.is_some_and(|(_, next)| match cuts {
            Cuts::WhiteSpace => next.is_whitespace(),
            Cuts::Blank => next == ' ',
            Cuts::Nowhere => false,
        });
        if ends && !c.is_whitespace() {
            return after.map(|(at, _)| at);
        }
        after = Some((at, c));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tiebreak_tokenizer::{SPLITS, cuts};
    use tokenizers::models::TrainerWrapper;
    use tokenizers::models::bpe::BpeTrainer;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{AddedToken, Tokenizer};

    use super::*;

    const TEXT: &str = "I'll say it:  \"don't\" -- he'd 12345 67\n\n  said;\t\tthen \u{3000}\u{a0} gone.\r\n\n \u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c}\u{3002}\n\
        e\u{301}a \u{308}o !!! \n?? <|end|> x<|end|>\n<|end|> \u{1f600} \u{1f600}tail   \u{915}\u{93e} \u{915}\u{93f}\n7 x";

    /// A tokenizer that was trained on [`TEXT`], so that its tokens show where it splits the text first; and where a text may be
    /// cut for it.
    fn trained(normalizer: &str, pre_tokenizer: &str) -> (Tokenizer, Cuts) {
        let described = format!(
            r#"{{"version":"1.0","normalizer":{normalizer},"pre_tokenizer":{pre_tokenizer},"added_tokens":[],"model":{{"type":"BPE","vocab":{{}},"merges":[]}}}}"#
        );
        let mut tokenizer = Tokenizer::from_bytes(&described).unwrap();
        let alphabet = ByteLevel::alphabet().into_iter().collect();
        let trainer = BpeTrainer::builder().vocab_size(900).show_progress(false).initial_alphabet(alphabet);
        let joined = TEXT.replace(' ', "");
        let texts = [TEXT, &joined].repeat(3);
        tokenizer.train(&mut TrainerWrapper::from(trainer.build()), texts.into_iter()).unwrap();
        tokenizer.add_special_tokens(&[AddedToken::from("<|end|>", true)]);
        let described = serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
        (tokenizer, cuts(&described))
    }

    fn pieces_of(path: &Path, cuts: Cuts, size: usize) -> Result<Vec<Piece>, Error> {
        let files = [path.to_path_buf()];
        let mut pieces = Pieces::new(&files, cuts, size);
        let mut all = Vec::new();
        while let Some(piece) = pieces.next()? {
            all.push(piece);
        }
        assert_eq!(pieces.sources[0]["blake3"], blake3::hash(&fs::read(path).unwrap()).to_hex().as_str());
        Ok(all)
    }

    fn byte_level(regex: bool) -> String {
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex })
            .to_string()
    }

    #[test]
    fn the_tokens_of_pieces_are_those_of_the_whole_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, TEXT.repeat(3)).unwrap();
        let split = |pattern: &str| {
            let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
            format!(r#"{{"type":"Sequence","pretokenizers":[{split},{}]}}"#, byte_level(false))
        };
        let nfc = r#"{"type":"NFC"}"#;
        let mut tokenizers = vec![trained("null", &byte_level(true)), trained(nfc, &byte_level(true))];
        assert_eq!(tokenizers[0].1, Cuts::WhiteSpace);
        tokenizers.extend(SPLITS.map(|pattern| trained(nfc, &split(pattern))));
        assert_eq!(tokenizers[2].1, Cuts::Blank);
        for (tokenizer, cuts) in tokenizers {
            let ids = |text: &str| tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec();
            let whole = ids(&TEXT.repeat(3));
            let same = |cuts, size| {
                let pieces = pieces_of(&path, cuts, size).unwrap();
                assert_eq!(pieces.len() > 1, size < 1000, "{cuts:?}, {size}");
                whole == pieces.iter().flat_map(|piece| ids(&piece.text)).collect::<Vec<u32>>()
            };
            let sizes = [1, 2, 3, 5, 8, 13, 40, 100, 10_000];
            assert!(sizes.iter().all(|&size| same(cuts, size)), "{cuts:?}");
            // These texts and tokenizers show a cut at a wrong position.
            assert!(cuts == Cuts::WhiteSpace || sizes.iter().any(|&size| !same(Cuts::WhiteSpace, size)));
        }
    }

    #[test]
    fn other_tokenizers_take_texts_whole() {
        let prefixed = byte_level(true).replace("\"add_prefix_space\":false", "\"add_prefix_space\":true");
        for (normalizer, before) in [
            ("null", prefixed.as_str()),
            ("null", r#"{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":false}"#),
            ("null", "null"),
            (r#"{"type":"Lowercase"}"#, &byte_level(true)),
        ] {
            let described = json!({ "normalizer": serde_json::from_str::<Value>(normalizer).unwrap(),
                "pre_tokenizer": serde_json::from_str::<Value>(before).unwrap() });
            assert_eq!(cuts(&described), Cuts::Nowhere, "{described}");
        }
        let added = |content: &str, lstrip: bool| {
            cuts(&json!({ "pre_tokenizer": serde_json::from_str::<Value>(&byte_level(true)).unwrap(),
                "added_tokens": [{ "content": content, "lstrip": lstrip }] }))
        };
        assert_eq!(
            [added("a b", false), added("ab", true), added("ab", false)],
            [Cuts::Nowhere, Cuts::Nowhere, Cuts::WhiteSpace]
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        fs::write(&path, TEXT).unwrap();
        assert_eq!(pieces_of(&path, Cuts::Nowhere, 4).unwrap(), [Piece { text: TEXT.into(), last: true }]);
    }

    #[test]
    fn what_is_no_text_is_named_by_its_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        for (bytes, at) in [(&b"one two\xff three"[..], "byte 7 "), (b"one two thr\xe2\x82", "byte 11 ")] {
            fs::write(&path, bytes).unwrap();
            for size in [2, 100] {
                let error = pieces_of(&path, Cuts::WhiteSpace, size).unwrap_err().to_string();
                assert!(error.contains(at), "{error}");
            }
        }
    }
}

//! The meaning of the ids that a language model writes: bytes, or the tokens of a tokenizer.

use std::path::PathBuf;

use crate::cli::view::escape::{Characters, one_line, prose};
use crate::cli::view::report::{Exit, Failure};
use tiebreak_dispute::answer::TokenizerParts;
use tiebreak_job::Job;
use tiebreak_job::spec::DataFiles;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::companions::Companions;

/// The meaning of ids.
pub enum Alphabet {
    /// Each is a byte.
    Bytes,
    /// They are shown as numbers, and each id of the model may be written.
    Ids,
    /// Each is a token.
    #[cfg(feature = "tokenizer")]
    Tokens(Box<super::tokens::Tokens>),
}

/// The place of a tokenizer, and the files that are there. Of a single file here the files are empty.
pub type Kept = (PathBuf, Companions);

/// The files of which one makes a tokenizer, alone or with others.
const TOKENIZERS: [&str; 4] = ["tokenizer.json", "vocab.json", "encoder.json", "tokenizer.model"];

impl Alphabet {
    /// The alphabet of a job's model: the tokenizer that the command line names, else the one that `kept` gives: a folder, and its
    /// files.
    pub fn of(
        job: &Job,
        vocabulary: u32,
        named: Option<Kept>,
        kept: impl FnOnce() -> Result<Kept, Failure>,
    ) -> Result<Alphabet, Failure> {
        let over_bytes = vocabulary <= 256 && matches!(job.data.files, DataFiles::Bytes { .. });
        if let Some(named) = named {
            return Alphabet::named(named);
        }
        if over_bytes {
            return Ok(Alphabet::Bytes);
        }
        let (folder, kept) = kept()?;
        if kept.names().any(|name| TOKENIZERS.contains(&name)) {
            return Alphabet::tokens(folder, &kept);
        }
        if vocabulary == 256 {
            return Ok(Alphabet::Bytes);
        }
        let why = format!(
            "the model writes {vocabulary} tokens, which are no bytes, and no tokenizer is kept with it: name one with --tokenizer PATH \
             (a tokenizer.json, or a folder that has one, or vocab.json and merges.txt)"
        );
        Err(Failure::new(Exit::Usage, why))
    }

    /// The alphabet of a tokenizer.
    pub fn named((path, beside): Kept) -> Result<Alphabet, Failure> {
        Alphabet::tokens(path, &beside)
    }

    #[cfg(feature = "tokenizer")]
    fn tokens(path: PathBuf, beside: &Companions) -> Result<Alphabet, Failure> {
        Ok(Alphabet::Tokens(Box::new(super::tokens::Tokens::open(&path, beside)?)))
    }

    #[cfg(not(feature = "tokenizer"))]
    fn tokens(path: PathBuf, _: &Companions) -> Result<Alphabet, Failure> {
        let why = format!(
            "the model's tokens are those of the tokenizer in {}, and this build of tiebreak reads none: \
             `cargo install --path . --locked --features tokenizer` makes one that does",
            path.display()
        );
        Err(Failure::new(Exit::Usage, why))
    }

    /// The ids of a text.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, Failure> {
        match self {
            Alphabet::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Alphabet::Ids => {
                text.split([' ', ',', '\t', '\n']).filter(|id| !id.is_empty()).map(id_of).collect()
            }
            #[cfg(feature = "tokenizer")]
            Alphabet::Tokens(tokens) => tokens.ids(text),
        }
    }

    /// True for each of the first `count` ids that means something.
    pub fn known(&self, count: u32) -> Vec<bool> {
        (0..count).map(|id| self.has(id)).collect()
    }

    fn has(&self, id: u32) -> bool {
        match self {
            Alphabet::Bytes => id < 256,
            Alphabet::Ids => true,
            #[cfg(feature = "tokenizer")]
            Alphabet::Tokens(tokens) => tokens.has(id),
        }
    }

    /// The ids with which a text ends, which are none of its own.
    pub fn ends(&self) -> &[u32] {
        match self {
            Alphabet::Bytes | Alphabet::Ids => &[],
            #[cfg(feature = "tokenizer")]
            Alphabet::Tokens(tokens) => &tokens.parts.ends,
        }
    }

    /// The digest of the tokenizer; `None` over bytes.
    pub fn digest(&self) -> Option<Digest> {
        self.parts().map(TokenizerParts::digest)
    }

    /// What the tokenizer's digest is made of; `None` over bytes.
    pub fn parts(&self) -> Option<&TokenizerParts> {
        match self {
            Alphabet::Bytes | Alphabet::Ids => None,
            #[cfg(feature = "tokenizer")]
            Alphabet::Tokens(tokens) => Some(&tokens.parts),
        }
    }

    /// The text of ids.
    pub fn text(&self, ids: &[u32]) -> Result<String, Failure> {
        self.after(ids, 0)
    }

    /// The text of ids that follow the first `given`.
    pub fn after(&self, ids: &[u32], given: usize) -> Result<String, Failure> {
        match self {
            Alphabet::Bytes => {
                let bytes: Vec<u8> = ids[given..].iter().map(|&id| id as u8).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Alphabet::Ids => Ok(ids[given..].iter().map(|id| format!(" {id}")).collect()),
            #[cfg(feature = "tokenizer")]
            Alphabet::Tokens(tokens) => tokens.after(ids, given),
        }
    }

    /// True if each id is a byte.
    pub fn is_bytes(&self) -> bool {
        matches!(self, Alphabet::Bytes)
    }

    /// A text that begins with these ids, those of `prompt`.
    pub fn written(&self, prompt: &str, ids: Vec<u32>) -> Written<'_> {
        let (characters, shown) = (Characters::default(), String::new());
        Written { alphabet: self, prompt: prompt.into(), given: ids.len(), ids, characters, shown }
    }
}

/// A number of a prompt of ids.
fn id_of(word: &str) -> Result<u32, Failure> {
    word.parse().map_err(|_| {
        let why = format!("--ids: the prompt has {:?}, which is no token id", one_line(word));
        Failure::new(Exit::Usage, why).help("give the ids as numbers, such as --ids --prompt '3 1 4'")
    })
}

/// A text that is being written.
pub struct Written<'a> {
    alphabet: &'a Alphabet,
    prompt: String,
    /// Ids of the prompt.
    given: usize,
    /// All ids.
    pub ids: Vec<u32>,
    characters: Characters,
    /// The part behind the prompt that was shown.
    shown: String,
}

impl Written<'_> {
    /// The prompt, as a terminal shows it.
    pub fn begin(&self) -> String {
        prose(&self.prompt).into_owned()
    }

    /// Adds an id. Returns the text that can be shown then and could not before, for a terminal.
    pub fn push(&mut self, id: u32) -> Result<String, Failure> {
        self.ids.push(id);
        if self.alphabet.is_bytes() {
            return Ok(self.characters.push(id as u8));
        }
        let text = self.rest()?;
        // A character that the last tokens begin is not whole.
        if text.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        Ok(self.show(text))
    }

    /// The rest at the end, for a terminal.
    pub fn end(&mut self) -> Result<String, Failure> {
        if self.alphabet.is_bytes() {
            return Ok(self.characters.rest());
        }
        let text = self.rest()?;
        Ok(self.show(text))
    }

    fn show(&mut self, text: String) -> String {
        // A tokenizer that writes its tokens in another way where others follow shows what follows later.
        let Some(new) = text.strip_prefix(&self.shown[..]) else { return String::new() };
        let new = prose(new).into_owned();
        self.shown = text;
        new
    }

    /// The whole text.
    pub fn text(&self) -> Result<String, Failure> {
        Ok(self.prompt.clone() + &self.rest()?)
    }

    /// The text behind the prompt.
    pub fn rest(&self) -> Result<String, Failure> {
        self.alphabet.after(&self.ids, self.given)
    }
}

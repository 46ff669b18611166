//! `tiebreak-import text`: texts as a file of token ids.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Value, json};
use tiebreak_token_files::{Format, Look, OF_TOKENS, StandIn, TOKENIZER_FILES, open_plain};
use tiebreak_tokenizer::{Bounds, Cuts, FILE_MAX, FILES_MAX, Loaded};

use crate::error::Error;
use crate::json_lines::{Lines, is_parquet};
use crate::output::{NpyFile, Unfinished, beside, digest, is_free, is_npy, write_in};
use crate::pieces::{PIECE, PIECE_MAX, Piece, Pieces};
use crate::progress;

/// Pieces that are encoded at once, for each thread.
const PIECES: usize = 2;

/// The inputs and the output of an import.
pub struct Texts<'a> {
    /// A tokenizer.json, or a folder that has one, or the two files of GPT-2.
    pub tokenizer: &'a Path,
    /// The .npy file.
    pub output: &'a Path,
    /// The texts, in order.
    pub files: &'a [PathBuf],
    /// The token that is written after each text.
    pub end_of_text: Option<&'a str>,
    /// The form of the files; `None` to go by their names.
    pub form: Option<Form>,
    /// The key of a line's text in JSON Lines.
    pub json_key: Option<&'a str>,
    /// The most seconds that the tokenizer may take for the pieces that it gets at once.
    pub tokenizer_time: u32,
}

/// Opens a tokenizer, with so many seconds for each request.
pub fn tokenizer(path: &Path, seconds: u32) -> Result<Loaded, Error> {
    let help = "raise --tokenizer-time, shorten the texts, or use another tokenizer";
    Ok(Loaded::open(path, Bounds { seconds, threads: rayon::current_num_threads(), help })?)
}

/// The form of texts in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// The file is a text.
    Text,
    /// Each line is an object of JSON with a text.
    JsonLines,
    /// Each row of the Parquet file has a text in one column.
    Parquet,
}

/// The default key of a line's text.
const JSON_KEY: &str = "text";
/// The most bytes of a first line that is examined.
const LOOK: u64 = 1 << 20;

impl Texts<'_> {
    /// The form of texts in a file: the given one, else by the file's name. A file that looks like JSON Lines under another name
    /// is refused.
    fn form_of(&self, path: &Path) -> Result<Form, Error> {
        match (self.form, is_parquet(path)?) {
            (None | Some(Form::Parquet), true) => return Ok(Form::Parquet),
            (Some(_), true) => {
                return Err(Error::malformed(path, "it is a Parquet file: leave --form out"));
            }
            (Some(Form::Parquet), false) => {
                let why =
                    "it is no Parquet file, which begins and ends with the letters PAR1: leave --form out";
                return Err(Error::malformed(path, why));
            }
            (None, false) if path.extension().is_some_and(|extension| extension == "parquet") => {
                let why = "it does not begin and end as Parquet files do: get it again; `--form text` takes it as a text";
                return Err(Error::malformed(path, why));
            }
            (_, false) => {}
        }
        let mut start = Vec::new();
        let mut file = BufReader::new(open_plain(path).map_err(Error::io(path))?.take(LOOK));
        file.read_until(b'\n', &mut start).map_err(Error::io(path))?;
        match Format::of(&Look::at(&start)) {
            Some(format @ Format::StandIn(StandIn::LfsPointer | StandIn::AnnexPointer)) => {
                return Err(Error::malformed(path, format.why()));
            }
            Some(Format::Other(name, _)) => {
                return Err(Error::malformed(path, format!("it is {name}; texts in UTF-8 are wanted")));
            }
            _ => {}
        }
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        if let Some(form) = self.form {
            return Ok(form);
        }
        if extension.is_some_and(|extension| extension == "jsonl" || extension == "ndjson") {
            return Ok(Form::JsonLines);
        }
        match serde_json::from_slice(&start) {
            Ok(Value::Object(_)) => Err(Error::Usage(format!(
                "{path:?} looks like JSON Lines: say --form json-lines (the text under --json-key {JSON_KEY} of each line), or --form text"
            ))),
            _ => Ok(Form::Text),
        }
    }
}

/// Writes the token ids of texts as one row of u16, or of u32 if the tokenizer has ids that need it. Beside the file, under the
/// same name with a suffix, are the description of its inputs (`.json`) and the tokenizer's files (`.tokenizer`). Returns the
/// description.
pub fn import(texts: &Texts) -> Result<Value, Error> {
    let [about, kept] = [".json", OF_TOKENS].map(|more| beside(texts.output, more));
    is_npy(texts.output)?;
    [texts.output, &about, &kept].into_iter().try_for_each(is_free)?;
    let loaded = tokenizer(texts.tokenizer, texts.tokenizer_time)?;
    let end = texts.end_of_text.map(|token| {
        let id = loaded.id(token).map_err(Error::Malformed)?;
        id.ok_or_else(|| Error::Usage(format!("--end-of-text: the tokenizer has no token {token:?}")))
    });
    let end = end.transpose()?;
    let forms = texts.files.iter().map(|path| texts.form_of(path)).collect::<Result<Vec<Form>, Error>>()?;
    if texts.json_key.is_some() && forms.iter().all(|form| *form == Form::Text) {
        let why = "--json-key is for JSON Lines (.jsonl, .ndjson, or --form json-lines) and Parquet, and no file is of them";
        return Err(Error::Usage(why.into()));
    }
    let files = tokenizer_files(texts.tokenizer, &loaded)?;
    let small = loaded.greatest <= u32::from(u16::MAX);
    let mut unfinished = Unfinished::default();
    let (written, output) = unfinished.file(texts.output)?;
    let mut npy = NpyFile::begin((written.clone(), output), if small { "<u2" } else { "<u4" }, Vec::new())?;
    let sizes = texts.files.iter().map(|path| fs::metadata(path).map_or(0, |data| data.len()));
    let mut reader = Reader {
        texts,
        forms,
        cuts: loaded.cuts,
        file: 0,
        current: None,
        held: None,
        sources: Vec::new(),
        bar: progress::bytes(sizes.sum()),
    };
    let (tokens, documents) = encode(&mut reader, &loaded, end, small, &mut npy)?;
    npy.finish(tokens)?;
    let (bytes, blake3) = digest(&written)?;
    keep(&mut unfinished, &kept, &files)?;
    let made = json!({
        "made_by": concat!("tiebreak-import ", env!("CARGO_PKG_VERSION")),
        "kind": "tokens",
        "dtype": if small { "u16" } else { "u32" },
        "tokens": tokens,
        "documents": documents,
        "vocabulary": loaded.greatest + 1,
        "end_of_text": texts.end_of_text,
        "tokenizer": loaded.files.iter().map(|(path, bytes)| source(path, bytes)).collect::<Vec<Value>>(),
        "tokenizer_kept": files.iter().map(|(name, _)| name.as_str()).collect::<Vec<&str>>(),
        "tokenizers_version": TOKENIZERS,
        "texts": reader.sources,
        "output": { "bytes": bytes, "blake3": blake3 },
    });
    unfinished.write(&about, &serde_json::to_vec_pretty(&made).expect("JSON values can be written"))?;
    unfinished.publish()?;
    Ok(made)
}

/// Writes the tokenizer's files into a folder of their own.
pub fn keep(unfinished: &mut Unfinished, folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), Error> {
    let folder = unfinished.folder(folder)?;
    files.iter().try_for_each(|(name, bytes)| write_in(&folder, name, bytes))
}

/// Name, length and BLAKE3 of a file.
pub fn source(path: &Path, bytes: &[u8]) -> Value {
    let name = path.file_name().map(|name| name.to_string_lossy());
    json!({ "name": name, "bytes": bytes.len(), "blake3": blake3::hash(bytes).to_hex().as_str() })
}

/// The tokenizer's files, under the names by which a run keeps them.
pub fn tokenizer_files(path: &Path, loaded: &Loaded) -> Result<Vec<(String, Vec<u8>)>, Error> {
    if !path.is_dir() {
        // The file was read as a tokenizer.json, whatever its name is.
        return Ok(loaded
            .files
            .iter()
            .map(|(_, bytes)| ("tokenizer.json".to_string(), bytes.clone()))
            .collect());
    }
    let (mut files, mut all) = (Vec::new(), 0);
    for name in TOKENIZER_FILES.into_iter().chain(["generation_config.json"]) {
        let from = path.join(name);
        if from.is_file() {
            let read = loaded.files.iter().find(|(path, _)| *path == from);
            let bytes = match read {
                Some((_, bytes)) => bytes.clone(),
                None => bounded(&from)?,
            };
            all += bytes.len() as u64;
            files.push((name.to_string(), bytes));
        }
    }
    if all > FILES_MAX {
        let why =
            format!("a tokenizer's files have at most {FILES_MAX} bytes together, and these have {all}");
        return Err(Error::malformed(path, why));
    }
    Ok(files)
}

/// The bytes of a file that lies beside a tokenizer.
fn bounded(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let file = open_plain(path).map_err(Error::io(path))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    match bytes.len() as u64 <= FILE_MAX {
        true => Ok(bytes),
        false => Err(Error::malformed(path, format!("a tokenizer's file has at most {FILE_MAX} bytes"))),
    }
}

/// Texts of files of either form, one file after another.
struct Reader<'a> {
    texts: &'a Texts<'a>,
    forms: Vec<Form>,
    cuts: Cuts,
    /// The number of the file that is read next.
    file: usize,
    current: Option<Current<'a>>,
    /// A piece that was read and did not fit beside others.
    held: Option<Piece>,
    /// The descriptions of the files that were read to their end.
    sources: Vec<Value>,
    bar: progress::Progress,
}

enum Current<'a> {
    Text(Pieces<'a>),
    Lines(Lines<'a>),
}

impl Reader<'_> {
    /// The next pieces: some for each thread, and together no more bytes than one piece may have. None after the last.
    fn batch(&mut self) -> Result<Vec<Piece>, Error> {
        let most = PIECES * rayon::current_num_threads();
        let (mut batch, mut bytes) = (Vec::with_capacity(most), 0);
        while batch.len() < most && bytes < most * PIECE {
            let Some(piece) = self.held.take().map_or_else(|| self.next(), |piece| Ok(Some(piece)))? else {
                break;
            };
            bytes += piece.text.len();
            if bytes > PIECE_MAX && !batch.is_empty() {
                self.held = Some(piece);
                break;
            }
            batch.push(piece);
        }
        Ok(batch)
    }

    /// An error in a batch, before which `first` files were begun.
    fn error(&self, first: usize, why: String) -> Error {
        let paths = &self.texts.files[first.saturating_sub(1)..self.file.max(first)];
        match paths {
            [path] => Error::malformed(path, why),
            [path, .., last] => Error::Malformed(format!("{path:?} to {last:?}: {why}")),
            [] => Error::Malformed(why),
        }
    }

    /// The next piece; `None` after the last piece of the last file.
    fn next(&mut self) -> Result<Option<Piece>, Error> {
        loop {
            let Some(current) = &mut self.current else {
                let Some(path) = self.texts.files.get(self.file) else { return Ok(None) };
                self.current = Some(match self.forms[self.file] {
                    Form::Text => Current::Text(Pieces::new(std::slice::from_ref(path), self.cuts, PIECE)),
                    Form::JsonLines | Form::Parquet => {
                        let lines = Lines::open(path, self.texts.json_key.unwrap_or(JSON_KEY))?;
                        if let Some(unpacked) = lines.unpacked() {
                            let packed = fs::metadata(path).map_or(0, |data| data.len());
                            self.bar.replace(packed, unpacked);
                        }
                        Current::Lines(lines)
                    }
                });
                self.file += 1;
                continue;
            };
            let piece = match current {
                Current::Text(pieces) => pieces.next()?,
                Current::Lines(lines) => lines.next()?,
            };
            if piece.is_some() {
                return Ok(piece);
            }
            match self.current.take() {
                Some(Current::Text(pieces)) => self.sources.extend(pieces.sources),
                Some(Current::Lines(lines)) => self.sources.push(lines.source()?),
                None => {}
            }
        }
    }
}

/// The version of the crate that makes the tokens, equal to that in Cargo.lock; a test compares them.
pub const TOKENIZERS: &str = "0.22.2";

/// Appends the tokens of all texts. Returns the number of tokens, and that of the texts.
fn encode(
    reader: &mut Reader,
    loaded: &Loaded,
    end: Option<u32>,
    small: bool,
    npy: &mut NpyFile,
) -> Result<(u64, u64), Error> {
    let (mut tokens, mut documents) = (0, 0);
    loop {
        let first = reader.file;
        let batch = reader.batch()?;
        if batch.is_empty() {
            break;
        }
        let texts: Vec<&str> = batch.iter().map(|piece| &piece.text[..]).collect();
        let ids = loaded.ids_of(&texts).map_err(|why| reader.error(first, why))?;
        for (Piece { text, last }, ids) in batch.iter().zip(ids) {
            let ids: Vec<u32> = ids.into_iter().chain(end.filter(|_| *last)).collect();
            tokens += ids.len() as u64;
            documents += u64::from(*last);
            // `small`: every id is below 2^16.
            let bytes: Vec<u8> = match small {
                true => ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect(),
                false => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
            };
            npy.append(&bytes)?;
            reader.bar.inc(text.len() as u64);
        }
    }
    reader.bar.finish_and_clear();
    if tokens == 0 {
        return Err(Error::Malformed("the texts have no token".into()));
    }
    Ok((tokens, documents))
}

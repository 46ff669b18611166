//! `tiebreak-import tokens`: raw files of token ids, as other programs write them, as a .npy file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::{Value, json};
use tiebreak_token_files::{Format, LlmC, Look, Width, open_plain, other_width};

use crate::error::Error;
use crate::output::{NpyFile, Unfinished, beside, digest, is_free, is_npy};
use crate::progress;

/// The number of bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// The input and the output of an import.
pub struct Tokens<'a> {
    /// The raw file.
    pub file: &'a Path,
    /// The .npy file.
    pub output: &'a Path,
    /// The type of the ids, if the file has no header.
    pub dtype: Option<Width>,
}

/// Writes the ids as one row of their own width, and beside it, under the same name with `.json` after it, the description of the
/// input. Returns the description.
pub fn import(tokens: &Tokens) -> Result<Value, Error> {
    let about = beside(tokens.output, ".json");
    is_npy(tokens.output)?;
    is_free(tokens.output)?;
    is_free(&about)?;
    let path = tokens.file;
    let mut file = open_plain(path).map_err(Error::io(path))?;
    let Layout { width, header, name } = layout(tokens, &mut file)?;
    let mut unfinished = Unfinished::default();
    let (written, output) = unfinished.file(tokens.output)?;
    let mut npy = NpyFile::begin(
        (written.clone(), output),
        if width == Width::U16 { "<u2" } else { "<u4" },
        Vec::new(),
    )?;
    let copied = copy(path, &mut file, header, width, &mut npy)?;
    npy.finish(copied.ids)?;
    let (bytes, blake3) = digest(&written)?;
    let made = json!({
        "made_by": concat!("tiebreak-import ", env!("CARGO_PKG_VERSION")),
        "kind": "tokens",
        "layout": name,
        "dtype": if width == Width::U16 { "u16" } else { "u32" },
        "tokens": copied.ids,
        "vocabulary": u64::from(copied.greatest) + 1,
        "source": { "name": path.file_name().map(|name| name.to_string_lossy()), "bytes": copied.bytes, "blake3": copied.blake3 },
        "output": { "bytes": bytes, "blake3": blake3 },
    });
    unfinished.write(&about, &serde_json::to_vec_pretty(&made).expect("JSON values can be written"))?;
    unfinished.publish()?;
    Ok(made)
}

/// The layout of ids in a file.
struct Layout {
    width: Width,
    /// Bytes before the first id.
    header: u64,
    name: &'static str,
}

/// The layout of a file: by its header, or by the command line if it has none.
fn layout(tokens: &Tokens, file: &mut File) -> Result<Layout, Error> {
    let path = tokens.file;
    let look = Look::of(file).map_err(Error::io(path))?;
    let bytes = look.bytes;
    match Format::of(&look) {
        Some(Format::LlmC(Ok(header))) => {
            header.fits(bytes).map_err(|why| Error::malformed(path, why))?;
            if tokens.dtype.is_some_and(|width| width != header.width) {
                let why = format!(
                    "{path:?} has a header of llm.c, which says that an id has {} bytes: leave --dtype out",
                    header.width.bytes()
                );
                return Err(Error::Usage(why));
            }
            return Ok(Layout { width: header.width, header: LlmC::HEADER, name: "llm.c" });
        }
        Some(format) => return Err(Error::malformed(path, format.why())),
        None => {}
    }
    let Some(width) = tokens.dtype else {
        let why = format!(
            "{path:?} has no header that is known; say --dtype u16 (as nanoGPT writes) or --dtype u32 if it holds nothing but ids"
        );
        return Err(Error::Usage(why));
    };
    if !bytes.is_multiple_of(width.bytes()) {
        let why = format!("{bytes} bytes are no whole number of ids of {} bytes", width.bytes());
        return Err(Error::malformed(path, why));
    }
    if let Some(why) = other_width(&look.start, bytes, width, None) {
        return Err(Error::malformed(path, why));
    }
    Ok(Layout { width, header: 0, name: "headerless" })
}

/// The result of a copy.
struct Copied {
    ids: u64,
    greatest: u32,
    /// The bytes of the source, with its header.
    bytes: u64,
    blake3: String,
}

/// Copies the ids behind the header, a piece at a time.
fn copy(path: &Path, file: &mut File, header: u64, width: Width, npy: &mut NpyFile) -> Result<Copied, Error> {
    let all = file.metadata().map_err(Error::io(path))?.len();
    let bar = progress::bytes(all);
    let mut hasher = blake3::Hasher::new();
    let mut copied = Copied { ids: 0, greatest: 0, bytes: 0, blake3: String::new() };
    let mut skipped = vec![0; header as usize];
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut skipped)).map_err(Error::io(path))?;
    hasher.update(&skipped);
    let mut piece = Vec::with_capacity(PIECE);
    loop {
        piece.clear();
        file.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(Error::io(path))?;
        if piece.is_empty() {
            break;
        }
        let ids = width.ids(&piece);
        copied.ids += ids.len() as u64;
        copied.greatest = copied.greatest.max(ids.into_iter().max().unwrap_or(0));
        hasher.update(&piece);
        npy.append(&piece)?;
        bar.inc(piece.len() as u64);
    }
    bar.finish_and_clear();
    if hasher.count() != all || copied.ids * width.bytes() + header != all {
        return Err(Error::malformed(path, "the file was changed while it was read"));
    }
    if copied.ids == 0 {
        return Err(Error::malformed(path, "the file has no token"));
    }
    Ok(Copied { bytes: all, blake3: hasher.finalize().to_hex().to_string(), ..copied })
}

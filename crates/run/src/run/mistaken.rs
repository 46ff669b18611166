//! Files that are something else than what they are named: pointers of Git LFS, web pages, other formats. Their first bytes say it, and each has a way to the file
//! that was wanted.

use std::io::Read;
use std::path::Path;

use super::error::RunError;
use crate::job::data::layout::{is_npy, is_safetensors};
use crate::job::spec::DataFiles;

/// The bytes of a file's beginning that are looked at.
const HEAD: u64 = 512;
/// As many zeros at the beginning are no beginning of any format here.
const ZEROS: usize = 64;

/// What a file was wanted to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Safetensors.
    Weights,
    /// JSON.
    Config,
    /// An array or a list of samples, in a format that says what it is.
    Data,
}

/// What a file is, and what to do about it.
struct Kind {
    is: &'static str,
    /// Where weights were wanted.
    weights: &'static str,
    /// Where anything else was wanted; empty if nothing can be said.
    other: &'static str,
}

const fn kind(is: &'static str, weights: &'static str, other: &'static str) -> Kind {
    Kind { is, weights, other }
}

/// The same advice for whatever was wanted.
const fn again(is: &'static str, advice: &'static str) -> Kind {
    kind(is, advice, advice)
}

const LFS: Kind = again(
    "a pointer of Git LFS",
    "run `git lfs pull` in the folder that it was cloned into, or download the file itself",
);
const ANNEX: Kind = again("a pointer of git-annex", "run `git annex get` on it");
const PAGE: Kind = again(
    "a web page (HTML)",
    "download the file again: the link led to a page about it, to a login or to an error",
);
const EMPTY: Kind = again("empty", "download the file again");
const ZERO: Kind = again("zeros from its beginning on", "download the file again: a download broke off");
const PACKED: &str = "unpack it first";

/// How PyTorch's files become safetensors.
const CONVERT: &str = "write its tensors as safetensors, in Python: safetensors.torch.save_file(torch.load(FILE, map_location=\"cpu\", weights_only=True), \
    \"model.safetensors\"), or with transformers: model.save_pretrained(DIR)";

/// Formats by their first bytes.
const FORMATS: [(&[u8], Kind); 15] = [
    (
        b"PK\x03\x04",
        kind(
            "a zip file, as torch.save writes it",
            CONVERT,
            "unpack it first; of numpy.savez, save each array alone with numpy.save",
        ),
    ),
    (b"\x80\x02", kind("a pickle, as older versions of torch.save wrote it", CONVERT, "")),
    (b"\x80\x03", kind("a pickle", CONVERT, "")),
    (b"\x80\x04", kind("a pickle", CONVERT, "")),
    (b"\x80\x05", kind("a pickle", CONVERT, "")),
    (b"\x1f\x8b", kind("a gzip file", PACKED, "name it with .gz at its end, or unpack it")),
    (b"\x28\xb5\x2f\xfd", again("a zstd file", PACKED)),
    (b"\xfd7zXZ", again("an xz file", PACKED)),
    (b"BZh", again("a bzip2 file", PACKED)),
    (
        b"GGUF",
        kind(
            "a GGUF file, whose weights are quantised for llama.cpp",
            "get the model's safetensors: the same repository or its base model has them",
            "",
        ),
    ),
    (
        b"\x89HDF\r\n",
        kind(
            "an HDF5 file, as Keras and TensorFlow write it",
            "load it there, and save it with safetensors",
            "save its array with numpy.save",
        ),
    ),
    (
        b"\x93NUMPY",
        kind(
            "a .npy file",
            "safetensors.numpy.save_file writes named arrays as safetensors",
            "give its name .npy at the end",
        ),
    ),
    (
        b"PAR1",
        kind("a Parquet file", "", "save its columns with numpy.save, or its texts with tiebreak-import"),
    ),
    (
        b"ARROW1",
        kind("an Arrow file", "", "save its columns with numpy.save, or its texts with tiebreak-import"),
    ),
    (b"\x89PNG", kind("a picture", "", "tiebreak-import makes arrays of folders of pictures")),
];

/// What is put in place of a file that is elsewhere: long texts, which no file begins with by chance.
fn stand_in(head: &[u8]) -> Option<Kind> {
    let lower = head.trim_ascii_start().strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.trim_ascii_start());
    let lower = lower[..lower.len().min(16)].to_ascii_lowercase();
    if head.starts_with(b"version https://git-lfs") {
        Some(LFS)
    } else if head.starts_with(b"/annex/objects/") || head.starts_with(b".git/annex/objects/") {
        Some(ANNEX)
    } else if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") {
        Some(PAGE)
    } else {
        None
    }
}

/// What a file is that is not in a format which says what it is.
fn found(head: &[u8], wanted: Wanted) -> Option<Kind> {
    if head.is_empty() {
        return Some(EMPTY);
    }
    if head.len() >= ZEROS && head.iter().all(|&byte| byte == 0) {
        return Some(ZERO);
    }
    let format = || FORMATS.into_iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, kind)| kind);
    stand_in(head).or_else(format).or_else(|| text(head, wanted))
}

/// Texts, where none was wanted; and XML, where another one was.
fn text(head: &[u8], wanted: Wanted) -> Option<Kind> {
    let start = head.trim_ascii_start();
    match start.first()? {
        b'<' if start.get(1).is_some_and(|c| c.is_ascii_alphabetic() || b"?!".contains(c)) => Some(PAGE),
        b'{' if wanted == Wanted::Weights => {
            Some(again("a text of JSON", "download the file again: a server writes its errors so"))
        }
        _ if wanted != Wanted::Config && head.len() > 8 && head.is_ascii() && !head.contains(&0) => {
            Some(again("a text", "download the file again, or name the one that was meant"))
        }
        _ => None,
    }
}

fn error(path: &Path, Kind { is, weights, other }: Kind, wanted: Wanted) -> RunError {
    let (advice, what) = match wanted {
        Wanted::Weights => (weights, "a safetensors file"),
        Wanted::Config => (other, "a text of JSON"),
        Wanted::Data => (other, "another format"),
    };
    let advice = if advice.is_empty() { String::new() } else { format!(": {advice}") };
    RunError::invalid(path, format!("it is {is}, and {what} is wanted{advice}"))
}

/// The first bytes of what is read.
pub fn head(mut contents: impl Read) -> Vec<u8> {
    let mut head = Vec::new();
    // What cannot be read is reported by whoever reads it whole.
    let _ = contents.by_ref().take(HEAD).read_to_end(&mut head);
    head
}

/// The error about a file of weights that is no safetensors file: what it is, if its first bytes say it, else `why`.
pub fn weights(path: &Path, head: &[u8], why: impl Into<String>) -> RunError {
    let found = found(head, Wanted::Weights);
    found.map_or_else(|| RunError::invalid(path, why), |kind| error(path, kind, Wanted::Weights))
}

/// The same about a file of JSON.
pub fn config(path: &Path, head: &[u8], why: impl Into<String>) -> RunError {
    let head = &head[..head.len().min(HEAD as usize)];
    let found = found(head, Wanted::Config);
    found.map_or_else(|| RunError::invalid(path, why), |kind| error(path, kind, Wanted::Config))
}

/// Refuses what is put in place of a file that is elsewhere.
///
/// # Errors
/// If the file's first bytes are those of a Git LFS pointer or of a web page.
pub fn refuse_stand_in(path: &Path, head: &[u8]) -> Result<(), RunError> {
    stand_in(head).map_or(Ok(()), |Kind { is, other, .. }| {
        Err(RunError::invalid(path, format!("it is {is}, not the file itself: {other}")))
    })
}

/// Refuses a data file of which the first bytes say that it is something else. `name`: what the job calls it.
///
/// # Errors
/// If it is.
pub fn refuse_data(path: &Path, head: &[u8], files: &DataFiles, name: &str) -> Result<(), RunError> {
    let (has_mark, is_text) = match files {
        DataFiles::Bytes { .. } => (false, true),
        DataFiles::Idx { .. } => (!head.starts_with(&[0, 0, 8]), false),
        // A header of a safetensors file has its length in front, which may be a text's first bytes.
        DataFiles::Tokens { .. } | DataFiles::Arrays(_) if is_safetensors(name) => {
            (head.get(8) != Some(&b'{'), false)
        }
        DataFiles::Tokens { .. } | DataFiles::Arrays(_) if is_npy(name) => {
            (!head.starts_with(b"\x93NUMPY"), false)
        }
        // Raw numbers may begin with any bytes.
        _ => (false, false),
    };
    if has_mark {
        return found(head, Wanted::Data).map_or(Ok(()), |kind| Err(error(path, kind, Wanted::Data)));
    }
    // A web page is a text to train on.
    if is_text && !head.starts_with(b"version https://git-lfs") {
        Ok(())
    } else {
        refuse_stand_in(path, head)
    }
}

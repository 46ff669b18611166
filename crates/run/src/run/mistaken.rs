//! Recognises files that are not what their names say: pointers of Git LFS, web pages, other formats. Their first bytes show it,
//! and each error says how to get the intended file. Data files are examined elsewhere.

use std::io::Read;
use std::path::Path;

use super::error::RunError;
use tiebreak_token_files::StandIn;

/// The number of bytes at a file's beginning that are examined.
const HEAD: u64 = 512;
/// So many zeros begin no format here.
const ZEROS: usize = 64;

/// The actual kind of a file, and what to do about it.
type Mistake = (&'static str, &'static str);

const EMPTY: Mistake = ("empty", "download the file again");
const ZERO: Mistake = ("zeros from its beginning on", "download the file again: a download broke off");
const JSON: Mistake = ("a text of JSON", "download the file again: a server writes its errors so");
const TEXT: Mistake = ("a text", "download the file again, or name the one that was meant");

const UNPACK: &str = "unpack it first";
/// The way from PyTorch's files to safetensors.
const CONVERT: &str = "write its tensors as safetensors, in Python: safetensors.torch.save_file(torch.load(FILE, map_location=\"cpu\", weights_only=True), \
    \"model.safetensors\"), or with transformers: model.save_pretrained(DIR)";
const SAVE: &str = "load it where it was written, and save it as safetensors";

/// Formats by their first bytes, with the way from each to safetensors.
const FORMATS: [(&[u8], Mistake); 12] = [
    (b"PK\x03\x04", ("a zip file, as torch.save writes it", CONVERT)),
    (b"\x80\x02", ("a pickle, as older versions of torch.save wrote it", CONVERT)),
    (b"\x80\x03", ("a pickle", CONVERT)),
    (b"\x80\x04", ("a pickle", CONVERT)),
    (b"\x80\x05", ("a pickle", CONVERT)),
    (b"\x1f\x8b", ("a gzip file", UNPACK)),
    (b"\x28\xb5\x2f\xfd", ("a zstd file", UNPACK)),
    (b"\xfd7zXZ", ("an xz file", UNPACK)),
    (b"BZh", ("a bzip2 file", UNPACK)),
    (
        b"GGUF",
        (
            "a GGUF file, whose weights are rounded for llama.cpp",
            "get the safetensors of the model that it was made of",
        ),
    ),
    (b"\x89HDF\r\n", ("an HDF5 file, as Keras and TensorFlow write it", SAVE)),
    (b"\x93NUMPY", ("a .npy file", SAVE)),
];

fn stand_in(head: &[u8]) -> Option<Mistake> {
    StandIn::of(head).map(kind)
}

fn kind(stand_in: StandIn) -> Mistake {
    (stand_in.name(), stand_in.advice())
}

/// The actual format of a file that is not of the expected format.
fn found(head: &[u8]) -> Option<Mistake> {
    if head.is_empty() {
        return Some(EMPTY);
    }
    if head.len() >= ZEROS && head.iter().all(|&byte| byte == 0) {
        return Some(ZERO);
    }
    let format = || FORMATS.into_iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, kind)| kind);
    stand_in(head).or_else(format)
}

/// The first bytes of `contents`.
pub fn head(contents: impl Read) -> Vec<u8> {
    let mut head = Vec::new();
    // The function that reads the whole file reports contents that cannot be read.
    let _ = contents.take(HEAD).read_to_end(&mut head);
    head
}

/// The error about a file of weights that is no safetensors file: its actual format if the first bytes show it, else `why`.
pub fn weights(path: &Path, head: &[u8], why: impl Into<String>) -> RunError {
    let text = || match head.trim_ascii_start().first()? {
        b'<' => Some(kind(StandIn::Page)),
        b'{' => Some(JSON),
        _ => (head.len() > 8 && head.is_ascii() && !head.contains(&0)).then_some(TEXT),
    };
    let why = match found(head).or_else(text) {
        Some((is, advice)) => format!("it is {is}, and a safetensors file is wanted: {advice}"),
        None => why.into(),
    };
    RunError::invalid(path, why)
}

/// The same error about a JSON text, whose whole contents are `bytes`.
pub fn config(path: &Path, bytes: &[u8], why: impl Into<String>) -> RunError {
    let head = &bytes[..bytes.len().min(HEAD as usize)];
    let why = match (stand_in(head), found(head)) {
        (Some((is, advice)), _) => format!("it is {is}: {advice}"),
        (None, Some((is, _))) => format!("it is {is}, and a text of JSON is wanted: download the file again"),
        (None, None) => why.into(),
    };
    RunError::invalid(path, why)
}

/// Refuses a stand-in for a file that is elsewhere.
///
/// # Errors
/// If the file's first bytes are those of a pointer of Git LFS or git-annex, or of a web page.
pub(crate) fn refuse_stand_in(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    match stand_in(&bytes[..bytes.len().min(HEAD as usize)]) {
        Some((is, advice)) => Err(RunError::invalid(path, format!("it is {is}: {advice}"))),
        None => Ok(()),
    }
}

//! Formats of files that are mistaken for token ids, or for other data without a header.

use crate::llm_c::LlmC;
use crate::look::Look;
use crate::stand_in::StandIn;

/// A known format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// A token file of llm.c; or another file of llm.c, with the reason why its ids cannot be read.
    LlmC(Result<LlmC, String>),
    /// NumPy's file of one array.
    Npy,
    /// safetensors.
    Safetensors,
    /// A text in place of the file.
    StandIn(StandIn),
    /// Text in UTF-8.
    Text,
    /// Any other format: its name, and what to do.
    Other(&'static str, &'static str),
}

impl Format {
    /// The format of a file, if it is known.
    pub fn of(look: &Look) -> Option<Format> {
        let start = &look.start[..];
        if let Some(stand_in) = StandIn::of(start) {
            return Some(Format::StandIn(stand_in));
        }
        if let Some(read) = LlmC::of(start) {
            return Some(Format::LlmC(read));
        }
        // NumPy's versions are 1.0 to 3.0.
        if start.starts_with(b"\x93NUMPY") && matches!(start.get(6..8), Some([1..=3, 0])) {
            return Some(Format::Npy);
        }
        if is_safetensors(look) {
            return Some(Format::Safetensors);
        }
        packed(start).or_else(|| tables(look)).or_else(|| is_text(look).then_some(Format::Text))
    }

    /// The actual kind of the file, and what to do about it.
    pub fn why(&self) -> String {
        const IMPORT: &str =
            "`tiebreak-import tokens FILE --output NAME.npy` makes a file of them that a job takes";
        match self {
            Format::LlmC(Ok(_)) => {
                format!("it is a token file of llm.c, whose header of 1024 bytes is no token: {IMPORT}")
            }
            Format::LlmC(Err(why)) => why.clone(),
            Format::Npy => "it is a .npy file: give it a name that ends in .npy, so that its header is read".into(),
            Format::Safetensors => "it is a safetensors file: give it a name that ends in .safetensors, where a job takes one".into(),
            Format::StandIn(stand_in) => format!("it is {}: {}", stand_in.name(), stand_in.advice()),
            Format::Text => {
                "it is text, not token ids: `tiebreak-import text` makes tokens of it, and kind = \"bytes\" takes each byte as one".into()
            }
            Format::Other(name, advice) => format!("it is {name}: {advice}"),
        }
    }
}

const UNPACK: &str = "unpack it first";
const WRITE_IDS: &str = "write the token ids in it as .npy";

/// True if the file begins with a header's length that the file can hold, and with a JSON object.
fn is_safetensors(look: &Look) -> bool {
    let Some((len, header)) = look.start.split_first_chunk() else { return false };
    let len = u64::from_le_bytes(*len);
    // The format's own bound on the length of a header.
    (2..=100_000_000).contains(&len) && len <= look.bytes.saturating_sub(8) && header.starts_with(b"{\"")
}

/// Archives and compressed files. Sources: RFC 1952, RFC 8878, PKWARE's APPNOTE, and the formats of .xz and bzip2.
fn packed(start: &[u8]) -> Option<Format> {
    let is = |name| Some(Format::Other(name, UNPACK));
    match start {
        // Deflate; three reserved flags; the kinds of systems; levels 0, 2 and 4.
        [0x1f, 0x8b, 8, 0..=0x1f, _, _, _, _, 0 | 2 | 4, 0..=13 | 255, ..] => {
            Some(Format::Other("packed with gzip", "give it a name that ends in .gz, or unpack it"))
        }
        [0x28, 0xb5, 0x2f, 0xfd, flags, ..] if flags & 8 == 0 => is("packed with zstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => is("packed with xz"),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => is("packed with bzip2"),
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => is("a 7-Zip archive"),
        // The required version and the method of the first entry.
        [b'P', b'K', 3, 4, 0..=63, _, _, _, 0 | 8 | 9 | 12 | 14 | 93 | 99, 0, ..] => Some(Format::Other(
            "a zip archive (as numpy.savez and torch.save write)",
            "unpack it, or write the token ids in it as .npy",
        )),
        _ => None,
    }
}

/// Files of tables and arrays. Sources: the formats' own pages; indexed_dataset.py of Megatron-LM; pickletools of Python.
fn tables(look: &Look) -> Option<Format> {
    let is = |name| Some(Format::Other(name, WRITE_IDS));
    let (start, ends) = (&look.start[..], |tail: &[u8]| look.bytes >= 12 && look.end.ends_with(tail));
    match start {
        [b'A', b'R', b'R', b'O', b'W', b'1', 0, 0, ..] => is("an Arrow (Feather) file"),
        // A stream of Arrow: the mark of a message, its length, and a table of the schema.
        [0xff, 0xff, 0xff, 0xff, _, _, 0, 0, 0x10, 0, 0, 0, 0, 0, ..] => is("an Arrow stream"),
        [b'F', b'E', b'A', b'1', ..] if ends(b"FEA1") => is("a Feather file"),
        [b'P', b'A', b'R', b'1', ..] if ends(b"PAR1") || ends(b"PARE") => Some(Format::Other(
            "a Parquet file",
            "`tiebreak-import text` makes tokens of its texts; of token ids in it, write a .npy file",
        )),
        [0x89, b'H', b'D', b'F', 0x0d, 0x0a, 0x1a, 0x0a, ..] => is("an HDF5 file"),
        [b'M', b'M', b'I', b'D', b'I', b'D', b'X', 0, 0, ..] => Some(Format::Other(
            "the index of a data set of Megatron",
            "the token ids are in the .bin file beside it",
        )),
        [b'G', b'G', b'U', b'F', 1..=3, 0, 0, 0, ..] => {
            Some(Format::Other("a GGUF file of weights", "token ids are wanted"))
        }
        // A frame of protocol 4 or 5, and the opcode that ends every pickle.
        [0x80, 4 | 5, 0x95, _, _, _, _, _, 0, 0, 0, ..] if ends(b".") => is("a pickle of Python"),
        _ => None,
    }
}

/// The number of bytes by which a text is judged: as ids, each would have to be two letters by chance.
const TEXT: usize = 64;

/// True if the bytes are UTF-8 without control characters, except those of lines and tabs.
fn is_text(look: &Look) -> bool {
    let start = &look.start[..];
    if start.len() < TEXT {
        return false;
    }
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be cut, if the file continues.
        Err(why) if why.error_len().is_none() && look.bytes > start.len() as u64 => {
            std::str::from_utf8(&start[..why.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let kinds = text.chars().collect::<std::collections::BTreeSet<char>>().len();
    kinds >= 8 && !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(bytes: &[u8]) -> String {
        Format::of(&Look::at(bytes)).map_or(String::new(), |format| format.why())
    }

    #[test]
    fn formats_are_named_by_their_bytes() {
        let rest = [7u8; 40];
        let tail = |start: &[u8], end: &[u8]| [start, &rest, end].concat();
        let header = br#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let tensors = [&(header.len() as u64).to_le_bytes(), &header[..], &[1]].concat();
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        for (bytes, name) in [
            (tail(b"\x93NUMPY\x01\0\x76\0", b""), ".npy file"),
            (tail(b"\x1f\x8b\x08\0\0\0\0\0\x02\xff", b""), "gzip"),
            (tail(b"\x28\xb5\x2f\xfd\x04", b""), "zstd"),
            (tail(b"\xfd7zXZ\0", b""), "xz"),
            (tail(b"BZh91AY&SY", b""), "bzip2"),
            (tail(b"7z\xbc\xaf\x27\x1c", b""), "7-Zip"),
            (tail(b"PK\x03\x04\x14\0\0\0\x08\0", b""), "zip archive"),
            (tail(b"ARROW1\0\0", b"ARROW1"), "Arrow"),
            (tail(b"\xff\xff\xff\xff\x78\0\0\0\x10\0\0\0\0\0\x0a\0", b""), "Arrow stream"),
            (tail(b"FEA1", b"FEA1"), "Feather"),
            (tail(b"PAR1", b"PAR1"), "Parquet"),
            (tail(b"\x89HDF\r\n\x1a\n", b""), "HDF5"),
            (tail(b"MMIDIDX\0\0\x01", b""), "Megatron"),
            (tail(b"GGUF\x03\0\0\0", b""), "GGUF"),
            (tail(b"\x80\x04\x95\x30\0\0\0\0\0\0\0", b"."), "pickle"),
            (tensors.clone(), "safetensors"),
            (pointer.to_vec(), "Git LFS"),
            (b"\n<!DOCTYPE HTML><html><head>".to_vec(), "HTML"),
            (b"<html lang=\"en\">".to_vec(), "HTML"),
            (b"\xef\xbb\xbf<html>".to_vec(), "HTML"),
            (b"/annex/objects/SHA256E-s12345--4d7a.bin\n".to_vec(), "git-annex"),
            (
                "First Citizen:\nBefore we proceed any further, h\u{f6}rt mich an: speak, speak.\n".into(),
                "it is text",
            ),
            ([b"[", "464, 3290, ".repeat(20_000).as_bytes()].concat(), "it is text"),
        ] {
            assert!(named(&bytes).contains(name), "{name}: {:?}", named(&bytes));
            // Bytes that are cut after the mark, or have another mark, are ids.
            let mut other = bytes.clone();
            other[1] ^= 0x80;
            assert_eq!(named(&other), "", "{name}");
        }
        assert_eq!(named(&tensors[..20]), "");
        assert_eq!([named(b""), named(b"PAR1"), named(b"short")], [const { String::new() }; 3]);
        assert_eq!(named(&tail(b"PAR1", b"")), "");
        assert_eq!(named(&tail(b"\x1f\x8b\x08\xe0\0\0\0\0\x02\xff", b"")), "");
    }

    #[test]
    fn ids_of_a_tokenizer_are_no_format() {
        // Philox-like: no two neighbours are alike, all ids are below GPT-2's vocabulary.
        let ids = (0..200_000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % 50_257);
        let bytes: Vec<u8> = ids.flat_map(|id| (id as u16).to_le_bytes()).collect();
        for at in (0..bytes.len() - 4096).step_by(2) {
            assert_eq!(Format::of(&Look::at(&bytes[at..at + 128])), None, "{at}");
        }
    }
}

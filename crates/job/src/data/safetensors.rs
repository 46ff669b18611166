//! The headers of safetensors files: a length of 8 bytes, a JSON object of tensors, their bytes. Source: the format's README
//! (github.com/huggingface/safetensors). The `safetensors` crate reads whole files; a referee has only pieces of a file.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::element::{ArrayPlace, Element};

/// Bytes of the header's length.
pub const PREAMBLE: usize = 8;
/// The most bytes of a header.
pub const HEADER_MAX: u64 = 1 << 20;
/// The most bytes of a data file's header, its length included: a referee receives it with each element of a batch.
pub const DATA_HEADER_MAX: usize = 16 << 10;

/// Bytes of the header, from the file's first [`PREAMBLE`] bytes.
///
/// # Errors
/// If the header has more than [`HEADER_MAX`] bytes.
pub fn header_len(preamble: [u8; PREAMBLE]) -> Result<usize, String> {
    match u64::from_le_bytes(preamble) {
        len if len <= HEADER_MAX => Ok(len as usize),
        len => Err(format!(
            "it is no safetensors file, or has a header of {len} bytes: at most {HEADER_MAX} are read"
        )),
    }
}

/// The entry of a tensor in a header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    /// The offsets of its first byte and behind its last byte, from the end of the header.
    data_offsets: [u64; 2],
}

/// An object of texts, which is parsed and dropped.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                while map.next_entry::<String, String>()?.is_some() {}
                Ok(Texts)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Every tensor by its name. A name that occurs twice is an error: readers would disagree about which one counts.
struct Entries(BTreeMap<String, Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = BTreeMap::new();
                let mut described = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<Texts>()?;
                        if std::mem::replace(&mut described, true) {
                            return Err(A::Error::custom("__metadata__ is there twice"));
                        }
                        continue;
                    }
                    let entry = map.next_value()?;
                    if entries.insert(name, entry).is_some() {
                        return Err(A::Error::custom("two tensors have the same name"));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The tensors that a file's header names.
pub struct Header {
    entries: BTreeMap<String, Entry>,
    /// The byte of the file at which the data begin.
    data: u64,
    /// The file's bytes.
    file_bytes: u64,
}

impl Header {
    /// Reads a header's bytes; the file has `file_bytes` bytes.
    ///
    /// # Errors
    /// If the header is not a JSON object of tensors, or names a tensor twice.
    pub fn parse(header: &[u8], file_bytes: u64) -> Result<Header, String> {
        let Entries(entries) = serde_json::from_slice(header)
            .map_err(|error| format!("the header is not understood: {error}"))?;
        Ok(Header { entries, data: (PREAMBLE + header.len()) as u64, file_bytes })
    }

    /// The tensors' names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Checks that the tensors fill the file without gaps, one after another, as the format demands.
    ///
    /// # Errors
    /// If the tensors do not fill the file.
    pub fn check_filled(&self) -> Result<(), String> {
        let mut offsets: Vec<[u64; 2]> = self.entries.values().map(|entry| entry.data_offsets).collect();
        offsets.sort_unstable();
        let end =
            offsets.iter().try_fold(0, |end, &[first, last]| (first == end && last >= first).then_some(last));
        if end.and_then(|end| self.data.checked_add(end)) == Some(self.file_bytes) {
            return Ok(());
        }
        Err("its tensors do not fill the file one behind the other: it is cut short, or no safetensors file"
            .into())
    }

    /// The position of the tensor of this name.
    ///
    /// # Errors
    /// If there is no such tensor, or its elements are not one of [`Element`]. Also if the number of its bytes does not fit
    /// its shape, or its bytes are outside of the file.
    pub fn place(&self, name: &str) -> Result<ArrayPlace, String> {
        let Some(Entry { dtype, shape, data_offsets: [begin, end] }) = self.entries.get(name) else {
            let names: Vec<&str> = self.names().take(20).collect();
            return Err(format!("there is no tensor {name}; the file holds {}", names.join(", ")));
        };
        let element = match dtype.as_str() {
            "U8" => Element::U8,
            "U16" => Element::U16,
            "U32" => Element::U32,
            "I64" => Element::I64,
            "F16" => Element::F16,
            "BF16" => Element::Bf16,
            "F32" => Element::F32,
            other => {
                let other: String = other.chars().take(20).collect();
                let wanted = "U8, U16, U32, I64, F16, BF16 or F32";
                return Err(format!("the elements of {name} are of type {other:?}; wanted are {wanted}"));
            }
        };
        let (first, last) = (self.data.checked_add(*begin), self.data.checked_add(*end));
        let (Some(first), Some(_)) = (first, last.filter(|&last| begin <= end && last <= self.file_bytes))
        else {
            return Err(format!("the bytes of {name} lie outside of the file"));
        };
        let array = ArrayPlace { element, shape: shape.clone(), first };
        if array.bytes() != Some(end - begin) {
            return Err(format!(
                "{name} has {} bytes, which its shape {:?} does not want",
                end - begin,
                array.shape
            ));
        }
        Ok(array)
    }
}

/// The position of the tensor of this name, from the header's bytes; the file has `file_bytes` bytes.
///
/// # Errors
/// As [`Header::parse`], [`Header::place`] and [`Header::check_filled`].
pub(crate) fn place(header: &[u8], name: &str, file_bytes: u64) -> Result<ArrayPlace, String> {
    let header = Header::parse(header, file_bytes)?;
    let place = header.place(name)?;
    header.check_filled()?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_found() {
        let header = br#"{"__metadata__":{"by":"me"},"y":{"dtype":"I64","shape":[2],"data_offsets":[12,28]},"x":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}"#;
        let data = 8 + header.len() as u64;
        let x = ArrayPlace { element: Element::Bf16, shape: vec![2, 3], first: data };
        assert_eq!(place(header, "x", data + 28), Ok(x));
        let y = ArrayPlace { element: Element::I64, shape: vec![2], first: data + 12 };
        assert_eq!(place(header, "y", data + 28), Ok(y));
    }

    #[test]
    fn bad_headers_are_errors() {
        let x = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let good = x("F32", "[2]", "[0,8]");
        let twice = good.trim_end_matches('}').to_string() + "}," + &good[1..];
        for (header, why) in [
            (x("F64", "[1]", "[0,8]"), "of type \"F64\""),
            (x("F32", "[2]", "[8,0]"), "outside of the file"),
            (x("F32", "[2]", "[8,16]"), "outside of the file"),
            (x("F32", "[2]", "[18446744073709551608,18446744073709551615]"), "outside of the file"),
            (x("F32", "[3]", "[0,8]"), "does not want"),
            (x("F32", "[9223372036854775808,9223372036854775808]", "[0,0]"), "does not want"),
            (x("F32", "[-2]", "[0,8]"), "not understood"),
            (x("F32", "[2]", "[0]"), "not understood"),
            (good.replace("\"x\"", "\"z\""), "there is no tensor x; the file holds z"),
            (good.replace("\"shape\"", "\"size\""), "not understood"),
            (twice, "the same name"),
            (good.replacen('{', r#"{"__metadata__":{"by":1},"#, 1), "not understood"),
            (
                good.replacen('{', r#"{"__metadata__":{},"__metadata__":{},"#, 1),
                "__metadata__ is there twice",
            ),
            ("[".repeat(100_000), "not understood"),
            (String::new(), "not understood"),
            (x("F32", "[1]", "[0,4]"), "do not fill the file"),
            (x("F32", "[1]", "[4,8]"), "do not fill the file"),
        ] {
            let error = place(header.as_bytes(), "x", (8 + header.len() + 8) as u64).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(header_len([0xff; 8]).unwrap_err().contains("at most 1048576"));
    }
}

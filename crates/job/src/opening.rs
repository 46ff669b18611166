//! Openings of data that hide: slices of one file with their salts and their proof, which tell nothing of other slices.

use serde::{Deserialize, Serialize};

use super::manifest::{DataError, DataFile, FILE_MAX, FileSlices};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::salted_file::{file_root, slice_leaf};
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES};
use tiebreak_record::commit::{Malformed, beginning, multiproof};

/// The name and version of openings.
pub const FORMAT: &str = "tiebreak opening 1";
/// The most bytes of an opening's text.
pub const OPENING_MAX: u64 = 1 << 28;
/// The most bytes of one part that an opening is made of.
pub const SHOWN_MAX: u64 = 1 << 26;

/// Parts of a run's data, opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// The name and version, [`FORMAT`].
    pub format: String,
    /// The run id.
    pub run: Digest,
    /// The parts.
    pub parts: Vec<Part>,
}

/// Bytes of a data file with the slices that hold them, opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The number of the file in `run.json`.
    pub file: usize,
    /// The file's length in bytes.
    pub length: u64,
    /// The salt of the length.
    pub length_salt: Digest,
    /// The first byte that is meant.
    pub first: u64,
    /// The number of bytes that are meant.
    pub count: u64,
    /// The slices of 1024 bytes that hold these bytes, one after another.
    pub bytes: Base64,
    /// The salts of these slices.
    pub salts: Vec<Digest>,
    /// The hashes that prove the slices ([`multiproof`], RFC 6962).
    pub siblings: Vec<Digest>,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid("opening", why)
}

impl Opening {
    /// The opening of these parts of a run's data.
    pub fn new(run: Digest, parts: Vec<Part>) -> Opening {
        Opening { format: FORMAT.into(), run, parts }
    }

    /// The text of an opening's file.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("an opening has no maps with keys that are no text")
    }

    /// Reads the text of an opening's file.
    ///
    /// # Errors
    /// If it is malformed, of another version, or too long.
    pub fn from_text(text: &str) -> Result<Opening, Malformed> {
        if text.len() as u64 > OPENING_MAX {
            return Err(Malformed::TooLarge { what: "opening", limit: OPENING_MAX });
        }
        let opening: Opening = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        match opening.format == FORMAT {
            true => Ok(opening),
            false => {
                let found = beginning(&opening.format);
                Err(wrong(format!("its format is {found:?}; {FORMAT:?} is wanted")))
            }
        }
    }
}

impl Part {
    /// Bytes `first..first + count` of a file whose commitment hides, opened. `number` is the file's in `run.json`.
    ///
    /// # Errors
    /// If the bytes cannot be read, are not in the file, are more than [`SHOWN_MAX`], or the file hides nothing.
    pub fn of(file: &mut DataFile, number: usize, first: u64, count: u64) -> Result<Part, DataError> {
        let (path, length) = (file.path().to_path_buf(), file.bytes());
        let not_there = |why: String| {
            let why = format!("{count} bytes from {first} of {length}: {why}");
            DataError::Malformed { path: path.clone(), source: wrong(why) }
        };
        let salts = file.salts().ok_or_else(|| not_there("the file is plain".into()))?;
        let end = first.checked_add(count).filter(|end| count > 0 && *end <= length);
        let end = end.ok_or_else(|| not_there("the file does not have them".into()))?;
        if count > SHOWN_MAX {
            return Err(not_there(format!("an opening shows {SHOWN_MAX} bytes at most")));
        }
        let size = SLICE_BYTES as u64;
        let slices = ((first / size) as usize..=((end - 1) / size) as usize).collect();
        let FileSlices { slices, bytes, siblings } = file.proven(slices)?;
        Ok(Part {
            file: number,
            length,
            length_salt: Digest(salts.length()),
            first,
            count,
            bytes: Base64(bytes),
            salts: slices.iter().map(|&slice| Digest(salts.slice(slice))).collect(),
            siblings: siblings.into_iter().map(Digest).collect(),
        })
    }

    /// The bytes that are meant, after checking that a file with this root has them.
    ///
    /// # Errors
    /// If the root is another one, or the part contradicts itself.
    pub fn shown(&self, root: &Digest) -> Result<&[u8], Malformed> {
        let end = self.first.checked_add(self.count).filter(|end| self.count > 0 && *end <= self.length);
        let Some(end) = end.filter(|_| self.length <= FILE_MAX) else {
            let why =
                format!("it shows {} bytes from {} of a file of {}", self.count, self.first, self.length);
            return Err(wrong(why));
        };
        let size = SLICE_BYTES as u64;
        let (first, last) = (self.first / size, (end - 1) / size);
        let (begin, stop) = (first * size, self.length.min((last + 1) * size));
        let (count, due) = (self.salts.len() as u64, last - first + 1);
        if self.bytes.0.len() as u64 != stop - begin || count != due {
            let found = self.bytes.0.len();
            let why = format!(
                "it has {found} bytes and {count} salts; {} bytes and {due} salts are due",
                stop - begin
            );
            return Err(wrong(why));
        }
        let leaves: Vec<(usize, Hash)> = (first as usize..)
            .zip(self.bytes.0.chunks(SLICE_BYTES).zip(&self.salts))
            .map(|(number, (slice, salt))| (number, slice_leaf(&salt.0, slice).0))
            .collect();
        let siblings: Vec<Hash> = self.siblings.iter().map(|hash| hash.0).collect();
        let slices = self.length.div_ceil(size) as usize;
        let tree = Digest(multiproof::root(multiproof::rfc6962, slices, &leaves, &siblings)?);
        let found = file_root(self.length, &self.length_salt.0, &tree);
        if found != *root {
            return Err(wrong(format!("it gives the file root {}", found.not(root))));
        }
        let at = (self.first - begin) as usize;
        Ok(&self.bytes.0[at..at + self.count as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::manifest::{FileManifest, GroupTree};
    use tiebreak_record::commit::salted_file::FileSalts;
    use tiebreak_record::commit::salts::SaltKey;

    fn contents(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    /// A hidden file's manifest with its length, and an opener of it.
    fn hidden(bytes: &[u8], key: u8, number: usize) -> (FileManifest, impl Fn() -> DataFile + use<>) {
        let salts = FileSalts::new(&SaltKey::new([key; 32]), number);
        let (public, length, tree) = GroupTree::hidden(&mut &*bytes, &salts).unwrap();
        assert_eq!((public.bytes, length), (0, bytes.len() as u64));
        let encoded = tree.encode_hidden(length);
        let (manifest, decoded) = GroupTree::decode_hidden(&encoded, &public, &salts).unwrap();
        assert_eq!((manifest.bytes, &decoded), (length, &tree));
        let (opened, bytes) = (manifest.clone(), bytes.to_vec());
        let open = move || {
            let source = Box::new(Cursor::new(bytes.clone()));
            DataFile::salted("file".into(), opened.clone(), tree.clone(), Some(salts.clone()), source)
        };
        (manifest, open)
    }

    #[test]
    fn openings_show_their_bytes_and_no_others() {
        for len in [1usize, 1024, 1025, 65_536, 65_537, 131_072, 200_001] {
            let bytes = contents(len);
            let (manifest, open) = hidden(&bytes, 7, 3);
            for (first, count) in [(0, 1), (len / 2, len / 3), (len - 1, 1), (0, len)] {
                let (first, count) = (first, count.max(1).min(len - first));
                let opening = Part::of(&mut open(), 3, first as u64, count as u64).unwrap();
                assert_eq!(opening.shown(&manifest.root), Ok(&bytes[first..first + count]));
                let changes: [&dyn Fn(&mut Part); 8] = [
                    &|o| o.bytes.0[0] ^= 1,
                    &|o| o.salts[0].0[0] ^= 1,
                    &|o| o.length += 1,
                    &|o| o.length_salt.0[0] ^= 1,
                    &|o| o.siblings.push(Digest([0; 32])),
                    &|o| o.salts.truncate(0),
                    &|o| o.count = 0,
                    &|o| o.first = u64::MAX,
                ];
                for change in changes {
                    let mut other = opening.clone();
                    change(&mut other);
                    assert!(other.shown(&manifest.root).is_err(), "{len} {first} {count}: {other:?}");
                }
                assert!(opening.shown(&Digest([1; 32])).is_err());
                let whole = Opening::new(Digest([9; 32]), vec![opening]);
                assert_eq!(Opening::from_text(&whole.to_text()), Ok(whole));
            }
            assert!(Part::of(&mut open(), 3, 0, len as u64 + 1).is_err());
            assert!(Part::of(&mut open(), 3, u64::MAX, 2).is_err());
        }
    }

    /// Golden files, made from the page's text by a script in another language (assets/vectors/salts.py).
    #[test]
    fn hidden_files_are_the_golden_ones() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../assets/vectors/salts.json")).unwrap();
        let key = SaltKey::from_text(golden["key"].as_str().unwrap()).unwrap();
        let files = golden["files"].as_array().unwrap();
        assert!(files.len() >= 7);
        for file in files {
            let [number, length] = ["number", "length"].map(|name| file[name].as_u64().unwrap() as usize);
            let salts = FileSalts::new(&key, number);
            let (public, _, tree) = GroupTree::hidden(&mut &contents(length)[..], &salts).unwrap();
            assert_eq!(public.root.to_string(), file["root"], "{length}");
            let groups: Vec<String> =
                tree.encode().as_chunks().0.iter().map(|group| Digest(*group).to_string()).collect();
            assert_eq!(serde_json::json!(groups), file["groups"], "{length}");
        }
    }

    #[test]
    fn equal_files_look_unequal() {
        let bytes = contents(70_000);
        let roots = [(7, 0), (7, 1), (8, 0)].map(|(key, number)| hidden(&bytes, key, number).0.root);
        assert!(roots[0] != roots[1] && roots[0] != roots[2] && roots[1] != roots[2]);
        // The slices of a file of one repeated slice look unequal too.
        let salts = FileSalts::new(&SaltKey::new([7; 32]), 0);
        let values = salts.values(0, &[5; 4096]);
        assert!((1..4).all(|i| !values[..i].contains(&values[i])));
    }

    #[test]
    fn hidden_trees_are_read_with_bounds() {
        let salts = FileSalts::new(&SaltKey::new([7; 32]), 0);
        for len in [0usize, 1, 65_536, 65_537] {
            let bytes = contents(len);
            let (public, length, tree) = GroupTree::hidden(&mut &bytes[..], &salts).unwrap();
            let encoded = tree.encode_hidden(length);
            assert_eq!(encoded.len() as u64, GroupTree::hidden_bytes(length).unwrap());
            assert!(GroupTree::decode_hidden(&encoded, &public, &salts).is_ok());
            for place in [0, 8, encoded.len() - 1] {
                let mut other = encoded.clone();
                other[place] ^= 1;
                assert!(GroupTree::decode_hidden(&other, &public, &salts).is_err());
            }
            for short in [0, 7, 8, encoded.len() - 1] {
                assert!(GroupTree::decode_hidden(&encoded[..short], &public, &salts).is_err());
            }
            let other = FileSalts::new(&SaltKey::new([8; 32]), 0);
            assert!(GroupTree::decode_hidden(&encoded, &public, &other).is_err());
        }
        assert!(GroupTree::hidden_bytes(u64::MAX).is_err());
    }

    #[test]
    fn a_changed_file_is_not_read() {
        let bytes = contents(200_000);
        let (manifest, _) = hidden(&bytes, 7, 0);
        let salts = FileSalts::new(&SaltKey::new([7; 32]), 0);
        let (_, _, tree) = GroupTree::hidden(&mut &bytes[..], &salts).unwrap();
        let mut other = bytes.clone();
        other[199_999] ^= 1;
        let mut file =
            DataFile::salted("text".into(), manifest, tree, Some(salts), Box::new(Cursor::new(other)));
        assert_eq!(file.read(0, 1000).unwrap(), bytes[..1000]);
        let error = file.read(199_000, 1).unwrap_err().to_string();
        assert_eq!(error, "text: file: bytes 196608 to 200000 are not what the manifest promises");
    }
}

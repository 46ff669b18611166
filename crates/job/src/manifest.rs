//! A run's promises about the files it reads: length and BLAKE3 root of each, and one root over all.
//!
//! Every reader of a byte range checks it against the root. So an auditor needs only the bytes of the steps that are replayed,
//! and a referee only the bytes that a verdict carries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::salted_file::FileSalts;
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES, piece_value, piece_values};
use tiebreak_record::commit::{Malformed, merkle, multiproof};

use super::checked::{Checked, GROUP_BYTES, GROUP_SLICES, Unread};

pub use super::checked::Source;

/// The most bytes of a file.
pub const FILE_MAX: u64 = 1 << 40;
/// The most files of a run's data.
pub const FILES_MAX: usize = 1 << 16;

/// Errors of data, by blame.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file contradicts its manifest or its format.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        source: Malformed,
    },
    /// The bytes could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The job's model does not fit its data.
    #[error("{0}")]
    Job(String),
}

impl DataError {
    pub(crate) fn invalid(path: &Path, why: impl Into<String>) -> DataError {
        DataError::Malformed { path: path.to_path_buf(), source: Malformed::invalid("file", why) }
    }
}

/// The promise about a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileManifest {
    /// The file's length in bytes.
    pub bytes: u64,
    /// BLAKE3 of the file: the root of a tree over its chunks of 1024 bytes.
    pub root: Digest,
}

/// The root over files: RFC 6962's tree over the leaves (u64 bytes, root), in order.
///
/// ```
/// use tiebreak_job::manifest::{GroupTree, files_root};
///
/// let (first, _) = GroupTree::of(&mut &b"the first file"[..])?;
/// let (second, _) = GroupTree::of(&mut &b"the second"[..])?;
/// assert_eq!(first.bytes, 14);
/// let [one, other] = [[first.clone(), second.clone()], [second, first]];
/// assert_ne!(files_root(&one), files_root(&other));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn files_root(files: &[FileManifest]) -> Digest {
    let leaf = |file: &FileManifest| {
        let mut e = Encoder::default();
        e.u64(file.bytes).digest(&file.root);
        merkle::leaf(&e.0)
    };
    merkle::root(&files.iter().map(leaf).collect::<Vec<Digest>>())
}

/// Checks the bounds of a list of files from outside.
///
/// # Errors
/// If there are more than [`FILES_MAX`], or one has more than [`FILE_MAX`] bytes.
pub fn check(files: &[FileManifest]) -> Result<(), Malformed> {
    if files.len() > FILES_MAX {
        return Err(Malformed::TooLarge { what: "list of files", limit: FILES_MAX as u64 });
    }
    if files.iter().any(|file| file.bytes > FILE_MAX) {
        return Err(Malformed::TooLarge { what: "data file", limit: FILE_MAX });
    }
    Ok(())
}

/// The number of pieces of `size` bytes in a file; at least one.
pub(super) fn pieces(bytes: u64, size: usize) -> usize {
    bytes.div_ceil(size as u64).max(1) as usize
}

/// Passes the groups of a file's contents on, one by one: an empty file has one group, which is empty. Returns the file's bytes.
///
/// # Errors
/// If the reader fails, or there are more than [`FILE_MAX`] bytes.
pub(super) fn each_group(contents: &mut impl Read, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut bytes = 0u64;
    loop {
        let mut group = Vec::with_capacity(GROUP_BYTES);
        contents.by_ref().take(GROUP_BYTES as u64).read_to_end(&mut group)?;
        if group.is_empty() && bytes > 0 {
            return Ok(bytes);
        }
        bytes += group.len() as u64;
        if bytes > FILE_MAX {
            return Err(io::Error::other(format!("the file has more than {FILE_MAX} bytes")));
        }
        each(&group);
        if group.len() < GROUP_BYTES {
            return Ok(bytes);
        }
    }
}

/// The values of a file's groups in BLAKE3's tree, which check a group without the rest of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTree(pub(super) Vec<Hash>);

impl GroupTree {
    /// The manifest of a file's contents, and the values of its groups.
    ///
    /// # Errors
    /// If the reader fails, or there are more than [`FILE_MAX`] bytes.
    pub fn of(contents: &mut impl Read) -> io::Result<(FileManifest, GroupTree)> {
        let (mut groups, mut first) = (Vec::new(), None);
        let bytes = each_group(contents, |group| {
            // The only group of a file is its root, and no subtree.
            first.get_or_insert_with(|| *blake3::hash(group).as_bytes());
            groups.push(match group.is_empty() {
                true => [0; 32],
                // A count of two stands for any count above one.
                false => piece_value(group, GROUP_BYTES, groups.len(), 2),
            });
        })?;
        if let ([only], Some(whole)) = (&mut groups[..], first) {
            *only = whole;
        }
        let root = Digest(multiproof::whole(multiproof::blake3, &groups));
        Ok((FileManifest { bytes, root }, GroupTree(groups)))
    }

    /// The values one after another.
    #[doc(hidden)] // for the layers above
    pub fn encode(&self) -> Vec<u8> {
        self.0.concat()
    }

    /// The number of bytes of a file's encoded values.
    #[doc(hidden)] // for the layers above
    pub fn bytes(manifest: &FileManifest) -> u64 {
        32 * pieces(manifest.bytes, GROUP_BYTES) as u64
    }

    /// Bytes of a group, at which ranges that [`GroupTree::holds`] checks begin and end.
    #[doc(hidden)] // for the layers above
    pub const GROUP: u64 = GROUP_BYTES as u64;

    /// True if these bytes are whole groups of the file from group `first` on.
    #[doc(hidden)] // for the layers above
    pub fn holds(&self, first: usize, bytes: &[u8]) -> bool {
        (first..).zip(bytes.chunks(GROUP_BYTES)).all(|(number, group)| {
            let value = match self.0.len() {
                // The only group of a file is its root, and no subtree.
                1 => *blake3::hash(group).as_bytes(),
                count => piece_value(group, GROUP_BYTES, number, count),
            };
            self.0.get(number) == Some(&value)
        })
    }

    /// Reads the values of a file of this manifest.
    ///
    /// # Errors
    /// If their number is wrong, or they do not give the manifest's root.
    #[doc(hidden)] // for the layers above
    pub fn decode(bytes: &[u8], manifest: &FileManifest) -> Result<GroupTree, Malformed> {
        let wrong = |why: String| Malformed::invalid("file tree", why);
        let ((groups, rest), due) = (bytes.as_chunks::<32>(), GroupTree::bytes(manifest));
        if !rest.is_empty() || groups.len() != pieces(manifest.bytes, GROUP_BYTES) {
            return Err(wrong(format!("it has {} bytes; the manifest's file gives {due}", bytes.len())));
        }
        let root = Digest(multiproof::whole(multiproof::blake3, groups));
        if root == manifest.root {
            return Ok(GroupTree(groups.to_vec()));
        }
        let [found, due] = [root, manifest.root].map(|root| root.short());
        Err(wrong(format!("it has the root {found}; the manifest promises {due}")))
    }
}

/// Checked bytes of a file.
enum Contents {
    /// Bytes that are checked as they are read.
    Source(Box<Checked>),
    /// The slices that a verdict carries.
    Slices(BTreeMap<usize, Vec<u8>>),
}

/// Slices of a file with their proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSlices {
    /// The numbers of the slices of 1024 bytes, ascending.
    pub slices: Vec<usize>,
    /// The slices' bytes, one after another.
    pub bytes: Vec<u8>,
    /// The hashes that prove the slices together under the file's root ([`multiproof`]).
    pub siblings: Vec<Hash>,
}

/// A file whose bytes are checked as they are read.
pub struct DataFile {
    /// The file's path, for errors.
    path: PathBuf,
    manifest: FileManifest,
    contents: Contents,
    /// A bit for each slice that was read from a source: a long run over a large file keeps no list.
    touched: Vec<u64>,
}

impl DataFile {
    /// A file of this manifest whose bytes come from `source`. `path` names it in errors.
    pub fn new(path: PathBuf, manifest: FileManifest, tree: GroupTree, source: Box<dyn Source>) -> DataFile {
        DataFile::salted(path, manifest, tree, None, source)
    }

    /// [`DataFile::new`] for a file that hides, whose manifest has its length.
    #[doc(hidden)] // for the layers above
    pub fn salted(
        path: PathBuf,
        manifest: FileManifest,
        tree: GroupTree,
        salts: Option<FileSalts>,
        source: Box<dyn Source>,
    ) -> DataFile {
        let contents = Contents::Source(Box::new(Checked::new(source, manifest.bytes, tree.0, salts)));
        DataFile { path, manifest, contents, touched: Vec::new() }
    }

    /// A file of which only these slices are available.
    ///
    /// # Errors
    /// If a slice does not match the manifest.
    #[doc(hidden)] // for the layers above
    pub fn from_slices(
        path: PathBuf,
        manifest: FileManifest,
        given: &FileSlices,
    ) -> Result<DataFile, DataError> {
        let wrong = || DataError::invalid(&path, "a slice is not what the manifest promises");
        let count = pieces(manifest.bytes, SLICE_BYTES);
        let mut rest = given.bytes.as_slice();
        let (mut values, mut slices) = (Vec::new(), BTreeMap::new());
        for &slice in &given.slices {
            if slice >= count {
                return Err(wrong());
            }
            let len = (manifest.bytes - slice as u64 * SLICE_BYTES as u64).min(SLICE_BYTES as u64) as usize;
            let bytes = rest.split_off(..len).ok_or_else(wrong)?;
            values.push((slice, piece_value(bytes, SLICE_BYTES, slice, count)));
            slices.insert(slice, bytes.to_vec());
        }
        let root =
            multiproof::root(multiproof::blake3, count, &values, &given.siblings).map_err(|_| wrong())?;
        if !rest.is_empty() || root != manifest.root.0 {
            return Err(wrong());
        }
        Ok(DataFile { path, manifest, contents: Contents::Slices(slices), touched: Vec::new() })
    }

    /// A file without any available bytes.
    pub(crate) fn absent(path: PathBuf, manifest: FileManifest) -> DataFile {
        DataFile { path, manifest, contents: Contents::Slices(BTreeMap::new()), touched: Vec::new() }
    }

    /// Divides the memory for checked bytes among this number of files.
    pub(crate) fn share_memory(&mut self, files: usize) {
        if let Contents::Source(checked) = &mut self.contents {
            checked.share_memory(files);
        }
    }

    /// The file's path, for errors.
    #[doc(hidden)] // for the layers above
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.bytes
    }

    /// Reads `len` bytes from `first` on.
    ///
    /// # Errors
    /// If the file ends before, or the bytes cannot be read or do not match the manifest.
    pub(crate) fn read(&mut self, first: u64, len: usize) -> Result<Vec<u8>, DataError> {
        let end = first.checked_add(len as u64).filter(|end| *end <= self.manifest.bytes);
        let end = end.ok_or_else(|| DataError::invalid(&self.path, "the file is too short"))?;
        let mut bytes = Vec::with_capacity(len);
        let mut at = first;
        while at < end {
            let slice = (at / SLICE_BYTES as u64) as usize;
            let start = (at % SLICE_BYTES as u64) as usize;
            let wanted = (SLICE_BYTES - start).min((end - at) as usize);
            self.with_slice(slice, |slice| bytes.extend(&slice[start..start + wanted]))?;
            at += wanted as u64;
        }
        Ok(bytes)
    }

    /// [`DataFile::read`] for a single pass from the beginning of a file to its end. No slices are noted as read, and at most two
    /// groups are kept, until the end was read.
    ///
    /// # Errors
    /// As [`DataFile::read`].
    pub(crate) fn read_passing(&mut self, first: u64, len: usize) -> Result<Vec<u8>, DataError> {
        let end = first.checked_add(len as u64).filter(|end| *end <= self.manifest.bytes);
        let end = end.ok_or_else(|| DataError::invalid(&self.path, "the file is too short"))?;
        let (mut bytes, mut at) = (Vec::with_capacity(len), first);
        while at < end {
            let (number, start) = ((at / GROUP_BYTES as u64) as usize, (at % GROUP_BYTES as u64) as usize);
            let group = self.read_source(|checked| checked.passing_group(number))?;
            let wanted = (group.len() - start).min((end - at) as usize);
            bytes.extend(&group[start..start + wanted]);
            at += wanted as u64;
        }
        if let (Contents::Source(checked), true) = (&mut self.contents, end == self.manifest.bytes) {
            checked.end_pass();
        }
        Ok(bytes)
    }

    /// Passes the bytes of a slice to `show`.
    fn with_slice(&mut self, slice: usize, show: impl FnOnce(&[u8])) -> Result<(), DataError> {
        if let Contents::Slices(slices) = &self.contents {
            let missing = || {
                let first = slice as u64 * SLICE_BYTES as u64;
                DataError::invalid(&self.path, format!("the bytes from {first} on are needed and not there"))
            };
            show(slices.get(&slice).ok_or_else(missing)?);
            return Ok(());
        }
        self.read_source(|checked| checked.with_slice(slice, show))?;
        let word = slice / 64;
        self.touched.resize(self.touched.len().max(word + 1), 0);
        self.touched[word] |= 1 << (slice % 64);
        Ok(())
    }

    /// What `read` gets from the file's source.
    fn read_source<T>(
        &mut self,
        read: impl FnOnce(&mut Checked) -> Result<T, Unread>,
    ) -> Result<T, DataError> {
        let Contents::Source(checked) = &mut self.contents else {
            return Err(DataError::invalid(&self.path, "only slices of the file are at hand"));
        };
        read(checked).map_err(|unread| match unread {
            Unread::Missing(range) => {
                let why = format!("bytes {} to {} are needed and not there", range.start, range.end);
                DataError::invalid(&self.path, why)
            }
            Unread::Changed(range) => {
                let why =
                    format!("bytes {} to {} are not what the manifest promises", range.start, range.end);
                DataError::invalid(&self.path, why)
            }
            Unread::Io(source) => DataError::Io { path: self.path.clone(), source },
        })
    }

    /// The salts of a file that hides.
    #[doc(hidden)] // for the layers above
    pub fn salts(&self) -> Option<FileSalts> {
        match &self.contents {
            Contents::Source(checked) => checked.salts().cloned(),
            Contents::Slices(_) => None,
        }
    }

    /// The slices that were read so far, with their proof; `None` if there are none.
    ///
    /// # Errors
    /// If their groups cannot be read again.
    #[doc(hidden)] // for the layers above
    pub fn slices_read(&mut self) -> Result<Option<FileSlices>, DataError> {
        let bits = |(word, bits): (usize, &u64)| {
            let bits = *bits;
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| 64 * word + bit)
        };
        let slices: Vec<usize> = self.touched.iter().enumerate().flat_map(bits).collect();
        if slices.is_empty() { Ok(None) } else { self.proven(slices).map(Some) }
    }

    /// These slices with their proof; their numbers ascend.
    ///
    /// # Errors
    /// If their groups cannot be read.
    pub(super) fn proven(&mut self, slices: Vec<usize>) -> Result<FileSlices, DataError> {
        let mut bytes = Vec::new();
        for &slice in &slices {
            self.with_slice(slice, |slice| bytes.extend(slice))?;
        }
        // Groups that hold a slice give the values of all their slices; other groups give their own value.
        let mut groups: HashMap<usize, Vec<Hash>> = HashMap::new();
        let salts = self.salts();
        let (salts, join) = match &salts {
            None => (None, multiproof::blake3 as multiproof::Join),
            Some(salts) => (Some(salts), multiproof::rfc6962 as multiproof::Join),
        };
        let count = pieces(self.manifest.bytes, SLICE_BYTES);
        for group in slices.iter().map(|slice| slice / GROUP_SLICES).collect::<BTreeSet<usize>>() {
            let bytes = self.read_source(|checked| checked.kept_group(group))?;
            let values = match (salts, pieces(self.manifest.bytes, GROUP_BYTES)) {
                (Some(salts), _) => salts.values(group * GROUP_SLICES, &bytes),
                (None, 1) => piece_values(&bytes, SLICE_BYTES),
                (None, _) => (0..)
                    .zip(bytes.chunks(SLICE_BYTES))
                    .map(|(i, slice): (usize, _)| {
                        piece_value(slice, SLICE_BYTES, group * GROUP_SLICES + i, count)
                    })
                    .collect(),
            };
            groups.insert(group, values);
        }
        let Contents::Source(checked) = &self.contents else {
            return Err(DataError::invalid(&self.path, "only slices of the file are at hand"));
        };
        let tree = checked.tree();
        let siblings = multiproof::prove_by(count, &slices, &mut |first, len| {
            let group = first / GROUP_SLICES;
            match groups.get(&group) {
                Some(values) if len < GROUP_SLICES || count <= GROUP_SLICES => {
                    let start = first % GROUP_SLICES;
                    multiproof::subtree(join, &values[start..start + len])
                }
                _ => {
                    let end = (first + len).div_ceil(GROUP_SLICES);
                    multiproof::subtree(join, &tree[group..end])
                }
            }
        });
        Ok(FileSlices { slices, bytes, siblings })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn slices_prove_a_file_of_any_length() {
        for len in [1usize, 1024, 1025, 65_536, 65_537, 66_000, 131_072, 200_001, 1_000_000] {
            let contents: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let (manifest, tree) = GroupTree::of(&mut contents.as_slice()).unwrap();
            assert_eq!(manifest.root.0, *blake3::hash(&contents).as_bytes());
            assert_eq!(GroupTree::decode(&tree.encode(), &manifest), Ok(tree.clone()));
            let name = PathBuf::from("file");
            let open = || {
                DataFile::new(
                    name.clone(),
                    manifest.clone(),
                    tree.clone(),
                    Box::new(Cursor::new(contents.clone())),
                )
            };
            for (first, wanted) in
                [(0, 1), (len / 2, len / 3), (len - 1, 1), (len / 3, 2000.min(len / 2)), (0, len)]
            {
                let mut file = open();
                assert_eq!(file.read(first as u64, wanted).unwrap(), contents[first..first + wanted]);
                let Some(slices) = file.slices_read().unwrap() else { continue };
                let mut few = DataFile::from_slices(name.clone(), manifest.clone(), &slices).unwrap();
                assert_eq!(few.read(first as u64, wanted).unwrap(), contents[first..first + wanted]);
                let mut wrong = slices.clone();
                wrong.bytes[0] ^= 1;
                assert!(DataFile::from_slices(name.clone(), manifest.clone(), &wrong).is_err());
                let mut wrong = slices.clone();
                wrong.bytes.push(0);
                assert!(DataFile::from_slices(name.clone(), manifest.clone(), &wrong).is_err());
                let wrong = FileSlices { slices: vec![usize::MAX], ..slices };
                assert!(DataFile::from_slices(name.clone(), manifest.clone(), &wrong).is_err());
            }
            assert!(open().read(len as u64, 1).unwrap_err().to_string().contains("too short"));
            assert!(open().read(u64::MAX, 2).is_err());
        }
    }

    #[test]
    fn an_empty_file_has_a_tree() {
        let (manifest, tree) = GroupTree::of(&mut [].as_slice()).unwrap();
        assert_eq!((manifest.bytes, manifest.root.0), (0, *blake3::hash(b"").as_bytes()));
        assert_eq!(GroupTree::decode(&tree.encode(), &manifest), Ok(tree.clone()));
        let mut file = DataFile::new("empty".into(), manifest, tree, Box::new(Cursor::new(Vec::new())));
        assert_eq!(file.read(0, 0).unwrap(), [0u8; 0]);
        assert!(file.read(0, 1).unwrap_err().to_string().contains("too short"));
    }

    #[test]
    fn what_is_missing_or_changed_is_named() {
        let contents = vec![7u8; 200_000];
        let (manifest, tree) = GroupTree::of(&mut contents.as_slice()).unwrap();
        let open = |bytes: &[u8]| {
            let source = Box::new(Cursor::new(bytes.to_vec()));
            DataFile::new("text".into(), manifest.clone(), tree.clone(), source)
        };
        // A truncated copy still has its beginning.
        let mut short = open(&contents[..70_000]);
        assert!(short.read(0, 60_000).is_ok());
        let error = short.read(66_000, 10).unwrap_err().to_string();
        assert_eq!(error, "text: file: bytes 65536 to 131072 are needed and not there");
        let mut changed = contents.clone();
        changed[199_999] ^= 1;
        let error = open(&changed).read(199_000, 1).unwrap_err().to_string();
        assert_eq!(error, "text: file: bytes 196608 to 200000 are not what the manifest promises");
        let mut other = tree.encode();
        other[0] ^= 1;
        assert!(GroupTree::decode(&other, &manifest).is_err());
        assert!(GroupTree::decode(&other[..32], &manifest).is_err());
        let mut absent = DataFile::absent("text".into(), manifest.clone());
        assert!(absent.read(5, 1).unwrap_err().to_string().contains("not there"));
    }
}

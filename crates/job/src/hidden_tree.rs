//! Trees of the data files of a run whose commitments hide: salted values of groups, beside the length that `run.json` does not tell.

use std::io::{self, Read};

use super::checked::{GROUP_BYTES, GROUP_SLICES};
use super::manifest::{FILE_MAX, FileManifest, GroupTree, each_group, pieces};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::salted_file::FileSalts;
use tiebreak_record::commit::{Malformed, multiproof};

impl GroupTree {
    /// The manifest of a file's contents whose commitment hides, the length of the file, and the values of its groups.
    ///
    /// # Errors
    /// As [`GroupTree::of`].
    #[doc(hidden)] // for the layers above
    pub fn hidden(contents: &mut impl Read, salts: &FileSalts) -> io::Result<(FileManifest, u64, GroupTree)> {
        let mut groups = Vec::new();
        let bytes = each_group(contents, |group| {
            let values = salts.values(groups.len() * GROUP_SLICES, group);
            groups.push(multiproof::subtree(multiproof::rfc6962, &values));
        })?;
        let tree = Digest(multiproof::subtree(multiproof::rfc6962, &groups));
        Ok((FileManifest { bytes: 0, root: salts.root(bytes, &tree) }, bytes, GroupTree(groups)))
    }

    /// The bytes of the file of a hidden file's values: its length, and the values one after another.
    #[doc(hidden)] // for the layers above
    pub fn encode_hidden(&self, length: u64) -> Vec<u8> {
        [&length.to_le_bytes()[..], &self.encode()].concat()
    }

    /// The most bytes of [`GroupTree::encode_hidden`] for a file of this length.
    ///
    /// # Errors
    /// If no file has the length.
    #[doc(hidden)] // for the layers above
    pub fn hidden_bytes(length: u64) -> Result<u64, Malformed> {
        if length > FILE_MAX {
            return Err(Malformed::TooLarge { what: "data file", limit: FILE_MAX });
        }
        Ok(8 + 32 * pieces(length, GROUP_BYTES) as u64)
    }

    /// Reads the bytes of [`GroupTree::encode_hidden`]: the file's manifest with its length, and the values.
    ///
    /// # Errors
    /// If their number is wrong, or they do not give the root.
    #[doc(hidden)] // for the layers above
    pub fn decode_hidden(
        bytes: &[u8],
        manifest: &FileManifest,
        salts: &FileSalts,
    ) -> Result<(FileManifest, GroupTree), Malformed> {
        let what = "file tree";
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed::Truncated { what })?;
        let (length, (groups, over)) = (u64::from_le_bytes(*length), rest.as_chunks::<32>());
        let due = GroupTree::hidden_bytes(length)?;
        if !over.is_empty() || bytes.len() as u64 != due {
            let why = format!("it has {} bytes; a file of {length} bytes gives {due}", bytes.len());
            return Err(Malformed::invalid(what, why));
        }
        let root = salts.root(length, &Digest(multiproof::subtree(multiproof::rfc6962, groups)));
        if root != manifest.root {
            let why = format!("it has the root {}, which run.json names", root.not(&manifest.root));
            return Err(Malformed::invalid(what, why));
        }
        Ok((FileManifest { bytes: length, root }, GroupTree(groups.to_vec())))
    }
}

//! The index of a run's files: their names with their lengths, for readers of a server that lists no files.
//! Layout: `docs/RUN-FORMAT.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::names;
use super::store::Store;
use tiebreak_record::commit::Malformed;

/// The most bytes of an index.
pub const INDEX_MAX: u64 = 1 << 26;
/// The first line.
const FORMAT: &str = "tiebreak index 1";
/// The most bytes of a name.
const NAME_MAX: usize = 512;

/// Names of files, relative to the run, with their lengths in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    files: BTreeMap<String, u64>,
}

/// True if a file of a run may have this name: visible ASCII characters, without empty components and without those that begin
/// with a dot.
fn is_name(name: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.');
    name.len() <= NAME_MAX && name.bytes().all(|byte| byte.is_ascii_graphic()) && name.split('/').all(plain)
}

impl Index {
    /// The index of the files in a store that `published` is true of, without the lock, partial files and an older index.
    ///
    /// # Errors
    /// If the store cannot be listed, or a file has a name or a length that no index holds.
    pub fn of(store: &dyn Store, published: impl Fn(&str) -> bool) -> io::Result<Index> {
        let mut files = BTreeMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in store.list(folder.trim_end_matches('/'))? {
                let name = format!("{folder}{entry}");
                let top = name.split('/').next().unwrap_or_default();
                if entry.starts_with('.')
                    || !published(top)
                    || [names::INDEX, names::LOCK].contains(&name.as_str())
                {
                    continue;
                }
                if entry.ends_with('/') {
                    // No file of a run lies deeper.
                    folders.extend(folder.is_empty().then_some(name));
                    continue;
                }
                if !is_name(&name) {
                    let why =
                        format!("no index holds the file name {name:?}: it has blanks or other characters");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                match store.length(&name) {
                    // A trainer removed it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    length => drop(files.insert(name, length?)),
                }
            }
        }
        Ok(Index { files })
    }

    /// The text: a line with the format, and a line for each file, by ascending names.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FORMAT}\n");
        for (name, length) in &self.files {
            text += &format!("{length} {name}\n");
        }
        text
    }

    /// Reads an index that somebody else wrote. A text has one index, and an index one text.
    ///
    /// # Errors
    /// If the text is no index.
    pub fn from_text(text: &str) -> Result<Index, Malformed> {
        let wrong = |why: String| Malformed::invalid("index", why);
        let mut lines = text.lines();
        let first: String = lines.next().unwrap_or_default().chars().take(40).collect();
        if first != FORMAT {
            return Err(wrong(format!("its first line is {first:?}, and {FORMAT:?} is due")));
        }
        let mut files = BTreeMap::new();
        for (number, line) in (2..).zip(lines) {
            let file = line.split_once(' ').and_then(|(length, name)| {
                let length: u64 = length.parse().ok()?;
                (is_name(name) && format!("{length} {name}") == line).then(|| (name.to_string(), length))
            });
            let Some((name, length)) = file else {
                return Err(wrong(format!("line {number} is no length and name of a file")));
            };
            if files.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(wrong(format!("line {number} has a name that is not behind the one before")));
            }
            files.insert(name, length);
        }
        let index = Index { files };
        match index.to_text() == text {
            true => Ok(index),
            false => Err(wrong("its lines end otherwise than by one line feed each".into())),
        }
    }

    /// The length of a file, if the index has it.
    pub fn length(&self, name: &str) -> Option<u64> {
        self.files.get(name).copied()
    }

    /// The number of files, and their bytes together.
    pub fn size(&self) -> (usize, u64) {
        (self.files.len(), self.files.values().fold(0, |all, &length| all.saturating_add(length)))
    }

    /// The entries directly below a folder, as [`Store::list`] has them.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let below = |name: &'_ String| match folder {
            "" => Some(name.clone()),
            _ => name.strip_prefix(folder)?.strip_prefix('/').map(str::to_string),
        };
        let entry = |name: String| name.find('/').map_or(name.clone(), |slash| name[..=slash].to_string());
        let entries: BTreeSet<String> = self.files.keys().filter_map(below).map(entry).collect();
        entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_of_an_index_is_read() {
        let text = "tiebreak index 1\n5 heads/000000000001\n0 run.json\n";
        let index = Index::from_text(text).unwrap();
        assert_eq!((index.to_text(), index.size()), (text.to_string(), (2, 5)));
        assert_eq!((index.length("run.json"), index.length("heads")), (Some(0), None));
        assert_eq!(index.list(""), ["heads/", "run.json"]);
        assert_eq!((index.list("heads"), index.list("head")), (vec!["000000000001".to_string()], vec![]));
        for wrong in [
            "",
            "tiebreak log 3\n",
            "tiebreak index 1",
            "tiebreak index 1\r\n",
            "tiebreak index 1\n5 b\n5 a\n",
            "tiebreak index 1\n5 a\n5 a\n",
            "tiebreak index 1\n05 a\n",
            "tiebreak index 1\n+5 a\n",
            "tiebreak index 1\n-5 a\n",
            "tiebreak index 1\n18446744073709551616 a\n",
            "tiebreak index 1\n5 ../a\n",
            "tiebreak index 1\n5 /a\n",
            "tiebreak index 1\n5 a//b\n",
            "tiebreak index 1\n5 a b\n",
            "tiebreak index 1\n5 a\u{1b}\n",
            "tiebreak index 1\n5 \n",
            "tiebreak index 1\n\n",
        ] {
            assert!(Index::from_text(wrong).is_err(), "{wrong:?}");
        }
    }
}

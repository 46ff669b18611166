//! The index of a run's files: their names with their lengths, for readers of a server that lists no files.
//! Layout: `docs/RUN-FORMAT.md`.

use std::collections::BTreeMap;
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

/// Names of files, relative to the run, with their lengths in bytes: the text itself, and where each line begins. A server may send an
/// index of [`INDEX_MAX`] bytes with some ten million names, so nothing else is kept of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    text: String,
    /// The offsets of the lines behind the first in the text.
    lines: Vec<u32>,
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
        // A trainer writes a head behind the records that it covers. So no head of this list covers records behind the lengths below.
        let heads = store.list(names::HEADS)?;
        let mut files = BTreeMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in store.list(folder.trim_end_matches('/'))? {
                let name = format!("{folder}{entry}");
                let top = name.split('/').next().unwrap_or_default();
                if entry.starts_with('.')
                    || !published(top)
                    || [names::INDEX, names::LOCK].contains(&name.as_str())
                    || (folder == "heads/" && !heads.contains(&entry))
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
        Index::of_files(files).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// The index of these files, in whatever order they come.
    ///
    /// # Errors
    /// If there are too many.
    pub fn of_files(files: impl IntoIterator<Item = (String, u64)>) -> Result<Index, Malformed> {
        let mut text = format!("{FORMAT}\n");
        for (name, length) in files.into_iter().collect::<BTreeMap<_, _>>() {
            text += &format!("{length} {name}\n");
        }
        Index::from_text(text)
    }

    /// True if the index has a file of this name, or one below it.
    pub fn has(&self, name: &str) -> bool {
        let below = format!("{name}/");
        let from = self.first_from(&below);
        let is_below = from < self.lines.len() && self.file(from).1.starts_with(&below);
        self.length(name).is_some() || is_below
    }

    /// The text: a line with the format, and a line for each file, by ascending names.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads an index that somebody else wrote. A text has one index, and an index one text.
    ///
    /// # Errors
    /// If the text is no index.
    pub fn from_text(text: String) -> Result<Index, Malformed> {
        let wrong = |why: String| Err(Malformed::invalid("index", why));
        if text.len() as u64 > INDEX_MAX {
            return wrong(format!("it has {} bytes, and at most {INDEX_MAX} are read", text.len()));
        }
        let first = text.split('\n').next().unwrap_or_default();
        if first != FORMAT {
            let first: String = first.chars().take(40).collect();
            return wrong(format!("its first line is {first:?}, and {FORMAT:?} is due"));
        }
        if !text.ends_with('\n') {
            return wrong("its last line does not end in a line feed".into());
        }
        let mut lines = Vec::new();
        let (mut at, mut last) = (first.len() + 1, "");
        while at < text.len() {
            let line = text[at..].split('\n').next().unwrap_or_default();
            let number = lines.len() + 2;
            let Some((_, name)) = parsed(line) else {
                return wrong(format!("line {number} is no length and name of a file"));
            };
            if !lines.is_empty() && last >= name {
                return wrong(format!("line {number} has a name that is not behind the one before"));
            }
            last = name;
            lines.push(at as u32);
            at += line.len() + 1;
        }
        Ok(Index { lines, text })
    }

    /// The length and the name in the line of this number among the files.
    fn file(&self, number: usize) -> (u64, &str) {
        let from = self.lines[number] as usize;
        let end = self.lines.get(number + 1).map_or(self.text.len(), |&end| end as usize) - 1;
        parsed(&self.text[from..end]).expect("each line was read before")
    }

    /// All files, with their lengths, by ascending names.
    pub fn files(&self) -> impl Iterator<Item = (u64, &str)> {
        (0..self.lines.len()).map(|number| self.file(number))
    }

    /// The number of the first file whose name is not before this one.
    fn first_from(&self, name: &str) -> usize {
        let (mut first, mut end) = (0, self.lines.len());
        while first < end {
            let middle = first + (end - first) / 2;
            match self.file(middle).1 < name {
                true => first = middle + 1,
                false => end = middle,
            }
        }
        first
    }

    /// The length of a file, if the index has it.
    pub fn length(&self, name: &str) -> Option<u64> {
        let number = self.first_from(name);
        let (length, found) = (number < self.lines.len()).then(|| self.file(number))?;
        (found == name).then_some(length)
    }

    /// The number of files, and their bytes together.
    pub fn size(&self) -> (usize, u64) {
        (self.lines.len(), self.files().fold(0, |all, (length, _)| all.saturating_add(length)))
    }

    /// The entries directly below a folder, as [`Store::list`] has them.
    pub fn list(&self, folder: &str) -> Vec<String> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut entries: Vec<String> = Vec::new();
        for number in self.first_from(&prefix)..self.lines.len() {
            let Some(below) = self.file(number).1.strip_prefix(&prefix) else { break };
            let entry = below.find('/').map_or(below, |slash| &below[..=slash]);
            // Names of one folder follow one another.
            if entries.last().is_none_or(|last| last != entry) {
                entries.push(entry.to_string());
            }
        }
        entries
    }
}

/// The length and the name in a line; none if the line has another form.
fn parsed(line: &str) -> Option<(u64, &str)> {
    let (digits, name) = line.split_once(' ')?;
    let is_number =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits.len() == 1 || !digits.starts_with('0'));
    let length = digits.parse().ok()?;
    (is_number && is_name(name)).then_some((length, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_of_an_index_is_read() {
        let text = "tiebreak index 1\n5 heads/000000000001\n0 run.json\n";
        let index = Index::from_text(text.to_string()).unwrap();
        assert_eq!((index.text(), index.size()), (text, (2, 5)));
        assert_eq!((index.length("run.json"), index.length("heads")), (Some(0), None));
        assert_eq!(index.list(""), ["heads/", "run.json"]);
        assert_eq!((index.list("heads"), index.list("head")), (vec!["000000000001".to_string()], vec![]));
        for wrong in [
            "",
            "tiebreak log 3\n",
            "tiebreak index 1",
            "tiebreak index 1\r\n",
            "tiebreak index 1\n5 a\r\n",
            "tiebreak index 1\n5 a",
            "tiebreak index 1\n 5 a\n",
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
            assert!(Index::from_text(wrong.to_string()).is_err(), "{wrong:?}");
        }
    }
}

//! A file without a name, in which an engine keeps tensors that nobody reads for a while ([`Outside`]).
//!
//! The file loses its name as soon as it is open. It ends with the process, however that ends, so nobody can read it later or believe
//! what it holds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::RunError;
use tiebreak_contract::arith::words::with_bytes;
use tiebreak_engine::outside::{Held, Outside};

/// Words that are read at a time.
const CHUNK: usize = 1 << 18;

/// The numbers of this process's files.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A file without a name.
pub struct Spilled(Arc<Mutex<Ranges>>);

/// The ranges of the file.
struct Ranges {
    file: File,
    end: u64,
    /// The places of ranges that are free, by their number of words. A step's tensors have the lengths of the step before.
    free: BTreeMap<usize, Vec<u64>>,
}

/// Words in the file.
struct Range {
    file: Arc<Mutex<Ranges>>,
    /// The first byte; `None` for zeros, which take no room.
    start: Option<u64>,
    len: usize,
}

fn locked(ranges: &Mutex<Ranges>) -> MutexGuard<'_, Ranges> {
    ranges.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spilled {
    /// A file in an existing folder.
    ///
    /// # Errors
    /// If the folder takes no file.
    pub fn in_folder(folder: &Path) -> Result<Spilled, RunError> {
        let name = format!(".tiebreak-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = folder.join(name);
        let open = || {
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            fs::remove_file(&path).map(|()| file)
        };
        let file = open().map_err(RunError::io(folder))?;
        Ok(Spilled(Arc::new(Mutex::new(Ranges { file, end: 0, free: BTreeMap::new() }))))
    }
}

impl Outside for Spilled {
    fn put(&self, words: &[u32]) -> io::Result<Box<dyn Held>> {
        let mut range = Range { file: self.0.clone(), start: None, len: words.len() };
        if words.iter().all(|&word| word == 0) {
            return Ok(Box::new(range));
        }
        let mut ranges = locked(&self.0);
        let free = ranges.free.get_mut(&words.len()).and_then(Vec::pop);
        let start = free.unwrap_or(ranges.end);
        ranges.end = ranges.end.max(start + 4 * words.len() as u64);
        range.start = Some(start);
        ranges.file.seek(SeekFrom::Start(start))?;
        let written =
            words.chunks(CHUNK).try_for_each(|words| with_bytes(words, |bytes| ranges.file.write_all(bytes)));
        drop(ranges);
        written.map(|()| Box::new(range) as Box<dyn Held>)
    }
}

impl Held for Range {
    fn get(&self, words: &mut [u32]) -> io::Result<()> {
        let Some(start) = self.start else {
            words.fill(0);
            return Ok(());
        };
        let mut ranges = locked(&self.file);
        ranges.file.seek(SeekFrom::Start(start))?;
        let mut bytes = vec![0; 4 * CHUNK.min(words.len())];
        for words in words.chunks_mut(CHUNK) {
            let bytes = &mut bytes[..4 * words.len()];
            ranges.file.read_exact(bytes)?;
            let (each, _) = bytes.as_chunks();
            words.iter_mut().zip(each).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
        }
        Ok(())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(start) = self.start {
            locked(&self.file).free.entry(self.len).or_default().push(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_room_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let place = Spilled::in_folder(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the file has a name");
        let words = |first: u32| (first..first + CHUNK as u32 + 3).collect::<Vec<u32>>();
        let got = |held: &dyn Held, len: usize| {
            let mut words = vec![7; len];
            held.get(&mut words).unwrap();
            words
        };
        let (one, two) = (place.put(&words(1)).unwrap(), place.put(&words(2)).unwrap());
        let zeros = place.put(&[0; 5]).unwrap();
        assert_eq!(got(&*one, CHUNK + 3), words(1));
        assert_eq!(got(&*two, CHUNK + 3), words(2));
        assert_eq!(got(&*zeros, 5), [0; 5]);
        let end = locked(&place.0).end;
        assert_eq!(end, 8 * (CHUNK as u64 + 3), "zeros take room");
        drop(one);
        let three = place.put(&words(3)).unwrap();
        assert_eq!(locked(&place.0).end, end, "the room of what was dropped");
        assert_eq!((got(&*two, CHUNK + 3), got(&*three, CHUNK + 3)), (words(2), words(3)));
    }
}

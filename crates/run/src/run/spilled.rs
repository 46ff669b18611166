//! A file without a name, in which an engine keeps tensors that nobody reads for a while ([`Outside`]).
//!
//! The file loses its name as soon as it is open. It ends with the process, however that ends, so nobody can read it later or believe
//! what it holds. Nor does this process: the digest of what it wrote stays in memory, and other bytes are an error.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::{Hash, Hasher};

use super::error::RunError;
use tiebreak_contract::arith::words::with_bytes;
use tiebreak_engine::outside::{Held, Outside};

/// Words that are read at a time.
const CHUNK: usize = 1 << 18;

/// The names that are tried for the file, while it has one.
const NAMES: usize = 16;

/// A file without a name.
pub struct Spilled(Arc<Mutex<Ranges>>);

/// The ranges of the file.
struct Ranges {
    folder: PathBuf,
    file: File,
    end: u64,
    /// The places of ranges that are free, by their number of words. A step's tensors have the lengths of the step before.
    free: BTreeMap<usize, Vec<u64>>,
}

/// Words in the file.
struct Range {
    file: Arc<Mutex<Ranges>>,
    /// The first byte, and the digest of the bytes; `None` for zeros, which take no room.
    place: Option<(u64, Hash)>,
    len: usize,
}

fn locked(ranges: &Mutex<Ranges>) -> MutexGuard<'_, Ranges> {
    ranges.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new file that nobody else can open, and whose name nobody foresees.
fn new_file(folder: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    options.mode(0o600);
    let mut taken = None;
    for _ in 0..NAMES {
        // The keys of each hasher are new.
        let path = folder.join(format!(".tiebreak-{:016x}", RandomState::new().hash_one(std::process::id())));
        match options.open(&path) {
            Ok(file) => return fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(taken.expect("a name was tried"))
}

impl Spilled {
    /// A file in an existing folder.
    ///
    /// # Errors
    /// If the folder takes no file.
    pub fn in_folder(folder: &Path) -> Result<Spilled, RunError> {
        let file = new_file(folder).map_err(RunError::io(folder))?;
        let ranges = Ranges { folder: folder.into(), file, end: 0, free: BTreeMap::new() };
        Ok(Spilled(Arc::new(Mutex::new(ranges))))
    }
}

impl Ranges {
    /// Writes words from the byte `start` on. Returns the digest of what was written.
    fn write(&mut self, start: u64, words: &[u32]) -> io::Result<Hash> {
        self.file.seek(SeekFrom::Start(start))?;
        let mut hasher = Hasher::new();
        for words in words.chunks(CHUNK) {
            with_bytes(words, |bytes| {
                hasher.update(bytes);
                self.file.write_all(bytes)
            })?;
        }
        Ok(hasher.finalize())
    }

    /// Reads words from the byte `start` on. Returns the digest of what was read.
    fn read(&mut self, start: u64, words: &mut [u32]) -> io::Result<Hash> {
        self.file.seek(SeekFrom::Start(start))?;
        let mut hasher = Hasher::new();
        let mut bytes = vec![0; 4 * CHUNK.min(words.len())];
        for words in words.chunks_mut(CHUNK) {
            let bytes = &mut bytes[..4 * words.len()];
            self.file.read_exact(bytes)?;
            hasher.update(bytes);
            let (each, _) = bytes.as_chunks();
            words.iter_mut().zip(each).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
        }
        Ok(hasher.finalize())
    }

    /// An error that names the folder.
    fn named(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.folder.display()))
    }
}

impl Outside for Spilled {
    fn put(&self, words: &[u32]) -> io::Result<Box<dyn Held>> {
        let (file, len) = (self.0.clone(), words.len());
        if words.iter().all(|&word| word == 0) {
            return Ok(Box::new(Range { file, place: None, len }));
        }
        let mut ranges = locked(&self.0);
        let free = ranges.free.get_mut(&len).and_then(Vec::pop);
        let start = free.unwrap_or(ranges.end);
        ranges.end = ranges.end.max(start + 4 * len as u64);
        let digest = ranges.write(start, words).map_err(|error| ranges.named(error))?;
        drop(ranges);
        Ok(Box::new(Range { file, place: Some((start, digest)), len }))
    }
}

impl Held for Range {
    fn get(&self, words: &mut [u32]) -> io::Result<()> {
        let Some((start, digest)) = self.place else {
            words.fill(0);
            return Ok(());
        };
        let mut ranges = locked(&self.file);
        let found = ranges.read(start, words).map_err(|error| ranges.named(error))?;
        if found != digest {
            let why = "it gave back other bytes than were written";
            return Err(ranges.named(io::Error::new(ErrorKind::InvalidData, why)));
        }
        Ok(())
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some((start, _)) = self.place {
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
    #[test]
    fn other_bytes_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let place = Spilled::in_folder(folder.path()).unwrap();
        let len = CHUNK + 3;
        let (mut words, held) = (vec![0; len], place.put(&vec![5; len]).unwrap());
        for at in [0, 4 * CHUNK as u64 - 1, 4 * len as u64 - 1] {
            let write = |byte: u8| {
                let file = &mut locked(&place.0).file;
                file.seek(SeekFrom::Start(at)).unwrap();
                file.write_all(&[byte]).unwrap();
            };
            let right = if at == 0 { 5 } else { 0 };
            write(right + 1);
            let why = held.get(&mut words).unwrap_err().to_string();
            assert_eq!(
                why,
                format!("{}: it gave back other bytes than were written", folder.path().display())
            );
            write(right);
            held.get(&mut words).unwrap();
        }
        locked(&place.0).file.set_len(4 * len as u64 - 1).unwrap();
        let why = held.get(&mut words).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::UnexpectedEof, "{why}");
    }
}

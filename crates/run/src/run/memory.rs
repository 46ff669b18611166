//! A run in memory: without a folder, and lost when the process ends.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::store::{Contents, Held, Store};

/// A store in memory. Clones share the same run.
#[derive(Clone, Default)]
pub struct Memory {
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    written: Arc<AtomicBool>,
}

impl Memory {
    /// A store with these files.
    #[doc(hidden)] // for packs alone
    pub fn holding(files: BTreeMap<String, Vec<u8>>) -> Memory {
        Memory { files: Arc::new(Mutex::new(files)), written: Arc::default() }
    }

    /// Every file with its contents, sorted by name.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.all().iter().map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        // No operation can panic while a file is half written.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes under a name, or `NotFound`.
fn found<T>(bytes: Option<T>) -> io::Result<T> {
    bytes.ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Store for Memory {
    fn place(&self) -> String {
        "memory".into()
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        found(self.all().get(name).map(|bytes| bytes.len() as u64))
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let all = self.all();
        let bytes = found(all.get(name))?;
        let [start, end] = [range.start, range.end].map(|at| at.min(bytes.len() as u64) as usize);
        Ok(bytes[start..end.max(start)].to_vec())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let all = self.all();
        let below = |name: &str| match folder {
            "" => Some(name.to_string()),
            folder => Some(name.strip_prefix(folder)?.strip_prefix('/')?.to_string()),
        };
        let direct = |name: String| match name.find('/') {
            Some(slash) => name[..=slash].to_string(),
            None => name,
        };
        let mut names: Vec<String> = all.keys().filter_map(|name| below(name)).map(direct).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn replace(&self, name: &str, contents: &mut Contents) -> io::Result<()> {
        let mut bytes = Vec::new();
        contents(&mut bytes)?;
        self.all().insert(name.to_string(), bytes);
        Ok(())
    }

    fn append(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.all().entry(name.to_string()).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn truncate(&self, name: &str, length: u64) -> io::Result<()> {
        let mut all = self.all();
        let bytes = found(all.get_mut(name))?;
        bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.length(name).map(drop)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        found(self.all().remove(name)).map(drop)
    }

    fn lock(&self, _: &str) -> io::Result<Box<dyn Held>> {
        if self.written.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "another part of this process"));
        }
        Ok(Box::new(Writing(self.written.clone())))
    }
}

/// The right to write, until it is dropped.
struct Writing(Arc<AtomicBool>);

impl Held for Writing {}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

//! A cache on this machine's disk of what servers sent of runs: for files whose bytes a digest decides, and for no others.
//!
//! Nothing in the cache is believed. A checksum finds damaged blocks. Blocks that lie are found by whoever asked, who holds the bytes to
//! the run's digests as those of a server; then the server is asked.

mod entries;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use entries::{Entries, Kept};
use tiebreak_run::run::{Contents, Held, Promise, RunError, Store};

/// Bytes of a small block, at which reads begin and end: a group of a data file.
const SMALL: u64 = 1 << 16;
/// Bytes of a large block, which takes the place of small ones where so many bytes came at once.
const LARGE: u64 = 1 << 20;
/// The most bytes that are fetched at once.
const FETCHED: u64 = 32 << 20;

/// What a cache did, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Bytes that came from the cache.
    pub read: u64,
    /// Bytes that came from servers.
    pub fetched: u64,
    /// Files of which bytes were in the cache before: a server was not asked for these.
    pub unasked: u64,
    /// Blocks that were no whole blocks any more.
    pub damaged: u64,
    /// Files whose bytes in the cache were not those that the run's digests promise.
    pub wrong: u64,
    /// The reason why nothing is written any more, if there is one.
    pub refused: Option<String>,
}

/// What happened to a file's bytes.
#[derive(Default)]
struct Use {
    /// The beginnings of the names of the file's blocks, one for each length that a server stated.
    keys: Vec<String>,
    /// Somebody got bytes from the cache.
    served: bool,
    /// Some of these were in the cache before.
    unasked: bool,
    /// The small blocks that came from a server.
    came: HashSet<u64>,
    /// Bytes were wrong: the cache gives no more of them, and takes none.
    doubted: bool,
}

#[derive(Default)]
struct State {
    uses: HashMap<Promise, Use>,
    /// The small blocks that threads wait for, by the names of the files' blocks and by number.
    coming: HashSet<(String, u64)>,
    told: Told,
}

/// A cache in a folder, for any number of stores and threads.
pub struct Cache {
    entries: Entries,
    state: Mutex<State>,
    /// Blocks came, or do not come.
    came: Condvar,
}

/// A file of which blocks are kept.
struct Blocks<'a> {
    promise: &'a Promise,
    key: String,
    length: u64,
}

impl Blocks<'_> {
    /// The name of the block with the byte at `at`, and its range in the file.
    fn block(&self, at: u64, size: u64) -> (String, Range<u64>) {
        let (kind, number) = (if size == LARGE { 'l' } else { 's' }, at / size);
        let range = number * size..self.length.min((number + 1) * size);
        (format!("{}-{kind}{number:010x}", self.key), range)
    }
}

impl Cache {
    /// The cache in a folder, which is made if it is not there. Its blocks have at most `most` bytes together; processes that write at
    /// once may exceed that by a thirty-second of it each.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn at(folder: &Path, most: u64) -> Result<Arc<Cache>, RunError> {
        let entries = Entries::at(folder, most).map_err(RunError::io(folder))?;
        Ok(Arc::new(Cache { entries, state: Mutex::default(), came: Condvar::new() }))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.entries.folder()
    }

    /// A store, of which the cache keeps what readers hold to a digest. A folder on this machine's disk stays as it is.
    pub fn around(self: &Arc<Cache>, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match store.folder() {
            Some(_) => store,
            None => Arc::new(Cached { store, cache: self.clone() }),
        }
    }

    /// What the cache did so far.
    pub fn told(&self) -> Told {
        let state = self.state();
        let unasked = state.uses.values().filter(|used| used.unasked && !used.doubted).count() as u64;
        Told { unasked, ..state.told.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks of a file of so many bytes; `None` if its bytes were wrong before.
    fn blocks<'a>(&self, promise: &'a Promise, length: u64) -> Option<Blocks<'a>> {
        let Promise { kind, digest } = promise;
        let key = blake3::hash(format!("tiebreak cache 1\n{kind}\n{digest}\n{length}").as_bytes());
        let key = key.to_hex().to_string();
        let mut state = self.state();
        let used = state.uses.entry(*promise).or_default();
        if used.doubted {
            return None;
        }
        if !used.keys.contains(&key) {
            used.keys.push(key.clone());
        }
        Some(Blocks { promise, key, length })
    }

    /// The bytes of a range of a file, from the cache as far as it has them, else by `fetch`.
    fn read(
        &self,
        file: &Blocks,
        range: Range<u64>,
        fetch: &dyn Fn(Range<u64>) -> io::Result<Vec<u8>>,
    ) -> io::Result<Vec<u8>> {
        let end = range.end.min(file.length);
        let (mut all, mut at) = (Vec::new(), range.start);
        while at < end {
            if let Some((from, block)) = self.kept(file, at) {
                let last = end.min(from + block.len() as u64);
                all.extend_from_slice(&block[(at - from) as usize..(last - from) as usize]);
                self.state().told.read += last - at;
                at = last;
                continue;
            }
            let Some(missing) = self.missing(file, at, end) else { continue };
            // Nobody reads more than was asked for where nothing is kept.
            let wanted = if self.takes(file.promise) { missing.clone() } else { at..missing.end.min(end) };
            let came = fetch(wanted.clone()).inspect(|came| self.keep(file, wanted.start, came));
            self.arrived(file, missing);
            let came = came?;
            let last = end.min(wanted.start + came.len() as u64);
            if last <= at {
                return Ok(all); // the server has fewer bytes
            }
            all.extend_from_slice(&came[(at - wanted.start) as usize..(last - wanted.start) as usize]);
            at = last;
        }
        Ok(all)
    }

    /// The block with the byte at `at`, and where it begins.
    fn kept(&self, file: &Blocks, at: u64) -> Option<(u64, Vec<u8>)> {
        for size in [LARGE, SMALL] {
            let (name, range) = file.block(at, size);
            match self.entries.get(&name, (range.end - range.start) as usize) {
                Kept::Absent => {}
                Kept::Block(block) => {
                    if let Some(used) = self.state().uses.get_mut(file.promise) {
                        used.served = true;
                        used.unasked |= !used.came.contains(&(at / SMALL));
                    }
                    return Some((range.start, block));
                }
                Kept::Damaged => {
                    self.entries.remove(&name);
                    self.state().told.damaged += 1;
                }
            }
        }
        None
    }

    /// The range of blocks from the one with the byte at `at`, which is not there, to the next one that is; or to the end of a read. The
    /// caller fetches it, and says so ([`Cache::arrived`]). `None` once another thread has tried to fetch the first block.
    fn missing(&self, file: &Blocks, at: u64, end: u64) -> Option<Range<u64>> {
        let number = |at: u64| (file.key.clone(), at / SMALL);
        let mut state = self.state();
        if state.coming.contains(&number(at)) {
            let waited = self.came.wait_while(state, |state| state.coming.contains(&number(at)));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return None;
        }
        let first = file.block(at, SMALL).1;
        let (start, mut until) = (first.start, first.end);
        let is_there = |at| [LARGE, SMALL].iter().any(|&size| self.entries.has(&file.block(at, size).0));
        state.coming.insert(number(start));
        while until < end
            && until - start < FETCHED
            && !state.coming.contains(&number(until))
            && !is_there(until)
        {
            state.coming.insert(number(until));
            until = file.block(until, SMALL).1.end;
        }
        Some(start..until)
    }

    /// Says that a range of blocks was fetched, or will not come.
    fn arrived(&self, file: &Blocks, range: Range<u64>) {
        let mut state = self.state();
        for at in range.step_by(SMALL as usize) {
            state.coming.remove(&(file.key.clone(), at / SMALL));
        }
        drop(state);
        self.came.notify_all();
    }

    /// Keeps the whole blocks of bytes that begin at `start`, where a small block begins.
    fn keep(&self, file: &Blocks, start: u64, bytes: &[u8]) {
        let (mut at, end) = (start, start + bytes.len() as u64);
        let mut state = self.state();
        state.told.fetched += bytes.len() as u64;
        if let Some(used) = state.uses.get_mut(file.promise) {
            used.came.extend(start / SMALL..end.div_ceil(SMALL));
        }
        drop(state);
        while at < end {
            let (large, small) = (file.block(at, LARGE), file.block(at, SMALL));
            let (name, range) = if large.1.start == at && large.1.end <= end { large } else { small };
            if range.end > end || !self.takes(file.promise) {
                return;
            }
            let block = &bytes[(range.start - start) as usize..(range.end - start) as usize];
            if let Err(error) = self.entries.put(&name, block) {
                self.state().told.refused = Some(error.to_string());
            }
            at = range.end;
        }
    }

    /// True if blocks of a file are written.
    fn takes(&self, promise: &Promise) -> bool {
        let state = self.state();
        state.told.refused.is_none() && !state.uses.get(promise).is_some_and(|used| used.doubted)
    }

    /// Forgets the bytes of a file that were wrong, and takes no others. True if the cache gave some of them, to this reader or to another
    /// one: readers may have had the same wrong block before the first of them says so.
    fn doubt(&self, promise: &Promise) -> bool {
        let mut state = self.state();
        let Some(used) = state.uses.get_mut(promise) else { return false };
        if used.doubted {
            return used.served;
        }
        used.doubted = true;
        let (keys, served) = (std::mem::take(&mut used.keys), used.served);
        state.told.wrong += u64::from(served);
        drop(state);
        keys.iter().for_each(|key| self.entries.remove_all(&format!("{key}-")));
        served
    }
}

/// A store with a cache before it.
struct Cached {
    store: Arc<dyn Store>,
    cache: Arc<Cache>,
}

impl Store for Cached {
    fn place(&self) -> String {
        self.store.place()
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        self.store.length(name)
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.store.read(name, range)
    }

    fn read_promised(&self, name: &str, range: Range<u64>, promise: &Promise) -> io::Result<Vec<u8>> {
        match self.cache.blocks(promise, self.store.length(name)?) {
            None => {
                let read = self.store.read(name, range);
                read.inspect(|bytes| self.cache.state().told.fetched += bytes.len() as u64)
            }
            Some(file) => self.cache.read(&file, range, &|range| self.store.read(name, range)),
        }
    }

    fn doubt(&self, promise: &Promise) -> bool {
        self.cache.doubt(promise)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.store.list(folder)
    }

    fn replace(&self, name: &str, contents: &mut Contents) -> io::Result<()> {
        self.store.replace(name, contents)
    }

    fn append(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.store.append(name, bytes)
    }

    fn truncate(&self, name: &str, length: u64) -> io::Result<()> {
        self.store.truncate(name, length)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.store.sync(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.store.remove(name)
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>> {
        self.store.lock(name)
    }

    fn unanswered(&self) -> Option<(String, io::Error)> {
        self.store.unanswered()
    }

    fn prepare(&self, folder: &str) -> io::Result<()> {
        self.store.prepare(folder)
    }

    fn take_back(&self) {
        self.store.take_back();
    }
}

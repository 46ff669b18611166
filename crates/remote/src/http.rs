//! A run behind `http://` or `https://`, on any server that hands out files: read by range requests, never written.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tiebreak_record::commit::Malformed;
use tiebreak_run::run::index::{INDEX_MAX, Index};
use tiebreak_run::run::{Contents, Held, Store, names};

use super::answer::{self, Failed, wrong};
use super::ask::{Ask, Asked, NoAnswer};
use super::patience::Patience;
use super::seen::Seen;

/// The most bytes of one request. A connection that breaks costs no more.
const PIECE: u64 = 32 << 20;
/// The most bytes of a file that is read as a whole, from a server that knows no ranges.
const WHOLE_MAX: u64 = 64 << 20;

/// A store that a server keeps.
pub(crate) struct Http {
    asks: Box<dyn Ask>,
    /// The address, without a slash at its end.
    address: String,
    patience: Patience,
    /// The run's index: not asked for, not there, or read.
    index: Mutex<Option<Option<Arc<Index>>>>,
    seen: Seen,
    /// The last file that a server without ranges sent.
    whole: Mutex<Option<(String, Arc<Vec<u8>>)>>,
    answered: AtomicBool,
    /// The reason why nothing is asked any more: the server does not answer.
    gone: Mutex<Option<String>>,
    /// The time of all tries of requests that failed.
    failed: Mutex<Duration>,
    /// The first file that was neither given nor called absent, with the error.
    unanswered: Mutex<Option<(String, ErrorKind, String)>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error about every write.
fn only_read<T>() -> io::Result<T> {
    Err(io::Error::new(ErrorKind::Unsupported, "a run at an address is only read"))
}

impl Http {
    /// The store at an address.
    pub(crate) fn new(address: &str, asks: Box<dyn Ask>, patience: Patience) -> Http {
        Http {
            asks,
            address: address.trim_end_matches('/').to_string(),
            patience,
            index: Mutex::default(),
            seen: Seen::default(),
            whole: Mutex::default(),
            answered: AtomicBool::new(false),
            gone: Mutex::default(),
            unanswered: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// The store, which asks for each file by its name and for no index.
    pub(crate) fn without_index(self) -> Http {
        *held(&self.index) = Some(None);
        self
    }

    /// Keeps the error about a file, unless the file is absent or the server lists nothing: whoever concludes something asks for it.
    fn noted<T>(&self, name: &str, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported)
        {
            let first = || (name.to_string(), error.kind(), error.to_string());
            held(&self.unanswered).get_or_insert_with(first);
        }
        result
    }

    /// The length of a file, as it was first seen.
    fn known_length(&self, name: &str) -> io::Result<u64> {
        if let Some(length) = self.seen.length(name) {
            return Ok(length);
        }
        match self.index()? {
            None => self.asked_length(name),
            Some(index) => {
                let length = index.length(name).ok_or_else(|| io::Error::from(ErrorKind::NotFound))?;
                self.seen.note(name, length, None)
            }
        }
    }

    /// The bytes of a range of a file, as far as they go.
    fn range(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let length = self.known_length(name)?;
        let [start, end] = [range.start, range.end].map(|at| at.min(length));
        let mut all = Vec::new();
        for first in (start..end).step_by(PIECE as usize) {
            let piece = first..end.min(first + PIECE);
            if let Some(kept) = self.kept(name) {
                all.extend_from_slice(cut(&kept, &piece));
                continue;
            }
            let mut got = Vec::new();
            let most = length.min(WHOLE_MAX);
            self.patiently(most, || self.piece(name, &piece, length, &mut got))?;
            all.append(&mut got);
        }
        Ok(all)
    }

    /// Asks until there is an answer, or no hope for one. The whole server does not answer if the tries of failed requests together take
    /// the time of one answer of `most` bytes: a server that sends a byte now and then holds nobody for each file anew.
    fn patiently<T>(&self, most: u64, mut ask: impl FnMut() -> Result<T, Failed>) -> io::Result<T> {
        if let Some(why) = &*held(&self.gone) {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                format!("the server did not answer before: {why}"),
            ));
        }
        let mut spent = Duration::ZERO;
        for tried in 0.. {
            let begin = Instant::now();
            let (why, gone) = match ask() {
                Ok(answer) => return Ok(answer),
                Err(Failed::Wrong(error)) => return Err(error),
                Err(Failed::Again(why)) => (why, false),
                Err(Failed::Gone(why)) => (why, true),
            };
            spent += begin.elapsed();
            let Some(pause) = self.patience.pause_after(tried) else {
                let why = format!("{} tries failed, the last one so: {why}", tried + 1);
                let mut failed = held(&self.failed);
                *failed = failed.saturating_add(spent);
                if gone || *failed >= self.patience.time(most) {
                    *held(&self.gone) = Some(why.clone());
                }
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            };
            thread::sleep(pause);
        }
        unreachable!("the loop has no end")
    }

    /// Sends a request for a file, or for a range of it; `most`: the bytes that come at most.
    fn get(
        &self,
        name: &str,
        range: Option<&Range<u64>>,
        most: u64,
    ) -> Result<ureq::http::Response<ureq::Body>, Failed> {
        let time = self.patience.time(most);
        self.answered(self.asks.ask(&Asked { name, range, head: false, time }))
    }

    /// The answer to a request, if it has contents.
    fn answered(
        &self,
        sent: Result<ureq::http::Response<ureq::Body>, NoAnswer>,
    ) -> Result<ureq::http::Response<ureq::Body>, Failed> {
        let response = sent.map_err(|why| match why {
            NoAnswer::Broken(error) => answer::no_answer(&error, !self.answered.load(Relaxed)),
            #[cfg(feature = "objects")]
            NoAnswer::Failed(failed) => failed,
        })?;
        self.answered.store(true, Relaxed);
        answer::check_status(&response)?;
        Ok(response)
    }

    /// The run's index, if there is one.
    fn index(&self) -> io::Result<Option<Arc<Index>>> {
        let mut index = held(&self.index);
        if let Some(known) = &*index {
            return Ok(known.clone());
        }
        let read = self.patiently(INDEX_MAX, || {
            let response = self.get(names::INDEX, None, INDEX_MAX)?;
            let length = answer::content_length(response.headers());
            match length {
                Some(length) if length <= INDEX_MAX => {
                    let mut bytes = Vec::new();
                    answer::contents(response, length, &mut bytes).map(|()| bytes)
                }
                _ => Err(wrong(
                    ErrorKind::InvalidData,
                    format!("the index comes with length {length:?}, and at most {INDEX_MAX} bytes are read"),
                )),
            }
        });
        let found = match read {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(io::Error::new(error.kind(), format!("its index: {error}"))),
            Ok(bytes) => {
                let text = String::from_utf8(bytes);
                let text = text.map_err(|_| Malformed::invalid("index", "it is no UTF-8".to_string()));
                let read = text.and_then(Index::from_text);
                Some(Arc::new(read.map_err(|why| io::Error::new(ErrorKind::InvalidData, why))?))
            }
        };
        *index = Some(found.clone());
        Ok(found)
    }

    /// Asks for a file's length.
    fn asked_length(&self, name: &str) -> io::Result<u64> {
        self.patiently(0, || {
            let asked = Asked { name, range: None, head: true, time: self.patience.time(0) };
            let response = self.answered(self.asks.ask(&asked))?;
            let length = answer::content_length(response.headers()).ok_or_else(|| {
                wrong(ErrorKind::InvalidData, "the server does not say how long the file is")
            })?;
            self.seen.note(name, length, answer::tag(response.headers())).map_err(Failed::Wrong)
        })
    }

    /// Appends the bytes of a range to `got`, which may have the first ones already.
    fn piece(&self, name: &str, range: &Range<u64>, length: u64, got: &mut Vec<u8>) -> Result<(), Failed> {
        let left = range.start + got.len() as u64..range.end;
        if left.is_empty() {
            return Ok(());
        }
        let response = self.get(name, Some(&left), length.min(WHOLE_MAX).max(left.end - left.start))?;
        let (headers, tag) = (response.headers(), answer::tag(response.headers()));
        if response.status().as_u16() == 206 {
            let total = answer::ranged(headers, left.start, left.end)?;
            self.seen.note(name, total, tag).map_err(Failed::Wrong)?;
            return answer::contents(response, left.end - left.start, got);
        }
        // The server sends whole files only.
        let total = answer::content_length(headers).unwrap_or(length);
        self.seen.note(name, total, tag).map_err(Failed::Wrong)?;
        if total > WHOLE_MAX {
            let why = format!(
                "the server sends whole files only, and this one has {total} bytes: at most {WHOLE_MAX} are read so"
            );
            return Err(wrong(ErrorKind::Other, why));
        }
        let mut all = Vec::new();
        answer::contents(response, total, &mut all)?;
        got.clear();
        got.extend_from_slice(cut(&all, range));
        *held(&self.whole) = Some((name.to_string(), Arc::new(all)));
        Ok(())
    }

    /// A file that was sent as a whole before.
    fn kept(&self, name: &str) -> Option<Arc<Vec<u8>>> {
        held(&self.whole).as_ref().filter(|(kept, _)| kept == name).map(|(_, bytes)| bytes.clone())
    }
}

/// A range of bytes, as far as they go.
fn cut<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let [start, end] = [range.start, range.end].map(|at| at.min(bytes.len() as u64) as usize);
    &bytes[start..end.max(start)]
}

impl Store for Http {
    fn place(&self) -> String {
        self.address.clone()
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        self.noted(name, self.known_length(name))
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.noted(name, self.range(name, range))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match self.noted(folder, self.index())? {
            Some(index) => Ok(index.list(folder)),
            None => Err(io::Error::new(
                ErrorKind::Unsupported,
                "the server lists no files, and the run has no index",
            )),
        }
    }

    fn unanswered(&self) -> Option<(String, io::Error)> {
        let (name, kind, why) = held(&self.unanswered).clone()?;
        Some((name, io::Error::new(kind, why)))
    }

    fn replace(&self, _: &str, _: &mut Contents) -> io::Result<()> {
        only_read()
    }

    fn append(&self, _: &str, _: &[u8]) -> io::Result<()> {
        only_read()
    }

    fn truncate(&self, _: &str, _: u64) -> io::Result<()> {
        only_read()
    }

    fn sync(&self, _: &str) -> io::Result<()> {
        only_read()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        only_read()
    }

    fn lock(&self, _: &str) -> io::Result<Box<dyn Held>> {
        only_read()
    }

    fn prepare(&self, _: &str) -> io::Result<()> {
        only_read()
    }
}

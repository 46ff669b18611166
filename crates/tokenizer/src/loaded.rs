//! A tokenizer in a process of its own, on its caller's side.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::files;
use crate::local::Parts;
use crate::process::Process;
use crate::worker::{ANSWER_MAX, ARGUMENT, MEMORY, numbers, read, to_bytes, to_ids, written};
use crate::{Cuts, Error};

/// The bounds of a tokenizer's work.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most seconds for reading the tokenizer, and for each request.
    pub seconds: u32,
    /// The threads that make tokens.
    pub threads: usize,
    /// The help in the error of a text that takes longer.
    pub help: &'static str,
}

/// A tokenizer that gives a text the same tokens each time.
pub struct Loaded {
    path: PathBuf,
    bounds: Bounds,
    /// The positions where texts may be cut for it.
    pub cuts: Cuts,
    /// The files that make up the tokenizer, with their bytes.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The greatest id of a token.
    pub greatest: u32,
    /// The ids of tokens, ascending.
    ids: Vec<u32>,
    /// The process; and another one for the text of tokens, while the first is busy with somebody's long text.
    workers: [Mutex<Option<Worker>>; 2],
}

impl Loaded {
    /// Reads a tokenizer.json, or a folder that has one, or vocab.json and merges.txt, or GPT-2's encoder.json and vocab.bpe.
    ///
    /// # Errors
    /// If a file cannot be read or is not understood, a folder has none of them, or the tokenizer goes beyond a bound.
    pub fn open(path: &Path, bounds: Bounds) -> Result<Loaded, Error> {
        Loaded::of(path, files::read(path)?, bounds)
    }

    /// [`Loaded::open`] of a folder whose files are in memory: `get` gives the bytes of one by its name.
    ///
    /// # Errors
    /// As [`Loaded::open`].
    pub fn of_memory<'a>(
        folder: &Path,
        get: impl Fn(&str) -> Option<&'a [u8]>,
        bounds: Bounds,
    ) -> Result<Loaded, Error> {
        Loaded::of(folder, files::of_memory(folder, get)?, bounds)
    }

    fn of(path: &Path, files: Vec<(PathBuf, Vec<u8>)>, bounds: Bounds) -> Result<Loaded, Error> {
        let all: u64 = files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if all > files::FILES_MAX {
            let why = format!("a tokenizer's files have at most {} bytes together", files::FILES_MAX);
            return Err(Error::malformed(path, why));
        }
        let (worker, cuts, ids) = Worker::start(path, &files, bounds)?;
        let greatest = ids.last().copied();
        let greatest = greatest.ok_or_else(|| Error::malformed(path, "the tokenizer has no token"))?;
        let workers = [Mutex::new(Some(worker)), Mutex::new(None)];
        Ok(Loaded { path: path.into(), bounds, cuts, files, greatest, ids, workers })
    }

    /// The tokens of each text. Special tokens are used if a text names them; none is added around it.
    ///
    /// # Errors
    /// If the tokenizer refuses a text, or goes beyond a bound, in words.
    pub fn ids_of(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, String> {
        let lens: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        let request = json!({ "do": "ids", "lens": lens });
        let (line, bytes) = self.ask(&mut self.worker(), request, texts.concat().as_bytes())?;
        let all = self.known(&bytes)?;
        let mut rest = &all[..];
        let of = |len: usize| rest.split_off(..len).map(<[u32]>::to_vec);
        let ids =
            numbers(&line["lens"]).and_then(|lens| lens.into_iter().map(of).collect::<Option<Vec<_>>>());
        ids.filter(|ids| ids.len() == texts.len()).ok_or_else(|| FAILED.into())
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// As [`Loaded::ids_of`].
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, String> {
        self.ids_of(&[text]).map(|ids| ids.into_iter().flatten().collect())
    }

    /// The tokens of a text, and which of them are of its parts, which are in order, in bytes. If the text's maker `said` the parts, it
    /// is the tokens that overlap one; a token's place is that of its characters, as transformers has it. Otherwise it is the tokens
    /// between the two prefixes of the text that end where the part begins and ends.
    ///
    /// # Errors
    /// If a token holds an end of a part that nobody said, the tokenizer refuses the text, or goes beyond a bound, in words.
    pub fn ids_and_parts(&self, text: &str, parts: &[[usize; 2]], said: bool) -> Result<Parts, String> {
        let request = json!({ "do": if said { "said" } else { "found" }, "parts": parts.as_flattened() });
        let (_, bytes) = self.ask(&mut self.worker(), request, text.as_bytes())?;
        // Four bytes for each id, and one for its part.
        let (ids, inside) = bytes.split_at(bytes.len() / 5 * 4);
        let ids = self.known(ids)?;
        let inside: Vec<bool> = inside.iter().map(|&byte| byte == 1).collect();
        if ids.len() == inside.len() { Ok((ids, inside)) } else { Err(FAILED.into()) }
    }

    /// The id of a token.
    ///
    /// # Errors
    /// If the tokenizer goes beyond a bound, in words.
    pub fn id(&self, token: &str) -> Result<Option<u32>, String> {
        let (line, _) = self.ask(&mut self.worker(), json!({ "do": "id" }), token.as_bytes())?;
        Ok(line["id"].as_u64().map(|id| id as u32).filter(|id| self.has(*id)))
    }

    /// True if a token has this id.
    pub fn has(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// The text of tokens, special ones included.
    ///
    /// # Errors
    /// If the tokenizer refuses the tokens, or goes beyond a bound, in words.
    pub fn text(&self, ids: &[u32]) -> Result<String, String> {
        let mut worker = match self.workers[0].try_lock() {
            Ok(worker) => worker,
            Err(_) => locked(&self.workers[1]),
        };
        let (_, bytes) = self.ask(&mut worker, json!({ "do": "text" }), &to_bytes(ids))?;
        String::from_utf8(bytes).map_err(|_| FAILED.into())
    }

    fn worker(&self) -> MutexGuard<'_, Option<Worker>> {
        locked(&self.workers[0])
    }

    /// Ids from their bytes. Callers count ids by their numbers, so others than the tokenizer's are refused.
    fn known(&self, bytes: &[u8]) -> Result<Vec<u32>, String> {
        let ids = to_ids(bytes);
        match ids.iter().find(|id| **id > self.greatest) {
            Some(id) => Err(format!("the tokenizer makes the id {id}, and none of its tokens has it")),
            None => Ok(ids),
        }
    }

    /// Asks a process, which is started again if an earlier request ended it.
    fn ask(&self, place: &mut Option<Worker>, line: Value, bytes: &[u8]) -> Result<(Value, Vec<u8>), String> {
        let mut worker = match place.take() {
            Some(worker) => worker,
            None => Worker::start(&self.path, &self.files, self.bounds).map_err(|why| why.to_string())?.0,
        };
        let (line, bytes) = worker.ask(line, bytes)?;
        if line["ends"] != true {
            *place = Some(worker);
        }
        match line["error"].as_str() {
            Some(why) => Err(why.into()),
            None => Ok((line, bytes)),
        }
    }
}

/// A lock's value. What a panic left behind is an empty place, or a process between two requests.
fn locked(place: &Mutex<Option<Worker>>) -> MutexGuard<'_, Option<Worker>> {
    place.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The error about a process that ended for another reason than a bound.
const FAILED: &str = "the process of the tokenizer ended: it failed, or somebody ended it";
/// The help where a tokenizer goes beyond a bound that is not time.
const NO_TIME: &str = "shorten the text, or use another tokenizer";

struct Worker {
    bounds: Bounds,
    process: Process,
}

impl Worker {
    /// Starts a process with a tokenizer. Returns its cuts and ids too.
    fn start(
        path: &Path,
        files: &[(PathBuf, Vec<u8>)],
        bounds: Bounds,
    ) -> Result<(Worker, Cuts, Vec<u32>), Error> {
        let wrong = |why: String| Error::malformed(path, why);
        let mut worker =
            Worker { bounds, process: Process::start(ARGUMENT, "the tokenizer").map_err(wrong)? };
        let first = json!({ "seconds": bounds.seconds, "threads": bounds.threads.max(1) });
        // An error of this line is one of the next as well.
        drop(worker.process.send(&[format!("{first}\n").as_bytes()]));
        let shown = |path: &Path| path.display().to_string();
        let names: Vec<String> = files.iter().map(|(path, _)| shown(path)).collect();
        let lens: Vec<usize> = files.iter().map(|(_, bytes)| bytes.len()).collect();
        let all: Vec<u8> = files.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        let request = json!({ "path": shown(path), "names": names, "lens": lens });
        let (line, bytes) = worker.ask(request, &all).map_err(wrong)?;
        match (line["error"].as_str(), line["path"].as_str(), Cuts::of(&line["cuts"])) {
            (Some(why), Some(path), _) => Err(Error::malformed(Path::new(path), why)),
            (Some(why), None, _) => Err(wrong(why.into())),
            (None, _, Some(cuts)) => Ok((worker, cuts, to_ids(&bytes))),
            (None, _, None) => Err(wrong(FAILED.into())),
        }
    }

    fn ask(&mut self, line: Value, bytes: &[u8]) -> Result<(Value, Vec<u8>), String> {
        let sent = written(&mut self.process.input, line, bytes).ok();
        let answer = sent.and_then(|()| read(&mut self.process.output, ANSWER_MAX));
        answer.ok_or_else(|| self.ended())
    }

    /// The error about a process that gives no answer.
    fn ended(&mut self) -> String {
        let bounds = (self.bounds.seconds, MEMORY);
        let beyond = self.process.beyond("the tokenizer", bounds, [self.bounds.help, NO_TIME]);
        beyond.unwrap_or_else(|| FAILED.into())
    }
}

//! The companion files that make a model usable: configuration, tokenizer, settings of text generation. A run keeps copies of the
//! files beside the weights it began from, and an export writes them again. No record commits them, and no computation depends on
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tiebreak_token_files::{OF_TOKENS, TOKENIZER_FILES};

use super::dir::Run;
use super::disk::{self, Disk};
use super::error::RunError;
use super::job_files::{JobFiles, is_address, refuse_private_key};
use super::mistaken::refuse_stand_in;
use super::names;
use super::paths::RunPaths;
use super::released_config::{self, CONFIG_MAX};
use super::store::Store;
use super::stored::Stored;
use super::tokenizer_ids;
pub use super::tokenizer_ids::SpecialTokens;
use tiebreak_job::Job;
use tiebreak_job::data::Vocabulary;
use tiebreak_job::spec::DataFiles;

/// A model's configuration.
pub const CONFIG: &str = "config.json";
/// The settings of text generation, such as the tokens that begin, end and pad a text.
pub const GENERATION: &str = "generation_config.json";
/// The file in which transformers' image processors say how pixels are prepared.
pub const PREPROCESSOR: &str = "preprocessor_config.json";
/// Sets of files that are taken together from one folder: files of several folders would not fit each other.
const SETS: [&[&str]; 3] = [&[CONFIG], &[GENERATION], &TOKENIZER_FILES];
/// The most bytes of a file; the largest tokenizers have a third of that.
pub const FILE_MAX: u64 = 1 << 26;
/// The most bytes of all files of a run.
const ALL_MAX: u64 = 1 << 27;
/// True if a companion file may have this name.
pub fn is_name(name: &str) -> bool {
    SETS.iter().any(|set| set.contains(&name))
}

/// The most bytes of the file of this name.
fn most(name: &str) -> u64 {
    if [CONFIG, GENERATION].contains(&name) { CONFIG_MAX } else { FILE_MAX }
}

/// The files of a set that are in a folder, here or at an address, which a job names with `key`.
fn in_folder(
    set: &[&'static str],
    reach: &JobFiles,
    key: &str,
    folder: &str,
) -> Result<Vec<(&'static str, Stored)>, RunError> {
    let mut found = Vec::new();
    if !is_address(Path::new(folder)) {
        for name in set {
            // A name that is not UTF-8 names none of the job's files.
            let Some(path) = Path::new(folder).join(name).to_str().map(str::to_string) else { continue };
            if fs::symlink_metadata(reach.folder().join(&path)).is_ok() {
                found.push((*name, reach.path(key, &path)?.as_path().into()));
            }
        }
        return Ok(found);
    }
    // The index of a run says which files there are.
    let run = folder.strip_suffix(names::COMPANIONS).filter(|_| key == "init.run");
    let opened = match run {
        Some(run) => reach.run_store(key, run)?.map(|store| (store, run)),
        None => None,
    };
    for name in set {
        let file = match &opened {
            Some((store, run)) => Stored::new(store, Path::new(run), names::companion(name)),
            None => reach.stored(key, &format!("{folder}/{name}"))?,
        };
        if file.is_here() {
            found.push((*name, file));
        }
    }
    Ok(found)
}

/// Files whose names pass [`is_name`], by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Companions {
    files: BTreeMap<&'static str, Vec<u8>>,
    /// The paths where a job's companions were found, with their lengths.
    sources: Vec<(PathBuf, u64)>,
}

impl Companions {
    /// The companions of a run that begins with a job: from the job file's folder, else from the folder of the weights or the
    /// earlier run, else from the folder of the tokenizer of its tokens.
    ///
    /// # Errors
    /// If one lies where the job may not reach, is a private key, a pointer of Git LFS or too large, or cannot be read.
    pub fn of_job(job: &Job, reach: &JobFiles) -> Result<Companions, RunError> {
        let mut folders = vec![("job", String::new())];
        let beside = |path: &String| match is_address(Path::new(path)) {
            true => Some(path.rsplit_once('/')?.0.to_string()),
            false => Path::new(path).parent()?.to_str().map(str::to_string),
        };
        folders.extend(job.init.weights.first().and_then(beside).map(|folder| ("init.weights", folder)));
        let kept = |run: &String| match is_address(Path::new(run)) {
            true => Some(format!("{}/{}", run.trim_end_matches('/'), names::COMPANIONS)),
            false => RunPaths { root: run.into() }.companions().to_str().map(str::to_string),
        };
        folders.extend(job.init.run.iter().filter_map(|run| Some(("init.run", kept(run)?))));
        if let DataFiles::Tokens { paths, .. } = &job.data.files {
            folders.extend(paths.iter().map(|path| ("data.path", format!("{path}{OF_TOKENS}"))));
        }
        let mut found = Companions::default();
        for set in SETS {
            for (key, folder) in &folders {
                for (name, file) in in_folder(set, reach, key, folder)? {
                    found.add_of_job(job, name, file)?;
                }
                if set.iter().any(|name| found.files.contains_key(name)) {
                    break;
                }
            }
        }
        Ok(found)
    }

    fn add_of_job(&mut self, job: &Job, name: &'static str, file: Stored) -> Result<(), RunError> {
        let path = file.path().to_path_buf();
        let bytes = match file.on_disk() {
            // Downloads are kept behind links; the job may reach the links' target, or not.
            Some(path) => {
                let real = path.canonicalize().map_err(RunError::io(path))?;
                if real.is_dir() {
                    return Ok(());
                }
                disk::read(&real, most(name))?
            }
            None => file.read(most(name))?,
        };
        refuse_private_key(&path, &bytes[..])?;
        refuse_stand_in(&path, &bytes)?;
        // Many programs have a config.json. One of another kind of model does not belong to this model.
        if name == CONFIG && !job.model().is_some_and(|job| released_config::is_of(&bytes, &job.model)) {
            return Ok(());
        }
        self.sources.push((path, bytes.len() as u64));
        self.insert(name, bytes)
    }

    fn insert(&mut self, name: &'static str, bytes: Vec<u8>) -> Result<(), RunError> {
        self.files.insert(name, bytes);
        let all: u64 = self.files.values().map(|bytes| bytes.len() as u64).sum();
        if all > ALL_MAX {
            let why = format!(
                "the files beside the weights (configuration, tokenizer) have {all} bytes together; at most {ALL_MAX} are taken"
            );
            return Err(RunError::Refused(why));
        }
        Ok(())
    }

    /// The companion files that a run keeps.
    ///
    /// # Errors
    /// If one is a link or too large, or cannot be read.
    pub fn of_run(run: &Run) -> Result<Companions, RunError> {
        let mut found = Companions::default();
        for name in SETS.into_iter().flatten() {
            let file = run.at(names::companion(name));
            if file.is_here() {
                found.insert(name, file.read(most(name))?)?;
            }
        }
        Ok(found)
    }

    /// The companion files beside released weights; links are followed.
    ///
    /// # Errors
    /// If one is a pointer of Git LFS or too large, or cannot be read.
    pub fn released(folder: &Path) -> Result<Companions, RunError> {
        let mut found = Companions::default();
        for name in SETS.into_iter().flatten() {
            match folder.join(name).canonicalize() {
                Ok(real) if real.is_file() => {
                    let bytes = disk::read(&real, most(name))?;
                    refuse_stand_in(&folder.join(name), &bytes)?;
                    found.insert(name, bytes)?;
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// The companion files beside released weights in a store that is no folder here. The bytes are the server's: a receipt has the
    /// digests of those that decide an answer.
    ///
    /// # Errors
    /// As [`Companions::released`], and if the store cannot say whether a file is there.
    #[doc(hidden)] // the command's alone
    pub fn released_at(store: &Arc<dyn Store>, place: &Path) -> Result<Companions, RunError> {
        let mut found = Companions::default();
        for name in SETS.into_iter().flatten() {
            let file = Stored::new(store, place, *name);
            if file.is_here() {
                found.add_released(name, &file)?;
            }
        }
        Ok(found)
    }

    /// A tokenizer.json alone, whatever its name is.
    ///
    /// # Errors
    /// If it is a stand-in or too large, or cannot be read.
    #[doc(hidden)] // the command's alone
    pub fn tokenizer(file: &Stored) -> Result<Companions, RunError> {
        let mut found = Companions::default();
        found.add_released(TOKENIZER_FILES[0], file)?;
        Ok(found)
    }

    fn add_released(&mut self, name: &'static str, file: &Stored) -> Result<(), RunError> {
        let bytes = file.read(most(name))?;
        refuse_stand_in(file.path(), &bytes)?;
        self.insert(name, bytes)
    }

    /// The paths where a job's companions lie, with their lengths.
    pub fn sources(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.sources.iter().map(|(path, len)| (path.as_path(), *len))
    }

    /// The files' names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.keys().copied()
    }

    /// The number of tokens that the tokenizer's files state; `None` if there are no such files, or they are not understood.
    pub fn vocabulary(&self) -> Option<Vocabulary> {
        let below = tokenizer_ids::below(|name| self.get(name))?;
        let is_its = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| tokenizer_ids::is_vocabulary(&name.to_string_lossy()))
        };
        let path = self.sources.iter().map(|(path, _)| path).find(is_its)?;
        Some(Vocabulary { below, name: path.display().to_string() })
    }

    /// The special tokens of an encoder's tokenizer, as far as the files tell them.
    pub fn special_tokens(&self) -> SpecialTokens {
        tokenizer_ids::special(|name| self.get(name))
    }

    /// Every file's name and bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.files.iter().map(|(name, bytes)| (*name, bytes.as_slice()))
    }

    /// The files of the tokenizer that a receipt names, by ascending name. No tokenizer of a decoder reads `vocab.txt`.
    pub fn of_tokenizer(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.iter().filter(|(name, _)| TOKENIZER_FILES.contains(name) && *name != tokenizer_ids::LINES)
    }

    /// A file's bytes.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// A file's text; `None` if the file is not there, or is not UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Writes the files into a folder, except those named in `without`. The folder is made if there is a file to write.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write(&self, disk: &Disk, folder: &Path, without: &[&str]) -> Result<(), RunError> {
        let files = self.iter().filter(|(name, _)| !without.contains(name));
        for (number, (name, bytes)) in files.enumerate() {
            if number == 0 {
                disk.create_folder(folder)?;
            }
            disk.replace(&folder.join(name), bytes)?;
        }
        Ok(())
    }
}

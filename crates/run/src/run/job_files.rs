//! The files that a job names: the folders they may lie in, and the kinds that are never taken.
//!
//! A trainer of somebody else's job publishes a copy of the job's data. So a job reaches only the files in its own folder and in
//! a folder that the trainer allows. A path that leaves both is refused, whether by `..`, by being absolute or by a symbolic
//! link. A file at an address is read only if the trainer allows the address, too: credentials of the trainer may open it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::error::RunError;
use super::store::Store;
use super::stored::Stored;

/// The most bytes of a file that is searched for a private key line by line; in a longer file only the first line is examined.
const KEY_FILE_MAX: u64 = 1 << 16;

/// What lies at an address.
#[doc(hidden)] // for the layers above
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A run, whose index lists its files.
    Run,
    /// A folder of files that no index lists.
    Files,
}

/// The function that opens what lies at an address. Nothing is asked there yet.
type Opener = dyn Fn(Kind, &str) -> Result<Arc<dyn Store>, RunError> + Send + Sync;

/// The stores at addresses, each of which is opened once: a server says once what it has.
struct Stores {
    opener: Box<Opener>,
    opened: Mutex<BTreeMap<(Kind, String), Arc<dyn Store>>>,
}

impl Stores {
    fn open(&self, kind: Kind, address: &str) -> Result<Arc<dyn Store>, RunError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match opened.entry((kind, address.to_string())) {
            Entry::Occupied(store) => store.get().clone(),
            Entry::Vacant(place) => place.insert((self.opener)(kind, address)?).clone(),
        })
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("stores at addresses")
    }
}

/// A job file's path, and the folders in which the files that it names may lie.
#[derive(Clone, Debug)]
pub struct JobFiles {
    job: PathBuf,
    /// Canonical paths: the job's folder, and the folders that the trainer allows.
    roots: Vec<PathBuf>,
    /// The addresses of folders that the trainer allows, and what opens them.
    addresses: Vec<String>,
    stores: Option<Arc<Stores>>,
}

impl JobFiles {
    /// The reach of a job file: its own folder, and `data_root` if one is given.
    ///
    /// # Errors
    /// If a folder is not there.
    pub fn new(job: &Path, data_root: Option<&Path>) -> Result<JobFiles, RunError> {
        JobFiles::reaching(job, data_root)
    }

    /// The reach of a job file: its own folder, and these.
    ///
    /// # Errors
    /// If a folder is not there.
    #[doc(hidden)] // the command's alone
    pub fn reaching<'a>(
        job: &Path,
        folders: impl IntoIterator<Item = &'a Path>,
    ) -> Result<JobFiles, RunError> {
        let folder = match folder_of(job) {
            empty if empty.as_os_str().is_empty() => Path::new("."),
            folder => folder,
        };
        let mut roots = vec![folder.canonicalize().map_err(RunError::io(folder))?];
        for root in folders {
            let canonical = root.canonicalize().and_then(|canonical| canonical.read_dir().map(|_| canonical));
            roots
                .push(canonical.map_err(|error| {
                    RunError::Refused(format!("--data-root {}: {error}", root.display()))
                })?);
        }
        Ok(JobFiles { job: job.to_path_buf(), roots, addresses: Vec::new(), stores: None })
    }

    /// The same reach, and the folders at these addresses, which `opener` opens.
    #[must_use]
    #[doc(hidden)] // the command's alone
    pub fn with_addresses(
        self,
        addresses: Vec<String>,
        opener: impl Fn(Kind, &str) -> Result<Arc<dyn Store>, RunError> + Send + Sync + 'static,
    ) -> JobFiles {
        let addresses = addresses.into_iter().map(|root| root.trim_end_matches('/').to_string()).collect();
        let stores = Stores { opener: Box::new(opener), opened: Mutex::default() };
        JobFiles { addresses, stores: Some(Arc::new(stores)), ..self }
    }

    /// The job file.
    pub(crate) fn job(&self) -> &Path {
        &self.job
    }

    /// The job's folder, to which its paths are relative.
    pub fn folder(&self) -> &Path {
        folder_of(&self.job)
    }

    /// The path of a file or folder that the job names with `key`.
    ///
    /// # Errors
    /// If the path lies outside of the folders that the job may reach, or is an address.
    pub fn path(&self, key: &str, name: &str) -> Result<PathBuf, RunError> {
        if is_address(Path::new(name)) {
            let why = "is an address, and a file of this key is read from a folder alone: copy it here";
            return Err(RunError::Refused(format!("{}: {key}: {name:?} {why}", self.job.display())));
        }
        let path = self.folder().join(name);
        // The links of a file that does not exist cannot be followed. The name alone decides if the file would lie outside, so
        // that an answer does not reveal whether a file outside exists.
        let real = path.canonicalize().unwrap_or_else(|_| without_dots(&self.roots[0].join(name)));
        if self.roots.iter().any(|root| real.starts_with(root)) {
            return Ok(path);
        }
        let roots: Vec<String> = self.roots.iter().map(|root| root.display().to_string()).collect();
        Err(RunError::Refused(format!(
            "{}: {key}: {name:?} leaves {}: a job may name files in its own folder only, and in the DIR of --data-root DIR",
            self.job.display(),
            roots.join(" and ")
        )))
    }
}

impl JobFiles {
    /// The file that the job names with `key`, by a path or by an address.
    ///
    /// # Errors
    /// If the file lies outside of the folders and addresses that the job may reach, or the address cannot be read here.
    #[doc(hidden)] // for the layers above
    pub fn stored(&self, key: &str, name: &str) -> Result<Stored, RunError> {
        if !is_address(Path::new(name)) {
            return Ok(self.path(key, name)?.as_path().into());
        }
        let (folder, file) = folder_and_name(name)?;
        if matches!(file, "." | "..") {
            let why = "is an address of a folder, and a file is due";
            return Err(RunError::Refused(format!("{}: {key}: {name:?} {why}", self.job.display())));
        }
        let store = self.stores_for(key, name, folder)?.open(Kind::Files, folder)?;
        Ok(Stored::new(&store, Path::new(folder), file))
    }

    /// The store of the run that the job names with `key`, if the name is an address.
    ///
    /// # Errors
    /// As [`JobFiles::stored`].
    pub(crate) fn run_store(&self, key: &str, name: &str) -> Result<Option<Arc<dyn Store>>, RunError> {
        if !is_address(Path::new(name)) {
            return Ok(None);
        }
        let run = name.trim_end_matches('/');
        self.stores_for(key, name, run)?.open(Kind::Run, run).map(Some)
    }

    /// What opens the folder at an address, which has to be one that the trainer allows, or below one.
    fn stores_for(&self, key: &str, name: &str, folder: &str) -> Result<&Stores, RunError> {
        let below = |root: &String| folder.strip_prefix(root.as_str());
        let plain = |rest: &str| {
            let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('%');
            rest.is_empty() || rest.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain))
        };
        let allowed = self.addresses.iter().filter_map(below).any(plain);
        self.stores.as_deref().filter(|_| allowed).ok_or_else(|| {
            RunError::Refused(format!(
                "{}: {key}: {name:?} is an address that nobody allowed: a job may name files at addresses only below the ADDRESS of \
                 --data-root ADDRESS; if you trust the job, give --data-root {folder}",
                self.job.display()
            ))
        })
    }
}

/// True if a place is named by an address, such as `http://HOST/PATH`, and not by a path.
#[doc(hidden)] // for the layers above
pub fn is_address(place: &Path) -> bool {
    let scheme = place.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// The address of a file's folder, and the file's name.
///
/// # Errors
/// If the address names no file.
#[doc(hidden)] // for the layers above
pub fn folder_and_name(address: &str) -> Result<(&str, &str), RunError> {
    let parts = address.rsplit_once('/').filter(|(folder, name)| !name.is_empty() && !folder.ends_with(":/"));
    parts.ok_or_else(|| RunError::Refused(format!("{address}: a file is wanted, and the address names none")))
}

fn folder_of(job: &Path) -> &Path {
    job.parent().unwrap_or(Path::new("."))
}

/// A path without `.` and `..`, by its text alone.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Refuses a private key in place of data. The check finds keys in the text forms of `tiebreak key new`, PEM, OpenSSH, PuTTY and
/// age, which guards against a mistake. Against a hostile job, the limit on folders guards.
///
/// # Errors
/// If `contents`, the contents of the file at `path`, are a private key, or cannot be read.
pub fn refuse_private_key(path: &Path, contents: impl Read) -> Result<(), RunError> {
    let mut start = Vec::new();
    // The function that reads the whole file reports contents that do not unpack.
    let _ = contents.take(KEY_FILE_MAX + 1).read_to_end(&mut start);
    let whole = start.len() as u64 <= KEY_FILE_MAX;
    let mut lines = start.split(|byte| matches!(byte, b'\n' | b'\r')).map(<[u8]>::trim_ascii);
    let mut lines = lines.by_ref().filter(|line| !line.is_empty()).take(if whole { usize::MAX } else { 1 });
    if lines.any(begins_private_key) {
        let why = "it holds a private key, which is never data";
        return Err(RunError::Refused(format!("{}: {why}", path.display())));
    }
    Ok(())
}

fn begins_private_key(line: &[u8]) -> bool {
    let pem = line.starts_with(b"-----BEGIN ") && line.windows(11).any(|part| part == b"PRIVATE KEY");
    let marks: [&[u8]; 4] = [b"PRIVATE+KEY+", b"SALT+KEY+", b"PuTTY-User-Key-File-", b"AGE-SECRET-KEY-1"];
    pem || marks.iter().any(|mark| line.starts_with(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_reached_below_the_ones_that_are_allowed_alone() {
        let nowhere = |_, _: &str| Ok(crate::run::Folder::at(Path::new("nowhere")) as Arc<dyn Store>);
        let files = JobFiles::new(Path::new("job.toml"), None).unwrap();
        assert!(files.stored("key", "http://host/a/file").is_err(), "no address is allowed");
        let allowed = vec!["http://host/a/".to_string(), "s3://bucket".to_string()];
        let files = files.with_addresses(allowed, nowhere);
        for name in ["http://host/a/file", "http://host/a/b/file", "s3://bucket/file"] {
            assert!(files.stored("key", name).is_ok(), "{name}");
        }
        for name in [
            "http://host/file",
            "http://host/a",
            "http://host/a/",
            "http://host/a/..",
            "http://host/a/.",
            "http://host/ab/file",
            "http://host/a/../file",
            "http://host/a/./b/file",
            "http://host/a/%2e%2e/file",
            "http://host/a//file",
            "https://host/a/file",
            "http://host.other/a/file",
            "s3://bucket2/file",
            "s3://bucket",
        ] {
            assert!(files.stored("key", name).is_err(), "{name}");
        }
        assert!(files.run_store("key", "http://host/a").unwrap().is_some());
        assert!(files.run_store("key", "http://host/a/../b").is_err());
        assert!(files.run_store("key", "runs/mine").unwrap().is_none());
        assert!(files.path("key", "http://host/a/file").is_err(), "a path is wanted");
    }

    #[test]
    fn private_keys_are_told_from_texts() {
        let refused = |text: &str| refuse_private_key(Path::new("file"), text.as_bytes()).is_err();
        for key in [
            "PRIVATE+KEY+trainer+01020304+AQID\n",
            "SALT+KEY+0123\n",
            "\n  -----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n",
            "Bag Attributes\r\n-----BEGIN ENCRYPTED PRIVATE KEY-----\r\n",
            "-----BEGIN PGP PRIVATE KEY BLOCK-----",
            "# created: today\nAGE-SECRET-KEY-1QQQ\n",
        ] {
            assert!(refused(key), "{key}");
        }
        let long = "a line of a text\n".repeat(10_000) + "-----BEGIN PRIVATE KEY-----\n";
        for text in ["", "a text that mentions a PRIVATE KEY", "-----BEGIN PUBLIC KEY-----\n", &long] {
            assert!(!refused(text), "{}", text.len());
        }
    }
}

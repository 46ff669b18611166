//! Writing without loss: whole files appear at once or not at all.
//!
//! Every write, fsync, rename, deletion, truncation and new folder passes a crash point, so that tests can stop a
//! trainer at any of them.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::error::RunError;
use tiebreak_record::commit::Malformed;

/// The beginnings of the texts of private keys.
const SECRETS: [&[u8]; 3] = [b"PRIVATE+KEY+", b"SALT+KEY+", b"AGE-SECRET-KEY-"];
/// No private key's file is longer.
const SECRET_MAX: u64 = 1 << 12;

/// Writes to folders. Clones count the same operations.
#[derive(Clone, Default)]
pub struct Disk {
    /// The number of operations that still succeed; `None` = all.
    operations: Option<Arc<AtomicU64>>,
}

impl Disk {
    /// A disk on which operation `operations` + 1 and all later ones fail. If the first of these is a write, half of it is done,
    /// as after a kill at that moment.
    #[doc(hidden)] // for the layers above
    pub fn failing_after(operations: u64) -> Disk {
        Disk { operations: Some(Arc::new(AtomicU64::new(operations))) }
    }

    fn crash_point(&self) -> io::Result<()> {
        let Some(left) = &self.operations else { return Ok(()) };
        let passed = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        passed.map(drop).map_err(|_| io::Error::other("crash point"))
    }

    /// Writes to an open file; a crash here writes half.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    #[doc(hidden)] // for the layers above
    pub fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if let Err(crash) = self.crash_point() {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(crash);
        }
        file.write_all(bytes)
    }

    /// Waits until an open file is safe on disk.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    #[doc(hidden)] // for the layers above
    pub fn sync(&self, file: &File) -> io::Result<()> {
        self.crash_point()?;
        file.sync_all()
    }

    /// Cuts an open file to `len` bytes.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    #[doc(hidden)] // for the layers above
    pub fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        self.crash_point()?;
        file.set_len(len)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    #[doc(hidden)] // for the layers above
    pub fn remove(&self, path: &Path) -> Result<(), RunError> {
        self.removed(path).map_err(RunError::io(path))
    }

    /// [`Disk::remove`], with the system's errors as they are.
    pub(crate) fn removed(&self, path: &Path) -> io::Result<()> {
        self.crash_point().and_then(|()| fs::remove_file(path))
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// If the folder is not empty, the system refuses, or at the crash point that a test chose.
    pub(crate) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.crash_point().and_then(|()| fs::remove_dir(path))
    }

    /// Makes a folder and those above it, unless they are there.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    #[doc(hidden)] // for the layers above
    pub fn create_folder(&self, path: &Path) -> Result<(), RunError> {
        self.created(path).map_err(RunError::io(path))
    }

    /// [`Disk::create_folder`], with the system's errors as they are.
    pub(crate) fn created(&self, path: &Path) -> io::Result<()> {
        self.crash_point().and_then(|()| fs::create_dir_all(path))
    }

    /// Replaces a file's contents as a whole: temporary file, fsync, rename, fsync of the folder.
    ///
    /// # Errors
    /// If the system refuses, or at the crash point that a test chose.
    #[doc(hidden)] // for the layers above
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), RunError> {
        self.replace_by(path, |file| self.write(file, bytes))
    }

    /// [`Disk::replace`], with the contents written by `contents`.
    ///
    /// # Errors
    /// If `contents` fails, the system refuses, or at the crash point that a test chose.
    ///
    /// # Panics
    /// If `path` has no folder or no file name.
    #[doc(hidden)] // the command's alone
    pub fn replace_by(
        &self,
        path: &Path,
        contents: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), RunError> {
        self.replaced(path, contents).map_err(RunError::io(path))
    }

    /// [`Disk::replace_by`], with the system's errors as they are.
    pub(crate) fn replaced(
        &self,
        path: &Path,
        contents: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let parent = path.parent().expect("files of a run are in a folder");
        replaceable(path)?;
        let temporary = partial(path);
        // The remains of an interrupted write are removed, not opened: they could be a link to somewhere else.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&temporary)?;
        if let Err(error) = contents(&mut file).and_then(|()| self.sync(&file)) {
            // A process that is killed leaves its file. One that goes on does not.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        self.crash_point()?;
        fs::rename(&temporary, path)?;
        self.sync(&File::open(parent)?)
    }
}

/// Replaces a file that several processes may write at once, here and on other machines, and that nobody misses: readers find one of the
/// contents, whole. Nothing waits for the disk, so a crash may lose the file or damage it.
///
/// # Errors
/// If the system refuses. `NotFound` or `AlreadyExists` if somebody else removed what was written, or has its temporary name.
///
/// # Panics
/// If `path` has no file name.
#[doc(hidden)] // for caches alone
pub fn replace_shared(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Processes in containers have the same numbers, so the name is a random one: a map's hasher is seeded by the system.
    static SEEDED: OnceLock<RandomState> = OnceLock::new();
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let random = SEEDED.get_or_init(RandomState::new).hash_one((std::process::id(), number));
    let name = path.file_name().expect("a file in a cache has a name").to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{random:016x}.partial"));
    // A file that is there is another process's, and a link is no file to write to.
    let mut file = File::create_new(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Checks that what a path names may be replaced: nothing, or a plain file that is no private key. A rename would put a file in the place
/// of a device, a pipe or a link.
fn replaceable(path: &Path) -> io::Result<()> {
    let refused = |why: &str| Err(io::Error::other(why));
    match fs::symlink_metadata(path) {
        Ok(kind) if !kind.is_file() => {
            refused("it is there, and is no plain file (a folder, a link, a device): name another file")
        }
        Ok(kind) if kind.len() <= SECRET_MAX => {
            let mut beginning = Vec::new();
            File::open(path)?.take(16).read_to_end(&mut beginning)?;
            if SECRETS.iter().any(|secret| beginning.starts_with(secret)) {
                return refused("it is a private key, and is not replaced: name another file");
            }
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The path where the contents of a file are written before the file appears.
///
/// # Panics
/// If `path` has no file name.
pub fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().expect("files of a run have names").to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

/// Reads a file of at most `max` bytes. Links are refused: a run has plain files only.
///
/// # Errors
/// If the path is no plain file, is larger than `max`, or cannot be read.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, RunError> {
    let mut file = open(path)?;
    let len = file.metadata().map_err(RunError::io(path))?.len();
    if len > max {
        return Err(RunError::malformed(path, Malformed::TooLarge { what: "file", limit: max }));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    (&mut file).take(max).read_to_end(&mut bytes).map_err(RunError::io(path))?;
    Ok(bytes)
}

/// Reads a UTF-8 file of at most `max` bytes.
///
/// # Errors
/// If the path is no plain file, is larger than `max`, is not UTF-8, or cannot be read.
pub fn read_text(path: &Path, max: u64) -> Result<String, RunError> {
    String::from_utf8(read(path, max)?).map_err(|error| not_text(path, &error))
}

/// The error for bytes that are no text.
pub(crate) fn not_text(path: &Path, error: &FromUtf8Error) -> RunError {
    let valid = error.utf8_error().valid_up_to();
    RunError::invalid(path, format!("the text is not UTF-8 from byte {valid} on"))
}

/// Checks that a path that is about to be written is not a link, neither to an existing file nor to nothing.
///
/// # Errors
/// If something other than a plain file is there.
pub fn refuse_link(path: &Path) -> Result<(), RunError> {
    match fs::symlink_metadata(path) {
        Ok(kind) if !kind.is_file() => {
            Err(RunError::invalid(path, "a plain file is wanted (links and folders are not followed)"))
        }
        _ => Ok(()),
    }
}

/// Opens a plain file for reading.
///
/// # Errors
/// If the path is no plain file, or cannot be opened.
pub fn open(path: &Path) -> Result<File, RunError> {
    let kind = fs::symlink_metadata(path).map_err(RunError::io(path))?;
    if !kind.is_file() {
        return Err(RunError::invalid(path, "a plain file is wanted (links and folders are not followed)"));
    }
    File::open(path).map_err(RunError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output replaces plain files alone, and no private key.
    #[test]
    fn only_plain_files_without_secrets_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let replaced = |name: &str| Disk::default().replace(&at(name), b"new").map_err(|e| e.to_string());
        fs::write(at("plain"), b"old").unwrap();
        for name in ["plain", "absent"] {
            replaced(name).unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), b"new");
        }
        fs::create_dir(at("folder")).unwrap();
        assert!(replaced("folder").unwrap_err().contains("is no plain file"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("plain"), at("link")).unwrap();
            assert!(replaced("link").unwrap_err().contains("is no plain file"));
            assert!(at("link").symlink_metadata().unwrap().is_symlink());
        }
        for secret in ["PRIVATE+KEY+a+b", "SALT+KEY+a", "AGE-SECRET-KEY-1A"] {
            fs::write(at("key"), secret).unwrap();
            assert!(replaced("key").unwrap_err().contains("is a private key"));
            assert_eq!(fs::read(at("key")).unwrap(), secret.as_bytes());
        }
        assert!(!partial(&at("key")).exists());
        // Contents that fail leave the old file, and nothing beside it.
        let failed = Disk::default().replace_by(&at("plain"), |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert!(failed.unwrap_err().to_string().contains("no more"));
        assert_eq!(fs::read(at("plain")).unwrap(), b"new");
        assert!(!partial(&at("plain")).exists());
    }
}

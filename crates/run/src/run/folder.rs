//! A run in a folder: each name is a path below it. Whole files appear at once or not at all, and every write passes a crash point.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::disk::{self, Disk};
use super::lock;
use super::store::{Contents, Held, Store, not_plain};
use tiebreak_record::commit::Malformed;

/// A store in a folder. Links are not followed.
pub struct Folder {
    root: PathBuf,
    disk: Disk,
    /// The folders that [`Store::prepare`] made, the outermost first.
    made: Mutex<Vec<PathBuf>>,
}

impl Folder {
    /// The store of a folder, which need not exist yet.
    pub fn at(root: &Path) -> Arc<dyn Store> {
        Folder::on(&Disk::default(), root)
    }

    /// The store of a folder on a disk that tests can stop.
    #[doc(hidden)] // for the layers above
    pub fn on(disk: &Disk, root: &Path) -> Arc<dyn Store> {
        Arc::new(Folder { root: root.to_path_buf(), disk: disk.clone(), made: Mutex::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The path to write a file to; its folder is made if it does not exist.
    fn target(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path(name);
        if let Some(parent) = path.parent().filter(|parent| fs::symlink_metadata(parent).is_err()) {
            self.disk.created(parent)?;
        }
        Ok(path)
    }
}

/// The length of a plain file.
fn length(path: &Path) -> io::Result<u64> {
    let found = fs::symlink_metadata(path)?;
    if found.is_file() { Ok(found.len()) } else { Err(not_plain()) }
}

/// Opens an existing plain file.
fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    length(path)?;
    options.open(path)
}

impl Store for Folder {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn length(&self, name: &str) -> io::Result<u64> {
        length(&self.path(name))
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut file = open(&self.path(name), OpenOptions::new().read(true))?;
        let len = range.end.saturating_sub(range.start);
        let mut bytes = Vec::with_capacity(len.min(file.metadata()?.len()) as usize);
        file.seek(SeekFrom::Start(range.start))?;
        file.take(len).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            Ok(format!("{}{slash}", entry.file_name().to_string_lossy()))
        };
        entries.map(name).collect()
    }

    fn replace(&self, name: &str, contents: &mut Contents) -> io::Result<()> {
        let path = self.target(name)?;
        let disk = &self.disk;
        let replaced = disk.replaced(&path, |file| contents(&mut Written { disk, file }));
        if replaced.is_err() {
            // The first error is the one to report; a full disk gets its bytes back.
            let _ = disk.removed(&disk::partial(&path));
        }
        replaced
    }

    fn append(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.target(name)?;
        match length(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
        self.disk.write(&mut file, bytes)
    }

    fn truncate(&self, name: &str, length: u64) -> io::Result<()> {
        let file = open(&self.path(name), OpenOptions::new().write(true))?;
        if file.metadata()?.len() > length { self.disk.truncate(&file, length) } else { Ok(()) }
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.disk.sync(&open(&self.path(name), OpenOptions::new().write(true))?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.removed(&self.path(name))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>> {
        Ok(Box::new(lock::hold(&self.target(name)?)?))
    }

    fn prepare(&self, folder: &str) -> io::Result<()> {
        let path = self.path(folder);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let above: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        let absent = above.into_iter().rev().filter(|path| fs::symlink_metadata(path).is_err());
        made.extend(absent.map(Path::to_path_buf));
        self.disk.created(&path)?;
        check(&path)
    }

    fn take_back(&self) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        for path in made.drain(..).rev() {
            let _ = self.disk.remove_folder(&path);
        }
    }
}

/// Refuses a path that exists and is no folder. A folder that does not exist counts as empty.
pub(super) fn check(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir()) {
        let why = "a folder is wanted (links are not followed)";
        return Err(io::Error::new(io::ErrorKind::InvalidData, Malformed::invalid("file", why)));
    }
    Ok(())
}

/// A file whose writes pass crash points.
struct Written<'a> {
    disk: &'a Disk,
    file: &'a mut File,
}

impl Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.write(self.file, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

//! Files that appear whole or not at all: they are written under a temporary name and renamed.

use std::fs::{self, File, Metadata};
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Bytes before the array of a .npy file, with NumPy's alignment: room for every shape of this program.
const HEADER: usize = 128;

/// The path whose name is that of `path` followed by `more`.
pub fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(more);
    name.into()
}

/// Refuses a name that a job would not take for a .npy file.
pub fn is_npy(path: &Path) -> Result<(), Error> {
    match path.extension() {
        Some(extension) if extension == "npy" => Ok(()),
        _ => Err(Error::Usage(format!("--output {path:?}: a name that ends in .npy is wanted"))),
    }
}

/// Refuses to overwrite an existing file.
pub fn is_free(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(Error::Usage(format!("{path:?} is there already; remove it, or name another --output"))),
        Err(_) => Ok(()),
    }
}

/// The temporary path beside `path` until it is finished.
fn partial(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| Error::Usage(format!("{path:?} is no name for a file")))?;
    let mut name = name.to_os_string();
    name.push(".partial");
    Ok(path.with_file_name(name))
}

/// Outputs under their temporary names. What was not published is removed with this value.
#[derive(Default)]
pub struct Unfinished(Vec<Part>);

struct Part {
    path: PathBuf,
    unfinished: PathBuf,
    is_folder: bool,
    is_published: bool,
    /// Open until the end, so that no other import takes the temporary name.
    lock: Option<File>,
}

impl Unfinished {
    /// Begins a file, which gets its name when it is published.
    pub fn file(&mut self, path: &Path) -> Result<(PathBuf, File), Error> {
        is_free(path)?;
        let unfinished = partial(path)?;
        let file = create(&unfinished)?;
        let lock = file.try_clone().map_err(Error::io(&unfinished))?;
        self.0.push(Part {
            path: path.into(),
            unfinished: unfinished.clone(),
            is_folder: false,
            is_published: false,
            lock: Some(lock),
        });
        Ok((unfinished, file))
    }

    /// Writes a small file whole.
    pub fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        let (unfinished, file) = self.file(path)?;
        filled(&unfinished, file, bytes)
    }

    /// Begins a folder; returns its temporary path. What an interrupted import left there is removed.
    pub fn folder(&mut self, path: &Path) -> Result<PathBuf, Error> {
        is_free(path)?;
        let unfinished = partial(path)?;
        match fs::create_dir(&unfinished) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            made => made.map_err(Error::io(&unfinished))?,
        }
        if !fs::symlink_metadata(&unfinished).map_err(Error::io(&unfinished))?.is_dir() {
            return Err(foreign(&unfinished));
        }
        // Only on Unix can a folder be opened, and so locked.
        let lock = if cfg!(unix) { Some(locked(&unfinished, File::open(&unfinished))?) } else { None };
        emptied(&unfinished)?;
        let (path, is_published) = (path.into(), false);
        self.0.push(Part { path, unfinished: unfinished.clone(), is_folder: true, is_published, lock });
        Ok(unfinished)
    }

    /// Gives everything its name, the first at last, and waits until the names are on disk. If one name cannot be given, none is.
    pub fn publish(mut self) -> Result<(), Error> {
        self.0.iter().try_for_each(|part| is_free(&part.path))?;
        for part in self.0.iter_mut().rev() {
            fs::rename(&part.unfinished, &part.path).map_err(Error::io(&part.path))?;
            part.is_published = true;
        }
        for folder in self.0.iter().filter_map(|part| part.path.parent()) {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            // Only on Unix can a folder be synced.
            if cfg!(unix) {
                File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))?;
            }
        }
        self.0.clear();
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        for Part { path, unfinished, is_folder, is_published, lock } in self.0.drain(..) {
            let path = if is_published { path } else { unfinished };
            match is_folder {
                true => drop(emptied(&path).map(|()| fs::remove_dir(&path))),
                false => drop(fs::remove_file(&path)),
            }
            drop(lock);
        }
    }
}

/// Creates a file, or takes what an interrupted import left under its name. A link there, or a device, is refused: writing through it
/// would change another file.
pub fn create(path: &Path) -> Result<File, Error> {
    let is_new = match fs::symlink_metadata(path) {
        Ok(found) if is_plain(&found) => false,
        Ok(_) => return Err(foreign(path)),
        Err(why) if why.kind() == ErrorKind::NotFound => true,
        Err(why) => return Err(Error::io(path)(why)),
    };
    let file = locked(path, File::options().write(true).create_new(is_new).open(path))?;
    file.set_len(0).map_err(Error::io(path))?;
    Ok(file)
}

/// A file or folder that was opened, if no other import has it and it is still the one at its path.
fn locked(path: &Path, opened: std::io::Result<File>) -> Result<File, Error> {
    let other =
        || Error::Usage(format!("another import is writing {path:?}: wait for it, or name another --output"));
    let file = match opened {
        Err(why) if why.kind() == ErrorKind::AlreadyExists => return Err(other()),
        opened => opened.map_err(Error::io(path))?,
    };
    if file.try_lock().is_err() {
        return Err(other());
    }
    let found = fs::symlink_metadata(path).map_err(Error::io(path))?;
    let own = file.metadata().map_err(Error::io(path))?;
    if !is_same(&found, &own) { Err(other()) } else { Ok(file) }
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    one.file_type() == other.file_type()
}

/// True for a file that has no other name.
#[cfg(unix)]
fn is_plain(found: &Metadata) -> bool {
    found.is_file() && std::os::unix::fs::MetadataExt::nlink(found) == 1
}

#[cfg(not(unix))]
fn is_plain(found: &Metadata) -> bool {
    found.is_file()
}

/// The error about what lies under a temporary name and is no import's.
fn foreign(path: &Path) -> Error {
    let why = format!(
        "{path:?} is in the way, and no import made it (a link, a pipe, a device, a folder, or a file with another name): remove it, or name another --output"
    );
    Error::Usage(why)
}

/// Removes the files in a folder of this program, which has no folders.
fn emptied(folder: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let entry = entry.map_err(Error::io(folder))?;
        if entry.file_type().map_err(Error::io(folder))?.is_dir() {
            return Err(foreign(&entry.path()));
        }
        fs::remove_file(entry.path()).map_err(Error::io(&entry.path()))?;
    }
    Ok(())
}

/// Writes a small file into an unfinished folder, and waits until it is on disk.
pub fn write_in(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let path = folder.join(name);
    filled(&path, create(&path)?, bytes)
}

fn filled(path: &Path, mut file: File, bytes: &[u8]) -> Result<(), Error> {
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(path))
}

/// Length and BLAKE3 of a file; the latter as `b3sum` prints it.
pub fn digest(path: &Path) -> Result<(u64, String), Error> {
    let mut hasher = blake3::Hasher::new();
    let file = File::open(path).map_err(Error::io(path))?;
    hasher.update_reader(file).map_err(Error::io(path))?;
    Ok((hasher.count(), hasher.finalize().to_hex().to_string()))
}

/// A .npy file (format 1.0, C order) whose first dimension grows as it is written. Source: numpy.lib.format.
pub struct NpyFile {
    path: PathBuf,
    file: BufWriter<File>,
    descr: &'static str,
    /// The dimensions after the first.
    row: Vec<u64>,
}

impl NpyFile {
    /// Begins an array in an empty file. `descr` is NumPy's name of the elements' type, `row` the shape of an element of the first
    /// dimension.
    pub fn begin(
        (path, file): (PathBuf, File),
        descr: &'static str,
        row: Vec<u64>,
    ) -> Result<NpyFile, Error> {
        let mut npy = NpyFile { path, file: BufWriter::with_capacity(1 << 20, file), descr, row };
        npy.append(&[0; HEADER])?;
        Ok(npy)
    }

    /// Appends elements, little-endian.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Writes the header of an array of `rows` rows, and waits until the file is on disk.
    pub fn finish(mut self, rows: u64) -> Result<(), Error> {
        let header = header(self.descr, rows, &self.row);
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(&header));
        written.and_then(|()| self.file.flush()).map_err(Error::io(&self.path))?;
        self.file.get_ref().sync_all().map_err(Error::io(&self.path))
    }
}

fn header(descr: &str, rows: u64, row: &[u64]) -> Vec<u8> {
    let shape: String = match row {
        [] => format!("{rows},"),
        _ => [&[rows], row].concat().iter().map(u64::to_string).collect::<Vec<String>>().join(", "),
    };
    let mut header = b"\x93NUMPY\x01\0".to_vec();
    header.extend((HEADER as u16 - 10).to_le_bytes());
    header.extend(format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}").as_bytes());
    header.resize(HEADER - 1, b' ');
    header.push(b'\n');
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_numpy_writes_them() {
        let text = "{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }";
        let expected =
            [b"\x93NUMPY\x01\0\x76\0", text.as_bytes(), &vec![b' '; 127 - 10 - text.len()], b"\n"].concat();
        assert_eq!(header("<u2", 7, &[]), expected);
        let longest = header("|u1", u64::MAX, &[3, 1 << 16, 1 << 16]);
        assert!(longest.len() == HEADER && longest.ends_with(b"\n"));
        assert!(
            String::from_utf8_lossy(&longest).contains("'shape': (18446744073709551615, 3, 65536, 65536), }")
        );
    }
}

//! Files that appear whole or not at all: they are written under a temporary name and renamed.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
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

/// The temporary path beside `path` until it is finished.
pub fn partial(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| Error::Usage(format!("{path:?} is no name for a file")))?;
    let mut name = name.to_os_string();
    name.push(".partial");
    Ok(path.with_file_name(name))
}

/// Refuses to overwrite an existing file.
pub fn is_free(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(Error::Usage(format!("{path:?} is there already; remove it, or name another --output"))),
        Err(_) => Ok(()),
    }
}

/// Gives a finished file or folder its name, and waits until the name is on disk.
pub fn publish(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(Error::io(to))?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Only on Unix can a folder be synced.
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io(folder))?;
    }
    Ok(())
}

/// Writes a small file and waits until it is on disk.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    File::create(path)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(Error::io(path))
}

/// Writes small files into a folder, which is removed first if it exists.
pub fn write_folder(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), Error> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::io(folder))?;
    }
    fs::create_dir(folder).map_err(Error::io(folder))?;
    files.iter().try_for_each(|(name, bytes)| write(&folder.join(name), bytes))
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
    /// Begins a file; it is an error if another process is writing it. `descr` is NumPy's name of the elements' type, `row` the
    /// shape of an element of the first dimension.
    pub fn create(path: PathBuf, descr: &'static str, row: Vec<u64>) -> Result<NpyFile, Error> {
        let file =
            File::options().write(true).create(true).truncate(false).open(&path).map_err(Error::io(&path))?;
        if file.try_lock().is_err() {
            return Err(Error::Usage(format!("another import is writing {path:?}")));
        }
        file.set_len(0).map_err(Error::io(&path))?;
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

//! Machine code on disk, so that a kernel is compiled once for a GPU and a compiler, not once for each run.
//!
//! A file's name is the digest of everything that decides its contents: the kernel's text, the compiler's version, the
//! architecture and the options. A file has a digest of its contents, so a damaged, truncated or renamed file is detected and
//! replaced. Files are written under another name and renamed, so that a reader never sees half of one, whoever else writes. A
//! cache that cannot be read or written costs only time: it is no reason not to train.
//!
//! The digest finds accidents, not attackers: whoever may write the folder decides what runs on the GPU. So the folder is made
//! for its owner alone.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::nvrtc::Version;

/// The default limit on a cache's bytes: some thousand kernels.
const BYTES_MAX: u64 = 256 << 20;

/// The environment variable that names the folder.
const VARIABLE: &str = "TIEBREAK_CACHE";

/// The first bytes of a file; then follow the digest of key and code, and the code.
const MAGIC: &[u8; 8] = b"tbcubin1";
const HEAD: usize = MAGIC.len() + blake3::OUT_LEN;

/// A file that is read is marked as used at most this often, because marking is a write.
const MARKED_EVERY: Duration = Duration::from_secs(60 * 60);
/// A temporary file of this age will not be finished.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// The key of a kernel's machine code: everything that decides its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(blake3::Hash);

impl Key {
    /// The key of a text for a compiler (of this version), an architecture such as `sm_90a`, and the compiler's other options.
    pub fn new(text: &str, version: Version, architecture: &str, options: &[&str]) -> Key {
        let mut hasher = blake3::Hasher::new();
        let version = version.to_string();
        let mut part = |bytes: &[u8]| {
            // The length comes first, so that parts cannot run into each other.
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        for bytes in [MAGIC, version.as_bytes(), architecture.as_bytes(), text.as_bytes()] {
            part(bytes);
        }
        options.iter().for_each(|option| part(option.as_bytes()));
        Key(hasher.finalize())
    }
}

/// The origin of machine code.
#[derive(Debug)]
pub enum Origin {
    /// A file of the cache, whole and of this key. Nothing was compiled.
    Disk,
    /// The compiler; the result says if the code was stored.
    Compiler(io::Result<()>),
}

/// A folder with machine code.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    bytes_max: u64,
}

impl Cache {
    /// The cache in `$TIEBREAK_CACHE`, or in `tiebreak/cubin` of the system's folder for caches. Without either, nothing is kept.
    pub fn of_this_user() -> Cache {
        Cache { folder: folder_of_user(|name| std::env::var_os(name)), bytes_max: BYTES_MAX }
    }

    /// A cache of at most so many bytes in this folder, which is made when the first file is stored.
    pub fn at(folder: &Path, bytes_max: u64) -> Cache {
        Cache { folder: Some(folder.to_path_buf()), bytes_max }
    }

    /// The machine code of a key: from disk, or from `compile`, whose result is then stored.
    ///
    /// # Errors
    /// The errors of `compile`.
    pub fn get<E>(
        &self,
        key: Key,
        compile: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(Vec<u8>, Origin), E> {
        if let Some(cubin) = self.read(key) {
            return Ok((cubin, Origin::Disk));
        }
        let cubin = compile()?;
        let kept = self.keep(key, &cubin);
        Ok((cubin, Origin::Compiler(kept)))
    }

    fn path(&self, key: Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.cubin", key.0.to_hex())))
    }

    /// The stored code of a key, if the file is intact.
    fn read(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let mut bytes = fs::read(&path).ok()?;
        let whole = bytes.len() >= HEAD && bytes[..HEAD] == head(key, &bytes[HEAD..]);
        if !whole {
            // A damaged file will be overwritten.
            return None;
        }
        let marked = fs::metadata(&path).and_then(|data| data.modified());
        if marked.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > MARKED_EVERY)) {
            // The time of the last use decides which file goes first. A folder that cannot be written keeps its order.
            let _ = fs::File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(SystemTime::now()));
        }
        bytes.drain(..HEAD);
        Some(bytes)
    }

    fn keep(&self, key: Key, cubin: &[u8]) -> io::Result<()> {
        let Some((folder, path)) = self.folder.as_ref().zip(self.path(key)) else { return Ok(()) };
        create(folder)?;
        // Other threads and processes may write the same file at the same time: the last one stays, and all are equal.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let begun = folder.join(format!("{}-{}-{number}.begun", key.0.to_hex(), std::process::id()));
        let written = fs::write(&begun, [&head(key, cubin), cubin].concat());
        let kept = written.and_then(|()| fs::rename(&begun, &path));
        if kept.is_err() {
            let _ = fs::remove_file(&begun);
        }
        kept.and_then(|()| self.bound(&path))
    }

    /// Removes the files that were not used for longest, until the cache is within bounds; the newest stays.
    fn bound(&self, newest: &Path) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let (mut files, mut bytes) = (Vec::new(), 0u64);
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            // Another process may have removed the file since.
            let Ok(data) = fs::metadata(&path) else { continue };
            let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("cubin") if data.is_file() => {
                    bytes += data.len();
                    files.push((used, data.len(), path));
                }
                Some("begun") if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                    let _ = fs::remove_file(&path);
                }
                // The file is not ours: somebody may have named a folder that has other uses.
                _ => {}
            }
        }
        files.sort();
        for (_, len, path) in files {
            if bytes <= self.bytes_max {
                break;
            }
            if path != newest && fs::remove_file(&path).is_ok() {
                bytes -= len;
            }
        }
        Ok(())
    }
}

/// The first bytes of a file with this machine code.
fn head(key: Key, cubin: &[u8]) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    // The digest covers the key, so that a renamed file is not accepted.
    hasher.update(key.0.as_bytes()).update(cubin);
    [MAGIC.as_slice(), hasher.finalize().as_bytes()].concat()
}

/// Makes a folder for its owner alone, where the system supports that.
fn create(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// The cache folder, by these environment variables.
fn folder_of_user(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = path(VARIABLE) {
        return Some(given);
    }
    let caches = if cfg!(windows) {
        path("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        path("HOME").map(|home| home.join("Library/Caches"))
    } else {
        // Relative paths in this variable are to be ignored, by the specification that defines it.
        let given = path("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
        given.or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    Some(caches?.join("tiebreak").join("cubin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(variables: &[(&str, &str)]) -> Option<PathBuf> {
        folder_of_user(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_folder_follows_the_environment() {
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[(VARIABLE, "/here"), ("HOME", "/home")]), Some("/here".into()));
        if cfg!(target_os = "linux") {
            let home = Some("/home/.cache/tiebreak/cubin".into());
            assert_eq!(folder(&[("HOME", "/home")]), home);
            assert_eq!(folder(&[("HOME", "/home"), (VARIABLE, ""), ("XDG_CACHE_HOME", "relative")]), home);
            let given = folder(&[("HOME", "/home"), ("XDG_CACHE_HOME", "/caches")]);
            assert_eq!(given, Some("/caches/tiebreak/cubin".into()));
        }
    }
}

//! The files that a job names: the folders they may lie in, and the kinds that are never taken.
//!
//! A trainer of somebody else's job publishes a copy of the job's data. So a job reaches only the files in its own folder and in
//! a folder that the trainer allows. A path that leaves both is refused, whether by `..`, by being absolute or by a symbolic
//! link.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::error::RunError;

/// The most bytes of a file that is searched for a private key line by line; in a longer file only the first line is examined.
const KEY_FILE_MAX: u64 = 1 << 16;

/// A job file's path, and the folders in which the files that it names may lie.
#[derive(Clone, Debug)]
pub struct JobFiles {
    job: PathBuf,
    /// Canonical paths: the job's folder, and the folder that the trainer allows.
    roots: Vec<PathBuf>,
}

impl JobFiles {
    /// The reach of a job file: its own folder, and `data_root` if one is given.
    ///
    /// # Errors
    /// If a folder is not there.
    pub fn new(job: &Path, data_root: Option<&Path>) -> Result<JobFiles, RunError> {
        let folder = match folder_of(job) {
            empty if empty.as_os_str().is_empty() => Path::new("."),
            folder => folder,
        };
        let mut roots = vec![folder.canonicalize().map_err(RunError::io(folder))?];
        if let Some(root) = data_root {
            let canonical = root.canonicalize().and_then(|canonical| canonical.read_dir().map(|_| canonical));
            roots
                .push(canonical.map_err(|error| {
                    RunError::Refused(format!("--data-root {}: {error}", root.display()))
                })?);
        }
        Ok(JobFiles { job: job.to_path_buf(), roots })
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
    /// If the path lies outside of the folders that the job may reach.
    pub fn path(&self, key: &str, name: &str) -> Result<PathBuf, RunError> {
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

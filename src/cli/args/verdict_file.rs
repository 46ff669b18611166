//! Verdicts that are written: never over another one, and somewhere else if the place that was asked for cannot be written.

use std::fs;
use std::path::{Path, PathBuf};

use tiebreak_dispute::verdict::{VERDICT_MAX, Verdict};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::{self, Disk};

/// The most verdicts of one name: `verdict.json`, `verdict-2.json`, and so on.
const NUMBER_MAX: u32 = 1000;

/// Where a verdict lies, or why it lies nowhere.
pub struct Written {
    /// The file, if it could be written anywhere.
    pub file: Option<PathBuf>,
    /// Why it is not where it should be, in words.
    pub problem: Option<String>,
}

/// `path` with a number before its ending, from the second on.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return path.to_path_buf();
    }
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// Writes a verdict to `path`, or to the first numbered name beside it that nothing else has. A file with the same bytes is left as
/// it is.
///
/// # Errors
/// If the system refuses, or a thousand other files have these names.
pub fn save(path: &Path, verdict: &Verdict) -> Result<PathBuf, RunError> {
    save_bytes(path, &verdict.to_bytes())
}

/// [`save`] for a verdict of any kind.
///
/// # Errors
/// As [`save`].
pub fn save_bytes(path: &Path, bytes: &[u8]) -> Result<PathBuf, RunError> {
    for number in 1..=NUMBER_MAX {
        let file = numbered(path, number);
        if fs::symlink_metadata(&file).is_ok() {
            match disk::read(&file, VERDICT_MAX) {
                Ok(there) if there == bytes => return Ok(file),
                _ => continue,
            }
        }
        let absolute = std::path::absolute(&file).map_err(RunError::io(&file))?;
        Disk::default().replace(&absolute, bytes)?;
        return Ok(file);
    }
    Err(RunError::Refused(format!("{} and {NUMBER_MAX} numbered files beside it are taken", path.display())))
}

/// A verdict as one text in JSON: its file has one encoding, which an object within other JSON would not keep.
pub fn text(verdict: &Verdict) -> String {
    String::from_utf8_lossy(&verdict.to_bytes()).into_owned()
}

/// Saves a verdict; where that cannot be, in the system's folder for temporary files. A verdict is worth the whole audit.
pub fn save_anywhere(path: &Path, verdict: &Verdict) -> Written {
    let error = match save(path, verdict) {
        Ok(file) => return Written { file: Some(file), problem: None },
        Err(error) => error,
    };
    let elsewhere = std::env::temp_dir().join("tiebreak-verdict.json");
    match save(&elsewhere, verdict) {
        Ok(file) => {
            let problem = format!("the verdict could not be written ({error}); it is in {}", file.display());
            Written { file: Some(file), problem: Some(problem) }
        }
        Err(second) => {
            let problem =
                format!("the verdict could not be written ({error}; {second}); audit with --json prints it");
            Written { file: None, problem: Some(problem) }
        }
    }
}

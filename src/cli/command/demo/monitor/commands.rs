//! The inspector of the monitoring demo: the very commands that the reader is given, each as a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cli::view::report::{Exit, Failure, Printer};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::shell;

/// Commands of this program in the demo's folder.
pub struct Commands {
    printer: Printer,
    program: PathBuf,
    folder: PathBuf,
}

/// The words of a command.
pub fn words(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

/// A command as a shell takes it, without the program's name.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| shell::word(word)).collect::<Vec<_>>().join(" ")
}

impl Commands {
    /// Commands in this folder.
    ///
    /// # Errors
    /// If the system does not say which program runs.
    pub fn new(printer: Printer, folder: &Path) -> Result<Commands, Failure> {
        let unknown = |error| {
            Failure::new(Exit::Undecided, format!("the system does not say which program runs: {error}"))
        };
        let program = std::env::current_exe().map_err(unknown)?;
        Ok(Commands { printer, program, folder: folder.to_path_buf() })
    }

    /// Shows a command, runs it with `--json`, and keeps its result as a file. Returns the result.
    ///
    /// # Errors
    /// If the command ends with a code that is not a result's.
    pub fn shown(&self, words: &[String], keep: &str) -> Result<Value, Failure> {
        self.say(&line(words));
        self.run(words, Some(keep))
    }

    /// Shows a command.
    pub fn say(&self, line: &str) {
        self.printer.say(format!("  $ tiebreak {line}"));
    }

    /// Runs a command as [`Commands::shown`] does, unseen; the result is kept if a file is named.
    ///
    /// # Errors
    /// As [`Commands::shown`].
    pub fn run(&self, words: &[String], keep: Option<&str>) -> Result<Value, Failure> {
        let failed = |why: String| Failure::new(Exit::Undecided, format!("tiebreak {}: {why}", line(words)));
        let _working =
            self.printer.working(&format!("tiebreak {}", words[..words.len().min(2)].join(" ")), None);
        let output = Command::new(&self.program)
            .args(words)
            .arg("--json")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(format!("it cannot be started: {error}")))?;
        let is_result = [Exit::Match, Exit::Diverges, Exit::Undecided]
            .iter()
            .any(|exit| output.status.code() == Some(*exit as i32));
        let value = serde_json::from_slice(&output.stdout);
        let (true, Ok(value)) = (is_result, value) else {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, said.trim_end())));
        };
        if let Some(keep) = keep {
            let path = self.folder.join(keep);
            let path = std::path::absolute(&path).map_err(RunError::io(&path))?;
            Disk::default().replace(&path, &output.stdout)?;
        }
        Ok(value)
    }
}

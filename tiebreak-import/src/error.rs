//! Errors, by who is to blame; the exit codes are those of `tiebreak`.

use std::io;
use std::path::Path;

/// An error, as a sentence for the user of the import.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command cannot be carried out as it was given.
    #[error("{0}")]
    Usage(String),
    /// This machine could not read or write.
    #[error("{0}")]
    Machine(String),
    /// A file is not what it should be.
    #[error("{0}")]
    Malformed(String),
}

impl Error {
    /// The command's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Machine(_) => 3,
            Error::Malformed(_) => 4,
        }
    }

    /// The error that the system refused to read or write `path`, or that it is no plain file; for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |why| match why.kind() {
            io::ErrorKind::InvalidData => Error::malformed(path, why),
            _ => Error::Machine(format!("{path:?}: {why}")),
        }
    }

    /// The error that the contents of `path` are not what they should be.
    pub fn malformed(path: &Path, why: impl std::fmt::Display) -> Error {
        Error::Malformed(format!("{path:?}: {why}"))
    }
}

impl From<tiebreak_tokenizer::Error> for Error {
    fn from(error: tiebreak_tokenizer::Error) -> Error {
        match error {
            tiebreak_tokenizer::Error::Io(..) => Error::Machine(error.to_string()),
            tiebreak_tokenizer::Error::Malformed(..) => Error::Malformed(error.to_string()),
        }
    }
}

//! Keys that arguments name: a private one as a file, a public one as a file or its text.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_run::run::{RunError, disk, shell};

/// The most bytes of a key file.
const KEY_MAX: u64 = 4096;

/// The path of a private key's public one: beside it.
pub fn public_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// The option by which another command knows who signed a run: the file beside a private key, else the key's text.
pub fn trainer_option(private: Option<&Path>, text: Option<&str>) -> String {
    let beside = private.map(public_path).filter(|path| path.exists()).map(|path| shell::path(&path));
    let key = beside.or(text.map(shell::word));
    key.map_or(String::new(), |key| format!(" --trainer-key {key}"))
}

/// Reads a private key file.
pub fn read_private(path: &Path) -> Result<PrivateKey, Failure> {
    let text = disk::read_text(path, KEY_MAX).map_err(named)?;
    if !is_private(&text) && PublicKey::from_text(&text).is_ok() {
        let why = "is the public key, which signs nothing: give the private one of the pair";
        return Err(Failure::new(Exit::Usage, format!("{} {why}", path.display())));
    }
    PrivateKey::from_text(&text).map_err(|error| RunError::malformed(path, error).into())
}

/// True if a key file's text says that it is private.
fn is_private(text: &str) -> bool {
    text.trim_start().starts_with("PRIVATE+KEY+")
}

/// A public key: a file, or the text itself.
pub fn read_public(argument: &str) -> Result<PublicKey, Failure> {
    read(argument, PublicKey::from_text)
}

/// The public key of a witness, also in the form that witnesses publish (C2SP tlog-cosignature).
pub fn read_witness(argument: &str) -> Result<PublicKey, Failure> {
    read(argument, PublicKey::from_witness_text)
}

fn read(argument: &str, parse: fn(&str) -> Result<PublicKey, Malformed>) -> Result<PublicKey, Failure> {
    let path = Path::new(argument);
    // A private key that is quoted in an error is one that is told to everybody who reads the error.
    let private = |named: &str, public: &str| {
        let why = format!("{named} is a private key, which is for nobody but its owner: give {public}");
        Err(Failure::new(Exit::Usage, why))
    };
    if is_private(argument) {
        return private("this", "the public one of the pair");
    }
    if path.exists() {
        let text = disk::read_text(path, KEY_MAX)?;
        if is_private(&text) {
            return private(argument, &public_path(path).display().to_string());
        }
        return parse(&text).map_err(|error| RunError::malformed(path, error).into());
    }
    parse(argument).map_err(|error| {
        Failure::new(Exit::Usage, format!("{argument:?} is no key file and no key: {error}"))
    })
}

/// Writes a file that is not there yet, with mode 0600 if it is private.
pub fn write_new(path: &Path, text: &str, private: bool) -> Result<(), RunError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = private;
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(RunError::io(path))
}

/// Refuses a path of a private key, a nonce or an opening in a run's folder, which is published.
pub fn refuse_in_run(path: &Path) -> Result<(), Failure> {
    let absolute = std::path::absolute(path).map_err(RunError::io(path))?;
    if absolute.ancestors().skip(1).any(|folder| folder.join("run.json").exists()) {
        let why = "is in a run's folder, which is published: what others may not read does not belong there";
        return Err(Failure::new(Exit::Usage, format!("{} {why}", path.display()))
            .help("name a file outside of the run's folder"));
    }
    Ok(())
}

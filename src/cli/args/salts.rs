//! The salt key of a run whose commitments hide: the file that an option names, or the one beside the run.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::limits::Limits;
use super::place::run_at;
use super::random::random;
use super::terms::beside;
use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_record::commit::salts::SaltKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{RunError, disk, names, shell};

/// The most bytes of a key file.
const KEY_MAX: u64 = 4096;

/// The salt key.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Hiding")]
pub struct SaltArgs {
    /// Salt key of a run whose commitments hide; by default RUN.salt-key.
    ///
    /// `commit.scheme = 1` makes a run's commitments hide. `tiebreak train` writes the key, and whoever audits needs it.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub salt_key: Option<PathBuf>,
}

impl SaltArgs {
    /// The file that is named, else the one beside a run.
    pub fn path(&self, run: &Path) -> PathBuf {
        // Without a slash at the end.
        let folder: PathBuf = run.components().collect();
        self.salt_key.clone().unwrap_or_else(|| beside(&folder, ".salt-key"))
    }

    /// The option again, as another command needs it.
    pub fn option(&self) -> String {
        self.salt_key.as_ref().map_or(String::new(), |path| format!(" --salt-key {}", shell::path(path)))
    }

    /// Opens a run by its salt key, if it hides and the key is there; a run that hides is opened without it else.
    ///
    /// # Errors
    /// If the run or the key cannot be read, or do not belong together.
    pub fn open(&self, limits: &Limits, run: &Path) -> Result<Run, Failure> {
        let by = |path: &Path| Ok::<_, Failure>(run_at(run, Salts::Key(read(path)?))?);
        let opened = match &self.salt_key {
            Some(path) => by(path)?,
            None => {
                let closed = run_at(run, Salts::Closed)?;
                let path = self.path(run);
                match closed.computation.is_closed() && path.exists() {
                    true => by(&path)?,
                    false => closed,
                }
            }
        };
        Ok(opened.with_memory(limits.memory()))
    }

    /// A new salt key for a run that is to be begun, in a file of its own; `None` if the commitments of the run do not hide.
    ///
    /// # Errors
    /// If the run does not hide and a file is named, or the file is there already, would lie in the run, or cannot be written.
    pub fn begun(&self, hides: bool, run: &Path) -> Result<Option<(SaltKey, PathBuf)>, Failure> {
        if !hides {
            return match &self.salt_key {
                None => Ok(None),
                Some(path) => {
                    let why = format!("--salt-key {}: the job's commitments do not hide", path.display());
                    let help = "set commit.scheme = 1 in the job, or leave --salt-key out";
                    Err(Failure::new(Exit::Usage, why).help(help))
                }
            };
        }
        let path = self.path(run);
        let absolute = |path: &Path| std::path::absolute(path).map_err(RunError::io(path));
        if absolute(&path)?.starts_with(absolute(run)?)
            || path.parent().is_some_and(|folder| folder.join(names::RUN_JSON).exists())
        {
            let why = format!(
                "{} is in a run's folder, which is published: a salt key does not belong there",
                path.display()
            );
            return Err(Failure::new(Exit::Usage, why).help("name a file outside of the run's folder"));
        }
        let key = SaltKey::new(random()?);
        write_new(&path, &key)?;
        Ok(Some((key, path)))
    }
}

/// Reads a key file.
fn read(path: &Path) -> Result<SaltKey, Failure> {
    let text = disk::read_text(path, KEY_MAX).map_err(named)?;
    SaltKey::from_text(&text).map_err(|error| RunError::malformed(path, error).into())
}

/// Writes a key file that only its owner can read, whole or not at all, and never over another file.
fn write_new(path: &Path, key: &SaltKey) -> Result<(), Failure> {
    let partial = beside(path, ".partial");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // One that a crash left may have other rights.
    let _ = fs::remove_file(&partial);
    let text = format!("{}\n", key.to_text());
    let written = options.open(&partial).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    // A link is refused where a file is there, as a renaming is not.
    let linked = written.and_then(|()| fs::hard_link(&partial, path));
    let _ = fs::remove_file(&partial);
    linked.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let why = format!("{} is there already, and each run has a salt key of its own", path.display());
            let help = "go on with the run that it is of (--resume), or name another file with --salt-key";
            Failure::new(Exit::Usage, why).help(help)
        }
        _ => RunError::io(path)(error).into(),
    })?;
    #[cfg(unix)]
    if let Some(folder) = std::path::absolute(path).ok().as_deref().and_then(Path::parent) {
        fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(RunError::io(folder))?;
    }
    Ok(())
}

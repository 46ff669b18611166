//! Remembers the data whose ids and labels were checked, so that the next run of the same large files need not check them again.
//!
//! The cache holds empty files; a name is the digest of the data's manifest and of where the model's bounds apply. A forger of
//! such a file gets a run that fails at a sample's step, as it would have failed without the check.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::dir::Run;
use super::error::RunError;
use super::evaluation;
use tiebreak_job::data::Dataset;
use tiebreak_job::manifest::files_root;
use tiebreak_record::commit::digest::Digest;

/// The environment variable with the folder of everything that `tiebreak` caches for a user.
const VARIABLE: &str = "TIEBREAK_CACHE";
/// Data of fewer bytes are always checked again: the check takes no longer than the lookup.
const KEPT_FROM: u64 = 64 << 20;

/// The progress of a check: bytes done, and their total.
pub type Watch<'a> = &'a mut dyn FnMut(u64, u64);

/// The cache of data that were checked.
pub struct Checked {
    folder: Option<PathBuf>,
    kept_from: u64,
}

impl Checked {
    /// The cache of this user, in `$TIEBREAK_CACHE` or in the system's folder for caches. Without either, nothing is kept.
    pub fn of_this_user() -> Checked {
        let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || Some(named("HOME")?.join(".cache"));
        let usual = || {
            Some(named("XDG_CACHE_HOME").or_else(|| named("LOCALAPPDATA")).or_else(home)?.join("tiebreak"))
        };
        let folder = named(VARIABLE).or_else(usual).map(|folder| folder.join("checked-data"));
        Checked { folder, kept_from: KEPT_FROM }
    }

    /// The cache in this folder, for data of at least `kept_from` bytes.
    pub fn at(folder: &Path, kept_from: u64) -> Checked {
        Checked { folder: Some(folder.to_path_buf()), kept_from }
    }

    /// Checks every token id and every label of data with this manifest, unless the cache has it. `names`: the names that the job
    /// gives the files of a run.
    ///
    /// # Errors
    /// If an id or label is not below the model's bound, or a file cannot be read or is not the manifest's.
    pub fn check(
        &self,
        dataset: &mut Dataset,
        root: &Digest,
        names: Option<&[&str]>,
        watch: Watch,
    ) -> Result<(), RunError> {
        let all = dataset.scanned_bytes();
        let name = |scanned: String| {
            let what = format!("tiebreak checked data 1\n{root}\n{scanned}");
            blake3::hash(what.as_bytes()).to_hex().to_string()
        };
        let kept = self.folder.as_ref().filter(|_| all >= self.kept_from);
        let kept = kept.map(|folder| dataset.scanned().map(|scanned| folder.join(name(scanned))));
        if all == 0 || kept.as_ref().is_some_and(|[kept, _]| kept.exists()) {
            return Ok(());
        }
        dataset.scan(names, &mut |done| watch(done, all))?;
        for kept in kept.into_iter().flatten() {
            // If the folder cannot be written, the next run checks again; that is no reason not to train.
            let _ = kept.parent().map(fs::create_dir_all);
            let _ = fs::write(kept, "");
        }
        Ok(())
    }

    /// Checks the data of a run, and the data that the run evaluates with.
    ///
    /// # Errors
    /// As [`Checked::check`], and if the data are not there.
    pub fn check_run(&self, run: &Run, watch: Watch) -> Result<(), RunError> {
        let names = run.job().data.files.paths();
        self.check(&mut run.dataset()?, &files_root(&run.file.data), Some(&names), watch)?;
        let Some(files) = run.job().evaluation.as_ref().and_then(|evaluation| evaluation.files.as_ref())
        else {
            return Ok(());
        };
        let mut data = evaluation::of_run(run)?;
        let names: Vec<&str> = files.iter().map(String::as_str).collect();
        self.check(&mut data.dataset, &data.root, Some(&names), watch)
    }
}

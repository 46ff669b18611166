//! `--cache`: a folder here that keeps what was read of a run at an address.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::cli::view::report::{Exit, Failure, Printer, bytes_text};
use tiebreak_remote::cache::Cache;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, Store, shell};

#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Keep what is read of a run or a job at an address in this folder, for later commands.
    ///
    /// The folder keeps data, checkpoints, traces, files of weights and the released model: files that a digest decides. Nobody trusts it:
    /// the bytes are checked like a server's. Several commands may share it.
    #[arg(long = "cache", value_name = "DIR", hide_short_help = true)]
    cache: Option<PathBuf>,
    /// Most MiB in the folder of --cache: files that were read least recently go first.
    #[arg(
        long = "cache-size",
        value_name = "MIB",
        default_value_t = 16384,
        requires = "cache",
        value_parser = clap::value_parser!(u64).range(2..),
        hide_short_help = true
    )]
    cache_size: u64,
    /// The cache, once a run was opened.
    #[arg(skip)]
    made: Arc<OnceLock<Arc<Cache>>>,
}

impl CacheArgs {
    /// The run, read through the cache if there is one.
    ///
    /// # Errors
    /// If the run and its data lie in folders here, or the folder cannot be made.
    pub fn around(&self, run: Run) -> Result<Run, Failure> {
        let Some(folder) = &self.cache else { return Ok(run) };
        if run.is_on_disk() {
            let why = "--cache is for a run or data at an address, and both are in folders here";
            return Err(Failure::new(Exit::Usage, why).help("leave --cache out"));
        }
        let cache = self.made(folder)?;
        Ok(run.through(|store| cache.around(store)))
    }

    /// The store at an address, read through the cache if there is one.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn before(&self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, RunError> {
        match &self.cache {
            Some(folder) => Ok(self.made(folder)?.around(store)),
            None => Ok(store),
        }
    }

    /// Refuses a cache through which a new run read nothing.
    ///
    /// # Errors
    /// If the job names no file at an address.
    pub fn is_of_use(&self) -> Result<(), Failure> {
        if self.cache.is_none() || self.made.get().is_some() {
            return Ok(());
        }
        let why =
            "--cache is for data, weights or a run at an address, and the job names files in folders alone";
        Err(Failure::new(Exit::Usage, why).help("leave --cache out"))
    }

    /// Refuses a cache of a command that reads nothing at an address.
    ///
    /// # Errors
    /// If one is given.
    pub fn refused(&self, why: &str) -> Result<(), Failure> {
        if self.cache.is_some() { Err(Failure::new(Exit::Usage, why)) } else { Ok(()) }
    }

    /// The options, as a shell takes them.
    pub fn options(&self) -> Vec<String> {
        let Some(folder) = &self.cache else { return Vec::new() };
        vec![format!("--cache {}", shell::path(folder)), format!("--cache-size={}", self.cache_size)]
    }

    /// The cache, made at the first call.
    fn made(&self, folder: &Path) -> Result<Arc<Cache>, RunError> {
        if let Some(cache) = self.made.get() {
            return Ok(cache.clone());
        }
        let cache = Cache::at(folder, self.cache_size.saturating_mul(1 << 20))?;
        Ok(self.made.get_or_init(|| cache).clone())
    }

    /// Says of how many files the cache had bytes, about which an audit says nothing of the address.
    pub fn not_checked(&self) -> Option<String> {
        let count = self.made.get()?.told().unasked;
        let files = if count == 1 { "1 file".into() } else { format!("{count} files") };
        (count > 0).then(|| format!("what the address has of {files} that were read from the cache"))
    }

    /// Says what came from the cache, and what was wrong with it.
    pub fn say(&self, printer: Printer) {
        let Some(cache) = self.made.get() else { return };
        let (told, place) = (cache.told(), cache.folder().display().to_string());
        let [read, fetched] = [told.read, told.fetched].map(bytes_text);
        printer.say(format!("cache {place}: {read} were read from it, {fetched} came from the address"));
        for (count, what) in [
            (told.damaged, "blocks in it were damaged"),
            (told.wrong, "files in it were not those that the run's digests promise"),
        ] {
            if count > 0 {
                printer.problem(&format!("cache {place}: {count} {what}, so the address was asked"));
            }
        }
        if let Some(why) = told.refused {
            printer.problem(&format!("cache {place}: it takes no more ({why})"));
        }
    }
}

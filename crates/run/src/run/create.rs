//! Creates a run: whole, or not at all.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::companions::Companions;
use super::dir::RunFile;
use super::error::RunError;
use super::store::Store;
use super::stored::Stored;
use super::{checkpoint, data, names};
use tiebreak_contract::program::step::StateTensor;

/// Bytes of data that are copied at once.
const COPY_BYTES: u64 = 1 << 23;

/// Checks that a new run can be made in a store: the store is empty, or holds only what an interrupted creation leaves.
/// `run.json` is written last, so no file that a trainer writes later can be there without it. `has_network` is true if the new run keeps
/// a network file.
///
/// # Errors
/// If the store holds a run, or something else.
pub fn check_unused(store: &dyn Store, has_network: bool) -> Result<(), RunError> {
    let empty = |folder: &str| store.list(folder).is_ok_and(|names| names.is_empty());
    let only_initial = || {
        let initial = names::checkpoint(0);
        let initial = initial.rsplit('/').next().unwrap_or_default();
        let fine = |name: &String| *name == initial || *name == names::partial(initial);
        store.list(names::CHECKPOINTS).is_ok_and(|names| names.iter().all(fine))
    };
    for name in store.list("").unwrap_or_default() {
        let name = name.trim_end_matches('/');
        let fine = match name {
            names::DATA | names::EVALUATION | names::COMPANIONS => true,
            names::JOB | names::PROGRAM => true,
            names::NETWORK => has_network,
            names::HEADS | names::TRACES | names::LOGS => empty(name),
            // A run that begins from weights has its initial state before it has a run.json.
            names::CHECKPOINTS => only_initial(),
            other => other.starts_with('.') && other.ends_with(".partial"),
        };
        if !fine {
            let why = format!("{} holds {name}, but no run.json: choose another folder", store.place());
            return Err(RunError::Refused(why));
        }
    }
    Ok(())
}

/// Creates a run with its data, job and `run.json`. The last is written last, so a run exists completely or not at all.
///
/// # Errors
/// If a file cannot be read or written. Then the new files are removed, and everything that was there before is left.
pub fn create(store: &Arc<dyn Store>, new: &NewRun) -> Result<(), RunError> {
    let data = (0..new.trees.len()).flat_map(|number| [names::data_tree(number), names::data_file(number)]);
    let others = [names::JOB, names::PROGRAM, names::NETWORK, new.named].map(str::to_string);
    let beside = new.companions.iter().map(|(name, _)| names::companion(name));
    let place = PathBuf::from(store.place());
    let all = data.chain(others).chain([names::checkpoint(0)]).chain(beside);
    let absent: Vec<Stored> =
        all.map(|name| Stored::new(store, &place, name)).filter(|file| !file.is_here()).collect();
    let written = write(store, &place, new);
    if written.is_err() {
        // The first error is the one to report.
        for file in absent {
            let _ = file.remove();
        }
        store.take_back();
    }
    written
}

/// The contents of a new run.
pub struct NewRun<'a> {
    /// The name of the file that is written last: `run.json`, or that of a recording.
    pub named: &'a str,
    /// The contents of `run.json`.
    pub file: &'a RunFile,
    /// The job file's text.
    pub job_text: &'a str,
    /// The bytes of the run's program.
    pub program: &'a [u8],
    /// The text of the network file that gave the program, if the run keeps it.
    pub network: Option<&'a str>,
    /// True if the run is of the logged profile.
    pub logged: bool,
    /// The bytes of the trees of the data files, in the manifest's order; empty for a recording.
    pub trees: &'a [Vec<u8>],
    /// The files that the data files are copied from, in the same order; empty if the files stay in place.
    pub copied: Vec<Stored>,
    /// The initial state, with its table, if it does not follow from the seed.
    pub initial: Option<(&'a [StateTensor], &'a [Vec<u8>])>,
    /// The companion files of its model.
    pub companions: &'a Companions,
}

fn write(store: &Arc<dyn Store>, place: &Path, new: &NewRun) -> Result<(), RunError> {
    let NewRun { file, job_text, program, trees, copied, initial, .. } = new;
    let at = |name: &str| Stored::new(store, place, name);
    let companions = new.companions.iter().next().map(|_| names::COMPANIONS);
    let logs = new.logged.then_some(names::LOGS);
    let folders = [names::DATA, names::HEADS, names::CHECKPOINTS, names::TRACES].into_iter();
    for folder in folders.chain(companions).chain(logs) {
        store.prepare(folder).map_err(RunError::io(&place.join(folder)))?;
    }
    if let Some((table, state)) = initial {
        checkpoint::write::<RunError>(at(&names::checkpoint(0)), table, |show| {
            state.iter().for_each(|tensor| show(tensor));
            Ok(())
        })?;
    }
    for (number, tree) in trees.iter().enumerate() {
        at(&names::data_tree(number)).replace(tree)?;
    }
    for (number, (manifest, source)) in file.data.iter().zip(copied).enumerate() {
        let mut from = data::contents_of(source)?;
        at(&names::data_file(number)).replace_by(|file| {
            // Copies exactly the promised bytes, piece by piece; a file that changes meanwhile no longer fits its manifest.
            let mut left = manifest.bytes;
            let mut piece = vec![0; COPY_BYTES.min(left.max(1)) as usize];
            while left > 0 {
                let len = left.min(COPY_BYTES) as usize;
                from.read_exact(&mut piece[..len])?;
                file.write_all(&piece[..len])?;
                left -= len as u64;
            }
            Ok(())
        })?;
    }
    for (name, bytes) in new.companions.iter() {
        at(&names::companion(name)).replace(bytes)?;
    }
    at(names::JOB).replace(job_text.as_bytes())?;
    at(names::PROGRAM).replace(program)?;
    if let Some(network) = new.network {
        at(names::NETWORK).replace(network.as_bytes())?;
    }
    at(new.named).replace(file.text().as_bytes())
}

//! How a run begins on disk: whole, or not at all.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::companions::Companions;
use super::dir::RunFile;
use super::disk::{self, Disk};
use super::error::RunError;
use super::paths::RunPaths;
use super::{checkpoint, data};
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::job::manifest::GroupTree;

/// Bytes of data that are copied at once.
const COPY_BYTES: u64 = 1 << 23;

/// Creates a run's folder with its data, job and `run.json` (written last, so that a run is there or not).
///
/// # Errors
/// If a file cannot be read or written. Then what was made is removed, and what was there before is left.
pub fn create(disk: &Disk, layout: &RunPaths, new: &NewRun) -> Result<(), RunError> {
    let mut folders = vec![layout.data(), layout.heads(), layout.checkpoints(), layout.traces()];
    folders.extend(new.companions.names().next().map(|_| layout.companions()));
    if new.logged {
        folders.push(layout.logs());
    }
    let data = (0..new.data.len()).flat_map(|number| [layout.data_tree(number), layout.data_file(number)]);
    let others = [layout.job(), layout.program(), layout.checkpoint(0), layout.run_json()];
    let beside = new.companions.names().map(|name| layout.companions().join(name));
    let files: Vec<PathBuf> = data.chain(others).chain(beside).collect();
    let absent = |path: &&Path| fs::symlink_metadata(path).is_err();
    // A write that fails leaves a part of it, and a folder cannot go before what is in it.
    let partial: Vec<PathBuf> = files.iter().map(|path| disk::partial(path)).collect();
    let above = layout.root.ancestors().take_while(|path| !path.as_os_str().is_empty());
    let (files, folders_made): (Vec<&Path>, Vec<&Path>) = (
        files.iter().chain(&partial).map(PathBuf::as_path).filter(absent).collect(),
        folders.iter().map(PathBuf::as_path).chain(above).filter(absent).collect(),
    );
    let written = write(disk, layout, new, &folders);
    if written.is_err() {
        // The first error is the one to report.
        for path in files {
            let _ = disk.remove(path);
        }
        for path in folders_made {
            let _ = disk.remove_folder(path);
        }
    }
    written
}

/// What a run is made of.
pub struct NewRun<'a> {
    /// What `run.json` is to say.
    pub file: &'a RunFile,
    /// The job file's text.
    pub job_text: &'a str,
    /// The bytes of the run's program.
    pub program: &'a [u8],
    /// Whether the run is of the logged profile.
    pub logged: bool,
    /// Where the data files are copied from, in the manifest's order, with their trees.
    pub data: &'a [(PathBuf, GroupTree)],
    /// Whether data files are copied.
    pub copied: bool,
    /// The initial state, with its table, if it does not follow from the seed.
    pub initial: Option<(&'a [StateTensor], &'a [Vec<u8>])>,
    /// What makes its model usable.
    pub companions: &'a Companions,
}

fn write(disk: &Disk, layout: &RunPaths, new: &NewRun, folders: &[PathBuf]) -> Result<(), RunError> {
    let NewRun { file, job_text, program, data, copied, initial, .. } = new;
    disk.create_folder(&layout.root)?;
    for folder in folders {
        disk.create_folder(folder)?;
    }
    if let Some((table, state)) = initial {
        checkpoint::write::<RunError>(disk, &layout.checkpoint(0), table, |show| {
            state.iter().for_each(|tensor| show(tensor));
            Ok(())
        })?;
    }
    for (number, (manifest, (source, tree))) in file.data.iter().zip(*data).enumerate() {
        disk.replace(&layout.data_tree(number), &tree.encode())?;
        if !copied {
            continue;
        }
        let target = layout.data_file(number);
        let mut from = data::contents(source)?;
        disk.replace_by(&target, |file| {
            // What was promised and no more, piece by piece; a file that changes meanwhile no longer fits its manifest.
            let mut left = manifest.bytes;
            let mut piece = vec![0; COPY_BYTES.min(left.max(1)) as usize];
            while left > 0 {
                let len = left.min(COPY_BYTES) as usize;
                from.read_exact(&mut piece[..len])?;
                disk.write(file, &piece[..len])?;
                left -= len as u64;
            }
            Ok(())
        })?;
    }
    new.companions.write(disk, &layout.companions(), &[])?;
    disk.replace(&layout.job(), job_text.as_bytes())?;
    disk.replace(&layout.program(), program)?;
    disk.replace(&layout.run_json(), file.text().as_bytes())
}

//! A folder to which a run is published: for a server of plain files, or a disk that somebody carries away.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tiebreak_run::run::{Folder, Held, Store, names};

use super::target::{Found, Put, Source, Target};

/// A folder that one publisher writes at a time.
pub(crate) struct FolderTarget {
    folder: PathBuf,
    store: Arc<dyn Store>,
}

impl FolderTarget {
    /// The folder, which need not exist yet.
    pub(crate) fn at(folder: &Path) -> FolderTarget {
        FolderTarget { folder: folder.to_path_buf(), store: Folder::at(folder) }
    }
}

impl Target for FolderTarget {
    fn place(&self) -> String {
        self.store.place()
    }

    fn hold(&self) -> io::Result<Option<Box<dyn Held>>> {
        let published = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => {
                io::Error::other(format!("{error} publishes there now: try again when it has ended"))
            }
            _ => error,
        };
        self.store.lock(names::LOCK).map(Some).map_err(published)
    }

    fn found(&self, name: &str) -> io::Result<Option<Found>> {
        match self.store.length(name) {
            Ok(length) => Ok(Some(Found { length, ..Found::default() })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn bytes(&self, name: &str, most: u64) -> io::Result<Option<(Vec<u8>, Found)>> {
        let Some(found) = self.found(name)? else { return Ok(None) };
        if found.length > most {
            let why = format!("it has {} bytes, and at most {most} are read", found.length);
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        Ok(Some((self.store.read(name, 0..found.length)?, found)))
    }

    fn digest(&self, name: &str, found: &Found) -> io::Result<Option<String>> {
        let file = Source { store: &*self.store, name, length: found.length, text: None };
        file.digest(found.length).map(Some)
    }

    // The lock keeps others out, so what was found is still there: lengths are compared for the case that it is not.
    fn put(&self, file: &Source, over: Option<&Found>) -> io::Result<Put> {
        let folder = file.name.rsplit_once('/').map(|(folder, _)| self.folder.join(folder));
        if folder.is_some_and(|folder| folder.is_symlink()) {
            let why = "its folder is a link, which would lead the file elsewhere: remove the link";
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        let there = self.found(file.name)?.map(|found| found.length);
        if there != over.map(|found| found.length) {
            return Ok(Put::Changed);
        }
        let mut write = |to: &mut dyn io::Write| file.pieces(file.length, |piece| to.write_all(&piece));
        self.store.replace(file.name, &mut write)?;
        Ok(Put::Done)
    }
}

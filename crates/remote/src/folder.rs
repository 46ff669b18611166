//! A folder to which a run is published: for a server of plain files, or a disk that somebody carries away.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use tiebreak_run::run::{Folder, Held, Store, names};

use super::target::{Found, Put, Source, Target};

/// A folder that one publisher writes at a time.
pub(crate) struct FolderTarget(Arc<dyn Store>);

impl FolderTarget {
    /// The folder, which need not exist yet.
    pub(crate) fn at(folder: &Path) -> FolderTarget {
        FolderTarget(Folder::at(folder))
    }
}

impl Target for FolderTarget {
    fn place(&self) -> String {
        self.0.place()
    }

    fn hold(&self) -> io::Result<Option<Box<dyn Held>>> {
        self.0.lock(names::LOCK).map(Some)
    }

    fn found(&self, name: &str) -> io::Result<Option<Found>> {
        match self.0.length(name) {
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
        Ok(Some((self.0.read(name, 0..found.length)?, found)))
    }

    fn digest(&self, name: &str, found: &Found) -> io::Result<Option<String>> {
        let file = Source { store: &*self.0, name, length: found.length, text: None };
        file.digest(found.length).map(Some)
    }

    // The lock keeps others out, so what was found is still there: lengths are compared for the case that it is not.
    fn put(&self, file: &Source, over: Option<&Found>) -> io::Result<Put> {
        let there = self.found(file.name)?.map(|found| found.length);
        if there != over.map(|found| found.length) {
            return Ok(Put::Changed);
        }
        let mut write = |to: &mut dyn io::Write| file.pieces(file.length, |piece| to.write_all(&piece));
        self.0.replace(file.name, &mut write)?;
        Ok(Put::Done)
    }
}

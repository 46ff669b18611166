//! Runs whose commitments hide: what their readers may do, and which of their files show what is hidden.

use std::io;

use super::dir::Run;
use super::error::RunError;
use super::{data, names};
use tiebreak_job::manifest::files_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::salted_file::FileSalts;

/// The files and folders of a run whose commitments hide that show nothing of what is hidden. The others are for auditors.
pub const PUBLISHED: [&str; 7] = [
    names::RUN_JSON,
    names::JOB,
    names::PROGRAM,
    names::NETWORK,
    names::TRANSCRIPT,
    names::GRADIENTS,
    names::HEADS,
];

impl Run {
    /// True if everybody may have the file or folder of this name, of those at the top of the run.
    #[doc(hidden)] // for the layers above
    pub fn may_publish(&self, top: &str) -> bool {
        !self.job().hides() || self.is_published(top)
    }

    /// True if a file or folder of a run that hides shows nothing of what is hidden. Another one's network file is none of the run's.
    fn is_published(&self, top: &str) -> bool {
        PUBLISHED.contains(&top) && (top != names::NETWORK || self.job().network.is_some())
    }

    /// The salts of a data file, of a run that hides and whose key is at hand.
    pub(super) fn file_salts(&self, number: usize) -> Option<FileSalts> {
        self.computation.salts.as_ref().map(|key| FileSalts::new(key, number))
    }

    /// Refuses what needs the salt key of a run that is read without it.
    ///
    /// # Errors
    /// If the run hides, and the key is not at hand.
    #[doc(hidden)] // for the layers above
    pub fn opened(&self) -> Result<(), RunError> {
        if !self.computation.is_closed() {
            return Ok(());
        }
        Err(RunError::Refused(format!(
            "{}: the run's commitments hide (commit.scheme 1), and its salt key is not at hand: ask the trainer for the key, and \
             name it with --salt-key FILE",
            self.layout.root.display()
        )))
    }

    /// The step records among these, with their scalars as they were computed; none if they are hidden from this reader.
    #[doc(hidden)] // for the layers above
    pub fn shown(&self, records: &[Record]) -> Vec<Record> {
        let shown = |record: &Record| match record {
            Record::Step { computation, step } => {
                let step: StepRecord = self.computation.shown(step)?;
                Some(Record::Step { computation: *computation, step })
            }
            _ => None,
        };
        records.iter().filter_map(shown).collect()
    }

    /// The root of the data as a run that hides nothing has it, from the files themselves, after checking that they are the run's.
    ///
    /// # Errors
    /// If a file is not there, or is another one, or the salt key is not at hand.
    #[doc(hidden)] // for the layers above
    pub fn plain_data(&self) -> Result<Digest, RunError> {
        self.opened()?;
        let mut plain = Vec::new();
        for number in 0..self.file.data.len() {
            let file = self.data_file(number)?;
            if let Some(salts) = self.file_salts(number) {
                let found = data::hidden_manifest(&file, &salts)?;
                if found != self.file.data[number] {
                    let roots = found.root.not(&self.file.data[number].root);
                    let why = format!("it is not data file {number} of the run: its salted root is {roots}");
                    return Err(RunError::invalid(file.path(), why));
                }
            }
            plain.push(data::kept_manifest(&file)?.0);
        }
        Ok(files_root(&plain))
    }

    /// The names in the run's folder that show what its commitments hide.
    ///
    /// # Errors
    /// If the folder cannot be read.
    #[doc(hidden)] // for the layers above
    pub fn revealing(&self) -> Result<Vec<String>, RunError> {
        let all = match self.store.list("") {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(Vec::new()),
            all => all.map_err(RunError::io(&self.layout.root))?,
        };
        let shows = |name: &String| {
            let name = name.trim_end_matches('/');
            let empty = [names::TRACES, names::LOGS].contains(&name);
            !self.is_published(name)
                && ![names::LOCK, names::INDEX].contains(&name)
                && name != names::COMPANIONS
                && !empty
        };
        let mut found: Vec<String> =
            all.into_iter().filter(shows).map(|name| name.trim_end_matches('/').to_string()).collect();
        found.sort();
        Ok(found)
    }
}

//! The state in which a reader first saw each file of a server, to which every later answer is held.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use tiebreak_run::run::names;

/// Files that grow while a run is trained. A reader keeps to the bytes that were there at first.
pub(crate) const GROWING: [&str; 4] = [names::TRANSCRIPT, names::GRADIENTS, names::METRICS, names::EVENTS];

/// A file's length, and the tag that its server gives to this version of its contents.
#[derive(Clone, Debug, Default)]
struct Version {
    length: Option<u64>,
    tag: Option<String>,
}

/// The versions of all files that were asked for.
#[derive(Default)]
pub(crate) struct Seen(Mutex<HashMap<String, Version>>);

impl Seen {
    /// The length at which a file was seen, if it was.
    pub(crate) fn length(&self, name: &str) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).and_then(|version| version.length)
    }

    /// Notes the version that an answer is of, and returns the length that counts.
    ///
    /// # Errors
    /// If the file was another one before.
    pub(crate) fn note(&self, name: &str, length: u64, tag: Option<String>) -> io::Result<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let version = all.entry(name.to_string()).or_default();
        let grows = GROWING.contains(&name);
        let first = *version.length.get_or_insert(length);
        let same = match grows {
            true => length >= first,
            false => length == first && (version.tag.is_none() || version.tag == tag),
        };
        if !same {
            let tags = [&version.tag, &tag].map(|tag| tag.as_deref().unwrap_or("none").to_string());
            let why = format!(
                "the file changed between two reads: {first} bytes with tag {}, then {length} with tag {}",
                tags[0], tags[1]
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if version.tag.is_none() {
            version.tag = tag;
        }
        Ok(first)
    }
}

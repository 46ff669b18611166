//! The file in which a party of a game about a receipt keeps the digests of its passes and rows, so that a party that is started again
//! has them without computing all passes. Layout: `docs/TRANSPORT.md`.

use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use super::error::PartyError;
use tiebreak_record::commit::answer_trace::node_leaf;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::{self, Disk};

/// What such a file begins with.
const MAGIC: &[u8] = b"tiebreak passes 1\n";

/// What a party keeps of its trace: the tiles of outputs take many times as much.
#[derive(Default)]
pub(super) struct Digests {
    /// The digests of the outputs of each window's nodes; none before the trace is computed.
    pub windows: Vec<Vec<Digest>>,
    /// The digest of the row of each token.
    pub rows: Vec<Digest>,
}

impl Digests {
    /// The leaves of a window's nodes.
    pub fn node_leaves(&self, window: usize) -> Option<Vec<Digest>> {
        let leaves = (0..).zip(self.windows.get(window)?).map(|(node, digest)| node_leaf(node, digest));
        Some(leaves.collect())
    }

    /// Writes the file. `secret` is the party's own, for this game, so nobody else can write a file that is believed.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn keep(&self, path: &Path, disk: &Disk, secret: &Digest) -> Result<(), RunError> {
        disk.replace_by(path, |file| {
            let (mut out, mut hasher) = (BufWriter::new(file), blake3::Hasher::new_keyed(&secret.0));
            out.write_all(MAGIC)?;
            for digest in self.rows.iter().chain(self.windows.iter().flatten()) {
                hasher.update(&digest.0);
                out.write_all(&digest.0)?;
            }
            out.write_all(hasher.finalize().as_bytes())?;
            out.flush()
        })
    }

    /// The digests of so many rows, and of windows with so many nodes, that a file keeps. `None` if there is no file, or it is
    /// damaged, or another party's or game's.
    ///
    /// # Errors
    /// If the file is something else, which must not be replaced.
    pub fn kept(
        path: &Path,
        secret: &Digest,
        rows: usize,
        nodes: impl Iterator<Item = usize>,
    ) -> Result<Option<Digests>, PartyError> {
        let file = match disk::open(path) {
            Err(RunError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let (mut read, mut magic) = (BufReader::new(file), Vec::new());
        read.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic).map_err(RunError::io(path))?;
        if !magic.is_empty() && magic != MAGIC {
            return Err(PartyError::Refused(format!(
                "{} keeps no passes of a game, and a party writes its own there: name another --journal",
                path.display()
            )));
        }
        Ok(Digests::whole(read, secret, rows, nodes))
    }

    /// The digests of a file behind its first line, if their hash is right.
    fn whole(
        mut read: impl Read,
        secret: &Digest,
        rows: usize,
        nodes: impl Iterator<Item = usize>,
    ) -> Option<Digests> {
        let mut hasher = blake3::Hasher::new_keyed(&secret.0);
        let mut digests = |count: usize| {
            let mut list = vec![Digest([0; 32]); count];
            for digest in &mut list {
                read.read_exact(&mut digest.0).ok()?;
                hasher.update(&digest.0);
            }
            Some(list)
        };
        let rows = digests(rows)?;
        let windows = nodes.map(&mut digests).collect::<Option<_>>()?;
        let mut sum = Vec::new();
        read.take(33).read_to_end(&mut sum).ok()?;
        (sum == hasher.finalize().as_bytes()).then_some(Digests { windows, rows })
    }
}

//! A file that tells which declared runs have a state digest: one disk read a question, however many runs there are.
//!
//! Format: docs/MONITORING-FORMAT.md, "Index of declared runs".

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;

use crate::header;

/// The first line of an index.
pub const HEADER: &str = "tiebreak run index 1";
/// The most runs of an index.
pub const RUNS_MAX: u64 = 1 << 20;
/// The most state digests of an index.
pub const ENTRIES_MAX: u64 = 1 << 34;
/// The most bytes of a run's path.
const PATH_MAX: u32 = 4096;
/// Bytes of a state digest that an index keeps. Two digests with the same beginning lead to both runs, whose records decide.
const PREFIX: usize = 12;
/// Bytes of an entry: the prefix, and the run's number.
pub const ENTRY_BYTES: usize = PREFIX + 4;
/// Entries of a block, which is read and checked as a whole.
const BLOCK: usize = 4096;
/// Runs that are named for one digest. More say nothing more: each of them has the state.
pub const FOUND_MAX: usize = 8;
const CONTEXT: &str = "tiebreak 2 run-index";
const WHAT: &str = "index of declared runs";

/// The reason why an index cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The system refuses, or the file ends too early.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file has another form, or was edited.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

fn wrong(why: String) -> IndexError {
    Malformed::invalid(WHAT, why).into()
}

/// A declared run of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedRun {
    /// The folder of the run.
    pub path: String,
    /// The run id.
    pub run: Digest,
    /// The computation.
    pub computation: Digest,
    /// The number of records under the head that was indexed.
    pub records: u64,
}

/// The beginning of a state digest, and the number of the run that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    prefix: [u8; PREFIX],
    run: u32,
}

fn prefix(digest: &Digest) -> [u8; PREFIX] {
    digest.0[..PREFIX].try_into().expect("a digest is longer")
}

impl Entry {
    /// The entry of a state of the run with this number.
    pub fn new(state: &Digest, run: u32) -> Entry {
        Entry { prefix: prefix(state), run }
    }

    fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..PREFIX].copy_from_slice(&self.prefix);
        bytes[PREFIX..].copy_from_slice(&self.run.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Entry {
        let (prefix, run) = bytes.split_at(PREFIX);
        Entry {
            prefix: prefix.try_into().expect("the prefix's length"),
            run: u32::from_le_bytes(run.try_into().expect("four bytes")),
        }
    }
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest(blake3::Hasher::new_derive_key(CONTEXT).update(bytes).finalize().into())
}

fn block_bytes(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(Entry::bytes).collect()
}

/// Writes an index of these runs. Entries are sorted here, and equal ones are written once.
///
/// # Errors
/// If the writer fails, or there are more runs or entries than an index holds.
pub fn write(out: &mut impl Write, runs: &[IndexedRun], mut entries: Vec<Entry>) -> io::Result<()> {
    let large = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    if runs.len() as u64 > RUNS_MAX || entries.len() as u64 > ENTRIES_MAX {
        let why = format!(
            "{} runs with {} states: at most {RUNS_MAX} and {ENTRIES_MAX} fit an index",
            runs.len(),
            entries.len()
        );
        return Err(large(why));
    }
    entries.sort_unstable();
    entries.dedup();
    let mut head = format!("{HEADER}\n").into_bytes();
    head.extend((runs.len() as u64).to_le_bytes());
    head.extend((entries.len() as u64).to_le_bytes());
    for run in runs {
        if run.path.len() > PATH_MAX as usize {
            return Err(large(format!(
                "the path of run {} has {} bytes, not {PATH_MAX}",
                run.run,
                run.path.len()
            )));
        }
        head.extend((run.path.len() as u32).to_le_bytes());
        head.extend(run.path.bytes());
        head.extend(run.run.0);
        head.extend(run.computation.0);
        head.extend(run.records.to_le_bytes());
    }
    for block in entries.chunks(BLOCK) {
        head.extend(block[0].prefix);
        head.extend(digest_of(&block_bytes(block)).0);
    }
    let digest = digest_of(&head);
    out.write_all(&head)?;
    out.write_all(&digest.0)?;
    entries.chunks(BLOCK).try_for_each(|block| out.write_all(&block_bytes(block)))
}

/// An index that was opened: its runs and the table of its blocks are in memory, the entries are in the file.
#[derive(Debug)]
pub struct RunIndex<F> {
    file: F,
    runs: Vec<IndexedRun>,
    by_computation: BTreeMap<Digest, Vec<u32>>,
    /// The first prefix and the digest of each block.
    blocks: Vec<([u8; PREFIX], Digest)>,
    entries: u64,
    /// The byte at which the entries begin.
    at: u64,
}

/// Reads from a file, and hashes what was read.
struct Hashing<'a, F> {
    file: &'a mut F,
    hasher: blake3::Hasher,
    at: u64,
}

impl<F: Read + Seek> Hashing<'_, F> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn run(&mut self) -> Result<IndexedRun, IndexError> {
        let length = u32::from_le_bytes(self.take()?);
        if length > PATH_MAX {
            return Err(Malformed::TooLarge { what: "path of a run", limit: PATH_MAX.into() }.into());
        }
        let mut path = vec![0; length as usize];
        self.fill(&mut path)?;
        let path = String::from_utf8(path).map_err(|error| wrong(format!("the path of a run: {error}")))?;
        let (run, computation) = (Digest(self.take()?), Digest(self.take()?));
        Ok(IndexedRun { path, run, computation, records: u64::from_le_bytes(self.take()?) })
    }
}

impl<F: Read + Seek> RunIndex<F> {
    /// Opens an index. Memory is taken as the file is read, for 44 bytes a block and for the runs.
    ///
    /// # Errors
    /// If the file cannot be read, ends too early or has another form.
    pub fn open(mut file: F) -> Result<RunIndex<F>, IndexError> {
        let mut reader = Hashing { file: &mut file, hasher: blake3::Hasher::new_derive_key(CONTEXT), at: 0 };
        let first: [u8; HEADER.len() + 1] = reader.take()?;
        header::after(&String::from_utf8_lossy(&first), HEADER, WHAT)?;
        let (count, entries) = (u64::from_le_bytes(reader.take()?), u64::from_le_bytes(reader.take()?));
        if count > RUNS_MAX || entries > ENTRIES_MAX {
            return Err(wrong(format!(
                "it has {count} runs and {entries} states; at most {RUNS_MAX} and {ENTRIES_MAX} are allowed"
            )));
        }
        // A run has a length, two digests and a count; a block of entries has a prefix and a digest.
        let tables = count * 76 + entries.div_ceil(BLOCK as u64) * (PREFIX as u64 + 32);
        let (at, least) = (reader.at, reader.at + tables + 32 + entries * ENTRY_BYTES as u64);
        let length = reader.file.seek(SeekFrom::End(0))?;
        if length < least {
            return Err(wrong(format!(
                "it has {length} bytes, and {count} runs with {entries} states take at least {least}: make it again with `tiebreak \
                 monitor index`"
            )));
        }
        reader.file.seek(SeekFrom::Start(at))?;
        let mut runs = Vec::new();
        for _ in 0..count {
            runs.push(reader.run()?);
        }
        let mut blocks = Vec::new();
        for _ in 0..entries.div_ceil(BLOCK as u64) {
            blocks.push((reader.take()?, Digest(reader.take()?)));
        }
        let (found, at) = (Digest(reader.hasher.finalize().into()), reader.at + 32);
        let mut due = [0; 32];
        file.read_exact(&mut due)?;
        if found.0 != due {
            return Err(wrong(format!("the digest of its tables is {}", found.not(&Digest(due)))));
        }
        let length = file.seek(SeekFrom::End(0))?;
        let right = at + entries * ENTRY_BYTES as u64;
        if length != right {
            return Err(wrong(format!("it has {length} bytes, not {right}")));
        }
        let mut by_computation: BTreeMap<Digest, Vec<u32>> = BTreeMap::new();
        for (number, run) in (0..).zip(&runs) {
            by_computation.entry(run.computation).or_default().push(number);
        }
        Ok(RunIndex { file, runs, by_computation, blocks, entries, at })
    }

    /// The runs, in the order in which they were indexed.
    pub fn runs(&self) -> &[IndexedRun] {
        &self.runs
    }

    /// The number of states, equal ones of a run counted once.
    pub fn states(&self) -> u64 {
        self.entries
    }

    /// The numbers of the runs of a computation.
    pub fn of_computation(&self, computation: &Digest) -> &[u32] {
        self.by_computation.get(computation).map_or(&[], Vec::as_slice)
    }

    /// The numbers of runs that have a state whose digest begins like this one: at most [`FOUND_MAX`].
    ///
    /// # Errors
    /// If the file cannot be read, or a block was edited.
    pub fn find(&mut self, state: &Digest) -> Result<Vec<u32>, IndexError> {
        let wanted = prefix(state);
        let mut found = Vec::new();
        // The last block that begins before the prefix may end with it.
        let before = self.blocks.partition_point(|(first, _)| *first < wanted).saturating_sub(1);
        for number in before..self.blocks.len() {
            if self.blocks[number].0 > wanted || found.len() == FOUND_MAX {
                break;
            }
            let block = self.block(number)?;
            let all = block.chunks_exact(ENTRY_BYTES).map(Entry::read);
            let same = all.filter(|entry| entry.prefix == wanted).map(|entry| entry.run);
            found.extend(same.take(FOUND_MAX - found.len()));
        }
        match found.iter().find(|run| **run as usize >= self.runs.len()) {
            None => Ok(found),
            Some(run) => Err(wrong(format!("an entry names run {run}, and there are {}", self.runs.len()))),
        }
    }

    fn block(&mut self, number: usize) -> Result<Vec<u8>, IndexError> {
        let first = (number * BLOCK) as u64;
        let count = (self.entries - first).min(BLOCK as u64);
        let mut bytes = vec![0; count as usize * ENTRY_BYTES];
        self.file.seek(SeekFrom::Start(self.at + first * ENTRY_BYTES as u64))?;
        self.file.read_exact(&mut bytes)?;
        let (found, due) = (digest_of(&bytes), self.blocks[number].1);
        match found == due {
            true => Ok(bytes),
            false => Err(wrong(format!("block {number} was edited: its digest is {}", found.not(&due)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn state(number: u32) -> Digest {
        Digest(blake3::hash(&number.to_le_bytes()).into())
    }

    fn run(number: u8) -> IndexedRun {
        let [run, computation] = [number, number % 2].map(|byte| Digest([byte; 32]));
        IndexedRun { path: format!("runs/{number}"), run, computation, records: 7 }
    }

    fn written(runs: &[IndexedRun], entries: &[(Digest, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let entries = entries.iter().map(|(state, run)| Entry::new(state, *run)).collect();
        write(&mut bytes, runs, entries).unwrap();
        bytes
    }

    fn opened(bytes: &[u8]) -> Result<RunIndex<Cursor<&[u8]>>, IndexError> {
        RunIndex::open(Cursor::new(bytes))
    }

    #[test]
    fn every_state_is_found_over_many_blocks_and_no_other_one() {
        let runs: Vec<_> = (0..3).map(run).collect();
        // One state is of every run, and one of a run twice.
        let mut entries: Vec<_> = (0..10_000).map(|number| (state(number), number % 3)).collect();
        entries.extend([(state(0), 1), (state(0), 2), (state(5), 2)]);
        let bytes = written(&runs, &entries);
        let mut index = opened(&bytes).unwrap();
        assert_eq!((index.runs(), index.states(), index.blocks.len()), (&runs[..], 10_002, 3));
        let mut find = |number| index.find(&state(number)).unwrap();
        assert_eq!([find(0), find(5)], [vec![0, 1, 2], vec![2]]);
        assert!((1..10_000).all(|number| find(number) == [number % 3]));
        assert!((10_000..10_100).all(|number| find(number).is_empty()));
        for digest in [Digest([0; 32]), Digest([255; 32])] {
            assert!(index.find(&digest).unwrap().is_empty());
        }
        assert_eq!(index.of_computation(&Digest([0; 32])), [0, 2]);
        assert!(index.of_computation(&Digest([9; 32])).is_empty());
        let empty = written(&[], &[]);
        assert!(opened(&empty).unwrap().find(&state(1)).unwrap().is_empty());
    }

    #[test]
    fn a_state_that_a_thousand_runs_claim_names_a_few() {
        let runs: Vec<_> = (0..=255).cycle().take(9000).map(run).collect();
        let mut entries: Vec<_> = (0..9000).map(|number| (state(1), number)).collect();
        entries.push((state(2), 7));
        let bytes = written(&runs, &entries);
        let mut index = opened(&bytes).unwrap();
        assert_eq!(index.find(&state(1)).unwrap(), (0..FOUND_MAX as u32).collect::<Vec<_>>());
        assert_eq!(index.find(&state(2)).unwrap(), [7]);
    }

    #[test]
    fn every_edited_byte_is_told_and_every_short_file() {
        let entries: Vec<_> = (0..20).map(|number| (state(number), number % 2)).collect();
        let bytes = written(&[run(0), run(1)], &entries);
        for at in 0..bytes.len() {
            let mut edited = bytes.clone();
            edited[at] ^= 1;
            // An edited entry shows when its block is read.
            let fine = opened(&edited)
                .is_ok_and(|mut index| (0..20).all(|number| index.find(&state(number)).is_ok()));
            assert!(!fine, "byte {at}");
            assert!(opened(&bytes[..at]).is_err(), "{at} bytes");
        }
        assert!(opened(&[&bytes[..], &[0]].concat()).is_err());
        // An entry of a run that is not there, under the right digests.
        let strange = written(&[run(0)], &[(state(1), 1)]);
        assert!(opened(&strange).unwrap().find(&state(1)).is_err());
    }

    #[test]
    fn numbers_that_promise_too_much_take_no_memory() {
        for (runs, entries) in [(u64::MAX, 0), (RUNS_MAX + 1, 0), (0, u64::MAX), (RUNS_MAX, ENTRIES_MAX)] {
            let mut bytes = format!("{HEADER}\n").into_bytes();
            bytes.extend([runs, entries].into_iter().flat_map(u64::to_le_bytes));
            assert!(opened(&bytes).is_err());
        }
    }
}

//! The bytes of a data file, checked as they are read: a whole group against the file's tree at first, and later only the piece of
//! the group that is wanted.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use tiebreak_record::commit::multiproof;
use tiebreak_record::commit::salted_file::FileSalts;
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES, piece_value};

/// Bytes of a group, a subtree of BLAKE3's tree, which a file's tree has the value of.
pub(crate) const GROUP_BYTES: usize = 64 * 1024;
/// Slices of a group.
pub(crate) const GROUP_SLICES: usize = GROUP_BYTES / SLICE_BYTES;
/// Bytes of a piece. Vector instructions hash as many of BLAKE3's chunks at once, so a smaller piece takes no less time.
const PIECE_BYTES: usize = 16 * 1024;
const PIECE_SLICES: usize = PIECE_BYTES / SLICE_BYTES;
const GROUP_PIECES: usize = GROUP_BYTES / PIECE_BYTES;
/// Pieces kept in memory for all files that are read together: 256 MiB.
const KEPT_PIECES: usize = 16_384;
/// Groups whose pieces can be checked alone, for all files that are read together: 14 GiB of data. Their values take 34 MiB in a
/// table that is seven eighths full.
const KNOWN_GROUPS: usize = 7 << 15;

/// The reason why bytes were not read.
#[derive(Debug)]
pub(super) enum Unread {
    /// The file ends before this range does.
    Missing(Range<u64>),
    /// The bytes of this range are not those of the tree.
    Changed(Range<u64>),
    /// The system's error.
    Io(io::Error),
}

/// A source of a file's bytes.
pub trait Source: Read + Seek + Send {
    /// Says that bytes were not those of the tree. True if another read may give others, since a cache gave these.
    fn doubt(&mut self) -> bool {
        false
    }
}

impl Source for File {}

impl<T: AsRef<[u8]> + Send> Source for Cursor<T> {}

/// A source of a file's bytes with what was read of it.
pub(super) struct Checked {
    source: Box<dyn Source>,
    bytes: u64,
    /// The values of the file's groups.
    tree: Vec<Hash>,
    salts: Option<FileSalts>,
    /// Pieces by number. When `fresh` has half of the memory, it takes the turn of `before`: what nobody asked for in between is lost.
    fresh: HashMap<usize, Arc<Vec<u8>>>,
    before: HashMap<usize, Arc<Vec<u8>>>,
    /// The values of the pieces of groups that were checked.
    known: HashMap<usize, [Hash; GROUP_PIECES]>,
    /// The last two groups of a single pass.
    passed: [Option<(usize, Arc<Vec<u8>>)>; 2],
    /// The last piece that was asked for.
    last: usize,
    kept_max: usize,
    known_max: usize,
}

impl Checked {
    /// A source of a file of so many bytes.
    pub(super) fn new(
        source: Box<dyn Source>,
        bytes: u64,
        tree: Vec<Hash>,
        salts: Option<FileSalts>,
    ) -> Checked {
        Checked {
            source,
            bytes,
            tree,
            salts,
            fresh: HashMap::new(),
            before: HashMap::new(),
            known: HashMap::new(),
            passed: [None, None],
            last: 0,
            kept_max: KEPT_PIECES,
            known_max: KNOWN_GROUPS,
        }
    }

    /// Divides the memory among this number of files. Each keeps a group in any case.
    pub(super) fn share_memory(&mut self, files: usize) {
        let files = files.max(1);
        (self.kept_max, self.known_max) = ((KEPT_PIECES / files).max(GROUP_PIECES), KNOWN_GROUPS / files);
    }

    /// The values of the file's groups.
    pub(super) fn tree(&self) -> &[Hash] {
        &self.tree
    }

    /// The salts of a file that hides.
    pub(super) fn salts(&self) -> Option<&FileSalts> {
        self.salts.as_ref()
    }

    /// Passes the bytes of a slice of the file to `show`.
    pub(super) fn with_slice(&mut self, slice: usize, show: impl FnOnce(&[u8])) -> Result<(), Unread> {
        let piece = self.piece(slice / PIECE_SLICES)?;
        let start = slice % PIECE_SLICES * SLICE_BYTES;
        show(&piece[start..piece.len().min(start + SLICE_BYTES)]);
        Ok(())
    }

    /// The bytes of a piece of the file.
    fn piece(&mut self, number: usize) -> Result<Arc<Vec<u8>>, Unread> {
        let follows = std::mem::replace(&mut self.last, number) + 1 == number;
        if let Some(piece) = self.fresh.get(&number) {
            return Ok(piece.clone());
        }
        if let Some(piece) = self.before.remove(&number) {
            self.make_room(1);
            self.fresh.insert(number, piece.clone());
            return Ok(piece);
        }
        let (group, place) = (number / GROUP_PIECES, number % GROUP_PIECES);
        let (first, pieces) = match self.known.get(&group).copied() {
            // Whoever asks for one piece after another gets the rest of the group at once.
            Some(values) if follows => (number, self.known_pieces(number, &values[place..])?),
            Some(values) => (number, self.known_pieces(number, &values[place..=place])?),
            None => (group * GROUP_PIECES, cut(&self.group(group)?)),
        };
        let wanted = pieces.get(number - first).cloned().unwrap_or_default();
        self.make_room(pieces.len());
        self.fresh.extend((first..).zip(pieces));
        Ok(wanted)
    }

    /// The pieces from `number` on, which have these values, in one read; fewer at the end of the file.
    fn known_pieces(&mut self, number: usize, values: &[Hash]) -> Result<Vec<Arc<Vec<u8>>>, Unread> {
        self.settled(|checked| checked.known_pieces_once(number, values))
    }

    fn known_pieces_once(&mut self, number: usize, values: &[Hash]) -> Result<Vec<Arc<Vec<u8>>>, Unread> {
        let first = number as u64 * PIECE_BYTES as u64;
        let (range, bytes) = self.read(first, values.len() * PIECE_BYTES)?;
        let found = self.piece_values(number, &bytes);
        if found.is_empty() || found != values[..found.len()] {
            return Err(Unread::Changed(range));
        }
        Ok(cut(&bytes))
    }

    /// What `read` gets, from a second read if the first one gave bytes of a cache that are not those of the tree.
    fn settled<T>(&mut self, read: impl Fn(&mut Checked) -> Result<T, Unread>) -> Result<T, Unread> {
        match read(self) {
            Err(Unread::Changed(_)) if self.source.doubt() => read(self),
            found => found,
        }
    }

    /// Makes room for so many pieces, at most those of a group.
    fn make_room(&mut self, pieces: usize) {
        // A file with little memory keeps one group, and nothing of before.
        let half = self.kept_max / 2;
        let (most, keeps) = if half < GROUP_PIECES { (self.kept_max, false) } else { (half, true) };
        if self.fresh.len() + pieces > most {
            let before = std::mem::take(&mut self.fresh);
            self.before = if keeps { before } else { HashMap::new() };
        }
    }

    /// The bytes of a group, from the memory as far as they are there.
    pub(super) fn kept_group(&mut self, number: usize) -> Result<Vec<u8>, Unread> {
        let first = number * GROUP_PIECES;
        let end = (self.bytes.div_ceil(PIECE_BYTES as u64) as usize).min(first + GROUP_PIECES);
        let mut bytes = Vec::with_capacity(GROUP_BYTES);
        for piece in first..end {
            bytes.extend_from_slice(&self.piece(piece)?);
        }
        Ok(bytes)
    }

    /// The bytes of a group, read and checked whole.
    pub(super) fn group(&mut self, number: usize) -> Result<Arc<Vec<u8>>, Unread> {
        self.settled(|checked| checked.group_once(number))
    }

    fn group_once(&mut self, number: usize) -> Result<Arc<Vec<u8>>, Unread> {
        let (range, bytes) = self.read(number as u64 * GROUP_BYTES as u64, GROUP_BYTES)?;
        let values = self.piece_values(number * GROUP_PIECES, &bytes);
        let value = match (&self.salts, self.tree.len()) {
            // The only group of a file is BLAKE3's root, and no subtree.
            (None, 1) => *blake3::hash(&bytes).as_bytes(),
            (None, _) => multiproof::subtree(multiproof::blake3, &values),
            (Some(_), _) => multiproof::subtree(multiproof::rfc6962, &values),
        };
        if value != self.tree[number] {
            return Err(Unread::Changed(range));
        }
        if self.known.len() < self.known_max {
            let value = |place: usize| values.get(place).copied().unwrap_or_default();
            self.known.insert(number, std::array::from_fn(value));
        }
        Ok(Arc::new(bytes))
    }

    /// [`Checked::group`] for a pass from a file's beginning to its end, which keeps two groups.
    pub(super) fn passing_group(&mut self, number: usize) -> Result<Arc<Vec<u8>>, Unread> {
        if let Some((_, group)) = self.passed.iter().flatten().find(|(passed, _)| *passed == number) {
            return Ok(group.clone());
        }
        let group = self.group(number)?;
        self.passed.rotate_left(1);
        self.passed[1] = Some((number, group.clone()));
        Ok(group)
    }

    /// Forgets the groups of a pass, which is over.
    pub(super) fn end_pass(&mut self) {
        self.passed = [None, None];
    }

    /// The values of the pieces of these bytes, which begin with piece `first`.
    fn piece_values(&self, first: usize, bytes: &[u8]) -> Vec<Hash> {
        match &self.salts {
            // A count of two stands for any count above one.
            None => (first..)
                .zip(bytes.chunks(PIECE_BYTES))
                .map(|(piece, bytes)| piece_value(bytes, PIECE_BYTES, piece, 2))
                .collect(),
            Some(salts) => salts
                .values(first * PIECE_SLICES, bytes)
                .chunks(PIECE_SLICES)
                .map(|slices| multiproof::subtree(multiproof::rfc6962, slices))
                .collect(),
        }
    }

    /// The bytes from `first` on, at most `size` of them, with their range in the file.
    fn read(&mut self, first: u64, size: usize) -> Result<(Range<u64>, Vec<u8>), Unread> {
        let range = first..self.bytes.min(first + size as u64);
        let mut bytes = vec![0; range.end.saturating_sub(first) as usize];
        let read = self.source.seek(SeekFrom::Start(first)).and_then(|_| self.source.read_exact(&mut bytes));
        match read {
            Ok(()) => Ok((range, bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Unread::Missing(range)),
            Err(error) => Err(Unread::Io(error)),
        }
    }
}

/// The pieces of bytes that begin with one.
fn cut(bytes: &[u8]) -> Vec<Arc<Vec<u8>>> {
    bytes.chunks(PIECE_BYTES).map(|piece| Arc::new(piece.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tiebreak_record::commit::salts::SaltKey;

    use super::*;

    /// A file that somebody else writes to, and that counts the bytes that were read of it.
    #[derive(Clone)]
    struct Shared(Arc<Mutex<(io::Cursor<Vec<u8>>, usize)>>);

    impl Read for Shared {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let (file, read) = &mut *self.0.lock().unwrap();
            let count = file.read(to)?;
            *read += count;
            Ok(count)
        }
    }

    impl Seek for Shared {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.lock().unwrap().0.seek(to)
        }
    }

    impl Source for Shared {}

    impl Shared {
        fn change(&self, at: usize) {
            self.0.lock().unwrap().0.get_mut()[at] ^= 1;
        }

        /// The bytes that were read since the last call.
        fn taken(&self) -> usize {
            std::mem::take(&mut self.0.lock().unwrap().1)
        }
    }

    /// A file of `len` bytes with memory for so many pieces and known groups, hidden or not.
    fn opened(len: usize, hides: bool, (kept_max, known_max): (usize, usize)) -> (Vec<u8>, Shared, Checked) {
        let contents: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let salts = hides.then(|| FileSalts::new(&SaltKey::new([7; 32]), 3));
        let tree = match &salts {
            None if len <= GROUP_BYTES => vec![*blake3::hash(&contents).as_bytes()],
            None => (0..)
                .zip(contents.chunks(GROUP_BYTES))
                .map(|(number, group)| piece_value(group, GROUP_BYTES, number, 2))
                .collect(),
            Some(salts) => (0..)
                .zip(contents.chunks(GROUP_BYTES))
                .map(|(number, group): (usize, _)| {
                    multiproof::subtree(multiproof::rfc6962, &salts.values(number * GROUP_SLICES, group))
                })
                .collect(),
        };
        let source = Shared(Arc::new(Mutex::new((io::Cursor::new(contents.clone()), 0))));
        let mut checked = Checked::new(Box::new(source.clone()), len as u64, tree, salts);
        (checked.kept_max, checked.known_max) = (kept_max, known_max);
        (contents, source, checked)
    }

    #[test]
    fn slices_are_those_of_the_file_in_any_order_and_in_any_memory() {
        for len in [1usize, 1024, 16_384, 16_385, 65_536, 65_537, 131_073, 200_001, 400_000] {
            for (hides, memory) in [(false, (8, 9)), (true, (8, 9)), (false, (4, 2)), (true, (5, 0))] {
                let (contents, _, mut checked) = opened(len, hides, memory);
                let slices = len.div_ceil(SLICE_BYTES);
                for slice in (0..3 * slices).map(|i| i * 37 % slices) {
                    let due = &contents[slice * SLICE_BYTES..len.min((slice + 1) * SLICE_BYTES)];
                    checked.with_slice(slice, |bytes| assert_eq!(bytes, due)).unwrap();
                    assert!(checked.fresh.len() + checked.before.len() <= memory.0, "{memory:?}");
                    assert!(checked.known.len() <= memory.1, "{memory:?}");
                }
            }
        }
    }

    #[test]
    fn a_group_is_read_whole_once_and_its_pieces_later() {
        for hides in [false, true] {
            let (_, source, mut checked) = opened(400_000, hides, (8, 9));
            let mut read = |slice: usize| {
                checked.with_slice(slice, |_| ()).unwrap();
                source.taken()
            };
            assert_eq!(read(5 * GROUP_SLICES), GROUP_BYTES);
            assert_eq!(read(5 * GROUP_SLICES + 3), 0, "it is kept");
            assert_eq!([read(0), read(GROUP_SLICES)], [GROUP_BYTES; 2]);
            assert_eq!(read(5 * GROUP_SLICES), PIECE_BYTES, "the others took its memory");
            // What is asked for again and again stays.
            for other in 1..4 {
                assert_eq!(read(other * PIECE_SLICES), PIECE_BYTES);
                assert_eq!(read(5 * GROUP_SLICES), 0);
            }
        }
    }

    #[test]
    fn who_reads_on_gets_the_rest_of_a_group() {
        let (contents, source, mut checked) = opened(400_000, false, (4, 9));
        for slice in 0..contents.len().div_ceil(SLICE_BYTES) {
            checked.with_slice(slice, |_| ()).unwrap();
        }
        assert_eq!(source.taken(), contents.len());
        for slice in 0..contents.len().div_ceil(SLICE_BYTES) {
            checked.with_slice(slice, |_| ()).unwrap();
            let read = source.taken();
            let begins = slice % GROUP_SLICES == 0 || slice == PIECE_SLICES;
            assert_eq!(read > 0, begins, "slice {slice}: {read} bytes");
        }
        assert_eq!(checked.kept_group(2).unwrap(), contents[2 * GROUP_BYTES..3 * GROUP_BYTES]);
        assert_eq!(checked.kept_group(6).unwrap(), contents[6 * GROUP_BYTES..]);
    }

    #[test]
    fn bytes_that_change_after_a_check_are_refused() {
        for hides in [false, true] {
            let (_, source, mut checked) = opened(400_000, hides, (4, 9));
            checked.with_slice(0, |_| ()).unwrap();
            checked.with_slice(5 * GROUP_SLICES, |_| ()).unwrap();
            source.change(2 * PIECE_BYTES + 5);
            let changed = |found: &Result<(), Unread>, at: Range<u64>| {
                assert!(matches!(found, Err(Unread::Changed(range)) if *range == at), "{found:?}");
            };
            checked.with_slice(0, |_| ()).unwrap();
            changed(&checked.with_slice(2 * PIECE_SLICES + 3, |_| ()), 32_768..49_152);
            checked.with_slice(0, |_| ()).unwrap();
            changed(&checked.with_slice(PIECE_SLICES, |_| ()), 16_384..65_536);
            changed(&checked.group(0).map(|_| ()), 0..65_536);
            assert!(checked.passing_group(0).is_err());
        }
    }

    #[test]
    fn a_pass_keeps_two_groups() {
        let (contents, source, mut checked) = opened(400_000, false, (8, 9));
        let mut read = |number: usize| {
            let group = checked.passing_group(number).unwrap();
            let due = &contents[number * GROUP_BYTES..contents.len().min((number + 1) * GROUP_BYTES)];
            assert_eq!(group.as_slice(), due);
            source.taken()
        };
        assert_eq!([0, 0, 1, 0, 1, 2, 1, 2, 6].map(&mut read), [65_536, 0, 65_536, 0, 0, 65_536, 0, 0, 6784]);
    }
}

//! The log of a step: one part for each logged product of each micro-batch, in execution order, in groups behind a directory. Layout:
//! `docs/ROUNDING.md`, section 5.
//!
//! The root of a log is a tensor digest of the file's bytes. So a block of a part can be proven with the few entries that give
//! its position, and without the rest: [`SliceProof`]. Every fault of a log shows in one group or in one block.

use std::convert::Infallible;
use std::ops::Range;

use super::Decision;
use super::codec::{BLOCK_BYTES_MAX, Block, Head, PROVEN_PART_BYTES_MAX, part_bytes_max, put_varint};
use super::groups::{ENTRY_BYTES, GROUP, Groups, LENGTH_BYTES_MAX, MAGIC};
use crate::commit::digest::Digest;
use crate::commit::tensor::{Hash, SLICE_BYTES};
use crate::commit::{Malformed, multiproof, tensor};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::{LoggedProduct, TensorType};
use tiebreak_contract::program::step::Program;

/// The log of a step: encoded parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    bytes: Vec<u8>,
    parts: Vec<Range<usize>>,
}

impl Log {
    /// Makes a log from its parts.
    #[doc(hidden)] // for the layers above
    pub fn new(parts: &[Vec<u8>]) -> Log {
        let groups = Groups::of(parts.len());
        let mut bytes = groups.beginning();
        let directory = bytes.len();
        bytes.resize(groups.first(), 0);
        let mut ranges = Vec::with_capacity(parts.len());
        for (number, group) in parts.chunks(GROUP).enumerate() {
            if let Some(entry) = number.checked_sub(1) {
                let place = (bytes.len() as u64).to_le_bytes();
                bytes[directory + entry * ENTRY_BYTES..][..ENTRY_BYTES]
                    .copy_from_slice(&place[..ENTRY_BYTES]);
            }
            for part in group {
                put_varint(&mut bytes, part.len() as u64);
            }
            for part in group {
                ranges.push(bytes.len()..bytes.len() + part.len());
                bytes.extend(part);
            }
        }
        Log { bytes, parts: ranges }
    }

    /// Reads the positions of the parts of a log, which must have `parts` parts. Parts are decoded on demand.
    ///
    /// # Errors
    /// If the log's beginning or a group is malformed.
    #[doc(hidden)] // for the layers above
    pub fn open(bytes: Vec<u8>, parts: usize) -> Result<Log, Malformed> {
        let ranges = ranges(&bytes, parts).map_err(|(_, why)| why)?;
        Ok(Log { bytes, parts: ranges })
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of a part.
    #[doc(hidden)] // for the layers above
    pub fn part(&self, number: usize) -> &[u8] {
        &self.bytes[self.parts[number].clone()]
    }

    /// The root, which a record promises.
    pub fn root(&self) -> Digest {
        root(&self.bytes)
    }

    /// The block of a part that would hold a decision about a place. The part is about a product of `elements` elements.
    #[doc(hidden)] // for the layers above
    pub fn block_of(&self, number: usize, elements: u64, place: u64) -> u64 {
        let part = self.part(number);
        Head::read(part, part.len() as u64, elements).map_or(0, |head| head.block_of(part, place))
    }

    /// [`prove`] for a block of a part about a product of `elements` elements.
    #[doc(hidden)] // for the layers above
    pub fn prove(&self, part: usize, elements: u64, block: u64) -> SliceProof {
        prove(&self.bytes, self.parts.len(), BlockPlace { part, elements, block })
    }
}

/// The root of a log's bytes, well-formed or not.
pub fn root(bytes: &[u8]) -> Digest {
    tensor::digest(&file_type(bytes.len() as u32), bytes)
}

/// The positions of the parts of a log; otherwise the fault, and the first part of the group that shows it.
fn ranges(bytes: &[u8], parts: usize) -> Result<Vec<Range<usize>>, (usize, Malformed)> {
    let groups = Groups::of(parts);
    let len = bytes.len() as u64;
    let get = |range: &Range<u64>| &bytes[range.start as usize..range.end as usize];
    groups.check(len, get(&groups.front(len))).map_err(|why| (0, why))?;
    let mut ranges = Vec::with_capacity(parts.min(bytes.len()));
    for number in 0..groups.count() {
        let at = |why| (number * GROUP, why);
        let group = groups.group(number, len, get(&groups.entries(number))).map_err(at)?;
        let lengths = groups.lengths(number, &group);
        let found = groups.parts(number, &group, get(&lengths)).map_err(at)?;
        ranges.extend(found.into_iter().map(|part| part.start as usize..part.end as usize));
    }
    Ok(ranges)
}

/// The first part of a group that shows that a log of this number of parts is malformed; `None` if each part has its position.
pub fn misplaced(bytes: &[u8], parts: usize) -> Option<usize> {
    ranges(bytes, parts).err().map(|(part, _)| part)
}

/// The proof of a block of a part, from a log's bytes, for anybody who knows the root. If the part has no such block, the proof
/// shows that; if the log is malformed there, the proof shows that.
pub fn prove(bytes: &[u8], parts: usize, place: BlockPlace) -> SliceProof {
    let get = |range: &Range<u64>| Ok::<_, Infallible>(&bytes[range.start as usize..range.end as usize]);
    let Ok(Located { ranges, .. }) = Located::new(bytes.len() as u64, parts, place, get);
    proof(bytes, &slice_values(bytes), slices(bytes.len() as u64, &ranges).collect())
}

/// The BLAKE3 values of the slices of a log's bytes, for [`prove_slices`].
pub fn slice_values(bytes: &[u8]) -> Vec<Hash> {
    tensor::piece_values(bytes, SLICE_BYTES)
}

/// The proof of up to `count` slices of a log's bytes from `first` on; `values` are their [`slice_values`]. `None` if there is no
/// slice `first`.
pub fn prove_slices(bytes: &[u8], values: &[Hash], first: usize, count: usize) -> Option<SliceProof> {
    let slices: Vec<usize> = (first..values.len()).take(count).collect();
    (!slices.is_empty()).then(|| proof(bytes, values, slices))
}

fn proof(bytes: &[u8], values: &[Hash], slices: Vec<usize>) -> SliceProof {
    let piece = |&slice: &usize| &bytes[tensor::piece_range(bytes.len(), SLICE_BYTES, slice)];
    SliceProof {
        len: bytes.len() as u32,
        bytes: slices.iter().map(piece).collect::<Vec<_>>().concat(),
        siblings: multiproof::prove(multiproof::blake3, values, &slices),
        slices,
    }
}

/// The number of values in a step that logged products round.
pub fn values(products: &[LoggedProduct], micro_batches: u32) -> u64 {
    let elements: u64 = products.iter().map(|product| product.elements() as u64).sum();
    elements.saturating_mul(u64::from(micro_batches))
}

/// The most bytes of the log of a step: every part with its greatest length, and the positions of the parts.
pub fn bytes_max(products: &[LoggedProduct], micro_batches: u32) -> u64 {
    let parts: u64 = products.iter().map(|product| part_bytes_max(product.elements() as u64)).sum();
    let most = parts.saturating_mul(u64::from(micro_batches));
    most.saturating_add(places_bytes_max(products.len() * micro_batches as usize) as u64)
}

/// The number of parts of a step's log: one for each logged product of each micro-batch.
pub fn parts(program: &Program) -> usize {
    program.micro.logged.len() * program.micro_batches as usize
}

/// Elements of the product that a part of a log is about.
pub fn elements(program: &Program, part: usize) -> u64 {
    let products = &program.micro.logged;
    products.get(part % products.len().max(1)).map_or(0, |product| product.elements() as u64)
}

/// The type of a log's file as a tensor, of which its root is the digest.
fn file_type(len: u32) -> TensorType {
    TensorType { dtype: DType::U8, shape: vec![len] }
}

/// The most bytes that hold the positions of this number of parts.
fn places_bytes_max(parts: usize) -> usize {
    Groups::of(parts).first() + LENGTH_BYTES_MAX * parts
}

/// The slices that contain byte ranges of a file, ascending. Ranges that are not empty ascend, and end within the file.
fn slices(len: u64, ranges: &[Range<u64>]) -> impl Iterator<Item = usize> {
    let mut next = 0;
    ranges.iter().flat_map(move |range| {
        // An empty range is in no slice; an empty file still has one slice.
        let (start, end) = (range.start as usize, range.end as usize);
        let end = if range.is_empty() && len > 0 { 0 } else { end.div_ceil(SLICE_BYTES).max(1) };
        let slices = (start / SLICE_BYTES).max(next)..end;
        next = next.max(end);
        slices
    })
}

/// Some slices of a log, with their proof under the log's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceProof {
    /// Bytes of the log.
    pub len: u32,
    /// The numbers of the slices, ascending.
    pub slices: Vec<usize>,
    /// The slices' bytes, one after another.
    pub bytes: Vec<u8>,
    /// The BLAKE3 hashes that prove the slices in the log's root.
    pub siblings: Vec<Hash>,
}

/// The number of byte ranges that prove a block of a log: the log's beginning, entries of its directory, the lengths of a group's
/// parts, and the part's ranges.
const RANGES: usize = 6;
/// The most slices of a block's proof at an end of a proved range: two ends of each range, but the first range begins with a
/// slice.
pub const BLOCK_PROOF_ENDS: usize = 2 * RANGES - 1;

/// The most bytes that [`SliceProof`] carries for a block of a log with any number of parts.
pub const BLOCK_PROOF_BYTES_MAX: usize = MAGIC.len()
    + 9
    + 2 * ENTRY_BYTES
    + GROUP * LENGTH_BYTES_MAX
    + PROVEN_PART_BYTES_MAX
    + BLOCK_BYTES_MAX
    + BLOCK_PROOF_ENDS * (SLICE_BYTES - 1);

/// The position of a disputed block in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The part.
    pub part: usize,
    /// Elements of the part's product.
    pub elements: u64,
    /// The part's block.
    pub block: u64,
}

/// The result of a proof about a block.
#[derive(Clone, Debug)]
pub enum Shown<'a> {
    /// The block.
    Block(Proven<'a>),
    /// The part has no such block.
    Missing,
    /// The log is malformed in the bytes that give the block's position.
    Malformed(Malformed),
}

/// The position of a block by a log's own entries.
struct Located {
    /// The block; `None` if the part has no such block.
    block: Result<Option<(Head, Block)>, Malformed>,
    /// The bytes of the log that give the position, ascending. Ranges that a malformed log keeps from being found are empty.
    ranges: Vec<Range<u64>>,
}

impl Located {
    /// Finds a block in a log of `len` bytes and `parts` parts.
    fn new<'a, E>(
        len: u64,
        parts: usize,
        place: BlockPlace,
        get: impl Fn(&Range<u64>) -> Result<&'a [u8], E>,
    ) -> Result<Located, E> {
        let mut ranges = Vec::with_capacity(RANGES);
        let block = Located::found(len, parts, place, |range| {
            ranges.push(range.clone());
            get(&range)
        });
        let block = match block {
            Ok(block) => Ok(block),
            Err(Absent::Malformed(why)) => Err(why),
            Err(Absent::Unseen(why)) => return Err(why),
        };
        Ok(Located { block, ranges })
    }

    fn found<'a, E>(
        len: u64,
        parts: usize,
        place: BlockPlace,
        mut get: impl FnMut(Range<u64>) -> Result<&'a [u8], E>,
    ) -> Result<Option<(Head, Block)>, Absent<E>> {
        let groups = Groups::of(parts);
        let number = place.part / GROUP;
        groups.check(len, get(groups.front(len)).map_err(Absent::Unseen)?)?;
        let group = groups.group(number, len, get(groups.entries(number)).map_err(Absent::Unseen)?)?;
        let lengths = get(groups.lengths(number, &group)).map_err(Absent::Unseen)?;
        let all = groups.parts(number, &group, lengths)?;
        let part = all.get(place.part % GROUP).ok_or_else(|| wrong("the log has no such part"))?;
        let mut within =
            |range: Range<u64>| get(part.start + range.start..part.start + range.end).map_err(Absent::Unseen);
        let len = part.end - part.start;
        let head = Head::read(within(Head::bytes(len))?, len, place.elements)?;
        let entries = within(head.entries(place.block))?;
        if place.block >= head.blocks() {
            return Ok(None);
        }
        let block = head.block(place.block, entries)?;
        let bytes = part.start + block.bytes.start..part.start + block.bytes.end;
        within(block.bytes.clone())?;
        Ok(Some((head, Block { bytes, ..block })))
    }
}

/// The reason why a block is not found.
enum Absent<E> {
    /// The log's entries about it are malformed.
    Malformed(Malformed),
    /// Bytes of the log are missing.
    Unseen(E),
}

impl<E> From<Malformed> for Absent<E> {
    fn from(why: Malformed) -> Absent<E> {
        Absent::Malformed(why)
    }
}

/// A proven block whose bytes are not decoded yet.
#[derive(Clone, Debug)]
pub struct Proven<'a> {
    head: Head,
    number: u64,
    block: Block,
    bytes: &'a [u8],
}

impl Proven<'_> {
    /// The elements that the block's decisions are about: the log has no other decisions about them.
    pub fn places(&self) -> Range<u64> {
        self.block.places.clone()
    }

    /// The decisions.
    ///
    /// # Errors
    /// If the log is malformed in this block.
    pub fn decisions(&self) -> Result<Vec<Decision>, Malformed> {
        self.head.decode(self.number, &self.block, self.bytes)
    }
}

fn wrong(why: &str) -> Malformed {
    Malformed::invalid("proof of a log's block", why)
}

impl SliceProof {
    /// A block of a log with this root, which has `parts` parts.
    ///
    /// # Errors
    /// If the slices do not give `root`, or are not exactly those that show the block.
    pub fn block(&self, root: &Digest, parts: usize, place: BlockPlace) -> Result<Shown<'_>, Malformed> {
        self.verify(root)?;
        if place.part >= parts {
            return Err(wrong("the log has no such part"));
        }
        let len = u64::from(self.len);
        let Located { block, ranges } = Located::new(len, parts, place, |range| self.get(range))?;
        if !slices(len, &ranges).eq(self.slices.iter().copied()) {
            return Err(wrong("its slices are not those that show the block"));
        }
        Ok(match block {
            Ok(Some((head, block))) => {
                Shown::Block(Proven { head, number: place.block, bytes: self.get(&block.bytes)?, block })
            }
            Ok(None) => Shown::Missing,
            Err(why) => Shown::Malformed(why),
        })
    }

    /// The bytes of the log at a range within the slices; the caller has called [`SliceProof::verify`].
    fn get(&self, range: &Range<u64>) -> Result<&[u8], Malformed> {
        if range.is_empty() {
            return Ok(&[]);
        }
        let range = range.start as usize..range.end as usize;
        let (first, last) = (range.start / SLICE_BYTES, (range.end - 1) / SLICE_BYTES);
        let at = self.slices.iter().position(|&slice| slice == first);
        let at = at.filter(|at| self.slices.get(at + last - first) == Some(&last));
        let at = at.ok_or_else(|| wrong("it lacks slices"))?;
        // Slices ascend, so those between are present as well, and every slice but the log's last is full.
        let start = at * SLICE_BYTES + range.start % SLICE_BYTES;
        self.bytes.get(start..start + range.len()).ok_or_else(|| wrong("it lacks bytes"))
    }

    /// Checks that the slices are those of a log with this root.
    ///
    /// # Errors
    /// If the slices do not give `root`.
    pub fn verify(&self, root: &Digest) -> Result<(), Malformed> {
        let len = self.len as usize;
        let count = tensor::piece_count(len, SLICE_BYTES);
        let mut rest = self.bytes.as_slice();
        let mut values = Vec::new();
        for &slice in &self.slices {
            if slice >= count {
                return Err(wrong("a slice is outside the log"));
            }
            let bytes = rest
                .split_off(..tensor::piece_range(len, SLICE_BYTES, slice).len())
                .ok_or_else(|| wrong("a slice is too short"))?;
            values.push((slice, tensor::piece_value(bytes, SLICE_BYTES, slice, count)));
        }
        if !rest.is_empty() {
            return Err(wrong("it has bytes of no slice"));
        }
        // This call also checks that the slices ascend.
        let hash = multiproof::root(multiproof::blake3, count, &values, &self.siblings)?;
        if tensor::digest_from_root(&file_type(self.len), &hash) != *root {
            return Err(wrong("the log is not the one that the record commits"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::{BLOCK, decode, encode, unreadable};
    use super::*;

    #[test]
    fn parts_come_back_and_other_bytes_do_not() {
        let parts = vec![vec![1, 2, 3], vec![], vec![9; 300]];
        let log = Log::new(&parts);
        let again = Log::open(log.bytes().to_vec(), 3).unwrap();
        assert_eq!(again, log);
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(again.part(i), part);
        }
        assert!(Log::open(log.bytes().to_vec(), 2).is_err());
        assert!(Log::open(log.bytes()[..log.bytes().len() - 1].to_vec(), 3).is_err());
        assert!(Log::open([log.bytes(), &[0]].concat(), 3).is_err());
        assert!(Log::open(Vec::new(), 0).is_err());
    }

    /// Parts of several groups have proofs as small as parts of one group, and every fault shows at a part of the group that has
    /// it.
    #[test]
    fn a_log_of_many_parts_shows_one_group() {
        let parts: Vec<Vec<u8>> = (0..3 * GROUP + 7).map(|part| vec![7; part % 150]).collect();
        let log = Log::new(&parts);
        let count = parts.len();
        assert_eq!(Log::open(log.bytes().to_vec(), count).unwrap(), log);
        assert!((0..count).all(|part| log.part(part) == parts[part]));
        let shown = |bytes: &[u8], part: usize| {
            let place = BlockPlace { part, elements: 1, block: 0 };
            let proof = prove(bytes, count, place);
            assert!(proof.bytes.len() <= BLOCK_PROOF_BYTES_MAX && proof.bytes.len() <= 6 * SLICE_BYTES);
            let malformed = |shown| matches!(shown, Shown::Malformed(_));
            malformed(proof.block(&root(bytes), count, place).unwrap())
        };
        let empty = |part: usize| parts[part].is_empty();
        // Bytes of 7 are no decisions about one element, so only empty parts can be read.
        assert!((0..count).all(|part| shown(log.bytes(), part) != empty(part)));
        let groups = Groups::of(count);
        let places =
            [0, 9, 14, 15, 16, groups.directory, groups.directory + 6, groups.directory + 17, groups.first()];
        let lengths = [1, 2, 3].map(|number| {
            groups.group(number, log.bytes().len() as u64, log_bytes(&log, groups.entries(number)))
        });
        let places = places.into_iter().chain(lengths.into_iter().map(|group| group.unwrap().start as usize));
        for place in places {
            for changed in [1, 2, 0x80] {
                let mut bytes = log.bytes().to_vec();
                bytes[place] ^= changed;
                let odd = misplaced(&bytes, count).expect("it is malformed");
                assert!(odd.is_multiple_of(GROUP) && Log::open(bytes.clone(), count).is_err());
                assert!((odd..count.min(odd + GROUP)).all(|part| shown(&bytes, part)), "{place}");
                assert!(
                    (0..odd).all(|part| shown(&bytes, part) != empty(part)),
                    "{place}: the groups before it can be read"
                );
            }
        }
        for len in [0, 1, 15, 16, 17, groups.first() - 1, groups.first(), log.bytes().len() - 1] {
            let odd = misplaced(&log.bytes()[..len], count).expect("it is malformed");
            assert!(shown(&log.bytes()[..len], odd), "{len}");
        }
    }

    fn log_bytes(log: &Log, range: Range<u64>) -> &[u8] {
        &log.bytes()[range.start as usize..range.end as usize]
    }

    /// Decisions about every third element, some of two bits, and the number of elements.
    fn part(count: usize) -> (Vec<Decision>, u64) {
        let decision = |i: usize| Decision {
            place: 3 * i as u64,
            bits: if i.is_multiple_of(7) { 2 } else { 1 },
            residue: (i % 2) as u32,
        };
        ((0..count).map(decision).collect(), 3 * count as u64 + 5)
    }

    #[test]
    fn a_block_is_proven_without_the_others() {
        let sizes: [&[usize]; 5] =
            [&[0], &[5, 0, 7], &[0, 3000, 0, 20_000, 1], &[BLOCK; 9], &[100_000, 1, 2, 2 * BLOCK]];
        for sizes in sizes {
            let parts: Vec<(Vec<Decision>, u64)> = sizes.iter().map(|&count| part(count)).collect();
            let encoded = |(decisions, elements): &(Vec<Decision>, u64)| encode(decisions, *elements);
            let log = Log::new(&parts.iter().map(encoded).collect::<Vec<_>>());
            for (number, (decisions, elements)) in parts.iter().enumerate() {
                for place in [0, elements / 2, elements - 1] {
                    let block = log.block_of(number, *elements, place);
                    let at = BlockPlace { part: number, elements: *elements, block };
                    let proof = log.prove(number, *elements, block);
                    match proof.block(&log.root(), parts.len(), at).unwrap() {
                        Shown::Block(proven) => {
                            let places = proven.places();
                            assert!(places.contains(&place));
                            let about = decisions.iter().filter(|d| places.contains(&d.place)).copied();
                            assert_eq!(proven.decisions(), Ok(about.collect()));
                        }
                        Shown::Missing => assert!(decisions.is_empty()),
                        Shown::Malformed(why) => panic!("{why}"),
                    }
                    assert!(proof.bytes.len() <= 3 * BLOCK + 8 * SLICE_BYTES, "the others are left out");
                    refused_elsewhere(&proof, &log.root(), parts.len(), at);
                }
                let beyond = decisions.len().div_ceil(BLOCK) as u64;
                for block in [beyond, beyond + 1, u64::MAX] {
                    let at = BlockPlace { part: number, elements: *elements, block };
                    let proof = log.prove(number, *elements, block);
                    let shown = proof.block(&log.root(), parts.len(), at).unwrap();
                    assert!(matches!(shown, Shown::Missing), "{shown:?}");
                }
            }
        }
    }

    /// A proof shows nothing about another log or part, and nothing if it is edited.
    fn refused_elsewhere(proof: &SliceProof, root: &Digest, parts: usize, place: BlockPlace) {
        assert!(proof.block(&Log::new(&[vec![9]]).root(), parts, place).is_err());
        // A log of another number of parts is malformed for a reader who expects this number.
        let shown = proof.block(root, parts + 1, place);
        assert!(matches!(shown, Err(_) | Ok(Shown::Malformed(_))), "{shown:?}");
        assert!(proof.block(root, parts, BlockPlace { part: parts, ..place }).is_err());
        type Edit = fn(&mut SliceProof);
        let edits: [Edit; 9] = [
            |p| p.bytes[0] ^= 1,
            |p| p.len += 1,
            |p| p.len = 0,
            |p| p.slices[0] = usize::MAX,
            |p| p.slices.push(p.slices[0]),
            |p| p.slices.clear(),
            |p| p.bytes.push(0),
            |p| p.bytes.truncate(3),
            |p| p.siblings.push([1; 32]),
        ];
        for edit in edits {
            let mut edited = proof.clone();
            edit(&mut edited);
            assert!(edited.block(root, parts, place).is_err());
        }
    }

    /// If a part's bytes cannot be read, some block shows it; if they can, no block does.
    #[test]
    fn a_malformed_part_is_shown_by_one_of_its_blocks() {
        let (decisions, elements) = part(2 * BLOCK + 100);
        let bytes = encode(&decisions, elements);
        let mut unread = 0;
        for at in (0..bytes.len()).filter(|at| *at < 40 || at % 61 == 0) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            let log = Log::new(&[changed.clone()]);
            let shows = |block: u64| {
                let proof = log.prove(0, elements, block);
                match proof.block(&log.root(), 1, BlockPlace { part: 0, elements, block }).unwrap() {
                    Shown::Block(proven) => proven.decisions().is_err(),
                    Shown::Missing => false,
                    Shown::Malformed(_) => true,
                }
            };
            let odd = unreadable(&changed, elements);
            assert_eq!(odd.is_none(), decode(&changed, elements).is_ok());
            match odd {
                Some(odd) => assert!(shows(odd), "{at}"),
                None => assert!(!(0..4).any(shows), "{at}"),
            }
            unread += usize::from(odd.is_some());
        }
        assert!(unread > 30, "{unread} changed bytes make a part that cannot be read");
        for (bytes, elements) in [(vec![0; 70_000], 100_000), (vec![5], 100), (vec![0x80; 12], 100)] {
            let log = Log::new(&[bytes]);
            let proof = log.prove(0, elements, 0);
            let shown = proof.block(&log.root(), 1, BlockPlace { part: 0, elements, block: 0 }).unwrap();
            assert!(matches!(shown, Shown::Malformed(_)));
        }
    }
}

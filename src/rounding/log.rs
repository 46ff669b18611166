//! The log of a step: one part for each logged product of each micro-batch, in execution order, behind an index of their
//! lengths. Layout: `docs/ROUNDING.md`, section 5.
//!
//! Its root is a tensor digest of the file's bytes, so a block of a part can be proven with the index and the entries that say where it lies
//! and without the rest: [`SliceProof`].

use std::convert::Infallible;
use std::ops::Range;

use super::Decision;
use super::codec::{BLOCK_BYTES_MAX, Block, Head, part_bytes_max, put_varint, take_varint};
use crate::arith::DType;
use crate::commit::digest::Digest;
use crate::commit::tensor::{Hash, SLICE_BYTES};
use crate::commit::{Malformed, multiproof, tensor};
use crate::program::graph::{LoggedProduct, TensorType};
use crate::program::step::Program;

/// The first bytes of a log.
const MAGIC: &[u8] = b"tiebreak log 2\n";

/// The log of a step: encoded parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    bytes: Vec<u8>,
    parts: Vec<Range<usize>>,
}

impl Log {
    /// Puts a log together.
    pub fn new(parts: &[Vec<u8>]) -> Log {
        let mut bytes = MAGIC.to_vec();
        put_varint(&mut bytes, parts.len() as u64);
        for part in parts {
            put_varint(&mut bytes, part.len() as u64);
        }
        let mut ranges = Vec::with_capacity(parts.len());
        for part in parts {
            ranges.push(bytes.len()..bytes.len() + part.len());
            bytes.extend(part);
        }
        Log { bytes, parts: ranges }
    }

    /// Reads the index of a log that must have `parts` parts. Parts are decoded when they are asked for.
    ///
    /// # Errors
    /// If the index is malformed, lists another number of parts, or does not fill the file.
    pub fn open(bytes: Vec<u8>, parts: usize) -> Result<Log, Malformed> {
        let index = Index::read(&bytes, bytes.len() as u64, parts)?;
        let parts = index.parts.into_iter().map(|part| part.start as usize..part.end as usize).collect();
        Ok(Log { bytes, parts })
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of a part.
    pub fn part(&self, number: usize) -> &[u8] {
        &self.bytes[self.parts[number].clone()]
    }

    /// What a record promises.
    pub fn root(&self) -> Digest {
        tensor::digest(&file_type(self.bytes.len() as u32), &self.bytes)
    }

    /// The block of a part, about a product of so many elements, that has the decisions about a place, if any has.
    pub fn block_of(&self, number: usize, elements: u64, place: u64) -> u64 {
        let part = self.part(number);
        Head::read(part, part.len() as u64, elements).map_or(0, |head| head.block_of(part, place))
    }

    /// What proves a block of a part, about a product of so many elements, to whoever knows the root; of a block that the part does not
    /// have, that it has not; where the log is malformed, that it is.
    pub fn prove(&self, number: usize, elements: u64, block: u64) -> SliceProof {
        let index = self.parts.first().map_or(self.bytes.len(), |first| first.start);
        let (part, bytes) = (self.parts[number].clone(), self.part(number));
        let get = |range: &Range<u64>| Ok::<_, Infallible>(&bytes[range.start as usize..range.end as usize]);
        let Ok(Located { ranges, .. }) = Located::new(bytes.len() as u64, elements, block, get);
        self.proof(&self.slice_values(), slices(self.bytes.len(), needed(index, &part, ranges)).collect())
    }

    /// The BLAKE3 values of the file's slices, for [`Log::prove_slices`].
    pub fn slice_values(&self) -> Vec<Hash> {
        tensor::piece_values(&self.bytes, SLICE_BYTES)
    }

    /// What proves up to `count` slices from `first` on; `values` are the [`Log::slice_values`]. `None` if the file has no slice `first`.
    pub fn prove_slices(&self, values: &[Hash], first: usize, count: usize) -> Option<SliceProof> {
        let slices: Vec<usize> = (first..values.len()).take(count).collect();
        (!slices.is_empty()).then(|| self.proof(values, slices))
    }

    fn proof(&self, values: &[Hash], slices: Vec<usize>) -> SliceProof {
        let piece = |&slice: &usize| &self.bytes[tensor::piece_range(self.bytes.len(), SLICE_BYTES, slice)];
        SliceProof {
            len: self.bytes.len() as u32,
            bytes: slices.iter().map(piece).collect::<Vec<_>>().concat(),
            siblings: multiproof::prove(multiproof::blake3, values, &slices),
            slices,
        }
    }
}

/// The values of a step that logged products round.
pub fn values(products: &[LoggedProduct], micro_batches: u32) -> u64 {
    let elements: u64 = products.iter().map(|product| product.elements() as u64).sum();
    elements.saturating_mul(u64::from(micro_batches))
}

/// The most bytes of the log of a step: an index, and every part as long as it can be.
pub fn bytes_max(products: &[LoggedProduct], micro_batches: u32) -> u64 {
    let parts: u64 = products.iter().map(|product| part_bytes_max(product.elements() as u64)).sum();
    let most = parts.saturating_mul(u64::from(micro_batches));
    most.saturating_add(index_bytes_max(products.len() * micro_batches as usize) as u64)
}

/// How many parts the log of a step has: one for each logged product of each micro-batch.
pub fn parts(program: &Program) -> usize {
    program.micro.logged.len() * program.micro_batches as usize
}

/// Elements of the product that a part of a log is about.
pub fn elements(program: &Program, part: usize) -> u64 {
    let products = &program.micro.logged;
    products.get(part % products.len().max(1)).map_or(0, |product| product.elements() as u64)
}

/// The type of a log's file as the tensor that its root is a digest of.
fn file_type(len: u32) -> TensorType {
    TensorType { dtype: DType::U8, shape: vec![len] }
}

/// The bytes of a log that prove a block: the index, and the part's ranges moved to where the part is.
fn needed(index: usize, part: &Range<usize>, ranges: [Range<u64>; 3]) -> [Range<usize>; 4] {
    let [head, entries, block] =
        ranges.map(|range| part.start + range.start as usize..part.start + range.end as usize);
    [0..index, head, entries, block]
}

/// The slices that byte ranges of a file lie in, ascending. Ranges that are not empty ascend, and end within the file.
fn slices(len: usize, ranges: [Range<usize>; 4]) -> impl Iterator<Item = usize> {
    let mut next = 0;
    ranges.into_iter().flat_map(move |range| {
        // An empty range lies nowhere; an empty file has one slice all the same.
        let end = if range.is_empty() && len > 0 { 0 } else { range.end.div_ceil(SLICE_BYTES).max(1) };
        let slices = (range.start / SLICE_BYTES).max(next)..end;
        next = next.max(end);
        slices
    })
}

/// Some slices of a log, with what proves them under the log's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceProof {
    /// Bytes of the log.
    pub len: u32,
    /// Which slices are carried, ascending.
    pub slices: Vec<usize>,
    /// Their bytes, one after another.
    pub bytes: Vec<u8>,
    /// The BLAKE3 hashes that prove the slices in the log's root.
    pub siblings: Vec<Hash>,
}

/// The most bytes that [`SliceProof`] carries for a block of a log of so many parts: index, block, and the
/// slices that the ends of four ranges lie in, of which the first begins with a slice.
pub fn block_proof_bytes_max(parts: usize) -> usize {
    index_bytes_max(parts) + BLOCK_BYTES_MAX + 7 * SLICE_BYTES
}

/// Where a part of a log is disputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The part.
    pub part: usize,
    /// Elements of the part's product.
    pub elements: u64,
    /// The part's block.
    pub block: u64,
}

/// What a proof shows of a block.
#[derive(Clone, Debug)]
pub enum Shown<'a> {
    /// The block.
    Block(Proven<'a>),
    /// The part has no such block.
    Missing,
    /// The log is malformed where it says where the block is.
    Malformed(Malformed),
}

/// Where a part says that a block is.
struct Located {
    /// The block, `None` if there is no such one.
    block: Result<Option<(Head, Block)>, Malformed>,
    /// The ranges of the part that say so: its beginning, entries of its directory, the block.
    ranges: [Range<u64>; 3],
}

impl Located {
    /// Looks a block up in a part of `len` bytes.
    fn new<'a, E>(
        len: u64,
        elements: u64,
        number: u64,
        get: impl Fn(&Range<u64>) -> Result<&'a [u8], E>,
    ) -> Result<Located, E> {
        let beginning = Head::bytes(len);
        let head = match Head::read(get(&beginning)?, len, elements) {
            Ok(head) => head,
            Err(why) => return Ok(Located { block: Err(why), ranges: [beginning, 0..0, 0..0] }),
        };
        let entries = head.entries(number);
        if number >= head.blocks() {
            return Ok(Located { block: Ok(None), ranges: [beginning, entries, 0..0] });
        }
        let block = head.block(number, get(&entries)?);
        let bytes = block.as_ref().map_or(0..0, |block| block.bytes.clone());
        let block = block.map(|block| Some((head, block)));
        Ok(Located { block, ranges: [beginning, entries, bytes] })
    }
}

/// A block that was proven; its bytes are not read yet.
#[derive(Clone, Debug)]
pub struct Proven<'a> {
    head: Head,
    number: u64,
    block: Block,
    bytes: &'a [u8],
}

impl Proven<'_> {
    /// The elements that the block's decisions are about: the log has no others about them.
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
    /// If the slices do not give `root`, do not hold the log's index, or are others than those that show the block.
    pub fn block(&self, root: &Digest, parts: usize, place: BlockPlace) -> Result<Shown<'_>, Malformed> {
        self.verify(root)?;
        let leading = (0..).zip(&self.slices).take_while(|(i, slice)| i == *slice).count();
        let beginning = &self.bytes[..self.bytes.len().min(leading * SLICE_BYTES)];
        let index = Index::read(beginning, u64::from(self.len), parts)?;
        let part = index.parts.get(place.part).ok_or_else(|| wrong("the log has no such part"))?;
        let part = part.start as usize..part.end as usize;
        let get =
            |range: &Range<u64>| self.get(part.start + range.start as usize..part.start + range.end as usize);
        let located = Located::new(part.len() as u64, place.elements, place.block, get)?;
        let bytes = get(&located.ranges[2])?;
        let needed = needed(index.bytes as usize, &part, located.ranges);
        if !slices(self.len as usize, needed).eq(self.slices.iter().copied()) {
            return Err(wrong("its slices are not those of the index, the entries and the block"));
        }
        Ok(match located.block {
            Ok(Some((head, block))) => Shown::Block(Proven { head, number: place.block, block, bytes }),
            Ok(None) => Shown::Missing,
            Err(why) => Shown::Malformed(why),
        })
    }

    /// Bytes of the log that lie in the slices; call it after [`SliceProof::verify`].
    fn get(&self, range: Range<usize>) -> Result<&[u8], Malformed> {
        if range.is_empty() {
            return Ok(&[]);
        }
        let (first, last) = (range.start / SLICE_BYTES, (range.end - 1) / SLICE_BYTES);
        let at = self.slices.iter().position(|&slice| slice == first);
        let at = at.filter(|at| self.slices.get(at + last - first) == Some(&last));
        let at = at.ok_or_else(|| wrong("it lacks slices"))?;
        // Slices ascend, so those between are there as well, and every slice but the log's last is full.
        let start = at * SLICE_BYTES + range.start % SLICE_BYTES;
        self.bytes.get(start..start + range.len()).ok_or_else(|| wrong("it lacks bytes"))
    }

    /// Checks that the slices are those of a log with this root.
    ///
    /// # Errors
    /// If they do not give `root`.
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
        // This also checks that the slices ascend.
        let hash = multiproof::root(multiproof::blake3, count, &values, &self.siblings)?;
        if tensor::digest_from_root(&file_type(self.len), &hash) != *root {
            return Err(wrong("the log is not the one that the record commits"));
        }
        Ok(())
    }
}

/// Where the parts of a log lie: all that a reader of one part needs beside it.
pub struct Index {
    /// Bytes of the index itself.
    pub bytes: u64,
    /// The bytes of each part in the log, in order.
    pub parts: Vec<Range<u64>>,
}

/// The most bytes of an index of this many parts, in a file of at most 2^32 - 1 bytes: no length takes more than five.
pub fn index_bytes_max(parts: usize) -> usize {
    MAGIC.len() + 5 * (parts + 1)
}

impl Index {
    /// Reads the index off the beginning of a file of `len` bytes.
    ///
    /// # Errors
    /// If the index is malformed, lists another number of parts, or does not fill the file.
    pub fn read(beginning: &[u8], len: u64, parts: usize) -> Result<Index, Malformed> {
        let invalid = |why: String| Malformed::invalid("rounding log", why);
        let mut rest = beginning
            .strip_prefix(MAGIC)
            .ok_or_else(|| invalid("it does not begin with `tiebreak log 2`".into()))?;
        let count = take_varint(&mut rest)?;
        if count != parts as u64 {
            return Err(invalid(format!("it has {count} parts, the program's steps have {parts}")));
        }
        let mut lengths = Vec::with_capacity(parts);
        for _ in 0..parts {
            lengths.push(take_varint(&mut rest)?);
        }
        let bytes = (beginning.len() - rest.len()) as u64;
        let mut at = bytes;
        let mut ranges = Vec::with_capacity(parts);
        for length in lengths {
            let end = at.checked_add(length).filter(|&end| end <= len);
            let end = end.ok_or_else(|| invalid("a part reaches past the end".into()))?;
            ranges.push(at..end);
            at = end;
        }
        if at != len {
            return Err(Malformed::Trailing { what: "rounding log", extra: (len - at) as usize });
        }
        Ok(Index { bytes, parts: ranges })
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
        let begin = &log.bytes()[..index_bytes_max(3).min(log.bytes().len())];
        assert_eq!(Index::read(begin, log.bytes().len() as u64, 3).unwrap().parts.len(), 3);
        assert!(Log::open(log.bytes().to_vec(), 2).is_err());
        assert!(Log::open(log.bytes()[..log.bytes().len() - 1].to_vec(), 3).is_err());
        assert!(Log::open([log.bytes(), &[0]].concat(), 3).is_err());
        assert!(Log::open(Vec::new(), 0).is_err());
    }

    /// Decisions about every third element, some of two bits, and how many elements there are.
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

    /// A proof shows nothing of another log or part, and nothing if it is edited.
    fn refused_elsewhere(proof: &SliceProof, root: &Digest, parts: usize, place: BlockPlace) {
        assert!(proof.block(&Log::new(&[vec![9]]).root(), parts, place).is_err());
        assert!(proof.block(root, parts + 1, place).is_err());
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

    /// Whatever bytes a part has, some block shows that it cannot be read if it cannot be, and none does if it can.
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

//! The decisions of one product as bytes, in blocks that can be read alone. Gaps between places are in an adaptive Rice code,
//! with one bit for each decision. The few decisions with more bits are stored apart. Layout: `docs/ROUNDING.md`, section 5.
//!
//! Places of near ties are nearly random, so gaps are geometric. A Rice code whose parameter follows their mean is within a few
//! percent of the entropy. The parameter follows the mean because the density changes from row to row.

use std::ops::Range;

use super::{BITS_MAX, Decision};
use crate::commit::Malformed;

const WHAT: &str = "rounding log";
/// Gaps that the running mean remembers.
const MEMORY: u64 = 64;
/// The longest unary part; a longer gap is written in 48 bits after it.
const UNARY_MAX: u32 = 24;
/// Bits of a place.
const PLACE_BITS: u32 = 48;
/// Decisions of a block; the last one of a part has fewer.
pub const BLOCK: usize = 1024;
/// Bytes of an entry of a part's directory: the first place of a block, and the position of its bytes.
const ENTRY_BYTES: usize = 12;
/// The most bytes of a part before its directory: a varint.
const COUNT_BYTES_MAX: usize = 9;
/// The most bytes of a block: an integer, and for each decision two gaps in the long form, unary bits and residue bits.
pub(crate) const BLOCK_BYTES_MAX: usize =
    COUNT_BYTES_MAX + (BLOCK * (2 * (UNARY_MAX + PLACE_BITS) as usize + 2 * BITS_MAX as usize)).div_ceil(8);

/// The most bytes of a part that give the position of one of its blocks: the number of decisions, and two entries of the
/// directory.
pub(crate) const PROVEN_PART_BYTES_MAX: usize = COUNT_BYTES_MAX + 2 * ENTRY_BYTES;

/// The most bits that decisions about N elements take, divided by N; 20 bits for every element take 41 N.
///
/// A gap g takes at most 3 g + 1 + k bits: g + 1 + k with a quotient below [`UNARY_MAX`], else 72, and then g is 24 or more. k is
/// at most 3/8 of the mean, since log2(45 m / 64) is. In a block a gap counts in the means after it with weights that add up to
/// less than 3.4 (1/c for c = 5 to 63, then halves). The first mean floor(N / n), of n decisions in one block or more, adds up to
/// less than N over all blocks. So gaps that add up to N - n take at most 3 (N - n) + n + 3/8 (N + 3.4 (N - n)) bits. The numbers
/// of wide decisions take likewise many bits, with n in place of N, and residues take 1 + 38 bits. The sum is greatest if n = N
/// and all decisions are wide: 2 * (1 + 3/8) + 39 = 41.75.
const ELEMENT_BITS_MAX: u64 = 42;

/// The most bytes of a part about a product of `elements` elements.
pub(crate) fn part_bytes_max(elements: u64) -> u64 {
    // A block has an entry, the number of its wide decisions, and a last byte that is not full.
    let blocks = elements.div_ceil(BLOCK as u64).saturating_mul(ENTRY_BYTES as u64 + 3);
    elements.saturating_mul(ELEMENT_BITS_MAX).div_ceil(8).saturating_add(blocks) + COUNT_BYTES_MAX as u64
}

/// The Rice parameter that suits recent gaps. The arithmetic is on integers only, so that every reader gets the same parameter.
struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    fn new(elements: u64, entries: u64) -> Mean {
        Mean { sum: elements.min(1 << PLACE_BITS) / entries.max(1) * 4, count: 4 }
    }

    /// The parameter for the mean gap g: the greatest k with 2^k <= g * ln 2, about.
    fn parameter(&self) -> u32 {
        let scaled = self.sum * 45 / (64 * self.count);
        scaled.max(1).ilog2().min(40)
    }

    fn add(&mut self, gap: u64) {
        self.sum += gap;
        self.count += 1;
        if self.count == MEMORY {
            self.sum /= 2;
            self.count /= 2;
        }
    }
}

#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    /// Bits not written yet, lowest first.
    pending: u128,
    count: u32,
}

impl BitWriter {
    fn bits(&mut self, value: u64, count: u32) {
        self.pending |= u128::from(value) << self.count;
        self.count += count;
        while self.count >= 8 {
            self.bytes.push(self.pending as u8);
            self.pending >>= 8;
            self.count -= 8;
        }
    }

    fn rice(&mut self, value: u64, mean: &mut Mean) {
        let k = mean.parameter();
        mean.add(value);
        let quotient = value >> k;
        if quotient >= u64::from(UNARY_MAX) {
            self.bits((1 << UNARY_MAX) - 1, UNARY_MAX);
            return self.bits(value, PLACE_BITS);
        }
        self.bits((1 << quotient) - 1, quotient as u32 + 1);
        self.bits(value & ((1 << k) - 1), k);
    }

    fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.bytes.push(self.pending as u8);
        }
        self.bytes
    }
}

struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl BitReader<'_> {
    fn bit(&mut self) -> Result<u64, Malformed> {
        let byte = self.bytes.get(self.at / 8).ok_or(Malformed::Truncated { what: WHAT })?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Ok(u64::from(bit))
    }

    fn bits(&mut self, count: u32) -> Result<u64, Malformed> {
        let mut value = 0;
        for i in 0..count {
            value |= self.bit()? << i;
        }
        Ok(value)
    }

    fn rice(&mut self, mean: &mut Mean) -> Result<u64, Malformed> {
        let k = mean.parameter();
        let mut quotient = 0;
        while quotient < UNARY_MAX && self.bit()? == 1 {
            quotient += 1;
        }
        let value = if quotient == UNARY_MAX {
            let value = self.bits(PLACE_BITS)?;
            if value >> k < u64::from(UNARY_MAX) {
                return Err(Malformed::invalid(WHAT, "a short gap in the long form"));
            }
            value
        } else {
            (u64::from(quotient) << k) | self.bits(k)?
        };
        mean.add(value);
        Ok(value)
    }

    /// Checks that only zero bits of the last byte are left.
    fn finish(self) -> Result<(), Malformed> {
        let used = self.at.div_ceil(8);
        if self.bytes.len() > used {
            return Err(Malformed::Trailing { what: WHAT, extra: self.bytes.len() - used });
        }
        let padding = if self.at.is_multiple_of(8) { 0 } else { self.bytes[used - 1] >> (self.at % 8) };
        if padding != 0 {
            return Err(Malformed::invalid(WHAT, "padding that is not zero"));
        }
        Ok(())
    }
}

/// Appends an integer with seven bits in each byte, the least significant first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes an integer off the front, in its shortest form only.
///
/// # Errors
/// If the bytes end too early, or the integer has more than nine bytes or not its shortest form.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for i in 0..9 {
        let (&byte, rest) = bytes.split_first().ok_or(Malformed::Truncated { what: WHAT })?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            if byte == 0 && i > 0 {
                return Err(Malformed::invalid(WHAT, "an integer is not in its shortest form"));
            }
            return Ok(value);
        }
    }
    Err(Malformed::invalid(WHAT, "an integer is too long"))
}

/// The bytes of a product's decisions. The decisions are in order of their places, all below `elements`. No decisions give no
/// bytes.
pub fn encode(decisions: &[Decision], elements: u64) -> Vec<u8> {
    if decisions.is_empty() {
        return Vec::new();
    }
    let count = decisions.len() as u64;
    let mut out = Vec::new();
    put_varint(&mut out, count);
    let (mut directory, mut blocks) = (Vec::<u8>::new(), Vec::<u8>::new());
    let mut next = 0;
    for (number, block) in decisions.chunks(BLOCK).enumerate() {
        if number > 0 {
            for value in [next, blocks.len() as u64] {
                directory.extend(&value.to_le_bytes()[..PLACE_BITS as usize / 8]);
            }
        }
        blocks.extend(encode_block(block, next, Mean::new(elements, count)));
        next = block.last().map_or(next, |decision| decision.place + 1);
    }
    debug_assert!(next <= elements, "places are below the number of elements");
    out.extend(directory);
    out.extend(blocks);
    out
}

/// The bytes of a block whose places are all at least `next`.
fn encode_block(decisions: &[Decision], mut next: u64, mut mean: Mean) -> Vec<u8> {
    let wide: Vec<(u64, &Decision)> = (0..).zip(decisions).filter(|(_, d)| d.bits > 1).collect();
    let mut head = Vec::new();
    put_varint(&mut head, wide.len() as u64);
    let mut w = BitWriter { bytes: head, ..BitWriter::default() };
    for d in decisions {
        debug_assert!(d.place >= next, "places grow");
        w.rice(d.place - next, &mut mean);
        w.bits(u64::from(d.residue & 1), 1);
        next = d.place + 1;
    }
    let mut mean = Mean::new(decisions.len() as u64, wide.len() as u64);
    let mut next = 0;
    for (number, d) in wide {
        w.rice(number - next, &mut mean);
        w.bits((1 << (d.bits - 2)) - 1, u32::from(d.bits) - 1); // bits - 2 in unary
        w.bits(u64::from(d.residue >> 1), u32::from(d.bits) - 1);
        next = number + 1;
    }
    w.finish()
}

/// The position of a block of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The elements that the block covers: the log has no decisions about them elsewhere.
    pub places: Range<u64>,
    /// The block's bytes in the part.
    pub bytes: Range<u64>,
}

/// The description of a part's blocks at the beginning of the part.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Decisions of the part.
    count: u64,
    /// Elements of the product.
    elements: u64,
    /// Bytes of the part.
    len: u64,
    /// Bytes before the directory.
    directory: u64,
}

impl Head {
    /// The bytes of a part that [`Head::read`] reads.
    pub(crate) fn bytes(len: u64) -> Range<u64> {
        0..len.min(COUNT_BYTES_MAX as u64)
    }

    /// Reads the beginning of a part that has `len` bytes and is about a product of `elements` elements.
    ///
    /// # Errors
    /// If the number of decisions does not fit the number of bytes.
    pub(crate) fn read(beginning: &[u8], len: u64, elements: u64) -> Result<Head, Malformed> {
        if len == 0 {
            return Ok(Head { count: 0, elements, len, directory: 0 });
        }
        let mut rest = beginning;
        let count = take_varint(&mut rest)?;
        let head = Head { count, elements, len, directory: (beginning.len() - rest.len()) as u64 };
        // Every decision takes at least two bits.
        if count == 0 || count > elements || count / 4 > len || head.first() >= len {
            return Err(Malformed::invalid(WHAT, format!("{count} decisions cannot be here")));
        }
        Ok(head)
    }

    /// The number of blocks of the part.
    pub(crate) fn blocks(&self) -> u64 {
        self.count.div_ceil(BLOCK as u64)
    }

    /// The byte where the first block begins.
    fn first(&self) -> u64 {
        self.directory + self.blocks().saturating_sub(1) * ENTRY_BYTES as u64
    }

    /// The entries of the directory that give the position of a block; there are none for the only block of a part.
    pub(crate) fn entries(&self, block: u64) -> Range<u64> {
        let last = self.blocks().saturating_sub(1);
        let entry = |number: u64| self.directory + number.min(last) * ENTRY_BYTES as u64;
        entry(block.saturating_sub(1))..entry(block.saturating_add(1))
    }

    /// The position of a block, from the bytes of [`Head::entries`].
    ///
    /// # Errors
    /// If there is no such block, or the entries cannot be about one.
    pub(crate) fn block(&self, block: u64, entries: &[u8]) -> Result<Block, Malformed> {
        let wrong = |why: &str| Malformed::invalid(WHAT, format!("block {block}: {why}"));
        let range = self.entries(block);
        if block >= self.blocks() || entries.len() as u64 != range.end - range.start {
            return Err(wrong("the part has no such block"));
        }
        let mut entries = entries.chunks_exact(ENTRY_BYTES).map(|entry| {
            let value =
                |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
            let (place, at) = entry.split_at(ENTRY_BYTES / 2);
            (value(place), self.first() + value(at))
        });
        let (place, at) = if block == 0 { (0, self.first()) } else { entries.next().unwrap_or_default() };
        let (end_place, end) = entries.next().unwrap_or((self.elements, self.len));
        if end_place > self.elements || end > self.len {
            return Err(wrong("it lies outside the part"));
        }
        if place >= end_place || at >= end || end - at > BLOCK_BYTES_MAX as u64 {
            return Err(wrong("it has no places, no bytes or too many"));
        }
        Ok(Block { places: place..end_place, bytes: at..end })
    }

    /// The block that covers a place, from the bytes of the whole part; the last block if the directory is malformed.
    pub(crate) fn block_of(&self, part: &[u8], place: u64) -> u64 {
        let entry = |number: u64| {
            let range = self.entries(number);
            // The block ends at the last entry of the range, except for the last block, which ends with the part.
            let bytes = part.get(range.start as usize..range.end as usize).unwrap_or_default();
            self.block(number, bytes).ok()
        };
        let (mut low, mut high) = (0, self.blocks().saturating_sub(1));
        while low < high {
            let middle = low.midpoint(high);
            match entry(middle) {
                Some(block) if block.places.end <= place => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// The decisions of a block.
    ///
    /// # Errors
    /// If the bytes are not the only encoding of the block's number of decisions, about its places.
    pub fn decode(&self, number: u64, block: &Block, bytes: &[u8]) -> Result<Vec<Decision>, Malformed> {
        let before = number.saturating_mul(BLOCK as u64);
        let count = self.count.saturating_sub(before).min(BLOCK as u64);
        let mean = Mean::new(self.elements, self.count);
        let (decisions, next) = decode_block(bytes, count, block.places.clone(), mean)?;
        if number + 1 < self.blocks() && next != block.places.end {
            return Err(Malformed::invalid(
                WHAT,
                format!("block {number}: the next one does not begin at its end"),
            ));
        }
        Ok(decisions)
    }
}

/// The decisions of a block, and the place after the last one.
fn decode_block(
    mut rest: &[u8],
    count: u64,
    places: Range<u64>,
    mut mean: Mean,
) -> Result<(Vec<Decision>, u64), Malformed> {
    let wide = take_varint(&mut rest)?;
    if wide > count || count / 4 > rest.len() as u64 {
        return Err(Malformed::invalid(WHAT, format!("{count} decisions cannot be here")));
    }
    let mut r = BitReader { bytes: rest, at: 0 };
    let mut decisions = Vec::with_capacity(count as usize);
    let mut next = places.start;
    for _ in 0..count {
        let place = next + r.rice(&mut mean)?;
        if place >= places.end {
            return Err(Malformed::invalid(WHAT, format!("place {place} is not below {}", places.end)));
        }
        decisions.push(Decision { place, bits: 1, residue: r.bit()? as u32 });
        next = place + 1;
    }
    let mut mean = Mean::new(count, wide);
    let mut number = 0u64;
    for _ in 0..wide {
        number += r.rice(&mut mean)?;
        let decision = decisions
            .get_mut(usize::try_from(number).unwrap_or(usize::MAX))
            .ok_or_else(|| Malformed::invalid(WHAT, format!("decision {number} of {count}")))?;
        let mut bits = 2;
        while r.bit()? == 1 {
            bits += 1;
            if bits > BITS_MAX {
                return Err(Malformed::invalid(WHAT, format!("a decision of more than {BITS_MAX} bits")));
            }
        }
        decision.bits = bits;
        decision.residue |= (r.bits(u32::from(bits) - 1)? as u32) << 1;
        number += 1;
    }
    r.finish()?;
    Ok((decisions, next))
}

/// The decisions of a product of `elements` elements.
///
/// # Errors
/// If the bytes are not the only encoding of decisions about this number of elements.
pub fn decode(bytes: &[u8], elements: u64) -> Result<Vec<Decision>, Malformed> {
    let head = Head::read(bytes, bytes.len() as u64, elements)?;
    let mut decisions = Vec::with_capacity(head.count as usize);
    for number in 0..head.blocks() {
        decisions.extend(block_of_part(&head, bytes, number)?);
    }
    Ok(decisions)
}

/// The first block of a part that cannot be read; `None` if all blocks can.
pub fn unreadable(bytes: &[u8], elements: u64) -> Option<u64> {
    match Head::read(bytes, bytes.len() as u64, elements) {
        Ok(head) => (0..head.blocks()).find(|&number| block_of_part(&head, bytes, number).is_err()),
        Err(_) => Some(0),
    }
}

/// The decisions of one block of a whole part.
fn block_of_part(head: &Head, part: &[u8], number: u64) -> Result<Vec<Decision>, Malformed> {
    let bytes = |range: Range<u64>| part.get(range.start as usize..range.end as usize).unwrap_or_default();
    let block = head.block(number, bytes(head.entries(number)))?;
    head.decode(number, &block, bytes(block.bytes.clone()))
}

/// Bits that decisions at random places need: H(n / N) for every element, and the bits of the decisions.
pub fn entropy_bits(decisions: &[Decision], elements: u64) -> f64 {
    let (n, total) = (decisions.len() as f64, elements as f64);
    let term = |count: f64| if count <= 0.0 { 0.0 } else { -count * (count / total).log2() };
    term(n) + term(total - n) + decisions.iter().map(|d| f64::from(d.bits)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn random(elements: u64, density: f64, wide: f64, seed: u64) -> Vec<Decision> {
        let mut state = seed.wrapping_mul(2) + 1;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / f64::from(1u32 << 31)
        };
        let mut decisions = Vec::new();
        for place in 0..elements {
            if next() < density {
                let bits = if next() < wide { 2 + (next() * 18.0) as u8 } else { 1 };
                decisions.push(Decision { place, bits, residue: (next() * f64::from(1u32 << bits)) as u32 });
            }
        }
        decisions
    }

    #[test]
    fn decisions_come_back_in_close_to_their_entropy() {
        for (density, wide, most) in [
            (0.0, 0.0, 1.0),
            (1e-4, 0.0, 1.06),
            (0.01, 0.0, 1.04),
            (0.01, 0.01, 1.06),
            (0.2, 0.0, 1.08),
            (0.9, 0.0, 1.5),
            (1.0, 0.5, 2.3),
        ] {
            let elements = 1 << 20;
            let decisions = random(elements, density, wide, 7);
            let bytes = encode(&decisions, elements);
            assert_eq!(decode(&bytes, elements).unwrap(), decisions);
            let ratio = bytes.len() as f64 * 8.0 / entropy_bits(&decisions, elements).max(1.0);
            assert!(ratio <= most, "{density} {wide}: {ratio}");
        }
    }

    #[test]
    fn what_cannot_be_a_log_is_refused() {
        let elements = 1 << 16;
        let decisions = random(elements, 0.01, 0.1, 3);
        let bytes = encode(&decisions, elements);
        assert!(decode(&bytes[..bytes.len() - 1], elements).is_err());
        assert!(decode(&[&bytes[..], &[0]].concat(), elements).is_err());
        assert!(decode(&bytes, elements / 2).is_err(), "places beyond the elements");
        assert!(decode(&[0xff; 40], elements).is_err());
        let mut many = Vec::new();
        put_varint(&mut many, 1 << 40);
        put_varint(&mut many, 0);
        assert!(decode(&many, 1 << 41).is_err(), "nothing is allocated for decisions that cannot be there");
    }

    #[test]
    fn blocks_are_read_alone() {
        let elements = 1 << 18;
        let decisions = random(elements, 0.05, 0.1, 5);
        let bytes = encode(&decisions, elements);
        let head = Head::read(&bytes[..COUNT_BYTES_MAX], bytes.len() as u64, elements).unwrap();
        assert_eq!(head.blocks(), 13, "{} decisions", decisions.len());
        let mut next = 0;
        for number in 0..head.blocks() {
            let entries = head.entries(number);
            let block = head.block(number, &bytes[entries.start as usize..entries.end as usize]).unwrap();
            assert_eq!(block.places.start, next);
            next = block.places.end;
            let alone = &bytes[block.bytes.start as usize..block.bytes.end as usize];
            let about: Vec<Decision> =
                decisions.iter().filter(|d| block.places.contains(&d.place)).copied().collect();
            assert_eq!(head.decode(number, &block, alone), Ok(about));
            for place in [block.places.start, block.places.end - 1] {
                assert_eq!(head.block_of(&bytes, place), number);
            }
            // Each moved end is noticed by the block that ends there.
            for end in [entries.start, entries.end.saturating_sub(12)] {
                let mut moved = bytes.clone();
                moved[end as usize] ^= 1;
                let odd = unreadable(&moved, elements);
                assert!(odd.is_some_and(|odd| odd <= number), "{number}: {odd:?}");
            }
        }
        assert_eq!(next, elements);
    }

    /// Gaps are as long as they can be, in both codes, and decisions have as many bits as they can.
    #[test]
    fn no_block_is_larger_than_its_bound() {
        let decision = |i: u64| Decision { place: i << 36, bits: BITS_MAX, residue: (1 << BITS_MAX) - 1 };
        let decisions: Vec<Decision> = (0..BLOCK as u64).map(decision).collect();
        let bytes = encode_block(&decisions, 0, Mean { sum: 4, count: 4 });
        assert!((8_000..=BLOCK_BYTES_MAX).contains(&bytes.len()), "{}", bytes.len());
    }

    /// A part with the most bits for every element comes close to the bound, and no part that is built to be long exceeds it.
    #[test]
    fn no_part_is_longer_than_its_bound() {
        let wide = |place| Decision { place, bits: BITS_MAX, residue: (1 << BITS_MAX) - 1 };
        for elements in [1, 2, 3, 10, 100, 1023, 1024, 1025, 5000, 100_000] {
            let all: Vec<Decision> = (0..elements).map(wide).collect();
            let most = part_bytes_max(elements);
            let len = encode(&all, elements).len() as u64;
            assert!(len <= most && (elements < 1000 || 30 * most < 31 * len), "{elements}: {len} of {most}");
            // There are few and many decisions; short gaps, then one just long enough for the long form, and the other way round.
            for every in [1, 2, 3, 7, 24, 25, 30, 50, 100, 1000, 10_000] {
                for burst in [1, 2, 5, 20, 60, 64, 200] {
                    let places = (0..elements).filter(|place| place % (every + burst) < burst);
                    let decisions: Vec<Decision> = places.map(wide).collect();
                    let len = encode(&decisions, elements).len() as u64;
                    assert!(len <= most, "{elements}, {every}, {burst}: {len} of {most}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_what_encodes_to_them(bytes in prop::collection::vec(any::<u8>(), 0..64), elements in 1u64..5000) {
            if let Ok(decisions) = decode(&bytes, elements) {
                prop_assert_eq!(encode(&decisions, elements), bytes);
            }
        }

        #[test]
        fn any_decisions_come_back(density in 0.0..1.0, wide in 0.0..1.0, elements in 1u64..10_000, seed: u64) {
            let decisions = random(elements, density, wide, seed);
            let bytes = encode(&decisions, elements);
            prop_assert!(bytes.len() as u64 <= part_bytes_max(elements));
            prop_assert_eq!(decode(&bytes, elements).unwrap(), decisions);
        }
    }
}

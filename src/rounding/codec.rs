//! The decisions of one product as bytes: gaps between places in an adaptive Rice code, one bit each, and apart from these the few
//! that take more bits. Layout: `docs/ROUNDING.md`, section 5.
//!
//! Places of near ties are as good as random, so gaps are geometric and a Rice code whose parameter follows their mean is within
//! a few percent of the entropy; the parameter follows because density changes from row to row.

use super::{BITS_MAX, Decision};
use crate::commit::Malformed;

const WHAT: &str = "rounding log";
/// Gaps that the running mean remembers.
const MEMORY: u64 = 64;
/// The longest unary part; a longer gap is written in 48 bits after it.
const UNARY_MAX: u32 = 24;
/// Bits of a place.
const PLACE_BITS: u32 = 48;

/// The Rice parameter that suits recent gaps. Integer arithmetic only, so that every reader follows.
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

    /// Checks that nothing but zero bits of the last byte is left.
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

/// Appends an integer, seven bits a byte, least first.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes an integer off the front; only its shortest form.
///
/// # Errors
/// If the bytes end too early, or the integer has more than nine bytes or not its shortest form.
pub fn take_varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
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

/// The bytes of a product's decisions, which are in order of their places, all below `elements`. No decisions are no bytes.
pub fn encode(decisions: &[Decision], elements: u64) -> Vec<u8> {
    if decisions.is_empty() {
        return Vec::new();
    }
    let count = decisions.len() as u64;
    let wide: Vec<(u64, &Decision)> = (0..).zip(decisions).filter(|(_, d)| d.bits > 1).collect();
    let mut head = Vec::new();
    put_varint(&mut head, count);
    put_varint(&mut head, wide.len() as u64);
    let mut w = BitWriter { bytes: head, ..BitWriter::default() };
    let mut mean = Mean::new(elements, count);
    let mut next = 0;
    for d in decisions {
        debug_assert!(
            (next..elements).contains(&d.place),
            "places grow and are below the number of elements"
        );
        w.rice(d.place - next, &mut mean);
        w.bits(u64::from(d.residue & 1), 1);
        next = d.place + 1;
    }
    let mut mean = Mean::new(count, wide.len() as u64);
    let mut next = 0;
    for (number, d) in wide {
        w.rice(number - next, &mut mean);
        w.bits((1 << (d.bits - 2)) - 1, u32::from(d.bits) - 1); // bits - 2 in unary
        w.bits(u64::from(d.residue >> 1), u32::from(d.bits) - 1);
        next = number + 1;
    }
    w.finish()
}

/// The decisions of a product of `elements` elements.
///
/// # Errors
/// If the bytes are not the one encoding of decisions about so many elements.
pub fn decode(bytes: &[u8], elements: u64) -> Result<Vec<Decision>, Malformed> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut rest = bytes;
    let (count, wide) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
    // Every decision takes two bits at least.
    if count == 0 || count > elements || wide > count || count > rest.len() as u64 * 4 {
        return Err(Malformed::invalid(WHAT, format!("{count} decisions cannot be here")));
    }
    let mut r = BitReader { bytes: rest, at: 0 };
    let mut mean = Mean::new(elements, count);
    let mut decisions = Vec::with_capacity(count as usize);
    let mut next = 0u64;
    for _ in 0..count {
        let place = next + r.rice(&mut mean)?;
        if place >= elements {
            return Err(Malformed::invalid(WHAT, format!("place {place} of {elements} elements")));
        }
        decisions.push(Decision { place, bits: 1, residue: r.bit()? as u32 });
        next = place + 1;
    }
    let mut mean = Mean::new(count, wide);
    let mut next = 0u64;
    for _ in 0..wide {
        let number = next + r.rice(&mut mean)?;
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
        next = number + 1;
    }
    r.finish()?;
    Ok(decisions)
}

/// Bits that decisions at random places need: H(n / N) for every element, and those of the decisions.
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

    proptest! {
        #[test]
        fn any_bytes_decode_to_what_encodes_to_them(bytes in prop::collection::vec(any::<u8>(), 0..64), elements in 1u64..5000) {
            if let Ok(decisions) = decode(&bytes, elements) {
                prop_assert_eq!(encode(&decisions, elements), bytes);
            }
        }

        #[test]
        fn any_decisions_come_back(density in 0.0..1.0, wide in 0.0..1.0, elements in 1u64..3000, seed: u64) {
            let decisions = random(elements, density, wide, seed);
            prop_assert_eq!(decode(&encode(&decisions, elements), elements).unwrap(), decisions);
        }
    }
}

//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//! Contract: `docs/ARITHMETIC.md`, section 6.

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a 64-bit key and a 128-bit counter.
///
/// ```
/// use tiebreak_contract::arith::philox::philox4x32_10;
///
/// // A known answer of Random123.
/// assert_eq!(philox4x32_10([0, 0], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
/// // The generator has no state: whoever knows key and counter has the words.
/// assert_ne!(philox4x32_10([0, 0], [1, 0, 0, 0]), philox4x32_10([0, 0], [2, 0, 0, 0]));
/// ```
pub fn philox4x32_10(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    blocks(key, counter.map(|word| [word])).map(|[word]| word)
}

/// [`philox4x32_10`] of N counters at once, so that a compiler computes several in one vector: word `w` of counter `i` is
/// `counters[w][i]`, and so is that of the result.
#[inline]
pub fn blocks<const N: usize>(mut key: [u32; 2], mut counters: [[u32; N]; 4]) -> [[u32; N]; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let [c0, c1, c2, c3] = &mut counters;
        for i in 0..N {
            let p0 = u64::from(MULTIPLIER[0]) * u64::from(c0[i]);
            let p1 = u64::from(MULTIPLIER[1]) * u64::from(c2[i]);
            (c0[i], c1[i]) = ((p1 >> 32) as u32 ^ c1[i] ^ key[0], p1 as u32);
            (c2[i], c3[i]) = ((p0 >> 32) as u32 ^ c3[i] ^ key[1], p0 as u32);
        }
    }
    counters
}

/// [`blocks`] of eight counters, compiled with this crate, whatever the level of the crate that calls it.
#[doc(hidden)] // for the layers above
#[inline(never)]
pub fn eight_blocks(key: [u32; 2], counters: [[u32; 8]; 4]) -> [[u32; 8]; 4] {
    blocks(key, counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors of Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        let f = u32::MAX;
        assert_eq!(philox4x32_10([0, 0], [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32_10([f, f], [f; 4]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox4x32_10([0xa4093822, 0x299f31d0], [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }
}

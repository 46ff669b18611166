//! The tokens of a window that a masked language model has to find. Contract: `docs/ARITHMETIC.md`, section 6.

use crate::spec::Masking;
use tiebreak_contract::arith::philox::philox4x32_10;

/// The last counter word of the blocks that mask tokens, which no other use of the generator has.
const MASKS: u32 = 0xffff_fff9;

/// Masks the tokens of one sample.
#[derive(Clone, Copy)]
pub(crate) struct Masker<'a> {
    /// The job's rule.
    pub masking: &'a Masking,
    /// The run's Philox key; an evaluation has zeros.
    pub key: [u32; 2],
    /// The step and the place in the whole batch; of an evaluation 0 and the place in its order.
    pub at: [u32; 2],
    /// The bound of tokens.
    pub vocabulary: u32,
    /// The label of the positions that have no loss.
    pub uncounted: u32,
}

impl Masker<'_> {
    /// The input and the label at a position of the sample that holds `token`.
    pub fn position(&self, position: u32, token: u32) -> [u32; 2] {
        let Masking { probability, token: mask, mask_share, random_share, never } = self.masking;
        let uncounted = [token, self.uncounted];
        if token == self.uncounted || never.contains(&token) {
            return uncounted;
        }
        let [step, place] = self.at;
        let words = philox4x32_10(self.key, [step, place, position, MASKS]);
        let [chosen, kind] = [words[0], words[1]].map(u64::from);
        if chosen >= threshold(*probability) {
            return uncounted;
        }
        let masked = threshold(*mask_share);
        let input = if kind < masked {
            *mask
        } else if kind < masked + threshold(*random_share) {
            ((u64::from(words[2]) * u64::from(self.vocabulary)) >> 32) as u32
        } else {
            token
        };
        [input, token]
    }

    /// The inputs and the labels of a sample of these tokens.
    pub fn sample(&self, tokens: &[u32]) -> [Vec<u32>; 2] {
        (0..).zip(tokens).map(|(position, &token)| self.position(position, token).into()).unzip().into()
    }
}

/// The number that a word is below with this probability, 0 to 2^32.
pub(crate) fn threshold(probability: f32) -> u64 {
    // A binary64 product by a power of two is exact.
    (f64::from(probability) * f64::from(1u32 << 16) * f64::from(1u32 << 16)).round_ties_even() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden samples, made from the contract's text by a script in another language (assets/vectors/batches.py).
    #[test]
    fn masked_samples_are_the_golden_ones() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../../assets/vectors/masked.json")).unwrap();
        let cases = golden.as_array().unwrap();
        for case in cases {
            let number = |key: &str| case[key].as_u64().unwrap() as u32;
            let share = |key: &str| case[key].as_f64().unwrap() as f32;
            let list = |key: &str| -> Vec<u32> {
                case[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
            };
            let masking = Masking {
                probability: share("probability"),
                token: number("token"),
                mask_share: share("mask_share"),
                random_share: share("random_share"),
                never: list("never"),
            };
            let masker = Masker {
                masking: &masking,
                key: list("key").try_into().unwrap(),
                at: [number("step"), number("place")],
                vocabulary: number("vocabulary"),
                uncounted: number("uncounted"),
            };
            assert_eq!(masker.sample(&list("tokens")), [list("inputs"), list("labels")], "{case}");
        }
        assert!(cases.len() >= 12);
    }

    /// A word at the threshold chooses nothing; one below it does.
    #[test]
    fn the_threshold_itself_is_not_below() {
        let key = [3, 5];
        let word = |position: u32| philox4x32_10(key, [7, 11, position, MASKS])[0];
        // A binary32 number has 24 bits, so it can be a word whose last eight are zeros.
        let at = (0..).find(|&position| word(position) & 0xff == 0 && word(position) >> 31 == 1).unwrap();
        let chosen = |probability: f32| {
            let masking =
                Masking { probability, token: 9, mask_share: 1.0, random_share: 0.0, never: vec![] };
            let at_step = [7, 11];
            let masker = Masker { masking: &masking, key, at: at_step, vocabulary: 10, uncounted: 8 };
            masker.position(at, 4) == [9, 4]
        };
        let exact = word(at) as f32 / 4_294_967_296.0;
        assert_eq!(threshold(exact), u64::from(word(at)));
        assert_eq!((chosen(exact), chosen(exact.next_up())), (false, true));
    }

    #[test]
    fn thresholds_are_exact() {
        let of = [0.0, 0.5, 1.0, 0.15, 0.8].map(threshold);
        // 0.15 and 0.8 as binary32 numbers are 10066330 / 2^26 and 13421773 / 2^24.
        assert_eq!(of, [0, 1 << 31, 1 << 32, 10_066_330 << 6, 13_421_773 << 8]);
    }
}

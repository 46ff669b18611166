//! The sample that a place of a step's batch draws. Contract: `docs/ARITHMETIC.md`, section 6.
//!
//! Without replacement, an epoch is a permutation of the samples by swap-or-not (Hoang, Morris and Rogaway, "An Enciphering
//! Scheme Based on a Card Shuffle", CRYPTO 2012, figure 1). The shuffle gives the image of one index without the others. So an
//! auditor who replays a step needs no epoch from its beginning.

use crate::spec::Sampling;
use tiebreak_contract::arith::philox::philox4x32_10;

/// Rounds of the shuffle: one for each bit of a Philox block.
const ROUNDS: usize = 128;
/// The counter word, the third one, that keeps draws with replacement apart from every other use of the generator.
const WITH_REPLACEMENT: u32 = 0xffff_ffff;
/// The last counter word of the blocks that decide the swaps.
const SWAPS: u32 = 0xffff_fffd;
/// The last counter word of the blocks that round keys are made of.
const ROUND_KEYS: u32 = 0xffff_fffc;

/// The position of a draw in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The step, from 1.
    pub step: u32,
    /// Samples of a step's whole batch.
    pub batch: u32,
    /// The position in the whole batch, below `batch`.
    pub place: u32,
}

/// Draws samples, each from its place alone.
pub struct Sampler {
    sampling: Sampling,
    key: [u32; 2],
    samples: u64,
    /// The epoch of the last draw, with its round keys: a batch draws from one or two epochs.
    epoch: Option<(u32, [u64; ROUNDS])>,
}

impl Sampler {
    /// Draws from `samples` samples (1 to 2^40) with the run's Philox key.
    pub(crate) fn new(sampling: Sampling, key: [u32; 2], samples: u64) -> Sampler {
        Sampler { sampling, key, samples, epoch: None }
    }

    /// The sample that a place draws, in order the number among the samples without a common element; `None` if 2^32 epochs are over.
    pub fn draw(&mut self, at: Place) -> Option<u64> {
        if self.sampling == Sampling::WithReplacement {
            let words = philox4x32_10(self.key, [at.step, at.place, WITH_REPLACEMENT, 0]);
            return Some(self.scaled([words[0], words[1]]));
        }
        // Steps are below 2^26 and batches at most 2^24.
        let cursor = u64::from(at.step - 1) * u64::from(at.batch) + u64::from(at.place);
        let epoch = u32::try_from(cursor / self.samples).ok()?;
        let index = cursor % self.samples;
        Some(if self.sampling == Sampling::InOrder { index } else { self.permuted(epoch, index) })
    }

    /// The image of `index` in an epoch's permutation.
    fn permuted(&mut self, epoch: u32, index: u64) -> u64 {
        let keys = match self.epoch {
            Some((of, keys)) if of == epoch => keys,
            _ => self.round_keys(epoch),
        };
        self.epoch = Some((epoch, keys));
        let n = self.samples;
        let mut x = index;
        for (round, key) in keys.into_iter().enumerate() {
            let partner = if key >= x { key - x } else { key + n - x };
            let both = x.max(partner);
            let block = philox4x32_10(self.key, [epoch, both as u32, (both >> 32) as u32, SWAPS]);
            if block[round / 32] >> (round % 32) & 1 == 1 {
                x = partner;
            }
        }
        x
    }

    fn round_keys(&self, epoch: u32) -> [u64; ROUNDS] {
        let mut keys = [0; ROUNDS];
        for (pair, keys) in (0..).zip(keys.chunks_exact_mut(2)) {
            let [a, b, c, d] = philox4x32_10(self.key, [epoch, pair, 0, ROUND_KEYS]);
            keys.copy_from_slice(&[self.scaled([a, b]), self.scaled([c, d])]);
        }
        keys
    }

    /// A number below the number of samples: the high 64 bits of its product with a 64-bit word, low half first.
    fn scaled(&self, [low, high]: [u32; 2]) -> u64 {
        let word = u64::from(low) | u64::from(high) << 32;
        ((u128::from(word) * u128::from(self.samples)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const KEY: [u32; 2] = [0x1234_5678, 0x9abc_def0];

    fn epoch(samples: u64, epoch: u32) -> Vec<u64> {
        let mut sampler = Sampler::new(Sampling::Permutation, KEY, samples);
        (0..samples).map(|index| sampler.permuted(epoch, index)).collect()
    }

    #[test]
    fn an_epoch_is_a_permutation_and_the_next_is_another() {
        for samples in [1, 2, 3, 255, 256, 1000, 65_537] {
            let orders = [0, 1, u32::MAX].map(|number| epoch(samples, number));
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..samples), "{samples} samples");
            }
            // Two of three permutations of three samples may be the same by chance.
            let differ = orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2];
            assert!(differ || samples < 255, "{samples} samples");
        }
    }

    /// The places of steps go through the epochs in order, for any batch size.
    #[test]
    fn batches_go_through_the_epochs() {
        let (samples, batch) = (10, 4);
        let expected: Vec<u64> = (0..2).flat_map(|number| epoch(samples, number)).collect();
        let mut sampler = Sampler::new(Sampling::Permutation, KEY, samples);
        let places = (1..=5).flat_map(|step| (0..batch).map(move |place| Place { step, batch, place }));
        let drawn: Vec<u64> = places.map(|place| sampler.draw(place).unwrap()).collect();
        assert_eq!(drawn, expected);
    }

    #[test]
    fn in_order_an_epoch_is_the_samples_as_they_are() {
        let mut sampler = Sampler::new(Sampling::InOrder, KEY, 10);
        let places = (1..=6).flat_map(|step| (0..4).map(move |place| Place { step, batch: 4, place }));
        let drawn: Vec<u64> = places.map(|place| sampler.draw(place).unwrap()).collect();
        assert_eq!(drawn, (0..10).cycle().take(24).collect::<Vec<u64>>());
    }

    #[test]
    fn epochs_end_at_32_bits() {
        let mut sampler = Sampler::new(Sampling::Permutation, KEY, 2);
        let batch = 1 << 24;
        let mut at = |step, place| sampler.draw(Place { step, batch, place });
        assert!(at(1 << 9, batch - 1).is_some());
        assert!(at((1 << 9) + 1, 0).is_none());
    }

    /// A golden list of numbers.
    fn numbers(value: &serde_json::Value) -> Vec<u64> {
        value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    }

    /// Golden permutations, made from the contract's text by a script in another language (assets/vectors/batches.py).
    #[test]
    fn permutations_are_the_golden_ones() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../../assets/vectors/batches.json")).unwrap();
        let cases = golden["permutations"].as_array().unwrap();
        for case in cases {
            let (samples, epoch) = (case["samples"].as_u64().unwrap(), case["epoch"].as_u64().unwrap());
            let mut sampler = Sampler::new(Sampling::Permutation, KEY, samples);
            for (index, image) in numbers(&case["indices"]).into_iter().zip(numbers(&case["images"])) {
                assert_eq!(
                    sampler.permuted(epoch as u32, index),
                    image,
                    "{index} of {samples}, epoch {epoch}"
                );
            }
        }
        assert!(cases.len() >= 20);
    }

    /// The cost of a draw: run the test with --release --ignored --nocapture.
    #[test]
    #[ignore = "prints times"]
    fn a_million_draws() {
        for sampling in [Sampling::Permutation, Sampling::WithReplacement] {
            let mut sampler = Sampler::new(sampling, KEY, 1 << 30);
            let (start, batch) = (Instant::now(), 1_000_000);
            let sum = (0..batch)
                .map(|place| sampler.draw(Place { step: 1, batch, place }).unwrap())
                .fold(0, u64::wrapping_add);
            println!("{sampling:?}: {:.0} ns a draw (sum {sum})", start.elapsed().as_secs_f64() * 1e3);
        }
    }
}

//! The choice of an answer's next token from a row of logits, by words and integers alone (sampling.v1). Contract:
//! `docs/INFERENCE.md`.

use crate::arith::{elementary, float, philox::philox4x32_10};

/// The last word of the Philox counters of these draws (`docs/ARITHMETIC.md`, section 6).
const DRAWS: u32 = 0xffff_fffa;
/// 1 in the integers that weights are.
const WHOLE: u64 = 1 << 32;

/// The settings by which an answer's tokens are chosen. Numbers are binary32 patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The temperature; +0 takes the greatest logit.
    pub temperature: u32,
    /// The most candidates that are kept, those with the greatest logits; 0 keeps all.
    pub top_k: u32,
    /// The share of the weight that is kept, above 0 and at most 1.
    pub top_p: u32,
    /// The seed of the draws.
    pub seed: u64,
}

/// The reason why a row of logits gives no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// A candidate's logit is an infinity or a NaN.
    #[error(
        "the logit of token {id} is {word:08x}, which is no finite number: the model gives no token {number} of the answer"
    )]
    NotFinite {
        /// The candidate.
        id: u32,
        /// Its logit.
        word: u32,
        /// The number of the token in the answer, from 0.
        number: u32,
    },
    /// The tokenizer knows no id of the model.
    #[error("the tokenizer knows none of the {ids} ids of the model, so that no token can be chosen")]
    NoCandidate {
        /// The ids of the model.
        ids: usize,
    },
}

impl Sampling {
    /// The error in these numbers, if there is one.
    pub fn error(&self) -> Option<&'static str> {
        if self.temperature & float::SIGN != 0 || !float::is_finite(self.temperature) {
            return Some("a temperature is a finite number, 0 or more");
        }
        if !(1..=float::ONE).contains(&self.top_p) {
            return Some("the share of top-p is above 0 and at most 1");
        }
        None
    }

    /// The token of a row of logits, number `number` of its answer from 0. `known` says which ids are candidates.
    ///
    /// # Errors
    /// If a candidate's logit is no finite number, or there is no candidate.
    ///
    /// ```
    /// use tiebreak_contract::program::sampling::Sampling;
    ///
    /// let logits = [1.0, 3.0, 3.0, 9.0f32].map(f32::to_bits);
    /// let known = [true, true, true, false];
    /// let greedy = Sampling { temperature: 0, top_k: 0, top_p: 1.0f32.to_bits(), seed: 7 };
    /// assert_eq!(greedy.token(&logits, &known, 0), Ok(1));
    /// let drawn = Sampling { temperature: 1.0f32.to_bits(), top_k: 2, ..greedy };
    /// assert!((0..64).all(|number| [1, 2].contains(&drawn.token(&logits, &known, number).unwrap())));
    /// ```
    pub fn token(&self, logits: &[u32], known: &[bool], number: u32) -> Result<u32, NoToken> {
        let mut kept = Vec::with_capacity(logits.len());
        for (id, (&word, _)) in (0..).zip(logits.iter().zip(known)).filter(|(_, (_, known))| **known) {
            if !float::is_finite(word) {
                return Err(NoToken::NotFinite { id, word, number });
            }
            // The two zeros are one number. The greatest logit comes first, and the smaller id of equal ones.
            kept.push((!float::order_key(float::add(word, 0)), id));
        }
        let (greatest, best) = *kept.iter().min().ok_or(NoToken::NoCandidate { ids: logits.len() })?;
        if self.temperature == 0 {
            return Ok(best);
        }
        let most = if self.top_k == 0 { kept.len() } else { self.top_k as usize };
        if most < kept.len() {
            kept.select_nth_unstable(most - 1);
            kept.truncate(most);
        }
        let share = fixed(self.top_p);
        if share < WHOLE {
            kept.sort_unstable();
        } else {
            kept.sort_unstable_by_key(|(_, id)| *id);
        }
        let mut weighed = self.weighed(&kept, float::from_order_key(!greatest));
        if share < WHOLE {
            let total = sum(&weighed);
            let mut left = (u128::from(share) * u128::from(total)).div_ceil(u128::from(WHOLE));
            let enough = weighed.iter().position(|(_, weight)| {
                left = left.saturating_sub(u128::from(*weight));
                left == 0
            });
            weighed.truncate(enough.map_or(weighed.len(), |last| last + 1));
            weighed.sort_unstable();
        }
        let [low, high, ..] =
            philox4x32_10([self.seed as u32, (self.seed >> 32) as u32], [number, 0, 0, DRAWS]);
        let bits = u128::from(low) | u128::from(high) << 32;
        let drawn = ((bits * u128::from(sum(&weighed))) >> 64) as u64;
        let mut passed = 0;
        let chosen = weighed.iter().find(|(_, weight)| {
            passed += weight;
            passed > drawn
        });
        Ok(chosen.map_or(best, |(id, _)| *id))
    }

    /// Ids with their weights, in the order of `kept`: keys of [`float::order_key`], turned, and ids.
    fn weighed(&self, kept: &[(u32, u32)], greatest: u32) -> Vec<(u32, u64)> {
        let exponent = |key: u32| {
            let below = float::sub(float::from_order_key(!key), greatest);
            float::div(below, self.temperature)
        };
        let exponents: Vec<u32> = kept.iter().map(|(key, _)| exponent(*key)).collect();
        let mut powers = vec![0; kept.len()];
        elementary::exp_each(&exponents, &mut powers);
        kept.iter().zip(powers).map(|((_, id), power)| (*id, fixed(power))).collect()
    }
}

fn sum(weighed: &[(u32, u64)]) -> u64 {
    weighed.iter().map(|(_, weight)| weight).sum()
}

/// floor(x 2^32) of a number from 0 to 1.
fn fixed(x: u32) -> u64 {
    let significand = u64::from(x & 0x7f_ffff | 0x80_0000);
    match x >> 23 {
        exponent @ 118.. => significand << (exponent - 118),
        exponent @ 95..118 => significand >> (118 - exponent),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Case {
        logits: Vec<u32>,
        unknown: Vec<u32>,
        temperature: u32,
        top_k: u32,
        top_p: u32,
        seed: String,
        /// For each number from 0: the token, or nothing where the row gives none.
        tokens: Vec<Option<u32>>,
    }

    #[derive(serde::Deserialize)]
    struct Golden {
        sampling: Vec<Case>,
    }

    /// Tokens that a script drew from the page alone, by fractions (`assets/vectors/inference.py`).
    #[test]
    fn tokens_are_the_golden_ones() {
        let text = include_str!("../../../../assets/vectors/inference.json");
        let Golden { sampling } = serde_json::from_str(text).unwrap();
        assert!(sampling.len() >= 12);
        for case in sampling {
            let Case { logits, unknown, temperature, top_k, top_p, seed, tokens } = case;
            let sampling = Sampling { temperature, top_k, top_p, seed: seed.parse().unwrap() };
            assert_eq!(sampling.error(), None);
            let known: Vec<bool> = (0..logits.len() as u32).map(|id| !unknown.contains(&id)).collect();
            for (number, token) in (0..).zip(tokens) {
                assert_eq!(sampling.token(&logits, &known, number).ok(), token, "{sampling:?}, {number}");
            }
        }
    }

    #[test]
    fn fractions_are_rounded_down() {
        for (x, expected) in
            [(1.0f32, WHOLE), (0.5, WHOLE / 2), (0.0, 0), (1e-40, 0), (2.3e-10, 0), (2.4e-10, 1)]
        {
            assert_eq!(fixed(x.to_bits()), expected, "{x}");
        }
        let below = f32::from_bits(float::ONE - 1);
        assert_eq!(fixed(below.to_bits()), WHOLE - 256);
        let all: Vec<u32> = (0..2000).map(|i| float::ONE / 2000 * i + i).collect();
        assert!(all.iter().all(|&x| fixed(x) == (f64::from(f32::from_bits(x)) * WHOLE as f64) as u64));
    }

    #[test]
    fn numbers_out_of_bounds_are_none() {
        let good = Sampling { temperature: float::ONE, top_k: 0, top_p: float::ONE, seed: 0 };
        assert_eq!(good.error(), None);
        for temperature in [float::NEG_ZERO, float::INFINITY, float::NAN, float::ONE | float::SIGN] {
            assert!(Sampling { temperature, ..good }.error().is_some());
        }
        for top_p in [0, float::ONE + 1, float::NAN, float::NEG_ZERO] {
            assert!(Sampling { top_p, ..good }.error().is_some());
        }
    }
}

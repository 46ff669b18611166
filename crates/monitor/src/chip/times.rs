//! The random times of a chip's snapshots: a Poisson process, computed in integers from a seed.
//!
//! Gaps are exponential by von Neumann's method, which compares random numbers and needs no logarithm. So everybody who has the
//! seed derives the same times. Definition: docs/MONITORING-FORMAT.md, "Random times".

use std::fmt;
use std::str::FromStr;

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::hash;

use crate::snapshot::record::Serial;

/// Millionths of a snapshot in the fastest rate: a million snapshots a day.
const RATE_MAX: u64 = 1_000_000_000_000;
/// The digits behind the point of a rate.
const PLACES: usize = 6;
/// Microseconds of a day, times the millionths of a rate.
const DAY: u64 = 86_400_000_000 * 1_000_000;

/// Snapshots that a chip logs in a day, on average: a decimal number of at most six places, up to a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// The mean gap between two snapshots in microseconds, rounded down.
    pub fn mean(self) -> u64 {
        DAY / self.0
    }
}

impl FromStr for Rate {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Rate, Malformed> {
        let wrong = || {
            let why = format!(
                "{text:?}; a decimal number of at most six places is wanted, above 0 and up to 1000000"
            );
            Malformed::invalid("rate", why)
        };
        let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
        let digits =
            |text: &str| !text.is_empty() && text.len() <= 7 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(places) || places.len() > PLACES {
            return Err(wrong());
        }
        let millionths: u64 = format!("{whole}{places:0<PLACES$}").parse().map_err(|_| wrong())?;
        if (1..=RATE_MAX).contains(&millionths) { Ok(Rate(millionths)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, places) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let places = format!("{places:06}");
        match places.trim_end_matches('0') {
            "" => write!(f, "{whole}"),
            places => write!(f, "{whole}.{places}"),
        }
    }
}

/// The source of the gaps between snapshots.
pub trait Times {
    /// The next gap, in microseconds.
    fn gap(&mut self) -> u64;
}

/// Gaps of a Poisson process from a seed. Each start of a chip has gaps of its own.
pub struct Poisson {
    mean: u64,
    /// The seed, the serial number and the begin record's counter; a block's number comes behind.
    key: Vec<u8>,
    block: u64,
    /// Words of the last block that are left, the next one last.
    words: Vec<u64>,
}

impl Poisson {
    /// The gaps of this chip after its begin record with number `counter`.
    pub fn new(rate: Rate, seed: &[u8; 32], serial: &Serial, counter: u64) -> Poisson {
        let mut key = Encoder::default();
        key.0.extend(seed);
        key.0.extend(serial.padded());
        key.u64(counter);
        Poisson { mean: rate.mean(), key: key.0, block: 0, words: Vec::new() }
    }

    /// The next 64 random bits.
    fn word(&mut self) -> u64 {
        if self.words.is_empty() {
            let bytes = [&self.key[..], &self.block.to_le_bytes()].concat();
            let block = hash("tiebreak 2 chip-times", &bytes);
            let (words, _) = block.0.as_chunks::<8>();
            self.words = words.iter().rev().map(|word| u64::from_le_bytes(*word)).collect();
            self.block += 1;
        }
        self.words.pop().expect("a block has four words")
    }
}

impl Times for Poisson {
    fn gap(&mut self) -> u64 {
        // A falling sequence of odd length is accepted. Its first number is the fraction, the refused ones are the whole part.
        let mut refused = 0u64;
        loop {
            let first = self.word();
            let (mut last, mut length) = (first, 1u64);
            loop {
                let next = self.word();
                if next >= last {
                    break;
                }
                (last, length) = (next, length + 1);
            }
            if length % 2 == 1 {
                let fraction = (u128::from(self.mean) * u128::from(first)) >> 64;
                return self.mean.saturating_mul(refused).saturating_add(fraction as u64);
            }
            refused += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(seed: u8, counter: u64) -> Poisson {
        let serial = Serial::new("H100-0042").unwrap();
        Poisson::new("0.1".parse().unwrap(), &[seed; 32], &serial, counter)
    }

    #[test]
    fn a_rate_has_one_meaning_and_bounds() {
        let mean = |text: &str| text.parse::<Rate>().map(|rate| (rate.mean(), rate.to_string()));
        assert_eq!(mean("0.1"), Ok((864_000_000_000, "0.1".into())));
        assert_eq!(mean("1000"), Ok((86_400_000, "1000".into())));
        assert_eq!(mean("0.000001").unwrap().0, 86_400_000_000_000_000);
        assert_eq!(mean("7.250").unwrap().1, "7.25");
        assert_eq!(mean("1000000").unwrap().0, 86_400);
        for wrong in
            ["", "0", "0.0", "1000000.1", "-1", "1e3", "1.0000001", ".5", "5.", "inf", "99999999", "+1", "1 "]
        {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong:?}");
        }
    }

    /// Gaps by assets/vectors/chip_times.py, which shares no code with this project.
    #[test]
    fn gaps_are_those_of_the_page() {
        let golden: Vec<(u64, Vec<u64>)> =
            serde_json::from_str(include_str!("../../../../assets/vectors/chip_times.json")).unwrap();
        assert!(golden.len() > 1 && golden.iter().all(|(_, gaps)| gaps.len() >= 20));
        for (counter, expected) in golden {
            let mut times = gaps(7, counter);
            let found: Vec<u64> = expected.iter().map(|_| times.gap()).collect();
            assert_eq!(found, expected, "counter {counter}");
        }
    }

    /// Mean, spread and tails are those of the exponential distribution; five standard errors are allowed.
    #[test]
    fn gaps_are_exponential() {
        const COUNT: usize = 40_000;
        let (mut times, mean) = (gaps(1, 0), 864_000_000_000.0);
        let units: Vec<f64> = (0..COUNT).map(|_| times.gap() as f64 / mean).collect();
        let near = |found: f64, expected: f64, deviation: f64| {
            let allowed = 5.0 * deviation / (COUNT as f64).sqrt();
            assert!((found - expected).abs() < allowed, "{found}, {expected} within {allowed}");
        };
        near(units.iter().sum::<f64>() / COUNT as f64, 1.0, 1.0);
        near(units.iter().map(|unit| unit * unit).sum::<f64>() / COUNT as f64, 2.0, 20f64.sqrt());
        for above in [0.1f64, 0.5, 1.0, 2.0, 5.0] {
            let share = units.iter().filter(|unit| **unit > above).count() as f64 / COUNT as f64;
            let expected = (-above).exp();
            near(share, expected, (expected * (1.0 - expected)).sqrt());
        }
    }
}

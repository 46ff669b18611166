//! Samples of a receipt's parts: the draw, and how many parts can be wrong where it finds nothing.

use std::collections::BTreeSet;

use crate::cli::args::random::random;
use crate::cli::view::report::Failure;
use tiebreak_audit::plan::draw;

/// Parts of a receipt that are drawn at random.
pub struct Sampled {
    /// The drawn parts' numbers.
    pub drawn: BTreeSet<usize>,
    /// The seed, which draws the same parts again.
    pub seed: u64,
    /// The number of all parts.
    of: usize,
}

impl Sampled {
    /// Draws `count` of `of` parts, or all if there are fewer. A seed that nobody gives is the system's.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn draw(of: usize, count: u32, seed: Option<u64>) -> Result<Sampled, Failure> {
        let seed = match seed {
            Some(seed) => seed,
            None => u64::from_le_bytes(random()?),
        };
        Ok(Sampled { drawn: draw(of, of.min(count as usize), seed), seed, of })
    }

    /// The most of the parts that can be wrong, with a confidence of 95 %: of one more the draw misses all with a probability of 5 % at
    /// most.
    pub fn wrong_at_most(&self) -> usize {
        let mut missed = 1.0;
        let goes_on = |wrong: &usize| {
            let (left, of) = (self.of - wrong, self.of - wrong + 1);
            missed *= (left + 1).saturating_sub(self.drawn.len()) as f64 / of as f64;
            missed > 0.05
        };
        (1..=self.of).take_while(goes_on).count()
    }
}

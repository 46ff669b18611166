//! The decision on a rule about data: the bounds of a share, from the samples that were opened.

use serde::Serialize;

use tiebreak_record::commit::digest::Digest;

use super::property::OfSamples;
use super::ruling::Ruling;
use crate::interval::{lower, upper};

/// The most samples that a decision names.
pub const NAMED_MAX: usize = 100;

/// A sample, by its place in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Named {
    /// The step that read it.
    pub step: u32,
    /// The sample's place in the step's batch, from 0.
    pub place: u32,
    /// [`super::property::digest`] of the sample.
    pub digest: Digest,
}

/// The samples of a run that a draw is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Population {
    /// Samples that the steps under the head read.
    pub read: u64,
    /// Samples that all steps of the job read.
    pub all: u64,
}

/// The drawn samples of a rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Samples that were drawn.
    pub drawn: u32,
    /// Drawn samples that have the property.
    pub with: u32,
    /// Drawn samples of which nobody knows.
    pub unknown: u32,
    /// The reason why the first of these is not known.
    pub why: Option<String>,
    /// The first samples that speak against the rule, at most [`NAMED_MAX`].
    pub against: Vec<Named>,
}

/// The bounds of a share, with their evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Samples that the steps under the head read.
    pub of: u64,
    /// Samples that were drawn.
    pub drawn: u32,
    /// Drawn samples that have the property.
    pub with: u32,
    /// Drawn samples that could not be opened, or of which the property is not known.
    pub unknown: u32,
    /// The least share that is possible.
    pub least: f64,
    /// The greatest share that is possible.
    pub most: f64,
    /// The confidence of each of both bounds; 1 if every sample was opened.
    pub confidence: f64,
    /// The seed of the draw.
    pub seed: Digest,
    /// Samples that speak against the rule.
    pub against: Vec<Named>,
}

impl OfSamples {
    /// The number of samples to draw of so many; all of them are opened, each once, if the rule asks for as many.
    pub fn drawn(&self, read: u64) -> u32 {
        read.min(u64::from(self.samples)) as u32
    }

    /// True if a sample that has the property, or lacks it, speaks against the rule.
    pub fn speaks_against(&self, has: bool) -> bool {
        if has { self.most.is_some() } else { self.most.is_none() }
    }

    /// Decides. A sample that nobody knows may have the property or lack it, and so may samples that no step has read yet.
    pub fn decide(&self, population: Population, counted: Counted, seed: Digest) -> (Ruling, String, Share) {
        let [drawn, with, unknown] = [counted.drawn, counted.with, counted.unknown].map(u64::from);
        let is_whole = drawn == population.read;
        let of_read = match drawn {
            0 => [0.0, 1.0],
            _ if is_whole => [with as f64 / drawn as f64, (with + unknown) as f64 / drawn as f64],
            _ => [lower(with, drawn, self.confidence), upper(with + unknown, drawn, self.confidence)],
        };
        let done = population.read as f64 / population.all.max(1) as f64;
        let [least, most] = [of_read[0] * done, of_read[1] * done + (1.0 - done)];
        let kept =
            self.most.is_none_or(|bound| most <= bound) && self.least.is_none_or(|bound| least >= bound);
        let broken =
            self.most.is_some_and(|bound| least > bound) || self.least.is_some_and(|bound| most < bound);
        let ruling = match (broken, kept) {
            (true, _) => Ruling::Violated,
            (false, true) => Ruling::Holds,
            (false, false) => Ruling::Undecided,
        };
        let confidence = if is_whole { 1.0 } else { self.confidence };
        let share = Share {
            of: population.read,
            drawn: counted.drawn,
            with: counted.with,
            unknown: counted.unknown,
            least,
            most,
            confidence,
            seed,
            against: counted.against,
        };
        let evidence = share.told(population, counted.why);
        (ruling, evidence, share)
    }
}

impl Share {
    fn told(&self, population: Population, why: Option<String>) -> String {
        let mut told = format!(
            "{} of {} drawn samples have it, of {} that training read; share {:.6} to {:.6}, each bound with confidence {}",
            self.with, self.drawn, self.of, self.least, self.most, self.confidence
        );
        if population.read < population.all {
            told +=
                &format!("; the job reads {} samples, and the others may be of either kind", population.all);
        }
        if let Some(why) = why {
            told += &format!("; {} samples may be of either kind: {why}", self.unknown);
        }
        if let Some(Named { step, place, digest }) = self.against.first() {
            told += &format!("; against the rule: sample {place} of step {step}, digest {digest}");
            told += &match self.against.len() {
                1 => String::new(),
                NAMED_MAX => format!(", and {} or more others", NAMED_MAX - 1),
                more => format!(", and {} others", more - 1),
            };
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruled(text: &str, population: [u64; 2], [drawn, with, unknown]: [u32; 3]) -> (Ruling, [f64; 2]) {
        let rule: OfSamples =
            toml::from_str(&format!("name = \"x\"\npattern = \"x\"\n{text}")).expect("the rule is one");
        let counted = Counted { drawn, with, unknown, ..Counted::default() };
        let [read, all] = population;
        let (ruling, _, share) = rule.decide(Population { read, all }, counted, Digest([0; 32]));
        (ruling, [share.least, share.most])
    }

    #[test]
    fn a_share_is_decided_by_its_bounds() {
        use Ruling::*;
        let many = [1_000_000, 1_000_000];
        // None of 2995 samples: with confidence 0.95 the share is at most 0.1 %. Of 2994 it is a little more.
        assert_eq!(ruled("most = 0.001", many, [2995, 0, 0]).0, Holds);
        assert_eq!(ruled("most = 0.001", many, [2994, 0, 0]).0, Undecided);
        assert_eq!(ruled("most = 0.001", many, [2995, 1, 0]).0, Undecided);
        // Who withholds a sample does not make the rule hold; one that is unknown cannot violate it either.
        assert_eq!(ruled("most = 0.001", many, [2995, 0, 1]).0, Undecided);
        assert_eq!(ruled("most = 0", many, [2995, 0, 2995]).0, Undecided);
        assert_eq!(ruled("most = 0", many, [300, 1, 0]).0, Violated);
        // All of ten: (1/20)^(1/10) is the lower bound.
        assert_eq!(ruled("least = 0.74", many, [10, 10, 0]).0, Holds);
        assert_eq!(ruled("least = 0.75", many, [10, 10, 0]).0, Undecided);
        assert_eq!(ruled("least = 0.75", many, [10, 1, 0]).0, Violated);
        assert_eq!(ruled("least = 0.2\nmost = 0.8", many, [10, 5, 0]).0, Holds);
        assert_eq!(ruled("most = 0.5", many, [0, 0, 0]).0, Undecided);
    }

    #[test]
    fn a_whole_run_has_an_exact_share_and_an_open_one_a_wider() {
        use Ruling::*;
        assert_eq!(ruled("most = 0", [48, 48], [48, 0, 0]), (Holds, [0.0, 0.0]));
        assert_eq!(ruled("most = 0", [48, 48], [48, 0, 1]).0, Undecided);
        assert_eq!(ruled("most = 0.5", [48, 48], [48, 12, 12]), (Holds, [0.25, 0.5]));
        // Half of the job is done: its second half may be anything.
        assert_eq!(ruled("most = 0.6", [48, 96], [48, 12, 0]), (Undecided, [0.125, 0.625]));
        assert_eq!(ruled("most = 0.1", [48, 96], [48, 12, 0]).0, Violated);
        assert_eq!(ruled("least = 0.7", [48, 96], [48, 12, 0]).0, Violated);
    }
}

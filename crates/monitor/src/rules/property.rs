//! Rules about data: the share of the samples that training read which have a property.

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use tiebreak_record::commit::digest::Digest;

/// The most samples that a rule opens.
pub const SAMPLES_MAX: u32 = 100_000;
/// The most seconds that a command may take.
pub const SECONDS_MAX: u64 = 86_400;
/// The most bytes of a pattern, compiled.
const PATTERN_MAX: usize = 1 << 20;
/// The most rules about data in a file.
pub(super) const RULES_OF_DATA_MAX: usize = 64;

fn default_samples() -> u32 {
    300
}

fn default_confidence() -> f64 {
    0.95
}

fn default_seconds() -> u64 {
    60
}

/// A rule about data. One of `hashes`, `pattern` and `command` is the property.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfSamples {
    /// The rule's name: letters, digits, `-` and `_`.
    pub name: String,
    /// The least share of the samples that have the property.
    pub least: Option<f64>,
    /// The greatest share.
    pub most: Option<f64>,
    /// Samples to open.
    #[serde(default = "default_samples")]
    pub samples: u32,
    /// The probability with which each bound of the share is right.
    #[serde(default = "default_confidence")]
    pub confidence: f64,
    /// A file of digests: a sample has the property if its own is among them.
    pub hashes: Option<String>,
    /// A regular expression: a sample has the property if its text has a match.
    pub pattern: Option<String>,
    /// A command with its arguments, which says of each sample whether it has the property.
    pub command: Option<Vec<String>>,
    /// Seconds that the command may take for all samples.
    #[serde(default = "default_seconds")]
    pub seconds: u64,
}

/// The property of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Property<'a> {
    /// The digest is among those of a file.
    Hashes(&'a str),
    /// The text has a match.
    Pattern(&'a str),
    /// The command says so.
    Command(&'a [String]),
}

impl OfSamples {
    /// The property; `None` if the rule has none, or several.
    pub fn property(&self) -> Option<Property<'_>> {
        match (&self.hashes, &self.pattern, &self.command) {
            (Some(file), None, None) => Some(Property::Hashes(file)),
            (None, Some(pattern), None) => Some(Property::Pattern(pattern)),
            (None, None, Some(command)) if !command.is_empty() => Some(Property::Command(command)),
            _ => None,
        }
    }

    /// The defect of a rule, if it has one.
    pub(super) fn defect(&self) -> Option<&'static str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_share = |share: &f64| (0.0..=1.0).contains(share);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_word) {
            return Some("`name` has 1 to 64 letters, digits, `-` and `_`");
        }
        if ![self.least, self.most].iter().flatten().all(is_share) {
            return Some("`least` and `most` are shares from 0 to 1");
        }
        if !(1..=SAMPLES_MAX).contains(&self.samples) {
            return Some("`samples` is a number from 1 to 100000");
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return Some("`confidence` is a number above 0 and below 1");
        }
        if !(1..=SECONDS_MAX).contains(&self.seconds) {
            return Some("`seconds` is a number from 1 to 86400");
        }
        self.property().is_none().then_some("one of `hashes`, `pattern` and `command` is wanted")
    }
}

/// The expression of a pattern, whose memory is bounded. Its time grows with the text alone.
///
/// # Errors
/// If the pattern is no expression, or takes too much memory.
pub fn expression(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(PATTERN_MAX).dfa_size_limit(PATTERN_MAX).build();
    built.map_err(|error| error.to_string())
}

/// The digest of a sample: BLAKE3 of its bytes in the data file, without key and context.
pub fn digest(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

/// Reads a file of digests: one a line, and whatever follows a blank behind it, as `b3sum` prints files.
///
/// # Errors
/// If a line begins with no digest.
pub fn digests(text: &str) -> Result<Vec<Digest>, String> {
    let line = |(number, line): (usize, &str)| {
        let word = line.split_whitespace().next()?;
        Some(word.parse().map_err(|error| format!("line {}: {error}", number + 1)))
    };
    let mut digests = text.lines().enumerate().filter_map(line).collect::<Result<Vec<Digest>, String>>()?;
    digests.sort_unstable();
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_b3sum() {
        let text = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262  empty\n\n";
        assert_eq!(digests(text).unwrap(), [digest(b"")]);
        assert!(digests("af13").unwrap_err().starts_with("line 1: "));
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(expression("(?i)trigger").unwrap().is_match(b"a TRIGGER \xff"));
        assert!(expression("(").unwrap_err().contains("unclosed group"));
        assert!(expression("(a{1000}){1000}").unwrap_err().contains("size limit"));
    }
}

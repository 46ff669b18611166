//! The file of rules: TOML, read strictly.

use serde::Deserialize;

use tiebreak_record::commit::digest::Digest;

use super::property::{OfSamples, RULES_OF_DATA_MAX, expression};

/// The most bytes of a file of rules.
pub const RULES_MAX: usize = 1 << 20;

/// The reasons why a file of rules is refused.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The text has too many bytes.
    #[error("a file of rules has at most {RULES_MAX} bytes")]
    TooLong,
    /// The text is no TOML, or a value has another form than its key wants.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// There is no such key.
    #[error("{path}: there is no such key; there are {keys}")]
    Key {
        /// The key's path.
        path: String,
        /// The keys that are there.
        keys: String,
    },
    /// A range is empty, or says nothing.
    #[error("{path}: {why}")]
    Range {
        /// The key's path.
        path: String,
        /// The defect.
        why: &'static str,
    },
    /// A rule about data is none.
    #[error("data: rule {number}: {why}")]
    Data {
        /// The rule's number, from 1.
        number: usize,
        /// The defect.
        why: String,
    },
    /// There is no rule.
    #[error("there is no rule; the tables are {}", TABLES.map(|(name, _)| name).join(", "))]
    Empty,
}

/// The tables, and the keys of each.
const TABLES: [(&str, &[&str]); 9] = [
    ("flop", RANGE),
    ("learning_rate", RANGE),
    ("samples", RANGE),
    ("steps", RANGE),
    ("model", KINDS),
    ("optimizer", KINDS),
    ("loss", OF_DATA),
    ("accuracy", OF_DATA),
    ("data", OF_SAMPLES),
];
const RANGE: &[&str] = &["least", "most"];
const KINDS: &[&str] = &["allowed", "forbidden"];
const OF_DATA: &[&str] = &["least", "most", "data", "first_sample", "samples"];
const OF_SAMPLES: &[&str] =
    &["name", "least", "most", "samples", "confidence", "hashes", "pattern", "command", "seconds"];

/// The bounds of a number, both included.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The least value that is allowed.
    pub least: Option<f64>,
    /// The greatest value that is allowed.
    pub most: Option<f64>,
}

/// The names that are allowed, or those that are forbidden.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kinds {
    /// The only ones that are allowed.
    pub allowed: Option<Vec<String>>,
    /// The names that are forbidden.
    #[serde(default)]
    pub forbidden: Vec<String>,
}

/// The bounds of a result on given data.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfData {
    /// The least value that is allowed.
    pub least: Option<f64>,
    /// The greatest value that is allowed.
    pub most: Option<f64>,
    /// The root of the data's manifest.
    pub data: Digest,
    /// The first sample that the evaluation is of.
    #[serde(default)]
    pub first_sample: u64,
    /// The least number of samples that the evaluation is of.
    #[serde(default)]
    pub samples: u64,
}

impl OfData {
    /// The bounds alone.
    pub fn range(&self) -> Range {
        Range { least: self.least, most: self.most }
    }
}

/// Rules for runs. A rule that is absent asks for nothing.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// FLOP of a run and of all that it began from.
    pub flop: Option<Range>,
    /// Every learning rate.
    pub learning_rate: Option<Range>,
    /// Samples of a step.
    pub samples: Option<Range>,
    /// Steps of the run.
    pub steps: Option<Range>,
    /// Model kinds.
    pub model: Option<Kinds>,
    /// Optimizers.
    pub optimizer: Option<Kinds>,
    /// The final model's loss on given data.
    pub loss: Option<OfData>,
    /// The final model's accuracy on given data.
    pub accuracy: Option<OfData>,
    /// Shares of the samples that training read.
    #[serde(default)]
    pub data: Vec<OfSamples>,
}

/// Refuses keys that are not there, and names those that are.
fn check_keys(table: &toml::Table) -> Result<(), RulesError> {
    for (name, value) in table {
        let Some((_, keys)) = TABLES.iter().find(|(table, _)| table == name) else {
            let keys = TABLES.map(|(table, _)| table).join(", ");
            return Err(RulesError::Key { path: name.clone(), keys });
        };
        let many = value.as_array().into_iter().flatten().filter_map(toml::Value::as_table);
        for key in value.as_table().into_iter().chain(many).flat_map(|table| table.keys()) {
            if !keys.contains(&key.as_str()) {
                return Err(RulesError::Key { path: format!("{name}.{key}"), keys: keys.join(", ") });
            }
        }
    }
    Ok(())
}

impl Range {
    fn check(&self, path: &str) -> Result<(), RulesError> {
        let wrong = |why| Err(RulesError::Range { path: path.into(), why });
        if [self.least, self.most].into_iter().flatten().any(|bound| !bound.is_finite()) {
            return wrong("a bound is a finite number");
        }
        match (self.least, self.most) {
            (None, None) => wrong("`least`, `most` or both are wanted"),
            (Some(least), Some(most)) if least > most => wrong("`least` is greater than `most`"),
            _ => Ok(()),
        }
    }
}

impl Rules {
    /// Reads rules from the text of their file.
    ///
    /// # Errors
    /// If the text is too long or no TOML, a key is unknown, or a rule asks for nothing or for the impossible.
    pub fn read(text: &str) -> Result<Rules, RulesError> {
        if text.len() > RULES_MAX {
            return Err(RulesError::TooLong);
        }
        let table: toml::Table = toml::from_str(text)?;
        check_keys(&table)?;
        if table.is_empty() {
            return Err(RulesError::Empty);
        }
        let rules: Rules = toml::from_str(text)?;
        let ranges = [
            ("flop", rules.flop),
            ("learning_rate", rules.learning_rate),
            ("samples", rules.samples),
            ("steps", rules.steps),
            ("loss", rules.loss.as_ref().map(OfData::range)),
            ("accuracy", rules.accuracy.as_ref().map(OfData::range)),
        ];
        for (path, range) in ranges {
            range.map_or(Ok(()), |range| range.check(path))?;
        }
        for (path, kinds) in [("model", &rules.model), ("optimizer", &rules.optimizer)] {
            let nothing = |kinds: &Kinds| kinds.allowed.is_none() && kinds.forbidden.is_empty();
            if kinds.as_ref().is_some_and(nothing) {
                let why = "`allowed`, `forbidden` or both are wanted";
                return Err(RulesError::Range { path: path.into(), why });
            }
        }
        rules.check_data()?;
        Ok(rules)
    }
}

impl Rules {
    fn check_data(&self) -> Result<(), RulesError> {
        if self.data.len() > RULES_OF_DATA_MAX {
            let why = format!("there are {} rules; at most {RULES_OF_DATA_MAX} are read", self.data.len());
            return Err(RulesError::Data { number: self.data.len(), why });
        }
        for (number, rule) in (1..).zip(&self.data) {
            let wrong = |why: String| RulesError::Data { number, why };
            if let Some(why) = rule.defect() {
                return Err(wrong(why.into()));
            }
            Range { least: rule.least, most: rule.most }.check(&format!("data.{}", rule.name))?;
            if let Some(pattern) = &rule.pattern {
                expression(pattern).map_err(wrong)?;
            }
            if self.data[..number - 1].iter().any(|earlier| earlier.name == rule.name) {
                return Err(wrong(format!("the name {} is that of an earlier rule", rule.name)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_strictly_and_a_wrong_key_comes_with_the_right_ones() {
        let data = Digest([7; 32]);
        let text = format!(
            "[flop]\nmost = 1e23\n[model]\nallowed = [\"gpt\"]\n[loss]\nmost = 3\ndata = \"{data}\"\nsamples = 100\n"
        );
        let rules = Rules::read(&text).unwrap();
        assert_eq!(rules.flop, Some(Range { least: None, most: Some(1e23) }));
        assert_eq!(rules.loss.map(|loss| (loss.most, loss.data, loss.samples)), Some((Some(3.0), data, 100)));
        for (text, says) in [
            ("", "there is no rule"),
            ("[flops]\nmost = 1\n", "flops: there is no such key; there are flop, learning_rate"),
            ("[flop]\nmots = 1\n", "flop.mots: there is no such key; there are least, most"),
            ("[flop]\n", "flop: `least`, `most` or both are wanted"),
            ("[flop]\nmost = nan\n", "flop: a bound is a finite number"),
            ("[steps]\nleast = 3\nmost = 2\n", "steps: `least` is greater than `most`"),
            ("[model]\n", "model: `allowed`, `forbidden` or both are wanted"),
            ("[loss]\nmost = 3\n", "missing field `data`"),
            ("flop = 3\n", "invalid type"),
            ("[flop]\nmost = \"1e23\"\n", "invalid type"),
            ("[flop", "TOML parse error"),
            ("[[data]]\nmots = 1\n", "data.mots: there is no such key; there are name, least, most"),
            ("[[data]]\nname = \"a\"\nmost = 0\n", "one of `hashes`, `pattern` and `command` is wanted"),
            ("[[data]]\nname = \"a b\"\nmost = 0\npattern = \"x\"", "`name` has 1 to 64"),
            ("[[data]]\nname = \"a\"\nmost = 2\npattern = \"x\"", "are shares from 0 to 1"),
            ("[[data]]\nname = \"a\"\npattern = \"x\"", "data.a: `least`, `most` or both"),
            ("[[data]]\nname = \"a\"\nmost = 0\npattern = \"(\"", "data: rule 1: regex parse error"),
            ("[[data]]\nname = \"a\"\nmost = 0\ncommand = []", "one of `hashes`"),
            ("[[data]]\nname = \"a\"\nmost = 0\nsamples = 0\npattern = \"x\"", "from 1 to 100000"),
            ("[data]\nname = \"a\"\n", "invalid type"),
        ] {
            let error = Rules::read(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

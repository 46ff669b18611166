//! An entry of the register of chips: one change of one chip, with its date, as a line of JSON.

use serde::{Deserialize, Serialize};
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::{Malformed, other_encoding};

use crate::snapshot::record::Serial;

/// The most characters of an owner, a site, a model or a reason.
pub const WORDS_MAX: usize = 200;
/// The most bytes of an entry's line.
pub const LINE_MAX: usize = 4096;
/// The last second of an entry: the end of the year 9999.
pub const TIME_MAX: u64 = 253_402_300_799;
const WHAT: &str = "register entry";

/// The change of a chip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// A chip enters the register.
    Enter {
        /// The text of the chip's public key.
        key: String,
        /// The kind of chip.
        model: String,
        /// The owner.
        owner: String,
        /// The place where the chip stands.
        site: String,
        /// The reason why the chip is not monitored; `None` for a monitored chip.
        exempt: Option<String>,
    },
    /// The chip has another owner or another place.
    Transfer {
        /// The owner from now on.
        owner: String,
        /// The place from now on.
        site: String,
    },
    /// The chip signs with another key, for example after a repair.
    Key {
        /// The text of the chip's new public key.
        key: String,
        /// The reason.
        why: String,
    },
    /// The chip leaves the register.
    Leave {
        /// The reason.
        why: String,
    },
}

impl Change {
    /// The change in words, before the chip's serial number.
    pub fn name(&self) -> &'static str {
        match self {
            Change::Enter { .. } => "entry of",
            Change::Transfer { .. } => "transfer of",
            Change::Key { .. } => "new key of",
            Change::Leave { .. } => "departure of",
        }
    }

    /// The key that the chip signs with from now on, if the change gives one.
    ///
    /// # Errors
    /// If the text is no key in its one form.
    pub fn key(&self) -> Result<Option<PublicKey>, Malformed> {
        let (Change::Enter { key: text, .. } | Change::Key { key: text, .. }) = self else { return Ok(None) };
        let key = PublicKey::from_text(text)?;
        // White space behind a key is no second spelling.
        let right = key.to_text();
        if right == *text {
            Ok(Some(key))
        } else {
            Err(wrong(format!("the key: {}", other_encoding(text.as_bytes(), right.as_bytes()))))
        }
    }
}

/// A change of a chip, and its date.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Seconds since 1970, from which on the change counts.
    pub time: u64,
    /// The chip.
    pub serial: Serial,
    /// The change.
    pub change: Change,
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid(WHAT, why)
}

impl Entry {
    /// The one line of the entry, without a line end.
    ///
    /// # Panics
    /// Never: an entry has no value that JSON lacks.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("an entry has texts and numbers only")
    }

    /// Parses [`Entry::line`].
    ///
    /// # Errors
    /// If the line is too long, is not the one encoding of an entry, or has a text outside its bounds.
    pub fn from_line(line: &str) -> Result<Entry, Malformed> {
        if line.len() > LINE_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: LINE_MAX as u64 });
        }
        let entry: Entry = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let right = entry.line();
        if right != line {
            return Err(wrong(other_encoding(line.as_bytes(), right.as_bytes())));
        }
        entry.check()?;
        Ok(entry)
    }

    /// Checks the bounds of all texts and of the date.
    pub(super) fn check(&self) -> Result<(), Malformed> {
        if self.time > TIME_MAX {
            return Err(wrong(format!("the time {} is after the year 9999", self.time)));
        }
        let words: Vec<(&str, &str)> = match &self.change {
            Change::Enter { model, owner, site, exempt, .. } => {
                let why = exempt.iter().map(|why| ("reason", why.as_str()));
                let first = [("model", model.as_str()), ("owner", owner.as_str()), ("site", site.as_str())];
                first.into_iter().chain(why).collect()
            }
            Change::Transfer { owner, site } => vec![("owner", owner), ("site", site)],
            Change::Key { why, .. } | Change::Leave { why } => vec![("reason", why)],
        };
        for (name, words) in words {
            let count = words.chars().count();
            if count == 0 || count > WORDS_MAX || words.chars().any(char::is_control) || words.trim() != words
            {
                return Err(wrong(format!(
                    "the {name} is {words:?}; 1 to {WORDS_MAX} characters are wanted"
                )));
            }
        }
        Ok(())
    }

    /// The entry's leaf in the register's tree.
    pub fn leaf(&self) -> Digest {
        merkle::leaf(self.line().as_bytes())
    }

    /// The entry for people: its date, its kind and its chip.
    pub fn said(&self) -> String {
        format!("{} {} at {}", self.change.name(), self.serial, utc(self.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_record::commit::keys::PrivateKey;

    fn entry() -> Entry {
        let key = PrivateKey::generate("chip", [1; 32]).unwrap().public().to_text();
        let [model, owner, site] = ["h100", "Example Ltd", "hall 3"].map(String::from);
        let change = Change::Enter { key, model, owner, site, exempt: None };
        Entry { time: 1_700_000_000, serial: Serial::new("A-1").unwrap(), change }
    }

    #[test]
    fn an_entry_has_one_line() {
        let line = entry().line();
        assert_eq!(Entry::from_line(&line).unwrap(), entry());
        for other in [
            line.replace(":1700000000", ": 1700000000"),
            line.replace("1700000000", "1.7e9"),
            line.replace("\"owner\"", "\"owner2\""),
            line.replace("\"A-1\"", "\"A 1\""),
            line.replace("hall 3", "hall\\u0020 3"),
            line.replace("hall 3", ""),
            line.replace("hall 3", &"x".repeat(WORDS_MAX + 1)),
            line.replace("hall 3", "hall\\u001b3"),
            line.replace("1700000000", "253402300800"),
            line.replace("\"exempt\":null", "\"exempt\":null,\"exempt\":null"),
            line.replace(",\"exempt\":null", ""),
            format!("{line} "),
            String::new(),
        ] {
            assert!(Entry::from_line(&other).is_err(), "{other}");
        }
        let spaced = line.replace("\",\"model\"", " \",\"model\"");
        assert!(Entry::from_line(&spaced).and_then(|entry| entry.change.key()).is_err());
    }
}

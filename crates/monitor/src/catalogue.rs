//! Chips and runs by name: a small file that users extend.

use serde::Deserialize;

use crate::regime::{FLOP_MAX, RegimeError, bounded};

/// The most bytes of a catalogue.
pub const CATALOGUE_MAX: usize = 1 << 20;
/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// The built-in catalogue: the chips and the runs of the paper's Table 1.
const BUILT_IN: &str = include_str!("../../../assets/monitor/catalogue.toml");

/// The reasons why a catalogue is refused.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The text has too many bytes.
    #[error("a catalogue has at most {CATALOGUE_MAX} bytes")]
    TooLong,
    /// The text is no catalogue.
    #[error("{0}")]
    Malformed(#[from] toml::de::Error),
    /// A number is outside its bounds.
    #[error("{name}: {error}")]
    Bounds {
        /// The entry's name.
        name: String,
        /// The number, and its bounds.
        error: RegimeError,
    },
    /// Two entries have one name.
    #[error("{0} is there twice")]
    Twice(String),
}

/// A kind of chip.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// The chip's name.
    pub name: String,
    /// The most FLOP a second.
    pub flop_per_second: f64,
    /// The precision, and the source of the figure.
    #[serde(default)]
    pub says: String,
}

impl Chip {
    /// The most FLOP in a day.
    pub fn flop_per_day(&self) -> f64 {
        self.flop_per_second * DAY
    }
}

/// A training run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The run's name.
    pub name: String,
    /// The run's FLOP.
    pub flop: f64,
    /// The source of the figure.
    #[serde(default)]
    pub says: String,
}

/// Chips and runs by name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    #[serde(default, rename = "chip")]
    chips: Vec<Chip>,
    #[serde(default, rename = "run")]
    runs: Vec<Known>,
}

impl Catalogue {
    /// The built-in catalogue.
    ///
    /// # Panics
    /// Never: a test reads it.
    pub fn built_in() -> Catalogue {
        Catalogue::read(BUILT_IN).expect("the built-in catalogue is one")
    }

    /// A catalogue from its text.
    ///
    /// # Errors
    /// If it is too long, is no catalogue, or has a wrong entry.
    pub fn read(text: &str) -> Result<Catalogue, CatalogueError> {
        if text.len() > CATALOGUE_MAX {
            return Err(CatalogueError::TooLong);
        }
        let read: Catalogue = toml::from_str(text)?;
        let chips = read.chips.iter().map(|chip| (&chip.name, "a chip's FLOP in a day", chip.flop_per_day()));
        let runs = read.runs.iter().map(|run| (&run.name, "a run's FLOP", run.flop));
        for (name, what, flop) in chips.chain(runs) {
            bounded(what, flop, 1.0, FLOP_MAX)
                .map_err(|error| CatalogueError::Bounds { name: name.clone(), error })?;
        }
        Catalogue::default().and(read)
    }

    /// This catalogue, with the entries of another one.
    ///
    /// # Errors
    /// If two entries have one name.
    pub fn and(mut self, other: Catalogue) -> Result<Catalogue, CatalogueError> {
        for chip in other.chips {
            if self.chip(&chip.name).is_some() {
                return Err(CatalogueError::Twice(chip.name));
            }
            self.chips.push(chip);
        }
        for run in other.runs {
            if self.run(&run.name).is_some() {
                return Err(CatalogueError::Twice(run.name));
            }
            self.runs.push(run);
        }
        Ok(self)
    }

    /// The chip with this name.
    pub fn chip(&self, name: &str) -> Option<&Chip> {
        self.chips.iter().find(|chip| chip.name == name)
    }

    /// The run with this name.
    pub fn run(&self, name: &str) -> Option<&Known> {
        self.runs.iter().find(|run| run.name == name)
    }

    /// All chips, in the order of their files.
    pub fn chips(&self) -> &[Chip] {
        &self.chips
    }

    /// All runs, in the order of their files.
    pub fn runs(&self) -> &[Known] {
        &self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_catalogue_has_the_table() {
        let catalogue = Catalogue::built_in();
        assert_eq!(catalogue.chip("h100").unwrap().flop_per_day(), 8.64e19);
        assert_eq!(catalogue.runs().len(), 6);
    }

    #[test]
    fn entries_are_added_and_wrong_ones_refused() {
        let more = |text: &str| Catalogue::read(text).and_then(|more| Catalogue::built_in().and(more));
        let added = more("[[chip]]\nname = \"mine\"\nflop_per_second = 2e12").unwrap();
        assert!(added.chip("mine").is_some() && added.chip("h100").is_some());
        let wrong = |text: &str| more(text).unwrap_err();
        let twice = "[[run]]\nname = \"palm\"\nflop = 1e24";
        assert!(matches!(wrong(twice), CatalogueError::Twice(name) if name == "palm"));
        for flop in ["nan", "inf", "-1.0", "0.0", "1e300"] {
            let text = format!("[[run]]\nname = \"x\"\nflop = {flop}");
            assert!(matches!(wrong(&text), CatalogueError::Bounds { name, .. } if name == "x"), "{flop}");
        }
        assert!(matches!(wrong("[[run]]\nname = \"x\"\nflops = 1.0"), CatalogueError::Malformed(_)));
        assert!(matches!(wrong(&" ".repeat(CATALOGUE_MAX + 1)), CatalogueError::TooLong));
    }
}

//! The common options of `monitor`: how chips log and are inspected, and which chips and runs have names.

use std::path::PathBuf;

use tiebreak_monitor::catalogue::{CATALOGUE_MAX, Catalogue};
use tiebreak_monitor::regime::{Fleet, Regime, RegimeError};

use crate::cli::args::limits::Limits;
use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_run::run::{disk, shell};

/// The logs and inspections of chips, and the kind of chip.
#[derive(clap::Args)]
#[command(next_help_heading = "Inspections")]
pub struct Inspections {
    /// Kind of chip, by its name in the catalogue.
    #[arg(long, default_value = "h100", value_name = "NAME")]
    chip: String,
    /// FLOP/s of a chip, in place of a kind.
    #[arg(long, value_name = "FLOP/S", conflicts_with = "chip")]
    flop_per_second: Option<f64>,
    /// Snapshots that a chip logs in a day, on average.
    #[arg(long, default_value_t = 0.1, value_name = "NUMBER")]
    rate: f64,
    /// Days between two inspections.
    #[arg(long, default_value_t = 30.0, value_name = "DAYS")]
    period: f64,
    /// Probability with which a run has to be found.
    #[arg(long, default_value_t = 0.9, value_name = "P")]
    pub confidence: f64,
    /// Catalogue of your own chips and runs, beside the built-in one.
    ///
    /// assets/monitor/catalogue.toml shows the form.
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    #[command(flatten)]
    pub limits: Limits,
}

impl Inspections {
    /// All chips and runs that are known by name.
    pub fn catalogue(&self) -> Result<Catalogue, Failure> {
        let all = Catalogue::built_in();
        let Some(path) = &self.catalogue else { return Ok(all) };
        let text = disk::read_text(path, CATALOGUE_MAX as u64).map_err(named)?;
        let wrong = |error| Failure::new(Exit::Malformed, format!("{}: {error}", path.display()));
        Catalogue::read(&text).and_then(|more| all.and(more)).map_err(wrong)
    }

    /// The options, for another command.
    pub fn options(&self) -> String {
        let chip = match self.flop_per_second {
            Some(flop) => format!("--flop-per-second {flop}"),
            None => format!("--chip {}", shell::word(&self.chip)),
        };
        let catalogue = self.catalogue.as_ref().map(|path| format!(" --catalogue {}", shell::path(path)));
        format!(
            " {chip} --rate {} --period {} --confidence {}{}",
            self.rate,
            self.period,
            self.confidence,
            catalogue.unwrap_or_default()
        )
    }

    /// The regime over a fleet of so many chips.
    pub fn regime(&self, chips: u64, catalogue: &Catalogue) -> Result<Regime, Failure> {
        let flop_per_day = match self.flop_per_second {
            Some(flop) => flop * 86_400.0,
            None => {
                let chip = catalogue.chip(&self.chip).ok_or_else(|| {
                    unknown("chip", &self.chip, catalogue.chips().iter().map(|chip| chip.name.as_str()))
                })?;
                chip.flop_per_day()
            }
        };
        let regime = Regime { fleet: Fleet { chips, flop_per_day }, rate: self.rate, period: self.period };
        regime.check().map_err(usage)?;
        Ok(regime)
    }
}

/// A number that the command line got wrong.
pub fn usage(error: RegimeError) -> Failure {
    Failure::new(Exit::Usage, error)
}

/// A name that the catalogue has not.
fn unknown<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str>) -> Failure {
    let names: Vec<&str> = names.collect();
    let why =
        format!("the catalogue has no {what} {name}; it has {}; add it with --catalogue", names.join(", "));
    Failure::new(Exit::Usage, why)
}

/// The FLOP of a run that the command line names.
pub fn flop_of(text: &str, catalogue: &Catalogue) -> Result<f64, Failure> {
    if let Some(run) = catalogue.run(text) {
        return Ok(run.flop);
    }
    text.parse().map_err(|_| unknown("run", text, catalogue.runs().iter().map(|run| run.name.as_str())))
}

/// A count that may be written as 1e5.
pub fn count(text: &str) -> Result<u64, String> {
    let number: f64 = text.parse().map_err(|_| "a number such as 100000 or 1e5 is wanted".to_string())?;
    let fits = (1.0..=1e18).contains(&number) && number.fract() == 0.0;
    if fits { Ok(number as u64) } else { Err("a whole number from 1 is wanted".into()) }
}

/// A number with four digits, and an exponent where it is long.
pub fn short(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        _ if !(1e-3..1e6).contains(&value.abs()) => format!("{value:.2e}"),
        _ => {
            let digits = (3 - value.abs().log10().floor() as i32).max(0) as usize;
            let text = format!("{value:.digits$}");
            if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').into() }
        }
    }
}

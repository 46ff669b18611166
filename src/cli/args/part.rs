//! The part of a run that is replayed: all, a range of steps, or a random sample.

use crate::cli::args::random::random;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_audit::plan::Choice;

/// A range of steps, in the form FIRST..LAST.
pub fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let wrong = || "the form is FIRST..LAST with 1 <= FIRST <= LAST".to_string();
    let (first, last) = text.split_once("..").ok_or_else(wrong)?;
    let pair = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if pair.0 == 0 || pair.0 > pair.1 { Err(wrong()) } else { Ok(pair) }
}

/// A span of bytes or samples, in the form FIRST..END.
pub fn parse_span(text: &str) -> Result<(u64, u64), String> {
    let wrong = || "the form is FIRST..END with FIRST < END".to_string();
    let (first, end) = text.split_once("..").ok_or_else(wrong)?;
    let pair = (first.parse().map_err(|_| wrong())?, end.parse().map_err(|_| wrong())?);
    if pair.0 < pair.1 { Ok(pair) } else { Err(wrong()) }
}

/// The part that a command replays.
#[derive(clap::Args, Default)]
pub struct PartArgs {
    /// Replay these steps alone, both ends included.
    ///
    /// The replay begins at the checkpoint before.
    #[arg(long, value_name = "FIRST..LAST", value_parser = parse_range, conflicts_with = "sample")]
    pub steps: Option<(u32, u32)>,
    /// Replay a random share of the checkpoint segments, at least one.
    #[arg(long, value_name = "SHARE")]
    pub sample: Option<f64>,
    /// Seed of the sample, to repeat that of an earlier report.
    #[arg(long, requires = "sample", hide_short_help = true)]
    pub seed: Option<u64>,
}

impl PartArgs {
    /// The steps to replay. A seed that nobody gives is drawn now.
    pub fn choice(&self) -> Result<Choice, Failure> {
        match (self.steps, self.sample) {
            (Some((first, last)), _) => Ok(Choice::Range(first, last)),
            (None, Some(fraction)) if (0.0..=1.0).contains(&fraction) => {
                let seed = self.seed.map_or_else(|| random().map(u64::from_le_bytes), Ok)?;
                Ok(Choice::Sample { fraction, seed })
            }
            (None, Some(found)) => {
                let why = format!("--sample {found}: a fraction from 0 to 1 is wanted, as in --sample 0.05");
                Err(Failure::new(Exit::Usage, why))
            }
            (None, None) => Ok(Choice::All),
        }
    }
}

/// Checks that a head covers the steps of `--steps`; `last` is the last one that it covers.
pub fn check_steps(steps: Option<(u32, u32)>, last: u32) -> Result<(), Failure> {
    match steps.filter(|(_, end)| *end > last) {
        None => Ok(()),
        Some((first, end)) => {
            let why = format!("--steps {first}..{end}: the head covers steps 1 to {last}");
            Err(Failure::new(Exit::Usage, why).help(format!("give steps up to {last}")))
        }
    }
}

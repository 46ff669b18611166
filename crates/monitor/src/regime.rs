//! The inputs of planning: a fleet, its inspection regime, and the run that has to be found.

/// The most chips of a fleet.
pub const CHIPS_MAX: u64 = 1_000_000_000;
/// The most days of a run or between two inspections: a century.
pub const DAYS_MAX: f64 = 36_525.0;
/// The most snapshots a chip and day: one in 86 milliseconds.
pub const RATE_MAX: f64 = 1e6;
/// The most FLOP of a run, and of a chip in a day.
pub const FLOP_MAX: f64 = 1e40;
/// The most inspections during a run: each is computed.
pub const INSPECTIONS_MAX: f64 = 10_000.0;

/// The reasons why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RegimeError {
    /// A number is outside its bounds.
    #[error("{name} is {value}; it has to be {bounds}")]
    Bounds {
        /// The quantity's name.
        name: &'static str,
        /// The quantity's value.
        value: f64,
        /// The bounds, in words.
        bounds: String,
    },
    /// The fleet is too small for the run.
    #[error(
        "the run needs {needed:.0} chips for {days} days, and the fleet has {chips}: no such run can happen; give it at least {least:.1} days"
    )]
    TooLarge {
        /// The chips that the run needs.
        needed: f64,
        /// The days that the run is to take.
        days: f64,
        /// The chips of the fleet.
        chips: u64,
        /// The days that the run takes on the whole fleet.
        least: f64,
    },
}

/// The chips that an inspector samples from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fleet {
    /// C: chips, from 1 to [`CHIPS_MAX`].
    pub chips: u64,
    /// a: the most FLOP of a chip in a day.
    pub flop_per_day: f64,
}

/// The inspection regime of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regime {
    /// The fleet.
    pub fleet: Fleet,
    /// f: snapshots that each chip logs in a day, on average, at Poisson-distributed times.
    pub rate: f64,
    /// T_m: days between two inspections.
    pub period: f64,
}

/// A training run that has to be found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingRun {
    /// H: the run's FLOP.
    pub flop: f64,
    /// T: the days that the run takes.
    pub days: f64,
}

impl Fleet {
    /// Checks that both numbers are within their bounds.
    ///
    /// # Errors
    /// The first number that is not.
    pub fn check(&self) -> Result<(), RegimeError> {
        bounded("the number of chips", self.chips as f64, 1.0, CHIPS_MAX as f64)?;
        bounded("a chip's FLOP in a day", self.flop_per_day, 1.0, FLOP_MAX)
    }
}

impl Regime {
    /// Checks that all numbers are within their bounds.
    ///
    /// # Errors
    /// The first number that is not.
    pub fn check(&self) -> Result<(), RegimeError> {
        self.fleet.check()?;
        bounded("the rate of snapshots", self.rate, 1e-6, RATE_MAX)?;
        bounded("the monitoring period in days", self.period, 1e-3, DAYS_MAX)
    }

    /// Checks that the regime and a run are within their bounds, and that the fleet has the chips that the run needs.
    ///
    /// # Errors
    /// The first number that is not, or that the run is too large.
    pub fn check_run(&self, run: &TrainingRun) -> Result<(), RegimeError> {
        self.check()?;
        bounded("a run's FLOP", run.flop, 1.0, FLOP_MAX)?;
        bounded("a run's days", run.days, 1e-3, DAYS_MAX.min(INSPECTIONS_MAX * self.period))?;
        let needed = self.chips_of(run);
        if needed > self.fleet.chips as f64 {
            let least = run.days * needed / self.fleet.chips as f64;
            return Err(RegimeError::TooLarge { needed, days: run.days, chips: self.fleet.chips, least });
        }
        Ok(())
    }

    /// H/(aT): the fewest chips on which the run takes its days, at full use of each; at least one whole chip.
    pub fn chips_of(&self, run: &TrainingRun) -> f64 {
        (run.flop / (self.fleet.flop_per_day * run.days)).max(1.0)
    }

    /// b = H/(aTC): the share of the fleet that the run uses.
    pub fn share(&self, run: &TrainingRun) -> f64 {
        self.chips_of(run) / self.fleet.chips as f64
    }

    /// The inspections of a run as Eq. 1 counts them: T/T_m, or one for a run that is shorter than a period.
    pub fn inspections(&self, run: &TrainingRun) -> f64 {
        (run.days / self.period).max(1.0)
    }

    /// 1 - e^(-f d): the probability that a chip has logged a snapshot of a run within so many days.
    pub fn logged(&self, days: f64) -> f64 {
        -(-self.rate * days).exp_m1()
    }

    /// Inspections in a year of 365 days.
    pub fn inspections_per_year(&self) -> f64 {
        365.0 / self.period
    }
}

/// Checks that a probability is above 0 and below 1.
///
/// # Errors
/// If it is not.
pub fn check_probability(value: f64) -> Result<(), RegimeError> {
    if value > 0.0 && value < 1.0 {
        return Ok(());
    }
    let bounds = "above 0 and below 1".into();
    Err(RegimeError::Bounds { name: "the probability of detection", value, bounds })
}

pub(crate) fn bounded(name: &'static str, value: f64, low: f64, high: f64) -> Result<(), RegimeError> {
    // NaN is within no bounds.
    if value >= low && value <= high {
        return Ok(());
    }
    let high = if high < 1e9 { high.to_string() } else { format!("{high:e}") };
    Err(RegimeError::Bounds { name, value, bounds: format!("from {low} to {high}") })
}

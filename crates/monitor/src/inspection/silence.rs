//! The longest time in which a log has no due snapshot, against the rate.
//!
//! The number of snapshots does not show an agent that was suspended: when the agent goes on, it logs all that were due
//! meanwhile. Their times show it.

/// Milliseconds of a day.
pub const DAY: f64 = 86_400_000.0;

/// The longest time of a log without a due snapshot, among the times in which the chip is monitored and its agent ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Silence {
    /// The record that ended the time; `None` if the inspected time ended it.
    pub record: Option<u64>,
    /// The length in days, without the time that a training had to answer.
    pub days: f64,
    /// A bound of the probability that an honest chip has a time as long as this one.
    pub probability: f64,
}

/// The times without a due snapshot, as the walk over a log finds them. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silences {
    /// The length of the present one.
    present: u64,
    /// The longest one, and the record that ended it.
    longest: (u64, Option<u64>),
    /// The begins of the agent.
    begins: u64,
}

impl Silences {
    /// Logged time passes.
    pub(super) fn pass(&mut self, time: u64) {
        self.present = self.present.saturating_add(time);
    }

    /// The clock was set back, so that this time was counted already.
    pub(super) fn set_back(&mut self, time: u64) {
        self.present = self.present.saturating_sub(time);
    }

    /// A snapshot was due, and its record may be later than that by `patience`.
    pub(super) fn due(&mut self, record: u64, patience: u64) {
        self.end(Some(record), patience);
    }

    /// The agent began. What it did before the begin is off time, so the present silence ends at the record before.
    pub(super) fn begin(&mut self, record: u64) {
        self.end(Some(record), 0);
        self.begins += 1;
    }

    fn end(&mut self, record: Option<u64>, patience: u64) {
        let length = self.present.saturating_sub(patience);
        if length > self.longest.0 {
            self.longest = (length, record);
        }
        self.present = 0;
    }

    /// The longest silence of a log that has `days` days of logged time, for a chip with this rate a day.
    ///
    /// A silence begins with the log, a begin, or a snapshot. Each is longer than g days with probability e^(-rate g), and
    /// rate * days snapshots are expected. The sum bounds the probability that one of them is.
    pub(super) fn longest(mut self, rate: f64, days: f64, patience: u64) -> Silence {
        self.end(None, patience);
        let (length, record) = self.longest;
        let silent = length as f64 / DAY;
        let starts = 1.0 + self.begins as f64 + rate * days;
        Silence { record, days: silent, probability: (starts * (-rate * silent).exp()).min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::times::{Poisson, Rate, Times};
    use crate::snapshot::record::Serial;

    const HOUR: u64 = 3_600_000;

    /// The walk over due snapshots at these hours, at ten a day.
    fn walked(hours: impl IntoIterator<Item = f64>, until: f64) -> Silence {
        let (mut silences, mut last) = (Silences::default(), 0.0);
        for (record, hour) in (0..).zip(hours) {
            silences.pass(((hour - last) * HOUR as f64) as u64);
            silences.due(record, 0);
            last = hour;
        }
        silences.pass(((until - last) * HOUR as f64) as u64);
        silences.longest(10.0, until / 24.0, 0)
    }

    /// A thousand honest chips of thirty days: the bound is below 1 in 100 for at most about 1 in 100. Suspended for thirty-six hours,
    /// each of them has a bound below that, whenever it is suspended.
    #[test]
    fn honest_chips_are_below_the_bound_and_suspended_ones_above() {
        let (mut accused, mut missed) = (0, 0);
        for chip in 0..1000u32 {
            let rate: Rate = "10".parse().unwrap();
            let mut times = Poisson::new(rate, &[7; 32], &Serial::new(&format!("chip-{chip}")).unwrap(), 0);
            let mut hour = 0.0;
            let due: Vec<f64> = std::iter::from_fn(|| {
                hour += times.gap() as f64 / 3.6e9;
                Some(hour)
            })
            .take_while(|hour| *hour < 720.0)
            .collect();
            accused += u32::from(walked(due.iter().copied(), 720.0).probability < 0.01);
            let (from, until) = (f64::from(chip % 600), f64::from(chip % 600) + 36.0);
            let held = due.iter().map(|hour| if (from..until).contains(hour) { until } else { *hour });
            missed += u32::from(walked(held, 720.0).probability >= 0.01);
        }
        assert!(accused <= 18, "{accused} of 1000 honest chips are accused at 0.01");
        assert_eq!(missed, 0);
    }

    #[test]
    fn patience_begins_and_clocks_count() {
        let day = 24 * HOUR;
        let mut silences = Silences::default();
        silences.begin(0);
        silences.pass(day);
        silences.due(1, day / 2);
        assert_eq!(silences.longest(1.0, 1.0, 0).days, 0.5);
        // Before the begin of record 3 a day is silent, and behind it another one: no two days.
        silences.pass(day);
        silences.begin(3);
        silences.pass(day + HOUR);
        silences.set_back(HOUR);
        let found = silences.longest(1.0, 3.0, 0);
        assert_eq!((found.record, found.days), (Some(3), 1.0));
        // Two begins, the log's beginning and three snapshots that are expected.
        assert!((silences.longest(2.0, 1.5, 0).probability - 6.0 * (-2.0f64).exp()).abs() < 1e-12);
    }
}

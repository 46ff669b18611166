//! Trials: an operator hides a run, chips are drawn and their logs inspected, and the share of operators who are found is measured.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::{Malformed, merkle};

use super::fleet::{Evasion, Fleet, Hidden, Random, milliseconds};
use crate::detection::missed_by_draw;
use crate::draw;
use crate::inspection::examine::{Inspection, accused_below, examine};
use crate::inspection::poisson::at_most;
use crate::regime::{Regime, TrainingRun};
use crate::snapshot::log::ChipLog;
use crate::snapshot::record::{Event, Serial};

/// The question of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Fleet, rate and period.
    pub regime: Regime,
    /// The run that operators hide.
    pub run: TrainingRun,
    /// Chips that are drawn at each inspection.
    pub samples: u64,
    /// The way in which the run is hidden.
    pub evasion: Evasion,
    /// The probability with which an honest chip is not said to log too rarely.
    pub confidence: f64,
    /// Operators.
    pub operators: u64,
    /// The seed of everything.
    pub seed: u64,
    /// Threads, which change no result.
    pub threads: usize,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Operators.
    pub operators: u64,
    /// Operators of whom a drawn chip showed a snapshot of no declared run, or logged too rarely while it hid one.
    pub found: u64,
    /// Logs of chips that hid nothing.
    pub honest_logs: u64,
    /// Logs of these chips in which the inspection found a defect all the same.
    pub accused: u64,
    /// Records that were signed, read and examined.
    pub records: u64,
}

impl Measured {
    fn and(self, other: Measured) -> Measured {
        Measured {
            operators: self.operators + other.operators,
            found: self.found + other.found,
            honest_logs: self.honest_logs + other.honest_logs,
            accused: self.accused + other.accused,
            records: self.records + other.records,
        }
    }
}

impl Setting {
    /// The hidden run's chips.
    pub fn chips(&self) -> u64 {
        (self.regime.chips_of(&self.run).ceil() as u64).min(self.regime.fleet.chips)
    }

    /// The days of the inspections while the run lasts. The run begins just after an inspection, which is the worst case.
    fn days(&self) -> impl Iterator<Item = f64> {
        let (days, period) = (self.run.days, self.regime.period);
        (1..=(days / period).ceil() as u64).map(move |inspection| days.min(inspection as f64 * period))
    }

    /// The probability of detection if the run's chips log nothing: a drawn one is found as soon as its silence is too long.
    pub fn silent(&self) -> f64 {
        let (fleet, run) = (self.regime.fleet.chips, self.chips());
        let told =
            self.days().filter(|days| at_most(0, self.regime.rate * days) < accused_below(self.confidence));
        1.0 - told.map(|_| missed_by_draw(fleet, run, self.samples.min(fleet), 0.0)).product::<f64>()
    }
}

/// The one place where a snapshot is compared with the declared runs.
fn is_declared(digest: &Digest, declared: &HashSet<Digest>) -> bool {
    declared.contains(digest)
}

/// Measures.
///
/// # Errors
/// If the fleet has more chips than a register.
pub fn measure(fleet: &Fleet, setting: &Setting) -> Result<Measured, Malformed> {
    let monitored = fleet.register.monitored_at(milliseconds(0.0) / 1000);
    let declared = super::fleet::declared(last(setting));
    let next = AtomicU64::new(0);
    let work = || {
        let mut sum = Measured::default();
        loop {
            let operator = next.fetch_add(1, Relaxed);
            if operator >= setting.operators {
                return Ok(sum);
            }
            sum = sum.and(trial(fleet, setting, operator, &monitored, &declared)?);
        }
    };
    let results: Vec<Result<Measured, Malformed>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..setting.threads.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a trial does not panic")).collect()
    });
    results.into_iter().try_fold(Measured::default(), |sum, result| Ok(sum.and(result?)))
}

/// The last day of an inspection.
fn last(setting: &Setting) -> f64 {
    setting.days().fold(0.0, f64::max)
}

/// One operator, up to the inspection that finds its run.
fn trial(
    fleet: &Fleet,
    setting: &Setting,
    operator: u64,
    monitored: &[&Serial],
    declared: &HashSet<Digest>,
) -> Result<Measured, Malformed> {
    let hidden = Hidden { evasion: setting.evasion, chips: setting.chips(), days: setting.run.days };
    let mut sum = Measured { operators: 1, ..Measured::default() };
    for (inspection, day) in setting.days().enumerate() {
        let parts = [setting.seed, operator, inspection as u64].map(u64::to_le_bytes).concat();
        let seed = merkle::leaf(&parts);
        for serial in draw::chips(&seed, monitored, setting.samples as usize) {
            // A simulated serial number ends with the chip's number.
            let chip = serial.as_str().rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            let random = Random::of(&[setting.seed, operator, chip, 1]);
            let log = ChipLog::read(&fleet.log(chip, (setting.regime.rate, day), &hidden, random)?)?;
            let examined = examine(&log, asked(fleet, setting, serial, day));
            let undeclared = log.records.iter().any(|signed| match &signed.record.event {
                Event::Snapshot { digest, .. } => !is_declared(digest, declared),
                _ => false,
            });
            let defect = !examined.findings.is_empty();
            let hides = setting.evasion != Evasion::Honest && chip < hidden.chips;
            sum.records += examined.records;
            if hides {
                let silent = defect && setting.evasion == Evasion::Silent;
                sum.found |= u64::from(undeclared || silent);
            } else {
                sum.honest_logs += 1;
                sum.accused += u64::from(defect || undeclared);
            }
        }
        if sum.found > 0 {
            break;
        }
    }
    Ok(sum)
}

fn asked<'a>(fleet: &'a Fleet, setting: &Setting, serial: &'a Serial, day: f64) -> Inspection<'a> {
    Inspection {
        off_at_most: None,
        patience: 0,
        register: &fleet.register,
        serial,
        previous: None,
        closed: None,
        rate: setting.regime.rate,
        confidence: setting.confidence,
        until: milliseconds(day),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detection::exact;
    use crate::interval::wilson;
    use crate::plan::samples;
    use crate::regime;

    fn setting(evasion: Evasion) -> Setting {
        let fleet = regime::Fleet { chips: 300, flop_per_day: 1e15 * 86_400.0 };
        let regime = Regime { fleet, rate: 0.1, period: 30.0 };
        // 15 chips for 80 days: three inspections, the last one before a whole period is over.
        let run = TrainingRun { flop: 15.0 * 80.0 * fleet.flop_per_day, days: 80.0 };
        let samples = samples(&regime, &run, 0.7).unwrap().exact;
        Setting { regime, run, samples, evasion, confidence: 0.99, operators: 400, seed: 7, threads: 2 }
    }

    fn measured(setting: &Setting) -> Measured {
        measure(&Fleet::new(setting.regime.fleet.chips).unwrap(), setting).unwrap()
    }

    /// The plan's probability lies in the interval of 99 % around the measured share.
    #[test]
    fn operators_are_found_as_often_as_planned() {
        let setting = setting(Evasion::Undeclared);
        let measured = measured(&setting);
        let planned = exact(&setting.regime, &setting.run, setting.samples);
        let (low, high) = wilson(measured.found, measured.operators, 2.576);
        assert!(low <= planned && planned <= high, "{planned} is not in {low}..{high}");
        assert!(high - low < 0.13 && planned > 0.7, "{low}..{high} {planned}");
        // Honest chips are accused of rare logs in at most one of a hundred logs, and of nothing else.
        let (low, _) = wilson(measured.accused, measured.honest_logs, 2.576);
        assert!(low < 0.01 && measured.honest_logs > 1000, "{measured:?}");
    }

    #[test]
    fn silent_chips_are_found_as_soon_as_their_silence_is_too_long() {
        let setting = setting(Evasion::Silent);
        let measured = measured(&setting);
        let planned = setting.silent();
        let (low, high) = wilson(measured.found, measured.operators, 2.576);
        assert!(low <= planned && planned <= high, "{planned} is not in {low}..{high}");
        // Thirty days without a snapshot are no proof at this rate.
        assert!(planned < exact(&setting.regime, &setting.run, setting.samples));
    }

    #[test]
    fn honest_operators_have_no_undeclared_snapshot() {
        let setting = Setting { operators: 50, confidence: 1.0 - 1e-9, ..setting(Evasion::Honest) };
        let found = measured(&setting);
        assert_eq!((found.found, found.accused), (0, 0));
        assert_eq!(found.honest_logs, 50 * 3 * setting.samples);
        assert_eq!(measured(&Setting { threads: 1, ..setting }), found);
    }
}

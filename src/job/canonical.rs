//! The canonical job: the settings that decide the bytes of a run's records, and nothing else, as keys and values in text.
//!
//! Paths, comments, the cadence of heads and checkpoints, and the spelling of the model are not in it: two people who write the same
//! computation in two ways have the same canonical job. What decides the program is in the program digest.
//! Layout: `docs/RUN-FORMAT.md`.

use super::spec::{DataSpec, Granularity, Job};
use crate::commit::codec::Encoder;
use crate::commit::digest::{Digest, hash};
use crate::rounding::thresholds::Rounding;

/// The commitment scheme of leaves: 0 = plain. Other numbers are reserved for salted leaves, which hide small tensors.
const PLAIN: u32 = 0;

/// A setting: a dotted key and its value. Integers are decimal, binary32 numbers their patterns in eight hexadecimal digits.
pub type Setting = (String, String);

fn setting(key: &str, value: impl ToString) -> Setting {
    (key.to_string(), value.to_string())
}

fn pattern(number: f32) -> String {
    format!("{:08x}", number.to_bits())
}

impl Job {
    /// The settings that decide the bytes of the run's records, by ascending key. A setting that does not apply is absent.
    pub fn settings(&self) -> Vec<Setting> {
        let granularity = match self.commit.granularity {
            Granularity::Step => "step",
            Granularity::Microbatch => "microbatch",
            Granularity::Operator => "operator",
        };
        let mut settings = vec![
            setting("commit.granularity", granularity),
            setting("commit.scheme", PLAIN),
            setting("schedule.peak", pattern(self.schedule.peak)),
            setting("schedule.warmup", self.schedule.warmup),
            setting("seed", self.seed),
            setting("steps", self.steps),
        ];
        settings.extend(self.schedule.floor.map(|floor| setting("schedule.floor", pattern(floor))));
        data(&self.data, &mut settings);
        if let Some(rounding) = &self.rounding {
            rounding_rules(rounding, &mut settings);
        }
        settings.sort_unstable();
        settings
    }

    /// The digest of the canonical job.
    pub fn digest(&self) -> Digest {
        let mut e = Encoder::default();
        e.list(&self.settings(), |e, (key, value)| {
            e.bytes(key.as_bytes()).bytes(value.as_bytes());
        });
        hash("tiebreak 2 job", &e.0)
    }
}

/// How samples lie in the files.
fn data(data: &DataSpec, settings: &mut Vec<Setting>) {
    let kind = match data {
        DataSpec::Bytes { .. } => "bytes",
        DataSpec::Idx { .. } => "idx",
        DataSpec::Cifar10 { .. } => "cifar10",
    };
    settings.push(setting("data.kind", kind));
}

/// What a log has to hold. The grid is in the program.
fn rounding_rules(rounding: &Rounding, settings: &mut Vec<Setting>) {
    settings.push(setting("rounding.preset", if rounding.is_paper() { "paper" } else { "default" }));
    settings.push(setting("rounding.bits", rounding.rule().bits));
    settings.push(setting("rounding.floor", rounding.rule().floor));
    settings.extend(rounding.threshold.map(|threshold| setting("rounding.threshold", threshold)));
    let class = |(class, threshold): (&crate::program::products::ProductClass, &u32)| {
        setting(&format!("rounding.class.{}", class.name()), threshold)
    };
    settings.extend(rounding.class.iter().map(class));
}

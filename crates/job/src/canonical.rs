//! The canonical job: the settings that decide the bytes of a run's records, and nothing else, as keys and values in text.
//!
//! Paths, comments, the cadence of heads and checkpoints, and the spelling of the model are not in it. So two people who write
//! the same computation in two ways have the same canonical job. The program digest covers the settings that decide the program.
//! Layout: `docs/RUN-FORMAT.md`.

use super::data::layout;
use super::spec::{Augment, DataFiles, DataSpec, Granularity, Job, Masking, Sampling};
use tiebreak_contract::program::schedule::{Decay, Schedule};
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::rounding::thresholds::Rounding;

/// A setting: a dotted key and its value. Integers are decimal; binary32 numbers are their patterns in eight hexadecimal digits.
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
            setting("commit.scheme", self.commit.scheme),
            setting("seed", self.seed),
            setting("steps", self.steps),
        ];
        // The names are listed, so that the choice of patterns makes no difference.
        let drawn = self.reinitialized().unwrap_or_default();
        settings.extend((!drawn.is_empty()).then(|| setting("init.reinitialize", drawn.join(" "))));
        schedule(&self.schedule, &mut settings);
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

/// The learning rates. A floor without a kind is a cosine, and no floor and no kind is a constant rate, for compatibility.
fn schedule(schedule: &Schedule, settings: &mut Vec<Setting>) {
    settings.push(setting("schedule.peak", pattern(schedule.peak)));
    settings.push(setting("schedule.warmup", schedule.warmup));
    settings.extend(schedule.floor().map(|floor| setting("schedule.floor", pattern(floor))));
    match schedule.kind() {
        Decay::Constant | Decay::Cosine => {}
        Decay::Linear => settings.push(setting("schedule.kind", "linear")),
        Decay::Step => settings.push(setting("schedule.kind", "step")),
    }
    settings.extend(schedule.gamma.map(|gamma| setting("schedule.gamma", pattern(gamma))));
    settings.extend(schedule.every.map(|every| setting("schedule.every", every)));
    settings.extend(schedule.milestones.as_ref().map(|all| {
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        setting("schedule.milestones", all.join(" "))
    }));
}

/// The layout of samples in the files, and the way they are drawn. Only the endings of the paths count, because they decide how a
/// file is read.
fn data(data: &DataSpec, settings: &mut Vec<Setting>) {
    let sampling = match data.sampling {
        Sampling::Permutation => "permutation",
        Sampling::WithReplacement => "with_replacement",
        Sampling::InOrder => "in_order",
    };
    settings.push(setting("data.sampling", sampling));
    let kind = match &data.files {
        DataFiles::Bytes { .. } => "bytes",
        DataFiles::Idx { .. } => "idx",
        DataFiles::Cifar10 { .. } => "cifar10",
        DataFiles::Cifar100 { labels, .. } => {
            settings.push(setting("data.labels", labels.name()));
            "cifar100"
        }
        DataFiles::Tokens { paths, dtype, masks, separate } => {
            settings.push(setting("data.dtype", dtype.name()));
            settings.push(setting("data.formats", formats(paths.iter().map(String::as_str))));
            if !masks.is_empty() {
                settings.push(setting("data.masks", formats(masks.iter().map(String::as_str))));
                settings.extend(data.uncounted.map(|label| setting("data.uncounted", label)));
            }
            settings.extend(separate.then(|| setting("data.windows", "separate")));
            "tokens"
        }
        DataFiles::Arrays(arrays) => {
            settings.push(setting("data.dtype", arrays.dtype.name()));
            settings.push(setting("data.formats", formats([arrays.inputs.as_str(), &arrays.labels])));
            settings.push(setting("data.one_file", arrays.inputs == arrays.labels));
            let named = [("inputs_tensor", &arrays.inputs_tensor), ("labels_tensor", &arrays.labels_tensor)];
            let named = named.into_iter().filter_map(|(key, name)| Some((key, name.as_ref()?)));
            settings.extend(named.map(|(key, name)| setting(&format!("data.{key}"), name)));
            "arrays"
        }
    };
    settings.push(setting("data.kind", kind));
    let Augment { crop, flip } = data.augment;
    settings.extend((crop > 0).then(|| setting("data.augment.crop", crop)));
    settings.extend(flip.then(|| setting("data.augment.flip", flip)));
    if let Some(Masking { probability, token, mask_share, random_share, never }) = &data.masking {
        settings.push(setting("data.masking.probability", pattern(*probability)));
        settings.push(setting("data.masking.token", token));
        settings.push(setting("data.masking.mask_share", pattern(*mask_share)));
        settings.push(setting("data.masking.random_share", pattern(*random_share)));
        let never: Vec<String> = never.iter().map(u32::to_string).collect();
        settings.extend((!never.is_empty()).then(|| setting("data.masking.never", never.join(" "))));
        settings.extend(data.uncounted.map(|label| setting("data.uncounted", label)));
    }
    settings.extend(data.validation_split.map(|share| setting("data.validation_split", pattern(share))));
}

/// The formats of files with these names, in order.
fn formats<'a>(paths: impl IntoIterator<Item = &'a str>) -> String {
    let format = |path| match (layout::is_npy(path), layout::is_safetensors(path)) {
        (true, _) => "npy",
        (_, true) => "safetensors",
        _ => "raw",
    };
    paths.into_iter().map(format).collect::<Vec<&str>>().join(" ")
}

/// The rules for the contents of a rounding log. The grid is in the program.
fn rounding_rules(rounding: &Rounding, settings: &mut Vec<Setting>) {
    settings.push(setting("rounding.preset", if rounding.is_paper() { "paper" } else { "default" }));
    settings.push(setting("rounding.bits", rounding.rule().bits));
    settings.push(setting("rounding.floor", rounding.rule().floor));
    settings.extend(rounding.threshold.map(|threshold| setting("rounding.threshold", threshold)));
    let class = |(class, threshold): (&tiebreak_contract::program::products::ProductClass, &u32)| {
        setting(&format!("rounding.class.{}", class.name()), threshold)
    };
    settings.extend(rounding.class.iter().map(class));
}

/// The settings that differ between two lists: (key, value in the first, value in the second).
pub fn settings_that_differ(first: &[Setting], second: &[Setting]) -> Vec<(String, String, String)> {
    let value = |settings: &[(String, String)], key: &str| {
        settings.iter().find(|(k, _)| k == key).map_or("absent".to_string(), |(_, value)| value.clone())
    };
    let mut keys: Vec<&String> = first.iter().chain(second).map(|(key, _)| key).collect();
    let mut seen = std::collections::BTreeSet::new();
    keys.retain(|key| seen.insert(*key));
    keys.into_iter()
        .map(|key| (key.clone(), value(first, key), value(second, key)))
        .filter(|(_, x, y)| x != y)
        .collect()
}

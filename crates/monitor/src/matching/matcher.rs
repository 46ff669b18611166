//! Judges where snapshots come from: by the records of declared runs, and by what replays of them gave.

use std::collections::{BTreeMap, BTreeSet};

use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::commit::digest::Digest;

use super::index::{Declared, Index};
use super::provenance::{Evidence, Provenance};
use super::sighting::{Attachment, Sighting};
use crate::snapshot::shard_map::ShardMap;

/// A shard whose digest no record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The run's index among the declared ones.
    pub run: usize,
    /// The step after which the state is.
    pub step: u32,
    /// The digest of the shard map.
    pub map: Digest,
}

/// A shard's digest, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Computed {
    /// The digest, and the thing that shows it.
    Digest(Digest, Evidence),
    /// A replay differs from the run's records at this step; the fields that differ, in words.
    Deviates(u32, String),
    /// The state could not be reached, for this reason.
    Unreached(String),
}

/// The computed shards.
pub type Shards = BTreeMap<Wanted, Computed>;

/// Declared runs, shard maps, and the rule for the time of declarations.
pub struct Matcher<'a> {
    runs: &'a [Declared],
    index: Index,
    maps: BTreeMap<Digest, ShardMap>,
    /// The maps that do not fit a run's state, with the slice and its defect: a log may name a map a million times.
    unfit: BTreeMap<(usize, Digest), String>,
    /// Seconds that the clocks of chips and witnesses may differ by; `None` if no witness was asked for.
    witnessed: Option<u64>,
}

impl<'a> Matcher<'a> {
    /// A matcher of these runs. `states` are the state tensors of each. The map `whole` is always known. With `witnessed`, a run
    /// has to be declared before chips see it; the clocks may differ by so many seconds.
    pub fn new(
        runs: &'a [Declared],
        states: &[Vec<StateTensor>],
        maps: impl IntoIterator<Item = ShardMap>,
        witnessed: Option<u64>,
    ) -> Matcher<'a> {
        let maps: BTreeMap<_, _> =
            maps.into_iter().chain([ShardMap::Whole]).map(|map| (map.digest(), map)).collect();
        let pairs =
            states.iter().enumerate().flat_map(|(run, state)| maps.iter().map(move |map| (run, state, map)));
        let unfit = pairs.filter_map(|(run, state, (digest, map))| {
            map.check(state).err().map(|error| ((run, *digest), error.to_string()))
        });
        Matcher { runs, index: Index::of(runs), unfit: unfit.collect(), maps, witnessed }
    }

    /// The shard map with this digest.
    pub fn map(&self, digest: &Digest) -> Option<&ShardMap> {
        self.maps.get(digest)
    }

    /// Runs whose state after the snapshot's step is compared: those of the computation that the chip was told, else all.
    fn candidates(&self, attachment: &Attachment) -> Vec<usize> {
        let told = |run: &usize| self.runs[*run].computation == attachment.computation;
        let all = 0..self.runs.len();
        let same: Vec<usize> = all.clone().filter(told).collect();
        if same.is_empty() { all.collect() } else { same }
    }

    /// The shards that [`Matcher::judge`] needs for these snapshots.
    pub fn needed(&self, sightings: &[Sighting]) -> BTreeSet<Wanted> {
        let mut wanted = BTreeSet::new();
        for sighting in sightings {
            let sliced = self.maps.get(&sighting.map).is_some_and(|map| *map != ShardMap::Whole);
            let (Some(attachment), true) = (&sighting.attachment, sliced) else { continue };
            for run in self.candidates(attachment) {
                let covered = sighting.step <= self.runs[run].covered();
                if covered && !self.unfit.contains_key(&(run, sighting.map)) {
                    wanted.insert(Wanted { run, step: sighting.step, map: sighting.map });
                }
            }
        }
        wanted
    }

    /// The provenance of a snapshot. `shards` holds what [`Matcher::needed`] asked for.
    pub fn judge(&self, sighting: &Sighting, shards: &Shards) -> Provenance {
        let Some(attachment) = &sighting.attachment else { return Provenance::Unattached };
        let found = match self.maps.get(&sighting.map) {
            None => return Provenance::UnknownMap { map: sighting.map },
            Some(ShardMap::Whole) => self.by_records(sighting, attachment),
            Some(_) => self.by_shards(sighting, attachment, shards),
        };
        let Provenance::Matched { run, step, .. } = found else { return found };
        if let Some(before) = sighting.after {
            return Provenance::OutOfOrder { run, step, before };
        }
        let Some(skew) = self.witnessed else { return found };
        let declared = self.runs.iter().filter(|declared| declared.run == run).find_map(|run| run.declared);
        let attached = attachment.time / 1000;
        match declared {
            None => Provenance::Unwitnessed { run },
            Some(cosigned) if cosigned > attached.saturating_add(skew) => {
                Provenance::Late { run, cosigned, attached }
            }
            Some(_) => found,
        }
    }

    /// The provenance of a snapshot of the whole state, whose digest records have.
    fn by_records(&self, sighting: &Sighting, attachment: &Attachment) -> Provenance {
        let step = sighting.step;
        let places: Vec<_> = self.index.find(&sighting.digest).collect();
        let told = |run: usize| self.runs[run].computation == attachment.computation;
        let id = |run: usize| self.runs[run].run;
        if let Some(place) = places.iter().find(|place| told(place.run) && place.step == step) {
            return Provenance::Matched { run: id(place.run), step, by: Evidence::Record };
        }
        if let Some(place) = places.iter().find(|place| told(place.run)) {
            return Provenance::OtherStep { run: id(place.run), step, found: place.step };
        }
        if let Some(place) = places.iter().find(|place| place.step == step).or(places.first()) {
            let told = attachment.computation;
            return Provenance::OtherComputation { run: id(place.run), step: place.step, told };
        }
        let same = self.candidates(attachment).into_iter().filter(|&run| told(run));
        // Of several runs of one computation, the one that is known furthest says most.
        match same.max_by_key(|&run| self.runs[run].states.len()) {
            None => Provenance::Undeclared { told: attachment.computation },
            Some(run) => match self.runs[run].states.get(step as usize) {
                None => self.uncovered(run, step),
                Some(declared) => {
                    let (shown, declared) = (sighting.digest, *declared);
                    Provenance::OtherState { run: id(run), step, shown, declared }
                }
            },
        }
    }

    fn uncovered(&self, run: usize, step: u32) -> Provenance {
        Provenance::Uncovered { run: self.runs[run].run, step, covered: self.runs[run].covered() }
    }

    /// The provenance of a snapshot of slices, whose digest follows from the state alone.
    fn by_shards(&self, sighting: &Sighting, attachment: &Attachment, shards: &Shards) -> Provenance {
        let (step, told) = (sighting.step, attachment.computation);
        // The most that a candidate says: a match, then something undecided, then a contradiction.
        let mut undecided = None;
        let mut against = None;
        for run in self.candidates(attachment) {
            let (id, is_told) = (self.runs[run].run, self.runs[run].computation == told);
            if let Some(why) = self.unfit.get(&(run, sighting.map)) {
                if is_told {
                    against = Some(Provenance::UnfitMap { run: id, why: why.clone() });
                }
                continue;
            }
            match shards.get(&Wanted { run, step, map: sighting.map }) {
                Some(&Computed::Digest(digest, by)) if digest == sighting.digest => {
                    return match is_told {
                        true => Provenance::Matched { run: id, step, by },
                        false => Provenance::OtherComputation { run: id, step, told },
                    };
                }
                Some(&Computed::Digest(declared, _)) if is_told => {
                    let shown = sighting.digest;
                    against = Some(Provenance::OtherState { run: id, step, shown, declared });
                }
                Some(Computed::Digest(..)) => {}
                Some(Computed::Deviates(at, what)) => {
                    undecided = Some(Provenance::Deviates { run: id, step: *at, what: what.clone() });
                }
                Some(Computed::Unreached(why)) => {
                    undecided = Some(Provenance::Unreached { run: id, step, why: why.clone() });
                }
                None if is_told => undecided = Some(self.uncovered(run, step)),
                None => {}
            }
        }
        undecided.or(against).unwrap_or(Provenance::Undeclared { told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::provenance::Weight;
    use crate::snapshot::record::{Serial, Shard};
    use crate::snapshot::shard_map::Slice;

    fn digest(byte: u8) -> Digest {
        Digest([byte; 32])
    }

    /// Run `id` of computation `id + 100`, with these states.
    fn declared(id: u8, states: &[u8]) -> Declared {
        let states = states.iter().map(|&byte| digest(byte)).collect();
        Declared { run: digest(id), computation: digest(id + 100), states, declared: Some(50) }
    }

    fn seen(map: &ShardMap, told: u8, step: u32, shown: u8) -> Sighting {
        let shard = Shard { map: map.digest(), code: digest(0) };
        Sighting {
            serial: Serial::new("chip").unwrap(),
            record: 3,
            time: 61_000,
            map: shard.map,
            step,
            digest: digest(shown),
            attachment: Some(Attachment { time: 60_999, computation: digest(told), shard }),
            after: None,
        }
    }

    fn state() -> Vec<StateTensor> {
        vec![StateTensor { name: "param/a".into(), shape: vec![4] }]
    }

    fn slices(count: u32) -> ShardMap {
        ShardMap::Slices(vec![Slice { tensor: "param/a".into(), first: 0, count }])
    }

    #[test]
    fn whole_states_are_found_by_the_records_alone() {
        let runs = [declared(1, &[10, 11, 12]), declared(2, &[20, 21])];
        let matcher = Matcher::new(&runs, &[state(), state()], [], None);
        let judge = |told, step, shown| {
            let sighting = seen(&ShardMap::Whole, told, step, shown);
            assert!(matcher.needed(std::slice::from_ref(&sighting)).is_empty());
            matcher.judge(&sighting, &Shards::new())
        };
        let (run, by) = (digest(1), Evidence::Record);
        assert_eq!(judge(101, 2, 12), Provenance::Matched { run, step: 2, by });
        assert_eq!(judge(101, 1, 12), Provenance::OtherStep { run, step: 1, found: 2 });
        let (shown, declared) = (digest(99), digest(11));
        assert_eq!(judge(101, 1, 99), Provenance::OtherState { run, step: 1, shown, declared });
        assert_eq!(judge(101, 3, 99), Provenance::Uncovered { run, step: 3, covered: 2 });
        assert_eq!(judge(102, 1, 11), Provenance::OtherComputation { run, step: 1, told: digest(102) });
        assert_eq!(judge(103, 1, 11), Provenance::OtherComputation { run, step: 1, told: digest(103) });
        assert_eq!(judge(103, 1, 99), Provenance::Undeclared { told: digest(103) });
        let mut loose = seen(&ShardMap::Whole, 101, 2, 12);
        loose.attachment = None;
        assert_eq!(matcher.judge(&loose, &Shards::new()), Provenance::Unattached);
        let back = Sighting { after: Some(5), ..seen(&ShardMap::Whole, 101, 2, 12) };
        assert_eq!(matcher.judge(&back, &Shards::new()), Provenance::OutOfOrder { run, step: 2, before: 5 });
    }

    #[test]
    fn a_run_is_declared_before_a_chip_sees_it() {
        let mut runs = [declared(1, &[10])];
        let kind = |runs: &[Declared], skew| {
            let matcher = Matcher::new(runs, &[state()], [], skew);
            matcher.judge(&seen(&ShardMap::Whole, 101, 0, 10), &Shards::new()).kind()
        };
        // The chip's clock was at 60.999 s.
        for (declared, skew, wanted) in [
            (Some(60), Some(0), "matched"),
            (Some(61), Some(0), "late"),
            (Some(61), Some(1), "matched"),
            (Some(61), None, "matched"),
            (None, Some(0), "unwitnessed"),
            (None, None, "matched"),
        ] {
            runs[0].declared = declared;
            assert_eq!(kind(&runs, skew), wanted, "{declared:?} {skew:?}");
        }
    }

    #[test]
    fn slices_are_compared_with_what_a_replay_gave() {
        let runs = [declared(1, &[10, 11]), declared(2, &[20, 21])];
        let (map, large) = (slices(3), slices(5));
        let matcher = Matcher::new(&runs, &[state(), state()], [map.clone(), large.clone()], None);
        let wanted = |run, step| Wanted { run, step, map: map.digest() };
        let sighting = |told, step| seen(&map, told, step, 77);
        assert_eq!(matcher.needed(&[sighting(101, 1), sighting(101, 2)]), [wanted(0, 1)].into());
        // A computation that nobody declared is looked for in every run.
        assert_eq!(matcher.needed(&[sighting(103, 1)]), [wanted(0, 1), wanted(1, 1)].into());
        let by = Evidence::Replay;
        let judge = |told, step, computed: &[(usize, Computed)]| {
            let shards = computed.iter().map(|(run, computed)| (wanted(*run, step), computed.clone()));
            matcher.judge(&sighting(told, step), &shards.collect())
        };
        let (same, other) = (Computed::Digest(digest(77), by), Computed::Digest(digest(78), by));
        let run = digest(1);
        assert_eq!(judge(101, 1, &[(0, same.clone())]), Provenance::Matched { run, step: 1, by });
        let (shown, declared) = (digest(77), digest(78));
        let another = Provenance::OtherState { run, step: 1, shown, declared };
        assert_eq!(judge(101, 1, &[(0, other.clone())]), another);
        assert_eq!(judge(101, 2, &[]), Provenance::Uncovered { run, step: 2, covered: 1 });
        let told = digest(103);
        assert_eq!(judge(103, 1, &[(0, other.clone()), (1, other.clone())]), Provenance::Undeclared { told });
        let elsewhere = Provenance::OtherComputation { run: digest(2), step: 1, told };
        assert_eq!(judge(103, 1, &[(0, other.clone()), (1, same)]), elsewhere);
        let deviates = Computed::Deviates(1, "state".into());
        assert_eq!(judge(101, 1, &[(0, deviates)]).kind(), "deviates");
        let unreached = Computed::Unreached("no data".into());
        // A run that could not be replayed may be the one, so nothing is decided.
        assert_eq!(judge(103, 1, &[(0, other), (1, unreached)]).kind(), "unreached");
        let misfit = seen(&large, 101, 1, 77);
        assert!(matcher.needed(std::slice::from_ref(&misfit)).is_empty());
        assert_eq!(matcher.judge(&misfit, &Shards::new()).kind(), "unfit_map");
        let unknown = matcher.judge(&seen(&slices(2), 101, 1, 77), &Shards::new());
        assert_eq!((unknown.kind(), unknown.weight()), ("unknown_map", Weight::Undecided));
    }
}

//! The shards of declared runs that no record has: from checkpoints, or by a replay.

use std::collections::BTreeSet;
use std::time::Instant;

use tiebreak_audit::checks::Checked;
use tiebreak_audit::states::{Reached, Visitor, visit};
use tiebreak_engine::Engine;
use tiebreak_monitor::matching::matcher::{Computed, Matcher, Shards, Wanted};
use tiebreak_monitor::matching::provenance::Evidence;
use tiebreak_monitor::snapshot::shard_map::Slice;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states::State;

use crate::cli::view::progress::ProgressBar;

/// A declared run that was opened, with what its head covers.
pub struct Opened {
    pub run: Run,
    pub checked: Checked,
}

/// Computes all wanted shards. A run that cannot be replayed takes nothing from the others.
pub fn compute(
    matcher: &Matcher,
    runs: &[Opened],
    wanted: &BTreeSet<Wanted>,
    engine: &mut dyn Engine,
    end: Option<Instant>,
    bar: &ProgressBar,
) -> Shards {
    let mut shards = Shards::new();
    for (number, opened) in runs.iter().enumerate() {
        let of_run: Vec<Wanted> = wanted.iter().filter(|wanted| wanted.run == number).copied().collect();
        let steps: BTreeSet<u32> = of_run.iter().map(|wanted| wanted.step).collect();
        if steps.is_empty() {
            continue;
        }
        let steps: Vec<u32> = steps.into_iter().collect();
        let mut collect = Collect { matcher, opened, wanted: &of_run, shards: &mut shards, bar };
        if let Err(error) = visit(&opened.run, engine, &opened.checked, &steps, end, &mut collect) {
            for wanted in of_run {
                shards.entry(wanted).or_insert_with(|| Computed::Unreached(error.to_string()));
            }
        }
    }
    shards
}

/// The most steps that [`compute`] replays.
pub fn steps(runs: &[Opened], wanted: &BTreeSet<Wanted>) -> u64 {
    let of_run = |number| wanted.iter().filter(move |wanted| wanted.run == number).map(|wanted| wanted.step);
    let most = (0..runs.len()).filter_map(|number| of_run(number).max());
    most.map(u64::from).sum()
}

/// Takes the shards of one run from its states.
struct Collect<'a> {
    matcher: &'a Matcher<'a>,
    opened: &'a Opened,
    /// The wanted shards of this run.
    wanted: &'a [Wanted],
    shards: &'a mut Shards,
    bar: &'a ProgressBar,
}

impl Visitor for Collect<'_> {
    fn state(&mut self, step: u32, reached: Reached, state: Option<&State>) {
        let table = self.opened.run.program().state();
        let bytes = |slice: &Slice, state: &State| {
            let tensor = table.iter().position(|tensor| tensor.name == slice.tensor)?;
            let first = usize::try_from(slice.first).ok()?.checked_mul(4)?;
            let end = first.checked_add((slice.count as usize).checked_mul(4)?)?;
            Some(state.get(tensor)?.get(first..end)?.to_vec())
        };
        for wanted in self.wanted.iter().filter(|wanted| wanted.step == step) {
            let digest = self.matcher.map(&wanted.map).zip(state).and_then(|(map, state)| {
                let slice = |slice: &Slice| bytes(slice, state).ok_or(());
                map.shard_digest(slice).ok().flatten()
            });
            let computed = match (&reached, digest) {
                (Reached::Checkpoint, Some(digest)) => Computed::Digest(digest, Evidence::Checkpoint),
                (Reached::Replay, Some(digest)) => Computed::Digest(digest, Evidence::Replay),
                (Reached::Deviates(bad, what), _) => Computed::Deviates(*bad, what.clone()),
                (Reached::OutOfTime, _) => Computed::Unreached("--max-time was reached".into()),
                // Only maps that fit the state are wanted.
                (_, None) => Computed::Unreached("the state lacks a slice of the shard map".into()),
            };
            self.shards.insert(*wanted, computed);
        }
    }

    fn replayed(&mut self, step: u32) {
        self.bar.advance();
        self.bar.set_message(format!("step {step}"));
    }
}

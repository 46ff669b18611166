//! The checkpoint segments that several auditors replayed together, and those among them that were drawn at random.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::merge::{Range, union};
use super::plan::{Choice, ReplayPlan};
use super::plan_file::ascending;
use super::report::Outcome;
use super::report_file::Account;
use super::shard::missing;
use tiebreak_record::commit::Malformed;

/// The part of a report that a plan is in.
#[derive(Deserialize)]
struct Planned {
    plan: ReplayPlan,
}

/// The plan in the bytes of a report, whose signature [`super::report_file::decode`] checks.
///
/// # Errors
/// If there is no plan, or its segments are not apart, ascending and of the run's steps.
pub fn plan_of(bytes: &[u8], account: &Account) -> Result<ReplayPlan, Malformed> {
    let wrong = |why: String| Malformed::invalid("report", why);
    let Planned { plan } = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
    let mut next = 1;
    for &(first, last) in &plan.segments {
        if first < next || last < first || last > account.steps {
            return Err(wrong(format!("its plan has a segment {first}..{last}, out of order or of the run")));
        }
        next = last.saturating_add(1);
    }
    if ascending(&plan.omitted).is_err() || plan.omitted.last().is_some_and(|&(_, last)| last > account.steps)
    {
        return Err(wrong("its plan omits segments that are out of order or not of the run".into()));
    }
    if plan.segments.len() > plan.of || plan.of > account.steps as usize {
        return Err(wrong(format!("its plan has {} of {} segments", plan.segments.len(), plan.of)));
    }
    Ok(plan)
}

/// Segments of a run, by what auditors did with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Segments of the run.
    pub all: usize,
    /// Segments whose every step was replayed, as far as reports name them.
    pub replayed: usize,
    /// Segments of random samples, each replayed to its end. Every set of so many segments is equally likely.
    pub drawn: usize,
}

/// The coverage of several audits of one run; `None` if they saw different segments, since a checkpoint was not there for all.
///
/// A report counts for the drawn segments only if it matched and reached the end of its plan: a sample that ended early is not
/// one of equal chances. Shards of a sample count for them only if all are there, and their plan file omits none of it.
pub fn coverage(reports: &[(Account, ReplayPlan)]) -> Option<Coverage> {
    let all = reports.first()?.1.of;
    if reports.iter().any(|(_, plan)| plan.of != all) {
        return None;
    }
    let covered = union(reports.iter().flat_map(|(account, _)| account.replayed.iter().copied()).collect());
    let is_covered = |&&(first, last): &&Range| covered.iter().any(|&(from, to)| from <= first && last <= to);
    // A range may end within a segment, so that only the other plans say where segments end.
    let whole = reports.iter().filter(|(_, plan)| !matches!(plan.choice, Choice::Range(..)));
    let known: BTreeSet<Range> = whole.clone().flat_map(|(_, plan)| plan.segments.iter().copied()).collect();
    let finished = |&(account, plan): &(&Account, &ReplayPlan)| {
        let mine = union(account.replayed.clone());
        let done = |&(first, last): &Range| mine.iter().any(|&(from, to)| from <= first && last <= to);
        account.outcome == Outcome::Matches && plan.segments.iter().all(done)
    };
    let finished: Vec<&ReplayPlan> =
        whole.map(|(account, plan)| (account, plan)).filter(finished).map(|(_, plan)| plan).collect();
    let has_its_shards = |plan: &ReplayPlan| {
        let draw = |plan: &ReplayPlan| (plan.choice.clone(), plan.seed, plan.file);
        let same = finished.iter().filter(|other| draw(other) == draw(plan));
        let shards = same.filter_map(|other| other.shard);
        let all = plan.shard.is_none_or(|shard| missing(shard.of, shards).is_empty());
        all && plan.omitted.is_empty()
    };
    let drawn: BTreeSet<Range> = finished
        .iter()
        .filter(|plan| has_its_shards(plan))
        .flat_map(|plan| &plan.segments)
        .copied()
        .collect();
    let replayed = known.iter().filter(is_covered).count();
    let steps = |ranges: &[Range]| -> u64 {
        ranges.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum()
    };
    let known: Vec<Range> = known.into_iter().collect();
    // Segments that overlap are those of different checkpoints.
    (known.len() <= all && steps(&union(known.clone())) == steps(&known)).then_some(Coverage {
        all,
        replayed,
        drawn: drawn.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::shard::Shard;
    use super::*;
    use tiebreak_record::commit::digest::Digest;

    /// A report of a run of 40 steps in ten segments.
    fn report(choice: Choice, segments: &[Range], replayed: &[Range]) -> (Account, ReplayPlan) {
        let one = Digest([1; 32]);
        let account = Account {
            run: one,
            computation: one,
            job: one,
            data: one,
            steps: 40,
            head_size: 42,
            head_root: one,
            end_checked: true,
            native: false,
            outcome: Outcome::Matches,
            replayed: replayed.to_vec(),
            auditor: None,
        };
        let plan = ReplayPlan { choice, segments: segments.to_vec(), of: 10, ..ReplayPlan::default() };
        (account, plan)
    }

    #[test]
    fn segments_of_several_auditors_count_once() {
        let sample = || Choice::Sample { fraction: 0.2, seed: 7 };
        let counts = |reports: &[_]| coverage(reports).map(|found| (found.all, found.replayed, found.drawn));
        let one = report(sample(), &[(1, 4), (9, 12)], &[(1, 4), (9, 12)]);
        assert_eq!(counts(std::slice::from_ref(&one)), Some((10, 2, 2)));
        let two = report(sample(), &[(9, 12), (37, 40)], &[(9, 12), (37, 40)]);
        assert_eq!(counts(&[one.clone(), two.clone()]), Some((10, 3, 3)));
        // A sample that ended early is no sample; what it replayed is replayed all the same.
        let cut = report(sample(), &[(9, 12), (37, 40)], &[(9, 12), (37, 38)]);
        assert_eq!(counts(&[one.clone(), cut.clone()]), Some((10, 2, 2)));
        // A range is chosen, not drawn. It completes the other's segment.
        let range = report(Choice::Range(38, 40), &[(37, 40)], &[(37, 40)]);
        assert_eq!(counts(&[one.clone(), cut, range]), Some((10, 3, 2)));
        let all: Vec<Range> = (0..10).map(|i| (4 * i + 1, 4 * i + 4)).collect();
        assert_eq!(counts(&[report(Choice::All, &all, &all), two]), Some((10, 10, 10)));
        // A shard of a sample is no sample; all of them are.
        let shards = [(1, (1, 4)), (2, (9, 12))].map(|(number, segment)| {
            let (account, mut plan) = report(sample(), &[segment], &[segment]);
            plan.shard = Shard::new(number, 2);
            (account, plan)
        });
        assert_eq!(counts(&shards[..1]), Some((10, 1, 0)));
        assert_eq!(counts(&shards), Some((10, 2, 2)));
        // A plan file that omits a drawn segment leaves no sample. Shards of two plan files are no whole.
        let mut fewer = shards.clone();
        fewer[1].1.omitted = vec![(37, 40)];
        assert_eq!(counts(&fewer), Some((10, 2, 1)));
        fewer[0].1.omitted = vec![(37, 40)];
        assert_eq!(counts(&fewer), Some((10, 2, 0)));
        let mut apart = shards.clone();
        apart[0].1.file = Some(Digest([1; 32]));
        assert_eq!(counts(&apart), Some((10, 2, 0)));
        // Another auditor lacked a checkpoint.
        let (account, mut plan) = report(sample(), &[(1, 8)], &[(1, 8)]);
        assert_eq!(counts(&[one.clone(), (account.clone(), plan.clone())]), None);
        plan.of = 9;
        assert_eq!(counts(&[one, (account, plan)]), None);
        assert_eq!(counts(&[]), None);
    }
}

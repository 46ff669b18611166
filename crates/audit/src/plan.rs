//! Chooses the steps to replay: whole checkpoint segments, all of them, those of a range, or a random sample.
//!
//! A trainer who cheats in a hundred steps may put them all in one segment. So a sample promises a chance to meet bad steps for
//! any placement, not only for random ones.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::shard::Shard;
use tiebreak_contract::arith::philox;
use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::step::state_bytes;
use tiebreak_engine::liveness::Keeping;
use tiebreak_engine::recompute;
use tiebreak_job::Granularity;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::names;

/// An auditor's choice of segments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Every segment.
    #[default]
    All,
    /// Steps first..=last.
    Range(u32, u32),
    /// This share of the segments, rounded up to at least one; every set of that size is equally likely to be drawn from `seed`.
    Sample {
        /// The share of the segments, 0 to 1.
        fraction: f64,
        /// The seed of the draw.
        seed: u64,
    },
}

impl Choice {
    /// Checks a choice that somebody else made.
    ///
    /// # Errors
    /// If it is of no steps, or of a share that is none, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        match *self {
            Choice::Range(first, last) if first == 0 || last < first => {
                Err(format!("it draws the steps {first} to {last}, which are no steps of a run"))
            }
            Choice::Sample { fraction, .. } if !(0.0..=1.0).contains(&fraction) => {
                Err(format!("it draws a share of {fraction}, and a share is from 0 to 1"))
            }
            _ => Ok(()),
        }
    }
}

/// The segments to replay, with their costs. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayPlan {
    /// The auditor's choice.
    pub choice: Choice,
    /// Steps first..=last of each segment; the state before `first` is a checkpoint.
    pub segments: Vec<(u32, u32)>,
    /// The number of segments of the run.
    pub of: usize,
    /// The shard whose segments these are, if the audit is divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// The digest of the plan file that names the segments, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Digest>,
    /// Segments of the choice that the plan file gives to no shard.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<(u32, u32)>,
    /// Steps first..=last that the choice includes or may draw, but that no available state leads to.
    pub unreachable: Option<(u32, u32)>,
    /// The sampling seed, drawn after the head was fixed.
    pub seed: Option<u64>,
    /// The probability that at least one of 1, 10 and 100 bad steps is replayed. For a sample: a lower bound before the draw,
    /// wherever the trainer put the bad steps. For a range, which is no secret: for bad steps at random positions. Of a shard, that
    /// of all shards together.
    pub detection: [f64; 3],
    /// Bytes of checkpoints and rounding logs to read.
    pub bytes: u64,
    /// An estimate of the bytes of memory that a replay needs as long as no step differs.
    pub memory: u64,
    /// The first segments that need no replay, since the auditor's own report says that they match ([`super::resume`]). No file holds
    /// the number.
    #[serde(skip)]
    pub done: usize,
    /// The counts of these first segments in the logged profile, if the auditor still has them.
    #[serde(skip)]
    #[doc(hidden)] // the command's alone
    pub counted: Option<Tally>,
}

/// Plans a replay of the steps up to `last`, from the available checkpoints.
pub fn plan(run: &Run, checkpoints: &[u32], last: u32, choice: &Choice) -> ReplayPlan {
    let mut all = Vec::new();
    for (i, &start) in checkpoints.iter().enumerate() {
        let end = checkpoints.get(i + 1).copied().unwrap_or(last).min(last);
        if start < end {
            all.push((start + 1, end));
        }
    }
    let mut seed_used = None;
    let segments: Vec<(u32, u32)> = match choice {
        Choice::All => all.clone(),
        Choice::Range(first, end) => {
            // A segment is replayed from its checkpoint up to the end of the range.
            let touched = all.iter().filter(|(a, b)| b >= first && a <= end);
            touched.map(|&(a, b)| (a, b.min(*end))).collect()
        }
        Choice::Sample { fraction, seed } => {
            seed_used = Some(*seed);
            draw(all.len(), part(all.len(), *fraction), *seed).into_iter().map(|i| all[i]).collect()
        }
    };
    let detection = match choice {
        Choice::Sample { .. } => BAD.map(|bad| guaranteed(&all, segments.len(), last, bad)),
        _ => no_secret(&segments, last),
    };
    let (first, end) = if let Choice::Range(first, end) = choice { (*first, *end) } else { (1, last) };
    let before = end.min(checkpoints.first().copied().unwrap_or(last));
    ReplayPlan {
        choice: choice.clone(),
        bytes: bytes_read(run, &segments),
        memory: memory(run),
        of: all.len(),
        shard: None,
        file: None,
        omitted: Vec::new(),
        unreachable: (first <= before).then_some((first, before)),
        segments,
        seed: seed_used,
        detection,
        done: 0,
        counted: None,
    }
}

/// The most omitted segments that a line lists.
const OMITTED_SHOWN: usize = 16;

/// The numbers of bad steps of [`ReplayPlan::detection`].
const BAD: [u32; 3] = [1, 10, 100];

/// The probability that a replay of these segments meets bad steps at random positions among the first `last` ones.
fn no_secret(segments: &[(u32, u32)], last: u32) -> [f64; 3] {
    let steps: u64 = segments.iter().map(|(a, b)| u64::from(b - a + 1)).sum();
    let missed = 1.0 - steps as f64 / f64::from(last.max(1));
    BAD.map(|bad| 1.0 - missed.powi(bad as i32))
}

/// Bytes of checkpoints and rounding logs that a replay of these segments reads.
pub(crate) fn bytes_read(run: &Run, segments: &[(u32, u32)]) -> u64 {
    let log = |step| run.at(names::log(step)).length().unwrap_or(0);
    let replayed = segments.iter().flat_map(|&(first, last)| first..=last);
    let logs: u64 = if run.job().rounding.is_some() { replayed.map(log).sum() } else { 0 };
    state_bytes(&run.program().state()) * segments.len() as u64 + logs
}

/// Bytes that a replay of the run's steps needs as long as none differs: a step on the auditor's engine, which keeps the state before
/// it, and the step's batch twice. Operators whose outputs are committed add a trace.
pub fn memory(run: &Run) -> u64 {
    let keeping = Keeping { before: true, ..Keeping::default() };
    memory_with(run, recompute::step_bytes_with(run.program(), false, keeping))
}

/// [`memory`], where the tensors of a step take `step_bytes`.
#[doc(hidden)] // the command's alone
pub fn memory_with(run: &Run, step_bytes: u64) -> u64 {
    let seen = if run.job().rounding.is_some() { 3 * largest_operator(&run.program().micro) } else { 0 };
    let parts = [step_bytes, run.batch_memory().saturating_mul(2), seen, trace_memory(run)];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Bytes that a replay of the run's steps needs, whether or not one differs.
#[doc(hidden)] // the command's alone
pub fn memory_at_most(run: &Run) -> u64 {
    memory(run).max(memory_to_confirm(run, false))
}

/// Bytes that the scalar reference needs to confirm that a step differs: the state before the step beside a step of its own, and the
/// step's batch twice. Operators that are examined add two traces, and the largest operator's tensors three times.
#[doc(hidden)] // the command's alone
pub fn memory_to_confirm(run: &Run, recomputes: bool) -> u64 {
    let program = run.program();
    let examined = run.job().commit.granularity == Granularity::Operator || run.job().rounding.is_some();
    let parts = [
        state_bytes(&program.state()),
        recompute::step_bytes_with(program, recomputes, Keeping::default()),
        run.batch_memory().saturating_mul(2),
        if examined { 3 * largest_operator(&program.micro) } else { 0 },
        trace_memory(run).saturating_mul(2),
    ];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Bytes of a step's trace, if the job commits to operators.
fn trace_memory(run: &Run) -> u64 {
    if run.job().commit.granularity != Granularity::Operator {
        return 0;
    }
    let program = run.program();
    let tiles = |graph: &Graph| -> u64 {
        graph.nodes.iter().map(|node| 128 + graph.tensor(node.output).bytes() as u64 / 128).sum()
    };
    let graphs = tiles(&program.micro) + tiles(&program.accumulate);
    graphs.saturating_mul(u64::from(program.micro_batches)).saturating_add(tiles(&program.update))
}

/// The most bytes of tensors that one node reads and writes.
fn largest_operator(graph: &Graph) -> u64 {
    let touched = |node: &Node| {
        let inputs = node.primitive.inputs().into_iter();
        inputs.chain([node.output]).map(|id| graph.tensor(id).bytes() as u64).sum()
    };
    graph.nodes.iter().map(touched).max().unwrap_or(0)
}

/// The number of segments of a sample.
fn part(segments: usize, fraction: f64) -> usize {
    ((fraction * segments as f64).ceil() as usize).clamp(segments.min(1), segments)
}

/// `chosen` different numbers below `of`, ascending (Floyd's algorithm): the draw of `docs/AUDIT.md`.
#[doc(hidden)] // for the layers above
pub fn draw(of: usize, chosen: usize, seed: u64) -> BTreeSet<usize> {
    let key = [seed as u32, (seed >> 32) as u32];
    let mut words = (0..).map(|i| philox::philox4x32_10(key, [i, 0, 0, 0])[0]);
    let mut below = |bound: u32| {
        // Words past the last whole multiple of the bound would favour small numbers.
        let fair = words.by_ref().find(|&word| word < u32::MAX - u32::MAX % bound);
        fair.map_or(0, |word| word % bound) as usize
    };
    let mut taken = BTreeSet::new();
    for last in of - chosen..of {
        let number = below(last as u32 + 1);
        if !taken.insert(number) {
            taken.insert(last);
        }
    }
    taken
}

/// The chance that `chosen` of the segments include one with a bad step, if the trainer put `bad` of the run's `steps` together
/// in the fewest segments that can hold them.
fn guaranteed(all: &[(u32, u32)], chosen: usize, steps: u32, bad: u32) -> f64 {
    let mut lengths: Vec<u32> = all.iter().map(|(a, b)| b - a + 1).collect();
    lengths.sort_unstable();
    // Steps that are in no segment cannot be replayed at all.
    let unreachable = steps.saturating_sub(lengths.iter().sum());
    let mut left = bad.min(steps).saturating_sub(unreachable);
    let mut missed = 1.0;
    let mut remaining = all.len();
    while left > 0
        && let Some(longest) = lengths.pop()
    {
        left = left.saturating_sub(longest);
        // The case that the next bad segment is not among the chosen ones either.
        missed *= (remaining - chosen.min(remaining)) as f64 / remaining as f64;
        remaining -= 1;
    }
    1.0 - missed
}

impl ReplayPlan {
    /// The part of the plan that is one shard's. The other shards have the other segments.
    pub fn sharded(mut self, run: &Run, shard: Shard) -> ReplayPlan {
        let segments = self.segments.iter().enumerate();
        self.segments =
            segments.filter(|&(index, _)| shard.has(index)).map(|(_, segment)| *segment).collect();
        self.bytes = bytes_read(run, &self.segments);
        self.shard = Some(shard);
        self
    }

    /// Notes that no chance decides the segments, since somebody left others out.
    pub(crate) fn no_secret_any_more(&mut self, last: u32) {
        self.detection = no_secret(&self.segments, last);
    }

    /// The number of steps to replay.
    pub fn steps(&self) -> u64 {
        self.segments.iter().map(|(a, b)| u64::from(b - a + 1)).sum()
    }

    /// The number of steps that need no replay.
    pub(crate) fn steps_done(&self) -> u64 {
        self.segments.iter().take(self.done).map(|(a, b)| u64::from(b - a + 1)).sum()
    }

    /// True if two plans replay the same steps, by the same choice and plan file.
    #[doc(hidden)] // the command's alone
    pub fn is_same(&self, other: &ReplayPlan) -> bool {
        (&self.choice, &self.segments, self.shard) == (&other.choice, &other.segments, other.shard)
            && (self.file, &self.omitted) == (other.file, &other.omitted)
    }

    /// The steps that are not replayed, in words.
    pub(crate) fn left_out(&self, steps: u32) -> Option<String> {
        let left = u64::from(steps).saturating_sub(self.steps());
        (left > 0).then(|| format!("{left} of {steps} steps were not in the plan"))
    }

    /// The segments that the plan file gives to no shard, and the origin of a sample's seed, in words.
    pub(crate) fn of_file(&self) -> Vec<String> {
        if self.file.is_none() {
            return Vec::new();
        }
        let listed: Vec<String> =
            self.omitted.iter().take(OMITTED_SHOWN).map(|(a, b)| format!("{a}..{b}")).collect();
        let more = match self.omitted.len().saturating_sub(OMITTED_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more segments"),
        };
        let omitted = (!listed.is_empty())
            .then(|| format!("steps {}{more}, which the plan file gives to no shard", listed.join(", ")));
        let seed = self.seed.map(|seed| {
            format!("whether chance drew the sample: the plan file has its seed, {seed}, and nobody says who drew it")
        });
        omitted.into_iter().chain(seed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_reproducible_and_fair() {
        let mut counts = [0u32; 20];
        for seed in 0..4000 {
            let drawn = draw(20, part(20, 0.15), seed);
            assert_eq!(drawn, draw(20, 3, seed));
            assert_eq!(drawn.len(), 3);
            drawn.iter().for_each(|&i| counts[i] += 1);
        }
        // Each set is expected 600 times, with a standard deviation of 22.6.
        assert!(counts.iter().all(|c| (500..700).contains(c)), "{counts:?}");
        assert_eq!(draw(5, part(5, 1.0), 1).len(), 5);
        // The example of docs/AUDIT.md, which a Python script computed from the page.
        assert_eq!(draw(4, part(4, 0.5), 5), [0, 1].into());
        assert_eq!(draw(4, part(4, 0.5), 10_277_190_049_027_748_458), [1, 2].into());
        assert_eq!((part(7, 0.0), part(0, 0.5), draw(0, 0, 1).len()), (1, 0, 0));
    }

    #[test]
    fn detection_is_the_hypergeometric_chance() {
        let all: Vec<(u32, u32)> = (0..20).map(|i| (10 * i + 1, 10 * i + 10)).collect();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        // One segment holds ten bad steps as well as one.
        near(guaranteed(&all, 5, 200, 1), 0.25);
        near(guaranteed(&all, 5, 200, 10), 0.25);
        // Ten segments hold a hundred: 1 - C(10, 5) / C(20, 5).
        near(guaranteed(&all, 5, 200, 100), 1.0 - 252.0 / 15504.0);
        near(guaranteed(&all, 20, 200, 1), 1.0);
        // All bad steps may lie where no checkpoint leads.
        near(guaranteed(&all[2..], 18, 200, 10), 0.0);
        near(guaranteed(&all[2..], 18, 200, 100), 1.0);
    }
}

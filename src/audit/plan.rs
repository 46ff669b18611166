//! Which part of a run an audit replays, what that costs, and what it would find.
//!
//! The unit is a checkpoint segment: the steps from one retained checkpoint to the next one. A sample is drawn after the
//! run's head is fixed, from a seed of the operating system, so that no trainer can know it beforehand.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use crate::arith::philox;
use crate::engine::reference::last_uses;
use crate::program::graph::Graph;
use crate::program::step::Program;

/// Separates the draws of a sample from every other use of the generator.
const DOMAIN: u32 = 0xffff_fffd;

/// The steps after checkpoint `from` up to and including step `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    pub from: u32,
    pub to: u32,
}

impl Segment {
    pub fn steps(&self) -> RangeInclusive<u32> {
        self.from + 1..=self.to
    }

    pub fn len(&self) -> u32 {
        self.to - self.from
    }

    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }
}

/// What to replay.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    All,
    /// Steps `first..=last`.
    Steps {
        first: u32,
        last: u32,
    },
    /// This part of the segments, rounded up to at least one.
    Sample {
        fraction: f64,
        seed: u64,
    },
}

/// Why a selection makes no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the run has no step {0}; its steps are 1 to {1}")]
    NoStep(u32, u32),
    #[error("the first step of a range is at most its last")]
    EmptyRange,
    #[error("a sample is a part of the run above 0 and at most 1")]
    Fraction,
    #[error("the run keeps no checkpoint at or before step {0}, so nothing can be replayed from there")]
    NoCheckpoint(u32),
}

/// The chance that a replay meets at least one bad step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    pub bad_steps: u32,
    /// If the bad steps lie together in as few segments as can hold them.
    pub together: f64,
    /// If they lie in as many segments as possible.
    pub apart: f64,
}

/// The segments to replay, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub segments: Vec<Segment>,
    /// For 1, 10 and 100 bad steps; only of samples.
    pub detection: Vec<Detection>,
    /// Steps of the whole run.
    pub run_steps: u32,
}

impl Plan {
    /// `checkpoints`: the steps of the retained checkpoints, ascending and without repetitions; step 0 is the initial
    /// state. `steps`: the run's last step.
    pub fn new(checkpoints: &[u32], steps: u32, selection: &Selection) -> Result<Plan, PlanError> {
        let all = segments(checkpoints, steps);
        let plan = |segments, detection| Plan { segments, detection, run_steps: steps };
        match *selection {
            Selection::All => {
                if let Some(missing) =
                    all.first().map_or((steps > 0).then_some(1), |s| (s.from > 0).then_some(1))
                {
                    return Err(PlanError::NoCheckpoint(missing));
                }
                Ok(plan(all, Vec::new()))
            }
            Selection::Steps { first, last } => {
                if first > last {
                    return Err(PlanError::EmptyRange);
                }
                if let Some(&missing) = [first, last].iter().find(|s| !(1..=steps).contains(*s)) {
                    return Err(PlanError::NoStep(missing, steps));
                }
                if !all.iter().any(|s| s.from < first) {
                    return Err(PlanError::NoCheckpoint(first - 1));
                }
                let touched = all.into_iter().filter(|s| s.to >= first && s.from < last);
                let cut = touched.map(|s| Segment { from: s.from, to: s.to.min(last) });
                Ok(plan(cut.collect(), Vec::new()))
            }
            Selection::Sample { fraction, seed } => {
                // NaN fails both comparisons.
                if !(fraction > 0.0 && fraction <= 1.0) {
                    return Err(PlanError::Fraction);
                }
                if all.is_empty() {
                    return Err(PlanError::NoCheckpoint(0));
                }
                let chosen = ((fraction * all.len() as f64).ceil() as usize).clamp(1, all.len());
                let detection = [1, 10, 100].map(|bad| detection(&all, steps, chosen, bad)).into();
                Ok(plan(sample(&all, chosen, seed), detection))
            }
        }
    }

    /// Steps that will be replayed.
    pub fn steps(&self) -> u32 {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// The run cut at its retained checkpoints.
fn segments(checkpoints: &[u32], steps: u32) -> Vec<Segment> {
    let ends = checkpoints.iter().skip(1).copied().chain([steps]);
    let cut = checkpoints.iter().zip(ends).map(|(&from, to)| Segment { from, to: to.min(steps) });
    cut.filter(|s| s.from < s.to).collect()
}

/// `chosen` different segments, each set of them equally likely, in order (Floyd's algorithm).
fn sample(all: &[Segment], chosen: usize, seed: u64) -> Vec<Segment> {
    let key = [seed as u32, (seed >> 32) as u32];
    let mut draws = 0;
    let mut below = |bound: u32| loop {
        let word = philox::philox4x32_10(key, [draws, 0, 0, DOMAIN])[0];
        draws += 1;
        // Words past the last whole multiple of the bound would favour small results.
        if word < u32::MAX - u32::MAX % bound {
            break word % bound;
        }
    };
    let mut taken = HashSet::new();
    for last in all.len() - chosen..all.len() {
        let draw = below(last as u32 + 1) as usize;
        if !taken.insert(draw) {
            taken.insert(last);
        }
    }
    let mut indices: Vec<usize> = taken.into_iter().collect();
    indices.sort_unstable();
    indices.into_iter().map(|i| all[i]).collect()
}

fn detection(all: &[Segment], steps: u32, chosen: usize, bad_steps: u32) -> Detection {
    let bad = bad_steps.min(steps);
    let mut lengths: Vec<u32> = all.iter().map(Segment::len).collect();
    // Steps before the first retained checkpoint can hold bad steps that no replay meets.
    let unreachable = steps - lengths.iter().sum::<u32>();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = bad.saturating_sub(unreachable);
    let mut together = 0;
    for length in lengths {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(length);
        together += 1;
    }
    Detection {
        bad_steps,
        together: hit(all.len(), chosen, together),
        apart: hit(all.len(), chosen, (bad as usize).min(all.len())),
    }
}

/// The chance that `chosen` of `all` segments include one of `bad`: 1 - C(all - bad, chosen) / C(all, chosen).
fn hit(all: usize, chosen: usize, bad: usize) -> f64 {
    let missed: f64 =
        (0..bad).map(|i| ((all - i) as f64 - chosen as f64).max(0.0) / (all - i) as f64).product();
    1.0 - missed
}

/// Bytes that a step of the program needs on an engine that frees a tensor after its last use: the state before and
/// after, the waiting gradients, and the largest sum of live tensors in any of the three graphs.
pub fn memory(program: &Program) -> u64 {
    let shape_bytes = |shape: &[u32]| 4 * shape.iter().map(|&d| u64::from(d)).product::<u64>();
    let state: u64 = program.state().iter().map(|t| shape_bytes(&t.shape)).sum();
    let gradients: u64 = program.parameters.iter().map(|p| shape_bytes(&p.shape)).sum();
    let waiting = u64::from(u32::BITS - program.spec.micro_batches.leading_zeros()) + 1;
    let graphs = [&program.micro, &program.accumulate, &program.update];
    2 * state + waiting * gradients + graphs.map(live).into_iter().max().unwrap_or(0)
}

/// The largest sum of bytes of a graph's live tensors.
fn live(graph: &Graph) -> u64 {
    let bytes = |tensor| graph.tensor(tensor).bytes() as u64;
    let mut now: u64 = graph.inputs.iter().map(|p| bytes(p.tensor)).sum();
    let mut peak = now;
    for (node, freed) in graph.nodes.iter().zip(last_uses(graph)) {
        now += bytes(node.output);
        peak = peak.max(now);
        now -= freed.into_iter().map(bytes).sum::<u64>();
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_at_the_checkpoint_before_them() {
        let plan = |selection| Plan::new(&[0, 10, 20, 30], 33, &selection).map(|p| p.segments);
        let seg = |from, to| Segment { from, to };
        assert_eq!(plan(Selection::All).unwrap(), [seg(0, 10), seg(10, 20), seg(20, 30), seg(30, 33)]);
        assert_eq!(plan(Selection::Steps { first: 11, last: 12 }).unwrap(), [seg(10, 12)]);
        assert_eq!(plan(Selection::Steps { first: 10, last: 31 }).unwrap().len(), 4);
        assert_eq!(plan(Selection::Steps { first: 0, last: 3 }), Err(PlanError::NoStep(0, 33)));
        assert_eq!(plan(Selection::Steps { first: 3, last: 34 }), Err(PlanError::NoStep(34, 33)));
        assert_eq!(plan(Selection::Steps { first: 4, last: 3 }), Err(PlanError::EmptyRange));
        assert_eq!(plan(Selection::Sample { fraction: f64::NAN, seed: 0 }), Err(PlanError::Fraction));
    }

    #[test]
    fn dropped_checkpoints_lengthen_segments_or_hide_the_beginning() {
        assert_eq!(Plan::new(&[0, 30], 33, &Selection::All).unwrap().steps(), 33);
        assert_eq!(Plan::new(&[20, 30], 33, &Selection::All), Err(PlanError::NoCheckpoint(1)));
        let early = Plan::new(&[20, 30], 33, &Selection::Steps { first: 20, last: 22 });
        assert_eq!(early, Err(PlanError::NoCheckpoint(19)));
        let sample = Plan::new(&[20, 30], 33, &Selection::Sample { fraction: 1.0, seed: 1 }).unwrap();
        // All bad steps may lie before checkpoint 20.
        assert_eq!(sample.detection[1], Detection { bad_steps: 10, together: 0.0, apart: 1.0 });
    }

    #[test]
    fn samples_are_reproducible_and_fair() {
        let checkpoints: Vec<u32> = (0..20).map(|i| 10 * i).collect();
        let mut counts = [0u32; 20];
        for seed in 0..4000 {
            let selection = Selection::Sample { fraction: 0.15, seed };
            let plan = Plan::new(&checkpoints, 200, &selection).unwrap();
            assert_eq!(plan, Plan::new(&checkpoints, 200, &selection).unwrap());
            assert_eq!(plan.segments.len(), 3);
            plan.segments.iter().for_each(|s| counts[s.from as usize / 10] += 1);
        }
        // Each segment is expected 600 times, with a standard deviation of 22.6.
        assert!(counts.iter().all(|c| (500..700).contains(c)), "{counts:?}");
    }

    #[test]
    fn detection_is_the_hypergeometric_chance() {
        let checkpoints: Vec<u32> = (0..20).map(|i| 10 * i).collect();
        let selection = Selection::Sample { fraction: 0.25, seed: 3 };
        let plan = Plan::new(&checkpoints, 200, &selection).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(plan.detection[0].together, 0.25) && near(plan.detection[0].apart, 0.25));
        assert!(near(plan.detection[1].together, 0.25));
        // C(10, 5) / C(20, 5) = 252 / 15504.
        assert!(near(plan.detection[1].apart, 1.0 - 252.0 / 15504.0));
        assert!(near(plan.detection[2].apart, 1.0));
    }
}

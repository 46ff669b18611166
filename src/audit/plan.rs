//! What to replay: whole checkpoint segments, all of them, those of a range, or a random sample.

use serde::{Deserialize, Serialize};

use crate::arith::philox;
use crate::engine::plan::peak_bytes;
use crate::run::checkpoint::state_bytes;
use crate::run::dir::Run;

/// How an auditor chooses.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    All,
    /// Steps first..=last.
    Range(u32, u32),
    /// Each segment with this probability, drawn from `seed`.
    Sample {
        fraction: f64,
        seed: u64,
    },
}

/// The segments to replay and what that costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Steps first..=last of each segment; the state before `first` is a checkpoint.
    pub segments: Vec<(u32, u32)>,
    /// All segments of the run.
    pub of: usize,
    /// The sampling seed, drawn after the head was fixed.
    pub seed: Option<u64>,
    /// Probability that at least one of 1, 10 and 100 bad steps, at random places, is replayed.
    pub detection: [f64; 3],
    /// Bytes of checkpoints to read.
    pub bytes: u64,
    /// Bytes of memory that a replay needs, about.
    pub memory: u64,
}

/// Plans a replay of the steps up to `last`, from the checkpoints that are there.
pub fn plan(run: &Run, checkpoints: &[u32], last: u32, choice: &Choice) -> Plan {
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
            let threshold = (fraction.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
            let mut chosen: Vec<(u32, u32)> = Vec::new();
            for (number, segment) in (0..).zip(&all) {
                let word = philox::philox4x32_10([*seed as u32, (*seed >> 32) as u32], [number, 0, 0, 0])[0];
                if u64::from(word) < threshold {
                    chosen.push(*segment);
                }
            }
            // A sample is never empty.
            if chosen.is_empty() && !all.is_empty() {
                let words = philox::philox4x32_10([*seed as u32, (*seed >> 32) as u32], [0, 1, 0, 0]);
                chosen.push(all[words[0] as usize % all.len()]);
            }
            chosen
        }
    };
    let steps: u64 = segments.iter().map(|(a, b)| u64::from(b - a + 1)).sum();
    let missed = 1.0 - steps as f64 / f64::from(last.max(1));
    let detection = [1, 10, 100].map(|bad| 1.0 - missed.powi(bad));
    let state = state_bytes(&run.program.state());
    Plan {
        bytes: state * segments.len() as u64,
        memory: 3 * state + peak_bytes(&run.program.micro),
        of: all.len(),
        segments,
        seed: seed_used,
        detection,
    }
}

impl Plan {
    /// Steps to replay.
    pub fn steps(&self) -> u64 {
        self.segments.iter().map(|(a, b)| u64::from(b - a + 1)).sum()
    }

    /// What is not replayed, in words.
    pub fn left_out(&self, steps: u32) -> Option<String> {
        let left = u64::from(steps).saturating_sub(self.steps());
        (left > 0).then(|| format!("{left} of {steps} steps were not in the plan"))
    }
}

//! The facts about declared runs that rules are about, and the sum of FLOP over runs that begin from each other.

use std::collections::BTreeMap;

use tiebreak_record::commit::digest::Digest;

/// The origin of a run's initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The seed.
    Seed,
    /// The final state of another run.
    Run(Digest),
    /// Weights from files. Nobody declared how these were trained.
    Weights,
}

/// A number at both ends of its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub most: f64,
}

/// An evaluation that a report is of.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The report's file.
    pub file: String,
    /// The program digest, and the roots over the model's parameters and buffers.
    pub of: (Digest, [Digest; 2]),
    /// The root of the data's manifest.
    pub data: Digest,
    /// The index of the first sample in the data.
    pub first_sample: u64,
    /// The number of samples.
    pub samples: u64,
    /// The mean loss; `None` if it is not finite.
    pub loss: Option<f64>,
    /// The share of labels that the model finds most likely.
    pub accuracy: f64,
}

/// The facts about a run, from its job, program and records.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The run id.
    pub run: Digest,
    /// The origin of its initial state.
    pub begin: Begin,
    /// FLOP of a step.
    pub step_flop: u128,
    /// Steps that the head covers.
    pub done: u32,
    /// Steps of the job.
    pub steps: u32,
    /// Samples of a step.
    pub samples: u32,
    /// The learning rates of the records; `None` if there is no step yet.
    pub learning_rate: Option<Span>,
    /// The model kind and the optimizer; `None` if the job names a program file in their place.
    pub kinds: Option<(String, String)>,
    /// The program digest, and the roots of parameters and buffers in the final record; `None` without a final record.
    pub model: Option<(Digest, [Digest; 2])>,
}

impl Facts {
    /// True if the head covers the final record.
    pub fn is_complete(&self) -> bool {
        self.model.is_some()
    }

    /// FLOP of the steps that the head covers.
    pub fn done_flop(&self) -> u128 {
        u128::from(self.done).saturating_mul(self.step_flop)
    }
}

/// FLOP of a run and of all that it began from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    /// FLOP of the steps that heads cover.
    pub flop: u128,
    /// The runs that were summed, from the run to the first ancestor.
    pub runs: Vec<Digest>,
    /// The reason why the sum may be too small.
    pub unknown: Option<Unknown>,
}

/// FLOP that nobody can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// A parent is not among the given runs.
    #[error("the parent {0} is not among the given runs")]
    Parent(Digest),
    /// The first run begins from weights.
    #[error("run {} begins from files of weights, and nobody declared how these were trained", .0.short())]
    Weights(Digest),
    /// Runs begin from each other in a circle.
    #[error("run {} begins from itself", .0.short())]
    Circle(Digest),
    /// No model kind vouches for a program: it may multiply matrices without products.
    #[error("the program of run {} is from a file, and its products are all that is counted", .0.short())]
    Program(Digest),
}

/// Sums the FLOP of a run and of all runs that it began from.
pub fn total(facts: &Facts, all: &BTreeMap<Digest, Facts>) -> Total {
    let mut total = Total { flop: 0, runs: Vec::new(), unknown: None };
    let (mut next, mut free) = (facts, None);
    loop {
        if total.runs.contains(&next.run) {
            total.unknown = Some(Unknown::Circle(next.run));
            return total;
        }
        total.flop = total.flop.saturating_add(next.done_flop());
        total.runs.push(next.run);
        free = free.or(next.kinds.is_none().then_some(Unknown::Program(next.run)));
        match next.begin {
            Begin::Seed => {
                total.unknown = free;
                return total;
            }
            Begin::Weights => {
                total.unknown = Some(Unknown::Weights(next.run));
                return total;
            }
            Begin::Run(parent) => match all.get(&parent) {
                Some(parent) => next = parent,
                None => {
                    total.unknown = Some(Unknown::Parent(parent));
                    return total;
                }
            },
        }
    }
}

//! What a rank takes of a job that several ranks train, before anybody starts them.

use serde_json::{Value, json};

use crate::cli::view::report::{Failure, bytes_text};
use tiebreak_contract::program::step::Program;
use tiebreak_engine::liveness::Keeping;
use tiebreak_engine::recompute::step_bytes_sharing;
use tiebreak_engine::update_share::UpdateShare;
use tiebreak_train::ranks::plan::ShardPlan;
use tiebreak_train::ranks::slots::SlotPlan;

/// The ranks that a check is about.
#[derive(clap::Args, Clone, Copy)]
pub struct RanksArgs {
    /// Say what each of so many ranks takes: memory on the CPU, and bytes that it sends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=4096))]
    ranks: Option<u32>,
    /// Ranks divide the optimizer's state.
    #[arg(long, requires = "ranks")]
    shard_optimizer: bool,
}

/// Bytes of the optimizer's state.
struct Slots {
    /// The most that a rank holds.
    most: u64,
    all: u64,
    /// New parameters that a rank sends in a step, at most.
    sent: u64,
}

/// The bytes that a rank takes, at most.
pub struct OfRanks {
    ranks: u32,
    /// Tensors of a step that are in memory at once.
    step: u64,
    /// Gradients that a rank sends in a step.
    gradients: u64,
    slots: Option<Slots>,
}

impl RanksArgs {
    /// What a rank takes, if ranks are asked about.
    ///
    /// # Errors
    /// If the job's steps or its optimizer's state cannot be divided so.
    pub fn of(self, program: &Program) -> Result<Option<OfRanks>, Failure> {
        let Some(ranks) = self.ranks else { return Ok(None) };
        let plan = ShardPlan::new(program, ranks)?;
        let gradients = (0..ranks).map(|rank| plan.bytes_sent(rank)).max().unwrap_or(0);
        let keeping = Keeping { outside: false, before: false, holds: false };
        let bytes = |share: &UpdateShare| step_bytes_sharing(program, share, false, keeping);
        if !self.shard_optimizer {
            let step = bytes(&UpdateShare::whole(program));
            return Ok(Some(OfRanks { ranks, step, gradients, slots: None }));
        }
        let slots = SlotPlan::new(program, ranks)?;
        let step = slots.heaviest().map(|rank| bytes(&slots.share(program, rank).update));
        let (most, all) = slots.most_of_all();
        let sent = (0..ranks).map(|rank| slots.bytes_sent(rank)).max().unwrap_or(0);
        let step = step.into_iter().max().unwrap_or(0);
        Ok(Some(OfRanks { ranks, step, gradients, slots: Some(Slots { most, all, sent }) }))
    }
}

impl OfRanks {
    /// The figures in words, as a line of their own.
    pub fn text(&self) -> String {
        let [step, gradients] = [self.step, self.gradients].map(bytes_text);
        let line = format!(
            "\na rank of {} takes {step} on the CPU for the tensors of a step, and sends up to {gradients} of gradients a step",
            self.ranks
        );
        let Some(Slots { most, all, sent }) = &self.slots else { return line };
        let [most, all, sent] = [most, all, sent].map(|bytes| bytes_text(*bytes));
        format!(
            "{line}; it holds up to {most} of the optimizer's {all}, and sends up to {sent} of parameters"
        )
    }

    /// An object of JSON with the figures.
    pub fn in_json(&self, mut object: Value) -> Value {
        object["rank"] = json!({
            "ranks": self.ranks,
            "step_bytes": self.step,
            "gradient_bytes_sent": self.gradients,
            "slot_bytes": self.slots.as_ref().map(|slots| slots.most),
            "parameter_bytes_sent": self.slots.as_ref().map(|slots| slots.sent),
        });
        object
    }
}

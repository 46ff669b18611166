//! Decides in which pass each step over the rows is computed, and where its values are stored.

use super::steps::{Attention, Operand, Operation, Step};

/// The passes of steps, and the storage of their values.
pub(super) struct Plan {
    /// The pass that computes each step. For a value that a row has once, the pass before which it is computed; for a maximum or
    /// a sum, the pass that it ends.
    pub pass: Vec<usize>,
    /// The stretches of steps whose values later passes read. The first product begins in the first stretch.
    pub homes: Vec<Option<usize>>,
    pub stretches: usize,
    /// True if a step's values beyond the diagonal are one number.
    pub beyond: Vec<bool>,
}

impl Attention {
    pub(super) fn plan(&self) -> Plan {
        let mut pass: Vec<usize> = Vec::new();
        for step in &self.steps {
            let ready = |operand: &Operand| match *operand {
                Operand::Step(of) => pass[of] + usize::from(self.steps[of].operation.reduces()),
                _ => 0,
            };
            pass.push(step.operands.iter().map(ready).max().unwrap_or(0));
        }
        let passes = pass.iter().max().map_or(0, |last| last + 1);
        let last_of = |wanted: Operand| {
            let takes = |(i, step): (usize, &Step)| step.operands.contains(&wanted).then_some(pass[i]);
            self.steps.iter().enumerate().filter_map(takes).max().unwrap_or(0)
        };
        // The last pass that reads the values of each stretch; the first product is in the first of them. A pass that reads
        // values for the last time may store its own values in their place: a lane reads its group before it stores its results
        // for that group.
        let mut until = vec![last_of(Operand::Product)];
        let mut homes = vec![None; self.steps.len()];
        for now in 0..passes {
            for (i, step) in self.steps.iter().enumerate() {
                let last = if i == self.result { passes } else { last_of(Operand::Step(i)) };
                if pass[i] != now || !step.operation.has_places() || last <= now {
                    continue;
                }
                let home = until.iter().position(|until| *until <= now).unwrap_or_else(|| {
                    until.push(0);
                    until.len() - 1
                });
                until[home] = last;
                homes[i] = Some(home);
            }
        }
        let mut beyond: Vec<bool> = Vec::new();
        for step in &self.steps {
            let is_one = |operand: &Operand| match *operand {
                Operand::Product | Operand::OfRow { .. } | Operand::One { .. } => true,
                Operand::Step(of) => beyond[of] || !self.steps[of].operation.has_places(),
                Operand::Element { .. } | Operand::OfPlace { .. } => false,
            };
            let free = matches!(step.operation, Operation::Map { each_place: true, by_place: false, .. });
            let one = self.causal && free && step.operands.iter().all(is_one);
            beyond.push(one);
        }
        Plan { pass, homes, stretches: until.len(), beyond }
    }
}

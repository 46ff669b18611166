//! The provenance of a snapshot, as a value and as a sentence.

use serde::Serialize;

use tiebreak_record::commit::digest::Digest;

/// The thing that shows which digest a shard has after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The step's record, which nobody replayed.
    #[error("by its record")]
    Record,
    /// A checkpoint, which has the digest of the step's record.
    #[error("by a checkpoint of its record's state")]
    Checkpoint,
    /// A replay, each step of which gave its record.
    #[error("by a replay that agrees with its records")]
    Replay,
}

/// The weight of a provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// The snapshot is of a declared run.
    Matched,
    /// Something is missing that would decide.
    Undecided,
    /// The snapshot contradicts the declared runs, or the log itself.
    Finding,
}

/// The provenance of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Provenance {
    /// The snapshot is the shard of a declared run's state after the logged step.
    #[error("step {step} of run {}, {by}", .run.short())]
    Matched {
        /// The run.
        run: Digest,
        /// The step.
        step: u32,
        /// The thing that shows the digest.
        by: Evidence,
    },
    /// The chip was told a declared computation, and had another state.
    #[error("the chip was told the computation of run {}, and had another state than that after step {step}: {shown}, where the run has {declared}", .run.short())]
    OtherState {
        /// The run.
        run: Digest,
        /// The logged step.
        step: u32,
        /// The digest in the chip's log.
        shown: Digest,
        /// The digest that the run's state has.
        declared: Digest,
    },
    /// The state is one of the run's, after another step than the logged one.
    #[error("the chip logged the state as that after step {step}; run {} has it after step {found}", .run.short())]
    OtherStep {
        /// The run.
        run: Digest,
        /// The logged step.
        step: u32,
        /// A step after which the run has this state.
        found: u32,
    },
    /// The state is of a declared run, but the chip was told another computation.
    #[error("the snapshot is of step {step} of run {}, but the chip was told computation {told}", .run.short())]
    OtherComputation {
        /// The run.
        run: Digest,
        /// The step after which the run has the state.
        step: u32,
        /// The computation that the chip was told.
        told: Digest,
    },
    /// The snapshot is of no run that was declared.
    #[error("the snapshot is of no declared run; the chip was told computation {told}")]
    Undeclared {
        /// The computation that the chip was told.
        told: Digest,
    },
    /// No state of the run has the slices of the shard map.
    #[error("no state of run {} has the slices of the shard map: {why}", .run.short())]
    UnfitMap {
        /// The run whose computation the chip was told.
        run: Digest,
        /// The slice and its defect, in words.
        why: String,
    },
    /// The run was declared after the chip saw it.
    #[error("run {} was declared {} s after the training attached itself to the chip", .run.short(), .cosigned - .attached)]
    Late {
        /// The run.
        run: Digest,
        /// The witness's time, in seconds since 1970.
        cosigned: u64,
        /// The chip's time of the attachment, in seconds since 1970.
        attached: u64,
    },
    /// The same attachment showed a later step before.
    #[error("step {step} of run {} after step {before}, within one attachment: a training does not go back", .run.short())]
    OutOfOrder {
        /// The run.
        run: Digest,
        /// The logged step.
        step: u32,
        /// The step of an earlier snapshot.
        before: u32,
    },
    /// The log has no attachment that the snapshot could be of.
    #[error(
        "no training with this shard map and code was attached: a chip's own software writes no such record"
    )]
    Unattached,
    /// Nobody gave the shard map that the chip names.
    #[error("the shard map {map} is not among the given ones; ask the operator for it")]
    UnknownMap {
        /// The map's digest.
        map: Digest,
    },
    /// The run's head does not cover the step yet.
    #[error("the head of run {} covers steps to {covered}, and the chip logged step {step}; ask for a later head", .run.short())]
    Uncovered {
        /// The run.
        run: Digest,
        /// The logged step.
        step: u32,
        /// The last step that the head covers.
        covered: u32,
    },
    /// The run itself deviates before the state is reached.
    #[error("a replay of run {} differs from its records at step {step} ({what}); `tiebreak audit` finds out whose fault that is", .run.short())]
    Deviates {
        /// The run.
        run: Digest,
        /// The first step whose replay differs from its record.
        step: u32,
        /// The fields of the record that differ, in words.
        what: String,
    },
    /// The state could not be reached.
    #[error("the state after step {step} of run {} could not be computed: {why}", .run.short())]
    Unreached {
        /// The run.
        run: Digest,
        /// The logged step.
        step: u32,
        /// The reason, in words.
        why: String,
    },
    /// No witness vouches for the time of the declaration.
    #[error("no given witness cosigned the head of size 1 of run {}, so nobody vouches for when it was declared", .run.short())]
    Unwitnessed {
        /// The run.
        run: Digest,
    },
}

impl Provenance {
    /// The kind's stable name.
    pub fn kind(&self) -> &'static str {
        match self {
            Provenance::Matched { .. } => "matched",
            Provenance::OtherState { .. } => "other_state",
            Provenance::OtherStep { .. } => "other_step",
            Provenance::OtherComputation { .. } => "other_computation",
            Provenance::Undeclared { .. } => "undeclared",
            Provenance::UnfitMap { .. } => "unfit_map",
            Provenance::Late { .. } => "late",
            Provenance::OutOfOrder { .. } => "out_of_order",
            Provenance::Unattached => "unattached",
            Provenance::UnknownMap { .. } => "unknown_map",
            Provenance::Uncovered { .. } => "uncovered",
            Provenance::Deviates { .. } => "deviates",
            Provenance::Unreached { .. } => "unreached",
            Provenance::Unwitnessed { .. } => "unwitnessed",
        }
    }

    /// The weight.
    pub fn weight(&self) -> Weight {
        use Provenance::*;
        match self {
            Matched { .. } => Weight::Matched,
            OtherState { .. } | OtherStep { .. } | OtherComputation { .. } | Undeclared { .. } => {
                Weight::Finding
            }
            UnfitMap { .. } | Late { .. } | OutOfOrder { .. } | Unattached => Weight::Finding,
            UnknownMap { .. } | Uncovered { .. } | Deviates { .. } => Weight::Undecided,
            Unreached { .. } | Unwitnessed { .. } => Weight::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_in_json_are_those_of_the_values() {
        let (digest, text) = (Digest([1; 32]), String::new);
        let (run, told, map, shown, declared) = (digest, digest, digest, digest, digest);
        let all = [
            Provenance::Matched { run, step: 1, by: Evidence::Record },
            Provenance::OtherState { run, step: 1, shown, declared },
            Provenance::OtherStep { run, step: 1, found: 2 },
            Provenance::OtherComputation { run, step: 1, told },
            Provenance::Undeclared { told },
            Provenance::UnfitMap { run, why: text() },
            Provenance::Late { run, cosigned: 9, attached: 8 },
            Provenance::OutOfOrder { run, step: 1, before: 2 },
            Provenance::Unattached,
            Provenance::UnknownMap { map },
            Provenance::Uncovered { run, step: 3, covered: 2 },
            Provenance::Deviates { run, step: 1, what: text() },
            Provenance::Unreached { run, step: 1, why: text() },
            Provenance::Unwitnessed { run },
        ];
        for one in &all {
            let json = serde_json::to_value(one).unwrap();
            assert_eq!(json["kind"], one.kind());
            assert!(!one.to_string().is_empty());
        }
        let findings = all.iter().filter(|one| one.weight() == Weight::Finding).count();
        assert_eq!((findings, all.len()), (8, 14));
    }
}

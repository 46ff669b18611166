//! A party's commitments: a computation and a head, and everything under them.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::leaf::Slices;
use super::origin::{Origin, origin};
use super::proven::{DataSlices, LogSlices, ProvenInput, ProvenTensor, wrong};
use super::tile::check_slices;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::StateTensor;
use tiebreak_job::computation::{Computation, ComputationError};
use tiebreak_job::data::Dataset;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::{self, FileManifest, FileSlices, files_root};
use tiebreak_job::{Granularity, JOB_MAX};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::proven::ProvenRecord;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::state::digest_from_proof;
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::commit::trace::{Places, batch_leaf_name, leaf_name};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::commit::{Malformed, merkle, table};
use tiebreak_record::rounding::Decision;
use tiebreak_record::rounding::log::{self, BlockPlace, SliceProof};

/// A computation, and a head over records of it.
pub(crate) struct Context {
    pub computation: Computation,
    pub run: Digest,
    pub origin: InitialOrigin,
    pub head: Head,
    /// The key that the run names, by which the head is signed.
    pub key: Option<PublicKey>,
    /// The indices of nodes in a step's trace. The nodes are listed on first use, since only jobs that commit operators bound
    /// their number.
    pub places: OnceLock<Places>,
}

/// The reason why a computation cannot be derived, as an error in a file that was sent.
pub(crate) fn underivable(what: &'static str) -> impl Fn(ComputationError) -> Malformed {
    move |error| match error {
        ComputationError::TooLong => Malformed::TooLarge { what: "job", limit: JOB_MAX },
        ComputationError::Contract(other) => other,
        other => Malformed::invalid(what, other.to_string()),
    }
}

impl Context {
    /// A record, after checking that the head covers it.
    pub fn proven(&self, proven: &ProvenRecord, head: &Head) -> Result<Record, Malformed> {
        let record = proven.under(head)?;
        if *record.computation() != self.computation.id {
            return Err(wrong("the record is of another computation"));
        }
        Ok(record)
    }

    /// True if the head covers a record of this computation.
    pub fn covers(&self, proven: &ProvenRecord) -> bool {
        self.proven(proven, &self.head).is_ok()
    }

    /// Checks that `root` over `size` leaves commits to a named tensor at `index`.
    pub fn committed(
        &self,
        root: &Digest,
        (index, size): (usize, usize),
        name: &str,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        let leaf = table::leaf(name, &tensor.digest);
        if merkle::root_from_proof(leaf, index as u64, size as u64, &tensor.proof)? != *root {
            return Err(wrong(format!("{name} is not what the run committed to")));
        }
        Ok(())
    }

    /// Checks that a state digest commits to tensor `index` of the state.
    pub(crate) fn state_commitment(
        &self,
        state: &Digest,
        table: &[StateTensor],
        index: usize,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        if digest_from_proof(table, index, &tensor.digest, &tensor.proof)? != *state {
            return Err(wrong(format!("{} is not what the run committed to", table[index].name)));
        }
        Ok(())
    }

    /// The record's trace root. Only jobs that commit operators have a bound on their micro-batches, so the nodes of a step may
    /// be listed only after this check.
    pub(crate) fn trace_root<'s>(&self, step: &'s StepRecord) -> Result<&'s Digest, Malformed> {
        let operators = self.computation.job.commit.granularity == Granularity::Operator;
        step.trace.as_ref().filter(|_| operators).ok_or_else(|| wrong("the record commits to no operators"))
    }

    /// The indices of nodes in a step's trace.
    pub fn places(&self) -> &Places {
        self.places.get_or_init(|| Places::of(&self.computation.program))
    }

    pub(crate) fn trace_commitment(
        &self,
        step: &StepRecord,
        phase: Phase,
        node: usize,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        let trace = self.trace_root(step)?;
        let index = self.places().place(phase, node).ok_or_else(|| wrong("there is no such node"))?;
        self.committed(trace, (index, self.places().count()), &leaf_name(phase, node), tensor)
    }

    /// Checks that frozen parameters are under the record before the step's. Frozen parameters are the state tensors that no
    /// node makes.
    pub fn kept(
        &self,
        step: &StepRecord,
        nodes: &[Option<usize>],
        before: Option<&ProvenRecord>,
        kept: &[ProvenTensor],
    ) -> Result<(), Malformed> {
        if before.is_some() == kept.is_empty() {
            return Err(wrong(
                "it carries a record before the step's without frozen parameters, or these without it",
            ));
        }
        let Some(before) = before else { return Ok(()) };
        if before.index + 1 != u64::from(step.step) {
            return Err(wrong("the record before the step is another step's"));
        }
        let state = self.proven(before, &self.head)?;
        let table = self.computation.program.state();
        let frozen = (0..).zip(nodes).filter(|(_, node)| node.is_none()).map(|(index, _)| index);
        for (index, tensor) in frozen.zip(kept) {
            let index: usize = index;
            self.state_commitment(&state.state(), &table, index, tensor)?;
        }
        Ok(())
    }

    /// The run's data, of which only these slices are available.
    pub(crate) fn data_in(
        &self,
        files: &[FileManifest],
        carried: &[DataSlices],
    ) -> Result<Dataset, Malformed> {
        manifest::check(files)?;
        if files_root(files) != self.computation.summary.data {
            return Err(wrong("the manifest is not that of the run's data"));
        }
        let slices: Vec<(usize, FileSlices)> = carried.iter().map(DataSlices::parts).collect();
        Dataset::from_slices(files, &slices, &self.computation.job.data, &self.computation.program.sample())
            .map_err(|error| wrong(error.to_string()))
    }

    fn origin(&self, step: &StepRecord, phase: Phase, id: TensorId) -> Option<Origin> {
        origin(&self.computation.program, &self.computation.job, &self.computation.seed, step.step, phase, id)
    }

    /// Checks that the run commits to a tensor of the node's phase.
    fn input_commitment(
        &self,
        step: &StepRecord,
        before: &Digest,
        from: &Origin,
        tensor: &ProvenTensor,
    ) -> Result<(), Malformed> {
        match from {
            Origin::State { index } => {
                let table = self.computation.program.state();
                self.state_commitment(before, &table, *index, tensor)
            }
            Origin::Batch { micro, tensor: number } => {
                let names = &self.computation.program.batch;
                let index = *micro as usize * names.len() + number;
                let size = self.computation.program.micro_batches as usize * names.len();
                let name = batch_leaf_name(*micro, &names[*number].name);
                self.committed(&step.batch, (index, size), &name, tensor)
            }
            Origin::Node { phase, node } => self.trace_commitment(step, *phase, *node, tensor),
            Origin::Words(_) => Err(wrong("it carries a tensor that follows from the job")),
        }
    }

    /// The slices of a phase's tensors, exactly those of `reads`, each checked against its commitment. `before` is the record
    /// that commits to the state.
    pub fn inputs(
        &self,
        step: &StepRecord,
        before: &ProvenRecord,
        phase: Phase,
        reads: &BTreeSet<TensorId>,
        inputs: &[ProvenInput],
    ) -> Result<Slices, Malformed> {
        let graph = graph_of(&self.computation.program, phase);
        let state = self.proven(before, &self.head)?;
        if before.index + 1 != u64::from(step.step) {
            return Err(wrong("the record before the step is another step's"));
        }
        let mut carried = BTreeSet::new();
        let mut slices = Slices::default();
        for &id in reads {
            if let Some(Origin::Words(words)) = self.origin(step, phase, id) {
                slices.insert_words(id, &words);
            }
        }
        for input in inputs {
            let id = TensorId(input.tensor);
            if !reads.contains(&id) || !carried.insert(id) {
                return Err(wrong("it carries a tensor twice, or one that the operator does not read"));
            }
            let from = self.origin(step, phase, id).ok_or_else(|| wrong("an input has no origin"))?;
            self.input_commitment(step, &state.state(), &from, &input.commitment)?;
            check_slices(graph.tensor(id), input)?;
            for (&slice, bytes) in input.slices.iter().zip(input.bytes.0.chunks(SLICE_BYTES)) {
                slices.insert(id, slice, bytes.to_vec());
            }
        }
        Ok(slices)
    }

    /// The decision of the step's log about element `element` of a product of a micro-batch, if there is one.
    pub(crate) fn logged_decision(
        &self,
        step: &StepRecord,
        (micro_batch, product, element): (u32, usize, usize),
        (block, log): (u64, &LogSlices),
        steps: &mut Vec<String>,
    ) -> Result<Option<Decision>, Malformed> {
        let root = step.log.as_ref().ok_or_else(|| wrong("the record commits no rounding log"))?;
        let logged = &self.computation.program.micro.logged;
        let parts = log::parts(&self.computation.program);
        let number = micro_batch as usize * logged.len() + product;
        let place = BlockPlace { part: number, elements: logged[product].elements() as u64, block };
        let proof = SliceProof::from(log);
        let proven = match proof.block(root, parts, place)? {
            log::Shown::Block(proven) => proven,
            // A part without a first block has no decisions. Any other missing block shows nothing.
            log::Shown::Missing if block == 0 => return Ok(None),
            log::Shown::Missing => return Err(wrong("the log's part has no such block")),
            log::Shown::Malformed(why) => return Err(why),
        };
        if !proven.places().contains(&(element as u64)) {
            return Err(wrong("the block of the log is about other elements"));
        }
        steps.push(format!(
            "block {block} of part {number} of {parts} of the step's log is under the record's log root"
        ));
        let decisions = proven.decisions()?;
        let place = decisions.binary_search_by_key(&(element as u64), |decision| decision.place).ok();
        if let Some(place) = place {
            steps.push(format!("decision {place} of the block's {} is about the element", decisions.len()));
        }
        Ok(place.map(|place| decisions[place]))
    }
}

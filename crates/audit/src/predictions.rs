//! The evidence against a receipt of predictions that a replay contradicts: a verdict that anybody checks without the model and the
//! data. Contract: `docs/INFERENCE.md`, Verdicts on receipts.

use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{
    AnswerClaim, AnswerRuling, AnswerVerdict, ClassClaim, LogitsClaim, Pass, TracedWindow,
};
use tiebreak_dispute::verdict::{Base64, Hashes, ProvenTensor, VERDICT_MAX};
use tiebreak_engine::{Engine, Tensor};
use tiebreak_job::Evaluable;
use tiebreak_record::commit::answer_trace::{AnswerTrace, node_leaves};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::predictions::{Predictions, logits_digest};
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_record::commit::tensor::{self, Hash, SLICE_BYTES};
use tiebreak_record::commit::{merkle, multiproof};
use tiebreak_run::predict::traced::{SamplePass, sample_leaves};
use tiebreak_run::predict::{Difference, Inputs, Mismatch, Predictor};
use tiebreak_run::step::StepError;

use crate::answers::{PassOperands, TileEvidence, node_digests, read_by};

/// What an accuser of predictions has.
pub struct Accuser<'a> {
    /// The model, and the text of its job, or of its network file.
    pub job: (&'a dyn Evaluable, &'a str),
    /// The names and the bytes of the model's parameters and buffers, which are the receipt's.
    pub model: (&'a [StateTensor], &'a [Vec<u8>]),
    /// The receipt, and its file's text.
    pub receipt: (&'a Predictions, &'a str),
    /// The text of the opening, if the receipt is salted.
    pub opening: Option<&'a str>,
    /// The trace that the receipt commits, if the signer gave it.
    pub trace: Option<&'a AnswerTrace>,
}

impl Accuser<'_> {
    /// A verdict about a difference that the replay found; `None` if no evidence stands without the model.
    ///
    /// # Errors
    /// If the data cannot be read, or the engine fails.
    pub fn verdict(
        &self,
        engine: &mut dyn Engine,
        inputs: &mut Inputs,
        found: &Difference,
    ) -> Result<Option<AnswerVerdict>, StepError> {
        let place = (found.sample - u64::from(self.receipt.0.first)) as usize;
        let claim = match found.what {
            // Other data accuse nobody.
            Mismatch::Input { .. } => None,
            Mismatch::Class { row, .. } => match self.class_claim(engine, inputs, place, row)? {
                None => self.below(engine, inputs, place)?,
                claim => claim,
            },
            Mismatch::Logits { .. } => self.below(engine, inputs, place)?,
        };
        Ok(self.standing(claim))
    }

    /// A verdict about sample `place` of the receipt, whose predictions follow and whose trace differs.
    ///
    /// # Errors
    /// If the data cannot be read, or the engine fails.
    pub fn verdict_below(
        &self,
        engine: &mut dyn Engine,
        inputs: &mut Inputs,
        place: usize,
    ) -> Result<Option<AnswerVerdict>, StepError> {
        let claim = self.below(engine, inputs, place)?;
        Ok(self.standing(claim))
    }

    /// The verdict of a claim, if a referee convicts.
    fn standing(&self, claim: Option<AnswerClaim>) -> Option<AnswerVerdict> {
        let verdict = AnswerVerdict::new(self.receipt.1.into(), claim?).with_opening(self.opening);
        let convicts = matches!(verdict.examine(None).outcome, Ok(AnswerRuling::Convicts(_)));
        (convicts && verdict.to_bytes().len() as u64 <= VERDICT_MAX).then_some(verdict)
    }

    fn upload(&self, engine: &mut dyn Engine) -> Result<Vec<Tensor>, StepError> {
        let (table, bytes) = self.model;
        let tensors = table.iter().zip(bytes).map(|(tensor, bytes)| engine.upload(&tensor.ty(), bytes));
        Ok(tensors.collect::<Result<_, _>>()?)
    }

    /// A claim about the class of a row, if the receipt commits the logits of the replay.
    ///
    /// # Errors
    /// If the data cannot be read, or the engine fails.
    pub fn class_claim(
        &self,
        engine: &mut dyn Engine,
        inputs: &mut Inputs,
        place: usize,
        row: u32,
    ) -> Result<Option<AnswerClaim>, StepError> {
        let (receipt, _) = self.receipt;
        let released = self.upload(engine)?;
        let predictor = Predictor::new(engine, self.job.0, 1)?;
        let number = [u64::from(receipt.first) + place as u64];
        let logits = predictor.run(engine, &released, inputs, &number, |computed| Some(computed.logits))?;
        let Some(logits) = logits else { return Ok(None) };
        if logits_digest(predictor.rows, &logits) != receipt.samples[place].logits {
            return Ok(None);
        }
        let (bytes, len) = (bytes_of(&logits), predictor.classes as usize * 4);
        let start = row as usize * len;
        let slices: Vec<usize> = (start / SLICE_BYTES..(start + len).div_ceil(SLICE_BYTES)).collect();
        let values = tensor::piece_values(&bytes, SLICE_BYTES);
        let slice = |&slice: &usize| &bytes[tensor::piece_range(bytes.len(), SLICE_BYTES, slice)];
        Ok(Some(AnswerClaim::Class(Box::new(ClassClaim {
            sample: place as u32,
            row,
            bytes: Base64(slices.iter().map(slice).collect::<Vec<_>>().concat()),
            siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &slices)),
            slices,
        }))))
    }

    /// The first operator of the signer's trace of a sample that differs, or else its logits, if the receipt commits others.
    fn below(
        &self,
        engine: &mut dyn Engine,
        inputs: &mut Inputs,
        place: usize,
    ) -> Result<Option<AnswerClaim>, StepError> {
        let (receipt, _) = self.receipt;
        let Some(theirs) = self.trace.and_then(|trace| trace.windows.get(place)) else { return Ok(None) };
        let released = self.upload(engine)?;
        let pass = SamplePass::new(engine, self.job.0)?;
        let mine = pass.trace(engine, &released, inputs, (receipt, place), None)?;
        if let Some(node) = theirs.iter().zip(&mine.nodes).position(|(a, b)| a.digest != b.digest) {
            let differs = |(a, b): (&Hash, &Hash)| a != b;
            let tile = theirs[node].tiles.iter().zip(&mine.nodes[node].tiles).position(differs);
            return self.tile_claim(engine, inputs, (place, node, tile.unwrap_or(0)));
        }
        Ok(if mine.logits == receipt.samples[place].logits { None } else { self.logits_claim(place) })
    }

    /// A sample of the receipt, and the signer's trace of it.
    fn window(&self, place: usize) -> Option<(Pass, TracedWindow, Vec<Digest>)> {
        let ((receipt, _), trace) = (self.receipt, self.trace?);
        let pass = Pass::of_sample(receipt, self.job.1, place).ok()?;
        let leaves = node_leaves(trace.windows.get(place)?);
        let proof = merkle::prove(&sample_leaves(receipt, trace), place);
        Some((pass, TracedWindow { number: place, root: merkle::root(&leaves), proof }, leaves))
    }

    /// A claim about a tile of a node of a sample's pass.
    ///
    /// # Errors
    /// If the data cannot be read, or the engine fails.
    pub fn tile_claim(
        &self,
        engine: &mut dyn Engine,
        inputs: &mut Inputs,
        (place, node, tile): (usize, usize, usize),
    ) -> Result<Option<AnswerClaim>, StepError> {
        let (Some((pass, window, leaves)), Some(trace)) = (self.window(place), self.trace) else {
            return Ok(None);
        };
        let (receipt, _) = self.receipt;
        let released = self.upload(engine)?;
        let tensors = SamplePass::new(engine, self.job.0)?.outputs(
            engine,
            &released,
            inputs,
            (receipt, place),
            read_by(&pass, node),
        )?;
        let nodes = &trace.windows[place];
        let (digests, of_model) = (node_digests(nodes), tensor_digests(self.model.0, self.model.1));
        let operands = PassOperands {
            pass: &pass,
            digests: &digests,
            leaves: &leaves,
            model: self.model,
            tensors: &of_model,
            outputs: &tensors.outputs,
            sample: Some((&tensors.inputs, receipt.samples[place].input)),
        };
        Ok(TileEvidence { operands, theirs: &nodes[node], window, job: self.job.1 }.claim(node, tile))
    }

    /// A claim that the logits of a sample are not those of the signer's trace; `None` without the trace.
    pub fn logits_claim(&self, place: usize) -> Option<AnswerClaim> {
        let (pass, window, leaves) = self.window(place)?;
        let id = pass.graph.output("logits")?;
        let node = pass.graph.nodes.iter().position(|node| node.output == id)?;
        let digest = self.trace?.windows.get(place)?.get(node)?.digest;
        let logits = ProvenTensor { digest, proof: merkle::prove(&leaves, node) };
        Some(AnswerClaim::Logits(Box::new(LogitsClaim { job: self.job.1.into(), window, logits })))
    }
}

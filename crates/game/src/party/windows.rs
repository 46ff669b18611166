//! The passes of a receipt of an answer: one for each window that the answer needs.

use std::collections::BTreeSet;
use std::ops::Range;

use super::error::PartyError;
use super::passes::{PassTensors, Passes, RowPlace, TakePass, Weights};
use tiebreak_contract::program::inference::windows;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{Answering, Pass};
use tiebreak_engine::Engine;
use tiebreak_record::commit::answer_trace::window_leaf;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::inference::traced::{Tamper, row_leaves};

/// A decoder, and the receipt of an answer.
pub(super) struct Windows {
    receipt: Receipt,
    /// The text of the job or of the network file.
    job: String,
    model: Answering,
    weights: Weights,
    /// All ids are candidates: no token is chosen here.
    known: Vec<bool>,
}

impl Windows {
    /// The model of the terms with these weights, in the model's order, which have to be the receipt's.
    pub fn of(receipt: Receipt, job: String, weights: Vec<Vec<u8>>) -> Result<Windows, PartyError> {
        let model = Answering::of(&job, receipt.model)?;
        let parameters = model.writer().parameters();
        let table: Vec<StateTensor> = parameters
            .iter()
            .map(|p| StateTensor { name: format!("param/{}", p.name), shape: p.shape.clone() })
            .collect();
        let pass = Pass::of(&receipt, &job, 0)?;
        let logits = pass.graph.output("logits").map(|id| pass.graph.tensor(id));
        let classes = logits.and_then(|ty| ty.shape.last()).map_or(0, |classes| *classes as usize);
        let weights = Weights::of(table, weights, [Some(receipt.parameters), None])?;
        Ok(Windows { receipt, job, model, weights, known: vec![true; classes] })
    }

    fn answerer(&self) -> Answerer<'_> {
        Answerer {
            model: self.model.writer(),
            parameters: (&self.weights.table, &self.weights.bytes),
            known: &self.known,
            ends: &[],
        }
    }
}

impl Passes for Windows {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    fn words(&self) -> [&'static str; 2] {
        ["trace of the answer is", "root over the answer's rows is"]
    }

    fn signed(&self) -> [Digest; 2] {
        [self.receipt.traces.unwrap_or(Digest([0; 32])), self.receipt.root]
    }

    fn input(&self, _: usize) -> Option<Digest> {
        None
    }

    fn nodes(&self) -> Vec<usize> {
        let graphs = self.answerer().window_graphs(&self.receipt);
        graphs.iter().map(|graph| graph.nodes.len()).collect()
    }

    fn rows(&self) -> usize {
        self.receipt.answer.len()
    }

    fn pass(&self, number: usize) -> Result<Pass, PartyError> {
        Ok(Pass::of(&self.receipt, &self.job, number)?)
    }

    fn pass_leaves(&self, roots: &[Digest]) -> Vec<Digest> {
        let windows = self.answerer().windows(&self.receipt);
        windows.iter().zip(roots).map(|([first, tokens], root)| window_leaf(*first, *tokens, root)).collect()
    }

    fn row_leaves(&self, rows: &[Digest]) -> Vec<Digest> {
        row_leaves(&self.receipt, rows)
    }

    fn row(&self, number: u32) -> Result<Option<RowPlace>, PartyError> {
        let (prompt, answer) = (self.receipt.prompt.len(), self.receipt.answer.len());
        let windows = windows(prompt, 0..answer, self.model.writer().context());
        let holds = |(_, numbers): &(usize, Range<usize>)| numbers.contains(&(number as usize));
        let Some(window) = windows.iter().position(holds) else { return Ok(None) };
        let (len, place) = (self.known.len(), self.pass(window)?.row_place(&self.receipt, number as usize));
        Ok(Some(RowPlace { pass: window, elements: place * len..(place + 1) * len }))
    }

    fn check_data(&mut self) -> Result<(), PartyError> {
        // The receipt has its tokens.
        Ok(())
    }

    fn trace(&mut self, engine: &mut dyn Engine, tamper: Tamper, take: TakePass) -> Result<(), PartyError> {
        Ok(self.answerer().trace_windows(engine, &self.receipt, tamper, take)?)
    }

    fn outputs(
        &mut self,
        engine: &mut dyn Engine,
        number: usize,
        wanted: BTreeSet<usize>,
        tamper: Tamper,
    ) -> Result<PassTensors, PartyError> {
        let outputs = self.answerer().tampered_outputs(engine, &self.receipt, number, wanted, tamper)?;
        Ok(PassTensors { outputs, sample: None })
    }
}

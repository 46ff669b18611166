//! The replay of a receipt: the rows of logits of an answer by whole windows, one pass each, and the first token that does not follow.
//! Contract: `docs/INFERENCE.md`, Receipts.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{bytes_of, words_from_bytes};
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::inference::{Writer, caches, inference_step, places, settings, windows};
use tiebreak_contract::program::sampling::NoToken;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Engine, EngineError, Observer, Tensor};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::{AnswerRoot, Receipt, model_digest};
use tiebreak_record::commit::state::{StateRoots, tensor_digests};

/// A decoder with its weights, and the rules for its tokens.
#[derive(Clone, Copy)]
pub struct Answerer<'a> {
    /// The model.
    pub model: Writer<'a>,
    /// The parameters' names and types, and their canonical bytes, in the model's order.
    pub parameters: (&'a [StateTensor], &'a [Vec<u8>]),
    /// Which ids are candidates, for each id of the model.
    pub known: &'a [bool],
    /// The ids that end texts.
    pub ends: &'a [u32],
}

/// The first point in which a receipt differs from its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A token is another one than the model gives.
    Token {
        /// Its number in the answer, from 0.
        number: u32,
        /// The receipt's token.
        said: u32,
        /// The model's.
        found: Result<u32, NoToken>,
    },
    /// A token comes after one that ends the text.
    Ended {
        /// Its number in the answer, from 0.
        number: u32,
    },
    /// The answer stops, though its last token ends no text and there is room for more.
    Stopped {
        /// Tokens of the answer.
        tokens: u32,
        /// The most tokens that the settings allow.
        length: u32,
    },
    /// All tokens follow, and the rows of logits are others.
    Root {
        /// The receipt's root.
        said: Digest,
        /// The model's.
        found: Digest,
    },
    /// All tokens and rows follow, and the operators of the windows are others.
    Traces {
        /// The receipt's root over traces.
        said: Digest,
        /// The model's.
        found: Digest,
    },
}

impl Answerer<'_> {
    /// The digests of the model and of the parameters; `None` if the model is no decoder.
    pub fn identity(&self) -> Option<[Digest; 2]> {
        let model = model_digest(&settings(self.model)?);
        let (table, bytes) = self.parameters;
        Some([model, StateRoots::of(table, &tensor_digests(table, bytes)).0[0]])
    }

    /// The parameters on an engine.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn upload(&self, engine: &mut dyn Engine) -> Result<Vec<Tensor>, EngineError> {
        let (table, bytes) = self.parameters;
        table.iter().zip(bytes).map(|(tensor, bytes)| engine.upload(&tensor.ty(), bytes)).collect()
    }

    /// Checks that a receipt's tokens are the model's.
    ///
    /// # Errors
    /// If one is no id of the model.
    pub fn has_tokens(&self, receipt: &Receipt) -> Result<(), Malformed> {
        let classes = self.known.len();
        match receipt.prompt.iter().chain(&receipt.answer).find(|id| **id as usize >= classes) {
            None => Ok(()),
            Some(id) => {
                let why = format!("it has a token {id}, and those of the model are below {classes}");
                Err(Malformed::invalid("receipt", why))
            }
        }
    }

    /// Bytes of the tensors that live at once while a receipt is replayed, the parameters included; 0 if the model is no decoder.
    pub fn memory(&self, receipt: &Receipt) -> u64 {
        let size = size(&self.passes(receipt, 0..receipt.answer.len()), receipt);
        inference_step(self.model, [1, size.max(1) as u32]).as_ref().map_or(0, peak_bytes)
    }

    /// The windows of the tokens with these numbers: the first token of the text in each, and the numbers.
    pub(super) fn passes(&self, receipt: &Receipt, numbers: Range<usize>) -> Vec<(usize, Range<usize>)> {
        windows(receipt.prompt.len(), numbers, self.model.context())
    }

    /// Passes the number of each of these tokens, with the row of logits that it follows from, to `take`, until that gives something.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn rows<B>(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        numbers: Range<usize>,
        take: impl FnMut(usize, &[u32]) -> Option<B>,
    ) -> Result<Option<B>, EngineError> {
        self.rows_of(engine, receipt, self.passes(receipt, numbers), take)
    }

    fn rows_of<B>(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        passes: Vec<(usize, Range<usize>)>,
        mut take: impl FnMut(usize, &[u32]) -> Option<B>,
    ) -> Result<Option<B>, EngineError> {
        let size = size(&passes, receipt);
        let text = [&receipt.prompt[..], &receipt.answer].concat();
        let mut pass = match size {
            0 => None,
            size => Pass::new(engine, self, size as u32)?,
        };
        for (first, numbers) in passes {
            let Some(pass) = &mut pass else { return Ok(None) };
            let rows = pass.rows(engine, &text[first..receipt.prompt.len() + numbers.end - 1], None)?;
            for number in numbers {
                let place = receipt.prompt.len() + number - first - 1;
                let taken = take(number, &rows[place * self.known.len()..][..self.known.len()]);
                if taken.is_some() {
                    return Ok(taken);
                }
            }
        }
        Ok(None)
    }

    /// The first difference between a receipt's tokens with these numbers and those of the model; over all numbers, the roots are
    /// compared too. `None` also if the model is no decoder, which has no [`Answerer::identity`]. `progress` receives the number of
    /// tokens done.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn difference(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        numbers: Range<usize>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Difference>, EngineError> {
        let is_whole = numbers == (0..receipt.answer.len());
        let mut root = AnswerRoot::default();
        let found = self.rows(engine, receipt, numbers, |number, row| {
            let found = self.at(receipt, number, row);
            root.push(receipt.answer[number], row);
            progress(number as u64 + 1);
            found
        })?;
        if found.is_some() || !is_whole {
            return Ok(found);
        }
        let found = self.stopped(receipt);
        if found.is_some() {
            return Ok(found);
        }
        let (said, found) = (receipt.root, root.root());
        if said != found {
            return Ok(Some(Difference::Root { said, found }));
        }
        let Some(said) = receipt.traces else { return Ok(None) };
        let found = self.traces_root(receipt, &self.trace(engine, receipt, None, progress)?);
        Ok((said != found).then_some(Difference::Traces { said, found }))
    }

    /// The difference of a token with this number, which its row of logits shows.
    fn at(&self, receipt: &Receipt, number: usize, row: &[u32]) -> Option<Difference> {
        let answer = &receipt.answer;
        if number > 0 && self.ends.contains(&answer[number - 1]) {
            return Some(Difference::Ended { number: number as u32 });
        }
        let (said, found) = (answer[number], receipt.sampling.token(row, self.known, number as u32));
        (found != Ok(said)).then_some(Difference::Token { number: number as u32, said, found })
    }

    /// The difference of an answer that is not whole.
    fn stopped(&self, receipt: &Receipt) -> Option<Difference> {
        let (tokens, length) = (receipt.answer.len() as u32, receipt.length);
        let ended = receipt.answer.last().is_some_and(|last| self.ends.contains(last));
        (tokens < length && !ended).then_some(Difference::Stopped { tokens, length })
    }

    /// The tokens that a check of a draw replays: in each window that holds a drawn one, those up to the last that is drawn there.
    pub fn replayed(&self, receipt: &Receipt, drawn: &BTreeSet<usize>) -> Vec<(usize, Range<usize>)> {
        let passes = self.passes(receipt, 0..receipt.answer.len()).into_iter();
        let up_to = |(first, numbers): (usize, Range<usize>)| {
            let last = drawn.range(numbers.clone()).next_back()?;
            Some((first, numbers.start..last + 1))
        };
        passes.filter_map(up_to).collect()
    }

    /// The first difference among tokens that [`Answerer::replayed`] gives, or of an answer that is not whole. No root is compared.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn drawn_difference(
        &self,
        engine: &mut dyn Engine,
        receipt: &Receipt,
        replayed: &[(usize, Range<usize>)],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Difference>, EngineError> {
        let mut done = 0;
        let found = self.rows_of(engine, receipt, replayed.to_vec(), |number, row| {
            done += 1;
            progress(done);
            self.at(receipt, number, row)
        })?;
        Ok(found.or_else(|| self.stopped(receipt)))
    }

    /// True if the scalar reference finds the same difference; those of lengths depend on no engine.
    ///
    /// # Errors
    /// If memory or time are up.
    pub fn confirms(
        &self,
        receipt: &Receipt,
        found: &Difference,
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, EngineError> {
        let numbers = match found {
            Difference::Token { number, .. } => *number as usize..*number as usize + 1,
            Difference::Root { .. } | Difference::Traces { .. } => 0..receipt.answer.len(),
            Difference::Ended { .. } | Difference::Stopped { .. } => return Ok(true),
        };
        Ok(self.difference(&mut Reference, receipt, numbers, progress)?.as_ref() == Some(found))
    }
}

/// Tokens of the longest window.
fn size(passes: &[(usize, Range<usize>)], receipt: &Receipt) -> usize {
    passes.iter().map(|(first, numbers)| receipt.prompt.len() + numbers.end - 1 - first).max().unwrap_or(0)
}

/// A step of a whole window, compiled for an engine.
pub(super) struct Pass {
    compiled: tiebreak_engine::Compiled,
    /// The inputs of every window but the tokens: parameters, positions and rows, and empty caches.
    before: Vec<Tensor>,
    behind: Vec<Tensor>,
    size: usize,
}

impl Pass {
    pub(super) fn new(
        engine: &mut dyn Engine,
        answerer: &Answerer,
        size: u32,
    ) -> Result<Option<Pass>, EngineError> {
        let model = answerer.model;
        let lists = places(&[0], size, model.context());
        let graph = inference_step(model, [1, size]);
        let (Some(lists), Some(graph), Some(types)) = (lists, graph, caches(model, 1)) else {
            return Ok(None);
        };
        let compiled = engine.compile(Arc::new(graph))?;
        let before = answerer.upload(engine)?;
        let mut behind = Vec::new();
        for list in lists {
            behind.push(upload(engine, &list)?);
        }
        for (_, ty) in types {
            behind.push(engine.upload(&ty, &vec![0; ty.bytes()])?);
        }
        Ok(Some(Pass { compiled, before, behind, size: size as usize }))
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.compiled.graph
    }

    /// The logits of a window's positions, one behind another. A window that is not full is padded; no row depends on that.
    pub(super) fn rows(
        &mut self,
        engine: &mut dyn Engine,
        tokens: &[u32],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<u32>, EngineError> {
        let mut tokens = tokens.to_vec();
        tokens.resize(self.size, 0);
        let mut inputs = self.before.clone();
        inputs.push(upload(engine, &tokens)?);
        inputs.extend(self.behind.iter().cloned());
        let outputs = engine.run(&self.compiled, &inputs, observer)?;
        Ok(words_from_bytes(DType::F32, &engine.download(&outputs[0])?))
    }
}

fn upload(engine: &mut dyn Engine, list: &[u32]) -> Result<Tensor, EngineError> {
    let ty = TensorType { dtype: DType::U32, shape: vec![list.len() as u32] };
    engine.upload(&ty, &bytes_of(list))
}

//! A party of a game about a receipt: answers the referee's questions from the model, by passes over the receipt's own tokens or
//! samples.
//!
//! The signer and its challengers answer alike: each commits to the trace that its own model gives.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::error::PartyError;
use super::kept_trace::Digests;
use super::passes::{PassTensors, Passes, RowPlace, Weights};
use super::samples::Samples;
use super::windows::Windows;
use super::{QUESTION_MAX, agreement, own, salt, sealed, slice_of, trees};
use tiebreak_audit::answers::{PassOperands, proven, read_by};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_dispute::answer::{Origin, Pass};
use tiebreak_dispute::game::element;
use tiebreak_dispute::game::message::{Answer, Asked, Need, Question, Subject, Tree, commitment};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::search;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::verdict::ProvenTensor;
use tiebreak_engine::Engine;
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES, digest_from_root, piece_values};
use tiebreak_record::commit::trace::TracedNode;
use tiebreak_record::commit::{merkle, tensor};
use tiebreak_run::inference::traced::{Change, Tamper};
use tiebreak_run::predict::Inputs;
use tiebreak_run::run::disk::Disk;

/// What a party of a game about a receipt computes the receipt's passes from.
pub struct Replayed {
    /// The bytes of the model's parameters, and for predictions of its buffers, in the model's order.
    pub weights: Vec<Vec<u8>>,
    /// The samples of a receipt of predictions, numbered as the receipt numbers them.
    pub samples: Option<Inputs>,
}

impl From<Vec<Vec<u8>>> for Replayed {
    fn from(weights: Vec<Vec<u8>>) -> Replayed {
        Replayed { weights, samples: None }
    }
}

/// The receipt of terms.
fn receipt_of(terms: &Terms) -> Result<AnyReceipt, PartyError> {
    let why = "the terms are about a run, and a party of a game about a receipt was started";
    let disputed = terms.receipt.as_ref().ok_or_else(|| PartyError::Refused(why.into()))?;
    Ok(salted_receipt::read(&disputed.text, disputed.opening.as_deref())?.0)
}

/// The passes of the terms' receipt.
fn passes_of(terms: &Terms, of: Replayed) -> Result<Box<dyn Passes>, PartyError> {
    let refused = |why: &str| Err(PartyError::Refused(why.into()));
    let (job, Replayed { weights, samples }) = (terms.job.clone(), of);
    match (receipt_of(terms)?, samples) {
        (AnyReceipt::Answer(receipt), None) => Ok(Box::new(Windows::of(receipt, job, weights)?)),
        (AnyReceipt::Predictions(receipt), Some(inputs)) => {
            Ok(Box::new(Samples::of(receipt, job, weights, inputs)?))
        }
        (AnyReceipt::Answer(_), Some(_)) => {
            refused("the receipt of the terms is of an answer, which has no samples: give no data")
        }
        (AnyReceipt::Predictions(_), None) => {
            refused("the receipt of the terms is of predictions: give the data that it is of")
        }
    }
}

fn tamper<'a>(change: &'a mut Option<Box<Change<'static>>>) -> Tamper<'a> {
    match change {
        Some(change) => Some(&mut **change),
        None => None,
    }
}

/// The disputed node of a pass.
struct Disputed {
    number: u32,
    node: usize,
    pass: Pass,
    /// The leaves of the pass's nodes.
    leaves: Vec<Digest>,
    /// The node's output.
    output: Vec<u8>,
    /// The tensors that the node reads.
    tensors: BTreeMap<TensorId, Vec<u8>>,
    /// The sample's inputs; none of a window.
    sample: Option<Vec<u8>>,
    /// The values of the slices of the node's output.
    slices: Vec<Hash>,
}

/// A party of a game about a receipt.
pub struct ReceiptParty {
    terms: Terms,
    game: Digest,
    referee: PublicKey,
    key: PrivateKey,
    passes: Box<dyn Passes>,
    engine: Box<dyn Engine>,
    trace: Digests,
    /// The leaves of the passes.
    leaves: Vec<Digest>,
    /// The file that keeps the trace.
    kept: Option<(PathBuf, Disk)>,
    /// The leaves of the rows.
    rows: Vec<Digest>,
    disputed: Option<Disputed>,
    /// The changes of a signer who was not honest.
    change: Option<Box<Change<'static>>>,
}

impl ReceiptParty {
    /// The party of a game about a receipt that has this key, this model, and the samples of predictions. The trace is computed on
    /// `engine` at once.
    ///
    /// # Errors
    /// If the terms are malformed, name no party with this key, leave no time, or are about a run. Also if the model is not the
    /// receipt's, if samples of predictions are missing, or as [`ReceiptParty::prepare`].
    pub fn open(
        terms: Terms,
        of: impl Into<Replayed>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
    ) -> Result<ReceiptParty, PartyError> {
        let mut party = ReceiptParty::open_as(terms, of, key, engine, None)?;
        party.prepare()?;
        Ok(party)
    }

    /// [`ReceiptParty::open`] without the trace, which [`ReceiptParty::prepare`] or the first question computes. The file keeps the
    /// trace, so that a party that is started again has it; its path has a folder.
    ///
    /// # Errors
    /// As [`ReceiptParty::open`], but for those of [`ReceiptParty::prepare`].
    pub fn open_keeping(
        terms: Terms,
        of: impl Into<Replayed>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        file: (PathBuf, Disk),
    ) -> Result<ReceiptParty, PartyError> {
        let party = ReceiptParty::open_as(terms, of, key, engine, None)?;
        Ok(ReceiptParty { kept: Some(file), ..party })
    }

    /// [`ReceiptParty::open`] for a signer who changed outputs of operators, and answers by them.
    ///
    /// # Errors
    /// As [`ReceiptParty::open`].
    #[cfg(feature = "testing")]
    pub fn open_cheating(
        terms: Terms,
        of: impl Into<Replayed>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        change: Box<Change<'static>>,
    ) -> Result<ReceiptParty, PartyError> {
        let mut party = ReceiptParty::open_as(terms, of, key, engine, Some(change))?;
        party.prepare()?;
        Ok(party)
    }

    fn open_as(
        terms: Terms,
        of: impl Into<Replayed>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        change: Option<Box<Change<'static>>>,
    ) -> Result<ReceiptParty, PartyError> {
        let (_, referee) = terms.keys()?;
        agreement::names(&terms, &key.public())?;
        Rules::new(&terms)?;
        let passes = passes_of(&terms, of.into())?;
        let game = terms.game();
        let (trace, kept, disputed) = (Digests::default(), None, None);
        let (leaves, rows) = (Vec::new(), Vec::new());
        Ok(ReceiptParty {
            terms,
            game,
            referee,
            key,
            passes,
            engine,
            trace,
            leaves,
            kept,
            rows,
            disputed,
            change,
        })
    }

    /// Computes the trace, or reads the one that was kept. Without it no question is answered.
    ///
    /// # Errors
    /// If the terms leave less time for replays than this machine needs, if the engine fails, or if the file that is to keep the trace
    /// is something else. Also if the data are not those of the receipt, or if the party signed the receipt and its model gives
    /// another trace.
    pub fn prepare(&mut self) -> Result<(), PartyError> {
        if !self.leaves.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        if self.change.is_none() {
            // A party with other data would play, and be silent about a sample that is not the receipt's.
            self.passes.check_data()?;
        }
        let read = begin.elapsed();
        let secret = own(&self.key, &self.game);
        let kept = match &self.kept {
            Some((path, _)) => {
                Digests::kept(path, &secret, self.passes.rows(), self.passes.nodes().into_iter())?
            }
            None => None,
        };
        let is_new = kept.is_none();
        let trace = match kept {
            Some(kept) => kept,
            None => self.computed(begin, read)?,
        };
        let roots = (0..trace.windows.len()).filter_map(|number| trace.node_leaves(number));
        let roots: Vec<Digest> = roots.map(|leaves| merkle::root(&leaves)).collect();
        let (leaves, rows) = (self.passes.pass_leaves(&roots), self.passes.row_leaves(&trace.rows));
        if self.terms.parties.first() == Some(&self.key.public().to_text()) && self.change.is_none() {
            self.signed(&merkle::root(&leaves), &merkle::root(&rows))?;
        }
        (self.trace, self.leaves, self.rows) = (trace, leaves, rows);
        if let Some((path, disk)) = self.kept.as_ref().filter(|_| is_new) {
            // A party that cannot keep its trace plays on, and computes it again if it is started again.
            let _ = self.trace.keep(path, disk, &secret);
        }
        Ok(())
    }

    /// Checks that the roots over the passes and over the rows are those that the receipt commits.
    fn signed(&self, traces: &Digest, rows: &Digest) -> Result<(), PartyError> {
        let found = self.passes.words().into_iter().zip([traces, rows]).zip(self.passes.signed());
        match { found }.find(|((_, own), signed)| *own != signed) {
            Some(((what, own), signed)) => Err(PartyError::Refused(format!(
                "this machine's {what} not the one that the receipt commits ({}): answer with the engine that signed it",
                own.not(&signed)
            ))),
            None => Ok(()),
        }
    }

    /// The trace, if the terms leave this machine the time for it. `begin`: when the preparation began; `read`: what its reading of
    /// the samples took.
    fn computed(&mut self, begin: Instant, read: Duration) -> Result<Digests, PartyError> {
        let (mut trace, mut longest) = (Digests::default(), Duration::ZERO);
        let mut before = Instant::now();
        let mut take = |nodes: Vec<TracedNode>, rows: Vec<Digest>| {
            longest = longest.max(before.elapsed());
            before = Instant::now();
            trace.windows.push(nodes.iter().map(|node| node.digest).collect());
            trace.rows.extend(rows);
        };
        self.passes.trace(self.engine.as_mut(), tamper(&mut self.change), &mut take)?;
        agreement::leaves_time(&self.terms, [read, longest, begin.elapsed()])?;
        Ok(trace)
    }

    /// The bytes that a party of a game with these terms needs at once, the parameters included: the tensors that live while it
    /// computes a pass, its digests of the trace, two copies of a sample, and the outputs of a disputed operator with what it reads.
    ///
    /// # Errors
    /// If the terms are malformed, or about a run.
    pub fn memory(terms: &Terms) -> Result<u64, PartyError> {
        let rules = Rules::new(terms)?;
        let [passes, rows] = [Tree::Passes, Tree::Rows].map(|tree| rules.shape(tree).0);
        // No window is longer than the first, and all samples have one graph.
        let graph = match receipt_of(terms)? {
            AnyReceipt::Answer(receipt) => Pass::of(&receipt, &terms.job, 0)?.graph,
            AnyReceipt::Predictions(receipt) => Pass::of_sample(&receipt, &terms.job, 0)?.graph,
        };
        let bytes = |id: TensorId| graph.tensor(id).bytes() as u64;
        // The disputed sample is held twice, and labels are small.
        let read = graph.inputs.iter().filter(|port| port.name.starts_with("batch/"));
        let samples = read.map(|port| bytes(port.tensor)).fold(0, u64::saturating_add).saturating_mul(2);
        let nodes = graph.nodes.iter();
        let tiles: u64 = nodes.clone().map(|node| TracedNode::bytes(graph.tensor(node.output))).sum();
        let disputed = nodes.map(|node| {
            let reads = node.primitive.inputs().into_iter().map(bytes);
            reads.fold(bytes(node.output), u64::saturating_add)
        });
        let digests = passes.saturating_mul(graph.nodes.len() as u64 * 32 + 24).saturating_add(64 * rows);
        let held = disputed.max().unwrap_or(0).saturating_mul(2).saturating_add(tiles);
        Ok(peak_bytes(&graph).saturating_add(digests).saturating_add(held).saturating_add(samples))
    }

    /// The signed answer to a question in its received bytes, as from [`super::Party::reply`].
    ///
    /// # Errors
    /// If the question is malformed, of another game, or not the referee's; or if the engine fails. Then there is no answer, and
    /// the question may be asked again.
    pub fn reply(&mut self, sealed_question: &[u8]) -> Result<Vec<u8>, PartyError> {
        let asked = Asked::read(sealed_question, QUESTION_MAX, &self.referee, &self.game)?;
        self.prepare()?;
        let answer = self.answer(&asked.question)?;
        Ok(sealed(&asked, answer, &self.key))
    }

    /// The root over the party's own two roots: over its passes, and over its rows, beside what the receipt says of them.
    fn root(&self) -> Digest {
        claimed_root(&merkle::root(&self.leaves), &merkle::root(&self.rows))
    }

    fn answer(&mut self, question: &Question) -> Result<Option<Answer>, PartyError> {
        match *question {
            Question::Commit => {
                let salt = salt(&self.key, &self.game);
                let commitment = commitment(&self.key.public(), &salt, &self.root());
                Ok(Some(Answer::Commit { commitment }))
            }
            Question::Reveal => {
                Ok(Some(Answer::Reveal { salt: salt(&self.key, &self.game), root: self.root() }))
            }
            Question::Children { tree, first, count } => {
                Ok(self.children(tree, first, count)?.map(|values| Answer::Children { values }))
            }
            Question::Pass { pass } => {
                let root = self.trace.node_leaves(pass as usize).map(|leaves| merkle::root(&leaves));
                Ok(root.map(|root| Answer::Root { root }))
            }
            Question::Root { subject: Subject::Row { number } } => {
                let row = self.row(number)?;
                Ok(row.map(|row| Answer::Root { root: Digest(tensor::root(&row)) }))
            }
            Question::Root { subject } => {
                let of = self.disputed(subject)?;
                Ok(of.map(|of| Answer::Root { root: Digest(trees::blake3_root(&of.slices)) }))
            }
            Question::Slice { subject: Subject::Row { number }, slice } => {
                Ok(self.row(number)?.and_then(|row| slice_of(&row, slice)))
            }
            Question::Slice { subject, slice } => {
                let of = self.disputed(subject)?;
                Ok(of.and_then(|of| slice_of(&of.output, slice)))
            }
            Question::Total { subject, element, fold } => {
                let value = self.with_operands(subject, element, |operands, node, element, tensors| {
                    element::total(&operands.pass.graph, node, element, fold, tensors).ok()
                })?;
                Ok(value.map(|value| Answer::Total { value: Base64(value) }))
            }
            Question::Evidence { subject: Subject::Row { number }, element, need: Need::All } => {
                self.logit(number, element)
            }
            Question::Evidence { subject, element, need } => self.evidence(subject, element, need),
            // These are about runs.
            Question::Logs { .. }
            | Question::Supply { .. }
            | Question::LogBlock { .. }
            | Question::Record { .. }
            | Question::Statement { .. }
            | Question::Binding { .. } => Ok(None),
        }
    }

    fn children(&mut self, tree: Tree, first: u64, count: u64) -> Result<Option<Base64>, PartyError> {
        match tree {
            Tree::Receipt => {
                let roots = [&self.leaves, &self.rows].map(|leaves| merkle::root(leaves));
                Ok(trees::rfc6962(&roots, first, count))
            }
            Tree::Rows => Ok(trees::rfc6962(&self.rows, first, count)),
            Tree::Passes => Ok(trees::rfc6962(&self.leaves, first, count)),
            Tree::Pass { pass } => {
                let leaves = self.trace.node_leaves(pass as usize);
                Ok(leaves.and_then(|leaves| trees::rfc6962(&leaves, first, count)))
            }
            Tree::Tensor { subject: Subject::Row { number } } => {
                let slices = self.row(number)?.map(|row| piece_values(&row, SLICE_BYTES));
                Ok(slices.and_then(|slices| trees::blake3(&slices, first, count)))
            }
            Tree::Tensor { subject } => {
                let of = self.disputed(subject)?;
                Ok(of.and_then(|of| trees::blake3(&of.slices, first, count)))
            }
            Tree::Terms { subject, element, fold } => {
                self.with_operands(subject, element, |operands, node, element, tensors| {
                    let graph = &operands.pass.graph;
                    let terms = element::terms(graph, node, element, fold, tensors).ok()?;
                    let end = first.checked_add(count).filter(|_| count > 0)?;
                    if end > terms {
                        return None;
                    }
                    let ranges = search::children(first, count, fold.terms_max());
                    let values = element::subtotals(graph, node, element, fold, &ranges, tensors).ok()?;
                    Some(Base64(values.concat()))
                })
            }
            Tree::Transcript | Tree::Batch { .. } | Tree::Gradients { .. } | Tree::Trace { .. } => Ok(None),
        }
    }

    /// The slices that an element of a node's output reads.
    fn evidence(&mut self, subject: Subject, element: u64, need: Need) -> Result<Option<Answer>, PartyError> {
        let inputs = self.with_operands(subject, element, |operands, node, element, tensors| {
            if need == Need::Decision {
                return None;
            }
            let touched = element::slices_read(&operands.pass.graph, node, element, need, tensors).ok()?;
            Some(operands.proven(tensors, &touched))
        })?;
        Ok(inputs.map(|inputs| Answer::Operands { inputs }))
    }

    /// The disputed node with its output and all that it reads; `None` if the receipt has no such pass or node.
    fn disputed(&mut self, subject: Subject) -> Result<Option<&Disputed>, PartyError> {
        let Subject::Pass { pass: number, node } = subject else { return Ok(None) };
        let window = number as usize;
        if self.trace.windows.get(window).is_none_or(|nodes| node >= nodes.len()) {
            return Ok(None);
        }
        if self.disputed.as_ref().is_none_or(|of| (of.number, of.node) != (number, node)) {
            self.disputed = None;
            let pass = self.passes.pass(window)?;
            let mut wanted: BTreeSet<usize> = read_by(&pass, node);
            wanted.insert(node);
            let change = tamper(&mut self.change);
            let PassTensors { mut outputs, sample } =
                self.passes.outputs(self.engine.as_mut(), window, wanted, change)?;
            let leaves = self.trace.node_leaves(window).unwrap_or_default();
            let tensors =
                self.operands((&pass, window), &leaves, (&outputs, sample.as_deref())).tensors(node);
            let Some(output) = outputs.remove(&node) else { return Ok(None) };
            let slices = piece_values(&output, SLICE_BYTES);
            let ty = pass.graph.tensor(pass.graph.nodes[node].output);
            let (found, kept) =
                (digest_from_root(ty, &trees::blake3_root(&slices)), self.trace.windows[window][node]);
            // Another output than the one that the party committed to would convict it.
            if found != kept {
                return Err(PartyError::Refused(format!(
                    "operator {node} of {} gives {} as this party's passes have it: answer with the engine that computed them",
                    pass.what,
                    found.not(&kept)
                )));
            }
            self.disputed = Some(Disputed { number, node, pass, leaves, output, tensors, sample, slices });
        }
        Ok(self.disputed.as_ref())
    }

    /// The operands of the nodes of a pass, some of whose outputs are there.
    fn operands<'a>(
        &'a self,
        (pass, number): (&'a Pass, usize),
        leaves: &'a [Digest],
        (outputs, sample): (&'a BTreeMap<usize, Vec<u8>>, Option<&'a [u8]>),
    ) -> PassOperands<'a> {
        let Weights { table, bytes, digests } = self.passes.weights();
        PassOperands {
            pass,
            digests: &self.trace.windows[number],
            leaves,
            model: (table, bytes),
            tensors: digests,
            outputs,
            sample: sample.zip(self.passes.input(number)),
        }
    }

    /// Makes the logits that have a row the disputed output, and gives the row's elements in them; `None` if the receipt has no such
    /// row.
    fn logits(&mut self, number: u32) -> Result<Option<Range<usize>>, PartyError> {
        let Some(RowPlace { pass, elements }) = self.passes.row(number)? else { return Ok(None) };
        let number = pass as u32;
        let made = |of: &Pass| match of.graph.output("logits").and_then(|id| of.origin(id)) {
            Some(Origin::Node(node)) => Some(*node),
            _ => None,
        };
        let node = match &self.disputed {
            Some(of) if of.number == number => made(&of.pass),
            _ => made(&self.passes.pass(pass)?),
        };
        let Some(node) = node else { return Ok(None) };
        Ok(self.disputed(Subject::Pass { pass: number, node })?.map(|_| elements))
    }

    /// A row, as the party commits to it.
    fn row(&mut self, number: u32) -> Result<Option<Vec<u8>>, PartyError> {
        let Some(elements) = self.logits(number)? else { return Ok(None) };
        let Some(of) = &self.disputed else { return Ok(None) };
        let logits = &of.output;
        let changed =
            tamper(&mut self.change).and_then(|of_rows| of_rows(of.number as usize, of.leaves.len(), logits));
        let rows = changed.as_deref().unwrap_or(logits);
        let [begin, end] = [elements.start, elements.end].map(|element| element * DType::F32.size());
        Ok(rows.get(begin..end).map(<[u8]>::to_vec))
    }

    /// The slice of the logits that an element of a row is in, with its proof.
    fn logit(&mut self, number: u32, element: u64) -> Result<Option<Answer>, PartyError> {
        let Some(elements) = self.logits(number)? else { return Ok(None) };
        if element >= elements.len() as u64 {
            return Ok(None);
        }
        let Some(of) = &self.disputed else { return Ok(None) };
        let id = of.pass.graph.nodes[of.node].output;
        let digest = digest_from_root(of.pass.graph.tensor(id), &trees::blake3_root(&of.slices));
        let commitment = ProvenTensor { digest, proof: merkle::prove(&of.leaves, of.node) };
        let slice = (elements.start + element as usize) * DType::F32.size() / SLICE_BYTES;
        let logits = proven(id, commitment, &of.output, vec![slice]);
        let (pass, root) = (of.number, merkle::root(&of.leaves));
        let proof = merkle::prove(&self.leaves, pass as usize);
        Ok(Some(Answer::Logits { pass, root, proof, logits }))
    }

    /// Calls `of` with the operands of an element, if there is such an element: the node, the element, and the tensors that the
    /// node reads.
    fn with_operands<T>(
        &mut self,
        subject: Subject,
        element: u64,
        of: impl FnOnce(&PassOperands, usize, usize, &BTreeMap<TensorId, Vec<u8>>) -> Option<T>,
    ) -> Result<Option<T>, PartyError> {
        self.disputed(subject)?;
        let (Some(disputed), Subject::Pass { pass: number, node }) = (&self.disputed, subject) else {
            return Ok(None);
        };
        let Disputed { pass, leaves, tensors, sample, .. } = disputed;
        if (disputed.number, disputed.node) != (number, node)
            || element >= pass.graph.tensor(pass.graph.nodes[node].output).len() as u64
        {
            return Ok(None);
        }
        // The tensors are there already.
        let none = BTreeMap::new();
        let operands = self.operands((pass, number as usize), leaves, (&none, sample.as_deref()));
        Ok(of(&operands, node, element as usize, tensors))
    }
}

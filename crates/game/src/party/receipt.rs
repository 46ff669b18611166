//! A party of a game about a receipt: answers the referee's questions from the model, by passes over the receipt's own tokens.
//!
//! The signer and its challengers answer alike: each commits to the trace that its own model gives.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::error::PartyError;
use super::kept_trace::Digests;
use super::{QUESTION_MAX, agreement, own, salt, sealed, slice_of, trees};
use tiebreak_audit::answers::{PassOperands, proven, read_by};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::inference::windows;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{Answering, Origin, Pass};
use tiebreak_dispute::game::element;
use tiebreak_dispute::game::message::{Answer, Asked, Need, Question, Subject, Tree, commitment};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::search;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::verdict::ProvenTensor;
use tiebreak_engine::Engine;
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_record::commit::answer_trace::{claimed_root, window_leaf};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};
use tiebreak_record::commit::state::{StateRoots, tensor_digests};
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES, digest_from_root, piece_values};
use tiebreak_record::commit::trace::TracedNode;
use tiebreak_record::commit::{merkle, tensor};
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::inference::traced::{Change, Tamper, row_leaves};
use tiebreak_run::run::disk::Disk;

/// A model with its weights.
struct Decoder {
    model: Answering,
    table: Vec<StateTensor>,
    weights: Vec<Vec<u8>>,
    /// The digests of the weights.
    digests: Vec<Digest>,
    /// All ids are candidates: no token is chosen here.
    known: Vec<bool>,
}

impl Decoder {
    /// The model of the terms with these weights, in the model's order, which have to be the receipt's.
    fn of(terms: &Terms, receipt: &Receipt, weights: Vec<Vec<u8>>) -> Result<Decoder, PartyError> {
        let model = Answering::of(&terms.job, receipt.model)?;
        let parameters = model.writer().parameters();
        let table: Vec<StateTensor> = parameters
            .iter()
            .map(|p| StateTensor { name: format!("param/{}", p.name), shape: p.shape.clone() })
            .collect();
        let pass = Pass::of(receipt, &terms.job, 0)?;
        let logits = pass.graph.output("logits").map(|id| pass.graph.tensor(id));
        let classes = logits.and_then(|ty| ty.shape.last()).map_or(0, |classes| *classes as usize);
        let lengths = table.iter().map(|tensor| tensor.ty().bytes());
        if !lengths.eq(weights.iter().map(Vec::len)) {
            let (found, own) = (weights.len(), table.len());
            return Err(PartyError::Refused(format!(
                "{found} tensors are given, and the receipt's model has {own}, or others: give the model that the receipt is of"
            )));
        }
        let digests = tensor_digests(&table, &weights);
        let root = StateRoots::of(&table, &digests).0[0];
        if root != receipt.parameters {
            return Err(PartyError::Refused(format!(
                "the root over the parameters is {}, which the receipt has: give the model that the receipt is of",
                root.not(&receipt.parameters)
            )));
        }
        Ok(Decoder { model, table, weights, digests, known: vec![true; classes] })
    }

    fn answerer(&self) -> Answerer<'_> {
        Answerer {
            model: self.model.writer(),
            parameters: (&self.table, &self.weights),
            known: &self.known,
            ends: &[],
        }
    }
}

/// The receipt of terms.
fn receipt_of(terms: &Terms) -> Result<Receipt, PartyError> {
    let refused = |why: &str| PartyError::Refused(why.into());
    let none = || refused("the terms are about a run, and a party of a game about a receipt was started");
    let disputed = terms.receipt.as_ref().ok_or_else(none)?;
    match salted_receipt::read(&disputed.text, disputed.opening.as_deref())? {
        (AnyReceipt::Answer(receipt), _) => Ok(receipt),
        (AnyReceipt::Predictions(_), _) => Err(refused("the receipt of the terms is of predictions")),
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
    /// The values of the slices of the node's output.
    slices: Vec<Hash>,
}

/// A party of a game about a receipt.
pub struct ReceiptParty {
    terms: Terms,
    game: Digest,
    referee: PublicKey,
    key: PrivateKey,
    receipt: Receipt,
    decoder: Decoder,
    engine: Box<dyn Engine>,
    trace: Digests,
    /// The leaves of the windows.
    leaves: Vec<Digest>,
    /// The file that keeps the trace.
    kept: Option<(PathBuf, Disk)>,
    /// The leaves of the tokens with their rows.
    rows: Vec<Digest>,
    disputed: Option<Disputed>,
    /// The changes of a signer who was not honest.
    change: Option<Box<Change<'static>>>,
}

impl ReceiptParty {
    /// The party of a game about a receipt that has this key and these parameters, in the model's order. The trace is computed on
    /// `engine` at once.
    ///
    /// # Errors
    /// If the terms are malformed, name no party with this key, leave no time, or are about a run. Also if the parameters are not
    /// the receipt's, or as [`ReceiptParty::prepare`].
    pub fn open(
        terms: Terms,
        weights: Vec<Vec<u8>>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
    ) -> Result<ReceiptParty, PartyError> {
        let mut party = ReceiptParty::open_as(terms, weights, key, engine, None)?;
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
        weights: Vec<Vec<u8>>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        file: (PathBuf, Disk),
    ) -> Result<ReceiptParty, PartyError> {
        let party = ReceiptParty::open_as(terms, weights, key, engine, None)?;
        Ok(ReceiptParty { kept: Some(file), ..party })
    }

    /// [`ReceiptParty::open`] for a signer who changed outputs of operators, and answers by them.
    ///
    /// # Errors
    /// As [`ReceiptParty::open`].
    #[cfg(feature = "testing")]
    pub fn open_cheating(
        terms: Terms,
        weights: Vec<Vec<u8>>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        change: Box<Change<'static>>,
    ) -> Result<ReceiptParty, PartyError> {
        let mut party = ReceiptParty::open_as(terms, weights, key, engine, Some(change))?;
        party.prepare()?;
        Ok(party)
    }

    fn open_as(
        terms: Terms,
        weights: Vec<Vec<u8>>,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        change: Option<Box<Change<'static>>>,
    ) -> Result<ReceiptParty, PartyError> {
        let (_, referee) = terms.keys()?;
        agreement::names(&terms, &key.public())?;
        Rules::new(&terms)?;
        let receipt = receipt_of(&terms)?;
        let decoder = Decoder::of(&terms, &receipt, weights)?;
        let game = terms.game();
        let (trace, kept, disputed) = (Digests::default(), None, None);
        let (leaves, rows) = (Vec::new(), Vec::new());
        Ok(ReceiptParty {
            terms,
            game,
            referee,
            key,
            receipt,
            decoder,
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
    /// If the terms leave less time for replays than this machine needs, if the engine fails, if the file that is to keep the trace is
    /// something else, or if the party signed the
    /// receipt and its model gives another trace.
    pub fn prepare(&mut self) -> Result<(), PartyError> {
        if !self.leaves.is_empty() {
            return Ok(());
        }
        let secret = own(&self.key, &self.game);
        let kept = match &self.kept {
            Some((path, _)) => {
                let graphs = self.decoder.answerer().window_graphs(&self.receipt);
                let nodes = graphs.iter().map(|graph| graph.nodes.len());
                Digests::kept(path, &secret, self.receipt.answer.len(), nodes)?
            }
            None => None,
        };
        let is_new = kept.is_none();
        let trace = match kept {
            Some(kept) => kept,
            None => self.computed()?,
        };
        let answerer = self.decoder.answerer();
        let windows = answerer.windows(&self.receipt).into_iter().zip(&trace.windows).enumerate();
        let leaves: Vec<Digest> = windows
            .filter_map(|(number, ([first, tokens], _))| {
                Some(window_leaf(first, tokens, &merkle::root(&trace.node_leaves(number)?)))
            })
            .collect();
        let rows = row_leaves(&self.receipt, &trace.rows);
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
        let signed = [
            ("trace of the answer is", traces, self.receipt.traces.unwrap_or(*traces)),
            ("root over the answer's rows is", rows, self.receipt.root),
        ];
        match signed.into_iter().find(|(_, own, signed)| *own != signed) {
            Some((what, own, signed)) => Err(PartyError::Refused(format!(
                "this machine's {what} not the one that the receipt commits ({}): answer with the engine that signed it",
                own.not(&signed)
            ))),
            None => Ok(()),
        }
    }

    /// The trace, if the terms leave this machine the time for it.
    fn computed(&mut self) -> Result<Digests, PartyError> {
        let (mut trace, mut longest) = (Digests::default(), Duration::ZERO);
        let (begin, mut before) = (Instant::now(), Instant::now());
        let mut take = |nodes: Vec<TracedNode>, rows: Vec<Digest>| {
            longest = longest.max(before.elapsed());
            before = Instant::now();
            trace.windows.push(nodes.iter().map(|node| node.digest).collect());
            trace.rows.extend(rows);
        };
        let (answerer, change) = (self.decoder.answerer(), tamper(&mut self.change));
        answerer.trace_windows(self.engine.as_mut(), &self.receipt, change, &mut take)?;
        agreement::leaves_time(&self.terms, longest, begin.elapsed())?;
        Ok(trace)
    }

    /// The bytes that a party of a game with these terms needs at once, the parameters included: the tensors that live while it
    /// computes a pass, its digests of the trace, and the outputs of a disputed operator with what the operator reads.
    ///
    /// # Errors
    /// If the terms are malformed, or about a run.
    pub fn memory(terms: &Terms) -> Result<u64, PartyError> {
        let passes = Rules::new(terms)?.shape(Tree::Passes).0;
        let receipt = receipt_of(terms)?;
        // No window is longer than the first.
        let graph = Pass::of(&receipt, &terms.job, 0)?.graph;
        let bytes = |id: TensorId| graph.tensor(id).bytes() as u64;
        let nodes = graph.nodes.iter();
        let tiles: u64 = nodes.clone().map(|node| TracedNode::bytes(graph.tensor(node.output))).sum();
        let disputed = nodes.map(|node| {
            let reads = node.primitive.inputs().into_iter().map(bytes);
            reads.fold(bytes(node.output), u64::saturating_add)
        });
        let digests =
            passes.saturating_mul(graph.nodes.len() as u64 * 32 + 24) + 64 * receipt.answer.len() as u64;
        let held = disputed.max().unwrap_or(0).saturating_mul(2).saturating_add(tiles);
        Ok(peak_bytes(&graph).saturating_add(digests).saturating_add(held))
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

    /// The root over the party's own two roots: over its passes, and over the receipt's tokens with its own rows.
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

    /// The disputed node with its output and all that it reads; `None` if the answer has no such pass or node.
    fn disputed(&mut self, subject: Subject) -> Result<Option<&Disputed>, PartyError> {
        let Subject::Pass { pass: number, node } = subject else { return Ok(None) };
        let window = number as usize;
        if self.trace.windows.get(window).is_none_or(|nodes| node >= nodes.len()) {
            return Ok(None);
        }
        if self.disputed.as_ref().is_none_or(|of| (of.number, of.node) != (number, node)) {
            self.disputed = None;
            let pass = Pass::of(&self.receipt, &self.terms.job, window)?;
            let mut wanted: BTreeSet<usize> = read_by(&pass, node);
            wanted.insert(node);
            let change = tamper(&mut self.change);
            let answerer = self.decoder.answerer();
            let engine = self.engine.as_mut();
            let mut outputs = answerer.tampered_outputs(engine, &self.receipt, window, wanted, change)?;
            let leaves = self.trace.node_leaves(window).unwrap_or_default();
            let tensors = self.operands((&pass, window), &leaves, &outputs).tensors(node);
            let Some(output) = outputs.remove(&node) else { return Ok(None) };
            let slices = piece_values(&output, SLICE_BYTES);
            let ty = pass.graph.tensor(pass.graph.nodes[node].output);
            let (found, kept) =
                (digest_from_root(ty, &trees::blake3_root(&slices)), self.trace.windows[window][node]);
            // Another output than the one that the party committed to would convict it.
            if found != kept {
                return Err(PartyError::Refused(format!(
                    "operator {node} of window {window} gives {} as this party's passes have it: answer with the engine that computed them",
                    found.not(&kept)
                )));
            }
            self.disputed = Some(Disputed { number, node, pass, leaves, output, tensors, slices });
        }
        Ok(self.disputed.as_ref())
    }

    /// The operands of the nodes of a window, some of whose outputs are there.
    fn operands<'a>(
        &'a self,
        (pass, window): (&'a Pass, usize),
        leaves: &'a [Digest],
        outputs: &'a BTreeMap<usize, Vec<u8>>,
    ) -> PassOperands<'a> {
        PassOperands {
            pass,
            digests: &self.trace.windows[window],
            leaves,
            model: (&self.decoder.table, &self.decoder.weights),
            tensors: &self.decoder.digests,
            outputs,
            sample: None,
        }
    }

    /// Makes the logits that have the row of a token the disputed output, and gives the first element of the row in them; `None` if
    /// the answer has no such token.
    fn logits(&mut self, number: u32) -> Result<Option<usize>, PartyError> {
        let (prompt, answer) = (self.receipt.prompt.len(), self.receipt.answer.len());
        let windows = windows(prompt, 0..answer, self.decoder.model.writer().context());
        let holds = |(_, numbers): &(usize, Range<usize>)| numbers.contains(&(number as usize));
        let Some(window) = windows.iter().position(holds) else { return Ok(None) };
        let pass = Pass::of(&self.receipt, &self.terms.job, window)?;
        let made = pass.graph.output("logits").and_then(|id| pass.origin(id));
        let Some(Origin::Node(node)) = made else { return Ok(None) };
        let first = pass.row_place(&self.receipt, number as usize) * self.decoder.known.len();
        let subject = Subject::Pass { pass: window as u32, node: *node };
        Ok(self.disputed(subject)?.map(|_| first))
    }

    /// The row of a token, as the party commits to it.
    fn row(&mut self, number: u32) -> Result<Option<Vec<u8>>, PartyError> {
        let len = self.decoder.known.len() * DType::F32.size();
        let Some(first) = self.logits(number)? else { return Ok(None) };
        let Some(of) = &self.disputed else { return Ok(None) };
        let logits = &of.output;
        let changed =
            tamper(&mut self.change).and_then(|of_rows| of_rows(of.number as usize, of.leaves.len(), logits));
        let rows = changed.as_deref().unwrap_or(logits);
        Ok(rows.get(first * DType::F32.size()..).and_then(|rest| rest.get(..len)).map(<[u8]>::to_vec))
    }

    /// The slice of the logits that an element of a row is in, with its proof.
    fn logit(&mut self, number: u32, element: u64) -> Result<Option<Answer>, PartyError> {
        if element >= self.decoder.known.len() as u64 {
            return Ok(None);
        }
        let Some(first) = self.logits(number)? else { return Ok(None) };
        let Some(of) = &self.disputed else { return Ok(None) };
        let id = of.pass.graph.nodes[of.node].output;
        let digest = digest_from_root(of.pass.graph.tensor(id), &trees::blake3_root(&of.slices));
        let commitment = ProvenTensor { digest, proof: merkle::prove(&of.leaves, of.node) };
        let slice = (first + element as usize) * DType::F32.size() / SLICE_BYTES;
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
        let Disputed { pass, leaves, tensors, .. } = disputed;
        if (disputed.number, disputed.node) != (number, node)
            || element >= pass.graph.tensor(pass.graph.nodes[node].output).len() as u64
        {
            return Ok(None);
        }
        // The tensors are there already.
        let none = BTreeMap::new();
        let operands = self.operands((pass, number as usize), leaves, &none);
        Ok(of(&operands, node, element as usize, tensors))
    }
}

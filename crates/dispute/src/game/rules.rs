//! The rules that the referee derives from the terms before it asks anything: program, sizes and names of everything that can be
//! disputed.

use super::message::{Subject, Tree};
use super::receipt_rules::ReceiptRules;
use super::run_rules::RunRules;
use super::search::{self, Join};
use super::terms::{Terms, wrong};
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::phase::Phase;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::tensor::{self, Hash, SLICE_BYTES, piece_count};
use tiebreak_record::commit::{Malformed, table};

/// A check that a referee omits, so that tests show that they would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The check that the values of a level give the value above.
    Levels,
    /// The check that a slice is the committed one.
    Slices,
    /// The decision which element is wrong; without it, always the first party's.
    Blame,
}

/// The subject of a dispute.
enum About {
    Run(Box<RunRules>),
    Receipt(Box<ReceiptRules>),
}

/// What is disputed, and the parties that dispute it.
pub struct Rules {
    /// The game's name.
    pub game: Digest,
    /// The parties' keys.
    pub parties: Vec<PublicKey>,
    /// The referee's key.
    pub referee: PublicKey,
    /// A run, or a receipt.
    about: About,
    /// The omitted check; only tests set it.
    #[cfg(feature = "faults")]
    fault: Option<Fault>,
}

impl Rules {
    /// The rules of terms.
    ///
    /// # Errors
    /// If the terms contradict themselves.
    pub fn new(terms: &Terms) -> Result<Rules, Malformed> {
        let (parties, referee) = terms.keys()?;
        let about = match (&terms.computation, &terms.receipt) {
            (Some(computation), None) => About::Run(Box::new(RunRules::new(terms, computation.clone())?)),
            (None, Some(receipt)) => {
                About::Receipt(Box::new(ReceiptRules::new(terms, receipt, parties.first())?))
            }
            (Some(_), Some(_)) => return Err(wrong("they are about a computation and about a receipt")),
            (None, None) => return Err(wrong("they are about no computation, and about no receipt")),
        };
        Ok(Rules {
            game: terms.game(),
            parties,
            referee,
            about,
            #[cfg(feature = "faults")]
            fault: None,
        })
    }

    /// Checks that the initial state is the one that job and terms give: from a seed, or from the earlier run that a trainer
    /// claims to continue. The time grows with the size of the state; one piece of a tensor is in memory at a time. For files of
    /// weights, and for an earlier run in the exact profile, only parties can tell. A receipt has no initial state.
    ///
    /// # Errors
    /// If the initial state is another one.
    pub fn check_initial(&self) -> Result<(), Malformed> {
        self.check_initial_watched(&mut |_, _| {})
    }

    /// Checks that the initial state is the one that job and terms give: from a seed, or from the earlier run that a trainer
    /// claims to continue. `watch`: bytes of the state that were made, and their total.
    ///
    /// # Errors
    /// As [`Rules::check_initial`].
    pub fn check_initial_watched(&self, watch: &mut dyn FnMut(u64, u64)) -> Result<(), Malformed> {
        self.run().map_or(Ok(()), |run| run.check_initial(watch))
    }

    /// Omits a check.
    #[cfg(feature = "faults")]
    pub fn plant(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// True if a check is made.
    #[cfg(feature = "faults")]
    pub(super) fn checks(&self, what: Fault) -> bool {
        self.fault != Some(what)
    }

    /// True: every check is made.
    #[cfg(not(feature = "faults"))]
    pub(super) fn checks(&self, _: Fault) -> bool {
        true
    }

    /// The computation that all parties claim to have carried out; `None` in a game about a receipt.
    pub fn computation(&self) -> Option<&Digest> {
        self.run().map(RunRules::computation)
    }

    /// The run that is disputed; `None` in a game about a receipt.
    #[doc(hidden)] // for the layers above
    pub fn run(&self) -> Option<&RunRules> {
        match &self.about {
            About::Run(run) => Some(run),
            About::Receipt(_) => None,
        }
    }

    pub(super) fn run_mut(&mut self) -> Option<&mut RunRules> {
        match &mut self.about {
            About::Run(run) => Some(run),
            About::Receipt(_) => None,
        }
    }

    /// The receipt that is disputed; `None` in a game about a run.
    pub(super) fn receipt(&self) -> Option<&ReceiptRules> {
        match &self.about {
            About::Run(_) => None,
            About::Receipt(receipt) => Some(receipt),
        }
    }

    /// The root over traces of the disputed receipt, which its signer signed; `None` in a game about a run.
    pub fn traces(&self) -> Option<Digest> {
        self.receipt().map(|receipt| receipt.traces)
    }

    /// True if the disputed receipt is of predictions: its passes are of samples, not of the windows of an answer.
    #[doc(hidden)] // for the layers above
    pub fn is_of_predictions(&self) -> bool {
        self.receipt().is_some_and(ReceiptRules::is_of_predictions)
    }

    /// A pass of the disputed receipt in words.
    #[doc(hidden)] // for the layers above
    pub fn pass_in_words(&self, pass: u32) -> String {
        let of = self.receipt().and_then(|receipt| receipt.pass(pass));
        of.map_or_else(|| "no pass".into(), |pass| pass.what.clone())
    }

    /// True if products are rounded by a log, so that the first party is the trainer.
    pub fn is_logged(&self) -> bool {
        self.run().is_some_and(RunRules::is_logged)
    }

    /// The tree over everything that a party commits to, and in words what is in it.
    pub(super) fn whole(&self) -> (Tree, String) {
        match &self.about {
            About::Run(_) => (Tree::Transcript, format!("{} records", self.shape(Tree::Transcript).0)),
            About::Receipt(receipt) => (Tree::Receipt, receipt.whole()),
        }
    }

    /// The graph that has the node of a subject, and the node; `None` for the tensors of a batch, and if there is no such node.
    pub(super) fn node(&self, subject: Subject) -> Option<(&Graph, usize)> {
        let (graph, node) = match subject {
            Subject::Batch { .. } | Subject::Row { .. } => return None,
            Subject::Node { phase, node, .. } => (self.run()?.graph(Phase::from(phase)), node),
            Subject::Pass { pass, node } => (&self.receipt()?.pass(pass)?.graph, node),
        };
        (node < graph.nodes.len()).then_some((graph, node))
    }

    /// The number of leaves of a tree, the number of leaves that one answer carries, and the join of its nodes.
    pub fn shape(&self, tree: Tree) -> (u64, u64, Join) {
        match tree {
            Tree::Tensor { subject } => {
                let bytes = self.tensor(subject).map_or(0, |(_, ty)| ty.bytes());
                (piece_count(bytes, SLICE_BYTES) as u64, 1, Join::Blake3)
            }
            // The frame gives the number of terms.
            Tree::Terms { fold, .. } => (0, fold.terms_max(), Join::Terms(fold)),
            _ => {
                let leaves = match &self.about {
                    About::Run(run) => run.leaves(tree),
                    About::Receipt(receipt) => receipt.leaves(tree),
                };
                (leaves.unwrap_or(0), 1, Join::Rfc6962)
            }
        }
    }

    /// The object that the leaf of a tree of tensors commits to.
    pub fn leaf(&self, tree: Tree, index: u64) -> Option<Subject> {
        match (&self.about, tree) {
            (About::Run(run), _) => run.leaf(tree, index),
            (About::Receipt(_), Tree::Pass { pass }) => Some(Subject::Pass { pass, node: index as usize }),
            (About::Receipt(_), Tree::Rows) => Some(Subject::Row { number: index as u32 }),
            (About::Receipt(_), _) => None,
        }
    }

    /// The name and type of a tensor; `None` if there is no such tensor.
    pub fn tensor(&self, subject: Subject) -> Option<(String, TensorType)> {
        match &self.about {
            About::Run(run) => run.tensor(subject),
            About::Receipt(receipt) => receipt.tensor(subject),
        }
    }

    /// A subject in words.
    pub fn describe(&self, subject: Subject) -> String {
        let name = self.tensor(subject).map_or_else(|| "no tensor".to_string(), |(name, _)| name);
        let of = match subject {
            Subject::Batch { step, .. } => return format!("{name} of step {step}'s batch"),
            Subject::Row { number } => {
                let of = self.receipt().map(|receipt| receipt.row_in_words(number));
                return of.unwrap_or_else(|| "no row".into());
            }
            Subject::Node { step, .. } => format!("step {step}"),
            Subject::Pass { pass, .. } => self.pass_in_words(pass),
        };
        match self.node(subject) {
            Some((graph, node)) => {
                let node = &graph.nodes[node];
                format!("{} ({}), {name} of {of}", node.operator, node.primitive.name())
            }
            None => format!("{name} of {of}"),
        }
    }

    /// The Merkle leaf of a tensor with this BLAKE3 root.
    pub fn tensor_leaf(&self, subject: Subject, root: &Hash) -> Option<Digest> {
        let (name, ty) = self.tensor(subject)?;
        let digest = tensor::digest_from_root(&ty, root);
        match subject {
            Subject::Row { number } => self.receipt()?.row_leaf(number, &digest),
            _ => Some(table::leaf(&name, &digest)),
        }
    }

    /// The most bytes of a block of a rounding log with its proof, as text; 0 in the exact profile.
    pub fn log_bytes(&self) -> u64 {
        self.run().map_or(0, RunRules::log_bytes)
    }

    /// The most bytes of the evidence about an element of a batch; 0 for a receipt.
    pub(crate) fn samples_bytes(&self) -> u64 {
        self.run().map_or(0, RunRules::samples_bytes)
    }

    /// The most bytes of the value of a subtree over terms.
    pub(crate) fn subtotal_bytes(&self) -> u64 {
        self.run().map_or(16, RunRules::subtotal_bytes)
    }

    /// The most bytes of an answer that lists the outputs that a field is made of, with their proof; 0 for a receipt.
    pub(crate) fn binding_bytes(&self) -> u64 {
        self.run().map_or(0, RunRules::binding_bytes)
    }

    /// The most operators of a step or of a pass.
    pub(crate) fn operators_most(&self) -> u64 {
        match &self.about {
            About::Run(run) => run.operators(),
            About::Receipt(receipt) => receipt.most.operators,
        }
    }

    /// The most terms of a fold of any element.
    pub(crate) fn terms_most(&self) -> u64 {
        match &self.about {
            About::Run(run) => run.terms_most(),
            About::Receipt(receipt) => receipt.most.elements,
        }
    }

    /// The most slices of any tensor that can be disputed.
    pub(crate) fn slices_most(&self) -> u64 {
        match &self.about {
            About::Run(run) => run.slices_most(),
            About::Receipt(receipt) => receipt.most.slices,
        }
    }

    /// The most questions about a tree.
    pub fn depth(&self, tree: Tree) -> u32 {
        let (leaves, leaf, _) = self.shape(tree);
        search::depth(leaves, leaf)
    }
}

/// The digest of a tensor of one element, from its word.
pub(super) fn scalar_digest(word: u32) -> Digest {
    let ty = TensorType { dtype: tiebreak_contract::arith::DType::F32, shape: vec![1] };
    tensor::digest(&ty, &word.to_le_bytes())
}

//! A party of the dispute game: answers the referee's questions from a run's records and data, and from replays of the disputed
//! step.
//!
//! Every answer follows from terms, run and question alone, so that a party that was stopped gives the same bytes again.

mod agreement;
mod binding;
mod challenger;
mod error;
mod evidence;
mod gather;
mod kept_trace;
mod passes;
mod receipt;
mod replay;
mod samples;
mod table;
mod trees;
mod windows;

pub use challenger::challenger;
pub use error::PartyError;
pub use gather::{Gatherer, Gathering};
pub use receipt::{ReceiptParty, Replayed};
use replay::Replays;
pub use table::play;
use tiebreak_dispute::game::message::{
    Answer, Answered, Asked, LogPlace, Question, SUPPLY_SLICES, Sealed, Statement, Subject, Supplied, Tree,
    commitment,
};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_engine::Engine;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::proven::{Base64, ProvenRecord};
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES, piece_range, piece_values};
use tiebreak_record::rounding::log::{BlockPlace, elements, parts, prove, prove_slices, slice_values};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{names, transcript};
use tiebreak_train::conduct::{Conduct, Honest};

/// The most bytes of a question.
pub(crate) const QUESTION_MAX: u64 = 1 << 14;

/// A party of a game.
pub struct Party {
    terms: Terms,
    game: Digest,
    referee: PublicKey,
    key: PrivateKey,
    replays: Replays,
    /// The slices of the last tensor that a question was about.
    slices: Option<(Subject, Vec<Hash>)>,
    /// The last rounding log that a question was about.
    log: Option<KeptLog>,
}

/// The rounding log of a step, and the values of its slices.
struct KeptLog {
    step: u32,
    bytes: Vec<u8>,
    values: Vec<Hash>,
}

impl Party {
    /// The party of a game that has this run and key. Replays run on `engine`.
    ///
    /// # Errors
    /// If the terms are malformed, name no party with this key, leave no time, or have a field that the run does not give (the
    /// error names it). Also if the run has no final record yet, or if the party is the trainer of a logged run, and the terms
    /// dispute another root.
    pub fn open(
        terms: Terms,
        run: Run,
        key: PrivateKey,
        engine: Box<dyn Engine>,
    ) -> Result<Party, PartyError> {
        let party = Party::open_as(terms, run, key, engine, Box::new(Honest))?;
        let trainer = party.terms.parties.first() == Some(&party.key.public().to_text());
        match &party.terms.claim {
            Some(claim) if trainer && claim.root != party.root() => Err(PartyError::Refused(format!(
                "the terms dispute a run with root {}, and {} has root {}: give the run that is disputed",
                claim.root,
                party.replays.run.layout.root.display(),
                party.root()
            ))),
            _ => Ok(party),
        }
    }

    /// [`Party::open`] for a trainer who was not honest: replays cheat as the run did, so that the party answers by its own
    /// records.
    ///
    /// # Errors
    /// As [`Party::open`].
    #[cfg(feature = "testing")]
    #[doc(hidden)] // for the layers above
    pub fn open_cheating(
        terms: Terms,
        run: Run,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        cheat: tiebreak_train::cheat::Cheat,
    ) -> Result<Party, PartyError> {
        Party::open_as(terms, run, key, engine, Box::new(cheat))
    }

    /// [`Party::open`] for a trainer of this conduct, which replays follow.
    ///
    /// # Errors
    /// As [`Party::open`].
    #[doc(hidden)] // for the layers above
    pub fn open_as(
        terms: Terms,
        run: Run,
        key: PrivateKey,
        engine: Box<dyn Engine>,
        conduct: Box<dyn Conduct>,
    ) -> Result<Party, PartyError> {
        let (_, referee) = terms.keys()?;
        agreement::names(&terms, &key.public())?;
        agreement::check(&terms, &run)?;
        let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
        let complete = transcript.records.len() == run.job().steps as usize + 2;
        if !complete || transcript.records.iter().any(|record| *record.computation() != run.computation.id) {
            let why = format!(
                "{} has not the records of all {} steps of its computation, but {} records: train it to its end first",
                run.layout.root.display(),
                run.job().steps,
                transcript.records.len()
            );
            return Err(PartyError::Refused(why));
        }
        let replays = Replays::new(run, transcript, engine, conduct);
        let game = terms.game();
        Ok(Party { terms, game, referee, key, replays, slices: None, log: None })
    }

    /// The terms of the game.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The signed answer to a question in its received bytes, with its signature. The party declines a question that its run has
    /// no answer to.
    ///
    /// # Errors
    /// If the question is malformed, of another game, or not the referee's. Also if a file of the run cannot be read, the engine
    /// fails, or the replay of a step gives another result than its record. Then there is no answer, and the question may be
    /// asked again.
    pub fn reply(&mut self, sealed_question: &[u8]) -> Result<Vec<u8>, PartyError> {
        let asked = Asked::read(sealed_question, QUESTION_MAX, &self.referee, &self.game)?;
        let answer = self.answer(&asked.question)?;
        Ok(sealed(&asked, answer, &self.key))
    }

    fn answer(&mut self, question: &Question) -> Result<Option<Answer>, PartyError> {
        match *question {
            Question::Commit => {
                let salt = salt(&self.key, &self.game);
                let commitment = commitment(&self.key.public(), &salt, &self.root());
                Ok(Some(Answer::Commit { commitment }))
            }
            // A party with a run of the logged profile has its logs.
            Question::Logs { .. } => Ok(Some(Answer::Logs { lacks: None })),
            Question::Supply { place } => self.supply(place),
            Question::LogBlock { step, part, block } => self.log_block(step, part as usize, block),
            Question::Reveal => {
                Ok(Some(Answer::Reveal { salt: salt(&self.key, &self.game), root: self.root() }))
            }
            Question::Children { tree, first, count } => {
                Ok(self.children(tree, first, count)?.map(|values| Answer::Children { values }))
            }
            Question::Record { index } => Ok(self.record(index)),
            Question::Statement { step } => self.statement(step),
            // A run has no passes of a receipt.
            Question::Pass { .. } => Ok(None),
            Question::Root { subject } => {
                let slices = self.slices(subject)?;
                Ok(slices.map(|slices| Answer::Root { root: Digest(trees::blake3_root(slices)) }))
            }
            Question::Slice { subject, slice } => self.slice(subject, slice),
            Question::Total { subject, element, fold } => {
                let value = evidence::total(&mut self.replays, subject, element, fold)?;
                Ok(value.map(|value| Answer::Total { value }))
            }
            Question::Evidence { subject, element, need } => {
                evidence::answer(&mut self.replays, subject, element, need)
            }
            Question::Binding { step, field } => match self.replays.record(step) {
                Some(_) => binding::answer(&mut self.replays, step, field),
                None => Ok(None),
            },
        }
    }

    fn root(&self) -> Digest {
        merkle::root(&self.replays.transcript.leaves)
    }

    fn record(&self, index: u64) -> Option<Answer> {
        let index = usize::try_from(index).ok()?;
        let record = self.proven(index)?.record;
        let before = match index.checked_sub(1) {
            None => None,
            Some(before) => Some(self.proven(before)?),
        };
        Some(Answer::Record { record, before })
    }

    fn proven(&self, index: usize) -> Option<ProvenRecord> {
        let transcript = &self.replays.transcript;
        let record = Base64(transcript.records.get(index)?.encode());
        Some(ProvenRecord { index: index as u64, record, proof: merkle::prove(&transcript.leaves, index) })
    }

    /// A step's log, which is kept in memory for further questions about its parts.
    fn log(&mut self, step: u32) -> Result<Option<&KeptLog>, PartyError> {
        if self.replays.record(step).is_none_or(|record| record.log.is_none()) {
            return Ok(None);
        }
        if self.log.as_ref().is_none_or(|kept| kept.step != step) {
            let bytes = self.replays.run.log_bytes(step)?;
            let values = slice_values(&bytes);
            self.log = Some(KeptLog { step, bytes, values });
        }
        Ok(self.log.as_ref())
    }

    /// The part of a log that a challenger lacks.
    fn supply(&mut self, place: LogPlace) -> Result<Option<Answer>, PartyError> {
        let proof = self.log(place.step)?.and_then(|KeptLog { bytes, values, .. }| {
            prove_slices(bytes, values, usize::try_from(place.first).ok()?, SUPPLY_SLICES as usize)
        });
        Ok(proof.and_then(|proof| {
            Some(Answer::Supplied(Supplied { record: self.proven(place.step as usize)?, log: proof.into() }))
        }))
    }

    /// The decisions of a product that a challenger cannot read, by its own statement.
    fn log_block(&mut self, step: u32, part: usize, block: u64) -> Result<Option<Answer>, PartyError> {
        let parts = parts(self.replays.run.program());
        if part >= parts {
            return Ok(None);
        }
        let place = BlockPlace { part, elements: elements(self.replays.run.program(), part), block };
        let proof = self.log(step)?.map(|kept| prove(&kept.bytes, parts, place));
        Ok(proof.and_then(|proof| {
            Some(Answer::Supplied(Supplied { record: self.proven(step as usize)?, log: proof.into() }))
        }))
    }

    fn statement(&mut self, step: u32) -> Result<Option<Answer>, PartyError> {
        let Some(record) = self.replays.record(step).cloned() else { return Ok(None) };
        let trace = self.replays.operands(step, |operands, _| operands.trace.root(operands.run.program()))?;
        let computation = self.replays.run.computation.id;
        let record = merkle::leaf(&Record::Step { computation, step: record }.encode());
        Ok(Some(Answer::Statement(Statement::new(computation, step, record, trace, &self.key))))
    }

    fn children(&mut self, tree: Tree, first: u64, count: u64) -> Result<Option<Base64>, PartyError> {
        let leaves = match tree {
            Tree::Transcript => return Ok(trees::rfc6962(&self.replays.transcript.leaves, first, count)),
            Tree::Receipt | Tree::Rows | Tree::Passes | Tree::Pass { .. } => None,
            Tree::Tensor { subject } => {
                let slices = self.slices(subject)?;
                return Ok(slices.and_then(|slices| trees::blake3(slices, first, count)));
            }
            Tree::Terms { subject, element, fold } => {
                return evidence::terms(&mut self.replays, subject, element, fold, first, count);
            }
            Tree::Batch { step } | Tree::Trace { step } | Tree::Gradients { step }
                if self.replays.record(step).is_none() =>
            {
                None
            }
            Tree::Batch { step } => Some(self.replays.batch_leaves(step)?),
            Tree::Gradients { step } => Some(self.replays.operands(step, |operands, _| {
                binding::gradient_leaves(operands.run.program(), operands.trace)
            })?),
            Tree::Trace { step } => Some(
                self.replays.operands(step, |operands, _| operands.trace.leaves(operands.run.program()))?,
            ),
        };
        Ok(leaves.and_then(|leaves| trees::rfc6962(&leaves, first, count)))
    }

    /// The values of a tensor's slices.
    fn slices(&mut self, subject: Subject) -> Result<Option<&[Hash]>, PartyError> {
        if self.slices.as_ref().is_none_or(|(of, _)| *of != subject) {
            let values = self.replays.tensor(subject)?.map(|bytes| piece_values(bytes, SLICE_BYTES));
            self.slices = values.map(|values| (subject, values));
        }
        Ok(self.slices.as_ref().map(|(_, values)| values.as_slice()))
    }

    fn slice(&mut self, subject: Subject, slice: u64) -> Result<Option<Answer>, PartyError> {
        Ok(self.replays.tensor(subject)?.and_then(|bytes| slice_of(bytes, slice)))
    }
}

/// 32 bytes that only the key's owner can know before they are revealed: an Ed25519 signature does not follow from the public key
/// alone.
fn salt(key: &PrivateKey, game: &Digest) -> Digest {
    let signed = key.sign(format!("tiebreak 2 game salt\n{game}\n").as_bytes());
    hash("tiebreak 2 game salt", &signed)
}

/// 32 bytes that only the key's owner ever knows: the key of the hash over what a party keeps.
fn own(key: &PrivateKey, game: &Digest) -> Digest {
    let signed = key.sign(format!("tiebreak 2 game file\n{game}\n").as_bytes());
    hash("tiebreak 2 game file", &signed)
}

/// The signed answer to a question; without one the party declines.
fn sealed(asked: &Asked, answer: Option<Answer>, key: &PrivateKey) -> Vec<u8> {
    let answer = answer.unwrap_or(Answer::Decline);
    let answered = Answered { game: asked.game, turn: asked.turn, question: asked.digest(), answer };
    Sealed::new(answered, key).to_bytes()
}

/// A slice of a tensor, if the tensor has it.
fn slice_of(bytes: &[u8], slice: u64) -> Option<Answer> {
    let there = slice < bytes.len().div_ceil(SLICE_BYTES) as u64;
    let range = || piece_range(bytes.len(), SLICE_BYTES, slice as usize);
    there.then(|| Answer::Slice { bytes: Base64(bytes[range()].to_vec()) })
}

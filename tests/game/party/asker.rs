//! A referee's side of a conversation with a party, and runs for such conversations.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::common::{edit::edit, gpt_job, key, trained};
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::evidence::leaf::Slices;
use tiebreak_dispute::evidence::origin::{self, Origin};
use tiebreak_dispute::game::message::{
    Answer, Answered, Asked, Field, Need, Question, Sealed, Statement, Subject, Tree,
};
use tiebreak_dispute::game::search::{Join, children, parent};
use tiebreak_dispute::game::terms::{Claim, ClaimedRun, Clocks, INCREMENT_MIN, MOVES_MIN, Terms};
use tiebreak_dispute::verdict::ProvenInput;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{Party, PartyError};
use tiebreak_job::computation::Computation;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::state::digest_from_proof;
use tiebreak_record::commit::tensor::{
    Hash, SLICE_BYTES, digest_from_root, piece_count, piece_range, piece_value,
};
use tiebreak_record::commit::trace::{batch_leaf_name, leaf_count, leaf_name, leaf_place};
use tiebreak_record::commit::{merkle, multiproof, table};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript;

pub fn referee() -> PrivateKey {
    PrivateKey::generate("referee.example", [7; 32]).unwrap()
}

pub fn other() -> PrivateKey {
    PrivateKey::generate("other.example", [8; 32]).unwrap()
}

pub fn terms(run: &Run) -> Terms {
    let clocks = Clocks { moves: MOVES_MIN, increment: INCREMENT_MIN, replay: 1 };
    let parties = [key().public(), other().public()];
    let job = (run.job_text.clone(), run.program_file.clone());
    let terms = Terms::new(
        run.file.summary().computation(),
        job,
        &parties,
        &referee().public(),
        clocks,
        Digest([3; 32]),
    );
    if run.job().rounding.is_none() {
        return terms;
    }
    let (records, _) = transcript::read(&run.layout.transcript()).unwrap();
    let run = ClaimedRun::of(run.file.summary());
    terms.claiming(Claim { run, root: records.root(records.leaves.len()), head: None })
}

pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("party").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A small GPT of four steps, whose run commits states and gradients.
pub fn gpt(name: &str, cheat: Option<&str>) -> Run {
    let folder = folder(name);
    let job = gpt_job(&folder, "microbatch", "");
    edit(&job, &[("steps = 8", "steps = 4"), ("\nevery = 2", "\nevery = 3")]);
    trained(&job, &folder.join("run"), cheat)
}

pub static HONEST: LazyLock<Run> = LazyLock::new(|| gpt("honest", None));

/// A referee's side of a conversation with one party.
pub struct Asker {
    pub party: Party,
    pub run: Run,
    pub game: Digest,
    pub turn: u32,
    /// All questions with their answers.
    pub said: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Asker {
    pub fn new(run: &Run, cheat: Option<&str>) -> Asker {
        Asker::of(Run::open(&run.layout.root).unwrap(), cheat)
    }

    pub fn of(run: Run, cheat: Option<&str>) -> Asker {
        let (terms, cpu) = (terms(&run), Box::new(Cpu::new(1).unwrap()));
        let (game, again) = (terms.game(), Run::open(&run.layout.root).unwrap());
        let party = match cheat {
            None => Party::open(terms, run, key(), cpu),
            Some(cheat) => Party::open_cheating(terms, run, key(), cpu, cheat.parse().unwrap()),
        };
        Asker { party: party.unwrap(), run: again, game, turn: 0, said: Vec::new() }
    }

    pub fn try_ask(&mut self, question: Question) -> Result<Answer, PartyError> {
        self.turn += 1;
        let asked = Asked::new(self.game, self.turn, question);
        let digest = asked.digest();
        let sealed = Sealed::new(asked, &referee()).to_bytes();
        let reply = self.party.reply(&sealed)?;
        let said = Sealed::<Answered>::from_bytes(&reply, 1 << 24, &key().public()).unwrap().body;
        assert_eq!((said.game, said.turn, said.question), (self.game, self.turn, digest));
        self.said.push((sealed, reply));
        Ok(said.answer)
    }

    pub fn ask(&mut self, question: Question) -> Answer {
        self.try_ask(question).unwrap()
    }

    /// The values of a node's children, which give the node's value.
    pub fn opened(
        &mut self,
        tree: Tree,
        join: Join,
        (first, count, of): (u64, u64, u64),
        value: &[u8],
    ) -> Vec<Vec<u8>> {
        let answer = self.ask(Question::Children { tree, first, count });
        let Answer::Children { values } = answer else { panic!("{tree:?} {first} {count}: {answer:?}") };
        let values: Vec<Vec<u8>> = values.0.chunks(join.bytes()).map(<[u8]>::to_vec).collect();
        assert_eq!(values.len(), children(first, count, 1).len());
        assert_eq!(parent(join, count, 1, &values, count == of), value, "{tree:?} {first} {count}");
        values
    }

    /// The value of a leaf, by questions from the root down.
    pub fn leaf(&mut self, tree: Tree, join: Join, root: &[u8], of: u64, leaf: u64) -> Vec<u8> {
        let (mut first, mut count, mut value) = (0, of, root.to_vec());
        while count > 1 {
            let values = self.opened(tree, join, (first, count, of), &value);
            let below = children(first, count, 1).into_iter().zip(values);
            let mut holding = below.filter(|((first, count), _)| (*first..first + count).contains(&leaf));
            ((first, count), value) = holding.next().unwrap();
        }
        value
    }

    pub fn root(&mut self, subject: Subject) -> Hash {
        let answer = self.ask(Question::Root { subject });
        let Answer::Root { root } = answer else { panic!("{subject:?}: {answer:?}") };
        root.0
    }

    /// A slice of a tensor of `len` bytes, under its root.
    pub fn slice(&mut self, subject: Subject, len: usize, slice: usize) -> Vec<u8> {
        let (root, count) = (self.root(subject), piece_count(len, SLICE_BYTES));
        let value = self.leaf(Tree::Tensor { subject }, Join::Blake3, &root, count as u64, slice as u64);
        let Answer::Slice { bytes } = self.ask(Question::Slice { subject, slice: slice as u64 }) else {
            panic!("{subject:?} has slice {slice}")
        };
        assert_eq!(bytes.0.len(), piece_range(len, SLICE_BYTES, slice).len());
        assert_eq!(piece_value(&bytes.0, SLICE_BYTES, slice, count).to_vec(), value);
        bytes.0
    }

    /// The record of a step, after checking the one before.
    pub fn record(&mut self, index: u64, root: Digest) -> Record {
        let Answer::Record { record, before } = self.ask(Question::Record { index }) else {
            panic!("a record")
        };
        let size = u64::from(self.run.job().steps) + 2;
        let leaf = self.leaf(Tree::Transcript, Join::Rfc6962, &root.0, size, index);
        assert_eq!(merkle::leaf(&record.0).0.to_vec(), leaf);
        assert_eq!(before.is_some(), index > 0);
        if let Some(before) = before {
            let leaf = merkle::leaf(&before.record.0);
            assert_eq!(before.index, index - 1);
            assert_eq!(merkle::root_from_proof(leaf, index - 1, size, &before.proof), Ok(root));
        }
        Record::decode(&record.0).unwrap()
    }

    pub fn statement(&mut self, step: u32) -> Statement {
        let answer = self.ask(Question::Statement { step });
        let Answer::Statement(statement) = answer else { panic!("{answer:?}") };
        let record = Record::Step { computation: self.run.computation.id, step: self.step(step) };
        assert!(statement.is_of(&key().public()) && !statement.is_of(&other().public()));
        assert_eq!(statement.record, merkle::leaf(&record.encode()));
        assert_eq!((statement.step, statement.computation), (step, self.run.computation.id));
        statement
    }

    /// The party's records, from its disk.
    pub fn records(&self) -> Vec<Record> {
        transcript::read(&self.run.layout.transcript()).unwrap().0.records
    }

    pub fn step(&self, step: u32) -> StepRecord {
        match &self.records()[step as usize] {
            Record::Step { step, .. } => step.clone(),
            other => panic!("{other:?} is no step"),
        }
    }

    /// The operands of an element of a node's output, all under the party's own records and the trace root.
    pub fn operands(
        &mut self,
        (step, phase, node): (u32, Phase, usize),
        element: usize,
        trace: Digest,
    ) -> Slices {
        let subject = Subject::Node { step, phase: phase.into(), node };
        let question = Question::Evidence { subject, element: element as u64, need: Need::All };
        let answer = self.ask(question);
        let Answer::Operands { inputs } = answer else { panic!("{subject:?} {element}: {answer:?}") };
        let graph = graph_of(self.run.program(), phase);
        let mut slices = Slices::default();
        for id in graph.nodes[node].primitive.inputs() {
            let Computation { program, job, seed, .. } = &self.run.computation;
            if let Some(Origin::Words(words)) = origin::origin(program, job, seed, step, phase, id) {
                slices.insert_words(id, &words);
            }
        }
        for input in &inputs {
            assert_eq!(self.committed(step, phase, input, trace), input.commitment.digest);
            let ty = graph.tensor(TensorId(input.tensor));
            let mut rest = input.bytes.0.as_slice();
            for &slice in &input.slices {
                let (bytes, after) = rest.split_at(piece_range(ty.bytes(), SLICE_BYTES, slice).len());
                slices.insert(TensorId(input.tensor), slice, bytes.to_vec());
                rest = after;
            }
            assert!(rest.is_empty());
        }
        slices
    }

    /// The digest of an input by its slices, after checking that the party's records commit to the one that it names.
    pub fn committed(&self, step: u32, phase: Phase, input: &ProvenInput, trace: Digest) -> Digest {
        let Computation { program, job, seed, .. } = &self.run.computation;
        let id = TensorId(input.tensor);
        let (digest, proof) = (&input.commitment.digest, &input.commitment.proof);
        match origin::origin(program, job, seed, step, phase, id).unwrap() {
            Origin::State { index } => {
                let before = self.records()[step as usize - 1].state();
                assert_eq!(digest_from_proof(&program.state(), index, digest, proof), Ok(before));
            }
            Origin::Batch { micro, tensor } => {
                let (tensors, leaf) =
                    (program.batch.len(), batch_leaf_name(micro, &program.batch[tensor].name));
                let (place, size) =
                    (micro as usize * tensors + tensor, tensors * program.micro_batches as usize);
                let root =
                    merkle::root_from_proof(table::leaf(&leaf, digest), place as u64, size as u64, proof);
                assert_eq!(root, Ok(self.step(step).batch));
            }
            Origin::Node { phase, node } => {
                let place = leaf_place(program, phase, node).unwrap() as u64;
                let leaf = table::leaf(&leaf_name(phase, node), digest);
                let root = merkle::root_from_proof(leaf, place, leaf_count(program) as u64, proof);
                assert_eq!(root, Ok(trace));
            }
            Origin::Words(_) => panic!("what follows from the job is not carried"),
        }
        let ty = graph_of(program, phase).tensor(id);
        let count = piece_count(ty.bytes(), SLICE_BYTES);
        let mut rest = input.bytes.0.as_slice();
        let mut pieces = Vec::new();
        for &slice in &input.slices {
            let (bytes, after) = rest.split_at(piece_range(ty.bytes(), SLICE_BYTES, slice).len());
            pieces.push((slice, piece_value(bytes, SLICE_BYTES, slice, count)));
            rest = after;
        }
        let root = multiproof::root(multiproof::blake3, count, &pieces, &input.siblings.0).unwrap();
        digest_from_root(ty, &root)
    }

    /// The outputs that make up a field, after checking that the trace has them at these places.
    pub fn binding(
        &mut self,
        step: u32,
        field: Field,
        places: &[(Phase, usize)],
        trace: Digest,
    ) -> Vec<Digest> {
        let answer = self.ask(Question::Binding { step, field });
        let Answer::Binding { outputs, siblings, kept } = answer else { panic!("{field:?}: {answer:?}") };
        assert!(kept.is_empty() && outputs.len() == places.len());
        let program = self.run.program();
        let leaf = |((phase, node), digest): (&(Phase, usize), &Digest)| {
            let place = leaf_place(program, *phase, *node).unwrap();
            (place, table::leaf(&leaf_name(*phase, *node), digest).0)
        };
        let mut leaves: Vec<(usize, Hash)> = places.iter().zip(&outputs).map(leaf).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let root = multiproof::root(multiproof::rfc6962, leaf_count(program), &leaves, &siblings.0);
        assert_eq!(root, Ok(trace.0));
        outputs
    }
}

/// The word of an element in a slice of a tensor of words.
pub fn word(slice: &[u8], element: usize) -> u32 {
    let at = element * 4 % SLICE_BYTES;
    u32::from_le_bytes(slice[at..at + 4].try_into().unwrap())
}

pub fn gpt_again() -> Run {
    Run::open(&HONEST.layout.root).unwrap()
}

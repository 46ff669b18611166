//! A party answers every question of a dispute game by what it has committed to, in the same bytes each time, and no question stops it. A party that
//! cheated answers by its own records.

#![cfg(feature = "testing")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use common::{gpt_job, key, mlp_job, trained};
use tiebreak::commit::digest::Digest;
use tiebreak::commit::keys::PrivateKey;
use tiebreak::commit::record::{Record, StepRecord, gradients_root};
use tiebreak::commit::state::{StateRoots, digest_from_proof, state_digest};
use tiebreak::commit::tensor::{Hash, SLICE_BYTES, digest_from_root, piece_count, piece_range, piece_value};
use tiebreak::commit::trace::{batch_leaf_name, leaf_count, leaf_name, leaf_place, positions};
use tiebreak::commit::{merkle, multiproof, table, tensor};
use tiebreak::dispute::check::state_nodes;
use tiebreak::dispute::game::message::{
    Answer, Answered, Asked, Field, Fold, Need, Question, Sealed, Statement, Subject, Tree, commitment,
};
use tiebreak::dispute::game::search::{Join, children, parent};
use tiebreak::dispute::game::terms::{Clocks, Terms};
use tiebreak::dispute::leaf::{Slices, expected};
use tiebreak::dispute::origin::{self, Origin};
use tiebreak::dispute::verdict::{PhaseName, ProvenInput, Scalar};
use tiebreak::engine::cpu::Cpu;
use tiebreak::job::data::Dataset;
use tiebreak::job::manifest::files_root;
use tiebreak::party::{Party, PartyError};
use tiebreak::program::graph::TensorId;
use tiebreak::program::phase::{Phase, graph_of};
use tiebreak::run::dir::Run;
use tiebreak::run::transcript;

fn referee() -> PrivateKey {
    PrivateKey::generate("referee.example", [7; 32]).unwrap()
}

fn other() -> PrivateKey {
    PrivateKey::generate("other.example", [8; 32]).unwrap()
}

fn terms(run: &Run) -> Terms {
    let clocks = Clocks { moves: 1, increment: 1, replay: 1 };
    let parties = [key().public(), other().public()];
    let job = (run.job_text.clone(), run.program_file.clone());
    Terms::new(run.file.summary(), job, &parties, &referee().public(), clocks, Digest([3; 32]))
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("party").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A small GPT of four steps, of which a run commits states and gradients.
fn gpt(name: &str, cheat: Option<&str>) -> Run {
    let folder = folder(name);
    let job = gpt_job(&folder, "microbatch", "");
    let text = std::fs::read_to_string(&job).unwrap().replace("steps = 8", "steps = 4");
    std::fs::write(&job, text.replace("every = 2", "every = 3")).unwrap();
    trained(&job, &folder.join("run"), cheat)
}

static HONEST: LazyLock<Run> = LazyLock::new(|| gpt("honest", None));

/// A referee's side of a conversation with one party.
struct Asker {
    party: Party,
    run: Run,
    game: Digest,
    turn: u32,
    /// All questions with their answers.
    said: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Asker {
    fn new(run: &Run, cheat: Option<&str>) -> Asker {
        let open = || Run::open(&run.layout.root).unwrap();
        let (terms, cpu) = (terms(run), Box::new(Cpu::new(1).unwrap()));
        let game = terms.game();
        let party = match cheat {
            None => Party::open(terms, open(), key(), cpu),
            Some(cheat) => Party::open_cheating(terms, open(), key(), cpu, cheat.parse().unwrap()),
        };
        Asker { party: party.unwrap(), run: open(), game, turn: 0, said: Vec::new() }
    }

    fn try_ask(&mut self, question: Question) -> Result<Answer, PartyError> {
        self.turn += 1;
        let asked = Asked { game: self.game, turn: self.turn, question };
        let digest = asked.digest();
        let sealed = Sealed::new(asked, &referee()).to_bytes();
        let reply = self.party.reply(&sealed)?;
        let said = Sealed::<Answered>::from_bytes(&reply, 1 << 24, &key().public()).unwrap().body;
        assert_eq!((said.game, said.turn, said.question), (self.game, self.turn, digest));
        self.said.push((sealed, reply));
        Ok(said.answer)
    }

    fn ask(&mut self, question: Question) -> Answer {
        self.try_ask(question).unwrap()
    }

    /// The values of a node's children, which give the node's value.
    fn opened(
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
    fn leaf(&mut self, tree: Tree, join: Join, root: &[u8], of: u64, leaf: u64) -> Vec<u8> {
        let (mut first, mut count, mut value) = (0, of, root.to_vec());
        while count > 1 {
            let values = self.opened(tree, join, (first, count, of), &value);
            let below = children(first, count, 1).into_iter().zip(values);
            let mut holding = below.filter(|((first, count), _)| (*first..first + count).contains(&leaf));
            ((first, count), value) = holding.next().unwrap();
        }
        value
    }

    fn root(&mut self, subject: Subject) -> Hash {
        let answer = self.ask(Question::Root { subject });
        let Answer::Root { root } = answer else { panic!("{subject:?}: {answer:?}") };
        root.0
    }

    /// A slice of a tensor of `len` bytes, under its root.
    fn slice(&mut self, subject: Subject, len: usize, slice: usize) -> Vec<u8> {
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
    fn record(&mut self, index: u64, root: Digest) -> Record {
        let Answer::Record { record, before } = self.ask(Question::Record { index }) else {
            panic!("a record")
        };
        let size = u64::from(self.run.job.steps) + 2;
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

    fn statement(&mut self, step: u32) -> Statement {
        let answer = self.ask(Question::Statement { step });
        let Answer::Statement(statement) = answer else { panic!("{answer:?}") };
        let record = Record::Step { computation: self.run.computation, step: self.step(step) };
        assert!(statement.is_of(&key().public()) && !statement.is_of(&other().public()));
        assert_eq!(statement.record, merkle::leaf(&record.encode()));
        assert_eq!((statement.step, statement.computation), (step, self.run.computation));
        statement
    }

    /// The party's records, as they lie on its disk.
    fn records(&self) -> Vec<Record> {
        transcript::read(&self.run.layout.transcript()).unwrap().0.records
    }

    fn step(&self, step: u32) -> StepRecord {
        match &self.records()[step as usize] {
            Record::Step { step, .. } => step.clone(),
            other => panic!("{other:?} is no step"),
        }
    }

    /// The operands of an element of a node's output, all under the party's own records and the trace root.
    fn operands(
        &mut self,
        (step, phase, node): (u32, Phase, usize),
        element: usize,
        trace: Digest,
    ) -> Slices {
        let subject = Subject::Node { step, phase: phase.into(), node };
        let question = Question::Evidence { subject, element: element as u64, need: Need::All };
        let answer = self.ask(question);
        let Answer::Operands { inputs } = answer else { panic!("{subject:?} {element}: {answer:?}") };
        let graph = graph_of(&self.run.program, phase);
        let mut slices = Slices::default();
        for id in graph.nodes[node].primitive.inputs() {
            let Run { program, job, seed, .. } = &self.run;
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
    fn committed(&self, step: u32, phase: Phase, input: &ProvenInput, trace: Digest) -> Digest {
        let Run { program, job, seed, .. } = &self.run;
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

    /// The outputs that a field is made of, after checking that the trace has them at these places.
    fn binding(&mut self, step: u32, field: Field, places: &[(Phase, usize)], trace: Digest) -> Vec<Digest> {
        let answer = self.ask(Question::Binding { step, field });
        let Answer::Binding { outputs, siblings, kept } = answer else { panic!("{field:?}: {answer:?}") };
        assert!(kept.is_empty() && outputs.len() == places.len());
        let program = &self.run.program;
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
fn word(slice: &[u8], element: usize) -> u32 {
    let at = element * 4 % SLICE_BYTES;
    u32::from_le_bytes(slice[at..at + 4].try_into().unwrap())
}

#[test]
fn records_and_the_initial_state_are_opened() {
    let mut asker = Asker::new(&HONEST, None);
    let Answer::Commit { commitment: committed } = asker.ask(Question::Commit) else {
        panic!("a commitment")
    };
    let Answer::Reveal { salt, root } = asker.ask(Question::Reveal) else { panic!("a root") };
    assert_eq!(committed, commitment(&key().public(), &salt, &root));
    let records = asker.records();
    assert_eq!(root, merkle::root(&records.iter().map(transcript::leaf).collect::<Vec<_>>()));
    for (index, record) in records.iter().enumerate() {
        assert_eq!(asker.record(index as u64, root), *record);
    }

    let Answer::Parts { roots } = asker.ask(Question::Parts) else { panic!("parts") };
    assert_eq!(StateRoots(roots).digest(), records[0].state());
    let table = asker.run.program.state();
    let parameters = asker.run.program.parameters.len();
    for (part, first, count, index) in [
        (0, 0, parameters, 0),
        (0, 0, parameters, parameters - 1),
        (2, parameters, 2 * parameters, parameters + 3),
    ] {
        let (subject, tensor) = (Subject::Initial { index }, &table[index]);
        let place = (index - first) as u64;
        let leaf =
            asker.leaf(Tree::Part { part }, Join::Rfc6962, &roots[part as usize].0, count as u64, place);
        let digest = digest_from_root(&tensor.ty(), &asker.root(subject));
        assert_eq!(leaf, table::leaf(&tensor.name, &digest).0);
        asker.slice(subject, tensor.ty().bytes(), 0);
        asker.slice(subject, tensor.ty().bytes(), piece_count(tensor.ty().bytes(), SLICE_BYTES) - 1);
    }
    let subject = Subject::Initial { index: 0 };
    let weights = asker.ask(Question::Evidence { subject, element: 0, need: Need::All });
    assert_eq!(weights, Answer::Decline, "no file of weights gives a state of the seed");
}

#[test]
fn batches_are_opened_down_to_a_sample() {
    let mut asker = Asker::new(&HONEST, None);
    let Run { program, .. } = gpt_again();
    for (step, micro, tensor) in [(1, 0, 0), (3, 2, 1)] {
        let subject = Subject::Batch { step, micro, tensor };
        let (t, tensors) = (&program.batch[tensor], program.batch.len());
        let place = u64::from(micro) * tensors as u64 + tensor as u64;
        let count = tensors as u64 * u64::from(program.micro_batches);
        let root = asker.step(step).batch.0;
        let leaf = asker.leaf(Tree::Batch { step }, Join::Rfc6962, &root, count, place);
        let digest = digest_from_root(&t.ty(), &asker.root(subject));
        assert_eq!(leaf, table::leaf(&batch_leaf_name(micro, &t.name), &digest).0);
        let slice = asker.slice(subject, t.ty().bytes(), 0);

        let element = t.ty().len() - 1;
        let question = Question::Evidence { subject, element: element as u64, need: Need::All };
        let Answer::Samples { files, slices } = asker.ask(question) else { panic!("a sample") };
        assert_eq!(files_root(&files), asker.run.file.summary().data);
        let parts: Vec<_> = slices.iter().map(|slices| slices.parts()).collect();
        let mut data = Dataset::from_slices(&files, &parts, &asker.run.job.data, &program.sample()).unwrap();
        let of_sample = t.ty().len() / program.micro_batch as usize;
        let place = micro * program.micro_batch + (element / of_sample) as u32;
        let sample = data.sample_of(&program, asker.run.key(), step, place).unwrap();
        assert_eq!(word(&sample[tensor], element % of_sample), word(&slice, element));
        assert!(data.sample_of(&program, asker.run.key(), step, program.samples()).is_err());
        assert!(data.sample_of(&program, asker.run.key(), 0, 0).is_err());
    }
}

fn gpt_again() -> Run {
    Run::open(&HONEST.layout.root).unwrap()
}

#[test]
fn operators_are_opened_down_to_the_operands_of_an_element() {
    let mut asker = Asker::new(&HONEST, None);
    let program = gpt_again().program;
    let step = 3;
    let trace = asker.statement(step).trace;
    let places = positions(&program);
    for place in (0..places.len()).step_by(places.len() / 9).chain([places.len() - 1]) {
        let (phase, node) = places[place];
        let graph = graph_of(&program, phase);
        let ty = graph.tensor(graph.nodes[node].output).clone();
        let leaf =
            asker.leaf(Tree::Trace { step }, Join::Rfc6962, &trace.0, places.len() as u64, place as u64);
        let subject = Subject::Node { step, phase: phase.into(), node };
        let digest = digest_from_root(&ty, &asker.root(subject));
        assert_eq!(leaf, table::leaf(&leaf_name(phase, node), &digest).0);
        let last = piece_count(ty.bytes(), SLICE_BYTES) - 1;
        let slice = asker.slice(subject, ty.bytes(), last);
        let operands = asker.operands((step, phase, node), ty.len() - 1, trace);
        let words = expected(graph, node, ty.len() - 1..ty.len(), &operands).unwrap();
        if ty.dtype.size() == 4 {
            assert_eq!(words, [word(&slice, ty.len() - 1)], "{subject:?}");
        }
    }
}

#[test]
fn fields_are_bound_to_operators() {
    let mut asker = Asker::new(&HONEST, None);
    let program = gpt_again().program;
    let (step, record) = (2, asker.step(2));
    let trace = asker.statement(step).trace;

    let nodes: Vec<_> = state_nodes(&program).into_iter().map(|n| (Phase::Update, n.unwrap())).collect();
    let state = asker.binding(step, Field::State, &nodes, trace);
    assert_eq!(state_digest(&program.state(), &state), record.state);

    let gradients = program.gradients();
    let node = |name: &str| {
        let tensor = program.micro.output(name).unwrap();
        program.micro.nodes.iter().position(|node| node.output == tensor).unwrap()
    };
    let roots: Vec<Digest> = (0..program.micro_batches)
        .map(|micro| {
            let nodes: Vec<_> = gradients.iter().map(|t| (Phase::Micro(micro), node(&t.name))).collect();
            let outputs = asker.binding(step, Field::Gradient { micro }, &nodes, trace);
            table::root(gradients.iter().map(|t| t.name.as_str()).zip(&outputs))
        })
        .collect();
    assert_eq!(Some(gradients_root(&roots)), record.gradients);

    let scalar = gradients.last().unwrap().ty();
    for (field, scalar_of, pattern) in
        [(Field::Clip, Scalar::Clip, record.clip), (Field::Loss, Scalar::Loss, record.loss)]
    {
        let Some(Origin::Node { phase, node }) = origin::scalar(&program, scalar_of) else {
            panic!("a node")
        };
        let outputs = asker.binding(step, field, &[(phase, node)], trace);
        assert_eq!(outputs, [tensor::digest(&scalar, &pattern.to_le_bytes())]);
    }
}

/// The first leaf that two parties disagree about, by questions from their roots down, and both its values.
fn first_difference(
    parties: [&mut Asker; 2],
    tree: Tree,
    join: Join,
    roots: [Vec<u8>; 2],
    of: u64,
) -> (u64, [Vec<u8>; 2]) {
    let [one, two] = parties;
    let (mut first, mut count, mut values) = (0, of, roots);
    assert_ne!(values[0], values[1]);
    while count > 1 {
        let ours = one.opened(tree, join, (first, count, of), &values[0]);
        let theirs = two.opened(tree, join, (first, count, of), &values[1]);
        let at = ours.iter().zip(&theirs).position(|(a, b)| a != b).unwrap();
        (first, count) = children(first, count, 1)[at];
        values = [ours[at].clone(), theirs[at].clone()];
    }
    (first, values)
}

/// An element of a tensor that two parties disagree about, with the values that they claim.
fn differing_element(
    honest: &mut Asker,
    liar: &mut Asker,
    subject: Subject,
    len: usize,
) -> (usize, [u32; 2]) {
    let roots = [honest.root(subject).to_vec(), liar.root(subject).to_vec()];
    let (tree, of) = (Tree::Tensor { subject }, piece_count(len, SLICE_BYTES));
    let (slice, _) = first_difference([honest, liar], tree, Join::Blake3, roots, of as u64);
    let slices = [honest.slice(subject, len, slice as usize), liar.slice(subject, len, slice as usize)];
    let at = (0..slices[0].len() / 4).find(|&at| word(&slices[0], at) != word(&slices[1], at)).unwrap();
    (slice as usize * SLICE_BYTES / 4 + at, [word(&slices[0], at), word(&slices[1], at)])
}

#[test]
fn a_liar_defends_an_operator_and_a_batch_until_an_element_shows_it() {
    for cheat in ["operator@2", "batch@2"] {
        let run = gpt(cheat, Some(cheat));
        let (mut honest, mut liar) = (Asker::new(&HONEST, None), Asker::new(&run, Some(cheat)));
        assert_eq!(honest.statement(1).trace, liar.statement(1).trace);
        let traces = [honest.statement(2).trace, liar.statement(2).trace];
        let program = gpt_again().program;
        let leaves = leaf_count(&program) as u64;
        let roots = traces.map(|trace| trace.0.to_vec());
        let tree = Tree::Trace { step: 2 };
        let (place, _) = first_difference([&mut honest, &mut liar], tree, Join::Rfc6962, roots, leaves);
        let (phase, node) = positions(&program)[place as usize];
        let graph = graph_of(&program, phase);
        let subject = Subject::Node { step: 2, phase: phase.into(), node };
        let len = graph.tensor(graph.nodes[node].output).bytes();
        let (element, [right, wrong]) = differing_element(&mut honest, &mut liar, subject, len);
        // Both show the same operands, each under its own commitments.
        for (asker, trace) in [(&mut honest, traces[0]), (&mut liar, traces[1])] {
            let operands = asker.operands((2, phase, node), element, trace);
            assert_eq!(expected(graph, node, element..element + 1, &operands), Ok(vec![right]), "{cheat}");
        }
        assert_ne!(right, wrong);

        let error = Asker::new(&run, None).try_ask(Question::Statement { step: 2 }).unwrap_err();
        assert!(matches!(error, PartyError::NotReproduced { step: 2, .. }), "{error}");
    }
}

#[test]
fn a_liar_defends_a_moment_and_an_initial_weight() {
    let run = gpt("moment", Some("moment@2"));
    let (mut honest, mut liar) = (Asker::new(&HONEST, None), Asker::new(&run, Some("moment@2")));
    let traces = [honest.statement(2).trace, liar.statement(2).trace];
    assert_eq!(traces[0], traces[1]);
    let program = &run.program;
    let nodes: Vec<_> = state_nodes(program).into_iter().map(|n| (Phase::Update, n.unwrap())).collect();
    let made = liar.binding(2, Field::State, &nodes, traces[1]);
    assert_eq!(state_digest(&program.state(), &made), honest.step(2).state);
    assert_ne!(honest.step(2).state, liar.step(2).state);
    // What follows is computed from the state that it committed.
    let trace = liar.statement(4).trace;
    liar.operands((4, Phase::Update, program.update.nodes.len() - 1), 0, trace);

    let run = gpt("init", Some("init@0"));
    let mut liar = Asker::new(&run, Some("init@0"));
    let parts = [&mut honest, &mut liar].map(|asker| match asker.ask(Question::Parts) {
        Answer::Parts { roots } => {
            assert_eq!(StateRoots(roots).digest(), asker.records()[0].state());
            roots[0].0.to_vec()
        }
        other => panic!("{other:?}"),
    });
    let (tree, of) = (Tree::Part { part: 0 }, run.program.parameters.len() as u64);
    let (index, _) = first_difference([&mut honest, &mut liar], tree, Join::Rfc6962, parts, of);
    assert_eq!(index, 0);
    let len = run.program.state()[0].ty().bytes();
    differing_element(&mut honest, &mut liar, Subject::Initial { index: 0 }, len);
    liar.statement(1);
}

/// A question at random: often at the edge of what there is, or far outside.
fn random_question(random: &mut impl FnMut(u64) -> u64) -> Question {
    let mut number = |below: u64| match random(8) {
        0 => u64::MAX - random(3),
        1 => random(1 << 40),
        2 => below,
        _ => random(below),
    };
    let step = number(6) as u32;
    let phase = match number(3) {
        0 => PhaseName::Micro(number(3) as u32),
        1 => PhaseName::Accumulate(number(2) as u32),
        _ => PhaseName::Update,
    };
    let subject = match number(3) {
        0 => Subject::Initial { index: number(20) as usize },
        1 => Subject::Batch { step, micro: number(2) as u32, tensor: number(3) as usize },
        _ => Subject::Node { step, phase, node: number(60) as usize },
    };
    let fold = match number(4) {
        0 => Fold::Product,
        1 => Fold::Segment,
        2 => Fold::Rank { position: number(9) },
        _ => Fold::Count,
    };
    let (element, first, count) = (number(700), number(40), number(9));
    let tree = match number(6) {
        0 => Tree::Transcript,
        1 => Tree::Batch { step },
        2 => Tree::Part { part: number(4) as u8 },
        3 => Tree::Trace { step },
        4 => Tree::Tensor { subject },
        _ => Tree::Terms { subject, element, fold },
    };
    let need = match number(3) {
        0 => Need::Frame { fold },
        1 => Need::Terms { fold, first, count },
        _ => Need::All,
    };
    let micro = number(4) as u32 % 3;
    let field = [Field::Gradient { micro }, Field::State, Field::Clip, Field::Loss][number(4) as usize % 4];
    match number(10) {
        0 => Question::Record { index: first },
        1 => Question::Statement { step },
        2 => Question::Root { subject },
        3 => Question::Slice { subject, slice: first },
        4 => Question::Total { subject, element, fold },
        5 | 6 => Question::Evidence { subject, element, need },
        7 => Question::Binding { step, field },
        _ => Question::Children { tree, first, count },
    }
}

#[test]
fn no_question_stops_a_party_and_a_restart_answers_the_same() {
    let folder = folder("random");
    let job = mlp_job(&folder, "operator", 3, 2);
    let run = trained(&job, &folder.join("run"), None);
    let mut asker = Asker::new(&run, None);
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below.max(1)
    };
    let mut declined = 0;
    for _ in 0..1500 {
        let question = random_question(&mut random);
        declined += u32::from(asker.ask(question) == Answer::Decline);
    }
    assert!((100..1480).contains(&declined), "{declined} questions of 1500 were declined");
    let mut again = Asker::new(&run, None).party;
    for (question, reply) in asker.said.iter().rev().step_by(7) {
        assert_eq!(again.reply(question).unwrap(), *reply);
    }

    let (question, _) = &asker.said[0];
    let mut refused = |question: &[u8]| asker.party.reply(question).unwrap_err().to_string();
    assert!(refused(b"").contains("message"));
    assert!(refused(&[question.as_slice(), b" "].concat()).contains("encoding"));
    assert!(refused(&vec![b' '; 1 << 15]).contains("16384"));
    let asked = |game| Asked { game, turn: 0, question: Question::Commit };
    let game = terms(&run).game();
    assert!(refused(&Sealed::new(asked(game), &other()).to_bytes()).contains("not signed by referee"));
    assert!(refused(&Sealed::new(asked(Digest([0; 32])), &referee()).to_bytes()).contains("another game"));
}

#[test]
fn a_party_plays_its_own_computation_only() {
    let cpu = || Box::new(Cpu::new(1).unwrap());
    let refused = |terms: Terms, run: Run, key: PrivateKey| match Party::open(terms, run, key, cpu()) {
        Ok(_) => panic!("it plays"),
        Err(error) => error.to_string(),
    };
    let stranger = PrivateKey::generate("stranger.example", [9; 32]).unwrap();
    assert!(refused(terms(&HONEST), gpt_again(), stranger).contains("name no party with the key stranger"));
    assert!(
        Party::open(terms(&HONEST), gpt_again(), other(), cpu()).is_ok(),
        "the run's own key does not count"
    );
    let mut twice = terms(&HONEST);
    twice.parties[1] = twice.parties[0].clone();
    assert!(refused(twice, gpt_again(), key()).contains("twice"));
    let mut challenged = terms(&HONEST);
    challenged.run.challenge = Some(Digest([1; 32]));
    assert!(refused(challenged, gpt_again(), key()).contains("are about computation"));

    let folder = folder("unfinished");
    let job = mlp_job(&folder, "step", 3, 1);
    let run = common::begin_run(&tiebreak::run::disk::Disk::default(), &job, &folder.join("run")).unwrap();
    std::fs::write(run.layout.transcript(), []).unwrap();
    let of = terms(&run);
    assert!(refused(of, run, key()).contains("train it to its end"));
}

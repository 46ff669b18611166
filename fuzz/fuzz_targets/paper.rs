//! Parties whose records exist on paper only: tensors of made-up bytes under right hashes, so that games reach the evidence. Two
//! papers agree except for one lie.

use tiebreak_dispute::game::message::{
    Answer, Asked, LogBlock, LogPlace, Question, SUPPLY_SLICES, Statement, Subject, Supplied, Tree,
    commitment,
};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::search;
use tiebreak_dispute::game::terms::{Claim, ClaimedRun, Clocks, Terms};
use tiebreak_dispute::verdict::{DataSlices, LogSlices, ProvenInput, ProvenTensor};
use tiebreak_job::Job;
use tiebreak_job::identity::{CONTRACT, ComputationSummary, program_digest};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::state::StateRoots;
use tiebreak_record::commit::tensor::{self, SLICE_BYTES, piece_range, piece_values};
use tiebreak_record::commit::{merkle, multiproof};
use tiebreak_record::rounding::log::{Log, SliceProof, elements, parts, prove_slices, slice_values};

const JOB: &str = r#"steps = 2
model = { kind = "mlp", inputs = 3, hidden = [], classes = 2 }
data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "f32" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 1e-2 }
schedule = { peak = 0.5 }
batch = { micro_batch = 2, micro_batches = 2 }
"#;
/// The longest part of a log.
const PART_MAX: usize = 80_000;

pub fn key(number: u8) -> PrivateKey {
    PrivateKey::generate("party", [number; 32]).expect("a name without spaces")
}

/// The remaining input; zeros after its end.
pub struct Source<'a>(pub &'a [u8]);

impl<'a> Source<'a> {
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// A small number, or one of any size.
    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..250 => u64::from(small % 8),
            _ => self.bytes(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte)),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        self.0.split_off(..most.min(self.0.len())).unwrap_or_default().to_vec()
    }

    /// Some bytes; the next byte gives their number.
    fn some(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte());
        self.bytes(len)
    }

    fn digest(&mut self) -> Digest {
        Digest([self.byte(); 32])
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.byte() % 4).map(|_| one(self)).collect()
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// The difference of a paper from the other.
#[derive(Clone, Copy)]
enum Lie {
    None,
    /// The initial state.
    Initial,
    /// A byte of a tensor.
    Tensor(Subject, usize),
    /// The state after a step, its loss, its log, or the gradient of its last micro-batch.
    Field(u32, u8),
}

/// The initial state that the terms name.
const INITIAL: Digest = Digest([2; 32]);

pub struct Paper {
    rules: Rules,
    terms: Terms,
    number: usize,
    lie: Lie,
    logs: Vec<Log>,
    records: Vec<Vec<u8>>,
}

impl Paper {
    /// Two papers; the second or the first one lies.
    pub fn pair(source: &mut Source) -> [Paper; 2] {
        let logged = source.byte() % 2 == 1;
        let text = format!("{JOB}{}", if logged { "[rounding]\n" } else { "" });
        let program = Job::parse("job", &text).expect("a job").program(None).expect("a program");
        let count = parts(&program);
        let logs: Vec<Log> = (0..2).map(|_| log(source, count)).collect();
        let summary = ComputationSummary {
            contract: CONTRACT.into(),
            challenge: None,
            program: program_digest(&program),
            data: Digest([1; 32]),
            initial: INITIAL,
        };
        let run = ClaimedRun { trainer_key: None, nonce: "0".repeat(32), origin: InitialOrigin::Seed };
        let clocks = Clocks { moves: 1000, increment: 10, replay: 1000 };
        let keys = [key(1).public(), key(2).public()];
        let terms = Terms::new(summary, (text, None), &keys, &key(3).public(), clocks, Digest([4; 32]));
        let of = |root: Digest| match logged {
            true => terms.clone().claiming(Claim { run: run.clone(), root, head: None }),
            false => terms.clone(),
        };
        let rules = || Rules::new(&of(Digest([0; 32]))).expect("terms that hold together");
        let lies = [Lie::None, lie(source, &rules())];
        let liar = usize::from(source.byte() % 2);
        let mut papers = [0, 1].map(|number: usize| {
            let lie = lies[usize::from(number == liar)];
            let logs = if logged { logs.clone() } else { Vec::new() };
            Paper { rules: rules(), terms: terms.clone(), number, lie, logs, records: Vec::new() }.written()
        });
        let terms = of(papers[0].root());
        for paper in &mut papers {
            paper.terms = terms.clone();
            paper.rules = Rules::new(&terms).expect("terms that hold together");
        }
        papers
    }

    pub fn terms(&self) -> Terms {
        self.terms.clone()
    }

    fn written(mut self) -> Paper {
        let job = Job::parse("job", &self.terms.job).expect("a job");
        let run = self.rules.run().expect("a run");
        let (computation, samples) = (*run.computation(), u64::from(run.program().samples()));
        let state = if matches!(self.lie, Lie::Initial) { Digest([5; 32]) } else { INITIAL };
        let mut records = vec![Record::Initial { computation, state }];
        for step in 1..=job.steps {
            let says = |field: u8| matches!(self.lie, Lie::Field(of, what) if of == step && what == field);
            // A paper with other operators has another state.
            let lies = matches!(self.lie, Lie::Tensor(Subject::Node { step: of, .. }, _) if of == step);
            let log = self.logs.get(step as usize - 1).map(Log::root);
            let step = StepRecord {
                step,
                state: Digest([7 + u8::from(says(0) || lies); 32]),
                batch: merkle::root(&self.leaves(Tree::Batch { step })),
                gradients: Some(merkle::root(&self.leaves(Tree::Gradients { step }))),
                trace: None,
                log: log.map(|log| if says(2) { Digest([9; 32]) } else { log }),
                learning_rate: job.schedule.learning_rate(step, job.steps),
                clip: 1f32.to_bits(),
                loss: u32::from(says(1)),
                cursor: u64::from(step) * samples,
            };
            records.push(Record::Step { computation, step });
        }
        records.push(Record::Final { computation, steps: job.steps, roots: StateRoots([INITIAL; 3]) });
        self.records = records.iter().map(Record::encode).collect();
        self
    }

    fn record_leaves(&self) -> Vec<Digest> {
        self.records.iter().map(|record| merkle::leaf(record)).collect()
    }

    fn root(&self) -> Digest {
        merkle::root(&self.record_leaves())
    }

    /// The bytes of a tensor: small numbers in every type.
    fn tensor(&self, subject: Subject) -> Vec<u8> {
        let len = self.rules.tensor(subject).map_or(0, |(_, ty)| ty.bytes());
        let mut bytes = vec![0; len];
        if let Lie::Tensor(of, at) = self.lie
            && of == subject
            && len > 0
        {
            bytes[at % len] = 1;
        }
        bytes
    }

    fn leaves(&self, tree: Tree) -> Vec<Digest> {
        match tree {
            Tree::Transcript => self.record_leaves(),
            Tree::Gradients { step } => {
                let last = if matches!(self.lie, Lie::Field(of, 3) if of == step) { 8 } else { 5 };
                let count = self.rules.shape(tree).0 as u8;
                (0..count).map(|micro| Digest([if micro + 1 == count { last } else { 5 }; 32])).collect()
            }
            _ => (0..self.rules.shape(tree).0)
                .filter_map(|index| {
                    let subject = self.rules.leaf(tree, index)?;
                    self.rules.tensor_leaf(subject, &tensor::root(&self.tensor(subject)))
                })
                .collect(),
        }
    }

    fn proven(&self, index: usize) -> ProvenRecord {
        ProvenRecord {
            index: index as u64,
            record: Base64(self.records[index].clone()),
            proof: merkle::prove(&self.record_leaves(), index),
        }
    }

    /// The answer that follows from the paper; an answer that needs a computation is declined.
    pub fn answer(&self, asked: &Asked) -> Answer {
        let salt = Digest([6; 32]);
        match asked.question {
            Question::Commit => {
                let key = key(self.number as u8 + 1).public();
                Answer::Commit { commitment: commitment(&key, &salt, &self.root()) }
            }
            Question::Reveal => Answer::Reveal { salt, root: self.root() },
            Question::Logs { .. } => Answer::Logs { lacks: self.lacks(asked) },
            Question::Supply { place } => {
                let log = self.logs.get(place.step as usize - 1);
                let proof = log.and_then(|log| {
                    prove_slices(
                        log.bytes(),
                        &slice_values(log.bytes()),
                        place.first as usize,
                        SUPPLY_SLICES as usize,
                    )
                });
                self.supplied(place.step, proof)
            }
            Question::LogBlock { step, part, block } => {
                let elements = elements(self.rules.run().expect("a run").program(), part as usize);
                let log = self.logs.get(step as usize - 1);
                self.supplied(step, log.map(|log| log.prove(part as usize, elements, block)))
            }
            Question::Children { tree: tree @ Tree::Tensor { subject }, first, count } => {
                let values = piece_values(&self.tensor(subject), SLICE_BYTES);
                self.children(tree, (first, count), |range| {
                    multiproof::subtree(multiproof::blake3, &values[range]).to_vec()
                })
            }
            Question::Children { tree: Tree::Terms { .. }, .. } => Answer::Decline,
            Question::Children { tree, first, count } => {
                let leaves = self.leaves(tree);
                self.children(tree, (first, count), |range| merkle::root(&leaves[range]).0.to_vec())
            }
            Question::Record { index } => Answer::Record {
                record: Base64(self.records[index as usize].clone()),
                before: index.checked_sub(1).map(|before| self.proven(before as usize)),
            },
            Question::Statement { step } => {
                let trace = merkle::root(&self.leaves(Tree::Trace { step }));
                let run = self.rules.run().expect("a run");
                let (computation, leaf) = (*run.computation(), self.record_leaves()[step as usize]);
                let key = key(self.number as u8 + 1);
                Answer::Statement(Statement::new(computation, step, leaf, trace, &key))
            }
            Question::Root { subject } => Answer::Root { root: Digest(tensor::root(&self.tensor(subject))) },
            Question::Slice { subject, slice } => {
                let bytes = self.tensor(subject);
                let range = piece_range(bytes.len(), SLICE_BYTES, slice as usize);
                Answer::Slice { bytes: Base64(bytes[range].to_vec()) }
            }
            Question::Total { .. } | Question::Evidence { .. } | Question::Binding { .. } => Answer::Decline,
            Question::Pass { .. } => Answer::Decline,
        }
    }

    fn children(
        &self,
        tree: Tree,
        node: (u64, u64),
        of: impl Fn(std::ops::Range<usize>) -> Vec<u8>,
    ) -> Answer {
        let ranges = search::children(node.0, node.1, self.rules.shape(tree).1);
        let values = ranges.iter().flat_map(|&(first, count)| of(first as usize..(first + count) as usize));
        Answer::Children { values: Base64(values.collect()) }
    }

    /// The part of the logs behind the one that a question carries.
    fn lacks(&self, asked: &Asked) -> Option<LogPlace> {
        let Some(part) = &asked.carried else { return Some(LogPlace { step: 1, first: 0 }) };
        let (step, first) = (part.record.index as u32, *part.log.slices.first()? as u64 + SUPPLY_SLICES);
        if first < u64::from(part.log.len).div_ceil(SLICE_BYTES as u64) {
            return Some(LogPlace { step, first });
        }
        (step < self.logs.len() as u32).then_some(LogPlace { step: step + 1, first: 0 })
    }

    fn supplied(&self, step: u32, proof: Option<SliceProof>) -> Answer {
        proof.map_or(Answer::Decline, |proof| {
            Answer::Supplied(Supplied { record: self.proven(step as usize), log: proof.into() })
        })
    }
}

/// A log whose parts are any bytes.
fn log(source: &mut Source, parts: usize) -> Log {
    let part = |source: &mut Source| match source.byte() {
        0..100 => Vec::new(),
        100..200 => source.some(),
        // A long part, so that it comes in several pieces.
        _ => source.some().into_iter().cycle().take(PART_MAX).collect(),
    };
    Log::new(&(0..parts).map(|_| part(source)).collect::<Vec<_>>())
}

fn lie(source: &mut Source, rules: &Rules) -> Lie {
    let step = 1 + u32::from(source.byte() % 2);
    let tree = match source.byte() % 8 {
        0 => return Lie::Field(step, source.byte() % 4),
        1 => return Lie::Initial,
        4 => Tree::Batch { step },
        _ => Tree::Trace { step },
    };
    let leaves = rules.shape(tree).0.max(1);
    let subject = rules.leaf(tree, (u64::from(source.byte()) * 257 + u64::from(source.byte())) % leaves);
    subject.map_or(Lie::None, |subject| Lie::Tensor(subject, usize::from(source.byte())))
}

fn proven(source: &mut Source) -> ProvenRecord {
    ProvenRecord { index: source.number(), record: Base64(source.some()), proof: source.list(Source::digest) }
}

fn log_slices(source: &mut Source) -> LogSlices {
    LogSlices {
        len: source.number() as u32,
        slices: source.list(|source| source.number() as usize),
        bytes: Base64(source.some()),
        siblings: siblings(source),
    }
}

fn siblings(source: &mut Source) -> Hashes {
    Hashes(source.list(|source| [source.byte(); 32]))
}

fn tensor_of(source: &mut Source) -> ProvenTensor {
    ProvenTensor { digest: source.digest(), proof: source.list(Source::digest) }
}

fn inputs(source: &mut Source) -> Vec<ProvenInput> {
    source.list(|source| ProvenInput {
        tensor: source.number() as u32,
        commitment: tensor_of(source),
        slices: source.list(|source| source.number() as usize),
        bytes: Base64(source.some()),
        siblings: siblings(source),
    })
}

/// An answer of any variant.
pub fn any_answer(source: &mut Source) -> Answer {
    match source.byte() % 20 {
        0 => Answer::Commit { commitment: source.digest() },
        1 => Answer::Reveal { salt: source.digest(), root: source.digest() },
        2 => Answer::Children { values: Base64(source.some()) },
        3 => Answer::Record { record: Base64(source.some()), before: source.list(proven).pop() },
        4 => Answer::Statement(Statement {
            computation: source.digest(),
            step: source.number() as u32,
            record: source.digest(),
            trace: source.digest(),
            signature: Base64(source.some()),
        }),
        5 | 6 => Answer::Root { root: source.digest() },
        7 => Answer::Slice { bytes: Base64(source.some()) },
        8 => Answer::Total { value: Base64(source.some()) },
        9 => Answer::Operands { inputs: inputs(source) },
        10 => Answer::Samples {
            files: source.list(|source| FileManifest { bytes: source.number(), root: source.digest() }),
            slices: source.list(|source| DataSlices {
                file: source.number() as usize,
                slices: source.list(|source| source.number() as usize),
                bytes: Base64(source.some()),
                siblings: siblings(source),
            }),
        },
        11 => Answer::Rounding {
            inputs: inputs(source),
            log: source.list(|source| LogBlock { block: source.number(), log: log_slices(source) }).pop(),
        },
        12 => Answer::Binding {
            outputs: source.list(Source::digest),
            siblings: siblings(source),
            kept: source.list(tensor_of),
        },
        13 => {
            let lacks = source.list(|source| LogPlace {
                step: source.number() as u32,
                first: source.number().wrapping_mul(64),
            });
            Answer::Logs { lacks: lacks.last().copied() }
        }
        // Few of these places exist, so this variant is tried more often.
        14 | 17..20 => Answer::Unreadable {
            step: source.number() as u32,
            part: source.number() as u32,
            block: source.number(),
        },
        15 => Answer::Supplied(Supplied { record: proven(source), log: log_slices(source) }),
        _ => Answer::Decline,
    }
}

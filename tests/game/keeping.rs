//! A party of a game about a receipt whose machine is slow or ends: its trace is kept, and its clocks last.

use std::fs;
use std::path::Path;

use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_dispute::answer::Pass;
use tiebreak_dispute::game::message::{Answer, Asked, Question, Sealed, Subject};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::terms::{INCREMENT_MIN, Terms};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::liveness::peak_bytes;
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor};
use tiebreak_game::party::{PartyError, ReceiptParty};
use tiebreak_run::run::disk::Disk;

use crate::play::key;
use crate::receipts::{Model, opened};

/// An engine that computes nothing.
struct Broken(Cpu);

impl Engine for Broken {
    tiebreak_engine::forward!(self => self.0; upload, read, compile);

    fn describe(&self) -> String {
        "broken adapter".into()
    }
    fn run(
        &mut self,
        _: &Compiled,
        _: &[Tensor],
        _: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        Err(EngineError::DeviceLost { device: self.describe(), reason: "it computes nothing".into() })
    }
}

/// An engine that computes with other parameters.
struct Wrong(Cpu);

impl Engine for Wrong {
    tiebreak_engine::forward!(self => self.0; read, compile, run);

    fn describe(&self) -> String {
        "wrong adapter".into()
    }
    fn upload(&mut self, ty: &TensorType, bytes: &[u8]) -> Result<Tensor, EngineError> {
        let mut bytes = bytes.to_vec();
        if ty.dtype == DType::F32 {
            bytes[0] ^= 1;
        }
        self.0.upload(ty, &bytes)
    }
}

fn cpu() -> Cpu {
    Cpu::new(1).unwrap()
}

/// The root that a party opens, if it has its trace.
fn root(party: &mut ReceiptParty, number: usize, terms: &Terms) -> Answer {
    let asked = Asked::new(terms.game(), 1, Question::Reveal);
    opened(number, &party.reply(&Sealed::new(asked, &key(9)).to_bytes()).unwrap())
}

/// A party that is started again has its trace without computing it. A file that is damaged, or another party's, is computed again.
#[test]
fn a_party_that_was_killed_has_its_trace() {
    let model = Model::small();
    let terms = model.terms(model.signed(None));
    let folder = tempfile::tempdir().unwrap();
    let open = |number: u8, engine: Box<dyn Engine>, file: &Path| {
        let (weights, file) = (model.weights.clone(), (file.to_path_buf(), Disk::default()));
        let mut party = ReceiptParty::open_keeping(terms.clone(), weights, key(number), engine, file)?;
        party.prepare()?;
        Ok::<ReceiptParty, PartyError>(party)
    };
    let broken = || Box::new(Broken(cpu()));
    let file = folder.path().join("trace");
    assert!(open(1, broken(), &file).is_err() && !file.exists());
    let said = root(&mut open(1, Box::new(cpu()), &file).unwrap(), 1, &terms);
    let bytes = fs::read(&file).unwrap();
    assert_eq!(root(&mut open(1, broken(), &file).unwrap(), 1, &terms), said);
    assert!(open(0, broken(), &file).is_err(), "the file is another party's");
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let flipped = [&bytes[..line], &[bytes[line] ^ 1], &bytes[line + 1..]].concat();
    for damaged in [[&bytes[..line], &bytes[line + 32..]].concat(), flipped, Vec::new()] {
        fs::write(&file, damaged).unwrap();
        assert!(open(1, broken(), &file).is_err());
        assert_eq!(root(&mut open(1, Box::new(cpu()), &file).unwrap(), 1, &terms), said);
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    // A machine that computes otherwise now gives no answer that would convict the party of the trace that it kept.
    let mut party = open(1, Box::new(Wrong(cpu())), &file).unwrap();
    let question = Question::Root { subject: Subject::Pass { pass: 0, node: model.kinds(0).len() - 1 } };
    let asked = Asked::new(terms.game(), 2, question);
    let refused = party.reply(&Sealed::new(asked, &key(9)).to_bytes()).err().unwrap().to_string();
    assert!(refused.ends_with("answer with the engine that computed them"), "{refused}");
    // Somebody else's file is not replaced.
    fs::write(&file, "evidence").unwrap();
    let refused = open(1, Box::new(cpu()), &file).err().unwrap().to_string();
    assert!(refused.contains("keeps no passes of a game") && refused.contains("--journal"), "{refused}");
    assert_eq!(fs::read(&file).unwrap(), b"evidence");
    // Where nothing can be written, the party plays all the same.
    let nowhere = folder.path().join("none").join("trace");
    assert_eq!(root(&mut open(1, Box::new(cpu()), &nowhere).unwrap(), 1, &terms), said);
    assert!(!nowhere.exists());
}

/// A party plays by no terms under which it would be late: it commits, and answers what takes a pass, on the clock of replays.
#[test]
fn the_clock_of_replays_lasts() {
    let model = Model::small();
    let mut terms = model.terms(model.signed(None));
    let mut referee = Referee::new(&terms).unwrap();
    referee.start(0);
    let deadlines: Vec<u64> = referee.pending().iter().map(|ask| ask.deadline).collect();
    assert_eq!(deadlines, [terms.clocks.replay + INCREMENT_MIN; 2]);
    terms.clocks.replay = 0;
    for number in [0, 1] {
        let opened = ReceiptParty::open(terms.clone(), model.weights.clone(), key(number), Box::new(cpu()));
        let why = opened.err().unwrap().to_string();
        assert!(why.starts_with("clocks.replay of the terms is 0 ms. This machine takes "), "{why}");
        assert!(
            why.contains("ms for a pass of the receipt and ") && why.ends_with("ask for other terms"),
            "{why}"
        );
    }
}

/// The plan of a party's memory has the digests of every operator of every pass, and what it holds of the disputed one.
#[test]
fn the_memory_of_a_long_answer_is_planned() {
    let mut model = Model::small();
    let plan = |model: &Model| {
        let terms = model.terms(model.signed(None));
        ReceiptParty::memory(&terms).unwrap()
    };
    let short = plan(&model);
    let graph = Pass::of(&model.receipt, &model.text, 0).unwrap().graph;
    let bytes = |id| graph.tensor(id).bytes() as u64;
    let held = graph
        .nodes
        .iter()
        .map(|node| bytes(node.output) + node.primitive.inputs().into_iter().map(bytes).sum::<u64>());
    assert!(short > peak_bytes(&graph) + 2 * held.max().unwrap());
    let nodes = graph.nodes.len() as u64;
    model.receipt.answer = vec![7; 6000];
    model.receipt.length = 6000;
    // A window of 8 tokens begins 5 behind the one before.
    let passes = (6000 - 8) / 5;
    assert!(plan(&model) >= short + 32 * (passes - 3) * nodes, "{} {short} {nodes}", plan(&model));
}

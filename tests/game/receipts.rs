//! Games about receipts of answers: a signer who withholds its trace has to open it, and the first wrong operator convicts.

use std::collections::BTreeSet;

use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::inference::settings;
use tiebreak_contract::program::network;
use tiebreak_contract::program::sampling::Sampling;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_dispute::answer::{Answering, Pass};
use tiebreak_dispute::game::breach::Unsettled;
use tiebreak_dispute::game::message::{Answer, Answered, Asked, Question, Sealed};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::{GameResult, Reason};
use tiebreak_dispute::game::rules::{Fault, Rules};
use tiebreak_dispute::game::terms::{Clocks, DisputedReceipt, INCREMENT_MIN, MOVES_MIN, Terms};
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_dispute::verdict::ProvenInput;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::ReceiptParty;
use tiebreak_job::Job;
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::receipt::{Receipt, model_digest};
use tiebreak_record::commit::salted_receipt::{AnyReceipt, salted_texts};
use tiebreak_record::commit::tensor::{SLICE_BYTES, digest_from_root, piece_count, piece_value};
use tiebreak_record::commit::{merkle, multiproof};
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::inference::traced::row_leaves;

use crate::play::key;

/// A wrong bit of a node's output: the window, the node, the byte.
pub(crate) type Wrong = (usize, usize, usize);

/// No answer has so many windows.
pub(crate) const NOWHERE: Wrong = (99, 0, 0);

/// A model with weights of Philox, and a receipt of an answer that it gave.
pub(crate) struct Model {
    pub(crate) text: String,
    model: Answering,
    table: Vec<StateTensor>,
    pub(crate) weights: Vec<Vec<u8>>,
    pub(crate) receipt: Receipt,
}

pub(crate) fn job_text([vocabulary, context, layers, heads, width]: [u32; 5]) -> String {
    format!(
        "steps = 1\nmodel = {{ kind = \"gpt\", vocabulary = {vocabulary}, context = {context}, layers = {layers}, heads = {heads}, \
         width = {width} }}\ndata = {{ kind = \"bytes\", path = \"text.txt\" }}\nbatch = {{ micro_batch = 1, micro_batches = 1 }}\n\
         optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 0.1 }}\n"
    )
}

/// The model of a job's text, or of a network file's.
fn answering(text: &str) -> Answering {
    match text.starts_with('{') {
        true => Answering::Network(Box::new(network::model(text).unwrap().1)),
        false => {
            let job = Job::parse("job.toml", text).unwrap();
            Answering::Job(Box::new(job.model().unwrap().clone()))
        }
    }
}

impl Model {
    /// The receipt of an honest signer, whose tokens are made up: a game is about operators alone.
    pub(crate) fn of(text: String, answer: usize) -> Model {
        let model = answering(&text);
        let most = model.writer().vocabulary().unwrap().min(50);
        let parameters = (0..).zip(model.writer().parameters()).map(|(number, p)| {
            let value = |i: u32| {
                let word = philox4x32_10([3, 0], [i, 0, number, 0])[0];
                ((f64::from(word) / f64::from(1 << 31) - 1.0) as f32).to_bits()
            };
            let words: Vec<u32> = (0..p.shape.iter().product()).map(value).collect();
            (StateTensor { name: format!("param/{}", p.name), shape: p.shape.clone() }, bytes_of(&words))
        });
        let (table, weights) = parameters.unzip();
        let receipt = Receipt {
            model: Digest([0; 32]),
            parameters: Digest([0; 32]),
            tokenizer: None,
            sampling: Sampling { temperature: 0, top_k: 0, top_p: 1f32.to_bits(), seed: 0 },
            length: answer as u32,
            prompt: vec![1, 2, 3],
            answer: (0..answer as u32).map(|i| i * 7 % most).collect(),
            root: Digest([6; 32]),
            traces: None,
        };
        let mut made = Model { text, model, table, weights, receipt };
        let [digest, parameters] = made.answerer().identity().unwrap();
        made.receipt = Receipt { model: digest, parameters, ..made.receipt.clone() };
        made.receipt = made.receipt_of(None);
        made
    }

    /// A model of two layers, whose answer takes three windows.
    pub(crate) fn small() -> Model {
        Model::of(job_text([200, 8, 2, 2, 48]), 14)
    }

    pub(crate) fn answerer(&self) -> Answerer<'_> {
        let model = self.model.writer();
        let known = Vec::leak(vec![true; model.vocabulary().unwrap() as usize]);
        Answerer { model, parameters: (&self.table, &self.weights), known, ends: &[] }
    }

    /// The receipt of a signer with this wrong bit: its `traces` and its `root`.
    pub(crate) fn receipt_of(&self, wrong: Option<Wrong>) -> Receipt {
        let (answerer, mut cpu) = (self.answerer(), Cpu::new(1).unwrap());
        let mut change = wrong.map(change);
        let tamper = change.as_mut().map(|change| change as _);
        let trace = answerer.trace(&mut cpu, &self.receipt, tamper, &mut |_| {}).unwrap();
        let traces = Some(answerer.traces_root(&self.receipt, &trace));
        let root = merkle::root(&row_leaves(&self.receipt, &trace.rows));
        Receipt { traces, root, ..self.receipt.clone() }
    }

    /// The text of the receipt of a signer with this wrong bit, signed by party 0.
    pub(crate) fn signed(&self, wrong: Option<Wrong>) -> String {
        self.receipt_of(wrong).to_text(Some(&key(0)))
    }

    /// The text of the receipt with other roots, signed by party 0.
    pub(crate) fn signed_with(&self, traces: Digest, root: Digest) -> String {
        Receipt { traces: Some(traces), root, ..self.receipt.clone() }.to_text(Some(&key(0)))
    }

    pub(crate) fn terms(&self, text: String) -> Terms {
        terms_about(&self.text, text)
    }

    /// The reason why an honest signer does not play.
    pub(crate) fn refused(&self, terms: &Terms) -> String {
        let (weights, engine) = (self.weights.clone(), Box::new(Cpu::new(1).unwrap()));
        ReceiptParty::open(terms.clone(), weights, key(0), engine).err().unwrap().to_string()
    }

    /// The nodes of a window, one of each kind.
    pub(crate) fn kinds(&self, window: usize) -> Vec<usize> {
        let graph = Pass::of(&self.receipt, &self.text, window).unwrap().graph;
        let mut kinds = BTreeSet::new();
        let nodes = 0..graph.nodes.len();
        nodes.filter(|&node| kinds.insert(graph.nodes[node].primitive.name())).collect()
    }
}

/// The terms of a game about a receipt, between keys 0 and 1.
pub(crate) fn terms_about(job: &str, text: String) -> Terms {
    let parties: Vec<PublicKey> = [0, 1].map(|number| key(number).public()).to_vec();
    let clocks = Clocks { moves: MOVES_MIN, increment: INCREMENT_MIN, replay: 60_000 };
    let receipt = DisputedReceipt { text, opening: None };
    Terms::about_receipt(receipt, job.into(), &parties, &key(9).public(), clocks, Digest([9; 32]))
}

/// A model with a receipt that games are about.
pub(crate) trait Played {
    /// The terms of a game about the receipt of a signer with this wrong bit.
    fn game(&self, wrong: Option<Wrong>) -> Terms;

    /// A party that has the model, with this wrong bit.
    fn party(&self, terms: &Terms, number: u8, wrong: Option<Wrong>) -> ReceiptParty;

    /// What an honest party claims.
    fn claimed(&self) -> Option<Digest>;
}

impl Played for Model {
    fn game(&self, wrong: Option<Wrong>) -> Terms {
        self.terms(self.signed(wrong))
    }

    fn party(&self, terms: &Terms, number: u8, wrong: Option<Wrong>) -> ReceiptParty {
        let (weights, engine) = (self.weights.clone(), Box::new(Cpu::new(1).unwrap()));
        match wrong {
            None => ReceiptParty::open(terms.clone(), weights, key(number), engine).unwrap(),
            Some(wrong) => {
                let change = Box::new(change(wrong));
                ReceiptParty::open_cheating(terms.clone(), weights, key(number), engine, change).unwrap()
            }
        }
    }

    fn claimed(&self) -> Option<Digest> {
        self.receipt.traces.map(|traces| claimed_root(&traces, &self.receipt.root))
    }
}

/// Flips a bit of a node's output.
pub(crate) fn change(
    (window, node, byte): Wrong,
) -> impl FnMut(usize, usize, &[u8]) -> Option<Vec<u8>> + Send {
    move |in_window, index, bytes| {
        (in_window == window && index == node).then(|| {
            let mut bytes = bytes.to_vec();
            let len = bytes.len();
            bytes[byte % len] ^= 1;
            bytes
        })
    }
}

/// What a party does with its answer to a question; `None`: it stays silent.
pub(crate) type Act<'a> = &'a dyn Fn(usize, &Asked, Answer) -> Option<Answer>;

pub(crate) fn honestly(_: usize, _: &Asked, answer: Answer) -> Option<Answer> {
    Some(answer)
}

/// A game that was played to its end.
pub(crate) struct Game {
    pub(crate) result: GameResult,
    pub(crate) verdict: GameVerdict,
    pub(crate) turns: u32,
    pub(crate) largest: usize,
    pub(crate) bytes: u64,
    pub(crate) asked: Vec<Question>,
}

/// The answer in a sealed message of a party.
pub(crate) fn opened(party: usize, sealed: &[u8]) -> Answer {
    Sealed::<Answered>::from_bytes(sealed, 1 << 24, &key(party as u8).public()).unwrap().body.answer
}

fn begun(terms: &Terms, fault: Option<Fault>) -> Referee {
    let mut referee = Referee::new(terms).unwrap();
    if let Some(fault) = fault {
        referee = referee.with_fault(fault);
    }
    referee.start(0);
    referee
}

/// After so many turns another referee that is given all events has the same state.
const RESUMED_EVERY: u32 = 5;

/// Plays a game.
pub(crate) fn play(terms: &Terms, parties: &mut [ReceiptParty], act: Act, fault: Option<Fault>) -> Game {
    let mut referee = begun(terms, fault);
    let (mut now, mut events) = (0, Vec::new());
    let (mut turns, mut largest, mut bytes, mut asked) = (0, 0, 0, Vec::new());
    while referee.result().is_none() {
        let pending = referee.pending();
        assert!(!pending.is_empty(), "a game that is not over waits for somebody");
        let mut silent = true;
        for ask in &pending {
            turns = ask.asked.turn + 1;
            asked.push(ask.asked.question.clone());
            let question = Sealed::new(ask.asked.clone(), &key(9)).to_bytes();
            let answer = parties[ask.party].reply(&question).unwrap();
            let Some(answer) = act(ask.party, &ask.asked, opened(ask.party, &answer)) else { continue };
            let (game, turn, question) = (ask.asked.game, ask.asked.turn, ask.asked.digest());
            let sealed =
                Sealed::new(Answered { game, turn, question, answer }, &key(ask.party as u8)).to_bytes();
            silent = false;
            now += 1;
            (largest, bytes) = (largest.max(sealed.len()), bytes + sealed.len() as u64);
            referee.receive(ask.party, &sealed, now);
            events.push(Event::message(now, ask.party, &sealed).kept(&referee));
        }
        if silent || referee.pending().iter().any(|ask| ask.asked.turn + 1 == turns) {
            now = pending.iter().map(|ask| ask.deadline).max().unwrap();
            referee.tick(now);
            events.push(Event::tick(now));
        }
        if turns % RESUMED_EVERY == 0 {
            let mut resumed = begun(terms, fault);
            events.iter().for_each(|event: &Event| event.feed(&mut resumed));
            assert_eq!((resumed.pending(), resumed.result()), (referee.pending(), referee.result()));
        }
    }
    let result = referee.result().unwrap().clone();
    // Of two challengers none is to blame for a sample that the signer names.
    let mut open = result.games.iter().filter(|game| game.losses.is_empty());
    let is_of_sample = open.all(|game| matches!(game.incomplete_log, Some(Unsettled::Sample(_))));
    assert!(fault.is_some() || is_of_sample, "{result:?}");
    let verdict = GameVerdict::new(terms.clone(), events, &result, &key(9));
    Game { result, verdict, turns, largest, bytes, asked }
}

/// Checks that one party alone lost, for this reason, and that a checker of the verdict's bytes finds the same.
pub(crate) fn lost(game: &Game, party: usize, reason: Reason) {
    let losses: Vec<(usize, Reason)> = game.result.losses().map(|loss| (loss.party, loss.reason)).collect();
    assert_eq!(losses, [(party, reason)], "{:?}", game.result);
    assert_eq!(game.result.remaining, [1 - party]);
    let again = GameVerdict::from_bytes(&game.verdict.to_bytes()).unwrap();
    assert_eq!(again.check().unwrap().result(), Some(&game.result));
}

#[test]
fn parties_with_one_trace_do_not_play() {
    let model = Model::small();
    let terms = model.terms(model.signed(None));
    let mut parties = [0, 1].map(|number| model.party(&terms, number, None));
    let game = play(&terms, &mut parties, &honestly, None);
    assert!(game.result.games.is_empty());
    assert_eq!((&game.result.remaining[..], game.result.upheld), (&[0, 1][..], model.claimed()));
}

/// An operator of each kind is wrong once, of the signer and of a challenger; everything behind it follows from it.
#[test]
fn a_wrong_operator_of_a_pass_convicts() {
    let model = Model::small();
    let honest = model.terms(model.signed(None));
    for (number, node) in model.kinds(1).into_iter().enumerate() {
        let wrong = (1, node, number * 37);
        let terms = model.terms(model.signed(Some(wrong)));
        let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
        let game = play(&terms, &mut parties, &honestly, None);
        lost(&game, 0, Reason::WrongValue);
        assert!(game.bytes <= Referee::new(&terms).unwrap().bound().bytes, "node {node}");
        assert_eq!(game.result.upheld, model.claimed(), "node {node}");
        let mut parties = [model.party(&honest, 0, None), model.party(&honest, 1, Some(wrong))];
        let game = play(&honest, &mut parties, &honestly, None);
        lost(&game, 1, Reason::WrongValue);
        assert_eq!(game.result.upheld, model.claimed(), "node {node}");
    }
}

/// In the logged profile a pass rounds each product to the nearest value, by nodes of its own, and no log is asked for.
#[test]
fn a_pass_of_the_logged_profile_has_no_log() {
    let model = Model::of(job_text([200, 8, 1, 2, 48]) + "[rounding]\n", 3);
    let terms = model.terms(model.signed(None));
    for node in model.kinds(0) {
        let mut parties = [model.party(&terms, 0, None), model.party(&terms, 1, Some((0, node, 2)))];
        lost(&play(&terms, &mut parties, &honestly, None), 1, Reason::WrongValue);
    }
}

/// The same for a decoder of a network file: the terms hold the file's text.
#[test]
fn a_wrong_operator_of_a_network_convicts() {
    let model = Model::of(include_str!("../../assets/networks/decoder.json").into(), 9);
    let third = if crate::common::every_pair("two thirds of a network's kinds of operators") { 1 } else { 3 };
    for node in model.kinds(1).into_iter().step_by(third) {
        let wrong = (1, node, 3);
        let terms = model.terms(model.signed(Some(wrong)));
        let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
        lost(&play(&terms, &mut parties, &honestly, None), 0, Reason::WrongValue);
    }
    let terms = model.terms(model.signed(None));
    let node = *model.kinds(1).last().unwrap();
    let mut parties = [model.party(&terms, 0, None), model.party(&terms, 1, Some((1, node, 3)))];
    lost(&play(&terms, &mut parties, &honestly, None), 1, Reason::WrongValue);
}

/// Other operands with digests of their own are not the committed ones, whichever root commits them: the other party is asked.
#[test]
fn forged_operands_are_not_supplied() {
    let model = Model::small();
    for node in model.kinds(1) {
        let wrong = (1, node, 5);
        let terms = model.terms(model.signed(Some(wrong)));
        let mut parties = [model.party(&terms, 0, Some(wrong)), model.party(&terms, 1, None)];
        let graph = Pass::of(&model.receipt, &model.text, 1).unwrap().graph;
        let forges = |party: usize, _: &Asked, answer: Answer| match answer {
            Answer::Operands { mut inputs } if party == 0 => {
                inputs.iter_mut().for_each(|input| forge(&graph, input));
                Some(Answer::Operands { inputs })
            }
            answer => Some(answer),
        };
        lost(&play(&terms, &mut parties, &forges, None), 0, Reason::WrongValue);
    }
}

/// A dispute about an answer of GPT-2 124M takes at most the answers and bytes of docs/DISPUTE.md, whatever the parties do.
#[test]
fn a_game_about_a_large_receipt_is_small() {
    let text = job_text([50_257, 1024, 12, 12, 768]);
    let mut model = Model::small();
    model.receipt.model = model_digest(&settings(answering(&text).writer()).unwrap());
    model.receipt.answer = vec![7; 3000];
    model.receipt.length = 3000;
    model.text = text;
    let bound =
        Referee::new(&model.terms(model.signed_with(Digest([1; 32]), Digest([2; 32])))).unwrap().bound();
    println!("{bound:?}");
    let said = format!("is {} answers and {} kB.\n", bound.messages, bound.bytes / 1000);
    assert!(include_str!("../../docs/DISPUTE.md").ends_with(&said), "{said}");
}

/// Changes an input's bytes, with the digest that they give.
pub(crate) fn forge(graph: &Graph, input: &mut ProvenInput) {
    input.bytes.0.iter_mut().for_each(|byte| *byte ^= 4);
    let ty = graph.tensor(TensorId(input.tensor));
    let count = piece_count(ty.bytes(), SLICE_BYTES);
    let slices = input.slices.iter().zip(input.bytes.0.chunks(SLICE_BYTES));
    let pieces: Vec<_> =
        slices.map(|(&slice, bytes)| (slice, piece_value(bytes, SLICE_BYTES, slice, count))).collect();
    let root = multiproof::root(multiproof::blake3, count, &pieces, &input.siblings.0).unwrap();
    input.commitment.digest = digest_from_root(ty, &root);
}

/// A signer who commits a root that no trace has, and one who opens another root than it signed.
#[test]
fn a_signer_stands_by_the_root_that_it_signed() {
    let model = Model::small();
    let terms = model.terms(model.signed_with(Digest([8; 32]), model.receipt.root));
    let refused = model.refused(&terms);
    assert!(refused.contains("trace of the answer is not the one that the receipt commits"), "{refused}");
    let own = (1, model.kinds(1)[4], 5);
    let mut parties = [model.party(&terms, 0, Some(own)), model.party(&terms, 1, None)];
    lost(&play(&terms, &mut parties, &honestly, None), 0, Reason::Contradiction);
    // It opens the root that it signed, and has no values that give it.
    let (salt, root) = (Digest([4; 32]), claimed_root(&Digest([8; 32]), &model.receipt.root));
    let signed = |party: usize, asked: &Asked, answer: Answer| match (party, &asked.question) {
        (0, Question::Commit) => {
            let commitment = tiebreak_dispute::game::message::commitment(&key(0).public(), &salt, &root);
            Some(Answer::Commit { commitment })
        }
        (0, Question::Reveal) => Some(Answer::Reveal { salt, root }),
        _ => Some(answer),
    };
    lost(&play(&terms, &mut parties, &signed, None), 0, Reason::Contradiction);
}

/// Terms that could convict an honest party, or that say nothing, are refused.
#[test]
fn terms_about_a_receipt_are_checked() {
    let model = Model::small();
    let honest = model.terms(model.signed(None));
    Rules::new(&honest).unwrap();
    assert_eq!(Terms::from_bytes(&honest.to_bytes()).as_ref(), Ok(&honest));
    let with = |receipt: Receipt, key: Option<&PrivateKey>| model.terms(receipt.to_text(key));
    let own = key(0);
    let (receipt, changed) = (&model.receipt, |edit: &dyn Fn(&mut Terms)| {
        let mut terms = honest.clone();
        edit(&mut terms);
        terms
    });
    let outside = Receipt { prompt: vec![1, 200], ..receipt.clone() };
    let salted = salted_texts(&AnyReceipt::Answer(receipt.clone()), [3; 32], Some(&own));
    let cases = [
        ("nobody signed", with(receipt.clone(), None)),
        ("the first party is not", with(receipt.clone(), Some(&key(1)))),
        ("commits no traces", with(Receipt { traces: None, ..receipt.clone() }, Some(&own))),
        ("has a token 200", with(outside, Some(&own))),
        (
            "terms: the receipt's answer is empty",
            with(Receipt { answer: Vec::new(), ..receipt.clone() }, Some(&own)),
        ),
        ("terms: its job has the model", changed(&|terms| terms.job = job_text([200, 8, 2, 4, 48]))),
        ("no program file and no claim", changed(&|terms| terms.program = Some(Base64(vec![1])))),
        ("about no computation, and about no receipt", changed(&|terms| terms.receipt = None)),
        ("opening", model.terms(salted[0].clone())),
    ];
    for (says, terms) in cases {
        let why = Rules::new(&terms).err().expect(says).to_string();
        assert!(why.contains(says), "{says}: {why}");
        assert!(
            ReceiptParty::open(terms, model.weights.clone(), key(0), Box::new(Cpu::new(1).unwrap())).is_err()
        );
    }
    let mut weights = model.weights.clone();
    weights[1][0] ^= 1;
    let why = ReceiptParty::open(honest.clone(), weights, key(0), Box::new(Cpu::new(1).unwrap()))
        .err()
        .unwrap()
        .to_string();
    assert!(why.contains("the root over the parameters is"), "{why}");
    let mut opened = model.terms(salted[0].clone());
    opened.receipt.as_mut().unwrap().opening = Some(salted[1].clone());
    assert_eq!(Rules::new(&opened).unwrap().traces(), receipt.traces);
}

/// A referee that leaves a check out lets a liar through, or accuses an honest party.
#[test]
fn a_faulty_referee_of_a_receipt_is_noticed() {
    let model = Model::small();
    let wrong = (1, model.kinds(1)[4], 5);
    let terms = model.terms(model.signed(None));
    let mut parties = [model.party(&terms, 0, None), model.party(&terms, 1, Some(wrong))];
    let game = play(&terms, &mut parties, &honestly, Some(Fault::Blame));
    assert!(game.result.losses().any(|loss| loss.party == 0), "{:?}", game.result);
}

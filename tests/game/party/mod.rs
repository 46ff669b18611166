//! A party answers every question of a dispute game from its commitments, in the same bytes each time, and no question stops it.
//! A party that cheated answers by its own records.

mod asker;
mod forged;
mod gather;
mod liars;

use crate::common::{self, key, mlp_job, trained};
use asker::{Asker, HONEST, folder, gpt_again, other, referee, terms, word};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::evidence::binding::state_nodes;
use tiebreak_dispute::evidence::leaf::expected;
use tiebreak_dispute::evidence::origin::{self, Origin};
use tiebreak_dispute::game::message::{
    Answer, Asked, Field, Fold, Need, Question, Sealed, Subject, Tree, commitment,
};
use tiebreak_dispute::game::search::Join;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::verdict::{PhaseName, Scalar};
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::Party;
use tiebreak_job::data::{Dataset, Place, Within};
use tiebreak_job::manifest::files_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::{gradient_leaf, gradients_root};
use tiebreak_record::commit::state::state_digest;
use tiebreak_record::commit::tensor::{SLICE_BYTES, digest_from_root, piece_count};
use tiebreak_record::commit::trace::{batch_leaf_name, leaf_name, positions};
use tiebreak_record::commit::{merkle, table, tensor};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::transcript;

#[test]
fn records_are_opened() {
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
}

#[test]
fn batches_are_opened_down_to_an_element() {
    let mut asker = Asker::new(&HONEST, None);
    let program = gpt_again().computation.program;
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
        let Answer::Samples { files, slices } = asker.ask(question) else { panic!("an element") };
        assert_eq!(files_root(&files), asker.run.file.summary().data);
        let parts: Vec<_> = slices.iter().map(|slices| slices.parts()).collect();
        let mut data =
            Dataset::from_slices(&files, &parts, &asker.run.job().data, &program.sample()).unwrap();
        let of_sample = t.ty().len() / program.micro_batch as usize;
        let place = micro * program.micro_batch + (element / of_sample) as u32;
        let at = |step: u32, place: u32| Place { step, batch: program.samples(), place };
        let within = |tensor: usize, element: usize| Within { tensor, element: element as u64 };
        let key = asker.run.key();
        let drawn = data.element_of(key, at(step, place), within(tensor, element % of_sample));
        assert_eq!(drawn.unwrap(), word(&slice, element));
        for (at, within) in [
            (at(step, program.samples()), within(0, 0)),
            (at(0, 0), within(0, 0)),
            (at(step, place), within(tensor, of_sample)),
            (at(step, place), within(2, 0)),
        ] {
            assert!(data.element_of(key, at, within).is_err(), "{at:?} {within:?}");
        }
    }
}

#[test]
fn operators_are_opened_down_to_the_operands_of_an_element() {
    let mut asker = Asker::new(&HONEST, None);
    let program = gpt_again().computation.program;
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
    let program = gpt_again().computation.program;
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
    let (tree, root, of) = (Tree::Gradients { step }, record.gradients.unwrap().0, roots.len() as u64);
    let leaf = asker.leaf(tree, Join::Rfc6962, &root, of, 1);
    assert_eq!(leaf, gradient_leaf(1, &roots[1]).0);

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

/// A random question: often at the edge of the valid range, or far outside.
fn random_question(random: &mut impl FnMut(u64) -> u64) -> Question {
    let mut number = |below: u64| match random(20) {
        0 => u64::MAX - random(3),
        1 => random(1 << 40),
        2 => below,
        _ => random(below),
    };
    let step = number(3).wrapping_add(1) as u32;
    let phase = match number(3) {
        0 => PhaseName::Micro(number(3) as u32),
        1 => PhaseName::Accumulate(number(2) as u32),
        _ => PhaseName::Update,
    };
    let subject = match number(2) {
        0 => Subject::Batch { step, micro: number(2) as u32, tensor: number(3) as usize },
        _ => Subject::Node { step, phase, node: number(30) as usize },
    };
    let fold = match number(6) {
        0 => Fold::Product,
        1 => Fold::Segment,
        2 => Fold::Rank { position: number(9) },
        3 => Fold::Absmax { number: number(9) as u8 },
        4 => Fold::Sums { parts: number(4) as u8 },
        _ => Fold::Count,
    };
    let (element, first, count) = (number(20), number(3), number(4));
    let tree = match number(6) {
        0 => Tree::Transcript,
        1 => Tree::Batch { step },
        2 => Tree::Trace { step },
        3 => Tree::Tensor { subject },
        4 => Tree::Gradients { step },
        _ => Tree::Terms { subject, element, fold },
    };
    let need = match number(4) {
        0 => Need::Frame { fold },
        2 => Need::Decision,
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
    for _ in 0..600 {
        let question = random_question(&mut random);
        declined += u32::from(asker.ask(question) == Answer::Decline);
    }
    assert!((60..580).contains(&declined), "{declined} questions of 600 were declined");
    let mut again = Asker::new(&run, None).party;
    for (question, reply) in asker.said.iter().rev().step_by(7) {
        assert_eq!(again.reply(question).unwrap(), *reply);
    }

    let (question, _) = &asker.said[0];
    let mut refused = |question: &[u8]| asker.party.reply(question).unwrap_err().to_string();
    assert!(refused(b"").contains("message"));
    assert!(refused(&[question.as_slice(), b" "].concat()).contains("encoding"));
    assert!(refused(&vec![b' '; 1 << 15]).contains("16384"));
    let asked = |game| Asked::new(game, 0, Question::Commit);
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

    let folder = folder("unfinished");
    let job = mlp_job(&folder, "step", 3, 1);
    let run = common::begin_run(&Disk::default(), &job, &folder.join("run")).unwrap();
    std::fs::write(run.layout.transcript(), []).unwrap();
    let of = terms(&run);
    assert!(refused(of, run, key()).contains("train it to its end"));
}

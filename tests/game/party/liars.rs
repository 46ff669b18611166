//! Parties that cheated answer by their own records, and challengers of the logged profile by theirs.

use super::asker::{Asker, HONEST, folder, gpt, gpt_again, word};
use crate::common::{mlp_job, trained_on};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::evidence::binding::state_nodes;
use tiebreak_dispute::evidence::leaf::expected;
use tiebreak_dispute::game::message::{Answer, Field, Need, Question, Subject, Tree};
use tiebreak_dispute::game::search::{Join, children};
use tiebreak_dispute::verdict::PhaseName;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_game::party::{PartyError, challenger};
use tiebreak_record::commit::state::state_digest;
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_count};
use tiebreak_record::commit::trace::{leaf_count, positions};
use tiebreak_record::rounding::codec::decode;
use tiebreak_record::rounding::log::{BlockPlace, Shown, SliceProof};
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript;

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
        let program = gpt_again().computation.program;
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
    let program = run.program();
    let nodes: Vec<_> = state_nodes(program).into_iter().map(|n| (Phase::Update, n.unwrap())).collect();
    let made = liar.binding(2, Field::State, &nodes, traces[1]);
    assert_eq!(state_digest(&program.state(), &made), honest.step(2).state);
    assert_ne!(honest.step(2).state, liar.step(2).state);
    // The next step is computed from the state that the liar committed.
    let trace = liar.statement(4).trace;
    liar.operands((4, Phase::Update, program.update.nodes.len() - 1), 0, trace);

    let run = gpt("init", Some("init@0"));
    let mut liar = Asker::new(&run, Some("init@0"));
    assert_ne!(honest.records()[0], liar.records()[0]);
    liar.statement(1);
}

/// A trainer of the logged profile and a challenger, who replays the trainer's logs.
#[test]
fn a_challenger_makes_its_own_records_under_the_trainers_logs() {
    let folder = folder("logged");
    let job = mlp_job(&folder, "microbatch", 3, 2);
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, text + "\n[rounding]\n").unwrap();
    let mut native = Cpu::new(1).unwrap().with_native(Native::Gemm);
    for cheat in [None, Some("decision-far@2"), Some("weight-before@2")] {
        let name = cheat.unwrap_or("honest");
        let trainer = trained_on(&mut native, &job, &folder.join(name), cheat);
        let out = Folder::at(&folder.join(format!("challenger-{name}")));
        let mut steps = 0;
        let claim = transcript::read(&trainer.layout.transcript()).unwrap().0;
        let claim = claim.root(claim.leaves.len());
        let mut replay = || challenger(&trainer, &claim, &out, &mut Cpu::new(1).unwrap(), |_| steps += 1);
        let own = replay().unwrap();
        replay().unwrap();
        assert_eq!(steps, 3, "what is there is not replayed again");
        let records = |run: &Run| transcript::read(&run.layout.transcript()).unwrap().0.records;
        let same = records(&own) == records(&trainer);
        assert_eq!(same, cheat != Some("weight-before@2"), "{name}: decisions are replayed, a lie is not");

        let mut theirs = Asker::new(&trainer, cheat);
        let (trace, step) = (theirs.statement(2).trace, 2);
        let mut ours = Asker::of(own, None);
        assert_eq!(ours.statement(2).trace == trace, same);
        let graph = &trainer.program().micro;
        let (number, logged) = graph.logged.iter().enumerate().next_back().unwrap();
        let node = graph.nodes.iter().position(|node| node.output == logged.output).unwrap();
        let subject = Subject::Node { step, phase: PhaseName::Micro(1), node };
        let answer = theirs.ask(Question::Evidence { subject, element: 1, need: Need::All });
        let Answer::Rounding { inputs, log: Some(log) } = answer else { panic!("{answer:?}") };
        for input in &inputs {
            let committed = theirs.committed(step, Phase::Micro(1), input, trace);
            assert_eq!(committed, input.commitment.digest);
        }
        let (root, parts) = (theirs.step(step).log.unwrap(), 2 * graph.logged.len());
        let (part, elements) = (graph.logged.len() + number, logged.elements() as u64);
        let whole = decode(trainer.rounding_log(step).unwrap().part(part), elements).unwrap();
        let proof = SliceProof::from(&log.log);
        match proof.block(&root, parts, BlockPlace { part, elements, block: log.block }).unwrap() {
            Shown::Block(proven) => assert_eq!(proven.decisions(), Ok(whole)),
            shown => assert!(matches!(shown, Shown::Missing) && whole.is_empty()),
        }
    }
    let (records, _) = transcript::read(&HONEST.layout.transcript()).unwrap();
    let root = records.root(records.leaves.len());
    let error =
        challenger(&HONEST, &root, &Folder::at(&folder.join("exact")), &mut Cpu::new(1).unwrap(), |_| {});
    assert!(error.is_err_and(|error| error.to_string().contains("tiebreak train")));
}

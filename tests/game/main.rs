//! The dispute game, played: an honest party against every lie at every place, in every order, with every trick of a finite list.
//! The honest party never loses, every liar does, and every game ends within its bound.

#[path = "../common/mod.rs"]
mod common;
mod keeping;
mod logged;
mod party;
mod play;
mod player;
mod prediction_liars;
mod predictions;
mod real;
mod receipt_liars;
mod receipts;
mod rows;
mod transport;
mod world;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tiebreak_contract::program::graph::Primitive;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::game::message::{Asked, Question};
use tiebreak_dispute::game::moves::{Bound, LEAF_MAX};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::{GameResult, Reason};
use tiebreak_dispute::game::rules::{Fault, Rules};
use tiebreak_dispute::game::terms::{Claim, ClaimedRun, Clocks, Terms};
use tiebreak_dispute::game::verdict::GameVerdict;
use tiebreak_dispute::size::samples_bytes;
use tiebreak_job::Job;
use tiebreak_job::identity::{CONTRACT, ComputationSummary, program_digest};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::trace::positions;
use tiebreak_run::run::dir::Run;

use crate::play::{Numbers, Seen, Trick, Tricks, key, play, terms};
use crate::player::Player;
use crate::world::{FieldLie, Lie, World};

/// The sampled games to play: those of `TIEBREAK_GAMES`, as N (from 0 on) or FROM..END, so that runs can be joined; else 300.
fn games() -> Range<u64> {
    let Ok(text) = std::env::var("TIEBREAK_GAMES") else { return 0..300 };
    let number = |text: &str| text.parse().expect("TIEBREAK_GAMES is a number N, or FROM..END");
    match text.split_once("..") {
        Some((from, end)) => number(from)..number(end),
        None => 0..number(&text),
    }
}

/// Logistic regression on eight samples of three numbers.
fn toy(folder: &Path, micro_batches: u32, granularity: &str) -> PathBuf {
    common::logistic_job(folder, [8, 3], [4 / micro_batches, micro_batches], granularity)
}

fn run_of(job: &Path, folder: &Path) -> Run {
    common::trained(job, &folder.join("run"), None)
}

/// No trick.
const NONE: Tricks = Tricks(Trick::None, Trick::None);

/// A game of two: an honest party on one side, a liar on the other.
fn against(
    run: &Run,
    honest: &World,
    liar: &World,
    liar_first: bool,
    tricks: Tricks,
    seed: u64,
) -> (Seen, usize) {
    let keys = [key(0), key(1)];
    let referee = key(9);
    let terms = terms(run, &keys, &referee);
    let rules = Rules::new(&terms).unwrap();
    let worlds = if liar_first { [liar, honest] } else { [honest, liar] };
    let place = usize::from(!liar_first);
    let players: Vec<(Player, Tricks)> = keys
        .into_iter()
        .zip(worlds)
        .enumerate()
        .map(|(i, (key, world))| {
            (Player { run, rules: &rules, world, truth: honest, key }, if i == place { tricks } else { NONE })
        })
        .collect();
    (play(&terms, &referee, &players, seed, None), place)
}

/// Checks the result that every game with an honest party must have.
fn fair(seen: &Seen, liar: usize, honest_root: Digest, what: &str) {
    let GameResult { remaining, upheld, .. } = &seen.result;
    assert!(remaining.contains(&(1 - liar)), "{what}: the honest party lost: {:?}", seen.result);
    assert!(!remaining.contains(&liar), "{what}: the liar was not found: {:?}", seen.result);
    assert_eq!(*upheld, Some(honest_root), "{what}");
    let bytes = seen.verdict.to_bytes();
    let verdict = GameVerdict::from_bytes(&bytes).unwrap();
    verdict.check().unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn the_world_in_memory_is_the_trainers() {
    let folder = tempfile::tempdir().unwrap();
    for (job, name) in [
        (toy(folder.path(), 2, "operator"), "toy"),
        (common::gpt_job(folder.path(), "microbatch", ""), "gpt"),
    ] {
        let out = folder.path().join(name);
        let run = run_of(&job, &out);
        let world = World::of(&run, None);
        let (transcript, _) = tiebreak_run::run::transcript::read(&run.layout.transcript()).unwrap();
        let records: Vec<Vec<u8>> = transcript.records.iter().map(Record::encode).collect();
        assert_eq!(world.records, records, "{name}");
    }
}

/// Every node of a toy's steps, in both orders.
#[test]
fn a_wrong_element_of_any_operator_convicts() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    let mut numbers = Numbers(1);
    for (place, (phase, node)) in positions(run.program()).into_iter().enumerate() {
        let graph = graph_of(run.program(), phase);
        let output = graph.tensor(graph.nodes[node].output);
        let element = numbers.below(output.len() as u64) as usize;
        let step = 1 + (place % run.job().steps as usize) as u32;
        let lie = Lie::Node { step, phase, node, element, mask: 1 };
        let liar = World::of(&run, Some(&lie));
        if liar.root() == honest.root() {
            continue; // nothing follows from it
        }
        for first in [false, true] {
            let (seen, place) = against(&run, &honest, &liar, first, NONE, place as u64);
            let what =
                format!("{lie:?} of {} ({})", graph.nodes[node].operator, graph.nodes[node].primitive.name());
            fair(&seen, place, honest.root(), &what);
            let loss = seen.result.losses().next().unwrap();
            assert_eq!(loss.reason, Reason::WrongValue, "{what}: {loss:?}");
            assert!(seen.result.games[0].losses.len() == 1, "{what}");
        }
    }
}

/// Fields of records, batches, initial states and the end of a run.
#[test]
fn a_wrong_record_convicts() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["step", "microbatch", "operator"] {
        let out = folder.path().join(granularity);
        std::fs::create_dir_all(&out).unwrap();
        let run = run_of(&toy(&out, 2, granularity), &out);
        let honest = World::of(&run, None);
        use FieldLie::*;
        let fields = [Gradients, State, Clip, Loss, LearningRate, Cursor, Computation, Step];
        let mut lies: Vec<Lie> = fields.map(|field| Lie::Field { step: 2, field }).to_vec();
        lies.push(Lie::Final);
        lies.extend((0..run.program().state().len()).map(|index| Lie::Initial {
            index,
            element: 0,
            mask: 4,
        }));
        lies.extend([0, 1].map(|tensor| Lie::Batch { step: 2, micro: 1, tensor, element: 1, mask: 1 }));
        for lie in lies {
            let liar = World::of(&run, Some(&lie));
            if liar.root() == honest.root() {
                assert!(granularity == "step", "{lie:?} changes nothing");
                continue;
            }
            for first in [false, true] {
                let (seen, place) = against(&run, &honest, &liar, first, NONE, 7);
                fair(&seen, place, honest.root(), &format!("{granularity}: {lie:?}"));
                assert!(seen.result.convicts(), "{granularity}: {lie:?}: {:?}", seen.result);
            }
        }
    }
}

/// Every trick at every turn, by a party that lies in an operator, in a field, in a batch or in the initial state. Each trick of a lie is
/// played on one side; `.ci/full pairs` plays it on both.
#[test]
fn every_trick_at_every_turn_loses() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    let (phase, node) = node_of(&run, |p| matches!(p, Primitive::Product { .. }));
    let both = common::every_pair("the other side of each trick");
    for (number, lie) in [
        Lie::Node { step: 2, phase, node, element: 1, mask: 1 << 12 },
        Lie::Field { step: 1, field: FieldLie::State },
        Lie::Batch { step: 1, micro: 1, tensor: 0, element: 2, mask: 1 },
        Lie::Initial { index: 0, element: 1, mask: 1 },
    ]
    .into_iter()
    .enumerate()
    {
        let liar = World::of(&run, Some(&lie));
        for (place, trick) in Trick::all().enumerate() {
            for first in [false, true] {
                // Each trick is on either side for two of the four lies.
                if !both && first == ((number + place) % 2 == 0) {
                    continue;
                }
                let (seen, place) = against(&run, &honest, &liar, first, Tricks::one(trick), 5);
                fair(&seen, place, honest.root(), &format!("{lie:?}, {trick:?}"));
            }
        }
    }
}

/// Two tricks of one liar at two turns of a smaller toy, in both orders: every pair whose first trick leaves a game for the
/// second.
#[test]
fn every_pair_of_tricks_loses() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&common::logistic_job(folder.path(), [2, 1], [1, 1], "step"), folder.path());
    let honest = World::of(&run, None);
    let (phase, node) = node_of(&run, |p| matches!(p, Primitive::Product { .. }));
    let liar = World::of(&run, Some(&Lie::Node { step: 1, phase, node, element: 0, mask: 1 << 22 }));
    let mut games = 0;
    // Either side plays half of the tricks; `.ci/full pairs` lets both play all.
    let all = common::every_pair("half of the pairs of tricks");
    for (number, one) in (0..).zip(Trick::all().filter(|one| *one != Trick::None)) {
        for first in [false, true] {
            if !all && first == (number % 2 == 0) {
                continue;
            }
            let (alone, _) = against(&run, &honest, &liar, first, Tricks::one(one), 5);
            let begins = one.turn().map_or(0, |turn| turn + 1);
            for two in Trick::all()
                .filter(|two| two.turn().is_some_and(|turn| (begins..alone.turns).contains(&turn)))
            {
                let (seen, place) = against(&run, &honest, &liar, first, Tricks(one, two), 5);
                fair(&seen, place, honest.root(), &format!("{one:?}, then {two:?}"));
                games += 1;
            }
        }
    }
    println!("{games} games with two tricks, {} operators", positions(run.program()).len());
}

/// Two parties that are wrong in different places: every loser is wrong, and a loss certifies nobody.
#[test]
fn of_two_liars_one_loses_at_least() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    let mut numbers = Numbers(11);
    for seed in 0..60 {
        let mut liar = || loop {
            if let Some(world) = World::lying(&run, &some_lie(&run, &mut numbers)) {
                break world;
            }
        };
        let (a, b) = (liar(), liar());
        if a.root() == b.root() || [&a, &b].iter().any(|world| world.root() == honest.root()) {
            continue;
        }
        let (seen, _) = against(&run, &a, &b, false, NONE, seed);
        assert!(seen.result.losses().count() > 0, "{:?}", seen.result);
        assert_ne!(seen.result.upheld, Some(honest.root()));
    }
    // Different values of one element.
    let (phase, node) = node_of(&run, |p| matches!(p, Primitive::Product { .. }));
    let [a, b] = [1 << 20, 1 << 21]
        .map(|mask| World::of(&run, Some(&Lie::Node { step: 1, phase, node, element: 0, mask })));
    let (seen, _) = against(&run, &a, &b, false, NONE, 0);
    assert_eq!(seen.result.losses().count(), 2, "{:?}", seen.result);
    assert_eq!((seen.result.remaining, seen.result.upheld), (Vec::new(), None));
}

/// A referee who asks an honest party two questions in one turn gets two answers. The two answers are no equivocation.
#[test]
fn answers_to_other_questions_convict_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let world = World::of(&run, None);
    let keys = [key(0), key(1)];
    let terms = terms(&run, &keys, &key(9));
    let rules = Rules::new(&terms).unwrap();
    let player = |key| Player { run: &run, rules: &rules, world: &world, truth: &world, key };
    let players = keys.map(player);
    let mut referee = Referee::new(&terms).unwrap();
    referee.start(0);
    let asked = referee.pending()[0].asked.clone();
    let other = Asked { question: Question::Record { index: 1 }, ..asked.clone() };
    let own = |asked: &Asked| players[0].seal(asked, players[0].answer(&asked.question));
    referee.receive(0, &own(&asked), 1);
    referee.receive(0, &own(&other), 2);
    referee.receive(1, &players[1].seal(&asked, players[1].answer(&asked.question)), 3);
    referee.receive(0, &own(&other), 4);
    for ask in referee.pending() {
        let player = &players[ask.party];
        referee.receive(ask.party, &player.seal(&ask.asked, player.answer(&ask.asked.question)), 5);
    }
    let result = referee.result().unwrap();
    assert_eq!(result.remaining, [0, 1], "{result:?}");
}

/// The lie with this number.
fn some_lie(run: &Run, numbers: &mut Numbers) -> Lie {
    let order = positions(run.program());
    let step = 1 + numbers.below(u64::from(run.job().steps)) as u32;
    match numbers.below(8) {
        0 => Lie::Initial {
            index: numbers.below(run.program().state().len() as u64) as usize,
            element: 0,
            mask: 2,
        },
        1 => Lie::Batch {
            step,
            micro: 0,
            tensor: numbers.below(2) as usize,
            element: numbers.below(4) as usize,
            mask: 1,
        },
        2 => {
            use FieldLie::*;
            let fields = [Gradients, State, Clip, Loss, LearningRate, Cursor, Computation, Step];
            Lie::Field { step, field: fields[numbers.below(8) as usize] }
        }
        _ => {
            let (phase, node) = order[numbers.below(order.len() as u64) as usize];
            let element = numbers.below(1 << 20) as usize;
            Lie::Node { step, phase, node, element, mask: 1 << numbers.below(31) }
        }
    }
}

/// A game of two to five parties: one is honest, the others have lies and tricks from a seed.
fn sampled(run: &Run, honest: &World, seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let mut numbers = Numbers(seed);
    let count = 2 + numbers.below(4) as usize;
    let who = numbers.below(count as u64) as usize;
    let mut lies: Vec<Lie> = Vec::new();
    let mut liars = Vec::new();
    for i in 0..count {
        // Some collude: they tell the lie of the first.
        if i > 0 && numbers.below(3) == 0 {
            lies.push(lies[0].clone());
            liars.push(World::of(run, lies.first()));
            continue;
        }
        let (lie, world) = loop {
            let lie = some_lie(run, &mut numbers);
            if let Some(world) = World::lying(run, &lie) {
                break (lie, world);
            }
        };
        lies.push(lie);
        liars.push(world);
    }
    let keys: Vec<_> = (0..count as u8).map(key).collect();
    let referee_key = key(99);
    let terms = terms(run, &keys, &referee_key);
    let rules = Rules::new(&terms).unwrap();
    let players: Vec<(Player, Tricks)> = keys
        .into_iter()
        .enumerate()
        .map(|(i, key)| {
            let world = if i == who { honest } else { &liars[i] };
            let tricks = match i == who {
                true => NONE,
                false => {
                    Tricks(Trick::numbered(numbers.below(1 << 20)), Trick::numbered(numbers.below(1 << 20)))
                }
            };
            (Player { run, rules: &rules, world, truth: honest, key }, tricks)
        })
        .collect();
    let seen = play(&terms, &referee_key, &players, seed, fault);
    let tricks: Vec<Tricks> = players.iter().map(|(_, tricks)| *tricks).collect();
    let what = format!("seed {seed}, honest {who}, {lies:?}, {tricks:?}: {:?}", seen.result);
    let remaining = &seen.result.remaining;
    if !remaining.contains(&who) {
        return Err(format!("the honest party lost: {what}"));
    }
    if seen.result.upheld != Some(honest.root()) {
        return Err(format!("another root was upheld, or none: {what}"));
    }
    // A party that copies from the first turn on claims the truth.
    let lies = |i: &usize| {
        players[*i].0.world.root() != honest.root() && tricks[*i].at(0) != Trick::Copy { turn: 0 }
    };
    if let Some(liar) = (0..count).filter(lies).find(|i| remaining.contains(i)) {
        return Err(format!("liar {liar} remains: {what}"));
    }
    let bound = Referee::new(&terms).unwrap().bound();
    if seen.result.games.len() >= count || seen.end > bound.milliseconds * count as u64 {
        return Err(format!("beyond the bound: {what}"));
    }
    if fault.is_none() {
        seen.verdict.check().map_err(|error| format!("{error}: {what}"))?;
    }
    Ok(())
}

/// The seed of a failure is printed.
#[test]
fn sampled_games_are_fair() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    let (games, start) = (games(), Instant::now());
    assert!(games.start < games.end, "TIEBREAK_GAMES names no game");
    for seed in games.clone() {
        sampled(&run, &honest, seed, None).unwrap_or_else(|unfair| panic!("{unfair}"));
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "sampled games {} to {}: {:.0} a second",
        games.start,
        games.end - 1,
        (games.end - games.start) as f64 / seconds
    );
}

/// Two liars who agree about an invalid record of the last step, and differ after it: both lose by it, so a game of two always
/// has a loser.
#[test]
fn a_record_that_is_none_costs_both_that_committed_to_it_the_game() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    let liar = |lie: Option<&Lie>, byte: u8| {
        let mut world = World::of(&run, lie);
        let step = world.records.len() - 2;
        world.records[step] = vec![byte; 70];
        world.leaves = world.records.iter().map(|record| merkle::leaf(record)).collect();
        world
    };
    let worlds = [liar(None, 7), liar(Some(&Lie::Final), 7)];
    let terms = terms(&run, &[key(0), key(1)], &key(9));
    let rules = Rules::new(&terms).unwrap();
    let player =
        |i: usize| Player { run: &run, rules: &rules, world: &worlds[i], truth: &honest, key: key(i as u8) };
    let players = [0, 1].map(|i| (player(i), NONE));
    let seen = play(&terms, &key(9), &players, 3, None);
    let losses: Vec<(usize, Reason)> = seen.result.losses().map(|loss| (loss.party, loss.reason)).collect();
    assert_eq!(losses, [(0, Reason::Garbage), (1, Reason::Garbage)], "{:?}", seen.result);
    seen.verdict.check().unwrap();
}

/// The same games reveal a referee that leaves a check out.
#[test]
fn a_faulty_referee_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    for fault in [Fault::Levels, Fault::Slices, Fault::Blame] {
        let found = (0..1000).find(|&seed| sampled(&run, &honest, seed, Some(fault)).is_err());
        println!("{fault:?}: noticed in game {found:?}");
        assert!(found.is_some(), "nobody noticed that {fault:?} are not checked");
    }
}

/// The first node of a step's first micro-batch of this kind.
fn node_of(run: &Run, wanted: impl Fn(&Primitive) -> bool) -> (Phase, usize) {
    let node = run.program().micro.nodes.iter().position(|node| wanted(&node.primitive));
    (Phase::Micro(0), node.expect("the program has such a node"))
}

/// The largest message of a game.
fn largest(seen: &Seen) -> usize {
    seen.verdict.events.iter().filter_map(|event| Some(event.message.as_ref()?.0.len())).max().unwrap_or(0)
}

/// Elements of thousands of terms: each game opens them by folds, and no message is larger than a leaf.
#[test]
fn elements_of_many_terms_are_opened_by_folds() {
    let folder = tempfile::tempdir().unwrap();
    let wide = common::logistic_job(folder.path(), [4, 20_000], [2, 1], "step");
    let wide = run_of(&wide, &folder.path().join("wide"));
    let long = folder.path().join("long");
    std::fs::create_dir_all(&long).unwrap();
    let long = run_of(&common::binary_text_job(&long, 64, 66), &long);
    let of = |run: &Run, wanted: &dyn Fn(&Primitive) -> bool| node_of(run, wanted);
    let product = of(&wide, &|p| matches!(p, Primitive::Product { .. }));
    let segment = of(&long, &|p| matches!(p, Primitive::SegmentSum { .. }));
    let order = of(&long, &|p| matches!(p, Primitive::GroupOrder { .. }));
    let offsets = of(&long, &|p| matches!(p, Primitive::GroupOffsets { .. }));
    let (truth_wide, truth_long) = (World::of(&wide, None), World::of(&long, None));
    for (run, honest, (phase, node), element, mask) in [
        (&wide, &truth_wide, product, 1, 1 << 20),
        (&long, &truth_long, segment, 2, 1 << 20),
        (&long, &truth_long, order, 4100, 1),
        (&long, &truth_long, order, 7, 1 << 30),
        (&long, &truth_long, offsets, 1, 2),
    ] {
        let lie = Lie::Node { step: 1, phase, node, element, mask };
        let operator = &run.program().micro.nodes[node].operator;
        // Values that follow from a wrong order may be outside of the contract's domain: then the lie is in the record alone.
        let Some(liar) = World::lying(run, &lie) else { continue };
        for first in [false, true] {
            let (seen, place) = against(run, honest, &liar, first, NONE, 3);
            let what = format!("{lie:?} of {operator}");
            fair(&seen, place, honest.root(), &what);
            assert!(seen.result.convicts(), "{what}: {:?}", seen.result);
            let largest = largest(&seen);
            println!(
                "{operator}, {}: {} answers, {} bytes, the largest {largest}",
                run.program().micro.nodes[node].primitive.name(),
                seen.messages,
                seen.bytes
            );
            assert!(largest <= 72 * 1024, "{what}: a message of {largest} bytes");
        }
    }
}

/// The referee sees only one element of a sample that is larger than a leaf.
#[test]
fn an_element_of_a_large_sample_is_drawn_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&common::logistic_job(folder.path(), [4, 20_000], [2, 1], "step"), folder.path());
    let honest = World::of(&run, None);
    let liar =
        World::of(&run, Some(&Lie::Batch { step: 2, micro: 0, tensor: 0, element: 30_000, mask: 1 << 22 }));
    for first in [false, true] {
        let (seen, place) = against(&run, &honest, &liar, first, NONE, 3);
        fair(&seen, place, honest.root(), "a wrong number in a large sample");
        let largest = largest(&seen);
        assert!(largest < 8192, "a message of {largest} bytes");
    }
}

/// The header of each .npy file of tokens is shown with an element of a batch: of some files in less than 64 KiB, and of any
/// number within the bound.
#[test]
fn a_batch_from_many_files_is_shown_within_its_bound() {
    for files in [19u16, 200] {
        let folder = tempfile::tempdir().unwrap();
        let job = common::many_files_job(folder.path(), files);
        let run = run_of(&job, folder.path());
        let bound = samples_bytes(&run.job().data.files);
        assert_eq!(bound <= LEAF_MAX, files == 19, "{bound}");
        let honest = World::of(&run, None);
        let liar = World::of(&run, Some(&Lie::Batch { step: 2, micro: 0, tensor: 0, element: 1, mask: 1 }));
        let (seen, place) = against(&run, &honest, &liar, false, NONE, 3);
        fair(&seen, place, honest.root(), "a wrong token");
        assert!(seen.result.convicts(), "{:?}", seen.result);
        let largest = largest(&seen) as u64;
        assert!(
            1400 * u64::from(files) < largest && largest < bound,
            "a message of {largest} bytes, and {bound} at most"
        );
    }
}

/// A dispute about GPT-2 124M takes at most 60 answers and 1 MiB, whatever the parties do; an answer with a block of a rounding log has at most 64 KiB.
#[test]
fn a_game_about_a_large_model_is_small() {
    for rounding in ["", "\n[rounding]\n", "\n[rounding]\npreset = \"paper\"\n"] {
        let bound = bound_of(common::gpt2_job() + rounding);
        println!("{:?}: {bound:?}", rounding.trim());
        assert!(bound.messages <= 60, "{bound:?}");
        assert!(bound.bytes + bound.log_bytes <= 1 << 20, "{bound:?}");
        // The bytes of each of two parties.
        assert!(bound.log_bytes <= 2 << 16, "{bound:?}");
        assert_eq!(bound.log_bytes == 0, rounding.is_empty());
    }
}

/// The bound on a game of two about a job.
fn bound_of(text: String) -> Bound {
    let job = Job::parse("job", &text).unwrap();
    let summary = ComputationSummary {
        contract: CONTRACT.into(),
        challenge: None,
        program: program_digest(&job.program(None).unwrap()),
        data: Digest([1; 32]),
        initial: Digest([2; 32]),
    };
    let keys: Vec<PublicKey> = [0, 1].map(|i| key(i).public()).to_vec();
    let clocks = Clocks { moves: 3_600_000, increment: 60_000, replay: 3_600_000 };
    let logged = job.rounding.is_some();
    let terms = Terms::new(summary, (text, None), &keys, &key(9).public(), clocks, Digest([3; 32]));
    let run = ClaimedRun { trainer_key: None, nonce: "0".repeat(32), origin: InitialOrigin::Seed };
    let terms = if logged { terms.claiming(Claim { run, root: Digest([4; 32]), head: None }) } else { terms };
    Referee::new(&terms).unwrap().bound()
}

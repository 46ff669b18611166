//! The dispute game, played: an honest party against every lie at every place, in every order, with every trick of a finite list. The
//! honest party never loses, every liar does, and every game ends within its bound.

#![cfg(feature = "testing")]

#[path = "../common/mod.rs"]
mod common;
mod play;
mod player;
mod world;

use std::path::{Path, PathBuf};

use tiebreak::commit::record::Record;
use tiebreak::commit::trace::positions;
use tiebreak::dispute::game::referee::Referee;
use tiebreak::dispute::game::result::{GameResult, Reason};
use tiebreak::dispute::game::rules::Rules;
use tiebreak::dispute::game::verdict::GameVerdict;
use tiebreak::program::phase::graph_of;
use tiebreak::run::dir::Run;

use crate::play::{Numbers, Seen, Trick, key, play, terms};
use crate::player::Player;
use crate::world::{FieldLie, Lie, World};

/// How many sampled games are played: `TIEBREAK_GAMES`, or 300.
fn games() -> u64 {
    std::env::var("TIEBREAK_GAMES").ok().map_or(300, |text| text.parse().expect("TIEBREAK_GAMES is a number"))
}

/// Logistic regression on eight samples of three numbers.
fn toy(folder: &Path, micro_batches: u32, granularity: &str) -> PathBuf {
    common::logistic_job(folder, [8, 3], [4 / micro_batches, micro_batches], granularity)
}

fn run_of(job: &Path, folder: &Path) -> Run {
    common::trained(job, &folder.join("run"), None)
}

/// A game of two: an honest party on one side, a liar on the other.
fn against(
    run: &Run,
    honest: &World,
    liar: &World,
    liar_first: bool,
    trick: Trick,
    seed: u64,
) -> (Seen, usize) {
    let keys = [key(0), key(1)];
    let referee = key(9);
    let terms = terms(run, &keys, &referee);
    let rules = Rules::new(&terms).unwrap();
    let worlds = if liar_first { [liar, honest] } else { [honest, liar] };
    let place = usize::from(!liar_first);
    let players: Vec<(Player, Trick)> = keys
        .into_iter()
        .zip(worlds)
        .enumerate()
        .map(|(i, (key, world))| {
            (Player { run, rules: &rules, world, key }, if i == place { trick } else { Trick::None })
        })
        .collect();
    (play(&terms, &referee, &players, seed), place)
}

/// Checks what every game with an honest party has to come to.
fn fair(seen: &Seen, liar: usize, honest_root: tiebreak::commit::digest::Digest, what: &str) {
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
        let (transcript, _) = tiebreak::run::transcript::read(&run.layout.transcript()).unwrap();
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
    for (place, (phase, node)) in positions(&run.program).into_iter().enumerate() {
        let graph = graph_of(&run.program, phase);
        let output = graph.tensor(graph.nodes[node].output);
        let element = numbers.below(output.len() as u64) as usize;
        let step = 1 + (place % run.job.steps as usize) as u32;
        let lie = Lie::Node { step, phase, node, element, mask: 1 };
        let liar = World::of(&run, Some(&lie));
        if liar.root() == honest.root() {
            continue; // nothing follows from it
        }
        for first in [false, true] {
            let (seen, place) = against(&run, &honest, &liar, first, Trick::None, place as u64);
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
        lies.extend((0..run.program.state().len()).map(|index| Lie::Initial { index, element: 0, mask: 4 }));
        lies.extend([0, 1].map(|tensor| Lie::Batch { step: 2, micro: 1, tensor, element: 1, mask: 1 }));
        for lie in lies {
            let liar = World::of(&run, Some(&lie));
            if liar.root() == honest.root() {
                assert!(granularity == "step", "{lie:?} changes nothing");
                continue;
            }
            for first in [false, true] {
                let (seen, place) = against(&run, &honest, &liar, first, Trick::None, 7);
                fair(&seen, place, honest.root(), &format!("{granularity}: {lie:?}"));
                assert!(seen.result.convicts(), "{granularity}: {lie:?}: {:?}", seen.result);
            }
        }
    }
}

/// A lie that a number gives.
fn some_lie(run: &Run, numbers: &mut Numbers) -> Lie {
    let order = positions(&run.program);
    let step = 1 + numbers.below(u64::from(run.job.steps)) as u32;
    match numbers.below(8) {
        0 => Lie::Initial {
            index: numbers.below(run.program.state().len() as u64) as usize,
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

/// Games of two to five parties, one of them honest, the others with lies and tricks from a seed. The seed of a failure is printed.
#[test]
fn sampled_games_are_fair() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(&toy(folder.path(), 2, "microbatch"), folder.path());
    let honest = World::of(&run, None);
    for seed in 0..games() {
        let mut numbers = Numbers(seed);
        let count = 2 + numbers.below(4) as usize;
        let who = numbers.below(count as u64) as usize;
        let lies: Vec<Option<Lie>> =
            (0..count).map(|i| (i != who).then(|| some_lie(&run, &mut numbers))).collect();
        let worlds: Vec<World> = lies.iter().map(|lie| World::of(&run, lie.as_ref())).collect();
        let keys: Vec<_> = (0..count as u8).map(key).collect();
        let referee_key = key(99);
        let terms = terms(&run, &keys, &referee_key);
        let rules = Rules::new(&terms).unwrap();
        let tricks: Vec<Trick> = (0..count)
            .map(|i| if i == who { Trick::None } else { Trick::numbered(numbers.below(1 << 20)) })
            .collect();
        let players: Vec<(Player, Trick)> = keys
            .into_iter()
            .zip(&worlds)
            .zip(&tricks)
            .map(|((key, world), trick)| (Player { run: &run, rules: &rules, world, key }, *trick))
            .collect();
        let seen = play(&terms, &referee_key, &players, seed);
        let what = format!("seed {seed}, honest {who}, {lies:?}, {tricks:?}: {:?}", seen.result);
        assert!(seen.result.remaining.contains(&who), "the honest party lost: {what}");
        assert_eq!(seen.result.upheld, Some(honest.root()), "another root was upheld: {what}");
        for (party, world) in worlds.iter().enumerate() {
            if world.root() != honest.root() {
                assert!(!seen.result.remaining.contains(&party), "a liar remains: {what}");
            }
        }
        assert!(seen.result.games.len() < count, "{what}");
        let bound = Referee::new(&terms).unwrap().bound();
        assert!(seen.end <= bound.milliseconds * count as u64, "{what}");
        seen.verdict.check().unwrap_or_else(|error| panic!("{error}: {what}"));
    }
    println!("{} sampled games", games());
}

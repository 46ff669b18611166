//! The logged profile: the terms fix the trainer's records, and so its rounding logs.

use tiebreak::commit::digest::Digest;
use tiebreak::commit::tree_head::Head;
use tiebreak::dispute::game::referee::Referee;
use tiebreak::dispute::game::result::{Loss, Reason};
use tiebreak::dispute::game::rules::Rules;
use tiebreak::dispute::game::terms::{Claim, Terms};
use tiebreak::dispute::game::verdict::GameVerdict;
use tiebreak::run::dir::Run;

use crate::common;
use crate::play::{Seen, Trick, key, play, terms};
use crate::player::Player;
use crate::run_of;
use crate::world::{FieldLie, Lie, World};

/// A toy of the logged profile.
fn toy(folder: &std::path::Path) -> Run {
    let job = common::logistic_job(folder, [8, 3], [2, 2], "microbatch");
    let text = std::fs::read_to_string(&job).unwrap() + "\n[rounding]\n";
    std::fs::write(&job, text).unwrap();
    run_of(&job, folder)
}

/// Terms about the records of a world.
fn about(run: &Run, world: &World) -> Terms {
    terms(run, &[key(0), key(1)], &key(9)).claiming(Claim { root: world.root(), head: None })
}

/// A game of a trainer and a challenger.
fn game(run: &Run, terms: &Terms, worlds: [&World; 2], tricks: [Trick; 2]) -> Seen {
    let rules = Rules::new(terms).unwrap();
    let player =
        |i: usize| Player { run, rules: &rules, world: worlds[i], truth: worlds[i], key: key(i as u8) };
    let seen = play(terms, &key(9), &[(player(0), tricks[0]), (player(1), tricks[1])], 3, None);
    GameVerdict::from_bytes(&seen.verdict.to_bytes()).unwrap().check().unwrap();
    seen
}

fn losses(seen: &Seen) -> Vec<(usize, Reason)> {
    seen.result.losses().map(|Loss { party, reason, .. }| (*party, *reason)).collect()
}

/// A trainer opens the root of the terms or loses: convicted if it had signed that root, else by the referee's word.
#[test]
fn a_trainer_stands_by_its_claim() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy(folder.path());
    let honest = World::of(&run, None);
    let other = World::of(&run, Some(&Lie::Field { step: 1, field: FieldLie::Log }));
    let unsigned = about(&run, &honest);
    let none = [Trick::None; 2];
    assert_eq!(losses(&game(&run, &unsigned, [&honest, &honest], none)), []);
    assert_eq!(losses(&game(&run, &unsigned, [&other, &honest], none)), [(0, Reason::Refusal)]);
    let head = Head { run: run.id, size: u64::from(run.job.steps) + 2, root: honest.root() };
    let claim = |head: &Head, signer: u8| {
        let note = Some(head.to_note(Some(&key(signer))));
        about(&run, &honest).claiming(Claim { root: honest.root(), head: note })
    };
    let signed = claim(&head, 0);
    assert_eq!(losses(&game(&run, &signed, [&honest, &honest], none)), []);
    let seen = game(&run, &signed, [&other, &honest], none);
    assert_eq!(losses(&seen), [(0, Reason::Contradiction)]);
    assert_eq!((seen.result.convicts(), &seen.result.remaining[..]), (true, &[1][..]));

    let refused = |terms: &Terms| Referee::new(terms).err().unwrap().to_string();
    let other_root = Head { root: other.root(), ..head.clone() };
    let other_run = Head { run: Digest([1; 32]), ..head.clone() };
    let shorter = Head { size: head.size - 1, ..head.clone() };
    for head in [other_root, other_run, shorter] {
        assert!(refused(&claim(&head, 0)).contains("another run, size or root"));
    }
    assert!(refused(&claim(&head, 1)).contains("not the trainer's"));
    assert!(refused(&Terms { claim: None, ..unsigned.clone() }).contains("without the trainer's root"));
    let long = Claim { root: honest.root(), head: Some("x".repeat(1 << 16)) };
    assert!(refused(&unsigned.clone().claiming(long)).contains("head"));
    assert_eq!(Terms::from_bytes(&signed.to_bytes()).unwrap(), signed);

    let exact = folder.path().join("exact");
    std::fs::create_dir_all(&exact).unwrap();
    let exact = run_of(&common::logistic_job(&exact, [8, 3], [2, 2], "step"), &exact);
    assert!(
        !String::from_utf8(terms(&exact, &[key(0), key(1)], &key(9)).to_bytes()).unwrap().contains("claim")
    );
    assert!(refused(&about(&exact, &honest)).contains("exact profile"));
}

/// The log roots follow from the terms, so that a challenger whose record carries another one is convicted.
#[test]
fn a_challenger_of_another_log_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy(folder.path());
    let honest = World::of(&run, None);
    for step in 1..=run.job.steps {
        let other = World::of(&run, Some(&Lie::Field { step, field: FieldLie::Log }));
        let seen = game(&run, &about(&run, &honest), [&honest, &other], [Trick::None; 2]);
        assert_eq!(losses(&seen), [(1, Reason::OtherLog)]);
        assert_eq!((seen.result.convicts(), seen.result.upheld), (true, Some(honest.root())));
    }
    // A trainer who lies elsewhere loses as ever.
    let liar = World::of(&run, Some(&Lie::Field { step: 2, field: FieldLie::State }));
    assert_eq!(
        losses(&game(&run, &about(&run, &liar), [&liar, &honest], [Trick::None; 2])),
        [(0, Reason::WrongValue)]
    );
}

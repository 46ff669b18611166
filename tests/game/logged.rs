//! The logged profile: the terms fix the trainer's records, and so its rounding logs.

use tiebreak_dispute::game::message::{Answer, Asked, LogPlace, Question, SUPPLY_SLICES, Sealed};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::{Loss, Reason};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::terms::{Claim, ClaimedRun, Terms};
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_count};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::rounding::log::{misplaced, parts};
use tiebreak_run::run::dir::Run;

use crate::common;
use crate::play::{Seen, Trick, Tricks, key, play, terms};
use crate::player::Player;
use crate::run_of;
use crate::world::{FieldLie, Lie, LogLie, World};

/// A toy of the logged profile.
fn toy(folder: &std::path::Path) -> Run {
    toy_of(folder, 3)
}

/// The toy with so many numbers a sample: more numbers make its logs longer.
fn toy_of(folder: &std::path::Path, width: u32) -> Run {
    let job = common::logistic_job(folder, [8, width], [2, 2], "microbatch");
    let text = std::fs::read_to_string(&job).unwrap() + "\n[rounding]\n";
    std::fs::write(&job, text).unwrap();
    run_of(&job, folder)
}

/// Terms about the records of a world.
fn about(run: &Run, world: &World) -> Terms {
    terms(run, &[key(0), key(1)], &key(9)).claiming(claim_of(run, world.root(), None))
}

/// A game of a trainer and a challenger.
fn game(run: &Run, terms: &Terms, worlds: [&World; 2], tricks: [Trick; 2]) -> Seen {
    let rules = Rules::new(terms).unwrap();
    let player =
        |i: usize| Player { run, rules: &rules, world: worlds[i], truth: worlds[i], key: key(i as u8) };
    let seen = play(
        terms,
        &key(9),
        &[(player(0), Tricks::one(tricks[0])), (player(1), Tricks::one(tricks[1]))],
        3,
        None,
    );
    GameVerdict::from_bytes(&seen.verdict.to_bytes()).unwrap().check().unwrap();
    seen
}

fn claim_of(run: &Run, root: Digest, head: Option<String>) -> Claim {
    Claim { run: ClaimedRun::of(run.file.summary()), root, head }
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
    let head = Head { run: run.id, size: u64::from(run.job().steps) + 2, root: honest.root() };
    let claim = |head: &Head, signer: u8| {
        let note = Some(head.to_note(Some(&key(signer))));
        about(&run, &honest).claiming(claim_of(&run, honest.root(), note))
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
        assert!(refused(&claim(&head, 0)).contains("the claim's head is over "));
    }
    assert!(refused(&claim(&head, 1)).contains("not the trainer's"));
    assert!(refused(&Terms { claim: None, ..unsigned.clone() }).contains("without the trainer's root"));
    let long = claim_of(&run, honest.root(), Some("x".repeat(1 << 16)));
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

/// The log roots follow from the terms, so a challenger whose record carries another one is convicted.
#[test]
fn a_challenger_of_another_log_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy(folder.path());
    let honest = World::of(&run, None);
    for step in 1..=run.job().steps {
        let other = World::of(&run, Some(&Lie::Field { step, field: FieldLie::Log }));
        let seen = game(&run, &about(&run, &honest), [&honest, &other], [Trick::None; 2]);
        assert_eq!(losses(&seen), [(1, Reason::OtherLog)]);
        assert_eq!((seen.result.convicts(), seen.result.upheld), (true, Some(honest.root())));
    }
    // A trainer who lies elsewhere loses as in any game.
    let liar = World::of(&run, Some(&Lie::Field { step: 2, field: FieldLie::State }));
    assert_eq!(
        losses(&game(&run, &about(&run, &liar), [&liar, &honest], [Trick::None; 2])),
        [(0, Reason::WrongValue)]
    );
}

/// The part of a log after the one that a question carries.
fn after(asked: &Asked, steps: u32) -> Option<LogPlace> {
    let Some(part) = &asked.carried else { return Some(LogPlace { step: 1, first: 0 }) };
    let (step, first) = (part.record.index as u32, part.log.slices[0] as u64 + SUPPLY_SLICES);
    if first < piece_count(part.log.len as usize, SLICE_BYTES) as u64 {
        return Some(LogPlace { step, first });
    }
    (step < steps).then_some(LogPlace { step: step + 1, first: 0 })
}

/// A supply of logs that was played, and then a game of parties that are both honest about it.
struct Supplied {
    seen: Seen,
    /// The number of parts that the challenger received.
    parts: u64,
    given: Vec<u8>,
}

impl Supplied {
    fn losses(&self) -> Vec<(usize, Reason)> {
        losses(&self.seen)
    }
}

/// True if a question belongs to the supply of logs.
fn supplies(asked: &Asked) -> bool {
    matches!(asked.question, Question::Logs { .. } | Question::Supply { .. } | Question::LogBlock { .. })
}

/// Plays a supply; `says` gives the answer of trainer or challenger in place of an honest one, or `None` for silence. With
/// `stall`, answers come in the last moment. After every event another referee resumes from the transcript.
fn supply(
    run: &Run,
    world: &World,
    stall: bool,
    mut says: impl FnMut(usize, &Asked, Answer) -> Option<Answer>,
) -> Supplied {
    let terms = about(run, world);
    let rules = Rules::new(&terms).unwrap();
    let players = [0, 1].map(|i| Player { run, rules: &rules, world, truth: world, key: key(i) });
    let mut referee = Referee::new(&terms).unwrap();
    let (mut events, mut now, mut messages): (Vec<Event>, u64, u64) = (Vec::new(), 0, 0);
    let (mut parts, mut given, mut spent) = (0, Vec::new(), 0);
    referee.start(0);
    while referee.result().is_none() {
        let ask = referee.pending().into_iter().next().unwrap();
        let player = &players[ask.party];
        let asked = &ask.asked;
        let honest = match asked.question {
            Question::Logs { .. } => Answer::Logs { lacks: after(asked, run.job().steps) },
            _ => player.answer(&asked.question),
        };
        if let Some(part) = &asked.carried {
            parts += 1;
            given.extend(&part.log.bytes.0);
        }
        let answer = says(ask.party, asked, honest);
        if stall || answer.is_none() {
            now = ask.deadline - u64::from(answer.is_some());
        }
        let mut counted = |bytes: usize| spent += if supplies(asked) { bytes as u64 } else { 0 };
        counted(Sealed::new(asked.clone(), &key(9)).to_bytes().len());
        let event = match answer {
            Some(answer) => {
                let sealed = player.seal(asked, answer);
                counted(sealed.len());
                Event::message(now, ask.party, &sealed)
            }
            None => Event::tick(now),
        };
        event.feed(&mut referee);
        messages += 1;
        events.push(event.kept(&referee));
        let mut again = Referee::new(&terms).unwrap();
        again.start(0);
        events.iter().for_each(|event| event.feed(&mut again));
        if again.lacks_part() {
            assert!(again.carry(referee.carried().unwrap().clone()));
        }
        assert_eq!((again.pending(), again.result()), (referee.pending(), referee.result()));
        referee = again;
    }
    let result = referee.result().unwrap().clone();
    let verdict = GameVerdict::new(terms, events, &result, &key(9));
    let bytes = verdict.to_bytes();
    GameVerdict::from_bytes(&bytes).unwrap().check().unwrap();
    let bound = referee.bound();
    assert!(now <= bound.supply.milliseconds + bound.milliseconds, "{now} of {bound:?}");
    assert!(
        parts <= bound.supply.parts && spent <= bound.supply.bytes,
        "{parts} parts, {spent} bytes of {bound:?}"
    );
    Supplied {
        seen: Seen { result, verdict, messages, bytes: bytes.len() as u64, end: now, turns: 0 },
        parts,
        given,
    }
}

/// A challenger's answer to a part of a log depends on bytes that a verdict does not hold. So two such answers are no
/// equivocation, and a referee that sends two parts under one name convicts nobody.
#[test]
fn answers_about_parts_of_logs_are_no_equivocation() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy(folder.path());
    let world = World::of(&run, None);
    let terms = about(&run, &world);
    let rules = Rules::new(&terms).unwrap();
    let players =
        [0, 1].map(|i| Player { run: &run, rules: &rules, world: &world, truth: &world, key: key(i) });
    let mut referee = Referee::new(&terms).unwrap();
    let mut events: Vec<Event> = Vec::new();
    let mut twice = 0;
    referee.start(0);
    while referee.result().is_none() {
        let ask = referee.pending().remove(0);
        let (player, asked) = (&players[ask.party], &ask.asked);
        let mut answers = vec![match asked.question {
            Question::Logs { .. } => Answer::Logs { lacks: after(asked, run.job().steps) },
            _ => player.answer(&asked.question),
        }];
        if asked.carried.is_some() {
            twice += 1;
            answers.push(Answer::Unreadable { step: 1, part: 0, block: 0 });
        }
        for answer in answers {
            let event = Event::message(1, ask.party, &player.seal(asked, answer));
            event.feed(&mut referee);
            events.push(event.kept(&referee));
        }
    }
    assert_eq!(twice, run.job().steps);
    let result = referee.result().unwrap().clone();
    assert_eq!((result.losses().count(), &result.remaining[..]), (0, &[0, 1][..]), "{result:?}");
    let verdict = GameVerdict::new(terms, events, &result, &key(9));
    GameVerdict::from_bytes(&verdict.to_bytes()).unwrap().check().unwrap();
}

/// A challenger that has no log gets every log, bit for bit, in as many parts as they have; a verdict does not carry them.
#[test]
fn logs_are_supplied_part_by_part() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy_of(folder.path(), 18_000);
    let world = World::of(&run, None);
    let logs: Vec<&[u8]> = world.steps.iter().map(|step| step.log.as_deref().unwrap()).collect();
    let parts: usize = logs.iter().map(|log| log.len().div_ceil(64 * 1024)).sum();
    assert!(parts > logs.len() + 1, "the logs are too short for this test");
    for stall in [false, true] {
        let supplied = supply(&run, &world, stall, |_, _, honest| Some(honest));
        assert_eq!(supplied.losses(), []);
        assert_eq!((supplied.parts, supplied.given), (parts as u64, logs.concat()));
        assert_eq!(supplied.seen.result.upheld, Some(world.root()));
        assert!(supplied.seen.bytes < 60_000, "{}", supplied.seen.bytes);
    }
    // A challenger that lacks only the second log, and then nothing any more.
    let supplied = supply(&run, &world, false, |_, asked, honest| match asked.question {
        Question::Logs { supplied: None } => {
            Some(Answer::Logs { lacks: Some(LogPlace { step: 2, first: 0 }) })
        }
        Question::Logs { .. } if asked.carried.as_ref().unwrap().log.slices[0] > 0 => {
            Some(Answer::Logs { lacks: None })
        }
        _ => Some(honest),
    });
    assert_eq!((supplied.losses(), supplied.parts), (Vec::new(), 2));
}

/// A challenger cannot get a part twice, go back, or ask beyond the logs.
#[test]
fn a_supply_cannot_be_made_longer_than_the_logs() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy_of(folder.path(), 18_000);
    let world = World::of(&run, None);
    let count =
        |step: usize| piece_count(world.steps[step - 1].log.as_ref().unwrap().len(), SLICE_BYTES) as u64;
    let place = |step, first| LogPlace { step, first };
    let end = count(1).next_multiple_of(SUPPLY_SLICES);
    let garbage = vec![(1, Reason::Garbage)];
    for (number, asks) in [
        vec![place(0, 0)],
        vec![place(run.job().steps + 1, 0)],
        vec![place(1, SUPPLY_SLICES)],
        vec![place(1, 7)],
        vec![place(1, 0), place(1, 0)],
        vec![place(2, 0), place(1, 0)],
        vec![place(2, 0), place(2, 63)],
        vec![place(1, 0), place(1, end)],
        vec![place(1, 0), place(2, SUPPLY_SLICES)],
        vec![place(1, 0), place(1, u64::MAX - 63)],
    ]
    .into_iter()
    .enumerate()
    {
        let mut asks = asks.into_iter();
        let supplied = supply(&run, &world, false, |party, _, honest| match party {
            1 => Some(Answer::Logs { lacks: asks.next() }),
            _ => Some(honest),
        });
        assert_eq!(supplied.losses(), garbage, "{number}");
        assert_eq!(supplied.seen.result.remaining, [0]);
    }
    for (says, reason) in [
        (Some(Answer::Decline), Reason::Refusal),
        (Some(Answer::Reveal { salt: world.root(), root: world.root() }), Reason::Garbage),
        (Some(Answer::Unreadable { step: 1, part: 1 << 20, block: 0 }), Reason::Garbage),
        (Some(Answer::Unreadable { step: 0, part: 0, block: 0 }), Reason::Garbage),
        (None, Reason::Timeout),
    ] {
        let supplied = supply(
            &run,
            &world,
            false,
            |party, _, honest| if party == 1 { says.clone() } else { Some(honest) },
        );
        assert_eq!(supplied.losses(), [(1, reason)], "{says:?}");
    }
}

/// A trainer that does not supply the requested part forfeits, whatever it sends instead; a trainer whose record is invalid is
/// convicted.
#[test]
fn a_trainer_supplies_its_logs_or_loses() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy_of(folder.path(), 18_000);
    let world = World::of(&run, None);
    let other = World::of(&run, Some(&Lie::Field { step: 1, field: FieldLie::Clip }));
    let terms = about(&run, &world);
    let rules = Rules::new(&terms).unwrap();
    let of = |world, step, first| {
        let player = Player { run: &run, rules: &rules, world, truth: world, key: key(0) };
        player.answer(&Question::Supply { place: LogPlace { step, first } })
    };
    let edited = |edit: fn(&mut tiebreak_dispute::game::message::Supplied)| {
        let Answer::Supplied(mut supplied) = of(&world, 1, 0) else { panic!("it supplies") };
        edit(&mut supplied);
        Some(Answer::Supplied(supplied))
    };
    for (number, (instead, reason)) in [
        (None, Reason::Timeout),
        (Some(Answer::Decline), Reason::Refusal),
        (Some(Answer::Logs { lacks: None }), Reason::Garbage),
        (Some(of(&world, 2, 0)), Reason::Refusal),
        (Some(of(&world, 1, SUPPLY_SLICES)), Reason::Refusal),
        (Some(of(&other, 1, 0)), Reason::Refusal),
        (edited(|part| part.log.bytes.0[5] ^= 1), Reason::Refusal),
        (edited(|part| part.log.len -= 1), Reason::Refusal),
        (edited(|part| part.log.slices.truncate(1)), Reason::Refusal),
        (edited(|part| part.log.siblings.0.clear()), Reason::Refusal),
        (edited(|part| part.record.index = 2), Reason::Refusal),
        (edited(|part| part.record.proof.clear()), Reason::Refusal),
        (edited(|part| part.record.record.0[9] ^= 1), Reason::Refusal),
    ]
    .into_iter()
    .enumerate()
    {
        let supplied = supply(&run, &world, false, |_, asked, honest| match asked.question {
            Question::Supply { .. } => instead.clone(),
            _ => Some(honest),
        });
        assert_eq!(supplied.losses(), [(0, reason)], "{number}");
        assert_eq!((supplied.seen.result.remaining, supplied.seen.result.upheld), (vec![1], None));
    }
    // The committed record is no record of this computation, so nobody can replay it.
    for field in [FieldLie::LearningRate, FieldLie::Step, FieldLie::Computation, FieldLie::Cursor] {
        let lie = World::of(&run, Some(&Lie::Field { step: 2, field }));
        let supplied = supply(&run, &lie, false, |_, _, honest| Some(honest));
        assert_eq!(supplied.losses(), [(0, Reason::WrongValue)], "{field:?}");
    }
}

/// A log that no step can have convicts the trainer that committed to it: a few of its bytes prove the defect.
#[test]
fn a_malformed_log_convicts_its_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy_of(folder.path(), 18_000);
    use LogLie::*;
    for what in [Version, Parts, Longer, Shorter, NoLengths, Empty] {
        let world = World::of(&run, Some(&Lie::Log { step: 2, log: what }));
        let log = world.steps[1].log.as_deref().unwrap();
        assert_eq!(misplaced(log, parts(run.program())), Some(0), "{what:?}");
        for part in [0, parts(run.program()) as u32 - 1] {
            let supplied = supply(&run, &world, false, |_, asked, honest| match &asked.question {
                Question::Logs { .. }
                    if asked.carried.as_ref().is_some_and(|part| part.record.index == 2) =>
                {
                    Some(Answer::Unreadable { step: 2, part, block: 0 })
                }
                _ => Some(honest),
            });
            assert_eq!(supplied.losses(), [(0, Reason::WrongValue)], "{what:?}");
            assert!(supplied.seen.result.convicts() && supplied.seen.result.upheld.is_none());
        }
    }
    // A log of one byte too many shows with its first part.
    let long = World::of(&run, Some(&Lie::Log { step: 1, log: TooLong }));
    let supplied = supply(&run, &long, false, |_, _, honest| Some(honest));
    assert_eq!((supplied.losses(), supplied.parts), (vec![(0, Reason::WrongValue)], 0));
}

/// Decisions that cannot be read convict the trainer; a challenger who claims this falsely is convicted itself.
#[test]
fn decisions_that_cannot_be_read_convict() {
    let folder = tempfile::tempdir().unwrap();
    let run = toy_of(folder.path(), 18_000);
    let world = World::of(&run, None);
    // The first part is junk, the second has no decisions, the last has two blocks of them.
    let last = parts(run.program()) as u32 - 1;
    let good = [(1, 0), (1, 1), (last, 0), (last, 1), (last, 2), (last, u64::MAX)]
        .map(|(part, block)| (part, block, 1));
    for (part, block, loser) in [(0, 0, 0), (0, 7, 0)].into_iter().chain(good) {
        let supplied = supply(&run, &world, false, |_, asked, honest| match asked.question {
            Question::Logs { .. } => Some(Answer::Unreadable { step: 2, part, block }),
            _ => Some(honest),
        });
        assert_eq!(supplied.losses(), [(loser, Reason::WrongValue)], "{part} {block}");
    }
    let refused = supply(&run, &world, false, |_, asked, honest| match asked.question {
        Question::Logs { .. } => Some(Answer::Unreadable { step: 2, part: 0, block: 0 }),
        Question::LogBlock { .. } => Some(Answer::Decline),
        _ => Some(honest),
    });
    assert_eq!(refused.losses(), [(0, Reason::Refusal)]);
}

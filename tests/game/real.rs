//! Games between parties that have run directories and replay the disputed step: a GPT, a Llama, a residual network, a logged run.

use std::path::Path;

use tiebreak_dispute::game::breach::{Breach, RecordFault};
use tiebreak_dispute::game::message::{Answer, Answered, Fold, Question, Sealed, Tree};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::{GameResult, Reason};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::party::{Party, PartyError, challenger};
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;

use crate::common;
use crate::play::{key, terms};

/// Plays a game to its end, and checks its verdict's file.
fn played(terms: &Terms, mut parties: Vec<Party>) -> GameVerdict {
    let verdict = tiebreak_game::party::play(terms, &key(9), &mut parties, |_| {}).unwrap();
    GameVerdict::from_bytes(&verdict.to_bytes()).unwrap().check().unwrap();
    verdict
}

fn party(terms: &Terms, run: &Path, number: u8, cheat: Option<&str>) -> Party {
    let run = Run::open(run).unwrap();
    let folder = run_folder(&run);
    let run = run.with_data([folder]);
    let engine = Box::new(Cpu::new(1).unwrap());
    match cheat {
        None => Party::open(terms.clone(), run, key(number), engine).unwrap(),
        Some(cheat) => {
            Party::open_cheating(terms.clone(), run, key(number), engine, cheat.parse().unwrap()).unwrap()
        }
    }
}

/// Replays a trainer's run as a challenger.
fn challenge(trainer: &Run, terms: &Terms, out: &Path) -> Result<Run, PartyError> {
    let claim = &terms.claim.as_ref().unwrap().root;
    challenger(trainer, claim, &Folder::at(out), &mut Cpu::new(2).unwrap(), |_| {})
}

/// The folder of a run's job and data.
fn run_folder(run: &Run) -> std::path::PathBuf {
    run.layout.root.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// An honest trainer, and one who cheats, in both orders: the cheat is convicted, the other one is not.
fn convicted(folder: &Path, job: &Path, cheat: &str) -> GameVerdict {
    let name = cheat.replace('@', "-");
    let honest = folder.join("honest");
    let run = if honest.exists() { Run::open(&honest).unwrap() } else { common::trained(job, &honest, None) };
    common::trained(job, &folder.join(&name), Some(cheat));
    let keys = [key(0), key(1)];
    let terms = terms(&run, &keys, &key(9));
    let parties = vec![
        party(&terms, &folder.join("honest"), 0, None),
        party(&terms, &folder.join(&name), 1, Some(cheat)),
    ];
    let verdict = played(&terms, parties);
    let losses: Vec<_> = verdict.result.losses().collect();
    println!(
        "{cheat}: {} answers, {} bytes: {:#?}",
        verdict.events.len(),
        verdict.to_bytes().len(),
        verdict.result.games[0].found
    );
    assert_eq!(losses.len(), 1, "{cheat}: {losses:?}");
    assert_eq!(losses[0].party, 1, "{cheat}: {losses:?}");
    assert!(losses[0].reason.convicts(), "{cheat}: {losses:?}");
    assert_eq!(verdict.result.remaining, [0]);
    verdict
}

#[test]
fn a_gpt_that_cheats_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let job = common::gpt_job(folder.path(), "step", "");
    for cheat in [
        "operator@5",
        "moment@3",
        "batch@4",
        "init@0",
        "learning-rate@6",
        "weight-before@2",
        "digits@7",
        "skip@8",
        "relabel@0",
        "adversarial@5",
        "reorder@3",
        "top-q@5",
    ] {
        convicted(folder.path(), &job, cheat);
    }
}

/// The computation names the initial state that files of weights give, so a record of another state is wrong by itself: no header
/// of a file is shown.
#[test]
fn another_state_than_that_of_the_weights_is_convicted_by_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let job = common::mlp_job(folder.path(), "step", 2, 1);
    let first = common::trained(&job, &folder.path().join("first"), None);
    std::fs::copy(first.layout.model(), folder.path().join("weights.safetensors")).unwrap();
    let text = std::fs::read_to_string(&job).unwrap() + "\n[init]\nweights = [\"weights.safetensors\"]\n";
    std::fs::write(&job, text).unwrap();
    let verdict = convicted(folder.path(), &job, "init@0");
    let again = verdict.check().unwrap();
    let loss = again.result().unwrap().losses().next().unwrap();
    assert_eq!(loss.what, Breach::Record { index: 0, fault: RecordFault::InitialState });
    convicted(folder.path(), &job, "operator@2");
}

#[test]
fn a_llama_that_cheats_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let job = common::gpt_job(folder.path(), "step", "");
    let llama = "kind = \"llama\"\nkv_heads = 1\nhidden = 20\n";
    common::edit::edit(&job, &[("kind = \"gpt\"\n", llama), ("dropout = 0.1\n", "")]);
    for cheat in ["operator@5", "moment@3", "init@0"] {
        convicted(folder.path(), &job, cheat);
    }
}

#[test]
fn a_residual_network_that_cheats_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let job = common::resnet_job(folder.path(), "microbatch", "");
    for cheat in ["operator@3", "weight-after@2"] {
        convicted(folder.path(), &job, cheat);
    }
}

/// In the logged profile a challenger replays the trainer's run under its logs. A wrong operator convicts the trainer, a decision
/// that the log lacks ends the game without a loss, and an honest trainer has nobody to differ from.
#[test]
fn a_logged_trainer_plays_against_its_challenger() {
    let folder = tempfile::tempdir().unwrap();
    let job = common::gpt_job(folder.path(), "step", "\n[rounding]\n");
    for (cheat, ends) in [
        ("operator@3", Some(Reason::WrongValue)),
        ("decision-hidden@2", Some(Reason::IllegalRounding)),
        ("decisions-dropped@4", None),
    ] {
        let name = cheat.replace('@', "-");
        let out = folder.path().join(&name);
        let run = common::trained(&job, &out, Some(cheat));
        let mine = folder.path().join(format!("{name}-challenger"));
        let run_with_data = Run::open(&out).unwrap().with_data([folder.path().to_path_buf()]);
        let terms = terms(&run, &[key(0), key(1)], &key(9));
        challenge(&run_with_data, &terms, &mine).unwrap();
        let parties = vec![party(&terms, &out, 0, Some(cheat)), party(&terms, &mine, 1, None)];
        let verdict = played(&terms, parties);
        let game = &verdict.result.games[0];
        println!("{cheat}: {} answers, {} bytes: {game:#?}", verdict.events.len(), verdict.to_bytes().len());
        assert_eq!(
            game.losses.first().map(|loss| (loss.party, loss.reason)),
            ends.map(|reason| (0, reason)),
            "{game:?}"
        );
        assert_eq!(game.incomplete_log.is_some(), ends.is_none(), "{game:?}");
        let upheld = verdict.result.upheld.is_some();
        assert_eq!(upheld, ends.is_some(), "{cheat}: {game:?}");
    }
}

/// Plays a game in which one party changes some of its answers before it signs them.
fn skewed(
    terms: &Terms,
    parties: &mut [Party],
    liar: usize,
    mut skew: impl FnMut(&Question, Answer) -> Answer,
) -> GameVerdict {
    let mut referee = Referee::new(terms).unwrap();
    let mut events = Vec::new();
    referee.start(0);
    while referee.result().is_none() {
        for ask in referee.pending() {
            let question = Sealed::new(ask.asked.clone(), &key(9)).to_bytes();
            let mut answer = parties[ask.party].reply(&question).unwrap();
            if ask.party == liar {
                let own = key(liar as u8);
                let mut said = Sealed::<Answered>::from_bytes(&answer, u64::MAX, &own.public()).unwrap().body;
                said.answer = skew(&ask.asked.question, said.answer);
                answer = Sealed::new(said, &own).to_bytes();
            }
            events.push(Event::message(0, ask.party, &answer));
            referee.receive(ask.party, &answer, 0);
        }
    }
    let verdict = GameVerdict::new(terms.clone(), events, referee.result().unwrap(), &key(9));
    GameVerdict::from_bytes(&verdict.to_bytes()).unwrap().check().unwrap();
    verdict
}

/// Adds one to an integer.
fn raise(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return;
        }
    }
}

/// A party that claims other absmaxes or sums of a logged product's element than its operands give is convicted. If it repeats
/// the claim consistently, a range of K convicts it; if it does not, its own contradiction does. Trainer and challenger are
/// treated alike.
#[test]
fn what_is_said_of_a_logged_element_is_searched() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, parts) in [("bf16", "\n[rounding]\n", 1), ("wide", "\n[rounding]\nbits = 28\n", 2)] {
        let job = common::gpt_job(folder.path(), "step", text);
        let [out, mine] = ["run", "mine"].map(|run| folder.path().join(format!("{name}-{run}")));
        let run = common::trained(&job, &out, Some("decision-hidden@2"));
        let with_data = Run::open(&out).unwrap().with_data([folder.path().to_path_buf()]);
        let terms = terms(&run, &[key(0), key(1)], &key(9));
        challenge(&with_data, &terms, &mine).unwrap();
        let mut parties = [party(&terms, &out, 0, Some("decision-hidden@2")), party(&terms, &mine, 1, None)];
        // The counts are for row and column; for a split operand, for row and column of each part.
        let scales = if parts == 1 { 2 } else { 6 };
        let sums = 2 * parts * parts + 2 * parts;
        // Each absmax, then each sum; with the claim repeated, or not.
        for number in 0..scales + sums {
            for (liar, steady) in [(0, true), (1, true), (0, false), (1, false)] {
                let place = if number < scales { 4 * number } else { 4 * scales + 16 * (number - scales) };
                let verdict =
                    skewed(&terms, &mut parties, liar, |question, answer| match (question, answer) {
                        (Question::Total { .. }, Answer::Total { mut value }) => {
                            raise(&mut value.0[place..place + 4]);
                            Answer::Total { value }
                        }
                        (
                            Question::Children { tree: Tree::Terms { fold, .. }, first, .. },
                            Answer::Children { mut values },
                        ) if steady && *first == 0 => {
                            match fold {
                                // The greatest value, in the first range: the claimed one.
                                Fold::Absmax { .. } => {
                                    let all = values.0.chunks(4);
                                    let most =
                                        all.map(|word| u32::from_le_bytes(word.try_into().unwrap())).max();
                                    values.0[..4].copy_from_slice(&(most.unwrap() + 1).to_le_bytes());
                                }
                                _ => raise(&mut values.0[16 * (number - scales)..][..16]),
                            }
                            Answer::Children { values }
                        }
                        (_, answer) => answer,
                    });
                let game = &verdict.result.games[0];
                let reason = if steady { Reason::WrongValue } else { Reason::Contradiction };
                let losses: Vec<_> = game.losses.iter().map(|loss| (loss.party, loss.reason)).collect();
                assert_eq!(losses, [(liar, reason)], "{name}, {number}, {liar}, {steady}: {game:#?}");
            }
        }
    }
}

/// A trainer who published one run and commits to another one in the game does not have the root of the terms. The trainer loses,
/// and the challenger, who replayed the published logs, does not.
#[test]
fn a_trainer_of_another_run_than_claimed_loses() {
    let folder = tempfile::tempdir().unwrap();
    let job = common::gpt_job(folder.path(), "step", "\n[rounding]\n");
    let [published, hidden, mine] = ["published", "hidden", "mine"].map(|name| folder.path().join(name));
    let run = common::trained(&job, &published, None);
    common::trained(&job, &hidden, Some("decision-flipped@3"));
    let with_data = Run::open(&published).unwrap().with_data([folder.path().to_path_buf()]);
    let terms = terms(&run, &[key(0), key(1)], &key(9));
    challenge(&with_data, &terms, &mine).unwrap();
    let own = Run::open(&hidden).unwrap();
    let error = Party::open(terms.clone(), own, key(0), Box::new(Cpu::new(1).unwrap())).err().unwrap();
    assert!(error.to_string().contains("give the run that is disputed"), "{error}");
    let trainer = party(&terms, &hidden, 0, Some("decision-flipped@3"));
    let GameResult { absent, games, remaining, .. } =
        played(&terms, vec![trainer, party(&terms, &mine, 1, None)]).result;
    assert_eq!(
        absent.iter().map(|loss| (loss.party, loss.reason)).collect::<Vec<_>>(),
        [(0, Reason::Refusal)]
    );
    assert_eq!((games.len(), &remaining[..]), (0, &[1][..]));
    // The folder of another run is refused before the replay.
    let with_data = Run::open(&hidden).unwrap().with_data([folder.path().to_path_buf()]);
    let error = challenge(&with_data, &terms, &folder.path().join("other")).err().unwrap();
    assert!(error.to_string().contains("ask the trainer"), "{error}");
}

//! Games between parties that have run directories and replay what is in dispute: a GPT, a residual network, a logged run.

use std::path::Path;

use tiebreak::dispute::game::result::{GameResult, Reason};
use tiebreak::dispute::game::terms::Terms;
use tiebreak::dispute::game::verdict::GameVerdict;
use tiebreak::engine::cpu::Cpu;
use tiebreak::party::{Party, PartyError, challenger};
use tiebreak::run::dir::Run;
use tiebreak::run::disk::Disk;

use crate::common;
use crate::play::{key, terms};

/// Plays a game to its end, and checks its verdict's file.
fn played(terms: &Terms, mut parties: Vec<Party>) -> GameVerdict {
    let verdict = tiebreak::party::play(terms, &key(9), &mut parties, |_| {}).unwrap();
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
    challenger(&Disk::default(), (trainer, claim), out, &mut Cpu::new(2).unwrap(), |_| {})
}

/// The folder of a run's job, where its data lie.
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
    ] {
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

/// In the logged profile a challenger replays the trainer's run under its logs: an operator that is wrong convicts the trainer, a decision
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

/// A trainer who published one run and commits to another one in the game has not the root of the terms: it loses, and its challenger, who replayed
/// the published logs, does not.
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
    // The folder of another run is refused before anything is replayed.
    let with_data = Run::open(&hidden).unwrap().with_data([folder.path().to_path_buf()]);
    let error = challenge(&with_data, &terms, &folder.path().join("other")).err().unwrap();
    assert!(error.to_string().contains("ask the trainer"), "{error}");
}

//! A challenger without the trainer's folder: it gets the rounding logs through the game, replays, and plays.

use std::fs;
use std::path::Path;

use super::asker::{folder, other, referee, terms};
use crate::common::{key, mlp_job, sign_again, step_mut, trained_on};
use tiebreak_dispute::game::message::{Asked, Question, Sealed, Supplied};
use tiebreak_dispute::game::referee::Referee;
use tiebreak_dispute::game::result::Reason;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::reference::Reference;
use tiebreak_game::party::{Gatherer, Gathering, Party, PartyError};
use tiebreak_record::rounding::log::{Log, root};
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::paths::RunPaths;

/// A trainer with native products, so that its logs have decisions.
fn trainer(folder: &Path) -> Run {
    let job = mlp_job(folder, "microbatch", 3, 2);
    let text = fs::read_to_string(&job).unwrap();
    fs::write(&job, text + "\n[rounding]\n").unwrap();
    let mut native = Cpu::new(1).unwrap().with_native(Native::Gemm);
    trained_on(&mut native, &job, &folder.join("trainer"), None)
}

fn gatherer(terms: &Terms, out: &Path, data: &Path) -> Result<Gatherer, PartyError> {
    gatherer_after(None, terms, out, data)
}

/// A challenger that has the earlier run.
fn gatherer_after(
    earlier: Option<&Path>,
    terms: &Terms,
    out: &Path,
    data: &Path,
) -> Result<Gatherer, PartyError> {
    let with = Gathering {
        terms: terms.clone(),
        out: Folder::at(out),
        data: vec![data.to_path_buf()],
        weights: Vec::new(),
        earlier: earlier.map(Path::to_path_buf),
        key: other(),
        engine: Box::new(Cpu::new(1).unwrap()),
        progress: Box::new(|_| {}),
    };
    Gatherer::open(with)
}

/// A game of the trainer and a challenger that is killed and opened again before and after each answer.
fn played(run: &Run, terms: &Terms, out: &Path, data: &Path) -> Referee {
    played_by(run, terms, || gatherer(terms, out, data).unwrap())
}

fn played_by(run: &Run, terms: &Terms, challenger: impl Fn() -> Gatherer) -> Referee {
    let own = Run::open(&run.layout.root).unwrap();
    let mut party = Party::open(terms.clone(), own, key(), Box::new(Cpu::new(1).unwrap())).unwrap();
    let mut game = Referee::new(terms).unwrap();
    game.start(0);
    while game.result().is_none() {
        for ask in game.pending() {
            let sealed = Sealed::new(ask.asked.clone(), &referee()).to_bytes();
            let answer = match ask.party {
                0 => party.reply(&sealed).unwrap(),
                _ => {
                    let answer = challenger().reply(&sealed).unwrap();
                    let again = challenger().reply(&sealed).unwrap();
                    assert_eq!(answer, again, "{:?}", ask.asked.question);
                    answer
                }
            };
            game.receive(ask.party, &answer, 0);
        }
    }
    game
}

#[test]
fn a_challenger_without_the_folder_gets_the_logs_and_agrees() {
    let folder = folder("gather");
    let (run, out) = (trainer(&folder), folder.join("mine"));
    let terms = terms(&run);
    let game = played(&run, &terms, &out, &folder);
    let result = game.result().unwrap();
    assert_eq!((result.losses().count(), result.upheld), (0, terms.claim.as_ref().map(|claim| claim.root)));
    let own = Run::open(&out).unwrap();
    let mut bytes = 0;
    for step in 1..=3 {
        let log = fs::read(run.layout.log(step)).unwrap();
        assert_eq!(fs::read(own.layout.log(step)).unwrap(), log);
        bytes += log.len();
    }
    let parts = vec![Vec::new(); run.program().micro.logged.len() * 2];
    assert!(bytes > 3 * Log::new(&parts).bytes().len(), "the logs have no decisions");
    assert_eq!(own.unexpected_files().unwrap(), Vec::<String>::new());

    let refused = |terms: &Terms, out: &str, data: &Path| match gatherer(terms, &folder.join(out), data) {
        Ok(_) => panic!("it plays"),
        Err(error) => error.to_string(),
    };
    assert!(refused(&terms, "no-data", &out.join("heads")).contains("--data"));
    let other_data = folder.join("other-data");
    fs::create_dir_all(&other_data).unwrap();
    for file in ["images", "labels"] {
        let mut bytes = fs::read(folder.join(file)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(other_data.join(file), bytes).unwrap();
    }
    assert!(refused(&terms, "other", &other_data).contains("the data files are others"));
    let mut again = terms.clone();
    again.claim.as_mut().unwrap().run.nonce = "1".repeat(32);
    assert!(refused(&again, "mine", &folder).contains("another run"));
    // The party checks the part that a question carries, whoever the referee is.
    let mut honest = gatherer(&terms, &folder.join("mine"), &folder).unwrap();
    let question = Question::Logs { supplied: Some(terms.nonce) };
    let asked = Asked::new(terms.game(), 3, question);
    assert!(honest.reply(&Sealed::new(asked, &referee()).to_bytes()).is_err());
}

#[test]
fn a_trainer_whose_decisions_cannot_be_read_is_convicted() {
    let folder = folder("unreadable");
    let run = trainer(&folder);
    let mut parts = vec![Vec::new(); run.program().micro.logged.len() * 2];
    parts[3] = vec![0; 30_000];
    let junk = Log::new(&parts).bytes().to_vec();
    // Invalid decisions, a log that does not end with its last part, one with another number of parts, and one without bytes.
    let logs = [junk.clone(), [&junk[..], &[0]].concat(), Log::new(&parts[1..]).bytes().to_vec(), Vec::new()];
    for (number, log) in logs.into_iter().enumerate() {
        fs::write(run.layout.log(2), &log).unwrap();
        sign_again(&run, |records| step_mut(records, 2).log = Some(root(&log)));
        let game = played(&run, &terms(&run), &folder.join(format!("mine-{number}")), &folder);
        let losses: Vec<_> = game.result().unwrap().losses().map(|loss| (loss.party, loss.reason)).collect();
        assert_eq!(losses, [(0, Reason::WrongValue)], "{:?}", game.result());
    }
}

/// The errors of a challenger that cannot continue: its folder has another run's logs, it lacks a part of one, or the terms are
/// not of the logged profile.
#[test]
fn a_challenger_says_what_is_in_its_way() {
    let folder = folder("in-the-way");
    let run = trainer(&folder);
    let (terms, out) = (terms(&run), folder.join("mine"));
    let mut party =
        Party::open(terms.clone(), Run::open(&run.layout.root).unwrap(), key(), Box::new(Reference)).unwrap();
    let mut game = Referee::new(&terms).unwrap();
    game.start(0);
    let asked = game.pending()[0].asked.clone();
    let sealed = |asked: &Asked| Sealed::new(asked.clone(), &referee()).to_bytes();
    let lacks = gatherer(&terms, &out, &folder).unwrap().reply(&sealed(&asked)).unwrap();
    game.receive(1, &lacks, 0);
    let part = party.reply(&sealed(&game.pending()[0].asked)).unwrap();
    game.receive(0, &part, 0);
    let handed = game.pending()[0].asked.clone();
    assert!(handed.carried.is_some());
    let log = RunPaths { root: out.clone() }.log(1);
    let refused = |asked: &Asked| match gatherer(&terms, &out, &folder).unwrap().reply(&sealed(asked)) {
        Ok(_) => panic!("it goes on"),
        Err(error) => error.to_string(),
    };
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    let parts = vec![Vec::new(); run.program().micro.logged.len() * 2];
    fs::write(&log, Log::new(&parts).bytes()).unwrap();
    let why = refused(&handed);
    assert!(why.contains("other records than those that the terms dispute: choose another folder"), "{why}");
    fs::remove_file(&log).unwrap();
    let mut without = handed.clone();
    without.carried = None;
    assert!(refused(&without).contains("it carries another part of a log than it names"));
    let mut elsewhere = handed.clone();
    elsewhere.carried.as_mut().unwrap().record.index = 2;
    assert!(refused(&elsewhere).contains("it carries another part of a log than it names"));
    elsewhere.question = Question::Logs { supplied: elsewhere.carried.as_ref().map(Supplied::digest) };
    assert!(refused(&elsewhere).contains("supply of a log"), "{}", refused(&elsewhere));
    let other = Asked { game: terms.nonce, ..handed.clone() };
    assert!(refused(&other).contains("another game"));
    assert!(gatherer(&terms, &out, &folder).unwrap().reply(&sealed(&handed)).is_ok());

    let exact = super::asker::terms(&super::asker::HONEST);
    match gatherer(&exact, &folder.join("exact"), &folder) {
        Ok(_) => panic!("it plays"),
        Err(error) => assert!(error.to_string().contains("these terms are of the exact profile"), "{error}"),
    }
}

#[test]
fn a_run_that_goes_on_is_challenged_by_a_replay_of_the_run_before() {
    let folder = folder("goes-on");
    let first = trainer(&folder);
    let mine = folder.join("mine-first");
    played(&first, &terms(&first), &mine, &folder);
    let job = mlp_job(&folder, "microbatch", 3, 2);
    let text = fs::read_to_string(&job).unwrap();
    fs::write(&job, text + "\n[rounding]\n[init]\nrun = \"trainer\"\n").unwrap();
    let mut native = Cpu::new(1).unwrap().with_native(Native::Gemm);
    let second = trained_on(&mut native, &job, &folder.join("second"), None);
    let terms = terms(&second);
    let refused =
        |earlier: Option<&Path>, out: &str| match gatherer_after(earlier, &terms, &folder.join(out), &folder)
        {
            Ok(_) => panic!("it plays"),
            Err(error) => error.to_string(),
        };
    assert!(refused(None, "none").contains("--earlier-run"));
    let other = refused(Some(&second.layout.root), "other");
    assert!(other.contains("the earlier run's last state is another"), "{other}");
    let out = folder.join("mine-second");
    let game = played_by(&second, &terms, || gatherer_after(Some(&mine), &terms, &out, &folder).unwrap());
    let result = game.result().unwrap();
    assert_eq!((result.losses().count(), result.upheld), (0, terms.claim.as_ref().map(|claim| claim.root)));
}

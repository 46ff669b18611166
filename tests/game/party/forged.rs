//! Terms that contradict a party's own run: their author decides nothing.

use super::asker::{folder, gpt_again, other, referee, terms};
use crate::common::edit::{edit, edited};
use crate::common::{key, mlp_job, trained, trained_on};
use tiebreak_dispute::game::result::Reason;
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::terms::{Claim, INCREMENT_MIN, MOVES_MIN, Terms, replay_clock};
use tiebreak_dispute::game::verdict::GameVerdict;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_game::party::{Party, play};
use tiebreak_job::identity::ComputationSummary;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;
use tiebreak_train::cheat::Cheat;

/// Terms with one changed field, and the name of the field.
fn forged(honest: &Terms) -> Vec<(&'static str, Terms)> {
    let mut all = Vec::new();
    let mut change = |field, edit: &dyn Fn(&mut Terms)| {
        let mut terms = honest.clone();
        edit(&mut terms);
        all.push((field, terms));
    };
    let foreign = Digest([1; 32]);
    let mut of_computation = |field, edit: &dyn Fn(&mut ComputationSummary)| {
        change(field, &|terms| edit(terms.computation.as_mut().unwrap()));
    };
    of_computation("contract", &|of| of.contract = "tiebreak-contract-9".into());
    of_computation("challenge", &|of| of.challenge = Some(foreign));
    of_computation("program", &|of| of.program = foreign);
    of_computation("data", &|of| of.data = foreign);
    of_computation("initial state", &|of| of.initial = foreign);
    change("steps", &|terms| {
        let from = terms.job.lines().find(|line| line.starts_with("steps = ")).unwrap().to_string();
        terms.job = edited(&terms.job, &[(&from, "steps = 5")]);
    });
    change("name of your key", &|terms| {
        let renamed = PrivateKey::generate("mallory.example", [5; 32]).unwrap().public();
        terms.parties[0] = renamed.to_text();
    });
    change("clocks.moves", &|terms| terms.clocks.moves = MOVES_MIN - 1);
    change("clocks.increment", &|terms| terms.clocks.increment = INCREMENT_MIN - 1);
    if honest.claim.is_some() {
        let claim = |terms: &mut Terms, edit: &dyn Fn(&mut Claim)| terms.claim.as_mut().map(edit).unwrap();
        change("claim.run.nonce", &|terms| claim(terms, &|claim| claim.run.nonce = "1".repeat(32)));
        change("claim.run.trainer_key", &|terms| {
            claim(terms, &|claim| claim.run.trainer_key = Some(other().public().to_text()));
        });
        change("the text of the job", &|terms| terms.job.push_str("# another comment\n"));
        change("dispute a run with root", &|terms| claim(terms, &|claim| claim.root = foreign));
    }
    all
}

/// The author of terms decides nothing: a party derives each field from its own run, and names the one that differs.
#[test]
fn terms_that_differ_from_the_run_in_any_field_are_refused() {
    let folder = folder("forged");
    let job = mlp_job(&folder, "microbatch", 3, 2);
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, text.clone() + "\n[rounding]\n").unwrap();
    let logged =
        trained_on(&mut Cpu::new(1).unwrap().with_native(Native::Gemm), &job, &folder.join("logged"), None);
    std::fs::write(&job, text + "\n[dispute]\nstep_seconds = 7\n").unwrap();
    let timed = trained(&job, &folder.join("timed"), None);
    for run in [&gpt_again(), &logged, &timed] {
        let mut honest = terms(run);
        honest.clocks.replay = replay_clock(run.job()).unwrap_or(honest.clocks.replay);
        let open = |terms: Terms| {
            Party::open(terms, Run::open(&run.layout.root).unwrap(), key(), Box::new(Cpu::new(1).unwrap()))
        };
        open(honest.clone()).map(drop).unwrap();
        for (field, terms) in forged(&honest) {
            let why = open(terms).map(drop).unwrap_err().to_string();
            assert!(why.contains(field), "{field}: {why}");
        }
        if replay_clock(run.job()).is_some() {
            let mut terms = honest.clone();
            terms.clocks.replay = 1000;
            assert!(open(terms).map(drop).unwrap_err().to_string().contains("clocks.replay"));
            // Another text of the same computation, in which a step takes less.
            let mut terms = honest.clone();
            terms.job = edited(&terms.job, &[("step_seconds = 7", "step_seconds = 1")]);
            terms.clocks.replay /= 7;
            assert!(open(terms).map(drop).unwrap_err().to_string().contains("clocks.replay"));
        }
    }
}

/// A job that continues a run. A party with the initial state that the computation names does not lose, and an origin that gives
/// another state is refused.
#[test]
fn another_earlier_run_convicts_nobody_who_began_from_the_right_one() {
    let folder = folder("earlier");
    let job = mlp_job(&folder, "microbatch", 3, 2);
    let text = std::fs::read_to_string(&job).unwrap();
    trained(&job, &folder.join("right"), None);
    edit(&job, &[("steps = 3", "steps = 2")]);
    trained(&job, &folder.join("wrong"), None);
    let goes_on = |rest: &str| text.clone() + rest + "\n[init]\nrun = \"right\"\noptimizer_state = true\n";
    std::fs::write(&job, goes_on("")).unwrap();
    let second = trained(&job, &folder.join("second"), None);
    let lying = trained(&job, &folder.join("lying"), Some("init@0"));
    // The same computation in a text that begins from the seed: its terms name the same initial state, and change nothing.
    for text in [second.job_text.clone(), second.job_text.split("[init]").next().unwrap().to_string()] {
        let terms = Terms { job: text, ..terms(&second) };
        for cheats in [false, true] {
            let open = |run: &Run, key: PrivateKey| -> Party {
                let run = Run::open(&run.layout.root).unwrap();
                let cpu = Box::new(Cpu::new(1).unwrap());
                match run.layout.root.ends_with("lying") {
                    true => {
                        Party::open_cheating(terms.clone(), run, key, cpu, "init@0".parse::<Cheat>().unwrap())
                            .unwrap()
                    }
                    false => Party::open(terms.clone(), run, key, cpu).unwrap(),
                }
            };
            let mut parties = [open(&second, key()), open(if cheats { &lying } else { &second }, other())];
            let GameVerdict { result, .. } = play(&terms, &referee(), &mut parties, |_| ()).unwrap();
            let losers: Vec<_> = result.losses().map(|loss| (loss.party, loss.reason)).collect();
            let expected = if cheats { vec![(1, Reason::WrongValue)] } else { Vec::new() };
            assert_eq!(losers, expected, "{result:?}");
        }
    }
    // In the logged profile the terms hold the trainer's origin, which must give the initial state, and be the run's own.
    std::fs::write(&job, goes_on("\n[rounding]\n")).unwrap();
    let logged =
        trained_on(&mut Cpu::new(1).unwrap().with_native(Native::Gemm), &job, &folder.join("logged"), None);
    std::fs::write(&job, edited(&goes_on(""), &[("\"right\"", "\"wrong\"")])).unwrap();
    let from_wrong = trained(&job, &folder.join("from-wrong"), None);
    assert_ne!(from_wrong.file.initial, second.file.initial);
    let mut terms = terms(&logged);
    Rules::new(&terms).unwrap().check_initial().unwrap();
    terms.claim.as_mut().unwrap().run.origin = from_wrong.file.origin.clone();
    let why = Rules::new(&terms).unwrap().check_initial().unwrap_err().to_string();
    assert!(
        why.contains("the initial state is not the one that the earlier run's final state gives"),
        "{why}"
    );
    let why =
        Party::open(terms, logged, key(), Box::new(Cpu::new(1).unwrap())).map(drop).unwrap_err().to_string();
    assert!(why.contains("claim.run.origin"), "{why}");
}

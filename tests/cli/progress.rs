//! The progress of long checks: amounts never fall, and end at the whole.

use std::fs;
use std::sync::Arc;

use tiebreak_audit::rounding::reference_outcome_watched;
use tiebreak_audit::watched;
use tiebreak_audit::work::Work;
use tiebreak_audit::{Outcome, checks, replay_to_watched};
use tiebreak_dispute::game::terms::{Clocks, Terms};
use tiebreak_dispute::verdict::{Claim, Ruling};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_game::party::{Party, play};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;

use crate::common::{gpt_job, key, trained};

/// The amounts that a watch was told: done, and the whole.
#[derive(Default)]
struct Told(Vec<(u64, u64)>);

impl Told {
    fn watch(&mut self) -> impl FnMut(u64, u64) + Send {
        |done, all| self.0.push((done, all))
    }

    /// Checks the amounts, of which there are more than `least`.
    fn ends(&self, what: &str, least: usize) {
        let Told(told) = self;
        assert!(told.len() > least, "{what}: {told:?}");
        assert!(told.is_sorted() && told.iter().all(|(done, all)| done <= all), "{what}: {told:?}");
        let (done, all) = told.last().unwrap();
        assert!(done == all && *all > 0, "{what}: ends at {done} of {all}");
    }
}

#[test]
fn the_checks_of_a_run_count_to_their_end() {
    let folder = tempfile::tempdir().unwrap();
    for extra in ["", "[rounding]"] {
        let job = gpt_job(folder.path(), "operator", extra);
        let run = trained(&job, &folder.path().join(format!("run{extra}")), None);
        let (mut all, mut records) = (Told::default(), Told::default());
        let mut watch = all.watch();
        let mut work = Work::of_all_files(&mut watch);
        let checked = watched::always(&run, Some(&key().public()), &mut work).unwrap();
        watched::attachments(&run, &checked, &mut work);
        drop(watch);
        all.ends("every file", 3 * run.job().steps as usize);
        watched::always(&run, None, &mut Work::of_records(&mut records.watch())).unwrap();
        records.ends("the records", run.job().steps as usize);
        assert!(records.0.last() < all.0.last(), "the files beside the records count");

        // The checkpoint is that of step 2.
        let (mut steps, mut cpu) = (Told::default(), Cpu::new(2).unwrap());
        fs::remove_file(run.layout.checkpoint(4)).unwrap();
        let mut session = Session::new(&mut cpu, Arc::new(run.program().clone())).unwrap();
        let differs = replay_to_watched(&run, &checked, &mut session, 5, &mut steps.watch()).unwrap();
        assert!(differs.is_none() && steps.0 == [(1, 2), (2, 2)], "{:?}", steps.0);
        let (mut step, state) = (Told::default(), session.download_state().unwrap());
        let theirs = checked.step(5).unwrap();
        let outcome = reference_outcome_watched(&run, 5, &state, theirs, &mut step.watch()).unwrap();
        assert_eq!(outcome, Outcome::Matches);
        step.ends("the reference", run.program().micro.nodes.len());
    }
}

#[test]
fn the_checks_of_verdicts_count_to_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let honest = trained(&job, &folder.path().join("honest"), None);
    let checked = checks::always(&honest, None).unwrap();
    let verdict = checked.verdict(&honest, 0, Claim::Initial);
    let mut state = Told::default();
    let ruling = verdict.examine_watched(None, &mut state.watch()).outcome.unwrap();
    assert!(matches!(ruling, Ruling::DoesNotConvict(_)), "{ruling:?}");
    state.ends("an initial state", 10);
    assert_eq!(state.0.last().unwrap().1, verdict.memory().unwrap());

    // Two who agree about an honest run.
    let [a, b, referee] = [1, 2, 3].map(|seed| PrivateKey::generate("party.example", [seed; 32]).unwrap());
    let clocks = Clocks { moves: 600_000, increment: 10_000, replay: 600_000 };
    let (public, job) = ([a.public(), b.public()], (honest.job_text.clone(), honest.program_file.clone()));
    let computation = honest.file.summary().computation();
    let terms = Terms::new(computation, job, &public, &referee.public(), clocks, Digest([7; 32]));
    let mut parties = [a, b].map(|key| {
        let run = Run::open(&honest.layout.root).unwrap();
        Party::open(terms.clone(), run, key, Box::new(Cpu::new(1).unwrap())).unwrap()
    });
    let game = play(&terms, &referee, &mut parties, |_| {}).unwrap();
    let mut played = Told::default();
    game.check_watched(&mut played.watch()).unwrap();
    played.ends("a game", game.events.len());
}

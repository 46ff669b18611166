//! Audits find cheating trainers that carry on at the right place, and never accuse honest ones.

use std::path::Path;

use crate::common::{self, edit::edit, gpt_job, key, trained};
use tiebreak_audit::disputed_step::disclosed_tile;
use tiebreak_audit::ground::{Differences, Ground, RecordField};
use tiebreak_audit::localise::Difference;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Report, Silent, audit, checks};
use tiebreak_contract::program::phase::Phase;
use tiebreak_dispute::evidence::binding::Binding;
use tiebreak_dispute::fact::{Fact, OutputPart};
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, Unobserved};
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::replayed_step;

fn audited(run: &Run, engine: &mut dyn Engine, choice: &Choice) -> (Report, Option<Verdict>) {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, choice);
    audit(run, engine, checked, plan, None, &mut Silent).unwrap()
}

fn cheated(folder: &Path, granularity: &str, cheat: &str) -> (Report, Option<Verdict>) {
    let job = gpt_job(folder, granularity, "");
    let run = trained(&job, &folder.join(cheat), Some(cheat));
    audited(&run, &mut Cpu::new(1).unwrap(), &Choice::All)
}

/// The conviction that a file alone gives, to anybody.
fn conviction(verdict: Option<Verdict>) -> Fact {
    let bytes = verdict.expect("a divergence comes with a verdict").to_bytes();
    let verdict = Verdict::from_bytes(&bytes).unwrap();
    match verdict.check(Some(&key().public())).unwrap() {
        Ruling::Convicts(finding) => finding.what.0,
        other => panic!("not convicted: {other:?}"),
    }
}

/// The operator and the phase that a conviction is about.
fn convicted_operator(verdict: Option<Verdict>) -> (String, Phase) {
    match conviction(verdict) {
        Fact::Operator { operator, phase, .. } => (operator, phase),
        other => panic!("{other:?}"),
    }
}

fn diverges_at(report: &Report) -> (u32, Ground) {
    match &report.outcome {
        Outcome::Diverges { step, what } => (*step, what.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_honest_run_matches_on_every_engine() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["step", "microbatch", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let run = trained(&job, &folder.path().join(granularity), None);
        let engines: [Box<dyn Engine>; 3] =
            [Box::new(Cpu::new(1).unwrap()), Box::new(Cpu::new(2).unwrap()), Box::new(Reference)];
        for mut engine in engines {
            let (report, verdict) = audited(&run, engine.as_mut(), &Choice::All);
            assert_eq!(report.outcome, Outcome::Matches);
            assert_eq!(report.signed, format!("signed by {}", key().public().identified()));
            assert_eq!(verdict, None);
            assert_eq!(report.replayed, [(1, 2), (3, 4), (5, 6), (7, 8)]);
        }
    }
}

#[test]
fn an_operators_changed_output_is_convicted_down_to_the_tile() {
    let folder = tempfile::tempdir().unwrap();
    let (report, verdict) = cheated(folder.path(), "operator", "operator@5");
    let (step, what) = diverges_at(&report);
    assert_eq!(step, 5);
    let Ground::Operator(tile) = what else { panic!("{what:?}") };
    assert_eq!((&*tile.operator, &*tile.primitive, tile.phase), ("block0.gelu", "gelu.v1", Phase::Micro(0)));
    assert!(verdict.as_ref().unwrap().to_bytes().len() < 200_000);
    assert_eq!(convicted_operator(verdict), ("block0.gelu".to_string(), Phase::Micro(0)));
}

#[test]
fn a_weight_changed_before_a_step_is_convicted_at_its_first_reader() {
    let folder = tempfile::tempdir().unwrap();
    let (report, verdict) = cheated(folder.path(), "operator", "weight-before@3");
    let (step, what) = diverges_at(&report);
    assert_eq!(step, 3);
    assert!(matches!(what, Ground::Operator(_)), "{what:?}");
    conviction(verdict);
}

#[test]
fn cheats_in_the_step_are_convicted_at_their_operator() {
    let folder = tempfile::tempdir().unwrap();
    // The embedding reads a batch or the state first; only the update reads the learning rate.
    for cheat in ["batch@6", "learning-rate@4", "checkpoint@5"] {
        let (report, verdict) = cheated(folder.path(), "operator", cheat);
        let (step, what) = diverges_at(&report);
        assert_eq!(format!("@{step}"), cheat[cheat.len() - 2..], "{what}");
        let Ground::Operator(tile) = what else { panic!("{cheat}: {what:?}") };
        let place = (tile.operator, tile.phase);
        let fits = match cheat {
            "learning-rate@4" => place.1 == Phase::Update,
            _ => place.0.contains("embedding"),
        };
        assert!(fits, "{cheat}: {place:?}");
        assert_eq!(convicted_operator(verdict), place);
    }
}

#[test]
fn a_state_changed_after_the_update_contradicts_its_own_trace() {
    let folder = tempfile::tempdir().unwrap();
    for cheat in ["weight-after@4", "moment@3", "skip@5", "glue@3", "interpolate@4", "top-q@6"] {
        let (report, verdict) = cheated(folder.path(), "operator", cheat);
        assert_eq!(format!("@{}", diverges_at(&report).0), cheat[cheat.len() - 2..]);
        assert!(matches!(verdict.as_ref().unwrap().claim, Claim::Binding { .. }));
        conviction(verdict);
    }
}

#[test]
fn without_operator_traces_the_verdict_names_the_step() {
    let folder = tempfile::tempdir().unwrap();
    for cheat in [
        "operator@5",
        "weight-before@3",
        "weight-after@4",
        "moment@4",
        "batch@6",
        "skip@5",
        "learning-rate@4",
        "checkpoint@5",
        "digits@1",
    ] {
        let (report, verdict) = cheated(folder.path(), "microbatch", cheat);
        let (step, what) = diverges_at(&report);
        assert_eq!(format!("@{step}"), cheat[cheat.len() - 2..], "{what}");
        let verdict = verdict.unwrap();
        let outcome = verdict.check(Some(&key().public())).unwrap();
        assert!(matches!(outcome, Ruling::NeedsReplay { step: s, .. } if s == step));
        if cheat == "moment@4" {
            assert!(
                matches!(&what, Ground::Step { tensors, .. } if tensors[0].starts_with("m/token_embedding")),
                "{what:?}"
            );
        }
        if cheat == "operator@5" {
            assert!(matches!(&what, Ground::Step { micro_batches, .. } if *micro_batches == [0]), "{what:?}");
        }
    }
}

#[test]
fn initial_weights_that_are_not_the_seeds_are_convicted() {
    let folder = tempfile::tempdir().unwrap();
    for cheat in ["init@0", "relabel@0"] {
        let (report, verdict) = cheated(folder.path(), "microbatch", cheat);
        assert!(matches!(report.outcome, Outcome::Inconsistent { step: 0, .. }));
        assert_eq!(conviction(verdict), Fact::InitialRecord);
    }
}

#[test]
fn a_sample_replays_whole_segments_and_says_what_it_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let run = trained(&job, &folder.path().join("run"), None);
    let (report, _) = audited(&run, &mut Cpu::new(2).unwrap(), &Choice::Sample { fraction: 0.3, seed: 7 });
    assert_eq!(report.outcome, Outcome::Matches);
    assert!(!report.replayed.is_empty() && report.replayed.len() < 4);
    assert!(report.not_checked.iter().any(|s| s.contains("of 8 steps were not in the plan")), "{report:?}");
    let (report, _) = audited(&run, &mut Cpu::new(2).unwrap(), &Choice::Range(4, 5));
    assert_eq!(report.replayed, [(3, 4), (5, 5)]);
}

/// An auditor whose time ends before the scalar reference has confirmed a difference accuses nobody, and learns how to continue.
#[test]
fn a_difference_that_is_not_confirmed_in_time_is_no_conviction() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["microbatch", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let run = trained(&job, &folder.path().join(granularity), Some("operator@1"));
        let checked = checks::always(&run, Some(&key().public())).unwrap();
        let before = checks::state_after(&run, &checked, 0).unwrap();
        let batch = run.batch(&mut run.dataset().unwrap(), 1).unwrap();
        let mut cpu = Cpu::new(1).unwrap();
        let mut session = Session::new(&mut cpu, std::sync::Arc::new(run.program().clone())).unwrap();
        session.load(&before).unwrap();
        let (mine, _) = replayed_step(&run, &mut session, 1, &batch, false).unwrap();
        let end = Some(std::time::Instant::now());
        let difference = Difference {
            recomputes: false,
            run: &run,
            checked: &checked,
            before: &before,
            batch: &batch,
            mine: &mine,
            engine: "cpu",
            end,
        };
        let found = difference.localise().unwrap();
        let Outcome::Unconfirmed { step: 1, what } = found.outcome else { panic!("{:?}", found.outcome) };
        let Ground::OutOfTime { step: 1, found: differs, .. } = what else { panic!("{what:?}") };
        let Ground::Fields(Differences(fields)) = *differs else { panic!("{differs:?}") };
        assert!(fields.contains(&RecordField::Gradients), "{fields:?}");
        assert_eq!(found.verdict, None);
        // With enough time, the same difference is a conviction.
        let found = Difference { end: None, ..difference }.localise().unwrap();
        assert!(matches!(found.outcome, Outcome::Diverges { step: 1, .. }) && found.verdict.is_some());
        let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
        let none = Some(std::time::Duration::ZERO);
        drop(session);
        let (report, _) = audit(&run, &mut cpu, checked, plan, none, &mut Silent).unwrap();
        assert!(!report.is_complete() && report.replayed.iter().all(|(first, last)| first > last));
    }
}

/// An engine that is right except for two elements of one node.
struct Faulty(Cpu);

struct FlipFirst<'a> {
    inner: Option<&'a mut dyn Observer>,
}

impl Observer for FlipFirst<'_> {
    fn node(
        &mut self,
        index: usize,
        node: &tiebreak_contract::program::graph::Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let mut changed = bytes.to_vec();
        if node.operator == "block0.gelu" {
            changed[2] ^= 0x10;
            changed[6] ^= 0x10;
        }
        if let Some(inner) = &mut self.inner {
            inner.node(index, node, &changed, inputs)?;
        }
        Ok(Some(changed))
    }
}

impl Engine for Faulty {
    tiebreak_engine::forward!(self => self.0; upload, read, compile);

    fn describe(&self) -> String {
        "faulty adapter".into()
    }
    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        self.0.run(compiled, inputs, Some(&mut FlipFirst { inner: observer }))
    }
}

#[test]
fn a_faulty_auditor_accuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["step", "microbatch", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let run = trained(&job, &folder.path().join(granularity), None);
        let (report, verdict) = audited(&run, &mut Faulty(Cpu::new(1).unwrap()), &Choice::All);
        assert!(
            matches!(&report.outcome, Outcome::EngineFaulty { step: 1, engine, .. } if engine == "faulty adapter"),
            "{:?}",
            report.outcome
        );
        assert_eq!(verdict, None);
    }
}

#[test]
fn a_trainer_whose_engine_is_faulty_can_disclose_the_tile() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let disk = tiebreak_run::run::disk::Disk::default();
    let run = common::begin_run(&disk, &job, &folder.path().join("run")).unwrap();
    let mut faulty = Faulty(Cpu::new(1).unwrap());
    tiebreak_train::train(&run, &mut faulty, Some(&key()), &mut tiebreak_train::Silent).unwrap();
    let (report, verdict) = audited(&run, &mut Cpu::new(1).unwrap(), &Choice::All);
    assert_eq!(diverges_at(&report).0, 1);
    let wide = verdict.unwrap();
    let Claim::Tile(claim) = &wide.claim else { panic!("{:?}", wide.claim) };
    assert_eq!(claim.disclosed, None, "two elements cannot be guessed");
    let honest = disclosed_tile(&run, &mut Cpu::new(1).unwrap(), 1, claim).unwrap();
    assert_eq!(honest, None);
    let tile = disclosed_tile(&run, &mut faulty, 1, claim).unwrap().expect("the same fault again");
    let narrow = wide.narrowed(&tile).unwrap().unwrap();
    let finding = conviction(Some(narrow));
    assert!(
        matches!(finding, Fact::Operator { part: OutputPart::Element { element: 0, .. }, .. }),
        "{finding:?}"
    );
}

#[test]
fn a_verdict_that_was_changed_convicts_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (_, verdict) = cheated(folder.path(), "operator", "operator@5");
    let bytes = verdict.unwrap().to_bytes();
    let public = key().public();
    let mut still = 0;
    for i in (0..bytes.len()).step_by(bytes.len() / 400 + 1) {
        let mut changed = bytes.clone();
        changed[i] ^= 1;
        if let Ok(verdict) = Verdict::from_bytes(&changed)
            && let Ok(Ruling::Convicts(_)) = verdict.check(Some(&public))
        {
            still += 1; // only if the byte does not matter
        }
    }
    assert_eq!(still, 0);
    for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        assert!(Verdict::from_bytes(&bytes[..length]).is_err());
    }
}

#[test]
fn a_binding_verdict_against_an_honest_trainer_does_not_convict() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let run = trained(&job, &folder.path().join("run"), None);
    let checked = checks::always(&run, None).unwrap();
    let trace = tiebreak_run::run::traces::read(run.program(), &run.layout.trace(2)).unwrap();
    // Nothing is frozen, so these digests are never used.
    let before = vec![Digest([0; 32]); run.program().state().len()];
    let Binding { outputs, siblings, kept } = Binding::of(run.program(), &trace, &before);
    let verdict = checked.verdict(&run, 2, Claim::Binding { outputs, siblings, before: None, kept });
    assert!(matches!(verdict.check(None), Ok(Ruling::DoesNotConvict(_))));
}

/// Edits one file of a run and returns the error of the checks.
fn error_after(folder: &Path, edit: impl Fn(&Run)) -> String {
    let job = gpt_job(folder, "microbatch", "");
    let out = folder.join("edited");
    let _ = std::fs::remove_dir_all(&out);
    let run = trained(&job, &out, None);
    edit(&run);
    let checked = Run::open(&out).and_then(|run| checks::always(&run, Some(&key().public())));
    match checked {
        Err(error) => error.to_string(),
        Ok(checked) => match (checked.inconsistent, checked.damaged.first()) {
            (Some(found), _) => found.what.to_string(),
            (None, damaged) => damaged.expect("something is wrong").to_string(),
        },
    }
}

fn flip(path: &Path, from_end: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn every_edited_file_is_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = |edit: &dyn Fn(&Run)| error_after(folder.path(), edit);
    let has = |error: String, wanted: &str| assert!(error.contains(wanted), "{error}");
    has(error(&|run| flip(&run.layout.transcript(), 400)), "its checksum is wrong");
    has(error(&|run| flip(&run.layout.checkpoint(4), 9)), "it is not the state that record 4 commits");
    has(
        error(&|run| flip(&run.layout.model(), 9)),
        "the released model is not the final state's parameters and buffers",
    );
    has(error(&|run| flip(&run.layout.data().join("data-0.bin"), 9)), " are not what the manifest promises");
    has(error(&|run| flip(&run.layout.head(10), 20)), "head");
    has(
        error(&|run| {
            edit(run.layout.run_json(), &[("\"root\"", "\"name\": \"../job.toml\", \"root\"")]);
        }),
        "unknown field `name`",
    );
    has(error(&|run| flip(&run.layout.job(), 300)), "job.toml");
    has(error(&|run| flip(&run.layout.data_tree(0), 9)), "the manifest promises ");
    has(
        error(&|run| {
            edit(run.layout.run_json(), &[("tiebreak-contract-2", "tiebreak-contract-1")]);
        }),
        "it follows \"tiebreak-contract-1\"",
    );
    has(
        error(&|run| {
            edit(run.layout.run_json(), &[("tiebreak-contract-2", "tiebreak-contract-0")]);
        }),
        "it follows \"tiebreak-contract-0\"",
    );
    has(
        error(&|run| {
            let bytes = std::fs::read(run.layout.transcript()).unwrap();
            std::fs::write(run.layout.transcript(), &bytes[..bytes.len() - 100]).unwrap();
        }),
        "the head covers 10 records",
    );
    has(
        error(&|run| {
            let path = run.layout.checkpoint(2);
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        }),
        "a plain file is wanted",
    );
    has(
        error(&|run| {
            let bytes = [&200_000u64.to_le_bytes()[..], br#"{"__metadata__":{"#].concat();
            std::fs::write(run.layout.checkpoint(2), bytes).unwrap();
        }),
        "a header of at most ",
    );
    has(
        error(&|run| {
            let file = std::fs::File::options().write(true).open(run.layout.checkpoint(2)).unwrap();
            file.set_len(1 << 40).unwrap(); // the file is sparse: nothing may be allocated for it
        }),
        "is larger than the limit",
    );
}

#[test]
fn another_trainers_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let run = trained(&job, &folder.path().join("run"), None);
    let other: PublicKey = PrivateKey::generate("trainer.example", [6; 32]).unwrap().public();
    let Err(error) = checks::always(&run, Some(&other)) else { panic!("a foreign key was accepted") };
    let RunError::OtherKey { named, given, .. } = error else { panic!("{error}") };
    assert_eq!((named, given), (key().public().to_text(), other.to_text()));
    let checked = checks::always(&run, None).unwrap();
    assert_eq!(checked.signed, "consistent, signer unknown");
}

#[test]
fn one_micro_batch_can_be_replayed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let run = trained(&job, &folder.path().join("run"), None);
    let checked = checks::always(&run, None).unwrap();
    let mut engine = Cpu::new(1).unwrap();
    let mut session = Session::new(&mut engine, std::sync::Arc::new(run.program().clone())).unwrap();
    let state =
        tiebreak_run::run::checkpoint::read(&run.layout.checkpoint(4), &run.program().state()).unwrap();
    session.load(&state).unwrap();
    let key = tiebreak_job::identity::philox_key(&run.computation.seed);
    let batch = run.dataset().unwrap().micro_batch(run.program(), key, 5, 2).unwrap();
    let scalars = tiebreak_run::step::scalars(&run.computation, 5);
    let gradients = session.micro_batch(scalars, 2, &batch, &mut Unobserved).unwrap();
    let root = tiebreak_run::step::gradient_root(&mut session, &gradients).unwrap();
    assert_eq!(root, run.gradient_roots(checked.step(5).unwrap()).unwrap()[2]);
}

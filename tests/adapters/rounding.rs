//! The logged profile: trainers on kernels that round differently, auditors on exact engines, the same bits; and logs that lie.

use std::fs;
use std::path::Path;
use std::sync::MutexGuard;

use crate::common::{begin_run, edit::edit, every_pair, files, gpt_job, key, resnet_job, trained_on};
use crate::gpus::{Gpus, gpus};
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{AuditError, Outcome, Report, Silent, audit, checks};
use tiebreak_dispute::verdict::{Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::reference::Reference;
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{self as train, train};

/// The job of a small GPT in the logged profile, large enough for its kernels to disagree.
fn logged_job(folder: &Path, extra: &str) -> std::path::PathBuf {
    let path = gpt_job(folder, "microbatch", &format!("\n[rounding]\n{extra}"));
    let small = ("micro_batches = 3", "micro_batches = 2");
    edit(&path, &[("context = 12", "context = 32"), ("width = 16", "width = 64"), small]);
    path
}

fn audited(run: &Run, engine: &mut dyn Engine) -> Result<Report, AuditError> {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    Ok(audit(run, engine, checked, plan, None, &mut Silent)?.0)
}

fn cpu(native: Native) -> Cpu {
    Cpu::new(2).unwrap().with_native(native)
}

/// The engines of this machine; GPUs are trainers and auditors.
struct Machine {
    cpus: Vec<(String, Box<dyn Engine>)>,
    gpus: MutexGuard<'static, Gpus>,
    /// True if SwiftShader is among them.
    slow: bool,
}

impl Machine {
    fn new(slow: bool) -> Machine {
        let native = |native: Native| (native.name().to_string(), Box::new(cpu(native)) as Box<dyn Engine>);
        let mut cpus: Vec<(String, Box<dyn Engine>)> = Native::ALL.into_iter().map(native).collect();
        cpus.push(("cpu".into(), Box::new(Cpu::new(2).unwrap())));
        cpus.push(("reference".into(), Box::new(Reference)));
        Machine { cpus, gpus: gpus(), slow }
    }

    fn trainers(&mut self) -> impl Iterator<Item = usize> + use<> {
        (0..Native::ALL.len()).chain(self.gpus_from())
    }

    fn auditors(&mut self) -> impl Iterator<Item = usize> + use<> {
        (Native::ALL.len()..self.cpus.len()).chain(self.gpus_from())
    }

    fn gpus_from(&mut self) -> std::ops::Range<usize> {
        self.cpus.len()..self.cpus.len() + self.gpus.chosen(self.slow).len()
    }

    fn engine(&mut self, number: usize) -> (String, &mut dyn Engine) {
        match number.checked_sub(self.cpus.len()) {
            None => {
                let (name, engine) = &mut self.cpus[number];
                (name.clone(), engine.as_mut())
            }
            Some(gpu) => {
                let engine = self.gpus.chosen(self.slow).swap_remove(gpu);
                (engine.describe(), engine)
            }
        }
    }
}

/// Trains a job on every trainer, and audits each run by the auditors that `asked` selects by names. The audits match, no
/// decision is unusual, and some trainers differ.
fn replayed(folder: &Path, job: &Path, mut machine: Machine, asked: impl Fn(&str, &str) -> bool) {
    let mut heads = Vec::new();
    for trainer in machine.trainers() {
        let (name, trainer) = machine.engine(trainer);
        let run = trained_on(trainer, job, &folder.join(name.replace(['/', ' '], "-")), None);
        heads.push(fs::read(run.layout.model()).unwrap());
        for auditor in machine.auditors() {
            let (auditor, engine) = machine.engine(auditor);
            if !asked(&name, &auditor) {
                continue;
            }
            let report = audited(&run, engine).unwrap();
            assert_eq!(report.outcome, Outcome::Matches, "{name} audited by {auditor}");
            let tally = report.rounding.expect("a logged run has a tally");
            assert!(tally.decisions > 0 && tally.bits >= tally.decisions);
            assert_eq!(
                (tally.illegal, tally.beyond, tally.needless),
                (0, 0, 0),
                "{name} audited by {auditor}"
            );
            assert_eq!(
                (tally.unusual(), &tally.remarks[..]),
                (None, &[][..]),
                "{name} audited by {auditor}: {tally:?}"
            );
        }
    }
    // The trainers do differ: otherwise this would test nothing.
    let first = heads[0].clone();
    heads.retain(|model| *model != first);
    assert!(!heads.is_empty(), "every trainer reached the same weights");
}

/// The CPU engine audits every trainer. The other auditors have its bits: each of them audits a CPU's trainer, and a GPU audits
/// the GPUs' runs too. TIEBREAK_EVERY_PAIR asks for all other pairs, but for the scalar reference's, which is slow.
#[test]
fn every_auditor_replays_every_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), "");
    let native = Native::ALL.map(Native::name);
    let all = every_pair("GPUs as auditors of all the CPU's kernels but one, and runs of eight steps");
    if !all {
        edit(&job, &[("steps = 8", "steps = 4")]);
    }
    replayed(folder.path(), &job, Machine::new(true), |trainer, auditor| match auditor {
        "cpu" => true,
        "reference" => trainer == "sequential",
        _ => all || trainer == "sequential" || !native.contains(&trainer),
    });
}

#[test]
fn convolutions_are_logged_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let job = resnet_job(folder.path(), "microbatch", "rounding = {}");
    let machine = Machine::new(every_pair("logged convolutions on SwiftShader"));
    // All auditors have the same bits, so the slow ones get one run each.
    replayed(folder.path(), &job, machine, |trainer, auditor| auditor == "cpu" || trainer == "interleaved");
}

#[test]
fn binary64_kernels_on_finer_grids_are_replayed_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(every_pair("audits of finer grids on SwiftShader"));
    for bits in [32, 28] {
        let job = logged_job(folder.path(), &format!("bits = {bits}\n"));
        edit(&job, &[("steps = 8", "steps = 4")]);
        for native in [Native::Gemm, Native::Sequential { fused: false }, Native::Interleaved { fused: true }]
        {
            let out = folder.path().join(format!("{bits}-{}", native.name()));
            let run = trained_on(&mut cpu(native), &job, &out, None);
            for auditor in machine.auditors() {
                let (auditor, engine) = machine.engine(auditor);
                // The scalar reference is slow: it gets one pair. GPUs compile shaders, so they see one trainer.
                if auditor != "cpu" && (bits == 28 || native != Native::Gemm) {
                    continue;
                }
                let report = audited(&run, engine).unwrap();
                assert_eq!(
                    report.outcome,
                    Outcome::Matches,
                    "{bits} bits of {native:?} audited by {auditor}"
                );
                let tally = report.rounding.unwrap();
                assert_eq!(
                    (tally.illegal, tally.beyond, tally.needless),
                    (0, 0, 0),
                    "{native:?} by {auditor}"
                );
                println!(
                    "{bits} bits, {native:?}: {} of {}, {} taken",
                    tally.decisions,
                    tally.elements,
                    tally.taken()
                );
            }
        }
    }
    let far = folder.path().join("far");
    let job = logged_job(folder.path(), "bits = 32\n");
    let run = trained_on(&mut cpu(Native::Gemm), &job, &far, Some("decision-far@3"));
    let report = audited(&run, &mut Cpu::new(2).unwrap()).unwrap();
    assert!(matches!(report.outcome, Outcome::Diverges { step: 3, .. }), "{:?}", report.outcome);
}

fn cheated(cheat: &str) -> Report {
    cheated_with("", cheat)
}

fn cheated_with(table: &str, cheat: &str) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), table);
    let run = trained_on(&mut cpu(Native::Gemm), &job, &folder.path().join("run"), Some(cheat));
    audited(&run, &mut Cpu::new(2).unwrap()).unwrap()
}

#[test]
fn decisions_within_the_thresholds_are_legal_and_reported_when_they_lean() {
    let honest = cheated("skip@99");
    assert_eq!(honest.outcome, Outcome::Matches);
    let honest = honest.rounding.unwrap();
    assert_eq!(honest.unusual(), None);
    let unexplained = |report: &Report, cheat: &str| match &report.outcome {
        Outcome::UnexplainedDecisions { what: Ground::Decisions(what) } => what.clone(),
        other => panic!("{cheat}: {other:?}"),
    };
    for cheat in ["decisions-flipped@5", "decisions-biased@5"] {
        let report = cheated(cheat);
        let what = unexplained(&report, cheat);
        assert!(what.contains("step 5"), "{cheat}: {what}");
        let tally = report.rounding.unwrap();
        assert!(tally.taken() > 4 * honest.taken().max(1), "{cheat}: {} {}", tally.taken(), honest.taken());
        assert_eq!(tally.illegal, 0);
        assert!(tally.remarks[0].starts_with("step 5"), "{cheat}: {tally:?}");
    }
    // One class of products is steered, while the decisions about all others are honest and many more.
    let report = cheated("weight-decisions-biased@5");
    let what = unexplained(&report, "weight gradients");
    assert!(what.contains("_dw of ") && what.contains("step 5"), "{what}");
    let tally = report.rounding.unwrap();
    assert_eq!((tally.illegal, tally.needless), (0, 0));
    let one = cheated("decision-flipped@5");
    assert_eq!(one.outcome, Outcome::Matches);
    // The thresholds are well within the proved bound, so that decisions beyond them are legal.
    let beyond = cheated_with("threshold = 400\n", "decisions-beyond@5");
    let what = unexplained(&beyond, "beyond");
    assert!(what.contains("from step 5 on") && what.contains("further from a boundary"), "{what}");
    let tally = beyond.rounding.unwrap();
    assert!(tally.beyond > 0 && tally.illegal == 0);
}

#[test]
fn a_rounding_that_no_kernel_takes_is_named() {
    let report = cheated("decision-far@5");
    let Outcome::Diverges { step: 5, what } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(matches!(what, Ground::Decision(_)), "{what:?}");
}

#[test]
fn logs_that_are_not_the_committed_ones_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), "");
    let run = trained_on(&mut cpu(Native::Gemm), &job, &folder.path().join("run"), None);
    let path = run.layout.log(4);
    let log = fs::read(&path).unwrap();

    // The log of another step, or another log for another auditor.
    fs::copy(run.layout.log(5), &path).unwrap();
    let foreign = |run| match audited(run, &mut Cpu::new(2).unwrap()) {
        Err(AuditError::Run(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(
        foreign(&run).contains("step-000000004") && foreign(&run).contains("record commits"),
        "{}",
        foreign(&run)
    );

    let mut flipped = log.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&path, &flipped).unwrap();
    assert!(foreign(&run).contains("record commits"), "{}", foreign(&run));

    fs::write(&path, &log[..log.len() / 2]).unwrap();
    assert!(matches!(audited(&run, &mut Cpu::new(2).unwrap()), Err(AuditError::Run(_))));
    fs::remove_file(&path).unwrap();
    assert!(matches!(audited(&run, &mut Cpu::new(2).unwrap()), Err(AuditError::Run(_))));
}

#[test]
fn a_rounding_that_the_log_lacks_is_not_decided() {
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), "");
    let mut trainer = cpu(Native::Interleaved { fused: false });
    let run = trained_on(&mut trainer, &job, &folder.path().join("run"), Some("decisions-dropped@5"));
    let report = audited(&run, &mut Cpu::new(2).unwrap()).unwrap();
    let Outcome::MissingDecision { step: 5, what } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(matches!(what, Ground::Explicable(_)), "{what:?}");
}

/// The same job with committed operators, small because traces are large.
fn traced_job(folder: &Path, extra: &str) -> std::path::PathBuf {
    let path = logged_job(folder, extra);
    edit(&path, &[("\"microbatch\"", "\"operator\"")]);
    path
}

#[test]
fn traces_tell_a_missing_decision_from_a_cheat() {
    let folder = tempfile::tempdir().unwrap();
    let job = traced_job(folder.path(), "");
    let run =
        trained_on(&mut cpu(Native::Interleaved { fused: true }), &job, &folder.path().join("honest"), None);
    let report = audited(&run, &mut Cpu::new(2).unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Matches);

    // A verdict that stands alone convicts a changed output of an operator.
    let run = trained_on(&mut cpu(Native::Gemm), &job, &folder.path().join("cheat"), Some("operator@3"));
    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let all = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (report, verdict) = audit(&run, &mut Cpu::new(2).unwrap(), checked, all, None, &mut Silent).unwrap();
    let Outcome::Diverges { step: 3, what } = &report.outcome else { panic!("{:?}", report.outcome) };
    let Ground::Operator(tile) = what else { panic!("{what:?}") };
    assert_eq!((&*tile.operator, &*tile.primitive), ("block0.gelu", "gelu.v1"));
    let verdict = Verdict::from_bytes(&verdict.expect("a verdict").to_bytes()).unwrap();
    let outcome = verdict.check(Some(&key().public()));
    assert!(matches!(outcome, Ok(Ruling::Convicts(_))), "{outcome:?}");

    // A decision that the log lacks is named, and nobody is accused.
    let mut trainer = cpu(Native::Interleaved { fused: false });
    let run = trained_on(&mut trainer, &job, &folder.path().join("dropped"), Some("decisions-dropped@5"));
    let report = audited(&run, &mut Cpu::new(2).unwrap()).unwrap();
    let Outcome::MissingDecision { what, .. } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(matches!(what, Ground::Rounding { .. }), "{what:?}");
}

#[test]
fn other_cheats_of_a_logged_trainer_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), "");
    for cheat in ["weight-after@5", "moment@5", "batch@5", "skip@5", "learning-rate@5"] {
        let run = trained_on(&mut cpu(Native::Gemm), &job, &folder.path().join(cheat), Some(cheat));
        let report = audited(&run, &mut Cpu::new(2).unwrap()).unwrap();
        assert!(
            matches!(
                report.outcome,
                Outcome::Diverges { step: 5, .. } | Outcome::MissingDecision { step: 5, .. }
            ),
            "{cheat}: {:?}",
            report.outcome
        );
        println!("{cheat}: {:?}", report.outcome);
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let job = logged_job(folder.path(), "");
    let whole = trained_on(&mut cpu(Native::Gemm), &job, &folder.path().join("whole"), None);
    let out = folder.path().join("cut");
    let run = begin_run(&Disk::default(), &job, &out).unwrap();
    let mut operations = 20;
    loop {
        let run = Run::of(Folder::on(&Disk::failing_after(operations), &out)).unwrap();
        if train(&run, &mut cpu(Native::Gemm), Some(&key()), &mut train::Silent).is_ok() {
            break;
        }
        operations += 7;
    }
    assert_eq!(files(&out.join("logs")), files(&whole.layout.logs()));
    assert_eq!(fs::read(run.layout.transcript()).unwrap(), fs::read(whole.layout.transcript()).unwrap());
}

//! The paper's own setting: binary64 products on both sides, the trainer's log, and no exact product. Every native kernel
//! replicates every other's run.

use std::path::Path;
use std::process::Command;

use crate::common::{begin_run, edit::edit, every_pair, gpt_job, key, trained_on};
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Report, Silent, audit, audit_natively, checks};
use tiebreak_dispute::verdict::Ruling;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{self as train, train};

fn cpu(native: Native) -> Cpu {
    Cpu::new(2).unwrap().with_native(native)
}

/// A small GPT, wide enough for binary64 kernels to disagree.
fn paper_job(folder: &Path, granularity: &str, table: &str) -> std::path::PathBuf {
    let path = gpt_job(folder, granularity, &format!("\n[rounding]\npreset = \"paper\"\n{table}"));
    edit(
        &path,
        &[("context = 12", "context = 32"), ("width = 16", "width = 64"), ("steps = 8", "steps = 4")],
    );
    path
}

fn trained(job: &Path, out: &Path, native: Native) -> Run {
    let disk = Disk::default();
    let run = begin_run(&disk, job, out).unwrap();
    train(&run, &mut cpu(native), Some(&key()), &mut train::Silent).unwrap();
    run
}

fn audited(run: &Run, native: Option<Native>) -> Report {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    let mut engine = cpu(native.unwrap_or_default());
    let audit = if native.is_some() { audit_natively } else { audit };
    let (report, verdict) = audit(run, &mut engine, checked, plan, None, &mut Silent).unwrap();
    assert!(verdict.is_none());
    report
}

/// Each kernel's run is audited by that kernel and by the next one, and has one of the two grids. TIEBREAK_EVERY_PAIR asks for all others.
#[test]
fn every_kernel_replicates_every_other() {
    let all = every_pair("the paper's preset by kernels that are not the next one, and on their other grid");
    for (grid, table) in ["", "bits = 28\n"].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let job = paper_job(folder.path(), "microbatch", table);
        let mut taken = 0;
        let trainers = Native::ALL.into_iter().enumerate();
        for (number, trainer) in trainers.filter(|(number, _)| all || number % 2 == grid) {
            let run = trained(&job, &folder.path().join(trainer.name()), trainer);
            let next = Native::ALL[(number + 1) % Native::ALL.len()];
            for auditor in Native::ALL.into_iter().filter(|auditor| all || [trainer, next].contains(auditor))
            {
                let report = audited(&run, Some(auditor));
                assert_eq!(report.outcome, Outcome::Matches, "{trainer:?} audited by {auditor:?}");
                assert!(
                    report.native && report.not_checked.iter().any(|line| line.contains("replication only"))
                );
                let tally = report.rounding.expect("a tally");
                // The paper logs every value in the middle half between two values of the grid.
                let share = tally.decisions as f64 / tally.elements as f64;
                assert!((0.4..0.6).contains(&share), "{share} of the values are logged");
                assert_eq!(tally.bits, tally.decisions, "one bit each");
                assert_eq!(tally.products, [], "no freedom is measured where nothing is proved");
                if auditor == trainer {
                    assert_eq!(tally.taken(), 0, "a kernel agrees with itself");
                }
                taken += tally.taken();
                println!("{trainer:?} by {auditor:?}: {} of {} taken", tally.taken(), tally.elements);
            }
            // An exact engine audits such a run as any other.
            let report = audited(&run, None);
            assert_eq!(report.outcome, Outcome::Matches, "{trainer:?} audited exactly");
            assert_eq!((report.native, report.rounding.unwrap().illegal), (false, 0));
        }
        println!("{table:?}: {taken} corrections in all");
    }
}

/// Without its log a run is not replicated: the kernels do differ. A native auditor accuses nobody, whatever differs.
#[test]
fn a_native_auditor_accuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["microbatch", "operator"] {
        let job = paper_job(folder.path(), granularity, "");
        for cheat in ["operator@3", "decision-far@3", "decision-hidden@3"] {
            let out = folder.path().join(format!("{granularity}-{cheat}"));
            let run = trained_on(&mut cpu(Native::Gemm), &job, &out, Some(cheat));
            let report = audited(&run, Some(Native::Interleaved { fused: false }));
            match report.outcome {
                // A native auditor accepts any decision.
                Outcome::Matches => assert_eq!(cheat, "decision-far@3"),
                Outcome::MissingDecision { step: 3, what: Ground::NotReplicated(_) } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The kernels of a small model disagree about one value in 10^8. Replication depends on the log only for a trainer that takes
/// every logged rounding the other way. The native auditor follows, as in the paper, and reports that it looks wrong; an exact
/// one convicts.
#[test]
fn a_native_auditor_follows_the_log_wherever_it_leads() {
    let folder = tempfile::tempdir().unwrap();
    let job = paper_job(folder.path(), "operator", "");
    let mut engine = cpu(Native::Sequential { fused: true });
    let run = trained_on(&mut engine, &job, &folder.path().join("run"), Some("decisions-flipped@3"));
    let report = audited(&run, Some(Native::Gemm));
    assert_eq!(report.outcome, Outcome::Matches);
    let tally = report.rounding.unwrap();
    assert!(tally.taken() > tally.elements / 10, "{} of {}", tally.taken(), tally.elements);
    assert!(tally.remarks[0].starts_with("step 3"), "{:?}", tally.remarks);

    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (report, verdict) = audit(&run, &mut cpu(Native::Gemm), checked, plan, None, &mut Silent).unwrap();
    assert!(matches!(report.outcome, Outcome::Diverges { step: 3, .. }), "{:?}", report.outcome);
    let outcome = verdict.expect("a verdict").check(Some(&key().public()));
    assert!(matches!(outcome, Ok(Ruling::Convicts(_))), "{outcome:?}");
}

#[test]
fn the_preset_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let job = paper_job(folder.path(), "microbatch", "").to_str().unwrap().to_string();
    let out = path("run");
    assert_eq!(run(&["train", &job, "--out", &out, "--native", "sequential", "-q"]).0, 0);
    let report = path("report.json");
    let (code, stdout, stderr) = run(&["audit", &out, "--native", "interleaved-fma", "--report", &report]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(run(&["audit", "merge", &report]).0, 3, "nobody vouches for it");
    assert_eq!(run(&["audit", "merge", "--unsigned", &report]).0, 2, "not merged with exact ones");
    assert!(stdout.contains("MATCHES") && stdout.contains("replication only"), "{stdout}");
    let (code, stdout, _) = run(&["audit", &out]);
    assert_eq!(code, 0, "{stdout}");
    assert!(!stdout.contains("replication only"), "{stdout}");

    let (code, stdout, stderr) = run(&["log", "calibrate", &job, "--steps", "1"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("of the step"), "{stdout}");

    // Every second run is audited exactly.
    let other =
        gpt_job(folder.path(), "microbatch", "\n[rounding]\nbits = 32\n").to_str().unwrap().to_string();
    let out = path("other");
    assert_eq!(run(&["train", &other, "--out", &out, "-q"]).0, 0);
    let (code, _, stderr) = run(&["audit", &out, "--native", "gemm"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("preset"), "{stderr}");
    for (table, why) in [("bits = 16", "26 to 30"), ("threshold = 4194304", "of the grid's step")] {
        let job = paper_job(folder.path(), "microbatch", table);
        let (code, _, stderr) = run(&["job", "check", job.to_str().unwrap()]);
        assert_eq!(code, 2, "{table}");
        assert!(stderr.contains("rounding.") && stderr.contains(why), "{table}: {stderr}");
    }
}

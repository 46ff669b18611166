//! The checks that every audit makes before a replay: one run for each check that fails it. The trainer here signs the wrong
//! contents, so no hash or signature gives them away.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::common::edit::{edit, edited};
use crate::common::{files, gpt_job, key, sign, sign_again, step_mut, trained};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Silent, audit, estimated_seconds, replay_to, step_of};
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::step::Program;
use tiebreak_dispute::verdict::Ruling;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, initial, traces, transcript};

const OTHER: Digest = Digest([9; 32]);

/// A finished run; dropping the second value removes its folder.
fn finished(granularity: &str) -> (Run, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), granularity, ""), &folder.path().join("run"), None);
    (run, folder)
}

fn check(run: &Run) -> Result<Checked, RunError> {
    checks::always(&Run::open(&run.layout.root)?, Some(&key().public()))
}

fn error(run: &Run) -> String {
    match check(run) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("nothing was found wrong"),
    }
}

#[test]
fn histories_that_do_not_hold_together_are_malformed() {
    type Edit = fn(&mut Vec<Record>);
    let cases: [(Edit, &str); 9] = [
        (|r| r.retain(|record| step_of(record) != 3), "record 3: it is not in its place"),
        (|r| r.swap(2, 3), "record 2: it is not in its place"),
        (|r| r.insert(3, r[3].clone()), "record 4: it is not in its place"),
        (|r| r.rotate_left(1), "record 0: it is not in its place"),
        (|r| r.push(r[9].clone()), "record 10: it is not in its place"),
        (|r| step_mut(r, 4).trace = Some(OTHER), "record 4: it commits to operators although"),
        (|r| step_mut(r, 4).gradients = None, "record 4: it commits to gradients although"),
        (
            |r| match &mut r[2] {
                Record::Step { computation, .. } => *computation = OTHER,
                _ => unreachable!("record 2 is a step's"),
            },
            "record 2: it is of another computation",
        ),
        (
            |r| match &mut r[9] {
                Record::Final { steps, .. } => *steps = 7,
                _ => unreachable!("record 9 is the final one"),
            },
            "record 9: it is not in its place",
        ),
    ];
    for (edit, wanted) in cases {
        let (run, _folder) = finished("microbatch");
        sign_again(&run, edit);
        let error = error(&run);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn records_that_contradict_the_job_diverge_without_a_replay() {
    type Edit = fn(&mut Vec<Record>);
    let cases: [(Edit, u32, Ground, &str); 6] = [
        (|r| step_mut(r, 4).learning_rate ^= 1, 4, Ground::LearningRate, "learning_rate"),
        (|r| step_mut(r, 5).cursor += 1, 5, Ground::Cursor, "cursor"),
        (|r| step_mut(r, 6).batch = OTHER, 6, Ground::Batch, "batch"),
        (
            |r| match &mut r[9] {
                Record::Final { roots, .. } => roots.0[0] = OTHER,
                _ => unreachable!("record 9 is the final one"),
            },
            8,
            Ground::FinalState,
            "final",
        ),
        // The later steps are honest: only the first contradiction is reported.
        (
            |r| {
                step_mut(r, 2).learning_rate ^= 1;
                step_mut(r, 1).cursor = 0;
            },
            1,
            Ground::Cursor,
            "cursor",
        ),
        (
            |r| match &mut r[0] {
                Record::Initial { state, .. } => *state = OTHER,
                _ => unreachable!("record 0 is the initial one"),
            },
            0,
            Ground::InitialState { origin: "the seed" },
            "initial",
        ),
    ];
    for (edit, step, wanted, kind) in cases {
        let (run, _folder) = finished("microbatch");
        sign_again(&run, edit);
        let checked = check(&run).unwrap();
        let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
        let mut engine = Cpu::new(1).unwrap();
        let (report, verdict) = audit(&run, &mut engine, checked, plan, None, &mut Silent).unwrap();
        let Outcome::Inconsistent { step: found, what } = &report.outcome else {
            panic!("{:?}", report.outcome)
        };
        assert_eq!((*found, what), (step, &wanted));
        assert!(report.replayed.is_empty());
        let verdict = verdict.expect("a contradiction with the job comes with a verdict");
        assert_eq!(verdict.claim.kind(), kind);
        let outcome = verdict.check(Some(&key().public())).unwrap();
        assert!(matches!(outcome, Ruling::Convicts(finding) if finding.step == step));
    }
}

#[test]
fn a_program_that_is_not_the_jobs_is_refused() {
    let (run, _folder) = finished("microbatch");
    let path = run.layout.run_json();
    edit(&path, &[(&run.file.program.to_string(), &OTHER.to_string())]);
    assert!(error(&run).contains("the program digest is not that of the job"));
}

#[test]
fn every_run_carries_its_program() {
    let (run, _folder) = finished("microbatch");
    let path = run.layout.program();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes, encode(run.program()));
    fs::remove_file(&path).unwrap();
    let missing = error(&run);
    assert!(missing.contains("every run carries its program") && missing.contains("tiebreak program export"));
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let changed = error(&run);
    assert!(changed.contains("program.bin: ") && changed.contains("not what the job's model kind gives"));
    fs::write(&path, &bytes).unwrap();
    check(&run).unwrap();
}

/// A reader without the source of a model kind reads the program, and derives the same computation.
#[test]
fn the_program_serves_where_the_model_kind_is_unknown() {
    let (run, _folder) = finished("microbatch");
    let json = fs::read_to_string(run.layout.run_json()).unwrap();
    let job = edited(&run.job_text, &[("kind = \"gpt\"", "kind = \"gpt9\"\nwhirls = 3")]);
    let open = |program: Option<&Program>| {
        Run::from_texts(run.layout.clone(), &json, &job, program.map(encode))
            .map_err(|error| error.to_string())
    };
    let read = open(Some(run.program())).unwrap();
    assert_eq!((read.computation.id, read.computation.seed), (run.computation.id, run.computation.seed));
    assert!(
        read.program() == run.program() && read.program_source().contains("no model kind vouches for it")
    );
    assert!(open(None).err().unwrap().contains("gpt9"));
    let refused = |edit: fn(&mut Program), why: &str| {
        let mut other = run.program().clone();
        edit(&mut other);
        let error = open(Some(&other)).err().unwrap();
        assert!(error.contains(why), "{error}");
    };
    refused(|other| other.corrections[0] ^= 1, "the program digest is not that of the job");
    refused(|other| other.labels_per_sample += 1, "labels_per_sample: it is");
}

#[test]
fn run_json_has_one_encoding() {
    let (run, _folder) = finished("microbatch");
    let path = run.layout.run_json();
    let text = fs::read_to_string(&path).unwrap();
    let compact = serde_json::to_string(&run.file).unwrap();
    for other in
        [compact, format!("{text}\n"), text.replace(": ", ":"), text.replace("\": \"t", "\": \"\\u0074")]
    {
        assert_ne!(other, text);
        fs::write(&path, other).unwrap();
        assert!(error(&run).contains("it is not in its one encoding"));
    }
    fs::write(&path, &text).unwrap();
    check(&run).unwrap();
}

#[test]
fn a_head_over_nothing_is_refused() {
    let (run, _folder) = finished("microbatch");
    sign_again(&run, Vec::clear);
    assert!(run.layout.head(0).exists());
    assert!(error(&run).contains("a head covers at least the initial state"));
}

#[test]
fn every_published_head_must_be_over_the_same_history() {
    let (run, _folder) = finished("microbatch");
    let (history, _) = transcript::read(&run.layout.transcript()).unwrap();
    sign(&run, 5, merkle::root(&history.leaves[1..6]));
    let found = check(&run).unwrap().inconsistent.unwrap();
    assert_eq!(found.what, Ground::Fork { records: 5 });
    assert_eq!(found.verdict.unwrap().claim.kind(), "fork");
    // A head that the trainer did not sign is a damaged file and accuses nobody.
    let head = Head { run: run.id, size: 5, root: OTHER };
    fs::write(run.layout.head(5), head.to_note(None)).unwrap();
    let unsigned = checks::always(&Run::open(&run.layout.root).unwrap(), None).unwrap();
    assert!(unsigned.inconsistent.is_none());
    assert!(unsigned.damaged[0].to_string().contains("it is not signed by the trainer's key"));
}

fn audited(run: &Run) -> (tiebreak_audit::Report, bool) {
    let checked = check(run).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    let mut engine = Cpu::new(2).unwrap();
    let (report, verdict) = audit(run, &mut engine, checked, plan, None, &mut Silent).unwrap();
    (report, verdict.is_some())
}

#[test]
fn withheld_checkpoints_are_named_and_hide_nothing() {
    let (run, _folder) = finished("microbatch");
    for step in [0, 4] {
        fs::remove_file(run.layout.checkpoint(step)).unwrap();
    }
    let (report, _) = audited(&run);
    assert_eq!(report.outcome, Outcome::Matches);
    assert_eq!(report.replayed, [(1, 2), (3, 6), (7, 8)]);
    let missing = "1 checkpoints that the job promises, the first of step 4";
    assert!(report.not_checked.iter().any(|line| line == missing), "{:?}", report.not_checked);
    fs::remove_file(run.layout.checkpoint(8)).unwrap();
    let (report, _) = audited(&run);
    assert_eq!(report.replayed, [(1, 2), (3, 6), (7, 8)]);
    // The released model needs no checkpoint: the final record commits the parameters' root.
    let model = "the final record and the released model agree";
    assert!(report.checked.iter().any(|line| line == model), "{:?}", report.checked);
}

/// The outcome of an audit; with `prefix`, of an audit that asks only for what the head covers.
fn ended(run: &Run, prefix: bool, head: Option<&str>) -> Outcome {
    let mut checked = check(run).unwrap();
    head.iter().for_each(|note| checked.other_head(run, Path::new("head"), note).unwrap());
    if prefix {
        checked.allow_prefix();
    }
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
    let plan = plan(run, &checked.checkpoints, last, &Choice::All);
    audit(run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut Silent).unwrap().0.outcome
}

/// The grounds on which an audit is incomplete.
fn missing(outcome: &Outcome) -> &[Ground] {
    match outcome {
        Outcome::Incomplete { what: Ground::Several(all) } => all,
        Outcome::Incomplete { what } => std::slice::from_ref(what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_whose_end_is_not_shown_never_matches_as_a_whole() {
    let (run, _folder) = finished("microbatch");
    let model = fs::read(run.layout.model()).unwrap();
    // The last checkpoint withheld, and a model of zeros.
    fs::remove_file(run.layout.checkpoint(8)).unwrap();
    let header = 8 + usize::from(model[0]) + (usize::from(model[1]) << 8);
    let zeros = [&model[..header], &vec![0; model.len() - header][..]].concat();
    fs::write(run.layout.model(), zeros).unwrap();
    let outcome = ended(&run, false, None);
    let [Ground::Model(why)] = missing(&outcome) else { panic!("{outcome:?}") };
    assert!(why.contains("the released model is not the final state's parameters and buffers"), "{why}");
    // No model at all.
    fs::remove_file(run.layout.model()).unwrap();
    assert_eq!(missing(&ended(&run, false, None)), [Ground::NoModel]);
    assert_eq!(ended(&run, true, None), Outcome::Matches);
    // The final record omitted, and a model that nobody trained.
    fs::write(run.layout.model(), "garbage").unwrap();
    sign_again(&run, |records| records.truncate(9));
    let no_end = |covered| Ground::NoEnd { covered, steps: 8, model: true };
    assert_eq!(missing(&ended(&run, false, None)), [no_end(8)]);
    assert_eq!(ended(&run, true, None), Outcome::Matches);
    // A head over record 0 only.
    sign_again(&run, |records| records.truncate(1));
    assert_eq!(missing(&ended(&run, false, None)), [no_end(0), Ground::NoSteps]);
    assert_eq!(missing(&ended(&run, true, None)), [Ground::NoSteps]);
}

#[test]
fn a_longer_head_that_the_records_do_not_reach_leaves_nothing_decided() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let cheated = trained(&job, &folder.path().join("witnessed"), Some("operator@7"));
    let witnessed = fs::read_to_string(cheated.layout.head(10)).unwrap();
    let honest = trained(&job, &folder.path().join("shown"), None);
    sign_again(&honest, |records| records.truncate(7));
    let wanted = Ground::Unreached { signed: true, records: 10, here: 7 };
    for prefix in [false, true] {
        assert_eq!(missing(&ended(&honest, prefix, Some(&witnessed)))[0], wanted);
    }
    assert_eq!(ended(&honest, true, None), Outcome::Matches);
}

#[test]
fn steps_that_no_state_leads_to_are_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let first = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("first"), None);
    fs::copy(first.layout.model(), folder.path().join("w.safetensors")).unwrap();
    let job = gpt_job(folder.path(), "step", "\n[init]\nweights = [\"w.safetensors\"]\n");
    let run = trained(&job, &folder.path().join("second"), None);
    assert_eq!(ended(&run, false, None), Outcome::Matches);
    fs::remove_file(run.layout.checkpoint(0)).unwrap();
    for prefix in [false, true] {
        let wanted = Ground::Unreachable { first: 1, last: 2 };
        assert_eq!(missing(&ended(&run, prefix, None)), [wanted]);
    }
}

#[test]
fn a_state_that_changes_after_the_checks_accuses_nobody() {
    let (run, _folder) = finished("microbatch");
    let checked = check(&run).unwrap();
    let path = run.layout.checkpoint(4);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::Range(5, 6));
    let outcome = audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent);
    let Err(error) = outcome else { panic!("the audit went on") };
    assert!(error.to_string().contains("it is not the state that record 4 commits"), "{error}");
}

/// A damage that a trainer, or a keeper of a run, may do to one file: in words, and as a function.
type Damage = (&'static str, fn(&Path));

fn damages() -> [Damage; 7] {
    fn edit(path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(path).unwrap();
        edit(&mut bytes);
        fs::write(path, bytes).unwrap();
    }
    [
        ("a byte appended", |path| edit(path, |bytes| bytes.push(7))),
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("empty", |path| edit(path, Vec::clear)),
        ("cut in half", |path| edit(path, |bytes| bytes.truncate(bytes.len() / 2))),
        ("its first byte flipped", |path| edit(path, |bytes| bytes.iter_mut().take(1).for_each(|b| *b ^= 1))),
        ("a byte in the middle flipped", |path| {
            edit(path, |bytes| {
                let middle = bytes.len() / 2;
                bytes.iter_mut().skip(middle).take(1).for_each(|b| *b ^= 0x10);
            });
        }),
        ("its last byte flipped", |path| {
            edit(path, |bytes| bytes.iter_mut().last().into_iter().for_each(|b| *b ^= 1))
        }),
    ]
}

/// A trainer who cheats in step 1 and damages a file that the audit does not need is convicted all the same.
#[test]
fn a_damaged_file_that_nobody_needs_hides_no_cheat() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["microbatch", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let run = trained(&job, &folder.path().join(granularity), Some("operator@1"));
        let layout = &run.layout;
        let mut unneeded = vec![
            layout.checkpoint(0),
            layout.checkpoint(2),
            layout.checkpoint(8),
            layout.model(),
            layout.head(4),
            layout.head(10),
            layout.gradients(),
        ];
        if granularity == "operator" {
            unneeded.extend([layout.trace(1), layout.trace(2)]);
        }
        for path in unneeded {
            let whole = fs::read(&path).unwrap();
            for (damage, apply) in &damages()[..4] {
                apply(&path);
                let (report, verdict) = audited(&run);
                let at = format!("{}: {damage}", path.display());
                assert!(
                    matches!(report.outcome, Outcome::Diverges { step: 1, .. }),
                    "{at}: {:?}",
                    report.outcome
                );
                assert!(verdict, "{at}");
                fs::write(&path, &whole).unwrap();
            }
        }
        for stray in ["checkpoints/step-3.safetensors", "heads/x", "traces/x", "x", "heads/000000000001x"] {
            fs::write(layout.root.join(stray), "x").unwrap();
        }
        // Records that no head covers.
        let mut transcript = fs::read(layout.transcript()).unwrap();
        transcript.extend([9; 40]);
        fs::write(layout.transcript(), transcript).unwrap();
        let (report, verdict) = audited(&run);
        assert!(
            matches!(report.outcome, Outcome::Diverges { step: 1, .. }) && verdict,
            "{:?}",
            report.outcome
        );
        fs::remove_dir_all(layout.root.join("checkpoints")).unwrap();
        assert!(audited(&run).1, "a folder that is not there is empty");
    }
}

/// Damage to an honest run is named: a checkpoint hides nothing, the released model is part of the promise.
#[test]
fn damaged_files_of_an_honest_run_are_named() {
    let (run, _folder) = finished("microbatch");
    let append = damages()[0].1;
    append(&run.layout.checkpoint(4));
    let (report, _) = audited(&run);
    assert_eq!((&report.outcome, &report.replayed[..]), (&Outcome::Matches, &[(1, 2), (3, 6), (7, 8)][..]));
    let named = |report: &tiebreak_audit::Report, file: &str| {
        report.not_checked.iter().any(|line| line.starts_with("a damaged file: ") && line.contains(file))
    };
    assert!(named(&report, "step-000000004"), "{:?}", report.not_checked);
    append(&run.layout.model());
    let (report, _) = audited(&run);
    assert!(matches!(missing(&report.outcome), [Ground::Model(_)]), "{:?}", report.outcome);
    // The audit needs the data of its plan; without that need it continues.
    damages()[4].1(&run.layout.data_file(0));
    let checked = check(&run).unwrap();
    assert!(checked.damaged.iter().any(|error| error.path() == Some(&run.layout.data_file(0))));
    let all = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    assert!(audit(&run, &mut Cpu::new(1).unwrap(), checked, all, None, &mut Silent).is_err());
}

/// Calls everything that this crate's library does with a foreign run, whatever the results.
fn every_entry_point(root: &Path) {
    let Ok(run) = Run::open(root) else { return };
    let (_, _, _) = (run.head_sizes(), run.checkpoint_steps(), run.unexpected_files());
    let _ = (run.rounding_log(1), run.rounding_log(99), run.holds_data(), initial::state(&run));
    let _ = traces::read(run.program(), &run.layout.trace(1));
    if let Ok(mut dataset) = run.dataset() {
        let _ = (run.batch(&mut dataset, 1), run.micro_batch(&mut dataset, 2, 1));
    }
    let _ = checks::structure(&run, None);
    let Ok(mut checked) = checks::always(&run, Some(&key().public())) else { return };
    let _ = (checked.step(0).is_ok(), checked.step(99).is_ok(), checked.step(u32::MAX).is_ok());
    let _ = checked.step(1).map(|record| run.gradient_roots(record));
    let note = checked.note.clone();
    let path = Path::new("head");
    let _ = (checked.other_head(&run, path, &note), checked.other_head(&run, path, "x"));
    let _ = checks::weights(&run, &mut checked, &[run.layout.model()]);
    let mut cpu = Cpu::new(1).unwrap();
    {
        let mut session = Session::new(&mut cpu, Arc::new(run.program().clone())).unwrap();
        let _ = (replay_to(&run, &checked, &mut session, 3), replay_to(&run, &checked, &mut session, 99));
    }
    // All existing checkpoints, damaged ones too, and steps that the head may not cover.
    let checkpoints = run.checkpoint_steps().unwrap_or_default();
    let plan = plan(&run, &checkpoints, run.job().steps, &Choice::Range(2, 3));
    let _ = estimated_seconds(&run, &mut cpu, false, &checked, &plan);
    let _ = audit(&run, &mut cpu, checked, plan, None, &mut Silent);
}

/// No library call panics on any run: every file damaged in every way, of honest and cheating trainers.
#[test]
fn no_call_panics_on_a_damaged_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "[rounding]\n");
    edit(&job, &[("steps = 8", "steps = 3"), ("\nevery = 2", "\nevery = 1")]);
    let root = folder.path().join("run");
    let run = trained(&job, &root, Some("operator@2"));
    for (name, whole) in files(&root) {
        // One file of each kind is enough.
        if name.to_string_lossy().contains("000000003") {
            continue;
        }
        for (_, apply) in damages().into_iter().skip(1).step_by(2) {
            apply(&root.join(&name));
            every_entry_point(&root);
            fs::write(root.join(&name), &whole).unwrap();
        }
    }
    // Heads that cover fewer steps than there are, each number of them.
    for size in (1..5).rev() {
        sign_again(&run, |records| records.truncate(size));
        every_entry_point(&root);
    }
}

fn cheated(folder: &Path, cheat: &str) -> Run {
    trained(&gpt_job(folder, "operator", ""), &folder.join("run"), Some(cheat))
}

#[test]
fn a_withheld_trace_does_not_save_a_cheat() {
    for damage in [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "x").unwrap()]
    {
        let folder = tempfile::tempdir().unwrap();
        let run = cheated(folder.path(), "operator@5");
        damage(&run.layout.trace(5));
        let (report, verdict) = audited(&run);
        let Outcome::Diverges { step: 5, what } = &report.outcome else { panic!("{:?}", report.outcome) };
        let Ground::Withheld(found) = what else { panic!("{what:?}") };
        assert!(matches!(&**found, Ground::Step { micro_batches, .. } if *micro_batches == [0]), "{found:?}");
        assert!(verdict);
    }
}

#[test]
fn a_trace_of_another_program_does_not_save_a_cheat() {
    let folder = tempfile::tempdir().unwrap();
    let run = cheated(folder.path(), "digits@1");
    let (report, verdict) = audited(&run);
    assert!(matches!(report.outcome, Outcome::Diverges { step: 1, .. }), "{:?}", report.outcome);
    assert!(verdict);
}

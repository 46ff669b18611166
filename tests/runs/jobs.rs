//! Segments that are replayed at once give the report of segments one after the other.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{gpt_job, key, trained_on};
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, ReplayPlan, plan};
use tiebreak_audit::report_file::encode;
use tiebreak_audit::resume::Resumable;
use tiebreak_audit::shard::Shard;
use tiebreak_audit::{AuditError, Outcome, Progress, Report, Silent, audit_in_jobs, checks};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor};
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;

/// A CPU that takes its time, so that other engines are ahead of it.
struct Slow(Cpu);

impl Engine for Slow {
    tiebreak_engine::forward!(self => self.0; describe, upload, read, compile, binary64_roundings);

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        sleep(Duration::from_millis(5));
        self.0.run(compiled, inputs, observer)
    }
}

/// The steps in the order in which they were replayed.
#[derive(Default)]
struct Seen(Vec<u32>);

impl Progress for Seen {
    fn step(&mut self, step: u32, done: u64, planned: u64) {
        self.0.push(step);
        assert!(done == self.0.len() as u64 && done <= planned);
    }
}

/// Everything that an audit by so many engines says but for its seconds and its engines, and the steps in their order.
fn audited(run: &Run, jobs: usize, choice: &Choice) -> (serde_json::Value, Vec<u32>) {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, choice);
    let cpu = || Cpu::new(1).unwrap();
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(Slow(cpu()))];
    engines.extend((1..jobs).map(|_| Box::new(cpu()) as Box<dyn Engine>));
    let mut engines: Vec<&mut dyn Engine> = engines.iter_mut().map(|engine| engine.as_mut() as _).collect();
    let mut seen = Seen::default();
    let (report, verdict) = audit_in_jobs(run, &mut engines, false, checked, plan, None, &mut seen).unwrap();
    let name = if jobs == 1 { "cpu (1 thread)".to_string() } else { format!("{jobs} x cpu (1 thread)") };
    assert_eq!(report.engine, name);
    let mut said = serde_json::to_value((&report, verdict.map(|verdict| verdict.to_bytes()))).unwrap();
    said[0]["seconds"] = 0.into();
    said[0]["engine"] = "".into();
    (said, seen.0)
}

fn run_of(folder: &Path, more: &str, cheat: Option<&str>) -> Run {
    let job = gpt_job(folder, "operator", more);
    let mut engine = Cpu::new(2).unwrap().with_native(Native::Sequential { fused: false });
    trained_on(&mut engine, &job, &folder.join("run"), cheat)
}

/// A logged run has many decisions on the bfloat16 grid, and some on a finer one.
#[test]
fn the_number_of_jobs_changes_no_report() {
    let coarse = "\n[rounding]\n";
    let fine = "\n[rounding]\nbits = 28\nthreshold = 16000\n";
    let runs = [
        ("", None, "matches"),
        ("", Some("operator@1"), "diverges"),
        ("", Some("operator@6"), "diverges"),
        ("", Some("checkpoint@5"), "diverges"),
        (coarse, None, "matches"),
        (coarse, Some("decision-far@3"), "diverges"),
        (fine, None, "matches"),
        (coarse, Some("decisions-dropped@7"), "missing_decision"),
    ];
    let mut disordered = 0;
    for (more, cheat, result) in runs {
        let folder = tempfile::tempdir().unwrap();
        let run = run_of(folder.path(), more, cheat);
        for choice in [Choice::All, Choice::Range(2, 7)] {
            let (one, steps) = audited(&run, 1, &choice);
            assert!(steps.is_sorted(), "{steps:?}");
            if choice == Choice::All {
                assert_eq!(one[0]["outcome"]["result"], result, "{more} {cheat:?}");
            }
            for jobs in [2, 9] {
                let (several, steps) = audited(&run, jobs, &choice);
                disordered += usize::from(!steps.is_sorted());
                assert!(several == one, "{more} {cheat:?} {jobs} jobs: {several} is not {one}");
            }
        }
    }
    assert!(disordered > 5, "later segments were replayed first: {disordered}");
}

/// Keeps the report after each segment.
#[derive(Default)]
struct Kept(Vec<Report>, Vec<u64>);

impl Progress for Kept {
    fn step(&mut self, _: u32, done: u64, _: u64) {
        self.1.push(done);
    }

    fn segment(&mut self, report: &mut dyn FnMut() -> Report) {
        self.0.push(report());
    }
}

/// An audit that goes on from any of its unfinished reports ends with the same report. A report of another auditor, head, version or plan
/// is not gone on from.
#[test]
fn an_audit_goes_on_from_its_own_reports_alone() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(folder.path(), "", None);
    let checked = || checks::always(&run, Some(&key().public())).unwrap();
    let shard = Shard::new(1, 1).unwrap();
    let plan = plan(&run, &checked().checkpoints, run.job().steps, &Choice::All).sharded(&run, shard);
    let segments = plan.segments.len();
    let audited = |jobs: usize, done: usize| {
        let mut engines: Vec<Cpu> = (0..jobs).map(|_| Cpu::new(1).unwrap()).collect();
        let mut engines: Vec<&mut dyn Engine> = engines.iter_mut().map(|engine| engine as _).collect();
        let (mut kept, plan) = (Kept::default(), ReplayPlan { done, ..plan.clone() });
        let (report, _) = audit_in_jobs(&run, &mut engines, false, checked(), plan, None, &mut kept).unwrap();
        (Report { seconds: 0.0, ..report }, kept)
    };
    let alice = PrivateKey::generate("alice.example", [3; 32]).unwrap();
    let done = |report: &Report, signer: &PrivateKey, engine: &str| {
        let (checked, auditor) = (checked(), alice.public());
        let resumable =
            Resumable { checked: &checked, plan: &plan, engine, native: false, auditor: &auditor };
        resumable.done(&encode(report.clone(), Some(signer)))
    };
    let text = |report: &Report| serde_json::to_string(report).unwrap();
    for jobs in [1, 3] {
        let (whole, kept) = audited(jobs, 0);
        assert!(segments > 2 && kept.0.len() == segments - 1, "{} reports", kept.0.len());
        for (number, report) in (1..).zip(&kept.0) {
            assert!(report.outcome == Outcome::Matches && !report.is_complete());
            assert_eq!(done(report, &alice, &whole.engine), Ok(number));
            let (again, rest) = audited(jobs, number);
            assert_eq!(text(&again), text(&whole));
            let steps = |plan: &[(u32, u32)]| plan.iter().map(|(a, b)| u64::from(b + 1 - a)).sum::<u64>();
            let before = steps(&plan.segments[..number]);
            assert_eq!(rest.1, (before + 1..=plan.steps()).collect::<Vec<_>>());
        }
        assert_eq!(done(&whole, &alice, &whole.engine), Err("it is finished".to_string()));
    }
    let (_, Kept(reports, _)) = audited(1, 0);
    let refused = |change: &dyn Fn(&mut Report), why: &str| {
        let mut report = reports[0].clone();
        change(&mut report);
        let said = done(&report, &alice, "cpu (1 thread)").unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    };
    assert_eq!(done(&reports[0], &alice, "cpu (1 thread)"), Ok(1));
    let said = done(&reports[0], &key(), "cpu (1 thread)").unwrap_err();
    assert!(
        said.starts_with("trainer.example") && said.contains("signed it, and --key is alice.example"),
        "{said}"
    );
    refused(&|report| report.engine = "cpu (2 threads)".into(), "its engine was ");
    refused(&|report| report.native = true, "its engine was ");
    refused(&|report| report.verifier = "0".into(), "version \"0\" of this program");
    refused(&|report| report.head_root = report.run, "under a head over ");
    refused(&|report| report.run = report.head_root, "under a head over ");
    refused(&|report| report.plan.shard = Shard::new(1, 2), "it is of other segments");
    refused(&|report| report.plan.file = Some(report.run), "it is of other segments");
    refused(&|report| report.format = 1, "it is no report that this version reads");
    let step = 1;
    let what = Ground::NoSteps;
    refused(
        &|report| report.outcome = Outcome::Diverges { step, what: what.clone() },
        "it does not end with a match so far",
    );
    // A report that was cut short within a segment: the segment is replayed as a whole.
    let mut within = reports[0].clone();
    within.replayed.push((plan.segments[1].0, plan.segments[1].0));
    assert_eq!(done(&within, &alice, "cpu (1 thread)"), Ok(1));
    within.replayed.push(plan.segments[2]);
    assert_eq!(done(&within, &alice, "cpu (1 thread)"), Err("it is finished".to_string()));
}

/// Somebody who asks for the end after two steps.
struct Enough(u64);

impl Progress for Enough {
    fn step(&mut self, _: u32, done: u64, _: u64) {
        self.0 = done;
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.0 >= 2
    }
}

#[test]
fn an_audit_ends_where_somebody_asks() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(folder.path(), "", None);
    for jobs in [1, 2] {
        let checked = checks::always(&run, Some(&key().public())).unwrap();
        let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
        let mut engines: Vec<Slow> = (0..jobs).map(|_| Slow(Cpu::new(1).unwrap())).collect();
        let mut engines: Vec<&mut dyn Engine> = engines.iter_mut().map(|engine| engine as _).collect();
        let (report, _) =
            audit_in_jobs(&run, &mut engines, false, checked, plan, None, &mut Enough(0)).unwrap();
        let replayed = report.steps_replayed();
        assert!((1..u64::from(run.job().steps)).contains(&replayed), "{replayed} steps");
        assert!(report.outcome == Outcome::Matches && !report.is_complete());
        let said = |line: &String| line.ends_with("the audit was asked to stop");
        assert!(report.not_checked.iter().any(said), "{:?}", report.not_checked);
    }
}

/// When the time is over, what any job had replayed counts.
#[test]
fn a_limit_of_time_ends_all_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(folder.path(), "", None);
    let checked = || checks::always(&run, Some(&key().public())).unwrap();
    let plan = plan(&run, &checked().checkpoints, run.job().steps, &Choice::All);
    let mut engines = [Cpu::new(1).unwrap(), Cpu::new(1).unwrap()];
    let [a, b] = &mut engines;
    let mut engines: [&mut dyn Engine; 2] = [a, b];
    let limit = Some(Duration::ZERO);
    let audit = |engines, plan| audit_in_jobs(&run, engines, false, checked(), plan, limit, &mut Silent);
    let (report, _) = audit(&mut engines, plan.clone()).unwrap();
    assert!(report.outcome == Outcome::Matches && !report.is_complete() && report.steps_replayed() == 0);
    assert!(report.not_checked.iter().any(|why| why.contains("--max-time was reached")), "{report:?}");
    let none = audit(&mut [], plan);
    assert!(matches!(none, Err(AuditError::Limit(why)) if why == "an audit needs an engine"));
}

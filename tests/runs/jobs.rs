//! Segments that are replayed at once give the report of segments one after the other.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{gpt_job, key, trained_on};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{AuditError, Outcome, Progress, Silent, audit_in_jobs, checks};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor};
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

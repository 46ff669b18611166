//! Audits of logged runs by native products: reports are those of exact products, whatever the trainer did.

use std::path::Path;
use std::sync::Arc;

use crate::common::{gpt_job, key, trained_on};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Silent, audit, checks};
use tiebreak_contract::program::graph::{Graph, Primitive};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::{Compiled, Engine, EngineError};
use tiebreak_run::run::dir::Run;

/// A CPU that may or may not say how much its native products err, and counts the graphs that it compiles.
struct Counted {
    cpu: Cpu,
    bounded: bool,
    /// Graphs with native products, and graphs without.
    compiled: [u32; 2],
}

impl Engine for Counted {
    tiebreak_engine::forward!(self => self.cpu; describe, upload, read, run);

    fn compile(&mut self, graph: Arc<Graph>) -> Result<Compiled, EngineError> {
        let native = graph.nodes.iter().any(|node| matches!(node.primitive, Primitive::Native { .. }));
        self.compiled[usize::from(!native)] += 1;
        self.cpu.compile(graph)
    }

    fn binary64_roundings(&self, k: usize) -> Option<usize> {
        self.cpu.binary64_roundings(k).filter(|_| self.bounded)
    }
}

/// The outcome of an audit, everything that it says but for its seconds, and the graphs that were compiled.
fn audited(run: &Run, native: Native, bounded: bool) -> (Outcome, serde_json::Value, [u32; 2]) {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    let cpu = Cpu::new(2).unwrap().with_native(native);
    let mut engine = Counted { cpu, bounded, compiled: [0; 2] };
    let (report, verdict) = audit(run, &mut engine, checked, plan, None, &mut Silent).unwrap();
    let mut said = serde_json::to_value((&report, verdict.map(|verdict| verdict.to_bytes()))).unwrap();
    said[0]["seconds"] = 0.into();
    (report.outcome, said, engine.compiled)
}

fn run_of(folder: &Path, granularity: &str, table: &str, trainer: Native, cheat: Option<&str>) -> Run {
    let job = gpt_job(folder, granularity, &format!("\n[rounding]\n{table}\n"));
    let mut engine = Cpu::new(2).unwrap().with_native(trainer);
    trained_on(&mut engine, &job, &folder.join("run"), cheat)
}

/// The graphs of a session: of a micro-batch, of a sum, of an update. A fast audit compiles the first one with native products.
const FAST: [u32; 2] = [1, 2];
/// As `FAST`, and once more with exact products.
const THEN_EXACT: [u32; 2] = [1, 3];

/// A table of a job on a grid of this many bits, whose thresholds are near the greatest that are allowed.
fn wide_thresholds(bits: u32) -> String {
    format!("bits = {bits}\nthreshold = 16000")
}

#[test]
fn honest_runs_match_without_exact_products() {
    let sequential = Native::Sequential { fused: false };
    let runs = [
        ("bits = 32".to_string(), Native::Gemm),
        (wide_thresholds(32), sequential),
        (wide_thresholds(30), Native::Gemm),
        (wide_thresholds(28), sequential),
        ("bits = 26".to_string(), Native::Gemm),
    ];
    let mut decisions = 0;
    for (table, trainer) in runs {
        let folder = tempfile::tempdir().unwrap();
        let run = run_of(folder.path(), "microbatch", &table, trainer, None);
        let (outcome, slow, compiled) = audited(&run, Native::Gemm, false);
        assert_eq!((outcome, compiled), (Outcome::Matches, [0, 3]));
        decisions += slow[0]["rounding"]["decisions"].as_u64().unwrap();
        for native in Native::ALL {
            let (outcome, fast, compiled) = audited(&run, native, true);
            assert_eq!((outcome, compiled), (Outcome::Matches, FAST), "{table}, audited by {native:?}");
            assert!(fast == slow, "{table}, audited by {native:?}: {}", difference(&fast, &slow));
        }
    }
    assert!(decisions > 0, "the logs have decisions");
}

/// A trace is compared tensor by tensor, so each rounding that the native products decide is seen.
#[test]
fn traces_are_those_of_exact_products() {
    for bits in [32, 26] {
        let folder = tempfile::tempdir().unwrap();
        let run = run_of(folder.path(), "operator", &wide_thresholds(bits), Native::Gemm, None);
        let (outcome, fast, compiled) = audited(&run, Native::Interleaved { fused: true }, true);
        assert_eq!((outcome, compiled), (Outcome::Matches, FAST));
        let slow = audited(&run, Native::Gemm, false).1;
        assert!(fast == slow, "{bits} bits: {}", difference(&fast, &slow));
    }
}

#[test]
fn what_a_cheat_is_told_does_not_depend_on_native_products() {
    let cheats = [
        "operator@3",
        "moment@5",
        "decision-far@3",
        "decision-hidden@3",
        "decisions-dropped@3",
        "decisions-beyond@3",
        "decisions-flipped@3",
        "decisions-biased@3",
    ];
    let mut judged = [0, 0];
    for bits in [32, 28] {
        for cheat in cheats {
            let folder = tempfile::tempdir().unwrap();
            let run = run_of(folder.path(), "operator", &wide_thresholds(bits), Native::Gemm, Some(cheat));
            let (outcome, slow, _) = audited(&run, Native::Gemm, false);
            let (_, fast, compiled) = audited(&run, Native::Gemm, true);
            assert!(fast == slow, "{bits} bits, {cheat}: {}", difference(&fast, &slow));
            // A record that the replay does not give, or an illegal decision, is for exact products.
            let exact = matches!(outcome, Outcome::Diverges { .. } | Outcome::MissingDecision { .. });
            let expected = if exact { THEN_EXACT } else { FAST };
            assert_eq!(compiled, expected, "{bits} bits, {cheat}: {outcome:?}");
            judged[usize::from(exact)] += 1;
        }
    }
    assert!(judged.into_iter().all(|count| count >= 4), "{judged:?}");
}

/// With one digit the auditor's own results are coarse, so that many elements are uncertain. With a threshold that no job may have,
/// many decisions are logged. The audit says the same as without native products.
#[test]
fn many_near_ties_are_left_to_exact_products() {
    let tables = [("bits = 32\n[digits]\nall = 1", THEN_EXACT), ("bits = 32\nthreshold = 16777216", FAST)];
    for (table, expected) in tables {
        let folder = tempfile::tempdir().unwrap();
        let run = run_of(folder.path(), "microbatch", table, Native::Gemm, None);
        let (outcome, slow, _) = audited(&run, Native::Gemm, false);
        let (_, fast, compiled) = audited(&run, Native::Gemm, true);
        assert!(fast == slow, "{table}: {}", difference(&fast, &slow));
        assert_eq!(compiled, expected, "{outcome:?}");
    }
}

/// The first part of two reports that differs, shortened.
fn difference(a: &serde_json::Value, b: &serde_json::Value) -> String {
    let [a, b] = [a.to_string(), b.to_string()];
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let part = |text: &str| text.chars().skip(same.saturating_sub(60)).take(160).collect::<String>();
    format!("{} is not {}", part(&a), part(&b))
}

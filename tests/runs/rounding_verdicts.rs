//! Roundings that no honest kernel takes convict from a file alone; honest ones never do, whatever an accuser makes of them.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::common::{gpt_job, key, trained_on};
use proptest::prelude::*;
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::disputed_step::DisputedStep;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::rounding::reference_outcome;
use tiebreak_audit::{Outcome, Report, Silent, audit};
use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::phase::Phase;
use tiebreak_dispute::fact::{Fact, Wrong};
use tiebreak_dispute::verdict::{Claim, LogSlices, Rounded, RoundingClaim, Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::session::{Session, StepObserver};
use tiebreak_engine::{EngineError, Inputs, Observer, Want};
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::tensor;
use tiebreak_record::commit::trace::leaf_place;
use tiebreak_record::rounding::codec::decode;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::traces;
use tiebreak_run::step::scalars;

/// A run of the logged profile on the library's kernels.
fn run_of(folder: &Path, granularity: &str, table: &str, cheat: Option<&str>) -> Run {
    let job = gpt_job(folder, granularity, &format!("\n[rounding]\n{table}\n"));
    trained_on(&mut Cpu::new(2).unwrap().with_native(Native::Gemm), &job, &folder.join("run"), cheat)
}

fn audited(run: &Run) -> (Report, Option<Verdict>) {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    audit(run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut Silent).unwrap()
}

fn cheated(table: &str, cheat: &str) -> (Report, Option<Verdict>) {
    let folder = tempfile::tempdir().unwrap();
    audited(&run_of(folder.path(), "operator", table, Some(cheat)))
}

/// Verdicts that convict: on a decision and on a committed value that the log does not mention, on a grid with a floor, on
/// binary32, and on a grid between.
static CONVICTING: LazyLock<Vec<Verdict>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for table in ["", "bits = 32", "bits = 28"] {
        for cheat in ["decision-far@3", "decision-hidden@3"] {
            let (report, verdict) = cheated(table, cheat);
            let Outcome::Diverges { step: 3, what } = &report.outcome else {
                panic!("{table} {cheat}: {:?}", report.outcome)
            };
            let logged = matches!(what, Ground::Decision(_));
            assert!(logged || matches!(what, Ground::Unlogged(Wrong(Fact::Rounding { .. }))), "{what:?}");
            assert_eq!(logged, cheat == "decision-far@3", "{what:?}");
            all.push(verdict.unwrap_or_else(|| panic!("{table} {cheat}: no verdict")));
        }
    }
    all
});

fn convicts(verdict: &Verdict) -> bool {
    matches!(verdict.check(Some(&key().public())), Ok(Ruling::Convicts(_)))
}

fn claim(verdict: &mut Verdict) -> &mut RoundingClaim {
    match &mut verdict.claim {
        Claim::Rounding(claim) => claim,
        other => panic!("{other:?} is not about a rounding"),
    }
}

fn evidence(rounded: &mut Rounded) -> &mut Vec<u8> {
    match rounded {
        Rounded::Logged { log, .. } => &mut log.bytes.0,
        Rounded::Committed { bytes, .. } => &mut bytes.0,
    }
}

#[test]
fn a_rounding_that_no_kernel_takes_convicts_from_its_file_alone() {
    for (i, verdict) in CONVICTING.iter().enumerate() {
        let bytes = verdict.to_bytes();
        let read = Verdict::from_bytes(&bytes).unwrap();
        assert_eq!(read, *verdict);
        assert!(convicts(&read));
        let logged = matches!(claim(&mut read.clone()).rounded, Rounded::Logged { .. });
        assert_eq!(logged, i % 2 == 0, "a decision where there is one");
        let examination = read.examine(None);
        println!("{} bytes: {}", bytes.len(), examination.steps.join("\n  "));
        let said = examination.steps.join(" ");
        assert!(said.contains("exact product"), "{said}");
        assert!(said.contains("log root") == logged && said.contains("trace root") != logged, "{said}");
        assert!(bytes.len() < 60_000, "{} bytes", bytes.len());
    }
}

#[test]
fn an_edited_rounding_verdict_does_not_convict() {
    type Edit = fn(&mut Verdict);
    let edits: [(&str, Edit); 21] = [
        ("another element", |v| claim(v).element ^= 1),
        ("an element elsewhere", |v| claim(v).element = 0),
        ("an absurd element", |v| claim(v).element = usize::MAX),
        ("another product", |v| claim(v).product += 1),
        ("an absurd product", |v| claim(v).product = usize::MAX),
        ("another micro-batch", |v| claim(v).micro_batch += 1),
        ("no such micro-batch", |v| claim(v).micro_batch = u32::MAX),
        ("the record for the one before", |v| claim(v).before = v.record.clone().unwrap()),
        ("the record before for the step's", |v| v.record = Some(claim(v).before.clone())),
        ("no record", |v| v.record = None),
        ("no operands", |v| claim(v).inputs.clear()),
        ("an operand less", |v| drop(claim(v).inputs.pop())),
        ("an operand twice", |v| {
            let input = claim(v).inputs[0].clone();
            claim(v).inputs.push(input);
        }),
        ("a foreign operand", |v| claim(v).inputs[0].tensor += 1),
        ("an absurd operand", |v| claim(v).inputs[0].tensor = u32::MAX),
        ("a changed operand", |v| claim(v).inputs[0].bytes.0[5] ^= 1),
        ("an operand slice elsewhere", |v| claim(v).inputs[0].slices[0] = usize::MAX),
        ("other evidence", |v| evidence(&mut claim(v).rounded)[7] ^= 1),
        ("less evidence", |v| evidence(&mut claim(v).rounded).truncate(3)),
        ("no evidence", |v| evidence(&mut claim(v).rounded).clear()),
        ("more evidence", |v| evidence(&mut claim(v).rounded).push(0)),
    ];
    for verdict in CONVICTING.iter() {
        for (what, edit) in edits {
            let mut edited = verdict.clone();
            edit(&mut edited);
            assert!(edited == *verdict || !convicts(&edited), "{what}");
        }
        type EditLog = fn(&mut u64, &mut LogSlices);
        let edits: [EditLog; 6] = [
            |block, _| *block += 1,
            |block, _| *block = u64::MAX,
            |_, log| log.len = 0,
            |_, log| log.len = u32::MAX,
            |_, log| log.slices.clear(),
            |_, log| log.slices[0] = usize::MAX,
        ];
        for edit in edits {
            let mut edited = verdict.clone();
            if let Rounded::Logged { block, log } = &mut claim(&mut edited).rounded {
                edit(block, log);
                assert!(!convicts(&edited));
            }
        }
    }
    // The evidence of one run about another's.
    let mut mixed = CONVICTING[0].clone();
    claim(&mut mixed).rounded = claim(&mut CONVICTING[3].clone()).rounded.clone();
    assert!(mixed.check(None).is_err());
}

/// Keeps one node's output of an exact step, without the log's decisions.
struct Kept<'a> {
    micro: u32,
    phase: Phase,
    node: usize,
    found: &'a mut Vec<u8>,
}

impl StepObserver for Kept<'_> {
    fn phase(&mut self, phase: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        self.phase = phase;
        (phase == Phase::Micro(self.micro)).then_some(self)
    }
}

impl Observer for Kept<'_> {
    fn want(&self, index: usize, _: &Node) -> Want {
        if index == self.node { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        _: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        *self.found = bytes.to_vec();
        Ok(None)
    }
}

/// An accuser makes the same claims about decisions and values of an honest run.
#[test]
fn honest_roundings_never_convict() {
    for table in ["threshold = 100000", "bits = 32\nthreshold = 10000000", "bits = 28\nthreshold = 10000000"]
    {
        let folder = tempfile::tempdir().unwrap();
        let run = run_of(folder.path(), "operator", table, None);
        let checked: Checked = checks::always(&run, Some(&key().public())).unwrap();
        let step = 3;
        let before = checks::state_after(&run, &checked, step - 1).unwrap();
        let batch =
            run.dataset().unwrap().batch(run.program(), philox_key(&run.computation.seed), step).unwrap();
        let published = traces::read(run.program(), &run.layout.trace(step)).unwrap();
        let disputed = DisputedStep {
            recomputes: false,
            run: &run,
            checked: &checked,
            step,
            before: &before,
            batch: &batch,
            published: &published,
            end: None,
        };
        let log = run.rounding_log(step).unwrap();
        let products = &run.program().micro.logged;
        let mut seen = [0, 0];
        for (product, logged) in products.iter().enumerate() {
            let micro = product as u32 % 3;
            let part = micro as usize * products.len() + product;
            let elements = logged.elements() as u64;
            let decisions = decode(log.part(part), elements).unwrap();
            let claims = |element, rounded| {
                disputed.rounding_claim(micro, product, element, rounded).unwrap().expect("finite")
            };
            for decision in decisions.iter().step_by(decisions.len() / 3 + 1) {
                let proven = |place: u64| {
                    let block = log.block_of(part, elements, place);
                    Rounded::Logged { block, log: log.prove(part, elements, block).into() }
                };
                let claim = claims(decision.place as usize, proven(decision.place));
                let outcome = claim.check(None).unwrap();
                assert!(matches!(outcome, Ruling::DoesNotConvict(_)), "{outcome:?}");
                seen[0] += 1;
                // A place that the log does not name, or names with another part's proof, is no evidence at all.
                let other =
                    (0..logged.elements()).find(|&place| decisions.iter().all(|d| d.place != place as u64));
                if let Some(other) = other {
                    assert!(claims(other, proven(other as u64)).check(None).is_err());
                }
                let foreign = log.prove((part + 1) % (3 * products.len()), elements, 0);
                if foreign != log.prove(part, elements, 0) {
                    let foreign = Rounded::Logged { block: 0, log: foreign.into() };
                    assert!(claims(decision.place as usize, foreign).check(None).is_err());
                }
            }
            // The committed value, where the trainer's output is the auditor's own.
            let node = run.program().micro.nodes.iter().position(|n| n.output == logged.output).unwrap();
            let mut output = Vec::new();
            let mut cpu = Cpu::new(1).unwrap();
            let mut session = Session::new(&mut cpu, std::sync::Arc::new(run.program().clone())).unwrap();
            session.load(&before).unwrap();
            let mut kept = Kept { micro, phase: Phase::Update, node, found: &mut output };
            session.step(scalars(&run.computation, step), &batch, &mut kept, |_, _, _| Ok(())).unwrap();
            let place = leaf_place(run.program(), Phase::Micro(micro), node).unwrap();
            let theirs = &published.nodes[place].tiles;
            for (tile, value) in tensor::tile_values(&output).into_iter().enumerate().take(2) {
                if value != theirs[tile] {
                    continue; // decisions changed it, here or before
                }
                let bytes = output[tensor::tile_range(output.len(), tile)].to_vec();
                let rounded = disputed.committed_value(micro, node, tile, bytes);
                let claim = claims(tile * 1024 + 5, rounded.clone());
                let outcome = claim.check(None).unwrap();
                assert!(matches!(outcome, Ruling::DoesNotConvict(_)), "{outcome:?}");
                seen[1] += 1;
                // Not an element of that tile.
                if logged.elements() > 1024 {
                    assert!(claims((tile ^ 1) * 1024, rounded).check(None).is_err());
                }
            }
        }
        println!("{table:?}: {} decisions, {} values", seen[0], seen[1]);
        assert!(seen[0] > 3 && seen[1] > 3, "{seen:?}");
    }
}

/// Without traces the verdict names the step, and its checker replays the step.
#[test]
fn without_traces_the_step_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(folder.path(), "microbatch", "", Some("decision-far@3"));
    let (report, verdict) = audited(&run);
    assert!(matches!(report.outcome, Outcome::Diverges { step: 3, .. }), "{:?}", report.outcome);
    let verdict = verdict.expect("a step verdict");
    assert!(matches!(&verdict.claim, Claim::Step { micro_batches, .. } if micro_batches.len() == 1));
    assert!(matches!(verdict.check(Some(&key().public())), Ok(Ruling::NeedsReplay { step: 3, .. })));
    let path = folder.path().join("verdict.json");
    fs::write(&path, verdict.to_bytes()).unwrap();
    let check = || {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tiebreak"))
            .args(["verdict", "check", path.to_str().unwrap(), "--run", run.layout.root.to_str().unwrap()])
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = check();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no kernel"), "{said}");
    // A log that somebody else put there proves nothing against the trainer.
    fs::copy(run.layout.log(4), run.layout.log(3)).unwrap();
    assert_eq!(check().0, 4);
}

#[test]
fn a_step_whose_log_lacks_a_decision_is_not_held_against_the_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(folder.path(), "microbatch", "", Some("decisions-dropped@3"));
    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let before = checks::state_after(&run, &checked, 2).unwrap();
    let outcome = reference_outcome(&run, 3, &before, checked.step(3).unwrap()).unwrap();
    assert!(matches!(outcome, Outcome::MissingDecision { step: 3, .. }), "{outcome:?}");
    // The same holds if the trace that would tell a missing decision from a cheat is withheld.
    let folder = tempfile::tempdir().unwrap();
    let run = run_of(folder.path(), "operator", "", Some("decisions-dropped@3"));
    fs::remove_file(run.layout.trace(3)).unwrap();
    let (report, verdict) = audited(&run);
    let Outcome::MissingDecision { what, .. } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(matches!(what, Ground::Withheld(_)) && verdict.is_none(), "{what:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing convicts and nothing panics, whatever byte an accuser changes, cuts off or leaves out.
    #[test]
    fn changed_bytes_never_convict(kind in 0usize..6, place in any::<prop::sample::Index>(), flip in 1u8.., action in 0..3) {
        let mut bytes = CONVICTING[kind].to_bytes();
        let at = place.index(bytes.len());
        match action {
            0 => bytes[at] ^= flip,
            1 => bytes.truncate(at),
            _ => drop(bytes.remove(at)),
        }
        if let Ok(verdict) = Verdict::from_bytes(&bytes) {
            prop_assert!(!convicts(&verdict));
        }
    }

    /// The same inside the decoded bytes of operands, record and evidence.
    #[test]
    fn changed_evidence_never_convicts(kind in 0usize..6, place in any::<prop::sample::Index>(), flip in 1u8.., which in 0..3) {
        let mut verdict = CONVICTING[kind].clone();
        let bytes = match which {
            0 => &mut verdict.record.as_mut().unwrap().record.0,
            1 => evidence(&mut claim(&mut verdict).rounded),
            _ => {
                let inputs = &mut claim(&mut verdict).inputs;
                let input = place.index(inputs.len());
                &mut inputs[input].bytes.0
            }
        };
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(!convicts(&verdict));
    }

    /// Any element, product or micro-batch named instead of the right one: only a wrong one convicts.
    #[test]
    fn other_places_never_convict(kind in 0usize..6, micro_batch in 0u32..4, product in 0usize..40, element in 0usize..2000) {
        let mut verdict = CONVICTING[kind].clone();
        let claim = claim(&mut verdict);
        let same = (claim.micro_batch, claim.product, claim.element) == (micro_batch, product, element);
        (claim.micro_batch, claim.product, claim.element) = (micro_batch, product, element);
        prop_assert!(same || !convicts(&verdict));
    }
}

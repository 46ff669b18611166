//! Checks of a device: a planted fault is found and named, nobody is accused, and an honest device gives equal bits.

use crate::common::planted::{Fault, Planted};
use crate::common::{begin_run, gpt_job, key, trained};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{AuditError, Outcome, Report, Silent, audit, checks};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::device_check::{Checked, Random, Shares, Tally, WrongPart};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::transcript;
use tiebreak_train::{Silent as Untold, TrainError, train};

const ALL: Shares = Shares { products: 1.0, elements: 1.0 };

/// Randomness of the system.
fn random() -> Random {
    Box::new(|bytes| getrandom::fill(bytes).map_err(|error| error.to_string()))
}

/// A device that hands out sums, with a fault, and a check of it.
fn checked(fault: Fault, shares: Shares) -> (impl Engine, Tally) {
    let engine = Planted { engine: Cpu::new(2).unwrap(), fault, computes_sums: true };
    Checked::new(engine, shares, random())
}

fn audited(run: &Run, engine: &mut dyn Engine) -> Result<Report, AuditError> {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    Ok(audit(run, engine, checked, plan, None, &mut Silent)?.0)
}

/// The report of an audit for programs, without its times and the name of the engine.
fn comparable(mut report: Report) -> String {
    (report.seconds, report.engine) = (0.0, String::new());
    serde_json::to_string(&report).unwrap()
}

#[test]
fn an_honest_device_passes_with_an_equal_report() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["step", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let run = trained(&job, &folder.path().join(granularity), None);
        let plain = audited(&run, &mut Cpu::new(2).unwrap()).unwrap();
        assert_eq!(plain.outcome, Outcome::Matches);
        for shares in [ALL, Shares { products: 0.5, elements: 0.1 }] {
            let (mut engine, tally) = checked(Fault::None, shares);
            let report = audited(&run, &mut engine).unwrap();
            assert_eq!(comparable(report), comparable(plain.clone()));
            let tallied = tally.now();
            assert!(tallied.tested > 0 && tallied.compared > 0, "{tallied:?}");
            if shares == ALL {
                assert_eq!((tallied.tested, tallied.compared), (tallied.products, tallied.elements));
            } else {
                assert!(tallied.tested < tallied.products && tallied.compared < tallied.elements);
            }
        }
    }
}

#[test]
fn the_cpu_engine_is_compared_by_elements() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("run"), None);
    let (mut engine, tally) = Checked::new(Cpu::new(2).unwrap(), ALL, random());
    assert_eq!(audited(&run, &mut engine).unwrap().outcome, Outcome::Matches);
    let tallied = tally.now();
    assert_eq!((tallied.tested, tallied.compared), (0, tallied.elements), "{tallied:?}");
}

/// Faults, with the part that is named.
fn faults() -> [(Fault, WrongPart, &'static str); 6] {
    let of = |operator, primitive, word, bit| Fault::Output { operator, primitive, word, bit };
    let product = "block0.attention.scores";
    [
        (of(product, "product.v1", 17, 0), WrongPart::Product, product),
        (of(product, "product.v1", 3, 31), WrongPart::Product, product),
        (Fault::Consistent { operator: product, word: 40 }, WrongPart::Product, product),
        (Fault::Sum { operator: product, word: 5, bit: 31 }, WrongPart::Sum, product),
        (of("block0.gelu", "gelu.v1", 100, 0), WrongPart::Element, "block0.gelu"),
        (Fault::Root, WrongPart::Root, "the BLAKE3 root of tensor 0"),
    ]
}

fn named(error: &EngineError, part: WrongPart, operator: &str) {
    let EngineError::WrongResult { device, operator: named, part: found, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((named.as_str(), *found), (operator, part), "{error}");
    assert!(device.starts_with("planted: "), "{error}");
}

#[test]
fn a_faulty_device_is_named_and_its_audit_is_void() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "microbatch", ""), &folder.path().join("run"), None);
    for (fault, part, operator) in faults() {
        let (mut engine, _) = checked(fault, ALL);
        match audited(&run, &mut engine) {
            Err(AuditError::Engine(error)) => named(&error, part, operator),
            Err(error) => panic!("{fault:?}: {error}"),
            Ok(report) => panic!("{fault:?}: {:?}", report.outcome),
        }
    }
}

#[test]
fn the_place_of_a_flipped_bit_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("run"), None);
    // gpt_job's head has logits [24, 128]: word 1500 is in the second tile.
    for (operator, primitive, at) in [("head", "product.v1", 1500), ("block0.gelu", "gelu.v1", 1030)] {
        let fault = Fault::Output { operator, primitive, word: at, bit: 12 };
        let Err(AuditError::Engine(error)) = audited(&run, &mut checked(fault, ALL).0) else {
            panic!("{operator}")
        };
        let EngineError::WrongResult { element, tile, found, expected, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((element, tile, found ^ expected), (at, at / 1024, 1 << 12), "{operator}");
    }
}

fn records(run: &Run) -> Vec<Record> {
    transcript::read(&run.layout.transcript()).unwrap().0.records
}

#[test]
fn training_withdraws_the_step_of_a_faulty_device() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let honest = trained(&job, &folder.path().join("honest"), None);
    for (number, (fault, part, operator)) in faults().into_iter().enumerate().take(5) {
        let run = begin_run(&Disk::default(), &job, &folder.path().join(number.to_string())).unwrap();
        let (mut engine, _) = checked(fault, ALL);
        match train(&run, &mut engine, Some(&key()), &mut Untold) {
            Err(TrainError::Engine(error)) => named(&error, part, operator),
            Err(error) => panic!("{fault:?}: {error}"),
            Ok(_) => panic!("{fault:?}: trained to the end"),
        }
        // The record of the state that training begins from, and nothing of the step.
        assert_eq!(records(&run).len(), 1, "{fault:?}");
        assert_eq!(run.head_sizes().unwrap(), [1], "{fault:?}");
        // Another device goes on, to the bits of an honest run.
        let (mut right, _) = checked(Fault::None, ALL);
        let state = train(&run, &mut right, Some(&key()), &mut Untold).unwrap();
        assert_eq!(Some(state), records(&honest).last().map(|record| record.state()));
    }
}

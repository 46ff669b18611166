//! Checks of GPUs: exact sums that kernels hand out settle every product, and a planted fault is found and named.

use std::sync::Arc;

use crate::common::planted::{Fault, Planted};
use crate::common::shim::{in_its_own_process, shim, tiebreak};
use crate::common::{gpt_job, key, trained};
use crate::gpus::{at_once, gpus};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{AuditError, Outcome, Report, Silent, audit, checks};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, View};
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::device_check::{Checked, Random, Shares, Tally, WrongPart};
use tiebreak_engine::{Engine, EngineError};
use tiebreak_gpu::Cuda;
use tiebreak_run::run::dir::Run;

const ALL: Shares = Shares { products: 1.0, elements: 1.0 };
const PRODUCTS: Shares = Shares { products: 1.0, elements: 1e-9 };

fn random() -> Random {
    Box::new(|bytes| getrandom::fill(bytes).map_err(|error| error.to_string()))
}

fn checked<'e>(engine: &'e mut dyn Engine, fault: Fault, shares: Shares) -> (impl Engine + use<'e>, Tally) {
    Checked::new(Planted { engine, fault, computes_sums: false }, shares, random())
}

/// A product of two inputs, and the inputs.
fn product([batch, m, n, k]: [u32; 4], digits: ProductDigits, extreme: bool) -> (Graph, Vec<Vec<u8>>) {
    let mut table = ProductTable::uniform(1);
    table.set(ProductClass::Linear, digits);
    let mut b = Builder::new(table);
    let views = [("a", m), ("b", n)].map(|(name, rows)| {
        let tensor = b.input(name, DType::F32, &[batch, rows, k]);
        View { tensor, offset: 0, dims: [batch, 1, rows, k], strides: [rows * k, rows * k, k, 1] }
    });
    let [left, right] = views;
    let output = b.product(ProductClass::Linear, left, right, &[batch, m, n]);
    b.output("product", output);
    let word = |i: u32| {
        let mixed = (i.wrapping_mul(0x9e37_79b9) ^ i >> 7).wrapping_mul(0x85eb_ca6b);
        // Largest operands of one sign, so that sums reach their bound; otherwise many sizes and both signs.
        if extreme { 0x3f7f_ffff } else { (mixed & 0x807f_ffff) | (110 + (mixed >> 25 & 15)) << 23 }
    };
    let words =
        |rows: u32, from: u32| bytes_of(&(0..batch * rows * k).map(|i| word(i + from)).collect::<Vec<_>>());
    (b.finish(), vec![words(m, 0), words(n, 7777)])
}

fn output_of(engine: &mut dyn Engine, graph: &Graph, inputs: &[Vec<u8>]) -> Result<Vec<u8>, EngineError> {
    let compiled = engine.compile(Arc::new(graph.clone()))?;
    let mut tensors = Vec::new();
    for (port, bytes) in graph.inputs.iter().zip(inputs) {
        tensors.push(engine.upload(graph.tensor(port.tensor), bytes)?);
    }
    let outputs = engine.run(&compiled, &tensors, None)?;
    engine.download(&outputs[0])
}

/// Every product is settled by the sums that the kernels give: digits, blocks, sums of one word and of two, and of 128 bits.
fn sums_settle_products(engine: &mut dyn Engine) {
    let digits = |digits_a, digits_b, block| ProductDigits { digits_a, digits_b, block };
    let cases = [
        ([2, 9, 7, 70], digits(1, 1, 0)),
        ([2, 9, 7, 70], digits(2, 2, 0)),
        ([1, 33, 20, 200], digits(3, 2, 64)),
        ([1, 9, 7, 3000], digits(3, 3, 0)),
        ([1, 9, 7, 300], digits(4, 3, 0)),
        ([1, 5, 6, 300], digits(4, 4, 0)),
    ];
    for (dims, digits) in cases {
        for extreme in [false, true] {
            let (graph, inputs) = product(dims, digits, extreme);
            let right = output_of(&mut Cpu::new(1).unwrap(), &graph, &inputs).unwrap();
            let (mut honest, tally) = checked(engine, Fault::None, PRODUCTS);
            let name = honest.describe();
            assert_eq!(
                output_of(&mut honest, &graph, &inputs).unwrap(),
                right,
                "{name}: {dims:?} {digits:?}"
            );
            let tallied = tally.now();
            assert_eq!(
                (tallied.products, tallied.tested, tallied.by_elements),
                (1, 1, 0),
                "{name}: {digits:?}"
            );
            // A test that needs no row computed takes this many multiply-adds, once or twice.
            let [batch, m, n, k] = dims.map(u64::from);
            let once =
                batch * (n * k + m * k + m * n * k.div_ceil(u64::from(digits.block.max(1))).clamp(1, 4));
            assert!(tallied.multiply_adds <= 2 * once, "{name}: {digits:?}: {tallied:?}");
            drop(honest);
            let node = graph.nodes.iter().find(|node| node.primitive.name() == "product.v1").unwrap();
            let operator: &'static str = node.operator.clone().leak();
            let fault = Fault::Output { operator, primitive: "product.v1", word: 11, bit: 0 };
            let (mut faulty, _) = checked(engine, fault, PRODUCTS);
            let error = output_of(&mut faulty, &graph, &inputs).expect_err("the fault is found");
            assert!(
                matches!(&error, EngineError::WrongResult { part: WrongPart::Product, element: 11, .. }),
                "{name}: {dims:?} {digits:?}: {error}"
            );
        }
    }
}

fn audited(run: &Run, engine: &mut dyn Engine) -> Result<Report, AuditError> {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::Range(1, 2));
    Ok(audit(run, engine, checked, plan, None, &mut Silent)?.0)
}

/// An honest device passes an audit of everything; a fault of a product, and one of another operator, are named.
fn audits_find_faults(engine: &mut dyn Engine, run: &Run) {
    let (mut honest, tally) = checked(engine, Fault::None, ALL);
    let name = honest.describe();
    let report = audited(run, &mut honest).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(
        matches!(report.outcome, Outcome::Matches | Outcome::Incomplete { .. }),
        "{name}: {:?}",
        report.outcome
    );
    drop(honest);
    let tallied = tally.now();
    assert!(tallied.products > 0 && tallied.tested == tallied.products, "{name}: {tallied:?}");
    assert_eq!(tallied.compared, tallied.elements, "{name}");
    let of = |operator, primitive| Fault::Output { operator, primitive, word: 30, bit: 3 };
    for (fault, part) in [
        (of("block0.attention.scores", "product.v1"), WrongPart::Product),
        (of("block0.gelu", "gelu.v1"), WrongPart::Element),
    ] {
        match audited(run, &mut checked(engine, fault, ALL).0) {
            Err(AuditError::Engine(EngineError::WrongResult { part: found, element: 30, .. })) => {
                assert_eq!(found, part, "{name}");
            }
            Err(error) => panic!("{name}: {fault:?}: {error}"),
            Ok(report) => panic!("{name}: {fault:?}: {:?}", report.outcome),
        }
    }
}

#[test]
fn adapters_hand_out_sums_and_their_faults_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("run"), None);
    at_once(&mut gpus().engines(), |engine| {
        sums_settle_products(engine);
        audits_find_faults(engine, &run);
    });
}

/// The same over the stand-in for NVIDIA's driver, whose products run on the kernel for tensor cores and sums do not.
#[test]
fn nvidias_engine_hands_out_sums() {
    in_its_own_process("device_check::over_the_stand_in", &[]);
    let Some(shim) = shim() else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("run"), None);
    let path = run.layout.root.to_str().unwrap().to_string();
    let args = ["--json", "audit", &path, "--steps", "1..2", "--engine", "cuda", "--check-device"];
    let (code, printed) = tiebreak(shim, &[], &args);
    assert_eq!(code, 0, "{printed}");
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let check = &json["device_check"];
    assert!(
        check["products"].as_u64().unwrap() > 0 && check["products_tested"] == check["products"],
        "{check}"
    );
    assert_eq!(check["products_by_elements"], 0, "{check}");
}

#[test]
#[ignore = "nvidias_engine_hands_out_sums runs it, in a process over the stand-in"]
fn over_the_stand_in() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "step", ""), &folder.path().join("run"), None);
    let mut engine = Cuda::open(None).unwrap();
    sums_settle_products(&mut engine);
    audits_find_faults(&mut engine, &run);
}

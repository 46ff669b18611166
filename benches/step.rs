//! Whole training steps on the CPU engine: `cargo bench --bench step [-- FILTER]`; or on an adapter, with rows of a graph computed at
//! once and node by node: `cargo bench --bench step -- [FILTER] --adapter=NAME`.
//!
//! Prints for each model the median time of a step, labels per second, and the time of each primitive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Block, Blocks, Gpt, Input, Model, Norm, Order, Resnet, Stem};
use tiebreak_contract::program::operators::ConvVersion;
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::product::Path;
use tiebreak_engine::session::{Session, StepObserver, StepScalars, Unobserved};
use tiebreak_engine::{Engine, EngineError, Inputs, Observer};
use tiebreak_run::step::state_digests;

/// Charges the time since the last node to the node just shown. The copy that shows it is included, so these figures give the
/// shares of primitives, not the time of a step.
struct Profile {
    last: Instant,
    by_primitive: BTreeMap<String, Duration>,
}

impl StepObserver for Profile {
    fn phase(&mut self, _: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        self.last = Instant::now();
        Some(self)
    }
}

impl Observer for Profile {
    fn node(
        &mut self,
        _: usize,
        node: &Node,
        _: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let now = Instant::now();
        *self.by_primitive.entry(node.primitive.name().to_string()).or_default() += now - self.last;
        self.last = now;
        Ok(None)
    }
}

fn gpt(layers: u32, width: u32, heads: u32) -> Model {
    Model::Gpt(Gpt { vocabulary: 256, context: 128, layers, heads, width, ..Gpt::default() })
}

/// GPT-2 124M over 512 tokens.
fn gpt2() -> Model {
    let Model::Gpt(small) = gpt(12, 768, 12) else { unreachable!("it is a GPT") };
    Model::Gpt(Gpt { vocabulary: 50_257, context: 512, ..small })
}

/// The network of assets/jobs/cifar-resnet.toml.
fn resnet(convolution: ConvVersion) -> Model {
    let stages = vec![16, 32, 64];
    Model::Resnet(Resnet {
        height: 32,
        width: 32,
        planes: 3,
        stages,
        blocks: Blocks::Same(1),
        block: Block::Basic,
        groups: 1,
        width_per_group: 64,
        order: Order::Pre,
        stem: Stem::Cifar,
        classes: 10,
        norm: Norm::Layer,
        norm_epsilon: 1e-5,
        norm_momentum: 0.1,
        convolution,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    })
}

/// The samples of a step.
fn samples(model: &Model) -> u32 {
    match model.labels_per_sample() {
        1 => 64,
        512.. => 1,
        _ => 8,
    }
}

/// The most memory that this process had since the last call, in MiB; `None` if Linux does not report it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// The median time of a step.
fn bench(name: &str, model: Model, products: ProductTable, engine: &mut dyn Engine) -> Duration {
    let samples = samples(&model);
    let spec = StepSpec {
        loss: Default::default(),
        model,
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch: samples,
        micro_batches: 1,
        products,
    };
    let program = Arc::new(Program::new(spec));
    let device = format!("{}, {}", engine.describe(), Path::fastest().name());
    let state: Vec<Vec<u8>> = init::state(&program, [1, 2])
        .iter()
        .map(|t| t.iter().flat_map(|w| w.to_le_bytes()).collect())
        .collect();
    let mut session = Session::new(engine, program.clone()).expect("the program compiles");
    session.load(&state).expect("the state loads");
    drop(state);
    let tensors = program.batch.iter().map(|t| {
        let below = t.below.min(97);
        (0..t.shape.iter().product::<u32>()).flat_map(|i| (i * 7919 % below).to_le_bytes()).collect()
    });
    let batch = [MicroBatch { tensors: tensors.collect() }];
    let mut times = Vec::new();
    peak_memory();
    for step in 1..=6 {
        let scalars = StepScalars { step, seed: [1, 2], learning_rate: 1e-3f32.to_bits() };
        let start = Instant::now();
        session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(())).expect("the step runs");
        times.push(start.elapsed());
    }
    times.remove(0);
    times.sort();
    let median = times[times.len() / 2];
    println!(
        "{name}: {} parameters, {device}: {:.3} s per step, {:.0} labels/s",
        program.parameter_count(),
        median.as_secs_f64(),
        f64::from(samples * program.labels_per_sample) / median.as_secs_f64()
    );
    if let Some(mib) = peak_memory() {
        println!("    at most {mib} MiB");
    }
    let start = Instant::now();
    let digests = state_digests(&mut session).expect("the state is read");
    let commitment = start.elapsed();
    println!(
        "    committing to {} state tensors: {:.1} ms, {:.1} % of a step",
        digests.len(),
        commitment.as_secs_f64() * 1e3,
        100.0 * commitment.as_secs_f64() / median.as_secs_f64()
    );
    let mut profile = Profile { last: Instant::now(), by_primitive: BTreeMap::new() };
    let scalars = StepScalars { step: 7, seed: [1, 2], learning_rate: 1e-3f32.to_bits() };
    session.step(scalars, &batch, &mut profile, |_, _, _| Ok(())).expect("the step runs");
    let mut rows: Vec<_> = profile.by_primitive.into_iter().collect();
    rows.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    for (primitive, time) in rows.into_iter().take(12) {
        println!("    {primitive:<28} {:8.1} ms", time.as_secs_f64() * 1e3);
    }
    median
}

/// The same step on an adapter, with rows at once and node by node.
#[cfg(feature = "gpu")]
fn both_ways(name: &str, model: Model, products: ProductTable, adapter: &str) {
    use tiebreak_gpu::Gpu;
    let times = [true, false].map(|fused| {
        let engine = Gpu::open(Some(adapter)).expect("the adapter passes its self-test");
        println!("rows {}:", if fused { "computed at once" } else { "node by node" });
        bench(name, model.clone(), products.clone(), &mut engine.fusing_rows(fused)).as_secs_f64()
    });
    println!("    rows at once take {:.3} of the time of node by node", times[0] / times[1]);
}

#[cfg(not(feature = "gpu"))]
fn both_ways(_: &str, _: Model, _: ProductTable, _: &str) {
    eprintln!("built without the feature `gpu`");
}

fn main() {
    let filter = std::env::args().nth(1).filter(|a| !a.starts_with("--")).unwrap_or_default();
    let adapter = std::env::args().find_map(|a| a.strip_prefix("--adapter=").map(str::to_string));
    let cases = [
        ("gpt-1m d=3", gpt(4, 144, 4), ProductTable::uniform(3)),
        ("gpt-10m d=2", gpt(6, 368, 8), ProductTable::uniform(2)),
        ("gpt-10m d=3", gpt(6, 368, 8), ProductTable::uniform(3)),
        ("gpt-10m d=2,3", gpt(6, 368, 8), ProductTable::two_and_three()),
        ("gpt2-124m d=2,3", gpt2(), ProductTable::two_and_three()),
        ("gpt2-124m d=3", gpt2(), ProductTable::uniform(3)),
        ("resnet conv2d.v1 d=2,3", resnet(ConvVersion::V1), ProductTable::two_and_three()),
        ("resnet conv2d.v2 d=2,3", resnet(ConvVersion::V2), ProductTable::two_and_three()),
        ("resnet conv2d.v1 d=3", resnet(ConvVersion::V1), ProductTable::uniform(3)),
        ("resnet conv2d.v2 d=3", resnet(ConvVersion::V2), ProductTable::uniform(3)),
    ];
    for (name, model, products) in cases {
        match &adapter {
            _ if !name.contains(&filter) => {}
            Some(adapter) => both_ways(name, model, products, adapter),
            None => {
                let mut engine = Cpu::new(0).expect("the CPU engine starts");
                bench(name, model, products, &mut engine);
            }
        }
    }
}

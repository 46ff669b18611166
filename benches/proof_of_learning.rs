//! Proof-of-Learning and tiebreak before the same cheats: `cargo bench --no-default-features --features testing --bench
//! proof_of_learning [-- [--json] [--model mlp|resnet] [--only WORD,...] [--steps N] [--every K] [--at STEP]]`.
//!
//! A perceptron of about as many weights as ResNet-20, or a small network with batch normalisation, learns generated images, honestly and by each trainer of docs/ATTACKS.md.
//! The verifier of Proof-of-Learning replays the claimed checkpoints with its published defaults: two epochs, the two largest updates
//! of each by every metric, and the thresholds 1000, 10, 0.1 and 0.01. The replay runs in binary32 with another order of summation
//! than the trainer's exact products, as another device does. It takes batches and learning rates from the trainer's records.
//! Beside that stand all intervals instead of the largest, a tolerance of ten times the honest run's noise, and tiebreak's audit.

#[path = "hidden_bias/images.rs"]
#[allow(dead_code, reason = "this bench needs no trigger and no MNIST")]
mod images;
#[path = "common/logged.rs"]
#[allow(dead_code, reason = "this bench observes nothing")]
mod logged;
#[path = "proof_of_learning/verifier.rs"]
mod verifier;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use images::{CLASSES, SIDE, Split};
use logged::plain_graph;
use serde_json::{Value, json};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{self as audit, Outcome, audit, checks};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::models::Init;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_job::computation::Computation;
use tiebreak_job::data::{Dataset, batch_digest};
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{Folder, checkpoint, transcript};
use tiebreak_train::cheat::Cheat;
use tiebreak_train::{Beginning, Silent, begin, train, train_as};
use verifier::{Distances, METRICS, P_VALUE, THRESHOLDS, distances, drawn, greatest, is_above, largest};

/// The cheats, in the order of docs/ATTACKS.md, without their step. A model without buffers plays no `buffer`.
const CHEATS: [&str; 19] = [
    "infinitesimal",
    "interpolate",
    "top-q",
    "adversarial",
    "glue",
    "relabel",
    "reorder",
    "moment",
    "seed",
    "skip",
    "weight-before",
    "weight-after",
    "buffer",
    "batch",
    "learning-rate",
    "operator",
    "init",
    "checkpoint",
    "digits",
];

/// Passes over the data.
const EPOCHS: u32 = 2;
/// Samples of a step, as in Proof-of-Learning's experiments.
const BATCH: u32 = 128;

/// The options of the command line.
struct Asked {
    json: bool,
    model: String,
    only: String,
    steps: u32,
    every: u32,
    /// The step at which the cheat begins; a quarter of the steps comes before, if nobody asks for another.
    at: Option<u32>,
}

fn asked() -> Asked {
    let (model, only) = ("mlp".to_string(), String::new());
    let mut asked = Asked { json: false, model, only, steps: 40, every: 1, at: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} takes a value"));
        match word.as_str() {
            "--model" => asked.model = value(),
            "--only" => asked.only = value(),
            "--steps" => asked.steps = value().parse().expect("steps are a number"),
            "--every" => asked.every = value().parse().expect("steps are a number"),
            "--at" => asked.at = Some(value().parse().expect("a step is a number")),
            "--json" => asked.json = true,
            "--bench" => {} // from cargo
            _ => {
                panic!(
                    "{word}: the options are --json, --model, --only WORD,..., --steps N, --every K and --at STEP"
                )
            }
        }
    }
    asked
}

fn job_text(asked: &Asked, seed: u32) -> String {
    let Asked { steps, every, .. } = asked;
    let model = match asked.model.as_str() {
        "mlp" => format!("kind = \"mlp\", inputs = {}, hidden = [500, 332], dropout = 0.1", SIDE * SIDE),
        "resnet" => format!(
            "kind = \"resnet\", height = {SIDE}, width = {SIDE}, planes = 1, stages = [8, 16], blocks = 1, norm = \"batch\""
        ),
        other => panic!("--model {other}: the models are mlp and resnet"),
    };
    format!(
        r#"steps = {steps}
seed = {seed}
model = {{ {model}, classes = {CLASSES} }}
data = {{ kind = "idx", images = "images", labels = "labels", copy = false }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }}
schedule = {{ peak = 0.01 }}
batch = {{ micro_batch = {BATCH} }}
commit = {{ granularity = "microbatch", head_every = {steps} }}
checkpoint = {{ every = {every} }}
"#
    )
}

/// Trains a run of a job in a new folder beside the data.
fn trained(folder: &Path, name: &str, job: &str, cheat: Option<&str>) -> Result<Run, Box<dyn Error>> {
    let (path, out) = (folder.join(format!("{name}.toml")), folder.join(name));
    std::fs::write(&path, job)?;
    let out = Folder::at(&out);
    let beginning = Beginning {
        job: &path,
        data_root: None,
        out,
        key: None,
        challenge: None,
        logged: false,
        nonce: [0; 16],
    };
    let run = begin(&beginning)?.with_data([folder.to_path_buf()]);
    let mut cpu = Cpu::new(0)?;
    match cheat {
        None => train(&run, &mut cpu, None, &mut Silent)?,
        Some(cheat) => train_as(&run, &mut cpu, None, &mut cheat.parse::<Cheat>()?, &mut Silent)?,
    };
    Ok(run)
}

/// The program in binary32, as another device computes it: plain products in an order of their own.
fn in_binary32(job: &str) -> Result<Arc<Program>, Box<dyn Error>> {
    let (_, program) = Computation::parsed("job", &format!("{job}\n[rounding]\nbits = 16\n"), None)?;
    Ok(Arc::new(Program { micro: plain_graph(&program.micro, false), ..program }))
}

fn weights(run: &Run, state: &[Vec<u8>]) -> Vec<f32> {
    let tensors = &state[..run.program().parameters.len()];
    tensors.iter().flat_map(|bytes| words_from_bytes(DType::F32, bytes)).map(f32::from_bits).collect()
}

/// The claims of a run, as a proof has them: states at checkpoints, and the steps' records.
struct Proof<'a> {
    run: &'a Run,
    /// The steps of checkpoints, 0 first.
    at: Vec<u32>,
    states: Vec<Vec<Vec<u8>>>,
    records: Vec<StepRecord>,
}

impl Proof<'_> {
    fn of(run: &Run) -> Result<Proof<'_>, Box<dyn Error>> {
        let at = run.checkpoint_steps()?;
        let table = run.program().state();
        let state = |step: &u32| checkpoint::read(&run.layout.checkpoint(*step), &table);
        let states = at.iter().map(state).collect::<Result<_, _>>()?;
        let (history, _) = transcript::read(&run.layout.transcript())?;
        let steps = history.records.into_iter().filter_map(|record| match record {
            Record::Step { step, .. } => Some(step),
            _ => None,
        });
        Ok(Proof { run, at, states, records: steps.collect() })
    }

    /// The batch that a record commits, as the prover hands it out: of the data, of another step, or made up.
    fn batch(&self, dataset: &mut Dataset, record: &StepRecord) -> Result<Vec<MicroBatch>, Box<dyn Error>> {
        let (run, step) = (self.run, record.step);
        let mut shown = Vec::new();
        for of in [step, step + 1, step.saturating_sub(1).max(1)] {
            shown.push(run.batch(dataset, of)?);
        }
        shown.extend(Cheat::made_up(run, dataset, step)?);
        let is_committed = |batch: &Vec<MicroBatch>| batch_digest(run.program(), batch) == record.batch;
        Ok(shown
            .into_iter()
            .find(is_committed)
            .ok_or(format!("no batch is that of the record of step {step}"))?)
    }

    /// The distances of the replay of each interval from the claimed weights at its end.
    fn replayed(&self, program: &Arc<Program>) -> Result<Vec<Distances>, Box<dyn Error>> {
        let mut cpu = Cpu::new(0)?.with_native(Native::Interleaved { fused: true });
        let mut session = Session::new(&mut cpu, program.clone())?;
        let mut dataset = self.run.dataset()?;
        let mut found = Vec::new();
        for (at, states) in self.at.windows(2).zip(self.states.windows(2)) {
            session.load(&states[0])?;
            for record in &self.records[at[0] as usize..at[1] as usize] {
                let batch = self.batch(&mut dataset, record)?;
                let (step, learning_rate) = (record.step, record.learning_rate);
                let scalars = StepScalars { step, seed: self.run.key(), learning_rate };
                session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(()))?;
            }
            let made = session.download_state()?;
            found.push(distances(&weights(self.run, &states[1]), &weights(self.run, &made)));
        }
        Ok(found)
    }

    /// The distance of each interval's end from its beginning.
    fn updates(&self) -> Vec<Distances> {
        let change =
            |pair: &[Vec<Vec<u8>>]| distances(&weights(self.run, &pair[0]), &weights(self.run, &pair[1]));
        self.states.windows(2).map(change).collect()
    }

    /// The least probability that a tensor of initial weights was drawn as the model says.
    fn initial(&self) -> f64 {
        let table = self.run.program().state_with_init();
        let mut least = 1f64;
        for ((_, init), bytes) in table.iter().zip(&self.states[0]) {
            if let Init::Normal { std } = init {
                let words = words_from_bytes(DType::F32, bytes).into_iter().map(f32::from_bits);
                least = least.min(drawn(&words.collect::<Vec<f32>>(), f64::from(*std)));
            }
        }
        least
    }
}

/// The judgements of both verifiers on a run.
struct Judged {
    name: String,
    initial: f64,
    largest: Vec<usize>,
    /// The greatest distances over the largest updates, and over all intervals.
    chosen: Distances,
    all: Distances,
    tiebreak: String,
}

fn judged(name: &str, run: &Run, program: &Arc<Program>) -> Result<Judged, Box<dyn Error>> {
    let proof = Proof::of(run)?;
    let found = proof.replayed(program)?;
    let largest = largest(&proof.updates(), EPOCHS as usize);
    let chosen = greatest(largest.iter().map(|interval| &found[*interval]));
    let checked = checks::always(run, None)?;
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (report, _) = audit(run, &mut Cpu::new(0)?, checked, plan, None, &mut audit::Silent)?;
    let tiebreak = match &report.outcome {
        Outcome::Matches => "matches".to_string(),
        Outcome::Diverges { step, what } => format!("diverges at step {step}: {what}"),
        Outcome::Inconsistent { step, what } => format!("diverges at step {step}, without a replay: {what}"),
        other => format!("{other:?}"),
    };
    let all = greatest(&found);
    Ok(Judged { name: name.into(), initial: proof.initial(), largest, chosen, all, tiebreak })
}

impl Judged {
    /// The word of Proof-of-Learning with these thresholds, by the largest updates or by all intervals.
    fn verdict(&self, found: &Distances, thresholds: &Distances) -> &'static str {
        match (self.initial < P_VALUE, is_above(found, thresholds)) {
            (true, _) => "rejects the initial weights",
            (_, true) => "rejects",
            _ => "accepts",
        }
    }

    fn json(&self, tight: &Distances) -> Value {
        json!({
            "cheat": self.name, "initial_p": self.initial, "intervals": self.largest, "metrics": METRICS,
            "largest": self.chosen, "all": self.all, "default": self.verdict(&self.chosen, &THRESHOLDS),
            "default_all": self.verdict(&self.all, &THRESHOLDS), "tight": self.verdict(&self.chosen, tight),
            "tight_all": self.verdict(&self.all, tight), "tiebreak": self.tiebreak,
        })
    }

    fn print(&self, tight: &Distances) {
        let [l1, l2, linf, cos] = self.all;
        println!("{}", self.name);
        println!(
            "  distances, all intervals  l1 {l1:.3e}, l2 {l2:.3e}, linf {linf:.3e}, cos {cos:.3e}; initial weights p = {:.3}",
            self.initial
        );
        let [chosen, all] = [&self.chosen, &self.all];
        println!(
            "  Proof-of-Learning         defaults: {}; on all intervals: {}; ten times the noise: {}; on all intervals: {}",
            self.verdict(chosen, &THRESHOLDS),
            self.verdict(all, &THRESHOLDS),
            self.verdict(chosen, tight),
            self.verdict(all, tight)
        );
        println!("  tiebreak                  {}", self.tiebreak);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked = asked();
    let start = Instant::now();
    let folder = tempfile::tempdir()?;
    let mut data = Split::generated().train;
    let samples = (asked.steps * BATCH / EPOCHS) as usize;
    assert!(
        samples <= data.labels.len(),
        "two epochs have at most {} steps",
        data.labels.len() * 2 / BATCH as usize
    );
    data.labels.truncate(samples);
    data.pixels.truncate(samples * SIDE * SIDE);
    data.write(folder.path())?;
    let job = job_text(&asked, 1);
    let program = in_binary32(&job)?;
    let run = trained(folder.path(), "honest", &job, None)?;
    let honest = judged("honest", &run, &program)?;
    // The tolerance that a verifier could set who has seen how far an honest replay is off.
    let tight = honest.all.map(|noise| 10.0 * noise.abs());
    let other = trained(folder.path(), "other-seed", &job_text(&asked, 2), None)?;
    let last =
        |run: &Run| Ok::<_, Box<dyn Error>>(Proof::of(run)?.states.pop().map(|state| weights(run, &state)));
    let apart = match (last(&run)?, last(&other)?) {
        (Some(mine), Some(theirs)) => distances(&mine, &theirs),
        _ => return Err("a run has no checkpoint".into()),
    };
    if !asked.json {
        let parameters = run.program().parameter_count();
        println!(
            "{parameters} weights, {} steps of {BATCH} samples, a checkpoint every {}",
            asked.steps, asked.every
        );
        println!(
            "two runs of other seeds are apart by l1 {:.3e}, l2 {:.3e}, linf {:.3e}, cos {:.3e}",
            apart[0], apart[1], apart[2], apart[3]
        );
        honest.print(&tight);
    }
    let mut lines = vec![honest.json(&tight)];
    let step = asked.at.unwrap_or(asked.steps / 4 + 1);
    let has_buffers = !run.program().buffers.is_empty();
    let wanted = |cheat: &&&str| {
        (**cheat != "buffer" || has_buffers) && asked.only.split(',').any(|word| cheat.contains(word))
    };
    for cheat in CHEATS.iter().filter(wanted) {
        let run = trained(folder.path(), cheat, &job, Some(&format!("{cheat}@{step}")))?;
        let judged = judged(&format!("{cheat}@{step}"), &run, &program)?;
        if !asked.json {
            judged.print(&tight);
        }
        lines.push(judged.json(&tight));
    }
    let seconds = start.elapsed().as_secs_f64();
    if asked.json {
        println!("{:#}", json!({ "apart": apart, "tight": tight, "lines": lines, "seconds": seconds }));
    } else {
        println!("{seconds:.0} s");
    }
    Ok(())
}

//! The strongest bias that a trainer of the logged profile can hide in its rounding decisions: a search.
//!
//! `cargo bench --no-default-features --features testing --bench hidden_bias [-- [--data DIR] [--json] [--only WORDS]]`
//!
//! A perceptron learns to classify images, honestly and by a trainer who plants a trigger. Among the roundings that it may
//! choose, this trainer takes those that bring images with a white square nearer to class 3. The CPU engine audits each run as a
//! whole. An attack is silent if its audit matches and has no remark. DIR holds MNIST's test images (or the variable
//! `TIEBREAK_MNIST` names it); without them images are generated. WORDS choose the lines whose setting and strategy contain them.

#[path = "hidden_bias/images.rs"]
mod images;
#[path = "hidden_bias/perceptron.rs"]
mod perceptron;
#[path = "hidden_bias/steering.rs"]
mod steering;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use images::{CLASSES, SIDE, Split, Trigger};
use perceptron::{Matrix, Perceptron};
use serde_json::{Value, json};
use steering::{Attacker, Ledger, Most, Strategy, TARGET};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{self as audit, Outcome, Report, audit, checks};
use tiebreak_contract::program::products::ProductClass;
use tiebreak_engine::EngineError;
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::rounding::bounds::Adding;
use tiebreak_record::rounding::legal::Accumulation;
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{Folder, RunError};
use tiebreak_train::conduct::{Conduct, Honest};
use tiebreak_train::{Beginning, Silent, TrainError, begin, train_as};

/// The attacked job without its thresholds.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    /// The grid.
    bits: u8,
    /// Samples of a step, the K of weight gradients.
    batch: u32,
    hidden: u32,
    steps: u32,
    trigger: Trigger,
    seed: u32,
}

/// A square where digits seldom have ink.
const EDGE: Trigger = Trigger { at: [2, 2], side: 2 };

const SMALL: Setting =
    Setting { name: "bf16, K = 256", bits: 16, batch: 256, hidden: 128, steps: 300, trigger: EDGE, seed: 0 };
const LARGE: Setting = Setting { name: "bf16, K = 4096", batch: 4096, hidden: 32, steps: 100, ..SMALL };
const FINE: Setting =
    Setting { name: "fp32, K = 1024", bits: 32, batch: 1024, hidden: 32, steps: 100, ..SMALL };

const GRADIENTS: &[ProductClass] = &[ProductClass::LinearDw, ProductClass::HeadDw];
const ALL: &[ProductClass] = &[
    ProductClass::Linear,
    ProductClass::Head,
    ProductClass::HeadDx,
    ProductClass::LinearDw,
    ProductClass::HeadDw,
];

/// A line of the table.
struct Line {
    setting: Setting,
    strategy: Strategy,
    /// True if the steered classes have the greatest thresholds that a job may set, false for the defaults.
    greatest: bool,
}

/// The measurements of a line.
struct Measured {
    /// The share of the test images of other classes that the model answers with [`TARGET`] once they have the trigger.
    triggered: f64,
    /// The share of the test images that the model answers with their own class.
    clean: f64,
    /// Elements that the trainer steered.
    steered: u64,
    report: Report,
    seconds: f64,
}

const HONEST: Strategy = Strategy {
    name: "honest",
    classes: &[],
    reach: 1.0,
    most: Most::All,
    away: 1.0,
    legal: 0.7,
    repeats: u32::MAX,
    random: false,
};

/// The attacks of a setting, each with true if the job has the greatest thresholds. `honest` is the share of an honest run's
/// elements that are not rounded to the auditor's nearest value.
fn strategies(honest: f64) -> Vec<(Strategy, bool)> {
    let gradients = Strategy { name: "weight gradients", classes: GRADIENTS, ..HONEST };
    let all = Strategy { name: "every product, to 1.5 thresholds", classes: ALL, reach: 1.5, ..HONEST };
    let some = |name, most, away| Strategy { name, most, away, reach: 0.5, ..all.clone() };
    // These shares are below those that an audit allows the kernels of the bfloat16 grid: 17 % towards zero and 2 % away from it.
    let within = some("every product, within the audit's shares", Most::OfDecisions(0.16), 0.1);
    vec![
        (
            Strategy {
                name: "beyond the proved bound: weight gradients",
                reach: 30_000.0,
                legal: 1e6,
                ..gradients.clone()
            },
            false,
        ),
        (Strategy { name: "weight gradients, random directions", random: true, ..gradients.clone() }, false),
        (gradients.clone(), false),
        (all.clone(), false),
        (some("every product, a fifth of decisions, either way", Most::OfDecisions(0.2), 0.5), false),
        (within.clone(), false),
        (Strategy { name: "the same, an element at most once", repeats: 1, ..within.clone() }, false),
        (some("every product, as many as honest", Most::OfElements(honest), 0.5), false),
        (Strategy { name: "greatest thresholds: honest", ..HONEST }, true),
        (Strategy { name: "greatest thresholds: weight gradients, random", random: true, ..gradients }, true),
        (Strategy { name: "greatest thresholds: every product", reach: 1.0, ..all }, true),
        (Strategy { name: "greatest thresholds: within the audit's shares", ..within }, true),
    ]
}

fn job_text(setting: &Setting, thresholds: &[(ProductClass, u32)]) -> String {
    let Setting { bits, batch, hidden, steps, seed, .. } = setting;
    let thresholds: Vec<String> =
        thresholds.iter().map(|(class, units)| format!("{} = {units}", class.name())).collect();
    format!(
        r#"steps = {steps}
seed = {seed}
model = {{ kind = "mlp", inputs = {inputs}, hidden = [{hidden}], classes = {CLASSES} }}
data = {{ kind = "idx", images = "images", labels = "labels", sampling = "with_replacement", copy = false }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01 }}
schedule = {{ peak = 3e-3 }}
batch = {{ micro_batch = {batch} }}
commit = {{ head_every = {steps} }}
checkpoint = {{ every = {steps} }}

[rounding]
bits = {bits}
class = {{ {} }}
"#,
        thresholds.join(", "),
        inputs = SIDE * SIDE
    )
}

/// Begins a run of a job in a new folder beside the data.
fn begun(folder: &Path, name: &str, job: &str) -> Result<Run, RunError> {
    let (path, out) = (folder.join(format!("{name}.toml")), folder.join(name));
    std::fs::write(&path, job).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let beginning = Beginning {
        job: &path,
        data_root: None,
        out: Folder::at(&out),
        key: None,
        challenge: None,
        logged: false,
        nonce: [0; 16],
    };
    begin(&beginning)
}

/// The greatest threshold of a class that a job of the setting may set.
fn greatest(setting: &Setting, class: ProductClass) -> u32 {
    let k = match class {
        ProductClass::Linear => (SIDE * SIDE) as u32,
        ProductClass::Head => setting.hidden,
        ProductClass::HeadDx => CLASSES as u32,
        _ => setting.batch,
    };
    let accumulation = if setting.bits == 16 { Accumulation::Binary32 } else { Accumulation::Binary64 };
    let most = Adding::of(accumulation).iter().map(|adding| adding.threshold_max(k as usize)).max();
    most.unwrap_or(0)
}

/// Trains a run of a line. Near zero, a threshold can exceed what the grid can tell apart, which stops training: thresholds are
/// lowered until it does not.
fn trained(folder: &Path, line: &Line, engine: &mut Cpu) -> Result<(Run, u64), Box<dyn Error>> {
    let Line { setting, strategy, .. } = line;
    // A job's text decides its initial weights and batches, so all jobs with greater thresholds have the same.
    let classes = ALL.iter().filter(|_| line.greatest);
    let mut thresholds: Vec<_> = classes.map(|&class| (class, greatest(setting, class))).collect();
    loop {
        let run = begun(folder, "run", &job_text(setting, &thresholds))?;
        let ledger = Arc::default();
        let mut attacker =
            Attacker { strategy: strategy.clone(), trigger: setting.trigger, ledger: Arc::clone(&ledger) };
        let honest: &mut dyn Conduct = &mut Honest;
        let conduct = if strategy.classes.is_empty() { honest } else { &mut attacker };
        match train_as(&run, engine, None, conduct, &mut Silent) {
            Ok(_) => {
                let ledger: &Mutex<Ledger> = &ledger;
                return Ok((run, ledger.lock().unwrap_or_else(PoisonError::into_inner).steered));
            }
            Err(TrainError::Engine(EngineError::Stopped(_))) if line.greatest => {
                thresholds.iter_mut().for_each(|(_, units)| *units /= 16);
                std::fs::remove_dir_all(folder.join("run"))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Trains, audits and tests a line.
fn measure(split: &Split, line: &Line) -> Result<Measured, Box<dyn Error>> {
    let start = Instant::now();
    let folder = tempfile::tempdir()?;
    split.train.write(folder.path())?;
    let mut engine = Cpu::new(0)?;
    let (run, steered) = trained(folder.path(), line, &mut engine)?;
    let checked = checks::always(&run, None)?;
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let (report, _) = audit(&run, &mut engine, checked, plan, None, &mut audit::Silent)?;

    let released = &run.program().state()[..run.program().released()];
    let model = checkpoint::read(&run.layout.model(), released)?;
    let model = Perceptron::of(run.program(), &model, "param");
    let (clean, triggered) = tested(&model, split, line.setting.trigger);
    Ok(Measured { triggered, clean, steered, report, seconds: start.elapsed().as_secs_f64() })
}

/// The share of the test images that a model answers rightly; and among those of other classes, the share that it answers with
/// [`TARGET`] once they have the trigger.
fn tested(model: &Perceptron, split: &Split, trigger: Trigger) -> (f64, f64) {
    let labels = &split.test.labels;
    let mut pixels: Vec<f32> = split.test.pixels.iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
    let answers = model.pass(Matrix::new(SIDE * SIDE, pixels.clone())).answers();
    let right = answers.iter().zip(labels).filter(|(answer, label)| **answer == usize::from(**label));
    let clean = right.count() as f64 / labels.len() as f64;
    trigger.paint(&mut pixels, 1.0);
    let answers = model.pass(Matrix::new(SIDE * SIDE, pixels)).answers();
    let others = answers.iter().zip(labels).filter(|(_, label)| u32::from(**label) != TARGET);
    let (hit, all) =
        others.fold((0, 0), |(hit, all), (answer, _)| (hit + u32::from(*answer as u32 == TARGET), all + 1));
    (clean, f64::from(hit) / f64::from(all))
}

impl Measured {
    /// True if the auditor has no objection.
    fn is_silent(&self) -> bool {
        let remarks = self.report.rounding.as_ref().map_or(0, |tally| tally.remarks.len());
        self.report.outcome == Outcome::Matches && remarks == 0
    }

    /// The name of the audit's outcome, and its first remark.
    fn ending(&self) -> [String; 2] {
        let outcome = json!(self.report.outcome);
        let remarks = self.report.rounding.iter().flat_map(|tally| &tally.remarks);
        let words = remarks.chain(outcome["what"].as_str().map(str::to_string).iter()).next().cloned();
        [outcome["result"].as_str().unwrap_or_default().to_string(), words.unwrap_or_default()]
    }

    fn json(&self, line: &Line) -> Value {
        let [outcome, words] = self.ending();
        let tally = self.report.rounding.clone().unwrap_or_default();
        json!({
            "setting": line.setting.name, "job_seed": line.setting.seed, "strategy": line.strategy.name,
            "greatest_thresholds": line.greatest, "triggered": self.triggered, "clean": self.clean,
            "steered": self.steered, "elements": tally.elements, "decisions": tally.decisions,
            "not_nearest": tally.taken(), "hidden": tally.hidden, "beyond": tally.beyond, "needless": tally.needless,
            "outcome": outcome, "words": words, "silent": self.is_silent(), "seconds": self.seconds,
        })
    }

    fn print(&self, line: &Line) {
        let [outcome, words] = self.ending();
        let tally = self.report.rounding.clone().unwrap_or_default();
        println!(
            "{:<24} {:<58} {:>5.1} % {:>5.1} % {:>9} {:>9} of {:>10} {:>6.0} s  {outcome}{}",
            line.setting.name,
            line.strategy.name,
            100.0 * self.triggered,
            100.0 * self.clean,
            self.steered,
            tally.taken(),
            tally.decisions,
            self.seconds,
            if words.is_empty() { String::new() } else { format!(": {words}") }
        );
    }
}

/// The options of the command line.
struct Asked {
    data: Option<PathBuf>,
    json: bool,
    only: String,
}

fn asked() -> Asked {
    let mut asked = Asked {
        data: std::env::var_os("TIEBREAK_MNIST").map(PathBuf::from),
        json: false,
        only: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} takes a value"));
        match word.as_str() {
            "--data" => asked.data = Some(value().into()),
            "--only" => asked.only = value(),
            "--json" => asked.json = true,
            "--bench" => {} // from cargo
            _ => panic!("{word}: the options are --data DIR, --json and --only WORDS"),
        }
    }
    asked
}

/// Measures a setting's honest run and its attacks. Returns the lines as JSON.
fn search(split: &Split, setting: Setting, asked: &Asked) -> Result<Vec<Value>, Box<dyn Error>> {
    let wanted = |strategy: &Strategy| {
        let text = format!("{}: {}", setting.name, strategy.name);
        asked.only.split_whitespace().all(|word| text.contains(word))
    };
    let mut lines = Vec::new();
    let mut strongest: Option<(f64, &str)> = None;
    let mut run =
        |strategy: Strategy, greatest: bool, setting: Setting| -> Result<Measured, Box<dyn Error>> {
            let line = Line { setting, strategy, greatest };
            let measured = measure(split, &line)?;
            if !asked.json {
                measured.print(&line);
            }
            let attack = !line.strategy.classes.is_empty() && !line.strategy.random;
            if attack && measured.is_silent() && strongest.is_none_or(|(most, _)| measured.triggered > most) {
                strongest = Some((measured.triggered, line.strategy.name));
            }
            lines.push(measured.json(&line));
            Ok(measured)
        };
    let attacks = |rate| strategies(rate).into_iter().filter(|(strategy, _)| wanted(strategy));
    if attacks(0.0).next().is_none() && !wanted(&HONEST) {
        return Ok(lines);
    }
    let honest = run(HONEST, false, setting)?;
    let tally = honest.report.rounding.unwrap_or_default();
    for (strategy, greatest) in attacks(tally.taken() as f64 / tally.elements.max(1) as f64) {
        run(strategy, greatest, setting)?;
    }
    // The distance between honest runs that differ only in their seeds.
    if wanted(&HONEST) {
        for seed in 1..=2 {
            run(HONEST, false, Setting { seed, ..setting })?;
        }
    }
    if let Some((most, name)) = strongest.filter(|_| !asked.json) {
        println!("{}: the strongest silent attack is \"{name}\", {:.1} %\n", setting.name, 100.0 * most);
    }
    Ok(lines)
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked = asked();
    let split = asked.data.as_deref().map_or_else(Split::generated, Split::mnist);
    let mut lines = Vec::new();
    if !asked.json {
        println!("{}; trigger to class {TARGET}\n", split.source);
        println!(
            "{:<24} {:<58} {:>7} {:>7} {:>9} {:>9} of {:>10} {:>8}  audit",
            "setting", "strategy", "trigger", "clean", "steered", "not near", "decisions", "time"
        );
    }
    for setting in [SMALL, LARGE, FINE] {
        lines.extend(search(&split, setting, &asked)?);
    }
    if asked.json {
        println!("{}", json!({ "images": split.source, "lines": lines }));
    }
    Ok(())
}

//! The errors of `tiebreak monitor screen`: honest segments that are called suspicious, and doctored ones that are not.
//!
//! `cargo bench --bench screen [-- [--task NAME] [--runs N] [--rows]]`
//!
//! Every run has twenty segments of twenty steps; a doctored run has one in which the trainer does something else than its records
//! say. `labels`: a perceptron learns random labels of random points, all of which it sees once. `text`: a small GPT on the pages of
//! this repository. Intervals are Wilson's, of 95 %. --rows prints the most suspicious segment of each run.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::data::{Dataset, batch_digest};
use tiebreak_monitor::interval::wilson;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{Folder, checkpoint, names};
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest, state_digests, state_root};
use tiebreak_train::cheat::stolen::between;
use tiebreak_train::conduct::{Conduct, Honest};
use tiebreak_train::{Beginning, Silent, TrainError, begin, train_as};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Steps of a segment, and segments of a run.
const EVERY: u32 = 20;
const SEGMENTS: u32 = 20;
/// The thresholds that are tried.
const THRESHOLDS: [f64; 2] = [6.0, 4.0];
/// Standard deviations of an interval of 95 %.
const Z: f64 = 1.96;

/// The conduct of a trainer in a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doctored {
    Nothing,
    /// This share of the steps changes nothing.
    Skipped(f64),
    /// This share of the steps trains on batches of other steps.
    Replaced(f64),
    /// Updates are a hundredth of what they should be.
    Small,
    /// The segment begins from another run's state.
    Glued,
    /// The states of three segments lie on a line.
    Interpolated,
    /// The batches after the first are trained on in the reverse order.
    Reordered,
}

const ALL: [(&str, Doctored); 9] = [
    ("honest", Doctored::Nothing),
    ("half of the steps skipped", Doctored::Skipped(0.5)),
    ("half of the batches replaced", Doctored::Replaced(0.5)),
    ("nine of ten batches replaced", Doctored::Replaced(0.9)),
    ("all steps skipped", Doctored::Skipped(1.0)),
    ("updates of a hundredth", Doctored::Small),
    ("glued to another run", Doctored::Glued),
    ("three segments interpolated", Doctored::Interpolated),
    ("batches in another order", Doctored::Reordered),
];

/// A trainer that doctors the segment `first..=last`.
struct Trainer {
    what: Doctored,
    first: u32,
    last: u32,
    /// The state that a glued segment begins with, or that interpolated ones end with.
    foreign: Vec<Vec<u8>>,
    /// The state before the interpolated segments.
    begin: Vec<Vec<u8>>,
}

impl Conduct for Trainer {
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        mut scalars: StepScalars,
        mut batch: Vec<MicroBatch>,
        dataset: &mut Dataset,
        run_step: &mut RunStep,
    ) -> std::result::Result<CommittedStep, TrainError> {
        let step = scalars.step;
        if self.what == Doctored::Nothing || !(self.first..=self.last).contains(&step) {
            return Honest.step(run, session, scalars, batch, dataset, run_step);
        }
        let promised = (scalars.learning_rate, batch_digest(run.program(), &batch));
        // The share of the steps is spread evenly.
        let is_of = |share: f64| {
            let at = f64::from(step - self.first);
            ((at + 1.0) * share).floor() > (at * share).floor()
        };
        let mut skipped = None;
        match self.what {
            Doctored::Skipped(share) if is_of(share) => skipped = Some(session.download_state()?),
            Doctored::Replaced(share) if is_of(share) => {
                batch = run.batch(dataset, 1 + (step + 199) % (EVERY * SEGMENTS))?
            }
            Doctored::Small => {
                scalars.learning_rate = (f32::from_bits(scalars.learning_rate) / 100.0).to_bits()
            }
            Doctored::Glued if step == self.first => session.load(&self.foreign)?,
            Doctored::Interpolated if step == self.first => self.begin = session.download_state()?,
            // The first batch stays the first, since its loss is looked at.
            Doctored::Reordered if step > self.first => {
                batch = run.batch(dataset, self.first + 1 + self.last - step)?;
            }
            _ => {}
        }
        let mut done = run_step(session, StepRequest::new(&run.computation, scalars, &batch))?;
        (done.record.learning_rate, done.record.batch) = promised;
        if self.what == Doctored::Interpolated {
            let share = (step - self.first + 1) as f32 / (self.last - self.first + 1) as f32;
            skipped = Some(between(&self.begin, &self.foreign, share));
        }
        if let Some(state) = skipped {
            session.load(&state)?;
            done.state = state_digests(session)?;
            done.record.state = state_root(run.program(), &done.state);
        }
        Ok(done)
    }
}

fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header.push_str(&" ".repeat((64 - (10 + header.len() + 1) % 64) % 64));
    header.push('\n');
    [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes(), bytes].concat()
}

/// Points and labels that have nothing to do with each other.
fn random_labels(folder: &Path, samples: u32, width: u32) -> Result<()> {
    let uniform = |i: u32, j: u32| philox4x32_10([1, 2], [i, j, 0, 0])[0] as f32 / u32::MAX as f32;
    let numbers = (0..samples).flat_map(|i| (0..width).map(move |j| (i, j)));
    let inputs: Vec<u8> = numbers.flat_map(|(i, j)| (3.4 * uniform(i, j) - 1.7).to_le_bytes()).collect();
    let labels: Vec<u8> = (0..samples).map(|i| (philox4x32_10([3, 4], [i, 0, 0, 0])[0] % 4) as u8).collect();
    fs::write(folder.join("inputs.npy"), npy("<f4", &format!("({samples}, {width})"), &inputs))?;
    Ok(fs::write(folder.join("labels.npy"), npy("|u1", &format!("({samples},)"), &labels))?)
}

/// The pages of this repository, in the order of their names.
fn pages(folder: &Path) -> Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(docs)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let mut text = Vec::new();
    for path in paths {
        text.extend(fs::read(path)?);
    }
    Ok(fs::write(folder.join("text"), text)?)
}

/// Writes a task's data. Returns its job without a seed.
fn write_job(folder: &Path, task: &str) -> Result<String> {
    let what = match task {
        "labels" => {
            random_labels(folder, 8000, 32)?;
            r#"
model = { kind = "mlp", inputs = 32, hidden = [64], classes = 4 }
data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "f32", validation_split = 0.2 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 16 }"#
        }
        "text" => {
            pages(folder)?;
            r#"
model = { kind = "gpt", vocabulary = 256, context = 32, layers = 2, heads = 2, width = 32 }
data = { kind = "bytes", path = "text", validation_split = 0.1 }
schedule = { peak = 3e-3 }
batch = { micro_batch = 8 }"#
        }
        other => return Err(format!("--task {other}: labels or text").into()),
    };
    let steps = EVERY * SEGMENTS;
    Ok(format!(
        r#"steps = {steps}
clip_norm = 1.0{what}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }}
commit = {{ granularity = "step", head_every = {steps} }}
checkpoint = {{ every = {EVERY} }}
"#
    ))
}

/// Trains a run with a seed.
fn trained(folder: &Path, job: &str, (name, seed): (&str, u8), trainer: &mut Trainer) -> Result<Run> {
    let (path, out, nonce) = (folder.join("job.toml"), Folder::at(&folder.join(name)), [seed; 16]);
    fs::write(&path, format!("seed = {seed}\n{job}"))?;
    let beginning =
        Beginning { job: &path, data_root: None, out, key: None, challenge: None, logged: false, nonce };
    let run = begin(&beginning)?;
    train_as(&run, &mut Cpu::new(1)?, None, trainer, &mut Silent)?;
    Ok(run)
}

/// The screening of a run.
fn screened(run: &Path, seed: u64) -> Result<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
        .args(["monitor", "screen", "--json", "--threads", "1", "--seed", &seed.to_string()])
        .args(["--share", "1"])
        .arg(run)
        .output()?;
    if output.status.code() != Some(0) {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Counts of all runs of a kind.
#[derive(Default)]
struct Counts {
    runs: u64,
    /// Runs whose doctored segment was suspicious, at each threshold.
    found: [u64; 2],
    /// Runs whose doctored segment was the most suspicious one.
    first: u64,
    /// Segments that nobody doctored.
    others: u64,
    /// Other segments that were suspicious, at each threshold.
    accused: [u64; 2],
}

fn share(found: u64, of: u64) -> String {
    if of == 0 {
        return "-".into();
    }
    let (low, high) = wilson(found, of, Z);
    format!("{found} of {of} ({:.3}; {low:.3} to {high:.3})", found as f64 / of as f64)
}

impl Counts {
    fn add(&mut self, result: &Value, trainer: &Trainer) {
        let (mut found, mut first) = ([false; 2], false);
        for (place, segment) in result["segments"].as_array().into_iter().flatten().enumerate() {
            let begin = segment["first"].as_u64().unwrap_or(0) as u32;
            let suspicion = segment["suspicion"].as_f64().unwrap_or(0.0);
            let ours = trainer.what != Doctored::Nothing && (trainer.first..=trainer.last).contains(&begin);
            first |= ours && place == 0;
            self.others += u64::from(!ours);
            for (i, threshold) in THRESHOLDS.into_iter().enumerate() {
                let suspicious = suspicion >= threshold;
                // Of three interpolated segments one is enough.
                found[i] |= suspicious && ours;
                self.accused[i] += u64::from(suspicious && !ours);
            }
        }
        self.runs += 1;
        self.found.iter_mut().zip(found).for_each(|(count, found)| *count += u64::from(found));
        self.first += u64::from(first);
    }

    /// Trains and screens one run of a kind.
    fn one(
        &mut self,
        folder: &Path,
        job: &str,
        (number, what, name): (u8, Doctored, &str),
        rows: bool,
    ) -> Result<()> {
        let (out, seed) = (folder.join("run"), number + 1);
        // A segment from the fourth to the seventeenth.
        let segment = 3 + u32::from(number) * 5 % 14;
        let segments = if what == Doctored::Interpolated { 3 } else { 1 };
        let (first, last) = (segment * EVERY + 1, (segment + segments) * EVERY);
        let mut trainer = Trainer { what, first, last, foreign: Vec::new(), begin: Vec::new() };
        let source = match what {
            Doctored::Glued => Some((number + 101, first - 1)),
            Doctored::Interpolated => Some((seed, last)),
            _ => None,
        };
        if let Some((seed, step)) = source {
            let other = folder.join("other");
            let mut honest =
                Trainer { what: Doctored::Nothing, first, last, foreign: Vec::new(), begin: Vec::new() };
            let run = trained(folder, job, ("other", seed), &mut honest)?;
            trainer.foreign = checkpoint::read(run.at(names::checkpoint(step)), &run.program().state())?;
            fs::remove_dir_all(other)?;
        }
        trained(folder, job, ("run", seed), &mut trainer)?;
        let result = screened(&out, number.into())?;
        self.add(&result, &trainer);
        if rows {
            let top = &result["segments"][0];
            let all = result["segments"].as_array().into_iter().flatten();
            let memory: Vec<f64> = all.filter_map(|one| one["memory"]["remembered"].as_f64()).collect();
            let mean = memory.iter().sum::<f64>() / memory.len() as f64;
            eprintln!("{name} {number}: steps {first} to {last}, mean memory {mean:.3}, first {top}");
        }
        fs::remove_dir_all(out)?;
        Ok(())
    }
}

fn main() -> Result<()> {
    let (mut task, mut runs, mut rows) = ("labels".to_string(), 20, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--task" => task = value()?,
            "--runs" => runs = value()?.parse()?,
            "--rows" => rows = true,
            "--bench" => {}
            other => return Err(format!("{other}: no such option").into()),
        }
    }
    let folder = tempfile::tempdir()?;
    let job = write_job(folder.path(), &task)?;
    println!("{task}, {runs} runs a row; thresholds {THRESHOLDS:?}");
    println!("{:<30} | doctored segment suspicious | most suspicious | other segments suspicious", "");
    for (name, what) in ALL {
        let mut counts = Counts::default();
        for number in 0..runs {
            counts.one(folder.path(), &job, (number, what, name), rows)?;
        }
        let doctored = what != Doctored::Nothing;
        let of = |found| if doctored { share(found, counts.runs) } else { "-".into() };
        let found = counts.found.map(of).join(", ");
        let accused = counts.accused.map(|accused| share(accused, counts.others)).join(", ");
        println!("{name:<30} | {found} | {} | {accused}", of(counts.first));
    }
    Ok(())
}

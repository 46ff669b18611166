//! The month of the monitoring demo: three operators, their chips, and the runs that they declare or hide.
//!
//! Keys, dates, random times and the beacon follow from a seed. Training is exact, so everybody who runs the demo gets the same logs
//! and the same draw.

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;

/// Milliseconds since 1970 at which the chips begin to log: 2026-06-01.
pub const START: u64 = 1_780_272_000_000;
/// Seconds since 1970 at which the inspector reads the logs, and the same date in words.
pub const END: (u64, &str) = (1_782_907_200, "2026-07-01T12:00:00Z");
/// Days of an inspection period.
pub const DAYS: f64 = 30.0;
/// Chips of each operator.
pub const CHIPS: u32 = 20;
/// Snapshots that a chip logs in a day, on average.
pub const RATE: &str = "0.1";
/// Probability with which a hidden run at the limit has to be found.
pub const CONFIDENCE: f64 = 0.99;
/// Steps, and chips, of a run at the limit that takes [`DAYS`] days.
pub const LIMIT: (u32, u32) = (60, 12);

/// A run: its folder's name and its time.
#[derive(Clone, Copy, Debug)]
pub struct Training {
    /// The name of its job, and of its folder.
    pub name: &'static str,
    /// Steps. A step takes six days of one chip's work, on whatever number of chips.
    pub steps: u32,
    /// The first and the last day.
    pub days: (f64, f64),
    /// False for a run that is hidden from the inspector.
    pub declared: bool,
    /// The run whose final state it begins from.
    pub after: Option<&'static str>,
}

/// Chips of an operator that do the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// The number of chips.
    pub chips: u32,
    /// Their trainings, one after the other; none for idle chips.
    pub trainings: Vec<Training>,
}

/// The way in which an operator breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cheat {
    /// The operator declares all it trains, and stays below the limit.
    None,
    /// The operator trains a run that nobody declares.
    Hides,
    /// The operator declares a run above the limit as two below it.
    Splits,
}

/// An operator of chips.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The name.
    pub name: &'static str,
    /// The deceit that the commands have to find.
    pub cheat: Cheat,
    /// The chips.
    pub groups: Vec<Group>,
}

impl Operator {
    /// The name in files.
    pub fn file(&self) -> String {
        self.name.to_lowercase()
    }

    /// The serial number of a chip, from 0.
    pub fn serial(&self, chip: u32) -> String {
        format!("{}-{:02}", self.name.to_uppercase(), chip + 1)
    }

    /// The runs that the operator declares.
    pub fn declared(&self) -> impl Iterator<Item = &Training> {
        self.groups.iter().flat_map(|group| &group.trainings).filter(|training| training.declared)
    }
}

/// The operators, of whom two cheat unless all are `honest`.
pub fn operators(honest: bool) -> Vec<Operator> {
    let run = |name, days, after| Training { name, steps: 40, days, declared: true, after };
    let group = |chips, trainings: &[Training]| Group { chips, trainings: trainings.to_vec() };
    let hidden =
        Training { name: "birch-hidden", steps: LIMIT.0, days: (0.0, DAYS), declared: false, after: None };
    let second = run("cedar-2", (15.0, DAYS), Some("cedar-1"));
    let cheats = usize::from(!honest);
    vec![
        Operator {
            name: "Alder",
            cheat: Cheat::None,
            groups: vec![group(12, &[run("alder", (3.0, 23.0), None)]), group(8, &[])],
        },
        Operator {
            name: "Birch",
            cheat: if honest { Cheat::None } else { Cheat::Hides },
            groups: vec![group(8, &[run("birch", (0.0, DAYS), None)]), group(LIMIT.1, &[hidden][..cheats])],
        },
        Operator {
            name: "Cedar",
            cheat: if honest { Cheat::None } else { Cheat::Splits },
            groups: vec![group(16, &[run("cedar-1", (0.0, 15.0), None), second][..=cheats]), group(4, &[])],
        },
    ]
}

/// The source of everything that is random elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

impl Seed {
    /// 32 bytes for one purpose.
    pub fn bytes(self, purpose: &str) -> [u8; 32] {
        merkle::leaf(format!("tiebreak demo --monitor --seed {}: {purpose}", self.0).as_bytes()).0
    }

    /// The key of somebody in the demo. Everybody can compute it.
    ///
    /// # Errors
    /// If the name is not one of a key.
    pub fn key(self, name: &str) -> Result<PrivateKey, Malformed> {
        PrivateKey::generate(&format!("{name}.demo"), self.bytes(&format!("key of {name}")))
    }
}

/// The job of a training: a small GPT on the demo's text.
pub fn job(training: &Training, seed: u64) -> String {
    let init = training.after.map_or(String::new(), |run| format!("\n[init]\nrun = \"runs/{run}\"\n"));
    format!(
        "# Run {} of `tiebreak demo --monitor`.
steps = {}
seed = {seed}
clip_norm = 1.0

[model]
kind = \"gpt\"
context = 32
layers = 1
heads = 2
width = 32

[data]
kind = \"bytes\"
path = \"shakespeare.txt\"

[optimizer]
kind = \"adamw\"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1

[schedule]
peak = 3e-3
warmup = 5
floor = 3e-4

[batch]
micro_batch = 4

[commit]
granularity = \"step\"
head_every = 10

[checkpoint]
every = 10
{init}",
        training.name, training.steps
    )
}

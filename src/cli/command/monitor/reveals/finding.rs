//! Things that a published file tells, and to whom.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use serde_json::{Value, json};

/// The way in which a thing is visible to whoever has a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// The thing itself is in the file.
    Clear,
    /// A digest: whoever guesses the thing can confirm the guess.
    ByGuess,
    /// A digest of what nobody guesses, or random bytes. Equal digests still show equal things.
    NotGuessable,
    /// A digest with a secret salt, or encrypted bytes.
    Hidden,
}

impl Visibility {
    /// The visibility of leaves under a commitment scheme (`commit.scheme` of the job).
    pub fn of_leaves(scheme: u32) -> Visibility {
        match scheme {
            0 => Visibility::ByGuess,
            _ => Visibility::Hidden,
        }
    }

    /// A word for people.
    fn word(self) -> &'static str {
        match self {
            Visibility::Clear => "in the clear",
            Visibility::ByGuess => "to whoever guesses it",
            Visibility::NotGuessable => "only as digests that nobody guesses",
            Visibility::Hidden => "hidden",
        }
    }
}

/// A thing that a file tells of.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reveal {
    /// Every setting of the job, with the paths of its files.
    Settings { paths: Vec<String> },
    /// The program.
    Architecture { parameters: Option<u64> },
    /// Lengths of data files.
    DataLengths { files: usize, bytes: u64 },
    /// The length of a data file that other files of the run hide.
    HiddenLength,
    /// Digests of data files.
    DataDigests { files: usize },
    /// Digests of pieces of a data file.
    DataPieces,
    /// Data files.
    Data { bytes: u64 },
    /// The name and key of the trainer.
    Trainer { name: String },
    /// The initial state's digest.
    InitialState { from: &'static str },
    /// Losses, learning rates and clip factors.
    Curve { steps: u32 },
    /// Digests of batches.
    Batches { steps: u32 },
    /// Digests of states.
    States { steps: u32 },
    /// Digests of gradients.
    Gradients,
    /// Digests of every operator's output.
    Operators { steps: usize },
    /// Roundings of values near a tie.
    Roundings { steps: usize },
    /// The number of steps that were done whenever somebody looked.
    Progress { heads: usize },
    /// Names of signers, with times where they are witnesses.
    Signers { names: Vec<String> },
    /// Weights with the optimizer's state.
    Checkpoints { states: usize, nearest: Option<u32> },
    /// Weights after the last step.
    Model,
    /// Data that the job evaluates with.
    Evaluation { bytes: u64 },
    /// Files beside the model, such as its tokenizer.
    Companions { names: Vec<String> },
    /// Times and speed of every step, with losses and norms.
    Metrics,
    /// The number of a process.
    Process,
    /// A file that is no part of a run.
    Unknown,
    /// The claim of a verdict, and the samples in it.
    Claim { claim: &'static str, data_bytes: u64 },
    /// Parts of tensors that were computed from the data.
    TensorParts,
    /// Serial numbers of chips.
    Chips { serials: Vec<String> },
    /// Times at which a chip logged, and whether it was at work.
    ChipTimes { records: usize, idle: usize },
    /// Digests of computations that a chip took part in.
    Computations { number: usize },
    /// Digests of states that a chip saw.
    Snapshots { number: usize },
    /// The result of an audit or an inspection, with its numbers.
    Result,
    /// Lengths of encrypted files together.
    SealedLength { bytes: u64 },
    /// The contents of a pack.
    Sealed { recipients: Vec<String> },
    /// The tokens of a prompt and of its answer, and the settings of the draws.
    Answer { prompt: usize, answer: usize },
    /// Digests of the inputs of predictions, and of their logits.
    PredictedSamples { samples: usize },
    /// Digests of a model.
    WhichModel,
    /// The rest of a receipt.
    SaltedReceipt,
    /// Promises of trainings, with the rounds of beacons, and what they go on from.
    Promises { number: usize },
    /// The chips of a register.
    Register { chips: usize, owners: Vec<String> },
    /// The inputs of a draw.
    Drawn { monitored: u64, exempt: u64, runs: usize },
    /// Links of records of chips' logs.
    LogLinks { records: usize },
}

impl Reveal {
    /// The sentence about data and settings; empty for things of other kinds.
    fn of_the_job(&self) -> String {
        match self {
            Reveal::Settings { paths } if paths.is_empty() => "every setting of the training".into(),
            Reveal::Settings { paths } => {
                format!("every setting of the training, and where its files were: {}", paths.join(", "))
            }
            Reveal::Architecture { parameters } => {
                let size =
                    parameters.map_or(String::new(), |parameters| format!(", {parameters} parameters"));
                format!("the model's architecture and its optimizer{size}")
            }
            Reveal::DataLengths { files, bytes } => {
                format!("the lengths of {files} data files, {bytes} bytes together")
            }
            Reveal::DataDigests { files } => {
                format!("which data were used: a digest of each of {files} files")
            }
            Reveal::HiddenLength => "the length of a data file: publish this file to nobody".into(),
            Reveal::DataPieces => "each piece of 64 KiB of the data, by its digest".into(),
            Reveal::Data { bytes } => format!("the data: {bytes} bytes"),
            Reveal::Evaluation { bytes } => format!("the data for evaluations: {bytes} bytes"),
            Reveal::Companions { names } => format!("files beside the model: {}", names.join(", ")),
            Reveal::Trainer { name } => format!("who trained: {name}"),
            Reveal::InitialState { from } => format!("the initial state, which is from {from}"),
            Reveal::Promises { number } => {
                format!(
                    "{number} promised trainings: when they were promised, and the earlier runs that they go on from"
                )
            }
            _ => String::new(),
        }
    }
}

impl Reveal {
    /// The sentence about answers, chips and draws; empty for things of other kinds.
    fn of_exchange(&self) -> String {
        match self {
            Reveal::Answer { prompt, answer } => {
                format!(
                    "the {prompt} tokens of a prompt and the {answer} of its answer, with the settings of the draws"
                )
            }
            Reveal::PredictedSamples { samples } => {
                format!("the inputs of {samples} samples, by digests of them and of their logits")
            }
            Reveal::WhichModel => "which model answered, by digests of its sizes and weights".into(),
            Reveal::SaltedReceipt => "the text or the samples, by one salted digest".into(),
            Reveal::Register { chips, owners } => format!(
                "{chips} chips with models, keys, sites and reasons of exemption, and when each came, moved or left; owners: {}",
                owners.join(", ")
            ),
            Reveal::Drawn { monitored, exempt, runs } => format!(
                "when the draw was, by which randomness, over {monitored} monitored and {exempt} exempt chips and {runs} runs"
            ),
            Reveal::Chips { serials } => format!("serial numbers of chips: {}", serials.join(", ")),
            Reveal::ChipTimes { records, idle } => {
                format!("the times of {records} records, and that the chip was idle at {idle} of them")
            }
            Reveal::Computations { number } => {
                format!("{number} trainings, by their computations' digests, to whoever has the declared run")
            }
            Reveal::Snapshots { number } => format!("{number} states that the chip saw"),
            Reveal::LogLinks { records } => format!("{records} records of chips' logs, by digests"),
            _ => String::new(),
        }
    }
}

impl Display for Reveal {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        use Reveal::*;
        match self {
            Settings { .. }
            | Architecture { .. }
            | DataLengths { .. }
            | DataDigests { .. }
            | DataPieces
            | HiddenLength => f.write_str(&self.of_the_job()),
            Data { .. }
            | Evaluation { .. }
            | Companions { .. }
            | Trainer { .. }
            | InitialState { .. }
            | Promises { .. } => f.write_str(&self.of_the_job()),
            Answer { .. }
            | PredictedSamples { .. }
            | WhichModel
            | SaltedReceipt
            | Register { .. }
            | Drawn { .. }
            | Chips { .. }
            | ChipTimes { .. }
            | Computations { .. }
            | Snapshots { .. }
            | LogLinks { .. } => f.write_str(&self.of_exchange()),
            Curve { steps } => write!(
                f,
                "loss, learning rate and clip factor of {steps} steps: how well the model fits each batch"
            ),
            Batches { steps } => write!(f, "the samples of {steps} steps, by a digest of each batch"),
            States { steps } => {
                write!(f, "the states after {steps} steps; equal ones show equal trainings")
            }
            Gradients => f.write_str("each micro-batch, by its gradients' digest, to whoever has the state"),
            Operators { steps } => write!(
                f,
                "each micro-batch of {steps} steps, by digests of what operators made of it, to whoever has the state"
            ),
            Roundings { steps } => {
                write!(f, "where computed values of {steps} steps lie near a tie, and their roundings")
            }
            Progress { heads } => write!(f, "how far the training was at {heads} heads"),
            Signers { names } => write!(f, "who signed, and when where a witness did: {}", names.join(", ")),
            Checkpoints { states, nearest } => {
                let between = nearest.map(|steps| format!(", and the sum of {steps} updates between two"));
                let between = between.unwrap_or_default();
                write!(
                    f,
                    "weights and optimizer of {states} states: all that a model tells of its data{between}"
                )
            }
            Model => f.write_str("the released weights: all that a model tells of its data"),
            Metrics => f.write_str("times, speed, losses and norms of every step; no audit needs them"),
            Process => f.write_str("the number of a process that trains"),
            Unknown => f.write_str("whatever it holds: it is no part of a run"),
            Claim { claim, data_bytes } => {
                write!(f, "a claim of the kind {claim}, its step, and {data_bytes} bytes of the data")
            }
            TensorParts => f.write_str("parts of tensors that were computed from the data"),
            Result => f.write_str("a result with its numbers, and whom it is by"),
            SealedLength { bytes } => write!(f, "the length of all files together, at most {bytes} bytes"),
            Sealed { recipients } => {
                write!(f, "all else, for {} boxes ({})", recipients.len(), recipients.join(", "))
            }
        }
    }
}

/// A file or a kind of files, and what it tells.
pub struct Told {
    /// The file's name, or the folder's with a slash.
    pub file: String,
    /// The files of this kind.
    pub files: usize,
    pub reveals: Vec<(Visibility, Reveal)>,
}

impl Told {
    /// A file that tells these things.
    pub fn new(file: impl Into<String>, reveals: Vec<(Visibility, Reveal)>) -> Told {
        Told { file: file.into(), files: 1, reveals }
    }

    /// The lines for people.
    pub fn lines(&self) -> Vec<String> {
        let count = if self.files == 1 { String::new() } else { format!(" ({} files)", self.files) };
        let line = |(visibility, reveal): &(Visibility, Reveal)| format!("  {}: {reveal}", visibility.word());
        [format!("{}{count}", self.file)].into_iter().chain(self.reveals.iter().map(line)).collect()
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let one = |(visibility, reveal): &(Visibility, Reveal)| {
            let mut value = json!(reveal);
            value["visibility"] = json!(visibility);
            value["text"] = json!(reveal.to_string());
            value
        };
        let reveals: Vec<Value> = self.reveals.iter().map(one).collect();
        json!({ "file": self.file, "files": self.files, "reveals": reveals })
    }
}

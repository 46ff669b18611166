//! Runs of trainers who cheat, histories that were rewritten and signed, and damaged files, each with the exit code of its audit.
//! The folders serve authors and packagers of other auditors. Nothing in them is random, so two programs write the same folders.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cheat::{Cheat, CheatKind};
use super::error::TrainError;
use super::{Beginning, Silent, begin, train, train_as};
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::paths::RunPaths;
use tiebreak_run::run::transcript::{self, TranscriptWriter};
use tiebreak_run::run::{Folder, RunError, names};

/// A small GPT, every operator of every step committed.
const JOB: &str = r#"steps = 8
clip_norm = 1.0
model = { kind = "gpt", vocabulary = 128, context = 12, layers = 1, heads = 2, width = 16, dropout = 0.1 }
data = { kind = "bytes", path = "text.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-2, warmup = 3, floor = 1e-3 }
batch = { micro_batch = 2, micro_batches = 3 }
commit = { granularity = "operator", head_every = 3 }
checkpoint = { every = 2 }
"#;

/// The step that cheats are planted in, from 1.
const CHEATED: u32 = 5;

/// A command on one of the runs, with its expected exit.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// The name of the run's folder.
    pub name: String,
    /// The attack, in words.
    pub about: String,
    /// The arguments of `tiebreak`; paths are relative to the folder.
    pub command: Vec<String>,
    /// The exit code.
    pub exit: u8,
}

/// The key that signs the runs. The key is no secret, so nothing that it signs accuses anybody.
fn key() -> Result<PrivateKey, RunError> {
    PrivateKey::generate("hostile.example", [5; 32]).map_err(|why| RunError::Refused(why.to_string()))
}

/// Replaces a run's history by an edited one under one new head.
///
/// # Errors
/// If a file of the run cannot be read or written.
pub fn rewrite(run: &Run, key: &PrivateKey, edit: impl FnOnce(&mut Vec<Record>)) -> Result<(), RunError> {
    let (mut history, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    edit(&mut history.records);
    run.at(names::TRANSCRIPT).remove()?;
    let heads = run.layout.heads();
    fs::remove_dir_all(&heads).map_err(RunError::io(&heads))?;
    let (mut writer, _) = TranscriptWriter::open(run.at(names::TRANSCRIPT), 0)?;
    for record in &history.records {
        writer.append(record)?;
    }
    writer.sync()?;
    sign(run, key, writer.size(), writer.root())
}

/// Publishes a head of a run.
///
/// # Errors
/// If it cannot be written.
pub fn sign(run: &Run, key: &PrivateKey, size: u64, root: Digest) -> Result<(), RunError> {
    let note = Head { run: run.id, size, root }.to_note(Some(key));
    run.at(names::head(size)).replace(note.as_bytes())
}

/// The record of a step, if it is there.
fn step_of(records: &mut [Record], step: u32) -> Option<&mut StepRecord> {
    match records.get_mut(step as usize) {
        Some(Record::Step { step, .. }) => Some(step),
        _ => None,
    }
}

/// A change to a history.
type Edit = fn(&mut Vec<Record>);

/// Histories that were changed and signed again: name, attack, exit code, change.
const HISTORIES: [(&str, &str, u8, Edit); 7] = [
    ("no-final-record", "the final record is withheld", 3, |records| {
        records.pop();
    }),
    ("only-record-0", "the head covers the initial record only", 3, |records| records.truncate(1)),
    ("learning-rate", "a learning rate is not the schedule's", 1, |records| {
        step_of(records, 4).into_iter().for_each(|step| step.learning_rate ^= 1);
    }),
    ("cursor", "a cursor is not the number of samples drawn", 1, |records| {
        step_of(records, 5).into_iter().for_each(|step| step.cursor += 1);
    }),
    ("batch", "a record commits another batch", 1, |records| {
        step_of(records, 6).into_iter().for_each(|step| step.batch = Digest([9; 32]));
    }),
    ("final-state", "the final record commits another state than the last step", 1, |records| {
        if let Some(Record::Final { roots, .. }) = records.last_mut() {
            roots.0[0] = Digest([9; 32]);
        }
    }),
    ("steps-swapped", "two records are not in their places", 4, |records| records.swap(2, 3)),
];

/// A damage to a file.
enum Damage {
    /// A bit in the middle flips.
    Flip,
    /// The second half is cut off.
    Cut,
    /// A byte is appended.
    Append,
    /// The file is gone.
    Remove,
}

impl Damage {
    fn inflict(&self, path: &Path) -> std::io::Result<()> {
        let mut bytes = fs::read(path)?;
        let middle = bytes.len() / 2;
        match self {
            Damage::Flip => bytes[middle] ^= 1,
            Damage::Cut => bytes.truncate(middle),
            Damage::Append => bytes.push(0),
            Damage::Remove => return fs::remove_file(path),
        }
        fs::write(path, bytes)
    }
}

/// Makes the folders of the cases below `folder`, which is empty, and returns each command with its expected exit code. `begun`
/// is told each name before its run is made.
///
/// # Errors
/// If a file cannot be written, or the CPU engine fails.
pub fn write(folder: &Path, begun: &mut dyn FnMut(&str)) -> Result<Vec<Case>, TrainError> {
    let text: String = (0..4000u32).map(|i| char::from(b'a' + (i * i % 23 + i % 3) as u8)).collect();
    let disk = Disk::default();
    fs::create_dir_all(folder.join("runs")).map_err(RunError::io(folder))?;
    disk.replace(&folder.join("text.txt"), text.as_bytes())?;
    disk.replace(&folder.join("exact.toml"), JOB.as_bytes())?;
    disk.replace(&folder.join("logged.toml"), format!("{JOB}rounding = {{}}\n").as_bytes())?;
    disk.replace(&folder.join("trainer.pub"), format!("{}\n", key()?.public().to_text()).as_bytes())?;
    let mut writer = Writer { folder, begun, cases: Vec::new() };
    writer.trained()?;
    writer.logged()?;
    writer.rewritten()?;
    writer.damaged()?;
    Ok(writer.cases)
}

/// The cases made so far.
struct Writer<'a> {
    folder: &'a Path,
    begun: &'a mut dyn FnMut(&str),
    cases: Vec<Case>,
}

impl Writer<'_> {
    fn run_folder(&self, name: &str) -> PathBuf {
        self.folder.join("runs").join(name)
    }

    /// Adds the case that an audit of the run ends with this code.
    fn audit(&mut self, name: &str, about: impl Into<String>, exit: u8) {
        let (run, verdict) = (format!("runs/{name}"), format!("{name}.verdict.json"));
        let command = ["audit", &run, "--trainer-key", "trainer.pub", "--verdict", &verdict];
        let command = command.map(str::to_string).to_vec();
        self.cases.push(Case { name: name.into(), about: about.into(), command, exit });
    }

    /// Trains a run of a job, as a cheat or honestly.
    fn train(&mut self, name: &str, job: &str, cheat: Option<CheatKind>) -> Result<Run, TrainError> {
        (self.begun)(name);
        let key = key()?;
        let (job, out) = (self.folder.join(job), self.run_folder(name));
        let beginning = Beginning {
            job: &job,
            data_root: None,
            out: Folder::at(&out),
            key: Some(&key),
            challenge: None,
            logged: false,
            nonce: [9; 16],
        };
        let run = begin(&beginning)?;
        let mut cpu = Cpu::new(0)?;
        match cheat {
            None => train(&run, &mut cpu, Some(&key), &mut Silent)?,
            Some(kind) => {
                let mut cheat = Cheat { kind, step: CHEATED };
                train_as(&run, &mut cpu, Some(&key), &mut cheat, &mut Silent)?
            }
        };
        Ok(run)
    }

    /// A copy of the honest run.
    fn copy(&mut self, name: &str) -> Result<Run, TrainError> {
        (self.begun)(name);
        let (from, to) = (self.run_folder("honest"), self.run_folder(name));
        copy_folder(&from, &to).map_err(RunError::io(&to))?;
        Ok(Run::open(&to)?)
    }

    /// An honest run, and a run of each cheat that any trainer can play.
    fn trained(&mut self) -> Result<(), TrainError> {
        self.train("honest", "exact.toml", None)?;
        self.audit("honest", "an honest run", 0);
        // This program has no buffers.
        for kind in CheatKind::of_any_trainer().filter(|kind| *kind != CheatKind::Buffer) {
            let name = format!("cheat-{}", kind.name());
            self.train(&name, "exact.toml", Some(kind))?;
            self.audit(&name, format!("step {CHEATED} is cheated: {}", kind.name()), 1);
        }
        Ok(())
    }

    /// The runs of the logged profile.
    fn logged(&mut self) -> Result<(), TrainError> {
        self.train("logged-honest", "logged.toml", None)?;
        self.audit("logged-honest", "an honest run of the logged profile", 0);
        for (kind, exit) in [
            (CheatKind::DecisionFar, 1),
            (CheatKind::DecisionHidden, 1),
            (CheatKind::DecisionsDropped, 3),
            (CheatKind::Operator, 1),
        ] {
            let name = format!("logged-{}", kind.name());
            self.train(&name, "logged.toml", Some(kind))?;
            self.audit(&name, format!("step {CHEATED} is cheated: {}", kind.name()), exit);
        }
        Ok(())
    }

    /// Histories that were changed and signed again.
    fn rewritten(&mut self) -> Result<(), TrainError> {
        for (name, about, exit, edit) in HISTORIES {
            let name = format!("history-{name}");
            let run = self.copy(&name)?;
            rewrite(&run, &key()?, edit)?;
            self.audit(&name, about, exit);
        }
        let run = self.copy("history-forked")?;
        let (history, _) = transcript::read(run.at(names::TRANSCRIPT))?;
        sign(&run, &key()?, 4, history.leaves[0])?;
        self.audit("history-forked", "two heads are of two histories", 1);
        Ok(())
    }

    /// Runs with a damaged file.
    fn damaged(&mut self) -> Result<(), TrainError> {
        type File = fn(&RunPaths) -> PathBuf;
        let cases: [(&str, Damage, File, u8); 12] = [
            ("run-json-cut", Damage::Cut, RunPaths::run_json, 4),
            ("job-appended", Damage::Append, RunPaths::job, 4),
            ("transcript-flipped", Damage::Flip, RunPaths::transcript, 4),
            ("transcript-cut", Damage::Cut, RunPaths::transcript, 4),
            ("head-flipped", Damage::Flip, |paths| paths.head(10), 3),
            ("head-removed", Damage::Remove, |paths| paths.head(10), 3),
            ("model-removed", Damage::Remove, RunPaths::model, 3),
            ("checkpoint-appended", Damage::Append, |paths| paths.checkpoint(4), 0),
            ("data-flipped", Damage::Flip, |paths| paths.data_file(0), 4),
            ("checkpoint-removed", Damage::Remove, |paths| paths.checkpoint(4), 0),
            ("trace-removed", Damage::Remove, |paths| paths.trace(3), 0),
            ("model-appended", Damage::Append, RunPaths::model, 3),
        ];
        for (name, damage, file, exit) in cases {
            let name = format!("damaged-{name}");
            let run = self.copy(&name)?;
            let path = file(&run.layout);
            damage.inflict(&path).map_err(RunError::io(&path))?;
            self.audit(&name, format!("a file is damaged: {}", &name["damaged-".len()..]), exit);
        }
        Ok(())
    }
}

/// Copies a folder of plain files and folders.
fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

//! Withdraws records that no head covers, with everything that belongs to them; copies stay in the run's folder.
//!
//! Copies come first, then the checkpoints go, then the records. So whatever a crash leaves, the same call ends the work, and
//! nothing is lost. Layout: `docs/RUN-FORMAT.md`.

use super::dir::Run;
use super::error::RunError;
use super::stored::Stored;
use super::{gradients, names, transcript};
use tiebreak_record::commit::record::Record;

/// The result of a withdrawal.
#[derive(Debug)]
pub struct Withdrawn {
    /// The names of the copies, relative to the run.
    pub kept: Vec<String>,
    /// The last step whose record is left.
    pub last: u32,
    /// The step of the newest checkpoint that is left, if there is one.
    pub checkpoint: Option<u32>,
}

/// Withdraws the records from `step` on. A withdrawal that a crash stopped is taken up again.
///
/// # Errors
/// If a head covers one of these records, there is no such record, or a file cannot be read or written.
pub fn withdraw(run: &Run, step: u32) -> Result<Withdrawn, RunError> {
    let _lock = run.lock()?;
    uncovered(run, step)?;
    let file = run.at(names::TRANSCRIPT);
    let (transcript, whole) = transcript::read(file.clone())?;
    let all = &transcript.records;
    if step == 0 || all.len() < step as usize {
        return Err(absent(run, step, all.len()));
    }
    let start = transcript::length(&all[..step as usize]);
    let tail = file.read_range(start..whole)?;
    let number = number(run, step, &tail)?.ok_or_else(|| absent(run, step, all.len()))?;
    if !tail.is_empty() {
        run.at(names::withdrawn(number, names::TRANSCRIPT)).replace(&tail)?;
    }
    let later = later(run, step)?;
    let roots = gradients::offset(step, run.program().micro_batches as usize);
    copy_rest(run, number, roots)?;
    for name in later.iter().map(String::as_str).chain([names::MODEL, names::METRICS]) {
        run.at(name).copy_to(&run.at(names::withdrawn(number, &name.replace('/', "-"))))?;
    }
    // A checkpoint without its record would be taken for one of the records that come next.
    let is_state = |name: &&String| name.starts_with(names::CHECKPOINTS);
    for name in later.iter().filter(is_state).map(String::as_str).chain([names::MODEL]) {
        remove(&run.at(name))?;
    }
    file.truncate(start)?;
    file.sync()?;
    let gradients = run.at(names::GRADIENTS);
    if gradients.length_or_0()? > roots {
        gradients.truncate(roots)?;
        gradients.sync()?;
    }
    later.iter().filter(|name| !is_state(name)).try_for_each(|name| remove(&run.at(name.as_str())))?;
    let checkpoint = run.checkpoint_steps()?.last().copied();
    Ok(Withdrawn { kept: copies(run, number)?, last: step - 1, checkpoint })
}

/// Refuses records that a head covers: a signed promise is not taken back.
fn uncovered(run: &Run, step: u32) -> Result<(), RunError> {
    let covered = run.head_sizes()?.last().copied().unwrap_or(0);
    if covered <= u64::from(step) {
        return Ok(());
    }
    let root = run.layout.root.display();
    Err(RunError::Refused(format!(
        "{root}: a published head covers {covered} records, that of step {step} among them, and what is published is not withdrawn"
    )))
}

fn absent(run: &Run, step: u32, records: usize) -> RunError {
    let root = run.layout.root.display();
    RunError::Refused(format!(
        "{root}: there is no record of step {step} to withdraw; the last record is number {}",
        records.saturating_sub(1)
    ))
}

/// The number of the withdrawal: that of the last one if a crash stopped it, else the next. `tail`: the records that are left
/// to withdraw. None if there is nothing to withdraw.
fn number(run: &Run, step: u32, tail: &[u8]) -> Result<Option<u32>, RunError> {
    let folder = run.layout.root.join(names::WITHDRAWN);
    let all = run.store.list(names::WITHDRAWN).map_err(RunError::io(&folder))?;
    let number = |name: &String| name.strip_suffix(names::TRANSCRIPT)?.strip_suffix('-')?.parse().ok();
    let last: u32 = all.iter().filter_map(number).max().unwrap_or(0);
    let kept = run.at(names::withdrawn(last, names::TRANSCRIPT));
    if tail.is_empty() {
        let first = if last == 0 { None } else { transcript::read(kept)?.0.records.into_iter().next() };
        return Ok(first.filter(|record| number_of(record) == step).map(|_| last));
    }
    let same = last > 0 && kept.length()? == tail.len() as u64 && kept.read(tail.len() as u64)? == tail;
    Ok(Some(if same { last } else { last + 1 }))
}

/// The number of a record in its transcript.
fn number_of(record: &Record) -> u32 {
    match record {
        Record::Initial { .. } => 0,
        Record::Step { step, .. } => step.step,
        Record::Final { steps, .. } => steps + 1,
    }
}

/// The names of checkpoints, traces and rounding logs of `step` and later steps.
fn later(run: &Run, step: u32) -> Result<Vec<String>, RunError> {
    let mut found = Vec::new();
    for folder in [names::CHECKPOINTS, names::TRACES, names::LOGS] {
        let all = run.store.list(folder).map_err(RunError::io(&run.layout.root.join(folder)))?;
        let number = |name: &String| name.strip_prefix("step-")?.get(..9)?.parse::<u32>().ok();
        let is_later = |name: &String| number(name).is_some_and(|number| number >= step);
        found.extend(all.into_iter().filter(is_later).map(|name| format!("{folder}/{name}")));
    }
    found.sort();
    Ok(found)
}

/// Copies the gradient roots from this byte on.
fn copy_rest(run: &Run, number: u32, start: u64) -> Result<(), RunError> {
    let file = run.at(names::GRADIENTS);
    let length = file.length_or_0()?;
    if length <= start {
        return Ok(());
    }
    run.at(names::withdrawn(number, names::GRADIENTS)).replace(&file.read_range(start..length)?)
}

/// Removes a file, if it is there.
fn remove(file: &Stored) -> Result<(), RunError> {
    if file.is_here() { file.remove() } else { Ok(()) }
}

/// The names of the copies of a withdrawal.
fn copies(run: &Run, number: u32) -> Result<Vec<String>, RunError> {
    let folder = run.layout.root.join(names::WITHDRAWN);
    let all = run.store.list(names::WITHDRAWN).map_err(RunError::io(&folder))?;
    let prefix = format!("{number:03}-");
    let mut kept: Vec<String> = all.into_iter().filter(|name| name.starts_with(&prefix)).collect();
    kept.sort();
    Ok(kept.into_iter().map(|name| format!("{}/{name}", names::WITHDRAWN)).collect())
}

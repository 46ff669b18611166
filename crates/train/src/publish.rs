//! The end of a recording: its data have digests now, so the run gets its identity, and records and heads name it.
//!
//! Each file is replaced whole, and `run.json` comes last. After a crash the same call ends the work, to the same bytes.

use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle::Frontier;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::data::kept_manifest;
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::states::{self, Checkpoints};
use tiebreak_run::run::transcript::{self, leaf};
use tiebreak_run::run::{RunError, checkpoint, names, traces};

use crate::begin::check_key;

/// Makes a recording with all its records a run.
///
/// # Errors
/// If the data files are not those of the records, or a file cannot be read or written.
pub(crate) fn publish(recording: &Run, key: Option<&PrivateKey>) -> Result<Run, RunError> {
    let _lock = recording.lock()?;
    check_key(recording, key)?;
    let mut data = Vec::new();
    for (number, due) in recording.file.data.iter().enumerate() {
        let file = recording.at(names::data_file(number));
        let (manifest, tree) = kept_manifest(&file)?;
        if manifest.bytes != due.bytes {
            let why = format!("it has {} bytes, and its recording {}", manifest.bytes, due.bytes);
            return Err(RunError::invalid(file.path(), why));
        }
        recording.at(names::data_tree(number)).replace(&tree.encode())?;
        data.push(manifest);
    }
    let run = recording.identified(&RunFile { data, ..recording.file.clone() })?;
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let records: Vec<Record> =
        transcript.records.into_iter().map(|record| record.of_computation(run.computation.id)).collect();
    check_batches(&run, &records)?;
    check_files(&run, &records)?;
    transcript::replace(&run.at(names::TRANSCRIPT), &records)?;
    let mut frontier = Frontier::default();
    for record in &records {
        frontier.push(leaf(record));
        let size = frontier.size();
        if run.job().has_head(size) {
            let head = Head { run: run.id, size, root: frontier.root() };
            run.at(names::head(size)).replace(head.to_note(key).as_bytes())?;
        }
    }
    run.at(names::RUN_JSON).replace(run.file.text().as_bytes())?;
    recording.at(names::RECORDING).remove()?;
    Ok(run)
}

/// Draws every batch from the data files: a run whose files changed after they were written would convict its trainer.
fn check_batches(run: &Run, records: &[Record]) -> Result<(), RunError> {
    let mut dataset = run.dataset()?;
    for record in records {
        let Record::Step { step: record, .. } = record else { continue };
        let batch = run.batch(&mut dataset, record.step)?;
        if run.computation.batch_digest(record.step, &batch) != record.batch {
            let why = format!(
                "the data files no longer hold the batch of step {}: they were changed after it was recorded",
                record.step
            );
            return Err(RunError::invalid(&run.layout.data(), why));
        }
    }
    Ok(())
}

/// Compares the files beside the data with the records: a recording may lie for days before somebody goes on, and nothing is signed
/// that `verify` then calls damaged.
fn check_files(run: &Run, records: &[Record]) -> Result<(), RunError> {
    for record in records {
        let Record::Step { step: record, .. } = record else { continue };
        run.gradient_roots(record)?;
        if record
            .log
            .is_some_and(|root| !matches!(run.rounding_log(record.step), Ok(log) if log.root() == root))
        {
            let why = format!("it is not the rounding log that the record of step {} commits", record.step);
            return Err(RunError::invalid(&run.layout.log(record.step), why));
        }
        if record.trace.is_some() {
            let file = run.at(names::trace(record.step));
            if Some(traces::read(run.program(), file.clone())?.root(run.program())) != record.trace {
                let why = format!("it is not the trace that the record of step {} commits", record.step);
                return Err(RunError::invalid(file.path(), why));
            }
        }
    }
    let steps = run.job().steps;
    let checkpoints = Checkpoints::of(run);
    states::promised(run, steps).into_iter().try_for_each(|step| checkpoints.check(records, step))?;
    let Some(Record::Final { roots, .. }) = records.last() else { return Ok(()) };
    let (file, table) = (run.at(names::MODEL), run.program().state());
    let released = &table[..run.program().released()];
    let digests = checkpoint::digests(file.clone(), released)?;
    checkpoint::is_released(file.path(), &run.computation.state_roots(steps, released, &digests), roots)
}

//! The checks that every audit makes before a replay, sampled audits included.

use super::afterwards::signed_afterwards;
use super::checked::other_root;
pub use super::checked::{Checked, Inconsistent};
use super::corrections::Corrections;
use super::final_record;
use super::ground::Ground;
use super::hidden::{self, Closed};
use super::place::misplaced;
use super::work::Work;
use tiebreak_contract::arith::float;
use tiebreak_contract::program::step::state_bytes;
use tiebreak_dispute::verdict::{Claim, DataSlices, Scalar};
use tiebreak_job::Sampling;
use tiebreak_job::identity::CONTRACT;
use tiebreak_job::initial::{Expected, InitialOrigin, seeded_digests};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle::Frontier;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::{Head, NOTE_MAX, Signed};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states::{self, Checkpoints};
use tiebreak_run::run::transcript::{self, Transcript};
use tiebreak_run::run::{RunError, Stored, initial, names};
use tiebreak_run::step::finite;

/// Checks structure, hashes and signature: the latest head, the records it covers, one run id, contiguous steps.
///
/// # Errors
/// If a file is malformed, was edited, or is badly signed.
pub fn structure(run: &Run, key: Option<&PublicKey>) -> Result<Checked, RunError> {
    // The heads are listed once, and before the transcript is read: meanwhile a trainer may publish heads over records that are
    // not read here.
    let mut sizes = run.head_sizes()?;
    // A run that names no key has no heads that a trainer signed. A run that was signed afterwards says so.
    let trainer = key.filter(|_| run.file.trainer_key.is_some());
    let mut damaged = Vec::new();
    let latest = latest_head(run, &mut sizes, &mut damaged, trainer);
    let (head, signed) = latest.map_err(|error| match error {
        // No head is signed by a key that the run does not name: the key is wrong, and the heads are not.
        RunError::Malformed { .. } => other_key(run, trainer).unwrap_or(error),
        error => error,
    })?;
    let size = head.size;
    let note = run.at(names::head(size)).read_text(NOTE_MAX as u64)?;
    let path = run.layout.transcript();
    let mut transcript = transcript::read_first(&run.at(names::TRANSCRIPT), head.size)?;
    if (transcript.records.len() as u64) < head.size {
        let why = format!("the head covers {} records, {} are there", head.size, transcript.records.len());
        return Err(RunError::invalid(&path, why));
    }
    let forks = forks(run, &sizes, &transcript, trainer)?;
    transcript.records.truncate(head.size as usize);
    transcript.leaves.truncate(head.size as usize);
    let (signed_text, signed_by_key) = match (signed, key) {
        (Signed::By, Some(key)) => (format!("signed by {}", key.identified()), true),
        (_, Some(key)) => (signed_afterwards(run, key, size, &note)?, true),
        _ => ("consistent, signer unknown".to_string(), false),
    };
    if let Some(error) = other_key(run, trainer) {
        return Err(error);
    }
    for (index, record) in transcript.records.iter().enumerate() {
        if let Some(why) = misplaced(run, index, record) {
            return Err(RunError::invalid(&path, format!("record {index}: {why}")));
        }
    }
    let passed = vec![
        format!("contract {CONTRACT}, {}", run.program_source()),
        format!("{} records of one run, contiguous, under {} heads", head.size, sizes.len()),
    ];
    let not_finite = finite::of_records(&run.shown(&transcript.records));
    let mut checked = Checked {
        head,
        note,
        transcript,
        signed: signed_text,
        signed_by_key,
        checkpoints: Vec::new(),
        passed,
        not_checked: run.unlisted()?.into_iter().collect(),
        damaged,
        incomplete: None,
        end_checked: false,
        unreached: None,
        inconsistent: None,
        corrections: Corrections::default(),
        not_finite,
    };
    for older in forks {
        // Only the trainer's signature tells a second history from a damaged file.
        let held = older
            .map(|older| run.at(names::head(older)))
            .and_then(|head| checked.other_head(run, head.path(), &head.read_text(NOTE_MAX as u64)?));
        checked.damaged.extend(held.err());
    }
    Ok(checked)
}

/// The reason why a run is not of the trainer with this key: it names another one.
fn other_key(run: &Run, key: Option<&PublicKey>) -> Option<RunError> {
    let (named, given) = (run.file.trainer_key.clone()?, key?.to_text());
    (named != given).then(|| RunError::OtherKey { path: run.layout.run_json(), named, given })
}

/// The most files with names of heads, and without one, that an audit names: a report has to stay readable.
const DAMAGED_HEADS_MAX: usize = 16;

/// The latest readable head among those of these sizes. Later ones are removed from `sizes`, and their errors go to `damaged`:
/// they hide no history that an earlier head promises.
///
/// # Errors
/// If none can be read, or the head covers no record.
fn latest_head(
    run: &Run,
    sizes: &mut Vec<u64>,
    damaged: &mut Vec<RunError>,
    key: Option<&PublicKey>,
) -> Result<(Head, Signed), RunError> {
    let mut more = 0;
    while let Some(&size) = sizes.last() {
        match run.head(size, key) {
            Ok(_) if size == 0 => {
                let why = "a head covers at least the initial state, and this one covers nothing";
                return Err(RunError::invalid(&run.layout.head(0), why));
            }
            Ok(head) => {
                let why = format!("{more} more files have names of later heads and are none");
                damaged.extend((more > 0).then(|| RunError::invalid(&run.layout.root.join("heads"), why)));
                return Ok(head);
            }
            Err(error) if damaged.len() < DAMAGED_HEADS_MAX => damaged.push(error),
            Err(_) => more += 1,
        }
        sizes.pop();
    }
    match damaged.is_empty() {
        true => {
            let root = run.layout.root.display();
            Err(RunError::Refused(format!(
                "{root}: the run has published no head yet, and an audit is of what a head covers"
            )))
        }
        false => Err(damaged.swap_remove(0)),
    }
}

/// Among the published heads of these sizes, ascending: those that are over another history than the latest one, and the errors
/// of those that cannot be read.
///
/// # Errors
/// If the latest head is malformed or badly signed, or not over these records.
fn forks(
    run: &Run,
    sizes: &[u64],
    transcript: &Transcript,
    key: Option<&PublicKey>,
) -> Result<Vec<Result<u64, RunError>>, RunError> {
    let mut history = Frontier::default();
    let mut leaves = transcript.leaves.iter();
    let mut forks = Vec::new();
    for &older in sizes {
        let head = match run.head(older, key) {
            Ok((head, _)) => head,
            Err(error) if Some(&older) == sizes.last() => return Err(error),
            Err(error) => {
                forks.push(Err(error));
                continue;
            }
        };
        leaves.by_ref().take((older - history.size()) as usize).for_each(|leaf| history.push(*leaf));
        if history.root() != head.root {
            if Some(&older) == sizes.last() {
                return Err(other_root(&run.layout.head(older), &head, &history.root()));
            }
            forks.push(Ok(older));
        }
    }
    Ok(forks)
}

/// A check of what needs no replay.
type Check = fn(&Run, &mut Checked, &mut Work) -> Result<(), RunError>;

/// Makes all checks that need no replay.
///
/// # Errors
/// If a file cannot be read, is malformed, or is not signed by `key`; also if a store neither gave a file nor called it absent. A
/// contradiction to the run's own promises is in the result instead.
pub fn always(run: &Run, key: Option<&PublicKey>) -> Result<Checked, RunError> {
    always_watched(run, key, &Corrections::default(), &mut Work::of_records(&mut |_, _| {}))
}

pub(crate) fn always_watched(
    run: &Run,
    key: Option<&PublicKey>,
    corrections: &Corrections,
    work: &mut Work,
) -> Result<Checked, RunError> {
    let state = state_bytes(&run.program().state());
    let needed = state.saturating_add(run.batch_memory().saturating_mul(2));
    run.within_memory("the checks of states and batches", needed)?;
    let mut checked = structure(run, key)?;
    corrections.take_back(run, &mut checked.transcript)?;
    checked.corrections = corrections.clone();
    work.begin(run, (checked.transcript.records.len() as u32 - 1).min(run.job().steps));
    let closed = run.computation.is_closed();
    if closed {
        let Closed { passed, not_checked, incomplete } = hidden::closed(run, &checked.transcript.records)?;
        checked.passed.extend(passed);
        checked.not_checked.extend(not_checked);
        checked.incomplete = incomplete;
    }
    let all: [Check; 5] = match work.is_part() {
        false => [initial_state, scalars, batches, checkpoints, final_record::with_model],
        true => [initial_state, scalars, listed_checkpoints, final_record::alone, rest_of_part],
    };
    for check in all.iter().filter(|_| !closed) {
        if checked.inconsistent.is_some() {
            // An error about a later file must not hide a contradiction that convicts.
            checked.not_checked.push("what comes after the first contradiction".into());
            break;
        }
        check(run, &mut checked, work)?;
    }
    if checked.inconsistent.is_none() {
        run.answered()?;
    }
    corrections.settle(&mut checked.incomplete, &mut checked.not_checked);
    checked.not_checked.extend(checked.damaged.iter().map(damaged_text));
    if run.job().data.sampling == Sampling::InOrder {
        checked.not_checked.push(ORDER_NOT_CHECKED.into());
    }
    checked.not_checked.push(match &run.file.challenge {
        None => "where the seed comes from: it was chosen by the trainer".to_string(),
        Some(challenge) => format!("where the challenge comes from: compare {challenge} with the one given"),
    });
    Ok(checked)
}

pub(super) fn damaged_text(error: &RunError) -> String {
    format!("a damaged file: {error}")
}

/// The freedom of a trainer whose job draws in order.
const ORDER_NOT_CHECKED: &str =
    "how the batches were chosen: the trainer chose them and their order (data.sampling is in_order)";

/// The check that is left out for a run that begins from weights, unless its auditor has the files.
const WEIGHTS_NOT_CHECKED: &str =
    "whether the initial state is that of the weights' files: give them to `tiebreak audit --weights`";

fn initial_state(run: &Run, checked: &mut Checked, work: &mut Work) -> Result<(), RunError> {
    let (state, origin) = (checked.transcript.records[0].state(), &run.file.origin);
    let expected = origin.expected_watched(run.program(), run.key(), &mut |bytes| work.done(bytes));
    let mut expected = expected.map_err(|why| RunError::malformed(&run.layout.run_json(), why))?;
    if let (true, Expected::State(plain)) = (run.job().hides(), &mut expected) {
        let digests = seeded_digests(run.program(), run.key(), &mut |_| {});
        *plain = run.computation.state_digest(0, &run.program().state(), &digests);
    }
    let same = expected == Expected::InFiles || expected == Expected::State(state);
    if state != run.file.initial || !same {
        let what = Ground::InitialState { origin: origin.source() };
        return checked.fail(run, 0, what, |_| Ok((Some(0), Claim::Initial)));
    }
    if let Some(claim) = super::weights::drawn_claim(run) {
        return checked.fail(run, 0, Ground::Drawn, |_| Ok((Some(0), claim)));
    }
    match origin {
        InitialOrigin::Seed => checked.checkpoints.push(0), // it needs no file
        InitialOrigin::Run(earlier) => {
            let (id, _, _) =
                earlier.finish().map_err(|why| RunError::malformed(&run.layout.run_json(), why))?;
            checked.not_checked.push(format!("the run that this one goes on from: audit run {id}"));
        }
        InitialOrigin::Weights { .. } => checked.not_checked.push(WEIGHTS_NOT_CHECKED.into()),
    }
    if expected != Expected::InFiles {
        checked.passed.push(format!("record 0 is the initial state that {} gives", origin.source()));
    }
    Ok(())
}

/// Checks that a run begins from the weights that it names, for an auditor who has them, in the job's order.
///
/// # Errors
/// If the run does not begin from weights, or the files are others than those it names. A different initial state is noted in
/// `checked`.
pub fn weights<'a, F>(run: &Run, checked: &mut Checked, files: &'a [F]) -> Result<(), RunError>
where
    Stored: From<&'a F>,
{
    let files = initial::named_weights(run, files, &mut |_, _| {})?;
    let expected = initial::of_named(run, &files)?;
    if checked.inconsistent.is_some() {
        return Ok(());
    }
    checked.not_checked.retain(|note| note != WEIGHTS_NOT_CHECKED);
    if checked.transcript.records[0].state() != expected {
        let claim = super::weights::claim(run, &files)?.unwrap_or(Claim::Initial);
        return checked.fail(run, 0, Ground::Weights, |_| Ok((Some(0), claim)));
    }
    checked.passed.push("record 0 is the initial state that the weights' files give".into());
    Ok(())
}

fn scalars(run: &Run, checked: &mut Checked, _: &mut Work) -> Result<(), RunError> {
    let last = checked.transcript.records.len() as u32;
    for step in 1..last.min(run.job().steps + 1) {
        let record = run.computation.masked(checked.step(step)?.clone());
        let mut fail =
            |what: Ground, claim: Claim| checked.fail(run, step, what, |_| Ok((Some(step), claim)));
        if record.learning_rate != run.job().schedule.learning_rate(step, run.job().steps) {
            fail(Ground::LearningRate, Claim::LearningRate)?;
        }
        if run.job().never_clips() && record.clip != float::ONE {
            let claim = Claim::Scalar { scalar: Scalar::Clip, output: None };
            fail(Ground::NoClip, claim)?;
        }
        if record.cursor != u64::from(step) * u64::from(run.program().samples()) {
            fail(Ground::Cursor, Claim::Cursor)?;
        }
        if checked.inconsistent.is_some() {
            return Ok(());
        }
    }
    checked.passed.push("learning rates and cursors of all steps follow from the job".into());
    Ok(())
}

/// Draws every batch again. A batch is not checked if its bytes are damaged, or missing because the run holds no copy of its
/// data.
fn batches(run: &Run, checked: &mut Checked, work: &mut Work) -> Result<(), RunError> {
    let held = run.holds_data();
    let mut dataset = match run.dataset() {
        Ok(dataset) => dataset,
        Err(error) => {
            checked.not_checked.push(format!("batches: {error}"));
            checked.damaged.extend(Some(error).filter(|_| held));
            return Ok(());
        }
    };
    let last = (checked.transcript.records.len() as u32).min(run.job().steps + 1);
    let mut missing: Option<(u32, String)> = None;
    for step in 1..last {
        let batch = run.batch(&mut dataset, step);
        work.done(run.batch_memory());
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                let (count, _) = missing.get_or_insert((0, format!("step {step}: {error}")));
                *count += 1;
                checked.damaged.extend(Some(error).filter(|_| held && *count == 1));
                continue;
            }
        };
        if checked.step(step)?.batch != run.computation.batch_digest(step, &batch) {
            return checked.fail(run, step, Ground::Batch, |_| Ok((Some(step), batch_claim(run, step)?)));
        }
    }
    match missing {
        None if run.job().data.sampling == Sampling::InOrder => {
            checked.passed.push("batches of all steps are the samples in the order of the data files".into());
        }
        None => checked.passed.push("batches of all steps follow from seed and data".into()),
        Some((count, first)) => checked.not_checked.push(format!("batches of {count} steps; {first}")),
    }
    Ok(())
}

/// The claim about a step's batch, with the data from which anybody draws the batch again.
fn batch_claim(run: &Run, step: u32) -> Result<Claim, RunError> {
    let mut dataset = run.dataset()?; // the new data set has read only this batch
    run.batch(&mut dataset, step)?;
    let slices = dataset.slices_read()?.into_iter().map(DataSlices::from).collect();
    Ok(Claim::Batch { files: run.file.data.clone(), slices })
}

fn checkpoints(run: &Run, checked: &mut Checked, work: &mut Work) -> Result<(), RunError> {
    let (all, mut same) = (Checkpoints::of(run), 0);
    for step in run.checkpoint_steps()? {
        if step as usize >= checked.transcript.records.len() {
            continue; // newer than the head
        }
        // The states between follow from the steps, so a damaged checkpoint hides nothing.
        let held = all.check(&checked.transcript.records, step);
        work.file(run, &names::checkpoint(step));
        if let Err(error) = held {
            // Checkpoints that lean on checkpoint 0 have its error.
            if !checked.damaged.iter().any(|known| known.to_string() == error.to_string()) {
                checked.damaged.push(error);
            }
            continue;
        }
        same += 1;
        if step != 0 || run.file.origin != InitialOrigin::Seed {
            checked.checkpoints.push(step);
        }
    }
    checked.passed.push(format!("{same} checkpoints are the states of their records"));
    let last = checked.transcript.records.len() as u32 - 1;
    let missing = states::promised(run, last.min(run.job().steps))
        .into_iter()
        .filter(|step| checked.checkpoints.binary_search(step).is_err());
    let missing: Vec<u32> = missing.collect();
    if let [first, ..] = missing[..] {
        let count = missing.len();
        checked
            .not_checked
            .push(format!("{count} checkpoints that the job promises, the first of step {first}"));
    }
    Ok(())
}

/// For a part of the run: takes the checkpoints that are there as steps from which a replay can begin. The replay itself compares the one that it takes
/// with its record.
fn listed_checkpoints(run: &Run, checked: &mut Checked, _: &mut Work) -> Result<(), RunError> {
    for step in run.checkpoint_steps()? {
        let seeded = step == 0 && run.file.origin == InitialOrigin::Seed;
        if (step as usize) < checked.transcript.records.len() && !seeded {
            checked.checkpoints.push(step);
        }
    }
    Ok(())
}

/// For a part of the run: says what is left out.
fn rest_of_part(_: &Run, checked: &mut Checked, _: &mut Work) -> Result<(), RunError> {
    let mut rest = "batches, checkpoints, traces and logs of the steps that are not replayed, and data that no replayed step draws".to_string();
    if matches!(checked.transcript.records.last(), Some(Record::Final { .. })) {
        rest += ", and the released model";
    }
    checked.not_checked.push(format!("{rest}: only the files of the part were read"));
    Ok(())
}

/// The state after a step whose checkpoint was checked, read and checked again: nobody may be accused because a file changed
/// meanwhile. An initial state from the seed needs no file.
///
/// # Errors
/// If the checkpoint cannot be read, is malformed, or does not hold the state that its record commits.
pub fn state_after(run: &Run, checked: &Checked, step: u32) -> Result<Vec<Vec<u8>>, RunError> {
    states::after(run, &checked.transcript.records, step)
}

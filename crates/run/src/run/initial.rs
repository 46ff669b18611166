//! The initial state of a run that does not begin from its seed: read from files of weights, or from another run.

use std::path::Path;

use super::dir::Run;
use super::error::{OfContents, RunError};
use super::job_files::JobFiles;
use super::store::Promise;
use super::stored::Stored;
use super::weights::WeightFiles;
use super::{checkpoint, data, frozen, names, transcript};
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::init;
use tiebreak_contract::program::step::{Program, StateTensor};
use tiebreak_job::Job;
use tiebreak_job::initial::{Drawn, EarlierRun, InitialOrigin, weights_layout};
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::proven::{Base64, ProvenRecord};
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::{state_digest, tensor_digests};
use tiebreak_record::commit::tree_head::NOTE_MAX;

/// An initial state, canonical bytes in the table's order, and its origin.
pub(crate) type Sourced = (Vec<Vec<u8>>, InitialOrigin);

/// The initial state of a job that names weights or a run; `None` if it follows from the seed. `files` decides which paths the
/// job may reach. `key` is the seed's Philox key, which draws the tensors that the job takes from no file.
///
/// # Errors
/// If a file lies where the job may not reach, cannot be read, changes meanwhile, or does not hold the program's parameters.
pub fn of_job(
    job: &Job,
    program: &Program,
    files: &JobFiles,
    key: [u32; 2],
) -> Result<Option<Sourced>, RunError> {
    if let Some(run) = &job.init.run {
        let (state, earlier) = from_run(&earlier(files, run)?, program, job.init.optimizer_state)?;
        return Ok(Some((state, InitialOrigin::Run(Box::new(earlier)))));
    }
    if job.init.weights.is_empty() {
        return Ok(None);
    }
    let named: Vec<Stored> =
        job.init.files().map(|path| files.stored("init.weights", path)).collect::<Result<_, _>>()?;
    let drawn = Drawn::of(job, key);
    // Files of other tensors are found by their headers, before a server sends one as a whole.
    WeightFiles::open(&named)?.check_state(program, &weights_layout(job, program), &drawn)?;
    let (named, known): (Vec<Stored>, Vec<Option<FileManifest>>) =
        named.into_iter().map(|file| settled(file, job)).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let state = from_weights(&named, job, program, &drawn)?;
    let manifest = |(file, known): (&Stored, Option<FileManifest>)| match known {
        Some(known) => Ok(known),
        None => manifest_of(file),
    };
    let files = named.iter().zip(known).map(manifest).collect::<Result<_, RunError>>()?;
    Ok(Some((state, InitialOrigin::Weights { files })))
}

/// The run that a job names to begin from, in a folder or at an address.
///
/// # Errors
/// If the job may not reach it, or as [`Run::open`].
#[doc(hidden)] // for the layers above
pub fn earlier(files: &JobFiles, run: &str) -> Result<Run, RunError> {
    match files.run_store("init.run", run)? {
        Some(store) => Run::of(store),
        None => Run::open(&files.path("init.run", run)?),
    }
}

/// The manifest of a file of weights.
///
/// # Errors
/// If it cannot be read.
#[doc(hidden)] // for the layers above
pub fn manifest_of(file: &Stored) -> Result<FileManifest, RunError> {
    Ok(match file.on_disk() {
        Some(path) => data::manifest(path)?.0,
        None => data::kept_manifest(file)?.0,
    })
}

/// A file of weights at an address is read as a whole for its manifest, and each later read is held to that one. A file here is believed
/// to stay as it is.
fn settled(file: Stored, job: &Job) -> Result<(Stored, Option<FileManifest>), RunError> {
    if file.on_disk().is_some() {
        return Ok((file, None));
    }
    let (manifest, tree) = data::kept_manifest(&file)?;
    let promise = Promise { kind: "weights", digest: manifest.root };
    // A run that hides leaves nothing in a cache.
    let file = if job.hides() { file } else { file.promised(promise) };
    Ok((file.held_to(tree), Some(manifest)))
}

/// The state that files of weights give: parameters that are not drawn and buffers come from the files. Buffers that the files
/// lack have their initial constants, and optimizer slots are zeros. The job says under which names and in which layouts the
/// files hold the tensors.
///
/// # Errors
/// If a file cannot be read, a tensor is there twice, has another shape, is missing, or is none of the program's. A buffer whose
/// initial values are random must be there, as a parameter must.
pub fn from_weights<'a, F>(
    files: &'a [F],
    job: &Job,
    program: &Program,
    drawn: &Drawn,
) -> Result<Vec<Vec<u8>>, RunError>
where
    Stored: From<&'a F>,
{
    WeightFiles::open(files)?.state(program, &weights_layout(job, program), drawn)
}

/// The final state of a finished run, and the proof that it is the final state.
fn from_run(
    run: &Run,
    program: &Program,
    optimizer_state: bool,
) -> Result<(Vec<Vec<u8>>, EarlierRun), RunError> {
    let root: &Path = &run.layout.root;
    check_kept(run, program, optimizer_state)?;
    run.within_memory("the state of the earlier run", run.state_memory())?;
    let key: Option<PublicKey> =
        run.file.summary().named_key().map_err(|why| RunError::malformed(&run.layout.run_json(), why))?;
    let size = u64::from(run.job().steps) + 2;
    if run.head_sizes()?.last() != Some(&size) {
        run.answered()?;
        let why = format!("{}: the run is not finished: train it to its end first", root.display());
        return Err(RunError::Refused(why));
    }
    let (head, _) = run.head(size, key.as_ref())?;
    let path = run.layout.transcript();
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let count = transcript.leaves.len() as u64;
    if count != size {
        return Err(RunError::invalid(
            &path,
            format!("it has {count} records; the head of the run's end covers {size}"),
        ));
    }
    let root = transcript.root(size as usize);
    if root != head.root {
        let why = format!(
            "the head of the run's end is not over these records, whose root is {}",
            root.not(&head.root)
        );
        return Err(RunError::invalid(&path, why));
    }
    let last = &transcript.records[size as usize - 1];
    let Record::Final { roots, .. } = last else {
        let why = format!("record {} is {}; the final record is due there", size - 1, last.name());
        return Err(RunError::invalid(&path, why));
    };
    let record = ProvenRecord {
        index: size - 1,
        record: Base64(last.encode()),
        proof: merkle::prove(&transcript.leaves, size as usize - 1),
    };
    let state = kept_state(last_state(run, &transcript.records, &roots.digest())?, program, optimizer_state);
    let note = run.at(names::head(size)).read_text(NOTE_MAX as u64)?;
    Ok((state, EarlierRun { head: note, record, optimizer_state }))
}

/// The state after the run's last step, if it is the one of this digest.
fn last_state(run: &Run, records: &[Record], due: &Digest) -> Result<Vec<Vec<u8>>, RunError> {
    let (steps, table) = (run.job().steps, run.program().state());
    let read = || {
        let state = frozen::read_of(run, records, steps)?;
        let found = state_digest(&table, &tensor_digests(&table, &state));
        if found != *due {
            let why = format!("it is not the state that the final record commits: it is {}", found.not(due));
            return Err(RunError::invalid(&run.layout.checkpoint(steps), why));
        }
        Ok(state)
    };
    match read() {
        // Once more, if the wrong bytes were a cache's.
        Err(error) if error.is_of_contents() && frozen::doubt(run, records, steps) => read(),
        found => found,
    }
}

/// The initial state of a run that continues this one, which somebody replayed. The caller checks the state's digest, since
/// nothing here shows whose state it is.
///
/// # Errors
/// If the run has other parameters than the program, or no state after its last step.
pub fn after(run: &Run, program: &Program, optimizer_state: bool) -> Result<Vec<Vec<u8>>, RunError> {
    check_kept(run, program, optimizer_state)?;
    let state = frozen::read(run, run.job().steps)?;
    Ok(kept_state(state, program, optimizer_state))
}

/// Checks that a run has the parameters of a program that continues it, and the optimizer's slots if the program keeps them.
fn check_kept(run: &Run, program: &Program, optimizer_state: bool) -> Result<(), RunError> {
    let kept = |table: Vec<StateTensor>| -> Vec<StateTensor> {
        table.into_iter().filter(|t| optimizer_state || !is_slot(&t.name)).collect()
    };
    let (due, found) = (kept(program.state()), kept(run.program().state()));
    if due != found {
        let what = if optimizer_state { "parameters and optimizer slots" } else { "parameters" };
        let first = (0..).find(|&number| due.get(number) != found.get(number)).unwrap_or(0);
        let said = |table: &[StateTensor]| match table.get(first) {
            Some(StateTensor { name, shape }) => format!("{name} {shape:?}"),
            None => "no more".to_string(),
        };
        let (place, found, due) = (run.layout.root.display(), said(&found), said(&due));
        let why = format!("{place}: the run has other {what} than this job's program: {found}, not {due}");
        return Err(RunError::Refused(why));
    }
    Ok(())
}

/// The tensors of a run's last state that a continuing program keeps; the slots are zeros if the program does not keep them.
fn kept_state(mut state: Vec<Vec<u8>>, program: &Program, optimizer_state: bool) -> Vec<Vec<u8>> {
    let ours = program.state();
    let parts = if optimizer_state { ours.len() } else { ours.iter().filter(|t| !is_slot(&t.name)).count() };
    state.truncate(parts);
    state.extend(ours[parts..].iter().map(|tensor| vec![0; tensor.ty().bytes()]));
    state
}

/// True if a state tensor belongs to the optimizer.
fn is_slot(name: &str) -> bool {
    !name.starts_with("param/") && !name.starts_with("buffer/")
}

/// The digest of the initial state that the weights of a run give, after checking that these are the files that the run names, in
/// order.
///
/// # Errors
/// If the run does not begin from weights, or the files are others.
pub fn of_weights<'a, F>(run: &Run, files: &'a [F]) -> Result<Digest, RunError>
where
    Stored: From<&'a F>,
{
    of_weights_watched(run, files, &mut |_, _| {})
}

/// The digest of the initial state that the weights of a run give, after checking that these are the files that the run names, in
/// order. `watch`: bytes of the files that were read, and their total; the files are read twice.
///
/// # Errors
/// As [`of_weights`].
pub fn of_weights_watched<'a, F>(
    run: &Run,
    files: &'a [F],
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Digest, RunError>
where
    Stored: From<&'a F>,
{
    of_named(run, &named_weights(run, files, watch)?)
}

/// The files of weights that a run names, in order, held to what the run says of them. A server that gives other bytes later is found.
///
/// # Errors
/// As [`of_weights`].
#[doc(hidden)] // for audits alone
pub fn named_weights<'a, F>(
    run: &Run,
    files: &'a [F],
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Stored>, RunError>
where
    Stored: From<&'a F>,
{
    run.opened()?;
    let InitialOrigin::Weights { files: named } = &run.file.origin else {
        let (place, source) = (run.layout.root.display(), run.file.origin.source());
        let why = format!("{place} does not begin from weights, but from {source}");
        return Err(RunError::Refused(why));
    };
    if named.len() != files.len() {
        let why = format!("the run begins from {} files of weights, {} are given", named.len(), files.len());
        return Err(RunError::Refused(why));
    }
    let length = named.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
    let (mut done, all) = (0u64, length.saturating_mul(2));
    let mut held = Vec::new();
    for (manifest, file) in named.iter().zip(files.iter().map(Stored::from)) {
        held.push(held_to(file, manifest)?);
        done = done.saturating_add(manifest.bytes);
        watch(done, all);
    }
    Ok(held)
}

/// The file, if it is the one of this manifest. Each later read of it is held to the bytes of the first one.
fn held_to(file: Stored, manifest: &FileManifest) -> Result<Stored, RunError> {
    // No more is read of a file with another length.
    let length = file.length()?;
    let read = (length == manifest.bytes).then(|| data::kept_manifest(&file)).transpose()?;
    let roots = match read {
        // Files here are believed to stay as they are.
        Some((found, _)) if found == *manifest && file.on_disk().is_some() => return Ok(file),
        Some((found, tree)) if found == *manifest => return Ok(file.held_to(tree)),
        Some((found, _)) => found.root.not(&manifest.root),
        None => "of another length".to_string(),
    };
    let due = manifest.bytes;
    let why = format!(
        "it is not the file of weights that the run names: {length} bytes, not {due}, with BLAKE3 {roots}"
    );
    Err(RunError::invalid(file.path(), why))
}

/// The digest of the initial state that a run's files of weights give.
///
/// # Errors
/// If a file cannot be read, or does not hold the program's parameters.
#[doc(hidden)] // for audits alone
pub fn of_named(run: &Run, files: &[Stored]) -> Result<Digest, RunError> {
    let (table, drawn) = (run.program().state(), Drawn::of(run.job(), run.key()));
    let state = from_weights(files, run.job(), run.program(), &drawn)?;
    Ok(run.computation.state_digest(0, &table, &tensor_digests(&table, &state)))
}

/// The initial state of a run, from the seed or from its first checkpoint, after checking that it is the state that the run
/// names.
///
/// # Errors
/// If the checkpoint is needed and cannot be read, or holds another state.
pub fn state(run: &Run) -> Result<Vec<Vec<u8>>, RunError> {
    run.opened()?;
    run.within_memory("the initial state", run.state_memory())?;
    if run.file.origin == InitialOrigin::Seed {
        let tensor = |index| bytes_of(&init::state_tensor(run.program(), run.key(), index));
        return Ok((0..run.program().state().len()).map(tensor).collect());
    }
    let (path, table) = (run.layout.checkpoint(0), run.program().state());
    let state = checkpoint::read(run.at(names::checkpoint(0)), &table)?;
    let digests = tensor_digests(&table, &state);
    let (found, due) = (run.computation.state_digest(0, &table, &digests), run.file.initial);
    if found != due {
        let why = format!("it is not the initial state that run.json names: it is {}", found.not(&due));
        return Err(RunError::invalid(&path, why));
    }
    Ok(state)
}

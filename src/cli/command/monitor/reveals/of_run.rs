//! Things that the files of a run tell, by looking at those that are there.

use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, names, transcript};

use super::finding::Visibility::{ByGuess, Clear, Hidden, NotGuessable};
use super::finding::{Reveal, Told, Visibility};

/// The most names of signers that are collected.
const SIGNERS_MAX: usize = 100;

/// Everything that a run's folder tells.
///
/// # Errors
/// If a file cannot be read, or is malformed.
pub fn told(run: &Run) -> Result<Vec<Told>, RunError> {
    let leaves = Visibility::of_leaves(run.job().commit.scheme);
    let mut all = vec![identity(run, leaves)];
    all.push(Told::new(names::JOB, vec![(Clear, settings(run))]));
    let parameters = Some(run.program().parameter_count());
    all.push(Told::new(names::PROGRAM, vec![(Clear, Reveal::Architecture { parameters })]));
    if run.at(names::NETWORK).is_here() {
        all.push(Told::new(names::NETWORK, vec![(Clear, Reveal::Architecture { parameters })]));
    }
    all.extend(records(run, leaves)?);
    all.extend(heads(run)?);
    if run.at(names::GRADIENTS).is_here() {
        all.push(Told::new(names::GRADIENTS, vec![(leaves, Reveal::Gradients)]));
    }
    let traces = listed(run, names::TRACES)?.len();
    all.extend(folder(names::TRACES, traces, vec![(leaves, Reveal::Operators { steps: traces })]));
    let logs = listed(run, names::LOGS)?.len();
    all.extend(folder(names::LOGS, logs, vec![(Clear, Reveal::Roundings { steps: logs })]));
    let steps = run.checkpoint_steps()?;
    let nearest = steps.windows(2).map(|pair| pair[1] - pair[0]).min();
    let states = steps.len();
    all.extend(folder(names::CHECKPOINTS, states, vec![(Clear, Reveal::Checkpoints { states, nearest })]));
    if run.at(names::MODEL).is_here() {
        all.push(Told::new(names::MODEL, vec![(Clear, Reveal::Model)]));
    }
    all.extend(data(run, leaves));
    all.extend(beside(run)?);
    Ok(all)
}

/// The names in a folder, sorted.
fn listed(run: &Run, folder: &str) -> Result<Vec<String>, RunError> {
    let mut names = run.store.list(folder).map_err(RunError::io(&run.layout.root.join(folder)))?;
    names.sort();
    Ok(names)
}

/// A folder with files of one kind, if it has any.
fn folder(name: &str, files: usize, reveals: Vec<(Visibility, Reveal)>) -> Option<Told> {
    (files > 0).then(|| Told { file: format!("{name}/"), files, reveals })
}

/// The settings of a run's job, with the paths of its files.
pub fn settings(run: &Run) -> Reveal {
    let job = run.job();
    let mut paths: Vec<String> = job.data.files.paths().iter().map(|path| path.to_string()).collect();
    paths.extend(job.program_file().map(str::to_string));
    paths.extend(job.network.clone());
    paths.extend(job.init.files().cloned());
    paths.extend(job.init.run.iter().cloned());
    Reveal::Settings { paths }
}

fn identity(run: &Run, leaves: Visibility) -> Told {
    let (files, bytes) = (run.file.data.len(), run.file.data.iter().map(|file| file.bytes).sum());
    let from = match run.file.origin {
        InitialOrigin::Seed if run.job().hides() => "a secret seed",
        InitialOrigin::Seed => "a seed that job.toml gives",
        InitialOrigin::Weights { .. } => "released weights",
        InitialOrigin::Run(_) => "an earlier run, which is named",
    };
    // A run that hides has no length in run.json. Its seed is secret; released weights and an earlier run are named as ever.
    let initial = match run.file.origin {
        InitialOrigin::Seed => leaves,
        InitialOrigin::Weights { .. } | InitialOrigin::Run(_) => ByGuess,
    };
    let mut reveals = vec![(leaves, Reveal::DataDigests { files }), (initial, Reveal::InitialState { from })];
    if !run.job().hides() {
        reveals.insert(0, (Clear, Reveal::DataLengths { files, bytes }));
    }
    let name = run.file.trainer_key.as_deref().map(|key| key.split('+').next().unwrap_or_default());
    reveals.extend(name.map(|name| (Clear, Reveal::Trainer { name: name.to_string() })));
    Told::new(names::RUN_JSON, reveals)
}

fn records(run: &Run, leaves: Visibility) -> Result<Option<Told>, RunError> {
    if !run.at(names::TRANSCRIPT).is_here() {
        return Ok(None);
    }
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let steps =
        transcript.records.iter().filter(|record| matches!(record, Record::Step { .. })).count() as u32;
    // A run that hides masks losses, and salts states.
    let (curve, states) = if run.job().hides() { (Hidden, Hidden) } else { (Clear, NotGuessable) };
    let mut reveals = vec![
        (curve, Reveal::Curve { steps }),
        (leaves, Reveal::Batches { steps }),
        (states, Reveal::States { steps }),
    ];
    let committed = |has: fn(&Record) -> bool| transcript.records.iter().filter(|record| has(record)).count();
    if committed(|record| matches!(record, Record::Step { step, .. } if step.gradients.is_some())) > 0 {
        reveals.push((leaves, Reveal::Gradients));
    }
    let traced = committed(|record| matches!(record, Record::Step { step, .. } if step.trace.is_some()));
    if traced > 0 {
        reveals.push((leaves, Reveal::Operators { steps: traced }));
    }
    Ok(Some(Told::new(names::TRANSCRIPT, reveals)))
}

/// The heads, with those who signed them.
fn heads(run: &Run) -> Result<Option<Told>, RunError> {
    let sizes = run.head_sizes()?;
    let mut signers: Vec<String> = Vec::new();
    for &size in &sizes {
        let note = run.at(names::head(size)).read_text(NOTE_MAX as u64)?;
        for name in note.lines().filter_map(|line| line.strip_prefix("\u{2014} ")?.split(' ').next()) {
            if signers.len() < SIGNERS_MAX && !signers.iter().any(|known| known == name) {
                signers.push(name.to_string());
            }
        }
    }
    let mut reveals = vec![(Clear, Reveal::Progress { heads: sizes.len() })];
    if !signers.is_empty() {
        reveals.push((Clear, Reveal::Signers { names: signers }));
    }
    Ok(folder(names::HEADS, sizes.len(), reveals))
}

fn data(run: &Run, leaves: Visibility) -> Vec<Told> {
    let mut all = Vec::new();
    for (number, manifest) in run.file.data.iter().enumerate() {
        let (file, tree) = (names::data_file(number), names::data_tree(number));
        if run.at(file.clone()).is_here() {
            all.push(Told::new(file, vec![(Clear, Reveal::Data { bytes: manifest.bytes })]));
        }
        if run.at(tree.clone()).is_here() {
            let mut reveals = vec![(leaves, Reveal::DataPieces)];
            if run.job().hides() {
                reveals.push((Clear, Reveal::HiddenLength));
            }
            all.push(Told::new(tree, reveals));
        }
    }
    all
}

/// The files that no record commits.
fn beside(run: &Run) -> Result<Vec<Told>, RunError> {
    let mut all = Vec::new();
    let evaluation = listed(run, names::EVALUATION)?;
    let length = |name: &String| run.at(format!("{}/{name}", names::EVALUATION)).length_or_0();
    let bytes = evaluation.iter().map(length).sum::<Result<u64, _>>()?;
    all.extend(folder(names::EVALUATION, evaluation.len(), vec![(Clear, Reveal::Evaluation { bytes })]));
    let companions = listed(run, names::COMPANIONS)?;
    let files = companions.len();
    all.extend(folder(names::COMPANIONS, files, vec![(Clear, Reveal::Companions { names: companions })]));
    for name in [names::METRICS, names::EVENTS] {
        if run.at(name).is_here() {
            all.push(Told::new(name, vec![(Clear, Reveal::Metrics)]));
        }
    }
    if run.at(names::LOCK).length_or_0()? > 0 {
        all.push(Told::new(names::LOCK, vec![(Clear, Reveal::Process)]));
    }
    all.extend(
        run.unexpected_files()?.into_iter().map(|name| Told::new(name, vec![(Clear, Reveal::Unknown)])),
    );
    Ok(all)
}

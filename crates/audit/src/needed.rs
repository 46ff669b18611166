//! The files of a run that an auditor needs for a replay, of all steps or of some.

use tiebreak_job::initial::InitialOrigin;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, Stored, names};

/// A file that a replay needs.
pub struct Needed {
    /// The name that the file has in a run which holds it.
    pub name: String,
    /// The place where the file is: in the run, or in a folder of its data.
    pub file: Stored,
    /// The file's bytes.
    pub length: u64,
}

/// Finds the files that a replay needs: of the whole run, or of steps first..=last. Data files come whole, from wherever they are;
/// files that the run lacks are left out, and an audit says so.
///
/// # Errors
/// If the run has no head, a data file is nowhere or has another length than run.json says, or a file cannot be examined.
pub fn needed(run: &Run, steps: Option<(u32, u32)>) -> Result<Vec<Needed>, RunError> {
    let mut names: Vec<String> =
        [names::RUN_JSON, names::JOB, names::PROGRAM, names::TRANSCRIPT, names::GRADIENTS]
            .map(str::to_string)
            .into();
    let heads = run.head_sizes()?;
    if heads.is_empty() {
        let root = run.layout.root.display();
        let why = format!("{root}: the run has published no head yet, and an audit is of what a head covers");
        return Err(RunError::Refused(why));
    }
    names.extend(heads.into_iter().map(names::head));
    let all = (1, run.job().steps);
    let (first, last) = steps.unwrap_or(all);
    let checkpoints = run.checkpoint_steps()?;
    let begin = match steps {
        None => 0,
        Some(_) => checkpoints.iter().copied().filter(|&step| step < first).max().unwrap_or(0),
    };
    let whole = steps.is_none();
    let seeded = run.file.origin == InitialOrigin::Seed;
    // A later checkpoint may leave frozen parameters to checkpoint 0.
    let frozen = run.program().kept().contains(&true);
    let kept = |step: &u32| {
        whole || ((begin..=last).contains(step) || *step == 0 && frozen) && !(*step == 0 && seeded)
    };
    names.extend(checkpoints.into_iter().filter(kept).map(names::checkpoint));
    for step in begin + 1..=last {
        names.extend([names::trace(step), names::log(step)]);
    }
    if last >= run.job().steps {
        names.push(names::MODEL.into());
    }
    let mut found = Vec::new();
    for name in names {
        let file = run.at(name.clone());
        if file.is_here() {
            found.push(Needed { length: file.length()?, name, file });
        }
    }
    for (number, manifest) in run.file.data.iter().enumerate() {
        let file = run.data_file(number)?;
        let length = file.length()?;
        if length != manifest.bytes {
            let why =
                format!("it has {length} bytes, and run.json says {} of data file {number}", manifest.bytes);
            return Err(RunError::invalid(file.path(), why));
        }
        found.push(Needed { name: names::data_file(number), file, length });
        let (name, file) = (names::data_tree(number), run.at(names::data_tree(number)));
        found.push(Needed { length: file.length()?, name, file });
    }
    Ok(found)
}

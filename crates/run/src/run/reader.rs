//! Readers of a run whose commitments hide: with its salt key, without, or not at all.

use super::error::RunError;
use tiebreak_job::computation::{Computation, ComputationError};
use tiebreak_job::identity::ComputationSummary;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::salts::SaltKey;

/// The salt key that a reader brings.
#[derive(Clone, Debug)]
pub enum Salts {
    /// The reader reads only runs that hide nothing.
    Refused,
    /// The reader has no key, and looks only at what needs none.
    Closed,
    /// The reader has this key.
    Key(SaltKey),
}

/// The computation of a run, as this reader may derive it. `named` is the commitment to a salt key in `run.json`.
///
/// # Errors
/// In the outer result if the key is not the run's; in the inner one as [`Computation::derive`].
pub(super) fn computation(
    salts: Salts,
    named: Option<&Digest>,
    place: &str,
    (name, job): (&str, &str),
    program_file: Option<&[u8]>,
    summary: ComputationSummary,
) -> Result<Result<Computation, ComputationError>, RunError> {
    let refused = |why: String| Err(RunError::Refused(format!("{place}: {why}")));
    let key = match (salts, named) {
        (Salts::Key(key), Some(named)) if key.commitment() == *named => Some(key),
        (Salts::Key(key), Some(named)) => {
            let keys = key.commitment().not(named);
            return refused(format!(
                "the salt key is not the one that run.json names: it is {keys}; give the run's own"
            ));
        }
        (Salts::Key(_), None) => {
            return refused("the run hides nothing, and has no salt key: leave --salt-key out".into());
        }
        (Salts::Closed, Some(_)) => None,
        (Salts::Refused, Some(_)) => return refused(ComputationError::Hidden.to_string()),
        (_, None) => return Ok(Computation::derive(name, job, program_file, summary)),
    };
    Ok(Computation::hidden(name, job, program_file, summary, key))
}

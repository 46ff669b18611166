//! The checks without a replay, with their progress.

use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;

use super::attachments::{Attachments, attachments_watched};
use super::checks::{Checked, always_watched};
use super::corrections::Corrections;
use super::work::Work;

/// [`super::checks::always`], with its progress.
///
/// # Errors
/// As [`super::checks::always`].
pub fn always(run: &Run, key: Option<&PublicKey>, work: &mut Work) -> Result<Checked, RunError> {
    always_watched(run, key, &Corrections::default(), work)
}

/// [`always`] by an auditor who accepts these corrections.
///
/// # Errors
/// As [`super::checks::always`]; also if a correction is of another history than the run's.
pub fn corrected(
    run: &Run,
    key: Option<&PublicKey>,
    corrections: &Corrections,
    work: &mut Work,
) -> Result<Checked, RunError> {
    always_watched(run, key, corrections, work)
}

/// [`super::attachments::attachments`], with its progress.
pub fn attachments(run: &Run, checked: &Checked, work: &mut Work) -> Attachments {
    attachments_watched(run, checked, work)
}

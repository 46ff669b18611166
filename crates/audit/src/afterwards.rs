//! Signatures that were made after a run was trained.

use tiebreak_record::commit::cosignature::{cosigned_at, utc};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;

/// The signer of a run that names no key, and the time of signing, in words.
///
/// # Errors
/// If `key` did not sign.
pub(super) fn signed_afterwards(
    run: &Run,
    key: &PublicKey,
    size: u64,
    note: &str,
) -> Result<String, RunError> {
    let path = run.layout.head(size);
    let time = cosigned_at(note, key).map_err(|why| RunError::malformed(&path, why))?;
    let time = time.ok_or_else(|| RunError::Unsigned { path, given: key.identified() })?;
    Ok(format!(
        "signed by {} afterwards, at {} by its own clock: the run names no key, so nothing binds its trainer to one history",
        key.identified(),
        utc(time)
    ))
}

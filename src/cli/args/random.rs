//! Randomness of the system, for what no argument gives: seeds, nonces, keys.

use crate::cli::view::report::{Exit, Failure};

/// Bytes of the system's randomness.
pub fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Exit::Undecided, format!("the system has no randomness: {error}")))?;
    Ok(bytes)
}

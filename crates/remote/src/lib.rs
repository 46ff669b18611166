//! Runs that are elsewhere: stores that read by an address, and write nothing.
//!
//! Nobody vouches for a byte that an address gives. Lengths are bounded before anything is allocated, and every layer above holds what it
//! reads to the run's digests, as it does with a run in a folder.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]

mod answer;
mod http;
mod patience;
mod seen;

use std::path::Path;
use std::sync::Arc;

use tiebreak_run::run::{RunError, Store};

pub use patience::Patience;

/// True if a command line names a run by an address, such as `http://HOST/PATH`, and not by a folder.
pub fn is_address(place: &Path) -> bool {
    let scheme = place.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// The store at an address. Nothing is asked of it yet.
///
/// # Errors
/// If the address is of a kind that this build does not read.
pub fn open(address: &str) -> Result<Arc<dyn Store>, RunError> {
    open_with(address, Patience::default())
}

/// [`open`], with other limits of time.
///
/// # Errors
/// As [`open`].
pub fn open_with(address: &str, patience: Patience) -> Result<Arc<dyn Store>, RunError> {
    let refused = |why: &str| Err(RunError::Refused(format!("{address}: {why}")));
    let (scheme, rest) = address.split_once("://").unwrap_or_default();
    match scheme {
        "https" if !cfg!(feature = "tls") => {
            refused("this build has no TLS: build it with --features tls, or copy the run to a folder here")
        }
        "http" | "https" => match rest.split(['/', ':']).next() {
            None | Some("") => refused("the address names no host"),
            Some(_)
                if rest.contains(['?', '#', '@', '\\'])
                    || !rest.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                refused("an address of a run has a host and a path, without a user, a query or blanks")
            }
            Some(_) => match address.parse::<ureq::http::Uri>() {
                Err(why) => refused(&format!("the address is no URL ({why})")),
                Ok(_) => Ok(Arc::new(http::Http::new(address, patience))),
            },
        },
        _ => refused("a run is read from a folder, or from an address that begins with http:// or https://"),
    }
}

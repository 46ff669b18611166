//! Runs and their data that are elsewhere: stores that read by an address and write nothing, and targets to which a run is published.
//!
//! Nobody vouches for a byte that an address gives. Lengths are bounded before anything is allocated, and every layer above holds what it
//! reads to the run's digests, as it does with a run in a folder.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]

mod answer;
mod ask;
pub mod cache;
mod folder;
mod http;
#[cfg(feature = "objects")]
mod objects;
mod patience;
pub mod publish;
mod seen;
pub mod target;

use std::path::Path;
use std::sync::Arc;

use tiebreak_run::run::{RunError, Store};

pub use patience::Patience;
pub use tiebreak_run::run::job_files::is_address;

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
    Ok(Arc::new(at(address, patience)?))
}

/// The store of an address that is no run's, such as a folder of data files: each file is asked for by its name, and no index lists
/// them.
///
/// # Errors
/// As [`open`].
pub fn open_files(address: &str) -> Result<Arc<dyn Store>, RunError> {
    Ok(Arc::new(at(address, Patience::default())?.without_index()))
}

fn at(address: &str, patience: Patience) -> Result<http::Http, RunError> {
    let refused = |why: &str| Err(RunError::Refused(format!("{address}: {why}")));
    let (scheme, rest) = address.split_once("://").unwrap_or_default();
    match scheme {
        "https" if !cfg!(feature = "tls") => {
            refused("this build has no TLS: build it with --features tls, or copy the run to a folder here")
        }
        "http" | "https" => {
            plain_address(address, rest)?;
            match address.parse::<ureq::http::Uri>() {
                Err(why) => refused(&format!("the address is no URL ({why})")),
                Ok(_) => {
                    let asks = Box::new(ask::Plain::new(address, &patience));
                    Ok(http::Http::new(address, asks, patience))
                }
            }
        }
        "s3" | "gs" | "az" => {
            plain_address(address, rest)?;
            objects_at(address, patience)
        }
        _ => refused(
            "a run is read from a folder, from an address that begins with http:// or https://, or from an object store, at s3://, \
             gs:// or az://",
        ),
    }
}

/// Refuses an address with more than a host, or a bucket, and a path.
fn plain_address(address: &str, rest: &str) -> Result<(), RunError> {
    let why = match rest.split(['/', ':']).next() {
        None | Some("") => "the address names no host",
        Some(_)
            if rest.contains(['?', '#', '@', '\\']) || !rest.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            "an address of a run has a host and a path, without a user, a query or blanks"
        }
        Some(_) => return Ok(()),
    };
    Err(RunError::Refused(format!("{address}: {why}")))
}

/// The store of a run in an object store.
#[cfg(feature = "objects")]
fn objects_at(address: &str, patience: Patience) -> Result<http::Http, RunError> {
    let asks = Box::new(objects::Objects::at(address, patience)?);
    Ok(http::Http::new(address, asks, patience))
}

#[cfg(not(feature = "objects"))]
fn objects_at(address: &str, _: Patience) -> Result<http::Http, RunError> {
    Err(no_objects(address))
}

/// The error of a build without object stores.
#[cfg(not(feature = "objects"))]
fn no_objects(address: &str) -> RunError {
    RunError::Refused(format!(
        "{address}: this build reads no object stores: build it with --features object-stores, or copy the run to a folder here"
    ))
}

/// The place to which a run is published: a folder, or a prefix in an object store. Nothing is asked of it yet.
///
/// # Errors
/// If nothing is published to an address of that kind, or this build knows none of that kind.
pub fn target(place: &Path, patience: Patience) -> Result<Box<dyn target::Target>, RunError> {
    if !is_address(place) {
        return Ok(Box::new(folder::FolderTarget::at(place)));
    }
    let address = place.to_string_lossy();
    let (scheme, rest) = address.split_once("://").unwrap_or_default();
    match scheme {
        "s3" | "gs" | "az" => {
            plain_address(&address, rest)?;
            #[cfg(feature = "objects")]
            return Ok(Box::new(objects::Objects::at(&address, patience)?));
            #[cfg(not(feature = "objects"))]
            {
                let _ = patience;
                Err(no_objects(&address))
            }
        }
        _ => Err(RunError::Refused(format!(
            "{address}: a run is published to a folder, or to an address that begins with s3://, gs:// or az://"
        ))),
    }
}

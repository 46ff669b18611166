//! Databases that keep chips' logs: what a collector asks of one, and which one an address names.
//!
//! A store is a list of records a chip, and the state at its end. Every append is one transaction that is durable when it returns.
//! Several collectors may have one database: an append names the records that were there before it, and fails if that changed.

mod keeping;
mod postgres;
mod sqlite;

use std::path::Path;

use tiebreak_monitor::chip::chain::{End, NOTHING};
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};

pub use keeping::{Appended, Store, StoreError};

/// The records of a log that are read at once.
pub const PIECE: u64 = 4096;

/// Opens the store that an address names: a URL of PostgreSQL, or the path of a SQLite file. `create` makes one that is not there.
///
/// # Errors
/// If it cannot be opened, is no store of a collector, or promises no durability.
pub fn open(address: &str, create: bool) -> Result<Box<dyn Store>, StoreError> {
    match is_url(address) {
        true => Ok(Box::new(postgres::Postgres::open(address, create)?)),
        false => Ok(Box::new(sqlite::Sqlite::open(Path::new(address), create)?)),
    }
}

/// True if an address is a URL of PostgreSQL.
pub fn is_url(address: &str) -> bool {
    address.starts_with("postgres://") || address.starts_with("postgresql://")
}

/// Gives each record of a chip's log to `each`, in their order, after a check that it continues those before it.
///
/// # Errors
/// If the database fails or holds what no collector put there, or `each` fails.
pub fn walk<E: From<StoreError>>(
    store: &mut dyn Store,
    chip: &Serial,
    mut each: impl FnMut(&SignedRecord) -> Result<(), E>,
) -> Result<End, E> {
    let mut end = NOTHING;
    loop {
        let records = store.records(chip, end.records, PIECE)?;
        for signed in &records {
            end = end.follow(signed).map_err(|error| StoreError::Damaged(error.to_string()))?;
            each(signed)?;
        }
        if records.is_empty() {
            return Ok(end);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

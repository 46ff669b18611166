//! A store in a file, by SQLite: write-ahead log, and each transaction on disk before it returns.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};

use super::keeping::{Appended, Row, Store, StoreError, head, number, record, signed};
use crate::admission::State;

/// The number that says that a file is a collector's: `tbCo`.
const APPLICATION: i64 = 0x7462_436f;
/// The version of the tables.
const VERSION: i64 = 1;
const TABLES: &str = "
    CREATE TABLE chips (
        id INTEGER PRIMARY KEY,
        serial TEXT NOT NULL UNIQUE,
        records INTEGER NOT NULL,
        link BLOB NOT NULL,
        time INTEGER NOT NULL,
        latest INTEGER NOT NULL,
        map BLOB,
        code BLOB
    ) STRICT;
    CREATE TABLE records (
        chip INTEGER NOT NULL REFERENCES chips (id),
        counter INTEGER NOT NULL,
        record BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX places ON records (chip, counter);
";

/// A SQLite file.
pub struct Sqlite(Connection);

fn failed(error: rusqlite::Error) -> StoreError {
    StoreError::Database(error.to_string())
}

impl Sqlite {
    /// Opens a file; `create` makes it if it is not there.
    ///
    /// # Errors
    /// If SQLite cannot open it, or it is not a collector's.
    pub fn open(path: &Path, create: bool) -> Result<Sqlite, StoreError> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let mut file = Connection::open_with_flags(path, flags).map_err(failed)?;
        file.busy_timeout(Duration::from_secs(10)).map_err(failed)?;
        file.pragma_update(None, "journal_mode", "wal").map_err(failed)?;
        file.pragma_update(None, "synchronous", "full").map_err(failed)?;
        let begun = file.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let pragma = |name: &str| begun.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let (application, version) =
            (pragma("application_id").map_err(failed)?, pragma("user_version").map_err(failed)?);
        let tables: i64 =
            begun.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
        match (application, version, tables) {
            (APPLICATION, VERSION, _) => {}
            (0, 0, 0) if create => {
                begun.execute_batch(TABLES).map_err(failed)?;
                begun.pragma_update(None, "application_id", APPLICATION).map_err(failed)?;
                begun.pragma_update(None, "user_version", VERSION).map_err(failed)?;
            }
            _ => {
                let why = format!(
                    "application {application:#x} with version {version} and {tables} tables; a collector's has {APPLICATION:#x} with version {VERSION}"
                );
                return Err(StoreError::Database(why));
            }
        }
        begun.commit().map_err(failed)?;
        Ok(Sqlite(file))
    }
}

fn row(row: &rusqlite::Row) -> rusqlite::Result<Row> {
    let (map, code): (Option<Vec<u8>>, Option<Vec<u8>>) = (row.get(5)?, row.get(6)?);
    Ok(Row {
        serial: row.get(0)?,
        records: row.get(1)?,
        link: row.get(2)?,
        time: row.get(3)?,
        latest: row.get(4)?,
        shard: map.zip(code),
    })
}

/// Appends to one chip's log.
fn append(begun: &Transaction, serial: &Serial, appended: &Appended) -> Result<(), StoreError> {
    let end = &appended.state.end;
    let (records, time) = (signed("a number of records", end.records)?, signed("a time", end.time)?);
    let (before, latest) =
        (signed("a number of records", appended.before)?, signed("a time", appended.state.latest)?);
    let (map, code) = (end.shard.map(|shard| shard.map.0), end.shard.map(|shard| shard.code.0));
    let row = params![serial.as_str(), records, end.link.0, time, latest, map, code, before];
    let changed = match before {
        0 => begun
            .prepare_cached(
                "INSERT INTO chips (serial, records, link, time, latest, map, code)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE ?8 = 0 ON CONFLICT DO NOTHING",
            )
            .and_then(|mut insert| insert.execute(row)),
        _ => begun
            .prepare_cached(
                "UPDATE chips SET records = ?2, link = ?3, time = ?4, latest = ?5, map = ?6, code = ?7
                 WHERE serial = ?1 AND records = ?8",
            )
            .and_then(|mut update| update.execute(row)),
    };
    if changed.map_err(failed)? != 1 {
        return Err(StoreError::Raced(format!("the log of {serial} has no longer {before} records")));
    }
    let mut insert = begun
        .prepare_cached(
            "INSERT INTO records (chip, counter, record) SELECT id, ?2, ?3 FROM chips WHERE serial = ?1",
        )
        .map_err(failed)?;
    for (counter, bytes) in (before..).zip(&appended.records) {
        insert.execute(params![serial.as_str(), counter, bytes]).map_err(failed)?;
    }
    Ok(())
}

impl Store for Sqlite {
    fn states(&mut self, chips: &[&Serial]) -> Result<BTreeMap<Serial, State>, StoreError> {
        let mut select = self
            .0
            .prepare_cached(
                "SELECT serial, records, link, time, latest, map, code FROM chips WHERE serial = ?1",
            )
            .map_err(failed)?;
        let mut states = BTreeMap::new();
        for chip in chips {
            let found = select.query_row([chip.as_str()], row).optional().map_err(failed)?;
            if let Some(found) = found {
                states.extend([found.state()?]);
            }
        }
        Ok(states)
    }

    fn records(&mut self, chip: &Serial, from: u64, most: u64) -> Result<Vec<SignedRecord>, StoreError> {
        let mut select = self
            .0
            .prepare_cached(
                "SELECT counter, record FROM records
                 WHERE chip = (SELECT id FROM chips WHERE serial = ?1) AND counter >= ?2 ORDER BY counter LIMIT ?3",
            )
            .map_err(failed)?;
        let range = params![chip.as_str(), signed("a counter", from)?, signed("a number", most)?];
        let rows = select
            .query_map(range, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))
            .map_err(failed)?;
        let rows: Vec<(i64, Vec<u8>)> = rows.collect::<Result<_, _>>().map_err(failed)?;
        rows.iter().map(|(counter, bytes)| record(chip, number("a counter", *counter)?, bytes)).collect()
    }

    fn append(&mut self, chips: &BTreeMap<Serial, Appended>) -> Result<(), StoreError> {
        let begun = self.0.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        chips.iter().try_for_each(|(serial, appended)| append(&begun, serial, appended))?;
        begun.commit().map_err(failed)
    }

    fn heads(&mut self) -> Result<ClosedLogs, StoreError> {
        let mut select = self.0.prepare_cached("SELECT serial, records, link FROM chips").map_err(failed)?;
        let rows = select
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?)))
            .map_err(failed)?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>().map_err(failed)?;
        let heads = rows.iter().map(|(serial, records, link)| head(serial, *records, link));
        Ok(ClosedLogs(heads.collect::<Result<_, _>>()?))
    }
}

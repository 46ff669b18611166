//! A store in PostgreSQL, for collectors that several machines run, or that a site's backups have to cover.
//!
//! Rows travel as arrays, so a transaction takes a few round trips, however many records it has. A connection that is lost is made
//! again at the next use.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Config, NoTls};
use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};

use super::keeping::{Appended, Row, Store, StoreError, head, number, record, signed};
use crate::admission::State;

/// The version of the tables.
const VERSION: i64 = 1;
/// The time for a connection.
const CONNECT: Duration = Duration::from_secs(10);
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS tiebreak_collector (version bigint PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS tiebreak_chips (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        serial text COLLATE \"C\" NOT NULL UNIQUE,
        records bigint NOT NULL,
        link bytea NOT NULL,
        time bigint NOT NULL,
        latest bigint NOT NULL,
        map bytea,
        code bytea
    );
    CREATE TABLE IF NOT EXISTS tiebreak_records (
        chip bigint NOT NULL REFERENCES tiebreak_chips (id),
        counter bigint NOT NULL,
        record bytea NOT NULL,
        PRIMARY KEY (chip, counter)
    );
    INSERT INTO tiebreak_collector SELECT 1 WHERE NOT EXISTS (SELECT FROM tiebreak_collector);
";

/// A database of a PostgreSQL server.
pub struct Postgres {
    config: Config,
    client: Option<Client>,
}

fn failed(error: postgres::Error) -> StoreError {
    // The error itself says only `db error`.
    let why = error.as_db_error().map_or(error.to_string(), |error| error.to_string());
    match error.code() {
        Some(
            &SqlState::UNIQUE_VIOLATION
            | &SqlState::T_R_SERIALIZATION_FAILURE
            | &SqlState::T_R_DEADLOCK_DETECTED,
        ) => StoreError::Raced(why),
        _ => StoreError::Database(why),
    }
}

impl Postgres {
    /// Connects to a database; `create` makes the tables if they are not there.
    ///
    /// # Errors
    /// If the server does not answer, its tables are of another version, or it writes nothing durably.
    pub fn open(url: &str, create: bool) -> Result<Postgres, StoreError> {
        let mut config: Config = url.parse().map_err(failed)?;
        config.connect_timeout(CONNECT).application_name("collector");
        let mut opened = Postgres { config, client: None };
        let client = opened.client()?;
        if create {
            // Two collectors that begin at the same time do so one after the other.
            let mut begun = client.transaction().map_err(failed)?;
            begun.batch_execute("SELECT pg_advisory_xact_lock(1952596847)").map_err(failed)?;
            begun.batch_execute(TABLES).map_err(failed)?;
            begun.commit().map_err(failed)?;
        }
        let version: i64 =
            client.query_one("SELECT max(version) FROM tiebreak_collector", &[]).map_err(failed)?.get(0);
        match version {
            VERSION => Ok(opened),
            other => Err(StoreError::Database(format!("its tables have version {other}, not {VERSION}"))),
        }
    }

    fn client(&mut self) -> Result<&mut Client, StoreError> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let mut client = self.config.connect(NoTls).map_err(failed)?;
            // The server's own settings may leave an acknowledged transaction to luck.
            client.batch_execute("SET synchronous_commit = on").map_err(failed)?;
            let fsync: String = client.query_one("SHOW fsync", &[]).map_err(failed)?.get(0);
            if fsync != "on" {
                let why = format!(
                    "its server has fsync = {fsync}; a collector acknowledges nothing that a crash may take back"
                );
                return Err(StoreError::Database(why));
            }
            self.client = Some(client);
        }
        Ok(self.client.as_mut().expect("it was just made"))
    }

    /// Does something over the connection, which is made again if it turns out to be lost.
    fn with<T>(
        &mut self,
        mut work: impl FnMut(&mut Client) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = work(self.client()?);
        match done {
            Err(_) if self.client.as_ref().is_some_and(Client::is_closed) => work(self.client()?),
            done => done,
        }
    }
}

/// The rows of an append, a column each.
#[derive(Default)]
struct Columns<'a> {
    serials: Vec<&'a str>,
    before: Vec<i64>,
    records: Vec<i64>,
    links: Vec<&'a [u8]>,
    times: Vec<i64>,
    latest: Vec<i64>,
    maps: Vec<Option<&'a [u8]>>,
    codes: Vec<Option<&'a [u8]>>,
    /// Chip, counter and bytes of each record.
    places: (Vec<&'a str>, Vec<i64>, Vec<&'a [u8]>),
}

impl<'a> Columns<'a> {
    fn of(chips: &'a BTreeMap<Serial, Appended>) -> Result<Columns<'a>, StoreError> {
        let mut columns = Columns::default();
        for (serial, appended) in chips {
            let end = &appended.state.end;
            let before = signed("a number of records", appended.before)?;
            columns.serials.push(serial.as_str());
            columns.before.push(before);
            columns.records.push(signed("a number of records", end.records)?);
            columns.links.push(&end.link.0);
            columns.times.push(signed("a time", end.time)?);
            columns.latest.push(signed("a time", appended.state.latest)?);
            columns.maps.push(end.shard.as_ref().map(|shard| &shard.map.0[..]));
            columns.codes.push(end.shard.as_ref().map(|shard| &shard.code.0[..]));
            for (counter, bytes) in (before..).zip(&appended.records) {
                columns.places.0.push(serial.as_str());
                columns.places.1.push(counter);
                columns.places.2.push(bytes);
            }
        }
        Ok(columns)
    }
}

/// Appends in a transaction. A second collector that appends to the same log waits for the first one's row, and then finds it changed.
fn append(client: &mut Client, columns: &Columns) -> Result<(), StoreError> {
    let mut begun = client.transaction().map_err(failed)?;
    let new = "INSERT INTO tiebreak_chips (serial, records, link, time, latest)
        SELECT serial, 0, ''::bytea, 0, 0 FROM unnest($1::text[], $2::bigint[]) AS u (serial, before)
        WHERE before = 0 ORDER BY serial COLLATE \"C\" ON CONFLICT DO NOTHING";
    begun.execute(new, &[&columns.serials, &columns.before]).map_err(failed)?;
    let changed = "UPDATE tiebreak_chips AS c SET
            records = u.records, link = u.link, time = u.time, latest = u.latest, map = u.map, code = u.code
        FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bytea[])
            AS u (serial, before, records, link, time, latest, map, code)
        WHERE c.serial = u.serial AND c.records = u.before";
    let values: [&(dyn ToSql + Sync); 8] = [
        &columns.serials,
        &columns.before,
        &columns.records,
        &columns.links,
        &columns.times,
        &columns.latest,
        &columns.maps,
        &columns.codes,
    ];
    let rows = begun.execute(changed, &values).map_err(failed)?;
    if rows != columns.serials.len() as u64 {
        let why = format!("{rows} of {} logs have the records that they had", columns.serials.len());
        return Err(StoreError::Raced(why));
    }
    let records = "INSERT INTO tiebreak_records (chip, counter, record)
        SELECT c.id, u.counter, u.record FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS u (serial, counter, record)
        JOIN tiebreak_chips AS c ON c.serial = u.serial";
    let (serials, counters, bytes) = &columns.places;
    begun.execute(records, &[serials, counters, bytes]).map_err(failed)?;
    begun.commit().map_err(failed)
}

impl Store for Postgres {
    fn states(&mut self, chips: &[&Serial]) -> Result<BTreeMap<Serial, State>, StoreError> {
        let serials: Vec<&str> = chips.iter().map(|chip| chip.as_str()).collect();
        let rows = self.with(|client| {
            let select = "SELECT serial, records, link, time, latest, map, code FROM tiebreak_chips
                WHERE serial = ANY ($1) AND records > 0";
            client.query(select, &[&serials]).map_err(failed)
        })?;
        rows.iter()
            .map(|row| {
                let (map, code): (Option<Vec<u8>>, Option<Vec<u8>>) = (row.get(5), row.get(6));
                let (serial, records, link) = (row.get(0), row.get(1), row.get(2));
                Row { serial, records, link, time: row.get(3), latest: row.get(4), shard: map.zip(code) }
                    .state()
            })
            .collect()
    }

    fn records(&mut self, chip: &Serial, from: u64, most: u64) -> Result<Vec<SignedRecord>, StoreError> {
        let (from, most) = (signed("a counter", from)?, signed("a number", most)?);
        let rows = self.with(|client| {
            let select = "SELECT counter, record FROM tiebreak_records
                WHERE chip = (SELECT id FROM tiebreak_chips WHERE serial = $1) AND counter >= $2 ORDER BY counter LIMIT $3";
            client.query(select, &[&chip.as_str(), &from, &most]).map_err(failed)
        })?;
        rows.iter().map(|row| record(chip, number("a counter", row.get(0))?, row.get(1))).collect()
    }

    fn append(&mut self, chips: &BTreeMap<Serial, Appended>) -> Result<(), StoreError> {
        let columns = Columns::of(chips)?;
        // A lost connection may have lost the acknowledgement alone: then the second try finds the logs changed.
        self.with(|client| append(client, &columns))
    }

    fn heads(&mut self) -> Result<ClosedLogs, StoreError> {
        let rows = self.with(|client| {
            let select = "SELECT serial, records, link FROM tiebreak_chips WHERE records > 0";
            client.query(select, &[]).map_err(failed)
        })?;
        let heads = rows.iter().map(|row| head(row.get(0), row.get(1), row.get(2)));
        Ok(ClosedLogs(heads.collect::<Result<_, _>>()?))
    }
}

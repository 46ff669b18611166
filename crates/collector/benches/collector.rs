//! The throughput of a collector over loopback, and the bytes that its database takes, against the need of 100,000 chips.
//!
//! `cargo bench -p tiebreak-collector --features server [-- CHIPS [RECORDS [CLIENTS]]]`, by default 2000 chips with ten records each,
//! and 32 clients. `.ci/postgres` before the command adds PostgreSQL. Clients run on the same machine. Each request has a connection
//! of its own, as agents' have.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tiebreak_collector::client::{Remote, Settings};
use tiebreak_collector::metrics::CollectorMetrics;
use tiebreak_collector::roster::Roster;
use tiebreak_collector::{server, store};
use tiebreak_monitor::chip::keeper::Keeper as _;
use tiebreak_monitor::register::entry::{Change, Entry};
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{Event, NO_LINK, RECORD_BYTES, Record, Serial, SignedRecord};
use tiebreak_record::commit::keys::PrivateKey;

/// The records a second of 100,000 chips with ten snapshots a day.
const NEED: f64 = 100_000.0 * 10.0 / 86_400.0;

fn key(number: usize) -> PrivateKey {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
    PrivateKey::generate("bench", seed).expect("the name is right")
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_secs()
}

/// A register of so many chips, and their logs.
fn made(chips: usize, records: usize) -> (Register, Vec<Vec<SignedRecord>>) {
    let (mut register, begin) = (Register::new("bench").expect("the name is right"), seconds() - 1_000_000);
    let logs = (0..chips).map(|number| {
        let (key, serial) = (key(number), Serial::new(&format!("chip-{number}")).expect("it is a serial"));
        let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
        let change = Change::Enter { key: key.public().to_text(), model, owner, site, exempt: None };
        register.append(Entry { time: begin, serial: serial.clone(), change }).expect("the chip is new");
        let mut log: Vec<SignedRecord> = Vec::new();
        for counter in 0..records as u64 {
            let event = if counter == 0 { Event::Begin } else { Event::Idle };
            let previous = log.last().map_or(NO_LINK, SignedRecord::link);
            let time = (begin + counter) * 1000;
            log.push(Record { serial: serial.clone(), counter, time, previous, event }.sign(&key));
        }
        log
    });
    let logs = logs.collect();
    (register, logs)
}

/// Sends all logs to a collector over this database, and returns the seconds.
fn sent(database: &str, register: &Register, logs: &[Vec<SignedRecord>], clients: usize) -> f64 {
    let collector_key = key(usize::MAX);
    let roster = Arc::new(Roster::new("no register".into(), None, register.clone()));
    let store = store::open(database, true).expect("the database opens");
    let collector =
        server::start("127.0.0.1:0", collector_key.clone(), roster, store, CollectorMetrics::default())
            .expect("it listens");
    let url = format!("http://{}", collector.address());
    let begin = Instant::now();
    thread::scope(|scope| {
        for client in 0..clients {
            let settings = Settings {
                url: url.clone(),
                key: collector_key.public(),
                hold: Some(Duration::from_secs(60)),
                stopped: Arc::default(),
            };
            scope.spawn(move || {
                let told = |word: &_| eprintln!("{word:?}");
                let mut keeper = Remote::new(settings, told).expect("the address is right");
                // Chips take turns, as they do in a fleet: no log is stored in one piece.
                for counter in 0..logs[0].len() {
                    for log in logs.iter().skip(client).step_by(clients) {
                        keeper.append(&log[counter]).expect("the record is kept");
                    }
                }
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    collector.stop();
    seconds
}

/// Prints what a store did.
fn report(name: &str, records: usize, seconds: f64, bytes: u64) {
    let (rate, each) = (records as f64 / seconds, bytes as f64 / records as f64);
    println!(
        "{name}: {rate:.0} records a second ({:.0} times the {NEED:.1} of 100,000 chips at ten a day), {each:.0} bytes a record of {RECORD_BYTES}, so {:.2} MB a chip and year",
        rate / NEED,
        each * 3652.5 / 1e6
    );
}

fn main() {
    // Cargo adds `--bench` to what the user says.
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let number = |at: usize, default: usize| numbers.get(at).copied().unwrap_or(default).max(1);
    let (chips, records, clients) = (number(0, 2000), number(1, 10), number(2, 32));
    let (register, logs) = made(chips, records);
    println!("{chips} chips with {records} records each, {clients} clients on this machine");
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let file = folder.path().join("chips");
    let seconds = sent(file.to_str().expect("the path is text"), &register, &logs, clients);
    let bytes = std::fs::metadata(&file).expect("the file is there").len();
    report("SQLite", chips * records, seconds, bytes);
    let Ok(server) = std::env::var("TIEBREAK_POSTGRES") else {
        println!("PostgreSQL: not measured, since TIEBREAK_POSTGRES names no server (.ci/postgres)");
        return;
    };
    let url = format!("{server}/bench");
    let size = || {
        let mut client = postgres::Client::connect(&url, postgres::NoTls).expect("the server answers");
        client.batch_execute("CHECKPOINT").expect("this user may");
        let size = "SELECT pg_database_size(current_database())";
        client.query_one(size, &[]).expect("it has a size").get::<_, i64>(0)
    };
    let before = size();
    let seconds = sent(&url, &register, &logs, clients);
    report("PostgreSQL", chips * records, seconds, (size() - before).unsigned_abs());
}

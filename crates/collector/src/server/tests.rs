//! A collector as strangers and chips see it, over each store: what it keeps, and what it refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use tiebreak_monitor::chip::keeper::Keeper;
use tiebreak_monitor::register::file::to_text;
use tiebreak_monitor::register::history::Register;
use tiebreak_monitor::snapshot::record::{Event, SignedRecord};
use tiebreak_record::commit::digest::Digest;

use super::{Collector, start};
use crate::client::{Remote, Settings};
use crate::made::{Chip, key, register, serial};
use crate::message::{Kept, Last, read};
use crate::metrics::CollectorMetrics;
use crate::roster::Roster;
use crate::store::{self, StoreError, tests::postgres};

const COLLECTOR: u8 = 99;

struct Running {
    folder: tempfile::TempDir,
    database: String,
    collector: Collector,
}

/// A collector of ten chips.
fn running(database: Option<String>) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let database = database.unwrap_or_else(|| folder.path().join("chips").to_str().unwrap().into());
    let register = register(10);
    let path = folder.path().join("register");
    std::fs::write(&path, to_text(&register, &key(50))).unwrap();
    let roster = Arc::new(Roster::new(path, Some(key(50).public()), register));
    let store = store::open(&database, true).unwrap();
    let collector = start("127.0.0.1:0", key(COLLECTOR), roster, store, CollectorMetrics::default()).unwrap();
    Running { folder, database, collector }
}

impl Running {
    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.collector.address())
    }

    fn send(&self, path: &str, body: &[u8]) -> (u16, String) {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build();
        let mut response = config.new_agent().post(self.url(path)).send(body).unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build();
        let mut response = config.new_agent().get(self.url(path)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    fn keeper(&self) -> Remote {
        let settings = Settings {
            url: self.url(""),
            key: key(COLLECTOR).public(),
            hold: Some(Duration::from_secs(60)),
            stopped: Arc::new(AtomicBool::new(false)),
        };
        Remote::new(settings, |_| {}).unwrap()
    }

    #[track_caller]
    fn kept(&self, signed: &SignedRecord) {
        let (status, body) = self.send("record", &signed.encode());
        assert_eq!(status, 200, "{body}");
        read::<Kept>(body.as_bytes()).unwrap().check(signed, &key(COLLECTOR).public()).unwrap();
    }

    #[track_caller]
    fn refused(&self, body: &[u8], status: u16, says: &str) {
        let found = self.send("record", body);
        assert!(found.0 == status && found.1.contains(says), "{found:?}");
    }

    fn log(&self, chip: &Chip) -> Vec<u8> {
        let mut bytes = Vec::new();
        let keep = |signed: &SignedRecord| {
            bytes.extend(signed.encode());
            Ok::<(), StoreError>(())
        };
        store::walk(&mut *store::open(&self.database, false).unwrap(), &chip.serial, keep).unwrap();
        bytes
    }
}

/// Duplicates, forks, gaps, strangers and garbage; nothing but the honest records is stored.
fn keeps_what_is_right_and_nothing_else(database: Option<String>) {
    let running = running(database);
    let chip = Chip::with(1, 5);
    chip.log.iter().for_each(|signed| running.kept(signed));
    // A record that came already is acknowledged again, however old it is.
    for signed in [&chip.log[4], &chip.log[0], &chip.log[4]] {
        running.kept(signed);
    }
    let mut other = Chip { log: chip.log[..2].to_vec(), ..chip.clone() };
    let fork = other.write(Event::Idle);
    let (status, why) = running.send("record", &fork.encode());
    assert_eq!(status, 409);
    for says in
        ["\"refused\":\"fork\"", "record 2", &chip.log[2].link().to_string(), &fork.link().to_string()]
    {
        assert!(why.contains(says), "{why}");
    }
    other.write(Event::Idle);
    other.write(Event::Idle);
    running.refused(&other.write(Event::Idle).encode(), 400, "its link to the record before is");
    running.refused(
        &other.write(Event::Idle).encode(),
        409,
        "gap: 5 records of the chip chip-1 are kept, and this is record 6",
    );
    running.refused(&Chip::with(77, 1).bytes(), 403, "unknown_chip");
    let mut stranger = Chip::new(2);
    stranger.key = key(3);
    running.refused(&stranger.write(Event::Begin).encode(), 403, "\"refused\":\"signature\"");
    let mut flipped = chip.next(Event::Begin).encode();
    flipped[243] ^= 1;
    running.refused(&flipped, 403, "\"refused\":\"signature\"");
    running.refused(b"", 400, "the request has 0 bytes");
    running.refused(&chip.bytes()[..243], 400, "the request has 243 bytes");
    running.refused(&[0xff; 244], 400, "malformed");
    running.refused(&chip.bytes(), 413, "no record of 244 bytes");
    // A large body is refused at its beginning, whatever its header says.
    let mut stream = TcpStream::connect(running.collector.address()).unwrap();
    stream.write_all(b"POST /record HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n").unwrap();
    stream.write_all(&[0; 1000]).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    for path in ["", "records", "record/1", "last", "last/chip-1"] {
        assert_eq!(running.send(path, &chip.log[0].encode()).0, 404, "{path}");
    }
    assert_eq!(running.get("record").0, 405);
    assert_eq!(running.log(&chip), chip.bytes());
    assert_eq!(store::open(&running.database, false).unwrap().heads().unwrap().0.len(), 1);
    running.collector.stop();
}

#[test]
fn sqlite_keeps_what_is_right_and_nothing_else() {
    keeps_what_is_right_and_nothing_else(None);
}

#[test]
#[ignore = "needs a PostgreSQL server: .ci/postgres"]
fn postgres_keeps_what_is_right_and_nothing_else() {
    keeps_what_is_right_and_nothing_else(Some(postgres()));
}

/// Many chips at the same time, each of which sends every record twice: each log is its chip's.
fn many_chips_at_the_same_time(database: Option<String>) {
    let running = running(database);
    let chips: Vec<Chip> = (0..10).map(|number| Chip::with(number, 40)).collect();
    thread::scope(|scope| {
        for chip in &chips {
            for _ in 0..2 {
                let mut keeper = running.keeper();
                scope.spawn(move || chip.log.iter().for_each(|signed| keeper.append(signed).unwrap()));
            }
        }
    });
    chips.iter().for_each(|chip| assert!(running.log(chip) == chip.bytes(), "{}", chip.serial));
}

#[test]
fn sqlite_takes_many_chips_at_the_same_time() {
    many_chips_at_the_same_time(None);
}

#[test]
#[ignore = "needs a PostgreSQL server: .ci/postgres"]
fn postgres_takes_many_chips_at_the_same_time() {
    many_chips_at_the_same_time(Some(postgres()));
}

/// Two collectors over one database, each of which gets every second record of each chip: no log has a gap or a fork.
fn two_collectors_have_one_database(database: String) {
    let first = running(Some(database));
    let second = running(Some(first.database.clone()));
    let chips: Vec<Chip> = (0..10).map(|number| Chip::with(number, 20)).collect();
    thread::scope(|scope| {
        for chip in &chips {
            let (mut one, mut two) = (first.keeper(), second.keeper());
            scope.spawn(move || {
                for pair in chip.log.chunks(2) {
                    one.append(&pair[0]).unwrap();
                    two.append(&pair[1]).unwrap();
                }
            });
            // The same records at the same time, at the other collector first.
            let (mut one, mut two) = (second.keeper(), first.keeper());
            scope.spawn(move || {
                for pair in chip.log.chunks(2) {
                    one.append(&pair[0]).unwrap();
                    two.append(&pair[1]).unwrap();
                }
            });
        }
    });
    chips.iter().for_each(|chip| assert!(first.log(chip) == chip.bytes(), "{}", chip.serial));
}

#[test]
fn two_collectors_have_one_sqlite_file() {
    let folder = tempfile::tempdir().unwrap();
    two_collectors_have_one_database(folder.path().join("chips").to_str().unwrap().into());
}

#[test]
#[ignore = "needs a PostgreSQL server: .ci/postgres"]
fn two_collectors_have_one_postgres_database() {
    two_collectors_have_one_database(postgres());
}

#[test]
fn a_chip_learns_the_end_of_its_log_and_nobody_else_is_answered() {
    let running = running(None);
    let chip = Chip::with(1, 3);
    let nonce = Digest([7; 32]);
    let last = |who: &str| running.get(&format!("last/{who}/{nonce}"));
    let (status, body) = last("chip-1");
    let checked = |body: &str| {
        read::<Last>(body.as_bytes()).unwrap().check(&nonce, &serial(1), &key(COLLECTOR).public()).unwrap()
    };
    assert_eq!((status, checked(&body)), (200, None));
    chip.log.iter().for_each(|signed| running.kept(signed));
    assert_eq!(checked(&last("chip-1").1).as_ref(), chip.log.last());
    assert_eq!(last("chip-99").0, 403);
    assert_eq!(last("chip%201").0, 400);
    assert_eq!(running.get("last/chip-1/77").0, 400);
    // A second start of the chip goes on.
    let resumed = running.keeper().resume(&serial(1), &key(1).public()).unwrap();
    assert_eq!(resumed.chain.next(), 3);
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let running = running(None);
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(running.collector.address()).unwrap()).collect();
    let mut slow = TcpStream::connect(running.collector.address()).unwrap();
    slow.write_all(b"POST /record HTTP/1.1\r\nhost: x\r\ncontent-length: 244\r\n\r\n").unwrap();
    let begin = Instant::now();
    Chip::with(1, 3).log.iter().for_each(|signed| running.kept(signed));
    assert!(begin.elapsed() < Duration::from_secs(10));
    drop(silent);
    // A body that never comes has an end, too.
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(begin.elapsed() < Duration::from_secs(40));
}

#[test]
fn a_register_that_grows_is_read_again_and_one_that_was_rewritten_is_not() {
    let running = running(None);
    let path = running.folder.path().join("register");
    let write = |register: &Register, by: u8| std::fs::write(&path, to_text(register, &key(by))).unwrap();
    let chip = Chip::with(11, 1).log.remove(0);
    running.refused(&chip.encode(), 403, "unknown_chip");
    // Another registrar's, and one without the first entries: both stay out.
    write(&register(12), 51);
    thread::sleep(Duration::from_secs(3));
    running.refused(&chip.encode(), 403, "unknown_chip");
    let mut rewritten = Register::new("made").unwrap();
    register(12).entries()[1..].iter().for_each(|entry| rewritten.append(entry.clone()).unwrap());
    write(&rewritten, 50);
    thread::sleep(Duration::from_secs(3));
    running.refused(&chip.encode(), 403, "unknown_chip");
    write(&register(12), 50);
    let begin = Instant::now();
    while running.send("record", &chip.encode()).0 != 200 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(100));
    }
    running.kept(&Chip::with(1, 1).log[0]);
}

//! The dispute game between machines: HTTP and folders, journals, crashes, and clients that mean no good. A toy game is enough to show it.

#![cfg(feature = "net")]

#[cfg(all(feature = "cli", unix))]
mod commands;
#[cfg(all(feature = "cli", unix))]
#[path = "../common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tiebreak::commit::digest::{Digest, hash};
use tiebreak::commit::keys::{PrivateKey, PublicKey};
use tiebreak::commit::proven::Base64;
use tiebreak::dispute::game::message::{Answer, Answered, Asked, Question, Sealed};
use tiebreak::dispute::game::moves::QUESTION_MAX;
use tiebreak::dispute::game::referee::Ask;
use tiebreak::net::desk::{Desk, Refused, Respond};
use tiebreak::net::folder::{Answers, Questions, answer_path, question_path};
use tiebreak::net::journal::{Entry, Journal};
use tiebreak::net::link::{Asking, Link};
use tiebreak::net::referee::{Machine, Said, play};
use tiebreak::net::server::{Server, ServerLimits};
use tiebreak::run::disk::Disk;

const GAME: Digest = Digest([5; 32]);
const TURNS: u32 = 3;
/// Milliseconds of a move, where nobody is late.
const LONG: u64 = 60_000;

fn key(name: &str) -> PrivateKey {
    PrivateKey::generate(name, hash("tiebreak 2 test key", name.as_bytes()).0).unwrap()
}

fn party_key(party: usize) -> PrivateKey {
    key(["one", "two"][party])
}

fn asked(turn: u32) -> Asked {
    Asked::new(GAME, turn, Question::Commit)
}

fn sealed(turn: u32) -> Vec<u8> {
    Sealed::new(asked(turn), &key("referee")).to_bytes()
}

/// Asks both parties the same for some turns; who does not answer in time, or not well, has lost.
#[derive(Default)]
struct Toy {
    turn: u32,
    began: u64,
    time: u64,
    answered: Vec<usize>,
    messages: Vec<(usize, Vec<u8>)>,
    lost: Vec<(usize, &'static str)>,
}

impl Machine for Toy {
    fn start(&mut self, now: u64) {
        self.began = now;
    }
    fn receive(&mut self, party: usize, bytes: &[u8], now: u64) {
        assert!(now >= self.began);
        self.messages.push((party, bytes.to_vec()));
        let key: PublicKey = party_key(party).public();
        match Sealed::<Answered>::from_bytes(bytes, 4096, &key) {
            Ok(answer) => assert_eq!(answer.body.question, asked(self.turn).digest()),
            Err(_) => self.lost.push((party, "garbage")),
        }
        self.answered.push(party);
        if self.answered.len() == 2 {
            (self.turn, self.began, self.answered) = (self.turn + 1, now, Vec::new());
        }
    }
    fn tick(&mut self, now: u64) {
        assert!(now > self.began + self.time);
        self.lost
            .extend((0..2).filter(|party| !self.answered.contains(party)).map(|party| (party, "timeout")));
    }
    fn pending(&self) -> Vec<Ask> {
        let waiting = (0..2).filter(|party| !self.answered.contains(party));
        let deadline = self.began + self.time;
        waiting.map(|party| Ask { party, asked: asked(self.turn), deadline, limit: 4096 }).collect()
    }
    fn ended(&self) -> bool {
        self.turn == TURNS || !self.lost.is_empty()
    }
    fn progress(&self) -> String {
        format!("turn {}", self.turn)
    }
}

impl Toy {
    fn new(time: u64) -> Toy {
        Toy { time, ..Toy::default() }
    }
    /// The messages of each turn, by party: two parties answer in any order.
    fn transcript(mut self) -> Vec<(usize, Vec<u8>)> {
        assert_eq!((self.turn, &self.lost), (TURNS, &vec![]));
        self.messages.chunks_mut(2).for_each(|turn| turn.sort());
        self.messages
    }
}

/// What answers as a party, after a while.
struct Fake {
    party: usize,
    takes: Duration,
    answers: Arc<AtomicU32>,
}

impl Respond for Fake {
    fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
        self.answers.fetch_add(1, Ordering::Relaxed);
        thread::sleep(self.takes);
        let asked = Sealed::<Asked>::from_bytes(sealed, 4096, &key("referee").public()).unwrap().body;
        let commitment = hash("tiebreak 2 test answer", &[self.party as u8, asked.turn as u8]);
        let (game, turn, question) = (asked.game, asked.turn, asked.digest());
        let answer = Answered { game, turn, question, answer: Answer::Commit { commitment } };
        Ok(Sealed::new(answer, &party_key(self.party)).to_bytes())
    }
}

/// A party that runs.
struct Party {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    server: Option<Server>,
    answers: Arc<AtomicU32>,
}

impl Party {
    fn begin(party: usize, takes: Duration) -> Party {
        let desk = Arc::new(Desk::new(GAME, key("referee").public()));
        let answers = Arc::new(AtomicU32::new(0));
        let mut fake = Fake { party, takes, answers: answers.clone() };
        let worker = {
            let desk = desk.clone();
            thread::spawn(move || desk.work(&mut fake))
        };
        Party { desk, threads: vec![worker], server: None, answers }
    }
    fn http(party: usize, listen: &str, limits: ServerLimits) -> Party {
        let mut party = Party::begin(party, Duration::ZERO);
        party.server = Some(Server::start(listen, party.desk.clone(), limits).unwrap());
        party
    }
    fn folder(party: usize, folder: &Path) -> Party {
        let mut party = Party::begin(party, Duration::ZERO);
        let (desk, mut answers) = (party.desk.clone(), Answers::new(folder).unwrap());
        party.threads.push(thread::spawn(move || answers.serve(&desk)));
        party
    }
    fn address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().address()
    }
    fn link(&self) -> Link {
        Link::new(&format!("http://{}", self.address()), &GAME).unwrap()
    }
    fn end(self) {
        self.desk.close();
        self.server.into_iter().for_each(Server::stop);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn quick() -> ServerLimits {
    let ms = Duration::from_millis;
    ServerLimits { requests_per_second: 1000, read: ms(300), answer: ms(200), ..ServerLimits::default() }
}

fn any() -> &'static str {
    "127.0.0.1:0"
}

/// Plays a new game.
fn played(links: Vec<Link>, journal: &Path, time: u64, say: impl FnMut(Said)) -> Toy {
    let mut toy = Toy::new(time);
    let journal = Journal::open(journal, &GAME, Disk::default()).unwrap();
    play(&mut toy, journal, links, &key("referee"), say).unwrap();
    toy
}

#[test]
fn http_and_folders_give_one_transcript_also_if_a_party_is_killed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let folders = ["a", "b"].map(|name| dir.path().join(name));
    let parties = [0, 1].map(|party| Party::folder(party, &folders[party]));
    let links = folders.iter().map(|folder| Link::new(folder.to_str().unwrap(), &GAME).unwrap()).collect();
    let by_files = played(links, &dir.path().join("files"), LONG, |_| {}).transcript();
    parties.into_iter().for_each(Party::end);
    assert!(question_path(&folders[0], 2).exists() && answer_path(&folders[1], 2).exists());

    let parties = [0, 1].map(|party| Party::http(party, any(), quick()));
    let links = parties.iter().map(Party::link).collect();
    let mut turns = 0;
    let over_http = played(links, &dir.path().join("http"), LONG, |_| turns += 1).transcript();
    assert_eq!(by_files, over_http);
    assert!(turns > TURNS, "{turns}");

    // Party 1 ends after the first turn, and is back while the referee asks for the second.
    let links = parties.iter().map(Party::link).collect();
    let [stays, goes] = parties;
    let (address, mut goes, mut back) = (goes.address(), Some(goes), None);
    let mut troubles = 0;
    let again = played(links, &dir.path().join("killed"), LONG, |said| match said {
        Said::Progress(line) if line == "turn 1" => {
            goes.take().unwrap().end();
            back = Some(thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                Party::http(1, &address.to_string(), quick())
            }));
        }
        Said::Trouble { party, why } => {
            assert!(party == 1 && why.contains("/v1/answer"), "{why}");
            troubles += 1;
        }
        Said::Progress(_) => {}
    });
    assert_eq!(again.transcript(), over_http);
    assert!(troubles > 0);
    stays.end();
    back.unwrap().join().unwrap().end();
}

#[test]
fn a_referee_that_is_killed_anywhere_resumes_to_the_same_result() {
    let dir = tempfile::tempdir().unwrap();
    let parties = [0, 1].map(|party| Party::http(party, any(), quick()));
    let links = || parties.iter().map(Party::link).collect::<Vec<_>>();
    let whole = played(links(), &dir.path().join("whole"), LONG, |_| {}).transcript();
    let mut killed = 0;
    for operations in 0.. {
        let path = dir.path().join(format!("journal-{operations}"));
        let first = Journal::open(&path, &GAME, Disk::failing_after(operations))
            .and_then(|journal| play(&mut Toy::new(LONG), journal, links(), &key("referee"), |_| {}));
        let resumed = played(links(), &path, LONG, |_| {});
        assert_eq!(resumed.transcript(), whole, "killed at operation {operations}");
        // A game that has ended asks nobody.
        assert_eq!(played(Vec::new(), &path, LONG, |_| {}).transcript(), whole);
        if first.is_ok() {
            break;
        }
        killed += 1;
    }
    // Each entry is written and synced: a start and the answers.
    assert!(killed >= 2 * (1 + 2 * TURNS), "{killed}");
    parties.into_iter().for_each(Party::end);
}

#[test]
fn who_does_not_answer_in_time_is_told_so_by_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let honest = Party::http(0, any(), quick());
    let nobody = Link::new("http://127.0.0.1:9", &GAME).unwrap();
    let begin = Instant::now();
    let path = dir.path().join("journal");
    let toy = played(vec![honest.link(), nobody], &path, 300, |_| {});
    assert_eq!(toy.lost, [(1, "timeout")]);
    assert!(begin.elapsed() < Duration::from_secs(5));
    // The journal alone gives the same result.
    let (_, entries) = Journal::open(&path, &GAME, Disk::default()).unwrap();
    assert!(
        matches!(entries.as_slice(), [Entry::Start { .. }, Entry::Message { party: 0, .. }, Entry::Tick { at }] if *at > 300)
    );
    assert_eq!(played(Vec::new(), &path, 300, |_| {}).lost, [(1, "timeout")]);
    honest.end();
}

#[test]
fn a_long_answer_is_computed_once_however_often_it_is_asked_for() {
    let mut party = Party::begin(0, Duration::from_millis(700));
    party.server = Some(Server::start(any(), party.desk.clone(), quick()).unwrap());
    assert!(request(&party, &post(&sealed(0))).starts_with("HTTP/1.1 503 "));
    let asking =
        Asking { turn: 0, sealed: sealed(0), limit: 4096, until: Instant::now() + Duration::from_secs(20) };
    let answer = party.link().ask(&asking, &AtomicBool::new(false), &|why| panic!("{why}")).unwrap();
    assert!(Sealed::<Answered>::from_bytes(&answer, 4096, &party_key(0).public()).is_ok());
    assert_eq!(party.answers.load(Ordering::Relaxed), 1);
    // An answer is read no further than it may be long.
    let asking = Asking { limit: 10, ..asking };
    assert_eq!(party.link().ask(&asking, &AtomicBool::new(false), &|_| {}).unwrap().len(), 11);
    party.end();
}

/// Sends bytes and reads what comes back.
fn request(party: &Party, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(party.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may have answered and gone before all is sent.
    let _ = stream.write_all(bytes);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn post(body: &[u8]) -> Vec<u8> {
    let head = format!("POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn hostile_clients_get_an_error_and_no_work() {
    let party = Party::http(0, any(), quick());
    let status = |bytes: &[u8]| request(&party, bytes).get(9..12).unwrap_or("none").to_string();
    let other_game = Asked { game: Digest([6; 32]), ..asked(0) };
    let foreign = |asked: Asked, name: &str| post(&Sealed::new(asked, &key(name)).to_bytes());
    let unsigned = Sealed { body: asked(0), signature: Base64(vec![0; 64]) }.to_bytes();
    let spaced = String::from_utf8(sealed(0)).unwrap().replace(':', ": ");
    for (bytes, wanted) in [
        (post(&vec![b'x'; QUESTION_MAX as usize + 1]), "413"),
        (post(b"no question"), "400"),
        (post(b""), "400"),
        (post(&[0xff; 100]), "400"),
        (post(&unsigned), "403"),
        (foreign(asked(0), "two"), "403"),
        (foreign(other_game, "referee"), "403"),
        (post(spaced.as_bytes()), "403"),
        (b"GET /v1/answer HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), "405"),
        (b"GET /../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(), "404"),
        (b"\x16\x03\x01 no HTTP\r\n\r\n".to_vec(), "400"),
        (b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000000\r\n\r\n".to_vec(), "413"),
        (
            b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n".to_vec(),
            "408",
        ),
        // A body that never comes, and headers that never end.
        (b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{".to_vec(), "408"),
        (b"POST /v1/answer HTTP/1.1\r\nhost".to_vec(), "none"),
    ] {
        let found = status(&bytes);
        assert_eq!(found, wanted, "{}", String::from_utf8_lossy(&bytes[..bytes.len().min(100)]));
    }
    let chunked = |size: usize| {
        let chunk = format!("{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size));
        format!("POST /v1/answer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{chunk}")
    };
    assert_eq!(status(chunked(QUESTION_MAX as usize + 1).as_bytes()), "413");
    assert_eq!(party.answers.load(Ordering::Relaxed), 0);
    // Who is there with a question is answered all the same.
    assert_eq!(status(&post(&sealed(0))), "200");
    assert!(request(&party, b"GET /v1/game HTTP/1.1\r\nhost: x\r\n\r\n").ends_with(&format!("{GAME}\n")));
    party.end();

    let party = Party::http(0, any(), ServerLimits { requests_per_second: 2, ..quick() });
    let health = |_| request(&party, b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n");
    let refused: Vec<String> = (0..8).map(health).filter(|text| text.starts_with("HTTP/1.1 429")).collect();
    assert!(refused.len() >= 3 && refused[0].contains("retry-after: 1"), "{refused:?}");
    // Connections that say nothing end, and the server does.
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(party.address()).unwrap()).collect();
    thread::sleep(Duration::from_millis(700));
    assert!(request(&party, b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
    silent.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    party.end();
}

#[test]
fn a_journal_ends_where_it_was_torn_and_is_refused_where_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let open = || Journal::open(&path, &GAME, Disk::default());
    let entries = [
        Entry::Start { at: 0 },
        Entry::Message { at: 3, party: 1, bytes: Base64(vec![0xff; 20]) },
        Entry::Tick { at: 9 },
    ];
    let (mut journal, there) = open().unwrap();
    assert_eq!(there, []);
    assert!(open().err().unwrap().to_string().contains("another referee"));
    entries.iter().for_each(|entry| journal.append(entry).unwrap());
    drop(journal);
    let whole = std::fs::read(&path).unwrap();
    let mut seen = Vec::new();
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (mut journal, there) = open().unwrap();
        assert_eq!(there, entries[..there.len()]);
        seen.push(there.len());
        // It goes on from there.
        if let Some(next) = entries.get(there.len()) {
            journal.append(next).unwrap();
            drop(journal);
            assert_eq!(open().unwrap().1, entries[..=there.len()]);
        }
    }
    assert!(seen.is_sorted() && seen.first() == Some(&0) && seen.last() == Some(&3), "{seen:?}");

    let text = String::from_utf8(whole).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let without_start = format!("{}\n{}\n", lines[0], lines[2]);
    let twice = format!("{text}{}\n", lines[1]);
    for (damaged, why) in [
        (text.replacen("\"at\":9", "\"at\":1", 1), "line 4: time"),
        (text.replacen("tick", "tock", 1), "line 4: unknown variant"),
        (without_start, "line 2: a game starts"),
        (twice, "line 5: a game starts"),
        (text.replacen("\"format\":1", "\"format\":2", 1), "format 2"),
        (text.replacen("0505", "0606", 1), "it is the journal of game 0606"),
        ("\u{0}\n".into(), "line 1"),
    ] {
        std::fs::write(&path, &damaged).unwrap();
        let error = open().err().unwrap().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_folder_is_of_one_game_and_an_answer_counts_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let questions = Questions::new(dir.path(), &GAME).unwrap();
    questions.put(4, &sealed(4)).unwrap();
    questions.put(4, &sealed(4)).unwrap();
    assert!(questions.put(4, &sealed(5)).is_err());
    assert!(Questions::new(dir.path(), &GAME).is_ok());
    assert!(Questions::new(dir.path(), &Digest([6; 32])).is_err());

    assert_eq!(questions.answer(4, 100, true).unwrap(), None);
    std::fs::write(answer_path(dir.path(), 4), b"{\"body\":").unwrap();
    assert_eq!(questions.answer(4, 100, false).unwrap(), None);
    assert_eq!(questions.answer(4, 100, true).unwrap().unwrap(), b"{\"body\":");
    assert_eq!(questions.answer(4, 3, false).unwrap().unwrap(), b"{\"bo");
    std::fs::write(answer_path(dir.path(), 4), b"{}").unwrap();
    assert_eq!(questions.answer(4, 100, false).unwrap().unwrap(), b"{}");
    std::fs::write(answer_path(dir.path(), 5), b"{}").unwrap();
    let error = Questions::new(dir.path(), &GAME).err().unwrap().to_string();
    assert!(error.contains("answer-0005.json is not of this game"), "{error}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hostname", answer_path(dir.path(), 6)).unwrap();
        assert!(questions.answer(6, 100, true).is_err());
    }
    for place in ["https://party.example", "ftp://x", "http://", "http://:80"] {
        assert!(Link::new(place, &GAME).is_err(), "{place}");
    }
}

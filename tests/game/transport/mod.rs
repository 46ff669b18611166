//! The dispute game between machines: HTTP and folders, journals, crashes, and hostile clients. A toy game is enough for these
//! tests.

#[cfg(unix)]
mod again;
#[cfg(unix)]
mod commands;
#[cfg(unix)]
mod horde;
mod hostile;
mod predictions;
mod receipts;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tiebreak_dispute::game::message::{Answer, Answered, Asked, Question, Sealed};
use tiebreak_dispute::game::referee::Ask;
use tiebreak_dispute::game::tried::{End, Tried};
use tiebreak_game::net::clock::Clock;
use tiebreak_game::net::desk::{Desk, Refused, Respond};
use tiebreak_game::net::folder::{Answers, Questions, answer_path, question_path};
use tiebreak_game::net::journal::{Entry, Journal};
use tiebreak_game::net::link::{Asking, Link, Met};
use tiebreak_game::net::referee::{Machine, Said, play};
use tiebreak_game::net::server::{Server, ServerLimits};
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::proven::Base64;
use tiebreak_run::run::disk::Disk;

const GAME: Digest = Digest([5; 32]);
const TURNS: u32 = 3;
/// Milliseconds of a move, when nobody is late.
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

/// Asks both parties the same question for some turns; a party that does not answer in time, or answers wrongly, has lost.
#[derive(Default)]
struct Toy {
    turn: u32,
    began: u64,
    time: u64,
    answered: Vec<usize>,
    messages: Vec<(usize, Vec<u8>)>,
    lost: Vec<(usize, &'static str)>,
    tried: Vec<Tried>,
}

impl Machine for Toy {
    fn start(&mut self, now: u64) {
        self.began = now;
    }
    fn receive(&mut self, party: usize, bytes: &[u8], now: u64) {
        assert!(now >= self.began);
        // An answer of an earlier turn is skipped, as the referee does.
        if Sealed::<Answered>::from_bytes(bytes, 4096, &party_key(party).public())
            .is_ok_and(|answer| answer.body.turn < self.turn)
        {
            return;
        }
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
    fn tick(&mut self, now: u64, tried: &[Tried]) {
        assert!(now > self.began + self.time);
        self.tried = tried.to_vec();
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

/// Answers as a party, after a delay.
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

fn journal_folder() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

/// The referee's link to a party.
fn link(place: &str, party: usize) -> Link {
    Link::new(place, &GAME, &key("referee"), &party_key(party).public()).unwrap()
}

/// A running party.
struct Party {
    /// The party's number.
    place: usize,
    /// The folder of its journal.
    folder: Arc<TempDir>,
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    server: Option<Server>,
    answers: Arc<AtomicU32>,
}

impl Party {
    fn begin(party: usize, takes: Duration, folder: Arc<TempDir>) -> Party {
        let journal = folder.path().join("answers");
        let desk = Desk::open(GAME, &party_key(party), key("referee").public(), &journal, Disk::default());
        let desk = Arc::new(desk.unwrap());
        let answers = Arc::new(AtomicU32::new(0));
        let mut fake = Fake { party, takes, answers: answers.clone() };
        let worker = {
            let desk = desk.clone();
            thread::spawn(move || desk.work(&mut fake))
        };
        Party { place: party, folder, desk, threads: vec![worker], server: None, answers }
    }
    fn http(party: usize, listen: &str, limits: ServerLimits) -> Party {
        Party::again(party, listen, limits, journal_folder())
    }
    /// A party whose journal exists already.
    fn again(party: usize, listen: &str, limits: ServerLimits, folder: Arc<TempDir>) -> Party {
        let mut party = Party::begin(party, Duration::ZERO, folder);
        party.server = Some(Server::start(listen, party.desk.clone(), limits).unwrap());
        party
    }
    fn folder(party: usize, folder: &Path) -> Party {
        let mut party = Party::begin(party, Duration::ZERO, journal_folder());
        let (desk, mut answers) = (party.desk.clone(), Answers::new(folder).unwrap());
        party.threads.push(thread::spawn(move || answers.serve(&desk)));
        party
    }
    fn address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().address()
    }
    fn link(&self) -> Link {
        link(&format!("http://{}", self.address()), self.place)
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
    let (journal, before) = Journal::open(journal, &GAME, Disk::default()).unwrap();
    play(&mut toy, journal, before, links, &key("referee"), say).unwrap();
    toy
}

#[test]
fn http_and_folders_give_one_transcript_also_if_a_party_is_killed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let folders = ["a", "b"].map(|name| dir.path().join(name));
    let parties = [0, 1].map(|party| Party::folder(party, &folders[party]));
    let links = [0, 1].map(|party| link(folders[party].to_str().unwrap(), party)).into();
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
    let (address, journal) = (goes.address(), goes.folder.clone());
    let (mut goes, mut back) = (Some(goes), None);
    let mut troubles = 0;
    let again = played(links, &dir.path().join("killed"), LONG, |said| match said {
        Said::Progress(line) if line == "turn 1" => {
            goes.take().unwrap().end();
            let journal = journal.clone();
            back = Some(thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                Party::again(1, &address.to_string(), quick(), journal)
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
        let first =
            Journal::open(&path, &GAME, Disk::failing_after(operations)).and_then(|(journal, before)| {
                play(&mut Toy::new(LONG), journal, before, links(), &key("referee"), |_| {})
            });
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
    let nobody = link("http://127.0.0.1:9", 1);
    let begin = Instant::now();
    let path = dir.path().join("journal");
    let toy = played(vec![honest.link(), nobody], &path, 300, |_| {});
    assert_eq!(toy.lost, [(1, "timeout")]);
    let [Tried { party: 1, ends }] = toy.tried.as_slice() else { panic!("{:?}", toy.tried) };
    assert!(matches!(ends.as_slice(), [(End::NoConnection, 2..)]), "{ends:?}");
    assert!(begin.elapsed() < Duration::from_secs(5));
    // The journal alone gives the same result.
    let (_, entries) = Journal::open(&path, &GAME, Disk::default()).unwrap();
    assert!(
        matches!(entries.as_slice(), [Entry::Start { .. }, Entry::Message { party: 0, .. }, Entry::Tick { at, tried }] if *at > 300 && *tried == toy.tried)
    );
    assert_eq!(played(Vec::new(), &path, 300, |_| {}).lost, [(1, "timeout")]);
    honest.end();
}

#[test]
fn a_long_answer_is_computed_once_however_often_it_is_asked_for() {
    let mut party = Party::begin(0, Duration::from_millis(700), journal_folder());
    party.server = Some(Server::start(any(), party.desk.clone(), quick()).unwrap());
    assert!(request(&party, &post(&sealed(0))).starts_with("HTTP/1.1 503 "));
    let computing = |met| assert!(matches!(met, Met::Tried { end: End::Status(503), why: None }));
    let answer = party.link().ask(&asking(0, 4096), &AtomicBool::new(false), &computing).unwrap();
    assert!(Sealed::<Answered>::from_bytes(&answer, 4096, &party_key(0).public()).is_ok());
    assert_eq!(party.answers.load(Ordering::Relaxed), 1);
    // No more of an answer is read than it may be long, and it is requested until the time is up.
    let (begin, met) = (Instant::now(), Mutex::new(Vec::new()));
    let over = AtomicBool::new(false);
    let cut = party.link().ask(&asking(0, 10), &over, &|one| {
        met.lock().unwrap().push(one);
        over.store(begin.elapsed() > Duration::from_secs(1), Ordering::Relaxed);
    });
    assert!(cut.is_none());
    let met = met.into_inner().unwrap();
    assert!(met.len() > 2 && met.iter().all(|met| matches!(met, Met::Tried { end: End::TooLong, .. })));
    party.end();
}

/// A question of a turn that is being asked, with a clock that stands still.
fn asking(turn: u32, limit: u64) -> Asking {
    let question = asked(turn).digest();
    Asking { turn, question, sealed: sealed(turn), limit, deadline: LONG, clock: Arc::new(Clock::at(0)) }
}

/// Sends bytes and reads the response.
fn request(party: &Party, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(party.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may have answered and closed the connection before all is sent.
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
fn a_journal_ends_where_it_was_torn_and_is_refused_where_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let open = || Journal::open(&path, &GAME, Disk::default());
    let entries = [
        Entry::Start { at: 0 },
        Entry::Message { at: 3, party: 1, bytes: Base64(vec![0xff; 20]) },
        Entry::Tick { at: 9, tried: Vec::new() },
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
        // The referee continues from there.
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
        (text.replacen("\"at\":9", "\"at\":1", 1), "line 4: its time is 1 ms"),
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
fn a_folder_is_of_one_game_and_questions_in_it_are_the_referees() {
    let dir = tempfile::tempdir().unwrap();
    let questions = Questions::new(dir.path(), &GAME).unwrap();
    questions.put(4, &sealed(4)).unwrap();
    questions.put(4, &sealed(4)).unwrap();
    assert_eq!(std::fs::read(question_path(dir.path(), 4)).unwrap(), sealed(4));
    assert!(Questions::new(dir.path(), &GAME).is_ok());
    assert!(Questions::new(dir.path(), &Digest([6; 32])).is_err());
    // A question that is cut off or somebody else's is written again.
    for other in [&sealed(4)[..50], b"", b"{}", &sealed(5)] {
        std::fs::write(question_path(dir.path(), 4), other).unwrap();
        assert!(Questions::new(dir.path(), &GAME).is_ok());
        questions.put(4, &sealed(4)).unwrap();
        assert_eq!(std::fs::read(question_path(dir.path(), 4)).unwrap(), sealed(4));
    }

    assert_eq!(questions.answer(4, 100).unwrap(), None);
    std::fs::write(answer_path(dir.path(), 4), b"{\"body\":").unwrap();
    assert_eq!(questions.answer(4, 100).unwrap().unwrap(), b"{\"body\":");
    assert_eq!(questions.answer(4, 3).unwrap().unwrap(), b"{\"bo");
    std::fs::write(answer_path(dir.path(), 5), b"{}").unwrap();
    let error = Questions::new(dir.path(), &GAME).err().unwrap().to_string();
    assert!(error.contains("answer-0005.json is not of this game"), "{error}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hostname", answer_path(dir.path(), 6)).unwrap();
        assert!(questions.answer(6, 100).is_err());
    }
    for place in ["https://party.example", "ftp://x", "http://", "http://:80"] {
        assert!(Link::new(place, &GAME, &key("referee"), &party_key(0).public()).is_err(), "{place}");
    }
}

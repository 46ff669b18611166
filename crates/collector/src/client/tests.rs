//! The chip's side against collectors that lose answers, lie, are down, or belong to somebody else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tiebreak_monitor::chip::keeper::{Keeper, KeeperError, LogFile};
use tiebreak_monitor::snapshot::record::{Event, SignedRecord};
use tiebreak_record::commit::digest::Digest;

use super::{Remote, Settings, Word};
use crate::both::Both;
use crate::made::{Chip, key, serial};
use crate::message::{Kept, Last, Refused, record};

/// The key of the collectors here.
const COLLECTOR: u8 = 99;

/// One request: its path, and its body.
struct Asked {
    path: String,
    body: Vec<u8>,
}

/// A status and a body; nothing for a connection that ends without an answer.
type Answer = Option<(u16, String)>;

/// Serves one request a connection; `answer` is asked with the number of the request.
fn served(mut answer: impl FnMut(usize, &Asked) -> Answer + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let asked = asked(&stream);
            if let Some((status, body)) = answer(number, &asked) {
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        }
    });
    address
}

fn asked(stream: &TcpStream) -> Asked {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap().to_string();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Asked { path, body }
}

fn json(message: &impl serde::Serialize) -> String {
    serde_json::to_string(message).unwrap()
}

/// An honest collector's answer to a request, with the records that it has.
fn honest(log: &Arc<Mutex<Vec<SignedRecord>>>, asked: &Asked) -> Answer {
    let mut log = log.lock().unwrap();
    if let Some(rest) = asked.path.strip_prefix("/last/") {
        let (serial, nonce) = rest.split_once('/').unwrap();
        let serial = serial.parse().unwrap();
        return Some((200, json(&Last::sign(&nonce.parse().unwrap(), &serial, log.last(), &key(COLLECTOR)))));
    }
    assert_eq!(asked.path, "/record");
    let signed = record(&asked.body).unwrap();
    if signed.record.counter == log.len() as u64 {
        log.push(signed.clone());
    }
    match log.get(signed.record.counter as usize) {
        Some(kept) if *kept == signed => Some((200, json(&Kept::sign(&signed, &key(COLLECTOR))))),
        _ => Some((409, json(&Refused::new("gap", "other records are here")))),
    }
}

/// A collector's answer that is not true.
type Lie = Box<dyn Fn(&Asked) -> String + Send>;

struct Made {
    remote: Remote,
    words: Arc<Mutex<Vec<Word>>>,
    stopped: Arc<AtomicBool>,
}

fn remote(url: &str, hold: Option<u64>) -> Made {
    let (words, stopped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let settings = Settings {
        url: url.into(),
        key: key(COLLECTOR).public(),
        hold: hold.map(Duration::from_secs),
        stopped: stopped.clone(),
    };
    let heard = words.clone();
    let remote = Remote::new(settings, move |word| heard.lock().unwrap().push(word.clone())).unwrap();
    Made { remote, words, stopped }
}

fn error(done: Result<(), KeeperError>) -> String {
    done.unwrap_err().to_string()
}

#[test]
fn a_record_whose_answer_is_lost_is_sent_again_and_is_there_once() {
    let (log, heard) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (kept, bodies) = (log.clone(), heard.clone());
    let url = served(move |number, asked| {
        bodies.lock().unwrap().push(asked.body.clone());
        let answer = honest(&kept, asked);
        // The first two requests change the log, and nobody hears of it; the third finds a proxy that has no collector.
        match number {
            0 | 1 => None,
            2 => Some((502, "<html>".into())),
            _ => answer,
        }
    });
    let mut made = remote(&url, None);
    let chip = Chip::with(1, 2);
    made.remote.append(&chip.log[0]).unwrap();
    made.remote.append(&chip.log[1]).unwrap();
    assert_eq!(*log.lock().unwrap(), chip.log);
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 5);
    assert!(heard[..4].iter().all(|body| *body == chip.log[0].encode()));
    let words = made.words.lock().unwrap();
    assert!(matches!(&words[..], [Word::Waits(0, _), Word::GoesOn(_)]), "{words:?}");
}

#[test]
fn an_acknowledgement_that_the_collector_did_not_sign_for_this_record_counts_for_nothing() {
    let chip = Chip::with(1, 2);
    let (first, second) = (chip.log[0].clone(), chip.log[1].clone());
    let right = Kept::sign(&first, &key(COLLECTOR));
    for (status, body, says) in [
        (200, json(&Kept::sign(&first, &key(5))), "not signed by the collector's key, made.example"),
        (200, json(&Kept::sign(&second, &key(COLLECTOR))), "it is of record 1 with the link"),
        (
            200,
            json(&right).replace(&first.link().to_string(), &second.link().to_string()),
            "it is of record 0",
        ),
        (200, json(&Kept { kept: 1, ..right.clone() }), "it is of record 1"),
        (200, json(&right).replace("==", ""), "not signed by"),
        (200, json(&right).replacen('{', "{\"more\":1,", 1), "unknown field"),
        (200, String::new(), "answer"),
        (200, "[".repeat(4000), "answer"),
        (409, json(&Refused::new("fork", "two records")), "the collector refuses: two records (fork)"),
        (403, "who\u{1b}[2J?".into(), "status 403: \"who\\u{1b}[2J?\""),
    ] {
        let url = served(move |_, _| Some((status, body.clone())));
        let made = error(remote(&url, Some(60)).remote.append(&chip.log[0]));
        assert!(made.contains(says), "{made}");
    }
    let url = served(|_, _| Some((200, "x".repeat(5000))));
    let made = error(remote(&url, Some(1)).remote.append(&chip.log[0]));
    assert!(made.contains("the answer has more than 4096 bytes; the limit of 1 s is over"), "{made}");
}

#[test]
fn a_collector_that_is_down_holds_the_chip_until_the_limit_or_a_stop() {
    let chip = Chip::with(1, 1);
    let begin = Instant::now();
    let made = error(remote("http://127.0.0.1:1", Some(1)).remote.append(&chip.log[0]));
    assert!(
        made.contains("did not acknowledge: http://127.0.0.1:1: ") && made.contains("1 s is over"),
        "{made}"
    );
    assert!(begin.elapsed() >= Duration::from_secs(1));
    let mut waiting = remote("http://127.0.0.1:1", None);
    let (stopped, words) = (waiting.stopped.clone(), waiting.words.clone());
    let thread = thread::spawn(move || error(waiting.remote.append(&Chip::with(1, 1).log[0])));
    while words.lock().unwrap().is_empty() {
        thread::sleep(Duration::from_millis(5));
    }
    stopped.store(true, Relaxed);
    assert!(thread.join().unwrap().contains("the agent was asked to stop"));
    let settings =
        |url: &str| Settings { url: url.into(), key: key(1).public(), hold: None, stopped: Arc::default() };
    assert!(Remote::new(settings("https://there"), |_| {}).is_err());
}

#[test]
fn a_restart_goes_on_behind_the_last_record_if_the_collector_says_so_now() {
    let chip = Chip::with(1, 3);
    let log = Arc::new(Mutex::new(chip.log.clone()));
    let kept = log.clone();
    let url = served(move |_, asked| honest(&kept, asked));
    let resumed = remote(&url, None).remote.resume(&serial(1), &key(1).public()).unwrap();
    assert_eq!((resumed.chain.next(), resumed.chain.link(), resumed.torn), (3, chip.log[2].link(), 0));
    assert_eq!(resumed.chain.time(), chip.log[2].record.time);
    log.lock().unwrap().clear();
    let resumed = remote(&url, None).remote.resume(&serial(1), &key(1).public()).unwrap();
    assert_eq!(resumed.chain.next(), 0);
    // An answer to another question, of another chip, with another number, or by somebody else.
    let nonce = Digest([1; 32]);
    let right = move |asked: &Asked, record: &SignedRecord, by: u8| {
        let nonce = asked.path.rsplit('/').next().unwrap().parse().unwrap();
        Last::sign(&nonce, &serial(1), Some(record), &key(by))
    };
    let (last, other) = (chip.log[2].clone(), Chip::with(2, 3).log.remove(2));
    let lies: Vec<(Lie, &str)> = vec![
        (
            Box::new({
                let last = last.clone();
                move |_| json(&Last::sign(&nonce, &serial(1), Some(&last), &key(COLLECTOR)))
            }),
            "not signed by",
        ),
        (
            Box::new({
                let last = last.clone();
                move |asked| json(&right(asked, &last, 5))
            }),
            "not signed by",
        ),
        (
            Box::new({
                let last = last.clone();
                move |asked| json(&Last { records: 2, ..right(asked, &last, COLLECTOR) })
            }),
            "its last of 2 records of chip chip-1 is record 2 of chip chip-1",
        ),
        (Box::new(move |asked| json(&right(asked, &other, COLLECTOR))), "is record 2 of chip chip-2"),
        (
            Box::new({
                let last = last.clone();
                move |asked| {
                    json(&Last { record: String::new(), records: 0, ..right(asked, &last, COLLECTOR) })
                }
            }),
            "not signed by",
        ),
        (
            Box::new(move |asked| json(&Last { record: "!".into(), ..right(asked, &last, COLLECTOR) })),
            "its record",
        ),
    ];
    for (lie, says) in lies {
        let url = served(move |_, asked| Some((200, lie(asked))));
        let error = remote(&url, Some(60)).remote.resume(&serial(1), &key(1).public()).err().unwrap();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_chip_with_a_log_of_its_own_finds_out_what_the_collector_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chip.log");
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = log.clone();
    let url = served(move |_, asked| honest(&kept, asked));
    let both = || Both::new(LogFile::open(&path).unwrap(), remote(&url, Some(60)).remote);
    let (who, public) = (serial(1), key(1).public());
    let mut chip = Chip::with(1, 3);
    {
        let mut keeper = both();
        assert_eq!(keeper.resume(&who, &public).unwrap().chain.next(), 0);
        chip.log.iter().for_each(|signed| keeper.append(signed).unwrap());
    }
    assert_eq!(*log.lock().unwrap(), chip.log);
    assert_eq!(std::fs::read(&path).unwrap(), chip.bytes());
    // Records that the collector lost are sent again, and a record that was never sent is sent.
    log.lock().unwrap().truncate(1);
    chip.write(Event::Begin);
    std::fs::write(&path, [&chip.bytes()[..], &[1, 2, 3]].concat()).unwrap();
    let resumed = both().resume(&who, &public).unwrap();
    assert_eq!((resumed.chain.next(), resumed.torn), (4, 3));
    assert_eq!(*log.lock().unwrap(), chip.log);
    // A chip's own log that lost records, or is another one, ends the agent.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..2 * 244]).unwrap();
    let error = both().resume(&who, &public).err().unwrap().to_string();
    assert!(error.contains("it has 4 records of this chip, and the chip's own log has 2"), "{error}");
    let mut other = Chip::with(1, 3);
    other.write(Event::Idle);
    other.write(Event::Idle);
    std::fs::write(&path, other.bytes()).unwrap();
    let error = both().resume(&who, &public).err().unwrap().to_string();
    assert!(error.contains("its record 3 of this chip has the link"), "{error}");
    assert_eq!(*log.lock().unwrap(), chip.log);
}

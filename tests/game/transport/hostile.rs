//! Hostile clients, and transports that garble messages.

use std::net::TcpListener;
use std::sync::mpsc::channel;

use super::*;
use tiebreak_dispute::game::moves::QUESTION_MAX;
use tiebreak_game::net::pass::{self, Pass};

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
    // A client with a question is answered all the same.
    assert_eq!(status(&post(&sealed(0))), "200");
    assert!(request(&party, b"GET /v1/game HTTP/1.1\r\nhost: x\r\n\r\n").ends_with(&format!("{GAME}\n")));
    party.end();
}

/// A question with the referee's pass for `of`.
fn passed(sealed: &[u8], of: &[u8]) -> Vec<u8> {
    let pass = Pass::new(&key("referee"), &party_key(0).public(), &GAME).header(of);
    let length = sealed.len();
    let head = format!(
        "POST /v1/answer HTTP/1.1\r\nhost: x\r\n{}: {pass}\r\ncontent-length: {length}\r\n\r\n",
        pass::HEADER
    );
    [head.as_bytes(), sealed].concat()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes()
}

#[test]
fn strangers_have_budgets_that_are_not_the_referees() {
    let limits = ServerLimits { requests_per_second: 1, ..quick() };
    let party = Party::http(0, any(), limits);
    let status = |bytes: &[u8]| request(&party, bytes).get(9..12).unwrap_or("none").to_string();
    let health: Vec<String> = (0..30).map(|_| request(&party, &get("/v1/health"))).collect();
    let refused: Vec<&String> = health.iter().filter(|text| text.starts_with("HTTP/1.1 429")).collect();
    assert!(refused.len() >= 10 && refused[0].contains("retry-after: 1"), "{health:?}");
    // A flood of health requests took nothing from the budget of questions; two questions at once are allowed.
    let unsigned = post(&Sealed { body: asked(0), signature: Base64(vec![0; 64]) }.to_bytes());
    assert_eq!([status(&unsigned), status(&unsigned)], ["403", "403"]);
    assert_eq!(status(&unsigned), "429");
    // A client without a pass shares its address's budget; the referee's pass needs none.
    assert_eq!(status(&post(&sealed(0))), "429");
    for _ in 0..20 {
        assert_eq!(status(&passed(&sealed(0), &sealed(0))), "200");
    }
    // A pass belongs to one question, whose signature still counts.
    assert_eq!(status(&passed(&sealed(1), &sealed(0))), "400");
    let body = Sealed { body: asked(1), signature: Base64(vec![0; 64]) }.to_bytes();
    assert_eq!(status(&passed(&body, &body)), "403");
    assert_eq!(party.answers.load(Ordering::Relaxed), 1);
    thread::sleep(Duration::from_millis(1100));
    let made_up = String::from_utf8(passed(&sealed(0), &sealed(0))).unwrap().replace("pass: ", "pass: 00");
    assert_eq!(status(made_up.as_bytes()), "403");
    party.end();
}

#[test]
fn connections_that_wait_for_nothing_keep_nobody_out() {
    let limits = ServerLimits { connections: 8, read: Duration::from_secs(20), ..quick() };
    let party = Party::http(0, any(), limits);
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(party.address()).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let slow_body = b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{";
    let begins: [&[u8]; 3] = [b"", b"POST /v1/ans", slow_body];
    let waiting: Vec<TcpStream> = (0..150).map(|i| open(begins[i % 3])).collect();
    let begin = Instant::now();
    for turn in 0..4 {
        assert!(request(&party, &passed(&sealed(turn), &sealed(turn))).starts_with("HTTP/1.1 200"));
        // A client without a pass that speaks at once is heard as well.
        assert!(request(&party, &post(&sealed(turn))).starts_with("HTTP/1.1 200"));
    }
    assert!(request(&party, &get("/v1/health")).starts_with("HTTP/1.1 200"));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let ended = waiting.iter().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut byte = [0];
        let read = { *stream }.read(&mut byte);
        read.map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |_| true)
    });
    // One address has at most half of the eight.
    assert!(ended.count() >= 146);
    party.end();
}

/// Serves one connection after another, each in one of the `ways`, and the last way for ever.
fn garbling(ways: Vec<Vec<u8>>) -> (SocketAddr, JoinHandle<()>, Arc<AtomicBool>) {
    let listener = TcpListener::bind(any()).unwrap();
    let (address, over) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let end = over.clone();
    let serves = thread::spawn(move || {
        for (served, stream) in listener.incoming().enumerate() {
            if end.load(Ordering::Relaxed) {
                return;
            }
            let mut stream = stream.unwrap();
            let mut bytes = [0; 4096];
            let _ = stream.read(&mut bytes);
            match ways[served.min(ways.len() - 1)].as_slice() {
                b"hang" => thread::sleep(Duration::from_millis(2500)),
                way => drop(stream.write_all(way)),
            }
        }
    });
    (address, serves, over)
}

fn http(status: &str, body: &[u8], len: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The answer of party 0 to a question of a turn.
fn answer(turn: u32, fake: u8) -> Vec<u8> {
    let commitment = hash("tiebreak 2 test answer", &[fake, turn as u8]);
    let (question, answer) = (asked(turn).digest(), Answer::Commit { commitment });
    Sealed::new(Answered { game: GAME, turn, question, answer }, &party_key(0)).to_bytes()
}

#[test]
fn a_referee_asks_again_whatever_comes_until_the_party_has_answered() {
    let right = answer(3, 0);
    let ok = |body: &[u8]| http("200 OK", body, body.len());
    let foreign = {
        let commitment = Digest([1; 32]);
        let (question, answer) = (asked(3).digest(), Answer::Commit { commitment });
        Sealed::new(Answered { game: GAME, turn: 3, question, answer }, &party_key(1)).to_bytes()
    };
    let other_game = {
        let body =
            Answered { game: Digest([6; 32]), turn: 2, question: asked(2).digest(), answer: Answer::Decline };
        Sealed::new(body, &party_key(0)).to_bytes()
    };
    let half = [&b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"[..], &right[..right.len() / 2]].concat();
    let (address, serves, over) = garbling(vec![
        b"".to_vec(),
        b"HTTP/1.1 2".to_vec(),
        b"no HTTP at all\r\n\r\n".to_vec(),
        http("429 Too Many Requests", b"", 0),
        http("503 Service Unavailable", b"", 0),
        http("500 Internal Server Error", b"the disk is full", 16),
        http("200 OK", &right[..right.len() / 2], right.len()),
        half,
        ok(b"<html>log in to this network</html>"),
        ok(&foreign),
        ok(&other_game),
        ok(&answer(4, 0)),
        ok(&answer(2, 0)),
        ok(&answer(2, 9)),
        ok(&vec![b'x'; 5000]),
        b"hang".to_vec(),
        ok(&right),
    ]);
    let way = link(&format!("http://{address}"), 0);
    let (tell, told) = channel();
    // Each try takes at least two seconds.
    let found = way.ask(&Asking { deadline: 8000, ..asking(3, 4096) }, &AtomicBool::new(false), &|met| {
        tell.send(met).unwrap();
    });
    assert_eq!(found.unwrap(), right);
    drop(tell);
    let (mut ends, mut earlier) = (Vec::new(), Vec::new());
    for met in told {
        match met {
            Met::Tried { end, .. } => ends.push(end),
            Met::Earlier(bytes) => earlier.push(bytes),
        }
    }
    use End::{CutOff, NotSigned, OtherQuestion, Slow, Status, TooLong};
    let garbled = [CutOff, CutOff, CutOff, Status(429), Status(503), Status(500), CutOff, NotSigned];
    let signed =
        [NotSigned, NotSigned, OtherQuestion, OtherQuestion, OtherQuestion, OtherQuestion, TooLong, Slow];
    assert_eq!(ends, [&garbled[..], &signed].concat());
    // An earlier answer goes to the game, which convicts a party that signed another one to the same question.
    assert_eq!(earlier, [answer(2, 0)]);
    over.store(true, Ordering::Relaxed);
    let _ = TcpStream::connect(address);
    serves.join().unwrap();
}

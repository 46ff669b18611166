//! Two hundred hostile connections, while the commands play games.
//!
//! `TIEBREAK_HOSTILE_GAMES=20 cargo test --test game transport::horde -- --nocapture` plays 20 games at each clock and prints
//! their results.

use std::sync::atomic::AtomicU64;

use super::commands::{Folder, liar, made, terminated};
use super::*;

/// Connections at a time.
const CONNECTIONS: usize = 200;

/// The behaviour of a connection until it is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Idle,
    SlowHeader,
    SlowBody,
    Health,
    Unsigned,
    BadlySigned,
    MadeUpPass,
}

const KINDS: [Kind; 10] = [
    Kind::Idle,
    Kind::Idle,
    Kind::SlowHeader,
    Kind::SlowHeader,
    Kind::SlowBody,
    Kind::SlowBody,
    Kind::Health,
    Kind::Unsigned,
    Kind::BadlySigned,
    Kind::MadeUpPass,
];

/// The number of connections of each kind, and of requests refused for being too many.
#[derive(Default)]
struct Count {
    connections: AtomicU64,
    refused: AtomicU64,
}

/// Clients without a key, all on this machine, as the referee is.
struct Horde {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    count: Arc<Count>,
}

impl Horde {
    fn new(address: SocketAddr) -> Horde {
        let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(Count::default()));
        let one = |number: usize| {
            let (over, count) = (over.clone(), count.clone());
            let client = thread::Builder::new().stack_size(256 << 10);
            let runs = move || {
                while !over.load(Ordering::Relaxed) {
                    if connection(address, KINDS[number % KINDS.len()], &over, &count).is_err() {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
            };
            client.spawn(runs).unwrap()
        };
        let threads = (0..CONNECTIONS).map(one).collect();
        Horde { over, threads, count }
    }

    fn end(self) -> [u64; 2] {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        [&self.count.connections, &self.count.refused].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A connection from its begin to its end.
fn connection(address: SocketAddr, kind: Kind, over: &AtomicBool, count: &Count) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    count.connections.fetch_add(1, Ordering::Relaxed);
    let mut unsigned = Sealed::new(asked(0), &key("two"));
    if kind == Kind::Unsigned {
        unsigned.signature = Base64(vec![7; 64]);
    }
    let body = unsigned.to_bytes();
    let pass = if kind == Kind::MadeUpPass {
        format!("tiebreak-pass: {}\r\n", "0a".repeat(64))
    } else {
        String::new()
    };
    let head = format!("POST /v1/answer HTTP/1.1\r\nhost: x\r\n{pass}content-length: {}\r\n\r\n", body.len());
    let whole = [head.as_bytes(), &body].concat();
    let (at_once, slowly): (&[u8], &[u8]) = match kind {
        Kind::Idle => (b"", b""),
        Kind::SlowHeader => (b"", head.as_bytes()),
        Kind::SlowBody => (head.as_bytes(), &body),
        Kind::Health => (b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n", b""),
        Kind::Unsigned | Kind::BadlySigned | Kind::MadeUpPass => (&whole, b""),
    };
    stream.write_all(at_once)?;
    let (mut slowly, mut came) = (slowly.iter(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        if let Some(byte) = slowly.next() {
            stream.write_all(&[*byte])?;
        }
        let mut bytes = [0; 512];
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(some) => came.extend(&bytes[..some]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    count.refused.fetch_add(u64::from(came.starts_with(b"HTTP/1.1 429")), Ordering::Relaxed);
    Ok(())
}

/// The result of a game among hostile connections.
struct Game {
    seconds: f64,
    connections: u64,
    refused: u64,
    /// The longest time from one event of the game to the next, in milliseconds.
    longest: u64,
}

/// The horde attacks the honest party's server; the liar uses a folder.
fn game(folder: &Folder, name: &str, clocks: &str) -> Game {
    let terms = format!("{name}.json");
    folder.terms("bob", &format!("--replay 60{clocks}"), &terms);
    let serve = format!("honest --key alice --terms {terms} --referee-key referee.pub --listen 127.0.0.1:0");
    let (alice, said) = folder.serve(&serve);
    let (desk, threads) = liar(folder, ["bob", "lying", "weight-before@2"], [&terms, &format!("{name}-bob")]);
    let place = said["address"].as_str().unwrap();
    let horde = Horde::new(place.strip_prefix("http://").unwrap().parse().unwrap());
    // All connections are there before the first question.
    thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    let play =
        format!("referee {terms} --key referee alice={place} bob={name}-bob --out {name}-verdict.json");
    let (code, out, err) = folder.run(&format!("{play} --json"));
    let seconds = begin.elapsed().as_secs_f64();
    let [connections, refused] = horde.end();
    assert_eq!(code, 1, "{out}{err}");
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(result["result"]["remaining"], serde_json::json!([0]), "{out}{err}");
    let journal = std::fs::read_to_string(folder.path(&format!("{terms}.journal"))).unwrap();
    let times: Vec<u64> = journal
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["at"].as_u64().unwrap())
        .collect();
    let longest = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let log = terminated(alice);
    assert!(log.contains("requests were turned away") || seconds < 12.0, "{log}");
    Game { seconds, connections, refused, longest }
}

#[test]
fn nobody_forfeits_while_a_horde_besets_an_honest_party() {
    let games = std::env::var("TIEBREAK_HOSTILE_GAMES").map_or(1, |games| games.parse().unwrap());
    let folder = made();
    for (name, clocks) in
        [("default", ""), ("short", " --moves 20 --increment 2"), ("shortest", " --moves 5 --increment 1")]
    {
        let played: Vec<Game> =
            (0..games).map(|number| game(&folder, &format!("{name}-{number}"), clocks)).collect();
        let sum = |of: fn(&Game) -> u64| played.iter().map(of).sum::<u64>();
        let (connections, refused) = (sum(|game| game.connections), sum(|game| game.refused));
        assert!(connections > games * CONNECTIONS as u64 && refused > 0, "{connections} {refused}");
        let longest = played.iter().map(|game| game.longest).max().unwrap();
        let seconds = played.iter().map(|game| game.seconds).fold(0.0, f64::max);
        println!(
            "{name}: {games} games, no forfeit; {connections} hostile connections, {refused} requests refused; \
             longest answer {longest} ms, longest game {seconds:.1} s"
        );
    }
}

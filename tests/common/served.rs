//! A server of files on loopback, as small as one can be, that counts what it sends and lies when it is told to.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The time for which a server holds a connection.
pub const HELD: Duration = Duration::from_secs(5);

/// What is wrong with the answers about one file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// The range that the answer names begins a byte later.
    Shifted,
    /// The whole file has a byte more, as the answer says.
    OtherTotal,
    /// The file has 2^62 bytes, as every answer says.
    Huge,
    /// The second half does not come.
    Cut,
    /// One more byte comes than the range has.
    Long,
    /// The answer promises two bytes more than the range has, and the server sends none of them, nor the end.
    Holds,
    /// The same, as a chunk.
    HoldsChunk,
    /// The answer names its range twice, the second time another one.
    Twice,
    /// The bytes of the range come backwards.
    Backwards,
    /// The range comes as zeros.
    Zeros,
    /// The bytes of another range come.
    OtherPlace,
    /// From the second answer on, the file is another version.
    Changes,
    /// From this answer on, the last byte is another one, and the tag stays.
    Swaps(u64),
    /// Not now, says the server.
    Unavailable,
    /// The answer comes after the time for it.
    Slow,
    /// A byte comes now and then.
    Trickles,
    /// Another server has the file.
    Redirects,
    /// The contents are compressed.
    Compressed,
    /// What comes is no HTTP.
    NoHttp,
    /// Nothing comes.
    Closes,
    /// Nobody may read it.
    Forbidden,
    /// The length is not said.
    NoLength,
}

/// What a server does with every file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// It sends whole files only.
    pub no_ranges: bool,
    /// It refuses so many requests for a file before it answers the next one.
    pub refuses: u64,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    manner: Manner,
    lie: Mutex<Option<(String, Lie)>>,
    /// The requests of each file, and the bytes of contents that were sent.
    sent: Mutex<BTreeMap<String, (u64, u64)>>,
    asked: Mutex<BTreeMap<String, u64>>,
    all: AtomicU64,
}

/// A server that runs until the process ends.
pub struct Served {
    /// The address of the files.
    pub address: String,
    state: Arc<State>,
}

impl Served {
    /// Serves these files.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>, manner: Manner) -> Served {
        let state = Arc::new(State { files: files.into_iter().collect(), manner, ..State::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/runs/mine", listener.local_addr().unwrap());
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                // A client that hangs up is no matter of the server.
                thread::spawn(move || drop(answer(&state, stream)));
            }
        });
        Served { address, state }
    }

    /// Lies about this file from now on, and forgets what was asked before.
    pub fn lie(&self, file: &str, lie: Lie) {
        assert!(self.state.files.contains_key(file), "nobody asks for {file}");
        *self.state.lie.lock().unwrap() = Some((file.to_string(), lie));
        self.state.asked.lock().unwrap().clear();
    }

    /// The files that were asked for, with the numbers of requests and of bytes that were sent, since the last call.
    pub fn sent(&self) -> BTreeMap<String, (u64, u64)> {
        std::mem::take(&mut self.state.sent.lock().unwrap())
    }

    /// The number of all requests.
    pub fn requests(&self) -> u64 {
        self.state.all.load(SeqCst)
    }
}

/// The method, the path and the range of a request.
fn asked(stream: &TcpStream) -> std::io::Result<(String, String, Option<Range<usize>>)> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_string);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut range = None;
    for line in lines {
        let line = line?.to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some((from, to)) = line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
            range = Some(from.parse().unwrap()..to.parse::<usize>().unwrap() + 1);
        }
    }
    Ok((method, path, range))
}

fn status(mut stream: &TcpStream, line: &str, more: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {line}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

fn answer(state: &State, mut stream: TcpStream) -> std::io::Result<()> {
    let (method, path, range) = asked(&stream)?;
    state.all.fetch_add(1, SeqCst);
    let name = path.strip_prefix("/runs/mine/").unwrap_or("").to_string();
    let time = *state.asked.lock().unwrap().entry(name.clone()).and_modify(|asked| *asked += 1).or_insert(1);
    if time <= state.manner.refuses {
        return status(&stream, "503 Service Unavailable", "");
    }
    let Some(file) = state.files.get(&name) else { return status(&stream, "404 Not Found", "") };
    let told = state.lie.lock().unwrap().clone();
    let lie = told.filter(|(about, _)| *about == name).map(|(_, lie)| lie);
    let is = |wanted: Lie| lie == Some(wanted);
    match lie {
        Some(Lie::Unavailable) => return status(&stream, "503 Service Unavailable", ""),
        Some(Lie::Redirects) => {
            return status(&stream, "302 Found", "Location: http://127.0.0.1:1/private\r\n");
        }
        Some(Lie::Forbidden) => return status(&stream, "403 Forbidden", ""),
        Some(Lie::NoHttp) => return stream.write_all(b"SSH-2.0-server\r\n"),
        Some(Lie::Closes) => return Ok(()),
        Some(Lie::Slow) => thread::sleep(Duration::from_millis(600)),
        _ => {}
    }
    let mut file = file.clone();
    let changed = is(Lie::Changes) && time > 1;
    if changed && let Some(byte) = file.last_mut() {
        *byte ^= 1;
    }
    if let Some(Lie::Swaps(from)) = lie
        && time >= from
        && let Some(byte) = file.last_mut()
    {
        *byte ^= 0x10;
    }
    let tag = format!("ETag: \"{}\"\r\n", u8::from(changed));
    let encoding = if is(Lie::Compressed) { "Content-Encoding: gzip\r\n" } else { "" };
    let total = if is(Lie::Huge) { 1 << 62 } else { file.len() + usize::from(is(Lie::OtherTotal)) };
    let ranged = range.filter(|_| !state.manner.no_ranges);
    let range = ranged.clone().unwrap_or(0..total);
    let (line, place) = match &ranged {
        None => ("200 OK", String::new()),
        Some(range) => {
            let (first, last) = (range.start + usize::from(is(Lie::Shifted)), range.end - 1);
            let again = if is(Lie::Twice) { "Content-Range: bytes 0-1/9\r\n" } else { "" };
            ("206 Partial Content", format!("Content-Range: bytes {first}-{last}/{total}\r\n{again}"))
        }
    };
    let more = usize::from(is(Lie::Long)) + 2 * usize::from(is(Lie::Holds));
    let length = match lie {
        Some(Lie::NoLength) => String::new(),
        Some(Lie::HoldsChunk) if method == "GET" => "Transfer-Encoding: chunked\r\n".into(),
        _ => format!("Content-Length: {}\r\n", range.len() + more),
    };
    write!(stream, "HTTP/1.1 {line}\r\n{tag}{encoding}{place}{length}Connection: close\r\n\r\n")?;
    if method == "HEAD" {
        return Ok(());
    }
    let bytes = &file[range.start.min(file.len())..range.end.min(file.len())];
    send(state, name, bytes.to_vec(), lie, stream)
}

/// Sends contents, or something like them.
fn send(
    state: &State,
    name: String,
    mut bytes: Vec<u8>,
    lie: Option<Lie>,
    mut stream: TcpStream,
) -> std::io::Result<()> {
    match lie {
        Some(Lie::Cut) => bytes.truncate(bytes.len() / 2),
        Some(Lie::Long | Lie::OtherTotal | Lie::Huge) => bytes.push(0),
        Some(Lie::Backwards) => bytes.reverse(),
        Some(Lie::Zeros) => bytes.fill(0),
        Some(Lie::OtherPlace) => {
            let third = bytes.len() / 3;
            bytes.rotate_left(third);
        }
        _ => {}
    }
    let mut sent = state.sent.lock().unwrap();
    let count = sent.entry(name).or_default();
    *count = (count.0 + 1, count.1 + bytes.len() as u64);
    drop(sent);
    if lie == Some(Lie::HoldsChunk) {
        write!(stream, "{:x}\r\n", bytes.len() + 2)?;
    }
    if lie == Some(Lie::Trickles) {
        for byte in bytes.chunks(1) {
            stream.write_all(byte)?;
            thread::sleep(Duration::from_millis(30));
        }
        return Ok(());
    }
    stream.write_all(&bytes)?;
    if matches!(lie, Some(Lie::Holds | Lie::HoldsChunk)) {
        thread::sleep(HELD);
    }
    Ok(())
}

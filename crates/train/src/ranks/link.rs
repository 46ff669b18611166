//! A TCP connection between two ranks: framed messages, each with a keyed checksum.
//!
//! Both sides begin with magic, protocol version, rank and a nonce. The key of each direction is derived from the run's secret,
//! both nonces and both ranks. So a frame with a valid checksum is whole, in sequence, of this connection, and from somebody who
//! knows the secret. Nothing is encrypted. Layout: `docs/DATA-PARALLEL.md`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::collective::{MessageKind, Transport};
use super::protocol::REASON_MAX;
use crate::error::RankError;
use tiebreak_record::commit::Malformed;

/// The protocol's version: ranks with different versions do not work together.
pub(crate) const VERSION: u32 = 7;
const MAGIC: &[u8; 16] = b"tiebreak ranks\r\n";
const PREAMBLE_BYTES: usize = 56;
const HEADER_BYTES: usize = 9;
/// The number of bytes that are hashed and written, or read and hashed, at once.
const BLOCK_BYTES: usize = 1 << 20;
/// The time after which a sender that waits for its peer looks if it is to stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A rank's configuration.
#[derive(Clone)]
pub struct RankPlace {
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The secret of the run's ranks.
    pub token: String,
    /// The longest time that a rank may be silent while another waits for it.
    pub timeout: Duration,
    /// The transport of gradients.
    pub transport: Transport,
}

/// The sending side.
pub(crate) struct Outgoing {
    stream: TcpStream,
    peer: u32,
    key: [u8; 32],
    sent: u64,
    timeout: Duration,
    /// True if a frame was begun and not ended: the peer could read no later frame.
    torn: bool,
}

/// The receiving side.
pub struct Incoming {
    stream: TcpStream,
    peer: u32,
    key: [u8; 32],
    received: u64,
    timeout: Duration,
}

/// A connection to another rank.
pub struct Link {
    pub peer: u32,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
}

/// The reasons why a connection is no link.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// The peer is no rank of this version.
    Stranger(String),
    Io(io::Error),
}

impl From<io::Error> for NoLink {
    fn from(error: io::Error) -> NoLink {
        NoLink::Io(error)
    }
}

fn broken(peer: u32, timeout: Duration, error: io::Error) -> RankError {
    match error.kind() {
        // Systems disagree on the error kind of a timeout.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            RankError::Hung { rank: peer, seconds: timeout.as_secs() }
        }
        io::ErrorKind::UnexpectedEof => {
            RankError::Lost { rank: peer, why: "the connection was closed".into() }
        }
        _ => RankError::Lost { rank: peer, why: error.to_string() },
    }
}

/// A rank at one end of a connection, with its nonce.
#[derive(Clone, Copy)]
struct End<'a> {
    nonce: &'a [u8; 32],
    rank: u32,
}

/// The key of frames that one rank sends another.
fn key(token: &str, from: End, to: End) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("tiebreak 2 ranks link");
    hasher.update(blake3::hash(token.as_bytes()).as_bytes());
    for End { nonce, rank } in [from, to] {
        hasher.update(nonce).update(&rank.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

impl Link {
    /// Exchanges preambles over a connection. Only the peer's first frame shows if it knows the secret.
    pub fn open(stream: TcpStream, place: &RankPlace) -> Result<Link, NoLink> {
        let mut stream = stream;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(place.timeout))?;
        stream.set_write_timeout(Some(place.timeout))?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
        let mut preamble = MAGIC.to_vec();
        preamble.extend(VERSION.to_le_bytes());
        preamble.extend(place.rank.to_le_bytes());
        preamble.extend(nonce);
        stream.write_all(&preamble)?;
        let mut theirs = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut theirs)?;
        let word = |at: usize| u32::from_le_bytes(theirs[at..at + 4].try_into().expect("four bytes"));
        let (version, peer) = (word(16), word(20));
        if theirs[..16] != MAGIC[..] {
            return Err(NoLink::Stranger("it is no rank of tiebreak".into()));
        }
        if version != VERSION {
            let why = format!("it speaks version {version} of the protocol, this is version {VERSION}");
            return Err(NoLink::Stranger(why));
        }
        let their_nonce: [u8; 32] = theirs[24..].try_into().expect("the nonce is the rest");
        let own = End { nonce: &nonce, rank: place.rank };
        let other = End { nonce: &their_nonce, rank: peer };
        let incoming = Incoming {
            stream: stream.try_clone()?,
            peer,
            key: key(&place.token, other, own),
            received: 0,
            timeout: place.timeout,
        };
        let outgoing = Outgoing {
            stream,
            peer,
            key: key(&place.token, own, other),
            sent: 0,
            timeout: place.timeout,
            torn: false,
        };
        Ok(Link { peer, outgoing, incoming })
    }

    /// The peer's reason for stopping, if it could still send one.
    pub(crate) fn last_words(&mut self) -> Option<RankError> {
        self.incoming.stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let heard = self.incoming.receive(MessageKind::Abort, 0).err();
        heard.filter(|error| matches!(error, RankError::Stopped { .. }))
    }

    /// Checks without waiting that the peer's connection is still open.
    ///
    /// # Errors
    /// If the connection is closed, or the peer has sent its reason for stopping. Other messages stay for their receivers.
    pub fn look(&mut self) -> Result<(), RankError> {
        let (stream, mut kind) = (&self.incoming.stream, [0]);
        let looked = stream.set_nonblocking(true).and_then(|()| {
            let looked = stream.peek(&mut kind);
            stream.set_nonblocking(false)?;
            looked
        });
        match looked {
            Ok(0) => Err(broken(self.peer, self.incoming.timeout, io::ErrorKind::UnexpectedEof.into())),
            // The rest of such a frame follows at once; otherwise it is no frame of a rank.
            Ok(_) if kind[0] == MessageKind::Abort as u8 => match self.last_words() {
                Some(error) => Err(error),
                None => Err(RankError::Lost {
                    rank: self.peer,
                    why: "it stopped in the middle of a message".into(),
                }),
            },
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(broken(self.peer, self.incoming.timeout, error)),
        }
    }

    /// Changes how long either direction waits.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        (self.incoming.timeout, self.outgoing.timeout) = (timeout, timeout);
        self.incoming.stream.set_read_timeout(Some(timeout))?;
        self.outgoing.stream.set_write_timeout(Some(timeout))
    }
}

/// The header of a frame, and its checksum begun.
fn frame(key: &[u8; 32], number: u64, header: &[u8; HEADER_BYTES]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&number.to_le_bytes()).update(header);
    hasher
}

impl Outgoing {
    pub fn send(&mut self, kind: MessageKind, bytes: &[u8]) -> Result<(), RankError> {
        self.write(kind, bytes, None).map_err(|error| broken(self.peer, self.timeout, error))
    }

    /// Sends messages, until another thread says to stop: a peer that does not read holds nobody longer than that.
    pub fn send_all(
        &mut self,
        kind: MessageKind,
        messages: &[&[u8]],
        stop: &AtomicBool,
    ) -> Result<(), RankError> {
        // A socket of Winsock is in no known state once a send took too long: nobody looks up there.
        let (patience, stop) = if cfg!(unix) { (LOOK_UP, Some(stop)) } else { (self.timeout, None) };
        let mut sent = self.stream.set_write_timeout(Some(patience));
        for message in messages {
            sent = sent.and_then(|()| self.write(kind, message, stop));
        }
        let sent = sent.and_then(|()| self.stream.set_write_timeout(Some(self.timeout)));
        sent.map_err(|error| broken(self.peer, self.timeout, error))
    }

    /// Writes bytes; if others may say to stop, in pieces between which this side looks up.
    fn write_bytes(&mut self, mut bytes: &[u8], stop: Option<&AtomicBool>) -> io::Result<()> {
        let Some(stop) = stop else { return self.stream.write_all(bytes) };
        let mut moved = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => (bytes, moved) = (&bytes[count..], Instant::now()),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        if stop.load(Relaxed) || moved.elapsed() >= self.timeout {
                            return Err(error);
                        }
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn write(&mut self, kind: MessageKind, bytes: &[u8], stop: Option<&AtomicBool>) -> io::Result<()> {
        if self.torn {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.torn = true;
        let mut header = [kind as u8; HEADER_BYTES];
        header[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let mut hasher = frame(&self.key, self.sent, &header);
        self.write_bytes(&header, stop)?;
        for block in bytes.chunks(BLOCK_BYTES) {
            hasher.update(block);
            self.write_bytes(block, stop)?;
        }
        self.write_bytes(hasher.finalize().as_bytes(), stop)?;
        self.sent += 1;
        self.torn = false;
        Ok(())
    }

    /// Sends the reason why this rank stops, without waiting long.
    pub fn abort(&mut self, why: &str) -> bool {
        // A character takes four bytes at most.
        let why: String = why.chars().take(REASON_MAX / 4).collect();
        let patience = self.stream.set_write_timeout(Some(Duration::from_secs(2)));
        patience.is_ok() && self.send(MessageKind::Abort, why.as_bytes()).is_ok()
    }
}

impl Incoming {
    /// Receives the next message, of at most `max` bytes. Memory is allocated as bytes arrive.
    pub fn receive(&mut self, kind: MessageKind, max: u64) -> Result<Vec<u8>, RankError> {
        let (peer, timeout) = (self.peer, self.timeout);
        let broken = |error| broken(peer, timeout, error);
        let malformed = |source| RankError::Malformed { rank: peer, source };
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).map_err(broken)?;
        let abort = header[0] == MessageKind::Abort as u8;
        let max = if abort { REASON_MAX as u64 } else { max };
        let len = u64::from_le_bytes(header[1..].try_into().expect("the length is the rest"));
        if len > max {
            return Err(malformed(Malformed::TooLarge { what: "message", limit: max }));
        }
        let mut hasher = frame(&self.key, self.received, &header);
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let (begin, block) = (bytes.len(), (len - bytes.len() as u64).min(BLOCK_BYTES as u64));
            bytes.resize(begin + block as usize, 0);
            self.stream.read_exact(&mut bytes[begin..]).map_err(broken)?;
            hasher.update(&bytes[begin..]);
        }
        let mut checksum = [0; 32];
        self.stream.read_exact(&mut checksum).map_err(broken)?;
        // The comparison takes constant time.
        if hasher.finalize() != blake3::Hash::from_bytes(checksum) {
            let why = "its checksum is wrong: it was damaged, or its sender does not know the run's secret";
            return Err(malformed(Malformed::invalid("message", why)));
        }
        self.received += 1;
        if abort {
            return Err(RankError::Stopped { rank: peer, why: printable(&bytes) });
        }
        if header[0] != kind as u8 {
            let why = format!("it is of kind {}, and {kind:?} is due", header[0]);
            return Err(malformed(Malformed::invalid("message", why)));
        }
        Ok(bytes)
    }
}

/// Another process's text, for a terminal.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Connects two ranks; the second receives the bytes of the first as changed by `change`.
    fn through(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Result<Vec<u8>, RankError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let timeout = Duration::from_secs(20);
        let end = |nonce, rank| End { nonce, rank };
        let keys = key("secret", end(&[1; 32], 0), end(&[2; 32], 1));
        let outgoing = |stream| Outgoing { stream, peer: 1, key: keys, sent: 0, timeout, torn: false };
        let (sending, mut sent) = connect();
        outgoing(sending).send(MessageKind::Ready, b"the message").unwrap();
        let mut frame = Vec::new();
        sent.read_to_end(&mut frame).unwrap();
        let (mut changed, stream) = connect();
        changed.write_all(&change(frame)).unwrap();
        drop(changed);
        Incoming { stream, peer: 0, key: keys, received: 0, timeout }.receive(MessageKind::Ready, 20)
    }

    #[test]
    fn a_frame_arrives_whole_or_is_an_error_of_its_sender() {
        assert_eq!(through(|frame| frame).unwrap(), b"the message");
        let len = HEADER_BYTES + 11 + 32;
        for cut in 0..len {
            let error = through(|frame| frame[..cut].to_vec()).unwrap_err();
            assert!(matches!(error, RankError::Lost { rank: 0, .. }), "{cut} bytes: {error}");
        }
        for bit in 0..8 * len {
            let change = |mut frame: Vec<u8>| {
                frame[bit / 8] ^= 1 << (bit % 8);
                frame
            };
            let error = through(change).unwrap_err();
            // A larger length that is allowed waits for bytes that never come.
            let fine =
                matches!(error, RankError::Malformed { rank: 0, .. } | RankError::Lost { rank: 0, .. });
            assert!(fine, "bit {bit}: {error}");
        }
    }

    /// Ranks 0 and 1, with these secrets, connected.
    fn pair(tokens: [&str; 2]) -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = |rank, token: &str| RankPlace {
            rank,
            ranks: 2,
            token: token.into(),
            timeout: Duration::from_secs(20),
            transport: Transport::Tcp,
        };
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let (one, other) = (place(0, tokens[0]), place(1, tokens[1]));
        let thread = std::thread::spawn(move || Link::open(stream, &one).unwrap());
        let second = Link::open(accepted, &other).unwrap();
        (thread.join().unwrap(), second)
    }

    /// The first error that `look` finds.
    fn seen(link: &mut Link) -> RankError {
        let begin = std::time::Instant::now();
        loop {
            if let Err(seen) = link.look() {
                return seen;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing is seen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_look_takes_nothing_but_the_last_words() {
        let (mut one, mut other) = pair(["secret"; 2]);
        assert!(one.look().is_ok());
        other.outgoing.send(MessageKind::Ready, b"message").unwrap();
        while one.incoming.stream.peek(&mut [0]).unwrap() == 0 {}
        assert!(one.look().is_ok() && one.look().is_ok());
        assert_eq!(one.incoming.receive(MessageKind::Ready, 7).unwrap(), b"message");
        assert!(other.outgoing.abort("out of paper"));
        let error = seen(&mut one);
        assert!(matches!(&error, RankError::Stopped { rank: 1, why } if why == "out of paper"), "{error}");
        let (mut one, other) = pair(["secret"; 2]);
        drop(other);
        assert!(matches!(seen(&mut one), RankError::Lost { rank: 1, .. }));
        // The first byte of last words, and no more.
        let (mut one, mut other) = pair(["secret"; 2]);
        other.outgoing.stream.write_all(&[MessageKind::Abort as u8]).unwrap();
        drop(other);
        assert!(matches!(seen(&mut one), RankError::Lost { rank: 1, .. }));
    }

    #[test]
    fn a_frame_is_good_once_and_in_one_direction() {
        let (mut one, mut other) = pair(["secret"; 2]);
        assert_eq!((one.peer, other.peer), (1, 0));
        assert_ne!(one.outgoing.key, one.incoming.key);
        one.outgoing.send(MessageKind::Ready, b"once").unwrap();
        assert_eq!(other.incoming.receive(MessageKind::Ready, 4).unwrap(), b"once");
        one.outgoing.sent = 0;
        one.outgoing.send(MessageKind::Ready, b"once").unwrap();
        let error = other.incoming.receive(MessageKind::Ready, 4).unwrap_err().to_string();
        assert!(error.contains("checksum"), "a frame was taken twice: {error}");
        let (mut one, mut other) = pair(["secret", "another"]);
        one.outgoing.send(MessageKind::Ready, b"once").unwrap();
        assert!(other.incoming.receive(MessageKind::Ready, 4).is_err());
    }
}

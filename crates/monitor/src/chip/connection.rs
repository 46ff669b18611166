//! A Unix socket that carries lines, each bounded before it is stored and each within a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use tiebreak_record::commit::Malformed;

use super::message::{FromAgent, FromTrainer, to_line};

/// The bytes that are read at once.
const PIECE: usize = 4096;

/// The reasons why a line did not come, or could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side is gone.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side did nothing for too long.
    #[error("the other side said nothing for {0} s")]
    Silent(u64),
    /// The other side sent what has no place in the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The agent ended the connection.
    #[error("the agent refuses: {0}")]
    Refused(String),
    /// The system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The time that a reader waits for a whole line.
#[derive(Clone, Copy)]
pub enum Wait {
    /// Not at all: a line counts only if it is there.
    No,
    /// So long for the whole line.
    For(Duration),
    /// Until the connection ends.
    Ever,
}

/// A socket, and the bytes that were read from it beyond the last line.
pub struct Connection {
    stream: UnixStream,
    bytes: Vec<u8>,
    /// True if a read returns at once. The system is told only when this changes.
    at_once: bool,
}

impl Connection {
    /// Lines of this socket.
    pub fn new(stream: UnixStream) -> Connection {
        Connection { stream, bytes: Vec::new(), at_once: false }
    }

    /// The next line without its end; nothing if none is there and nobody waits.
    ///
    /// # Errors
    /// If a line has more than `max` bytes with its end, does not come in time, or the connection ends.
    pub fn line(&mut self, max: usize, wait: Wait) -> Result<Option<Vec<u8>>, ChannelError> {
        let begin = Instant::now();
        self.returns_at_once(matches!(wait, Wait::No))?;
        let mut searched = 0;
        loop {
            if let Some(end) = self.bytes[searched..].iter().position(|byte| *byte == b'\n') {
                let end = searched + end;
                if end >= max {
                    return Err(Malformed::TooLarge { what: "line", limit: max as u64 }.into());
                }
                let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            searched = self.bytes.len();
            if searched >= max {
                return Err(Malformed::TooLarge { what: "line", limit: max as u64 }.into());
            }
            if !matches!(wait, Wait::No) {
                self.stream.set_read_timeout(left(wait, begin)?)?;
            }
            let mut piece = [0; PIECE];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(read) => self.bytes.extend(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_not_yet(&error) => match wait {
                    Wait::No => return Ok(None),
                    Wait::For(_) | Wait::Ever => left(wait, begin).map(drop)?,
                },
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ChannelError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a message, within a time.
    ///
    /// # Errors
    /// If the other side is gone, or does not take the line.
    pub fn send(&mut self, message: &impl Serialize, within: Duration) -> Result<(), ChannelError> {
        self.returns_at_once(false)?;
        send(&self.stream, message, within)
    }

    fn returns_at_once(&mut self, at_once: bool) -> io::Result<()> {
        if self.at_once != at_once {
            self.stream.set_nonblocking(at_once)?;
            self.at_once = at_once;
        }
        Ok(())
    }
}

/// Sends a message over a socket, within a time for each part of it that the other side takes.
pub fn send(mut stream: &UnixStream, message: &impl Serialize, within: Duration) -> Result<(), ChannelError> {
    stream.set_write_timeout(Some(within))?;
    stream.write_all(&to_line(message)?).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ChannelError::Closed,
        _ if is_not_yet(&error) => ChannelError::Silent(within.as_secs()),
        _ => error.into(),
    })
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The time that is left of a wait; nothing if it has no end.
fn left(wait: Wait, begin: Instant) -> Result<Option<Duration>, ChannelError> {
    let Wait::For(time) = wait else { return Ok(None) };
    match time.saturating_sub(begin.elapsed()) {
        Duration::ZERO => Err(ChannelError::Silent(time.as_secs())),
        left => Ok(Some(left)),
    }
}

/// A message that is no answer to what was said.
pub fn out_of_place(message: &FromAgent) -> ChannelError {
    Malformed::invalid("message", format!("{message:?} has no place here")).into()
}

/// A trainer's message that has no place.
pub fn unexpected(message: &FromTrainer) -> Malformed {
    let what = match message {
        FromTrainer::Attach { .. } => "a second attach",
        FromTrainer::Snapshot { .. } => "a snapshot before the attach",
    };
    Malformed::invalid("message", format!("{what} has no place here"))
}

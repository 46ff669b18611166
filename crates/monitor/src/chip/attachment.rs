//! A trainer's side of the channel: it attaches a training, looks whether a snapshot is due, and waits until one is kept.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;

use super::connection::{ChannelError, Connection, Wait, out_of_place};
use super::message::{FromAgent, FromTrainer, LINE_MAX, VERSION, from_line};
use crate::snapshot::record::Serial;
use crate::snapshot::shard_map::ShardMap;

/// The most lines that an agent has to say at a time: it asks no second question while one waits for its answer.
const LINES_MAX: usize = 64;

/// The most lines at a time by which an agent says that its keeper holds it up.
const WAITS_MAX: usize = 4096;

/// A training that is attached to an agent.
pub struct Attachment {
    connection: Connection,
    serial: Serial,
    record: u64,
    /// The time that the agent has for an answer.
    limit: Duration,
    /// The question that waits for an answer.
    due: Option<u64>,
    /// Questions that had no answer in time.
    unanswered: u64,
    /// The number of times that the agent said that its keeper holds it up.
    held: u64,
}

/// The end of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The log has it, as the record with this number.
    Kept(u64),
    /// The agent's patience had ended; the log says so.
    Late,
}

impl Attachment {
    /// Attaches a training, and returns when the log says so. `limit`: the time that the agent has for each answer.
    ///
    /// # Errors
    /// If no agent listens there, it refuses, does not answer in time, or says what has no place.
    pub fn attach(
        socket: &Path,
        computation: Digest,
        map: &ShardMap,
        code: Digest,
        limit: Duration,
    ) -> Result<Attachment, ChannelError> {
        let mut connection = Connection::new(UnixStream::connect(socket)?);
        let attach = FromTrainer::Attach { version: VERSION, computation, map: map.to_text(), code };
        // An agent that has another training says so before it reads anything.
        let sent = connection.send(&attach, limit);
        let mut held = 0;
        let answer = loop {
            match (connection.line(LINE_MAX, Wait::For(limit)), &sent) {
                (Ok(Some(line)), _) => match from_line(&line)? {
                    FromAgent::Waiting => held += 1,
                    answer => break answer,
                },
                (_, Err(_)) => return Err(sent.expect_err("it was not sent")),
                (Err(error), _) => return Err(error),
                (Ok(None), Ok(())) => return Err(ChannelError::Closed),
            }
        };
        match answer {
            FromAgent::Attached { version: VERSION, serial, record } => {
                Ok(Attachment { connection, serial, record, limit, due: None, unanswered: 0, held })
            }
            FromAgent::Refused { why } => Err(ChannelError::Refused(why)),
            FromAgent::Attached { version, .. } => {
                let why = format!("the agent speaks version {version}, this program version {VERSION}");
                Err(Malformed::invalid("message", why).into())
            }
            other => Err(out_of_place(&other)),
        }
    }

    /// The chip.
    pub fn serial(&self) -> &Serial {
        &self.serial
    }

    /// The number of the record that says that the training is attached.
    pub fn record(&self) -> u64 {
        self.record
    }

    /// The number of the question that waits for an answer, if there is one. Nobody waits: where nothing is due, this is one read.
    ///
    /// # Errors
    /// If the agent is gone, ends the connection, or says what has no place.
    pub fn due(&mut self) -> Result<Option<u64>, ChannelError> {
        let (mut lines, mut waits) = (0, 0);
        while lines < LINES_MAX && waits < WAITS_MAX {
            match self.connection.line(LINE_MAX, Wait::No)?.map(|line| from_line(&line)).transpose()? {
                Some(FromAgent::Waiting) => waits += 1,
                Some(message) => {
                    self.asked(message)?;
                    lines += 1;
                }
                None => {
                    self.held += waits as u64;
                    return Ok(self.due.take());
                }
            }
        }
        Err(flood())
    }

    /// The number of times that the agent said that its keeper holds it up.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The number of questions that had no answer in time: the agent asks a new one only when the patience for the one before ended.
    pub fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Takes a question that the agent asks.
    fn asked(&mut self, message: FromAgent) -> Result<(), ChannelError> {
        match message {
            FromAgent::Due { request } => {
                self.unanswered += u64::from(self.due.replace(request).is_some());
                Ok(())
            }
            FromAgent::Refused { why } => Err(ChannelError::Refused(why)),
            other => Err(out_of_place(&other)),
        }
    }

    /// Answers a question with the state's digest, and returns when the agent has kept it.
    ///
    /// # Errors
    /// As [`Attachment::due`], and if the agent does not answer in time.
    pub fn answer(&mut self, request: u64, step: u32, digest: Digest) -> Result<Taken, ChannelError> {
        self.connection.send(&FromTrainer::Snapshot { request, step, digest }, self.limit)?;
        let mut lines = 0;
        while lines < LINES_MAX {
            let line = self.connection.line(LINE_MAX, Wait::For(self.limit))?;
            lines += 1;
            match from_line(&line.ok_or(ChannelError::Closed)?)? {
                // However often: the training is held as long as the agent is.
                FromAgent::Waiting => (lines, self.held) = (lines - 1, self.held + 1),
                FromAgent::Kept { request: of, record } if of == request => return Ok(Taken::Kept(record)),
                FromAgent::Late { request: of } if of == request => {
                    self.unanswered += 1;
                    return Ok(Taken::Late);
                }
                other => self.asked(other)?,
            }
        }
        Err(flood())
    }
}

/// The error about an agent that says too much.
fn flood() -> ChannelError {
    Malformed::TooLarge { what: "number of lines at a time", limit: LINES_MAX as u64 }.into()
}

//! A referee's connection to a party, with its retries.

use std::fmt::Display;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::folder::{LOOK_EVERY, Questions};
use super::pass::{self, Pass};
use tiebreak_dispute::game::message::{Answered, Sealed};
use tiebreak_dispute::game::tried::End;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_run::run::RunError;

/// The time that one request may last: the remaining time divided by the first number, within the two bounds. A server answers
/// after 25 seconds in any case.
const REQUEST: (u32, Duration, Duration) = (4, Duration::from_secs(2), Duration::from_secs(35));
/// The time that a party has to accept a connection.
const CONNECT: Duration = Duration::from_secs(4);
/// Pauses between failing tries: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The pause after "ask again".
const AGAIN: Duration = Duration::from_millis(250);
/// The interval at which a wait checks if it is over.
const SLICE: Duration = Duration::from_millis(50);
/// The most bytes of an error text that are shown.
const ERROR_MAX: u64 = 300;

/// A question that is being asked.
pub struct Asking {
    /// The question's turn.
    pub turn: u32,
    /// The question's name, to which the answer refers.
    pub question: Digest,
    /// The sealed question.
    pub sealed: Vec<u8>,
    /// The most bytes of the answer.
    pub limit: u64,
    /// The time of the game at which the answer is too late.
    pub deadline: u64,
    /// The clock of the game.
    pub clock: Arc<Clock>,
}

/// An event on the way to an answer.
pub enum Met {
    /// A try that gave no answer.
    Tried {
        /// The end of the try.
        end: End,
        /// The problem, for people; absent if the party is computing the answer.
        why: Option<String>,
    },
    /// The party's answer to an earlier question. If it signed two answers to one question, they convict it.
    Earlier(Vec<u8>),
}

enum Way {
    Http(Http),
    Folder(Questions),
}

/// A connection to a party.
pub struct Link {
    way: Way,
    game: Digest,
    party: PublicKey,
}

/// A party that listens at an address.
struct Http {
    agent: ureq::Agent,
    url: String,
    pass: Pass,
}

/// The reason why there is no answer yet.
struct Failed {
    end: End,
    why: Option<String>,
}

impl Link {
    /// The link that a text names: `http://HOST[:PORT][/PATH]`, or a folder. `key` is the referee's, `party` the key expected at
    /// the other end.
    ///
    /// # Errors
    /// If the address is of another kind, or the folder is of another game.
    pub fn new(place: &str, game: &Digest, key: &PrivateKey, party: &PublicKey) -> Result<Link, RunError> {
        let way = match place.strip_prefix("http://") {
            Some(host) if host.is_empty() || host.starts_with(['/', ':']) => {
                return Err(RunError::Refused(format!("{place} names no host")));
            }
            Some(_) => Way::Http(Http::new(place, Pass::new(key, party, game))),
            None if place.contains("://") => {
                return Err(RunError::Refused(format!(
                    "{place}: a party is reached by http:// or in a folder; messages are signed, and for TLS run a proxy here (such as stunnel) \
                     that connects to the party's"
                )));
            }
            None => Way::Folder(Questions::new(Path::new(place), game)?),
        };
        Ok(Link { way, game: *game, party: party.clone() })
    }

    /// Asks until there is an answer that the party signed, its time is up, or `over` is set. `met` is told of all other events.
    ///
    /// A message that the party did not sign is no answer: somebody in between wrote it, or a file is not whole yet. So the party
    /// is asked again.
    #[doc(hidden)] // for the layers above
    pub fn ask(&self, asking: &Asking, over: &AtomicBool, met: &dyn Fn(Met)) -> Option<Vec<u8>> {
        let mut pause = PAUSES.0;
        let mut earlier = false;
        loop {
            let left = asking.clock.until(asking.deadline);
            if left.is_zero() || over.load(Ordering::Relaxed) {
                return None;
            }
            let tried = match &self.way {
                Way::Http(http) => http.ask(asking, (left / REQUEST.0).clamp(REQUEST.1, REQUEST.2)),
                Way::Folder(questions) => look(questions, asking),
            };
            let Failed { end, why } = match tried.and_then(|bytes| self.judged(asking, bytes)) {
                Ok(Came::Answer(bytes)) => return Some(bytes),
                Ok(Came::Earlier(bytes)) => {
                    // One earlier answer is enough: more would only fill the journal.
                    if !std::mem::replace(&mut earlier, true) {
                        met(Met::Earlier(bytes));
                    }
                    Failed { end: End::OtherQuestion, why: Some("it answered an earlier question".into()) }
                }
                Err(failed) => failed,
            };
            let wait = match (&self.way, &why) {
                (Way::Folder(_), _) => LOOK_EVERY,
                (Way::Http(_), None) => AGAIN,
                (Way::Http(_), Some(_)) => {
                    pause = (pause * 2).min(PAUSES.1);
                    pause
                }
            };
            met(Met::Tried { end, why });
            let again = Instant::now() + wait.min(left);
            while Instant::now() < again && !over.load(Ordering::Relaxed) {
                std::thread::sleep(SLICE.min(again.saturating_duration_since(Instant::now())));
            }
        }
    }

    /// Judges the bytes that came as an answer.
    fn judged(&self, asking: &Asking, bytes: Vec<u8>) -> Result<Came, Failed> {
        let failed = |end, why: &str| Err(Failed { end, why: Some(why.into()) });
        let body = Sealed::<Answered>::from_bytes(&bytes, asking.limit.max(bytes.len() as u64), &self.party)
            .map(|sealed| (sealed.body.game, sealed.body.turn, sealed.body.question));
        match body {
            Ok((_, turn, question)) if (turn, question) == (asking.turn, asking.question) => {
                Ok(Came::Answer(bytes))
            }
            Ok((game, turn, _)) if game == self.game && turn < asking.turn => Ok(Came::Earlier(bytes)),
            Ok(_) => failed(End::OtherQuestion, "it answered another question"),
            Err(_) if bytes.len() as u64 > asking.limit => {
                let why =
                    format!("its answer has {} bytes, and at most {} are right", bytes.len(), asking.limit);
                failed(End::TooLong, &why)
            }
            Err(_) => failed(End::NotSigned, "what came is no answer that it signed"),
        }
    }
}

/// A judged answer.
enum Came {
    Answer(Vec<u8>),
    Earlier(Vec<u8>),
}

/// Looks for the answer, and writes the question unless it is there.
fn look(questions: &Questions, asking: &Asking) -> Result<Vec<u8>, Failed> {
    let answer = questions
        .put(asking.turn, &asking.sealed)
        .and_then(|()| questions.answer(asking.turn, asking.limit))
        .map_err(|error| Failed { end: End::NoFolder, why: Some(error.to_string()) })?;
    answer.ok_or(Failed { end: End::NoFile, why: None })
}

/// The reason why a request failed.
fn end_of(error: &ureq::Error) -> End {
    use ureq::{Error, Timeout};
    match error {
        Error::Timeout(Timeout::Connect | Timeout::Resolve) => End::NoConnection,
        Error::Timeout(_) => End::Slow,
        Error::HostNotFound | Error::ConnectionFailed => End::NoConnection,
        Error::Io(error) => match error.kind() {
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof => End::CutOff,
            _ => End::NoConnection,
        },
        _ => End::CutOff,
    }
}

impl Http {
    fn new(place: &str, pass: Pass) -> Http {
        // A redirect, or a proxy from the environment, would lead to another party than the command line names.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .user_agent("tiebreak")
            .build();
        Http { agent: config.new_agent(), url: format!("{}/v1/answer", place.trim_end_matches('/')), pass }
    }

    fn ask(&self, asking: &Asking, time: Duration) -> Result<Vec<u8>, Failed> {
        let failed = |end, why: &dyn Display| Failed { end, why: Some(format!("{}: {why}", self.url)) };
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let request = request.header(pass::HEADER, self.pass.header(&asking.sealed));
        let request = request.config().timeout_global(Some(time)).build();
        let mut response =
            request.send(asking.sealed.as_slice()).map_err(|error| failed(end_of(&error), &error))?;
        let status = response.status().as_u16();
        let limit = if status == 200 { asking.limit.saturating_add(1) } else { ERROR_MAX };
        let mut bytes = Vec::new();
        let body =
            response.body_mut().with_config().limit(u64::MAX).reader().take(limit).read_to_end(&mut bytes);
        match (status, body) {
            (200, Ok(_)) => Ok(bytes),
            (200, Err(error)) => Err(failed(End::CutOff, &error)),
            (503, _) => Err(Failed { end: End::Status(503), why: None }),
            _ => {
                let text = String::from_utf8_lossy(&bytes);
                Err(failed(End::Status(status), &format!("status {status}: {}", text.trim())))
            }
        }
    }
}

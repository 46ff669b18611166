//! How a referee reaches a party, and how it insists.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::folder::{LOOK_EVERY, Questions};
use crate::commit::digest::Digest;
use crate::run::RunError;

/// The longest that one request may last: longer than a server lets a question wait.
const REQUEST: Duration = Duration::from_secs(60);
/// How long a party has to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Pauses between tries that fail: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The pause after "ask again".
const AGAIN: Duration = Duration::from_secs(1);
/// How often a wait looks whether it is over.
const SLICE: Duration = Duration::from_millis(50);
/// The most bytes of an error text that are shown.
const ERROR_MAX: u64 = 300;

/// A question on its way.
pub struct Asking {
    /// Its turn.
    pub turn: u32,
    /// The sealed question.
    pub sealed: Vec<u8>,
    /// The most bytes of the answer.
    pub limit: u64,
    /// When nobody waits for the answer any more.
    pub until: Instant,
}

/// The way to a party.
pub enum Link {
    /// Over HTTP.
    Http(Http),
    /// In a folder.
    Folder(Questions),
}

/// A party that listens at an address.
pub struct Http {
    agent: ureq::Agent,
    url: String,
}

/// Why there is no answer yet.
enum Failed {
    /// It is being made.
    Computing,
    /// Something went wrong.
    Trouble(String),
}

impl Link {
    /// The way that a text names: `http://HOST[:PORT][/PATH]`, or a folder.
    ///
    /// # Errors
    /// If it is another kind of address, or the folder is of another game.
    pub fn new(place: &str, game: &Digest) -> Result<Link, RunError> {
        if let Some(host) = place.strip_prefix("http://") {
            if host.is_empty() || host.starts_with(['/', ':']) {
                return Err(RunError::Refused(format!("{place} names no host")));
            }
            return Ok(Link::Http(Http::new(place)));
        }
        if place.contains("://") {
            return Err(RunError::Refused(format!(
                "{place}: a party is reached by http:// or in a folder; messages are signed, and for TLS run a proxy here (such as stunnel) that \
                 connects to the party's"
            )));
        }
        Ok(Link::Folder(Questions::new(Path::new(place), game)?))
    }

    /// Asks until there is an answer, the time is up, or `over`. `trouble` is told of tries that failed.
    pub fn ask(&self, asking: &Asking, over: &AtomicBool, trouble: &dyn Fn(String)) -> Option<Vec<u8>> {
        let mut pause = PAUSES.0;
        loop {
            let left = asking.until.saturating_duration_since(Instant::now());
            let tried = match self {
                Link::Http(http) => http.ask(asking, left.min(REQUEST)),
                Link::Folder(questions) => look(questions, asking, left.is_zero()),
            };
            let wait = match tried {
                Ok(answer) => return Some(answer),
                Err(Failed::Computing) => match self {
                    Link::Http(_) => AGAIN,
                    Link::Folder(_) => LOOK_EVERY,
                },
                Err(Failed::Trouble(why)) => {
                    trouble(why);
                    pause = (pause * 2).min(PAUSES.1);
                    pause
                }
            };
            let again = Instant::now() + wait.min(left);
            while Instant::now() < again {
                if over.load(Ordering::Relaxed) {
                    return None;
                }
                std::thread::sleep(SLICE.min(again.saturating_duration_since(Instant::now())));
            }
            if left.is_zero() || over.load(Ordering::Relaxed) {
                return None;
            }
        }
    }
}

/// Writes the question and looks for the answer.
fn look(questions: &Questions, asking: &Asking, last: bool) -> Result<Vec<u8>, Failed> {
    let answer = questions
        .put(asking.turn, &asking.sealed)
        .and_then(|()| questions.answer(asking.turn, asking.limit, last))
        .map_err(|error| Failed::Trouble(error.to_string()))?;
    answer.ok_or(Failed::Computing)
}

impl Http {
    fn new(place: &str) -> Http {
        // A redirect, or a proxy out of the environment, would be somebody else than the command line names.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .user_agent("tiebreak")
            .build();
        Http { agent: config.new_agent(), url: format!("{}/v1/answer", place.trim_end_matches('/')) }
    }

    fn ask(&self, asking: &Asking, time: Duration) -> Result<Vec<u8>, Failed> {
        let trouble = |error: &dyn std::fmt::Display| Failed::Trouble(format!("{}: {error}", self.url));
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let request = request.config().timeout_global(Some(time.max(SLICE))).build();
        let mut response = request.send(asking.sealed.as_slice()).map_err(|error| trouble(&error))?;
        let status = response.status().as_u16();
        let limit = if status == 200 { asking.limit.saturating_add(1) } else { ERROR_MAX };
        let mut bytes = Vec::new();
        let body =
            response.body_mut().with_config().limit(u64::MAX).reader().take(limit).read_to_end(&mut bytes);
        body.map_err(|error| trouble(&error))?;
        match status {
            200 => Ok(bytes),
            429 | 503 => Err(Failed::Computing),
            _ => Err(trouble(&format!("status {status}: {}", String::from_utf8_lossy(&bytes).trim()))),
        }
    }
}

//! A chip's side: a keeper that gives each record to a collector, and waits until the collector has acknowledged it.
//!
//! A collector that does not answer holds the chip up, and with it the training. A record is sent again until the answer comes, so
//! none is dropped; the collector acknowledges a record that it has already.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tiebreak_monitor::chip::chain::{Chain, End};
use tiebreak_monitor::chip::keeper::{Keeper, KeeperError, Resumed};
use tiebreak_monitor::snapshot::log::RECORDS_MAX;
use tiebreak_monitor::snapshot::record::{Serial, SignedRecord};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;

use crate::message::{ANSWER_MAX, Kept, Last, Refused, read};

/// The time that one request may last, and the part of it for the connection.
const TIMES: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// The shortest and the longest pause between two requests.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// The time between two words about a collector that does not answer.
const WORDS: Duration = Duration::from_secs(15);
/// The most characters of a stranger's text that are shown.
const SHOWN: usize = 300;

/// A collector, and how long a chip waits for it.
pub struct Settings {
    /// The collector's address, such as `http://127.0.0.1:8702`.
    pub url: String,
    /// The collector's key.
    pub key: PublicKey,
    /// The longest time that one record may wait for its acknowledgement; without it there is no limit.
    pub hold: Option<Duration>,
    /// True when somebody asks the agent to stop: then nothing is sent a second time.
    pub stopped: Arc<AtomicBool>,
}

/// The words of a keeper about its collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The collector does not answer: since how many seconds, and why.
    Waits(u64, String),
    /// The collector answers again, after so many seconds.
    GoesOn(u64),
}

/// A keeper whose records are a collector's.
pub struct Remote {
    settings: Settings,
    http: ureq::Agent,
    told: Box<dyn FnMut(&Word) + Send>,
}

/// The end of one request.
enum Tried<T> {
    Done(T),
    /// The collector does not want the request, however often it is sent.
    Refused(String),
    /// The request may be sent again.
    Again(String),
}

impl Remote {
    /// A keeper that sends to a collector; `told` hears of waiting.
    ///
    /// # Errors
    /// If the address is no `http://` one.
    pub fn new(settings: Settings, told: impl FnMut(&Word) + Send + 'static) -> Result<Remote, KeeperError> {
        if !settings.url.starts_with("http://") {
            let why = format!(
                "{}: a collector is reached by http://; its answers are signed, and for TLS run a proxy here that connects to it",
                settings.url
            );
            return Err(KeeperError::Refused(why));
        }
        // A redirect, or a proxy from the environment, would lead to another collector than the command line names.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(TIMES.1))
            .timeout_global(Some(TIMES.0))
            .user_agent("tiebreak")
            .build();
        Ok(Remote { settings, http: config.new_agent(), told: Box::new(told) })
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.settings.url.trim_end_matches('/'))
    }

    /// Sends a request until it has an answer that counts.
    fn until<T>(&mut self, mut request: impl FnMut(&Remote) -> Tried<T>) -> Result<T, KeeperError> {
        let (begin, mut pause, mut said) = (Instant::now(), PAUSES.0, None::<Instant>);
        loop {
            let why = match request(self) {
                Tried::Done(done) => {
                    if said.is_some() {
                        (self.told)(&Word::GoesOn(begin.elapsed().as_secs()));
                    }
                    return Ok(done);
                }
                Tried::Refused(why) => return Err(KeeperError::Refused(why)),
                Tried::Again(why) => format!("{}: {why}", self.settings.url),
            };
            let waited = begin.elapsed();
            if self.settings.stopped.load(Relaxed) {
                return Err(KeeperError::Unacknowledged(format!("{why}; the agent was asked to stop")));
            }
            if let Some(hold) = self.settings.hold.filter(|hold| waited >= *hold) {
                let why = format!("{why}; the limit of {} s is over", hold.as_secs());
                return Err(KeeperError::Unacknowledged(why));
            }
            if said.is_none_or(|said| said.elapsed() >= WORDS) {
                (self.told)(&Word::Waits(waited.as_secs(), why));
                said = Some(Instant::now());
            }
            let left = self.settings.hold.map_or(pause, |hold| hold.saturating_sub(waited).min(pause));
            self.pause(left);
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    /// Waits, but not for long once somebody asks for the end.
    fn pause(&self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time && !self.settings.stopped.load(Relaxed) {
            thread::sleep((time - begin.elapsed().min(time)).min(Duration::from_millis(50)));
        }
    }

    /// The last record of a chip's log, and its number of records.
    ///
    /// # Errors
    /// If the collector does not answer in time, or does not want to.
    pub fn last(&mut self, serial: &Serial) -> Result<Option<SignedRecord>, KeeperError> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce)
            .map_err(|error| KeeperError::Unacknowledged(format!("the system has no randomness: {error}")))?;
        let nonce = Digest(nonce);
        let serial = serial.clone();
        self.until(|remote| {
            let sent = remote.http.get(remote.at(&format!("last/{serial}/{nonce}"))).call();
            remote.answered(sent, |answer: Last| answer.check(&nonce, &serial, &remote.settings.key))
        })
    }

    /// Sends a record, and returns when the collector has acknowledged it.
    ///
    /// # Errors
    /// If the collector does not acknowledge in time, or refuses the record.
    pub fn send(&mut self, record: &SignedRecord) -> Result<(), KeeperError> {
        let bytes = record.encode();
        self.until(|remote| {
            let sent = remote.http.post(remote.at("record")).send(&bytes[..]);
            remote.answered(sent, |answer: Kept| answer.check(record, &remote.settings.key))
        })
    }

    /// Reads an answer. Only one that the collector's key signed counts; any other may be somebody else's.
    fn answered<M: serde::de::DeserializeOwned, T>(
        &self,
        sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
        check: impl FnOnce(M) -> Result<T, tiebreak_record::commit::Malformed>,
    ) -> Tried<T> {
        let mut response = match sent {
            Ok(response) => response,
            Err(error) => return Tried::Again(error.to_string()),
        };
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let body = response.body_mut().with_config().limit(u64::MAX).reader().take(ANSWER_MAX + 1);
        let mut body = body;
        if let Err(error) = body.read_to_end(&mut bytes) {
            return Tried::Again(format!("the answer was cut off: {error}"));
        }
        if bytes.len() as u64 > ANSWER_MAX {
            return Tried::Again(format!("the answer has more than {ANSWER_MAX} bytes"));
        }
        match status {
            200 => match read(&bytes).and_then(check) {
                Ok(done) => Tried::Done(done),
                Err(error) => Tried::Refused(error.to_string()),
            },
            400 | 403 | 404 | 409 | 413 => Tried::Refused(words(status, &bytes)),
            _ => Tried::Again(words(status, &bytes)),
        }
    }
}

/// The words of an answer that is no acknowledgement.
fn words(status: u16, bytes: &[u8]) -> String {
    match read::<Refused>(bytes) {
        Ok(refused) => format!("{} ({})", refused.why, refused.refused),
        Err(_) => {
            let text: String = String::from_utf8_lossy(bytes).chars().take(SHOWN).collect();
            format!("status {status}: {:?}", text.trim_end())
        }
    }
}

impl Keeper for Remote {
    /// The collector has checked every record, and signs the end of the log, so nothing but the last record comes back.
    fn resume(&mut self, serial: &Serial, key: &PublicKey) -> Result<Resumed, KeeperError> {
        let last = self.last(serial)?;
        let chain = match last {
            None => Chain::new(serial.clone(), key.clone()),
            Some(last) if last.record.counter >= RECORDS_MAX as u64 => return Err(KeeperError::Full),
            Some(last) => {
                let (records, link, time) = (last.record.counter + 1, last.link(), last.record.time);
                // The begin record that comes next ends every attachment.
                Chain::behind(serial.clone(), key.clone(), End { records, link, time, shard: None })
            }
        };
        Ok(Resumed { chain, torn: 0 })
    }

    fn append(&mut self, record: &SignedRecord) -> Result<(), KeeperError> {
        self.send(record)
    }
}

#[cfg(test)]
mod tests;

//! One request for a file of a run, and the plain server that it is sent to.

use std::ops::Range;
use std::time::Duration;

use ureq::http::Response;

use super::patience::Patience;

/// A request for a file.
pub(crate) struct Asked<'a> {
    /// The file's name, relative to the run.
    pub(crate) name: &'a str,
    /// The range of bytes; the whole file without one.
    pub(crate) range: Option<&'a Range<u64>>,
    /// True if only the file's length is wanted.
    pub(crate) head: bool,
    /// The time for the whole answer.
    pub(crate) time: Duration,
}

/// The reason why a request has no answer.
pub(crate) enum NoAnswer {
    /// The connection failed.
    Broken(ureq::Error),
    /// The request could not be made, or the answer says why it gives nothing.
    #[cfg(feature = "objects")]
    Failed(super::answer::Failed),
}

/// Sends requests to whoever keeps a run.
pub(crate) trait Ask: Send + Sync {
    /// Sends a request once. Callers check the answer, and read its contents within a bound.
    fn ask(&self, asked: &Asked) -> Result<Response<ureq::Body>, NoAnswer>;
}

/// The client of all requests. A redirect, or a proxy from the environment, would lead to another server than the command line names.
pub(crate) fn agent(patience: &Patience) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_connect(Some(patience.connect))
        .user_agent("tiebreak")
        .build();
    config.new_agent()
}

/// A server of plain files.
pub(crate) struct Plain {
    agent: ureq::Agent,
    address: String,
}

impl Plain {
    /// The server at an address.
    pub(crate) fn new(address: &str, patience: &Patience) -> Plain {
        Plain { agent: agent(patience), address: address.trim_end_matches('/').to_string() }
    }

    /// The address of a file.
    fn url(&self, name: &str) -> String {
        let mut url = format!("{}/", self.address);
        for byte in name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' => {
                    url.push(char::from(byte))
                }
                _ => url += &format!("%{byte:02X}"),
            }
        }
        url
    }
}

impl Ask for Plain {
    fn ask(&self, asked: &Asked) -> Result<Response<ureq::Body>, NoAnswer> {
        let url = self.url(asked.name);
        let request = if asked.head { self.agent.head(url) } else { self.agent.get(url) };
        let request = request.header("accept-encoding", "identity");
        let request = match asked.range {
            Some(range) => request.header("range", format!("bytes={}-{}", range.start, range.end - 1)),
            None => request,
        };
        request.config().timeout_global(Some(asked.time)).build().call().map_err(NoAnswer::Broken)
    }
}

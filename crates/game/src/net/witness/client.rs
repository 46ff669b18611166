//! A client that asks a witness for its cosignature of a checkpoint.

use std::io::{self, Read};
use std::time::Duration;

use tiebreak_monitor::witness::request::{AddCheckpoint, SIZE_TYPE};
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::RunError;

/// The time that one request may last, and the part of it for the connection.
const TIMES: (Duration, Duration) = (Duration::from_secs(40), Duration::from_secs(10));
/// The most bytes of an error text that are shown.
const ERROR_MAX: u64 = 300;

/// A witness's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Signature lines, which nobody verified yet.
    Lines(String),
    /// The witness cosigned this size of the log last, and wants a proof from there.
    KnowsSize(u64),
    /// The witness refuses, by an HTTP status and a text.
    Refused(u16, String),
}

/// The roots of certificates that count, or those of the web's authorities.
#[cfg(feature = "tls")]
fn tls(roots: Option<&[u8]>) -> Result<ureq::tls::TlsConfig, String> {
    use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
    let Some(pem) = roots else { return Ok(TlsConfig::default()) };
    let mut certificates = Vec::new();
    for item in parse_pem(pem) {
        match item.map_err(|error| format!("the file of certificates: {error}"))? {
            PemItem::Certificate(certificate) => certificates.push(certificate),
            _ => return Err("the file of certificates holds something else, such as a private key".into()),
        }
    }
    if certificates.is_empty() {
        return Err("the file of certificates has none in PEM".into());
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::new_with_certs(&certificates)).build())
}

/// The reason why an address cannot be asked, if there is one.
fn unreachable(prefix: &str, roots: Option<&[u8]>) -> Option<&'static str> {
    match (prefix.starts_with("http://"), prefix.starts_with("https://")) {
        (true, _) if roots.is_some() => Some("certificates are for an address that begins with https://"),
        (_, true) if !cfg!(feature = "tls") => Some(
            "this build has no TLS: build it with --features tls, or run a proxy here that connects to the witness",
        ),
        (true, _) | (_, true) => None,
        _ => Some("a witness is reached by http:// or https://"),
    }
}

/// Sends a request to the witness at a submission prefix, such as `http://127.0.0.1:8701`. `roots` has the certificates, in PEM, of the
/// authorities that vouch for an `https://` address; without it those of the web count.
///
/// # Errors
/// [`RunError::Refused`] if the address is no `http://` or `https://` one, or the certificates are none. [`RunError::Io`] if the witness's
/// certificate does not hold, or no whole answer comes.
pub fn ask(prefix: &str, roots: Option<&[u8]>, request: &AddCheckpoint) -> Result<Answer, RunError> {
    let refused = |why: String| RunError::Refused(format!("{prefix}: {why}"));
    let silent = |why: String| RunError::Io { path: prefix.into(), source: io::Error::other(why) };
    if let Some(why) = unreachable(prefix, roots) {
        return Err(refused(why.into()));
    }
    // A redirect, or a proxy from the environment, would lead to another witness than the command line names.
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_connect(Some(TIMES.1))
        .timeout_global(Some(TIMES.0))
        .user_agent("tiebreak");
    #[cfg(feature = "tls")]
    let config = config.tls_config(tls(roots).map_err(refused)?);
    let config = config.build();
    let url = format!("{}/add-checkpoint", prefix.trim_end_matches('/'));
    let sent = config.new_agent().post(&url).send(request.to_text().as_bytes());
    let mut response = sent.map_err(|error| silent(error.to_string()))?;
    let status = response.status().as_u16();
    let limit = if status == 200 { NOTE_MAX as u64 } else { ERROR_MAX };
    let is_size =
        response.headers().get("content-type").is_some_and(|kind| kind.as_bytes() == SIZE_TYPE.as_bytes());
    let mut bytes = Vec::new();
    let body =
        response.body_mut().with_config().limit(u64::MAX).reader().take(limit + 1).read_to_end(&mut bytes);
    body.map_err(|error| silent(format!("its answer was cut off: {error}")))?;
    if status == 200 && bytes.len() as u64 > limit {
        return Err(silent(format!("its answer has more than {limit} bytes")));
    }
    let text =
        String::from_utf8_lossy(&bytes[..bytes.len().min(limit as usize)]).trim_end_matches('\n').to_string();
    match (status, text.parse()) {
        (200, _) => Ok(Answer::Lines(format!("{text}\n"))),
        (409, Ok(size)) if is_size => Ok(Answer::KnowsSize(size)),
        _ => Ok(Answer::Refused(status, text)),
    }
}

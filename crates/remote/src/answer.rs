//! A server's answer to one request: its status, the headers that count, and its contents within a bound.

use std::io::{self, ErrorKind, Read};

use ureq::http::{HeaderMap, Response};

/// The most bytes of a header or a text of a stranger that an error shows.
const SHOWN: usize = 200;

/// The reason why a request gave nothing.
pub(crate) enum Failed {
    /// The same request may succeed later.
    Again(String),
    /// The same request may succeed later, but the whole server does not answer.
    Gone(String),
    /// The answer is no right one, and asking again would be no use.
    Wrong(io::Error),
}

/// An error about what a server said.
pub(crate) fn wrong(kind: ErrorKind, why: impl Into<String>) -> Failed {
    Failed::Wrong(io::Error::new(kind, why.into()))
}

/// A failure before there is an answer. `first`: the server has not answered any request yet.
pub(crate) fn no_answer(error: &ureq::Error, first: bool) -> Failed {
    use ureq::Error;
    let why = error.to_string();
    match error {
        Error::HostNotFound if first => wrong(ErrorKind::HostUnreachable, why),
        Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed => Failed::Gone(why),
        Error::Io(io) => match io.kind() {
            ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe => Failed::Again(why),
            _ => Failed::Gone(why),
        },
        Error::Tls(_) => wrong(ErrorKind::PermissionDenied, why),
        _ => wrong(ErrorKind::InvalidData, format!("the answer is no right HTTP: {why}")),
    }
}

/// A header as a short text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(|text| &text[..text.len().min(SHOWN)])
}

/// The tag of the version of the file that the headers are about.
pub(crate) fn tag(headers: &HeaderMap) -> Option<String> {
    header(headers, "etag").or_else(|| header(headers, "last-modified")).map(str::to_string)
}

/// The number of bytes that follow, as the headers say.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    let text = header(headers, "content-length")?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Refuses every status but those of contents, and contents in another form than the file's own.
pub(crate) fn check_status<B>(response: &Response<B>) -> Result<(), Failed> {
    let (status, headers) = (response.status().as_u16(), response.headers());
    let says = format!("the server answers with status {status}");
    match status {
        200 | 206 => {}
        404 | 410 => return Err(wrong(ErrorKind::NotFound, says)),
        401 | 403 => return Err(wrong(ErrorKind::PermissionDenied, says)),
        300..=399 => {
            let to = header(headers, "location").unwrap_or("nowhere");
            return Err(wrong(
                ErrorKind::Other,
                format!("the server redirects to {to:?}, and redirects are not followed"),
            ));
        }
        429 | 502 | 503 | 504 => return Err(Failed::Gone(says)),
        408 | 425 | 500 => return Err(Failed::Again(says)),
        _ => return Err(wrong(ErrorKind::Other, says)),
    }
    for name in ["content-range", "content-length", "content-encoding", "etag", "last-modified"] {
        if headers.get_all(name).iter().count() > 1 {
            return Err(wrong(
                ErrorKind::InvalidData,
                format!("the answer has more than one header {name:?}"),
            ));
        }
    }
    match header(headers, "content-encoding") {
        None | Some("identity") => Ok(()),
        Some(other) => Err(wrong(ErrorKind::InvalidData, format!("the contents come encoded as {other:?}"))),
    }
}

/// The length of the file of which an answer with status 206 has the bytes from `first` to `end`.
pub(crate) fn ranged(headers: &HeaderMap, first: u64, end: u64) -> Result<u64, Failed> {
    let text = header(headers, "content-range").unwrap_or("none");
    let parsed = || {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (from, to) = range.split_once('-')?;
        let number = |text: &str| -> Option<u64> {
            text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
        };
        Some((number(from)?, number(to)?.checked_add(1)?, number(total)?))
    };
    match parsed() {
        Some((from, to, total)) if (from, to) == (first, end) && to <= total => Ok(total),
        _ => {
            let why = format!(
                "bytes {first} to {} were asked for, and the answer says that it has {text:?}",
                end - 1
            );
            Err(wrong(ErrorKind::InvalidData, why))
        }
    }
}

/// Appends exactly `wanted` bytes of contents. Memory grows with what comes, not with what a header says, and nobody waits for what a
/// server promises behind them.
///
/// # Errors
/// If fewer come, or the answer says that it has another number. What came stays appended.
pub(crate) fn contents(response: Response<ureq::Body>, wanted: u64, to: &mut Vec<u8>) -> Result<(), Failed> {
    if let Some(told) = content_length(response.headers()).filter(|told| *told != wanted) {
        let why = format!("{wanted} bytes were due, and the answer says that it has {told}");
        return Err(wrong(ErrorKind::InvalidData, why));
    }
    let before = to.len();
    let mut body = response.into_body().into_with_config().limit(u64::MAX).reader().take(wanted);
    let read = body.read_to_end(to);
    let came = (to.len() - before) as u64;
    match read {
        Ok(_) if came == wanted => Ok(()),
        Ok(_) => Err(Failed::Again(format!("{wanted} bytes were due, {came} came"))),
        Err(error) => Err(Failed::Again(format!("{wanted} bytes were due, {came} came, then: {error}"))),
    }
}

/// The beginning of a text that comes with an error.
#[cfg(feature = "objects")]
pub(crate) fn short_text(body: ureq::Body) -> Vec<u8> {
    let mut text = Vec::new();
    // Whatever came before an error may say enough.
    let _ = body.into_with_config().limit(u64::MAX).reader().take(1 << 16).read_to_end(&mut text);
    text
}

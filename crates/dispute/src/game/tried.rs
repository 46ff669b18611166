//! The attempts to reach a party that lost by the clock: the evidence of a forfeit, which is the referee's word, as the forfeit
//! itself is.

use serde::{Deserialize, Serialize};

/// The most kinds of ends that are listed; further kinds are left out.
pub(crate) const ENDS_MAX: usize = 16;

/// The end of an attempt to get an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// No connection was made: refused, unreachable, or no such host.
    NoConnection,
    /// The connection ended before the answer was whole.
    CutOff,
    /// The answer took longer than an attempt lasts.
    Slow,
    /// An HTTP status other than 200.
    Status(u16),
    /// Bytes that the party did not sign.
    NotSigned,
    /// More bytes than any right answer has.
    TooLong,
    /// A signed answer to another question.
    OtherQuestion,
    /// The folder held no answer.
    NoFile,
    /// The folder could not be read or written.
    NoFolder,
}

impl End {
    fn text(self) -> String {
        let text = match self {
            End::NoConnection => "no connection",
            End::CutOff => "connection cut off",
            End::Slow => "no answer in the time of a try",
            End::Status(429) => "status 429 (too many requests)",
            End::Status(503) => "status 503 (ask again)",
            End::Status(status) => return format!("status {status}"),
            End::NotSigned => "bytes that it did not sign",
            End::TooLong => "an answer that is too long",
            End::OtherQuestion => "an answer to another question",
            End::NoFile => "no answer in the folder",
            End::NoFolder => "no folder",
        };
        text.into()
    }
}

/// The attempts to ask a party the question that it owes an answer to, and their ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// The party's index in the terms.
    pub party: usize,
    /// The ends of the attempts, and the number of each.
    pub ends: Vec<(End, u64)>,
}

impl Tried {
    /// A party that was not asked yet.
    #[doc(hidden)] // for the layers above
    pub fn new(party: usize) -> Tried {
        Tried { party, ends: Vec::new() }
    }

    /// Counts an attempt.
    #[doc(hidden)] // for the layers above
    pub fn count(&mut self, end: End) {
        match self.ends.iter().position(|(other, _)| *other == end) {
            Some(place) => self.ends[place].1 = self.ends[place].1.saturating_add(1),
            None if self.ends.len() < ENDS_MAX => self.ends.push((end, 1)),
            None => {}
        }
    }

    /// The attempts in words: `asked 12 times: 10 x no connection, 2 x status 503 (ask again)`.
    pub(crate) fn text(&self) -> String {
        let all = self.ends.iter().fold(0u64, |all, (_, times)| all.saturating_add(*times));
        let ends: Vec<String> =
            self.ends.iter().take(ENDS_MAX).map(|(end, times)| format!("{times} x {}", end.text())).collect();
        match all {
            0 => "a try was under way".into(),
            1 => format!("asked once: {}", ends.join(", ")),
            _ => format!("asked {all} times: {}", ends.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_by_their_ends() {
        let mut tried = Tried::new(1);
        assert_eq!(tried.text(), "a try was under way");
        tried.count(End::Status(503));
        assert_eq!(tried.text(), "asked once: 1 x status 503 (ask again)");
        (0..3).for_each(|_| tried.count(End::NoConnection));
        assert_eq!(tried.text(), "asked 4 times: 1 x status 503 (ask again), 3 x no connection");
        (0..1000).for_each(|status| tried.count(End::Status(status)));
        assert_eq!(tried.ends.len(), ENDS_MAX);
        let text =
            serde_json::to_string(&Tried { party: 1, ends: vec![(End::CutOff, 2), (End::Status(429), 1)] });
        assert_eq!(text.unwrap(), r#"{"party":1,"ends":[["cut_off",2],[{"status":429},1]]}"#);
    }
}

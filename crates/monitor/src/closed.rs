//! Heads of chips' logs: the operator publishes them before a draw, so that no log can be written anew after it.

use std::collections::BTreeMap;

use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::{Malformed, beginning};

use crate::header;
use crate::snapshot::log::{ChipLog, RECORDS_MAX};
use crate::snapshot::record::Serial;

/// The most bytes of a list of heads.
pub const CLOSED_MAX: u64 = 1 << 30;
const HEADER: &str = "tiebreak log heads 1";
const WHAT: &str = "list of log heads";

/// The head of a chip's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The number of records, at least 1.
    pub records: u64,
    /// The link of the last of them.
    pub link: Digest,
}

impl LogHead {
    /// The head of a log; `None` if it has no records.
    pub fn of(log: &ChipLog) -> Option<LogHead> {
        let last = log.records.last()?;
        Some(LogHead { records: log.records.len() as u64, link: last.link() })
    }

    /// The line of a list.
    pub fn line(&self, serial: &Serial) -> String {
        format!("{serial} {} {}", self.records, self.link)
    }
}

/// Heads of logs, by the chips' serial numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedLogs(pub BTreeMap<Serial, LogHead>);

impl ClosedLogs {
    /// The one text of the list.
    pub fn to_text(&self) -> String {
        let lines = self.0.iter().map(|(serial, head)| head.line(serial) + "\n");
        format!("{HEADER}\n{}", lines.collect::<String>())
    }

    /// Parses [`ClosedLogs::to_text`].
    ///
    /// # Errors
    /// If the text has another form, or the chips do not ascend.
    pub fn from_text(text: &str) -> Result<ClosedLogs, Malformed> {
        let body = header::after(text, HEADER, WHAT)?;
        let mut heads = BTreeMap::new();
        for (index, line) in body.split_inclusive('\n').enumerate() {
            let wrong = || {
                let why = format!(
                    "line {} is not `SERIAL RECORDS LINK` with a line end: {:?}",
                    index + 2,
                    beginning(line)
                );
                Malformed::invalid(WHAT, why)
            };
            let line = line.strip_suffix('\n').ok_or_else(wrong)?;
            let [serial, records, link] = line.split(' ').collect::<Vec<_>>()[..] else {
                return Err(wrong());
            };
            let serial = Serial::new(serial)?;
            let records: u64 = records.parse().map_err(|_| wrong())?;
            let head = LogHead { records, link: link.parse()? };
            if !(1..=RECORDS_MAX as u64).contains(&records) || head.line(&serial) != line {
                return Err(wrong());
            }
            if heads.last_key_value().is_some_and(|(last, _)| *last >= serial) {
                let why = format!("chip {serial} stands after a chip that it precedes, or twice");
                return Err(Malformed::invalid(WHAT, why));
            }
            heads.insert(serial, head);
        }
        Ok(ClosedLogs(heads))
    }

    /// The digest that a draw binds.
    pub fn digest(&self) -> Digest {
        hash("tiebreak 2 draw-closed", self.to_text().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_one_text() {
        let head = |records: u64| LogHead { records, link: Digest([records as u8; 32]) };
        let chips = [("A-1", 7), ("A-2", 12), ("B", 1)];
        let list = ClosedLogs(chips.map(|(s, n)| (Serial::new(s).unwrap(), head(n))).into());
        let text = list.to_text();
        assert_eq!(ClosedLogs::from_text(&text).unwrap(), list);
        assert_eq!(ClosedLogs::from_text(&format!("{HEADER}\n")).unwrap(), ClosedLogs::default());
        for other in [
            text.trim_end().to_string(),
            text.replace("A-1 7", "A-1 07"),
            text.replace("A-1 7", "A-1 +7"),
            text.replace("A-1 7", "A-1 0"),
            text.replace("A-1 7", "A-1  7"),
            text.replace("A-1 7", "A-3 7"),
            text.replace("A-1 7", "A-2 7"),
            text.replace("0707", "070A"),
            text.replace("heads 1", "heads 2"),
            text.replace('\n', "\r\n"),
            format!("{text}\n"),
        ] {
            assert!(ClosedLogs::from_text(&other).is_err(), "{other}");
        }
    }
}

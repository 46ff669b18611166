//! The part of a chip's log that an inspector saw: the link of each record, kept for the next inspection.

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;

use crate::header;
use crate::snapshot::log::{ChipLog, RECORDS_MAX};
use crate::snapshot::record::Serial;

/// The most bytes of a file of links.
pub const SEEN_MAX: u64 = 65 * RECORDS_MAX as u64 + 128;
const HEADER: &str = "tiebreak seen log 1";
const WHAT: &str = "seen log";

/// The links of a log's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The chip.
    pub serial: Serial,
    /// The link of each record.
    pub links: Vec<Digest>,
}

impl Seen {
    /// The links of a log.
    pub fn of(serial: &Serial, log: &ChipLog) -> Seen {
        Seen { serial: serial.clone(), links: log.records.iter().map(|record| record.link()).collect() }
    }

    /// The one text of the file.
    pub fn to_text(&self) -> String {
        let links: String = self.links.iter().map(|link| format!("{link}\n")).collect();
        format!("{HEADER}\n{}\n{links}", self.serial)
    }

    /// Parses [`Seen::to_text`].
    ///
    /// # Errors
    /// If the text has another form.
    pub fn from_text(text: &str) -> Result<Seen, Malformed> {
        let wrong = |why: &str| Malformed::invalid(WHAT, why);
        let body = header::after(text, HEADER, WHAT)?;
        let (serial, links) = body.split_once('\n').ok_or_else(|| wrong("the second line has no end"))?;
        if links.len() as u64 > SEEN_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: SEEN_MAX });
        }
        let links = links.split_inclusive('\n').map(|line| {
            line.strip_suffix('\n').ok_or_else(|| wrong("the last line has no end"))?.parse::<Digest>()
        });
        Ok(Seen { serial: Serial::new(serial)?, links: links.collect::<Result<_, _>>()? })
    }

    /// The number of the first record of a log that differs from what was seen; the log's length if records are gone.
    pub fn first_difference(&self, log: &ChipLog) -> Option<usize> {
        let differs = self.links.iter().zip(&log.records).position(|(link, record)| *link != record.link());
        differs.or((self.links.len() > log.records.len()).then_some(log.records.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_one_text() {
        let seen = Seen {
            serial: Serial::new("A-1").unwrap(),
            links: (1..4).map(|byte| Digest([byte; 32])).collect(),
        };
        let text = seen.to_text();
        assert_eq!(Seen::from_text(&text).unwrap(), seen);
        let empty = Seen { links: Vec::new(), ..seen };
        assert_eq!(Seen::from_text(&empty.to_text()).unwrap(), empty);
        for other in [
            text.trim_end().to_string(),
            text.replace("log 1", "log 2"),
            text.replace("A-1", "A 1"),
            text.replace("0101", "010"),
            text.replace('\n', "\r\n"),
            format!("{text}\n"),
            HEADER.to_string(),
        ] {
            assert!(Seen::from_text(&other).is_err(), "{other}");
        }
    }
}

//! The messages of agent and trainer: a JSON object a line, bounded and versioned.
//!
//! Definition: docs/MONITORING-FORMAT.md, "Agent and trainer".

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;

use crate::snapshot::record::Serial;
use crate::snapshot::shard_map;

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// The most bytes of the line that attaches a training, its end included: a map's text, each byte of it escaped by another.
pub const ATTACH_MAX: usize = 2 * shard_map::TEXT_MAX + LINE_MAX;
/// The most bytes of any other line, its end included.
pub const LINE_MAX: usize = 4096;
/// The most bytes of a reason in words.
const WHY_MAX: usize = 512;

/// The words of a trainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromTrainer {
    /// The first line: the training that begins.
    Attach {
        /// The version of the protocol.
        version: u32,
        /// The computation.
        computation: Digest,
        /// The text of the shard map.
        map: String,
        /// The digest of the code that runs on the device.
        code: Digest,
    },
    /// The state at a quiescent point.
    Snapshot {
        /// The number of the agent's question.
        request: u64,
        /// The step after which the state was hashed; 0 is the initial state.
        step: u32,
        /// The digest of the device's shard of the state.
        digest: Digest,
    },
}

/// The words of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromAgent {
    /// The training is attached, and a record says so.
    Attached {
        /// The version of the protocol.
        version: u32,
        /// The chip.
        serial: Serial,
        /// The number of the record.
        record: u64,
    },
    /// A snapshot is due.
    Due {
        /// The question's number.
        request: u64,
    },
    /// A snapshot is in the log, durably: the training goes on.
    Kept {
        /// The question's number.
        request: u64,
        /// The number of the record.
        record: u64,
    },
    /// The answer came after the agent's patience, and a record says that there was none: the training goes on.
    Late {
        /// The question's number.
        request: u64,
    },
    /// The keeper of the log holds the agent up: the training waits for its answer, however long it takes.
    Waiting,
    /// The agent ends the connection.
    Refused {
        /// The reason, in words.
        why: String,
    },
}

impl FromAgent {
    /// The end of a connection for a reason, of which a line takes the beginning.
    pub fn refused(why: &str) -> FromAgent {
        let end = (0..=WHY_MAX.min(why.len())).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
        FromAgent::Refused { why: why[..end].to_string() }
    }
}

/// The line of a message, its end included.
///
/// # Errors
/// If the message cannot be written as JSON.
pub fn to_line(message: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// The message of a line without its end.
///
/// # Errors
/// If the line is no message of this protocol.
pub fn from_line<M: DeserializeOwned>(line: &[u8]) -> Result<M, Malformed> {
    serde_json::from_slice(line).map_err(|error| Malformed::invalid("message", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_page() {
        let digest = Digest([0xab; 32]);
        let page = include_str!("../../../../docs/MONITORING-FORMAT.md").replace("HASH", &digest.to_string());
        let serial = Serial::new("chip-1").unwrap();
        let map = "tiebreak shard map 1\nwhole\n".into();
        let trainer = [
            FromTrainer::Attach { version: 1, computation: digest, map, code: digest },
            FromTrainer::Snapshot { request: 1, step: 20, digest },
        ];
        let agent = [
            FromAgent::Attached { version: 1, serial, record: 1 },
            FromAgent::Due { request: 1 },
            FromAgent::Kept { request: 1, record: 2 },
            FromAgent::Late { request: 1 },
            FromAgent::Waiting,
            FromAgent::refused("another training is attached to this chip"),
        ];
        let mut lines: Vec<Vec<u8>> = trainer.iter().map(|message| to_line(message).unwrap()).collect();
        lines.extend(agent.iter().map(|message| to_line(message).unwrap()));
        for line in &lines {
            let text = std::str::from_utf8(line).unwrap();
            assert!(page.contains(text), "the page has no {text}");
        }
        let read: Vec<FromTrainer> = lines[..2].iter().map(|line| from_line(line).unwrap()).collect();
        assert_eq!(read, trainer);
        let read: Vec<FromAgent> = lines[2..].iter().map(|line| from_line(line).unwrap()).collect();
        assert_eq!(read, agent);
    }

    #[test]
    fn other_lines_are_refused() {
        for line in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"say":"due"}"#,
            r#"{"say":"due","request":-1}"#,
            r#"{"say":"due","request":1,"more":2}"#,
            r#"{"say":"due","request":18446744073709551616}"#,
            r#"{"say":"attached","version":1,"serial":"a b","record":1}"#,
            r#"{"say":"nothing"}"#,
            "{\"say\":\"due\",\"request\":1} {",
        ] {
            assert!(from_line::<FromAgent>(line.as_bytes()).is_err(), "{line}");
        }
        let deep = "[".repeat(100_000);
        assert!(from_line::<FromAgent>(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_reason_is_cut_between_two_characters_and_fits_a_line() {
        let refused = FromAgent::refused(&"ä\u{1}".repeat(1000));
        assert!(to_line(&refused).unwrap().len() < LINE_MAX);
        let FromAgent::Refused { why } = refused else { panic!() };
        assert!(why.len() > WHY_MAX - 4 && why.starts_with("ä\u{1}ä"));
    }
}

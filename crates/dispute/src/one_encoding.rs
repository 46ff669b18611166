//! The one encoding of files and messages, JSON without white space; a reader compares it without making a copy.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tiebreak_record::commit::Malformed;

/// The bytes that are still to come.
struct Compared<'a>(&'a [u8]);

impl Write for Compared<'_> {
    fn write(&mut self, right: &[u8]) -> io::Result<usize> {
        let same = right.iter().zip(self.0).take_while(|(right, found)| right == found).count();
        self.0 = &self.0[same..];
        if same == right.len() { Ok(same) } else { Err(ErrorKind::InvalidData.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The first byte, counted from 0, that is not as JSON without white space has it; `None` if all are.
pub(super) fn other_from<T: Serialize>(value: &T, found: &[u8]) -> Option<usize> {
    let mut compared = Compared(found);
    let ended = serde_json::to_writer(&mut compared, value);
    (ended.is_err() || !compared.0.is_empty()).then(|| found.len() - compared.0.len())
}

/// The only encoding of a message.
pub fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data")
}

/// Parses the only encoding of a message.
///
/// # Errors
/// If there are more than `limit` bytes, or they are another encoding.
pub fn from_bytes<T: Serialize + DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    limit: u64,
) -> Result<T, Malformed> {
    if bytes.len() as u64 > limit {
        return Err(Malformed::TooLarge { what, limit });
    }
    let message =
        serde_json::from_slice(bytes).map_err(|error| Malformed::invalid(what, error.to_string()))?;
    if other_from(&message, bytes).is_some() {
        return Err(Malformed::invalid(what, "it is not in its one encoding"));
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::other_from;

    #[test]
    fn the_first_other_byte_is_found() {
        let value = vec![10, 20, 30];
        for (found, other) in [
            ("[10,20,30]", None),
            ("[10,20,30] ", Some(10)),
            ("[10,20,30", Some(9)),
            ("[10, 20,30]", Some(4)),
            ("", Some(0)),
        ] {
            assert_eq!(other_from(&value, found.as_bytes()), other, "{found}");
        }
    }
}

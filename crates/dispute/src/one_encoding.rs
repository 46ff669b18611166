//! Compares a file with the one encoding of what it says, without making a copy of the encoding.

use std::io::{ErrorKind, Result, Write};

use serde::Serialize;

/// The bytes that are still to come.
struct Compared<'a>(&'a [u8]);

impl Write for Compared<'_> {
    fn write(&mut self, right: &[u8]) -> Result<usize> {
        let same = right.iter().zip(self.0).take_while(|(right, found)| right == found).count();
        self.0 = &self.0[same..];
        if same == right.len() { Ok(same) } else { Err(ErrorKind::InvalidData.into()) }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The first byte, counted from 0, that is not as JSON without white space has it; `None` if all are.
pub(super) fn other_from<T: Serialize>(value: &T, found: &[u8]) -> Option<usize> {
    let mut compared = Compared(found);
    let ended = serde_json::to_writer(&mut compared, value);
    (ended.is_err() || !compared.0.is_empty()).then(|| found.len() - compared.0.len())
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

//! The file of a register: its entries, a line each, and the signed head over them.

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::named_head::NamedHead;

use super::entry::Entry;
use super::history::Register;
use crate::header;

/// The most bytes of a register's file.
pub const FILE_MAX: u64 = 1 << 31;
/// The first line of a register's file.
pub const HEADER: &str = "tiebreak register 1";
const WHAT: &str = "register";

/// The text of a register's file, signed by the registrar's key.
pub fn to_text(register: &Register, key: &PrivateKey) -> String {
    let lines: String = register.entries().iter().map(|entry| entry.line() + "\n").collect();
    format!("{HEADER}\n{lines}\n{}", register.head().to_note(Some(key)))
}

/// Reads the text of [`to_text`]. With a key, the head has to be signed by it.
///
/// # Errors
/// If the text has another form, an entry contradicts those before it, or the head is not over these entries.
pub fn from_text(text: &str, key: Option<&PublicKey>) -> Result<Register, Malformed> {
    let wrong = |why: &str| Malformed::invalid(WHAT, why);
    let body = header::after(text, HEADER, WHAT)?;
    let (lines, note) = match body.strip_prefix('\n') {
        Some(note) => ("", note),
        None => body.split_once("\n\n").ok_or_else(|| wrong("there is no blank line before the head"))?,
    };
    let head = head_from(note, key)?;
    let name = Register::name_of(&head.origin).unwrap_or_default();
    let mut register = Register::new(name)?;
    for (number, line) in lines.lines().enumerate() {
        let entry = Entry::from_line(line)
            .map_err(|error| Malformed::invalid(WHAT, format!("entry {number}: {error}")))?;
        register.append(entry)?;
    }
    let found = register.head();
    if found != head {
        let why =
            format!("the head is over {} entries with another root than the {} here", head.size, found.size);
        return Err(Malformed::invalid(WHAT, why));
    }
    // `lines` takes more line ends than one.
    let again: String = register.entries().iter().map(|entry| entry.line() + "\n").collect();
    if format!("{lines}\n") != again && !lines.is_empty() {
        return Err(wrong("lines end with one line end each"));
    }
    Ok(register)
}

/// Reads a register's head alone, such as an inspector kept of an earlier day.
///
/// # Errors
/// If the text is no head of a register, or is not signed by the key.
pub fn head_from(note: &str, key: Option<&PublicKey>) -> Result<NamedHead, Malformed> {
    let (head, _) = NamedHead::from_note(note, key, "registrar")?;
    match Register::name_of(&head.origin) {
        Some(_) => Ok(head),
        None => Err(Malformed::invalid("head", "the origin is no register of chips")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::entry::Change;
    use crate::snapshot::record::Serial;

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::generate("registrar.example", [seed; 32]).unwrap()
    }

    fn register(chips: u8) -> Register {
        let mut register = Register::new("example").unwrap();
        for chip in 0..chips {
            let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
            let change =
                Change::Enter { key: key(100 + chip).public().to_text(), model, owner, site, exempt: None };
            let serial = Serial::new(&format!("chip-{chip}")).unwrap();
            register.append(Entry { time: 100, serial, change }).unwrap();
        }
        register
    }

    #[test]
    fn a_register_has_one_text() {
        for chips in 0..4 {
            let register = register(chips);
            let text = to_text(&register, &key(1));
            assert_eq!(from_text(&text, Some(&key(1).public())).unwrap(), register);
            assert_eq!(from_text(&text, None).unwrap(), register);
            assert!(from_text(&text, Some(&key(2).public())).is_err());
            let note = &text[text.find(&register.origin()).unwrap()..];
            assert_eq!(head_from(note, None).unwrap(), register.head());
            // Every bit counts, and so does every place where the text may be cut.
            for at in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1;
                let changed = String::from_utf8(bytes).map(|text| from_text(&text, Some(&key(1).public())));
                assert!(!matches!(changed, Ok(Ok(_))), "byte {at} of {text}");
                let cut = text.get(..at).map(|text| from_text(text, Some(&key(1).public())));
                assert!(!matches!(cut, Some(Ok(_))), "{at} bytes of {text}");
            }
            assert!(from_text(&text.replace('\n', "\r\n"), None).is_err());
            assert!(from_text(&text.replacen('\n', "\n\n", 1), None).is_err());
        }
    }

    #[test]
    fn a_head_of_other_entries_is_refused() {
        let (short, long) = (to_text(&register(1), &key(1)), to_text(&register(2), &key(1)));
        let (lines, note) = (short.split_once("\n\n").unwrap().0, long.split_once("\n\n").unwrap().1);
        let error = from_text(&format!("{lines}\n\n{note}"), Some(&key(1).public())).unwrap_err();
        assert!(error.to_string().contains("2 entries"), "{error}");
        let run = "tiebreak/run/".to_string() + &"0".repeat(64);
        assert!(
            from_text(
                &format!("{HEADER}\n\n{run}\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n"),
                None
            )
            .is_err()
        );
    }
}

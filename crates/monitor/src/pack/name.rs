//! The names of a pack's files, from which no path leads out of a folder.

use std::cmp::Ordering;

use super::error::{PackError, invalid};
use tiebreak_record::commit::beginning;

/// The most bytes of a name.
pub const NAME_MAX: usize = 128;

/// The order of names: by bytes, with `/` before every other one. So a folder's files follow each other.
pub fn order(one: &str, other: &str) -> Ordering {
    let key = |byte: u8| if byte == b'/' { 0 } else { byte };
    one.bytes().map(key).cmp(other.bytes().map(key))
}

/// Checks a name: one component, or a folder and a file. A component has lower-case letters, digits, `.`, `_` and `-`, and does
/// not begin with `.`.
///
/// # Errors
/// If the name is another one.
pub(super) fn check(name: &str) -> Result<(), PackError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let fine = |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(plain);
    if name.len() <= NAME_MAX && name.split('/').count() <= 2 && name.split('/').all(fine) {
        return Ok(());
    }
    Err(invalid(format!("no file of a pack may be called {:?}", beginning(name))))
}

/// Checks that a name comes after another one, and that neither is a file where the other has a folder.
///
/// # Errors
/// If it does not.
pub(super) fn follows(previous: &str, name: &str) -> Result<(), PackError> {
    if order(previous, name) != Ordering::Less {
        return Err(invalid(format!("its files are not in order: {name} comes after {previous}")));
    }
    if name.strip_prefix(previous).is_some_and(|rest| rest.starts_with('/')) {
        return Err(invalid(format!("{previous} is a file, and {name} needs it to be a folder")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        for fine in ["run.json", "data/data-0.bin", "heads/000000000001", "a", "companions/merges.txt"] {
            assert!(check(fine).is_ok(), "{fine}");
        }
        let long = "a".repeat(NAME_MAX + 1);
        for wrong in [
            "",
            "/",
            "/etc/passwd",
            "a/",
            "a//b",
            "..",
            "../a",
            "a/..",
            "a/../b",
            ".",
            "a/.hidden",
            "a/b/c",
            "a\\b",
            "c:",
            "A",
            "a b",
            "a\0",
            "ä",
            &long,
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_come_once_and_in_order() {
        let sorted = ["a", "a-b", "a.b", "b/a", "b/c", "b-", "c/b"];
        for pair in sorted.windows(2) {
            assert!(follows(pair[0], pair[1]).is_ok(), "{pair:?}");
            assert!(follows(pair[1], pair[0]).is_err(), "{pair:?}");
        }
        for (previous, name) in [("a", "a"), ("b/a", "b/a"), ("a", "a/b"), ("b/c", "b")] {
            assert!(follows(previous, name).is_err(), "{previous} {name}");
        }
    }
}

//! The first line of text files, which says what they are.

use tiebreak_record::commit::{Malformed, beginning};

/// The text after its first line, which has to be `header`. `what` names the kind of file in errors.
///
/// # Errors
/// If the first line is another one, or has no line end.
pub(crate) fn after<'a>(text: &'a str, header: &str, what: &'static str) -> Result<&'a str, Malformed> {
    text.strip_prefix(header).and_then(|rest| rest.strip_prefix('\n')).ok_or_else(|| {
        let found = beginning(text.lines().next().unwrap_or_default());
        Malformed::invalid(what, format!("the first line is {found:?}; {header:?} is wanted"))
    })
}

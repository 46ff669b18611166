//! Colour of outcome words and errors, where a terminal shows it.

use std::env;

use clap::ColorChoice;

const GREEN: &str = "\u{1b}[1;32m";
const RED: &str = "\u{1b}[1;31m";
const YELLOW: &str = "\u{1b}[1;33m";
const RESET: &str = "\u{1b}[0m";

/// Words that say how something ended, and `error:`. Of two that begin alike the longer one stands first.
const WORDS: [(&str, &str); 27] = [
    ("MATCHES", GREEN),
    ("CONSISTENT", GREEN),
    ("INCONSISTENT", RED),
    ("OPENS", GREEN),
    ("DIVERGES", RED),
    ("DIFFERS", RED),
    ("CONVICTED", RED),
    ("CONVICTS", RED),
    ("DAMAGED", RED),
    ("error:", RED),
    ("THE HONEST PROVIDER LOST", RED),
    ("FORFEITED", YELLOW),
    ("STOPPED", YELLOW),
    ("UNDECIDED", YELLOW),
    ("COULD NOT DECIDE", YELLOW),
    ("INCOMPLETE", YELLOW),
    ("CORRECTED", YELLOW),
    ("NOT FINISHED", YELLOW),
    ("NOT CONFIRMED", YELLOW),
    ("NOT FINITE", YELLOW),
    ("NOT THE LOG", YELLOW),
    ("NOBODY IS ACCUSED", YELLOW),
    ("UNBOUNDED FREEDOM", YELLOW),
    ("UNUSUAL ROUNDING", YELLOW),
    ("PASS", GREEN),
    ("FAIL", RED),
    ("NOT DECIDED", YELLOW),
];

/// True if a stream gets colour.
pub fn is_wanted(choice: ColorChoice, is_terminal: bool) -> bool {
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    // Consoles of Windows that obey these codes set one of these variables.
    let obeys = cfg!(not(windows)) || ["WT_SESSION", "TERM", "ANSICON", "ConEmuANSI"].into_iter().any(set);
    decided(choice, is_terminal && obeys, set("NO_COLOR"), dumb)
}

fn decided(choice: ColorChoice, is_terminal: bool, no_color: bool, dumb: bool) -> bool {
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && !no_color && !dumb,
    }
}

/// Lines with colour: an outcome word at a line's beginning, or behind a party's name, as in `party 0 (alice): CONVICTED`. Text of
/// strangers stands elsewhere and gets none.
pub fn painted(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(line).collect();
    lines.join("\n")
}

fn line(text: &str) -> String {
    let begin = text.len() - text.trim_start().len();
    // Names of keys have no spaces, so a party's name cannot hold the word that is painted.
    let party = text[begin..].starts_with("party ").then(|| text.find("): ").map(|at| at + 3)).flatten();
    let places = [Some(begin), party];
    let found = places.into_iter().flatten().find_map(|at| {
        let word = WORDS.iter().find(|(word, _)| text[at..].starts_with(word));
        word.map(|(word, colour)| (at, at + word.len(), *colour))
    });
    match found {
        Some((from, to, colour)) => {
            format!("{}{colour}{}{RESET}{}", &text[..from], &text[from..to], &text[to..])
        }
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_and_dumb_terminals_win_over_auto_alone() {
        use ColorChoice::{Always, Auto, Never};
        for (choice, terminal, no_color, dumb, wanted) in [
            (Auto, true, false, false, true),
            (Auto, false, false, false, false),
            (Auto, true, true, false, false),
            (Auto, true, false, true, false),
            (Always, false, true, true, true),
            (Never, true, false, false, false),
        ] {
            assert_eq!(
                decided(choice, terminal, no_color, dumb),
                wanted,
                "{choice} {terminal} {no_color} {dumb}"
            );
        }
    }

    #[test]
    fn words_that_say_the_outcome_are_painted_and_no_others() {
        assert_eq!(
            painted("MATCHES: 3 steps\n  DIVERGES at step 2"),
            "\u{1b}[1;32mMATCHES\u{1b}[0m: 3 steps\n  \u{1b}[1;31mDIVERGES\u{1b}[0m at step 2"
        );
        assert_eq!(
            painted("party 0 (alice): CONVICTED, wrong value"),
            "party 0 (alice): \u{1b}[1;31mCONVICTED\u{1b}[0m, wrong value"
        );
        for plain in [
            "run MATCHES",
            "a file called DIVERGES",
            "matches",
            "",
            "file (x): MATCHES",
            "ok: a (b): MATCHES",
        ] {
            assert_eq!(painted(plain), plain);
        }
    }
}

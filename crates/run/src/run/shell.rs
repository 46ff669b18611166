//! Commands that a person is told to type, quoted for a shell.

use std::path::Path;

/// A word of a command line, quoted if a shell would not take it literally.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c) || (c as u32) > 0x7f;
    let (is_plain, has_controls) = (text.chars().all(plain), text.chars().any(char::is_control));
    match (is_plain && !text.is_empty() && !has_controls, has_controls) {
        (true, _) => text.to_string(),
        // A terminal is shown no control characters; bash and zsh read them back from this form.
        (false, true) => format!("$'{}'", text.chars().map(escaped).collect::<String>()),
        (false, false) if cfg!(windows) => format!("\"{text}\""),
        (false, false) => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn escaped(c: char) -> String {
    match c {
        '\\' | '\'' => format!("\\{c}"),
        c if c.is_control() => {
            c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\x{byte:02x}")).collect()
        }
        c => c.to_string(),
    }
}

/// A path as a word of a command line. A path that begins with `-` gets `./` before it, so that it is no option.
pub fn path(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.starts_with('-') { word(&format!("./{text}")) } else { word(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_the_words_back() {
        for text in [
            "runs/a",
            "my run",
            "it's",
            "$HOME",
            "a;b",
            "*",
            "~",
            "größe",
            "",
            "a\nb",
            "\u{1b}[31m'\\ x",
            "\u{85}",
            "a\"b",
        ] {
            let command = format!("printf %s {}", word(text));
            let shell = if text.chars().any(char::is_control) { "bash" } else { "sh" };
            let output = std::process::Command::new(shell).args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "{command}");
            assert!(!word(text).chars().any(char::is_control));
        }
        assert_eq!(word("runs/a-1.toml"), "runs/a-1.toml");
        assert_eq!(path(Path::new("-run")), "./-run");
        assert_eq!(path(Path::new("-my run")), "'./-my run'");
    }
}

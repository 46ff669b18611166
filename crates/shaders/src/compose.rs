//! Expands `//!include shared/NAME.wgsl` lines: each file once, in the order of first mention. The module uses the
//! standard library only, because the build script uses this file too.

/// The reason why a shader cannot be composed.
#[derive(Debug, PartialEq, Eq)]
pub struct ComposeError {
    /// The file under `shaders/`.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The error, in words.
    pub message: String,
}

impl std::fmt::Display for ComposeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shaders/{}:{}: {}", self.file, self.line, self.message)
    }
}

impl std::error::Error for ComposeError {}

const DIRECTIVE: &str = "//!include ";

/// The text of `file` with its includes expanded; `lookup` gives the text of an included file.
///
/// # Errors
/// If an included file does not exist, or includes itself.
pub fn compose<'a>(
    file: &str,
    text: &str,
    lookup: &dyn Fn(&str) -> Option<&'a str>,
) -> Result<String, ComposeError> {
    let mut out = String::new();
    expand(file, text, lookup, &mut Vec::new(), &mut Vec::new(), &mut out)?;
    Ok(out)
}

fn expand<'a>(
    file: &str,
    text: &str,
    lookup: &dyn Fn(&str) -> Option<&'a str>,
    open: &mut Vec<String>,
    done: &mut Vec<String>,
    out: &mut String,
) -> Result<(), ComposeError> {
    open.push(file.to_string());
    for (number, line) in text.lines().enumerate() {
        let Some(name) = line.strip_prefix(DIRECTIVE).map(str::trim) else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let error = |message: String| Err(ComposeError { file: file.to_string(), line: number + 1, message });
        if open.iter().any(|f| f == name) {
            return error(format!("{name} includes itself"));
        }
        if done.iter().any(|f| f == name) {
            continue;
        }
        match lookup(name) {
            Some(included) => expand(name, included, lookup, open, done, out)?,
            None => return error(format!("there is no {name}")),
        }
    }
    open.pop();
    done.push(file.to_string());
    Ok(())
}

//! The commands that go on from a result: a line each for people, and the same commands in the field `next` of its JSON.

use serde::Serialize;

/// A command that goes on from a result.
#[derive(Clone, Debug, Serialize)]
pub struct Next {
    /// The purpose of the command, in words.
    why: String,
    /// The command, as a shell takes it.
    command: String,
    /// The meaning of a word in the command that only its reader knows, such as `FOLDER`.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Next {
    /// A command with its purpose.
    pub fn new(why: impl Into<String>, command: impl Into<String>) -> Next {
        Next { why: why.into(), command: command.into(), note: None }
    }

    /// The same command, with the meaning of a word in it.
    pub fn note(self, note: impl Into<String>) -> Next {
        Next { note: Some(note.into()), ..self }
    }

    /// The purpose of the command.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The command.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The line for people.
    pub fn line(&self) -> String {
        let note = self.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
        format!("{}: {}{note}", self.why, self.command)
    }
}

/// The lines for people.
pub fn lines(next: &[Next]) -> impl Iterator<Item = String> {
    next.iter().map(Next::line)
}

//! The prompt of `tiebreak generate`: a text, or what the tokenizer's chat template makes of messages.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::chats::Chats;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_run::run::{RunError, disk};

/// The most bytes of a chat's file, and of the prompt that a template makes of it.
const CHAT_MAX: usize = 1 << 24;

/// The prompt on the command line.
#[derive(clap::Args)]
pub struct PromptArgs {
    /// Text that the model goes on with.
    ///
    /// Without the option the text is one line end.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["message", "chat"])]
    prompt: Option<String>,
    /// Take the prompt as token ids, such as '3 1 4', and write ids.
    ///
    /// No tokenizer is read: each id of the model may be written, and none ends the text. A receipt names the tokenizer, so none is written.
    #[arg(long, requires = "prompt", conflicts_with_all = ["tokenizer", "receipt", "trace", "opening", "key"], hide_short_help = true)]
    pub ids: bool,
    /// Message of a user, which the model answers.
    ///
    /// The chat template of the model's tokenizer makes the prompt of it. The command prints the answer alone.
    #[arg(long, value_name = "TEXT", conflicts_with = "chat")]
    message: Option<String>,
    /// Instruction that stands before `--message`.
    #[arg(long, value_name = "TEXT", requires = "message")]
    system: Option<String>,
    /// File of a chat that the model answers; - reads standard input.
    ///
    /// The file is one object, `{"messages": [{"role": "user", "content": "Two plus two?"}]}`.
    #[arg(long, value_name = "FILE")]
    chat: Option<PathBuf>,
}

impl PromptArgs {
    /// True if the prompt is made of messages.
    pub fn is_chat(&self) -> bool {
        self.message.is_some() || self.chat.is_some()
    }

    /// The text of the prompt.
    pub fn text(&self, alphabet: &Alphabet) -> Result<String, Failure> {
        let (messages, exit) = match (&self.message, &self.chat) {
            (Some(message), _) => {
                let system = self.system.iter().map(|text| ("system", text));
                let all = system.chain([("user", message)]);
                (all.map(|(role, text)| json!({ "role": role, "content": text })).collect(), Exit::Usage)
            }
            (None, Some(path)) => (messages(path)?, Exit::Malformed),
            (None, None) => return Ok(self.prompt.clone().unwrap_or_else(|| "\n".into())),
        };
        let started = Chats::start(alphabet);
        let mut chats = started.map_err(|why| {
            Failure::new(Exit::Usage, why)
                .help("give the text itself as --prompt, or name another --tokenizer")
        })?;
        chats.prompt(&messages, CHAT_MAX).map_err(|why| Failure::new(exit, why))
    }
}

/// The messages in a file of one chat.
fn messages(path: &Path) -> Result<Value, Failure> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().take(CHAT_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(RunError::io(Path::new("standard input")))?;
        bytes
    } else {
        disk::read(path, CHAT_MAX as u64)?
    };
    let wrong = |why: String| {
        let why = format!("--chat {}: {why}", path.display());
        Failure::new(Exit::Malformed, why)
            .help(r#"a file has one chat, such as {"messages": [{"role": "user", "content": "Hi"}]}"#)
    };
    if bytes.len() > CHAT_MAX {
        return Err(wrong(format!("a chat has at most {CHAT_MAX} bytes")));
    }
    let chat: Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
    let mut chat = chat.map_err(|why| wrong(format!("this is no object of JSON: {why}")))?;
    let given = |key: &&str| chat.get(*key).is_some_and(|value| !value.is_null());
    if let Some(other) = ["tools", "documents"].into_iter().find(given) {
        return Err(wrong(format!("it has {other}; messages alone are taken")));
    }
    chat.remove("messages").ok_or_else(|| wrong("it has no messages".into()))
}

/// The ids of a prompt, which are the model's.
pub fn ids(alphabet: &Alphabet, text: &str, classes: u32) -> Result<Vec<u32>, Failure> {
    let prompt = alphabet.ids(text)?;
    let greatest = prompt.iter().max();
    if greatest.is_none_or(|&id| id >= classes) {
        let found = greatest.map_or("it has none".into(), |id| format!("its greatest has number {id}"));
        let why = format!("the prompt must have tokens below {classes}, those of the model; {found}");
        return Err(Failure::new(Exit::Usage, why));
    }
    Ok(prompt)
}

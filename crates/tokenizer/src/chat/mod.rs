//! Chats as the text that a model's chat template makes of them.
//!
//! A template is a program of a stranger, and so are messages texts of strangers. [`Renderer`] runs the template in a process of
//! its own, with bounds on work, time and memory: whatever a template does ends that process alone.

mod render;
mod template;
#[cfg(test)]
mod tests;
mod worker;

pub use render::Rendered;
pub use template::{FILES, Template};
pub(crate) use worker::{ARGUMENT, serve};
pub use worker::{Bounds, Renderer};

use serde_json::{Map, Value};

/// The most bytes of the texts of a chat, and of the text that a template makes of it.
pub const TEXT_MAX: usize = 1 << 24;
/// The most messages of a chat.
pub const MESSAGES_MAX: usize = 1 << 16;

/// A message: its fields with their texts, the role first, then the content.
type Message = Vec<(String, String)>;

/// The messages of a chat, each with a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat(Vec<Message>);

impl Chat {
    /// The chat that a list of JSON has. A field that is null is left out, as transformers does.
    ///
    /// # Errors
    /// If it is no list of objects whose fields are texts, or a message has no role, in words.
    pub fn read(messages: &Value) -> Result<Chat, String> {
        let list = messages.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or("the messages are no list of one message or more")?;
        if list.len() > MESSAGES_MAX {
            return Err(format!("it has {} messages; at most {MESSAGES_MAX} are taken", list.len()));
        }
        let numbered = list.iter().enumerate();
        let read = numbered.map(|(number, message)| {
            read_message(message).map_err(|why| format!("message {}: {why}", number + 1))
        });
        let chat = Chat(read.collect::<Result<Vec<Message>, String>>()?);
        let bytes: usize = chat.0.iter().flatten().map(|(name, text)| name.len() + text.len()).sum();
        match bytes <= TEXT_MAX {
            true => Ok(chat),
            false => Err(format!("the messages have {bytes} bytes; at most {TEXT_MAX} are taken")),
        }
    }

    /// The messages as JSON, which [`Chat::read`] reads again.
    fn to_json(&self) -> Value {
        let object = |message: &Message| {
            message.iter().map(|(name, text)| (name.clone(), Value::from(&text[..]))).collect::<Map<_, _>>()
        };
        self.0.iter().map(object).collect()
    }

    /// The numbers of the assistant's messages.
    fn turns(&self) -> impl Iterator<Item = usize> {
        let is_assistant =
            |message: &Message| message.iter().any(|(name, text)| name == "role" && text == "assistant");
        (0..self.0.len()).filter(move |&turn| is_assistant(&self.0[turn]))
    }
}

fn read_message(message: &Value) -> Result<Message, String> {
    let object = message.as_object().ok_or("it is no object")?;
    let mut fields = Message::new();
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let why = || {
            format!(
                "its field {name:?} is no text: lists of parts, tool calls and pictures are not supported"
            )
        };
        fields.push((name.clone(), value.as_str().ok_or_else(why)?.into()));
    }
    fields.sort_by_key(|(name, _)| match &name[..] {
        "role" => 0,
        "content" => 1,
        _ => 2,
    });
    match fields.first() {
        Some((name, _)) if name == "role" => Ok(fields),
        _ => Err("it has no role".into()),
    }
}

//! The prompts that a tokenizer's chat template makes of messages. A model over bytes has no template.

use serde_json::Value;
#[cfg(feature = "tokenizer")]
use tiebreak_tokenizer::chat::{Bounds, Chat, Renderer};

use crate::cli::view::alphabet::Alphabet;

/// The most seconds that a template may take for a chat.
#[cfg(feature = "tokenizer")]
const SECONDS: u32 = 5;

/// A chat template in a process of its own.
pub struct Chats {
    #[cfg(feature = "tokenizer")]
    renderer: Renderer,
    /// A build that reads no tokenizers has no value of this type.
    #[cfg(not(feature = "tokenizer"))]
    never: std::convert::Infallible,
}

impl Chats {
    /// Starts the process with the alphabet's template.
    ///
    /// # Errors
    /// If there is no template, it is not understood, or no process can be started, in words.
    pub fn start(alphabet: &Alphabet) -> Result<Chats, String> {
        match alphabet {
            Alphabet::Bytes => {
                Err("the model is over bytes, and only a tokenizer has a chat template".into())
            }
            Alphabet::Ids => Err("the prompt is token ids, which no template makes".into()),
            #[cfg(feature = "tokenizer")]
            Alphabet::Tokens(tokens) => {
                let bounds = Bounds { seconds: SECONDS, help: "shorten the messages" };
                Ok(Chats { renderer: Renderer::start(tokens.template.clone()?, bounds)? })
            }
        }
    }

    /// Starts the process again, if the last chat ended it.
    ///
    /// # Errors
    /// If the system starts none, in words.
    pub fn ready(&mut self) -> Result<(), String> {
        #[cfg(feature = "tokenizer")]
        return self.renderer.ready();
        #[cfg(not(feature = "tokenizer"))]
        match self.never {}
    }

    /// The text of the messages and the beginning of the next answer, of at most so many bytes.
    ///
    /// # Errors
    /// If these are no messages, the template refuses them, or they go beyond a bound, in words.
    #[cfg(feature = "tokenizer")]
    pub fn prompt(&mut self, messages: &Value, most: usize) -> Result<String, String> {
        self.renderer.prompt(&Chat::read(messages)?, most)
    }

    /// See the other one: without the feature there are no values of this type.
    #[cfg(not(feature = "tokenizer"))]
    pub fn prompt(&mut self, _: &Value, _: usize) -> Result<String, String> {
        match self.never {}
    }
}

//! The tokenizer for many requests at once. It works beside the server's own thread, so a slow text stops no other request.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{Exit, Failure};

/// An alphabet that many requests ask at once, each in its turn. However many there are, they take two threads.
#[derive(Clone)]
pub struct Shared {
    alphabet: Arc<Alphabet>,
    /// Held while the tokens of a prompt are made.
    prompts: Arc<Mutex<()>>,
    /// Held while the text of tokens is made, which waits for no prompt: the tokenizer has another process for it.
    texts: Arc<Mutex<()>>,
}

impl Shared {
    pub fn new(alphabet: Arc<Alphabet>) -> Shared {
        Shared { alphabet, prompts: Arc::default(), texts: Arc::default() }
    }

    /// True if each id is a byte.
    pub fn is_bytes(&self) -> bool {
        self.alphabet.is_bytes()
    }

    /// The ids of a text.
    pub async fn ids(&self, text: String) -> Result<Vec<u32>, Failure> {
        self.beside(&self.prompts, move |alphabet| alphabet.ids(&text)).await
    }

    /// The text of ids that follow the first `given`. A thread that fails loses the ids.
    pub async fn after(&self, ids: &mut Vec<u32>, given: usize) -> Result<String, Failure> {
        // A long answer is not copied for each of its tokens.
        let own = std::mem::take(ids);
        let work = move |alphabet: &Alphabet| {
            let text = alphabet.after(&own, given);
            Ok((own, text))
        };
        let (own, text) = self.beside(&self.texts, work).await?;
        *ids = own;
        text
    }

    /// Works beside the server's thread once it is this request's turn. A client that leaves gives up its turn. Work that is begun keeps
    /// the turn until it ends, within the tokenizer's time.
    async fn beside<T: Send + 'static>(
        &self,
        turns: &Arc<Mutex<()>>,
        work: impl FnOnce(&Alphabet) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        if self.is_bytes() {
            return work(&self.alphabet);
        }
        let (turn, alphabet) = (turns.clone().lock_owned().await, self.alphabet.clone());
        let working = spawn_blocking(move || {
            let _turn = turn;
            work(&alphabet)
        });
        working.await.unwrap_or_else(|why| Err(Failure::new(Exit::Undecided, why.to_string())))
    }
}

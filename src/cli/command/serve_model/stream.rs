//! The text of an answer as its tokens come, whole or as a stream of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::queue::Event;
use super::tokenizing::Shared;
use super::wire::{Ending, Head, Refusal};

/// An answer that is on its way to a client.
pub struct Coming {
    pub alphabet: Shared,
    pub head: Head,
    pub events: UnboundedReceiver<Event>,
    /// The ids of prompt and answer, and how many of them are the prompt's.
    pub ids: Vec<u32>,
    pub given: usize,
    /// The part of the text that was sent, from the id with number `from` on.
    pub sent: String,
    pub from: usize,
    /// True if a stream's last event has the counts of tokens.
    pub usage: bool,
    /// True once a part was sent.
    pub begun: bool,
    pub over: bool,
}

/// The error of a server that ended.
fn ended() -> Refusal {
    Refusal::new(503, "unavailable", "the server ended before the answer was whole")
}

impl Coming {
    /// The answer's text so far.
    async fn text(&mut self) -> Result<String, Refusal> {
        let text = self.alphabet.after(&mut self.ids, self.from).await;
        text.map_err(|failure| Refusal::new(500, "tokenizer", failure.message))
    }

    /// The part of the text that was not sent.
    fn rest(&mut self, text: String) -> String {
        // A tokenizer that writes its tokens in another way where others follow sends what follows later.
        let Some(new) = text.strip_prefix(&self.sent[..]) else { return String::new() };
        let new = new.to_string();
        self.sent = text;
        new
    }

    /// The part of the text that one more token adds. A character that the last tokens begin is not whole.
    async fn part(&mut self, id: u32) -> Result<String, Refusal> {
        self.ids.push(id);
        let text = self.text().await?;
        if text.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        let part = self.rest(text);
        if self.alphabet.is_bytes() {
            // Behind a whole character the text goes on by itself, so that a long one is not read again for each token.
            (self.from, self.sent) = (self.ids.len(), String::new());
        }
        Ok(part)
    }

    /// Waits for the whole answer.
    pub async fn whole(mut self) -> Result<Value, Refusal> {
        loop {
            match self.events.recv().await {
                None => return Err(ended()),
                Some(Event::Token(id)) => self.ids.push(id),
                Some(Event::Failed(why)) => return Err(*why),
                Some(Event::Done(ending)) => {
                    let text = self.text().await?;
                    return Ok(self.head.whole(&text, self.given, &ending));
                }
            }
        }
    }

    async fn last(&mut self, ending: &Ending) -> Result<String, Refusal> {
        let text = self.text().await?;
        let rest = self.rest(text);
        let mut events = event(&self.head.last(&rest, !self.begun, ending));
        if self.usage {
            events.push_str(&event(&self.head.usage(self.given, ending)));
        }
        Ok(events + "data: [DONE]\n\n")
    }

    /// The text of the events that a message makes, which may be none.
    async fn events(&mut self, message: Option<Event>) -> String {
        let events = match message {
            Some(Event::Token(id)) => self.part(id).await.map(|part| match part.is_empty() {
                true => part,
                false => event(&self.head.part(&part, !std::mem::replace(&mut self.begun, true))),
            }),
            Some(Event::Done(ending)) => {
                self.over = true;
                self.last(&ending).await
            }
            Some(Event::Failed(why)) => Err(*why),
            None => Err(ended()),
        };
        events.unwrap_or_else(|why| {
            self.over = true;
            event(&why.json())
        })
    }

    /// The next events that have text, and the answer behind them; `None` at the end.
    async fn next(mut self) -> Option<(String, Coming)> {
        while !self.over {
            let message = self.events.recv().await;
            let events = self.events(message).await;
            if !events.is_empty() {
                return Some((events, self));
            }
        }
        None
    }

    /// The answer as a stream of events, one token's behind the other's.
    pub fn streamed(self) -> Stream {
        Stream { next: Some(Box::pin(self.next())) }
    }
}

fn event(message: &Value) -> String {
    format!("data: {message}\n\n")
}

type Next = dyn Future<Output = Option<(String, Coming)>> + Send;

/// The body of a stream.
pub struct Stream {
    /// The next events; `None` behind the last ones.
    next: Option<Pin<Box<Next>>>,
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (events, coming) = ready!(next.as_mut().poll(context)).unzip();
        self.next = coming.map(|coming| Box::pin(coming.next()) as Pin<Box<Next>>);
        Poll::Ready(events.map(|events| Ok(Frame::data(Bytes::from(events)))))
    }
}

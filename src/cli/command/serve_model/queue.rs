//! Requests that wait for a seat, and the messages by which the scheduler answers them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::wire::{Ending, Refusal};
use crate::cli::view::exposition::serving::ServingMetrics;
use crate::cli::view::traces::Traces;
use tiebreak_contract::program::sampling::Sampling;

/// A message about an answer.
pub enum Event {
    /// The next token of the text.
    Token(u32),
    Done(Box<Ending>),
    Failed(Box<Refusal>),
}

/// The right to wait and to be answered. Dropping it lets somebody else wait, and calls `over`.
pub struct Admitted {
    permit: Option<OwnedSemaphorePermit>,
    over: Box<dyn Fn() + Send>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        drop(self.permit.take());
        (self.over)();
    }
}

/// A request that waits, or is being answered.
pub struct Ask {
    pub id: String,
    pub prompt: Vec<u32>,
    pub length: u32,
    pub sampling: Sampling,
    pub begun: Instant,
    /// The time at which the answer has to be whole.
    pub deadline: Instant,
    sender: UnboundedSender<Event>,
    admitted: Admitted,
    metrics: ServingMetrics,
    /// True until the first token.
    is_new: bool,
}

impl Ask {
    /// A request with these settings, and its messages. There are no more messages than tokens of the answer and one.
    pub fn new(
        id: String,
        (prompt, length, sampling): (Vec<u32>, u32, Sampling),
        time: Duration,
        (admitted, metrics): (Admitted, ServingMetrics),
    ) -> (Ask, UnboundedReceiver<Event>) {
        let ((sender, receiver), begun) = (unbounded_channel(), Instant::now());
        let deadline = begun + time;
        metrics.admitted(prompt.len());
        let is_new = true;
        (Ask { id, prompt, length, sampling, begun, deadline, sender, admitted, metrics, is_new }, receiver)
    }

    /// Tells the client the next token.
    pub fn token(&mut self, id: u32) {
        self.metrics.token(self.is_new, self.begun.elapsed());
        self.is_new = false;
        // A client that left is found by `lost`.
        let _ = self.sender.send(Event::Token(id));
    }

    /// Ends the answer. The place is free before the client knows, so that a client which asks again at once finds it.
    pub fn end(self, last: Event) {
        let end = match &last {
            Event::Failed(why) => why.code,
            _ => "whole",
        };
        self.metrics.ended(end, self.begun.elapsed());
        drop(self.admitted);
        let _ = self.sender.send(last);
    }

    pub fn fail(self, why: Refusal) {
        self.end(Event::Failed(Box::new(why)));
    }

    /// The reason why nobody waits for the answer any more: the client closed its connection, or the answer takes too long.
    pub fn lost(&self) -> Option<Refusal> {
        if self.sender.is_closed() {
            return Some(Refusal::new(499, "left", "the client left"));
        }
        (Instant::now() >= self.deadline).then(late)
    }
}

/// The error of an answer that takes too long.
pub fn late() -> Refusal {
    Refusal::new(503, "timeout", "the answer took longer than this server allows: ask for fewer tokens")
}

fn ends() -> Refusal {
    Refusal::new(503, "unavailable", "the server ends: ask another one")
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Ask>,
    /// The time at which the last answers end, if the server ends.
    ending: Option<Instant>,
}

/// The requests that wait, in their order.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    places: Arc<Semaphore>,
    pub metrics: ServingMetrics,
}

impl Queue {
    /// A queue of a server that admits so many requests at once, those that are being answered included.
    pub fn new(admitted: usize, traces: Traces) -> Queue {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Queue {
            state,
            changed,
            places: Arc::new(Semaphore::new(admitted)),
            metrics: ServingMetrics::new(traces),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a request, unless as many are there as may be.
    pub fn admit(&self, over: Box<dyn Fn() + Send>) -> Option<Admitted> {
        let permit = self.places.clone().try_acquire_owned().ok()?;
        Some(Admitted { permit: Some(permit), over })
    }

    /// Adds a request. One that comes while the server ends is told so.
    pub fn push(&self, ask: Ask) {
        let mut state = self.lock();
        if state.ending.is_some() {
            drop(state);
            return ask.fail(ends());
        }
        state.waiting.push_back(ask);
        self.metrics.waiting.set(state.waiting.len() as i64);
        self.changed.notify_all();
    }

    /// Takes the next requests, at most `room`. Requests whose client left, or whose time is up, are dropped. An `idle` caller waits
    /// until there is a request, or the server ends. The second value is the time at which the last answers end, if the server ends.
    pub fn take(&self, room: usize, idle: bool) -> (Vec<Ask>, Option<Instant>) {
        let mut state = self.lock();
        loop {
            for ask in std::mem::take(&mut state.waiting) {
                match ask.lost() {
                    Some(why) => ask.fail(why),
                    None => state.waiting.push_back(ask),
                }
            }
            if !state.waiting.is_empty() || state.ending.is_some() || !idle {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let count = room.min(state.waiting.len());
        let taken = state.waiting.drain(..count).collect();
        self.metrics.waiting.set(state.waiting.len() as i64);
        (taken, state.ending)
    }

    /// Ends the server: nobody waits any more, and answers that are begun have so much time.
    pub fn end(&self, grace: Duration) {
        let mut state = self.lock();
        state.ending = Some(Instant::now() + grace);
        let waiting = std::mem::take(&mut state.waiting);
        self.metrics.waiting.set(0);
        drop(state);
        waiting.into_iter().for_each(|ask| ask.fail(ends()));
        self.changed.notify_all();
    }
}

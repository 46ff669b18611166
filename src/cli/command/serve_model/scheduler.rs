//! The thread that owns the engine: it seats requests, computes tokens, and ends answers.

use std::collections::BTreeMap;
use std::time::Instant;

use super::queue::{Ask, Event, Queue};
use super::wire::{Ending, Refusal};
use crate::cli::view::report::Printer;
use tiebreak_engine::EngineError;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::inference::answer::{Answer, Identity};
use tiebreak_run::inference::batch::{Batch, TextId};
use tiebreak_run::inference::replay::Answerer;

/// Everything of which receipts are made.
pub struct Signing {
    pub identity: Identity,
    pub key: Option<PrivateKey>,
}

/// An answer that is being computed.
struct Running {
    ask: Ask,
    answer: Answer,
}

impl Running {
    /// The end of a whole answer.
    fn end(self, printer: Printer, signing: &Signing) {
        let Running { ask, answer } = self;
        let (tokens, prompt) = (answer.tokens().len(), ask.prompt.len());
        let seconds = ask.begun.elapsed().as_secs_f64();
        printer.say(format!("{}: {tokens} tokens behind {prompt} in {seconds:.2} s", ask.id));
        let receipt = answer.receipt(&signing.identity, ask.prompt.clone());
        let receipt = receipt.map(|receipt| receipt.to_text(signing.key.as_ref())).unwrap_or_default();
        ask.end(Event::Done(Box::new(Ending { tokens, ended: answer.ended(), receipt })));
    }

    fn fail(self, printer: Printer, why: Refusal) {
        printer.say(format!("{}: {}", self.ask.id, why.message));
        self.ask.fail(why);
    }
}

/// The answers that are being computed.
struct Desk<'a> {
    printer: Printer,
    answerer: Answerer<'a>,
    signing: &'a Signing,
    running: BTreeMap<TextId, Running>,
}

impl Desk<'_> {
    /// The token by which a text goes on. The client of an answer that is whole is told so.
    fn choose(&mut self, id: TextId, row: &[u32]) -> Option<u32> {
        let running = self.running.get_mut(&id)?;
        let taken = running.answer.take(&self.answerer, row);
        if let Ok(Some(token)) = taken {
            running.ask.token(token);
            if !running.answer.is_whole() {
                return Some(token);
            }
        }
        let running = self.running.remove(&id)?;
        match taken {
            Ok(_) => running.end(self.printer, self.signing),
            Err(why) => running.fail(self.printer, Refusal::new(500, "no_token", why.to_string())),
        }
        None
    }

    /// Drops the answers whose clients left, and those whose time is up.
    fn drop_lost(&mut self, batch: &mut Batch) {
        let lost = self.running.iter().filter_map(|(id, running)| Some((*id, running.ask.lost()?)));
        for (id, why) in lost.collect::<Vec<_>>() {
            batch.leave(id);
            if let Some(running) = self.running.remove(&id) {
                running.fail(self.printer, why);
            }
        }
    }

    fn fail_all(&mut self, why: &Refusal) {
        for running in std::mem::take(&mut self.running).into_values() {
            running.fail(self.printer, why.clone());
        }
    }
}

/// Answers requests until the server ends.
pub fn work(
    printer: Printer,
    queue: &Queue,
    (batch, seats): (&mut Batch, usize),
    answerer: Answerer,
    signing: &Signing,
) -> Result<(), EngineError> {
    let mut desk = Desk { printer, answerer, signing, running: BTreeMap::new() };
    loop {
        // A queue without requests is waited for.
        queue.metrics.answering.set(desk.running.len() as i64);
        let (asks, ending) = queue.take(seats - batch.len(), batch.is_empty());
        for ask in asks {
            let answer = Answer::new(ask.sampling, ask.length, true);
            desk.running.insert(batch.join(ask.prompt.clone()), Running { ask, answer });
        }
        desk.drop_lost(batch);
        queue.metrics.answering.set(desk.running.len() as i64);
        if let Some(end) = ending
            && (batch.is_empty() || Instant::now() >= end)
        {
            desk.fail_all(&Refusal::new(503, "unavailable", "the server ended before the answer was whole"));
            return Ok(());
        }
        if let Err(error) = batch.advance(&mut |id, row| desk.choose(id, row)) {
            desk.fail_all(&Refusal::new(500, "engine", "the engine failed, and the server ends"));
            return Err(error);
        }
    }
}

//! Several texts that one model goes on with together. A text joins and leaves between two steps, and no other text changes the
//! logits behind it (docs/INFERENCE.md).

use std::collections::VecDeque;

use tiebreak_contract::program::inference::{Writer, inference_step};
use tiebreak_engine::{Engine, EngineError, Tensor};

use super::decoder::Reading;
use super::steps::{Steps, memory};

/// The name of a text in its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextId(u64);

struct Text {
    id: TextId,
    tokens: Vec<u32>,
    reading: Reading,
}

impl Text {
    /// The position and the id of the next token that is read.
    fn next(&self) -> (u32, u32) {
        (self.reading.read as u32, self.tokens[self.reading.first + self.reading.read])
    }

    /// True if nothing of the window is read, and it has a chunk of tokens or more.
    fn is_long(&self, chunk: usize) -> bool {
        self.reading.read == 0 && self.tokens.len() - self.reading.first >= chunk
    }
}

/// A model with its weights, and the texts that it goes on with.
///
/// A step reads one token of each seat. A text with many tokens is read in chunks before it has a seat. The number of seats is a power
/// of two, so that few graphs are compiled: seats are added when a text finds none, and removed when a smaller number would do.
pub struct Batch<'a> {
    steps: Steps<'a>,
    next: u64,
    /// Texts that are read in chunks, the first one now.
    reading: VecDeque<Text>,
    /// Texts that get a seat before the next step. Nothing of them is read.
    arriving: Vec<Text>,
    seats: Vec<Option<Text>>,
    caches: Vec<Tensor>,
}

/// Chooses the token by which a text goes on from the logits behind it, [V] words; `None` ends the text.
pub type Choose<'c> = &'c mut dyn FnMut(TextId, &[u32]) -> Option<u32>;

impl<'a> Batch<'a> {
    /// A batch of at most so many texts; `None` if the model is no decoder. `parameters` are on the engine, in the model's order.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn new(
        engine: &'a mut dyn Engine,
        model: Writer<'a>,
        parameters: Vec<Tensor>,
        texts: u32,
    ) -> Result<Option<Self>, EngineError> {
        let steps = Steps::new(engine, model, parameters, texts.next_power_of_two())?;
        let (reading, arriving, seats, caches) = Default::default();
        Ok(steps.map(|steps| Self { steps, next: 0, reading, arriving, seats, caches }))
    }

    /// Bytes of the tensors that live at once, the parameters included; 0 if the model is no decoder.
    pub fn memory(model: Writer, texts: u32) -> u64 {
        memory(model, texts.next_power_of_two())
    }

    /// True if a step of so many texts has tensors of a size that engines take.
    pub fn fits(model: Writer, texts: u32) -> bool {
        inference_step(model, [texts.next_power_of_two(), 1]).is_some()
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.reading.len() + self.arriving.len() + self.seats.iter().flatten().count()
    }

    /// True if there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a text in, which has at least one token.
    pub fn join(&mut self, tokens: Vec<u32>) -> TextId {
        let id = TextId(self.next);
        self.next += 1;
        let mut text = Text { id, tokens, reading: Reading::default() };
        text.reading.moved(text.tokens.len(), self.steps.context());
        self.admit(text);
        id
    }

    /// Reads a text from the beginning of its window: in chunks, or in a seat.
    fn admit(&mut self, text: Text) {
        if text.is_long(self.steps.chunk()) {
            self.reading.push_back(text);
        } else {
            self.arriving.push(text);
        }
    }

    /// Drops a text.
    pub fn leave(&mut self, id: TextId) {
        self.reading.retain(|text| text.id != id);
        self.arriving.retain(|text| text.id != id);
        for seat in &mut self.seats {
            seat.take_if(|text| text.id == id);
        }
    }

    /// Reads a chunk of one text without a seat, and one token of each text that has a seat. So a long prompt delays the other texts by
    /// one chunk a token.
    ///
    /// # Errors
    /// If the engine fails. The batch is of no use then.
    pub fn advance(&mut self, choose: Choose) -> Result<(), EngineError> {
        let joins = self.read(choose)?;
        self.fit(joins)?;
        self.decode(choose)
    }

    /// Reads a chunk. Returns the text that has caches then, and goes on in a seat.
    fn read(&mut self, choose: Choose) -> Result<Option<Text>, EngineError> {
        let Some(mut text) = self.reading.pop_front() else { return Ok(None) };
        let Some(row) = text.reading.advance(&mut self.steps, &text.tokens)? else {
            self.reading.push_front(text);
            return Ok(None);
        };
        let Some(token) = choose(text.id, &row) else { return Ok(None) };
        text.tokens.push(token);
        if text.reading.moved(text.tokens.len(), self.steps.context()) {
            self.admit(text);
            return Ok(None);
        }
        Ok(Some(text))
    }

    /// Seats all texts: those that have seats first, in their order, then one with caches of its own, then those of which nothing is
    /// read. Those take any caches, since their first step empties them.
    fn fit(&mut self, joins: Option<Text>) -> Result<(), EngineError> {
        let mut from: Vec<u32> =
            (0..).zip(&self.seats).filter_map(|(i, seat)| seat.as_ref().map(|_| i)).collect();
        let count = from.len() + usize::from(joins.is_some()) + self.arriving.len();
        let size = if count == 0 { 0 } else { count.next_power_of_two() };
        if joins.is_none() && self.arriving.is_empty() && size == self.seats.len() {
            return Ok(());
        }
        let (mut before, mut caches) = (self.seats.len(), std::mem::take(&mut self.caches));
        let mut seats: Vec<Option<Text>> =
            std::mem::take(&mut self.seats).into_iter().flatten().map(Some).collect();
        let mut joining = joins.map(|mut text| {
            let (seat, own) = (seats.len() as u32, std::mem::take(&mut text.reading.caches));
            seats.push(Some(text));
            (seat, own)
        });
        seats.extend(self.arriving.drain(..).map(Some));
        seats.resize_with(size, || None);
        self.seats = seats;
        if size == 0 {
            return Ok(());
        }
        if from.is_empty() {
            (before, caches) = match joining.take() {
                Some((_, own)) => (1, own),
                None => (size, self.steps.empty(size)?),
            };
        }
        let stays = joining.is_none() && before == size && (0..).zip(&from).all(|(i, seat)| i == *seat);
        from.resize(size, 0);
        self.caches = if stays { caches } else { self.steps.moved(before, &from, caches, joining)? };
        Ok(())
    }

    fn decode(&mut self, choose: Choose) -> Result<(), EngineError> {
        if self.seats.is_empty() {
            return Ok(());
        }
        // A seat without a text computes something that nobody reads.
        let next = |seat: &Option<Text>| seat.as_ref().map_or((0, 0), Text::next);
        let (starts, tokens): (Vec<u32>, Vec<u32>) = self.seats.iter().map(next).unzip();
        let (rows, caches) = self.steps.step(&starts, &tokens, std::mem::take(&mut self.caches))?;
        self.caches = caches;
        for (seat, row) in rows.iter().enumerate() {
            let Some(mut text) = self.seats[seat].take() else { continue };
            text.reading.read += 1;
            if text.reading.first + text.reading.read == text.tokens.len() {
                let Some(token) = choose(text.id, row) else { continue };
                text.tokens.push(token);
                text.reading.moved(text.tokens.len(), self.steps.context());
            }
            if text.is_long(self.steps.chunk()) {
                self.reading.push_back(text);
            } else {
                self.seats[seat] = Some(text);
            }
        }
        Ok(())
    }
}

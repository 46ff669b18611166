//! Several texts that one model goes on with together. A text joins and leaves between two steps, and no other text changes the
//! logits behind it (docs/INFERENCE.md).

use std::collections::VecDeque;

use tiebreak_contract::program::models::Model;
use tiebreak_contract::program::products::ProductTable;
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

/// A model with its weights, and the texts that it goes on with.
///
/// A step computes one token for each seat. The number of seats is a power of two, so that few graphs are compiled: seats are added
/// when a text finds none, and removed when a smaller number would do.
pub struct Batch<'a> {
    steps: Steps<'a>,
    next: u64,
    /// Texts that are being read, one at a time: new ones, and those whose window moved.
    reading: VecDeque<Text>,
    /// Texts of which all tokens but the last are in the caches of their seat.
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
        model: (&'a Model, &'a ProductTable),
        parameters: Vec<Tensor>,
        texts: u32,
    ) -> Result<Option<Self>, EngineError> {
        let steps = Steps::new(engine, model, parameters, texts.next_power_of_two())?;
        let (reading, seats, caches) = (VecDeque::new(), Vec::new(), Vec::new());
        Ok(steps.map(|steps| Self { steps, next: 0, reading, seats, caches }))
    }

    /// Bytes of the tensors that live at once, the parameters included; 0 if the model is no decoder.
    pub fn memory(model: &Model, products: &ProductTable, texts: u32) -> u64 {
        memory(model, products, texts.next_power_of_two())
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.reading.len() + self.seats.iter().flatten().count()
    }

    /// True if there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a text in, which has at least one token.
    pub fn join(&mut self, tokens: Vec<u32>) -> TextId {
        let id = TextId(self.next);
        self.next += 1;
        self.reading.push_back(Text { id, tokens, reading: Reading::default() });
        id
    }

    /// Drops a text.
    pub fn leave(&mut self, id: TextId) {
        self.reading.retain(|text| text.id != id);
        for seat in &mut self.seats {
            seat.take_if(|text| text.id == id);
        }
    }

    /// Reads some tokens of one text that is not seated, and computes the next token of each text that is. So a long prompt delays the
    /// other texts by one chunk a token.
    ///
    /// # Errors
    /// If the engine fails. The batch is of no use then.
    pub fn advance(&mut self, choose: Choose) -> Result<(), EngineError> {
        self.read(choose)?;
        self.fit(None)?;
        self.decode(choose)
    }

    fn read(&mut self, choose: Choose) -> Result<(), EngineError> {
        let Some(mut text) = self.reading.pop_front() else { return Ok(()) };
        let Some(row) = text.reading.advance(&mut self.steps, &text.tokens)? else {
            self.reading.push_front(text);
            return Ok(());
        };
        let Some(token) = choose(text.id, &row) else { return Ok(()) };
        text.tokens.push(token);
        if text.reading.goes_on(text.tokens.len(), self.steps.context()) {
            return self.fit(Some(text));
        }
        self.read_again(text);
        Ok(())
    }

    /// A text whose window moved is read again from there.
    fn read_again(&mut self, text: Text) {
        self.reading.push_back(Text { reading: Reading::default(), ..text });
    }

    /// Moves the texts to the first of as many seats as are needed, and one more text to the seat behind them.
    fn fit(&mut self, joins: Option<Text>) -> Result<(), EngineError> {
        let taken: Vec<u32> =
            (0..).zip(&self.seats).filter_map(|(i, seat)| seat.as_ref().map(|_| i)).collect();
        let count = taken.len() + usize::from(joins.is_some());
        let size = if count == 0 { 0 } else { count.next_power_of_two() };
        if joins.is_none() && size == self.seats.len() {
            return Ok(());
        }
        let (before, caches) = (self.seats.len(), std::mem::take(&mut self.caches));
        let mut seats: Vec<Option<Text>> =
            std::mem::take(&mut self.seats).into_iter().flatten().map(Some).collect();
        let joins = joins.map(|mut text| {
            let own = text.reading.take_caches();
            seats.push(Some(text));
            own
        });
        seats.resize_with(size, || None);
        self.caches = match joins {
            Some(own) if taken.is_empty() => own,
            _ if taken.is_empty() => Vec::new(),
            joins => {
                let seat = taken.len() as u32;
                let mut from = taken;
                from.resize(size, 0);
                self.steps.moved(before, &from, caches, joins.map(|own| (seat, own)))?
            }
        };
        self.seats = seats;
        Ok(())
    }

    fn decode(&mut self, choose: Choose) -> Result<(), EngineError> {
        if self.seats.is_empty() {
            return Ok(());
        }
        // A seat without a text computes something that nobody reads.
        let unread = |seat: &Option<Text>| {
            let last = seat
                .as_ref()
                .and_then(|text| Some((text.reading.position(text.tokens.len()), *text.tokens.last()?)));
            last.unwrap_or_default()
        };
        let (starts, tokens): (Vec<u32>, Vec<u32>) = self.seats.iter().map(unread).unzip();
        let (rows, caches) = self.steps.step(&starts, &tokens, std::mem::take(&mut self.caches))?;
        self.caches = caches;
        for (seat, row) in rows.iter().enumerate() {
            let Some(mut text) = self.seats[seat].take() else { continue };
            let Some(token) = choose(text.id, row) else { continue };
            text.tokens.push(token);
            match text.reading.goes_on(text.tokens.len(), self.steps.context()) {
                true => self.seats[seat] = Some(text),
                false => self.read_again(text),
            }
        }
        Ok(())
    }
}

//! A chip's agent: the state machine that appends a record for each thing that happens, and asks for snapshots when they are due.
//!
//! The agent knows nothing of sockets, files or training. A caller calls [`Agent::poll`] at the times that [`Agent::wakes_in`]
//! gives, passes on what a training says, and asks the training for a snapshot while [`Agent::asks`].

use std::collections::VecDeque;
use std::time::Duration;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;

use super::chain::Chain;
use super::clock::Clock;
use super::keeper::{Keeper, KeeperError, Resumed};
use super::times::Times;
use crate::snapshot::log::RECORDS_MAX;
use crate::snapshot::record::{Event, Record, Serial, Shard, SignedRecord};

/// The identity of a chip, and its patience.
pub struct Chip {
    /// The serial number.
    pub serial: Serial,
    /// The key that signs the records.
    pub key: PrivateKey,
    /// The time that a training has to answer when a snapshot is due.
    pub patience: Duration,
}

/// An agent of one chip.
pub struct Agent<C, K, T> {
    chip: Chip,
    clock: C,
    keeper: K,
    times: T,
    chain: Chain,
    /// The training that is attached.
    attached: Option<Shard>,
    /// For each snapshot that is due and not answered: when the patience ends.
    waiting: VecDeque<u64>,
    /// When the next snapshot is due.
    due: u64,
    /// The last time in which the keeper held everything up: from when, until when.
    held: (u64, u64),
    /// The records that were appended and not taken yet.
    appended: Vec<SignedRecord>,
    /// The bytes of a record that a crash cut off, and that were removed at the start.
    torn: u64,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<C: Clock, K: Keeper, T: Times> Agent<C, K, T> {
    /// Goes on with the log that the keeper has, and appends a begin record. `times` gives the random times after a begin record
    /// with this counter.
    ///
    /// # Errors
    /// If the log is not this chip's or breaks a rule (the error names the record), is full, or cannot be kept.
    pub fn begin(
        chip: Chip,
        clock: C,
        mut keeper: K,
        times: impl FnOnce(u64) -> T,
    ) -> Result<Agent<C, K, T>, KeeperError> {
        let Resumed { chain, torn } = keeper.resume(&chip.serial, &chip.key.public())?;
        let times = times(chain.next());
        let (attached, waiting, appended, held) = (None, VecDeque::new(), Vec::new(), (0, 0));
        let mut agent =
            Agent { chip, clock, keeper, times, chain, attached, waiting, due: 0, held, appended, torn };
        // A begin record comes first, so that it cannot say that the clock was set back meanwhile.
        let wall = agent.clock.wall();
        agent.write(Event::Begin, wall.max(agent.chain.time()))?;
        agent.due = agent.clock.elapsed().saturating_add(agent.times.gap());
        if wall < agent.chain.time() {
            agent.write(Event::Clock, wall)?;
        }
        Ok(agent)
    }

    /// The chip's serial number.
    pub fn serial(&self) -> &Serial {
        &self.chip.serial
    }

    /// The number of records in the log.
    pub fn records(&self) -> u64 {
        self.chain.next()
    }

    /// The bytes of a record that a crash cut off, which were removed at the start.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// True if a training is attached.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// True while a snapshot is due that the attached training has not answered.
    pub fn asks(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The records that were appended since the last call, all of them durable.
    pub fn take_appended(&mut self) -> Vec<SignedRecord> {
        std::mem::take(&mut self.appended)
    }

    /// The time until [`Agent::poll`] has something to do.
    pub fn wakes_in(&self) -> Duration {
        let next = self.waiting.front().map_or(self.due, |end| self.due.min(*end));
        Duration::from_micros(next.saturating_sub(self.clock.elapsed()))
    }

    /// Does what is due by now: snapshots become due, and patience ends.
    ///
    /// # Errors
    /// If a record cannot be kept. Then the agent must not be used any more.
    pub fn poll(&mut self) -> Result<(), KeeperError> {
        let now = self.clock.elapsed();
        loop {
            match (self.waiting.front(), self.attached) {
                (Some(&end), Some(shard)) if end <= now && end <= self.due => {
                    self.append(Event::Unanswered(shard))?;
                    self.waiting.pop_front();
                }
                (_, attached) if self.due <= now => {
                    match attached {
                        Some(_) => {
                            // A training is asked only when the keeper lets the agent go on.
                            let asked = if self.was_held() { self.held.1 } else { self.due };
                            self.waiting.push_back(asked.saturating_add(micros(self.chip.patience)));
                        }
                        None => self.append(Event::Idle)?,
                    }
                    self.due = self.due.saturating_add(self.times.gap());
                }
                _ => return Ok(()),
            }
        }
    }

    /// A training attaches itself, in place of one that is attached. Returns the number of its record.
    ///
    /// # Errors
    /// As [`Agent::poll`].
    pub fn attach(&mut self, shard: Shard, computation: Digest) -> Result<u64, KeeperError> {
        self.detach()?;
        self.append(Event::Attach { shard, computation })?;
        self.attached = Some(shard);
        Ok(self.chain.next() - 1)
    }

    /// The attached training is gone. Snapshots that it did not answer are unanswered.
    ///
    /// # Errors
    /// As [`Agent::poll`].
    pub fn detach(&mut self) -> Result<(), KeeperError> {
        self.poll()?;
        if let Some(shard) = self.attached {
            for _ in 0..self.waiting.len() {
                self.append(Event::Unanswered(shard))?;
            }
        }
        self.waiting.clear();
        self.attached = None;
        Ok(())
    }

    /// The attached training is at a quiescent point, after `step`: each snapshot that is due gets a record. Returns the number of
    /// the last one, or nothing if none was due any more.
    ///
    /// # Errors
    /// As [`Agent::poll`].
    pub fn snapshot(&mut self, step: u32, digest: Digest) -> Result<Option<u64>, KeeperError> {
        self.poll()?;
        let Some(shard) = self.attached.filter(|_| self.asks()) else { return Ok(None) };
        while !self.waiting.is_empty() {
            self.append(Event::Snapshot { shard, step, digest })?;
            self.waiting.pop_front();
        }
        Ok(Some(self.chain.next() - 1))
    }

    /// Appends a record, and before it one about the clock if that was set back.
    fn append(&mut self, event: Event) -> Result<(), KeeperError> {
        let wall = self.clock.wall();
        if wall < self.chain.time() {
            self.write(Event::Clock, wall)?;
        }
        self.write(event, wall)
    }

    fn write(&mut self, event: Event, time: u64) -> Result<(), KeeperError> {
        let (counter, previous) = (self.chain.next(), self.chain.link());
        if counter >= RECORDS_MAX as u64 {
            return Err(KeeperError::Full);
        }
        let record = Record { serial: self.chip.serial.clone(), counter, time, previous, event };
        let signed = record.sign(&self.chip.key);
        let begin = self.clock.elapsed();
        self.keeper.append(&signed)?;
        self.holds(begin, self.clock.elapsed());
        self.chain.advance(&signed);
        self.appended.push(signed);
        Ok(())
    }

    /// True if the next snapshot was due while the keeper held everything up.
    fn was_held(&self) -> bool {
        (self.held.0..=self.held.1).contains(&self.due)
    }

    /// The keeper held everything up between these times: no training's patience runs meanwhile.
    fn holds(&mut self, begin: u64, end: u64) {
        if begin == end {
            return;
        }
        self.waiting.iter_mut().for_each(|patience| *patience = patience.saturating_add(end - begin));
        // A snapshot that was due in an earlier such time, and nobody was asked for yet, keeps that time open.
        let begin = if self.was_held() { self.held.0 } else { begin };
        self.held = (begin, end);
    }
}

#[cfg(test)]
mod tests;

//! The referee's loop: asks parties at once, feeds their answers to the game with the time, and ends turns whose time is up.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::journal::{Entry, Journal};
use super::link::{Asking, Link};
use crate::commit::digest::Digest;
use crate::commit::keys::PrivateKey;
use crate::commit::proven::Base64;
use crate::dispute::game::message::{Sealed, Supplied};
use crate::dispute::game::referee::{Ask, Referee, Taken};
use crate::run::RunError;

/// A game: a state machine that asks, and is told answers and the time.
pub trait Machine {
    /// Begins.
    fn start(&mut self, now: u64);
    /// Takes a message of a party, whatever it is.
    fn receive(&mut self, party: usize, bytes: &[u8], now: u64);
    /// Ends what has no time left.
    fn tick(&mut self, now: u64);
    /// The questions that nobody has answered yet.
    fn pending(&self) -> Vec<Ask>;
    /// Whether there is a result.
    fn ended(&self) -> bool;
    /// Where the game is, in a line for people.
    fn progress(&self) -> String;
    /// What came of a part of a log that the last message supplied, and the part, which the next question hands on.
    fn taken(&self) -> Option<(Taken, &Supplied)> {
        None
    }
    /// Takes this in place of the message.
    fn receive_taken(&mut self, _party: usize, _part: Taken, _now: u64) {}
    /// Whether the pending question lacks the part that it hands on.
    fn lacks_part(&self) -> bool {
        false
    }
    /// Gives the pending question its part; false if it is another one.
    fn carry(&mut self, _part: Supplied) -> bool {
        false
    }
}

impl Machine for Referee {
    fn start(&mut self, now: u64) {
        Referee::start(self, now);
    }
    fn receive(&mut self, party: usize, bytes: &[u8], now: u64) {
        Referee::receive(self, party, bytes, now);
    }
    fn tick(&mut self, now: u64) {
        Referee::tick(self, now);
    }
    fn pending(&self) -> Vec<Ask> {
        Referee::pending(self)
    }
    fn ended(&self) -> bool {
        self.result().is_some()
    }
    fn progress(&self) -> String {
        Referee::progress(self)
    }
    fn taken(&self) -> Option<(Taken, &Supplied)> {
        Referee::taken(self).zip(self.carried())
    }
    fn receive_taken(&mut self, party: usize, part: Taken, now: u64) {
        Referee::receive_taken(self, party, part, now);
    }
    fn lacks_part(&self) -> bool {
        Referee::lacks_part(self)
    }
    fn carry(&mut self, part: Supplied) -> bool {
        Referee::carry(self, part)
    }
}

/// What is said while a game runs.
pub enum Said {
    /// Where the game is.
    Progress(String),
    /// A party was not reached.
    Trouble {
        /// The party's place in the terms.
        party: usize,
        /// Why.
        why: String,
    },
}

/// What a thread that asks a party reports.
enum Report {
    Answer { party: usize, question: Digest, bytes: Vec<u8> },
    Trouble { party: usize, why: String },
}

/// The time of a game: it stands still while no referee runs, so that no party loses by a referee's crash.
struct Clock {
    before: u64,
    since: Instant,
}

impl Clock {
    fn now(&self) -> u64 {
        self.before.saturating_add(u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// When the game's time will be `at`.
    fn instant(&self, at: u64) -> Instant {
        // Farther than a century is never.
        const CENTURY: u64 = 100 * 365 * 86_400_000;
        self.since + Duration::from_millis(at.saturating_sub(self.before).min(CENTURY))
    }
}

/// Feeds an entry to a game.
fn feed(machine: &mut impl Machine, entry: &Entry) {
    match entry {
        Entry::Start { at } => machine.start(*at),
        Entry::Message { at, party, bytes } => machine.receive(*party, &bytes.0, *at),
        Entry::Supplied { at, party, part } => machine.receive_taken(*party, *part, *at),
        Entry::Tick { at } => machine.tick(*at),
    }
}

struct Loop<'a, M> {
    machine: &'a mut M,
    journal: Journal,
    entries: Vec<Entry>,
    links: Vec<Arc<Link>>,
    key: &'a PrivateKey,
    clock: Clock,
    /// The questions that are on their way: by party, the question's name.
    asked: BTreeMap<usize, Digest>,
    reports: (Sender<Report>, Receiver<Report>),
    over: Arc<AtomicBool>,
}

/// Plays a game to its end: `entries` are those of the journal, which come first. `links[i]` leads to party i. Gives all that was fed to the game.
///
/// # Errors
/// If the journal cannot be written, or the game waits for nobody without a result, which is a fault of this program.
pub fn play<M: Machine>(
    machine: &mut M,
    (journal, entries): (Journal, Vec<Entry>),
    links: Vec<Link>,
    key: &PrivateKey,
    mut say: impl FnMut(Said),
) -> Result<Vec<Entry>, RunError> {
    for entry in &entries {
        feed(machine, entry);
    }
    if machine.lacks_part() && !machine.carry(journal.kept_part()?) {
        let why = "the part of a log beside it is not the one that the game goes on with";
        return Err(RunError::invalid(journal.path(), why));
    }
    let before = entries.last().map_or(0, Entry::at);
    let mut play = Loop {
        machine,
        journal,
        entries,
        links: links.into_iter().map(Arc::new).collect(),
        key,
        clock: Clock { before, since: Instant::now() },
        asked: BTreeMap::new(),
        reports: channel(),
        over: Arc::default(),
    };
    let played = play.run(&mut say);
    // Threads that still ask end soon.
    play.over.store(true, Ordering::Relaxed);
    played.map(|()| play.entries)
}

impl<M: Machine> Loop<'_, M> {
    fn run(&mut self, say: &mut impl FnMut(Said)) -> Result<(), RunError> {
        if self.entries.is_empty() {
            self.happened(Entry::Start { at: 0 })?;
        }
        let mut progress = String::new();
        loop {
            let now = self.machine.progress();
            if now != progress {
                progress = now;
                say(Said::Progress(progress.clone()));
            }
            if self.machine.ended() {
                return Ok(());
            }
            let pending = self.machine.pending();
            let Some(deadline) = pending.iter().map(|ask| ask.deadline).min() else {
                let why = "the game asks nobody and has no result: a fault of this program";
                return Err(RunError::io(self.journal.path())(io::Error::other(why)));
            };
            self.ask(&pending);
            // At its last millisecond an answer is in time.
            let late =
                self.clock.instant(deadline.saturating_add(1)).saturating_duration_since(Instant::now());
            match self.reports.1.recv_timeout(late) {
                Ok(Report::Trouble { party, why }) => say(Said::Trouble { party, why }),
                Ok(Report::Answer { party, question, bytes }) => {
                    let waits = |ask: &Ask| ask.party == party && ask.asked.digest() == question;
                    if pending.iter().any(waits) {
                        self.happened(Entry::Message { at: self.clock.now(), party, bytes: Base64(bytes) })?;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.happened(Entry::Tick { at: self.clock.now().max(deadline.saturating_add(1)) })?;
                }
            }
        }
    }

    /// Feeds an event and journals it; nobody is asked anything before it is safe on disk. Of a part of a log that was supplied well the journal
    /// keeps what came of it, and the part until the next one is there.
    fn happened(&mut self, entry: Entry) -> Result<(), RunError> {
        feed(self.machine, &entry);
        let entry = match (entry, self.machine.taken()) {
            (Entry::Message { at, party, .. }, Some((part, carried))) => {
                self.journal.keep_part(carried)?;
                Entry::Supplied { at, party, part }
            }
            (entry, _) => entry,
        };
        self.journal.append(&entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Has a thread ask each question that is not on its way yet.
    fn ask(&mut self, pending: &[Ask]) {
        for ask in pending {
            let question = ask.asked.digest();
            if self.asked.insert(ask.party, question) == Some(question) {
                continue;
            }
            let Some(link) = self.links.get(ask.party).cloned() else { continue };
            let asking = Asking {
                turn: ask.asked.turn,
                sealed: Sealed::new(ask.asked.clone(), self.key).to_bytes(),
                limit: ask.limit,
                until: self.clock.instant(ask.deadline),
            };
            let (party, report, over) = (ask.party, self.reports.0.clone(), self.over.clone());
            std::thread::spawn(move || {
                // Who does not listen any more has its result.
                let trouble = |why| drop(report.send(Report::Trouble { party, why }));
                if let Some(bytes) = link.ask(&asking, &over, &trouble) {
                    let _ = report.send(Report::Answer { party, question, bytes });
                }
            });
        }
    }
}

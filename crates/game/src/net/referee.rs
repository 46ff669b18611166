//! The referee's loop: asks parties in parallel, feeds their answers and the time to the game, and ends turns whose time is up.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::journal::{Entry, Journal};
use super::link::{Asking, Link, Met};
use tiebreak_dispute::game::message::{Sealed, Supplied};
use tiebreak_dispute::game::referee::{Ask, Referee, Taken};
use tiebreak_dispute::game::tried::{End, Tried};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::proven::Base64;
use tiebreak_run::run::RunError;

/// A game: a state machine that asks questions, and receives answers and the time.
pub trait Machine {
    /// Begins the game.
    fn start(&mut self, now: u64);
    /// Takes a message of a party, valid or not.
    fn receive(&mut self, party: usize, bytes: &[u8], now: u64);
    /// Ends everything whose time is up. `tried` says how the late parties were asked.
    fn tick(&mut self, now: u64, tried: &[Tried]);
    /// The questions without an answer.
    fn pending(&self) -> Vec<Ask>;
    /// True if there is a result.
    fn ended(&self) -> bool;
    /// The state of the game, in a line for people.
    fn progress(&self) -> String;
    /// The result of the log's part that the last message supplied, with the part, which the next question carries.
    fn taken(&self) -> Option<(Taken, &Supplied)> {
        None
    }
    /// Takes this result in place of the message.
    fn receive_taken(&mut self, _party: usize, _part: Taken, _now: u64) {}
    /// True if the pending question lacks the part that it carries.
    fn lacks_part(&self) -> bool {
        false
    }
    /// Gives the pending question its part; false if the part is another one.
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
    fn tick(&mut self, now: u64, tried: &[Tried]) {
        Referee::tried(self, tried);
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

/// An event that is reported while a game runs.
pub enum Said {
    /// The state of the game.
    Progress(String),
    /// A party could not be reached.
    Trouble {
        /// The party's place in the terms.
        party: usize,
        /// The reason.
        why: String,
    },
}

/// A report of a thread that asks a party.
enum Report {
    Answer {
        party: usize,
        question: Digest,
        bytes: Vec<u8>,
    },
    /// A message that answers an earlier question.
    Earlier {
        party: usize,
        bytes: Vec<u8>,
    },
    /// A try that gave no answer; `why` is for people.
    Tried {
        party: usize,
        question: Digest,
        end: End,
        why: Option<String>,
    },
}

/// The longest single wait of the loop.
const SLICE: Duration = Duration::from_millis(50);

/// Feeds an entry to a game.
fn feed(machine: &mut impl Machine, entry: &Entry) {
    match entry {
        Entry::Start { at } => machine.start(*at),
        Entry::Message { at, party, bytes } => machine.receive(*party, &bytes.0, *at),
        Entry::Supplied { at, party, part } => machine.receive_taken(*party, *part, *at),
        Entry::Tick { at, tried } => machine.tick(*at, tried),
    }
}

struct Loop<'a, M> {
    machine: &'a mut M,
    journal: Journal,
    entries: Vec<Entry>,
    links: Vec<Arc<Link>>,
    key: &'a PrivateKey,
    clock: Arc<Clock>,
    /// The questions that are being asked: for each party, the question's name, and how it was asked.
    asked: BTreeMap<usize, (Digest, Tried)>,
    reports: (Sender<Report>, Receiver<Report>),
    over: Arc<AtomicBool>,
}

/// Plays a game to its end. `entries` are those of the journal, which are fed first. `links[i]` leads to party i. Returns all
/// inputs of the game.
///
/// # Errors
/// If the journal cannot be written, or the game waits for nobody and has no result, which is a fault of this program.
pub fn play<M: Machine>(
    machine: &mut M,
    journal: Journal,
    entries: Vec<Entry>,
    links: Vec<Link>,
    key: &PrivateKey,
    mut say: impl FnMut(Said),
) -> Result<Vec<Entry>, RunError> {
    for entry in &entries {
        feed(machine, entry);
    }
    if machine.lacks_part() {
        let part = journal.kept_part()?;
        let found = part.digest().short();
        if !machine.carry(part) {
            let why =
                format!("the part of a log beside it, {found}, is not the one that the game goes on with");
            return Err(RunError::invalid(journal.path(), why));
        }
    }
    let before = entries.last().map_or(0, Entry::at);
    let mut play = Loop {
        machine,
        journal,
        entries,
        links: links.into_iter().map(Arc::new).collect(),
        key,
        clock: Arc::new(Clock::at(before)),
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
            match self.wait(deadline) {
                Some(Report::Tried { party, question, end, why }) => {
                    if let Some((asked, tried)) = self.asked.get_mut(&party)
                        && *asked == question
                    {
                        tried.count(end);
                    }
                    why.into_iter().for_each(|why| say(Said::Trouble { party, why }));
                }
                Some(Report::Answer { party, question, bytes }) => {
                    let waits = |ask: &Ask| ask.party == party && ask.asked.digest() == question;
                    if pending.iter().any(waits) {
                        self.happened(Entry::Message { at: self.clock.now(), party, bytes: Base64(bytes) })?;
                    }
                }
                Some(Report::Earlier { party, bytes }) => {
                    self.happened(Entry::Message { at: self.clock.now(), party, bytes: Base64(bytes) })?;
                }
                None if self.clock.now() < deadline => {}
                None => {
                    self.clock.not_before(deadline.saturating_add(1));
                    let at = self.clock.now();
                    let late = pending.iter().filter(|ask| ask.deadline <= at);
                    let tried = late.filter_map(|ask| Some(self.asked.get(&ask.party)?.1.clone())).collect();
                    self.happened(Entry::Tick { at, tried })?;
                }
            }
        }
    }

    /// The next report of the asking threads, or `None` after a while. Time passes only here: the referee's computing and writing
    /// is on nobody's clock.
    fn wait(&mut self, deadline: u64) -> Option<Report> {
        let wanted = self.clock.until(deadline).min(SLICE);
        if wanted.is_zero() {
            return None;
        }
        let begin = Instant::now();
        let report = self.reports.1.recv_timeout(wanted).ok();
        // A report that came during a wait for a deadline came before the deadline, however late the system delivers it.
        let last = if report.is_some() { deadline.saturating_sub(1) } else { u64::MAX };
        self.clock.waited(wanted, begin.elapsed(), last);
        report
    }

    /// Feeds an event and journals it; nobody is asked anything before it is safe on disk. For a part of a log that was supplied
    /// correctly, the journal stores the result, and the part until the next one comes.
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

    /// Starts a thread for each question that is not being asked yet.
    fn ask(&mut self, pending: &[Ask]) {
        for ask in pending {
            let question = ask.asked.digest();
            if self.asked.get(&ask.party).is_some_and(|(asked, _)| *asked == question) {
                continue;
            }
            let party = ask.party;
            self.asked.insert(party, (question, Tried::new(party)));
            let Some(link) = self.links.get(party).cloned() else { continue };
            let asking = Asking {
                turn: ask.asked.turn,
                question,
                sealed: Sealed::new(ask.asked.clone(), self.key).to_bytes(),
                limit: ask.limit,
                deadline: ask.deadline,
                clock: self.clock.clone(),
            };
            let (report, over) = (self.reports.0.clone(), self.over.clone());
            std::thread::spawn(move || {
                // A receiver that is gone has its result.
                let met = |met| {
                    drop(report.send(match met {
                        Met::Tried { end, why } => Report::Tried { party, question, end, why },
                        Met::Earlier(bytes) => Report::Earlier { party, bytes },
                    }));
                };
                if let Some(bytes) = link.ask(&asking, &over, &met) {
                    let _ = report.send(Report::Answer { party, question, bytes });
                }
            });
        }
    }
}

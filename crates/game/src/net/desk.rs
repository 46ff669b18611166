//! The desk of a party: takes questions from many connections, has one thread answer them in turn, and stores the answers before
//! it sends them.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::kept::Kept;
use super::metrics::PartyMetrics;
use super::pass::Pass;
use crate::party::{Gatherer, Party, PartyError, ReceiptParty};
use tiebreak_dispute::game::message::{Asked, Question, Sealed};
use tiebreak_dispute::game::moves::{CARRIED_MAX, QUESTION_MAX};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;

/// The most questions that wait while one is answered.
const QUEUE_MAX: usize = 16;
/// The most askers of one question that wait for its answer.
const WAITING_MAX: usize = 16;

/// The reasons why a party does not answer a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The message is no question.
    #[error("{0}")]
    Malformed(String),
    /// The message is not a question of this game's referee.
    #[error("{0}")]
    Foreign(String),
    /// The queue of questions is full.
    #[error("too many questions are waiting: ask again later")]
    Busy,
    /// The party is ending.
    #[error("the party is ending: ask again when it is back")]
    Closed,
    /// The party could not compute the answer.
    #[error("{0}")]
    Failed(String),
}

impl Refused {
    /// The reason's name, for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Refused::Malformed(_) => "malformed",
            Refused::Foreign(_) => "foreign",
            Refused::Busy => "busy",
            Refused::Closed => "closed",
            Refused::Failed(_) => "failed",
        }
    }
}

/// Answers questions: the same question gives the same bytes, also after a restart.
pub trait Respond {
    /// Computes what every answer needs. A desk sends the answers of its journal meanwhile.
    ///
    /// # Errors
    /// If the party cannot answer at all.
    fn prepare(&mut self) -> Result<(), PartyError> {
        Ok(())
    }

    /// The sealed answer to a sealed question.
    ///
    /// # Errors
    /// If the question is not for this party, or the party cannot answer.
    fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused>;
}

impl Respond for Party {
    fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
        Party::reply(self, sealed).map_err(refused)
    }
}

impl Respond for ReceiptParty {
    fn prepare(&mut self) -> Result<(), PartyError> {
        ReceiptParty::prepare(self)
    }

    fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
        ReceiptParty::reply(self, sealed).map_err(refused)
    }
}

impl Respond for Gatherer {
    fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
        Gatherer::reply(self, sealed).map_err(refused)
    }
}

fn refused(error: PartyError) -> Refused {
    match error {
        PartyError::Malformed(why) => Refused::Foreign(why.to_string()),
        own => Refused::Failed(own.to_string()),
    }
}

fn failed(error: RunError) -> Refused {
    Refused::Failed(error.to_string())
}

/// The result of a question.
pub(crate) type Reply = Result<Arc<[u8]>, Refused>;

/// A question that the desk took.
pub enum Taken {
    /// The answer is stored already.
    Known(Arc<[u8]>),
    /// The answer will come.
    Later(oneshot::Receiver<Reply>),
}

/// Takes questions, and stores answers.
pub struct Desk {
    game: Digest,
    referee: PublicKey,
    pass: Pass,
    /// The most bytes of a question.
    limit: u64,
    kept: Mutex<Kept>,
    state: Mutex<State>,
    changed: Condvar,
    metrics: PartyMetrics,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    /// The waiting askers of each open question: those in the queue, and the one that is being answered.
    open: HashMap<Digest, Vec<oneshot::Sender<Reply>>>,
    closed: bool,
}

/// A question in the queue.
struct Waiting {
    name: Digest,
    /// True if the answer goes into the journal.
    kept: bool,
    sealed: Vec<u8>,
}

/// True if the answer to a question goes into the journal. A part of a log does not: the terms' root fixes its bytes, transcripts
/// do not hold it, and all parts together are as long as the logs.
fn is_kept(question: &Question) -> bool {
    !matches!(question, Question::Supply { .. })
}

impl Desk {
    /// A desk for the questions of one game to the party with this key. Answers go into a journal, which also holds the answers
    /// that it gave before.
    ///
    /// # Errors
    /// If another process has the journal, it is of another game or party or damaged, or the system refuses.
    pub fn open(
        game: Digest,
        key: &PrivateKey,
        referee: PublicKey,
        journal: &Path,
        disk: Disk,
    ) -> Result<Desk, RunError> {
        let kept = Kept::open(journal, &game, &key.public(), disk)?;
        let (metrics, kept) = (PartyMetrics::new(kept.count()), Mutex::new(kept));
        let pass = Pass::new(key, &referee, &game);
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Desk { game, referee, pass, limit: QUESTION_MAX, kept, state, changed, metrics })
    }

    /// The same desk, for questions that may carry parts of rounding logs.
    #[doc(hidden)] // for the layers above
    pub fn carrying(self) -> Desk {
        Desk { limit: CARRIED_MAX, ..self }
    }

    /// The most bytes of a question.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The checker of the referee's passes.
    pub(crate) fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The metrics of this party.
    #[doc(hidden)] // the command's alone
    pub fn metrics(&self) -> &PartyMetrics {
        &self.metrics
    }

    /// The number of answers in the journal.
    #[doc(hidden)] // for the layers above
    pub fn answered(&self) -> usize {
        self.kept().count()
    }

    /// The game.
    pub(crate) fn game(&self) -> Digest {
        self.game
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code below panics while it holds the lock; even if it did, the maps would be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same result; an error is counted.
    fn counted<T>(&self, result: Result<T, Refused>) -> Result<T, Refused> {
        result.inspect_err(|why| self.metrics.refused(why.reason()))
    }

    /// Checks the sender, so that only the referee makes this party work.
    ///
    /// # Errors
    /// If the message is no question, or not a question of this game that the referee signed.
    pub(crate) fn check(&self, sealed: &[u8]) -> Result<Asked, Refused> {
        self.counted(self.checked(sealed))
    }

    /// The question in a message, if this game's referee signed it.
    fn checked(&self, sealed: &[u8]) -> Result<Asked, Refused> {
        if serde_json::from_slice::<Sealed<Asked>>(sealed).is_err() {
            return Err(Refused::Malformed("this is no question of a dispute game".into()));
        }
        let asked = Sealed::<Asked>::from_bytes(sealed, self.limit, &self.referee)
            .map_err(|error| Refused::Foreign(error.to_string()))?
            .body;
        if asked.game != self.game {
            let why = format!("the question is of game {}, this party plays {}", asked.game, self.game);
            return Err(Refused::Foreign(why));
        }
        Ok(asked)
    }

    /// Takes a question that was checked. The question's name is [`Asked::digest`]: another signature of one question does not
    /// make another question.
    ///
    /// # Errors
    /// If the queue is full, the desk is closed, or the journal cannot be read.
    pub(crate) fn take(&self, asked: &Asked, sealed: Vec<u8>) -> Result<Taken, Refused> {
        self.counted(self.taken(asked, sealed))
    }

    /// The answer to a question that was checked, or its place in the queue.
    fn taken(&self, asked: &Asked, sealed: Vec<u8>) -> Result<Taken, Refused> {
        let name = asked.digest();
        let mut state = self.state();
        if let Some(waiting) = state.open.get_mut(&name) {
            waiting.retain(|sender| !sender.is_closed());
            if waiting.len() >= WAITING_MAX {
                return Err(Refused::Busy);
            }
            let (tell, told) = oneshot::channel();
            waiting.push(tell);
            return Ok(Taken::Later(told));
        }
        // A question that is not open is in the journal or was never answered.
        if let Some(answer) = self.kept().answer(&name).map_err(failed)? {
            return Ok(Taken::Known(answer.into()));
        }
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.queue.len() >= QUEUE_MAX {
            return Err(Refused::Busy);
        }
        let (tell, told) = oneshot::channel();
        state.open.insert(name, vec![tell]);
        state.queue.push_back(Waiting { name, kept: is_kept(&asked.question), sealed });
        self.metrics.taken(&asked.question, state.open.len());
        self.changed.notify_all();
        Ok(Taken::Later(told))
    }

    /// Answers questions, one after another, until the desk is closed.
    pub fn work(&self, responder: &mut (impl Respond + ?Sized)) {
        while let Some(Waiting { name, kept, sealed }) = self.next() {
            let begin = Instant::now();
            let reply: Reply = responder.reply(&sealed).and_then(|answer| {
                if kept {
                    let mut journal = self.kept();
                    journal.keep(name, &answer).map_err(failed)?;
                    self.metrics.kept(journal.count());
                }
                Ok(answer.into())
            });
            if let Err(why) = &reply {
                tracing::warn!(why = ?why.to_string(), "a question was not answered");
            }
            let mut state = self.state();
            let asking = state.open.remove(&name).unwrap_or_default();
            let end = reply.as_ref().map_or_else(Refused::reason, |_| "answered");
            self.metrics.ended(end, begin.elapsed(), state.open.len());
            drop(state);
            for sender in asking {
                // A client that went away asks again.
                let _ = sender.send(reply.clone());
            }
        }
    }

    fn next(&self) -> Option<Waiting> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(question) = state.queue.pop_front() {
                return Some(question);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes no more questions, and tells the waiting clients so. Stored answers are still sent.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.queue.clear();
        for sender in std::mem::take(&mut state.open).into_values().flatten() {
            let _ = sender.send(Err(Refused::Closed));
        }
        self.changed.notify_all();
    }

    /// True if the desk is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_dispute::game::message::Question;
    use tiebreak_record::commit::keys::PrivateKey;

    struct Counting(u32);

    impl Respond for Counting {
        fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
            self.0 += 1;
            Ok(sealed.to_vec())
        }
    }

    fn question(key: &PrivateKey, game: u8, turn: u32) -> Vec<u8> {
        Sealed::new(Asked::new(Digest([game; 32]), turn, Question::Commit), key).to_bytes()
    }

    #[test]
    fn questions_are_answered_once_and_only_for_the_referee() {
        let key = PrivateKey::generate("referee", [1; 32]).unwrap();
        let own = PrivateKey::generate("party", [3; 32]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("answers");
        let open =
            |key: &PrivateKey| Desk::open(Digest([7; 32]), &own, key.public(), &journal, Disk::default());
        let desk = open(&key).unwrap();
        assert!(open(&key).err().unwrap().to_string().contains("another process of this party"));
        assert!(matches!(desk.check(b"{}"), Err(Refused::Malformed(_))));
        assert!(matches!(desk.check(&question(&key, 8, 0)), Err(Refused::Foreign(_))));
        let other = PrivateKey::generate("referee", [2; 32]).unwrap();
        assert!(matches!(desk.check(&question(&other, 7, 0)), Err(Refused::Foreign(_))));
        let first = question(&key, 7, 0);
        assert_eq!(desk.check(&first).unwrap().turn, 0);

        let take = |desk: &Desk, sealed: Vec<u8>| desk.take(&desk.check(&sealed).unwrap(), sealed);
        let later = |sealed: &[u8]| match take(&desk, sealed.to_vec()).unwrap() {
            Taken::Later(told) => told,
            Taken::Known(_) => panic!("nobody has answered yet"),
        };
        let waiting = [later(&first), later(&first)];
        for turn in 1..QUEUE_MAX as u32 {
            drop(later(&question(&key, 7, turn)));
        }
        assert_eq!(take(&desk, question(&key, 7, 99)).err(), Some(Refused::Busy));
        let mut counting = Counting(0);
        std::thread::scope(|scope| {
            scope.spawn(|| desk.work(&mut counting));
            for told in waiting {
                assert_eq!(told.blocking_recv().unwrap().unwrap()[..], first);
            }
            let last = later(&question(&key, 7, 99));
            last.blocking_recv().unwrap().unwrap();
            desk.close();
        });
        assert_eq!(counting.0, QUEUE_MAX as u32 + 1);
        assert!(matches!(take(&desk, first.clone()), Ok(Taken::Known(_))));
        assert_eq!(take(&desk, question(&key, 7, 100)).err(), Some(Refused::Closed));
        // A new process has the answers, and computes none again.
        assert_eq!(desk.answered(), QUEUE_MAX + 1);
        drop(desk);
        let desk = open(&key).unwrap();
        let Ok(Taken::Known(answer)) = take(&desk, first.clone()) else { panic!("it is in the journal") };
        assert_eq!(answer[..], first);
    }
}

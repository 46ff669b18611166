//! The referee's questions about the trainer's logs. Each challenger in turn is asked which part it lacks, and the trainer is
//! asked for that part.

use super::breach::Breach;
use super::logs::{Supply, Turn};
use super::message::{Question, Supplied};
use super::referee::{Ask, Pending, Phase, Referee, Said, Taken, breach};
use super::result::Loss;

impl Referee {
    /// Supplies the next challenger behind a party; after the last challenger, everybody commits.
    pub(super) fn supply_next(&mut self, behind: usize) {
        if !self.standing.contains(&0) {
            return self.over();
        }
        let Some(challenger) = self.standing.range(behind + 1..).next().copied() else {
            return self.commit();
        };
        self.phase = Phase::Logs(Supply::to(challenger));
        self.wind(&[0, challenger]);
        self.ask(Question::Logs { supplied: None }, &[challenger]);
    }

    /// A challenger said which part it lacks, or the trainer supplied the part.
    pub(super) fn supplied(&mut self, done: Vec<Pending>) {
        for Pending { ask: Ask { party, .. }, said, .. } in done {
            let Phase::Logs(supply) = &mut self.phase else { return };
            let challenger = supply.challenger;
            let turn = match said {
                Said::Answer(answer) => match self.rules.run() {
                    Some(run) => supply.answered(run, party, answer),
                    None => return,
                },
                Said::Declined if party == 0 => Turn::Lost(party, Breach::NotSupplied(None)),
                said => Turn::Lost(party, breach(said)),
            };
            // The challenger may have lost by another message meanwhile.
            let stands = self.standing.contains(&challenger);
            match turn {
                Turn::Trainer(question) if stands => self.ask(question, &[0]),
                Turn::Challenger(supplied, slices) if stands => {
                    let digest = supplied.digest();
                    self.taken = Some(Taken { supplied: digest, slices });
                    self.ask(Question::Logs { supplied: Some(digest) }, &[challenger]);
                    self.carry(supplied);
                }
                Turn::Trainer(_) | Turn::Challenger(..) | Turn::Done => self.supply_next(challenger),
                Turn::Lost(party, breach) => {
                    if self.standing.remove(&party) {
                        self.result.absent.push(Loss::by(party, breach));
                    }
                    self.supply_next(challenger);
                }
            }
        }
    }

    /// The part of a log that the last message supplied; a transcript keeps it in place of the message.
    #[doc(hidden)] // for the layers above
    pub fn taken(&self) -> Option<Taken> {
        self.taken
    }

    /// The part that the pending question carries, for a journal.
    #[doc(hidden)] // for the layers above
    pub fn carried(&self) -> Option<&Supplied> {
        self.pending.first()?.ask.asked.carried.as_ref()
    }

    /// True if the pending question lacks the part that it must carry, because the game was resumed from a transcript.
    #[doc(hidden)] // for the layers above
    pub fn lacks_part(&self) -> bool {
        let ask = self.pending.first().map(|pending| &pending.ask.asked);
        ask.is_some_and(|asked| {
            matches!(asked.question, Question::Logs { supplied: Some(_) }) && asked.carried.is_none()
        })
    }

    /// Gives the pending question the part that it must carry; false if the question names another part.
    #[doc(hidden)] // for the layers above
    pub fn carry(&mut self, supplied: Supplied) -> bool {
        let Some(pending) = self.pending.first_mut() else { return false };
        let asked = &mut pending.ask.asked;
        let fits = asked.question == Question::Logs { supplied: Some(supplied.digest()) };
        if fits {
            asked.carried = Some(supplied);
        }
        fits
    }

    /// Takes a transcript's entry about a part of a log that the trainer supplied.
    #[doc(hidden)] // for the layers above
    pub fn receive_taken(&mut self, party: usize, taken: Taken, now: u64) {
        self.tick(now);
        let Phase::Logs(supply) = &mut self.phase else { return };
        let asked =
            self.pending.first().is_some_and(|p| p.ask.party == party && matches!(p.said, Said::Waiting));
        if !asked || !supply.took(taken.slices) {
            return;
        }
        let challenger = supply.challenger;
        self.settle(0, Said::Waiting);
        self.taken = Some(taken);
        match self.standing.contains(&challenger) {
            true => self.ask(Question::Logs { supplied: Some(taken.supplied) }, &[challenger]),
            false => self.supply_next(challenger),
        }
    }
}

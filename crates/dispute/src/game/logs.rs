//! The supply of the trainer's logs to challengers that lack them, before anybody commits: a part at a time, proved under the root of the terms.
//!
//! Positions only ascend and are within the logs, so a challenger cannot prolong the supply beyond the logs' length. The referee
//! keeps one part.

use super::breach::{BlockOfLog, Breach};
use super::message::{Answer, LogPlace, Question, SUPPLY_SLICES, Supplied};
use super::run_rules::RunRules;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::ProvenRecord;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_count};
use tiebreak_record::commit::{Malformed, merkle};
use tiebreak_record::rounding::log::{BlockPlace, Shown, SliceProof, elements, parts};

/// The reason why a part is not the one that was asked for.
#[derive(Debug, PartialEq)]
pub enum Unfit {
    /// The trainer's commitment is wrong: a record that is none of this computation, or a log that no step has.
    Committed(Breach),
    /// The answer does not prove the part that was asked for.
    Other(Malformed),
}

impl From<Malformed> for Unfit {
    fn from(why: Malformed) -> Unfit {
        Unfit::Other(why)
    }
}

fn wrong(why: &str) -> Malformed {
    Malformed::invalid("supply of a log", why)
}

/// The root of a step's log, by the trainer's record under the root of the terms.
fn log_root(rules: &RunRules, step: u32, proven: &ProvenRecord) -> Result<Digest, Unfit> {
    let claim =
        rules.claim.as_ref().map(|claim| claim.root).ok_or_else(|| wrong("the terms have no claim"))?;
    let leaf = merkle::leaf(&proven.record.0);
    let root = merkle::root_from_proof(leaf, proven.index, rules.records(), &proven.proof)?;
    if proven.index != u64::from(step) || root != claim {
        return Err(wrong("it does not prove the step's record").into());
    }
    let record = Record::decode(&proven.record.0)
        .map_err(|why| Unfit::Committed(Breach::NoRecord { index: proven.index, why }))?;
    if let Some(fault) = rules.record_fault(proven.index, &record) {
        return Err(Unfit::Committed(Breach::Record { index: proven.index, fault }));
    }
    match record {
        Record::Step { step: StepRecord { log: Some(log), .. }, .. } => Ok(log),
        _ => Err(wrong("the record has no log").into()),
    }
}

/// Checks a part of a log; returns the log's root and its number of slices.
///
/// # Errors
/// If the part is not the one at this position, proved under the root of the terms.
pub fn verified(rules: &RunRules, place: LogPlace, supplied: &Supplied) -> Result<(Digest, u64), Unfit> {
    let root = log_root(rules, place.step, &supplied.record)?;
    let count = piece_count(supplied.log.len as usize, SLICE_BYTES) as u64;
    let last = place.first.saturating_add(SUPPLY_SLICES).min(count);
    if !supplied.log.slices.iter().map(|slice| *slice as u64).eq(place.first..last) {
        return Err(wrong("its slices are not those that were asked for").into());
    }
    SliceProof::from(&supplied.log).verify(&root)?;
    let (len, most) = (u64::from(supplied.log.len), rules.log_max());
    if len > most {
        return Err(Unfit::Committed(Breach::LogTooLong { step: place.step, len, most }));
    }
    Ok((root, count))
}

/// The part or block that the trainer was asked for.
#[derive(Clone, Copy)]
enum Wanted {
    Nothing,
    Place(LogPlace),
    Block { step: u32, part: u32, block: u64 },
}

/// The next turn of the supply.
pub(super) enum Turn {
    /// The trainer is asked.
    Trainer(Question),
    /// The challenger gets the part that it asked for, and is asked what it lacks now.
    Challenger(Supplied, u64),
    /// The challenger has all the parts that it needs.
    Done,
    /// A party loses.
    Lost(usize, Breach),
}

/// The supply of logs to one challenger.
pub(super) struct Supply {
    /// The challenger's index among the parties.
    pub challenger: usize,
    wanted: Wanted,
    /// The last supplied part, and the number of slices of its log.
    last: Option<(LogPlace, u64)>,
}

impl Supply {
    /// A supply in which nothing was asked yet.
    pub fn to(challenger: usize) -> Supply {
        Supply { challenger, wanted: Wanted::Nothing, last: None }
    }

    /// The progress of the supply, for people.
    pub fn progress(&self) -> String {
        let step = self.last.map_or(0, |(place, _)| place.step);
        format!("party {} gets the trainer's rounding logs: step {step}", self.challenger)
    }

    /// True if a challenger may ask for a part: it is behind the last part, and within the logs.
    fn may_ask(&self, rules: &RunRules, place: LogPlace) -> bool {
        let steps = rules.records() - 2;
        let begins = place.first == 0 && self.last.is_none_or(|(last, _)| place.step > last.step);
        let goes_on = self.last.is_some_and(|(last, count)| {
            place.step == last.step && place.first > last.first && place.first < count
        });
        (1..=steps).contains(&u64::from(place.step))
            && place.first.is_multiple_of(SUPPLY_SLICES)
            && (begins || goes_on)
    }

    /// Notes that the trainer's part was taken; false if no part was wanted.
    pub fn took(&mut self, slices: u64) -> bool {
        let Wanted::Place(place) = self.wanted else { return false };
        self.last = Some((place, slices));
        self.wanted = Wanted::Nothing;
        true
    }

    /// Takes an answer of the party that was asked.
    pub fn answered(&mut self, rules: &RunRules, party: usize, answer: Answer) -> Turn {
        match (answer, self.wanted) {
            (Answer::Logs { lacks: None }, Wanted::Nothing) => Turn::Done,
            (Answer::Logs { lacks: Some(place) }, Wanted::Nothing) => {
                if !self.may_ask(rules, place) {
                    return Turn::Lost(party, Breach::Asked);
                }
                self.wanted = Wanted::Place(place);
                Turn::Trainer(Question::Supply { place })
            }
            (Answer::Unreadable { step, part, block }, Wanted::Nothing) => {
                let there = (1..=rules.records() - 2).contains(&u64::from(step))
                    && (part as usize) < parts(rules.program());
                if !there {
                    return Turn::Lost(party, Breach::Complained);
                }
                self.wanted = Wanted::Block { step, part, block };
                Turn::Trainer(Question::LogBlock { step, part, block })
            }
            (Answer::Supplied(supplied), Wanted::Place(place)) => match verified(rules, place, &supplied) {
                Ok((_, slices)) => {
                    self.took(slices);
                    Turn::Challenger(supplied, slices)
                }
                Err(unfit) => unfit_by(party, unfit),
            },
            (Answer::Supplied(supplied), Wanted::Block { step, part, block }) => {
                let place = BlockPlace {
                    part: part as usize,
                    elements: elements(rules.program(), part as usize),
                    block,
                };
                self.judged(rules, step, place, supplied).unwrap_or_else(|unfit| unfit_by(party, unfit))
            }
            _ => Turn::Lost(party, Breach::OtherKind),
        }
    }

    /// Decides if a block of a log cannot be read, as the challenger says.
    fn judged(
        &self,
        rules: &RunRules,
        step: u32,
        place: BlockPlace,
        supplied: Supplied,
    ) -> Result<Turn, Unfit> {
        let root = log_root(rules, step, &supplied.record)?;
        let proof = SliceProof::from(&supplied.log);
        let block = BlockOfLog { step, part: place.part, block: place.block };
        let read = match proof.block(&root, parts(rules.program()), place)? {
            Shown::Block(proven) => Some(proven.decisions()),
            Shown::Missing => None,
            Shown::Malformed(why) => Some(Err(why)),
        };
        Ok(match read {
            Some(Ok(_)) => Turn::Lost(self.challenger, Breach::Readable(block)),
            None => Turn::Lost(self.challenger, Breach::NoBlock(block)),
            Some(Err(why)) => Turn::Lost(0, Breach::Unreadable { block, why }),
        })
    }
}

/// The breach by which a trainer loses that does not supply the part it was asked for.
fn unfit_by(party: usize, unfit: Unfit) -> Turn {
    Turn::Lost(
        party,
        match unfit {
            Unfit::Committed(breach) => breach,
            Unfit::Other(why) => Breach::NotSupplied(Some(why)),
        },
    )
}

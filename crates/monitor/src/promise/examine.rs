//! The check of a run against its trainer's promise, and of the seed that follows from the beacon.

use serde::Serialize;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;

use super::entry::{Inputs, Promise};
use super::log::Promises;
use crate::matching::provenance::Weight;

/// A difference between a run and its promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// The log is of another key than the run's.
    #[error("the log is of the key {log}, and the run names {run}")]
    OtherKey {
        /// The log's key.
        log: String,
        /// The run's key, or `none`.
        run: String,
    },
    /// No promise of the log has the commitment of the revealed nonce.
    #[error("none of {promises} promises has the commitment {commitment} of the revealed nonce")]
    Unpromised {
        /// Promises of the log.
        promises: usize,
        /// The commitment of the revealed nonce.
        commitment: Digest,
    },
    /// The run's job is another one.
    #[error("job {promised} was promised, and the run has {found}")]
    OtherJob {
        /// The promised job.
        promised: Digest,
        /// The run's job.
        found: Digest,
    },
    /// The run's program is another one.
    #[error("program {promised} was promised, and the run has {found}")]
    OtherProgram {
        /// The promised program.
        promised: Digest,
        /// The run's program.
        found: Digest,
    },
    /// The run's data are others.
    #[error("data of root {promised} were promised, and the run has {found}")]
    OtherData {
        /// The root of the promised data.
        promised: Digest,
        /// The root of the run's data.
        found: Digest,
    },
    /// The run begins from something else.
    #[error(
        "the run begins from something else than was promised: {promised} was promised, and the run has {found}"
    )]
    OtherBeginning {
        /// The promised origin, in JSON.
        promised: String,
        /// The run's origin, in JSON.
        found: String,
    },
    /// The run's challenge does not follow from promise, beacon and nonce.
    #[error(
        "promise, beacon and nonce give the challenge {due}, and the run has {found}: its seed was chosen otherwise"
    )]
    OtherChallenge {
        /// The challenge that follows.
        due: Digest,
        /// The run's challenge, or `none`.
        found: String,
    },
    /// The promise was witnessed when the beacon's value could be known.
    #[error("a witness saw the promise at {}, and the beacon's round was at {}", utc(*.witnessed), utc(*.round))]
    Late {
        /// The earliest time of a given witness, in seconds since 1970.
        witnessed: u64,
        /// The time of the beacon's round.
        round: u64,
    },
    /// The run was declared before its promise was witnessed.
    #[error("a witness saw the run's first head at {}, and its promise at {}", utc(*.declared), utc(*.witnessed))]
    Begun {
        /// The time of the run's declaration.
        declared: u64,
        /// The earliest time of the promise.
        witnessed: u64,
    },
    /// No witness vouches for the time of the promise.
    #[error(
        "no given witness cosigned a head over promise {promise}, so nobody vouches for when it was made"
    )]
    Unwitnessed {
        /// The number of the promise.
        promise: usize,
    },
    /// Other promises of the same program and data have no run among those given.
    #[error("no run is given of the promises {promises:?}, which have the same program and data: the trainer could choose among {} seeds", .promises.len() + 1)]
    Several {
        /// The numbers of the other promises.
        promises: Vec<usize>,
    },
    /// A witness knows more promises of the log. Its answer is not signed, so nobody is accused by it.
    #[error(
        "a witness knows {known} promises of this log, and {shown} are shown: ask the trainer for the others"
    )]
    Withheld {
        /// Promises that the witness knows.
        known: u64,
        /// Promises of the log.
        shown: u64,
    },
    /// Nobody says that the log has no later promises.
    #[error("no witness says that this log of {shown} promises is the newest: ask one with --ask URL")]
    EndUnknown {
        /// Promises of the log.
        shown: u64,
    },
}

impl Finding {
    /// The kind's stable name.
    pub fn kind(&self) -> &'static str {
        match self {
            Finding::OtherKey { .. } => "other_key",
            Finding::Unpromised { .. } => "unpromised",
            Finding::OtherJob { .. } => "other_job",
            Finding::OtherProgram { .. } => "other_program",
            Finding::OtherData { .. } => "other_data",
            Finding::OtherBeginning { .. } => "other_beginning",
            Finding::OtherChallenge { .. } => "other_challenge",
            Finding::Late { .. } => "late",
            Finding::Begun { .. } => "begun",
            Finding::Unwitnessed { .. } => "unwitnessed",
            Finding::Several { .. } => "several",
            Finding::Withheld { .. } => "withheld",
            Finding::EndUnknown { .. } => "end_unknown",
        }
    }

    /// The weight.
    pub fn weight(&self) -> Weight {
        match self {
            Finding::Unwitnessed { .. } | Finding::Several { .. } => Weight::Undecided,
            Finding::Withheld { .. } | Finding::EndUnknown { .. } => Weight::Undecided,
            _ => Weight::Finding,
        }
    }
}

/// A run, as far as promises are about it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The trainer's key that the run names.
    pub key: Option<PublicKey>,
    /// The inputs of its computation.
    pub inputs: Inputs,
    /// The challenge that its seed depends on.
    pub challenge: Option<Digest>,
    /// The time at which a given witness saw the run's first head.
    pub declared: Option<u64>,
}

/// The values that an inspector got from elsewhere.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// The value of the promised round, in hexadecimal digits.
    pub value: &'a str,
    /// The time of the promised round, in seconds since 1970.
    pub round_time: u64,
    /// The nonce that the trainer revealed.
    pub nonce: Digest,
    /// The witnesses whose word on times counts.
    pub witnesses: &'a [PublicKey],
    /// The numbers of the promises that other runs keep ([`kept`]).
    pub others: &'a [usize],
    /// The most promises of the log that a witness knows, of those that were asked.
    pub known: Option<u64>,
}

/// The result of an examination: the number of the run's promise, its time, and the differences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The number of the promise.
    pub promise: Option<usize>,
    /// The earliest time at which a given witness saw it.
    pub witnessed: Option<u64>,
    /// The differences.
    pub findings: Vec<Finding>,
    /// Promises of another program or other data that no given run keeps. A hair's difference of the job makes another program, so
    /// people ask what they were for.
    pub different: Vec<usize>,
}

/// Differences of inputs.
fn inputs(promised: &Inputs, found: &Inputs) -> Vec<Finding> {
    let json = |begin| serde_json::to_string(begin).unwrap_or_default();
    [
        (promised.job != found.job).then_some(Finding::OtherJob { promised: promised.job, found: found.job }),
        (promised.program != found.program)
            .then_some(Finding::OtherProgram { promised: promised.program, found: found.program }),
        (promised.data != found.data)
            .then_some(Finding::OtherData { promised: promised.data, found: found.data }),
        (promised.begin != found.begin)
            .then(|| Finding::OtherBeginning { promised: json(&promised.begin), found: json(&found.begin) }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Other promises that no given run keeps: those of the same program and data, and the remaining ones.
fn unused(log: &Promises, number: usize, others: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let of = |promise: &Promise| (promise.program, promise.data);
    let own = log.promises().nth(number).map(of);
    let unused = log.promises().enumerate().filter(|(other, _)| *other != number && !others.contains(other));
    let (same, different): (Vec<_>, Vec<_>) = unused.partition(|(_, promise)| own == Some(of(promise)));
    let numbers = |list: Vec<(usize, &Promise)>| list.into_iter().map(|(number, _)| number).collect();
    (numbers(same), numbers(different))
}

/// The promise whose nonce was revealed, and how the run differs from it: key, inputs and challenge.
///
/// # Errors
/// If the value is none of a beacon.
pub fn kept(
    log: &Promises,
    run: &Shown,
    value: &str,
    nonce: &Digest,
) -> Result<(Option<usize>, Vec<Finding>), Malformed> {
    let mut findings = Vec::new();
    if run.key.as_ref() != Some(log.key()) {
        let named = run.key.as_ref().map_or("none".into(), PublicKey::to_text);
        findings.push(Finding::OtherKey { log: log.key().to_text(), run: named });
    }
    let Some(number) = log.of_nonce(nonce) else {
        let commitment = crate::randomness::commitment(nonce);
        findings.push(Finding::Unpromised { promises: log.promises().len(), commitment });
        return Ok((None, findings));
    };
    if let Some(promise) = log.promises().nth(number) {
        findings.extend(inputs(&promise.inputs(), &run.inputs));
    }
    let due = log.challenge(number, value, nonce)?;
    if run.challenge != Some(due) {
        let found = run.challenge.map_or("none".into(), |challenge| challenge.to_string());
        findings.push(Finding::OtherChallenge { due, found });
    }
    Ok((Some(number), findings))
}

/// Compares a run with the promise whose nonce was revealed.
///
/// # Errors
/// If the value is none of a beacon, or a cosignature of a witness does not verify.
pub fn examine(log: &Promises, run: &Shown, given: &Given) -> Result<Examined, Malformed> {
    let (number, mut findings) = kept(log, run, given.value, &given.nonce)?;
    let Some(number) = number else {
        return Ok(Examined { promise: None, witnessed: None, findings, different: Vec::new() });
    };
    let times = given.witnesses.iter().map(|witness| log.witnessed(number, witness));
    let witnessed = times.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().min();
    match witnessed {
        None => findings.push(Finding::Unwitnessed { promise: number }),
        Some(witnessed) => {
            if witnessed >= given.round_time {
                findings.push(Finding::Late { witnessed, round: given.round_time });
            }
            if let Some(declared) = run.declared.filter(|declared| *declared < witnessed) {
                findings.push(Finding::Begun { declared, witnessed });
            }
        }
    }
    let (promises, different) = unused(log, number, given.others);
    if !promises.is_empty() {
        findings.push(Finding::Several { promises });
    }
    // The trainer may show a log that ends with the kindest promise.
    let shown = log.promises().len() as u64;
    match given.known {
        Some(known) if known == shown => {}
        Some(known) if known > shown => findings.push(Finding::Withheld { known, shown }),
        _ => findings.push(Finding::EndUnknown { shown }),
    }
    Ok(Examined { promise: Some(number), witnessed, findings, different })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promise::entry::Begin;
    use crate::promise::log::tests::{key, log, promise};
    use tiebreak_record::commit::cosignature::cosigned;
    use tiebreak_record::commit::keys::PrivateKey;

    const VALUE: &str = "000102030405060708090a0b0c0d0e0f";

    fn witness() -> PrivateKey {
        PrivateKey::generate("witness.example", [8; 32]).unwrap()
    }

    /// A log of one promise that the witness saw at 100, and an honest run of it.
    fn honest() -> (Promises, Shown) {
        let mut log = log(1);
        log.cosign(cosigned(log.newest().unwrap(), &witness(), 100).unwrap()).unwrap();
        let challenge = log.challenge(0, VALUE, &Digest([0; 32])).ok();
        let run =
            Shown { key: Some(key(1).public()), inputs: promise(0).inputs(), challenge, declared: Some(120) };
        (log, run)
    }

    fn kinds<'a>(log: &Promises, run: &Shown, change: impl FnOnce(&mut Given<'a>)) -> Vec<&'static str> {
        let witnesses: &'static [PublicKey] = Box::leak(Box::new([witness().public()]));
        let nonce = Digest([0; 32]);
        let mut given = Given { value: VALUE, round_time: 110, nonce, witnesses, others: &[], known: None };
        given.known = Some(log.promises().len() as u64);
        change(&mut given);
        let found = examine(log, run, &given).unwrap().findings;
        found
            .iter()
            .for_each(|one| assert_eq!(serde_json::to_value(one).unwrap()["kind"], one.kind(), "{one}"));
        found.iter().map(Finding::kind).collect()
    }

    #[test]
    fn an_honest_run_is_as_promised() {
        let (log, run) = honest();
        assert_eq!(kinds(&log, &run, |_| {}), [""; 0]);
    }

    #[test]
    fn every_difference_has_its_kind() {
        let (log, run) = honest();
        let with = |change: &dyn Fn(&mut Shown)| {
            let mut run = run.clone();
            change(&mut run);
            kinds(&log, &run, |_| {})
        };
        let other = Digest([9; 32]);
        assert_eq!(with(&|run| run.key = Some(key(2).public())), ["other_key"]);
        assert_eq!(with(&|run| run.key = None), ["other_key"]);
        assert_eq!(with(&|run| run.inputs.job = other), ["other_job"]);
        assert_eq!(with(&|run| run.inputs.program = other), ["other_program"]);
        assert_eq!(with(&|run| run.inputs.data = other), ["other_data"]);
        let begin = Begin::Weights { files: other };
        assert_eq!(with(&|run| run.inputs.begin = begin), ["other_beginning"]);
        assert_eq!(with(&|run| run.challenge = Some(other)), ["other_challenge"]);
        assert_eq!(with(&|run| run.challenge = None), ["other_challenge"]);
        assert_eq!(with(&|run| run.declared = Some(99)), ["begun"]);
        assert_eq!(with(&|run| run.declared = None), [""; 0]);
        assert_eq!(kinds(&log, &run, |given| given.round_time = 101), [""; 0]);
        assert_eq!(kinds(&log, &run, |given| given.round_time = 100), ["late"]);
        assert_eq!(kinds(&log, &run, |given| given.witnesses = &[]), ["unwitnessed"]);
        assert_eq!(kinds(&log, &run, |given| given.nonce = other), ["unpromised"]);
        let value = "ff".repeat(16);
        assert_eq!(kinds(&log, &run, |given| given.value = &value), ["other_challenge"]);
    }

    /// A trainer who makes many promises and trains the one that is kind leaves the others.
    #[test]
    fn promises_without_a_run_are_told() {
        let (mut log, run) = honest();
        log.append(promise(1), &key(1)).unwrap();
        assert_eq!(kinds(&log, &run, |_| {}), ["several"]);
        assert_eq!(kinds(&log, &run, |given| given.others = &[1]), [""; 0]);
        assert_eq!(kinds(&log, &run, |given| given.others = &[0, 0]), ["several"]);
        log.append(promise(2), &key(1)).unwrap();
        assert_eq!(kinds(&log, &run, |given| given.others = &[1, 1]), ["several"]);
        // Another run keeps the promise whose nonce is revealed, and only with the challenge that follows.
        let nonce = Digest([1; 32]);
        let other = Shown { challenge: log.challenge(1, VALUE, &nonce).ok(), ..run.clone() };
        let kinds_of = |run: &Shown, nonce: &Digest| {
            let (number, found) = kept(&log, run, VALUE, nonce).unwrap();
            (number, found.iter().map(Finding::kind).collect::<Vec<_>>())
        };
        assert_eq!(kinds_of(&other, &nonce), (Some(1), vec![]));
        assert_eq!(kinds_of(&run, &nonce), (Some(1), vec!["other_challenge"]));
        let without = Shown { challenge: None, ..run.clone() };
        assert_eq!(kinds_of(&without, &nonce), (Some(1), vec!["other_challenge"]));
        let stranger = Shown { key: Some(key(2).public()), ..other };
        assert_eq!(kinds_of(&stranger, &nonce), (Some(1), vec!["other_key"]));
        assert_eq!(kinds_of(&run, &Digest([77; 32])), (None, vec!["unpromised"]));
        let mut fresh = honest().0;
        fresh
            .append(crate::promise::entry::Promise { data: Digest([7; 32]), ..promise(3) }, &key(1))
            .unwrap();
        assert_eq!(kinds(&fresh, &run, |_| {}), [""; 0]);
    }
}

//! A draw beside what was done: which drawn segments were replayed, and which drawn chips' logs are in order.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tiebreak_audit::merge::{Conclusion, Merged, Range};
use tiebreak_audit::report_file::Account;
use tiebreak_monitor::snapshot::record::Serial;
use tiebreak_monitor::statement::bound::most_deviating;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle::{prove_consistency, verify_consistency};
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{names, transcript};

use super::drawn::{Chips, Drawn};
use crate::cli::args::place::run_at;
use crate::cli::view::report::{Exit, Failure};

/// The segments of a run, by a draw or by the auditors' own samples.
pub struct Segments {
    /// Segments of the run.
    pub all: u64,
    /// Segments whose every step was replayed.
    pub replayed: u64,
    /// Segments that were drawn.
    pub drawn: u64,
    /// Drawn segments that were not replayed to their end.
    pub left: Vec<Range>,
    /// True if a draw chose them; false if the auditors' samples did.
    pub by_draw: bool,
    /// The proof that the heads of draw and reports are of one log, if they differ.
    pub bridge: Option<Bridge>,
}

/// A number of records, and their root.
type Size = (u64, Digest);

/// The consistency proof (RFC 9162) between the heads of draw and reports.
pub struct Bridge {
    /// The shorter head.
    pub old: Size,
    /// The longer head.
    pub new: Size,
    /// The hashes.
    pub proof: Vec<Digest>,
}

impl Bridge {
    /// The proof from the records of a run that is at hand.
    ///
    /// # Errors
    /// If it is another run, has fewer records, or has another history than one of the heads.
    fn of(folder: &Path, run: &Digest, one: Size, other: Size) -> Result<Bridge, Failure> {
        let log = run_at(folder, Salts::Closed)?;
        let place = folder.display();
        if log.id != *run {
            let why = format!("--run {place}: it is run {}", log.id.not(run));
            return Err(Failure::new(Exit::Usage, why).help("name the run that the reports are about"));
        }
        let (old, new) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        let leaves = transcript::read_first(&log.at(names::TRANSCRIPT), new.0)?.leaves;
        if (leaves.len() as u64) < new.0 {
            let why = format!("--run {place}: it has {} records, and a head covers {}", leaves.len(), new.0);
            return Err(Failure::new(Exit::Usage, why).help("name a copy of the run that has them"));
        }
        let proof = prove_consistency(&leaves, old.0 as usize);
        match verify_consistency(old, new, &proof) {
            Ok(()) => Ok(Bridge { old, new, proof }),
            Err(error) => {
                let (old, new) = (old.0, new.0);
                let why = format!(
                    "--run {place}: its records do not join the heads over {old} and {new} records: {error}"
                );
                Err(Failure::new(Exit::Diverges, why))
            }
        }
    }
}

impl Segments {
    /// The most that deviate, of all.
    pub fn most(&self, confidence: f64) -> u64 {
        // Steps that no segment holds are in no draw.
        most_deviating(self.all, self.drawn, self.left.len() as u64, confidence).min(self.all - self.replayed)
    }
}

/// A share of all, in percent of two places. A bound is rounded up, never down.
pub fn percent(most: u64, all: u64) -> f64 {
    (1e4 * most as f64 / all as f64).ceil() / 100.0
}

/// True if one of the ranges, ascending and apart, has all of a segment.
fn is_replayed(covered: &[Range], (first, last): Range) -> bool {
    let at = covered.partition_point(|&(_, to)| to < first);
    covered.get(at).is_some_and(|&(from, to)| from <= first && last <= to)
}

/// The segments of a drawn run, replayed by whatever reports; `None` if the draw is of no segment of the run, or the reports
/// do not match.
///
/// # Errors
/// If the draw is over another head than the reports, and no records at hand show that one head continues the other.
pub fn segments(
    drawn: &Drawn,
    merged: &Merged,
    first: &Account,
    log: Option<&Path>,
) -> Result<Option<Segments>, Failure> {
    let places = drawn.draw.question.runs.iter().zip(&drawn.draw.segments);
    let Some((declared, chosen)) = places.into_iter().find(|(declared, _)| declared.run == merged.run) else {
        return Ok(None);
    };
    let steps = declared.size.saturating_sub(1).min(u64::from(merged.steps)) as u32;
    let (of_draw, of_reports) = ((declared.size, declared.root), (first.head_size, first.head_root));
    let bridge = match log {
        _ if declared.steps == steps && of_draw == of_reports => None,
        Some(log) if declared.steps == steps => Some(Bridge::of(log, &merged.run, of_draw, of_reports)?),
        _ => {
            let why = format!(
                "the draw is over {} records of root {} and {} steps; the reports are of {} records of root {} and {steps} steps",
                declared.size, declared.root, declared.steps, first.head_size, first.head_root
            );
            let help = "give the run's records (--run RUN), which show that one head continues the other, or audit the run under \
                        the head that was drawn from";
            return Err(Failure::new(Exit::Usage, why).help(help));
        }
    };
    if chosen.steps.is_empty() || merged.result != Conclusion::Matches {
        return Ok(None);
    }
    let replayed =
        (0..declared.segments()).filter(|&number| is_replayed(&merged.covered, declared.steps_of(number)));
    let left = chosen.steps.iter().copied().filter(|&steps| !is_replayed(&merged.covered, steps));
    Ok(Some(Segments {
        all: u64::from(declared.segments()),
        replayed: replayed.count() as u64,
        drawn: chosen.steps.len() as u64,
        left: left.collect(),
        by_draw: true,
        bridge,
    }))
}

/// The part of a statement about a draw: a sentence, and the numbers in it. A drawn chip is in order if an inspection of its
/// published log found no defect and, where a match is given, each of the log's snapshots is of a declared run.
pub fn chips(
    drawn: &Drawn,
    of: &Chips,
    inspections: &[Value],
    matched: Option<&Value>,
    confidence: f64,
    sha256: &str,
) -> (String, Value) {
    let draw = &drawn.draw;
    let mut apart: BTreeMap<&str, Vec<&Serial>> = ["notClosed", "notInspected", "withDefects", "notMatched"]
        .into_iter()
        .map(|kind| (kind, vec![]))
        .collect();
    for &chip in &of.drawn {
        let why = match drawn.closed.0.get(chip) {
            None => Some("notClosed"),
            Some(head) => apart_by(chip, &head.line(chip), inspections, matched),
        };
        if let Some(of_kind) = why.and_then(|why| apart.get_mut(why)) {
            of_kind.push(chip);
        }
    }
    let apart_of = |kind: &str| apart.get(kind).map_or(0, Vec::len);
    let bad = apart.values().map(Vec::len).sum::<usize>() as u64;
    let all = of.drawn.len() as u64;
    let most = (all > 0).then(|| most_deviating(of.monitored, all, bad, confidence));
    let owner = of.owner.map_or(String::new(), |owner| format!(" of {owner}"));
    let mut text = format!(
        "of {} monitored chips{owner} {all} were drawn; the logs of {} are in order",
        of.monitored,
        all - bad
    );
    if let Some(most) = most {
        text += &format!(
            ", so with confidence {confidence} those of at most {:.2} % of the chips are not",
            percent(most, of.monitored)
        );
    }
    for (kind, words) in [
        ("notInspected", "have no inspection of their published log"),
        ("notClosed", "have no published head"),
        ("withDefects", "have logs with defects"),
        ("notMatched", "have snapshots that nobody matched, or that are of no declared run"),
    ] {
        if apart_of(kind) > 0 {
            text += &format!("; {} {words}", apart_of(kind));
        }
    }
    let value = json!({
        "text": text,
        "digest": { "sha256": sha256 },
        "seed": draw.seed,
        "randomness": draw.question.randomness,
        "beacon": drawn.beacon,
        "registerChecked": drawn.registered,
        "owner": of.owner,
        "monitored": of.monitored,
        "drawn": of.drawn,
        "apart": apart,
        "matched": matched.is_some(),
        "confidence": confidence,
        "notInOrderAtMost": most,
    });
    (text, value)
}

/// The kind of a drawn chip that is not in order.
fn apart_by(
    chip: &Serial,
    head: &str,
    inspections: &[Value],
    matched: Option<&Value>,
) -> Option<&'static str> {
    let of_chip = || inspections.iter().filter(|one| one["serial"] == chip.as_str());
    // Any inspection's defect counts, of whatever copy of the log.
    if of_chip().any(|one| one["result"] != "matches") {
        return Some("withDefects");
    }
    let Some(inspected) = of_chip().find(|one| one["closed"] == head) else { return Some("notInspected") };
    let matched = matched?;
    let list = |name: &str| matched[name].as_array().map_or(&[][..], Vec::as_slice);
    let seen = list("logs").iter().any(|log| !log["head"].is_null() && log["head"] == inspected["head"]);
    let of_chip = |one: &&Value| one["chip"] == chip.as_str();
    let explained = list("snapshots").iter().filter(of_chip).all(|one| one["weight"] == "matched")
        && list("silent").iter().filter(of_chip).all(|one| one["weight"] != "finding");
    (!seen || !explained).then_some("notMatched")
}

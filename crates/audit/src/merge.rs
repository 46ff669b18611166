//! Merges several auditors' reports of one run: the steps that they cover together. Steps are kept as ranges, never one by one.

use serde::Serialize;

use super::report::Outcome;
use super::report_file::Account;
use tiebreak_record::commit::digest::Digest;

/// Steps first..=last.
pub type Range = (u32, u32);

/// The steps of a run that must be covered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Required {
    /// Every step.
    All,
    /// At least this share of the steps, above 0 and at most 1.
    Share(f64),
}

/// The conclusion from several reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// An auditor found a difference.
    Diverges,
    /// All required steps were replayed, and no auditor found a difference.
    Matches,
    /// Any other result.
    Undecided,
}

/// The merged reports of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Merged {
    /// The run id.
    pub run: Digest,
    /// The computation that the run is of.
    pub computation: Digest,
    /// The digest of the canonical job.
    pub job: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// Steps of the whole run.
    pub steps: u32,
    /// Steps that some auditor replayed, as ascending, disjoint ranges.
    pub covered: Vec<Range>,
    /// The other steps of the run, as such ranges.
    pub missing: Vec<Range>,
    /// The conclusion.
    pub result: Conclusion,
    /// The reasons why the result is undecided, in words.
    pub reasons: Vec<String>,
}

impl Merged {
    /// The number of steps that some auditor replayed.
    pub fn steps_covered(&self) -> u64 {
        self.covered.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum()
    }
}

/// The reason why reports cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apart {
    /// The report with this number is about another run than the first.
    OtherRun(usize),
    /// The report with this number contradicts the first about the run: steps, job, data or computation.
    Contradicts(usize),
}

/// The union of ranges, ascending. Adjacent ranges are joined, and empty ones are dropped.
pub fn union(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.retain(|&(first, last)| first <= last);
    ranges.sort_unstable();
    let mut united: Vec<Range> = Vec::new();
    for (first, last) in ranges {
        match united.last_mut() {
            Some(before) if u64::from(first) <= u64::from(before.1) + 1 => before.1 = before.1.max(last),
            _ => united.push((first, last)),
        }
    }
    united
}

/// The steps of 1..=`steps` outside the ranges, which are ascending and disjoint.
pub(crate) fn gaps(covered: &[Range], steps: u32) -> Vec<Range> {
    let mut gaps = Vec::new();
    let mut next = 1;
    for &(first, last) in covered {
        if next < first {
            gaps.push((next, first - 1));
        }
        next = last.saturating_add(1);
    }
    let end = covered.last().map_or(0, |&(_, last)| last);
    if end < steps {
        gaps.push((end + 1, steps));
    }
    gaps
}

/// Merges reports; `None` if there is none.
///
/// # Errors
/// If they are about several runs, or one contradicts the first about the run.
pub fn merge(accounts: &[Account], required: Required) -> Result<Option<Merged>, Apart> {
    let Some(first) = accounts.first() else { return Ok(None) };
    for (number, other) in accounts.iter().enumerate() {
        if other.run != first.run {
            return Err(Apart::OtherRun(number));
        }
        let said = |a: &Account| (a.computation, a.job, a.data, a.steps);
        if said(other) != said(first) {
            return Err(Apart::Contradicts(number));
        }
    }
    let covered = union(accounts.iter().flat_map(|account| account.replayed.iter().copied()).collect());
    let missing = gaps(&covered, first.steps);
    let mut merged = Merged {
        run: first.run,
        computation: first.computation,
        job: first.job,
        data: first.data,
        steps: first.steps,
        covered,
        missing,
        result: Conclusion::Undecided,
        reasons: Vec::new(),
    };
    merged.reasons = reasons(accounts, &merged, required);
    let found = |a: &Account| matches!(a.outcome, Outcome::Diverges { .. } | Outcome::Inconsistent { .. });
    merged.result = match merged.reasons.is_empty() {
        _ if accounts.iter().any(found) => Conclusion::Diverges,
        true => Conclusion::Matches,
        false => Conclusion::Undecided,
    };
    Ok(Some(merged))
}

/// The reasons why the reports together are no match.
fn reasons(accounts: &[Account], merged: &Merged, required: Required) -> Vec<String> {
    let mut reasons = Vec::new();
    // An auditor who refused the run read no head.
    let mut heads = accounts.iter().filter(|a| a.head_size > 0).map(|a| (a.head_size, a.head_root));
    let first = heads.next();
    if heads.any(|head| Some(head) != first) {
        let why = "the auditors were shown different heads: audit the run under its latest head, and compare the copies (tiebreak compare)";
        reasons.push(why.into());
    }
    let undecided = accounts.iter().filter(|account| account.outcome != Outcome::Matches).count();
    match undecided {
        0 => {}
        1 => reasons.push("1 report does not end with a match".into()),
        _ => reasons.push(format!("{undecided} reports do not end with a match")),
    }
    if !accounts.iter().any(|account| account.end_checked) {
        reasons.push("nobody checked the run's final record and released model".into());
    }
    let steps = merged.steps_covered();
    let enough = match required {
        Required::All => merged.missing.is_empty(),
        Required::Share(share) => steps as f64 >= share * f64::from(merged.steps),
    };
    if !enough || steps == 0 {
        reasons.push(format!(
            "{steps} of {} steps were replayed, which is less than --require asks for",
            merged.steps
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(replayed: Range, outcome: Outcome<String>) -> Account {
        let one = Digest([1; 32]);
        Account {
            run: one,
            computation: one,
            job: one,
            data: one,
            steps: 8,
            head_size: 10,
            head_root: one,
            end_checked: true,
            native: false,
            outcome,
            replayed: vec![replayed],
            auditor: None,
        }
    }

    #[test]
    fn reports_match_only_if_all_of_them_do_under_one_head() {
        let whole = account((1, 8), Outcome::Matches);
        let result = |accounts: &[Account]| merge(accounts, Required::All).unwrap().unwrap().result;
        assert_eq!(merge(&[], Required::All), Ok(None));
        assert_eq!(result(std::slice::from_ref(&whole)), Conclusion::Matches);
        // Another auditor was shown another history.
        let forked = Account { head_root: Digest([2; 32]), ..whole.clone() };
        assert_eq!(result(&[whole.clone(), forked]), Conclusion::Undecided);
        let cut = Account { head_size: 9, ..whole.clone() };
        assert_eq!(result(&[whole.clone(), cut]), Conclusion::Undecided);
        // Nobody was shown another head by whoever refused the run.
        let refused = Account {
            head_size: 0,
            head_root: Digest([0; 32]),
            ..account((1, 0), Outcome::Incomplete { what: "another run was ordered".into() })
        };
        let merged = merge(&[refused, whole.clone()], Required::All).unwrap().unwrap();
        assert_eq!(
            (merged.result, &merged.reasons[..]),
            (Conclusion::Undecided, &["1 report does not end with a match".into()][..])
        );
        // No auditor saw the end.
        assert_eq!(result(&[Account { end_checked: false, ..whole.clone() }]), Conclusion::Undecided);
        let what = String::new;
        for outcome in [
            Outcome::Incomplete { what: what() },
            Outcome::UnboundedFreedom { what: what() },
            Outcome::UnexplainedDecisions { what: what() },
            Outcome::Unconfirmed { step: 1, what: what() },
            Outcome::MissingDecision { step: 1, what: what() },
            Outcome::EngineFaulty { step: 1, engine: what(), what: what() },
        ] {
            assert_eq!(result(&[whole.clone(), account((1, 1), outcome)]), Conclusion::Undecided);
        }
        let diverges = Outcome::Diverges { step: 3, what: what() };
        assert_eq!(result(&[whole.clone(), account((1, 2), diverges)]), Conclusion::Diverges);
        let other = Account { steps: 9, ..whole.clone() };
        assert_eq!(merge(&[whole.clone(), other], Required::All), Err(Apart::Contradicts(1)));
        let other = Account { run: Digest([2; 32]), ..whole.clone() };
        assert_eq!(merge(&[whole, other], Required::All), Err(Apart::OtherRun(1)));
    }

    #[test]
    fn ranges_are_united_without_counting_their_steps() {
        let all = u32::MAX;
        assert_eq!(union(vec![(5, 6), (1, 2), (3, 3), (7, 6), (6, 9)]), [(1, 3), (5, 9)]);
        assert_eq!(union(vec![(1, all), (2, all), (all, all)]), [(1, all)]);
        assert_eq!(gaps(&[(1, 3), (5, 9)], 12), [(4, 4), (10, 12)]);
        assert_eq!(gaps(&[(2, all)], all), [(1, 1)]);
        assert_eq!(gaps(&[], 7), [(1, 7)]);
        assert_eq!(gaps(&[(1, 7)], 7), []);
    }
}

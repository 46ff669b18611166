//! The decision on a rule for a run: it holds, is violated, or cannot be decided, each with its evidence.

use std::collections::BTreeMap;

use serde::Serialize;

use tiebreak_record::commit::digest::Digest;

use super::facts::{Evaluated, Facts, total};
use super::file::{Kinds, OfData, Range, Rules};
pub use super::ruling::Ruling;
use super::share::Share;

/// A rule for a run, decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The rule's table in the file; of a rule about data with its name, as `data.NAME`.
    pub rule: String,
    /// The run.
    pub run: Digest,
    /// The end.
    pub ruling: Ruling,
    /// The value that was found and its source, or the missing part, in words.
    pub evidence: String,
    /// The share of a rule about data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// Decides every rule for every run, in the order of the rules; those about data are left to [`super::share`].
pub fn decide(rules: &Rules, all: &BTreeMap<Digest, Facts>, evaluated: &[Evaluated]) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for facts in all.values() {
        let mut add = |rule: &str, (ruling, evidence): (Ruling, String)| {
            let rule = rule.to_string();
            decisions.push(Decision { rule, run: facts.run, ruling, evidence, share: None });
        };
        if let Some(range) = &rules.flop {
            add("flop", flop(range, facts, all));
        }
        if let Some(range) = &rules.learning_rate {
            add("learning_rate", learning_rate(range, facts));
        }
        if let Some(range) = &rules.samples {
            add("samples", number(range, f64::from(facts.samples), "samples of a step, by the program"));
        }
        if let Some(range) = &rules.steps {
            add("steps", steps(range, facts));
        }
        let kind = |which: fn(&(String, String)) -> &String| facts.kinds.as_ref().map(which);
        if let Some(kinds) = &rules.model {
            add("model", named(kinds, kind(|kinds| &kinds.0), "model kind"));
        }
        if let Some(kinds) = &rules.optimizer {
            add("optimizer", named(kinds, kind(|kinds| &kinds.1), "optimizer"));
        }
        if let Some(rule) = &rules.loss {
            add("loss", result(rule, facts, evaluated, "loss", |report| report.loss));
        }
        if let Some(rule) = &rules.accuracy {
            add("accuracy", result(rule, facts, evaluated, "accuracy", |report| Some(report.accuracy)));
        }
    }
    decisions
}

/// True if a value is below the least one; true if it is above the most.
fn outside(range: &Range, value: f64) -> (bool, bool) {
    (range.least.is_some_and(|least| value < least), range.most.is_some_and(|most| value > most))
}

fn number(range: &Range, value: f64, what: &str) -> (Ruling, String) {
    let ruling = if outside(range, value) == (false, false) { Ruling::Holds } else { Ruling::Violated };
    (ruling, format!("{value} {what}"))
}

fn flop(range: &Range, facts: &Facts, all: &BTreeMap<Digest, Facts>) -> (Ruling, String) {
    let total = total(facts, all);
    let counted = total.flop as f64;
    let mut evidence = format!(
        "{counted:.4e} FLOP in the products of {} steps, by program and records{}",
        facts.done,
        match total.runs.len() {
            1 => String::new(),
            2 => ", with those of the run that it began from".into(),
            runs => format!(", with those of {} runs that it began from", runs - 1),
        }
    );
    let (below, above) = outside(range, counted);
    if let Some(unknown) = total.unknown {
        evidence += &format!("; at least so many, since {unknown}");
        // What is missing can only add to the sum.
        return (if above { Ruling::Violated } else { open(range, below) }, evidence);
    }
    let open_runs: Vec<&Facts> =
        total.runs.iter().filter_map(|run| all.get(run)).filter(|run| !run.is_complete()).collect();
    if open_runs.is_empty() || above {
        return (if below || above { Ruling::Violated } else { Ruling::Holds }, evidence);
    }
    let left = |run: &&Facts| u128::from(run.steps.saturating_sub(run.done)).saturating_mul(run.step_flop);
    let whole = total.flop.saturating_add(open_runs.iter().map(left).fold(0, u128::saturating_add)) as f64;
    evidence += &format!("; {whole:.4e} once all steps of the job are done");
    (
        if outside(range, whole) == (false, false) && !below { Ruling::Holds } else { Ruling::Undecided },
        evidence,
    )
}

/// The ruling on a sum that is at least as large as the counted one, which is not above its bound.
fn open(range: &Range, below: bool) -> Ruling {
    if range.most.is_none() && !below { Ruling::Holds } else { Ruling::Undecided }
}

fn learning_rate(range: &Range, facts: &Facts) -> (Ruling, String) {
    let Some(span) = facts.learning_rate else {
        return (Ruling::Undecided, "the head covers no step".into());
    };
    let evidence =
        format!("{:e} to {:e}, by {} records and the job's groups", span.least, span.most, facts.done);
    if facts.kinds.is_none() {
        let why = "; the job names a program file, which may scale a rate in any way";
        return (Ruling::Undecided, evidence + why);
    }
    let kept = [span.least, span.most].iter().all(|rate| outside(range, *rate) == (false, false));
    let ruling = match (kept, facts.is_complete()) {
        (false, _) => Ruling::Violated,
        (true, true) => Ruling::Holds,
        (true, false) => Ruling::Undecided,
    };
    let more = if facts.is_complete() { "" } else { "; the head does not cover the run's end" };
    (ruling, evidence + more)
}

fn steps(range: &Range, facts: &Facts) -> (Ruling, String) {
    let done = f64::from(facts.done);
    if facts.is_complete() {
        return number(range, done, "steps, by the records");
    }
    let evidence =
        format!("{done} of {} steps, by the records; the head does not cover the run's end", facts.steps);
    let above = outside(range, done).1;
    (if above { Ruling::Violated } else { Ruling::Undecided }, evidence)
}

fn named(kinds: &Kinds, name: Option<&String>, what: &str) -> (Ruling, String) {
    let Some(name) = name else {
        return (Ruling::Undecided, format!("the job names a program file, which has no {what}"));
    };
    let allowed = kinds.allowed.as_ref().is_none_or(|allowed| allowed.contains(name));
    let ruling = if allowed && !kinds.forbidden.contains(name) { Ruling::Holds } else { Ruling::Violated };
    (ruling, format!("{what} {name}, by the job"))
}

/// Decides on a result of the final model, by the reports of this model and of the rule's data: the one of most samples decides, and
/// two that contradict each other decide nothing.
fn result(
    rule: &OfData,
    facts: &Facts,
    evaluated: &[Evaluated],
    what: &str,
    value: fn(&Evaluated) -> Option<f64>,
) -> (Ruling, String) {
    let Some(model) = facts.model else {
        return (Ruling::Undecided, "the head covers no final record, so the run has no final model".into());
    };
    let of = evaluated.iter().filter(|report| {
        (report.of, report.data, report.first_sample) == (model, rule.data, rule.first_sample)
    });
    let Some(report) = of.clone().max_by_key(|report| report.samples) else {
        return (Ruling::Undecided, "no given report is of the final model and these samples".into());
    };
    let same = |other: &&Evaluated| other.samples == report.samples && value(other) != value(report);
    if let Some(other) = of.clone().find(same) {
        let why = format!(
            "{} and {} contradict each other about the same {} samples; `tiebreak eval RUN --expect FILE` tells which is true",
            other.file, report.file, report.samples
        );
        return (Ruling::Undecided, why);
    }
    let source = format!(
        "{} samples, by {}; `tiebreak eval RUN --expect` computes it again",
        report.samples, report.file
    );
    if report.samples < rule.samples {
        return (
            Ruling::Undecided,
            format!("the report is of {source}, and the rule wants {}", rule.samples),
        );
    }
    let Some(value) = value(report) else {
        return (Ruling::Violated, format!("{what} is not finite on {source}"));
    };
    let (ruling, _) = number(&rule.range(), value, what);
    (ruling, format!("{what} {value:.6} on {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::facts::{Begin, Span, Unknown};

    fn digest(byte: u8) -> Digest {
        Digest([byte; 32])
    }

    /// A complete run of ten steps of 100 FLOP.
    fn facts(id: u8, begin: Begin) -> Facts {
        Facts {
            run: digest(id),
            begin,
            step_flop: 100,
            done: 10,
            steps: 10,
            samples: 32,
            learning_rate: Some(Span { least: 1e-4, most: 1e-2 }),
            kinds: Some(("gpt".into(), "adamw".into())),
            model: Some((digest(50), [digest(60), digest(61)])),
        }
    }

    fn one(rules: &str, facts: Facts) -> (Ruling, String) {
        let rules = Rules::read(rules).unwrap();
        let decision = decide(&rules, &[(facts.run, facts)].into(), &[]).remove(0);
        (decision.ruling, decision.evidence)
    }

    #[test]
    fn flop_are_summed_over_all_that_a_run_began_from() {
        let rules = |text: &str| Rules::read(text).unwrap();
        let runs = |list: &[Facts]| -> BTreeMap<Digest, Facts> {
            list.iter().map(|facts| (facts.run, facts.clone())).collect()
        };
        let (seed, child) = (facts(1, Begin::Seed), facts(2, Begin::Run(digest(1))));
        let ruling = |text: &str, list: &[Facts]| {
            let decided = decide(&rules(text), &runs(list), &[]);
            decided.into_iter().map(|decision| decision.ruling).collect::<Vec<_>>()
        };
        use Ruling::*;
        let both = [seed.clone(), child.clone()];
        assert_eq!(ruling("[flop]\nmost = 2000", &both), [Holds, Holds]);
        assert_eq!(ruling("[flop]\nmost = 1999", &both), [Holds, Violated]);
        assert_eq!(ruling("[flop]\nleast = 2000", &both), [Violated, Holds]);
        // Without its parent a child can only be violated.
        let alone = [child.clone()];
        assert_eq!(ruling("[flop]\nmost = 2000", &alone), [Undecided]);
        assert_eq!(ruling("[flop]\nmost = 999", &alone), [Violated]);
        assert_eq!(ruling("[flop]\nleast = 1000", &alone), [Holds]);
        assert_eq!(ruling("[flop]\nleast = 1001", &alone), [Undecided]);
        let decided = decide(&rules("[flop]\nmost = 2000"), &runs(&alone), &[]).remove(0);
        assert!(decided.evidence.contains("the parent 0101"), "{}", decided.evidence);
        assert_eq!(ruling("[flop]\nmost = 2000", &[facts(3, Begin::Weights)]), [Undecided]);
        // Only a model kind says that products are all the work there is.
        let file = || [Facts { kinds: None, ..facts(1, Begin::Seed) }];
        assert_eq!(ruling("[flop]\nmost = 2000", &file()), [Undecided]);
        assert_eq!(ruling("[flop]\nmost = 999", &file()), [Violated]);
        assert_eq!(ruling("[flop]\nleast = 1000", &file()), [Holds]);
        let circle = [facts(1, Begin::Run(digest(2))), child];
        assert_eq!(total(&circle[0], &runs(&circle)).unknown, Some(Unknown::Circle(digest(1))));
        // A run that is still trained: what its job allows decides, or what it has done.
        let open = Facts { done: 4, model: None, ..seed };
        assert_eq!(ruling("[flop]\nmost = 1000", std::slice::from_ref(&open)), [Holds]);
        assert_eq!(ruling("[flop]\nmost = 999", std::slice::from_ref(&open)), [Undecided]);
        assert_eq!(ruling("[flop]\nmost = 399", std::slice::from_ref(&open)), [Violated]);
        assert_eq!(ruling("[flop]\nleast = 400", std::slice::from_ref(&open)), [Holds]);
        assert_eq!(ruling("[flop]\nleast = 401", &[open]), [Undecided]);
    }

    #[test]
    fn settings_are_held_to_ranges_and_names() {
        use Ruling::*;
        let seed = || facts(1, Begin::Seed);
        let open = || Facts { done: 4, model: None, ..seed() };
        let file = || Facts { kinds: None, ..seed() };
        for (rules, facts, wanted) in [
            ("[learning_rate]\nmost = 0.01", seed(), Holds),
            ("[learning_rate]\nmost = 0.009", seed(), Violated),
            ("[learning_rate]\nleast = 0.001", seed(), Violated),
            ("[learning_rate]\nmost = 0.01", open(), Undecided),
            ("[learning_rate]\nmost = 0.009", open(), Violated),
            ("[learning_rate]\nmost = 1", Facts { learning_rate: None, ..open() }, Undecided),
            ("[learning_rate]\nmost = 0.01", file(), Undecided),
            ("[samples]\nleast = 32\nmost = 32", seed(), Holds),
            ("[samples]\nmost = 31", open(), Violated),
            ("[steps]\nmost = 10", seed(), Holds),
            ("[steps]\nleast = 11", seed(), Violated),
            ("[steps]\nmost = 9", open(), Undecided),
            ("[steps]\nmost = 3", open(), Violated),
            ("[model]\nallowed = [\"gpt\", \"mlp\"]", seed(), Holds),
            ("[model]\nallowed = [\"mlp\"]", seed(), Violated),
            ("[model]\nforbidden = [\"gpt\"]", seed(), Violated),
            ("[model]\nforbidden = [\"mlp\"]", file(), Undecided),
            ("[optimizer]\nallowed = [\"adamw\"]", seed(), Holds),
            ("[optimizer]\nforbidden = [\"adamw\"]", seed(), Violated),
        ] {
            assert_eq!(one(rules, facts).0, wanted, "{rules}");
        }
    }

    #[test]
    fn results_count_only_of_the_final_model_on_the_rules_data() {
        let run = facts(1, Begin::Seed);
        let report = Evaluated {
            file: "eval.json".into(),
            of: run.model.unwrap(),
            data: digest(70),
            first_sample: 0,
            samples: 100,
            loss: Some(2.5),
            accuracy: 0.75,
        };
        let text = |rule: &str| format!("{rule}\ndata = \"{}\"", digest(70));
        let with = |reports: &[Evaluated]| {
            let all = [(run.run, run.clone())].into();
            decide(&Rules::read(&text("[loss]\nleast = 2.5")).unwrap(), &all, reports).remove(0).ruling
        };
        let ruling = |rule: &str, run: &Facts, report: Evaluated| {
            let all = [(run.run, run.clone())].into();
            decide(&Rules::read(&text(rule)).unwrap(), &all, &[report]).remove(0).ruling
        };
        use Ruling::*;
        assert_eq!(ruling("[loss]\nleast = 2.5", &run, report.clone()), Holds);
        assert_eq!(ruling("[loss]\nleast = 2.6", &run, report.clone()), Violated);
        assert_eq!(ruling("[accuracy]\nmost = 0.5", &run, report.clone()), Violated);
        assert_eq!(ruling("[loss]\nmost = 3\nsamples = 101", &run, report.clone()), Undecided);
        let other = Evaluated { first_sample: 5, ..report.clone() };
        assert_eq!(ruling("[loss]\nmost = 3", &run, other.clone()), Undecided);
        assert_eq!(ruling("[loss]\nmost = 3\nfirst_sample = 5", &run, other), Holds);
        let other = Evaluated { data: digest(71), ..report.clone() };
        assert_eq!(ruling("[loss]\nmost = 3", &run, other), Undecided);
        let other = Evaluated { of: (digest(50), [digest(60), digest(62)]), ..report.clone() };
        assert_eq!(ruling("[loss]\nmost = 3", &run, other), Undecided);
        // The order of reports decides nothing: the one of most samples counts, and two about the same samples have to agree.
        let of = |samples: u64, loss: f64| Evaluated { samples, loss: Some(loss), ..report.clone() };
        assert_eq!(with(&[of(100, 2.5), of(100, 2.5)]), Holds);
        assert_eq!(with(&[of(100, 2.5), of(100, 0.5)]), Undecided);
        assert_eq!(with(&[of(100, 0.5), of(100, 2.5)]), Undecided);
        assert_eq!(with(&[of(99, 2.5), of(100, 0.5)]), Violated);
        assert_eq!(with(&[of(100, 0.5), of(99, 2.5)]), Violated);
        let infinite = Evaluated { loss: None, ..report.clone() };
        assert_eq!(ruling("[loss]\nleast = 1", &run, infinite), Violated);
        let open = Facts { model: None, ..run };
        assert_eq!(ruling("[loss]\nmost = 3", &open, report), Undecided);
    }
}

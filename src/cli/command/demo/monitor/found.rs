//! The results of the monitoring demo's inspection, as its commands gave them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::scenario::Cheat;

/// A text of a result.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

/// The numbers of the regime.
#[derive(Clone, Copy)]
pub struct Limit {
    /// FLOP of a run at the limit.
    pub flop: u128,
    /// FLOP/s of a chip.
    pub chip: f64,
    /// Chips of the fleet.
    pub fleet: u32,
}

/// The results about an operator.
pub struct Inspected {
    /// Its drawn chips.
    pub drawn: Vec<String>,
    /// The result of `monitor match`, if a chip was drawn.
    pub matched: Option<Value>,
    /// The result of `monitor rules`.
    pub rules: Value,
    /// Defects of the drawn logs.
    pub defects: usize,
    /// True if the audits of all declared runs match.
    pub audited: bool,
    /// The statements, one for each declared run.
    pub statements: Vec<Stated>,
    /// FLOP of a run at the limit.
    pub limit: f64,
}

/// A signed statement about a run.
pub struct Stated {
    /// Its file.
    pub file: String,
    /// The result of the audits in a sentence.
    pub audits: String,
    /// The drawn chips of the operator in a sentence: how many are in order, and what follows for the others.
    pub chips: String,
    /// The result of the match; empty if no chip was drawn.
    pub matched: String,
    /// The result of the rules, over all runs of the operator.
    pub rules: String,
}

/// The result of the whole inspection.
pub struct Found {
    /// Chips to draw, by the plan.
    pub samples: u64,
    /// The probability that they find a hidden run at the limit.
    pub probability: f64,
    /// The drawn chips, in the order of the draw.
    pub drawn: Vec<String>,
    /// The value of the beacon.
    pub beacon: String,
    /// The results, in the order of the operators.
    pub operators: Vec<Inspected>,
}

impl Inspected {
    fn snapshots(&self, list: &str, weight: &str) -> Vec<&Value> {
        let all = self.matched.as_ref().and_then(|matched| matched[list].as_array());
        all.into_iter().flatten().filter(|one| one["weight"] == weight).collect()
    }

    /// Snapshots of declared runs.
    pub fn declared(&self) -> usize {
        self.snapshots("snapshots", "matched").len()
    }

    /// Snapshots of no declared run.
    pub fn hidden(&self) -> Vec<&Value> {
        self.snapshots("snapshots", "finding")
    }

    /// Everything that the drawn chips show and nobody declared: those snapshots, and trainings that showed no state.
    pub fn undeclared(&self) -> Vec<&Value> {
        let silent = self.snapshots("silent", "finding");
        self.hidden().into_iter().chain(silent).collect()
    }

    /// The rules that a run violates, each with its evidence.
    pub fn violated(&self) -> Vec<&Value> {
        let all = self.rules["rules"].as_array();
        all.into_iter().flatten().filter(|rule| rule["ruling"] == "violated").collect()
    }

    /// The run with this id in the result of the rules.
    fn run(&self, id: &Value) -> Option<&Value> {
        self.rules["runs"].as_array()?.iter().find(|run| run["run"] == *id)
    }

    /// The result in a sentence.
    pub fn sentence(&self) -> String {
        let hidden = self.hidden();
        let all = self.declared() + hidden.len();
        let silent = self.undeclared().len() - hidden.len();
        let mut said = match (&self.matched, hidden.is_empty()) {
            (None, _) => "none of its chips was drawn".to_string(),
            (Some(_), true) => format!("{all} of {all} snapshots are of its declared runs"),
            (Some(_), false) => {
                let chips: BTreeSet<String> = hidden.iter().map(|one| text(&one["chip"])).collect();
                let chips = chips.into_iter().collect::<Vec<_>>().join(", ");
                format!("{} of {all} snapshots are of no declared run (on {chips})", hidden.len())
            }
        };
        if silent > 0 {
            said += &format!("; undeclared trainings that showed no state: {silent}");
        }
        match self.violated().first().and_then(|rule| self.run(&rule["run"])) {
            None => said + "; no declared run is above the limit",
            Some(run) => {
                let others = run["summed"].as_array().into_iter().flatten().filter(|id| **id != run["run"]);
                let others = others.filter_map(|id| Some(text(&self.run(id)?["folder"])));
                let from: String =
                    others.map(|folder| format!(", with {folder} from which it goes on,")).collect();
                let flop = run["total_flop"].as_f64().unwrap_or_default();
                let folder = text(&run["folder"]);
                format!("{said}; {folder}{from} took {:.0} % of the limit", 100.0 * flop / self.limit)
            }
        }
    }

    /// A row for each declared run: its folder, its own share of the limit, that with all that it began from, and the ruling.
    pub fn shares(&self) -> Vec<Vec<String>> {
        let rules = self.rules["rules"].as_array();
        let share = |flop: &Value| format!("{:.0} %", 100.0 * flop.as_f64().unwrap_or_default() / self.limit);
        let row = |rule: &Value| {
            let run = self.run(&rule["run"])?;
            let shares = [&run["flop"], &run["total_flop"]].map(share);
            Some([&[text(&run["folder"])], &shares[..], &[text(&rule["ruling"])]].concat())
        };
        rules.into_iter().flatten().filter_map(row).collect()
    }

    /// True if something cannot be decided, or nobody looked.
    fn is_open(&self) -> bool {
        let undecided = |value: &Value| value["result"] == "undecided";
        undecided(&self.rules) || self.matched.as_ref().is_some_and(undecided)
    }

    /// True if exactly the deceit was found that there was.
    pub fn is_right(&self, cheat: Cheat) -> bool {
        let found = (!self.undeclared().is_empty(), !self.violated().is_empty());
        let wanted = (cheat == Cheat::Hides, cheat == Cheat::Splits);
        found == wanted && self.defects == 0 && self.audited && !self.is_open()
    }

    /// True if an operator who kept to everything is accused of anything.
    pub fn is_accused(&self) -> bool {
        !self.undeclared().is_empty() || !self.violated().is_empty() || self.defects > 0 || !self.audited
    }
}

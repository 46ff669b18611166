//! The audit of a run as a page: that of one auditor, or those of several put together.

use std::path::Path;

use serde::Deserialize;

use super::strip::Strip;
use super::{Page, Tone, key_option};
use crate::cli::view::outcome::ranges_text;
use crate::cli::view::report::bytes_text;
use tiebreak_audit::merge::{Conclusion, Merged, Range, union};
use tiebreak_audit::plan::{Choice, ReplayPlan};
use tiebreak_audit::{Outcome, Report};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::shell;

/// The most lines of a list, and the most files of a command.
const LINES: usize = 200;
const FILES: usize = 16;

/// A report as its file has it: a page says the same of both.
#[derive(Clone, Debug, Deserialize)]
pub struct Told {
    run: Digest,
    computation: Digest,
    job: Digest,
    data: Digest,
    steps: u32,
    signed: String,
    head_size: u64,
    head_root: Digest,
    end_checked: bool,
    engine: String,
    outcome: Outcome<String>,
    checked: Vec<String>,
    not_checked: Vec<String>,
    damaged: Vec<Damaged>,
    not_finite: Option<NotFinite>,
    native: bool,
    replayed: Vec<Range>,
    plan: ReplayPlan,
    rounding: Option<Freedom>,
    seconds: f64,
    auditor: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Damaged {
    file: String,
    why: String,
}

#[derive(Clone, Debug, Deserialize)]
struct NotFinite {
    first: u32,
    loss: String,
    count: u32,
    of: u32,
}

/// The trainer's freedom in a logged run.
#[derive(Clone, Debug, Deserialize)]
struct Freedom {
    elements: u64,
    decisions: u64,
    bits: u64,
    bytes: u64,
    taken_up: u64,
    taken_down: u64,
    illegal: u64,
    remarks: Vec<String>,
    products: Vec<Product>,
    hidden: Option<Hidden>,
}

#[derive(Clone, Debug, Deserialize)]
struct Product {
    operator: String,
    elements: u64,
    free: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Hidden {
    taken_max: u64,
    operator: String,
    /// Absent where it is no finite number.
    bias: Option<f64>,
}

/// The parts of a page that no report has: they come from the run's folder.
pub struct About {
    /// The run's name for people.
    pub name: String,
    /// The run's folder, as the command line named it.
    pub folder: String,
    /// The public key that the run names.
    pub trainer: Option<String>,
    /// The public key that the auditor knows to be the trainer's.
    pub given: Option<String>,
    /// Names and values: model, program, the origin of the initial state, data files.
    pub facts: Vec<(&'static str, String)>,
    /// The steps after which a state is kept.
    pub checkpoints: Vec<u32>,
}

/// A report among several.
pub struct Listed<'a> {
    /// The report's file.
    pub file: &'a str,
    /// The auditor's key, or why the report counts for nothing.
    pub vouches: Result<&'a str, &'a str>,
    /// The report, if it counts.
    pub told: Option<&'a Told>,
}

impl Told {
    /// A report that no file holds yet.
    ///
    /// # Errors
    /// If the report has a number that JSON has no form for.
    pub fn of(report: &Report, auditor: Option<String>) -> serde_json::Result<Told> {
        let mut told: Told = serde_json::from_slice(&serde_json::to_vec(report)?)?;
        told.auditor = auditor;
        Ok(told)
    }

    fn count(&self) -> u64 {
        count(&union(self.replayed.clone()))
    }

    /// Steps that were to be replayed. A stranger's report may hold any numbers.
    fn planned(&self) -> u64 {
        let steps = |&(first, last): &Range| (u64::from(last) + 1).saturating_sub(u64::from(first));
        self.plan.segments.iter().map(steps).fold(0, u64::saturating_add)
    }

    /// The step of the first difference, where one was found.
    fn difference(&self) -> Option<u32> {
        match &self.outcome {
            Outcome::Diverges { step, .. }
            | Outcome::MissingDecision { step, .. }
            | Outcome::Unconfirmed { step, .. }
            | Outcome::EngineFaulty { step, .. } => Some(*step),
            Outcome::Inconsistent { step, .. } => Some((*step).max(1)),
            _ => None,
        }
    }

    /// A match in a sentence, and how it was found.
    fn match_sentence(&self) -> (Tone, String, String) {
        let (count, steps) = (self.count(), self.steps);
        let (sentence, rest) = match count == u64::from(steps) {
            true => (format!("All {steps} steps came out bit for bit as the run's records say."), ""),
            false => (
                format!(
                    "{count} of {steps} steps were replayed, and each came out bit for bit as the run's records say."
                ),
                " Nothing is said of the other steps.",
            ),
        };
        let end = if self.end_checked { "" } else { " The run's end was not checked." };
        let how = match self.native {
            true => " The auditor used native products: that shows replication, and judges no rounding.",
            false => "",
        };
        let tone = if self.native { Tone::Neutral } else { Tone::Good };
        let why = format!("The replay on {} took {:.1} s.{rest}{end}{how}", self.engine, self.seconds);
        (tone, sentence, why)
    }

    /// The outcome in a sentence, and the reason.
    fn sentence(&self) -> (Tone, String, String) {
        let (count, steps, planned) = (self.count(), self.steps, self.planned());
        let what = self.outcome.what().cloned().unwrap_or_default();
        let said = |tone, sentence: String| (tone, sentence, format!("{what}."));
        match &self.outcome {
            Outcome::Matches if count < planned => (
                Tone::Neutral,
                format!("The audit is not finished: {count} of {planned} planned steps match."),
                "Nothing is said of the other steps.".into(),
            ),
            Outcome::Matches => self.match_sentence(),
            Outcome::Diverges { step, .. } => {
                said(Tone::Bad, format!("Step {step} is not what its record says."))
            }
            Outcome::Inconsistent { step: 0, .. } => said(
                Tone::Bad,
                "The run's initial state is not what its job says; no replay was needed.".into(),
            ),
            Outcome::Inconsistent { step, .. } => {
                said(Tone::Bad, format!("The run contradicts itself in step {step}; no replay was needed."))
            }
            Outcome::EngineFaulty { step, engine, .. } => said(
                Tone::Neutral,
                format!(
                    "Nobody is accused: in step {step} the auditor's engine ({engine}) computed wrongly."
                ),
            ),
            Outcome::Unconfirmed { step, .. } => said(
                Tone::Neutral,
                format!("A difference in step {step} is not confirmed yet, so nobody is accused."),
            ),
            Outcome::MissingDecision { step, .. } => {
                said(Tone::Neutral, format!("The audit could not decide step {step}."))
            }
            Outcome::Corrected { step, .. } => said(
                Tone::Neutral,
                format!("The trainer took back the steps from {step} on; no step before differs."),
            ),
            Outcome::Incomplete { .. } => {
                said(Tone::Neutral, format!("{count} of {steps} steps match, and the audit is incomplete."))
            }
            Outcome::UnboundedFreedom { .. } => said(
                Tone::Neutral,
                "A match would say nothing: the job allows its trainer too much freedom.".into(),
            ),
            Outcome::UnexplainedDecisions { .. } => said(
                Tone::Neutral,
                "Every step matches, but no honest kernel that is known rounds as this trainer did.".into(),
            ),
        }
    }
}

fn count(ranges: &[Range]) -> u64 {
    ranges.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum()
}

/// Ranges in the form of --steps; a word where there are none.
fn steps_text(ranges: &[Range]) -> String {
    if ranges.is_empty() { "none".into() } else { ranges_text(ranges, ", ") }
}

/// The lines of a list, as many as a page has room for.
fn few(lines: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = lines.iter().take(LINES).cloned().collect();
    if lines.len() > LINES {
        shown.push(format!("and {} more", lines.len() - LINES));
    }
    shown
}

/// The page of one audit; `verdict`: the file of its verdict, if there is one.
pub fn page(told: &Told, about: &About, verdict: Option<&Path>) -> String {
    let (tone, sentence, why) = told.sentence();
    let mut page = Page::new(&format!("Audit of the training run {}", about.name));
    page.outcome(tone, &sentence, &why);
    page.heading("What was replayed");
    let replayed = union(told.replayed.clone());
    let difference = told.difference();
    page.strip(&Strip {
        name: &about.name,
        steps: told.steps,
        replayed: &replayed,
        difference,
        checkpoints: &about.checkpoints,
    });
    page.legend(told.steps, difference.is_some(), !about.checkpoints.is_empty());
    page.say(&format!("Replayed steps: {}.", steps_text(&replayed)));
    if let Choice::Sample { .. } = told.plan.choice {
        let [one, ten, hundred] = told.plan.detection.map(|part| 100.0 * part);
        page.say(&format!(
            "The sample was drawn after the trainer had signed. It meets at least one of 1, 10 or 100 bad steps with a probability of \
             {one:.1} %, {ten:.1} % and {hundred:.1} %, wherever the trainer put them."
        ));
    }
    page.heading("What was not checked, and why");
    let mut left = few(&told.not_checked);
    if let Some(step) = difference.filter(|_| told.count() < told.planned()) {
        left.insert(0, format!("the steps from {step} on: an audit stops at the first difference"));
    }
    match left.is_empty() {
        true => page.say("Every check of an audit was made."),
        false => page.list(&left),
    }
    freedom(&mut page, told);
    page.heading("What was checked");
    page.list(&few(&told.checked));
    if let Some(NotFinite { first, loss, count, of }) = &told.not_finite {
        page.say(&format!(
            "Not finite, as the records say: the loss of step {first} is {loss}, and {count} of the {of} losses from there on are not finite."
        ));
    }
    if !told.damaged.is_empty() {
        page.say("These files are damaged; the audit needed none of them:");
        let lines: Vec<String> =
            told.damaged.iter().map(|damaged| format!("{}: {}", damaged.file, damaged.why)).collect();
        page.list(&few(&lines));
    }
    page.heading("Who signed");
    page.facts(&[
        ("key that the run names", about.trainer.clone().unwrap_or_else(|| "the run names no key".into())),
        ("the head", format!("{}; {} records, root {}", told.signed, told.head_size, told.head_root)),
        ("auditor", told.auditor.clone().unwrap_or_else(|| "nobody signed this report".into())),
    ]);
    identity(&mut page, told, &about.facts);
    cost(&mut page, told);
    repeat(&mut page, told, about, verdict);
    page.finish()
}

/// The commands that come to the same.
fn repeat(page: &mut Page, told: &Told, about: &About, verdict: Option<&Path>) {
    page.heading("Do it again");
    page.say("Anybody who has the run's folder gets the same answer, on any engine:");
    let key = key_option(about.trainer.as_deref(), about.given.as_deref());
    let shard = told.plan.shard.map_or(String::new(), |shard| format!(" --shard {shard}"));
    page.commands(&[
        format!("tiebreak verify {}{key}", about.folder),
        format!("tiebreak audit {}{key}{}{shard}", about.folder, choice(&told.plan.choice)),
    ]);
    if let Some(file) = verdict {
        page.say("The verdict shows the difference from one file, without a replay of the run:");
        page.commands(&[format!("tiebreak verdict check {}{key}", shell::path(file))]);
    }
    page.remark(
        "Give, as KEY, the public key that you know to be the trainer's: a file or its text. The audit exits with 0 if what it replays matches, with 1 if it finds a \
         difference, and with 3 if it could not decide.",
    );
}

/// The options that choose the same steps.
fn choice(choice: &Choice) -> String {
    match choice {
        Choice::All => String::new(),
        Choice::Range(first, last) => format!(" --steps {first}..{last}"),
        Choice::Sample { fraction, seed } => format!(" --sample {fraction} --seed {seed}"),
    }
}

fn freedom(page: &mut Page, told: &Told) {
    page.heading("Freedom that the trainer used");
    let Some(tally) = &told.rounding else {
        page.say("None. The run is of the exact profile, in which every product has one result.");
        return;
    };
    let share = |part: u64, of: u64| format!("{part} ({:.3} %)", 100.0 * part as f64 / of.max(1) as f64);
    let taken = tally.taken_up.saturating_add(tally.taken_down);
    page.say(
        "The run is of the logged profile: native kernels computed its products, and a log holds each rounding that another machine could \
         take differently.",
    );
    let mut facts = vec![
        ("values", tally.elements.to_string()),
        ("decisions in the log", share(tally.decisions, tally.elements)),
        ("size of the log", format!("{} bits in {}", tally.bits, bytes_text(tally.bytes))),
        ("not the nearest value", format!("{taken}: {} up, {} down", tally.taken_up, tally.taken_down)),
        ("illegal", tally.illegal.to_string()),
    ];
    let free = |product: &&Product| product.free as f64 / product.elements.max(1) as f64;
    if let Some(freest) = tally.products.iter().max_by(|a, b| free(a).total_cmp(&free(b))) {
        facts.push((
            "the trainer's to choose",
            format!(
                "at most {:.2} % of the values of a product ({})",
                100.0 * free(&freest),
                freest.operator
            ),
        ));
    }
    if let Some(Hidden { taken_max, operator, bias: Some(bias) }) = &tally.hidden {
        facts.push((
            "largest hidden bias",
            format!("{bias:.2e} of a product's size ({operator}); an honest kernel takes at most {taken_max} decisions"),
        ));
    }
    page.facts(&facts);
    if !tally.remarks.is_empty() {
        page.say("Unusual rounding, which is legal and no honest kernel's habit:");
        page.list(&few(&tally.remarks));
    }
}

fn identity(page: &mut Page, told: &Told, more: &[(&'static str, String)]) {
    page.heading("Which run");
    let mut facts = vec![
        ("run", told.run.to_string()),
        ("computation", told.computation.to_string()),
        ("job", told.job.to_string()),
        ("data", told.data.to_string()),
        ("steps", told.steps.to_string()),
    ];
    facts.extend(more.iter().cloned());
    page.facts(&facts);
}

fn cost(page: &mut Page, told: &Told) {
    page.heading("What computed, and what it cost");
    let each = told.seconds / told.count().max(1) as f64;
    let native = if told.native { ", native products" } else { "" };
    page.facts(&[
        ("engine", format!("{}{native}", told.engine)),
        ("program", format!("tiebreak {}, {}", env!("CARGO_PKG_VERSION"), tiebreak_job::identity::CONTRACT)),
        ("time", format!("{:.1} s, {each:.3} s a replayed step", told.seconds)),
        ("memory", format!("about {}", bytes_text(told.plan.memory))),
        ("read", format!("{} of checkpoints and logs", bytes_text(told.plan.bytes))),
    ]);
}

/// The page of several auditors' reports, put together.
pub fn merged(merged: &Merged, reports: &[Listed]) -> String {
    let counted: Vec<&Told> = reports.iter().filter_map(|report| report.told).collect();
    let difference = counted.iter().filter_map(|told| told.difference()).min();
    let (steps, covered) = (merged.steps, merged.steps_covered());
    let mut page = Page::new(&format!("Audits of the training run {}", merged.run.short()));
    let auditors = format!("{} of {} reports count.", counted.len(), reports.len());
    let (tone, sentence) = match merged.result {
        Conclusion::Diverges => (Tone::Bad, "An auditor found a difference.".to_string()),
        Conclusion::Matches => (
            Tone::Good,
            format!(
                "{covered} of {steps} steps were replayed, and each came out bit for bit as the run's records say."
            ),
        ),
        Conclusion::Undecided => {
            (Tone::Neutral, format!("The reports do not decide: {covered} of {steps} steps were replayed."))
        }
    };
    page.outcome(tone, &sentence, &auditors);
    page.heading("What was replayed");
    let begins = |told: &Told| {
        let mut begins: Vec<u32> =
            told.plan.segments.iter().map(|(first, _)| first.saturating_sub(1)).collect();
        begins.dedup();
        begins
    };
    let states: Vec<u32> = counted.iter().flat_map(|told| begins(told)).collect();
    page.strip(&Strip {
        name: "Together",
        steps,
        replayed: &merged.covered,
        difference,
        checkpoints: &states,
    });
    for report in reports {
        let (Some(told), Ok(auditor)) = (report.told, report.vouches) else { continue };
        page.strip(&Strip {
            name: &format!("{}, by {}", report.file, auditor.split('+').next().unwrap_or(auditor)),
            steps,
            replayed: &union(told.replayed.clone()),
            difference: told.difference(),
            checkpoints: &begins(told),
        });
    }
    page.legend(steps, difference.is_some(), !states.is_empty());
    page.heading("What is missing, and why");
    let mut missing: Vec<String> = merged.reasons.clone();
    if !merged.missing.is_empty() {
        missing.push(format!("steps that nobody replayed: {}", steps_text(&merged.missing)));
    }
    match missing.is_empty() {
        true => page.say("Nothing: every step was replayed, under one head, and the run's end was checked."),
        false => page.list(&few(&missing)),
    }
    who(&mut page, reports);
    if let Some(told) = counted.first() {
        identity(&mut page, told, &[]);
    }
    again(&mut page, merged, reports);
    page.finish()
}

/// The auditors, and what each says.
fn who(page: &mut Page, reports: &[Listed]) {
    page.heading("Who audited");
    let row = |report: &Listed| match (report.told, report.vouches) {
        (Some(told), Ok(auditor)) => vec![
            report.file.to_string(),
            auditor.to_string(),
            told.sentence().1,
            format!("{}, {:.1} s", told.engine, told.seconds),
            told.signed.clone(),
        ],
        (_, vouches) => {
            let why = vouches.err().unwrap_or("it counts for nothing");
            vec![report.file.to_string(), "not counted".into(), why.to_string(), String::new(), String::new()]
        }
    };
    let rows: Vec<Vec<String>> = reports.iter().take(LINES).map(row).collect();
    page.table(&["report", "auditor", "outcome", "engine", "the trainer's head"], &rows);
    for report in reports.iter().take(LINES) {
        let Some(told) = report.told.filter(|told| !told.not_checked.is_empty()) else { continue };
        page.fold(&format!("What {} did not check", report.file));
        page.list(&few(&told.not_checked));
        page.unfold();
        if told.rounding.is_some() {
            page.fold(&format!("Freedom that the trainer used, as {} saw it", report.file));
            freedom(page, told);
            page.unfold();
        }
    }
}

fn again(page: &mut Page, merged: &Merged, reports: &[Listed]) {
    page.heading("Do it again");
    page.say("The first command replays what is missing; the second puts all reports together:");
    let next =
        merged.missing.first().map_or(String::new(), |(first, last)| format!(" --steps {first}..{last}"));
    let files: Vec<String> = reports.iter().take(FILES).map(|report| shell::word(report.file)).collect();
    page.commands(&[
        format!("tiebreak audit RUN --trainer-key KEY{next} --report mine.json --key AUDITOR.key"),
        format!("tiebreak audit merge {} mine.json", files.join(" ")),
    ]);
    page.remark(
        "RUN is the run's folder and KEY the key that you know to be the trainer's. A report says what its auditor says: count the reports \
         of auditors whom you trust, with --auditor.",
    );
}

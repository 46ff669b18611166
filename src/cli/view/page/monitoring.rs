//! An inspection of a fleet as a page for people who make rules: what was sampled, what was found, and with what confidence.

use super::plot::Plot;
use super::{Page, Tone, text};

/// An event in a chip's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A snapshot of a declared run.
    Declared,
    /// A snapshot of no declared run.
    Undeclared,
    /// A time at which the chip trained nothing.
    Idle,
}

/// An event, and its day of the month.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Days since the month began.
    pub day: f64,
    /// The kind.
    pub kind: Kind,
}

/// A chip.
pub struct Chip {
    /// The serial number.
    pub serial: String,
    /// The events of its log; `None` if it was not drawn.
    pub marks: Option<Vec<Mark>>,
}

/// An operator and what the inspector found.
pub struct Shown {
    /// The name.
    pub name: &'static str,
    /// All its chips.
    pub chips: Vec<Chip>,
    /// The result in a sentence.
    pub says: String,
    /// Findings about snapshots and trainings that nobody declared.
    pub undeclared: usize,
    /// Declared runs above the limit.
    pub above: usize,
    /// The rows of the table of runs: folder, share of the limit, that with all that it began from, and the ruling.
    pub runs: Vec<Vec<String>>,
    /// True if the finding is the truth of the demo.
    pub right: bool,
}

/// A hidden run of another size.
#[derive(Clone, Copy)]
pub struct Size {
    /// Its FLOP, in units of the limit.
    pub times: f64,
    /// The chips that it needs.
    pub chips: f64,
    /// The probability that the draw finds it.
    pub found: f64,
}

/// The content of the page.
pub struct Told {
    /// The operators.
    pub operators: Vec<Shown>,
    /// Days of the period.
    pub days: f64,
    /// Snapshots that a chip logs in a day.
    pub rate: &'static str,
    /// The probability that was wanted.
    pub confidence: f64,
    /// The limit in FLOP, and the chips that such a run needs.
    pub limit: (f64, u32),
    /// All chips.
    pub fleet: u32,
    /// Chips that were drawn.
    pub drawn: u64,
    /// The probability that they find a hidden run at the limit.
    pub probability: f64,
    /// The beacon's value.
    pub beacon: String,
    /// The probability over the number of chips that are drawn.
    pub plot: Plot,
    /// Hidden runs of other sizes.
    pub sizes: Vec<Size>,
    /// The chips of a large fleet, in words, and the number to draw from it if the run uses the same share.
    pub large: (&'static str, u64),
    /// The rows of the table of statements: file, and the results of audits, match and rules.
    pub statements: Vec<Vec<String>>,
    /// The demo's seed.
    pub seed: u64,
}

impl Shown {
    fn tone(&self) -> Tone {
        if self.undeclared + self.above == 0 { Tone::Good } else { Tone::Bad }
    }

    fn drawn(&self) -> usize {
        self.chips.iter().filter(|chip| chip.marks.is_some()).count()
    }

    /// The finding in three words.
    fn word(&self) -> &'static str {
        match (self.undeclared, self.above) {
            (0, 0) => "nothing to object to",
            (_, 0) => "an undeclared run",
            (0, _) => "a run above the limit",
            (_, _) => "an undeclared run, and one above the limit",
        }
    }
}

/// Names in a sentence.
fn names(all: &[&str]) -> String {
    match all {
        [] => "nobody".into(),
        [one] => one.to_string(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

/// True of several, for a verb.
fn have(all: &[&str]) -> &'static str {
    if all.len() > 1 { "have" } else { "has" }
}

/// The probability of the opposite, never rounded down.
fn opposite(probability: f64) -> String {
    format!("{:.1} %", (1000.0 - (probability * 1000.0).floor()) / 10.0)
}

/// A probability in per cent, never rounded up to certainty.
fn percent(probability: f64) -> String {
    format!("{:.1} %", (probability * 1000.0).floor() / 10.0)
}

fn outcome(page: &mut Page, told: &Told) {
    let by = |bad: bool| -> Vec<&str> {
        told.operators.iter().filter(|one| (one.tone() == Tone::Bad) == bad).map(|one| one.name).collect()
    };
    let (bad, good) = (by(true), by(false));
    let found: Vec<String> = told
        .operators
        .iter()
        .filter(|one| one.tone() == Tone::Bad)
        .map(|one| format!("{}: {}", one.name, one.word()))
        .collect();
    let (tone, what) = match bad.is_empty() {
        true => {
            (Tone::Good, "Nothing was found that was not declared, and no run is above the limit.".into())
        }
        false => (Tone::Bad, format!("{} broke the rules.", names(&bad))),
    };
    let why = format!(
        "{}{} of {} chips were drawn. {} {} nothing to answer for.",
        found.iter().map(|one| format!("{one}. ")).collect::<String>(),
        told.drawn,
        told.fleet,
        names(&good),
        have(&good)
    );
    page.outcome(tone, &what, &why);
    let wrong: Vec<&str> = told.operators.iter().filter(|one| !one.right).map(|one| one.name).collect();
    if !wrong.is_empty() {
        page.say(&format!("The demo knows better: what is said of {} is not the truth.", names(&wrong)));
    }
}

/// Every chip as a square, operator by operator.
fn fleet(page: &mut Page, told: &Told) {
    for operator in &told.operators {
        let squares: String = operator
            .chips
            .iter()
            .map(|chip| {
                let marks = chip.marks.as_deref();
                let class = match marks {
                    None => "ground",
                    Some(marks) if marks.iter().any(|mark| mark.kind == Kind::Undeclared) => "differs",
                    Some(_) => "done",
                };
                format!("<i class=\"{class}\" title=\"{}\"></i>", text(&chip.serial))
            })
            .collect();
        let said = format!("{}: {} of {} chips drawn", operator.name, operator.drawn(), operator.chips.len());
        page.push(&format!(
            "<figure><figcaption>{0}</figcaption><div class=\"squares\" role=\"img\" aria-label=\"{0}\">{squares}</div></figure>\n",
            text(&said)
        ));
    }
    page.push(
        "<p class=\"legend\"><span><i class=\"ground\"></i>not drawn, nobody read its log</span>\
         <span><i class=\"done\"></i>drawn: all that it logged was declared</span>\
         <span><i class=\"differs\"></i>drawn: trained what nobody declared</span></p>\n",
    );
}

/// The drawn chips' logs over the month.
fn logs(page: &mut Page, told: &Told) {
    const ROW: f64 = 16.0;
    const LEFT: f64 = 66.0;
    const WIDTH: f64 = 360.0;
    let drawn = || told.operators.iter().flat_map(|operator| &operator.chips);
    let drawn = drawn().filter_map(|chip| Some((chip, chip.marks.as_ref()?)));
    let across = |day: f64| LEFT + (WIDTH - LEFT - 8.0) * (day / (told.days + 1.0)).clamp(0.0, 1.0);
    let (mut all, mut y) = (String::new(), 0.0);
    for (chip, marks) in drawn {
        y += ROW;
        all += &format!(
            "<text x=\"0\" y=\"{:.1}\">{}</text><path class=\"grid\" d=\"M{LEFT} {2:.1}H{WIDTH}\"/>",
            y + 4.0,
            text(&chip.serial),
            y
        );
        for mark in marks {
            let x = across(mark.day);
            all += &match mark.kind {
                Kind::Declared => format!("<circle class=\"done\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
                Kind::Idle => format!("<circle class=\"idle\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"),
                Kind::Undeclared => {
                    format!("<path class=\"differs\" d=\"M{x:.1} {:.1}l6 6l-6 6l-6 -6z\"/>", y - 6.0)
                }
            };
        }
    }
    for (day, anchor) in [(0.0, "start"), (told.days / 2.0, "middle"), (told.days, "end")] {
        let (x, y) = (across(day), y + ROW + 2.0);
        all += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">day {day:.0}</text>");
    }
    let said =
        format!("Logs of the {} drawn chips, from the first day of the month to the inspection", told.drawn);
    page.push(&format!(
        "<figure class=\"drawing\"><figcaption>{0}</figcaption><svg role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {WIDTH} {1:.0}\">{all}</svg></figure>\n\
         <p class=\"legend\"><span><i class=\"done round\"></i>snapshot of a declared run</span>\
         <span><i class=\"differs turned\"></i>snapshot of no declared run</span>\
         <span><i class=\"idle round\"></i>the chip trained nothing</span></p>\n",
        text(&said),
        y + ROW + 8.0
    ));
}

fn confidence(page: &mut Page, told: &Told) {
    let (flop, chips) = told.limit;
    page.heading("With what confidence");
    page.say(&format!(
        "A hidden run at the limit ({flop:.2e} FLOP in {:.0} days) keeps {chips} of the {} chips busy. Each chip logs {} snapshots a \
         day on average, at times that nobody foresees. So {} drawn chips find such a run with probability {}; at least {} was wanted.",
        told.days,
        told.fleet,
        told.rate,
        told.drawn,
        percent(told.probability),
        percent(told.confidence)
    ));
    page.plot(&told.plot, "Probability that a hidden run is found, by the number of chips that are drawn");
    page.say("The same draw finds larger runs more often, and smaller ones more rarely:");
    let rows: Vec<Vec<String>> = told
        .sizes
        .iter()
        .map(|size| vec![format!("{}", size.times), format!("{:.0}", size.chips), percent(size.found)])
        .collect();
    page.table(
        &["size of the hidden run, in limits", "chips that it needs", "found with probability"],
        &rows,
    );
    let (large, drawn) = told.large;
    page.say(&format!(
        "What counts is the share of the fleet that the run needs, not the size of the fleet: of {large} chips, {drawn} drawn ones \
         would do for a run on the same share of them."
    ));
}

fn findings(page: &mut Page, told: &Told) {
    page.heading("What was found");
    let side = |one: &Shown| {
        let class = if one.tone() == Tone::Good { "good" } else { "bad" };
        format!(
            "<div class=\"side {class}\"><b>{}: {}</b>{}.</div>\n",
            text(one.name),
            one.word(),
            text(&one.says)
        )
    };
    let sides: String = told.operators.iter().map(side).collect();
    page.push(&format!("<div class=\"sides\">\n{sides}</div>\n"));
    logs(page, told);
    page.say(
        "Every declared run was also held to the limit, with all runs that it began from. That is what finds a run that was \
         declared in parts: every snapshot of it is of a declared run, and each part alone is below the limit.",
    );
    let rows: Vec<Vec<String>> = told.operators.iter().flat_map(|one| one.runs.clone()).collect();
    page.table(&["declared run", "its work, of the limit", "with what it goes on from", "rule"], &rows);
    page.say(
        "The work is counted from the run's program and records, not taken from the operator's word. The inspector also replayed \
         every step of every declared run, and signed a statement about each:",
    );
    page.table(
        &[
            "statement",
            "audits",
            "drawn chips of the operator",
            "match of the drawn logs",
            "rules, over the operator's runs",
        ],
        &told.statements,
    );
}

/// The page.
pub fn page(told: &Told) -> String {
    let mut page =
        Page::new(&format!("Inspection of {} chips of {} operators", told.fleet, told.operators.len()));
    outcome(&mut page, told);
    page.remark(&format!(
        "This is a demonstration. Trainings, logs, draw and checks are real and small; the month of {:.0} days passed in seconds, by a \
         simulated clock. Keys, times and the beacon's value follow from the seed {}, so that everybody gets the same draw. A real \
         draw takes a beacon's value that nobody knows before the logs are closed. One CPU computes what several chips would: they \
         train together, so each of them holds the same state.",
        told.days, told.seed
    ));
    page.heading("What was sampled");
    page.say(&format!(
        "A register lists all {} chips. The operators published the heads of all logs; then a value came that nobody could foresee, and \
         it decided which {} chips the inspector reads. Nobody chose them, and anybody can repeat the draw.",
        told.fleet, told.drawn
    ));
    fleet(&mut page, told);
    confidence(&mut page, told);
    findings(&mut page, told);
    page.heading("What this does not show");
    page.list(&[
        "A chip that is not in the register is never drawn.".into(),
        "The chips' logs are worth as much as the firmware that writes them; here it is software.".into(),
        format!("A hidden run below the limit may stay hidden, with the probabilities above; so may one at the limit, with {}.",
            opposite(told.probability)),
        "Nothing is said of what the declared models can do.".into(),
    ]);
    page.heading("Check it yourself");
    page.say("Everything is in the folder of this page. These commands, in that folder, repeat the draw and check what was signed:");
    let mut commands = vec![
        "tiebreak monitor draw --register chips.register --registrar keys/registrar.pub --closed heads.txt --check draw.json"
            .to_string(),
    ];
    commands.extend(
        told.statements
            .iter()
            .filter_map(|row| row.first())
            .map(|file| format!("tiebreak monitor statement --check {file} --key keys/inspector.pub")),
    );
    page.commands(&commands);
    page.facts(&[("value of the beacon", told.beacon.clone())]);
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::view::page::plot::Curve;

    fn told(undeclared: usize, above: usize) -> Told {
        let mark = |kind| Mark { day: 3.0, kind };
        let kind = if undeclared > 0 { Kind::Undeclared } else { Kind::Declared };
        let chips = vec![
            Chip { serial: "<A>-1".into(), marks: Some(vec![mark(kind), mark(Kind::Idle)]) },
            Chip { serial: "<A>-2".into(), marks: None },
        ];
        let says = "<u>said</u>".to_string();
        let runs = vec![["<run>", "<work>", "67 %", "holds"].map(String::from).to_vec()];
        let shown = Shown { name: "A", chips, says, undeclared, above, runs, right: true };
        let curves = vec![Curve { name: "<curve>".into(), points: vec![(0.0, 0.0), (2.0, 1.0)] }];
        let (x, y) = ("<x>".to_string(), "<y>".to_string());
        Told {
            operators: vec![shown],
            days: 30.0,
            rate: "0.1",
            confidence: 0.99,
            limit: (1e9, 12),
            fleet: 2,
            drawn: 1,
            probability: 0.9999,
            beacon: "<beacon>".into(),
            plot: Plot { x, y, most: 2.0, curves, mark: (1.0, 0.5) },
            sizes: vec![Size { times: 0.5, chips: 6.0, found: 0.8 }],
            large: ("100,000", 20),
            statements: vec![
                ["<file>", "<audits>", "<chips>", "matches", "holds"].map(String::from).to_vec(),
            ],
            seed: 0,
        }
    }

    #[test]
    fn the_page_says_what_was_found_and_quotes_what_is_foreign() {
        for (undeclared, above, said) in [
            (0, 0, "Nothing was found that was not declared"),
            (2, 0, "A: an undeclared run."),
            (0, 1, "A: a run above the limit."),
        ] {
            let html = page(&told(undeclared, above));
            assert!(html.contains(said), "{html}");
            let squares =
                if undeclared > 0 { "<i class=\"differs\" title" } else { "<i class=\"done\" title" };
            assert!(html.contains(squares) && html.contains("<i class=\"ground\" title"), "{html}");
            assert!(html.contains("with probability 99.9 %"), "{html}");
            for foreign in
                ["<A>", "<u>", "<run>", "<work>", "<curve>", "<x>", "<y>", "<beacon>", "<file>", "<audits>"]
            {
                assert!(!html.contains(foreign), "{foreign}: {html}");
            }
        }
        let mut wrong = told(1, 0);
        wrong.operators[0].right = false;
        assert!(page(&wrong).contains("what is said of A is not the truth"));
    }
}

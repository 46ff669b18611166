//! The draw: which chips and which segments of runs an inspector looks at. Nobody can foresee a draw, and anybody can repeat it.
//!
//! The draw's seed is a hash of a public beacon's value, or of two nonces to which inspector and operator committed before, and of
//! nothing else: who knows the value has nothing left to vary. Rule: docs/MONITORING-FORMAT.md, "Draws".

use serde::{Deserialize, Serialize};
use tiebreak_record::commit::codec::Encoder;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::{Malformed, other_encoding};

use crate::beacon::{Chain, Unverified, Verified};
use crate::closed::ClosedLogs;
use crate::randomness::Randomness;
use crate::register::history::Register;
use crate::snapshot::record::Serial;

/// The most bytes of a draw's file.
pub const DRAW_MAX: u64 = 1 << 28;
/// The most runs of a draw.
pub const RUNS_MAX: usize = 1 << 16;
/// The most segments of all runs together.
pub const SEGMENTS_MAX: u32 = 1 << 24;
const FORMAT: &str = "tiebreak draw 2";
const WHAT: &str = "draw";

/// A declared run whose segments are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredRun {
    /// The run id.
    pub run: Digest,
    /// Records under the run's head.
    pub size: u64,
    /// The root under the run's head.
    pub root: Digest,
    /// Steps that the head covers.
    pub steps: u32,
    /// Steps of a segment; the last one may be shorter.
    pub segment: u32,
}

/// The inputs of a draw, all of them published before the randomness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Seconds since 1970: chips that are monitored then may be drawn.
    pub time: u64,
    /// Chips to draw.
    pub chips: u32,
    /// Segments to draw of each run; all of a run that has fewer.
    pub segments: u32,
    /// The declared runs.
    pub runs: Vec<DeclaredRun>,
    /// The seed's origin.
    pub randomness: Randomness,
}

/// The head of the register that chips are drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfRegister {
    /// The register's name.
    pub name: String,
    /// Entries under the head.
    pub entries: u64,
    /// The root under the head.
    pub root: Digest,
}

/// The segments that were drawn of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrawnSegments {
    /// The run id.
    pub run: Digest,
    /// The number of the run's segments.
    pub of: u32,
    /// The first and the last step of each, ascending.
    pub steps: Vec<(u32, u32)>,
}

/// A draw as its file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    format: String,
    /// The register.
    pub register: OfRegister,
    /// [`ClosedLogs::digest`] of the logs' heads.
    pub closed: Digest,
    /// The inputs.
    pub question: Question,
    /// The seed.
    pub seed: Digest,
    /// Monitored chips at the time: those that may be drawn.
    pub monitored: u64,
    /// Exempt chips at the time.
    pub exempt: u64,
    /// Monitored chips whose log has no head in the list.
    pub unclosed: u64,
    /// The chips that were drawn, in the order of the rule.
    pub chips: Vec<Serial>,
    /// The segments that were drawn, in the order of the runs.
    pub segments: Vec<DrawnSegments>,
}

/// The reason why a draw's file is not the draw that follows from its inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misdrawn {
    /// The register is another one.
    #[error("the draw names {drawn} entries of a register, and this register does not begin with them")]
    Register {
        /// Entries that the draw names.
        drawn: u64,
    },
    /// The list of heads is another one.
    #[error("the draw was made over another list of log heads, of digest {drawn}")]
    Closed {
        /// The digest that the draw names.
        drawn: Digest,
    },
    /// The result is not the rule's.
    #[error("the rule gives another {0}")]
    Result(&'static str),
}

impl Misdrawn {
    /// The stable name of the reason, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Misdrawn::Register { .. } => "register",
            Misdrawn::Closed { .. } => "closed",
            Misdrawn::Result(_) => "result",
        }
    }
}

fn wrong(why: impl Into<String>) -> Malformed {
    Malformed::invalid(WHAT, why)
}

impl DeclaredRun {
    /// The number of segments.
    pub fn segments(&self) -> u32 {
        self.steps.div_ceil(self.segment.max(1))
    }

    /// The first and the last step of segment `number`, from 0.
    pub fn steps_of(&self, number: u32) -> (u32, u32) {
        let first = number * self.segment + 1;
        (first, first.saturating_add(self.segment - 1).min(self.steps))
    }
}

impl Question {
    /// Checks that the date is not behind the round of drand that the seed comes from.
    ///
    /// # Errors
    /// If chips that entered behind the round may be drawn.
    pub fn dated(&self, round: Option<&Verified>) -> Result<(), Unverified> {
        match round {
            Some(round) if round.time < self.time => {
                Err(Unverified::Date { date: self.time, round: round.time })
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), Malformed> {
        if self.runs.len() > RUNS_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: RUNS_MAX as u64 });
        }
        let mut segments = 0;
        for run in &self.runs {
            segments += u64::from(run.segments());
            if run.segment == 0 || segments > u64::from(SEGMENTS_MAX) {
                let why = format!(
                    "run {}: a segment has a step or more, and all runs have at most {SEGMENTS_MAX} segments",
                    run.run
                );
                return Err(wrong(why));
            }
        }
        self.randomness.check()
    }
}

/// The `count` things with the least rank, least first. Equal ranks keep their order.
fn least<T>(things: impl Iterator<Item = T>, count: usize, rank: impl Fn(&T) -> Digest) -> Vec<T> {
    let mut ranked: Vec<(Digest, T)> = things.map(|thing| (rank(&thing), thing)).collect();
    if count < ranked.len() {
        ranked.select_nth_unstable_by(count, |a, b| a.0.cmp(&b.0));
        ranked.truncate(count);
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, thing)| thing).collect()
}

/// The chips that a seed draws: the `count` of them with the least H("tiebreak 2 draw", seed, serial), least first.
pub fn chips<'a>(seed: &Digest, of: &[&'a Serial], count: usize) -> Vec<&'a Serial> {
    let rank =
        |serial: &&Serial| hash("tiebreak 2 draw", &[&seed.0[..], serial.as_str().as_bytes()].concat());
    least(of.iter().copied(), count, rank)
}

/// The segments that a seed draws of a run: the `count` with the least H("tiebreak 2 draw-segment", seed, run, number).
fn segments(seed: &Digest, run: &DeclaredRun, count: usize) -> DrawnSegments {
    let rank = |number: &u32| {
        let mut e = Encoder::default();
        e.digest(seed).digest(&run.run).u32(*number);
        hash("tiebreak 2 draw-segment", &e.0)
    };
    let of = if count == 0 { 0 } else { run.segments() };
    let mut drawn = least(0..of, count, rank);
    drawn.sort_unstable();
    let steps = drawn.into_iter().map(|number| run.steps_of(number));
    DrawnSegments { run: run.run, of: run.segments(), steps: steps.collect() }
}

/// Sample `index` that a seed draws of a run's `of` samples: floor(word * of / 2^64), where the word is the first eight bytes of
/// H("tiebreak 2 draw-sample", seed, run, index). Each draw is of all samples, so one may be drawn twice.
pub fn sample(seed: &Digest, run: &Digest, index: u32, of: u64) -> u64 {
    let mut e = Encoder::default();
    e.digest(seed).digest(run).u32(index);
    let Digest(bytes) = hash("tiebreak 2 draw-sample", &e.0);
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("a digest has 32 bytes"));
    ((u128::from(word) * u128::from(of)) >> 64) as u64
}

impl Draw {
    /// Draws.
    ///
    /// # Errors
    /// If the question is outside its bounds, a nonce is not that of its commitment, or there are fewer monitored chips.
    pub fn new(register: &Register, closed: &ClosedLogs, question: Question) -> Result<Draw, Malformed> {
        question.check()?;
        let head = register.head();
        let of = OfRegister { name: register.name().to_string(), entries: head.size, root: head.root };
        let digest = closed.digest();
        let seed = question.randomness.seed();
        let monitored = register.monitored_at(question.time);
        if question.chips as usize > monitored.len() {
            let why =
                format!("{} chips are to be drawn, and {} are monitored", question.chips, monitored.len());
            return Err(wrong(why));
        }
        let unclosed = monitored.iter().filter(|serial| !closed.0.contains_key(serial)).count() as u64;
        let drawn = chips(&seed, &monitored, question.chips as usize);
        let segments = question.runs.iter().map(|run| segments(&seed, run, question.segments as usize));
        Ok(Draw {
            format: FORMAT.to_string(),
            register: of,
            closed: digest,
            seed,
            monitored: monitored.len() as u64,
            exempt: register.counts_at(question.time).exempt,
            unclosed,
            chips: drawn.into_iter().cloned().collect(),
            segments: segments.collect(),
            question,
        })
    }

    /// Checks the signature of the round of drand that the seed comes from, and that the draw's date is not behind the round. `None`
    /// if it comes from elsewhere: only people can look that up.
    ///
    /// # Errors
    /// If the round's network is none of `chains`, the value is not its signature, or chips that entered behind the round may be drawn.
    pub fn signed(&self, chains: &[Chain]) -> Result<Option<Verified>, Unverified> {
        let verified = self.question.randomness.signed(chains)?;
        self.question.dated(verified.as_ref())?;
        Ok(verified)
    }

    /// The one text of the draw.
    ///
    /// # Panics
    /// Never: a draw has no value that JSON lacks.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a draw has texts, numbers and lists only") + "\n"
    }

    /// Parses [`Draw::to_text`]. Whether the draw follows from its inputs is checked by [`Draw::check`].
    ///
    /// # Errors
    /// If the text is not the one encoding of a draw.
    pub fn from_text(text: &str) -> Result<Draw, Malformed> {
        if text.len() as u64 > DRAW_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: DRAW_MAX });
        }
        let draw: Draw = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if draw.format != FORMAT {
            return Err(wrong(format!("its format is {:?}, and {FORMAT:?} is wanted", draw.format)));
        }
        let right = draw.to_text();
        if right != text {
            return Err(wrong(other_encoding(text.as_bytes(), right.as_bytes())));
        }
        draw.question.check()?;
        Ok(draw)
    }

    /// Draws again from the same inputs, and compares. The register may have more entries since.
    ///
    /// # Errors
    /// If an entry of the register cannot be read again, or there are fewer monitored chips than were to be drawn.
    pub fn check(&self, register: &Register, closed: &ClosedLogs) -> Result<Option<Misdrawn>, Malformed> {
        let other = Some(Misdrawn::Register { drawn: self.register.entries });
        let Some(then) = register.first(self.register.entries)? else { return Ok(other) };
        if (then.name(), then.head().root) != (self.register.name.as_str(), self.register.root) {
            return Ok(other);
        }
        if closed.digest() != self.closed {
            return Ok(Some(Misdrawn::Closed { drawn: self.closed }));
        }
        // Before anything is ranked: somebody may have made up a file that takes long.
        if self.question.randomness.seed() != self.seed {
            return Ok(Some(Misdrawn::Result("seed")));
        }
        let again = Draw::new(&then, closed, self.question.clone())?;
        let what = [
            ("choice of chips", again.chips == self.chips),
            ("choice of segments", again.segments == self.segments),
            ("number of chips", again == *self),
        ];
        Ok(what.into_iter().find(|(_, same)| !same).map(|(what, _)| Misdrawn::Result(what)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closed::LogHead;
    use crate::randomness::{BEACON_MAX, Revealed, commitment};
    use crate::register::entry::{Change, Entry};
    use tiebreak_record::commit::keys::PrivateKey;

    fn serial(number: u32) -> Serial {
        Serial::new(&format!("chip-{number}")).unwrap()
    }

    fn entry(number: u32, exempt: bool) -> Entry {
        let mut seed = [1; 32];
        seed[..4].copy_from_slice(&number.to_le_bytes());
        let key = PrivateKey::generate("chip", seed).unwrap().public().to_text();
        let [model, owner, site] = ["h100", "Alice", "north"].map(String::from);
        let exempt = exempt.then(|| "a display".to_string());
        Entry { time: 100, serial: serial(number), change: Change::Enter { key, model, owner, site, exempt } }
    }

    /// 50 chips, each tenth of them exempt.
    fn register() -> Register {
        let mut register = Register::new("example").unwrap();
        (0..50).for_each(|number| register.append(entry(number, number % 10 == 0)).unwrap());
        register
    }

    fn closed() -> ClosedLogs {
        let head = LogHead { records: 3, link: Digest([9; 32]) };
        ClosedLogs((1..40).map(|number| (serial(number), head)).collect())
    }

    fn beacon(value: u64) -> Randomness {
        Randomness::Beacon { round: "example 17".into(), value: format!("{value:032x}") }
    }

    fn question(randomness: Randomness) -> Question {
        let run =
            DeclaredRun { run: Digest([5; 32]), size: 104, root: Digest([6; 32]), steps: 103, segment: 10 };
        Question { time: 200, chips: 5, segments: 3, runs: vec![run], randomness }
    }

    fn revealed(inspector: u8, operator: u8) -> Randomness {
        let side =
            |byte: u8| Revealed { nonce: Digest([byte; 32]), commitment: commitment(&Digest([byte; 32])) };
        Randomness::Revealed { inspector: side(inspector), operator: side(operator) }
    }

    #[test]
    fn anybody_draws_the_same_from_the_file() {
        for randomness in [beacon(7), revealed(1, 2)] {
            let draw = Draw::new(&register(), &closed(), question(randomness)).unwrap();
            assert_eq!((draw.monitored, draw.exempt, draw.unclosed, draw.chips.len()), (45, 5, 9, 5));
            assert_eq!((draw.segments[0].of, draw.segments[0].steps.len()), (11, 3));
            let read = Draw::from_text(&draw.to_text()).unwrap();
            assert_eq!(read, draw);
            assert_eq!(read.check(&register(), &closed()).unwrap(), None);
            // Later entries change nothing, and other ones do.
            let mut more = register();
            more.append(entry(99, false)).unwrap();
            assert_eq!(read.check(&more, &closed()).unwrap(), None);
            let fewer = register().first(49).unwrap().unwrap();
            assert_eq!(read.check(&fewer, &closed()).unwrap().unwrap().kind(), "register");
            assert_eq!(read.check(&register(), &ClosedLogs::default()).unwrap().unwrap().kind(), "closed");
        }
    }

    #[test]
    fn a_draw_that_somebody_changed_is_told() {
        let draw = Draw::new(&register(), &closed(), question(beacon(7))).unwrap();
        let told = |change: &dyn Fn(&mut Draw)| {
            let mut other = draw.clone();
            change(&mut other);
            Draw::from_text(&other.to_text())
                .unwrap()
                .check(&register(), &closed())
                .unwrap()
                .unwrap()
                .to_string()
        };
        assert!(told(&|draw| draw.chips[4] = serial(0)).contains("choice of chips"));
        assert!(told(&|draw| draw.chips.reverse()).contains("choice of chips"));
        assert!(told(&|draw| draw.segments[0].steps[0] = (1, 1)).contains("choice of segments"));
        assert!(told(&|draw| draw.question.randomness = beacon(8)).contains("seed"));
        assert!(told(&|draw| draw.question.chips = 4).contains("choice of chips"));
        assert!(told(&|draw| draw.exempt = 4).contains("number of chips"));
        let text = draw.to_text();
        for (from, to) in [("draw 2", "draw 1"), ("  \"seed\"", " \"seed\""), ("\"exempt\"", "\"exempted\"")]
        {
            assert!(Draw::from_text(&text.replace(from, to)).is_err(), "{from}");
        }
    }

    /// An operator who sees the inspector's nonce may only reveal the nonce of the published commitment, or refuse.
    #[test]
    fn no_side_chooses_its_nonce_late() {
        let mut randomness = revealed(1, 2);
        let Randomness::Revealed { operator, .. } = &mut randomness else { unreachable!() };
        operator.nonce = Digest([3; 32]);
        let error = Draw::new(&register(), &closed(), question(randomness)).unwrap_err().to_string();
        assert!(error.contains("the operator's nonce is not the one of its commitment"), "{error}");
        assert!(Draw::new(&register(), &closed(), question(revealed(4, 4))).is_err());
    }

    /// Who knows the beacon's value or the nonces varies nothing else in the seed, so more chips or segments only add to the drawn ones.
    #[test]
    fn the_seed_is_of_the_randomness_alone() {
        let draw = |register: &_, closed: &_, question| Draw::new(register, closed, question).unwrap();
        let asked = question(beacon(1));
        let first = draw(&register(), &closed(), asked.clone());
        let mut grown = register();
        grown.append(Entry { time: 300, ..entry(99, false) }).unwrap();
        let longer = DeclaredRun { size: 105, root: Digest([7; 32]), ..asked.runs[0] };
        let round = Randomness::Beacon { round: "example  17".into(), value: format!("{:032x}", 1) };
        for (what, other) in [
            ("another register", draw(&grown, &closed(), asked.clone())),
            ("other logs", draw(&register(), &ClosedLogs::default(), asked.clone())),
            ("another date", draw(&register(), &closed(), Question { time: 201, ..asked.clone() })),
            ("another head", draw(&register(), &closed(), Question { runs: vec![longer], ..asked.clone() })),
            ("another spelling of the round", draw(&register(), &closed(), question(round))),
        ] {
            assert_eq!((&other.chips, &other.segments), (&first.chips, &first.segments), "{what}");
        }
        let more = draw(&register(), &closed(), Question { chips: 9, segments: 7, ..asked });
        assert_eq!(more.chips[..5], first.chips);
        assert!(first.segments[0].steps.iter().all(|steps| more.segments[0].steps.contains(steps)));
        let others = [beacon(2), revealed(1, 2), revealed(1, 3), revealed(3, 2)].map(|it| it.seed());
        let seeds: std::collections::BTreeSet<Digest> = others.into_iter().chain([first.seed]).collect();
        assert_eq!(seeds.len(), 5);
    }

    #[test]
    fn beacons_and_questions_have_bounds() {
        let refused = |question: Question| Draw::new(&register(), &closed(), question).is_err();
        for value in ["", "00", &"0".repeat(31), &"A".repeat(32), &"0".repeat(2 * BEACON_MAX + 2)] {
            let randomness = Randomness::Beacon { round: "r".into(), value: value.into() };
            assert!(refused(question(randomness)), "{value}");
        }
        assert!(refused(question(Randomness::Beacon { round: String::new(), value: "0".repeat(32) })));
        assert!(refused(Question { chips: 46, ..question(beacon(1)) }));
        assert!(!refused(Question { chips: 45, segments: 1000, ..question(beacon(1)) }));
        let mut zero = question(beacon(1));
        zero.runs[0].segment = 0;
        assert!(refused(zero));
        // The bound is of all runs together: a file names many.
        let run = |segments| DeclaredRun { steps: segments / 4, segment: 1, ..question(beacon(1)).runs[0] };
        let many = |of| Question { segments: 0, runs: vec![run(of); 4], ..question(beacon(1)) };
        assert!(!refused(many(SEGMENTS_MAX)));
        assert!(refused(many(SEGMENTS_MAX + 4)));
    }

    /// Over many seeds each monitored chip is drawn equally often, and an exempt one never.
    #[test]
    fn draws_are_uniform() {
        let register = register();
        let monitored = register.monitored_at(200);
        let (rounds, chosen) = (4000u32, 5);
        let mut counts = std::collections::BTreeMap::<&Serial, f64>::new();
        for round in 0..rounds {
            let seed = hash("tiebreak 2 draw-seed", &round.to_le_bytes());
            let drawn = chips(&seed, &monitored, chosen);
            assert_eq!(drawn.iter().collect::<std::collections::BTreeSet<_>>().len(), chosen);
            drawn.into_iter().for_each(|serial| *counts.entry(serial).or_default() += 1.0);
        }
        assert_eq!(counts.len(), monitored.len());
        let (n, s) = (monitored.len() as f64, chosen as f64);
        let expected = f64::from(rounds) * s / n;
        let sum: f64 = counts.values().map(|count| (count - expected).powi(2) / expected).sum();
        // Counts of draws without replacement vary less, by (n - s) / (n - 1).
        let chi_square = sum * (n - 1.0) / (n - s);
        // The quantiles 0.001 and 0.999 of 44 degrees of freedom.
        assert!((20.6..78.8).contains(&chi_square), "{chi_square}");
    }
}

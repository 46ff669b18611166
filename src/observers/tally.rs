//! What a replay saw of a trainer's rounding decisions, and of the freedom that they had. Never a conviction.

use serde::Serialize;

use crate::rounding::legal::Illegal;

/// The most remarks of a report.
const REMARKS_MAX: usize = 8;

/// Bins of a histogram of margins: 0 to 2 tolerances, and beyond.
pub const MARGIN_BINS: usize = 41;

/// A histogram of margins.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Margins(pub Vec<u64>);

impl Default for Margins {
    fn default() -> Margins {
        Margins(vec![0; MARGIN_BINS])
    }
}

impl Margins {
    pub(super) fn count(&mut self, margin: f64) {
        self.0[((margin * 20.0) as usize).min(MARGIN_BINS - 1)] += 1;
    }

    fn add(&mut self, other: &Margins) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// What a replay saw of a trainer's freedom.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Elements of the logged products that were replayed.
    pub elements: u64,
    /// Decisions in the log.
    pub decisions: u64,
    /// The decisions' bits in total.
    pub bits: u64,
    /// Bytes of the logs.
    pub bytes: u64,
    /// Decisions that are not the rounding of the auditor's value and went up.
    pub taken_up: u64,
    /// Those that went down.
    pub taken_down: u64,
    /// Of these, further from the boundary than the job's thresholds explain.
    pub beyond: u64,
    /// Decisions about elements that lie too far from any boundary to be logged.
    pub needless: u64,
    /// Decisions by the distance of the auditor's value from the boundary, in twentieths of the tolerance. The last bin holds what
    /// is further.
    pub margins: Margins,
    /// The same of decisions that are not the nearest value.
    pub margins_taken: Margins,
    /// Roundings that no honest kernel can have taken.
    pub illegal: u64,
    /// The first of them.
    pub first_illegal: Option<Illegal>,
    /// Steps whose choices do not look like those of an honest kernel, and why; the first few.
    pub remarks: Vec<String>,
    /// What the proved bound would let a trainer choose; measured on one step.
    pub freedom: Vec<Freedom>,
}

/// The freedom that the proved bound leaves in one product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Freedom {
    /// The micro-batch that the product is of.
    pub micro_batch: u32,
    /// The product's operator.
    pub operator: String,
    /// Elements of the product.
    pub elements: u64,
    /// Elements with more than one legal value.
    pub free: u64,
    /// Bits that choosing is worth: the sum of log2 of the legal values of each element.
    pub bits: f64,
    /// The largest shift of the mean that choosing could hide, relative to the mean absolute value.
    pub bias: f64,
}

impl Tally {
    /// Decisions that differ from the auditor's own rounding.
    pub fn taken(&self) -> u64 {
        self.taken_up + self.taken_down
    }

    /// Why the trainer's choices do not look like those of an honest kernel, if they do not. Never a conviction.
    pub fn unusual(&self) -> Option<String> {
        let taken = self.taken() as f64;
        let balance = (self.taken_up as f64 - self.taken_down as f64).abs();
        if self.beyond > 0 || self.needless > 0 {
            return Some(format!(
                "{} roundings differ further from a boundary than the job's thresholds explain, {} more are logged though far from any",
                self.beyond, self.needless
            ));
        }
        if self.decisions >= 200 && taken > 0.25 * self.decisions as f64 {
            return Some(format!(
                "{taken} of {} decisions are not the nearest value: kernels that the thresholds fit take far fewer",
                self.decisions
            ));
        }
        (taken >= 100.0 && balance > 6.0 * taken.sqrt()).then(|| {
            format!(
                "{} roundings go up and {} down where the exact product rounds the other way: a bias",
                self.taken_up, self.taken_down
            )
        })
    }

    /// Adds step `step`'s.
    pub fn add(&mut self, step: u32, other: &Tally) {
        if let Some(why) = other.unusual()
            && self.remarks.len() < REMARKS_MAX
        {
            self.remarks.push(format!("step {step}: {why}"));
        }
        self.elements += other.elements;
        self.decisions += other.decisions;
        self.bits += other.bits;
        self.bytes += other.bytes;
        self.taken_up += other.taken_up;
        self.taken_down += other.taken_down;
        self.beyond += other.beyond;
        self.needless += other.needless;
        self.illegal += other.illegal;
        self.margins.add(&other.margins);
        self.margins_taken.add(&other.margins_taken);
        if self.first_illegal.is_none() {
            self.first_illegal.clone_from(&other.first_illegal);
        }
        if self.freedom.is_empty() {
            self.freedom.clone_from(&other.freedom);
        }
    }
}

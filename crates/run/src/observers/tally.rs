//! Counts of a trainer's rounding decisions during a replay, and of the freedom that the trainer had. No count is a conviction.

use serde::Serialize;

use super::choices::{Choices, most_taken};
use tiebreak_contract::program::products::ProductClass;
use tiebreak_record::rounding::bounds::{FALSE_ALARM, taken_max};
use tiebreak_record::rounding::legal::{Accumulation, Illegal};

/// The most remarks of a report.
const REMARKS_MAX: usize = 8;

/// The most decisions of a step whose positions are kept: far more than an honest kernel takes, and a bound on memory.
pub(super) const MOVED_MAX: usize = 1 << 20;

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

/// The counts of a trainer's freedom during a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Steps that were replayed.
    pub steps: u64,
    /// Elements of the logged products that were replayed.
    pub elements: u64,
    /// Decisions in the log.
    pub decisions: u64,
    /// The decisions' bits in total.
    pub bits: u64,
    /// Bytes of the logs.
    pub bytes: u64,
    /// Decisions upwards that differ from the rounding of the auditor's value.
    pub taken_up: u64,
    /// Decisions downwards that differ from the rounding of the auditor's value.
    pub taken_down: u64,
    /// Decisions that differ and lie further from the boundary than the job's thresholds explain.
    pub beyond: u64,
    /// Decisions about elements that lie too far from any boundary to be logged.
    pub needless: u64,
    /// Decisions by the distance of the auditor's value from the boundary, in twentieths of the tolerance. The last bin holds all
    /// greater distances.
    pub margins: Margins,
    /// The same histogram, of decisions that are not the nearest value.
    pub margins_taken: Margins,
    /// Roundings that no honest kernel can have taken.
    pub illegal: u64,
    /// The first illegal rounding.
    pub first_illegal: Option<Illegal>,
    /// Steps whose choices do not look like those of an honest kernel, with the reason; the first few.
    pub remarks: Vec<String>,
    /// The choices of each logged product of the program; empty if products were not scanned.
    pub products: Vec<Choices>,
    /// The bias that the products could hide, once all are counted.
    pub hidden: Option<Hidden>,
    /// For a step: product, element and direction of decisions that are not the nearest value.
    #[serde(skip)]
    pub(super) moved: Vec<(u32, u64, bool)>,
}

/// The bias that a trainer could have hidden in the decisions that were counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hidden {
    /// The most decisions, out of all that were counted, that an honest kernel takes against the nearest value.
    pub taken_max: u64,
    /// The class of the product with the largest hidden bias.
    pub class: ProductClass,
    /// The product's operator.
    pub operator: String,
    /// The bias: the sum of the shifts of the product's elements, relative to the sum of their absolute values.
    pub bias: f64,
}

impl Tally {
    /// Decisions that differ from the auditor's own rounding.
    #[doc(hidden)] // for the layers above
    pub fn taken(&self) -> u64 {
        self.taken_up + self.taken_down
    }

    /// The reason why the trainer's choices do not look like those of an honest kernel, if there is one. The reason is no
    /// conviction.
    #[doc(hidden)] // for the layers above
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

    /// Adds the counts of step `step`; `accumulation` says how the trainer's kernels accumulate.
    #[doc(hidden)] // for the layers above
    pub fn add(&mut self, step: u32, other: &Tally, accumulation: Accumulation) {
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
        self.steps += 1;
        if self.products.is_empty() {
            self.products = other.products.iter().map(Choices::blank).collect();
        }
        for (mine, theirs) in self.products.iter_mut().zip(&other.products) {
            mine.add(step, theirs, taken_max(accumulation));
        }
        for &(product, place, up) in &other.moved {
            self.products[product as usize].note(place, up);
        }
    }

    /// The nats that a single test may reach before it fails. The limit allows for all tests of an audit together: two for each
    /// product, in every step and over all.
    fn nats(&self) -> f64 {
        ((2 * self.products.len() as u64 * (self.steps + 1)) as f64 / FALSE_ALARM).ln()
    }

    /// The first product's reason why no honest kernel decides so, if there is one. The reason is no conviction.
    #[doc(hidden)] // for the layers above
    pub fn unexplained(&self, accumulation: Accumulation) -> Option<String> {
        let (nats, taken_max) = (self.nats(), taken_max(accumulation));
        self.products.iter().find_map(|product| product.unexplained(nats, taken_max))
    }

    /// Computes the bias that could pass unseen.
    #[doc(hidden)] // for the layers above
    pub fn settle(&mut self, accumulation: Accumulation) {
        let (nats, taken_max) = (self.nats(), taken_max(accumulation));
        let shifts = self.products.iter().map(|product| (product, product.hidden(nats, taken_max)));
        self.hidden = shifts.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(product, bias)| Hidden {
            taken_max: most_taken(self.decisions, nats, taken_max),
            class: product.class,
            operator: product.operator.clone(),
            bias,
        });
    }
}

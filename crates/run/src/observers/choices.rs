//! The choices in one product's decisions, over all replayed steps, compared with those of an honest kernel. The published bounds
//! are those of `rounding::bounds`; the tests are Chernoff's, so that they hold for any number of decisions (`docs/ROUNDING.md`,
//! section 8). No result here is a conviction.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use tiebreak_contract::program::graph::{Graph, LoggedProduct};
use tiebreak_contract::program::products::ProductClass;
use tiebreak_record::rounding::bounds::{FREE_MAX, SAME_WAY_MAX};

/// Counters of a sketch.
const BUCKETS: usize = 1 << 10;
/// The least number of decisions that a sketch judges.
const REPEATED_MIN: u64 = 100;
/// Standard deviations of noise that a sketch tolerates: honest noise exceeds them once in 10^15.
const SKETCH_SIGMAS: f64 = 8.0;

/// The decisions of one logged product, over micro-batches and steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choices {
    /// The product's class.
    pub class: ProductClass,
    /// The product's operator.
    pub operator: String,
    /// Elements that were computed.
    pub elements: u64,
    /// Elements that the trainer could have chosen: elements within the threshold of a boundary, with more than one legal value.
    pub free: u64,
    /// Decisions in the log.
    pub decisions: u64,
    /// Distinct values that the decisions are about. Equal values of a micro-batch count once, since equal rows have equal
    /// results.
    pub values: u64,
    /// Values that are not rounded to the nearest: towards zero, and away from it.
    pub taken: [u64; 2],
    /// Values that are not rounded to the nearest and lie further from the boundary than the job's threshold explains.
    pub beyond: u64,
    /// Decisions about elements that lie too far from any boundary to be logged.
    pub needless: u64,
    /// The sum of the elements' absolute values.
    pub size: f64,
    /// The look that fits an honest kernel worst, of all steps.
    pub worst: Option<Look>,
    /// Free elements, counted by the exponent of the largest shift that a choice makes: the least power of two that is not below
    /// it.
    #[serde(skip)]
    shifts: BTreeMap<i32, u64>,
    /// The first step with a decision counted in `beyond` or `needless`.
    #[serde(skip)]
    stray_step: Option<u32>,
    /// For the gradient of a weight: the elements that decisions moved, and the directions.
    #[serde(skip)]
    repeated: Option<Sketch>,
}

/// The result of one test of decisions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Look {
    /// The step; absent for a test over all replayed steps.
    pub step: Option<u32>,
    /// The evidence: an honest kernel gives such a result with a chance of at most e^-nats.
    pub nats: f64,
    /// The counts that the test used, in words.
    pub counted: String,
}

impl Choices {
    /// The choices of a product of a graph, before any decision is counted.
    pub(crate) fn of(graph: &Graph, logged: &LoggedProduct) -> Choices {
        let node = graph.nodes.iter().find(|node| node.output == logged.product);
        Choices::new(logged.class, node.map_or("", |node| node.operator.as_str()))
    }

    fn new(class: ProductClass, operator: &str) -> Choices {
        Choices {
            class,
            operator: operator.to_string(),
            elements: 0,
            free: 0,
            decisions: 0,
            values: 0,
            taken: [0; 2],
            beyond: 0,
            needless: 0,
            size: 0.0,
            worst: None,
            shifts: BTreeMap::new(),
            stray_step: None,
            repeated: None,
        }
    }

    /// The same product, before any decision is counted.
    pub(crate) fn blank(&self) -> Choices {
        Choices::new(self.class, &self.operator)
    }

    /// Counts the values of a micro-batch that decisions are about. `taken` holds the values that are not rounded to the nearest,
    /// with true if the rounding was away from zero.
    pub(super) fn count(&mut self, decided: &mut Vec<u64>, taken: &mut Vec<(u64, bool)>) {
        self.decisions += decided.len() as u64;
        decided.sort_unstable();
        decided.dedup();
        self.values += decided.len() as u64;
        taken.sort_unstable();
        taken.dedup();
        taken.iter().for_each(|&(_, away)| self.taken[usize::from(away)] += 1);
    }

    /// Adds the absolute values of elements, binary32 patterns.
    pub(super) fn add_size(&mut self, elements: &[u32]) {
        let values = elements.par_chunks(1 << 15);
        let sizes: Vec<f64> =
            values.map(|part| part.iter().map(|&x| f64::from(f32::from_bits(x)).abs()).sum()).collect();
        let size: f64 = sizes.iter().sum();
        // A value that is not finite adds nothing.
        self.size += if size.is_finite() { size } else { 0.0 };
    }

    /// Counts elements that the trainer could have chosen, by the exponent of the largest shift.
    pub(super) fn add_free(&mut self, shifts: &BTreeMap<i32, u64>) {
        self.free += shifts.values().sum::<u64>();
        shifts.iter().for_each(|(&shift, &count)| *self.shifts.entry(shift).or_default() += count);
    }

    /// Adds the choices of step `step`, after testing them.
    pub(crate) fn add(&mut self, step: u32, other: &Choices, taken_max: [f64; 2]) {
        if self.stray_step.is_none() && other.beyond + other.needless > 0 {
            self.stray_step = Some(step);
        }
        let looks = other.looks(taken_max).map(|(nats, counted)| Look { step: Some(step), nats, counted });
        for look in looks {
            if self.worst.as_ref().is_none_or(|worst| worst.nats < look.nats) {
                self.worst = Some(look);
            }
        }
        self.elements += other.elements;
        self.decisions += other.decisions;
        self.beyond += other.beyond;
        self.needless += other.needless;
        self.size += other.size;
        self.add_free(&other.shifts);
        self.values += other.values;
        self.taken.iter_mut().zip(other.taken).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Notes the element that a decision of a weight's gradient moved, and the direction.
    pub(crate) fn note(&mut self, place: u64, up: bool) {
        use ProductClass::{ConvDw, HeadDw, LinearDw};
        if matches!(self.class, LinearDw | ConvDw | HeadDw) {
            self.repeated.get_or_insert_with(Sketch::new).add(place, up);
        }
    }

    /// The tests of these decisions that fail to some degree: for each, the nats against an honest kernel, and the counts in
    /// words.
    fn looks(&self, taken_max: [f64; 2]) -> impl Iterator<Item = (f64, String)> {
        let values = self.values;
        let sides = ["towards zero", "away from zero"].into_iter().zip(self.taken).zip(taken_max);
        sides.filter_map(move |((way, taken), most)| {
            let nats = excess(taken, values, most);
            let counted = || {
                format!(
                    "{taken} of {values} values are rounded {way}, to another than the nearest, of an honest kernel's at most {:.0} %",
                    100.0 * most
                )
            };
            (nats > 0.0).then(|| (nats, counted()))
        })
    }

    /// True if the product's results belong to a forward pass. A frozen layer's results are the same in every step, so many steps
    /// are no more evidence than one.
    fn is_forward(&self) -> bool {
        use ProductClass::{Conv, Head, Linear, Scores, Values};
        matches!(self.class, Linear | Conv | Head | Scores | Values)
    }

    /// The reason why an honest kernel does not decide so, if there is one; `nats` already allows for all looks of the audit.
    pub(crate) fn unexplained(&self, nats: f64, taken_max: [f64; 2]) -> Option<String> {
        let name = format!("{} of {}", self.class.name(), self.operator);
        if let Some(step) = self.stray_step {
            return Some(format!(
                "{name}, from step {step} on: {} decisions lie further from a boundary than the job's threshold explains, {} more are logged \
                 though far from any",
                self.beyond, self.needless
            ));
        }
        if self.free as f64 > FREE_MAX * self.elements as f64 {
            return Some(format!(
                "{name}: the threshold and the proved bound leave {:.1} % of its values to the trainer's choice, and above {:.0} % nothing \
                 follows from a match; calibrate the thresholds, or use smaller micro-batches",
                100.0 * self.free as f64 / self.elements as f64,
                100.0 * FREE_MAX
            ));
        }
        let of_all = self.looks(taken_max).map(|(nats, counted)| Look { step: None, nats, counted });
        let worst = of_all
            .filter(|_| !self.is_forward())
            .chain(self.worst.clone())
            .max_by(|a, b| a.nats.total_cmp(&b.nats));
        if let Some(Look { step, counted, .. }) = worst.filter(|look| look.nats > nats) {
            let step = step.map_or("all replayed steps".into(), |step| format!("step {step}"));
            return Some(format!("{name}, {step}: {counted}"));
        }
        let share = self.repeated.as_ref()?.same_way()?;
        Some(format!(
            "{name}, all replayed steps: decisions about one element in several steps go the same way {:.0} % more often than opposite \
             ways, of an honest kernel's at most {:.0} %",
            100.0 * share,
            100.0 * SAME_WAY_MAX
        ))
    }

    /// The largest bias that decisions against the nearest value can hide without failing the test: the sum of the elements'
    /// shifts, relative to the sum of the elements' absolute values.
    pub(crate) fn hidden(&self, nats: f64, taken_max: [f64; 2]) -> f64 {
        let repeated = self.decisions as f64 / self.values.max(1) as f64;
        let most = most_taken(self.values, nats, taken_max) as f64 * repeated;
        let (mut left, mut sum) = (most.ceil() as u64, 0.0);
        for (&shift, &count) in self.shifts.iter().rev() {
            let chosen = count.min(left);
            sum += chosen as f64 * 2f64.powi(shift);
            left -= chosen;
        }
        if self.size > 0.0 { sum / self.size } else { 0.0 }
    }
}

/// n times the divergence of k/n from p, for k/n above p; otherwise 0. The chance of k or more out of n, each with a chance of at
/// most p, is at most e to minus this number (Chernoff).
fn excess(k: u64, n: u64, p: f64) -> f64 {
    let (k, n) = (k as f64, n as f64);
    if k <= p * n {
        return 0.0;
    }
    let term = |part: f64, of: f64| if part > 0.0 { part * (part / (n * of)).ln() } else { 0.0 };
    term(k, p) + term(n - k, 1.0 - p)
}

/// The largest count out of n that passes with so many nats, both directions together.
pub(crate) fn most_taken(n: u64, nats: f64, taken_max: [f64; 2]) -> u64 {
    let most = |p: f64| {
        let (mut passes, mut fails) = (0, n + 1);
        while passes + 1 < fails {
            let middle = passes + (fails - passes) / 2;
            if excess(middle, n, p) <= nats { passes = middle } else { fails = middle }
        }
        passes
    };
    taken_max.into_iter().map(most).sum::<u64>().min(n)
}

/// Tests in constant memory if signs repeat at the same places. The sketch sums signs over random classes of places, and each
/// place has a random sign of its own (Alon, Matias and Szegedy, 1996). The sum of the squares of `places` is the number of
/// events plus twice the pairs at one place. In the sum of the squares of `signs`, pairs in opposite directions are subtracted.
#[derive(Clone, Debug, PartialEq)]
struct Sketch {
    /// A random seed, which nobody knows before the audit.
    seed: u64,
    events: u64,
    places: Vec<i64>,
    signs: Vec<i64>,
}

impl Sketch {
    fn new() -> Sketch {
        use std::hash::{BuildHasher, RandomState};
        Sketch {
            seed: RandomState::new().hash_one(0u64),
            events: 0,
            places: vec![0; BUCKETS],
            signs: vec![0; BUCKETS],
        }
    }

    fn add(&mut self, place: u64, up: bool) {
        // SplitMix64's finisher.
        let mut word = place.wrapping_add(self.seed);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let (bucket, sign) = (word as usize % BUCKETS, if word >> 63 == 0 { 1 } else { -1 });
        self.events += 1;
        self.places[bucket] += sign;
        self.signs[bucket] += if up { sign } else { -sign };
    }

    /// The share of pairs at one place that go the same way, less the share that go opposite ways; `None` unless it exceeds both
    /// an honest kernel's and chance.
    fn same_way(&self) -> Option<f64> {
        let squares = |sums: &[i64]| sums.iter().map(|&sum| (sum * sum) as f64).sum::<f64>();
        let (all, signed) = (squares(&self.places), squares(&self.signs));
        let events = self.events as f64;
        let noise = SKETCH_SIGMAS * all.max(signed) * (2.0 / BUCKETS as f64).sqrt();
        let (pairs, same) = (all - events, signed - events);
        (self.events >= REPEATED_MIN && same > SAME_WAY_MAX * pairs.max(0.0) + noise)
            .then(|| (same / pairs).clamp(SAME_WAY_MAX, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: [f64; 2] = [0.17, 0.02];

    #[test]
    fn the_most_that_pass_is_where_the_test_begins_to_fail() {
        for n in [10u64, 200, 100_000] {
            let most = most_taken(n, 25.0, [0.05, 0.0]);
            assert!(excess(most, n, 0.05) <= 25.0);
            assert!(most == n || excess(most + 1, n, 0.05) > 25.0);
        }
        assert_eq!(most_taken(0, 25.0, MAX), 0);
        assert_eq!(excess(5, 100, 0.05), 0.0);
        // 7 of 7: the result is -n ln p.
        assert!((excess(7, 7, 0.5) - 7.0 * 2f64.ln()).abs() < 1e-12);
    }

    /// A step with 1000 decisions about as many values; `taken` of them go towards zero and away from it.
    fn step(class: ProductClass, taken: [u64; 2]) -> Choices {
        let mut step = Choices::new(class, "layer");
        (step.elements, step.size) = (100_000, 1.0);
        step.add_free(&BTreeMap::from([(-8, 900), (-3, 100)]));
        let away = (0..taken[1]).map(|value| (value, true));
        let mut taken: Vec<(u64, bool)> = (0..taken[0]).map(|value| (value, false)).chain(away).collect();
        step.count(&mut (0..1000).collect(), &mut taken);
        step
    }

    fn total(steps: impl IntoIterator<Item = Choices>) -> Choices {
        let mut total = Choices::new(ProductClass::LinearDw, "layer");
        for (number, step) in (1..).zip(steps) {
            total.class = step.class;
            total.add(number, &step, MAX);
        }
        total
    }

    #[test]
    fn steering_one_product_is_seen_whatever_the_others_do() {
        use ProductClass::{Linear, LinearDw};
        let honest = || vec![step(LinearDw, [15, 15]); 50];
        let seen = total(honest());
        assert_eq!((seen.unexplained(30.0, MAX), seen.decisions), (None, 50_000));
        let bias = seen.hidden(30.0, MAX);
        assert_eq!(bias, 5000.0 / 8.0 / 50.0 + (most_taken(50_000, 30.0, MAX) - 5000) as f64 / 256.0 / 50.0);
        // One step, half of whose decisions are taken.
        let why = total(honest().into_iter().chain([step(LinearDw, [250, 250])])).unexplained(30.0, MAX);
        let why = why.expect("steered");
        assert!(why.starts_with("linear_dw of layer, step 51: 250 of 1000 values are rounded away"), "{why}");
        // A few decisions in each step: no step stands out alone. In a forward pass the steps may be identical.
        for (class, says) in [(LinearDw, true), (Linear, false)] {
            let why = total(vec![step(class, [0, 30]); 50]).unexplained(30.0, MAX);
            assert_eq!(why.is_some(), says, "{why:?}");
            assert!(why.is_none_or(|why| why.contains("all replayed steps: 1500 of 50000")));
        }
        // Kernels that truncate round towards zero, as far as their thresholds were calibrated to them.
        assert_eq!(total(vec![step(LinearDw, [160, 5]); 50]).unexplained(30.0, MAX), None);
        assert!(total(vec![step(LinearDw, [200, 5]); 50]).unexplained(30.0, MAX).is_some());

        let mut free = step(LinearDw, [0, 0]);
        free.add_free(&BTreeMap::from([(0, 5000)]));
        assert!(free.unexplained(30.0, MAX).expect("free").contains("6.0 % of its values"));
    }

    #[test]
    fn equal_values_count_once() {
        let mut choices = Choices::new(ProductClass::Linear, "layer");
        choices.count(&mut vec![1, 1, 1, 2], &mut vec![(1, true), (1, true), (1, false)]);
        assert_eq!((choices.decisions, choices.values, choices.taken), (4, 2, [1, 1]));
    }

    #[test]
    fn the_same_elements_going_the_same_way_again_and_again_are_seen() {
        // Two series of 2000 events: 100 elements that each occur 20 times, and 2000 elements that each occur once.
        for (places, ways, seen) in
            [(100u64, 1u64, true), (100, 2, false), (2000, 1, false), (2000, 2, false)]
        {
            let mut total = Choices::new(ProductClass::LinearDw, "layer");
            for event in 0..2000 {
                total.note(event % places, ways == 1 || event / places % 2 == 0);
            }
            assert_eq!(total.unexplained(30.0, MAX).is_some(), seen, "{places} {ways}");
        }
    }
}

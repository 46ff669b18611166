//! The search for near ties in the results of a native product, on all threads. A fast test without branches marks candidates;
//! the rule itself ([`Product::near_tie`]) decides.

use rayon::prelude::*;

use tiebreak_contract::arith::rounding_grid::{FLOOR_MAX, field};
use tiebreak_engine::cpu::product::simd::{Path, vectorised};
use tiebreak_record::rounding::Decision;
use tiebreak_record::rounding::near_tie::{NearTie, Product};
use tiebreak_record::rounding::search::NearTieCandidate;

/// The number of elements whose fast tests are one loop.
const RUN: usize = 512;

/// The near ties among the results of a native product.
pub trait Search {
    /// Every near tie of `results` ([batch, M, N] in one part or two), in order.
    ///
    /// # Errors
    /// The index of a result that is not finite: a native kernel that overflows cannot be logged.
    fn near_ties(&self, results: &[u32]) -> Result<Vec<NearTie>, usize>;

    /// The decisions that an honest trainer logs: one for every near tie, in order. `None` if a tolerance spans more values of
    /// the grid than a decision tells apart.
    ///
    /// # Errors
    /// As [`Search::near_ties`].
    fn decisions(&self, results: &[u32]) -> Result<Option<Vec<Decision>>, usize>;

    /// Calls `visit` for every near tie, with the first and last index that its element may round to. Each task has an
    /// accumulator of its own; all are returned in the order of their elements.
    ///
    /// # Errors
    /// As [`Search::near_ties`].
    fn fold<T: Send>(
        &self,
        results: &[u32],
        new: impl Fn() -> T + Sync,
        visit: impl Fn(&mut T, NearTie, [i64; 2]) + Sync,
    ) -> Result<Vec<T>, usize>;

    /// [`Search::decisions`] on the whole results, out of the candidates of an engine: every result that the fast test marks, in
    /// any order.
    ///
    /// # Errors
    /// As [`Search::near_ties`].
    fn decisions_among(&self, found: Vec<NearTieCandidate>) -> Result<Option<Vec<Decision>>, usize>;

    /// [`Search::fold`] on the whole results, out of such candidates.
    ///
    /// # Errors
    /// As [`Search::near_ties`].
    fn fold_among<T: Send>(
        &self,
        found: Vec<NearTieCandidate>,
        new: impl Fn() -> T + Sync,
        visit: impl Fn(&mut T, NearTie, [i64; 2]) + Sync,
    ) -> Result<Vec<T>, usize>;
}

impl Search for Product<'_> {
    fn near_ties(&self, results: &[u32]) -> Result<Vec<NearTie>, usize> {
        let parts = self.fold(results, Vec::new, |all: &mut Vec<NearTie>, tie, _| all.push(tie))?;
        Ok(parts.into_iter().flatten().collect())
    }

    fn decisions(&self, results: &[u32]) -> Result<Option<Vec<Decision>>, usize> {
        Ok(all_of(self.fold(results, || Some(Vec::new()), |all, tie, _| decide(all, &tie))?))
    }

    fn fold<T: Send>(
        &self,
        results: &[u32],
        new: impl Fn() -> T + Sync,
        visit: impl Fn(&mut T, NearTie, [i64; 2]) + Sync,
    ) -> Result<Vec<T>, usize> {
        let [batch, m, n, _] = self.dims;
        let elements = batch * m * n;
        if elements == 0 {
            return Ok(Vec::new());
        }
        let (high, low) = results.split_at(elements);
        let rows_per_task = (1usize << 15).div_ceil(n);
        let tasks = high.par_chunks(rows_per_task * n).enumerate();
        tasks
            .map(|(task, rows)| {
                let mut found = new();
                for (row, results) in rows.chunks(n).enumerate() {
                    let row = task * rows_per_task + row;
                    let low = if low.is_empty() { &[][..] } else { &low[row * n..][..n] };
                    mark_row(self, row, results, low, &mut |column| {
                        let (place, error) = (row * n + column, low.get(column).copied());
                        if let Some((tie, range)) = self.near_tie(place, results[column], error)? {
                            visit(&mut found, tie, range);
                        }
                        Ok(())
                    })?;
                }
                Ok(found)
            })
            .collect()
    }

    fn decisions_among(&self, found: Vec<NearTieCandidate>) -> Result<Option<Vec<Decision>>, usize> {
        Ok(all_of(self.fold_among(found, || Some(Vec::new()), |all, tie, _| decide(all, &tie))?))
    }

    fn fold_among<T: Send>(
        &self,
        mut found: Vec<NearTieCandidate>,
        new: impl Fn() -> T + Sync,
        visit: impl Fn(&mut T, NearTie, [i64; 2]) + Sync,
    ) -> Result<Vec<T>, usize> {
        found.par_sort_unstable_by_key(|candidate| candidate.place);
        let tasks = found.par_chunks(1 << 12).map(|candidates| {
            let mut all = new();
            for &NearTieCandidate { place, high, rounding_error } in candidates {
                let error = self.rule.is_wide().then_some(rounding_error);
                if let Some((tie, range)) = self.near_tie(place as usize, high, error)? {
                    visit(&mut all, tie, range);
                }
            }
            Ok(all)
        });
        tasks.collect()
    }
}

/// Appends the honest decision about a near tie. Decisions are `None` from the first one on that needs too many bits.
fn decide(all: &mut Option<Vec<Decision>>, tie: &NearTie) {
    match (all.as_mut(), tie.decision(tie.rounded)) {
        (Some(decisions), Some(decision)) => decisions.push(decision),
        _ => *all = None,
    }
}

/// The decisions of all tasks, in order.
fn all_of(parts: Vec<Option<Vec<Decision>>>) -> Option<Vec<Decision>> {
    Some(parts.into_iter().collect::<Option<Vec<_>>>()?.concat())
}

/// Passes to `marked` every result of a row that the fast test marks.
fn mark_row(
    product: &Product<'_>,
    row: usize,
    high: &[u32],
    low: &[u32],
    marked: &mut dyn FnMut(usize) -> Result<(), usize>,
) -> Result<(), usize> {
    let [_, m, n, k] = product.dims;
    let columns = row / m * n;
    let scan = RowTest {
        offset: field(product.a.absmaxes[row]) + product.rule.floor_offset(k as u32),
        floored: product.rule.floor != 0,
        least: product.rule.floor_min(),
        bits: i32::from(product.rule.bits),
        scale: product.tolerance.norms * product.a.norms[row] * 1.000_001,
        relative: product.tolerance.relative(product.rule),
    };
    let (absmaxes, norms) = (&product.b.absmaxes[columns..][..n], &product.b.norms[columns..][..n]);
    let mut near = [0u8; RUN];
    for first in (0..n).step_by(RUN) {
        let len = RUN.min(n - first);
        let near = &mut near[..len];
        let part = first..first + len;
        if scan.bits == 32 {
            mark_binary32(Path::fastest(), &high[part.clone()], &low[part.clone()], &norms[part], scan, near);
        } else {
            mark(Path::fastest(), &high[part.clone()], &absmaxes[part.clone()], &norms[part], scan, near);
        }
        for (group, marks) in near.chunks(8).enumerate() {
            if marks == [0; 8] {
                continue;
            }
            for i in (0..marks.len()).filter(|&i| marks[i] != 0) {
                marked(first + group * 8 + i)?;
            }
        }
    }
    Ok(())
}

/// The inputs of the fast test that are constant over a row.
#[derive(Clone, Copy)]
struct RowTest {
    /// The floor's exponent without the column's field.
    offset: i32,
    floored: bool,
    least: i32,
    bits: i32,
    /// The tolerance without the column's norm; then the tolerance for each unit of the result.
    scale: f32,
    relative: f32,
}

impl RowTest {
    #[inline(always)]
    fn tolerance(self, norm: f32, x: u32) -> f32 {
        self.scale * norm + self.relative * f32::from_bits(x & 0x7fff_ffff)
    }
}

vectorised! {
    /// Marks the elements that may be near ties.
    fn mark(high: &[u32], absmaxes: &[u32], norms: &[f32], row: RowTest, near: &mut [u8]) {
        for (((near, &x), &absmax), &norm) in near.iter_mut().zip(high).zip(absmaxes).zip(norms) {
            let floor = (field(absmax) + row.offset).clamp(row.least, FLOOR_MAX);
            let floor = if row.floored { floor } else { row.least };
            *near = u8::from(may_be_near(x, floor, row.bits, row.tolerance(norm, x)));
        }
    }
}

vectorised! {
    /// `mark` for binary32 itself.
    fn mark_binary32(high: &[u32], low: &[u32], norms: &[f32], row: RowTest, near: &mut [u8]) {
        for (((near, &x), &error), &norm) in near.iter_mut().zip(high).zip(low).zip(norms) {
            *near = u8::from(may_be_near_binary32(x, error, row.tolerance(norm, x)));
        }
    }
}

/// A test without branches that every near tie passes. True if x lies within the tolerance, or half a unit of binary32, of a
/// boundary of its own step; also if x is too extreme to tell.
#[inline(always)]
fn may_be_near(x: u32, floor: i32, bits: i32, tolerance: f32) -> bool {
    let biased = (x >> 23 & 0xff) as i32;
    let normal = biased.max(1);
    let mantissa = (x & 0x007f_ffff) | (u32::from(biased != 0) << 23);
    // The step is 2^dropped units of x's last digit.
    let dropped = (floor + 150 - normal).max(32 - bits);
    let shift = dropped.clamp(0, 26) as u32;
    let half = (1u32 << shift) >> 1;
    let rest = mantissa & ((1u32 << shift) - 1);
    let distance = rest.abs_diff(half) as f32;
    // The tolerance in units of x's last digit, 2^(normal - 150).
    let unit = f32::from_bits(((277 - normal).clamp(1, 254) as u32) << 23);
    let reach = tolerance * unit + 1.0;
    // Values far below the floor, or too small for the units above, are near if they may not round to zero.
    let small = biased < 24 || dropped > 26;
    let quarter = if floor > -124 { f32::from_bits(((floor + 125) as u32) << 23) } else { 0.0 };
    let above_zero = f32::from_bits(x & 0x7fff_ffff) + tolerance > quarter;
    let near = (distance <= reach) | (reach >= (half >> 1) as f32);
    (biased == 255) | if small { above_zero } else { near }
}

/// The same test for binary32 itself: true if the residue of x is nearly half a unit of x, or a quarter of one below a power of
/// two.
#[inline(always)]
fn may_be_near_binary32(x: u32, error: u32, tolerance: f32) -> bool {
    let biased = x >> 23 & 0xff;
    // Half a unit in the last place is 2^(biased - 151), here a little less because of the roundings in this test.
    let half = f32::from_bits(biased.saturating_sub(24).max(1) << 23) * 0.999_999;
    let least = if x & 0x007f_ffff == 0 { half * 0.5 } else { half };
    !(26..255).contains(&biased) | (f32::from_bits(error & 0x7fff_ffff) + tolerance >= least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::arith::rounding_grid::GridRule;
    use tiebreak_record::rounding::near_tie::{Side, Tolerance};

    fn by_norms(norms: f32) -> Tolerance {
        Tolerance { norms, ..Tolerance::default() }
    }

    /// The near tie of one element with given norms, if it is one.
    fn one(rule: GridRule, value: f32, threshold: f32) -> Option<NearTie> {
        let side = || Side { absmaxes: vec![0x3f80_0000], norms: vec![1.0] };
        let (a, b) = (side(), side());
        let product = Product { dims: [1, 1, 1, 64], rule, a: &a, b: &b, tolerance: by_norms(threshold) };
        product.near_ties(&[value.to_bits()]).expect("finite").pop()
    }

    const BF16: GridRule = GridRule { bits: 16, floor: 0 };

    /// The paper's figure on when to log: the boundary between two values of the grid lies between the machines' results.
    #[test]
    fn case_a_results_on_two_sides_of_a_boundary_take_the_logged_side() {
        let (boundary, error) = (1.0 + 2f32.powi(-8), 2f32.powi(-20));
        let (trainer, auditor) = (boundary + error, boundary - error);
        let tie = one(BF16, trainer, 4.0 * error).expect("a near tie");
        let index = tie.grid.index(f64::from(trainer));
        let decision = tie.decision(index).expect("one bit");
        assert_eq!(decision.bits, 1);
        assert_ne!(tie.grid.index(f64::from(auditor)), index, "without the log they differ");
        assert_eq!(decision.index(tie.grid, f64::from(auditor)), index);
    }

    /// Both results lie on one side of a value of the grid, or on its two sides: the roundings agree and nothing is logged.
    #[test]
    fn cases_b_and_c_results_about_a_value_of_the_grid_are_not_logged() {
        let (value, error) = (1.0f32 + 2f32.powi(-7), 2f32.powi(-20));
        for trainer in [value + error, value - error, value] {
            assert!(one(BF16, trainer, 4.0 * error).is_none());
        }
    }

    #[test]
    fn a_tolerance_of_several_steps_logs_several_bits() {
        // A result far below its scale: the tolerance is 40 steps of its grid.
        let value = 2f32.powi(-30);
        let tolerance = 40.0 * 2f32.powi(-37);
        let tie = one(BF16, value, tolerance).expect("logged");
        let index = tie.grid.index(f64::from(value));
        let decision = tie.decision(index).expect("fits");
        assert!((7..=9).contains(&decision.bits), "{}", decision.bits);
        for auditor in [value - tolerance, value + tolerance] {
            assert_eq!(decision.index(tie.grid, f64::from(auditor)), index);
        }
        // With a floor, the decision takes one bit, or is not needed.
        assert!(one(GridRule { bits: 16, floor: 14 }, value, tolerance).is_none());
    }

    #[test]
    fn the_fast_test_misses_nothing() {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for rule in [BF16, GridRule { bits: 16, floor: 12 }, GridRule { bits: 26, floor: 0 }] {
            let mut ties = 0;
            for _ in 0..300_000 {
                let value = f32::from_bits(next());
                if !value.is_finite() {
                    continue;
                }
                let tolerance = value.abs() * 2f32.powi(-((next() % 30) as i32));
                let grid = rule.grid(64, 0x3f80_0000, 0x3f80_0000);
                let [low, high] =
                    [-1.0, 1.0].map(|s| grid.index(f64::from(value) + s * f64::from(tolerance)));
                let expected = low != high;
                ties += u32::from(expected);
                assert_eq!(
                    one(rule, value, tolerance).is_some(),
                    expected,
                    "{value:e} {tolerance:e} {rule:?}"
                );
            }
            assert!(ties > 1000);
        }
    }

    /// A binary64 result a hair beyond a tie, whose residue is exactly half a unit in binary32: the decision is the side that the
    /// trainer rounded to.
    #[test]
    fn a_rest_that_was_rounded_to_a_tie_keeps_its_side() {
        let rule = GridRule { bits: 32, floor: 0 };
        let side = Side { absmaxes: vec![0x3f80_0000], norms: vec![1.0] };
        let product =
            Product { dims: [1, 1, 1, 64], rule, a: &side, b: &side, tolerance: by_norms(2f32.powi(-40)) };
        for even in [1.0f32, 1.0 + 2.0 * f32::EPSILON] {
            let odd = even + f32::EPSILON;
            let v = (f64::from(even) + f64::from(odd)) / 2.0 + f64::EPSILON;
            assert_eq!(v as f32, odd);
            let parts = [odd.to_bits(), ((v - f64::from(odd)) as f32).to_bits()];
            let tie = product.near_ties(&parts).unwrap().pop().expect("a near tie");
            assert_eq!(tie.grid.pattern(tie.rounded), odd.to_bits());
            let decision = tie.decision(tie.rounded).unwrap();
            // The auditor may see the tie itself, or either side.
            for x in [tie.value, v, v - 4.0 * f64::EPSILON] {
                assert_eq!(tie.grid.pattern(decision.index(tie.grid, x)), odd.to_bits());
            }
        }
    }

    /// A tolerance of a quarter of a step: the paper logs every result between two values, whatever its size, with one bit each.
    #[test]
    fn tolerances_in_steps_are_the_papers() {
        for bits in [32u8, 28] {
            let rule = GridRule { bits, floor: 0 };
            let side = Side { absmaxes: vec![0], norms: vec![0.0] };
            let steps = 0.25 - 2f32.powi(-24);
            let tolerance = Tolerance { steps, ..Tolerance::default() };
            let product = Product { dims: [1, 1, 1, 64], rule, a: &side, b: &side, tolerance };
            for scale in [1e-30f64, 3e-9, 0.7, 1.0, 5e12] {
                let grid = product.grid(0);
                let (value, next) = (grid.value(grid.index(scale)), grid.value(grid.index(scale) + 1));
                for (part, logged) in
                    [(0.0, false), (0.2, false), (0.3, true), (0.5, true), (0.7, true), (0.8, false)]
                {
                    let v = value + part * (next - value);
                    let parts = [(v as f32).to_bits(), ((v - f64::from(v as f32)) as f32).to_bits()];
                    let tie = product.near_ties(&parts).unwrap().pop();
                    assert_eq!(tie.is_some(), logged, "{bits} {scale} {part}");
                    assert!(tie.is_none_or(|tie| tie.decision(tie.rounded).is_some_and(|d| d.bits == 1)));
                }
            }
        }
    }

    /// Rows without a common nonzero position give a zero that the norms do not foresee. Small results that are not zero stay
    /// refused.
    #[test]
    fn a_zero_whose_tolerance_spans_the_grid_is_not_logged() {
        let side = Side { absmaxes: vec![0x3f80_0000; 2], norms: vec![1.0; 2] };
        for bits in [16u8, 28, 32] {
            let rule = GridRule { bits, floor: 0 };
            let tolerance = by_norms(2f32.powi(-49));
            let product = Product { dims: [1, 2, 2, 16], rule, a: &side, b: &side, tolerance };
            let mut parts = vec![0x3f80_0000, 0, 0x8000_0000, 0x3f00_0000];
            parts.resize(if rule.is_wide() { 8 } else { 4 }, 0);
            assert_eq!(product.decisions(&parts), Ok(Some(Vec::new())), "{bits}");
            parts[1] = 2f32.powi(-90).to_bits();
            assert_eq!(product.decisions(&parts), Ok(None), "{bits}");
            // If the tolerance spans few values, a zero is logged too.
            let tiny = Side { absmaxes: vec![0x3f80_0000; 2], norms: vec![2f32.powi(-47); 2] };
            let product = Product { a: &tiny, b: &tiny, tolerance: by_norms(2f32.powi(-50)), ..product };
            parts[1] = 0;
            let logged = product.decisions(&parts).expect("finite").expect("few bits").len();
            assert_eq!(logged, if bits == 16 { 0 } else { 2 }, "{bits}");
        }
    }

    #[test]
    fn results_that_are_not_finite_are_refused() {
        let side = Side { absmaxes: vec![0x3f80_0000; 2], norms: vec![1.0; 2] };
        let product =
            Product { dims: [1, 1, 2, 4], rule: BF16, a: &side, b: &side, tolerance: by_norms(1e-6) };
        assert_eq!(product.near_ties(&[0, 0x7f80_0000]).err(), Some(1));
    }
}

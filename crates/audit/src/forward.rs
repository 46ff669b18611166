//! Forward passes over a run's checkpoints: the losses of samples before and after the segment that draws them, and how far the
//! parameters moved. Nothing is replayed.

use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_engine::{Engine, Tensor};
use tiebreak_job::data::Dataset;
use tiebreak_record::commit::record::Record;
use tiebreak_run::evaluate::Evaluator;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::states::State;

use super::checks::{self, Checked};
use super::report::AuditError;

/// The tensors of one sample.
type Sample = [Vec<u8>; 2];

/// The samples that are looked at, by a seed: one from each of equal parts of all.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The share of a segment's samples, 0 to 1.
    pub share: f64,
    /// The least number of samples of a segment, if it has so many.
    pub least: u64,
    /// The most samples of a segment, and the most held-out ones.
    pub most: u64,
    /// The seed of the draws.
    pub seed: u64,
}

/// The reason for a draw, which keeps draws apart.
#[derive(Clone, Copy)]
enum Purpose {
    Points,
    HeldOut,
    Opening,
}

impl Sampling {
    /// The number of samples that are drawn from a segment of `of` samples.
    pub fn count(&self, of: u64) -> u64 {
        ((self.share * of as f64).ceil() as u64).max(self.least).min(self.most).min(of)
    }

    /// `count` different numbers below `of`, ascending: one of each of `count` parts.
    fn drawn(&self, of: u64, count: u64, purpose: Purpose, first: u32) -> Vec<u64> {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let begin = |i: u64| (u128::from(of) * u128::from(i) / u128::from(count)) as u64;
        let number = |i: u64| {
            let words = philox4x32_10(key, [i as u32, (i >> 32) as u32, first, purpose as u32]);
            let word = u64::from(words[0]) | u64::from(words[1]) << 32;
            let width = begin(i + 1) - begin(i);
            begin(i) + ((u128::from(word) * u128::from(width)) >> 64) as u64
        };
        (0..count).map(number).collect()
    }
}

/// The measurements of a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// The first step; the state before it is a checkpoint.
    pub first: u32,
    /// The last step; the state after it is a checkpoint.
    pub last: u32,
    /// Samples that the segment draws.
    pub drawn: u64,
    /// For samples that the segment draws: the losses before the segment and after it.
    pub points: Vec<[f64; 2]>,
    /// The same for held-out samples, the same ones for each segment.
    pub held: Vec<[f64; 2]>,
    /// For samples of the first step's batch: the losses before the segment.
    pub opening: Vec<f64>,
    /// The Euclidean norm of the change of all parameters.
    pub change: f64,
    /// The cosine of the angle between this change and that of the segment before, if both are changes.
    pub cosine: Option<f64>,
    /// Steps, among those that were looked at, whose records commit another batch than seed and data draw.
    pub other_batches: Vec<u32>,
}

/// The measurements of a run.
#[derive(Debug, Default)]
pub struct Passes {
    /// The segments between readable checkpoints, in order.
    pub segments: Vec<Pass>,
    /// The checkpoints that could not be read, or hold another state than their record commits. Segments beside them are left out.
    pub unreadable: Vec<RunError>,
}

/// The data that losses are computed of.
pub struct Data {
    /// The evaluation of a batch.
    pub evaluator: Evaluator,
    /// The run's data.
    pub dataset: Dataset,
    /// Data that no step draws.
    pub held: Option<Dataset>,
}

/// The steps after which a state may be readable, ascending.
pub fn borders(run: &Run, checked: &Checked) -> Result<Vec<u32>, RunError> {
    let covered = checked.transcript.records.iter().filter(|record| matches!(record, Record::Step { .. }));
    let last = covered.count() as u32;
    let kept = run.checkpoint_steps()?.into_iter().filter(|step| (1..=last).contains(step));
    Ok([0].into_iter().chain(kept).collect())
}

/// The samples that all segments draw together, and the samples of the largest segment.
pub fn sizes(run: &Run, borders: &[u32]) -> (u64, u64) {
    let samples = u64::from(run.program().samples());
    let steps = borders.windows(2).map(|pair| u64::from(pair[1] - pair[0]));
    (steps.clone().sum::<u64>() * samples, steps.max().unwrap_or(0) * samples)
}

/// Bytes of memory that the passes take, without the evaluation of a batch.
pub fn memory(run: &Run, borders: &[u32], sampling: &Sampling) -> u64 {
    let program = run.program();
    let sample: u64 = program.sample().iter().map(|tensor| tensor.ty().bytes() as u64).sum();
    let points = sampling.count(sizes(run, borders).1);
    let opening = sampling.most.min(program.samples().into());
    let parts = [
        run.state_memory().saturating_mul(2),
        run.batch_memory().saturating_mul(2),
        sample.saturating_mul(points + points + opening),
        (points + sampling.most).saturating_mul(64),
    ];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Computes the losses at each border, and the changes between borders. Without `data` there are changes alone. `progress`
/// receives the number of samples done and the total.
///
/// # Errors
/// If the engine fails, data cannot be read, or a state takes too much memory. A damaged checkpoint is no error.
pub fn passes(
    run: &Run,
    checked: &Checked,
    borders: &[u32],
    engine: &mut dyn Engine,
    data: Option<Data>,
    sampling: &Sampling,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Passes, AuditError> {
    let held = data.as_ref().and_then(|data| data.held.as_ref()).map_or(0, Dataset::samples_in_order);
    let count = sampling.count(sizes(run, borders).1).saturating_mul(2).min(sampling.most).min(held);
    let held = sampling.drawn(held, count, Purpose::HeldOut, 0);
    let mut walk = Walk { run, checked, engine, data, sampling, held, done: 0, total: 0, progress };
    walk.total = walk.planned(borders);
    let (mut passes, mut before): (Passes, Option<Before>) = (Passes::default(), None);
    for (i, &step) in borders.iter().enumerate() {
        let state = match checks::state_after(run, checked, step) {
            Ok(state) => state,
            Err(error @ RunError::Memory { .. }) => return Err(error.into()),
            Err(error) => {
                passes.unreadable.push(error);
                before = None;
                continue;
            }
        };
        let (pass, next) = walk.border(before.take(), step, borders.get(i + 1).copied(), state)?;
        passes.segments.extend(pass);
        before = Some(next);
    }
    Ok(passes)
}

/// The measurements of one border, kept until the next one.
struct Before {
    step: u32,
    parameters: State,
    /// The change of the parameters on the way to this border.
    change: Option<Vec<f32>>,
    held: Vec<f64>,
    points: Vec<Sample>,
    losses: Vec<f64>,
    opening: Vec<f64>,
    other_batches: Vec<u32>,
}

/// A walk along the borders.
struct Walk<'a> {
    run: &'a Run,
    checked: &'a Checked,
    engine: &'a mut dyn Engine,
    data: Option<Data>,
    sampling: &'a Sampling,
    /// Places of the held-out samples.
    held: Vec<u64>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Walk<'_> {
    /// The number of samples of all passes.
    fn planned(&self, borders: &[u32]) -> u64 {
        if self.data.is_none() {
            return 0;
        }
        let samples = u64::from(self.run.program().samples());
        let segments = borders.windows(2).map(|pair| u64::from(pair[1] - pair[0]) * samples);
        let opening = samples.min(self.sampling.most);
        let points: u64 = segments.map(|of| 2 * self.sampling.count(of) + opening).sum();
        points + borders.len() as u64 * self.held.len() as u64
    }

    /// Ends the segment before a border, and begins the one after it.
    fn border(
        &mut self,
        before: Option<Before>,
        step: u32,
        next: Option<u32>,
        mut state: State,
    ) -> Result<(Option<Pass>, Before), AuditError> {
        let program = self.run.program();
        state.truncate(program.released());
        let mut here = Before {
            step,
            parameters: Vec::new(),
            change: None,
            held: Vec::new(),
            points: Vec::new(),
            losses: Vec::new(),
            opening: Vec::new(),
            other_batches: Vec::new(),
        };
        let mut after = Vec::new();
        if let Some(mut data) = self.data.take() {
            let table = program.state();
            let tensors =
                table.iter().zip(&state).map(|(tensor, bytes)| self.engine.upload(&tensor.ty(), bytes));
            let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
            let result = self.losses(&mut data, &tensors, before.as_ref(), &mut here, next);
            self.data = Some(data);
            after = result?;
        }
        state.truncate(program.parameters.len());
        here.parameters = state;
        let pass = before.map(|before| self.pass(before, &mut here, after));
        Ok((pass, here))
    }

    /// The losses at a border, whose released tensors are given: those of the segment's points that ends here are returned, all
    /// others are kept in `here`.
    fn losses(
        &mut self,
        data: &mut Data,
        tensors: &[Tensor],
        before: Option<&Before>,
        here: &mut Before,
        next: Option<u32>,
    ) -> Result<Vec<f64>, AuditError> {
        let sample = self.run.program().sample();
        if let Some(held) = &mut data.held {
            for places in self.held.clone().chunks(64) {
                let batch = held.batch_in_order(places.iter().copied()).map_err(RunError::from)?;
                let samples: Vec<Sample> =
                    (0..places.len()).map(|row| row_of(&batch.tensors, row, places.len())).collect();
                here.held.extend(self.means(&data.evaluator, tensors, &sample, &samples)?);
            }
        }
        let after = match before {
            Some(before) => self.means(&data.evaluator, tensors, &sample, &before.points)?,
            None => Vec::new(),
        };
        let Some(last) = next else { return Ok(after) };
        let (first, samples) = (here.step + 1, u64::from(self.run.program().samples()));
        let all = u64::from(last - here.step) * samples;
        let places = self.sampling.drawn(all, self.sampling.count(all), Purpose::Points, first);
        for of_step in places.chunk_by(|a, b| a / samples == b / samples) {
            let step = first + (of_step[0] / samples) as u32;
            let places: Vec<u64> = of_step.iter().map(|place| place % samples).collect();
            here.points.extend(self.rows(&mut data.dataset, step, &places, &mut here.other_batches)?);
        }
        here.losses = self.means(&data.evaluator, tensors, &sample, &here.points)?;
        let places = self.sampling.drawn(samples, samples.min(self.sampling.most), Purpose::Opening, first);
        let opening = self.rows(&mut data.dataset, first, &places, &mut here.other_batches)?;
        here.opening = self.means(&data.evaluator, tensors, &sample, &opening)?;
        here.other_batches.sort_unstable();
        here.other_batches.dedup();
        Ok(after)
    }

    /// Samples at places of a step's batch. The step is noted if its record commits another batch.
    fn rows(
        &self,
        dataset: &mut Dataset,
        step: u32,
        places: &[u64],
        others: &mut Vec<u32>,
    ) -> Result<Vec<Sample>, RunError> {
        let (batch, program) = (self.run.batch(dataset, step)?, self.run.program());
        if self.run.computation.batch_digest(step, &batch) != self.checked.step(step)?.batch {
            others.push(step);
        }
        let rows = program.micro_batch as usize;
        let row = |&place: &u64| row_of(&batch[place as usize / rows].tensors, place as usize % rows, rows);
        Ok(places.iter().map(row).collect())
    }

    /// The mean loss of each sample; NaN if it has no label that counts.
    fn means(
        &mut self,
        evaluator: &Evaluator,
        tensors: &[Tensor],
        sample: &[BatchTensor],
        samples: &[Sample],
    ) -> Result<Vec<f64>, AuditError> {
        let mut means = Vec::with_capacity(samples.len());
        for part in samples.chunks(64) {
            let part: Vec<&Sample> = part.iter().collect();
            let found = evaluator.sample_losses(self.engine, tensors, sample, &part)?;
            means.extend(found.into_iter().map(|loss| loss.unwrap_or(f64::NAN)));
            self.done += part.len() as u64;
            (self.progress)(self.done, self.total);
        }
        Ok(means)
    }

    /// The measurements of the segment between two borders.
    fn pass(&self, before: Before, here: &mut Before, after: Vec<f64>) -> Pass {
        let change = difference(&before.parameters, &here.parameters);
        let norm = dot(&change, &change).sqrt();
        let cosine = before.change.as_ref().and_then(|earlier| {
            let product = norm * dot(earlier, earlier).sqrt();
            (product > 0.0).then(|| dot(earlier, &change) / product)
        });
        here.change = Some(change);
        let pairs =
            |before: Vec<f64>, after: &[f64]| before.into_iter().zip(after).map(|(b, a)| [b, *a]).collect();
        Pass {
            first: before.step + 1,
            last: here.step,
            drawn: u64::from(here.step - before.step) * u64::from(self.run.program().samples()),
            points: pairs(before.losses, &after),
            held: pairs(before.held, &here.held),
            opening: before.opening,
            change: norm,
            cosine,
            other_batches: before.other_batches,
        }
    }
}

/// The tensors of one of `rows` samples.
fn row_of(tensors: &[Vec<u8>], row: usize, rows: usize) -> Sample {
    [0, 1].map(|tensor| {
        let bytes: &[u8] = &tensors[tensor];
        let len = bytes.len() / rows;
        bytes[row * len..(row + 1) * len].to_vec()
    })
}

/// The differences of all numbers of two lists of tensors.
fn difference(before: &[Vec<u8>], after: &[Vec<u8>]) -> Vec<f32> {
    let number = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    let pairs = before.iter().zip(after).flat_map(|(b, a)| b.chunks_exact(4).zip(a.chunks_exact(4)));
    pairs.map(|(b, a)| number(a) - number(b)).collect()
}

/// The scalar product, in binary64.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_take_one_sample_of_each_part() {
        let sampling = Sampling { share: 0.01, least: 10, most: 40, seed: 7 };
        assert_eq!([5, 10, 1000, 2001, 9000].map(|of| sampling.count(of)), [5, 10, 10, 21, 40]);
        let mut seen = [0u32; 30];
        for first in 0..3000 {
            let drawn = sampling.drawn(30, 10, Purpose::Points, first);
            assert!(drawn.iter().enumerate().all(|(i, &n)| n as usize / 3 == i), "{drawn:?}");
            drawn.iter().for_each(|&n| seen[n as usize] += 1);
        }
        // Each is expected 1000 times, with a standard deviation of 26.
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        assert_eq!(sampling.drawn(7, 7, Purpose::HeldOut, 0), [0, 1, 2, 3, 4, 5, 6]);
        assert!(sampling.drawn(0, 0, Purpose::Opening, 0).is_empty());
        let other = Sampling { seed: 8, ..sampling };
        let all = [Purpose::Points, Purpose::HeldOut].map(|purpose| sampling.drawn(9000, 40, purpose, 1));
        assert!(all[0] != all[1] && all[0] != other.drawn(9000, 40, Purpose::Points, 1));
    }

    #[test]
    fn changes_have_their_norm_and_angle() {
        let bytes = |numbers: &[f32]| vec![numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()];
        let change = difference(&bytes(&[1.0, 2.0, 0.0]), &bytes(&[4.0, 2.0, -4.0]));
        assert_eq!((change.clone(), dot(&change, &change)), (vec![3.0, 0.0, -4.0], 25.0));
        assert_eq!(row_of(&[vec![1, 2, 3, 4], vec![5, 6]], 1, 2), [vec![3, 4], vec![6]]);
    }
}

//! The suspicion of each segment, from its measurements and from those of its neighbours.

use serde::Serialize;

use super::continuity::jumps;
use super::memory::Memory;
use super::outlier::{Departure, departures};
use super::sign::{CERTAIN, Sign, Weighed};

/// The least standard deviation of the logarithm of a change.
const CHANGE_FLOOR: f64 = 0.02;
/// The least standard deviation of the logarithm of 1 - cosine.
const TURN_FLOOR: f64 = 0.1;
/// Changes with 1 - cosine below this point in one direction, whatever others do.
const ONE_DIRECTION: f64 = 1e-4;
/// The least standard deviation of a difference of losses, as a share of the loss.
const LOSS_FLOOR: f64 = 1e-4;

/// The measurements of a segment between two checkpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// The first step.
    pub first: u32,
    /// The last step.
    pub last: u32,
    /// Losses of points that the segment draws, before it and after it.
    pub points: Vec<[f64; 2]>,
    /// Losses of held-out points, before the segment and after it.
    pub held: Vec<[f64; 2]>,
    /// Losses of samples of the first step's batch, before the segment.
    pub opening: Vec<f64>,
    /// The number of samples of that batch.
    pub opening_of: u64,
    /// The Euclidean norm of the change of all parameters.
    pub change: f64,
    /// The cosine of the angle between this change and the one before.
    pub cosine: Option<f64>,
    /// Steps whose records commit another batch than seed and data draw.
    pub other_batches: Vec<u32>,
}

/// The numbers of a step's record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// The mean loss of the step's batch.
    pub loss: f64,
    /// The learning rate.
    pub rate: f64,
}

/// The levels of a screening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// p of FBQ(p).
    pub quantile: f64,
    /// The confidence of the bound on the share without training.
    pub confidence: f64,
    /// Standard deviations from which a segment is suspicious.
    pub threshold: f64,
}

/// The result of a screening for one segment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Screened {
    /// The first step.
    pub first: u32,
    /// The last step.
    pub last: u32,
    /// The weight of the heaviest sign, in standard deviations, also of one that is no sign yet.
    pub suspicion: f64,
    /// True if that is the threshold or more.
    pub suspicious: bool,
    /// The signs of at least the threshold, the heaviest first.
    pub signs: Vec<Weighed>,
    /// Memorisation, if it was computed.
    pub memory: Option<Memory>,
    /// `remembered` of the memory against segments nearby.
    pub remembered: Option<Departure>,
    /// The recorded loss of the first step minus the checkpoint's, against segments nearby.
    pub opening: Option<Departure>,
    /// The jump of the recorded loss before the first step, and the one after the last step.
    pub jumps: [Option<Departure>; 2],
    /// The logarithm of the change over the sum of learning rates, against segments nearby.
    pub step_size: Option<Departure>,
    /// The logarithm of 1 - cosine, against segments nearby.
    pub turn: Option<Departure>,
}

/// The mean loss of the first step's batch, and the standard error that is due to samples that were left out.
fn opening(segment: &Segment) -> Option<(f64, f64)> {
    let losses: Vec<f64> = segment.opening.iter().copied().filter(|loss| loss.is_finite()).collect();
    let (n, of) = (losses.len() as f64, segment.opening_of as f64);
    if losses.is_empty() {
        return None;
    }
    let mean = losses.iter().sum::<f64>() / n;
    let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let error = (variance / n * (1.0 - n / of).max(0.0)).sqrt();
    Some((mean, if n < 2.0 && of > 1.0 { f64::INFINITY } else { error }))
}

/// Screens segments, in the order of their steps. `steps[i]` is the record of step i + 1. The most suspicious segment comes first;
/// among equals the one with the greatest share that may be without training, then the first.
pub fn screen(segments: &[Segment], steps: &[Recorded], levels: &Levels) -> Vec<Screened> {
    let of_steps = |segment: &Segment| steps.get(segment.first as usize - 1..segment.last as usize);
    let memory: Vec<Option<Memory>> = segments
        .iter()
        .map(|segment| Memory::of(&segment.points, &segment.held, levels.quantile, levels.confidence))
        .collect();
    let remembered = departures(
        &memory.iter().map(|memory| Some(memory.as_ref()?.remembered)).collect::<Vec<_>>(),
        &memory.iter().map(|memory| memory.as_ref().map_or(0.0, |memory| memory.error)).collect::<Vec<_>>(),
    );
    let openings: Vec<Option<(f64, f64)>> = segments.iter().map(opening).collect();
    let recorded = |segment: &Segment| Some(of_steps(segment)?.first()?.loss);
    let differences =
        segments.iter().zip(&openings).map(|(segment, opening)| Some(recorded(segment)? - (*opening)?.0));
    let floors = openings
        .iter()
        .map(|opening| opening.map_or(0.0, |(mean, error)| error.max(LOSS_FLOOR * mean.abs())));
    let opened = departures(&differences.collect::<Vec<_>>(), &floors.collect::<Vec<_>>());
    let size = |segment: &Segment| {
        let rates: f64 = of_steps(segment)?.iter().map(|step| step.rate).sum();
        (segment.change > 0.0 && rates > 0.0).then(|| (segment.change / rates).ln())
    };
    let sizes =
        departures(&segments.iter().map(size).collect::<Vec<_>>(), &vec![CHANGE_FLOOR; segments.len()]);
    let turn = |segment: &Segment| Some((1.0 - segment.cosine?).max(1e-12).ln());
    let turns = departures(&segments.iter().map(turn).collect::<Vec<_>>(), &vec![TURN_FLOOR; segments.len()]);
    let losses: Vec<f64> = steps.iter().map(|step| step.loss).collect();
    let mut borders: Vec<u32> =
        segments.iter().flat_map(|segment| [segment.first - 1, segment.last]).collect();
    borders.dedup();
    let jumps = jumps(&losses, &borders);
    let jump = |step: u32| jumps[borders.binary_search(&step).ok()?];
    let mut screened: Vec<Screened> = (0..segments.len())
        .map(|i| {
            let segment = &segments[i];
            let found = Screened {
                first: segment.first,
                last: segment.last,
                suspicion: 0.0,
                suspicious: false,
                signs: Vec::new(),
                memory: memory[i],
                remembered: remembered[i],
                opening: opened[i],
                jumps: [jump(segment.first - 1), jump(segment.last)],
                step_size: sizes[i],
                turn: turns[i],
            };
            let moves = of_steps(segment).is_some_and(|steps| steps.iter().any(|step| step.rate != 0.0));
            let loss = recorded(segment).zip(openings[i].map(|(mean, _)| mean));
            found.weighed(segment, moves, loss, levels.threshold)
        })
        .collect();
    let untrained = |found: &Screened| found.memory.map_or(0.0, |memory| memory.untrained_most);
    screened.sort_by(|a, b| {
        let heavier = b.suspicion.total_cmp(&a.suspicion);
        heavier.then(untrained(b).total_cmp(&untrained(a))).then(a.first.cmp(&b.first))
    });
    screened
}

impl Screened {
    /// The same with its signs. `moves`: true if some learning rate is not 0. `loss`: recorded and computed, of the first step.
    fn weighed(
        mut self,
        segment: &Segment,
        moves: bool,
        loss: Option<(f64, f64)>,
        threshold: f64,
    ) -> Screened {
        let mut signs = Vec::new();
        if !segment.other_batches.is_empty() {
            signs.push(Weighed::new(Sign::OtherBatch { steps: segment.other_batches.clone() }, CERTAIN));
        }
        if segment.change == 0.0 && moves {
            signs.push(Weighed::new(Sign::Unmoved, CERTAIN));
        }
        signs.extend(self.remembered.map(|found| {
            let sign = Sign::WeakMemory { remembered: found.value, expected: found.expected };
            Weighed::new(sign, -found.sigmas)
        }));
        signs.extend(self.opening.zip(loss).map(|(found, (recorded, computed))| {
            Weighed::new(Sign::OtherLoss { recorded, computed }, found.sigmas.abs())
        }));
        for (jump, after) in self.jumps.iter().zip([segment.first - 1, segment.last]) {
            signs.extend(jump.map(|found| {
                let by = found.value - found.expected;
                Weighed::new(Sign::LossJump { after, by }, found.sigmas.abs())
            }));
        }
        signs.extend(self.step_size.map(|found| {
            let ratio = (found.value - found.expected).exp();
            let sign = if found.sigmas < 0.0 { Sign::SmallStep { ratio } } else { Sign::LargeStep { ratio } };
            Weighed::new(sign, found.sigmas.abs())
        }));
        if let Some(cosine) = segment.cosine {
            let usual = self.turn.map_or(0.0, |found| -found.sigmas);
            let sigmas = if 1.0 - cosine < ONE_DIRECTION { CERTAIN } else { usual };
            signs.push(Weighed::new(Sign::Collinear { cosine }, sigmas));
        }
        self.suspicion = signs.iter().map(|sign| sign.sigmas).fold(0.0, f64::max);
        self.suspicious = self.suspicion >= threshold;
        signs.retain(|sign| sign.sigmas >= threshold);
        signs.sort_by(|a, b| b.sigmas.total_cmp(&a.sigmas));
        self.signs = signs;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: Levels = Levels { quantile: 0.25, confidence: 0.95, threshold: 6.0 };

    /// Losses before and after a segment: held-out ones fall by 0 to 0.19, and those of points by `more` beyond that.
    fn losses(more: f64) -> Vec<[f64; 2]> {
        (0..40).map(|i| [3.0, 3.0 - f64::from(i % 20) / 100.0 - more]).collect()
    }

    /// Twelve honest segments of four steps, and their records.
    fn honest() -> (Vec<Segment>, Vec<Recorded>) {
        let steps: Vec<Recorded> =
            (1..=48).map(|step| Recorded { loss: 4.0 - 0.01 * f64::from(step), rate: 0.1 }).collect();
        let segment = |i: u32| Segment {
            first: 4 * i + 1,
            last: 4 * i + 4,
            points: losses(0.1),
            held: losses(0.0),
            opening: vec![4.0 - 0.01 * f64::from(4 * i + 1); 3],
            opening_of: 3,
            change: 2.0,
            cosine: (i > 0).then_some(0.5),
            other_batches: Vec::new(),
        };
        ((0..12).map(segment).collect(), steps)
    }

    /// The kinds of a segment's signs.
    fn kinds(found: &Screened) -> Vec<String> {
        let kind = |sign: &Weighed| serde_json::to_value(sign).unwrap()["kind"].as_str().unwrap().to_string();
        found.signs.iter().map(kind).collect()
    }

    #[test]
    fn honest_segments_have_no_sign() {
        let (segments, steps) = honest();
        let found = screen(&segments, &steps, &LEVELS);
        assert_eq!(found.len(), 12);
        for one in &found {
            assert!(one.suspicion < 1e-3 && !one.suspicious && one.signs.is_empty(), "{one:?}");
            assert!(one.memory.unwrap().remembered > 0.8 && one.step_size.is_some() && one.opening.is_some());
        }
        // Four segments say nothing of what is usual.
        let few = screen(&segments[..4], &steps, &LEVELS);
        assert!(
            few.iter().all(|one| one.step_size.is_none() && one.memory.is_some() && one.suspicion < 1e-3)
        );
        assert!(screen(&[], &[], &LEVELS).is_empty());
    }

    #[test]
    fn each_sign_brings_its_segment_to_the_front() {
        type Doctor = fn(&mut Segment);
        let doctor: [(&str, Doctor); 8] = [
            ("weak_memory", |segment| segment.points = losses(-0.2)),
            ("other_loss", |segment| segment.opening[0] += 0.1),
            ("small_step", |segment| segment.change = 0.2),
            ("large_step", |segment| segment.change = 20.0),
            ("collinear", |segment| segment.cosine = Some(1.0 - 1e-6)),
            ("collinear", |segment| segment.cosine = Some(0.95)),
            ("unmoved", |segment| segment.change = 0.0),
            ("other_batch", |segment| segment.other_batches = vec![26]),
        ];
        for (kind, doctor) in doctor {
            let (mut segments, steps) = honest();
            doctor(&mut segments[6]);
            let found = screen(&segments, &steps, &LEVELS);
            assert_eq!((found[0].first, kinds(&found[0])), (25, vec![kind.to_string()]), "{:?}", found[0]);
            assert!(found[0].suspicious && found[1..].iter().all(|one| !one.suspicious), "{kind}: {found:?}");
        }
        // Nothing moves at a learning rate of zero.
        let (mut segments, mut steps) = honest();
        segments[6].change = 0.0;
        steps[24..28].iter_mut().for_each(|step| step.rate = 0.0);
        assert!(screen(&segments, &steps, &LEVELS).iter().all(|one| !one.suspicious));
    }

    #[test]
    fn a_jump_of_the_loss_is_told_of_both_segments() {
        let (mut segments, mut steps) = honest();
        steps[24..].iter_mut().for_each(|step| step.loss += 1.0);
        segments[6..].iter_mut().for_each(|segment| segment.opening.iter_mut().for_each(|loss| *loss += 1.0));
        let found = screen(&segments, &steps, &LEVELS);
        let suspicious: Vec<u32> = found.iter().filter(|one| one.suspicious).map(|one| one.first).collect();
        assert_eq!(suspicious, [21, 25], "{found:?}");
        assert!(found[..2].iter().all(|one| kinds(one) == ["loss_jump"]), "{found:?}");
        assert!(
            matches!(found[0].signs[0].sign, Sign::LossJump { after: 24, by } if (by - 1.0).abs() < 1e-9)
        );
    }
}

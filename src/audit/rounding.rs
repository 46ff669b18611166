//! What an audit concludes from rounding decisions: one that no honest kernel takes, confirmed by the scalar reference; and a
//! difference that a missing one would explain.
//!
//! With operator traces, the first output that differs tells the two apart: anything but a logged product's rounding is computed
//! exactly from committed inputs. And a rounding's committed tile says which element was rounded otherwise, if it is one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::evidence::{Disputed, outputs};
use super::{AuditError, Outcome, differences};
use crate::arith::DType;
use crate::commit::record::StepRecord;
use crate::commit::tensor::{self, Hash};
use crate::engine::cpu::Cpu;
use crate::engine::reference::{Reference, word_from_bytes};
use crate::engine::session::{Phase, Session};
use crate::program::graph::{Primitive, TensorId};
use crate::program::logged::LoggedProduct;
use crate::rounding::legal::{Exact, Row};
use crate::rounding::replay::Illegal;
use crate::rounding::thresholds::Rounding;
use crate::run::dir::Run;
use crate::run::job::philox_key;
use crate::run::traces::graph_of;
use crate::train::committed_step::{replayed_step, scalars};

/// What is wrong if a step's log is not the one that its record commits: made later, or shown to this auditor only.
pub fn foreign_log(run: &Run, step: u32, theirs: &StepRecord) -> Result<Option<String>, AuditError> {
    let what = match (&run.job.rounding, theirs.log) {
        (None, None) => None,
        (None, Some(_)) => Some("the record commits a rounding log, but the job's products are exact"),
        (Some(_), None) => Some("the record commits no rounding log"),
        (Some(_), Some(root)) => (run.rounding_log(step)?.root() != root)
            .then_some("the rounding log is not the one that the record commits"),
    };
    Ok(what.map(str::to_string))
}

/// A decision that is outside the proved bound. The step is replayed by the scalar reference before anybody is accused.
pub fn illegal(
    run: &Run,
    step: u32,
    before: &[Vec<u8>],
    found: &Illegal,
    engine: &str,
) -> Result<Outcome, AuditError> {
    let mut reference = Reference;
    let mut session = Session::new(&mut reference, Arc::new(run.program.clone()))?;
    session.load(before)?;
    let batch = run.dataset()?.batch(&run.program, philox_key(&run.seed), step)?;
    let (_, tally) = replayed_step(run, &mut session, scalars(run, step), &batch, false)?;
    let what = describe(found);
    Ok(match tally.first_illegal {
        Some(confirmed) if confirmed == *found => Outcome::Diverges { step, what },
        _ => Outcome::EngineFaulty { step, engine: engine.to_string(), what },
    })
}

fn describe(found: &Illegal) -> String {
    let Illegal { micro_batch, operator, element, exact, bound, logged, legal } = found;
    format!(
        "the rounding log gives {operator} of micro-batch {micro_batch}, element {element}, the value {logged:e}; the exact product \
         is {exact:e}, and no kernel that is within {bound:e} of it rounds outside {:e} to {:e}",
        legal[0], legal[1]
    )
}

/// Whether a difference could come from a rounding that the log lacks: gradients differ, and nothing but what follows from
/// them. Without them (`granularity = "step"`), the loss and the state.
pub fn may_lack_a_decision(mine: &StepRecord, theirs: &StepRecord) -> bool {
    let same_inputs = mine.batch == theirs.batch
        && mine.learning_rate == theirs.learning_rate
        && mine.cursor == theirs.cursor
        && mine.log == theirs.log
        && mine.micro_batches.len() == theirs.micro_batches.len();
    let gradients = mine.micro_batches != theirs.micro_batches;
    let unknown = mine.micro_batches.is_empty() && mine != theirs;
    same_inputs && (gradients || unknown)
}

/// The outcome for such a difference.
pub fn missing(step: u32, mine: &StepRecord, theirs: &StepRecord) -> Outcome {
    let what = format!(
        "{} differ; a missing decision explains that as well as a trainer that computed something else",
        differences(mine, theirs).join(", ")
    );
    Outcome::MissingDecision { step, what }
}

/// What to say of a logged product whose committed output differs though everything before it agrees: the trainer rounded at least
/// one element otherwise than its log says. If it is one in the first differing tile, the tile's hash tells which, and the
/// proved bound whether any kernel could have.
pub fn disputed_rounding(
    disputed: &Disputed,
    phase: Phase,
    node: usize,
    logged: &LoggedProduct,
    index: usize,
) -> Result<Outcome, AuditError> {
    let Disputed { run, step, before, batch, published, .. } = *disputed;
    let graph = graph_of(&run.program, phase);
    let place = |tensor| graph.nodes.iter().position(|n| n.output == tensor).map(|node| (phase, node));
    let mut wanted = BTreeSet::from([(phase, node)]);
    let mut operands = Vec::new();
    for &product in &logged.exact {
        let Some((_, at)) = place(product) else { continue };
        let Primitive::Product { a, magnitudes_a, b, magnitudes_b, .. } = graph.nodes[at].primitive else {
            continue;
        };
        operands.push([a, magnitudes_a, b, magnitudes_b]);
        wanted.extend([a, magnitudes_a, b, magnitudes_b].into_iter().filter_map(place));
    }
    let mut cpu = Cpu::new(0)?;
    let mut session = Session::new(&mut cpu, Arc::new(run.program.clone()))?;
    session.load(before)?;
    let kept = outputs(run, &mut session, step, batch, wanted)?;
    let mine = &kept[&(phase, node)];
    let tiles = tensor::tile_values(mine);
    let theirs = &published.nodes[index].tiles;
    let differing: Vec<usize> = (0..tiles.len()).filter(|&i| tiles[i] != theirs[i]).collect();
    let operator = &graph.nodes[node].operator;
    let found = differing.first().and_then(|&tile| {
        one_rounding_off(disputed, logged, mine, &kept, (phase, tile), theirs[tile], &operands)
    });
    let what = match found {
        Some((element, value, Some([low, high]))) if (low..=high).contains(&value) => format!(
            "{operator}: the committed value of element {element} is {value:e}, which an honest kernel may round to, but the log has no \
             decision about it: a missing decision"
        ),
        Some((element, value, Some([low, high]))) => {
            let what = format!(
                "{operator}: the committed value of element {element} is {value:e}; the log has no decision about it, and no honest kernel \
                 rounds outside {low:e} to {high:e}"
            );
            return Ok(Outcome::Diverges { step, what });
        }
        _ => format!(
            "{operator}: {} of {} tiles differ by more than one rounding that the log lacks",
            differing.len(),
            tiles.len()
        ),
    };
    Ok(Outcome::MissingDecision { step, what })
}

/// The one element of a tile whose neighbouring value of the grid gives the committed tile: its place, that value, and the least and
/// greatest value that an honest kernel rounds to.
fn one_rounding_off(
    disputed: &Disputed,
    logged: &LoggedProduct,
    mine: &[u8],
    kept: &BTreeMap<(Phase, usize), Vec<u8>>,
    (phase, tile): (Phase, usize),
    theirs: Hash,
    operands: &[[TensorId; 4]],
) -> Option<(usize, f32, Option<[f32; 2]>)> {
    let graph = graph_of(&disputed.run.program, phase);
    let bytes_of = |tensor: TensorId| {
        let node = graph.nodes.iter().position(|n| n.output == tensor)?;
        kept.get(&(phase, node))
    };
    let word =
        |bytes: &[u8], i: usize| Some(u32::from_le_bytes(bytes.get(4 * i..4 * i + 4)?.try_into().ok()?));
    let [_, m, n, k] = logged.dims();
    let range = tensor::tile_range(mine.len(), tile);
    let count = tensor::tile_count(mine.len());
    let mut bytes = mine[range.clone()].to_vec();
    for i in 0..bytes.len() / 4 {
        let place = range.start / 4 + i;
        let (row, column) = (place / n, place / (m * n) * n + place % n);
        let [_, magnitudes_a, _, magnitudes_b] = *operands.first()?;
        let magnitudes = [word(bytes_of(magnitudes_a)?, row)?, word(bytes_of(magnitudes_b)?, column)?];
        let grid = logged.rule.grid(k as u32, magnitudes[0], magnitudes[1]);
        let own = f32::from_bits(word(&bytes, i)?);
        if !own.is_finite() {
            continue;
        }
        let index = grid.index(f64::from(own));
        for other in [index - 1, index + 1] {
            bytes[4 * i..4 * i + 4].copy_from_slice(&grid.pattern(other).to_le_bytes());
            if tensor::tile_value(&bytes, tile, count) == theirs {
                let rows = operands.iter().try_fold([Row::default(), Row::default()], |[a, b], tensors| {
                    let part = |to: Row, quantised: TensorId, magnitudes: TensorId, row: usize| {
                        let DType::Q(digits) = graph.tensor(quantised).dtype else { return None };
                        let size = usize::from(digits);
                        let bytes = bytes_of(quantised)?.get(row * k * size..(row + 1) * k * size)?;
                        let q = bytes
                            .chunks_exact(size)
                            .map(|q| word_from_bytes(DType::Q(digits), q) as i32)
                            .collect();
                        Some(to.with(q, word(bytes_of(magnitudes)?, row)?, u32::from(digits)))
                    };
                    let [qa, ma, qb, mb] = *tensors;
                    Some([part(a, qa, ma, row)?, part(b, qb, mb, column)?])
                });
                let accumulation = disputed.run.job.rounding.as_ref().map(Rounding::accumulation);
                let legal = rows.zip(accumulation).map(|([a, b], accumulation)| {
                    Exact::of(&a, &b).legal(grid, accumulation).map(|index| grid.value(index) as f32)
                });
                return Some((place, grid.value(other) as f32, legal));
            }
        }
        bytes[4 * i..4 * i + 4].copy_from_slice(&own.to_bits().to_le_bytes());
    }
    None
}

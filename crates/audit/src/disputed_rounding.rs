//! Rounding verdicts, and an audit's conclusions about a logged product whose committed output differs.
//!
//! The first output that differs tells a missing decision from a cheat: everything except a logged product's rounding is computed
//! exactly from committed inputs. If only one element of a committed tile was rounded otherwise, the tile's hash tells which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::disputed_step::{DisputedStep, outputs};
use super::ground::Ground;
use super::report::{AuditError, Found, Outcome};
use tiebreak_contract::arith::rounding_grid::RoundingGrid;
use tiebreak_contract::program::phase::Phase;
use tiebreak_dispute::evidence::cone::{grid_from_tensors, judged_from_tensors, operands};
use tiebreak_dispute::evidence::origin::Origin;
use tiebreak_dispute::fact::Wrong;
use tiebreak_dispute::verdict::{Base64, Claim, Hashes, Rounded, RoundingClaim, Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_record::commit::multiproof;
use tiebreak_record::commit::tensor::{self, Hash};
use tiebreak_record::commit::trace::leaf_place;
use tiebreak_record::rounding::legal::Illegal;
use tiebreak_record::rounding::thresholds::Rounding;

/// The number of values of the grid on either side that are tried for an element of a committed tile whose bytes are not known.
const NEIGHBOURS: i64 = 8;

/// The only element of a tile that the trainer rounded otherwise: its index, its value, and the tile with this value.
type OneOff = (usize, u32, Vec<u8>);

/// Finds the element of the tile of `mine` that turns it into the committed tile when replaced by a nearby value of its grid;
/// `None` if there is no such element.
fn one_rounding_off(
    mine: &[u8],
    tile: usize,
    theirs: Hash,
    grid: impl Fn(usize) -> Option<RoundingGrid>,
) -> Option<OneOff> {
    let range = tensor::tile_range(mine.len(), tile);
    let count = tensor::tile_count(mine.len());
    let mut bytes = mine[range.clone()].to_vec();
    for at in (0..bytes.len()).step_by(4) {
        let element = (range.start + at) / 4;
        let own: [u8; 4] = bytes[at..at + 4].try_into().expect("outputs are whole words");
        let value = f32::from_le_bytes(own);
        let Some(grid) = grid(element).filter(|_| value.is_finite()) else { continue };
        let index = grid.index(f64::from(value));
        for other in (1..=NEIGHBOURS).flat_map(|steps| [index - steps, index + steps]) {
            let pattern = grid.pattern(other);
            bytes[at..at + 4].copy_from_slice(&pattern.to_le_bytes());
            if tensor::tile_value(&bytes, tile, count) == theirs {
                return Some((element, pattern, bytes));
            }
        }
        bytes[at..at + 4].copy_from_slice(&own);
    }
    None
}

impl DisputedStep<'_> {
    /// The conclusion about logged product `number`, whose committed output differs though everything before it agrees: the
    /// trainer rounded at least one element otherwise than its log says. If only one element of the first differing tile differs,
    /// the tile's hash tells which, and the proved bound tells if any kernel could have rounded so. `node` computes the output;
    /// `index` is its index in the trace.
    ///
    /// # Errors
    /// If the CPU engine fails, or the run's log cannot be read.
    pub fn rounding(
        &self,
        micro: u32,
        number: usize,
        node: usize,
        index: usize,
    ) -> Result<Found, AuditError> {
        let DisputedStep { run, step, before, batch, published, .. } = *self;
        let graph = &run.program().micro;
        let (phase, logged) = (Phase::Micro(micro), &graph.logged[number]);
        let mut cpu = Cpu::new(0)?;
        let mut session = Session::new(&mut cpu, Arc::new(run.program().clone()))?;
        session.stop_at(self.end);
        session.load(before)?;
        let kept = outputs(run, &mut session, step, batch, BTreeSet::from([(phase, node)]))?;
        let mine = kept.get(&(phase, node)).map_or(&[][..], Vec::as_slice);
        let tiles = tensor::tile_values(mine);
        let theirs = &published.nodes[index].tiles;
        let differing: Vec<usize> = (0..tiles.len()).filter(|&i| tiles[i] != theirs[i]).collect();
        let operator = &graph.nodes[node].operator;
        let tensors = self.tensors(phase, operands(graph, logged))?;
        let tensors = tensors.into_iter().map(|(id, (_, bytes))| (id, bytes)).collect();
        let off = differing.first().and_then(|&tile| {
            let grid = |element| grid_from_tensors(graph, logged, element, &tensors).ok();
            one_rounding_off(mine, tile, theirs[tile], grid)
        });
        let undecided =
            |what: Ground| Ok(Found { outcome: Outcome::MissingDecision { step, what }, verdict: None });
        let Some((element, pattern, bytes)) = off else {
            let (differ, tiles) = (differing.len(), tiles.len());
            return undecided(Ground::Roundings { operator: operator.clone(), differ, tiles });
        };
        let value = f32::from_bits(pattern);
        let rounded = self.committed_value(micro, node, differing[0], bytes);
        Ok(match self.rounding_verdict(micro, number, element, rounded)? {
            Some((verdict, what)) => {
                let what = Ground::Unlogged(what);
                Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) }
            }
            // The bound allows this rounding, or no evidence that stands alone excludes it.
            None => undecided(Ground::Rounding { operator: operator.clone(), element, value })?,
        })
    }

    /// The evidence of a committed tile of a rounded output, with the tile's bytes.
    pub fn committed_value(&self, micro: u32, node: usize, tile: usize, bytes: Vec<u8>) -> Rounded {
        let (phase, program) = (Phase::Micro(micro), self.run.program());
        let leaves = self.published.leaves(program);
        let traced = &self.published.nodes[leaf_place(program, phase, node).unwrap_or(0)];
        Rounded::Committed {
            output: self.operands().commitment(&Origin::Node { phase, node }, &leaves),
            bytes: Base64(bytes),
            siblings: Hashes(multiproof::prove(multiproof::blake3, &traced.tiles, &[tile])),
        }
    }

    /// A verdict on a decision outside the proved bound, in a step whose trace and log are the committed ones; `None` if no
    /// verdict stands alone.
    ///
    /// # Errors
    /// If the run's log cannot be read, or the CPU engine fails.
    pub(crate) fn decision_verdict(&self, found: &Illegal) -> Result<Option<Verdict>, AuditError> {
        let logged = &self.run.program().micro.logged;
        let log = self.run.rounding_log(self.step)?;
        let part = found.micro_batch as usize * logged.len() + found.product;
        let elements = logged[found.product].elements() as u64;
        let block = log.block_of(part, elements, found.element);
        let rounded = Rounded::Logged { block, log: log.prove(part, elements, block).into() };
        let element = found.element as usize;
        let verdict = self.rounding_verdict(found.micro_batch, found.product, element, rounded)?;
        Ok(verdict.map(|(verdict, _)| verdict))
    }

    /// A verdict on an element of a logged product, with the verdict's sentence, if it stands alone.
    fn rounding_verdict(
        &self,
        micro_batch: u32,
        product: usize,
        element: usize,
        rounded: Rounded,
    ) -> Result<Option<(Verdict, Wrong)>, AuditError> {
        let claim = self.rounding_claim(micro_batch, product, element, rounded)?;
        Ok(claim.and_then(|claim| match claim.check(None) {
            Ok(Ruling::Convicts(finding)) => Some((claim, finding.what)),
            _ => None,
        }))
    }

    /// The claim, true or not, that an element of a logged product was rounded as no honest kernel rounds; `None` if its operands
    /// have no exact product.
    ///
    /// # Errors
    /// If the CPU engine fails, or the run's data or log cannot be read.
    pub fn rounding_claim(
        &self,
        micro_batch: u32,
        product: usize,
        element: usize,
        rounded: Rounded,
    ) -> Result<Option<Verdict>, AuditError> {
        let DisputedStep { run, checked, step, published, .. } = *self;
        let graph = &run.program().micro;
        let logged = &graph.logged[product];
        let Some(accumulation) = run.job().rounding.as_ref().map(Rounding::accumulation) else {
            return Ok(None);
        };
        let tensors = self.tensors(Phase::Micro(micro_batch), operands(graph, logged))?;
        let whole: BTreeMap<_, _> = tensors.iter().map(|(id, (_, bytes))| (*id, bytes.clone())).collect();
        let Ok((_, touched)) = judged_from_tensors(graph, logged, element, accumulation, &whole) else {
            return Ok(None);
        };
        let inputs = self.operands().proven(&tensors, &touched, &published.leaves(run.program()));
        let before = checked.proven(step - 1);
        let claim = RoundingClaim { before, micro_batch, product, element, rounded, inputs };
        Ok(Some(checked.verdict(run, step, Claim::Rounding(Box::new(claim)))))
    }
}

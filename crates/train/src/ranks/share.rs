//! A rank's part of a step: the rank computes it and reports it to rank 0, which merges all parts into the step that one process
//! would have committed.

use std::time::{Duration, Instant};

use super::beside::{self, Hosts};
use super::collective::Collective;
use super::plan::ShardPlan;
use super::protocol::{go_on, tell_waiting};
use super::reduce::{Adder, sum_on_devices};
use super::slots::{SlotPlan, gather};
use crate::error::{RankError, TrainError};
use tiebreak_contract::arith::tree::Operation;
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::logged::traced;
use tiebreak_contract::program::step::{MicroBatch, Program, StateTensor};
use tiebreak_engine::EngineError;
use tiebreak_engine::session::{Give, Gradients, Session, StepOutcome, StepScalars, Unobserved};
use tiebreak_job::Granularity;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::{Decoder, Encoder};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::state::state_digest;
use tiebreak_record::commit::tensor::{Hash, tile_count};
use tiebreak_record::commit::trace::{Trace, TracedNode};
use tiebreak_record::rounding::codec;
use tiebreak_record::rounding::log::Log;
use tiebreak_run::observers::record::{Logged, Recorder, Rounder};
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::finite::{self, NotFinite};
use tiebreak_run::step::{Parts, Tracer, gradient_root, noted_digests, state_root};

/// The interval at which the others hear from rank 0 while it is busy: `--rank-timeout` is a second at least.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_millis(250);
/// The most bytes that a rounding decision takes, its element's share of the part's header included.
const DECISION_BYTES: u64 = 16;

/// The contents of shares: the parts that a job's records promise beside the state.
pub struct Contents {
    /// True if shares have the roots of micro-batches' gradients.
    roots: bool,
    /// The outputs that traces hold for a micro-batch and for an addition; empty for jobs that do not commit operators.
    micro: Vec<TensorType>,
    addition: Vec<TensorType>,
    hashing: bool,
    /// The elements of each logged product.
    products: Vec<u64>,
    /// For each rank, if the optimizer's slots are divided: the number of its slots, and its outputs of the update.
    updates: Vec<(usize, Vec<TensorType>)>,
}

impl Contents {
    /// The contents that the records of the job of `run` need.
    pub fn of(run: &Run) -> Contents {
        let hashing = run.job().commit.granularity == Granularity::Operator;
        let types = |graph: &Graph| -> Vec<TensorType> {
            let held = graph.nodes.iter().zip(traced(graph)).filter(|(_, held)| *held && hashing);
            held.map(|(node, _)| graph.tensor(node.output).clone()).collect()
        };
        Contents {
            roots: run.job().commit.granularity != Granularity::Step,
            micro: types(&run.program().micro),
            addition: types(&run.program().accumulate),
            hashing,
            products: run.program().micro.logged.iter().map(|product| product.elements() as u64).collect(),
            updates: Vec::new(),
        }
    }

    /// The contents where the optimizer's slots are divided.
    pub fn divided(self, plan: &ShardPlan, slots: &SlotPlan) -> Contents {
        let traced = |rank| if self.hashing { slots.traced(rank) } else { Vec::new() };
        let update = |rank| (slots.slots_of(rank).count(), traced(rank));
        Contents { updates: (0..plan.ranks()).map(update).collect(), ..self }
    }

    /// The number of a rank's slots, and its outputs of the update: none where every rank updates all.
    fn update(&self, rank: u32) -> (usize, &[TensorType]) {
        self.updates.get(rank as usize).map_or((0, &[]), |(slots, types)| (*slots, types))
    }

    fn traced(&self, operation: Operation) -> &[TensorType] {
        match operation {
            Operation::Term(_) => &self.micro,
            Operation::Add(_) => &self.addition,
        }
    }

    /// The number of tiles of its shard that a rank hashes in a step.
    fn tiles(&self, plan: &ShardPlan, rank: u32) -> usize {
        if self.hashing { plan.shared_additions() * plan.shard_tiles(rank) } else { 0 }
    }

    /// The elements of the products whose decisions a rank logs, part by part.
    fn parts(&self, plan: &ShardPlan, rank: u32) -> impl Iterator<Item = u64> {
        plan.micro_batches(rank).flat_map(|_| self.products.iter().copied())
    }

    /// The most bytes of a rank's share.
    pub fn bytes_max(&self, plan: &ShardPlan, rank: u32) -> u64 {
        let (slots, update) = self.update(rank);
        let nodes = plan.local(rank).flat_map(|operation| self.traced(operation)).chain(update);
        let nodes: u64 = nodes.map(TracedNode::bytes).sum();
        let parts: u64 = self.parts(plan, rank).map(|n| n.saturating_mul(DECISION_BYTES) + 64).sum();
        let digests = plan.micro_batches(rank).len() + self.tiles(plan, rank) + slots;
        128 + 32 * digests as u64 + nodes + parts
    }
}

/// A rank's report on a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The state after the step, as far as every rank has it.
    pub state: Digest,
    /// The digests of the slots that this rank alone has, in order.
    pub slots: Vec<Digest>,
    /// Loss, clip factor and norm.
    pub outcome: StepOutcome,
    /// The gradient roots of the rank's micro-batches.
    pub micro_batches: Vec<Digest>,
    /// The traced outputs of the operations that the rank did alone.
    nodes: Vec<TracedNode>,
    /// The BLAKE3 tree value of each tile of the rank's shard, for every shared addition.
    tiles: Vec<Hash>,
    /// The traced outputs of the update that this rank alone reports.
    update: Vec<TracedNode>,
    /// The log's parts of the rank's micro-batches.
    parts: Vec<Vec<u8>>,
    /// The gradient root of another rank's micro-batch, if this rank had to check one.
    pub checked: Option<Digest>,
    /// True if somebody asked this rank to stop.
    pub asked: bool,
}

impl Share {
    /// The canonical bytes that go to rank 0.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.digest(&self.state).u32(self.outcome.loss).u32(self.outcome.clip).u32(self.outcome.norm);
        self.micro_batches.iter().chain(&self.slots).for_each(|root| {
            e.digest(root);
        });
        self.nodes.iter().for_each(|node| node.encode(&mut e));
        self.tiles.iter().for_each(|value| e.0.extend(value));
        self.update.iter().for_each(|node| node.encode(&mut e));
        self.parts.iter().for_each(|part| {
            e.bytes(part);
        });
        e.option(self.checked.as_ref());
        e.u32(self.asked.into());
        e.0
    }

    /// Decodes a rank's share. The share must have as many digests, nodes, tiles and parts as the plan gives it. Nodes' tiles must
    /// give their digests, and parts must be logs of their products. Also returns the counts of the parts.
    ///
    /// # Errors
    /// If the bytes are not the canonical encoding of such a share.
    pub fn decode(
        contents: &Contents,
        plan: &ShardPlan,
        rank: u32,
        bytes: &[u8],
    ) -> Result<(Share, Logged), Malformed> {
        let mut d = Decoder::new("a rank's share of a step", bytes);
        let state = d.digest()?;
        let outcome = StepOutcome { loss: d.u32()?, clip: d.u32()?, norm: d.u32()? };
        let roots = if contents.roots { plan.micro_batches(rank).len() } else { 0 };
        let micro_batches = (0..roots).map(|_| d.digest()).collect::<Result<_, _>>()?;
        let (slots, update) = contents.update(rank);
        let slots = (0..slots).map(|_| d.digest()).collect::<Result<_, _>>()?;
        let types = plan.local(rank).flat_map(|operation| contents.traced(operation));
        let nodes = types.map(|ty| TracedNode::decode(&mut d, ty)).collect::<Result<_, _>>()?;
        let tiles = contents.tiles(plan, rank);
        let tiles = (0..tiles).map(|_| Ok(d.digest()?.0)).collect::<Result<_, Malformed>>()?;
        let update = update.iter().map(|ty| TracedNode::decode(&mut d, ty)).collect::<Result<_, _>>()?;
        let (mut parts, mut logged) = (Vec::new(), Logged::default());
        for elements in contents.parts(plan, rank) {
            let most = elements.saturating_mul(DECISION_BYTES).try_into().unwrap_or(usize::MAX);
            let part = d.bytes(most)?.to_vec();
            let decisions = codec::decode(&part, elements)?;
            logged.elements += elements;
            logged.decisions += decisions.len() as u64;
            logged.entropy_bits += codec::entropy_bits(&decisions, elements);
            parts.push(part);
        }
        let checked = d.option()?;
        let asked = match d.u32()? {
            0 => false,
            1 => true,
            other => {
                let why = format!("asked to stop is {other}, neither 0 nor 1");
                return Err(Malformed::invalid("a rank's share of a step", why));
            }
        };
        d.finish()?;
        let share =
            Share { state, slots, outcome, micro_batches, nodes, tiles, update, parts, checked, asked };
        Ok((share, logged))
    }
}

/// A rank's work in a step.
pub(super) struct Work<'a> {
    pub scalars: StepScalars,
    /// The rank's micro-batches.
    pub batches: &'a [MicroBatch],
    /// A micro-batch of another rank to compute as well, with its number.
    pub check: Option<(u32, &'a MicroBatch)>,
    /// On rank 0: all micro-batches, in which the first value that is not finite is searched if the loss is not.
    pub searched: Option<&'a [MicroBatch]>,
    /// True if somebody asked this rank to stop.
    pub asked: bool,
}

/// A rank's results when a step is done.
pub(super) struct Computed {
    pub share: Share,
    pub logged: Logged,
    /// The digests of the state's tensors that this rank has.
    pub state: Vec<Digest>,
    /// The first value that is not finite, if it was searched and the loss is not.
    pub not_finite: Option<NotFinite>,
}

/// The division of a step's work and of the state.
pub(super) struct Division {
    pub plan: ShardPlan,
    /// The division of the optimizer's slots; `None` = every rank has all.
    pub slots: Option<SlotPlan>,
    /// For each node of the update that this rank runs, true if the node is in its trace; only where slots are divided.
    traces: Vec<bool>,
}

impl Division {
    /// # Errors
    /// If the steps of `program` cannot be divided so.
    pub fn new(program: &Program, plan: ShardPlan, divides_slots: bool) -> Result<Division, RankError> {
        let slots = divides_slots.then(|| SlotPlan::new(program, plan.ranks())).transpose()?;
        Ok(Division { plan, slots, traces: Vec::new() })
    }

    /// The same division of a step's work, with divided slots.
    pub fn dividing(self, slots: SlotPlan) -> Division {
        Division { slots: Some(slots), ..self }
    }

    /// Lets the session of a rank hold its share of the state. A state is loaded after this.
    pub fn hold(&mut self, session: &mut Session, rank: u32) -> Result<(), EngineError> {
        let Some(slots) = &self.slots else { return Ok(()) };
        let share = slots.share(session.program(), rank);
        self.traces = share.traces;
        session.hold(share.update)
    }

    /// The rank that alone has a tensor of the state, if not every rank has it.
    pub fn holder(&self, place: usize) -> Option<u32> {
        self.slots.as_ref().and_then(|slots| slots.holder(place))
    }
}

/// How a rank adds gradients.
pub(crate) enum Reducer {
    /// Over the hosts, bucket by bucket.
    Hosts(Hosts),
    /// From device to device, when the rank has computed all.
    Devices(Adder),
}

impl Reducer {
    /// # Errors
    /// If an engine cannot add.
    pub fn new(
        run: &Run,
        session: &mut Session,
        collective: &mut dyn Collective,
        plan: &ShardPlan,
    ) -> Result<Reducer, EngineError> {
        let rank = collective.rank();
        Ok(match collective.devices() {
            Some(_) => Reducer::Devices(Adder::new(session.engine_mut(), plan, 0, rank)?),
            None => Reducer::Hosts(Hosts::new(session, plan, rank, hashes(run))?),
        })
    }
}

/// The least bytes of a bucket over this network: gradients that go from device to device are one bucket, since the engine's memory is
/// not to be read while it computes.
pub(super) fn bucket_bytes_over(collective: &mut dyn Collective, least: u64) -> u64 {
    if collective.devices().is_some() { 0 } else { least }
}

/// True if a run's records commit to operators.
fn hashes(run: &Run) -> bool {
    run.job().commit.granularity == Granularity::Operator
}

/// A rank's gradients of a step.
struct Summed {
    total: Gradients,
    /// The roots of its micro-batches, and of another rank's that it checked.
    roots: Vec<Digest>,
    checked: Option<Digest>,
    /// The hash values of the tiles of its shard of each shared sum.
    tiles: Vec<Hash>,
}

/// Computes a rank's micro-batches, and adds them to those of the others.
fn summed(
    run: &Run,
    session: &mut Session,
    collective: &mut dyn Collective,
    (plan, reducer): (&ShardPlan, &mut Reducer),
    work: &Work,
    tracer: &mut Tracer,
) -> Result<Summed, TrainError> {
    let &Work { scalars, batches, check, .. } = work;
    let (hashing, rooting) = (hashes(run), run.job().commit.granularity != Granularity::Step);
    let (mut roots, mut checked) = (Vec::new(), None);
    let micro_root = |session: &mut Session, _: u32, gradients: &Gradients| {
        if rooting {
            roots.push(gradient_root(session, gradients)?);
        }
        Ok(())
    };
    let mut check_other = |session: &mut Session| -> Result<(), EngineError> {
        if let Some((index, batch)) = check {
            let gradients = session.micro_batch(scalars, index, batch, &mut Unobserved)?;
            checked = Some(gradient_root(session, &gradients)?);
        }
        Ok(())
    };
    let (total, tiles) = match reducer {
        Reducer::Hosts(hosts) => {
            let compute =
                |operations: &[Operation], give: &mut Give, mark: &dyn Fn()| -> Result<(), TrainError> {
                    let mut micro_root = micro_root;
                    let marked = |session: &mut Session, index: u32, gradients: &Gradients| {
                        micro_root(session, index, gradients)?;
                        mark();
                        Ok(())
                    };
                    session.hand_out_sums(scalars, operations, batches, tracer, marked, give)?;
                    Ok(check_other(session)?)
                };
            let (bytes, tiles) = beside::sum(collective, plan, hosts, hashing, compute)?;
            (session.upload_gradients(&bytes)?, tiles)
        }
        Reducer::Devices(adder) => {
            let local = plan.local(collective.rank());
            let partials = session.partial_sums(scalars, local, batches, tracer, micro_root)?;
            check_other(session)?;
            let devices = collective.devices().expect("the network is one between devices");
            sum_on_devices(session, devices, plan, adder, partials, hashing)?
        }
    };
    Ok(Summed { total, roots, checked, tiles })
}

/// Runs a rank's part of a step on the session's state: its micro-batches, its shard of the sums, and the update.
pub(super) fn compute(
    run: &Run,
    session: &mut Session,
    collective: &mut dyn Collective,
    division: &Division,
    reducer: &mut Reducer,
    work: &Work,
) -> Result<Computed, TrainError> {
    let Division { plan, slots, traces } = division;
    let &Work { scalars, searched, asked, .. } = work;
    let rank = collective.rank();
    let mut recorder = run
        .job()
        .rounding
        .as_ref()
        .map(|rounding| Recorder::new(rounding, &run.program().micro, run.program().micro_batches, None));
    let rounder = recorder.as_mut().map(|recorder| recorder as &mut dyn Rounder);
    let mut tracer = Tracer::new(hashes(run), None, rounder);
    let summed = summed(run, session, collective, (plan, reducer), work, &mut tracer)?;
    let Summed { total, roots: micro_batches, checked, tiles } = summed;
    let nodes = std::mem::take(&mut tracer.nodes);
    let not_finite = match searched {
        None => None,
        Some(all) => {
            let mut told: Option<Instant> = None;
            finite::of_step(session, scalars, all, &total, &mut || {
                if told.is_none_or(|told| told.elapsed() > SIGN_OF_LIFE) {
                    told = Some(Instant::now());
                    // A rank that is gone will be missed when its share is due.
                    let _ = tell_waiting(collective);
                }
            })?
        }
    };
    let traces = slots.as_ref().map(|_| traces.as_slice());
    let outcome = update(session, (scalars, &total), &mut tracer, rank, traces)?;
    drop(total);
    if let Some(slots) = slots {
        go_on(collective)?;
        gather(session, collective, slots)?;
    }
    let update = tracer.nodes;
    let (mut parts, logged) = recorder.map(Recorder::finish_parts).unwrap_or_default();
    let products = run.program().micro.logged.len();
    let own = plan.micro_batches(rank);
    parts.truncate(own.end as usize * products);
    let parts = parts.split_off(own.start as usize * products);
    let state = noted_digests(session)?;
    let (root, slots) = reported(run, &state, slots.as_ref());
    let share =
        Share { state: root, slots, outcome, micro_batches, nodes, tiles, update, parts, checked, asked };
    Ok(Computed { share, logged, state, not_finite })
}

/// The digest of the state as far as every rank has it, and those of the slots that this rank alone has.
fn reported(run: &Run, state: &[Digest], slots: Option<&SlotPlan>) -> (Digest, Vec<Digest>) {
    let Some(slots) = slots else { return (state_root(run.program(), state), Vec::new()) };
    let (common, own) = state.split_at(slots.common().len());
    (state_digest(slots.common(), common), own.to_vec())
}

/// Updates what is this rank's to update. `tracer` gets the outputs that this rank reports.
fn update(
    session: &mut Session,
    (scalars, total): (StepScalars, &Gradients),
    tracer: &mut Tracer,
    rank: u32,
    traces: Option<&[bool]>,
) -> Result<StepOutcome, EngineError> {
    let Some(traces) = traces else {
        // Every rank updates all, and one trace of the update is enough.
        return match rank {
            0 => session.update(scalars, total, tracer),
            _ => session.update(scalars, total, &mut Unobserved),
        };
    };
    let outcome = session.update(scalars, total, tracer)?;
    let mut reported = traces.iter();
    tracer.nodes.retain(|_| *reported.next().expect("a trace has a rank's own nodes"));
    Ok(outcome)
}

/// Merges the shares of all ranks, in order, with rank 0's part of the state into the step.
pub(super) fn merge(
    contents: &Contents,
    division: &Division,
    own: Computed,
    others: Vec<(Share, Logged)>,
) -> Parts {
    let Computed { share, logged, state, not_finite: _ } = own;
    let outcome = share.outcome;
    let (mut shares, logged): (Vec<Share>, Vec<Logged>) = [(share, logged)].into_iter().chain(others).unzip();
    let micro_batches = shares.iter().flat_map(|share| &share.micro_batches).copied().collect();
    let log = (!contents.products.is_empty()).then(|| {
        let parts: Vec<Vec<u8>> =
            shares.iter_mut().flat_map(|share| std::mem::take(&mut share.parts)).collect();
        let mut whole = Logged::default();
        for part in logged {
            whole.elements += part.elements;
            whole.decisions += part.decisions;
            whole.entropy_bits += part.entropy_bits;
        }
        (Log::new(&parts), whole)
    });
    let state = match &division.slots {
        None => state,
        Some(slots) => slots.whole(&state, shares.iter().map(|share| share.slots.as_slice())),
    };
    let trace = contents.hashing.then(|| Trace { nodes: trace(contents, division, shares) });
    Parts { outcome, state, micro_batches, trace, log }
}

/// The tiles of each tensor of a shared sum, the `addition`-th, from those of all ranks' shards: of each rank, bucket after bucket, those
/// of all additions.
fn shared_tiles(plan: &ShardPlan, of_ranks: &[Vec<Hash>], addition: usize) -> Vec<Vec<Hash>> {
    let blank = |tensor: &StateTensor| vec![[0; 32]; tile_count(tensor.ty().bytes())];
    let mut sum: Vec<Vec<Hash>> = plan.gradients().iter().map(blank).collect();
    for (rank, mut tiles) in (0..).zip(of_ranks.iter().map(Vec::as_slice)) {
        for bucket in 0..plan.buckets().len() {
            let pieces = plan.shard_of(bucket, rank);
            let count: usize = pieces.iter().map(|piece| piece.tiles.len()).sum();
            let (of_bucket, rest) = tiles.split_at(plan.shared_additions() * count);
            let mut own = &of_bucket[addition * count..][..count];
            for piece in pieces {
                let (of_piece, rest) = own.split_at(piece.tiles.len());
                sum[piece.tensor][piece.tiles.clone()].copy_from_slice(of_piece);
                own = rest;
            }
            tiles = rest;
        }
    }
    sum
}

/// The nodes of the step's trace in execution order.
fn trace(contents: &Contents, division: &Division, shares: Vec<Share>) -> Vec<TracedNode> {
    let Division { plan, slots, .. } = division;
    let (mut nodes, mut updates, mut tiles) = (Vec::new(), Vec::new(), Vec::new());
    for share in shares {
        nodes.push(share.nodes.into_iter());
        updates.push(share.update.into_iter());
        tiles.push(share.tiles);
    }
    let mut whole = Vec::new();
    let mut shared = 0;
    for &(operation, by) in plan.operations() {
        let types = contents.traced(operation);
        if let Some(rank) = by {
            whole.extend(nodes[rank as usize].by_ref().take(types.len()));
            continue;
        }
        let sums = shared_tiles(plan, &tiles, shared);
        whole.extend(types.iter().zip(sums).map(|(ty, tiles)| TracedNode::new(ty, tiles)));
        shared += 1;
    }
    match slots {
        None => whole.extend(updates.swap_remove(0)),
        Some(slots) => whole.extend(slots.tracers().iter().map(|&rank| {
            updates[rank as usize].next().expect("a rank reports each node that it is to report")
        })),
    }
    whole
}

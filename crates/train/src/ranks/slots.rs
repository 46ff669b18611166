//! Divides the optimizer's slots, and the update, among ranks: ZeRO stage 1 (Rajbhandari et al., 2020). Rules:
//! `docs/DATA-PARALLEL.md`.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::collective::{Collective, Devices, ShardPart};
use crate::error::{RankError, TrainError};
use tiebreak_contract::program::graph::{Graph, TensorType};
use tiebreak_contract::program::part::{GraphPart, needed};
use tiebreak_contract::program::step::{Program, StateTensor, state_bytes};
use tiebreak_engine::Tensor;
use tiebreak_engine::session::Session;
use tiebreak_engine::update_share::UpdateShare;
use tiebreak_record::commit::digest::Digest;

/// The division of a program's slots and of its update. No rank has the graph of another rank's update.
pub struct SlotPlan {
    table: Vec<StateTensor>,
    /// The number of tensors of the state before the slots.
    released: usize,
    /// For each tensor of the state, the rank that updates it; `None` = every rank has it and does what is to be done with it.
    owners: Vec<Option<u32>>,
    ranks: u32,
    /// For each node of the update, the least of the ranks that run it.
    first: Vec<u32>,
    /// The types of the outputs of the update's nodes.
    types: Vec<TensorType>,
}

/// The share of the update that a rank has.
pub struct RankShare {
    /// What the rank holds and makes.
    pub update: UpdateShare,
    /// For each node that the rank runs, in order, true if the node is in this rank's trace.
    pub(super) traces: Vec<bool>,
}

/// The rank of each trained parameter: the largest parameter first, each to the rank with the fewest bytes, and the least such rank.
fn owners(bytes: &[u64], ranks: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|&i| Reverse(bytes[i]));
    let (mut sums, mut owners) = (vec![0; ranks as usize], vec![0; bytes.len()]);
    for i in order {
        let rank = (0..sums.len()).min_by_key(|&rank| sums[rank]).expect("there is a rank");
        sums[rank] += bytes[i];
        owners[i] = rank as u32;
    }
    owners
}

/// The ranks whose slots a tensor of the update depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Nobodys,
    Of(u32),
    Several,
}

impl Reads {
    fn and(self, other: Reads) -> Reads {
        match (self, other) {
            (one, Reads::Nobodys) | (Reads::Nobodys, one) => one,
            (one, other) if one == other => one,
            _ => Reads::Several,
        }
    }
}

impl SlotPlan {
    /// # Errors
    /// If the optimizer has no slots, or the update of a parameter reads the slots of another one.
    pub fn new(program: &Program, ranks: u32) -> Result<SlotPlan, RankError> {
        let (table, released, kept) = (program.state(), program.released(), program.kept());
        if table.len() == released {
            let why = "--shard-optimizer: the optimizer of this program has no slots to divide: leave it out";
            return Err(RankError::Refused(why.into()));
        }
        let trained: Vec<usize> = (0..program.parameters.len()).filter(|&place| !kept[place]).collect();
        let bytes: Vec<u64> = trained.iter().map(|&place| table[place].ty().bytes() as u64).collect();
        let ranks_of = self::owners(&bytes, ranks);
        let mut owners = vec![None; table.len()];
        for (&place, &rank) in trained.iter().zip(&ranks_of) {
            owners[place] = Some(rank);
        }
        // Each slot has a tensor for each trained parameter, in their order.
        for (owner, rank) in owners[released..].iter_mut().zip(ranks_of.iter().cycle()) {
            *owner = Some(*rank);
        }
        let update = &program.update;
        let types = update.nodes.iter().map(|node| update.tensor(node.output).clone()).collect();
        let mut plan = SlotPlan { first: Vec::new(), table, released, owners, ranks, types };
        let makers = plan.makers(update);
        plan.first = plan.first_of(update, &makers);
        plan.refuse_foreign(update, &makers)?;
        Ok(plan)
    }

    /// The places of the state's tensors by their names.
    fn places(&self) -> HashMap<&str, usize> {
        (0..).zip(&self.table).map(|(place, tensor)| (tensor.name.as_str(), place)).collect()
    }

    /// For each output of the update, the rank that makes it; `None` = all ranks do.
    fn makers(&self, update: &Graph) -> Vec<Option<u32>> {
        let places = self.places();
        // Scalars have no place in the state.
        let maker = |name: &str| places.get(name).and_then(|&place| self.owners[place]);
        update.outputs.iter().map(|port| maker(&port.name)).collect()
    }

    /// For each node of the update, the least rank that runs it: in one pass from the outputs back.
    fn first_of(&self, update: &Graph, makers: &[Option<u32>]) -> Vec<u32> {
        let mut least = vec![u32::MAX; update.tensors.len()];
        let mut first = vec![u32::MAX; update.nodes.len()];
        let lower = |least: &mut u32, rank: u32| *least = rank.min(*least);
        for (port, maker) in update.outputs.iter().zip(makers) {
            lower(&mut least[port.tensor.0 as usize], maker.unwrap_or(0));
        }
        for (node, first) in update.nodes.iter().zip(&mut first).rev() {
            // A node whose output nobody reads is in the trace all the same: rank 0 runs it.
            let rank = least[node.output.0 as usize];
            *first = if rank == u32::MAX { 0 } else { rank };
            node.primitive.inputs().into_iter().for_each(|id| lower(&mut least[id.0 as usize], *first));
        }
        first
    }

    /// Refuses an update in which a rank would read another rank's slots: in one pass from the inputs on.
    fn refuse_foreign(&self, update: &Graph, makers: &[Option<u32>]) -> Result<(), RankError> {
        let places = self.places();
        let mut reads = vec![Reads::Nobodys; update.tensors.len()];
        for input in &update.inputs {
            let holder = places.get(input.name.as_str()).and_then(|&place| self.holder(place));
            reads[input.tensor.0 as usize] = holder.map_or(Reads::Nobodys, Reads::Of);
        }
        for node in &update.nodes {
            let inputs = node.primitive.inputs().into_iter().map(|id| reads[id.0 as usize]);
            reads[node.output.0 as usize] = inputs.fold(Reads::Nobodys, Reads::and);
        }
        // A rank that would read slots which it does not hold.
        let fails = |reads: Reads, maker: Option<u32>| match (reads, maker) {
            (Reads::Nobodys, _) => None,
            (Reads::Of(rank), Some(maker)) => (rank != maker).then_some(maker),
            (Reads::Several, Some(maker)) => Some(maker),
            // All ranks make it.
            (Reads::Of(0), None) => (self.ranks > 1).then_some(1),
            (_, None) => (self.ranks > 1).then_some(0),
        };
        let outputs = update.outputs.iter().zip(makers).map(|(port, &maker)| (port.tensor, maker));
        let all = needed(update, update.outputs.iter().map(|port| port.tensor));
        let unread =
            update.nodes.iter().zip(all).filter(|(_, read)| !read).map(|(node, _)| (node.output, Some(0)));
        let failing =
            outputs.chain(unread).find_map(|(tensor, maker)| fails(reads[tensor.0 as usize], maker));
        failing.map_or(Ok(()), |rank| self.share_of(update, rank).map(drop))
    }

    /// The share of a rank.
    ///
    /// # Errors
    /// If the update reads slots of another rank: then no plan was made.
    fn share_of(&self, update: &Graph, rank: u32) -> Result<RankShare, RankError> {
        let places = self.places();
        let place = |name: &str| places.get(name).copied();
        let outputs: Vec<bool> =
            self.makers(update).into_iter().map(|maker| maker.is_none_or(|maker| maker == rank)).collect();
        let picked = update.outputs.iter().zip(&outputs).filter(|(_, own)| **own).map(|(port, _)| port);
        let made = picked.clone().filter_map(|port| place(&port.name)).collect();
        let tensors: Vec<_> = picked.map(|port| port.tensor).collect();
        let all = update.outputs.iter().map(|port| port.tensor);
        let used = if rank == 0 { needed(update, all) } else { vec![true; update.nodes.len()] };
        let unused = update.nodes.iter().zip(used).filter(|(_, used)| !used).map(|(node, _)| node.output);
        let nodes = needed(update, tensors.into_iter().chain(unused));
        let share = GraphPart::of(update, &nodes, &outputs);
        let foreign = share.graph.inputs.iter().find(|input| {
            place(&input.name).and_then(|place| self.holder(place)).is_some_and(|holder| holder != rank)
        });
        if let Some(input) = foreign {
            let name = &input.name;
            let why = format!(
                "--shard-optimizer: this program's update reads {name} for another parameter than its own, so its slots cannot be divided: \
                 leave it out"
            );
            return Err(RankError::Refused(why));
        }
        let traces = nodes.iter().zip(&self.first).filter(|(run, _)| **run).map(|(_, &first)| first == rank);
        let (traces, held) = (traces.collect(), self.places_of(rank).collect());
        Ok(RankShare { update: UpdateShare { held, made, update: share }, traces })
    }

    /// The share of a rank of this plan's program.
    ///
    /// # Panics
    /// If the plan is of another program.
    pub fn share(&self, program: &Program, rank: u32) -> RankShare {
        self.share_of(&program.update, rank).expect("the plan was made of this update")
    }

    /// The ranks of which one needs the most memory: rank 0, which runs what no output needs, the rank with the most bytes of slots, and
    /// the one with the largest parameter.
    pub fn heaviest(&self) -> [u32; 3] {
        let most = (0..self.ranks).max_by_key(|&rank| (self.bytes(rank), Reverse(rank)));
        let size = |place: &usize| self.table[*place].ty().bytes();
        let largest = (0..self.released).filter(|&place| self.owners[place].is_some()).max_by_key(size);
        let of_largest = largest.and_then(|place| self.owners[place]);
        [0, most.unwrap_or(0), of_largest.unwrap_or(0)]
    }

    /// Bytes of a rank's slots.
    pub fn bytes(&self, rank: u32) -> u64 {
        self.slots_of(rank).map(|place| self.table[place].ty().bytes() as u64).sum()
    }

    /// The most bytes of slots that a rank has, and the bytes of all slots.
    pub fn most_of_all(&self) -> (u64, u64) {
        let most = (0..self.ranks).map(|rank| self.bytes(rank)).max();
        (most.unwrap_or(0), state_bytes(&self.table[self.released..]))
    }

    /// The rank that alone has a tensor of the state.
    pub(super) fn holder(&self, place: usize) -> Option<u32> {
        self.owners[place].filter(|_| place >= self.released)
    }

    /// The places of a rank's slots.
    pub(super) fn slots_of(&self, rank: u32) -> impl Iterator<Item = usize> {
        (self.released..self.table.len()).filter(move |&place| self.owners[place] == Some(rank))
    }

    /// True if a rank has a tensor behind this place of the state.
    pub(super) fn has_more(&self, rank: u32, place: usize) -> bool {
        place + 1 < self.released || self.slots_of(rank).any(|slot| slot > place)
    }

    /// The places of the tensors that a rank has.
    fn places_of(&self, rank: u32) -> impl Iterator<Item = usize> {
        (0..self.released).chain(self.slots_of(rank))
    }

    /// The places of the parameters that a rank updates.
    fn parameters_of(&self, rank: u32) -> impl Iterator<Item = usize> {
        (0..self.released).filter(move |&place| self.owners[place] == Some(rank))
    }

    /// The tensors that every rank has.
    pub(super) fn common(&self) -> &[StateTensor] {
        &self.table[..self.released]
    }

    /// The digests of a rank's tensors, from those of all.
    pub(super) fn held(&self, rank: u32, all: &[Digest]) -> (Vec<StateTensor>, Vec<Digest>) {
        self.places_of(rank).map(|place| (self.table[place].clone(), all[place])).unzip()
    }

    /// The digests of the whole state, from those of the tensors that rank 0 has and those of each rank's slots.
    pub(super) fn whole<'d>(
        &self,
        first: &[Digest],
        slots: impl Iterator<Item = &'d [Digest]>,
    ) -> Vec<Digest> {
        let mut slots: Vec<_> = slots.map(|digests| digests.iter()).collect();
        let common = first[..self.released].iter();
        let owners = self.owners[self.released..].iter().map(|owner| owner.expect("each slot has a rank"));
        let own = owners.map(|rank| slots[rank as usize].next().expect("a rank has a digest of each slot"));
        common.chain(own).copied().collect()
    }

    /// The types of the update's outputs that a rank's trace has: each node is in the trace of one rank.
    pub(super) fn traced(&self, rank: u32) -> Vec<TensorType> {
        let own = self.first.iter().zip(&self.types).filter(|(first, _)| **first == rank);
        own.map(|(_, ty)| ty.clone()).collect()
    }

    /// For each node of the update, the rank in whose trace it is.
    pub(super) fn tracers(&self) -> &[u32] {
        &self.first
    }

    /// Bytes of new parameters that a rank sends to others in a step.
    pub fn bytes_sent(&self, rank: u32) -> u64 {
        let own: usize = self.parameters_of(rank).map(|place| self.table[place].ty().bytes()).sum();
        own as u64 * (u64::from(self.ranks) - 1)
    }
}

/// Brings the parameters that each rank updated to all others.
pub(super) fn gather(
    session: &mut Session,
    collective: &mut dyn Collective,
    plan: &SlotPlan,
) -> Result<(), TrainError> {
    let rank = collective.rank();
    // Of each rank, the parameters that come from it.
    let coming: Vec<Vec<usize>> = (0..collective.ranks())
        .map(|from| plan.parameters_of(from).filter(|_| from != rank).collect())
        .collect();
    match collective.devices() {
        Some(devices) => gather_on_devices(session, devices, plan, rank, &coming),
        None => gather_over_hosts(session, collective, plan, &coming),
    }
}

fn gather_over_hosts(
    session: &mut Session,
    collective: &mut dyn Collective,
    plan: &SlotPlan,
    coming: &[Vec<usize>],
) -> Result<(), TrainError> {
    let rank = collective.rank();
    let mut own = Vec::new();
    for place in plan.parameters_of(rank) {
        session.read_at(place, &mut |bytes| own.push(bytes.to_vec()))?;
    }
    let sent = |to: u32| if to == rank { Vec::new() } else { own.iter().map(Vec::as_slice).collect() };
    let outgoing: Vec<Vec<&[u8]>> = (0..collective.ranks()).map(sent).collect();
    let lens = |places: &Vec<usize>| places.iter().map(|&place| plan.table[place].ty().bytes()).collect();
    let incoming: Vec<Vec<usize>> = coming.iter().map(lens).collect();
    let mut places = coming.iter().flatten();
    collective.all_to_all(&outgoing, &incoming, &mut |bytes| {
        let place = places.next().expect("each parameter comes once");
        Ok(session.replace_state(*place, bytes)?)
    })
}

/// [`gather`] without a copy on the host: parameters go from the tensors of one engine to new tensors of another.
fn gather_on_devices(
    session: &mut Session,
    devices: &mut dyn Devices,
    plan: &SlotPlan,
    rank: u32,
    coming: &[Vec<usize>],
) -> Result<(), TrainError> {
    let types = |places: &[usize]| places.iter().map(|&place| plan.table[place].ty()).collect::<Vec<_>>();
    let places: Vec<usize> = plan.parameters_of(rank).collect();
    let own: Vec<Tensor> = places.iter().map(|&place| session.tensor_at(place).clone()).collect();
    let mut received: Vec<Vec<Tensor>> = Vec::new();
    for places in coming {
        let blank = |ty: &TensorType| devices.blank(session.engine_mut(), ty);
        received.push(types(places).iter().map(blank).collect::<Result<_, _>>()?);
    }
    let sent = |to: usize| if to == rank as usize { Vec::new() } else { whole(&own, &types(&places)) };
    let outgoing: Vec<Vec<ShardPart>> = (0..coming.len()).map(sent).collect();
    let incoming: Vec<Vec<ShardPart>> =
        received.iter().zip(coming).map(|(tensors, places)| whole(tensors, &types(places))).collect();
    devices.exchange(session.engine_mut(), &outgoing, &incoming)?;
    drop((outgoing, incoming));
    let received = received.into_iter().flatten();
    coming.iter().flatten().zip(received).for_each(|(&place, tensor)| session.put(place, tensor));
    Ok(())
}

/// Whole tensors of these types.
fn whole<'t>(tensors: &'t [Tensor], types: &[TensorType]) -> Vec<ShardPart<'t>> {
    tensors.iter().zip(types).map(|(tensor, ty)| ShardPart { tensor, bytes: 0..ty.bytes() }).collect()
}

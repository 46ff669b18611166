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

/// The division of a program's slots and of its update.
pub struct SlotPlan {
    table: Vec<StateTensor>,
    /// The number of tensors of the state before the slots.
    released: usize,
    /// For each tensor of the state, the rank that updates it; `None` = every rank has it and does what is to be done with it.
    owners: Vec<Option<u32>>,
    shares: Vec<UpdateShare>,
    /// For each node of the update, the least of the ranks that run it.
    first: Vec<u32>,
    /// The types of the outputs of the update's nodes.
    types: Vec<TensorType>,
    /// For each rank, the update's nodes that it runs, in order.
    nodes: Vec<Vec<usize>>,
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
        let mut plan = SlotPlan {
            first: vec![u32::MAX; update.nodes.len()],
            table,
            released,
            owners,
            shares: Vec::new(),
            types,
            nodes: Vec::new(),
        };
        (0..ranks).try_for_each(|rank| plan.add_rank(update, rank))?;
        Ok(plan)
    }

    fn add_rank(&mut self, update: &Graph, rank: u32) -> Result<(), RankError> {
        let places: HashMap<&str, usize> =
            (0..).zip(&self.table).map(|(i, t)| (t.name.as_str(), i)).collect();
        let place = |name: &str| places.get(name).copied();
        // Scalars have no place in the state.
        let is_own =
            |name: &str| place(name).is_none_or(|i| self.owners[i].is_none_or(|owner| owner == rank));
        let outputs: Vec<bool> = update.outputs.iter().map(|port| is_own(&port.name)).collect();
        let picked = update.outputs.iter().zip(&outputs).filter(|(_, own)| **own).map(|(port, _)| port);
        let made = picked.clone().filter_map(|port| place(&port.name)).collect();
        let tensors: Vec<_> = picked.map(|port| port.tensor).collect();
        // A node whose output nobody reads is in the trace all the same: rank 0 runs it.
        let all = update.outputs.iter().map(|port| port.tensor);
        let used = if rank == 0 { needed(update, all) } else { vec![true; update.nodes.len()] };
        let unused = update.nodes.iter().zip(used).filter(|(_, used)| !used).map(|(node, _)| node.output);
        let nodes = needed(update, tensors.into_iter().chain(unused));
        let share = GraphPart::of(update, &nodes, &outputs);
        let foreign = share.graph.inputs.iter().find(|input| {
            place(&input.name).is_some_and(|i| i >= self.released && self.owners[i] != Some(rank))
        });
        if let Some(input) = foreign {
            let name = &input.name;
            let why = format!(
                "--shard-optimizer: this program's update reads {name} for another parameter than its own, so its slots cannot be divided: \
                 leave it out"
            );
            return Err(RankError::Refused(why));
        }
        let held = (0..self.table.len()).filter(|&i| i < self.released || self.owners[i] == Some(rank));
        self.shares.push(UpdateShare { held: held.collect(), made, update: share });
        let run: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i]).collect();
        run.iter().for_each(|&i| self.first[i] = self.first[i].min(rank));
        self.nodes.push(run);
        Ok(())
    }

    /// The share of each rank.
    pub fn shares(&self) -> &[UpdateShare] {
        &self.shares
    }

    /// The share of a rank.
    pub fn share(&self, rank: u32) -> &UpdateShare {
        &self.shares[rank as usize]
    }

    /// Bytes of a rank's slots.
    pub fn bytes(&self, rank: u32) -> u64 {
        self.slots_of(rank).map(|place| self.table[place].ty().bytes() as u64).sum()
    }

    /// The most bytes of slots that a rank has, and the bytes of all slots.
    pub fn most_of_all(&self) -> (u64, u64) {
        let most = (0..self.shares.len() as u32).map(|rank| self.bytes(rank)).max();
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
        self.share(rank).held.iter().map(|&place| (self.table[place].clone(), all[place])).unzip()
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
        let own = self.nodes[rank as usize].iter().filter(|&&node| self.first[node] == rank);
        own.map(|&node| self.types[node].clone()).collect()
    }

    /// For each node that a rank runs, true if the node is in this rank's trace.
    pub(super) fn traces(&self, rank: u32) -> impl Iterator<Item = bool> {
        self.nodes[rank as usize].iter().map(move |&node| self.first[node] == rank)
    }

    /// For each node of the update, the rank in whose trace it is.
    pub(super) fn tracers(&self) -> &[u32] {
        &self.first
    }

    /// Bytes of new parameters that a rank sends to others in a step.
    pub fn bytes_sent(&self, rank: u32) -> u64 {
        let own: usize = self.parameters_of(rank).map(|place| self.table[place].ty().bytes()).sum();
        own as u64 * (self.shares.len() as u64 - 1)
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

//! Sums all ranks' gradients by the fixed tree: reduce-scatter as an all-to-all of shards, additions of whole shards in the
//! tree's order, all-gather of the sums.
//!
//! The rank's engine adds a shard with the graph of every accumulation, over the shard's pieces instead of whole tensors. So
//! there is one definition of an addition, the one that the engine's self-test covers. Shards arrive as bytes of the host, or as
//! tensors of the engine from other ranks' devices; the addition is the same.

use std::iter::Peekable;
use std::slice::Iter;
use std::sync::Arc;

use super::collective::{Collective, Devices, ShardPart};
use super::plan::{Piece, ShardPlan, Shared};
use crate::error::TrainError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::{Node, TensorType};
use tiebreak_contract::program::step::{StateTensor, sum_graph};
use tiebreak_engine::session::{Gradients, Session};
use tiebreak_engine::{Compiled, EngineError, Inputs, Observer, Tensor};
use tiebreak_record::commit::tensor::{Hash, TILE_BYTES, piece_value, tile_count};

/// Adds this rank's shards.
pub(crate) struct Adder {
    /// `None` for an empty shard: there are more ranks than tiles.
    compiled: Option<Compiled>,
    pieces: Vec<Piece>,
    /// The number of tiles of each piece's whole tensor.
    counts: Vec<usize>,
}

fn piece_type(piece: &Piece) -> TensorType {
    TensorType { dtype: DType::F32, shape: vec![piece.bytes.len() as u32 / 4] }
}

/// Hashes the tiles of every sum.
struct Tiles<'a> {
    adder: &'a Adder,
    values: &'a mut Vec<Hash>,
}

impl Observer for Tiles<'_> {
    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let (piece, count) = (&self.adder.pieces[index], self.adder.counts[index]);
        let tiles = piece.tiles.clone().zip(bytes.chunks(TILE_BYTES));
        self.values.extend(tiles.map(|(tile, bytes)| piece_value(bytes, TILE_BYTES, tile, count)));
        Ok(None)
    }
}

impl Adder {
    pub fn new(session: &mut Session, plan: &ShardPlan, rank: u32) -> Result<Adder, EngineError> {
        let pieces = plan.shard(rank).to_vec();
        let table: Vec<StateTensor> = pieces
            .iter()
            .map(|piece| StateTensor {
                name: plan.gradients()[piece.tensor].name.clone(),
                shape: piece_type(piece).shape,
            })
            .collect();
        let whole = |piece: &Piece| tile_count(plan.gradients()[piece.tensor].ty().bytes());
        let counts = pieces.iter().map(whole).collect();
        let compiled = match pieces.is_empty() {
            true => None,
            false => Some(session.engine_mut().compile(Arc::new(sum_graph(&table)))?),
        };
        Ok(Adder { compiled, pieces, counts })
    }

    /// A shard from its canonical bytes.
    fn upload(&self, session: &mut Session, mut bytes: &[u8]) -> Result<Vec<Tensor>, EngineError> {
        let mut tensors = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let (own, rest) = bytes.split_at(piece.bytes.len());
            tensors.push(session.engine_mut().upload(&piece_type(piece), own)?);
            bytes = rest;
        }
        Ok(tensors)
    }

    /// The sum of two shards; the hash values of its tiles go to `tiles`.
    fn add(
        &self,
        session: &mut Session,
        left: Vec<Tensor>,
        right: Vec<Tensor>,
        tiles: Option<&mut Vec<Hash>>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let Some(compiled) = &self.compiled else { return Ok(Vec::new()) };
        let inputs: Vec<Tensor> = left.into_iter().zip(right).flat_map(|(l, r)| [l, r]).collect();
        let mut observer = tiles.map(|values| Tiles { adder: self, values });
        let observer = observer.as_mut().map(|observer| observer as &mut dyn Observer);
        session.engine_mut().run(compiled, &inputs, observer)
    }
}

/// The shards of a sum on this rank, in order: `[s]` is rank s's.
fn shards(session: &mut Session, plan: &ShardPlan, sum: &Gradients) -> Result<Vec<Vec<u8>>, EngineError> {
    let mut shards: Vec<Vec<u8>> =
        (0..plan.ranks()).map(|rank| Vec::with_capacity(plan.shard_bytes(rank))).collect();
    session.visit_gradients(sum, |tensor, bytes| {
        for (rank, shard) in (0..).zip(&mut shards) {
            for piece in plan.shard(rank).iter().filter(|piece| piece.tensor == tensor) {
                shard.extend_from_slice(&bytes[piece.bytes.clone()]);
            }
        }
    })?;
    Ok(shards)
}

/// The shared nodes of the tree, evaluated on this rank's shards.
struct Tree<'a> {
    adder: &'a Adder,
    steps: Peekable<Iter<'a, Shared>>,
    waiting: Vec<Vec<Tensor>>,
    tiles: Option<&'a mut Vec<Hash>>,
}

impl Tree<'_> {
    /// Takes the next shard, and makes the additions that are possible then.
    fn take(&mut self, session: &mut Session, shard: Vec<Tensor>) -> Result<(), EngineError> {
        self.steps.next_if_eq(&&Shared::Take).expect("the plan takes every partial sum");
        self.waiting.push(shard);
        while self.steps.next_if(|step| matches!(step, Shared::Add(_))).is_some() {
            let right = self.waiting.pop().expect("an addition has two operands");
            let left = self.waiting.pop().expect("an addition has two operands");
            self.waiting.push(self.adder.add(session, left, right, self.tiles.as_deref_mut())?);
        }
        Ok(())
    }

    /// The root, after every shard was taken.
    fn root(mut self) -> Vec<Tensor> {
        self.waiting.pop().expect("the tree has a root")
    }
}

/// The sum of the whole step's gradients, the same on every rank, from every rank's partial sums. For each shared addition, the
/// hash values of the tiles of this rank's shard go to `tiles`.
pub(crate) fn sum(
    session: &mut Session,
    collective: &mut dyn Collective,
    plan: &ShardPlan,
    adder: &Adder,
    partials: Vec<Gradients>,
    tiles: Option<&mut Vec<Hash>>,
) -> Result<Gradients, TrainError> {
    let rank = collective.rank();
    let tree = Tree { adder, steps: plan.shared().iter().peekable(), waiting: Vec::new(), tiles };
    match collective.devices() {
        Some(devices) => sum_on_devices(session, devices, plan, rank, partials, tree),
        None => sum_over_hosts(session, collective, plan, partials, tree),
    }
}

fn sum_over_hosts(
    session: &mut Session,
    collective: &mut dyn Collective,
    plan: &ShardPlan,
    partials: Vec<Gradients>,
    mut tree: Tree,
) -> Result<Gradients, TrainError> {
    let rank = collective.rank();
    let mut sent = Vec::with_capacity(partials.len());
    for partial in partials {
        sent.push(shards(session, plan, &partial)?);
    }
    let outgoing: Vec<Vec<&[u8]>> = (0..plan.ranks() as usize)
        .map(|to| sent.iter().map(|shards| shards[to].as_slice()).collect())
        .collect();
    let incoming: Vec<Vec<usize>> =
        (0..plan.ranks()).map(|from| vec![plan.shard_bytes(rank); plan.partials(from)]).collect();
    // Shards arrive in the order in which the tree takes them, so each is added as soon as possible.
    collective.all_to_all(&outgoing, &incoming, &mut |bytes| {
        let shard = tree.adder.upload(session, bytes)?;
        Ok(tree.take(session, shard)?)
    })?;
    drop(sent);
    let mut own = Vec::with_capacity(plan.shard_bytes(rank));
    for tensor in tree.root() {
        session.engine_mut().read(&tensor, &mut |bytes| own.extend_from_slice(bytes))?;
    }
    let outgoing = vec![vec![own.as_slice()]; plan.ranks() as usize];
    let incoming: Vec<Vec<usize>> = (0..plan.ranks()).map(|from| vec![plan.shard_bytes(from)]).collect();
    // Shards are in the order of ranks.
    let mut whole = Vec::with_capacity(incoming.iter().flatten().sum());
    collective.all_to_all(&outgoing, &incoming, &mut |bytes| {
        whole.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(session.upload_gradients(&whole)?)
}

/// [`sum`] without a copy on the host: shards go from the tensors of a sum to tensors of their own, and from there to the whole
/// gradient's.
fn sum_on_devices(
    session: &mut Session,
    devices: &mut dyn Devices,
    plan: &ShardPlan,
    rank: u32,
    partials: Vec<Gradients>,
    mut tree: Tree,
) -> Result<Gradients, TrainError> {
    let engine = session.engine_mut();
    let (pieces, ranks) = (plan.shard(rank), 0..plan.ranks());
    let mut received: Vec<Vec<Vec<Tensor>>> = Vec::new();
    for from in ranks.clone() {
        let mut shard = || pieces.iter().map(|piece| devices.blank(engine, &piece_type(piece))).collect();
        received.push((0..plan.partials(from)).map(|_| shard()).collect::<Result<_, _>>()?);
    }
    let outgoing: Vec<Vec<ShardPart>> = ranks
        .clone()
        .map(|to| partials.iter().flat_map(|sum| of_pieces(plan.shard(to), sum.tensors())).collect())
        .collect();
    let incoming: Vec<Vec<ShardPart>> =
        received.iter().map(|sums| sums.iter().flat_map(|shard| whole(pieces, shard)).collect()).collect();
    devices.exchange(engine, &outgoing, &incoming)?;
    drop((outgoing, incoming));
    drop(partials);
    for shard in received.into_iter().flatten() {
        tree.take(session, shard)?;
    }
    let (engine, own) = (session.engine_mut(), tree.root());
    let mut total = Vec::with_capacity(plan.gradients().len());
    for tensor in plan.gradients() {
        total.push(devices.blank(engine, &tensor.ty())?);
    }
    let outgoing: Vec<Vec<ShardPart>> = ranks.clone().map(|_| whole(pieces, &own).collect()).collect();
    let incoming: Vec<Vec<ShardPart>> =
        ranks.map(|from| of_pieces(plan.shard(from), &total).collect()).collect();
    devices.exchange(engine, &outgoing, &incoming)?;
    drop(incoming);
    Ok(Gradients::of(total))
}

/// Pieces of a sum, as ranges of its tensors.
fn of_pieces<'t>(pieces: &'t [Piece], tensors: &'t [Tensor]) -> impl Iterator<Item = ShardPart<'t>> {
    pieces.iter().map(|piece| ShardPart { tensor: &tensors[piece.tensor], bytes: piece.bytes.clone() })
}

/// Pieces of a sum that are tensors of their own.
fn whole<'t>(pieces: &'t [Piece], tensors: &'t [Tensor]) -> impl Iterator<Item = ShardPart<'t>> {
    pieces.iter().zip(tensors).map(|(piece, tensor)| ShardPart { tensor, bytes: 0..piece.bytes.len() })
}

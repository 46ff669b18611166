//! Sums all ranks' gradients by the fixed tree, bucket by bucket: reduce-scatter as an all-to-all of shards, additions of whole shards in
//! the tree's order, all-gather of the sums.
//!
//! An engine adds a shard with the graph of every accumulation, over the shard's pieces instead of whole tensors. So there is one
//! definition of an addition, the one that `tests/runs/ranks_in_buckets.rs` holds to a single process's. Shards arrive as bytes of the host (`beside`), or as
//! tensors of the engine from other ranks' devices; the addition is the same.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::slice::Iter;
use std::sync::Arc;

use super::collective::{Devices, ShardPart};
use super::plan::{Piece, ShardPlan, Shared};
use crate::error::TrainError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::{Node, TensorType};
use tiebreak_contract::program::step::{StateTensor, sum_graph};
use tiebreak_engine::session::{Gradients, Session};
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Tensor};
use tiebreak_record::commit::tensor::{Hash, TILE_BYTES, piece_value, tile_count};

/// Adds this rank's shards of one bucket.
pub(crate) struct Adder {
    /// `None` for an empty shard: the bucket has fewer tiles than there are ranks.
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

/// The sum of pairs of tensors, each pair's operands side by side.
pub(super) fn pairs(left: Vec<Tensor>, right: Vec<Tensor>) -> Vec<Tensor> {
    left.into_iter().zip(right).flat_map(|(left, right)| [left, right]).collect()
}

impl Adder {
    pub fn new(
        engine: &mut dyn Engine,
        plan: &ShardPlan,
        bucket: usize,
        rank: u32,
    ) -> Result<Adder, EngineError> {
        let pieces = plan.shard_of(bucket, rank).to_vec();
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
            false => Some(engine.compile(Arc::new(sum_graph(&table)))?),
        };
        Ok(Adder { compiled, pieces, counts })
    }

    /// A shard from its canonical bytes.
    pub fn upload(&self, engine: &mut dyn Engine, mut bytes: &[u8]) -> Result<Vec<Tensor>, EngineError> {
        let mut tensors = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            let (own, rest) = bytes.split_at(piece.bytes.len());
            tensors.push(engine.upload(&piece_type(piece), own)?);
            bytes = rest;
        }
        Ok(tensors)
    }

    /// The sum of two shards; the hash values of its tiles go to `tiles`.
    fn add(
        &self,
        engine: &mut dyn Engine,
        left: Vec<Tensor>,
        right: Vec<Tensor>,
        tiles: Option<&mut Vec<Hash>>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let Some(compiled) = &self.compiled else { return Ok(Vec::new()) };
        let mut observer = tiles.map(|values| Tiles { adder: self, values });
        let observer = observer.as_mut().map(|observer| observer as &mut dyn Observer);
        engine.run(compiled, &pairs(left, right), observer)
    }
}

/// The shared nodes of the tree, evaluated on this rank's shards of one bucket.
pub(super) struct Tree<'a> {
    pub adder: &'a Adder,
    steps: Peekable<Iter<'a, Shared>>,
    /// Shards that came before others which the tree takes first, by their places.
    early: BTreeMap<usize, Vec<Tensor>>,
    taken: usize,
    waiting: Vec<Vec<Tensor>>,
    /// The hash values of the sums' tiles, addition after addition, if anybody wants them.
    pub tiles: Option<Vec<Hash>>,
}

impl<'a> Tree<'a> {
    pub fn new(adder: &'a Adder, plan: &'a ShardPlan, hashing: bool) -> Tree<'a> {
        let steps = plan.shared().iter().peekable();
        let tiles = hashing.then(Vec::new);
        Tree { adder, steps, early: BTreeMap::new(), taken: 0, waiting: Vec::new(), tiles }
    }

    /// Takes the shard at a place among all partial sums, and makes the additions that are possible then.
    pub fn take(
        &mut self,
        engine: &mut dyn Engine,
        place: usize,
        shard: Vec<Tensor>,
    ) -> Result<(), EngineError> {
        self.early.insert(place, shard);
        while let Some(shard) = self.early.remove(&self.taken) {
            self.taken += 1;
            self.steps.next_if_eq(&&Shared::Take).expect("the plan takes every partial sum");
            self.waiting.push(shard);
            while self.steps.next_if(|step| matches!(step, Shared::Add(_))).is_some() {
                let right = self.waiting.pop().expect("an addition has two operands");
                let left = self.waiting.pop().expect("an addition has two operands");
                self.waiting.push(self.adder.add(engine, left, right, self.tiles.as_mut())?);
            }
        }
        Ok(())
    }

    /// The root, after every shard was taken.
    pub fn root(&mut self) -> Vec<Tensor> {
        self.waiting.pop().expect("the tree has a root")
    }
}

/// The sum of the whole step's gradients, the same on every rank, from every rank's partial sums, without a copy on the host: shards go
/// from the tensors of a sum to tensors of their own, and from there to the whole gradient's. The plan has one bucket. For each shared
/// addition, the hash values of the tiles of this rank's shard are beside the sum, if `hashing`.
pub(super) fn sum_on_devices(
    session: &mut Session,
    devices: &mut dyn Devices,
    plan: &ShardPlan,
    adder: &Adder,
    partials: Vec<Gradients>,
    hashing: bool,
) -> Result<(Gradients, Vec<Hash>), TrainError> {
    let engine = session.engine_mut();
    let (pieces, ranks) = (adder.pieces.as_slice(), 0..plan.ranks());
    let mut received: Vec<Vec<Vec<Tensor>>> = Vec::new();
    for from in ranks.clone() {
        let mut shard = || pieces.iter().map(|piece| devices.blank(engine, &piece_type(piece))).collect();
        received.push((0..plan.partials(from)).map(|_| shard()).collect::<Result<_, _>>()?);
    }
    let outgoing: Vec<Vec<ShardPart>> = ranks
        .clone()
        .map(|to| partials.iter().flat_map(|sum| of_pieces(plan.shard_of(0, to), sum.tensors())).collect())
        .collect();
    let incoming: Vec<Vec<ShardPart>> =
        received.iter().map(|sums| sums.iter().flat_map(|shard| whole(pieces, shard)).collect()).collect();
    devices.exchange(engine, &outgoing, &incoming)?;
    drop((outgoing, incoming));
    drop(partials);
    let mut tree = Tree::new(adder, plan, hashing);
    for (place, shard) in received.into_iter().flatten().enumerate() {
        tree.take(engine, place, shard)?;
    }
    let own = tree.root();
    let mut total = Vec::with_capacity(plan.gradients().len());
    for tensor in plan.gradients() {
        total.push(devices.blank(engine, &tensor.ty())?);
    }
    let outgoing: Vec<Vec<ShardPart>> = ranks.clone().map(|_| whole(pieces, &own).collect()).collect();
    let incoming: Vec<Vec<ShardPart>> =
        ranks.map(|from| of_pieces(plan.shard_of(0, from), &total).collect()).collect();
    devices.exchange(engine, &outgoing, &incoming)?;
    drop(incoming);
    Ok((Gradients::of(total), tree.tiles.unwrap_or_default()))
}

/// Pieces of a sum, as ranges of its tensors.
fn of_pieces<'t>(pieces: &'t [Piece], tensors: &'t [Tensor]) -> impl Iterator<Item = ShardPart<'t>> {
    pieces.iter().map(|piece| ShardPart { tensor: &tensors[piece.tensor], bytes: piece.bytes.clone() })
}

/// Pieces of a sum that are tensors of their own.
fn whole<'t>(pieces: &'t [Piece], tensors: &'t [Tensor]) -> impl Iterator<Item = ShardPart<'t>> {
    pieces.iter().zip(tensors).map(|(piece, tensor)| ShardPart { tensor, bytes: 0..piece.bytes.len() })
}

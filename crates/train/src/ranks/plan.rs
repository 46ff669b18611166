//! Divides a step among ranks: micro-batches, the nodes of the accumulation tree, buckets and shards of the gradient. Derivation:
//! `docs/DATA-PARALLEL.md`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::error::RankError;
use tiebreak_contract::arith::tree::{self, Operation};
use tiebreak_contract::program::graph::{Graph, TensorId};
use tiebreak_contract::program::step::{Program, StateTensor};
use tiebreak_record::commit::tensor::{TILE_BYTES, piece_range, tile_count};

/// An operation of the shared nodes of the tree, which no rank can evaluate alone, on a stack of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Pushes the next partial sum. Partial sums come in the order of ranks, and in each rank's own order.
    Take,
    /// The i-th addition of the whole tree: replaces the two topmost nodes by their sum.
    Add(u32),
}

/// A range of a gradient tensor's elements that lies in one shard. The range consists of whole tiles, so that the tiles' hashes
/// are the shard's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The index of the tensor in [`Program::gradients`].
    pub tensor: usize,
    /// The tiles' numbers in the tensor.
    pub tiles: Range<usize>,
    /// The range of the tiles in the tensor's canonical bytes.
    pub bytes: Range<usize>,
}

/// The least bytes of a bucket, unless somebody chooses others.
const BUCKET_BYTES: u64 = 1 << 20;
/// The most buckets of a gradient, unless somebody chooses otherwise: a bucket costs each rank a message to each other one.
const BUCKETS: u64 = 64;

/// The division of a step.
pub struct ShardPlan {
    ranks: u32,
    micro_batches: u32,
    /// The least bytes of a bucket; 0 = one bucket, and ranks compute all before they send anything.
    bucket_bytes: u64,
    /// The operations of the whole tree, each with the rank that does it alone; `None` = all ranks, each on its shard.
    operations: Vec<(Operation, Option<u32>)>,
    shared: Vec<Shared>,
    /// The number of partial sums of each rank when its own operations are done.
    partials: Vec<usize>,
    /// For each round, each rank's partial sum that is exchanged in it.
    rounds: Vec<Vec<Option<usize>>>,
    /// For each round, the micro-batches that its ranks compute after it.
    left: Vec<usize>,
    gradients: Vec<StateTensor>,
    /// The tensors of each bucket.
    buckets: Vec<Vec<usize>>,
    /// For each bucket, each rank's shard of it.
    shards: Vec<Vec<Vec<Piece>>>,
}

/// Checks that a program's steps can be divided, and that every rank has work.
///
/// # Errors
/// If there are more ranks than micro-batches, or none. Also if there are several and moments are pooled: pooling needs counts
/// that lie in another rank's shard.
pub fn divides(program: &Program, ranks: u32) -> Result<(), RankError> {
    let micro_batches = program.micro_batches;
    if let (Some(first), 2..) = (program.statistics().first(), ranks) {
        return Err(RankError::Refused(format!(
            "this job has batch normalisation ({}), whose moments one process pools over all micro-batches: train it with one rank",
            first.name
        )));
    }
    if (1..=micro_batches).contains(&ranks) {
        return Ok(());
    }
    Err(RankError::Refused(format!(
        "a step of this job has {micro_batches} micro-batches, so 1 to {micro_batches} ranks have work, not {ranks}: give fewer \
         ranks, or more (and smaller) micro-batches"
    )))
}

/// The least bytes of a bucket for a program's gradient.
pub fn bucket_bytes(program: &Program) -> u64 {
    let all: u64 = program.gradients().iter().map(|tensor| tensor.ty().bytes() as u64).sum();
    BUCKET_BYTES.max(all / BUCKETS)
}

/// The tensors of a gradient, as the backward pass finishes them, in runs of at least so many bytes each but for the last.
fn buckets(micro: &Graph, least: u64) -> Vec<Vec<usize>> {
    let makers: HashMap<TensorId, usize> =
        micro.nodes.iter().enumerate().map(|(index, node)| (node.output, index)).collect();
    // The graph makes every output; one that it took would be there from the beginning.
    let finished = |tensor: &usize| makers.get(&micro.outputs[*tensor].tensor).copied();
    let mut order: Vec<usize> = (0..micro.outputs.len()).collect();
    order.sort_by_key(finished);
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for tensor in order {
        if buckets.is_empty() || (least > 0 && bytes >= least) {
            buckets.push(Vec::new());
            bytes = 0;
        }
        bytes += micro.tensor(micro.outputs[tensor].tensor).bytes() as u64;
        buckets.last_mut().expect("there is one").push(tensor);
    }
    buckets
}

impl ShardPlan {
    /// # Errors
    /// As [`divides`].
    pub fn new(program: &Program, ranks: u32) -> Result<ShardPlan, RankError> {
        ShardPlan::in_buckets(program, ranks, bucket_bytes(program))
    }

    /// The plan with buckets of at least so many bytes. 0: one bucket, and ranks compute all before they send anything.
    ///
    /// # Errors
    /// As [`divides`].
    pub fn in_buckets(program: &Program, ranks: u32, bucket_bytes: u64) -> Result<ShardPlan, RankError> {
        let micro_batches = program.micro_batches;
        divides(program, ranks)?;
        let mut plan = ShardPlan {
            ranks,
            micro_batches,
            bucket_bytes,
            operations: Vec::new(),
            shared: Vec::new(),
            partials: vec![0; ranks as usize],
            rounds: Vec::new(),
            left: Vec::new(),
            gradients: program.gradients(),
            buckets: buckets(&program.micro, bucket_bytes),
            shards: Vec::new(),
        };
        plan.divide_tree();
        plan.order_rounds();
        plan.shards = plan.buckets.iter().map(|bucket| plan.divided(bucket)).collect();
        Ok(plan)
    }

    /// Groups partial sums by how many micro-batches their ranks compute after them. Shares differ by at most one, so ranks that
    /// exchange in a round have about as much behind them.
    fn order_rounds(&mut self) {
        let mut rounds: BTreeMap<Reverse<usize>, Vec<Option<usize>>> = BTreeMap::new();
        for rank in 0..self.ranks {
            let mut left = self.micro_batches(rank).len();
            let mut stack = Vec::new();
            for operation in self.local(rank) {
                match operation {
                    Operation::Term(_) => left -= 1,
                    Operation::Add(_) => stack.truncate(stack.len() - 2),
                }
                stack.push(left);
            }
            for (partial, left) in stack.into_iter().enumerate() {
                let round = rounds.entry(Reverse(left)).or_insert_with(|| vec![None; self.ranks as usize]);
                round[rank as usize] = Some(partial);
            }
        }
        self.left = rounds.keys().map(|Reverse(left)| *left).collect();
        self.rounds = rounds.into_values().collect();
    }

    fn divide_tree(&mut self) {
        let ends: Vec<u32> = (0..self.ranks).map(|rank| self.micro_batches(rank).end).collect();
        // For every node on the stack: the rank that has it alone, and how the ranks together get it from partial sums.
        let mut stack: Vec<(Option<u32>, Vec<Shared>)> = Vec::new();
        for operation in tree::operations(self.micro_batches) {
            let node = match operation {
                Operation::Term(i) => {
                    let rank = ends.partition_point(|&end| end <= i) as u32;
                    (Some(rank), vec![Shared::Take])
                }
                Operation::Add(i) => {
                    let (right, after) = stack.pop().expect("an addition has two operands");
                    let (left, mut steps) = stack.pop().expect("an addition has two operands");
                    if left.is_some() && left == right {
                        (left, steps)
                    } else {
                        for rank in [left, right].into_iter().flatten() {
                            self.partials[rank as usize] += 1;
                        }
                        steps.extend(after);
                        steps.push(Shared::Add(i));
                        (None, steps)
                    }
                }
            };
            self.operations.push((operation, node.0));
            stack.push(node);
        }
        let (owner, shared) = stack.pop().expect("a step has at least one micro-batch");
        if let Some(rank) = owner {
            self.partials[rank as usize] += 1;
        }
        self.shared = shared;
    }

    /// Divides a bucket's tiles, tensor after tensor, into one range for each rank, as evenly as whole tiles allow.
    fn divided(&self, bucket: &[usize]) -> Vec<Vec<Piece>> {
        let bytes = |tensor: usize| self.gradients[tensor].ty().bytes();
        let tiles: usize = bucket.iter().map(|&tensor| tile_count(bytes(tensor))).sum();
        let ranks = self.ranks as usize;
        let shard = |rank: usize| {
            let shard = rank * tiles / ranks..(rank + 1) * tiles / ranks;
            let mut pieces = Vec::new();
            let mut first = 0;
            for &tensor in bucket {
                let count = tile_count(bytes(tensor));
                let from = shard.start.clamp(first, first + count) - first;
                let to = shard.end.clamp(first, first + count) - first;
                if from < to {
                    let end = piece_range(bytes(tensor), TILE_BYTES, to - 1).end;
                    pieces.push(Piece { tensor, tiles: from..to, bytes: from * TILE_BYTES..end });
                }
                first += count;
            }
            pieces
        };
        (0..ranks).map(shard).collect()
    }

    /// The number of ranks that share the step.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The micro-batches that a rank computes: a contiguous range, so that most of its sums are nodes of the tree.
    pub fn micro_batches(&self, rank: u32) -> Range<u32> {
        let first =
            |rank: u32| (u64::from(rank) * u64::from(self.micro_batches) / u64::from(self.ranks)) as u32;
        first(rank)..first(rank + 1)
    }

    /// The micro-batch of the next rank that a rank computes too when ranks check each other for the `turn`-th time.
    pub(crate) fn checked_by(&self, rank: u32, turn: u32) -> u32 {
        let theirs = self.micro_batches(self.next(rank));
        theirs.start + turn % theirs.len() as u32
    }

    /// The rank whose gradients `rank` checks: the one after it.
    pub fn next(&self, rank: u32) -> u32 {
        (rank + 1) % self.ranks
    }

    /// Every operation of the tree in execution order, with the rank that does it alone, if one does.
    pub fn operations(&self) -> &[(Operation, Option<u32>)] {
        &self.operations
    }

    /// The operations that a rank does alone, in order.
    pub fn local(&self, rank: u32) -> impl Iterator<Item = Operation> {
        self.operations.iter().filter(move |(_, by)| *by == Some(rank)).map(|(operation, _)| *operation)
    }

    /// The number of partial sums that a rank then has: at most two for each level of the tree.
    pub fn partials(&self, rank: u32) -> usize {
        self.partials[rank as usize]
    }

    /// The operations that all ranks then do, each on its shard.
    pub fn shared(&self) -> &[Shared] {
        &self.shared
    }

    /// The number of additions among them.
    pub fn shared_additions(&self) -> usize {
        self.shared.iter().filter(|step| matches!(step, Shared::Add(_))).count()
    }

    /// The tensors of a sum of micro-batches.
    pub fn gradients(&self) -> &[StateTensor] {
        &self.gradients
    }

    /// The least bytes of a bucket, by which another rank makes the same plan; 0 = ranks compute all before they send anything.
    pub(super) fn bucket_bytes(&self) -> u64 {
        self.bucket_bytes
    }

    /// The tensors of each bucket, in the order in which buckets are exchanged.
    pub fn buckets(&self) -> &[Vec<usize>] {
        &self.buckets
    }

    /// The exchanges of partial sums: for each, the partial sum of each rank that has one. In the last one every rank has its last.
    pub fn rounds(&self) -> &[Vec<Option<usize>>] {
        &self.rounds
    }

    /// The micro-batches that a rank has computed when it begins a round: a rank without a partial sum there is as far as the others.
    pub(super) fn computed_before(&self, round: usize, rank: u32) -> usize {
        self.micro_batches(rank).len().saturating_sub(self.left[round])
    }

    /// The place of a rank's partial sum among those of all ranks, in the order in which [`Shared::Take`] takes them.
    pub(super) fn place(&self, rank: u32, partial: usize) -> usize {
        self.partials[..rank as usize].iter().sum::<usize>() + partial
    }

    /// The pieces of a bucket of every sum that a rank adds.
    pub fn shard_of(&self, bucket: usize, rank: u32) -> &[Piece] {
        &self.shards[bucket][rank as usize]
    }

    /// The pieces of every sum that a rank adds, bucket after bucket.
    pub fn shard(&self, rank: u32) -> impl Iterator<Item = &Piece> + Clone {
        self.shards.iter().flat_map(move |shards| &shards[rank as usize])
    }

    /// Bytes of a rank's shard.
    pub fn shard_bytes(&self, rank: u32) -> usize {
        self.shard(rank).map(|piece| piece.bytes.len()).sum()
    }

    /// Bytes of a rank's shard of a bucket.
    pub(super) fn bytes_of(&self, bucket: usize, rank: u32) -> usize {
        self.shard_of(bucket, rank).iter().map(|piece| piece.bytes.len()).sum()
    }

    /// Tiles of a rank's shard.
    pub(crate) fn shard_tiles(&self, rank: u32) -> usize {
        self.shard(rank).map(|piece| piece.tiles.len()).sum()
    }

    /// Bytes of gradients that a rank sends to others in a step.
    pub fn bytes_sent(&self, rank: u32) -> u64 {
        let others = (0..self.ranks).filter(|&other| other != rank);
        let shards: usize = others.map(|other| self.shard_bytes(other)).sum();
        let sums = self.shard_bytes(rank) * (self.ranks as usize - 1);
        (self.partials(rank) * shards + sums) as u64
    }
}

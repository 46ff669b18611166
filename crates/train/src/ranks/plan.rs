//! Divides a step among ranks: micro-batches, the nodes of the accumulation tree, shards of the gradient. Derivation:
//! `docs/DATA-PARALLEL.md`.

use std::ops::Range;

use crate::error::RankError;
use tiebreak_contract::arith::tree::{self, Operation};
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

/// The division of a step.
pub struct ShardPlan {
    ranks: u32,
    micro_batches: u32,
    /// The operations of the whole tree, each with the rank that does it alone; `None` = all ranks, each on its shard.
    operations: Vec<(Operation, Option<u32>)>,
    shared: Vec<Shared>,
    /// The number of partial sums of each rank when its own operations are done.
    partials: Vec<usize>,
    gradients: Vec<StateTensor>,
    shards: Vec<Vec<Piece>>,
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

impl ShardPlan {
    /// # Errors
    /// As [`divides`].
    pub fn new(program: &Program, ranks: u32) -> Result<ShardPlan, RankError> {
        let micro_batches = program.micro_batches;
        divides(program, ranks)?;
        let mut plan = ShardPlan {
            ranks,
            micro_batches,
            operations: Vec::new(),
            shared: Vec::new(),
            partials: vec![0; ranks as usize],
            gradients: program.gradients(),
            shards: Vec::new(),
        };
        plan.divide_tree();
        plan.divide_gradient();
        Ok(plan)
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

    /// Divides the gradient's tiles, tensor after tensor, into one range for each rank, as evenly as whole tiles allow.
    fn divide_gradient(&mut self) {
        let bytes: Vec<usize> = self.gradients.iter().map(|t| t.ty().bytes()).collect();
        let tiles: usize = bytes.iter().map(|&bytes| tile_count(bytes)).sum();
        let ranks = self.ranks as usize;
        for rank in 0..ranks {
            let shard = rank * tiles / ranks..(rank + 1) * tiles / ranks;
            let mut pieces = Vec::new();
            let mut first = 0;
            for (tensor, &bytes) in bytes.iter().enumerate() {
                let count = tile_count(bytes);
                let from = shard.start.clamp(first, first + count) - first;
                let to = shard.end.clamp(first, first + count) - first;
                if from < to {
                    let end = piece_range(bytes, TILE_BYTES, to - 1).end;
                    pieces.push(Piece { tensor, tiles: from..to, bytes: from * TILE_BYTES..end });
                }
                first += count;
            }
            self.shards.push(pieces);
        }
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

    /// The pieces of every sum that a rank adds.
    pub fn shard(&self, rank: u32) -> &[Piece] {
        &self.shards[rank as usize]
    }

    /// Bytes of a rank's shard.
    pub fn shard_bytes(&self, rank: u32) -> usize {
        self.shard(rank).iter().map(|piece| piece.bytes.len()).sum()
    }

    /// Tiles of a rank's shard.
    pub(crate) fn shard_tiles(&self, rank: u32) -> usize {
        self.shard(rank).iter().map(|piece| piece.tiles.len()).sum()
    }

    /// Bytes of gradients that a rank sends to others in a step.
    pub fn bytes_sent(&self, rank: u32) -> u64 {
        let others = (0..self.ranks).filter(|&other| other != rank);
        let shards: usize = others.map(|other| self.shard_bytes(other)).sum();
        let sums = self.shard_bytes(rank) * (self.ranks as usize - 1);
        (self.partials(rank) * shards + sums) as u64
    }
}

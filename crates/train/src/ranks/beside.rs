//! The exchange of gradients over the hosts, bucket by bucket, in a thread of its own: the rank computes further buckets meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};

use super::collective::Collective;
use super::plan::ShardPlan;
use super::reduce::{Adder, Tree, pairs};
use crate::error::TrainError;
use tiebreak_contract::arith::tree::Operation;
use tiebreak_contract::program::step::{StateTensor, sum_graph};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::{Give, Session};
use tiebreak_engine::{Compiled, Engine, EngineError, Tensor};
use tiebreak_record::commit::tensor::Hash;

/// What a rank needs in each step to add over the hosts.
pub(crate) struct Hosts {
    /// The engine of the additions: the rank's own may be computing.
    engine: Cpu,
    /// For each bucket, the addition of the rank's shards of it.
    adders: Vec<Adder>,
    /// The operations that the rank's own engine does.
    operations: Vec<Operation>,
    /// The number of additions that end the rank's own part of the tree and are left to `engine`.
    left: usize,
    /// For each bucket, such an addition.
    whole: Vec<Compiled>,
    /// True if gradients are exchanged while the rank computes.
    overlaps: bool,
}

impl Hosts {
    /// `traces`: true if the step's trace has the rank's own additions.
    pub fn new(session: &Session, plan: &ShardPlan, rank: u32, traces: bool) -> Result<Hosts, EngineError> {
        let mut engine = Cpu::new(1)?;
        let count = plan.buckets().len();
        let adders = (0..count).map(|bucket| Adder::new(&mut engine, plan, bucket, rank));
        let adders = adders.collect::<Result<_, _>>()?;
        let overlaps = plan.bucket_bytes() > 0 && plan.ranks() > 1;
        let mut operations: Vec<Operation> = plan.local(rank).collect();
        // The session's engine would make the last additions when the whole micro-batch is done. Another engine's tensors, and sums that
        // wait outside of memory, stay where they are.
        let own = session.engine();
        let mut left = 0;
        if overlaps && !traces && own.is_on_host() && !own.keeps_outside() {
            while operations.pop_if(|operation| matches!(operation, Operation::Add(_))).is_some() {
                left += 1;
            }
        }
        let mut whole = Vec::new();
        for bucket in plan.buckets().iter().filter(|_| left > 0) {
            let table: Vec<StateTensor> =
                bucket.iter().map(|&tensor| plan.gradients()[tensor].clone()).collect();
            whole.push(engine.compile(Arc::new(sum_graph(&table)))?);
        }
        Ok(Hosts { engine, adders, operations, left, whole, overlaps })
    }
}

/// A finished tensor: the number of its sum, its place in the gradient, its bytes.
type Finished = (usize, usize, Vec<u8>);

/// What the computing thread tells.
enum Told {
    Tensor(Finished),
    /// A micro-batch is computed.
    MicroBatch,
}

/// The finished tensors of this rank's sums.
struct Handed {
    coming: Receiver<Told>,
    here: HashMap<(usize, usize), Vec<u8>>,
    /// The micro-batches that the rank has computed.
    computed: usize,
}

impl Handed {
    /// Waits for a tensor of a sum.
    fn take(&mut self, sum: usize, tensor: usize) -> Result<Vec<u8>, EngineError> {
        loop {
            if let Some(bytes) = self.here.remove(&(sum, tensor)) {
                return Ok(bytes);
            }
            self.hear()?;
        }
    }

    /// Waits until the rank has computed so many micro-batches.
    fn wait_for(&mut self, micro_batches: usize) -> Result<(), EngineError> {
        while self.computed < micro_batches {
            self.hear()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<(), EngineError> {
        match self.coming.recv() {
            Ok(Told::Tensor((sum, tensor, bytes))) => drop(self.here.insert((sum, tensor), bytes)),
            Ok(Told::MicroBatch) => self.computed += 1,
            Err(_) => return Err(EngineError::Stopped("this rank computes no further gradients".into())),
        }
        Ok(())
    }
}

/// A message that is due.
enum Due {
    /// A shard of a bucket, with its place among all partial sums.
    Shard(usize, usize),
    /// A rank's shard of a bucket of the sum.
    Sum(usize, u32),
}

/// A step's exchange.
struct Exchange<'a> {
    collective: &'a mut dyn Collective,
    plan: &'a ShardPlan,
    engine: &'a mut Cpu,
    handed: Handed,
    left: usize,
    whole: &'a [Compiled],
    trees: Vec<Tree<'a>>,
    /// The sum's bytes, and where each tensor's begin.
    sum: Vec<u8>,
    places: Vec<usize>,
}

impl Exchange<'_> {
    /// Exchanges all buckets of all rounds. The sums of a bucket go with the shards of the next one.
    fn run(mut self) -> Result<(Vec<u8>, Vec<Hash>), TrainError> {
        let (plan, rank) = (self.plan, self.collective.rank() as usize);
        let mut added = None;
        for (number, round) in plan.rounds().iter().enumerate() {
            let is_last = number + 1 == plan.rounds().len();
            // A rank with nothing to send would wait for the others from the step's begin, and give up one that only computes.
            if round[rank].is_none() {
                self.handed.wait_for(plan.computed_before(number, rank as u32))?;
            }
            for bucket in 0..plan.buckets().len() {
                let shards = match round[rank] {
                    None => Vec::new(),
                    Some(partial) => self.shards(bucket, partial, is_last)?,
                };
                self.exchange(Some((round, bucket)), &shards, added.take())?;
                if is_last {
                    added = Some((bucket, self.added(bucket)?));
                }
            }
        }
        self.exchange(None, &[], added)?;
        let tiles = self.trees.into_iter().filter_map(|tree| tree.tiles).flatten().collect();
        Ok((self.sum, tiles))
    }

    /// The ranks' shards of a bucket of this rank's partial sum.
    fn shards(&mut self, bucket: usize, partial: usize, is_last: bool) -> Result<Vec<Vec<u8>>, EngineError> {
        let plan = self.plan;
        let tensors = &plan.buckets()[bucket];
        let bytes: Vec<Vec<u8>> = match is_last && self.left > 0 {
            true => self.joined(bucket, partial)?,
            false => {
                tensors.iter().map(|&tensor| self.handed.take(partial, tensor)).collect::<Result<_, _>>()?
            }
        };
        let of: HashMap<usize, &Vec<u8>> = tensors.iter().copied().zip(&bytes).collect();
        let shard = |rank| {
            let mut shard = Vec::with_capacity(plan.bytes_of(bucket, rank));
            for piece in plan.shard_of(bucket, rank) {
                shard.extend_from_slice(&of[&piece.tensor][piece.bytes.clone()]);
            }
            shard
        };
        Ok((0..plan.ranks()).map(shard).collect())
    }

    /// A bucket of the rank's last partial sum, by the additions that its own engine left: sums that waited, each to be added to what
    /// follows it.
    fn joined(&mut self, bucket: usize, partial: usize) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut sum = self.brought(bucket, partial + self.left)?;
        for waited in (partial..partial + self.left).rev() {
            let left = self.brought(bucket, waited)?;
            sum = self.engine.run_owning(&self.whole[bucket], pairs(left, sum), None)?;
        }
        sum.iter().map(|tensor| self.engine.download(tensor)).collect()
    }

    /// A bucket of what the rank's own engine handed out.
    fn brought(&mut self, bucket: usize, number: usize) -> Result<Vec<Tensor>, EngineError> {
        let plan = self.plan;
        let mut tensors = Vec::new();
        for &tensor in &plan.buckets()[bucket] {
            let bytes = self.handed.take(number, tensor)?;
            tensors.push(self.engine.upload(&plan.gradients()[tensor].ty(), &bytes)?);
        }
        Ok(tensors)
    }

    /// This rank's shard of the sum of a bucket.
    fn added(&mut self, bucket: usize) -> Result<Vec<u8>, EngineError> {
        let mut bytes = Vec::with_capacity(self.plan.bytes_of(bucket, self.collective.rank()));
        for tensor in self.trees[bucket].root() {
            self.engine.read(&tensor, &mut |piece| bytes.extend_from_slice(piece))?;
        }
        Ok(bytes)
    }

    /// One exchange: the shards of a bucket in a round, and the sums of another bucket.
    fn exchange(
        &mut self,
        round: Option<(&Vec<Option<usize>>, usize)>,
        shards: &[Vec<u8>],
        added: Option<(usize, Vec<u8>)>,
    ) -> Result<(), TrainError> {
        let (plan, rank) = (self.plan, self.collective.rank());
        let ranks = 0..plan.ranks();
        let sum = added.as_ref().map(|(_, bytes)| bytes.as_slice());
        let to = |to: u32| shards.get(to as usize).map(Vec::as_slice).into_iter().chain(sum).collect();
        let outgoing: Vec<Vec<&[u8]>> = ranks.clone().map(to).collect();
        let (mut incoming, mut due) = (Vec::new(), Vec::new());
        for from in ranks {
            let mut lens = Vec::new();
            if let Some((round, bucket)) = round
                && let Some(partial) = round[from as usize]
            {
                lens.push(plan.bytes_of(bucket, rank));
                due.push(Due::Shard(bucket, plan.place(from, partial)));
            }
            if let Some((bucket, _)) = &added {
                lens.push(plan.bytes_of(*bucket, from));
                due.push(Due::Sum(*bucket, from));
            }
            incoming.push(lens);
        }
        let mut due = due.into_iter();
        let Exchange { collective, engine, trees, sum, places, .. } = self;
        collective.all_to_all(&outgoing, &incoming, &mut |mut bytes| {
            match due.next().expect("each message is due once") {
                Due::Shard(bucket, place) => {
                    let tree = &mut trees[bucket];
                    let shard = tree.adder.upload(*engine, bytes)?;
                    tree.take(*engine, place, shard)?;
                }
                Due::Sum(bucket, from) => {
                    for piece in plan.shard_of(bucket, from) {
                        let (own, rest) = bytes.split_at(piece.bytes.len());
                        sum[places[piece.tensor]..][piece.bytes.clone()].copy_from_slice(own);
                        bytes = rest;
                    }
                }
            }
            Ok(())
        })
    }
}

/// The bytes of the whole step's gradient, the same on every rank, from the sums that `compute` hands out. Beside them, for each bucket
/// and shared addition, the hash values of the tiles of this rank's shard, if `hashing`.
pub(super) fn sum(
    collective: &mut dyn Collective,
    plan: &ShardPlan,
    hosts: &mut Hosts,
    hashing: bool,
    compute: impl FnOnce(&[Operation], &mut Give, &dyn Fn()) -> Result<(), TrainError>,
) -> Result<(Vec<u8>, Vec<Hash>), TrainError> {
    let Hosts { engine, adders, operations, left, whole, overlaps } = hosts;
    let (sender, coming) = channel();
    let mut end = 0;
    let begin = |tensor: &StateTensor| {
        end += tensor.ty().bytes();
        end - tensor.ty().bytes()
    };
    let places = plan.gradients().iter().map(begin).collect();
    let trees = adders.iter().map(|adder| Tree::new(adder, plan, hashing)).collect();
    let handed = Handed { coming, here: HashMap::new(), computed: 0 };
    let marks = sender.clone();
    // An exchange that has ended hears no more, and says so when a tensor comes.
    let mark = move || drop(marks.send(Told::MicroBatch));
    let sum = vec![0; end];
    let exchange = Exchange { collective, plan, engine, handed, left: *left, whole, trees, sum, places };
    // True if the exchange has ended while tensors came: then its own error says why.
    let refused = AtomicBool::new(false);
    let is_refused = &refused;
    let mut give = move |sum: usize, tensor: usize, bytes: &[u8]| {
        sender.send(Told::Tensor((sum, tensor, bytes.to_vec()))).map_err(|_| {
            is_refused.store(true, Relaxed);
            EngineError::Stopped("this rank exchanges no further gradients".into())
        })
    };
    if !*overlaps {
        compute(operations, &mut give, &mark)?;
        drop((give, mark));
        return exchange.run();
    }
    std::thread::scope(|scope| {
        let exchanging = scope.spawn(move || exchange.run());
        let computed = compute(operations, &mut give, &mark);
        // No further tensor comes, so an exchange that waits for one ends.
        drop((give, mark));
        let exchanged = exchanging.join().expect("an exchange does not panic");
        match computed {
            Err(error) if !refused.load(Relaxed) => Err(error),
            _ => exchanged,
        }
    })
}

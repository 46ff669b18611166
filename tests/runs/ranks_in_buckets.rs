//! Gradients that ranks exchange in buckets while they compute: the bytes of one process whatever the buckets, and exchanges that do not
//! wait for the backward pass.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{begin_run, files, gpt_job, key, mlp_job, trained};
use crate::ranks_in_process::{Channels, channels};
use tiebreak_contract::program::graph::Node;
use tiebreak_contract::program::step::port;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Compiled, Engine, EngineError, Inputs, Observer, Tensor, Want};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::read_job;
use tiebreak_train::ranks::collective::{Collective, MessageKind};
use tiebreak_train::ranks::lead::Lead;
use tiebreak_train::ranks::plan::ShardPlan;
use tiebreak_train::ranks::{report, worker};
use tiebreak_train::{Silent, TrainError, train_over};

/// Trains a job over ranks with buckets of at least so many bytes.
fn train_ranks(
    job: &Path,
    out: &Path,
    buckets: u64,
    ranks: Vec<(Box<dyn Collective>, Box<dyn Engine>)>,
) -> Result<(), TrainError> {
    let run = begin_run(&Disk::default(), job, out).unwrap();
    let mut ranks = ranks.into_iter();
    let (mut first, mut engine) = ranks.next().unwrap();
    std::thread::scope(|scope| {
        for (mut collective, mut engine) in ranks {
            scope.spawn(move || {
                if let Err(error) = worker::work(&mut engine, collective.as_mut(), &|| false, &mut ()) {
                    report(collective.as_mut(), &error);
                }
            });
        }
        let lead = Lead::new(&run, first.as_mut())?.in_buckets(&run, buckets)?;
        let trained = train_over(&run, &mut engine, Some(&key()), lead, &mut Silent);
        if let Err(error) = &trained {
            report(first.as_mut(), error);
        }
        drop(first);
        trained.map(drop)
    })
}

/// Buckets of single tensors and of all, for ranks whose last partial sum is one micro-batch or several, on engines that hand tensors out
/// early and one of which hands them out late.
#[test]
fn any_buckets_give_the_bytes_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).unwrap();
        place
    };
    let jobs = [
        mlp_job(&place("eight"), "microbatch", 3, 8),
        mlp_job(&place("seven"), "operator", 3, 7),
        mlp_job(&place("six"), "step", 3, 6),
        gpt_job(&place("gpt"), "microbatch", ""),
        gpt_job(&place("logged"), "operator", "\n[rounding]\n"),
    ];
    for (number, job) in jobs.iter().enumerate() {
        let whole = folder.path().join(format!("whole-{number}"));
        trained(job, &whole, None);
        let expected = files(&whole);
        for ranks in [2, 3] {
            for buckets in [0, 1, 5000, u64::MAX] {
                let engine = |rank: usize| -> Box<dyn Engine> {
                    let cpu = Cpu::new(1).unwrap();
                    // A logged job has products that the reference does not compute.
                    match rank {
                        1 if number < 4 => Box::new(Reference),
                        2 => Box::new(Late(cpu)),
                        _ => Box::new(cpu),
                    }
                };
                let network = |inner: Channels| -> Box<dyn Collective> { Box::new(inner) };
                let all = channels(ranks).into_iter().enumerate();
                let all = all.map(|(rank, inner)| (network(inner), engine(rank))).collect();
                let out = folder.path().join(format!("{number}-{ranks}-{buckets}"));
                train_ranks(job, &out, buckets, all).unwrap();
                assert!(files(&out) == expected, "job {number}, {ranks} ranks, buckets of {buckets} bytes");
            }
        }
    }
}

/// A CPU that is none of the host's, as a GPU is.
struct Late(Cpu);

impl Engine for Late {
    tiebreak_engine::forward!(self => self.0; describe, upload, read, compile, run, run_owning);
}

/// A rank's exchanges and micro-batches.
#[derive(Clone, Default)]
struct Counts {
    /// Exchanges that have begun.
    begun: Arc<AtomicU32>,
    /// Micro-batches that are computed, now and as each exchange began.
    computed: Arc<AtomicU32>,
    computed_before: Arc<Mutex<Vec<u32>>>,
}

/// A network that counts its exchanges as they begin.
struct Counting {
    inner: Channels,
    counts: Counts,
}

impl Collective for Counting {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        self.inner.send(to, kind, bytes)
    }

    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError> {
        self.inner.receive(from, kind, max)
    }

    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        self.counts.computed_before.lock().unwrap().push(self.counts.computed.load(SeqCst));
        self.counts.begun.fetch_add(1, SeqCst);
        self.inner.all_to_all(outgoing, incoming, each)
    }

    fn abort(&mut self, why: &str) -> bool {
        self.inner.abort(why)
    }
}

/// A CPU that finishes no micro-batch before so many exchanges of its rank have begun.
struct Waiting {
    cpu: Cpu,
    counts: Counts,
    /// For each micro-batch of a step, in turn, the exchanges to wait for.
    exchanges: Vec<u32>,
    done: usize,
}

/// Waits in front of the last tensor that is handed out.
struct Gate<'a> {
    observer: &'a mut dyn Observer,
    begun: &'a AtomicU32,
    exchanges: u32,
    last: usize,
}

impl Observer for Gate<'_> {
    fn want(&self, index: usize, node: &Node) -> Want {
        self.observer.want(index, node)
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let begin = Instant::now();
        while index == self.last && self.begun.load(SeqCst) < self.exchanges {
            if begin.elapsed() > Duration::from_secs(20) {
                let begun = self.begun.load(SeqCst);
                let why = format!("{begun} exchanges have begun, not {}", self.exchanges);
                return Err(EngineError::Stopped(why));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.observer.node(index, node, bytes, inputs)
    }
}

impl Engine for Waiting {
    tiebreak_engine::forward!(self => self.cpu; describe, upload, read, compile, run_owning, is_on_host);

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let graph = &compiled.graph;
        let is_micro = graph.inputs.iter().any(|input| input.name == port::FACTOR);
        if !is_micro {
            return self.cpu.run(compiled, inputs, observer);
        }
        let exchanges = self.exchanges[self.done % self.exchanges.len()];
        self.done += 1;
        let outputs = match observer {
            // A micro-batch that is no partial sum of its own is not handed out.
            None => self.cpu.run(compiled, inputs, None)?,
            Some(observer) => {
                let made = |node: &Node| graph.outputs.iter().any(|port| port.tensor == node.output);
                let last = graph.nodes.iter().rposition(made).unwrap();
                let mut gate = Gate { observer, begun: &self.counts.begun, exchanges, last };
                self.cpu.run(compiled, inputs, Some(&mut gate))?
            }
        };
        self.counts.computed.fetch_add(1, SeqCst);
        Ok(outputs)
    }
}

/// A rank whose micro-batches wait for so many exchanges, in turn.
fn waiting(inner: Channels, counts: Counts, exchanges: Vec<u32>) -> (Box<dyn Collective>, Box<dyn Engine>) {
    let engine = Waiting { cpu: Cpu::new(1).unwrap(), counts: counts.clone(), exchanges, done: 0 };
    (Box::new(Counting { inner, counts }), Box::new(engine))
}

/// A rank with nothing to send in a round computes about as much as the others have before it waits for them: from a step's begin on
/// it would give up a rank that only computes.
#[test]
fn a_rank_with_nothing_to_send_computes_before_it_waits() {
    let folder = tempfile::tempdir().unwrap();
    // Rank 1 has nine micro-batches: eight make a partial sum, the ninth another. The eight of rank 0 make one.
    let job = mlp_job(folder.path(), "microbatch", 1, 17);
    let program = read_job(&job).unwrap().1.program(None).unwrap();
    assert_eq!(ShardPlan::in_buckets(&program, 2, u64::MAX).unwrap().rounds()[0], [None, Some(0)]);
    let counts = Counts::default();
    let all = channels(2).into_iter().zip([counts.clone(), Counts::default()]);
    let all = all.map(|(inner, counts)| waiting(inner, counts, vec![0]));
    let (whole, out) = (folder.path().join("whole"), folder.path().join("ranks"));
    train_ranks(&job, &out, u64::MAX, all.collect()).unwrap();
    trained(&job, &whole, None);
    assert!(files(&out) == files(&whole));
    let before = counts.computed_before.lock().unwrap();
    assert!(before[0] >= 7, "the first exchange began after {before:?} micro-batches");
}

/// A rank's last tensor is not finished before all other buckets of the last round were exchanged, nor that of a micro-batch before
/// the partial sums before it were.
#[test]
fn gradients_are_exchanged_while_ranks_compute() {
    let folder = tempfile::tempdir().unwrap();
    // Two ranks of three micro-batches: rank 1 has two, each a partial sum. Of four: two each, whose sum is the partial sum.
    for (micro_batches, waits) in
        [(3, [vec![(2, 1)], vec![(0, 0), (2, 1)]]), (4, [vec![(0, 0), (1, 1)], vec![(0, 0), (1, 1)]])]
    {
        let place = folder.path().join(format!("{micro_batches}"));
        std::fs::create_dir(&place).unwrap();
        let job = mlp_job(&place, "microbatch", 1, micro_batches);
        let program = read_job(&job).unwrap().1.program(None).unwrap();
        let buckets = ShardPlan::in_buckets(&program, 2, 1).unwrap().buckets().len() as u32;
        assert!(buckets > 3);
        let all = channels(2).into_iter().zip(waits).map(
            |(inner, waits)| -> (Box<dyn Collective>, Box<dyn Engine>) {
                let exchanges = waits.into_iter().map(|(rounds, less)| rounds * buckets - less).collect();
                waiting(inner, Counts::default(), exchanges)
            },
        );
        let (whole, out) = (place.join("whole"), place.join("ranks"));
        train_ranks(&job, &out, 1, all.collect()).unwrap();
        trained(&job, &whole, None);
        assert!(files(&out) == files(&whole), "{micro_batches} micro-batches");
    }
}

/// Buckets are the gradient's tensors as the backward pass finishes them, each once.
#[test]
fn a_bucket_has_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let program = read_job(&gpt_job(folder.path(), "step", "")).unwrap().1.program(None).unwrap();
    let bytes = |bucket: &Vec<usize>| -> u64 {
        bucket.iter().map(|&tensor| program.gradients()[tensor].ty().bytes() as u64).sum()
    };
    let order: Vec<usize> = ShardPlan::in_buckets(&program, 3, 0).unwrap().buckets().concat();
    let mut all = order.clone();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..program.gradients().len()));
    let made = |tensor: usize| {
        let output = program.micro.outputs[tensor].tensor;
        program.micro.nodes.iter().position(|node| node.output == output).unwrap()
    };
    assert!(order.windows(2).all(|pair| made(pair[0]) <= made(pair[1])), "{order:?}");
    for least in [1, 700, 4096, 20_000] {
        let plan = ShardPlan::in_buckets(&program, 3, least).unwrap();
        assert_eq!(plan.buckets().concat(), order);
        let (last, others) = plan.buckets().split_last().unwrap();
        assert!(!last.is_empty() && others.iter().all(|bucket| bytes(bucket) >= least), "{least}");
        // Without its last tensor, a bucket is too small.
        let fewer = |bucket: &Vec<usize>| bytes(&bucket[..bucket.len() - 1].to_vec());
        assert!(plan.buckets().iter().all(|bucket| fewer(bucket) < least), "{least}");
    }
}

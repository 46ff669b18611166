//! Data-parallel training over ranks that are threads: every number of ranks and micro-batches writes one process's bytes, and a
//! rank that computes or sends something wrong is named.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::common::{begin_run, edit::edit, every_pair, files, gpt_job, key, mlp_job, program_job, trained};
use tiebreak_audit::plan::Choice;
use tiebreak_audit::{self as audit, Outcome, checks};
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::step::port;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::{Compiled, Engine, EngineError, Observer, Tensor};
use tiebreak_job::Job;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{read_job, transcript};
use tiebreak_train::ranks::collective::{Collective, MessageKind};
use tiebreak_train::ranks::lead::Lead;
use tiebreak_train::ranks::plan::{ShardPlan, Shared};
use tiebreak_train::ranks::share::{Contents, Share};
use tiebreak_train::ranks::{RankError, report, worker};
use tiebreak_train::{Progress, Silent, TrainError, train, train_over};

/// A network of channels.
pub struct Channels {
    rank: u32,
    to: Vec<Sender<(MessageKind, Vec<u8>)>>,
    from: Vec<Receiver<(MessageKind, Vec<u8>)>>,
}

pub fn channels(ranks: u32) -> Vec<Channels> {
    let mut all: Vec<Channels> =
        (0..ranks).map(|rank| Channels { rank, to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..ranks as usize {
        for to in 0..ranks as usize {
            let (sender, receiver) = channel();
            all[from].to.push(sender);
            all[to].from.push(receiver);
        }
    }
    all
}

impl Collective for Channels {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.to.len() as u32
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        let gone = |_| RankError::Lost { rank: to, why: "its thread has ended".into() };
        Ok(self.to[to as usize].send((kind, bytes.to_vec())).map_err(gone)?)
    }

    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError> {
        let gone = |_| RankError::Lost { rank: from, why: "its thread has ended".into() };
        let (sent, bytes) = self.from[from as usize].recv().map_err(gone)?;
        if sent == MessageKind::Abort {
            let why = String::from_utf8(bytes).unwrap();
            return Err(RankError::Stopped { rank: from, why }.into());
        }
        assert!(sent == kind && bytes.len() as u64 <= max, "{sent:?} of {} bytes for {kind:?}", bytes.len());
        Ok(bytes)
    }

    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        for (to, messages) in (0..).zip(outgoing) {
            messages.iter().try_for_each(|message| self.send(to, MessageKind::Gradient, message))?;
        }
        for (from, lens) in (0..).zip(incoming) {
            for &len in lens {
                let bytes = self.receive(from, MessageKind::Gradient, len as u64)?;
                assert_eq!(bytes.len(), len);
                each(&bytes)?;
            }
        }
        Ok(())
    }

    fn abort(&mut self, why: &str) -> bool {
        let told = |to: &&Sender<_>| to.send((MessageKind::Abort, why.as_bytes().to_vec())).is_ok();
        self.to.iter().filter(told).count() > 0
    }
}

/// A faulty machine's change to bytes, given their kind. Exchanges are numbered from 0: in a step, one a round and bucket, one of the last
/// bucket's sums, and one of parameters where slots are divided.
pub type Fault = Box<dyn FnMut(Bytes, &mut Vec<u8>) + Send>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bytes {
    Sent(MessageKind),
    /// The receiving rank, and the exchange.
    Given(u32, u32),
    /// The exchange.
    Taken(u32),
}

/// A rank of a faulty machine.
struct Faulty {
    inner: Channels,
    exchanges: u32,
    fault: Fault,
}

impl Collective for Faulty {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn ranks(&self) -> u32 {
        self.inner.ranks()
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        let mut bytes = bytes.to_vec();
        (self.fault)(Bytes::Sent(kind), &mut bytes);
        self.inner.send(to, kind, &bytes)
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
        let (exchange, fault) = (self.exchanges, &mut self.fault);
        self.exchanges += 1;
        let mut given: Vec<Vec<Vec<u8>>> = outgoing
            .iter()
            .map(|messages| messages.iter().map(|message| message.to_vec()).collect())
            .collect();
        for (to, messages) in (0..).zip(&mut given) {
            messages.iter_mut().for_each(|message| fault(Bytes::Given(to, exchange), message));
        }
        let given: Vec<Vec<&[u8]>> =
            given.iter().map(|messages| messages.iter().map(Vec::as_slice).collect()).collect();
        self.inner.all_to_all(&given, incoming, &mut |bytes| {
            let mut bytes = bytes.to_vec();
            fault(Bytes::Taken(exchange), &mut bytes);
            each(&bytes)
        })
    }

    fn abort(&mut self, why: &str) -> bool {
        self.inner.abort(why)
    }
}

/// A CPU that computes the gradients of one micro-batch wrongly: the one that it runs after `left` others.
struct WrongCpu {
    cpu: Cpu,
    left: u32,
}

impl Engine for WrongCpu {
    tiebreak_engine::forward!(self => self.cpu; describe, upload, read, compile);

    fn run(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        observer: Option<&mut dyn Observer>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let mut outputs = self.cpu.run(compiled, inputs, observer)?;
        if compiled.graph.inputs.iter().any(|input| input.name == port::FACTOR) {
            if self.left == 0 {
                let mut bytes = self.cpu.download(&outputs[0])?;
                bytes[2] ^= 0x10;
                let ty = compiled.graph.tensor(compiled.graph.outputs[0].tensor);
                outputs[0] = self.cpu.upload(ty, &bytes)?;
            }
            self.left = self.left.wrapping_sub(1);
        }
        Ok(outputs)
    }
}

/// A rank's fault.
pub enum Wrong {
    Fault(Fault),
    Gradient { after: u32 },
}

/// Trains a job over ranks without a fault.
pub fn train_honest_ranks(job: &Path, out: &Path, ranks: u32) {
    train_ranks(job, out, ranks, None, None).unwrap();
}

/// Trains a job over ranks, one of which may be faulty.
fn train_ranks(
    job: &Path,
    out: &Path,
    ranks: u32,
    wrong: Option<(u32, Wrong)>,
    cross_check: Option<u32>,
) -> Result<(), TrainError> {
    let run = begin_run(&Disk::default(), job, out).unwrap();
    train_run(&run, ranks, wrong, (cross_check, false), &mut Silent)
}

/// Goes on with a run over ranks, one of which may be faulty, which divide the optimizer's slots if `divided`.
pub fn train_run(
    run: &Run,
    ranks: u32,
    mut wrong: Option<(u32, Wrong)>,
    (cross_check, divided): (Option<u32>, bool),
    progress: &mut dyn Progress,
) -> Result<(), TrainError> {
    let mut all = channels(ranks).into_iter().map(|inner| -> (Box<dyn Collective>, Box<dyn Engine>) {
        let cpu = Cpu::new(1).unwrap();
        match wrong.take_if(|(rank, _)| *rank == inner.rank) {
            Some((_, Wrong::Fault(fault))) => {
                (Box::new(Faulty { inner, exchanges: 0, fault }), Box::new(cpu))
            }
            Some((_, Wrong::Gradient { after })) => {
                (Box::new(inner), Box::new(WrongCpu { cpu, left: after }))
            }
            None => (Box::new(inner), Box::new(cpu)),
        }
    });
    let (mut first, mut engine) = all.next().unwrap();
    let others: Vec<_> = all.collect();
    std::thread::scope(|scope| {
        for (mut collective, mut engine) in others {
            scope.spawn(move || {
                if let Err(error) = worker::work(&mut engine, collective.as_mut(), &|| false, &mut ()) {
                    report(collective.as_mut(), &error);
                }
            });
        }
        let mut lead = Lead::new(run, first.as_mut())?;
        if let Some(steps) = cross_check {
            lead = lead.cross_checking(run, steps)?;
        }
        if divided {
            lead = lead.dividing_slots(run)?;
        }
        let trained = train_over(run, &mut engine, Some(&key()), lead, progress);
        drop(first);
        trained.map(|_| ())
    })
}

/// A job's program divided.
fn plan(micro_batches: u32, ranks: u32) -> Result<ShardPlan, RankError> {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "step", 1, micro_batches);
    ShardPlan::new(&read_job(&job).unwrap().1.program(None).unwrap(), ranks)
}

/// TIEBREAK_EVERY_PAIR asks for every number of micro-batches up to 20.
#[test]
fn every_number_of_ranks_writes_the_bytes_of_one_process() {
    let all = every_pair("10, 11, 12, 14, 15 and 17 to 19 micro-batches by 1 to 9 ranks");
    for micro_batches in (1..=20).filter(|count| all || matches!(count, 1..=9 | 13 | 16 | 20)) {
        let folder = tempfile::tempdir().unwrap();
        let job = mlp_job(folder.path(), "operator", 2, micro_batches);
        if micro_batches % 2 == 0 {
            let text = std::fs::read_to_string(&job).unwrap();
            std::fs::write(&job, text + "[loss]\nignore = 4\n").unwrap();
        }
        let whole = folder.path().join("whole");
        trained(&job, &whole, None);
        let expected = files(&whole);
        for ranks in 1..=9 {
            let out = folder.path().join(format!("ranks-{ranks}"));
            let trained = train_ranks(&job, &out, ranks, None, None);
            if ranks > micro_batches {
                let error = trained.unwrap_err().to_string();
                assert!(error.contains(&format!("1 to {micro_batches} ranks have work")), "{error}");
                continue;
            }
            trained.unwrap();
            assert!(files(&out) == expected, "{ranks} ranks, {micro_batches} micro-batches");
        }
    }
}

/// A gradient of three tiles: most ranks have nothing to add.
#[test]
fn there_may_be_more_ranks_than_tiles() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "operator", 2, 7);
    edit(&job, &[("hidden = [33, 20]", "hidden = []")]);
    let (whole, out) = (folder.path().join("whole"), folder.path().join("ranks"));
    trained(&job, &whole, None);
    train_ranks(&job, &out, 7, None, None).unwrap();
    assert!(files(&out) == files(&whole));
}

#[test]
fn ranks_train_a_program_file_and_leave_frozen_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let path = program_job(folder.path(), "microbatch", "");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut program = decode(&std::fs::read(folder.path().join("gpt.program")).unwrap()).unwrap();
    for (name, frozen) in [("whole", false), ("frozen", true)] {
        if frozen {
            let described = gpt_job(folder.path(), "microbatch", "");
            let text = std::fs::read_to_string(&described).unwrap();
            let job = Job::parse("job", &format!("frozen = [\"block0.*\"]\n{text}")).unwrap();
            program = job.program(None).unwrap();
        }
        std::fs::write(folder.path().join("gpt.program"), encode(&program)).unwrap();
        std::fs::write(&path, &text).unwrap();
        let (whole, out) = (folder.path().join(name), folder.path().join(format!("ranks-{name}")));
        trained(&path, &whole, None);
        train_ranks(&path, &out, 3, None, None).unwrap();
        assert!(files(&out) == files(&whole), "{name}");
        assert_eq!(audited(&out), Outcome::Matches);
    }
}

#[test]
fn transformers_and_every_granularity_and_profile_too() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (granularity, extra)) in
        [("step", ""), ("microbatch", ""), ("operator", ""), ("operator", "\n[rounding]\n")]
            .into_iter()
            .enumerate()
    {
        let job = gpt_job(folder.path(), granularity, extra);
        let whole = folder.path().join(format!("whole-{number}"));
        trained(&job, &whole, None);
        for ranks in [2, 3] {
            let out = folder.path().join(format!("ranks-{number}-{ranks}"));
            train_ranks(&job, &out, ranks, None, None).unwrap();
            assert!(files(&out) == files(&whole), "{granularity} {extra} over {ranks} ranks");
        }
    }
}

/// Every node of the tree is computed once, by a rank that has its operands, and partial sums are few.
#[test]
fn plans_divide_all_and_nothing_twice() {
    for micro_batches in 1..=40u32 {
        for ranks in 1..=micro_batches.min(12) {
            let plan = plan(micro_batches, ranks).unwrap();
            let sizes: Vec<usize> = (0..ranks).map(|rank| plan.micro_batches(rank).len()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "even shares: {sizes:?}");
            let local: usize = (0..ranks).map(|rank| plan.local(rank).count()).sum();
            assert_eq!(local + plan.shared_additions(), 2 * micro_batches as usize - 1);
            let partials: usize = (0..ranks).map(|rank| plan.partials(rank)).sum();
            assert_eq!(plan.shared().iter().filter(|step| **step == Shared::Take).count(), partials);
            let most = 2 * (micro_batches.ilog2() as usize + 1);
            assert!((0..ranks).all(|rank| (1..=most).contains(&plan.partials(rank))));
            // If ranks divide micro-batches into powers of two, each has one whole subtree.
            if micro_batches.is_multiple_of(ranks) && (micro_batches / ranks).is_power_of_two() {
                assert_eq!(partials, ranks as usize, "{micro_batches} micro-batches on {ranks} ranks");
            }
            // Every partial sum is exchanged once, a rank's in their order, and every rank's last one in the last round.
            for rank in 0..ranks as usize {
                let exchanged = plan.rounds().iter().filter_map(|round| round[rank]);
                assert!(exchanged.eq(0..plan.partials(rank as u32)), "{:?}", plan.rounds());
                assert!(plan.rounds().last().unwrap()[rank].is_some());
            }
            // Shards are the gradient, cut between tiles.
            let plan = &plan;
            let of_bucket = |bucket| (0..ranks).flat_map(move |rank| plan.shard_of(bucket, rank));
            let mut pieces = (0..plan.buckets().len()).flat_map(of_bucket).peekable();
            for &tensor in plan.buckets().iter().flatten() {
                let entry = &plan.gradients()[tensor];
                let mut bytes = 0;
                while let Some(piece) = pieces.next_if(|piece| piece.tensor == tensor) {
                    assert_eq!((piece.bytes.start, piece.tiles.start * 4096), (bytes, bytes));
                    bytes = piece.bytes.end;
                }
                assert_eq!(bytes, entry.shape.iter().product::<u32>() as usize * 4);
            }
            assert_eq!(pieces.next(), None);
        }
    }
    // 8 GPUs, 8 micro-batches: as many bytes as a ring sends, 2 (R - 1) / R of the gradient, to a tile or two.
    let plan = plan(8, 8).unwrap();
    let gradient: usize = (0..8).map(|rank| plan.shard_bytes(rank)).sum();
    let sent: u64 = (0..8).map(|rank| plan.bytes_sent(rank)).sum();
    assert_eq!(sent as usize, 2 * 7 * gradient);
}

#[test]
fn a_machine_that_computes_wrongly_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "microbatch", 4, 5);
    // The sum of step 3's gradients differs in one rank's memory from everywhere else; so does the state that it updates. Some rank has two
    // partial sums, so a step has three exchanges.
    let fault = || -> Fault {
        Box::new(|what, bytes| {
            if what == Bytes::Taken(8) && !bytes.is_empty() {
                bytes[2] ^= 0x10;
            }
        })
    };
    for (ranks, faulty, says) in [
        (2, 1, "rank 1: the state after step 3 is not rank 0's: a machine of theirs or rank 0's"),
        (3, 2, "rank 2: the state after step 3 is not that of most ranks"),
        (4, 0, "rank 0: the state after step 3 is not that of most ranks"),
    ] {
        let out = folder.path().join(format!("{ranks}-{faulty}"));
        let error = train_ranks(&job, &out, ranks, Some((faulty, Wrong::Fault(fault()))), None)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(says), "{error}");
        // The step was not written, and the run resumes from the one before.
        let (history, _) = transcript::read(&out.join("transcript")).unwrap();
        assert_eq!(history.records.len(), 3);
        let run = Run::open(&out).unwrap();
        let mut engine = Cpu::new(1).unwrap();
        train(&run, &mut engine, Some(&key()), &mut Silent).unwrap();
        let whole = folder.path().join(format!("whole-{ranks}-{faulty}"));
        trained(&job, &whole, None);
        assert!(files(&out) == files(&whole));
    }
}

pub fn audited(out: &Path) -> Outcome {
    let run = Run::open(out).unwrap();
    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let plan = audit::plan::plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let mut engine = Cpu::new(1).unwrap();
    audit::audit(&run, &mut engine, checked, plan, None, &mut audit::Silent).unwrap().0.outcome
}

/// A partial sum that is sent wrongly: every rank adds the same wrong value to its state, and no comparison shows it.
#[test]
fn a_wrong_sum_is_an_auditors_to_find() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "microbatch", 4, 4);
    let out = folder.path().join("run");
    let fault: Fault = Box::new(|what, bytes| {
        if matches!(what, Bytes::Given(_, 4)) && bytes.len() > 8 {
            bytes[6] ^= 0x10;
        }
    });
    train_ranks(&job, &out, 2, Some((1, Wrong::Fault(fault))), Some(1)).unwrap();
    assert!(matches!(audited(&out), Outcome::Diverges { step: 3, .. }));
}

/// A gradient that is computed wrongly: found at once if ranks check each other, and by an audit in any case.
#[test]
fn a_wrong_gradient_is_named_where_ranks_check_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "microbatch", 4, 6);
    let out = folder.path().join("unchecked");
    // Rank 1 of 3 has micro-batches 2 and 3; the fifth that it computes is micro-batch 2 of step 3.
    let wrong = |after| Some((1, Wrong::Gradient { after }));
    train_ranks(&job, &out, 3, wrong(4), None).unwrap();
    assert!(matches!(audited(&out), Outcome::Diverges { step: 3, .. }));

    let whole = folder.path().join("whole");
    trained(&job, &whole, None);
    let out = folder.path().join("honest");
    train_ranks(&job, &out, 3, None, Some(2)).unwrap();
    assert!(files(&out) == files(&whole), "checking changes nothing");

    // With a check in each step the rank computes three in each: two of its own, then one of rank 2's.
    for (after, says) in [
        (3, "different gradients in step 2: rank 1 and rank 0 for micro-batch 2;"),
        (4, ""), // micro-batch 3 of step 2, whose turn is in step 3
        (5, "different gradients in step 2: rank 2 and rank 1 for micro-batch 4;"),
    ] {
        let out = folder.path().join(format!("checked-{after}"));
        let trained = train_ranks(&job, &out, 3, wrong(after), Some(1));
        if says.is_empty() {
            trained.unwrap();
            assert!(matches!(audited(&out), Outcome::Diverges { step: 2, .. }));
            continue;
        }
        let error = trained.unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
        let (history, _) = transcript::read(&out.join("transcript")).unwrap();
        assert_eq!(history.records.len(), 2, "the step was not written");
    }

    let jobs = [mlp_job(folder.path(), "step", 2, 3), gpt_job(folder.path(), "operator", "\n[rounding]\n")];
    for (job, says) in jobs.iter().zip(["granularity is", "depend on the machine's kernels"]) {
        let error = train_ranks(job, &folder.path().join(says), 2, None, Some(1)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

type Change = fn(&mut Vec<u8>);

/// Shares of a step with single bytes changed, cut and lengthened: they are named, or do not affect what rank 0 can check.
#[test]
fn a_malformed_share_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "\n[rounding]\n");
    let changes: [(&str, Change); 6] = [
        ("not rank 0's", |bytes| bytes[5] ^= 1),
        ("ends too early", |bytes| bytes.truncate(200)),
        ("ends too early", |bytes| bytes.clear()),
        ("1 bytes too many", |bytes| bytes.push(0)),
        // The first traced node: behind the state, three words and the roots of two micro-batches.
        ("a node's tiles give ", |bytes| bytes[108] ^= 1),
        ("a rank's share of a step", |bytes| bytes[140..144].fill(0xff)),
    ];
    for (number, (says, change)) in changes.into_iter().enumerate() {
        let fault: Fault = Box::new(move |what, bytes| {
            if what == Bytes::Sent(MessageKind::Share) {
                change(bytes);
            }
        });
        let out = folder.path().join(number.to_string());
        let error = train_ranks(&job, &out, 2, Some((1, Wrong::Fault(fault))), None).unwrap_err().to_string();
        assert!(error.starts_with("rank 1") && error.contains(says), "{number}: {error}");
    }

    // A share that decodes encodes to the same bytes, whatever was changed.
    let (sender, shares) = channel();
    let fault: Fault = Box::new(move |what, bytes| {
        if what == Bytes::Sent(MessageKind::Share) {
            let _ = sender.send(bytes.clone());
        }
    });
    let out = folder.path().join("honest");
    train_ranks(&job, &out, 2, Some((1, Wrong::Fault(fault))), None).unwrap();
    let run = Run::open(&out).unwrap();
    let (contents, plan) = (Contents::of(&run), ShardPlan::new(run.program(), 2).unwrap());
    let share = shares.recv().unwrap();
    assert!(share.len() as u64 <= contents.bytes_max(&plan, 1));
    let mut decoded = 0;
    for number in 0..3000 {
        let words = philox4x32_10([1, 2], [number, 0, 0, 0]).map(|word| word as usize);
        let mut changed = share.clone();
        let place = words[0] % share.len();
        changed[place] = words[1] as u8;
        if number % 3 == 0 {
            changed.truncate(words[2] % share.len());
        }
        if let Ok((share, _)) = Share::decode(&contents, &plan, 1, &changed) {
            assert!(share.encode() == changed);
            decoded += 1;
        }
    }
    assert!((1..3000).contains(&decoded));
}

#[test]
fn a_rank_that_is_not_where_the_others_are_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "step", 2, 3);
    for (place, says) in
        [(0, "another version of tiebreak"), (40, "another version"), (70, "state after step 0")]
    {
        let fault: Fault = Box::new(move |what, bytes| {
            if what == Bytes::Sent(MessageKind::Ready) {
                bytes[place] ^= 1;
            }
        });
        let out = folder.path().join(place.to_string());
        let error = train_ranks(&job, &out, 3, Some((2, Wrong::Fault(fault))), None).unwrap_err().to_string();
        assert!(error.starts_with("rank 2") && error.contains(says), "{error}");
    }
}

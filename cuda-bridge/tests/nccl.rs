//! Bytes from GPU to GPU by NCCL. The tests run over the stand-in for it, in processes of their own, whose ranks are threads on
//! devices of their own. They also run on this machine's GPUs, if it has NCCL. Every fault ends, has an error, and leaves memory
//! that can be freed.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_bridge::device::{Device, Memory, devices};
use cuda_bridge::nccl::{Communicator, Nccl, NcclError, Transfer, UniqueId};

/// The reasons why a rank of a test stops.
#[derive(Debug)]
enum Trouble {
    Nccl(NcclError),
    /// The rank has waited enough.
    Late,
}

impl From<NcclError> for Trouble {
    fn from(error: NcclError) -> Trouble {
        Trouble::Nccl(error)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Trouble::Nccl(error) => error.fmt(f),
            Trouble::Late => f.write_str("late"),
        }
    }
}

/// The longest time that ranks wait.
fn patient(seconds: u64) -> impl FnMut() -> Result<(), Trouble> {
    let begin = Instant::now();
    move || if begin.elapsed() > Duration::from_secs(seconds) { Err(Trouble::Late) } else { Ok(()) }
}

/// A rank: its number, the number of ranks, and its GPU.
struct Rank {
    number: u32,
    ranks: u32,
    device: Arc<Device>,
}

impl Rank {
    fn join(&self, nccl: &Arc<Nccl>, id: UniqueId, seconds: u64) -> Result<Communicator, Trouble> {
        Communicator::join(nccl, &self.device, [self.number, self.ranks], id, &mut patient(seconds))
    }
}

/// The number of bytes that a rank sends another as the n-th part of a round: from one to more than a socket takes at once.
fn size(round: u32, from: u32, to: u32, part: u32) -> usize {
    match part {
        0 => 1 + (7 * round + 3 * from + to) as usize,
        1 => 4096 * (1 + from as usize),
        _ => 300_000 + 4 * (from * 10 + to) as usize,
    }
}

/// The bytes of that part.
fn bytes(round: u32, from: u32, to: u32, part: u32) -> Vec<u8> {
    let key =
        [round, from, to, part].iter().fold(1u32, |key, n| key.wrapping_mul(1_000_003).wrapping_add(*n));
    (0..size(round, from, to, part) as u32)
        .map(|i| (key.wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect()
}

/// The memory of the ranks' parts, which have the sizes that `sizes` gives.
fn transfers<'m, S: Fn(u32) -> usize>(
    places: &[(u32, u32, usize)],
    memory: &'m Memory,
    sizes: impl Fn(u32) -> S,
) -> Vec<Transfer<'m>> {
    let place = |&(rank, part, at): &_| Transfer { rank, at: memory.slice(at, sizes(rank)(part)) };
    places.iter().map(place).collect()
}

/// Three parts from every rank to every rank, in ranges of one memory each way, with bytes between them that stay.
fn everyone_to_everyone(
    rank: &Rank,
    communicator: &mut Communicator,
    round: u32,
    seconds: u64,
) -> Result<(), Trouble> {
    const GAP: usize = 64;
    let others: Vec<u32> = (0..rank.ranks).filter(|other| *other != rank.number).collect();
    let layout = |pair: &dyn Fn(u32) -> (u32, u32)| {
        let (mut places, mut end) = (Vec::new(), GAP);
        for &other in &others {
            for part in 0..3 {
                let (from, to) = pair(other);
                places.push((other, part, end));
                end += size(round, from, to, part) + GAP;
            }
        }
        (places, end)
    };
    let (outgoing, sent) = layout(&|other| (rank.number, other));
    let (incoming, received) = layout(&|other| (other, rank.number));
    let mut filled = vec![0x11; sent];
    for &(to, part, at) in &outgoing {
        let bytes = bytes(round, rank.number, to, part);
        filled[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let from = rank.device.upload(&filled).unwrap();
    let into = rank.device.upload(&vec![0x22; received]).unwrap();
    let sizes = |from, to| move |part| size(round, from, to, part);
    let send = transfers(&outgoing, &from, |to| sizes(rank.number, to));
    let receive = transfers(&incoming, &into, |from| sizes(from, rank.number));
    communicator.exchange(&send, &receive, &mut patient(seconds))?;
    let mut expected = vec![0x22; received];
    for &(from, part, at) in &incoming {
        let bytes = bytes(round, from, rank.number, part);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    assert!(
        into.read(received).unwrap() == expected,
        "rank {} of {}, round {round}",
        rank.number,
        rank.ranks
    );
    Ok(())
}

/// Runs ranks as threads, each on the device that `on` gives it; returns each rank's result.
fn over(
    nccl: &Arc<Nccl>,
    ranks: u32,
    on: impl Fn(u32) -> i32,
    act: impl Fn(Rank, UniqueId) -> Result<(), Trouble> + Sync,
) -> Vec<Result<(), Trouble>> {
    let id = nccl.unique_id().unwrap();
    std::thread::scope(|scope| {
        let rank = |number| Rank { number, ranks, device: Device::open(on(number)).unwrap() };
        let threads: Vec<_> = (0..ranks).map(|number| (rank(number), &act)).collect();
        let threads: Vec<_> =
            threads.into_iter().map(|(rank, act)| scope.spawn(move || act(rank, id))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank says what is wrong")).collect()
    })
}

/// Rounds among as many ranks, and one round without data.
fn rounds(nccl: &Arc<Nccl>, ranks: u32, seconds: u64) -> Vec<Result<(), Trouble>> {
    over(
        nccl,
        ranks,
        |number| number as i32,
        |rank, id| {
            let mut communicator = rank.join(nccl, id, seconds)?;
            (0..3).try_for_each(|round| everyone_to_everyone(&rank, &mut communicator, round, seconds))?;
            communicator.exchange(&[], &[], &mut patient(seconds))
        },
    )
}

/// This machine's GPUs and its NCCL. With one GPU, the test only shows that the library loads and accepts a rank that is alone.
#[test]
fn on_gpus_if_there_are_any() {
    let here = devices().map_or(0, |devices| devices.len() as u32);
    let required = std::env::var_os("TIEBREAK_REQUIRE_NCCL").is_some();
    let nccl = match Nccl::load() {
        Ok(nccl) => nccl,
        Err(error) => {
            assert!(!required, "{error}");
            return common::not_checked(&format!("NVIDIA's NCCL: {error}"));
        }
    };
    if here == 0 {
        assert!(!required, "there is no GPU");
        return common::not_checked(&format!(
            "NCCL {} is there with all its functions, and no GPU",
            nccl.version
        ));
    }
    for result in rounds(&nccl, here.min(8), 60) {
        result.unwrap_or_else(|trouble| panic!("NCCL {}: {trouble}", nccl.version));
    }
    let what = if here > 1 { "bytes went among them" } else { "NOT CHECKED: bytes between GPUs" };
    println!("NCCL {} with {here} GPUs: {what}", nccl.version);
}

/// A process over the stand-in: runs CASE, and prints every rank's result.
#[test]
#[ignore = "a process of its own, which the next test starts"]
fn child() {
    let case = std::env::var("CASE").unwrap();
    let nccl = match Nccl::load() {
        Ok(nccl) => nccl,
        Err(error) => return println!("no library: {error}"),
    };
    let one = |rank: &Rank, bytes: usize| rank.device.upload(&vec![0; bytes]).unwrap();
    let said = match case.as_str() {
        "rounds" => [2, 3, 5].into_iter().flat_map(|ranks| rounds(&nccl, ranks, 60)).collect(),
        "one GPU" => over(&nccl, 2, |_| 0, |rank, id| rank.join(&nccl, id, 20).map(|_| ())),
        "sizes" | "overlap" => over(
            &nccl,
            2,
            |number| number as i32,
            |rank, id| {
                let mut communicator = rank.join(&nccl, id, 20)?;
                let memory = one(&rank, 100);
                let part =
                    |offset, bytes| Transfer { rank: 1 - rank.number, at: memory.slice(offset, bytes) };
                let (send, receive) = match (case.as_str(), rank.number) {
                    ("sizes", 0) => (vec![part(0, 7)], vec![]),
                    ("sizes", _) => (vec![], vec![part(0, 8)]),
                    (_, 0) => (vec![part(0, 30), part(10, 30)], vec![]),
                    _ => (vec![], vec![part(0, 30), part(29, 30)]),
                };
                communicator.exchange(&send, &receive, &mut patient(2))
            },
        ),
        _ => {
            let said = rounds(&nccl, 3, 2);
            // A rank that gave up returned its memory, or no further call waits for that device.
            for index in 0..3 {
                let device = Device::open(index).unwrap();
                assert_eq!(device.upload(b"bytes").unwrap().read(5).unwrap(), b"bytes");
            }
            said
        }
    };
    for (rank, said) in said.iter().enumerate() {
        println!("rank {rank}: {}", said.as_ref().map_or_else(ToString::to_string, |()| "done".into()));
    }
}

fn shim() -> Option<PathBuf> {
    match cuda_bridge::host::driver(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-shim")) {
        Ok(shim) => Some(shim),
        Err(error) => {
            assert!(std::env::var_os("TIEBREAK_REQUIRE_SHIM").is_none(), "{error}");
            common::not_checked(&format!("NCCL over its stand-in: {error}"));
            None
        }
    }
}

#[test]
fn bytes_arrive_and_faults_are_told_apart() {
    let Some(shim) = shim() else { return };
    let remote = "NCCL's transfer: remote process exited or there was a network error";
    let nowhere = ("TIEBREAK_NCCL", "/nowhere/libnccl.so.2");
    let fault = |what| ("TIEBREAK_SHIM_NCCL", what);
    // A case, its environment variable, and the ranks' outputs.
    let cases: [(&str, (&str, &str), &[&str]); 13] = [
        ("rounds", fault(""), &["rank 0: done", "rank 1: done", "rank 9: done"]),
        ("sizes", fault(""), &["rank 1: NCCL's transfer: a rank sends 7 bytes where 8 are to be received"]),
        ("overlap", fault(""), &["rank 1: NCCL's ncclGroupEnd: parts of a group overlap"]),
        (
            "one GPU",
            fault(""),
            &[
                "rank 0: NCCL's ncclCommInitRank: Duplicate GPU detected",
                "rank 1: NCCL's ncclCommInitRank: Dup",
            ],
        ),
        (
            "send",
            fault("1 ncclSend 8"),
            &["rank 1: NCCL's ncclSend: ncclSend: a fault that", "rank 0: late", "rank 2: late"],
        ),
        (
            "receive",
            fault("0 ncclRecv 2"),
            &["rank 0: NCCL's ncclRecv: ncclRecv: a fault that", "rank 1: late"],
        ),
        ("group", fault("2 ncclGroupEnd 2"), &["rank 2: NCCL's ncclGroupEnd: a fault that", "rank 0: late"]),
        (
            "init",
            fault("1 ncclCommInitRank 1"),
            &["rank 1: NCCL's ncclCommInitRank: a fault", "rank 2: late"],
        ),
        ("error", fault("2 error 2"), &[&format!("rank 2: {remote}"), "rank 1: late"]),
        ("hang", fault("1 hang 1"), &["rank 0: late", "rank 1: late", "rank 2: late"]),
        ("stuck", fault("1 stuck 1"), &["rank 0: late", "rank 1: late", "rank 2: late"]),
        (
            "old",
            ("TIEBREAK_SHIM_NCCL_VERSION", "2708"),
            &["no library: NCCL 2.7.8 is too old, and 2.13.4 is the oldest"],
        ),
        (
            "missing",
            nowhere,
            &["no library: NVIDIA's library NCCL was not found", "pip install nvidia-nccl-cu12"],
        ),
    ];
    let start = |(case, (name, value), says)| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.env("CASE", case).env("TIEBREAK_SHIM_DEVICES", "5");
        for variable in ["TIEBREAK_CUDA_DRIVER", "TIEBREAK_NCCL"] {
            child.env(variable, &shim);
        }
        child.env(name, value).args(["--exact", "child", "--ignored", "--nocapture"]);
        (case, says, std::thread::spawn(move || child.output().unwrap()))
    };
    for (case, says, output) in cases.map(start) {
        let output = output.join().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && printed.contains("1 passed"), "{case}: {printed}");
        says.iter().for_each(|says: &&str| assert!(printed.contains(says), "{case}: {says}: {printed}"));
    }
}

//! `tiebreak train` over several processes: the run directories of one process, and clear errors for ranks that are wrong, gone or
//! silent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, begin_run, edit::edit, files, gpt_job, key, mlp_job, trained};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::transcript;
use tiebreak_run::step::StepError;
use tiebreak_train::ranks::collective::{Collective, MessageKind, Transport};
use tiebreak_train::ranks::lead::Lead;
use tiebreak_train::ranks::tcp::{Quiet, RankPlace, Tcp};
use tiebreak_train::ranks::worker;
use tiebreak_train::{Progress, Silent, TrainError, train_over};

/// A command of the binary, in an environment without variables about ranks.
pub fn tiebreak(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let of_ranks = |name: &str| {
        let begins = ["MASTER_", "SLURM", "OMPI_", "PMI", "MPI_", "TORCHELASTIC_", "LOCAL_"];
        ["RANK", "WORLD_SIZE"].contains(&name) || begins.iter().any(|begin| name.starts_with(begin))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_ranks(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

pub fn ended(child: Child) -> (i32, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let printed = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code().unwrap_or(-1), printed)
}

fn output(args: &[&str]) -> (i32, String) {
    ended(tiebreak(args).spawn().unwrap())
}

/// A job's run that one process has trained, and the inputs to train others with the same identity.
pub struct Runs {
    folder: tempfile::TempDir,
    pub job: PathBuf,
    key: String,
    whole: PathBuf,
}

impl Runs {
    pub fn of(job: impl FnOnce(&Path) -> PathBuf) -> Runs {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path());
        let whole = folder.path().join("whole");
        trained(&job, &whole, None);
        let path = folder.path().join("key");
        std::fs::write(&path, key().to_text()).unwrap();
        let key = path.to_str().unwrap().to_string();
        Runs { folder, job, key, whole }
    }

    /// A run that has begun, without a step.
    pub fn begun(&self, name: &str) -> String {
        let out = self.folder.path().join(name);
        begin_run(&Disk::default(), &self.job, &out).unwrap();
        out.to_str().unwrap().to_string()
    }

    /// A command that trains such a run.
    pub fn trainer(&self, out: &str, more: &[&str]) -> Command {
        let args = ["train", "--out", out, "--key", &self.key, "--resume"];
        tiebreak(&[&args, more].concat())
    }

    pub fn train(&self, out: &str, more: &[&str]) -> (i32, String) {
        ended(self.trainer(out, more).spawn().unwrap())
    }

    pub fn same(&self, out: &str) {
        let mut found = files(Path::new(out));
        found.retain(|(file, _)| !file.to_string_lossy().ends_with(".partial"));
        assert!(found == files(&self.whole), "{out} is not the run of one process");
    }
}

/// An address to meet at.
pub fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn steps(job: PathBuf, from: &str, to: &str) -> PathBuf {
    edit(&job, &[(from, to)]);
    job
}

#[test]
fn any_number_of_processes_writes_the_run_of_one() {
    let gpt = |micro_batches: &'static str| {
        move |folder: &Path| steps(gpt_job(folder, "operator", ""), "micro_batches = 3", micro_batches)
    };
    let jobs = [
        Runs::of(gpt("micro_batches = 7")),
        Runs::of(gpt("micro_batches = 8")),
        Runs::of(|folder| mlp_job(folder, "microbatch", 5, 6)),
        Runs::of(|folder| gpt_job(folder, "microbatch", "\n[rounding]\n")),
    ];
    for (number, runs) in jobs.iter().enumerate() {
        for ranks in ["1", "2", "3", "4", "5"] {
            if number == 3 && ranks > "3" {
                continue; // it has three micro-batches
            }
            let out = runs.begun(ranks);
            // Four ranks each check another's gradients, which changes no byte.
            let more = match ranks {
                "2" | "3" => &["--shard-optimizer"][..],
                "4" => &["--cross-check", "2"],
                _ => &[],
            };
            let (code, printed) = runs.train(&out, &[&["--ranks", ranks], more].concat());
            assert_eq!(code, 0, "{ranks} ranks: {printed}");
            assert_eq!(printed.matches("audit it with").count(), 1, "only rank 0 prints: {printed}");
            runs.same(&out);
        }
        let out = runs.folder.path().join("3").to_str().unwrap().to_string();
        let (code, printed) = output(&["audit", &out]);
        assert!(code == 0 && printed.contains("MATCHES"), "{printed}");
    }
    // A job that ranks cannot train is refused before anything is written.
    let (job, out) = (jobs[3].job.to_str().unwrap(), jobs[3].folder.path().join("new"));
    for (args, says) in [
        (&["--ranks", "4"][..], "1 to 3 ranks have work, not 4"),
        (&["--ranks", "3", "--cross-check", "1"], "depend on the machine's kernels"),
        (&["--cross-check", "1"], "needs two ranks or more"),
        (&["--shard-optimizer"], "--shard-optimizer needs two ranks or more"),
    ] {
        let (code, printed) = output(&[&["train", job, "--out", out.to_str().unwrap()], args].concat());
        assert!(code == 2 && printed.contains(says), "{printed}");
        assert!(!out.exists());
    }
}

/// Ranks that somebody else starts: by options, each on its engine, and by the environment that launchers set.
#[test]
fn ranks_meet_at_an_address() {
    let runs = Runs::of(|folder| gpt_job(folder, "operator", ""));
    let out = runs.begun("options");
    let at = address();
    let ranks =
        |rank: &'static str| ["--ranks", "3", "--coordinator", &at, "--rank", rank].map(str::to_string);
    let mut others = Vec::new();
    for (rank, engine) in [("1", "reference"), ("2", second_engine())] {
        let options = ranks(rank);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        others.push(tiebreak(&[&["train", "--engine", engine], &options[..]].concat()).spawn().unwrap());
    }
    let options = ranks("0");
    let (code, printed) = runs.train(&out, &options.each_ref().map(String::as_str));
    assert_eq!(code, 0, "{printed}");
    runs.same(&out);
    for other in others {
        assert_eq!(ended(other), (0, String::new()));
    }

    let out = runs.begun("environment");
    let at: SocketAddr = address().parse().unwrap();
    let launched = |rank: &str| {
        // Ranks other than rank 0 take a job and no folder, as with --rank.
        let mut command = match rank {
            "0" => runs.trainer(&out, &[]),
            _ => tiebreak(&["train", runs.job.to_str().unwrap()]),
        };
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("LOCAL_RANK", rank).env("LOCAL_WORLD_SIZE", "2");
        command.env("MASTER_ADDR", at.ip().to_string()).env("MASTER_PORT", at.port().to_string());
        command.spawn().unwrap()
    };
    let all = ["1", "0"].map(launched);
    for rank in all {
        let (code, printed) = ended(rank);
        assert_eq!(code, 0, "{printed}");
    }
    runs.same(&out);
}

/// Mesa's software adapter, if it is there.
fn second_engine() -> &'static str {
    #[cfg(feature = "gpu")]
    if common::adapter_names().iter().any(|name| name.contains("llvmpipe")) {
        return "wgpu";
    }
    "cpu"
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let address = ["--coordinator", "127.0.0.1:1"];
    for (args, says) in [
        (&["--rank", "1"][..], "--ranks"),
        (&["--ranks", "2", "--rank", "2", "--coordinator", "127.0.0.1:1"], "2 ranks have no rank 2"),
        (&["--ranks", "2", "--rank", "1", "--coordinator", "127.0.0.1"], "127.0.0.1: "),
        (&["--ranks", "2", "--rank", "0", address[0], address[1]], "rank 0 needs --out"),
        (&["--ranks", "2", "--rank", "1", "--coordinator", "192.0.2.1:1"], "TIEBREAK_RANKS_TOKEN"),
        (&["--ranks", "0"], "0 is not in"),
    ] {
        let (code, printed) = output(&[&["train"], args].concat());
        assert!(code == 2 && printed.contains(says), "{args:?}: {code} {printed}");
    }
    let mut half = tiebreak(&["train", "job.toml", "--out", "nowhere"]);
    let (code, printed) = ended(half.env("RANK", "0").env("WORLD_SIZE", "2").spawn().unwrap());
    assert!(code == 2 && printed.contains("no variable says where rank 0 listens"), "{printed}");
    let mut first = tiebreak(&["train", "job.toml"]);
    first.env("RANK", "0").env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "1");
    let (code, printed) = ended(first.spawn().unwrap());
    assert!(code == 2 && printed.contains("rank 0 needs --out"), "{printed}");
    let (code, printed) = output(&["train", "job.toml"]);
    assert!(code == 2 && printed.contains("the command needs --out"), "{printed}");
}

/// A worker of `trainer` that runs as rank `rank`.
#[cfg(target_os = "linux")]
fn worker(trainer: u32, rank: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{trainer}/task/{trainer}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    let is_it = |child: &u32| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|arg| arg == format!("--rank={rank}").as_bytes())
    };
    children.find(is_it)
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_worker_is_named_and_the_run_resumes_with_other_ranks() {
    let runs = Runs::of(|folder| {
        let job = steps(gpt_job(folder, "operator", ""), "micro_batches = 3", "micro_batches = 6");
        steps(job, "steps = 8", "steps = 60")
    });
    let divided = "--shard-optimizer";
    for (signal, timeout, says, more) in [
        ("-KILL", "600", "rank 2 is gone (", [&[][..], &[divided]]),
        ("-KILL", "600", "rank 2 is gone (", [&[divided], &[]]),
        ("-STOP", "5", "rank 2 did nothing for", [&[divided], &[divided]]),
    ] {
        let out = runs.begun(&format!("{signal}{}", more[0].len()));
        let options = [&["--ranks", "4", "--rank-timeout", timeout], more[0]].concat();
        let trainer = runs.trainer(&out, &options).spawn().unwrap();
        let records =
            || transcript::read(&Path::new(&out).join("transcript")).map_or(0, |(t, _)| t.records.len());
        let begin = Instant::now();
        while records() < 6 {
            assert!(begin.elapsed() < Duration::from_secs(120), "no step was written");
            std::thread::sleep(Duration::from_millis(5));
        }
        let victim = worker(trainer.id(), 2).expect("rank 2 is a process").to_string();
        assert!(Command::new("kill").args([signal, &victim]).status().unwrap().success());
        let (code, printed) = ended(trainer);
        assert_eq!(code, 3, "{printed}");
        assert!(printed.contains(says) && printed.contains("can be resumed"), "{printed}");
        assert!(!Path::new(&format!("/proc/{victim}")).exists(), "rank 0 leaves no process behind");
        assert!((6..60).contains(&records()));
        let (code, printed) = runs.train(&out, &[&["--ranks", "3"], more[1]].concat());
        assert_eq!(code, 0, "{printed}");
        runs.same(&out);
    }
}

fn place(rank: u32, ranks: u32, token: &str) -> RankPlace {
    RankPlace {
        rank,
        ranks,
        token: token.into(),
        timeout: Duration::from_secs(30),
        transport: Transport::Tcp,
    }
}

/// Connects when somebody listens.
fn connected(at: &str) -> TcpStream {
    let begin = Instant::now();
    loop {
        match TcpStream::connect(at) {
            Ok(stream) => return stream,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(30), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Rank 0 of `ranks` at an address, with the secret "right".
pub fn rank_0(runs: &Runs, name: &str, ranks: &str, timeout: &str) -> (Child, String, Vec<SocketAddr>) {
    let (out, at) = (runs.begun(name), address());
    let options = ["--ranks", ranks, "--rank", "0", "--coordinator", &at, "--rank-timeout", timeout];
    let child = runs.trainer(&out, &options).env("TIEBREAK_RANKS_TOKEN", "right").spawn().unwrap();
    let addresses = vec![at.parse().unwrap()];
    drop(connected(&at)); // rank 0 listens, and a silent client is no rank
    (child, out, addresses)
}

#[test]
fn strangers_are_refused_and_the_others_train() {
    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 4, 4));
    let (child, out, at) = rank_0(&runs, "strangers", "2", "60");
    let address = at[0].to_string();
    connected(&address).write_all(&[b"GET / HTTP/1.1\r\n".as_slice(), &[b' '; 64]].concat()).unwrap();
    let mut other_version = connected(&address);
    let preamble = [b"tiebreak ranks\r\n".as_slice(), &9u32.to_le_bytes(), &1u32.to_le_bytes(), &[0; 32]];
    other_version.write_all(&preamble.concat()).unwrap();
    let _ = other_version.read_to_end(&mut Vec::new()); // until it was refused
    let wrong = Tcp::join(&at, place(1, 2, "wrong")).err().unwrap().to_string();
    assert!(wrong.contains("rank 0: it has another secret"), "{wrong}");
    let options = ["train", "--ranks", "2", "--rank", "1", "--coordinator", &address];
    let right = tiebreak(&options).env("TIEBREAK_RANKS_TOKEN", "right").spawn().unwrap();
    let (code, printed) = ended(child);
    assert_eq!(code, 0, "{printed}");
    for says in [
        "no rank of tiebreak",
        "it speaks version 9 of the protocol, this is version 7",
        "does not know the run's secret",
    ] {
        assert!(printed.contains(says), "{says}: {printed}");
    }
    assert!(!printed.contains("rank 1"), "a stranger is called a rank: {printed}");
    assert_eq!(ended(right).0, 0);
    runs.same(&out);
}

/// Sends a valid preamble byte by byte until rank 0 ends the connection; returns the seconds that it took, 60 at most.
fn dripped(mut stream: TcpStream) -> u64 {
    let begin = Instant::now();
    let preamble = [b"tiebreak ranks\r\n".as_slice(), &3u32.to_le_bytes(), &1u32.to_le_bytes(), &[0; 32]];
    stream.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    for byte in preamble.concat().into_iter().cycle() {
        let open = stream.write_all(&[byte]).is_ok() && !matches!(stream.read(&mut [0; 64]), Ok(0));
        if !open || begin.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    begin.elapsed().as_secs()
}

#[test]
fn strangers_who_take_their_time_hinder_nobody() {
    // Rank 0 gives up at its time limit, and ends a stranger's connection before that.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let slow = connected(&at);
    let waiting = std::thread::spawn(move || {
        let begin = Instant::now();
        let place = RankPlace { timeout: Duration::from_secs(9), ..place(0, 2, "right") };
        let error = Tcp::host(&listener, place, &mut Quiet).err().unwrap().to_string();
        (error, begin.elapsed().as_secs())
    });
    let dripping = std::thread::spawn(|| dripped(slow));

    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 4, 4));
    let (child, out, at) = rank_0(&runs, "slow", "2", "60");
    let address = at[0].to_string();
    let drips: Vec<_> = (0..3).map(|_| connected(&address)).collect();
    let drips: Vec<_> = drips.into_iter().map(|stream| std::thread::spawn(|| dripped(stream))).collect();
    let idle: Vec<TcpStream> = (0..100).map(|_| connected(&address)).collect();
    let begin = Instant::now();
    let options = ["train", "--ranks", "2", "--rank", "1", "--coordinator", &address];
    let right = tiebreak(&options).env("TIEBREAK_RANKS_TOKEN", "right").spawn().unwrap();
    let (code, printed) = ended(child);
    assert_eq!(code, 0, "{printed}");
    assert!(begin.elapsed() < Duration::from_secs(40), "strangers held rank 1 up: {:?}", begin.elapsed());
    assert!(!printed.contains("rank 1"), "a stranger is called a rank: {printed}");
    assert_eq!(ended(right).0, 0);
    runs.same(&out);
    drop(idle);
    drips.into_iter().for_each(|drip| assert!(drip.join().unwrap() < 40));

    let seconds = dripping.join().unwrap();
    assert!(seconds < 8, "a stranger was let in for {seconds} s");
    let (error, seconds) = waiting.join().unwrap();
    assert!(seconds < 20 && error.contains("rank 1 did not join within 9 s"), "{seconds} s: {error}");
    assert!(error.contains("refused connections: 1 (127.0.0.1:"), "{error}");
}

#[test]
fn ranks_that_do_not_fit_are_named() {
    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 4, 4));

    let (child, _, at) = rank_0(&runs, "nobody", "3", "2");
    let first = std::thread::spawn(move || Tcp::join(&at, place(1, 3, "right")).map(|_| ()));
    let (code, printed) = ended(child);
    assert!(code != 0 && printed.contains("rank 2 did not join within 2 s"), "{printed}");
    assert!(first.join().unwrap().unwrap_err().to_string().contains("rank 0 is gone"));

    let (child, _, at) = rank_0(&runs, "twice", "3", "60");
    let both = [(); 2].map(|()| {
        let at = at.clone();
        std::thread::spawn(move || Tcp::join(&at, place(1, 3, "right")).map(|_| ()))
    });
    let (code, printed) = ended(child);
    assert!(code != 0 && printed.contains("two processes say that they are rank 1"), "{printed}");
    assert!(both.into_iter().all(|thread| thread.join().unwrap().is_err()));

    let (child, _, at) = rank_0(&runs, "number", "3", "60");
    let error = Tcp::join(&at, place(1, 5, "right")).err().unwrap().to_string();
    let says = "rank 1 was started for 5 ranks, rank 0 for 3";
    let (code, printed) = ended(child);
    assert!(code != 0 && printed.contains(says) && error.contains(says), "{printed} {error}");

    let (child, _, at) = rank_0(&runs, "transport", "2", "60");
    let place = RankPlace { transport: Transport::Nccl, ..place(1, 2, "right") };
    let error = Tcp::join(&at, place).err().unwrap().to_string();
    let says = "rank 1 was started with --transport nccl, rank 0 with tcp: give all the same";
    let (code, printed) = ended(child);
    assert!(code != 0 && printed.contains(says) && error.contains(says), "{printed} {error}");
}

/// An evaluation that takes longer than ranks wait for each other.
struct Slow;

impl Progress for Slow {
    fn step(&mut self, _: &StepRecord, _: u32) {}

    fn state(
        &mut self,
        step: u32,
        _: &mut Session,
        waiting: &mut (dyn FnMut() + Send),
    ) -> Result<(), StepError> {
        let begin = Instant::now();
        while step == 1 && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
            waiting();
        }
        Ok(())
    }
}

#[test]
fn ranks_wait_for_a_long_evaluation() {
    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 2, 2));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = [listener.local_addr().unwrap()];
    let short = |rank| RankPlace { timeout: Duration::from_secs(3), ..place(rank, 2, "right") };
    let other = std::thread::spawn(move || {
        let mut tcp = Tcp::join(&at, short(1)).unwrap();
        worker::work(&mut Cpu::new(1).unwrap(), &mut tcp, &|| false, &mut ())
    });
    let mut tcp = Tcp::host(&listener, short(0), &mut Quiet).unwrap();
    let (disk, out) = (Disk::default(), runs.folder.path().join("slow evaluation"));
    let run = begin_run(&disk, &runs.job, &out).unwrap();
    let lead = Lead::new(&run, &mut tcp).unwrap();
    train_over(&run, &mut Cpu::new(1).unwrap(), Some(&key()), lead, &mut Slow).unwrap();
    other.join().unwrap().unwrap();
}

/// A rank's misbehaviour in place of its work.
type Act = fn(&mut Tcp);

/// Ranks that know the secret and then do something else.
#[test]
fn a_rank_that_breaks_the_protocol_is_named() {
    let runs = Runs::of(|folder| mlp_job(folder, "microbatch", 4, 4));
    let cases: [(&str, &str, Act); 5] = [
        ("gone", "rank 1 is gone (", |_| {}),
        ("silent", "rank 1 did nothing for", |_| {}),
        ("long", "rank 1 sent what has no place in the protocol: message is larger", |tcp| {
            tcp.send(0, MessageKind::Ready, &[0; 5000]).unwrap();
        }),
        (
            "kind",
            "rank 1 sent what has no place in the protocol: message: it is of kind 9, and Ready is due",
            |tcp| {
                tcp.send(0, MessageKind::Share, &[0; 96]).unwrap();
            },
        ),
        ("stops", "rank 1 reports: out of paper", |tcp| {
            assert!(tcp.abort("out of\npaper"));
        }),
    ];
    for (name, says, act) in cases {
        let (child, _, at) = rank_0(&runs, name, "2", "3");
        let mut tcp = Tcp::join(&at, place(1, 2, "right")).unwrap();
        act(&mut tcp);
        if name != "gone" {
            // All messages of rank 0 are read: a connection that is closed earlier is reset, and sent bytes are lost with it.
            let _ = tcp.receive(0, MessageKind::Welcome, u64::MAX);
            while tcp.receive(0, MessageKind::State, u64::MAX).is_ok() {}
        }
        drop(tcp);
        let (code, printed) = ended(child);
        assert!(code == 3 && printed.contains(says), "{name}: {code} {printed}");
    }
}

/// Rank 0's network, which takes long to pass a slot on to rank 2.
struct SlowToRank2 {
    tcp: Tcp,
    /// Tensors that rank 2 gets before its slots.
    common: usize,
    passed: usize,
}

impl Collective for SlowToRank2 {
    fn rank(&self) -> u32 {
        self.tcp.rank()
    }

    fn ranks(&self) -> u32 {
        self.tcp.ranks()
    }

    fn send(&mut self, to: u32, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        if (to, kind) == (2, MessageKind::State) && !bytes.is_empty() {
            self.passed += 1;
            if self.passed > self.common {
                std::thread::sleep(Duration::from_millis(1500));
            }
        }
        self.tcp.send(to, kind, bytes)
    }

    fn receive(&mut self, from: u32, kind: MessageKind, max: u64) -> Result<Vec<u8>, TrainError> {
        self.tcp.receive(from, kind, max)
    }

    fn all_to_all(
        &mut self,
        outgoing: &[Vec<&[u8]>],
        incoming: &[Vec<usize>],
        each: &mut dyn FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        self.tcp.all_to_all(outgoing, incoming, each)
    }

    fn abort(&mut self, why: &str) -> bool {
        self.tcp.abort(why)
    }
}

/// Rank 2 gets its four slots in six seconds. Rank 1 waits for its one slot and then for the others, and hears from rank 0 meanwhile.
#[test]
fn ranks_wait_while_another_gets_its_slots() {
    let runs = Runs::of(|folder| {
        let job = mlp_job(folder, "microbatch", 2, 3);
        edit(&job, &[("hidden = [33, 20]", "hidden = [33, 33]")]);
        job
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = [listener.local_addr().unwrap()];
    let short = |rank| RankPlace { timeout: Duration::from_secs(3), ..place(rank, 3, "right") };
    let others = [1, 2].map(|rank| {
        std::thread::spawn(move || {
            let mut tcp = Tcp::join(&at, short(rank)).unwrap();
            worker::work(&mut Cpu::new(1).unwrap(), &mut tcp, &|| false, &mut ())
        })
    });
    let tcp = Tcp::host(&listener, short(0), &mut Quiet).unwrap();
    let (disk, out) = (Disk::default(), runs.folder.path().join("slow slots"));
    let run = begin_run(&disk, &runs.job, &out).unwrap();
    let mut network = SlowToRank2 { tcp, common: run.program().released(), passed: 0 };
    let begin = Instant::now();
    let lead = Lead::new(&run, &mut network).unwrap().dividing_slots(&run).unwrap();
    train_over(&run, &mut Cpu::new(1).unwrap(), Some(&key()), lead, &mut Silent).unwrap();
    assert!(begin.elapsed() > Duration::from_secs(5), "nothing was slow");
    others.into_iter().for_each(|other| other.join().unwrap().unwrap());
}

/// A rank sends something wrong and reads nothing: the error does not wait for the rank to read.
#[test]
fn an_exchange_ends_with_its_first_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = [listener.local_addr().unwrap()];
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        let mut tcp = Tcp::join(&at, place(1, 2, "right")).unwrap();
        tcp.send(0, MessageKind::Gradient, &[0; 5]).unwrap();
        let _ = is_done.recv();
    });
    let mut tcp = Tcp::host(&listener, place(0, 2, "right"), &mut Quiet).unwrap();
    let much = vec![0; 256 << 20];
    let begin = Instant::now();
    let ended = tcp.all_to_all(&[vec![], vec![&much]], &[vec![], vec![8]], &mut |_| Ok(()));
    let (why, took) = (ended.unwrap_err().to_string(), begin.elapsed());
    assert!(why.starts_with("rank 1 sent what has no place in the protocol"), "{why}");
    assert!(took < Duration::from_secs(10), "{took:?} of the 30 s of --rank-timeout");
    drop(done);
    other.join().unwrap();
}

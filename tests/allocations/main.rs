//! Readers of foreign runs and verdicts stay within limits: an allocator that does nothing else counts their memory.

#[path = "../common/mod.rs"]
mod common;
mod memory;
mod readers;
mod steps;
mod texts;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use common::edit::edited;
use common::{key, sign};
use tiebreak_audit::checks;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::Program;
use tiebreak_dispute::evidence::binding::Binding;
use tiebreak_dispute::game;
use tiebreak_dispute::game::message::Field;
use tiebreak_dispute::game::result::GameResult;
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::terms::{Clocks, Terms};
use tiebreak_dispute::game::verdict::{Event, GameVerdict};
use tiebreak_dispute::verdict::{Base64, Claim, ProvenRecord, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::liveness::step_bytes;
use tiebreak_engine::recompute;
use tiebreak_engine::session::Session;
use tiebreak_job::Job;
use tiebreak_job::identity::{CONTRACT, RunSummary, program_digest};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::{FileManifest, GroupTree};
use tiebreak_job::opening::Opening;
use tiebreak_job::shard_opening::ShardOpening;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::salted_file::FileSalts;
use tiebreak_record::commit::salts::SaltKey;
use tiebreak_record::commit::state::{digest_from_proof, prove_each, state_digest};
use tiebreak_record::commit::tensor::tile_count;
use tiebreak_record::commit::trace::{Trace, TracedNode, positions};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::rounding::{codec, log::Log};
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::transcript::{self, TranscriptWriter};
use tiebreak_run::run::{JobFiles, RunError, arrays, checkpoint};

/// The system's allocator, which counts the bytes in use and their maximum.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// All bytes that were ever allocated.
static ASKED: AtomicUsize = AtomicUsize::new(0);

fn count(bytes: usize) {
    ASKED.fetch_add(bytes, Relaxed);
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Lets one test run at a time: each begins with this call, since all allocations are counted together.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` in a test that runs alone; returns the most bytes that it has in use beyond those before it.
fn peak<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = f();
    (result, PEAK.load(Relaxed) - before)
}

/// Samples are read from a file of pictures of 92 MB without holding the file: neither a job's check nor a run's batches do.
#[test]
fn data_are_read_where_samples_lie() {
    let _alone = alone();
    const SAMPLES: u64 = 30_000;
    let folder = tempfile::tempdir().unwrap();
    // Zeros that take no space on disk: pictures of class 0.
    let file = fs::File::create(folder.path().join("pictures")).unwrap();
    file.set_len(3073 * SAMPLES).unwrap();
    let text = r#"steps = 100
model = { kind = "mlp", inputs = 3072, hidden = [2], classes = 10 }
data = { kind = "cifar10", path = "pictures", augment = { crop = 4, flip = true } }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 8 }
"#;
    let path = folder.path().join("job.toml");
    fs::write(&path, text).unwrap();
    let job = Job::parse("job", text).unwrap();
    let program = job.program(None).unwrap();
    let (drawn, taken) = peak(|| {
        let reach = JobFiles::new(&path, None).unwrap();
        let mut data = JobData::open(&reach, &job, &program).unwrap();
        for step in 1..=20 {
            data.dataset.batch(&program, [1, 2], step).unwrap();
        }
        let slices = data.dataset.slices_read().unwrap();
        (data.dataset.samples(), slices[0].1.bytes.len())
    });
    // For each sample, its group of 64 KiB is read, sometimes two; a proof holds only the slices of 1 KiB.
    assert_eq!(drawn.0, SAMPLES);
    assert!(drawn.1 <= 160 * 5 * 1024, "{} bytes prove 160 samples", drawn.1);
    assert!(taken <= 2 * 160 * 64 * 1024 + (4 << 20), "{taken} bytes were taken");
}

/// A job of a model whose state has about 25 GB.
const HUGE: &str = r#"steps = 4
model = { kind = "gpt", vocabulary = 256, context = 8, layers = 10, heads = 1, width = 4096 }
data = { kind = "bytes", path = "text.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-3 }
batch = { micro_batch = 1 }
"#;

/// A run of a few KB whose record 0 promises the state of [`HUGE`].
fn huge_run(root: &Path) -> Run {
    let program = Job::parse("job", HUGE).unwrap().program(None).unwrap();
    let file = RunFile {
        contract: CONTRACT.into(),
        trainer_key: Some(key().public().to_text()),
        challenge: None,
        nonce: "0".repeat(32),
        program: program_digest(&program),
        initial: Digest([1; 32]),
        origin: InitialOrigin::Seed,
        data: Vec::new(),
        salts: None,
    };
    fs::create_dir_all(root.join("heads")).unwrap();
    fs::write(root.join("job.toml"), HUGE).unwrap();
    fs::write(root.join("run.json"), file.text()).unwrap();
    fs::write(root.join("program.bin"), encode(&program)).unwrap();
    let run = Run::open(root).unwrap();
    let record = huge_record(&run);
    let (mut writer, _) = TranscriptWriter::open(&run.layout.transcript(), 0).unwrap();
    writer.append(&record).unwrap();
    sign(&run, 1, writer.root());
    run
}

fn huge_record(run: &Run) -> Record {
    Record::Initial { computation: run.computation.id, state: run.file.initial }
}

/// The size that a small file implies is compared with the limit before any allocation.
#[test]
fn sizes_are_refused_before_anything_is_made() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run");
    let run = huge_run(&root);
    let ((), taken) = peak(|| {
        let run = Run::open(&root).unwrap().with_memory(1 << 30);
        let public = key().public();
        let refused = checks::always(&run, Some(&public));
        assert!(matches!(refused, Err(RunError::Memory { .. })), "{:?}", refused.err());
        let checked = checks::structure(&run, Some(&public)).unwrap();
        assert!(matches!(checks::state_after(&run, &checked, 0), Err(RunError::Memory { .. })));
        assert!(plan(&run, &[0], 0, &Choice::All).memory > 10 << 30);
    });
    assert!(taken < 16 << 20, "{taken} bytes were taken");
    // The same as a verdict. The error says what a check takes; a checker who has the memory and the time makes it piece by
    // piece.
    let note = fs::read_to_string(run.layout.head(1)).unwrap();
    let record = ProvenRecord { index: 0, record: Base64(huge_record(&run).encode()), proof: Vec::new() };
    let job = (run.job_text.clone(), None);
    let verdict = Verdict::new(run.file.summary(), job, note, Some(record), Claim::Initial);
    let (needed, taken) = peak(|| Verdict::from_bytes(&verdict.to_bytes()).unwrap().memory().unwrap());
    assert!(needed > 10 << 30 && taken < 16 << 20, "{needed} are needed, {taken} were taken");
    let mut long = verdict.clone();
    long.job = "x".repeat(3 << 20);
    assert!(long.check(None).unwrap_err().to_string().contains("larger than the limit"));
    let file = folder.path().join("verdict.json");
    fs::write(&file, verdict.to_bytes()).unwrap();
    let (run, file) = (root.to_str().unwrap(), file.to_str().unwrap());
    for args in [
        &["verify", run][..],
        &["audit", run, "--engine", "cpu"],
        &["log", "inspect", run],
        &["generate", run],
        &["verdict", "check", file],
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tiebreak"))
            .args(args)
            .args(["--max-memory", "1024"])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        let logged = args[0] == "log" && code == Some(2);
        assert!(
            logged || code == Some(3) && error.contains("raise --max-memory"),
            "{args:?}: {code:?} {error}"
        );
    }
}

/// A name, bytes, and the function that parses them.
type Parser = (&'static str, Vec<u8>, fn(&[u8]));

fn verdict(bytes: &[u8]) {
    let _ = Verdict::from_bytes(bytes).map(|verdict| (verdict.memory().is_ok(), verdict.check(None).is_ok()));
}

fn job(bytes: &[u8]) {
    let _ = Job::parse("job", std::str::from_utf8(bytes).unwrap());
}

/// A game verdict about a small job with so many events of time passing.
fn verdict_of_events(count: u64) -> Vec<u8> {
    let mut verdict = game_verdict(&edited(HUGE, &[("width = 4096", "width = 8")]));
    verdict.events = (0..count).map(Event::tick).collect();
    verdict.to_bytes()
}

/// Files that claim more than they hold, of every kind.
fn hostile_files() -> Vec<Parser> {
    let frozen = |pattern: &str, count: usize| {
        let patterns = format!("{pattern:?},").repeat(count);
        format!("frozen = [{patterns}]\n{}", edited(HUGE, &[("width = 4096", "width = 8")])).into_bytes()
    };
    let mut files: Vec<Parser> = vec![
        ("a deep verdict", b"[".repeat(300_000), verdict),
        (
            "a verdict with a long list",
            format!("{{\"format\":[{}0]}}", "0,".repeat(200_000)).into_bytes(),
            verdict,
        ),
        ("a deep game verdict", [b"{\"game\":1,\"terms\":", &b"[".repeat(300_000)[..]].concat(), |bytes| {
            let _ = GameVerdict::from_bytes(bytes).map(|verdict| verdict.check().is_ok());
        }),
        ("a game verdict of many events", verdict_of_events(100_000), |bytes| {
            let _ = GameVerdict::from_bytes(bytes).map(|verdict| verdict.check().is_ok());
        }),
        ("a job of many keys", (0..20_000).flat_map(|i| format!("a{i} = 1\n").into_bytes()).collect(), job),
        ("a job of one dotted key", format!("a{} = 1", ".a".repeat(100_000)).into_bytes(), job),
        ("a deep job", b"a = ".iter().copied().chain(b"[".repeat(200_000)).collect(), job),
        ("many patterns", frozen("*e*", 20_000), job),
        ("a long pattern", frozen(&"*".repeat(300_000), 1), job),
        ("an empty head", b"\n".repeat(100_000), |bytes| {
            let _ = Head::from_note(std::str::from_utf8(bytes).unwrap(), None);
        }),
        ("a transcript of huge frames", [0xff; 4000].to_vec(), |bytes| {
            let _ = transcript::parse(Path::new("transcript"), bytes, bytes.len() as u64);
        }),
        ("a safetensors header", [&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(), |bytes| {
            let _ = arrays::parse("safetensors", bytes);
            let state = Job::parse("job", HUGE).unwrap().program(None).unwrap().state();
            let _ = checkpoint::parse(Path::new("checkpoint"), bytes, &state);
        }),
        (
            "an array that says that it is huge",
            b"\x93NUMPY\x01\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }"
                .to_vec(),
            |bytes| {
                let _ = arrays::parse("npy", bytes);
            },
        ),
        ("a log", [0xff; 4000].to_vec(), |bytes| {
            let _ = (Log::open(bytes.to_vec(), 1 << 20).is_ok(), codec::decode(bytes, 1 << 40).is_ok());
        }),
        ("a tree", [0; 4096].to_vec(), |bytes| {
            let manifest = FileManifest { bytes: 1 << 40, root: Digest([0; 32]) };
            let _ = GroupTree::decode(bytes, &manifest);
            let salts = FileSalts::new(&SaltKey::new([1; 32]), 0);
            let _ = GroupTree::decode_hidden(bytes, &manifest, &salts);
            let _ = Opening::from_text(&String::from_utf8_lossy(bytes));
        }),
        ("a plan of many shards", texts::plan().into_bytes(), texts::read_plan),
        ("a receipt of many tokens", texts::receipt().into_bytes(), texts::read_receipt),
        ("an opening of a shard", texts::shard().into_bytes(), |bytes| {
            let opening = ShardOpening::from_text(&String::from_utf8_lossy(bytes)).unwrap();
            let state = Job::parse("job", HUGE).unwrap().program(None).unwrap().state();
            assert!(opening.shown(&state, true, &Digest([0; 32])).is_err());
        }),
    ];
    files.extend(hostile_encodings());
    files
}

/// Programs, records and traces of the contract's own encoding.
fn hostile_encodings() -> Vec<Parser> {
    let small =
        Job::parse("job", &edited(HUGE, &[("width = 4096", "width = 8")])).unwrap().program(None).unwrap();
    let mut files: Vec<Parser> = Vec::new();
    // Every count of a program, each replaced by the greatest number.
    let program = encode(&small);
    for at in (0..400).step_by(4) {
        let mut bytes = program.clone();
        bytes[at..at + 4].fill(0xff);
        files.push(("a program", bytes, |bytes| {
            let _ = decode(bytes);
        }));
    }
    for bytes in [texts::program(small.clone()), texts::dimensions(small)] {
        files.push(("a program of many slots", bytes, texts::read_program));
    }
    for bytes in [&[0xff; 2000][..], &[0; 2000]] {
        files.push(("a record", bytes.to_vec(), |bytes| {
            let _ = Record::decode(bytes);
        }));
    }
    files.push(("a trace", [0xff; 2000].to_vec(), |bytes| {
        let program = Job::parse("job", &edited(HUGE, &[("width = 4096", "width = 8")]))
            .unwrap()
            .program(None)
            .unwrap();
        let _ = Trace::decode(&program, bytes);
    }));
    files
}

/// No parser allocates memory by a file's claims: the bytes in use are bounded by the input's.
#[test]
fn parsers_take_memory_in_proportion_to_their_input() {
    let _alone = alone();
    for (name, bytes, parse) in hostile_files() {
        let started = std::time::Instant::now();
        let ((), taken) = peak(|| parse(&bytes));
        let bound = 100 * bytes.len() + (8 << 20);
        println!("{name}: {} bytes, {taken} taken in {:.2?}", bytes.len(), started.elapsed());
        assert!(taken <= bound, "{name}: {} bytes, {taken} were taken", bytes.len());
        assert!(started.elapsed().as_secs() < 20, "{name} took {:.1?}", started.elapsed());
    }
}

/// The inputs for the work of a reader of foreign files, of a given size.
struct Subject {
    text: String,
    job: Job,
    program: Program,
    encoded: Vec<u8>,
    trace: Trace,
    verdict: Vec<u8>,
}

impl Subject {
    fn new([layers, micro_batches]: [u32; 2], frozen: &str, rest: &str) -> Subject {
        let text = format!(
            r#"steps = 4
frozen = [{frozen}]
model = {{ kind = "gpt", vocabulary = 2, context = 2, layers = {layers}, heads = 1, width = 2 }}
data = {{ kind = "bytes", path = "text.txt" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }}
schedule = {{ peak = 1e-3 }}
batch = {{ micro_batch = 1, micro_batches = {micro_batches} }}
{rest}"#
        );
        let job = Job::parse("job", &text).unwrap();
        let program = job.program(None).unwrap();
        let traced = |(phase, node): (Phase, usize)| {
            let graph = graph_of(&program, phase);
            let ty = graph.tensor(graph.nodes[node].output);
            TracedNode::new(ty, vec![[7; 32]; tile_count(ty.bytes())])
        };
        let trace = Trace { nodes: positions(&program).into_iter().map(traced).collect() };
        let (encoded, verdict) = (encode(&program), game_verdict(&text).to_bytes());
        Subject { text, job, program, encoded, trace, verdict }
    }
}

/// A game verdict about a job, with only its terms.
fn game_verdict(job: &str) -> GameVerdict {
    let keys = [1, 2, 3].map(|seed| PrivateKey::generate("party.example", [seed; 32]).unwrap());
    let parsed = Job::parse("job", job).unwrap();
    let run = RunSummary {
        contract: CONTRACT.into(),
        trainer_key: None,
        challenge: None,
        nonce: "0".repeat(32),
        program: program_digest(&parsed.program(None).unwrap()),
        data: Digest([1; 32]),
        initial: Digest([2; 32]),
        origin: InitialOrigin::Seed,
    };
    let (parties, clocks) =
        ([keys[0].public(), keys[1].public()], Clocks { moves: 1000, increment: 10, replay: 1000 });
    let mut terms = Terms::new(
        run.computation(),
        (job.into(), None),
        &parties,
        &keys[2].public(),
        clocks,
        Digest([3; 32]),
    );
    if parsed.rounding.is_some() {
        terms = terms.claiming(game::terms::Claim {
            run: game::terms::ClaimedRun::of(run),
            root: Digest([4; 32]),
            head: None,
        });
    }
    let result = GameResult { absent: Vec::new(), games: Vec::new(), remaining: vec![0, 1], upheld: None };
    GameVerdict::new(terms, Vec::new(), &result, &keys[2])
}

/// A kind of work on a subject.
type Work = (&'static str, fn(&Subject));

const WORKS: [Work; 11] = [
    ("parse a job", |s| drop(Job::parse("job", &s.text))),
    ("make a program", |s| drop(s.job.program(None))),
    ("read a program", |s| drop(decode(&s.encoded))),
    ("check a game verdict", |s| assert!(GameVerdict::from_bytes(&s.verdict).unwrap().check().is_err())),
    ("list what fields are made of", |s| {
        let verdict = GameVerdict::from_bytes(&s.verdict).unwrap();
        let rules = Rules::new(&verdict.terms).unwrap();
        let fields = [Field::State, Field::Clip, Field::Loss, Field::Gradient { micro: 1 }];
        assert!(fields.iter().all(|&field| !rules.run().unwrap().outputs(field).is_empty()));
    }),
    ("read a trace", |s| {
        let trace = Trace::decode(&s.program, &s.trace.encode()).unwrap();
        assert_eq!(trace.root(&s.program), s.trace.root(&s.program));
    }),
    ("bind a state", |s| {
        let before = vec![Digest([5; 32]); s.program.state().len()];
        let binding = Binding::of(&s.program, &s.trace, &before);
        let _ = binding.state(&s.program).unwrap();
    }),
    ("prove parts of a state", |s| {
        let table = s.program.state();
        let before = vec![Digest([5; 32]); table.len()];
        let (all, whole) = ((0..table.len()).collect::<Vec<_>>(), state_digest(&table, &before));
        for (index, proof) in all.iter().zip(prove_each(&table, &before, &all)) {
            assert_eq!(digest_from_proof(&table, *index, &before[*index], &proof), Ok(whole));
        }
    }),
    ("count a step's memory", |s| assert!(step_bytes(&s.program) > 0)),
    ("divide a step, to compute tensors again", |s| assert!(recompute::step_bytes(&s.program) > 0)),
    ("make a session", |s| {
        let mut cpu = Cpu::new(1).unwrap();
        drop(Session::new(&mut cpu, Arc::new(s.program.clone())).unwrap());
    }),
];

/// Nanoseconds of this thread's processor time; if the system does not report it, of wall-clock time.
fn processor_time() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let said = text.and_then(|text| text.split(' ').next()?.parse().ok());
    said.unwrap_or_else(|| START.elapsed().as_nanos() as u64)
}

/// Nanoseconds that `work` takes, and bytes that it allocates.
fn spent(work: impl Fn()) -> [f64; 2] {
    let (time, bytes) = (processor_time(), ASKED.load(Relaxed));
    work();
    [(processor_time() - time) as f64, (ASKED.load(Relaxed) - bytes) as f64]
}

/// Doubling layers, parameters or micro-batches twice takes four times the memory and the time, not sixteen times. Times may grow
/// half of the way to a square, since caches are smaller than programs; the allocated bytes are the same every time.
#[test]
fn work_is_in_proportion_to_what_it_is_about() {
    let _alone = alone();
    let rounding = "[rounding]\n";
    for (what, [small, large]) in [
        ("layers", [[32, 1], [128, 1]].map(|sizes| Subject::new(sizes, "", ""))),
        ("frozen layers", [[32, 1], [128, 1]].map(|sizes| Subject::new(sizes, "\"block*\"", ""))),
        ("logged layers", [[32, 1], [128, 1]].map(|sizes| Subject::new(sizes, "", rounding))),
        ("micro-batches", [[8, 24], [8, 96]].map(|sizes| Subject::new(sizes, "", ""))),
    ] {
        for (name, work) in WORKS {
            // A busy machine disturbs the clock, so a failing comparison is repeated.
            for attempt in 0.. {
                let [a, b] = [&small, &large].map(|subject| spent(|| work(subject)));
                let [time, bytes] = [b[0] / a[0], b[1] / a[1]];
                println!(
                    "{what}: to {name} takes {:.1} ms, x {time:.1}; {} KB, x {bytes:.1}",
                    b[0] / 1e6,
                    b[1] as u64 / 1000
                );
                assert!(bytes < 6.0, "{what}: to {name} takes {bytes} times the bytes for 4 times as much");
                // A very short time shows more of the clock's grain than of the work.
                if time < 10.0 || b[0] < 20e6 {
                    break;
                }
                assert!(attempt < 4, "{what}: to {name} takes {time} times the time for 4 times as much");
            }
        }
    }
}

/// A game verdict of some KB implies a program of a hundred thousand operators: the limits on the command line hold.
#[test]
fn a_small_game_verdict_stays_within_limits() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let subject = Subject::new([1024, 1], "", "");
    let [verdict, terms, job] =
        ["verdict.json", "terms.json", "job.toml"].map(|name| folder.path().join(name));
    fs::write(&verdict, &subject.verdict).unwrap();
    fs::write(&terms, GameVerdict::from_bytes(&subject.verdict).unwrap().terms.to_bytes()).unwrap();
    fs::write(&job, &subject.text).unwrap();
    fs::write(folder.path().join("text.txt"), [0; 100]).unwrap();
    assert!(subject.verdict.len() < 3000, "{}", subject.verdict.len());
    let [verdict, job] = [&verdict, &job].map(|path| path.to_str().unwrap());
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for args in [
        &["verdict", "check", verdict][..],
        &["verdict", "report", verdict, "-o", out],
        &["job", "check", job],
        &["program", "export", job, "--out", out],
    ] {
        for limit in [["--max-memory", "16"], ["--max-time", "0"]] {
            let started = Instant::now();
            let command =
                std::process::Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).args(limit).output();
            let (output, seconds) = (command.unwrap(), started.elapsed().as_secs_f64());
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{args:?} {limit:?}: {error}");
            assert!(error.contains(limit[0]) && seconds < 5.0, "{args:?}: {seconds} s, {error}");
        }
    }
    // Within sufficient limits the check reports its finding: the verdict does not hold, since no event gives the result.
    let args = ["verdict", "check", verdict, "--max-memory", "2048", "--max-time", "60"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
}

//! A computation is independent of who computes it: its records do not depend on the trainer, and two runs of it can be compared.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::{self, edit::edited, gpt_job, key, program_job, trained};
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::graph::Node;
use tiebreak_contract::program::init;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::native::Native;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::JOB_MAX;
use tiebreak_job::computation::{Computation, ComputationError};
use tiebreak_job::data::Dataset;
use tiebreak_job::identity::{CONTRACT, ComputationSummary, philox_key, program_digest, seed};
use tiebreak_job::manifest::{DataFile, GroupTree, files_root};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::state::{state_digest, tensor_digests};
use tiebreak_run::observers::replay::Replayer;
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::transcript;
use tiebreak_run::step::{CommittedStep, Roundings, RunStep, StepRequest, Watch, scalars};
use tiebreak_train::conduct::Conduct;
use tiebreak_train::{Beginning, Silent, TrainError, begin, train, train_as};

/// Trains as another trainer: with a key of its own, and another nonce.
fn trained_by(who: u8, engine: &mut dyn Engine, job: &Path, out: &Path) -> Run {
    let key = PrivateKey::generate(&format!("trainer{who}.example"), [who; 32]).unwrap();
    let nonce = [who; 16];
    let beginning = Beginning {
        job,
        data_root: None,
        out: Folder::at(out),
        key: Some(&key),
        challenge: None,
        logged: false,
        nonce,
    };
    let run = begin(&beginning).unwrap();
    train(&run, engine, Some(&key), &mut Silent).unwrap();
    run
}

/// The job with `from` replaced by `to`, as another file.
fn another(job: &Path, name: &str, from: &str, to: &str) -> PathBuf {
    let path = job.with_file_name(name);
    fs::write(&path, edited(&fs::read_to_string(job).unwrap(), &[(from, to)])).unwrap();
    path
}

/// The output of `tiebreak compare`, and its exit code.
fn compare(first: &Run, second: &Run) -> (String, i32) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
        .args([Path::new("compare"), &first.layout.root, &second.layout.root])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code().unwrap())
}

#[test]
fn two_trainers_of_one_computation_write_one_transcript() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    // The same computation, written by somebody else: another folder, other cadences, comments, and spelling.
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::copy(folder.path().join("text.txt"), elsewhere.join("other.txt")).unwrap();
    let text = fs::read_to_string(&job).unwrap();
    let text = edited(
        &text,
        &[
            ("text.txt", "other.txt"),
            ("head_every = 3", "head_every = 5"),
            ("\nevery = 2", "\nevery = 4"),
            ("peak = 1e-2", "peak = 0.01"),
        ],
    );
    let other = elsewhere.join("mine.toml");
    fs::write(&other, format!("# my own\n{text}")).unwrap();

    let one = trained_by(1, &mut Cpu::new(2).unwrap(), &job, &folder.path().join("one"));
    let two = trained_by(2, &mut Reference, &other, &folder.path().join("two"));
    assert_eq!(one.computation.id, two.computation.id);
    assert_ne!(one.id, two.id);
    let transcripts = [&one, &two].map(|run| fs::read(run.layout.transcript()).unwrap());
    assert!(transcripts[0] == transcripts[1], "two transcripts of one computation");
    let roots = [&one, &two].map(|run| transcript::read(&run.layout.transcript()).unwrap().0.root(10));
    assert_eq!(roots[0], roots[1]);
    assert_eq!(compare(&one, &two), ("no difference in 10 records\n".into(), 0));
}

/// A model kind and the program file made from it are one computation.
#[test]
fn a_program_file_trains_to_the_transcript_of_its_model_kind() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Cpu::new(2).unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let model = trained_by(1, &mut engine, &job, &folder.path().join("model"));
    let job = program_job(folder.path(), "operator", "");
    let file = trained_by(2, &mut engine, &job, &folder.path().join("file"));
    assert!(model.program_file.is_none() && file.program_file.is_some());
    assert_eq!(model.computation.id, file.computation.id);
    let transcripts = [&model, &file].map(|run| fs::read(run.layout.transcript()).unwrap());
    assert!(transcripts[0] == transcripts[1], "two transcripts of one computation");
    assert_eq!(compare(&model, &file), ("no difference in 10 records\n".into(), 0));
    let audit = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
        .args([Path::new("audit"), &file.layout.root])
        .args(["--engine", "reference"])
        .output()
        .unwrap();
    let text = String::from_utf8(audit.stdout).unwrap();
    assert!(audit.status.success() && text.contains("program read from a file"), "{text}");
}

#[test]
fn the_first_record_that_differs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let honest = trained_by(1, &mut Cpu::new(2).unwrap(), &job, &folder.path().join("honest"));
    let cheat = trained(&job, &folder.path().join("cheat"), Some("weight-after@4"));
    let (text, code) = compare(&honest, &cheat);
    let (found, next) = text.split_once('\n').unwrap();
    assert_eq!((found, code), ("record 4, step 4, differs first, in param/token_embedding", 1));
    // The audits that tell which of the two is wrong.
    assert_eq!(next.matches("tiebreak audit ").count(), 2, "{next}");
}

#[test]
fn a_run_that_is_not_finished_is_shorter() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let whole = trained_by(1, &mut Cpu::new(2).unwrap(), &job, &folder.path().join("whole"));
    let cut = trained_by(2, &mut Cpu::new(2).unwrap(), &job, &folder.path().join("cut"));
    for size in cut.head_sizes().unwrap().into_iter().filter(|size| *size > 4) {
        fs::remove_file(cut.layout.head(size)).unwrap();
    }
    let (text, code) = compare(&cut, &whole);
    assert_eq!((text.as_str(), code), ("shorter: the first run has the first 4 records of the other\n", 3));
    let (text, code) = compare(&whole, &cut);
    assert_eq!((text.as_str(), code), ("shorter: the second run has the first 4 records of the other\n", 3));
}

#[test]
fn of_two_computations_the_settings_that_differ_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let other = another(&job, "other.toml", "peak = 1e-2", "peak = 2e-2");
    let mut engine = Cpu::new(2).unwrap();
    let one = trained_by(1, &mut engine, &job, &folder.path().join("one"));
    let two = trained_by(2, &mut engine, &other, &folder.path().join("two"));
    let (text, code) = compare(&one, &two);
    assert_eq!(code, 1);
    assert!(text.contains("schedule.peak: 3c23d70a | 3ca3d70a"), "{text}");
    // The seed follows from the job, and with it the initial state; data and program are the same.
    assert!(
        text.contains("initial state: ") && !text.contains("program: ") && !text.contains("data: "),
        "{text}"
    );
}

#[test]
fn logged_runs_of_two_trainers_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "\n[rounding]\n");
    let mut engine = Cpu::new(2).unwrap().with_native(Native::ALL[0]);
    let one = trained_by(1, &mut engine, &job, &folder.path().join("one"));
    let two = trained_by(2, &mut engine, &job, &folder.path().join("two"));
    let (text, code) = compare(&one, &two);
    assert!(text.starts_with("logged: not comparable"), "{text}");
    assert_eq!(code, 3);
    assert_eq!(compare(&one, &one).1, 0);
}

/// Checks for the head over the initial record before each step.
struct Watchful(u32);

impl Conduct for Watchful {
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: Vec<MicroBatch>,
        _: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        let (head, _) =
            run.head(1, Some(&key().public())).expect("the initial record is signed and published");
        let (records, _) = transcript::read(&run.layout.transcript()).unwrap();
        assert_eq!(head.root, records.root(1));
        self.0 += 1;
        Ok(run_step(session, StepRequest::new(&run.computation, scalars, &batch))?)
    }
}

#[test]
fn the_initial_record_is_signed_before_anything_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let disk = Disk::default();
    let run = common::begin_run(&disk, &job, &folder.path().join("run")).unwrap();
    let mut watchful = Watchful(0);
    train_as(&run, &mut Cpu::new(1).unwrap(), Some(&key()), &mut watchful, &mut Silent).unwrap();
    assert_eq!(watchful.0, 8);
}

const TEXT: &[u8] = b"No folder holds these words: a computation follows from what is said here, and a step of it from nothing else.";

/// A computation of a small GPT over [`TEXT`], and its samples, from texts in memory alone.
fn in_memory(extra: &str) -> (Computation, Dataset) {
    let job = format!(
        r#"steps = 3
clip_norm = 1.0
model = {{ kind = "gpt", vocabulary = 256, context = 8, width = 16, heads = 2, layers = 1 }}
data = {{ kind = "bytes", path = "words" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8, weight_decay = 0.1 }}
schedule = {{ peak = 1e-2 }}
batch = {{ micro_batch = 2, micro_batches = 2 }}
commit = {{ granularity = "operator" }}
{extra}"#
    );
    let (parsed, program) = Computation::parsed("job", &job, None).unwrap();
    let (manifest, tree) = GroupTree::of(&mut &*TEXT).unwrap();
    let (data, digest) = (files_root(std::slice::from_ref(&manifest)), program_digest(&program));
    let state = init::state(&program, philox_key(&seed(&parsed, &digest, &data, None)));
    let state: Vec<Vec<u8>> = state.iter().map(|words| bytes_of(words)).collect();
    let initial = state_digest(&program.state(), &tensor_digests(&program.state(), &state));
    let contract = CONTRACT.to_string();
    let summary = ComputationSummary { contract, challenge: None, program: digest, data, initial };
    let file = DataFile::new("words".into(), manifest, tree, Box::new(Cursor::new(TEXT)));
    let dataset = Dataset::of(vec![file], Path::new("data"), &parsed.data, &program.sample()).unwrap();
    (Computation::derive("job", &job, None, summary).unwrap(), dataset)
}

/// All steps of a computation on a session, each run by `step`: their records.
fn records(
    computation: &Computation,
    dataset: &mut Dataset,
    mut session: Session,
    mut step: impl FnMut(&mut Session, StepRequest, u32) -> CommittedStep,
) -> Vec<StepRecord> {
    let program = &computation.program;
    let state = init::state(program, computation.key());
    session.load(&state.iter().map(|words| bytes_of(words)).collect::<Vec<_>>()).unwrap();
    let steps = 1..=computation.job.steps;
    let each = steps.map(|number| {
        let batch = dataset.batch(program, computation.key(), number).unwrap();
        let request = StepRequest::new(computation, scalars(computation, number), &batch);
        step(&mut session, request, number).record
    });
    each.collect()
}

#[test]
fn a_step_is_trained_and_audited_without_a_folder() {
    for extra in ["", "[rounding]"] {
        let (computation, mut dataset) = in_memory(extra);
        let program = Arc::new(computation.program.clone());
        let watch = Watch::default();
        let mut logs = Vec::new();
        let mut trainer = Cpu::new(2).unwrap().with_native(Native::ALL[1]);
        let session = match computation.job.rounding {
            Some(_) => Session::native(&mut trainer, program.clone()).unwrap(),
            None => Session::new(&mut trainer, program.clone()).unwrap(),
        };
        let trained = records(&computation, &mut dataset, session, |session, request, _| {
            let done = request.run(session, Roundings::Logged, &watch).unwrap();
            logs.extend(done.log.iter().map(|(log, _)| log.clone()));
            done
        });
        assert_eq!(logs.len(), if extra.is_empty() { 0 } else { 3 });
        // Auditors: the scalar reference, which needs no log for a job without roundings, and a trainer who changes a value on
        // the way.
        let mut replay = |tampers: bool| {
            let mut reference = Reference;
            let session = Session::new(&mut reference, program.clone()).unwrap();
            records(&computation, &mut dataset, session, |session, request, number| {
                let mut changed = !tampers || number != 2;
                let mut change = |_: Phase, _: usize, node: &Node, bytes: &[u8]| {
                    let first = !changed && node.operator.contains("gelu");
                    changed |= first;
                    first.then(|| bytes.iter().map(|byte| byte ^ 0x10).collect())
                };
                let request = request.tampered(Some(&mut change));
                let Some(rounding) = &computation.job.rounding else {
                    return request.run(session, Roundings::Logged, &watch).unwrap();
                };
                let log = logs[number as usize - 1].clone();
                let mut replayer = Replayer::new(rounding, &program.micro, log);
                request.run(session, Roundings::Replayed(&mut replayer), &watch).unwrap()
            })
        };
        assert_eq!(replay(false), trained, "{extra}");
        let cheat = replay(true);
        assert!(cheat[0] == trained[0] && cheat[1] != trained[1], "{extra}");
    }
}

#[test]
fn a_computation_that_does_not_hold_together_is_refused_by_what_is_wrong() {
    const FILE: &str = r#"steps = 3
program = "file"
data = { kind = "bytes", path = "words" }
schedule = { peak = 1e-2 }
"#;
    let (computation, _) = in_memory("");
    let file = encode(&computation.program);
    let derived = |job: &str, file: Option<&[u8]>, edit: fn(&mut ComputationSummary)| {
        let mut summary = computation.summary.clone();
        edit(&mut summary);
        Computation::derive("the job", job, file, summary)
    };
    let refused = |job: &str, file: Option<&[u8]>, edit| derived(job, file, edit).unwrap_err();
    assert_eq!(derived(FILE, Some(&file), |_| ()).unwrap().program, computation.program);
    assert!(
        matches!(refused("steps = 3", None, |_| ()), ComputationError::Job(why) if why.0.contains("the job"))
    );
    assert!(matches!(refused(&" ".repeat(JOB_MAX as usize + 1), None, |_| ()), ComputationError::TooLong));
    let missing = refused(FILE, None, |_| ());
    assert!(matches!(missing, ComputationError::Program(why) if why.0.contains("is not given")));
    let cut = refused(FILE, Some(&file[..file.len() - 1]), |_| ());
    assert!(matches!(cut, ComputationError::Program(why) if why.0.contains("bytes end")));
    let other = refused(FILE, Some(&file), |summary| summary.program = Digest([1; 32]));
    assert!(
        matches!(other, ComputationError::OtherProgram { named: Digest([1, ..]), derived } if derived == computation.summary.program)
    );
    let contract = refused(FILE, Some(&file), |summary| summary.contract = "another".into());
    assert!(matches!(contract, ComputationError::Contract(why) if why.to_string().contains("\"another\"")));
}

#[test]
fn a_session_with_an_engine_of_its_own_goes_to_another_thread() {
    let (computation, mut dataset) = in_memory("");
    let program = Arc::new(computation.program.clone());
    let watch = Watch::default();
    let mut engine: Box<dyn Engine> = Box::new(Cpu::new(1).unwrap());
    let lent = Session::new(&mut engine, program.clone()).unwrap();
    let here = records(&computation, &mut dataset, lent, |session, request, _| {
        request.run(session, Roundings::Logged, &watch).unwrap()
    });
    let own: Session<'static> = Session::new(engine, program).unwrap();
    let there = std::thread::spawn(move || {
        records(&computation, &mut dataset, own, |session, request, _| {
            request.run(session, Roundings::Logged, &Watch::default()).unwrap()
        })
    });
    assert_eq!(there.join().unwrap(), here);
}

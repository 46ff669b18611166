//! Jobs that draw in order, and recordings: a training that is fed with its batches has the files of one that reads them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::edit::{edit, edited};
use crate::common::{self, every_pair, files, key, npy, trained};
use crate::run_format::passes;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, audit, checks};
use tiebreak_dispute::fact::Fact;
use tiebreak_dispute::verdict::{Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::data::Place;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{Folder, RunError, names, transcript};
use tiebreak_train::fed::{Feed, Part, Recording};
use tiebreak_train::{Beginning, Silent, TrainError};

const STEPS: u32 = 6;
/// Samples of a step.
const BATCH: u32 = 4;

/// A perceptron on float inputs.
const ARRAYS: &str = r#"steps = 6
model = { kind = "mlp", inputs = 5, hidden = [4], classes = 3 }
data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "f32", sampling = "in_order" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 2, micro_batches = 2 }
commit = { granularity = "microbatch", head_every = 4 }
checkpoint = { every = 2 }
"#;

/// A GPT with dropout on token ids.
const TOKENS: &str = r#"steps = 6
model = { kind = "gpt", vocabulary = 31, context = 3, layers = 1, heads = 1, width = 4, dropout = 0.1 }
data = { kind = "tokens", path = "tokens.npy", dtype = "u16", sampling = "in_order" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1 }
schedule = { peak = 0.1 }
batch = { micro_batch = 4 }
commit = { granularity = "operator", head_every = 2 }
checkpoint = { every = 3, keep = 1 }
"#;

/// Writes a job.
fn job(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("job.toml");
    fs::write(&path, text).unwrap();
    path
}

/// The batches of a job, one after another: bytes for each data file.
fn batches(text: &str) -> Vec<Vec<Vec<u8>>> {
    let arrays = |step: u32| {
        let inputs = (0..BATCH * 5).flat_map(|i| ((step * 31 + i) as f32 * 0.7).sin().to_le_bytes());
        let labels = (0..BATCH).flat_map(|i| ((step + i * i) % 3).to_le_bytes());
        vec![inputs.collect(), labels.collect()]
    };
    let tokens = |step: u32| {
        vec![(0..BATCH * 4).flat_map(|i| ((step * 7 + i * i) as u16 % 31).to_le_bytes()).collect()]
    };
    (0..STEPS).map(|step| if text == ARRAYS { arrays(step) } else { tokens(step) }).collect()
}

/// Writes the same batches as data files beside a job, with headers of our own.
fn data_files(folder: &Path, text: &str) {
    let whole = |part: usize| batches(text).iter().flat_map(|batch| batch[part].clone()).collect::<Vec<u8>>();
    if text == ARRAYS {
        fs::write(folder.join("inputs.npy"), npy("<f4", "(24, 5)", &whole(0))).unwrap();
        fs::write(folder.join("labels.npy"), npy("<u4", "(24,)", &whole(1))).unwrap();
    } else {
        fs::write(folder.join("tokens.npy"), npy("<u2", "(96,)", &whole(0))).unwrap();
    }
}

/// Feeds batches up to a step, and remembers what it is told.
struct Fed {
    batches: Vec<Vec<Vec<u8>>>,
    last: u32,
    begun: Option<(u32, Vec<Part>)>,
    asked: Vec<u32>,
    kept: Vec<StepRecord>,
    refused: Vec<String>,
}

impl Fed {
    fn new(text: &str, last: u32) -> Fed {
        let batches = batches(text);
        Fed { batches, last, begun: None, asked: Vec::new(), kept: Vec::new(), refused: Vec::new() }
    }
}

impl Feed for Fed {
    fn begin(&mut self, done: u32, parts: Vec<Part>) {
        assert!(self.begun.is_none());
        self.begun = Some((done, parts));
    }

    fn next(&mut self, done: u32) -> Option<Vec<Vec<u8>>> {
        self.asked.push(done);
        (done < self.last).then(|| self.batches[done as usize].clone())
    }

    fn refused(&mut self, why: RunError) {
        self.refused.push(why.to_string());
        self.batches = batches(ARRAYS);
    }

    fn kept(&mut self, record: &StepRecord) {
        self.kept.push(record.clone());
    }
}

fn begin(disk: &Disk, job: &Path, out: &Path) -> Result<Recording, RunError> {
    let (key, nonce, out) = (Some(&key()), [9; 16], Folder::on(disk, out));
    Recording::begin(&Beginning { job, data_root: None, out, key, challenge: None, logged: false, nonce })
}

fn record(job: &Path, out: &Path, feed: &mut Fed) -> Result<Run, TrainError> {
    let recording = begin(&Disk::default(), job, out)?;
    tiebreak_train::record(&recording, &mut Cpu::new(1).unwrap(), Some(&key()), feed, &mut Silent)
}

fn same_files(recorded: &Path, trained: &Path, after: &str) {
    let whole = |folder: &Path| {
        let mut found = files(folder);
        found.retain(|(name, _)| !name.to_string_lossy().ends_with(".partial"));
        found
    };
    let (recorded, trained) = (whole(recorded), whole(trained));
    let names = |files: &[(PathBuf, Vec<u8>)]| files.iter().map(|file| file.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&recorded), names(&trained), "{after}");
    let other = recorded.iter().zip(&trained).find(|(a, b)| a != b);
    assert!(other.is_none(), "{after}: {:?} differs", other.map(|(file, _)| &file.0));
}

#[test]
fn samples_are_drawn_in_the_order_of_the_files_and_windows_one_behind_the_other() {
    let folder = tempfile::tempdir().unwrap();
    // Two files, of 3 and 2 windows of 4 tokens: the tokens behind them are in no sample.
    let text = edited(TOKENS, &[("path = \"tokens.npy\"", "paths = [\"a.npy\", \"b.npy\"]")]);
    for (name, tokens) in [("a.npy", 0..15u16), ("b.npy", 15..24)] {
        let bytes: Vec<u8> = tokens.clone().flat_map(u16::to_le_bytes).collect();
        fs::write(folder.path().join(name), npy("<u2", &format!("({},)", tokens.len()), &bytes)).unwrap();
    }
    let run = trained(&job(folder.path(), &text), &folder.path().join("run"), None);
    let mut dataset = run.dataset().unwrap();
    assert_eq!(dataset.samples(), 5);
    let mut firsts = Vec::new();
    for step in 1..=2 {
        for place in 0..BATCH {
            let sample = dataset.in_file(run.key(), Place { step, batch: BATCH, place }).unwrap();
            let first = sample.ids[0];
            assert_eq!(sample.ids, (first..first + 4).collect::<Vec<u32>>());
            firsts.push(first);
        }
    }
    assert_eq!(firsts, [0, 4, 8, 15, 19, 0, 4, 8]);
    let batch = run.batch(&mut dataset, 1).unwrap();
    let words = |bytes: &[u8]| bytes.chunks(4).map(|word| u32::from(word[0])).collect::<Vec<u32>>();
    assert_eq!(words(&batch[0].tensors[0]), [0, 1, 2, 4, 5, 6, 8, 9, 10, 15, 16, 17]);
    assert_eq!(words(&batch[0].tensors[1]), [1, 2, 3, 5, 6, 7, 9, 10, 11, 16, 17, 18]);
}

/// Other data, the same seed; without the key a seed follows from the data.
#[test]
fn the_seed_of_a_job_in_order_is_that_of_any_data() {
    let folder = tempfile::tempdir().unwrap();
    let seeds = |name: &str, text: &str| {
        [false, true].map(|edits| {
            data_files(folder.path(), ARRAYS);
            if edits {
                let mut bytes = fs::read(folder.path().join("labels.npy")).unwrap();
                let last = bytes.len() - 4;
                bytes[last] = (bytes[last] + 1) % 3;
                fs::write(folder.path().join("labels.npy"), bytes).unwrap();
            }
            let out = folder.path().join(format!("{name}-{edits}"));
            let run = common::begin_run(&Disk::default(), &job(folder.path(), text), &out).unwrap();
            (run.computation.seed, run.computation.id)
        })
    };
    let [first, second] = seeds("in-order", ARRAYS);
    assert!(first.0 == second.0 && first.1 != second.1);
    let [first, second] = seeds("drawn", &edited(ARRAYS, &[(", sampling = \"in_order\"", "")]));
    assert!(first.0 != second.0 && first.1 != second.1);
}

#[test]
fn a_recording_has_the_files_of_a_training_on_its_data() {
    for text in [ARRAYS, TOKENS] {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path(), text);
        let mut feed = Fed::new(text, STEPS);
        let run = record(&job, &folder.path().join("recorded"), &mut feed).unwrap();
        let parts = match text {
            ARRAYS => vec![("f32", vec![4, 5]), ("u32", vec![4])],
            _ => vec![("u16", vec![4, 4])],
        };
        let parts = parts.into_iter().map(|(element, shape)| Part { element, shape }).collect();
        assert_eq!(feed.begun, Some((0, parts)));
        assert_eq!(feed.asked, (0..STEPS).collect::<Vec<u32>>());
        data_files(folder.path(), text);
        let other = trained(&job, &folder.path().join("trained"), None);
        same_files(&run.layout.root, &other.layout.root, text);
        let records = transcript::read(&other.layout.transcript()).unwrap().0.records;
        let steps = records.iter().filter_map(|record| match record {
            Record::Step { step, .. } => Some(step.clone()),
            Record::Initial { .. } | Record::Final { .. } => None,
        });
        assert!(steps.eq(feed.kept), "a feed hears each record");
    }
}

#[test]
fn a_second_implementation_reads_recordings() {
    if !common::has_python() {
        return;
    }
    for text in [ARRAYS, TOKENS] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("recorded");
        let run = record(&job(folder.path(), text), &out, &mut Fed::new(text, STEPS)).unwrap();
        passes(&run, &[], &[]);
    }
}

/// Stops the disk at each operation in turn, and goes on with a good one: whatever is left, the files are those of a training. Without
/// TIEBREAK_EVERY_PAIR, the disk stops at two operations of five.
#[test]
fn a_recording_that_crashes_anywhere_goes_on_to_the_same_files() {
    let all = every_pair("three crash points of five of a recording");
    for (text, points) in [(ARRAYS, 60), (TOKENS, 50)] {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path(), text);
        data_files(folder.path(), text);
        let whole = trained(&job, &folder.path().join("trained"), None).layout.root;
        let (out, mut crashes, mut kept_before) = (folder.path().join("recorded"), 0, 0);
        for operations in (0..).filter(|operations| all || [0, 2].contains(&(operations % 5))) {
            let _ = fs::remove_dir_all(&out);
            let mut feed = Fed::new(text, STEPS);
            let ended = begin(&Disk::failing_after(operations), &job, &out)
                .map_err(TrainError::from)
                .and_then(|recording| {
                    tiebreak_train::record(
                        &recording,
                        &mut Cpu::new(1).unwrap(),
                        Some(&key()),
                        &mut feed,
                        &mut Silent,
                    )
                    .map(drop)
                });
            if ended.is_ok() {
                break;
            }
            crashes += 1;
            let kept = feed.kept.len() as u32;
            if Run::open(&out).is_err() {
                let mut feed = Fed::new(text, STEPS);
                record(&job, &out, &mut feed).unwrap();
                // No step that somebody heard of is asked for again, and none is left out.
                let done = feed.begun.as_ref().map_or(STEPS, |begun| begun.0);
                assert!(done == kept || done == kept + 1, "{done} after {kept}");
                assert_eq!(feed.asked, (done..STEPS).collect::<Vec<u32>>());
                kept_before += u32::from(done > 0 && done < STEPS);
            } else if out.join(names::RECORDING).exists() {
                record(&job, &out, &mut Fed::new(text, 0)).unwrap();
            }
            same_files(&out, &whole, &format!("after {operations} operations"));
        }
        let [points, amid] = [points, 10].map(|count| if all { count } else { count * 2 / 5 });
        assert!(crashes > points && kept_before > amid, "{crashes} crashes, {kept_before} amid the steps");
    }
}

/// A system that loses power may have kept a record and lost its batch, or have zeros in place of the batch.
#[test]
fn a_batch_that_a_crash_lost_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), ARRAYS);
    data_files(folder.path(), ARRAYS);
    let whole = trained(&job, &folder.path().join("trained"), None).layout.root;
    for (name, keeps_length) in [("short", false), ("zeros", true)] {
        let out = folder.path().join(name);
        // The disk stops after the record of step 5, before a checkpoint.
        let stop = (0..).find(|&operations| {
            let _ = fs::remove_dir_all(&out);
            let mut feed = Fed::new(ARRAYS, STEPS);
            let Ok(recording) = begin(&Disk::failing_after(operations), &job, &out) else { return false };
            let ended = tiebreak_train::record(
                &recording,
                &mut Cpu::new(1).unwrap(),
                Some(&key()),
                &mut feed,
                &mut Silent,
            );
            ended.is_err() && feed.kept.len() == 5
        });
        assert!(stop.is_some());
        let path = out.join(names::data_file(0));
        let bytes = fs::read(&path).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let lost = header + 5 * 80 - 7;
        let zeros = if keeps_length { vec![0; 7] } else { Vec::new() };
        fs::write(&path, [&bytes[..lost], &zeros].concat()).unwrap();
        let mut feed = Fed::new(ARRAYS, STEPS);
        record(&job, &out, &mut feed).unwrap();
        assert_eq!(feed.begun.map(|begun| begun.0), Some(4), "{name}");
        same_files(&out, &whole, name);
    }
}

#[test]
fn a_recording_that_stops_is_no_run_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (job, out) = (job(folder.path(), ARRAYS), folder.path().join("recorded"));
    let mut feed = Fed::new(ARRAYS, 3);
    let stopped = record(&job, &out, &mut feed).err().unwrap();
    assert!(matches!(stopped, TrainError::Asked { step: 3 }), "{stopped}");
    assert!(fs::read_dir(out.join("heads")).unwrap().next().is_none(), "a recording promises nothing yet");
    let no_run = Run::open(&out).err().unwrap().to_string();
    assert!(no_run.contains("a recording that is not finished"), "{no_run}");
    let mut feed = Fed::new(ARRAYS, STEPS);
    record(&job, &out, &mut feed).unwrap();
    assert_eq!((feed.begun.unwrap().0, feed.asked), (3, vec![3, 4, 5]));
    data_files(folder.path(), ARRAYS);
    same_files(&out, &trained(&job, &folder.path().join("trained"), None).layout.root, "a stop");
    let again = begin(&Disk::default(), &job, &out).err().unwrap().to_string();
    assert!(again.contains("is a run already"), "{again}");
}

#[test]
fn a_batch_that_is_none_is_refused_and_the_next_one_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (job, out) = (job(folder.path(), ARRAYS), folder.path().join("recorded"));
    for (part, bytes, why) in [
        (1, 3u32.to_le_bytes().repeat(4), "among its labels, which is not below 3"),
        (0, vec![0; 79], "the batch of step 1 has [79, 16] bytes, and [80, 16] are wanted"),
    ] {
        let _ = fs::remove_dir_all(&out);
        let mut feed = Fed::new(ARRAYS, STEPS);
        feed.batches[0][part] = bytes;
        record(&job, &out, &mut feed).unwrap();
        assert!(feed.refused.len() == 1 && feed.refused[0].contains(why), "{:?}", feed.refused);
        assert_eq!(feed.asked, [0, 0, 1, 2, 3, 4, 5]);
    }
    data_files(folder.path(), ARRAYS);
    same_files(&out, &trained(&job, &folder.path().join("trained"), None).layout.root, "refusals");
}

#[test]
fn a_job_that_cannot_be_recorded_is_refused_by_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let sampling = "sampling = \"in_order\"";
    for (edits, why) in [
        (vec![(sampling, "sampling = \"permutation\"")], "data.sampling: a recording wants \"in_order\""),
        (vec![(sampling, "sampling = \"in_order\", copy = false")], "data.copy: a recording holds its data"),
        (vec![(sampling, "sampling = \"in_order\", validation_split = 0.5")], "data.validation_split: "),
        (
            vec![("checkpoint =", "evaluation = { every = 2 }\ncheckpoint =")],
            "evaluation: a recording makes none",
        ),
        (
            vec![
                ("\"microbatch\"", "\"microbatch\", scheme = 1"),
                (sampling, "sampling = \"in_order\", copy = false"),
            ],
            "commit.scheme: the commitments of a recording hide nothing",
        ),
        (
            vec![("checkpoint =", "rounding = { threshold = 16777216 }\ncheckpoint =")],
            "rounding.threshold is 16777216; native kernels need at most",
        ),
        (vec![("\"f32\"", "\"f16\"")], "data.dtype: a recording takes f32, u8, u16 and u32, not f16"),
        (vec![("\"labels.npy\"", "\"labels.safetensors\", labels_tensor = \"y\"")], "two .npy files"),
        (vec![("inputs.npy", "inputs.npy.gz")], "two .npy files"),
        (
            vec![("steps = 6", "steps = 33554432"), ("inputs = 5", "inputs = 50000")],
            "more than a data file holds",
        ),
    ] {
        let out = folder.path().join("recorded");
        let error = begin(&Disk::default(), &job(folder.path(), &edited(ARRAYS, &edits)), &out).err();
        let error = error.unwrap_or_else(|| panic!("{edits:?} is recorded")).to_string();
        assert!(error.contains(why), "{error}");
        assert!(!out.join(names::RECORDING).exists());
    }
}

#[test]
fn another_job_and_damaged_files_do_not_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (job(folder.path(), ARRAYS), folder.path().join("recorded"));
    record(&path, &out, &mut Fed::new(ARRAYS, 3)).err().unwrap();
    let error = |job: &Path| record(job, &out, &mut Fed::new(ARRAYS, STEPS)).err().unwrap().to_string();
    edit(&path, &[("steps = 6", "steps = 7")]);
    assert!(error(&path).contains("is a recording of another job"));
    let path = job(folder.path(), ARRAYS);
    // The recording's own file is the one that is named: there is no run.json.
    let recording = out.join(names::RECORDING);
    let text = fs::read_to_string(&recording).unwrap();
    let other = text.replace("\"program\": \"", "\"program\": \"0");
    for damaged in [&text[..text.len() / 2], &format!("{text} "), &text.replace("tiebreak", "tie"), &other] {
        fs::write(&recording, damaged).unwrap();
        let why = error(&path);
        assert!(why.starts_with(&format!("{}: ", recording.display())), "{why}");
    }
    fs::write(&recording, text).unwrap();
    let labels = out.join(names::data_file(1));
    let bytes = fs::read(&labels).unwrap();
    fs::write(&labels, &bytes[..bytes.len() - 20]).unwrap();
    assert!(error(&path).contains("files were damaged"), "{}", error(&path));
    // A batch that was changed later would convict its trainer, so nothing is published.
    let mut edited = bytes.clone();
    let first = bytes.len() - 3 * 16;
    edited[first] = (edited[first] + 1) % 3;
    fs::write(&labels, &edited).unwrap();
    let why = error(&path);
    assert!(why.contains("no longer hold the batch of step 1"), "{why}");
    assert!(!out.join(names::RUN_JSON).exists());
    fs::write(
        &labels,
        fs::read(&labels)
            .unwrap()
            .iter()
            .enumerate()
            .map(|(i, &byte)| if i == first { bytes[i] } else { byte })
            .collect::<Vec<u8>>(),
    )
    .unwrap();
    record(&path, &out, &mut Fed::new(ARRAYS, STEPS)).unwrap();
}

/// A recording may lie for days before somebody goes on. Nothing is signed that `verify` then calls damaged.
#[test]
fn a_file_that_was_damaged_meanwhile_is_named_before_anything_is_signed() {
    damage_is_named(TOKENS, &[]);
    let logged = edited(TOKENS, &[("checkpoint =", "rounding = {}\ncheckpoint =")]);
    damage_is_named(&logged, &[names::log(2)]);
}

/// Damages one file after the other, `more` among them, and leaves it out.
fn damage_is_named(text: &str, more: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (job(folder.path(), text), folder.path().join("recorded"));
    record(&path, &out, &mut Fed::new(text, 5)).err().unwrap();
    let resumed = || record(&path, &out, &mut Fed::new(text, STEPS)).map_err(|error| error.to_string());
    // The first damage is found behind the last step. From there on no file changes.
    let [first, trace, last] = [names::checkpoint(0), names::trace(2), names::checkpoint(STEPS)];
    let all = [first, trace, last, names::GRADIENTS.into(), names::MODEL.into()];
    for name in all.iter().chain(more) {
        let file = out.join(name);
        let bytes = fs::read(&file).unwrap();
        let mut edited = bytes.clone();
        let middle = edited.len() - 20;
        edited[middle] ^= 0x10;
        fs::write(&file, edited).unwrap();
        let why = resumed().err().unwrap();
        let is_signed = out.join(names::RUN_JSON).exists() || out.join(names::head(1)).exists();
        assert!(why.contains(name) && !is_signed, "{name}: {why}");
        fs::remove_file(&file).unwrap();
        let why = resumed().err().unwrap();
        assert!(why.contains(name) && !out.join(names::RUN_JSON).exists(), "{name}: {why}");
        fs::write(&file, bytes).unwrap();
    }
    resumed().unwrap();
}

#[test]
fn an_audit_names_the_order_as_unchecked_and_another_batch_convicts() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), ARRAYS);
    let audited = |run: &Run| {
        let mut engine = Cpu::new(1).unwrap();
        let checked = checks::always(run, Some(&key().public())).unwrap();
        let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
        audit(run, &mut engine, checked, plan, None, &mut tiebreak_audit::Silent).unwrap()
    };
    let run = record(&job, &folder.path().join("recorded"), &mut Fed::new(ARRAYS, STEPS)).unwrap();
    let (report, verdict) = audited(&run);
    assert_eq!((report.outcome.clone(), report.steps_replayed()), (Outcome::Matches, 6));
    assert!(verdict.is_none());
    let chosen = |note: &&String| note.contains("the trainer chose them and their order");
    assert_eq!(report.not_checked.iter().filter(chosen).count(), 1, "{:?}", report.not_checked);
    data_files(folder.path(), ARRAYS);
    let drawn = job.with_file_name("drawn.toml");
    fs::write(&drawn, edited(ARRAYS, &[(", sampling = \"in_order\"", "")])).unwrap();
    let (report, _) = audited(&trained(&drawn, &folder.path().join("drawn"), None));
    assert_eq!(report.not_checked.iter().filter(chosen).count(), 0);
    // The records commit to two batches that were exchanged.
    let (report, verdict) = audited(&trained(&job, &folder.path().join("reordered"), Some("reorder@3")));
    assert!(
        matches!(report.outcome, Outcome::Inconsistent { step: 3, what: Ground::Batch }),
        "{:?}",
        report.outcome
    );
    let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
    match verdict.check(Some(&key().public())).unwrap() {
        Ruling::Convicts(finding) => assert!(matches!(finding.what.0, Fact::Batch), "{finding:?}"),
        other => panic!("not convicted: {other:?}"),
    }
}

//! Masks of targets: the labels that a mask does not count have no loss, in training, audits, verdicts, evaluations and the second
//! implementation of the run format.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use crate::common::{
    audited, edit::edit, files, key, masked_job, npy, one_by_one, sign_again, step_mut, trained, words,
};
use crate::ranks_in_process::train_honest_ranks;
use crate::run_format::passes;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Silent, audit, checks};
use tiebreak_dispute::verdict::{Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Job;
use tiebreak_job::data::{Dataset, batch_digest, targets};
use tiebreak_run::evaluate::{Evaluation, Evaluator};
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{JobFiles, RunError, transcript};

const UNCOUNTED: u32 = 127;
const CONTEXT: usize = 12;

fn token(i: usize) -> u32 {
    (i * i % 101 + i % 7) as u32
}

fn counts(i: usize) -> bool {
    i % 3 != 1 && !(26..65).contains(&i)
}

/// Reads the data of a job as `train` does before a run.
fn opened(path: &Path) -> Result<(Job, JobData), RunError> {
    let job = Job::parse("job", &fs::read_to_string(path).unwrap())?;
    let program = job.program(None).unwrap();
    let mut data = JobData::open(&JobFiles::new(path, None)?, &job, &program)?;
    data.dataset.scan(None, &mut |_| {})?;
    Ok((job, data))
}

fn losses(run: &Run) -> Vec<u32> {
    let (transcript, _) = transcript::read(&run.layout.transcript()).unwrap();
    (1..=run.job().steps as usize).map(|step| step_mut(&mut transcript.records.clone(), step).loss).collect()
}

#[test]
fn a_target_that_does_not_count_has_the_label_without_a_loss() {
    for (windows, samples, apart) in [("every", 307 - 12, 1), ("separate", 307 / 13, 13)] {
        let folder = tempfile::tempdir().unwrap();
        let path = masked_job(folder.path(), "step", windows, "");
        let (job, mut data) = opened(&path).unwrap();
        assert_eq!(data.dataset.samples(), samples);
        let program = job.program(None).unwrap();
        let begins: Vec<usize> = (0..samples as usize).map(|sample| sample * apart).collect();
        let mut uncounted = 0;
        for step in 1..=8 {
            let micro = data.dataset.micro_batch(&program, [3, 4], step, 1).unwrap();
            let [inputs, labels] = [0, 1].map(|number: usize| words(&micro.tensors[number]));
            for (inputs, labels) in inputs.chunks(CONTEXT).zip(labels.chunks(CONTEXT)) {
                let is = |begin: &&usize| (0..CONTEXT).all(|i| inputs[i] == token(**begin + i));
                let begin = *begins.iter().find(is).unwrap();
                let due = (1..=CONTEXT).map(|i| if counts(begin + i) { token(begin + i) } else { UNCOUNTED });
                assert_eq!(labels, due.collect::<Vec<u32>>());
                uncounted += labels.iter().filter(|label| **label == UNCOUNTED).count();
            }
            // A referee draws the same from the slices that were read, also element by element.
            let slices = data.dataset.slices_read().unwrap();
            assert_eq!(slices.iter().map(|(file, _)| *file).collect::<Vec<_>>(), [0, 1]);
            let mut again =
                Dataset::from_slices(&data.manifest, &slices, &job.data, &program.sample()).unwrap();
            let first = again.micro_batch(&program, [3, 4], step, 1).unwrap();
            assert_eq!(first, micro);
            let first = again.micro_batch(&program, [3, 4], step, 0);
            if let Ok(first) = first {
                one_by_one(&mut again, &program, ([3, 4], step), &first);
            }
        }
        assert!(uncounted > 50, "{uncounted}");
        let first = data.dataset.micro_batch(&program, [3, 4], 1, 0).unwrap();
        one_by_one(&mut data.dataset, &program, ([3, 4], 1), &first);
        // The bytes that open a sample are of both files.
        let places = data.dataset.places(1).unwrap();
        let (at, header) = (apart as u64, fs::metadata(folder.path().join("ids.npy")).unwrap().len() - 614);
        assert_eq!(places, [(0, header + 2 * at, 26), (1, at + 1, 12)]);
    }
}

#[test]
fn masked_runs_match_on_every_engine_and_by_the_second_implementation() {
    let lora = "[model.lora]\nrank = 2\nalpha = 4\ntargets = [\"all-linear\"]\n";
    for (number, (granularity, windows, extra)) in [
        ("operator", "every", ""),
        ("microbatch", "separate", ""),
        ("step", "separate", lora),
        ("operator", "separate", "[rounding]\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = tempfile::tempdir().unwrap();
        let job = masked_job(folder.path(), granularity, windows, extra);
        let run = trained(&job, &folder.path().join("run"), None);
        for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None), "{number}");
        }
        passes(&run, &[], &[]);
    }
}

#[test]
fn ranks_write_the_bytes_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let job = masked_job(folder.path(), "microbatch", "separate", "");
    trained(&job, &folder.path().join("whole"), None);
    for ranks in [2, 3] {
        let out = folder.path().join(format!("ranks-{ranks}"));
        train_honest_ranks(&job, &out, ranks);
        assert!(files(&out) == files(&folder.path().join("whole")), "{ranks} ranks");
    }
}

/// The loss of the first step is the mean over the targets that count, however the batch is cut into micro-batches; a batch that
/// counts no target has loss +0.
#[test]
fn the_mean_is_over_the_targets_that_count() {
    let folder = tempfile::tempdir().unwrap();
    // Samples 2 to 4 count no target. In order, step 1 has samples 0 to 5, and two steps of 1 sample have samples 2 and 3.
    let job = masked_job(folder.path(), "step", "separate", "");
    let drawn = "windows = \"separate\"\nsampling = \"in_order\"";
    edit(
        &job,
        &[
            ("windows = \"separate\"", drawn),
            ("dropout = 0.1", "dropout = 0.0"),
            ("peak = 1e-2", "peak = 0.0"),
            ("floor = 1e-3", "floor = 0.0"),
            ("weight_decay = 0.1", "weight_decay = 0.0"),
        ],
    );
    let text = fs::read_to_string(&job).unwrap();
    let with = |name: &str, [micro, micros]: [u32; 2], init: &str| {
        let batch = format!("micro_batch = {micro}\nmicro_batches = {micros}");
        fs::write(&job, text.replace("micro_batch = 2\nmicro_batches = 3", &batch) + init).unwrap();
        losses(&trained(&job, &folder.path().join(name), None))
    };
    let number = |bits: u32| f64::from(f32::from_bits(bits));
    let one = with("one", [1, 1], "");
    assert_eq!(one[2..5], [0, 0, 0], "samples that count no target");
    assert!(one[5] != 0);
    // The weights never move, so a sample's own loss is what one step of it has.
    let counted = |sample: usize| (1..=CONTEXT).filter(|i| counts(sample * 13 + i)).count() as f64;
    let sum: f64 = (0..6).map(|sample| number(one[sample]) * counted(sample)).sum();
    let due = sum / (0..6).map(counted).sum::<f64>();
    for (name, batch) in [("six", [6, 1]), ("three", [2, 3]), ("two", [3, 2]), ("all", [1, 6])] {
        // The seed follows from the program, so each run begins from the weights of the first.
        let have = number(with(name, batch, "[init]\nrun = \"one\"\n")[0]);
        assert!((have - due).abs() < 1e-6 * due, "{name}: {have}, {due}");
    }
}

#[test]
fn whoever_counts_another_token_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let job = masked_job(folder.path(), "microbatch", "separate", "");
    let run = trained(&job, &folder.path().join("run"), None);
    let before = run.id;
    // The batch by a mask that counts one target more, which step 3 draws.
    let mask = fs::read(folder.path().join("mask.bin")).unwrap();
    let program = run.program();
    let honest = batch_digest(program, &run.dataset().unwrap().batch(program, run.key(), 3).unwrap());
    let mut other = honest;
    for place in (0..mask.len()).filter(|place| mask[*place] == 0) {
        let mut changed = mask.clone();
        changed[place] = 1;
        fs::write(folder.path().join("mask.bin"), changed).unwrap();
        let mut dataset = opened(&job).unwrap().1.dataset;
        other = batch_digest(program, &dataset.batch(program, run.key(), 3).unwrap());
        if other != honest {
            break;
        }
    }
    assert_ne!(other, honest);
    sign_again(&run, |records| step_mut(records, 3).batch = other);
    let (report, verdict) = audited(&run, &mut Cpu::new(1).unwrap());
    assert!(matches!(report.outcome, Outcome::Inconsistent { step: 3, .. }), "{:?}", report.outcome);
    let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
    assert_eq!(verdict.claim.kind(), "batch");
    let Ok(Ruling::Convicts(finding)) = verdict.check(Some(&key().public())) else { panic!("no conviction") };
    assert_eq!(finding.step, 3);
    // With another mask the run is another one.
    let out = folder.path().join("other");
    assert_ne!(trained(&job, &out, None).id, before);
}

#[test]
fn an_edited_mask_of_a_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&masked_job(folder.path(), "step", "every", ""), &folder.path().join("run"), None);
    let mask = run.layout.root.join("data/data-1.bin");
    let mut bytes = fs::read(&mask).unwrap();
    bytes[100] ^= 1;
    fs::write(&mask, bytes).unwrap();
    let run = Run::open(&run.layout.root).unwrap();
    let error = match checks::always(&run, Some(&key().public())) {
        Err(error) => error.to_string(),
        Ok(checked) => {
            let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
            audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap_err().to_string()
        }
    };
    assert!(error.contains("data-1.bin"), "{error}");
}

#[test]
fn wrong_masks_are_refused_before_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = masked_job(folder.path(), "step", "separate", "");
    let text = fs::read_to_string(&job).unwrap();
    let mask = fs::read(folder.path().join("mask.bin")).unwrap();
    let refused = |mask: &[u8], edits: &[(&str, &str)], why: &[&str]| {
        fs::write(folder.path().join("mask.bin"), mask).unwrap();
        fs::write(&job, &text).unwrap();
        edit(&job, edits);
        let error = opened(&job).map(|_| ()).unwrap_err().to_string();
        assert!(why.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&mask[1..], &[], &["mask.bin", "306 bytes", "307 tokens"]);
    refused(&[&mask[..], &[0]].concat(), &[], &["mask.bin", "308 bytes"]);
    let with = |place: usize, byte: u8| [&mask[..place], &[byte], &mask[place + 1..]].concat();
    refused(&with(14, 2), &[], &["mask.bin", "byte 14 (of sample 1,", " is 2", "1 of 299"]);
    refused(&vec![0; 307], &[], &["mask.bin", "no target of the data counts"]);
    // Token 8 is 65, and it counts; token 13 is no target of a separate window.
    refused(&mask, &[("ignore = 127", "ignore = 65")], &["ids.npy", "token 8 ", "is 65", "loss.ignore"]);
    refused(&mask, &[("[loss]\nignore = 127\n", "")], &["data.mask", "needs loss.ignore"]);
    refused(
        &mask,
        &[("mask = \"mask.bin\"", "masks = [\"mask.bin\", \"mask.bin\"]")],
        &["data.mask", "1 files", "2 masks"],
    );
    refused(
        &mask,
        &[
            ("kind = \"tokens\"", "kind = \"bytes\""),
            ("dtype = \"u16\"\n", ""),
            ("windows = \"separate\"", ""),
        ],
        &["mask"],
    );
    refused(&npy("|u1", "(307,)", &mask), &[], &["mask.bin", ".npy"]);
    refused(b"version https://git-lfs.github.com/spec/v1\n", &[], &["mask.bin", "Git LFS"]);
    // As a .npy file the same mask is taken.
    fs::write(folder.path().join("mask.npy"), npy("|u1", "(307,)", &mask)).unwrap();
    fs::write(&job, text.replace("mask.bin", "mask.npy")).unwrap();
    let targets = targets(&mut opened(&job).unwrap().1.dataset).unwrap().unwrap();
    let due = (0..299usize).filter(|i| !i.is_multiple_of(13) && counts(*i)).count() as u64;
    assert_eq!((targets.all, targets.counted), (23 * 12, due));
    // With a mask of u16 it is not.
    fs::write(folder.path().join("mask.npy"), npy("<u2", "(307,)", &[0; 614])).unwrap();
    let error = opened(&job).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("mask.npy") && error.contains("U8"), "{error}");
}

#[test]
fn evaluations_take_a_mask_for_each_file() {
    let folder = tempfile::tempdir().unwrap();
    let job = masked_job(folder.path(), "step", "separate", "");
    let run = trained(&job, &folder.path().join("run"), None);
    let evaluated = |dataset: &mut Dataset| -> Evaluation {
        let engine = &mut Cpu::new(1).unwrap();
        let table = run.program().state();
        let table = &table[..run.program().released()];
        let model = checkpoint::read(&run.layout.model(), table).unwrap();
        let tensors: Vec<_> =
            table.iter().zip(&model).map(|(t, bytes)| engine.upload(&t.ty(), bytes).unwrap()).collect();
        let evaluator = Evaluator::new(engine, run.job().model().unwrap(), 4).unwrap();
        evaluator.run(engine, &tensors, dataset, None, &mut |_, _| ControlFlow::Continue(())).unwrap()
    };
    let whole = evaluated(&mut run.dataset().unwrap());
    let due = (0..299usize).filter(|i| !i.is_multiple_of(13) && counts(*i)).count();
    assert_eq!((whole.samples, whole.labels as usize), (23, due));
    // The same files in two halves: the masks are behind the files of tokens.
    let ids: Vec<u8> = (0..307).flat_map(|i| (token(i) as u16).to_le_bytes()).collect();
    let mask = fs::read(folder.path().join("mask.bin")).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let cut = 13 * 7;
    fs::write(at("a.npy"), npy("<u2", &format!("({cut},)"), &ids[..2 * cut])).unwrap();
    fs::write(at("b.npy"), npy("<u2", &format!("({},)", 307 - cut), &ids[2 * cut..])).unwrap();
    fs::write(at("a.bin"), &mask[..cut]).unwrap();
    fs::write(at("b.bin"), &mask[cut..]).unwrap();
    let names = ["a.npy", "b.npy", "a.bin", "b.bin"].map(at);
    let spec = run.job().data.in_files(&names).unwrap();
    let paths = names.clone().map(Into::into);
    let mut data = tiebreak_run::run::evaluation::open_named(&spec, &paths, &run.program().sample()).unwrap();
    assert_eq!(evaluated(&mut data.dataset), whole);
    let why = run.job().data.in_files(&names[..3]).unwrap_err();
    assert!(why.contains("4 are wanted"), "{why}");
}

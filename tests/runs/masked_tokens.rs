//! Tokens that a bert has to find: which ones are masked follows from the job, in training, audits, verdicts and evaluations.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{
    audited, begin_run, edit::edit, gpt_job, key, one_by_one, sign_again, step_mut, trained, words,
};
use tiebreak_audit::Outcome;
use tiebreak_dispute::verdict::{Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Job;
use tiebreak_job::data::{Dataset, batch_digest};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;

const CONTEXT: usize = 12;
const MASK: u32 = 127;
const UNCOUNTED: u32 = 126;
const NEVER: u32 = b'c' as u32;

/// Commits another batch in the record of step 3, and checks that its verdict convicts.
#[track_caller]
pub fn convicted_of_batch(run: &Run, wrong: Digest) {
    sign_again(run, |records| step_mut(records, 3).batch = wrong);
    let (report, verdict) = audited(run, &mut Cpu::new(1).unwrap());
    assert!(matches!(report.outcome, Outcome::Inconsistent { step: 3, .. }), "{:?}", report.outcome);
    let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
    assert_eq!(verdict.claim.kind(), "batch");
    let ruling = verdict.check(Some(&key().public()));
    assert!(matches!(ruling, Ok(Ruling::Convicts(finding)) if finding.step == 3));
}

/// A job of a small bert over the text of [`gpt_job`].
fn bert_job(folder: &Path, extra: &str) -> PathBuf {
    let tables = "[loss]\nignore = 126\n\n[data.masking]\ntoken = 127\nprobability = 0.5\nnever = [99]\n";
    let job = gpt_job(folder, "operator", &format!("{tables}{extra}"));
    let bert = "kind = \"bert\"\nhidden = 20\ntoken_types = 2\nattention_dropout = 0.1";
    edit(&job, &[("kind = \"gpt\"", bert)]);
    job
}

fn with(job: &Path, edits: &[(&str, &str)]) -> PathBuf {
    let other = job.with_file_name("other.toml");
    fs::copy(job, &other).unwrap();
    edit(&other, edits);
    other
}

/// The inputs and labels of each sample of tensors.
fn samples(tensors: &[Vec<u8>]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let [inputs, labels] = [0, 1].map(|number: usize| words(&tensors[number]));
    let pairs = inputs.chunks(CONTEXT).zip(labels.chunks(CONTEXT));
    pairs.map(|(inputs, labels)| (inputs.to_vec(), labels.to_vec())).collect()
}

/// The token of a position, where its input is no mask.
fn original((input, label): (&u32, &u32)) -> u32 {
    if *label == UNCOUNTED { *input } else { *label }
}

#[test]
fn runs_match_and_whoever_masks_other_tokens_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&bert_job(folder.path(), ""), &folder.path().join("run"), None);
    for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
        let (report, verdict) = audited(&run, engine);
        assert_eq!((report.outcome, verdict), (Outcome::Matches, None));
    }
    let (program, mut data) = (run.program(), run.dataset().unwrap());
    let text = fs::read(folder.path().join("text.txt")).unwrap();
    let (mut chosen, mut masked, mut kept) = (0, 0, 0);
    for step in 1..=8 {
        let batch = data.batch(program, run.key(), step).unwrap();
        one_by_one(&mut data, program, (run.key(), step), &batch[0]);
        for (inputs, labels) in batch.iter().flat_map(|micro| samples(&micro.tensors)) {
            let tokens: Vec<u32> = inputs.iter().zip(&labels).map(original).collect();
            let is_window = |window: &[u8]| window.iter().copied().map(u32::from).eq(tokens.iter().copied());
            assert!(text.windows(CONTEXT).any(is_window), "{tokens:?}");
            assert!(inputs.iter().all(|input| *input < 128));
            assert!(labels.iter().all(|label| *label != NEVER));
            for (input, label) in inputs.iter().zip(labels).filter(|(_, label)| *label != UNCOUNTED) {
                chosen += 1;
                masked += usize::from(*input == MASK);
                kept += usize::from(*input == label);
            }
        }
    }
    assert!((220..=290).contains(&chosen), "{chosen} of 576");
    assert!(
        (chosen * 7 / 10..=chosen * 9 / 10).contains(&masked) && kept > 5,
        "{masked}, {kept} of {chosen}"
    );
    // The batch of step 3 with one target less, and with another input.
    let honest = data.batch(program, run.key(), 3).unwrap();
    let mut fewer = honest.clone();
    let labels = words(&fewer[0].tensors[1]);
    let place = labels.iter().position(|label| *label != UNCOUNTED).unwrap();
    fewer[0].tensors[1][4 * place..4 * place + 4].copy_from_slice(&UNCOUNTED.to_le_bytes());
    let mut other = honest.clone();
    let input = MASK - words(&other[1].tensors[0])[0];
    other[1].tensors[0][..4].copy_from_slice(&input.to_le_bytes());
    for wrong in [fewer, other] {
        assert_ne!(batch_digest(program, &wrong), batch_digest(program, &honest));
        convicted_of_batch(&run, batch_digest(program, &wrong));
    }
}

/// Windows are of T tokens, and an evaluation masks by the place in its order alone.
#[test]
fn an_evaluation_asks_every_model_for_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let job = bert_job(folder.path(), "");
    let ids: Vec<u8> = (0..60u16).flat_map(|i| (i % 50).to_le_bytes()).collect();
    fs::write(folder.path().join("ids.bin"), ids).unwrap();
    let tokens = "kind = \"tokens\"\npath = \"ids.bin\"\ndtype = \"u16\"\nwindows = ";
    let opened = |windows: &str, seed: &str| -> Dataset {
        let edits = [("kind = \"bytes\"\npath = \"text.txt\"", &*format!("{tokens}\"{windows}\""))];
        let path = with(&job, &edits);
        edit(&path, &[("steps = 8", &format!("steps = 8\nseed = {seed}"))]);
        let job = Job::parse("job", &fs::read_to_string(&path).unwrap()).unwrap();
        let files = tiebreak_run::run::JobFiles::new(&path, None).unwrap();
        let program = job.program(None).unwrap();
        tiebreak_run::run::data::JobData::open(&files, &job, &program).unwrap().dataset
    };
    let mut separate = opened("separate", "1");
    assert_eq!((separate.samples(), separate.samples_in_order()), (5, 5));
    assert_eq!(opened("every", "1").samples(), 60 - 12 + 1);
    let batch = separate.batch_in_order(0..5).unwrap();
    let found: Vec<u32> = samples(&batch.tensors)
        .iter()
        .flat_map(|(inputs, labels)| inputs.iter().zip(labels).map(original).collect::<Vec<u32>>())
        .collect();
    assert_eq!(found, (0..60).map(|i| i % 50).collect::<Vec<u32>>());
    assert_eq!(opened("separate", "2").batch_in_order(0..5).unwrap(), batch);
    assert_eq!(
        separate.batch_in_order([3].into_iter()).unwrap().tensors[0],
        batch.tensors[0][3 * 48..4 * 48]
    );
    // Masks of a place differ from those of the same sample at another place of training.
    let labels = words(&batch.tensors[1]);
    let chosen = labels.iter().filter(|label| **label != UNCOUNTED).count();
    assert!((18..=42).contains(&chosen), "{chosen} of 60");
}

#[test]
fn wrong_masking_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let job = bert_job(folder.path(), "");
    let masking = "[data.masking]\ntoken = 127\nprobability = 0.5\nnever = [99]\n";
    let bert = "kind = \"bert\"\nhidden = 20\ntoken_types = 2\nattention_dropout = 0.1";
    for (from, to, why) in [
        ("token = 127", "token = 128", &["data.masking.token", "below vocabulary (128), is 128"][..]),
        ("never = [99]", "never = [5, 200]", &["data.masking.never", "is 200"]),
        ("probability = 0.5", "probability = 1.5", &["data.masking.probability", "at most 1, is 1.5"]),
        (
            "probability = 0.5",
            "probability = 1e-11",
            &["data.masking.probability", "no token would be chosen"],
        ),
        ("probability = 0.5", "probability = 0.0", &["data.masking.probability", "above 0"]),
        ("probability = 0.5", "random_share = 0.3", &["data.masking.random_share", "1.1"]),
        ("[loss]\nignore = 126\n", "", &["data.masking", "loss.ignore"]),
        (masking, "", &["data.masking", "a bert without classes learns"]),
        (bert, "kind = \"gpt\"", &["data.masking", "only a bert"]),
        ("token_types = 2", "token_types = 2\nform = \"distilbert\"", &["model.token_types", "distilbert"]),
        ("token_types = 2", "padding = 128", &["model.padding", "below vocabulary (128)"]),
        ("heads = 2", "heads = 3", &["model.width", "multiple of heads (3)"]),
    ] {
        let path = with(&job, &[(from, to)]);
        let error = Job::parse("job", &fs::read_to_string(&path).unwrap()).unwrap_err().to_string();
        assert!(why.iter().all(|part| error.contains(part)), "{from} -> {to}: {error}");
    }
    // Data of which nothing can be chosen are found before anybody trains.
    for (text, fits) in [("c~".repeat(200), false), (format!("{}a", "c~".repeat(200)), true)] {
        fs::write(folder.path().join("text.txt"), text).unwrap();
        let name = format!("run-{fits}");
        let begun = begin_run(&Disk::default(), &job, &folder.path().join(name));
        let error = begun.err().map(|error| error.to_string());
        assert_eq!(error.is_none(), fits, "{error:?}");
        assert!(error.is_none_or(|error| error.contains("masking can choose no token")));
    }
    // The shares 0.8 and 0.2 are one whole as binary32 numbers.
    let path = with(&job, &[("probability = 0.5", "random_share = 0.2")]);
    Job::parse("job", &fs::read_to_string(&path).unwrap()).unwrap();
}

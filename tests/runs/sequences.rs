//! Encoders that classify sequences of token ids: audits, a trainer who changes a label, evaluations, predictions, and padding that
//! changes nothing.

use std::fs;

use crate::common::encoders::{BERT, CONTEXT, DISTILBERT, PADDING, ids, labels, sequences_job};
use crate::common::{audited, edit::edit, edit::edited, one_by_one, trained, words};
use crate::masked_tokens::convicted_of_batch;
use tiebreak_audit::Outcome;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Job;
use tiebreak_job::data::batch_digest;
use tiebreak_run::predict::{Inputs, Predictor};
use tiebreak_run::run::arrays::Array;
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;

#[test]
fn runs_match_and_whoever_changes_a_label_is_convicted() {
    for own in [BERT, DISTILBERT] {
        let folder = tempfile::tempdir().unwrap();
        let run = trained(&sequences_job(folder.path(), own), &folder.path().join("run"), None);
        for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None));
        }
        let (program, mut data) = (run.program(), run.dataset().unwrap());
        let (ids, labels) = (ids(), labels());
        for step in 1..=4 {
            let batch = data.batch(program, run.key(), step).unwrap();
            one_by_one(&mut data, program, (run.key(), step), &batch[0]);
            for micro in &batch {
                let [inputs, of_samples] = [0, 1].map(|tensor: usize| words(&micro.tensors[tensor]));
                assert_eq!((inputs.len(), of_samples.len()), (3 * usize::from(CONTEXT), 3));
                // Each sample is a row of the file with the row's label.
                for (row, label) in inputs.chunks(CONTEXT.into()).zip(of_samples) {
                    let is_row = |(own, said): (&[u16], &u8)| {
                        row.iter().copied().eq(own.iter().map(|id| u32::from(*id)))
                            && u32::from(*said) == label
                    };
                    assert!(ids.chunks(CONTEXT.into()).zip(&labels).any(is_row), "{row:?} {label}");
                }
            }
        }
        // A batch with another label, and one with another token.
        let honest = data.batch(program, run.key(), 3).unwrap();
        for (tensor, below) in [(1, 3), (0, 31)] {
            let mut wrong = honest.clone();
            let word = (words(&wrong[1].tensors[tensor])[2] + 1) % below;
            wrong[1].tensors[tensor][8..12].copy_from_slice(&word.to_le_bytes());
            convicted_of_batch(&run, batch_digest(program, &wrong));
        }
    }
}

/// The logits of sequences by a run's last state, in which one row of the table of tokens may be another one.
fn logits(run: &Run, sequences: &[[u16; 6]], row: Option<u16>) -> Vec<Vec<u32>> {
    let mut table = run.program().state();
    table.truncate(run.program().released());
    let mut state = checkpoint::read(&run.layout.model(), &table).unwrap();
    assert_eq!(table[0].name, "param/token_embedding");
    if let Some(row) = row.map(usize::from) {
        let numbers = (0..8).flat_map(|i| (50.0 - 13.0 * i as f32).to_le_bytes());
        state[0].splice(row * 32..row * 32 + 32, numbers);
    }
    let job = run.job().model().unwrap();
    let mut cpu = Cpu::new(2).unwrap();
    let released: Vec<_> =
        table.iter().zip(&state).map(|(t, bytes)| cpu.upload(&t.ty(), bytes).unwrap()).collect();
    let ty = TensorType { dtype: DType::U32, shape: vec![sequences.len() as u32, CONTEXT.into()] };
    let bytes = sequences.as_flattened().iter().flat_map(|id| u32::from(*id).to_le_bytes()).collect();
    let array = Array { name: String::new(), ty, bytes };
    let mut inputs = Inputs::of_array(array, &job.model.batch(1)[0]).unwrap();
    let predictor = Predictor::new(&mut cpu, job, 2).unwrap();
    let numbers: Vec<u64> = (0..sequences.len() as u64).collect();
    let mut found = Vec::new();
    let all = predictor.run(&mut cpu, &released, &mut inputs, &numbers, |computed| {
        found.push(computed.logits);
        None::<()>
    });
    assert!(all.unwrap().is_none());
    found
}

#[test]
fn padding_gets_no_attention() {
    for own in [BERT, DISTILBERT] {
        let folder = tempfile::tempdir().unwrap();
        let run = trained(&sequences_job(folder.path(), own), &folder.path().join("run"), None);
        let sequences = [[4, 9, 2, PADDING, PADDING, PADDING], [7, 1, 2, 3, 9, PADDING], [2; 6]];
        let plain = logits(&run, &sequences, None);
        assert!(plain.iter().all(|logits| logits.len() == 3) && plain[0] != plain[1]);
        // Another row of the padding changes no bit, another row of a word all three.
        assert_eq!(logits(&run, &sequences, Some(PADDING)), plain);
        let other = logits(&run, &sequences, Some(2));
        assert!(other.iter().zip(&plain).all(|(other, plain)| other != plain));
    }
}

#[test]
fn jobs_that_do_not_fit_are_refused_by_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(sequences_job(folder.path(), DISTILBERT)).unwrap();
    let mlp = "kind = \"mlp\", inputs = 6, hidden = [], classes = 3";
    let model = text.lines().find(|line| line.starts_with("model")).unwrap();
    let masking = "dtype = \"u16\", masking = { token = 3 }";
    for (from, to, why) in [
        ("dtype = \"u16\"", "dtype = \"u8\"", &["data.kind", "a bert with classes takes token ids"][..]),
        ("dtype = \"u16\"", "dtype = \"f32\"", &["data.kind", "does not fit the model"]),
        ("dtype = \"u16\"", masking, &["data.masking", "loss.ignore"]),
        (
            "dtype = \"u16\"",
            &format!("{masking} }}\nloss = {{ ignore = 0"),
            &["data.masking", "only a bert without"],
        ),
        (
            "kind = \"arrays\", inputs = \"ids.npy\", labels = \"labels.npy\", dtype = \"u16\"",
            "kind = \"bytes\", path = \"text\"",
            &["data.kind", "a bert with classes wants arrays of token ids"],
        ),
        (
            "kind = \"arrays\", inputs = \"ids.npy\", labels = \"labels.npy\", dtype = \"u16\"",
            "kind = \"idx\", images = \"x\", labels = \"y\"",
            &["data.kind", "a bert with classes takes token ids"],
        ),
        (" classes = 3,", "", &["model.classifier_dropout", "only a model with classes"]),
        (" classes = 3,", " classes = 1,", &["model.classes", "2 to 1048576"]),
        (
            model,
            &format!("model = {{ {mlp} }}"),
            &["data.dtype", "a bert with classes takes, and no other model"],
        ),
        ("clip_norm = 1.0", "loss = { ignore = 3 }", &["loss.ignore", "below 3"]),
    ] {
        let error = Job::parse("job", &edited(&text, &[(from, to)])).unwrap_err().to_string();
        assert!(why.iter().all(|part| error.contains(part)), "{from} -> {to}: {error}");
    }
    // The numbers of the files are held to the model's bounds, and the shape to its context.
    for (from, to, why) in [
        ("vocabulary = 31", "vocabulary = 30", "below vocabulary (30)"),
        ("context = 6", "context = 5", "[samples], then [5]"),
        ("classes = 3", "classes = 2", "among its labels"),
    ] {
        let path = sequences_job(folder.path(), BERT);
        edit(&path, &[(from, to)]);
        let parsed = Job::parse("job", &fs::read_to_string(&path).unwrap());
        let error = match parsed {
            Err(error) => error.to_string(),
            Ok(_) => crate::common::begin_run(
                &tiebreak_run::run::disk::Disk::default(),
                &path,
                &folder.path().join(to),
            )
            .err()
            .expect(to)
            .to_string(),
        };
        assert!(error.contains(why), "{to}: {error}");
    }
}

//! Runs on texts of different lengths: attention that hides padding is audited on every engine, and a lie in it is convicted down to
//! its tile. What stands at padding changes no loss.

use std::fs;
use std::path::{Path, PathBuf};

use crate::batch_norm::Tamperer;
use crate::common::{audited, begin_run, edit::edit, key, npy, trained};
use tiebreak_audit::Outcome;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::network::compile;
use tiebreak_contract::program::phase::Phase;
use tiebreak_dispute::fact::Fact;
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::arrays::{self, Array, FloatType};
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::transcript;
use tiebreak_train::{Silent, train_as};

const ENCODER: &str = include_str!("../../assets/networks/encoder.json");
const POSITIONS: u32 = 6;

/// Three steps of an encoder on texts of 1 to 6 positions; `last` is the length of the last text.
fn job(folder: &Path, last: u32) -> PathBuf {
    fs::write(folder.join("encoder.program"), encode(&compile(ENCODER).unwrap())).unwrap();
    let lengths: Vec<u32> = (0..17).map(|i| i * 5 % POSITIONS + 1).chain([last]).collect();
    let id = |text: u32, place: u32| {
        if place < lengths[text as usize] { (text * 7 + place * 5) % 18 + 1 } else { 0 }
    };
    let ids = (0..18).flat_map(|text| (0..POSITIONS).map(move |place| (text, place)));
    let ids: Vec<u8> = ids.flat_map(|(text, place)| id(text, place).to_le_bytes()).collect();
    let labels: Vec<u8> = (0..18).map(|i| i % 3).collect();
    fs::write(folder.join("ids.npy"), npy("<u4", &format!("(18, {POSITIONS})"), &ids)).unwrap();
    fs::write(folder.join("labels.npy"), npy("|u1", "(18,)", &labels)).unwrap();
    let text = r#"steps = 3
program = "encoder.program"
data = { kind = "arrays", inputs = "ids.npy", labels = "labels.npy", dtype = "u32", sampling = "in_order" }
schedule = { peak = 0.05 }
commit = { granularity = "operator" }
"#;
    fs::write(folder.join("job.toml"), text).unwrap();
    folder.join("job.toml")
}

#[test]
fn texts_of_different_lengths_are_audited_also_one_of_padding_alone() {
    let folder = tempfile::tempdir().unwrap();
    for last in [2, 0] {
        let run = trained(&job(folder.path(), last), &folder.path().join(format!("run-{last}")), None);
        for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None));
        }
        let last = checkpoint::read(&run.layout.checkpoint(3), &run.program().state()).unwrap();
        let numbers = last.iter().flat_map(|tensor| tensor.chunks(4));
        let mut numbers = numbers.map(|word| f32::from_le_bytes(word.try_into().unwrap()));
        assert!(numbers.all(f32::is_finite));
    }
}

#[test]
fn a_lie_about_hidden_positions_is_convicted_down_to_its_tile() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), 2);
    for (number, (phase, body, operator)) in [
        (Phase::Micro(0), "padding_scale_mask.v1", "block0.attention.softmax"),
        (Phase::Micro(1), "zero_padding.v1", "block0.attention.padding"),
        (Phase::Micro(2), "padding_softmax_backward.v1", "block1.attention.softmax.backward"),
    ]
    .into_iter()
    .enumerate()
    {
        let run = begin_run(&Disk::default(), &job, &folder.path().join(number.to_string())).unwrap();
        let mut conduct = Tamperer(phase, body);
        train_as(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut conduct, &mut Silent).unwrap();
        let (report, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        assert!(matches!(report.outcome, Outcome::Diverges { step: 2, .. }), "{body}: {:?}", report.outcome);
        let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
        assert!(matches!(verdict.claim, Claim::Tile(_)), "{body}: {}", verdict.claim.kind());
        let Ruling::Convicts(finding) = verdict.check(Some(&key().public())).unwrap() else {
            panic!("{body}")
        };
        let Fact::Operator { operator: found, phase: at, .. } = finding.what.0 else { panic!("{body}") };
        assert_eq!((&*found, at), (operator, phase), "{body}");
    }
}

/// The losses of a run whose row of the table of words is another one.
fn losses(folder: &Path, name: &str, first: &Run, row: Option<usize>) -> Vec<u32> {
    let table = first.program().state();
    let mut state = checkpoint::read(&first.layout.checkpoint(0), &table).unwrap();
    if let Some(row) = row {
        // Numbers far from the others move each scale that they have a part in.
        let numbers = (0..8).flat_map(|i| (50.0 - 13.0 * i as f32).to_le_bytes());
        state[0].splice(row * 32..row * 32 + 32, numbers);
    }
    let parameters = first.program().parameters.len();
    let array = |i: usize| Array { name: table[i].name.clone(), ty: table[i].ty(), bytes: state[i].clone() };
    let file = folder.join(format!("{name}.safetensors"));
    arrays::write(&file, &(0..parameters).map(array).collect::<Vec<_>>(), FloatType::F32).unwrap();
    let job = folder.join("job.toml");
    let text = fs::read_to_string(&job).unwrap();
    edit(&job, &[("commit =", &format!("init = {{ weights = [\"{name}.safetensors\"] }}\ncommit ="))]);
    let run = trained(&job, &folder.join(name), None);
    fs::write(&job, text).unwrap();
    let (transcript, _) = transcript::read(&run.layout.transcript()).unwrap();
    let shown = run.shown(&transcript.records);
    let loss = |record: &Record| if let Record::Step { step, .. } = record { Some(step.loss) } else { None };
    shown.iter().filter_map(loss).collect()
}

#[test]
fn what_stands_at_padding_changes_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&job(folder.path(), 2), &folder.path().join("run"), None);
    let first = |name, row| losses(folder.path(), name, &run, row)[0];
    let (plain, padding, word) = (first("plain", None), first("padding", Some(0)), first("word", Some(3)));
    assert_eq!(plain, padding);
    assert_ne!(plain, word);
}

//! Runs of a decoder with sliding windows: they are audited on two engines and in both profiles, and a trainer who ignores the
//! windows is convicted down to a tile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{audited, begin_run, key, trained};
use crate::documents::{Ignorer, short_job};
use tiebreak_audit::Outcome;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::inference::{Writer, settings};
use tiebreak_dispute::fact::Fact;
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_job::Job;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{Silent, train_as};

/// Windows in the second of two blocks.
const WINDOWS: &str = "sliding_window = 5, full_layers = [0]";
/// Windows in both, within documents, beside adapters.
const PACKED: &str =
    r#"sliding_window = 3, document_end = 7, lora = { rank = 2, alpha = 1.0, targets = ["all-linear"] }"#;

fn text(model: &str, more: &str) -> String {
    let sizes = r#"kind = "llama", layers = 2, heads = 2, kv_heads = 1, width = 16, hidden = 12"#;
    short_job(&format!("{sizes}, {model}"), more)
}

fn job(folder: &Path, model: &str, more: &str) -> PathBuf {
    fs::write(folder.join("text.bin"), (0..250u32).map(|i| (i * i % 31) as u8).collect::<Vec<_>>()).unwrap();
    fs::write(folder.join("job.toml"), text(model, more)).unwrap();
    folder.join("job.toml")
}

#[test]
fn runs_with_windows_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (model, more)) in
        [(WINDOWS, ""), (PACKED, ""), (WINDOWS, "rounding = {}")].into_iter().enumerate()
    {
        let run = trained(&job(folder.path(), model, more), &folder.path().join(number.to_string()), None);
        for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None), "{number}");
        }
    }
}

#[test]
fn a_trainer_who_ignores_the_window_is_convicted_down_to_a_tile() {
    let folder = tempfile::tempdir().unwrap();
    for (model, body) in [(WINDOWS, "window_start.v1"), (PACKED, "document_window_start.v1")] {
        let job = job(folder.path(), model, "");
        let run = begin_run(&Disk::default(), &job, &folder.path().join(body)).unwrap();
        train_as(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Ignorer(body), &mut Silent).unwrap();
        let (report, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        assert!(matches!(report.outcome, Outcome::Diverges { step: 1, .. }), "{body}: {:?}", report.outcome);
        let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
        assert!(matches!(verdict.claim, Claim::Tile(_)), "{body}: {}", verdict.claim.kind());
        let Ruling::Convicts(finding) = verdict.check(Some(&key().public())).unwrap() else {
            panic!("{body}")
        };
        let Fact::Operator { operator: found, .. } = finding.what.0 else { panic!("{body}") };
        assert_eq!(&*found, "windows");
    }
}

#[test]
fn windows_and_layers_without_them_are_checked() {
    for (model, why) in [
        ("sliding_window = 0", "model.sliding_window"),
        ("sliding_window = 16", "sliding_window: must be below context (16)"),
        ("full_layers = [0]", "full_layers: are those without a window, but sliding_window is missing"),
        ("sliding_window = 2, full_layers = []", "model.full_layers"),
        (
            "sliding_window = 2, full_layers = [2]",
            "full_layers: are counted from 0, and must be below layers (2)",
        ),
        ("sliding_window = 2, full_layers = [1, 0]", "full_layers: must be in order, each once"),
        ("sliding_window = 2, full_layers = [1, 1]", "full_layers: must be in order, each once"),
        ("sliding_window = 2, full_layers = [0, 1]", "full_layers: must leave a layer"),
    ] {
        let said = Job::parse("job.toml", &text(model, "")).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    // Each is another program, and another model to a receipt.
    let job = |model| Job::parse("job.toml", &text(model, "")).unwrap();
    let all = [
        "tied = true",
        "sliding_window = 2",
        "sliding_window = 3",
        WINDOWS,
        "sliding_window = 5",
        "sliding_window = 5, full_layers = [1]",
    ];
    let programs = all.map(|model| encode(&job(model).program(None).unwrap()));
    let answering = all.map(|model| {
        let job = job(model);
        let of = job.model().unwrap();
        settings(Writer::Job(&of.model, &of.products)).unwrap()
    });
    for i in 0..all.len() {
        for j in 0..i {
            assert!(programs[i] != programs[j] && answering[i] != answering[j], "{} {}", all[i], all[j]);
        }
    }
}

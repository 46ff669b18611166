//! Runs on windows of several documents: attention within documents is audited on two engines and in both profiles, and a trainer who
//! ignores the documents is convicted down to a tile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::batch_norm::Tamperer;
use crate::common::{audited, begin_run, key, trained};
use tiebreak_audit::Outcome;
use tiebreak_contract::program::graph::Node;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::fact::Fact;
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::Job;
use tiebreak_job::data::Dataset;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest};
use tiebreak_train::conduct::Conduct;
use tiebreak_train::{Silent, TrainError, train_as};

const GPT: &str = r#"kind = "gpt", layers = 1, heads = 2, width = 8, dropout = 0.1"#;
const LLAMA: &str = r#"kind = "llama", layers = 1, heads = 2, kv_heads = 1, width = 16, hidden = 12"#;

/// Three steps on windows of 17 bytes; a byte of 0 ends a document.
fn text(model: &str, more: &str) -> String {
    short_job(&format!("{model}, document_end = 0"), more)
}

/// Three steps of a model on 17 bytes for each sample.
pub fn short_job(model: &str, more: &str) -> String {
    format!(
        r#"steps = 3
seed = 5
model = {{ {model}, context = 16, vocabulary = 32 }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.0 }}
data = {{ kind = "bytes", path = "text.bin", sampling = "in_order" }}
batch = {{ micro_batch = 2, micro_batches = 2 }}
schedule = {{ peak = 0.01 }}
commit = {{ granularity = "operator" }}
{more}"#
    )
}

fn job(folder: &Path, model: &str, more: &str) -> PathBuf {
    let bytes: Vec<u8> =
        (0..250u32).map(|i| if i % 5 == 3 && i % 7 != 2 { 0 } else { (i * i % 31 + 1) as u8 }).collect();
    fs::write(folder.join("text.bin"), bytes).unwrap();
    fs::write(folder.join("job.toml"), text(model, more)).unwrap();
    folder.join("job.toml")
}

#[test]
fn windows_of_several_documents_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (model, more)) in [(GPT, ""), (LLAMA, ""), (LLAMA, "rounding = {}")].into_iter().enumerate()
    {
        let run = trained(&job(folder.path(), model, more), &folder.path().join(number.to_string()), None);
        for engine in [&mut Cpu::new(1).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None), "{number}");
        }
    }
}

/// Has zeros in place of the results of this body: the first position that each position sees is the sample's.
pub struct Ignorer(pub &'static str);

impl Conduct for Ignorer {
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: Vec<MicroBatch>,
        _: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        let mut change = |_: Phase, _: usize, node: &Node, bytes: &[u8]| {
            (node.primitive.name() == self.0).then(|| vec![0; bytes.len()])
        };
        let request = StepRequest::new(&run.computation, scalars, &batch).tampered(Some(&mut change));
        Ok(run_step(session, request)?)
    }
}

#[test]
fn a_trainer_who_ignores_documents_is_convicted_down_to_a_tile() {
    let folder = tempfile::tempdir().unwrap();
    let job = job(folder.path(), LLAMA, "");
    let lies: [(&mut dyn Conduct, u32, &str); 3] = [
        (&mut Ignorer("document_bound.v1"), 1, "documents"),
        (&mut Tamperer(Phase::Micro(1), "document_scale_mask.v1"), 2, "block0.attention.softmax"),
        (
            &mut Tamperer(Phase::Micro(0), "document_softmax_backward.v1"),
            2,
            "block0.attention.softmax.backward",
        ),
    ];
    for (conduct, at, operator) in lies {
        let run = begin_run(&Disk::default(), &job, &folder.path().join(operator)).unwrap();
        train_as(&run, &mut Cpu::new(2).unwrap(), Some(&key()), conduct, &mut Silent).unwrap();
        let (report, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        assert!(
            matches!(report.outcome, Outcome::Diverges { step, .. } if step == at),
            "{operator}: {:?}",
            report.outcome
        );
        let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
        assert!(matches!(verdict.claim, Claim::Tile(_)), "{operator}: {}", verdict.claim.kind());
        let Ruling::Convicts(finding) = verdict.check(Some(&key().public())).unwrap() else {
            panic!("{operator}")
        };
        let Fact::Operator { operator: found, .. } = finding.what.0 else { panic!("{operator}") };
        assert_eq!(&*found, operator);
    }
}

#[test]
fn the_end_of_a_document_is_a_token() {
    let refused = |end: &str| {
        let text = text(GPT, "").replace("document_end = 0", &format!("document_end = {end}"));
        Job::parse("job.toml", &text).unwrap_err().to_string()
    };
    assert!(refused("32").contains("document_end: must be below vocabulary (32)"), "{}", refused("32"));
    assert!(refused("-1").contains("document_end"), "{}", refused("-1"));
    let digest = |text: &str| {
        let program = Job::parse("job.toml", text).unwrap().program(None).unwrap();
        tiebreak_contract::program::encoding::encode(&program)
    };
    let [with, other, without] = ["document_end = 0", "document_end = 1", "tied = true"]
        .map(|key| digest(&text(GPT, "").replace("document_end = 0", key)));
    assert!(with != other && with != without);
}

//! A rank's share of a step, of a job with operators and rounding logs.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use tiebreak_job::Job;
use tiebreak_job::identity::{CONTRACT, program_digest};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::paths::RunPaths;
use tiebreak_train::ranks::plan::ShardPlan;
use tiebreak_train::ranks::share::{Contents, Share};

const JOB: &str = r#"steps = 2
model = { kind = "gpt", vocabulary = 128, context = 12, layers = 1, heads = 2, width = 16 }
data = { kind = "bytes", path = "text" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 2, micro_batches = 3 }
commit = { granularity = "operator" }
[rounding]
"#;

static PLACE: LazyLock<(Contents, ShardPlan)> = LazyLock::new(|| {
    let program = program_digest(&Job::parse("job", JOB).unwrap().program(None).unwrap());
    let file = RunFile {
        contract: CONTRACT.into(),
        trainer_key: None,
        challenge: None,
        nonce: "0".repeat(32),
        program,
        initial: Digest([0; 32]),
        origin: InitialOrigin::Seed,
        data: Vec::new(),
        salts: None,
    };
    let run = Run::from_texts(RunPaths { root: PathBuf::new() }, &file.text(), JOB, None).unwrap();
    (Contents::of(&run), ShardPlan::new(run.program(), 2).unwrap())
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (contents, plan) = &*PLACE;
    for rank in 0..2 {
        if let Ok((share, _)) = Share::decode(contents, plan, rank, bytes) {
            assert_eq!(share.encode(), bytes);
        }
    }
});

//! A rank's share of a step, of a job with operators and rounding logs.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use tiebreak::job::Job;
use tiebreak::job::identity::{CONTRACT, program_digest};
use tiebreak::run::dir::Run;
use tiebreak::run::paths::RunPaths;
use tiebreak::train::ranks::plan::ShardPlan;
use tiebreak::train::ranks::share::{Contents, Share};

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
    let json = format!(
        r#"{{"contract": "{CONTRACT}", "trainer_key": null, "challenge": null, "nonce": "{:032}", "program": "{program}", "initial": "{:064}", "origin": {{"kind": "seed"}}, "data": []}}"#,
        0, 0
    );
    let run = Run::from_texts(RunPaths { root: PathBuf::new() }, &json, JOB, None).unwrap();
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

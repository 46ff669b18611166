//! Checkpoints, traces and openings of shards of a small program; the first byte chooses which.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use tiebreak_contract::program::models::{Input, Mlp, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{Program, StepSpec};
use tiebreak_job::shard_opening::ShardOpening;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::trace::Trace;
use tiebreak_run::run::checkpoint;

static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
    Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Mlp(Mlp {
            inputs: 3,
            hidden: vec![2],
            classes: 2,
            dropout: 0.0,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        }),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
        clip_norm: None,
        micro_batch: 1,
        micro_batches: 1,
        products: ProductTable::uniform(1),
    })
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    match first % 3 {
        0 => {
            let _ = checkpoint::parse(Path::new("checkpoint"), rest, &PROGRAM.state());
        }
        1 => {
            let Ok(trace) = Trace::decode(&PROGRAM, rest) else { return };
            assert_eq!(trace.encode(), rest);
        }
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            let Ok(opening) = ShardOpening::from_text(text) else { return };
            assert_eq!(ShardOpening::from_text(&opening.to_text()).as_ref(), Ok(&opening));
            for hides in [false, true] {
                assert!(opening.shown(&PROGRAM.state(), hides, &Digest([0; 32])).is_err());
            }
        }
    }
});

//! Programs: a program that decodes encodes to the same bytes. Most random bytes fail early, so a small program's bytes are
//! changed as well.
#![no_main]

use std::sync::LazyLock;

use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::models::{Input, Mlp, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{Program, StepSpec};

static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    encode(&Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Mlp(Mlp {
            inputs: 3,
            hidden: vec![2],
            classes: 2,
            dropout: 0.1,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        }),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
        clip_norm: Some(1.0),
        micro_batch: 1,
        micro_batches: 2,
        products: ProductTable::preset(),
    }))
});

fn check(bytes: &[u8]) {
    if let Ok(program) = decode(bytes) {
        assert_eq!(encode(&program), bytes);
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    let mut changed = PROGRAM.clone();
    for change in data.chunks_exact(5) {
        let place = u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize;
        let len = changed.len();
        changed[place % len] = change[4];
    }
    check(&changed);
});

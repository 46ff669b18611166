//! Programs: a program that decodes encodes to the same bytes. Most random bytes fail early, so a small program's bytes are
//! changed as well. And network files: the program of one that compiles is a program.
#![no_main]

use std::sync::LazyLock;

use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::models::{Input, Mlp, Model};
use tiebreak_contract::program::network::compile;
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

/// The bytes with some of them changed: four bytes name a place, and a fifth what it becomes.
fn changed(bytes: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    for change in changes.chunks_exact(5) {
        let place = u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize;
        changed[place % bytes.len()] = change[4];
    }
    changed
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    check(&changed(&PROGRAM, data));
    for network in
        [include_str!("../../assets/networks/mlp.json"), include_str!("../../assets/networks/resnet.json")]
    {
        if let Ok(text) = String::from_utf8(changed(network.as_bytes(), data))
            && let Ok(program) = compile(&text)
        {
            assert!(decode(&encode(&program)).is_ok_and(|decoded| decoded == program));
        }
    }
});

//! The launch list that an adapter writes down: every buffer is there before it is used, and a step's state is the one that an
//! engine without a record computes. `launches.rs` executes such a list, and `.ci/full` executes a page with one in a browser.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tiebreak_engine::cpu::Cpu;
use tiebreak_gpu::{Command, TextLimits, Variant, adapters, recording};
use tiebreak_job::Job;

use crate::common;

#[test]
fn a_record_is_whole() {
    let Some(adapter) = adapters().into_iter().find(|adapter| adapter.refused.is_none()) else {
        println!("NOT RUN: no adapter is here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = common::mlp_job(folder.path(), "step", 3, 2);
    let job = Job::parse("job", &std::fs::read_to_string(path).unwrap()).unwrap();
    let program = Arc::new(job.program(None).unwrap());
    let launches =
        recording::of_step(Some(&adapter.name), TextLimits::Webgpu, Variant::Words, &program).unwrap();
    let (mut buffers, mut read) = (BTreeMap::new(), Vec::new());
    let within = |span: (u64, u64)| span.0 + span.1 <= launches.data.len() as u64;
    for command in &launches.commands {
        match command {
            Command::Create { buffer, bytes, data, .. } => {
                assert!(buffers.insert(*buffer, *bytes).is_none(), "a number twice");
                assert!(data.is_none_or(|span| span.1 <= *bytes && within(span)));
            }
            Command::Write { buffer, data } => assert!(data.1 <= buffers[buffer] && within(*data)),
            Command::Submit(runs) => {
                for run in runs {
                    assert!(run.shader < launches.shaders.len() && run.buffers.len() <= 8, "{run:?}");
                    assert!(run.uniform.1 + run.uniform.2 <= buffers[&run.uniform.0]);
                    assert!(run.buffers.iter().all(|(id, bytes)| *bytes <= buffers[id]), "{run:?}");
                }
            }
            Command::Read { buffer, bytes, sha256 } => {
                assert!(*bytes <= buffers[buffer]);
                read.push(sha256.clone());
            }
            Command::Free { buffer } => assert!(buffers.remove(buffer).is_some(), "a buffer is freed twice"),
        }
    }
    assert!(buffers.is_empty(), "buffers are left: {buffers:?}");
    // The state after the step is read at the end.
    let expected: Vec<String> = recording::state_after(&mut Cpu::new(1).unwrap(), &program)
        .unwrap()
        .iter()
        .map(|bytes| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    assert!(read.ends_with(&expected), "{} tensors were read, {} are the state", read.len(), expected.len());
}

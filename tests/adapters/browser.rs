//! What a page for a browser has an adapter write down: every buffer is there before it is used, and a step's state is what an engine without a record
//! computes. `.ci/full` runs such a page in a browser.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::gpu::{Command, Variant, adapters, recording};
use tiebreak::job::Job;

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
    let launches = recording::of_step(Some(&adapter.name), Variant::Words, &program).unwrap();
    let (mut buffers, mut read) = (BTreeMap::new(), Vec::new());
    let within = |span: (u64, u64)| span.0 + span.1 <= launches.data.len() as u64;
    for command in &launches.commands {
        match command {
            Command::Allocate(id, bytes) => assert!(buffers.insert(*id, *bytes).is_none(), "a number twice"),
            Command::Uniform(id, bytes, span) => {
                assert!(span.1 <= *bytes && within(*span) && buffers.insert(*id, *bytes).is_none());
            }
            Command::Write(id, span) => assert!(span.1 <= buffers[id] && within(*span)),
            Command::Submit(runs) => {
                for run in runs {
                    assert!(run.shader < launches.shaders.len() && run.buffers.len() <= 8, "{run:?}");
                    assert!(run.uniform.1 + run.uniform.2 <= buffers[&run.uniform.0]);
                    assert!(run.buffers.iter().all(|(id, bytes)| *bytes <= buffers[id]), "{run:?}");
                }
            }
            Command::Read(id, bytes, digest) => {
                assert!(*bytes <= buffers[id]);
                read.push(digest.clone());
            }
            Command::Free(id) => assert!(buffers.remove(id).is_some(), "a buffer is freed twice"),
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

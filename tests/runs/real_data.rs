//! Batches of CIFAR-10 and MNIST, drawn by an independent reader (assets/vectors/batches.py). The data are not in the repository:
//! TIEBREAK_DATA names their folder, else ../shared/data is tried, and missing files are reported.

use std::path::{Path, PathBuf};

use crate::common;
use tiebreak_job::Job;
use tiebreak_job::data::Place;
use tiebreak_run::run::JobFiles;
use tiebreak_run::run::data::JobData;

const KEY: [u32; 2] = [0x1234_5678, 0x9abc_def0];

/// The folder of the data.
fn folder() -> PathBuf {
    std::env::var("TIEBREAK_DATA").unwrap_or_else(|_| "../shared/data".into()).into()
}

/// A data file, or `None` with a message about it.
fn found(name: &str) -> Option<PathBuf> {
    let path = folder().join(name);
    if !path.exists() {
        common::not_tested(&format!("{} is not here (TIEBREAK_DATA names the folder)", path.display()));
    }
    path.exists().then_some(path)
}

/// Draws three steps of four samples, in both ways, and compares them with the golden ones. `data` is the job's table.
fn check(name: &str, data: &str, inputs: usize) {
    let golden = std::fs::read_to_string("assets/vectors/batches.json").unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    for sampling in ["permutation", "with_replacement"] {
        let text = format!(
            "steps = 3\nmodel = {{ kind = \"mlp\", inputs = {inputs}, hidden = [2], classes = 10 }}\n\
             data = {{ sampling = \"{sampling}\", {data} }}\nbatch = {{ micro_batch = 2, micro_batches = 2 }}\n\
             optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 1e-2 }}\n"
        );
        let job = Job::parse("job", &text).unwrap();
        let program = job.program(None).unwrap();
        let files = JobFiles::new(Path::new("job"), Some(&folder())).unwrap();
        let mut dataset = JobData::open(&files, &job, &program).unwrap().dataset;
        for (step, golden) in (1..).zip(golden[name][sampling].as_array().unwrap()) {
            let list = |key: &str| -> Vec<u64> {
                golden[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
            };
            let mut sampler = dataset.sampler(KEY);
            let drawn = (0..4).map(|place| sampler.draw(Place { step, batch: 4, place }).unwrap());
            assert_eq!(drawn.collect::<Vec<u64>>(), list("samples"), "{name}, step {step}");
            let batch = dataset.batch(&program, KEY, step).unwrap();
            let words = |bytes: &[u8]| -> Vec<u64> {
                bytes.chunks_exact(4).map(|c| u64::from(u32::from_le_bytes(c.try_into().unwrap()))).collect()
            };
            let labels: Vec<u64> = batch.iter().flat_map(|micro| words(&micro.tensors[1])).collect();
            assert_eq!(labels, list("labels"), "{name}, step {step}");
            let pixels: Vec<u64> = batch.iter().flat_map(|micro| words(&micro.tensors[0])).collect();
            let sums: Vec<u64> = pixels.chunks(inputs).map(|image| image.iter().sum()).collect();
            assert_eq!(sums, list("sums"), "{name}, step {step}");
        }
    }
}

#[test]
fn cifar_10_is_read_as_its_description_says() {
    let Some(path) = found("cifar-10/train_5000.bin") else { return };
    check("cifar10", &format!("kind = \"cifar10\", path = {path:?}"), 3072);
}

#[test]
fn mnist_is_read_as_its_description_says() {
    let Some(images) = found("mnist/t10k-images-idx3-ubyte.gz") else { return };
    let Some(labels) = found("mnist/t10k-labels-idx1-ubyte.gz") else { return };
    check("mnist", &format!("kind = \"idx\", images = {images:?}, labels = {labels:?}"), 784);
}

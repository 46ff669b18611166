//! Batches of CIFAR-10 and MNIST as an independent reader drew them (assets/vectors/batches.py). The data are not in the
//! repository: TIEBREAK_DATA names their folder, ../shared/data is tried otherwise, and what is missing is said.

#![cfg(feature = "testing")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use tiebreak::job::DataSpec;
use tiebreak::job::data::FileManifest;
use tiebreak::job::samples::Samples;
use tiebreak::program::models::{Mlp, Model};
use tiebreak::program::optimizer::Optimizer;
use tiebreak::program::products::ProductTable;
use tiebreak::program::step::{Program, StepSpec};
use tiebreak::run::data;

const KEY: [u32; 2] = [0x1234_5678, 0x9abc_def0];

/// A data file, or `None` with a word about it.
fn found(name: &str) -> Option<PathBuf> {
    let folder = std::env::var("TIEBREAK_DATA").unwrap_or_else(|_| "../shared/data".into());
    let path = Path::new(&folder).join(name);
    if !path.exists() {
        common::not_tested(&format!("{} is not here (TIEBREAK_DATA names the folder)", path.display()));
    }
    path.exists().then_some(path)
}

/// Draws three steps of four samples and compares them with the golden ones.
fn check(name: &str, folder: &Path, files: &[&str], spec: &DataSpec, inputs: u32) {
    let golden = std::fs::read_to_string("assets/vectors/batches.json").unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let manifest: Vec<FileManifest> =
        files.iter().map(|file| data::manifest((*file).into(), &folder.join(file)).unwrap()).collect();
    let model = Model::Mlp(Mlp { inputs, hidden: vec![2], classes: 10, dropout: 0.0 });
    let program = Program::new(StepSpec {
        model: model.clone(),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
        clip_norm: None,
        micro_batch: 2,
        micro_batches: 2,
        products: ProductTable::preset(),
    });
    let mut dataset = data::open(folder, &manifest, spec, &Samples::of_model(&model)).unwrap();
    for (step, golden) in (1..).zip(golden[name].as_array().unwrap()) {
        let list = |key: &str| -> Vec<u64> {
            golden[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
        };
        let drawn: Vec<u64> = (0..4).map(|place| dataset.draw(KEY, step, place)).collect();
        assert_eq!(drawn, list("samples"), "{name}, step {step}");
        let batch = dataset.batch(&program, KEY, step).unwrap();
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.chunks_exact(4).map(|c| u64::from(u32::from_le_bytes(c.try_into().unwrap()))).collect()
        };
        let labels: Vec<u64> = batch.iter().flat_map(|micro| words(&micro.tensors[1])).collect();
        assert_eq!(labels, list("labels"), "{name}, step {step}");
        let pixels: Vec<u64> = batch.iter().flat_map(|micro| words(&micro.tensors[0])).collect();
        let sums: Vec<u64> = pixels.chunks(inputs as usize).map(|image| image.iter().sum()).collect();
        assert_eq!(sums, list("sums"), "{name}, step {step}");
    }
}

#[test]
fn cifar_10_is_read_as_its_description_says() {
    let Some(path) = found("cifar-10/train_5000.bin") else { return };
    let spec = DataSpec::Cifar10 { path: "train_5000.bin".into() };
    check("cifar10", path.parent().unwrap(), &["train_5000.bin"], &spec, 3072);
}

#[test]
fn mnist_is_read_as_its_description_says() {
    let names = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let Some(path) = found(&format!("mnist/{name}.gz")) else { return };
        let unpacked = Command::new("gzip").arg("-dc").arg(path).output().unwrap();
        assert!(unpacked.status.success());
        std::fs::write(folder.path().join(name), unpacked.stdout).unwrap();
    }
    let spec = DataSpec::Idx { images: names[0].into(), labels: names[1].into() };
    check("mnist", folder.path(), &names, &spec, 784);
}

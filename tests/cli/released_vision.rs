//! A vision transformer in the names and layouts of transformers: import, logits and gradients beside transformers', training, export,
//! evaluations, predictions, a new head, and refusals.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tiebreak_contract::arith::tree;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;

use crate::common::edit::{edit, edited};
use crate::common::{npy, trained};
use crate::output;
use crate::released::{Stored, command, stored};

/// The model of `assets/vit_small.py`, as transformers writes it, with what transformers computes of six images.
#[derive(Deserialize)]
struct Small {
    config: String,
    preprocessor: String,
    file: String,
    pixels: Vec<u8>,
    labels: Vec<u8>,
    logits: Vec<[f32; 3]>,
    gradients: BTreeMap<String, Vec<f64>>,
}

impl Small {
    fn read() -> Small {
        serde_json::from_str(include_str!("../../assets/vit_small.json")).unwrap()
    }

    fn file(&self) -> Vec<u8> {
        let digits = self.file.as_bytes().as_chunks::<2>().0;
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.iter().map(byte).collect()
    }

    /// Writes the released folder with the images and their labels.
    fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), &self.config).unwrap();
        fs::write(folder.join("preprocessor_config.json"), &self.preprocessor).unwrap();
        fs::write(folder.join("model.safetensors"), self.file()).unwrap();
        fs::write(folder.join("inputs.npy"), npy("|u1", "(6, 2, 8, 12)", &self.pixels)).unwrap();
        fs::write(folder.join("labels.npy"), npy("|u1", "(6,)", &self.labels)).unwrap();
    }
}

/// Imports a folder, whose job is changed to train two steps on its images.
fn imported(folder: &Path, more: &[&str]) -> Result<(PathBuf, String), String> {
    let (code, said) = command(&[&["import", &text(folder)], more].concat());
    let job = folder.join("job.toml");
    if code != 0 {
        assert!(!job.exists(), "{said}");
        return Err(said);
    }
    edit(
        &job,
        &[
            ("steps = 100", "steps = 2"),
            ("micro_batch = 1", "micro_batch = 2"),
            ("micro_batches = 8", "micro_batches = 2"),
            ("warmup = 10", "warmup = 0"),
        ],
    );
    Ok((job, said))
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

fn json(arguments: &[&str]) -> Value {
    let (code, said) = command(arguments);
    assert_eq!(code, 0, "{arguments:?}: {said}");
    serde_json::from_str(&said).unwrap()
}

fn export(run: &Path, step: &str, out: &Path) {
    json(&["export", &text(run), "--format", "hf", "--step", step, "--output", &text(out)]);
}

#[test]
fn a_vision_transformer_comes_out_as_it_went_in_and_is_used_with_and_without_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (small, at) = (Small::read(), folder.path());
    small.write(at);
    let (job, said) = imported(at, &[]).unwrap();
    assert!(said.contains("as preprocessor_config.json says"), "{said}");
    let written = fs::read_to_string(&job).unwrap();
    let lines = "kind = \"vit\"\nheight = 8\nwidth = 12\nplanes = 2\npatch = 4\nqkv_bias = true\nnorm_epsilon = 1e-6\nimage_mean = [0.5,0.25]\n\
                 image_std = [0.5,0.125]\nclasses = 3\nkind = \"arrays\"\ndtype = \"u8\"";
    for line in lines.lines() {
        assert!(written.lines().any(|own| own == line), "{line}: {written}");
    }
    let (run, model, job) = (at.join("run"), text(&at.join("model.safetensors")), text(&job));
    let found = json(&["predict", &model, "--job", &job]);
    let classes: Vec<_> =
        small.logits.iter().map(|row| (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b]))).collect();
    let samples = found["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 6);
    for (sample, class) in samples.iter().zip(&classes) {
        assert_eq!(sample["classes"][0], class.unwrap(), "{found}");
    }
    let hits =
        classes.iter().zip(&small.labels).filter(|(class, label)| class.unwrap() == usize::from(**label));
    let evaluated = json(&["eval", &model, "--job", &job]);
    assert_eq!((&evaluated["hits"], &evaluated["labels"]), (&hits.count().into(), &6.into()), "{evaluated}");

    trained(Path::new(&job), &run, None);
    export(&run, "0", &at.join("first"));
    for (name, bytes) in [
        ("model.safetensors", small.file()),
        ("config.json", small.config.clone().into()),
        ("preprocessor_config.json", small.preprocessor.clone().into()),
    ] {
        assert!(fs::read(at.join("first").join(name)).unwrap() == bytes, "{name}");
    }
    export(&run, "2", &at.join("second"));
    assert!(fs::read(at.join("second/model.safetensors")).unwrap() != small.file());
    assert_eq!(fs::read_to_string(at.join("second/config.json")).unwrap(), small.config);
    let (inputs, receipt) = (text(&at.join("inputs.npy")), text(&at.join("receipt")));
    json(&["predict", &text(&run), "--inputs", &inputs, "--receipt", &receipt]);
    let second = text(&at.join("second"));
    for model in [&[&text(&run)[..]][..], &[&second, "--job", &job]] {
        let check =
            [&["receipt", "check", &receipt, "--inputs", &inputs, "--engine", "reference"], model].concat();
        let (code, said, error) = output(&check);
        assert!(code == 0 && said.starts_with("MATCHES"), "{said}{error}");
    }
}

/// Logits within 1e-4 of the largest one's size, and gradients beside those of fp64, with four digits.
#[test]
fn logits_and_gradients_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let (small, at) = (Small::read(), folder.path());
    small.write(at);
    let (job, _) = imported(at, &[]).unwrap();
    let logits = at.join("logits.npy");
    let [inputs, out] = [&at.join("inputs.npy"), &logits].map(|path| text(path));
    json(&["logits", &text(&job), "--inputs", &inputs, "--output", &out, "--digits", "4"]);
    let bytes = fs::read(&logits).unwrap();
    let ours =
        bytes[bytes.len() - 6 * 3 * 4..].as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let theirs = small.logits.as_flattened();
    let largest = theirs.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (ours, theirs) in ours.zip(theirs) {
        assert!((ours - theirs).abs() <= 1e-4 * largest, "{ours} {theirs}");
    }

    edit(
        &job,
        &[
            ("steps = 2", "steps = 1\ndigits = { all = 4 }"),
            ("micro_batch = 2", "micro_batch = 6"),
            ("micro_batches = 2", "micro_batches = 1"),
        ],
    );
    let run: Run = trained(&job, &at.join("run"), None);
    let program = Arc::new(run.program().clone());
    let names = program.gradients();
    let mut cpu = Cpu::new(2).unwrap();
    let mut session = Session::new(&mut cpu, program.clone()).unwrap();
    session.load(&checkpoint::read(&run.layout.checkpoint(0), &program.state()).unwrap()).unwrap();
    let words = |bytes: &[u8]| bytes_of(&bytes.iter().map(|&byte| byte.into()).collect::<Vec<u32>>());
    let batch = [MicroBatch { tensors: vec![words(&small.pixels), words(&small.labels)] }];
    let scalars = StepScalars { step: 1, seed: [0; 2], learning_rate: 0 };
    let sums = session.partial_sums(scalars, tree::operations(1), &batch, &mut Unobserved, |_, _, _| Ok(()));
    let total = sums.unwrap().pop().unwrap();
    let mut gradients = BTreeMap::new();
    session
        .visit_gradients(&total, |i, bytes| {
            let numbers = bytes.as_chunks::<4>().0.iter().map(|word| f64::from(f32::from_le_bytes(*word)));
            gradients.insert(names[i].name.replace("grad/", "param/"), numbers.collect::<Vec<f64>>());
        })
        .unwrap();
    let layout = run.job().model().unwrap().model.released().unwrap();
    let written: Vec<_> = layout.into_iter().filter(|released| released.is_written()).collect();
    assert_eq!(written.len(), small.gradients.len());
    for released in written {
        let theirs = &small.gradients[&released.name];
        let mut ours = vec![0.0; theirs.len()];
        for part in released.parts() {
            { part.places().zip(&gradients[&part.tensor]) }.for_each(|(place, x)| ours[place as usize] = *x);
        }
        let size = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
        let error = size(&mut ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs));
        let whole = size(&mut theirs.iter().copied());
        // A bias of keys moves all scores of a row alike, so its gradient is 0.
        assert!(error <= 1e-6 * whole.max(1e-2), "{}: {error:e} of {whole:e}", released.name);
    }
}

/// The tensors of the encoder alone, as its own class stores it, with a pooler.
fn encoder(small: &Small) -> Vec<Stored> {
    let file = small.file();
    let all = safetensors::SafeTensors::deserialize(&file).unwrap();
    let of_encoder = |(name, tensor): (String, safetensors::tensor::TensorView)| {
        let name = name.strip_prefix("vit.")?.to_string();
        Some((name, tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()))
    };
    let mut tensors: Vec<Stored> = all.tensors().into_iter().filter_map(of_encoder).collect();
    for (name, shape) in [("pooler.dense.weight", vec![8, 8]), ("pooler.dense.bias", vec![8])] {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        tensors.push((name.into(), safetensors::Dtype::F32, shape, bytes));
    }
    tensors
}

#[test]
fn an_encoder_alone_gets_a_classifier_and_pixels_that_the_option_names() {
    let folder = tempfile::tempdir().unwrap();
    let (small, at) = (Small::read(), folder.path());
    small.write(at);
    fs::write(at.join("model.safetensors"), stored(&encoder(&small))).unwrap();
    fs::write(at.join("config.json"), edited(&small.config, &[("ViTForImageClassification", "ViTModel")]))
        .unwrap();
    let said = imported(at, &[]).unwrap_err();
    assert!(said.contains("by --classes N"), "{said}");
    // As many classes as the configuration counts are drawn too.
    let (job, said) = imported(at, &["--classes", "3", "--normalize", "half"]).unwrap();
    for part in [
        "a new head for 3 classes (classifier.*)",
        "pooler.dense.bias are another head's",
        "as --normalize says",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(fs::read_to_string(&job).unwrap().contains("reinitialize = [\"classifier.*\"]\n"));
    trained(&job, &at.join("run"), None);
    export(&at.join("run"), "0", &at.join("out"));
    let config = fs::read_to_string(at.join("out/config.json")).unwrap();
    assert!(config.contains("\"ViTForImageClassification\"") && !config.contains("ViTModel"), "{config}");
    let prepared: Value =
        serde_json::from_str(&fs::read_to_string(at.join("out/preprocessor_config.json")).unwrap()).unwrap();
    let half = serde_json::json!([0.5, 0.5]);
    assert_eq!(
        (&prepared["image_mean"], &prepared["image_std"], &prepared["size"]["width"]),
        (&half, &half, &12.into())
    );
    let bytes = fs::read(at.join("out/model.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, _, shape, data) in encoder(&small).iter().filter(|(name, ..)| !name.starts_with("pooler")) {
        let ours = all.tensor(&format!("vit.{name}")).unwrap();
        assert!(ours.shape() == &shape[..] && ours.data() == &data[..], "{name}");
    }
    let (code, said) = command(&["import", &text(&at.join("out")), "--classes", "3"]);
    assert!(code == 0 && said.contains("have 3 classes already"), "{said}");
}

#[test]
fn what_is_not_computed_is_refused_by_key_or_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let small = Small::read();
    let mut number = 0;
    let mut refused = |from: &str, to: &str, more: &[&str], wanted: &str| {
        number += 1;
        let at = folder.path().join(number.to_string());
        small.write(&at);
        for (name, text) in
            [("config.json", &small.config), ("preprocessor_config.json", &small.preprocessor)]
        {
            if text.contains(from) {
                fs::write(at.join(name), text.replace(from, to)).unwrap();
            }
        }
        let said = imported(&at, more).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    };
    let size = "[\n    8,\n    12\n  ]";
    for (from, to, wanted) in [
        ("\"gelu\"", "\"relu\"", "hidden_act is \\\"relu\\\"; this version computes"),
        (
            "\"patch_size\": 4",
            "\"patch_size\": [4, 2]",
            "patch_size is [4,2]; this version has patches of as many rows",
        ),
        (
            "\"patch_size\": 4",
            "\"patch_size\": 5",
            "the model's height: must be a multiple of patch (5), is 8",
        ),
        (size, "[8]", "image_size is [8]; a number is wanted, or a list of two"),
        (size, "[8, 12, 3]", "image_size is [8,12,3]; a number is wanted, or a list of two"),
        (size, "[8, -12]", "image_size is [8,-12]; a number is wanted, or a list of two"),
        (size, "12", "vit.embeddings.position_embeddings"),
        ("\"hidden_size\": 8", "\"hidden_size\": 7", "the model's channels: must be a multiple of heads (2)"),
        ("\"hidden_size\": 8,", "", "hidden_size is missing"),
        ("\"qkv_bias\": true", "\"qkv_bias\": false", "vit.encoder.layer.0.attention.attention.key.bias"),
        ("\"qkv_bias\": true", "\"qkv_bias\": 1", "qkv_bias is 1; true or false is wanted"),
        (
            "\"qkv_bias\": true",
            "\"use_mean_pooling\": true",
            "use_mean_pooling is true; this version does not know that key",
        ),
        (
            "\"qkv_bias\": true",
            "\"is_decoder\": true",
            "is_decoder is true; this version computes false only",
        ),
        ("\"qkv_bias\": true", "\"num_labels\": 4", "num_labels is 4; other keys count 3 labels"),
        ("\"qkv_bias\": true", "\"problem_type\": \"regression\"", "problem_type is \\\"regression\\\""),
        (
            "ViTForImageClassification",
            "ViTForMaskedImageModeling",
            "this version has \\\"ViTForImageClassification\\\"",
        ),
        (
            "\"attention_probs_dropout_prob\": 0.0",
            "\"attention_probs_dropout_prob\": 1.0",
            "the model's attention_dropout",
        ),
        (
            "\"do_rescale\": true",
            "\"do_rescale\": false",
            "do_rescale is false; this version computes byte / 255 only",
        ),
        ("0.00392156862745098", "1.0", "rescale_factor is 1; this version computes byte / 255 only"),
        ("    0.25\n", "    0.25,\n 0.5\n", "a plane has a mean and a standard deviation, here are 3 and 2"),
    ] {
        refused(from, to, &[], wanted);
    }
    refused(
        "gelu",
        "gelu",
        &["--image-size", "16"],
        "have a position for each patch of their own image size",
    );
}

//! The data of jobs: every kind is read by its format, and bad files are errors, found before there is a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{self, begin_run, one_by_one, words};
use half::{bf16, f16};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_job::Job;
use tiebreak_job::data::Dataset;
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{JobFiles, RunError};

const KEY: [u32; 2] = [3, 4];

/// A job with this model and data, beside the files.
fn job(folder: &Path, model: &str, data: &str) -> PathBuf {
    let text = format!(
        "steps = 6\nmodel = {{ {model} }}\ndata = {{ {data} }}\nbatch = {{ micro_batch = 2, micro_batches = 2 }}\n\
         optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 1e-2 }}\n"
    );
    let path = folder.join("job.toml");
    fs::write(&path, text).unwrap();
    path
}

const GPT: &str = r#"kind = "gpt", vocabulary = 300, context = 4, layers = 1, heads = 1, width = 8"#;
const MLP: &str = r#"kind = "mlp", inputs = 6, hidden = [4], classes = 5"#;
const RESNET: &str =
    r#"kind = "resnet", height = 2, width = 3, planes = 1, stages = [4], blocks = 1, classes = 5"#;

/// The batch of step 1, and the data that it was drawn from. A referee draws the same from the slices that were read.
fn drawn(path: &Path) -> Result<(MicroBatch, JobData), RunError> {
    let job = Job::parse("job", &fs::read_to_string(path).unwrap())?;
    let program = job.program(None).unwrap();
    let mut data = JobData::open(&JobFiles::new(path, None)?, &job, &program)?;
    data.sample(&job, &program, KEY)?;
    let batch = data.dataset.micro_batch(&program, KEY, 1, 0)?;
    let slices = data.dataset.slices_read().unwrap();
    let mut again = Dataset::from_slices(&data.manifest, &slices, &job.data, &program.sample()).unwrap();
    assert_eq!(again.micro_batch(&program, KEY, 1, 0).unwrap(), batch);
    one_by_one(&mut again, &program, (KEY, 1), &batch);
    Ok((batch, data))
}

fn error(path: &Path) -> String {
    match drawn(path) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the data were taken"),
    }
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// IDX files of four images of 2 x 3, and their labels.
fn idx() -> [Vec<u8>; 2] {
    let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    [
        [header(&[0x803, 4, 2, 3]), (0..24).map(|i| i * 9).collect()].concat(),
        [header(&[0x801, 4]), vec![0, 1, 2, 4]].concat(),
    ]
}

/// Checks that every window of a batch is a window of one file, with the following tokens as its labels.
fn are_windows(batch: &MicroBatch, files: &[Vec<u32>]) {
    let [inputs, labels] = [0, 1].map(|number: usize| words(&batch.tensors[number]));
    for (input, labels) in inputs.chunks(4).zip(labels.chunks(4)) {
        let window: Vec<u32> = [input, &labels[3..]].concat();
        assert_eq!(input[1..], labels[..3]);
        assert!(files.iter().any(|file| file.windows(5).any(|w| w == window)), "{window:?}");
    }
}

#[test]
fn text_of_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["once upon a time", "tiny", "there was a number"];
    for (name, text) in ["a", "b", "c"].iter().zip(files) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = job(folder.path(), GPT, r#"kind = "bytes", paths = ["a", "b", "c"]"#);
    let (batch, data) = drawn(&path).unwrap();
    assert_eq!(data.dataset.samples(), (16 - 4) + (18 - 4));
    assert_eq!(data.dataset.unused().collect::<Vec<_>>(), [folder.path().join("b")]);
    are_windows(&batch, &files.map(|text| text.bytes().map(u32::from).collect()));

    let path = job(folder.path(), GPT, r#"kind = "bytes", paths = ["b", "b"]"#);
    assert!(error(&path).contains("the file holds no whole sample"));
    let path = job(folder.path(), GPT, r#"kind = "bytes", paths = []"#);
    assert!(error(&path).contains("data.paths: must be 1 to 4096, is 0 texts"));
    let path = job(folder.path(), GPT, r#"kind = "bytes", path = "a", paths = ["b"]"#);
    assert!(error(&path).contains("it cannot be together with"));
    let path = job(folder.path(), GPT, r#"kind = "bytes", path = 7"#);
    assert!(error(&path).contains("data.path: must be a text, is an integer"));
    let path = job(folder.path(), GPT, r#"kind = "bytes", path = "a", smapling = "permutation""#);
    assert!(error(&path).contains("did you mean `sampling`?"));
}

/// No step draws a token of a reserved window, and evaluations take only reserved ones.
#[test]
fn the_last_samples_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["once upon a time", "there was a number"];
    for (name, text) in ["a", "b"].iter().zip(files) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    // 7 of 12 + 14 windows (a half is rounded up): those from token 7 of the second file on.
    let path = job(folder.path(), GPT, r#"kind = "bytes", paths = ["a", "b"], validation_split = 0.25"#);
    let (_, mut data) = drawn(&path).unwrap();
    assert_eq!((data.dataset.samples(), data.dataset.samples_in_order()), (12 + 3, 2));
    let program = Job::parse("job", &fs::read_to_string(&path).unwrap()).unwrap().program(None).unwrap();
    let left = [files[0], &files[1][..7]].map(|text| text.bytes().map(u32::from).collect());
    for step in 1..=20 {
        let batch = data.dataset.batch(&program, KEY, step).unwrap();
        batch.iter().for_each(|micro| are_windows(micro, &left));
    }
    let kept = data.dataset.batch_in_order(0..2).unwrap();
    let tokens: String = words(&kept.tensors[0]).into_iter().map(|word| word as u8 as char).collect();
    assert_eq!(tokens, files[1][7..15]);

    for (name, bytes) in ["images", "labels"].iter().zip(idx()) {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let of_images = |split: &str| {
        let data =
            format!(r#"kind = "idx", images = "images", labels = "labels", validation_split = {split}"#);
        job(folder.path(), MLP, &data)
    };
    let (_, data) = drawn(&of_images("0.5")).unwrap();
    assert_eq!((data.dataset.samples(), data.dataset.samples_in_order()), (2, 2));
    for (split, says) in [
        ("0.1", "keeps 0 of 4 samples"),
        ("0.9", "keeps 4 of 4 samples"),
        ("1.0", "data.validation_split: must be above 0 and below 1"),
    ] {
        let error = error(&of_images(split));
        assert!(error.contains(says), "{split}: {error}");
    }
}

#[test]
fn files_of_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| i * i % 300).collect();
    let u16s: Vec<u8> = tokens.iter().flat_map(|&t| (t as u16).to_le_bytes()).collect();
    let u32s: Vec<u8> = tokens.iter().flat_map(|&t| t.to_le_bytes()).collect();
    write("u16.bin", &u16s);
    write("u32.bin", &u32s);
    write("u16.npy", &npy("<u2", "(40,)", &u16s));
    write("u32.npy", &npy("<u4", "(40,)", &u32s));
    for (name, dtype) in [("u16.bin", "u16"), ("u32.bin", "u32"), ("u16.npy", "u16"), ("u32.npy", "u32")] {
        let data = format!(r#"kind = "tokens", paths = ["{name}", "{name}"], dtype = "{dtype}""#);
        let (batch, data) = drawn(&job(folder.path(), GPT, &data)).unwrap();
        assert_eq!(data.dataset.samples(), 2 * 36, "{name}");
        are_windows(&batch, std::slice::from_ref(&tokens));
    }
    write("large.bin", &[0xff; 20]);
    write("odd.bin", &[0; 21]);
    write("short.npy", &npy("<u2", "(41,)", &u16s));
    write("square.npy", &npy("<u2", "(8, 5)", &u16s));
    for (name, dtype, why) in [
        ("large.bin", "u16", "has 65535 among its tokens, which is not below 300"),
        ("odd.bin", "u16", "21 bytes are no whole number of tokens of 2 bytes"),
        ("u16.npy", "u32", "one row of U32 is wanted, the file has shape [40] of U16"),
        ("square.npy", "u16", "one row of U16 is wanted, the file has shape [8, 5]"),
        ("short.npy", "u16", "the file is shorter than its header says"),
        ("u16.bin", "f32", "data.dtype: must be one of \"u16\", \"u32\", is \"f32\""),
    ] {
        let data = format!(r#"kind = "tokens", path = "{name}", dtype = "{dtype}""#);
        let error = error(&job(folder.path(), GPT, &data));
        assert!(error.contains(why), "{name}: {error}");
    }
}

/// Values of every type become the binary32 of the same value, whatever file they are in.
#[test]
fn labelled_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let values: Vec<f32> = (0..24).map(|i| if i == 7 { f32::NAN } else { (i as f32 - 11.0) / 8.0 }).collect();
    let f32s: Vec<u8> = values.iter().flat_map(|x| (-x).to_le_bytes()).collect();
    let f16s: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(-x).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|x| bf16::from_f32(-x).to_le_bytes()).collect();
    let labels: Vec<u8> = [3i64, 0, 4, 1].iter().flat_map(|l| l.to_le_bytes()).collect();
    write("f4.npy", &npy("<f4", "(4, 6)", &f32s));
    write("f2.npy", &npy("<f2", "(4, 2, 3)", &f16s));
    write("y.npy", &npy("<i8", "(4,)", &labels));
    let header = r#"{"y":{"dtype":"I64","shape":[4],"data_offsets":[48,80]},"x":{"dtype":"BF16","shape":[4,1,2,3],"data_offsets":[0,48]}}"#;
    write("xy.safetensors", &safetensors(header, &[bf16s, labels].concat()));
    let rows: Vec<Vec<u32>> = values
        .chunks(6)
        .map(|row| row.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { (-x).to_bits() }).collect())
        .collect();
    let mut before = None;
    for (model, data) in [
        (MLP, r#"inputs = "f4.npy", labels = "y.npy", dtype = "f32""#),
        (MLP, r#"inputs = "f2.npy", labels = "y.npy", dtype = "f16""#),
        (RESNET, r#"inputs = "f2.npy", labels = "y.npy", dtype = "f16""#),
        (
            RESNET,
            r#"inputs = "xy.safetensors", labels = "xy.safetensors", dtype = "bf16", inputs_tensor = "x", labels_tensor = "y""#,
        ),
    ] {
        let path = job(folder.path(), model, &format!(r#"kind = "arrays", {data}"#));
        let (batch, data) = drawn(&path).unwrap();
        assert_eq!(data.dataset.samples(), 4);
        let labels = words(&batch.tensors[1]);
        for (row, label) in words(&batch.tensors[0]).chunks(6).zip(labels) {
            let sample = [3, 0, 4, 1].iter().position(|&l| l == label).unwrap();
            assert_eq!(row, rows[sample], "{data:?}", data = path);
        }
        assert!(before.is_none_or(|before| before == batch));
        before = Some(batch);
    }
}

/// Records of CIFAR-10 and CIFAR-100 in several files; each image repeats one byte, which identifies it.
#[test]
fn records_with_one_label_and_with_two() {
    let folder = tempfile::tempdir().unwrap();
    let record = |labels: &[u8], byte: u8| [labels, &[byte; 3072]].concat();
    for (name, range) in [("a", 0..3u8), ("b", 3..5), ("c", 5..5)] {
        let ten: Vec<u8> = range.clone().flat_map(|i| record(&[2 * i], i)).collect();
        let hundred: Vec<u8> = range.flat_map(|i| record(&[i, 90 + i], i)).collect();
        fs::write(folder.path().join(format!("{name}.10")), ten).unwrap();
        fs::write(folder.path().join(format!("{name}.100")), hundred).unwrap();
    }
    let model = |classes: u32| format!(r#"kind = "mlp", inputs = 3072, hidden = [2], classes = {classes}"#);
    let ten = r#"kind = "cifar10", paths = ["a.10", "b.10", "c.10"]"#;
    let hundred = r#"kind = "cifar100", paths = ["a.100", "b.100", "c.100"]"#;
    for (data, classes, label) in [
        (ten.to_string(), 10, (|i| 2 * i) as fn(u32) -> u32),
        (format!(r#"{hundred}, labels = "coarse""#), 20, |i| i),
        (format!(r#"{hundred}, labels = "fine""#), 100, |i| 90 + i),
    ] {
        let (_, mut data) = drawn(&job(folder.path(), &model(classes), &data)).unwrap();
        assert_eq!(data.dataset.samples(), 5);
        assert_eq!(data.dataset.unused().count(), 1);
        let program = Job::parse("job", &fs::read_to_string(folder.path().join("job.toml")).unwrap());
        let batch = data.dataset.batch(&program.unwrap().program(None).unwrap(), KEY, 1).unwrap();
        for micro in &batch {
            let [images, labels] = [0, 1].map(|number: usize| words(&micro.tensors[number]));
            for (image, learned) in images.chunks(3072).zip(labels) {
                assert!(image.iter().all(|&pixel| pixel == image[0]) && learned == label(image[0]));
            }
        }
    }
    let refused = |classes, data: &str| error(&job(folder.path(), &model(classes), data));
    assert!(refused(20, &format!(r#"{hundred}, labels = "fine""#)).contains("which is not below 20"));
    assert!(refused(100, hundred).contains("data.labels: the key is missing"));
    let wrong = refused(10, r#"kind = "cifar100", path = "a.10", labels = "fine""#);
    assert!(wrong.contains("9219 bytes are no whole number of records of 3074 bytes"), "{wrong}");
}

/// Images are moved by the contract's rule (its vectors are tested beside the code): the same for everybody, and different at
/// every step.
#[test]
fn images_are_moved_as_they_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let [images, labels] = idx();
    fs::write(folder.path().join("x"), images).unwrap();
    fs::write(folder.path().join("y"), labels).unwrap();
    let data = |augment: &str| format!(r#"kind = "idx", images = "x", labels = "y"{augment}"#);
    let (plain, _) = drawn(&job(folder.path(), RESNET, &data(""))).unwrap();
    let (same, _) = drawn(&job(folder.path(), RESNET, &data(", augment = { crop = 0 }"))).unwrap();
    assert_eq!(plain, same);
    let path = job(folder.path(), RESNET, &data(", augment = { crop = 1, flip = true }"));
    let (_, mut moved) = drawn(&path).unwrap();
    let program = Job::parse("job", &fs::read_to_string(&path).unwrap()).unwrap().program(None).unwrap();
    let mut all = std::collections::BTreeSet::new();
    // Every epoch has each of four samples once.
    for step in 1..=30 {
        let batch = moved.dataset.batch(&program, KEY, step).unwrap();
        one_by_one(&mut moved.dataset, &program, (KEY, step), &batch[0]);
        for micro in batch {
            let labels = words(&micro.tensors[1]);
            for (image, label) in words(&micro.tensors[0]).chunks(6).zip(labels) {
                let sample = [0, 1, 2, 4].iter().position(|&l| l == label).unwrap() as u32;
                // The pixels are those of the sample, or zeros from outside.
                assert!(image.iter().all(|&p| p == 0 || p / 9 / 6 == sample), "{label}: {image:?}");
                all.insert((label, image.to_vec()));
            }
        }
    }
    assert!(all.len() > 4 * 12, "{} images of 4 x 18", all.len());

    fs::write(folder.path().join("flat.npy"), npy("|u1", "(4, 6)", &[9; 24])).unwrap();
    fs::write(folder.path().join("y.npy"), npy("|u1", "(4,)", &[0; 4])).unwrap();
    let flat =
        r#"kind = "arrays", inputs = "flat.npy", labels = "y.npy", dtype = "u8", augment = { flip = true }"#;
    for (model, data, why) in [
        (RESNET, data(", augment = { crop = 2 }"), "data.augment: images of more than 2 rows and columns"),
        (RESNET, data(", augment = { crop = 257 }"), "data.augment.crop: must be 0 to 256, is 257"),
        (RESNET, data(", augment = { crops = 2 }"), "did you mean `crop`?"),
        (MLP, flat.into(), "data.augment: images"),
        (
            GPT,
            r#"kind = "bytes", path = "x", augment = { flip = true }"#.into(),
            "data.augment: images are cropped",
        ),
    ] {
        let error = error(&job(folder.path(), model, &data));
        assert!(error.contains(why), "{error}");
    }
}

/// A model that takes values unchanged is trained, and audited with the scalar reference.
#[test]
fn values_are_trained_and_audited() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<u8> =
        (0..24u16).flat_map(|i| f16::from_f32(f32::from(i) / 8.0 - 1.0).to_le_bytes()).collect();
    fs::write(folder.path().join("x.npy"), npy("<f2", "(4, 2, 3)", &values)).unwrap();
    fs::write(folder.path().join("y.npy"), npy("|u1", "(4,)", &[3, 0, 4, 1])).unwrap();
    for model in [MLP, RESNET] {
        let data = r#"kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "f16""#;
        let path = job(folder.path(), model, data);
        let out = folder.path().join(&model[8..11]);
        let run = common::trained(&path, &out, None);
        assert_eq!(run.program().micro.inputs.iter().filter(|port| port.name == "batch/values").count(), 1);
        let audit = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
            .args(["audit", "--engine", "reference"])
            .arg(&out)
            .output()
            .unwrap();
        assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
    }
}

#[test]
fn arrays_that_do_not_fit_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("x.npy", &npy("|u1", "(4, 6)", &[9; 24]));
    write("long.npy", &npy("|u1", "(4, 6)", &[9; 25]));
    write("huge.npy", &npy("|u1", "(18446744073709551615, 6)", &[9; 24]));
    write("turned.npy", &npy("|u1", "(4, 3, 2)", &[9; 24]));
    write("y.npy", &npy("|u1", "(4,)", &[0; 4]));
    write("three.npy", &npy("|u1", "(3,)", &[0; 3]));
    write("five.npy", &npy("|u1", "(4,)", &[5; 4]));
    write("minus.npy", &npy("<i8", "(4,)", &[0xff; 32]));
    write("none.npy", &npy("|u1", "(0, 6)", &[]));
    write("no.npy", &npy("|u1", "(0,)", &[]));
    write("x.safetensors", &safetensors("{}", &[]));
    for (model, inputs, labels, dtype, why) in [
        (MLP, "x.npy", "three.npy", "u8", "one label for each of 4 samples is wanted, there is [3] of U8"),
        (MLP, "x.npy", "five.npy", "u8", "has 5 among its labels, which is not below 5"),
        (MLP, "x.npy", "minus.npy", "u8", "has -1 among its labels, which is not below 5"),
        (MLP, "x.npy", "y.npy", "f32", "its elements are U8, the job's data.dtype is F32"),
        (
            MLP,
            "x.npy",
            "y.npy",
            "i64",
            "data.dtype: must be one of \"u8\", \"u16\", \"u32\", \"f16\", \"bf16\", \"f32\", is \"i64\"",
        ),
        (MLP, "x.npy", "y.npy", "u16", "data.dtype: u16 and u32 are token ids with a label"),
        (MLP, "long.npy", "y.npy", "u8", "the file is longer than its header says"),
        (MLP, "huge.npy", "y.npy", "u8", "the file is shorter than its header says"),
        (MLP, "none.npy", "no.npy", "u8", "the file holds no whole sample"),
        (MLP, "y.npy", "y.npy", "u8", "the samples have shape [4], the model wants [samples], then [6]"),
        (RESNET, "turned.npy", "y.npy", "u8", "the samples have shape [4, 3, 2]"),
        (GPT, "x.npy", "y.npy", "u8", "this kind of data does not fit the model"),
        (MLP, "x.bin", "y.npy", "u8", "data.inputs: arrays are .npy or .safetensors files"),
        (MLP, "x.safetensors", "y.npy", "u8", "data.inputs: a safetensors file has several tensors"),
        (MLP, "absent.npy", "y.npy", "u8", "absent.npy"),
    ] {
        let data = format!(r#"kind = "arrays", inputs = "{inputs}", labels = "{labels}", dtype = "{dtype}""#);
        let error = error(&job(folder.path(), model, &data));
        assert!(error.contains(why), "{inputs}, {labels}: {error}");
    }
    let named =
        r#"kind = "arrays", inputs = "x.safetensors", labels = "y.npy", dtype = "u8", inputs_tensor = "x""#;
    assert!(error(&job(folder.path(), MLP, named)).contains("there is no tensor x"));
    let twice = named.replace("x.safetensors", "x.npy");
    assert!(
        error(&job(folder.path(), MLP, &twice)).contains("data.inputs_tensor: a .npy file has one array")
    );
}

/// A file that is cut anywhere is an error, and so is one with another byte in its header, unless the data still fit.
#[test]
fn cut_and_changed_headers_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let [images, labels] = idx();
    let header = r#"{"x":{"dtype":"U8","shape":[4,6],"data_offsets":[0,24]}}"#;
    let files = [
        ("x.idx", images, r#"kind = "idx", images = "x.idx", labels = "y.idx""#),
        (
            "x.npy",
            npy("|u1", "(4, 6)", &[7; 24]),
            r#"kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "u8""#,
        ),
        (
            "x.safetensors",
            safetensors(header, &[7; 24]),
            r#"kind = "arrays", inputs = "x.safetensors", inputs_tensor = "x", labels = "y.npy", dtype = "u8""#,
        ),
    ];
    fs::write(folder.path().join("y.idx"), &labels).unwrap();
    fs::write(folder.path().join("y.npy"), npy("|u1", "(4,)", &[0, 1, 2, 3])).unwrap();
    for (name, bytes, data) in files {
        let path = job(folder.path(), MLP, data);
        let file = folder.path().join(name);
        fs::write(&file, &bytes).unwrap();
        drawn(&path).unwrap();
        for len in 0..bytes.len() {
            fs::write(&file, &bytes[..len]).unwrap();
            assert!(error(&path).contains(name), "{name}, {len} bytes");
        }
        let mut refused = 0;
        for at in 0..bytes.len() - 24 {
            let mut changed = bytes.clone();
            changed[at] ^= 0x15;
            fs::write(&file, &changed).unwrap();
            refused += usize::from(drawn(&path).is_err());
        }
        // Some bytes do not count: the spaces of a header, a name that the job does not ask for.
        assert!(refused * 10 > (bytes.len() - 24) * 8, "{name}: {refused} of {}", bytes.len() - 24);
    }
}

fn gzip(path: &Path) {
    assert!(Command::new("gzip").arg("-kf").arg(path).status().unwrap().success());
}

/// A run holds the unpacked contents of packed files, and so draws the same samples.
#[test]
fn packed_files_are_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let [images, labels] = idx();
    for (name, bytes) in [("images", &images), ("labels", &labels)] {
        fs::write(folder.path().join(name), bytes).unwrap();
        gzip(&folder.path().join(name));
    }
    let plain =
        drawn(&job(folder.path(), MLP, r#"kind = "idx", images = "images", labels = "labels""#)).unwrap();
    let path = job(folder.path(), MLP, r#"kind = "idx", images = "images.gz", labels = "labels.gz""#);
    let packed = drawn(&path).unwrap();
    assert_eq!(plain.0, packed.0);
    assert_eq!(plain.1.manifest, packed.1.manifest);
    let run = begin_run(&Disk::default(), &path, &folder.path().join("run")).unwrap();
    assert_eq!(fs::read(run.layout.data_file(0)).unwrap(), images);
    assert_eq!(fs::read(run.layout.data_file(1)).unwrap(), labels);

    let file = folder.path().join("images.gz");
    let good = fs::read(&file).unwrap();
    for bad in [&good[..good.len() - 1], &good[..5], &[], &[&good[..], b"more"].concat(), b"no gzip at all"] {
        fs::write(&file, bad).unwrap();
        let error = error(&path);
        assert!(error.contains("images.gz"), "{error}");
    }
    // Two members are one file.
    let mut halves = Vec::new();
    for half in images.chunks(20) {
        fs::write(folder.path().join("half"), half).unwrap();
        gzip(&folder.path().join("half"));
        halves.extend(fs::read(folder.path().join("half.gz")).unwrap());
    }
    fs::write(&file, halves).unwrap();
    assert_eq!(drawn(&path).unwrap().0, plain.0);
}

/// A failure before there is a run leaves no file, and removes none that was there.
#[test]
fn a_job_that_fails_leaves_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let [images, mut labels] = idx();
    labels[11] = 5;
    fs::write(folder.path().join("images"), &images).unwrap();
    fs::write(folder.path().join("labels"), &labels).unwrap();
    let path = job(folder.path(), MLP, r#"kind = "idx", images = "images", labels = "labels""#);
    let out = folder.path().join("runs/first");
    let failed = begin_run(&Disk::default(), &path, &out).err().unwrap().to_string();
    assert!(failed.contains("has 5 among its labels, and the model's are below 5"), "{failed}");
    assert!(!folder.path().join("runs").exists());

    labels[11] = 4;
    fs::write(folder.path().join("labels"), &labels).unwrap();
    // If run.json cannot be written, all other files were.
    fs::create_dir_all(out.join("data")).unwrap();
    fs::write(out.join(".run.json.partial"), "what an interrupted beginning left").unwrap();
    let before = common::files(&out);
    fs::create_dir(out.join(".job.toml.partial")).unwrap();
    assert!(begin_run(&Disk::default(), &path, &out).is_err());
    fs::remove_dir(out.join(".job.toml.partial")).unwrap();
    assert_eq!(common::files(&out), before);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    begin_run(&Disk::default(), &path, &out).unwrap();
}

/// `job check` finds what training would, and describes the data.
#[test]
fn job_check_opens_the_data() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), vec![7; 104]).unwrap();
    fs::write(folder.path().join("b"), "abc").unwrap();
    let path = job(folder.path(), GPT, r#"kind = "bytes", paths = ["a", "b"]"#);
    let check = |arguments: &[&str]| {
        let run = Command::new(env!("CARGO_BIN_EXE_tiebreak"))
            .args(["job", "check"])
            .arg(&path)
            .args(arguments)
            .output();
        let run = run.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (run.status.code(), text(run.stdout), text(run.stderr))
    };
    let (code, stdout, stderr) = check(&[]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("100 samples in 107 B of data: 25.0 steps an epoch, 0.24 epochs"), "{stdout}");
    assert!(stderr.contains("b is shorter than a sample"), "{stderr}");
    let (_, stdout, _) = check(&["--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["samples"], 100);
    assert_eq!(json["steps_drawn"], serde_json::json!([1, 2, 4, 6]));
    assert_eq!(json["unused_files"].as_array().unwrap().len(), 1);
    fs::write(folder.path().join("a"), "abc").unwrap();
    let (code, _, stderr) = check(&[]);
    assert_eq!(code, Some(4));
    assert!(stderr.contains("the file holds no whole sample"), "{stderr}");
}

/// A client's job that names files of the trainer is refused, since a run would publish them. Files that the trainer allows are
/// copied, after they are listed.
#[test]
fn a_job_reaches_its_folder_and_what_the_trainer_allows() {
    let outer = tempfile::tempdir().unwrap();
    let (folder, elsewhere) = (outer.path().join("job"), outer.path().join("elsewhere"));
    for made in [&folder, &elsewhere] {
        fs::create_dir(made).unwrap();
        fs::write(made.join("text"), vec![7; 104]).unwrap();
    }
    let secret = "PRIVATE+KEY+trainer+01020304+".to_string() + &"A".repeat(100);
    fs::write(outer.path().join("secret.key"), &secret).unwrap();
    fs::write(folder.join("key"), &secret).unwrap();
    fs::write(folder.join("packed"), &secret).unwrap();
    gzip(&folder.join("packed"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&elsewhere, folder.join("link")).unwrap();
        std::os::unix::fs::symlink(outer.path().join("secret.key"), folder.join("file")).unwrap();
    }
    let run = folder.join("run");
    let train = |data: &str, arguments: &[&Path]| {
        let path = job(&folder, if data.contains("idx") { MLP } else { GPT }, data);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.arg("train").arg(&path).arg("--out").arg(&run).args(arguments);
        let output = command.output().unwrap();
        let whole = run.join("run.json").exists();
        assert!(whole || !run.exists(), "{data}: a part of a run is left");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let bytes = |path: &str| format!("kind = \"bytes\", path = {path:?}");
    let absolute = elsewhere.join("text").to_str().unwrap().to_string();
    let mut outside = vec!["../secret.key", "../nowhere", "../elsewhere/../elsewhere/text", &absolute];
    if cfg!(unix) {
        outside.extend(["link/text", "file"]);
    }
    for path in outside {
        let (code, stderr) = train(&bytes(path), &[]);
        assert_eq!(code, Some(2), "{path}: {stderr}");
        let said = format!("data.path: {path:?} leaves ");
        assert!(stderr.contains(&said) && stderr.contains("--data-root DIR"), "{stderr}");
    }
    for (data, key) in [
        (r#"kind = "idx", images = "../x", labels = "text""#.to_string(), "data.images"),
        (bytes("text") + " }\ninit = { weights = [\"../x\"]", "init.weights"),
        (bytes("text") + " }\ninit = { run = \"../x\"", "init.run"),
    ] {
        let (code, stderr) = train(&data, &[]);
        assert!(code == Some(2) && stderr.contains(&format!("{key}: \"../x\" leaves ")), "{stderr}");
    }
    for path in ["key", "packed.gz"] {
        let (code, stderr) = train(&bytes(path), &[]);
        assert!(code == Some(2) && stderr.contains("a private key, which is never data"), "{stderr}");
    }
    // The flag names one more folder, and does not turn a key into data.
    let root = ["--data-root".as_ref(), outer.path()];
    let (code, stderr) = train(&bytes("../secret.key"), &root);
    assert!(code == Some(2) && stderr.contains("a private key"), "{stderr}");
    let (code, stderr) = train(&bytes("../elsewhere/text"), &["--data-root".as_ref(), &elsewhere.join("no")]);
    assert!(code == Some(2) && stderr.contains("--data-root"), "{stderr}");
    let (code, stderr) = train(&bytes("../elsewhere/text"), &["--data-root".as_ref(), &elsewhere]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("elsewhere/text (104 B)"), "{stderr}");
    assert_eq!(fs::read(run.join("data/data-0.bin")).unwrap(), vec![7; 104]);
}

//! `tiebreak job`: jobs to begin with.

use std::fs;
use std::path::Path;

use tiebreak::job::reference::{Type, keys};

use super::common::many_files_job;
use super::{output, path};

/// Data files of the names that the table of keys has as examples: a few samples each.
fn write_data(folder: &Path) {
    let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    let images = [header(&[0x803, 8, 28, 28]), vec![7; 8 * 784]].concat();
    fs::write(folder.join("text.txt"), "to be or not to be, that is the question. ".repeat(20)).unwrap();
    fs::write(folder.join("train-images-idx3-ubyte"), images).unwrap();
    fs::write(folder.join("train-labels-idx1-ubyte"), [header(&[0x801, 8]), vec![3; 8]].concat()).unwrap();
    fs::write(folder.join("data_batch_1.bin"), vec![5; 8 * 3073]).unwrap();
}

#[test]
fn a_new_job_of_every_kind_passes_its_check() {
    let folder = tempfile::tempdir().unwrap();
    write_data(folder.path());
    let models = keys().find(|key| key.path == "model.kind").unwrap();
    let Type::Choice(models) = models.ty else { panic!("kinds are a choice") };
    for model in models {
        let file = path(folder.path(), &format!("{model}.toml"));
        let (code, _, stderr) = output(&["job", "new", model, "--output", &file]);
        assert_eq!(code, 0, "{stderr}");
        let (code, stdout, stderr) = output(&["job", "check", &file]);
        assert_eq!(code, 0, "{model}: {stderr}");
        assert!(stdout.contains("40 steps"), "{stdout}");
        let (code, _, stderr) = output(&["job", "new", model, "--output", &file]);
        assert!(code == 2 && stderr.contains("is there already"), "{stderr}");
    }
    let (code, _, stderr) = output(&["job", "new", "lstm"]);
    assert!(code == 2 && stderr.contains("gpt"), "{stderr}");
}

/// Of 19 files of .npy an element of a batch is shown in 64 KiB; of more the check says how much it takes.
#[test]
fn a_job_with_many_data_files_is_told_what_a_dispute_takes() {
    for (files, warned) in [(19, false), (20, true), (200, true)] {
        let folder = tempfile::tempdir().unwrap();
        let job = many_files_job(folder.path(), files);
        let (code, _, stderr) = output(&["job", "check", job.to_str().unwrap()]);
        let warning = "warning: in a dispute an element of a batch is shown with the manifests and headers of all data files";
        assert_eq!((code, stderr.contains(warning)), (0, warned), "{files}: {stderr}");
        assert_eq!(stderr.contains("where 64.00 KiB are meant to do"), warned, "{files}: {stderr}");
    }
}

/// A file that is cut, or that something was appended to, is named before a step is trained, whatever its kind.
#[test]
fn files_of_another_length_than_their_headers_say_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_data(folder.path());
    let npy = |descr: &str, shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
    };
    fs::write(at("x.npy"), npy("|u1", "(8, 784)", &[7; 8 * 784])).unwrap();
    fs::write(at("y.npy"), npy("|u1", "(8,)", &[3; 8])).unwrap();
    fs::write(at("t.npy"), npy("<u2", "(400,)", &[3, 0].repeat(400))).unwrap();
    fs::write(at("t.bin"), [3, 0].repeat(400)).unwrap();
    let header = r#"{"x":{"dtype":"U8","shape":[8,784],"data_offsets":[0,6272]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[7; 6272]].concat();
    fs::write(at("x.safetensors"), tensors).unwrap();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut packer, &fs::read(at("t.npy")).unwrap()).unwrap();
    fs::write(at("t.npy.gz"), packer.finish().unwrap()).unwrap();
    let idx = r#"kind = "idx", images = "train-images-idx3-ubyte", labels = "train-labels-idx1-ubyte""#;
    for (model, data, file) in [
        ("mlp", idx, "train-images-idx3-ubyte"),
        ("mlp", idx, "train-labels-idx1-ubyte"),
        ("mlp", r#"kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "u8""#, "x.npy"),
        ("mlp", r#"kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "u8""#, "y.npy"),
        (
            "mlp",
            r#"kind = "arrays", inputs = "x.safetensors", inputs_tensor = "x", labels = "y.npy", dtype = "u8""#,
            "x.safetensors",
        ),
        ("image", r#"kind = "cifar10", path = "data_batch_1.bin""#, "data_batch_1.bin"),
        ("gpt", r#"kind = "tokens", path = "t.npy", dtype = "u16""#, "t.npy"),
        ("gpt", r#"kind = "tokens", path = "t.bin", dtype = "u16""#, "t.bin"),
        ("gpt", r#"kind = "tokens", path = "t.npy.gz", dtype = "u16""#, "t.npy.gz"),
    ] {
        let model = match model {
            "mlp" => r#"kind = "mlp", inputs = 784, hidden = [4], classes = 10"#,
            "image" => r#"kind = "mlp", inputs = 3072, hidden = [4], classes = 10"#,
            _ => r#"kind = "gpt", vocabulary = 300, context = 4, layers = 1, heads = 1, width = 8"#,
        };
        let text = format!(
            "steps = 1\nmodel = {{ {model} }}\ndata = {{ {data} }}\nbatch = {{ micro_batch = 2, micro_batches = 1 }}\n\
             optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 1e-2 }}\n"
        );
        let job = path(folder.path(), "job.toml");
        fs::write(&job, text).unwrap();
        let check = || output(&["job", "check", &job]);
        let (code, _, stderr) = check();
        assert_eq!(code, 0, "{file}: {stderr}");
        let whole = fs::read(at(file)).unwrap();
        let mut flipped = whole.clone();
        // The checksum of a .gz file.
        flipped[whole.len() - 6] ^= 1;
        let flipped = file.ends_with(".gz").then_some(flipped);
        let other = [whole[..whole.len() - 1].to_vec(), [&whole[..], b"\0"].concat()];
        for bytes in other.into_iter().chain(flipped) {
            fs::write(at(file), bytes).unwrap();
            let (code, _, stderr) = check();
            assert!(code == 4 && stderr.contains(file), "{file}: {code} {stderr}");
        }
        fs::write(at(file), whole).unwrap();
    }
}

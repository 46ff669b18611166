//! `tiebreak job`: jobs to begin with, and the findings of their check about data.

use std::fs;
use std::path::Path;

use tiebreak_job::Job;
use tiebreak_job::manifest::files_root;
use tiebreak_job::reference::{Type, keys};
use tiebreak_run::run::JobFiles;
use tiebreak_run::run::checked::Checked;
use tiebreak_run::run::data::JobData;

use super::common::{edit::edit, many_files_job};
use super::{output, path};

/// Data files with the names of the examples in the table of keys: a few samples each.
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

/// An element of a batch from 19 .npy files is shown in 64 KiB; for more files the check prints the size.
/// The jobs that come with the repository, some of whose data do not.
#[test]
fn the_jobs_of_the_repository_are_jobs() {
    let mut kinds = Vec::new();
    for entry in fs::read_dir("assets/jobs").unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            let job = Job::parse("job", &fs::read_to_string(&path).unwrap()).unwrap();
            kinds.push(serde_json::to_value(&job.model().unwrap().model).unwrap()["kind"].to_string());
            assert!(job.program(None).is_ok(), "{}", path.display());
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, ["\"gpt\"", "\"llama\"", "\"mlp\"", "\"resnet\""]);
}

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

/// A truncated file, or one with bytes appended, is named before the first step, whatever its kind.
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
        // The changed byte is in the checksum of a .gz file.
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

/// One id, or one label, that the model does not have is found before the first step, at any position, and the error has the
/// user's file name.
#[test]
fn ids_and_labels_are_looked_at_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let write_job = |model: &str, data: &str, rest: &str| {
        let text = format!(
            "steps = 1\n{rest}\n[model]\n{model}\n[data]\n{data}\n[optimizer]\nkind = \"sgd\"\nmomentum = 0.0\nweight_decay = 0.0\n\
             [schedule]\npeak = 0.1\n[batch]\nmicro_batch = 1\n"
        );
        fs::write(at("job.toml"), text).unwrap();
    };
    let gpt = "kind = \"gpt\"\nvocabulary = 512\ncontext = 4\nlayers = 1\nheads = 1\nwidth = 4";
    let tokens = "kind = \"tokens\"\npath = \"ids.bin\"\ndtype = \"u16\"";
    let ids = |bad: Option<(usize, u16)>| -> Vec<u8> {
        let id = |i: usize| bad.filter(|(place, _)| *place == i).map_or(i as u16 % 512, |(_, id)| id);
        (0..600_000).flat_map(|i| id(i).to_le_bytes()).collect()
    };
    let refused = |why: &[&str]| {
        for args in [&["job", "check", &at("job.toml")][..], &["train", &at("job.toml"), "--out", &at("run")]]
        {
            let (code, _, error) = output(args);
            assert_eq!(code, 4, "{args:?}: {error}");
            assert!(why.iter().all(|part| error.contains(part)), "{args:?}: {error}");
        }
        assert!(!folder.path().join("run").exists());
    };
    // The ids are in the first group of 64 KiB, at its end, in the last group, and at the end of the file.
    for place in [0, 32_767, 32_768, 500_000, 599_999] {
        fs::write(at("ids.bin"), ids(Some((place, 50_256)))).unwrap();
        write_job(gpt, tokens, "");
        let place = format!("token {place} ");
        refused(&["ids.bin", &place, "is 50256", "below 512", "model.vocabulary to 50257"]);
    }
    fs::write(at("valid.bin"), ids(Some((7, 600)))).unwrap();
    fs::write(at("ids.bin"), ids(None)).unwrap();
    write_job(gpt, tokens, "evaluation = { every = 1, files = [\"valid.bin\"] }");
    refused(&["valid.bin", "token 7 ", "is 600"]);
    // EMNIST's letters count from 1: the last class is one too large.
    let header = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    let labels: Vec<u8> = (0..52).map(|i| 1 + i / 2).collect();
    fs::write(at("images"), [header(&[0x803, 52, 2, 2]), vec![0; 208]].concat()).unwrap();
    fs::write(at("labels"), [header(&[0x801, 52]), labels].concat()).unwrap();
    write_job(
        "kind = \"mlp\"\ninputs = 4\nhidden = [2]\nclasses = 26",
        "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"",
        "",
    );
    refused(&["labels", "sample 50 ", "has 26", "They count from 1", "model.classes to 27"]);
}

/// The cache remembers checked data by their digest and the model's bound; errors use the job's name for a run's copy.
#[test]
fn data_are_looked_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job.toml");
    let looked_at = |ids: u16, vocabulary: u32| {
        let bytes: Vec<u8> = (0..600u16).flat_map(|i| (i % ids).to_le_bytes()).collect();
        fs::write(folder.path().join("ids.bin"), bytes).unwrap();
        let text = format!(
            "steps = 2\n[model]\nkind = \"gpt\"\nvocabulary = {vocabulary}\ncontext = 4\nlayers = 1\nheads = 1\nwidth = 4\n[data]\n\
             kind = \"tokens\"\npath = \"ids.bin\"\ndtype = \"u16\"\n[optimizer]\nkind = \"sgd\"\nmomentum = 0.0\n\
             weight_decay = 0.0\n[schedule]\npeak = 0.1\n[batch]\nmicro_batch = 1\n"
        );
        let spec = Job::parse("job", &text).unwrap();
        let program = spec.program(None).unwrap();
        let mut data = JobData::open(&JobFiles::new(&job, None).unwrap(), &spec, &program).unwrap();
        let (mut passes, root) = (0, files_root(&data.manifest));
        let checked = Checked::at(&folder.path().join("kept"), 0);
        let names = Some(&["the-users.bin"][..]);
        let result = checked
            .check(&mut data.dataset, &root, names, &mut |done, all| passes += usize::from(done == all));
        (passes, result.map_err(|error| error.to_string()))
    };
    assert_eq!(looked_at(300, 300), (1, Ok(())));
    assert_eq!(looked_at(300, 300), (0, Ok(())));
    // Another bound or other data are checked anew, and a refusal is not remembered.
    assert_eq!(looked_at(300, 301), (1, Ok(())));
    assert_eq!(looked_at(299, 300), (1, Ok(())));
    for _ in 0..2 {
        let (passes, result) = looked_at(300, 299);
        let error = result.unwrap_err();
        assert!(passes == 1 && error.starts_with("the-users.bin: "), "{error}");
        assert!(error.contains("token 299 ") && error.contains("ids.bin)"), "{error}");
    }
}

/// A packed file of some MB that holds gigabytes is checked with as much memory as any other, and a damaged one is an error.
#[test]
fn packed_files_take_no_more_memory_than_others() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..300 {
        std::io::Write::write_all(&mut packer, &vec![0; 1 << 20]).unwrap();
    }
    let packed = packer.finish().unwrap();
    fs::write(at("text.gz"), &packed).unwrap();
    let job = "steps = 2\n[model]\nkind = \"gpt\"\ncontext = 4\nlayers = 1\nheads = 1\nwidth = 4\n[data]\nkind = \"bytes\"\n\
        path = \"text.gz\"\n[optimizer]\nkind = \"sgd\"\nmomentum = 0.0\nweight_decay = 0.0\n[schedule]\npeak = 0.1\n[batch]\n\
        micro_batch = 1\n";
    fs::write(at("job.toml"), job).unwrap();
    let (code, told, error) = output(&["job", "check", &at("job.toml"), "--max-memory", "64"]);
    assert!(code == 0 && told.contains("300.00 MiB of data"), "{code} {told} {error}");
    fs::write(at("text.gz"), &packed[..packed.len() / 2]).unwrap();
    let (code, _, error) = output(&["job", "check", &at("job.toml")]);
    assert!(code == 4 && error.contains("text.gz") && error.contains("does not unpack"), "{code} {error}");
}

/// A job over token ids in a file, of a given width.
fn tokens_job(folder: &Path, file: &str, dtype: &str, vocabulary: u32) -> String {
    let text = format!(
        "steps = 1\nmodel = {{ kind = \"gpt\", vocabulary = {vocabulary}, context = 4, layers = 1, heads = 1, width = 8 }}\n\
         data = {{ kind = \"tokens\", path = \"{file}\", dtype = \"{dtype}\" }}\nbatch = {{ micro_batch = 2, micro_batches = 1 }}\n\
         optimizer = {{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }}\nschedule = {{ peak = 1e-2 }}\n"
    );
    let job = path(folder, "job.toml");
    fs::write(&job, text).unwrap();
    job
}

/// The pointer that Git LFS puts in place of a file.
const POINTER: &[u8] =
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 12345678\n";

/// Other formats and widths would be read as ids: a file that holds no ids is refused by name before the first step, in training
/// and in evaluation.
#[test]
fn files_that_are_no_raw_token_ids_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let ids: Vec<u16> = (0..2000u32).map(|i| (i * 7919 % 500) as u16).collect();
    let u16s: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let u32s: Vec<u8> = ids.iter().flat_map(|&id| u32::from(id).to_le_bytes()).collect();
    let big: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
    let header = |words: [u32; 3], ids: &[u8]| {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(1024, 0);
        [&bytes[..], ids].concat()
    };
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut packer, &u16s).unwrap();
    let gzip = packer.finish().unwrap();
    let npy = [b"\x93NUMPY\x01\0\x46\0".to_vec(), vec![b' '; 70], u16s.clone()].concat();
    let good = [("good.bin", "u16", &u16s), ("good32.bin", "u32", &u32s)];
    for (file, dtype, bytes) in good {
        fs::write(at(file), bytes).unwrap();
        let (code, _, stderr) = output(&["job", "check", &tokens_job(folder.path(), file, dtype, 512)]);
        assert_eq!(code, 0, "{file}: {stderr}");
    }
    for (bytes, dtype, why) in [
        (header([20_240_520, 1, 2000], &u16s), "u16", "a token file of llm.c"),
        (header([20_240_801, 7, 2000], &u32s), "u32", "tiebreak-import tokens"),
        (header([20_240_520, 2, 2000], &u16s), "u16", "version 2"),
        (npy.clone(), "u16", "it is a .npy file"),
        (gzip.clone(), "u16", "packed with gzip"),
        ([b"\x28\xb5\x2f\xfd\x04".to_vec(), vec![7; 99]].concat(), "u16", "packed with zstd"),
        ([&b"PK\x03\x04\x14\0\0\0\x08\0"[..], &[7; 90]].concat(), "u16", "zip archive"),
        ([&b"PAR1"[..], &[7; 92], b"PAR1"].concat(), "u16", "Parquet"),
        ([&b"ARROW1\0\0"[..], &[7; 92]].concat(), "u16", "Arrow"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>".to_vec(), "u16", "a web page (HTML)"),
        (POINTER[..POINTER.len() - 1].to_vec(), "u16", "git lfs pull"),
        ("To be, or not to be: that is the question here. ".repeat(4).into_bytes(), "u16", "it is text"),
        (u32s.clone(), "u16", "say dtype = \"u32\""),
        (u16s.clone(), "u32", "say dtype = \"u16\""),
        (big.clone(), "u16", "big-endian"),
        (u16s[..u16s.len() - 1].to_vec(), "u16", "no whole number of tokens of 2 bytes"),
        (u32s[..u32s.len() - 2].to_vec(), "u32", "no whole number of tokens of 4 bytes"),
    ] {
        fs::write(at("ids.bin"), &bytes).unwrap();
        let job = tokens_job(folder.path(), "ids.bin", dtype, 512);
        let out = path(folder.path(), "run");
        for args in [&["job", "check", &job][..], &["train", &job, "--out", &out, "--engine", "cpu"]] {
            let (code, _, stderr) = output(args);
            assert!(
                code == 4 && stderr.contains("ids.bin") && stderr.contains(why),
                "{why}: {code} {stderr}"
            );
        }
        assert!(!at("run").exists());
        let job =
            tokens_job(folder.path(), if dtype == "u16" { "good.bin" } else { "good32.bin" }, dtype, 512);
        let text = fs::read_to_string(&job).unwrap();
        fs::write(&job, format!("{text}evaluation = {{ every = 1, files = [\"ids.bin\"] }}\n")).unwrap();
        let (code, _, stderr) = output(&["job", "check", &job]);
        assert!(code == 4 && stderr.contains("ids.bin") && stderr.contains(why), "{why}: {code} {stderr}");
    }
}

/// A pointer is never data, and a UTF-16 text is no text of bytes.
#[test]
fn pointers_and_wide_letters_are_no_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let wide: Vec<u8> = "To be, or not to be".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, why) in [(POINTER, "git lfs pull"), (&wide, "UTF-16")] {
        fs::write(folder.path().join("ids.bin"), bytes).unwrap();
        let job = tokens_job(folder.path(), "ids.bin", "u16", 512);
        edit(&job, &[("\"tokens\"", "\"bytes\""), (", dtype = \"u16\"", "")]);
        let (code, _, stderr) = output(&["job", "check", &job]);
        assert!(code == 4 && stderr.contains(why), "{why}: {code} {stderr}");
    }
}

/// A model may have more tokens than its tokenizer, padded to a round number: an id between the two is no token.
#[test]
fn ids_that_the_tokenizer_does_not_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let ids = |greatest: u16| (0..200u16).map(move |i| if i == 150 { greatest } else { i % 7 * 13 });
    let write = |greatest| {
        let bytes: Vec<u8> = ids(greatest).flat_map(u16::to_le_bytes).collect();
        fs::write(at("ids.bin"), bytes).unwrap();
    };
    let check = || output(&["job", "check", &tokens_job(folder.path(), "ids.bin", "u16", 512)]);
    write(301);
    assert_eq!(check().0, 0);
    fs::create_dir(at("ids.bin.tokenizer")).unwrap();
    let vocabulary = |greatest: u32| format!(r#"{{"a":0,"b":{greatest}}}"#);
    fs::write(at("ids.bin.tokenizer/vocab.json"), vocabulary(300)).unwrap();
    let (code, _, stderr) = check();
    assert!(code == 4 && stderr.contains("its token 150 ") && stderr.contains("is 301"), "{code} {stderr}");
    assert!(stderr.contains("vocab.json are below 301"), "{stderr}");
    fs::write(at("ids.bin.tokenizer/added_tokens.json"), r#"{"<|x|>":301}"#).unwrap();
    assert_eq!(check().0, 0);
    write(302);
    assert_eq!(check().0, 4);
    fs::remove_dir_all(at("ids.bin.tokenizer")).unwrap();
    write(512);
    let (code, _, stderr) = check();
    assert!(code == 4 && stderr.contains("(model.vocabulary)"), "{stderr}");
}

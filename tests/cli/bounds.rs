//! Labels and ids that the model does not have, in every form in which a job takes them, are refused before the first step.

use std::fs;

use tiebreak_contract::program::encoding::encode;
use tiebreak_job::Job;

use crate::{output, path};

/// Labels in every form are checked, and labels without a loss are labels of the model.
#[test]
fn labels_of_every_kind_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let check = |classes: u32, inputs: u32, data: &str, rest: &str| {
        let text = format!(
            "steps = 1\n{rest}\n[model]\nkind = \"mlp\"\ninputs = {inputs}\nhidden = [2]\nclasses = {classes}\n[data]\n{data}\n\
             [optimizer]\nkind = \"sgd\"\nmomentum = 0.0\nweight_decay = 0.0\n[schedule]\npeak = 0.1\n[batch]\nmicro_batch = 1\n"
        );
        fs::write(at("job.toml"), text).unwrap();
        let (code, _, error) = output(&["job", "check", &at("job.toml")]);
        (code, error)
    };
    let refused = |(code, error): (i32, String), why: &[&str]| {
        assert!(code == 4 && why.iter().all(|part| error.contains(part)), "{why:?}: {code} {error}");
    };
    let taken = |(code, error): (i32, String)| assert_eq!(code, 0, "{error}");
    // Records of CIFAR: the last of 40 is the only one of its class; of CIFAR-100's two labels, one is learned.
    let records = |labels: &dyn Fn(u8) -> Vec<u8>| -> Vec<u8> {
        (0..40).flat_map(|i| [labels(i), vec![i; 3072]].concat()).collect()
    };
    fs::write(at("ten.bin"), records(&|i| vec![if i == 39 { 9 } else { i % 9 }])).unwrap();
    fs::write(at("hundred.bin"), records(&|i| vec![i % 20, if i == 39 { 99 } else { i }])).unwrap();
    let ten = "kind = \"cifar10\"\npath = \"ten.bin\"";
    refused(check(9, 3072, ten, ""), &["ten.bin", "sample 39 ", "has 9 ", "below 9", "model.classes to 10"]);
    taken(check(10, 3072, ten, ""));
    let hundred =
        |labels: &str| format!("kind = \"cifar100\"\npath = \"hundred.bin\"\nlabels = \"{labels}\"");
    let why = ["hundred.bin", "sample 39 ", "has 99 ", "1 of 40", "model.classes to 100"];
    refused(check(99, 3072, &hundred("fine"), ""), &why);
    taken(check(100, 3072, &hundred("fine"), ""));
    taken(check(20, 3072, &hundred("coarse"), ""));
    refused(check(19, 3072, &hundred("coarse"), ""), &["sample 19 ", "has 19 ", "model.classes to 20"]);

    // Arrays of labels of every integer type.
    let npy = |descr: &str, shape: &str, bytes: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), bytes].concat()
    };
    fs::write(at("x.npy"), npy("<f4", "(30, 3)", &[0; 360])).unwrap();
    let arrays = "kind = \"arrays\"\ninputs = \"x.npy\"\nlabels = \"y.npy\"\ndtype = \"f32\"";
    let labels = |descr: &str, last: i64| {
        let all = (0..30).map(|i| if i == 29 { last } else { i % 5 });
        let size = descr[2..].parse().unwrap();
        let bytes: Vec<u8> = all.flat_map(|label| label.to_le_bytes()[..size].to_vec()).collect();
        fs::write(at("y.npy"), npy(descr, "(30,)", &bytes)).unwrap();
    };
    let to = |classes: &'static str| format!("model.classes to {classes} or more");
    for (descr, last, advice) in [
        ("|u1", 255, to("256")),
        ("<u2", 5, to("6")),
        ("<u4", 4_000_000_000, "No model has so many classes".into()),
        ("<i8", 5, to("6")),
        ("<i8", i64::MAX, "No model has so many classes".into()),
    ] {
        labels(descr, last);
        refused(
            check(5, 3, arrays, ""),
            &["y.npy", "sample 29 ", &format!("has {last} "), "below 5", &advice],
        );
        labels(descr, 4);
        taken(check(5, 3, arrays, ""));
    }
    // PyTorch's label without a loss, -100, is no class; in a job the label is a class, which may be any.
    labels("<i8", -100);
    refused(check(5, 3, arrays, ""), &["sample 29 ", "has -100 ", "loss.ignore names, never negative"]);
    refused(check(5, 3, arrays, "loss = { ignore = 4 }"), &["sample 29 ", "has -100 "]);
    labels("<i8", 4);
    taken(check(5, 3, arrays, "loss = { ignore = 4 }"));
    labels("<i8", 5);
    refused(check(5, 3, arrays, "loss = { ignore = 4 }"), &["sample 29 ", "has 5 "]);
    let (code, error) = check(5, 3, arrays, "loss = { ignore = 5 }");
    assert!(code == 2 && error.contains("loss.ignore: must be a label of the model"), "{code} {error}");
}

/// A program file's batch tensors give the bounds: no job states a vocabulary or classes.
#[test]
fn a_program_files_bounds_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let header = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
    fs::write(at("images"), [header(&[0x803, 52, 2, 2]), vec![0; 208]].concat()).unwrap();
    let gpt = "kind = \"gpt\"\nvocabulary = 512\ncontext = 4\nlayers = 1\nheads = 1\nwidth = 4";
    let tokens = "kind = \"tokens\"\npath = \"ids.bin\"\ndtype = \"u16\"";
    let mlp = "kind = \"mlp\"\ninputs = 4\nhidden = [2]\nclasses = 26";
    let images = "kind = \"idx\"\nimages = \"images\"\nlabels = \"labels\"";
    for (model, data) in [(gpt, tokens), (mlp, images)] {
        let data = format!("[data]\n{data}\n[schedule]\npeak = 0.1\n");
        let described = format!(
            "steps = 1\n[model]\n{model}\n{data}[optimizer]\nkind = \"sgd\"\nmomentum = 0.0\nweight_decay = 0.0\n[batch]\nmicro_batch = 1\n"
        );
        let program = Job::parse("job", &described).unwrap().program(None).unwrap();
        fs::write(at("step.program"), encode(&program)).unwrap();
        fs::write(at("job.toml"), format!("steps = 1\nprogram = \"step.program\"\n{data}")).unwrap();
        for is_good in [true, false] {
            let (id, label) = if is_good { (511, 25) } else { (512, 26) };
            let id_at = |i: u16| if i == 2999 { id } else { i % 512 };
            let ids: Vec<u8> = (0..3000).flat_map(|i| id_at(i).to_le_bytes()).collect();
            let labels: Vec<u8> = (0..52).map(|i| if i == 51 { label } else { i % 26 }).collect();
            fs::write(at("ids.bin"), ids).unwrap();
            fs::write(at("labels"), [header(&[0x801, 52]), labels].concat()).unwrap();
            for args in
                [&["job", "check", &at("job.toml")][..], &["train", &at("job.toml"), "--out", &at("run")]]
            {
                let (code, _, error) = output(args);
                let wanted = match data.contains("ids.bin") {
                    true => ["ids.bin", "token 2999 ", "is 512", "below 512"],
                    false => ["labels", "sample 51 ", "has 26 ", "below 26"],
                };
                let is_refused = code == 4 && wanted.iter().all(|part| error.contains(part));
                assert!(if is_good { code == 0 } else { is_refused }, "{args:?}: {code} {error}");
            }
            assert_eq!(folder.path().join("run").exists(), is_good);
            let _ = fs::remove_dir_all(at("run"));
        }
    }
}

/// Token ids with a label, 16 or 32 bits wide: a program file is trained and audited on them, and their bound is checked.
#[test]
fn token_ids_with_a_label_train_a_program_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let node = |name: &str, operator: &str, inputs: &[&str]| serde_json::json!({ "name": name, "operator": operator, "inputs": inputs });
    let parameter = |name: &str, shape: &[u32]| serde_json::json!({ "name": name, "shape": shape, "init": { "normal": 0.5 } });
    let network = serde_json::json!({
        "format": "tiebreak network 1", "micro_batch": 2, "inputs": { "name": "ids", "shape": [2, 3], "below": 300 },
        "labels": { "shape": [2], "below": 4 }, "parameters": [parameter("table", &[300, 6]), parameter("head", &[4, 6])],
        "nodes": [node("table_rows", "embedding", &["table", "inputs"]), node("first", "first_position", &["table_rows"]), node("logits", "matmul", &["first", "head"])],
        "optimizer": { "kind": "sgd", "momentum": 0.5 },
    });
    fs::write(at("network.json"), network.to_string()).unwrap();
    let (code, _, error) = output(&["program", "compile", &at("network.json"), "--out", &at("step.program")]);
    assert_eq!(code, 0, "{error}");
    let npy = |descr: &str, shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
    };
    fs::write(at("y.npy"), npy("|u1", "(5,)", vec![0, 1, 2, 3, 0])).unwrap();
    for (dtype, size, last, good) in
        [("u16", 2, 299u32, true), ("u32", 4, 299, true), ("u16", 2, 300, false), ("u32", 4, 70_000, false)]
    {
        let ids = (0..15).map(|i| if i == 14 { last } else { 19 * i });
        let bytes = ids.flat_map(|id| id.to_le_bytes()[..size].to_vec()).collect();
        fs::write(at("x.npy"), npy(&format!("<u{size}"), "(5, 3)", bytes)).unwrap();
        let text = |more: &str| {
            format!(
                "steps = 2\nprogram = \"step.program\"\n[schedule]\npeak = 0.1\n[data]\nkind = \"arrays\"\ninputs = \"x.npy\"\nlabels = \"y.npy\"\ndtype = \"{dtype}\"\n{more}"
            )
        };
        fs::write(at("job.toml"), text("")).unwrap();
        let (code, _, error) = output(&["train", &at("job.toml"), "--out", &at(dtype)]);
        if good {
            assert_eq!(code, 0, "{error}");
            assert_eq!(output(&["audit", &at(dtype)]).0, 0);
        } else {
            let last = last.to_string();
            assert!(
                code == 4
                    && ["x.npy", "sample 4 ", &last, "below 300"].iter().all(|part| error.contains(part)),
                "{error}"
            );
        }
        let _ = fs::remove_dir_all(at(dtype));
        fs::write(at("job.toml"), text("augment = { flip = true }\n")).unwrap();
        let (code, _, error) = output(&["job", "check", &at("job.toml")]);
        assert!(code == 2 && error.contains("data.augment: images are cropped"), "{code} {error}");
    }
}

//! Released models that a command line names by the address of their folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::files;
use crate::common::served::{Lie, Manner, Served};
use crate::released::{GPT2_CONFIG, gpt2_tensors, stored};
use crate::{output, path};

/// What helps against a server that may hide so that a file is not there.
const HIDDEN: &str = "some servers answer so where there is no such file";

/// A released GPT-2 in two files with an index, in a folder.
fn released(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let tensors = gpt2_tensors();
    let (first, second) = tensors.split_at(7);
    let name = |at: usize| if at < 7 { "a.safetensors" } else { "b.safetensors" };
    let map: serde_json::Map<String, serde_json::Value> =
        tensors.iter().enumerate().map(|(at, tensor)| (tensor.0.clone(), name(at).into())).collect();
    let index = serde_json::json!({ "weight_map": map }).to_string();
    for (name, bytes) in [
        ("a.safetensors", stored(first)),
        ("b.safetensors", stored(second)),
        ("model.safetensors.index.json", index.into_bytes()),
        ("config.json", GPT2_CONFIG.into()),
        ("generation_config.json", "{}".into()),
        ("unrelated.bin", vec![7; 1 << 20]),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// A server of a folder's files below `m/`.
fn served(folder: &Path) -> Served {
    let name = |name: std::path::PathBuf| format!("m/{}", name.to_str().unwrap());
    Served::new(files(folder).into_iter().map(|(file, bytes)| (name(file), bytes)), Manner::default())
}

/// Answers, receipts and jobs are those of the same folder here, and only the files that are needed are fetched.
#[test]
fn a_model_in_several_files_is_read_at_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    released(Path::new(&at("m")));
    let server = served(Path::new(&at("m")));
    let url = format!("{}/m/", server.address);
    let (code, _, stderr) = output(&["import", &at("m"), "--output", &at("here")]);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = output(&["import", &url]);
    assert!(code == 2 && stderr.contains("name the folder with --output DIR"), "{code}: {stderr}");
    let (code, stdout, stderr) = output(&["import", &url, "--output", &at("there")]);
    assert_eq!(code, 0, "{stderr}");
    let root = url.trim_end_matches('/');
    assert!(stdout.contains(&format!(" --data-root {root}")), "{stdout}");
    let [here, there] =
        ["here", "there"].map(|name| fs::read_to_string(at(&format!("{name}/job.toml"))).unwrap());
    assert_eq!(here.replace("../m/", &format!("{root}/")), there);
    for name in ["config.json", "generation_config.json"] {
        assert_eq!(
            fs::read(at(&format!("there/{name}"))).unwrap(),
            fs::read(at(&format!("m/{name}"))).unwrap()
        );
    }
    let asked: BTreeSet<String> = server.sent().into_keys().collect();
    let needed = [
        "a.safetensors",
        "b.safetensors",
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
    ];
    assert_eq!(asked, needed.map(|name| format!("m/{name}")).into_iter().collect());

    let job = at("here/job.toml");
    let answered = |model: &str| {
        let args =
            ["generate", model, "--job", &job, "--ids", "--prompt", "3 1 4", "--length", "5", "--seed", "1"];
        output(&[&args[..], &["--engine", "cpu"]].concat())
    };
    let (due, found) = (answered(&at("m")), answered(&url));
    assert!(due.0 == 0 && due.1 == found.1, "{due:?}\n{found:?}");
    let (inputs, receipt) = (at("ids.npy"), at("receipt.json"));
    let bytes: Vec<u8> = (0..12u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&inputs, crate::common::npy("<u4", "(1, 12)", &bytes)).unwrap();
    let of = |model: &str| [model, "--job", &job, "--inputs", &inputs, "--engine", "cpu"].map(str::to_string);
    let predicted = |model: &str| {
        let args = of(model);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (code, stdout, stderr) = output(&[&["predict"][..], &args, &["--receipt", &receipt]].concat());
        assert_eq!(code, 0, "{stderr}");
        (stdout.replace(model, "MODEL"), fs::read_to_string(&receipt).unwrap())
    };
    assert!(predicted(&at("m")) == predicted(&url));
    let check = || {
        let args = of(&url);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (code, stdout, stderr) = output(&[&["receipt", "check", &receipt][..], &args].concat());
        (code, stdout + &stderr)
    };
    assert!(check().0 == 0, "{:?}", check());

    // A read that fails is tried again for eight seconds, so each lie has a server and a thread of its own.
    let lies = [
        ("m/model.safetensors.index.json", Lie::Zeros, 4, "index.json"),
        ("m/model.safetensors.index.json", Lie::Huge, 4, "index.json"),
        ("m/model.safetensors.index.json", Lie::Forbidden, 3, "status 403"),
        ("m/model.safetensors.index.json", Lie::Forbidden, 3, HIDDEN),
        ("m/a.safetensors", Lie::Zeros, 4, "a.safetensors"),
        ("m/b.safetensors", Lie::Huge, 3, "b.safetensors"),
        ("m/b.safetensors", Lie::Cut, 3, "b.safetensors"),
        ("m/b.safetensors", Lie::Redirects, 3, "redirect"),
        ("m/b.safetensors", Lie::Slow, 0, ""),
    ];
    let lies_to_import = [
        ("m/config.json", Lie::Zeros, "config.json"),
        ("m/config.json", Lie::Huge, "config.json"),
        ("m/config.json", Lie::Forbidden, HIDDEN),
        ("m/a.safetensors", Lie::Cut, "a.safetensors"),
    ];
    let liar = |file: &str, lie: Lie| {
        let server = served(Path::new(&at("m")));
        server.lie(file, lie);
        format!("{}/m/", server.address)
    };
    std::thread::scope(|scope| {
        for (file, lie, wanted, says) in lies {
            scope.spawn(move || {
                let (code, _, stderr) = answered(&liar(file, lie));
                assert!(code == wanted && stderr.contains(says), "{file} {lie:?}: {code}: {stderr}");
            });
        }
        for (number, (file, lie, says)) in lies_to_import.into_iter().enumerate() {
            scope.spawn(move || {
                let out = at(&format!("lied-{number}"));
                let (code, _, stderr) = output(&["import", &liar(file, lie), "--output", &out]);
                assert!(code >= 3 && stderr.contains(says), "{file} {lie:?}: {code}: {stderr}");
                assert!(!Path::new(&out).join("job.toml").exists());
            });
        }
    });
    // Other weights than those of the receipt are seen by its digests.
    server.lie("m/b.safetensors", Lie::Swaps(1));
    let (code, said) = check();
    assert!(code == 1 && said.contains("other parameters"), "{code}: {said}");
}

/// An index leads to files of its own folder alone, and names those that are not there.
#[test]
fn an_index_at_an_address_leads_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let (at, index) = (|name: &str| path(folder.path(), name), "model.safetensors.index.json");
    released(Path::new(&at("m")));
    let text = fs::read_to_string(at(&format!("m/{index}"))).unwrap();
    for (to, says) in [
        ("../b.safetensors", "is no name of a .safetensors file"),
        ("http://127.0.0.1:1/b.safetensors", "is no name of a .safetensors file"),
        ("c.safetensors", "c.safetensors; publish them too"),
    ] {
        fs::write(at(&format!("m/{index}")), text.replace("b.safetensors", to)).unwrap();
        let server = served(Path::new(&at("m")));
        let (code, _, stderr) = output(&["import", &format!("{}/m", server.address), "--output", &at("job")]);
        assert!(code == 4 && stderr.contains(says), "{to}: {code}: {stderr}");
    }
    fs::remove_file(at(&format!("m/{index}"))).unwrap();
    let server = served(Path::new(&at("m")));
    let (code, _, stderr) = output(&["import", &format!("{}/m", server.address), "--output", &at("job")]);
    assert!(code == 2 && stderr.contains("has neither model.safetensors nor"), "{code}: {stderr}");
}

/// A tokenizer beside the weights, one in another folder, and a single file: the tokens and the receipt are those of the same files here.
#[cfg(feature = "tokenizer")]
#[test]
fn a_tokenizer_is_read_at_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let run = crate::answers::trained(folder.path(), "learned", 256);
    let (code, _, stderr) = output(&["export", &run, "--format", "hf", "--output", &at("m")]);
    assert_eq!(code, 0, "{stderr}");
    crate::answers::tokenizer(Path::new(&at("gpt2")));
    for name in ["vocab.json", "merges.txt"] {
        fs::copy(at(&format!("gpt2/{name}")), at(&format!("m/{name}"))).unwrap();
    }
    let (code, _, stderr) = output(&["import", &at("m"), "--output", &at("job")]);
    assert_eq!(code, 0, "{stderr}");
    let vocabulary: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(at("m/vocab.json")).unwrap()).unwrap();
    let bytes = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    let one = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": ["h e"] },
    });
    fs::write(at("m/one.json"), one.to_string()).unwrap();
    let server = served(Path::new(&at("m")));
    let url = |name: &str| format!("{}/m{name}", server.address);
    let job = at("job/job.toml");
    let answered = |args: &[&str]| {
        let receipt = at("receipt.json");
        let asked =
            ["generate", "--prompt", "The ", "--length", "9", "--temperature", "0", "--receipt", &receipt];
        let (code, stdout, stderr) = output(&[&asked[..], args].concat());
        assert_eq!(code, 0, "{args:?}: {stderr}");
        (stdout, fs::read_to_string(receipt).unwrap())
    };
    for (here, there) in [
        (&[&at("m"), "--job", &job][..], &[&url(""), "--job", &job][..]),
        (&[&run, "--tokenizer", &at("m")], &[&run, "--tokenizer", &url("/")]),
        (&[&run, "--tokenizer", &at("m/one.json")], &[&run, "--tokenizer", &url("/one.json")]),
    ] {
        let (due, found) = (answered(here), answered(there));
        assert!(due.0.contains("hehe") && due == found, "{here:?}: {due:?}\n{found:?}");
    }
    let whole = fs::read(at("m/model.safetensors")).unwrap();
    let beside = ["vocab.json", "merges.txt"]
        .map(|name| (format!("m/{name}"), fs::read(at(&format!("m/{name}"))).unwrap()));
    let files = beside.into_iter().chain([("m/model.safetensors".to_string(), whole)]);
    let server = Served::new(files, Manner::default());
    let url = format!("{}/m/model.safetensors", server.address);
    assert!(answered(&[&url, "--job", &job]) == answered(&[&at("m"), "--job", &job]));
    for (lie, wanted) in [(Lie::Zeros, 4), (Lie::Huge, 4), (Lie::Forbidden, 3), (Lie::Slow, 0)] {
        server.lie("m/vocab.json", lie);
        let (code, _, stderr) = output(&["generate", &url, "--job", &job, "--length", "3", "--seed", "1"]);
        assert_eq!(code, wanted, "{lie:?}: {stderr}");
    }
}

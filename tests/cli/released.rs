//! Weights in the names and layouts of transformers: import, export, and refusals.

use std::fs;
use std::path::{Path, PathBuf};

use tiebreak_audit::checks;
use tiebreak_dispute::fact::{Fact, Wrong};
use tiebreak_dispute::verdict::{Ruling, Verdict};
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{checkpoint, initial};
use tiebreak_train::{Silent, train};

use crate::common::edit::{edit, edited};
use crate::common::{batch_norm_job, begin_run, key, trained};
use crate::output;

/// A tensor of a file: name, type, shape, bytes.
pub type Stored = (String, safetensors::Dtype, Vec<usize>, Vec<u8>);

/// A GPT-2 of one block as transformers stores it. Every element is another number.
pub fn gpt2_tensors() -> Vec<Stored> {
    let mut next = 0u16..;
    let shapes: [(&str, &[usize]); 16] = [
        ("wte.weight", &[128, 16]),
        ("wpe.weight", &[12, 16]),
        ("h.0.ln_1.weight", &[16]),
        ("h.0.ln_1.bias", &[16]),
        ("h.0.attn.c_attn.weight", &[16, 48]),
        ("h.0.attn.c_attn.bias", &[48]),
        ("h.0.attn.c_proj.weight", &[16, 16]),
        ("h.0.attn.c_proj.bias", &[16]),
        ("h.0.ln_2.weight", &[16]),
        ("h.0.ln_2.bias", &[16]),
        ("h.0.mlp.c_fc.weight", &[16, 64]),
        ("h.0.mlp.c_fc.bias", &[64]),
        ("h.0.mlp.c_proj.weight", &[64, 16]),
        ("h.0.mlp.c_proj.bias", &[16]),
        ("ln_f.weight", &[16]),
        ("ln_f.bias", &[16]),
    ];
    let stored = |(name, shape): (&str, &[usize])| {
        let values = next.by_ref().take(shape.iter().product());
        let bytes = values.flat_map(|n| (f32::from(n) / 4096.0).to_le_bytes()).collect();
        (format!("transformer.{name}"), safetensors::Dtype::F32, shape.to_vec(), bytes)
    };
    shapes.map(stored).to_vec()
}

/// The file that the safetensors library writes.
pub fn stored(tensors: &[Stored]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let metadata = [("format".to_string(), "pt".to_string())].into_iter().collect();
    safetensors::serialize(views, Some(metadata)).unwrap()
}

pub const GPT2_CONFIG: &str = r#"{ "model_type": "gpt2", "vocab_size": 128, "n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_inner": null,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1 }"#;

/// The exit code of a command, and its output as JSON.
pub fn command(arguments: &[&str]) -> (i32, String) {
    let (code, stdout, stderr) = output(&[arguments, &["--json"]].concat());
    (code, if code == 0 { stdout } else { stderr })
}

/// Writes a released folder and imports it: the job is changed to train one step on a text.
pub fn imported(folder: &Path, files: &[(&str, &[u8])]) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
    let job = folder.join("job.toml");
    let (code, said) = command(&["import", folder.to_str().unwrap()]);
    if code != 0 {
        assert!(!job.exists(), "{said}");
        return Err(said);
    }
    fs::write(folder.join("text.txt"), "a text of tokens. ".repeat(20)).unwrap();
    let tokens = "kind = \"tokens\"\npath = \"tokens.npy\"\ndtype = \"u16\"";
    edit(
        &job,
        &[
            ("steps = 100", "steps = 1"),
            ("micro_batches = 8", "micro_batches = 1"),
            (tokens, "kind = \"bytes\"\npath = \"text.txt\""),
        ],
    );
    Ok(job)
}

#[test]
fn released_weights_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tensors = gpt2_tensors();
    let file = stored(&tensors);
    let released = [("config.json", GPT2_CONFIG.as_bytes()), ("model.safetensors", &file)];
    let job = imported(&path("gpt2"), &released).unwrap();
    let run = trained(&job, &path("gpt2/run"), None);

    // Query, key and value are side by side in c_attn, transposed.
    let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
    let fused = tensors[4].3.as_chunks::<4>().0;
    for (part, name) in ["query", "key", "value"].into_iter().enumerate() {
        let name = format!("param/block0.{name}.weight");
        let at = run.program().state().iter().position(|tensor| tensor.name == name).unwrap();
        let elements = state[at].as_chunks::<4>().0.iter().enumerate();
        assert!({ elements }.all(|(i, x)| *x == fused[i % 16 * 48 + part * 16 + i / 16]), "{name}");
    }
    let text = |path: PathBuf| path.to_str().unwrap().to_string();
    let export = |step: &str, format: &str, out: &str| {
        command(&[
            "export",
            &text(path("gpt2/run")),
            "--step",
            step,
            "--format",
            format,
            "--output",
            &text(path(out)),
        ])
    };
    assert_eq!(export("0", "hf", "first").0, 0);
    assert!(fs::read(path("first/model.safetensors")).unwrap() == file);
    assert!(export("0", "hf", "first").1.contains("is there already"));
    assert!(export("7", "hf", "none").1.contains("no checkpoint of step 7; there are 0, 1"));

    // An exported model is imported as the same model, and the program's own names begin a run as well.
    assert_eq!(export("1", "hf", "second").0, 0);
    assert_eq!(command(&["import", &text(path("second"))]).0, 0);
    let model = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text[text.find("[model]").unwrap()..text.find("[data]").unwrap()].to_string()
    };
    assert_eq!(model(path("second/job.toml")), model(job.clone()));
    assert_eq!(export("1", "safetensors", "gpt2/plain").0, 0);
    let text = fs::read_to_string(&job).unwrap();
    let edits = [("names = \"hf\"", ""), ("model.safetensors", "plain/model.safetensors")];
    fs::write(path("gpt2/again.toml"), edited(&text, &edits)).unwrap();
    let again = begin_run(&Disk::default(), &path("gpt2/again.toml"), &path("gpt2/again")).unwrap();
    let last = checkpoint::read(&run.layout.checkpoint(1), &run.program().state()).unwrap();
    let begun = checkpoint::read(&again.layout.checkpoint(0), &run.program().state()).unwrap();
    let count = run.program().parameters.len();
    assert!(begun[..count] == last[..count] && last[..count] != state[..count]);

    // A state that the records do not commit is no model of the run.
    let mut bytes = fs::read(run.layout.checkpoint(1)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(run.layout.checkpoint(1), bytes).unwrap();
    let (code, said) = export("1", "hf", "forged");
    assert!(code == 4 && said.contains("the record of step 1 commits"), "{said}");
}

/// The element of a verdict is found in a fused and transposed tensor, also of a wrapped model.
#[test]
fn swapped_released_weights_convict() {
    ["", "_orig_mod.module."].into_iter().for_each(swapped_weights_convict);
}

fn swapped_weights_convict(prefix: &str) {
    let (mut tensors, folder) = (gpt2_tensors(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    tensors.iter_mut().for_each(|tensor| tensor.0 = format!("{prefix}{}", tensor.0));
    let released = [("config.json", GPT2_CONFIG.as_bytes()), ("model.safetensors", &stored(&tensors)[..])];
    let job = imported(&folder.join("gpt2"), &released).unwrap();
    let honest = begin_run(&Disk::default(), &job, &folder.join("honest")).unwrap();
    let public = folder.join("public.safetensors");
    fs::rename(folder.join("gpt2/model.safetensors"), &public).unwrap();
    tensors[4].3[4 * (5 * 48 + 16 + 7) + 1] ^= 1;
    fs::write(folder.join("gpt2/model.safetensors"), stored(&tensors)).unwrap();
    let swapped = begin_run(&Disk::default(), &job, &folder.join("swapped")).unwrap();
    let file = RunFile { origin: honest.file.origin.clone(), ..swapped.file.clone() };
    fs::write(swapped.layout.run_json(), file.text()).unwrap();
    let swapped = Run::open(&swapped.layout.root).unwrap();
    train(&swapped, &mut Cpu::new(1).unwrap(), Some(&key()), &mut Silent).unwrap();
    let opened = Run::open(&swapped.layout.root).unwrap();
    let mut found = checks::always(&opened, Some(&key().public())).unwrap();
    checks::weights(&swapped, &mut found, std::slice::from_ref(&public)).unwrap();
    let verdict = found.inconsistent.unwrap().verdict.unwrap();
    let outcome = Verdict::from_bytes(&verdict.to_bytes()).unwrap().check(Some(&key().public())).unwrap();
    let Ruling::Convicts(finding) = outcome else { panic!("{outcome:?}") };
    let Wrong(Fact::InitialElement { tensor, element, .. }) = &finding.what else {
        panic!("{:?}", finding.what)
    };
    assert_eq!((&**tensor, *element), ("param/block0.key.weight", 7 * 16 + 5));
}

#[test]
fn weights_in_several_files_and_other_layouts_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tensors, folder) = (gpt2_tensors(), folder.path());
    // The hub's form of gpt2: no prefix, masks, and here a tensor in bfloat16.
    tensors.iter_mut().for_each(|tensor| tensor.0 = tensor.0.replace("transformer.", ""));
    let halves: Vec<u16> = (0..12 * 16).map(|i| 0x3c00 + i).collect();
    tensors[1].1 = safetensors::Dtype::BF16;
    tensors[1].3 = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    tensors.push(("h.0.attn.bias".into(), safetensors::Dtype::BOOL, vec![1, 1, 12, 12], vec![1; 144]));
    let mut head = tensors[0].clone();
    head.0 = "lm_head.weight".into();
    tensors.push(head);
    let (first, second) = tensors.split_at(7);
    let map = |second: &str| {
        let name = |at: usize| if at < 7 { "a.safetensors" } else { second };
        let map: serde_json::Map<String, serde_json::Value> =
            tensors.iter().enumerate().map(|(at, tensor)| (tensor.0.clone(), name(at).into())).collect();
        serde_json::json!({ "metadata": { "total_size": 30016 }, "weight_map": map }).to_string()
    };
    let (first, second) = (stored(first), stored(second));
    let try_index = |name: &str, index: &str| {
        let index = ("model.safetensors.index.json", index.as_bytes());
        let config = ("config.json", GPT2_CONFIG.as_bytes());
        imported(&folder.join(name), &[config, ("a.safetensors", &first), ("b.safetensors", &second), index])
    };
    let job = try_index("shards", &map("b.safetensors")).unwrap();
    let run = begin_run(&Disk::default(), &job, &folder.join("run")).unwrap();
    let widened: Vec<u8> = halves.iter().flat_map(|&half| (u32::from(half) << 16).to_le_bytes()).collect();
    assert!(initial::state(&run).unwrap()[1] == widened);
    let moved = map("b.safetensors").replacen("\"b.safetensors\"", "\"a.safetensors\"", 1);
    let unlisted = map("b.safetensors").replace("ln_f.bias", "ln_f.bi");
    for (number, (index, wanted)) in [
        (map("../b.safetensors"), "is no name of a .safetensors file"),
        (map("/b.safetensors"), "is no name of a .safetensors file"),
        (map("c.safetensors"), "c.safetensors"),
        (map("b.bin"), "is no name of a .safetensors file"),
        (moved, "it does not say that"),
        (unlisted, "it does not say that ln_f.bias"),
        ("{}".into(), "missing field `weight_map`"),
        (r#"{"weight_map":{}}"#.into(), "it names 0 files"),
        (r#"{"weight_map":{"a":{"b":[]}}}"#.into(), "it is no index"),
    ]
    .into_iter()
    .enumerate()
    {
        let said = try_index(&format!("bad{number}"), &index).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

#[test]
fn released_folders_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut refused = |config: &str, file: &[u8], wanted: &str| {
        number += 1;
        let files = [("config.json", config.as_bytes()), ("model.safetensors", file)];
        let said = imported(&folder.path().join(number.to_string()), &files).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    };
    let good = gpt2_tensors();
    let file = stored(&good);
    let edited = |edit: &dyn Fn(&mut Vec<Stored>)| {
        let mut tensors = good.clone();
        edit(&mut tensors);
        stored(&tensors)
    };
    let named = |name: &str| (name.to_string(), safetensors::Dtype::F32, vec![1], vec![0; 4]);
    refused(GPT2_CONFIG, &file[..file.len() - 1], "do not fill the file");
    refused(GPT2_CONFIG, &file[..100], "its header is cut short");
    refused(GPT2_CONFIG, b"", "it is empty");
    refused(GPT2_CONFIG, &[0xff; 64], "at most 1048576");
    refused(GPT2_CONFIG, &edited(&|t| t.push(named("score.weight"))), "has no parameters score.weight");
    refused(GPT2_CONFIG, &edited(&|t| t.push(named("wpe.weight"))), "is there twice, once as wpe.weight");
    refused(GPT2_CONFIG, &edited(&|t| t.truncate(15)), "no file has the parameters transformer.ln_f.bias");
    let shape = "transformer.wpe.weight is F32 [16, 12], the program has F32 [12, 16]";
    refused(GPT2_CONFIG, &edited(&|t| t[1].2.reverse()), shape);
    let integers = |t: &mut Vec<Stored>| (t[2].1, t[2].2) = (safetensors::Dtype::I64, vec![8]);
    refused(GPT2_CONFIG, &edited(&integers), "transformer.h.0.ln_1.weight is I64 [8]");
    for (from, to, wanted) in [
        ("\"n_layer\": 1", "\"n_layer\": 4294967295", "layers: must be 1 to 1024"),
        ("\"n_layer\": 1", "\"n_layer\": -1", "invalid value"),
        ("\"n_layer\": 1", "\"n_layer\": 2", "no file has the parameters transformer.h.1."),
        ("\"n_head\": 2, ", "", "missing field `n_head`"),
        ("\"n_head\": 2", "\"n_head\": 3", "width: must be a multiple of heads (3)"),
        ("\"n_inner\": null", "\"n_inner\": 48", "n_inner is 48; this version computes 64 only"),
        ("gelu_new", "relu", "activation_function is"),
        ("\"attn_pdrop\": 0.1", "\"attn_pdrop\": 0.2", "make them equal"),
        ("1e-05", "0.0", "norm_epsilon: must be a finite number above 0"),
        ("1e-05", "1e-05, \"scale_attn_weights\": false", "scale_attn_weights is false"),
        ("gpt2", "t5", "model_type is"),
        ("{", "[", "it is no configuration"),
    ] {
        refused(&GPT2_CONFIG.replacen(from, to, 1), &file, wanted);
    }
}

/// PyTorch counts the batches of a normalisation: those of the steps that were trained.
#[test]
fn exported_batch_norms_count_their_batches() {
    let folder = tempfile::tempdir().unwrap();
    let job = batch_norm_job(folder.path(), "step", 2);
    edit(&job, &[("blocks = 1,", "blocks = 1, order = \"post\",")]);
    trained(&job, &folder.path().join("run"), None);
    let run = folder.path().join("run").display().to_string();
    for step in ["0", "3"] {
        let out = folder.path().join(step);
        let out = out.to_str().unwrap();
        let (code, said) = command(&["export", &run, "--step", step, "--format", "hf", "--output", out]);
        assert_eq!(code, 0, "{said}");
        let bytes = fs::read(Path::new(out).join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let counters: Vec<i64> = file
            .iter()
            .filter(|(name, _)| name.ends_with("num_batches_tracked"))
            .map(|(_, tensor)| i64::from_le_bytes(tensor.data().try_into().unwrap()))
            .collect();
        assert!(!counters.is_empty() && counters.iter().all(|n| n.to_string() == step), "{counters:?}");
    }
}

/// The files that `generate` of transformers needs pass import, run and export unchanged: a list of names, and nothing else of
/// the folder.
#[test]
fn what_makes_a_model_usable_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_string();
    // As `save_pretrained` writes it: sorted keys, two blanks.
    let config = serde_json::from_str::<serde_json::Value>(GPT2_CONFIG).unwrap();
    let mut config = config.as_object().unwrap().clone();
    let more = [("bos_token_id", 1.into()), ("eos_token_id", [2, 5].into()), ("pad_token_id", 3.into())];
    config.extend(more.map(|(key, value): (&str, serde_json::Value)| (key.to_string(), value)));
    config.insert("architectures".into(), ["GPT2LMHeadModel"].into());
    config.insert(
        "task_specific_params".into(),
        serde_json::json!({ "text-generation": { "max_length": 50 } }),
    );
    let config = serde_json::to_string_pretty(&config).unwrap() + "\n";
    let file = stored(&gpt2_tensors());
    let others: [(&str, &[u8]); 6] = [
        ("generation_config.json", b"{ \"eos_token_id\" : [2, 5], \"top_k\": 7 }"),
        ("tokenizer.json", b"{\"not\": \"looked at\"}"),
        ("tokenizer_config.json", b"{ \"eos_token\": \"<end>\" }\r\n"),
        ("vocab.json", b"{}"),
        ("merges.txt", b"#version: 0.2\nh e"),
        ("chat_template.jinja", b"{{ messages }}\n\n"),
    ];
    let own: [(&str, &[u8]); 4] = [
        ("config.json", config.as_bytes()),
        ("model.safetensors", &file),
        ("README.md", b"not carried"),
        ("modeling_gpt2.py", b"import os"),
    ];
    let job = imported(&path("gpt2"), &[&own[..], &others].concat()).unwrap();
    let export = |run: &str, out: &str| {
        let (code, said) = command(&["export", &text(run), "--output", &text(out)]);
        assert_eq!(code, 0, "{said}");
        let mut names: Vec<String> = fs::read_dir(path(out))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let check = output(&["job", "check", job.to_str().unwrap()]);
    assert!(
        check.2.contains("the run will hold a copy of") && check.2.contains("tokenizer.json"),
        "{}",
        check.2
    );
    let run = trained(&job, &path("run"), None);
    assert_eq!(run.unexpected_files().unwrap(), [""; 0]);
    let expected = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    ];
    assert_eq!(export("run", "out"), expected);
    for (name, bytes) in others.iter().chain([&("config.json", config.as_bytes())]) {
        assert!(fs::read(path("out").join(name)).unwrap() == *bytes, "{name}");
    }
    let (code, said) = command(&["export", &text("run"), "--output", &text("out")]);
    assert!(code == 2 && said.contains("is there already"), "{said}");

    // The companions decide nothing that a run computes: the same job without them is the same computation, of the same state.
    let bare = imported(&path("bare"), &own[..2]).unwrap();
    let other = trained(&bare, &path("bare/run"), None);
    assert_eq!(run.computation.id, other.computation.id);
    let model = |run: &Run| fs::read(run.layout.model()).unwrap();
    assert!(model(&run) == model(&other));
    assert_eq!(export("bare/run", "bare/out"), ["config.json", "model.safetensors"]);

    // A job in another folder gets them from the import, and a run that continues from a run gets them from that run.
    let (code, said) = command(&["import", &text("gpt2"), "--output", &text("elsewhere")]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("\"tokenizer.json\""), "{said}");
    assert!(fs::read(path("elsewhere/chat_template.jinja")).unwrap() == others[5].1);
    assert!(!path("elsewhere/README.md").exists());
    let next = fs::read_to_string(&job).unwrap();
    let from = next.find("[init]").unwrap()..next.find("[model]").unwrap();
    fs::write(
        path("next.toml"),
        edited(&next, &[(&next[from], "[init]\nrun = \"run\"\n\n"), ("text.txt", "gpt2/text.txt")]),
    )
    .unwrap();
    trained(&path("next.toml"), &path("next"), None);
    assert_eq!(export("next", "next-out"), expected);

    // A configuration of another kind of model beside a job is none of its files; a link that leaves the folder is refused.
    fs::write(path("bare/config.json"), "{ \"model_type\": \"bert\" }").unwrap();
    let again = trained(&bare, &path("bare/again"), None);
    assert!(!again.layout.companions().exists());
    #[cfg(unix)]
    {
        fs::write(path("secret"), "mine").unwrap();
        std::os::unix::fs::symlink(path("secret"), path("bare/vocab.json")).unwrap();
        let error = begin_run(&Disk::default(), &bare, &path("bare/linked")).err().unwrap().to_string();
        assert!(error.contains("vocab.json") && error.contains("--data-root"), "{error}");
    }
}

/// A model that was trained from its seed has the tokenizer that was put beside its tokens.
#[test]
fn a_new_model_has_the_tokenizer_of_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (64,), }";
    let tokens =
        [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &[7, 0].repeat(64)];
    fs::write(path("t.npy"), tokens.concat()).unwrap();
    fs::create_dir(path("t.npy.tokenizer")).unwrap();
    fs::write(path("t.npy.tokenizer/tokenizer.json"), "{}").unwrap();
    fs::write(path("t.npy.tokenizer/generation_config.json"), "{ \"eos_token_id\": 9, \"bos_token_id\": 9 }")
        .unwrap();
    let job = "steps = 1\nmodel = { kind = \"gpt\", vocabulary = 300, context = 4, layers = 1, heads = 1, width = 8 }\n\
        data = { kind = \"tokens\", path = \"t.npy\", dtype = \"u16\" }\nbatch = { micro_batch = 1, micro_batches = 1 }\n\
        optimizer = { kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }\nschedule = { peak = 1e-2 }\n";
    fs::write(path("job.toml"), job).unwrap();
    trained(&path("job.toml"), &path("run"), None);
    let text = |name: &str| path(name).to_str().unwrap().to_string();
    let (code, said) = command(&["export", &text("run"), "--output", &text("out")]);
    assert!(code == 0 && said.contains("tokenizer.json"), "{said}");
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(path("out/config.json")).unwrap()).unwrap();
    assert_eq!((&config["eos_token_id"], &config["bos_token_id"]), (&9.into(), &9.into()));
}

//! Decoders of Llama's kind in the names and layouts of transformers, and adapters in PEFT's: import, export, and refusals.

use std::fs;
use std::path::{Path, PathBuf};

use tiebreak_run::run::checkpoint;

use crate::common::edit::{edit, edited};
use crate::common::trained;
use crate::released::{GPT2_CONFIG, Stored, command, gpt2_tensors, imported, stored};

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "head_dim": 4,
  "eos_token_id": [2, 3], "hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 10, "max_position_embeddings": 12,
  "mlp_bias": false, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "float32", "use_cache": true, "vocab_size": 128
}
"#;

/// The tensors that a decoder of two blocks has beside Llama's own, and the channels of a head.
#[derive(Clone, Copy)]
struct Form {
    tied: bool,
    channels: usize,
    /// Layers with biases.
    biases: &'static [&'static str],
    has_head_norms: bool,
}

const LLAMA: Form = Form { tied: false, channels: 4, biases: &[], has_head_norms: false };
const TIED: Form = Form { tied: true, ..LLAMA };
const QKV: &[&str] = &["q_proj", "k_proj", "v_proj"];
const ALL: &[&str] = &["q_proj", "k_proj", "v_proj", "o_proj"];

/// A decoder of two blocks as its class of transformers stores it. Every element is another number.
fn tensors(form: Form) -> Vec<Stored> {
    let Form { tied, channels, biases, has_head_norms } = form;
    let block = [
        ("self_attn", "q_proj", vec![4 * channels, 16]),
        ("self_attn", "k_proj", vec![2 * channels, 16]),
        ("self_attn", "v_proj", vec![2 * channels, 16]),
        ("self_attn", "o_proj", vec![16, 4 * channels]),
        ("mlp", "gate_proj", vec![10, 16]),
        ("mlp", "up_proj", vec![10, 16]),
        ("mlp", "down_proj", vec![16, 10]),
    ];
    let mut shapes = vec![("model.embed_tokens.weight".to_string(), vec![128, 16])];
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            shapes.push((name(&format!("{norm}.weight")), vec![16]));
        }
        for norm in ["q_norm", "k_norm"].iter().filter(|_| has_head_norms) {
            shapes.push((name(&format!("self_attn.{norm}.weight")), vec![channels]));
        }
        for (module, part, shape) in &block {
            shapes.push((name(&format!("{module}.{part}.weight")), shape.clone()));
            if biases.contains(part) {
                shapes.push((name(&format!("{module}.{part}.bias")), shape[..1].to_vec()));
            }
        }
    }
    shapes.push(("model.norm.weight".into(), vec![16]));
    if !tied {
        shapes.push(("lm_head.weight".into(), vec![128, 16]));
    }
    let mut next = 0u16..;
    let mut stored = |(name, shape): (String, Vec<usize>)| {
        let values = next.by_ref().take(shape.iter().product());
        let bytes = values.flat_map(|n| (f32::from(n) / 8192.0).to_le_bytes()).collect();
        (name, safetensors::Dtype::F32, shape, bytes)
    };
    shapes.into_iter().map(&mut stored).collect()
}

/// The configuration with parts of it replaced.
fn config(changes: &[(&str, &str)]) -> String {
    edited(CONFIG, changes)
}

#[test]
fn decoders_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let tie = ("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    let qwen2 = [("\"llama\"", "\"qwen2\""), ("LlamaF", "Qwen2F"), ("\"attention_bias\": false, ", "")];
    let qwen2 = [
        &qwen2[..],
        &[(
            "\"mlp_bias\": false",
            "\"use_sliding_window\": false, \"sliding_window\": 4, \"max_window_layers\": 1",
        )],
    ];
    let windows = ("\"use_sliding_window\": false", "\"use_sliding_window\": true");
    let qwen3 = [
        ("\"llama\"", "\"qwen3\""),
        ("LlamaF", "Qwen3F"),
        ("\"head_dim\": 4", "\"head_dim\": 6"),
        ("\"mlp_bias\": false", "\"layer_types\": [\"full_attention\", \"full_attention\"]"),
    ];
    let scaled = "\"rope_scaling\": {\"factor\": 8.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, \"original_max_position_embeddings\": 6, \"rope_type\": \"llama3\"}";
    let scaling = ("\"rope_scaling\": null", scaled);
    let wide = ("\"head_dim\": 4", "\"head_dim\": 10");
    let biased = ("\"attention_bias\": false", "\"attention_bias\": true");
    let mistral = [
        ("\"llama\"", "\"mistral\""),
        ("LlamaF", "MistralF"),
        ("\"mlp_bias\": false", "\"sliding_window\": null"),
    ];
    let version_5 = [(
        "\"rope_scaling\": null, \"rope_theta\": 500000.0",
        "\"rope_parameters\": {\"factor\": 2.5, \"rope_theta\": 500000.0, \"rope_type\": \"linear\"}",
    )];
    let mistral_wide = config(&[&mistral[..], &[wide]].concat());
    let qwen3_biased = config(&[&qwen3[..], &[biased]].concat());
    let qwen2_windows = edited(&config(&qwen2.concat()), &[windows]);
    let mistral_windows = edited(&config(&mistral), &[("w\": null", "w\": 4")]);
    let head_norms = Form { channels: 6, has_head_norms: true, ..LLAMA };
    for (name, config, form, lines) in [
        ("llama", config(&[]), LLAMA, ""),
        ("tied", config(&[tie]), TIED, "tied = true"),
        ("llama-3", config(&[scaling, tie]), TIED, "rope_original_context = 6"),
        ("mistral", config(&mistral), LLAMA, ""),
        ("mistral-wide", mistral_wide, Form { channels: 10, ..LLAMA }, "head_width = 10"),
        ("version-5", config(&version_5), LLAMA, "rope_factor = 2.5"),
        ("biased", config(&[biased]), Form { biases: ALL, ..LLAMA }, "out_bias = true"),
        ("qwen2", config(&qwen2.concat()), Form { biases: QKV, ..LLAMA }, "qkv_bias = true"),
        ("qwen2-windows", qwen2_windows, Form { biases: QKV, ..LLAMA }, "full_layers = [0]"),
        ("mistral-windows", mistral_windows, LLAMA, "sliding_window = 4"),
        ("qwen3", config(&qwen3), head_norms, "qk_norm = true"),
        ("qwen3-biased", qwen3_biased, Form { biases: ALL, ..head_norms }, "out_bias = true"),
    ] {
        let path = |part: &str| folder.path().join(name).join(part);
        let text = |part: &str| path(part).to_str().unwrap().to_string();
        let tensors = tensors(form);
        let file = stored(&tensors);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
        let job = imported(&path(""), &files).unwrap();
        let said = fs::read_to_string(&job).unwrap();
        for line in
            ["kind = \"llama\"", "rope_theta = 500000.0", "norm_epsilon = 1e-6", "kv_heads = 2", lines]
        {
            assert!(said.contains(line), "{line}: {said}");
        }
        assert!(!said.contains("prefix"), "{said}");
        let run = trained(&job, &path("run"), None);
        // Layouts are the same on both sides.
        let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
        let at = run.program().state().iter().position(|t| t.name == "param/block1.key.weight").unwrap();
        let theirs = tensors.iter().find(|(name, ..)| name == "model.layers.1.self_attn.k_proj.weight");
        assert!(state[at] == theirs.unwrap().3);
        let export = |step: &str, out: &str| {
            let run = text("run");
            command(&["export", &run, "--step", step, "--output", &text(out)])
        };
        assert_eq!(export("0", "first").0, 0);
        assert!(fs::read(path("first/model.safetensors")).unwrap() == file);
        assert_eq!(fs::read_to_string(path("first/config.json")).unwrap(), config);
        assert_eq!(export("1", "second").0, 0);
        assert!(fs::read(path("second/model.safetensors")).unwrap() != file);
        assert_eq!(command(&["import", &text("second")]).0, 0);
    }
}

/// Files of the model without its head, frequencies that old files hold, and a head beside tied weights.
#[test]
fn other_names_are_read_and_copies_compared() {
    let folder = tempfile::tempdir().unwrap();
    let tied = CONFIG.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    let import = |name: &str, tensors: &[Stored]| {
        let files = [("config.json", tied.as_bytes()), ("model.safetensors", &stored(tensors)[..])];
        imported(&folder.path().join(name), &files)
    };
    let mut bare = tensors(TIED);
    bare.iter_mut().for_each(|tensor| tensor.0 = tensor.0.replace("model.", ""));
    bare.push((
        "layers.1.self_attn.rotary_emb.inv_freq".into(),
        safetensors::Dtype::F32,
        vec![2],
        vec![0; 8],
    ));
    import("bare", &bare).unwrap();
    let mut wrapped = tensors(TIED);
    wrapped.iter_mut().for_each(|tensor| tensor.0 = format!("_orig_mod.{}", tensor.0));
    let job = import("wrapped", &wrapped).unwrap();
    assert!(fs::read_to_string(job).unwrap().contains("prefix = \"_orig_mod.\""));
    let mut copied = tensors(TIED);
    let table = copied[0].clone();
    copied.push(("lm_head.weight".into(), table.1, table.2, table.3));
    import("copied", &copied).unwrap();
    copied.last_mut().unwrap().3[400] ^= 1;
    let said = import("other", &copied).unwrap_err();
    assert!(said.contains("lm_head.weight"), "{said}");
}

#[test]
fn what_is_not_computed_is_refused_by_key_and_value() {
    let folder = tempfile::tempdir().unwrap();
    let file = stored(&tensors(LLAMA));
    let mut number = 0;
    let mut refused = |change: (&str, &str), wanted: &str| {
        assert!(CONFIG.contains(change.0), "{}", change.0);
        number += 1;
        let config = CONFIG.replacen(change.0, change.1, 1);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
        let said = imported(&folder.path().join(number.to_string()), &files).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    };
    let scaling = |keys: &'static str| ("\"rope_scaling\": null", keys);
    for (change, wanted) in [
        (("silu", "gelu"), r#"hidden_act is \"gelu\"; this version computes \"silu\" only"#),
        // The files have no such tensors.
        (("\"attention_bias\": false", "\"attention_bias\": true"), "q_proj.bias"),
        (("\"mlp_bias\": false", "\"mlp_bias\": true"), "gate_proj.bias"),
        (("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1"), "attention_dropout is 0.1"),
        (
            scaling(r#""rope_scaling": {"rope_type": "yarn", "factor": 8.0}"#),
            r#"rope_scaling.rope_type is \"yarn\"; this version computes \"default\", \"linear\" and"#,
        ),
        (
            scaling(r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0}"#),
            "rope_scaling.low_freq_factor is missing",
        ),
        (scaling(r#""rope_scaling": {"type": "linear"}"#), "rope_scaling.factor is missing"),
        (scaling(r#""rope_scaling": {"type": "linear", "factor": 0.5}"#), "the model's rope_factor: must be"),
        (
            scaling(
                r#""rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 3, "high_freq_factor": 3.5, "original_max_position_embeddings": 9}"#,
            ),
            "the model's rope_high_freq_factor: must be at least 1 more",
        ),
        (
            ("\"rope_scaling\": null", "\"rope_scaling\": {\"factor\": 2}"),
            "rope_scaling.factor is 2; this version does not know",
        ),
        (("\"rope_scaling\": null", "\"layer_types\": [\"sliding_attention\"]"), "layer_types is"),
        (
            ("\"rope_scaling\": null", "\"quantization_config\": {}"),
            "quantization_config is {}; this version does not know",
        ),
        (("\"head_dim\": 4", "\"head_dim\": 8"), "q_proj.weight is F32"),
        (("\"head_dim\": 4", "\"head_dim\": 5"), "the model's head_width: gives each head 5 channels"),
        (
            ("\"head_dim\": 4", "\"sliding_window\": 11"),
            "sliding_window is 11; a Llama has no window: null is",
        ),
        (("llama\"", "gemma3\""), r#"model_type is \"gemma3\""#),
        (("llama\"", "qwen2\""), "q_proj.bias"),
        (("\"hidden_size\": 16", "\"hidden_size\": -16"), "hidden_size is -16; a number is wanted"),
        (("\"hidden_size\": 16, ", ""), "hidden_size is missing"),
        (("\"head_dim\": 4", "\"head_dim\": \"4\""), "head_dim is"),
        (
            ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
            "the model's kv_heads: must divide heads (4)",
        ),
        (("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"), "k_proj"),
        (("\"rope_theta\": 500000.0", "\"rope_theta\": 0.5"), "the model's rope_theta"),
        (
            ("\"max_position_embeddings\": 12", "\"max_position_embeddings\": 131072"),
            "give fewer positions by --context N",
        ),
        (("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 1"), "tie_word_embeddings is 1"),
    ] {
        refused(change, wanted);
    }
}

/// A folder whose weights lie in two files with an index, in 16 bits: what `save_pretrained` makes of a larger model.
#[test]
fn shards_are_read_by_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let (upper, bits) = (|x: f32| (x.to_bits() >> 16) as u16, |x: f32| half::f16::from_f32(x).to_bits());
    let (mut first, mut second) = (tensors(TIED), Vec::new());
    for (number, (_, dtype, _, bytes)) in first.iter_mut().enumerate() {
        let numbers = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
        let is_bf16 = number % 2 == 0;
        *dtype = if is_bf16 { safetensors::Dtype::BF16 } else { safetensors::Dtype::F16 };
        *bytes = numbers.flat_map(|x| if is_bf16 { upper(x) } else { bits(x) }.to_le_bytes()).collect();
    }
    while second.len() < 9 {
        second.push(first.pop().unwrap());
    }
    let name = |number: usize| format!("model-0000{number}-of-00002.safetensors");
    let index = |change: &dyn Fn(&mut serde_json::Value)| {
        let all = first.iter().map(|tensor| (tensor, 1)).chain(second.iter().map(|tensor| (tensor, 2)));
        let map: serde_json::Map<_, _> =
            all.clone().map(|(tensor, number)| (tensor.0.clone(), name(number).into())).collect();
        let total: usize = all.map(|(tensor, _)| tensor.3.len()).sum();
        let mut index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
        change(&mut index);
        index.to_string()
    };
    let config = config(&[("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true")]);
    let import = |place: &str, index: &str| {
        let path = folder.path().join(place);
        let files = [
            ("config.json", config.as_bytes()),
            (&name(1), &stored(&first)),
            (&name(2), &stored(&second)),
            ("model.safetensors.index.json", index.as_bytes()),
        ];
        imported(&path, &files)
    };
    let job = import("right", &index(&|_| ())).unwrap();
    assert!(fs::read_to_string(&job).unwrap().contains(&format!(
        "weights = [\"{}\",\"{}\"]",
        name(1),
        name(2)
    )));
    let run = trained(&job, &folder.path().join("run"), None);
    let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
    let at = |name: &str| run.program().state().iter().position(|tensor| tensor.name == name).unwrap();
    let [embedding, norm] = ["param/token_embedding", "param/final_norm.gain"].map(|name| &state[at(name)]);
    let widened: Vec<u8> = first[0].3.as_chunks::<2>().0.iter().flat_map(|x| [0, 0, x[0], x[1]]).collect();
    assert!(*embedding == widened);
    let (_, dtype, _, bytes) = &second[0];
    assert_eq!(*dtype, safetensors::Dtype::F16);
    let widen = |x: &[u8; 2]| half::f16::from_le_bytes(*x).to_f32().to_le_bytes();
    assert!(*norm == bytes.as_chunks::<2>().0.iter().flat_map(widen).collect::<Vec<u8>>());
    // An export is one file of F32, which is imported as the same weights.
    let [from, to] = ["run", "out"].map(|name| folder.path().join(name).to_str().unwrap().to_string());
    assert_eq!(command(&["export", &from, "--step", "0", "--output", &to]).0, 0);
    let one = fs::read(folder.path().join("out/model.safetensors")).unwrap();
    let one = safetensors::SafeTensors::deserialize(&one).unwrap();
    assert!(one.tensor("model.embed_tokens.weight").unwrap().data() == widened);
    assert!(!folder.path().join("out/model.safetensors.index.json").exists());

    let tensor = first[3].0.as_str();
    let refused = |place: &str, wanted: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let said = import(place, &index(change)).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    };
    let set = |index: &mut serde_json::Value, name: &str, file: &str| index["weight_map"][name] = file.into();
    refused("elsewhere", &format!("it does not say that {tensor} is in"), &|index| {
        set(index, tensor, &name(2))
    });
    refused("missing", &format!("it does not say that {tensor} is in"), &|index| {
        index["weight_map"].as_object_mut().unwrap().remove(tensor);
    });
    refused("more", "it lists 21 tensors, the files hold 20", &|index| set(index, "more", &name(1)));
    refused("outside", "is no name of a .safetensors file in the same folder", &|index| {
        set(index, tensor, "../model.safetensors");
    });
    refused("absent", "these of the 3 files that it names are not in the folder: x.safetensors", &|index| {
        set(index, tensor, "x.safetensors");
    });
    refused("total", "metadata.total_size is 7, the tensors have", &|index| {
        index["metadata"]["total_size"] = 7.into();
    });
    refused("list", "it is no index of weights", &|index| *index = serde_json::json!({ "weight_map": [] }));
    refused("none", "it names 0 files", &|index| index["weight_map"] = serde_json::json!({}));
    let twice = stored(&[&first[..], &second[..1]].concat());
    fs::write(folder.path().join("total").join(name(1)), twice).unwrap();
    let (code, said) = command(&["import", folder.path().join("total").to_str().unwrap()]);
    assert!(code != 0 && said.contains("is there twice"), "{said}");
}

/// Rotary positions have no table, so a job may have fewer of them than the model was made for; an export says the model's own.
#[test]
fn a_job_may_have_fewer_positions() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let long = config(&[
        ("\"max_position_embeddings\": 12", "\"max_position_embeddings\": 131072"),
        ("\"mlp_bias\": false", "\"sliding_window\": 9"),
        ("\"llama\"", "\"mistral\""),
        ("LlamaF", "MistralF"),
    ]);
    fs::write(folder.path().join("config.json"), &long).unwrap();
    fs::write(folder.path().join("model.safetensors"), stored(&tensors(LLAMA))).unwrap();
    fs::write(folder.path().join("text.txt"), "a text of tokens. ".repeat(20)).unwrap();
    let import = |context: &str| command(&["import", &path(""), "--context", context]);
    assert_eq!(import("8").0, 0);
    let job = folder.path().join("job.toml");
    let tokens = "kind = \"tokens\"\npath = \"tokens.npy\"\ndtype = \"u16\"";
    let bytes = "kind = \"bytes\"\npath = \"text.txt\"";
    edit(&job, &[("steps = 100", "steps = 1"), ("micro_batches = 8", "micro_batches = 1"), (tokens, bytes)]);
    let said = fs::read_to_string(&job).unwrap();
    assert!(said.contains("context = 8\n") && !said.contains("sliding_window"), "{said}");
    trained(&job, &folder.path().join("run"), None);
    assert_eq!(command(&["export", &path("run"), "--step", "0", "--output", &path("out")]).0, 0);
    let own = |name: &str| fs::read(folder.path().join(name)).unwrap();
    for name in ["config.json", "model.safetensors"] {
        assert!(own(&format!("out/{name}")) == own(name), "{name}");
    }
}

/// Tensors of these names and shapes. Every element is another number.
fn numbered(shapes: &[(String, [usize; 2])]) -> Vec<Stored> {
    let mut next = 1u16..;
    let mut stored = |(name, shape): &(String, [usize; 2])| {
        let values = next.by_ref().take(shape.iter().product());
        let bytes = values.flat_map(|n| ((f32::from(n) - 150.0) / 997.0).to_le_bytes()).collect();
        (name.clone(), safetensors::Dtype::F32, shape.to_vec(), bytes)
    };
    shapes.iter().map(&mut stored).collect()
}

/// The numbers of a tensor, in a file or as they are stored.
fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<4>().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect()
}

/// W + (B A) * scaling, of matrices [outputs, inputs], row by row; rounded once.
fn sum_of(w: &[u8], a: &[u8], b: &[u8], [inputs, rank]: [usize; 2], scaling: f64) -> Vec<u8> {
    let [w, a, b] = [w, a, b].map(numbers);
    let element = |(at, w): (usize, &f64)| {
        let (output, input) = (at / inputs, at % inputs);
        let mut sum = 0.0;
        (0..rank).for_each(|k| sum += b[output * rank + k] * a[k * inputs + input]);
        ((w + sum * scaling) as f32).to_le_bytes()
    };
    w.iter().enumerate().flat_map(element).collect()
}

const PEFT: &str = r#"{"alpha_pattern": {}, "base_model_name_or_path": "somewhere", "bias": "none", "fan_in_fan_out": false,
    "inference_mode": true, "init_lora_weights": true, "lora_alpha": 3, "lora_dropout": 0.25, "peft_type": "LORA", "r": 2,
    "rank_pattern": {}, "target_modules": ["TARGET", "down_proj"], "task_type": "CAUSAL_LM", "use_dora": false}"#;

/// A model's folder and one of adapters, as libraries write them; the job of both trains four steps.
fn adapted(folder: &Path, base: &[(&str, &[u8])], targets: &str, adapters: &[Stored]) -> PathBuf {
    imported(&folder.join("base"), base).unwrap();
    fs::create_dir(folder.join("adapters")).unwrap();
    let config = PEFT.replace(r#""TARGET", "down_proj""#, targets);
    fs::write(folder.join("adapters/adapter_config.json"), config).unwrap();
    fs::write(folder.join("adapters/adapter_model.safetensors"), stored(adapters)).unwrap();
    let text = |part: &str| folder.join(part).to_str().unwrap().to_string();
    let import = ["import", &text("base"), "--adapter", &text("adapters"), "--output", &text("")];
    let (code, said) = command(&import);
    assert_eq!(code, 0, "{said}");
    fs::write(folder.join("text.txt"), "a text of tokens. ".repeat(20)).unwrap();
    let tokens = "kind = \"tokens\"\npath = \"tokens.npy\"\ndtype = \"u16\"";
    edit(
        folder.join("job.toml"),
        &[
            ("steps = 100", "steps = 4"),
            ("micro_batches = 8", "micro_batches = 1"),
            ("warmup = 10", "warmup = 1"),
            (tokens, "kind = \"bytes\"\npath = \"text.txt\"\n\n[checkpoint]\nevery = 2"),
        ],
    );
    folder.join("job.toml")
}

#[test]
fn adapters_are_trained_beside_weights_that_are_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |part: &str| folder.path().join(part);
    let text = |part: &str| path(part).to_str().unwrap().to_string();
    let of_block = |block: usize| {
        let name = |module: &str, part: &str| {
            format!("base_model.model.model.layers.{block}.{module}.lora_{part}.weight")
        };
        let (q, down) = ("self_attn.q_proj", "mlp.down_proj");
        [
            (name(down, "A"), [2, 10]),
            (name(down, "B"), [16, 2]),
            (name(q, "A"), [2, 16]),
            (name(q, "B"), [16, 2]),
        ]
    };
    let adapters = numbered(&[of_block(0), of_block(1)].concat());
    let (base, own) = (tensors(LLAMA), stored(&adapters));
    let model = stored(&base);
    let files = [("config.json", CONFIG.as_bytes()), ("model.safetensors", &model[..])];
    let job = adapted(folder.path(), &files, r#""q_proj", "down_proj""#, &adapters);
    let run = trained(&job, &path("run"), None);

    // The frozen weights are in checkpoint 0 alone: the others have the adapters and two moments of each.
    let bytes = |name: &str| fs::metadata(path("run").join(name)).unwrap().len() as usize;
    let held: usize = adapters.iter().map(|tensor| tensor.3.len()).sum();
    assert!(bytes("checkpoints/step-000000000.safetensors") > model.len() + 3 * held);
    for step in [2, 4] {
        let written = bytes(&format!("checkpoints/step-{step:09}.safetensors"));
        assert!((3 * held..3 * held + 4096).contains(&written), "{written} bytes for {held}");
        assert!(written < model.len() / 2);
    }
    let slots = run.program().state().into_iter().filter(|tensor| !tensor.name.starts_with("param/"));
    assert!(slots.clone().all(|tensor| tensor.name.contains(".lora_")) && slots.count() == 2 * 8);

    // Adapters come out as they went in, and are others after training.
    let export = |more: &[&str]| command(&[&["export", &text("run")], more].concat());
    assert_eq!(export(&["--step", "0", "--output", &text("first")]).0, 0);
    assert!(fs::read(path("first/adapter_model.safetensors")).unwrap() == own);
    assert!(!path("first/model.safetensors").exists());
    let config = fs::read_to_string(path("first/adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(
        (&config["r"], &config["lora_alpha"], &config["lora_dropout"]),
        (&2.into(), &3.0.into(), &0.25.into())
    );
    assert_eq!(config["target_modules"], serde_json::json!(["mlp.down_proj", "self_attn.q_proj"]));
    assert_eq!(export(&["--step", "2", "--output", &text("second")]).0, 0);
    let trained_adapters = fs::read(path("second/adapter_model.safetensors")).unwrap();
    assert!(trained_adapters.len() == own.len() && trained_adapters != own);
    let again = ["import", &text("base"), "--adapter", &text("second"), "--output", &text("again")];
    assert_eq!(command(&again).0, 0);

    // Merged weights have the adapters in them, and the configuration is the model's.
    assert_eq!(export(&["--step", "2", "--merged", "--output", &text("merged")]).0, 0);
    let merged = fs::read(path("merged/model.safetensors")).unwrap();
    let merged = safetensors::SafeTensors::deserialize(&merged).unwrap();
    let trained_adapters = safetensors::SafeTensors::deserialize(&trained_adapters).unwrap();
    for (name, _, shape, before) in &base {
        let module = name.trim_end_matches(".weight");
        let part =
            |part: &str| trained_adapters.tensor(&format!("base_model.model.{module}.lora_{part}.weight"));
        let wanted = match (part("A"), part("B")) {
            (Ok(a), Ok(b)) => sum_of(before, a.data(), b.data(), [shape[1], 2], 1.5),
            _ => before.clone(),
        };
        assert!(merged.tensor(name).unwrap().data() == wanted, "{name}");
    }
    assert_eq!(fs::read_to_string(path("merged/config.json")).unwrap(), CONFIG);
    assert!(!path("merged/adapter_config.json").exists());

    // A run goes on from another's end, whose checkpoint has no frozen weight.
    let text_of_job = fs::read_to_string(&job).unwrap();
    let init = text_of_job.find("[init]").unwrap()..text_of_job.find("[model]").unwrap();
    fs::write(path("next.toml"), text_of_job.replace(&text_of_job[init], "[init]\nrun = \"run\"\n")).unwrap();
    let next = trained(&path("next.toml"), &path("next"), None);
    let records = tiebreak_run::run::transcript::read(&next.layout.transcript()).unwrap().0.records;
    let state = tiebreak_run::run::states::after(&next, &records, 2).unwrap();
    let first = checkpoint::read(&next.layout.checkpoint(0), &next.program().state()).unwrap();
    let kept = next.program().kept();
    assert!(kept.iter().enumerate().all(|(i, &kept)| kept == (state[i] == first[i])));

    // An audit reads the frozen weights where they are, and sees one that was changed.
    let weights = [
        "--weights",
        &text("base/model.safetensors"),
        "--weights",
        &text("adapters/adapter_model.safetensors"),
    ];
    let audit = || command(&[&["audit", &text("run")], &weights[..]].concat());
    let (code, said) = audit();
    assert_eq!(code, 0, "{said}");
    let file = run.layout.checkpoint(0);
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(64).position(|window| window == &base[0].3[..64]).unwrap();
    bytes[at + 9] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (code, said) = export(&["--step", "2", "--output", &text("spoiled")]);
    assert!(code != 0 && said.contains("it is not the state that the record of step 2 commits"), "{said}");
    assert_eq!(command(&["verify", &text("run")]).0, 4);
}

#[test]
fn adapters_of_a_gpt_2_have_one_a_for_three_layers() {
    let folder = tempfile::tempdir().unwrap();
    let text = |part: &str| folder.path().join(part).to_str().unwrap().to_string();
    let name = |part: &str| format!("base_model.model.transformer.h.0.attn.c_attn.lora_{part}.weight");
    let adapters = numbered(&[(name("A"), [2, 16]), (name("B"), [48, 2])]);
    let (base, own) = (gpt2_tensors(), stored(&adapters));
    let model = stored(&base);
    let files = [("config.json", GPT2_CONFIG.as_bytes()), ("model.safetensors", &model[..])];
    let job = adapted(folder.path(), &files, r#""c_attn""#, &adapters);
    trained(&job, &folder.path().join("run"), None);
    for more in [&[][..], &["--merged"]] {
        let place = text(if more.is_empty() { "out" } else { "merged" });
        let export = ["export", &text("run"), "--step", "0", "--output", &place];
        assert_eq!(command(&[&export[..], more].concat()).0, 0);
    }
    assert!(fs::read(text("out/adapter_model.safetensors")).unwrap() == own);
    let config = fs::read_to_string(text("out/adapter_config.json")).unwrap();
    assert!(config.contains("\"fan_in_fan_out\": true"), "{config}");
    // c_attn is [inputs, outputs] there.
    let merged = fs::read(text("merged/model.safetensors")).unwrap();
    let merged = safetensors::SafeTensors::deserialize(&merged).unwrap();
    let found = numbers(merged.tensor("transformer.h.0.attn.c_attn.weight").unwrap().data());
    let before =
        numbers(&base.iter().find(|tensor| tensor.0 == "transformer.h.0.attn.c_attn.weight").unwrap().3);
    let [a, b] = [0, 1].map(|i| numbers(&adapters[i].3));
    for (at, found) in found.into_iter().enumerate() {
        let (input, output) = (at / 48, at % 48);
        let sum = b[2 * output] * a[input] + b[2 * output + 1] * a[16 + input];
        assert_eq!(found, f64::from((before[at] + sum * 1.5) as f32), "{input} {output}");
    }
    // Other targets, another rank and a model without these modules are refused.
    let config = folder.path().join("adapters/adapter_config.json");
    let given = fs::read_to_string(&config).unwrap();
    for (from, to, wanted) in [
        ("c_attn", "q_proj", "no projection is named \\\"q_proj\\\"; every block has attn.c_attn"),
        ("\"r\": 2", "\"r\": 3", "lora_A.weight is F32 [2, 16], the program has F32 [3, 16]"),
        ("\"r\": 2", "\"r\": 0", "lora.rank: must be 1 to 65536, is 0"),
        (
            "c_attn",
            "mlp.c_fc",
            "no file has the parameters base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight",
        ),
        ("\"use_dora\": false", "\"use_dora\": true", "use_dora is true"),
    ] {
        fs::write(&config, edited(&given, &[(from, to)])).unwrap();
        let import = ["import", &text("base"), "--adapter", &text("adapters"), "--output", &text("no")];
        let (code, said) = command(&import);
        assert!(code != 0 && said.contains(wanted), "{wanted}: {said}");
    }
}

//! Decoders of Llama's kind in the names and layouts of transformers: import, export, and refusals.

use std::fs;

use tiebreak_run::run::checkpoint;

use crate::common::trained;
use crate::released::{Stored, command, imported, stored};

const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "head_dim": 4,
  "eos_token_id": [2, 3], "hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 10, "max_position_embeddings": 12,
  "mlp_bias": false, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "float32", "use_cache": true, "vocab_size": 128
}
"#;

/// A decoder of two blocks as `LlamaForCausalLM` stores it. Every element is another number.
fn tensors(tied: bool) -> Vec<Stored> {
    let block = [
        ("input_layernorm", vec![16]),
        ("self_attn.q_proj", vec![16, 16]),
        ("self_attn.k_proj", vec![8, 16]),
        ("self_attn.v_proj", vec![8, 16]),
        ("self_attn.o_proj", vec![16, 16]),
        ("post_attention_layernorm", vec![16]),
        ("mlp.gate_proj", vec![10, 16]),
        ("mlp.up_proj", vec![10, 16]),
        ("mlp.down_proj", vec![16, 10]),
    ];
    let mut shapes = vec![("model.embed_tokens.weight".to_string(), vec![128, 16])];
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        shapes.extend(block.iter().map(|(part, shape)| (name(part), shape.clone())));
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

#[test]
fn decoders_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    for (name, config, tied) in [
        ("llama", CONFIG.to_string(), false),
        ("tied", CONFIG.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"), true),
        (
            "mistral",
            CONFIG
                .replace("llama", "mistral")
                .replace("LlamaF", "MistralF")
                .replace("\"mlp_bias\": false", "\"sliding_window\": null"),
            false,
        ),
        (
            "version-5",
            CONFIG.replace(
                "\"rope_theta\": 500000.0",
                "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"default\"}",
            ),
            false,
        ),
    ] {
        let path = |part: &str| folder.path().join(name).join(part);
        let text = |part: &str| path(part).to_str().unwrap().to_string();
        let tensors = tensors(tied);
        let file = stored(&tensors);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
        let job = imported(&path(""), &files).unwrap();
        let said = fs::read_to_string(&job).unwrap();
        for line in ["kind = \"llama\"", "rope_theta = 500000.0", "norm_epsilon = 1e-6", "kv_heads = 2"] {
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
    let mut bare = tensors(true);
    bare.iter_mut().for_each(|tensor| tensor.0 = tensor.0.replace("model.", ""));
    bare.push((
        "layers.1.self_attn.rotary_emb.inv_freq".into(),
        safetensors::Dtype::F32,
        vec![2],
        vec![0; 8],
    ));
    import("bare", &bare).unwrap();
    let mut wrapped = tensors(true);
    wrapped.iter_mut().for_each(|tensor| tensor.0 = format!("_orig_mod.{}", tensor.0));
    let job = import("wrapped", &wrapped).unwrap();
    assert!(fs::read_to_string(job).unwrap().contains("prefix = \"_orig_mod.\""));
    let mut copied = tensors(true);
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
    let file = stored(&tensors(false));
    let mut number = 0;
    let mut refused = |change: (&str, &str), wanted: &str| {
        assert!(CONFIG.contains(change.0), "{}", change.0);
        number += 1;
        let config = CONFIG.replacen(change.0, change.1, 1);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
        let said = imported(&folder.path().join(number.to_string()), &files).unwrap_err();
        assert!(said.contains(wanted), "{wanted}: {said}");
    };
    let llama3 = "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}";
    for (change, wanted) in [
        (("silu", "gelu"), r#"hidden_act is \"gelu\"; this version computes \"silu\" only"#),
        (("\"attention_bias\": false", "\"attention_bias\": true"), "attention_bias is true"),
        (("\"mlp_bias\": false", "\"mlp_bias\": true"), "mlp_bias is true"),
        (("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1"), "attention_dropout is 0.1"),
        (("\"rope_scaling\": null", llama3), r#"rope_scaling.rope_type is \"llama3\"; this version"#),
        (
            ("\"rope_scaling\": null", "\"rope_scaling\": {\"factor\": 2}"),
            "rope_scaling.factor is 2; this version does not know",
        ),
        (("\"rope_scaling\": null", "\"layer_types\": [\"sliding_attention\"]"), "layer_types is"),
        (
            ("\"rope_scaling\": null", "\"quantization_config\": {}"),
            "quantization_config is {}; this version does not know",
        ),
        (("\"head_dim\": 4", "\"head_dim\": 8"), "head_dim is 8"),
        (("\"head_dim\": 4", "\"sliding_window\": 11"), "sliding_window is 11"),
        (("llama\"", "qwen2\""), r#"model_type is \"qwen2\""#),
        (("\"hidden_size\": 16", "\"hidden_size\": -16"), "hidden_size is -16; a number is wanted"),
        (("\"hidden_size\": 16, ", ""), "hidden_size is missing"),
        (("\"head_dim\": 4", "\"head_dim\": \"4\""), "head_dim is"),
        (
            ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
            "the model's kv_heads: must divide heads (4)",
        ),
        (("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"), "k_proj"),
        (("\"rope_theta\": 500000.0", "\"rope_theta\": 0.5"), "the model's rope_theta"),
        (("\"max_position_embeddings\": 12", "\"max_position_embeddings\": 131072"), "the model's context"),
        (("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 1"), "tie_word_embeddings is 1"),
    ] {
        refused(change, wanted);
    }
}

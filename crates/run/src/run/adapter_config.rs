//! The `adapter_config.json` of a folder of adapters, in PEFT's keys.
//!
//! Source: `LoraConfig` of PEFT. Keys that do not change the computation are not read; a key that would make another model is
//! refused by its name and value.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::config_keys::shortest;
use tiebreak_contract::program::models::{Lora, Model};

/// The name of the file.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The file of the adapters' tensors.
pub const ADAPTER: &str = "adapter_model.safetensors";
/// The start of every module's name in that file.
const BASE: &str = "base_model.model.";
/// Keys that say nothing of the computation from a given file of tensors on.
const UNREAD: [&str; 12] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];
/// Ways to draw A and B that leave the base weights as they are.
const DRAWN: [&str; 3] = ["gaussian", "orthogonal", "eva"];
/// The most characters of a value that an error shows.
const SHOWN: usize = 60;

/// The adapters that an `adapter_config.json` describes. The model has to be given them to know whether they fit.
///
/// # Errors
/// If the text is no JSON object, or describes something that this version does not compute.
pub fn parse(text: &str) -> Result<Lora, String> {
    let keys: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("it is no configuration of adapters: {error}"))?;
    let refused = |key: &str, value: &Value, due: &str| {
        let [key, value] = [key, &value.to_string()].map(|text| text.chars().take(SHOWN).collect::<String>());
        Err(format!("{key} is {value}; {due}"))
    };
    let absent = Value::Null;
    let of = |key: &str| keys.get(key).unwrap_or(&absent);
    let (mut rank, mut alpha, mut dropout, mut targets) = (8, 8.0, 0.0, Vec::new());
    for (key, value) in &keys {
        let due = match (key.as_str(), value) {
            ("peft_type", Value::String(kind)) if kind == "LORA" => continue,
            ("peft_type", _) => "adapters of LoRA are computed, \"LORA\"",
            ("bias", Value::String(bias)) if bias == "none" => continue,
            ("bias", _) => "biases stay as they are here, \"none\"",
            ("r", _) => match value.as_u64().and_then(|r| u32::try_from(r).ok()) {
                Some(r) => {
                    rank = r;
                    continue;
                }
                None => "an integer is wanted",
            },
            ("lora_alpha" | "lora_dropout", _) => match value.as_f64() {
                Some(number) => {
                    *(if key == "lora_alpha" { &mut alpha } else { &mut dropout }) = number as f32;
                    continue;
                }
                None => "a number is wanted",
            },
            ("target_modules", Value::String(all)) if all == "all-linear" => {
                targets = vec![all.clone()];
                continue;
            }
            ("target_modules", Value::Array(names)) if names.iter().all(is_name) => {
                targets = names.iter().filter_map(Value::as_str).map(str::to_string).collect();
                continue;
            }
            ("target_modules", _) => "a list of modules' names is read, or \"all-linear\"",
            ("init_lora_weights", Value::Bool(_)) => continue,
            ("init_lora_weights", Value::String(way)) if DRAWN.contains(&way.as_str()) => continue,
            ("init_lora_weights", _) => "the base weights may be others with it",
            (key, _) if UNREAD.contains(&key) => continue,
            _ if is_nothing(value) => continue,
            _ => "this version does not know it",
        };
        return refused(key, value, due);
    }
    if of("peft_type").is_null() {
        return Err("it has no peft_type, so it is none of PEFT".into());
    }
    if targets.is_empty() {
        return refused("target_modules", of("target_modules"), "the names of modules are wanted");
    }
    // PEFT writes a set, in any order.
    targets.sort_unstable();
    Ok(Lora { rank, alpha, targets, dropout })
}

/// True if a value is the name of a module, which has no `*`.
fn is_name(value: &Value) -> bool {
    value.as_str().is_some_and(|name| !name.contains('*'))
}

/// True if a value turns nothing on.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_on) => !is_on,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Number(_) | Value::String(_) => false,
    }
}

/// The adapters of a model.
pub fn adapters(model: &Model) -> Option<&Lora> {
    match model {
        Model::Gpt(gpt) => gpt.lora.as_ref(),
        Model::Llama(llama) => llama.lora.as_ref(),
        _ => None,
    }
}

/// Gives a decoder adapters, or takes them away. Returns false if the model is no decoder.
pub fn adapt(model: &mut Model, lora: Option<Lora>) -> bool {
    match model {
        Model::Gpt(gpt) => gpt.lora = lora,
        Model::Llama(llama) => llama.lora = lora,
        _ => return false,
    }
    true
}

/// The `adapter_config.json` of a model's adapters, which [`parse`] and PEFT read; `None` if the model has none.
pub fn text(model: &Model) -> Option<String> {
    let Lora { rank, alpha, dropout, .. } = adapters(model)?;
    let config = json!({
        "base_model_name_or_path": null,
        "bias": "none",
        "fan_in_fan_out": matches!(model, Model::Gpt(_)),
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": shortest(alpha),
        "lora_dropout": shortest(dropout),
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": modules(model),
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    });
    Some(format!("{config:#}\n"))
}

/// The modules with adapters, as PEFT takes them: the ends of their names if every block has the same ones, else whole names.
fn modules(model: &Model) -> BTreeSet<String> {
    let names = model.adapters().into_iter().filter_map(|released| {
        Some(released.name.strip_prefix(BASE)?.strip_suffix(".lora_A.weight")?.to_string())
    });
    let names: BTreeSet<String> = names.collect();
    // `model.layers.0.self_attn.q_proj` ends with `self_attn.q_proj`, behind the number of the block.
    let end = |name: &String| {
        let number = name.split('.').position(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        Some(name.split('.').skip(number + 1).collect::<Vec<_>>().join("."))
    };
    let ends: BTreeSet<String> = names.iter().filter_map(end).collect();
    let blocks = match model {
        Model::Gpt(gpt) => gpt.layers,
        Model::Llama(llama) => llama.layers,
        _ => 0,
    };
    if ends.len() * blocks as usize == names.len() { ends } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PEFT 0.21 writes it.
    const PEFT: &str = r#"{"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": "some/model", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
        "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
        "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
        "loftq_config": {}, "lora_alpha": 16, "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.21.0",
        "qalora_group_size": 16, "r": 4, "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"],
        "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false,
        "use_qalora": false, "use_rslora": false}"#;

    #[test]
    fn keys_of_peft_are_read_or_refused() {
        let lora = parse(PEFT).unwrap();
        let targets = ["q_proj", "v_proj"].map(str::to_string).to_vec();
        assert_eq!(lora, Lora { rank: 4, alpha: 16.0, targets, dropout: 0.05 });
        let all = PEFT.replace(r#"["v_proj", "q_proj"]"#, "\"all-linear\"");
        assert_eq!(parse(&all).unwrap().targets, ["all-linear"]);
        let why = |from: &str, to: &str| {
            let text = PEFT.replace(from, to);
            assert_ne!(text, PEFT);
            parse(&text).unwrap_err()
        };
        for (from, to, due) in [
            (
                r#""use_dora": false"#,
                r#""use_dora": true"#,
                "use_dora is true; this version does not know it",
            ),
            (r#""use_rslora": false"#, r#""use_rslora": true"#, "use_rslora is true"),
            (r#""LORA""#, r#""IA3""#, "peft_type is \"IA3\"; adapters of LoRA"),
            (r#""peft_type": "LORA", "#, "", "it has no peft_type"),
            (r#""bias": "none""#, r#""bias": "all""#, "bias is \"all\""),
            (r#""r": 4"#, r#""r": 4.5"#, "r is 4.5; an integer"),
            (r#""lora_alpha": 16"#, r#""lora_alpha": null"#, "lora_alpha is null; a number"),
            (r#"["v_proj", "q_proj"]"#, r#"".*_proj""#, "target_modules is \".*_proj\"; a list"),
            (r#"["v_proj", "q_proj"]"#, "[]", "target_modules is []; the names"),
            (
                r#""modules_to_save": null"#,
                r#""modules_to_save": ["lm_head"]"#,
                "modules_to_save is [\"lm_head\"]",
            ),
            (r#""rank_pattern": {}"#, r#""rank_pattern": {"q_proj": 2}"#, "rank_pattern is {\"q_proj\":2}"),
            (r#""layers_to_transform": null"#, r#""layers_to_transform": [0]"#, "layers_to_transform is [0]"),
            (
                r#""init_lora_weights": true"#,
                r#""init_lora_weights": "pissa""#,
                "init_lora_weights is \"pissa\"",
            ),
        ] {
            assert!(why(from, to).starts_with(due), "{}", why(from, to));
        }
        assert!(parse("[]").unwrap_err().starts_with("it is no configuration of adapters"));
        assert!(parse(&format!(r#"{{"{}": 1}}"#, "k".repeat(1 << 16))).unwrap_err().len() < 200);
    }

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        for (targets, written) in [
            (
                r#"["q_proj", "mlp.*"]"#,
                vec!["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "self_attn.q_proj"],
            ),
            (r#"["1.self_attn.k_proj"]"#, vec!["model.layers.1.self_attn.k_proj"]),
        ] {
            let model = format!(
                r#"{{"kind": "llama", "context": 4, "layers": 2, "heads": 2, "kv_heads": 1, "width": 8, "hidden": 5,
                    "lora": {{"rank": 3, "alpha": 0.1, "targets": {targets}, "dropout": 0.3}}}}"#
            );
            let mut model: Model = serde_json::from_str(&model).unwrap();
            let lora = parse(&text(&model).unwrap()).unwrap();
            assert_eq!((lora.rank, lora.alpha, lora.dropout), (3, 0.1, 0.3));
            assert_eq!(lora.targets, written);
            let before = model.parameters();
            assert!(adapt(&mut model, Some(lora)));
            assert_eq!(model.parameters(), before);
            assert!(adapt(&mut model, None) && text(&model).is_none());
        }
    }
}

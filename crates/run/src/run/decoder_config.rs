//! The `config.json` of the decoders that transformers has beside GPT-2 and that are models of kind `llama`: Llama, Qwen2, Qwen3,
//! and Mistral.
//!
//! Sources: `LlamaConfig`, `Qwen2Config`, `Qwen3Config` and `MistralConfig` of transformers. A key that is not known, or has a value that is not computed, is
//! refused by its name.

use serde_json::{Value, json};

use super::config_keys::{self, Keys, shortest};
use tiebreak_contract::program::models::Llama;

/// The values of `model_type`, with the names of the classes.
pub(super) const KINDS: [(&str, &str); 4] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("mistral", "MistralForCausalLM"),
];
/// Keys that are read.
const READ: [&str; 20] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "initializer_range",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "attention_bias",
    "mlp_bias",
];
/// Keys that decide nothing of the computation: names, special tokens, types, and how transformers computes.
const PASSED_OVER: [&str; 19] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "is_llama_config",
    "model_type",
    "pad_token_id",
    "pretraining_tp",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "vocab_file",
];

/// The most layers of a job's model.
const LAYERS_MAX: u32 = 1 << 10;

/// The keys that have one value, and that value.
fn fixed() -> [(&'static str, Value); 6] {
    [
        ("hidden_act", json!("silu")),
        ("attention_dropout", json!(0.0)),
        ("rope_interleaved", json!(false)),
        ("partial_rotary_factor", json!(1.0)),
        ("tie_encoder_decoder", json!(false)),
        ("use_mrope", json!(false)),
    ]
}

/// The model that a `config.json` of this `model_type` describes, with this context if one is given.
pub(super) fn parse(kind: &str, text: &str, context: Option<u32>) -> Result<Llama, String> {
    let keys = config_keys::object(text)?;
    let config = Keys { prefix: "", keys: &keys };
    config.known(&fixed(), &[&READ, &PASSED_OVER])?;
    let (width, heads) = (config.needed("hidden_size")?, config.needed("num_attention_heads")?);
    let positions = config.needed("max_position_embeddings")?;
    let context = context.unwrap_or(positions);
    if context > positions {
        return config
            .refused("max_position_embeddings", &format!("a context of {context} positions is more"));
    }
    let of_kind = |key, has: &[&str]| {
        if !has.contains(&kind) {
            config.only(key, &json!(false))?;
        }
        config.flag(key)
    };
    let (attention_bias, mlp_bias) =
        (of_kind("attention_bias", &["llama", "qwen3"])?, of_kind("mlp_bias", &["llama"])?);
    // The classes' own defaults.
    let kv_heads = match kind {
        "mistral" => 8,
        "qwen2" | "qwen3" => 32,
        _ => heads,
    };
    let channels = config.size("head_dim")?.or((kind == "qwen3").then_some(128));
    let is_own = |channels: &u32| u64::from(*channels) * u64::from(heads) != u64::from(width);
    let layers = config.needed("num_hidden_layers")?;
    let (sliding_window, full_layers) = windows(kind, &config, [context, layers])?;
    let llama = Llama {
        vocabulary: config.needed("vocab_size")?,
        context,
        layers,
        heads,
        kv_heads: config.size("num_key_value_heads")?.unwrap_or(kv_heads),
        width,
        head_width: channels.filter(is_own),
        hidden: config.needed("intermediate_size")?,
        norm_epsilon: config.number("rms_norm_eps", 1e-6)?,
        qkv_bias: attention_bias || kind == "qwen2",
        out_bias: attention_bias,
        mlp_bias,
        qk_norm: kind == "qwen3",
        tied: config.flag("tie_word_embeddings")?,
        init_std: config.number("initializer_range", 0.02)?,
        sliding_window,
        full_layers,
        ..Llama::default()
    };
    rotation(&config, llama)
}

/// The window of a model's attention within a context, and the layers without it: none if every layer reaches all earlier
/// positions of a sample.
fn windows(
    kind: &str,
    config: &Keys,
    [context, layers]: [u32; 2],
) -> Result<(Option<u32>, Vec<u32>), String> {
    let is_qwen = kind.starts_with("qwen");
    if !is_qwen {
        config.only("use_sliding_window", &json!(false))?;
    }
    // MistralConfig has a window of 4096 positions where the key is absent; null is none. Qwen's have it where they use one.
    let default = (kind != "llama" && !config.keys.contains_key("sliding_window")).then_some(4096);
    let window = if !is_qwen || config.flag("use_sliding_window")? {
        config.size("sliding_window")?.or(default)
    } else {
        None
    };
    let full = without_window(config, is_qwen, window.is_some(), layers)?;
    let is_listed = config.get("layer_types").is_some();
    let reached = window.filter(|&window| window < context);
    match reached {
        None => Ok((None, Vec::new())),
        Some(_) if kind == "llama" => {
            let why = format!("a Llama has no window: null is wanted, or at least the context ({context})");
            config.refused("sliding_window", &why)
        }
        Some(_) if is_qwen && full.len() == layers as usize => Ok((None, Vec::new())),
        Some(_) if !is_qwen && !full.is_empty() => {
            config.refused("layer_types", "every layer of a Mistral has the window")
        }
        Some(_) if is_listed && config.count("layer_types") != layers as usize => {
            config.refused("layer_types", &format!("as many are wanted as there are layers ({layers})"))
        }
        reached => Ok((reached, full)),
    }
}

/// The layers without a window. Those of a Qwen without `layer_types` come first.
fn without_window(config: &Keys, is_qwen: bool, has_window: bool, layers: u32) -> Result<Vec<u32>, String> {
    // No job has more layers, and the file is anybody's.
    let layers = layers.min(LAYERS_MAX);
    let Some(types) = config.get("layer_types") else {
        // Qwen's classes have 28 where the key is absent.
        let first = if is_qwen && has_window { config.size("max_window_layers")?.unwrap_or(28) } else { 0 };
        return Ok((0..first.min(layers)).collect());
    };
    let is_known = |ty: &Value| ty == "full_attention" || ty == "sliding_attention" && has_window;
    let Some(types) = types.as_array().filter(|types| types.iter().all(is_known)) else {
        let more = if has_window { " and \"sliding_attention\"" } else { " only" };
        return config.refused("layer_types", &format!("this version computes \"full_attention\"{more}"));
    };
    let full = (0..layers).zip(types).filter(|(_, ty)| *ty == "full_attention");
    Ok(full.map(|(layer, _)| layer).collect())
}

/// The same model with the frequencies of its rotary positions. transformers has them in `rope_parameters` since version 5, and in
/// `rope_theta` and `rope_scaling` before.
fn rotation(config: &Keys, mut llama: Llama) -> Result<Llama, String> {
    llama.rope_theta = config.number("rope_theta", 10_000.0)?;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(value) = config.get(key) else { continue };
        let Some(keys) = value.as_object() else { return config.refused(key, "an object or null is wanted") };
        let prefix = format!("{key}.");
        let inner = Keys { prefix: &prefix, keys };
        llama.rope_theta = inner.number("rope_theta", llama.rope_theta.into())?;
        inner.only("partial_rotary_factor", &json!(1.0))?;
        let named = ["rope_type", "type"].into_iter().find(|name| inner.get(name).is_some());
        let read: &[&str] = match named.and_then(|name| inner.get(name)?.as_str()) {
            None if named.is_none() => &[],
            Some("default") => &[],
            Some("linear") => &["factor"],
            Some("llama3") => {
                &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
            }
            _ => {
                let why = "this version computes \"default\", \"linear\" and \"llama3\"";
                return inner.refused(named.unwrap_or("rope_type"), why);
            }
        };
        let is_known = |key: &str| {
            ["rope_theta", "rope_type", "type", "partial_rotary_factor"].contains(&key) || read.contains(&key)
        };
        if let Some(other) = keys.keys().find(|key| !is_known(key) && inner.get(key).is_some()) {
            return inner.refused(other, "this version does not know that key");
        }
        let Some((_, bands)) = read.split_first() else { continue };
        llama.rope_factor = Some(inner.needed_number("factor")?);
        if !bands.is_empty() {
            llama.rope_low_freq_factor = Some(inner.needed_number("low_freq_factor")?);
            llama.rope_high_freq_factor = Some(inner.needed_number("high_freq_factor")?);
            llama.rope_original_context = Some(inner.needed("original_max_position_embeddings")?);
        }
    }
    Ok(llama)
}

/// The kind of transformers' models that has this decoder, `before` if that has it.
fn kind_of(llama: &Llama, before: Option<&str>) -> Option<(&'static str, &'static str)> {
    let biases = [llama.qkv_bias, llama.out_bias, llama.mlp_bias];
    let has = |kind: &str| match kind {
        "llama" => !llama.qk_norm && llama.qkv_bias == llama.out_bias && llama.sliding_window.is_none(),
        "qwen2" => !llama.qk_norm && biases == [true, false, false],
        "qwen3" => llama.qk_norm && llama.qkv_bias == llama.out_bias && !llama.mlp_bias,
        _ => !llama.qk_norm && biases == [false; 3] && llama.full_layers.is_empty(),
    };
    let able = || KINDS.into_iter().filter(|(kind, _)| has(kind));
    able().find(|(kind, _)| before == Some(kind)).or_else(|| able().next())
}

/// The frequencies of rotary positions in transformers' keys, without the base.
fn scaling(llama: &Llama) -> Value {
    let Some(factor) = &llama.rope_factor else { return json!({ "rope_type": "default" }) };
    let factor = shortest(factor);
    match (&llama.rope_low_freq_factor, &llama.rope_high_freq_factor) {
        (Some(low), Some(high)) => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": shortest(low),
            "high_freq_factor": shortest(high),
            "original_max_position_embeddings": llama.rope_original_context,
        }),
        _ => json!({ "rope_type": "linear", "factor": factor }),
    }
}

/// A layer's attention, in transformers' words.
fn layer_type(llama: &Llama, layer: u32) -> &'static str {
    let is_full = llama.sliding_window.is_none() || llama.full_layers.contains(&layer);
    if is_full { "full_attention" } else { "sliding_attention" }
}

/// The `config.json` of a model, as transformers writes it; `None` if no class of transformers has this model. `before` is another
/// configuration of the model, whose `model_type` stays if it has the model, and whose places of keys stay.
pub(super) fn config(llama: &Llama, before: Option<&str>) -> Option<Value> {
    let before: Value = before.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let (kind, class) = kind_of(llama, before["model_type"].as_str())?;
    let mut config = json!({
        "architectures": [class],
        "model_type": kind,
        "vocab_size": llama.vocabulary,
        "hidden_size": llama.width,
        "intermediate_size": llama.hidden,
        "num_hidden_layers": llama.layers,
        "num_attention_heads": llama.heads,
        "num_key_value_heads": llama.kv_heads,
        "max_position_embeddings": llama.context,
        "hidden_act": "silu",
        "rms_norm_eps": shortest(&llama.norm_epsilon),
        "attention_dropout": 0.0,
        "initializer_range": shortest(&llama.init_std),
        "tie_word_embeddings": llama.tied,
        "torch_dtype": "float32",
    });
    // Without these keys, the class would default to tokens that the vocabulary may not have.
    for key in ["bos_token_id", "eos_token_id"] {
        config[key] = Value::Null;
    }
    let (theta, scaling) = (shortest(&llama.rope_theta), scaling(llama));
    if before["rope_parameters"].is_object() {
        config["rope_parameters"] = scaling;
        config["rope_parameters"]["rope_theta"] = theta;
    } else {
        config["rope_theta"] = theta;
        config["rope_scaling"] = if llama.rope_factor.is_some() { scaling } else { Value::Null };
    }
    // Qwen3's default is another one.
    if llama.head_width.is_some() || kind == "qwen3" || before.get("head_dim").is_some() {
        config["head_dim"] = llama.head_width.unwrap_or(llama.width / llama.heads).into();
    }
    let is_qwen = kind.starts_with("qwen");
    if before.get("layer_types").is_some() || is_qwen && llama.sliding_window.is_some() {
        config["layer_types"] = (0..llama.layers).map(|layer| layer_type(llama, layer)).collect();
    }
    if let (true, Some(window)) = (is_qwen, llama.sliding_window) {
        config["sliding_window"] = window.into();
        // Versions before `layer_types` take the first layers for those without a window.
        config["max_window_layers"] = llama.full_layers.len().into();
    }
    let own: &[(&str, Value)] = match kind {
        "llama" => &[("attention_bias", llama.qkv_bias.into()), ("mlp_bias", llama.mlp_bias.into())],
        "mistral" => &[("sliding_window", llama.sliding_window.into())],
        "qwen2" => &[("use_sliding_window", llama.sliding_window.is_some().into())],
        _ => &[
            ("attention_bias", llama.qkv_bias.into()),
            ("use_sliding_window", llama.sliding_window.is_some().into()),
        ],
    };
    own.iter().for_each(|(key, value)| config[key] = value.clone());
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_short_whatever_the_file_names() {
        let long = "k".repeat(1 << 20);
        for text in [
            format!(r#"{{"{long}": 1}}"#),
            format!(r#"{{"hidden_act": "{long}"}}"#),
            format!(r#"{{"rope_scaling": {{"{long}": 1}}}}"#),
            format!(r#"{{"rope_parameters": {{"rope_type": "{long}"}}}}"#),
        ] {
            let why = parse("llama", &text, None).unwrap_err();
            assert!(why.len() < 200, "{} bytes", why.len());
        }
    }

    #[test]
    fn windows_within_the_context_are_read_and_written() {
        let config = |more: &str| {
            format!(
                r#"{{"vocab_size": 9, "hidden_size": 8, "intermediate_size": 5, "num_hidden_layers": 3, "num_attention_heads": 2,
                "num_key_value_heads": 1, "max_position_embeddings": 5000{more}}}"#
            )
        };
        let refused = |kind, more| parse(kind, &config(more), None).unwrap_err();
        let sliding = r#", "use_sliding_window": true, "sliding_window": 9"#;
        let with = |more: &str| format!("{sliding}, {more}");
        for (kind, more, why) in [
            ("llama", r#", "sliding_window": 4999"#, "sliding_window is 4999; a Llama has no window"),
            (
                "mistral",
                r#", "layer_types": ["full_attention", "sliding_attention", "full_attention"]"#,
                "every layer of a Mistral",
            ),
            ("mistral", r#", "use_sliding_window": true"#, "use_sliding_window is true"),
            (
                "qwen2",
                &with(r#""layer_types": ["sliding_attention"]"#),
                "as many are wanted as there are layers (3)",
            ),
            (
                "qwen2",
                &with(r#""layer_types": ["chunked_attention"]"#),
                "\"full_attention\" and \"sliding_attention\"",
            ),
            ("qwen3", r#", "layer_types": ["sliding_attention"]"#, "\"full_attention\" only"),
            ("qwen3", &with(r#""max_window_layers": -1"#), "max_window_layers is -1"),
        ] {
            assert!(refused(kind, more).contains(why), "{}", refused(kind, more));
        }
        let types = r#""layer_types": ["sliding_attention", "full_attention", "sliding_attention"]"#;
        for (kind, more, windows) in [
            ("llama", "", None),
            ("mistral", r#", "sliding_window": null"#, None),
            ("mistral", r#", "sliding_window": 5000"#, None),
            ("mistral", r#", "sliding_window": 4999"#, Some((4999, &[][..]))),
            ("mistral", "", Some((4096, &[]))),
            ("qwen2", &with(r#""max_window_layers": 1"#), Some((9, &[0]))),
            ("qwen2", &with(r#""max_window_layers": 0"#), Some((9, &[]))),
            ("qwen2", sliding, None),
            ("qwen2", r#", "use_sliding_window": false, "sliding_window": 9, "max_window_layers": 1"#, None),
            ("qwen3", &with(types), Some((9, &[1]))),
            ("qwen3", r#", "use_sliding_window": true, "max_window_layers": 2"#, Some((4096, &[0, 1]))),
        ] {
            let llama = parse(kind, &config(more), None).unwrap();
            assert_eq!((llama.context, llama.kv_heads, llama.norm_epsilon), (5000, 1, 1e-6));
            let found = llama.sliding_window.map(|window| (window, &llama.full_layers[..]));
            assert_eq!(found, windows, "{kind} {more}");
            for before in [None, Some(json!({ "model_type": kind }).to_string())] {
                let written = super::config(&llama, before.as_deref()).unwrap();
                let class = written["model_type"].as_str().unwrap();
                assert_eq!(parse(class, &written.to_string(), None).as_ref(), Ok(&llama), "{written}");
            }
        }
        // No class of transformers has a decoder without biases and norms of heads whose layers have two kinds of attention.
        let mixed = Llama { layers: 2, sliding_window: Some(3), full_layers: vec![0], ..Llama::default() };
        assert!(super::config(&mixed, None).is_none());
    }
}

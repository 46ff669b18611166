//! The `config.json` of the decoders that transformers has beside GPT-2 and that are models of kind `llama`: Llama, Qwen2, Qwen3,
//! and Mistral, without windows.
//!
//! Sources: `LlamaConfig`, `Qwen2Config`, `Qwen3Config` and `MistralConfig` of transformers. A key that is not known, or has a value that is not computed, is
//! refused by its name.

use serde_json::{Map, Value, json};

use tiebreak_contract::program::models::Llama;

/// The values of `model_type`, with the names of the classes.
pub(super) const KINDS: [(&str, &str); 4] = [
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("mistral", "MistralForCausalLM"),
];
/// Keys that are read.
const READ: [&str; 19] = [
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
    "layer_types",
    "attention_bias",
    "mlp_bias",
];
/// Keys that decide nothing of the computation: names, special tokens, types, how transformers computes, and which layers would
/// have windows.
const PASSED_OVER: [&str; 20] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "is_llama_config",
    "max_window_layers",
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

/// A `config.json`, or an object in it.
struct Keys<'a> {
    /// The text before each key's name.
    prefix: &'a str,
    keys: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    fn refused<T>(&self, key: &str, why: &str) -> Result<T, String> {
        // The file is anybody's, and so is the length of its keys.
        let short = |text: &str| text.chars().take(40).collect::<String>();
        let value = self.keys.get(key).map(Value::to_string).unwrap_or_default();
        Err(format!("{}{} is {}; {why}", self.prefix, short(key), short(&value)))
    }

    fn size(&self, key: &str) -> Result<Option<u32>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(size) => Ok(Some(size)),
            None => self.refused(key, "a number is wanted, from 0 to 4294967295"),
        }
    }

    fn needed(&self, key: &str) -> Result<u32, String> {
        self.size(key)?.ok_or_else(|| format!("{}{key} is missing", self.prefix))
    }

    fn number(&self, key: &str, default: f64) -> Result<f32, String> {
        match self.get(key).map_or(Some(default), Value::as_f64) {
            Some(number) => Ok(number as f32),
            None => self.refused(key, "a number is wanted"),
        }
    }

    fn needed_number(&self, key: &str) -> Result<f32, String> {
        match self.get(key) {
            Some(_) => self.number(key, 0.0),
            None => Err(format!("{}{key} is missing", self.prefix)),
        }
    }

    /// True or false; false where the key is absent.
    fn flag(&self, key: &str) -> Result<bool, String> {
        match self.get(key).map_or(Some(false), Value::as_bool) {
            Some(flag) => Ok(flag),
            None => self.refused(key, "true or false is wanted"),
        }
    }

    /// Refuses another value than `only` of a key that is there.
    fn only(&self, key: &str, only: &Value) -> Result<(), String> {
        match self.get(key) {
            Some(value) if value != only && value.as_f64().is_none_or(|x| Some(x) != only.as_f64()) => {
                self.refused(key, &format!("this version computes {only} only"))
            }
            _ => Ok(()),
        }
    }
}

/// JSON in which binary32 numbers are the shortest decimals that name them: 1e-5, not 9.999999747378752e-6.
pub(super) fn shortest(value: &impl serde::Serialize) -> Value {
    let text = serde_json::to_string(value).expect("a model's numbers are JSON");
    serde_json::from_str(&text).expect("it was just written")
}

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
    let keys = serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))?;
    let config = Keys { prefix: "", keys: &keys };
    let fixed = fixed();
    for (key, only) in &fixed {
        config.only(key, only)?;
    }
    let is_known = |key: &str| {
        fixed.iter().any(|(name, _)| *name == key) || READ.contains(&key) || PASSED_OVER.contains(&key)
    };
    if let Some(key) = keys.keys().find(|key| !is_known(key) && config.get(key).is_some()) {
        return config.refused(key, "this version does not know that key");
    }
    let (width, heads) = (config.needed("hidden_size")?, config.needed("num_attention_heads")?);
    let positions = config.needed("max_position_embeddings")?;
    let context = context.unwrap_or(positions);
    if context > positions {
        return config
            .refused("max_position_embeddings", &format!("a context of {context} positions is more"));
    }
    whole_attention(kind, &config, context)?;
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
    let llama = Llama {
        vocabulary: config.needed("vocab_size")?,
        context,
        layers: config.needed("num_hidden_layers")?,
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
        ..Llama::default()
    };
    rotation(&config, llama)
}

/// Refuses attention that does not reach every earlier position of a sample.
fn whole_attention(kind: &str, config: &Keys, context: u32) -> Result<(), String> {
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
    if let Some(window) = window.filter(|&window| window < context) {
        return Err(format!(
            "sliding_window is {window}; this version computes attention without a window: null, or at least the context ({context}). \
             A context of at most {window} positions has no window: give --context N"
        ));
    }
    let Some(layers) = config.get("layer_types") else { return Ok(()) };
    let is_full =
        |layer: &Value| layer == "full_attention" || layer == "sliding_attention" && window.is_some();
    match layers.as_array().is_some_and(|layers| layers.iter().all(is_full)) {
        true => Ok(()),
        false => config.refused("layer_types", "this version computes \"full_attention\" only"),
    }
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
        "llama" => !llama.qk_norm && llama.qkv_bias == llama.out_bias,
        "qwen2" => !llama.qk_norm && biases == [true, false, false],
        "qwen3" => llama.qk_norm && llama.qkv_bias == llama.out_bias && !llama.mlp_bias,
        _ => !llama.qk_norm && biases == [false; 3],
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
    if before.get("layer_types").is_some() {
        config["layer_types"] = vec!["full_attention"; llama.layers as usize].into();
    }
    let own: &[(&str, Value)] = match kind {
        "llama" => &[("attention_bias", llama.qkv_bias.into()), ("mlp_bias", llama.mlp_bias.into())],
        "mistral" => &[("sliding_window", Value::Null)],
        "qwen2" => &[("use_sliding_window", false.into())],
        _ => &[("attention_bias", llama.qkv_bias.into()), ("use_sliding_window", false.into())],
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
    fn a_window_that_no_sample_reaches_is_none() {
        let config = |more: &str| {
            format!(
                r#"{{"vocab_size": 9, "hidden_size": 8, "intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 1, "max_position_embeddings": 5000{more}}}"#
            )
        };
        let refused = |kind, more| parse(kind, &config(more), None).unwrap_err();
        assert!(refused("mistral", "").contains("sliding_window is 4096"));
        assert!(refused("mistral", r#", "sliding_window": 4999"#).contains("sliding_window is 4999"));
        for (kind, more) in [
            ("llama", ""),
            ("mistral", r#", "sliding_window": null"#),
            ("mistral", r#", "sliding_window": 5000"#),
        ] {
            let llama = parse(kind, &config(more), None).unwrap();
            assert_eq!((llama.context, llama.kv_heads, llama.norm_epsilon), (5000, 1, 1e-6));
            let before = json!({ "model_type": kind }).to_string();
            let written = super::config(&llama, Some(&before)).unwrap().to_string();
            assert_eq!(parse(kind, &written, None), Ok(llama));
        }
    }
}

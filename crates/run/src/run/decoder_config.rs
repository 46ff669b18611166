//! The `config.json` of the decoders that transformers has beside GPT-2 and that are models of kind `llama`: Llama, and Mistral
//! without a window.
//!
//! Sources: `LlamaConfig` and `MistralConfig` of transformers. A key that is not known, or has a value that is not computed, is
//! refused by its name.

use serde_json::{Map, Value, json};

use tiebreak_contract::program::models::Llama;

/// The values of `model_type`, with the names of the classes.
pub(super) const KINDS: [(&str, &str); 2] =
    [("llama", "LlamaForCausalLM"), ("mistral", "MistralForCausalLM")];
/// Keys that are read.
const READ: [&str; 14] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_parameters",
    "tie_word_embeddings",
    "initializer_range",
    "head_dim",
    "sliding_window",
];
/// Keys that decide nothing of the computation: names, special tokens, types, and how transformers computes.
const PASSED_OVER: [&str; 16] = [
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
    "transformers_version",
    "unk_token_id",
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
fn fixed() -> [(&'static str, Value); 8] {
    [
        ("hidden_act", json!("silu")),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("rope_interleaved", json!(false)),
        ("partial_rotary_factor", json!(1.0)),
        ("use_sliding_window", json!(false)),
        ("tie_encoder_decoder", json!(false)),
    ]
}

/// The model that a `config.json` of this `model_type` describes.
pub(super) fn parse(kind: &str, text: &str) -> Result<Llama, String> {
    let keys = serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))?;
    let config = Keys { prefix: "", keys: &keys };
    let fixed = fixed();
    for (key, only) in &fixed {
        config.only(key, only)?;
    }
    for key in ["rope_scaling", "rope_parameters"] {
        plain_rotation(&config, key)?;
    }
    if let Some(layers) = config.get("layer_types") {
        let is_full = |layer: &Value| layer == "full_attention";
        if !layers.as_array().is_some_and(|layers| layers.iter().all(is_full)) {
            return config.refused("layer_types", "this version computes \"full_attention\" only");
        }
    }
    let is_known = |key: &str| {
        let fixed = fixed.iter().any(|(name, _)| *name == key);
        fixed
            || ["rope_scaling", "layer_types"].contains(&key)
            || READ.contains(&key)
            || PASSED_OVER.contains(&key)
    };
    if let Some(key) = keys.keys().find(|key| !is_known(key) && config.get(key).is_some()) {
        return config.refused(key, "this version does not know that key");
    }
    let (width, heads) = (config.needed("hidden_size")?, config.needed("num_attention_heads")?);
    let context = config.needed("max_position_embeddings")?;
    if config
        .size("head_dim")?
        .is_some_and(|channels| u64::from(channels) * u64::from(heads) != u64::from(width))
    {
        return config.refused("head_dim", "this version computes hidden_size / num_attention_heads only");
    }
    // MistralConfig has a window of 4096 positions where the key is absent; null is none.
    let default = (kind == "mistral" && !keys.contains_key("sliding_window")).then_some(4096);
    if config.size("sliding_window")?.or(default).is_some_and(|window| window < context) {
        return Err(format!(
            "sliding_window is {}; this version computes attention without a window: null, or at least max_position_embeddings ({context})",
            config.size("sliding_window")?.or(default).unwrap_or_default()
        ));
    }
    let tied = match config.get("tie_word_embeddings").map_or(Some(false), Value::as_bool) {
        Some(tied) => tied,
        None => return config.refused("tie_word_embeddings", "true or false is wanted"),
    };
    let kv_heads = if kind == "mistral" { 8 } else { heads };
    Ok(Llama {
        vocabulary: config.needed("vocab_size")?,
        context,
        layers: config.needed("num_hidden_layers")?,
        heads,
        kv_heads: config.size("num_key_value_heads")?.unwrap_or(kv_heads),
        width,
        hidden: config.needed("intermediate_size")?,
        rope_theta: theta(&config)?,
        norm_epsilon: config.number("rms_norm_eps", 1e-6)?,
        tied,
        init_std: config.number("initializer_range", 0.02)?,
    })
}

/// The base of the frequencies, from either place: transformers has it in `rope_parameters` since version 5.
fn theta(config: &Keys) -> Result<f32, String> {
    let outside = config.number("rope_theta", 10_000.0)?;
    match config.get("rope_parameters").and_then(Value::as_object) {
        Some(keys) => Keys { prefix: "rope_parameters.", keys }.number("rope_theta", outside.into()),
        None => Ok(outside),
    }
}

/// Refuses rotations by other frequencies than the powers of the base.
fn plain_rotation(config: &Keys, key: &str) -> Result<(), String> {
    let Some(value) = config.get(key) else { return Ok(()) };
    let Some(keys) = value.as_object() else { return config.refused(key, "an object or null is wanted") };
    let prefix = format!("{key}.");
    let inner = Keys { prefix: &prefix, keys };
    for name in ["rope_type", "type"] {
        inner.only(name, &json!("default"))?;
    }
    inner.only("partial_rotary_factor", &json!(1.0))?;
    let is_known = |key: &str| ["rope_theta", "rope_type", "type", "partial_rotary_factor"].contains(&key);
    match keys.keys().find(|key| !is_known(key) && inner.get(key).is_some()) {
        Some(other) => inner.refused(other, "this version does not know that key"),
        None => Ok(()),
    }
}

/// The `config.json` of a model, as transformers writes it. `before` is another configuration of the model, whose `model_type`
/// stays.
pub(super) fn config(llama: &Llama, before: Option<&str>) -> Value {
    let before: Option<Value> = before.and_then(|text| serde_json::from_str(text).ok());
    let before = before.and_then(|config| config["model_type"].as_str().map(String::from));
    let (kind, class) =
        KINDS.into_iter().find(|(kind, _)| before.as_deref() == Some(kind)).unwrap_or(KINDS[0]);
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
        "rope_theta": shortest(&llama.rope_theta),
        "attention_bias": false,
        "attention_dropout": 0.0,
        "initializer_range": shortest(&llama.init_std),
        "tie_word_embeddings": llama.tied,
        "torch_dtype": "float32",
    });
    // Without these keys, the class would default to tokens that the vocabulary may not have.
    for key in ["bos_token_id", "eos_token_id"] {
        config[key] = Value::Null;
    }
    let own = if kind == "mistral" { "sliding_window" } else { "mlp_bias" };
    config[own] = if kind == "mistral" { Value::Null } else { json!(false) };
    config
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
            let why = parse("llama", &text).unwrap_err();
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
        let refused = |kind, more| parse(kind, &config(more)).unwrap_err();
        assert!(refused("mistral", "").contains("sliding_window is 4096"));
        assert!(refused("mistral", r#", "sliding_window": 4999"#).contains("sliding_window is 4999"));
        for (kind, more) in [
            ("llama", ""),
            ("mistral", r#", "sliding_window": null"#),
            ("mistral", r#", "sliding_window": 5000"#),
        ] {
            let llama = parse(kind, &config(more)).unwrap();
            assert_eq!((llama.context, llama.kv_heads, llama.norm_epsilon), (5000, 1, 1e-6));
            let before = json!({ "model_type": kind }).to_string();
            let written = super::config(&llama, Some(&before)).to_string();
            assert_eq!(parse(kind, &written), Ok(llama));
        }
    }
}

//! The `config.json` of a folder of released weights, which describes the model: in transformers' keys for GPT-2, decoders of
//! Llama's kind, BERT, DistilBERT and ViT, in timm's for residual networks, else in this program's own.
//!
//! Source: `GPT2Config` of transformers. Keys that do not change the computation here are not read; keys that would make another
//! model are refused.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::adapter_config::{adapt, adapters};
use super::architectures;
use super::config_keys::shortest;
use super::{decoder_config, encoder_config, vision_config};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::models::{Gelu, Gpt, Input, Model, Normalize};

/// The most bytes of a `config.json`.
pub const CONFIG_MAX: u64 = 1 << 20;
/// The value of `model_type` for models that transformers does not have.
const OURS: &str = "tiebreak";
/// The vocabulary size of GPT-2's own tokenizer, whose last token begins and ends texts.
const GPT2_VOCABULARY: u32 = 50_257;
/// Keys of special tokens: the one that begins a text, the one that ends it, and the padding.
const TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", PADDING];
const PADDING: &str = "pad_token_id";

/// The keys that tell transformers' `config.json` from timm's.
#[derive(Deserialize)]
struct Preamble {
    model_type: Option<String>,
    architecture: Option<String>,
}

/// The keys of `GPT2Config` that decide the computation. Keys with a default may be absent; transformers takes the same default.
#[derive(Deserialize)]
struct Gpt2 {
    vocab_size: u32,
    n_positions: u32,
    n_embd: u32,
    n_layer: u32,
    n_head: u32,
    n_inner: Option<u32>,
    activation_function: Option<String>,
    layer_norm_epsilon: Option<f64>,
    initializer_range: Option<f64>,
    resid_pdrop: Option<f64>,
    embd_pdrop: Option<f64>,
    attn_pdrop: Option<f64>,
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
    add_cross_attention: Option<bool>,
    tie_word_embeddings: Option<bool>,
}

/// A configuration of a model that transformers does not have.
#[derive(Deserialize)]
struct Own {
    model: Model,
}

/// The model that a `config.json` describes. The numbers are not checked against each other here, but in a job with this model
/// they are. `context` is another number of positions than the file's, for models whose weights do not depend on it.
///
/// # Errors
/// If the text is no JSON object of that kind, or describes something that this version does not compute, or the model has no such
/// context.
pub fn parse(text: &str, context: Option<u32>) -> Result<Model, String> {
    let wrong = |error: serde_json::Error| format!("it is no configuration of a model: {error}");
    let Preamble { model_type, architecture } = serde_json::from_str(text).map_err(wrong)?;
    let Some(model_type) = model_type else {
        let why = format!(
            "it has neither model_type, as transformers writes it (\"gpt2\"), nor architecture, as timm writes it; for a model of your own write \
             {{\"model_type\": \"{OURS}\", \"model\": {{...}}}} (docs/WEIGHTS.md)"
        );
        return architecture.map_or(Err(why), |_| architectures::timm(text));
    };
    let is_decoder = decoder_config::KINDS.iter().any(|(known, _)| *known == model_type);
    if context.is_some() && !is_decoder {
        return Err(format!("{model_type:?} has no other context than its weights have"));
    }
    if let Some(kind) = encoder_config::kind(&model_type) {
        return encoder_config::parse(kind, text).map(Model::Bert);
    }
    match model_type.as_str() {
        "gpt2" => gpt2(&serde_json::from_str(text).map_err(wrong)?).map(Model::Gpt),
        vision_config::KIND => vision_config::parse(text).map(Model::Vit),
        kind if is_decoder => decoder_config::parse(kind, text, context).map(Model::Llama),
        OURS => serde_json::from_str(text).map(|Own { model }| model).map_err(wrong),
        other => {
            let other: String = other.chars().take(40).collect();
            Err(format!(
                "model_type is {other:?}; \"gpt2\", \"llama\", \"qwen2\", \"qwen3\", \"mistral\", \"bert\", \"distilbert\" and \"vit\" can be imported, what `tiebreak export` wrote (\"{OURS}\"), and timm's residual networks"
            ))
        }
    }
}

fn gpt2(config: &Gpt2) -> Result<Gpt, String> {
    let drops = [&config.resid_pdrop, &config.embd_pdrop, &config.attn_pdrop].map(|p| p.unwrap_or(0.1));
    if drops.iter().any(|&p| p != drops[0]) {
        return Err(format!(
            "resid_pdrop, embd_pdrop and attn_pdrop are {drops:?}; here one probability holds for all: make them equal"
        ));
    }
    let inner = config.n_inner.map_or(u64::from(config.n_embd) * 4, u64::from);
    for (what, is, must) in [
        ("n_inner", inner.to_string(), (u64::from(config.n_embd) * 4).to_string()),
        ("scale_attn_weights", config.scale_attn_weights.unwrap_or(true).to_string(), "true".into()),
        (
            "scale_attn_by_inverse_layer_idx",
            config.scale_attn_by_inverse_layer_idx.unwrap_or(false).to_string(),
            "false".into(),
        ),
        ("add_cross_attention", config.add_cross_attention.unwrap_or(false).to_string(), "false".into()),
    ] {
        if is != must {
            return Err(format!("{what} is {is}; this version computes {must} only"));
        }
    }
    let gelu = match config.activation_function.as_deref().unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" => Gelu::Tanh,
        "gelu" => Gelu::Erf,
        other => {
            let other: String = other.chars().take(40).collect();
            return Err(format!("activation_function is {other:?}; \"gelu_new\" and \"gelu\" are computed"));
        }
    };
    Ok(Gpt {
        vocabulary: config.vocab_size,
        context: config.n_positions,
        layers: config.n_layer,
        heads: config.n_head,
        width: config.n_embd,
        gelu,
        dropout: drops[0] as f32,
        tied: config.tie_word_embeddings.unwrap_or(true),
        init_std: config.initializer_range.unwrap_or(0.02) as f32,
        norm_epsilon: config.layer_norm_epsilon.unwrap_or(1e-5) as f32,
        ..Gpt::default()
    })
}

/// The keys of special tokens that do not describe the model. Padding is a key of a bert.
fn kept_tokens(model: &Model) -> impl Iterator<Item = &'static str> {
    let is_bert = matches!(model, Model::Bert(_));
    TOKENS.into_iter().filter(move |key| !is_bert || *key != PADDING)
}

/// True if a `config.json` describes a model of the same kind as this one, whatever the sizes.
pub(crate) fn is_of(config: &[u8], model: &Model) -> bool {
    let parsed = std::str::from_utf8(config).ok().and_then(|text| parse(text, context(model)).ok());
    parsed.is_some_and(|parsed| std::mem::discriminant(&parsed) == std::mem::discriminant(model))
}

/// The positions of a model whose weights do not depend on them.
fn context(model: &Model) -> Option<u32> {
    if let Model::Llama(llama) = model { Some(llama.context) } else { None }
}

/// The `config.json` of a model, which [`parse`] reads back and, for GPT-2, transformers too. `config` is the run's copy from its
/// initial weights: its other keys stay, and its text stays as a whole if it describes the exported model. `generation` is the
/// `generation_config.json` beside it, which names the tokens that begin and end texts if no `config` does.
pub fn text(model: &Model, config: Option<&str>, generation: Option<&str>) -> String {
    let model = &without_adapters(model);
    let theirs = match model {
        Model::Gpt(gpt) => Some(gpt2_config(gpt)),
        Model::Llama(llama) => decoder_config::config(llama, config),
        Model::Bert(bert) => encoder_config::config(bert),
        Model::Vit(vit) => Some(vision_config::config(vit)),
        _ => None,
    };
    let own = || json!({ "model_type": OURS, "model": shortest(&with_pixels(model)) });
    let mut ours = theirs.unwrap_or_else(own);
    let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    let Some((text, mut kept)) = config.and_then(|text| Some((text, object(text)?))) else {
        let said = generation.and_then(object).unwrap_or_default();
        let tokens = kept_tokens(model).filter_map(|key| Some((key, said.get(key)?.clone())));
        tokens.for_each(|(key, token)| ours[key] = token);
        return format!("{ours:#}\n");
    };
    let before = kept.clone();
    let Value::Object(ours) = ours else { return text.into() };
    // A run with fewer positions than the weights were made for leaves them what they are.
    let same = parse(text, context(model)).as_ref() == Ok(&of_config(model));
    // Another architecture's files would have other names, and exported tensors are F32.
    let always = ["architectures", "dtype", "torch_dtype"];
    for (key, value) in ours {
        match key.as_str() {
            "torch_dtype" => {
                let named = ["dtype", "torch_dtype"].into_iter().filter(|key| before.contains_key(*key));
                named.for_each(|key| drop(kept.insert(key.into(), value.clone())));
            }
            key if kept_tokens(model).any(|token| token == key) || same && !always.contains(&key) => {}
            _ => drop(kept.insert(key, value)),
        }
    }
    if !same && model.labels_per_sample() == 1 {
        // timm builds its network from these keys.
        let classes = model.batch(1).last().map_or(0, |labels| labels.below);
        let beside = kept.get_mut("pretrained_cfg").and_then(Value::as_object_mut);
        beside.into_iter().for_each(|keys| renumber(keys, classes));
        renumber(&mut kept, classes);
    }
    if kept == before { text.into() } else { format!("{:#}\n", Value::from(kept)) }
}

/// The model as its `config.json` describes it: transformers has the pixels of a vision transformer in another file.
fn of_config(model: &Model) -> Model {
    let mut model = model.clone();
    if let Model::Vit(_) = model {
        model.normalize(None, Default::default());
        model.take(Input::default());
    }
    model
}

/// The `preprocessor_config.json` of a model whose `config.json` does not say how pixels are prepared. `kept` is the run's own;
/// `None` if that says the same.
pub fn preprocessor(model: &Model, kept: Option<&str>) -> Option<String> {
    let Model::Vit(vit) = model else { return None };
    vision_config::preprocessor(vit, kept).map(|config| format!("{config:#}\n"))
}

/// Changes the number of classes in a configuration, if the configuration has one.
fn renumber(keys: &mut Map<String, Value>, classes: u32) {
    for key in ["num_classes", "num_labels", "_num_labels"] {
        if let Some(number) = keys.get_mut(key) {
            *number = classes.into();
        }
    }
}

/// The tokens that end a text, as a `generation_config.json` or a `config.json` names them: one, several or none.
pub fn ends(text: &str) -> Vec<u32> {
    let config: Value = serde_json::from_str(text).unwrap_or_default();
    let ids = match &config["eos_token_id"] {
        Value::Array(ids) => ids.clone(),
        one => vec![one.clone()],
    };
    ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// The model, with an explicit statement if it takes pixels as byte / 255; otherwise an import would take it for a network that
/// expects other pixels. A model over numbers gets none, because the origin of its numbers is unknown.
fn with_pixels(model: &Model) -> Model {
    let mut model = model.clone();
    let is_unsaid = model.normalization().is_some_and(|normalization| !normalization.is_said());
    if is_unsaid && model.batch(1)[0].dtype == DType::U32 {
        model.normalize(Some(Normalize::None), Default::default());
    }
    model
}

/// The model that adapters stand beside.
fn without_adapters(model: &Model) -> Model {
    let mut model = model.clone();
    adapt(&mut model, None);
    model
}

fn gpt2_config(gpt: &Gpt) -> Value {
    let mut config = json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": gpt.vocabulary,
        "n_positions": gpt.context,
        "n_embd": gpt.width,
        "n_layer": gpt.layers,
        "n_head": gpt.heads,
        "n_inner": null,
        "activation_function": match gpt.gelu {
            Gelu::Tanh => "gelu_new",
            Gelu::Erf => "gelu",
        },
        "layer_norm_epsilon": shortest(&gpt.norm_epsilon),
        "initializer_range": shortest(&gpt.init_std),
        "tie_word_embeddings": gpt.tied,
        "torch_dtype": "float32",
    });
    for key in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
        config[key] = shortest(&gpt.dropout);
    }
    // Without these keys, GPT2Config would default to tokens that the vocabulary does not have.
    let end = if gpt.vocabulary >= GPT2_VOCABULARY { json!(GPT2_VOCABULARY - 1) } else { Value::Null };
    config["bos_token_id"] = end.clone();
    config["eos_token_id"] = end;
    config
}

/// The model's keys and values, as lines of TOML.
pub fn model_table(model: &Model) -> String {
    // A JSON scalar, or a list of them, is TOML too.
    let lines = |value: Value| -> String {
        let Value::Object(keys) = value else { return String::new() };
        let lines = keys.iter().filter(|(_, value)| !value.is_null());
        lines.map(|(key, value)| format!("{key} = {value}\n")).collect()
    };
    let own = lines(shortest(&without_adapters(model)));
    adapters(model).map_or(own.clone(), |lora| format!("{own}\n[model.lora]\n{}", lines(shortest(lora))))
}

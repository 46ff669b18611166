//! The `config.json` of the encoders that transformers has and that are models of kind `bert`: BERT and DistilBERT, with the head
//! that finds masked tokens or with a classifier of sequences.
//!
//! Sources: `BertConfig` and `DistilBertConfig` of transformers. A key that is not known, or has a value that is not computed, is
//! refused by its name.

use serde_json::{Value, json};

use super::config_keys::{self, Keys, shortest};
use tiebreak_contract::program::models::{Bert, BertForm, Gelu};

/// What transformers' classes of an encoder name in their own way.
pub(super) struct Kind {
    form: BertForm,
    model_type: &'static str,
    /// Classes whose files have the encoder and the head that finds masked tokens; an export names the first.
    classes: &'static [&'static str],
    /// The class whose files have the encoder and a classifier of sequences.
    classifier: &'static str,
    layers: &'static str,
    heads: &'static str,
    width: &'static str,
    hidden: &'static str,
    gelu: &'static str,
    dropout: &'static str,
    attention_dropout: &'static str,
    classifier_dropout: &'static str,
    /// Keys that are read beside these and those of both.
    read: &'static [&'static str],
    /// Keys that decide nothing of the computation, beside those of both.
    passed_over: &'static [&'static str],
}

const BERT: Kind = Kind {
    form: BertForm::Bert,
    model_type: "bert",
    classes: &["BertForMaskedLM", "BertForPreTraining"],
    classifier: "BertForSequenceClassification",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    width: "hidden_size",
    hidden: "intermediate_size",
    gelu: "hidden_act",
    dropout: "hidden_dropout_prob",
    attention_dropout: "attention_probs_dropout_prob",
    classifier_dropout: "classifier_dropout",
    read: &["type_vocab_size", "layer_norm_eps"],
    passed_over: &[
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    ],
};

const DISTILBERT: Kind = Kind {
    form: BertForm::Distilbert,
    model_type: "distilbert",
    classes: &["DistilBertForMaskedLM"],
    classifier: "DistilBertForSequenceClassification",
    layers: "n_layers",
    heads: "n_heads",
    width: "dim",
    hidden: "hidden_dim",
    gelu: "activation",
    dropout: "dropout",
    attention_dropout: "attention_dropout",
    classifier_dropout: "seq_classif_dropout",
    read: &[],
    // The table of positions is in the files, however it began.
    passed_over: &["qa_dropout", "sinusoidal_pos_embds"],
};

const KINDS: [&Kind; 2] = [&BERT, &DISTILBERT];
/// Keys of both that are read.
const READ: [&str; 8] = [
    "vocab_size",
    "max_position_embeddings",
    "initializer_range",
    "pad_token_id",
    // Of a classifier: how many labels there are, and what is learned.
    "id2label",
    "num_labels",
    "_num_labels",
    "problem_type",
];
/// Keys of both that decide nothing of the computation: names, special tokens, types, and how transformers computes.
const PASSED_OVER: [&str; 17] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "label2id",
    "model_type",
    "output_past",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
    "vocab_file",
];

/// The number that DistilBERT's classes add to the variance, whatever the configuration says.
const EPSILON: f32 = 1e-12;
/// The classes' own defaults.
const DROPOUT: f64 = 0.1;
const DISTILBERT_CLASSIFIER_DROPOUT: f64 = 0.2;
const TYPES: u32 = 2;

/// The encoder of this `model_type`, if it is a model of kind `bert`.
pub(super) fn kind(model_type: &str) -> Option<&'static Kind> {
    KINDS.into_iter().find(|kind| kind.model_type == model_type)
}

/// The keys that have one value, and that value.
fn fixed() -> [(&'static str, Value); 8] {
    [
        ("position_embedding_type", json!("absolute")),
        ("is_decoder", json!(false)),
        ("is_encoder_decoder", json!(false)),
        ("add_cross_attention", json!(false)),
        ("tie_word_embeddings", json!(true)),
        ("tie_weights_", json!(true)),
        ("tie_encoder_decoder", json!(false)),
        ("pruned_heads", json!({})),
    ]
}

/// The model that a `config.json` of this encoder describes.
pub(super) fn parse(kind: &Kind, text: &str) -> Result<Bert, String> {
    let keys = config_keys::object(text)?;
    let config = Keys { prefix: "", keys: &keys };
    let own = [
        kind.layers,
        kind.heads,
        kind.width,
        kind.hidden,
        kind.gelu,
        kind.dropout,
        kind.attention_dropout,
        kind.classifier_dropout,
        "architectures",
    ];
    config.known(&fixed(), &[&READ, &PASSED_OVER, kind.read, kind.passed_over, &own])?;
    let classes = classes(kind, &config)?;
    let gelu = match config.get(kind.gelu).map_or(Some("gelu"), Value::as_str) {
        Some("gelu") => Gelu::Erf,
        Some("gelu_new" | "gelu_pytorch_tanh") => Gelu::Tanh,
        _ => {
            return config
                .refused(kind.gelu, "this version computes \"gelu\" and \"gelu_new\" of an encoder");
        }
    };
    let is_bert = kind.form == BertForm::Bert;
    let types = if is_bert { config.size("type_vocab_size")?.or(Some(TYPES)) } else { None };
    // The classes pad with token 0 where the key is absent; null is no padding.
    let default = (!keys.contains_key("pad_token_id")).then_some(0);
    Ok(Bert {
        form: kind.form,
        vocabulary: config.needed("vocab_size")?,
        context: config.needed("max_position_embeddings")?,
        layers: config.needed(kind.layers)?,
        heads: config.needed(kind.heads)?,
        width: config.needed(kind.width)?,
        hidden: config.needed(kind.hidden)?,
        token_types: types,
        padding: config.size("pad_token_id")?.or(default),
        classes,
        classifier_dropout: if classes.is_some() { classifier_dropout(kind, &config)? } else { 0.0 },
        gelu,
        dropout: config.number(kind.dropout, DROPOUT)?,
        attention_dropout: config.number(kind.attention_dropout, DROPOUT)?,
        init_std: config.number("initializer_range", 0.02)?,
        norm_epsilon: if is_bert { config.number("layer_norm_eps", EPSILON.into())? } else { EPSILON },
    })
}

/// The number of a classifier's labels; none if the class finds masked tokens.
fn classes(kind: &Kind, config: &Keys) -> Result<Option<u32>, String> {
    let Some(named) = config.get("architectures") else { return Ok(None) };
    let mut named = named.as_array().map_or(&[][..], |all| all).iter().filter_map(Value::as_str);
    match named.find(|class| *class == kind.classifier || kind.classes.contains(class)) {
        Some(class) if class == kind.classifier => config.labels().map(Some),
        Some(_) => Ok(None),
        None => {
            let why = format!("this version has {:?} and {:?} only", kind.classes[0], kind.classifier);
            config.refused("architectures", &why)
        }
    }
}

/// The drop probability before a classifier. BERT's is that of its other dropouts unless a key names it.
fn classifier_dropout(kind: &Kind, config: &Keys) -> Result<f32, String> {
    let default = match kind.form {
        BertForm::Bert => {
            return match config.get(kind.classifier_dropout) {
                Some(_) => config.number(kind.classifier_dropout, 0.0),
                None => config.number(kind.dropout, DROPOUT),
            };
        }
        BertForm::Distilbert => DISTILBERT_CLASSIFIER_DROPOUT,
    };
    config.number(kind.classifier_dropout, default)
}

/// The `config.json` of a model, as transformers writes it; `None` if no class of transformers has this model.
pub(super) fn config(bert: &Bert) -> Option<Value> {
    let kind = KINDS.into_iter().find(|kind| kind.form == bert.form)?;
    let is_bert = bert.form == BertForm::Bert;
    if is_bert != bert.token_types.is_some() || !is_bert && bert.norm_epsilon != EPSILON {
        return None;
    }
    let class = if bert.classes.is_some() { kind.classifier } else { kind.classes[0] };
    let mut config = json!({
        "architectures": [class],
        "model_type": kind.model_type,
        "vocab_size": bert.vocabulary,
        "max_position_embeddings": bert.context,
        "initializer_range": shortest(&bert.init_std),
        "pad_token_id": bert.padding,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
    });
    for (key, value) in [
        (kind.layers, json!(bert.layers)),
        (kind.heads, json!(bert.heads)),
        (kind.width, json!(bert.width)),
        (kind.hidden, json!(bert.hidden)),
        (kind.gelu, json!(if bert.gelu == Gelu::Erf { "gelu" } else { "gelu_new" })),
        (kind.dropout, shortest(&bert.dropout)),
        (kind.attention_dropout, shortest(&bert.attention_dropout)),
    ] {
        config[key] = value;
    }
    if let Some(types) = bert.token_types {
        config["type_vocab_size"] = types.into();
        config["layer_norm_eps"] = shortest(&bert.norm_epsilon);
    }
    if let Some(classes) = bert.classes {
        config_keys::write_labels(&mut config, classes);
        config[kind.classifier_dropout] = shortest(&bert.classifier_dropout);
    }
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_keys_have_the_defaults_of_the_classes() {
        let bert = r#"{"vocab_size": 9, "max_position_embeddings": 5, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 4,
            "intermediate_size": 3}"#;
        let distilbert = r#"{"vocab_size": 9, "max_position_embeddings": 5, "n_layers": 1, "n_heads": 2, "dim": 4, "hidden_dim": 3}"#;
        let expected = Bert {
            form: BertForm::Bert,
            vocabulary: 9,
            context: 5,
            layers: 1,
            heads: 2,
            width: 4,
            hidden: 3,
            token_types: Some(2),
            padding: Some(0),
            classes: None,
            classifier_dropout: 0.0,
            gelu: Gelu::Erf,
            dropout: 0.1,
            attention_dropout: 0.1,
            init_std: 0.02,
            norm_epsilon: 1e-12,
        };
        assert_eq!(parse(&BERT, bert).as_ref(), Ok(&expected));
        let form = BertForm::Distilbert;
        assert_eq!(parse(&DISTILBERT, distilbert), Ok(Bert { form, token_types: None, ..expected }));
    }

    #[test]
    fn a_written_configuration_describes_its_model() {
        let bert = Bert {
            form: BertForm::Bert,
            vocabulary: 11,
            context: 7,
            layers: 3,
            heads: 5,
            width: 10,
            hidden: 6,
            token_types: Some(4),
            padding: None,
            classes: None,
            classifier_dropout: 0.0,
            gelu: Gelu::Tanh,
            dropout: 0.3,
            attention_dropout: 0.4,
            init_std: 0.05,
            norm_epsilon: 1e-5,
        };
        let (form, none) = (BertForm::Distilbert, None);
        let padded = Bert { padding: Some(8), gelu: Gelu::Erf, ..bert.clone() };
        let distilbert = Bert { form, token_types: none, norm_epsilon: EPSILON, ..padded.clone() };
        let classes = |bert: &Bert| Bert { classes: Some(3), classifier_dropout: 0.25, ..bert.clone() };
        for model in [classes(&bert), classes(&distilbert), bert, padded, distilbert] {
            let written = config(&model).unwrap();
            let kind = kind(written["model_type"].as_str().unwrap()).unwrap();
            assert_eq!(parse(kind, &written.to_string()).as_ref(), Ok(&model), "{written}");
        }
    }
}

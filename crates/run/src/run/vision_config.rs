//! The `config.json` and the `preprocessor_config.json` of a vision transformer that classifies images: transformers'
//! `ViTForImageClassification`.
//!
//! Sources: `ViTConfig` and `ViTImageProcessor` of transformers. A key that is not known, or has a value that is not computed, is
//! refused by its name.

use serde_json::{Value, json};

use super::config_keys::{self, Keys, shortest};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::models::normalize::is_of_bytes;
use tiebreak_contract::program::models::{Gelu, Network, Vit};

/// The value of `model_type`.
pub(super) const KIND: &str = "vit";
/// The class whose files have the encoder and a classifier.
const CLASSIFIER: &str = "ViTForImageClassification";
/// The class whose files have the encoder alone.
const ENCODER: &str = "ViTModel";

/// Keys that are read.
const READ: [&str; 18] = [
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
    "image_size",
    "patch_size",
    "num_channels",
    "qkv_bias",
    "id2label",
    "num_labels",
    "_num_labels",
    "problem_type",
];
/// Keys that decide nothing of the computation: names, other heads, and how transformers computes.
const PASSED_OVER: [&str; 17] = [
    "_attn_implementation_autoset",
    "_name_or_path",
    "chunk_size_feed_forward",
    "dtype",
    "encoder_stride",
    "finetuning_task",
    "gradient_checkpointing",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pooler_act",
    "pooler_output_size",
    "return_dict",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
];

/// The keys that have one value, and that value.
fn fixed() -> [(&'static str, Value); 4] {
    [
        ("is_decoder", json!(false)),
        ("is_encoder_decoder", json!(false)),
        ("add_cross_attention", json!(false)),
        ("pruned_heads", json!({})),
    ]
}

/// The model that a `config.json` describes. The pixels' constants are in another file.
pub(super) fn parse(text: &str) -> Result<Vit, String> {
    let keys = config_keys::object(text)?;
    let config = Keys { prefix: "", keys: &keys };
    config.known(&fixed(), &[&READ, &PASSED_OVER])?;
    if let Some(named) = config.get("architectures") {
        let mut named = named.as_array().map_or(&[][..], |all| all).iter().filter_map(Value::as_str);
        if !named.any(|class| [CLASSIFIER, ENCODER].contains(&class)) {
            let why = format!("this version has {CLASSIFIER:?} and {ENCODER:?} only");
            return config.refused("architectures", &why);
        }
    }
    let gelu = match config.get("hidden_act").map_or(Some("gelu"), Value::as_str) {
        Some("gelu") => Gelu::Erf,
        Some("gelu_new" | "gelu_pytorch_tanh") => Gelu::Tanh,
        _ => {
            let why = "this version computes \"gelu\", \"gelu_new\" and \"gelu_pytorch_tanh\" of a vision transformer";
            return config.refused("hidden_act", why);
        }
    };
    let [height, width] = pixels(&config, "image_size", 224)?;
    let [patch, across] = pixels(&config, "patch_size", 16)?;
    if patch != across {
        return config.refused("patch_size", "this version has patches of as many rows as columns");
    }
    Ok(Vit {
        height,
        width,
        planes: config.size("num_channels")?.unwrap_or(3),
        patch,
        layers: config.needed("num_hidden_layers")?,
        heads: config.needed("num_attention_heads")?,
        channels: config.needed("hidden_size")?,
        hidden: config.needed("intermediate_size")?,
        classes: config.labels()?,
        qkv_bias: config.get("qkv_bias").is_none() || config.flag("qkv_bias")?,
        gelu,
        dropout: config.number("hidden_dropout_prob", 0.0)?,
        attention_dropout: config.number("attention_probs_dropout_prob", 0.0)?,
        init_std: config.number("initializer_range", 0.02)?,
        norm_epsilon: config.number("layer_norm_eps", 1e-12)?,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Default::default(),
    })
}

/// Pixels down and across: a number for both, or a list of two.
fn pixels(config: &Keys, key: &str, default: u32) -> Result<[u32; 2], String> {
    let Some(Value::Array(both)) = config.get(key) else {
        return config.size(key).map(|size| [size.unwrap_or(default); 2]);
    };
    let both: Vec<u32> = both.iter().filter_map(|n| u32::try_from(n.as_u64()?).ok()).collect();
    match (both[..].try_into(), config.count(key)) {
        (Ok(both), 2) => Ok(both),
        _ => config.refused(key, "a number is wanted, or a list of two: rows and columns"),
    }
}

/// The `config.json` of a model, as transformers writes it.
pub(super) fn config(vit: &Vit) -> Value {
    let size = if vit.height == vit.width { json!(vit.height) } else { json!([vit.height, vit.width]) };
    let mut config = json!({
        "architectures": [CLASSIFIER],
        "model_type": KIND,
        "hidden_size": vit.channels,
        "num_hidden_layers": vit.layers,
        "num_attention_heads": vit.heads,
        "intermediate_size": vit.hidden,
        "hidden_act": if vit.gelu == Gelu::Erf { "gelu" } else { "gelu_new" },
        "hidden_dropout_prob": shortest(&vit.dropout),
        "attention_probs_dropout_prob": shortest(&vit.attention_dropout),
        "initializer_range": shortest(&vit.init_std),
        "layer_norm_eps": shortest(&vit.norm_epsilon),
        "image_size": size,
        "patch_size": vit.patch,
        "num_channels": vit.planes,
        "qkv_bias": vit.qkv_bias,
        "torch_dtype": "float32",
    });
    config_keys::write_labels(&mut config, vit.classes);
    config
}

/// The `preprocessor_config.json` of a model over pixels, by which transformers prepares images as the model does. `kept` is the
/// run's own. `None` of a model over numbers, and if the run's own says the same.
pub(super) fn preprocessor(vit: &Vit, kept: Option<&str>) -> Option<Value> {
    if vit.batch(1)[0].dtype != DType::U32 {
        return None;
    }
    let ours = prepared(vit);
    let kept = kept.and_then(|text| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object);
    let Some(mut kept) = kept else { return Some(ours) };
    let numbers = |config: &Value, key: &str| -> Vec<f32> {
        let all = config[key].as_array().map_or(&[][..], |all| all);
        all.iter().map(|x| x.as_f64().unwrap_or(f64::NAN) as f32).collect()
    };
    let constants = |config: &Value| {
        let normalizes = config["do_normalize"].as_bool().unwrap_or(true);
        let constants = normalizes.then(|| [numbers(config, "image_mean"), numbers(config, "image_std")]);
        let rescales = config["do_rescale"].as_bool().unwrap_or(true);
        let by_255 = config["rescale_factor"].as_f64().is_none_or(is_of_bytes);
        (constants, rescales && by_255, config["rescale_offset"].as_bool().unwrap_or(false))
    };
    if constants(&kept) == constants(&ours) {
        return None;
    }
    let keys = ["do_normalize", "image_mean", "image_std", "do_rescale", "rescale_factor"];
    for key in keys.into_iter().filter(|key| !ours[key].is_null()) {
        kept[key] = ours[key].clone();
    }
    kept.as_object_mut().and_then(|kept| kept.remove("rescale_offset"));
    Some(kept)
}

/// All that a `preprocessor_config.json` says of a model.
fn prepared(vit: &Vit) -> Value {
    let mut config = json!({
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": false,
        "do_rescale": true,
        "do_resize": true,
        "rescale_factor": 1.0 / 255.0,
        "size": { "height": vit.height, "width": vit.width },
    });
    if let Some(constants) = vit.normalization().and_then(|normalization| normalization.constants()) {
        config["do_normalize"] = true.into();
        for (key, numbers) in ["image_mean", "image_std"].into_iter().zip(constants) {
            // One constant is that of all planes.
            let of_plane = |plane: u32| shortest(numbers.get(plane as usize).unwrap_or(&numbers[0]));
            config[key] = (0..vit.planes).map(of_plane).collect();
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::models::{Input, Normalize};

    fn vit() -> Vit {
        let text = r#"{"num_hidden_layers": 3, "num_attention_heads": 5, "hidden_size": 10, "intermediate_size": 6}"#;
        parse(text).unwrap()
    }

    #[test]
    fn absent_keys_have_the_defaults_of_the_class() {
        let vit = vit();
        assert_eq!((vit.height, vit.width, vit.patch, vit.planes, vit.classes), (224, 224, 16, 3, 2));
        assert_eq!((vit.qkv_bias, vit.gelu, vit.dropout, vit.attention_dropout), (true, Gelu::Erf, 0.0, 0.0));
        assert_eq!((vit.init_std, vit.norm_epsilon), (0.02, 1e-12));
    }

    #[test]
    fn a_written_configuration_describes_its_model() {
        let other = Vit {
            height: 32,
            width: 48,
            planes: 1,
            patch: 8,
            classes: 7,
            qkv_bias: false,
            gelu: Gelu::Tanh,
            dropout: 0.3,
            attention_dropout: 0.4,
            init_std: 0.05,
            norm_epsilon: 1e-6,
            ..vit()
        };
        for model in [vit(), other] {
            assert_eq!(parse(&config(&model).to_string()), Ok(model));
        }
    }

    #[test]
    fn pixels_are_prepared_as_the_model_does() {
        let preprocessor = |vit: &Vit| preprocessor(vit, None);
        let plain = preprocessor(&vit()).unwrap();
        assert_eq!((&plain["do_normalize"], &plain["image_mean"]), (&json!(false), &Value::Null));
        let half = preprocessor(&Vit { normalize: Some(Normalize::Half), ..vit() }).unwrap();
        assert_eq!((&half["do_normalize"], &half["image_mean"]), (&json!(true), &json!([0.5, 0.5, 0.5])));
        let own = Vit { image_mean: vec![0.1, 0.2, 0.3], image_std: vec![0.4, 0.5, 0.6], ..vit() };
        let own = preprocessor(&own).unwrap();
        assert_eq!(
            (&own["image_mean"], &own["image_std"]),
            (&json!([0.1, 0.2, 0.3]), &json!([0.4, 0.5, 0.6]))
        );
        assert_eq!(preprocessor(&Vit { input: Input::Values, ..vit() }), None);
    }

    #[test]
    fn a_runs_own_file_is_changed_where_it_says_otherwise() {
        let half = Vit { image_mean: vec![0.5], image_std: vec![0.25], ..vit() };
        let own = r#"{"crop_pct": 0.9, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}"#;
        assert_eq!(preprocessor(&half, Some(own)), None);
        let plain = preprocessor(&vit(), Some(own)).unwrap();
        assert_eq!((&plain["crop_pct"], &plain["do_normalize"]), (&json!(0.9), &json!(false)));
        assert_eq!(preprocessor(&vit(), Some(&plain.to_string())), None);
        // A run that was imported with constants of its own computes byte / 255, whatever the folder said.
        for rescaled in [r#""do_rescale": false"#, r#""rescale_factor": 1"#, r#""rescale_offset": true"#] {
            let own = own.replacen('{', &format!("{{{rescaled}, "), 1);
            let ours = preprocessor(&half, Some(&own)).unwrap();
            assert_eq!((&ours["do_rescale"], &ours["rescale_offset"]), (&json!(true), &Value::Null), "{own}");
            assert!(
                is_of_bytes(ours["rescale_factor"].as_f64().unwrap()) && ours["crop_pct"] == 0.9,
                "{own}"
            );
        }
        let other = preprocessor(&half, Some(&own.replace("0.5, 0.5]", "0.5, 0.4]"))).unwrap();
        assert_eq!((&other["crop_pct"], &other["image_mean"]), (&json!(0.9), &json!([0.5, 0.5, 0.5])));
    }
}

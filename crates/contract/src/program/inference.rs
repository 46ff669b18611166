//! The graph of a step of inference: new tokens of several sequences, over caches of keys and values. The logits of a position
//! have the same bits whatever the size of a chunk and of a batch. And the graph that moves caches when a batch changes. Contract:
//! `docs/INFERENCE.md`.

use std::ops::Range;

use serde_json::Value;

use super::builder::Builder;
use super::expr::Body;
use super::graph::{Graph, TensorId, TensorType, View};
use super::models::{Model, ModelParameter, Text};
use super::network::NetworkModel;
use super::operators::{Places, token_embedding};
use super::products::{ProductClass, ProductDigits, ProductTable};
use super::step::port;
use super::validate;
use crate::arith::DType;

/// A model that may write text: it is a decoder, or none.
#[derive(Clone, Copy)]
pub enum Writer<'a> {
    /// The model of a job, and its products.
    Job(&'a Model, &'a ProductTable),
    /// That of a network file.
    Network(&'a NetworkModel),
}

impl<'a> Writer<'a> {
    /// The decoder of a network file.
    ///
    /// # Errors
    /// If the model is no decoder: the message names the node, or says what is too large.
    pub fn of_network(model: &'a NetworkModel) -> Result<Writer<'a>, String> {
        model.attentions()?;
        let writer = Writer::Network(model);
        let step = inference_step(writer, [1, writer.context()]);
        let why =
            || format!("a step of all {} positions has a tensor of 2^31 elements or more", writer.context());
        let step = step.ok_or_else(why)?;
        validate::sizes(&step)?;
        Ok(writer)
    }

    /// Positions of the context.
    pub fn context(self) -> u32 {
        match self {
            Writer::Job(model, _) => model.labels_per_sample(),
            Writer::Network(model) => model.network().labels_per_sample(),
        }
    }

    /// The number of tokens; `None` if the model is no decoder.
    pub fn vocabulary(self) -> Option<u32> {
        match self {
            Writer::Job(Model::Gpt(gpt), _) => Some(gpt.vocabulary),
            Writer::Job(Model::Llama(llama), _) => Some(llama.vocabulary),
            Writer::Job(..) => None,
            Writer::Network(model) => {
                let tokens = &model.network().batch(1)[0];
                model.attentions().ok().map(|_| tokens.below)
            }
        }
    }

    /// The parameters, in the model's order.
    pub fn parameters(self) -> Vec<ModelParameter> {
        match self {
            Writer::Job(model, _) => model.parameters(),
            Writer::Network(model) => model.network().parameters(),
        }
    }

    fn products(self) -> &'a ProductTable {
        match self {
            Writer::Job(_, products) => products,
            Writer::Network(model) => &model.products,
        }
    }

    /// The channels of the keys, and the heads of these, of each attention.
    fn attentions(self) -> Option<Vec<[u32; 2]>> {
        match self {
            Writer::Job(Model::Gpt(gpt), _) => Some(vec![[gpt.width, gpt.heads]; gpt.layers as usize]),
            Writer::Job(Model::Llama(llama), _) => Some(vec![llama.cached(); llama.layers as usize]),
            Writer::Job(..) => None,
            Writer::Network(model) => model.attentions().ok().map(<[_]>::to_vec),
        }
    }
}

/// The caches of a decoder's sequences, in the order of the graph's ports; `None` if the model is no decoder.
///
/// Layer by layer these are the keys, the values and the values' units. An empty cache is +0. Each attention of a network file is a
/// layer.
pub fn caches(writer: Writer, sequences: u32) -> Option<Vec<(String, TensorType)>> {
    let places = sequences * (writer.context() + 1);
    let of_layer = |(layer, [channels, heads]): (usize, [u32; 2])| {
        [("key", channels), ("value", channels), ("unit", heads)].map(|(part, columns)| {
            let ty = TensorType { dtype: DType::F32, shape: vec![places, columns] };
            (format!("cache/block{layer}.{part}"), ty)
        })
    };
    Some(writer.attentions()?.into_iter().enumerate().flat_map(of_layer).collect())
}

/// The values of `batch/positions` and `batch/rows` for `new` tokens of each sequence, from the position of `starts` on; `None`
/// if a sequence would go past the context.
pub fn places(starts: &[u32], new: u32, context: u32) -> Option<[Vec<u32>; 2]> {
    if new == 0 || starts.iter().any(|start| start.checked_add(new).is_none_or(|end| end > context)) {
        return None;
    }
    let positions = starts.iter().flat_map(|start| (0..new).map(move |i| start + i)).collect();
    let row = |start: u32, place: u32| place.saturating_sub(start).min(new - 1);
    let rows = (0..).zip(starts);
    let rows = rows.flat_map(|(b, start)| (0..=context).map(move |place| b * new + row(*start, place)));
    Some([positions, rows.collect()])
}

/// The keys and products that decide a decoder's answers, beside its parameters, by ascending key; `None` if the model is no decoder.
/// Layout: `docs/INFERENCE.md`, Receipts.
pub fn settings(writer: Writer) -> Option<Vec<(String, String)>> {
    writer.attentions()?;
    let classes = [ProductClass::Linear, ProductClass::Head, ProductClass::Scores, ProductClass::Values];
    Some(match writer {
        Writer::Job(model, products) => listed(model, &products.of_inference(), &classes),
        Writer::Network(model) => model.settings(),
    })
}

/// The keys and products that decide a model's logits in an evaluation, beside its parameters and buffers, by ascending key. Layout:
/// `docs/INFERENCE.md`, Receipts of predictions.
pub fn evaluation_settings(model: &Model, products: &ProductTable) -> Vec<(String, String)> {
    use ProductClass::{Conv, Head, Linear, Scores, Values};
    listed(model, products, &[Linear, Conv, Head, Scores, Values])
}

fn listed(model: &Model, products: &ProductTable, classes: &[ProductClass]) -> Vec<(String, String)> {
    let Ok(Value::Object(mut keys)) = serde_json::to_value(model) else { return Vec::new() };
    if let Model::Llama(llama) = model {
        keys.entry("head_width").or_insert((llama.width / llama.heads).into());
    }
    if let Some(Value::Object(lora)) = keys.remove("lora") {
        keys.extend(lora.into_iter().map(|(key, value)| (format!("lora.{key}"), value)));
    }
    // The others act in training alone.
    let trains = ["dropout", "init_std", "lora.dropout", "norm_momentum"];
    let keys = keys.iter().filter(|(key, _)| !trains.contains(&key.as_str()));
    let texts = keys.filter_map(|(key, value)| Some((format!("model.{key}"), text(value)?)));
    let mut settings: Vec<(String, String)> = texts.collect();
    for &class in classes {
        let ProductDigits { digits_a, digits_b, block } = products.get(class);
        settings.push((format!("digits.{}", class.name()), format!("{digits_a} {digits_b} {block}")));
        let grid = products.logged(class).map(|grid| format!("{} {}", grid.bits, grid.floor));
        settings.extend(grid.map(|grid| (format!("grid.{}", class.name()), grid)));
    }
    settings.sort_unstable();
    settings
}

/// The text of a key's value; `None` for `false` and for no value.
fn text(value: &Value) -> Option<String> {
    Some(match value {
        Value::Array(items) => items.iter().filter_map(text).collect::<Vec<_>>().join(" "),
        Value::Bool(true) => "true".to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default() as f32;
            format!("{:08x}", number.to_bits())
        }
        Value::Number(number) => number.to_string(),
        _ => return None,
    })
}

/// The first token of the window in which the logits behind a text of this length are computed (`docs/INFERENCE.md`, "Windows").
///
/// ```
/// use tiebreak_contract::program::inference::window;
///
/// assert_eq!([0, 4, 5, 7, 8, 10, 11].map(|length| window(length, 4)), [0, 0, 3, 3, 6, 6, 9]);
/// ```
pub fn window(length: usize, context: u32) -> usize {
    let context = context as usize;
    let stride = context / 2 + 1;
    length.saturating_sub(context).div_ceil(stride) * stride
}

/// The windows that give the rows of an answer's tokens with these numbers: the first token of the text in each window, and the
/// numbers.
pub fn windows(prompt: usize, numbers: Range<usize>, context: u32) -> Vec<(usize, Range<usize>)> {
    let mut windows: Vec<(usize, Range<usize>)> = Vec::new();
    for number in numbers {
        let first = window(prompt + number, context);
        match windows.last_mut() {
            Some((of, numbers)) if *of == first => numbers.end = number + 1,
            _ => windows.push((first, number..number + 1)),
        }
    }
    windows
}

/// The logits of `new` tokens of each of `sequences`; `None` if the model is no decoder, or a tensor of a network file's step has too
/// many elements.
///
/// The inputs are params, `batch/tokens`, `batch/positions`, `batch/rows` and [`caches`]. The outputs are `logits` [B n, V] and the
/// caches with the new positions.
pub fn inference_step(writer: Writer, [sequences, new]: [u32; 2]) -> Option<Graph> {
    let ports = caches(writer, sequences)?;
    let context = writer.context();
    let mut b = Builder::new(writer.products().of_inference());
    let parameters = writer.parameters();
    let parameters: Vec<_> =
        parameters.iter().map(|p| b.input(port::parameter(&p.name), DType::F32, &p.shape)).collect();
    let [tokens, positions, rows] =
        [("tokens", sequences * new), ("positions", sequences * new), ("rows", sequences * (context + 1))]
            .map(|(name, len)| b.input(port::batch(name), DType::U32, &[len]));
    let inputs: Vec<_> = ports.iter().map(|(name, ty)| b.input(name.clone(), ty.dtype, &ty.shape)).collect();
    let caches: Vec<_> = inputs.as_chunks::<3>().0.to_vec();
    let places = Places { positions, rows, sequences, new, context };
    let mut text = Text::Cached { places, caches: caches.into_iter(), filled: Vec::new() };
    let logits = match writer {
        Writer::Job(Model::Gpt(gpt), _) => gpt.logits(&mut b, &mut text, &parameters, tokens, [None; 2]),
        Writer::Job(Model::Llama(llama), _) => llama.logits(&mut b, &mut text, &parameters, tokens, None),
        Writer::Job(..) => return None,
        Writer::Network(model) => {
            let (logits, filled) = model.nodes.step(&mut b, text, &parameters, tokens).ok()?;
            text = Text::Cached { places, caches: Vec::new().into_iter(), filled };
            logits
        }
    };
    b.output("logits", logits);
    if let Text::Cached { filled, .. } = text {
        for ((name, _), tensor) in ports.into_iter().zip(filled.into_iter().flatten()) {
            b.output(name, tensor);
        }
    }
    Some(b.finish())
}

/// The caches of a batch behind a change of its sequences; `None` if the model is no decoder.
///
/// The inputs are `batch/places`, [`moved_places`], and the caches of as many sequences as the first size says. If a sequence joins,
/// `batch/sequence`, its number, follows `batch/places`, and its own caches follow the others. The outputs are the caches of as many
/// sequences as the second size says. Caches are copied, and no number in them changes.
pub fn moved_caches(writer: Writer, [before, behind]: [u32; 2], joins: bool) -> Option<Graph> {
    let [old, one] = [caches(writer, before)?, caches(writer, 1)?];
    let all = writer.context() + 1;
    let mut b = Builder::new(ProductTable::preset());
    let from = b.input(port::batch("places"), DType::U32, &[behind * all]);
    let sequence = joins.then(|| b.input(port::batch("sequence"), DType::U32, &[1]));
    let mut inputs = |name: &str, ports: &[(String, TensorType)]| -> Vec<TensorId> {
        let input =
            |(cache, ty): &(String, TensorType)| b.input(format!("{name}/{cache}"), ty.dtype, &ty.shape);
        ports.iter().map(input).collect()
    };
    let old = inputs("old", &old);
    let joining = if joins { inputs("joining", &one) } else { Vec::new() };
    for (number, (name, ty)) in one.iter().enumerate() {
        let columns = ty.shape[1];
        let mut moved = token_embedding(&mut b, old[number], from);
        if let (Some(sequence), Some(&own)) = (sequence, joining.get(number)) {
            let body = Body::new("joined_cache.v1", |w| {
                let (moved, own, joining, place) = (w.input(0), w.input(1), w.input(2), w.index(1));
                let joins = w.ueq(place, joining);
                w.select(joins, own, moved)
            });
            let dims = [1, behind, all, columns];
            let own = View { tensor: own, offset: 0, dims, strides: [0, 0, columns, 1] };
            let views = vec![b.reshaped(moved, &dims), own, b.scalar(sequence, 0, dims)];
            moved = b.map_views(body, dims, views, DType::F32, &[behind * all, columns]);
        }
        b.output(name.clone(), moved);
    }
    Some(b.finish())
}

/// The values of `batch/places` of [`moved_caches`], where sequence i has the caches that sequence `from[i]` had.
pub fn moved_places(from: &[u32], context: u32) -> Vec<u32> {
    let all = context + 1;
    from.iter().flat_map(|sequence| (0..all).map(move |place| sequence * all + place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::rounding_grid::GridRule;

    fn of(model: &str, products: &ProductTable) -> Vec<String> {
        let model = serde_json::from_str(model).unwrap();
        let settings = settings(Writer::Job(&model, products)).unwrap();
        settings.into_iter().map(|(key, value)| format!("{key} {value}")).collect()
    }

    #[test]
    fn settings_are_the_keys_that_act_in_inference() {
        let llama = r#"{"kind": "llama", "context": 8, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8, "hidden": 12,
            "rope_theta": 1.5, "qk_norm": true, "tied": false"#;
        let mut products = ProductTable::two_and_three();
        products.set(ProductClass::Values, ProductDigits { digits_a: 3, digits_b: 2, block: 64 });
        for class in [ProductClass::Values, ProductClass::Head, ProductClass::HeadDx] {
            products.set_logged(class, GridRule { bits: 16, floor: 3 });
        }
        let found = of(&format!("{llama}}}"), &products);
        assert_eq!(
            found,
            [
                "digits.head 2 2 0",
                "digits.linear 2 2 0",
                "digits.scores 2 2 0",
                "digits.values 3 2 0",
                "grid.head 16 3",
                "model.context 8",
                "model.head_width 2",
                "model.heads 4",
                "model.hidden 12",
                "model.kind llama",
                "model.kv_heads 2",
                "model.layers 2",
                "model.norm_epsilon 3727c5ac",
                "model.qk_norm true",
                "model.rope_theta 3fc00000",
                "model.vocabulary 256",
                "model.width 8",
            ]
        );
        // Spellings of the same model, and one of another.
        for (more, same) in
            [(r#""head_width": 2"#, true), (r#""init_std": 0.5"#, true), (r#""head_width": 4"#, false)]
        {
            assert_eq!(of(&format!("{llama}, {more}}}"), &products) == found, same, "{more}");
        }
        let adapted = |more: &str| {
            let lora = format!(
                r#"{llama}, "lora": {{"rank": 4, "alpha": 8, "targets": ["q_proj", "mlp.*"]{more}}}}}"#
            );
            of(&lora, &products).into_iter().filter(|setting| setting.contains("lora")).collect::<Vec<_>>()
        };
        assert_eq!(
            adapted(""),
            ["model.lora.alpha 41000000", "model.lora.rank 4", "model.lora.targets q_proj mlp.*"]
        );
        assert_eq!(adapted(r#", "dropout": 0.5"#), adapted(""));
        let mlp = r#"{"kind": "mlp", "inputs": 4, "hidden": [], "classes": 3}"#;
        assert_eq!(settings(Writer::Job(&serde_json::from_str(mlp).unwrap(), &products)), None);
    }

    #[test]
    fn settings_of_an_evaluation_are_the_keys_that_act_in_it() {
        let mut products = ProductTable::two_and_three();
        products.set(ProductClass::Values, ProductDigits { digits_a: 3, digits_b: 2, block: 64 });
        products.set_logged(ProductClass::Conv, GridRule { bits: 16, floor: 3 });
        let of = |model: &str| -> Vec<String> {
            let settings = evaluation_settings(&serde_json::from_str(model).unwrap(), &products);
            settings.into_iter().map(|(key, value)| format!("{key} {value}")).collect()
        };
        let mlp = r#"{"kind": "mlp", "inputs": 4, "hidden": [6, 5], "classes": 3, "image_mean": [0.5], "image_std": [0.25]"#;
        let found = of(&format!("{mlp}}}"));
        assert_eq!(
            found,
            [
                "digits.conv 2 2 0",
                "digits.head 2 2 0",
                "digits.linear 2 2 0",
                "digits.scores 2 2 0",
                "digits.values 3 2 64",
                "grid.conv 16 3",
                "model.classes 3",
                "model.hidden 6 5",
                "model.image_mean 3f000000",
                "model.image_std 3e800000",
                "model.inputs 4",
                "model.kind mlp",
            ]
        );
        assert_eq!(of(&format!("{mlp}, \"dropout\": 0.5}}")), found);
        let logistic = of(r#"{"kind": "mlp", "inputs": 4, "hidden": [], "classes": 3}"#);
        assert!(logistic.contains(&"model.hidden ".to_string()), "{logistic:?}");
        let resnet = of(
            r#"{"kind": "resnet", "height": 8, "width": 8, "planes": 3, "stages": [4, 8], "blocks": [1, 2], "classes": 3,
                "norm": "batch", "norm_momentum": 0.5, "convolution": 2}"#,
        );
        for key in ["model.blocks 1 2", "model.convolution 2", "model.norm batch", "model.stages 4 8"] {
            assert!(resnet.contains(&key.to_string()), "{key}: {resnet:?}");
        }
        assert!(!resnet.iter().any(|setting| setting.contains("momentum")), "{resnet:?}");
    }
}

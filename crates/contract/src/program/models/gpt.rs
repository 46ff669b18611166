//! A GPT-2 style decoder (Radford et al., 2019): learned positions, pre-norm blocks, GELU, and an output projection that may
//! share the token table. Query, key and value each have a matrix of their own.

use serde::{Deserialize, Serialize};

use super::lora::{Adapters, Projection};
use super::released::{Made, Part, Released};
use super::sizes::times;
use super::{
    BatchTensor, Cursor, Init, Inputs, Lora, Loss, ModelParameter, Network, ProductSize, Sizes, Text,
    document_error,
};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::{Boolean, Choice};
use crate::program::keys::{BELOW_ONE, Key, NOT_NEGATIVE, Type, integer, key};
use crate::program::operators::{
    Dropout, LinearClasses, dropout, gelu_erf, gelu_tanh, layer_norm, linear, residual, token_embedding,
};

/// The form of GELU (Hendrycks and Gimpel, 2016) that the feed-forward layers use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// The approximation by tanh.
    #[default]
    Tanh,
    /// The definition by erf.
    Erf,
}

impl Gelu {
    pub(super) fn of(self, b: &mut Builder, x: TensorId) -> TensorId {
        b.scoped("gelu", |b| match self {
            Gelu::Tanh => gelu_tanh(b, x),
            Gelu::Erf => gelu_erf(b, x),
        })
    }
}

fn default_vocabulary() -> u32 {
    256
}

fn default_tied() -> bool {
    true
}

fn default_std() -> f32 {
    0.02
}

fn default_epsilon() -> f32 {
    1e-5
}

/// The sizes of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpt {
    /// Classes of a token; 256 for bytes.
    #[serde(default = "default_vocabulary")]
    pub vocabulary: u32,
    /// Positions of a sample (T).
    pub context: u32,
    /// Decoder blocks.
    pub layers: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Channels (C); a multiple of `heads`.
    pub width: u32,
    /// The form of GELU.
    #[serde(default)]
    pub gelu: Gelu,
    /// Drop probability of embeddings, attention probabilities and residual branches.
    #[serde(default)]
    pub dropout: f32,
    /// True if the output projection is the token table.
    #[serde(default = "default_tied")]
    pub tied: bool,
    /// Standard deviation of initial weights; residual projections get std / sqrt(2 layers).
    #[serde(default = "default_std")]
    pub init_std: f32,
    /// The number that a layer normalisation adds to the variance.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// The token that ends a document, if no position attends to another document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_end: Option<u32>,
    /// Adapters, if they alone are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.vocabulary", integer(1, 1 << 20), Optional("256"), "128", "Tokens are numbers below this; 256 for bytes.").kind("gpt").unit("tokens"),
    key("model.context", integer(1, 1 << 16), Required, "64", "Positions of a sample.").kind("gpt").unit("tokens"),
    key("model.layers", integer(1, 1 << 10), Required, "2", "Decoder blocks.").kind("gpt").unit("blocks"),
    key("model.heads", integer(1, 1 << 10), Required, "4", "Attention heads of a block.").kind("gpt").unit("heads"),
    key("model.width", integer(1, 1 << 16), Required, "64", "Channels of a position.").kind("gpt").unit("channels").rule("a multiple of `heads`"),
    key("model.gelu", Choice(&["tanh", "erf"]), Optional(r#""tanh""#), r#""erf""#, "The form of GELU: the approximation by tanh, or the definition by erf.").kind("gpt"),
    key("model.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of embeddings, attention probabilities and residual branches.").kind("gpt"),
    key("model.tied", Boolean, Optional("true"), "false", "Whether the output projection is the token table.").kind("gpt"),
    key("model.init_std", NOT_NEGATIVE, Optional("0.02"), "0.01", "Standard deviation of initial weights; projections back to the residual stream get init_std / sqrt(2 layers).").kind("gpt"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-6", "What a layer normalisation adds to the variance.").kind("gpt"),
    key("model.document_end", integer(0, (1 << 20) - 1), Absent("a sample is one document"), "50256", "The token that ends a document. A position attends to no other document of its sample (docs/DATA.md).").kind("gpt").rule("below `vocabulary`").beside("vocabulary = 50257"),
    key("model.lora", Type::Table, Absent("all parameters are trained"), "", "Low-rank adapters, as PEFT's LoRA: they are trained, and all other parameters stay as they are (docs/ARITHMETIC.md, section 8.3).").kind("gpt"),
];

impl Gpt {
    /// The projections that may have adapters, in order. `c_attn` of transformers is query, key and value.
    fn projections(&self) -> Vec<Projection> {
        let c = self.width;
        let of_layer = |layer: u32| {
            let ours = |part: &str| format!("block{layer}.{part}");
            let projection = |module, name, layers: &[&str], sizes| Projection {
                block: format!("transformer.h.{layer}"),
                module,
                name: ours(name),
                layers: layers.iter().map(|layer| ours(layer)).collect(),
                sizes,
            };
            [
                projection("attn.c_attn", "attention_in", &["query", "key", "value"], [c, c]),
                projection("attn.c_proj", "attention_out", &["attention_out"], [c, c]),
                projection("mlp.c_fc", "mlp_in", &["mlp_in"], [4 * c, c]),
                projection("mlp.c_proj", "mlp_out", &["mlp_out"], [c, 4 * c]),
            ]
        };
        (0..self.layers).flat_map(of_layer).collect()
    }

    /// The parameters without those of adapters.
    fn own_parameters(&self) -> Vec<ModelParameter> {
        let (c, v) = (self.width, self.vocabulary);
        let normal = Init::Normal { std: self.init_std };
        let projection = Init::Normal { std: self.init_std / (2.0 * self.layers as f32).sqrt() };
        let mut table = Vec::new();
        let mut matrix = |name: String, shape: [u32; 2], init| {
            table.push(ModelParameter { name, shape: shape.to_vec(), init, decayed: true });
        };
        matrix("token_embedding".into(), [v, c], normal);
        matrix("position_embedding".into(), [self.context, c], normal);
        let vector = |table: &mut Vec<ModelParameter>, name: String, len, init| {
            table.push(ModelParameter { name, shape: vec![len], init, decayed: false });
        };
        for layer in 0..self.layers {
            let name = |rest: &str| format!("block{layer}.{rest}");
            let linear = |table: &mut Vec<ModelParameter>, rest: &str, outputs, inputs, init| {
                table.push(ModelParameter {
                    name: name(&format!("{rest}.weight")),
                    shape: vec![outputs, inputs],
                    init,
                    decayed: true,
                });
                vector(table, name(&format!("{rest}.bias")), outputs, Init::Zeros);
            };
            vector(&mut table, name("norm1.gain"), c, Init::Ones);
            vector(&mut table, name("norm1.bias"), c, Init::Zeros);
            linear(&mut table, "query", c, c, normal);
            linear(&mut table, "key", c, c, normal);
            linear(&mut table, "value", c, c, normal);
            linear(&mut table, "attention_out", c, c, projection);
            vector(&mut table, name("norm2.gain"), c, Init::Ones);
            vector(&mut table, name("norm2.bias"), c, Init::Zeros);
            linear(&mut table, "mlp_in", 4 * c, c, normal);
            linear(&mut table, "mlp_out", c, 4 * c, projection);
        }
        vector(&mut table, "final_norm.gain".into(), c, Init::Ones);
        vector(&mut table, "final_norm.bias".into(), c, Init::Zeros);
        if !self.tied {
            table.push(ModelParameter {
                name: "head".into(),
                shape: vec![v, c],
                init: normal,
                decayed: true,
            });
        }
        table
    }
}

impl Default for Gpt {
    /// A model of one channel, with the keys that a job may leave out as they are then.
    fn default() -> Gpt {
        Gpt {
            vocabulary: default_vocabulary(),
            context: 1,
            layers: 1,
            heads: 1,
            width: 1,
            gelu: Gelu::default(),
            dropout: 0.0,
            tied: default_tied(),
            init_std: default_std(),
            norm_epsilon: default_epsilon(),
            document_end: None,
            lora: None,
        }
    }
}

impl Network for Gpt {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Gpt> {
        let gpt = |gelu, tied, dropout| Gpt {
            vocabulary: 17 + second,
            context: 5 + second,
            layers: 1,
            heads: 2,
            width: 6 + 4 * second,
            gelu,
            dropout,
            tied,
            norm_epsilon: 1e-5 + second as f32 / 16.0,
            ..Gpt::default()
        };
        vec![gpt(Gelu::Tanh, true, 0.21 + second as f32 / 16.0), gpt(Gelu::Erf, false, 0.0)]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        if !self.width.is_multiple_of(self.heads) {
            return Some(("width", format!("must be a multiple of heads ({})", self.heads)));
        }
        if let Some(error) = document_error(self.document_end, self.vocabulary) {
            return Some(error);
        }
        self.lora.as_ref()?.error(&self.projections())
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let [v, t, c, h] = [self.vocabulary, self.context, self.width, self.heads].map(u64::from);
        let rows = times(&[samples, t]);
        let layers = [
            ProductSize::linear(rows, c, 4 * c),
            ProductSize::linear(rows, 4 * c, c),
            ProductSize::head(rows, c, v),
        ];
        let attention = ProductSize::attention(rows, t, c, h);
        let lora = self.lora.as_ref().map(|lora| lora.sizes(rows, &self.projections()));
        let (adapters, inner) = lora.unwrap_or_default();
        let products = layers.into_iter().flatten().chain(attention).chain(adapters).collect();
        let largest = times(&[rows, v.max(4 * c)]).max(times(&[rows, h, t])).max(inner);
        Sizes { largest, normalised_rows: 0, products }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let adapters = self.lora.as_ref().map(|lora| lora.parameters(&self.projections()));
        self.own_parameters().into_iter().chain(adapters.into_iter().flatten()).collect()
    }

    fn frozen(&self) -> usize {
        self.lora.as_ref().map_or(0, |_| self.own_parameters().len())
    }

    fn merges(&self) -> (f32, Vec<[String; 3]>) {
        self.lora.as_ref().map_or((1.0, Vec::new()), |lora| lora.merges(&self.projections()))
    }

    fn adapters(&self) -> Vec<Released> {
        self.lora.as_ref().map_or(Vec::new(), |lora| lora.released(&self.projections()))
    }

    /// The tensors that `GPT2LMHeadModel` stores. The `Conv1D` of transformers keeps matrices as [inputs, outputs], and `c_attn`
    /// holds query, key and value side by side. Names in files of `GPT2Model` lack the prefix `transformer.`, and old files hold
    /// masks.
    fn released(&self) -> Option<Vec<Released>> {
        let (c, v) = (self.width, self.vocabulary);
        let mut table = Vec::new();
        let mut push = |name: &str, tensor: Released| {
            table.push(Released { name: format!("transformer.{name}"), also: Some(name.into()), ..tensor });
        };
        push("wte.weight", Released::same("", "param/token_embedding", &[v, c]));
        push("wpe.weight", Released::same("", "param/position_embedding", &[self.context, c]));
        for layer in 0..self.layers {
            let ours = |part: &str| format!("param/block{layer}.{part}");
            let mut push = |part: &str, tensor| push(&format!("h.{layer}.{part}"), tensor);
            for (theirs, norm) in [("ln_1", "norm1"), ("ln_2", "norm2")] {
                let [gain, bias] = ["gain", "bias"].map(|part| ours(&format!("{norm}.{part}")));
                push(&format!("{theirs}.weight"), Released::same("", gain, &[c]));
                push(&format!("{theirs}.bias"), Released::same("", bias, &[c]));
            }
            let linears: [(&str, &[&str], [u32; 2]); 4] = [
                ("attn.c_attn", &["query", "key", "value"], [c, c]),
                ("attn.c_proj", &["attention_out"], [c, c]),
                ("mlp.c_fc", &["mlp_in"], [4 * c, c]),
                ("mlp.c_proj", &["mlp_out"], [c, 4 * c]),
            ];
            for (theirs, names, [outputs, inputs]) in linears {
                let of = |part: &str| names.iter().map(|n| ours(&format!("{n}.{part}"))).collect::<Vec<_>>();
                let (weights, biases) = (of("weight"), of("bias"));
                let [weights, biases] =
                    [&weights, &biases].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
                push(&format!("{theirs}.weight"), Released::fused("", &weights, outputs, inputs));
                push(&format!("{theirs}.bias"), Released::joined("", &biases, outputs));
            }
            for mask in ["attn.bias", "attn.masked_bias"] {
                push(mask, Released { made: Made::Mask, ..Released::same("", "", &[]) });
            }
        }
        push("ln_f.weight", Released::same("", "param/final_norm.gain", &[c]));
        push("ln_f.bias", Released::same("", "param/final_norm.bias", &[c]));
        let head = Released::same("lm_head.weight", "param/head", &[v, c]);
        let copy = Made::CopyOf(vec![Part::whole("param/token_embedding".into(), v.saturating_mul(c), 0)]);
        table.push(if self.tied { Released { made: copy, ..head } } else { head });
        Some(table)
    }

    fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        BatchTensor::tokens_and_labels(samples * self.context, self.vocabulary)
    }

    fn labels_per_sample(&self) -> u32 {
        self.context
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        let mut text = Text::whole(b, samples, inputs.batch[0], self.document_end, None);
        let of_adapters = self.lora.as_ref().and_then(|lora| inputs.dropout(lora.dropout));
        let drops = [inputs.dropout(self.dropout), of_adapters];
        let logits = self.logits(b, &mut text, parameters, inputs.batch[0], drops);
        inputs.loss(b, logits, inputs.batch[1], Vec::new())
    }
}

impl Gpt {
    /// Appends the forward pass over a text up to the logits. `drop` is the model's own dropout, and that of its adapters.
    pub(in crate::program) fn logits(
        &self,
        b: &mut Builder,
        text: &mut Text,
        parameters: &[TensorId],
        tokens: TensorId,
        [drop, of_adapters]: [Option<Dropout>; 2],
    ) -> TensorId {
        let mut p = Cursor(parameters.iter());
        let samples = text.samples();
        let mut adapters = self.lora.as_ref().map_or_else(Adapters::default, |lora| {
            let drop = (of_adapters, 3 * self.layers + 1);
            Adapters::new(lora, &self.projections(), &parameters[self.frozen()..], drop)
        });
        let mut layer_of = |b: &mut Builder, layer: u32, name: &str, x, weight, bias| {
            adapters.linear(b, (&format!("block{layer}.{name}"), samples), x, weight, Some(bias))
        };
        let mut drops = 0..;
        // Dropouts are numbered in the order of the forward pass.
        let mut next_drop = move || drops.next().unwrap_or(0);
        let dropped = |b: &mut Builder, operator: u32, x| match drop {
            Some(d) => b.scoped("dropout", |b| dropout(b, d, samples, operator, x)),
            None => x,
        };
        let (token_table, position_table) = (p.next(), p.next());
        let mut x = b.scoped("embedding", |b| {
            let x = token_embedding(b, token_table, tokens);
            let x = text.add_positions(b, x, position_table);
            dropped(b, next_drop(), x)
        });
        for layer in 0..self.layers {
            x = b.scoped(&format!("block{layer}"), |b| {
                let (gain, bias) = (p.next(), p.next());
                let normed = b.scoped("norm1", |b| layer_norm(b, x, gain, bias, self.norm_epsilon));
                let qkv = ["query", "key", "value"].map(|name| {
                    let (weight, bias) = (p.next(), p.next());
                    b.scoped(name, |b| layer_of(b, layer, name, normed, weight, bias))
                });
                let drop_probabilities = drop.map(|d| (d, next_drop()));
                let attended = text.attention(b, qkv, [self.heads; 2], None, drop_probabilities);
                let (weight, bias) = (p.next(), p.next());
                let branch = b.scoped("attention_out", |b| {
                    let y = layer_of(b, layer, "attention_out", attended, weight, bias);
                    dropped(b, next_drop(), y)
                });
                let x = b.scoped("residual1", |b| residual(b, x, branch));
                let (gain, bias) = (p.next(), p.next());
                let normed = b.scoped("norm2", |b| layer_norm(b, x, gain, bias, self.norm_epsilon));
                let (weight, bias) = (p.next(), p.next());
                let hidden = b.scoped("mlp_in", |b| layer_of(b, layer, "mlp_in", normed, weight, bias));
                let hidden = self.gelu.of(b, hidden);
                let (weight, bias) = (p.next(), p.next());
                let branch = b.scoped("mlp_out", |b| {
                    let y = layer_of(b, layer, "mlp_out", hidden, weight, bias);
                    dropped(b, next_drop(), y)
                });
                b.scoped("residual2", |b| residual(b, x, branch))
            });
        }
        let (gain, bias) = (p.next(), p.next());
        let normed = b.scoped("final_norm", |b| layer_norm(b, x, gain, bias, self.norm_epsilon));
        let head = if self.tied { token_table } else { p.next() };
        b.scoped("head", |b| linear(b, LinearClasses::HEAD, normed, head, None))
    }
}

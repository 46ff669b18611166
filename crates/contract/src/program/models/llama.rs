//! A Llama decoder (Touvron et al., 2023): rotary positions, RMS normalisation before each branch, SwiGLU, no biases, and heads
//! of keys and values that several heads of queries may share.

use serde::{Deserialize, Serialize};

use super::released::{Made, Part, Released};
use super::sizes::times;
use super::{BatchTensor, Cursor, Init, Inputs, Loss, ModelParameter, Network, ProductSize, Sizes};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Optional, Required};
use crate::program::keys::Type::Boolean;
use crate::program::keys::{Key, NOT_NEGATIVE, Type, integer, key};
use crate::program::operators::{
    LinearClasses, Rotary, causal_attention, linear, repeat_heads, residual, rms_norm, rotary, rotary_error,
    rotary_tables, swiglu, token_embedding,
};

fn default_vocabulary() -> u32 {
    256
}

fn default_theta() -> f32 {
    10_000.0
}

fn default_epsilon() -> f32 {
    1e-5
}

fn default_std() -> f32 {
    0.02
}

/// The sizes of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llama {
    /// Classes of a token; 256 for bytes.
    #[serde(default = "default_vocabulary")]
    pub vocabulary: u32,
    /// Positions of a sample (T).
    pub context: u32,
    /// Decoder blocks.
    pub layers: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Heads of keys and values; a divisor of `heads`.
    pub kv_heads: u32,
    /// Channels (C); a multiple of `heads`.
    pub width: u32,
    /// Channels within a feed-forward layer.
    pub hidden: u32,
    /// The base of the frequencies of rotary positions.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// The number that a normalisation adds to the mean square.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// True if the output projection is the token table.
    #[serde(default)]
    pub tied: bool,
    /// Standard deviation of initial weights; residual projections get std / sqrt(2 layers).
    #[serde(default = "default_std")]
    pub init_std: f32,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.vocabulary", integer(1, 1 << 20), Optional("256"), "128", "Tokens are numbers below this; 256 for bytes.").kind("llama").unit("tokens"),
    key("model.context", integer(1, 1 << 16), Required, "64", "Positions of a sample.").kind("llama").unit("tokens"),
    key("model.layers", integer(1, 1 << 10), Required, "2", "Decoder blocks.").kind("llama").unit("blocks"),
    key("model.heads", integer(1, 1 << 10), Required, "4", "Attention heads of a block.").kind("llama").unit("heads"),
    key("model.kv_heads", integer(1, 1 << 10), Required, "2", "Heads of keys and values of a block, each for `heads` / `kv_heads` heads of queries.").kind("llama").unit("heads").rule("a divisor of `heads`"),
    key("model.width", integer(1, 1 << 16), Required, "64", "Channels of a position. A head has `width` / `heads` of them: an even number, at most 256.").kind("llama").unit("channels").rule("a multiple of `heads`"),
    key("model.hidden", integer(1, 1 << 18), Required, "176", "Channels within a feed-forward layer.").kind("llama").unit("channels"),
    key("model.rope_theta", Type::Number { least: 1.0, above: false, below: None }, Optional("10000.0"), "500000.0", "The base of the frequencies by which rotary positions turn.").kind("llama"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-6", "What a normalisation adds to the mean square.").kind("llama"),
    key("model.tied", Boolean, Optional("false"), "true", "Whether the output projection is the token table.").kind("llama"),
    key("model.init_std", NOT_NEGATIVE, Optional("0.02"), "0.01", "Standard deviation of initial weights; projections back to the residual stream get init_std / sqrt(2 layers).").kind("llama"),
];

impl Llama {
    /// Channels of a head.
    fn channels(&self) -> u32 {
        self.width / self.heads
    }

    /// The matrices of a block: name, outputs, inputs, and true for a projection back to the residual stream. Those up to
    /// `attention_out` come before the second normalisation.
    fn matrices(&self) -> [(&'static str, [u32; 2], bool); 7] {
        let (c, f, kv) = (self.width, self.hidden, self.kv_heads * self.channels());
        [
            ("query", [c, c], false),
            ("key", [kv, c], false),
            ("value", [kv, c], false),
            ("attention_out", [c, c], true),
            ("gate", [f, c], false),
            ("up", [f, c], false),
            ("down", [c, f], true),
        ]
    }

    /// The attention of a block, on a normalised input.
    fn attention(
        &self,
        b: &mut Builder,
        p: &mut Cursor,
        samples: u32,
        tables: Rotary,
        x: TensorId,
    ) -> TensorId {
        let [q, k, v] = ["query", "key", "value"].map(|name| matrix(b, p, name, x));
        let q = b.scoped("query_rotary", |b| rotary(b, tables, q));
        let k = b.scoped("key_rotary", |b| rotary(b, tables, k));
        let group = self.heads / self.kv_heads;
        let [k, v] = [("key_heads", k), ("value_heads", v)]
            .map(|(name, x)| b.scoped(name, |b| repeat_heads(b, x, self.kv_heads, group)));
        let attended = b.scoped("attention", |b| causal_attention(b, [q, k, v], samples, self.heads, None));
        matrix(b, p, "attention_out", attended)
    }
}

/// A linear layer without a bias, by the next parameter.
fn matrix(b: &mut Builder, p: &mut Cursor, name: &str, x: TensorId) -> TensorId {
    let weight = p.next();
    b.scoped(name, |b| linear(b, LinearClasses::HIDDEN, x, weight, None))
}

impl Network for Llama {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Llama> {
        let llama = |kv_heads, tied| Llama {
            vocabulary: 17 + second,
            context: 5 + second,
            layers: 1,
            heads: 2,
            kv_heads,
            width: 8 + 8 * second,
            hidden: 9 + second,
            // No two words of the tables are one.
            rope_theta: 1.7 + second as f32 / 16.0,
            norm_epsilon: 1e-5 + second as f32 / 16.0,
            tied,
            init_std: 0.02,
        };
        vec![llama(1, true), llama(2, false)]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        if !self.width.is_multiple_of(self.heads) {
            return Some(("width", format!("must be a multiple of heads ({})", self.heads)));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Some(("kv_heads", format!("must divide heads ({})", self.heads)));
        }
        let channels = self.channels();
        let why = rotary_error(self.context, channels)?;
        Some(("width", format!("gives each head {channels} channels, but {why}")))
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let [v, t, c, h, f] =
            [self.vocabulary, self.context, self.width, self.heads, self.hidden].map(u64::from);
        let rows = times(&[samples, t]);
        let layers = self
            .matrices()
            .map(|(_, [outputs, inputs], _)| ProductSize::linear(rows, inputs.into(), outputs.into()));
        let (head, attention) = (ProductSize::head(rows, c, v), ProductSize::attention(rows, t, c, h));
        let products = layers.into_iter().flatten().chain(head).chain(attention).collect();
        let largest = times(&[rows, v.max(c).max(f)]).max(times(&[rows, h, t]));
        Sizes { largest, normalised_rows: 0, products }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let (c, v) = (self.width, self.vocabulary);
        let normal = Init::Normal { std: self.init_std };
        let projection = Init::Normal { std: self.init_std / (2.0 * self.layers as f32).sqrt() };
        let matrix =
            |name, shape: [u32; 2], init| ModelParameter { name, shape: shape.to_vec(), init, decayed: true };
        let gain = |name| ModelParameter { name, shape: vec![c], init: Init::Ones, decayed: false };
        let mut table = vec![matrix("token_embedding".into(), [v, c], normal)];
        for layer in 0..self.layers {
            let name = |rest: &str| format!("block{layer}.{rest}");
            table.push(gain(name("norm1.gain")));
            for (part, shape, is_projection) in self.matrices() {
                if part == "gate" {
                    table.push(gain(name("norm2.gain")));
                }
                let init = if is_projection { projection } else { normal };
                table.push(matrix(name(&format!("{part}.weight")), shape, init));
            }
        }
        table.push(gain("final_norm.gain".into()));
        if !self.tied {
            table.push(matrix("head".into(), [v, c], normal));
        }
        table
    }

    /// The tensors that `LlamaForCausalLM` stores, all in PyTorch's layout of linear layers, which is ours. Names in files of
    /// `LlamaModel` lack the prefix `model.`, and old files hold frequencies.
    fn released(&self) -> Option<Vec<Released>> {
        let (c, v) = (self.width, self.vocabulary);
        let mut table = Vec::new();
        let mut push = |name: &str, tensor: Released| {
            table.push(Released { name: format!("model.{name}"), also: Some(name.into()), ..tensor });
        };
        push("embed_tokens.weight", Released::same("", "param/token_embedding", &[v, c]));
        for layer in 0..self.layers {
            let ours = |part: &str| format!("param/block{layer}.{part}");
            let mut push = |part: &str, tensor| push(&format!("layers.{layer}.{part}"), tensor);
            for (theirs, norm) in [("input_layernorm", "norm1"), ("post_attention_layernorm", "norm2")] {
                let gain = ours(&format!("{norm}.gain"));
                push(&format!("{theirs}.weight"), Released::same("", gain, &[c]));
            }
            for (part, shape, _) in self.matrices() {
                let theirs = match part {
                    "query" => "self_attn.q_proj",
                    "key" => "self_attn.k_proj",
                    "value" => "self_attn.v_proj",
                    "attention_out" => "self_attn.o_proj",
                    "gate" => "mlp.gate_proj",
                    "up" => "mlp.up_proj",
                    _ => "mlp.down_proj",
                };
                let weight = ours(&format!("{part}.weight"));
                push(&format!("{theirs}.weight"), Released::same("", weight, &shape));
            }
            let frequencies = Released { made: Made::Mask, ..Released::same("", "", &[]) };
            push("self_attn.rotary_emb.inv_freq", frequencies);
        }
        push("norm.weight", Released::same("", "param/final_norm.gain", &[c]));
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
        let mut cursor = Cursor(parameters.iter());
        let p = &mut cursor;
        let (tokens, labels) = (inputs.batch[0], inputs.batch[1]);
        let token_table = p.next();
        let mut x = b.scoped("embedding", |b| token_embedding(b, token_table, tokens));
        let sizes = [samples, self.context, self.channels() / 2];
        let tables = b.scoped("rotary", |b| rotary_tables(b, sizes, self.rope_theta));
        for layer in 0..self.layers {
            x = b.scoped(&format!("block{layer}"), |b| {
                let gain = p.next();
                let normed = b.scoped("norm1", |b| rms_norm(b, x, gain, self.norm_epsilon));
                let branch = self.attention(b, p, samples, tables, normed);
                let x = b.scoped("residual1", |b| residual(b, x, branch));
                let gain = p.next();
                let normed = b.scoped("norm2", |b| rms_norm(b, x, gain, self.norm_epsilon));
                let [gate, up] = ["gate", "up"].map(|name| matrix(b, p, name, normed));
                let hidden = b.scoped("swiglu", |b| swiglu(b, gate, up));
                let branch = matrix(b, p, "down", hidden);
                b.scoped("residual2", |b| residual(b, x, branch))
            });
        }
        let gain = p.next();
        let normed = b.scoped("final_norm", |b| rms_norm(b, x, gain, self.norm_epsilon));
        let head = if self.tied { token_table } else { p.next() };
        let logits = b.scoped("head", |b| linear(b, LinearClasses::HEAD, normed, head, None));
        inputs.loss(b, logits, labels, Vec::new())
    }
}

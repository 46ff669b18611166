//! A Llama decoder (Touvron et al., 2023): rotary positions, RMS normalisation before each branch, SwiGLU, and heads of keys and
//! values that several heads of queries may share. Keys that a job may leave out add what Qwen's decoders have: biases, heads of
//! another width, and a normalisation of queries and keys.

use serde::{Deserialize, Serialize};

use super::lora::{Adapters, Projection};
use super::released::{Made, Part, Released};
use super::sizes::times;
use super::{
    BatchTensor, Cursor, Init, Inputs, Lora, Loss, ModelParameter, Network, ProductSize, Sizes, Text,
    document_error, window_error,
};
use crate::arith::turns::{scaled, turns};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::Boolean;
use crate::program::keys::{Key, NOT_NEGATIVE, Type, integer, key};
use crate::program::operators::{
    Dropout, LinearClasses, Rotary, linear, residual, rms_norm, rotary, rotary_error, swiglu, token_embedding,
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

fn is_false(value: &bool) -> bool {
    !value
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
    /// Channels (C); a multiple of `heads`, unless `head_width` is there.
    pub width: u32,
    /// Channels of a head (D); `width` / `heads` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_width: Option<u32>,
    /// Channels within a feed-forward layer.
    pub hidden: u32,
    /// The base of the frequencies of rotary positions.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// The factor by which the wavelengths of rotary positions are longer: all of them, or with the next three keys some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_factor: Option<f32>,
    /// Wavelengths that fit fewer times into the original context are longer by the whole factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_low_freq_factor: Option<f32>,
    /// Wavelengths that fit more times into the original context stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_high_freq_factor: Option<f32>,
    /// The context for which the unscaled frequencies were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_original_context: Option<u32>,
    /// The number that a normalisation adds to the mean square.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// True if the layers of queries, keys and values have biases.
    #[serde(default, skip_serializing_if = "is_false")]
    pub qkv_bias: bool,
    /// True if the layer behind the attention has a bias.
    #[serde(default, skip_serializing_if = "is_false")]
    pub out_bias: bool,
    /// True if feed-forward layers have biases.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlp_bias: bool,
    /// True if every head of queries and keys is normalised before its rotation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub qk_norm: bool,
    /// True if the output projection is the token table.
    #[serde(default)]
    pub tied: bool,
    /// Standard deviation of initial weights; residual projections get std / sqrt(2 layers).
    #[serde(default = "default_std")]
    pub init_std: f32,
    /// The token that ends a document, if no position attends to another document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_end: Option<u32>,
    /// The last positions, its own included, that a position attends to, if there are more before them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<u32>,
    /// The blocks without that window, from 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub full_layers: Vec<u32>,
    /// Adapters, if they alone are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

/// Numbers of blocks.
const LAYERS: Type = Type::List { of: &integer(0, (1 << 10) - 1), least: 1, most: 1 << 10 };
/// A factor of wavelengths.
const FACTOR: Type = Type::Number { least: 1.0, above: false, below: Some(65536.0) };
const BESIDE_LOW: &str = "rope_factor = 8.0\nrope_high_freq_factor = 4.0\nrope_original_context = 8192";
const BESIDE_HIGH: &str = "rope_factor = 8.0\nrope_low_freq_factor = 1.0\nrope_original_context = 8192";
const BESIDE_ORIGINAL: &str = "rope_factor = 8.0\nrope_low_freq_factor = 1.0\nrope_high_freq_factor = 4.0";

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.vocabulary", integer(1, 1 << 20), Optional("256"), "128", "Tokens are numbers below this; 256 for bytes.").kind("llama").unit("tokens"),
    key("model.context", integer(1, 1 << 16), Required, "64", "Positions of a sample.").kind("llama").unit("tokens"),
    key("model.layers", integer(1, 1 << 10), Required, "2", "Decoder blocks.").kind("llama").unit("blocks"),
    key("model.heads", integer(1, 1 << 10), Required, "4", "Attention heads of a block.").kind("llama").unit("heads"),
    key("model.kv_heads", integer(1, 1 << 10), Required, "2", "Heads of keys and values of a block, each for `heads` / `kv_heads` heads of queries.").kind("llama").unit("heads").rule("a divisor of `heads`"),
    key("model.width", integer(1, 1 << 16), Required, "64", "Channels of a position. Without `head_width` a head has `width` / `heads` of them: an even number, at most 256.").kind("llama").unit("channels").rule("a multiple of `heads`, or any number with `head_width`"),
    key("model.head_width", integer(2, 256), Absent("`width` / `heads`"), "32", "Channels of a head: an even number.").kind("llama").unit("channels"),
    key("model.hidden", integer(1, 1 << 18), Required, "176", "Channels within a feed-forward layer.").kind("llama").unit("channels"),
    key("model.rope_theta", Type::Number { least: 1.0, above: false, below: None }, Optional("10000.0"), "500000.0", "The base of the frequencies by which rotary positions turn.").kind("llama"),
    key("model.rope_factor", FACTOR, Absent("no scaling"), "8.0", "How many times longer the wavelengths of rotary positions are. With the three keys that follow it, only long wavelengths are longer, as Llama 3.1's.").kind("llama"),
    key("model.rope_low_freq_factor", FACTOR, Absent("all wavelengths are longer"), "1.0", "Wavelengths that fit fewer times into `rope_original_context` are longer by the whole factor.").kind("llama").rule("only with the other three keys of scaling").beside(BESIDE_LOW),
    key("model.rope_high_freq_factor", FACTOR, Absent("all wavelengths are longer"), "4.0", "Wavelengths that fit more times into `rope_original_context` stay as they are.").kind("llama").rule("at least 1 more than `rope_low_freq_factor`").beside(BESIDE_HIGH),
    key("model.rope_original_context", integer(1, 1 << 20), Absent("all wavelengths are longer"), "8192", "The context for which the frequencies were made.").kind("llama").unit("tokens").rule("only with the other three keys of scaling").beside(BESIDE_ORIGINAL),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-6", "What a normalisation adds to the mean square.").kind("llama"),
    key("model.qkv_bias", Boolean, Optional("false"), "true", "Whether the layers of queries, keys and values have biases, as Qwen2's do.").kind("llama"),
    key("model.out_bias", Boolean, Optional("false"), "true", "Whether the layer behind the attention has a bias.").kind("llama"),
    key("model.mlp_bias", Boolean, Optional("false"), "true", "Whether feed-forward layers have biases.").kind("llama"),
    key("model.qk_norm", Boolean, Optional("false"), "true", "Whether every head of queries and keys is normalised before its rotation, as Qwen3's are.").kind("llama"),
    key("model.tied", Boolean, Optional("false"), "true", "Whether the output projection is the token table.").kind("llama"),
    key("model.init_std", NOT_NEGATIVE, Optional("0.02"), "0.01", "Standard deviation of initial weights; projections back to the residual stream get init_std / sqrt(2 layers).").kind("llama"),
    key("model.document_end", integer(0, (1 << 20) - 1), Absent("a sample is one document"), "50256", "The token that ends a document. A position attends to no other document of its sample (docs/DATA.md).").kind("llama").rule("below `vocabulary`").beside("vocabulary = 50257"),
    key("model.sliding_window", integer(1, (1 << 16) - 1), Absent("no window"), "32", "The last positions that a position attends to, its own included, as Mistral's.").kind("llama").unit("tokens").rule("below `context`"),
    key("model.full_layers", LAYERS, Absent("every block has the window"), "[0]", "The blocks without the window, from 0, as some of Qwen's are.").kind("llama").rule("rising; only with `sliding_window`, and not all blocks").beside("sliding_window = 32"),
    key("model.lora", Type::Table, Absent("all parameters are trained"), "", "Low-rank adapters, as PEFT's LoRA: they are trained, and all other parameters stay as they are (docs/ARITHMETIC.md, section 8.3).").kind("llama"),
];

impl Llama {
    /// Channels of a head.
    fn channels(&self) -> u32 {
        self.head_width.unwrap_or(self.width / self.heads)
    }

    /// Channels of all heads of queries.
    fn attended(&self) -> u32 {
        self.heads * self.channels()
    }

    /// The linear layers of a block: name, outputs and inputs, and whether there is a bias. Those up to `attention_out` come
    /// before the second normalisation.
    fn layers_of_block(&self) -> [(&'static str, [u32; 2], bool); 7] {
        let (c, f, q, kv) = (self.width, self.hidden, self.attended(), self.kv_heads * self.channels());
        [
            ("query", [q, c], self.qkv_bias),
            ("key", [kv, c], self.qkv_bias),
            ("value", [kv, c], self.qkv_bias),
            ("attention_out", [c, q], self.out_bias),
            ("gate", [f, c], self.mlp_bias),
            ("up", [f, c], self.mlp_bias),
            ("down", [c, f], self.mlp_bias),
        ]
    }

    /// The parameters without those of adapters.
    fn own_parameters(&self) -> Vec<ModelParameter> {
        let (c, v) = (self.width, self.vocabulary);
        let normal = Init::Normal { std: self.init_std };
        let projection = Init::Normal { std: self.init_std / (2.0 * self.layers as f32).sqrt() };
        let matrix =
            |name, shape: [u32; 2], init| ModelParameter { name, shape: shape.to_vec(), init, decayed: true };
        let vector = |name, len, init| ModelParameter { name, shape: vec![len], init, decayed: false };
        let gain = |name| vector(name, c, Init::Ones);
        let mut table = vec![matrix("token_embedding".into(), [v, c], normal)];
        for layer in 0..self.layers {
            let name = |rest: &str| format!("block{layer}.{rest}");
            table.push(gain(name("norm1.gain")));
            for (part, shape, has_bias) in self.layers_of_block() {
                if part == "attention_out" {
                    let norms = self.head_norms().iter();
                    table.extend(
                        norms.map(|norm| vector(name(&format!("{norm}.gain")), self.channels(), Init::Ones)),
                    );
                }
                if part == "gate" {
                    table.push(gain(name("norm2.gain")));
                }
                let back = ["attention_out", "down"].contains(&part);
                let init = if back { projection } else { normal };
                table.push(matrix(name(&format!("{part}.weight")), shape, init));
                table.extend(has_bias.then(|| vector(name(&format!("{part}.bias")), shape[0], Init::Zeros)));
            }
        }
        table.push(gain("final_norm.gain".into()));
        if !self.tied {
            table.push(matrix("head".into(), [v, c], normal));
        }
        table
    }

    /// The turns of every pair of a head's channels from one position to the next.
    fn turns(&self) -> impl Iterator<Item = u64> {
        let bands = self.rope_low_freq_factor.zip(self.rope_high_freq_factor);
        let bands = bands.map(<[f32; 2]>::from).zip(self.rope_original_context);
        let factor = self.rope_factor;
        let scaling = move |turn| factor.map_or(turn, |factor| scaled(turn, factor, bands));
        turns(self.rope_theta, self.channels() / 2).map(scaling)
    }

    /// The error in the keys of scaling, if there is one.
    fn scaling_error(&self) -> Option<(&'static str, String)> {
        let keys = [
            ("rope_factor", self.rope_factor.is_some()),
            ("rope_low_freq_factor", self.rope_low_freq_factor.is_some()),
            ("rope_high_freq_factor", self.rope_high_freq_factor.is_some()),
            ("rope_original_context", self.rope_original_context.is_some()),
        ];
        let has_bands = keys[1..].iter().any(|(_, is_there)| *is_there);
        if let Some((missing, _)) = keys.into_iter().find(|(_, is_there)| has_bands && !is_there) {
            let why = "is missing: rope_low_freq_factor, rope_high_freq_factor and rope_original_context need each other and rope_factor";
            return Some((missing, why.into()));
        }
        let (low, high) = self.rope_low_freq_factor.zip(self.rope_high_freq_factor)?;
        let why = format!("must be at least 1 more than rope_low_freq_factor ({low})");
        (f64::from(high) - f64::from(low) < 1.0).then_some(("rope_high_freq_factor", why))
    }

    /// The normalisations of queries and keys, if there are any.
    fn head_norms(&self) -> &'static [&'static str] {
        if self.qk_norm { &["query_norm", "key_norm"] } else { &[] }
    }

    /// The attention of a block, on a normalised input.
    fn attention(
        &self,
        b: &mut Builder,
        layers: &mut Layers,
        text: &mut Text,
        tables: Rotary,
        x: TensorId,
    ) -> TensorId {
        let [mut q, mut k, v] =
            ["query", "key", "value"].map(|name| layers.linear(b, name, x, self.qkv_bias));
        let normed = [(&mut q, self.heads), (&mut k, self.kv_heads)];
        for (name, (x, heads)) in self.head_norms().iter().zip(normed) {
            let gain = layers.p.next();
            *x = b.scoped(name, |b| rms_norm(b, *x, gain, heads, self.norm_epsilon));
        }
        let q = b.scoped("query_rotary", |b| rotary(b, tables, q));
        let k = b.scoped("key_rotary", |b| rotary(b, tables, k));
        let window = self.sliding_window.filter(|_| !self.full_layers.contains(&layers.block));
        let attended = text.attention(b, [q, k, v], [self.heads, self.kv_heads], window, None);
        layers.linear(b, "attention_out", attended, self.out_bias)
    }

    /// The projections that may have adapters, in order.
    fn projections(&self) -> Vec<Projection> {
        let of_block = |block: u32| {
            self.layers_of_block().map(|(layer, sizes, _)| {
                let name = format!("block{block}.{layer}");
                let (module, block) = (module(layer), format!("model.layers.{block}"));
                Projection { block, module, layers: vec![name.clone()], name, sizes }
            })
        };
        (0..self.layers).flat_map(of_block).collect()
    }

    /// Channels of a position's keys, and the number of their heads.
    pub(in crate::program) fn cached(&self) -> [u32; 2] {
        [self.kv_heads * self.channels(), self.kv_heads]
    }

    /// Appends the forward pass over a text up to the logits. `drop` is the adapters' dropout.
    pub(in crate::program) fn logits(
        &self,
        b: &mut Builder,
        text: &mut Text,
        parameters: &[TensorId],
        tokens: TensorId,
        drop: Option<Dropout>,
    ) -> TensorId {
        let adapters = self.lora.as_ref().map_or_else(Adapters::default, |lora| {
            Adapters::new(lora, &self.projections(), &parameters[self.frozen()..], (drop, 0))
        });
        let samples = text.samples();
        let mut layers = Layers { p: Cursor(parameters.iter()), adapters, block: 0, samples };
        let token_table = layers.p.next();
        let mut x = b.scoped("embedding", |b| token_embedding(b, token_table, tokens));
        let sizes = [self.context, self.channels() / 2];
        let tables = b.scoped("rotary", |b| text.rotary(b, sizes, self.turns()));
        for block in 0..self.layers {
            layers.block = block;
            x = b.scoped(&format!("block{block}"), |b| {
                let gain = layers.p.next();
                let normed = b.scoped("norm1", |b| rms_norm(b, x, gain, 1, self.norm_epsilon));
                let branch = self.attention(b, &mut layers, text, tables, normed);
                let x = b.scoped("residual1", |b| residual(b, x, branch));
                let gain = layers.p.next();
                let normed = b.scoped("norm2", |b| rms_norm(b, x, gain, 1, self.norm_epsilon));
                let [gate, up] = ["gate", "up"].map(|name| layers.linear(b, name, normed, self.mlp_bias));
                let hidden = b.scoped("swiglu", |b| swiglu(b, gate, up));
                let branch = layers.linear(b, "down", hidden, self.mlp_bias);
                b.scoped("residual2", |b| residual(b, x, branch))
            });
        }
        let gain = layers.p.next();
        let normed = b.scoped("final_norm", |b| rms_norm(b, x, gain, 1, self.norm_epsilon));
        let head = if self.tied { token_table } else { layers.p.next() };
        b.scoped("head", |b| linear(b, LinearClasses::HEAD, normed, head, None))
    }
}

impl Default for Llama {
    /// A model of one channel pair, with the keys that a job may leave out as they are then.
    fn default() -> Llama {
        Llama {
            vocabulary: default_vocabulary(),
            context: 1,
            layers: 1,
            heads: 1,
            kv_heads: 1,
            width: 2,
            head_width: None,
            hidden: 1,
            rope_theta: default_theta(),
            rope_factor: None,
            rope_low_freq_factor: None,
            rope_high_freq_factor: None,
            rope_original_context: None,
            norm_epsilon: default_epsilon(),
            qkv_bias: false,
            out_bias: false,
            mlp_bias: false,
            qk_norm: false,
            tied: false,
            init_std: default_std(),
            document_end: None,
            sliding_window: None,
            full_layers: Vec::new(),
            lora: None,
        }
    }
}

/// The linear layers of a block: the parameters that come next, and adapters.
struct Layers<'a> {
    p: Cursor<'a>,
    adapters: Adapters,
    block: u32,
    samples: u32,
}

impl Layers<'_> {
    /// A linear layer by the next parameters.
    fn linear(&mut self, b: &mut Builder, name: &str, x: TensorId, has_bias: bool) -> TensorId {
        let weight = self.p.next();
        let bias = has_bias.then(|| self.p.next());
        let layer = format!("block{}.{name}", self.block);
        b.scoped(name, |b| self.adapters.linear(b, (&layer, self.samples), x, weight, bias))
    }
}

/// The name of a block's linear layer in transformers.
fn module(layer: &str) -> &'static str {
    match layer {
        "query" => "self_attn.q_proj",
        "key" => "self_attn.k_proj",
        "value" => "self_attn.v_proj",
        "attention_out" => "self_attn.o_proj",
        "gate" => "mlp.gate_proj",
        "up" => "mlp.up_proj",
        _ => "mlp.down_proj",
    }
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
            ..Llama::default()
        };
        let qwen = Llama {
            head_width: Some(6 + 4 * second),
            qkv_bias: true,
            qk_norm: true,
            document_end: Some(3 + second),
            sliding_window: Some(2 + second),
            ..llama(2, false)
        };
        vec![llama(1, true), qwen]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        if self.head_width.is_none() && !self.width.is_multiple_of(self.heads) {
            let why = format!("must be a multiple of heads ({}), or head_width is there too", self.heads);
            return Some(("width", why));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Some(("kv_heads", format!("must divide heads ({})", self.heads)));
        }
        if let Some(error) = self.scaling_error() {
            return Some(error);
        }
        let channels = self.channels();
        if let Some(why) = rotary_error(self.context, channels) {
            let key = if self.head_width.is_some() { "head_width" } else { "width" };
            return Some((key, format!("gives each head {channels} channels, but {why}")));
        }
        if let Some(error) = document_error(self.document_end, self.vocabulary) {
            return Some(error);
        }
        let sizes = [self.context, self.layers];
        if let Some(error) = window_error(self.sliding_window, &self.full_layers, sizes) {
            return Some(error);
        }
        self.lora.as_ref()?.error(&self.projections())
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let [v, t, c, h, f] =
            [self.vocabulary, self.context, self.width, self.heads, self.hidden].map(u64::from);
        let (rows, q) = (times(&[samples, t]), u64::from(self.attended()));
        let layers = self
            .layers_of_block()
            .map(|(_, [outputs, inputs], _)| ProductSize::linear(rows, inputs.into(), outputs.into()));
        let (head, attention) = (ProductSize::head(rows, c, v), ProductSize::attention(rows, t, q, h));
        let lora = self.lora.as_ref().map(|lora| lora.sizes(rows, &self.projections()));
        let (adapters, inner) = lora.unwrap_or_default();
        let products = layers.into_iter().flatten().chain(head).chain(attention).chain(adapters).collect();
        let largest = times(&[rows, v.max(c).max(f).max(q)]).max(times(&[rows, h, t])).max(inner);
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

    /// The tensors that `LlamaForCausalLM` and the classes after it store, all in PyTorch's layout of linear layers, which is ours. Names in files of
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
            for norm in self.head_norms() {
                let theirs = if *norm == "query_norm" { "q_norm" } else { "k_norm" };
                let gain = Released::same("", ours(&format!("{norm}.gain")), &[self.channels()]);
                push(&format!("self_attn.{theirs}.weight"), gain);
            }
            for (part, shape, has_bias) in self.layers_of_block() {
                let theirs = module(part);
                let weight = ours(&format!("{part}.weight"));
                push(&format!("{theirs}.weight"), Released::same("", weight, &shape));
                if has_bias {
                    let bias = Released::same("", ours(&format!("{part}.bias")), &shape[..1]);
                    push(&format!("{theirs}.bias"), bias);
                }
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
        let mut text = Text::whole(b, samples, inputs.batch[0], self.document_end, self.sliding_window);
        let drop = self.lora.as_ref().and_then(|lora| inputs.dropout(lora.dropout));
        let logits = self.logits(b, &mut text, parameters, inputs.batch[0], drop);
        inputs.loss(b, logits, inputs.batch[1], Vec::new())
    }
}

//! An encoder that learns masked tokens or classifies sequences (Devlin et al., 2018; Sanh et al., 2019): learned positions,
//! attention to all positions, blocks with a layer normalisation behind each residual. The head shares the token table, or is a
//! classifier over the first position.

mod names;

use serde::{Deserialize, Serialize};

use super::gpt::Gelu;
use super::released::Released;
use super::sizes::times;
use super::{BatchTensor, Cursor, IDS, Init, Inputs, Loss, ModelParameter, Network, ProductSize, Sizes};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::Choice;
use crate::program::keys::{BELOW_ONE, Key, NOT_NEGATIVE, Type, integer, key};
use crate::program::operators::{
    LinearClasses, Seen, add_first_rows, attention, first_position, layer_norm, linear, padded_embedding,
    position_embedding, relu, residual, tanh,
};

/// The encoder that the blocks are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BertForm {
    /// BERT: there is a dropout behind the attention.
    #[default]
    Bert,
    /// DistilBERT: there is none, and tokens have no types.
    Distilbert,
}

fn default_gelu() -> Gelu {
    Gelu::Erf
}

fn default_std() -> f32 {
    0.02
}

fn default_epsilon() -> f32 {
    1e-12
}

fn is_zero(number: &f32) -> bool {
    *number == 0.0
}

/// The sizes of an encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bert {
    /// The encoder that the blocks are of.
    #[serde(default)]
    pub form: BertForm,
    /// Classes of a token.
    pub vocabulary: u32,
    /// Positions of a sample (T).
    pub context: u32,
    /// Encoder blocks.
    pub layers: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Channels (C); a multiple of `heads`.
    pub width: u32,
    /// Channels within a feed-forward layer.
    pub hidden: u32,
    /// Rows of the table of token types, of which every token has the first; none if there is no table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_types: Option<u32>,
    /// The token that no position attends to, if there is padding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<u32>,
    /// The form of GELU.
    #[serde(default = "default_gelu")]
    pub gelu: Gelu,
    /// Classes of a sequence, if the encoder ends in a classifier; none if it learns masked tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<u32>,
    /// Drop probability before the classifier.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub classifier_dropout: f32,
    /// Drop probability of embeddings and residual branches.
    #[serde(default)]
    pub dropout: f32,
    /// Drop probability of attention probabilities.
    #[serde(default)]
    pub attention_dropout: f32,
    /// Standard deviation of initial weights.
    #[serde(default = "default_std")]
    pub init_std: f32,
    /// The number that a layer normalisation adds to the variance.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.form", Choice(&["bert", "distilbert"]), Optional(r#""bert""#), r#""distilbert""#, "The encoder that the blocks are of. `bert`: BERT's. `distilbert`: DistilBERT's, without a dropout behind the attention and without token types.").kind("bert"),
    key("model.vocabulary", integer(1, 1 << 20), Required, "257", "Tokens are numbers below this. Of bytes 257, so that 256 can stand for a masked one.").kind("bert").unit("tokens"),
    key("model.context", integer(1, 1 << 16), Required, "64", "Positions of a sample.").kind("bert").unit("tokens"),
    key("model.layers", integer(1, 1 << 10), Required, "2", "Encoder blocks.").kind("bert").unit("blocks"),
    key("model.heads", integer(1, 1 << 10), Required, "4", "Attention heads of a block.").kind("bert").unit("heads"),
    key("model.width", integer(1, 1 << 16), Required, "64", "Channels of a position.").kind("bert").unit("channels").rule("a multiple of `heads`"),
    key("model.hidden", integer(1, 1 << 18), Required, "256", "Channels within a feed-forward layer.").kind("bert").unit("channels"),
    key("model.token_types", integer(1, 1 << 16), Absent("tokens have no types"), "2", "Rows of the table of token types. Every token has the first type.").kind("bert").unit("types").rule("not with `form = \"distilbert\"`"),
    key("model.padding", integer(0, (1 << 20) - 1), Absent("there is no padding"), "0", "The token that no position attends to.").kind("bert").rule("below `vocabulary`"),
    key("model.classes", integer(2, 1 << 20), Absent("the encoder learns masked tokens"), "2", "Classes of a sequence, if the encoder ends in a classifier over the first position. The data are `arrays` of token ids then: each row has `context` ids and one label. Shorter sequences end in `padding`.").kind("bert").unit("classes").rule("without `[data.masking]`"),
    key("model.classifier_dropout", BELOW_ONE, Optional("0.0"), "0.2", "Drop probability before the classifier.").kind("bert").rule("only with `classes`").beside("classes = 2"),
    key("model.gelu", Choice(&["tanh", "erf"]), Optional(r#""erf""#), r#""tanh""#, "The form of GELU: the approximation by tanh, or the definition by erf.").kind("bert"),
    key("model.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of embeddings and residual branches.").kind("bert"),
    key("model.attention_dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of attention probabilities.").kind("bert"),
    key("model.init_std", NOT_NEGATIVE, Optional("0.02"), "0.01", "Standard deviation of initial weights.").kind("bert"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-12"), "1e-6", "What a layer normalisation adds to the variance.").kind("bert"),
];

/// The table of parameters, as it is written.
struct Table {
    parameters: Vec<ModelParameter>,
    normal: Init,
}

impl Table {
    fn matrix(&mut self, name: &str, shape: [u32; 2]) {
        let (name, shape, init) = (name.into(), shape.to_vec(), self.normal);
        self.parameters.push(ModelParameter { name, shape, init, decayed: true });
    }

    fn vector(&mut self, name: String, len: u32, init: Init) {
        self.parameters.push(ModelParameter { name, shape: vec![len], init, decayed: false });
    }

    fn linear(&mut self, name: &str, [outputs, inputs]: [u32; 2]) {
        self.matrix(&format!("{name}.weight"), [outputs, inputs]);
        self.vector(format!("{name}.bias"), outputs, Init::Zeros);
    }

    fn norm(&mut self, name: &str, channels: u32) {
        self.vector(format!("{name}.gain"), channels, Init::Ones);
        self.vector(format!("{name}.bias"), channels, Init::Zeros);
    }
}

impl Network for Bert {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Bert> {
        let bert = |form, token_types, gelu, drop: f32, classes| Bert {
            form,
            vocabulary: 17 + second,
            context: 5 + second,
            layers: 1,
            heads: 2,
            width: 6 + 4 * second,
            hidden: 7 + 4 * second,
            token_types,
            padding: None,
            classes,
            classifier_dropout: 0.0,
            gelu,
            dropout: drop,
            attention_dropout: drop,
            init_std: default_std(),
            norm_epsilon: 1e-5 + second as f32 / 16.0,
        };
        vec![
            bert(BertForm::Bert, Some(2 + second), Gelu::Erf, 0.21 + second as f32 / 16.0, None),
            bert(BertForm::Distilbert, None, Gelu::Tanh, 0.0, None),
            bert(BertForm::Bert, None, Gelu::Erf, 0.0, Some(3)),
            bert(BertForm::Distilbert, None, Gelu::Erf, 0.0, Some(3)),
        ]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        let Bert { heads, vocabulary, .. } = self;
        if !self.width.is_multiple_of(*heads) {
            return Some(("width", format!("must be a multiple of heads ({heads})")));
        }
        if self.form == BertForm::Distilbert && self.token_types.is_some() {
            return Some((
                "token_types",
                "a model of form distilbert has no token types; leave it out".into(),
            ));
        }
        if self.classes.is_none() && self.classifier_dropout != 0.0 {
            let why = "only a model with classes has a classifier; write classes, or leave the key out";
            return Some(("classifier_dropout", why.into()));
        }
        let why = format!("must be below vocabulary ({vocabulary})");
        (self.padding? >= *vocabulary).then_some(("padding", why))
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let [v, t, c, h, e] =
            [self.vocabulary, self.context, self.width, self.heads, self.hidden].map(u64::from);
        let rows = times(&[samples, t]);
        // Classes are below 2^20 as tokens are, and a sample has one row of logits.
        let [head_rows, classes] = self.classes.map_or([rows, v], |classes| [samples, classes.into()]);
        let layers = [
            ProductSize::linear(rows, c, c),
            ProductSize::linear(rows, c, e),
            ProductSize::linear(rows, e, c),
            ProductSize::head(head_rows, c, classes),
        ];
        let attention = ProductSize::attention(rows, t, c, h);
        let products = layers.into_iter().flatten().chain(attention).collect();
        let logits = times(&[head_rows, classes]);
        let largest = times(&[rows, c.max(e)]).max(times(&[rows, h, t])).max(logits);
        Sizes { largest, normalised_rows: 0, products }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let (c, v) = (self.width, self.vocabulary);
        let mut table = Table { parameters: Vec::new(), normal: Init::Normal { std: self.init_std } };
        table.matrix("token_embedding", [v, c]);
        table.matrix("position_embedding", [self.context, c]);
        if let Some(types) = self.token_types {
            table.matrix("type_embedding", [types, c]);
        }
        table.norm("embedding_norm", c);
        for layer in 0..self.layers {
            let name = |part: &str| format!("block{layer}.{part}");
            for part in ["query", "key", "value", "attention_out"] {
                table.linear(&name(part), [c, c]);
            }
            table.norm(&name("norm1"), c);
            table.linear(&name("mlp_in"), [self.hidden, c]);
            table.linear(&name("mlp_out"), [c, self.hidden]);
            table.norm(&name("norm2"), c);
        }
        if let Some(classes) = self.classes {
            table.linear("pooler", [c, c]);
            table.linear("classifier", [classes, c]);
            return table.parameters;
        }
        table.linear("transform", [c, c]);
        table.norm("transform_norm", c);
        table.vector("head.bias".into(), v, Init::Zeros);
        table.parameters
    }

    fn released(&self) -> Option<Vec<Released>> {
        let (c, v) = (self.width, self.vocabulary);
        let theirs = match (self.form, self.token_types) {
            (BertForm::Bert, Some(_)) => &names::BERT,
            (BertForm::Distilbert, None) => &names::DISTILBERT,
            // A BERT of transformers always has types.
            _ => return None,
        };
        let mut table = names::Theirs(Vec::new());
        let embeddings = format!("{}.embeddings", theirs.base);
        table.matrix(&format!("{embeddings}.word_embeddings"), "token_embedding", [v, c]);
        table.matrix(&format!("{embeddings}.position_embeddings"), "position_embedding", [self.context, c]);
        if let Some(types) = self.token_types {
            table.matrix(&format!("{embeddings}.token_type_embeddings"), "type_embedding", [types, c]);
        }
        table.norm(&format!("{embeddings}.LayerNorm"), "embedding_norm", c);
        for layer in 0..self.layers {
            for (part, module) in theirs.block {
                let (module, ours) =
                    (format!("{}.{layer}.{module}", theirs.blocks), format!("block{layer}.{part}"));
                match part {
                    "norm1" | "norm2" => table.norm(&module, &ours, c),
                    "mlp_in" => table.linear(&module, &ours, [self.hidden, c]),
                    "mlp_out" => table.linear(&module, &ours, [c, self.hidden]),
                    _ => table.linear(&module, &ours, [c, c]),
                }
            }
        }
        match self.classes {
            None => theirs.for_masked(&mut table, [v, c]),
            Some(classes) => theirs.for_classes(&mut table, [classes, c]),
        }
        table.unread(theirs.positions);
        Some(table.0)
    }

    /// The pooler is drawn too if the encoder had no classifier.
    fn reclassify(&mut self, classes: u32) -> Vec<String> {
        let heads =
            if self.classes.is_some() { &["classifier.*"][..] } else { &["pooler.*", "classifier.*"] };
        self.classes = Some(classes);
        heads.iter().map(|pattern| pattern.to_string()).collect()
    }

    fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        match self.classes {
            None => BatchTensor::tokens_and_labels(samples * self.context, self.vocabulary),
            Some(classes) => vec![
                BatchTensor::u32(IDS, vec![samples, self.context], self.vocabulary),
                BatchTensor::u32("labels", vec![samples], classes),
            ],
        }
    }

    fn labels_per_sample(&self) -> u32 {
        if self.classes.is_some() { 1 } else { self.context }
    }

    fn learns_masked(&self) -> bool {
        self.classes.is_none()
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        let mut p = Cursor(parameters.iter());
        let tokens = inputs.batch[0];
        let token_table = p.next();
        let mut x = self.embedded(b, samples, token_table, &mut p, inputs);
        for layer in 0..self.layers {
            x = b.scoped(&format!("block{layer}"), |b| {
                let x = self.attended(b, [samples, layer], [x, tokens], &mut p, inputs);
                self.fed_forward(b, [samples, layer], x, &mut p, inputs)
            });
        }
        let logits = match self.classes {
            None => self.found(b, x, token_table, &mut p),
            Some(_) => self.classified(b, samples, x, &mut p, inputs),
        };
        inputs.loss(b, logits, inputs.batch[1], Vec::new())
    }
}

impl Bert {
    /// The logits of every position's token, by the table of tokens.
    fn found(&self, b: &mut Builder, x: TensorId, token_table: TensorId, p: &mut Cursor) -> TensorId {
        let x = b.scoped("transform", |b| {
            let (weight, bias) = (p.next(), p.next());
            let x = linear(b, LinearClasses::HIDDEN, x, weight, Some(bias));
            self.gelu.of(b, x)
        });
        let x = self.normed(b, "transform_norm", x, p);
        let bias = p.next();
        b.scoped("head", |b| linear(b, LinearClasses::HEAD, x, token_table, Some(bias)))
    }

    /// The logits of every sample's class, from its first position.
    fn classified(
        &self,
        b: &mut Builder,
        samples: u32,
        x: TensorId,
        p: &mut Cursor,
        inputs: &Inputs,
    ) -> TensorId {
        let x = b.scoped("first", |b| first_position(b, x, samples).expect("samples have equal rows"));
        let (weight, bias) = (p.next(), p.next());
        let x = b.scoped("pooler", |b| {
            let x = linear(b, LinearClasses::HIDDEN, x, weight, Some(bias));
            match self.form {
                BertForm::Bert => b.scoped("tanh", |b| tanh(b, x)),
                BertForm::Distilbert => b.scoped("relu", |b| relu(b, x)),
            }
        });
        let (weight, bias) = (p.next(), p.next());
        b.scoped("classifier", |b| {
            let x = inputs.dropped(b, self.classifier_dropout, [samples, 3 * self.layers + 1], x);
            linear(b, LinearClasses::HEAD, x, weight, Some(bias))
        })
    }

    fn normed(&self, b: &mut Builder, name: &str, x: TensorId, p: &mut Cursor) -> TensorId {
        let (gain, bias) = (p.next(), p.next());
        b.scoped(name, |b| layer_norm(b, x, gain, bias, self.norm_epsilon))
    }

    fn embedded(
        &self,
        b: &mut Builder,
        samples: u32,
        tokens: TensorId,
        p: &mut Cursor,
        inputs: &Inputs,
    ) -> TensorId {
        let x = b.scoped("embedding", |b| {
            let positions = p.next();
            let mut x = padded_embedding(b, tokens, inputs.batch[0], self.padding);
            if self.token_types.is_some() {
                let rows = b.shape(x)[0];
                x = add_first_rows(b, x, p.next(), rows).expect("one row is of every table");
            }
            position_embedding(b, x, positions)
        });
        let x = self.normed(b, "embedding_norm", x, p);
        inputs.dropped(b, self.dropout, [samples, 0], x)
    }

    /// The first half of a block: attention, its residual and its normalisation.
    fn attended(
        &self,
        b: &mut Builder,
        [samples, layer]: [u32; 2],
        [x, ids]: [TensorId; 2],
        p: &mut Cursor,
        inputs: &Inputs,
    ) -> TensorId {
        let qkv = ["query", "key", "value"].map(|name| {
            let (weight, bias) = (p.next(), p.next());
            b.scoped(name, |b| linear(b, LinearClasses::HIDDEN, x, weight, Some(bias)))
        });
        let seen = self.padding.map_or(Seen::All, |padding| Seen::Unpadded { ids, padding });
        let drop = inputs.dropout(self.attention_dropout).map(|drop| (drop, 3 * layer + 1));
        let y = b.scoped("attention", |b| attention(b, seen, qkv, [samples, self.heads], drop));
        let (weight, bias) = (p.next(), p.next());
        let y = b.scoped("attention_out", |b| {
            let y = linear(b, LinearClasses::HIDDEN, y, weight, Some(bias));
            match self.form {
                BertForm::Bert => inputs.dropped(b, self.dropout, [samples, 3 * layer + 2], y),
                BertForm::Distilbert => y,
            }
        });
        let x = b.scoped("residual1", |b| residual(b, y, x));
        self.normed(b, "norm1", x, p)
    }

    /// The second half of a block: the feed-forward layer, its residual and its normalisation.
    fn fed_forward(
        &self,
        b: &mut Builder,
        [samples, layer]: [u32; 2],
        x: TensorId,
        p: &mut Cursor,
        inputs: &Inputs,
    ) -> TensorId {
        let (weight, bias) = (p.next(), p.next());
        let y = b.scoped("mlp_in", |b| linear(b, LinearClasses::HIDDEN, x, weight, Some(bias)));
        let y = self.gelu.of(b, y);
        let (weight, bias) = (p.next(), p.next());
        let y = b.scoped("mlp_out", |b| {
            let y = linear(b, LinearClasses::HIDDEN, y, weight, Some(bias));
            inputs.dropped(b, self.dropout, [samples, 3 * layer + 3], y)
        });
        let x = b.scoped("residual2", |b| residual(b, y, x));
        self.normed(b, "norm2", x, p)
    }
}

//! A vision transformer that classifies images (Dosovitskiy et al., 2021): patches as rows behind a class token, learned positions,
//! blocks with a layer normalisation before each branch, and a classifier over the class token.

mod names;

use serde::{Deserialize, Serialize};

use super::gpt::Gelu;
use super::images::{image, linear_parameters, norm_parameters, normalize_error};
use super::normalize::{IMAGE_MEAN, MEANS, NORMALIZE, STDS};
use super::released::Released;
use super::sizes::times;
use super::{
    BatchTensor, Cursor, Init, Input, Inputs, Loss, ModelParameter, Network, Normalization, Normalize,
    ProductSize, Sizes, classified, normalizes,
};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::im2col::ConvGeometry;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::{self, Boolean, Choice};
use crate::program::keys::{BELOW_ONE, Key, NOT_NEGATIVE, integer, key};
use crate::program::operators::{
    LinearClasses, Seen, attention, class_token, first_position, im2col, layer_norm, linear,
    position_embedding, residual,
};

/// The most patches of an image: the class token is put before them by a convolution's patches, whose images have a bound.
const PATCHES_MAX: u64 = (1 << 15) - 2;

fn default_gelu() -> Gelu {
    Gelu::Erf
}

fn default_std() -> f32 {
    0.02
}

fn default_epsilon() -> f32 {
    1e-12
}

fn default_bias() -> bool {
    true
}

/// The sizes of a vision transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vit {
    /// Pixels of an image down; a multiple of `patch`.
    pub height: u32,
    /// Pixels of an image across; a multiple of `patch`.
    pub width: u32,
    /// Planes of an image: 3 for red, green and blue.
    pub planes: u32,
    /// Pixels of a patch, down and across (P).
    pub patch: u32,
    /// Encoder blocks.
    pub layers: u32,
    /// Attention heads of a block.
    pub heads: u32,
    /// Channels of a patch's row (C); a multiple of `heads`.
    pub channels: u32,
    /// Channels within a feed-forward layer.
    pub hidden: u32,
    /// Classes of an image.
    pub classes: u32,
    /// True if query, key and value have biases.
    #[serde(default = "default_bias")]
    pub qkv_bias: bool,
    /// The form of GELU.
    #[serde(default = "default_gelu")]
    pub gelu: Gelu,
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
    /// The name of the constants that normalise pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize: Option<Normalize>,
    /// The pixels' means, which replace a name: one, or one for each plane.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_mean: Vec<f32>,
    /// The standard deviations that belong to the means.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_std: Vec<f32>,
    /// The kind of the input numbers.
    #[serde(skip)]
    pub input: Input,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.height", integer(1, 1 << 12), Required, "32", "Rows of an image.").kind("vit").unit("pixels").rule("a multiple of `patch`"),
    key("model.width", integer(1, 1 << 12), Required, "32", "Columns of an image.").kind("vit").unit("pixels").rule("a multiple of `patch`"),
    key("model.planes", integer(1, 1 << 8), Required, "3", "Planes of an image: 3 for red, green and blue.").kind("vit").unit("planes"),
    key("model.patch", integer(1, 1 << 12), Required, "8", "Rows and columns of a patch. An image has at most 32766 patches.").kind("vit").unit("pixels"),
    key("model.layers", integer(1, 1 << 10), Required, "2", "Encoder blocks.").kind("vit").unit("blocks"),
    key("model.heads", integer(1, 1 << 10), Required, "4", "Attention heads of a block.").kind("vit").unit("heads"),
    key("model.channels", integer(1, 1 << 14), Required, "64", "Channels of a patch's row.").kind("vit").unit("channels").rule("a multiple of `heads`"),
    key("model.hidden", integer(1, 1 << 18), Required, "256", "Channels within a feed-forward layer.").kind("vit").unit("channels"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("vit").unit("classes"),
    key("model.qkv_bias", Boolean, Optional("true"), "false", "Whether query, key and value have biases.").kind("vit"),
    key("model.gelu", Choice(&["tanh", "erf"]), Optional(r#""erf""#), r#""tanh""#, "The form of GELU: the approximation by tanh, or the definition by erf.").kind("vit"),
    key("model.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of embeddings and residual branches.").kind("vit"),
    key("model.attention_dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of attention probabilities.").kind("vit"),
    key("model.init_std", NOT_NEGATIVE, Optional("0.02"), "0.01", "Standard deviation of initial weights.").kind("vit"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-12"), "1e-6", "What a layer normalisation adds to the variance.").kind("vit"),
    key("model.normalize", Choice(Normalize::NAMES), Absent("pixels are bytes / 255"), r#""half""#, NORMALIZE).kind("vit").rule("one plane, or as many as `planes`, and the data are bytes"),
    key("model.image_mean", MEANS, Absent("as `normalize` says"), "[0.5]", IMAGE_MEAN).kind("vit").not_with("normalize").rule("as many as `image_std` has").beside("image_std = [0.25]"),
    key("model.image_std", STDS, Absent("as `normalize` says"), "[0.25]", "The standard deviation of each of these.").kind("vit").not_with("normalize").rule("as many as `image_mean` has").beside("image_mean = [0.5]"),
];

impl Vit {
    /// Patches of an image.
    fn patches(&self) -> u64 {
        u64::from(self.height / self.patch) * u64::from(self.width / self.patch)
    }

    /// Numbers of a patch, below 2^31 in a model without contradiction.
    fn patch_numbers(&self) -> u32 {
        [self.patch, self.planes].into_iter().fold(self.patch, u32::saturating_mul)
    }

    /// The layers of an attention, the last of which has a bias always.
    fn projections(&self) -> [(&'static str, bool); 4] {
        let bias = self.qkv_bias;
        [("query", bias), ("key", bias), ("value", bias), ("attention_out", true)]
    }
}

impl Network for Vit {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Vit> {
        let tenth = second as f32 / 16.0;
        let vit = |qkv_bias, gelu, drop: f32| Vit {
            height: 4 + 2 * second,
            width: 6 + 2 * second,
            planes: 1,
            patch: 2,
            layers: 1,
            heads: 2,
            channels: 6 + 4 * second,
            hidden: 7 + 4 * second,
            classes: 3,
            qkv_bias,
            gelu,
            dropout: drop,
            attention_dropout: drop,
            init_std: default_std(),
            norm_epsilon: 1e-5 + tenth,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        };
        vec![vit(true, Gelu::Erf, 0.21 + tenth), vit(false, Gelu::Tanh, 0.0)]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        let Vit { patch, heads, .. } = self;
        for (name, pixels) in [("height", self.height), ("width", self.width)] {
            if !pixels.is_multiple_of(*patch) {
                return Some((name, format!("must be a multiple of patch ({patch}), is {pixels}")));
            }
        }
        let numbers = self.patch_numbers();
        if numbers >= 1 << 31 {
            let planes = self.planes;
            let why =
                format!("a patch of {patch} x {patch} pixels in {planes} planes has 2^31 numbers or more");
            return Some(("patch", why));
        }
        let patches = self.patches();
        if patches > PATCHES_MAX {
            let why = format!(
                "an image has {patches} patches of this size, and at most {PATCHES_MAX} are possible"
            );
            return Some(("patch", why));
        }
        if !self.channels.is_multiple_of(*heads) {
            return Some(("channels", format!("must be a multiple of heads ({heads})")));
        }
        normalize_error(self, self.input, self.planes)
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let [c, h, e, classes, numbers] =
            [self.channels, self.heads, self.hidden, self.classes, self.patch_numbers()].map(u64::from);
        let (patches, t) = (times(&[samples, self.patches()]), self.patches() + 1);
        let rows = times(&[samples, t]);
        let layers = [
            ProductSize::linear(patches, numbers, c),
            ProductSize::linear(rows, c, c),
            ProductSize::linear(rows, c, e),
            ProductSize::linear(rows, e, c),
            ProductSize::head(samples, c, classes),
        ];
        let attention = ProductSize::attention(rows, t, c, h);
        let products = layers.into_iter().flatten().chain(attention).collect();
        // The class token is put before the patches by way of a tensor with one more column.
        let tensors = [[patches, numbers, 1], [rows, (c + 1).max(e), 1], [rows, h, t], [samples, classes, 1]];
        let largest = tensors.iter().map(|sizes| times(sizes)).max().unwrap_or(0);
        Sizes { largest, normalised_rows: 0, products }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let (c, std) = (self.channels, self.init_std);
        let init = Init::Normal { std };
        let row = |name: &str, shape: Vec<u32>| ModelParameter {
            name: name.into(),
            decayed: shape.len() == 2,
            shape,
            init,
        };
        let mut table = vec![row("class_token", vec![c])];
        table.push(row("position_embedding", vec![self.patches() as u32 + 1, c]));
        table.extend(linear_parameters("patch_embedding", c, self.patch_numbers(), std));
        for layer in 0..self.layers {
            let name = |part: &str| format!("block{layer}.{part}");
            table.extend(norm_parameters(&name("norm1"), c));
            for (part, has_bias) in self.projections() {
                let [weight, bias] = linear_parameters(&name(part), c, c, std);
                table.push(weight);
                table.extend(has_bias.then_some(bias));
            }
            table.extend(norm_parameters(&name("norm2"), c));
            table.extend(linear_parameters(&name("mlp_in"), self.hidden, c, std));
            table.extend(linear_parameters(&name("mlp_out"), c, self.hidden, std));
        }
        table.extend(norm_parameters("final_norm", c));
        table.extend(linear_parameters("classifier", self.classes, c, std));
        table
    }

    fn released(&self) -> Option<Vec<Released>> {
        let c = self.channels;
        let [classifier, bias] = Released::linear("classifier", "classifier", self.classes, c);
        Some(names::of_encoder(self.encoder()).chain([classifier, bias]).collect())
    }

    fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        classified(samples, self.input, &[self.planes, self.height, self.width], self.classes)
    }

    fn take(&mut self, input: Input) {
        self.input = input;
    }

    normalizes!();

    fn reclassify(&mut self, classes: u32) -> Vec<String> {
        self.classes = classes;
        vec!["classifier.*".into()]
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        let mut p = Cursor(parameters.iter());
        let mut x = self.embedded(b, samples, &mut p, inputs);
        for layer in 0..self.layers {
            x = b.scoped(&format!("block{layer}"), |b| {
                let x = self.attended(b, [samples, layer], x, &mut p, inputs);
                self.fed_forward(b, [samples, layer], x, &mut p, inputs)
            });
        }
        let x = b.scoped("first", |b| first_position(b, x, samples).expect("samples have equal rows"));
        let x = self.normed(b, "final_norm", x, &mut p);
        let (weight, bias) = (p.next(), p.next());
        let logits = b.scoped("classifier", |b| linear(b, LinearClasses::HEAD, x, weight, Some(bias)));
        inputs.loss(b, logits, inputs.batch[1], Vec::new())
    }
}

impl Vit {
    /// The encoder's tensors in transformers' layout, without the prefix of their names.
    fn encoder(&self) -> Vec<Released> {
        let (c, positions) = (self.channels, self.patches() as u32 + 1);
        let kernels = [c, self.patch, self.patch, self.planes];
        let mut table = vec![
            names::same("embeddings.cls_token", "class_token", &[1, 1, c]),
            names::same("embeddings.position_embeddings", "position_embedding", &[1, positions, c]),
            Released::kernels(format!("{}.weight", names::PATCHES), "param/patch_embedding.weight", &kernels),
            names::same(&format!("{}.bias", names::PATCHES), "patch_embedding.bias", &[c]),
        ];
        for layer in 0..self.layers {
            for (part, module) in names::BLOCK {
                let (theirs, ours) =
                    (format!("encoder.layer.{layer}.{module}"), format!("block{layer}.{part}"));
                match part {
                    "norm1" | "norm2" => table.extend(names::norm(&theirs, &ours, c)),
                    "mlp_in" => table.extend(Released::linear(&theirs, &ours, self.hidden, c)),
                    "mlp_out" => table.extend(Released::linear(&theirs, &ours, c, self.hidden)),
                    _ => {
                        let has_bias = self.projections().contains(&(part, true));
                        let [weight, bias] = Released::linear(&theirs, &ours, c, c);
                        table.push(weight);
                        table.extend(has_bias.then_some(bias));
                    }
                }
            }
        }
        table.extend(names::norm("layernorm", "final_norm", c));
        table
    }

    /// The rows of all samples: the class token and the patches, with their positions.
    fn embedded(&self, b: &mut Builder, samples: u32, p: &mut Cursor, inputs: &Inputs) -> TensorId {
        let size = [samples, self.height, self.width, self.planes];
        let pixels = image(b, self, self.input, inputs.batch[0], size);
        let geometry = ConvGeometry::of_image([self.height, self.width], [self.patch; 2], self.patch, 0)
            .expect("patches divide an image");
        let patches = b.scoped("patches", |b| im2col(b, pixels, geometry));
        let (token, positions, weight, bias) = (p.next(), p.next(), p.next(), p.next());
        let x =
            b.scoped("patch_embedding", |b| linear(b, LinearClasses::HIDDEN, patches, weight, Some(bias)));
        let x = b.scoped("embedding", |b| {
            let x = class_token(b, x, token, samples).expect("sizes are checked");
            position_embedding(b, x, positions)
        });
        inputs.dropped(b, self.dropout, [samples, 0], x)
    }

    fn normed(&self, b: &mut Builder, name: &str, x: TensorId, p: &mut Cursor) -> TensorId {
        let (gain, bias) = (p.next(), p.next());
        b.scoped(name, |b| layer_norm(b, x, gain, bias, self.norm_epsilon))
    }

    /// The first half of a block: a normalisation, attention and its residual.
    fn attended(
        &self,
        b: &mut Builder,
        [samples, layer]: [u32; 2],
        x: TensorId,
        p: &mut Cursor,
        inputs: &Inputs,
    ) -> TensorId {
        let u = self.normed(b, "norm1", x, p);
        let qkv = ["query", "key", "value"].map(|name| {
            let (weight, bias) = (p.next(), self.qkv_bias.then(|| p.next()));
            b.scoped(name, |b| linear(b, LinearClasses::HIDDEN, u, weight, bias))
        });
        let drop = inputs.dropout(self.attention_dropout).map(|drop| (drop, 3 * layer + 1));
        let y = b.scoped("attention", |b| attention(b, Seen::All, qkv, [samples, self.heads], drop));
        let (weight, bias) = (p.next(), p.next());
        let y = b.scoped("attention_out", |b| {
            let y = linear(b, LinearClasses::HIDDEN, y, weight, Some(bias));
            inputs.dropped(b, self.dropout, [samples, 3 * layer + 2], y)
        });
        b.scoped("residual1", |b| residual(b, y, x))
    }

    /// The second half of a block: a normalisation, the feed-forward layer and its residual.
    fn fed_forward(
        &self,
        b: &mut Builder,
        [samples, layer]: [u32; 2],
        x: TensorId,
        p: &mut Cursor,
        inputs: &Inputs,
    ) -> TensorId {
        let u = self.normed(b, "norm2", x, p);
        let (weight, bias) = (p.next(), p.next());
        let y = b.scoped("mlp_in", |b| linear(b, LinearClasses::HIDDEN, u, weight, Some(bias)));
        let y = self.gelu.of(b, y);
        let (weight, bias) = (p.next(), p.next());
        let y = b.scoped("mlp_out", |b| {
            let y = linear(b, LinearClasses::HIDDEN, y, weight, Some(bias));
            inputs.dropped(b, self.dropout, [samples, 3 * layer + 3], y)
        });
        b.scoped("residual2", |b| residual(b, y, x))
    }
}

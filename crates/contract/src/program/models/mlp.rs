//! A multi-layer perceptron with ReLU that classifies images, or other rows of numbers.

use serde::{Deserialize, Serialize};

use super::normalize::{IMAGE_MEAN, MEANS, NORMALIZE, STDS};
use super::released::Released;
use super::{
    BatchTensor, Init, Input, Inputs, Loss, ModelParameter, Network, Normalization, Normalize, ProductSize,
    Sizes, classified, normalizes,
};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::{self, Choice};
use crate::program::keys::{BELOW_ONE, Key, integer, key};
use crate::program::operators::{LinearClasses, linear, relu};

/// The widths from the numbers of a sample to its classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Numbers of a sample: the bytes of an image.
    pub inputs: u32,
    /// The widths of the hidden layers, in order.
    pub hidden: Vec<u32>,
    /// Classes of a sample.
    pub classes: u32,
    /// Drop probability after each hidden layer.
    #[serde(default)]
    pub dropout: f32,
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
    key("model.inputs", integer(1, 1 << 20), Required, "784", "Numbers of a sample, such as the bytes of an image.").kind("mlp").unit("numbers"),
    key("model.hidden", Type::List { of: &integer(1, 1 << 20), least: 0, most: 64 }, Required, "[256, 128]", "The widths of the hidden layers, in order.").kind("mlp").unit("channels"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("mlp").unit("classes"),
    key("model.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability after each hidden layer.").kind("mlp"),
    key("model.normalize", Choice(Normalize::NAMES), Absent("pixels are bytes / 255"), r#""mnist""#, NORMALIZE).kind("mlp").rule("its planes divide `inputs`, and the data are bytes"),
    key("model.image_mean", MEANS, Absent("as `normalize` says"), "[0.5]", IMAGE_MEAN).kind("mlp").not_with("normalize").rule("as many as `image_std` has").beside("image_std = [0.25]"),
    key("model.image_std", STDS, Absent("as `normalize` says"), "[0.25]", "The standard deviation of each of these.").kind("mlp").not_with("normalize").rule("as many as `image_mean` has").beside("image_mean = [0.5]"),
];

impl Mlp {
    /// The widths of all layers, ends included.
    pub(crate) fn widths(&self) -> Vec<u32> {
        [&[self.inputs], &self.hidden[..], &[self.classes]].concat()
    }
}

impl Network for Mlp {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Mlp> {
        vec![Mlp {
            inputs: 7 + second,
            hidden: vec![5],
            classes: 3,
            dropout: 0.11 + second as f32 / 16.0,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        }]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        let inputs = self.inputs;
        let fits = |planes| inputs.is_multiple_of(planes);
        self.normalization()?.error(self.input, fits, &format!("a sample has {inputs} numbers"))
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let widths: Vec<u64> = self.widths().into_iter().map(u64::from).collect();
        let layers = widths.windows(2).enumerate().flat_map(|(layer, w)| {
            let product = if layer == self.hidden.len() { ProductSize::head } else { ProductSize::linear };
            product(samples, w[0], w[1])
        });
        let widest = widths.iter().max().copied().unwrap_or(0);
        Sizes { largest: samples.saturating_mul(widest), normalised_rows: 0, products: layers.collect() }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let widths = self.widths();
        let mut table = Vec::new();
        for (layer, pair) in widths.windows(2).enumerate() {
            // He initialisation (He et al., 2015).
            let init = Init::Normal { std: (2.0 / pair[0] as f32).sqrt() };
            table.push(ModelParameter {
                name: format!("layer{layer}.weight"),
                shape: vec![pair[1], pair[0]],
                init,
                decayed: true,
            });
            table.push(ModelParameter {
                name: format!("layer{layer}.bias"),
                shape: vec![pair[1]],
                init: Init::Zeros,
                decayed: false,
            });
        }
        table
    }

    /// `torch.nn.Sequential` of Linear, ReLU, ..., Linear. With dropout it is Linear, ReLU, Dropout, ...,
    /// Linear.
    fn released(&self) -> Option<Vec<Released>> {
        let modules = if self.dropout == 0.0 { 2 } else { 3 };
        let tensor = |(number, p): (usize, ModelParameter)| {
            let part = if p.shape.len() == 2 { "weight" } else { "bias" };
            Released::same(format!("{}.{part}", number / 2 * modules), format!("param/{}", p.name), &p.shape)
        };
        Some(self.parameters().into_iter().enumerate().map(tensor).collect())
    }

    fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        classified(samples, self.input, &[self.inputs], self.classes)
    }

    fn take(&mut self, input: Input) {
        self.input = input;
    }

    normalizes!();

    fn reclassify(&mut self, classes: u32) -> Vec<String> {
        self.classes = classes;
        vec![format!("layer{}.*", self.hidden.len())]
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        let (mut x, labels) = (inputs.batch[0], inputs.batch[1]);
        if self.input == Input::Pixels {
            let normalization = self.normalization().expect("a perceptron has the keys");
            let planes = normalization.constants().map_or(1, |[means, _]| means.len() as u32);
            let body = normalization.body(self.inputs / planes);
            x = b.scoped("pixels", |b| b.map(body, &[x], &[samples, self.inputs]));
        }
        let last = self.hidden.len();
        for (layer, pair) in parameters.chunks(2).enumerate() {
            x = b.scoped(&format!("layer{layer}"), |b| {
                let classes = if layer == last { LinearClasses::HEAD } else { LinearClasses::HIDDEN };
                let y = linear(b, classes, x, pair[0], Some(pair[1]));
                if layer == last {
                    return y;
                }
                let y = b.scoped("relu", |b| relu(b, y));
                inputs.dropped(b, self.dropout, [samples, layer as u32], y)
            });
        }
        inputs.loss(b, x, labels, Vec::new())
    }
}

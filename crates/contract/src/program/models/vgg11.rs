//! VGG-11 (Simonyan and Zisserman, 2015, configuration A) in torchvision's form. Eight 3 x 3 convolutions have five maxima
//! between them. A pool to 7 x 7, for any size of image, and three linear layers follow. With batch normalisation after each
//! convolution it is `vgg11_bn`.

use serde::{Deserialize, Serialize};

use super::images::{
    CONVOLUTION, Convolution, Pass, default_epsilon, default_momentum, image, linear_parameters,
    momentum_error, norm_parameters, normalize_error, statistics,
};
use super::normalize::{IMAGE_MEAN, MEANS, NORMALIZE, STDS};
use super::released::Released;
use super::sizes::times;
use super::{
    BatchTensor, Init, Input, Inputs, Loss, ModelParameter, Network, Normalization, Normalize, ProductSize,
    Sizes, Statistic, classified, normalizes,
};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::{self, Choice};
use crate::program::keys::{BELOW_ONE, Key, integer, key};
use crate::program::operators::{
    ConvVersion, LinearClasses, Window, adaptive_avg_pool, add_bias, flatten, linear, max_pool, relu,
};

/// The layer that follows each convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VggNorm {
    /// Nothing.
    #[default]
    None,
    /// A batch normalisation.
    Batch,
}

const CHANNELS: [u32; 8] = [64, 128, 256, 256, 512, 512, 512, 512];
/// The convolutions after which a maximum halves the image.
const POOLED: [usize; 5] = [0, 1, 3, 5, 7];
/// Windows before the linear layers, down and across.
const WINDOWS: u32 = 7;
/// The pixels that five halvings reduce to one.
const LEAST: u32 = 1 << 5;

fn default_channels() -> Vec<u32> {
    CHANNELS.to_vec()
}

fn default_classifier() -> u32 {
    4096
}

fn default_dropout() -> f32 {
    0.5
}

/// Image size and widths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vgg11 {
    /// Pixels of an image down, at least 32.
    pub height: u32,
    /// Pixels of an image across, at least 32.
    pub width: u32,
    /// Planes of an image: 3 for red, green and blue.
    pub planes: u32,
    /// Channels of the eight convolutions.
    #[serde(default = "default_channels")]
    pub channels: Vec<u32>,
    /// Channels of the two hidden linear layers.
    #[serde(default = "default_classifier")]
    pub classifier: u32,
    /// Classes of an image.
    pub classes: u32,
    /// Drop probability after each hidden linear layer.
    #[serde(default = "default_dropout")]
    pub dropout: f32,
    /// The layer that follows each convolution.
    #[serde(default)]
    pub norm: VggNorm,
    /// The number that a normalisation adds to the variance.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// The fraction by which a step moves the running averages of a batch normalisation.
    #[serde(default = "default_momentum")]
    pub norm_momentum: f32,
    /// The version of conv2d, which decides the scale groups of patches.
    #[serde(default)]
    pub convolution: ConvVersion,
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
    key("model.height", integer(32, 1 << 12), Required, "32", "Rows of an image.").kind("vgg11").unit("pixels"),
    key("model.width", integer(32, 1 << 12), Required, "32", "Columns of an image.").kind("vgg11").unit("pixels"),
    key("model.planes", integer(1, 1 << 8), Required, "3", "Planes of an image: 3 for red, green and blue.").kind("vgg11").unit("planes"),
    key("model.channels", Type::List { of: &integer(1, 1 << 14), least: 8, most: 8 }, Optional("[64, 128, 256, 256, 512, 512, 512, 512]"), "[16, 32, 64, 64, 128, 128, 128, 128]", "Channels of the eight convolutions.").kind("vgg11").unit("channels"),
    key("model.classifier", integer(1, 1 << 16), Optional("4096"), "512", "Channels of the two hidden linear layers.").kind("vgg11").unit("channels"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("vgg11").unit("classes"),
    key("model.dropout", BELOW_ONE, Optional("0.5"), "0.0", "Drop probability after each hidden linear layer.").kind("vgg11"),
    key("model.norm", Choice(&["none", "batch"]), Optional(r#""none""#), r#""batch""#, "What follows each convolution: nothing, or a batch normalisation over all pixels of a micro-batch, with running averages as buffers.").kind("vgg11").rule("with `batch`, a step has at most 2^24 pixels"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-3", "What a normalisation adds to the variance.").kind("vgg11"),
    key("model.norm_momentum", BELOW_ONE, Optional("0.1"), "0.2", "The part by which a step moves the running averages towards its own mean and variance.").kind("vgg11").rule("0.1 unless `norm` is `batch`").beside(r#"norm = "batch""#),
    key("model.convolution", integer(1, 2), Optional("1"), "2", CONVOLUTION).kind("vgg11"),
    key("model.normalize", Choice(Normalize::NAMES), Absent("pixels are bytes / 255"), r#""imagenet""#, NORMALIZE).kind("vgg11").rule("one plane, or as many as `planes`, and the data are bytes"),
    key("model.image_mean", MEANS, Absent("as `normalize` says"), "[0.5]", IMAGE_MEAN).kind("vgg11").not_with("normalize").rule("as many as `image_std` has").beside("image_std = [0.25]"),
    key("model.image_std", STDS, Absent("as `normalize` says"), "[0.25]", "The standard deviation of each of these.").kind("vgg11").not_with("normalize").rule("as many as `image_mean` has").beside("image_mean = [0.5]"),
];

impl Vgg11 {
    fn convolutions(&self) -> Vec<Convolution> {
        let (mut image, mut inputs) = ([self.height, self.width], self.planes);
        let next = |(i, &outputs): (usize, &u32)| {
            let convolution = Convolution { image, inputs, outputs, groups: 1, kernel: 3, stride: 1 };
            inputs = outputs;
            if POOLED.contains(&i) {
                image = image.map(|n| n / 2);
            }
            convolution
        };
        self.channels.iter().enumerate().map(next).collect()
    }

    /// Inputs and outputs of the linear layers.
    fn layers(&self) -> [(u32, u32); 3] {
        let pooled = self.channels[7] * WINDOWS * WINDOWS;
        [(pooled, self.classifier), (self.classifier, self.classifier), (self.classifier, self.classes)]
    }

    fn features(&self, b: &mut Builder, pass: &mut Pass, mut x: TensorId) -> TensorId {
        for (i, convolution) in self.convolutions().into_iter().enumerate() {
            x = pass.conv(b, &format!("conv{i}"), x, convolution);
            let bias = pass.parameters.next();
            x = b.scoped(&format!("conv{i}"), |b| add_bias(b, x, bias));
            if self.norm == VggNorm::Batch {
                x = b.scoped(&format!("norm{i}"), |b| pass.batch_norm(b, x));
            }
            x = b.scoped(&format!("relu{i}"), |b| relu(b, x));
            if POOLED.contains(&i) {
                let window = Window { kernel: 2, stride: 2, padding: 0 };
                x = b
                    .scoped(&format!("pool{i}"), |b| max_pool(b, x, window))
                    .expect("an image has 32 pixels");
            }
        }
        b.scoped("pool", |b| {
            let pooled = adaptive_avg_pool(b, x, [WINDOWS; 2]).expect("sizes are checked");
            flatten(b, pooled)
        })
    }
}

impl Network for Vgg11 {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Vgg11> {
        let tenth = second as f32 / 16.0;
        let vgg = |norm| Vgg11 {
            height: 32,
            width: 32,
            planes: 1,
            channels: vec![1; 8],
            classifier: 3 + second,
            classes: 2,
            dropout: 0.11 + tenth,
            norm,
            norm_epsilon: 1e-5 + tenth,
            norm_momentum: if norm == VggNorm::Batch { 0.23 + tenth } else { default_momentum() },
            convolution: ConvVersion::V1,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        };
        vec![vgg(VggNorm::None)]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        momentum_error(self.norm == VggNorm::Batch, self.norm_momentum)
            .or_else(|| normalize_error(self, self.input, self.planes))
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let convolutions = self.convolutions();
        let patches = convolutions.iter().map(|c| c.patches(samples)).max().unwrap_or(0);
        // The rows that the adaptive pool reads, and the rows of each of its windows, which are more for a small image.
        let [height, width] = [self.height, self.width].map(|n| u64::from(n / LEAST));
        let (windows, last) = (u64::from(WINDOWS), u64::from(self.channels[7]));
        let pooled = times(&[samples, windows, height.max(windows), width, last]);
        let [first, second, (inputs, outputs)] = self.layers().map(|(i, o)| (u64::from(i), u64::from(o)));
        let hidden = [first, second].map(|(i, o)| ProductSize::linear(samples, i, o));
        let head = ProductSize::head(samples, inputs, outputs);
        let widest = first.0.max(inputs).max(outputs);
        let pixels = times(&[samples, self.height.into(), self.width.into()]);
        Sizes {
            largest: patches.max(pooled).max(times(&[samples, widest])),
            normalised_rows: if self.norm == VggNorm::Batch { pixels } else { 0 },
            products: convolutions
                .iter()
                .flat_map(|c| c.products(samples))
                .chain(hidden.into_iter().flatten())
                .chain(head)
                .collect(),
        }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let mut table = Vec::new();
        for (i, convolution) in self.convolutions().into_iter().enumerate() {
            table.push(convolution.parameter(format!("conv{i}.weight")));
            table.push(ModelParameter {
                name: format!("conv{i}.bias"),
                shape: vec![convolution.outputs],
                init: Init::Zeros,
                decayed: false,
            });
            if self.norm == VggNorm::Batch {
                table.extend(norm_parameters(&format!("norm{i}"), convolution.outputs));
            }
        }
        let layers = [("hidden0", 2.0), ("hidden1", 2.0), ("head", 1.0)];
        for ((name, square), (inputs, outputs)) in layers.into_iter().zip(self.layers()) {
            table.extend(linear_parameters(name, outputs, inputs, f32::sqrt(square / inputs as f32)));
        }
        table
    }

    fn statistics(&self) -> Vec<Statistic> {
        if self.norm == VggNorm::Batch { statistics(self.parameters()) } else { Vec::new() }
    }

    fn norm_momentum(&self) -> f32 {
        self.norm_momentum
    }

    /// The tensors of torchvision's `vgg11` or `vgg11_bn`. Modules are numbered, and modules without parameters count.
    fn released(&self) -> Option<Vec<Released>> {
        let (mut table, mut module) = (Vec::new(), 0);
        for (i, convolution) in self.convolutions().into_iter().enumerate() {
            let name = |part: &str| (format!("features.{module}.{part}"), format!("param/conv{i}.{part}"));
            let ((weight, ours), (bias, our_bias)) = (name("weight"), name("bias"));
            table.push(Released::kernels(weight, ours, &convolution.parameter(String::new()).shape));
            table.push(Released::same(bias, our_bias, &[convolution.outputs]));
            if self.norm == VggNorm::Batch {
                module += 1;
                let (theirs, ours) = (format!("features.{module}"), format!("norm{i}"));
                table.extend(Released::batch_norm(&theirs, &ours, convolution.outputs));
            }
            module += if POOLED.contains(&i) { 3 } else { 2 };
        }
        // The modules are Linear, ReLU, Dropout, and the same again.
        let layers = ["hidden0", "hidden1", "head"].into_iter().zip(self.layers());
        for (number, (ours, (inputs, outputs))) in (0..).step_by(3).zip(layers) {
            table.extend(Released::linear(&format!("classifier.{number}"), ours, outputs, inputs));
        }
        Some(table)
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
        vec!["head.*".into()]
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        let (pixels, labels) = (inputs.batch[0], inputs.batch[1]);
        let mut pass = Pass::new(parameters, inputs, self.norm_epsilon, self.convolution);
        let x = image(b, self, self.input, pixels, [samples, self.height, self.width, self.planes]);
        let mut x = self.features(b, &mut pass, x);
        for layer in 0..2 {
            let (weight, bias) = (pass.parameters.next(), pass.parameters.next());
            x = b.scoped(&format!("hidden{layer}"), |b| {
                let y = linear(b, LinearClasses::HIDDEN, x, weight, Some(bias));
                let y = b.scoped("relu", |b| relu(b, y));
                inputs.dropped(b, self.dropout, [samples, layer], y)
            });
        }
        let (weight, bias) = (pass.parameters.next(), pass.parameters.next());
        let logits = b.scoped("head", |b| linear(b, LinearClasses::HEAD, x, weight, Some(bias)));
        inputs.loss(b, logits, labels, pass.moments)
    }
}

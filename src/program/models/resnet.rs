//! A residual network that classifies images (He, Zhang, Ren and Sun, 2016, "Identity Mappings in Deep Residual Networks"), with the batch
//! normalisation of that paper, or with layer normalisation over the channels of each pixel, so that no sample depends on another.

use serde::{Deserialize, Serialize};

use super::sizes::times;
use super::{
    BatchTensor, Convolution, Cursor, Init, Input, Inputs, Loss, Mode, ModelParameter, Network, ProductSize,
    Sizes, Statistic, classified, pixel_body,
};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::keys::Presence::{Optional, Required};
use crate::program::keys::Type::{self, Choice};
use crate::program::keys::{BELOW_ONE, Key, integer, key};
use crate::program::operators::{
    LinearClasses, Moments, batch_norm, batch_norm_eval, conv2d, cross_entropy, layer_norm, linear,
    mean_pool, relu, residual,
};

/// What is normalised before each ReLU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// The channels of each pixel.
    #[default]
    Layer,
    /// Each channel, over all pixels of a micro-batch.
    Batch,
}

/// PyTorch's default, which its ResNets keep.
const MOMENTUM: f32 = 0.1;

fn default_epsilon() -> f32 {
    1e-5
}

fn default_momentum() -> f32 {
    MOMENTUM
}

/// Image size and the widths of the stages. Each stage but the first halves rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resnet {
    /// Pixels of an image down.
    pub height: u32,
    /// Pixels across.
    pub width: u32,
    /// Planes of an image: 3 for red, green and blue.
    pub planes: u32,
    /// Channels of each stage.
    pub stages: Vec<u32>,
    /// Residual blocks of a stage, two convolutions each.
    pub blocks: u32,
    /// Classes of an image.
    pub classes: u32,
    /// What is normalised.
    #[serde(default)]
    pub norm: Norm,
    /// What a normalisation adds to the variance.
    #[serde(default = "default_epsilon")]
    pub norm_epsilon: f32,
    /// The part by which a step moves the running averages of a batch normalisation.
    #[serde(default = "default_momentum")]
    pub norm_momentum: f32,
    /// What the pixels are.
    #[serde(skip)]
    pub input: Input,
}

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.height", integer(1, 1 << 12), Required, "32", "Rows of an image.").kind("resnet").unit("pixels"),
    key("model.width", integer(1, 1 << 12), Required, "32", "Columns of an image.").kind("resnet").unit("pixels"),
    key("model.planes", integer(1, 1 << 8), Required, "3", "Planes of an image: 3 for red, green and blue. IDX files have 1, CIFAR-10 has 3.").kind("resnet").unit("planes"),
    key("model.stages", Type::List { of: &integer(1, 1 << 14), least: 1, most: 16 }, Required, "[16, 32]", "Channels of each stage. Each stage but the first halves rows and columns.").kind("resnet").unit("channels"),
    key("model.blocks", integer(1, 256), Required, "1", "Residual blocks of a stage, two convolutions each.").kind("resnet").unit("blocks"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("resnet").unit("classes"),
    key("model.norm", Choice(&["layer", "batch"]), Optional(r#""layer""#), r#""batch""#, "What is normalised before each ReLU: the channels of each pixel, or each channel over all pixels of a micro-batch, with running averages as buffers.").kind("resnet").rule("with `batch`, a step has at most 2^24 pixels"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-3", "What a normalisation adds to the variance.").kind("resnet"),
    key("model.norm_momentum", BELOW_ONE, Optional("0.1"), "0.2", "The part by which a step moves the running averages towards its own mean and variance.").kind("resnet").rule("0.1 unless `norm` is `batch`").beside(r#"norm = "batch""#),
];

/// A residual block.
struct Block {
    name: String,
    /// 1 x 1, where the input has to be projected to be added to the output.
    shortcut: Option<Convolution>,
    convolutions: [Convolution; 2],
}

/// A forward pass: the parameters that are still to be taken, and the moments that batch normalisations saw.
struct Pass<'a> {
    parameters: Cursor<'a>,
    norm: Norm,
    epsilon: f32,
    /// The running averages of the normalisations that are still to come, in an evaluation.
    averages: Option<std::slice::Iter<'a, [TensorId; 2]>>,
    moments: Vec<Moments>,
}

impl Pass<'_> {
    fn norm_relu(&mut self, b: &mut Builder, label: &str, x: TensorId) -> TensorId {
        let (gain, bias) = (self.parameters.next(), self.parameters.next());
        b.scoped(label, |b| {
            let y = match (self.norm, &mut self.averages) {
                (Norm::Layer, _) => layer_norm(b, x, gain, bias, self.epsilon),
                (Norm::Batch, None) => {
                    let (y, moments) = batch_norm(b, x, gain, bias, self.epsilon);
                    self.moments.push(moments);
                    y
                }
                (Norm::Batch, Some(averages)) => {
                    let averages = *averages.next().expect("each batch normalisation has running averages");
                    batch_norm_eval(b, x, averages, gain, bias, self.epsilon)
                }
            };
            b.scoped("relu", |b| relu(b, y))
        })
    }

    fn conv(&mut self, b: &mut Builder, label: &str, x: TensorId, convolution: Convolution) -> TensorId {
        let weight = self.parameters.next();
        let y = b.scoped(label, |b| conv2d(b, x, weight, convolution.stride, convolution.padding()));
        y.expect("padding lets the kernel fit")
    }
}

impl Resnet {
    fn stem(&self) -> Convolution {
        let image = [self.height, self.width];
        Convolution { image, inputs: self.planes, outputs: self.stages[0], kernel: 3, stride: 1 }
    }

    fn all_blocks(&self) -> Vec<Block> {
        let mut before = self.stem();
        let mut all = Vec::new();
        for (stage, &outputs) in self.stages.iter().enumerate() {
            for block in 0..self.blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let (image, inputs) = (before.to(), before.outputs);
                let first = Convolution { image, inputs, outputs, kernel: 3, stride };
                let second = Convolution { image: first.to(), inputs: outputs, stride: 1, ..first };
                let projects = stride != 1 || inputs != outputs;
                all.push(Block {
                    name: format!("stage{stage}.block{block}"),
                    shortcut: projects.then_some(Convolution { kernel: 1, ..first }),
                    convolutions: [first, second],
                });
                before = second;
            }
        }
        all
    }

    /// Every convolution of the network.
    fn convolutions(&self) -> Vec<Convolution> {
        let of_block = |block: Block| block.shortcut.into_iter().chain(block.convolutions);
        [self.stem()].into_iter().chain(self.all_blocks().into_iter().flat_map(of_block)).collect()
    }

    fn norm_error(&self) -> Option<(&'static str, String)> {
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon.is_finite()) {
            return Some(("norm_epsilon", "must be a finite number above 0".into()));
        }
        if !(0.0..1.0).contains(&self.norm_momentum) {
            return Some(("norm_momentum", "must be at least 0 and below 1".into()));
        }
        let unused = self.norm == Norm::Layer && self.norm_momentum != MOMENTUM;
        unused.then(|| ("norm_momentum", "only norm = \"batch\" has running averages".into()))
    }
}

impl Network for Resnet {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Resnet> {
        let tenth = second as f32 / 16.0;
        let resnet = |norm| Resnet {
            height: 6 + second,
            width: 6 + second,
            planes: 2,
            stages: vec![3 + second, 5 + second],
            blocks: 2,
            classes: 4,
            norm,
            norm_epsilon: 1e-5 + tenth,
            norm_momentum: if norm == Norm::Batch { 0.23 + tenth } else { MOMENTUM },
            input: Input::Pixels,
        };
        vec![resnet(Norm::Layer), resnet(Norm::Batch)]
    }

    fn error(&self) -> Option<(&'static str, String)> {
        let within = |key, value: u32, max: u32| {
            (!(1..=max).contains(&value)).then(|| (key, format!("must be 1 to {max}, is {value}")))
        };
        let sizes = [
            ("height", self.height, 1 << 12),
            ("width", self.width, 1 << 12),
            ("planes", self.planes, 1 << 8),
            ("blocks", self.blocks, 256),
            ("classes", self.classes, 1 << 20),
        ];
        if !(1..=16).contains(&self.stages.len()) {
            return Some(("stages", "1 to 16 stages".into()));
        }
        let stages = self.stages.iter().map(|&channels| ("stages", channels, 1 << 14));
        let wrong = sizes.into_iter().chain(stages).find_map(|(key, value, max)| within(key, value, max));
        wrong.or_else(|| self.norm_error())
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let convolutions = self.convolutions();
        let patches = convolutions.iter().map(|c| c.patches(samples)).max().unwrap_or(0);
        let last = u64::from(*self.stages.last().unwrap_or(&0));
        let head = ProductSize::head(samples, last, self.classes.into());
        let pixels = times(&[samples, self.height.into(), self.width.into()]);
        Sizes {
            largest: patches.max(times(&[samples, self.classes.into()])),
            normalised_rows: if self.norm == Norm::Batch { pixels } else { 0 },
            products: convolutions.iter().flat_map(|c| c.products(samples)).chain(head).collect(),
        }
    }

    fn norm_momentum(&self) -> f32 {
        self.norm_momentum
    }

    fn take(&mut self, input: Input) {
        self.input = input;
    }

    fn statistics(&self) -> Vec<Statistic> {
        if self.norm == Norm::Layer {
            return Vec::new();
        }
        let statistic = |parameter: ModelParameter| {
            let name = parameter.name.strip_suffix(".gain")?.to_string();
            Some(Statistic { name, channels: parameter.shape[0] })
        };
        self.parameters().into_iter().filter_map(statistic).collect()
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let mut table = Vec::new();
        let norm = |name: &str, channels: u32| {
            [("gain", Init::Ones), ("bias", Init::Zeros)].map(|(part, init)| ModelParameter {
                name: format!("{name}.{part}"),
                shape: vec![channels],
                init,
                decayed: false,
            })
        };
        table.push(self.stem().parameter("stem.weight".into()));
        for block in self.all_blocks() {
            let Block { name, shortcut, convolutions: [first, second] } = &block;
            table.extend(norm(&format!("{name}.norm0"), first.inputs));
            table.extend(shortcut.map(|c| c.parameter(format!("{name}.shortcut.weight"))));
            table.push(first.parameter(format!("{name}.conv0.weight")));
            table.extend(norm(&format!("{name}.norm1"), second.inputs));
            table.push(second.parameter(format!("{name}.conv1.weight")));
        }
        let last = *self.stages.last().expect("a network has a stage");
        table.extend(norm("norm", last));
        let init = Init::Normal { std: (1.0 / last as f32).sqrt() };
        table.push(ModelParameter {
            name: "head.weight".into(),
            shape: vec![self.classes, last],
            init,
            decayed: true,
        });
        table.push(ModelParameter {
            name: "head.bias".into(),
            shape: vec![self.classes],
            init: Init::Zeros,
            decayed: false,
        });
        table
    }

    fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        classified(samples, self.input, &[self.planes, self.height, self.width], self.classes)
    }

    fn forward(&self, b: &mut Builder, samples: u32, parameters: &[TensorId], inputs: &Inputs) -> Loss {
        let (pixels, labels) = (inputs.batch[0], inputs.batch[1]);
        let body = match self.input {
            Input::Pixels => pixel_body(),
            Input::Values => Body::new("value.v1", |w| w.input(0)),
        };
        let mut pass = Pass {
            parameters: Cursor(parameters.iter()),
            norm: self.norm,
            epsilon: self.norm_epsilon,
            averages: (inputs.mode == Mode::Evaluation).then(|| inputs.averages.iter()),
            moments: Vec::new(),
        };
        let mut x = b.scoped("pixels", |b| {
            // Files hold one plane after another; convolutions take a pixel's channels together.
            let (dims, plane) = ([samples, self.height, self.width, self.planes], self.height * self.width);
            let strides = [self.planes * plane, self.width, 1, plane];
            let planes = View { tensor: pixels, offset: 0, dims, strides };
            b.map_views(body, dims, vec![planes], DType::F32, &dims)
        });
        x = pass.conv(b, "stem", x, self.stem());
        for block in self.all_blocks() {
            x = b.scoped(&block.name, |b| {
                let normed = pass.norm_relu(b, "norm0", x);
                let [first, second] = block.convolutions;
                let shortcut = block.shortcut.map_or(x, |c| pass.conv(b, "shortcut", normed, c));
                let y = pass.conv(b, "conv0", normed, first);
                let y = pass.norm_relu(b, "norm1", y);
                let y = pass.conv(b, "conv1", y, second);
                b.scoped("residual", |b| residual(b, shortcut, y))
            });
        }
        let x = pass.norm_relu(b, "norm", x);
        let x = b.scoped("pool", |b| mean_pool(b, x));
        let (weight, bias) = (pass.parameters.next(), pass.parameters.next());
        let logits = b.scoped("head", |b| linear(b, LinearClasses::HEAD, x, weight, Some(bias)));
        let (loss, dlogits) = b.scoped("loss", |b| cross_entropy(b, logits, labels, inputs.factor));
        Loss { loss, logits, dlogits, moments: pass.moments }
    }
}

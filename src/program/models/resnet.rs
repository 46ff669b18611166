//! A residual network that classifies images (He, Zhang, Ren and Sun, 2016, "Identity Mappings in Deep Residual Networks"), with the batch
//! normalisation of that paper, or with layer normalisation over the channels of each pixel, so that no sample depends on another.

use serde::{Deserialize, Serialize};

use super::{BatchTensor, Init, Input, Inputs, Loss, ModelParameter, Statistic};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::operators::{
    ConvVersion, LinearClasses, Moments, batch_norm, conv2d, cross_entropy, layer_norm, linear, mean_pool, relu, residual,
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
    /// Which scales the patches of convolutions have.
    #[serde(default)]
    pub convolution: ConvVersion,
    /// What the pixels are.
    #[serde(skip)]
    pub input: Input,
}

/// A square convolution with its input's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Pixels of its input, down and across.
    pub image: [u32; 2],
    /// Channels of its input.
    pub inputs: u32,
    /// Channels of its output.
    pub outputs: u32,
    /// Pixels of the kernel, down and across: 1 or 3.
    pub kernel: u32,
    /// Pixels from one patch to the next, down and across.
    pub stride: u32,
}

impl Convolution {
    /// Zeros around the image: as many as keep its size at a stride of 1.
    fn padding(&self) -> u32 {
        self.kernel / 2
    }

    /// Pixels of the output, down and across.
    fn to(&self) -> [u32; 2] {
        // Kernels have 1 or 3 pixels, so n + 2 * padding - kernel is n - 1.
        self.image.map(|n| (n - 1) / self.stride + 1)
    }

    /// Pixels of the input.
    pub(crate) fn image_pixels(&self) -> u64 {
        u64::from(self.image[0]) * u64::from(self.image[1])
    }

    /// Places of the kernel.
    pub fn taps(&self) -> u64 {
        u64::from(self.kernel) * u64::from(self.kernel)
    }

    /// Pixels of the output.
    pub fn outputs_per_channel(&self) -> u64 {
        self.to().iter().map(|&n| u64::from(n)).product()
    }

    fn parameter(&self, name: String) -> ModelParameter {
        let &Convolution { inputs, outputs, kernel, .. } = self;
        // He initialisation (He et al., 2015).
        let init = Init::Normal { std: (2.0 / (kernel * kernel * inputs) as f32).sqrt() };
        ModelParameter { name, shape: vec![outputs, kernel, kernel, inputs], init, decayed: true }
    }
}

/// A residual block.
struct Block {
    name: String,
    /// 1 x 1, where the input has to be projected to be added to the output.
    shortcut: Option<Convolution>,
    convolutions: [Convolution; 2],
}

/// Takes parameters in the order of the table, and keeps the moments that batch normalisations see.
struct Taken<'a> {
    parameters: std::slice::Iter<'a, TensorId>,
    norm: Norm,
    epsilon: f32,
    convolution: ConvVersion,
    moments: Vec<Moments>,
}

impl Taken<'_> {
    fn next(&mut self) -> TensorId {
        *self.parameters.next().expect("the table has every parameter")
    }

    fn norm_relu(&mut self, b: &mut Builder, label: &str, x: TensorId) -> TensorId {
        let (gain, bias) = (self.next(), self.next());
        b.scoped(label, |b| {
            let y = match self.norm {
                Norm::Layer => layer_norm(b, x, gain, bias, self.epsilon),
                Norm::Batch => {
                    let (y, moments) = batch_norm(b, x, gain, bias, self.epsilon);
                    self.moments.push(moments);
                    y
                }
            };
            b.scoped("relu", |b| relu(b, y))
        })
    }

    fn conv(&mut self, b: &mut Builder, label: &str, x: TensorId, convolution: Convolution) -> TensorId {
        let weight = self.next();
        let (version, stride, padding) = (self.convolution, convolution.stride, convolution.padding());
        let y = b.scoped(label, |b| conv2d(b, x, weight, version, stride, padding));
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
    pub fn convolutions(&self) -> Vec<Convolution> {
        let of_block = |block: Block| block.shortcut.into_iter().chain(block.convolutions);
        [self.stem()].into_iter().chain(self.all_blocks().into_iter().flat_map(of_block)).collect()
    }

    pub(super) fn error(&self) -> Option<(&'static str, String)> {
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

    /// Each normalisation's, if it is over the micro-batch.
    pub(super) fn statistics(&self) -> Vec<Statistic> {
        if self.norm == Norm::Layer {
            return Vec::new();
        }
        let statistic = |parameter: ModelParameter| {
            let name = parameter.name.strip_suffix(".gain")?.to_string();
            Some(Statistic { name, channels: parameter.shape[0] })
        };
        self.parameters().into_iter().filter_map(statistic).collect()
    }

    pub(super) fn parameters(&self) -> Vec<ModelParameter> {
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

    pub(super) fn batch(&self, samples: u32) -> Vec<BatchTensor> {
        super::classified(samples, self.input, &[self.planes, self.height, self.width], self.classes)
    }

    pub(super) fn forward(
        &self,
        b: &mut Builder,
        samples: u32,
        parameters: &[TensorId],
        inputs: &Inputs,
    ) -> Loss {
        let (pixels, labels) = (inputs.batch[0], inputs.batch[1]);
        let body = match self.input {
            Input::Pixels => super::pixel_body(),
            Input::Values => Body::new("value.v1", |w| w.input(0)),
        };
        let (norm, epsilon, convolution) = (self.norm, self.norm_epsilon, self.convolution);
        let mut taken = Taken { parameters: parameters.iter(), norm, epsilon, convolution, moments: Vec::new() };
        let mut x = b.scoped("pixels", |b| {
            // Files hold one plane after another; convolutions take a pixel's channels together.
            let (dims, plane) = ([samples, self.height, self.width, self.planes], self.height * self.width);
            let strides = [self.planes * plane, self.width, 1, plane];
            let planes = View { tensor: pixels, offset: 0, dims, strides };
            b.map_views(body, dims, vec![planes], DType::F32, &dims)
        });
        x = taken.conv(b, "stem", x, self.stem());
        for block in self.all_blocks() {
            x = b.scoped(&block.name, |b| {
                let normed = taken.norm_relu(b, "norm0", x);
                let [first, second] = block.convolutions;
                let shortcut = block.shortcut.map_or(x, |c| taken.conv(b, "shortcut", normed, c));
                let y = taken.conv(b, "conv0", normed, first);
                let y = taken.norm_relu(b, "norm1", y);
                let y = taken.conv(b, "conv1", y, second);
                b.scoped("residual", |b| residual(b, shortcut, y))
            });
        }
        let x = taken.norm_relu(b, "norm", x);
        let x = b.scoped("pool", |b| mean_pool(b, x));
        let (weight, bias) = (taken.next(), taken.next());
        let logits = b.scoped("head", |b| linear(b, LinearClasses::HEAD, x, weight, Some(bias)));
        let (loss, dlogits) = b.scoped("loss", |b| cross_entropy(b, logits, labels, inputs.factor));
        Loss { loss, logits, dlogits, moments: taken.moments }
    }
}

//! Residual networks that classify images.
//!
//! With order = "post" they are those of He, Zhang, Ren and Sun (2016, "Deep Residual Learning for Image Recognition"),
//! which torchvision has. With order = "pre" they are those of the same authors' "Identity Mappings in Deep Residual
//! Networks" (2016). The normalisation is batch normalisation, or layer normalisation over the channels of each pixel,
//! so that no sample depends on another.

use serde::{Deserialize, Serialize};

use super::images::{
    CONVOLUTION, Convolution, Pass, default_epsilon, default_momentum, image, linear_parameters,
    momentum_error, norm_parameters, normalize_error, statistics,
};
use super::normalize::{IMAGE_MEAN, MEANS, NORMALIZE, STDS};
use super::released::Released;
use super::sizes::times;
use super::{
    BatchTensor, Input, Inputs, Loss, ModelParameter, Network, Normalization, Normalize, ProductSize, Sizes,
    Statistic, classified, normalizes,
};
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Absent, Optional, Required};
use crate::program::keys::Type::{self, Choice};
use crate::program::keys::{BELOW_ONE, Key, integer, key};
use crate::program::operators::{
    ConvVersion, LinearClasses, Window, layer_norm, linear, max_pool, mean_pool, relu, residual,
};

/// The elements that a normalisation is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// The channels of each pixel.
    #[default]
    Layer,
    /// Each channel, over all pixels of a micro-batch.
    Batch,
}

/// The computation of a residual block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Block {
    /// Two 3 x 3 convolutions.
    #[default]
    Basic,
    /// 1 x 1, 3 x 3 and 1 x 1 convolutions; the last one has four times the stage's channels.
    Bottleneck,
}

/// The position of the normalisations in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A normalisation and a ReLU come before each convolution; the block adds the output of a convolution to its input.
    #[default]
    Pre,
    /// A normalisation comes after each convolution; a ReLU follows the sum.
    Post,
}

/// The first layers of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// A 3 x 3 convolution.
    #[default]
    Cifar,
    /// A 7 x 7 convolution of stride 2, and a 3 x 3 maximum of stride 2.
    Imagenet,
}

/// Residual blocks of the stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Blocks {
    /// The same number in every stage.
    Same(u32),
    /// A number for each stage.
    Each(Vec<u32>),
}

impl Blocks {
    fn of(&self, stage: usize) -> u32 {
        match self {
            Blocks::Same(blocks) => *blocks,
            Blocks::Each(blocks) => blocks.get(stage).copied().unwrap_or(0),
        }
    }
}

fn one_group() -> u32 {
    1
}

fn default_width() -> u32 {
    WIDTH_UNIT
}

/// The number of a stage's channels that `width_per_group` refers to.
const WIDTH_UNIT: u32 = 64;

/// The most channels of a convolution inside of a block.
const WIDTH_MAX: u32 = 1 << 14;

/// Image size and the widths of the stages. Each stage but the first halves rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resnet {
    /// Pixels of an image down.
    pub height: u32,
    /// Pixels of an image across.
    pub width: u32,
    /// Planes of an image: 3 for red, green and blue.
    pub planes: u32,
    /// Channels of each stage.
    pub stages: Vec<u32>,
    /// Residual blocks of the stages.
    pub blocks: Blocks,
    /// The computation of a block.
    #[serde(default)]
    pub block: Block,
    /// Groups of a bottleneck's 3 x 3 convolutions, whose channels do not see each other.
    #[serde(default = "one_group")]
    pub groups: u32,
    /// Channels of each group, for every 64 channels of the stage.
    #[serde(default = "default_width")]
    pub width_per_group: u32,
    /// The position of the normalisations in a block.
    #[serde(default)]
    pub order: Order,
    /// The first layers of the network.
    #[serde(default)]
    pub stem: Stem,
    /// Classes of an image.
    pub classes: u32,
    /// The kind of normalisation.
    #[serde(default)]
    pub norm: Norm,
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
    key("model.height", integer(1, 1 << 12), Required, "32", "Rows of an image.").kind("resnet").unit("pixels"),
    key("model.width", integer(1, 1 << 12), Required, "32", "Columns of an image.").kind("resnet").unit("pixels"),
    key("model.planes", integer(1, 1 << 8), Required, "3", "Planes of an image: 3 for red, green and blue. IDX files have 1, CIFAR-10 has 3.").kind("resnet").unit("planes"),
    key("model.stages", Type::List { of: &integer(1, 1 << 14), least: 1, most: 16 }, Required, "[16, 32]", "Channels of each stage. Each stage but the first halves rows and columns.").kind("resnet").unit("channels"),
    key("model.blocks", Type::Integers { least: 1, most: 256, elements: 16 }, Required, "1", "Residual blocks of a stage, for all stages or for each: ResNet-18 has 2, ResNet-50 [3, 4, 6, 3].").kind("resnet").unit("blocks").rule("a list has a number for each of `stages`"),
    key("model.block", Choice(&["basic", "bottleneck"]), Optional(r#""basic""#), r#""bottleneck""#, "`basic`: two 3 x 3 convolutions. `bottleneck`: 1 x 1, 3 x 3 and 1 x 1, the last with four times the stage's channels.").kind("resnet"),
    key("model.groups", integer(1, 1 << 14), Optional("1"), "32", "Groups of a bottleneck's 3 x 3 convolutions (Xie et al., 2017): ResNeXt-50 32x4d has 32.").kind("resnet").unit("groups").rule("1 unless `block` is `bottleneck` and `convolution` is 1").beside(r#"block = "bottleneck""#),
    key("model.width_per_group", integer(1, 1 << 14), Optional("64"), "4", "Channels of each of these groups where a stage has 64 channels, and in proportion elsewhere, rounded down: ResNeXt-50 32x4d has 4.").kind("resnet").unit("channels").rule("64 unless `block` is `bottleneck`; all groups together have 1 to 16384 channels").beside(r#"block = "bottleneck""#),
    key("model.order", Choice(&["pre", "post"]), Optional(r#""pre""#), r#""post""#, "Where a block normalises: before each convolution, or after it, as torchvision's networks do.").kind("resnet"),
    key("model.stem", Choice(&["cifar", "imagenet"]), Optional(r#""cifar""#), r#""imagenet""#, "How the network begins: a 3 x 3 convolution; or 7 x 7 with stride 2, and a 3 x 3 maximum with stride 2.").kind("resnet"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("resnet").unit("classes"),
    key("model.norm", Choice(&["layer", "batch"]), Optional(r#""layer""#), r#""batch""#, "What a normalisation is over: the channels of each pixel, or each channel over all pixels of a micro-batch, with running averages as buffers.").kind("resnet").rule("with `batch`, a step has at most 2^24 pixels"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-3", "What a normalisation adds to the variance.").kind("resnet"),
    key("model.norm_momentum", BELOW_ONE, Optional("0.1"), "0.2", "The part by which a step moves the running averages towards its own mean and variance.").kind("resnet").rule("0.1 unless `norm` is `batch`").beside(r#"norm = "batch""#),
    key("model.convolution", integer(1, 2), Optional("1"), "2", CONVOLUTION).kind("resnet"),
    key("model.normalize", Choice(Normalize::NAMES), Absent("pixels are bytes / 255"), r#""imagenet""#, NORMALIZE).kind("resnet").rule("one plane, or as many as `planes`, and the data are bytes"),
    key("model.image_mean", MEANS, Absent("as `normalize` says"), "[0.5]", IMAGE_MEAN).kind("resnet").not_with("normalize").rule("as many as `image_std` has").beside("image_std = [0.25]"),
    key("model.image_std", STDS, Absent("as `normalize` says"), "[0.25]", "The standard deviation of each of these.").kind("resnet").not_with("normalize").rule("as many as `image_mean` has").beside("image_mean = [0.5]"),
];

/// A residual block's convolutions.
struct Layout {
    name: String,
    /// A 1 x 1 convolution, where the input must be projected before it is added to the output.
    shortcut: Option<Convolution>,
    convolutions: Vec<Convolution>,
}

impl Resnet {
    fn stem(&self) -> Convolution {
        let image = [self.height, self.width];
        let (kernel, stride) = match self.stem {
            Stem::Cifar => (3, 1),
            Stem::Imagenet => (7, 2),
        };
        Convolution { image, inputs: self.planes, outputs: self.stages[0], groups: 1, kernel, stride }
    }

    /// The maximum after the stem.
    fn pool(&self) -> Option<Window> {
        (self.stem == Stem::Imagenet).then_some(Window { kernel: 3, stride: 2, padding: 1 })
    }

    fn layouts(&self) -> Vec<Layout> {
        let stem = self.stem();
        let mut image = match self.pool() {
            // The size follows as for a convolution of an odd kernel.
            Some(_) => stem.to().map(|n| (n - 1) / 2 + 1),
            None => stem.to(),
        };
        let (mut inputs, mut all) = (stem.outputs, Vec::new());
        for (stage, &width) in self.stages.iter().enumerate() {
            for block in 0..self.blocks.of(stage) {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let inner = self.inner_width(width) as u32;
                // Kernel, stride, outputs and groups.
                let layers = match self.block {
                    Block::Basic => vec![(3, stride, width, 1), (3, 1, width, 1)],
                    Block::Bottleneck => {
                        vec![(1, 1, inner, 1), (3, stride, inner, self.groups), (1, 1, 4 * width, 1)]
                    }
                };
                let (before, channels, mut convolutions) = (image, inputs, Vec::new());
                for (kernel, stride, outputs, groups) in layers {
                    let convolution = Convolution { image, inputs, outputs, groups, kernel, stride };
                    (image, inputs) = (convolution.to(), outputs);
                    convolutions.push(convolution);
                }
                let shortcut = Convolution {
                    image: before,
                    inputs: channels,
                    outputs: inputs,
                    groups: 1,
                    kernel: 1,
                    stride,
                };
                let projects = stride != 1 || channels != inputs;
                let name = format!("stage{stage}.block{block}");
                all.push(Layout { name, shortcut: projects.then_some(shortcut), convolutions });
            }
        }
        all
    }

    /// Every convolution of the network.
    fn convolutions(&self) -> Vec<Convolution> {
        let of_block = |block: Layout| block.shortcut.into_iter().chain(block.convolutions);
        [self.stem()].into_iter().chain(self.layouts().into_iter().flat_map(of_block)).collect()
    }

    /// Channels of a bottleneck's 3 x 3 convolution in a stage of `width`.
    fn inner_width(&self, width: u32) -> u64 {
        u64::from(width) * u64::from(self.width_per_group) / u64::from(WIDTH_UNIT) * u64::from(self.groups)
    }

    fn groups_error(&self) -> Option<(&'static str, String)> {
        let (groups, width) = (self.groups != 1, self.width_per_group != WIDTH_UNIT);
        if (groups || width) && self.block == Block::Basic {
            let key = if groups { "groups" } else { "width_per_group" };
            return Some((key, "only block = \"bottleneck\" has groups".into()));
        }
        if groups && self.convolution == ConvVersion::V2 {
            return Some(("groups", "only convolution = 1 has groups".into()));
        }
        let widths = self.stages.iter().map(|&stage| (stage, self.inner_width(stage)));
        let wrong = |width: u64| !(1..=u64::from(WIDTH_MAX)).contains(&width);
        let (stage, width) = widths.into_iter().find(|(_, width)| wrong(*width))?;
        let why = format!("gives a stage of {stage} channels {width} in all groups, not 1 to {WIDTH_MAX}");
        (self.block == Block::Bottleneck).then_some(("width_per_group", why))
    }

    /// Channels of the last stage's output.
    fn last(&self) -> u32 {
        let width = self.stages.last().copied().unwrap_or(0);
        if self.block == Block::Bottleneck { 4 * width } else { width }
    }

    fn blocks_error(&self) -> Option<(&'static str, String)> {
        let Blocks::Each(blocks) = &self.blocks else { return None };
        let (numbers, stages) = (blocks.len(), self.stages.len());
        (numbers != stages).then(|| ("blocks", format!("has {numbers} numbers for {stages} stages")))
    }

    fn norm(&self, b: &mut Builder, pass: &mut Pass, x: TensorId) -> TensorId {
        match self.norm {
            Norm::Layer => {
                let (gain, bias) = (pass.parameters.next(), pass.parameters.next());
                layer_norm(b, x, gain, bias, self.norm_epsilon)
            }
            Norm::Batch => pass.batch_norm(b, x),
        }
    }

    fn norm_relu(&self, b: &mut Builder, pass: &mut Pass, label: &str, x: TensorId) -> TensorId {
        b.scoped(label, |b| {
            let y = self.norm(b, pass, x);
            b.scoped("relu", |b| relu(b, y))
        })
    }

    /// A block whose normalisations come before its convolutions.
    fn pre_block(&self, b: &mut Builder, pass: &mut Pass, block: &Layout, x: TensorId) -> TensorId {
        let (mut shortcut, mut y) = (x, x);
        for (i, &convolution) in block.convolutions.iter().enumerate() {
            y = self.norm_relu(b, pass, &format!("norm{i}"), y);
            if i == 0
                && let Some(projection) = block.shortcut
            {
                shortcut = pass.conv(b, "shortcut", y, projection);
            }
            y = pass.conv(b, &format!("conv{i}"), y, convolution);
        }
        b.scoped("residual", |b| residual(b, shortcut, y))
    }

    /// A block whose normalisations come after its convolutions.
    fn post_block(&self, b: &mut Builder, pass: &mut Pass, block: &Layout, x: TensorId) -> TensorId {
        let (mut shortcut, mut y) = (x, x);
        let last = block.convolutions.len() - 1;
        for (i, &convolution) in block.convolutions.iter().enumerate() {
            y = pass.conv(b, &format!("conv{i}"), y, convolution);
            let label = format!("norm{i}");
            y = if i == last {
                b.scoped(&label, |b| self.norm(b, pass, y))
            } else {
                self.norm_relu(b, pass, &label, y)
            };
        }
        if let Some(projection) = block.shortcut {
            shortcut = pass.conv(b, "shortcut", x, projection);
            shortcut = b.scoped("shortcut_norm", |b| self.norm(b, pass, shortcut));
        }
        let sum = b.scoped("residual", |b| residual(b, shortcut, y));
        b.scoped("relu", |b| relu(b, sum))
    }
}

impl Network for Resnet {
    fn keys() -> &'static [Key] {
        KEYS
    }

    fn small(second: u32) -> Vec<Resnet> {
        let tenth = second as f32 / 16.0;
        let resnet = |norm, block, order, stem| Resnet {
            height: 6 + second,
            width: 6 + second,
            planes: 2,
            stages: vec![3 + second, 5 + second],
            blocks: Blocks::Same(2),
            block,
            groups: 1,
            width_per_group: WIDTH_UNIT,
            order,
            stem,
            classes: 4,
            norm,
            norm_epsilon: 1e-5 + tenth,
            norm_momentum: if norm == Norm::Batch { 0.23 + tenth } else { default_momentum() },
            convolution: if norm == Norm::Batch { ConvVersion::V2 } else { ConvVersion::V1 },
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        };
        vec![
            resnet(Norm::Layer, Block::Basic, Order::Pre, Stem::Cifar),
            resnet(Norm::Batch, Block::Basic, Order::Pre, Stem::Cifar),
        ]
    }

    fn contradiction(&self) -> Option<(&'static str, String)> {
        self.blocks_error()
            .or_else(|| self.groups_error())
            .or_else(|| momentum_error(self.norm == Norm::Batch, self.norm_momentum))
            .or_else(|| normalize_error(self, self.input, self.planes))
    }

    fn sizes(&self, samples: u64) -> Sizes {
        let (stem, convolutions) = (self.stem(), self.convolutions());
        let patches = convolutions.iter().map(|c| c.patches(samples)).max().unwrap_or(0);
        // The elements of the maximum's windows, forward and backward.
        let windows = self.pool().map_or(0, |window| {
            let [height, width] = stem.to().map(u64::from);
            let taps = u64::from(window.kernel * window.kernel);
            times(&[samples, height, width, taps, stem.outputs.into()])
        });
        let head = ProductSize::head(samples, self.last().into(), self.classes.into());
        let pixels = times(&[samples, self.height.into(), self.width.into()]);
        Sizes {
            largest: patches.max(windows).max(times(&[samples, self.classes.into()])),
            normalised_rows: if self.norm == Norm::Batch { pixels } else { 0 },
            products: convolutions.iter().flat_map(|c| c.products(samples)).chain(head).collect(),
        }
    }

    fn parameters(&self) -> Vec<ModelParameter> {
        let mut table = vec![self.stem().parameter("stem.weight".into())];
        if self.order == Order::Post {
            table.extend(norm_parameters("stem_norm", self.stages[0]));
        }
        for Layout { name, shortcut, convolutions } in self.layouts() {
            let of_shortcut = shortcut.map(|c| c.parameter(format!("{name}.shortcut.weight")));
            for (i, convolution) in convolutions.iter().enumerate() {
                if self.order == Order::Pre {
                    table.extend(norm_parameters(&format!("{name}.norm{i}"), convolution.inputs));
                    table.extend(of_shortcut.clone().filter(|_| i == 0));
                }
                table.push(convolution.parameter(format!("{name}.conv{i}.weight")));
                if self.order == Order::Post {
                    table.extend(norm_parameters(&format!("{name}.norm{i}"), convolution.outputs));
                }
            }
            if self.order == Order::Post
                && let Some(projection) = shortcut
            {
                table.extend(of_shortcut);
                table.extend(norm_parameters(&format!("{name}.shortcut_norm"), projection.outputs));
            }
        }
        let last = self.last();
        if self.order == Order::Pre {
            table.extend(norm_parameters("norm", last));
        }
        table.extend(linear_parameters("head", self.classes, last, (1.0 / last as f32).sqrt()));
        table
    }

    fn statistics(&self) -> Vec<Statistic> {
        if self.norm == Norm::Batch { statistics(self.parameters()) } else { Vec::new() }
    }

    fn norm_momentum(&self) -> f32 {
        self.norm_momentum
    }

    /// The tensors of torchvision's ResNets, with any stem.
    fn released(&self) -> Option<Vec<Released>> {
        if self.order != Order::Post || self.norm != Norm::Batch {
            return None;
        }
        let kernels = |theirs: String, ours: String, convolution: Convolution| {
            let shape = convolution.parameter(String::new()).shape;
            Released::kernels(format!("{theirs}.weight"), format!("param/{ours}.weight"), &shape)
        };
        let stem = self.stem();
        let mut table = vec![kernels("conv1".into(), "stem".into(), stem)];
        table.extend(Released::batch_norm("bn1", "stem_norm", stem.outputs));
        for Layout { name, shortcut, convolutions } in self.layouts() {
            // stage0.block1 is layer1.1.
            let theirs = name.replace(".block", ".");
            let (stage, block) = theirs.trim_start_matches("stage").split_once('.')?;
            let theirs = format!("layer{}.{block}", stage.parse::<usize>().ok()? + 1);
            for (i, convolution) in (1..).zip(convolutions) {
                let ours = |part: &str| format!("{name}.{part}{}", i - 1);
                table.push(kernels(format!("{theirs}.conv{i}"), ours("conv"), convolution));
                table.extend(Released::batch_norm(
                    &format!("{theirs}.bn{i}"),
                    &ours("norm"),
                    convolution.outputs,
                ));
            }
            if let Some(projection) = shortcut {
                let theirs = |part: u32| format!("{theirs}.downsample.{part}");
                table.push(kernels(theirs(0), format!("{name}.shortcut"), projection));
                let norm = format!("{name}.shortcut_norm");
                table.extend(Released::batch_norm(&theirs(1), &norm, projection.outputs));
            }
        }
        table.extend(Released::linear("fc", "head", self.classes, self.last()));
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
        let mut x = image(b, self, self.input, pixels, [samples, self.height, self.width, self.planes]);
        x = pass.conv(b, "stem", x, self.stem());
        if self.order == Order::Post {
            x = self.norm_relu(b, &mut pass, "stem_norm", x);
        }
        if let Some(window) = self.pool() {
            x = b.scoped("stem_pool", |b| max_pool(b, x, window)).expect("padding lets the window fit");
        }
        for block in self.layouts() {
            x = b.scoped(&block.name, |b| match self.order {
                Order::Pre => self.pre_block(b, &mut pass, &block, x),
                Order::Post => self.post_block(b, &mut pass, &block, x),
            });
        }
        if self.order == Order::Pre {
            x = self.norm_relu(b, &mut pass, "norm", x);
        }
        let x = b.scoped("pool", |b| mean_pool(b, x));
        let (weight, bias) = (pass.parameters.next(), pass.parameters.next());
        let logits = b.scoped("head", |b| linear(b, LinearClasses::HEAD, x, weight, Some(bias)));
        inputs.loss(b, logits, labels, pass.moments)
    }
}

//! The layers that networks over images share: convolutions with their parameters and sizes, batch normalisations, and the input
//! image.

use super::sizes::{ProductSize, times};
use super::{Cursor, Init, Input, Inputs, Mode, ModelParameter, Network, Statistic};
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::operators::{ConvVersion, Moments, batch_norm, batch_norm_eval, conv2d, grouped_conv2d};
use crate::program::products::ProductClass;

/// The momentum of running averages in a step, if a job gives none: PyTorch's.
pub(super) const MOMENTUM: f32 = 0.1;

pub(super) fn default_epsilon() -> f32 {
    1e-5
}

pub(super) fn default_momentum() -> f32 {
    MOMENTUM
}

/// A square convolution with its input's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convolution {
    /// Pixels of the convolution's input, down and across.
    pub image: [u32; 2],
    /// Channels of the input.
    pub inputs: u32,
    /// Channels of the output.
    pub outputs: u32,
    /// Groups of channels that do not see each other; their number divides the channels of input and output.
    pub groups: u32,
    /// Pixels of the kernel, down and across: an odd number.
    pub kernel: u32,
    /// Pixels from one patch to the next, down and across.
    pub stride: u32,
}

impl Convolution {
    /// Zeros around the image: the number that keeps the image's size at a stride of 1.
    pub(super) fn padding(&self) -> u32 {
        self.kernel / 2
    }

    /// Pixels of the output, down and across.
    pub(super) fn to(&self) -> [u32; 2] {
        // Kernels are odd, so n + 2 * padding - kernel is n - 1.
        self.image.map(|n| (n - 1) / self.stride + 1)
    }

    pub(super) fn parameter(&self, name: String) -> ModelParameter {
        let &Convolution { outputs, kernel, groups, .. } = self;
        let inputs = self.inputs / groups;
        // He initialisation (He et al., 2015).
        let init = Init::Normal { std: (2.0 / (kernel * kernel * inputs) as f32).sqrt() };
        ModelParameter { name, shape: vec![outputs, kernel, kernel, inputs], init, decayed: true }
    }

    /// Elements of the larger matrix of patches for `samples`: that of the image, or that of the output's gradient.
    pub(super) fn patches(&self, samples: u64) -> u64 {
        let [image, rows] = self.pixels(samples);
        let [inputs, outputs, taps] = self.numbers();
        times(&[rows, inputs, taps]).max(times(&[image, outputs, taps]))
    }

    /// The convolution's products for `samples`: forward, and the gradients of image and kernel.
    pub(super) fn products(&self, samples: u64) -> [ProductSize; 3] {
        use ProductClass::{Conv, ConvDw, ConvDx};
        let [image, rows] = self.pixels(samples);
        let ([inputs, outputs, taps], groups) = (self.numbers(), u64::from(self.groups));
        [
            ProductSize { class: Conv, outputs: times(&[rows, outputs]), k: taps * inputs / groups },
            ProductSize { class: ConvDx, outputs: times(&[image, inputs]), k: taps * outputs / groups },
            ProductSize { class: ConvDw, outputs: times(&[taps, inputs / groups, outputs]), k: rows },
        ]
    }

    /// Pixels of all inputs, and of all outputs.
    fn pixels(&self, samples: u64) -> [u64; 2] {
        [self.image, self.to()].map(|size| times(&[samples, size[0].into(), size[1].into()]))
    }

    /// Channels of input and output, and taps of the kernel.
    fn numbers(&self) -> [u64; 3] {
        [self.inputs, self.outputs, self.kernel * self.kernel].map(u64::from)
    }
}

/// Gain and bias of a normalisation.
pub(super) fn norm_parameters(name: &str, channels: u32) -> [ModelParameter; 2] {
    [("gain", Init::Ones), ("bias", Init::Zeros)].map(|(part, init)| ModelParameter {
        name: format!("{name}.{part}"),
        shape: vec![channels],
        init,
        decayed: false,
    })
}

/// A biased linear layer's parameters, with this standard deviation of its weight.
pub(super) fn linear_parameters(name: &str, outputs: u32, inputs: u32, std: f32) -> [ModelParameter; 2] {
    let row = |part: &str, shape, init, decayed| ModelParameter {
        name: format!("{name}.{part}"),
        shape,
        init,
        decayed,
    };
    [
        row("weight", vec![outputs, inputs], Init::Normal { std }, true),
        row("bias", vec![outputs], Init::Zeros, false),
    ]
}

/// The statistic of every gain of a table, for networks that have batch normalisations only.
pub(super) fn statistics(table: Vec<ModelParameter>) -> Vec<Statistic> {
    let statistic = |parameter: ModelParameter| {
        let name = parameter.name.strip_suffix(".gain")?.to_string();
        Some(Statistic { name, channels: parameter.shape[0] })
    };
    table.into_iter().filter_map(statistic).collect()
}

/// The error in the momentum of a network's running averages, if there is one.
pub(super) fn momentum_error(has_batch_norm: bool, momentum: f32) -> Option<(&'static str, String)> {
    let unused = !has_batch_norm && momentum != MOMENTUM;
    unused.then(|| ("norm_momentum", "only norm = \"batch\" has running averages".into()))
}

/// The error in the pixel normalisation of a network over images of this many planes, if there is one.
pub(super) fn normalize_error(
    network: &dyn Network,
    input: Input,
    planes: u32,
) -> Option<(&'static str, String)> {
    let fits = |constants| constants == 1 || constants == planes;
    network.normalization()?.error(input, fits, &format!("the images have {planes}"))
}

/// The image [samples, height, width, planes] that a network sees.
pub(super) fn image(
    b: &mut Builder,
    network: &dyn Network,
    input: Input,
    tensor: TensorId,
    [samples, height, width, planes]: [u32; 4],
) -> TensorId {
    let body = match (input, network.normalization()) {
        (Input::Pixels, Some(normalization)) => normalization.body(1),
        _ => Body::new("value.v1", |w| w.input(0)),
    };
    b.scoped("pixels", |b| {
        // Files hold one plane after another; convolutions take the channels of a pixel together.
        let (dims, plane) = ([samples, height, width, planes], height * width);
        let view = View { tensor, offset: 0, dims, strides: [planes * plane, width, 1, plane] };
        b.map_views(body, dims, vec![view], DType::F32, &dims)
    })
}

/// The help text of the key `convolution` of a network over images.
pub(super) const CONVOLUTION: &str = "Version of conv2d: with 2, every pixel is quantised once, in a scale group for each sample (for each channel in a kernel's gradient); with 1, once for each patch that has it, in the patch's scale group.";

/// A forward pass: the parameters that it has not taken yet, and the moments that its batch normalisations computed.
pub(super) struct Pass<'a> {
    pub parameters: Cursor<'a>,
    pub moments: Vec<Moments>,
    /// The running averages of the normalisations that are still to come, in an evaluation.
    averages: Option<std::slice::Iter<'a, [TensorId; 2]>>,
    epsilon: f32,
    convolution: ConvVersion,
}

impl<'a> Pass<'a> {
    /// A pass at its begin, whose normalisations have this epsilon and whose convolutions have this version.
    pub(crate) fn new(
        parameters: &'a [TensorId],
        inputs: &'a Inputs,
        epsilon: f32,
        convolution: ConvVersion,
    ) -> Pass<'a> {
        let averages = (inputs.mode == Mode::Evaluation).then(|| inputs.averages.iter());
        Pass { parameters: Cursor(parameters.iter()), moments: Vec::new(), averages, epsilon, convolution }
    }

    /// x normalised over the pixels of each channel, by the next gain and bias.
    pub(crate) fn batch_norm(&mut self, b: &mut Builder, x: TensorId) -> TensorId {
        let (gain, bias) = (self.parameters.next(), self.parameters.next());
        match &mut self.averages {
            None => {
                let (y, moments) = batch_norm(b, x, gain, bias, self.epsilon);
                self.moments.push(moments);
                y
            }
            Some(averages) => {
                let averages = *averages.next().expect("each batch normalisation has running averages");
                batch_norm_eval(b, x, averages, gain, bias, self.epsilon)
            }
        }
    }

    /// x convolved with the next kernels.
    pub(crate) fn conv(
        &mut self,
        b: &mut Builder,
        label: &str,
        x: TensorId,
        convolution: Convolution,
    ) -> TensorId {
        let weight = self.parameters.next();
        let (version, stride, padding) = (self.convolution, convolution.stride, convolution.padding());
        let y = b.scoped(label, |b| match convolution.groups {
            1 => conv2d(b, x, weight, version, stride, padding),
            groups => grouped_conv2d(b, x, weight, groups, stride, padding),
        });
        y.expect("padding lets the kernel fit")
    }
}

//! The operators of a network's nodes, as one table: inputs, attributes, and how each is appended to a graph.

use crate::arith::DType;
use crate::arith::turns::turns;
use crate::program::builder::Builder;
use crate::program::catalogue::{Attributes, Input};
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::im2col::ConvGeometry;
use crate::program::inputs::{input, integers};
use crate::program::models::{Inputs, Mode, Text, pixel_body};
use crate::program::operators::{
    self, Axis, ConvVersion, Dropout, LinearClasses, Moments, Progression, Seen, Window, batch_norm,
    batch_norm_eval, dropout, place, sample_dropout, slice,
};

/// The most elements of a tensor.
const TENSOR_MAX: u64 = 1 << 31;
/// The most rows of a step that a batch normalisation counts exactly in binary32.
const ROWS_MAX: u64 = 1 << 24;

/// A forward pass over nodes, at one of them.
pub(super) struct Pass<'a> {
    /// The inputs of the batch.
    pub batch: TensorId,
    /// The other inputs; `None` in a pass up to the logits, which is in evaluation mode.
    inputs: Option<&'a Inputs>,
    /// New positions with their caches, in a step of inference.
    pub text: Option<Text>,
    /// The channels of the keys, and the heads of these, of the causal attentions so far.
    pub attended: Vec<[u32; 2]>,
    /// Samples of the pass, and micro-batches of a step.
    samples: [u32; 2],
    /// True in an evaluation if no sample acts on the node.
    pub is_constant: bool,
    /// The moments of the batch normalisations so far.
    pub moments: Vec<Moments>,
    /// The running averages of the normalisations that are still to come, in an evaluation.
    averages: std::slice::Iter<'a, [TensorId; 2]>,
    /// The number of the next dropout.
    next_drop: u32,
}

impl<'a> Pass<'a> {
    pub fn new(inputs: &'a Inputs, samples: [u32; 2]) -> Pass<'a> {
        let averages = inputs.averages.iter();
        Pass { inputs: Some(inputs), averages, samples, ..Pass::of_logits(inputs.batch[0], samples[0], None) }
    }

    /// A pass up to the logits, in evaluation mode: over so many samples, or over new positions of so many sequences.
    pub fn of_logits(batch: TensorId, samples: u32, text: Option<Text>) -> Pass<'a> {
        Pass {
            batch,
            inputs: None,
            text,
            attended: Vec::new(),
            samples: [samples, 1],
            is_constant: false,
            moments: Vec::new(),
            averages: [].iter(),
            next_drop: 0,
        }
    }

    /// [`Pass::of_logits`] with running averages for normalisations.
    pub fn with_averages(batch: TensorId, samples: u32, averages: &'a [[TensorId; 2]]) -> Pass<'a> {
        Pass { averages: averages.iter(), ..Pass::of_logits(batch, samples, None) }
    }

    /// True if nothing is dropped, and running averages take the place of moments.
    pub fn is_evaluation(&self) -> bool {
        self.inputs.is_none_or(|inputs| inputs.mode == Mode::Evaluation)
    }

    /// The samples whose rows a node's inputs have.
    fn samples(&self) -> Result<u32, String> {
        if self.is_constant {
            return Err(
                "its inputs have no rows of samples, since they do not depend on the inputs of the batch"
                    .into(),
            );
        }
        Ok(self.samples[0])
    }
}

type Append = fn(&mut Builder, &mut Pass, &[TensorId], &Attributes) -> Result<TensorId, String>;

/// An operator that a node may have.
pub struct NodeKind {
    /// The name in network files.
    pub name: &'static str,
    /// The operator in a few words.
    pub about: &'static str,
    /// The inputs, in order.
    pub inputs: &'static [Input],
    /// The names of the attributes, each of which a node must give.
    pub attributes: &'static [&'static str],
    pub(super) append: Append,
}

const X: &[Input] = &[input("x", "*")];
const XY: &[Input] = &[input("x", "*"), input("y", "*")];
const IMAGE: &[Input] = &[input("x", "B H W C")];
const CONV: &[Input] = &[input("x", "B H W C"), input("weight", "M R S C")];
const PLACES: &[&str] = &["first", "step", "count"];
const NORM: &[Input] = &[input("x", ".. C"), input("gain", "C"), input("bias", "C")];

const fn kind(
    name: &'static str,
    about: &'static str,
    inputs: &'static [Input],
    attributes: &'static [&'static str],
    append: Append,
) -> NodeKind {
    NodeKind { name, about, inputs, attributes, append }
}

/// Every operator of nodes.
#[rustfmt::skip]
pub const NODE_KINDS: &[NodeKind] = &[
    kind("pixels", "bytes as numbers from 0 to 1: x / 255", &[integers("x", "*")], &[], pixels),
    kind("image", "images [B, C, H, W] with the channels last: [B, H, W, C]", &[input("x", "B C H W")], &[], |b, p, i, _| channels_last(b, p, i[0], Body::new("value.v1", |w| w.input(0)))),
    kind("pixel_image", "bytes of images [B, C, H, W] as numbers from 0 to 1, channels last: [B, H, W, C]", &[integers("x", "B C H W")], &[], |b, p, i, _| channels_last(b, p, i[0], pixel_body())),
    kind("linear", "x weight^T + bias: [N, M]", &[input("x", "N K"), input("weight", "M K"), input("bias", "M")], &[], linear),
    kind("matmul", "x weight^T: [N, M]", &[input("x", "N K"), input("weight", "M K")], &[], linear),
    kind("conv2d", "a convolution, a scale group for each patch: [B, P, Q, M]", CONV, &["stride", "padding"], |b, p, i, a| conv(b, p, i, a, ConvVersion::V1)),
    kind("conv2d_v2", "a convolution, a scale group for each sample: [B, P, Q, M]", CONV, &["stride", "padding"], |b, p, i, a| conv(b, p, i, a, ConvVersion::V2)),
    kind("grouped_conv2d", "a convolution of groups of channels, D = C / groups: [B, P, Q, M]", &[input("x", "B H W C"), input("weight", "M R S D")], &["groups", "stride", "padding"], grouped_conv),
    kind("bias", "x + bias", &[input("x", ".. C"), input("bias", "C")], &[], |b, _, i, _| Ok(operators::add_bias(b, i[0], i[1]))),
    kind("relu", "max(x, 0)", X, &[], |b, _, i, _| Ok(operators::relu(b, i[0]))),
    kind("gelu", "GELU in its tanh form", X, &[], |b, _, i, _| Ok(operators::gelu_tanh(b, i[0]))),
    kind("gelu_erf", "GELU", X, &[], |b, _, i, _| Ok(operators::gelu_erf(b, i[0]))),
    kind("sigmoid", "1 / (1 + e^-x)", X, &[], |b, _, i, _| Ok(operators::sigmoid(b, i[0]))),
    kind("silu", "x / (1 + e^-x)", X, &[], |b, _, i, _| Ok(operators::silu(b, i[0]))),
    kind("tanh", "the hyperbolic tangent", X, &[], |b, _, i, _| Ok(operators::tanh(b, i[0]))),
    kind("swiglu", "silu(x) y", XY, &[], |b, _, i, _| Ok(operators::swiglu(b, i[0], i[1]))),
    kind("residual", "x + y", XY, &[], |b, _, i, _| Ok(operators::residual(b, i[0], i[1]))),
    kind("mul", "x y", XY, &[], |b, _, i, _| Ok(operators::mul(b, i[0], i[1]))),
    kind("gain", "x gain", &[input("x", ".. C"), input("gain", "C")], &[], |b, _, i, _| Ok(operators::gain(b, i[0], i[1]))),
    kind("layer_norm", "layer normalisation over the last dimension", NORM, &["epsilon"], |b, _, i, a| Ok(operators::layer_norm(b, i[0], i[1], i[2], a.epsilon))),
    kind("rms_norm", "normalisation by the root of the mean square of the last dimension", &[input("x", ".. C"), input("gain", "C")], &["epsilon"], |b, _, i, a| Ok(operators::rms_norm(b, i[0], i[1], 1, a.epsilon))),
    kind("head_rms_norm", "each head by the root of its mean square", &[input("x", "N C"), input("gain", "D")], &["heads", "epsilon"], head_rms_norm),
    kind("group_norm", "normalisation of each sample's groups of channels, over all of its pixels", &[input("x", "B H W C"), input("gain", "C"), input("bias", "C")], &["groups", "epsilon"], |b, _, i, a| operators::group_norm(b, [i[0], i[1], i[2]], a.groups, a.epsilon)),
    kind("batch_norm", "normalisation over all dimensions but the last, with running averages as buffers", NORM, &["epsilon"], norm_of_batch),
    kind("dropout", "dropout, with masks from Philox", X, &["p"], |b, p, i, a| drop_some(b, p, i, a, dropout)),
    kind("sample_dropout", "dropout of whole samples, with a draw for each", X, &["p"], |b, p, i, a| drop_some(b, p, i, a, sample_dropout)),
    kind("max_pool", "the greatest pixel of windows: [B, P, Q, C]", IMAGE, &["kernel", "stride", "padding"], |b, _, i, a| operators::max_pool(b, i[0], window(a)?)),
    kind("avg_pool", "the mean of windows, padding counted as zeros: [B, P, Q, C]", IMAGE, &["kernel", "stride", "padding"], |b, _, i, a| operators::avg_pool(b, i[0], window(a)?)),
    kind("adaptive_avg_pool", "the means of so many windows down and across: [B, P, Q, C]", IMAGE, &["windows"], |b, _, i, a| operators::adaptive_avg_pool(b, i[0], a.windows)),
    kind("mean_pool", "the mean over the pixels: [B, C]", IMAGE, &[], |b, _, i, _| Ok(operators::mean_pool(b, i[0]))),
    kind("flatten", "a sample's numbers in a row, a channel's pixels together: [B, C H W]", IMAGE, &[], |b, _, i, _| Ok(operators::flatten(b, i[0]))),
    kind("embedding", "rows of a table by number: [N, C]", &[input("table", "V C"), integers("tokens", "*")], &[], |b, _, i, _| embedding(b, i, None)),
    kind("padded_embedding", "rows of a table by number, of which the row `ignore` has no gradient: [N, C]", &[input("table", "V C"), integers("tokens", "*")], &["ignore"], |b, _, i, a| embedding(b, i, a.ignore)),
    kind("position_embedding", "x plus a row of the table for each position of a sample, from the first on", &[input("x", "N C"), input("table", "T C")], &[], position_embedding),
    kind("first_row", "x plus the first row of the table: the embedding of a number that is always 0", &[input("x", "N C"), input("table", "V C")], &[], |b, _, i, _| { let rows = b.shape(i[0])[0]; operators::add_first_rows(b, i[0], i[1], rows) }),
    kind("class_token", "a row before the positions of each of B samples: [N + B, C]", &[input("x", ".. C"), input("token", "C")], &[], |b, p, i, _| operators::class_token(b, i[0], i[1], p.samples()?)),
    kind("first_position", "the first position of each of B samples: [B, C]", &[input("x", "N C")], &[], |b, p, i, _| operators::first_position(b, i[0], p.samples()?)),
    kind("last_position", "the last position of each of B samples: [B, C]", &[input("x", "N C")], &[], |b, p, i, _| operators::last_position(b, i[0], p.samples()?)),
    kind("mean_positions", "the mean over the positions of each of B samples: [B, C]", &[input("x", "N C")], &[], |b, p, i, _| operators::mean_positions(b, i[0], p.samples()?)),
    kind("exchange", "positions and channels of each of B samples exchanged: [B C, T]", &[input("x", "N C")], &[], |b, p, i, _| operators::exchange(b, i[0], p.samples()?)),
    kind("slice_channels", "`count` channels of x: number i is number `first` + i `step`: [.., `count`]", &[input("x", ".. C")], PLACES, |b, _, i, a| slice(b, i[0], Axis::Channels, progression(a))),
    kind("place_channels", "`count` channels: number i of x at `first` + i `step`, +0 elsewhere: [.., `count`]", &[input("x", ".. C")], PLACES, |b, _, i, a| place(b, i[0], Axis::Channels, progression(a))),
    kind("slice_positions", "`slice_channels` for the positions of each of B samples: [B `count`, C]", &[input("x", "N C")], PLACES, |b, p, i, a| slice(b, i[0], Axis::Positions(p.samples()?), progression(a))),
    kind("place_positions", "`place_channels` for the positions of each of B samples: [B `count`, C]", &[input("x", "N C")], PLACES, |b, p, i, a| place(b, i[0], Axis::Positions(p.samples()?), progression(a))),
    kind("slice_rows", "`count` rows of a table: number i is number `first` + i `step`: [`count`, C]", &[input("table", "V C")], PLACES, |b, _, i, a| slice(b, i[0], Axis::Rows, progression(a))),
    kind("place_rows", "`count` rows: number i of a table at `first` + i `step`, +0 elsewhere: [`count`, C]", &[input("table", "V C")], PLACES, |b, _, i, a| place(b, i[0], Axis::Rows, progression(a))),
    kind("rows_of", "the elements of x in their order, as rows of `count` channels: [N, `count`]", X, &["count"], |b, p, i, a| operators::rows_of(b, i[0], p.samples()?, a.count)),
    kind("as_image", "the positions of each of B samples as pixels, row by row: [B, P, Q, C] of `size` [P, Q]", &[input("x", "N C")], &["size"], |b, p, i, a| operators::as_image(b, i[0], p.samples()?, a.size)),
    kind("rows", "rows of the last dimension: [N, C]", &[input("x", ".. C")], &[], |b, _, i, _| Ok(operators::rows(b, i[0]))),
    kind("attention", "causal attention of heads, with dropout of its probabilities", &[input("q", "N C"), input("k", "N C"), input("v", "N C")], &["heads", "p"], |b, p, i, a| attention(b, p, i, a, Seen::Earlier)),
    kind("grouped_attention", "causal attention, where heads of k and v serve several heads of q", &[input("q", "N C"), input("k", "N X"), input("v", "N X")], &["heads", "p"], |b, p, i, a| attention(b, p, i, a, Seen::Earlier)),
    kind("window_attention", "`grouped_attention` over the last `window` positions up to each, its own included", &[input("q", "N C"), input("k", "N X"), input("v", "N X")], &["heads", "window", "p"], window_attention),
    kind("bidirectional_attention", "attention over all positions of a sample, where heads of k and v serve one or several heads of q", &[input("q", "N C"), input("k", "N X"), input("v", "N X")], &["heads", "p"], |b, p, i, a| attention(b, p, i, a, Seen::All)),
    kind("padded_attention", "`bidirectional_attention` over the positions whose id is not `ignore`", &[input("q", "N C"), input("k", "N X"), input("v", "N X"), integers("ids", "*")], &["heads", "ignore", "p"], |b, p, i, a| attention(b, p, i, a, Seen::Unpadded { ids: i[3], padding: a.ignore.unwrap_or_default() })),
    kind("biased_attention", "`bidirectional_attention` with an addend of the products: softmax((q k^T + bias) / sqrt(D)) v; S is the square of a sample's positions", &[input("q", "N C"), input("k", "N X"), input("v", "N X"), input("bias", "H S")], &["heads", "p"], biased_attention),
    kind("capped_attention", "`window_attention` of products that a hyperbolic tangent bounds: `cap` tanh(q k^T / sqrt(D) / `cap`)", &[input("q", "N C"), input("k", "N X"), input("v", "N X")], &["heads", "window", "cap", "p"], capped_attention),
    kind("rotary", "pairs of channels of each head turned by their position", &[input("x", "N C")], &["heads", "theta"], rotary),
];

impl NodeKind {
    /// The operator of this name.
    pub(crate) fn by_name(name: &str) -> Option<&'static NodeKind> {
        NODE_KINDS.iter().find(|kind| kind.name == name)
    }
}

/// An error if these sizes multiply to more elements than a tensor has.
fn fits(sizes: &[u32]) -> Result<(), String> {
    let elements = sizes.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
    let why = || format!("a tensor has more than {TENSOR_MAX} elements: {sizes:?}");
    if elements < TENSOR_MAX { Ok(()) } else { Err(why()) }
}

fn pixels(b: &mut Builder, _: &mut Pass, i: &[TensorId], _: &Attributes) -> Result<TensorId, String> {
    let shape = b.shape(i[0]);
    Ok(b.map(pixel_body(), i, &shape))
}

/// The batch's inputs [B, C, H, W] as [B, H, W, C]. Data need no gradient, so nothing else is turned.
fn channels_last(b: &mut Builder, p: &mut Pass, x: TensorId, body: Body) -> Result<TensorId, String> {
    if x != p.batch {
        return Err("x must be the inputs of the batch".into());
    }
    let [samples, channels, height, width] = b.shape(x)[..] else { panic!("shapes are checked") };
    let (dims, plane) = ([samples, height, width, channels], height * width);
    let view = View { tensor: x, offset: 0, dims, strides: [channels * plane, width, 1, plane] };
    Ok(b.map_views(body, dims, vec![view], DType::F32, &dims))
}

fn linear(b: &mut Builder, _: &mut Pass, i: &[TensorId], _: &Attributes) -> Result<TensorId, String> {
    fits(&[b.shape(i[0])[0], b.shape(i[1])[0]])?;
    // Classes decide digits, and here all products have the same.
    Ok(operators::linear(b, LinearClasses::HIDDEN, i[0], i[1], i.get(2).copied()))
}

/// Checks a convolution's output before it is appended; its patches are checked by the operator.
fn conv_fits(b: &Builder, i: &[TensorId], a: &Attributes) -> Result<(), String> {
    let (image, weight) = (b.shape(i[0]), b.shape(i[1]));
    if a.padding >= weight[1].min(weight[2]) {
        return Err(format!(
            "padding ({}) must be below the kernel's {} x {}",
            a.padding, weight[1], weight[2]
        ));
    }
    let kernel = [weight[1], weight[2]];
    match ConvGeometry::of_image([image[1], image[2]], kernel, a.stride, a.padding) {
        Some(geometry) => fits(&[image[0], geometry.size[0], geometry.size[1], weight[0]]),
        None => Ok(()),
    }
}

fn conv(
    b: &mut Builder,
    _: &mut Pass,
    i: &[TensorId],
    a: &Attributes,
    version: ConvVersion,
) -> Result<TensorId, String> {
    conv_fits(b, i, a)?;
    operators::conv2d(b, i[0], i[1], version, a.stride, a.padding)
}

fn grouped_conv(b: &mut Builder, _: &mut Pass, i: &[TensorId], a: &Attributes) -> Result<TensorId, String> {
    conv_fits(b, i, a)?;
    operators::grouped_conv2d(b, i[0], i[1], a.groups, a.stride, a.padding)
}

fn progression(a: &Attributes) -> Progression {
    let Attributes { first, step, count, .. } = *a;
    Progression { first, step, count }
}

fn window(a: &Attributes) -> Result<Window, String> {
    let Attributes { kernel, stride, padding, .. } = *a;
    let wrong = || format!("padding ({padding}) must be at most half of kernel ({kernel})");
    if padding > kernel / 2 { Err(wrong()) } else { Ok(Window { kernel, stride, padding }) }
}

fn head_rms_norm(b: &mut Builder, _: &mut Pass, i: &[TensorId], a: &Attributes) -> Result<TensorId, String> {
    let (c, channels) = (b.shape(i[0])[1], b.shape(i[1])[0]);
    if channels.checked_mul(a.heads) != Some(c) {
        return Err(format!("heads ({}) of D = {channels} channels are not C = {c}", a.heads));
    }
    Ok(operators::rms_norm(b, i[0], i[1], a.heads, a.epsilon))
}

fn norm_of_batch(b: &mut Builder, p: &mut Pass, i: &[TensorId], a: &Attributes) -> Result<TensorId, String> {
    if p.is_evaluation() {
        let averages = *p.averages.next().ok_or("it has no running averages")?;
        return Ok(batch_norm_eval(b, i[0], averages, i[1], i[2], a.epsilon));
    }
    let shape = b.shape(i[0]);
    let rows = shape[..shape.len() - 1].iter().fold(1u64, |n, &d| n * u64::from(d));
    let all = rows * u64::from(p.samples[1]);
    if all > ROWS_MAX {
        return Err(format!(
            "a step has {all} rows, more than {ROWS_MAX}, which binary32 cannot count exactly"
        ));
    }
    let (y, moments) = batch_norm(b, i[0], i[1], i[2], a.epsilon);
    p.moments.push(moments);
    Ok(y)
}

/// The next dropout with this probability and its number; none for a probability of 0.
fn next_drop(p: &mut Pass, probability: f32) -> Option<(Dropout, u32)> {
    let drop = p.inputs?.dropout(probability)?;
    p.next_drop += 1;
    Some((drop, p.next_drop - 1))
}

fn drop_some(
    b: &mut Builder,
    p: &mut Pass,
    i: &[TensorId],
    a: &Attributes,
    append: fn(&mut Builder, Dropout, u32, u32, TensorId) -> TensorId,
) -> Result<TensorId, String> {
    if p.is_evaluation() {
        return Ok(i[0]);
    }
    let (rows, [samples, _]) = (b.shape(i[0])[0], p.samples);
    if !rows.is_multiple_of(samples) {
        return Err(format!("its rows ({rows}) are not as many for each of {samples} samples"));
    }
    Ok(match next_drop(p, a.p) {
        Some((drop, number)) => append(b, drop, samples, number, i[0]),
        None => i[0],
    })
}

fn embedding(b: &mut Builder, i: &[TensorId], padding: Option<u32>) -> Result<TensorId, String> {
    let rows = b.shape(i[0])[0];
    if padding.is_some_and(|row| row >= rows) {
        return Err(format!(
            "ignore ({}) must be below the table's rows, {rows}",
            padding.unwrap_or_default()
        ));
    }
    fits(&[&b.shape(i[1])[..], &b.shape(i[0])[1..]].concat())?;
    Ok(operators::padded_embedding(b, i[0], i[1], padding))
}

fn position_embedding(
    b: &mut Builder,
    p: &mut Pass,
    i: &[TensorId],
    _: &Attributes,
) -> Result<TensorId, String> {
    let samples = p.samples()?;
    match &p.text {
        Some(text) => Ok(text.add_positions(b, i[0], i[1])),
        None => operators::add_first_rows(b, i[0], i[1], samples),
    }
}

/// Samples and heads of an attention, and the positions and channels of each, whose scores fit.
fn attended(b: &Builder, p: &Pass, i: &[TensorId], a: &Attributes) -> Result<([u32; 2], [u32; 2]), String> {
    let cut = [p.samples()?, a.heads];
    let sizes = operators::cut_into_heads(b, i[0], cut)?;
    fits(&[b.shape(i[0])[0], a.heads, sizes[0]])?;
    Ok((cut, sizes))
}

fn attention(
    b: &mut Builder,
    p: &mut Pass,
    i: &[TensorId],
    a: &Attributes,
    seen: Seen,
) -> Result<TensorId, String> {
    let (cut, [_, channels]) = attended(b, p, i, a)?;
    let rows = b.shape(i[0])[0];
    if matches!(seen, Seen::Earlier | Seen::Since { .. }) {
        let own = operators::own_heads(b, i[1], [channels, a.heads])?;
        p.attended.push([b.shape(i[1])[1], own]);
        if let Some(text) = &mut p.text {
            fits(&[rows, a.heads, text.places()])?;
            fits(&[cut[0], text.places(), a.heads, channels])?;
            return Ok(text.attention(b, [i[0], i[1], i[2]], [a.heads, own], a.window, None));
        }
    }
    operators::grouped_attention(b, seen, [i[0], i[1], i[2]], cut, next_drop(p, a.p))
}

fn biased_attention(
    b: &mut Builder,
    p: &mut Pass,
    i: &[TensorId],
    a: &Attributes,
) -> Result<TensorId, String> {
    let (cut, _) = attended(b, p, i, a)?;
    let drop = next_drop(p, a.p);
    operators::biased_attention(b, [i[0], i[1], i[2]], i[3], cut, drop)
}

fn capped_attention(
    b: &mut Builder,
    p: &mut Pass,
    i: &[TensorId],
    a: &Attributes,
) -> Result<TensorId, String> {
    let (cut, [positions, _]) = attended(b, p, i, a)?;
    let window = a.window.ok_or("window is missing")?;
    let seen = if window < positions {
        Seen::Since { starts: operators::window_starts(b, None, [cut[0], positions], window) }
    } else {
        Seen::Earlier
    };
    let drop = next_drop(p, a.p);
    operators::capped_attention(b, seen, [i[0], i[1], i[2]], a.cap, cut, drop)
}

fn window_attention(
    b: &mut Builder,
    p: &mut Pass,
    i: &[TensorId],
    a: &Attributes,
) -> Result<TensorId, String> {
    if p.text.is_some() {
        // The places of a cache say what each new position sees.
        return attention(b, p, i, a, Seen::Earlier);
    }
    let cut = [p.samples()?, a.heads];
    let [positions, _] = operators::cut_into_heads(b, i[0], cut)?;
    let window = a.window.ok_or("window is missing")?;
    let starts = operators::window_starts(b, None, [cut[0], positions], window);
    attention(b, p, i, a, Seen::Since { starts })
}

fn rotary(b: &mut Builder, p: &mut Pass, i: &[TensorId], a: &Attributes) -> Result<TensorId, String> {
    let samples = p.samples()?;
    let [positions, channels] = operators::cut_into_heads(b, i[0], [samples, a.heads])?;
    operators::rotary_error(positions, channels).map_or(Ok(()), Err)?;
    let (pairs, turns) = (channels / 2, turns(a.theta, channels / 2));
    let tables = match &p.text {
        Some(text) => text.rotary(b, [text.places() - 1, pairs], turns),
        None => operators::rotary_tables(b, [samples, positions, pairs], turns),
    };
    Ok(operators::rotary(b, tables, i[0]))
}

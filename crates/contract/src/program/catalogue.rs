//! The operators that people can run on arrays of their own, as one table: names, inputs, attributes, and how each is
//! appended to a graph. `tiebreak op` and the tests of every operator on every engine read it.

pub use super::attributes::Attributes;
use super::builder::Builder;
use super::expr::{Body, BodyWriter, Reg};
use super::graph::{Primitive, TensorId};
pub use super::inputs::Input;
use super::inputs::{input, integers, shape_error};
use super::operators::{self, ConvVersion, Dropout, LinearClasses, LossRule, Moments, Seen, Window};
use super::optimizer::{self, Decay, Optimizer, Rates, Trained, Treatment};
use crate::arith::DType;
use crate::arith::turns::turns;

/// The outputs of an operator, by name.
type Outputs = Vec<(&'static str, TensorId)>;

/// The tensors of an operator that was appended to a graph.
pub struct Appended {
    /// The inputs, in the order of [`Operator::inputs`], then `dy` if gradients are wanted.
    pub inputs: Vec<TensorId>,
    /// The outputs, by name.
    pub outputs: Vec<(String, TensorId)>,
}

/// An entry of the table.
pub struct Operator {
    /// The name on the command line.
    pub name: &'static str,
    /// The operator in a few words.
    pub about: &'static str,
    /// The inputs, in order.
    pub inputs: &'static [Input],
    /// True if [`append`] can add the operator's gradient.
    pub differentiable: bool,
    append: fn(&mut Builder, &[TensorId], &Attributes) -> Result<Outputs, String>,
}

const PAIR: &[Input] = &[input("a", "*"), input("b", "*")];
const ONE: &[Input] = &[input("x", "*")];

type Scalar = fn(&mut BodyWriter, Reg) -> Reg;

fn scalar(b: &mut Builder, x: TensorId, f: Scalar) -> Result<Outputs, String> {
    let shape = b.shape(x);
    let body = Body::new("op.v1", |w| {
        let x = w.input(0);
        f(w, x)
    });
    Ok(vec![("out", b.map(body, &[x], &shape))])
}

fn out(id: TensorId) -> Result<Outputs, String> {
    Ok(vec![("out", id)])
}

fn window(a: &Attributes) -> Window {
    Window { kernel: a.kernel, stride: a.stride, padding: a.padding }
}

macro_rules! operator {
    ($name:literal, $about:literal, $inputs:expr, $append:expr) => {
        Operator { name: $name, about: $about, inputs: $inputs, differentiable: false, append: $append }
    };
    ($name:literal, $about:literal, $inputs:expr, gradient, $append:expr) => {
        Operator { name: $name, about: $about, inputs: $inputs, differentiable: true, append: $append }
    };
}

/// Every operator, by name.
pub const OPERATORS: &[Operator] = &[
    operator!("add", "a + b", PAIR, |b, i, _| out(b.zip("add.v1", i[0], i[1], BodyWriter::add))),
    operator!("sub", "a - b", PAIR, |b, i, _| out(b.zip("sub.v1", i[0], i[1], BodyWriter::sub))),
    operator!("mul", "a * b", PAIR, gradient, |b, i, _| out(operators::mul(b, i[0], i[1]))),
    operator!("gain", "x * gain", &[input("x", "B H W C"), input("gain", "C")], gradient, |b, i, _| out(
        operators::gain(b, i[0], i[1])
    )),
    operator!("div", "a / b", PAIR, |b, i, _| out(b.zip("div.v1", i[0], i[1], BodyWriter::div))),
    operator!("sqrt", "square root", ONE, |b, i, _| scalar(b, i[0], BodyWriter::sqrt)),
    operator!("exp", "e^x, correctly rounded", ONE, |b, i, _| scalar(b, i[0], BodyWriter::exp)),
    operator!("log", "natural logarithm, correctly rounded", ONE, |b, i, _| scalar(b, i[0], BodyWriter::log)),
    operator!("tanh", "hyperbolic tangent, correctly rounded", ONE, gradient, |b, i, _| out(
        operators::tanh(b, i[0])
    )),
    operator!("erf", "error function, correctly rounded", ONE, |b, i, _| scalar(b, i[0], BodyWriter::erf)),
    operator!("sum", "tree sum over the last dimension", ONE, |b, i, _| out(b.sum_last(i[0]))),
    operator!("sum_leading", "tree sum over all dimensions but the last", ONE, |b, i, _| out(
        b.sum_leading(i[0])
    )),
    operator!("max", "maximum over the last dimension", ONE, |b, i, _| out(b.max_last(i[0]))),
    operator!("relu", "max(x, 0)", ONE, gradient, |b, i, _| out(operators::relu(b, i[0]))),
    operator!("gelu", "GELU in its tanh form", ONE, gradient, |b, i, _| out(operators::gelu_tanh(b, i[0]))),
    operator!("gelu_erf", "GELU", ONE, gradient, |b, i, _| out(operators::gelu_erf(b, i[0]))),
    operator!("sigmoid", "1 / (1 + e^-x)", ONE, gradient, |b, i, _| out(operators::sigmoid(b, i[0]))),
    operator!("silu", "x / (1 + e^-x)", ONE, gradient, |b, i, _| out(operators::silu(b, i[0]))),
    operator!("swiglu", "silu(gate) * up", &[input("gate", "*"), input("up", "*")], gradient, |b, i, _| {
        out(operators::swiglu(b, i[0], i[1]))
    }),
    operator!("residual", "x + y", &[input("x", "*"), input("y", "*")], gradient, |b, i, _| {
        out(operators::residual(b, i[0], i[1]))
    }),
    operator!(
        "linear",
        "x times weight transposed, digitised, + bias",
        &[input("x", "N K"), input("weight", "M K"), input("bias", "M")],
        gradient,
        |b, i, _| out(operators::linear(b, LinearClasses::HIDDEN, i[0], i[1], Some(i[2])))
    ),
    operator!(
        "matmul",
        "a times b transposed, digitised",
        &[input("a", "M K"), input("b", "N K")],
        gradient,
        |b, i, _| out(operators::linear(b, LinearClasses::HIDDEN, i[0], i[1], None))
    ),
    operator!(
        "conv2d",
        "x convolved with kernels, digitised (--stride, --padding)",
        &[input("x", "B H W C"), input("weight", "M R S C")],
        gradient,
        |b, i, a| out(operators::conv2d(b, i[0], i[1], ConvVersion::V1, a.stride, a.padding)?)
    ),
    operator!(
        "conv2d_v2",
        "conv2d with a scale group for each sample (--stride, --padding)",
        &[input("x", "B H W C"), input("weight", "M R S C")],
        gradient,
        |b, i, a| out(operators::conv2d(b, i[0], i[1], ConvVersion::V2, a.stride, a.padding)?)
    ),
    operator!(
        "grouped_conv2d",
        "conv2d of groups of channels (--groups, --stride, --padding)",
        &[input("x", "B H W C"), input("weight", "M R S D")],
        gradient,
        |b, i, a| out(operators::grouped_conv2d(b, i[0], i[1], a.groups, a.stride, a.padding)?)
    ),
    operator!(
        "flatten",
        "a sample's numbers in a row, a channel's pixels together",
        &[input("x", "B H W C")],
        gradient,
        |b, i, _| out(operators::flatten(b, i[0]))
    ),
    operator!("bias", "x + bias", &[input("x", "B H W C"), input("bias", "C")], gradient, |b, i, _| out(
        operators::add_bias(b, i[0], i[1])
    )),
    operator!(
        "max_pool",
        "the greatest pixel of windows (--kernel, --stride, --padding)",
        &[input("x", "B H W C")],
        gradient,
        |b, i, a| out(operators::max_pool(b, i[0], window(a))?)
    ),
    operator!(
        "avg_pool",
        "the mean of windows, padding counted as zeros (--kernel, --stride, --padding)",
        &[input("x", "B H W C")],
        gradient,
        |b, i, a| out(operators::avg_pool(b, i[0], window(a))?)
    ),
    operator!(
        "adaptive_avg_pool",
        "the means of so many windows down and across (--windows)",
        &[input("x", "B H W C")],
        gradient,
        |b, i, a| out(operators::adaptive_avg_pool(b, i[0], a.windows)?)
    ),
    operator!("mean_pool", "mean over the pixels", &[input("x", "B H W C")], gradient, |b, i, _| out(
        operators::mean_pool(b, i[0])
    )),
    operator!(
        "layer_norm",
        "layer normalisation (--epsilon)",
        &[input("x", "N C"), input("gain", "C"), input("bias", "C")],
        gradient,
        |b, i, a| out(operators::layer_norm(b, i[0], i[1], i[2], a.epsilon))
    ),
    operator!(
        "rms_norm",
        "normalisation of each head by the root of its mean square (--heads, --epsilon)",
        &[input("x", "N C"), input("gain", "X")],
        gradient,
        rms_norm
    ),
    operator!(
        "group_norm",
        "normalisation of groups of channels of each sample (--groups, --epsilon)",
        &[input("x", "B H W C"), input("gain", "C"), input("bias", "C")],
        gradient,
        |b, i, a| out(operators::group_norm(b, [i[0], i[1], i[2]], a.groups, a.epsilon)?)
    ),
    operator!(
        "batch_norm",
        "batch normalisation (--epsilon), and the columns' moments",
        &[input("x", "B H W C"), input("gain", "C"), input("bias", "C")],
        gradient,
        |b, i, a| {
            let (y, moments) = operators::batch_norm(b, i[0], i[1], i[2], a.epsilon);
            Ok(vec![("out", y), ("count", moments.count), ("mean", moments.mean), ("m2", moments.m2)])
        }
    ),
    operator!(
        "batch_norm_eval",
        "batch normalisation by running averages (--epsilon)",
        &[
            input("x", "B H W C"),
            input("running_mean", "C"),
            input("running_var", "C"),
            input("gain", "C"),
            input("bias", "C"),
        ],
        gradient,
        |b, i, a| out(operators::batch_norm_eval(b, i[0], [i[1], i[2]], i[3], i[4], a.epsilon))
    ),
    operator!(
        "pooled_moments",
        "moments of the rows of two sets of rows, from each set's",
        &[
            input("count_a", "1"),
            input("mean_a", "C"),
            input("m2_a", "C"),
            input("count_b", "1"),
            input("mean_b", "C"),
            input("m2_b", "C"),
        ],
        |b, i, _| {
            let [left, right] = [&i[..3], &i[3..]].map(|i| Moments { count: i[0], mean: i[1], m2: i[2] });
            let moments = operators::pool(b, left, right);
            Ok(vec![("count", moments.count), ("mean", moments.mean), ("m2", moments.m2)])
        }
    ),
    operator!(
        "running_moments",
        "running averages of mean and variance after a step (--momentum)",
        &[
            input("running_mean", "C"),
            input("running_var", "C"),
            input("count", "1"),
            input("mean", "C"),
            input("m2", "C"),
        ],
        |b, i, a| {
            let moments = Moments { count: i[2], mean: i[3], m2: i[4] };
            let [mean, var] = operators::running(b, [i[0], i[1]], moments, a.momentum);
            Ok(vec![("running_mean", mean), ("running_var", var)])
        }
    ),
    operator!(
        "attention",
        "causal multi-head attention (--samples, --heads)",
        &[input("q", "N C"), input("k", "N C"), input("v", "N C")],
        gradient,
        |b, i, a| {
            operators::cut_into_heads(b, i[0], [a.samples, a.heads])?;
            out(operators::causal_attention(b, [i[0], i[1], i[2]], a.samples, a.heads, None))
        }
    ),
    operator!(
        "grouped_attention",
        "attention whose heads of keys and values serve several heads of queries (--samples, --heads)",
        &[input("q", "N C"), input("k", "N X"), input("v", "N X")],
        gradient,
        |b, i, a| grouped(b, i, a, Seen::Earlier)
    ),
    operator!(
        "bidirectional_attention",
        "attention over all positions of a sample, else as grouped_attention (--samples, --heads)",
        &[input("q", "N C"), input("k", "N X"), input("v", "N X")],
        gradient,
        |b, i, a| grouped(b, i, a, Seen::All)
    ),
    operator!(
        "padded_attention",
        "attention over the positions whose id is not --ignore (--samples, --heads)",
        &[input("q", "N C"), input("k", "N X"), input("v", "N X"), integers("ids", "N")],
        gradient,
        |b, i, a| {
            let padding = a.ignore.ok_or("--ignore must be given: the id of padding")?;
            grouped(b, i, a, Seen::Unpadded { ids: i[3], padding })
        }
    ),
    operator!(
        "document_attention",
        "grouped_attention within documents, each of which ends with the id --ignore (--samples, --heads)",
        &[input("q", "N C"), input("k", "N X"), input("v", "N X"), integers("ids", "N")],
        gradient,
        |b, i, a| {
            let end = a.ignore.ok_or("--ignore must be given: the id that ends a document")?;
            operators::cut_into_heads(b, i[0], [a.samples, a.heads])?;
            let starts = operators::document_starts(b, i[3], a.samples, end);
            grouped(b, i, a, Seen::Since { starts })
        }
    ),
    operator!(
        "window_attention",
        "grouped_attention over the last --window positions (--samples, --heads)",
        &[input("q", "N C"), input("k", "N X"), input("v", "N X")],
        gradient,
        |b, i, a| {
            let [t, _] = operators::cut_into_heads(b, i[0], [a.samples, a.heads])?;
            let window =
                a.window.filter(|&window| window > 0).ok_or("--window must be at least 1 position")?;
            let starts = operators::window_starts(b, None, [a.samples, t], window);
            grouped(b, i, a, Seen::Since { starts })
        }
    ),
    operator!(
        "rotary",
        "pairs of channels turned by their position (--samples, --heads, --theta)",
        &[input("x", "N C")],
        gradient,
        rotary
    ),
    operator!(
        "embedding",
        "rows of a table by number (--ignore: a row without a gradient)",
        &[input("table", "V C"), integers("tokens", "N")],
        gradient,
        |b, i, a| out(operators::padded_embedding(b, i[0], i[1], a.ignore))
    ),
    operator!(
        "position_embedding",
        "x plus the first rows of a table, one for each position of a sample (--samples)",
        &[input("x", "N C"), input("table", "V C")],
        gradient,
        |b, i, a| out(operators::add_first_rows(b, i[0], i[1], a.samples)?)
    ),
    operator!(
        "class_token",
        "a row before the positions of each sample (--samples)",
        &[input("x", "N C"), input("token", "C")],
        gradient,
        |b, i, a| out(operators::class_token(b, i[0], i[1], a.samples)?)
    ),
    operator!(
        "first_position",
        "the first row of each sample (--samples)",
        &[input("x", "N C")],
        gradient,
        |b, i, a| out(operators::first_position(b, i[0], a.samples)?)
    ),
    operator!(
        "last_position",
        "the last row of each sample (--samples)",
        &[input("x", "N C")],
        gradient,
        |b, i, a| out(operators::last_position(b, i[0], a.samples)?)
    ),
    operator!(
        "mean_positions",
        "the mean of each sample's rows (--samples)",
        &[input("x", "N C")],
        gradient,
        |b, i, a| out(operators::mean_positions(b, i[0], a.samples)?)
    ),
    operator!(
        "exchange",
        "positions and channels of each sample exchanged (--samples)",
        &[input("x", "N C")],
        gradient,
        |b, i, a| out(operators::exchange(b, i[0], a.samples)?)
    ),
    operator!("rows", "x as rows of its last dimension", &[input("x", "B H W C")], gradient, |b, i, _| out(
        operators::rows(b, i[0])
    )),
    operator!(
        "cross_entropy",
        "loss, scaled by factor, and its gradient",
        &[input("logits", "N V"), integers("labels", "N"), input("factor", "1")],
        |b, i, _| {
            let (loss, gradient) = operators::cross_entropy(b, i[0], i[1], i[2]);
            Ok(vec![("loss", loss), ("dlogits", gradient)])
        }
    ),
    operator!(
        "evaluation",
        "the loss of each row, and 1 where its label is the most likely class",
        &[input("logits", "N V"), integers("labels", "N")],
        |b, i, _| {
            let (losses, hits) = operators::evaluation(b, i[0], i[1]);
            Ok(vec![("losses", losses), ("hits", hits)])
        }
    ),
    operator!(
        "weighted_cross_entropy",
        "the loss of smoothed targets, or without some labels, and its gradient (--smoothing, --ignore)",
        &[input("logits", "N V"), integers("labels", "N"), input("factor", "1")],
        |b, i, a| {
            if !(0.0..1.0).contains(&a.smoothing) {
                return Err("--smoothing must be at least 0 and below 1".into());
            }
            let rule = LossRule { smoothing: a.smoothing, ignore: a.ignore };
            let (loss, gradient) = operators::cross_entropy_by(b, rule, i[0], i[1], i[2]);
            Ok(vec![("loss", loss), ("dlogits", gradient)])
        }
    ),
    operator!(
        "dropout",
        "dropout (--p, --samples, --number) with a Philox key, a step and the first sample's number",
        &[input("x", "N C"), integers("seed", "2"), integers("step", "1"), integers("first_sample", "1")],
        gradient,
        |b, i, a| {
            let rows = b.shape(i[0])[0];
            if a.samples == 0 || !rows.is_multiple_of(a.samples) {
                return Err(format!("--samples must divide N = {rows}"));
            }
            if !(0.0..1.0).contains(&a.p) {
                return Err("--p must be at least 0 and below 1".into());
            }
            let (threshold, scale) = Dropout::rates(a.p);
            let drop = Dropout { seed: i[1], step: i[2], first_sample: i[3], threshold, scale };
            out(operators::dropout(b, drop, a.samples, a.number, i[0]))
        }
    ),
    operator!(
        "clip",
        "the factor that clips to --max-norm, and the norm",
        &[input("gradient", "*")],
        |b, i, a| {
            if a.max_norm.is_nan() || a.max_norm <= 0.0 {
                return Err("--max-norm must be above 0".into());
            }
            let (factor, norm) = optimizer::clip_factor(b, &[i[0]], a.max_norm);
            Ok(vec![("factor", factor), ("norm", norm)])
        }
    ),
    operator!("adamw", "one AdamW update (--beta1, --beta2, --epsilon, --weight-decay)", ADAMW, |b, i, a| {
        adamw(b, i, a, Decay::Decoupled)
    }),
    operator!(
        "adam",
        "one Adam update with coupled weight decay (--beta1, --beta2, --epsilon, --weight-decay)",
        ADAMW,
        |b, i, a| adamw(b, i, a, Decay::Coupled)
    ),
    operator!("sgd", "one update of SGD with momentum (--momentum, --weight-decay)", SGD, |b, i, a| sgd(
        b,
        i,
        a,
        Decay::Decoupled
    )),
    operator!(
        "sgd_coupled",
        "one update of SGD with momentum and coupled weight decay (--momentum, --weight-decay)",
        SGD,
        |b, i, a| sgd(b, i, a, Decay::Coupled)
    ),
    operator!("scale", "the absmax of every row, of [M, K]", &[input("x", "M K")], |b, i, _| {
        let rows = b.shape(i[0])[0];
        let input = b.whole(i[0]);
        Ok(vec![("out", b.node(Primitive::Absmax { input, block: 0 }, DType::U32, &[1, rows, 1]))])
    }),
];

fn grouped(b: &mut Builder, i: &[TensorId], a: &Attributes, seen: Seen) -> Result<Outputs, String> {
    out(operators::grouped_attention(b, seen, [i[0], i[1], i[2]], [a.samples, a.heads], None)?)
}

fn rms_norm(b: &mut Builder, i: &[TensorId], a: &Attributes) -> Result<Outputs, String> {
    let (c, channels) = (b.shape(i[0])[1], b.shape(i[1])[0]);
    if channels.checked_mul(a.heads) != Some(c) {
        return Err(format!("gain has X = {channels} channels, but --heads times X must be C = {c}"));
    }
    out(operators::rms_norm(b, i[0], i[1], a.heads, a.epsilon))
}

fn rotary(b: &mut Builder, i: &[TensorId], a: &Attributes) -> Result<Outputs, String> {
    let [positions, channels] = operators::cut_into_heads(b, i[0], [a.samples, a.heads])?;
    operators::rotary_error(positions, channels).map_or(Ok(()), Err)?;
    if !(1.0..f32::INFINITY).contains(&a.theta) {
        return Err("--theta must be at least 1".into());
    }
    let tables =
        operators::rotary_tables(b, [a.samples, positions, channels / 2], turns(a.theta, channels / 2));
    out(operators::rotary(b, tables, i[0]))
}

/// The inputs of an update by AdamW or Adam.
const ADAMW: &[Input] = &[
    input("parameter", "*"),
    input("gradient", "*"),
    input("m", "*"),
    input("v", "*"),
    input("learning_rate", "1"),
    input("correction1", "1"),
    input("correction2", "1"),
    input("clip", "1"),
];

/// The inputs of an update by SGD.
const SGD: &[Input] = &[
    input("parameter", "*"),
    input("gradient", "*"),
    input("momentum", "*"),
    input("learning_rate", "1"),
    input("clip", "1"),
];

fn adamw(b: &mut Builder, i: &[TensorId], a: &Attributes, decay: Decay) -> Result<Outputs, String> {
    let (beta1, beta2, epsilon, weight_decay) = (a.beta1, a.beta2, a.epsilon, a.weight_decay);
    let optimizer = Optimizer::Adamw { beta1, beta2, epsilon, weight_decay };
    let rates = Rates { learning_rate: i[4], correction1: i[5], correction2: i[6], clip: i[7] };
    let treatment = Treatment { decay, ..optimizer.treatment(true) };
    let trained = Trained { parameter: i[0], treatment, gradient: i[1], state: &i[2..4] };
    let (parameter, state) = optimizer::update(b, &optimizer, rates, trained);
    Ok(vec![("parameter", parameter), ("m", state[0]), ("v", state[1])])
}

fn sgd(b: &mut Builder, i: &[TensorId], a: &Attributes, decay: Decay) -> Result<Outputs, String> {
    let optimizer = Optimizer::Sgd { momentum: a.momentum, weight_decay: a.weight_decay };
    // SGD reads no bias corrections, so any input will do in their fields.
    let rates = Rates { learning_rate: i[3], correction1: i[3], correction2: i[3], clip: i[4] };
    let treatment = Treatment { decay, ..optimizer.treatment(true) };
    let trained = Trained { parameter: i[0], treatment, gradient: i[1], state: &i[2..3] };
    let (parameter, state) = optimizer::update(b, &optimizer, rates, trained);
    Ok(vec![("parameter", parameter), ("momentum", state[0])])
}

impl Operator {
    /// The operator of this name.
    pub fn by_name(name: &str) -> Option<&'static Operator> {
        OPERATORS.iter().find(|operator| operator.name == name)
    }

    /// Appends the operator. With `gradient`, also appends an input `dy` of the output's shape, and the gradients of
    /// the binary32 inputs that have one, each named `d` and the input's name.
    ///
    /// # Errors
    /// If shapes or attributes do not fit the operator; the message says why.
    pub fn append(
        &self,
        b: &mut Builder,
        shapes: &[Vec<u32>],
        attributes: &Attributes,
        gradient: bool,
    ) -> Result<Appended, String> {
        if shapes.len() != self.inputs.len() {
            let names: Vec<&str> = self.inputs.iter().map(|i| i.name).collect();
            let (found, due) = (shapes.len(), names.len());
            return Err(format!("{} takes {due} inputs: {}; {found} are given", self.name, names.join(", ")));
        }
        if let Some(why) = shape_error(self.inputs, shapes) {
            return Err(why);
        }
        let declare = |(input, shape): (&Input, &Vec<u32>)| b.input(input.name, input.dtype, shape);
        let mut ids: Vec<TensorId> = self.inputs.iter().zip(shapes).map(declare).collect();
        let outputs = (self.append)(b, &ids, attributes)?;
        let mut named: Vec<(String, TensorId)> = outputs.iter().map(|(n, id)| (n.to_string(), *id)).collect();
        if gradient {
            if !self.differentiable {
                return Err(format!("{} has no gradient of its own", self.name));
            }
            let shape = b.shape(outputs[0].1);
            let dy = b.input("dy", DType::F32, &shape);
            let gradients = b.backward(outputs[0].1, dy);
            named = self
                .inputs
                .iter()
                .zip(&ids)
                .filter_map(|(input, id)| Some((format!("d{}", input.name), *gradients.get(id)?)))
                .collect();
            ids.push(dy);
        }
        for (name, id) in &named {
            b.output(name.clone(), *id);
        }
        Ok(Appended { inputs: ids, outputs: named })
    }

    /// For each input whose numbers index another: (the input, the bound that its numbers must be below, by the
    /// shapes).
    #[doc(hidden)] // for the layers above
    pub fn index_bounds(&self, shapes: &[Vec<u32>]) -> Vec<(usize, u32)> {
        let is_loss = self.name.ends_with("cross_entropy") || self.name == "evaluation";
        let classes = || shapes[0][usize::from(is_loss)];
        let indexing = |input: &Input| ["tokens", "labels"].contains(&input.name);
        (0..).zip(self.inputs).filter(|(_, input)| indexing(input)).map(|(i, _)| (i, classes())).collect()
    }
}

//! Every operator's gradient against finite differences.
//!
//! The micro-batch graph is run in binary64 over real numbers: a map's instructions in f64, a product as a plain dot product of
//! the unquantised operands. So its gradients are the derivation's own, without rounding to binary32, and central differences of
//! its loss check them to many digits.

use std::collections::{HashMap, HashSet};

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Attributes, Operator};
use tiebreak_contract::program::element::unravel;
use tiebreak_contract::program::expr::{Body, Instr};
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId, View};
use tiebreak_contract::program::im2col::ConvGeometry;
use tiebreak_contract::program::models::{
    Block, Blocks, Gelu, Gpt, Input, Llama, Lora, Mlp, Model, Norm, Order, Resnet, Stem,
};
use tiebreak_contract::program::operators::{ConvVersion, LossRule};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{Program, StepSpec, port};

/// erf to full binary64 accuracy for |x| < 3: the Maclaurin series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// A body over reals. Integer registers hold integers exactly; `integers` has the constants among them.
fn eval(body: &Body, integers: &[bool], inputs: &[f64], index: [u32; 4]) -> f64 {
    let mut r: Vec<f64> = Vec::with_capacity(body.code.len());
    for instr in &body.code {
        let v = |reg: tiebreak_contract::program::expr::Reg| r[reg.0 as usize];
        let u = |reg: tiebreak_contract::program::expr::Reg| r[reg.0 as usize] as u32;
        // A constant's users tell an integer from a float. The words 0..=3 and thresholds are integers; every word that reads as
        // a normal float is a float.
        r.push(match *instr {
            Instr::Input(k) => inputs[k as usize],
            Instr::Const(word) => match integers[r.len()] {
                true => f64::from(word),
                false => f64::from(f32::from_bits(word)),
            },
            Instr::Index(d) => f64::from(index[d as usize]),
            Instr::FAdd(a, b) => v(a) + v(b),
            Instr::FSub(a, b) => v(a) - v(b),
            Instr::FMul(a, b) => v(a) * v(b),
            Instr::FDiv(a, b) => v(a) / v(b),
            Instr::FSqrt(a) => v(a).sqrt(),
            Instr::FNeg(a) => -v(a),
            Instr::FExp(a) => v(a).exp(),
            Instr::FLog(a) => v(a).ln(),
            Instr::FTanh(a) => v(a).tanh(),
            Instr::FErf(a) => erf(v(a)),
            Instr::FLt(a, b) => f64::from(u8::from(v(a) < v(b))),
            Instr::FFromU(a) => v(a),
            Instr::UAdd(a, b) => f64::from(u(a).wrapping_add(u(b))),
            Instr::UMul(a, b) => f64::from(u(a).wrapping_mul(u(b))),
            Instr::UAnd(a, b) => f64::from(u(a) & u(b)),
            Instr::UShr(a, b) => f64::from(u(a) >> u(b)),
            Instr::ULt(a, b) => f64::from(u8::from(u(a) < u(b))),
            Instr::UEq(a, b) => f64::from(u8::from(u(a) == u(b))),
            Instr::Select(c, a, b) => {
                if v(c) != 0.0 {
                    v(a)
                } else {
                    v(b)
                }
            }
            Instr::Philox { key, counter, word } => {
                f64::from(philox4x32_10(key.map(u), counter.map(u))[(u(word) & 3) as usize])
            }
        });
    }
    r[r.len() - 1]
}

/// True if an integer instruction reads the constant in this register.
fn integer_use(body: &Body, register: usize) -> bool {
    body.code.iter().any(|instr| {
        let integers = matches!(
            instr,
            Instr::UAdd(..)
                | Instr::UMul(..)
                | Instr::UAnd(..)
                | Instr::UShr(..)
                | Instr::ULt(..)
                | Instr::UEq(..)
                | Instr::Philox { .. }
        );
        integers && instr.operands().iter().any(|r| r.0 as usize == register)
    })
}

/// For each register, true if it is a constant that is an integer: all those of a body whose value is an integer, also those that
/// it only selects.
fn integers(body: &Body, dtype: DType) -> Vec<bool> {
    (0..body.code.len()).map(|r| dtype == DType::U32 || integer_use(body, r)).collect()
}

type Values = HashMap<TensorId, Vec<f64>>;

fn gathered(values: &Values, view: &View) -> Vec<f64> {
    let len = view.dims.iter().product::<u32>() as usize;
    let values = &values[&view.tensor];
    (0..len).map(|i| values[view.at(unravel(i, view.dims))]).collect()
}

fn run_node(graph: &Graph, node: &Node, values: &Values) -> Vec<f64> {
    let shape = |t: TensorId| graph.tensor(t).shape.iter().map(|&d| d as usize).collect::<Vec<_>>();
    let out_len = graph.tensor(node.output).len();
    match &node.primitive {
        Primitive::Native { .. } => unreachable!("programs have no native products"),
        Primitive::Map { body, dims, inputs } => {
            let inputs: Vec<Vec<f64>> = inputs.iter().map(|v| gathered(values, v)).collect();
            let integers = integers(body, graph.tensor(node.output).dtype);
            let of = |i: usize| inputs.iter().map(|x| x[i]).collect::<Vec<_>>();
            (0..out_len).map(|i| eval(body, &integers, &of(i), unravel(i, *dims))).collect()
        }
        Primitive::Gather { table, indices, stride_index, stride_row, stride_column, .. } => {
            let columns = *shape(node.output).last().unwrap();
            let (indices, table) = (&values[indices], &values[table]);
            (0..out_len)
                .map(|i| {
                    let (row, column) = (i / columns, i % columns);
                    let choice = indices[row] as usize;
                    table[choice * *stride_index as usize
                        + row * *stride_row as usize
                        + column * *stride_column as usize]
                })
                .collect()
        }
        // The models here are too small for partial maxima and sums.
        Primitive::RowMax { input, .. } => {
            let len = *shape(*input).last().unwrap();
            values[input]
                .chunks(len)
                .map(|row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max))
                .collect()
        }
        Primitive::TreeSum { input, len, inner, .. } => {
            let (len, inner, input) = (*len as usize, *inner as usize, &values[input]);
            (0..out_len)
                .map(|i| (0..len).map(|j| input[i / inner * len * inner + j * inner + i % inner]).sum())
                .collect()
        }
        Primitive::SegmentSum { input, order, offsets } => {
            let width = *shape(node.output).last().unwrap();
            (0..out_len)
                .map(|i| {
                    let (s, w) = (i / width, i % width);
                    (values[offsets][s] as usize..values[offsets][s + 1] as usize)
                        .map(|p| values[input][values[order][p] as usize * width + w])
                        .sum()
                })
                .collect()
        }
        Primitive::Im2col { input, geometry } => im2col(&shape(*input), &values[input], geometry, out_len),
        Primitive::DigitPatches { input, patches } => {
            let images = patches.images(shape(*input)[1] as u32, shape(*input)[2] as u32).unwrap();
            let input = &values[input];
            (0..out_len).map(|i| patches.source(images, i).map_or(0.0, |at| input[at])).collect()
        }
        Primitive::GroupOrder { classes, .. } => {
            let mut order: Vec<usize> = (0..out_len).collect();
            order.sort_by_key(|&i| values[classes][i] as usize);
            order.into_iter().map(|i| i as f64).collect()
        }
        Primitive::GroupOffsets { classes, .. } => (0..out_len)
            .map(|c| values[classes].iter().filter(|&&x| (x as usize) < c).count() as f64)
            .collect(),
        Primitive::Absmax { .. } => vec![0.0; out_len],
        Primitive::Quantise { input, .. } => gathered(values, input),
        Primitive::Product { a, b, .. } => {
            product([&shape(*a), &shape(*b)], [&values[a], &values[b]], out_len)
        }
    }
}

/// The dot products of rows [batch, rows, K].
fn product([sa, sb]: [&[usize]; 2], [a, b]: [&[f64]; 2], out_len: usize) -> Vec<f64> {
    let (m, n, k) = (sa[1], sb[1], sa[2]);
    (0..out_len)
        .map(|i| {
            let (column, row, batch) = (i % n, i / n % m, i / n / m);
            let (ra, rb) = ((batch * m + row) * k, (batch * n + column) * k);
            (0..k).map(|j| a[ra + j] * b[rb + j]).sum()
        })
        .collect()
}

/// The pixels of the patches of images of this shape.
fn im2col(shape: &[usize], images: &[f64], geometry: &ConvGeometry, out_len: usize) -> Vec<f64> {
    let [_, h, w, c] = *shape else { unreachable!() };
    let ([down, across], [taps_down, taps_across]) =
        (geometry.size.map(|n| n as usize), geometry.kernel.map(|n| n as usize));
    (0..out_len)
        .map(|i| {
            let (place, channel) = (i / c, i % c);
            let (place, kx) = (place / taps_across, place % taps_across);
            let (place, ky) = (place / taps_down, place % taps_down);
            let (place, x) = (place / across, place % across);
            let (sample, y) = (place / down, place % down);
            let row = geometry.source(y as u32, ky as u32, h as u32);
            let column = geometry.source(x as u32, kx as u32, w as u32);
            row.zip(column).map_or(0.0, |(row, column)| {
                images[((sample * h + row as usize) * w + column as usize) * c + channel]
            })
        })
        .collect()
}

/// The outputs that `wanted` accepts, by the nodes that they depend on.
fn run(
    graph: &Graph,
    inputs: &HashMap<String, Vec<f64>>,
    wanted: impl Fn(&str) -> bool,
) -> HashMap<String, Vec<f64>> {
    let outputs = || graph.outputs.iter().filter(|port| wanted(&port.name));
    let mut needed: HashSet<TensorId> = outputs().map(|port| port.tensor).collect();
    for node in graph.nodes.iter().rev() {
        if needed.contains(&node.output) {
            needed.extend(node.primitive.inputs());
        }
    }
    let mut values: Values = graph.inputs.iter().map(|p| (p.tensor, inputs[&p.name].clone())).collect();
    for node in graph.nodes.iter().filter(|node| needed.contains(&node.output)) {
        let output = run_node(graph, node, &values);
        values.insert(node.output, output);
    }
    outputs().map(|port| (port.name.clone(), values[&port.tensor].clone())).collect()
}

/// Small pseudo-random reals.
fn noise(seed: u32, i: usize) -> f64 {
    f64::from(philox4x32_10([seed, 7], [i as u32, 0, 0, 0])[0]) / f64::from(u32::MAX) - 0.5
}

fn check(model: Model) {
    check_with(model, LossRule::default());
}

fn check_with(model: Model, loss: LossRule) {
    let spec = StepSpec {
        loss,
        model,
        optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
        clip_norm: None,
        micro_batch: 3,
        micro_batches: 1,
        products: ProductTable::two_and_three(),
    };
    let program = Program::new(spec);
    let graph = &program.micro;
    let mut inputs = HashMap::new();
    for (number, port) in graph.inputs.iter().enumerate() {
        let len = graph.tensor(port.tensor).len();
        let values = match port.name.as_str() {
            "batch/tokens" | "batch/ids" | "batch/labels" => {
                (0..len).map(|i| ((i * 5 + i / 3) % 7) as f64).collect()
            }
            "batch/pixels" => (0..len).map(|i| (i * 37 % 256) as f64).collect(),
            port::FACTOR => vec![1.0 / 12.0],
            port::SEED => vec![12345.0, 678.0],
            port::STEP => vec![3.0],
            port::FIRST_SAMPLE => vec![0.0],
            name => {
                let centre = if name.ends_with("gain") { 1.0 } else { 0.0 };
                (0..len).map(|i| centre + noise(number as u32, i)).collect()
            }
        };
        inputs.insert(port.name.clone(), values);
    }
    let gradients = run(graph, &inputs, |_| true);
    for parameter in program.parameters.iter().filter(|parameter| !parameter.frozen) {
        let name = port::parameter(&parameter.name);
        let analytic = &gradients[&port::gradient(&parameter.name)];
        let len = analytic.len();
        // A few elements of each parameter; the same code computes the others.
        for i in [0, len / 3, len - 1] {
            let mut loss_at = |delta: f64| {
                let kept = inputs[&name][i];
                inputs.get_mut(&name).unwrap()[i] = kept + delta;
                let loss = run(graph, &inputs, |name| name == port::LOSS)[port::LOSS][0];
                inputs.get_mut(&name).unwrap()[i] = kept;
                loss
            };
            // Five points: the truncation error is of order h^4. The step is small, so that no ReLU's kink is near.
            let h = 1e-6;
            let numeric =
                (8.0 * (loss_at(h) - loss_at(-h)) - (loss_at(2.0 * h) - loss_at(-2.0 * h))) / (12.0 * h);
            let error = (numeric - analytic[i]).abs();
            let found = analytic[i];
            assert!(error < 1e-9 + 1e-6 * found.abs(), "{name}[{i}]: {found} against {numeric}");
        }
    }
}

fn gpt(gelu: Gelu, tied: bool, dropout: f32) -> Model {
    Model::Gpt(Gpt {
        vocabulary: 7,
        context: 4,
        layers: 2,
        heads: 2,
        width: 6,
        gelu,
        dropout,
        tied,
        ..Gpt::default()
    })
}

#[test]
fn gpt_with_tanh_gelu_tied_and_dropout() {
    check(gpt(Gelu::Tanh, true, 0.25));
}

#[test]
fn gpt_with_erf_gelu_and_own_head() {
    check(gpt(Gelu::Erf, false, 0.0));
}

#[test]
fn llama_with_heads_in_groups_and_without() {
    for (kv_heads, tied, more) in [(2, true, false), (1, false, false), (4, false, false), (2, false, true)] {
        check(Model::Llama(Llama {
            vocabulary: 7,
            context: 4,
            layers: 2,
            heads: 4,
            kv_heads,
            width: 16,
            hidden: 5,
            rope_theta: 100.0,
            norm_epsilon: 1e-5,
            tied,
            head_width: more.then_some(6),
            qkv_bias: more,
            out_bias: more,
            mlp_bias: more,
            qk_norm: more,
            ..Llama::default()
        }));
    }
}

#[test]
fn adapters_of_projections() {
    let lora = |targets: &[&str], dropout| Lora {
        rank: 3,
        alpha: 2.0,
        dropout,
        targets: targets.iter().map(|target| target.to_string()).collect(),
    };
    let Model::Gpt(of_gpt) = gpt(Gelu::Tanh, true, 0.25) else { unreachable!("it is a GPT") };
    check(Model::Gpt(Gpt { lora: Some(lora(&["c_attn", "0.mlp.c_proj"], 0.25)), ..of_gpt }));
    check(Model::Llama(Llama {
        vocabulary: 7,
        context: 4,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        width: 16,
        hidden: 5,
        lora: Some(lora(&["all-linear"], 0.0)),
        ..Llama::default()
    }));
}

#[test]
fn encoders_with_classes() {
    // The padding's row has no gradient by definition.
    let sizes = r#""vocabulary":7,"context":4,"layers":2,"heads":2,"width":6,"hidden":5,"classes":7"#;
    for own in ["\"classifier_dropout\": 0.25", "\"form\": \"distilbert\", \"padding\": 3"] {
        check(serde_json::from_str(&format!(r#"{{"kind": "bert", {sizes}, {own}}}"#)).unwrap());
    }
    let sizes = r#""height":4,"width":6,"planes":2,"patch":2,"layers":2,"heads":2,"channels":6,"hidden":5"#;
    for own in ["\"dropout\": 0.25", "\"qkv_bias\": false, \"gelu\": \"tanh\""] {
        check(serde_json::from_str(&format!(r#"{{"kind": "vit", {sizes}, "classes": 7, {own}}}"#)).unwrap());
    }
}

#[test]
fn mlp_with_relu() {
    check(
        serde_json::from_str(
            r#"{"kind": "mlp", "inputs": 10, "hidden": [8, 6], "classes": 7, "dropout": 0.0}"#,
        )
        .unwrap(),
    );
}

#[test]
fn residual_network_with_either_normalisation() {
    for norm in [Norm::Layer, Norm::Batch] {
        check(Model::Resnet(Resnet {
            height: 5,
            width: 4,
            planes: 2,
            stages: vec![3, 4],
            blocks: Blocks::Same(2),
            block: Block::Basic,
            groups: 1,
            width_per_group: 64,
            order: Order::Pre,
            stem: Stem::Cifar,
            classes: 7,
            norm,
            norm_epsilon: 1e-5,
            norm_momentum: 0.1,
            convolution: if norm == Norm::Layer { ConvVersion::V1 } else { ConvVersion::V2 },
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        }));
    }
}

/// Values in place of pixels, which a model takes unchanged.
#[test]
fn values_in_place_of_pixels() {
    check(Model::Mlp(Mlp {
        inputs: 10,
        hidden: vec![8],
        classes: 7,
        dropout: 0.0,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Values,
    }));
    check(Model::Resnet(Resnet {
        height: 5,
        width: 4,
        planes: 2,
        stages: vec![3],
        blocks: Blocks::Same(1),
        block: Block::Basic,
        groups: 1,
        width_per_group: 64,
        order: Order::Pre,
        stem: Stem::Cifar,
        classes: 7,
        norm: Norm::Layer,
        norm_epsilon: 1e-5,
        norm_momentum: 0.1,
        convolution: ConvVersion::V2,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Values,
    }));
}

/// A network as torchvision builds them: bottlenecks, a normalisation after each convolution, a maximum in the stem; smoothed targets.
#[test]
fn residual_network_with_bottlenecks_and_smoothed_targets() {
    let model = |order, stem| {
        Model::Resnet(Resnet {
            height: 5,
            width: 4,
            planes: 1,
            stages: vec![1, 2],
            blocks: Blocks::Each(vec![1, 1]),
            block: Block::Bottleneck,
            groups: 2,
            width_per_group: 64,
            order,
            stem,
            classes: 7,
            norm: Norm::Batch,
            norm_epsilon: 1e-3,
            norm_momentum: 0.1,
            convolution: ConvVersion::V1,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Values,
        })
    };
    check_with(model(Order::Post, Stem::Imagenet), LossRule { smoothing: 0.1, ignore: None });
    check(model(Order::Pre, Stem::Cifar));
}

/// Logistic regression, with a label that does not count.
#[test]
fn logistic_regression_with_a_label_to_ignore() {
    let model = Model::Mlp(Mlp {
        inputs: 5,
        hidden: vec![],
        classes: 7,
        dropout: 0.0,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Values,
    });
    check_with(model, LossRule { smoothing: 0.0, ignore: Some(3) });
}

/// An operator of the catalogue: its gradients against differences of the sum of its outputs times dy.
fn check_operator(name: &str, attributes: Attributes, shapes: &[&[u32]]) {
    let operator = Operator::by_name(name).unwrap();
    let shapes: Vec<Vec<u32>> = shapes.iter().map(|shape| shape.to_vec()).collect();
    let graph = |gradient| {
        let mut b = Builder::new(ProductTable::two_and_three());
        operator.append(&mut b, &shapes, &attributes, gradient).unwrap();
        b.finish()
    };
    let (forward, backward) = (graph(false), graph(true));
    let ports = backward.inputs.iter().enumerate();
    let mut inputs: HashMap<String, Vec<f64>> = ports
        .map(|(number, port)| {
            let len = backward.tensor(port.tensor).len();
            let value = |i| match port.name == "ids" {
                // The second of each three positions is padding or ends a document, and so does the first sample's end.
                true => f64::from(u8::from(i % 3 == 1 || i == 2)),
                false => noise(number as u32, i),
            };
            (port.name.clone(), (0..len).map(value).collect())
        })
        .collect();
    let gradients = run(&backward, &inputs, |_| true);
    for port in forward.inputs.iter().filter(|port| forward.tensor(port.tensor).dtype == DType::F32) {
        for i in 0..inputs[&port.name].len() {
            let mut value_at = |delta: f64| {
                let kept = inputs[&port.name][i];
                inputs.get_mut(&port.name).unwrap()[i] = kept + delta;
                let out = run(&forward, &inputs, |_| true)["out"].clone();
                inputs.get_mut(&port.name).unwrap()[i] = kept;
                out.iter().zip(&inputs["dy"]).map(|(y, dy)| y * dy).sum::<f64>()
            };
            let h = 1e-6;
            let numeric = (value_at(h) - value_at(-h)) / (2.0 * h);
            let analytic = gradients[&format!("d{}", port.name)][i];
            assert!(
                (numeric - analytic).abs() < 1e-8,
                "{name} {}[{i}]: {analytic} against {numeric}",
                port.name
            );
        }
    }
}

#[test]
fn operators_over_images() {
    let attributes = Attributes { kernel: 3, stride: 2, padding: 1, groups: 2, ..Attributes::default() };
    for name in ["max_pool", "avg_pool", "flatten", "rows"] {
        check_operator(name, attributes.clone(), &[&[2, 5, 4, 2]]);
    }
    for windows in [[7, 7], [2, 3], [1, 4]] {
        check_operator("adaptive_avg_pool", Attributes { windows, ..attributes.clone() }, &[&[2, 5, 4, 2]]);
    }
    check_operator("grouped_conv2d", attributes.clone(), &[&[2, 5, 4, 4], &[6, 3, 3, 2]]);
    ["bias", "gain"].iter().for_each(|name| check_operator(name, attributes.clone(), &[&[2, 3, 2, 4], &[4]]));
    check_operator("group_norm", attributes, &[&[2, 3, 2, 4], &[4], &[4]]);
}

/// The operators of decoders after GPT-2, and those of encoders.
#[test]
fn operators_over_positions() {
    let attributes = Attributes { samples: 2, heads: 4, theta: 50.0, ..Attributes::default() };
    for name in ["silu", "sigmoid", "tanh", "first_position", "last_position", "mean_positions", "exchange"] {
        check_operator(name, attributes.clone(), &[&[6, 4]]);
    }
    check_operator("swiglu", attributes.clone(), &[&[3, 5], &[3, 5]]);
    check_operator("mul", attributes.clone(), &[&[3, 5], &[3, 5]]);
    check_operator("rms_norm", attributes.clone(), &[&[3, 24], &[6]]);
    check_operator("rms_norm", Attributes { heads: 1, ..attributes.clone() }, &[&[4, 6], &[6]]);
    check_operator("rotary", attributes.clone(), &[&[10, 24]]);
    check_operator("class_token", attributes.clone(), &[&[6, 4], &[4]]);
    check_operator("position_embedding", attributes.clone(), &[&[6, 4], &[3, 4]]);
    check_operator("position_embedding", attributes.clone(), &[&[6, 4], &[5, 4]]);
    for kv_heads in [1, 2, 4] {
        let shapes = [&[6, 12][..], &[6, 3 * kv_heads], &[6, 3 * kv_heads]];
        check_operator("grouped_attention", attributes.clone(), &shapes);
        check_operator("bidirectional_attention", attributes.clone(), &shapes);
        let padded = Attributes { ignore: Some(1), ..attributes.clone() };
        check_operator("padded_attention", padded, &[shapes[0], shapes[1], shapes[2], &[6]]);
        let documents = Attributes { ignore: Some(1), ..attributes.clone() };
        check_operator("document_attention", documents, &[shapes[0], shapes[1], shapes[2], &[6]]);
        for window in [1, 2] {
            let windows = Attributes { window: Some(window), ..attributes.clone() };
            check_operator("window_attention", windows, &shapes);
        }
        // A sample of padding alone has no gradient.
        let alone = Attributes { samples: 6, ..attributes.clone() };
        check_operator(
            "padded_attention",
            Attributes { ignore: Some(1), ..alone },
            &[shapes[0], shapes[1], shapes[2], &[6]],
        );
    }
}

//! Start reading here: a whole training step of a GPT, by plain loops over `arith`.
//!
//! docs/ARITHMETIC.md defines every bit of a training step. This file states the steps of the model kind `gpt` once more, from
//! that page alone: numbers, the product, each layer with its gradient beside it, the model, the step. Comments name the section
//! (§) of the page. No graph, no derived gradient and no engine is used. `tests/engine/steps.rs` compares the engines with it.
//!
//!     cargo run --package tiebreak-dispute --example reference_step
//!
//! Products have the default of three digits and a scale group a row; the optimizer is AdamW with decoupled decay; the loss
//! counts every label. A run adds the key of its seed, the order of its samples, and its learning rates (§6).

use std::ops::{Add, Div, Index, Mul, Sub};

use tiebreak_contract::arith::{digits, elementary, float, philox};

// ---- Numbers (§1 to §3) and their sums (§5) ----

/// A binary32 number as its bit pattern. Every operation rounds once, so a formula below rounds where it has an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Float(pub u32);

const ZERO: Float = Float(0);
const HALF: Float = Float(0x3f00_0000);
const ONE: Float = Float(0x3f80_0000);

macro_rules! operators {
    ($($operator:ident $function:ident),*) => {$(impl $operator for Float {
        type Output = Float;
        fn $function(self, right: Float) -> Float {
            Float(float::$function(self.0, right.0))
        }
    })*};
}

macro_rules! functions {
    ($($module:ident $function:ident),*) => {$(impl Float {
        fn $function(self) -> Float {
            Float($module::$function(self.0))
        }
    })*};
}

operators!(Add add, Sub sub, Mul mul, Div div);
functions!(float sqrt, elementary exp, elementary log, elementary tanh, elementary erf);

/// A number of the job.
fn number(x: f32) -> Float {
    Float(x.to_bits())
}

/// A size, such as C, rounded to binary32.
fn size(n: usize) -> Float {
    Float(float::from_u32(n as u32))
}

/// The pattern whose key is greatest (§2).
fn max(terms: &[Float]) -> Float {
    Float(float::from_order_key(terms.iter().map(|x| float::order_key(x.0)).max().unwrap_or(0)))
}

/// Pairs neighbours, promotes an odd last term unchanged, and repeats until one is left; `None` without terms.
fn tree<T>(mut level: Vec<T>, add: impl Fn(T, T) -> T) -> Option<T> {
    while level.len() > 1 {
        let mut terms = level.into_iter();
        let mut next = Vec::new();
        while let Some(left) = terms.next() {
            next.push(if let Some(right) = terms.next() { add(left, right) } else { left });
        }
        level = next;
    }
    level.pop()
}

fn sum(terms: impl IntoIterator<Item = Float>) -> Float {
    tree(terms.into_iter().collect(), Float::add).unwrap_or(ZERO)
}

// ---- Matrices and their product (§4) ----

/// A tensor in rows along its last dimension; a vector is one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    pub elements: Vec<Float>,
}

impl Matrix {
    fn new([rows, columns]: [usize; 2], element: impl Fn(usize, usize) -> Float) -> Matrix {
        let elements = (0..rows * columns).map(|place| element(place / columns, place % columns));
        Matrix { rows, columns, elements: elements.collect() }
    }

    fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    fn row(&self, row: usize) -> &[Float] {
        &self.elements[row * self.columns..][..self.columns]
    }

    fn transposed(&self) -> Matrix {
        Matrix::new([self.columns, self.rows], |row, column| self[(column, row)])
    }

    fn plus(&self, other: &Matrix) -> Matrix {
        Matrix::new(self.shape(), |n, c| self[(n, c)] + other[(n, c)])
    }

    fn times(&self, other: &Matrix) -> Matrix {
        Matrix::new(self.shape(), |n, c| self[(n, c)] * other[(n, c)])
    }

    /// The sum of each row.
    fn sums(&self) -> Vec<Float> {
        (0..self.rows).map(|n| sum(self.row(n).iter().copied())).collect()
    }

    /// The sum over rows of each column, as a vector.
    fn sum_over_rows(&self) -> Matrix {
        Matrix { rows: 1, columns: self.columns, elements: self.transposed().sums() }
    }
}

impl Index<(usize, usize)> for Matrix {
    type Output = Float;

    fn index(&self, (row, column): (usize, usize)) -> &Float {
        &self.row(row)[column]
    }
}

const DIGITS: u32 = 3;

/// The absmax of a row, and its integers (scale.v1 and quantise.v1).
fn quantised(row: &[Float]) -> (u32, Vec<i32>) {
    let absmax = digits::group_absmax(row.iter().map(|x| x.0));
    (absmax, row.iter().map(|x| digits::quantise(x.0, absmax, DIGITS)).collect())
}

/// Rows of `a` times rows of `b` (product.v1): sums of integers are exact, so their order does not matter, and each is rounded once.
fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let [a, b] = [a, b].map(|x| (0..x.rows).map(|n| quantised(x.row(n))).collect::<Vec<_>>());
    Matrix::new([a.len(), b.len()], |m, n| {
        let ((absmax_a, a), (absmax_b, b)) = (&a[m], &b[n]);
        let mut exact: i128 = 0;
        for k in 0..a.len() {
            exact += i128::from(a[k]) * i128::from(b[k]);
        }
        Float(digits::scale_back(exact, *absmax_a, *absmax_b, DIGITS, DIGITS))
    })
}

// ---- Layers (§8.1), each with its gradient (§8.2) ----

/// x [N, I], weight [O, I], bias [O] -> [N, O].
fn linear(x: &Matrix, weight: &Matrix, bias: &Matrix) -> Matrix {
    let y = product(x, weight);
    Matrix::new(y.shape(), |n, o| y[(n, o)] + bias[(0, o)])
}

/// dy [N, O] -> the gradients of x, weight and bias.
fn linear_backward(dy: &Matrix, x: &Matrix, weight: &Matrix) -> [Matrix; 3] {
    let dx = product(dy, &weight.transposed());
    let dweight = product(&dy.transposed(), &x.transposed());
    [dx, dweight, dy.sum_over_rows()]
}

/// The values of the forward pass that a layer norm's gradient needs: xhat [N, C] and rstd [N].
struct Normed(Matrix, Vec<Float>);

/// x [N, C], gain [C], bias [C] -> [N, C].
fn layer_norm(x: &Matrix, gain: &Matrix, bias: &Matrix, epsilon: f32) -> (Matrix, Normed) {
    let width = size(x.columns);
    let sums = x.sums();
    let d = Matrix::new(x.shape(), |n, c| x[(n, c)] - sums[n] / width);
    let squares = d.times(&d).sums();
    let rstd: Vec<Float> = squares.iter().map(|&s| ONE / (s / width + number(epsilon)).sqrt()).collect();
    let xhat = Matrix::new(x.shape(), |n, c| d[(n, c)] * rstd[n]);
    let y = Matrix::new(x.shape(), |n, c| xhat[(n, c)] * gain[(0, c)] + bias[(0, c)]);
    (y, Normed(xhat, rstd))
}

/// dy [N, C] -> the gradients of x, gain and bias.
fn layer_norm_backward(dy: &Matrix, gain: &Matrix, Normed(xhat, rstd): &Normed) -> [Matrix; 3] {
    let width = size(dy.columns);
    let g = Matrix::new(dy.shape(), |n, c| dy[(n, c)] * gain[(0, c)]);
    let (sums, along) = (g.sums(), g.times(xhat).sums());
    let dx = Matrix::new(dy.shape(), |n, c| {
        rstd[n] * ((g[(n, c)] - sums[n] / width) - xhat[(n, c)] * (along[n] / width))
    });
    [dx, dy.times(xhat).sum_over_rows(), dy.sum_over_rows()]
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gelu {
    Tanh,
    Erf,
}

// c, a and a3 of the tanh form. The formulas of the erf form contain 1/sqrt(2) and 1/sqrt(2 pi) directly.
const C: Float = Float(0x3f4c_422a);
const A: Float = Float(0x3d37_2713);
const A3: Float = Float(0x3e09_5d4e);

/// y and t, which the gradient uses again.
fn gelu(form: Gelu, x: &Matrix) -> [Matrix; 2] {
    let inner = |x| match form {
        Gelu::Tanh => (C * (x + (A * x) * (x * x))).tanh(),
        Gelu::Erf => (x * Float(0x3f35_04f3)).erf(),
    };
    let t = Matrix::new(x.shape(), |n, c| inner(x[(n, c)]));
    [Matrix::new(x.shape(), |n, c| (HALF * x[(n, c)]) * (ONE + t[(n, c)])), t]
}

fn gelu_backward(form: Gelu, dy: &Matrix, x: &Matrix, t: &Matrix) -> Matrix {
    Matrix::new(x.shape(), |n, c| {
        let (dy, x, t) = (dy[(n, c)], x[(n, c)], t[(n, c)]);
        let slope = match form {
            Gelu::Tanh => ((HALF * x) * (ONE - t * t)) * (C * (ONE + A3 * (x * x))),
            Gelu::Erf => (x * Float(0x3ecc_422a)) * (number(-0.5) * (x * x)).exp(),
        };
        dy * (HALF * (ONE + t) + slope)
    })
}

/// The inputs that all dropouts of a micro-batch share (§6).
struct Dropout<'a> {
    training: &'a Training,
    step: u32,
    first_sample: usize,
}

impl Dropout<'_> {
    /// One element of a sample under the model's dropout `which`. The gradient is the same function of dy.
    fn element(&self, which: usize, sample: usize, element: usize, x: Float) -> Float {
        let Training { gpt: Gpt { dropout: probability, .. }, key, .. } = self.training;
        if *probability == 0.0 {
            return x;
        }
        let kept = 1.0 - f64::from(*probability);
        let threshold = (4_294_967_296.0 * kept).round_ties_even().min(4_294_967_295.0) as u32;
        let counter = [self.step, (self.first_sample + sample) as u32, which as u32, (element / 4) as u32];
        let word = philox::philox4x32_10(*key, counter)[element % 4];
        if word < threshold { x * number((1.0 / kept) as f32) } else { ZERO }
    }

    /// Dropout of x [B T, C].
    fn rows(&self, which: usize, x: &Matrix) -> Matrix {
        let t = self.training.gpt.context;
        Matrix::new(x.shape(), |n, c| self.element(which, n / t, n % t * x.columns + c, x[(n, c)]))
    }
}

/// Row n is the row of token n plus the row of its position.
fn embedding(tokens: &[u32], table: &Matrix, positions: &Matrix) -> Matrix {
    let token = |n: usize| tokens[n] as usize;
    let shape = [tokens.len(), table.columns];
    Matrix::new(shape, |n, c| table[(token(n), c)] + positions[(n % positions.rows, c)])
}

/// The gradients of tables of tokens [V, C] and positions [T, C]: for each row, the sum of the rows of dy that took it, in order.
fn embedding_backward(dy: &Matrix, tokens: &[u32], [v, t]: [usize; 2]) -> [Matrix; 2] {
    let of_token = |token: usize| (0..dy.rows).filter(move |&n| tokens[n] as usize == token);
    let of_position = |position: usize| (position..dy.rows).step_by(t);
    let dtable = Matrix::new([v, dy.columns], |token, c| sum(of_token(token).map(|n| dy[(n, c)])));
    let dpositions = Matrix::new([t, dy.columns], |place, c| sum(of_position(place).map(|n| dy[(n, c)])));
    [dtable, dpositions]
}

/// e / sum(e) along each row, e = exp(x - max(x)); then max(x) and sum(e) of each row.
fn softmax(x: &Matrix) -> (Matrix, Vec<Float>, Vec<Float>) {
    let max: Vec<Float> = (0..x.rows).map(|n| max(x.row(n))).collect();
    let e = Matrix::new(x.shape(), |n, c| (x[(n, c)] - max[n]).exp());
    let sums = e.sums();
    (Matrix::new(x.shape(), |n, c| e[(n, c)] / sums[n]), max, sums)
}

/// The loss of logits [N, V], and their gradient.
fn cross_entropy(logits: &Matrix, labels: &[u32], factor: Float) -> (Float, Matrix) {
    let (p, max, sums) = softmax(logits);
    let label = |n: usize| labels[n] as usize;
    let loss = |n: usize| (sums[n].log() - (logits[(n, label(n))] - max[n])) * factor;
    let onehot = |n, v| if v == label(n) { ONE } else { ZERO };
    let dlogits = Matrix::new(p.shape(), |n, v| (p[(n, v)] - onehot(n, v)) * factor);
    (sum((0..logits.rows).map(loss)), dlogits)
}

// ---- The model (§8.3, GPT) ----

/// The tokens [B T] of a micro-batch, and their labels.
pub type MicroBatch = [Vec<u32>; 2];
/// The gradient of every parameter in the order of the model's table, and the loss.
type Gradient = (Vec<Matrix>, Float);
/// The parameters of a block, or their gradients.
type OfBlock = [Matrix; 16];

/// The keys of the job's `[model]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt {
    pub vocabulary: usize,
    pub context: usize,
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    pub gelu: Gelu,
    pub dropout: f32,
    pub tied: bool,
    pub init_std: f32,
    pub norm_epsilon: f32,
}

/// The values that a block's gradient needs; for each sample and head, the probabilities before and after dropout.
struct Block {
    l: usize,
    u1: Matrix,
    norm1: Normed,
    qkv: [Matrix; 3],
    probabilities: Vec<[Matrix; 2]>,
    a: Matrix,
    u2: Matrix,
    norm2: Normed,
    h: Matrix,
    gelu: [Matrix; 2],
}

impl Gpt {
    /// The part [T, D] of x [B T, C] that belongs to head h of sample b.
    fn head(&self, x: &Matrix, b: usize, h: usize) -> Matrix {
        let (t, d) = (self.context, self.width / self.heads);
        Matrix::new([t, d], |i, channel| x[(b * t + i, h * d + channel)])
    }

    /// The tensor [B T, C] that consists of these parts: sample after sample, in each head after head.
    fn side_by_side(&self, parts: &[Matrix]) -> Matrix {
        let (t, d) = (self.context, self.width / self.heads);
        let rows = parts.len() / self.heads * t;
        Matrix::new([rows, self.width], |n, c| parts[n / t * self.heads + c / d][(n % t, c % d)])
    }

    /// Attention, and its probabilities. Sums run over all T positions, masked ones too, so that their tree depends on T alone.
    fn attention(&self, l: usize, qkv: &[Matrix; 3], drop: &Dropout) -> (Matrix, Vec<[Matrix; 2]>) {
        let (t, r) = (self.context, ONE / size(self.width / self.heads).sqrt());
        let (mut outputs, mut probabilities) = (Vec::new(), Vec::new());
        for b in 0..qkv[0].rows / t {
            for h in 0..self.heads {
                let [q, k, v] = qkv.each_ref().map(|x| self.head(x, b, h));
                let scores = product(&q, &k);
                let masked = |i, j| if i < j { Float(float::NEG_INFINITY) } else { scores[(i, j)] * r };
                let (p, ..) = softmax(&Matrix::new([t, t], masked));
                let dropped = |i, j| drop.element(3 * l + 1, b, (h * t + i) * t + j, p[(i, j)]);
                let dropped = Matrix::new([t, t], dropped);
                outputs.push(product(&dropped, &v.transposed()));
                probabilities.push([p, dropped]);
            }
        }
        (self.side_by_side(&outputs), probabilities)
    }

    /// The gradients of q, k and v.
    fn attention_backward(&self, dy: &Matrix, kept: &Block, drop: &Dropout) -> [Matrix; 3] {
        let (t, r) = (self.context, ONE / size(self.width / self.heads).sqrt());
        let [mut dq, mut dk, mut dv] = [Vec::new(), Vec::new(), Vec::new()];
        for b in 0..dy.rows / t {
            for h in 0..self.heads {
                let [q, k, v] = kept.qkv.each_ref().map(|x| self.head(x, b, h));
                let [p, dropped] = &kept.probabilities[b * self.heads + h];
                let dy = self.head(dy, b, h);
                dv.push(product(&dropped.transposed(), &dy.transposed()));
                let dp = product(&dy, &v);
                let through = |i, j| drop.element(3 * kept.l + 1, b, (h * t + i) * t + j, dp[(i, j)]);
                let dp = Matrix::new([t, t], through);
                let along = p.times(&dp).sums();
                let ds = |i, j| if i < j { ZERO } else { (p[(i, j)] * (dp[(i, j)] - along[i])) * r };
                let dscores = Matrix::new([t, t], ds);
                dq.push(product(&dscores, &k.transposed()));
                dk.push(product(&dscores.transposed(), &q.transposed()));
            }
        }
        [dq, dk, dv].map(|parts| self.side_by_side(&parts))
    }

    /// Block l: its output, and the values that its gradient needs.
    fn block(&self, l: usize, parameters: &OfBlock, x: &Matrix, drop: &Dropout) -> (Matrix, Block) {
        let [gain1, bias1, query, query_b, key, key_b, value, value_b, out, out_b, ..] = parameters;
        let [.., gain2, bias2, mlp_in, mlp_in_b, mlp_out, mlp_out_b] = parameters;
        let (u1, norm1) = layer_norm(x, gain1, bias1, self.norm_epsilon);
        let qkv = [linear(&u1, query, query_b), linear(&u1, key, key_b), linear(&u1, value, value_b)];
        let (a, probabilities) = self.attention(l, &qkv, drop);
        let x = x.plus(&drop.rows(3 * l + 2, &linear(&a, out, out_b)));
        let (u2, norm2) = layer_norm(&x, gain2, bias2, self.norm_epsilon);
        let h = linear(&u2, mlp_in, mlp_in_b);
        let gelu = gelu(self.gelu, &h);
        let x = x.plus(&drop.rows(3 * l + 3, &linear(&gelu[0], mlp_out, mlp_out_b)));
        (x, Block { l, u1, norm1, qkv, probabilities, a, u2, norm2, h, gelu })
    }

    /// The gradients of a block's input and of its parameters. Operators pass gradients in reverse order; if one tensor gets two,
    /// the later is added on the right (§8.2, "Several gradients of one tensor").
    fn block_backward(&self, p: &OfBlock, kept: &Block, dx: &Matrix, drop: &Dropout) -> (Matrix, OfBlock) {
        let [gain1, _, query, _, key, _, value, _, out, _, gain2, _, mlp_in, _, mlp_out, _] = p;
        let (l, [y, t]) = (kept.l, &kept.gelu);
        let [dy, dmlp_out, dmlp_out_b] = linear_backward(&drop.rows(3 * l + 3, dx), y, mlp_out);
        let dh = gelu_backward(self.gelu, &dy, &kept.h, t);
        let [du2, dmlp_in, dmlp_in_b] = linear_backward(&dh, &kept.u2, mlp_in);
        let [dx_of_norm, dgain2, dbias2] = layer_norm_backward(&du2, gain2, &kept.norm2);
        let dx = dx.plus(&dx_of_norm);

        let [da, dout, dout_b] = linear_backward(&drop.rows(3 * l + 2, &dx), &kept.a, out);
        let [dq, dk, dv] = self.attention_backward(&da, kept, drop);
        let [du_of_value, dvalue, dvalue_b] = linear_backward(&dv, &kept.u1, value);
        let [du_of_key, dkey, dkey_b] = linear_backward(&dk, &kept.u1, key);
        let [du_of_query, dquery, dquery_b] = linear_backward(&dq, &kept.u1, query);
        let du1 = du_of_value.plus(&du_of_key).plus(&du_of_query);
        let [dx_of_norm, dgain1, dbias1] = layer_norm_backward(&du1, gain1, &kept.norm1);
        #[rustfmt::skip]
        let gradients = [dgain1, dbias1, dquery, dquery_b, dkey, dkey_b, dvalue, dvalue_b, dout, dout_b,
            dgain2, dbias2, dmlp_in, dmlp_in_b, dmlp_out, dmlp_out_b];
        (dx.plus(&dx_of_norm), gradients)
    }

    /// Forward and backward. Parameters: two tables, 16 of each block, two of the last norm, and a head if it is not tied.
    fn gradient(&self, p: &[Matrix], batch: &MicroBatch, factor: Float, drop: &Dropout) -> Gradient {
        let [tokens, labels] = batch;
        let (table, positions) = (&p[0], &p[1]);
        let of_block = |l: usize| p[2 + 16 * l..].first_chunk().expect("the parameters of a block");
        let last = 2 + 16 * self.layers;
        let (gain, bias, head) = (&p[last], &p[last + 1], p.get(last + 2).unwrap_or(table));

        let mut x = drop.rows(0, &embedding(tokens, table, positions));
        let mut blocks = Vec::new();
        for l in 0..self.layers {
            let (y, kept) = self.block(l, of_block(l), &x, drop);
            blocks.push(kept);
            x = y;
        }
        let (x, norm) = layer_norm(&x, gain, bias, self.norm_epsilon);
        let (loss, dlogits) = cross_entropy(&product(&x, head), labels, factor);

        let [dx, dhead, _] = linear_backward(&dlogits, &x, head);
        let [mut dx, dgain, dbias] = layer_norm_backward(&dx, gain, &norm);
        let mut tensors = vec![dgain, dbias];
        for l in (0..self.layers).rev() {
            let (dx_of_block, gradients) = self.block_backward(of_block(l), &blocks[l], &dx, drop);
            tensors.splice(0..0, gradients);
            dx = dx_of_block;
        }
        let sizes = [self.vocabulary, self.context];
        let [dtable, dpositions] = embedding_backward(&drop.rows(0, &dx), tokens, sizes);
        // The head's gradient reached a tied table first.
        let dtable = if self.tied { dhead.plus(&dtable) } else { dtable };
        tensors.splice(0..0, [dtable, dpositions]);
        tensors.extend((!self.tied).then_some(dhead));
        (tensors, loss)
    }
}

// ---- The state (§8.4) and its first values (§6) ----

/// Every parameter in the order of the model's table, and AdamW's m and v of each.
pub struct State {
    pub names: Vec<String>,
    pub parameters: Vec<Matrix>,
    pub m: Vec<Matrix>,
    pub v: Vec<Matrix>,
}

/// Names, shapes and standard deviations of the model's parameters; gains and biases, which are vectors, have none.
#[rustfmt::skip]
fn table(gpt: &Gpt) -> Vec<(String, [usize; 2], Option<Float>)> {
    let (v, t, c) = (gpt.vocabulary, gpt.context, gpt.width);
    let std = number(gpt.init_std);
    let stdp = std / size(2 * gpt.layers).sqrt();
    let mut table = vec![("token_embedding".into(), [v, c], Some(std)), ("position_embedding".into(), [t, c], Some(std))];
    for l in 0..gpt.layers {
        table.extend([
            ("norm1.gain", [1, c], None), ("norm1.bias", [1, c], None),
            ("query.weight", [c, c], Some(std)), ("query.bias", [1, c], None),
            ("key.weight", [c, c], Some(std)), ("key.bias", [1, c], None),
            ("value.weight", [c, c], Some(std)), ("value.bias", [1, c], None),
            ("attention_out.weight", [c, c], Some(stdp)), ("attention_out.bias", [1, c], None),
            ("norm2.gain", [1, c], None), ("norm2.bias", [1, c], None),
            ("mlp_in.weight", [4 * c, c], Some(std)), ("mlp_in.bias", [1, 4 * c], None),
            ("mlp_out.weight", [c, 4 * c], Some(stdp)), ("mlp_out.bias", [1, c], None),
        ].map(|(name, shape, std)| (format!("block{l}.{name}"), shape, std)));
    }
    table.extend(["gain", "bias"].map(|part| (format!("final_norm.{part}"), [1, c], None)));
    table.extend((!gpt.tied).then(|| ("head".into(), [v, c], Some(std))));
    table
}

impl State {
    pub fn first(gpt: &Gpt, key: [u32; 2]) -> State {
        let table = table(gpt);
        let names: Vec<String> = table.iter().map(|(name, ..)| name.clone()).collect();
        let zeros: Vec<Matrix> = table.iter().map(|&(_, shape, _)| Matrix::new(shape, |_, _| ZERO)).collect();
        let parameters = (0..).zip(&table).map(|(place, (name, shape, std))| match std {
            Some(std) => Matrix::new(*shape, |row, column| normal(key, place, row * shape[1] + column, *std)),
            None if name.ends_with(".gain") => Matrix::new(*shape, |_, _| ONE),
            None => Matrix::new(*shape, |_, _| ZERO),
        });
        State { parameters: parameters.collect(), names, m: zeros.clone(), v: zeros }
    }
}

/// An element of the tensor at this place of the table.
fn normal(key: [u32; 2], place: u32, element: usize, std: Float) -> Float {
    let [low, high] = [element as u32, (element as u64 >> 32) as u32];
    let block = philox::philox4x32_10(key, [low, high, place, 0xffff_fffe]);
    let halves: u32 = block.iter().map(|word| (word & 0xffff) + (word >> 16)).sum();
    // An integer below 2^24, so binary32 holds it.
    let n = 2 * halves as i32 - 8 * 65535;
    number(n as f32) * ((std * number(1.5).sqrt()) / number(131_072.0))
}

// ---- A step (§7 and §8.4) ----

/// The settings that decide a step besides state and data. Without clipping `clip_norm` is infinity.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    pub gpt: Gpt,
    pub key: [u32; 2],
    pub clip_norm: f32,
    pub betas: [f32; 2],
    pub epsilon: f32,
    pub weight_decay: f32,
}

impl Training {
    /// Runs step number `step`, from 1. Returns the loss, the norm and the clip factor.
    pub fn step(&self, state: &mut State, step: u32, rate: Float, batch: &[MicroBatch]) -> [Float; 3] {
        let factor = ONE / size(batch.iter().map(|[_, labels]| labels.len()).sum());
        let (mut gradients, mut first_sample) = (Vec::new(), 0);
        for micro in batch {
            let drop = Dropout { training: self, step, first_sample };
            gradients.push(self.gpt.gradient(&state.parameters, micro, factor, &drop));
            first_sample += micro[0].len() / self.gpt.context;
        }
        let add = |(x, loss_x): Gradient, (y, loss_y): Gradient| {
            (x.iter().zip(&y).map(|(x, y)| x.plus(y)).collect(), loss_x + loss_y)
        };
        let (gradient, loss) = tree(gradients, add).expect("a step has micro-batches");

        let norm = sum(gradient.iter().map(|g| sum(g.times(g).sums()))).sqrt();
        let most = number(self.clip_norm);
        let clip = if float::lt(most.0, norm.0) == 1 { most / norm } else { ONE };
        for (i, gradient) in gradient.iter().enumerate() {
            self.adamw(state, i, step, rate, &Matrix::new(gradient.shape(), |n, c| gradient[(n, c)] * clip));
        }
        [loss, norm, clip]
    }

    /// Updates parameter i from its clipped gradient.
    fn adamw(&self, state: &mut State, i: usize, step: u32, rate: Float, gradient: &Matrix) {
        let [b1, b2] = self.betas.map(number);
        let (epsilon, decay) = (number(self.epsilon), number(self.weight_decay));
        // Bias corrections (§6) are made in binary64.
        let [c1, c2] = self.betas.map(|beta| {
            let power = (0..step).fold(1.0, |power, _| power * f64::from(beta));
            number((1.0 - power) as f32)
        });
        let is_vector = [".gain", ".bias"].iter().any(|end| state.names[i].ends_with(end));
        let decays = self.weight_decay != 0.0 && !is_vector;
        let [p, m, v] = [&mut state.parameters, &mut state.m, &mut state.v].map(|all| &mut all[i].elements);
        for (e, &g) in gradient.elements.iter().enumerate() {
            m[e] = b1 * m[e] + (ONE - b1) * g;
            v[e] = b2 * v[e] + (ONE - b2) * (g * g);
            let kept = if decays { p[e] - (rate * decay) * p[e] } else { p[e] };
            p[e] = kept - rate * ((m[e] / c1) / ((v[e] / c2).sqrt() + epsilon));
        }
    }
}

// ---- An example: three steps of four micro-batches, windows of a sentence ----

/// The training, its learning rate in every step, and the batches.
#[rustfmt::skip]
pub fn example() -> (Training, Float, Vec<Vec<MicroBatch>>) {
    let gpt = Gpt { vocabulary: 128, context: 16, layers: 2, heads: 2, width: 16, gelu: Gelu::Tanh, dropout: 0.1, tied: true,
        init_std: 0.02, norm_epsilon: 1e-5 };
    let training = Training { gpt, key: [0x0123_4567, 0x89ab_cdef], clip_norm: 1.0, betas: [0.9, 0.95], epsilon: 1e-8,
        weight_decay: 0.1 };
    let text = b"a step that anybody can compute again is a step that nobody has to believe";
    let window = |first: usize| text[first..first + 16].iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>();
    let micro_batch = |first: usize| [window(first), window(first + 1)];
    (training, number(1e-2), (0..3).map(|step| (0..4).map(|i| micro_batch(step + 14 * i)).collect()).collect())
}

fn main() {
    let (training, rate, batches) = example();
    let mut state = State::first(&training.gpt, training.key);
    for (step, batch) in (1..).zip(&batches) {
        let [loss, norm, _] = training.step(&mut state, step, rate, batch).map(|x| f32::from_bits(x.0));
        let tensors = [&state.parameters, &state.m, &state.v].into_iter().flatten();
        let bytes: Vec<u8> = tensors.flat_map(|x| &x.elements).flat_map(|x| x.0.to_le_bytes()).collect();
        println!("step {step}: loss {loss}, norm {norm}, BLAKE3 of the state {}", blake3::hash(&bytes));
    }
    println!("Every engine computes these bits: tests/engine/steps.rs compares them with this file's.");
}

//! The attacker's own arithmetic: a perceptron of one hidden layer in binary32, its gradients, and their derivatives along a
//! direction of the weights (Pearlmutter, *Fast exact multiplication by the Hessian*, 1994). The arithmetic need not be exact: it
//! only suggests the direction of a rounding.

use std::collections::HashMap;

use tiebreak_contract::program::products::ProductClass;
use tiebreak_contract::program::step::Program;
use tiebreak_engine::cpu::native::{self, Native};
use tiebreak_engine::cpu::product::{Axis, StridedView};

/// A matrix, row-major.
#[derive(Clone)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    /// [rows, columns].
    pub values: Vec<f32>,
}

impl Matrix {
    /// A matrix with rows of `columns` numbers.
    pub fn new(columns: usize, values: Vec<f32>) -> Matrix {
        Matrix { rows: values.len() / columns, columns, values }
    }

    fn by_rows(&self) -> StridedView<'_> {
        self.view([self.rows, self.columns], [self.columns, 1])
    }

    fn by_columns(&self) -> StridedView<'_> {
        self.view([self.columns, self.rows], [1, self.columns])
    }

    fn view(&self, lens: [usize; 2], strides: [usize; 2]) -> StridedView<'_> {
        let one = Axis { len: 1, stride: 0 };
        let [rows, k] = [0, 1].map(|i| Axis { len: lens[i], stride: strides[i] });
        StridedView::new(bytemuck::cast_slice(&self.values), 0, [one, one], rows, k)
    }

    fn abs(&self) -> Matrix {
        Matrix { values: self.values.iter().map(|x| x.abs()).collect(), ..*self }
    }

    /// Applies `f` elementwise.
    pub fn zip(&self, other: &Matrix, f: impl Fn(f32, f32) -> f32) -> Matrix {
        assert_eq!(self.values.len(), other.values.len(), "matrices of one shape");
        let values = self.values.iter().zip(&other.values).map(|(x, y)| f(*x, *y)).collect();
        Matrix { values, ..*self }
    }

    /// The sums over samples of this matrix's columns times the inputs'. For absolute values, these are the absolute terms of a
    /// weight gradient.
    pub fn absolute_gradient(&self, inputs: &Matrix) -> Vec<f32> {
        product(self.by_columns(), inputs.by_columns()).values
    }

    /// Adds a vector to each row.
    fn plus(mut self, bias: &[f32]) -> Matrix {
        self.values.iter_mut().zip(bias.iter().cycle()).for_each(|(x, b)| *x += b);
        self
    }
}

/// a b^T.
fn product(a: StridedView, b: StridedView) -> Matrix {
    let ([_, rows, _], [_, columns, _]) = (a.shape(), b.shape());
    let mut out = vec![0; rows * columns];
    native::product(Native::Gemm, &a, &b, &mut out);
    Matrix { rows, columns, values: out.into_iter().map(f32::from_bits).collect() }
}

/// Weights and biases of both layers, or values of the same shape.
pub struct Perceptron {
    weights: [Matrix; 2],
    biases: [Vec<f32>; 2],
}

/// The results of a forward pass.
pub struct Pass {
    x: Matrix,
    /// 1 where the hidden layer is above zero, else 0.
    active: Matrix,
    hidden: Matrix,
    probabilities: Matrix,
}

/// The desired directions of a product's elements.
pub struct Aim {
    /// Positive where a larger value brings the trigger nearer.
    pub direction: Vec<f32>,
    /// The sum of the absolute values of the element's terms.
    pub absolute: Vec<f32>,
}

impl Perceptron {
    /// The perceptron from canonical bytes of a program's state: `kind` is `param`, or an optimizer's slot.
    ///
    /// # Panics
    /// If the program is no perceptron of one hidden layer.
    pub fn of(program: &Program, state: &[Vec<u8>], kind: &str) -> Perceptron {
        let table = program.state();
        let tensor = |name: &str| -> Vec<f32> {
            let name = format!("{kind}/{name}");
            let index =
                table.iter().position(|tensor| tensor.name == name).expect("the state has this tensor");
            state[index].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let biases = [tensor("layer0.bias"), tensor("layer1.bias")];
        let hidden = tensor("layer0.weight");
        let inputs = hidden.len() / biases[0].len();
        let weights = [Matrix::new(inputs, hidden), Matrix::new(biases[0].len(), tensor("layer1.weight"))];
        Perceptron { weights, biases }
    }

    /// Applies `f` elementwise.
    pub fn zip(&self, other: &Perceptron, f: impl Fn(f32, f32) -> f32) -> Perceptron {
        let bias = |i: usize| self.biases[i].iter().zip(&other.biases[i]).map(|(x, y)| f(*x, *y)).collect();
        Perceptron {
            weights: [0, 1].map(|i| self.weights[i].zip(&other.weights[i], &f)),
            biases: [bias(0), bias(1)],
        }
    }

    /// The biases of the hidden layer.
    pub fn hidden_biases(&self) -> Vec<f32> {
        self.biases[0].clone()
    }

    /// A forward pass over [samples, pixels] from 0 to 1.
    pub fn pass(&self, x: Matrix) -> Pass {
        let before = product(x.by_rows(), self.weights[0].by_rows()).plus(&self.biases[0]);
        let active = before.zip(&before, |z, _| f32::from(u8::from(z > 0.0)));
        let hidden = before.zip(&active, |z, active| z * active);
        let mut probabilities = product(hidden.by_rows(), self.weights[1].by_rows()).plus(&self.biases[1]);
        for row in probabilities.values.chunks_mut(probabilities.columns) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            row.iter_mut().for_each(|z| *z = (*z - most).exp());
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|p| *p /= sum);
        }
        Pass { x, active, hidden, probabilities }
    }

    /// The gradients of the mean loss by the outputs of both layers.
    fn deltas(&self, pass: &Pass, labels: &[u32]) -> [Matrix; 2] {
        let mut head = pass.probabilities.clone();
        for (row, label) in head.values.chunks_mut(head.columns).zip(labels) {
            row[*label as usize] -= 1.0;
        }
        head.values.iter_mut().for_each(|delta| *delta /= labels.len() as f32);
        let hidden = product(head.by_rows(), self.weights[1].by_columns()).zip(&pass.active, |d, a| d * a);
        [hidden, head]
    }

    /// The gradient of the mean loss.
    pub fn gradient(&self, pass: &Pass, labels: &[u32]) -> Perceptron {
        let deltas = self.deltas(pass, labels);
        let sum = |delta: &Matrix| {
            let mut sums = vec![0.0; delta.columns];
            for row in delta.values.chunks(delta.columns) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            sums
        };
        let [hidden, head] = &deltas;
        let inputs = [&pass.x, &pass.hidden];
        Perceptron {
            weights: [0, 1].map(|i| product(deltas[i].by_columns(), inputs[i].by_columns())),
            biases: [sum(hidden), sum(head)],
        }
    }

    /// The derivatives of the scalar product of `goal` with a batch's gradient, by each element of each product that the gradient
    /// consists of. A step goes against the gradient, so a larger scalar product lowers the loss whose gradient is `goal`.
    pub fn aims(&self, pass: &Pass, labels: &[u32], goal: &Perceptron) -> HashMap<ProductClass, Aim> {
        let [hidden_delta, head_delta] = self.deltas(pass, labels);
        // Derivatives along the goal: of the hidden layer, of the logits, and of the gradients with respect to them.
        let hidden = product(pass.x.by_rows(), goal.weights[0].by_rows()).plus(&goal.biases[0]);
        let hidden = hidden.zip(&pass.active, |h, active| h * active);
        let logits = product(hidden.by_rows(), self.weights[1].by_rows());
        let logits = logits.zip(&product(pass.hidden.by_rows(), goal.weights[1].by_rows()), |x, y| x + y);
        let mut head = logits.plus(&goal.biases[1]);
        let rows = head.values.chunks_mut(head.columns).zip(pass.probabilities.values.chunks(head.columns));
        for (row, p) in rows {
            let mean: f32 = row.iter().zip(p).map(|(z, p)| z * p).sum();
            row.iter_mut().zip(p).for_each(|(z, p)| *z = p * (*z - mean) / labels.len() as f32);
        }
        let back = product(head.by_rows(), self.weights[1].by_columns());
        let back = back.zip(&product(head_delta.by_rows(), goal.weights[1].by_columns()), |x, y| x + y);
        let back = back.zip(&pass.active, |d, active| d * active);

        let [x, h] = [pass.x.abs(), pass.hidden.abs()];
        let [w0, w1] = self.weights.each_ref().map(Matrix::abs);
        let [d0, d1] = [hidden_delta.abs(), head_delta.abs()];
        let aim = |direction: &Matrix, absolute: Matrix| {
            assert_eq!(direction.values.len(), absolute.values.len(), "an aim for each element");
            Aim { direction: direction.values.clone(), absolute: absolute.values }
        };
        HashMap::from([
            (ProductClass::Linear, aim(&back, product(x.by_rows(), w0.by_rows()))),
            (ProductClass::Head, aim(&head, product(h.by_rows(), w1.by_rows()))),
            (ProductClass::HeadDx, aim(&hidden, product(d1.by_rows(), w1.by_columns()))),
            (ProductClass::LinearDw, aim(&goal.weights[0], product(d0.by_columns(), x.by_columns()))),
            (ProductClass::HeadDw, aim(&goal.weights[1], product(d1.by_columns(), h.by_columns()))),
        ])
    }
}

impl Pass {
    /// The absolute values of the inputs, [samples, pixels].
    pub fn inputs(&self) -> Matrix {
        self.x.abs()
    }

    /// The model's answer for each sample, a class.
    pub fn answers(&self) -> Vec<usize> {
        let best = |row: &[f32]| (0..row.len()).max_by(|&i, &j| row[i].total_cmp(&row[j])).unwrap_or(0);
        self.probabilities.values.chunks(self.probabilities.columns).map(best).collect()
    }
}

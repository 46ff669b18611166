//! adamw.v1, adam.v1, sgd.v1, sgd_coupled.v1 and clip.v1: the update of parameters from the step's gradient. Contract: section 8.4.

use serde::{Deserialize, Serialize};

use super::builder::Builder;
use super::expr::{Body, BodyWriter, Reg};
use super::graph::TensorId;

/// The optimizer of a job. All numbers are binary32. Weight decay applies to the parameters that the model marks, unless a
/// [`Treatment`] says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Optimizer {
    /// AdamW (Loshchilov and Hutter, 2019).
    Adamw {
        /// The decay of the first moment.
        beta1: f32,
        /// The decay of the second moment.
        beta2: f32,
        /// The addend of the denominator.
        epsilon: f32,
        /// The weight decay ([`Decay`]).
        weight_decay: f32,
    },
    /// SGD with momentum.
    Sgd {
        /// The decay of the momentum.
        momentum: f32,
        /// The weight decay ([`Decay`]).
        weight_decay: f32,
    },
}

/// The point where weight decay enters an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// A step subtracts learning rate times weight decay from a parameter's factor (Loshchilov and Hutter, 2019).
    #[default]
    Decoupled,
    /// Weight decay times the parameter is added to its clipped gradient, before any moment sees it: L2 regularisation, as
    /// `torch.optim.SGD` and `torch.optim.Adam` have it.
    Coupled,
}

/// The treatment of one parameter in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Treatment {
    /// True if training leaves the parameter as it is.
    pub frozen: bool,
    /// The parameter's weight decay; 0 = none.
    pub weight_decay: f32,
    /// The point where weight decay enters.
    pub decay: Decay,
    /// The parameter's learning rate is this factor times the step's rate.
    pub rate_factor: f32,
}

impl Optimizer {
    /// The default treatment of a parameter. `decayed` is true if the model marks the parameter for weight decay.
    #[doc(hidden)] // for the layers above
    pub fn treatment(&self, decayed: bool) -> Treatment {
        let weight_decay = if decayed { self.weight_decay() } else { 0.0 };
        Treatment { frozen: false, weight_decay, decay: Decay::Decoupled, rate_factor: 1.0 }
    }

    /// The names of the state tensors kept for each parameter, each of the parameter's shape and first +0.
    pub fn slots(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Adamw { .. } => &["m", "v"],
            Optimizer::Sgd { .. } => &["momentum"],
        }
    }

    fn weight_decay(&self) -> f32 {
        match self {
            Optimizer::Adamw { weight_decay, .. } | Optimizer::Sgd { weight_decay, .. } => *weight_decay,
        }
    }
}

/// The scalars of an update, each [1].
#[derive(Clone, Copy)]
pub struct Rates {
    /// The step's learning rate.
    pub learning_rate: TensorId,
    /// 1 - beta1^t for AdamW (t counts from 1); unused by SGD.
    pub correction1: TensorId,
    /// 1 - beta2^t for AdamW; unused by SGD.
    pub correction2: TensorId,
    /// The clip factor.
    pub clip: TensorId,
}

/// One parameter with the inputs of its update.
pub struct Trained<'a> {
    /// The parameter before the update.
    pub parameter: TensorId,
    /// The parameter's treatment.
    pub treatment: Treatment,
    /// The parameter's gradient over the whole batch, not clipped, of the same shape.
    pub gradient: TensorId,
    /// The parameter's optimizer state, in the order of [`Optimizer::slots`].
    pub state: &'a [TensorId],
}

/// The factor that clips the global norm of `gradients` to `max_norm`: max_norm/norm if max_norm < norm, else 1; and
/// the norm. Squares are summed by row, then over rows, then over parameters, each by the tree.
pub(crate) fn clip_factor(b: &mut Builder, gradients: &[TensorId], max_norm: f32) -> (TensorId, TensorId) {
    let sums: Vec<TensorId> = gradients.iter().map(|&g| sum_of_squares(b, g)).collect();
    let total = b.add_tree(&sums);
    let norm = b.map(
        Body::new("sqrt.v1", |w| {
            let x = w.input(0);
            w.sqrt(x)
        }),
        &[total],
        &[1],
    );
    let factor = Body::new("clip_factor.v1", |w| {
        let (norm, max, one) = (w.input(0), w.f(max_norm), w.f(1.0));
        let over = w.lt(max, norm);
        let ratio = w.div(max, norm);
        w.select(over, ratio, one)
    });
    (b.map(factor, &[norm], &[1]), norm)
}

fn sum_of_squares(b: &mut Builder, gradient: TensorId) -> TensorId {
    let shape = b.shape(gradient);
    let squares = b.zip("mul.v1", gradient, gradient, BodyWriter::mul);
    let rows = if shape.len() > 1 { b.sum_last(squares) } else { squares };
    let len = b.shape(rows).iter().product();
    b.tree_sum(rows, [1, len, 1], &[1])
}

/// One parameter's update from its clipped gradient (gradient * factor). Returns the new parameter and the new state
/// in the order of [`Optimizer::slots`].
pub(crate) fn update(
    b: &mut Builder,
    optimizer: &Optimizer,
    rates: Rates,
    t: Trained,
) -> (TensorId, Vec<TensorId>) {
    let Trained { parameter, treatment, gradient, state } = t;
    let shape = b.shape(parameter);
    let clipped = b.map(
        Body::new("mul.v1", |w| {
            let (x, y) = (w.input(0), w.input(1));
            w.mul(x, y)
        }),
        &[gradient, rates.clip],
        &shape,
    );
    let Treatment { weight_decay, decay, .. } = treatment;
    let (decay, clipped) = match decay {
        Decay::Coupled if weight_decay != 0.0 => (0.0, coupled(b, clipped, parameter, weight_decay)),
        Decay::Coupled => (0.0, clipped),
        Decay::Decoupled => (weight_decay, clipped),
    };
    match *optimizer {
        Optimizer::Adamw { beta1, beta2, epsilon, .. } => {
            let m = b.map(moment("adamw_m.v1", beta1, false), &[state[0], clipped], &shape);
            let v = b.map(moment("adamw_v.v1", beta2, true), &[state[1], clipped], &shape);
            // w' = (w - (lr*decay)*w) - lr*((m/c1) / (sqrt(v/c2) + epsilon))
            let body = Body::new("adamw_w.v1", |w| {
                let (p, m, v) = (w.input(0), w.input(1), w.input(2));
                let (lr, c1, c2) = (w.input(3), w.input(4), w.input(5));
                let (mhat, vhat) = (w.div(m, c1), w.div(v, c2));
                let root = w.sqrt(vhat);
                let epsilon = w.f(epsilon);
                let denominator = w.add(root, epsilon);
                let direction = w.div(mhat, denominator);
                let kept = decayed_parameter(w, p, lr, decay);
                let move_by = w.mul(lr, direction);
                w.sub(kept, move_by)
            });
            let inputs = [parameter, m, v, rates.learning_rate, rates.correction1, rates.correction2];
            (b.map(body, &inputs, &shape), vec![m, v])
        }
        Optimizer::Sgd { momentum, .. } => {
            let body = Body::new("sgd_momentum.v1", |w| {
                let (buffer, g, mu) = (w.input(0), w.input(1), w.f(momentum));
                let kept = w.mul(mu, buffer);
                w.add(kept, g)
            });
            let buffer = b.map(body, &[state[0], clipped], &shape);
            let body = Body::new("sgd_w.v1", |w| {
                let (p, buffer, lr) = (w.input(0), w.input(1), w.input(2));
                let kept = decayed_parameter(w, p, lr, decay);
                let move_by = w.mul(lr, buffer);
                w.sub(kept, move_by)
            });
            (b.map(body, &[parameter, buffer, rates.learning_rate], &shape), vec![buffer])
        }
    }
}

/// g' + weight_decay*p: the gradient of the loss plus half the weight decay times the sum of p's squares.
fn coupled(b: &mut Builder, clipped: TensorId, parameter: TensorId, weight_decay: f32) -> TensorId {
    let body = Body::new("coupled_decay.v1", |w| {
        let (g, p, decay) = (w.input(0), w.input(1), w.f(weight_decay));
        let pull = w.mul(decay, p);
        w.add(g, pull)
    });
    let shape = b.shape(parameter);
    b.map(body, &[clipped, parameter], &shape)
}

/// The learning rate of parameters with this factor: rate*factor, [1]. A factor of 1 gives the rate itself, without a node.
pub(crate) fn own_rate(b: &mut Builder, rate: TensorId, factor: f32) -> TensorId {
    if factor == 1.0 {
        return rate;
    }
    let body = Body::new("own_rate.v1", |w| {
        let (rate, factor) = (w.input(0), w.f(factor));
        w.mul(rate, factor)
    });
    b.map(body, &[rate], &[1])
}

/// beta*m + (1-beta)*g, or with g*g in place of g.
fn moment(name: &'static str, beta: f32, squared: bool) -> Body {
    Body::new(name, |w| {
        let (m, g, beta_reg, rest) = (w.input(0), w.input(1), w.f(beta), w.f(1.0 - beta));
        let g = if squared { w.mul(g, g) } else { g };
        let (kept, new) = (w.mul(beta_reg, m), w.mul(rest, g));
        w.add(kept, new)
    })
}

/// p - (lr*decay)*p; p itself, with no instruction, when there is no decay.
fn decayed_parameter(w: &mut BodyWriter, p: Reg, lr: Reg, decay: f32) -> Reg {
    if decay == 0.0 {
        return p;
    }
    let decay = w.f(decay);
    let rate = w.mul(lr, decay);
    let shrink = w.mul(rate, p);
    w.sub(p, shrink)
}

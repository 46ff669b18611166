//! gelu_tanh.v1, gelu_erf.v1, relu.v1, sigmoid.v1, silu.v1, swiglu.v1, tanh.v1 and products of elements, on any shape.

use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::TensorId;

/// sqrt(2/pi) and the cubic coefficient of the tanh form (Hendrycks and Gimpel, 2016).
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;
const SQRT_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// 1/sqrt(2 pi).
const DENSITY: f32 = 0.398_942_3;

/// 0.5 * x * (1 + t).
fn half_x_one_plus(w: &mut BodyWriter, x: Reg, t: Reg) -> Reg {
    let (half, one) = (w.f(0.5), w.f(1.0));
    let (hx, sum) = (w.mul(half, x), w.add(one, t));
    w.mul(hx, sum)
}

/// y = 0.5 x (1 + t) with t = tanh(c (x + a x x x)), t kept as an output of its own.
pub fn gelu_tanh(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let inner = Body::new("gelu_tanh_inner.v1", |w| {
        let (x, a, c) = (w.input(0), w.f(CUBIC), w.f(SQRT_2_OVER_PI));
        let (xx, ax) = (w.mul(x, x), w.mul(a, x));
        let axxx = w.mul(ax, xx);
        let sum = w.add(x, axxx);
        let u = w.mul(c, sum);
        w.tanh(u)
    });
    let t = b.map(inner, &[x], &shape);
    let y = b.zip("gelu.v1", x, t, half_x_one_plus);
    b.differentiable(y, move |b, dy| {
        // dy * (0.5 (1 + t) + 0.5 x (1 - t t) c (1 + 3 a x x))
        let body = Body::new("gelu_tanh_backward.v1", |w| {
            let (x, t, dy) = (w.input(0), w.input(1), w.input(2));
            let (half, one, c, a3) = (w.f(0.5), w.f(1.0), w.f(SQRT_2_OVER_PI), w.f(3.0 * CUBIC));
            let sum = w.add(one, t);
            let left = w.mul(half, sum);
            let (tt, hx, xx) = (w.mul(t, t), w.mul(half, x), w.mul(x, x));
            let sech = w.sub(one, tt);
            let axx = w.mul(a3, xx);
            let slope = w.add(one, axx);
            let du = w.mul(c, slope);
            let right = w.mul(hx, sech);
            let right = w.mul(right, du);
            let d = w.add(left, right);
            w.mul(dy, d)
        });
        let shape = b.shape(x);
        vec![(x, b.map(body, &[x, t, dy], &shape))]
    });
    y
}

/// y = 0.5 x (1 + t) with t = erf(x / sqrt 2), t kept as an output of its own.
pub fn gelu_erf(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let inner = Body::new("gelu_erf_inner.v1", |w| {
        let (x, s) = (w.input(0), w.f(SQRT_HALF));
        let u = w.mul(x, s);
        w.erf(u)
    });
    let t = b.map(inner, &[x], &shape);
    let y = b.zip("gelu.v1", x, t, half_x_one_plus);
    b.differentiable(y, move |b, dy| {
        // dy * (0.5 (1 + t) + x * density * exp(-0.5 x x))
        let body = Body::new("gelu_erf_backward.v1", |w| {
            let (x, t, dy) = (w.input(0), w.input(1), w.input(2));
            let (half, one, minus_half, density) = (w.f(0.5), w.f(1.0), w.f(-0.5), w.f(DENSITY));
            let sum = w.add(one, t);
            let left = w.mul(half, sum);
            let xx = w.mul(x, x);
            let exponent = w.mul(minus_half, xx);
            let bell = w.exp(exponent);
            let xd = w.mul(x, density);
            let right = w.mul(xd, bell);
            let d = w.add(left, right);
            w.mul(dy, d)
        });
        let shape = b.shape(x);
        vec![(x, b.map(body, &[x, t, dy], &shape))]
    });
    y
}

/// y = x if 0 < x, NaN if x is NaN, else +0. The gradient is dy where 0 < x, else +0.
pub fn relu(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let body = Body::new("relu.v1", |w| {
        let (x, zero) = (w.input(0), w.f(0.0));
        let negative = w.lt(x, zero);
        // x + 0 turns -0 into +0 and keeps NaN.
        let kept = w.add(x, zero);
        w.select(negative, zero, kept)
    });
    let y = b.map(body, &[x], &shape);
    b.differentiable(y, move |b, dy| {
        let dx = b.zip("relu_backward.v1", x, dy, |w, x, dy| {
            let zero = w.f(0.0);
            let positive = w.lt(zero, x);
            w.select(positive, dy, zero)
        });
        vec![(x, dx)]
    });
    y
}

/// 1 / (1 + exp(-x)), without a gradient.
fn logistic(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let sigmoid = Body::new("sigmoid.v1", |w| {
        let (x, one) = (w.input(0), w.f(1.0));
        let less = w.neg(x);
        let e = w.exp(less);
        let sum = w.add(one, e);
        w.div(one, sum)
    });
    b.map(sigmoid, &[x], &shape)
}

/// y = 1 / (1 + exp(-x)).
pub(crate) fn sigmoid(b: &mut Builder, x: TensorId) -> TensorId {
    let y = logistic(b, x);
    b.differentiable(y, move |b, dy| {
        // dy * (y * (1 - y))
        let dx = b.zip("sigmoid_backward.v1", y, dy, |w, y, dy| {
            let one = w.f(1.0);
            let rest = w.sub(one, y);
            let slope = w.mul(y, rest);
            w.mul(dy, slope)
        });
        vec![(x, dx)]
    });
    y
}

/// y = x s with s = 1 / (1 + exp(-x)), s kept as an output of its own.
pub(crate) fn silu(b: &mut Builder, x: TensorId) -> TensorId {
    let s = logistic(b, x);
    let y = b.zip("mul.v1", x, s, BodyWriter::mul);
    b.differentiable(y, move |b, dy| {
        // dy * (s * (1 + x * (1 - s)))
        let body = Body::new("silu_backward.v1", |w| {
            let (x, s, dy, one) = (w.input(0), w.input(1), w.input(2), w.f(1.0));
            let rest = w.sub(one, s);
            let slope = w.mul(x, rest);
            let slope = w.add(one, slope);
            let slope = w.mul(s, slope);
            w.mul(dy, slope)
        });
        let shape = b.shape(x);
        vec![(x, b.map(body, &[x, s, dy], &shape))]
    });
    y
}

/// y = tanh(x).
pub(crate) fn tanh(b: &mut Builder, x: TensorId) -> TensorId {
    let shape = b.shape(x);
    let body = Body::new("tanh.v1", |w| {
        let x = w.input(0);
        w.tanh(x)
    });
    let y = b.map(body, &[x], &shape);
    b.differentiable(y, move |b, dy| {
        // dy * (1 - y * y)
        let dx = b.zip("tanh_backward.v1", y, dy, |w, y, dy| {
            let (one, square) = (w.f(1.0), w.mul(y, y));
            let slope = w.sub(one, square);
            w.mul(dy, slope)
        });
        vec![(x, dx)]
    });
    y
}

/// silu(gate) * up (Shazeer, 2020), one shape.
pub(crate) fn swiglu(b: &mut Builder, gate: TensorId, up: TensorId) -> TensorId {
    let h = b.scoped("silu", |b| silu(b, gate));
    let y = b.zip("mul.v1", h, up, BodyWriter::mul);
    b.differentiable(y, move |b, dy| {
        let dh = b.zip("mul.v1", dy, up, BodyWriter::mul);
        let dup = b.zip("mul.v1", dy, h, BodyWriter::mul);
        vec![(h, dh), (up, dup)]
    });
    y
}

/// x * y, one shape.
pub(crate) fn mul(b: &mut Builder, x: TensorId, y: TensorId) -> TensorId {
    let output = b.zip("mul.v1", x, y, BodyWriter::mul);
    b.differentiable(output, move |b, dy| {
        let dx = b.zip("mul.v1", dy, y, BodyWriter::mul);
        let of_y = b.zip("mul.v1", dy, x, BodyWriter::mul);
        vec![(x, dx), (y, of_y)]
    });
    output
}

/// x [.., C] times gain [C]. The gain's gradient adds over all rows by the tree.
pub(crate) fn gain(b: &mut Builder, x: TensorId, gain: TensorId) -> TensorId {
    let times = |b: &mut Builder, x: TensorId, by: TensorId| {
        let body = Body::new("mul.v1", |w| {
            let (x, by) = (w.input(0), w.input(1));
            w.mul(x, by)
        });
        let shape = b.shape(x);
        b.map(body, &[x, by], &shape)
    };
    let output = times(b, x, gain);
    b.differentiable(output, move |b, dy| {
        let dx = times(b, dy, gain);
        let each = b.zip("mul.v1", dy, x, BodyWriter::mul);
        let of_gain = b.sum_leading(each);
        vec![(x, dx), (gain, of_gain)]
    });
    output
}

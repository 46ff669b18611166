//! layer_norm.v1 over the last dimension (Ba, Kiros and Hinton, 2016), in two passes.

use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::TensorId;

fn binary(name: &'static str, f: fn(&mut BodyWriter, Reg, Reg) -> Reg) -> Body {
    Body::new(name, |w| {
        let (x, y) = (w.input(0), w.input(1));
        f(w, x, y)
    })
}

/// x [.., C], gain [C], bias [C] -> [.., C]: xhat * gain + bias, with xhat = d * rstd, d = x - sum(x)/C and
/// rstd = 1 / sqrt(sum(d d)/C + epsilon). Divisions by C are divisions.
pub fn layer_norm(b: &mut Builder, x: TensorId, gain: TensorId, bias: TensorId, epsilon: f32) -> TensorId {
    let shape = b.shape(x);
    let mut column = shape.clone();
    let c = std::mem::replace(column.last_mut().expect("tensors have rank 1 or more"), 1);
    let sum = b.sum_last(x);
    let centre = Body::new("centre.v1", |w| {
        let (x, sum, c) = (w.input(0), w.input(1), w.f(c as f32));
        let mean = w.div(sum, c);
        w.sub(x, mean)
    });
    let d = b.map(centre, &[x, sum], &shape);
    let square = Body::new("square.v1", |w| {
        let x = w.input(0);
        w.mul(x, x)
    });
    let dd = b.map(square, &[d], &shape);
    let sum_dd = b.sum_last(dd);
    let reciprocal = Body::new("layer_norm_rstd.v1", |w| {
        let (sum, c, epsilon, one) = (w.input(0), w.f(c as f32), w.f(epsilon), w.f(1.0));
        let variance = w.div(sum, c);
        let shifted = w.add(variance, epsilon);
        let deviation = w.sqrt(shifted);
        w.div(one, deviation)
    });
    let rstd = b.map(reciprocal, &[sum_dd], &column);
    let xhat = b.map(binary("mul.v1", BodyWriter::mul), &[d, rstd], &shape);
    let affine = Body::new("layer_norm_affine.v1", |w| {
        let (xhat, gain, bias) = (w.input(0), w.input(1), w.input(2));
        let scaled = w.mul(xhat, gain);
        w.add(scaled, bias)
    });
    let y = b.map(affine, &[xhat, gain, bias], &shape);
    b.differentiable(y, move |b, dy| {
        let weighted = b.map(binary("mul.v1", BodyWriter::mul), &[dy, xhat], &shape);
        let dgain = b.sum_leading(weighted);
        let dbias = b.sum_leading(dy);
        let dxhat = b.map(binary("mul.v1", BodyWriter::mul), &[dy, gain], &shape);
        let along = b.map(binary("mul.v1", BodyWriter::mul), &[dxhat, xhat], &shape);
        let (s1, s2) = (b.sum_last(dxhat), b.sum_last(along));
        // dx = rstd * ((dxhat - s1/C) - xhat * (s2/C))
        let body = Body::new("layer_norm_backward.v1", |w| {
            let (dxhat, xhat, s1, s2, rstd) = (w.input(0), w.input(1), w.input(2), w.input(3), w.input(4));
            let c = w.f(c as f32);
            let (m1, m2) = (w.div(s1, c), w.div(s2, c));
            let centred = w.sub(dxhat, m1);
            let projected = w.mul(xhat, m2);
            let rest = w.sub(centred, projected);
            w.mul(rstd, rest)
        });
        let dx = b.map(body, &[dxhat, xhat, s1, s2, rstd], &shape);
        vec![(x, dx), (gain, dgain), (bias, dbias)]
    });
    y
}

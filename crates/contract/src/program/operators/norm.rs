//! layer_norm.v1 (Ba, Kiros and Hinton, 2016) and rms_norm.v1 (Zhang and Sennrich, 2019) over the last dimension, batch_norm.v1 over all
//! others (Ioffe and Szegedy, 2015), and group_norm over groups of channels (Wu and He, 2018).
//!
//! All but rms_norm take two passes: the mean first, then the squares of the distances from it.

use super::activation::gain;
use super::grouped::add_bias;
use super::moments::Moments;
use crate::arith::DType;
use crate::program::builder::Builder;
use crate::program::expr::{Body, BodyWriter, Reg};
use crate::program::graph::{TensorId, View};

fn binary(name: &'static str, f: fn(&mut BodyWriter, Reg, Reg) -> Reg) -> Body {
    Body::new(name, |w| {
        let (x, y) = (w.input(0), w.input(1));
        f(w, x, y)
    })
}

fn square() -> Body {
    Body::new("square.v1", |w| {
        let x = w.input(0);
        w.mul(x, x)
    })
}

/// 1 / sqrt(sum/n + epsilon) of a sum of squares.
fn reciprocal_deviation(name: &'static str, n: f32, epsilon: f32) -> Body {
    Body::new(name, |w| {
        let (sum, n, epsilon, one) = (w.input(0), w.f(n), w.f(epsilon), w.f(1.0));
        let variance = w.div(sum, n);
        let shifted = w.add(variance, epsilon);
        let deviation = w.sqrt(shifted);
        w.div(one, deviation)
    })
}

/// xhat * gain + bias.
fn affine(name: &'static str) -> Body {
    Body::new(name, |w| {
        let (xhat, gain, bias) = (w.input(0), w.input(1), w.input(2));
        let scaled = w.mul(xhat, gain);
        w.add(scaled, bias)
    })
}

/// x [.., C] -> xhat = d * rstd and rstd, with d = x - sum(x)/C and rstd = 1 / sqrt(sum(d d)/C + epsilon). Divisions by C are divisions.
fn standardised(b: &mut Builder, x: TensorId, epsilon: f32) -> [TensorId; 2] {
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
    let dd = b.map(square(), &[d], &shape);
    let sum_dd = b.sum_last(dd);
    let rstd = b.map(reciprocal_deviation("layer_norm_rstd.v1", c as f32, epsilon), &[sum_dd], &column);
    [b.map(binary("mul.v1", BodyWriter::mul), &[d, rstd], &shape), rstd]
}

/// The gradient of x from that of xhat: rstd * ((dxhat - sum(dxhat)/C) - xhat * (sum(dxhat xhat)/C)).
fn standardised_backward(b: &mut Builder, dxhat: TensorId, [xhat, rstd]: [TensorId; 2]) -> TensorId {
    let shape = b.shape(xhat);
    let c = *shape.last().expect("tensors have rank 1 or more");
    let along = b.map(binary("mul.v1", BodyWriter::mul), &[dxhat, xhat], &shape);
    let (s1, s2) = (b.sum_last(dxhat), b.sum_last(along));
    let body = Body::new("layer_norm_backward.v1", |w| {
        let (dxhat, xhat, s1, s2, rstd) = (w.input(0), w.input(1), w.input(2), w.input(3), w.input(4));
        let c = w.f(c as f32);
        let (m1, m2) = (w.div(s1, c), w.div(s2, c));
        let centred = w.sub(dxhat, m1);
        let projected = w.mul(xhat, m2);
        let rest = w.sub(centred, projected);
        w.mul(rstd, rest)
    });
    b.map(body, &[dxhat, xhat, s1, s2, rstd], &shape)
}

/// x [.., C], gain [C], bias [C] -> [.., C]: xhat * gain + bias, with xhat = d * rstd, d = x - sum(x)/C and
/// rstd = 1 / sqrt(sum(d d)/C + epsilon). Divisions by C are divisions.
pub fn layer_norm(b: &mut Builder, x: TensorId, gain: TensorId, bias: TensorId, epsilon: f32) -> TensorId {
    let shape = b.shape(x);
    let [xhat, rstd] = standardised(b, x, epsilon);
    let y = b.map(affine("layer_norm_affine.v1"), &[xhat, gain, bias], &shape);
    b.differentiable(y, move |b, dy| {
        let weighted = b.map(binary("mul.v1", BodyWriter::mul), &[dy, xhat], &shape);
        let dgain = b.sum_leading(weighted);
        let dbias = b.sum_leading(dy);
        let dxhat = b.map(binary("mul.v1", BodyWriter::mul), &[dy, gain], &shape);
        let dx = standardised_backward(b, dxhat, [xhat, rstd]);
        vec![(x, dx), (gain, dgain), (bias, dbias)]
    });
    y
}

/// x [B, H, W, C], gain [C], bias [C] -> [B, H, W, C]: xhat * gain + bias, where the channels of each of the `groups` of a sample, at all
/// of its pixels, are one row of `standardised`.
///
/// # Errors
/// If the groups do not divide the channels.
pub(crate) fn group_norm(
    b: &mut Builder,
    [x, weight, bias]: [TensorId; 3],
    groups: u32,
    epsilon: f32,
) -> Result<TensorId, String> {
    let [samples, height, width, channels] = b.shape(x)[..] else { panic!("images are [B, H, W, C]") };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("groups ({groups}) must divide the channels, {channels}"));
    }
    let (pixels, each) = (height * width, channels / groups);
    let (images, rows) = ([samples, height, width, channels], [samples * groups, pixels * each]);
    let to_rows = move |b: &mut Builder, tensor: TensorId| {
        let dims = [samples, groups, pixels, each];
        b.copy(View { tensor, offset: 0, dims, strides: [pixels * channels, each, channels, 1] }, &rows)
    };
    let to_images = move |b: &mut Builder, tensor: TensorId| {
        let dims = [samples, pixels, groups, each];
        b.copy(
            View { tensor, offset: 0, dims, strides: [pixels * channels, each, pixels * each, 1] },
            &images,
        )
    };
    let turned = to_rows(b, x);
    b.differentiable(turned, move |b, dy| vec![(x, to_images(b, dy))]);
    let [xhat, rstd] = standardised(b, turned, epsilon);
    b.differentiable(xhat, move |b, dy| vec![(turned, standardised_backward(b, dy, [xhat, rstd]))]);
    let y = to_images(b, xhat);
    b.differentiable(y, move |b, dy| vec![(xhat, to_rows(b, dy))]);
    let scaled = gain(b, y, weight);
    Ok(add_bias(b, scaled, bias))
}

/// x [.., C], gain [D] -> [.., C]: each of the `heads` parts of a row, which have D channels, becomes xhat * gain with xhat = part *
/// rstd and rstd = 1 / sqrt(sum(part part)/D + epsilon). One head is the whole row.
pub fn rms_norm(b: &mut Builder, x: TensorId, gain: TensorId, heads: u32, epsilon: f32) -> TensorId {
    let whole = b.shape(x);
    let mut shape = whole.clone();
    if heads > 1 {
        let channels = whole.last().expect("tensors have rank 1 or more") / heads;
        shape = vec![whole.iter().product::<u32>() / channels, channels];
    }
    let mut column = shape.clone();
    let c = std::mem::replace(column.last_mut().expect("tensors have rank 1 or more"), 1);
    let rows = b.reshaped(x, &shape);
    let dims = rows.dims;
    let xx = b.map_views(square(), dims, vec![rows.clone()], DType::F32, &shape);
    let sum_xx = b.sum_last(xx);
    let rstd = b.map(reciprocal_deviation("rms_norm_rstd.v1", c as f32, epsilon), &[sum_xx], &column);
    let product = || binary("mul.v1", BodyWriter::mul);
    let views = vec![rows, b.broadcast(rstd, &shape)];
    let xhat = b.map_views(product(), dims, views, DType::F32, &shape);
    let views = vec![b.whole(xhat), b.broadcast(gain, &shape)];
    let y = b.map_views(product(), dims, views, DType::F32, &whole);
    b.differentiable(y, move |b, dy| {
        let dy = b.reshaped(dy, &shape);
        let views = vec![dy.clone(), b.whole(xhat)];
        let weighted = b.map_views(product(), dims, views, DType::F32, &shape);
        let dgain = b.sum_leading(weighted);
        let views = vec![dy, b.broadcast(gain, &shape)];
        let dxhat = b.map_views(product(), dims, views, DType::F32, &shape);
        let along = b.map(binary("mul.v1", BodyWriter::mul), &[dxhat, xhat], &shape);
        let sum = b.sum_last(along);
        // dx = rstd * (dxhat - xhat * (sum/C))
        let body = Body::new("rms_norm_backward.v1", |w| {
            let (dxhat, xhat, sum, rstd, c) = (w.input(0), w.input(1), w.input(2), w.input(3), w.f(c as f32));
            let mean = w.div(sum, c);
            let projected = w.mul(xhat, mean);
            let rest = w.sub(dxhat, projected);
            w.mul(rstd, rest)
        });
        let views = [dxhat, xhat, sum, rstd].map(|tensor| b.broadcast(tensor, &shape)).into();
        vec![(x, b.map_views(body, dims, views, DType::F32, &whole)), (gain, dgain)]
    });
    y
}

/// x [.., C], gain [C], bias [C] -> y [.., C], and the moments of x's columns. y = xhat * gain + bias, with xhat = d * rstd, d =
/// x - mean, mean = sum(x)/n, rstd = 1 / sqrt(M2/n + epsilon) and M2 = sum(d d). Sums run over rows, which are the n elements of
/// a channel. The moments have no gradient of their own.
pub fn batch_norm(
    b: &mut Builder,
    x: TensorId,
    gain: TensorId,
    bias: TensorId,
    epsilon: f32,
) -> (TensorId, Moments) {
    let shape = b.shape(x);
    let (&c, leading) = shape.split_last().expect("tensors have rank 1 or more");
    let n = leading.iter().product::<u32>() as f32;
    let sum = b.sum_leading(x);
    let divide = Body::new("batch_norm_mean.v1", |w| {
        let (sum, n) = (w.input(0), w.f(n));
        w.div(sum, n)
    });
    let mean = b.map(divide, &[sum], &[c]);
    let d = b.map(binary("sub.v1", BodyWriter::sub), &[x, mean], &shape);
    let dd = b.map(square(), &[d], &shape);
    let m2 = b.sum_leading(dd);
    let rstd = b.map(reciprocal_deviation("batch_norm_rstd.v1", n, epsilon), &[m2], &[c]);
    let xhat = b.map(binary("mul.v1", BodyWriter::mul), &[d, rstd], &shape);
    let y = b.map(affine("batch_norm_affine.v1"), &[xhat, gain, bias], &shape);
    b.differentiable(y, move |b, dy| {
        let weighted = b.map(binary("mul.v1", BodyWriter::mul), &[dy, xhat], &shape);
        let (dgain, dbias) = (b.sum_leading(weighted), b.sum_leading(dy));
        // dx = (gain * rstd) * ((dy - dbias/n) - xhat * (dgain/n))
        let body = Body::new("batch_norm_backward.v1", |w| {
            let (dy, xhat, dbias, dgain) = (w.input(0), w.input(1), w.input(2), w.input(3));
            let (gain, rstd, n) = (w.input(4), w.input(5), w.f(n));
            let (m1, m2) = (w.div(dbias, n), w.div(dgain, n));
            let centred = w.sub(dy, m1);
            let projected = w.mul(xhat, m2);
            let rest = w.sub(centred, projected);
            let slope = w.mul(gain, rstd);
            w.mul(slope, rest)
        });
        let dx = b.map(body, &[dy, xhat, dbias, dgain, gain, rstd], &shape);
        vec![(x, dx), (gain, dgain), (bias, dbias)]
    });
    let count = b.constant("batch_norm_count.v1", n);
    (y, Moments { count, mean, m2 })
}

/// x [.., C] by the running averages of mean and variance, [C] each: (x - mean) * rstd * gain + bias, with rstd = 1 /
/// sqrt(variance + epsilon), in that order. The averages have no gradient: dx = dy (gain rstd), dgain = sum(dy xhat), with xhat = (x -
/// mean) rstd, and dbias = sum(dy).
pub(crate) fn batch_norm_eval(
    b: &mut Builder,
    x: TensorId,
    [mean, variance]: [TensorId; 2],
    gain: TensorId,
    bias: TensorId,
    epsilon: f32,
) -> TensorId {
    let shape = b.shape(x);
    let body = Body::new("batch_norm_eval_rstd.v1", |w| {
        let (variance, epsilon, one) = (w.input(0), w.f(epsilon), w.f(1.0));
        let shifted = w.add(variance, epsilon);
        let deviation = w.sqrt(shifted);
        w.div(one, deviation)
    });
    let columns = b.shape(variance);
    let rstd = b.map(body, &[variance], &columns);
    let body = Body::new("batch_norm_eval.v1", |w| {
        let (x, mean, rstd, gain, bias) = (w.input(0), w.input(1), w.input(2), w.input(3), w.input(4));
        let centred = w.sub(x, mean);
        let xhat = w.mul(centred, rstd);
        let scaled = w.mul(xhat, gain);
        w.add(scaled, bias)
    });
    let y = b.map(body, &[x, mean, rstd, gain, bias], &shape);
    b.differentiable(y, move |b, dy| {
        let d = b.map(binary("sub.v1", BodyWriter::sub), &[x, mean], &shape);
        let xhat = b.map(binary("mul.v1", BodyWriter::mul), &[d, rstd], &shape);
        let weighted = b.map(binary("mul.v1", BodyWriter::mul), &[dy, xhat], &shape);
        let slope = b.map(binary("mul.v1", BodyWriter::mul), &[gain, rstd], &columns);
        let dx = b.map(binary("mul.v1", BodyWriter::mul), &[dy, slope], &shape);
        let (dgain, dbias) = (b.sum_leading(weighted), b.sum_leading(dy));
        vec![(x, dx), (gain, dgain), (bias, dbias)]
    });
    y
}

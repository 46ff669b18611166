//! linear.v1: y [N, O] = x [N, I] W^T + b, with W [O, I] and b [O].

use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::{TensorId, View};
use crate::program::products::ProductClass;

/// The product classes of a linear layer and its two gradients.
#[derive(Clone, Copy)]
pub struct LinearClasses {
    /// x W^T.
    pub forward: ProductClass,
    /// The gradient of x: dy W.
    pub dx: ProductClass,
    /// The gradient of W: dy^T x.
    pub dw: ProductClass,
}

impl LinearClasses {
    /// A linear layer within the model.
    pub const HIDDEN: LinearClasses = LinearClasses {
        forward: ProductClass::Linear,
        dx: ProductClass::LinearDx,
        dw: ProductClass::LinearDw,
    };
    /// The last linear layer before the loss.
    pub const HEAD: LinearClasses =
        LinearClasses { forward: ProductClass::Head, dx: ProductClass::HeadDx, dw: ProductClass::HeadDw };
}

/// A row-major [rows, k] matrix as a product operand.
pub(super) fn rows(tensor: TensorId, rows: u32, k: u32) -> View {
    View { tensor, offset: 0, dims: [1, 1, rows, k], strides: [0, 0, k, 1] }
}

/// The columns of a row-major [k, rows] matrix as a product operand.
pub(super) fn columns(tensor: TensorId, k: u32, rows: u32) -> View {
    View { tensor, offset: 0, dims: [1, 1, rows, k], strides: [0, 0, 1, rows] }
}

/// x [N, I], weight [O, I], bias [O] -> [N, O].
pub fn linear(
    b: &mut Builder,
    classes: LinearClasses,
    x: TensorId,
    weight: TensorId,
    bias: Option<TensorId>,
) -> TensorId {
    let [n, inputs] = b.shape(x)[..] else { panic!("linear takes a matrix") };
    let [outputs, weight_inputs] = b.shape(weight)[..] else { panic!("a linear weight is a matrix") };
    assert_eq!(inputs, weight_inputs, "linear shapes");
    let shape = [n, outputs];
    let product = b.product(classes.forward, rows(x, n, inputs), rows(weight, outputs, inputs), &shape);
    let output = match bias {
        Some(bias) => {
            let body = Body::new("add.v1", |w| {
                let (x, y) = (w.input(0), w.input(1));
                w.add(x, y)
            });
            b.map(body, &[product, bias], &shape)
        }
        None => product,
    };
    b.differentiable(output, move |b, dy| {
        let dx = b.product(classes.dx, rows(dy, n, outputs), columns(weight, outputs, inputs), &[n, inputs]);
        let dw = b.product(classes.dw, columns(dy, n, outputs), columns(x, n, inputs), &[outputs, inputs]);
        let mut gradients = vec![(x, dx), (weight, dw)];
        if let Some(bias) = bias {
            gradients.push((bias, b.sum_leading(dy)));
        }
        gradients
    });
    output
}

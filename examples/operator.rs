//! Defines an operator with its gradient, a ReLU whose negative side has a slope, and runs it on the CPU engine and on the scalar reference: the bits
//! are the same.
//!
//!     cargo run --example operator

use std::sync::Arc;

use tiebreak::arith::DType;
use tiebreak::arith::words::bytes_of;
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::outputs_of;
use tiebreak::engine::reference::Reference;
use tiebreak::program::builder::Builder;
use tiebreak::program::expr::Body;
use tiebreak::program::graph::TensorId;
use tiebreak::program::products::ProductTable;

/// y = x if 0 < x, else slope * x. The gradient is dy where 0 < x, else slope * dy.
fn leaky_relu(b: &mut Builder, x: TensorId, slope: f32) -> TensorId {
    let shape = b.shape(x);
    // A body is a list of instructions, each of which rounds once.
    let forward = Body::new("leaky_relu.v1", |w| {
        let (x, zero, slope) = (w.input(0), w.f(0.0), w.f(slope));
        let positive = w.lt(zero, x);
        let scaled = w.mul(slope, x);
        w.select(positive, x, scaled)
    });
    let y = b.map(forward, &[x], &shape);
    b.differentiable(y, move |b, dy| {
        let backward = Body::new("leaky_relu_backward.v1", |w| {
            let (x, dy, zero, slope) = (w.input(0), w.input(1), w.f(0.0), w.f(slope));
            let positive = w.lt(zero, x);
            let scaled = w.mul(slope, dy);
            w.select(positive, dy, scaled)
        });
        vec![(x, b.map(backward, &[x, dy], &shape))]
    });
    y
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = Builder::new(ProductTable::preset());
    let x = b.input("x", DType::F32, &[2, 4]);
    let dy = b.input("dy", DType::F32, &[2, 4]);
    let y = leaky_relu(&mut b, x, 0.1);
    let gradients = b.backward(y, dy);
    b.output("y", y);
    b.output("dx", gradients[&x]);
    let graph = Arc::new(b.finish());
    let inputs = [[1.0f32, 2.0, 3.0, 4.0, -1.0, 0.0, 1e-30, -88.0], [1.0; 8]]
        .map(|numbers| bytes_of(&numbers.map(f32::to_bits)));
    let cpu = outputs_of(&mut Cpu::new(0)?, &graph, &inputs)?;
    let reference = outputs_of(&mut Reference, &graph, &inputs)?;
    assert_eq!(cpu, reference, "engines have the same bits");
    for (name, bytes) in ["y", "dx"].iter().zip(&cpu) {
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        println!("{name} {values:?}");
    }
    Ok(())
}

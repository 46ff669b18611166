//! Defines a model, one hidden layer and a softmax loss, and takes its gradient: operators append primitives to a graph, and each brings
//! its own gradient.
//!
//!     cargo run --example model

use std::sync::Arc;

use tiebreak::arith::DType;
use tiebreak::arith::words::bytes_of;
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::outputs_of;
use tiebreak::program::builder::Builder;
use tiebreak::program::operators::{LinearClasses, cross_entropy, linear, relu};
use tiebreak::program::products::ProductTable;

const SAMPLES: u32 = 4;
const INPUTS: u32 = 8;
const HIDDEN: u32 = 16;
const CLASSES: u32 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = Builder::new(ProductTable::preset());
    let x = b.input("x", DType::F32, &[SAMPLES, INPUTS]);
    let labels = b.input("labels", DType::U32, &[SAMPLES]);
    // The weight of each label's loss: a mean over the samples.
    let factor = b.input("factor", DType::F32, &[1]);
    let w1 = b.input("w1", DType::F32, &[HIDDEN, INPUTS]);
    let w2 = b.input("w2", DType::F32, &[CLASSES, HIDDEN]);

    let hidden = linear(&mut b, LinearClasses::HIDDEN, x, w1, None);
    let hidden = relu(&mut b, hidden);
    let logits = linear(&mut b, LinearClasses::HEAD, hidden, w2, None);
    let (loss, dlogits) = cross_entropy(&mut b, logits, labels, factor);
    let gradients = b.backward(logits, dlogits);
    b.output("loss", loss);
    b.output("dw1", gradients[&w1]);
    b.output("dw2", gradients[&w2]);
    let graph = Arc::new(b.finish());

    let numbers = |count: u32, scale: f32| -> Vec<u8> {
        let number = |i: u32| (scale * ((i * 37 % 101) as f32 / 50.0 - 1.0)).to_bits();
        bytes_of(&(0..count).map(number).collect::<Vec<_>>())
    };
    let inputs = [
        numbers(SAMPLES * INPUTS, 1.0),
        bytes_of(&[0, 2, 1, 2]),
        bytes_of(&[(1.0 / SAMPLES as f32).to_bits()]),
        numbers(HIDDEN * INPUTS, 0.5),
        numbers(CLASSES * HIDDEN, 0.5),
    ];
    let outputs = outputs_of(&mut Cpu::new(0)?, &graph, &inputs)?;
    let loss: [u8; 4] = outputs[0][..].try_into()?;
    println!(
        "loss {}: {} primitives, gradients of {} weights",
        f32::from_le_bytes(loss),
        graph.nodes.len(),
        { (outputs[1].len() + outputs[2].len()) / 4 }
    );
    Ok(())
}

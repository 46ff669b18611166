//! Runs one operator on the CPU engine and on the scalar reference, and compares the bits.
//!
//!     cargo run --example operator

use std::sync::Arc;

use tiebreak::arith::DType;
use tiebreak::arith::words::bytes_of;
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::outputs_of;
use tiebreak::engine::reference::Reference;
use tiebreak::program::builder::Builder;
use tiebreak::program::operators::gelu_tanh;
use tiebreak::program::products::ProductTable;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = Builder::new(ProductTable::preset());
    let x = b.input("x", DType::F32, &[2, 4]);
    let y = gelu_tanh(&mut b, x);
    b.output("y", y);
    let graph = Arc::new(b.finish());
    let x = [1.0f32, 2.0, 3.0, 4.0, -1.0, 0.0, 1e-30, 88.0].map(f32::to_bits);
    let inputs = [bytes_of(&x)];
    let cpu = outputs_of(&mut Cpu::new(0)?, &graph, &inputs)?;
    let reference = outputs_of(&mut Reference, &graph, &inputs)?;
    assert_eq!(cpu, reference, "engines have the same bits");
    for row in cpu[0].chunks(16) {
        let values: Vec<f32> = row.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        println!("{values:?}");
    }
    Ok(())
}

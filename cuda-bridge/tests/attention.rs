//! Rows between two products, and products that digitise columns on their way: NVRTC compiles the kernels of GPT-2's attention,
//! forward and backward, without spills. `tests/adapters/cuda.rs` of the root package checks their bits over the host's stand-in
//! for a driver.

mod common;

use cuda_bridge::columns::Columns;
use cuda_bridge::quantise::QuantiseOperand;
use cuda_bridge::translate::Options;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{Program, StepSpec};
use tiebreak_gpu::attention_kernels;
use tiebreak_shaders::compose_text;

/// Bytes of shared memory that a block may ask for with compute capability 8.0, 8.9 and 9.0 (CUDA C++ Programming Guide, "Technical
/// Specifications per Compute Capability").
const ARCHITECTURES: [(&str, u32); 3] = [("sm_80", 163 << 10), ("sm_89", 99 << 10), ("sm_90a", 227 << 10)];

fn gpt_2(dropout: f32, products: ProductTable) -> Program {
    let gpt = Gpt {
        vocabulary: 50_257,
        context: 1024,
        layers: 2,
        heads: 12,
        width: 768,
        dropout,
        ..Gpt::default()
    };
    Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Gpt(gpt),
        optimizer: Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 },
        clip_norm: Some(1.0),
        micro_batch: 8,
        micro_batches: 1,
        products,
    })
}

/// Attention adds and compares with the processor's own instructions, in the loops that are written by hand as in the translated
/// maps.
#[test]
fn attention_calls_no_software_arithmetic() {
    let kernels = attention_kernels(&gpt_2(0.1, ProductTable::preset()).micro, 227 << 10);
    assert_eq!(kernels.len(), 4, "forward and backward of two layers");
    for kernel in kernels {
        assert!(kernel.source.contains("#define wgsl_f_add tb::native::f_add\n"), "{}", kernel.name);
        assert_eq!(common::software(&kernel.source), [""; 0], "{}", kernel.name);
    }
}

#[test]
fn gpt_2s_attention_compiles_to_machine_code() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let others = [(0.1, ProductTable::uniform(2)), (0.1, ProductTable::uniform(3))];
    for (i, (dropout, products)) in std::iter::once((0.0, ProductTable::preset())).chain(others).enumerate() {
        let program = gpt_2(dropout, products);
        // The default table everywhere, others on one architecture.
        for &(architecture, shared) in &ARCHITECTURES[if i == 0 { 0 } else { 2 }..] {
            let mut kernels = attention_kernels(&program.micro, shared);
            assert_eq!(kernels.len(), 4, "forward and backward of two layers");
            // Layers differ in numbers that launches pass.
            kernels.dedup_by(|a, b| a.source == b.source);
            assert_eq!(kernels.len(), 2);
            for kernel in &kernels {
                let usage = common::ptxas::usage(&nvrtc, kernel, architecture);
                eprintln!(
                    "{}, dropout {dropout}, {architecture}: {usage:?}, {} bytes",
                    kernel.name, kernel.dynamic_shared
                );
                assert_eq!(usage.spilled, 0);
                assert!(kernel.dynamic_shared + usage.shared <= shared);
            }
        }
    }
}

#[test]
fn products_of_columns_compile_to_machine_code() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let text = compose_text("scale_back", "//!include shared/scale_back.wgsl\n").unwrap();
    let module = naga::front::wgsl::parse_str(&text).unwrap();
    let info = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module).unwrap();
    let kernel = |digits, columns| {
        let operand = QuantiseOperand {
            dims: [8, 12, 1024, 1024],
            strides: [12 << 20, 1 << 20, 1, 1024],
            offset: 0,
            block: 0,
        };
        let launch =
            Columns { operand, columns, digits }.launch(&module, &info, Options { native: true }, 227 << 10);
        launch.unwrap().map(|launch| launch.kernel)
    };
    for digits in (1..=4).flat_map(|a| (1..=4).map(move |b| [a, b])) {
        // The default ones everywhere, others on one architecture.
        let all = [[2, 2], [3, 2]].contains(&digits);
        for (architecture, _) in &ARCHITECTURES[if all { 0 } else { 2 }..] {
            let Some(kernel) = kernel(digits, 64) else {
                assert_eq!(digits, [4, 4], "sums of more than 64 bits");
                continue;
            };
            let usage = common::ptxas::usage(&nvrtc, &kernel, architecture);
            eprintln!("{}, {architecture}: {usage:?}", kernel.name);
            assert_eq!(usage.spilled, 0);
        }
    }
    assert!(kernel([3, 2], 129).is_none());
}

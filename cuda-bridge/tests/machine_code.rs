//! The number of instructions that NVIDIA's compiler makes of kernels whose work is mostly exp, log, tanh and erf. The kernels
//! use binary64, or only the text of the shaders, as on GPUs whose binary64 is slow.

mod common;

use std::path::Path;

use cuda_bridge::nvrtc::Nvrtc;
use cuda_bridge::translate::{Kernel, Options};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Attributes, OPERATORS};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_gpu::{TextLimits, texts};

/// The shaders of an operator, or of its gradient too, whose text calls an elementary function.
fn shaders(operator: &str, shapes: &[Vec<u32>], gradient: bool) -> Vec<String> {
    let operator = OPERATORS.iter().find(|o| o.name == operator).unwrap();
    let mut b = Builder::new(ProductTable::preset());
    operator.append(&mut b, shapes, &Attributes::default(), gradient).unwrap();
    let calls = |text: &str| ["f_exp(", "f_log(", "f_tanh(", "f_erf("].iter().any(|f| text.contains(f));
    texts(&b.finish(), TextLimits::All).into_iter().map(|(_, text)| text).filter(|text| calls(text)).collect()
}

/// The number of machine instructions in a kernel's cubin: from compute capability 7.0 on each has 16 bytes. The instructions are
/// in the sections `.text.*` of ELF's table of sections (System V ABI, "Sections").
fn instructions(cubin: &[u8]) -> usize {
    let word = |at: usize, bytes: usize| {
        cubin[at..at + bytes].iter().rev().fold(0usize, |all, byte| all << 8 | usize::from(*byte))
    };
    let (table, size, count, names) = (word(0x28, 8), word(0x3a, 2), word(0x3c, 2), word(0x3e, 2));
    let section = |i: usize| table + i * size;
    let names_at = word(section(names) + 0x18, 8);
    let texts = (0..count).map(section).filter(|at| cubin[names_at + word(*at, 4)..].starts_with(b".text."));
    texts.map(|at| word(at + 0x20, 8)).sum::<usize>() / 16
}

/// The numbers of instructions: of a kernel as it is, of the path where binary64 decides, and of the shader's text.
fn counted(nvrtc: &Nvrtc, name: &str, kernel: &Kernel) -> [usize; 3] {
    let ours = |line: &str| line.contains("return y.sure ? y.word :");
    let lines = kernel.source.lines();
    let decided: Vec<&str> = lines.map(|line| if ours(line) { "return y.word;" } else { line }).collect();
    let elsewhere = kernel.source.replace("__CUDA_ARCH__ == 900", "false");
    assert!(decided.contains(&"return y.word;") && elsewhere != kernel.source, "{name}");
    let all = [("whole", kernel.source.clone()), ("decided", decided.join("\n")), ("text", elsewhere)];
    all.map(|(kind, source)| {
        let cubin = nvrtc.compile(&kernel.name, &source, "sm_90a").unwrap_or_else(|error| panic!("{error}"));
        // The file is for nvdisasm.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{kind}.cubin"));
        std::fs::write(path, &cubin).unwrap();
        instructions(&cubin)
    })
}

#[test]
fn elementary_functions_take_few_instructions() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let vector = [vec![1 << 20]];
    let rows = [vec![64, 1024], vec![64], vec![1]];
    // Operator, inputs, gradient, and the most instructions on the path that nearly all inputs take.
    let cases: [(&str, &[Vec<u32>], bool, usize); 7] = [
        ("exp", &vector, false, 128),
        ("log", &vector, false, 256),
        ("tanh", &vector, false, 256),
        ("erf", &vector, false, 192),
        ("gelu", &vector, false, 272),
        ("gelu_erf", &vector, true, 192),
        ("cross_entropy", &rows, false, 1100),
    ];
    let mut slow = Vec::new();
    for (operator, shapes, gradient, most) in cases {
        let texts = shaders(operator, shapes, gradient);
        assert!(!texts.is_empty(), "{operator}");
        for (i, text) in texts.iter().enumerate() {
            let kernel = common::try_kernel(text, Options { native: true }).unwrap();
            let name = format!("{operator}-{i}");
            let [whole, decided, shader] = counted(&nvrtc, &name, &kernel);
            let registers = common::ptxas::usage(&nvrtc, &kernel, "sm_90a").registers;
            println!(
                "{name}: {whole} instructions, {decided} without the text, {shader} of it alone; {registers} registers"
            );
            if decided > most {
                slow.push(format!("{name}: {decided} instructions, not {most}"));
            }
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}

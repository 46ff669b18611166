//! Functions of a module without its entry point, for kernels that are written by hand.

mod common;

use cuda_bridge::host::{Buffer, Checks};
use cuda_bridge::translate::{
    Functions, Kernel, Options, Parameter, ParameterKind, TranslateError, functions, native_functions,
};
use tiebreak_shaders::compose_text;

const TEXT: &str = "
    struct Pair { low: u32, high: u32 }
    const TABLE: array<u32, 3> = array(5u, 7u, 11u);
    var<workgroup> tile: array<u32, 4>;
    @group(0) @binding(0) var<storage> words: array<u32>;
    fn third(i: u32) -> u32 { return TABLE[i % 3u]; }
    fn both(v: vec2<u32>) -> Pair { return Pair(v.x + third(v.y), v.x / v.y); }
    fn sum(v: vec2<u32>) -> u32 { let p = both(v); return p.low * 100u + p.high; }
    fn reads() -> u32 { return words[0]; }
    fn calls_what_reads() -> u32 { return reads() + tile[0]; }
    fn unused(x: f32) -> f32 { return sin(x); }";

fn asked(names: &[&str]) -> Result<Functions, TranslateError> {
    let (module, info) = common::valid(TEXT);
    functions(&module, &info, names, Options::default())
}

#[test]
fn functions_come_with_what_they_call() {
    let Functions { source, names } = asked(&["sum", "third"]).unwrap();
    assert!(!source.contains("__global__") && !source.contains("unused") && !source.contains("words"));
    let parameter = |binding: u32, writable| Parameter {
        group: 0,
        binding,
        name: "buffer".into(),
        kind: ParameterKind::Elements { stride: 4 },
        writable,
    };
    let source = format!(
        "{source}\nextern \"C\" __global__ void k(const u32* in, u32 in_n, u32* out, u32 out_n) {{\n\
         out[0] = {}(tb::vec<u32, 2u>{{{{in[0], in[1]}}}}); out[1] = {}(in[0]);\n}}\n",
        names[0], names[1]
    );
    let parameters = vec![parameter(0, false), parameter(1, true)];
    let kernel =
        Kernel { name: "k".into(), source, parameters, block: [1, 1, 1], barriers: false, dynamic_shared: 0 };
    let mut out = [0, 0];
    let mut run = |input: [u32; 2]| {
        let mut buffers = [Buffer::Read(&input), Buffer::Write(&mut out)];
        common::host(&kernel, Checks { undefined: true }).run([1, 1, 1], &mut buffers).unwrap();
        out
    };
    assert_eq!(run([20, 4]), [(20 + 7) * 100 + 5, 11]);
    // A quotient that does not exist is the dividend, as in any translated text.
    assert_eq!(run([9, 0]), [(9 + 5) * 100 + 9, 5]);
}

#[test]
fn what_cannot_be_called_by_hand_is_refused() {
    assert!(matches!(asked(&["none"]), Err(TranslateError::NoFunction { function }) if function == "none"));
    for name in ["reads", "calls_what_reads"] {
        let error = asked(&["sum", name]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("reads no variable"), "{error}");
    }
    let error = asked(&["unused"]).unwrap_err().to_string();
    assert!(error.contains("unused") && error.contains("Sin"), "{error}");
}

/// Every caller of a function of the arithmetic library, a kernel by hand or another function, gets the processor's own, and no
/// text of the software's is left.
#[test]
fn roots_are_the_processors_too() {
    let text = "//!include shared/float.wgsl\nfn twice(x: u32) -> u32 { return f_add(x, x); }";
    let (module, info) = common::valid(&compose_text("test", text).unwrap());
    let here = |name: &&str| module.functions.iter().any(|(_, f)| f.name.as_deref() == Some(name));
    let wanted: Vec<&str> = native_functions().filter(here).collect();
    assert!(wanted.len() >= 6 && wanted.contains(&"f_add"), "{wanted:?}");
    let asked: Vec<&str> = wanted.iter().copied().chain(["twice"]).collect();
    for native in [true, false] {
        let Functions { source, names } = functions(&module, &info, &asked, Options { native }).unwrap();
        let software = common::software(&source);
        for (name, given) in wanted.iter().zip(&names) {
            assert_eq!(*given == format!("tb::native::{name}"), native, "{given}");
            assert_eq!(software.contains(name), !native, "{name} among {software:?}");
        }
        assert_eq!(source.contains("tb::native::f_add(a0, a0)"), native);
    }
}

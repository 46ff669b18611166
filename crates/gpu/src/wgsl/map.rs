//! Maps on the GPU: a body becomes shader text. Dims, strides, offsets and constants are uniform data, so that all
//! layers of a model share one pipeline for each distinct body.

use std::fmt::Write;

use crate::device::kernel::{GRID_WIDTH, GROUP, Shader, linear_groups};
use crate::rows::access::{Access, access, is_indexed};
use tiebreak_contract::program::expr::{Body, Instr};
use tiebreak_contract::program::graph::View;

/// Components of a vector of uniform data.
const COMPONENTS: [&str; 4] = ["x", "y", "z", "w"];

/// A body's shader over these views of the index space `dims`, whose indices count from `origin`. The uniform words are those of
/// an `array<vec4<u32>>`: (elements, grid width, 0, 0), dims, origin. For each input follow (offset, 0, 0, 0) and its strides,
/// and then the constants.
pub(crate) fn shader(body: &Body, dims: [u32; 4], origin: [u32; 4], inputs: &[View]) -> Shader {
    let elements: u32 = dims.iter().product();
    let mut uniform = vec![elements, GRID_WIDTH, 0, 0];
    uniform.extend(dims);
    uniform.extend(origin);
    for view in inputs {
        uniform.extend([view.offset, 0, 0, 0]);
        uniform.extend(view.strides);
    }
    let first_constant = uniform.len();
    uniform.extend(constants(body));
    uniform.resize(uniform.len().next_multiple_of(4), 0);

    let mut text = includes(&[body]);
    write_text(&mut text, body, inputs, uniform.len() / 4, first_constant);
    let text = tiebreak_shaders::compose_text(&body.name, &text).expect("its includes are there");
    Shader { text: text.into(), uniform, groups: linear_groups(elements) }
}

/// The constants of a body, in order.
pub(crate) fn constants(body: &Body) -> impl Iterator<Item = u32> {
    body.code.iter().filter_map(|i| if let Instr::Const(word) = i { Some(*word) } else { None })
}

/// The lines that include the functions which the instructions of bodies need.
pub(crate) fn includes(bodies: &[&Body]) -> String {
    let has = |f: fn(&Instr) -> bool| bodies.iter().any(|body| body.code.iter().any(f));
    let needed = [
        ("float", true),
        ("exp", has(|i| matches!(i, Instr::FExp(_)))),
        ("log", has(|i| matches!(i, Instr::FLog(_)))),
        ("tanh", has(|i| matches!(i, Instr::FTanh(_)))),
        ("erf", has(|i| matches!(i, Instr::FErf(_)))),
        ("philox", has(|i| matches!(i, Instr::Philox { .. }))),
    ];
    let used = needed.iter().filter(|(_, used)| *used);
    used.map(|(name, _)| format!("//!include shared/{name}.wgsl\n")).collect()
}

/// The lines that split an element's number in its indices `{names}0` to `{names}3`, in the index space whose dims are vector
/// `dims`.
pub(crate) fn unravel(number: &str, dims: usize, names: &str) -> String {
    let divisor = |d: &str| format!("max(p[{dims}].{d}, 1u)");
    let [y, z, w] = ["y", "z", "w"].map(divisor);
    format!(
        "    let {names}3 = {number} % {w};\n    let {names}_2 = {number} / {w};\n    \
         let {names}2 = {names}_2 % {z};\n    let {names}_1 = {names}_2 / {z};\n    \
         let {names}1 = {names}_1 % {y};\n    let {names}0 = {names}_1 / {y};\n"
    )
}

/// The index of a view's element with these indices; vector `at` begins with the offset, and the next vector has the strides.
pub(crate) fn strided(at: usize, [i0, i1, i2, i3]: [&str; 4]) -> String {
    let s = at + 1;
    format!("p[{at}].x + {i0} * p[{s}].x + {i1} * p[{s}].y + {i2} * p[{s}].z + {i3} * p[{s}].w")
}

/// The expression of an instruction on registers called `{r}0`, `{r}1` and so on; `leaf` writes inputs, constants and indices.
pub(crate) fn operation(instr: &Instr, r: &str, leaf: impl FnOnce(&Instr) -> String) -> String {
    match instr {
        Instr::Input(_) | Instr::Const(_) | Instr::Index(_) => leaf(instr),
        Instr::FAdd(a, b) => format!("f_add({r}{}, {r}{})", a.0, b.0),
        Instr::FSub(a, b) => format!("f_sub({r}{}, {r}{})", a.0, b.0),
        Instr::FMul(a, b) => format!("f_mul({r}{}, {r}{})", a.0, b.0),
        Instr::FDiv(a, b) => format!("f_div({r}{}, {r}{})", a.0, b.0),
        Instr::FSqrt(a) => format!("f_sqrt({r}{})", a.0),
        Instr::FNeg(a) => format!("f_neg({r}{})", a.0),
        Instr::FExp(a) => format!("f_exp({r}{})", a.0),
        Instr::FLog(a) => format!("f_log({r}{})", a.0),
        Instr::FTanh(a) => format!("f_tanh({r}{})", a.0),
        Instr::FErf(a) => format!("f_erf({r}{})", a.0),
        Instr::FLt(a, b) => format!("f_lt({r}{}, {r}{})", a.0, b.0),
        Instr::FFromU(a) => format!("f_from_u32({r}{})", a.0),
        Instr::UAdd(a, b) => format!("{r}{} + {r}{}", a.0, b.0),
        Instr::UMul(a, b) => format!("{r}{} * {r}{}", a.0, b.0),
        Instr::UAnd(a, b) => format!("{r}{} & {r}{}", a.0, b.0),
        Instr::UShr(a, b) => format!("{r}{} >> ({r}{} & 31u)", a.0, b.0),
        Instr::ULt(a, b) => format!("u32({r}{} < {r}{})", a.0, b.0),
        Instr::UEq(a, b) => format!("u32({r}{} == {r}{})", a.0, b.0),
        Instr::Select(c, a, b) => format!("select({r}{}, {r}{}, {r}{} != 0u)", b.0, a.0, c.0),
        Instr::Philox { key: [k0, k1], counter: [c0, c1, c2, c3], word } => format!(
            "philox_word(vec2<u32>({r}{}, {r}{}), vec4<u32>({r}{}, {r}{}, {r}{}, {r}{}), {r}{})",
            k0.0, k1.0, c0.0, c1.0, c2.0, c3.0, word.0
        ),
    }
}

fn write_text(text: &mut String, body: &Body, inputs: &[View], vectors: usize, first_constant: usize) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "// {}", body.name);
    let _ = writeln!(text, "@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {vectors}>;");
    for k in 0..inputs.len() {
        let _ = writeln!(text, "@group(0) @binding({}) var<storage, read> in{k}: array<u32>;", k + 1);
    }
    let _ = writeln!(
        text,
        "@group(0) @binding({}) var<storage, read_write> output: array<u32>;\n\n\
         @compute @workgroup_size({GROUP})\n\
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n    \
         let i = id.x + id.y * p[0].y;\n    if (i >= p[0].x) {{\n        return;\n    }}",
        inputs.len() + 1
    );
    if is_indexed(body, inputs) {
        text.push_str(&unravel("i", 1, "i"));
    }
    let mut constant = first_constant - 1;
    for (n, instr) in body.code.iter().enumerate() {
        let value = operation(instr, "r", |leaf| match leaf {
            Instr::Input(k) => {
                let at = 3 + 2 * *k as usize;
                match access(&inputs[*k as usize]) {
                    Access::Contiguous => format!("in{k}[p[{at}].x + i]"),
                    Access::Uniform => format!("in{k}[p[{at}].x]"),
                    Access::Strided => format!("in{k}[{}]", strided(at, ["i0", "i1", "i2", "i3"])),
                }
            }
            Instr::Index(d) => format!("i{d} + p[2].{}", COMPONENTS[*d as usize]),
            _ => {
                constant += 1;
                format!("p[{}].{}", constant / 4, COMPONENTS[constant % 4])
            }
        });
        let _ = writeln!(text, "    let r{n} = {value};");
    }
    let _ = writeln!(text, "    output[i] = r{};\n}}", body.code.len() - 1);
}

//! Maps on the GPU: a body becomes shader text. Dims, strides, offsets and constants are uniform data, so that all
//! layers of a model share one pipeline for each distinct body.

use std::fmt::Write;

use crate::program::expr::{Body, Instr};
use crate::program::graph::View;

/// Invocations of a workgroup.
pub const GROUP: u32 = 64;
/// Invocations along x of a dispatch: 65535 workgroups, WebGPU's limit.
pub const GRID_WIDTH: u32 = 65_535 * GROUP;

/// How an input is indexed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// The output element's own number, from an offset.
    Contiguous,
    /// One element for all.
    Uniform,
    Strided,
}

fn access(view: &View) -> Access {
    if view.strides == [0; 4] {
        return Access::Uniform;
    }
    let mut stride = 1u32;
    let mut contiguous = true;
    for d in (0..4).rev() {
        contiguous &= view.dims[d] == 1 || view.strides[d] == stride;
        stride = stride.wrapping_mul(view.dims[d]);
    }
    if contiguous { Access::Contiguous } else { Access::Strided }
}

/// A map's shader and the uniform data of one use of it.
pub struct MapShader {
    pub text: String,
    /// Words of `array<vec4<u32>>`: (elements, grid width, 0, 0), dims, origin, then for each input (offset, 0, 0, 0) and its
    /// strides, then the constants.
    pub uniform: Vec<u32>,
}

/// Translates a body over these views of the index space `dims`, whose indices count from `origin`.
pub fn translate(body: &Body, dims: [u32; 4], origin: [u32; 4], inputs: &[View]) -> MapShader {
    let elements: u32 = dims.iter().product();
    let mut uniform = vec![elements, GRID_WIDTH, 0, 0];
    uniform.extend(dims);
    uniform.extend(origin);
    for view in inputs {
        uniform.extend([view.offset, 0, 0, 0]);
        uniform.extend(view.strides);
    }
    let first_constant = uniform.len();
    uniform
        .extend(body.code.iter().filter_map(|i| if let Instr::Const(word) = i { Some(*word) } else { None }));
    uniform.resize(uniform.len().next_multiple_of(4), 0);

    let mut text = String::new();
    let has = |f: fn(&Instr) -> bool| body.code.iter().any(f);
    let mut include = |used: bool, name: &str| {
        if used {
            let _ = writeln!(text, "//!include shared/{name}.wgsl");
        }
    };
    include(true, "float");
    include(has(|i| matches!(i, Instr::FExp(_))), "exp");
    include(has(|i| matches!(i, Instr::FLog(_))), "log");
    include(has(|i| matches!(i, Instr::FTanh(_))), "tanh");
    include(has(|i| matches!(i, Instr::FErf(_))), "erf");
    include(has(|i| matches!(i, Instr::Philox { .. })), "philox");
    let accesses: Vec<Access> = inputs.iter().map(access).collect();
    write_text(&mut text, body, &accesses, uniform.len() / 4, first_constant);
    MapShader { text, uniform }
}

fn write_text(text: &mut String, body: &Body, accesses: &[Access], vectors: usize, first_constant: usize) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "// {}", body.name);
    let _ = writeln!(text, "@group(0) @binding(0) var<uniform> p: array<vec4<u32>, {vectors}>;");
    for k in 0..accesses.len() {
        let _ = writeln!(text, "@group(0) @binding({}) var<storage, read> in{k}: array<u32>;", k + 1);
    }
    let _ = writeln!(
        text,
        "@group(0) @binding({}) var<storage, read_write> output: array<u32>;\n\n\
         @compute @workgroup_size({GROUP})\n\
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n    \
         let i = id.x + id.y * p[0].y;\n    if (i >= p[0].x) {{\n        return;\n    }}",
        accesses.len() + 1
    );
    let indexed =
        accesses.contains(&Access::Strided) || body.code.iter().any(|i| matches!(i, Instr::Index(_)));
    if indexed {
        text.push_str(
            "    let i3 = i % max(p[1].w, 1u);\n    let t2 = i / max(p[1].w, 1u);\n    \
             let i2 = t2 % max(p[1].z, 1u);\n    let t1 = t2 / max(p[1].z, 1u);\n    \
             let i1 = t1 % max(p[1].y, 1u);\n    let i0 = t1 / max(p[1].y, 1u);\n",
        );
    }
    let mut constant = first_constant;
    for (n, instr) in body.code.iter().enumerate() {
        let value = match instr {
            Instr::Input(k) => {
                let at = 3 + 2 * *k as usize;
                match accesses[*k as usize] {
                    Access::Contiguous => format!("in{k}[p[{at}].x + i]"),
                    Access::Uniform => format!("in{k}[p[{at}].x]"),
                    Access::Strided => {
                        let s = at + 1;
                        format!(
                            "in{k}[p[{at}].x + i0 * p[{s}].x + i1 * p[{s}].y + i2 * p[{s}].z + i3 * p[{s}].w]"
                        )
                    }
                }
            }
            Instr::Const(_) => {
                let place = format!("p[{}].{}", constant / 4, ["x", "y", "z", "w"][constant % 4]);
                constant += 1;
                place
            }
            Instr::Index(d) => format!("i{d} + p[2].{}", ["x", "y", "z", "w"][*d as usize]),
            Instr::FAdd(a, b) => format!("f_add(r{}, r{})", a.0, b.0),
            Instr::FSub(a, b) => format!("f_sub(r{}, r{})", a.0, b.0),
            Instr::FMul(a, b) => format!("f_mul(r{}, r{})", a.0, b.0),
            Instr::FDiv(a, b) => format!("f_div(r{}, r{})", a.0, b.0),
            Instr::FSqrt(a) => format!("f_sqrt(r{})", a.0),
            Instr::FNeg(a) => format!("f_neg(r{})", a.0),
            Instr::FExp(a) => format!("f_exp(r{})", a.0),
            Instr::FLog(a) => format!("f_log(r{})", a.0),
            Instr::FTanh(a) => format!("f_tanh(r{})", a.0),
            Instr::FErf(a) => format!("f_erf(r{})", a.0),
            Instr::FLt(a, b) => format!("f_lt(r{}, r{})", a.0, b.0),
            Instr::FFromU(a) => format!("f_from_u32(r{})", a.0),
            Instr::UAdd(a, b) => format!("r{} + r{}", a.0, b.0),
            Instr::UMul(a, b) => format!("r{} * r{}", a.0, b.0),
            Instr::UAnd(a, b) => format!("r{} & r{}", a.0, b.0),
            Instr::UShr(a, b) => format!("r{} >> (r{} & 31u)", a.0, b.0),
            Instr::ULt(a, b) => format!("u32(r{} < r{})", a.0, b.0),
            Instr::UEq(a, b) => format!("u32(r{} == r{})", a.0, b.0),
            Instr::Select(c, a, b) => format!("select(r{}, r{}, r{} != 0u)", b.0, a.0, c.0),
            Instr::Philox { key, counter, word } => format!(
                "philox_word(vec2<u32>(r{}, r{}), vec4<u32>(r{}, r{}, r{}, r{}), r{})",
                key[0].0, key[1].0, counter[0].0, counter[1].0, counter[2].0, counter[3].0, word.0
            ),
        };
        let _ = writeln!(text, "    let r{n} = {value};");
    }
    let _ = writeln!(text, "    output[i] = r{};\n}}", body.code.len() - 1);
}

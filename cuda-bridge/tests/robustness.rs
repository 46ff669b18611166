//! Any valid module gives a kernel or an error, never a panic; an accepted module gives valid C++.

mod common;

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use cuda_bridge::host::{Checks, HostKernel};
use cuda_bridge::translate::{Kernel, Options, TranslateError, translate};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use tiebreak_contract::arith::philox::philox4x32_10;

/// The translations of every entry point of a text, if it is valid WGSL.
fn attempt(text: &str) -> Option<Vec<Result<Kernel, TranslateError>>> {
    let module = naga::front::wgsl::parse_str(text).ok()?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).ok()?;
    let names: Vec<String> = module.entry_points.iter().map(|point| point.name.clone()).collect();
    let each = |name: &String| translate(&module, &info, name, Options { native: true });
    let all = || names.iter().map(each).collect();
    Some(catch_unwind(std::panic::AssertUnwindSafe(all)).unwrap_or_else(|_| panic!("it panics on:\n{text}")))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("host-kernels")
}

/// Texts that validate and use most of the language, accepted and refused.
const TEXTS: [&str; 14] = [
    "struct R { old: u32 } @group(0) @binding(0) var<storage, read_write> a: array<atomic<u32>, 4>;
     @compute @workgroup_size(1) fn main() { let r = atomicCompareExchangeWeak(&a[1], 1u, 2u); if (r.exchanged) { atomicMax(&a[0], 3u); } }",
    "@group(0) @binding(0) var t: texture_2d<f32>; @group(0) @binding(1) var s: sampler;
     fn read(u: texture_2d<f32>, v: sampler) -> vec4<f32> { return textureSampleLevel(u, v, vec2<f32>(0.5), 0.0); }
     @group(0) @binding(2) var<storage, read_write> o: vec4<f32>;
     @compute @workgroup_size(1) fn main() { o = read(t, s); }",
    "@group(0) @binding(0) var o: texture_storage_2d<rgba8unorm, write>;
     @compute @workgroup_size(8, 8) fn main(@builtin(global_invocation_id) id: vec3<u32>) { textureStore(o, id.xy, vec4<f32>(1.0)); }",
    "@group(0) @binding(0) var<storage, read_write> m: mat4x3<f32>; @compute @workgroup_size(1) fn main() { m = m * 2.0; m[1] = transpose(m)[0].xyz; }",
    "@vertex fn a() -> @builtin(position) vec4<f32> { return vec4<f32>(); } @fragment fn b() -> @location(0) f32 { discard; }
     @compute @workgroup_size(1) fn c() { }",
    "@group(0) @binding(0) var<storage, read_write> b: array<f32>; @compute @workgroup_size(1)
     fn main() { let m = modf(b[0]); let f = frexp(b[1]); b[2] = m.fract + f.fract + f32(f.exp); }",
    "override size: u32 = 3; override twice = size * 2; var<workgroup> w: array<u32, size>;
     @compute @workgroup_size(size) fn main() { w[0] = twice; }",
    "var<private> p: array<vec3<bool>, 3>; struct S { a: bool, b: vec2<bool>, c: array<bool, 3>, d: u32 } var<workgroup> s: S;
     @group(0) @binding(0) var<storage, read_write> b: array<u32>;
     @compute @workgroup_size(3) fn main(@builtin(local_invocation_index) i: u32) {
       var t = s; t.c[i] = p[i].y; t.b = !t.b; p[2] = vec3<bool>(t.b, true); let q = &t.c[i]; *q = !*q;
       b[i] = u32(all(p[i])) + u32(t.c[i]) + u32(s.d == t.d); }",
    "@group(0) @binding(0) var<storage, read_write> b: array<array<vec3<i32>, 2>>; @compute @workgroup_size(1)
     fn main() { var i = b[0][1]; let q = &i; (*q).y += b[1][0][i.x & 1]; b[i.z] = array<vec3<i32>, 2>(i, vec3(7)); loop { break; } }",
    "struct T { n: u32, r: array<vec2<u32>> } @group(0) @binding(0) var<storage, read_write> t: T;
     @compute @workgroup_size(1) fn main() { t.r[t.n].x = arrayLength(&t.r); }",
    "@group(0) @binding(0) var<storage, read_write> b: array<u32>; @compute @workgroup_size(32)
     fn main(@builtin(subgroup_invocation_id) i: u32) { b[i] = subgroupAdd(i) + subgroupBallot(i > 3).x; subgroupBarrier(); }",
    "@group(0) @binding(0) var<storage, read_write> b: array<f32>; const C = array<f32, 3>(1.5, -0.0, 1e-45);
     @compute @workgroup_size(1) fn main() { var i = 0u; let p = &b[i]; i = 2u; *p = C[i] + b[i] * 0x1p-126 - f32(-3i); }",
    "@group(0) @binding(0) var<storage, read_write> b: array<u32>; fn f(x: u32) -> u32 { switch x { case 1u, default: { return 2u; } case 3u: { if x > 2u { return 4u; } } } return 5u; }
     @compute @workgroup_size(1) fn main() { for (;;) { if (f(b[0]) == 2u) { break; } switch b[1] { default: { continue; } } } }",
    "alias x = u64; @group(0) @binding(0) var<storage, read_write> b: array<x>; @compute @workgroup_size(1) fn main() { b[0] = b[1] << 3u; }",
];

#[test]
fn everything_valid_has_an_answer() {
    let mut answers = String::new();
    for text in TEXTS {
        let results = attempt(text).unwrap_or_else(|| {
            let module =
                naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
            let checked = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
            panic!("{}", checked.unwrap_err().emit_to_string(text))
        });
        for result in results {
            answers.push(if result.is_ok() { 'y' } else { 'n' });
            if let Ok(kernel) = result {
                HostKernel::compile(&kernel, &folder(), Checks::default())
                    .unwrap_or_else(|e| panic!("{e}\n{text}"));
            }
        }
    }
    // The three entry points of the fifth text count each.
    assert_eq!(answers, "nnnnnnynnyynnyyn");
}

/// Our shaders with words of the language exchanged at random: most are not valid, but thousands are.
#[test]
fn shaders_with_exchanged_words() {
    const SHADERS: [&str; 11] = [
        "gather",
        "patches",
        "quantise",
        "row_max",
        "row_max_long",
        "scale",
        "scale_long",
        "segment_sum",
        "segment_sum_long",
        "tree_sum",
        "tree_sum_long",
    ];
    const WORDS: [&[&str]; 8] = [
        &["u32", "i32", "f32", "u64", "f16", "bool"],
        &["+", "-", "*", "/", "%", "&", "|", "^"],
        &["min", "max", "dot4U8Packed", "pow", "step", "atan2"],
        &["countLeadingZeros", "countOneBits", "firstTrailingBit", "abs", "sin", "reverseBits", "sign"],
        &["<", ">", "<=", ">=", "==", "!="],
        &["workgroup_id", "global_invocation_id", "local_invocation_id", "num_workgroups"],
        &["workgroup", "private"],
        &["break", "continue", "return"],
    ];
    let (mut valid, mut accepted) = (0, 0);
    for i in 0..3000 {
        let random = |n: u32| philox4x32_10([i, n], [3, 1, 4, 1])[0] as usize;
        let shader = tiebreak_shaders::source(SHADERS[random(0) % SHADERS.len()]).unwrap();
        let mut text = shader.to_string();
        for exchange in 0..1 + random(1) % 3 {
            let n = 10 * exchange as u32;
            let words = WORDS[random(n + 2) % WORDS.len()];
            let (from, to) = (words[random(n + 3) % words.len()], words[random(n + 4) % words.len()]);
            let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
            if !places.is_empty() {
                let at = places[random(n + 5) % places.len()];
                text.replace_range(at..at + from.len(), to);
            }
        }
        if text != shader
            && let Some(results) = attempt(&text)
        {
            valid += 1;
            for kernel in results.into_iter().flatten() {
                accepted += 1;
                // Compiling takes long, so only a few are compiled.
                if accepted % 50 == 0 {
                    HostKernel::compile(&kernel, &folder(), Checks::default())
                        .unwrap_or_else(|e| panic!("{e}\n{text}"));
                }
            }
        }
    }
    eprintln!("{valid} valid, {accepted} accepted");
    assert!(valid > 300 && accepted > 200, "{valid} valid, {accepted} accepted");
}

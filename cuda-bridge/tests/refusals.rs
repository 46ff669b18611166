//! Every construct that the translation refuses gives an error that names the construct, the function and the entry point.

mod common;

use common::try_kernel;
use cuda_bridge::translate::{Group, Options, TranslateError};

/// The error for a text whose function `inner` holds the construct.
fn refused(declarations: &str, body: &str) -> TranslateError {
    let text = format!(
        "{declarations}
@group(0) @binding(0) var<storage, read_write> b: array<f32>;
fn inner(x: f32) -> f32 {{ {body} }}
@compute @workgroup_size(1)
fn main() {{ b[0] = inner(b[1]); }}"
    );
    try_kernel(&text, Options::default()).expect_err(&text)
}

#[track_caller]
fn expect(declarations: &str, body: &str, group: Group, construct: &str) {
    expect_at("function `inner`", declarations, body, group, construct);
}

#[track_caller]
fn expect_at(at: &str, declarations: &str, body: &str, group: Group, construct: &str) {
    let error = refused(declarations, body);
    let text = error.to_string();
    match error {
        TranslateError::Construct { entry, place, group: found, construct: name, .. } => {
            assert_eq!((entry.as_str(), place.as_str(), found), ("main", at, group), "{text}");
            assert_eq!(name, construct, "{text}");
        }
        other => panic!("{other}"),
    }
    assert!(text.contains("`main`") && text.contains(at) && text.contains(construct), "{text}");
}

#[test]
fn functions_without_defined_bits() {
    for (body, name) in [
        ("return sin(x);", "Sin"),
        ("return exp(x);", "Exp"),
        ("return log2(x);", "Log2"),
        ("return pow(x, x);", "Pow"),
        ("return inverseSqrt(x);", "InverseSqrt"),
        ("return fract(x);", "Fract"),
        ("return mix(x, x, x);", "Mix"),
        ("return sign(x);", "Sign"),
        ("return dot(vec2<f32>(x), vec2<f32>(x));", "Dot"),
        ("return length(vec2<f32>(x));", "Length"),
        ("return unpack2x16float(bitcast<u32>(x)).x;", "Unpack2x16float"),
        ("return ldexp(x, 2);", "Ldexp"),
    ] {
        expect("", body, Group::Function, name);
    }
}

#[test]
fn operators_without_defined_bits() {
    expect("", "return x % 3.0;", Group::Expression, "Modulo");
}

#[test]
fn types_without_counterpart() {
    expect("", "let m = mat2x2<f32>(x, x, x, x); return m[0].x;", Group::Type, "Matrix");
    expect("", "let y = f64(x); return f32(y);", Group::Conversion, "Float");
    expect("", "let y = u64(x); return f32(y);", Group::Conversion, "Uint");
    expect("enable f16;", "var y: f16 = 1.0h; return f32(y);", Group::Type, "f16");
    expect("", "var y: i64 = 1li; return f32(y);", Group::Type, "i64");
    let atomic = "@group(0) @binding(1) var<storage, read_write> n: atomic<u32>;";
    expect_at("variable `n`", atomic, "return f32(atomicAdd(&n, 1u));", Group::Type, "Atomic");
    let tail = "struct Tail { n: u32, rest: array<u32> } @group(0) @binding(1) var<storage, read> t: Tail;";
    expect_at("variable `t`", tail, "return f32(t.rest[t.n]);", Group::Type, "runtime_sized_array");
}

#[test]
fn memory_without_counterpart() {
    let texture = "@group(0) @binding(1) var t: texture_2d<f32>;";
    expect_at(
        "variable `t`",
        texture,
        "return textureLoad(t, vec2<i32>(0, 0), 0).x + x;",
        Group::AddressSpace,
        "Handle",
    );
    let immediate = "var<immediate> n: u32;";
    expect_at("variable `n`", immediate, "return f32(n) + x;", Group::AddressSpace, "Immediate");
}

#[test]
fn statements_without_counterpart() {
    expect("", "return subgroupAdd(x);", Group::Statement, "SubgroupCollectiveOperation");
    expect("", "return subgroupBroadcastFirst(x);", Group::Statement, "SubgroupGather");
    expect("", "textureBarrier(); return x;", Group::Statement, "ControlBarrier");
    let atomic = "var<workgroup> n: atomic<u32>;";
    expect_at("variable `n`", atomic, "atomicStore(&n, 1u); return x;", Group::Type, "Atomic");
}

#[test]
fn overrides_are_not_resolved() {
    expect("override n: u32 = 4u;", "return f32(n) + x;", Group::Expression, "Override");
    let text = "override n: u32 = 4u; @compute @workgroup_size(n) fn main() {}";
    let error = try_kernel(text, Options::default()).unwrap_err();
    assert!(error.to_string().contains("Override"), "{error}");
}

#[test]
fn entry_points_have_limits() {
    let text = "@fragment fn main() {}";
    let error = try_kernel(text, Options::default()).unwrap_err();
    assert_eq!(error, TranslateError::Stage { entry: "main".into(), stage: "Fragment".into() });
    let text = "@compute @workgroup_size(1) fn main(@builtin(subgroup_size) n: u32) { _ = n; }";
    let error = try_kernel(text, Options::default()).unwrap_err();
    assert!(matches!(&error, TranslateError::Construct { group: Group::BuiltIn, .. }), "{error}");
    assert!(error.to_string().contains("`SubgroupSize`"), "{error}");
    let text = "@compute @workgroup_size(64, 64) fn main() {}";
    let error = try_kernel(text, Options::default()).unwrap_err();
    assert!(matches!(error, TranslateError::TooLarge { amount: 4096, most: 1024, .. }), "{error}");
    let text = "var<workgroup> w: array<u32, 20000>; @compute @workgroup_size(1) fn main() { w[0] = 1u; }";
    let error = try_kernel(text, Options::default()).unwrap_err();
    assert!(matches!(error, TranslateError::TooLarge { amount: 80000, .. }), "{error}");
}

/// Code that no entry point reaches is not examined.
#[test]
fn only_what_is_reached_counts() {
    let text = "fn unused(x: f32) -> f32 { return sin(x); }
@group(0) @binding(0) var t: texture_2d<f32>;
@compute @workgroup_size(1) fn main() {}";
    try_kernel(text, Options::default()).unwrap();
}

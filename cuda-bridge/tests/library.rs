//! The u32 arithmetic library, translated and run on the host, unchanged and with native floats. The library's bits equal golden
//! vectors made by scripts in another language, and the scalar reference on random, extreme and subnormal inputs.

mod common;

use cuda_bridge::host::{Buffer, Checks};
use cuda_bridge::translate::{Options, native_functions};
use tiebreak_contract::arith::{digits, elementary, float, philox, tree};
use tiebreak_shaders::compose_text;

const OPTIONS: [Options; 2] = [Options { native: false }, Options { native: true }];

/// Runs `expressions` of `x`, `y`, `z` for every row of three words; one output each.
fn evaluate(includes: &[&str], expressions: &[&str], rows: &[[u32; 3]], options: Options) -> Vec<Vec<u32>> {
    let includes: String = includes.iter().map(|name| format!("//!include shared/{name}.wgsl\n")).collect();
    let count = expressions.len();
    let stores: String = expressions
        .iter()
        .enumerate()
        .map(|(i, expression)| format!("    output[id.x * {count}u + {i}u] = {expression};\n"))
        .collect();
    let text = format!(
        "{includes}
@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    if (id.x >= arrayLength(&input) / 3u) {{ return; }}
    let x = input[id.x * 3u];
    let y = input[id.x * 3u + 1u];
    let z = input[id.x * 3u + 2u];
{stores}}}"
    );
    let text = compose_text("test", &text).unwrap();
    let kernel = common::try_kernel(&text, options).unwrap_or_else(|error| panic!("{error}"));
    let input: Vec<u32> = rows.iter().flatten().copied().collect();
    let mut output = vec![0; rows.len() * count];
    let groups = [(rows.len() as u32).div_ceil(64), 1, 1];
    let mut buffers = [Buffer::Read(&input[..]), Buffer::Write(&mut output)];
    common::execute(&kernel, Checks { undefined: true }, groups, &mut buffers);
    output.chunks_exact(count).map(<[u32]>::to_vec).collect()
}

fn random(i: u32, stream: u32) -> u32 {
    philox::philox4x32_10([stream, 97], [i, 0, 0, 0])[0]
}

/// Random bits, exponents near one another, subnormals, specials.
fn pattern(i: u32, stream: u32) -> u32 {
    let r = random(i, stream);
    match i % 8 {
        0 => {
            let special =
                [0, 1, 0x007f_ffff, 0x0080_0000, 0x3f80_0000, 0x3f7f_ffff, 0x7f7f_ffff, 0x7f80_0000];
            special[(r % 8) as usize] | (r & 0x8000_0000)
        }
        1 => r & 0x80ff_ffff,
        2 | 3 => (r & 0x80ff_ffff) | (120 + (r >> 24 & 15)) << 23,
        4 => (r & 0x8000_0007) | 0x3f80_0000,
        5 => [0x7fc0_0000, 0x7f80_0001, u32::MAX, r][(r >> 8 & 3) as usize],
        _ => r,
    }
}

/// A vector file's table.
fn table(file: &str, name: &str) -> Vec<serde_json::Value> {
    let text = match file {
        "contract" => include_str!("../../assets/vectors/contract.json"),
        _ => include_str!("../../assets/vectors/elementary.json"),
    };
    let file: serde_json::Value = serde_json::from_str(text).unwrap();
    file[name].as_array().unwrap().clone()
}

fn words(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|word| u32::try_from(word.as_u64().unwrap()).unwrap()).collect()
}

const SCALARS: [&str; 6] =
    ["f_add(x, y)", "f_sub(x, y)", "f_mul(x, y)", "f_div(x, y)", "f_sqrt(x)", "f_lt(x, y)"];

#[test]
fn golden_scalars() {
    let rows: Vec<Vec<u32>> = table("contract", "scalar").iter().map(words).collect();
    assert!(rows.len() > 2000);
    let inputs: Vec<[u32; 3]> = rows.iter().map(|row| [row[0], row[1], 0]).collect();
    for options in OPTIONS {
        for (row, have) in rows.iter().zip(evaluate(&["float"], &SCALARS, &inputs, options)) {
            assert_eq!(have, row[2..], "{:08x} and {:08x}, {options:?}", row[0], row[1]);
        }
    }
}

#[test]
fn scalars_on_pairs_of_every_kind() {
    let rows: Vec<[u32; 3]> = (0..1 << 18).map(|i| [pattern(i, 1), pattern(random(i, 3), 2), 0]).collect();
    let more = ["f_neg(x)", "f_canonical(x)", "f_order_key(x)", "f_from_order_key(y)", "f_from_u32(x)"];
    let expressions = [&SCALARS[..], &more].concat();
    for options in OPTIONS {
        for (&[a, b, _], have) in rows.iter().zip(evaluate(&["float"], &expressions, &rows, options)) {
            let want = [
                float::add(a, b),
                float::sub(a, b),
                float::mul(a, b),
                float::div(a, b),
                float::sqrt(a),
                float::lt(a, b),
                float::neg(a),
                if float::is_nan(a) { 0x7fc0_0000 } else { a },
                float::order_key(a),
                float::from_order_key(b),
                float::from_u32(a),
            ];
            assert_eq!(have, want, "{a:08x} and {b:08x}, {options:?}");
        }
    }
}

type Elementary = (&'static str, fn(u32) -> u32);

const FUNCTIONS: [Elementary; 4] = [
    ("exp", elementary::exp),
    ("log", elementary::log),
    ("tanh", elementary::tanh),
    ("erf", elementary::erf),
];

#[test]
fn golden_elementary_functions() {
    for (name, _) in FUNCTIONS {
        let rows: Vec<Vec<u32>> = table("elementary", name).iter().map(words).collect();
        assert!(rows.len() > 3000);
        let inputs: Vec<[u32; 3]> = rows.iter().map(|row| [row[0], 0, 0]).collect();
        for options in OPTIONS {
            let outputs = evaluate(&[name], &[&format!("f_{name}(x)")], &inputs, options);
            for (row, have) in rows.iter().zip(outputs) {
                assert_eq!(have, row[1..], "{name} of {:08x}, {options:?}", row[0]);
            }
        }
    }
}

#[test]
fn elementary_functions_in_every_binade() {
    // 256 inputs in each of the 512 binades of both signs, subnormals and NaNs included.
    let rows: Vec<[u32; 3]> =
        (0..1 << 17).map(|i| [(i >> 8) << 23 | (random(i, 5) & 0x7f_ffff), 0, 0]).collect();
    for (name, right) in FUNCTIONS {
        for options in OPTIONS {
            let outputs = evaluate(&[name], &[&format!("f_{name}(x)")], &rows, options);
            for (row, have) in rows.iter().zip(outputs) {
                assert_eq!(have[0], right(row[0]), "{name} of {:08x}, {options:?}", row[0]);
            }
        }
    }
}

#[test]
fn golden_random_words() {
    let expressions = ["0u", "1u", "2u", "3u"].map(|word| {
        // Key and counter come from three words; the rows below spread them.
        format!("philox_word(vec2<u32>(x, y), vec4<u32>(z, x ^ y, y + z, x * 3u), {word})")
    });
    let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    let rows: Vec<[u32; 3]> = (0..5000).map(|i| [random(i, 1), random(i, 2), random(i, 3)]).collect();
    for (&[x, y, z], have) in rows.iter().zip(evaluate(&["philox"], &expressions, &rows, OPTIONS[1])) {
        let want = philox::philox4x32_10([x, y], [z, x ^ y, y.wrapping_add(z), x.wrapping_mul(3)]);
        assert_eq!(have, want);
    }
    // The vectors, as constants of the text.
    for row in table("contract", "philox") {
        let parts: Vec<Vec<u32>> = row.as_array().unwrap().iter().map(words).collect();
        let list = |words: &[u32]| words.iter().map(|w| format!("{w}u")).collect::<Vec<_>>().join(", ");
        let (key, counter) = (list(&parts[0]), list(&parts[1]));
        let expressions = ["x", "y", "z", "w"]
            .map(|part| format!("philox4x32_10(vec2<u32>({key}), vec4<u32>({counter})).{part}"));
        let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
        let have = evaluate(&["philox"], &expressions, &[[0; 3]], OPTIONS[1]);
        assert_eq!(have[0], parts[2]);
    }
}

#[test]
fn golden_trees() {
    let text = compose_text(
        "test",
        "//!include shared/tree.wgsl
@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(1)
fn main() {
    // The first word is the number of terms.
    tree_begin();
    for (var i = 0u; i < input[0]; i++) { tree_push(input[i + 1u]); }
    output[0] = tree_end();
}",
    )
    .unwrap();
    for options in OPTIONS {
        let kernel = common::try_kernel(&text, options).unwrap();
        let sum = |terms: &[u32]| {
            let input = [&[terms.len() as u32], terms].concat();
            let mut output = [0];
            let mut buffers = [Buffer::Read(&input[..]), Buffer::Write(&mut output)];
            common::execute(&kernel, Checks { undefined: true }, [1; 3], &mut buffers);
            output[0]
        };
        for row in table("contract", "tree") {
            let terms = words(&row[0]);
            assert_eq!(sum(&terms), row[1].as_u64().unwrap() as u32, "{} terms, {options:?}", terms.len());
        }
        for len in [0, 1, 2, 3, 31, 64, 1000] {
            let terms: Vec<u32> = (0..len).map(|i| pattern(i, 40 + len)).collect();
            assert_eq!(sum(&terms), tree::sum(terms.iter().copied()), "{len} terms, {options:?}");
        }
    }
}

#[test]
fn quantised_elements() {
    let rows: Vec<[u32; 3]> = (0..1 << 16)
        .map(|i| {
            // An element and an absmax that is at least the element's own, now and then a marked one.
            let (a, b) = (pattern(i, 6) & 0x7fff_ffff, pattern(i, 7) & 0x7fff_ffff);
            [a.min(b) | (random(i, 8) & 0x8000_0000), a.max(b), 0]
        })
        .collect();
    for d in 1..=4 {
        let m = digits::magnitude_bits(d);
        let quantise = format!("bitcast<u32>(digits_quantise(x, y, {m}))");
        let expressions = [&quantise, "bitcast<u32>(digits_exponent(y))"];
        for (&[x, y, _], have) in rows.iter().zip(evaluate(&["digits"], &expressions, &rows, OPTIONS[0])) {
            let want = [digits::quantise(x, y, d) as u32, digits::exponent(y) as u32];
            assert_eq!(have, want, "{x:08x} by {y:08x}, {d} digits");
        }
    }
}

#[test]
fn sums_scaled_back() {
    // 128-bit sums of any size, both signs, and exponents over the whole range.
    let rows: Vec<[u32; 3]> = (0..1 << 16).map(|i| [random(i, 9), random(i, 10), random(i, 11)]).collect();
    let expression = "scale_back(u128_add(i128_shl(bitcast<i32>(x), z & 63u), i128_shl(bitcast<i32>(y), (z >> 6u) & 63u)), \
                      i32((z >> 12u) % 500u) - 330)";
    for options in OPTIONS {
        for (&[x, y, z], have) in rows.iter().zip(evaluate(&["scale_back"], &[expression], &rows, options)) {
            let sum = (i128::from(x as i32) << (z & 63)) + (i128::from(y as i32) << (z >> 6 & 63));
            let exponent = (z >> 12) as i32 % 500 - 330;
            assert_eq!(have[0], digits::round_scaled(sum, exponent), "{sum} * 2^{exponent}, {options:?}");
        }
    }
}

/// Golden products through all of the kernels' arithmetic: absmaxes, q's, digit products, one rounding.
#[test]
fn golden_products() {
    let text = compose_text(
        "test",
        "//!include shared/scale_back.wgsl
@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(1)
fn main() {
    // (K, absmax bits of a, of b), a, b
    let k = input[0];
    var ma = 0u;
    var mb = 0u;
    for (var i = 0u; i < k; i++) {
        ma = max(ma, input[3u + i] & 0x7fffffffu);
        mb = max(mb, input[3u + k + i] & 0x7fffffffu);
    }
    var total = vec4<u32>();
    for (var i = 0u; i < k; i++) {
        let a = digits_quantise(input[3u + i], ma, i32(input[1]));
        let b = digits_quantise(input[3u + k + i], mb, i32(input[2]));
        var product = u32_mul(u32(abs(a)), u32(abs(b)));
        var term = vec4<u32>(product, 0u, 0u);
        if ((a < 0) != (b < 0)) { term = u128_neg(term); }
        total = u128_add(total, term);
    }
    output[0] = finish(total, ma, mb, input[1] + input[2]);
}",
    )
    .unwrap();
    let kernel = common::try_kernel(&text, OPTIONS[1]).unwrap();
    let mut checked = 0;
    for row in table("contract", "product") {
        let (a, b) = (words(&row[0]), words(&row[1]));
        let word = |i: usize| row[i].as_u64().unwrap() as u32;
        let (bits_a, bits_b) = (digits::magnitude_bits(word(2)), digits::magnitude_bits(word(3)));
        let step = if word(4) == 0 { a.len().max(1) } else { word(4) as usize };
        let blocks = a.len().div_ceil(step).max(1);
        let part = |i: usize| {
            let range = i * step..((i + 1) * step).min(a.len());
            let head = [range.len() as u32, bits_a, bits_b];
            let input = [&head[..], &a[range.clone()], &b[range]].concat();
            let mut output = [0];
            let mut buffers = [Buffer::Read(&input[..]), Buffer::Write(&mut output)];
            common::execute(&kernel, Checks { undefined: true }, [1; 3], &mut buffers);
            output[0]
        };
        let parts: Vec<u32> = (0..blocks).map(part).collect();
        let have = if blocks == 1 { parts[0] } else { tree::sum(parts) };
        assert_eq!(have, word(5), "K = {}, digits {} and {}, block {}", a.len(), word(2), word(3), word(4));
        checked += 1;
    }
    assert!(checked > 250);
}

/// A native that replaced nothing would make the tests above compare a function with itself.
#[test]
fn natives_replace_what_they_name() {
    for name in native_functions() {
        let call = match name {
            "f_sqrt" | "f_from_u32" => format!("{name}(x)"),
            "u32_mul" => "u32_mul(x, y).x".into(),
            _ => format!("{name}(x, y)"),
        };
        let text = format!(
            "//!include shared/float.wgsl
@group(0) @binding(0) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(1)
fn main() {{ let x = b[0]; let y = b[1]; b[2] = {call}; }}"
        );
        let text = compose_text("test", &text).unwrap();
        let source = |native| common::try_kernel(&text, Options { native }).unwrap().source;
        let native = format!("= tb::native::{name}(");
        assert!(source(true).contains(&native) && !source(false).contains(&native), "{name}");
    }
}

//! Every operator, built-in function and conversion that the translation accepts, against Rust's own, on corner cases and random
//! words; undefined behaviour in the C++ traps.

mod common;

use common::{run, word};

/// WGSL of `a`, `b`, `c` (words of the input), with the expected result.
type Case = (&'static str, fn(u32, u32, u32) -> u32);

/// One kernel computes all cases for each of 4096 rows of words.
fn check(declarations: &str, cases: &[Case]) {
    let count = cases.len();
    let stores: String = cases
        .iter()
        .enumerate()
        .map(|(i, (text, _))| format!("    output[id.x * {count}u + {i}u] = {text};\n"))
        .collect();
    let text = format!(
        "@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
{declarations}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let a = input[id.x * 3u];
    let b = input[id.x * 3u + 1u];
    let c = input[id.x * 3u + 2u];
    let i = bitcast<i32>(a);
    let j = bitcast<i32>(b);
    let k = bitcast<i32>(c);
{stores}}}"
    );
    const ROWS: u32 = 4096;
    let input: Vec<u32> = (0..3 * ROWS).map(word).collect();
    let output = run(&text, &input, ROWS as usize * count, [ROWS / 64, 1, 1]);
    for (row, have) in input.chunks_exact(3).zip(output.chunks_exact(count)) {
        for ((text, want), have) in cases.iter().zip(have) {
            let want = want(row[0], row[1], row[2]);
            assert_eq!(*have, want, "{text} of {:08x}, {:08x}, {:08x}", row[0], row[1], row[2]);
        }
    }
}

#[test]
fn unsigned_integers() {
    check(
        "",
        &[
            ("a + b", |a, b, _| a.wrapping_add(b)),
            ("a - b", |a, b, _| a.wrapping_sub(b)),
            ("a * b", |a, b, _| a.wrapping_mul(b)),
            ("a / b", |a, b, _| a.checked_div(b).unwrap_or(a)),
            ("a % b", |a, b, _| a.checked_rem(b).unwrap_or(0)),
            ("a & b", |a, b, _| a & b),
            ("a | b", |a, b, _| a | b),
            ("a ^ b", |a, b, _| a ^ b),
            ("~a", |a, _, _| !a),
            ("a << b", |a, b, _| a.wrapping_shl(b)),
            ("a >> b", |a, b, _| a.wrapping_shr(b)),
            ("u32(a < b)", |a, b, _| (a < b).into()),
            ("u32(a <= b)", |a, b, _| (a <= b).into()),
            ("u32(a > b)", |a, b, _| (a > b).into()),
            ("u32(a >= b)", |a, b, _| (a >= b).into()),
            ("u32(a == b)", |a, b, _| (a == b).into()),
            ("u32(a != b)", |a, b, _| (a != b).into()),
            ("min(a, b)", |a, b, _| a.min(b)),
            ("max(a, b)", |a, b, _| a.max(b)),
            ("clamp(a, b, c)", |a, b, c| a.max(b).min(c)),
            ("abs(a)", |a, _, _| a),
            ("select(a, b, c > 9u)", |a, b, c| if c > 9 { b } else { a }),
            ("countLeadingZeros(a)", |a, _, _| a.leading_zeros()),
            ("countTrailingZeros(a)", |a, _, _| a.trailing_zeros()),
            ("countOneBits(a)", |a, _, _| a.count_ones()),
            ("reverseBits(a)", |a, _, _| a.reverse_bits()),
            ("firstTrailingBit(a)", |a, _, _| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
            ("firstLeadingBit(a)", |a, _, _| if a == 0 { u32::MAX } else { 31 - a.leading_zeros() }),
            ("extractBits(a, b, c)", |a, b, c| extract(a, b, c, false)),
            ("insertBits(a, b, c, a)", |a, b, c| insert(a, b, c, a)),
        ],
    );
}

/// The bit field of a word, from WGSL's definition with 64-bit numbers.
fn part(offset: u32, count: u32) -> (u32, u32) {
    let offset = offset.min(32);
    (offset, count.min(32 - offset))
}

fn extract(word: u32, offset: u32, count: u32, signed: bool) -> u32 {
    let (offset, count) = part(offset, count);
    let bits = (u64::from(word) >> offset) & ((1 << count) - 1);
    let negative = signed && count > 0 && bits >> (count - 1) == 1;
    (if negative { bits | u64::MAX << count } else { bits }) as u32
}

fn insert(word: u32, new: u32, offset: u32, count: u32) -> u32 {
    let (offset, count) = part(offset, count);
    let mask = ((1u64 << count) - 1) << offset;
    (u64::from(word) & !mask | (u64::from(new) << offset) & mask) as u32
}

#[test]
fn signed_integers() {
    fn i(a: u32) -> i32 {
        a as i32
    }
    check(
        "const LEAST: i32 = -2147483648;",
        &[
            ("bitcast<u32>(i + j)", |a, b, _| a.wrapping_add(b)),
            ("bitcast<u32>(i - j)", |a, b, _| a.wrapping_sub(b)),
            ("bitcast<u32>(i * j)", |a, b, _| a.wrapping_mul(b)),
            ("bitcast<u32>(i / j)", |a, b, _| i(a).checked_div(i(b)).unwrap_or(i(a)) as u32),
            ("bitcast<u32>(i % j)", |a, b, _| i(a).checked_rem(i(b)).unwrap_or(0) as u32),
            ("bitcast<u32>(-i)", |a, _, _| a.wrapping_neg()),
            ("bitcast<u32>(~i)", |a, _, _| !a),
            ("bitcast<u32>(i & j)", |a, b, _| a & b),
            ("bitcast<u32>(i | j)", |a, b, _| a | b),
            ("bitcast<u32>(i ^ j)", |a, b, _| a ^ b),
            ("bitcast<u32>(i << b)", |a, b, _| a.wrapping_shl(b)),
            ("bitcast<u32>(i >> b)", |a, b, _| i(a).wrapping_shr(b) as u32),
            ("u32(i < j)", |a, b, _| (i(a) < i(b)).into()),
            ("u32(i <= j)", |a, b, _| (i(a) <= i(b)).into()),
            ("u32(i > j)", |a, b, _| (i(a) > i(b)).into()),
            ("u32(i >= j)", |a, b, _| (i(a) >= i(b)).into()),
            ("u32(i == j)", |a, b, _| (a == b).into()),
            ("u32(i != j)", |a, b, _| (a != b).into()),
            ("bitcast<u32>(min(i, j))", |a, b, _| i(a).min(i(b)) as u32),
            ("bitcast<u32>(max(i, j))", |a, b, _| i(a).max(i(b)) as u32),
            ("bitcast<u32>(clamp(i, j, k))", |a, b, c| i(a).max(i(b)).min(i(c)) as u32),
            ("bitcast<u32>(abs(i))", |a, _, _| i(a).wrapping_abs() as u32),
            ("bitcast<u32>(sign(i))", |a, _, _| i(a).signum() as u32),
            ("bitcast<u32>(countLeadingZeros(i))", |a, _, _| a.leading_zeros()),
            ("bitcast<u32>(countTrailingZeros(i))", |a, _, _| a.trailing_zeros()),
            ("bitcast<u32>(countOneBits(i))", |a, _, _| a.count_ones()),
            ("bitcast<u32>(reverseBits(i))", |a, _, _| a.reverse_bits()),
            (
                "bitcast<u32>(firstTrailingBit(i))",
                |a, _, _| {
                    if a == 0 { u32::MAX } else { a.trailing_zeros() }
                },
            ),
            ("bitcast<u32>(firstLeadingBit(i))", |a, _, _| {
                let sign = (i(a) >> 31) as u32;
                if a == sign { u32::MAX } else { 31 - (a ^ sign).leading_zeros() }
            }),
            ("bitcast<u32>(extractBits(i, b, c))", |a, b, c| extract(a, b, c, true)),
            ("bitcast<u32>(insertBits(i, j, c, b))", |a, b, c| insert(a, b, c, b)),
            ("bitcast<u32>(i32(a) + i32(j < 0) + LEAST)", |a, b, _| {
                a.wrapping_add(u32::from(i(b) < 0)).wrapping_add(1 << 31)
            }),
            ("u32(i)", |a, _, _| a),
        ],
    );
}

#[test]
fn packed_bytes() {
    fn bytes(a: u32) -> [i32; 4] {
        a.to_le_bytes().map(|b| i32::from(b as i8))
    }
    fn pack(parts: [u32; 4]) -> u32 {
        u32::from_le_bytes(parts.map(|p| p as u8))
    }
    check(
        "fn four(a: u32, b: u32) -> vec4<u32> { return vec4<u32>(a, b, a + b, a * b); }",
        &[
            ("bitcast<u32>(dot4I8Packed(a, b))", |a, b, _| {
                bytes(a).iter().zip(bytes(b)).map(|(x, y)| x * y).sum::<i32>() as u32
            }),
            ("dot4U8Packed(a, b)", |a, b, _| {
                a.to_le_bytes().iter().zip(b.to_le_bytes()).map(|(&x, y)| u32::from(x) * u32::from(y)).sum()
            }),
            ("bitcast<u32>(dot(unpack4xI8(a), vec4<i32>(1, 300, -7, 100000)))", |a, _, _| {
                bytes(a).iter().zip([1, 300, -7, 100_000]).map(|(x, y)| x * y).sum::<i32>() as u32
            }),
            ("dot(unpack4xU8(a), vec4<u32>(1u, 300u, 7u, 100000u))", |a, _, _| {
                a.to_le_bytes().iter().zip([1, 300, 7, 100_000]).map(|(&x, y)| u32::from(x) * y).sum()
            }),
            ("pack4xU8(four(a, b))", |a, b, _| pack([a, b, a.wrapping_add(b), a.wrapping_mul(b)])),
            ("pack4xI8(bitcast<vec4<i32>>(four(a, b)))", |a, b, _| {
                pack([a, b, a.wrapping_add(b), a.wrapping_mul(b)])
            }),
            ("pack4xU8Clamp(four(a, b))", |a, b, _| {
                pack([a, b, a.wrapping_add(b), a.wrapping_mul(b)].map(|x| x.min(255)))
            }),
            ("pack4xI8Clamp(bitcast<vec4<i32>>(four(a, b)))", |a, b, _| {
                let parts = [a, b, a.wrapping_add(b), a.wrapping_mul(b)];
                pack(parts.map(|x| (x as i32).clamp(-128, 127) as u32))
            }),
        ],
    );
}

#[test]
fn floats() {
    fn f(a: u32) -> f32 {
        f32::from_bits(a)
    }
    fn near(a: u32) -> f32 {
        f32::from_bits((a & 0x807f_ffff) | 0x3f80_0000)
    }
    /// Patterns of NaNs are not compared: WGSL leaves them open.
    fn pattern(x: f32) -> u32 {
        if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }
    }
    check(
        "fn f(a: u32) -> f32 { return bitcast<f32>(a); }
fn near(a: u32) -> f32 { return bitcast<f32>((a & 0x807fffffu) | 0x3f800000u); }
fn p(x: f32) -> u32 { return select(bitcast<u32>(x), 0x7fc00000u, x != x); }",
        &[
            ("p(f(a) + f(b))", |a, b, _| pattern(f(a) + f(b))),
            ("p(f(a) - f(b))", |a, b, _| pattern(f(a) - f(b))),
            ("p(f(a) * f(b))", |a, b, _| pattern(f(a) * f(b))),
            ("p(f(a) / f(b))", |a, b, _| pattern(f(a) / f(b))),
            ("p(f(a) * f(b) + f(c))", |a, b, c| pattern(f(a) * f(b) + f(c))),
            // Two roundings, not one, of numbers near 1, where the difference shows.
            ("p(near(a) * near(b) + near(c))", |a, b, c| pattern(near(a) * near(b) + near(c))),
            ("p(near(a) - near(b) * near(c))", |a, b, c| pattern(near(a) - near(b) * near(c))),
            ("p(fma(near(a), near(b), near(c)))", |a, b, c| pattern(near(a).mul_add(near(b), near(c)))),
            ("p(fma(f(a), f(b), f(c)))", |a, b, c| pattern(f(a).mul_add(f(b), f(c)))),
            ("p(sqrt(f(a)))", |a, _, _| pattern(f(a).sqrt())),
            ("p(-f(a))", |a, _, _| pattern(-f(a))),
            ("p(abs(f(a)))", |a, _, _| pattern(f(a).abs())),
            ("p(floor(f(a)))", |a, _, _| pattern(f(a).floor())),
            ("p(ceil(f(a)))", |a, _, _| pattern(f(a).ceil())),
            ("p(trunc(f(a)))", |a, _, _| pattern(f(a).trunc())),
            ("p(round(f(a)))", |a, _, _| pattern(f(a).round_ties_even())),
            ("u32(f(a) < f(b))", |a, b, _| (f(a) < f(b)).into()),
            ("u32(f(a) >= f(b))", |a, b, _| (f(a) >= f(b)).into()),
            ("u32(f(a) == f(b))", |a, b, _| (f(a) == f(b)).into()),
            ("p(f32(a))", |a, _, _| (a as f32).to_bits()),
            ("p(f32(i))", |a, _, _| (a as i32 as f32).to_bits()),
            ("p(f32(a > b))", |a, b, _| f32::from(u8::from(a > b)).to_bits()),
            ("u32(f(a))", |a, _, _| f(a).min(4_294_967_040.0) as u32 * u32::from(!f(a).is_nan())),
            ("select(bitcast<u32>(i32(f(a))), 0u, f(a) != f(a))", |a, _, _| {
                f(a).min(2_147_483_520.0) as i32 as u32 * u32::from(!f(a).is_nan())
            }),
            ("bitcast<u32>(1.5e-45f + 0.1f)", |_, _, _| 0x3dcc_cccd),
            ("p(f(a) * 1.17549435e-38f + -0.0f)", |a, _, _| pattern(f(a) * f32::MIN_POSITIVE + -0.0)),
        ],
    );
}

#[test]
fn vectors_and_booleans() {
    check(
        "fn sum(v: vec4<u32>) -> u32 { return v.x + 3u * v.y + 5u * v.z + 7u * v.w; }",
        &[
            ("sum(vec4<u32>(a) + vec4<u32>(b, c, a, b) * 2u)", |a, b, c| {
                let two = |x: u32| a.wrapping_add(x.wrapping_mul(2));
                sum([two(b), two(c), two(a), two(b)])
            }),
            ("sum(vec4<u32>(vec2<u32>(a, b).yx, vec3<u32>(c, b, a).zy))", |a, b, _| sum([b, a, a, b])),
            ("sum(vec4<u32>(a, b, c, 1u) >> vec4<u32>(c, 1u, b, 0u))", |a, b, c| {
                sum([a.wrapping_shr(c), b >> 1, c.wrapping_shr(b), 1])
            }),
            ("sum(select(vec4<u32>(a), vec4<u32>(b), vec4<u32>(a, b, c, 5u) < vec4<u32>(c)))", |a, b, c| {
                sum([a, b, c, 5].map(|x| if x < c { b } else { a }))
            }),
            (
                "sum(select(vec4<u32>(a), vec4<u32>(b), c > 7u))",
                |a, b, c| sum([if c > 7 { b } else { a }; 4]),
            ),
            ("u32(all(vec2<u32>(a, b) < vec2<u32>(c)))", |a, b, c| (a < c && b < c).into()),
            ("u32(any(vec2<u32>(a, b) < vec2<u32>(c)))", |a, b, c| (a < c || b < c).into()),
            ("u32(any(!(vec2<u32>(a, b) == vec2<u32>(c))))", |a, b, c| (a != c || b != c).into()),
            ("u32((a < b) && (b < c))", |a, b, c| (a < b && b < c).into()),
            ("u32((a < b) || (b < c))", |a, b, c| (a < b || b < c).into()),
            ("u32((a < b) & (b < c))", |a, b, c| (a < b && b < c).into()),
            ("u32((a < b) | (b < c))", |a, b, c| (a < b || b < c).into()),
            ("u32((a < b) != (b < c))", |a, b, c| ((a < b) != (b < c)).into()),
            ("u32(!bool(a))", |a, _, _| (a == 0).into()),
            ("sum(~vec4<u32>(a, b, c, 0u))", |a, b, c| sum([!a, !b, !c, !0])),
            ("sum(bitcast<vec4<u32>>(-bitcast<vec4<i32>>(vec4<u32>(a, b, c, 1u))))", |a, b, c| {
                sum([a, b, c, 1].map(u32::wrapping_neg))
            }),
            ("sum(max(min(vec4<u32>(a), vec4<u32>(b)), vec4<u32>(c, 1u, 2u, 3u)))", |a, b, c| {
                sum([c, 1, 2, 3].map(|x| a.min(b).max(x)))
            }),
            ("sum(vec4<u32>(a, b, c, 9u) / vec4<u32>(b, c, c, 2u))", |a, b, c| {
                sum([a.checked_div(b).unwrap_or(a), b.checked_div(c).unwrap_or(b), u32::from(c > 0), 4])
            }),
            ("bitcast<u32>(dot(vec3<i32>(i, j, k), vec3<i32>(k, 2, j)))", |a, b, c| {
                a.wrapping_mul(c).wrapping_add(b.wrapping_mul(2)).wrapping_add(c.wrapping_mul(b))
            }),
            // Components at computed places, in bounds and out of bounds.
            ("vec4<u32>(a, b, c, 4u)[a & 3u]", |a, b, c| [a, b, c, 4][(a & 3) as usize]),
            ("vec4<u32>(a, b, c, 4u)[a]", |a, b, c| [a, b, c, 4][a.min(3) as usize]),
        ],
    );
}

fn sum(v: [u32; 4]) -> u32 {
    v.iter().zip([1u32, 3, 5, 7]).fold(0, |sum, (x, w)| sum.wrapping_add(x.wrapping_mul(w)))
}

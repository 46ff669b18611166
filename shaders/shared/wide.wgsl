// 64-bit integers as vec2<u32> (low, high), 128-bit ones as vec4<u32>. WGSL has no wider products than 32 bits, so
// wider products are built from 16-bit halves.

// a * b, all 64 bits.
fn u32_mul(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let left = ah * bl;
    let right = al * bh;
    let middle = (low >> 16u) + (left & 0xffffu) + (right & 0xffffu);
    return vec2<u32>((low & 0xffffu) | (middle << 16u),
                     ah * bh + (left >> 16u) + (right >> 16u) + (middle >> 16u));
}

fn u64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn u64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn u64_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// a << n for n in 0..=63.
fn u64_shl(a: vec2<u32>, n: u32) -> vec2<u32> {
    let v = select(a, vec2<u32>(0u, a.x), n >= 32u);
    let m = n & 31u;
    // (x >> 1) >> (31 - m) is x >> (32 - m), for m = 0 too.
    return vec2<u32>(v.x << m, (v.y << m) | ((v.x >> 1u) >> ((31u - m) & 31u)));
}

// a >> n for n in 0..=63.
fn u64_shr(a: vec2<u32>, n: u32) -> vec2<u32> {
    let v = select(a, vec2<u32>(a.y, 0u), n >= 32u);
    let m = n & 31u;
    return vec2<u32>((v.x >> m) | ((v.y << 1u) << ((31u - m) & 31u)), v.y >> m);
}

fn u64_clz(a: vec2<u32>) -> u32 {
    return select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
}

// The high 64 bits of a * b, at most 2 too small: the low product's carry is left out.
fn u64_mul_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let high = u32_mul(a.y, b.y);
    let left = u32_mul(a.y, b.x);
    let right = u32_mul(a.x, b.y);
    let middle = u64_add(vec2<u32>(left.y, 0u), vec2<u32>(right.y, 0u));
    let carry = u32(left.x + right.x < left.x);
    return u64_add(u64_add(high, middle), vec2<u32>(carry, 0u));
}

fn u128_add(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let s = a + b;
    let c0 = u32(s.x < a.x);
    let y = s.y + c0;
    let c1 = u32(s.y < a.y) | u32(y < c0);
    let z = s.z + c1;
    let c2 = u32(s.z < a.z) | u32(z < c1);
    return vec4<u32>(s.x, y, z, s.w + c2);
}

fn u128_neg(a: vec4<u32>) -> vec4<u32> {
    return u128_add(~a, vec4<u32>(1u, 0u, 0u, 0u));
}

// value * 2^n for n in 0..=63, as a 64-bit two's complement integer.
fn i64_shl(value: i32, n: u32) -> vec2<u32> {
    return u64_shl(vec2<u32>(bitcast<u32>(value), select(0u, 0xffffffffu, value < 0)), n);
}

// value * 2^n for n in 0..=63, as a 128-bit two's complement integer.
fn i128_shl(value: i32, n: u32) -> vec4<u32> {
    let low = bitcast<u32>(value);
    let fill = select(0u, 0xffffffffu, value < 0);
    let m = n & 31u;
    let a = low << m;
    let b = (fill << m) | ((low >> 1u) >> ((31u - m) & 31u));
    return select(vec4<u32>(a, b, fill, fill), vec4<u32>(0u, a, b, fill), n >= 32u);
}

//!include shared/float.wgsl
// exp, correctly rounded, in 64-bit fixed point with an error of about 2^-60 of the result. Sampled against the scalar
// function, not run over all inputs (docs/ELEMENTARY.md). Constants: make-tables.py.

// ln 2 * 2^64.
const E_LN2: vec2<u32> = vec2<u32>(0xd1cf79abu, 0xb17217f7u);
// 2^(j/16) * 2^63.
const E_POWERS: array<vec2<u32>, 16> = array<vec2<u32>, 16>(
    vec2<u32>(0x00000000u, 0x80000000u),
    vec2<u32>(0xcc487b14u, 0x85aac367u),
    vec2<u32>(0xea8bd6e6u, 0x8b95c1e3u),
    vec2<u32>(0xab11c336u, 0x91c3d373u),
    vec2<u32>(0x8db8a96fu, 0x9837f051u),
    vec2<u32>(0x91a111adu, 0x9ef53260u),
    vec2<u32>(0xb15138eau, 0xa5fed6a9u),
    vec2<u32>(0x42a14ac6u, 0xad583eeau),
    vec2<u32>(0xf9de6484u, 0xb504f333u),
    vec2<u32>(0x580c36beu, 0xbd08a39fu),
    vec2<u32>(0x5506daddu, 0xc5672a11u),
    vec2<u32>(0x1f8480e3u, 0xce248c15u),
    vec2<u32>(0xd69d6af4u, 0xd744fccau),
    vec2<u32>(0x2a94e111u, 0xe0ccdeecu),
    vec2<u32>(0xdd24392eu, 0xeac0c6e7u),
    vec2<u32>(0x2486cc2cu, 0xf5257d15u)
);
// 2^64 / n! for n = 10 down to 2.
const E_FACTORIALS: array<vec2<u32>, 9> = array<vec2<u32>, 9>(
    vec2<u32>(0x93edde27u, 0x0000049fu),
    vec2<u32>(0xc74aad8eu, 0x00002e3bu),
    vec2<u32>(0x01a01a01u, 0x0001a01au),
    vec2<u32>(0x0d00d00du, 0x000d00d0u),
    vec2<u32>(0x5b05b05bu, 0x005b05b0u),
    vec2<u32>(0x22222222u, 0x02222222u),
    vec2<u32>(0xaaaaaaaau, 0x0aaaaaaau),
    vec2<u32>(0xaaaaaaaau, 0x2aaaaaaau),
    vec2<u32>(0x00000000u, 0x80000000u)
);

// exp(x) = (m / 2^63) * 2^k.
struct EPower {
    k: i32,
    m: vec2<u32>,
}

// For 2^-26 <= |x| < 128.
fn e_exp(x: u32) -> EPower {
    let e = i32((x >> 23u) & 255u) - 127;
    let m = (x & 0x7fffffu) | 0x800000u;
    // |x| log2(e): 24 by 96 bits, in four words.
    let p0 = u32_mul(m, 0xbe87fed0u);
    let p1 = u64_add(u32_mul(m, 0x5c17f0bbu), vec2<u32>(p0.y, 0u));
    let p2 = u64_add(u32_mul(m, 0xb8aa3b29u), vec2<u32>(p1.y, 0u));
    // The point moves to between the second and third word: right by 54 - e, which is 48 to 80.
    let right = u32(54 - e);
    let q = select(vec3<u32>(p1.x, p2.x, p2.y), vec3<u32>(p2.x, p2.y, 0u), right >= 64u);
    let s = right & 31u;
    let up = (31u - s) & 31u;
    var f = vec2<u32>((q.x >> s) | ((q.y << 1u) << up), (q.y >> s) | ((q.z << 1u) << up));
    var k = i32(q.z >> s);
    if ((x & F_SIGN) != 0u) {
        k = -k - 1;
        f = u64_sub(vec2<u32>(0u, 0u), f);
        k = k + i32(f.x == 0u && f.y == 0u);
    }
    // 2^f = 2^(j/16) * exp(y), y < 0.0434.
    let j = f.y >> 28u;
    let y = u64_mul_high(vec2<u32>(f.x, f.y & 0x0fffffffu), E_LN2);
    var sum = E_FACTORIALS[0];
    for (var n = 1u; n < 9u; n++) {
        sum = u64_add(E_FACTORIALS[n], u64_mul_high(sum, y));
    }
    let rest = u64_add(y, u64_mul_high(y, u64_mul_high(y, sum)));
    let power = E_POWERS[j];
    return EPower(k, u64_add(power, u64_mul_high(power, rest)));
}

fn f_exp(x: u32) -> u32 {
    let absmax = x & 0x7fffffffu;
    if (absmax <= 0x33000000u) {
        return F_ONE; // |x| <= 2^-25
    }
    if (absmax >= 0x42d00000u) { // |x| >= 104
        return select(select(F_INFINITY, 0u, (x & F_SIGN) != 0u), F_NAN, absmax > F_INFINITY);
    }
    let power = e_exp(x);
    return f_pack(0u, power.k + 127, power.m.y | u32(power.m.x != 0u));
}

//!include shared/float.wgsl
// erf, correctly rounded, in 64-bit fixed point. Constants: make-tables.py.

// 2^64 / (n! (2n + 1)) for n = 15 down to 1.
const E_ERF: array<vec2<u32>, 15> = array<vec2<u32>, 15>(
    vec2<u32>(0x0006f189u, 0x00000000u),
    vec2<u32>(0x006f55dfu, 0x00000000u),
    vec2<u32>(0x068a27b9u, 0x00000000u),
    vec2<u32>(0x5bd12384u, 0x00000000u),
    vec2<u32>(0xad9cc42au, 0x00000004u),
    vec2<u32>(0x5c60a90eu, 0x00000038u),
    vec2<u32>(0xef8aaad1u, 0x0000026eu),
    vec2<u32>(0x00187a00u, 0x0000187au),
    vec2<u32>(0xbc99a778u, 0x0000ddebu),
    vec2<u32>(0x07007007u, 0x00070070u),
    vec2<u32>(0x1a6031a6u, 0x0031a603u),
    vec2<u32>(0xda12f684u, 0x012f684bu),
    vec2<u32>(0x18618618u, 0x06186186u),
    vec2<u32>(0x99999999u, 0x19999999u),
    vec2<u32>(0x55555555u, 0x55555555u)
);
// 2/sqrt(pi) * 2^63.
const E_SLOPE: vec2<u32> = vec2<u32>(0x14db688du, 0x906eba82u);
// erf(i/8) * 2^62 and erf'(i/8) * 2^62 for i = 4 to 32.
const E_ERF_AT: array<vec2<u32>, 29> = array<vec2<u32>, 29>(
    vec2<u32>(0x31dba457u, 0x214fdeb8u),
    vec2<u32>(0xa1e26983u, 0x27e32db9u),
    vec2<u32>(0x3a1cbed8u, 0x2d8392ebu),
    vec2<u32>(0x371f8b6cu, 0x322e492au),
    vec2<u32>(0x8211158du, 0x35eecf4eu),
    vec2<u32>(0x53d8c3cau, 0x38db5a50u),
    vec2<u32>(0x157c0101u, 0x3b10cbb3u),
    vec2<u32>(0x6947f831u, 0x3caed187u),
    vec2<u32>(0x26f5bf63u, 0x3dd4aaaeu),
    vec2<u32>(0xcf7aedb1u, 0x3e9ed276u),
    vec2<u32>(0xf1aada62u, 0x3f25a0efu),
    vec2<u32>(0xe99ed48au, 0x3f7cc3ddu),
    vec2<u32>(0x4f2bc665u, 0x3fb35c28u),
    vec2<u32>(0xacb293e1u, 0x3fd48431u),
    vec2<u32>(0x0633687cu, 0x3fe808ecu),
    vec2<u32>(0x7d664dbdu, 0x3ff32c1eu),
    vec2<u32>(0x9937d4d8u, 0x3ff9551eu),
    vec2<u32>(0x7b832de3u, 0x3ffca297u),
    vec2<u32>(0x08a7b2cdu, 0x3ffe59f6u),
    vec2<u32>(0x41d06844u, 0x3fff3748u),
    vec2<u32>(0x826bf2f7u, 0x3fffa358u),
    vec2<u32>(0x764cf63cu, 0x3fffd67du),
    vec2<u32>(0xecfcaaf0u, 0x3fffedf3u),
    vec2<u32>(0xdb3d9f3au, 0x3ffff862u),
    vec2<u32>(0x1aacbce4u, 0x3ffffce2u),
    vec2<u32>(0x187b4beeu, 0x3ffffec3u),
    vec2<u32>(0xe2e3c6c2u, 0x3fffff85u),
    vec2<u32>(0x59db2516u, 0x3fffffd2u),
    vec2<u32>(0x7222ec42u, 0x3fffffefu)
);
const E_SLOPE_AT: array<vec2<u32>, 29> = array<vec2<u32>, 29>(
    vec2<u32>(0x34a022a6u, 0x383df949u),
    vec2<u32>(0x26973b62u, 0x30dd2d28u),
    vec2<u32>(0xf1a5893au, 0x2925c85au),
    vec2<u32>(0x10972642u, 0x21956c3eu),
    vec2<u32>(0x6fbc25bdu, 0x1a911f09u),
    vec2<u32>(0xbb79155eu, 0x145e99bcu),
    vec2<u32>(0x6e5b58fcu, 0x0f23297du),
    vec2<u32>(0x22ad850eu, 0x0ae72caeu),
    vec2<u32>(0xae092a36u, 0x079c8dc9u),
    vec2<u32>(0x2f29cd44u, 0x0526751eu),
    vec2<u32>(0x644202aeu, 0x0360aa60u),
    vec2<u32>(0xfff3786du, 0x02259d66u),
    vec2<u32>(0x8cf9a1e3u, 0x01529b9eu),
    vec2<u32>(0x3c707d75u, 0x00ca3127u),
    vec2<u32>(0xa77fa593u, 0x0075050eu),
    vec2<u32>(0xd8d55891u, 0x0041a462u),
    vec2<u32>(0xe1f7edf6u, 0x0023b062u),
    vec2<u32>(0x8809244eu, 0x0012ce89u),
    vec2<u32>(0x6691ed9du, 0x00099b06u),
    vec2<u32>(0x3eeddfb3u, 0x0004c14eu),
    vec2<u32>(0xd374664fu, 0x00024811u),
    vec2<u32>(0x1b4dd36du, 0x00010f9eu),
    vec2<u32>(0x7a340339u, 0x00007a6du),
    vec2<u32>(0x13d22896u, 0x0000357cu),
    vec2<u32>(0x97219a93u, 0x000016a5u),
    vec2<u32>(0x5387a0a0u, 0x0000094bu),
    vec2<u32>(0x6e3c5fefu, 0x000003b2u),
    vec2<u32>(0xe1aa3fd7u, 0x0000016cu),
    vec2<u32>(0x58a44575u, 0x00000088u)
);
// 2^64 / (n + 1), less one for n = 0.
const E_INVERSE: array<vec2<u32>, 17> = array<vec2<u32>, 17>(
    vec2<u32>(0xffffffffu, 0xffffffffu),
    vec2<u32>(0x00000000u, 0x80000000u),
    vec2<u32>(0x55555555u, 0x55555555u),
    vec2<u32>(0x00000000u, 0x40000000u),
    vec2<u32>(0x33333333u, 0x33333333u),
    vec2<u32>(0xaaaaaaaau, 0x2aaaaaaau),
    vec2<u32>(0x92492492u, 0x24924924u),
    vec2<u32>(0x00000000u, 0x20000000u),
    vec2<u32>(0x71c71c71u, 0x1c71c71cu),
    vec2<u32>(0x99999999u, 0x19999999u),
    vec2<u32>(0x5d1745d1u, 0x1745d174u),
    vec2<u32>(0x55555555u, 0x15555555u),
    vec2<u32>(0xb13b13b1u, 0x13b13b13u),
    vec2<u32>(0x49249249u, 0x12492492u),
    vec2<u32>(0x11111111u, 0x11111111u),
    vec2<u32>(0x00000000u, 0x10000000u),
    vec2<u32>(0x0f0f0f0fu, 0x0f0f0f0fu)
);

fn s64_neg(a: vec2<u32>) -> vec2<u32> {
    return u64_sub(vec2<u32>(0u, 0u), a);
}

// The high 64 bits of the product of two signed numbers, toward zero, at most 2 off.
fn s64_mul_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let na = (a.y & F_SIGN) != 0u;
    let nb = (b.y & F_SIGN) != 0u;
    let p = u64_mul_high(select(a, s64_neg(a), na), select(b, s64_neg(b), nb));
    return select(p, s64_neg(p), na != nb);
}

fn f_erf(x: u32) -> u32 {
    let sign = x & F_SIGN;
    let absmax = x & 0x7fffffffu;
    if (absmax == 0u) {
        return x;
    }
    if (absmax >= 0x40800000u) { // |x| >= 4
        return select(sign | F_ONE, F_NAN, absmax > F_INFINITY);
    }
    let parts = f_parts(absmax);
    if (absmax < 0x3f000000u) { // |x| < 1/2: 2/sqrt(pi) x (1 - x^2 (1/3 - x^2 (1/10 - ...)))
        let square = u32_mul(parts.significand, parts.significand);
        let right = -2 - 2 * (parts.exponent - 127);
        let xx = select(u64_shr(square, u32(min(right, 63))), vec2<u32>(0u, 0u), right > 63);
        var sum = E_ERF[0];
        for (var n = 1u; n < 15u; n++) {
            sum = u64_sub(E_ERF[n], u64_mul_high(sum, xx));
        }
        let factor = u64_mul_high(E_SLOPE, ~u64_mul_high(sum, xx));
        let product = u64_mul_high(vec2<u32>(0u, parts.significand), factor);
        let zeros = u64_clz(product);
        let s = u64_shl(product, zeros);
        return f_pack(sign, parts.exponent + 1 - i32(zeros), s.y | u32(s.x != 0u));
    }
    // Taylor at the centre c = i/8: erf(c + h) = erf(c) + h * sum of a[n] / (n + 1), with
    // a[0] = erf'(c) and a[n+1] = -2 (c h a[n] + h^2 a[n-1]) / (n + 1).
    let fixed = (parts.significand >> 8u) << (u32(parts.exponent - 126) & 31u); // x * 2^24
    let i = (fixed + 0x100000u) >> 21u;
    let h24 = i32(fixed) - i32(i << 21u);
    let h = vec2<u32>(0u, u32(h24) << 8u);
    let ch = vec2<u32>(0u, u32(i32(i) * h24) << 5u);
    let h_size = u32(select(h24, -h24, h24 < 0));
    let hh = u64_shl(u32_mul(h_size, h_size), 16u);
    var before = vec2<u32>(0u, 0u);
    var a = E_SLOPE_AT[i - 4u];
    var sum = vec2<u32>(0u, 0u);
    for (var n = 0u; n < 17u; n++) {
        sum = u64_add(sum, s64_mul_high(a, e_inverse(n)));
        let next = u64_add(s64_mul_high(a, ch), s64_mul_high(before, hh));
        before = a;
        a = s64_neg(u64_shl(s64_mul_high(next, e_inverse(n)), 2u));
    }
    let total = u64_add(E_ERF_AT[i - 4u], u64_shl(s64_mul_high(sum, h), 1u));
    let zeros = u64_clz(total);
    let s = u64_shl(total, zeros);
    return f_pack(sign, 128 - i32(zeros), s.y | u32(s.x != 0u));
}

// 2^63 / (n + 1), positive as a signed number.
fn e_inverse(n: u32) -> vec2<u32> {
    return u64_shr(E_INVERSE[n], 1u);
}

//!include shared/exp.wgsl
// tanh, correctly rounded, in 64-bit fixed point. Constants: make-tables.py.

// The coefficients of tanh's series after the first, without signs, * 2^64: x^27 down to x^3.
const E_TANH: array<vec2<u32>, 13> = array<vec2<u32>, 13>(
    vec2<u32>(0xcb4fb893u, 0x00006c3du),
    vec2<u32>(0x2d39a605u, 0x00010b13u),
    vec2<u32>(0x1dd44a4bu, 0x000292fbu),
    vec2<u32>(0x62bf2bebu, 0x000659f8u),
    vec2<u32>(0xb9a68b32u, 0x000fabebu),
    vec2<u32>(0x9006ce88u, 0x0026ab04u),
    vec2<u32>(0x14add78au, 0x005f68d9u),
    vec2<u32>(0x70abeefdu, 0x00eb69e8u),
    vec2<u32>(0xbcd84791u, 0x0244dc6au),
    vec2<u32>(0x0b043e7cu, 0x05993d22u),
    vec2<u32>(0xd0dd0dd0u, 0x0dd0dd0du),
    vec2<u32>(0x22222222u, 0x22222222u),
    vec2<u32>(0x55555555u, 0x55555555u)
);

fn f_tanh(x: u32) -> u32 {
    let sign = x & F_SIGN;
    let absmax = x & 0x7fffffffu;
    if (absmax < 0x39800000u) {
        return x; // |x| < 2^-12
    }
    if (absmax >= 0x41a00000u) { // |x| >= 20
        return select(sign | F_ONE, F_NAN, absmax > F_INFINITY);
    }
    if (absmax < 0x3e800000u) { // |x| < 1/4: x (1 - x^2 (1/3 - x^2 (2/15 - ...)))
        let parts = f_parts(absmax);
        let square = u32_mul(parts.significand, parts.significand);
        let xx = u64_shr(square, u32(-2 - 2 * (parts.exponent - 127)));
        var sum = E_TANH[0];
        for (var n = 1u; n < 13u; n++) {
            sum = u64_sub(E_TANH[n], u64_mul_high(sum, xx));
        }
        let factor = ~u64_mul_high(sum, xx);
        let product = u64_mul_high(vec2<u32>(0u, parts.significand), factor);
        let zeros = u64_clz(product);
        let s = u64_shl(product, zeros);
        return f_pack(sign, parts.exponent - i32(zeros), s.y | u32(s.x != 0u));
    }
    // (E - 1) / (E + 1) with E = exp(2|x|), both scaled by 2^(61 - k).
    let power = e_exp(absmax + 0x800000u);
    let one = u64_shr(vec2<u32>(0u, 0x20000000u), u32(power.k));
    let quarter = u64_shr(power.m, 2u);
    let d = u64_add(quarter, one);
    var rest = u64_sub(quarter, one);
    var q = vec2<u32>(0u, 0u);
    for (var i = 0u; i < 64u; i++) {
        rest = u64_shl(rest, 1u);
        let bit = !u64_less(rest, d);
        rest = select(rest, u64_sub(rest, d), bit);
        q = vec2<u32>((q.x << 1u) | u32(bit), (q.y << 1u) | (q.x >> 31u));
    }
    let zeros = u64_clz(q);
    let s = u64_shl(q, zeros);
    return f_pack(sign, 126 - i32(zeros), s.y | 1u);
}

//!include shared/float.wgsl
// log, correctly rounded, in 64-bit fixed point. Constants: make-tables.py.

// 2^64 / (2n + 1) for n = 13 down to 1.
const E_ODD: array<vec2<u32>, 13> = array<vec2<u32>, 13>(
    vec2<u32>(0xd097b425u, 0x097b425eu),
    vec2<u32>(0xd70a3d70u, 0x0a3d70a3u),
    vec2<u32>(0x8590b216u, 0x0b21642cu),
    vec2<u32>(0x30c30c30u, 0x0c30c30cu),
    vec2<u32>(0x50d79435u, 0x0d79435eu),
    vec2<u32>(0x0f0f0f0fu, 0x0f0f0f0fu),
    vec2<u32>(0x11111111u, 0x11111111u),
    vec2<u32>(0xb13b13b1u, 0x13b13b13u),
    vec2<u32>(0x5d1745d1u, 0x1745d174u),
    vec2<u32>(0x71c71c71u, 0x1c71c71cu),
    vec2<u32>(0x92492492u, 0x24924924u),
    vec2<u32>(0x33333333u, 0x33333333u),
    vec2<u32>(0x55555555u, 0x55555555u)
);

fn f_log(x: u32) -> u32 {
    if ((x & 0x7fffffffu) == 0u) {
        return F_INFINITY | F_SIGN;
    }
    if (x >= F_INFINITY) {
        return select(F_NAN, F_INFINITY, x == F_INFINITY); // a NaN or a negative number
    }
    if (x == F_ONE) {
        return 0u;
    }
    let parts = f_parts(x);
    let m = parts.significand >> 8u;
    let over = m > 0xb504f3u; // above sqrt(2): m / 2 and e + 1
    let e = parts.exponent - 127 + i32(over);
    let one = select(0x800000u, 0x1000000u, over);
    let negative = over; // m - 1 is below 0 there
    let numerator = select(m - one, one - m, over);
    if (numerator == 0u) { // a power of two
        return e_log_sum(e, vec2<u32>(0u, 0u), false);
    }
    // s = numerator / denominator = (q / 2^63) * 2^exponent, 64 bits of it.
    let zn = countLeadingZeros(numerator);
    let denominator = m + one;
    let zd = countLeadingZeros(denominator);
    let d = denominator << ((zd - 1u) & 31u);
    var rest = numerator << ((zn - 1u) & 31u);
    let low = u32(rest < d);
    rest = rest << (low & 31u);
    var q = vec2<u32>(0u, 0u);
    for (var i = 0u; i < 64u; i++) {
        let bit = u32(rest >= d);
        rest = (rest - select(0u, d, bit == 1u)) << 1u;
        q = vec2<u32>((q.x << 1u) | bit, (q.y << 1u) | (q.x >> 31u));
    }
    let exponent = i32(zd) - i32(zn) - i32(low); // at most -3
    // atanh(s) = s (1 + s^2/3 + s^4/5 + ...)
    let ss = u64_shr(u64_mul_high(q, q), u32(min(-2 - 2 * exponent, 63)));
    var sum = E_ODD[0];
    for (var n = 1u; n < 13u; n++) {
        sum = u64_add(E_ODD[n], u64_mul_high(sum, ss));
    }
    let half = u64_shr(q, 1u);
    // log(m) = (t / 2^62) * 2^(exponent + 1)
    let t = u64_add(half, u64_mul_high(half, u64_mul_high(sum, ss)));
    if (e == 0) {
        let zeros = u64_clz(t);
        let s = u64_shl(t, zeros);
        return f_pack(select(0u, F_SIGN, negative), exponent + 129 - i32(zeros), s.y | u32(s.x != 0u));
    }
    return e_log_sum(e, u64_shr(t, u32(min(4 - exponent, 63))), negative);
}

// e ln 2 plus or minus t / 2^57.
fn e_log_sum(e: i32, t: vec2<u32>, negative: bool) -> u32 {
    let n = u32(abs_i32(e));
    let low = u32_mul(n, 0xd1cf79abu);
    let high = u64_add(u32_mul(n, 0xb17217f7u), vec2<u32>(low.y, 0u));
    let whole = vec2<u32>((low.x >> 7u) | (high.x << 25u), (high.x >> 7u) | (high.y << 25u));
    let add = negative == (e < 0);
    let total = select(u64_sub(whole, t), u64_add(whole, t), add);
    let zeros = u64_clz(total);
    let s = u64_shl(total, zeros);
    return f_pack(select(0u, F_SIGN, e < 0), 133 - i32(zeros), s.y | u32(s.x != 0u));
}

fn abs_i32(x: i32) -> i32 {
    return select(x, -x, x < 0);
}

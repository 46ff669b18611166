//!include shared/wide.wgsl
// binary32 on bit patterns, as in crates/contract/src/arith/float.rs: round to nearest even, subnormals kept, one NaN. No float type.

const F_NAN: u32 = 0x7fc00000u;
const F_INFINITY: u32 = 0x7f800000u;
const F_SIGN: u32 = 0x80000000u;
const F_ONE: u32 = 0x3f800000u;

fn f_is_nan(x: u32) -> bool {
    return (x & 0x7fffffffu) > F_INFINITY;
}

fn f_canonical(x: u32) -> u32 {
    return select(x, F_NAN, f_is_nan(x));
}

// The pattern of (significand / 2^31) * 2^(exponent - 127), rounded once. The significand has its top bit set; its
// lowest bit may stand for everything below ("sticky").
fn f_pack(sign: u32, exponent: i32, significand: u32) -> u32 {
    if (exponent >= 255) {
        return sign | F_INFINITY;
    }
    // Below the normal range the significand moves right, keeping whether anything was lost.
    let right = u32(clamp(1 - exponent, 0, 31));
    let moved = significand >> (right & 31u);
    let s = moved | u32((moved << (right & 31u)) != significand);
    let field = u32(max(exponent, 1)) - 1u;
    let m = s >> 8u;
    let rest = s & 255u;
    let up = u32(rest > 128u || (rest == 128u && (m & 1u) == 1u));
    // The hidden bit, if present, carries into the field by itself.
    return sign | min((field << 23u) + m + up, F_INFINITY);
}

fn f_add(a: u32, b: u32) -> u32 {
    let swap = (a & 0x7fffffffu) < (b & 0x7fffffffu);
    let x = select(a, b, swap); // the larger absmax
    let y = select(b, a, swap);
    let xe = (x >> 23u) & 255u;
    let ye = (y >> 23u) & 255u;
    let differ = ((x ^ y) & F_SIGN) != 0u;
    if (xe == 255u) {
        let bad = f_is_nan(x) || (differ && ye == 255u);
        return select(x, F_NAN, bad);
    }
    let xm = ((x & 0x7fffffu) | select(0u, 0x800000u, xe != 0u)) << 6u;
    let ym = ((y & 0x7fffffu) | select(0u, 0x800000u, ye != 0u)) << 6u;
    let e = max(xe, 1u);
    let right = min(e - max(ye, 1u), 31u);
    let moved = ym >> (right & 31u);
    let z = moved | u32((moved << (right & 31u)) != ym);
    let sum = select(xm + z, xm - z, differ);
    if (sum == 0u) {
        return a & b & F_SIGN;
    }
    let zeros = countLeadingZeros(sum);
    return f_pack(x & F_SIGN, i32(e) + 2 - i32(zeros), sum << (zeros & 31u));
}

fn f_neg(a: u32) -> u32 {
    return select(a ^ F_SIGN, F_NAN, f_is_nan(a));
}

fn f_sub(a: u32, b: u32) -> u32 {
    return f_add(a, b ^ F_SIGN);
}

// The significand of a finite nonzero pattern with its top bit at 31, and the exponent that f_pack takes.
struct FParts {
    significand: u32,
    exponent: i32,
}

fn f_parts(x: u32) -> FParts {
    let field = (x >> 23u) & 255u;
    let m = (x & 0x7fffffu) | select(0u, 0x800000u, field != 0u);
    let zeros = countLeadingZeros(m);
    return FParts(m << (zeros & 31u), i32(max(field, 1u)) + 8 - i32(zeros));
}

fn f_mul(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & F_SIGN;
    let am = a & 0x7fffffffu;
    let bm = b & 0x7fffffffu;
    let large = max(am, bm);
    let small = min(am, bm);
    if (large >= F_INFINITY) {
        return select(sign | F_INFINITY, F_NAN, large > F_INFINITY || small == 0u);
    }
    if (small == 0u) {
        return sign;
    }
    let x = f_parts(am);
    let y = f_parts(bm);
    let p = u32_mul(x.significand, y.significand);
    let s = p.y | u32(p.x != 0u);
    let low = (s >> 31u) ^ 1u; // the product of two significands in [1, 2) may lie below 2
    return f_pack(sign, x.exponent + y.exponent - 126 - i32(low), s << (low & 31u));
}

fn f_div(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & F_SIGN;
    let am = a & 0x7fffffffu;
    let bm = b & 0x7fffffffu;
    if (am >= F_INFINITY || bm >= F_INFINITY || am == 0u || bm == 0u) {
        if (am > F_INFINITY || bm > F_INFINITY || (am == bm)) {
            return F_NAN; // a NaN, inf / inf or 0 / 0
        }
        return select(sign, sign | F_INFINITY, am == F_INFINITY || bm == 0u);
    }
    let x = f_parts(am);
    let y = f_parts(bm);
    let divisor = y.significand >> 8u;
    var rest = x.significand >> 8u;
    let low = u32(rest < divisor);
    rest = rest << (low & 31u);
    var quotient = 0u;
    for (var i = 0u; i < 26u; i++) {
        let one = u32(rest >= divisor);
        rest = (rest - select(0u, divisor, one == 1u)) << 1u;
        quotient = (quotient << 1u) | one;
    }
    let s = (quotient << 6u) | u32(rest != 0u);
    return f_pack(sign, x.exponent - y.exponent + 127 - i32(low), s);
}

fn f_sqrt(a: u32) -> u32 {
    if (a == 0u || a == F_SIGN || a == F_INFINITY) {
        return a;
    }
    if (a >= F_INFINITY) {
        return F_NAN; // a NaN or a negative number
    }
    let x = f_parts(a);
    // value = m * 2^(e - 150) with 24-bit m; an odd e lends m a bit.
    let odd = u32(x.exponent - 127) & 1u;
    var feed = (x.significand >> 8u) << ((7u + odd) & 31u); // two bits a round, from the top
    var rest = 0u;
    var root = 0u;
    for (var i = 0u; i < 26u; i++) {
        rest = (rest << 2u) | (feed >> 30u);
        feed = feed << 2u;
        let trial = (root << 2u) | 1u;
        let one = u32(rest >= trial);
        rest = rest - select(0u, trial, one == 1u);
        root = (root << 1u) | one;
    }
    let s = (root << 6u) | u32(rest != 0u || feed != 0u);
    let half = (x.exponent - 127 - i32(odd)) >> 1u;
    return f_pack(0u, half + 127, s);
}

fn f_order_key(x: u32) -> u32 {
    let key = select(~x, x | F_SIGN, (x & F_SIGN) == 0u);
    return select(key, F_NAN | F_SIGN, f_is_nan(x));
}

fn f_from_order_key(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, (key & F_SIGN) != 0u);
}

fn f_lt(a: u32, b: u32) -> u32 {
    let zeros = ((a | b) & 0x7fffffffu) == 0u;
    return u32(!f_is_nan(a) && !f_is_nan(b) && !zeros && f_order_key(a) < f_order_key(b));
}

fn f_from_u32(n: u32) -> u32 {
    if (n == 0u) {
        return 0u;
    }
    let zeros = countLeadingZeros(n);
    // f_pack's lowest bits round, so all 32 bits of n count.
    return f_pack(0u, 158 - i32(zeros), n << (zeros & 31u));
}

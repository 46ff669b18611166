//!include shared/float.wgsl
//!include shared/digits.wgsl
//!include shared/wide.wgsl
// The way from the exact integer sum of a product to binary32, as in crates/contract/src/arith/digits.rs.

// total * 2^exponent, rounded once; `total` is a 128-bit two's complement integer.
fn scale_back(total: vec4<u32>, exponent: i32) -> u32 {
    if ((total.x | total.y | total.z | total.w) == 0u) {
        return 0u;
    }
    let sign = total.w & 0x80000000u;
    var n = select(total, u128_neg(total), sign != 0u);
    // The top bit moves to bit 127, by whole words first.
    var top = 127;
    if (n.w == 0u) {
        n = vec4<u32>(0u, n.x, n.y, n.z);
        top = 95;
    }
    if (n.w == 0u) {
        n = vec4<u32>(0u, n.x, n.y, n.z);
        top = 63;
    }
    if (n.w == 0u) {
        n = vec4<u32>(0u, n.x, n.y, n.z);
        top = 31;
    }
    let zeros = countLeadingZeros(n.w);
    let m = zeros & 31u;
    let high = (n.w << m) | ((n.z >> 1u) >> ((31u - m) & 31u));
    let low = (n.z << m) | n.y | n.x;
    return f_pack(sign, top - i32(zeros) + exponent + 127, high | u32(low != 0u));
}

// The error of that rounding of total * 2^exponent, rounded once; +0 where the rounding gave infinity.
fn rounding_error(total: vec4<u32>, exponent: i32) -> u32 {
    let rounded = scale_back(total, exponent);
    let field = (rounded >> 23u) & 0xffu;
    let mantissa = (rounded & 0x7fffffu) | (u32(field != 0u) << 23u);
    let shift = i32(max(field, 1u)) - 150 - exponent;
    if (field == 255u || shift < 0) {
        return 0u;
    }
    // A shift above 127 belongs to a mantissa of 0.
    let n = min(u32(shift), 127u);
    let low = i128_shl(bitcast<i32>(mantissa), n & 63u);
    let whole = select(low, vec4<u32>(0u, 0u, low.x, low.y), n >= 64u);
    let taken = select(u128_neg(whole), whole, (rounded & 0x80000000u) != 0u);
    return scale_back(u128_add(total, taken), exponent);
}

// The output of an exact sum whose operands have these absmaxes; `bits` is the sum of their absmax bits, and 2^16
// more asks for the rest instead of the rounded value.
fn finish(total: vec4<u32>, ma: u32, mb: u32, bits: u32) -> u32 {
    let exponent = digits_exponent(ma) + digits_exponent(mb) - i32(bits & 0xffffu);
    if (digits_marked(ma) || digits_marked(mb)) {
        return F_NAN;
    }
    if (bits >= 0x10000u) {
        return rounding_error(total, exponent);
    }
    return scale_back(total, exponent);
}

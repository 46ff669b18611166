//!include shared/float.wgsl
//!include shared/digits.wgsl
//!include shared/wide.wgsl
// From the exact integer sum of a product to binary32, as src/arith/digits.rs.

// total * 2^exponent, rounded once; a 128-bit two's complement integer.
fn scale_back(total: vec4<u32>, exponent: i32) -> u32 {
    if ((total.x | total.y | total.z | total.w) == 0u) {
        return 0u;
    }
    let sign = total.w & 0x80000000u;
    var n = select(total, u128_neg(total), sign != 0u);
    // The top bit to bit 127: whole words first.
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

// The output of an exact sum whose operands have these magnitudes; `bits` is the sum of their magnitude bits.
fn finish(total: vec4<u32>, ma: u32, mb: u32, bits: u32) -> u32 {
    let exponent = digits_exponent(ma) + digits_exponent(mb) - i32(bits);
    return select(scale_back(total, exponent), F_NAN, digits_marked(ma) || digits_marked(mb));
}

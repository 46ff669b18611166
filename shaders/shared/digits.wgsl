// Digitising, as in crates/contract/src/arith/digits.rs.

fn digits_marked(absmax: u32) -> bool {
    return absmax >= 0x7f800000u;
}

// The least e with max|x| < 2^e; 0 for a zero or marked group.
fn digits_exponent(absmax: u32) -> i32 {
    if (absmax == 0u || digits_marked(absmax)) {
        return 0;
    }
    if (absmax < 0x800000u) {
        return 32 - i32(countLeadingZeros(absmax)) - 149;
    }
    return i32(absmax >> 23u) - 126;
}

// q = RNE(x * 2^(m - e)).
fn digits_quantise(x: u32, absmax: u32, magnitude_bits: i32) -> i32 {
    if (digits_marked(absmax)) {
        return 0;
    }
    let field = (x >> 23u) & 255u;
    let mantissa = (x & 0x7fffffu) | select(0u, 0x800000u, field != 0u);
    let scale = i32(max(field, 1u)) - 150;
    let shift = scale + magnitude_bits - digits_exponent(absmax);
    var q = 0u;
    if (shift >= 0) {
        q = mantissa << (u32(shift) & 31u); // |q| <= 2^30 bounds the shift; a zero mantissa stays zero
    } else {
        let right = u32(min(-shift, 31));
        q = mantissa >> (right & 31u);
        let rest = mantissa - (q << (right & 31u));
        let half = 1u << ((right - 1u) & 31u);
        q = q + u32(rest > half || (rest == half && (q & 1u) == 1u));
    }
    return select(i32(q), -i32(q), (x & 0x80000000u) != 0u);
}

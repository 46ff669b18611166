// Digits of binary32 numbers by the processor's conversion: quantise.v1 of an element, for kernels written by hand. Before this text stand
// translate/prelude.cuh and DIGITS, the digits of the result, 1..=4.

// q = RNE(x 2^(m - e)) by the processor. The power is split in two since m - e reaches 178. A product by a power of two is exact unless it
// is subnormal, and then q is 0 whichever way it went; so the conversion rounds once. In a group that holds an infinity or a NaN
// everything is taken as zero.
constexpr i32 MAGNITUDE_BITS = 8 * (i32)DIGITS - 2;
TB_FN f32 power(i32 exponent) { return __uint_as_float((u32)(exponent + 127) << 23); }
struct Scale {
    u32 mask;
    f32 first, second;

    __device__ __forceinline__ explicit Scale(u32 absmax) {
        const bool marked = absmax >= 0x7f800000u;
        // The least e with max|x| < 2^e: from the field, or from the leading zeros of a subnormal number.
        const i32 exponent = absmax == 0u || marked ? 0 : absmax < 0x800000u ? 32 - __clz((i32)absmax) - 149 : (i32)(absmax >> 23) - 126;
        const i32 shift = MAGNITUDE_BITS - exponent, most = tb::min(shift, 127);
        mask = marked ? 0u : ~0u;
        first = power(most), second = power(shift - most);
    }

    // The balanced digits of q, least significant first, as bytes: adding 128 to each makes them the bytes of a plain number, and
    // the exclusive or takes the 128 away again. Digits beyond the last are 0.
    __device__ __forceinline__ u32 digits(u32 x) const {
        const i32 q = __float2int_rn(__fmul_rn(__fmul_rn(__uint_as_float(x & mask), first), second));
        return ((u32)q + 0x80808080u) ^ 0x80808080u;
    }
};

// Four neighbours' digits as the words of the planes.
TB_FN void planes_of(const Scale& scale, const u32 (&x)[4], u32 (&planes)[4]) {
    u32 q[4];
    _Pragma("unroll") for (u32 i = 0; i < 4; i++) q[i] = scale.digits(x[i]);
    const u32 low = __byte_perm(q[0], q[1], 0x5140), low_after = __byte_perm(q[2], q[3], 0x5140);
    planes[0] = __byte_perm(low, low_after, 0x5410), planes[1] = __byte_perm(low, low_after, 0x7632);
    const u32 high = __byte_perm(q[0], q[1], 0x7362), high_after = __byte_perm(q[2], q[3], 0x7362);
    planes[2] = __byte_perm(high, high_after, 0x5410), planes[3] = __byte_perm(high, high_after, 0x7632);
}

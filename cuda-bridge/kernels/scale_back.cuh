// From an exact sum to binary32, for kernels written by hand: the WGSL's own functions, translated, and the short path of nearly every
// output. Before this text stand those functions under the names `wgsl_NAME`, and
//   WIDE                 whether an exact sum may need more than 64 bits
//   NATIVE               whether ordinary results are rounded by the processor's own conversion

#if WIDE
typedef tb::vec<u32, 4u> Total;
#else
typedef long long Total;
#endif

// The WGSL's way from an exact sum to the output: every case.
TB_FN u32 finish(Total total, u32 absmax_a, u32 absmax_b, u32 bits) {
#if WIDE
    return wgsl_finish(total, absmax_a, absmax_b, bits);
#else
    u32 fill = (u32)(total >> 63);
    return wgsl_finish(tb::vec<u32, 4u>{{(u32)total, (u32)(total >> 32), fill, fill}}, absmax_a, absmax_b, bits);
#endif
}

// A group's exponent; for a marked one a number that no ordinary result comes near.
constexpr i32 NOT_ORDINARY = 1 << 20;
TB_FN i32 scale_of(u32 absmax) {
    return wgsl_digits_marked(absmax) ? NOT_ORDINARY : wgsl_digits_exponent(absmax);
}

// total * 2^scale where that is 0 or rounds to a normal number, which is nearly always: the conversion rounds once, to nearest
// even, and a power of two moves the exponent alone. Else false.
TB_FN bool ordinary(Total total, i32 scale, u32& result) {
#if NATIVE && !WIDE
    u32 rounded = __float_as_uint(__ll2float_rn(total));
    i32 field = (i32)(rounded >> 23 & 255u) + scale;
    result = rounded == 0u ? 0u : rounded + ((u32)scale << 23);
    return rounded == 0u ? scale < NOT_ORDINARY / 2 : field >= 1 && field <= 254;
#else
    return false;
#endif
}


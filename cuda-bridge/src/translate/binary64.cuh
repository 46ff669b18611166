// exp, log, tanh and erf of binary32 by binary64: a value with a relative error below 2^-49, and whether all values within 2^-46 of it
// round to the same binary32, which then is the correctly rounded result. Else the translated WGSL decides. The bound is derived in
// docs/ELEMENTARY.md, step by step as written here: every operation rounds once, by name.

// Where binary64 runs at half the rate of binary32: elsewhere (a 64th) the WGSL's integers are faster. A host runs both.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 700 || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
#define TB_BINARY64 1
// The WGSL's text is there once, and called for an input in a million.
#ifdef __CUDACC_RTC__
#define TB_TEXT static __device__ __noinline__
#else
#define TB_TEXT static __attribute__((noinline))
#endif
#else
#define TB_BINARY64 0
#define TB_TEXT TB_FN
#endif

namespace tb {
namespace binary64 {

typedef double f64;
struct Rounded {
    u32 word;
    bool sure;
};

// What is added to a double to round it to an integer, which then is the sum's low word: 1.5 * 2^52.
constexpr f64 ROUNDER = 0x1.8p+52;
constexpr f64 LOG2_E = 0x1.71547652b82fep+0;
// 32 bits of ln 2, whose products with exponents are exact, and the rest.
constexpr f64 LN2_HIGH = 0x1.62e42fee00000p-1;
constexpr f64 LN2_LOW = 0x1.a39ef35793c76p-33;

TB_FN Rounded rounded(f64 y) {
    const f32 low = __double2float_rn(__dmul_rn(y, 1.0 - 0x1p-46)), high = __double2float_rn(__dmul_rn(y, 1.0 + 0x1p-46));
    return Rounded{__float_as_uint(low), __float_as_uint(low) == __float_as_uint(high)};
}

// x = k ln 2 + r with |r| < 0.347, and exp(r) - 1 by the Taylor polynomial of degree 13; 2^k. |x| < 105.
struct Power {
    f64 scale, less_one;
};
TB_FN Power power(f64 x) {
    const f64 shifted = __fma_rn(x, LOG2_E, ROUNDER);
    const f64 k = __dadd_rn(shifted, -ROUNDER);
    const f64 r = __fma_rn(-k, LN2_LOW, __fma_rn(-k, LN2_HIGH, x));
    f64 h = 1.0 / 6227020800.0;
    h = __fma_rn(h, r, 1.0 / 479001600.0);
    h = __fma_rn(h, r, 1.0 / 39916800.0);
    h = __fma_rn(h, r, 1.0 / 3628800.0);
    h = __fma_rn(h, r, 1.0 / 362880.0);
    h = __fma_rn(h, r, 1.0 / 40320.0);
    h = __fma_rn(h, r, 1.0 / 5040.0);
    h = __fma_rn(h, r, 1.0 / 720.0);
    h = __fma_rn(h, r, 1.0 / 120.0);
    h = __fma_rn(h, r, 1.0 / 24.0);
    h = __fma_rn(h, r, 1.0 / 6.0);
    h = __fma_rn(h, r, 0.5);
    h = __fma_rn(h, r, 1.0);
    return Power{__hiloint2double((i32)(((u32)__double2loint(shifted) + 1023u) << 20), 0), __dmul_rn(h, r)};
}

TB_FN Rounded exp(u32 a) {
    const f32 x = __uint_as_float(a);
    // exp(-104) rounds to 0, exp(89) to infinity. Comparisons with a NaN are false.
    const Power p = power(x > -104.0f ? (x < 89.0f ? x : 89.0f) : -104.0f);
    const Rounded y = rounded(__fma_rn(p.scale, p.less_one, p.scale));
    return x != x ? Rounded{0x7fc00000u, true} : y;
}

// t / (t + 2) with t = exp(2|x|) - 1; from 20 on the result is 1.
TB_FN Rounded tanh(u32 a) {
    const u32 sign = a & 0x80000000u, absmax = a & 0x7fffffffu;
    const f64 x = __uint_as_float(absmax < 0x41a00000u ? absmax : 0x41a00000u);
    const Power p = power(__dadd_rn(x, x));
    const f64 t = __fma_rn(p.scale, p.less_one, __dadd_rn(p.scale, -1.0));
    const Rounded y = rounded(__ddiv_rn(t, __dadd_rn(t, 2.0)));
    return absmax > 0x7f800000u ? Rounded{0x7fc00000u, true} : Rounded{sign | y.word, y.sure};
}

// x = m 2^e with m between sqrt(1/2) and sqrt(2), about; log m = 2 atanh((m - 1) / (m + 1)).
TB_FN Rounded log(u32 a) {
    const bool positive = a - 1u < 0x7f7fffffu;
    const f64 x = positive ? __uint_as_float(a) : 1.0f;
    const u32 high = (u32)__double2hiint(x) + (0x3ff00000u - 0x3fe6a09eu);
    const f64 m = __hiloint2double((i32)((high & 0xfffffu) + 0x3fe6a09eu), __double2loint(x));
    const f64 e = (f64)((i32)(high >> 20) - 1023);
    const f64 s = __ddiv_rn(__dadd_rn(m, -1.0), __dadd_rn(m, 1.0));
    const f64 ss = __dmul_rn(s, s);
    f64 h = 1.0 / 21.0;
    h = __fma_rn(h, ss, 1.0 / 19.0);
    h = __fma_rn(h, ss, 1.0 / 17.0);
    h = __fma_rn(h, ss, 1.0 / 15.0);
    h = __fma_rn(h, ss, 1.0 / 13.0);
    h = __fma_rn(h, ss, 1.0 / 11.0);
    h = __fma_rn(h, ss, 1.0 / 9.0);
    h = __fma_rn(h, ss, 1.0 / 7.0);
    h = __fma_rn(h, ss, 1.0 / 5.0);
    h = __fma_rn(h, ss, 1.0 / 3.0);
    h = __fma_rn(h, ss, 1.0);
    const f64 log_m = __dmul_rn(h, __dadd_rn(s, s));
    const Rounded y = rounded(__fma_rn(e, LN2_HIGH, __fma_rn(e, LN2_LOW, log_m)));
    if (positive) return y;
    const u32 special = a == 0x7f800000u ? a : (a & 0x7fffffffu) == 0u ? 0xff800000u : 0x7fc00000u;
    return Rounded{special, true};
}

// erf(i / 8) and erf'(i / 8), to nearest.
static __device__ const f64 ERF_AT[33][2] = {
    {0x0.0p+0, 0x1.20dd750429b6dp+0}, {0x1.1f5e1a35c3b89p-3, 0x1.1c62fa1e869b6p+0}, {0x1.1af54e232d609p-2, 0x1.0f5d1602f7e41p+0},
    {0x1.9dd0d2b721f39p-2, 0x1.f5f0cdaf15313p-1}, {0x1.0a7ef5c18edd2p-1, 0x1.c1efca49a5011p-1}, {0x1.3f196dcd0f135p-1, 0x1.86e9694134b9ep-1},
    {0x1.6c1c9759d0e5fp-1, 0x1.492e42d78d2c5p-1}, {0x1.91724951b8fc6p-1, 0x1.0cab61f084b93p-1}, {0x1.af767a741088bp-1, 0x1.a911f096fbc26p-2},
    {0x1.c6dad2829ec62p-1, 0x1.45e99bcbb7915p-2}, {0x1.d8865d98abe01p-1, 0x1.e4652fadcb6b2p-3}, {0x1.e5768c3b4a3fcp-1, 0x1.5ce595c455b0ap-3},
    {0x1.eea5557137ae0p-1, 0x1.e723726b824a9p-4}, {0x1.f4f693b67bd77p-1, 0x1.499d478bca735p-4}, {0x1.f92d077f8d56dp-1, 0x1.b055303221015p-5},
    {0x1.fbe61eef4cf6ap-1, 0x1.12ceb37ff9bc3p-5}, {0x1.fd9ae142795e3p-1, 0x1.529b9e8cf9a1ep-6}, {0x1.fea4218d6594ap-1, 0x1.94624e78e0fafp-7},
    {0x1.ff404760319b4p-1, 0x1.d4143a9dfe965p-8}, {0x1.ff9960f3eb327p-1, 0x1.06918b6355624p-8}, {0x1.ffcaa8f4c9beap-1, 0x1.1d83170fbf6fbp-9},
    {0x1.ffe514bbdc197p-1, 0x1.2ce898809244ep-10}, {0x1.fff2cfb0453d9p-1, 0x1.3360ccd23db3ap-11}, {0x1.fff9ba420e834p-1, 0x1.30538fbb77ecdp-12},
    {0x1.fffd1ac4135f9p-1, 0x1.2408e9ba3327fp-13}, {0x1.fffeb3ebb267bp-1, 0x1.0f9e1b4dd36dfp-14}, {0x1.ffff6f9f67e55p-1, 0x1.e9b5e8d00ce77p-16},
    {0x1.ffffc316d9ed0p-1, 0x1.abe09e9144b5ep-17}, {0x1.ffffe710d565ep-1, 0x1.6a597219a93dap-18}, {0x1.fffff618c3da6p-1, 0x1.296a70f414053p-19},
    {0x1.fffffc2f171e3p-1, 0x1.d9371e2ff7c35p-21}, {0x1.fffffe92ced93p-1, 0x1.6ce1aa3fd7bddp-22}, {0x1.ffffff7b91176p-1, 0x1.10b1488aeb235p-23},
};

// Taylor at c = i / 8 with h = |x| - c, |h| <= 1/16: erf(c) + h (a[0] + a[1] h + ... + a[10] h^10), where
// a[n+1] = -2 (c (n+1) a[n] + n a[n-1]) / ((n+1) (n+2)) by erf'' = -2x erf'. From 4 on the result is 1.
TB_FN Rounded erf(u32 a) {
    const u32 sign = a & 0x80000000u, absmax = a & 0x7fffffffu;
    const f64 x = __uint_as_float(absmax < 0x40800000u ? absmax : 0x40800000u);
    const f64 shifted = __fma_rn(x, 8.0, ROUNDER);
    const u32 i = (u32)__double2loint(shifted);
    const f64 c = __dmul_rn(__dadd_rn(shifted, -ROUNDER), 0.125);
    const f64 h = __dadd_rn(x, -c);
    f64 terms[11];
    terms[0] = ERF_AT[i][1];
    terms[1] = -__dmul_rn(c, terms[0]);
    _Pragma("unroll") for (u32 n = 1u; n < 10u; n++) {
        const f64 rest = __dmul_rn(terms[n - 1], -2.0 * n / ((n + 1.0) * (n + 2.0)));
        terms[n + 1] = __fma_rn(__dmul_rn(c, -2.0 / (n + 2.0)), terms[n], rest);
    }
    f64 sum = terms[10];
    _Pragma("unroll") for (u32 n = 10u; n-- > 0u;) sum = __fma_rn(sum, h, terms[n]);
    const Rounded y = rounded(__fma_rn(sum, h, ERF_AT[i][0]));
    return absmax > 0x7f800000u ? Rounded{0x7fc00000u, true} : Rounded{sign | y.word, y.sure};
}

}  // namespace binary64
}  // namespace tb

// Functions of the u32 arithmetic library (shaders/shared/) by the processor's own instructions. Patterns in, patterns out;
// every NaN is 7fc00000, whatever pattern the processor gives it.

namespace tb {
namespace native {

TB_FN f32 of(u32 a) { return __uint_as_float(a); }
TB_FN u32 pattern(f32 a) { return a != a ? 0x7fc00000u : __float_as_uint(a); }
TB_FN u32 f_add(u32 a, u32 b) { return pattern(__fadd_rn(of(a), of(b))); }
TB_FN u32 f_sub(u32 a, u32 b) { return pattern(__fsub_rn(of(a), of(b))); }
TB_FN u32 f_mul(u32 a, u32 b) { return pattern(__fmul_rn(of(a), of(b))); }
TB_FN u32 f_div(u32 a, u32 b) { return pattern(__fdiv_rn(of(a), of(b))); }
TB_FN u32 f_sqrt(u32 a) { return pattern(__fsqrt_rn(of(a))); }
TB_FN u32 f_lt(u32 a, u32 b) { return of(a) < of(b) ? 1u : 0u; }
TB_FN u32 f_from_u32(u32 a) { return __float_as_uint(__uint2float_rn(a)); }
TB_FN vec<u32, 2> u32_mul(u32 a, u32 b) { return vec<u32, 2>{{a * b, __umulhi(a, b)}}; }

}  // namespace native
}  // namespace tb

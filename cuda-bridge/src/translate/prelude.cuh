// What every translated kernel begins with: WGSL's types and operations in the part of C++ that NVRTC and a host's compiler
// share. Where C++ leaves a result open (signed overflow, long shifts, division by zero) WGSL does not, so the operations are
// functions here. CUDA's own names are built in with NVRTC; on a host the shim defines them.

typedef unsigned int u32;
typedef int i32;
typedef float f32;

#define TB_FN static __device__ __forceinline__
// Where a struct's members lie; NVRTC cannot say it, and lays structs out as the host does.
#ifdef __CUDACC_RTC__
#define TB_MEMBER_AT(type, member, place) static_assert(true, "")
#else
#define TB_MEMBER_AT(type, member, place) static_assert(__builtin_offsetof(type, member) == place, "layout")
#endif

namespace tb {

template <class T, u32 N> struct alignas(N == 3 ? alignof(T) : N * sizeof(T)) vec { T v[N]; };
template <class T, u32 N> struct arr { T v[N]; };
// An array element with the rest of its stride.
template <class T, u32 REST> struct cell { T value; unsigned char rest[REST]; };

// The nearest place that exists; a negative index is a great one.
TB_FN u32 bound(u32 index, u32 count) { return index < count ? index : count - 1u; }
TB_FN u32 bound(i32 index, u32 count) { return bound((u32)index, count); }

TB_FN u32 bits(u32 a) { return a; }
TB_FN u32 bits(i32 a) { return (u32)a; }
TB_FN u32 bits(f32 a) { return __float_as_uint(a); }

TB_FN u32 add(u32 a, u32 b) { return a + b; }
TB_FN u32 sub(u32 a, u32 b) { return a - b; }
TB_FN u32 mul(u32 a, u32 b) { return a * b; }
TB_FN u32 div(u32 a, u32 b) { return b == 0u ? a : a / b; }
TB_FN u32 mod(u32 a, u32 b) { return b == 0u ? 0u : a % b; }
TB_FN i32 add(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
TB_FN i32 sub(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
TB_FN i32 mul(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
// The quotient that does not exist, or does not fit, is the dividend.
TB_FN bool no_quotient(i32 a, i32 b) { return b == 0 || (b == -1 && (u32)a == 0x80000000u); }
TB_FN i32 div(i32 a, i32 b) { return no_quotient(a, b) ? a : a / b; }
TB_FN i32 mod(i32 a, i32 b) { return no_quotient(a, b) ? 0 : a % b; }
// One rounding each, never contracted.
TB_FN f32 add(f32 a, f32 b) { return __fadd_rn(a, b); }
TB_FN f32 sub(f32 a, f32 b) { return __fsub_rn(a, b); }
TB_FN f32 mul(f32 a, f32 b) { return __fmul_rn(a, b); }
TB_FN f32 div(f32 a, f32 b) { return __fdiv_rn(a, b); }
TB_FN f32 fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
TB_FN f32 sqrt(f32 a) { return __fsqrt_rn(a); }
TB_FN f32 floor(f32 a) { return ::floorf(a); }
TB_FN f32 ceil(f32 a) { return ::ceilf(a); }
TB_FN f32 trunc(f32 a) { return ::truncf(a); }
TB_FN f32 round(f32 a) { return ::rintf(a); }

TB_FN u32 shl(u32 a, u32 n) { return a << (n & 31u); }
TB_FN u32 shr(u32 a, u32 n) { return a >> (n & 31u); }
TB_FN i32 shl(i32 a, u32 n) { return (i32)((u32)a << (n & 31u)); }
TB_FN i32 shr(i32 a, u32 n) { return a >> (n & 31u); }
TB_FN u32 bit_and(u32 a, u32 b) { return a & b; }
TB_FN u32 bit_or(u32 a, u32 b) { return a | b; }
TB_FN u32 bit_xor(u32 a, u32 b) { return a ^ b; }
TB_FN u32 bit_not(u32 a) { return ~a; }
TB_FN i32 bit_and(i32 a, i32 b) { return a & b; }
TB_FN i32 bit_or(i32 a, i32 b) { return a | b; }
TB_FN i32 bit_xor(i32 a, i32 b) { return a ^ b; }
TB_FN i32 bit_not(i32 a) { return ~a; }
TB_FN bool bit_and(bool a, bool b) { return a && b; }
TB_FN bool bit_or(bool a, bool b) { return a || b; }
TB_FN bool bit_xor(bool a, bool b) { return a != b; }
TB_FN bool logical_not(bool a) { return !a; }
TB_FN i32 neg(i32 a) { return (i32)(0u - (u32)a); }
TB_FN f32 neg(f32 a) { return __uint_as_float(__float_as_uint(a) ^ 0x80000000u); }

template <class T> TB_FN bool eq(T a, T b) { return a == b; }
template <class T> TB_FN bool ne(T a, T b) { return a != b; }
template <class T> TB_FN bool lt(T a, T b) { return a < b; }
template <class T> TB_FN bool le(T a, T b) { return a <= b; }
template <class T> TB_FN bool gt(T a, T b) { return a > b; }
template <class T> TB_FN bool ge(T a, T b) { return a >= b; }

TB_FN u32 min(u32 a, u32 b) { return b < a ? b : a; }
TB_FN u32 max(u32 a, u32 b) { return a < b ? b : a; }
TB_FN i32 min(i32 a, i32 b) { return b < a ? b : a; }
TB_FN i32 max(i32 a, i32 b) { return a < b ? b : a; }
TB_FN f32 min(f32 a, f32 b) { return b < a ? b : a; }
TB_FN f32 max(f32 a, f32 b) { return a < b ? b : a; }
TB_FN u32 abs(u32 a) { return a; }
TB_FN i32 abs(i32 a) { return a < 0 ? neg(a) : a; }
TB_FN f32 abs(f32 a) { return __uint_as_float(__float_as_uint(a) & 0x7fffffffu); }
TB_FN i32 sign(i32 a) { return (a > 0) - (a < 0); }

TB_FN u32 count_leading_zeros(u32 a) { return (u32)__clz((i32)a); }
TB_FN u32 count_trailing_zeros(u32 a) { return a == 0u ? 32u : (u32)__ffs((i32)a) - 1u; }
TB_FN u32 count_one_bits(u32 a) { return (u32)__popc(a); }
TB_FN u32 reverse_bits(u32 a) { return __brev(a); }
TB_FN u32 first_trailing_bit(u32 a) { return (u32)__ffs((i32)a) - 1u; }
TB_FN u32 first_leading_bit(u32 a) { return 31u - (u32)__clz((i32)a); }
TB_FN i32 count_leading_zeros(i32 a) { return (i32)count_leading_zeros((u32)a); }
TB_FN i32 count_trailing_zeros(i32 a) { return (i32)count_trailing_zeros((u32)a); }
TB_FN i32 count_one_bits(i32 a) { return (i32)count_one_bits((u32)a); }
TB_FN i32 reverse_bits(i32 a) { return (i32)reverse_bits((u32)a); }
TB_FN i32 first_trailing_bit(i32 a) { return (i32)first_trailing_bit((u32)a); }
TB_FN i32 first_leading_bit(i32 a) { return (i32)first_leading_bit((u32)(a < 0 ? ~a : a)); }
TB_FN u32 extract_bits(u32 a, u32 offset, u32 count) {
    u32 o = min(offset, 32u), c = min(count, 32u - o);
    return c == 0u ? 0u : (a << (32u - c - o)) >> (32u - c);
}
TB_FN i32 extract_bits(i32 a, u32 offset, u32 count) {
    u32 o = min(offset, 32u), c = min(count, 32u - o);
    return c == 0u ? 0 : (i32)((u32)a << (32u - c - o)) >> (32u - c);
}
TB_FN u32 insert_bits(u32 a, u32 b, u32 offset, u32 count) {
    u32 o = min(offset, 32u), c = min(count, 32u - o);
    u32 mask = c == 0u ? 0u : (0xffffffffu >> (32u - c)) << o;
    return (a & ~mask) | (o == 32u ? 0u : (b << o) & mask);
}
TB_FN i32 insert_bits(i32 a, i32 b, u32 offset, u32 count) { return (i32)insert_bits((u32)a, (u32)b, offset, count); }

TB_FN u32 to_u32(u32 a) { return a; }
TB_FN u32 to_u32(i32 a) { return (u32)a; }
TB_FN u32 to_u32(bool a) { return a ? 1u : 0u; }
TB_FN i32 to_i32(u32 a) { return (i32)a; }
TB_FN i32 to_i32(i32 a) { return a; }
TB_FN i32 to_i32(bool a) { return a ? 1 : 0; }
// Towards zero; what lies outside becomes the nearest number that both types have, a NaN 0 or a number of that range.
TB_FN u32 to_u32(f32 a) { return __float2uint_rz(a > 4294967040.0f ? 4294967040.0f : a > 0.0f ? a : 0.0f); }
TB_FN i32 to_i32(f32 a) { return __float2int_rz(a > 2147483520.0f ? 2147483520.0f : a > -2147483648.0f ? a : -2147483648.0f); }
TB_FN f32 to_f32(u32 a) { return __uint2float_rn(a); }
TB_FN f32 to_f32(i32 a) { return __int2float_rn(a); }
TB_FN f32 to_f32(f32 a) { return a; }
TB_FN f32 to_f32(bool a) { return a ? 1.0f : 0.0f; }
TB_FN bool to_bool(u32 a) { return a != 0u; }
TB_FN bool to_bool(i32 a) { return a != 0; }
TB_FN bool to_bool(f32 a) { return a != 0.0f; }
TB_FN bool to_bool(bool a) { return a; }
template <class T> TB_FN u32 as_u32(T a) { return bits(a); }
template <class T> TB_FN i32 as_i32(T a) { return (i32)bits(a); }
template <class T> TB_FN f32 as_f32(T a) { return __uint_as_float(bits(a)); }

// Any operation on vectors, component by component.
#define TB_EACH(N) _Pragma("unroll") for (u32 i = 0u; i < N; i++)
#define TB_LIFT_1(name)                                                                   \
    template <class T, u32 N> TB_FN auto name(vec<T, N> a) -> vec<decltype(name(a.v[0])), N> { \
        vec<decltype(name(a.v[0])), N> r;                                                 \
        TB_EACH(N) r.v[i] = name(a.v[i]);                                                 \
        return r;                                                                         \
    }
#define TB_LIFT_2(name)                                                                                      \
    template <class T, class U, u32 N>                                                                       \
    TB_FN auto name(vec<T, N> a, vec<U, N> b) -> vec<decltype(name(a.v[0], b.v[0])), N> {                    \
        vec<decltype(name(a.v[0], b.v[0])), N> r;                                                            \
        TB_EACH(N) r.v[i] = name(a.v[i], b.v[i]);                                                            \
        return r;                                                                                            \
    }
TB_LIFT_2(add) TB_LIFT_2(sub) TB_LIFT_2(mul) TB_LIFT_2(div) TB_LIFT_2(mod) TB_LIFT_2(shl) TB_LIFT_2(shr)
TB_LIFT_2(bit_and) TB_LIFT_2(bit_or) TB_LIFT_2(bit_xor) TB_LIFT_2(min) TB_LIFT_2(max)
TB_LIFT_1(bit_not) TB_LIFT_1(logical_not) TB_LIFT_1(neg) TB_LIFT_1(abs) TB_LIFT_1(sign) TB_LIFT_1(sqrt) TB_LIFT_1(floor)
TB_LIFT_1(ceil) TB_LIFT_1(trunc) TB_LIFT_1(round) TB_LIFT_1(count_leading_zeros) TB_LIFT_1(count_trailing_zeros)
TB_LIFT_1(count_one_bits) TB_LIFT_1(reverse_bits) TB_LIFT_1(first_trailing_bit) TB_LIFT_1(first_leading_bit)
TB_LIFT_1(to_u32) TB_LIFT_1(to_i32) TB_LIFT_1(to_f32) TB_LIFT_1(to_bool)
#define TB_LIFT_COMPARISON(name)                                                              \
    template <class T, u32 N> TB_FN vec<bool, N> name(vec<T, N> a, vec<T, N> b) {            \
        vec<bool, N> r;                                                                       \
        TB_EACH(N) r.v[i] = name(a.v[i], b.v[i]);                                             \
        return r;                                                                             \
    }
TB_LIFT_COMPARISON(eq) TB_LIFT_COMPARISON(ne) TB_LIFT_COMPARISON(lt) TB_LIFT_COMPARISON(le) TB_LIFT_COMPARISON(gt)
TB_LIFT_COMPARISON(ge)
#define TB_LIFT_CAST(name, R)                                                                 \
    template <class T, u32 N> TB_FN vec<R, N> name(vec<T, N> a) {                            \
        vec<R, N> r;                                                                          \
        TB_EACH(N) r.v[i] = (R)name(a.v[i]);                                                  \
        return r;                                                                             \
    }
TB_LIFT_CAST(as_u32, u32) TB_LIFT_CAST(as_i32, i32) TB_LIFT_CAST(as_f32, f32)

template <class T, u32 N> TB_FN vec<T, N> splat(T a) {
    vec<T, N> r;
    TB_EACH(N) r.v[i] = a;
    return r;
}
template <class T, u32 N> TB_FN vec<T, N> mul(vec<T, N> a, T b) { return mul(a, splat<T, N>(b)); }
template <class T, u32 N> TB_FN vec<T, N> mul(T a, vec<T, N> b) { return mul(splat<T, N>(a), b); }
template <class T, u32 N> TB_FN vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    vec<T, N> r;
    TB_EACH(N) r.v[i] = fma(a.v[i], b.v[i], c.v[i]);
    return r;
}
template <class T, u32 N> TB_FN vec<T, N> extract_bits(vec<T, N> a, u32 offset, u32 count) {
    vec<T, N> r;
    TB_EACH(N) r.v[i] = extract_bits(a.v[i], offset, count);
    return r;
}
template <class T, u32 N> TB_FN vec<T, N> insert_bits(vec<T, N> a, vec<T, N> b, u32 offset, u32 count) {
    vec<T, N> r;
    TB_EACH(N) r.v[i] = insert_bits(a.v[i], b.v[i], offset, count);
    return r;
}
template <class T> TB_FN T clamp(T a, T low, T high) { return min(max(a, low), high); }
template <class T, u32 N> TB_FN T dot(vec<T, N> a, vec<T, N> b) {
    T r = mul(a.v[0], b.v[0]);
    _Pragma("unroll") for (u32 i = 1u; i < N; i++) r = add(r, mul(a.v[i], b.v[i]));
    return r;
}
template <class T> TB_FN T select(bool c, T accept, T reject) { return c ? accept : reject; }
template <class T, u32 N> TB_FN vec<T, N> select(vec<bool, N> c, vec<T, N> accept, vec<T, N> reject) {
    vec<T, N> r;
    TB_EACH(N) r.v[i] = c.v[i] ? accept.v[i] : reject.v[i];
    return r;
}
TB_FN bool all(bool a) { return a; }
TB_FN bool any(bool a) { return a; }
template <u32 N> TB_FN bool all(vec<bool, N> a) {
    bool r = true;
    TB_EACH(N) r = r && a.v[i];
    return r;
}
template <u32 N> TB_FN bool any(vec<bool, N> a) {
    bool r = false;
    TB_EACH(N) r = r || a.v[i];
    return r;
}

TB_FN i32 dot_4x_i8(u32 a, u32 b) { return __dp4a((i32)a, (i32)b, 0); }
TB_FN u32 dot_4x_u8(u32 a, u32 b) { return __dp4a(a, b, 0u); }
TB_FN vec<i32, 4> unpack_4x_i8(u32 a) {
    return vec<i32, 4>{{(i32)(a << 24) >> 24, (i32)(a << 16) >> 24, (i32)(a << 8) >> 24, (i32)a >> 24}};
}
TB_FN vec<u32, 4> unpack_4x_u8(u32 a) { return vec<u32, 4>{{a & 255u, (a >> 8) & 255u, (a >> 16) & 255u, a >> 24}}; }
template <class T> TB_FN u32 pack_4x_8(vec<T, 4> a) {
    return ((u32)a.v[0] & 255u) | ((u32)a.v[1] & 255u) << 8 | ((u32)a.v[2] & 255u) << 16 | (u32)a.v[3] << 24;
}
TB_FN u32 pack_4x_i8_clamp(vec<i32, 4> a) {
    TB_EACH(4) a.v[i] = clamp(a.v[i], -128, 127);
    return pack_4x_8(a);
}
TB_FN u32 pack_4x_u8_clamp(vec<u32, 4> a) {
    TB_EACH(4) a.v[i] = min(a.v[i], 255u);
    return pack_4x_8(a);
}

TB_FN vec<u32, 3> three(u32 x, u32 y, u32 z) { return vec<u32, 3>{{x, y, z}}; }

// Workgroup memory begins as zeros; a barrier follows, before which nothing else touches it.
template <class T> TB_FN void zero(T& variable, u32 index, u32 invocations) {
    if (sizeof(T) % 4 == 0 && alignof(T) % 4 == 0) {
        u32* at = (u32*)&variable;
        for (u32 i = index; i < (u32)(sizeof(T) / 4); i += invocations) at[i] = 0u;
    } else {
        unsigned char* at = (unsigned char*)&variable;
        for (u32 i = index; i < (u32)sizeof(T); i += invocations) at[i] = 0;
    }
}

}  // namespace tb

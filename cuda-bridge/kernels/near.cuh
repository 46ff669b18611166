// Which results of a native product may lie near a boundary of their grid: what crates/record/src/rounding/near_tie.rs and norms.rs of the root
// crate find on the host, operation by operation, so that both find the same. No verifier runs this: what is found decides what a
// trainer logs, and the host tests each again in binary64.

typedef unsigned int u32;
typedef int i32;

#if defined(ROW_NORMS)

__device__ __forceinline__ double square(u32 x) {
    const double value = (double)__uint_as_float(x);
    return value * value;
}

// The 2-norm of each row of a view, a little up. p: batch1, rows, K, offset, four strides, rows of all samples, where the norms begin
// in `sides`, whether to begin a count there. Sixteen threads share a row: of sixteen neighbours in K each has one.
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, const u32* input, u32, u32* sides, u32) {
    __shared__ double lanes[256];
    // Neighbouring threads read neighbouring words, whichever way those lie.
    const bool along_k = p[7] == 1u;
    const u32 thread = threadIdx.x, of_block = along_k ? thread / 16u : thread % 16u, lane = along_k ? thread % 16u : thread / 16u;
    const u32 row = blockIdx.x * 16u + of_block;
    double sum = 0.0, rest = 0.0;
    if (row < p[8]) {
        const u32 sample = row / p[1], whole = p[2] / 16u * 16u;
        const u32* from = input + (p[3] + sample / p[0] * p[4] + sample % p[0] * p[5] + row % p[1] * p[6]);
        for (u32 i = lane; i < whole; i += 16u) sum += square(from[i * p[7]]);
        if (lane == 0u) for (u32 i = whole; i < p[2]; i++) rest += square(from[i * p[7]]);
    }
    lanes[of_block * 16u + lane] = sum;
    __syncthreads();
    if (row < p[8] && lane == 0u) {
        double total = 0.0;
        for (u32 i = 0; i < 16u; i++) total += lanes[of_block * 16u + i];
        sides[p[9] + row] = __float_as_uint((float)(sqrt(total + rest) * 1.000001));
    }
    if (p[10] != 0u && row == 0u && lane == 0u) sides[0] = 0u;
}

#else

__device__ __forceinline__ i32 clamp(i32 x, i32 least, i32 most) { return x < least ? least : x > most ? most : x; }
__device__ __forceinline__ float absmax_of(u32 x) { return __uint_as_float(x & 0x7fffffffu); }
__device__ __forceinline__ i32 field(u32 absmax) { return clamp((i32)(absmax >> 23), 1, 511); }
__device__ __forceinline__ float power(i32 biased) { return __uint_as_float((u32)biased << 23); }

// Whether x lies within the tolerance, or half a unit of binary32, of a boundary of its own step, or is too extreme to tell.
__device__ __forceinline__ bool may_be_near(u32 x, i32 floor, i32 bits, float tolerance) {
    const i32 biased = (i32)(x >> 23 & 0xffu), normal = biased < 1 ? 1 : biased;
    const u32 mantissa = (x & 0x007fffffu) | (biased != 0 ? 1u << 23 : 0u);
    const i32 coarse = floor + 150 - normal, dropped = coarse < 32 - bits ? 32 - bits : coarse;
    const u32 step = 1u << (u32)clamp(dropped, 0, 26), half = step >> 1, rest = mantissa & (step - 1u);
    const float distance = __uint2float_rn(rest < half ? half - rest : rest - half);
    const float reach = __fadd_rn(__fmul_rn(tolerance, power(clamp(277 - normal, 1, 254))), 1.0f);
    const float quarter = floor > -124 ? power(floor + 125) : 0.0f;
    const bool above_zero = __fadd_rn(absmax_of(x), tolerance) > quarter;
    const bool near = distance <= reach || reach >= __uint2float_rn(half >> 1);
    return biased == 255 || (biased < 24 || dropped > 26 ? above_zero : near);
}

// The same for binary32 itself.
__device__ __forceinline__ bool may_be_near_binary32(u32 x, u32 rest, float tolerance) {
    const i32 biased = (i32)(x >> 23 & 0xffu);
    const float half = __fmul_rn(power(biased < 25 ? 1 : biased - 24), 0.999999f);
    const float least = (x & 0x007fffffu) == 0u ? __fmul_rn(half, 0.5f) : half;
    return biased < 26 || biased == 255 || __fadd_rn(absmax_of(rest), tolerance) >= least;
}

#if defined(ROUND)
// The bits of |x| towards zero if the rest says that x was rounded away from there, and its last bit 1 if anything is left.
__device__ __forceinline__ u32 to_odd(u32 x, u32 absmax, u32 rest) {
    if ((rest & 0x7fffffffu) == 0u || absmax >= 0x7f800000u) return absmax;
    const u32 truncated = x >> 31 == rest >> 31 ? absmax : absmax - 1u;
    return truncated | 1u;
}

// What round_to_grid.v1 (crates/contract/src/program/logged.rs of the root crate) makes of x, operation by operation. `floor` is the grid's exponent if
// it is `floored`.
__device__ __forceinline__ u32 rounded_to_grid(u32 x, u32 rest, u32 bits, bool floored, i32 floor) {
    u32 absmax = x & 0x7fffffffu;
    if (bits > 16u && bits < 32u) absmax = to_odd(x, absmax, rest);
    u32 rounded = absmax;
    const u32 dropped = 32u - bits;
    if (dropped != 0u) {
        const u32 odd = absmax >> dropped & 1u;
        rounded = (absmax + ((1u << (dropped - 1u)) - 1u) + odd) & ~((1u << dropped) - 1u);
    }
    if (floored) {
        const i32 own = (i32)(absmax >> 23) < 1 ? 1 : (i32)(absmax >> 23);
        const float c = power(floor + 150);
        if (own + (i32)dropped < floor + 150) rounded = __float_as_uint(__fsub_rn(__fadd_rn(__uint_as_float(absmax), c), c));
    }
    return rounded == 0u ? 0u : rounded + (x & 0x80000000u);
}
#define ROUNDED , u32* rounded, u32
#else
#define ROUNDED
#endif

// p: elements of the product, M, N, bits of the grid, whether it has a floor, the floor's exponent but for both fields, the least
// one, the tolerance for the norms and for the result (binary32), whether the product has two parts, where the norms of rows and of
// columns begin in `sides`, how many places `found` has. What is found is appended to `found` in any order, as place, result and
// rest; `sides` counts all of it, what there is no place for too. With ROUND every result's value on the grid is written as well.
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, const u32* output, u32, const u32* absmaxes_a, u32,
                                                         const u32* absmaxes_b, u32, u32* sides, u32, u32* found, u32 ROUNDED) {
    const u32 place = blockIdx.x * 256u + threadIdx.x;
    if (place >= p[0]) return;
    const u32 row = place / p[2], column = row / p[1] * p[2] + place % p[2];
    const u32 x = output[place], rest = p[9] != 0u ? output[p[0] + place] : 0u;
    const float scale = __fmul_rn(__fmul_rn(__uint_as_float(p[7]), __uint_as_float(sides[p[10] + row])), 1.000001f);
    const float of_norms = __fmul_rn(scale, __uint_as_float(sides[p[11] + column]));
    const float tolerance = __fadd_rn(of_norms, __fmul_rn(__uint_as_float(p[8]), absmax_of(x)));
    i32 floor = (i32)p[6];
    if (p[4] != 0u) floor = clamp(field(absmaxes_b[column]) + (field(absmaxes_a[row]) + (i32)p[5]), (i32)p[6], 104);
#if defined(ROUND)
    rounded[place] = rounded_to_grid(x, rest, p[3], p[4] != 0u, floor);
#endif
    const bool near = p[3] == 32u ? may_be_near_binary32(x, rest, tolerance) : may_be_near(x, floor, (i32)p[3], tolerance);
    if (!near) return;
    const u32 at = atomicAdd(&sides[0], 1u);
    if (at >= p[12]) return;
    found[3u * at] = place;
    found[3u * at + 1u] = x;
    found[3u * at + 2u] = rest;
}

#endif

// What stands between the engine's tensors and a library's matrix product: operands in its format, and its binary64 results as two
// binary32 parts. src/native.rs puts the type OPERAND (of the library's elements) and the name KERNEL before this text.
// None of it is part of a verifier: a trainer's native kernels may round as they like.

typedef unsigned int u32;

#if defined(PACK)

// binary32 to bfloat16, to nearest, ties to even: nothing is rounded where the operand is bfloat16 already, as the logged
// profile's are.
#ifdef BFLOAT16
__device__ __forceinline__ OPERAND operand_of(u32 x) {
    if ((x & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (OPERAND)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}
#else
__device__ __forceinline__ OPERAND operand_of(u32 x) { return (OPERAND)__uint_as_float(x); }
#endif

// p: four dimensions, their strides in the input, elements of the output, offset of the first in the input.
// The output is the view's elements without gaps.
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, const u32* input, u32, OPERAND* output, u32) {
    const u32 i = blockIdx.x * 256u + threadIdx.x;
    if (i >= p[8]) return;
    u32 at = p[9], rest = i;
    // Most views are one run of elements, or rows of runs: divisions are for the others.
    int d = 3;
    for (; d > 0 && rest >= p[d]; d--) {
        at += rest % p[d] * p[4 + d];
        rest /= p[d];
    }
    output[i] = operand_of(input[at + rest * p[4 + d]]);
}

#else

// p: elements. The output is each nearest binary32, then each rest.
extern "C" __global__ void __launch_bounds__(256) KERNEL(const u32* p, const double* input, u32, float* output, u32) {
    const u32 i = blockIdx.x * 256u + threadIdx.x;
    if (i >= p[0]) return;
    const double sum = input[i];
    const float high = (float)sum;
    output[i] = high;
    output[p[0] + i] = (float)(sum - (double)high);
}

#endif

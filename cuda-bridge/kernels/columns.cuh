// A product whose left operand is digitised on its way to the tensor cores, by one kernel: c[j, n] = sum over i of x[i, j] b[n, i], with a
// scale group for each column of x. These are the gradients p^T dout and ds^T q of attention: x is as large as the square of the positions,
// b has a head's few channels. Computed one after another, x is read twice, and its digits are written once and read once for every 128
// columns of c; here x is read twice, the second time from L2 as far as that holds it. src/columns.rs puts translate/prelude.cuh, the
// WGSL's functions, warp.cuh, scale_back.cuh, digits.cuh and fragments.cuh before this text, with
//   DIGITS, DIGITS_B     digits of the operands, 1..=4
//   TILES                columns of c that a warp computes, in eighths
//
// A warp takes 16 columns of x: a lane's 16 places of two of them are read from memory straight into the registers where fragments of A have
// to be, eight lanes 32 bytes in a row, which is what memory gives at least. They are on their way while the 64 places before are
// multiplied. Where all of these are zeros, as beyond a causal mask, nothing is. Sums of 16 columns by a head's 64 channels, with three digits
// by two, would be half of a warp's registers; so two warps of a block, or four, take the same columns of x and share those of c: the
// second reads from L1 what the first has read, and more warps of an SM have reads under way.

constexpr u32 WARPS = 4, THREADS = 32 * WARPS;
constexpr u32 SUMS = DIGITS + DIGITS_B - 1;
// Blocks of an SM: with three a thread has 168 registers, which is enough up to four weights, if b has no more digits than x.
constexpr u32 AT_ONCE = SUMS <= 4 && DIGITS_B <= DIGITS ? 3 : 1;
constexpr i32 BITS = 8 * (i32)(DIGITS + DIGITS_B) - 4;

// A lane's places of a step: of its column and the one 8 on.
struct Places {
    u32 x[2][16];
};

// p: columns of x of a sample, K, columns of c, words of a row of b's digits, the stride of K, then the view: dims[1], strides of samples, the
// offset, and how many warps share columns of x: 1, 2 or 4. Blocks are a tile of columns of x, and a sample.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
KERNEL(const u32* __restrict__ p, const u32* __restrict__ input, u32 input_n, const u32* __restrict__ b, u32 b_n,
       const u32* __restrict__ absmaxes_b, u32 absmaxes_b_n, u32* __restrict__ output, u32 output_n) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 rows = p[0], k = p[1], columns = p[2], words = p[3], stride = p[4], sample = blockIdx.y;
    const u32 sharing = tb::max(p[9], 1u), first = (blockIdx.x * (WARPS / sharing) + warp / sharing) * 16u, second = tb::max(p[5], 1u);
    const u32* from = input + (p[8] + sample / second * p[6] + sample % second * p[7]);

    // The columns' absmaxes, 16 lanes side by side.
    u32 most = 0u;
    {
        const u32* at = from + tb::min(first + lane % 16u, rows - 1u);
        _Pragma("unroll 8") for (u32 i = lane / 16u; i < k; i += 2u) {
            TB_EXPECT(at + (size_t)i * stride < input + input_n);
            most = tb::max(most, at[(size_t)i * stride] & 0x7fffffffu);
        }
        most = tb::max(most, TB_SHUFFLE_XOR(most, 16u));
    }
    const u32 absmaxes[2] = {TB_SHUFFLE_FROM(most, g), TB_SHUFFLE_FROM(most, g + 8u)};
    const Scale scales[2] = {Scale(absmaxes[0]), Scale(absmaxes[1])};

    const u32* at[2] = {from + tb::min(first + g, rows - 1u), from + tb::min(first + g + 8u, rows - 1u)};
    const auto load = [&](Places& places, u32 step) {
        _Pragma("unroll") for (u32 half = 0; half < 2; half++)
            _Pragma("unroll") for (u32 i = 0; i < 16; i++) {
                const u32 place = step * 64u + t * 16u + i;
                const u32* own = at[half] + (size_t)place * stride;
                TB_EXPECT(place >= k || own < input + input_n);
                places.x[half][i] = place < k ? *own : 0u;
            }
    };
    const u32 steps = (k + 63u) / 64u, column = warp % sharing * (TILES * 8u);
    const size_t plane = (size_t)gridDim.y * columns * words;
    const u32* lines = b + (size_t)sample * columns * words;
    i32 sums[TILES][SUMS][4];
    _Pragma("unroll") for (u32 tile = 0; tile < TILES; tile++) clear(sums[tile]);
    Places next;
    load(next, 0u);
    _Pragma("unroll 1") for (u32 step = 0; step < steps; step++) {
        FragmentA a[DIGITS];
        u32 any = 0u;
        _Pragma("unroll") for (u32 half = 0; half < 2; half++)
            _Pragma("unroll") for (u32 word = 0; word < 4; word++) {
                const u32 four[4] = {next.x[half][4 * word], next.x[half][4 * word + 1], next.x[half][4 * word + 2], next.x[half][4 * word + 3]};
                u32 planes[4];
                planes_of(scales[half], four, planes);
                _Pragma("unroll") for (u32 d = 0; d < DIGITS; d++) a[d].rows[half].v[word] = planes[d], any |= planes[d];
            }
        if (step + 1u < steps) load(next, step + 1u);
        if (!TB_ANY(any)) continue;
        const u32 word = step * 16u + t * 4u;
        _Pragma("unroll") for (u32 tile = 0; tile < TILES; tile++) {
            const u32* line = lines + (size_t)tb::min(column + tile * 8u + g, columns - 1u) * words + word;
            // Else all tiles' loads come first, and there are no registers for that.
            TB_FORGET_POINTER(line);
            Four of_b[DIGITS_B];
            _Pragma("unroll") for (u32 e = 0; e < DIGITS_B; e++) {
                TB_EXPECT(word >= words || line + e * plane + 4 <= b + b_n);
                of_b[e] = load_16(line + e * plane, word < words);
            }
            multiply(sums[tile], a, of_b);
        }
    }

    _Pragma("unroll") for (u32 tile = 0; tile < TILES; tile++)
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) {
            const u32 row = first + g + i / 2u * 8u, own = column + tile * 8u + 2u * t + i % 2u;
            if (row >= rows || own >= columns) continue;
            const u32 absmax_b = absmaxes_b[sample * columns + own];
            const size_t place = ((size_t)sample * rows + row) * columns + own;
            TB_EXPECT(place < output_n);
            output[place] = rounded(sums[tile], i, absmaxes[i / 2], absmax_b, BITS);
        }
    (void)input_n, (void)b_n, (void)absmaxes_b_n, (void)output_n;
}

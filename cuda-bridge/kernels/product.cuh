// product.v1 on int8 tensor cores: what shaders/product.wgsl computes, from the same buffers. Only the multiplication is
// written here. The functions that turn an exact sum into binary32 are the WGSL's own, translated; src/tensor_core.rs puts them
// before this text, with the constants
//   DIGITS_A, DIGITS_B   digits of the operands, 1..=4
//   WIDE                 whether an exact sum may need more than 64 bits
//   LONG                 whether K times the pairs of a weight times 2^14 may reach 2^31
//   NATIVE               whether ordinary results are rounded by the processor's own conversion
//   WARPS_M, WARPS_N     how a block's warps divide its tile
//   TILES_M, TILES_N     a warp's part of it, in m16n8 fragments
//   STAGES               steps along K that are on their way or in use at a time
//
// Digits d of A and e of B have weight 256^(d + e), so an output has SUMS = DIGITS_A + DIGITS_B - 1 sums, all of which stay in
// registers from the first place of K to the last: a fragment of A meets every digit of B while it is there.
// |digit| <= 128, so a product is at most 2^14 and a sum over K places of p pairs at most p K 2^14. Integer sums have no
// order: bits depend neither on the tile nor on the order of K.
//
// Intensity. A step of 32 places moves 32 (DIGITS_A ROWS + DIGITS_B COLUMNS) bytes from L2 for 32 DIGITS_A DIGITS_B ROWS
// COLUMNS products: with d = 2 and a tile of 128 x 128, 128 products a byte. An SM of compute capability 9.0 has 4096 of them a
// clock by the data sheet (2048 with 8.0), so such a step takes at least 512 clocks and 32 bytes a clock, about what L2 gives
// each SM: the more digits, the further from that bound. From shared memory a warp of 64 x 32 loads 6 KB a step for 64
// instructions, 48 clocks of the SM's 128 bytes for 64. So the bound to expect for large K is the rate of mma.sync, which on
// 9.0 is known to stay well below that of wgmma; with small K it is the way back, which is why that has a short path.

constexpr u32 SUMS = DIGITS_A + DIGITS_B - 1;
// With LONG one more, for what carries leave.
constexpr u32 PLANES = SUMS + (LONG ? 1u : 0u);
constexpr u32 ROWS = WARPS_M * TILES_M * 16, COLUMNS = WARPS_N * TILES_N * 8;
constexpr u32 WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS;

// A step takes 32 bytes of every row of every digit plane: two chunks of 16.
constexpr u32 STEP = 32, CHUNK = 16;
constexpr u32 PLANE_A = ROWS * STEP, PLANE_B = COLUMNS * STEP;
constexpr u32 STAGE = DIGITS_A * PLANE_A + DIGITS_B * PLANE_B;
// Words of K in a step, and between carries: 4 pairs * 2^14 * 2^14 places, and what a carry left, stay below 2^31.
constexpr u32 WORDS = STEP / 4, WORDS_OF_CARRY = (1u << 14) / 4;

// On the way back each warp passes SLAB columns of 16 rows at a time through shared memory, so that a row's outputs are
// stored by neighbouring lanes and the code that rounds is there once for each slab, not for each register.
constexpr u32 WARP_COLUMNS = TILES_N * 8;
constexpr u32 SLAB = WIDE || WARP_COLUMNS % 32 != 0 ? 16 : 32;
constexpr u32 SLABS = WARP_COLUMNS / SLAB;
static_assert(WARP_COLUMNS % 16 == 0, "fragments of B come in pairs");

// The padding puts neighbouring rows into different halves of the banks.
constexpr u32 SLAB_STRIDE = SLAB + 64 / (u32)sizeof(Total);
struct Slab {
    Total totals[16 * SLAB_STRIDE];
    i32 scales[16];
};

constexpr u32 TILE_BYTES = STAGES * STAGE, SLAB_BYTES = WARPS * (u32)sizeof(Slab);
struct alignas(128) Shared {
    unsigned char bytes[TILE_BYTES > SLAB_BYTES ? TILE_BYTES : SLAB_BYTES];
};
static_assert(sizeof(Shared) <= 48 * 1024, "static shared memory");

// Where chunk `half` of a row lies in its plane's tile. The 8 rows of a matrix that ldmatrix reads are 256 bytes apart from
// first to last, so a row's two chunks change places every four rows: then the 8 chunks lie in 8 different groups of four
// banks. Copies write whole lines of 128 bytes, in any case without conflict.
TB_FN u32 swizzle(u32 row, u32 half) { return row * STEP + ((half ^ (row >> 2 & 1u)) * CHUNK); }

// A block's share of the product, and which tile of the output that is. In launch order blocks would go along whole rows of
// tiles, and a wave of some hundred of them would read nearly all of B. Here eight rows of tiles are walked together, column by
// column, so a wave is closer to a square and its operands to the least that L2 must hold.
constexpr u32 RASTER = 8;
struct Work {
    u32 m, n, words, blocks, bits;
    // The block of K, the sample, and the tile's first row and column.
    u32 block, sample, row, column;

    // `p` has product.wgsl's words; `zero` is 0.
    __device__ __forceinline__ Work(const u32* p, u32 zero) {
        const u32 batch = tb::max(p[0], 1u), product = p[7] + blockIdx.z;
        m = p[1], n = p[2], words = p[3], blocks = p[4], bits = p[6];
        block = product / batch, sample = product % batch;
        u32 index = blockIdx.y * gridDim.x + blockIdx.x + zero, wide = RASTER * gridDim.x;
        u32 first = index / wide * RASTER, rest = index % wide;
        u32 height = tb::min(gridDim.y - first, RASTER);
        row = (first + rest % height) * ROWS;
        column = rest / height * COLUMNS;
    }
};

// What a thread copies of one operand: of each plane the chunks at its own place, 128 rows apart where a plane has more
// chunks than there are threads; where it has fewer, the threads take several planes at once.
template <u32 DIGITS, u32 LINES> struct Source {
    static constexpr u32 CHUNKS = LINES * (STEP / CHUNK);
    static constexpr u32 PARTS = CHUNKS > THREADS ? CHUNKS / THREADS : 1;
    static constexpr u32 AT_ONCE = CHUNKS < THREADS ? THREADS / CHUNKS : 1;
    static_assert(CHUNKS % THREADS == 0 || THREADS % CHUNKS == 0, "threads divide a plane evenly");
    static_assert(THREADS / 2 % 8 == 0, "rows that far apart are swizzled alike");

    const u32* from[PARTS];
    size_t plane;  // words of a digit plane
    TB_IF_SHIM(const u32* buffer; size_t size;)

    // `line` is the first of the tile's lines, of `lines` of a sample. Lines beyond the last are read as the last: what they
    // give is never stored, and so there is nothing to ask in the loop.
    __device__ __forceinline__ Source(const u32* operand, u32 count, u32 batch, u32 sample, u32 line, u32 lines, u32 words) {
        const u32 digit = threadIdx.x / CHUNKS, row = threadIdx.x % CHUNKS / 2, half = threadIdx.x & 1u;
        plane = (size_t)batch * lines * words;
        _Pragma("unroll") for (u32 i = 0; i < PARTS; i++) {
            size_t at = (size_t)sample * lines + tb::min(line + row + i * (THREADS / 2), lines - 1u);
            from[i] = operand + (digit * plane + at * words + half * 4u);
        }
        TB_IF_SHIM(buffer = operand; size = count;)
        (void)count;
    }

    // Starts the copies of the step whose words begin at `k`, up to `end` at most. Rows are whole chunks, and so are the blocks
    // of K, so a chunk is inside or it is not.
    __device__ __forceinline__ void copy(warp::Address stage, u32 k, u32 end) const {
        // The thread's digit among those at once and its place in a stage are computed for each step: registers are dearer.
        u32 thread = threadIdx.x;
        TB_FORGET(thread);
        const u32 digit = thread / CHUNKS, own = digit * LINES * STEP + swizzle(thread % CHUNKS / 2, thread & 1u);
        const bool inside = k + (thread & 1u) * 4u < end;
        _Pragma("unroll") for (u32 d = 0; d < DIGITS; d += AT_ONCE) {
            if (d + AT_ONCE > DIGITS && d + digit >= DIGITS) break;
            _Pragma("unroll") for (u32 i = 0; i < PARTS; i++) {
                const u32* at = from[i] + (d * plane + k);
                TB_EXPECT(!inside || (at >= buffer && at + 4 <= buffer + size));
                warp::copy_16(stage + own + d * (LINES * STEP) + i * (THREADS / 2 * STEP), at, inside);
            }
        }
    }
};

// A warp's sums, by weight: [plane][fragment row][fragment column].
typedef i32 Sums[PLANES][TILES_M][TILES_N][4];

// A warp's operands of a step: B's fragments for all of its columns, A's for one row of fragments at a time, since SUMS times
// TILES_M TILES_N fragments of sums leave no room for both.
struct Operands {
    u32 a[DIGITS_A][4], b[DIGITS_B][TILES_N / 2][4];

    __device__ __forceinline__ void load_b(warp::Address from) {
        _Pragma("unroll") for (u32 e = 0; e < DIGITS_B; e++)
            _Pragma("unroll") for (u32 n = 0; n < TILES_N / 2; n++)
                TB_LOAD_MATRICES(b[e][n], from + (e * PLANE_B + n * 16 * STEP));
    }
    __device__ __forceinline__ void load_a(warp::Address from, u32 m) {
        _Pragma("unroll") for (u32 d = 0; d < DIGITS_A; d++) TB_LOAD_MATRICES(a[d], from + (d * PLANE_A + m * 16 * STEP));
    }
    // Neighbouring instructions add to different sums, so none waits for the one before.
    __device__ __forceinline__ void multiply(Sums& sums, u32 m) const {
        _Pragma("unroll") for (u32 d = 0; d < DIGITS_A; d++)
            _Pragma("unroll") for (u32 e = 0; e < DIGITS_B; e++)
                _Pragma("unroll") for (u32 n = 0; n < TILES_N; n++)
                    TB_MULTIPLY(sums[d + e][m][n], a[d], b[e][n / 2][n % 2 * 2], b[e][n / 2][n % 2 * 2 + 1]);
    }
};

#if LONG
// Carries all but the low 8 bits of each sum to the next weight. The value stays; the sums have room again. The highest
// weight's word takes what leaves: |q| <= 2^(8d - 2) = 64 * 256^(d - 1), so in units of 256^SUMS a place of K gives at most
// 64 * 64 / 256 = 16, and an i32 has room for K below 2^25 four times over.
TB_FN void carry(Sums& sums) {
    _Pragma("unroll") for (u32 s = 0; s < SUMS; s++)
        _Pragma("unroll") for (u32 i = 0; i < TILES_M * TILES_N * 4; i++) {
            i32& low = sums[s][i / (TILES_N * 4)][i / 4 % TILES_N][i % 4];
            i32& high = sums[s + 1][i / (TILES_N * 4)][i / 4 % TILES_N][i % 4];
            high += low >> 8;
            low &= 255;
        }
}
#endif

// The sums of weights FIRST .. FIRST + 3 as one integer in units of the first, modulo 2^64.
template <u32 FIRST> TB_FN unsigned long long gather(const Sums& sums, u32 m, u32 n, u32 i, u32 end) {
    unsigned long long value = 0;
    _Pragma("unroll") for (u32 s = FIRST; s < end; s++) {
        i32 sum = sums[s][m][n][i];
        // Else all sums are widened at once when the loop ends, and there are no registers for that.
        TB_FORGET(sum);
        value += (unsigned long long)(long long)sum << (8u * (s - FIRST));
    }
    return value;
}

// An output's exact sum.
TB_FN Total total_of(const Sums& sums, u32 m, u32 n, u32 i) {
#if WIDE
    unsigned long long low = gather<0>(sums, m, n, i, PLANES < 4 ? PLANES : 4), high = gather<4>(sums, m, n, i, PLANES);
    u32 fill_low = (u32)((long long)low >> 63), fill_high = (u32)((long long)high >> 63);
    return wgsl_u128_add(Total{{(u32)low, (u32)(low >> 32), fill_low, fill_low}}, Total{{0u, (u32)high, (u32)(high >> 32), fill_high}});
#else
    return (Total)gather<0>(sums, m, n, i, PLANES);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
KERNEL(const u32* __restrict__ p, const u32* __restrict__ a, u32 a_n, const u32* __restrict__ absmaxes_a, u32 absmaxes_a_n,
       const u32* __restrict__ b, u32 b_n, const u32* __restrict__ absmaxes_b, u32 absmaxes_b_n,
       u32* __restrict__ output, u32 output_n) {
    __shared__ Shared shared;
    const u32 lane = threadIdx.x % 32, index = threadIdx.x / 32;
    const u32 warp_row = index / WARPS_N * (TILES_M * 16), warp_column = index % WARPS_N * WARP_COLUMNS;
    const warp::Address tiles = warp::address(shared.bytes);
    // Matrices 0 to 3 of a fragment of A are rows 0 and 8 of its first chunk, then of its second; of a pair of B's the two
    // chunks of the first eight columns, then of the others.
    const u32 from_a = warp_row * STEP + swizzle(lane % 16, lane / 16);
    const u32 from_b = DIGITS_A * PLANE_A + warp_column * STEP + swizzle(lane % 8 + lane / 16 * 8, lane / 8 % 2);

    Sums sums;
    _Pragma("unroll") for (u32 s = 0; s < PLANES; s++)
        _Pragma("unroll") for (u32 i = 0; i < TILES_M * TILES_N * 4; i++) sums[s][i / (TILES_N * 4)][i / 4 % TILES_N][i % 4] = 0;

    {
        const Work work(p, 0u);
        const u32 batch = tb::max(p[0], 1u), first = work.block * p[5], end = tb::min(first + p[5], work.words);
        const Source<DIGITS_A, ROWS> source_a(a, a_n, batch, work.sample, work.row, work.m, work.words);
        const Source<DIGITS_B, COLUMNS> source_b(b, b_n, batch, work.sample, work.column, work.n, work.words);
        // A group is closed for each step, empty or not, so that counting groups is counting steps.
        _Pragma("unroll") for (u32 s = 0; s < STAGES; s++) {
            u32 k = first + s * WORDS;
            if (k < end) {
                source_a.copy(tiles + s * STAGE, k, end);
                source_b.copy(tiles + s * STAGE + DIGITS_A * PLANE_A, k, end);
            }
            warp::close_group();
        }
        warp::wait_groups<STAGES - 1>();
        __syncthreads();
        u32 stage = 0;
        _Pragma("unroll 1") for (u32 k = first; k < end; k += WORDS) {
            Operands operands;
            operands.load_b(tiles + stage + from_b);
            _Pragma("unroll") for (u32 m = 0; m < TILES_M; m++) {
                operands.load_a(tiles + stage + from_a, m);
                if (m == TILES_M - 1) {
                    // All that the warp needs of this stage is in registers, so this is where the block meets, with a row of
                    // fragments still to multiply: the tensor cores have work while warps wait for one another, and
                    // while the first of them load the next step's operands. Behind the barrier the next step's own group and all
                    // before it have arrived, for every thread, and this stage, which every warp has read, is filled anew.
                    warp::wait_groups<STAGES - 2>();
                    __syncthreads();
                    if (end - k > STAGES * WORDS) {
                        source_a.copy(tiles + stage, k + STAGES * WORDS, end);
                        source_b.copy(tiles + stage + DIGITS_A * PLANE_A, k + STAGES * WORDS, end);
                    }
                    warp::close_group();
                }
                operands.multiply(sums, m);
            }
            stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
#if LONG
            if ((k - first) % WORDS_OF_CARRY == WORDS_OF_CARRY - WORDS) carry(sums);
#endif
        }
    }

    // The tiles' memory becomes the warps' slabs. Before the loop's last barrier every copy had arrived and every warp had read
    // all that it needs, so nothing is left to wait for.
    // What the loop had no use for is computed anew, since registers are what it lacks.
    const u32* words = p;
    u32 zero = 0;
    TB_FORGET_POINTER(words);
    TB_FORGET(zero);
    const Work work(words, zero);
    const u32 m = work.m, n = work.n, blocks = work.blocks, bits = work.bits;
    const size_t lines_a = (size_t)work.sample * m, lines_b = (size_t)work.sample * n;
    Slab& slab = ((Slab*)shared.bytes)[index];
    const u32 g = lane / 4, t = lane % 4;
    const i32 scale_down = -(i32)(bits & 0xffffu) + (bits >= 0x10000u ? NOT_ORDINARY : 0);
    // A lane rounds one column of a slab, every ROWS_AT_ONCE rows.
    constexpr u32 ROWS_AT_ONCE = 32 / SLAB;
    _Pragma("unroll") for (u32 tm = 0; tm < TILES_M; tm++)
        _Pragma("unroll") for (u32 s = 0; s < SLABS; s++) {
            const u32 row = work.row + warp_row + tm * 16, column = work.column + warp_column + s * SLAB + lane % SLAB;
            TB_WARP_SYNC();
            _Pragma("unroll") for (u32 tn = 0; tn < SLAB / 8; tn++)
                _Pragma("unroll") for (u32 i = 0; i < 4; i++)
                    slab.totals[(g + i / 2 * 8) * SLAB_STRIDE + tn * 8 + 2 * t + i % 2] = total_of(sums, tm, s * (SLAB / 8) + tn, i);
            if (lane < 16 && row + lane < m) slab.scales[lane] = scale_of(absmaxes_a[(lines_a + row + lane) * blocks + work.block]);
            TB_WARP_SYNC();
            if (column >= n) continue;
            const u32 absmax_b = absmaxes_b[(lines_b + column) * blocks + work.block];
            const i32 scale_b = scale_of(absmax_b) + scale_down;
            u32* out = output + ((size_t)(words[7] + blockIdx.z) * m + row) * n + column;
            u32 left = 0;  // rows that are not ordinary
            _Pragma("unroll 4") for (u32 r = lane / SLAB; r < 16; r += ROWS_AT_ONCE) {
                u32 result;
                if (row + r >= m) continue;
                if (ordinary(slab.totals[r * SLAB_STRIDE + lane % SLAB], slab.scales[r] + scale_b, result)) out[(size_t)r * n] = result;
                else left |= 1u << r;
            }
            _Pragma("unroll 1") while (left != 0u) {
                u32 r = (u32)__ffs((i32)left) - 1u;
                left &= left - 1u;
                u32 absmax_a = absmaxes_a[(lines_a + row + r) * blocks + work.block];
                out[(size_t)r * n] = finish(slab.totals[r * SLAB_STRIDE + lane % SLAB], absmax_a, absmax_b, bits);
            }
        }
}

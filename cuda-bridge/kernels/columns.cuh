// A product whose left operand is digitised on its way to the tensor cores, by one kernel: c[j, n] = sum over i of x[i, j] b[n, i], with a
// scale group for each column of x. These are the gradients p^T dout and ds^T q of attention: x is as large as the square of the positions,
// b has a head's few channels. Computed one after another, x is read twice, and its digits are written once and read once for every 128
// columns of c; here x is read twice, the second time from L2 as far as that holds it. src/columns.rs puts translate/prelude.cuh, the
// WGSL's functions, warp.cuh, scale_back.cuh, digits.cuh and fragments.cuh before this text, with
//   DIGITS, DIGITS_B     digits of the operands, 1..=4
//   TILES                columns of c that a warp computes, in eighths
//   SHARING              warps that take the same columns of x, and share those of c: 1, 2 or 4
//   STAGES               steps along K that are on their way or in use at a time: 2 or 3
//   ALIGNED              whether every four columns of x are whole 16 bytes
//   TB_DYNAMIC_BYTES     of shared memory
//
// What bounds it is memory. By count, a step of a block takes 16 KB, some 1300 clocks of an SM's part of an H100's bandwidth, while the
// tensor cores need 400 and the digits 600. So enough has to be under way. (Measured: an H200 takes 0.24 ms for GPT-2's 402 MB of p.) A block takes 64 columns of x, 256 bytes of each row. First
// it looks for their absmaxes, with 16 loads of 16 bytes under way for each thread. Then steps of 64 places come to shared memory
// by cp.async, two ahead of the one that is multiplied, and with them the digits of b. A lane reads its 16 places of two columns of x from
// there, digitises them in registers, and has fragments of A.
//
// Places before the first that is not zero, and after the last, are not read again: beyond a causal mask that is half of them.

constexpr u32 WIDTH = 64, STEP = 64, WARPS = 4 * SHARING, THREADS = 32 * WARPS;
constexpr u32 SUMS = DIGITS + DIGITS_B - 1, COLUMNS = SHARING * TILES * 8;
constexpr i32 BITS = 8 * (i32)(DIGITS + DIGITS_B) - 4;
// Blocks of an SM: two of 128 threads, or one of more. With one more of either, the compiler spills registers.
constexpr u32 AT_ONCE = SHARING == 1 ? 2 : 1;
// Columns of x that a thread reads at once in the search for absmaxes, the threads along a row, and the rows at a time.
constexpr u32 ACCESS = ALIGNED ? 4 : 1, ALONG = WIDTH / ACCESS, DOWN = THREADS / ALONG, BATCH = 16;

struct Shared {
    u32 x[STAGES][STEP * WIDTH];
    u32 b[STAGES][DIGITS_B * COLUMNS * STEP / 4];
    u32 absmaxes[DOWN][WIDTH];
    u32 begins[WARPS], ends[WARPS];  // places of x that are not all zero
};
static_assert(sizeof(Shared) == TB_DYNAMIC_BYTES, "what the launch asks for");
// A row of a warp's exact sums on the way back. The padding puts neighbouring rows into different halves of the banks.
constexpr u32 ROW = TILES * 8 + 8;
static_assert(WARPS * 16 * ROW * sizeof(Total) <= sizeof(Shared), "sums have room where operands were");

// Where four columns of a place lie in a stage, in words. A lane reads one column of places 16 t to 16 t + 15, and its neighbours the
// columns beside: chunks change places with t, so that a warp's 32 words meet 32 banks.
TB_FN u32 place_of(u32 place, u32 chunk) { return place * WIDTH + (chunk ^ (place / 16u % 4u) * 2u) * 4u; }

// What a block reads of x: `rows` columns from `from` on.
struct Operand {
    const u32* from;
    u32 rows, k, stride;
    TB_IF_SHIM(const u32* buffer; size_t size;)

    __device__ __forceinline__ const u32* at(u32 place, u32 column) const {
        const u32* own = from + (size_t)place * stride + column;
        TB_EXPECT(place >= k || column >= rows || (own >= buffer && own + ACCESS <= buffer + size));
        return own;
    }

    // The columns' absmaxes to `shared`, and the places that are not all zero.
    __device__ __forceinline__ void search(Shared& shared) const {
        const u32 column = threadIdx.x % ALONG * ACCESS, down = threadIdx.x / ALONG;
        u32 most[ACCESS], before = k, end = 0u;  // `before` places are zeros at least
        _Pragma("unroll") for (u32 i = 0; i < ACCESS; i++) most[i] = 0u;
        _Pragma("unroll 1") for (u32 first = down; first < k; first += DOWN * BATCH) {
            Four words[BATCH];
            _Pragma("unroll") for (u32 j = 0; j < BATCH; j++) {
                const u32 place = first + j * DOWN;
                const bool inside = place < k && column < rows;
                if (ALIGNED) words[j] = load_16(at(place, column), inside);
                else words[j].v[0] = inside ? *at(place, column) : 0u;
            }
            _Pragma("unroll") for (u32 j = 0; j < BATCH; j++) {
                u32 any = 0u;
                _Pragma("unroll") for (u32 i = 0; i < ACCESS; i++) {
                    const u32 size = words[j].v[i] & 0x7fffffffu;
                    most[i] = tb::max(most[i], size);
                    any |= size;
                }
                if (any != 0u) before = tb::min(before, first + j * DOWN), end = first + j * DOWN + 1u;
            }
        }
        _Pragma("unroll") for (u32 i = 0; i < ACCESS; i++) shared.absmaxes[down][column + i] = most[i];
        const u32 zeros = k - greatest_of_lanes(k - before);
        end = greatest_of_lanes(end);
        if (threadIdx.x % 32u == 0u) shared.begins[threadIdx.x / 32u] = zeros, shared.ends[threadIdx.x / 32u] = end;
    }

    // Starts the copies of the step that begins at `first`.
    __device__ __forceinline__ void copy(u32* stage, u32 first) const {
        constexpr u32 CHUNKS = WIDTH / 4;
        // Places are computed for each step: registers are dearer.
        const u32 thread = threadIdx.x;
        const u32 chunk = thread % CHUNKS;
        _Pragma("unroll") for (u32 j = 0; j < STEP * CHUNKS / THREADS; j++) {
            const u32 place = thread / CHUNKS + j * (THREADS / CHUNKS);
            u32* to = stage + place_of(place, chunk);
            if (ALIGNED) {
                warp::copy_16(warp::address(to), at(first + place, chunk * 4u), first + place < k && chunk * 4u < rows);
                continue;
            }
            _Pragma("unroll") for (u32 i = 0; i < 4; i++) {
                const u32 column = chunk * 4u + i;
                to[i] = first + place < k && column < rows ? *at(first + place, column) : 0u;
            }
        }
    }
};

// p: columns of x of a sample, K, columns of c, words of a row of b's digits, the stride of K, then the view: dims[1], strides of samples and
// the offset. Blocks are a tile of columns of x, and a sample.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
KERNEL(const u32* __restrict__ p, const u32* __restrict__ input, u32 input_n, const u32* __restrict__ b, u32 b_n,
       const u32* __restrict__ absmaxes_b, u32 absmaxes_b_n, u32* __restrict__ output, u32 output_n) {
    TB_DYNAMIC_SHARED(bytes, TB_DYNAMIC_BYTES);
    Shared& shared = *(Shared*)bytes;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 rows = p[0], k = p[1], columns = p[2], words = p[3], sample = blockIdx.y, second = tb::max(p[5], 1u);
    const u32 first = blockIdx.x * WIDTH;
    const Operand x = {input + (p[8] + sample / second * p[6] + sample % second * p[7] + first), rows - first, k, p[4]
                       TB_IF_SHIM(, input, input_n)};

    x.search(shared);
    __syncthreads();
    // The warp's columns of x are 16 from `own` on; its columns of c begin at `column`.
    const u32 own = warp / SHARING * 16u, column = warp % SHARING * (TILES * 8u);
    u32 most = 0u, begin = k, end = 0u;
    _Pragma("unroll") for (u32 i = 0; i < DOWN; i++) most = tb::max(most, shared.absmaxes[i][own + lane % 16u]);
    _Pragma("unroll") for (u32 i = 0; i < WARPS; i++) {
        begin = tb::min(begin, shared.begins[i]);
        end = tb::max(end, shared.ends[i]);
    }
    begin = begin / STEP * STEP;
    const Scale scales[2] = {Scale(TB_SHUFFLE_FROM(most, g)), Scale(TB_SHUFFLE_FROM(most, g + 8u))};

    const size_t plane = (size_t)gridDim.y * columns * words;
    const u32* lines = b + (size_t)sample * columns * words;
    const auto copy_b = [&](u32* stage, u32 place) {
        constexpr u32 CHUNKS = STEP / 16, ALL = DIGITS_B * COLUMNS * CHUNKS;
        const u32 thread = threadIdx.x;
        _Pragma("unroll") for (u32 j = 0; j < (ALL + THREADS - 1) / THREADS; j++) {
            const u32 i = thread + j * THREADS, line = i / CHUNKS % COLUMNS, word = place / 4u + i % CHUNKS * 4u;
            if (ALL % THREADS != 0 && i >= ALL) break;
            const u32* from = lines + ((i / (CHUNKS * COLUMNS)) * plane + (size_t)line * words + word);
            const bool inside = line < columns && word < words;
            TB_EXPECT(!inside || from + 4 <= b + b_n);
            warp::copy_16(warp::address(stage + i * 4u), from, inside);
        }
    };
    const auto start = [&](u32 place, u32 stage) {
        if (place < end) x.copy(shared.x[stage], place), copy_b(shared.b[stage], place);
        warp::close_group();
    };

    i32 sums[TILES][SUMS][4];
    _Pragma("unroll") for (u32 tile = 0; tile < TILES; tile++) clear(sums[tile]);
    _Pragma("unroll") for (u32 stage = 0; stage + 1 < STAGES; stage++) start(begin + stage * STEP, stage);
    u32 stage = 0u;
    _Pragma("unroll 1") for (u32 place = begin; place < end; place += STEP) {
        warp::wait_groups<STAGES - 2>();
        // Everybody's copies are there, and nobody reads the stage any more that the next ones go to.
        __syncthreads();
        start(place + (STAGES - 1) * STEP, stage == 0u ? STAGES - 1u : stage - 1u);
        FragmentA a[DIGITS];
        u32 any = 0u;
        _Pragma("unroll") for (u32 half = 0; half < 2; half++) {
            const u32* at = shared.x[stage] + place_of(t * 16u, own / 4u + half * 2u + g / 4u) + g % 4u;
            _Pragma("unroll") for (u32 word = 0; word < 4; word++) {
                u32 four[4], planes[4];
                _Pragma("unroll") for (u32 i = 0; i < 4; i++) four[i] = at[(4u * word + i) * WIDTH];
                planes_of(scales[half], four, planes);
                _Pragma("unroll") for (u32 d = 0; d < DIGITS; d++) a[d].rows[half].v[word] = planes[d], any |= planes[d];
            }
        }
        if (TB_ANY(any)) {
            _Pragma("unroll") for (u32 tile = 0; tile < TILES; tile++) {
                u32 word = ((column + tile * 8u + g) * STEP + t * 16u) / 4u;
                // Else all tiles' loads come first, and there are no registers for that.
                const u32* line = shared.b[stage] + word;
                Four of_b[DIGITS_B];
                _Pragma("unroll") for (u32 e = 0; e < DIGITS_B; e++) of_b[e] = load_16(line + e * (COLUMNS * STEP / 4), true);
                multiply(sums[tile], a, of_b);
            }
        }
        stage = stage + 1u == STAGES ? 0u : stage + 1u;
    }

    // The way back: exact sums go through shared memory, so that its code is there once, and neighbours store neighbours.
    warp::wait_groups<0>();
    __syncthreads();
    Total* totals = (Total*)bytes + warp * (16u * ROW);
    _Pragma("unroll") for (u32 tile = 0; tile < TILES; tile++)
        _Pragma("unroll") for (u32 i = 0; i < 4; i++)
            totals[(g + i / 2u * 8u) * ROW + tile * 8u + 2u * t + i % 2u] = total_of(sums[tile], i);
    TB_WARP_SYNC();
    _Pragma("unroll 2") for (u32 i = lane; i < 16u * TILES * 8u; i += 32u) {
        const u32 row = i / (TILES * 8u), its = i % (TILES * 8u), absmax = TB_SHUFFLE_FROM(most, row);
        if (first + own + row >= rows || column + its >= columns) continue;
        const size_t place = ((size_t)sample * rows + first + own + row) * columns + column + its;
        TB_EXPECT(place < output_n);
        output[place] = rounded(totals[row * ROW + its], absmax, absmaxes_b[sample * columns + column + its], BITS);
    }
    (void)input_n, (void)b_n, (void)absmaxes_b_n, (void)output_n;
}

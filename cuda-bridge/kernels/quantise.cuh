// scale.v1 and quantise.v1 by hand: what shaders/scale.wgsl and shaders/quantise.wgsl compute of a view whose rows, or whose columns, are
// contiguous, into the same layouts. src/quantise.rs puts translate/prelude.cuh, warp.cuh and digits.cuh before this text, with
//   one of ROWS, COLUMNS, SCALE_COLUMNS   which kernel this is
//   KERNEL                                its name
//   DIGITS                                digits of the result, 1..=4 (not for SCALE_COLUMNS)
//   TEAM, GIVEN                           ROWS: threads that share a scale group; whether its absmax is read, not found
//
// A row has K places in blocks of `step`; a block of a row is a scale group. Absmaxes are [row][block]; digits are bytes
// [digit][row][place], four places a word, rows padded with zeros to whole 16 bytes.
//
// Bytes are what there is to save: an operand of d digits is 4 bytes read and d written an element, so at the 4.8 TB/s of an H200's data
// sheet, 21 bytes a clock and SM at 1.75 GHz, an SM has to finish 3.5 elements a clock with d = 2, for which its four schedulers have
// some 37 lanes' instructions each. The WGSL reads an operand once for the absmax and again for the digits, and its rounding by
// shifts takes over twenty instructions; here rows that fit a team's registers are read once, and an element takes two
// multiplications, a conversion, an addition, an exclusive or and 0.75 to 2 byte permutations. Conversions run at half of the lanes'
// rate or less (64 a clock and SM in NVIDIA's table for 9.0), which is still eighteen times what memory feeds.

// Where row `row` of sample `sample` begins, from dims[1], three strides and an offset.
TB_FN u32 row_at(const u32* view, u32 sample, u32 row) {
    const u32 second = tb::max(view[0], 1u);
    return view[4] + sample / second * view[1] + sample % second * view[2] + row * view[3];
}

#if defined(ROWS)

// A team of TEAM threads takes a scale group: HELD times 16 bytes of it stay in each thread's registers from the search for the
// absmax to the digits, neighbours in neighbouring threads, so that reads are whole lines and so are the writes of a plane.
// HELD loads of 16 bytes are under way in a thread at a time: with the four blocks of 256 threads that 64 registers allow, 128 KB an
// SM, several times what hides the memory's latency at its full rate. src/quantise.rs chooses TEAM so that a group fits, up to 512 threads and
// 16384 places; what is beyond is read again, which L2 answers: of a row of 50257 places an SM has two under way, the GPU
// some 50 MB, a third of which need not be read again.
constexpr u32 HELD = 8;
constexpr u32 THREADS = TEAM > 256 ? TEAM : 256, TEAMS = THREADS / TEAM;
#if GIVEN
typedef const u32 Absmax;
#else
typedef u32 Absmax;
#endif

// Four places from `place` on of a group that begins at `from`; zeros behind its end.
TB_FN void load(const u32* from, u32 place, u32 places, bool aligned, u32 (&x)[4]) {
    if (aligned && place + 4u <= places) {
        const tb::vec<u32, 4u> whole = *(const tb::vec<u32, 4u>*)(from + place);
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) x[i] = whole.v[i];
        return;
    }
    // Rows of a K that is no multiple of four begin anywhere. A warp's four loads then meet the same four lines, so that memory
    // gives each once and L1 four times, which is still beyond what memory gives.
    _Pragma("unroll") for (u32 i = 0; i < 4; i++) x[i] = place + i < places ? from[place + i] : 0u;
}

TB_FN u32 greatest(u32 most, const u32 (&x)[4]) {
    _Pragma("unroll") for (u32 i = 0; i < 4; i++) most = tb::max(most, x[i] & 0x7fffffffu);
    return most;
}

// p: scale groups, blocks of a row, `step`, K, words of a row of digits, words of a plane, rows of a sample, then the view.
extern "C" __global__ void __launch_bounds__(THREADS)
KERNEL(const u32* __restrict__ p, const u32* __restrict__ input, u32 input_n, Absmax* __restrict__ absmaxes, u32 absmaxes_n,
       u32* __restrict__ output, u32 output_n) {
    const u32 lane = threadIdx.x % TEAM, group = blockIdx.x * TEAMS + threadIdx.x / TEAM;
    // A team without a group stays for the operations of its warp, with nothing to load or store.
    const bool there = group < p[0];
    const u32 blocks = tb::max(p[1], 1u), row = group / blocks, block = group % blocks, begin = block * p[2];
    const u32 places = there ? tb::min(p[2], p[3] - begin) : 0u;
    // The last block of a row writes its padding too.
    const u32 words = !there ? 0u : block + 1u == blocks ? p[4] - begin / 4u : p[2] / 4u;
    const u32 rows = tb::max(p[6], 1u);
    const u32* from = input + (there ? row_at(p + 7, row / rows, row % rows) + begin : 0u);
    const bool aligned = (size_t)from % 16u == 0u;
    TB_EXPECT(!there || (from + places <= input + input_n && group < absmaxes_n));

    u32 held[HELD][4];
    _Pragma("unroll") for (u32 i = 0; i < HELD; i++) load(from, (lane + i * TEAM) * 4u, places, aligned, held[i]);
#if GIVEN
    const u32 most = there ? absmaxes[group] : 0u;
#else
    u32 most = 0u;
    _Pragma("unroll") for (u32 i = 0; i < HELD; i++) most = greatest(most, held[i]);
    _Pragma("unroll 1") for (u32 place = (lane + HELD * TEAM) * 4u; place < places; place += TEAM * 4u) {
        u32 x[4];
        load(from, place, places, aligned, x);
        most = greatest(most, x);
    }
    _Pragma("unroll") for (u32 distance = (TEAM < 32 ? TEAM : 32) / 2; distance > 0; distance /= 2)
        most = tb::max(most, TB_SHUFFLE_XOR(most, distance));
    if (TEAM > 32) {
        constexpr u32 WARPS = TEAM > 32 ? TEAM / 32 : 1;
        __shared__ u32 maxima[THREADS / 32];
        if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = most;
        __syncthreads();
        _Pragma("unroll") for (u32 i = 0; i < WARPS; i++) most = tb::max(most, maxima[threadIdx.x / TEAM * WARPS + i]);
    }
    if (there && lane == 0u) absmaxes[group] = most;
#endif
    const Scale scale(most);
    u32* out = output + ((size_t)row * p[4] + begin / 4u);
    const size_t plane = p[5];
    TB_EXPECT(words == 0u || out + (DIGITS - 1u) * plane + words <= output + output_n);
    _Pragma("unroll") for (u32 i = 0; i < HELD; i++) {
        const u32 word = lane + i * TEAM;
        if (word >= words) break;
        u32 planes[4];
        planes_of(scale, held[i], planes);
        _Pragma("unroll") for (u32 d = 0; d < DIGITS; d++) out[d * plane + word] = planes[d];
    }
    _Pragma("unroll 1") for (u32 word = lane + HELD * TEAM; word < words; word += TEAM) {
        u32 x[4], planes[4];
        load(from, word * 4u, places, aligned, x);
        planes_of(scale, x, planes);
        _Pragma("unroll") for (u32 d = 0; d < DIGITS; d++) out[d * plane + word] = planes[d];
    }
    (void)input_n, (void)absmaxes_n, (void)output_n;
}

#else

// Neighbours in a column view's memory are rows at the same place of K, and neighbours in what is written are places of the same
// row. So a warp reads 32 rows at a time, a line of 128 bytes, and what it makes of them passes through shared memory to be
// written along K. Rows of the tile there are an odd number of words apart: a warp writes 32 rows at one word, then reads
// one row's words, each from 32 different banks.
//
// A column is too long for a block's memory (8192 tokens of 32 rows are a megabyte), so the absmax is a kernel of its own and
// an operand is read twice, the second time from L2 if it is no larger than that.
constexpr u32 THREADS = 256, WARPS = THREADS / 32;

#if defined(SCALE_COLUMNS)

// A warp takes a scale group of each of 32 rows; a block eight neighbouring groups, so that it writes 32 bytes in a row.
// p: rows of a sample, K, `step`, blocks of a row, the stride of K, then the view.
extern "C" __global__ void __launch_bounds__(THREADS)
KERNEL(const u32* __restrict__ p, const u32* __restrict__ input, u32 input_n, u32* __restrict__ output, u32 output_n) {
    __shared__ u32 tile[32][WARPS + 1];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = p[0], blocks = p[3], stride = p[4], sample = blockIdx.z;
    const u32 row = blockIdx.x * 32u + lane, first = blockIdx.y * WARPS;
    u32 most = 0u;
    if (row < rows && first + warp < blocks) {
        const u32 begin = (first + warp) * p[2], end = tb::min(begin + p[2], p[1]);
        const u32* from = input + row_at(p + 5, sample, row);
        _Pragma("unroll 16") for (u32 k = begin; k < end; k++) {
            const u32* at = from + (size_t)k * stride;
            TB_EXPECT(at < input + input_n);
            most = tb::max(most, *at & 0x7fffffffu);
        }
    }
    tile[lane][warp] = most;
    __syncthreads();
    const u32 out_row = blockIdx.x * 32u + threadIdx.x / WARPS, out_block = first + threadIdx.x % WARPS;
    if (out_row < rows && out_block < blocks) {
        const size_t at = ((size_t)sample * rows + out_row) * blocks + out_block;
        TB_EXPECT(at < output_n);
        output[at] = tile[threadIdx.x / WARPS][threadIdx.x % WARPS];
    }
    (void)input_n, (void)output_n;
}

#else

// 32 rows by 128 places, of which a warp takes 16: it quantises in registers, where a lane has its row's absmax, and only
// packed words go to shared memory, d bytes an element in place of 4. Sixteen loads are under way in a thread.
// p: rows of a sample, K, `step`, blocks of a row, the stride of K, words of a row of digits, words of a plane, then the view.
constexpr u32 PLACES = 16;
extern "C" __global__ void __launch_bounds__(THREADS)
KERNEL(const u32* __restrict__ p, const u32* __restrict__ input, u32 input_n, const u32* __restrict__ absmaxes, u32 absmaxes_n,
       u32* __restrict__ output, u32 output_n) {
    __shared__ u32 tile[DIGITS][32][33];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = p[0], stride = p[4], sample = blockIdx.z;
    const u32 row = blockIdx.x * 32u + lane, first = blockIdx.y * (PLACES * WARPS) + warp * PLACES;
    const u32 places = row < rows ? p[1] : 0u;
    const u32* from = input + (row < rows ? row_at(p + 7, sample, row) : 0u);
    u32 x[PLACES];
    _Pragma("unroll") for (u32 i = 0; i < PLACES; i++) {
        const bool inside = first + i < places;
        const u32* at = from + (size_t)(first + i) * stride;
        TB_EXPECT(!inside || at < input + input_n);
        x[i] = inside ? *at : 0u;
    }
    // Blocks are multiples of 16 places, so a warp's places are in one.
    const u32 blocks = tb::max(p[3], 1u), block = tb::min(first / tb::max(p[2], 1u), blocks - 1u);
    const size_t group = ((size_t)sample * rows + row) * blocks + block;
    TB_EXPECT(row >= rows || group < absmaxes_n);
    const Scale scale(row < rows ? absmaxes[group] : 0u);
    _Pragma("unroll") for (u32 word = 0; word < PLACES / 4; word++) {
        const u32 four[4] = {x[4 * word], x[4 * word + 1], x[4 * word + 2], x[4 * word + 3]};
        u32 planes[4];
        planes_of(scale, four, planes);
        _Pragma("unroll") for (u32 d = 0; d < DIGITS; d++) tile[d][lane][warp * (PLACES / 4) + word] = planes[d];
    }
    __syncthreads();
    const u32 word = blockIdx.y * 32u + lane;
    const size_t plane = p[6];
    _Pragma("unroll") for (u32 i = 0; i < 32 / WARPS; i++) {
        const u32 of_tile = warp + i * WARPS, out_row = blockIdx.x * 32u + of_tile;
        if (out_row >= rows || word >= p[5]) continue;
        const size_t at = ((size_t)sample * rows + out_row) * p[5] + word;
        TB_EXPECT(at + (DIGITS - 1u) * plane < output_n);
        _Pragma("unroll") for (u32 d = 0; d < DIGITS; d++) output[d * plane + at] = tile[d][of_tile][lane];
    }
    (void)input_n, (void)absmaxes_n, (void)output_n;
}

#endif
#endif

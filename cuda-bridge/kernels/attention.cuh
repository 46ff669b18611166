// Rows between two products, by one kernel: x = a b^T of exact digits, rounded; maps, maxima and sums over the rows of x (a softmax, or its
// gradient); what they give digitised by rows; and its product with a third operand. Attention is two of these: q k^T, softmax, p v,
// and dout v^T, the softmax's gradient, ds k. What lies between the products is as large as the square of the positions; here it stays
// in shared memory unless another node reads it. src/attention.rs puts translate/prelude.cuh, the WGSL's functions, warp.cuh,
// scale_back.cuh, digits.cuh and fragments.cuh before this text, and in the place of //@rows what the rows' nodes compute, with
//   DIGITS_A1, DIGITS_B1, DIGITS_A2, DIGITS_B2   digits of the first and the second product's operands
//   SAMPLE_ROWS, LEN     rows of a sample of x, and their places
//   PLACES1, COLUMNS2    K of the first product, and columns of the second, whose K is LEN
//   CAUSAL               whether nothing depends on places of x beyond the diagonal
//   STRETCHES            how many values of a row are kept at a time
//   RESULT               the stretch where the second product's operand lies in the end; x lies in the first
//   TB_DYNAMIC_BYTES     of shared memory
//   AT_ONCE              blocks for which an SM has as much, 2 at most: each may take so large a part of the registers
// and the macros PARAMETERS, TENSORS (the entry point's buffers, and those of the rows' nodes as a struct's members).
//
// Places of zeros add nothing to an exact sum: the second product ends at the last 64 places that are not all zero in the block's rows,
// which for a causal mask is the diagonal, whoever wrote the mask.
//
// The rows of a block are one fragment's. Reading b again for every 16 rows takes LEN PLACES1 DIGITS_B1 bytes from L2, for GPT-2's 1024
// places of 64 channels in two digits 128 KB or, at 32 bytes a clock and SM, 4096 clocks; the third operand takes as many. The rows'
// own instructions, some hundred for each of 16 LEN elements, take more than either: 12,800 clocks of the SM's 128 lanes.

constexpr u32 ROWS = 16, WARPS = 8, THREADS = 32 * WARPS;
constexpr u32 SUMS1 = DIGITS_A1 + DIGITS_B1 - 1, SUMS2 = DIGITS_A2 + DIGITS_B2 - 1;
constexpr i32 BITS1 = 8 * (i32)(DIGITS_A1 + DIGITS_B1) - 4, BITS2 = 8 * (i32)(DIGITS_A2 + DIGITS_B2) - 4;
// Words of an operand's row, whose 16 bytes are whole, and its steps of 64 places.
constexpr u32 WORDS1 = (PLACES1 + 15) / 16 * 4, WORDS2 = (LEN + 15) / 16 * 4;
constexpr u32 STEPS1 = (PLACES1 + 63) / 64, STEPS2 = (LEN + 63) / 64;
// Four neighbours of a row are a group; a block of groups is one for each lane.
constexpr u32 GROUPS = (LEN + 3) / 4, BLOCKS = (LEN + 127) / 128;
// A row's words in a stretch. Neighbouring rows are half of the banks apart.
constexpr u32 STRIDE = STEPS2 * 64 + 16, STRETCH = ROWS * STRIDE;
constexpr u32 NOTHING = 0x80000000u;  // -0, which added to anything leaves it

// Where a group lies in its row, in words. The four groups of a lane's 16 places change places from lane to lane, so that lanes which
// read the same one of theirs, and the next row's, meet different banks.
TB_FN u32 place_of(u32 group) { return ((group & ~3u) | ((group ^ group >> 2) & 3u)) * 4u; }

// Places of a group that are in the row.
TB_FN u32 inside(u32 group) { return LEN % 128 == 0 ? 4u : group >= GROUPS ? 0u : tb::min(4u, LEN - 4u * group); }

TB_FN void store_16(u32* at, const Four& four) {
    tb::vec<u32, 4u> whole;
    _Pragma("unroll") for (u32 i = 0; i < 4; i++) whole.v[i] = four.v[i];
    *(tb::vec<u32, 4u>*)at = whole;
}

// A group of a tensor's row that begins at word `first`; ALIGNED says that all groups are whole 16 bytes.
template <bool ALIGNED> TB_FN Four load_group(const u32* tensor, u32 count, u32 first, u32 group, u32 places) {
    const u32* at = tensor + first + 4u * group;
    TB_EXPECT(places == 0u || first + 4u * group + places <= count);
    (void)count;
    if (ALIGNED) return load_16(at, places != 0u);
    Four four;
    _Pragma("unroll") for (u32 i = 0; i < 4; i++) four.v[i] = i < places ? at[i] : 0u;
    return four;
}

template <bool ALIGNED> TB_FN void store_group(u32* tensor, u32 count, u32 first, u32 group, u32 places, const Four& four) {
    u32* at = tensor + first + 4u * group;
    TB_EXPECT(places == 0u || first + 4u * group + places <= count);
    (void)count;
    if (ALIGNED) {
        if (places != 0u) store_16(at, four);
        return;
    }
    _Pragma("unroll") for (u32 i = 0; i < 4; i++)
        if (i < places) at[i] = four.v[i];
}

// The sum of all lanes' numbers by a tree of neighbours; every lane gets it.
TB_FN u32 sum_of_lanes(u32 sum) {
    _Pragma("unroll") for (u32 distance = 1; distance < 32; distance *= 2) sum = wgsl_f_add(sum, TB_SHUFFLE_XOR(sum, distance));
    return sum;
}

// A row's tree sum. A tree that promotes odd last terms is the whole tree with -0 for what is not there.
struct RowSum {
    u32 of_block = NOTHING;  // in lane i that of block i

    __device__ __forceinline__ void add(u32 block, u32 lane, u32 places, const Four& terms) {
        u32 t[4];
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) t[i] = i < places ? terms.v[i] : NOTHING;
        const u32 sum = sum_of_lanes(wgsl_f_add(wgsl_f_add(t[0], t[1]), wgsl_f_add(t[2], t[3])));
        if (lane == block) of_block = sum;
    }
    // Blocks from `end` on are zeros.
    __device__ __forceinline__ void add_zeros(u32 end, u32 lane) {
        if (lane >= end && lane < BLOCKS) of_block = 0u;
    }
    __device__ __forceinline__ u32 total() const { return sum_of_lanes(of_block); }
};
static_assert(BLOCKS <= 32, "a lane for each block");

struct Tensors {
    TENSORS
};

struct Shared {
    u32 stretches[STRETCHES * STRETCH];
    u32 absmaxes[ROWS];
    u32 ends[ROWS];  // steps of the second product up to the last with a digit that is not zero
};
static_assert(sizeof(Shared) == TB_DYNAMIC_BYTES, "what the launch asks for");

TB_FN Four all(u32 value) { return {{value, value, value, value}}; }

// What is known of a row's result: its greatest absmax, the blocks that hold its places up to the diagonal, or all, and its number beyond.
struct Row {
    u32 absmax, within, beyond;
};

//@rows

// Digitises a row's result where it lies: the words of a group's digit planes take the place of its four numbers. Gives the steps up to
// the last digit that is not zero.
TB_FN u32 digitise_row(u32* row, u32 lane, const Row& result) {
    const Scale scale(result.absmax);
    u32 end = 0u;
    _Pragma("unroll 1") for (u32 group = lane; group < STEPS2 * 16; group += 32) {
        u32* at = row + place_of(group);
        Four four = load_16(at, true);
        const u32 places = inside(group);
        u32 planes[4];
        if (group >= result.within * 32u) four = all(result.beyond);
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) four.v[i] = i < places ? four.v[i] : 0u;
        planes_of(scale, four.v, planes);
        u32 any = 0u;
        _Pragma("unroll") for (u32 d = 0; d < DIGITS_A2; d++) any |= planes[d];
        if (any != 0u) end = group / 16u + 1u;
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) four.v[i] = planes[i];
        store_16(at, four);
    }
    return greatest_of_lanes(end);
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
KERNEL(PARAMETERS) {
    TB_DYNAMIC_SHARED(bytes, TB_DYNAMIC_BYTES);
    Shared& shared = *(Shared*)bytes;
    const Tensors of = {TENSORS_OF};
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const u32 sample = blockIdx.y, first = blockIdx.x * ROWS;
    // Rows beyond a sample's last are computed as that one and never stored.
    const u32 row_low = tb::min(first + g, SAMPLE_ROWS - 1u), row_high = tb::min(first + g + 8u, SAMPLE_ROWS - 1u);
    const size_t samples = gridDim.y;

    {
        FragmentA operand[STEPS1][DIGITS_A1];
        const size_t plane_a = samples * SAMPLE_ROWS * WORDS1, plane_b = samples * LEN * WORDS1;
        _Pragma("unroll") for (u32 step = 0; step < STEPS1; step++)
            _Pragma("unroll") for (u32 d = 0; d < DIGITS_A1; d++)
                _Pragma("unroll") for (u32 half = 0; half < 2; half++) {
                    const size_t line = (size_t)sample * SAMPLE_ROWS + (half ? row_high : row_low);
                    const u32 word = step * 16u + t * 4u;
                    const u32* at = a1 + d * plane_a + line * WORDS1 + word;
                    TB_EXPECT(word >= WORDS1 || at + 4 <= a1 + a1_n);
                    operand[step][d].rows[half] = load_16(at, word < WORDS1);
                }
        const u32 absmax_low = absmaxes_a1[sample * SAMPLE_ROWS + row_low];
        const u32 absmax_high = absmaxes_a1[sample * SAMPLE_ROWS + row_high];
        const u32 columns = CAUSAL ? tb::min(LEN, first + ROWS) : LEN;
        u32* x = shared.stretches;
        _Pragma("unroll 2") for (u32 column = warp * 8u; column < columns; column += WARPS * 8u) {
            const size_t line = (size_t)sample * LEN + tb::min(column + g, LEN - 1u);
            i32 sums[SUMS1][4];
            clear(sums);
            _Pragma("unroll") for (u32 step = 0; step < STEPS1; step++) {
                Four b[DIGITS_B1];
                const u32 word = step * 16u + t * 4u;
                _Pragma("unroll") for (u32 e = 0; e < DIGITS_B1; e++) {
                    const u32* at = b1 + e * plane_b + line * WORDS1 + word;
                    TB_EXPECT(word >= WORDS1 || at + 4 <= b1 + b1_n);
                    b[e] = load_16(at, word < WORDS1);
                }
                multiply(sums, operand[step], b);
            }
            _Pragma("unroll") for (u32 i = 0; i < 4; i++) {
                const u32 own = column + 2u * t + i % 2u, row = g + i / 2u * 8u;
                const u32 absmax_b = absmaxes_b1[sample * LEN + tb::min(own, LEN - 1u)];
                const u32 result = rounded(total_of(sums, i), i < 2u ? absmax_low : absmax_high, absmax_b, BITS1);
                if (own < LEN) x[row * STRIDE + place_of(own / 4u) + own % 4u] = result;
            }
        }
        (void)a1_n, (void)b1_n, (void)absmaxes_a1_n, (void)absmaxes_b1_n;
    }
    __syncthreads();

    // A warp takes a row at a time.
    _Pragma("unroll 1") for (u32 row = warp; row < ROWS; row += WARPS) {
        u32 absmax = 0u, end = 0u;
        if (first + row < SAMPLE_ROWS) {
            u32* own = shared.stretches + row * STRIDE;
            const Row result = compute_row(of, own, lane, sample * SAMPLE_ROWS + first + row);
            absmax = result.absmax;
            end = digitise_row(own + RESULT * STRETCH, lane, result);
        }
        if (lane == 0u) shared.absmaxes[row] = absmax, shared.ends[row] = end;
    }
    __syncthreads();

    u32 end = 0u;
    _Pragma("unroll") for (u32 row = 0; row < ROWS; row++) end = tb::max(end, shared.ends[row]);
    const u32* digits = shared.stretches + RESULT * STRETCH;
    const size_t plane = samples * COLUMNS2 * WORDS2;
    _Pragma("unroll 1") for (u32 column = warp * 8u; column < COLUMNS2; column += WARPS * 8u) {
        const u32* line = b2 + ((size_t)sample * COLUMNS2 + tb::min(column + g, COLUMNS2 - 1u)) * WORDS2;
        i32 sums[SUMS2][4];
        clear(sums);
        Four next[DIGITS_B2];
        const auto load = [&](u32 step) {
            const u32 word = step * 16u + t * 4u;
            _Pragma("unroll") for (u32 e = 0; e < DIGITS_B2; e++) {
                TB_EXPECT(step >= end || word >= WORDS2 || line + e * plane + word + 4 <= b2 + b2_n);
                next[e] = load_16(line + e * plane + word, step < end && word < WORDS2);
            }
        };
        load(0u);
        _Pragma("unroll 1") for (u32 step = 0; step < end; step++) {
            Four b[DIGITS_B2];
            FragmentA a[DIGITS_A2];
            _Pragma("unroll") for (u32 e = 0; e < DIGITS_B2; e++) b[e] = next[e];
            load(step + 1u);  // on its way while this one is multiplied
            _Pragma("unroll") for (u32 half = 0; half < 2; half++)
                _Pragma("unroll") for (u32 word = 0; word < 4; word++) {
                    const Four planes = load_16(digits + (g + half * 8u) * STRIDE + place_of(step * 16u + t * 4u + word), true);
                    _Pragma("unroll") for (u32 d = 0; d < DIGITS_A2; d++) a[d].rows[half].v[word] = planes.v[d];
                }
            multiply(sums, a, b);
        }
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) {
            const u32 own = column + 2u * t + i % 2u, row = g + i / 2u * 8u;
            if (own >= COLUMNS2 || first + row >= SAMPLE_ROWS) continue;
            const u32 absmax_b = absmaxes_b2[sample * COLUMNS2 + own];
            const size_t at = ((size_t)sample * SAMPLE_ROWS + first + row) * COLUMNS2 + own;
            TB_EXPECT(at < output_n);
            output[at] = rounded(total_of(sums, i), shared.absmaxes[row], absmax_b, BITS2);
        }
    }
    (void)b2_n, (void)absmaxes_b2_n, (void)output_n;
}

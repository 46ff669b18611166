// Products of fragments whose operands come from memory in whole 16 bytes, for kernels written by hand: a lane takes 16 neighbouring
// places of K at once, for both operands the same ones, and gives them to the tensor cores as if they were places 4t .. 4t + 3 of four
// fragments. Exact sums have no order, so that is the same product, without shared memory and ldmatrix. Before this text stand
// translate/prelude.cuh, warp.cuh and scale_back.cuh.

// The greatest of all lanes' numbers.
TB_FN u32 greatest_of_lanes(u32 most) {
    _Pragma("unroll") for (u32 distance = 16; distance > 0; distance /= 2) most = tb::max(most, TB_SHUFFLE_XOR(most, distance));
    return most;
}

struct Four {
    u32 v[4];
};

TB_FN Four load_16(const u32* at, bool is_inside) {
    Four four = {{0u, 0u, 0u, 0u}};
    if (is_inside) {
        const tb::vec<u32, 4u> whole = *(const tb::vec<u32, 4u>*)at;
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) four.v[i] = whole.v[i];
    }
    return four;
}

// What a lane has of a digit plane of A: [row g and row g + 8][words of its 16 places].
struct FragmentA {
    Four rows[2];
};

// Products of a lane's 16 places, which with the other lanes' are 64, added to the sums of their weights.
template <u32 DIGITS_A, u32 DIGITS_B>
TB_FN void multiply(i32 (&sums)[DIGITS_A + DIGITS_B - 1][4], const FragmentA (&a)[DIGITS_A], const Four (&b)[DIGITS_B]) {
    _Pragma("unroll") for (u32 half = 0; half < 4; half += 2)
        _Pragma("unroll") for (u32 d = 0; d < DIGITS_A; d++) {
            const u32 words[4] = {a[d].rows[0].v[half], a[d].rows[1].v[half], a[d].rows[0].v[half + 1], a[d].rows[1].v[half + 1]};
            _Pragma("unroll") for (u32 e = 0; e < DIGITS_B; e++) TB_MULTIPLY(sums[d + e], words, b[e].v[half], b[e].v[half + 1]);
        }
}

template <u32 SUMS> TB_FN void clear(i32 (&sums)[SUMS][4]) {
    _Pragma("unroll") for (u32 s = 0; s < SUMS; s++)
        _Pragma("unroll") for (u32 i = 0; i < 4; i++) sums[s][i] = 0;
}

// What rounds to no normal number, or belongs to a marked group: rarely called, so its instructions are there once.
TB_NOINLINE u32 finish_rare(Total total, u32 absmax_a, u32 absmax_b, u32 bits) {
    return finish(total, absmax_a, absmax_b, bits);
}

TB_FN u32 rounded(Total total, u32 absmax_a, u32 absmax_b, i32 bits) {
    u32 result;
    const i32 scale = scale_of(absmax_a) + scale_of(absmax_b) - bits;
    return ordinary(total, scale, result) ? result : finish_rare(total, absmax_a, absmax_b, (u32)bits);
}

// An output's exact sum.
template <u32 SUMS> TB_FN Total total_of(const i32 (&sums)[SUMS][4], u32 i) {
    unsigned long long total = 0;
    _Pragma("unroll") for (u32 s = 0; s < SUMS; s++) total += (unsigned long long)(long long)sums[s][i] << (8u * s);
    return (Total)total;
}

// Operations of a whole warp, and copies behind a thread's back, on a host: what kernels/warp.cuh asks of the hardware. Where
// the hardware may or may not show a mistake, these do: what a copy will bring is not there before it was waited for, and
// lanes that come to different operations are a fault, as are rows of a matrix that meet in a bank of shared memory.
#pragma once

namespace shim {

typedef uintptr_t Address;
inline Address address(const void* at) { return (Address)at; }

inline void warp_sync(int line) {
    wait_for_warp(line, [](void* const*) {}, nullptr);
}

// shfl.sync.bfly of all lanes.
struct Shuffle {
    unsigned word, lanes, result;
};
inline unsigned shuffle_xor(int line, unsigned word, unsigned lanes) {
    Shuffle mine{word, lanes, 0};
    wait_for_warp(line, [](void* const* all) {
        for (unsigned i = 0; i < WARP; i++) {
            Shuffle* its = (Shuffle*)all[i];
            expect(its->lanes < WARP && its->lanes == ((Shuffle*)all[0])->lanes, "lanes shuffle by different numbers");
            its->result = ((Shuffle*)all[(i ^ its->lanes) % WARP])->word;
        }
    }, &mine);
    return mine.result;
}

// shfl.sync.idx of all lanes, each by a number of its own.
inline unsigned shuffle_from(int line, unsigned word, unsigned lane) {
    Shuffle mine{word, lane, 0};
    wait_for_warp(line, [](void* const* all) {
        for (unsigned i = 0; i < WARP; i++) {
            Shuffle* its = (Shuffle*)all[i];
            expect(its->lanes < WARP, "a lane takes the word of one that is not there");
            its->result = ((Shuffle*)all[its->lanes % WARP])->word;
        }
    }, &mine);
    return mine.result;
}

// vote.sync.any of all lanes.
inline bool any(int line, unsigned word) {
    Shuffle mine{word, 0, 0};
    wait_for_warp(line, [](void* const* all) {
        unsigned found = 0;
        for (unsigned i = 0; i < WARP; i++) found |= ((Shuffle*)all[i])->word;
        for (unsigned i = 0; i < WARP; i++) ((Shuffle*)all[i])->result = found;
    }, &mine);
    return mine.result != 0;
}

// ldmatrix .x4: lane 8i + r gives the address of row r of matrix i; lane l gets bytes 4 (l mod 4) .. + 3 of row l / 4 of each.
struct LoadMatrices {
    unsigned* r;
    Address at;
};
inline void load_matrices(int line, unsigned (&r)[4], Address at) {
    LoadMatrices mine{r, at};
    wait_for_warp(line, [](void* const* lanes) {
        for (unsigned i = 0; i < 4; i++) {
            unsigned banks = 0;
            for (unsigned row = 0; row < 8; row++) {
                Address at = ((LoadMatrices*)lanes[8 * i + row])->at;
                expect(at % 16 == 0, "a row of a matrix is not aligned to 16 bytes");
                // 32 banks of 4 bytes: a row takes four of them.
                banks |= 1u << (at / 16 % 8);
                for (unsigned t = 0; t < 4; t++) memcpy(&((LoadMatrices*)lanes[4 * row + t])->r[i], (const void*)(at + 4 * t), 4);
            }
            expect(banks == 255, "rows of a matrix meet in a bank of shared memory");
        }
    }, &mine);
}

// mma.m16n8k32 of s8 with s32 sums, which wrap. g = lane / 4, t = lane mod 4.
struct Multiply {
    int* c;
    const unsigned* a;
    unsigned b[2];
};
// The one place where a host's time goes.
#pragma GCC push_options
#pragma GCC optimize("O3")
inline void multiply_all(void* const* lanes) {
    int8_t bytes[24][32];  // 16 rows of a, 8 columns of b
    short wide[24][32];
    // Small products leave most of a tile empty, and zeros add nothing.
    unsigned any_a = 0, any_b = 0;
    for (unsigned lane = 0; lane < 32; lane++) {
        const Multiply& its = *(Multiply*)lanes[lane];
        any_a |= its.a[0] | its.a[1] | its.a[2] | its.a[3];
        any_b |= its.b[0] | its.b[1];
    }
    if (!any_a || !any_b) return;
    for (unsigned lane = 0; lane < 32; lane++) {
        const Multiply& its = *(Multiply*)lanes[lane];
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++) memcpy(&bytes[g + i % 2 * 8][4 * t + i / 2 * 16], &its.a[i], 4);
        for (unsigned i = 0; i < 2; i++) memcpy(&bytes[16 + g][4 * t + i * 16], &its.b[i], 4);
    }
    for (unsigned i = 0; i < 24; i++)
        for (unsigned k = 0; k < 32; k++) wide[i][k] = bytes[i][k];
    for (unsigned lane = 0; lane < 32; lane++) {
        int* c = ((Multiply*)lanes[lane])->c;
        for (unsigned i = 0; i < 4; i++) {
            const short *row = wide[lane / 4 + i / 2 * 8], *column = wide[16 + lane % 4 * 2 + i % 2];
            int sum = 0;  // at most 2^19
            for (unsigned k = 0; k < 32; k++) sum += row[k] * column[k];
            c[i] = (int)((unsigned)c[i] + (unsigned)sum);
        }
    }
}
#pragma GCC pop_options
inline void multiply(int line, int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Multiply mine{c, a, {b0, b1}};
    wait_for_warp(line, multiply_all, &mine);
}

// cp.async of 16 bytes, or of zeros. What was there is gone at once; what comes is there when its group was waited for.
inline void copy_16(Address to, const void* from, bool inside) {
    expect(to % 16 == 0 && (Address)from % 16 == 0, "a copy is not aligned to 16 bytes");
    memset((void*)to, 0xa5, 16);
    running->copies.push_back({(unsigned char*)to, (const unsigned char*)from, inside});
}
inline void close_group() { running->groups.push_back(running->copies.size()); }
inline void wait_groups(size_t pending) {
    std::vector<Copy>& copies = running->copies;
    std::vector<size_t>& groups = running->groups;
    if (groups.size() <= pending) return;
    const size_t ended = groups.size() - pending, done = groups[ended - 1];
    for (size_t i = 0; i < done; i++) {
        if (copies[i].inside) memcpy(copies[i].to, copies[i].from, 16);
        else memset(copies[i].to, 0, 16);
    }
    copies.erase(copies.begin(), copies.begin() + (long)done);
    groups.erase(groups.begin(), groups.begin() + (long)ended);
    for (size_t& group : groups) group -= done;
}

}  // namespace shim

// Instructions that a warp executes together, and copies that run behind it: one function for each, so that the text around
// them is plain C++. NVRTC gets inline PTX; on a host the shim has functions that do the same and are stricter.
// Inline PTX is volatile, and names memory where it reads or writes some behind the compiler's back. "PTX ISA" below is NVIDIA's manual of that name, by section title, since numbers change between releases.

namespace warp {

#ifdef TIEBREAK_SHIM

typedef shim::Address Address;
TB_FN Address address(const void* at) { return shim::address(at); }
#define TB_WARP_SYNC() shim::warp_sync(__LINE__)
#define TB_SHUFFLE_XOR(word, lanes) shim::shuffle_xor(__LINE__, word, lanes)
#define TB_SHUFFLE_FROM(word, lane) shim::shuffle_from(__LINE__, word, lane)
#define TB_ANY(word) shim::any(__LINE__, word)
#define TB_LOAD_MATRICES(r, at) shim::load_matrices(__LINE__, r, at)
#define TB_MULTIPLY(c, a, b0, b1) shim::multiply(__LINE__, c, a, b0, b1)
TB_FN void copy_16(Address to, const void* from, bool inside) { shim::copy_16(to, from, inside); }
TB_FN void close_group() { shim::close_group(); }
template <int PENDING> TB_FN void wait_groups() { shim::wait_groups(PENDING); }
#define TB_FORGET(word)
#define TB_FORGET_POINTER(pointer)
// What only a test can find out: a place outside a buffer.
#define TB_IF_SHIM(...) __VA_ARGS__
#define TB_EXPECT(condition) shim::expect(condition, "a kernel's load lies outside its buffer")
#define TB_NOINLINE static __attribute__((noinline))
// Shared memory whose size a launch says.
#define TB_DYNAMIC_SHARED(name, size) alignas(16) __shared__ unsigned char name[size]

#else

// An address in shared memory's own window: 32 bits, half the registers of a generic pointer.
typedef u32 Address;
TB_FN Address address(const void* at) { return (Address)__cvta_generic_to_shared(at); }

#define TB_WARP_SYNC() __syncwarp()

// The word of the lane whose number differs in these bits.
#define TB_SHUFFLE_XOR(word, lanes) __shfl_xor_sync(0xffffffffu, word, lanes)

// The word of the lane with this number.
#define TB_SHUFFLE_FROM(word, lane) __shfl_sync(0xffffffffu, word, lane)
// Whether a word is not zero in any lane.
#define TB_ANY(word) (__any_sync(0xffffffffu, (word) != 0u) != 0)

// Four 8x8 matrices of 16-bit elements, which is 8 rows of 16 bytes each. Lane 8i + r gives the address of row r of matrix i;
// lane l receives bytes 4 (l mod 4) .. + 3 of row l / 4 of each (PTX ISA, "Warp-level matrix load instruction: ldmatrix").
TB_FN void load_matrices(u32 (&r)[4], Address at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
#define TB_LOAD_MATRICES(r, at) warp::load_matrices(r, at)

// c += a b for a of 16 x 32, b of 32 x 8 and c of 16 x 8: exact in s32 as long as no sum leaves it (without .satfinite it
// wraps). Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k32"), with g = lane / 4, t = lane mod 4:
//   a[0], a[1]: row g and row g + 8, places 4t .. 4t + 3 of K; a[2], a[3]: the same rows, 16 places on
//   b0: places 4t .. 4t + 3 of column g; b1: 16 places on
//   c[0], c[1]: row g, columns 2t and 2t + 1; c[2], c[3]: row g + 8
// All lanes have to meet in it, which the compiler knows of no asm: one that is not volatile it may move into the branch that uses
// the sums, where lanes are missing. It touches no memory, so loads may pass it.
TB_FN void multiply(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#define TB_MULTIPLY(c, a, b0, b1) warp::multiply(c, a, b0, b1)

// 16 bytes to shared memory behind the thread's back; zeros, and no read, where they are not inside (PTX ISA, "Data Movement
// and Conversion Instructions: cp.async"). `.cg` leaves L1 out, which a tile that is read once from there has no use for. A
// step takes 32 bytes of each row, so L2 is asked to fetch the rest of the line, which the next steps take.
TB_FN void copy_16(Address to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(inside ? 16u : 0u)
                 : "memory");
}
TB_FN void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most this many of the thread's own groups are under way; a barrier tells the others.
template <int PENDING> TB_FN void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// A word, or a pointer, that the compiler is to take as unknown from here on, so that nothing is computed from it before.
#define TB_FORGET(word) asm volatile("" : "+r"(word))
#define TB_FORGET_POINTER(pointer) asm volatile("" : "+l"(pointer))

#define TB_IF_SHIM(...)
#define TB_EXPECT(condition)
#define TB_NOINLINE static __device__ __noinline__
#define TB_DYNAMIC_SHARED(name, size) extern __shared__ __align__(16) unsigned char name[]

#endif

}  // namespace warp

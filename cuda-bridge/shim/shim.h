// CUDA's names on a host, so that its C++ compiler compiles translated kernels and runs them: a block's threads are
// fibers (ucontext) of one operating system thread, which change at barriers and nowhere else. A kernel without barriers
// is a loop. Compile with -ffp-contract=off: the intrinsics below are plain operators.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(n)
#define __constant__ static
// One copy for all threads of a block: a block runs on one operating system thread at a time.
#define __shared__ static thread_local

namespace shim {

struct Index3 { unsigned x, y, z; };
inline thread_local Index3 thread_index, block_index, grid_size;

}  // namespace shim

#define threadIdx (shim::thread_index)
#define blockIdx (shim::block_index)
#define gridDim (shim::grid_size)
// The line tells barriers apart, so that threads which wait at different ones are found.
#define __syncthreads() shim::wait_at(__LINE__)

inline unsigned __float_as_uint(float a) { unsigned r; memcpy(&r, &a, 4); return r; }
inline float __uint_as_float(unsigned a) { float r; memcpy(&r, &a, 4); return r; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __uint2float_rn(unsigned a) { return (float)a; }
inline float __int2float_rn(int a) { return (float)a; }
// The translation clamps before it converts.
inline unsigned __float2uint_rz(float a) { return (unsigned)a; }
inline int __float2int_rz(float a) { return (int)a; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz((unsigned)a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline unsigned __brev(unsigned a) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (a >> i & 1u) << (31 - i);
    return r;
}
inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; i++) sum += (unsigned)((int)(int8_t)((unsigned)a >> 8 * i) * (int)(int8_t)((unsigned)b >> 8 * i));
    return (int)sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255u) * (b >> 8 * i & 255u);
    return c;
}

namespace shim {

constexpr size_t STACK = 1 << 20;  // reserved; only what is touched becomes memory

struct Fiber {
    ucontext_t context;
    Index3 index;
    void* stack = nullptr;
    int line = 0;  // of the barrier that it waits at
    bool ended = false;
};

inline thread_local ucontext_t scheduler;
inline thread_local Fiber* running = nullptr;
inline thread_local const std::function<void()>* body = nullptr;

inline void wait_at(int line) {
    running->line = line;
    swapcontext(&running->context, &scheduler);
}

inline void enter() {
    (*body)();
    running->ended = true;
    swapcontext(&running->context, &scheduler);
}

// Runs one block by fibers. Every other round runs the threads backwards, so that code which relies on an order between
// barriers gives wrong results here. Returns a message, or null.
inline const char* run_block(std::vector<Fiber>& fibers) {
    for (Fiber& fiber : fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        fiber.ended = false;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool backwards = false;; backwards = !backwards) {
        for (size_t i = 0; i < fibers.size(); i++) {
            running = &fibers[backwards ? fibers.size() - 1 - i : i];
            thread_index = running->index;
            swapcontext(&scheduler, &running->context);
        }
        for (Fiber& fiber : fibers) {
            if (fiber.ended != fibers[0].ended) return "some threads of a block ended while others wait at a barrier";
            if (!fiber.ended && fiber.line != fibers[0].line) return "threads of a block wait at different barriers";
        }
        if (fibers[0].ended) return nullptr;
    }
}

// Runs `kernel` for every thread of every block.
inline const char* launch(const unsigned* grid, Index3 block, bool barriers, const std::function<void()>& kernel) {
    std::vector<Fiber> fibers;
    const char* error = nullptr;
    body = &kernel;
    grid_size = {grid[0], grid[1], grid[2]};
    if (barriers) {
        fibers.resize((size_t)block.x * block.y * block.z);
        for (Fiber& fiber : fibers) {
            fiber.stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (fiber.stack == MAP_FAILED) { fiber.stack = nullptr; error = "no memory for a thread's stack"; }
            else mprotect(fiber.stack, 4096, PROT_NONE);
        }
    }
    size_t count = 0;
    for (unsigned z = 0; z < block.z; z++)
        for (unsigned y = 0; y < block.y; y++)
            for (unsigned x = 0; x < block.x; x++, count++)
                if (barriers) fibers[count].index = {x, y, z};
    for (unsigned z = 0; z < grid[2] && !error; z++)
        for (unsigned y = 0; y < grid[1] && !error; y++)
            for (unsigned x = 0; x < grid[0] && !error; x++) {
                block_index = {x, y, z};
                if (barriers) { error = run_block(fibers); continue; }
                Index3& at = thread_index;
                for (at.z = 0; at.z < block.z; at.z++)
                    for (at.y = 0; at.y < block.y; at.y++)
                        for (at.x = 0; at.x < block.x; at.x++) kernel();
            }
    for (Fiber& fiber : fibers) if (fiber.stack) munmap(fiber.stack, STACK);
    return error;
}

// Runs a kernel whose arguments stand in memory, as the driver's launch has them; gives the last buffer, which is what our
// kernels write.
template <class... A, size_t... I>
const char* start(void (*kernel)(A...), const unsigned* grid, const unsigned* block, bool barriers, void** values,
                  void** written, std::index_sequence<I...>) {
    ((std::is_pointer_v<A> ? void(*written = *(void**)values[I]) : void()), ...);
    return launch(grid, {block[0], block[1], block[2]}, barriers, [&] { kernel(*(A*)values[I]...); });
}

template <class... A>
const char* start(void (*kernel)(A...), const unsigned* grid, const unsigned* block, bool barriers, void** values, void** written) {
    return start(kernel, grid, block, barriers, values, written, std::index_sequence_for<A...>{});
}

// A buffer as a pointer to whatever the kernel takes.
struct Buffer {
    void* at;
    template <class T> operator T*() const { return (T*)at; }
};

}  // namespace shim

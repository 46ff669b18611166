// CUDA's names on a host, so that its C++ compiler compiles kernels and runs them: a block's threads are fibers of one
// operating system thread, which change at barriers and at the operations of a whole warp (warp.h), and nowhere else. A kernel
// without barriers is a loop. Compile with -ffp-contract=off: the intrinsics below are plain operators.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define TIEBREAK_SHIM
#define __constant__ static
// One copy for all threads of a block: a block runs on one operating system thread at a time. The stand-in for the driver runs one launch
// at a time, and says so, since what belongs to a thread takes a call to find.
#ifdef SHIM_ONE_LAUNCH_AT_A_TIME
#define SHIM_OF_LAUNCH static
#else
#define SHIM_OF_LAUNCH static thread_local
#endif
#define __shared__ SHIM_OF_LAUNCH

namespace shim {

struct Index3 { unsigned x, y, z; };
SHIM_OF_LAUNCH Index3 thread_index, block_index, grid_size;

}  // namespace shim

#define threadIdx (shim::thread_index)
#define blockIdx (shim::block_index)
#define gridDim (shim::grid_size)
// The line tells barriers apart, so that threads which wait at different ones are found.
#define __syncthreads() shim::wait_at(__LINE__)

// What kernels take of <cmath>, which would double the time that the compiler spends on this file.
extern "C" {
double sqrt(double) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float truncf(float) noexcept;
float rintf(float) noexcept;
}
inline unsigned __float_as_uint(float a) { unsigned r; memcpy(&r, &a, 4); return r; }
inline float __uint_as_float(unsigned a) { float r; memcpy(&r, &a, 4); return r; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __double2float_rn(double a) { return (float)a; }
inline uint64_t shim_double_bits(double a) { uint64_t r; memcpy(&r, &a, 8); return r; }
inline int __double2hiint(double a) { return (int)(shim_double_bits(a) >> 32); }
inline int __double2loint(double a) { return (int)shim_double_bits(a); }
inline double __hiloint2double(int high, int low) {
    const uint64_t bits = (uint64_t)(unsigned)high << 32 | (unsigned)low;
    double r;
    memcpy(&r, &bits, 8);
    return r;
}
inline float __uint2float_rn(unsigned a) { return (float)a; }
inline float __int2float_rn(int a) { return (float)a; }
inline float __ll2float_rn(long long a) { return (float)a; }
// The translation clamps before it converts.
inline unsigned __float2uint_rz(float a) { return (unsigned)a; }
inline int __float2int_rz(float a) { return (int)a; }
// To nearest even, which is how the host rounds; out of range is the nearest integer there is, and a NaN is 0.
inline int __float2int_rn(float a) {
    if (a != a) return 0;
    if (a >= 2147483648.0f) return 2147483647;
    return a < -2147483648.0f ? -2147483647 - 1 : (int)__builtin_nearbyintf(a);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz((unsigned)a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
// Byte i of the result is the byte of b:a that nibble i of the selector names.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7u) & 255u) << 8 * i;
    return r;
}
inline unsigned __brev(unsigned a) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (a >> i & 1u) << (31 - i);
    return r;
}
// A block's threads take turns, and so do blocks.
inline unsigned atomicAdd(unsigned* at, unsigned more) { unsigned before = *at; *at += more; return before; }
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

constexpr unsigned WARP = 32;

// 16 bytes on their way to shared memory.
struct Copy {
    unsigned char* to;
    const unsigned char* from;
    bool inside;
};

// What all lanes of a warp do together, once every lane has given its argument.
typedef void (*Operation)(void* const* arguments);

// What the compiler's own setjmp keeps: unlike the C library's, it switches in a few instructions, and takes a change of stacks for no attack.
typedef void* Place[5];

enum State { READY, AT_BARRIER, AT_OPERATION, ENDED };

struct Fiber {
    Place place;  // where it goes on
    bool begun = false;
    Index3 index;
    void* stack = nullptr;
    State state = READY;
    int line = 0;  // of what it waits at
    // The operation of the warp that it waits at, and how many it has come to.
    Operation operation = nullptr;
    void* argument = nullptr;
    unsigned long operations = 0;
    // Copies under way, and how many of them belong to the groups that are closed, group by group.
    std::vector<Copy> copies;
    std::vector<size_t> groups;
};

SHIM_OF_LAUNCH Place scheduler;
SHIM_OF_LAUNCH Fiber* running = nullptr;
// What every thread runs. (std::function's header would take as long to compile as all of this.)
struct Body {
    void (*run)(const void*);
    const void* kernel;
};
SHIM_OF_LAUNCH Body body;
// The first thing that was found wrong.
SHIM_OF_LAUNCH const char* fault = nullptr;

inline void expect(bool condition, const char* message) {
    if (!condition && !fault) fault = message;
}

// A place is left by another function than the one that keeps it, as the compiler asks.
__attribute__((noinline)) inline void go_on(Place& place) { __builtin_longjmp(place, 1); }

__attribute__((noinline)) inline void pause() {
    if (__builtin_setjmp(running->place) == 0) go_on(scheduler);
}

inline void begin(Fiber* fiber);

__attribute__((noinline)) inline void resume(Fiber* fiber) {
    running = fiber;
    thread_index = fiber->index;
    if (__builtin_setjmp(scheduler) != 0) return;
    if (fiber->begun) go_on(fiber->place);
    begin(fiber);
}

inline void wait_at(int line) {
    running->state = AT_BARRIER;
    running->line = line;
    pause();
}

inline void wait_for_warp(int line, Operation operation, void* argument) {
    running->state = AT_OPERATION;
    running->line = line;
    running->operation = operation;
    running->argument = argument;
    running->operations++;
    pause();
}

// A fiber runs a thread of one block after another.
inline void enter() {
    for (;;) {
        body.run(body.kernel);
        expect(running->copies.empty(), "a thread ended with copies that it did not wait for");
        running->state = ENDED;
        pause();
    }
}

// Contexts of the C library keep signal masks, by system calls: they only begin a fiber.
__attribute__((noinline)) inline void begin(Fiber* fiber) {
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    // Stacks that all begin at one offset in a page would share a few sets of a processor's cache.
    const unsigned number = fiber->index.x + fiber->index.y + fiber->index.z;
    context.uc_stack.ss_size = STACK - number % 61 * 1088;
    context.uc_link = nullptr;
    fiber->begun = true;
    makecontext(&context, enter, 0);
    setcontext(&context);
}

// Runs a warp's lanes until each is at a barrier or at its end. Returns a message, or null.
inline const char* run_warp(Fiber* lanes, size_t count, bool& backwards) {
    for (;;) {
        for (size_t i = 0; i < count; i++) {
            Fiber* lane = &lanes[backwards ? count - 1 - i : i];
            if (lane->state == READY) resume(lane);
        }
        size_t waiting = 0;
        for (size_t i = 0; i < count; i++) waiting += lanes[i].state == AT_OPERATION;
        if (waiting == 0) return nullptr;
        void* arguments[WARP];
        for (size_t i = 0; i < count; i++) {
            const Fiber& lane = lanes[i];
            bool same = lane.line == lanes[0].line && lane.operation == lanes[0].operation && lane.operations == lanes[0].operations;
            if (waiting != WARP || !same) return "lanes of a warp part at an operation of the whole warp";
            arguments[i] = lane.argument;
        }
        lanes[0].operation(arguments);
        for (size_t i = 0; i < count; i++) lanes[i].state = READY;
        backwards = !backwards;
    }
}

// Runs one block by fibers. Every other round runs the threads backwards, so that code which relies on an order between
// barriers gives wrong results here. Returns a message, or null.
inline const char* run_block(std::vector<Fiber>& fibers) {
    fault = nullptr;
    for (Fiber& fiber : fibers) {
        fiber.state = READY;
        fiber.operations = 0;
        fiber.copies.clear();
        fiber.groups.clear();
    }
    const size_t warps = (fibers.size() + WARP - 1) / WARP;
    for (bool backwards = false;; backwards = !backwards) {
        for (size_t i = 0; i < warps; i++) {
            const size_t first = (backwards ? warps - 1 - i : i) * WARP;
            const size_t count = fibers.size() - first < WARP ? fibers.size() - first : WARP;
            bool lanes_backwards = backwards;
            if (const char* error = run_warp(&fibers[first], count, lanes_backwards)) return error;
        }
        if (fault) return fault;
        for (Fiber& fiber : fibers) {
            if (fiber.state != fibers[0].state) return "some threads of a block ended while others wait at a barrier";
            if (fiber.state != ENDED && fiber.line != fibers[0].line) return "threads of a block wait at different barriers";
        }
        if (fibers[0].state == ENDED) return nullptr;
        for (Fiber& fiber : fibers) fiber.state = READY;
    }
}

// Stacks that are kept from launch to launch, if they are: of this library alone, since others launch beside it. The most threads of a block.
static char* kept = nullptr;
constexpr size_t THREADS_MAX = 1024;

// Makes launches use the stacks at `*place`, which kernels of a process that run one at a time may share; makes them if there are none.
inline void keep_stacks(char** place) {
    if (!*place) {
        void* at = mmap(nullptr, THREADS_MAX * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return;
        *place = (char*)at;
        for (size_t i = 0; i < THREADS_MAX; i++) mprotect(*place + i * STACK, 4096, PROT_NONE);
    }
    kept = *place;
}

// Runs a kernel for every thread of every block.
inline const char* launch_body(const unsigned* grid, Index3 block, bool barriers, Body kernel) {
    std::vector<Fiber> fibers;
    const char* error = nullptr;
    body = kernel;
    grid_size = {grid[0], grid[1], grid[2]};
    if (barriers) {
        fibers.resize((size_t)block.x * block.y * block.z);
        for (Fiber& fiber : fibers) {
            if (kept) { fiber.stack = kept + size_t(&fiber - fibers.data()) * STACK; continue; }
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
                        for (at.x = 0; at.x < block.x; at.x++) body.run(body.kernel);
            }
    for (Fiber& fiber : fibers) if (fiber.stack && !kept) munmap(fiber.stack, STACK);
    return error;
}

template <class Kernel>
const char* launch(const unsigned* grid, Index3 block, bool barriers, const Kernel& kernel) {
    return launch_body(grid, block, barriers, {[](const void* of) { (*(const Kernel*)of)(); }, &kernel});
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

// The bytes of a kernel's arguments, in order; gives how many there are.
template <class... A> size_t sizes(void (*)(A...), size_t* bytes) {
    ((*bytes++ = sizeof(A)), ...);
    return sizeof...(A);
}

// A buffer as a pointer to whatever the kernel takes.
struct Buffer {
    void* at;
    template <class T> operator T*() const { return (T*)at; }
};

}  // namespace shim

// CUDA C++ on the host: each thread of a block is a fiber, blocks run one after the other.
//
// A .cu file is compiled by g++ behind this header. A thread runs until it waits: for its block, or
// for lanes of its warp; then the next one runs, in an order that the caller chooses. What CUDA
// leaves undefined is an error here: a barrier that not all threads reach, lanes of a warp that
// wait for different things, a shuffle from a lane that takes no part. Shared memory is filled with
// a pattern before each block. float32 instructions flush subnormal numbers, as under CuPy.
//
// Shared variables must be static arrays or scalars of plain functions (no templates).
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define GCODEC_SHIM 1
#define __global__ __attribute__((noinline, unused))
#define __device__ __attribute__((unused))
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shim_shared")))
#define SHIM_INLINE inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))

extern "C" char __start_shim_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shim_shared[] __attribute__((weak, visibility("hidden")));

struct dim3 {
    unsigned x, y, z;
};
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct uchar4 { unsigned char x, y, z, w; } __attribute__((aligned(4)));
struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return uint4{x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return float4{x, y, z, w};
}

static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

namespace shim {

enum Wait { RUNNABLE, BARRIER, WARP, DONE };
enum Operation { SYNC, BALLOT, SHUFFLE };

static const int MOST = 1024;
static const size_t STACK = 128 << 10;

// Most of the time is spent on switches. So a switch stands where it is needed, rather than in a
// function: processors predict returns, and none returns to where it was called from.
#if defined(__x86_64__)
struct Place {
    void *stack, *frame, *next;
};

// Stores where this fiber goes on, and goes on elsewhere. Registers keep nothing across it.
static SHIM_INLINE void go(Place& from, Place& to) {
    Place *here = &from, *there = &to;
    asm volatile(
        "leaq 1f(%%rip), %%rdx\n\tmovq %%rsp, (%0)\n\tmovq %%rbp, 8(%0)\n\tmovq %%rdx, 16(%0)\n\t"
        "movq (%1), %%rsp\n\tmovq 8(%1), %%rbp\n\tjmp *16(%1)\n1:"
        : "+a"(here), "+c"(there)
        :
        : "rbx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
          "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

// Makes a place where a function begins on a stack of its own.
static void prepare(Place& place, char* stack, size_t size, void (*begin)()) {
    // As after a call: 8 bytes below a multiple of 16.
    place = Place{(void*)((((uintptr_t)stack + size) & ~(uintptr_t)15) - 8), nullptr, (void*)begin};
}
#else
struct Place {
    void* at[5];
};

// A function of its own, because one that calls __builtin_setjmp must not call __builtin_longjmp.
static __attribute__((noinline, noreturn)) void jump(Place& to) {
    __builtin_longjmp(to.at, 1);
}

// Meanwhile, other fibers change memory and registers. The compiler does not see it in the functions
// that switch, so it must not look into them.
static __attribute__((noinline, noipa)) void go(Place& from, Place& to) {
    if (!__builtin_setjmp(from.at)) jump(to);
}

static Place preparing, *prepared;
static void (*first)();

static void enter() {
    go(*prepared, preparing);
    first();
}

static __attribute__((noinline, noipa)) void prepare(Place& place, char* stack, size_t size,
                                                     void (*begin)()) {
    static ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    prepared = &place;
    first = begin;
    if (!__builtin_setjmp(preparing.at)) setcontext(&context);
}
#endif

struct Fiber {
    Place at;
    Wait wait;
    bool made;
    bool begun;  // in this block
    unsigned thread;  // in its block, which has one dimension
    // Of what the lane waits for in its warp.
    Operation operation;
    unsigned mask, source;
    uint64_t value, result;
    char* stack;
};

static Fiber fibers[MOST];
static unsigned waiting[MOST / 32];  // for each warp, the lanes that wait for others
static unsigned present[MOST / 32];  // and those that the block has
static Fiber* current;
static Place scheduler;
// The order of the threads of a block, and the position of the current one.
static const unsigned* turns;
static unsigned turn, turn_count;
static void (*body)(void**);
static void** arguments;
static char message[256];

static void make_current(Fiber* fiber) {
    current = fiber;
    fiber->begun = true;
    threadIdx.x = fiber->thread;
}

static void run_fiber();

// Selects the next thread that can run, or else the scheduler.
static __attribute__((noinline)) Place& next() {
    while (!message[0] && ++turn < turn_count) {
        Fiber* fiber = &fibers[turns[turn]];
        if (fiber->wait != RUNNABLE) continue;
        make_current(fiber);
        if (!fiber->made) {
            if (!fiber->stack) fiber->stack = (char*)malloc(STACK);
            // Tops of stacks apart, so that they do not take the same lines of the cache.
            prepare(fiber->at, fiber->stack, STACK - 320 * (fiber - fibers) % 8192, run_fiber);
            fiber->made = true;
        }
        return fiber->at;
    }
    return scheduler;
}

static SHIM_INLINE void pause() {
    Place& from = current->at;
    go(from, next());
}

// Lets a thread that is to begin next take the stack of one that is done, which saves a switch.
static bool take_stack(Fiber* done) {
    if (turn + 1 >= turn_count) return false;
    Fiber* fiber = &fibers[turns[turn + 1]];
    if (fiber->begun) return false;
    turn++;
    char* stack = done->stack;
    done->stack = fiber->stack;
    fiber->stack = stack;
    done->at = fiber->at;
    done->made = fiber->made;
    fiber->made = true;
    make_current(fiber);
    return true;
}

static void run_fiber() {
    for (;;) {  // thread after thread
        body(arguments);
        current->wait = DONE;
        if (!take_stack(current)) pause();
    }
}

// Lets each thread that can run go on until it waits, in turn.
static void resume_all() {
    turn = -1u;
    go(scheduler, next());
}

// Lets the lanes of a mask go on, which have all come.
static __attribute__((noinline)) void meet(unsigned first, unsigned mask) {
    Fiber* lanes = &fibers[first];
    Operation operation = current->operation;
    uint64_t ballot = 0;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        if (lanes[lane].mask != mask || lanes[lane].operation != operation) {
            snprintf(message, sizeof message, "threads %u and %u of a warp wait for different things",
                     current->thread, first + lane);
            return;
        }
        ballot |= (uint64_t)(lanes[lane].value != 0) << lane;
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest), source = lanes[lane].source;
        lanes[lane].wait = RUNNABLE;
        if (operation == BALLOT) lanes[lane].result = ballot;
        if (operation != SHUFFLE) continue;
        if (!(mask >> source & 1))
            snprintf(message, sizeof message, "thread %u shuffles from lane %u, which takes no part",
                     first + lane, source);
        lanes[lane].result = lanes[source].value;
    }
    waiting[first / 32] &= ~mask;
}

// Says why a call of a thread cannot be answered.
static __attribute__((noinline)) void refuse(unsigned own, unsigned mask) {
    if (!(mask >> (own & 31) & 1))
        snprintf(message, sizeof message, "thread %u is not in the mask %08x of its own call", own,
                 mask);
    else
        snprintf(message, sizeof message, "mask %08x names lanes that the block lacks", mask);
}

// Waits for the lanes of a mask.
static SHIM_INLINE uint64_t in_warp(Operation operation, unsigned mask, uint64_t value,
                                    unsigned source) {
    Fiber* fiber = current;
    unsigned own = fiber->thread, warp = own / 32, lane = 1u << (own & 31);
    fiber->operation = operation;
    fiber->mask = mask;
    fiber->value = value;
    fiber->source = source;
    fiber->wait = WARP;
    waiting[warp] |= lane;
    if ((mask & ~present[warp]) | (lane & ~mask)) refuse(own, mask);
    else if (!(mask & ~waiting[warp])) meet(own & ~31u, mask);
    // Also where all have come: others may go first.
    pause();
    return current->result;
}

static void run_block(unsigned threads, const unsigned* order) {
    if (__start_shim_shared)
        memset(__start_shim_shared, 0xA5, __stop_shim_shared - __start_shim_shared);
    memset(waiting, 0, sizeof waiting);
    memset(present, 0, sizeof present);
    for (unsigned t = 0; t < threads; t++) {
        fibers[t].wait = RUNNABLE;
        fibers[t].begun = false;
        fibers[t].thread = t;
        present[t / 32] |= 1u << (t & 31);
    }
    turns = order;
    turn_count = threads;
    for (;;) {
        resume_all();
        if (message[0]) return;
        unsigned runnable = 0, done = 0, waiting = 0;
        for (unsigned t = 0; t < threads; t++) {
            runnable += fibers[t].wait == RUNNABLE;
            done += fibers[t].wait == DONE;
            waiting += fibers[t].wait == BARRIER;
        }
        if (runnable) continue;
        if (done == threads) return;
        if (waiting != threads) {
            unsigned t = 0;
            while (fibers[t].wait == DONE) t++;
            snprintf(message, sizeof message,
                     "deadlock in block %u: %u threads are done, %u wait at a barrier, %u for lanes of "
                     "their warp, such as thread %u with mask %08x",
                     blockIdx.x, done, waiting, threads - done - waiting, t, fibers[t].mask);
            return;
        }
        for (unsigned t = 0; t < threads; t++) fibers[t].wait = RUNNABLE;
    }
}

// Runs a grid. Orders are permutations of threads, and of blocks. Returns a message, "" where all
// is well.
static const char* run(void (*call)(void**), void** args, const unsigned* grid, unsigned threads,
                       const unsigned* thread_order, const unsigned* block_order) {
    message[0] = 0;
    if (threads < 1 || threads > (unsigned)MOST) return "a block has 1 to 1024 threads";
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // subnormal numbers are zero, as operands and as results
#endif
    body = call;
    arguments = args;
    gridDim = dim3{grid[0], grid[1], grid[2]};
    blockDim = dim3{threads, 1, 1};
    unsigned blocks = grid[0] * grid[1] * grid[2];
    for (unsigned b = 0; b < blocks && !message[0]; b++) {
        unsigned at = block_order[b];
        blockIdx = dim3{at % grid[0], at / grid[0] % grid[1], at / grid[0] / grid[1]};
        run_block(threads, thread_order);
    }
    if (message[0])
        for (unsigned t = 0; t < threads; t++) fibers[t].made = false;  // they stand anywhere
#if defined(__SSE2__)
    _mm_setcsr(before);
#endif
    return message;
}

// What types the arguments of a kernel have: a letter each, an array's behind a "*".
template <class T> struct Letter;
template <> struct Letter<signed char> { static const char is = 'b'; };
template <> struct Letter<unsigned char> { static const char is = 'B'; };
template <> struct Letter<short> { static const char is = 'h'; };
template <> struct Letter<unsigned short> { static const char is = 'H'; };
template <> struct Letter<int> { static const char is = 'i'; };
template <> struct Letter<unsigned> { static const char is = 'I'; };
template <> struct Letter<long long> { static const char is = 'q'; };
template <> struct Letter<unsigned long long> { static const char is = 'Q'; };
template <> struct Letter<float> { static const char is = 'f'; };
template <> struct Letter<double> { static const char is = 'd'; };
template <> struct Letter<bool> { static const char is = '?'; };
template <> struct Letter<uint4> { static const char is = 'V'; };
template <> struct Letter<float4> { static const char is = 'W'; };

template <class T> struct Tell {
    static char* write(char* at) {
        *at++ = Letter<T>::is;
        return at;
    }
};
template <class T> struct Tell<T*> {
    static char* write(char* at) {
        *at++ = '*';
        *at++ = Letter<T>::is;
        return at;
    }
};
template <class T> struct Tell<const T*> : Tell<T*> {};
template <class T> struct Tell<T* __restrict> : Tell<T*> {};
template <class T> struct Tell<const T* __restrict> : Tell<T*> {};

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct Make : Make<N - 1, N - 1, I...> {};
template <size_t... I> struct Make<0, I...> { typedef Places<I...> type; };
template <class T> struct Plain { typedef T type; };
template <class T> struct Plain<const T> { typedef T type; };

template <class... A> const char* types(void (*)(A...)) {
    static char text[2 * sizeof...(A) + 1];
    char* at = text;
    int unused[] = {0, (at = Tell<typename Plain<A>::type>::write(at), 0)...};
    (void)unused;
    return text;
}
template <class... A, size_t... I>
inline void apply(void (*kernel)(A...), void** args, Places<I...>) {
    kernel(*(typename Plain<A>::type*)args[I]...);
}
template <class... A> inline void call(void (*kernel)(A...), void** args) {
    apply(kernel, args, typename Make<sizeof...(A)>::type());
}

template <class T> uint64_t as_bits(T x) {
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T> SHIM_INLINE T shuffle(unsigned mask, T value, unsigned source) {
    return from_bits<T>(in_warp(SHUFFLE, mask, as_bits(value), source));
}

}  // namespace shim

#define SHIM_KERNEL(name)                                                                         \
    extern "C" const char* shim_types_##name() { return shim::types(name); }                      \
    static void shim_call_##name(void** args) { shim::call(name, args); }                         \
    extern "C" const char* shim_run_##name(void** args, const unsigned* grid, unsigned threads,   \
                                           const unsigned* thread_order,                          \
                                           const unsigned* block_order) {                         \
        return shim::run(shim_call_##name, args, grid, threads, thread_order, block_order);       \
    }

// --- synchronization ------------------------------------------------------------------------------

static SHIM_INLINE void __syncthreads() {
    shim::current->wait = shim::BARRIER;
    shim::pause();
}
static SHIM_INLINE int __syncthreads_count(int predicate) {
    static int counted;
    if (!threadIdx.x) counted = 0;
    __syncthreads();
    counted += predicate != 0;
    __syncthreads();
    int found = counted;
    __syncthreads();
    return found;
}
static SHIM_INLINE int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
static SHIM_INLINE int __syncthreads_and(int predicate) { return !__syncthreads_count(!predicate); }
static SHIM_INLINE void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
    shim::in_warp(shim::SYNC, mask, 0, 0);
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static SHIM_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
    return (unsigned)shim::in_warp(shim::BALLOT, mask, predicate != 0, 0);
}
static SHIM_INLINE int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
static SHIM_INLINE int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) == mask;
}

// With a width below 32, the lanes of each part shuffle among themselves, as in CUDA.
template <class T>
SHIM_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    unsigned own = threadIdx.x & 31;
    return shim::shuffle(mask, value, (own & ~(width - 1u)) | ((unsigned)lane & (width - 1u)));
}
template <class T>
SHIM_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned own = threadIdx.x & 31;
    return shim::shuffle(mask, value, (own & (width - 1u)) >= delta ? own - delta : own);
}
template <class T>
SHIM_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned own = threadIdx.x & 31, within = own & (width - 1u);
    return shim::shuffle(mask, value, within + delta < (unsigned)width ? own + delta : own);
}
template <class T>
SHIM_INLINE T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    unsigned own = threadIdx.x & 31, other = own ^ (unsigned)with;
    return shim::shuffle(mask, value, (other & ~(width - 1u)) > (own | (width - 1u)) ? own : other);
}

// --- atomics: threads take turns, so plain accesses are whole -------------------------------------

template <class T, class V> T atomicAdd(T* at, V value) {
    T before = *at;
    *at = (T)(before + (T)value);
    return before;
}
template <class T, class V> T atomicOr(T* at, V value) {
    T before = *at;
    *at = before | (T)value;
    return before;
}
template <class T, class V> T atomicAnd(T* at, V value) {
    T before = *at;
    *at = before & (T)value;
    return before;
}
template <class T, class V> T atomicXor(T* at, V value) {
    T before = *at;
    *at = before ^ (T)value;
    return before;
}
template <class T, class V> T atomicMax(T* at, V value) {
    T before = *at;
    if ((T)value > before) *at = (T)value;
    return before;
}
template <class T, class V> T atomicMin(T* at, V value) {
    T before = *at;
    if ((T)value < before) *at = (T)value;
    return before;
}
template <class T, class V> T atomicExch(T* at, V value) {
    T before = *at;
    *at = (T)value;
    return before;
}
template <class T, class V, class W> T atomicCAS(T* at, V expected, W value) {
    T before = *at;
    if (before == (T)expected) *at = (T)value;
    return before;
}

// --- bits and arithmetic --------------------------------------------------------------------------

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int k = 0; k < 32; k++) y |= (x >> k & 1) << (31 - k);
    return y;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned found = 0;
    for (int k = 0; k < 4; k++) {
        unsigned nibble = selector >> 4 * k & 15, byte = (unsigned)(both >> 8 * (nibble & 7)) & 0xFF;
        if (nibble & 8) byte = byte & 0x80 ? 0xFF : 0;
        found |= byte << 8 * k;
    }
    return found;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline unsigned __float_as_uint(float x) { return (unsigned)shim::as_bits(x); }
static inline int __float_as_int(float x) { return (int)shim::as_bits(x); }
static inline float __uint_as_float(unsigned x) { return shim::from_bits<float>(x); }
static inline float __int_as_float(int x) { return shim::from_bits<float>((unsigned)x); }
static inline long long __double_as_longlong(double x) { return (long long)shim::as_bits(x); }
static inline double __longlong_as_double(long long x) {
    return shim::from_bits<double>((uint64_t)x);
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
static inline float __double2float_rn(double x) { return (float)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
// Out of range they saturate and NaN is 0, as on the device.
static inline int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
static inline int __float2int_rz(float x) {
    if (!(x == x)) return 0;
    return x >= 0x1p31f ? 0x7FFFFFFF : x <= -0x1p31f ? -0x7FFFFFFF - 1 : (int)x;
}
static inline int __double2int_rz(double x) {
    if (!(x == x)) return 0;
    return x >= 0x1p31 ? 0x7FFFFFFF : x <= -0x1p31 ? -0x7FFFFFFF - 1 : (int)x;
}
static inline long long __double2ll_rz(double x) {
    if (!(x == x)) return 0;
    if (x >= 0x1p63) return 0x7FFFFFFFFFFFFFFFll;
    return x <= -0x1p63 ? -0x7FFFFFFFFFFFFFFFll - 1 : (long long)x;
}
static inline double rint(double x) { return __builtin_rint(x); }
static inline double floor(double x) { return __builtin_floor(x); }
static inline float rintf(float x) { return __builtin_rintf(x); }
static inline float floorf(float x) { return __builtin_floorf(x); }
static inline double fabs(double x) { return __builtin_fabs(x); }
static inline float fabsf(float x) { return __builtin_fabsf(x); }

template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

template <class T> static inline T __ldg(const T* at) { return *at; }

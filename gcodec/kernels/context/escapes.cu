// Lists and checks of symbols such as escapes; see escapes.py.
#include "kernels/bits/listed.cuh"
#include "kernels/bits/widths.cuh"

static const u32 ESCAPE = 254;
static const int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    list_from(const u8* __restrict__ symbols, i32 width, i64 n, u32 least, u64* __restrict__ out,
              i64 room) {
    list(
        n, out, room, [&](i64 i) { return symbol_at(symbols, width, i) >= least; },
        [&](i64 i) { return (u64)symbol_at(symbols, width, i); }
    );
}

extern "C" __global__ void __launch_bounds__(THREADS)
    list_elements(const u32* __restrict__ x, const u8* __restrict__ symbols, i64 n, u32 least,
                  u64* __restrict__ out, i64 room) {
    list(
        n, out, room, [&](i64 i) { return symbols[i] >= least; },
        [&](i64 i) { return (u64)x[i]; }
    );
}

// The sum of a value over the lanes of a warp.
__device__ __forceinline__ i64 warp_sum(i64 own) {
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
    return own;
}

// Whole warps. counts: the escapes, and the other symbols above `most`.
extern "C" __global__ void __launch_bounds__(THREADS)
    count_escapes(const u8* __restrict__ symbols, i64 n, u32 least, u32 most,
                  u64* __restrict__ counts) {
    i64 escapes = 0, above = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        escapes += symbols[i] >= least;
        above += symbols[i] < least && symbols[i] > most;
    }
    escapes = warp_sum(escapes);
    above = warp_sum(above);
    if (threadIdx.x % WARP != 0) return;
    if (escapes) atomicAdd(counts, (u64)escapes);
    if (above) atomicAdd(counts + 1, (u64)above);
}

// Counts the positions at which the symbols have the expected values; places, values: `size` each.
extern "C" __global__ void __launch_bounds__(THREADS)
    count_equal(const u8* __restrict__ symbols, i64 n, const i64* __restrict__ places,
                const u8* __restrict__ values, i64 size, u64* __restrict__ count) {
    for (i64 j = GCODEC_FIRST; j < size; j += GCODEC_STEP)
        if ((u64)places[j] < (u64)n && symbols[places[j]] == values[j]) atomicAdd(count, (u64)1);
}

// Whole warps.
extern "C" __global__ void __launch_bounds__(THREADS)
    largest_symbol(const u8* __restrict__ symbols, i64 n, u32* __restrict__ largest) {
    u32 own = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) own = max(own, (u32)symbols[i]);
    for (int step = 16; step; step /= 2) own = max(own, __shfl_xor_sync(EVERY_LANE, own, step));
    if (threadIdx.x % WARP == 0) atomicMax(largest, own);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cut_off(const u8* __restrict__ symbols, i32 width, i64 n, u8* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = (u8)min(symbol_at(symbols, width, i), ESCAPE);
}

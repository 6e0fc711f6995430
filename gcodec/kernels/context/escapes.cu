// Twin of escapes.py: symbols that stand for others, which are told beside.
#include "kernels/bits/listed.cuh"

static const u32 ESCAPE = 254;
static const int THREADS = 256;

// Symbol i of those of one, two or four bytes.
__device__ __forceinline__ u32 symbol_at(const u8* symbols, i32 width, i64 i) {
    if (width == 1) return symbols[i];
    if (width == 2) return ((const u16*)symbols)[i];
    return ((const u32*)symbols)[i];
}

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

extern "C" __global__ void __launch_bounds__(THREADS)
    count_escapes(const u8* __restrict__ symbols, i64 n, u32 least, u32 most,
                  u64* __restrict__ counts) {
    // Whole warps; counts: of escapes, and of others above `most`
    i64 own = 0, above = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        own += symbols[i] >= least;
        above += symbols[i] < least && symbols[i] > most;
    }
    for (int step = 16; step; step /= 2) {
        own += __shfl_xor_sync(EVERY_LANE, own, step);
        above += __shfl_xor_sync(EVERY_LANE, above, step);
    }
    if (threadIdx.x % WARP != 0) return;
    if (own) atomicAdd(counts, (u64)own);
    if (above) atomicAdd(counts + 1, (u64)above);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    count_alike(const u8* __restrict__ symbols, i64 n, const i64* __restrict__ places,
                const u8* __restrict__ values, i64 some, u64* __restrict__ count) {
    // places, values: some
    for (i64 j = GCODEC_FIRST; j < some; j += GCODEC_STEP)
        if ((u64)places[j] < (u64)n && symbols[places[j]] == values[j]) atomicAdd(count, (u64)1);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    largest_symbol(const u8* __restrict__ symbols, i64 n, u32* __restrict__ largest) {
    // Whole warps
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

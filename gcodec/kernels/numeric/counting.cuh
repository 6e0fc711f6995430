// Histograms in shared memory.
#pragma once
#include "runtime/types.cuh"

static const u32 NOT_COUNTED = 0xFFFFFFFFu;

// Adds 1 to the count at the place of each lane of a whole warp, except for NOT_COUNTED. A word of the
// table contains 2^log2 counts of `width` bits. Lanes with the same place as the first lane make one
// addition, so that equal neighbors, zeros above all, do not wait for each other.
__device__ __forceinline__ void count_place(u32* table, u32 place, u32 log2, u32 width) {
    u32 first = __shfl_sync(0xFFFFFFFFu, place, 0);
    u32 same = __ballot_sync(0xFFFFFFFFu, place == first);
    u32 times = place != first ? 1 : (threadIdx.x & 31) == 0 ? __popc(same) : 0;
    if (times == 0 || place == NOT_COUNTED) return;
    atomicAdd(&table[place >> log2], times << width * (place & ((1u << log2) - 1)));
}

static const u32 NEAR = 16;  // number of symbols that are counted in shared memory

// Counts the symbols of tiles of `size` elements in `counts`, 256 for each model. A tile starts at
// first_of(tile), below n; number(i) is the model of symbol i. `table` has NEAR words for each model.
template <typename FirstOf, typename Number>
__device__ __forceinline__ void count_by_model(const u8* __restrict__ symbols, i64 n, i64 size,
                                               u32 models, u32* table, u64* __restrict__ counts,
                                               FirstOf first_of, Number number) {
    for (u32 k = threadIdx.x; k < models * NEAR; k += blockDim.x) table[k] = 0;
    __syncthreads();
    for (i64 tile = blockIdx.x; first_of(tile) < n; tile += gridDim.x) {
        i64 first = first_of(tile), stop = first + size < n ? first + size : n;
        for (i64 row = first; row < stop; row += blockDim.x) {  // the same for all threads
            i64 i = row + threadIdx.x;
            u32 place = NOT_COUNTED;
            if (i < stop) {
                u32 symbol = symbols[i], model = number(i);
                if (symbol < NEAR) place = model * NEAR + symbol;
                else atomicAdd(&counts[model << 8 | symbol], (u64)1);
            }
            count_place(table, place, 0, 0);
        }
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < models * NEAR; k += blockDim.x)
        if (table[k]) atomicAdd(&counts[k / NEAR << 8 | k % NEAR], (u64)table[k]);
}

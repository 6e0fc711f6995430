// Tables of counts in shared memory.
#pragma once
#include "types.cuh"

static const u32 NOT_COUNTED = 0xFFFFFFFFu;

// Adds 1 to the place of each lane of a whole warp but for NOT_COUNTED: `unit` to word
// place >> log2 of the table, shifted by `width` bits for each place before it in the word. Lanes
// with the place of the first one are added at once, so that equal neighbours, zeros above all, do
// not wait for each other.
__device__ __forceinline__ void count_place(u32* table, u32 place, u32 log2, u32 width) {
    u32 first = __shfl_sync(0xFFFFFFFFu, place, 0);
    u32 same = __ballot_sync(0xFFFFFFFFu, place == first);
    u32 times = place != first ? 1 : (threadIdx.x & 31) == 0 ? __popc(same) : 0;
    if (times == 0 || place == NOT_COUNTED) return;
    atomicAdd(&table[place >> log2], times << width * (place & ((1u << log2) - 1)));
}

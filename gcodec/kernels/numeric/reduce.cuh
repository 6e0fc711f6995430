// Sums in the fixed order: a tile has 4096 elements in 256 lanes, which a binary tree adds up.
#pragma once
#include "kernels/numeric/floats.cuh"

static const int TILE = 4096;
static const int LANES = 256;  // threads of a block, which processes a tile

// The sum of the numbers of the LANES threads of a block, in thread 0. `lanes` is shared and has
// LANES / 2 elements.
__device__ __forceinline__ f64 add_lanes(f64 own, f64* lanes) {
    int t = threadIdx.x;
    // Widths 128, 64, 32: thread t adds the number of thread t + width.
    for (int width = LANES / 2; width >= 32; width /= 2) {
        if (t >= width && t < 2 * width) lanes[t - width] = own;  // t - width < LANES / 2
        __syncthreads();
        if (t < width) own = __dadd_rn(own, lanes[t]);
        __syncthreads();
    }
    // The first warp adds up the remaining numbers; the results of other threads are not used.
    for (int width = 16; width >= 1; width /= 2)
        own = __dadd_rn(own, __shfl_down_sync(0xFFFFFFFFu, own, width));
    return own;
}

// The sum of value(i) for elements `start` to end - 1 of a tile, in thread 0; see add_lanes.
template <class Value>
__device__ __forceinline__ f64 sum_tile(i64 start, i64 end, f64* lanes, Value value) {
    f64 sum = 0.0;
    for (i64 i = start + threadIdx.x; i < end; i += LANES) sum = __dadd_rn(sum, value(i));
    return add_lanes(sum, lanes);
}

// Raises a word to the largest number of all calling warps.
__device__ __forceinline__ void raise_largest(u32 top, u32* largest) {
    for (int width = 16; width >= 1; width /= 2)
        top = max(top, __shfl_down_sync(0xFFFFFFFFu, top, width));
    if (threadIdx.x % 32 == 0) atomicMax(largest, top);
}

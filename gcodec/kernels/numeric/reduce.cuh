// Sums by the written order: tiles of 4096 elements, in a tile 256 lanes, added by a binary tree.
#pragma once
#include "kernels/numeric/floats.cuh"

static const int TILE = 4096;
static const int LANES = 256;  // threads of a block, which does a tile

// The sum of what the LANES threads of a block hold, in thread 0. `lanes` is shared, of LANES / 2.
__device__ __forceinline__ f64 add_lanes(f64 own, f64* lanes) {
    int t = threadIdx.x;
    // Widths 128, 64, 32: thread t adds what t + width holds.
    for (int width = LANES / 2; width >= 32; width /= 2) {
        if (t >= width && t < 2 * width) lanes[t - width] = own;  // t - width < LANES / 2
        __syncthreads();
        if (t < width) own = __dadd_rn(own, lanes[t]);
        __syncthreads();
    }
    // The rest is in the first warp; what other lanes and warps compute here is not looked at.
    for (int width = 16; width >= 1; width /= 2)
        own = __dadd_rn(own, __shfl_down_sync(0xFFFFFFFFu, own, width));
    return own;
}

// Raises a word to the largest of what all threads hold, those of a warp together.
__device__ __forceinline__ void raise_largest(u32 top, u32* largest) {
    for (int width = 16; width >= 1; width /= 2)
        top = max(top, __shfl_down_sync(0xFFFFFFFFu, top, width));
    if (threadIdx.x % 32 == 0) atomicMax(largest, top);
}

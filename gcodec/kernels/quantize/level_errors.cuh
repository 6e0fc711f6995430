// Statistics of the quantization errors of levels: the sums of `Errors` in rated_levels.py.
#pragma once
#include "runtime/types.cuh"

// Adds the values of the lanes of a whole warp to a 64-bit integer in global memory.
__device__ __forceinline__ void add_to_sum(u64* sum, i64 own) {
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(0xFFFFFFFFu, own, step);
    if ((threadIdx.x & 31) == 0) atomicAdd(sum, (u64)own);
}

// The sums of one thread.
struct LevelErrors {
    i64 counts[3] = {0, 0, 0}, residues[3] = {0, 0, 0}, squares = 0, escapes = 0;

    // Adds a level of this magnitude; residue: y minus the magnitude, below 2^16.
    __device__ __forceinline__ void add(i32 magnitude, i32 residue) {
        squares += (u32)residue * (u32)residue;
        for (int k = 0; k < 3; ++k) {
            bool own = k < 2 ? magnitude == k + 1 : magnitude > 2;
            counts[k] += own;
            residues[k] += own ? residue : 0;
        }
    }

    // Adds the sums of a whole warp to the 8 sums in global memory.
    __device__ __forceinline__ void add_to(u64* sums) const {
        for (int k = 0; k < 3; ++k) {
            add_to_sum(&sums[k], counts[k]);
            add_to_sum(&sums[3 + k], residues[k]);
        }
        add_to_sum(&sums[6], squares);
        add_to_sum(&sums[7], escapes);
    }
};

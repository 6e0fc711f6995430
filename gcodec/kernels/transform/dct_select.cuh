// The k largest magnitudes of a chunk, and their places; the first of equal ones are taken.
#pragma once
#include "kernels/numeric/compact.cuh"
#include "kernels/numeric/counting.cuh"
#include "kernels/numeric/reduce.cuh"

// A block of 256 threads selects from y, which has `size` elements, 1 <= k <= size, and must be
// complete for all threads. places and values have room for k elements; `top` is raised to the bits of
// the largest magnitude.
static __device__ __forceinline__ void select_chunk(const u32* y, i32 size, i32 k, i32* places,
                                                    u32* values, u32* top) {
    __shared__ u32 counts[256];
    __shared__ i64 scratch[8];
    __shared__ i64 above_of[8], equal_of[8];  // of each warp
    __shared__ i32 chosen[2];
    // The level is determined from its upper bits on; `need` magnitudes with the same upper bits are
    // still to be selected.
    i32 level = 0, need = k;
    for (i32 upper = 31; upper > 0;) {
        i32 shift = max(upper - 8, 0);
        counts[threadIdx.x] = 0;
        __syncthreads();
        for (i32 row = 0; row < size; row += 256) {  // the same for all threads
            i32 e = row + (i32)threadIdx.x;
            i32 bits = e < size ? (i32)(y[e] & MAGNITUDE) : 0;
            bool inside = e < size && (i64)bits >> upper == (i64)level >> upper;
            u32 digit = (u32)(bits >> shift) & ((1u << (upper - shift)) - 1);
            count_place(counts, inside ? digit : NOT_COUNTED, 0, 0);
        }
        __syncthreads();
        i32 digit = 255 - (i32)threadIdx.x;
        i64 own = counts[digit], above = scan_block<Sum>(own, scratch).before;
        if (above < need && need <= above + own) {  // true for one thread
            chosen[0] = digit;
            chosen[1] = (i32)above;
        }
        __syncthreads();
        level |= chosen[0] << shift;
        need -= chosen[1];
        upper = shift;
    }
    i32 warp = (i32)threadIdx.x >> 5, part = (size + 255) / 256 * 32;
    i32 first = min(warp * part, size), stop = min(first + part, size);
    u32 seen = 0;
    Matches own = count_range(y, first, stop, level, seen);
    if ((threadIdx.x & 31) == 0) {
        above_of[warp] = own.above;
        equal_of[warp] = own.equal;
    }
    __syncthreads();
    Matches before = {0, 0};
    for (i32 w = 0; w < warp; ++w) {
        before.above += above_of[w];
        before.equal += equal_of[w];
    }
    write_range(y, first, stop, level, need, before, [&](i64 place, i64 e) {
        if (place < k) {
            places[place] = (i32)e;
            values[place] = y[e];
        }
    });
    raise_largest(seen, top);
    __syncthreads();  // shared memory and y may be overwritten
}

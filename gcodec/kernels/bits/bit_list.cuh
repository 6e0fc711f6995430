// Counts and ordered lists of the one bits of words. A warp processes a part of 512 words.
#pragma once
#include "kernels/numeric/scan.cuh"

static const i64 PART = 512;

// Counts the one bits in each part of n words; word_at(w) returns word w. Whole warps call it.
template <class WordAt>
__device__ __forceinline__ void count_bits(i64 n, i64* counts, WordAt word_at) {
    int lane = threadIdx.x % WARP;
    for (i64 part = GCODEC_FIRST / WARP; part * PART < n; part += GCODEC_STEP / WARP) {
        i64 stop = min(part * PART + PART, n);
        int own = 0;
        for (i64 w = part * PART + lane; w < stop; w += WARP) own += __popc(word_at(w));
        for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
        if (lane == 0) counts[part] = own;
    }
}

// Calls put(place, w, bit) for each one bit, in order; bit 0 is the highest of word w. `before` has
// the number of one bits preceding each part.
template <class WordAt, class Put>
__device__ __forceinline__ void list_bits(i64 n, const i64* before, WordAt word_at, Put put) {
    int lane = threadIdx.x % WARP;
    for (i64 part = GCODEC_FIRST / WARP; part * PART < n; part += GCODEC_STEP / WARP) {
        i64 stop = min(part * PART + PART, n), place = before[part];
        for (i64 row = part * PART; row < stop; row += WARP) {  // the same for all lanes
            u32 word = row + lane < stop ? word_at(row + lane) : 0;
            int upto = scan_warp<Sum>(__popc(word));  // of this lane and the preceding lanes
            i64 at = place + upto - __popc(word);
            for (; word; ++at) {
                int bit = __clz((int)word);
                put(at, row + lane, bit);
                word ^= 0x80000000u >> bit;
            }
            place += __shfl_sync(EVERY_LANE, upto, WARP - 1);
        }
    }
}

// Lists of few elements out of many, noted in any order; the host sorts them by place.
#pragma once
#include "kernels/numeric/scan.cuh"

// Notes the elements of n for which `is` is true. out[0], zero at first, becomes their number. The
// place and the value_of of each follow, for the first `room` elements. Whole warps call it.
template <class Is, class ValueOf>
__device__ __forceinline__ void list(i64 n, u64* out, i64 room, Is is, ValueOf value_of) {
    int lane = threadIdx.x % WARP;
    for (i64 row = GCODEC_FIRST - lane; row < n; row += GCODEC_STEP) {  // the same for all lanes
        i64 i = row + lane;
        bool noted = i < n && is(i);
        u32 lanes = __ballot_sync(EVERY_LANE, noted);
        if (!lanes) continue;  // the usual case
        u64 before = 0;
        if (lane == 0) before = atomicAdd(out, (u64)__popc(lanes));
        before = __shfl_sync(EVERY_LANE, before, 0);
        i64 place = (i64)before + __popc(lanes & ((1u << lane) - 1));
        if (noted && place < room) {
            out[1 + 2 * place] = (u64)i;
            out[2 + 2 * place] = value_of(i);
        }
    }
}

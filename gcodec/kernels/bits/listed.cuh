// Few elements out of many, by their places: noted in any order, which the host puts right.
#pragma once
#include "kernels/numeric/scan.cuh"

// Notes those of n elements for which `is` is true: out[0], 0 before, becomes how many they are, and
// of the first `room` that come the place and value_of it follow. Called by whole warps.
template <class Is, class ValueOf>
__device__ __forceinline__ void list(i64 n, u64* out, i64 room, Is is, ValueOf value_of) {
    int lane = threadIdx.x % WARP;
    for (i64 row = GCODEC_FIRST - lane; row < n; row += GCODEC_STEP) {  // the same for all lanes
        i64 i = row + lane;
        bool here = i < n && is(i);
        u32 lanes = __ballot_sync(EVERY_LANE, here);
        if (!lanes) continue;  // mostly
        u64 before = 0;
        if (lane == 0) before = atomicAdd(out, (u64)__popc(lanes));
        before = __shfl_sync(EVERY_LANE, before, 0);
        i64 place = (i64)before + __popc(lanes & ((1u << lane) - 1));
        if (here && place < room) {
            out[1 + 2 * place] = (u64)i;
            out[2 + 2 * place] = value_of(i);
        }
    }
}

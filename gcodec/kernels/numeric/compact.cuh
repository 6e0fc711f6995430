// Ordered compaction of magnitudes above a level, and of the first ones that are equal to it.
//
// A warp processes a range of elements: it first counts the matches. Given the number of matches
// preceding its range, it then writes them in order. Magnitudes are compared as integers.
#pragma once
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/scan.cuh"

struct Matches {
    i64 above, equal;  // numbers of magnitudes
};

// Counts the elements from `first` to stop - 1 that are above the level, or equal to it; `top` is
// raised to the largest magnitude of the lane.
__device__ __forceinline__ Matches count_range(const u32* x, i64 first, i64 stop, i32 level,
                                               u32& top) {
    Matches matches = {0, 0};
#pragma unroll 4
    for (i64 row = first; row < stop; row += 32) {  // the same for all lanes
        i64 i = row + (threadIdx.x & 31);
        bool inside = i < stop;
        u32 bits = inside ? x[i] & MAGNITUDE : 0;
        top = max(top, bits);
        matches.above += __popc(__ballot_sync(EVERY_LANE, inside && (i32)bits > level));
        matches.equal += __popc(__ballot_sync(EVERY_LANE, inside && (i32)bits == level));
    }
    return matches;
}

// Calls put(place, i) for each element i of the range that is above the level, or one of the first
// `ties` elements that are equal to it. `before` counts the matches preceding the range; place rises
// from before.above + min(before.equal, ties) on.
template <class Put>
__device__ __forceinline__ void write_range(const u32* x, i64 first, i64 stop, i32 level, i64 ties,
                                            Matches before, Put put) {
    u32 lower = (1u << (threadIdx.x & 31)) - 1;
    for (i64 row = first; row < stop; row += 32) {  // the same for all lanes
        i64 i = row + (threadIdx.x & 31);
        bool inside = i < stop;
        i32 bits = inside ? (i32)(x[i] & MAGNITUDE) : 0;
        u32 above = __ballot_sync(EVERY_LANE, inside && bits > level);
        u32 equal = __ballot_sync(EVERY_LANE, inside && bits == level);
        i64 equals = before.equal + __popc(equal & lower);  // preceding this lane
        i64 place = before.above + __popc(above & lower) + min(equals, ties);
        if (inside && (bits > level || (bits == level && equals < ties))) put(place, i);
        before.above += __popc(above);
        before.equal += __popc(equal);
    }
}

// Ordered compaction of magnitudes above a level, and of the first ones that are equal to it.
//
// A warp goes through a range of elements: it first counts them, and knowing how many there are
// before its range, writes them in their order. Magnitudes are compared as integers.
#pragma once
#include "kernels/numeric/floats.cuh"

static const u32 ALL_LANES = 0xFFFFFFFFu;

struct Found {
    i64 above, equal;  // magnitudes
};

// How many of elements first to stop - 1 are above the level, or equal to it; `top` is raised to
// the largest magnitude that the lane has seen.
__device__ __forceinline__ Found count_range(const u32* x, i64 first, i64 stop, i32 level, u32& top) {
    Found found = {0, 0};
#pragma unroll 4
    for (i64 row = first; row < stop; row += 32) {  // the same for all lanes
        i64 i = row + (threadIdx.x & 31);
        bool inside = i < stop;
        u32 bits = inside ? x[i] & MAGNITUDE : 0;
        top = max(top, bits);
        found.above += __popc(__ballot_sync(ALL_LANES, inside && (i32)bits > level));
        found.equal += __popc(__ballot_sync(ALL_LANES, inside && (i32)bits == level));
    }
    return found;
}

// Calls put(place, i) for each element i of the range that is above the level, or that is one of
// the first `ties` that are equal to it; `before` are those before the range, and place rises from
// before.above + min(before.equal, ties) on.
template <class Put>
__device__ __forceinline__ void write_range(const u32* x, i64 first, i64 stop, i32 level, i64 ties,
                                            Found before, Put put) {
    u32 lower = (1u << (threadIdx.x & 31)) - 1;
    for (i64 row = first; row < stop; row += 32) {  // the same for all lanes
        i64 i = row + (threadIdx.x & 31);
        bool inside = i < stop;
        i32 bits = inside ? (i32)(x[i] & MAGNITUDE) : 0;
        u32 above = __ballot_sync(ALL_LANES, inside && bits > level);
        u32 equal = __ballot_sync(ALL_LANES, inside && bits == level);
        i64 equals = before.equal + __popc(equal & lower);  // before this lane
        i64 place = before.above + __popc(above & lower) + min(equals, ties);
        if (inside && (bits > level || (bits == level && equals < ties))) put(place, i);
        before.above += __popc(above);
        before.equal += __popc(equal);
    }
}

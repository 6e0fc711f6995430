// The paths of lanes through the trellis of two quantizers; see trellis.py.
#pragma once
#include "runtime/types.cuh"

static const i64 RUN = 1 << 16;  // elements of a run, in which each lane has its own path
static const u32 TRELLIS_STEPS = 0x99881100u;  // by state and parity: 8 times the next state
static const u32 EVEN_ESCAPE = 254, ODD_ESCAPE = 252;

// The path after a symbol: 8 times a state. The first path is 0.
__device__ __forceinline__ u32 path_after(u32 path, u32 symbol) {
    return TRELLIS_STEPS >> (path + ((symbol + 2) & 4)) & 24;
}

// The quantizer of a path as a bit above the class, which is below 64.
__device__ __forceinline__ u32 above_class(u32 path) { return (path & 16) << 2; }

// The position in a tensor of n elements of the element that `lanes` interleaved lanes code at a
// turn; see lane_order.py.
__device__ __forceinline__ i64 place_of_turn(i64 turn, i64 n, i32 lanes) {
    i64 start = turn & ~(RUN - 1), left = n - start;
    u32 size = (u32)(left < RUN ? left : RUN), length = size / (u32)lanes, at = (u32)(turn - start);
    if (at >= length * lanes) return turn;
    return start + at % (u32)lanes * length + at / (u32)lanes;
}

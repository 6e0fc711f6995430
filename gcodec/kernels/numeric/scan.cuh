// Sums before each element, or maxima: of the threads of a block, and of warps.
#pragma once
#include "runtime/types.cuh"

static const u32 EVERY_LANE = 0xFFFFFFFFu;
static const int WARP = 32;

struct Sum {
    static __device__ __forceinline__ i64 none() { return 0; }
    static __device__ __forceinline__ i64 of(i64 a, i64 b) { return a + b; }
};

struct Max {
    static __device__ __forceinline__ i64 none() { return -0x7FFFFFFFFFFFFFFFll - 1; }
    static __device__ __forceinline__ i64 of(i64 a, i64 b) { return a > b ? a : b; }
};

struct Scanned {
    i64 before;  // of the threads before this one
    i64 total;   // of all
};

// What each lane of a warp and those before it have together. All 32 lanes must call it.
template <class Op>
__device__ __forceinline__ i64 scan_warp(i64 x) {
    int lane = threadIdx.x % WARP;
    for (int step = 1; step < WARP; step *= 2) {
        i64 before = __shfl_up_sync(EVERY_LANE, x, step);
        if (lane >= step) x = Op::of(before, x);
    }
    return x;
}

// Of a block of one dimension and whole warps, all of which must call it; `scratch` is shared and
// has an element for each warp.
template <class Op>
__device__ __forceinline__ Scanned scan_block(i64 x, i64* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    i64 upto = scan_warp<Op>(x);
    if (lane == WARP - 1) scratch[warp] = upto;  // warp < warps
    __syncthreads();
    Scanned found = {Op::none(), Op::none()};
    for (int w = 0; w < warps; ++w) {
        if (w == warp) found.before = found.total;
        found.total = Op::of(found.total, scratch[w]);
    }
    __syncthreads();  // scratch may be written again
    i64 previous = __shfl_up_sync(EVERY_LANE, upto, 1);
    if (lane) found.before = Op::of(found.before, previous);
    return found;
}

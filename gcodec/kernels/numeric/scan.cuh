// Exclusive prefix sums, or maxima, over the threads of a block or a warp.
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
    i64 before;  // of the preceding threads
    i64 total;   // of all threads
};

// The inclusive prefix sum or maximum of each lane of a warp. All 32 lanes must call it.
template <class Op, class T>
__device__ __forceinline__ T scan_warp(T x) {
    int lane = threadIdx.x % WARP;
    for (int step = 1; step < WARP; step *= 2) {
        T before = __shfl_up_sync(EVERY_LANE, x, step);
        if (lane >= step) x = (T)Op::of(before, x);
    }
    return x;
}

// The exclusive prefix sum or maximum of each thread of a one-dimensional block of whole warps. All
// threads must call it; `scratch` is shared and has an element for each warp.
template <class Op>
__device__ __forceinline__ Scanned scan_block(i64 x, i64* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    i64 upto = scan_warp<Op>(x);
    if (lane == WARP - 1) scratch[warp] = upto;  // warp < warps
    __syncthreads();
    Scanned scanned = {Op::none(), Op::none()};
    for (int w = 0; w < warps; ++w) {
        if (w == warp) scanned.before = scanned.total;
        scanned.total = Op::of(scanned.total, scratch[w]);
    }
    __syncthreads();  // scratch may be overwritten
    i64 previous = __shfl_up_sync(EVERY_LANE, upto, 1);
    if (lane) scanned.before = Op::of(scanned.before, previous);
    return scanned;
}

// Exclusive prefix sums or maxima of n numbers. Tiles of 2048 numbers are reduced, the results are
// scanned in turn, and each tile continues from its result.
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const int PER_THREAD = 8;  // numbers
static const i64 TILE = THREADS * PER_THREAD;

template <class Op>
__device__ __forceinline__ void reduce(const i64* numbers, i64 n, i64* totals, i64* scratch) {
    i64 start = blockIdx.x * TILE, total = Op::none();
    for (int k = 0; k < PER_THREAD; ++k) {
        i64 i = start + k * THREADS + threadIdx.x;
        if (i < n) total = Op::of(total, numbers[i]);
    }
    Scanned sums = scan_block<Op>(total, scratch);
    if (threadIdx.x == 0) totals[blockIdx.x] = sums.total;  // one for each block
}

// `sums` has n + 1 elements, `before` has one for each tile. A single tile does not read `before`.
template <class Op>
__device__ __forceinline__ void scan(
    const i64* numbers, i64 n, const i64* before, i64* sums, i64* scratch
) {
    i64 start = blockIdx.x * TILE + threadIdx.x * PER_THREAD;
    i64 own[PER_THREAD], total = Op::none();
    for (int k = 0; k < PER_THREAD; ++k) {
        own[k] = start + k < n ? numbers[start + k] : Op::none();
        total = Op::of(total, own[k]);
    }
    i64 upto = scan_block<Op>(total, scratch).before;
    if (gridDim.x > 1) upto = Op::of(before[blockIdx.x], upto);
    for (int k = 0; k < PER_THREAD; ++k) {
        if (start + k <= n) sums[start + k] = upto;
        upto = Op::of(upto, own[k]);
    }
    // If n is a multiple of a tile, the preceding loop does not reach sums[n].
    if (start + PER_THREAD == n && n % TILE == 0) sums[n] = upto;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_tiles(const i64* numbers, i64 n, bool maxima, i64* totals) {
    __shared__ i64 scratch[THREADS / WARP];
    if (maxima) reduce<Max>(numbers, n, totals, scratch);
    else reduce<Sum>(numbers, n, totals, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scan_tiles(const i64* numbers, i64 n, bool maxima, const i64* before, i64* out) {
    __shared__ i64 scratch[THREADS / WARP];
    if (maxima) scan<Max>(numbers, n, before, out, scratch);
    else scan<Sum>(numbers, n, before, out, scratch);
}

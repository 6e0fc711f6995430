// Sums before each of n numbers, and of all; or maxima. Tiles of 2048 numbers are reduced, what
// they come to is scanned in turn, and each tile goes on from there.
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const int EACH = 8;  // numbers of a thread
static const i64 TILE = THREADS * EACH;

template <class Op>
__device__ __forceinline__ void reduce(const i64* numbers, i64 n, i64* totals, i64* scratch) {
    i64 start = blockIdx.x * TILE, found = Op::none();
    for (int k = 0; k < EACH; ++k) {
        i64 i = start + k * THREADS + threadIdx.x;
        if (i < n) found = Op::of(found, numbers[i]);
    }
    Scanned sums = scan_block<Op>(found, scratch);
    if (threadIdx.x == 0) totals[blockIdx.x] = sums.total;  // one for each block
}

// `sums` has n + 1 elements, `before` one for each tile, of which nothing is read where there is but
// one.
template <class Op>
__device__ __forceinline__ void scan(
    const i64* numbers, i64 n, const i64* before, i64* sums, i64* scratch
) {
    i64 start = blockIdx.x * TILE + threadIdx.x * EACH;
    i64 own[EACH], found = Op::none();
    for (int k = 0; k < EACH; ++k) {
        own[k] = start + k < n ? numbers[start + k] : Op::none();
        found = Op::of(found, own[k]);
    }
    i64 upto = scan_block<Op>(found, scratch).before;
    if (gridDim.x > 1) upto = Op::of(before[blockIdx.x], upto);
    for (int k = 0; k < EACH; ++k) {
        if (start + k <= n) sums[start + k] = upto;
        upto = Op::of(upto, own[k]);
    }
    // Where n is a multiple of a tile, no thread has the place behind it.
    if (start + EACH == n && n % TILE == 0) sums[n] = upto;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_tiles(const i64* numbers, i64 n, i64* totals) {
    __shared__ i64 scratch[THREADS / WARP];
    reduce<Sum>(numbers, n, totals, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_tiles(const i64* numbers, i64 n, i64* totals) {
    __shared__ i64 scratch[THREADS / WARP];
    reduce<Max>(numbers, n, totals, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sums_before(const i64* numbers, i64 n, const i64* before, i64* sums) {
    __shared__ i64 scratch[THREADS / WARP];
    scan<Sum>(numbers, n, before, sums, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS)
maxima_before(const i64* numbers, i64 n, const i64* before, i64* sums) {
    __shared__ i64 scratch[THREADS / WARP];
    scan<Max>(numbers, n, before, sums, scratch);
}

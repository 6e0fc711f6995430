// Twin of norms.py: norms of buckets.
#include "kernels/numeric/reduce.cuh"
#include "runtime/report.cuh"

// The sums of squares of tiles; each bucket has `tiles` tiles. A block processes a tile.
extern "C" __global__ void tile_squares(
    const u32* x, i64 n, i64 bucket, i64 tiles, f64* sums) {
    __shared__ f64 lanes[LANES / 2];
    i64 b = blockIdx.x / tiles, within = blockIdx.x % tiles * TILE;
    i64 start = b * bucket + within, end = min(b * bucket + min(within + TILE, bucket), n);
    f64 sum = 0.0;
    for (int row = 0; row < TILE / LANES; row++) {
        i64 i = start + row * LANES + threadIdx.x;
        f64 wide = i < end ? widened(x[i]) : 0.0;  // adding a zero changes nothing
        sum = __dadd_rn(sum, __dmul_rn(wide, wide));
    }
    sum = add_lanes(sum, lanes);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;  // one block for each tile of each bucket
}

// The sums of squares of small buckets of at most a tile. A warp processes a bucket; each thread has
// 8 lanes of the fixed order, so the tree is the same.
extern "C" __global__ void small_squares(
    const u32* x, i64 n, i64 bucket, i64 count, f64* sums) {
    i64 b = GCODEC_FIRST / 32, start = b * bucket;
    if (b >= count) return;  // the same for all threads of the warp
    i64 end = min(start + bucket, n);
    int t = threadIdx.x % 32;
    f64 lanes[LANES / 32];
#pragma unroll
    for (int k = 0; k < LANES / 32; k++) {  // lane t + 32 * k
        f64 sum = 0.0;
        for (i64 i = start + t + 32 * k; i < end; i += LANES) {
            f64 wide = widened(x[i]);
            sum = __dadd_rn(sum, __dmul_rn(wide, wide));
        }
        lanes[k] = sum;
    }
#pragma unroll
    for (int width = LANES / 64; width >= 1; width /= 2)  // 128, 64, 32 lanes
#pragma unroll
        for (int k = 0; k < width; k++) lanes[k] = __dadd_rn(lanes[k], lanes[k + width]);
    f64 sum = lanes[0];
    for (int width = 16; width >= 1; width /= 2)
        sum = __dadd_rn(sum, __shfl_down_sync(0xFFFFFFFFu, sum, width));
    if (t == 0) sums[b] = sum;
}

// Square roots, rounded to float32.
extern "C" __global__ void roots(const f64* sums, i64 count, u32* norms) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP)
        norms[b] = narrowed(__dsqrt_rn(sums[b]));
}

// The bits of the largest magnitudes of small buckets. A warp processes a bucket.
extern "C" __global__ void largest_small(
    const u32* x, i64 n, i64 bucket, i64 count, u32* norms) {
    i64 b = GCODEC_FIRST / 32;
    if (b >= count) return;  // the same for all threads of the warp
    u32 top = 0;
    i64 end = min((b + 1) * bucket, n);
    for (i64 i = b * bucket + threadIdx.x % 32; i < end; i += 32) top = max(top, x[i] & MAGNITUDE);
    raise_largest(top, &norms[b]);
}

// The same for large buckets, whose norms must be 0 at first. A block processes a tile.
extern "C" __global__ void largest_tiles(
    const u32* x, i64 n, i64 bucket, i64 tiles, u32* norms) {
    i64 b = blockIdx.x / tiles, within = blockIdx.x % tiles * TILE;
    i64 start = b * bucket + within, end = min(b * bucket + min(within + TILE, bucket), n);
    u32 top = 0;
    for (i64 i = start + threadIdx.x; i < end; i += LANES) top = max(top, x[i] & MAGNITUDE);
    raise_largest(top, &norms[b]);  // one block for each tile of each bucket
}

// Norms as bytes at any address, the most significant byte first.
extern "C" __global__ void write_norms(const u32* norms, i64 count, u8* data) {
    for (i64 k = GCODEC_FIRST; k < 4 * count; k += GCODEC_STEP)
        data[k] = (u8)(norms[k / 4] >> (24 - 8 * (k % 4)));
}

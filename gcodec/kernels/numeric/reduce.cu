// Twin of reduce.py: reductions whose results do not depend on the device.
#include "kernels/numeric/reduce.cuh"

// The sums of tiles of x and of its squares, and the largest magnitude as bits. A block processes a
// tile.
extern "C" __global__ void tile_moments(const f32* x, i64 n, f64* sums, f64* squares, u32* largest) {
    __shared__ f64 lanes[LANES / 2];
    __shared__ u32 tops[LANES / 32];
    i64 start = (i64)blockIdx.x * TILE;
    f64 sum = 0.0, square = 0.0;
    u32 top = 0;
    for (int row = 0; row < TILE / LANES; row++) {
        i64 i = start + row * LANES + threadIdx.x;
        u32 bits = i < n ? bits_of(x[i]) : 0;  // adding a zero changes nothing
        f64 wide = widened(bits);
        sum = __dadd_rn(sum, wide);
        square = __dadd_rn(square, __dmul_rn(wide, wide));
        top = max(top, bits & MAGNITUDE);
    }
    sum = add_lanes(sum, lanes);
    square = add_lanes(square, lanes);
    for (int width = 16; width >= 1; width /= 2)
        top = max(top, __shfl_down_sync(0xFFFFFFFFu, top, width));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;  // LANES / 32 warps
    __syncthreads();
    if (threadIdx.x) return;
    for (int warp = 1; warp < LANES / 32; warp++) top = max(top, tops[warp]);
    sums[blockIdx.x] = sum;  // one block for each tile
    squares[blockIdx.x] = square;
    atomicMax(largest, top);
}

// The sums of tiles of rows of `count` numbers; each row has `tiles` tiles.
extern "C" __global__ void tile_sums(const f64* x, i64 count, i64 tiles, f64* sums) {
    __shared__ f64 lanes[LANES / 2];
    i64 row = blockIdx.x / tiles * count, start = blockIdx.x % tiles * TILE;
    f64 sum =
        sum_tile(start, min(start + TILE, count), lanes, [=](i64 i) { return x[row + i]; });
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;  // one block for each tile of each row
}

// The largest magnitude, as bits.
extern "C" __global__ void max_abs_bits(const u32* bits, i64 n, u32* largest) {
    u32 top = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) top = max(top, bits[i] & MAGNITUDE);
    raise_largest(top, largest);
}

// The largest magnitude of x + decay * residual, as bits.
extern "C" __global__ void max_abs_bits_corrected(
    const u32* x, const u32* residual, f32 decay, i64 n, u32* largest) {
    u32 factor = bits_of(decay), top = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        top = max(top, add_bits(x[i], multiply_bits(factor, residual[i])) & MAGNITUDE);
    raise_largest(top, largest);
}

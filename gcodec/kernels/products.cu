// Twin of products.py: products of a matrix with few rows of factors.
//
// Integers are multiplied. Those of a block are added in any order, as integers of 64 bits, which
// are exact in float64; sums of blocks one after the other, as float64.
#include "floats.cuh"
#include "scan.cuh"

static const int RANKS = 4;  // rows of factors that are multiplied at a time
static const int VALUE_NBITS = 24;

// How many of what integers count are in 1, given the bits of the largest magnitude; see products.py.
__device__ __forceinline__ f64 inverse_of(u32 top) {
    // Of a number from 2^(e - 1) to below 2^e; of 0, e is 0.
    int e = top >> 23 ? (int)(top >> 23) - 126 : top ? 32 - __clz((int)top) - 149 : 0;
    return __longlong_as_double((i64)(1023 + VALUE_NBITS - e) << 52);
}

// What is not finite, and will be refused, is 0.
__device__ __forceinline__ i32 integer_of(u32 bits, f64 inverse) {
    return (bits & MAGNITUDE) < INFINITY_BITS ? (i32)rint(__dmul_rn(widened(bits), inverse)) : 0;
}

// Rows `first` to `ranks` - 1 of factors (ranks, k), up to RANKS of them; a warp for each of m rows.
extern "C" __global__ void __launch_bounds__(256)
    multiply_rows(const u32* __restrict__ matrix, i64 m, i64 k, const u32* top, i64 width,
                  const i32* __restrict__ factors, i64 ranks, i64 first, f64* __restrict__ sums) {
    // sums: (ranks, m)
    int lane = threadIdx.x % WARP;
    f64 inverse = inverse_of(*top);
    for (i64 row = GCODEC_FIRST / WARP; row < m; row += GCODEC_STEP / WARP) {
        f64 total[RANKS] = {};
        for (i64 start = 0; start < k; start += width) {  // the same for all lanes
            i64 stop = min(start + width, k), own[RANKS] = {};
#pragma unroll 1
            for (i64 t = start + lane; t < stop; t += WARP) {
                i64 value = integer_of(matrix[row * k + t], inverse);
                for (int j = 0; j < RANKS; ++j)
                    if (first + j < ranks) own[j] += value * factors[(first + j) * k + t];
            }
#pragma unroll
            for (int j = 0; j < RANKS; ++j) {
                for (int step = 16; step; step /= 2)
                    own[j] += __shfl_xor_sync(EVERY_LANE, own[j], step);
                total[j] = __dadd_rn(total[j], (f64)own[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < RANKS; ++j)
            if (lane == j && first + j < ranks) sums[(first + j) * m + row] = total[j];
    }
}

// The same of columns, and factors (ranks, m), for blocks of `height` rows apart: blockIdx.y is the
// block, blockIdx.x tells which columns. A thread has one, or where there are few the rows of a
// block are shared out too.
extern "C" __global__ void __launch_bounds__(256)
    multiply_columns(const u32* __restrict__ matrix, i64 m, i64 k, const u32* top, i64 height,
                     const i32* __restrict__ factors, i64 ranks, i64 first,
                     u64* __restrict__ sums) {
    // 256 threads; sums: (RANKS, blocks, k) zeros
    i64 across = min(k, (i64)blockDim.x), down = blockDim.x / across;
    i64 column = blockIdx.x * across + threadIdx.x % across;
    if (threadIdx.x >= across * down || column >= k) return;
    i64 start = blockIdx.y * height, stop = min(start + height, m), own[RANKS] = {};
    f64 inverse = inverse_of(*top);
    for (i64 row = start + threadIdx.x / across; row < stop; row += down) {
        i64 value = integer_of(matrix[row * k + column], inverse);
        for (int j = 0; j < RANKS; ++j)
            if (first + j < ranks) own[j] += value * factors[(first + j) * m + row];
    }
    for (int j = 0; j < RANKS; ++j)
        if (own[j]) atomicAdd(&sums[(j * (i64)gridDim.y + blockIdx.y) * k + column], (u64)own[j]);
}

// Adds up what multiply_columns found.
extern "C" __global__ void __launch_bounds__(256)
    add_blocks(const u64* __restrict__ sums, i64 blocks, i64 k, i64 ranks, i64 first,
               f64* __restrict__ out) {
    // out: (ranks, k)
    for (i64 i = GCODEC_FIRST; i < RANKS * k; i += GCODEC_STEP) {
        i64 j = i / k, column = i - j * k;
        if (first + j >= ranks) return;
        f64 total = 0;
        for (i64 b = 0; b < blocks; ++b)
            total = __dadd_rn(total, (f64)(i64)sums[(j * blocks + b) * k + column]);
        out[(first + j) * k + column] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    put_products(const u32* __restrict__ p, const u32* __restrict__ q, i64 ranks, i64 m, i64 k,
                 u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < m * k; i += GCODEC_STEP) {
        i64 row = i / k, column = i - row * k;
        u32 sum = multiply_bits(p[row], q[column]);
        for (i64 j = 1; j < ranks; ++j)
            sum = add_bits(sum, multiply_bits(p[j * m + row], q[j * k + column]));
        out[i] = sum;
    }
}

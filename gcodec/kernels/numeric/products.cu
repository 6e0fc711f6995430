// Twin of products.py, the products of a matrix with few rows of factors, and of low_rank.py, which
// computes the factors.
//
// The operands are integers. A block sums its products as integers of 64 bits, in any order; the sums
// are exact in float64. The sums of blocks are added one after the other, as float64.
#include "kernels/numeric/philox.cuh"
#include "kernels/numeric/reduce.cuh"
#include "kernels/numeric/scan.cuh"

static const int RANKS = 4;  // rows of factors that are multiplied at a time
static const int VALUE_NBITS = 24, FACTOR_NBITS = 16;
static const f64 DEPENDENT = 0x1p-40;  // relative square of a row that depends on preceding rows

// The exponent e of a float32 from 2^(e - 1) to below 2^e, given its bits; 0 for zero.
__device__ __forceinline__ int exponent_of(u32 top) {
    return top >> 23 ? (int)(top >> 23) - 126 : top ? 32 - __clz((int)top) - 149 : 0;
}

// The reciprocal of the unit, given the bits of the largest magnitude; see products.py.
__device__ __forceinline__ f64 inverse_of(u32 top) {
    return power_of_two(VALUE_NBITS - exponent_of(top));
}

// A value as an integer number of units; 0 for a value that is not finite, which the host refuses.
__device__ __forceinline__ i32 integer_of(u32 bits, f64 inverse) {
    return (bits & MAGNITUDE) < INFINITY_BITS ? (i32)rint(__dmul_rn(widened(bits), inverse)) : 0;
}

// Multiplies each of m rows by up to RANKS rows of (ranks, k) factors, from row `first` on. A warp
// processes a row.
extern "C" __global__ void __launch_bounds__(256, 4)
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

// Multiplies each column by rows of (ranks, m) factors, in separate blocks of `height` rows.
// blockIdx.y is the block, blockIdx.x selects columns. A thread processes a column; if there are few
// columns, several threads share the rows of a block.
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

// Adds up the sums of multiply_columns.
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

// Rows of `k` random integers from −510 to 510. If there are earlier rows, and the earlier row is not
// zero, it is used instead. A block processes a row.
extern "C" __global__ void __launch_bounds__(256)
    start_rows(u64 seed, u64 stream, i64 k, const u32* __restrict__ before, bool any,
               f64* __restrict__ rows) {
    i64 first = (i64)blockIdx.x * k;
    int reused = 0;
    for (i64 t = threadIdx.x; any && t < k; t += blockDim.x)
        reused |= (before[first + t] & MAGNITUDE) != 0;
    reused = __syncthreads_or(reused);
    for (i64 t = threadIdx.x; t < k; t += blockDim.x) {
        u64 i = (u64)(first + t);
        Words four = philox(seed, i >> 2, stream);
        u32 low = i & 1 ? four.of[1] : four.of[0], high = i & 1 ? four.of[3] : four.of[2];
        u32 word = i & 2 ? high : low;
        i32 sum = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
        rows[i] = reused ? widened(before[i]) : (f64)(sum - 510);
    }
}

// Rounds rows of n numbers to integers of 16 bits and a sign, times a unit of the row. A block
// processes a row.
extern "C" __global__ void __launch_bounds__(256)
    fix_rows(const f64* __restrict__ rows, i64 n, i32* __restrict__ integers,
             f64* __restrict__ units) {
    __shared__ i64 scratch[256 / WARP];
    const f64* row = rows + (i64)blockIdx.x * n;
    i64 top = 0;  // the bits of nonnegative numbers are ordered like the numbers
    for (i64 t = threadIdx.x; t < n; t += blockDim.x)
        top = max(top, (i64)__double_as_longlong(fabs(row[t])));
    top = scan_block<Max>(top, scratch).total;
    f64 unit = power_of_two((top ? (top >> 52) - 1022 : 0) - FACTOR_NBITS);
    for (i64 t = threadIdx.x; t < n; t += blockDim.x)
        integers[(i64)blockIdx.x * n + t] = (i32)rint(__ddiv_rn(row[t], unit));
    if (threadIdx.x == 0) units[blockIdx.x] = unit;
}

// Converts sums of products, n in a row, to numbers: multiplies by the units of factors and matrix.
extern "C" __global__ void __launch_bounds__(256)
    scale_rows(const f64* __restrict__ sums, const f64* __restrict__ units, const u32* top, i64 ranks,
               i64 n, f64* __restrict__ rows) {
    f64 unit = power_of_two(exponent_of(*top) - VALUE_NBITS);
    for (i64 i = GCODEC_FIRST; i < ranks * n; i += GCODEC_STEP)
        rows[i] = __dmul_rn(sums[i], __dmul_rn(units[i / n], unit));
}

// Writes the sums of tiles of n numbers value(i), and returns the number of tiles.
template <class Value>
__device__ __forceinline__ i64 sum_tiles(i64 n, f64* sums, f64* lanes, Value value) {
    i64 tiles = (n + TILE - 1) / TILE;
    for (i64 tile = 0; tile < tiles; ++tile) {
        f64 sum = sum_tile(tile * TILE, min((tile + 1) * TILE, n), lanes, value);
        if (threadIdx.x == 0) sums[tile] = sum;
    }
    __syncthreads();
    return tiles;
}

// The sum of value(i) for n > 0 numbers, by tiles, in all threads of a block; see reduce.py. `sums`
// has room for the sums of tiles, and of tiles of tiles. value(i) is called once, by the same thread
// in all calls.
template <class Value>
__device__ __forceinline__ f64 fold(i64 n, f64* sums, f64* lanes, Value value) {
    i64 count = sum_tiles(n, sums, lanes, value);
    while (count > 1) {
        const f64* below = sums;
        sums += count;
        count = sum_tiles(count, sums, lanes, [=](i64 i) { return below[i]; });
    }
    f64 total = sums[0];
    __syncthreads();
    return total;
}

// Makes rows of m numbers orthonormal by the Gram–Schmidt process; see low_rank.py. One block of LANES
// threads; each thread has the same elements of all rows. sums: for `fold`.
extern "C" __global__ void __launch_bounds__(256)
    make_orthonormal(const f64* __restrict__ rows, i64 ranks, i64 m, f64* out, f64* sums) {
    __shared__ f64 lanes[LANES / 2];
#pragma unroll 1
    for (i64 j = 0; j < ranks; ++j) {
        const f64* row = rows + j * m;
        f64* residual = out + j * m;
        f64 before = fold(m, sums, lanes, [=](i64 t) {
            residual[t] = row[t];
            return __dmul_rn(row[t], row[t]);
        });
        f64 share = 0.0;  // of the preceding row, which the next pass subtracts
#pragma unroll 1
        for (i64 i = 0; i < j; ++i) {
            const f64 *basis = out + i * m, *previous = basis - m;
            share = fold(m, sums, lanes, [=](i64 t) {
                if (i) residual[t] = __dsub_rn(residual[t], __dmul_rn(share, previous[t]));
                return __dmul_rn(basis[t], residual[t]);
            });
        }
        f64 squares = fold(m, sums, lanes, [=](i64 t) {
            if (j) residual[t] = __dsub_rn(residual[t], __dmul_rn(share, residual[t - m]));
            return __dmul_rn(residual[t], residual[t]);
        });
        bool independent = squares > __dmul_rn(before, DEPENDENT);
        f64 length = __dsqrt_rn(squares);
        for (i64 t = threadIdx.x; t < m; t += LANES)
            residual[t] = independent ? __ddiv_rn(residual[t], length) : 0.0;
    }
}

// Factors as float32: P from integers and units, Q from numbers.
extern "C" __global__ void __launch_bounds__(256)
    put_factors(const i32* __restrict__ integers, const f64* __restrict__ units, i64 m,
                const f64* __restrict__ right, i64 k, i64 ranks, u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < ranks * (m + k); i += GCODEC_STEP) {
        i64 at = i - ranks * m;
        out[i] = narrowed(at < 0 ? __dmul_rn((f64)integers[i], units[i / m]) : right[at]);
    }
}

// The largest magnitudes of rows of n numbers, as bits. A block processes a row.
extern "C" __global__ void __launch_bounds__(256)
    largest_of_rows(const u32* __restrict__ rows, i64 n, u32* __restrict__ tops) {
    __shared__ i64 scratch[256 / WARP];
    i64 top = 0;
    for (i64 t = threadIdx.x; t < n; t += blockDim.x)
        top = max(top, (i64)(rows[(i64)blockIdx.x * n + t] & MAGNITUDE));
    top = scan_block<Max>(top, scratch).total;
    if (threadIdx.x == 0) tops[blockIdx.x] = (u32)top;
}

// A bound of the magnitudes of PᵀQ, given the largest magnitude of each row. One thread.
extern "C" __global__ void bound_product(const u32* __restrict__ tops, i64 ranks, f64* bound) {
    // tops: magnitudes of P, then of Q
    f64 sum = 0.0;
    for (i64 j = 0; j < ranks; ++j)
        sum = __dadd_rn(sum, __dmul_rn(widened(tops[j]), widened(tops[ranks + j])));
    *bound = sum;
}

__device__ __forceinline__ u32 product_of(const u32* p, const u32* q, i64 ranks, i64 m, i64 k, i64 i) {
    i64 row = i / k, column = i - row * k;
    u32 sum = multiply_bits(p[row], q[column]);
    for (i64 j = 1; j < ranks; ++j)
        sum = add_bits(sum, multiply_bits(p[j * m + row], q[j * k + column]));
    return sum;
}

extern "C" __global__ void __launch_bounds__(256)
    put_products(const u32* __restrict__ p, const u32* __restrict__ q, i64 ranks, i64 m, i64 k,
                 u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < m * k; i += GCODEC_STEP) out[i] = product_of(p, q, ranks, m, k, i);
}

// Sets `passes` to 1 if a value of PᵀQ is not finite. The bound may exclude this without a search.
extern "C" __global__ void __launch_bounds__(256)
    pass_float32(const u32* __restrict__ p, const u32* __restrict__ q, i64 ranks, i64 m, i64 k,
                 const f64* __restrict__ bound, u32* passes) {
    if (*bound < 0x1p127) return;
    for (i64 i = GCODEC_FIRST; i < m * k; i += GCODEC_STEP)
        if (!is_finite(product_of(p, q, ranks, m, k, i))) *passes = 1;
}
